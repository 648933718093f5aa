/* attn.h - what the tests of a device's attention share: a scene is one op and
 * all that it reads, made from numbers, so that the same rows can be had in
 * other company and with other pages in memory.
 *
 * Everything that no row may see is NaN: rows that are not visible, what lies
 * between rows, queries and results. A page that is not held is far outside of
 * every block. Blocks end where their data ends. */
#ifndef WEFT_TESTS_CUDA_ATTN_H
#define WEFT_TESTS_CUDA_ATTN_H

#include "kernels/ops.h"

enum { ATTN_ROWS = 32, ATTN_SEQS = 2 };

/* A row of a step. `tag` says which queries it has, whatever its place. */
struct attn_spec {
    int32_t tag, seq, position, first;
    /* Of the positions [first, position] every `step`-th as an explicit list;
     * 0: no list. A list of a first beyond the position is empty. */
    int32_t step;
};

struct attn_scene {
    uint64_t seed;
    weft_dtype dtype;
    weft_round round;
    int32_t width, value_width, n_head;
    float scale;
    int32_t page_tokens, row_pad; /* elements between rows of the cache */
    uint64_t page_seed;           /* of the order of pages in memory */
    int32_t n_keys_max;           /* 0: as many as the longest row has */
    int32_t n_row;
    struct attn_spec rows[ATTN_ROWS];
};

int32_t attn_n_keys(const struct attn_spec *row);
/* Key number j of a row. */
int32_t attn_position(const struct attn_spec *row, int32_t j);
/* Channel i of a position of a sequence, and of a query. */
float attn_cached(const struct attn_scene *s, int32_t seq, int32_t position,
                  int32_t i);
float attn_query(const struct attn_scene *s, int32_t tag, int32_t head,
                 int32_t i);

/* Results, [n_row, n_head, value_width] without gaps; the caller frees them.
 * What lies between rows is seen to stay as it was. */
float *attn_on_device(const struct attn_scene *s);
float *attn_by_reference(const struct attn_scene *s);

/* Results against softmax in double precision. */
void attn_assert_exact(const struct attn_scene *s, const float *got,
                       const char *what);
/* Against the reference, whose bound adds to that of the device. */
void attn_assert_reference(const struct attn_scene *s, const float *got,
                           const char *what);

#endif
