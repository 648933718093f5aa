/* lanes_common.h - what every lanes_*.h starts from. */
#ifndef WEFT_KERNELS_CPU_LANES_COMMON_H
#define WEFT_KERNELS_CPU_LANES_COMMON_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/ahead.h"
#include "kernels/cpu/math.h"
#include "kernels/matrix.h"

/* Kernels are written once with loops over compile-time tile sizes; they are
 * fast only if everything lands in one function with its loops unrolled. */
#define LANE_FN static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#endif
