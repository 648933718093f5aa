// weft_simt.h - what kernels/cuda/device.cuh includes where there is no GPU: a
// header on the include path, so that kernels name no folder of the tests.
#ifndef WEFT_TESTS_SIMT_INCLUDE_WEFT_SIMT_H
#define WEFT_TESTS_SIMT_INCLUDE_WEFT_SIMT_H

#include "tests/simt/simt.h"

#endif
