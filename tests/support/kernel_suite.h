/* kernel_suite.h - what the kernel tests under libcheck share.
 *
 * Besides comparing paths, each of them compares the reference with the same
 * formula in double precision, within a bound derived from the number of
 * roundings. u is the unit roundoff of fp32; of n terms summed in any order the
 * error is below (n - 1) u times the sum of their magnitudes, to first order.
 */
#ifndef WEFT_TESTS_SUPPORT_KERNEL_SUITE_H
#define WEFT_TESTS_SUPPORT_KERNEL_SUITE_H

#include <math.h>

#include "tests/support/kernel_kit.h"
#include "tests/support/suite.h"

static const double weft_u = 0x1p-24;

/* The test named `test`: every path against the reference in the op `op`. */
#define WEFT_PATHS_TEST(test, op)                                              \
    START_TEST(test)                                                           \
    {                                                                          \
        weft_kernel_check check;                                               \
        weft_kernel_check_run(op, &check);                                     \
        ck_assert_int_gt(check.n_case, 0);                                     \
        ck_assert_int_eq(check.n_failed, 0);                                   \
    }                                                                          \
    END_TEST

/* Fails if |got - exact| is not within the bound; NaN fails. */
#define WEFT_ASSERT_NEAR(got, exact, bound)                                    \
    ck_assert_msg(fabs((double)(got) - (exact)) <= (bound),                    \
                  #got " is %.9g, exact %.17g, bound %.3g", (double)(got),     \
                  (double)(exact), (double)(bound))

#endif
