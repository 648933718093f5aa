// dense.h - large products with bfloat16 weights by cuBLASLt.
//
// A row must have the same bits whatever the batch, and cuBLASLt promises that
// of no two shapes. So one algorithm is chosen for each (n_out, n_in), for a
// fixed number of rows, without split sums, and is then used for every number
// of rows; whether a product goes this way depends on its weights and strides
// alone. What is left to trust is that an algorithm's kernel adds up each
// output in the same order in every tile. The library has a flag for just that,
// which is set, but calls it experimental, and only a device can show it: until
// one has (tests/cuda/test_cuda_gemm.c of a build with WEFT_CUDA_DENSE),
// products stay with gemm.cu, and libweft_cuda.so needs no cuBLASLt, a library
// of half a gigabyte. A build that uses it is another identity of numbers.
#ifndef WEFT_KERNELS_CUDA_DENSE_H
#define WEFT_KERNELS_CUDA_DENSE_H

#include "kernels/cuda/launch.h"

namespace weft
{

enum : int32_t {
    DENSE_SIDE_MIN = 1024, // outputs and inputs of what pays
    DENSE_ROWS = 256,      // that an algorithm is chosen for
    DENSE_PLANS_MAX = 64,  // shapes of a process; more stay with gemm.cu
};

// What is decided of a shape of weights, on one kind of device.
struct dense_plan {
    int32_t sm, n_processors, n_out, n_in;
    bool is_refused; // no algorithm keeps the conditions above
    cublasLtMatmulAlgo_t algo;
};

// The plans of a thread; zeros to begin with.
struct dense_plans {
    dense_plan plans[DENSE_PLANS_MAX];
    int32_t n;
};

// Begins the product. false: it is not one of these and nothing was begun; the
// answer is the same for any n_row. What cuBLASLt refuses later than that is
// kept in the queue: another kernel's bits would be worse than an error.
bool launch_dense(queue *q, dense_plans *plans, const weft_gemm &g);

} // namespace weft

#endif
