#include "tests/support/suite.h"

#include <stdlib.h>

#include "node/base/mem.h"

enum { TIMEOUT_S = 240 }; /* of one test; sanitizers on a busy machine */

static void check_nothing_leaks(void)
{
    weft_mem_fail_after(-1);
    ck_assert_msg(weft_mem_live() == 0, "%ld blocks were not freed",
                  weft_mem_live());
}

/* Teardowns run in reverse, so this one comes after those of the test. */
static TCase *make_case(const char *name)
{
    TCase *const group = tcase_create(name);
    tcase_set_timeout(group, TIMEOUT_S);
    tcase_add_checked_fixture(group, NULL, check_nothing_leaks);
    return group;
}

static int run_case(const char *name, TCase *group)
{
    Suite *const suite = suite_create(name);
    suite_add_tcase(suite, group);
    SRunner *const runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    const int run = srunner_ntests_run(runner);
    srunner_free(runner);
    return failed == 0 && run > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int weft_suite_run(const char *name, const TTest *const *tests, size_t n)
{
    TCase *const group = make_case(name);
    for (size_t i = 0; i < n; i++) tcase_add_test(group, tests[i]);
    return run_case(name, group);
}

int weft_suite_run_added(const char *name, void (*add)(TCase *tests))
{
    TCase *const group = make_case(name);
    add(group);
    return run_case(name, group);
}
