/* ahead.h - the address of memory to prefetch. */
#ifndef WEFT_KERNELS_AHEAD_H
#define WEFT_KERNELS_AHEAD_H

#include <stddef.h>
#include <stdint.h>

/* The address `bytes` after `at`, never to be read. It may lie beyond the array
 * that `at` points into, so it is a sum of integers: one of pointers may not.
 */
static inline const void *weft_ahead(const void *at, size_t bytes)
{
    /* NOLINTNEXTLINE(performance-no-int-to-ptr): see above. */
    return (const void *)((uintptr_t)at + bytes);
}

#endif
