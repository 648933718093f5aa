// vocab.cu - what sampling needs to know of a row of logits.
//
// Three steps, so that one long row keeps more than one processor busy: the
// largest of each segment; the sums of exponentials of each block of 1024, by
// 16 lanes (half a warp a block); and those sums in order. Sums and their order
// are those of ops.h, so results have the reference's bits.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/reduce.cuh"

namespace weft
{

namespace
{

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    LANES = 16,
    BLOCK = 1024,                      // logits of a sum
    SEGMENT = THREADS / LANES * BLOCK, // logits of a block of threads
    ROWS_MAX = 2048,                   // at a time
};

struct peak {
    float max;
    int32_t at;
    int32_t nan;
};

struct vocab_args {
    weft_vocab op;
    peak *peaks; // [rows, n_segment]
    float *sums; // [rows, n_block]
    int32_t row, n_segment, n_block;
};

__device__ __forceinline__ const float *row_of(const vocab_args &a, int64_t row)
{
    return a.op.logits + (a.row + row) * a.op.logits_stride;
}

// The larger, and of equals the one that comes first.
__device__ __forceinline__ peak higher(peak a, peak b)
{
    const bool second = b.max > a.max || (b.max == a.max && b.at < a.at);
    peak p = second ? b : a;
    p.nan = a.nan | b.nan;
    return p;
}

__device__ __forceinline__ peak no_peak()
{
    return {float_of(0xff800000U), INT32_MAX, 0};
}

__device__ __forceinline__ peak warp_peak(peak p)
{
#pragma unroll
    for (int32_t d = 16; d >= 1; d /= 2) {
        const peak other = {__shfl_xor_sync(WEFT_FULL_MASK, p.max, d),
                            __shfl_xor_sync(WEFT_FULL_MASK, p.at, d),
                            __shfl_xor_sync(WEFT_FULL_MASK, p.nan, d)};
        p = higher(p, other);
    }
    return p;
}

// Of a whole row, by each warp for itself.
__device__ __forceinline__ peak peak_of(const vocab_args &a, int64_t row)
{
    const peak *const peaks = a.peaks + row * a.n_segment;
    peak p = no_peak();
    for (int32_t i = lane_index(); i < a.n_segment; i += 32)
        p = higher(p, peaks[i]);
    return warp_peak(p);
}

// Grid (segment, row).
__global__ void __launch_bounds__(THREADS) vocab_peaks(vocab_args a)
{
    __shared__ peak peaks[WARPS];
    const float *const x = row_of(a, blockIdx.y);
    const int32_t first = static_cast<int32_t>(blockIdx.x) * SEGMENT;
    const int32_t left = a.op.vocab - first;
    const int32_t n = left < SEGMENT ? left : static_cast<int32_t>(SEGMENT);
    peak p = no_peak();
#pragma unroll 4
    for (int32_t i = thread_index(); i < n; i += THREADS) {
        const float v = x[first + i];
        p = higher(p, {v, first + i, v != v});
    }
    p = warp_peak(p);
    if (lane_index() == 0) peaks[warp_index()] = p;
    __syncthreads();
    if (warp_index() != 0) return;
    p = warp_peak(lane_index() < WARPS ? peaks[lane_index()] : no_peak());
    if (lane_index() == 0)
        a.peaks[static_cast<int64_t>(blockIdx.y) * a.n_segment + blockIdx.x] =
            p;
}

// Grid (segment, row).
__global__ void __launch_bounds__(THREADS) vocab_sums(vocab_args a)
{
    const float *const x = row_of(a, blockIdx.y);
    const float most = peak_of(a, blockIdx.y).max;
    const int32_t me = thread_index();
    const int32_t block =
        static_cast<int32_t>(blockIdx.x) * (THREADS / LANES) + me / LANES;
    const int32_t first = block * BLOCK, left = a.op.vocab - first;
    const int32_t n = left < BLOCK ? left : static_cast<int32_t>(BLOCK);
    float sum = 0.0f;
#pragma unroll 4
    for (int32_t i = me % LANES; i < n; i += LANES)
        sum += exp_of(x[first + i] - most);
    sum = lanes_sum<LANES>(sum);
    if (me % LANES == 0 && n > 0)
        a.sums[static_cast<int64_t>(blockIdx.y) * a.n_block + block] = sum;
}

// Grid (row), a warp.
__global__ void __launch_bounds__(32) vocab_stats(vocab_args a)
{
    const int64_t row = blockIdx.x;
    const peak p = peak_of(a, row);
    if (lane_index() != 0) return;
    weft_vocab_stat stat = {0.0f, 0.0f, 0, true};
    if (p.nan == 0) stat = {p.max, p.max, p.at, false};
    if (p.nan == 0 && fabsf(p.max) < float_of(0x7f800000U)) {
        const float *const sums = a.sums + row * a.n_block;
        float sum = 0.0f;
#pragma unroll 8
        for (int32_t i = 0; i < a.n_block; i++) sum += sums[i];
        stat.log_sum_exp = log_of(sum) + stat.max;
    }
    a.op.stats_out[a.row + row] = stat;
}

} // namespace

void launch_vocab(queue *q, const weft_vocab *op)
{
    if (op->n_row <= 0 || op->vocab <= 0) return;
    vocab_args a = {};
    a.op = *op;
    a.n_segment = (op->vocab + SEGMENT - 1) / SEGMENT;
    a.n_block = (op->vocab + BLOCK - 1) / BLOCK;
    const int64_t bytes = a.n_segment * static_cast<int64_t>(sizeof(peak)) +
                          a.n_block * static_cast<int64_t>(sizeof(float));
    int64_t rows = q->scratch_bytes / bytes;
    if (rows > op->n_row) rows = op->n_row;
    if (rows > ROWS_MAX) rows = ROWS_MAX;
    a.peaks = reinterpret_cast<peak *>(q->scratch);
    a.sums = reinterpret_cast<float *>(a.peaks + rows * a.n_segment);
    for (int64_t r = 0; r < op->n_row; r += rows) {
        const int64_t left = op->n_row - r;
        const uint32_t n = static_cast<uint32_t>(left < rows ? left : rows);
        const dim3 grid(static_cast<uint32_t>(a.n_segment), n);
        a.row = static_cast<int32_t>(r);
        WEFT_LAUNCH(vocab_peaks, grid, dim3(THREADS), 0, q->stream, a);
        note(q, "vocab");
        WEFT_LAUNCH(vocab_sums, grid, dim3(THREADS), 0, q->stream, a);
        note(q, "vocab");
        WEFT_LAUNCH(vocab_stats, dim3(n), dim3(32), 0, q->stream, a);
        note(q, "vocab");
    }
}

} // namespace weft
