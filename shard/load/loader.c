/* loader.c - finding, placing and reading single tensors. */
#include "shard/load/loader.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/matrix.h"
#include "node/base/check.h"

enum { DEVICE_PLACE_BYTES = 256 };

void *weft_loader_place(weft_loader *loader, size_t n)
{
    const size_t at = loader->used;
    loader->used +=
        (n + WEFT_PLACE_BYTES - 1) / WEFT_PLACE_BYTES * WEFT_PLACE_BYTES;
    return loader->base != NULL ? loader->base + at : NULL;
}

static bool is_apart(const weft_loader *loader)
{
    return !weft_memory_is_host(&loader->memory);
}

void *weft_loader_place_data(weft_loader *loader, size_t n)
{
    if (!is_apart(loader)) return weft_loader_place(loader, n);
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

static void need_staging(weft_loader *loader, size_t n)
{
    if (n > loader->staging_need) loader->staging_need = n;
}

static void mark_used(weft_loader *loader, weft_tensor *t, bool is_scale)
{
    if (t->used || !loader->counts) return;
    t->used = true;
    loader->n_used++;
    loader->file_bytes += t->bytes;
    if (!is_scale)
        loader->n_params += t->bytes / (int64_t)weft_stored_bytes(t->dtype);
}

static weft_status find(weft_loader *loader, const char *name,
                        const int64_t *dims, int32_t n_dims, bool is_scale,
                        const weft_tensor **out, weft_err *err)
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
    mark_used(loader, t, is_scale);
    *out = t;
    return WEFT_OK;
}

weft_status weft_loader_find(weft_loader *loader, const char *name,
                             const int64_t *dims, int32_t n_dims,
                             const weft_tensor **out, weft_err *err)
{
    return find(loader, name, dims, n_dims, false, out, err);
}

static weft_status wrong_dtype(const weft_loader *loader, const weft_tensor *t,
                               const char *wanted, weft_err *err)
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

/* n elements from `first` on; F8 is searched for its NaN codes. */
static weft_status read_elements(weft_loader *loader, const weft_tensor *t,
                                 int64_t first, int64_t n, void *out,
                                 weft_err *err)
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

/* Elements [first, first + n) as fp32, through the staging buffer. */
static weft_status read_floats(weft_loader *loader, const weft_tensor *t,
                               int64_t first, int64_t n, float *out,
                               weft_err *err)
{
    const int64_t step = WEFT_STAGING_BYTES / (int64_t)sizeof(float);
    for (int64_t done = 0; done < n; done += step) {
        const int64_t now = n - done < step ? n - done : step;
        WEFT_TRY(
            read_elements(loader, t, first + done, now, loader->staging, err));
        for (int64_t i = 0; i < now; i++) {
            out[done + i] = as_f32(t->dtype, loader->staging, i);
            if (!isfinite(out[done + i]))
                return damaged(loader, t, "not a finite number",
                               first + done + i, err);
        }
    }
    return WEFT_OK;
}

static bool is_plain(weft_stored_dtype dtype)
{
    return dtype == WEFT_STORED_F32 || dtype == WEFT_STORED_BF16 ||
           dtype == WEFT_STORED_F16;
}

/* Where values for `to` are put together: there, or for a device in the buffer,
 * `offset` bytes behind what is read through it. */
static float *host_floats(const weft_loader *loader, float *to, size_t offset)
{
    void *const at = loader->staging + offset;
    return is_apart(loader) ? at : to;
}

weft_status weft_loader_vector(weft_loader *loader, const char *name, int32_t n,
                               int32_t tail, const float **out, weft_err *err)
{
    const int64_t dims[] = {n};
    const weft_tensor *t = NULL;
    WEFT_TRY(weft_loader_find(loader, name, dims, 1, &t, err));
    WEFT_ASSERT(t != NULL);
    if (!is_plain(t->dtype))
        return wrong_dtype(loader, t, "F32, BF16 or F16", err);
    const size_t bytes = (size_t)n * sizeof(float);
    float *const to = weft_loader_place_data(loader, bytes);
    *out = to;
    need_staging(loader, WEFT_STAGING_BYTES + (is_apart(loader) ? bytes : 0));
    if (to == NULL) return WEFT_OK;
    float *const host = host_floats(loader, to, WEFT_STAGING_BYTES);
    WEFT_TRY(read_floats(loader, t, 0, n - tail, host + tail, err));
    WEFT_TRY(read_floats(loader, t, n - tail, tail, host, err));
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
    if (!is_plain(t->dtype))
        return wrong_dtype(loader, t, "F32, BF16 or F16", err);
    unsigned char *const to = weft_loader_place_data(loader, (size_t)t->bytes);
    *out = to;
    *dtype_out = (weft_dtype)t->dtype;
    need_staging(loader, WEFT_STAGING_BYTES);
    if (to == NULL) return WEFT_OK;
    const int64_t item = (int64_t)weft_stored_bytes(t->dtype);
    for (int64_t done = 0; done < t->bytes; done += WEFT_STAGING_BYTES) {
        const int64_t left = t->bytes - done;
        const int64_t now =
            left < WEFT_STAGING_BYTES ? left : WEFT_STAGING_BYTES;
        void *const host = is_apart(loader) ? loader->staging : to + done;
        WEFT_TRY(read_elements(loader, t, done / item, now / item, host, err));
        WEFT_TRY(weft_loader_put(loader, to + done, host, (size_t)now, err));
    }
    return WEFT_OK;
}

/* A stored matrix, found and checked. */
typedef struct source {
    const weft_tensor *tensor, *scale; /* scale: of F8 only */
    int64_t first, scale_first;        /* elements before the block */
    int32_t grid_rows, grid_cols;
    bool expand; /* F8 becomes `dtype` */
    weft_dtype dtype;
} source;

static int32_t blocks_of(int32_t n)
{
    return (n + WEFT_SCALE_BLOCK - 1) / WEFT_SCALE_BLOCK;
}

static weft_status find_scale(weft_loader *loader, const weft_part *part,
                              source *s, weft_err *err)
{
    char name[WEFT_TENSOR_NAME_MAX + 16];
    const int64_t dims[] = {part->n_block, s->grid_rows, s->grid_cols};
    (void)snprintf(name, sizeof name, "%s_scale_inv", part->name);
    WEFT_TRY(part->n_block > 0
                 ? find(loader, name, dims, 3, true, &s->scale, err)
                 : find(loader, name, dims + 1, 2, true, &s->scale, err));
    WEFT_ASSERT(s->scale != NULL);
    if (is_plain(s->scale->dtype) || s->scale->dtype == WEFT_STORED_U8 ||
        s->scale->dtype == WEFT_STORED_F8_E8M0)
        return WEFT_OK;
    return wrong_dtype(loader, s->scale, "F32, BF16, F16, F8_E8M0 or U8", err);
}

/* `whole`: scale blocks stay what they are if the F8 is kept. */
static weft_status find_source(weft_loader *loader, const weft_part *part,
                               bool whole, source *s, weft_err *err)
{
    const int64_t dims[] = {part->n_block, part->n_row, part->n_in};
    *s = (source){.grid_rows = blocks_of(part->n_row),
                  .grid_cols = blocks_of(part->n_in)};
    WEFT_TRY(part->n_block > 0 ? weft_loader_find(loader, part->name, dims, 3,
                                                  &s->tensor, err)
                               : weft_loader_find(loader, part->name, dims + 1,
                                                  2, &s->tensor, err));
    WEFT_ASSERT(s->tensor != NULL);
    s->first = (int64_t)part->block * part->n_row * part->n_in;
    s->scale_first = (int64_t)part->block * s->grid_rows * s->grid_cols;
    s->dtype = (weft_dtype)s->tensor->dtype;
    if (is_plain(s->tensor->dtype)) return WEFT_OK;
    if (s->tensor->dtype != WEFT_STORED_F8_E4M3)
        return wrong_dtype(loader, s->tensor, "F32, BF16, F16 or F8_E4M3", err);
    WEFT_TRY(find_scale(loader, part, s, err));
    s->expand = !whole;
    if (s->expand)
        s->dtype = loader->profile == WEFT_EXACT ? WEFT_F32 : WEFT_BF16;
    return WEFT_OK;
}

/* The buffer's parts, in this order: stored rows, then (when expanding) their
 * values in the new type, then the scale grid. */
static size_t row_bytes(const weft_part *part, const source *s)
{
    const size_t stored = weft_stored_bytes(s->tensor->dtype);
    return (size_t)part->n_in *
           (stored + (s->expand ? weft_dtype_bytes(s->dtype) : 0));
}

static size_t grid_bytes(const source *s)
{
    return s->expand
               ? (size_t)s->grid_rows * (size_t)s->grid_cols * sizeof(float)
               : 0;
}

/* Rows that go through the buffer at once, at least one. */
static int32_t rows_at_once(const weft_part *part, const source *s)
{
    const size_t fit = WEFT_STAGING_BYTES / row_bytes(part, s);
    return fit < 1 ? 1 : fit > INT32_MAX ? INT32_MAX : (int32_t)fit;
}

static void expand_rows(const weft_part *part, const source *s,
                        const float *grid, const uint8_t *codes, int32_t row,
                        int32_t n_rows, void *out)
{
    for (int32_t r = 0; r < n_rows; r++) {
        const float *const scales =
            grid + (int64_t)((row + r) / WEFT_SCALE_BLOCK) * s->grid_cols;
        const int64_t at = (int64_t)r * part->n_in;
        for (int32_t i = 0; i < part->n_in; i++) {
            const float value =
                weft_f32_of_f8(codes[at + i]) * scales[i / WEFT_SCALE_BLOCK];
            if (s->dtype == WEFT_F32)
                ((float *)out)[at + i] = value;
            else
                ((uint16_t *)out)[at + i] = weft_bf16_of_f32(value);
        }
    }
}

/* Rows [row, row + n) of the stored matrix in s->dtype; *out is in the buffer.
 * room: rows of stored elements that the buffer has space for in front. */
static weft_status read_rows(weft_loader *loader, const weft_part *part,
                             const source *s, int32_t row, int32_t n,
                             const float *grid, const void **out, weft_err *err)
{
    const int64_t count = (int64_t)n * part->n_in;
    WEFT_TRY(read_elements(loader, s->tensor,
                           s->first + (int64_t)row * part->n_in, count,
                           loader->staging, err));
    *out = loader->staging;
    if (!s->expand) return WEFT_OK;
    void *const wide = loader->staging + (count + WEFT_PLACE_BYTES - 1) /
                                             WEFT_PLACE_BYTES *
                                             WEFT_PLACE_BYTES;
    expand_rows(part, s, grid, loader->staging, row, n, wide);
    *out = wide;
    return WEFT_OK;
}

/* Where rows of the stored matrix go: up to `n` from `row` on that stay
 * together, and the row of the result where they begin. */
static int32_t destination(const weft_part *part, int32_t row, int32_t *n)
{
    if (part->tail == 0) return row - part->row;
    const int32_t in_head = row % part->head, front = part->head - part->tail;
    const int32_t end = in_head < front ? front : part->head;
    if (*n > end - in_head) *n = end - in_head;
    return in_head < front ? row + part->tail : row - front;
}

/* A matrix that has its place. */
typedef struct target {
    unsigned char *data;
    weft_dtype dtype;
    int32_t n_out, n_in;
} target;

/* Elements of the padding are read by the kernels and must be zero. */
static void clear_padding(const weft_loader *loader, const target *to)
{
    if (to->n_out % WEFT_LANES == 0 || is_apart(loader)) return;
    const int32_t panel = to->n_out / WEFT_PANEL_OUTS * WEFT_PANEL_OUTS;
    const size_t before = weft_matrix_bytes(to->dtype, panel, to->n_in);
    const size_t all = weft_matrix_bytes(to->dtype, to->n_out, to->n_in);
    memset(to->data + before, 0, all - before);
}

static unsigned char *place_matrix(weft_loader *loader, weft_dtype dtype,
                                   int32_t n_out, int32_t n_in)
{
    const size_t plain = (size_t)n_out * (size_t)n_in * weft_dtype_bytes(dtype);
    return weft_loader_place_data(
        loader,
        is_apart(loader) ? plain : weft_matrix_bytes(dtype, n_out, n_in));
}

/* Rows [row, row + n_rows) of it. */
static weft_status put_rows(weft_loader *loader, const target *to,
                            const void *rows, int32_t row, int32_t n_rows,
                            weft_err *err)
{
    const size_t row_bytes = (size_t)to->n_in * weft_dtype_bytes(to->dtype);
    if (is_apart(loader))
        return weft_loader_put(loader, to->data + (size_t)row * row_bytes, rows,
                               (size_t)n_rows * row_bytes, err);
    weft_matrix_pack_rows(to->data, to->dtype, to->n_out, to->n_in, rows, row,
                          n_rows);
    return WEFT_OK;
}

/* The grid for expansion, behind everything else in the buffer. */
static weft_status read_grid(weft_loader *loader, const source *s,
                             size_t offset, const float **out, weft_err *err)
{
    *out = NULL;
    if (!s->expand) return WEFT_OK;
    void *const at = loader->staging + offset;
    *out = at;
    return read_floats(loader, s->scale, s->scale_first,
                       (int64_t)s->grid_rows * s->grid_cols, at, err);
}

static size_t rounded(size_t n)
{
    return (n + WEFT_PLACE_BYTES - 1) / WEFT_PLACE_BYTES * WEFT_PLACE_BYTES;
}

/* The scales of the rows that are wanted, kept as they are. */
static weft_status read_scales(weft_loader *loader, const weft_part *part,
                               const source *s, int64_t n, size_t offset,
                               float *scales, weft_err *err)
{
    const int64_t first =
        s->scale_first + (int64_t)(part->row / WEFT_SCALE_BLOCK) * s->grid_cols;
    float *const host = host_floats(loader, scales, offset);
    WEFT_TRY(read_floats(loader, s->scale, first, n, host, err));
    return weft_loader_put(loader, scales, host, (size_t)n * sizeof(float),
                           err);
}

/* `step` rows at once at most. */
static weft_status read_matrix(weft_loader *loader, const weft_part *part,
                               const source *s, const float *grid, int32_t step,
                               unsigned char *data, weft_err *err)
{
    const int32_t end = part->row + part->n_out;
    const target whole = {data, s->dtype, part->n_out, part->n_in};
    clear_padding(loader, &whole);
    for (int32_t row = part->row; row < end;) {
        int32_t n = end - row < step ? end - row : step;
        const int32_t to = destination(part, row, &n);
        const void *rows = NULL;
        WEFT_TRY(read_rows(loader, part, s, row, n, grid, &rows, err));
        WEFT_TRY(put_rows(loader, &whole, rows, to, n, err));
        row += n;
    }
    return WEFT_OK;
}

weft_status weft_loader_matrix(weft_loader *loader, const weft_part *part,
                               weft_matrix *out, weft_err *err)
{
    source s;
    const bool whole = part->tail == 0 && part->row % WEFT_SCALE_BLOCK == 0;
    WEFT_TRY(find_source(loader, part, whole, &s, err));
    unsigned char *const data =
        place_matrix(loader, s.dtype, part->n_out, part->n_in);
    float *scales = NULL;
    const bool scaled = s.dtype == WEFT_F8_E4M3;
    const int64_t n_scales = (int64_t)blocks_of(part->n_out) * s.grid_cols;
    if (scaled)
        scales =
            weft_loader_place_data(loader, (size_t)n_scales * sizeof(float));
    *out = (weft_matrix){data, scales, s.dtype, part->n_out, part->n_in};

    const int32_t step = rows_at_once(part, &s);
    const size_t rows_room = rounded((size_t)step * row_bytes(part, &s)) +
                             (size_t)2 * WEFT_PLACE_BYTES;
    const size_t grid_at =
        rows_room > WEFT_STAGING_BYTES ? rows_room : WEFT_STAGING_BYTES;
    /* One of the two is nothing: scales are kept, or are what expands. */
    need_staging(loader, grid_at + grid_bytes(&s) +
                             (scaled && is_apart(loader)
                                  ? (size_t)n_scales * sizeof(float)
                                  : 0));
    if (data == NULL) return WEFT_OK;

    const float *grid = NULL;
    if (scaled)
        WEFT_TRY(read_scales(loader, part, &s, n_scales, grid_at, scales, err));
    WEFT_TRY(read_grid(loader, &s, grid_at, &grid, err));
    return read_matrix(loader, part, &s, grid, step, data, err);
}

static void transpose(const unsigned char *src, int32_t rows, int32_t cols,
                      size_t item, unsigned char *out)
{
    for (int32_t c = 0; c < cols; c++)
        for (int32_t r = 0; r < rows; r++)
            memcpy(out + ((size_t)c * (size_t)rows + (size_t)r) * item,
                   src + ((size_t)r * (size_t)cols + (size_t)c) * item, item);
}

/* What splitting kv_b needs at every head. */
typedef struct kv_b {
    const weft_part *part;
    const source *source;
    const weft_geometry *g;
    const float *grid;
    unsigned char *turned; /* room for a head's key part, transposed */
} kv_b;

static weft_status fill_head(weft_loader *loader, const kv_b *b, int32_t head,
                             unsigned char *k_up, unsigned char *v_up,
                             weft_err *err)
{
    const int32_t nope = b->g->qk_nope_head_dim, v = b->g->v_head_dim;
    const int32_t rank = b->g->kv_lora_rank, first = head * (nope + v);
    const weft_dtype dtype = b->source->dtype;
    const void *rows = NULL;
    WEFT_TRY(read_rows(loader, b->part, b->source, first, nope, b->grid, &rows,
                       err));
    transpose(rows, nope, rank, weft_dtype_bytes(dtype), b->turned);
    const target keys = {k_up, dtype, rank, nope};
    const target values = {v_up, dtype, v, rank};
    clear_padding(loader, &keys);
    WEFT_TRY(put_rows(loader, &keys, b->turned, 0, rank, err));
    WEFT_TRY(read_rows(loader, b->part, b->source, first + nope, v, b->grid,
                       &rows, err));
    clear_padding(loader, &values);
    return put_rows(loader, &values, rows, 0, v, err);
}

/* Lays out the buffer (stored rows and their values, the transposed part, the
 * grid), and reads the grid. */
static weft_status prepare_kv_b(weft_loader *loader, kv_b *b, weft_err *err)
{
    const weft_geometry *const g = b->g;
    const int32_t most = g->qk_nope_head_dim > g->v_head_dim
                             ? g->qk_nope_head_dim
                             : g->v_head_dim;
    const size_t turned_at =
        rounded((size_t)most * row_bytes(b->part, b->source)) +
        (size_t)2 * WEFT_PLACE_BYTES;
    const size_t turned_end =
        turned_at +
        rounded((size_t)g->qk_nope_head_dim * (size_t)g->kv_lora_rank *
                weft_dtype_bytes(b->source->dtype));
    const size_t grid_at =
        turned_end > WEFT_STAGING_BYTES ? turned_end : WEFT_STAGING_BYTES;
    need_staging(loader, grid_at + grid_bytes(b->source));
    if (loader->base == NULL) return WEFT_OK;
    b->turned = loader->staging + turned_at;
    return read_grid(loader, b->source, grid_at, &b->grid, err);
}

weft_status weft_loader_kv_b(weft_loader *loader, const char *name,
                             const weft_geometry *g, weft_layer_weights *out,
                             weft_err *err)
{
    const int32_t n_row = g->n_head * (g->qk_nope_head_dim + g->v_head_dim);
    const weft_part part = {name, 0, 0, n_row, g->kv_lora_rank, 0, n_row, 0, 0};
    source s;
    kv_b b = {.part = &part, .source = &s, .g = g};
    WEFT_TRY(find_source(loader, &part, false, &s, err));
    weft_matrix *const k_up =
        weft_loader_place(loader, (size_t)g->n_head * sizeof *k_up);
    weft_matrix *const v_up =
        weft_loader_place(loader, (size_t)g->n_head * sizeof *v_up);
    out->k_up = k_up;
    out->v_up = v_up;
    WEFT_TRY(prepare_kv_b(loader, &b, err));
    for (int32_t h = 0; h < g->n_head; h++) {
        unsigned char *const k =
            place_matrix(loader, s.dtype, g->kv_lora_rank, g->qk_nope_head_dim);
        unsigned char *const v =
            place_matrix(loader, s.dtype, g->v_head_dim, g->kv_lora_rank);
        if (loader->base == NULL) continue;
        k_up[h] = (weft_matrix){k, NULL, s.dtype, g->kv_lora_rank,
                                g->qk_nope_head_dim};
        v_up[h] =
            (weft_matrix){v, NULL, s.dtype, g->v_head_dim, g->kv_lora_rank};
        WEFT_TRY(fill_head(loader, &b, h, k, v, err));
    }
    return WEFT_OK;
}
