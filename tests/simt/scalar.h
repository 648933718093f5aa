// scalar.h - CUDA's scalar functions. Those that have a rounding in their name
// are exact in it; expf and its like are the host's and differ in last bits
// from a GPU's.
#ifndef WEFT_TESTS_SIMT_SCALAR_H
#define WEFT_TESTS_SIMT_SCALAR_H

#include "tests/simt/simt.h"

template <class T> inline T __ldg(const T *p)
{
    return *p;
}
template <class T> inline T __ldcg(const T *p)
{
    return *p;
}
template <class T> inline T __ldcs(const T *p)
{
    return *p;
}
template <class T> inline void __stcs(T *p, T value)
{
    *p = value;
}

// --- Bits ------------------------------------------------------------------

inline int __popc(unsigned v)
{
    return __builtin_popcount(v);
}
inline int __popcll(unsigned long long v)
{
    return __builtin_popcountll(v);
}
inline int __clz(int v)
{
    return v ? __builtin_clz(static_cast<unsigned>(v)) : 32;
}
inline int __clzll(long long v)
{
    return v ? __builtin_clzll(static_cast<unsigned long long>(v)) : 64;
}
inline int __ffs(int v)
{
    return __builtin_ffs(v);
}
inline int __ffsll(long long v)
{
    return __builtin_ffsll(v);
}
inline unsigned __brev(unsigned v)
{
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (v >> i & 1U) << (31 - i);
    return r;
}
// Byte i of the result is byte s >> 4 i & 7 of b:a (PTX ISA, prmt).
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s)
{
    const uint64_t from = static_cast<uint64_t>(b) << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned pick = s >> (4 * i);
        unsigned byte = static_cast<unsigned>(from >> (8 * (pick & 7U))) & 255U;
        if (pick & 8U) byte = byte & 128U ? 255U : 0U;
        r |= byte << (8 * i);
    }
    return r;
}
inline unsigned __umulhi(unsigned a, unsigned b)
{
    return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift)
{
    const uint64_t v = static_cast<uint64_t>(high) << 32 | low;
    return static_cast<unsigned>(v << (shift & 31U) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    const uint64_t v = static_cast<uint64_t>(high) << 32 | low;
    return static_cast<unsigned>(v >> (shift & 31U));
}

#define SIMT_BITS(name, to_type, from_type)                                    \
    inline to_type name(from_type value)                                       \
    {                                                                          \
        static_assert(sizeof(to_type) == sizeof(from_type), "bits");           \
        to_type r;                                                             \
        memcpy(&r, &value, sizeof r);                                          \
        return r;                                                              \
    }
SIMT_BITS(__float_as_uint, unsigned, float)
SIMT_BITS(__uint_as_float, float, unsigned)
SIMT_BITS(__float_as_int, int, float)
SIMT_BITS(__int_as_float, float, int)
SIMT_BITS(__double_as_longlong, long long, double)
SIMT_BITS(__longlong_as_double, double, long long)
#undef SIMT_BITS

// --- Numbers ---------------------------------------------------------------

inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
inline float __fadd_rn(float a, float b)
{
    return a + b;
}
inline float __fsub_rn(float a, float b)
{
    return a - b;
}
inline float __fmul_rn(float a, float b)
{
    return a * b;
}
inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
inline float __frcp_rn(float a)
{
    return 1.0F / a;
}
inline float __fsqrt_rn(float a)
{
    return sqrtf(a);
}
inline float __frsqrt_rn(float a)
{
    return static_cast<float>(1.0 / sqrt(static_cast<double>(a)));
}
inline float rsqrtf(float a)
{
    return __frsqrt_rn(a);
}
inline float __fdividef(float a, float b)
{
    return a / b;
}
inline float __expf(float a)
{
    return expf(a);
}
inline float __logf(float a)
{
    return logf(a);
}
inline float __log2f(float a)
{
    return log2f(a);
}
inline float __sinf(float a)
{
    return sinf(a);
}
inline float __cosf(float a)
{
    return cosf(a);
}
inline float __saturatef(float a)
{
    return a > 0.0F ? (a < 1.0F ? a : 1.0F) : 0.0F;
}

inline float __int2float_rn(int a)
{
    return static_cast<float>(a);
}
inline float __uint2float_rn(unsigned a)
{
    return static_cast<float>(a);
}
inline double __int2double_rn(int a)
{
    return static_cast<double>(a);
}
inline float __double2float_rn(double a)
{
    return static_cast<float>(a);
}

namespace simt
{
// Out of range: the nearest that there is; NaN: 0 (PTX ISA, cvt).
inline int to_int(float rounded)
{
    if (rounded != rounded) return 0;
    if (rounded >= 2147483648.0F) return INT32_MAX;
    if (rounded < -2147483648.0F) return INT32_MIN;
    return static_cast<int>(rounded);
}
} // namespace simt

inline int __float2int_rn(float a)
{
    return simt::to_int(rintf(a));
}
inline int __float2int_rz(float a)
{
    return simt::to_int(truncf(a));
}
inline int __float2int_rd(float a)
{
    return simt::to_int(floorf(a));
}
inline int __float2int_ru(float a)
{
    return simt::to_int(ceilf(a));
}

#define SIMT_MIN_MAX(type)                                                     \
    inline type min(type a, type b)                                            \
    {                                                                          \
        return b < a ? b : a;                                                  \
    }                                                                          \
    inline type max(type a, type b)                                            \
    {                                                                          \
        return a < b ? b : a;                                                  \
    }
SIMT_MIN_MAX(int)
SIMT_MIN_MAX(unsigned)
SIMT_MIN_MAX(long)
SIMT_MIN_MAX(unsigned long)
SIMT_MIN_MAX(long long)
SIMT_MIN_MAX(unsigned long long)
#undef SIMT_MIN_MAX
inline float min(float a, float b)
{
    return fminf(a, b);
}
inline float max(float a, float b)
{
    return fmaxf(a, b);
}
inline double min(double a, double b)
{
    return fmin(a, b);
}
inline double max(double a, double b)
{
    return fmax(a, b);
}
inline long min(long a, int b)
{
    return min(a, static_cast<long>(b));
}
inline long min(int a, long b)
{
    return min(static_cast<long>(a), b);
}
inline long max(long a, int b)
{
    return max(a, static_cast<long>(b));
}
inline long max(int a, long b)
{
    return max(static_cast<long>(a), b);
}

#define __trap() ::simt::fail({__FILE__, __LINE__}, "__trap")

#endif
