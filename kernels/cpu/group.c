#include "kernels/cpu/group.h"

#include <string.h>

void weft_group_pairs(weft_threads *threads, const weft_group *op)
{
    (void)threads; /* a step's pairs are few */
    int32_t *const first = op->first_out;
    const int32_t n_pairs = op->n_row * op->top_k;
    memset(first, 0, ((size_t)op->n_expert + 1) * sizeof *first);
    for (int32_t i = 0; i < n_pairs; i++) first[op->experts[i] + 1]++;
    for (int32_t e = 0; e < op->n_expert; e++) first[e + 1] += first[e];
    for (int32_t i = 0; i < n_pairs; i++) {
        const int32_t at = first[op->experts[i]]++;
        op->rows_out[at] = i / op->top_k;
        op->row_of_out[i] = at;
    }
    for (int32_t e = op->n_expert; e > 0; e--) first[e] = first[e - 1];
    first[0] = 0;
}
