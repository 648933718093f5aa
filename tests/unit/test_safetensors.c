/* Headers and indices as untrusted text: what is accepted means what it says,
 * what is not is refused by file and tensor. */
#include <stdio.h>
#include <string.h>

#include "node/base/mem.h"
#include "shard/load/index.h"
#include "shard/load/safetensors.h"
#include "tests/support/suite.h"

static weft_status parse(const char *json, int64_t data_bytes,
                         weft_safetensors *out, weft_err *err)
{
    const size_t n = strlen(json);
    return weft_safetensors_parse(
        "a.safetensors", json, n,
        WEFT_HEADER_LENGTH_BYTES + (int64_t)n + data_bytes, out, err);
}

static void expect_words(const char *text, const char *words)
{
    char copy[256];
    (void)snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " "))
        ck_assert_msg(strstr(text, word) != NULL, "no \"%s\" in: %s", word,
                      text);
}

#define T(name, dtype, shape, from, to)                                        \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape                   \
    ",\"data_offsets\":[" from "," to "]}"

START_TEST(a_table_is_read)
{
    static const char json[] =
        "{\"__metadata__\":{\"indexer_rope_layout\":\"tail\",\"x\":\"y\"}," T(
            "b", "BF16", "[2,3]", "4",
            "16") "," T("a", "F32", "[]", "0",
                        "4") "," T("none", "F64", "[0,7]", "16", "16") "}  ";
    weft_safetensors table = {0};
    weft_err err = {0};
    ck_assert_msg(parse(json, 16, &table, &err) == WEFT_OK, "%s", err.text);
    const int64_t data = WEFT_HEADER_LENGTH_BYTES + (int64_t)strlen(json);
    ck_assert_uint_eq(table.n, 3);
    ck_assert_str_eq(table.indexer_rope_layout, "tail");
    const weft_tensor *const a = &table.tensors[0], *const b = a + 1;
    ck_assert_str_eq(a->name, "a");
    ck_assert_int_eq(a->n_dims, 0);
    ck_assert_int_eq(a->bytes, 4);
    ck_assert_int_eq(a->offset, data);
    ck_assert_str_eq(b->stored_name, "b");
    ck_assert_int_eq(b->dtype, WEFT_STORED_BF16);
    ck_assert_int_eq(b->n_dims, 2);
    ck_assert_int_eq(b->dims[0], 2);
    ck_assert_int_eq(b->dims[1], 3);
    ck_assert_int_eq(b->offset, data + 4);
    ck_assert_int_eq(table.tensors[2].bytes, 0);
    weft_safetensors_deinit(&table);
}
END_TEST

START_TEST(every_dtype_has_its_width)
{
    static const struct {
        const char *name;
        int bytes;
    } all[] = {{"F64", 8},     {"I64", 8}, {"U64", 8},     {"F32", 4},
               {"I32", 4},     {"U32", 4}, {"F16", 2},     {"BF16", 2},
               {"I16", 2},     {"U16", 2}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
               {"F8_E5M2", 1}, {"U8", 1},  {"I8", 1},      {"BOOL", 1}};
    ck_assert_uint_eq(sizeof all / sizeof *all, WEFT_STORED_COUNT);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char json[128];
        weft_safetensors table = {0};
        weft_err err = {0};
        (void)snprintf(json, sizeof json,
                       "{" T("t", "%s", "[3]", "0", "%d") "}", all[i].name,
                       3 * all[i].bytes);
        ck_assert_msg(parse(json, (int64_t)3 * all[i].bytes, &table, &err) ==
                          WEFT_OK,
                      "%s", err.text);
        ck_assert_str_eq(weft_stored_name(table.tensors[0].dtype), all[i].name);
        weft_safetensors_deinit(&table);
    }
}
END_TEST

static const struct {
    const char *json;
    int64_t data_bytes;
    const char *words;
} bad_tables[] = {
    {"", 0, "JSON"},
    {"[]", 0, "object"},
    {"7", 0, "JSON"},
    {"{\"t\":7}", 0, "tensor t dtype shape"},
    {"{\"t\":{}}", 0, "tensor t"},
    {"{" T("t", "F32", "[1]", "0", "4") "}x", 4, "JSON"},
    {"{" T("t", "F32", "[1]", "0", "4") "," T("t", "F32", "[1]", "0", "4") "}",
     4, "duplicate"},
    {"{" T("t", "Q3_K", "[1]", "0", "4") "}", 4, "tensor t dtype"},
    {"{" T("t", "f32", "[1]", "0", "4") "}", 4, "tensor t dtype"},
    {"{" T("t", "F32", "[-1]", "0", "4") "}", 4, "tensor t shape"},
    {"{" T("t", "F32", "[1.0]", "0", "4") "}", 4, "tensor t shape"},
    {"{" T("t", "F32", "[\"1\"]", "0", "4") "}", 4, "tensor t shape"},
    {"{" T("t", "F32", "7", "0", "4") "}", 4, "tensor t shape"},
    {"{" T("t", "F32", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4,
     "tensor t shape"},
    {"{" T("t", "F32", "[4611686018427387904,4]", "0", "4") "}", 4,
     "tensor t shape 2^63"},
    {"{" T("t", "F32", "[8589934592,2147483712]", "0", "256") "}", 256,
     "tensor t shape 2^63"},
    {"{" T("t", "F32", "[9223372036854775808]", "0", "4") "}", 4, "JSON"},
    {"{" T("t", "F32", "[2]", "0", "4") "}", 4, "tensor t 4 bytes 8"},
    {"{" T("t", "F32", "[1]", "4", "0") "}", 4, "tensor t data_offsets"},
    {"{" T("t", "F32", "[1]", "-4", "0") "}", 4, "tensor t data_offsets"},
    {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4,
     "tensor t data_offsets"},
    {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4,
     "tensor t data_offsets"},
    {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],"
     "\"more\":1}}",
     4, "tensor t"},
    {"{" T("t", "F32", "[1]", "0", "4") "}", 3, "tensor t cut short"},
    {"{" T("t", "F32", "[1]", "1099511627776", "1099511627780") "}", 4,
     "tensor t cut short"},
    {"{" T("t", "F32", "[1]", "0", "4") "}", 5, "1 bytes end"},
    {"{" T("t", "F32", "[1]", "4", "8") "}", 8, "tensor t 4 bytes before"},
    {"{" T("t", "F32", "[1]", "0", "4") "," T("u", "F32", "[1]", "0", "4") "}",
     4, "overlaps tensor t u"},
    {"{" T("t", "F32", "[2]", "0", "8") "," T("u", "F32", "[2]", "4", "12") "}",
     12, "tensor u overlaps t"},
    {"{\"\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
     "name empty"},
    {"{\"a\\nb\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
     "name printable"},
    {"{\"__metadata__\":7}", 0, "__metadata__"},
    {"{\"__metadata__\":{\"a\":7}}", 0, "__metadata__"},
};

START_TEST(bad_tables_are_refused)
{
    for (size_t i = 0; i < sizeof bad_tables / sizeof *bad_tables; i++) {
        weft_safetensors table = {0};
        weft_err err = {0};
        const weft_status st =
            parse(bad_tables[i].json, bad_tables[i].data_bytes, &table, &err);
        ck_assert_msg(st == WEFT_DATA_LOSS, "%s: %s", bad_tables[i].json,
                      weft_status_name(st));
        expect_words(err.text, bad_tables[i].words);
        expect_words(err.text, "a.safetensors");
        ck_assert_ptr_null(strchr(err.text, '\n'));
        ck_assert_ptr_null(table.tensors);
    }
}
END_TEST

START_TEST(deep_and_long_headers)
{
    enum { N = 200000 };
    char *const deep = weft_mem_new(N + 1, 1);
    weft_safetensors table = {0};
    weft_err err = {0};
    memset(deep, '[', N);
    ck_assert_int_eq(parse(deep, 0, &table, &err), WEFT_DATA_LOSS);
    deep[0] = '{'; /* one name of 200,000 bytes */
    deep[1] = '"';
    memset(deep + 2, 'n', N - 2);
    (void)snprintf(deep + N - 4, 5, "\":1}");
    ck_assert_int_eq(parse(deep, 0, &table, &err), WEFT_DATA_LOSS);
    expect_words(err.text, "name");
    weft_mem_free(deep);
}
END_TEST

START_TEST(header_lengths)
{
    static const struct {
        uint64_t says;
        int64_t file_bytes;
        bool good;
    } rows[] = {{2, 10, true},
                {2, 9, false},
                {0, 100, false},
                {1, 100, false},
                {92, 100, true},
                {93, 100, false},
                {1ULL << 63, 100, false},
                {UINT64_MAX, 100, false},
                {WEFT_HEADER_BYTES_MAX, 1LL << 40, true},
                {WEFT_HEADER_BYTES_MAX + 1ULL, 1LL << 40, false},
                {2, 7, false},
                {2, 0, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        unsigned char raw[WEFT_HEADER_LENGTH_BYTES];
        size_t n = 0;
        weft_err err = {0};
        for (int b = 0; b < WEFT_HEADER_LENGTH_BYTES; b++)
            raw[b] = (unsigned char)(rows[i].says >> (8 * b));
        const weft_status st = weft_safetensors_header_bytes(
            "a.safetensors", raw, rows[i].file_bytes, &n, &err);
        ck_assert_int_eq(st, rows[i].good ? WEFT_OK : WEFT_DATA_LOSS);
        if (rows[i].good)
            ck_assert_uint_eq(n, rows[i].says);
        else
            expect_words(err.text, "a.safetensors bytes");
    }
}
END_TEST

START_TEST(an_index_is_read)
{
    static const char json[] =
        "{\"metadata\":{\"total_size\":5,\"indexer_rope_layout\":\"leading\"},"
        "\"weight_map\":{\"z\":\"m-2.safetensors\",\"a\":\"m-1.safetensors\","
        "\"m\":\"m-2.safetensors\"}}";
    weft_index index = {0};
    weft_err err = {0};
    ck_assert_msg(weft_index_parse(json, strlen(json), &index, &err) == WEFT_OK,
                  "%s", err.text);
    ck_assert_int_eq(index.n_files, 2);
    ck_assert_str_eq(index.files[0], "m-1.safetensors");
    ck_assert_uint_eq(index.n, 3);
    ck_assert_int_eq(weft_index_find(&index, "a"), 0);
    ck_assert_int_eq(weft_index_find(&index, "m"), 1);
    ck_assert_int_eq(weft_index_find(&index, "z"), 1);
    ck_assert_int_eq(weft_index_find(&index, "b"), -1);
    ck_assert_str_eq(index.indexer_rope_layout, "leading");
    weft_index_deinit(&index);
}
END_TEST

START_TEST(bad_indices_are_refused)
{
    static const char *const files[] = {
        "../x.safetensors",    "/etc/passwd",
        "/x.safetensors",      "a/b.safetensors",
        "a/../b.safetensors",  "",
        ".safetensors",        "..",
        ".hidden.safetensors", "x.bin",
        "x.safetensors/",      "x\\u0001.safetensors"};
    static const char *const texts[] = {
        "",
        "[]",
        "{}",
        "{\"weight_map\":{}}",
        "{\"weight_map\":[]}",
        "{\"weight_map\":{\"a\":7}}",
        "{\"weight_map\":{\"\":\"x.safetensors\"}}",
        "{\"weight_map\":{\"a\":\"x.safetensors\",\"a\":\"x.safetensors\"}}"};
    weft_index index = {0};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char json[128];
        weft_err err = {0};
        (void)snprintf(json, sizeof json, "{\"weight_map\":{\"a\":\"%s\"}}",
                       files[i]);
        ck_assert_msg(weft_index_parse(json, strlen(json), &index, &err) ==
                          WEFT_DATA_LOSS,
                      "%s", json);
        expect_words(err.text, "model.safetensors.index.json tensor a");
    }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        weft_err err = {0};
        ck_assert_int_eq(
            weft_index_parse(texts[i], strlen(texts[i]), &index, &err),
            WEFT_DATA_LOSS);
        expect_words(err.text, "model.safetensors.index.json");
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        a_table_is_read,        every_dtype_has_its_width,
        bad_tables_are_refused, deep_and_long_headers,
        header_lengths,         an_index_is_read,
        bad_indices_are_refused};
    return WEFT_SUITE_RUN("load/safetensors", tests);
}
