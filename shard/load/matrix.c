/* matrix.c - reading stored matrices, or a rank's slice of them, into the
 * places where the ops want them.
 *
 * A slice by rows reads its rows alone. A slice by columns reads whole rows,
 * since runs of columns are short and far apart, and keeps its columns.
 */
#include <stdio.h>
#include <string.h>

#include "kernels/matrix.h"
#include "node/base/check.h"
#include "shard/load/loader_internal.h"

/* A stored matrix, found and checked, and what is wanted of it. */
typedef struct source {
    const weft_tensor *tensor, *scale; /* scale: of F8 only */
    int64_t first, scale_first;        /* elements before the block */
    int32_t grid_rows, grid_cols;
    int32_t row, n_out, col, n_in; /* [row, row + n_out) by [col, col + n_in) */
    bool expand;                   /* F8 becomes `dtype` */
    weft_dtype dtype;
} source;

static int32_t blocks_of(int32_t n)
{
    return (n + WEFT_SCALE_BLOCK - 1) / WEFT_SCALE_BLOCK;
}

/* What this rank wants. The same `kept` for all ranks, so that one matrix has
 * one type: whether scale blocks stay what they are if the F8 is kept. */
static source slice_of(const weft_loader *loader, const weft_part *part,
                       bool *kept_out)
{
    const int32_t n = loader->part.n_ranks, rank = loader->part.rank;
    source s = {.grid_rows = blocks_of(part->n_row),
                .grid_cols = blocks_of(part->n_in),
                .row = part->row,
                .n_out = part->n_out,
                .n_in = part->n_in};
    *kept_out = part->tail == 0 && part->row % WEFT_SCALE_BLOCK == 0;
    if (n == 1 || part->cut == WEFT_CUT_NONE) return s;
    int32_t *const size = part->cut == WEFT_CUT_OUTS ? &s.n_out : &s.n_in;
    int32_t *const at = part->cut == WEFT_CUT_OUTS ? &s.row : &s.col;
    WEFT_ASSERT(*size % n == 0 && part->tail == 0);
    *size /= n;
    *at += rank * *size;
    *kept_out = *kept_out && *size % WEFT_SCALE_BLOCK == 0;
    return s;
}

/* Of a tensor of that part; those cut by rows are read in part. */
static weft_share share_of(const weft_loader *loader, const weft_part *part)
{
    const int32_t n = loader->part.n_ranks;
    return (weft_share){.read = part->cut == WEFT_CUT_OUTS ? n : 1,
                        .had = part->cut == WEFT_CUT_NONE ? 1 : n};
}

static weft_status find_scale(weft_loader *loader, const weft_part *part,
                              source *s, weft_err *err)
{
    char name[WEFT_TENSOR_NAME_MAX + 16];
    const int64_t dims[] = {part->n_block, s->grid_rows, s->grid_cols};
    const int32_t n_dims = part->n_block > 0 ? 3 : 2;
    const weft_share share = {
        .read = s->expand ? 1 : share_of(loader, part).read, .had = 0};
    (void)snprintf(name, sizeof name, "%s_scale_inv", part->name);
    WEFT_TRY(weft_loader_find_share(loader, name, dims + 3 - n_dims, n_dims,
                                    share, &s->scale, err));
    WEFT_ASSERT(s->scale != NULL);
    if (weft_loader_is_plain(s->scale->dtype) ||
        s->scale->dtype == WEFT_STORED_U8 ||
        s->scale->dtype == WEFT_STORED_F8_E8M0)
        return WEFT_OK;
    return weft_loader_wrong_dtype(loader, s->scale,
                                   "F32, BF16, F16, F8_E8M0 or U8", err);
}

/* `may_keep`: F8 may stay what it is where blocks do. */
static weft_status find_source(weft_loader *loader, const weft_part *part,
                               bool may_keep, source *s, weft_err *err)
{
    const int64_t dims[] = {part->n_block, part->n_row, part->n_in};
    const int32_t n_dims = part->n_block > 0 ? 3 : 2;
    bool kept = false;
    *s = slice_of(loader, part, &kept);
    WEFT_TRY(weft_loader_find_share(loader, part->name, dims + 3 - n_dims,
                                    n_dims, share_of(loader, part), &s->tensor,
                                    err));
    WEFT_ASSERT(s->tensor != NULL);
    s->first = (int64_t)part->block * part->n_row * part->n_in;
    s->scale_first = (int64_t)part->block * s->grid_rows * s->grid_cols;
    s->dtype = (weft_dtype)s->tensor->dtype;
    if (weft_loader_is_plain(s->tensor->dtype)) return WEFT_OK;
    if (s->tensor->dtype != WEFT_STORED_F8_E4M3)
        return weft_loader_wrong_dtype(loader, s->tensor,
                                       "F32, BF16, F16 or F8_E4M3", err);
    s->expand = !may_keep || !kept;
    if (s->expand)
        s->dtype = loader->profile == WEFT_EXACT ? WEFT_F32 : WEFT_BF16;
    return find_scale(loader, part, s, err);
}

/* The buffer's parts, in this order: stored rows, then (when expanding) their
 * values in the new type, then scales. */
static size_t row_bytes(const weft_part *part, const source *s)
{
    const size_t stored = weft_stored_bytes(s->tensor->dtype);
    return (size_t)part->n_in * stored +
           (s->expand ? (size_t)s->n_in * weft_dtype_bytes(s->dtype) : 0);
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
    WEFT_ASSERT(grid != NULL);
    for (int32_t r = 0; r < n_rows; r++) {
        const float *const scales =
            grid + (int64_t)((row + r) / WEFT_SCALE_BLOCK) * s->grid_cols;
        const uint8_t *const from = codes + (int64_t)r * part->n_in + s->col;
        const int64_t at = (int64_t)r * s->n_in;
        for (int32_t i = 0; i < s->n_in; i++) {
            const float value = weft_f32_of_f8(from[i]) *
                                scales[(s->col + i) / WEFT_SCALE_BLOCK];
            if (s->dtype == WEFT_F32)
                ((float *)out)[at + i] = value;
            else
                ((uint16_t *)out)[at + i] = weft_bf16_of_f32(value);
        }
    }
}

/* Bytes [at, at + n) of each of the rows, next to each other at their front. */
static void keep_columns(void *rows, int32_t n_rows, size_t row_bytes,
                         size_t at, size_t n)
{
    unsigned char *const bytes = rows;
    if (n == row_bytes) return;
    for (size_t r = 0; r < (size_t)n_rows; r++)
        memmove(bytes + r * n, bytes + r * row_bytes + at, n);
}

/* Rows [row, row + n) of the stored matrix in s->dtype, of them the wanted
 * columns; *out is in the buffer. */
static weft_status read_rows(weft_loader *loader, const weft_part *part,
                             const source *s, int32_t row, int32_t n,
                             const float *grid, const void **out, weft_err *err)
{
    const int64_t count = (int64_t)n * part->n_in;
    WEFT_TRY(weft_loader_read(loader, s->tensor,
                              s->first + (int64_t)row * part->n_in, count,
                              loader->staging, err));
    *out = loader->staging;
    if (!s->expand) {
        const size_t item = weft_dtype_bytes(s->dtype);
        keep_columns(loader->staging, n, (size_t)part->n_in * item,
                     (size_t)s->col * item, (size_t)s->n_in * item);
        return WEFT_OK;
    }
    void *const wide = loader->staging + (count + WEFT_PLACE_BYTES - 1) /
                                             WEFT_PLACE_BYTES *
                                             WEFT_PLACE_BYTES;
    expand_rows(part, s, grid, loader->staging, row, n, wide);
    *out = wide;
    return WEFT_OK;
}

/* Where rows of the stored matrix go: up to `n` from `row` on that stay
 * together, and the row of the result where they begin. */
static int32_t destination(const weft_part *part, const source *s, int32_t row,
                           int32_t *n)
{
    if (part->tail == 0) return row - s->row;
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
    if (to->n_out % WEFT_LANES == 0 || weft_loader_is_apart(loader)) return;
    const int32_t panel = to->n_out / WEFT_PANEL_OUTS * WEFT_PANEL_OUTS;
    const size_t before = weft_matrix_bytes(to->dtype, panel, to->n_in);
    const size_t all = weft_matrix_bytes(to->dtype, to->n_out, to->n_in);
    memset(to->data + before, 0, all - before);
}

static unsigned char *place_matrix(weft_loader *loader, weft_dtype dtype,
                                   int32_t n_out, int32_t n_in)
{
    const size_t plain = (size_t)n_out * (size_t)n_in * weft_dtype_bytes(dtype);
    return weft_loader_place_data(loader,
                                  weft_loader_is_apart(loader)
                                      ? plain
                                      : weft_matrix_bytes(dtype, n_out, n_in));
}

/* Rows [row, row + n_rows) of it. */
static weft_status put_rows(weft_loader *loader, const target *to,
                            const void *rows, int32_t row, int32_t n_rows,
                            weft_err *err)
{
    const size_t row_bytes = (size_t)to->n_in * weft_dtype_bytes(to->dtype);
    if (weft_loader_is_apart(loader))
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
    return weft_loader_read_floats(loader, s->scale, s->scale_first,
                                   (int64_t)s->grid_rows * s->grid_cols, at,
                                   err);
}

static size_t rounded(size_t n)
{
    return (n + WEFT_PLACE_BYTES - 1) / WEFT_PLACE_BYTES * WEFT_PLACE_BYTES;
}

/* Bytes of the rows of scales that are read for those that are kept, and
 * whether they must be read next to their place. */
static size_t kept_bytes(const source *s)
{
    return (size_t)blocks_of(s->n_out) * (size_t)s->grid_cols * sizeof(float);
}

static bool kept_apart(const weft_loader *loader, const source *s)
{
    return weft_loader_is_apart(loader) || blocks_of(s->n_in) != s->grid_cols;
}

/* The scales of the blocks that are wanted, kept as they are. */
static weft_status read_scales(weft_loader *loader, const source *s,
                               size_t offset, float *scales, weft_err *err)
{
    const int32_t n_rows = blocks_of(s->n_out);
    const size_t item = sizeof(float), n = (size_t)blocks_of(s->n_in);
    const int64_t first =
        s->scale_first + (int64_t)(s->row / WEFT_SCALE_BLOCK) * s->grid_cols;
    void *const buffer = loader->staging + offset;
    float *const host = kept_apart(loader, s) ? buffer : scales;
    WEFT_TRY(weft_loader_read_floats(
        loader, s->scale, first, (int64_t)n_rows * s->grid_cols, host, err));
    keep_columns(host, n_rows, (size_t)s->grid_cols * item,
                 (size_t)(s->col / WEFT_SCALE_BLOCK) * item, n * item);
    return weft_loader_put(loader, scales, host, (size_t)n_rows * n * item,
                           err);
}

/* `step` rows at once at most. */
static weft_status read_matrix(weft_loader *loader, const weft_part *part,
                               const source *s, const float *grid, int32_t step,
                               unsigned char *data, weft_err *err)
{
    const int32_t end = s->row + s->n_out;
    const target whole = {data, s->dtype, s->n_out, s->n_in};
    clear_padding(loader, &whole);
    for (int32_t row = s->row; row < end;) {
        int32_t n = end - row < step ? end - row : step;
        const int32_t to = destination(part, s, row, &n);
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
    WEFT_TRY(find_source(loader, part, true, &s, err));
    unsigned char *const data = place_matrix(loader, s.dtype, s.n_out, s.n_in);
    float *scales = NULL;
    const bool scaled = s.dtype == WEFT_F8_E4M3;
    if (scaled)
        scales = weft_loader_place_data(loader, (size_t)blocks_of(s.n_out) *
                                                    (size_t)blocks_of(s.n_in) *
                                                    sizeof(float));
    *out = (weft_matrix){data, scales, s.dtype, s.n_out, s.n_in};

    const int32_t step = rows_at_once(part, &s);
    const size_t rows_room = rounded((size_t)step * row_bytes(part, &s)) +
                             (size_t)2 * WEFT_PLACE_BYTES;
    const size_t grid_at =
        rows_room > WEFT_STAGING_BYTES ? rows_room : WEFT_STAGING_BYTES;
    /* One of the two is nothing: scales are kept, or are what expands. */
    weft_loader_need_staging(
        loader, grid_at + grid_bytes(&s) +
                    (scaled && kept_apart(loader, &s) ? kept_bytes(&s) : 0));
    if (data == NULL) return WEFT_OK;

    const float *grid = NULL;
    if (scaled) WEFT_TRY(read_scales(loader, &s, grid_at, scales, err));
    WEFT_TRY(read_grid(loader, &s, grid_at, &grid, err));
    return read_matrix(loader, part, &s, grid, step, data, err);
}

static void transpose(const unsigned char *src, int32_t rows, int32_t cols,
                      size_t item, unsigned char *out)
{
    WEFT_ASSERT(out != NULL);
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

/* `head` of all heads. */
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
    weft_loader_need_staging(loader, grid_at + grid_bytes(b->source));
    if (loader->base == NULL) return WEFT_OK;
    b->turned = loader->staging + turned_at;
    return read_grid(loader, b->source, grid_at, &b->grid, err);
}

weft_status weft_loader_kv_b(weft_loader *loader, const char *name,
                             const weft_geometry *g, weft_layer_weights *out,
                             weft_err *err)
{
    const int32_t n_row = g->n_head * (g->qk_nope_head_dim + g->v_head_dim);
    const int32_t n_head = g->n_head / loader->part.n_ranks;
    const int32_t first = n_head * loader->part.rank;
    const weft_part part = {.name = name,
                            .n_row = n_row,
                            .n_in = g->kv_lora_rank,
                            .n_out = n_row,
                            .cut = WEFT_CUT_OUTS};
    source s;
    kv_b b = {.part = &part, .source = &s, .g = g};
    WEFT_TRY(find_source(loader, &part, false, &s, err));
    weft_matrix *const k_up =
        weft_loader_place(loader, (size_t)n_head * sizeof *k_up);
    weft_matrix *const v_up =
        weft_loader_place(loader, (size_t)n_head * sizeof *v_up);
    out->k_up = k_up;
    out->v_up = v_up;
    WEFT_TRY(prepare_kv_b(loader, &b, err));
    for (int32_t h = 0; h < n_head; h++) {
        unsigned char *const k =
            place_matrix(loader, s.dtype, g->kv_lora_rank, g->qk_nope_head_dim);
        unsigned char *const v =
            place_matrix(loader, s.dtype, g->v_head_dim, g->kv_lora_rank);
        if (loader->base == NULL) continue;
        k_up[h] = (weft_matrix){k, NULL, s.dtype, g->kv_lora_rank,
                                g->qk_nope_head_dim};
        v_up[h] =
            (weft_matrix){v, NULL, s.dtype, g->v_head_dim, g->kv_lora_rank};
        WEFT_TRY(fill_head(loader, &b, first + h, k, v, err));
    }
    return WEFT_OK;
}
