#include <stdio.h>
#include <string.h>

#include "node/base/mem.h"
#include "tests/support/bytes.h"
#include "tests/support/kernel_kit.h"

static const int32_t widths[] = {1,  3,  15, 16, 17,  31,  32,  33,  47, 48,
                                 49, 63, 64, 65, 127, 128, 129, 191, 193};
enum { N_WIDTH = sizeof widths / sizeof widths[0], LIST_MAX = 6 };

struct list {
    weft_gemm g[LIST_MAX];
    weft_matrix w[LIST_MAX];
    float *x[LIST_MAX];
    int32_t *x_rows[LIST_MAX];
    weft_kit_output y[LIST_MAX];
    int32_t n;
};

static void run_list(const weft_ops *ops, weft_threads *threads, void *arg)
{
    const struct list *const list = arg;
    ops->gemm(threads, list->g, list->n);
}

static void add_product(weft_kernel_check *c, struct list *list,
                        weft_dtype dtype, int32_t n_out, int32_t n_in,
                        int32_t n_row)
{
    const int32_t i = list->n++;
    const bool gather = (weft_kit_bits(c) & 1) != 0;
    const int32_t from_rows = gather ? 2 * n_row + 1 : n_row;
    const int64_t x_stride = n_in + 5, y_stride = n_out + 3;
    weft_kit_matrix(c, dtype, n_out, n_in, &list->w[i]);
    /* Rows that nothing gathers are NaN, so is what lies between rows. */
    list->x[i] = weft_kit_nans(from_rows * x_stride);
    list->x_rows[i] = weft_kit_new((size_t)n_row + 1, sizeof(int32_t));
    for (int32_t r = 0; r < n_row; r++) {
        list->x_rows[i][r] = 2 * (n_row - 1 - r) + 1;
        const int32_t at = gather ? list->x_rows[i][r] : r;
        weft_kit_fill(c, list->x[i] + at * x_stride, 1, n_in, x_stride, 2.0f);
    }
    float *const y = weft_kit_nans(n_row * y_stride);
    list->y[i] = (weft_kit_output){y, (size_t)(n_row * y_stride) * sizeof *y};
    list->g[i] = (weft_gemm){.w = &list->w[i],
                             .x = list->x[i],
                             .x_rows = gather ? list->x_rows[i] : NULL,
                             .y = y,
                             .x_stride = x_stride,
                             .y_stride = y_stride,
                             .n_row = n_row,
                             .round = (weft_round)weft_kit_int(c, 0, 1)};
}

static void compare_list(weft_kernel_check *c, struct list *list)
{
    char what[400] = "";
    for (int32_t i = 0; i < list->n; i++) {
        const size_t used = strlen(what);
        (void)snprintf(what + used, sizeof what - used, "%s %d x %d, %d rows; ",
                       weft_dtype_name(list->w[i].dtype), list->w[i].n_out,
                       list->w[i].n_in, list->g[i].n_row);
    }
    weft_kit_compare(c, run_list, list, list->y, list->n, what);
    for (int32_t i = 0; i < list->n; i++) {
        weft_kit_matrix_free(&list->w[i]);
        weft_mem_free(list->x[i]);
        weft_mem_free(list->x_rows[i]);
        weft_mem_free(list->y[i].data);
    }
    list->n = 0;
}

void weft_check_gemm(weft_kernel_check *c)
{
    struct list list = {.n = 0};
    /* Every width with every type, rows 1 to 40 and none, in lists. */
    int32_t rows = 0;
    for (int32_t d = WEFT_F32; d <= WEFT_F8_E4M3; d++)
        for (int32_t o = 0; o < N_WIDTH; o++) {
            const int32_t n_in = weft_kit_pick(c, widths, N_WIDTH);
            add_product(c, &list, (weft_dtype)d, widths[o], n_in, rows);
            rows = (rows + 7) % 41;
            if (list.n >= 1 + (o + d) % LIST_MAX) compare_list(c, &list);
        }
    compare_list(c, &list);
    for (int32_t n_row = 1; n_row <= 40; n_row++) {
        add_product(c, &list, (weft_dtype)(n_row % 4), 81, 133, n_row);
        if (list.n == 2) compare_list(c, &list);
    }
    /* Long enough that panels and rows are cut between threads. */
    add_product(c, &list, WEFT_BF16, 64, 640, 211);
    compare_list(c, &list);
    add_product(c, &list, WEFT_F8_E4M3, 1000, 515, 3);
    add_product(c, &list, WEFT_F32, 130, 1100, 1);
    compare_list(c, &list);
}

struct pack {
    unsigned char *packed;
    const unsigned char *rows;
    weft_dtype dtype;
    int32_t n_out, n_in;
};

/* Packing is one function for all paths: it is compared with weft_matrix_at,
 * which reads single elements. */
static void run_pack(const weft_ops *ops, weft_threads *threads, void *arg)
{
    const struct pack *const p = arg;
    const size_t bytes = weft_dtype_bytes(p->dtype);
    const size_t row_bytes = (size_t)p->n_in * bytes;
    (void)threads;
    if (ops != weft_ops_reference()) {
        /* In uneven pieces, the last first. */
        const int32_t cuts[4] = {p->n_out, p->n_out * 2 / 3, p->n_out / 5, 0};
        for (int32_t i = 0; i < 3; i++)
            weft_matrix_pack_rows(p->packed, p->dtype, p->n_out, p->n_in,
                                  p->rows + (size_t)cuts[i + 1] * row_bytes,
                                  cuts[i + 1], cuts[i] - cuts[i + 1]);
        return;
    }
    /* As matrix.h words it. */
    for (int32_t o = 0; o < p->n_out; o++)
        for (int32_t i = 0; i < p->n_in; i++) {
            const int32_t panel = o / 64;
            const int32_t left = (p->n_out - panel * 64 + 15) / 16 * 16;
            const int32_t width = left < 64 ? left : 64;
            const int64_t at =
                (int64_t)64 * panel * p->n_in + (int64_t)i * width + o % 64;
            memcpy(p->packed + (size_t)at * bytes,
                   p->rows + (size_t)o * row_bytes + (size_t)i * bytes, bytes);
        }
}

static void check_at(weft_kernel_check *c, const struct pack *p)
{
    const weft_matrix m = {p->packed, NULL, p->dtype, p->n_out, p->n_in};
    if (p->dtype == WEFT_F8_E4M3) return; /* needs scales: checked by gemm */
    for (int32_t o = 0; o < p->n_out; o++)
        for (int32_t i = 0; i < p->n_in; i++) {
            const float got = weft_matrix_at(&m, o, i);
            const float expected =
                weft_f32_of(p->dtype, p->rows, (int64_t)o * p->n_in + i);
            if (same_bytes(&got, &expected, sizeof got)) continue;
            c->n_failed++;
            printf("weft_matrix_at(%d, %d) of %d x %d %s\n", o, i, p->n_out,
                   p->n_in, weft_dtype_name(p->dtype));
            return;
        }
}

void weft_check_pack(weft_kernel_check *c)
{
    for (int32_t d = WEFT_F32; d <= WEFT_F8_E4M3; d++)
        for (int32_t o = 0; o < N_WIDTH; o++) {
            struct pack p = {.dtype = (weft_dtype)d,
                             .n_out = widths[o],
                             .n_in = weft_kit_pick(c, widths, N_WIDTH)};
            const size_t elem = weft_dtype_bytes(p.dtype);
            const size_t n = (size_t)p.n_out * (size_t)p.n_in;
            unsigned char *const rows = weft_kit_new(n, elem);
            for (size_t i = 0; i < n * elem; i++)
                rows[i] = (unsigned char)(weft_kit_bits(c) & 0x3f);
            const size_t bytes = weft_matrix_bytes(p.dtype, p.n_out, p.n_in);
            p.rows = rows;
            p.packed = weft_kit_new(bytes, 1);
            const weft_kit_output out = {p.packed, bytes};
            char what[80];
            (void)snprintf(what, sizeof what, "%s %d x %d",
                           weft_dtype_name(p.dtype), p.n_out, p.n_in);
            weft_kit_compare(c, run_pack, &p, &out, 1, what);
            check_at(c, &p);
            weft_mem_free(p.packed);
            weft_mem_free(rows);
        }
}
