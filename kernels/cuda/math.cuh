// math.cuh - exp, log, sine and cosine: step by step those of
// kernels/cpu/math.h, whose bits they give, so that a device and a CPU differ
// by the order of sums alone. Sources of the series and errors: there.
#ifndef WEFT_KERNELS_CUDA_MATH_CUH
#define WEFT_KERNELS_CUDA_MATH_CUH

#include <cmath>
#include <cstring>

#include "kernels/cpu/math.h"
#include "kernels/cuda/device.cuh"

namespace weft
{

// A product that no compiler joins with an addition after it.
__device__ __forceinline__ float product(float a, float b)
{
#if defined(WEFT_SIMT)
    return a * b;
#else
    return __fmul_rn(a, b);
#endif
}

// e^x, below 1 ulp.
__device__ __forceinline__ float exp_of(float x)
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
    const float p = 1.0f + fmaf(q, product(r, r), r);
    // p 2^n by two factors, the first of which stays in the normal range.
    const int32_t whole = static_cast<int32_t>(n), part = whole >> 1;
    const float low = float_of(static_cast<uint32_t>(part + 127) << 23);
    const float high =
        float_of(static_cast<uint32_t>(whole - part + 127) << 23);
    return product(product(p, low), high);
}

// ln x, in double and rounded once.
__device__ __forceinline__ float log_of(float x)
{
    if (!(x > 0.0f)) return float_of(x == 0.0f ? 0xff800000U : 0x7fc00000U);
    if (bits_of(x) == 0x7f800000U) return x;
    const double wide = static_cast<double>(x);
    uint64_t bits;
    memcpy(&bits, &wide, sizeof bits);
    int32_t e = static_cast<int32_t>(bits >> 52) - 1023;
    bits = (bits & 0xfffffffffffffULL) | 0x3ff0000000000000ULL;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    const double s = (m - 1.0) / (m + 1.0), s2 = s * s;
    double q = 0.0;
#pragma unroll
    for (int32_t k = 19; k >= 1; k -= 2) q = fma(q, s2, 1.0 / k);
    return static_cast<float>(
        fma(static_cast<double>(e), 0.69314718055994530942, 2.0 * s * q));
}

// Of every |angle| < 2^30; others give NaN.
__device__ __forceinline__ void sincos_of(float angle, float *sin_out,
                                          float *cos_out)
{
    if (!(fabsf(angle) < 1073741824.0f)) {
        *sin_out = *cos_out = float_of(0x7fc00000U);
        return;
    }
    const double a = static_cast<double>(angle);
    const double shift = 6755399441055744.0;
    const double n = fma(a, 0.63661977236758134308, shift) - shift;
    double r = fma(n, -1.57079632679489655800, a);
    r = fma(n, -6.12323399573676603587e-17, r);
    const double r2 = r * r;
    double s = 0.0, c = 0.0;
#pragma unroll
    for (int32_t k = 17; k >= 3; k -= 2)
        s = fma(s, -r2 / ((k + 1) * static_cast<double>(k + 2)), 1.0);
    s = r * fma(s, -r2 / 6.0, 1.0);
#pragma unroll
    for (int32_t k = 18; k >= 0; k -= 2)
        c = fma(c, -r2 / ((k + 1) * static_cast<double>(k + 2)), 1.0);
    const int32_t quarter = static_cast<int32_t>(static_cast<int64_t>(n) & 3);
    const double sine = (quarter & 1) != 0 ? c : s;
    const double cosine = (quarter & 1) != 0 ? s : c;
    *sin_out = static_cast<float>((quarter & 2) != 0 ? -sine : sine);
    *cos_out = static_cast<float>(((quarter + 1) & 2) != 0 ? -cosine : cosine);
}

} // namespace weft

#endif
