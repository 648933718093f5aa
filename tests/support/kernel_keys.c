/* Checks of the ops over paged rows. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "node/base/mem.h"
#include "tests/support/kernel_kit.h"

static const int32_t page_sizes[] = {1, 3, 4, 16, 64};

static void run_store(const weft_ops *ops, weft_threads *threads, void *arg)
{
    ops->store(threads, arg);
}

void weft_kit_key_edge(float *x, int32_t width, int32_t kind)
{
    static const float largest[] = {0.0f,        0x1p-149f,     0x1.cp-119f,
                                    0x1.cp-118f, 0x1.c00002p8f, 0x1.cp8f,
                                    FLT_MAX,     INFINITY,      NAN};
    const float most = largest[kind % 9];
    for (int32_t i = 0; i < width; i++)
        x[i] = kind % 9 < 7 && fabsf(x[i]) < 1.0f ? x[i] * most : 0.0f;
    x[width - 1] = kind % 2 == 0 ? most : -most;
}

static void store_case(weft_kernel_check *c, weft_dtype dtype, int32_t width,
                       int32_t i)
{
    const int32_t n_tokens = 70;
    weft_kit_pages pages;
    weft_kit_pages_make(c, dtype, n_tokens, page_sizes[i % 5], width, &pages);
    const int32_t n_row = weft_kit_int(c, 1, 20);
    const int32_t first = weft_kit_int(c, 0, n_tokens - n_row);
    weft_row *const rows = weft_kit_new((size_t)n_row, sizeof *rows);
    for (int32_t r = 0; r < n_row; r++)
        rows[r] = (weft_row){.pages = pages.pages, .position = first + r};
    /* One of no sequence. */
    if (i % 3 == 0) rows[n_row / 2] = (weft_row){.position = -1};
    float *const x = weft_kit_nans(n_row * (int64_t)(width + 1));
    weft_kit_fill(c, x, n_row, width, width + 1, 2.0f);
    for (int32_t r = 0; r < n_row && dtype == WEFT_F8_E4M3; r += 2)
        weft_kit_key_edge(x + r * (int64_t)(width + 1), width, i + r / 2);
    weft_store op = {.to = pages.paged,
                     .rows = rows,
                     .x = x,
                     .x_stride = width + 1,
                     .n_row = n_row,
                     .width = width};
    const weft_kit_output out = {pages.paged.base, pages.bytes};
    char what[80];
    (void)snprintf(what, sizeof what, "%s, %d rows of %d, page %d",
                   weft_dtype_name(pages.paged.dtype), n_row, width,
                   pages.paged.page_tokens);
    weft_kit_compare(c, run_store, &op, &out, 1, what);
    weft_mem_free(x);
    weft_mem_free(rows);
    weft_kit_pages_free(&pages);
}

void weft_check_store(weft_kernel_check *c)
{
    static const int32_t widths[] = {1, 15, 16, 17, 33, 64, 130, 576};
    static const int32_t f8_widths[] = {4, 8, 16, 20, 64, 128, 132, 576};
    for (int32_t i = 0; i < 80; i++)
        store_case(c, (i & 8) != 0 ? WEFT_F32 : WEFT_BF16, widths[i % 8], i);
    for (int32_t i = 0; i < 80; i++)
        store_case(c, WEFT_F8_E4M3, f8_widths[i % 8], i);
}

static void run_attn(const weft_ops *ops, weft_threads *threads, void *arg)
{
    ops->attn(threads, arg);
}

/* Rows of one sequence: windows, whole prefixes, key lists, and no keys. */
static void make_rows(weft_kernel_check *c, weft_row *rows, int32_t n_row,
                      int32_t n_tokens, const int64_t *pages, int32_t *keys)
{
    for (int32_t r = 0; r < n_row; r++) {
        const int32_t position = n_tokens - n_row + r;
        rows[r] = (weft_row){.pages = pages, .position = position};
        const int32_t kind = weft_kit_int(c, 0, 3);
        if (kind == 0) rows[r].first = weft_kit_int(c, 0, position);
        if (kind != 1) continue;
        int32_t *const list = keys + (int64_t)r * n_tokens;
        const int32_t keep = weft_kit_int(c, 0, 3);
        for (int32_t j = 0; j <= position; j++)
            if (weft_kit_int(c, 0, 3) < keep) list[rows[r].n_keys++] = j;
        rows[r].keys = list;
    }
}

static void attn_case(weft_kernel_check *c, int32_t n_tokens, int32_t i)
{
    static const int32_t widths[] = {1, 15, 16, 17, 24, 40, 96, 144, 200};
    static const int32_t heads[] = {1, 2, 3, 4, 5, 8, 17, 21, 33};
    const int32_t width = widths[i % 9];
    const int32_t n_head = n_tokens > 300 ? heads[i % 5] : heads[(i / 2) % 9];
    const int32_t value_width = i % 2 == 0 ? width : (width + 1) / 2;
    const int32_t n_row = n_tokens > 300 ? 2 : weft_kit_int(c, 1, 4);
    weft_kit_pages pages;
    weft_kit_pages_make(c, i % 3 == 0 ? WEFT_F32 : WEFT_BF16, n_tokens,
                        page_sizes[i % 5], width, &pages);
    weft_row *const rows = weft_kit_new((size_t)n_row, sizeof *rows);
    int32_t *const keys =
        weft_kit_new((size_t)n_row * (size_t)n_tokens, sizeof *keys);
    make_rows(c, rows, n_row <= n_tokens ? n_row : n_tokens, n_tokens,
              pages.pages, keys);
    const int64_t q_stride = n_head * width + 3;
    const int64_t out_stride = n_head * value_width + 2;
    float *const q = weft_kit_nans(n_row * q_stride);
    float *const y = weft_kit_nans(n_row * out_stride);
    weft_kit_fill(c, q, n_row, n_head * width, q_stride, 3.0f);
    weft_attn op = {.kv = pages.paged,
                    .rows = rows,
                    .q = q,
                    .out = y,
                    .q_stride = q_stride,
                    .out_stride = out_stride,
                    .n_row = n_row <= n_tokens ? n_row : n_tokens,
                    .n_head = n_head,
                    .width = width,
                    .value_width = value_width,
                    .scale = 0.37f,
                    .round = (weft_round)(i & 1)};
    const weft_kit_output out = {y, (size_t)(n_row * out_stride) * sizeof *y};
    char what[120];
    (void)snprintf(what, sizeof what,
                   "%s, %d keys, %d rows, %d heads of %d, %d",
                   weft_dtype_name(pages.paged.dtype), n_tokens, n_row, n_head,
                   width, value_width);
    weft_kit_compare(c, run_attn, &op, &out, 1, what);
    weft_mem_free(q);
    weft_mem_free(y);
    weft_mem_free(rows);
    weft_mem_free(keys);
    weft_kit_pages_free(&pages);
}

void weft_check_attn(weft_kernel_check *c)
{
    static const int32_t lengths[] = {1,  2,   3,   4,   5,   15,  16, 17,
                                      63, 127, 255, 256, 257, 300, 513};
    for (int32_t i = 0; i < 75; i++) attn_case(c, lengths[i % 15], i);
    for (int32_t i = 0; i < 6; i++) attn_case(c, 700 + 61 * i, i);
}

static void run_index(const weft_ops *ops, weft_threads *threads, void *arg)
{
    ops->index_select(threads, arg);
}

static void index_case(weft_kernel_check *c, weft_dtype dtype, int32_t n_tokens,
                       int32_t i)
{
    static const int32_t any_dims[] = {1, 8, 16, 17, 40, 64, 128};
    static const int32_t f8_dims[] = {4, 8, 16, 20, 40, 64, 128};
    const int32_t *const dims = dtype == WEFT_F8_E4M3 ? f8_dims : any_dims;
    static const int32_t heads[] = {1, 3, 4, 5, 16};
    static const int32_t tops[] = {1, 2, 7, 16, 64, 256};
    const int32_t dim = dims[i % 7], n_head = heads[i % 5], top_k = tops[i % 6];
    const int32_t n_row = n_tokens < 5 ? n_tokens : 5;
    weft_kit_pages pages;
    weft_kit_pages_make(c, dtype, n_tokens, page_sizes[i % 5], dim, &pages);
    weft_row rows[5];
    for (int32_t r = 0; r < n_row; r++)
        rows[r] =
            (weft_row){.pages = pages.pages,
                       .position = r == 0 ? n_tokens - 1
                                          : weft_kit_int(c, 0, n_tokens - 1)};
    if (n_row > 3) rows[3] = (weft_row){.position = -1};
    float *const q = weft_kit_nans(5 * (int64_t)(n_head * dim + 3));
    float *const w = weft_kit_nans(5 * (int64_t)(n_head + 2));
    /* Of small whole numbers there are many ties; and scores of nothing but
     * zeros, of both signs. */
    weft_kit_fill(c, q, n_row, n_head * dim, n_head * dim + 3, 2.0f);
    weft_kit_fill(c, w, n_row, n_head, n_head + 2, 1.0f);
    if (i % 4 == 1) {
        memset(q, 0, (size_t)(5 * (n_head * dim + 3)) * sizeof *q);
        for (int32_t h = 0; h < n_head; h++)
            q[(int64_t)h * dim] = (float)weft_kit_int(c, -1, 1);
    }
    int32_t *const keys = weft_kit_new(5 * (size_t)top_k, sizeof *keys);
    int32_t n_keys[5] = {0};
    weft_index_select op = {
        .keys = pages.paged,
        .rows = rows,
        .q = q,
        .w = w,
        .keys_out = keys,
        .n_keys_out = n_keys,
        .scratch = weft_kit_new(3 * (size_t)n_tokens, sizeof(float)),
        .q_stride = n_head * dim + 3,
        .w_stride = n_head + 2,
        .scratch_stride = n_tokens,
        .n_row = n_row,
        .n_head = n_head,
        .head_dim = dim,
        .top_k = top_k};
    const weft_kit_output out[2] = {{keys, 5 * (size_t)top_k * sizeof *keys},
                                    {n_keys, sizeof n_keys}};
    char what[100];
    (void)snprintf(what, sizeof what, "%d keys %s, %d heads of %d, top %d",
                   n_tokens, weft_dtype_name(dtype), n_head, dim, top_k);
    weft_kit_compare(c, run_index, &op, out, 2, what);
    weft_mem_free(op.scratch);
    weft_mem_free(keys);
    weft_mem_free(q);
    weft_mem_free(w);
    weft_kit_pages_free(&pages);
}

void weft_check_index(weft_kernel_check *c)
{
    static const int32_t lengths[] = {1,  2,  4,   7,   8,   17,  63, 64,
                                      65, 97, 255, 256, 257, 511, 600};
    for (int32_t i = 0; i < 105; i++)
        index_case(c, i % 3 == 0 ? WEFT_F32 : WEFT_BF16, lengths[i % 15], i);
    for (int32_t i = 0; i < 105; i++)
        index_case(c, WEFT_F8_E4M3, lengths[i % 15], i);
}
