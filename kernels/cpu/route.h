/* route.h - from experts' scores to a choice and its weights.
 * Threads: any, on rows of their own. */
#ifndef WEFT_KERNELS_CPU_ROUTE_H
#define WEFT_KERNELS_CPU_ROUTE_H

#include "kernels/ops.h"

/* Fill row `row` of experts_out and weights_out, given the sigmoid or softmax
 * of its logits. */
void weft_route_choose(const weft_route *op, const float *scores, int32_t row);

#endif
