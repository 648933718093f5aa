/* select.h - the k best of n scores, exactly. Threads: any. */
#ifndef WEFT_KERNELS_CPU_SELECT_H
#define WEFT_KERNELS_CPU_SELECT_H

#include <stdint.h>

/* The positions of the k largest of scores[0, n), 0 <= k <= n, in rising order
 * of position. Of equal scores the lower position is taken; -0 equals +0; NaN
 * (which no sound weights make) ranks below everything. */
void weft_select_best(const float *scores, int32_t n, int32_t k,
                      int32_t *positions_out);

#endif
