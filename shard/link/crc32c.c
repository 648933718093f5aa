/* Polynomials are held reflected: bit 31 is the coefficient of x^0. */
#include "shard/link/crc32c.h"

#include <pthread.h>
#include <string.h>

#include "shard/link/frame.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

/* 0x1EDC6F41, reflected (RFC 3720, appendix B.4). */
#define POLYNOMIAL 0x82F63B78U

static pthread_once_t tables_once = PTHREAD_ONCE_INIT;
/* tables[k][b]: byte b followed by k zero bytes. */
static uint32_t tables[8][256];

static void make_tables(void)
{
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t crc = b;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (POLYNOMIAL & (0U - (crc & 1)));
        tables[0][b] = crc;
    }
    for (size_t k = 1; k < 8; k++)
        for (uint32_t b = 0; b < 256; b++) {
            const uint32_t before = tables[k - 1][b];
            tables[k][b] = before >> 8 ^ tables[0][before & 0xff];
        }
}

/* Eight bytes as a little-endian number, whatever the machine's order. */
static uint64_t load_le64(const unsigned char *at)
{
    uint64_t value = 0;
    for (int i = 0; i < 8; i++) value |= (uint64_t)at[i] << (8 * i);
    return value;
}

uint32_t weft_crc32c_software(uint32_t crc, const void *bytes, size_t n)
{
    const unsigned char *at = bytes;
    (void)pthread_once(&tables_once, make_tables);
    crc = ~crc;
    for (; n >= 8; n -= 8, at += 8) {
        const uint64_t v = load_le64(at) ^ crc;
        crc = 0;
        for (size_t k = 0; k < 8; k++)
            crc ^= tables[7 - k][v >> (8 * k) & 0xff];
    }
    for (; n > 0; n--, at++) crc = crc >> 8 ^ tables[0][(crc ^ *at) & 0xff];
    return ~crc;
}

#if defined(__x86_64__)

/* Bytes of one of three streams: long ones for bulk, short ones so that the
 * rest of a row is not left to a single stream. */
static const size_t LONG_BYTES = 2048, SHORT_BYTES = 256;

static pthread_once_t shifts_once = PTHREAD_ONCE_INIT;
/* What moves a checksum over one and two streams' lengths; see moved. */
static uint32_t long_shift[2], short_shift[2];

/* x^n mod the polynomial. */
static uint32_t power_of_x(size_t n)
{
    uint32_t value = 0x80000000U;
    for (; n > 0; n--) value = value >> 1 ^ (POLYNOMIAL & (0U - (value & 1)));
    return value;
}

/* A reflected product of two 32-bit polynomials comes out times x, and the
 * instruction that reduces 64 bits multiplies by x^32: 33 are taken off. */
static void make_shifts(void)
{
    for (size_t i = 0; i < 2; i++) {
        long_shift[i] = power_of_x(8 * LONG_BYTES * (i + 1) - 33);
        short_shift[i] = power_of_x(8 * SHORT_BYTES * (i + 1) - 33);
    }
}

bool weft_crc32c_has_hardware(void)
{
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

__attribute__((target("sse4.2,pclmul"))) static uint64_t
load64(const unsigned char *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* The checksum `crc` with as many zero bytes after it as `shift` stands for. */
__attribute__((target("sse4.2,pclmul"))) static uint64_t moved(uint64_t crc,
                                                               uint32_t shift)
{
    const __m128i product = _mm_clmulepi64_si128(
        _mm_cvtsi64_si128((int64_t)crc), _mm_cvtsi64_si128((int64_t)shift), 0);
    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

/* Three streams of `stream` bytes each from `at`. */
__attribute__((target("sse4.2,pclmul"))) static uint64_t
three(uint64_t crc, const unsigned char *at, size_t stream,
      const uint32_t shift[2])
{
    uint64_t a = crc;
    uint64_t b = 0;
    uint64_t c = 0;
    for (size_t i = 0; i < stream; i += 8) {
        a = _mm_crc32_u64(a, load64(at + i));
        b = _mm_crc32_u64(b, load64(at + stream + i));
        c = _mm_crc32_u64(c, load64(at + 2 * stream + i));
    }
    return moved(a, shift[1]) ^ moved(b, shift[0]) ^ c;
}

__attribute__((target("sse4.2,pclmul"))) uint32_t
weft_crc32c_hardware(uint32_t crc, const void *bytes, size_t n)
{
    const unsigned char *at = bytes;
    uint64_t wide = ~crc & 0xffffffffU;
    (void)pthread_once(&shifts_once, make_shifts);
    for (; n >= 3 * LONG_BYTES; n -= 3 * LONG_BYTES, at += 3 * LONG_BYTES)
        wide = three(wide, at, LONG_BYTES, long_shift);
    for (; n >= 3 * SHORT_BYTES; n -= 3 * SHORT_BYTES, at += 3 * SHORT_BYTES)
        wide = three(wide, at, SHORT_BYTES, short_shift);
    for (; n >= 8; n -= 8, at += 8) wide = _mm_crc32_u64(wide, load64(at));
    uint32_t narrow = (uint32_t)wide;
    for (; n > 0; n--, at++) narrow = _mm_crc32_u8(narrow, *at);
    return ~narrow;
}

#elif defined(__ARM_FEATURE_CRC32)

bool weft_crc32c_has_hardware(void)
{
    return true;
}

uint32_t weft_crc32c_hardware(uint32_t crc, const void *bytes, size_t n)
{
    const unsigned char *at = bytes;
    crc = ~crc;
    for (; n >= 8; n -= 8, at += 8) crc = __crc32cd(crc, load_le64(at));
    for (; n > 0; n--, at++) crc = __crc32cb(crc, *at);
    return ~crc;
}

#else

bool weft_crc32c_has_hardware(void)
{
    return false;
}

uint32_t weft_crc32c_hardware(uint32_t crc, const void *bytes, size_t n)
{
    return weft_crc32c_software(crc, bytes, n);
}

#endif

/* Shorter ones do not repay the fold at the end. */
enum { WIDE_BYTES_MIN = 512 };

uint32_t weft_crc32c(uint32_t crc, const void *bytes, size_t n)
{
    if (n >= WIDE_BYTES_MIN && weft_crc32c_has_wide())
        return weft_crc32c_wide(crc, bytes, n);
    return weft_crc32c_has_hardware() ? weft_crc32c_hardware(crc, bytes, n)
                                      : weft_crc32c_software(crc, bytes, n);
}
