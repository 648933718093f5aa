#include "tests/cuda/index.h"

#include <string.h>

#include "node/base/mem.h"

static float number(index_bench *b, const index_shape *s, float size)
{
    if (s->whole) return (float)weft_kit_int(&b->c, -2, 2);
    return weft_kit_float(&b->c, size);
}

unsigned char *index_key_at(const index_bench *b, int32_t position)
{
    const weft_paged *const p = &b->pages.paged;
    return p->base + b->pages.pages[position / p->page_tokens] +
           p->layer_offset +
           (int64_t)(position % p->page_tokens) * p->row_bytes;
}

void index_set_key(index_bench *b, int32_t position, int32_t i, float value)
{
    unsigned char *const at = index_key_at(b, position);
    if (b->pages.paged.dtype == WEFT_F32)
        ((float *)(void *)at)[i] = value;
    else if (b->pages.paged.dtype == WEFT_F8_E4M3)
        at[i] = weft_f8_of_f32(value);
    else
        ((uint16_t *)(void *)at)[i] = weft_bf16_of_f32(value);
}

void index_set_scale(index_bench *b, int32_t position, float scale)
{
    memcpy(index_key_at(b, position) + b->op.head_dim, &scale, sizeof scale);
}

float index_get_key(const index_bench *b, int32_t position, int32_t i)
{
    const unsigned char *const at = index_key_at(b, position);
    const float value = weft_f32_of(b->pages.paged.dtype, at, i);
    if (b->pages.paged.dtype != WEFT_F8_E4M3) return value;
    float scale;
    memcpy(&scale, at + b->op.head_dim, sizeof scale);
    return value * scale;
}

/* Rows see up to the last token, around top_k, and anything, one is of no
 * sequence; a row that is scored follows the longest, whose scores must not run
 * into it. */
static int32_t pick_position(index_bench *b, const index_shape *s, int32_t r)
{
    const int32_t edges[] = {s->n_tokens - 1,
                             s->top_k,
                             s->top_k - 1,
                             s->top_k + 1,
                             s->page_tokens,
                             -1,
                             0};
    const int32_t p = r < 7 ? edges[r] : weft_kit_int(&b->c, 0, s->n_tokens);
    return p < s->n_tokens ? p : s->n_tokens - 1;
}

void index_make(index_bench *b, uint64_t seed, const index_shape *s)
{
    memset(b, 0, sizeof *b);
    b->c.seed = seed;
    b->n_tokens = s->n_tokens;
    weft_kit_pages_make(&b->c, s->dtype, s->n_tokens, s->page_tokens, s->dim,
                        &b->pages);
    for (int32_t t = 0; s->whole && t < s->n_tokens; t++)
        for (int32_t i = 0; i < s->dim; i++)
            index_set_key(b, t, i, (float)weft_kit_int(&b->c, -2, 2));
    for (int32_t r = 0; r < s->n_row; r++) {
        const int32_t position = pick_position(b, s, r);
        b->rows[r] = (weft_row){.pages = position < 0 ? NULL : b->pages.pages,
                                .position = position};
    }
    const int64_t q_stride = (int64_t)s->n_head * s->dim + INDEX_PAD;
    const int64_t w_stride = s->n_head + INDEX_PAD;
    float *const q = weft_kit_nans(s->n_row * q_stride);
    float *const w = weft_kit_nans(s->n_row * w_stride);
    for (int32_t r = 0; r < s->n_row; r++) {
        for (int64_t i = 0; i < q_stride - INDEX_PAD; i++)
            q[r * q_stride + i] = number(b, s, 2.0f);
        weft_kit_fill(&b->c, w + r * w_stride, 1, s->n_head, w_stride, 1.0f);
    }
    b->keys =
        weft_kit_new((size_t)s->n_row * (size_t)s->top_k, sizeof(int32_t));
    b->op = (weft_index_select){.keys = b->pages.paged,
                                .rows = b->rows,
                                .q = q,
                                .w = w,
                                .keys_out = b->keys,
                                .n_keys_out = b->n_keys,
                                .q_stride = q_stride,
                                .w_stride = w_stride,
                                .n_row = s->n_row,
                                .n_head = s->n_head,
                                .head_dim = s->dim,
                                .top_k = s->top_k,
                                .n_positions_max = s->n_tokens,
                                .q_as_pair = s->pair};
}

void index_free(index_bench *b)
{
    weft_mem_free((float *)(uintptr_t)b->op.q);
    weft_mem_free((float *)(uintptr_t)b->op.w);
    weft_mem_free(b->keys);
    weft_kit_pages_free(&b->pages);
}

/* The keys' block up to the end of the last key: page 0 is the last that is in
 * use. */
static size_t keys_bytes(const index_bench *b)
{
    const weft_paged *const p = &b->pages.paged;
    const int32_t n =
        b->n_tokens < p->page_tokens ? b->n_tokens : p->page_tokens;
    const int64_t key = b->op.head_dim * (int64_t)weft_dtype_bytes(p->dtype) +
                        (p->dtype == WEFT_F8_E4M3 ? 4 : 0);
    return (size_t)(b->pages.pages[0] + p->layer_offset +
                    (n - 1) * p->row_bytes + key);
}

void index_on_device(const index_bench *b, int32_t row, int32_t n,
                     int32_t *keys_out, int32_t *n_keys_out)
{
    const weft_device_api *const api = device_kit_open();
    const weft_index_select *const from = &b->op;
    const size_t n_page = (size_t)b->pages.n_page, top_k = (size_t)from->top_k;
    weft_index_select op = *from;
    int64_t *const pages =
        device_kit_put(b->pages.pages, n_page * sizeof *pages);
    weft_row rows[INDEX_ROWS];
    memcpy(rows, b->rows + row, (size_t)n * sizeof *rows);
    for (int32_t r = 0; r < n; r++)
        rows[r].pages = rows[r].position < 0 ? NULL : pages;
    /* Blocks end with the last row's data. */
    const int64_t n_q =
        (n - 1) * from->q_stride + (int64_t)from->n_head * from->head_dim;
    const int64_t n_w = (n - 1) * from->w_stride + from->n_head;
    memset(keys_out, 0xa5, (size_t)n * top_k * sizeof *keys_out);
    memset(n_keys_out, 0xa5, (size_t)n * sizeof *n_keys_out);
    op.keys.base = device_kit_put(b->pages.paged.base, keys_bytes(b));
    op.rows = device_kit_put(rows, (size_t)n * sizeof *rows);
    op.q = device_kit_put(from->q + row * from->q_stride,
                          (size_t)n_q * sizeof *op.q);
    op.w = device_kit_put(from->w + row * from->w_stride,
                          (size_t)n_w * sizeof *op.w);
    op.keys_out =
        device_kit_put(keys_out, (size_t)n * top_k * sizeof *keys_out);
    op.n_keys_out = device_kit_put(n_keys_out, (size_t)n * sizeof *n_keys_out);
    op.n_row = n;
    api->ops->index_select(NULL, &op);
    ck_assert_int_eq(api->sync(NULL), WEFT_OK);
    device_kit_get(keys_out, op.keys_out, (size_t)n * top_k * sizeof *keys_out);
    device_kit_get(n_keys_out, op.n_keys_out, (size_t)n * sizeof *n_keys_out);
    device_kit_get(rows, op.rows, (size_t)n * sizeof *rows);
    for (int32_t r = 0; r < n; r++) {
        ck_assert_ptr_eq(rows[r].keys, op.keys_out + r * from->top_k);
        ck_assert_int_eq(rows[r].n_keys, n_keys_out[r]);
        ck_assert_int_eq(rows[r].position, b->rows[row + r].position);
    }
    device_kit_free(pages);
    device_kit_free(op.keys.base);
    device_kit_free(op.rows);
    device_kit_free(op.q);
    device_kit_free(op.w);
    device_kit_free(op.keys_out);
    device_kit_free(op.n_keys_out);
}

void index_by_reference(index_bench *b)
{
    weft_index_select op = b->op;
    const size_t n = (size_t)op.n_row * (size_t)op.top_k;
    memset(b->keys, 0xa5, n * sizeof *b->keys);
    op.scratch = weft_kit_new((size_t)b->n_tokens, sizeof *op.scratch);
    weft_ops_reference()->index_select(NULL, &op);
    weft_mem_free(op.scratch);
}

void index_assert_same(const index_bench *b, const int32_t *keys,
                       const int32_t *n_keys, const char *what)
{
    const int32_t top_k = b->op.top_k;
    for (int32_t r = 0; r < b->op.n_row; r++) {
        ck_assert_msg(n_keys[r] == b->n_keys[r], "%s: row %d has %d keys of %d",
                      what, r, n_keys[r], b->n_keys[r]);
        for (int32_t i = 0; i < top_k; i++)
            ck_assert_msg(keys[r * top_k + i] == b->keys[r * top_k + i],
                          "%s: row %d at %d, key %d is %d, not %d", what, r,
                          b->rows[r].position, i, keys[r * top_k + i],
                          b->keys[r * top_k + i]);
    }
}
