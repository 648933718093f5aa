/* Checks of the ops that go row by row over activations. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "node/base/mem.h"
#include "tests/support/kernel_kit.h"

static const int32_t widths[] = {1,   2,   7,   15,  16,  17,   31,
                                 32,  33,  63,  64,  65,  127,  128,
                                 129, 255, 256, 257, 521, 1021, 4099};
enum { N_WIDTH = sizeof widths / sizeof widths[0] };

/* What a case is made of; each check uses what it needs. */
struct rows {
    float *x, *y, *w, *b, *z;
    int64_t x_stride, y_stride, z_stride;
    int32_t n_row, width;
    weft_round round;
    bool in_place;
    char what[120];
};

static void make_rows(weft_kernel_check *c, struct rows *r, int32_t i)
{
    r->width = widths[i % N_WIDTH];
    r->n_row = weft_kit_int(c, 1, r->width > 500 ? 5 : 40);
    r->round = (weft_round)(i & 1);
    r->in_place = (weft_kit_bits(c) & 1) != 0;
    r->x_stride = r->width + 1 + i % 3;
    r->y_stride = r->in_place ? r->x_stride : r->width + 4;
    r->z_stride = r->width + 2;
    r->x = weft_kit_nans(r->n_row * r->x_stride);
    r->y = r->in_place ? r->x : weft_kit_nans(r->n_row * r->y_stride);
    r->z = weft_kit_nans(r->n_row * r->z_stride);
    r->w = weft_kit_nans(r->width);
    r->b = weft_kit_nans(r->width);
    weft_kit_fill(c, r->x, r->n_row, r->width, r->x_stride, 3.0f);
    weft_kit_fill(c, r->z, r->n_row, r->width, r->z_stride, 3.0f);
    weft_kit_fill(c, r->w, 1, r->width, r->width, 2.0f);
    weft_kit_fill(c, r->b, 1, r->width, r->width, 1.0f);
    (void)snprintf(r->what, sizeof r->what,
                   "%d rows of %d, round %d, in place %d", r->n_row, r->width,
                   (int)r->round, r->in_place);
}

static void compare_rows(weft_kernel_check *c, struct rows *r,
                         weft_kit_run_fn run)
{
    const weft_kit_output out = {r->y, (size_t)(r->n_row * r->y_stride) *
                                           sizeof *r->y};
    weft_kit_compare(c, run, r, &out, 1, r->what);
    if (!r->in_place) weft_mem_free(r->y);
    weft_mem_free(r->x);
    weft_mem_free(r->z);
    weft_mem_free(r->w);
    weft_mem_free(r->b);
}

static void run_rms_norm(const weft_ops *ops, weft_threads *threads, void *arg)
{
    const struct rows *const r = arg;
    const weft_rms_norm op = {.x = r->x,
                              .w = r->w,
                              .y = r->y,
                              .x_stride = r->x_stride,
                              .y_stride = r->y_stride,
                              .n_row = r->n_row,
                              .width = r->width,
                              .eps = 1e-5f,
                              .scale = r->n_row % 3 == 0 ? 1.0f : 2.3f,
                              .round = r->round};
    ops->rms_norm(threads, &op);
}

void weft_check_rms_norm(weft_kernel_check *c)
{
    for (int32_t i = 0; i < 3 * N_WIDTH; i++) {
        struct rows r;
        make_rows(c, &r, i);
        compare_rows(c, &r, run_rms_norm);
    }
}

static void run_layer_norm(const weft_ops *ops, weft_threads *threads,
                           void *arg)
{
    const struct rows *const r = arg;
    const weft_layer_norm op = {.x = r->x,
                                .w = r->w,
                                .b = r->b,
                                .y = r->y,
                                .x_stride = r->x_stride,
                                .y_stride = r->y_stride,
                                .n_row = r->n_row,
                                .width = r->width,
                                .eps = 1e-6f,
                                .round = r->round};
    ops->layer_norm(threads, &op);
}

void weft_check_layer_norm(weft_kernel_check *c)
{
    for (int32_t i = 0; i < 3 * N_WIDTH; i++) {
        struct rows r;
        make_rows(c, &r, i);
        compare_rows(c, &r, run_layer_norm);
    }
}

static void run_silu_mul(const weft_ops *ops, weft_threads *threads, void *arg)
{
    const struct rows *const r = arg;
    const weft_silu_mul op = {.a = r->x,
                              .b = r->z,
                              .y = r->y,
                              .a_stride = r->x_stride,
                              .b_stride = r->z_stride,
                              .y_stride = r->y_stride,
                              .n_row = r->n_row,
                              .width = r->width,
                              .round = r->round};
    ops->silu_mul(threads, &op);
}

void weft_check_silu_mul(weft_kernel_check *c)
{
    for (int32_t i = 0; i < 3 * N_WIDTH; i++) {
        struct rows r;
        make_rows(c, &r, i);
        r.x[0] = i % 2 == 0 ? -120.0f : 95.0f; /* exp overflows, underflows */
        compare_rows(c, &r, run_silu_mul);
    }
}

static void run_add(const weft_ops *ops, weft_threads *threads, void *arg)
{
    const struct rows *const r = arg;
    const weft_add op = {.x = r->y,
                         .y = r->z,
                         .x_stride = r->y_stride,
                         .y_stride = r->z_stride,
                         .n_row = r->n_row,
                         .width = r->width,
                         .round = r->round};
    ops->add(threads, &op);
}

void weft_check_add(weft_kernel_check *c)
{
    for (int32_t i = 0; i < 3 * N_WIDTH; i++) {
        struct rows r;
        make_rows(c, &r, i);
        weft_kit_fill(c, r.y, r.n_row, r.width, r.y_stride, 3.0f);
        compare_rows(c, &r, run_add);
    }
}

/* Heads of a row: x [n_row, n_head, head_width]. */
struct heads {
    float *x, *y, *g, *cos, *sin;
    int64_t x_stride, x_head_stride, y_stride, y_head_stride;
    int32_t n_row, n_head, width;
    weft_round round;
    bool interleave;
};

static void run_gate(const weft_ops *ops, weft_threads *threads, void *arg)
{
    const struct heads *const h = arg;
    const weft_gate op = {.x = h->x,
                          .g = h->g,
                          .x_stride = h->x_stride,
                          .g_stride = h->n_head + 2,
                          .n_row = h->n_row,
                          .n_head = h->n_head,
                          .head_width = h->width,
                          .round = h->round};
    ops->gate(threads, &op);
}

void weft_check_gate(weft_kernel_check *c)
{
    static const int32_t head_counts[] = {1, 3, 15, 16, 17, 40, 130};
    static const int32_t head_widths[] = {1, 2, 15, 16, 17, 64, 67};
    for (int32_t i = 0; i < 49; i++) {
        struct heads h = {.n_row = weft_kit_int(c, 1, 9),
                          .n_head = head_counts[i % 7],
                          .width = head_widths[i / 7],
                          .round = (weft_round)(i & 1)};
        h.x_stride = h.n_head * h.width + 3;
        h.x = weft_kit_nans(h.n_row * h.x_stride);
        h.g = weft_kit_nans((int64_t)h.n_row * (h.n_head + 2));
        weft_kit_fill(c, h.x, h.n_row, h.n_head * h.width, h.x_stride, 2.0f);
        weft_kit_fill(c, h.g, h.n_row, h.n_head, h.n_head + 2, 12.0f);
        const weft_kit_output out = {h.x, (size_t)(h.n_row * h.x_stride) *
                                              sizeof *h.x};
        char what[80];
        (void)snprintf(what, sizeof what, "%d rows, %d heads of %d", h.n_row,
                       h.n_head, h.width);
        weft_kit_compare(c, run_gate, &h, &out, 1, what);
        weft_mem_free(h.x);
        weft_mem_free(h.g);
    }
}

static void run_rope(const weft_ops *ops, weft_threads *threads, void *arg)
{
    const struct heads *const h = arg;
    const weft_rope op = {.x = h->x,
                          .y = h->y,
                          .cos = h->cos,
                          .sin = h->sin,
                          .x_stride = h->x_stride,
                          .x_head_stride = h->x_head_stride,
                          .y_stride = h->y_stride,
                          .y_head_stride = h->y_head_stride,
                          .n_row = h->n_row,
                          .n_head = h->n_head,
                          .n_freq = h->width / 2,
                          .interleave = h->interleave,
                          .round = h->round};
    ops->rope(threads, &op);
}

void weft_check_rope(weft_kernel_check *c)
{
    static const int32_t freqs[] = {1, 3, 8, 15, 16, 17, 32, 37, 64};
    for (int32_t i = 0; i < 72; i++) {
        struct heads h = {.n_row = weft_kit_int(c, 1, 6),
                          .n_head = weft_kit_int(c, 1, 9),
                          .width = 2 * freqs[i % 9],
                          .round = (weft_round)(i & 1),
                          .interleave = (i & 2) != 0};
        const bool in_place = (i & 4) != 0;
        h.x_head_stride = h.width + 5;
        h.x_stride = h.n_head * h.x_head_stride + 1;
        h.y_head_stride = in_place ? h.x_head_stride : h.width + 2;
        h.y_stride = in_place ? h.x_stride : h.n_head * h.y_head_stride + 3;
        h.x = weft_kit_nans(h.n_row * h.x_stride);
        h.y = in_place ? h.x : weft_kit_nans(h.n_row * h.y_stride);
        for (int32_t r = 0; r < h.n_row; r++)
            weft_kit_fill(c, h.x + r * h.x_stride, h.n_head, h.width,
                          h.x_head_stride, 2.0f);
        const int32_t n = h.n_row * (h.width / 2);
        h.cos = weft_kit_nans(n);
        h.sin = weft_kit_nans(n);
        weft_kit_fill(c, h.cos, 1, n, n, 1.0f);
        weft_kit_fill(c, h.sin, 1, n, n, 1.0f);
        const weft_kit_output out = {h.y, (size_t)(h.n_row * h.y_stride) *
                                              sizeof *h.y};
        char what[100];
        (void)snprintf(what, sizeof what,
                       "%d rows, %d heads of %d, interleave %d", h.n_row,
                       h.n_head, h.width, h.interleave);
        weft_kit_compare(c, run_rope, &h, &out, 1, what);
        if (!in_place) weft_mem_free(h.y);
        weft_mem_free(h.x);
        weft_mem_free(h.cos);
        weft_mem_free(h.sin);
    }
}

static void run_rope_table(const weft_ops *ops, weft_threads *threads,
                           void *arg)
{
    ops->rope_table(threads, arg);
}

void weft_check_rope_table(weft_kernel_check *c)
{
    static const int32_t positions[] = {0,      1,       2,       1000,
                                        131071, 1048575, 9999999, 16777215};
    for (int32_t n_freq = 1; n_freq <= 67; n_freq += 11) {
        float *const freq = weft_kit_nans(n_freq);
        for (int32_t i = 0; i < n_freq; i++)
            freq[i] = i == 0 ? 1.0f
                             : fabsf(weft_kit_float(c, 1.0f)) /
                                   (float)(1 << (i % 20));
        float *const table = weft_kit_nans(16 * (int64_t)n_freq);
        weft_rope_table op = {.positions = positions,
                              .inv_freq = freq,
                              .cos_out = table,
                              .sin_out = table + 8 * (int64_t)n_freq,
                              .n_row = 8,
                              .n_freq = n_freq,
                              .factor = n_freq % 2 == 0 ? 1.0f : 1.19f};
        const weft_kit_output out = {table,
                                     (size_t)(16 * n_freq) * sizeof *table};
        weft_kit_compare(c, run_rope_table, &op, &out, 1, "table");
        weft_mem_free(freq);
        weft_mem_free(table);
    }
}

static void run_embed(const weft_ops *ops, weft_threads *threads, void *arg)
{
    ops->embed(threads, arg);
}

void weft_check_embed(weft_kernel_check *c)
{
    static const int32_t ids[] = {0, 6, 3, 3, 1};
    for (int32_t d = WEFT_F32; d <= WEFT_F8_E4M3; d++)
        for (int32_t i = 0; i < N_WIDTH; i++) {
            const int32_t width = widths[i];
            const size_t n = 7 * (size_t)width;
            unsigned char *const table =
                weft_kit_new(n, weft_dtype_bytes((weft_dtype)d));
            for (size_t k = 0; k < n * weft_dtype_bytes((weft_dtype)d); k++)
                table[k] = (unsigned char)(weft_kit_bits(c) & 0xbb);
            float *const y = weft_kit_nans(5 * (int64_t)(width + 2));
            weft_embed op = {.table = table,
                             .ids = ids,
                             .y = y,
                             .dtype = (weft_dtype)d,
                             .y_stride = width + 2,
                             .n_row = 5,
                             .width = width};
            const weft_kit_output out = {y,
                                         (size_t)(5 * (width + 2)) * sizeof *y};
            weft_kit_compare(c, run_embed, &op, &out, 1,
                             weft_dtype_name(op.dtype));
            weft_mem_free(table);
            weft_mem_free(y);
        }
}

static void run_combine(const weft_ops *ops, weft_threads *threads, void *arg)
{
    ops->combine(threads, arg);
}

void weft_check_combine(weft_kernel_check *c)
{
    for (int32_t i = 0; i < 2 * N_WIDTH; i++) {
        struct rows r;
        make_rows(c, &r, i);
        const int32_t top_k = weft_kit_int(c, 1, 9), n = r.n_row * top_k;
        int32_t *const row_of = weft_kit_new((size_t)n, sizeof *row_of);
        float *const weights = weft_kit_nans(n);
        float *const rows = weft_kit_nans((int64_t)n * r.width);
        for (int32_t k = 0; k < n; k++) row_of[k] = n - 1 - k;
        weft_kit_fill(c, weights, 1, n, n, 1.0f);
        weft_kit_fill(c, rows, n, r.width, r.width, 2.0f);
        weft_combine op = {.expert_rows = rows,
                           .row_of = row_of,
                           .weights = weights,
                           .shared = i % 3 == 0 ? NULL : r.z,
                           .y = r.y,
                           .shared_stride = r.z_stride,
                           .y_stride = r.y_stride,
                           .n_row = r.n_row,
                           .top_k = top_k,
                           .width = r.width,
                           .round = r.round};
        const weft_kit_output out = {r.y, (size_t)(r.n_row * r.y_stride) *
                                              sizeof *r.y};
        weft_kit_compare(c, run_combine, &op, &out, 1, r.what);
        weft_mem_free(row_of);
        weft_mem_free(weights);
        weft_mem_free(rows);
        if (!r.in_place) weft_mem_free(r.y);
        weft_mem_free(r.x);
        weft_mem_free(r.z);
        weft_mem_free(r.w);
        weft_mem_free(r.b);
    }
}

static void run_move(const weft_ops *ops, weft_threads *threads, void *arg)
{
    ops->move(threads, arg);
}

void weft_check_move(weft_kernel_check *c)
{
    for (int32_t i = 0; i < 2 * N_WIDTH; i++) {
        struct rows r;
        int32_t x_rows[40], y_rows[40];
        make_rows(c, &r, i);
        /* Rows may be read more than once, and are written once. */
        for (int32_t k = 0; k < r.n_row; k++) {
            x_rows[k] = weft_kit_int(c, 0, r.n_row - 1);
            y_rows[k] = (k + i) % r.n_row;
        }
        weft_move op = {.x = r.x,
                        .x_rows = i % 3 == 0 ? NULL : x_rows,
                        .y = r.z,
                        .y_rows = i % 4 == 0 ? NULL : y_rows,
                        .x_stride = r.x_stride,
                        .y_stride = r.z_stride,
                        .n_row = r.n_row,
                        .width = r.width};
        const weft_kit_output out = {r.z, (size_t)(r.n_row * r.z_stride) *
                                              sizeof *r.z};
        weft_kit_compare(c, run_move, &op, &out, 1, r.what);
        if (!r.in_place) weft_mem_free(r.y);
        weft_mem_free(r.x);
        weft_mem_free(r.z);
        weft_mem_free(r.w);
        weft_mem_free(r.b);
    }
}
