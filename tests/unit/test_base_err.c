#include <stdlib.h>
#include <string.h>

#include "node/base/err.h"
#include "tests/support/suite.h"

static weft_status pass_on(weft_status st)
{
    WEFT_TRY(st);
    return WEFT_INTERNAL; /* the way past WEFT_TRY */
}

START_TEST(fail_fills_everything)
{
    weft_err err = {0};
    const int line = __LINE__ + 1;
    const weft_status st = WEFT_FAIL(&err, WEFT_NOT_FOUND, "%s: %d", "key", 7);
    ck_assert_int_eq(st, WEFT_NOT_FOUND);
    ck_assert_int_eq(err.status, WEFT_NOT_FOUND);
    ck_assert_int_eq(err.line, line);
    ck_assert_ptr_nonnull(strstr(err.file, "test_base_err.c"));
    ck_assert_str_eq(err.text, "key: 7");
}
END_TEST

START_TEST(null_err_keeps_the_code)
{
    ck_assert_int_eq(WEFT_FAIL(NULL, WEFT_DATA_LOSS, "x"), WEFT_DATA_LOSS);
    ck_assert_int_eq(WEFT_WRAP(NULL, WEFT_UNAVAILABLE, "x"), WEFT_UNAVAILABLE);
}
END_TEST

START_TEST(wrap_goes_before)
{
    weft_err err = {0};
    (void)WEFT_FAIL(&err, WEFT_DATA_LOSS, "12 bytes short");
    const int line = err.line;
    ck_assert_int_eq(WEFT_WRAP(&err, WEFT_DATA_LOSS, "shard %d", 3),
                     WEFT_DATA_LOSS);
    ck_assert_str_eq(err.text, "shard 3: 12 bytes short");
    ck_assert_int_eq(err.line, line);
    (void)WEFT_WRAP(&err, WEFT_DATA_LOSS, "loading");
    ck_assert_str_eq(err.text, "loading: shard 3: 12 bytes short");
}
END_TEST

START_TEST(long_texts_are_cut)
{
    char text[2 * WEFT_ERR_TEXT_BYTES];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    weft_err err = {0};
    (void)WEFT_FAIL(&err, WEFT_INTERNAL, "%s", text);
    ck_assert_uint_eq(strlen(err.text), WEFT_ERR_TEXT_BYTES - 1);
    for (size_t n = WEFT_ERR_TEXT_BYTES - 4; n < WEFT_ERR_TEXT_BYTES + 2; n++) {
        memset(&err, 0, sizeof err);
        (void)WEFT_FAIL(&err, WEFT_INTERNAL, "b");
        (void)WEFT_WRAP(&err, WEFT_INTERNAL, "%.*s", (int)n, text);
        char want[2 * WEFT_ERR_TEXT_BYTES] = {0};
        memcpy(want, text, n);
        memcpy(want + n, ": b", 3);
        want[WEFT_ERR_TEXT_BYTES - 1] = '\0';
        ck_assert_str_eq(err.text, want);
    }
}
END_TEST

START_TEST(try_returns_early)
{
    ck_assert_int_eq(pass_on(WEFT_CANCELLED), WEFT_CANCELLED);
    ck_assert_int_eq(pass_on(WEFT_OK), WEFT_INTERNAL);
}
END_TEST

START_TEST(names_and_numbers_are_grpcs)
{
    static const struct {
        int number;
        const char *name;
    } rows[] = {{0, "OK"},
                {1, "CANCELLED"},
                {3, "INVALID_ARGUMENT"},
                {4, "DEADLINE_EXCEEDED"},
                {5, "NOT_FOUND"},
                {8, "RESOURCE_EXHAUSTED"},
                {9, "FAILED_PRECONDITION"},
                {12, "UNIMPLEMENTED"},
                {13, "INTERNAL"},
                {14, "UNAVAILABLE"},
                {15, "DATA_LOSS"},
                {99, "UNKNOWN"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        ck_assert_str_eq(weft_status_name((weft_status)rows[i].number),
                         rows[i].name);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        fail_fills_everything, null_err_keeps_the_code,
        wrap_goes_before,      long_texts_are_cut,
        try_returns_early,     names_and_numbers_are_grpcs};
    return WEFT_SUITE_RUN("base/err", tests);
}
