// gemm.h - c = a b^T with mma, ldmatrix and double-buffered cp.async: a kernel
// of the kind that the backend has, with places to plant faults.
#ifndef WEFT_TESTS_SIMT_TEST_GEMM_H
#define WEFT_TESTS_SIMT_TEST_GEMM_H

#include "tests/simt/test/kit.h"

namespace gemm
{

using weft::bf16;

enum fault {
    NONE,
    WAITS_TOO_LITTLE,     // one group too many left under way
    NO_BARRIER_AFTER_USE, // the next tile is fetched over the one in use
    NO_BARRIER_BEFORE_USE,
    LEAVES_PENDING, // fetches a tile that nobody waits for
};

enum { BM = 64, BN = 32, BK = 32, THREADS = 128 };
// Rows of 40 elements: 16-byte aligned, and no conflicts of banks on a GPU.
enum { PITCH = BK + 8, TILE = (BM + BN) * PITCH };

struct problem {
    const bf16 *a, *b; // [m, k], [n, k]
    float *c;          // [m, n]
    int m, n, k;       // k a multiple of 8
};

static __device__ void fetch_rows(bf16 *to, const bf16 *from, int rows,
                                  int first, int n, int k0, int k)
{
    for (int i = threadIdx.x; i < rows * BK / 8; i += THREADS) {
        const int row = i / (BK / 8), at = k0 + i % (BK / 8) * 8;
        const bool in = first + row < n && at < k;
        const bf16 *source =
            in ? from + static_cast<int64_t>(first + row) * k + at : from;
        weft::cp_async16_zero(to + row * PITCH + i % (BK / 8) * 8, source,
                              in ? 16 : 0);
    }
}

static __device__ void fetch(bf16 *tile, const problem &p, int k0)
{
    fetch_rows(tile, p.a, BM, static_cast<int>(blockIdx.y) * BM, p.m, k0, p.k);
    fetch_rows(tile + BM * PITCH, p.b, BN, static_cast<int>(blockIdx.x) * BN,
               p.n, k0, p.k);
    weft::cp_async_commit();
}

static __device__ void multiply(float acc[BN / 8][4], const bf16 *tile)
{
    const int w = threadIdx.x / 32, l = threadIdx.x % 32;
    const bf16 *a = tile + w * 16 * PITCH, *b = tile + BM * PITCH;
    for (int k = 0; k < BK; k += 16) {
        uint32_t fa[4], fb[4];
        weft::ldmatrix_x4(fa, a + l % 16 * PITCH + k + l / 16 * 8);
        for (int n = 0; n < BN; n += 16) {
            weft::ldmatrix_x4(fb, b + (n + l % 8 + l / 16 * 8) * PITCH + k +
                                      l / 8 % 2 * 8);
            weft::mma_bf16(acc[n / 8], fa, fb);
            weft::mma_bf16(acc[n / 8 + 1], fa, fb + 2);
        }
    }
}

template <int FAULT>
static __global__ void __launch_bounds__(THREADS) kernel(problem p)
{
    WEFT_SHARED_DYNAMIC(bf16, tiles);
    float acc[BN / 8][4] = {};
    fetch(tiles, p, 0);
    for (int k = 0, s = 0; k < p.k; k += BK, s ^= 1) {
        const bool more = k + BK < p.k;
        if (more || FAULT == LEAVES_PENDING)
            fetch(tiles + (s ^ 1) * TILE, p, k + BK);
        if (more)
            weft::cp_async_wait<FAULT == WAITS_TOO_LITTLE ? 2 : 1>();
        else
            weft::cp_async_wait<FAULT == LEAVES_PENDING ? 1 : 0>();
        if (FAULT != NO_BARRIER_BEFORE_USE) __syncthreads();
        multiply(acc, tiles + s * TILE);
        if (FAULT != NO_BARRIER_AFTER_USE) __syncthreads();
    }
    const int l = threadIdx.x % 32;
    const int m = static_cast<int>(blockIdx.y) * BM +
                  static_cast<int>(threadIdx.x) / 32 * 16 + l / 4;
    for (int j = 0; j < BN / 8; j++)
        for (int i = 0; i < 4; i++) {
            const int row = m + i / 2 * 8;
            const int column =
                static_cast<int>(blockIdx.x) * BN + j * 8 + l % 4 * 2 + i % 2;
            if (row < p.m && column < p.n)
                p.c[static_cast<int64_t>(row) * p.n + column] = acc[j][i];
        }
}

// Runs it; the largest difference to plain loops, NaN if there is one.
template <int FAULT> static float difference(int m, int n, int k)
{
    kit::random r = {7};
    const size_t na = static_cast<size_t>(m * k),
                 nb = static_cast<size_t>(n * k);
    const size_t nc = static_cast<size_t>(m * n);
    bf16 *a = new bf16[na], *b = new bf16[nb];
    float *c = new float[nc];
    for (size_t i = 0; i < na; i++) a[i] = weft::to_bf16(r.next());
    for (size_t i = 0; i < nb; i++) b[i] = weft::to_bf16(r.next());
    const problem p = {a, b, c, m, n, k};
    const dim3 grid(static_cast<unsigned>((n + BN - 1) / BN),
                    static_cast<unsigned>((m + BM - 1) / BM));
    auto run = kernel<FAULT>;
    WEFT_LAUNCH(run, grid, dim3(THREADS), 2 * TILE * sizeof(bf16), nullptr, p);
    float worst = 0;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int x = 0; x < k; x++)
                sum += static_cast<double>(weft::to_float(a[i * k + x])) *
                       static_cast<double>(weft::to_float(b[j * k + x]));
            const float d = fabsf(static_cast<float>(sum) - c[i * n + j]);
            if (!(d <= worst)) worst = d;
            if (isnan(d)) return d;
        }
    delete[] a;
    delete[] b;
    delete[] c;
    return worst;
}

} // namespace gemm

#endif
