#include "router/text/grow.h"

#include <stdint.h>

#include "node/base/mem.h"

void *weft_grow(void *old, size_t *capacity, size_t need, size_t item_bytes)
{
    if (old != NULL && need <= *capacity) return old;
    size_t larger = *capacity < 16 ? 16 : *capacity;
    while (larger < need) {
        if (larger > SIZE_MAX / 2) return NULL;
        larger *= 2;
    }
    void *const grown = weft_mem_resize(old, larger, item_bytes);
    if (grown != NULL) *capacity = larger;
    return grown;
}
