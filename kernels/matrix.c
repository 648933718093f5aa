#include "kernels/matrix.h"

#include <assert.h>
#include <string.h>

#include "kernels/ahead.h"
#include "node/base/check.h"

size_t weft_dtype_bytes(weft_dtype dtype)
{
    switch (dtype) {
    case WEFT_F32: return 4;
    case WEFT_BF16:
    case WEFT_F16: return 2;
    case WEFT_F8_E4M3: return 1;
    }
    weft_panic(__FILE__, __LINE__, "unknown dtype");
}

const char *weft_dtype_name(weft_dtype dtype)
{
    switch (dtype) {
    case WEFT_F32: return "F32";
    case WEFT_BF16: return "BF16";
    case WEFT_F16: return "F16";
    case WEFT_F8_E4M3: return "F8_E4M3";
    }
    return "?";
}

size_t weft_matrix_bytes(weft_dtype dtype, int32_t n_out, int32_t n_in)
{
    const size_t outs = ((size_t)n_out + WEFT_LANES - 1) / WEFT_LANES;
    return outs * WEFT_LANES * (size_t)n_in * weft_dtype_bytes(dtype);
}

/* The stored width of panel `panel`. */
static int32_t panel_width(int32_t n_out, int32_t panel)
{
    const int32_t left = n_out - panel * WEFT_PANEL_OUTS;
    if (left >= WEFT_PANEL_OUTS) return WEFT_PANEL_OUTS;
    return (left + WEFT_LANES - 1) / WEFT_LANES * WEFT_LANES;
}

/* Rows of a large matrix are streams of their own, too many for the machine to
 * notice, and often so far apart that they share a few sets of the first level
 * cache: they are asked for ahead of time into the second level. */
enum { AHEAD_BYTES = 256 };

#if defined(__clang__)
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* Transposing in 64-bit words: exchange the upper fields of a with the lower
 * ones of b, fields being `shift` bits wide and `low` the mask of lower ones.
 */
static inline void exchange(uint64_t *a, uint64_t *b, int shift, uint64_t low)
{
    const uint64_t differ = ((*a >> shift) ^ *b) & low;
    *b ^= differ;
    *a ^= differ << shift;
}

/* 8 rows of 8 bytes, from_step apart, to 8 columns to_step apart. */
static void tile_bytes(unsigned char *to, int64_t to_step,
                       const unsigned char *from, int64_t from_step)
{
    uint64_t r[8];
    UNROLL for (int k = 0; k < 8; k++) memcpy(&r[k], from + k * from_step, 8);
    UNROLL for (int k = 0; k < 8; k += 2)
        exchange(&r[k], &r[k + 1], 8, 0x00ff00ff00ff00ffULL);
    UNROLL for (int k = 0; k < 8; k += 4)
    {
        exchange(&r[k], &r[k + 2], 16, 0x0000ffff0000ffffULL);
        exchange(&r[k + 1], &r[k + 3], 16, 0x0000ffff0000ffffULL);
    }
    UNROLL for (int k = 0; k < 4; k++)
        exchange(&r[k], &r[k + 4], 32, 0x00000000ffffffffULL);
    UNROLL for (int k = 0; k < 8; k++) memcpy(to + k * to_step, &r[k], 8);
}

/* 4 rows of 4 halves. */
static void tile_halves(unsigned char *to, int64_t to_step,
                        const unsigned char *from, int64_t from_step)
{
    uint64_t r[4];
    UNROLL for (int k = 0; k < 4; k++) memcpy(&r[k], from + k * from_step, 8);
    exchange(&r[0], &r[1], 16, 0x0000ffff0000ffffULL);
    exchange(&r[2], &r[3], 16, 0x0000ffff0000ffffULL);
    exchange(&r[0], &r[2], 32, 0x00000000ffffffffULL);
    exchange(&r[1], &r[3], 32, 0x00000000ffffffffULL);
    UNROLL for (int k = 0; k < 4; k++) memcpy(to + k * to_step, &r[k], 8);
}

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "tiles take the lowest field of a word to be the first element");

/* Some rows of some inputs of one panel, as elements of `bytes` bytes. */
struct patch {
    unsigned char *to;
    const unsigned char *from;
    int64_t to_step, from_step; /* bytes: between inputs, between rows */
    int64_t bytes;
    int32_t n_row, n_in;
};

static void copy_elements(const struct patch *p, int32_t row, int32_t n_row,
                          int32_t in, int32_t n_in)
{
    for (int32_t j = row; j < row + n_row; j++)
        for (int32_t i = in; i < in + n_in; i++)
            memcpy(p->to + i * p->to_step + j * p->bytes,
                   p->from + j * p->from_step + i * p->bytes, (size_t)p->bytes);
}

static void transpose(const struct patch *p)
{
    const int32_t side = (int32_t)(8 / p->bytes); /* of a tile */
    const int32_t rows = p->n_row / side * side, ins = p->n_in / side * side;
    for (int32_t j = 0; j < rows; j += side) {
        unsigned char *const to = p->to + j * p->bytes;
        const unsigned char *const from = p->from + j * p->from_step;
        for (int32_t k = 0; k < side; k++)
            __builtin_prefetch(weft_ahead(from + k * p->from_step, AHEAD_BYTES),
                               0, 2);
        if (p->bytes == 4) copy_elements(p, j, side, 0, ins);
        for (int32_t i = 0; i < ins && p->bytes == 2; i += side)
            tile_halves(to + i * p->to_step, p->to_step, from + (int64_t)i * 2,
                        p->from_step);
        for (int32_t i = 0; i < ins && p->bytes == 1; i += side)
            tile_bytes(to + i * p->to_step, p->to_step, from + i, p->from_step);
    }
    copy_elements(p, 0, rows, ins, p->n_in - ins);
    copy_elements(p, rows, p->n_row - rows, 0, p->n_in);
}

/* Inputs go in stretches of a cache line of every row, so that both sides of a
 * patch, 64 lines each, stay in the first level cache. */
static void pack_panel(struct patch p)
{
    const int32_t stretch = (int32_t)(64 / p.bytes);
    const int32_t n_in = p.n_in;
    for (int32_t i = 0; i < n_in; i += stretch) {
        p.n_in = n_in - i < stretch ? n_in - i : stretch;
        transpose(&p);
        p.to += stretch * p.to_step;
        p.from += stretch * p.bytes;
    }
}

void weft_matrix_pack_rows(void *data, weft_dtype dtype, int32_t n_out,
                           int32_t n_in, const void *src, int32_t row,
                           int32_t n_rows)
{
    WEFT_ASSERT(row >= 0 && n_rows >= 0 && n_rows <= n_out - row);
    const int64_t bytes = (int64_t)weft_dtype_bytes(dtype);
    const unsigned char *from = src;
    while (n_rows > 0) {
        const int32_t panel = row / WEFT_PANEL_OUTS;
        const int32_t j = row % WEFT_PANEL_OUTS;
        const int32_t width = panel_width(n_out, panel);
        const int32_t left = WEFT_PANEL_OUTS - j;
        const int32_t n = n_rows < left ? n_rows : left;
        pack_panel((struct patch){
            .to = (unsigned char *)data +
                  ((int64_t)panel * WEFT_PANEL_OUTS * n_in + j) * bytes,
            .from = from,
            .to_step = width * bytes,
            .from_step = n_in * bytes,
            .bytes = bytes,
            .n_row = n,
            .n_in = n_in});
        from += (int64_t)n * n_in * bytes;
        row += n;
        n_rows -= n;
    }
}

float weft_matrix_at(const weft_matrix *m, int32_t out, int32_t in)
{
    const int32_t panel = out / WEFT_PANEL_OUTS;
    const int64_t at = (int64_t)panel * WEFT_PANEL_OUTS * m->n_in +
                       (int64_t)in * panel_width(m->n_out, panel) +
                       out % WEFT_PANEL_OUTS;
    const float value = weft_f32_of(m->dtype, m->data, at);
    if (m->dtype != WEFT_F8_E4M3) return value;
    const int32_t across = (m->n_in + WEFT_SCALE_BLOCK - 1) / WEFT_SCALE_BLOCK;
    return value * m->scales[(int64_t)(out / WEFT_SCALE_BLOCK) * across +
                             in / WEFT_SCALE_BLOCK];
}

float weft_f32_of(weft_dtype dtype, const void *src, int64_t index)
{
    switch (dtype) {
    case WEFT_F32: return ((const float *)src)[index];
    case WEFT_BF16: return weft_f32_of_bf16(((const uint16_t *)src)[index]);
    case WEFT_F16: return weft_f32_of_f16(((const uint16_t *)src)[index]);
    case WEFT_F8_E4M3: return weft_f32_of_f8(((const uint8_t *)src)[index]);
    }
    weft_panic(__FILE__, __LINE__, "unknown dtype");
}

static float f32_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float weft_f32_of_f8(uint8_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x80u) << 24;
    const uint32_t exponent = (bits >> 3) & 15u, mantissa = bits & 7u;
    if ((bits & 0x7fu) == 0x7fu) return f32_of_bits(sign | 0x7fc00000u);
    if (exponent == 0) {
        const float value = (float)mantissa * 0x1p-9f;
        return sign != 0 ? -value : value;
    }
    return f32_of_bits(sign | (exponent + 120u) << 23 | mantissa << 20);
}

float weft_f32_of_f16(uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    const uint32_t exponent = (bits >> 10) & 31u, mantissa = bits & 0x3ffu;
    if (exponent == 31)
        return f32_of_bits(sign | 0x7f800000u | mantissa << 13 |
                           (mantissa != 0 ? 0x400000u : 0u));
    if (exponent == 0) {
        const float value = (float)mantissa * 0x1p-24f;
        return sign != 0 ? -value : value;
    }
    return f32_of_bits(sign | (exponent + 112u) << 23 | mantissa << 13);
}

uint16_t weft_bf16_of_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

uint8_t weft_f8_of_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint8_t sign = (uint8_t)(bits >> 24 & 0x80u);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return 0;
    if (bits >= 0x43e00000u) return sign | 0x7eu; /* 448 */
    if (bits < 0x3c800000u) {
        /* Below 2^-6 codes are 2^-9 apart, as are floats at 2^14. */
        const float shifted = f32_of_bits(bits) + 0x1p14f;
        memcpy(&bits, &shifted, sizeof bits);
        return sign | (uint8_t)(bits - 0x46800000u);
    }
    bits += 0x7ffffu + (bits >> 20 & 1u);
    return sign | (uint8_t)((bits >> 20) - (120u << 3));
}
