// f8.cuh - e4m3 without infinities, as index keys have it: codes to numbers,
// exactly, and numbers to codes and a scale, with the bits of the CPU
// (kernels/matrix.h, kernels/ops.h).
#ifndef WEFT_KERNELS_CUDA_F8_CUH
#define WEFT_KERNELS_CUDA_F8_CUH

#include "kernels/cuda/device.cuh"

namespace weft
{

struct f8_code {
    uint8_t bits;
};

// A code is put into the fields of a wider float and moved to its range by a
// power of two, which is exact, subnormals too. NaN codes are none of a key's.
__device__ __forceinline__ float to_float(f8_code v)
{
    const uint32_t b = v.bits;
    return float_of((b & 0x80U) << 24 | (b & 0x7fU) << 20) * 0x1p120F;
}

// The codes in bits 0 to 7 and 16 to 23 of q, as bfloat16.
__device__ __forceinline__ uint32_t widen_codes(uint32_t q)
{
    const uint32_t fields = (q & 0x00800080U) << 8 | (q & 0x007f007fU) << 4;
    return multiply_bf16x2(fields, 0x7b807b80U); // 2^120, twice
}

// Four codes in rising order, as bfloat16 in rising order.
__device__ __forceinline__ void widen_four(uint32_t codes, uint32_t to[2])
{
    to[0] = widen_codes((codes & 0xffU) | (codes & 0xff00U) << 8);
    to[1] = widen_codes((codes >> 16 & 0xffU) | (codes >> 8 & 0xff0000U));
}

// Of a magnitude up to 448, to nearest even.
__device__ __forceinline__ uint32_t code_of(float value)
{
    const uint32_t bits = bits_of(value), sign = bits >> 24 & 0x80U;
    const uint32_t size = bits & 0x7fffffffU;
    // Below 2^-6 codes are 2^-9 apart, as are floats at 2^14.
    if (size < 0x3c800000U)
        return sign | (bits_of(float_of(size) + 0x1p14F) - 0x46800000U);
    const uint32_t rounded = size + 0x7ffffU + (size >> 20 & 1U);
    return sign | ((rounded >> 20) - (120U << 3));
}

// Biased exponent of the scale of a key whose largest magnitude has these bits:
// 448 is 1.75 times 2^8.
__device__ __forceinline__ uint32_t scale_exponent(uint32_t largest)
{
    if (largest == 0) return 127;
    const uint32_t exponent =
        (largest >> 23) + ((largest & 0x7fffffU) > 0x600000U ? 1U : 0U);
    return exponent > 8 ? exponent - 8 : 1;
}

} // namespace weft

#endif
