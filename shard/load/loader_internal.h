/* loader_internal.h - what reading matrices shares with reading the rest.
 *
 * Internal to loader.c and matrix.c. Threads: one owner.
 */
#ifndef WEFT_SHARD_LOAD_LOADER_INTERNAL_H
#define WEFT_SHARD_LOAD_LOADER_INTERNAL_H

#include "shard/load/loader.h"

/* Tensors have a place in a device's memory, not in the host's. */
static inline bool weft_loader_is_apart(const weft_loader *loader)
{
    return !weft_memory_is_host(&loader->memory);
}

static inline bool weft_loader_is_plain(weft_stored_dtype dtype)
{
    return dtype == WEFT_STORED_F32 || dtype == WEFT_STORED_BF16 ||
           dtype == WEFT_STORED_F16;
}

/* Where values for `to` are put together: there, or for a device in the buffer,
 * `offset` bytes behind what is read through it. */
static inline float *weft_loader_host_floats(const weft_loader *loader,
                                             float *to, size_t offset)
{
    void *const at = loader->staging + offset;
    return weft_loader_is_apart(loader) ? at : to;
}

void weft_loader_need_staging(weft_loader *loader, size_t n);

/* What is counted of a tensor: one `read`th of its bytes in the files, and one
 * `had`th of its elements as parameters; had 0: scales, which are none. */
typedef struct weft_share {
    int32_t read, had;
} weft_share;

/* As weft_loader_find, which counts all. */
WEFT_MUST_CHECK weft_status weft_loader_find_share(
    weft_loader *loader, const char *name, const int64_t *dims, int32_t n_dims,
    weft_share share, const weft_tensor **out, weft_err *err);

/* The error of a tensor that is stored in a type that will not do. */
WEFT_MUST_CHECK weft_status weft_loader_wrong_dtype(const weft_loader *loader,
                                                    const weft_tensor *t,
                                                    const char *wanted,
                                                    weft_err *err);

/* n elements from `first` on; F8 is searched for its NaN codes. */
WEFT_MUST_CHECK weft_status weft_loader_read(weft_loader *loader,
                                             const weft_tensor *t,
                                             int64_t first, int64_t n,
                                             void *out, weft_err *err);

/* Elements [first, first + n) as fp32, through the staging buffer's first
 * WEFT_STAGING_BYTES. */
WEFT_MUST_CHECK weft_status weft_loader_read_floats(weft_loader *loader,
                                                    const weft_tensor *t,
                                                    int64_t first, int64_t n,
                                                    float *out, weft_err *err);

#endif
