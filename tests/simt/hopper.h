// hopper.h - the names of kernels/cuda/hopper.cuh, emulated.
//
// A load of TMA leaves NaN at its destination and lands when nobody else can
// run (or, in random orders, some time before); a product leaves NaN in its
// accumulators until the wait. What is read or written too early shows.
#ifndef WEFT_TESTS_SIMT_HOPPER_H
#define WEFT_TESTS_SIMT_HOPPER_H

#include <cuda_runtime.h>

#include "kernels/cuda/tensor_map.h"
#include "tests/simt/simt.h"

namespace weft
{

struct tensor_map {
    tensor_shape shape;
    uint32_t box_bytes;
    uint32_t is_map; // what encode_tensor_map leaves there
    uint64_t unused[5];
};
static_assert(sizeof(tensor_map) == 128, "as large as CUDA's");

// Refuses what the driver refuses.
cudaError_t encode_tensor_map(tensor_map *map_out, const tensor_shape *shape);

struct mbarrier {
    uint64_t word;
};

struct matrix_desc {
    const void *at;
    uint32_t leading; // bytes from 64 columns to the next 64, if mn_major
    bool is_mn;
};

} // namespace weft

namespace simt
{

void mbarrier_init(weft::mbarrier *b, uint32_t arrivals, site at);
void mbarrier_arrive(weft::mbarrier *b, bool expects, uint32_t bytes, site at);
void mbarrier_wait(weft::mbarrier *b, uint32_t parity, site at);
void tma_load(void *shared, const weft::tensor_map *map, int32_t rank,
              const int32_t at_element[3], weft::mbarrier *b, site at);
void bulk_load(void *shared, const void *global, uint32_t bytes,
               weft::mbarrier *b, site at);
// d of n / 2 values; a null: its words are in registers.
void wgmma(float *d, unsigned n, const weft::matrix_desc *a,
           const uint32_t a_words[4], const weft::matrix_desc *b, bool b_is_mn,
           bool accumulate, site at);
void wgmma_fence(site at);
void wgmma_commit(site at);
void wgmma_wait(unsigned groups_left, site at);
void check_registers(int n, site at);

} // namespace simt

namespace weft
{

inline void mbarrier_init(mbarrier *b, uint32_t arrivals, SIMT_AT)
{
    simt::mbarrier_init(b, arrivals, SIMT_SITE);
}
inline void fence_mbarrier()
{
}
inline void mbarrier_arrive(mbarrier *b, SIMT_AT)
{
    simt::mbarrier_arrive(b, false, 0, SIMT_SITE);
}
inline void mbarrier_arrive_expect(mbarrier *b, uint32_t bytes, SIMT_AT)
{
    simt::mbarrier_arrive(b, true, bytes, SIMT_SITE);
}
inline void mbarrier_wait(mbarrier *b, uint32_t parity, SIMT_AT)
{
    simt::mbarrier_wait(b, parity, SIMT_SITE);
}

inline void named_barrier_sync(uint32_t id, uint32_t threads, SIMT_AT)
{
    if (!id) simt::fail(SIMT_SITE, "barrier 0 is __syncthreads");
    simt::barrier(id, threads, true, 0, SIMT_SITE);
}
inline void named_barrier_arrive(uint32_t id, uint32_t threads, SIMT_AT)
{
    if (!id) simt::fail(SIMT_SITE, "barrier 0 is __syncthreads");
    simt::barrier(id, threads, false, 0, SIMT_SITE);
}

// Here every thread's stores are seen by all: that this is missing is not
// found.
inline void fence_async()
{
}

inline void tma_load_1d(void *shared, const tensor_map *map, int32_t x,
                        mbarrier *b, SIMT_AT)
{
    const int32_t at[3] = {x, 0, 0};
    simt::tma_load(shared, map, 1, at, b, SIMT_SITE);
}
inline void tma_load_2d(void *shared, const tensor_map *map, int32_t x,
                        int32_t y, mbarrier *b, SIMT_AT)
{
    const int32_t at[3] = {x, y, 0};
    simt::tma_load(shared, map, 2, at, b, SIMT_SITE);
}
inline void tma_load_3d(void *shared, const tensor_map *map, int32_t x,
                        int32_t y, int32_t z, mbarrier *b, SIMT_AT)
{
    const int32_t at[3] = {x, y, z};
    simt::tma_load(shared, map, 3, at, b, SIMT_SITE);
}
inline void tma_prefetch(const tensor_map *)
{
}
inline void bulk_load(void *shared, const void *global, uint32_t bytes,
                      mbarrier *b, SIMT_AT)
{
    simt::bulk_load(shared, global, bytes, b, SIMT_SITE);
}

inline matrix_desc k_major(const void *p)
{
    return {p, 0, false};
}
inline matrix_desc mn_major(const void *p, uint32_t next_bytes)
{
    return {p, next_bytes, true};
}

inline void wgmma_fence(SIMT_AT)
{
    simt::wgmma_fence(SIMT_SITE);
}
inline void wgmma_commit(SIMT_AT)
{
    simt::wgmma_commit(SIMT_SITE);
}
template <int N> inline void wgmma_wait(SIMT_AT)
{
    static_assert(N >= 0, "groups that may be under way");
    simt::wgmma_wait(N, SIMT_SITE);
}

constexpr bool is_wgmma_n(int n)
{
    return n == 8 || n == 16 || n == 32 || n == 64 || n == 128 || n == 256;
}

template <int N, bool B_IS_MN = false>
inline void wgmma_bf16(float (&d)[N / 2], matrix_desc a, matrix_desc b,
                       bool accumulate, SIMT_AT)
{
    static_assert(is_wgmma_n(N), "shapes that are written out");
    simt::wgmma(d, N, &a, nullptr, &b, B_IS_MN, accumulate, SIMT_SITE);
}
template <int N, bool B_IS_MN = false>
inline void wgmma_bf16(float (&d)[N / 2], const uint32_t (&a)[4], matrix_desc b,
                       bool accumulate, SIMT_AT)
{
    static_assert(is_wgmma_n(N), "shapes that are written out");
    simt::wgmma(d, N, nullptr, a, &b, B_IS_MN, accumulate, SIMT_SITE);
}

template <int N> inline void registers_give(SIMT_AT)
{
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "24 to 256 by eights");
    simt::check_registers(N, SIMT_SITE);
}
template <int N> inline void registers_take(SIMT_AT)
{
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "24 to 256 by eights");
    simt::check_registers(N, SIMT_SITE);
}

} // namespace weft

#endif
