// index_score.cuh - scores of the lightning indexer over paged keys, in two
// forms. Both write score[p - first] for the positions p of one span.
//
//   fma   any keys and queries: dots by 16 virtual lanes and their tree, as
//         ops.h words them, so the scores have the reference's bits. A block
//         has a tile of keys in shared memory and goes through the heads.
//   mma   bfloat16 keys or codes, which bfloat16 holds exactly, and queries in
//         pairs of bfloat16 (split_pair), each of which is multiplied on its
//         own into the same sum: a warp has 16 keys
//         in registers as the left operand and heads as the columns of the
//         right one. Four lanes that share a key hold a run of consecutive
//         heads each and take turns, so here too heads are added in rising
//         order.
//
// Which positions share a tile changes nothing in a score.
#ifndef WEFT_KERNELS_CUDA_INDEX_SCORE_CUH
#define WEFT_KERNELS_CUDA_INDEX_SCORE_CUH

#include "kernels/cuda/f8.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.cuh"

namespace weft
{

namespace index_score
{

// Of one launch: rows [row, row + gridDim.y), positions [first, end).
struct span {
    weft_index_select op;
    float *scores; // of `row`; rows are stride floats apart
    int64_t stride;
    int32_t row, first, end;
    int32_t tiles; // of 64 keys that a block of the mma form takes
};

enum {
    THREADS = 128,
    KEYS = 64, // a tile
    WARPS = THREADS / 32,
    FMA_HEADS = 8,        // a step, two of them a warp
    DIMS = 128,           // held at a time
    KEY_PITCH = DIMS + 4, // so that lanes of different keys use other banks
    MMA_GROUP = 64,       // heads whose products a warp holds
};

// Positions of the span that the row sees end here; `first` if it sees none or
// is not scored.
__device__ __forceinline__ int32_t end_of(const span &s, const weft_row &row)
{
    if (row.position < s.op.top_k) return s.first;
    return row.position + 1 < s.end ? row.position + 1 : s.end;
}

__device__ __forceinline__ const unsigned char *
key_at(const weft_paged &keys, const weft_row &row, int32_t position)
{
    return keys.base + row.pages[position / keys.page_tokens] +
           keys.layer_offset +
           static_cast<int64_t>(position % keys.page_tokens) * keys.row_bytes;
}

// max(0, x) that keeps NaN.
__device__ __forceinline__ float relu(float x)
{
    return x < 0.0f ? 0.0f : x;
}

__device__ __forceinline__ float as_float(float v)
{
    return v;
}
__device__ __forceinline__ float as_float(bf16 v)
{
    return to_float(v);
}
__device__ __forceinline__ float as_float(f8_code v)
{
    return to_float(v);
}

// What the heads of a key of Ts add up to, as its score.
template <typename T>
__device__ __forceinline__ float scaled(const span &s, const unsigned char *key,
                                        float sum)
{
    if constexpr (sizeof(T) == 1)
        return sum * *reinterpret_cast<const float *>(key + s.op.head_dim);
    else
        return sum;
}

// ---- fma ------------------------------------------------------------------

struct alignas(16) four {
    float v[4];
};

struct fma_tile {
    alignas(16) float keys[KEYS * KEY_PITCH];
    alignas(16) float q[FMA_HEADS * DIMS];
    float dots[FMA_HEADS * KEYS];
};

// Elements that are held at a time from `from` on: a multiple of 16, of which
// those past the end are zeros, which leave a lane as it is.
__device__ __forceinline__ int32_t width_of(const span &s, int32_t from)
{
    const int32_t left = s.op.head_dim - from;
    return left < DIMS ? (left + 15) / 16 * 16 : static_cast<int32_t>(DIMS);
}

// One warp a key.
template <typename T>
__device__ __forceinline__ void load_keys(const span &s, const weft_row &row,
                                          int32_t tile, int32_t n, int32_t from,
                                          fma_tile *t)
{
    for (int32_t k = warp_index(); k < KEYS; k += WARPS) {
        const int32_t position = tile + (k < n ? k : n - 1);
        const T *const key =
            reinterpret_cast<const T *>(key_at(s.op.keys, row, position));
        for (int32_t d = lane_index(); d < width_of(s, from); d += 32)
            t->keys[k * KEY_PITCH + d] =
                from + d < s.op.head_dim ? as_float(key[from + d]) : 0.0f;
    }
}

__device__ __forceinline__ void load_queries(const span &s, const float *q,
                                             int32_t head, int32_t from,
                                             fma_tile *t)
{
    for (int32_t h = warp_index(); h < FMA_HEADS; h += WARPS)
        for (int32_t d = lane_index(); d < width_of(s, from); d += 32) {
            const bool there =
                head + h < s.op.n_head && from + d < s.op.head_dim;
            const int64_t at =
                static_cast<int64_t>(head + h) * s.op.head_dim + from + d;
            t->q[h * DIMS + d] = there ? q[at] : 0.0f;
        }
}

// Two heads of the warp by two keys of the lane, 16 virtual lanes each.
struct fma_lanes {
    float v[2][2][16];
};

__device__ __forceinline__ void add_products(const fma_tile *t, int32_t width,
                                             fma_lanes *lanes)
{
    const float *const q = t->q + 2 * warp_index() * DIMS;
    const float *const key = t->keys + lane_index() * KEY_PITCH;
    for (int32_t d = 0; d < width; d += 16)
#pragma unroll
        for (int32_t i = 0; i < 16; i += 4)
#pragma unroll
            for (int32_t k = 0; k < 2; k++) {
                const four b = *reinterpret_cast<const four *>(
                    key + k * 32 * KEY_PITCH + d + i);
#pragma unroll
                for (int32_t h = 0; h < 2; h++) {
                    const four a =
                        *reinterpret_cast<const four *>(q + h * DIMS + d + i);
#pragma unroll
                    for (int32_t l = 0; l < 4; l++)
                        lanes->v[h][k][i + l] =
                            fmaf(a.v[l], b.v[l], lanes->v[h][k][i + l]);
                }
            }
}

__device__ __forceinline__ float tree_of(float *lane)
{
#pragma unroll
    for (int32_t w = 8; w >= 1; w /= 2)
#pragma unroll
        for (int32_t l = 0; l < 8; l++)
            if (l < w) lane[l] += lane[l + w];
    return lane[0];
}

// Dots of the step's heads with the tile's keys, in t->dots.
template <typename T>
__device__ __forceinline__ void fma_dots(const span &s, const weft_row &row,
                                         int32_t tile, int32_t n, int32_t head,
                                         fma_tile *t)
{
    const float *const q =
        s.op.q + (s.row + static_cast<int64_t>(blockIdx.y)) * s.op.q_stride;
    fma_lanes lanes = {};
    for (int32_t from = 0; from < s.op.head_dim; from += DIMS) {
        // Keys that fit stay for the next step.
        if (head == 0 || s.op.head_dim > DIMS)
            load_keys<T>(s, row, tile, n, from, t);
        load_queries(s, q, head, from, t);
        __syncthreads();
        add_products(t, width_of(s, from), &lanes);
        __syncthreads();
    }
#pragma unroll
    for (int32_t h = 0; h < 2; h++)
#pragma unroll
        for (int32_t k = 0; k < 2; k++)
            t->dots[(2 * warp_index() + h) * KEYS + k * 32 + lane_index()] =
                relu(tree_of(lanes.v[h][k]));
    __syncthreads();
}

// Grid (tile, row); dynamic shared memory: an fma_tile.
template <typename T>
__global__ void __launch_bounds__(THREADS) score_fma(span s)
{
    WEFT_SHARED_DYNAMIC(fma_tile, t);
    const weft_row &row = s.op.rows[s.row + blockIdx.y];
    const int32_t tile = s.first + static_cast<int32_t>(blockIdx.x) * KEYS;
    const int32_t n = end_of(s, row) - tile;
    if (n <= 0) return;
    const float *const w =
        s.op.w + (s.row + static_cast<int64_t>(blockIdx.y)) * s.op.w_stride;
    const int32_t me = thread_index();
    float score = 0.0f;
    for (int32_t head = 0; head < s.op.n_head; head += FMA_HEADS) {
        fma_dots<T>(s, row, tile, n, head, t);
        const int32_t left = s.op.n_head - head;
        for (int32_t h = 0; me < KEYS && h < FMA_HEADS && h < left; h++)
            score = fmaf(w[head + h], t->dots[h * KEYS + me], score);
    }
    if (me < KEYS && me < n)
        s.scores[blockIdx.y * s.stride + tile - s.first + me] =
            scaled<T>(s, key_at(s.op.keys, row, tile + me), score);
}

// ---- mma ------------------------------------------------------------------

// Elements between the rows of queries in shared memory: a multiple of 32 that
// is an odd multiple of 16 words, so that two rows are in different banks.
__host__ __device__ __forceinline__ int32_t query_pitch(int32_t head_dim)
{
    const int32_t blocks = (head_dim + 31) / 32;
    return 32 * (blocks | 1);
}
__host__ __device__ __forceinline__ int32_t query_rows(int32_t n_head)
{
    return (n_head + 7) / 8 * 8;
}
inline int64_t mma_bytes(int32_t n_head, int32_t head_dim)
{
    return static_cast<int64_t>(query_rows(n_head)) *
           (2 * 2 * static_cast<int64_t>(query_pitch(head_dim)) + 4);
}

// Tiles of 8 columns that the group of heads from `group` on has.
__device__ __forceinline__ int32_t group_tiles(int32_t n_head, int32_t group)
{
    const int32_t left = n_head - group;
    return ((left < MMA_GROUP ? left : MMA_GROUP) + 7) / 8;
}

// Column n of tile t: lane j of four has columns 2j and 2j + 1 of every tile
// (PTX ISA, "Matrix fragments for mma.m16n8k16"), so consecutive heads.
__device__ __forceinline__ int32_t head_of(int32_t group, int32_t tiles,
                                           int32_t t, int32_t n)
{
    return group + n / 2 * 2 * tiles + 2 * t + n % 2;
}

struct alignas(16) eight {
    uint32_t v[4]; // 8 bfloat16
};

// Elements [d, d + 8) of a row, zeros past its end.
__device__ __forceinline__ eight load_eight(const unsigned char *row, int32_t d,
                                            int32_t width)
{
    const uint16_t *const from = reinterpret_cast<const uint16_t *>(row) + d;
    if (d + 8 <= width && (reinterpret_cast<uintptr_t>(from) & 15) == 0)
        return *reinterpret_cast<const eight *>(from);
    eight e = {};
#pragma unroll
    for (int32_t i = 0; i < 8; i++)
        if (d + i < width)
            e.v[i / 2] |= static_cast<uint32_t>(from[i]) << (i % 2 * 16);
    return e;
}

// The same of codes, which come in fours.
__device__ __forceinline__ eight load_codes(const unsigned char *row, int32_t d,
                                            int32_t width)
{
    eight e = {};
#pragma unroll
    for (int32_t i = 0; i < 8; i += 4)
        if (d + i < width)
            widen_four(*reinterpret_cast<const uint32_t *>(row + d + i),
                       e.v + i / 2);
    return e;
}

template <typename T>
__device__ __forceinline__ eight load_part(const unsigned char *row, int32_t d,
                                           int32_t width)
{
    if constexpr (sizeof(T) == 1)
        return load_codes(row, d, width);
    else
        return load_eight(row, d, width);
}

// Queries of the row in the order of columns, all of their upper parts, then
// all of the lower; and its weights in the order of heads.
__device__ __forceinline__ void keep_queries(const span &s, uint16_t *q,
                                             float *w)
{
    const int64_t r = s.row + static_cast<int64_t>(blockIdx.y);
    const int32_t pitch = query_pitch(s.op.head_dim);
    uint16_t *const rest = q + query_rows(s.op.n_head) * pitch;
    for (int32_t at = warp_index(); at < query_rows(s.op.n_head); at += WARPS) {
        const int32_t group = at / MMA_GROUP * MMA_GROUP;
        const int32_t head = head_of(group, group_tiles(s.op.n_head, group),
                                     (at - group) / 8, at % 8);
        const float *const from = s.op.q + r * s.op.q_stride +
                                  static_cast<int64_t>(head) * s.op.head_dim;
        for (int32_t d = lane_index(); d < pitch; d += 32) {
            const bool there = head < s.op.n_head && d < s.op.head_dim;
            float hi, lo;
            split_pair(there ? from[d] : 0.0f, &hi, &lo);
            q[at * pitch + d] = to_bf16(hi).bits;
            rest[at * pitch + d] = to_bf16(lo).bits;
        }
    }
    for (int32_t h = thread_index(); h < s.op.n_head; h += THREADS)
        w[h] = s.op.w[r * s.op.w_stride + h];
    __syncthreads();
}

// The keys of a warp, 16 of them: lane l has elements 8 (l % 4) up to + 8 of
// every 32 of the keys l / 4 and l / 4 + 8. Queries are read in the same
// order, so it is no matter which element the unit takes for which.
struct mma_keys {
    eight low[DIMS / 32], high[DIMS / 32];
};

// Products of the warp's keys with a group of heads; the lower parts of queries
// are `rest` behind the upper ones.
__device__ __forceinline__ void group_dots(const mma_keys &keys,
                                           const uint16_t *q, int32_t rest,
                                           int32_t pitch, int32_t blocks,
                                           int32_t tiles, float dots[8][4])
{
#pragma unroll
    for (int32_t t = 0; t < 8; t++) {
        if (t >= tiles) break;
        const uint16_t *const column =
            q + (t * 8 + lane_index() / 4) * pitch + lane_index() % 4 * 8;
        dots[t][0] = dots[t][1] = dots[t][2] = dots[t][3] = 0.0f;
#pragma unroll
        for (int32_t b = 0; b < DIMS / 32; b++) {
            if (b >= blocks) break;
            const uint16_t *const at = column + 32 * b;
            const eight c = *reinterpret_cast<const eight *>(at);
            const eight d = *reinterpret_cast<const eight *>(at + rest);
            const eight &lo = keys.low[b], &hi = keys.high[b];
            const uint32_t first[4] = {lo.v[0], hi.v[0], lo.v[1], hi.v[1]};
            const uint32_t second[4] = {lo.v[2], hi.v[2], lo.v[3], hi.v[3]};
            mma_bf16(dots[t], first, c.v);
            mma_bf16(dots[t], first, d.v);
            mma_bf16(dots[t], second, c.v + 2);
            mma_bf16(dots[t], second, d.v + 2);
        }
    }
}

// score += w relu(dot) over the group's heads in rising order; score[0] is of
// the key l / 4, score[1] of l / 4 + 8.
__device__ __forceinline__ void fold_group(const float *w, int32_t n_head,
                                           int32_t group, int32_t tiles,
                                           const float dots[8][4],
                                           float score[2])
{
    const int32_t lane = lane_index();
#pragma unroll
    for (int32_t turn = 0; turn < 4; turn++) {
        float v[2] = {score[0], score[1]};
#pragma unroll
        for (int32_t t = 0; t < 8; t++)
#pragma unroll
            for (int32_t i = 0; i < 2; i++) {
                const int32_t head = head_of(group, tiles, t, lane % 4 * 2 + i);
                if (t >= tiles || head >= n_head) continue;
                v[0] = fmaf(w[head], relu(dots[t][i]), v[0]);
                v[1] = fmaf(w[head], relu(dots[t][2 + i]), v[1]);
            }
        const int32_t from = (lane & ~3) | turn;
        score[0] = __shfl_sync(WEFT_FULL_MASK, v[0], from);
        score[1] = __shfl_sync(WEFT_FULL_MASK, v[1], from);
    }
}

// Grid (run of tiles, row); dynamic shared memory: mma_bytes.
template <typename T>
__global__ void __launch_bounds__(THREADS) score_mma(span s)
{
    WEFT_SHARED_DYNAMIC(uint16_t, q);
    const weft_row &row = s.op.rows[s.row + blockIdx.y];
    const int32_t end = end_of(s, row);
    const int32_t run =
        s.first + static_cast<int32_t>(blockIdx.x) * s.tiles * KEYS;
    if (run >= end) return;
    const int32_t pitch = query_pitch(s.op.head_dim), lane = lane_index();
    const int32_t blocks = (s.op.head_dim + 31) / 32;
    const int32_t rest = query_rows(s.op.n_head) * pitch;
    float *const w = reinterpret_cast<float *>(q + 2 * rest);
    keep_queries(s, q, w);
    for (int32_t i = 0; i < s.tiles; i++) {
        const int32_t tile = run + i * KEYS + warp_index() * 16;
        if (tile >= end) break;
        const int32_t low = tile + lane / 4, high = low + 8;
        const unsigned char *const low_at =
            key_at(s.op.keys, row, low < end ? low : end - 1);
        const unsigned char *const high_at =
            key_at(s.op.keys, row, high < end ? high : end - 1);
        mma_keys keys;
#pragma unroll
        for (int32_t b = 0; b < DIMS / 32; b++) {
            if (b >= blocks) break;
            const int32_t d = 32 * b + lane % 4 * 8;
            keys.low[b] = load_part<T>(low_at, d, s.op.head_dim);
            keys.high[b] = load_part<T>(high_at, d, s.op.head_dim);
        }
        float score[2] = {0.0f, 0.0f};
        for (int32_t g = 0; g < s.op.n_head; g += MMA_GROUP) {
            const int32_t tiles = group_tiles(s.op.n_head, g);
            float dots[8][4];
            group_dots(keys, q + g * pitch, rest, pitch, blocks, tiles, dots);
            fold_group(w, s.op.n_head, g, tiles, dots, score);
        }
        float *const to = s.scores + blockIdx.y * s.stride - s.first;
        if (lane % 4 == 0 && low < end)
            to[low] = scaled<T>(s, low_at, score[0]);
        if (lane % 4 == 0 && high < end)
            to[high] = scaled<T>(s, high_at, score[1]);
    }
}

} // namespace index_score

} // namespace weft

#endif
