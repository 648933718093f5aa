// attn_hopper.cuh - latent attention on compute capability 9.0a, by wgmma, of
// bfloat16 queries over a bfloat16 cache and for many heads.
//
// A block has 64 heads of one row, which are the M of both products, and goes
// through the row's keys in tiles of KT. Three warpgroups: one fetches tiles,
// two multiply. A tile is used twice while it is in shared memory: its rows are
// columns of the B of the scores (k_major), and rows of the B of the values
// (mn_major). Scores stay in registers, and as weights they are the A of the
// values: hi + lo, two bfloat16, so that they keep 16 bits.
//
// The values of 64 heads and 256 channels are 128 registers of a thread. So
// each of the two warpgroups has 256 channels, and takes all the scores for
// itself: that is a third more products than if they shared the scores, but
// they then meet at no barrier. Of 1024 channels a block has one half, and
// there are two such blocks (work of the grid's z).
//
// Shared memory, of 227 KiB: q, 64 rows, and the tiles.
//   576 wide   q 72 KiB, two tiles of 64 keys 144 KiB         = 216 KiB
//   1088 wide  q 136 KiB, two tiles of 16 keys 68 KiB         = 204 KiB
//              (one tile of 32 would be as large, but nothing would be fetched
//              while it is in use; two of 32 are 272 KiB)
//
// Rows are fetched by cp.async, 16 bytes at a time: the first key of a window
// and selected keys are anywhere in a page, and TMA swizzles by eights of rows
// alone. 64-channel parts of a tile are swizzled by 128 bytes. Past the last
// key and past a row's width there are zeros, never what memory holds.
//
// Tiles begin at multiples of KT of the list of visible keys, so a row's sums
// have one order, though not that of attn_tensor.cuh: which of the two runs
// depends on the model and the device alone.
//
// Sources: those of attn_tensor.cuh; PTX ISA, "Register Fragments for
// wgmma.mma_async.m64nNk16".
#ifndef WEFT_KERNELS_CUDA_ATTN_HOPPER_CUH
#define WEFT_KERNELS_CUDA_ATTN_HOPPER_CUH

#include "kernels/cuda/attn_fold.cuh"
#include "kernels/cuda/hopper.cuh"

namespace weft
{

// WP: at least the width, a multiple of 64. PARTS of 512 channels of values.
template <int WP_, int PARTS_, int KT_, int STAGES_> struct attn_hopper_shape {
    static constexpr int WP = WP_, PARTS = PARTS_, KT = KT_, STAGES = STAGES_;
    static constexpr int M = 64, THREADS = 3 * WARPGROUP, NV = 256;
    static constexpr int ROWS = KT / 4; // of a tile, that a warp fetches
    static constexpr int Q_PART = M * 128, TILE_PART = KT * 128; // 64 channels
    static constexpr int TILE_AT = WP / 64 * Q_PART;
    static constexpr int TILE = WP / 64 * TILE_PART;
    static constexpr int BARRIER_AT = TILE_AT + STAGES * TILE;
    // 1024 beside them to align the tiles.
    static constexpr int BYTES = 1024 + BARRIER_AT + stage_ring<STAGES>::BYTES;

    static_assert(WP % 64 == 0 && KT % 16 == 0 && ATTN_SPLIT % KT == 0,
                  "tiles");
    static_assert(BYTES <= 227 << 10, "what a block can have");
};
using attn_hopper_full = attn_hopper_shape<576, 1, 64, 2>;
using attn_hopper_window = attn_hopper_shape<1088, 2, 16, 2>;

// The parts of a block's shared memory.
template <class S> struct attn_hopper_shared : stage_ring<S::STAGES> {
    unsigned char *base;

    __device__ __forceinline__ explicit attn_hopper_shared(unsigned char *at)
        : base(tile_aligned(at))
    {
        this->barriers = reinterpret_cast<mbarrier *>(base + S::BARRIER_AT);
    }
    // The i-th tile of the block.
    __device__ __forceinline__ unsigned char *tile(int32_t i) const
    {
        return base + S::TILE_AT + i % S::STAGES * S::TILE;
    }
    // Chunk c of 8 channels of row r; parts of 64 channels are `part` bytes.
    __device__ static __forceinline__ uint32_t chunk(int32_t r, int32_t c,
                                                     int32_t part)
    {
        return static_cast<uint32_t>(c / 8 * part) +
               swizzled(static_cast<uint32_t>(r * 128 + c % 8 * 16));
    }
};

struct alignas(16) attn_chunk {
    uint16_t v[8];
};

// --- Into shared memory ------------------------------------------------------

template <class S>
__device__ __forceinline__ void
attn_hopper_begin(const attn_hopper_shared<S> &sh, const weft_attn &op,
                  const attn_block &b)
{
    sh.init(4, 2 * WARPGROUP / 32);
    for (int32_t h = warp_index(); h < S::M; h += S::THREADS / 32) {
        const float *const q = b.q + static_cast<int64_t>(h) * op.width;
        for (int32_t c = lane_index(); c < S::WP / 8; c += 32) {
            attn_chunk chunk;
#pragma unroll
            for (int32_t i = 0; i < 8; i++) {
                const bool is_there = h < b.n_head && 8 * c + i < op.width;
                chunk.v[i] = is_there ? to_bf16(q[8 * c + i]).bits : uint16_t{};
            }
            *reinterpret_cast<attn_chunk *>(
                sh.base + attn_hopper_shared<S>::chunk(h, c, S::Q_PART)) =
                chunk;
        }
    }
    fence_async();
    __syncthreads();
}

// One row of a tile; key NULL: there is none.
template <class S>
__device__ __forceinline__ void attn_hopper_fetch_row(unsigned char *tile,
                                                      const unsigned char *key,
                                                      int32_t width, int32_t r)
{
    const bool aligned = is_aligned(key, 16);
#pragma unroll
    for (int32_t i = 0; i < (S::WP / 8 + 31) / 32; i++) {
        const int32_t c = i * 32 + lane_index();
        if (c >= S::WP / 8) break;
        unsigned char *const to =
            tile + attn_hopper_shared<S>::chunk(r, c, S::TILE_PART);
        const int32_t left = key != nullptr ? width - 8 * c : 0;
        if (left > 0 && aligned) {
            cp_async16_zero(to, key + 16 * c, left < 8 ? 2 * left : 16);
            continue;
        }
        attn_chunk chunk = {};
        for (int32_t e = 0; e < 8 && e < left; e++)
            chunk.v[e] = reinterpret_cast<const uint16_t *>(key)[8 * c + e];
        *reinterpret_cast<attn_chunk *>(to) = chunk;
    }
}

// Where the key of this lane's row of tile t is: lane i of warp w has row
// w ROWS + i.
template <class S>
__device__ __forceinline__ const unsigned char *
attn_hopper_find(const weft_paged &kv, const attn_block &b, int32_t t)
{
    const int32_t j = t * S::KT + warp_index() * S::ROWS + lane_index();
    const bool is_there = lane_index() < S::ROWS && t < b.end && j < b.n_keys;
    return is_there ? attn_key(kv, b.row, j) : nullptr;
}

__device__ __forceinline__ const unsigned char *
attn_hopper_of_lane(const unsigned char *at, int32_t lane)
{
    const uint64_t u = reinterpret_cast<uintptr_t>(at);
    const uint64_t low =
        __shfl_sync(WEFT_FULL_MASK, static_cast<uint32_t>(u), lane);
    const uint64_t high =
        __shfl_sync(WEFT_FULL_MASK, static_cast<uint32_t>(u >> 32), lane);
    return reinterpret_cast<const unsigned char *>(
        static_cast<uintptr_t>(high << 32 | low));
}

// What this thread fetched of the i-th tile is there for wgmma.
template <class S>
__device__ __forceinline__ void
attn_hopper_hand_over(const attn_hopper_shared<S> &sh, int32_t i)
{
    fence_async();
    __syncwarp();
    if (lane_index() == 0) mbarrier_arrive(sh.full(i));
}

// The warpgroup that fetches: a tile is handed over when the next is under way.
template <class S>
__device__ __forceinline__ void
attn_hopper_fetch(const attn_hopper_shared<S> &sh, const weft_attn &op,
                  const attn_block &b)
{
    const unsigned char *key = attn_hopper_find<S>(op.kv, b, b.first);
    const int32_t n = b.end - b.first;
#pragma unroll 1
    for (int32_t i = 0; i < n; i++) {
        const unsigned char *const next =
            attn_hopper_find<S>(op.kv, b, b.first + i + 1);
        sh.wait_empty(i);
#pragma unroll 1
        for (int32_t r = 0; r < S::ROWS; r++)
            attn_hopper_fetch_row<S>(sh.tile(i), attn_hopper_of_lane(key, r),
                                     op.width, warp_index() * S::ROWS + r);
        cp_async_commit();
        if (i > 0) {
            cp_async_wait<1>();
            attn_hopper_hand_over(sh, i - 1);
        }
        key = next;
    }
    cp_async_wait<0>();
    attn_hopper_hand_over(sh, n - 1);
}

// --- Products ----------------------------------------------------------------

// Of a thread: two heads, lane / 4 of its warp's 16 and the one 8 further on.
struct attn_hopper_sums {
    attn_sum split[2], all[2]; // l of the split: of this thread's keys alone
};

template <class S>
__device__ __forceinline__ void
attn_hopper_scores(const attn_hopper_shared<S> &sh, float (&s)[S::KT / 2],
                   int32_t i)
{
    const unsigned char *const tile = sh.tile(i);
    wgmma_fence();
#pragma unroll
    for (int32_t x = 0; x < S::WP / 16; x++)
        wgmma_bf16<S::KT>(s, k_major(sh.base + x / 4 * S::Q_PART + x % 4 * 32),
                          k_major(tile + x / 4 * S::TILE_PART + x % 4 * 32),
                          x != 0);
    wgmma_commit();
    wgmma_wait<0>();
}

// Scores of head `half` become weights; the factor of the sum until here.
template <class S>
__device__ __forceinline__ float
attn_hopper_softmax(float (&s)[S::KT / 2], attn_sum *split, int32_t half,
                    float scale, int32_t left)
{
    float most = split->m;
#pragma unroll
    for (int32_t k = 0; k < S::KT / 4; k++) {
        const int32_t at = k / 2 * 4 + half * 2 + k % 2;
        const int32_t key = k / 2 * 8 + lane_index() % 4 * 2 + k % 2;
        s[at] = key < left ? product(s[at], scale) : attn_minus_infinity();
        most = fmaxf(most, s[at]);
    }
    most = fmaxf(most, __shfl_xor_sync(WEFT_FULL_MASK, most, 1));
    most = fmaxf(most, __shfl_xor_sync(WEFT_FULL_MASK, most, 2));
    // Of nothing but -infinity no difference can be taken.
    const float base = most == attn_minus_infinity() ? 0.0f : most;
    const float alpha = exp_of(split->m - base);
    float l = 0.0f;
#pragma unroll
    for (int32_t k = 0; k < S::KT / 4; k++) {
        const int32_t at = k / 2 * 4 + half * 2 + k % 2;
        s[at] = exp_of(s[at] - base);
        l += s[at];
    }
    split->m = most;
    split->l = fmaf(split->l, alpha, l);
    return alpha;
}

// Weights of 16 keys as A: hi, and what is left of them.
__device__ __forceinline__ void
attn_hopper_weights(uint32_t (&hi)[4], uint32_t (&lo)[4], const float *s)
{
#pragma unroll
    for (int32_t i = 0; i < 4; i++) {
        const bf16 h0 = to_bf16(s[2 * i]), h1 = to_bf16(s[2 * i + 1]);
        const bf16 l0 = to_bf16(s[2 * i] - to_float(h0));
        const bf16 l1 = to_bf16(s[2 * i + 1] - to_float(h1));
        hi[i] = static_cast<uint32_t>(h1.bits) << 16 | h0.bits;
        lo[i] = static_cast<uint32_t>(l1.bits) << 16 | l0.bits;
    }
}

template <class S>
__device__ __forceinline__ void attn_hopper_rescale(float (&acc)[S::NV / 2],
                                                    const float (&alpha)[2])
{
    // By 1 there is nothing to do, which is most of the time.
    if (__ballot_sync(WEFT_FULL_MASK, alpha[0] != 1.0f || alpha[1] != 1.0f) ==
        0)
        return;
#pragma unroll
    for (int32_t k = 0; k < S::NV / 2; k++) acc[k] *= alpha[k / 2 % 2];
}

// `values`: the first part of a tile with this warpgroup's channels.
template <class S>
__device__ __forceinline__ void attn_hopper_values(float (&acc)[S::NV / 2],
                                                   const float (&s)[S::KT / 2],
                                                   const unsigned char *values)
{
    uint32_t p[S::KT / 16][2][4];
#pragma unroll
    for (int32_t x = 0; x < S::KT / 16; x++)
        attn_hopper_weights(p[x][0], p[x][1], s + 8 * x);
    wgmma_fence();
#pragma unroll
    for (int32_t x = 0; x < S::KT / 16; x++)
#pragma unroll
        for (int32_t low = 0; low < 2; low++)
            wgmma_bf16<S::NV, true>(
                acc, p[x][low], mn_major(values + x * 16 * 128, S::TILE_PART),
                true);
    wgmma_commit();
    wgmma_wait<0>();
}

// A split is done: its sums and values go where they belong, and the next
// begins at zero. `channel`: the first of this warpgroup.
template <class S>
__device__ __forceinline__ void
attn_hopper_close(float (&acc)[S::NV / 2], attn_hopper_sums *sums,
                  const attn_work &work, const attn_place &place,
                  const attn_block &b, int32_t channel)
{
    const int32_t lane = lane_index();
#pragma unroll
    for (int32_t half = 0; half < 2; half++) {
        const int32_t h = warp_index() % 4 * 16 + lane / 4 + half * 8;
        attn_sum split = sums->split[half];
        split.l = lanes_sum<4>(split.l);
        sums->split[half] = {attn_minus_infinity(), 0.0f};
        attn_state state = {};
        if (!place.parked) {
            state.f = attn_take(&sums->all[half], split, place.first);
            state.l = sums->all[half].l;
        }
        if (h >= b.n_head) continue;
        if (place.parked && channel == 0 && lane % 4 == 0)
            work.sum[attn_parked_at(work, place, b.head + h)] = split;
        const int32_t first = channel + lane % 4 * 2;
        float *const to = attn_put_at(work, place, b.head + h) + first;
        const int32_t left = work.op.value_width - first;
#pragma unroll
        for (int32_t k = 0; k < S::NV / 4; k++) {
            const int32_t d = k / 2 * 8 + k % 2;
            if (d < left)
                attn_put(to + d, work, place, state,
                         acc[k / 2 * 4 + half * 2 + k % 2]);
        }
    }
#pragma unroll
    for (int32_t k = 0; k < S::NV / 2; k++) acc[k] = 0.0f;
}

// A warpgroup that multiplies.
template <class S>
__device__ __forceinline__ void
attn_hopper_multiply(const attn_hopper_shared<S> &sh, const attn_work &work,
                     const attn_block &b)
{
    constexpr int32_t per_split = ATTN_SPLIT / S::KT;
    const int32_t group = thread_index() / WARPGROUP - 1;
    const int32_t channel =
        (static_cast<int32_t>(blockIdx.z) * 2 + group) * S::NV;
    float acc[S::NV / 2];
#pragma unroll
    for (int32_t k = 0; k < S::NV / 2; k++) acc[k] = 0.0f;
    attn_hopper_sums sums = {
        {{attn_minus_infinity(), 0.0f}, {attn_minus_infinity(), 0.0f}}, {}};
#pragma unroll 1
    for (int32_t t = b.first; t < b.end; t++) {
        const int32_t i = t - b.first, left = b.n_keys - t * S::KT;
        float s[S::KT / 2], alpha[2];
        sh.wait_full(i);
        attn_hopper_scores<S>(sh, s, i);
#pragma unroll
        for (int32_t half = 0; half < 2; half++)
            alpha[half] = attn_hopper_softmax<S>(s, &sums.split[half], half,
                                                 work.op.scale, left);
        attn_hopper_rescale<S>(acc, alpha);
        attn_hopper_values<S>(acc, s, sh.tile(i) + channel / 64 * S::TILE_PART);
        __syncwarp();
        if (lane_index() == 0) mbarrier_arrive(sh.empty(i));
        if (t + 1 != b.end && (t + 1) % per_split != 0) continue;
        const attn_place place =
            attn_place_of(work, b.r, t / per_split, b.n_keys);
        attn_hopper_close<S>(acc, &sums, work, place, b, channel);
    }
}

// Grid: attn_work's, and z = parts of the values.
template <class S>
__global__ void __launch_bounds__(S::THREADS, 1)
    attn_hopper(const attn_work work)
{
#if WEFT_HOPPER
    WEFT_SHARED_DYNAMIC(unsigned char, base);
    const attn_hopper_shared<S> sh(base);
    const attn_block b = attn_block_of<S::M, S::KT>(work);
    const bool is_first = blockIdx.y == 0 && blockIdx.z == 0;
    if (b.n_keys <= 0 && is_first && thread_index() < ATTN_THREADS)
        attn_put_zeros(work.op, b.r, b.head, b.n_head);
    if (b.first >= b.end) return;
    attn_hopper_begin<S>(sh, work.op, b);
    if (thread_index() < WARPGROUP) {
        registers_give<40>();
        attn_hopper_fetch<S>(sh, work.op, b);
    } else {
        registers_take<232>();
        attn_hopper_multiply<S>(sh, work, b);
    }
#else
    refuse_device();
#endif
}

} // namespace weft

#endif
