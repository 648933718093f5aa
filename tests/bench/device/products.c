/* Products with weights: of every row, and of the experts' pairs. */
#include <stdio.h>
#include <string.h>

#include "tests/bench/device/device.h"

enum { TOP_K = 8 };

struct products {
    weft_dtype dtype;
    int32_t n_out, n_in, n_row;
    const float *scales; /* device */
    weft_matrix w[SETS_MAX];
    int64_t bytes; /* of a matrix */
};

/* All 2^-4, so that products with f8 are as large as the others. */
static const float SCALE = 0.0625F;

static struct products make_products(struct bench *b, weft_dtype dtype,
                                     int32_t n_row, int32_t n_out, int32_t n_in)
{
    struct products p = {.dtype = dtype, .n_out = n_out, .n_in = n_in};
    p.n_row = n_row;
    p.bytes = (int64_t)n_out * n_in * (int64_t)weft_dtype_bytes(dtype);
    if (dtype == WEFT_BF16) return p;
    const int64_t n = (int64_t)((n_out + 127) / 128) * ((n_in + 127) / 128);
    float *const host = bench_new_host(b, n * 4);
    for (int64_t i = 0; i < n; i++) host[i] = SCALE;
    p.scales = bench_put(b, host, n * 4);
    return p;
}

static enum kind kind_of(weft_dtype dtype)
{
    return dtype == WEFT_BF16 ? HALVES : BYTES;
}

static weft_matrix matrix_of(const struct bench *b, const struct products *p,
                             int64_t i)
{
    const struct block *const block = &b->blocks[kind_of(p->dtype)];
    return (weft_matrix){.data =
                             block->device + bench_offset(block, p->bytes, i),
                         .scales = p->scales,
                         .dtype = p->dtype,
                         .n_out = p->n_out,
                         .n_in = p->n_in};
}

/* Some outputs of one row: x is in the floats from byte `x_from` on, W is
 * matrix `i`, y is on the device. */
static void look_at_row(struct bench *b, const struct products *p, int64_t i,
                        int64_t x_from, const float *y, struct distance *d)
{
    const enum kind kind = kind_of(p->dtype);
    const int64_t w_from = bench_offset(&b->blocks[kind], p->bytes, i);
    const double scale = p->dtype == WEFT_BF16 ? 1.0 : (double)SCALE;
    float *const got = bench_new_host(b, (int64_t)p->n_out * 4);
    bench_get(b, got, y, (int64_t)p->n_out * 4);
    for (int32_t s = 0; s < SAMPLES; s++) {
        const int64_t out = (int64_t)s * p->n_out / SAMPLES;
        double sum = 0.0;
        for (int64_t k = 0; k < p->n_in; k++)
            sum += bench_element(b, kind, w_from, out * p->n_in + k) *
                   bench_element(b, FLOATS, x_from, k);
        bench_look(d, (double)got[out], sum * scale);
    }
}

static void begin_gemm(struct bench *b, void *op, int32_t i)
{
    const struct products *const p = op;
    const int64_t bytes = (int64_t)p->n_row * p->n_in * 4;
    const weft_gemm g = {.w = &p->w[i],
                         .x = bench_floats(b, bytes, i),
                         .y = b->out,
                         .x_stride = p->n_in,
                         .y_stride = p->n_out,
                         .n_row = p->n_row,
                         .x_is_bf16 = true};
    b->api->ops->gemm(NULL, &g, 1);
}

static void bench_gemm(struct bench *b, const char *what, weft_dtype dtype,
                       int32_t n_row, int32_t n_out, int32_t n_in)
{
    char name[96];
    (void)snprintf(name, sizeof name, "gemm %s %s %d x %d rows %d", what,
                   weft_dtype_name(dtype), (int)n_out, (int)n_in, (int)n_row);
    const bool is_peak = strcmp(what, "peak") == 0;
    if (!is_peak && !bench_wanted(b, name)) return;
    struct products p = make_products(b, dtype, n_row, n_out, n_in);
    for (int32_t i = 0; i < SETS_MAX; i++) p.w[i] = matrix_of(b, &p, i);
    struct distance d = {0};
    begin_gemm(b, &p, 0);
    look_at_row(b, &p, 0, 0, b->out, &d);
    struct job job = {.begin = begin_gemm, .op = &p, .error = bench_ratio(&d)};
    job.bytes = (double)p.bytes + 4.0 * n_row * (n_in + n_out);
    job.flops = 2.0 * n_row * n_out * n_in;
    if (is_peak) {
        const double rate = job.flops / bench_measure(b, &job);
        if (rate > b->gemm_rate) b->gemm_rate = rate;
    }
    bench_report(b, name, &job);
    bench_end_case(b);
}

/* --- Experts ------------------------------------------------------------- */

struct experts {
    struct products p;
    weft_matrix *w[2]; /* [n_expert], device */
    int32_t *first, *x_rows;
    int32_t *first_host, *x_rows_host;
    int32_t n_expert, n_pairs;
};

static void begin_grouped(struct bench *b, void *op, int32_t i)
{
    const struct experts *const e = op;
    const weft_grouped g = {.w = e->w[i % 2],
                            .w_stride = sizeof(weft_matrix),
                            .x = bench_floats(b, 256, 0),
                            .x_rows = e->x_rows,
                            .first = e->first,
                            .y = b->out,
                            .x_stride = e->p.n_in,
                            .y_stride = e->p.n_out,
                            .n_pairs = e->n_pairs,
                            .n_expert = e->n_expert,
                            .n_out = e->p.n_out,
                            .n_in = e->p.n_in,
                            .x_is_bf16 = true};
    b->api->ops->grouped(NULL, &g);
}

/* Pairs by expert, spread evenly. Returns how many experts have any. */
static int32_t spread(struct bench *b, struct experts *e)
{
    int32_t n = 0, n_used = 0;
    e->first_host = bench_new_host(b, (int64_t)((int64_t)e->n_expert + 1) * 4);
    e->x_rows_host = bench_new_host(b, (int64_t)e->n_pairs * 4);
    for (int32_t x = 0; x < e->n_expert; x++) {
        e->first_host[x] = n;
        for (int32_t pair = 0; pair < e->n_pairs; pair++) {
            const int32_t r = pair / TOP_K, s = pair % TOP_K;
            if ((r * 37 + r / 11 + s * (e->n_expert / TOP_K)) % e->n_expert ==
                x)
                e->x_rows_host[n++] = r;
        }
        n_used += n > e->first_host[x];
    }
    e->first_host[e->n_expert] = n;
    e->first = bench_put(b, e->first_host, ((int64_t)e->n_expert + 1) * 4);
    e->x_rows = bench_put(b, e->x_rows_host, (int64_t)n * 4);
    return n_used;
}

/* Two sets, one of them with the experts in another order. */
static void put_matrices(struct bench *b, struct experts *e)
{
    const int64_t bytes = e->n_expert * (int64_t)sizeof(weft_matrix);
    weft_matrix *const w = bench_new_host(b, bytes);
    for (int32_t k = 0; k < 2; k++) {
        for (int32_t i = 0; i < e->n_expert; i++)
            w[i] = matrix_of(b, &e->p, i + (int64_t)k * e->n_expert / 2);
        e->w[k] = bench_put(b, w, bytes);
    }
}

static void bench_grouped(struct bench *b, weft_dtype dtype, int32_t n_row,
                          int32_t n_expert, int32_t n_out, int32_t n_in)
{
    char name[96];
    (void)snprintf(name, sizeof name, "grouped %s %d of %d x %d rows %d",
                   weft_dtype_name(dtype), (int)n_expert, (int)n_out, (int)n_in,
                   (int)n_row);
    if (!bench_wanted(b, name)) return;
    struct experts e = {.n_expert = n_expert, .n_pairs = n_row * TOP_K};
    e.p = make_products(b, dtype, n_row, n_out, n_in);
    put_matrices(b, &e);
    const double n_used = spread(b, &e);
    struct distance d = {0};
    begin_grouped(b, &e, 0);
    for (int32_t i = 0; i < n_expert; i += n_expert - 1) {
        const int32_t pair = e.first_host[i];
        if (pair == e.first_host[i + 1]) continue;
        look_at_row(b, &e.p, i, (int64_t)e.x_rows_host[pair] * n_in * 4,
                    b->out + (int64_t)pair * n_out, &d);
    }
    struct job job = {.begin = begin_grouped, .op = &e};
    job.error = bench_ratio(&d);
    job.bytes = n_used * (double)e.p.bytes + 32.0 * n_row * (n_in + n_out);
    job.flops = 2.0 * e.n_pairs * n_out * n_in;
    bench_report(b, name, &job);
    bench_end_case(b);
}

void bench_products(struct bench *b)
{
    static const int32_t rows[] = {1, 16, 64, 512};
    static const weft_dtype types[] = {WEFT_BF16, WEFT_F8_E4M3};
    const int32_t n_rows = b->tiny ? 2 : 4;
    for (int t = 0; t < 2; t++) {
        if (b->tiny)
            bench_gemm(b, "peak", types[t], 40, 256, 256);
        else
            bench_gemm(b, "peak", types[t], 4096, 8192, 8192);
    }
    for (int t = 0; t < 2; t++)
        for (int32_t r = 0; r < n_rows; r++) {
            if (b->tiny) {
                bench_gemm(b, "q", types[t], rows[r], 192, 64);
                bench_grouped(b, types[t], rows[r], 16, 96, 160);
                continue;
            }
            bench_gemm(b, "q", types[t], rows[r], 24576, 1024);
            bench_gemm(b, "out", types[t], rows[r], 5120, 16384);
            bench_grouped(b, types[t], rows[r], 256, 1536, 5120);
            bench_grouped(b, types[t], rows[r], 256, 5120, 1536);
        }
}
