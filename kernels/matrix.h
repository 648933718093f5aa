/* matrix.h - weight matrices as the kernels read them: packed once, at load.
 *
 * A checkpoint stores a linear layer as [n_out, n_in], row-major, and y = W x.
 * Here the lanes of a vector hold different outputs, so that a sum over n_in
 * has one order whatever the vector width: panels of 64 outputs are stored
 * input by input,
 *
 *     data[64 p n_in + i w + j] = W[64 p + j][i],   w = the panel's width,
 *
 * where every panel is 64 wide but the last, whose width is what is left of
 * n_out, rounded up to 16 and filled with zeros. So a matrix has
 * round_up(n_out, 16) * n_in elements and reading it is one forward stream.
 *
 * Element types are those of the checkpoint ("weights as stored"). F8_E4M3
 * carries one fp32 scale for each block of 128 outputs by 128 inputs, and the
 * value of an element is the fp32 product element * scale, rounded once.
 * Of F8 matrices the ops take for granted, and loading must check, that no
 * element is one of the two NaN codes and that scales are finite and below
 * 2^119 in magnitude.
 */
#ifndef WEFT_KERNELS_MATRIX_H
#define WEFT_KERNELS_MATRIX_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum weft_dtype {
    WEFT_F32 = 0,
    WEFT_BF16 = 1,
    WEFT_F16 = 2,
    WEFT_F8_E4M3 = 3, /* "fn": no infinities, NaN is 0x7f and 0xff, max 448 */
} weft_dtype;

enum { WEFT_PANEL_OUTS = 64, WEFT_LANES = 16, WEFT_SCALE_BLOCK = 128 };

typedef struct weft_matrix {
    const void *data;    /* packed as above, 64-byte aligned                  */
    const float *scales; /* F8: [ceil(n_out/128), ceil(n_in/128)]; else NULL  */
    weft_dtype dtype;
    int32_t n_out, n_in;
} weft_matrix;

size_t weft_dtype_bytes(weft_dtype dtype);
const char *weft_dtype_name(weft_dtype dtype);

/* Bytes of `data` for such a matrix. */
size_t weft_matrix_bytes(weft_dtype dtype, int32_t n_out, int32_t n_in);

/* Put rows [row, row + n_rows) of a row-major source into the packed data.
 * `src` holds those rows, each n_in elements of `dtype`. Rows may come in any
 * order and number; the padding must have been zeroed beforehand. */
void weft_matrix_pack_rows(void *data, weft_dtype dtype, int32_t n_out,
                           int32_t n_in, const void *src, int32_t row,
                           int32_t n_rows);

/* One element as fp32 (scale applied): slow, for tests and references. */
float weft_matrix_at(const weft_matrix *m, int32_t out, int32_t in);

/* Conversions, exact or rounded to nearest even. */
float weft_f32_of(weft_dtype dtype, const void *src, int64_t index);
float weft_f32_of_f8(uint8_t bits); /* NaN for the two NaN codes */
float weft_f32_of_f16(uint16_t bits);
static inline float weft_f32_of_bf16(uint16_t bits)
{
    union {
        uint32_t u;
        float f;
    } v;
    v.u = (uint32_t)bits << 16;
    return v.f;
}
uint16_t weft_bf16_of_f32(float value); /* NaN stays NaN */
/* Of magnitudes above 448: 448. Never a NaN code: of NaN it is 0. */
uint8_t weft_f8_of_f32(float value);

#ifdef __cplusplus
}
#endif

#endif
