// weft_simt_hopper.h - what kernels/cuda/tensor_map.h includes where there is
// no GPU (weft_simt.h says why).
#ifndef WEFT_TESTS_SIMT_INCLUDE_WEFT_SIMT_HOPPER_H
#define WEFT_TESTS_SIMT_INCLUDE_WEFT_SIMT_HOPPER_H

#include "tests/simt/hopper.h"

#endif
