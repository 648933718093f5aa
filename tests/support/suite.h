/* suite.h - the main of a test program: one suite, one process a test.
 *
 * After each test the blocks of node/base/mem.h must all be freed again.
 * CK_RUN_CASE, CK_FORK=no and the other variables of libcheck work.
 */
#ifndef WEFT_TESTS_SUPPORT_SUITE_H
#define WEFT_TESTS_SUPPORT_SUITE_H

#include <check.h>
#include <stddef.h>

/* Run tests[0, n) as the suite `name`; what main is to return. */
int weft_suite_run(const char *name, const TTest *const *tests, size_t n);

/* The same for tests that `add` puts into the case: loops, other timeouts. */
int weft_suite_run_added(const char *name, void (*add)(TCase *tests));

#define WEFT_SUITE_RUN(name, tests)                                            \
    weft_suite_run((name), (tests), sizeof(tests) / sizeof((tests)[0]))

#endif
