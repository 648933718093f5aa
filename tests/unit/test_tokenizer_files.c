/* tokenizer.json files that must be refused, by name, and memory that runs
 * out at every place. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "node/base/mem.h"
#include "tests/support/suite.h"
#include "tests/support/tokens.h"

static void expect_refused(const char *json, size_t n, const char *words)
{
    weft_err err = {0};
    weft_tokenizer *t = NULL;
    ck_assert_msg(weft_tokenizer_read_bytes("dir/tokenizer.json", json, n,
                                            TOKENS_LIMIT, &t,
                                            &err) == WEFT_INVALID_ARGUMENT,
                  "not refused, for \"%s\"", words);
    ck_assert_msg(strncmp(err.text, "dir/tokenizer.json: ", 20) == 0 &&
                      strstr(err.text, words) != NULL &&
                      strchr(err.text, '\n') == NULL,
                  "\"%s\" has no \"%s\"", err.text, words);
    ck_assert_ptr_null(t);
}

START_TEST(not_a_document)
{
    static const struct {
        const char *json, *words;
    } cases[] = {
        {"", "line 1"},
        {"{", "line 1"},
        {"[]", "an array, not an object"},
        {"{\"model\": {}, \"model\": {}}", "duplicate"},
        {"{}", "model: missing"},
        {"{\"\xFF\": 1}", "byte 0xff"},
        {"{\"vocab\": 1}", "key \"vocab\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_refused(cases[i].json, strlen(cases[i].json), cases[i].words);
}
END_TEST

START_TEST(deep_documents)
{
    enum { DEEP = 100 * 1000 };
    static char json[DEEP + 1];
    memset(json, '[', DEEP);
    expect_refused(json, DEEP, "depth");
    /* Shallow enough to parse, but not a Sequence to follow. */
    weft_buf nested = {0};
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(
            weft_buf_printf(&nested, NULL,
                            "{\"type\": \"Sequence\", \"pretokenizers\": ["),
            WEFT_OK);
    ck_assert_int_eq(weft_buf_printf(&nested, NULL, "{\"type\": \"Digits\"}"),
                     WEFT_OK);
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(weft_buf_add(&nested, "]}", 2, NULL), WEFT_OK);
    json_t *const document = tokens_document();
    tokens_set(document, "pre_tokenizer", nested.data);
    char *const text = json_dumps(document, 0);
    expect_refused(text, strlen(text), "Sequence in Sequence");
    free(text);
    json_decref(document);
    weft_buf_deinit(&nested);
}
END_TEST

#define SPLIT(pattern, rest)                                                   \
    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", "      \
    "\"pattern\": {" pattern "}, " rest "}, {\"type\": \"ByteLevel\"}]}"
#define ISOLATED     "\"behavior\": \"Isolated\", \"invert\": false"
#define REGEX(regex) SPLIT("\"Regex\": \"" regex "\"", ISOLATED)

static const struct refusal {
    const char *path, *value, *words;
} refusals[] = {
    {"extra", "1", "key \"extra\" is not known"},
    {"model", NULL, "model: missing"},
    {"model.type", "\"Unigram\"", "model type \"Unigram\""},
    {"model.type", "7", "model.type: an integer"},
    {"model.surprise", "1", "key \"surprise\""},
    {"model.unk_token", "\"<unk>\"", "model.unk_token"},
    {"model.byte_fallback", "true", "model.byte_fallback"},
    {"model.byte_fallback", "1", "model.byte_fallback: an integer"},
    {"model.dropout", "0.1", "model.dropout"},
    {"model.end_of_word_suffix", "\"</w>\"", "model.end_of_word_suffix"},
    {"model.continuing_subword_prefix", "\"##\"", "subword_prefix"},
    {"model.vocab", "[]", "model.vocab: an array"},
    {"model.vocab.a", NULL, "no token \"a\" for byte 97"},
    {"model.vocab.far", "270", "\"far\" has id 270, allowed are 0 to 269"},
    {"model.vocab.far", "-1", "\"far\" has id -1"},
    {"model.vocab.far", "99999999999", "has id 99999999999"},
    {"model.vocab.far", "1.5", "\"far\": a real number"},
    {"model.vocab.hell", "97", "id 97 is of two tokens"},
    {"model.merges", "{}", "model.merges: an object"},
    {"model.merges.2", "[\"he\", \"lp\"]", "merges[2]: token \"lp\""},
    {"model.merges.2", "[\"a\", \"b\"]", "merges[2]: token \"ab\""},
    {"model.merges.2", "\"abc\"", "merges[2]: neither"},
    {"model.merges.2", "\"a b c\"", "merges[2]: neither"},
    {"model.merges.2", "[\"a\"]", "merges[2]: neither"},
    {"model.merges.2", "7", "merges[2]: neither"},
    {"added_tokens", "{}", "added_tokens: an object"},
    {"added_tokens.0", "3", "added_tokens[0]: an integer"},
    {"added_tokens.0.id", "270", "\"<|end|>\" has id 270"},
    {"added_tokens.0.id", "\"x\"", "\"<|end|>\": a string"},
    {"added_tokens.0.id", "265", "id 265 is of two tokens"},
    {"added_tokens.0.id", "97", "id 97 is of two tokens"},
    {"added_tokens.0.content", "\"a\"", "token \"a\" has two ids, 97"},
    {"added_tokens.0.content", "null", "added_tokens[0].content: null"},
    {"added_tokens.0.special", "1", "added_tokens[0].special"},
    {"added_tokens.0.color", "1", "added_tokens[0]: key \"color\""},
    {"normalizer", "{\"type\": \"Lowercase\"}", "type \"Lowercase\""},
    {"normalizer", "{\"type\": \"Sequence\"}", "normalizers: missing"},
    {"normalizer", "{\"type\": \"NFC\", \"x\": 1}", "key \"x\""},
    {"normalizer", "[]", "normalizer: an array"},
    {"pre_tokenizer", "null", "no ByteLevel"},
    {"pre_tokenizer", "{\"type\": \"Whitespace\"}", "type \"Whitespace\""},
    {"pre_tokenizer", "{\"type\": \"Digits\"}", "no ByteLevel"},
    {"pre_tokenizer",
     "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\"},"
     "{\"type\": \"Digits\"}]}",
     "pre_tokenizer[1]: \"Digits\" after ByteLevel"},
    {"pre_tokenizer", SPLIT("", ISOLATED), "pre_tokenizer[0].pattern"},
    {"pre_tokenizer", SPLIT("\"Regex\": 3", ISOLATED), "[0].pattern"},
    {"pre_tokenizer", SPLIT("\"String\": \"\"", ISOLATED), "empty"},
    {"pre_tokenizer", SPLIT("\"String\": \"a\"", "\"behavior\": \"Melted\""),
     "behavior \"Melted\""},
    {"pre_tokenizer", REGEX("(a"), "pattern \"(a\""},
    {"pre_tokenizer", REGEX("(a)\\\\1"), "escape \\1 at byte 3"},
    {"pre_tokenizer", REGEX("a\\\\b"), "escape \\b"},
    {"pre_tokenizer", REGEX("\\\\h"), "escape \\h"},
    {"pre_tokenizer", REGEX("[a[b]]"), "a class inside a class"},
    {"pre_tokenizer", REGEX("[a&&b]"), "an intersection"},
    {"pre_tokenizer", REGEX("[a"), "a class without end"},
    {"pre_tokenizer", REGEX("\\\\p{Klingon}"), "\\p{Klingon}"},
    {"pre_tokenizer", REGEX("a{2}+"), "an interval followed by"},
    {"pre_tokenizer", REGEX("a{,2}"), "this use of {"},
    {"pre_tokenizer", REGEX("(?m)a"), "this kind of group"},
    {"pre_tokenizer", REGEX("a(?i)b"), "this kind of group"},
    {"pre_tokenizer", REGEX("(*MARK:x)"), "(*"},
    {"post_processor", "{\"type\": \"BertProcessing\"}", "BertProcessing"},
    {"post_processor",
     "{\"type\": \"TemplateProcessing\", \"single\": [], \"pair\": [],"
     "\"special_tokens\": {}}",
     "no Sequence \"A\""},
    {"post_processor",
     "{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\":"
     "\"B\", \"type_id\": 0}}], \"pair\": [], \"special_tokens\": {}}",
     "Sequence \"B\""},
    {"post_processor",
     "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\":"
     "{\"id\": \"q\", \"type_id\": 0}}], \"pair\": [], \"special_tokens\":"
     "{}}",
     "no \"ids\" for \"q\""},
    {"post_processor",
     "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\":"
     "{\"id\": \"q\", \"type_id\": 0}}], \"pair\": [], \"special_tokens\":"
     "{\"q\": {\"id\": \"q\", \"ids\": [268], \"tokens\": [\"q\"]}}}",
     "id 268, which is no token"},
    {"decoder", "null", "decoder: null"},
    {"decoder", "{\"type\": \"WordPiece\"}", "type \"WordPiece\""},
};

START_TEST(refused_by_name)
{
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        json_t *const document = tokens_document();
        tokens_set(document, refusals[i].path, refusals[i].value);
        char *const text = json_dumps(document, 0);
        expect_refused(text, strlen(text), refusals[i].words);
        free(text);
        json_decref(document);
    }
}
END_TEST

/* An added token whose content is empty is never found; one that is longer
 * than the limit is refused. */
START_TEST(odd_contents)
{
    json_t *const document = tokens_document();
    tokens_set(document, "added_tokens.0.content", "\"\"");
    weft_tokenizer *const t = tokens_read(document, TOKENS_LIMIT);
    weft_ids ids = {0};
    ck_assert_int_eq(
        weft_tokenizer_encode(t, "xyz", 3,
                              (weft_encode_options){.parse_special = true},
                              &ids, NULL),
        WEFT_OK);
    ck_assert_uint_eq(ids.n, 3);
    weft_ids_deinit(&ids);
    weft_tokenizer_destroy(t);
    static char content[1100];
    content[0] = '"';
    memset(content + 1, 'x', 1030);
    content[1031] = '"';
    tokens_set(document, "added_tokens.0.content", content);
    char *const text = json_dumps(document, 0);
    expect_refused(text, strlen(text), "content of 1030 bytes, limit 1024");
    free(text);
    json_decref(document);
}
END_TEST

/* Every prefix of a document is refused with the file's name. */
START_TEST(truncated)
{
    json_t *const document = tokens_document();
    char *const text = json_dumps(document, 0);
    const size_t n = strlen(text);
    for (size_t cut = 0; cut < n; cut += cut < 64 || cut + 64 > n ? 1 : 13)
        expect_refused(text, cut, "line ");
    free(text);
    json_decref(document);
}
END_TEST

static char path[256];

static void write_file(const char *text)
{
    (void)snprintf(path, sizeof path, "%s/weft-tokens-XXXXXX", P_tmpdir);
    const int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    const ssize_t n = (ssize_t)strlen(text);
    ck_assert_int_eq(write(fd, text, (size_t)n), n);
    ck_assert_int_eq(close(fd), 0);
}

START_TEST(end_token_of_config)
{
    static const struct {
        const char *json;
        weft_status status;
        int32_t id;
        const char *words;
    } cases[] = {
        {"{\"eos_token\": \"<|end|>\", \"x\": 1}", WEFT_OK, 264, ""},
        {"{\"eos_token\": {\"content\": \"<tool>\"}}", WEFT_OK, 265, ""},
        {"{\"eos_token\": null}", WEFT_OK, -1, ""},
        {"{}", WEFT_OK, -1, ""},
        {"{\"eos_token\": \"<|no|>\"}", WEFT_INVALID_ARGUMENT, 0, "<|no|>"},
        {"{\"eos_token\": 5}", WEFT_INVALID_ARGUMENT, 0, "eos_token"},
        {"{\"eos_token\": {}}", WEFT_INVALID_ARGUMENT, 0, "eos_token"},
        {"{", WEFT_INVALID_ARGUMENT, 0, "line 1"},
        {"[]", WEFT_INVALID_ARGUMENT, 0, "an array"},
        {"", WEFT_INVALID_ARGUMENT, 0, "line 1"},
    };
    json_t *const document = tokens_document();
    weft_tokenizer *const t = tokens_read(document, TOKENS_LIMIT);
    json_decref(document);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        weft_err err = {0};
        int32_t id = -7;
        write_file(cases[i].json);
        ck_assert_int_eq(weft_tokenizer_eos_read(t, path, &id, &err),
                         cases[i].status);
        (void)unlink(path);
        if (cases[i].status == WEFT_OK)
            ck_assert_int_eq(id, cases[i].id);
        else
            ck_assert_msg(strstr(err.text, path) != NULL &&
                              strstr(err.text, cases[i].words) != NULL,
                          "%s", err.text);
    }
    int32_t id = -7;
    ck_assert_int_eq(weft_tokenizer_eos_read(t, path, &id, NULL),
                     WEFT_NOT_FOUND);
    weft_tokenizer_destroy(t);
    weft_tokenizer *none = NULL;
    weft_err err = {0};
    ck_assert_int_eq(weft_tokenizer_read(path, TOKENS_LIMIT, &none, &err),
                     WEFT_NOT_FOUND);
    ck_assert_msg(strstr(err.text, path) != NULL, "%s", err.text);
}
END_TEST

enum { IN_A_ROW = 60 }; /* PCRE2 runs on where its JIT gets no memory */

static json_t *whole_document(void)
{
    json_t *const document = tokens_document();
    tokens_set(document, "model.ignore_merges", "true");
    tokens_set(document, "normalizer", "{\"type\": \"NFC\"}");
    tokens_set(document, "pre_tokenizer",
               "{\"type\": \"Sequence\", \"pretokenizers\": ["
               "{\"type\": \"Digits\", \"individual_digits\": true},"
               "{\"type\": \"ByteLevel\", \"add_prefix_space\": true}]}");
    tokens_set(document, "post_processor",
               "{\"type\": \"TemplateProcessing\", \"single\": ["
               "{\"SpecialToken\": {\"id\": \"E\", \"type_id\": 0}},"
               "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], \"pair\": [],"
               "\"special_tokens\": {\"E\": {\"id\": \"E\", \"ids\": [264],"
               "\"tokens\": [\"<|end|>\"]}}}");
    return document;
}

START_TEST(no_memory_to_read)
{
    json_t *const document = whole_document();
    char *const text = json_dumps(document, 0);
    int fine = 0, failed = 0;
    for (long n = 0; fine < IN_A_ROW; n++) {
        weft_err err = {0};
        weft_tokenizer *t = NULL;
        weft_mem_fail_after(n);
        const weft_status st = weft_tokenizer_read_bytes(
            "t.json", text, strlen(text), TOKENS_LIMIT, &t, &err);
        weft_mem_fail_after(-1);
        fine = st == WEFT_OK ? fine + 1 : 0;
        if (st != WEFT_OK) {
            ck_assert_msg(st == WEFT_RESOURCE_EXHAUSTED, "%s", err.text);
            ck_assert_ptr_null(t);
            failed++;
        }
        weft_tokenizer_destroy(t);
        ck_assert_int_eq(weft_mem_live(), 0);
    }
    ck_assert_int_gt(failed, 20);
    free(text);
    json_decref(document);
}
END_TEST

START_TEST(no_memory_to_use)
{
    static const char text[] = "hello <tool>cafe\xCC\x81 12 <|end|> world";
    json_t *const document = whole_document();
    weft_tokenizer *const t = tokens_read(document, TOKENS_LIMIT);
    json_decref(document);
    int fine = 0, failed = 0;
    for (long n = 0; fine < IN_A_ROW; n++) {
        weft_ids ids = {0};
        weft_buf back = {0};
        const weft_encode_options options = {.add_special = true,
                                             .parse_special = true};
        weft_mem_fail_after(n);
        weft_status st = weft_tokenizer_encode(t, text, sizeof text - 1,
                                               options, &ids, NULL);
        if (st != WEFT_OK) ck_assert_uint_eq(ids.n, 0);
        if (st == WEFT_OK)
            st = weft_tokenizer_decode(t, ids.data, ids.n, false, &back, NULL);
        weft_mem_fail_after(-1);
        if (st != WEFT_OK) ck_assert_uint_eq(back.n, 0);
        ck_assert(st == WEFT_OK || st == WEFT_RESOURCE_EXHAUSTED);
        fine = st == WEFT_OK ? fine + 1 : 0;
        failed += st != WEFT_OK;
        weft_ids_deinit(&ids);
        weft_buf_deinit(&back);
    }
    ck_assert_int_gt(failed, 10);
    weft_tokenizer_destroy(t);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {not_a_document,    deep_documents,
                                  refused_by_name,   odd_contents,
                                  truncated,         end_token_of_config,
                                  no_memory_to_read, no_memory_to_use};
    return WEFT_SUITE_RUN("tokenizer_files", tests);
}
