// attn_exact.cuh - latent attention in fp32 arithmetic, of any size and type.
//
// A block has 8 heads of a row. Scores: a thread has one key of the split, and
// adds its products in channel order, from 0, in one chain for every head;
// channels come through shared memory in tiles, so that rows are read whole.
// Then a warp has one head: maximum, exponentials, and their sum, 32 lanes and
// a tree. Values: a thread has channels, and adds over the keys in order.
#ifndef WEFT_KERNELS_CUDA_ATTN_EXACT_CUH
#define WEFT_KERNELS_CUDA_ATTN_EXACT_CUH

#include "kernels/cuda/attn_fold.cuh"

namespace weft
{

enum { EXACT_HEADS = 8, EXACT_TILE = 32 };

struct exact_shared {
    const unsigned char *key[ATTN_SPLIT];
    float tile[ATTN_SPLIT][EXACT_TILE + 1]; // an odd stride: no bank twice
    float q[EXACT_TILE][EXACT_HEADS];
    float p[ATTN_SPLIT][EXACT_HEADS];
    attn_sum all[EXACT_HEADS];
    attn_state state[EXACT_HEADS];
};
static_assert(sizeof(exact_shared) <= 48 << 10, "what a block has unasked");

// A block's heads.
struct exact_heads {
    const weft_row *row;
    const float *q; // of the first
    int32_t first, n;
};

__device__ __forceinline__ float exact_element(const float *row, int32_t i)
{
    return row[i];
}
__device__ __forceinline__ float exact_element(const bf16 *row, int32_t i)
{
    return to_float(row[i]);
}

// Channels [c, c + n) of n_key rows and of the heads.
template <class E>
__device__ __forceinline__ void
exact_load(exact_shared *sh, const exact_heads &heads, int32_t width, int32_t c,
           int32_t n, int32_t n_key)
{
    const int32_t i = lane_index();
    for (int32_t j = warp_index(); j < n_key; j += ATTN_WARPS)
        if (i < n)
            sh->tile[j][i] =
                exact_element(reinterpret_cast<const E *>(sh->key[j]), c + i);
    const int32_t h = warp_index();
    if (i < n)
        sh->q[i][h] = h < heads.n
                          ? heads.q[static_cast<int64_t>(h) * width + c + i]
                          : 0.0f;
}

template <class E>
__device__ __forceinline__ void
exact_scores(exact_shared *sh, const weft_attn &op, const exact_heads &heads,
             int32_t n_key)
{
    const int32_t j = thread_index();
    float s[EXACT_HEADS] = {};
    for (int32_t c = 0; c < op.width; c += EXACT_TILE) {
        const int32_t n = op.width - c < EXACT_TILE ? op.width - c : EXACT_TILE;
        exact_load<E>(sh, heads, op.width, c, n, n_key);
        __syncthreads(); // the tile is there
#pragma unroll 4
        for (int32_t i = 0; i < n && j < n_key; i++) {
            const float k = sh->tile[j][i];
#pragma unroll
            for (int32_t h = 0; h < EXACT_HEADS; h++)
                s[h] = fmaf(sh->q[i][h], k, s[h]);
        }
        __syncthreads(); // and done with
    }
#pragma unroll
    for (int32_t h = 0; h < EXACT_HEADS; h++)
        if (j < n_key) sh->p[j][h] = s[h] * op.scale;
}

// Scores to weights, and what they make of the running sums.
__device__ __forceinline__ void
exact_softmax(exact_shared *sh, const attn_work &work, const attn_place &place,
              const exact_heads &heads, int32_t n_key)
{
    const int32_t h = warp_index();
    float m = attn_minus_infinity(), l = 0.0f;
    for (int32_t j = lane_index(); j < n_key; j += 32)
        m = fmaxf(m, sh->p[j][h]);
    m = warp_max(m);
    for (int32_t j = lane_index(); j < n_key; j += 32) {
        const float e = exp_of(sh->p[j][h] - m);
        sh->p[j][h] = e;
        l += e;
    }
    l = lanes_sum<32>(l);
    if (lane_index() != 0 || h >= heads.n) return;
    const attn_sum split = {m, l};
    if (place.parked) {
        work.sum[attn_parked_at(work, place, heads.first + h)] = split;
        return;
    }
    sh->state[h].f = attn_take(&sh->all[h], split, place.first);
    sh->state[h].l = sh->all[h].l;
}

template <class E>
__device__ __forceinline__ void
exact_values(const exact_shared *sh, const attn_work &work,
             const attn_place &place, const exact_heads &heads, int32_t n_key)
{
    for (int32_t d = thread_index(); d < work.op.value_width;
         d += ATTN_THREADS) {
        float acc[EXACT_HEADS] = {};
#pragma unroll 2
        for (int32_t j = 0; j < n_key; j++) {
            const float c =
                exact_element(reinterpret_cast<const E *>(sh->key[j]), d);
#pragma unroll
            for (int32_t h = 0; h < EXACT_HEADS; h++)
                acc[h] = fmaf(sh->p[j][h], c, acc[h]);
        }
#pragma unroll
        for (int32_t h = 0; h < EXACT_HEADS; h++)
            if (h < heads.n)
                attn_put(attn_put_at(work, place, heads.first + h) + d, work,
                         place, sh->state[h], acc[h]);
    }
}

// E: float or bf16, of the cache.
template <class E>
__global__ void __launch_bounds__(ATTN_THREADS) attn_exact(const attn_work work)
{
    WEFT_SHARED_DYNAMIC(exact_shared, sh);
    const int32_t block = static_cast<int32_t>(blockIdx.x);
    const int32_t r = block / work.n_head_block;
    exact_heads heads;
    heads.row = work.op.rows + r;
    heads.first = block % work.n_head_block * EXACT_HEADS;
    heads.n = work.op.n_head - heads.first < EXACT_HEADS
                  ? work.op.n_head - heads.first
                  : EXACT_HEADS;
    heads.q = work.op.q + r * work.op.q_stride +
              static_cast<int64_t>(heads.first) * work.op.width;
    const int32_t n_keys = attn_n_keys(heads.row);
    if (n_keys <= 0 && blockIdx.y == 0)
        attn_put_zeros(work.op, r, heads.first, heads.n);
    for (int32_t s = static_cast<int32_t>(blockIdx.y); s * ATTN_SPLIT < n_keys;
         s += static_cast<int32_t>(gridDim.y)) {
        const attn_place place = attn_place_of(work, r, s, n_keys);
        const int32_t first = s * ATTN_SPLIT;
        const int32_t n_key =
            n_keys - first < ATTN_SPLIT ? n_keys - first : ATTN_SPLIT;
        const int32_t j = thread_index();
        __syncthreads(); // the split before is done with keys and weights
        if (j < n_key) sh->key[j] = attn_key(work.op.kv, heads.row, first + j);
        __syncthreads(); // where keys are
        exact_scores<E>(sh, work.op, heads, n_key);
        __syncthreads(); // scores are there
        exact_softmax(sh, work, place, heads, n_key);
        __syncthreads(); // weights are there
        exact_values<E>(sh, work, place, heads, n_key);
    }
}

} // namespace weft

#endif
