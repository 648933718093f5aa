/* What goes over the rows of a step: norms, activations, routes, logits. */
#include <math.h>
#include <stdio.h>

#include "tests/bench/device/device.h"

struct rows_op {
    int32_t n_row, width;
    const float *w; /* of a norm, device */
    weft_vocab_stat *stats;
};

static const float *x_of(const struct bench *b, const struct rows_op *o,
                         int32_t i)
{
    return bench_floats(b, (int64_t)o->n_row * o->width * 4, i);
}

static void begin_norm(struct bench *b, void *op, int32_t i)
{
    const struct rows_op *const o = op;
    const weft_rms_norm norm = {.x = x_of(b, o, i),
                                .w = o->w,
                                .y = b->out,
                                .x_stride = o->width,
                                .y_stride = o->width,
                                .n_row = o->n_row,
                                .width = o->width,
                                .eps = 1e-6F,
                                .scale = 1.0F};
    b->api->ops->rms_norm(NULL, &norm);
}

static void bench_norm(struct bench *b, int32_t n_row, int32_t width)
{
    char name[96];
    (void)snprintf(name, sizeof name, "rms_norm %d rows %d", (int)width,
                   (int)n_row);
    if (!bench_wanted(b, name)) return;
    struct rows_op o = {.n_row = n_row, .width = width};
    o.w = bench_floats(b, 256, 1);
    float *const got = bench_new_host(b, (int64_t)width * 4);
    begin_norm(b, &o, 0);
    bench_get(b, got, b->out, (int64_t)width * 4);
    double square = 0.0;
    for (int32_t i = 0; i < width; i++) {
        const double x = bench_element(b, FLOATS, 0, i);
        square += x * x;
    }
    struct distance d = {0};
    for (int32_t i = 0; i < width; i++)
        bench_look(&d, (double)got[i],
                   bench_element(b, FLOATS, 0, i) /
                       sqrt(square / width + 1e-6) *
                       bench_element(b, FLOATS, 256, i));
    struct job job = {.begin = begin_norm, .op = &o, .error = bench_ratio(&d)};
    job.bytes = 8.0 * n_row * width;
    bench_report(b, name, &job);
    bench_end_case(b);
}

static void begin_silu(struct bench *b, void *op, int32_t i)
{
    const struct rows_op *const o = op;
    const weft_silu_mul mul = {.a = x_of(b, o, i),
                               .b = x_of(b, o, i + 1),
                               .y = b->out,
                               .a_stride = o->width,
                               .b_stride = o->width,
                               .y_stride = o->width,
                               .n_row = o->n_row,
                               .width = o->width};
    b->api->ops->silu_mul(NULL, &mul);
}

static void bench_silu(struct bench *b, int32_t n_row, int32_t width)
{
    char name[96];
    (void)snprintf(name, sizeof name, "silu_mul %d rows %d", (int)width,
                   (int)n_row);
    if (!bench_wanted(b, name)) return;
    struct rows_op o = {.n_row = n_row, .width = width};
    float *const got = bench_new_host(b, (int64_t)width * 4);
    const int64_t second =
        bench_offset(&b->blocks[FLOATS], (int64_t)n_row * width * 4, 1);
    struct distance d = {0};
    begin_silu(b, &o, 0);
    bench_get(b, got, b->out, (int64_t)width * 4);
    for (int32_t i = 0; i < width; i++) {
        const double z = bench_element(b, FLOATS, 0, i);
        bench_look(&d, (double)got[i],
                   z / (1.0 + exp(-z)) * bench_element(b, FLOATS, second, i));
    }
    struct job job = {.begin = begin_silu, .op = &o, .error = bench_ratio(&d)};
    job.bytes = 12.0 * n_row * width;
    bench_report(b, name, &job);
    bench_end_case(b);
}

static void begin_vocab(struct bench *b, void *op, int32_t i)
{
    const struct rows_op *const o = op;
    const weft_vocab vocab = {.logits = x_of(b, o, i),
                              .stats_out = o->stats,
                              .logits_stride = o->width,
                              .n_row = o->n_row,
                              .vocab = o->width};
    b->api->ops->vocab(NULL, &vocab);
}

static void bench_vocab(struct bench *b, int32_t n_row, int32_t width)
{
    char name[96];
    (void)snprintf(name, sizeof name, "vocab %d rows %d", (int)width,
                   (int)n_row);
    if (!bench_wanted(b, name)) return;
    struct rows_op o = {.n_row = n_row, .width = width};
    weft_vocab_stat got;
    o.stats = bench_new_device(b, n_row * (int64_t)sizeof got);
    begin_vocab(b, &o, 0);
    bench_get(b, &got, o.stats, sizeof got);
    double sum = 0.0;
    for (int32_t i = 0; i < width; i++)
        sum += exp(bench_element(b, FLOATS, 0, i));
    struct distance d = {0};
    bench_look(&d, (double)got.log_sum_exp, log(sum));
    struct job job = {.begin = begin_vocab, .op = &o, .error = bench_ratio(&d)};
    job.bytes = 4.0 * n_row * width;
    bench_report(b, name, &job);
    bench_end_case(b);
}

void bench_rows(struct bench *b)
{
    static const int32_t rows[] = {1, 64, 512};
    if (b->tiny) {
        bench_norm(b, 2, 160);
        bench_silu(b, 2, 96);
        bench_vocab(b, 2, 3000);
        return;
    }
    for (int r = 0; r < 3; r++) {
        bench_norm(b, rows[r], 5120);
        bench_silu(b, rows[r], 1536);
    }
    bench_vocab(b, 1, 152064);
    bench_vocab(b, 64, 152064);
}
