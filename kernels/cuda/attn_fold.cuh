// attn_fold.cuh - what the forms of latent attention share: the keys of a row,
// and what is done with a split's (m, l, acc), as kernels/ops.h has it.
//
// A block has some heads of one row. It takes either one split of the row's
// keys, whose sums go to scratch for attn_fold, or all of them in order, and
// folds them itself into `out`. The arithmetic is the same, written once here,
// so the bits do not tell which it was. A row of one split is always finished
// by its block.
#ifndef WEFT_KERNELS_CUDA_ATTN_FOLD_CUH
#define WEFT_KERNELS_CUDA_ATTN_FOLD_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/quad.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/ops.h"

namespace weft
{

enum { ATTN_SPLIT = 256, ATTN_THREADS = 256, ATTN_WARPS = 8 };

struct attn_sum {
    float m, l;
};

// One launch. Grid: x = blocks of heads, row by row; y = splits.
struct attn_work {
    weft_attn op;
    float *acc;    // [n_row, n_split, n_head, value_width], or NULL: no splits
    attn_sum *sum; // [n_row, n_split, n_head]
    int32_t n_split, n_head_block;
};

// Keys that a row sees; 0 or less: none.
__device__ __forceinline__ int32_t attn_n_keys(const weft_row *row)
{
    return row->keys != nullptr ? row->n_keys : row->position - row->first + 1;
}

// A block of a form that goes through keys in tiles: M heads of one row, tiles
// [first, end) of KT keys. first >= end: none.
struct attn_block {
    const weft_row *row;
    const float *q; // of the first head
    int32_t r, head, n_head, n_keys, first, end;
};
template <int M, int KT>
__device__ __forceinline__ attn_block attn_block_of(const attn_work &work)
{
    constexpr int32_t per_split = ATTN_SPLIT / KT;
    const int32_t block = static_cast<int32_t>(blockIdx.x);
    attn_block b;
    b.r = block / work.n_head_block;
    b.row = work.op.rows + b.r;
    b.head = block % work.n_head_block * M;
    b.n_head = work.op.n_head - b.head < M ? work.op.n_head - b.head : M;
    b.q = work.op.q + b.r * work.op.q_stride +
          static_cast<int64_t>(b.head) * work.op.width;
    b.n_keys = attn_n_keys(b.row);
    const int32_t n_tile = (b.n_keys + KT - 1) / KT;
    b.first = static_cast<int32_t>(blockIdx.y) * per_split;
    const int32_t split_end = b.first + per_split;
    b.end = work.acc == nullptr || split_end > n_tile ? n_tile : split_end;
    return b;
}

// Where key number j of a row is.
__device__ __forceinline__ const unsigned char *
attn_key(const weft_paged &kv, const weft_row *row, int32_t j)
{
    const int32_t position =
        row->keys != nullptr ? row->keys[j] : row->first + j;
    const int32_t page = position / kv.page_tokens;
    const int32_t in_page = position - page * kv.page_tokens;
    return kv.base +
           (row->pages[page] + kv.layer_offset + in_page * kv.row_bytes);
}

__device__ __forceinline__ float attn_minus_infinity()
{
    return float_of(0xff800000U);
}

// Factors of the running sums and of a split's, which become the running ones.
struct attn_factors {
    float a, b;
};
__device__ __forceinline__ attn_factors attn_take(attn_sum *all,
                                                  const attn_sum &split,
                                                  bool first)
{
    if (first) {
        *all = split;
        return {0.0f, 1.0f};
    }
    const float most = fmaxf(all->m, split.m);
    const attn_factors f = {exp_of(all->m - most), exp_of(split.m - most)};
    all->l = fmaf(all->l, f.a, product(split.l, f.b));
    all->m = most;
    return f;
}
__device__ __forceinline__ float attn_take_value(float all, float acc,
                                                 const attn_factors &f)
{
    return fmaf(all, f.a, product(acc, f.b));
}

// Where the sums of a split go.
struct attn_place {
    bool first, last; // of the splits that the block takes
    bool parked;      // in scratch
    int32_t row, split;
};
__device__ __forceinline__ attn_place attn_place_of(const attn_work &work,
                                                    int32_t row, int32_t split,
                                                    int32_t n_keys)
{
    attn_place p;
    p.first = split == 0;
    p.last = (split + 1) * ATTN_SPLIT >= n_keys;
    p.parked = work.acc != nullptr && n_keys > ATTN_SPLIT;
    p.row = row;
    p.split = split;
    return p;
}
__device__ __forceinline__ int64_t attn_parked_at(const attn_work &work,
                                                  const attn_place &p,
                                                  int32_t head)
{
    return (static_cast<int64_t>(p.row) * work.n_split + p.split) *
               work.op.n_head +
           head;
}

// What one block knows of a head when a split is done: the factors of the fold
// and, after the last, L.
struct attn_state {
    attn_factors f;
    float l;
};

// Where a head's acc goes; in scratch it stays as it is.
__device__ __forceinline__ float *attn_put_at(const attn_work &work,
                                              const attn_place &p, int32_t head)
{
    const int32_t width = work.op.value_width;
    if (p.parked) return work.acc + attn_parked_at(work, p, head) * width;
    return work.op.out + p.row * work.op.out_stride +
           static_cast<int64_t>(head) * width;
}
// A channel of acc is done; `to` is its place.
__device__ __forceinline__ void attn_put(float *to, const attn_work &work,
                                         const attn_place &p,
                                         const attn_state &state, float acc)
{
    float all = acc;
    if (!p.parked && !p.first) all = attn_take_value(*to, acc, state.f);
    if (!p.parked && p.last) all = round_to(all / state.l, work.op.round);
    *to = all;
}

// Heads [head, head + n_head) of a row that sees nothing.
__device__ __forceinline__ void attn_put_zeros(const weft_attn &op, int32_t row,
                                               int32_t head, int32_t n_head)
{
    float *const out = op.out + row * op.out_stride +
                       static_cast<int64_t>(head) * op.value_width;
    const int64_t n = static_cast<int64_t>(n_head) * op.value_width;
    for (int64_t i = threadIdx.x; i < n; i += ATTN_THREADS) out[i] = 0.0f;
}

// What scratch holds, folded into out. Grid: x = heads, row by row.
[[maybe_unused]] static __global__ void __launch_bounds__(ATTN_THREADS)
    attn_fold(const attn_work work)
{
    const int32_t n_head = work.op.n_head, width = work.op.value_width;
    const int32_t row = static_cast<int32_t>(blockIdx.x) / n_head;
    const int32_t head = static_cast<int32_t>(blockIdx.x) % n_head;
    const int32_t n_keys = attn_n_keys(work.op.rows + row);
    if (n_keys <= ATTN_SPLIT) return; // its block was done with it
    const int32_t n_split = (n_keys + ATTN_SPLIT - 1) / ATTN_SPLIT;
    float *const out = work.op.out + row * work.op.out_stride +
                       static_cast<int64_t>(head) * width;
    attn_place p = attn_place_of(work, row, 0, n_keys);
    for (int32_t d = thread_index(); d < width; d += ATTN_THREADS) {
        attn_sum all = {};
        float value = 0.0f;
        for (int32_t s = 0; s < n_split; s++) {
            p.split = s;
            const int64_t at = attn_parked_at(work, p, head);
            const float acc = work.acc[at * width + d];
            const attn_factors f = attn_take(&all, work.sum[at], s == 0);
            value = s == 0 ? acc : attn_take_value(value, acc, f);
        }
        out[d] = round_to(value / all.l, work.op.round);
    }
}

} // namespace weft

#endif
