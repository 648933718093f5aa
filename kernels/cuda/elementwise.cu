// elementwise.cu - ops whose elements know nothing of each other: gates, the
// residual stream, the embedding's rows, and rows on their way into pages or to
// another place. A thread has four elements of a row; the bits are those of the
// CPU's paths.
#include "kernels/cuda/f8.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/quad.cuh"
#include "kernels/cuda/reduce.cuh"

namespace weft
{

namespace
{

// 1 / (1 + exp(-z)) is sigmoid(z) as one_over, z / (1 + exp(-z)) is silu(z).
__device__ __forceinline__ float over_sigmoid(float numerator, float z)
{
    return numerator / (1.0f + exp_of(-z));
}

__global__ void __launch_bounds__(quad_threads)
    silu_mul_rows(weft_silu_mul op, bool wide)
{
    const int64_t r = quad_row();
    const int32_t first = quad_first(), n = op.width - first;
    if (n <= 0) return;
    const quad a = load_quad(op.a + r * op.a_stride + first, n, wide);
    const quad b = load_quad(op.b + r * op.b_stride + first, n, wide);
    quad y;
#pragma unroll
    for (int32_t i = 0; i < 4; i++)
        y.v[i] = round_to(over_sigmoid(a.v[i], a.v[i]) * b.v[i], op.round);
    store_quad(op.y + r * op.y_stride + first, y, n, wide);
}

__global__ void __launch_bounds__(quad_threads)
    gate_rows(weft_gate op, bool wide)
{
    const int64_t r = quad_row();
    const int32_t first = quad_first();
    const int32_t n = op.n_head * op.head_width - first;
    if (n <= 0) return;
    float *const x = op.x + r * op.x_stride + first;
    quad v = load_quad(x, n, wide);
    int32_t head = -1;
    float gate = 0.0f;
#pragma unroll
    for (int32_t i = 0; i < 4; i++) {
        const int32_t of = (first + i) / op.head_width;
        if (i < n && of != head) {
            head = of;
            gate = over_sigmoid(1.0f, op.g[r * op.g_stride + head]);
        }
        v.v[i] = round_to(v.v[i] * gate, op.round);
    }
    store_quad(x, v, n, wide);
}

__global__ void __launch_bounds__(quad_threads) add_rows(weft_add op, bool wide)
{
    const int64_t r = quad_row();
    const int32_t first = quad_first(), n = op.width - first;
    if (n <= 0) return;
    float *const x = op.x + r * op.x_stride + first;
    const quad y = load_quad(op.y + r * op.y_stride + first, n, wide);
    quad v = load_quad(x, n, wide);
#pragma unroll
    for (int32_t i = 0; i < 4; i++)
        v.v[i] = round_to(v.v[i] + y.v[i], op.round);
    store_quad(x, v, n, wide);
}

__device__ __forceinline__ float half_of(uint16_t bits)
{
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
    const uint32_t exponent = (bits >> 10) & 31U, mantissa = bits & 0x3ffU;
    if (exponent == 31)
        return float_of(sign | 0x7f800000U | mantissa << 13 |
                        (mantissa != 0 ? 0x400000U : 0U));
    if (exponent == 0) {
        const float value =
            static_cast<float>(mantissa) * 5.9604644775390625e-8f;
        return sign != 0 ? -value : value;
    }
    return float_of(sign | (exponent + 112U) << 23 | mantissa << 13);
}

// e4m3 without infinities: its exponent and mantissa are those of a half 2^8
// times as small.
__device__ __forceinline__ float e4m3_of(uint8_t bits)
{
    const uint32_t sign = static_cast<uint32_t>(bits & 0x80U);
    if ((bits & 0x7fU) == 0x7fU) return float_of(sign << 24 | 0x7fc00000U);
    return half_of(static_cast<uint16_t>(sign << 8 | (bits & 0x7fU) << 7)) *
           256.0f;
}

// One table type each; `at` counts elements.
struct table_f32 {
    static __device__ __forceinline__ float at(const void *table, int64_t at)
    {
        return static_cast<const float *>(table)[at];
    }
};
struct table_bf16 {
    static __device__ __forceinline__ float at(const void *table, int64_t at)
    {
        return to_float(static_cast<const bf16 *>(table)[at]);
    }
};
struct table_f16 {
    static __device__ __forceinline__ float at(const void *table, int64_t at)
    {
        return half_of(static_cast<const uint16_t *>(table)[at]);
    }
};
struct table_e4m3 {
    static __device__ __forceinline__ float at(const void *table, int64_t at)
    {
        return e4m3_of(static_cast<const uint8_t *>(table)[at]);
    }
};

// Neighbours in a warp read neighbours of the table, whose rows may start
// anywhere; so each element is an access of its own.
template <class Table>
__global__ void __launch_bounds__(quad_threads) embed_rows(weft_embed op)
{
    const int64_t r = quad_row();
    const int64_t from = static_cast<int64_t>(op.ids[r]) * op.width;
    float *const y = op.y + r * op.y_stride;
    const int32_t threads = static_cast<int32_t>(blockDim.x);
    const int32_t first = static_cast<int32_t>(4 * blockIdx.y) * threads +
                          static_cast<int32_t>(threadIdx.x);
#pragma unroll
    for (int32_t k = 0; k < 4; k++) {
        const int32_t i = first + k * threads;
        if (i < op.width) y[i] = Table::at(op.table, from + i);
    }
}

// Where row r goes; NULL if its page is not held, or it is of no sequence.
__device__ __forceinline__ unsigned char *page_row(const weft_store &op,
                                                   int64_t r)
{
    const int64_t *const pages = op.rows[r].pages;
    const int32_t position = op.rows[r].position;
    if (position < 0) return nullptr;
    const int64_t page = pages[position / op.to.page_tokens];
    if (page < 0) return nullptr;
    return op.to.base + page + op.to.layer_offset +
           static_cast<int64_t>(position % op.to.page_tokens) * op.to.row_bytes;
}

__device__ __forceinline__ void store_bf16(unsigned char *row, const quad &q,
                                           int32_t first, int32_t n)
{
    uint16_t *const to = reinterpret_cast<uint16_t *>(row) + first;
    quad16 bits;
#pragma unroll
    for (int32_t i = 0; i < 4; i++) bits.v[i] = to_bf16(q.v[i]).bits;
    if (n >= 4 && is_aligned(to, 8)) {
        *reinterpret_cast<quad16 *>(to) = bits;
        return;
    }
#pragma unroll
    for (int32_t i = 0; i < 4; i++)
        if (i < n) to[i] = bits.v[i];
}

__global__ void __launch_bounds__(quad_threads)
    store_rows(weft_store op, bool wide)
{
    const int64_t r = quad_row();
    const int32_t first = quad_first(), n = op.width - first;
    if (n <= 0) return;
    unsigned char *const row = page_row(op, r);
    if (row == nullptr) return;
    const quad x = load_quad(op.x + r * op.x_stride + first, n, wide);
    if (op.to.dtype == WEFT_BF16) {
        store_bf16(row, x, first, n);
        return;
    }
    float *const to = reinterpret_cast<float *>(row) + first;
    store_quad(to, x, n, is_aligned(to, 16));
}

enum { KEY_WARPS = 4 };

__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

// Index keys as codes and a scale: a warp a row. As in store_rows, a thread
// has four elements, but of every 128.
__global__ void __launch_bounds__(KEY_WARPS * 32)
    store_codes(weft_store op, bool wide)
{
    const int64_t r =
        static_cast<int64_t>(blockIdx.x) * KEY_WARPS + warp_index();
    if (r >= op.n_row) return;
    unsigned char *const row = page_row(op, r);
    if (row == nullptr) return;
    const float *const x = op.x + r * op.x_stride;
    // Bits of magnitudes: numbers in their order, then infinity and NaN.
    uint32_t largest = 0;
    for (int32_t d = 4 * lane_index(); d < op.width; d += 128) {
        const quad v = load_quad(x + d, op.width - d, wide);
#pragma unroll
        for (int32_t i = 0; i < 4; i++)
            largest = larger(largest, bits_of(v.v[i]) & 0x7fffffffU);
    }
    largest = static_cast<uint32_t>(
        warp_max(static_cast<unsigned long long>(largest)));
    const bool finite = largest < 0x7f800000U;
    const uint32_t exponent = scale_exponent(largest);
    const float inverse = float_of((254U - exponent) << 23);
    for (int32_t d = 4 * lane_index(); d < op.width; d += 128) {
        const quad v = load_quad(x + d, op.width - d, wide);
        uint32_t codes = 0;
#pragma unroll
        for (int32_t i = 0; i < 4; i++)
            codes |= code_of(v.v[i] * inverse) << 8 * i;
        *reinterpret_cast<uint32_t *>(row + d) = finite ? codes : 0;
    }
    if (lane_index() == 0)
        *reinterpret_cast<uint32_t *>(row + op.width) =
            finite ? exponent << 23 : 0x7fc00000U;
}

// What it copies it does not look at.
__global__ void __launch_bounds__(quad_threads)
    move_rows(weft_move op, bool wide)
{
    const int64_t r = quad_row();
    const int32_t first = quad_first(), n = op.width - first;
    if (n <= 0) return;
    const int64_t from = op.x_rows == nullptr ? r : op.x_rows[r];
    const int64_t to = op.y_rows == nullptr ? r : op.y_rows[r];
    store_quad(op.y + to * op.y_stride + first,
               load_quad(op.x + from * op.x_stride + first, n, wide), n, wide);
}

} // namespace

void launch_silu_mul(queue *q, const weft_silu_mul *op)
{
    if (op->n_row <= 0) return;
    const quad_shape shape = quad_shape_of(op->n_row, op->width);
    const bool wide = are_wide(op->a, op->a_stride) &&
                      are_wide(op->b, op->b_stride) &&
                      are_wide(op->y, op->y_stride);
    WEFT_LAUNCH(silu_mul_rows, shape.grid, shape.block, 0, q->stream, *op,
                wide);
    note(q, "silu_mul");
}

void launch_gate(queue *q, const weft_gate *op)
{
    if (op->n_row <= 0) return;
    const quad_shape shape =
        quad_shape_of(op->n_row, op->n_head * op->head_width);
    WEFT_LAUNCH(gate_rows, shape.grid, shape.block, 0, q->stream, *op,
                are_wide(op->x, op->x_stride));
    note(q, "gate");
}

void launch_add(queue *q, const weft_add *op)
{
    if (op->n_row <= 0) return;
    const quad_shape shape = quad_shape_of(op->n_row, op->width);
    const bool wide =
        are_wide(op->x, op->x_stride) && are_wide(op->y, op->y_stride);
    WEFT_LAUNCH(add_rows, shape.grid, shape.block, 0, q->stream, *op, wide);
    note(q, "add");
}

void launch_embed(queue *q, const weft_embed *op)
{
    if (op->n_row <= 0) return;
    const quad_shape shape = quad_shape_of(op->n_row, op->width);
    void (*const kernel)(weft_embed) =
        op->dtype == WEFT_F32    ? embed_rows<table_f32>
        : op->dtype == WEFT_BF16 ? embed_rows<table_bf16>
        : op->dtype == WEFT_F16  ? embed_rows<table_f16>
                                 : embed_rows<table_e4m3>;
    WEFT_LAUNCH(kernel, shape.grid, shape.block, 0, q->stream, *op);
    note(q, "embed");
}

void launch_store(queue *q, const weft_store *op)
{
    if (op->n_row <= 0) return;
    const quad_shape shape = quad_shape_of(op->n_row, op->width);
    const bool wide = are_wide(op->x, op->x_stride);
    if (op->to.dtype == WEFT_F8_E4M3) {
        const uint32_t blocks =
            (static_cast<uint32_t>(op->n_row) + KEY_WARPS - 1) / KEY_WARPS;
        WEFT_LAUNCH(store_codes, dim3(blocks), dim3(KEY_WARPS * 32), 0,
                    q->stream, *op, wide);
    } else {
        WEFT_LAUNCH(store_rows, shape.grid, shape.block, 0, q->stream, *op,
                    wide);
    }
    note(q, "store");
}

void launch_move(queue *q, const weft_move *op)
{
    if (op->n_row <= 0) return;
    const quad_shape shape = quad_shape_of(op->n_row, op->width);
    const bool wide =
        are_wide(op->x, op->x_stride) && are_wide(op->y, op->y_stride);
    WEFT_LAUNCH(move_rows, shape.grid, shape.block, 0, q->stream, *op, wide);
    note(q, "move");
}

} // namespace weft
