// quad.cuh - rows of floats in steps of four: one 16-byte access where the row
// is aligned for it, four single ones where not and at a ragged end. Which
// thread has which elements never depends on the alignment, so neither do sums.
#ifndef WEFT_KERNELS_CUDA_QUAD_CUH
#define WEFT_KERNELS_CUDA_QUAD_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/ops.h"

namespace weft
{

struct alignas(16) quad {
    float v[4];
};
struct alignas(8) quad16 {
    uint16_t v[4];
};

// The first n of the four at p (n may be 0 or less, or above 4), zeros for the
// others. wide: p is 16-byte aligned.
__device__ __forceinline__ quad load_quad(const float *p, int32_t n, bool wide)
{
    if (wide && n >= 4) return *reinterpret_cast<const quad *>(p);
    quad q = {};
#pragma unroll
    for (int32_t i = 0; i < 4; i++)
        if (i < n) q.v[i] = p[i];
    return q;
}

__device__ __forceinline__ void store_quad(float *p, const quad &q, int32_t n,
                                           bool wide)
{
    if (wide && n >= 4) {
        *reinterpret_cast<quad *>(p) = q;
        return;
    }
#pragma unroll
    for (int32_t i = 0; i < 4; i++)
        if (i < n) p[i] = q.v[i];
}

__device__ __forceinline__ float round_to(float value, weft_round round)
{
    return round == WEFT_ROUND_BF16 ? round_bf16(value) : value;
}

// Is p aligned to a power of two?
__host__ __device__ __forceinline__ bool is_aligned(const void *p,
                                                    uintptr_t bytes)
{
    return (reinterpret_cast<uintptr_t>(p) & (bytes - 1)) == 0;
}

// May the rows at p, `stride` floats apart, be read by wide quads?
inline bool are_wide(const void *p, int64_t stride)
{
    return is_aligned(p, 16) && stride % 4 == 0;
}

// For kernels that give a thread four elements of a row: grid (row, part of the
// row), and the first element of this thread.
constexpr uint32_t quad_threads = 256;

struct quad_shape {
    dim3 grid, block;
};
inline quad_shape quad_shape_of(int32_t n_row, int32_t width)
{
    const uint32_t quads = (static_cast<uint32_t>(width) + 3) / 4;
    const uint32_t warps = (quads + 31) / 32;
    const uint32_t threads =
        warps * 32 < quad_threads ? warps * 32 : quad_threads;
    return {dim3(static_cast<uint32_t>(n_row), (quads + threads - 1) / threads),
            dim3(threads)};
}
__device__ __forceinline__ int32_t quad_first()
{
    return static_cast<int32_t>(4 * (blockIdx.y * blockDim.x + threadIdx.x));
}
__device__ __forceinline__ int64_t quad_row()
{
    return static_cast<int64_t>(blockIdx.x);
}

} // namespace weft

#endif
