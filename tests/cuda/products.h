/* products.h - what the tests of a device's matrix products share: matrices in
 * the forms of both sides, products with everything that they read and write
 * in blocks of its exact size, and what a result has to be.
 *
 * Exact products (kernels/ops.h) have the bits of the reference. Those on
 * tensor cores are compared with sums in double precision. Of their error, per
 * block of 128 inputs: each product enters an fp32 sum, which a tensor core may
 * cut off instead of rounding, 2 u of the sum of magnitudes a term; then one
 * addition and one scale a block. In pairs each product is two terms, whose
 * magnitudes are together at most 1 + 2^-7 of it, and what a pair leaves out
 * of x is 2^-16 of it, or 2^-134.
 */
#ifndef WEFT_TESTS_CUDA_PRODUCTS_H
#define WEFT_TESTS_CUDA_PRODUCTS_H

#include <string.h>

#include "node/base/mem.h"
#include "tests/support/bytes.h"
#include "tests/support/device_kit.h"
#include "tests/support/kernel_suite.h"

/* In panels for the reference, by rows on the device, `shift` elements into a
 * block of its own. */
typedef struct product_weights {
    weft_matrix packed, at_device;
    int32_t shift;
} product_weights;

static inline const unsigned char *packed_element(const weft_matrix *m,
                                                  int32_t out, int32_t in)
{
    const int32_t panel = out / 64, left = (m->n_out - panel * 64 + 15) / 16;
    const int64_t width = left < 4 ? left * 16 : 64;
    const int64_t at = (int64_t)panel * 64 * m->n_in + in * width + out % 64;
    return (const unsigned char *)m->data +
           at * (int64_t)weft_dtype_bytes(m->dtype);
}

/* To write it: the oracle's copy of an element. */
static inline unsigned char *packed_place(const weft_matrix *m, int32_t out,
                                          int32_t in)
{
    union {
        const unsigned char *read;
        unsigned char *write;
    } at = {.read = packed_element(m, out, in)};
    return at.write;
}

/* What is packed goes, as it is, to the device. */
static inline void weights_put(product_weights *to, int32_t shift)
{
    const weft_matrix *const m = &to->packed;
    (void)device_kit_open();
    const size_t elem = weft_dtype_bytes(m->dtype);
    const size_t skip = (size_t)shift * elem;
    const size_t bytes = (size_t)m->n_out * (size_t)m->n_in * elem;
    unsigned char *const rows = weft_kit_new(skip + bytes, 1);
    for (int32_t o = 0; o < m->n_out; o++)
        for (int32_t i = 0; i < m->n_in; i++)
            memcpy(rows + skip +
                       ((size_t)o * (size_t)m->n_in + (size_t)i) * elem,
                   packed_element(m, o, i), elem);
    to->at_device = *m;
    to->shift = shift;
    to->at_device.data =
        (unsigned char *)device_kit_put(rows, skip + bytes) + skip;
    weft_mem_free(rows);
    if (m->scales == NULL) return;
    const size_t n_scale =
        (size_t)((m->n_out + 127) / 128) * (size_t)((m->n_in + 127) / 128);
    to->at_device.scales = device_kit_put(m->scales, n_scale * sizeof(float));
}

static inline void weights_make(weft_kernel_check *c, weft_dtype dtype,
                                int32_t n_out, int32_t n_in, int32_t shift,
                                product_weights *out)
{
    weft_kit_matrix(c, dtype, n_out, n_in, &out->packed);
    weights_put(out, shift);
}

static inline void weights_free(product_weights *w)
{
    const size_t skip = (size_t)w->shift * weft_dtype_bytes(w->at_device.dtype);
    device_kit_free((const unsigned char *)w->at_device.data - skip);
    if (w->at_device.scales != NULL) device_kit_free(w->at_device.scales);
    weft_kit_matrix_free(&w->packed);
}

static inline void round_rows(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = weft_f32_of_bf16(weft_bf16_of_f32(x[i]));
}

/* What the caller says of x. */
typedef enum product_form {
    PRODUCT_EXACT,
    PRODUCT_BF16, /* x_is_bf16 */
    PRODUCT_PAIR, /* x_as_pair */
    N_PRODUCT_FORM,
} product_form;

/* Whether the device takes it to its tensor cores, where it has an order of its
 * own. */
static inline bool on_tensor_cores(weft_dtype dtype, product_form form)
{
    return form != PRODUCT_EXACT &&
           (dtype == WEFT_BF16 || dtype == WEFT_F8_E4M3);
}

/* One row of a product against double precision. */
static inline void assert_row_near(const weft_matrix *w, const float *x,
                                   const float *y, product_form form,
                                   weft_round round, const char *what)
{
    const bool pair = form == PRODUCT_PAIR;
    const double terms = pair ? 2 * 128 : 128;
    const double blocks = (w->n_in + 127) / 128;
    for (int32_t o = 0; o < w->n_out; o++) {
        double exact = 0.0, size = 0.0, tiny = w->n_in * 0x1p-149;
        for (int32_t i = 0; i < w->n_in; i++) {
            const double term = (double)weft_matrix_at(w, o, i) * (double)x[i];
            exact += term;
            size += fabs(term);
            if (pair) tiny += fabs((double)weft_matrix_at(w, o, i)) * 0x1p-134;
        }
        double bound = (2 * terms + 2 * blocks + 2) * weft_u * size + tiny;
        if (pair) bound = bound * (1.0 + 0x1p-7) + 0x1p-16 * size;
        if (round == WEFT_ROUND_BF16)
            bound += 0x1p-8 * (fabs(exact) + bound) + 0x1p-134;
        ck_assert_msg(fabs((double)y[o] - exact) <= bound,
                      "%s: output %d is %.9g, exact %.17g, bound %.3g", what,
                      (int)o, (double)y[o], exact, bound);
    }
}

/* A row against what it has to be, and the NaN between rows untouched. */
static inline void assert_row(const weft_matrix *w, const float *x,
                              const float *y, const float *reference,
                              product_form form, weft_round round,
                              const char *what)
{
    if (on_tensor_cores(w->dtype, form)) {
        assert_row_near(w, x, y, form, round, what);
        return;
    }
    for (int32_t o = 0; o < w->n_out; o++)
        ck_assert_msg(same_bytes(&y[o], &reference[o], sizeof *y),
                      "%s: output %d is %.9g, not %.9g", what, (int)o,
                      (double)y[o], (double)reference[o]);
}

/* Floats from the first row to the end of the last one's data. */
static inline int64_t span_of(int32_t n_row, int64_t stride, int32_t width)
{
    return n_row == 0 ? 0 : (n_row - 1) * stride + width;
}

/* n floats on the device, `shift` floats into a block of its own. */
static inline float *floats_put(const float *from, int64_t n, int32_t shift)
{
    float *const block = weft_kit_nans(n + shift + 1);
    memcpy(block + shift, from, (size_t)n * sizeof *block);
    float *const at =
        device_kit_put(block, (size_t)(n + shift) * sizeof *block);
    weft_mem_free(block);
    return at + shift;
}

#endif
