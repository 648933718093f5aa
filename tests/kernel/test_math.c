#include <string.h>

#include "kernels/cpu/math.h"
#include "tests/support/kernel_suite.h"

WEFT_PATHS_TEST(exp_paths_agree, "exp")

static float of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The distance between floats at x, subnormal ones included. */
static double ulp_at(double x)
{
    int exponent;
    (void)frexp(x, &exponent);
    return ldexp(1.0, exponent - 24 < -149 ? -149 : exponent - 24);
}

START_TEST(exp_is_within_an_ulp)
{
    double worst = 0.0;
    /* Every 1999th float of either sign, to and beyond the range. */
    for (uint32_t bits = 0; bits < 0x43000000u; bits += 1999)
        for (uint32_t sign = 0; sign < 2; sign++) {
            const float x = of_bits(bits | sign << 31);
            const double exact = exp((double)x);
            const float got = weft_math_exp(x);
            if (exact > 3.4028235677973366e38) {
                ck_assert(isinf(got));
                continue;
            }
            worst = fmax(worst, fabs(got - exact) / ulp_at(exact));
        }
    ck_assert_msg(worst < 1.0, "worst error %g ulp", worst);
    ck_assert_msg(worst > 0.4, "worst error %g ulp: not measured", worst);
    ck_assert(weft_math_exp(-INFINITY) == 0.0f);
    ck_assert(weft_math_exp(INFINITY) == INFINITY);
    ck_assert(isnan(weft_math_exp(NAN)));
    ck_assert(weft_math_exp(0.0f) == 1.0f && weft_math_exp(-0.0f) == 1.0f);
    ck_assert(weft_math_exp(-103.9f) == 0x1p-149f);
    ck_assert(weft_math_exp(-104.1f) == 0.0f);
    for (int32_t p = 0; weft_ops_cpu_nth(p) != NULL; p++) {
        float nans[20];
        for (int32_t i = 0; i < 20; i++) nans[i] = NAN;
        weft_ops_cpu_nth(p)->exp(nans, 20);
        for (int32_t i = 0; i < 20; i++) ck_assert(isnan(nans[i]));
    }
}
END_TEST

START_TEST(log_is_rounded_once)
{
    for (uint32_t bits = 1; bits < 0x7f800000u; bits += 4999) {
        const float x = of_bits(bits);
        const double exact = log((double)x);
        WEFT_ASSERT_NEAR(weft_math_log(x), exact,
                         1.001 * weft_u * fabs(exact) + 1e-300);
    }
    ck_assert(weft_math_log(1.0f) == 0.0f);
    ck_assert(weft_math_log(0.0f) == -INFINITY);
    ck_assert(weft_math_log(INFINITY) == INFINITY);
    ck_assert(isnan(weft_math_log(-1.0f)) && isnan(weft_math_log(NAN)));
}
END_TEST

START_TEST(sine_and_cosine_are_rounded_once)
{
    for (uint32_t bits = 0; bits < 0x4b800000u; bits += 997)
        for (uint32_t sign = 0; sign < 2; sign++) {
            const float x = of_bits(bits | sign << 31);
            const double s = sin((double)x), c = cos((double)x);
            float got_s, got_c;
            weft_math_sincos(x, &got_s, &got_c);
            /* Subnormal angles keep their last bit, no more. */
            WEFT_ASSERT_NEAR(got_s, s, 1.001 * weft_u * fabs(s) + 0x1p-149);
            WEFT_ASSERT_NEAR(got_c, c, 1.001 * weft_u * fabs(c));
        }
    float s, c;
    weft_math_sincos(INFINITY, &s, &c);
    ck_assert(isnan(s) && isnan(c));
}
END_TEST

START_TEST(paths_are_found_by_name)
{
    const weft_ops *ops = NULL;
    weft_err err = {0};
    ck_assert_int_eq(weft_ops_cpu("auto", &ops, &err), WEFT_OK);
    ck_assert_ptr_eq(ops, weft_ops_cpu_nth(0));
    ck_assert_int_eq(weft_ops_cpu("scalar", &ops, &err), WEFT_OK);
    ck_assert_str_eq(ops->name, "scalar");
    for (int32_t i = 0; weft_ops_cpu_nth(i) != NULL; i++) {
        ck_assert_int_eq(weft_ops_cpu(weft_ops_cpu_nth(i)->name, &ops, &err),
                         WEFT_OK);
        ck_assert_ptr_eq(ops, weft_ops_cpu_nth(i));
    }
    ck_assert_int_eq(weft_ops_cpu("sse9", &ops, &err), WEFT_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(err.text, "sse9"));
#if defined(__x86_64__)
    ck_assert_int_eq(weft_ops_cpu("neon", &ops, &err), WEFT_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(err.text, "scalar"));
#else
    ck_assert_int_eq(weft_ops_cpu("avx2", &ops, &err), WEFT_UNAVAILABLE);
#endif
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        exp_paths_agree, exp_is_within_an_ulp, log_is_rounded_once,
        sine_and_cosine_are_rounded_once, paths_are_found_by_name};
    return WEFT_SUITE_RUN("math", tests);
}
