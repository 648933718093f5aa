#include "kernels/memory.h"

#include <string.h>

#include "node/base/mem.h"

enum { ALIGN_BYTES = 64 };

weft_status weft_memory_alloc(const weft_memory *memory, int64_t bytes,
                              const char *what, void **at_out, weft_err *err)
{
    if (memory->api != NULL) {
        const weft_status st =
            memory->api->alloc(memory->device, bytes, at_out, err);
        return st == WEFT_OK ? st : WEFT_WRAP(err, st, "%s", what);
    }
    *at_out = weft_mem_new_aligned(ALIGN_BYTES, (size_t)bytes);
    if (*at_out != NULL) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                     "%s: no memory for %lld bytes", what, (long long)bytes);
}

void weft_memory_free(const weft_memory *memory, void *at)
{
    if (memory->api != NULL)
        memory->api->free(memory->device, at);
    else
        weft_mem_free(at);
}

void weft_memory_put(const weft_memory *memory, void *to, const void *from,
                     int64_t bytes)
{
    if (bytes == 0 || to == from) return;
    if (memory->api != NULL)
        memory->api->upload(to, from, bytes);
    else
        memcpy(to, from, (size_t)bytes);
}

void weft_memory_get(const weft_memory *memory, void *to, const void *from,
                     int64_t bytes)
{
    if (bytes == 0 || to == from) return;
    if (memory->api != NULL)
        memory->api->download(to, from, bytes);
    else
        memcpy(to, from, (size_t)bytes);
}

void weft_memory_fill(const weft_memory *memory, void *to, int byte,
                      int64_t bytes)
{
    if (bytes == 0) return;
    if (memory->api != NULL)
        memory->api->fill(to, byte, bytes);
    else
        memset(to, byte, (size_t)bytes);
}

weft_status weft_memory_sync(const weft_memory *memory, weft_err *err)
{
    return memory->api != NULL ? memory->api->sync(err) : WEFT_OK;
}

weft_status weft_memory_bind(const weft_memory *memory, weft_err *err)
{
    return memory->api != NULL ? memory->api->bind(memory->device, err)
                               : WEFT_OK;
}

void weft_memory_unbind(const weft_memory *memory)
{
    if (memory->api == NULL) return;
    const weft_status st = memory->api->bind(NULL, NULL);
    (void)st; /* to be of none cannot fail */
}
