/* Text to ids and back: against vectors made with another implementation, and
 * what the header promises besides. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/mem.h"
#include "tests/support/suite.h"
#include "tests/support/tokens.h"

#define TINY "tests/data/tiny-model/tokenizer.json"
enum { TINY_LIMIT = 4096 };

static weft_tokenizer *read_tiny(void)
{
    weft_err err = {0};
    weft_tokenizer *tokenizer = NULL;
    const weft_status st =
        weft_tokenizer_read(TINY, TINY_LIMIT, &tokenizer, &err);
    ck_assert_msg(st == WEFT_OK, "%s", err.text);
    return tokenizer;
}

static weft_ids ids_of(const json_t *list)
{
    weft_ids ids = {0};
    for (size_t i = 0; i < json_array_size(list); i++) {
        const int32_t id = (int32_t)json_integer_value(json_array_get(list, i));
        ck_assert_int_eq(weft_ids_add(&ids, &id, 1, NULL), WEFT_OK);
    }
    return ids;
}

static bool flag(const json_t *vector, const char *name)
{
    return json_is_true(json_object_get(vector, name));
}

static void expect_text(const weft_tokenizer *t, const weft_ids *ids,
                        bool skip_special, const json_t *want, size_t i)
{
    weft_err err = {0};
    weft_buf text = {0};
    const weft_status st =
        weft_tokenizer_decode(t, ids->data, ids->n, skip_special, &text, &err);
    ck_assert_msg(st == WEFT_OK, "vector %zu: %s", i, err.text);
    ck_assert_msg(text.n == json_string_length(want) &&
                      (text.n == 0 ||
                       memcmp(text.data, json_string_value(want), text.n) == 0),
                  "vector %zu: text \"%s\", not \"%s\"", i,
                  text.n == 0 ? "" : text.data, json_string_value(want));
    weft_buf_deinit(&text);
}

/* The ids, their text, and the bound that is known without tokenizing. */
static void expect_vector(const weft_tokenizer *t, const json_t *vector,
                          size_t i)
{
    weft_err err = {0};
    weft_ids ids = {0};
    weft_ids want = ids_of(json_object_get(vector, "ids"));
    const json_t *const text = json_object_get(vector, "text");
    const weft_encode_options options = {
        .add_special = flag(vector, "add_special"),
        .parse_special = flag(vector, "parse_special")};
    const weft_status st =
        weft_tokenizer_encode(t, json_string_value(text),
                              json_string_length(text), options, &ids, &err);
    ck_assert_msg(st == WEFT_OK, "vector %zu: %s", i, err.text);
    ck_assert_msg(ids.n == want.n, "vector %zu \"%s\": %zu ids, not %zu", i,
                  json_string_value(text), ids.n, want.n);
    for (size_t k = 0; k < ids.n; k++)
        ck_assert_msg(ids.data[k] == want.data[k],
                      "vector %zu \"%s\": id %zu is %d, not %d", i,
                      json_string_value(text), k, ids.data[k], want.data[k]);
    size_t least = weft_tokenizer_tokens_at_least(t, json_string_length(text));
    if (options.add_special)
        ck_assert_msg(ids.n >= least, "vector %zu: %zu ids, bound %zu", i,
                      ids.n, least);
    expect_text(t, &want, false, json_object_get(vector, "decoded"), i);
    const json_t *const skipped =
        json_object_get(vector, "decoded_skip_special");
    if (skipped != NULL) expect_text(t, &want, true, skipped, i);
    weft_ids_deinit(&ids);
    weft_ids_deinit(&want);
}

/* jansson refuses NUL in strings unless asked. */
static json_t *load_vectors(const char *path)
{
    json_error_t at;
    json_t *const vectors = json_load_file(path, JSON_ALLOW_NUL, &at);
    ck_assert_msg(vectors != NULL, "%s:%d: %s", path, at.line, at.text);
    return vectors;
}

START_TEST(reference_vectors)
{
    weft_tokenizer *const t = read_tiny();
    json_t *const vectors = load_vectors("tests/data/tokenizer-vectors.json");
    const json_t *const encode = json_object_get(vectors, "encode");
    const json_t *const decode = json_object_get(vectors, "decode");
    ck_assert_uint_gt(json_array_size(encode), 200);
    ck_assert_uint_gt(json_array_size(decode), 100);
    for (size_t i = 0; i < json_array_size(encode); i++)
        expect_vector(t, json_array_get(encode, i), i);
    for (size_t i = 0; i < json_array_size(decode); i++) {
        const json_t *const vector = json_array_get(decode, i);
        weft_ids ids = ids_of(json_object_get(vector, "ids"));
        expect_text(t, &ids, false, json_object_get(vector, "decoded"), i);
        weft_ids_deinit(&ids);
    }
    json_decref(vectors);
    weft_tokenizer_destroy(t);
}
END_TEST

/* The small tokenizer with other parts around it or in it. */
static weft_tokenizer *read_pipeline(const json_t *pipeline)
{
    json_t *const document = tokens_load(TINY);
    json_t *const model = json_object_get(document, "model");
    const json_t *const other = json_object_get(pipeline, "model");
    ck_assert_int_eq(
        json_object_update(document, json_object_get(pipeline, "patch")), 0);
    if (flag(other, "ignore_merges"))
        (void)json_object_set_new(model, "ignore_merges", json_true());
    if (flag(other, "every_second_merge")) {
        json_t *const merges = json_object_get(model, "merges");
        json_t *const half = json_array();
        for (size_t i = 0; i < json_array_size(merges); i += 2)
            (void)json_array_append(half, json_array_get(merges, i));
        (void)json_object_set_new(model, "merges", half);
    }
    weft_tokenizer *const t = tokens_read(document, TINY_LIMIT);
    json_decref(document);
    return t;
}

/* DeepSeek-V2's, V3's, GPT-2's, o200k's and Kimi's splits, added tokens of
 * every kind, templates, all behaviours of Split. */
START_TEST(reference_pipelines)
{
    json_t *const vectors = load_vectors("tests/data/tokenizer-pipelines.json");
    const json_t *const pipelines = json_object_get(vectors, "pipelines");
    ck_assert_uint_ge(json_array_size(pipelines), 8);
    for (size_t i = 0; i < json_array_size(pipelines); i++) {
        const json_t *const pipeline = json_array_get(pipelines, i);
        const json_t *const cases = json_object_get(pipeline, "cases");
        weft_tokenizer *const t = read_pipeline(pipeline);
        ck_assert_uint_gt(json_array_size(cases), 50);
        for (size_t k = 0; k < json_array_size(cases); k++)
            expect_vector(t, json_array_get(cases, k), 1000 * i + k);
        weft_tokenizer_destroy(t);
    }
    json_decref(vectors);
}
END_TEST

static weft_tokenizer *read_small(void)
{
    json_t *const document = tokens_document();
    weft_tokenizer *const t = tokens_read(document, TOKENS_LIMIT);
    json_decref(document);
    return t;
}

static void expect_ids(const weft_tokenizer *t, const char *text,
                       weft_encode_options options, const int32_t *want,
                       size_t n)
{
    weft_err err = {0};
    weft_ids ids = {0};
    ck_assert_msg(weft_tokenizer_encode(t, text, strlen(text), options, &ids,
                                        &err) == WEFT_OK,
                  "%s", err.text);
    ck_assert_uint_eq(ids.n, n);
    for (size_t i = 0; i < n; i++) ck_assert_int_eq(ids.data[i], want[i]);
    weft_ids_deinit(&ids);
}

START_TEST(special_only_when_asked)
{
    weft_tokenizer *const t = read_small();
    static const int32_t text[] = {'<', '|', 'e', 'n', 'd', '|', '>', 265};
    static const int32_t token[] = {264, 265};
    expect_ids(t, "<|end|><tool>", (weft_encode_options){0}, text, 8);
    expect_ids(t, "<|end|><tool>", (weft_encode_options){.parse_special = true},
               token, 2);
    ck_assert(weft_tokenizer_is_special(t, TOKENS_SPECIAL));
    ck_assert(!weft_tokenizer_is_special(t, TOKENS_ADDED));
    ck_assert_int_eq(weft_tokenizer_added_id(t, "<tool>"), TOKENS_ADDED);
    ck_assert_int_eq(weft_tokenizer_added_id(t, "<tool"), -1);
    weft_tokenizer_destroy(t);
}
END_TEST

START_TEST(templates_go_around)
{
    json_t *const document = tokens_document();
    tokens_set(
        document, "post_processor",
        "{\"type\": \"Sequence\", \"processors\": ["
        "{\"type\": \"TemplateProcessing\", \"single\": ["
        "{\"SpecialToken\": {\"id\": \"E\", \"type_id\": 0}},"
        "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], \"pair\": [],"
        "\"special_tokens\": {\"E\": {\"id\": \"E\", \"ids\": [264, 1],"
        "\"tokens\": [\"<|end|>\", \"x\"]}}},"
        "{\"type\": \"TemplateProcessing\", \"single\": ["
        "{\"SpecialToken\": {\"id\": \"F\", \"type_id\": 0}},"
        "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}},"
        "{\"SpecialToken\": {\"id\": \"F\", \"type_id\": 0}}], \"pair\": [],"
        "\"special_tokens\": {\"F\": {\"id\": \"F\", \"ids\": [265],"
        "\"tokens\": [\"<tool>\"]}}}]}");
    weft_tokenizer *const t = tokens_read(document, TOKENS_LIMIT);
    json_decref(document);
    static const int32_t all[] = {265, 264, 1, 259, 265};
    expect_ids(t, "hello", (weft_encode_options){.add_special = true}, all, 5);
    expect_ids(t, "hello", (weft_encode_options){0}, all + 3, 1);
    ck_assert_uint_eq(weft_tokenizer_tokens_at_least(t, 0), 4);
    weft_tokenizer_destroy(t);
}
END_TEST

START_TEST(whole_words_before_merges)
{
    json_t *const document = tokens_document();
    static const int32_t letters[] = {'w', 'o', 'r'}, word[] = {263};
    weft_tokenizer *t = tokens_read(document, TOKENS_LIMIT);
    expect_ids(t, "wor", (weft_encode_options){0}, letters, 3);
    weft_tokenizer_destroy(t);
    tokens_set(document, "model.ignore_merges", "true");
    t = tokens_read(document, TOKENS_LIMIT);
    expect_ids(t, "wor", (weft_encode_options){0}, word, 1);
    weft_tokenizer_destroy(t);
    json_decref(document);
}
END_TEST

START_TEST(refused_text_leaves_ids)
{
    weft_tokenizer *const t = read_small();
    weft_err err = {0};
    weft_ids ids = {0};
    const int32_t first = 7;
    ck_assert_int_eq(weft_ids_add(&ids, &first, 1, NULL), WEFT_OK);
    static const char *const broken[] = {"a\xFF", "\xC0\x80", "\xED\xA0\x80",
                                         "ab\xE2\x82"};
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        ck_assert_int_eq(weft_tokenizer_encode(t, broken[i], strlen(broken[i]),
                                               (weft_encode_options){0}, &ids,
                                               &err),
                         WEFT_INVALID_ARGUMENT);
        ck_assert_msg(strstr(err.text, "UTF-8") != NULL, "%s", err.text);
        ck_assert_uint_eq(ids.n, 1);
    }
    weft_ids_deinit(&ids);
    weft_tokenizer_destroy(t);
}
END_TEST

START_TEST(ids_out_of_range)
{
    weft_tokenizer *const t = read_small();
    weft_err err = {0};
    weft_buf text = {0};
    ck_assert_int_eq(weft_buf_add(&text, "x", 1, NULL), WEFT_OK);
    static const int32_t bad[][2] = {{'a', TOKENS_LIMIT}, {'a', -1}};
    for (size_t i = 0; i < 2; i++) {
        ck_assert_int_eq(
            weft_tokenizer_decode(t, bad[i], 2, false, &text, &err),
            WEFT_INVALID_ARGUMENT);
        ck_assert_str_eq(text.data, "x");
    }
    ck_assert_msg(strstr(err.text, "-1") != NULL &&
                      strstr(err.text, "270") != NULL,
                  "%s", err.text);
    static const int32_t padding[] = {'a', TOKENS_IDS, TOKENS_LIMIT - 1, 'b'};
    ck_assert_int_eq(weft_tokenizer_decode(t, padding, 4, false, &text, &err),
                     WEFT_OK);
    ck_assert_str_eq(text.data, "xab");
    ck_assert(!weft_tokenizer_has(t, TOKENS_IDS));
    ck_assert(weft_tokenizer_has(t, TOKENS_IDS - 1));
    ck_assert_int_eq(weft_tokenizer_vocab_limit(t), TOKENS_LIMIT);
    weft_buf_deinit(&text);
    weft_tokenizer_destroy(t);
}
END_TEST

START_TEST(longest_token)
{
    weft_tokenizer *const t = read_small();
    ck_assert_uint_eq(weft_tokenizer_longest_text_bytes(t), 7);
    ck_assert_uint_eq(weft_tokenizer_tokens_at_least(t, 7001), 1000);
    weft_tokenizer_destroy(t);
    json_t *const document = tokens_document();
    tokens_set(document, "normalizer", "{\"type\": \"NFC\"}");
    weft_tokenizer *const nfc = tokens_read(document, TOKENS_LIMIT);
    ck_assert_uint_eq(weft_tokenizer_tokens_at_least(nfc, 21), 1);
    weft_tokenizer_destroy(nfc);
    tokens_set(document, "added_tokens.1.lstrip", "true");
    weft_tokenizer *const strips = tokens_read(document, TOKENS_LIMIT);
    ck_assert_uint_eq(weft_tokenizer_tokens_at_least(strips, 7001), 0);
    weft_tokenizer_destroy(strips);
    json_decref(document);
}
END_TEST

/* libcheck reports every assertion over a file: not one for each byte. */
static weft_buf repeated(const char *unit, size_t n)
{
    weft_buf text = {0};
    weft_status st = WEFT_OK;
    for (size_t i = 0; i < n && st == WEFT_OK; i++)
        st = weft_buf_add(&text, unit, strlen(unit), NULL);
    ck_assert_int_eq(st, WEFT_OK);
    return text;
}

/* n times `unit` must give back itself, in time that is not quadratic: squared,
 * these lengths would outlast the test's limit. */
static void expect_round_trip(const weft_tokenizer *t, const char *unit,
                              size_t n, const char *end)
{
    weft_err err = {0};
    weft_buf text = repeated(unit, n), back = {0};
    weft_ids ids = {0};
    ck_assert_int_eq(weft_buf_add(&text, end, strlen(end), NULL), WEFT_OK);
    ck_assert_msg(weft_tokenizer_encode(t, text.data, text.n,
                                        (weft_encode_options){0}, &ids,
                                        &err) == WEFT_OK,
                  "%s", err.text);
    ck_assert_int_eq(
        weft_tokenizer_decode(t, ids.data, ids.n, false, &back, &err), WEFT_OK);
    ck_assert_uint_eq(back.n, text.n);
    ck_assert(memcmp(back.data, text.data, text.n) == 0);
    weft_buf_deinit(&text);
    weft_buf_deinit(&back);
    weft_ids_deinit(&ids);
}

START_TEST(long_texts)
{
    enum { N = 500 * 1000 };
    weft_tokenizer *const small = read_small();
    expect_round_trip(small, "a", N, "");
    expect_round_trip(small, " ", N, "x");
    expect_round_trip(small, "<|end|>", N / 7, "");
    weft_tokenizer_destroy(small);
    json_t *const document = tokens_document();
    tokens_set(document, "pre_tokenizer",
               "{\"type\": \"Sequence\", \"pretokenizers\": ["
               "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"\\\\s+$\"},"
               " \"behavior\": \"Isolated\", \"invert\": false},"
               "{\"type\": \"ByteLevel\", \"use_regex\": true}]}");
    weft_tokenizer *const trailing = tokens_read(document, TOKENS_LIMIT);
    expect_round_trip(trailing, " ", N, "\xE4\xB8\xAD");
    weft_tokenizer_destroy(trailing);
    json_decref(document);
}
END_TEST

/* Marks in falling order of class: every one has to pass all before it. */
START_TEST(many_marks)
{
    const size_t n = 400000;
    json_t *const document = tokens_document();
    tokens_set(document, "normalizer", "{\"type\": \"NFC\"}");
    weft_tokenizer *const t = tokens_read(document, TOKENS_LIMIT);
    json_decref(document);
    weft_err err = {0};
    weft_buf text = repeated("\xCC\x95\xCC\xA7", n); /* U+0315, U+0327 */
    weft_ids ids = {0};
    ck_assert_int_eq(weft_tokenizer_encode(t, text.data, text.n,
                                           (weft_encode_options){0}, &ids,
                                           &err),
                     WEFT_OK);
    ck_assert_uint_eq(ids.n, 4 * n);
    size_t n_wrong = 0;
    for (size_t i = 0; i < ids.n; i += 2)
        n_wrong +=
            ids.data[i] != 0xCC || ids.data[i + 1] != (i < 2 * n ? 0xA7 : 0x95);
    ck_assert_uint_eq(n_wrong, 0);
    weft_buf_deinit(&text);
    weft_ids_deinit(&ids);
    weft_tokenizer_destroy(t);
}
END_TEST

/* Space that a token takes along is searched for the next one too. */
START_TEST(stripping_tokens_meet)
{
    json_t *const document = tokens_document();
    tokens_set(document, "added_tokens.1.content", "\" lr \"");
    tokens_set(document, "added_tokens.1.lstrip", "true");
    tokens_set(document, "added_tokens.1.rstrip", "true");
    weft_tokenizer *const t = tokens_read(document, TOKENS_LIMIT);
    json_decref(document);
    static const int32_t want[] = {'x', 265, 265, 'y'};
    expect_ids(t, "x lr   lr  y", (weft_encode_options){0}, want, 4);
    expect_ids(t, "x   lr  lr y", (weft_encode_options){0}, want, 4);
    weft_tokenizer_destroy(t);
}
END_TEST

/* U+11A7 looks like a final consonant that a syllable could take in; it is
 * none. U+11A8 is one. */
START_TEST(hangul_finals)
{
    json_t *const document = tokens_document();
    tokens_set(document, "normalizer", "{\"type\": \"NFC\"}");
    weft_tokenizer *const t = tokens_read(document, TOKENS_LIMIT);
    json_decref(document);
    static const int32_t apart[] = {0xEC, 0x96, 0xB4, 0xE1, 0x86, 0xA7};
    static const int32_t joined[] = {0xEC, 0x96, 0xB5};
    expect_ids(t, "\xEC\x96\xB4\xE1\x86\xA7", (weft_encode_options){0}, apart,
               6);
    expect_ids(t, "\xEC\x96\xB4\xE1\x86\xA8", (weft_encode_options){0}, joined,
               3);
    weft_tokenizer_destroy(t);
}
END_TEST

static void *encode_often(void *tokenizer)
{
    static const char text[] = "hello world <tool> caf\xC3\xA9 hello";
    const weft_tokenizer *const t = tokenizer;
    for (int i = 0; i < 200; i++) {
        weft_ids ids = {0};
        weft_buf back = {0};
        if (weft_tokenizer_encode(t, text, sizeof text - 1,
                                  (weft_encode_options){0}, &ids,
                                  NULL) != WEFT_OK ||
            weft_tokenizer_decode(t, ids.data, ids.n, false, &back, NULL) !=
                WEFT_OK ||
            strcmp(back.data, text) != 0)
            return tokenizer;
        weft_ids_deinit(&ids);
        weft_buf_deinit(&back);
    }
    return NULL;
}

START_TEST(many_threads)
{
    weft_tokenizer *const t = read_small();
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, encode_often, t), 0);
    for (int i = 0; i < 4; i++) {
        void *failed = NULL;
        ck_assert_int_eq(pthread_join(threads[i], &failed), 0);
        ck_assert_ptr_null(failed);
    }
    weft_tokenizer_destroy(t);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {reference_vectors,
                                  reference_pipelines,
                                  special_only_when_asked,
                                  templates_go_around,
                                  whole_words_before_merges,
                                  refused_text_leaves_ids,
                                  ids_out_of_range,
                                  longest_token,
                                  long_texts,
                                  many_marks,
                                  many_threads,
                                  stripping_tokens_meet,
                                  hangul_finals};
    return WEFT_SUITE_RUN("tokenizer", tests);
}
