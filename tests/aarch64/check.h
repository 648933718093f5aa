/* check.h - what our tests use of libcheck, for a machine that lacks it.
 *
 * The cross build of tests/aarch64/run puts this folder before the system's, so
 * that the test programs compile unchanged. Same names and meanings as
 * libcheck's in its fork mode: each test (each turn of a loop test) is a
 * process of its own, a failed assertion ends it, a signal or an early exit is
 * an error. The CK_ variables have no effect. Printed:
 * "file:line:F:group:test:turn: why" for each failure (E for an error) and,
 * last, libcheck's closing line. Where nothing ran, srunner_ntests_failed is 1.
 *
 * A macro that is not here is one that no test of the portable core uses.
 */
#ifndef WEFT_TESTS_AARCH64_CHECK_H
#define WEFT_TESTS_AARCH64_CHECK_H

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct TTest {
    const char *name;
    void (*body)(int turn);
    const char *file;
    int line;
} TTest;
typedef struct Suite Suite;
typedef struct TCase TCase;
typedef struct SRunner SRunner;
enum print_output { CK_ENV };

#define START_TEST(test)                                                       \
    static void test##_body(int _i);                                           \
    static const TTest test##_test = {#test, test##_body, __FILE__, __LINE__}; \
    static const TTest *const test = &test##_test;                             \
    static void test##_body(__attribute__((unused)) int _i)
#define END_TEST

/* One suite, one group and one runner a program: a second one aborts. */
Suite *suite_create(const char *name);
TCase *tcase_create(const char *name);
void suite_add_tcase(Suite *suite, TCase *group);
void tcase_set_timeout(TCase *group, double seconds);
/* Both run in the process of the test; `after` only if it passed. */
void tcase_add_checked_fixture(TCase *group, void (*before)(void),
                               void (*after)(void));
void tcase_add_test(TCase *group, const TTest *test);
/* Turns first..end - 1; the test sees the turn as _i. */
void tcase_add_loop_test(TCase *group, const TTest *test, int first, int end);
SRunner *srunner_create(Suite *suite);
void srunner_run_all(SRunner *runner, enum print_output how);
int srunner_ntests_failed(SRunner *runner);
int srunner_ntests_run(SRunner *runner);
void srunner_free(SRunner *runner);

/* Ends the test as failed; from any thread of it. */
_Noreturn void weft_check_fail(const char *file, int line, const char *format,
                               ...) __attribute__((format(printf, 3, 4)));

#define ck_abort_msg(...) weft_check_fail(__FILE__, __LINE__, __VA_ARGS__)
#define ck_abort()        ck_abort_msg("failed")
#define ck_assert_msg(holds, ...)                                              \
    ((holds) ? (void)0 : weft_check_fail(__FILE__, __LINE__, __VA_ARGS__))
#define ck_assert(holds) ck_assert_msg(holds, "not true: %s", #holds)

#define WEFT_CHECK_PAIR(type, cast, format, a, op, b)                          \
    do {                                                                       \
        const type check_a = (a);                                              \
        const type check_b = (b);                                              \
        ck_assert_msg(check_a op check_b, "not true: %s: " format ", " format, \
                      #a " " #op " " #b, (cast)check_a, (cast)check_b);        \
    } while (0)

#define WEFT_CHECK_INT(a, op, b)                                               \
    WEFT_CHECK_PAIR(intmax_t, long long, "%lld", a, op, b)
#define ck_assert_int_eq(a, b) WEFT_CHECK_INT(a, ==, b)
#define ck_assert_int_ne(a, b) WEFT_CHECK_INT(a, !=, b)
#define ck_assert_int_lt(a, b) WEFT_CHECK_INT(a, <, b)
#define ck_assert_int_le(a, b) WEFT_CHECK_INT(a, <=, b)
#define ck_assert_int_gt(a, b) WEFT_CHECK_INT(a, >, b)
#define ck_assert_int_ge(a, b) WEFT_CHECK_INT(a, >=, b)

#define WEFT_CHECK_UINT(a, op, b)                                              \
    WEFT_CHECK_PAIR(uintmax_t, unsigned long long, "%llu", a, op, b)
#define ck_assert_uint_eq(a, b) WEFT_CHECK_UINT(a, ==, b)
#define ck_assert_uint_ne(a, b) WEFT_CHECK_UINT(a, !=, b)
#define ck_assert_uint_lt(a, b) WEFT_CHECK_UINT(a, <, b)
#define ck_assert_uint_le(a, b) WEFT_CHECK_UINT(a, <=, b)
#define ck_assert_uint_gt(a, b) WEFT_CHECK_UINT(a, >, b)
#define ck_assert_uint_ge(a, b) WEFT_CHECK_UINT(a, >=, b)

#define ck_assert_float_eq(a, b)                                               \
    WEFT_CHECK_PAIR(float, double, "%.9g", a, ==, b)
#define ck_assert_double_eq(a, b)                                              \
    WEFT_CHECK_PAIR(double, double, "%.17g", a, ==, b)
#define ck_assert_double_lt(a, b)                                              \
    WEFT_CHECK_PAIR(double, double, "%.17g", a, <, b)
#define ck_assert_double_eq_tol(a, b, within)                                  \
    WEFT_CHECK_PAIR(double, double, "%.17g", fabs((a) - (b)), <=, within)

#define WEFT_CHECK_PTR(a, op, b)                                               \
    WEFT_CHECK_PAIR(uintptr_t, void *, "%p", (uintptr_t)(a), op, (uintptr_t)(b))
#define ck_assert_ptr_eq(a, b)   WEFT_CHECK_PTR(a, ==, b)
#define ck_assert_ptr_ne(a, b)   WEFT_CHECK_PTR(a, !=, b)
#define ck_assert_ptr_null(a)    WEFT_CHECK_PTR(a, ==, 0)
#define ck_assert_ptr_nonnull(a) WEFT_CHECK_PTR(a, !=, 0)

/* A null pointer fails both. */
#define WEFT_CHECK_STR(a, op, b)                                               \
    do {                                                                       \
        const char *const check_a = (a), *const check_b = (b);                 \
        ck_assert_msg(check_a != NULL && check_b != NULL &&                    \
                          strcmp(check_a, check_b) op 0,                       \
                      "not true: %s: \"%s\", \"%s\"", #a " " #op " " #b,       \
                      check_a != NULL ? check_a : "(null)",                    \
                      check_b != NULL ? check_b : "(null)");                   \
    } while (0)
#define ck_assert_str_eq(a, b) WEFT_CHECK_STR(a, ==, b)
#define ck_assert_str_ne(a, b) WEFT_CHECK_STR(a, !=, b)

#define ck_assert_mem_eq(a, b, size)                                           \
    do {                                                                       \
        const size_t check_n = (size);                                         \
        ck_assert_msg(memcmp((a), (b), check_n) == 0,                          \
                      "%s and %s differ within %zu bytes", #a, #b, check_n);   \
    } while (0)

#endif
