/* key.h - an index key as codes and a scale. Threads: any. */
#ifndef WEFT_KERNELS_CPU_KEY_H
#define WEFT_KERNELS_CPU_KEY_H

#include <stdint.h>

/* x, `width` floats, as the key in F8_E4M3 of ops.h: width + 4 bytes. */
void weft_key_store_f8(unsigned char *to, const float *x, int32_t width);

#endif
