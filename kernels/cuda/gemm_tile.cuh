// gemm_tile.cuh - what the products share: how a block finds its part of a
// list, and how rows of a matrix come into shared memory.
//
// Everything that is staged is staged as it lies in memory, in 16-byte chunks
// that are swizzled so that eight neighbouring rows of one chunk lie in
// different banks (CUTLASS's "XOR layout", described in CUDA C++ Programming
// Guide, "Shared memory", bank conflicts). Where addresses or row lengths are
// not multiples of 16 bytes the same chunks are put together by plain loads;
// past the end of a row they are zeros and nothing is read.
#ifndef WEFT_KERNELS_CUDA_GEMM_TILE_CUH
#define WEFT_KERNELS_CUDA_GEMM_TILE_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/matrix.h"
#include "kernels/ops.h"

namespace weft
{

// Beside bf16 (device.cuh).
struct f16 {
    uint16_t bits;
};
struct f8_e4m3 {
    uint8_t bits;
};

// One product: y[r] = W x[x_rows[r]].
struct product {
    const unsigned char *w;
    const float *scales;
    const float *x;
    const int32_t *x_rows;
    float *y;
    int64_t x_stride, y_stride;
    int32_t n_row, n_out, n_in;
    uint8_t dtype, round_bf16;
};

// Products of one shape whose pointers are evenly spaced: the heads of a layer,
// or gate and up. `first` is its first tile in the launch.
struct product_run {
    product p;
    int64_t w_step, scales_step, x_step, y_step;
    int32_t count, first;
};

// A launch's list, as a kernel parameter (4 KiB at most).
enum { RUNS_MAX = 32 };
struct product_list {
    product_run runs[RUNS_MAX];
    int32_t n;
};
static_assert(sizeof(product_list) <= 4096, "kernel parameters");

// Where a block works.
struct place {
    int32_t out, row;
};

__host__ __device__ inline int32_t tiles_of(int32_t n, int32_t tile)
{
    return (n + tile - 1) / tile;
}

// Tiles go in bands of 8 tiles of rows, rows fastest inside a band: blocks that
// run together share weights and stay within few rows of x.
__device__ inline place place_of(int32_t tile, int32_t row_tiles,
                                 int32_t out_tiles)
{
    constexpr int32_t BAND = 8;
    const int32_t band = tile / (BAND * out_tiles);
    const int32_t in_band = tile % (BAND * out_tiles);
    const int32_t left = row_tiles - band * BAND;
    const int32_t high = left < BAND ? left : BAND;
    return {in_band / high, band * BAND + in_band % high};
}

// The product and place of tile number `tile` of a run, and which product of it
// that is.
__device__ inline product product_of_run(const product_run &run, int32_t tile,
                                         int32_t outs, int32_t rows,
                                         place *place_out, int32_t *which_out)
{
    product p = run.p;
    const int32_t row_tiles = tiles_of(p.n_row, rows);
    const int32_t out_tiles = tiles_of(p.n_out, outs);
    const int32_t which = tile / (row_tiles * out_tiles);
    *which_out = which;
    *place_out = place_of(tile % (row_tiles * out_tiles), row_tiles, out_tiles);
    place_out->out *= outs;
    place_out->row *= rows;
    p.w += which * run.w_step;
    p.scales += which * run.scales_step;
    p.x += which * run.x_step;
    p.y += which * run.y_step;
    return p;
}

// The same of a list.
__device__ inline product find_product(const product_list &list, int32_t tile,
                                       int32_t outs, int32_t rows,
                                       place *place_out)
{
    int32_t i = 0, which;
    while (i + 1 < list.n && list.runs[i + 1].first <= tile) i++;
    return product_of_run(list.runs[i], tile - list.runs[i].first, outs, rows,
                          place_out, &which);
}

// Byte offset of a chunk in a staged tile whose rows are PITCH bytes.
template <int PITCH> __device__ inline int32_t chunk_at(int32_t row, int32_t c)
{
    constexpr int32_t CHUNKS = PITCH / 16;
    constexpr int32_t ROWS_A_LINE = CHUNKS < 8 ? 8 / CHUNKS : 1;
    constexpr int32_t MASK = (CHUNKS < 8 ? CHUNKS : 8) - 1;
    return row * PITCH + ((c ^ (row / ROWS_A_LINE & MASK)) * 16);
}

// Rows in global memory to stage: `pitch` bytes apart, `bytes` long each.
struct staged {
    const unsigned char *at;
    const int32_t *rows; // gathers, or NULL
    int64_t pitch;
    int32_t n_row, bytes;
    bool aligned; // rows begin at multiples of 16 bytes
};

__device__ inline bool rows_aligned(const void *at, int64_t pitch)
{
    return ((reinterpret_cast<uintptr_t>(at) | static_cast<uint64_t>(pitch)) &
            15U) == 0;
}

__device__ inline staged staged_weights(const product &p, int32_t elem)
{
    const int64_t pitch = static_cast<int64_t>(p.n_in) * elem;
    return {p.w,     nullptr,       pitch,
            p.n_out, p.n_in * elem, rows_aligned(p.w, pitch)};
}

__device__ inline staged staged_x(const product &p)
{
    return {reinterpret_cast<const unsigned char *>(p.x),
            p.x_rows,
            p.x_stride * 4,
            p.n_row,
            p.n_in * 4,
            rows_aligned(p.x, p.x_stride * 4)};
}

// `bytes` (a multiple of ELEM, at most 16) and zeros after them, by loads of
// elements.
template <int ELEM>
__device__ inline void copy_chunk(unsigned char *to, const unsigned char *from,
                                  int32_t bytes)
{
    uint32_t word[4] = {0, 0, 0, 0};
#pragma unroll
    for (int32_t i = 0; i < 16 / ELEM; i++) {
        if (i * ELEM >= bytes) continue;
        uint32_t v;
        if (ELEM == 4)
            v = reinterpret_cast<const uint32_t *>(from)[i];
        else if (ELEM == 2)
            v = reinterpret_cast<const uint16_t *>(from)[i];
        else
            v = from[i];
        word[i * ELEM / 4] |= v << (i * ELEM % 4 * 8);
    }
#pragma unroll
    for (int32_t i = 0; i < 4; i++)
        reinterpret_cast<uint32_t *>(to)[i] = word[i];
}

// Stage ROWS rows from `row` on, PITCH bytes from byte `byte` of each on; what
// lies outside is zeros. There after the wait of the group of copies.
template <int ROWS, int PITCH, int THREADS, int ELEM>
__device__ inline void stage(unsigned char *to, const staged &s, int32_t row,
                             int32_t byte)
{
    constexpr int32_t CHUNKS = PITCH / 16;
#pragma unroll
    for (int32_t i = 0; i < ROWS * CHUNKS; i += THREADS) {
        const int32_t n = i + static_cast<int32_t>(threadIdx.x);
        if (ROWS * CHUNKS % THREADS != 0 && n >= ROWS * CHUNKS) break;
        const int32_t r = n / CHUNKS, at = byte + n % CHUNKS * 16;
        const bool in = row + r < s.n_row && at < s.bytes;
        const int32_t left = in ? s.bytes - at : 0;
        const unsigned char *from = s.at;
        if (in) {
            const int32_t which = s.rows != nullptr ? s.rows[row + r] : row + r;
            from += which * s.pitch + at;
        }
        unsigned char *const chunk = to + chunk_at<PITCH>(r, n % CHUNKS);
        if (s.aligned)
            cp_async16_zero(chunk, from, left < 16 ? left : 16);
        else
            copy_chunk<ELEM>(chunk, from, left < 16 ? left : 16);
    }
}

__device__ inline void store_y(const product &p, int32_t row, int32_t out,
                               float value)
{
    if (row >= p.n_row || out >= p.n_out) return;
    p.y[row * p.y_stride + out] = p.round_bf16 ? round_bf16(value) : value;
}

} // namespace weft

#endif
