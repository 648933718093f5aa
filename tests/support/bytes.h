/* bytes.h - whether two pieces of memory hold the same bytes: of floats that is
 * stricter than ==, and a NaN is like itself. */
#ifndef WEFT_TESTS_SUPPORT_BYTES_H
#define WEFT_TESTS_SUPPORT_BYTES_H

#include <stdbool.h>
#include <string.h>

static inline bool same_bytes(const void *a, const void *b, size_t n)
{
    return memcmp(a, b, n) == 0;
}

#endif
