// tensor_map.h - how a host describes a tensor to Hopper's copy engine (TMA).
//
// A map says where a tensor of one to three dimensions is and which box of it
// one load takes; kernels get it as a parameter, `const __grid_constant__
// tensor_map map`. CUDA Driver API, cuTensorMapEncodeTiled.
//
// The driver's function is looked up at run time: this library links to no
// libcuda.
#ifndef WEFT_KERNELS_CUDA_TENSOR_MAP_H
#define WEFT_KERNELS_CUDA_TENSOR_MAP_H

#include <cstdint>

namespace weft
{

struct tensor_shape {
    const void *base;      // device memory, 16-byte aligned
    int32_t element_bytes; // 1, 2 (bfloat16) or 4 (fp32)
    int32_t rank;          // 1 to 3
    // The innermost first. Elements; bytes from one to the next, a multiple of
    // 16 (stride[0] is not looked at); elements of one load, at most 256.
    int64_t dim[3], stride[3];
    int32_t box[3];
    // Loads are swizzled by 128 bytes: the box is 128 bytes wide.
    // Else rows of the box follow each other.
    bool swizzle;
};

} // namespace weft

#if defined(WEFT_SIMT)
#include <weft_simt_hopper.h>
#else

#include <cuda.h>
#include <cuda_runtime.h>

namespace weft
{

using tensor_map = CUtensorMap;

inline CUtensorMapDataType tensor_type(int32_t element_bytes)
{
    if (element_bytes == 1) return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    if (element_bytes == 2) return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
}

// What a box takes beyond the tensor is zeros. An error: the driver has no
// such function, or does not want such a tensor.
inline cudaError_t encode_tensor_map(tensor_map *map_out,
                                     const tensor_shape *shape)
{
    void *entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t error = cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
    if (error != cudaSuccess) return error;
    if (found != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
    const auto encode =
        reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
    cuuint64_t dim[3], stride[3];
    cuuint32_t box[3], step[3] = {1, 1, 1};
    for (int32_t i = 0; i < shape->rank; i++) {
        dim[i] = static_cast<cuuint64_t>(shape->dim[i]);
        box[i] = static_cast<cuuint32_t>(shape->box[i]);
        if (i) stride[i - 1] = static_cast<cuuint64_t>(shape->stride[i]);
    }
    const CUresult result = encode(
        map_out, tensor_type(shape->element_bytes),
        static_cast<cuuint32_t>(shape->rank), const_cast<void *>(shape->base),
        dim, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
        shape->swizzle ? CU_TENSOR_MAP_SWIZZLE_128B
                       : CU_TENSOR_MAP_SWIZZLE_NONE,
        CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

} // namespace weft
#endif
#endif
