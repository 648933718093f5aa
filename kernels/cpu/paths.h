/* paths.h - the tables of the cpu backend, one for each instruction set.
 *
 * Each path_*.c is compiled for its set (kernels.cmake) and gives NULL where
 * the build's machine lacks it; whether this CPU can run it, dispatch.c asks.
 * Threads: any.
 */
#ifndef WEFT_KERNELS_CPU_PATHS_H
#define WEFT_KERNELS_CPU_PATHS_H

#include "kernels/ops.h"

const weft_ops *weft_path_scalar(void);
const weft_ops *weft_path_avx2(void);
const weft_ops *weft_path_avx512(void);
const weft_ops *weft_path_neon(void);

#endif
