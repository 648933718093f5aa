// hopper.cuh - device.cuh for compute capability 9.0a: barriers in shared
// memory that count bytes and rings of stages by them, the copy engine (TMA),
// products by a warpgroup (wgmma), named barriers.
//
// Kernels that use it have their body inside #if WEFT_HOPPER and are launched
// on such a device alone. Shared memory that ordinary stores wrote and that
// wgmma or TMA reads wants fence_async() by each writer, then a barrier.
//
// Layouts: PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout",
// "Swizzling Modes" of tensors. A tile here is rows of 128 bytes, 1024-byte
// aligned, swizzled by 128 bytes: the 16-byte piece i of row r is at
// i ^ (r % 8).
#ifndef WEFT_KERNELS_CUDA_HOPPER_CUH
#define WEFT_KERNELS_CUDA_HOPPER_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/tensor_map.h"

#if defined(WEFT_SIMT) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WEFT_HOPPER 1
#else
#define WEFT_HOPPER 0
#endif

namespace weft
{

enum : int { WARPGROUP = 128 }; // threads, from a multiple of it

#if !WEFT_HOPPER
// In place of a body that is not compiled: who launches it here anyhow gets an
// error and no numbers.
__device__ __forceinline__ void refuse_device()
{
    __trap();
}
#endif

// Byte `offset` of a tile, where the swizzle puts it.
__host__ __device__ __forceinline__ uint32_t swizzled(uint32_t offset)
{
    return offset ^ ((offset >> 7 & 7U) << 4);
}

} // namespace weft

#if !defined(WEFT_SIMT)

namespace weft
{

// --- Barriers that count ---------------------------------------------------

// In shared memory. A phase ends when as many have arrived as init said and as
// many bytes have landed as were expected; the first phase has parity 0.
struct mbarrier {
    uint64_t word;
};

// By one thread; then fence_mbarrier(), then a barrier of the block.
__device__ __forceinline__ void mbarrier_init(mbarrier *b, uint32_t arrivals)
{
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)),
        "r"(arrivals)
        : "memory");
}
__device__ __forceinline__ void fence_mbarrier()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(mbarrier *b)
{
    asm volatile(
        "mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b))
        : "memory");
}
// Arrives, and lets the phase wait for `bytes` that copies bring.
__device__ __forceinline__ void mbarrier_arrive_expect(mbarrier *b,
                                                       uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     shared_address(b)),
                 "r"(bytes)
                 : "memory");
}
// Until the phase of this parity has ended. At once for the parity before the
// first phase, 1.
__device__ __forceinline__ void mbarrier_wait(mbarrier *b, uint32_t parity)
{
    uint32_t done;
    do {
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}"
                     : "=r"(done)
                     : "r"(shared_address(b)), "r"(parity)
                     : "memory");
    } while (!done);
}

// Barrier 1 to 15 of `threads` threads, whole warps: all wait, or some only
// arrive.
__device__ __forceinline__ void named_barrier_sync(uint32_t id,
                                                   uint32_t threads)
{
    asm volatile("barrier.sync.aligned %0, %1;" ::"r"(id), "r"(threads)
                 : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(uint32_t id,
                                                     uint32_t threads)
{
    asm volatile("barrier.arrive.aligned %0, %1;" ::"r"(id), "r"(threads)
                 : "memory");
}

// What this thread stored in shared memory is seen by TMA and wgmma.
__device__ __forceinline__ void fence_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// --- Copies ----------------------------------------------------------------

// All by one thread. `shared` is 128-byte aligned (1024 for swizzled maps);
// the bytes of a whole box, zeros outside of the tensor included, count for
// the barrier. Coordinates are elements, the innermost first.
__device__ __forceinline__ void tma_load_1d(void *shared, const tensor_map *map,
                                            int32_t x, mbarrier *b)
{
    asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.tile."
                 "mbarrier::complete_tx::bytes [%0], [%1, {%2}], [%3];" ::"r"(
                     shared_address(shared)),
                 "l"(map), "r"(x), "r"(shared_address(b))
                 : "memory");
}
__device__ __forceinline__ void tma_load_2d(void *shared, const tensor_map *map,
                                            int32_t x, int32_t y, mbarrier *b)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile."
        "mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            shared_address(shared)),
        "l"(map), "r"(x), "r"(y), "r"(shared_address(b))
        : "memory");
}
__device__ __forceinline__ void tma_load_3d(void *shared, const tensor_map *map,
                                            int32_t x, int32_t y, int32_t z,
                                            mbarrier *b)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile."
        "mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
            shared_address(shared)),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(b))
        : "memory");
}
__device__ __forceinline__ void tma_prefetch(const tensor_map *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// `bytes` in a row, a multiple of 16 as the addresses are; no map is needed.
__device__ __forceinline__ void bulk_load(void *shared, const void *global,
                                          uint32_t bytes, mbarrier *b)
{
    asm volatile("cp.async.bulk.shared::cluster.global."
                 "mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(shared_address(b))
                 : "memory");
}

// --- Products of a warpgroup -----------------------------------------------

// An operand in shared memory.
struct matrix_desc {
    uint64_t word;
};

__device__ __forceinline__ matrix_desc describe(const void *p, uint32_t leading)
{
    const uint64_t at = (shared_address(p) & 0x3ffffU) >> 4;
    const uint64_t swizzle_128 = 1ULL << 62;
    return {at | static_cast<uint64_t>(leading >> 4) << 16 |
            static_cast<uint64_t>(1024 >> 4) << 32 | swizzle_128};
}
// Rows of a tile are rows of a or columns of b, 64 elements of k each. `p` is
// a tile's row r, r a multiple of 8, and in it k, a multiple of 16.
__device__ __forceinline__ matrix_desc k_major(const void *p)
{
    return describe(p, 16);
}
// Rows of a tile are of one k each, with 64 columns of b; the next 64 columns
// are in another tile, `next_bytes` on. `p` is a tile's row k, a multiple of 8.
__device__ __forceinline__ matrix_desc mn_major(const void *p,
                                                uint32_t next_bytes)
{
    return describe(p, next_bytes);
}

// Before the first product, and when registers of products were touched.
__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most N groups are under way: d, and operands, are free after it.
template <int N> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

} // namespace weft

#include "kernels/cuda/wgmma.cuh"

namespace weft
{

// Registers of the threads of this warpgroup: N of 24 to 256, a multiple of 8.
template <int N> __device__ __forceinline__ void registers_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

} // namespace weft
#endif

namespace weft
{

// --- Stages ------------------------------------------------------------------

// Where a tile may begin: `shared`, or up to 1023 bytes further on.
__device__ __forceinline__ unsigned char *tile_aligned(unsigned char *shared)
{
    const uintptr_t at = reinterpret_cast<uintptr_t>(shared);
    return shared + (1024 - at % 1024) % 1024;
}

// Barriers of stages that go round between who fills them and who uses them.
// Number i is in stage i % STAGES, which it has for the (i / STAGES)th time.
template <int STAGES> struct stage_ring {
    static constexpr int BYTES =
        2 * STAGES * static_cast<int>(sizeof(mbarrier));
    mbarrier *barriers; // in shared memory

    __device__ __forceinline__ mbarrier *full(int32_t i) const
    {
        return barriers + i % STAGES;
    }
    __device__ __forceinline__ mbarrier *empty(int32_t i) const
    {
        return full(i) + STAGES;
    }
    __device__ __forceinline__ uint32_t parity(int32_t i) const
    {
        return static_cast<uint32_t>(i / STAGES) & 1U;
    }
    __device__ __forceinline__ void wait_full(int32_t i) const
    {
        mbarrier_wait(full(i), parity(i));
    }
    __device__ __forceinline__ void wait_empty(int32_t i) const
    {
        mbarrier_wait(empty(i), parity(i) ^ 1U);
    }
    // How many arrive when a stage is filled, and when it is done with. By the
    // whole block; then a barrier of it.
    __device__ __forceinline__ void init(uint32_t fillers, uint32_t users) const
    {
        if (threadIdx.x != 0) return;
        for (int32_t i = 0; i < STAGES; i++) {
            mbarrier_init(full(i), fillers);
            mbarrier_init(empty(i), users);
        }
        fence_mbarrier();
    }
};

} // namespace weft
#endif
