/* loader.c - finding, placing and reading single tensors. */
#include <math.h>

#include "kernels/matrix.h"
#include "node/base/check.h"
#include "shard/load/loader_internal.h"

enum { DEVICE_PLACE_BYTES = 256 };

void *weft_loader_place(weft_loader *loader, size_t n)
{
    const size_t at = loader->used;
    loader->used +=
        (n + WEFT_PLACE_BYTES - 1) / WEFT_PLACE_BYTES * WEFT_PLACE_BYTES;
    return loader->base != NULL ? loader->base + at : NULL;
}

void *weft_loader_place_data(weft_loader *loader, size_t n)
{
    if (!weft_loader_is_apart(loader)) return weft_loader_place(loader, n);
    const size_t at = loader->device_used;
    loader->device_used +=
        (n + DEVICE_PLACE_BYTES - 1) / DEVICE_PLACE_BYTES * DEVICE_PLACE_BYTES;
    return loader->device_base != NULL ? loader->device_base + at : NULL;
}

weft_status weft_loader_put(weft_loader *loader, void *to, const void *from,
                            size_t n, weft_err *err)
{
    weft_memory_put(&loader->memory, to, from, (int64_t)n);
    return weft_memory_sync(&loader->memory, err);
}

void weft_loader_need_staging(weft_loader *loader, size_t n)
{
    if (n > loader->staging_need) loader->staging_need = n;
}

static void mark_used(weft_loader *loader, weft_tensor *t, weft_share share)
{
    if (t->used || !loader->counts) return;
    t->used = true;
    loader->n_used++;
    loader->file_bytes += t->bytes / share.read;
    if (share.had > 0)
        loader->n_params +=
            t->bytes / (int64_t)weft_stored_bytes(t->dtype) / share.had;
}

weft_status weft_loader_find_share(weft_loader *loader, const char *name,
                                   const int64_t *dims, int32_t n_dims,
                                   weft_share share, const weft_tensor **out,
                                   weft_err *err)
{
    weft_tensor *const t = weft_tensor_set_find(loader->set, name);
    if (t == NULL)
        return WEFT_FAIL(err, WEFT_NOT_FOUND,
                         "tensor %s is missing from the safetensors files",
                         name);
    bool same = t->n_dims == n_dims;
    for (int32_t i = 0; same && i < n_dims; i++) same = t->dims[i] == dims[i];
    if (!same) {
        char found[96], wanted[96];
        weft_dims_show(t->dims, t->n_dims, found);
        weft_dims_show(dims, n_dims, wanted);
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%s: tensor %s is %s, by config.json it must be %s",
                         weft_tensor_set_file(loader->set, t), t->stored_name,
                         found, wanted);
    }
    mark_used(loader, t, share);
    *out = t;
    return WEFT_OK;
}

weft_status weft_loader_find(weft_loader *loader, const char *name,
                             const int64_t *dims, int32_t n_dims,
                             const weft_tensor **out, weft_err *err)
{
    return weft_loader_find_share(loader, name, dims, n_dims,
                                  (weft_share){1, 1}, out, err);
}

weft_status weft_loader_wrong_dtype(const weft_loader *loader,
                                    const weft_tensor *t, const char *wanted,
                                    weft_err *err)
{
    return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                     "%s: tensor %s is stored as %s, wanted is %s",
                     weft_tensor_set_file(loader->set, t), t->stored_name,
                     weft_stored_name(t->dtype), wanted);
}

static weft_status damaged(const weft_loader *loader, const weft_tensor *t,
                           const char *what, int64_t element, weft_err *err)
{
    return WEFT_FAIL(err, WEFT_DATA_LOSS, "%s: tensor %s: %s at element %lld",
                     weft_tensor_set_file(loader->set, t), t->stored_name, what,
                     (long long)element);
}

/* A tied head and the scales of packed experts are read more than once; the
 * count stops at the total. */
static void advance(weft_loader *loader, size_t n)
{
    const int64_t total = loader->total_bytes;
    loader->read_bytes += (int64_t)n;
    loader->done_bytes += (int64_t)n;
    if (loader->done_bytes > total) loader->done_bytes = total;
    const int64_t untold = loader->done_bytes - loader->told_bytes;
    if (loader->progress == NULL || untold == 0 ||
        (untold < WEFT_PROGRESS_BYTES && loader->done_bytes < total))
        return;
    loader->told_bytes = loader->done_bytes;
    loader->progress(loader->progress_arg, loader->done_bytes, total);
}

weft_status weft_loader_read(weft_loader *loader, const weft_tensor *t,
                             int64_t first, int64_t n, void *out, weft_err *err)
{
    const size_t item = weft_stored_bytes(t->dtype);
    WEFT_TRY(weft_tensor_set_read(loader->set, t, first * (int64_t)item, out,
                                  (size_t)n * item, err));
    advance(loader, (size_t)n * item);
    if (loader->hash != NULL)
        weft_hash_wide_add(loader->hash, out, (size_t)n * item);
    if (t->dtype != WEFT_STORED_F8_E4M3) return WEFT_OK;
    const uint8_t *const codes = out;
    uint8_t bad = 0; /* one pass without branches, then the place */
    for (int64_t i = 0; i < n; i++) bad |= (codes[i] & 0x7f) == 0x7f;
    for (int64_t i = 0; bad && i < n; i++)
        if ((codes[i] & 0x7f) == 0x7f)
            return damaged(loader, t, "NaN code", first + i, err);
    return WEFT_OK;
}

/* 2^(e - 127); 255 is NaN. OCP microscaling formats 1.0, 5.4.1. */
static float f32_of_e8m0(uint8_t e)
{
    return e == 255 ? NAN : ldexpf(1.0F, (int)e - 127);
}

static float as_f32(weft_stored_dtype dtype, const void *src, int64_t i)
{
    if (dtype == WEFT_STORED_F8_E8M0 || dtype == WEFT_STORED_U8)
        return f32_of_e8m0(((const uint8_t *)src)[i]);
    return weft_f32_of((weft_dtype)dtype, src, i);
}

weft_status weft_loader_read_floats(weft_loader *loader, const weft_tensor *t,
                                    int64_t first, int64_t n, float *out,
                                    weft_err *err)
{
    const int64_t step = WEFT_STAGING_BYTES / (int64_t)sizeof(float);
    for (int64_t done = 0; done < n; done += step) {
        const int64_t now = n - done < step ? n - done : step;
        WEFT_TRY(weft_loader_read(loader, t, first + done, now, loader->staging,
                                  err));
        for (int64_t i = 0; i < now; i++) {
            out[done + i] = as_f32(t->dtype, loader->staging, i);
            if (!isfinite(out[done + i]))
                return damaged(loader, t, "not a finite number",
                               first + done + i, err);
        }
    }
    return WEFT_OK;
}

weft_status weft_loader_vector(weft_loader *loader, const char *name, int32_t n,
                               int32_t tail, const float **out, weft_err *err)
{
    const int64_t dims[] = {n};
    const weft_tensor *t = NULL;
    WEFT_TRY(weft_loader_find(loader, name, dims, 1, &t, err));
    WEFT_ASSERT(t != NULL);
    if (!weft_loader_is_plain(t->dtype))
        return weft_loader_wrong_dtype(loader, t, "F32, BF16 or F16", err);
    const size_t bytes = (size_t)n * sizeof(float);
    float *const to = weft_loader_place_data(loader, bytes);
    *out = to;
    weft_loader_need_staging(loader,
                             WEFT_STAGING_BYTES +
                                 (weft_loader_is_apart(loader) ? bytes : 0));
    if (to == NULL) return WEFT_OK;
    float *const host = weft_loader_host_floats(loader, to, WEFT_STAGING_BYTES);
    WEFT_TRY(weft_loader_read_floats(loader, t, 0, n - tail, host + tail, err));
    WEFT_TRY(weft_loader_read_floats(loader, t, n - tail, tail, host, err));
    return weft_loader_put(loader, to, host, bytes, err);
}

weft_status weft_loader_table(weft_loader *loader, const char *name,
                              int32_t n_row, int32_t width, const void **out,
                              weft_dtype *dtype_out, weft_err *err)
{
    const int64_t dims[] = {n_row, width};
    const weft_tensor *t = NULL;
    WEFT_TRY(weft_loader_find(loader, name, dims, 2, &t, err));
    WEFT_ASSERT(t != NULL);
    if (!weft_loader_is_plain(t->dtype))
        return weft_loader_wrong_dtype(loader, t, "F32, BF16 or F16", err);
    unsigned char *const to = weft_loader_place_data(loader, (size_t)t->bytes);
    *out = to;
    *dtype_out = (weft_dtype)t->dtype;
    weft_loader_need_staging(loader, WEFT_STAGING_BYTES);
    if (to == NULL) return WEFT_OK;
    const int64_t item = (int64_t)weft_stored_bytes(t->dtype);
    for (int64_t done = 0; done < t->bytes; done += WEFT_STAGING_BYTES) {
        const int64_t left = t->bytes - done;
        const int64_t now =
            left < WEFT_STAGING_BYTES ? left : WEFT_STAGING_BYTES;
        void *const host =
            weft_loader_is_apart(loader) ? loader->staging : to + done;
        WEFT_TRY(
            weft_loader_read(loader, t, done / item, now / item, host, err));
        WEFT_TRY(weft_loader_put(loader, to + done, host, (size_t)now, err));
    }
    return WEFT_OK;
}
