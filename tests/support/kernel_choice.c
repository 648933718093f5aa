/* Checks of routing, vocabulary reductions and exp. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "node/base/mem.h"
#include "tests/support/kernel_kit.h"

static void run_route(const weft_ops *ops, weft_threads *threads, void *arg)
{
    ops->route(threads, arg);
}

static void route_case(weft_kernel_check *c, int32_t i)
{
    static const int32_t counts[] = {1, 2, 8, 12, 16, 64, 96, 256, 257, 300};
    static const int32_t groups[] = {1, 2, 4, 4, 8, 8, 6, 8, 1, 3};
    const int32_t n = counts[i % 10];
    const int32_t n_group = (i / 10) % 2 == 0 ? 1 : groups[i % 10];
    const int32_t n_row = weft_kit_int(c, 1, 12);
    const int32_t open = weft_kit_int(c, 1, n_group);
    const int32_t room = n / n_group * open;
    const int32_t top_k = weft_kit_int(c, 1, room < 9 ? room : 9);
    float *const logits = weft_kit_nans((int64_t)n_row * (n + 1));
    float *const bias = weft_kit_nans(n);
    weft_kit_fill(c, logits, n_row, n, n + 1, 4.0f);
    weft_kit_fill(c, bias, 1, n, n, 0.5f);
    if (i % 3 == 0) /* ties */
        for (int32_t k = 0; k < n_row * (n + 1); k++)
            logits[k] = rintf(logits[k]);
    if (i % 6 == 0) memset(bias, 0, (size_t)n * sizeof *bias);
    if (i % 5 == 1) /* all choice scores negative */
        for (int32_t k = 0; k < n; k++) bias[k] -= 2.0f;
    const size_t slots = (size_t)n_row * (size_t)top_k;
    int32_t *const experts = weft_kit_new(slots, sizeof *experts);
    float *const weights = weft_kit_new(slots, sizeof *weights);
    weft_route op = {.logits = logits,
                     .bias = i % 4 == 3 ? NULL : bias,
                     .experts_out = experts,
                     .weights_out = weights,
                     .logits_stride = n + 1,
                     .n_row = n_row,
                     .n_expert = n,
                     .top_k = top_k,
                     .n_group = n_group,
                     .topk_group = open,
                     .scoring = (weft_scoring)((i / 2) % 2),
                     .group_score = (weft_group_score)((i / 3) % 2),
                     .norm_topk = i % 2 == 0,
                     .dynamic_rsf = i % 7 == 0,
                     .scale = i % 3 == 1 ? 1.0f : 2.5f};
    const weft_kit_output out[2] = {{experts, slots * sizeof *experts},
                                    {weights, slots * sizeof *weights}};
    char what[100];
    (void)snprintf(what, sizeof what,
                   "%d rows, %d of %d experts, %d of %d groups", n_row, top_k,
                   n, open, n_group);
    weft_kit_compare(c, run_route, &op, out, 2, what);
    weft_mem_free(logits);
    weft_mem_free(bias);
    weft_mem_free(experts);
    weft_mem_free(weights);
}

void weft_check_route(weft_kernel_check *c)
{
    for (int32_t i = 0; i < 240; i++) route_case(c, i);
}

static void run_group(const weft_ops *ops, weft_threads *threads, void *arg)
{
    ops->group(threads, arg);
}

static void group_case(weft_kernel_check *c, int32_t i)
{
    static const int32_t counts[] = {1, 2, 5, 64, 257};
    const int32_t n_row = weft_kit_int(c, 1, 40), top_k = 1 + i % 5;
    const int32_t n_pairs = n_row * top_k, n_expert = counts[i % 5];
    const size_t bytes = (size_t)n_pairs * sizeof(int32_t);
    int32_t *const experts = weft_kit_new((size_t)n_pairs, sizeof *experts);
    int32_t *const first = weft_kit_new((size_t)n_expert + 1, sizeof *first);
    int32_t *const rows = weft_kit_new((size_t)n_pairs, sizeof *rows);
    int32_t *const row_of = weft_kit_new((size_t)n_pairs, sizeof *row_of);
    /* Some have all, most have none. */
    for (int32_t k = 0; k < n_pairs; k++)
        experts[k] =
            weft_kit_int(c, i % 3 == 0 ? n_expert - 1 : 0, n_expert - 1);
    weft_group op = {.experts = experts,
                     .first_out = first,
                     .rows_out = rows,
                     .row_of_out = row_of,
                     .n_row = n_row,
                     .top_k = top_k,
                     .n_expert = n_expert};
    const weft_kit_output out[3] = {
        {first, ((size_t)n_expert + 1) * sizeof *first},
        {rows, bytes},
        {row_of, bytes}};
    char what[60];
    (void)snprintf(what, sizeof what, "%d rows to %d of %d", n_row, top_k,
                   n_expert);
    weft_kit_compare(c, run_group, &op, out, 3, what);
    weft_mem_free(experts);
    weft_mem_free(first);
    weft_mem_free(rows);
    weft_mem_free(row_of);
}

void weft_check_group(weft_kernel_check *c)
{
    for (int32_t i = 0; i < 60; i++) group_case(c, i);
}

static void run_vocab(const weft_ops *ops, weft_threads *threads, void *arg)
{
    ops->vocab(threads, arg);
}

void weft_check_vocab(weft_kernel_check *c)
{
    static const int32_t sizes[] = {1,    2,    15,   16,   17,  300,
                                    1023, 1024, 1025, 2053, 5000};
    for (int32_t i = 0; i < 88; i++) {
        const int32_t n = sizes[i % 11];
        float *const x = weft_kit_nans(3 * (int64_t)(n + 1));
        weft_kit_fill(c, x, 3, n, n + 1, i % 2 == 0 ? 20.0f : 0.0f);
        if (i % 5 == 1) x[weft_kit_int(c, 0, n - 1)] = NAN;
        if (i % 5 == 2) x[weft_kit_int(c, 0, n - 1)] = -INFINITY;
        if (i % 5 == 3) x[weft_kit_int(c, 0, n - 1)] = INFINITY;
        if (i % 5 == 4)
            for (int32_t k = 0; k < n; k++) x[k] = -INFINITY;
        /* A log near 0 shows the last bits of the sum, so its order. */
        if (i % 4 == 3) {
            for (int32_t k = 0; k < 3 * (n + 1); k++)
                x[k] = weft_kit_float(c, 1.0f) - 8.0f;
            x[n / 2] = x[n + 1] = x[3 * n + 1] = 0.0f;
        }
        if (i % 7 == 0) /* the largest twice */
            x[n + 1 + n / 3] = x[n + 1 + n / 2] = 30.0f;
        weft_vocab_stat stats[3];
        memset(stats, 0xff, sizeof stats);
        weft_vocab op = {.logits = x,
                         .stats_out = stats,
                         .logits_stride = n + 1,
                         .n_row = 3,
                         .vocab = n};
        const weft_kit_output out = {stats, sizeof stats};
        char what[60];
        (void)snprintf(what, sizeof what, "%d logits, case %d", n, i);
        weft_kit_compare(c, run_vocab, &op, &out, 1, what);
        weft_mem_free(x);
    }
}

struct values {
    float *x;
    int32_t n;
};

static void run_exp(const weft_ops *ops, weft_threads *threads, void *arg)
{
    const struct values *const v = arg;
    (void)threads;
    ops->exp(v->x, v->n);
}

void weft_check_exp(weft_kernel_check *c)
{
    static const float special[] = {0.0f,      -0.0f,    INFINITY, -INFINITY,
                                    88.72283f, 88.7229f, -103.97f, -103.98f,
                                    -104.5f,   -87.4f,   1e30f,    -1e30f,
                                    0x1p-149f, 89.0f,    -104.0f,  1.0f};
    for (int32_t n = 1; n <= 67; n += 6) {
        struct values v = {weft_kit_nans(n), n};
        weft_kit_fill(c, v.x, 1, n, n, 110.0f);
        for (int32_t i = 0; i < n && i < 16; i++)
            if (n > 20) v.x[i] = special[i];
        const weft_kit_output out = {v.x, (size_t)n * sizeof *v.x};
        weft_kit_compare(c, run_exp, &v, &out, 1, "values");
        weft_mem_free(v.x);
    }
    struct values v = {weft_kit_nans(65536), 65536};
    for (int32_t i = 0; i < v.n; i++)
        v.x[i] = -105.0f + (float)i * (195.0f / 65536.0f);
    const weft_kit_output out = {v.x, (size_t)v.n * sizeof *v.x};
    weft_kit_compare(c, run_exp, &v, &out, 1, "the whole range");
    weft_mem_free(v.x);
}
