// grouped.cu - the products of experts with the rows that were routed to them.
//
// How many rows an expert has is known on the device alone, so a grid has a
// slot for every tile that there could be, and a block finds out what is in its
// slot from `first`. Slots are numbered in one of two ways, whichever needs
// fewer:
//
//   by pair   slot i is the tile that begins with pair i, if one does;
//   by tile   with tiles of R rows, the slots of expert e begin at
//             first[e] / R + e. The next expert's begin late enough, because
//             in whole numbers ceil(n / R) <= (f + n) / R - f / R + 1.
//
// Both numbers rise with e, so the expert is found by search.
//
// A type may differ by expert, so the choice between the forms of gemm.cu is
// made in the block; sums are the same as there.
#include "kernels/cuda/gemm_exact.cuh"
#include "kernels/cuda/gemm_hopper.cuh"
#include "kernels/cuda/gemm_mma.cuh"
#include "kernels/cuda/launch.h"

namespace weft
{

namespace
{

// The rows of a tile: rows [row, ...) of the `count` of expert `expert`, whose
// first pair is `first`. count 0: there is none.
struct expert_rows {
    int32_t expert, first, count, row;
};

template <bool BY_PAIR>
__device__ __forceinline__ int32_t first_slot(const int32_t *first, int32_t e,
                                              int32_t tile_rows)
{
    return BY_PAIR ? first[e] : first[e] / tile_rows + e;
}

// The last expert whose slots begin at `slot` or before; by a warp, 32 probes
// at a time.
template <bool BY_PAIR>
__device__ __forceinline__ int32_t find_expert(const int32_t *first, int32_t n,
                                               int32_t tile_rows, int32_t slot)
{
    int32_t low = 0, width = n;
    while (width > 0) {
        const int32_t step = (width + 31) / 32;
        const int32_t e = low + lane_index() * step;
        const bool below =
            e < low + width && first_slot<BY_PAIR>(first, e, tile_rows) <= slot;
        const int32_t count = __popc(__ballot_sync(WEFT_FULL_MASK, below));
        if (count == 0) break;
        const int32_t end = low + width;
        low += (count - 1) * step + 1;
        width = end - low < step - 1 ? end - low : step - 1;
    }
    return low - 1;
}

template <bool BY_PAIR>
__device__ __forceinline__ expert_rows find_rows(const weft_grouped &op,
                                                 int32_t tile_rows,
                                                 int32_t slot)
{
    const int32_t e =
        find_expert<BY_PAIR>(op.first, op.n_expert, tile_rows, slot);
    if (e < 0) return {};
    const int32_t first = op.first[e], count = op.first[e + 1] - first;
    const int32_t in_expert =
        slot - first_slot<BY_PAIR>(op.first, e, tile_rows);
    const int32_t row = BY_PAIR ? in_expert : in_expert * tile_rows;
    if (row >= count || row % tile_rows != 0) return {};
    return {e, first, count, row};
}

__device__ __forceinline__ product expert_product(const weft_grouped &op,
                                                  const expert_rows &rows)
{
    const unsigned char *const at =
        reinterpret_cast<const unsigned char *>(op.w) +
        rows.expert * op.w_stride;
    const weft_matrix &w = *reinterpret_cast<const weft_matrix *>(at);
    product p = {};
    p.w = static_cast<const unsigned char *>(w.data);
    p.scales = w.scales;
    p.x = op.x;
    if (op.x_rows != nullptr)
        p.x_rows = op.x_rows + rows.first;
    else
        p.x += rows.first * op.x_stride;
    p.y = op.y + rows.first * op.y_stride;
    p.x_stride = op.x_stride;
    p.y_stride = op.y_stride;
    p.n_row = rows.count;
    p.n_out = op.n_out;
    p.n_in = op.n_in;
    p.dtype = static_cast<uint8_t>(w.dtype);
    p.round_bf16 = op.round == WEFT_ROUND_BF16;
    return p;
}

// A tile of M by tiles of E.
template <class M, class E>
__device__ __forceinline__ void exact_tiles(const product &p, place at,
                                            unsigned char *shared)
{
#pragma unroll 1
    for (int32_t row = at.row; row < at.row + M::rows; row += E::rows)
#pragma unroll 1
        for (int32_t out = at.out; out < at.out + M::outs; out += E::outs)
            if (row < p.n_row && out < p.n_out)
                exact_any<E>(p, {out, row}, shared);
}

template <class M, class E, bool BY_PAIR>
__global__ void __launch_bounds__(M::threads, 1) grouped_kernel(weft_grouped op)
{
    static_assert(M::threads == E::threads, "one block takes either form");
    WEFT_SHARED_DYNAMIC(unsigned char, shared);
    const expert_rows rows =
        find_rows<BY_PAIR>(op, M::rows, static_cast<int32_t>(blockIdx.x));
    if (rows.count == 0) return;
    const product p = expert_product(op, rows);
    const place at = {static_cast<int32_t>(blockIdx.y) * M::outs, rows.row};
    if (op.x_is_bf16 && p.dtype == WEFT_BF16)
        mma_tile<M, bf16>(p, at, shared);
    else if (op.x_is_bf16 && p.dtype == WEFT_F8_E4M3)
        mma_tile<M, f8_e4m3>(p, at, shared);
    else
        exact_tiles<M, E>(p, at, shared);
}

// The same by wgmma.
template <class H, class E, bool BY_PAIR>
__global__ void __launch_bounds__(H::threads, 1)
    grouped_hopper_kernel(weft_grouped op)
{
    static_assert(H::threads == E::threads, "one block takes either form");
#if WEFT_HOPPER
    WEFT_SHARED_DYNAMIC(unsigned char, shared);
    const expert_rows rows =
        find_rows<BY_PAIR>(op, H::rows, static_cast<int32_t>(blockIdx.x));
    if (rows.count == 0) return;
    const product p = expert_product(op, rows);
    const place at = {static_cast<int32_t>(blockIdx.y) * H::outs, rows.row};
    if (p.dtype == WEFT_BF16)
        hopper_tile<H, bf16>(p, at, shared);
    else if (p.dtype == WEFT_F8_E4M3)
        hopper_tile<H, f8_e4m3>(p, at, shared);
    else
        exact_tiles<H, E>(p, at, shared);
#else
    refuse_device();
#endif
}

struct grouped_size {
    void (*by_pair)(weft_grouped);
    void (*by_tile)(weft_grouped);
    int32_t outs, rows, threads, bytes;
};

constexpr int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

template <class M, class E> constexpr grouped_size grouped_of()
{
    return {grouped_kernel<M, E, true>,
            grouped_kernel<M, E, false>,
            M::outs,
            M::rows,
            M::threads,
            larger(E::bytes, larger(M::bytes(1), M::bytes(2)))};
}

// As mma_size numbers them, with the exact form that has as many threads.
const grouped_size sizes[N_MMA_SIZE] = {
    grouped_of<mma_narrow, exact_shape<16, 8, 1, 1, 64, 3>>(),
    grouped_of<mma_wide, exact_shape<64, 16, 4, 2, 32, 3>>(),
    grouped_of<mma_middle, exact_shape<64, 64, 4, 8, 32, 3>>(),
    grouped_of<mma_large, exact_many>(),
};

template <class H, class E> constexpr grouped_size grouped_hopper_of()
{
    return {grouped_hopper_kernel<H, E, true>,
            grouped_hopper_kernel<H, E, false>,
            H::outs,
            H::rows,
            H::threads,
            larger(E::bytes, H::bytes)};
}

// As hopper_size numbers them.
const grouped_size hopper_sizes[N_HOPPER_SIZE] = {
    grouped_hopper_of<hopper_narrow, exact_shape<32, 8, 1, 1, 64, 3>>(),
    grouped_hopper_of<hopper_wide, exact_shape<32, 16, 1, 1, 64, 3>>(),
    grouped_hopper_of<hopper_large, exact_shape<64, 64, 2, 4, 32, 3>>(),
};

// By the rows that an expert has in the mean, and for few pairs by how many
// blocks there would be.
mma_size size_of(const queue &q, const weft_grouped &op)
{
    const int64_t mean = op.n_pairs / op.n_expert;
    const int64_t wide =
        static_cast<int64_t>(op.n_pairs) * tiles_of(op.n_out, mma_wide::outs);
    if (mean < 4 && op.n_in >= 512 && wide < 4 * q.n_processors)
        return MMA_NARROW;
    return mean < 24 ? MMA_WIDE : mean < 192 ? MMA_MIDDLE : MMA_LARGE;
}

// What type experts have is not known here, so the one that they may have
// decides; of few pairs each may be an expert's.
const grouped_size &grouped_size_of(const queue &q, const weft_grouped &op)
{
    if (!hopper_takes(q.sm, op.x_is_bf16, WEFT_BF16))
        return sizes[size_of(q, op)];
    const int64_t blocks = op.n_pairs < op.n_expert ? op.n_pairs : op.n_expert;
    return hopper_sizes[hopper_size_of(tiles_of(op.n_pairs, op.n_expert),
                                       op.n_out, blocks, q.n_processors)];
}

} // namespace

void launch_grouped(queue *q, const weft_grouped *op)
{
    if (op->n_pairs <= 0 || op->n_expert <= 0 || op->n_out <= 0) return;
    const grouped_size &size = grouped_size_of(*q, *op);
    const int32_t tiles = op->n_pairs / size.rows + op->n_expert;
    const bool by_pair = op->n_pairs <= tiles;
    const int32_t slots = by_pair ? op->n_pairs : tiles;
    void (*const kernel)(weft_grouped) = by_pair ? size.by_pair : size.by_tile;
    if (size.bytes > 48 * 1024)
        cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             size.bytes);
    WEFT_LAUNCH(kernel,
                dim3(static_cast<unsigned>(slots),
                     static_cast<unsigned>(tiles_of(op->n_out, size.outs))),
                dim3(static_cast<unsigned>(size.threads)),
                static_cast<size_t>(size.bytes), q->stream, *op);
    note(q, "grouped");
}

} // namespace weft
