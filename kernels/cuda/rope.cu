// rope.cu - the table of angles of a step, and the rotation of heads by it. The
// bits are those of the CPU's paths.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/quad.cuh"

namespace weft
{

namespace
{

enum { TABLE_THREADS = 64 };

// In double, once a step and position: fp32 cannot reduce angles as large as
// 2^24 by quarter turns.
__global__ void __launch_bounds__(TABLE_THREADS)
    rope_angles(weft_rope_table op, int64_t n)
{
    const int64_t at =
        static_cast<int64_t>(blockIdx.x) * TABLE_THREADS + threadIdx.x;
    if (at >= n) return;
    const int64_t r = at / op.n_freq;
    const int32_t i = static_cast<int32_t>(at - r * op.n_freq);
    float s, c;
    sincos_of(static_cast<float>(op.positions[r]) * op.inv_freq[i], &s, &c);
    op.cos_out[at] = c * op.factor;
    op.sin_out[at] = s * op.factor;
}

struct pair {
    float first, second;
};

__device__ __forceinline__ pair rotate(float a, float b, float c, float s,
                                       weft_round round)
{
    return {round_to(fmaf(a, c, -product(b, s)), round),
            round_to(fmaf(a, s, product(b, c)), round)};
}

// Pairs [i, i + n) of one head, n up to 4; wide: all of it is aligned.
__device__ __forceinline__ void rotate_halves(const weft_rope &op,
                                              const float *x, float *y,
                                              const quad &c, const quad &s,
                                              int32_t n, bool wide)
{
    quad a = load_quad(x, n, wide), b = load_quad(x + op.n_freq, n, wide);
#pragma unroll
    for (int32_t k = 0; k < 4; k++) {
        const pair p = rotate(a.v[k], b.v[k], c.v[k], s.v[k], op.round);
        a.v[k] = p.first;
        b.v[k] = p.second;
    }
    store_quad(y, a, n, wide);
    store_quad(y + op.n_freq, b, n, wide);
}

__device__ __forceinline__ void rotate_neighbours(const weft_rope &op,
                                                  const float *x, float *y,
                                                  const quad &c, const quad &s,
                                                  int32_t n, bool wide)
{
#pragma unroll
    for (int32_t half = 0; half < 2; half++) {
        const int32_t left = 2 * n - 4 * half;
        quad v = load_quad(x + 4 * half, left, wide);
#pragma unroll
        for (int32_t k = 0; k < 2; k++) {
            const int32_t f = 2 * half + k;
            const pair p =
                rotate(v.v[2 * k], v.v[2 * k + 1], c.v[f], s.v[f], op.round);
            v.v[2 * k] = p.first;
            v.v[2 * k + 1] = p.second;
        }
        store_quad(y + 4 * half, v, left, wide);
    }
}

// A thread has four pairs of one head: `quads` threads a head.
__global__ void __launch_bounds__(quad_threads)
    rope_rows(weft_rope op, int32_t quads, bool wide)
{
    const int64_t r = quad_row();
    const int32_t unit =
        static_cast<int32_t>(blockIdx.y * blockDim.x + threadIdx.x);
    const int32_t h = unit / quads, i = 4 * (unit - h * quads);
    if (h >= op.n_head) return;
    const int32_t n = op.n_freq - i;
    const bool wide_table = wide && op.n_freq % 4 == 0;
    const quad c = load_quad(op.cos + r * op.n_freq + i, n, wide_table);
    const quad s = load_quad(op.sin + r * op.n_freq + i, n, wide_table);
    const float *const x = op.x + r * op.x_stride + h * op.x_head_stride;
    float *const y = op.y + r * op.y_stride + h * op.y_head_stride;
    if (op.interleave)
        rotate_neighbours(op, x + 2 * i, y + 2 * i, c, s, n, wide);
    else
        rotate_halves(op, x + i, y + i, c, s, n, wide_table);
}

} // namespace

void launch_rope_table(queue *q, const weft_rope_table *op)
{
    const int64_t n = static_cast<int64_t>(op->n_row) * op->n_freq;
    if (n <= 0) return;
    const uint32_t blocks =
        static_cast<uint32_t>((n + TABLE_THREADS - 1) / TABLE_THREADS);
    WEFT_LAUNCH(rope_angles, dim3(blocks), dim3(TABLE_THREADS), 0, q->stream,
                *op, n);
    note(q, "rope_table");
}

void launch_rope(queue *q, const weft_rope *op)
{
    if (op->n_row <= 0 || op->n_head <= 0 || op->n_freq <= 0) return;
    const int32_t quads = (op->n_freq + 3) / 4;
    const quad_shape shape = quad_shape_of(op->n_row, 4 * quads * op->n_head);
    const bool wide = are_wide(op->x, op->x_stride) &&
                      are_wide(op->y, op->y_stride) &&
                      (op->x_head_stride | op->y_head_stride) % 4 == 0 &&
                      are_wide(op->cos, 0) && are_wide(op->sin, 0);
    WEFT_LAUNCH(rope_rows, shape.grid, shape.block, 0, q->stream, *op, quads,
                wide);
    note(q, "rope");
}

} // namespace weft
