#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "kernels/cpu/lanes_avx2.h"

#include "kernels/cpu/path.inc"

const weft_ops *weft_path_avx2(void)
{
    return &path_ops;
}

#else

#include <stddef.h>

#include "kernels/cpu/paths.h"

const weft_ops *weft_path_avx2(void)
{
    return NULL;
}

#endif
