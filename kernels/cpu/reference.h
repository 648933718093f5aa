/* reference.h - what the two files of the reference share. Threads: any. */
#ifndef WEFT_KERNELS_CPU_REFERENCE_H
#define WEFT_KERNELS_CPU_REFERENCE_H

#include "kernels/ops.h"

float weft_reference_round(float value, weft_round round);

/* The tree of ops.h over lane[0..16), which it overwrites. */
float weft_reference_tree(float *lane);

void weft_reference_store(weft_threads *threads, const weft_store *op);
void weft_reference_attn(weft_threads *threads, const weft_attn *op);
void weft_reference_index_select(weft_threads *threads,
                                 const weft_index_select *op);

#endif
