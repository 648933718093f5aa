// attn_tensor.cuh - latent attention by mma.sync, of bfloat16 queries over a
// bfloat16 cache; sm_80 and up.
//
// Flops and bytes: 16 heads and a key take 2 * 16 * (width + value_width)
// multiply-adds, half of which are for 2 * width bytes. Many heads share a row
// of the cache, so heads are the M of the products: a block has 16 MT heads of
// one row, goes through its keys in tiles of KT, and uses a tile twice while it
// is in shared memory: for scores, and for values.
//
//   scores   warp (mt, part) has heads 16 mt and of the channels, 16 by 16,
//            part, part + KS, ...; what the KS parts add up to goes through
//            shared memory
//   softmax  online over the tiles of a split: 256 / M threads have a head; the
//            weights p go back to shared memory as hi + lo, two bfloat16, so
//            that they keep 16 bits
//   values   warp w has the channels [w VP / 8, (w + 1) VP / 8) of all heads,
//            in registers
//
// The next tile is on its way while a tile is computed. Tiles begin at
// multiples of KT of the list of visible keys, so a row's sums have one order.
//
// Rows in shared memory are WP channels; their 16-byte chunks are permuted
// (chunk c of row r is at c ^ (r % 8) in its group of eight) so that the eight
// rows of an ldmatrix are in different banks.
//
// Sources: Milakov and Gimelshein, arXiv 1805.02867 (online softmax); Dao et
// al., Flash-Decoding; PTX ISA, "Matrix fragments for mma.m16n8k16".
#ifndef WEFT_KERNELS_CUDA_ATTN_TENSOR_CUH
#define WEFT_KERNELS_CUDA_ATTN_TENSOR_CUH

#include "kernels/cuda/attn_fold.cuh"

namespace weft
{

// Shared memory that a block may have: CUDA C++ Programming Guide, technical
// specifications by compute capability.
constexpr int32_t tensor_room(int32_t sm)
{
    const bool most = sm == 90 || sm == 100 || sm == 103 || sm == 110;
    return (most ? 227 : sm == 80 || sm == 87 ? 163 : 99) << 10;
}
// Of the machine that this is compiled for: a shape that cannot run on it need
// not be there.
#if defined(__CUDA_ARCH__)
constexpr int32_t TENSOR_ROOM = tensor_room(__CUDA_ARCH__ / 10);
#else
constexpr int32_t TENSOR_ROOM = tensor_room(90);
#endif

// WP, VP: at least width and value_width; multiples of 64 and 128. HELD: a
// warp's part of q stays in registers, else q is in shared memory.
template <int WP_, int VP_, int MT_, int KT_, bool HELD_> struct tensor_shape {
    static constexpr int WP = WP_, VP = VP_, MT = MT_, KT = KT_;
    static constexpr bool HELD = HELD_;
    static constexpr int M = 16 * MT;          // heads
    static constexpr int KS = ATTN_WARPS / MT; // parts of the channels
    static constexpr int STEPS = (WP / 16 + KS - 1) / KS; // of 16 channels
    static constexpr int NV = VP / ATTN_WARPS / 16; // of 16, of a warp's values
    static constexpr int T = ATTN_THREADS / M;      // threads of a head
    static constexpr int KEYS = KT / T;             // keys of such a thread
    // Floats between heads of scores. 4 more than needed: four heads are then
    // in different banks, and so are eight as the bytes of p.
    static constexpr int SCORES = KT + 4;
    static constexpr int ROW = 2 * WP; // bytes

    static constexpr int TILE_AT = 0;
    static constexpr int Q_AT = TILE_AT + 2 * KT * ROW;
    static constexpr int SCORE_AT = Q_AT + (HELD ? 0 : M * ROW);
    static constexpr int STATE_AT = SCORE_AT + KS * M * SCORES * 4;
    static constexpr int ALPHA_AT =
        STATE_AT + M * static_cast<int>(sizeof(attn_state));
    static constexpr int KEY_AT = ALPHA_AT + M * 4;
    static constexpr int BYTES = KEY_AT + 2 * KT * 8;

    static_assert(WP % 64 == 0 && VP % 128 == 0 && KT % 16 == 0, "tiles");
    static_assert(ATTN_SPLIT % KT == 0 && KEYS * T == KT, "keys of a thread");
    static_assert(ATTN_WARPS % MT == 0 && KEY_AT % 8 == 0, "layout");
};

// The parts of a block's shared memory.
template <class S> struct tensor_shared {
    unsigned char *base;

    __device__ __forceinline__ unsigned char *tile(int32_t t) const
    {
        return base + S::TILE_AT + (t & 1) * S::KT * S::ROW;
    }
    __device__ __forceinline__ unsigned char *q() const
    {
        return base + S::Q_AT;
    }
    __device__ __forceinline__ float *scores(int32_t part, int32_t head) const
    {
        return reinterpret_cast<float *>(base + S::SCORE_AT) +
               (part * S::M + head) * S::SCORES;
    }
    // Weights take the place of part 0 of the scores: hi, then lo.
    __device__ __forceinline__ unsigned char *weights(int32_t head,
                                                      int32_t low) const
    {
        return reinterpret_cast<unsigned char *>(scores(0, head)) +
               low * S::KT * 2;
    }
    __device__ __forceinline__ attn_state *state() const
    {
        return reinterpret_cast<attn_state *>(base + S::STATE_AT);
    }
    __device__ __forceinline__ float *alpha() const
    {
        return reinterpret_cast<float *>(base + S::ALPHA_AT);
    }
    // Where the keys of tile t are; NULL past the last.
    __device__ __forceinline__ const unsigned char **keys(int32_t t) const
    {
        return reinterpret_cast<const unsigned char **>(base + S::KEY_AT) +
               (t & 1) * S::KT;
    }
    // Chunk c of row r, in bytes from the first of the rows.
    __device__ static __forceinline__ int32_t chunk(int32_t r, int32_t c)
    {
        return r * S::ROW + ((c & ~7) | ((c ^ r) & 7)) * 16;
    }
    // d chunks after one that chunk() gave, for a d that has no bit of c: with
    // a constant d that is one xor and an offset in the instruction.
    __device__ static __forceinline__ int32_t after(int32_t at, int32_t d)
    {
        return (at ^ (d & 7) * 16) + (d & ~7) * 16;
    }
};

struct alignas(16) tensor_chunk {
    uint16_t v[8];
};

struct tensor_block : attn_block {
    int32_t n_step; // of 16 channels
};

// Channels of q as bfloat16, zeros where there are none.
__device__ __forceinline__ uint16_t tensor_q(const weft_attn &op,
                                             const tensor_block &b, int32_t h,
                                             int32_t i)
{
    if (h >= b.n_head || i >= op.width) return 0;
    return to_bf16(b.q[static_cast<int64_t>(h) * op.width + i]).bits;
}

template <class S>
__device__ __forceinline__ void tensor_put_q(const tensor_shared<S> &sh,
                                             const weft_attn &op,
                                             const tensor_block &b)
{
    for (int32_t h = warp_index(); h < S::M; h += ATTN_WARPS)
        for (int32_t c = lane_index(); c < 2 * b.n_step; c += 32) {
            tensor_chunk chunk;
#pragma unroll
            for (int32_t i = 0; i < 8; i++)
                chunk.v[i] = tensor_q(op, b, h, 8 * c + i);
            *reinterpret_cast<tensor_chunk *>(
                sh.q() + tensor_shared<S>::chunk(h, c)) = chunk;
        }
}

// This warp's part of q, as the A of its steps.
template <class S>
__device__ __forceinline__ void tensor_hold_q(uint32_t held[S::STEPS][4],
                                              const weft_attn &op,
                                              const tensor_block &b)
{
    const int32_t h = warp_index() % S::MT * 16 + lane_index() / 4;
    const int32_t part = warp_index() / S::MT;
#pragma unroll
    for (int32_t k = 0; k < S::STEPS; k++)
#pragma unroll
        for (int32_t i = 0; i < 4; i++) {
            const int32_t at =
                (k * S::KS + part) * 16 + (i / 2) * 8 + lane_index() % 4 * 2;
            const uint32_t low = tensor_q(op, b, h + i % 2 * 8, at);
            const uint32_t high = tensor_q(op, b, h + i % 2 * 8, at + 1);
            held[k][i] = low | high << 16;
        }
}

// The keys of tile t, by its first KT threads.
template <class S>
__device__ __forceinline__ void
tensor_find_keys(const tensor_shared<S> &sh, const weft_paged &kv,
                 const tensor_block &b, int32_t t)
{
    const int32_t i = thread_index(), j = t * S::KT + i;
    if (i < S::KT)
        sh.keys(t)[i] = j < b.n_keys ? attn_key(kv, b.row, j) : nullptr;
}

// Begin to load tile t: a warp has every eighth row. Past a row's width and the
// last key there are zeros.
template <class S>
__device__ __forceinline__ void tensor_load(const tensor_shared<S> &sh,
                                            const tensor_block &b,
                                            int32_t width, int32_t t)
{
    const unsigned char *const *const keys = sh.keys(t);
    for (int32_t j = warp_index(); j < S::KT; j += ATTN_WARPS) {
        const unsigned char *const key = keys[j];
        for (int32_t c = lane_index(); c < 2 * b.n_step; c += 32) {
            unsigned char *const to =
                sh.tile(t) + tensor_shared<S>::chunk(j, c);
            const int32_t left = key != nullptr ? width - 8 * c : 0;
            if (left > 0 && is_aligned(key, 16)) {
                cp_async16_zero(to, key + 16 * c, left < 8 ? 2 * left : 16);
                continue;
            }
            tensor_chunk chunk = {};
            for (int32_t i = 0; i < 8 && i < left; i++)
                chunk.v[i] = reinterpret_cast<const uint16_t *>(key)[8 * c + i];
            *reinterpret_cast<tensor_chunk *>(to) = chunk;
        }
    }
    cp_async_commit();
}

// Scores of this warp's heads over its part of the channels.
template <class S>
__device__ __forceinline__ void tensor_scores(const tensor_shared<S> &sh,
                                              const uint32_t held[S::STEPS][4],
                                              const tensor_block &b, int32_t t)
{
    const int32_t mt = warp_index() % S::MT, part = warp_index() / S::MT;
    const int32_t lane = lane_index(), i = lane / 8;
    const unsigned char *const tile = sh.tile(t);
    const int32_t q_at = tensor_shared<S>::chunk(mt * 16 + i % 2 * 8 + lane % 8,
                                                 2 * part + i / 2);
    const int32_t key_at =
        tensor_shared<S>::chunk(i / 2 * 8 + lane % 8, 2 * part + i % 2);
    float s[S::KT / 8][4] = {};
#pragma unroll
    for (int32_t k = 0; k < S::STEPS; k++) {
        if (k * S::KS + part >= b.n_step) continue;
        constexpr int32_t apart = 2 * S::KS; // chunks between steps
        uint32_t a[4];
        if constexpr (S::HELD) {
#pragma unroll
            for (int32_t n = 0; n < 4; n++) a[n] = held[k][n];
        } else {
            ldmatrix_x4(a, sh.q() + tensor_shared<S>::after(q_at, apart * k));
        }
#pragma unroll
        for (int32_t n = 0; n < S::KT / 16; n++) {
            uint32_t keys[4];
            ldmatrix_x4(keys, tile +
                                  tensor_shared<S>::after(key_at, apart * k) +
                                  n * 16 * S::ROW);
            mma_bf16(s[2 * n], a, keys);
            mma_bf16(s[2 * n + 1], a, keys + 2);
        }
    }
    float *const to = sh.scores(part, mt * 16 + lane / 4) + lane % 4 * 2;
#pragma unroll
    for (int32_t n = 0; n < S::KT / 8; n++)
#pragma unroll
        for (int32_t e = 0; e < 4; e++)
            to[e / 2 * 8 * S::SCORES + n * 8 + e % 2] = s[n][e];
}

// A head's sums: of the split so far (l of this thread's keys alone), and of
// the splits before.
struct tensor_sums {
    attn_sum split, all;
};

// Weights of tile t, and the factor of the sum until here.
template <class S>
__device__ __forceinline__ void
tensor_softmax(const tensor_shared<S> &sh, tensor_sums *sums,
               const tensor_block &b, float scale, int32_t t)
{
    const int32_t h = thread_index() / S::T;
    const int32_t first = thread_index() % S::T * S::KEYS;
    float s[S::KEYS];
    float most = sums->split.m;
#pragma unroll
    for (int32_t i = 0; i < S::KEYS; i++) {
        float sum = sh.scores(0, h)[first + i];
#pragma unroll
        for (int32_t part = 1; part < S::KS; part++)
            sum += sh.scores(part, h)[first + i];
        const bool is_key = t * S::KT + first + i < b.n_keys;
        s[i] = is_key ? product(sum, scale) : attn_minus_infinity();
        most = fmaxf(most, s[i]);
    }
#pragma unroll
    for (int32_t d = S::T / 2; d >= 1; d /= 2)
        most = fmaxf(most, __shfl_xor_sync(WEFT_FULL_MASK, most, d));
    // Of nothing but -infinity no difference can be taken.
    const float base = most == attn_minus_infinity() ? 0.0f : most;
    const float alpha = exp_of(sums->split.m - base);
    float l = 0.0f;
    __syncwarp(); // all have read what weights take the place of
#pragma unroll
    for (int32_t i = 0; i < S::KEYS; i++) {
        const float p = exp_of(s[i] - base);
        const bf16 high = to_bf16(p);
        l += p;
        reinterpret_cast<bf16 *>(sh.weights(h, 0))[first + i] = high;
        reinterpret_cast<bf16 *>(sh.weights(h, 1))[first + i] =
            to_bf16(p - to_float(high));
    }
    sums->split.m = most;
    sums->split.l = fmaf(sums->split.l, alpha, l);
    if (first == 0) sh.alpha()[h] = alpha;
}

// The split is done: its sums to scratch, or into those of the row.
template <class S>
__device__ __forceinline__ void
tensor_close(const tensor_shared<S> &sh, tensor_sums *sums,
             const attn_work &work, const attn_place &place,
             const tensor_block &b)
{
    const int32_t h = thread_index() / S::T;
    sums->split.l = lanes_sum<S::T>(sums->split.l);
    attn_state state = {};
    if (!place.parked) {
        state.f = attn_take(&sums->all, sums->split, place.first);
        state.l = sums->all.l;
    }
    if (thread_index() % S::T == 0) {
        sh.state()[h] = state;
        if (place.parked && h < b.n_head)
            work.sum[attn_parked_at(work, place, b.head + h)] = sums->split;
    }
    sums->split = {attn_minus_infinity(), 0.0f};
}

// This thread's values: heads mt 16 + lane / 4 (+ 8), channels of its warp.
template <class S> struct tensor_acc {
    float v[S::MT][2 * S::NV][4];
};

template <class S>
__device__ __forceinline__ void tensor_rescale(const tensor_shared<S> &sh,
                                               tensor_acc<S> *acc)
{
#pragma unroll
    for (int32_t mt = 0; mt < S::MT; mt++) {
        const float *const alpha = sh.alpha() + mt * 16 + lane_index() / 4;
        const float a0 = alpha[0], a1 = alpha[8];
        // By 1 there is nothing to do, which is most of the time.
        if (__ballot_sync(WEFT_FULL_MASK, a0 != 1.0f || a1 != 1.0f) == 0)
            continue;
#pragma unroll
        for (int32_t n = 0; n < 2 * S::NV; n++)
#pragma unroll
            for (int32_t e = 0; e < 4; e++) acc->v[mt][n][e] *= e < 2 ? a0 : a1;
    }
}

template <class S>
__device__ __forceinline__ void tensor_values(const tensor_shared<S> &sh,
                                              tensor_acc<S> *acc,
                                              int32_t value_width, int32_t t)
{
    const int32_t lane = lane_index(), i = lane / 8;
    const int32_t channel = warp_index() * (S::VP / ATTN_WARPS);
    const unsigned char *const p_at =
        sh.weights(i % 2 * 8 + lane % 8, 0) + i / 2 * 16;
    const int32_t value_at =
        tensor_shared<S>::chunk(i % 2 * 8 + lane % 8, channel / 8 + i / 2);
#pragma unroll
    for (int32_t k = 0; k < S::KT / 16; k++) {
        uint32_t p[S::MT][2][4];
#pragma unroll
        for (int32_t mt = 0; mt < S::MT; mt++)
#pragma unroll
            for (int32_t low = 0; low < 2; low++)
                ldmatrix_x4(p[mt][low], p_at + mt * 16 * S::SCORES * 4 +
                                            low * S::KT * 2 + k * 32);
#pragma unroll
        for (int32_t n = 0; n < S::NV; n++) {
            if (channel + 16 * n >= value_width) continue;
            uint32_t c[4];
            ldmatrix_x4_trans(c, sh.tile(t) +
                                     tensor_shared<S>::after(value_at, 2 * n) +
                                     k * 16 * S::ROW);
#pragma unroll
            for (int32_t mt = 0; mt < S::MT; mt++)
#pragma unroll
                for (int32_t low = 0; low < 2; low++) {
                    mma_bf16(acc->v[mt][2 * n], p[mt][low], c);
                    mma_bf16(acc->v[mt][2 * n + 1], p[mt][low], c + 2);
                }
        }
    }
}

// Of one head: elements e and e + 1 of the fragments.
template <class S>
__device__ __forceinline__ void
tensor_put_head(const attn_work &work, const attn_place &place,
                const attn_state &state, int32_t head,
                const float v[2 * S::NV][4], int32_t e)
{
    const int32_t channel =
        warp_index() * (S::VP / ATTN_WARPS) + lane_index() % 4 * 2;
    float *const to = attn_put_at(work, place, head) + channel;
    const int32_t left = work.op.value_width - channel;
#pragma unroll
    for (int32_t n = 0; n < 2 * S::NV; n++)
#pragma unroll
        for (int32_t i = 0; i < 2; i++)
            if (8 * n + i < left)
                attn_put(to + 8 * n + i, work, place, state, v[n][e + i]);
}

// A sum that is whole goes where it belongs; the next sum begins at zero.
template <class S>
__device__ __forceinline__ void
tensor_put(const tensor_shared<S> &sh, tensor_acc<S> *acc,
           const attn_work &work, const attn_place &place,
           const tensor_block &b)
{
#pragma unroll
    for (int32_t mt = 0; mt < S::MT; mt++)
#pragma unroll
        for (int32_t half = 0; half < 2; half++) {
            const int32_t h = mt * 16 + half * 8 + lane_index() / 4;
            if (h < b.n_head)
                tensor_put_head<S>(work, place, sh.state()[h], b.head + h,
                                   acc->v[mt], 2 * half);
        }
    *acc = {};
}

template <class S>
__device__ __forceinline__ void tensor_tiles(const tensor_shared<S> &sh,
                                             const attn_work &work,
                                             const tensor_block &b)
{
    constexpr int32_t per_split = ATTN_SPLIT / S::KT;
    tensor_acc<S> acc = {};
    tensor_sums sums = {{attn_minus_infinity(), 0.0f}, {}};
    uint32_t held[S::STEPS][4] = {};
    if constexpr (S::HELD)
        tensor_hold_q<S>(held, work.op, b);
    else
        tensor_put_q(sh, work.op, b);
    tensor_find_keys(sh, work.op.kv, b, b.first);
    tensor_find_keys(sh, work.op.kv, b, b.first + 1);
    __syncthreads(); // where keys are, and q
    tensor_load(sh, b, work.op.width, b.first);
    for (int32_t t = b.first; t < b.end; t++) {
        cp_async_wait<0>();
        __syncthreads(); // tile t is there, the one before is done with
        if (t + 1 < b.end) tensor_load(sh, b, work.op.width, t + 1);
        tensor_find_keys(sh, work.op.kv, b, t + 2);
        tensor_scores(sh, held, b, t);
        __syncthreads(); // scores are there
        tensor_softmax(sh, &sums, b, work.op.scale, t);
        const bool closes = t + 1 == b.end || (t + 1) % per_split == 0;
        const attn_place place =
            attn_place_of(work, b.r, t / per_split, b.n_keys);
        if (closes) tensor_close(sh, &sums, work, place, b);
        __syncthreads(); // weights are there
        tensor_rescale(sh, &acc);
        tensor_values(sh, &acc, work.op.value_width, t);
        if (closes) tensor_put(sh, &acc, work, place, b);
    }
}

template <class S>
__device__ __forceinline__ void tensor_run(const tensor_shared<S> &sh,
                                           const attn_work &work)
{
    const tensor_block b = {attn_block_of<S::M, S::KT>(work),
                            (work.op.width + 15) / 16};
    if (b.n_keys <= 0 && blockIdx.y == 0)
        attn_put_zeros(work.op, b.r, b.head, b.n_head);
    if (b.first < b.end) tensor_tiles(sh, work, b);
}

template <class S>
__global__ void __launch_bounds__(ATTN_THREADS)
    attn_tensor(const attn_work work)
{
    WEFT_SHARED_DYNAMIC(unsigned char, base);
    if constexpr (S::BYTES <= TENSOR_ROOM)
        tensor_run(tensor_shared<S>{base}, work);
}

} // namespace weft

#endif
