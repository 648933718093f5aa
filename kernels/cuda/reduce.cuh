// reduce.cuh - sums and maxima over the threads of a warp or a block, in orders
// that the thread numbers alone decide. Every lane of the warp takes part.
//
// The exchanges are butterflies: at distance d lane l adds what lane l ^ d has.
// Addition commutes, so all lanes end with the same bits and nothing has to be
// handed back.
#ifndef WEFT_KERNELS_CUDA_REDUCE_CUH
#define WEFT_KERNELS_CUDA_REDUCE_CUH

#include "kernels/cuda/device.cuh"

namespace weft
{

__device__ __forceinline__ int32_t thread_index()
{
    return static_cast<int32_t>(threadIdx.x);
}
__device__ __forceinline__ int32_t lane_index()
{
    return static_cast<int32_t>(threadIdx.x & 31U);
}
__device__ __forceinline__ int32_t warp_index()
{
    return static_cast<int32_t>(threadIdx.x >> 5);
}

// Over groups of WIDTH lanes, a power of two.
template <int WIDTH> __device__ __forceinline__ float lanes_sum(float v)
{
#pragma unroll
    for (int d = WIDTH / 2; d >= 1; d /= 2)
        v += __shfl_xor_sync(WEFT_FULL_MASK, v, d);
    return v;
}

// The tree of ops.h over its 16 virtual lanes, which are lanes 0 to 15 here;
// all 32 get the sum.
__device__ __forceinline__ float tree_sum(float v)
{
    return __shfl_sync(WEFT_FULL_MASK, lanes_sum<16>(v), 0);
}

__device__ __forceinline__ float warp_max(float v)
{
#pragma unroll
    for (int d = 16; d >= 1; d /= 2)
        v = fmaxf(v, __shfl_xor_sync(WEFT_FULL_MASK, v, d));
    return v;
}

__device__ __forceinline__ unsigned long long warp_max(unsigned long long v)
{
#pragma unroll
    for (int d = 16; d >= 1; d /= 2) {
        const unsigned long long other = __shfl_xor_sync(WEFT_FULL_MASK, v, d);
        v = other > v ? other : v;
    }
    return v;
}

__device__ __forceinline__ int32_t warp_sum(int32_t v)
{
#pragma unroll
    for (int d = 16; d >= 1; d /= 2) v += __shfl_xor_sync(WEFT_FULL_MASK, v, d);
    return v;
}

// Over a block of THREADS, a power of two from 32; all threads get the sum.
// `partial` is shared memory of THREADS / 32 floats that nobody else uses until
// the block's next barrier.
template <int THREADS>
__device__ __forceinline__ float block_sum(float v, float *partial)
{
    constexpr int warps = THREADS / 32;
    v = lanes_sum<32>(v);
    if (warps == 1) return v;
    if (lane_index() == 0) partial[warp_index()] = v;
    __syncthreads();
    return lanes_sum<warps>(partial[lane_index() % warps]);
}

} // namespace weft

#endif
