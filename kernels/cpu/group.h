/* group.h - pairs by expert, by counting: the same on all paths.
 * Threads: one. */
#ifndef WEFT_KERNELS_CPU_GROUP_H
#define WEFT_KERNELS_CPU_GROUP_H

#include "kernels/ops.h"

void weft_group_pairs(weft_threads *threads, const weft_group *op);

#endif
