/* memory.h - the memory that a table of ops works on: the host's, or a
 * device's. What is written against these few functions need not know which.
 *
 * With the host's memory a put is a copy, or nothing where both are the same
 * place, and sync has nothing to wait for.
 */
#ifndef WEFT_KERNELS_MEMORY_H
#define WEFT_KERNELS_MEMORY_H

#include "kernels/device.h"

/* Borrowed. api NULL: the host's. */
typedef struct weft_memory {
    const weft_device_api *api;
    weft_device *device;
} weft_memory;

static inline bool weft_memory_is_host(const weft_memory *memory)
{
    return memory->api == NULL;
}

/* At least 64-byte aligned. RESOURCE_EXHAUSTED: names `what` and the bytes. */
WEFT_MUST_CHECK weft_status weft_memory_alloc(const weft_memory *memory,
                                              int64_t bytes, const char *what,
                                              void **at_out, weft_err *err);
void weft_memory_free(const weft_memory *memory, void *at); /* NULL is fine */

/* Of the thread that is bound, in the order of its ops: `from`, or `to` of a
 * get, is host memory that stays as it is until sync. */
void weft_memory_put(const weft_memory *memory, void *to, const void *from,
                     int64_t bytes);
void weft_memory_get(const weft_memory *memory, void *to, const void *from,
                     int64_t bytes);
void weft_memory_fill(const weft_memory *memory, void *to, int byte,
                      int64_t bytes);
/* INTERNAL: what went wrong on the device since the last one. */
WEFT_MUST_CHECK weft_status weft_memory_sync(const weft_memory *memory,
                                             weft_err *err);
/* Before a thread's first op, put or get. */
WEFT_MUST_CHECK weft_status weft_memory_bind(const weft_memory *memory,
                                             weft_err *err);
/* After its last: its place is another thread's. */
void weft_memory_unbind(const weft_memory *memory);

#endif
