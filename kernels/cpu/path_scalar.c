#include "kernels/cpu/lanes_scalar.h"

#include "kernels/cpu/path.inc"

const weft_ops *weft_path_scalar(void)
{
    return &path_ops;
}
