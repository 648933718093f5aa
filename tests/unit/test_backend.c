/* What computes is what was asked for, or is refused by name. */
#include <string.h>

#include "node/app/backend.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

START_TEST(the_cpu_needs_nothing)
{
    weft_backend b;
    const weft_options cpu = {.backend = "cpu", .expert_shards = 1};
    OK(weft_backend_open(&cpu, &b, &err));
    ck_assert_ptr_null(b.opened);
    weft_engine_options engine = {.threads = 3};
    weft_backend_apply(&b, &engine);
    ck_assert_int_eq(engine.threads, 3);
    ck_assert_ptr_null(engine.memory);
    weft_backend_close(&b);
}
END_TEST

START_TEST(what_is_named_must_be_there)
{
    weft_backend b;
    weft_err why = {0};
    const weft_options cuda = {.backend = "cuda", .expert_shards = 1};
    ck_assert_int_eq(weft_backend_open(&cuda, &b, &why), WEFT_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(why.text, "libweft_cuda.so"));
    ck_assert_ptr_null(b.opened);
    const weft_options many = {
        .backend = "cuda", .stages = 8, .expert_shards = 64};
    ck_assert_int_eq(weft_backend_open(&many, &b, &why), WEFT_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(why.text, "--expert-shards 64"));
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {the_cpu_needs_nothing,
                                  what_is_named_must_be_there};
    return weft_suite_run("backend", tests, sizeof tests / sizeof tests[0]);
}
