/* index.h - what the tests of a device's indexer share: an op on host memory
 * with keys on shuffled pages, and its choice by the device and by the
 * reference. What lies between rows, pages and layers is NaN. */
#ifndef WEFT_TESTS_CUDA_INDEX_H
#define WEFT_TESTS_CUDA_INDEX_H

#include "tests/support/device_kit.h"
#include "tests/support/kernel_suite.h"

enum { INDEX_ROWS = 8, INDEX_PAD = 3 };

/* An op on host memory, and what belongs to it. */
typedef struct index_bench {
    weft_kernel_check c;
    weft_kit_pages pages;
    weft_row rows[INDEX_ROWS];
    weft_index_select op;
    int32_t n_tokens, *keys, n_keys[INDEX_ROWS];
} index_bench;

typedef struct index_shape {
    weft_dtype dtype;
    int32_t n_tokens, page_tokens, dim, n_head, top_k, n_row;
    bool whole; /* small whole numbers; else any */
    bool pair;  /* queries may be taken as pairs */
} index_shape;

void index_make(index_bench *b, uint64_t seed, const index_shape *s);
void index_free(index_bench *b);

/* Where a key is, and element i of it: a code of F8_E4M3 is set as it is and
 * read with its scale. */
unsigned char *index_key_at(const index_bench *b, int32_t position);
void index_set_key(index_bench *b, int32_t position, int32_t i, float value);
float index_get_key(const index_bench *b, int32_t position, int32_t i);
/* Of F8_E4M3. */
void index_set_scale(index_bench *b, int32_t position, float scale);

/* Rows [row, row + n) of the op on the device; keys_out [n, top_k]. */
void index_on_device(const index_bench *b, int32_t row, int32_t n,
                     int32_t *keys_out, int32_t *n_keys_out);
/* All rows, into b. */
void index_by_reference(index_bench *b);

/* Whole output buffers against b's, so that what is past the number of keys
 * stays. */
void index_assert_same(const index_bench *b, const int32_t *keys,
                       const int32_t *n_keys, const char *what);

#endif
