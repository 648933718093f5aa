#if defined(__aarch64__)

#include "kernels/cpu/lanes_neon.h"

#include "kernels/cpu/path.inc"

const weft_ops *weft_path_neon(void)
{
    return &path_ops;
}

#else

#include <stddef.h>

#include "kernels/cpu/paths.h"

const weft_ops *weft_path_neon(void)
{
    return NULL;
}

#endif
