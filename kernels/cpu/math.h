/* math.h - exp, log, sine and cosine of the cpu backend, one value at a time.
 *
 * The C library's differ between versions and machines; these are built from
 * IEEE operations in a fixed order (fused multiply-add where written), so that
 * every path gives the same bits. elementary.inc has exp for 16 lanes, step by
 * step the same as here.
 *
 * Errors: exp below 1 ulp, subnormal results included; log, sine and cosine
 * are computed in double and rounded once. Threads: any.
 */
#ifndef WEFT_KERNELS_CPU_MATH_H
#define WEFT_KERNELS_CPU_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Above EXP_HIGH e^x is infinite in fp32, below EXP_LOW it rounds to 0. */
#define WEFT_EXP_HIGH  89.0f
#define WEFT_EXP_LOW   (-104.0f)
#define WEFT_EXP_LOG2E 1.44269504088896341f
/* Adding 1.5 * 2^23 rounds a small float to an integer, ties to even. */
#define WEFT_EXP_SHIFT 12582912.0f
/* ln 2 = 355/512 + low: n * 355/512 is exact for |n| <= 150. */
#define WEFT_EXP_LN2_HIGH 0.693359375f
#define WEFT_EXP_LN2_LOW  (-2.12194440054690583e-4f)
/* e^r = 1 + r + r^2 (C2 + C3 r + ...), |r| <= ln 2 / 2: Taylor's coefficients;
 * the first term left out is below 0.01 ulp. */
#define WEFT_EXP_C2 0.5f
#define WEFT_EXP_C3 (1.0f / 6)
#define WEFT_EXP_C4 (1.0f / 24)
#define WEFT_EXP_C5 (1.0f / 120)
#define WEFT_EXP_C6 (1.0f / 720)
#define WEFT_EXP_C7 (1.0f / 5040)
#define WEFT_EXP_C8 (1.0f / 40320)

static inline float weft_math_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* p * 2^n, rounded once, for p in [0.5, 2] and |n| <= 252: two factors, the
 * first of which cannot leave the normal range. */
static inline float weft_math_scale(float p, int32_t n)
{
    const int32_t part = n >> 1;
    return p * weft_math_bits((uint32_t)(part + 127) << 23) *
           weft_math_bits((uint32_t)(n - part + 127) << 23);
}

static inline float weft_math_exp(float x)
{
    if (x != x) return x;
    if (x > WEFT_EXP_HIGH) x = WEFT_EXP_HIGH;
    if (x < WEFT_EXP_LOW) x = WEFT_EXP_LOW;
    const float n = fmaf(x, WEFT_EXP_LOG2E, WEFT_EXP_SHIFT) - WEFT_EXP_SHIFT;
    float r = fmaf(n, -WEFT_EXP_LN2_HIGH, x);
    r = fmaf(n, -WEFT_EXP_LN2_LOW, r);
    float q = fmaf(WEFT_EXP_C8, r, WEFT_EXP_C7);
    q = fmaf(q, r, WEFT_EXP_C6);
    q = fmaf(q, r, WEFT_EXP_C5);
    q = fmaf(q, r, WEFT_EXP_C4);
    q = fmaf(q, r, WEFT_EXP_C3);
    q = fmaf(q, r, WEFT_EXP_C2);
    const float p = 1.0f + fmaf(q, r * r, r);
    return weft_math_scale(p, (int32_t)n);
}

/* ln x = e ln 2 + 2 artanh((m - 1) / (m + 1)), x = m 2^e, m in
 * [sqrt 1/2, sqrt 2): the series in s, |s| < 0.172, to s^19. */
static inline float weft_math_log(float x)
{
    if (!(x > 0.0f)) return x == 0.0f ? -INFINITY : NAN;
    if (x == INFINITY) return x;
    double wide = (double)x;
    uint64_t bits;
    memcpy(&bits, &wide, sizeof bits);
    int32_t e = (int32_t)(bits >> 52) - 1023;
    bits = (bits & 0xfffffffffffffULL) | 0x3ff0000000000000ULL;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    const double s = (m - 1.0) / (m + 1.0), s2 = s * s;
    double q = 0.0;
    for (int32_t k = 19; k >= 1; k -= 2) q = fma(q, s2, 1.0 / k);
    return (float)fma((double)e, 0.69314718055994530942, 2.0 * s * q);
}

/* Reduce by quarter turns, pi/2 in two doubles: n * high is exact inside the
 * fused multiply-add, so what is lost is below 2^-50 for |angle| < 2^30. The
 * series run to r^17 and r^18, |r| <= pi/4. */
static inline void weft_math_sincos(float angle, float *sin_out, float *cos_out)
{
    if (!(fabsf(angle) < 0x1p30f)) {
        *sin_out = *cos_out = NAN;
        return;
    }
    const double a = (double)angle;
    /* 1.5 * 2^52 rounds a double to an integer. */
    const double shift = 6755399441055744.0;
    const double n = fma(a, 0.63661977236758134308, shift) - shift;
    double r = fma(n, -1.57079632679489655800, a);
    r = fma(n, -6.12323399573676603587e-17, r);
    const double r2 = r * r;
    double s = 0.0, c = 0.0;
    for (int32_t k = 17; k >= 3; k -= 2)
        s = fma(s, -r2 / ((k + 1) * (double)(k + 2)), 1.0);
    s = r * fma(s, -r2 / 6.0, 1.0);
    for (int32_t k = 18; k >= 0; k -= 2)
        c = fma(c, -r2 / ((k + 1) * (double)(k + 2)), 1.0);
    const int32_t quarter = (int32_t)((int64_t)n & 3);
    const double sine = (quarter & 1) != 0 ? c : s;
    const double cosine = (quarter & 1) != 0 ? s : c;
    *sin_out = (float)((quarter & 2) != 0 ? -sine : sine);
    *cos_out = (float)(((quarter + 1) & 2) != 0 ? -cosine : cosine);
}

#endif
