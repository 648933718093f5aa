#include <stdio.h>
#include <string.h>

#include "node/base/mem.h"
#include "node/base/str.h"
#include "tests/support/suite.h"

START_TEST(u64)
{
    static const char *const bad[] = {"",
                                      "-1",
                                      "+1",
                                      " 1",
                                      "1 ",
                                      "1a",
                                      "0x1",
                                      "1.0",
                                      "-0",
                                      "\n1",
                                      "18446744073709551616",
                                      "99999999999999999999999"};
    uint64_t value = 77;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_msg(!weft_parse_u64(bad[i], &value), "\"%s\"", bad[i]);
    ck_assert_uint_eq(value, 77);
    ck_assert(weft_parse_u64("0", &value) && value == 0);
    ck_assert(weft_parse_u64("18446744073709551615", &value));
    ck_assert(value == UINT64_MAX);
    ck_assert(weft_parse_u64("007", &value) && value == 7);
}
END_TEST

START_TEST(i64)
{
    int64_t value = 5;
    ck_assert(weft_parse_i64("-9223372036854775808", INT64_MIN, 0, &value));
    ck_assert(value == INT64_MIN);
    ck_assert(weft_parse_i64("9223372036854775807", 0, INT64_MAX, &value));
    ck_assert(value == INT64_MAX);
    ck_assert(weft_parse_i64("-1", -1, 1, &value) && value == -1);
    ck_assert(weft_parse_i64("1", -1, 1, &value) && value == 1);
    value = 5;
    ck_assert(!weft_parse_i64("2", -1, 1, &value));
    ck_assert(!weft_parse_i64("-2", -1, 1, &value));
    static const char *const bad[] = {"9223372036854775808",
                                      "-9223372036854775809",
                                      "",
                                      "-",
                                      "--1",
                                      "+1",
                                      "- 1",
                                      "1-",
                                      " 1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_msg(!weft_parse_i64(bad[i], INT64_MIN, INT64_MAX, &value),
                      "\"%s\"", bad[i]);
    ck_assert_int_eq(value, 5);
}
END_TEST

START_TEST(f64)
{
    static const struct {
        const char *text;
        double value;
    } good[] = {
        {"0", 0},       {"-0.5", -0.5},
        {"1e3", 1000},  {".5", 0.5},
        {"5.", 5},      {"+2", 2},
        {"1E-2", 0.01}, {"1e-400", 0},
        {"0.1", 0.1},   {"1.7976931348623157e308", 1.7976931348623157e308}};
    double value = 0;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        ck_assert_msg(weft_parse_f64(good[i].text, &value), "\"%s\"",
                      good[i].text);
        ck_assert(value == good[i].value);
    }
    static const char *const bad[] = {
        "",    ".",     "-",     "e5",       "1e",    "1e+", "nan",
        "NaN", "inf",   "-inf",  "infinity", "0x1p3", "1 ",  " 1",
        "1,5", "1.2.3", "1e400", "-1e309",   "--1",   "1f"};
    value = 3;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_msg(!weft_parse_f64(bad[i], &value), "\"%s\"", bad[i]);
    ck_assert(value == 3);
}
END_TEST

START_TEST(bytes)
{
    static const struct {
        const char *text;
        uint64_t value;
    } good[] = {{"0", 0},
                {"123", 123},
                {"1K", 1024},
                {"3M", 3U << 20},
                {"2G", 2ULL << 30},
                {"5T", 5ULL << 40},
                {"18446744073709551615", UINT64_MAX},
                {"16777215T", 16777215ULL << 40}};
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        ck_assert_msg(weft_parse_bytes(good[i].text, &value), "\"%s\"",
                      good[i].text);
        ck_assert_uint_eq(value, good[i].value);
    }
    static const char *const bad[] = {
        "",    "K",    "1k",  "1KB", "1KK",       "1P",
        "-1K", "1.5G", "1 K", "1G ", "16777216T", "18446744073709551615K"};
    value = 9;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_msg(!weft_parse_bytes(bad[i], &value), "\"%s\"", bad[i]);
    ck_assert_uint_eq(value, 9);
}
END_TEST

START_TEST(buffer_grows)
{
    weft_buf buf = {0};
    weft_buf_clear(&buf);
    ck_assert_int_eq(weft_buf_add(&buf, NULL, 0, NULL), WEFT_OK);
    ck_assert_str_eq(buf.data, "");
    for (int i = 0; i < 1000; i++) {
        ck_assert_int_eq(weft_buf_add(&buf, "ab\0c", 4, NULL), WEFT_OK);
        ck_assert_uint_eq(buf.n, 4 * (size_t)(i + 1));
        ck_assert_int_eq(buf.data[buf.n], '\0');
        ck_assert_uint_gt(buf.capacity, buf.n);
    }
    for (size_t i = 0; i < 4000; i++)
        ck_assert_int_eq(buf.data[i], "ab\0c"[i % 4]);
    const size_t capacity = buf.capacity;
    weft_buf_clear(&buf);
    ck_assert_uint_eq(buf.n, 0);
    ck_assert_uint_eq(buf.capacity, capacity);
    ck_assert_str_eq(buf.data, "");
    weft_buf_deinit(&buf);
    ck_assert_ptr_null(buf.data);
    weft_buf_deinit(&buf);
}
END_TEST

START_TEST(buffer_prints)
{
    weft_buf buf = {0};
    char want[4096] = "";
    size_t n = 0;
    for (int i = 0; i < 200; i++) {
        ck_assert_int_eq(weft_buf_printf(&buf, NULL, "%d-%s;", i, "xy"),
                         WEFT_OK);
        n += (size_t)snprintf(want + n, sizeof want - n, "%d-%s;", i, "xy");
        ck_assert_str_eq(buf.data, want);
        ck_assert_uint_eq(buf.n, n);
    }
    weft_buf_deinit(&buf);
}
END_TEST

START_TEST(buffer_without_memory_keeps_its_bytes)
{
    weft_buf buf = {0};
    weft_err err = {0};
    weft_mem_fail_after(0);
    ck_assert_int_eq(weft_buf_add(&buf, "a", 1, &err), WEFT_RESOURCE_EXHAUSTED);
    ck_assert_ptr_null(buf.data);
    weft_mem_fail_after(-1);
    ck_assert_int_eq(weft_buf_add(&buf, "abc", 3, &err), WEFT_OK);
    weft_mem_fail_after(0);
    char big[5000];
    memset(big, 'x', sizeof big);
    ck_assert_int_eq(weft_buf_add(&buf, big, sizeof big, &err),
                     WEFT_RESOURCE_EXHAUSTED);
    ck_assert_int_eq(weft_buf_printf(&buf, &err, "%5000d", 1),
                     WEFT_RESOURCE_EXHAUSTED);
    weft_mem_fail_after(-1);
    ck_assert_int_eq(weft_buf_add(&buf, big, SIZE_MAX - 2, &err),
                     WEFT_RESOURCE_EXHAUSTED);
    ck_assert_str_eq(buf.data, "abc");
    weft_buf_deinit(&buf);
}
END_TEST

START_TEST(text_in_one_line)
{
    static const struct {
        const char *text, *line;
    } table[] = {
        {"", ""},
        {"seven b", "seven b"},
        {"eight by", "eigh..."},
        {"a\n\x1B\x7F", "a???"},
        {"\xC3\xA9\xFF", "\xC3\xA9?"},
        {"abc\xC3\xA9 cut", "abc..."}, /* inside a character */
        {"\n\n\n\n\n\n\n\n", "????..."},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char out[8];
        ck_assert_ptr_eq(weft_text_line(table[i].text, out, sizeof out), out);
        ck_assert_str_eq(out, table[i].line);
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {text_in_one_line,
                                  u64,
                                  i64,
                                  f64,
                                  bytes,
                                  buffer_grows,
                                  buffer_prints,
                                  buffer_without_memory_keeps_its_bytes};
    return WEFT_SUITE_RUN("base/str", tests);
}
