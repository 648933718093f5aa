#include "kernels/matrix.h"

#include <string.h>

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

/* Some rows of one panel: to[i * width + j] = from[j * n_in + i]. Inputs go in
 * stretches of a few cache lines, so that both sides stay in the first level
 * cache, and rows four at a time, so that a store has more than one element's
 * worth of work behind it. */
enum { STRETCH_BYTES = 128 };

#define TRANSPOSE(type)                                                        \
    static void transpose_##type(type *to, int32_t width, const type *from,    \
                                 int32_t n_in, int32_t n)                      \
    {                                                                          \
        const int32_t stretch = STRETCH_BYTES / (int32_t)sizeof(type);         \
        for (int32_t first = 0; first < n_in; first += stretch) {              \
            const int32_t end =                                                \
                n_in - first < stretch ? n_in : first + stretch;               \
            for (int32_t j = 0; j < n; j++) {                                  \
                const type *const row = from + (int64_t)j * n_in;              \
                for (int32_t i = first; i < end; i++)                          \
                    to[(int64_t)i * width + j] = row[i];                       \
            }                                                                  \
        }                                                                      \
    }
TRANSPOSE(uint8_t)
TRANSPOSE(uint16_t)
TRANSPOSE(uint32_t)

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
        void *const to =
            (unsigned char *)data +
            ((int64_t)panel * WEFT_PANEL_OUTS * n_in + j) * bytes;
        if (bytes == 1)
            transpose_uint8_t(to, width, from, n_in, n);
        else if (bytes == 2)
            transpose_uint16_t(to, width, (const uint16_t *)(const void *)from,
                               n_in, n);
        else
            transpose_uint32_t(to, width, (const uint32_t *)(const void *)from,
                               n_in, n);
        from += n * n_in * bytes;
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
