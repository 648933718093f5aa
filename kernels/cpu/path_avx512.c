#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) &&  \
    defined(__AVX512VL__)

#include "kernels/cpu/lanes_avx512.h"

#include "kernels/cpu/path.inc"

const weft_ops *weft_path_avx512(void)
{
    return &path_ops;
}

#else

#include <stddef.h>

#include "kernels/cpu/paths.h"

const weft_ops *weft_path_avx512(void)
{
    return NULL;
}

#endif
