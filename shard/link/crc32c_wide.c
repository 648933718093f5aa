/* CRC-32C of long stretches by carry-less multiplication of 512 bits at once.
 *
 * Held reflected, a register's bit m of a block of 128 is the coefficient of
 * x^(127 - m), so the first bytes are the highest powers. A block V = L x^64 +
 * H is moved over D bits, modulo the polynomial, as
 *
 *   V x^D = L x^(64 + D) + H x^D,
 *
 * each a product with a constant below 2^32. The instruction gives a reflected
 * product times x, so the constants are one power lower. Four registers of four
 * blocks each are moved over 2,048 bits a step; at the end they are folded into
 * one block of 16 bytes, whose checksum is that of all. Source: Gopal et al.,
 * "Fast CRC computation for generic polynomials using PCLMULQDQ", Intel, 2009.
 */
#include <string.h>

#include "shard/link/crc32c.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <pthread.h>

#define POLYNOMIAL 0x82F63B78U
#define WIDE       "avx512f,vpclmulqdq,sse4.2,pclmul"

enum { STEP_BYTES = 256, REGISTER_BYTES = 64 };

static pthread_once_t powers_once = PTHREAD_ONCE_INIT;
/* For L and H, by how many bits: 2048, 512, 384, 256, 128. */
static uint64_t powers[5][2];
static const unsigned DISTANCES[5] = {2048, 512, 384, 256, 128};

/* x^n mod the polynomial, where a product of 64 bits reads it. */
static uint64_t power_of_x(unsigned n)
{
    uint32_t value = 0x80000000U;
    for (; n > 0; n--) value = value >> 1 ^ (POLYNOMIAL & (0U - (value & 1)));
    return (uint64_t)value << 32;
}

static void make_powers(void)
{
    for (size_t i = 0; i < 5; i++) {
        powers[i][0] = power_of_x(DISTANCES[i] + 64 - 1);
        powers[i][1] = power_of_x(DISTANCES[i] - 1);
    }
}

bool weft_crc32c_has_wide(void)
{
    return __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("vpclmulqdq") &&
           __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

__attribute__((target(WIDE))) static __m512i pair512(size_t i)
{
    return _mm512_set_epi64((long long)powers[i][1], (long long)powers[i][0],
                            (long long)powers[i][1], (long long)powers[i][0],
                            (long long)powers[i][1], (long long)powers[i][0],
                            (long long)powers[i][1], (long long)powers[i][0]);
}

/* `a` moved, with `next` added. */
__attribute__((target(WIDE))) static __m512i move512(__m512i a, __m512i by,
                                                     __m512i next)
{
    const __m512i low = _mm512_clmulepi64_epi128(a, by, 0x00);
    const __m512i high = _mm512_clmulepi64_epi128(a, by, 0x11);
    return _mm512_ternarylogic_epi64(low, high, next, 0x96);
}

__attribute__((target(WIDE))) static __m128i move128(__m128i a, size_t i,
                                                     __m128i next)
{
    const __m128i by =
        _mm_set_epi64x((long long)powers[i][1], (long long)powers[i][0]);
    const __m128i low = _mm_clmulepi64_si128(a, by, 0x00);
    const __m128i high = _mm_clmulepi64_si128(a, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

__attribute__((target(WIDE))) static __m512i load512(const unsigned char *at)
{
    return _mm512_loadu_si512((const void *)at);
}

/* n is a multiple of STEP_BYTES and at least one of it. */
__attribute__((target(WIDE))) static uint32_t
fold(uint32_t crc, const unsigned char *at, size_t n)
{
    const __m512i step = pair512(0), one = pair512(1);
    __m512i a = load512(at), b = load512(at + REGISTER_BYTES),
            c = load512(at + 2 * (size_t)REGISTER_BYTES),
            d = load512(at + 3 * (size_t)REGISTER_BYTES);
    a = _mm512_xor_si512(
        a, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int32_t)crc)));
    for (n -= STEP_BYTES, at += STEP_BYTES; n > 0;
         n -= STEP_BYTES, at += STEP_BYTES) {
        a = move512(a, step, load512(at));
        b = move512(b, step, load512(at + REGISTER_BYTES));
        c = move512(c, step, load512(at + 2 * (size_t)REGISTER_BYTES));
        d = move512(d, step, load512(at + 3 * (size_t)REGISTER_BYTES));
    }
    a = move512(a, one, b);
    a = move512(a, one, c);
    a = move512(a, one, d);
    __m128i last = _mm512_extracti32x4_epi32(a, 3);
    last = move128(_mm512_extracti32x4_epi32(a, 0), 2, last);
    last = move128(_mm512_extracti32x4_epi32(a, 1), 3, last);
    last = move128(_mm512_extracti32x4_epi32(a, 2), 4, last);
    const uint64_t low = (uint64_t)_mm_extract_epi64(last, 0);
    const uint64_t high = (uint64_t)_mm_extract_epi64(last, 1);
    return (uint32_t)_mm_crc32_u64(_mm_crc32_u64(0, low), high);
}

uint32_t weft_crc32c_wide(uint32_t crc, const void *bytes, size_t n)
{
    const unsigned char *const at = bytes;
    const size_t whole = n - n % STEP_BYTES;
    if (whole > 0) {
        (void)pthread_once(&powers_once, make_powers);
        crc = ~fold(~crc, at, whole);
    }
    return weft_crc32c_hardware(crc, at + whole, n - whole);
}

#else

bool weft_crc32c_has_wide(void)
{
    return false;
}

uint32_t weft_crc32c_wide(uint32_t crc, const void *bytes, size_t n)
{
    return weft_crc32c_software(crc, bytes, n);
}

#endif
