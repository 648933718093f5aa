/* rows.h - what the tests of a device's simple ops share: blocks on the device
 * that may begin off the alignment of wide accesses, and equality of results.
 */
#ifndef WEFT_TESTS_CUDA_ROWS_H
#define WEFT_TESTS_CUDA_ROWS_H

#include <string.h>

#include "node/base/mem.h"
#include "tests/support/device_kit.h"
#include "tests/support/kernel_suite.h"

/* Floats from the first of n_row rows to the end of the last one's data. */
static inline int64_t rows_span(int32_t n_row, int64_t stride, int64_t width)
{
    return (n_row - 1) * stride + width;
}

/* A copy of n floats on the device, `shift` floats into a block of its own. */
static inline float *rows_put(const float *from, int64_t n, int32_t shift)
{
    float *const block = weft_kit_nans(n + shift);
    memcpy(block + shift, from, (size_t)n * sizeof *block);
    float *const at = device_kit_put(block, (size_t)(n + shift) * sizeof *at);
    weft_mem_free(block);
    return at + shift;
}

static inline void rows_free(float *at, int32_t shift)
{
    device_kit_free(at - shift);
}

/* n floats of the device, in a host block. */
static inline float *rows_get(const float *at, int64_t n)
{
    float *const got = weft_kit_nans(n);
    device_kit_get(got, at, (size_t)n * sizeof *got);
    return got;
}

/* Equal bits; which ones a NaN has is nobody's promise. */
static inline void rows_assert_same(const float *got, const float *expected,
                                    int64_t n, const char *what)
{
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(memcmp(got + i, expected + i, sizeof *got) == 0 ||
                          (isnan(got[i]) && isnan(expected[i])),
                      "%s: element %lld is %.9g, not %.9g", what, (long long)i,
                      (double)got[i], (double)expected[i]);
}

#endif
