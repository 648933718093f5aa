// hopper_kernels.cuh - kernels of hopper.cuh's kind, for the emulator's tests;
// nvcc compiles them too.
#ifndef WEFT_TESTS_SIMT_TEST_HOPPER_KERNELS_CUH
#define WEFT_TESTS_SIMT_TEST_HOPPER_KERNELS_CUH

#include "kernels/cuda/hopper.cuh"

namespace hopper
{

using namespace weft;

enum fault {
    NONE,
    NO_WAIT_FULL,  // products begin before the tiles are there
    NO_WAIT_EMPTY, // tiles are fetched over those in use
    EARLY_EMPTY,   // a tile is given back before its products are done
    NO_WAIT_WGMMA, // accumulators are read before they are there
    NO_FENCE,
    WRONG_BYTES, // more are expected than come
    TWO_ARRIVALS,
    WRONG_PARITY,
    NO_COMMIT,
    LEAVES_LOADS,
};

// c [m, n] = a [m, k] b [n, k]^T: one warpgroup fetches, one multiplies.
enum { BM = 64, BN = 64, BK = 64, STAGES = 3, TILE = BM * BK };
enum { FETCH_BYTES = 2 * TILE * 2, GEMM_THREADS = 2 * WARPGROUP };
// Beside the stages 1024 bytes to align them.
enum { GEMM_BYTES = STAGES * FETCH_BYTES + 1024 };

struct stage_barriers {
    mbarrier full[STAGES], empty[STAGES];
};

static __device__ bf16 *align_tiles(void *p)
{
    const uintptr_t u = reinterpret_cast<uintptr_t>(p);
    return reinterpret_cast<bf16 *>((u + 1023) & ~static_cast<uintptr_t>(1023));
}

template <int FAULT>
static __device__ void gemm_fetch(const tensor_map *a, const tensor_map *b,
                                  bf16 *tiles, stage_barriers *s, int k)
{
    const int m0 = static_cast<int>(blockIdx.y) * BM;
    const int n0 = static_cast<int>(blockIdx.x) * BN;
    const int steps = (k + BK - 1) / BK + (FAULT == LEAVES_LOADS ? 1 : 0);
    for (int i = 0; i < steps; i++) {
        const int at = i % STAGES;
        const uint32_t round = static_cast<uint32_t>(i / STAGES);
        if (FAULT != NO_WAIT_EMPTY)
            mbarrier_wait(&s->empty[at], (round & 1U) ^ 1U);
        mbarrier_arrive_expect(&s->full[at],
                               FETCH_BYTES + (FAULT == WRONG_BYTES ? 16 : 0));
        if (FAULT == TWO_ARRIVALS) mbarrier_arrive(&s->full[at]);
        bf16 *to = tiles + at * 2 * TILE;
        tma_load_2d(to, a, i * BK, m0, &s->full[at]);
        tma_load_2d(to + TILE, b, i * BK, n0, &s->full[at]);
    }
}

template <int FAULT>
static __device__ void gemm_multiply(float (&d)[BN / 2], const bf16 *tiles,
                                     stage_barriers *s, int k)
{
    const int steps = (k + BK - 1) / BK;
    for (int i = 0; i < steps; i++) {
        const int at = i % STAGES;
        const uint32_t round = static_cast<uint32_t>(i / STAGES) & 1U;
        if (FAULT != NO_WAIT_FULL)
            mbarrier_wait(&s->full[at],
                          FAULT == WRONG_PARITY ? round ^ 1U : round);
        const bf16 *a = tiles + at * 2 * TILE, *b = a + TILE;
        if (FAULT != NO_FENCE) wgmma_fence();
        for (int x = 0; x < BK; x += 16)
            wgmma_bf16<BN>(d, k_major(a + x), k_major(b + x), true);
        if (FAULT != NO_COMMIT) wgmma_commit();
        if (FAULT == EARLY_EMPTY && threadIdx.x % WARPGROUP == 0)
            mbarrier_arrive(&s->empty[at]);
        if (FAULT == EARLY_EMPTY) named_barrier_sync(2, WARPGROUP);
        if (FAULT != NO_WAIT_WGMMA) wgmma_wait<0>();
        if (FAULT != EARLY_EMPTY && threadIdx.x % WARPGROUP == 0)
            mbarrier_arrive(&s->empty[at]);
    }
}

template <int FAULT>
static __global__ void __launch_bounds__(GEMM_THREADS, 1)
    gemm_kernel(const __grid_constant__ tensor_map a,
                const __grid_constant__ tensor_map b, float *c, int m, int n,
                int k)
{
#if WEFT_HOPPER
    WEFT_SHARED_DYNAMIC(unsigned char, raw);
    WEFT_SHARED(stage_barriers, stages, [1]);
    bf16 *tiles = align_tiles(raw);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(&stages[0].full[i], 1);
            mbarrier_init(&stages[0].empty[i], 1);
        }
        fence_mbarrier();
    }
    __syncthreads();
    if (threadIdx.x < WARPGROUP) {
        registers_give<40>();
        if (threadIdx.x == 0) {
            tma_prefetch(&a);
            gemm_fetch<FAULT>(&a, &b, tiles, &stages[0], k);
        }
        return;
    }
    registers_take<232>();
    float d[BN / 2];
    for (int i = 0; i < BN / 2; i++) d[i] = 0;
    gemm_multiply<FAULT>(d, tiles, &stages[0], k);
    const int t = static_cast<int>(threadIdx.x) % WARPGROUP, l = t % 32;
    for (int i = 0; i < BN / 2; i++) {
        const int row = static_cast<int>(blockIdx.y) * BM + t / 32 * 16 +
                        l / 4 + i / 2 % 2 * 8;
        const int column =
            static_cast<int>(blockIdx.x) * BN + i / 4 * 8 + l % 4 * 2 + i % 2;
        if (row < m && column < n)
            c[static_cast<int64_t>(row) * n + column] = d[i];
    }
#endif
}

// out [64, N] = (q keys^T) keys over pages of 64 keys, in the order of `pages`,
// as attention does it without the softmax: keys [page, 64, N] are rows of both
// products, by columns in the first (k_major) and as they are in the second
// (mn_major); the first product's result is the second's a, in registers.
enum { PAGE = 64 };
template <int N> struct attend_bytes {
    enum { Q = 64 * N * 2, KEYS = PAGE * N * 2, ALL = Q + KEYS + 1024 };
};

template <int N>
static __device__ void attend_page(float (&out)[N / 2], const bf16 *q,
                                   const bf16 *keys)
{
    float s[PAGE / 2];
    wgmma_fence();
    for (int x = 0; x < N; x += 16) {
        const int tile = x / 64 * 64 * 64 + x % 64;
        wgmma_bf16<PAGE>(s, k_major(q + tile), k_major(keys + tile), x != 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    uint32_t p[PAGE / 16][4];
    for (int x = 0; x < PAGE / 16; x++)
        for (int i = 0; i < 4; i++) {
            const float *pair = s + x * 8 + i * 2;
            p[x][i] = static_cast<uint32_t>(to_bf16(pair[0]).bits) |
                      static_cast<uint32_t>(to_bf16(pair[1]).bits) << 16;
        }
    wgmma_fence();
    for (int x = 0; x < PAGE / 16; x++)
        wgmma_bf16<N, true>(out, p[x], mn_major(keys + x * 16 * 64, 64 * 128),
                            true);
    wgmma_commit();
    wgmma_wait<0>();
}

template <int N>
static __global__ void __launch_bounds__(WARPGROUP, 1)
    attend_kernel(const __grid_constant__ tensor_map q,
                  const __grid_constant__ tensor_map keys, const int32_t *pages,
                  int n_pages, float *out)
{
#if WEFT_HOPPER
    WEFT_SHARED_DYNAMIC(unsigned char, raw);
    WEFT_SHARED(mbarrier, full, [1]);
    bf16 *q_tiles = align_tiles(raw), *key_tiles = q_tiles + 64 * N;
    const int t = static_cast<int>(threadIdx.x), l = t % 32;
    if (t == 0) {
        mbarrier_init(full, 1);
        fence_mbarrier();
    }
    __syncthreads();
    float acc[N / 2];
    for (int i = 0; i < N / 2; i++) acc[i] = 0;
    for (int i = 0; i < n_pages; i++) {
        if (t == 0) {
            using bytes = attend_bytes<N>;
            mbarrier_arrive_expect(full, bytes::KEYS + (i ? 0 : bytes::Q));
            for (int x = 0; x < N; x += 64) {
                tma_load_3d(key_tiles + x * 64, &keys, x, 0, pages[i], full);
                if (i == 0) tma_load_2d(q_tiles + x * 64, &q, x, 0, full);
            }
        }
        mbarrier_wait(full, static_cast<uint32_t>(i) & 1U);
        attend_page<N>(acc, q_tiles, key_tiles);
        __syncthreads();
    }
    for (int i = 0; i < N / 2; i++)
        out[(t / 32 * 16 + l / 4 + i / 2 % 2 * 8) * N + i / 4 * 8 + l % 4 * 2 +
            i % 2] = acc[i];
#endif
}

} // namespace hopper

#endif
