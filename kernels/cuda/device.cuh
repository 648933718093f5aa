// device.cuh - what kernels are written against, and all that they are written
// against: on a GPU (nvcc) the names below are CUDA's own or thin wrappers of
// one instruction, on a CPU (WEFT_SIMT) they are the emulator's, which runs a
// block's threads as fibers. So the same source is compiled for both.
//
// House rules that make this work: no inline assembly outside this folder's
// wrappers (device.cuh, hopper.cuh); dynamic shared memory by
// WEFT_SHARED_DYNAMIC; launches by WEFT_LAUNCH; collectives name all lanes of
// the warp or a mask of convergent ones; every thread of a block reaches every
// barrier; no thread returns before one.
//
// Layouts of fragments: PTX ISA, "Matrix fragments for mma.m16n8k16" and
// "Warp-level matrix load instruction".
#ifndef WEFT_KERNELS_CUDA_DEVICE_CUH
#define WEFT_KERNELS_CUDA_DEVICE_CUH

#include <cstddef>
#include <cstdint>

#if defined(WEFT_SIMT)
#include <weft_simt.h>
#else

#include <cuda_runtime.h>

#define WEFT_FULL_MASK             0xffffffffU

// WEFT_SHARED(float, name, [8][32]): an array in the block's shared memory. Use
// it in templates, where the emulator cannot fill a plain __shared__ with NaN.
#define WEFT_SHARED(T, name, dims) __shared__ T name dims

// T *const name = the block's dynamic shared memory, 128-byte aligned.
#define WEFT_SHARED_DYNAMIC(T, name)                                           \
    extern __shared__ __align__(128) unsigned char weft_dynamic_[];            \
    T *const name = reinterpret_cast<T *>(weft_dynamic_)

// kernel<<<grid, block, bytes, stream>>>(...)
#define WEFT_LAUNCH(kernel, grid, block, bytes, stream, ...)                   \
    kernel<<<(grid), (block), (bytes), (stream)>>>(__VA_ARGS__)

namespace weft
{

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// 16 bytes from global to shared memory, both 16-byte aligned; there after the
// wait for its group.
__device__ __forceinline__ void cp_async16(void *shared, const void *global)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                     shared_address(shared)),
                 "l"(global)
                 : "memory");
}
// The same; `bytes` (0 to 16) come from memory, zeros after them.
__device__ __forceinline__ void
cp_async16_zero(void *shared, const void *global, int32_t bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     shared_address(shared)),
                 "l"(global), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until at most N groups of this thread are under way.
template <int N> __device__ __forceinline__ void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Four 8x8 matrices of 16-bit elements; lane l gives the row l % 8 of matrix
// l / 8, 16-byte aligned in shared memory.
__device__ __forceinline__ void ldmatrix_x4(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t r[4],
                                                  const void *row)
{
    asm volatile(
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
        : "r"(shared_address(row))
        : "memory");
}

// d += a b: a 16 x 16 by rows, b 16 x 8 by columns, bfloat16; d fp32.
__device__ __forceinline__ void mma_bf16(float d[4], const uint32_t a[4],
                                         const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]),
                   "r"(b[1]));
}

__device__ __forceinline__ float float_of(uint32_t bits)
{
    return __uint_as_float(bits);
}
__device__ __forceinline__ uint32_t bits_of(float value)
{
    return __float_as_uint(value);
}

} // namespace weft
#endif

// Of both worlds. ----------------------------------------------------------

namespace weft
{

// bfloat16 and the 8-bit floats as plain bits: the toolkit's own types would
// differ between the two worlds.
struct bf16 {
    uint16_t bits;
};

__device__ __forceinline__ float to_float(bf16 v)
{
    return float_of(static_cast<uint32_t>(v.bits) << 16);
}
// To the nearest, ties to even; NaN stays NaN.
__device__ __forceinline__ bf16 to_bf16(float value)
{
    const uint32_t u = bits_of(value);
    if ((u & 0x7fffffffU) > 0x7f800000U)
        return {static_cast<uint16_t>((u >> 16) | 64U)};
    return {static_cast<uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16)};
}
__device__ __forceinline__ float round_bf16(float value)
{
    return to_float(to_bf16(value));
}

// value as two of bfloat16, hi + lo: within 2^-16 of it, and within 2^-134
// where that is less. What bfloat16 has no room for, infinities and NaN are in
// hi alone.
__device__ __forceinline__ void split_pair(float value, float *hi_out,
                                           float *lo_out)
{
    const float hi = round_bf16(value);
    const float rest = value - hi;
    *hi_out = hi;
    *lo_out = fabsf(rest) <= fabsf(hi) ? round_bf16(rest) : 0.0f;
}

// Both halves of a and b are bfloat16: their products, rounded; subnormals are
// kept. (x + -0 is x, so the fused form is the product on sm_80 too.)
__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b)
{
#if defined(WEFT_SIMT)
    const bf16 low = to_bf16(float_of(a << 16) * float_of(b << 16));
    const bf16 high =
        to_bf16(float_of(a & 0xffff0000U) * float_of(b & 0xffff0000U));
    return low.bits | static_cast<uint32_t>(high.bits) << 16;
#else
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;"
        : "=r"(d)
        : "r"(a), "r"(b), "r"(0x80008000U));
    return d;
#endif
}

} // namespace weft

#endif
