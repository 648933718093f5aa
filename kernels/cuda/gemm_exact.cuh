// gemm_exact.cuh - products in fp32, the same bits as the CPU paths: one chain
// of fused multiply-adds over rising inputs for each output (kernels/ops.h), so
// an output belongs to one thread from first to last and tiles are free.
//
// For activations that are not bfloat16, and for weights that bfloat16 would
// not hold (F32, F16). Weights and activations are staged as they are, through
// a ring of stages, and become fp32 as a thread reads them, four inputs at a
// time. The products with zeros that fill a stage are left out: they could turn
// a sum of -0 into 0.
#ifndef WEFT_KERNELS_CUDA_GEMM_EXACT_CUH
#define WEFT_KERNELS_CUDA_GEMM_EXACT_CUH

#include "kernels/cuda/gemm_tile.cuh"

namespace weft
{

// Both small floats are put into the fields of an fp32 and moved to its range
// by a power of two, which is exact, subnormals too.
__device__ inline float to_float(float v)
{
    return v;
}
__device__ inline float to_float(f16 v)
{
    const uint32_t sign = (v.bits & 0x8000U) << 16;
    const uint32_t rest = v.bits & 0x7fffU;
    if (rest >= 0x7c00U) return float_of(sign | 0x7f800000U | (rest << 13));
    return float_of(sign | (rest << 13)) * 0x1p112F;
}
__device__ inline float to_float(f8_e4m3 v)
{
    const uint32_t b = v.bits;
    return float_of((b & 0x80U) << 24 | (b & 0x7fU) << 20) * 0x1p120F;
}

// Four neighbouring elements of a staged row as fp32; T is aligned to four.
template <class T>
__device__ inline void read4(float to[4], const unsigned char *from)
{
    struct alignas(4 * sizeof(T)) four {
        T e[4];
    };
    const four v = *reinterpret_cast<const four *>(from);
#pragma unroll
    for (int32_t i = 0; i < 4; i++) to[i] = to_float(v.e[i]);
}

// OUTS x ROWS outputs a block, TO x TR a thread; STEP inputs a stage.
template <int OUTS, int ROWS, int TO, int TR, int STEP, int STAGES>
struct exact_shape {
    static constexpr int outs = OUTS, rows = ROWS, step = STEP;
    static constexpr int stages = STAGES, to = TO, tr = TR;
    static constexpr int across = OUTS / TO; // threads along outputs
    static constexpr int threads = across * (ROWS / TR);
    static constexpr int x_pitch = STEP * 4;
    static constexpr int stage_bytes = (OUTS + ROWS) * STEP * 4;
    static constexpr int bytes = stage_bytes * STAGES;
    static_assert(WEFT_SCALE_BLOCK % OUTS == 0 && WEFT_SCALE_BLOCK % STEP == 0,
                  "a stage lies in one block of scales");
};

using exact_few = exact_shape<32, 4, 1, 1, 64, 4>;
using exact_many = exact_shape<64, 64, 4, 4, 32, 3>;

template <class S, class T>
__device__ inline void exact_stage(unsigned char *shared, const product &p,
                                   place at, int32_t step)
{
    constexpr int32_t ELEM = sizeof(T), PITCH = S::step * ELEM;
    unsigned char *const to = shared + step % S::stages * S::stage_bytes;
    stage<S::outs, PITCH, S::threads, ELEM>(to, staged_weights(p, ELEM), at.out,
                                            step * PITCH);
    stage<S::rows, S::x_pitch, S::threads, 4>(
        to + S::outs * S::step * 4, staged_x(p), at.row, step * S::x_pitch);
}

// sum += the products of inputs [k, k + n) of a stage, n at most 4.
template <class S, class T>
__device__ inline void exact_four(float sum[S::to][S::tr],
                                  const unsigned char *stage, float scale,
                                  int32_t k, int32_t n)
{
    constexpr int32_t PITCH = S::step * static_cast<int32_t>(sizeof(T));
    const unsigned char *const xs = stage + S::outs * S::step * 4;
    const int32_t thread = static_cast<int32_t>(threadIdx.x);
    const int32_t byte = k * static_cast<int32_t>(sizeof(T));
    float x[S::tr][4];
#pragma unroll
    for (int32_t r = 0; r < S::tr; r++) {
        const int32_t row = thread / S::across + r * (S::rows / S::tr);
        read4<float>(x[r], xs + chunk_at<S::x_pitch>(row, k / 4));
    }
#pragma unroll
    for (int32_t o = 0; o < S::to; o++) {
        const int32_t out = thread % S::across + o * S::across;
        float w[4];
        read4<T>(w, stage + chunk_at<PITCH>(out, byte / 16) + byte % 16);
#pragma unroll
        for (int32_t i = 0; i < 4; i++) {
            if (sizeof(T) == 1) w[i] = w[i] * scale;
#pragma unroll
            for (int32_t r = 0; r < S::tr; r++)
                if (i < n) sum[o][r] = fmaf(w[i], x[r][i], sum[o][r]);
        }
    }
}

template <class S, class T>
__device__ inline void exact_step(float sum[S::to][S::tr],
                                  const unsigned char *stage, float scale,
                                  int32_t n)
{
    if (n >= S::step) {
#pragma unroll 4
        for (int32_t k = 0; k < S::step; k += 4)
            exact_four<S, T>(sum, stage, scale, k, 4);
        return;
    }
#pragma unroll 1
    for (int32_t k = 0; k < n; k += 4)
        exact_four<S, T>(sum, stage, scale, k, n - k);
}

// One tile; every thread of the block, `shared` has S::bytes. Ends with all
// copies landed and `shared` free.
template <class S, class T>
__device__ inline void exact_tile(const product &p, place at,
                                  unsigned char *shared)
{
    const int32_t steps = tiles_of(p.n_in, S::step);
    const int32_t across = tiles_of(p.n_in, WEFT_SCALE_BLOCK);
    float sum[S::to][S::tr] = {};
#pragma unroll 1
    for (int32_t s = 0; s < S::stages - 1; s++) {
        if (s < steps) exact_stage<S, T>(shared, p, at, s);
        cp_async_commit();
    }
#pragma unroll 1
    for (int32_t s = 0; s < steps; s++) {
        cp_async_wait<S::stages - 2>();
        __syncthreads(); // for stage s, and after s - 1
        if (s + S::stages - 1 < steps)
            exact_stage<S, T>(shared, p, at, s + S::stages - 1);
        cp_async_commit();
        float scale = 1.0F;
        if (sizeof(T) == 1)
            scale = p.scales[at.out / WEFT_SCALE_BLOCK * across +
                             s * S::step / WEFT_SCALE_BLOCK];
        exact_step<S, T>(sum, shared + s % S::stages * S::stage_bytes, scale,
                         p.n_in - s * S::step);
    }
    cp_async_wait<0>();
    __syncthreads();
    const int32_t thread = static_cast<int32_t>(threadIdx.x);
#pragma unroll
    for (int32_t r = 0; r < S::tr; r++)
#pragma unroll
        for (int32_t o = 0; o < S::to; o++)
            store_y(p, at.row + thread / S::across + r * (S::rows / S::tr),
                    at.out + thread % S::across + o * S::across, sum[o][r]);
}

template <class S>
__device__ inline void exact_any(const product &p, place at,
                                 unsigned char *shared)
{
    switch (p.dtype) {
    case WEFT_F32: exact_tile<S, float>(p, at, shared); break;
    case WEFT_BF16: exact_tile<S, bf16>(p, at, shared); break;
    case WEFT_F16: exact_tile<S, f16>(p, at, shared); break;
    default: exact_tile<S, f8_e4m3>(p, at, shared); break;
    }
}

} // namespace weft

#endif
