// launch.h - the ops of kernels/ops.h as they begin on a stream.
//
// One function an op, each in the .cu file of its family; kernels/cuda/table.cc
// puts them into the table that the library hands out. An op's struct is as
// kernels/device.h says: pointers inside are device memory. A launch never
// waits and never fails by itself: what the runtime says is kept in the queue
// (the first one, with the op's name), and sync tells it.
//
// Errors, shapes, orders of sums: kernels/ops.h; what is different here is said
// at each function. All sums are in fixed orders that depend on the row alone.
#ifndef WEFT_KERNELS_CUDA_LAUNCH_H
#define WEFT_KERNELS_CUDA_LAUNCH_H

#include <cublasLt.h>
#include <cuda_runtime.h>

#include "kernels/device.h"

namespace weft
{

// What one bound thread has: a stream, and scratch that every op may use whole
// (the next op on the stream begins after).
struct queue {
    cudaStream_t stream;
    unsigned char *scratch; // 256-byte aligned
    int64_t scratch_bytes;
    cublasLtHandle_t blas;
    int32_t sm, n_processors;
    // The first thing that went wrong.
    cudaError_t error;
    char failed[64]; // the op
};

// After every launch: keeps what cudaGetLastError says.
void note(queue *q, const char *op);

void launch_gemm(queue *, const weft_gemm *list, int32_t n);
void launch_grouped(queue *, const weft_grouped *);
void launch_rms_norm(queue *, const weft_rms_norm *);
void launch_layer_norm(queue *, const weft_layer_norm *);
void launch_rope_table(queue *, const weft_rope_table *);
void launch_rope(queue *, const weft_rope *);
void launch_silu_mul(queue *, const weft_silu_mul *);
void launch_gate(queue *, const weft_gate *);
void launch_add(queue *, const weft_add *);
void launch_embed(queue *, const weft_embed *);
void launch_move(queue *, const weft_move *);
void launch_store(queue *, const weft_store *);
void launch_attn(queue *, const weft_attn *);
void launch_index_select(queue *, const weft_index_select *);
void launch_route(queue *, const weft_route *);
void launch_group(queue *, const weft_group *);
void launch_combine(queue *, const weft_combine *);
void launch_vocab(queue *, const weft_vocab *);

} // namespace weft

#endif
