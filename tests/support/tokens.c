#include "tests/support/tokens.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "router/text/byte_level.h"

static const char *const MERGED[] = {"he",        "ll", "hell", "hello",
                                     "\xC4\xA0w", "aa", "aaaa", "wor"};

static const char SKELETON[] =
    "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null,"
    " \"added_tokens\": ["
    "  {\"id\": 264, \"content\": \"<|end|>\", \"single_word\": false,"
    "   \"lstrip\": false, \"rstrip\": false, \"normalized\": false,"
    "   \"special\": true},"
    "  {\"id\": 265, \"content\": \"<tool>\", \"single_word\": false,"
    "   \"lstrip\": false, \"rstrip\": false, \"normalized\": true,"
    "   \"special\": false}],"
    " \"normalizer\": null,"
    " \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\":"
    "   false, \"trim_offsets\": true, \"use_regex\": true},"
    " \"post_processor\": null,"
    " \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true,"
    "   \"trim_offsets\": true, \"use_regex\": true},"
    " \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null,"
    "   \"continuing_subword_prefix\": null, \"end_of_word_suffix\": null,"
    "   \"fuse_unk\": false, \"byte_fallback\": false,"
    "   \"ignore_merges\": false, \"vocab\": {},"
    "   \"merges\": [[\"h\", \"e\"], \"l l\", [\"he\", \"ll\"],"
    "     [\"hell\", \"o\"], [\"\xC4\xA0\", \"w\"], [\"a\", \"a\"],"
    "     [\"aa\", \"aa\"]]}}";

json_t *tokens_document(void)
{
    json_t *const document = json_loads(SKELETON, 0, NULL);
    ck_assert_ptr_nonnull(document);
    json_t *const vocab =
        json_object_get(json_object_get(document, "model"), "vocab");
    for (int byte = 0; byte < 256; byte++) {
        char text[3];
        weft_byte_level_encode((uint8_t)byte, text);
        (void)json_object_set_new(vocab, text, json_integer(byte));
    }
    for (size_t i = 0; i < sizeof MERGED / sizeof MERGED[0]; i++)
        (void)json_object_set_new(vocab, MERGED[i], json_integer(256 + (int)i));
    return document;
}

static json_t *child(json_t *parent, const char *key)
{
    json_t *const found =
        json_is_array(parent)
            ? json_array_get(parent, (size_t)strtoul(key, NULL, 10))
            : json_object_get(parent, key);
    ck_assert_msg(found != NULL, "the document has no \"%s\"", key);
    return found;
}

void tokens_set(json_t *document, const char *path, const char *value)
{
    char copy[256];
    ck_assert_uint_lt(strlen(path), sizeof copy);
    memcpy(copy, path, strlen(path) + 1);
    json_t *at = document;
    char *key = copy;
    for (char *dot = strchr(key, '.'); dot != NULL; dot = strchr(key, '.')) {
        *dot = '\0';
        at = child(at, key);
        key = dot + 1;
    }
    json_t *const with =
        value == NULL ? NULL : json_loads(value, JSON_DECODE_ANY, NULL);
    ck_assert_msg(value == NULL || with != NULL, "not JSON: %s", value);
    int rc = 0;
    if (json_is_array(at))
        rc = json_array_set_new(at, (size_t)strtoul(key, NULL, 10), with);
    else if (with == NULL)
        rc = json_object_del(at, key);
    else
        rc = json_object_set_new(at, key, with);
    ck_assert_msg(rc == 0, "cannot set \"%s\"", path);
}

weft_tokenizer *tokens_read(const json_t *document, int32_t vocab_limit)
{
    weft_err err = {0};
    weft_tokenizer *tokenizer = NULL;
    char *const text = json_dumps(document, 0);
    const weft_status st = weft_tokenizer_read_bytes(
        "test.json", text, strlen(text), vocab_limit, &tokenizer, &err);
    free(text);
    ck_assert_msg(st == WEFT_OK, "%s", err.text);
    return tokenizer;
}

json_t *tokens_load(const char *path)
{
    json_error_t at;
    json_t *const document = json_load_file(path, 0, &at);
    ck_assert_msg(document != NULL, "%s:%d: %s", path, at.line, at.text);
    return document;
}
