/* Ops of a device between the router and the experts: the choice, the order of
 * pairs by expert, and the weighted sum of what comes back. Choice and sum have
 * the bits of the reference. */
#include <stdio.h>

#include "tests/cuda/rows.h"

/* --- The choice ---------------------------------------------------------- */

struct choice {
    int32_t *experts;
    float *weights;
};

static struct choice new_choice(const weft_route *op)
{
    const size_t n = (size_t)op->n_row * (size_t)op->top_k;
    struct choice made = {weft_kit_new(n, sizeof(int32_t)),
                          weft_kit_nans((int64_t)n)};
    memset(made.experts, 0xff, n * sizeof(int32_t));
    return made;
}

static void free_choice(struct choice *made)
{
    weft_mem_free(made->experts);
    weft_mem_free(made->weights);
}

static struct choice route_on_device(const weft_route *op)
{
    const int64_t n = (int64_t)op->n_row * op->top_k;
    const size_t bytes = (size_t)n * sizeof(int32_t);
    struct choice made = new_choice(op);
    weft_route d = *op;
    float *const logits = rows_put(
        op->logits, rows_span(op->n_row, op->logits_stride, op->n_expert), 0);
    float *const bias =
        op->bias != NULL ? rows_put(op->bias, op->n_expert, 0) : NULL;
    d.logits = logits;
    d.bias = bias;
    d.experts_out = device_kit_put(made.experts, bytes);
    d.weights_out = rows_put(made.weights, n, 0);
    device_kit_api()->ops->route(NULL, &d);
    device_kit_get(made.experts, d.experts_out, bytes);
    device_kit_get(made.weights, d.weights_out, bytes);
    device_kit_free(d.experts_out);
    rows_free(d.weights_out, 0);
    rows_free(logits, 0);
    if (bias != NULL) rows_free(bias, 0);
    return made;
}

static void assert_choice(const struct choice *got,
                          const struct choice *expected, int64_t n,
                          const char *what)
{
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(got->experts[i] == expected->experts[i],
                      "%s: slot %lld is expert %d, not %d", what, (long long)i,
                      (int)got->experts[i], (int)expected->experts[i]);
    rows_assert_same(got->weights, expected->weights, n, what);
}

/* Every row by itself: the bytes that it has among the others. */
static void assert_rows_alone(const weft_route *op, const struct choice *all)
{
    const size_t bytes = (size_t)op->top_k * sizeof(int32_t);
    for (int32_t r = 0; r < op->n_row; r++) {
        weft_route one = *op;
        one.n_row = 1;
        one.logits += r * op->logits_stride;
        struct choice made = route_on_device(&one);
        const int64_t at = (int64_t)r * op->top_k;
        ck_assert_mem_eq(made.experts, all->experts + at, bytes);
        ck_assert_mem_eq(made.weights, all->weights + at, bytes);
        free_choice(&made);
    }
}

static void compare_route(const weft_route *op, const char *what)
{
    struct choice got = route_on_device(op), expected = new_choice(op);
    weft_route on_host = *op;
    on_host.experts_out = expected.experts;
    on_host.weights_out = expected.weights;
    weft_ops_reference()->route(NULL, &on_host);
    assert_choice(&got, &expected, (int64_t)op->n_row * op->top_k, what);
    if (op->n_expert <= 64) assert_rows_alone(op, &got);
    free_choice(&got);
    free_choice(&expected);
}

static void route_case(weft_kernel_check *c, int32_t i, int32_t n,
                       int32_t n_group, int32_t n_row)
{
    const int32_t open = weft_kit_int(c, 1, n_group);
    const int32_t room = n / n_group * open;
    const int32_t most = i % 4 == 0 ? 40 : 9;
    const int32_t top_k = weft_kit_int(c, 1, room < most ? room : most);
    const int64_t stride = n + i % 3;
    float *const logits = weft_kit_nans(rows_span(n_row, stride, n));
    float *const bias = weft_kit_nans(n);
    weft_kit_fill(c, logits, n_row, n, stride, 4.0f);
    weft_kit_fill(c, bias, 1, n, n, 0.5f);
    for (int32_t k = 0; i % 3 == 0 && k < rows_span(n_row, stride, n); k++)
        logits[k] = rintf(logits[k]); /* ties */
    if (i % 6 == 0) memset(bias, 0, (size_t)n * sizeof *bias);
    for (int32_t k = 0; i % 5 == 1 && k < n; k++)
        bias[k] -= 2.0f; /* all choice scores negative */
    for (int32_t k = 1; i % 9 == 4 && k < n; k += 3) /* scores of 0 and 1 */
        logits[k] = i % 4 == 0 && k % 2 == 0 ? INFINITY : -INFINITY;
    const weft_route op = {.logits = logits,
                           .bias = i % 4 == 3 ? NULL : bias,
                           .logits_stride = stride,
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
    char what[100];
    (void)snprintf(what, sizeof what,
                   "case %d: %d rows, %d of %d experts, %d of %d groups",
                   (int)i, (int)n_row, (int)top_k, (int)n, (int)open,
                   (int)n_group);
    compare_route(&op, what);
    weft_mem_free(logits);
    weft_mem_free(bias);
}

START_TEST(route_has_the_reference_bits)
{
    (void)device_kit_open();
    static const int32_t counts[] = {1, 2, 8, 12, 16, 64, 96, 256, 257, 300};
    static const int32_t groups[] = {1, 2, 4, 4, 8, 8, 6, 8, 1, 3};
    weft_kernel_check c = {.seed = 31};
    for (int32_t i = 0; i < 160; i++)
        route_case(&c, i, counts[i % 10],
                   (i / 10) % 2 == 0 ? 1 : groups[i % 10],
                   weft_kit_int(&c, 1, 9));
}
END_TEST

START_TEST(route_takes_many_experts)
{
    (void)device_kit_open();
    weft_kernel_check c = {.seed = 32};
    route_case(&c, 1, 1000, 8, 3);
    route_case(&c, 2, 1030, 1030, 2); /* groups of one expert */
    route_case(&c, 3, 4096, 1, 2);
    route_case(&c, 6, 4096, 4096, 1);
}
END_TEST

/* Expert a before expert b: NaN is below everything, ties go to the lower. */
static bool is_before(const float *t, int32_t a, int32_t b)
{
    if (isnan(t[a]) || isnan(t[b]))
        return isnan(t[a]) && isnan(t[b]) ? a < b : isnan(t[b]) != 0;
    return t[a] > t[b] || (t[a] == t[b] && a < b);
}

static int32_t place_of(const float *t, int32_t n, int32_t i)
{
    int32_t before = 0;
    for (int32_t j = 0; j < n; j++) before += j != i && is_before(t, j, i);
    return before;
}

/* Infinite and NaN logits: always top_k different experts, the numbers first.
 * The bias is all there is to a choice score here: sigmoid(0) is 1/2. */
START_TEST(route_ranks_nan_last)
{
    (void)device_kit_open();
    enum { N = 40, TOP = 12 };
    weft_kernel_check c = {.seed = 33};
    for (int32_t i = 0; i < 40; i++) {
        float logits[N] = {0}, bias[N], t[N];
        for (int32_t k = 0; k < N; k++) {
            const int32_t kind = weft_kit_int(&c, 0, i % 4 == 0 ? 1 : 5);
            bias[k] = kind == 0   ? NAN
                      : kind == 1 ? (i % 8 == 0 ? NAN : -INFINITY)
                      : kind == 2 ? INFINITY
                      : kind == 3 ? -0.5f
                                  : rintf(weft_kit_float(&c, 3.0f));
            t[k] = 0.5f + bias[k];
        }
        const weft_route op = {.logits = logits,
                               .bias = bias,
                               .logits_stride = N,
                               .n_row = 1,
                               .n_expert = N,
                               .top_k = TOP,
                               .n_group = 1,
                               .topk_group = 1,
                               .scoring = WEFT_SIGMOID,
                               .scale = 1.0f};
        struct choice got = route_on_device(&op);
        for (int32_t k = 0; k < TOP; k++) {
            ck_assert_int_eq(place_of(t, N, got.experts[k]), k);
            ck_assert(got.weights[k] == 0.5f);
        }
        free_choice(&got);
    }
}
END_TEST

/* A NaN among the logits of a softmax is one of every score. */
START_TEST(route_of_nan_takes_different_experts)
{
    (void)device_kit_open();
    enum { N = 70, TOP = 6 };
    float logits[N];
    for (int32_t i = 0; i < N; i++) logits[i] = (float)(i % 7);
    logits[21] = NAN;
    weft_route op = {.logits = logits,
                     .logits_stride = N,
                     .n_row = 1,
                     .n_expert = N,
                     .top_k = TOP,
                     .n_group = 7,
                     .topk_group = 3,
                     .scoring = WEFT_SOFTMAX,
                     .norm_topk = true,
                     .scale = 1.0f};
    struct choice got = route_on_device(&op);
    for (int32_t k = 0; k < TOP; k++) {
        ck_assert_int_eq(got.experts[k], k);
        ck_assert(isnan(got.weights[k]));
    }
    free_choice(&got);
    /* Of a sigmoid, only its own; a group's score does not mind it. */
    op.scoring = WEFT_SIGMOID;
    got = route_on_device(&op);
    static const int32_t best[TOP] = {20, 27, 41, 48, 62, 69};
    for (int32_t k = 0; k < TOP; k++) {
        ck_assert_int_eq(got.experts[k], best[k]);
        ck_assert(!isnan(got.weights[k]));
    }
    free_choice(&got);
}
END_TEST

/* More slots than a sum has lanes, and scores that are next to nothing. */
START_TEST(route_weighs_many_and_faint_scores)
{
    (void)device_kit_open();
    enum { N = 64, ROWS = 3 };
    weft_kernel_check c = {.seed = 34};
    for (int32_t i = 0; i < 24; i++) {
        float logits[ROWS * N];
        const float off = i % 3 == 2 ? 60.0f : 0.0f;
        for (int32_t k = 0; k < ROWS * N; k++)
            logits[k] = weft_kit_float(&c, 2.0f) - off;
        const weft_route op = {.logits = logits,
                               .logits_stride = N,
                               .n_row = ROWS,
                               .n_expert = N,
                               .top_k = 17 + i,
                               .n_group = 1,
                               .topk_group = 1,
                               .scoring = WEFT_SIGMOID,
                               .norm_topk = i % 2 == 0,
                               .dynamic_rsf = i % 4 > 0,
                               .scale = 2.5f};
        compare_route(&op, "many slots");
    }
}
END_TEST

/* --- Pairs by expert ----------------------------------------------------- */

static void group_case(weft_kernel_check *c, int32_t n_row, int32_t top_k,
                       int32_t n_expert, int32_t skew)
{
    const int32_t n = n_row * top_k;
    const size_t bytes = (size_t)n * sizeof(int32_t);
    const size_t first_bytes = (size_t)(n_expert + 1) * sizeof(int32_t);
    int32_t *const experts = weft_kit_new((size_t)n, sizeof *experts);
    int32_t *const first = weft_kit_new((size_t)n_expert + 1, sizeof *first);
    int32_t *const rows = weft_kit_new((size_t)n, sizeof *rows);
    int32_t *const row_of = weft_kit_new((size_t)n, sizeof *row_of);
    for (int32_t i = 0; i < n; i++)
        experts[i] = skew == 0   ? weft_kit_int(c, 0, n_expert - 1)
                     : skew == 1 ? n_expert / 2
                                 : weft_kit_int(c, 0, n_expert - 1) / 2 * 2;
    memset(first, 0xff, first_bytes);
    memset(rows, 0xff, bytes);
    memset(row_of, 0xff, bytes);
    void *const d_experts = device_kit_put(experts, bytes);
    weft_group op = {.experts = d_experts,
                     .first_out = device_kit_put(first, first_bytes),
                     .rows_out = device_kit_put(rows, bytes),
                     .row_of_out = device_kit_put(row_of, bytes),
                     .n_row = n_row,
                     .top_k = top_k,
                     .n_expert = n_expert};
    device_kit_api()->ops->group(NULL, &op);
    device_kit_get(first, op.first_out, first_bytes);
    device_kit_get(rows, op.rows_out, bytes);
    device_kit_get(row_of, op.row_of_out, bytes);
    int32_t at = 0;
    for (int32_t e = 0; e < n_expert; e++) {
        ck_assert_int_eq(first[e], at);
        for (int32_t i = 0; i < n; i++) {
            if (experts[i] != e) continue;
            ck_assert_int_eq(rows[at], i / top_k);
            ck_assert_int_eq(row_of[i], at);
            at++;
        }
    }
    ck_assert_int_eq(first[n_expert], n);
    device_kit_free(d_experts);
    device_kit_free(op.first_out);
    device_kit_free(op.rows_out);
    device_kit_free(op.row_of_out);
    weft_mem_free(experts);
    weft_mem_free(first);
    weft_mem_free(rows);
    weft_mem_free(row_of);
}

START_TEST(group_orders_pairs)
{
    (void)device_kit_open();
    static const int32_t rows[] = {1, 3, 16, 17, 43, 64, 300};
    static const int32_t top_ks[] = {1, 2, 3, 8};
    static const int32_t experts[] = {1, 3, 8, 17, 40};
    weft_kernel_check c = {.seed = 34};
    for (int32_t i = 0; i < 84; i++)
        group_case(&c, rows[i % 7], top_ks[i % 4], experts[i % 5], i % 3);
}
END_TEST

START_TEST(group_orders_many_pairs)
{
    (void)device_kit_open();
    weft_kernel_check c = {.seed = 35};
    group_case(&c, 1024, 4, 5, 0);
    group_case(&c, 4097, 1, 3, 1);
    group_case(&c, 8191, 8, 4, 0);
    group_case(&c, 30000, 8, 2, 2);
    group_case(&c, 9, 8, 4096, 0);
}
END_TEST

/* --- The sum ------------------------------------------------------------- */

struct sums {
    float *expert_rows, *weights, *shared, *y;
    int32_t *row_of;
    int64_t shared_stride, y_stride;
    int32_t n_row, top_k, width;
    int32_t shift; /* of all bases on the device, in floats */
    weft_round round;
    bool with_shared;
};

static void run_combine(const weft_ops *ops, const struct sums *s)
{
    const weft_combine op = {.expert_rows = s->expert_rows,
                             .row_of = s->row_of,
                             .weights = s->weights,
                             .shared = s->with_shared ? s->shared : NULL,
                             .y = s->y,
                             .shared_stride = s->shared_stride,
                             .y_stride = s->y_stride,
                             .n_row = s->n_row,
                             .top_k = s->top_k,
                             .width = s->width,
                             .round = s->round};
    ops->combine(NULL, &op);
}

/* n_all: how many pairs there are; s may have fewer. */
static float *combine_on_device(const struct sums *s, int32_t n_all)
{
    const int32_t n = s->n_row * s->top_k;
    const int64_t n_y = rows_span(s->n_row, s->y_stride, s->width);
    struct sums d = *s;
    d.expert_rows =
        rows_put(s->expert_rows, (int64_t)n_all * s->width, s->shift);
    d.weights = rows_put(s->weights, n, 0);
    d.shared = rows_put(
        s->shared, rows_span(s->n_row, s->shared_stride, s->width), s->shift);
    d.y = rows_put(s->y, n_y, s->shift);
    d.row_of = device_kit_put(s->row_of, (size_t)n * sizeof *s->row_of);
    run_combine(device_kit_api()->ops, &d);
    float *const got = rows_get(d.y, n_y);
    rows_free(d.expert_rows, s->shift);
    rows_free(d.weights, 0);
    rows_free(d.shared, s->shift);
    rows_free(d.y, s->shift);
    device_kit_free(d.row_of);
    return got;
}

static void make_sums(weft_kernel_check *c, int32_t i, int32_t width,
                      struct sums *s)
{
    const int64_t wide = (width + 3) / 4 * 4;
    const bool odd = i % 2 == 0;
    *s = (struct sums){.shared_stride = odd ? width + 1 : wide,
                       .y_stride = odd ? width + 3 : wide + 4,
                       .n_row = weft_kit_int(c, 1, 5),
                       .top_k = weft_kit_int(c, 1, 9),
                       .width = width,
                       .shift = i % 5 == 0 ? 1 : 0,
                       .round = (weft_round)((i / 2) & 1),
                       .with_shared = i % 3 != 0};
    const int32_t n = s->n_row * s->top_k;
    s->row_of = weft_kit_new((size_t)n, sizeof *s->row_of);
    for (int32_t k = 0; k < n; k++) s->row_of[k] = k;
    for (int32_t k = n - 1; k > 0; k--) {
        const int32_t with = weft_kit_int(c, 0, k), was = s->row_of[k];
        s->row_of[k] = s->row_of[with];
        s->row_of[with] = was;
    }
    s->expert_rows = weft_kit_nans((int64_t)n * width);
    s->weights = weft_kit_nans(n);
    s->shared = weft_kit_nans(rows_span(s->n_row, s->shared_stride, width));
    s->y = weft_kit_nans(rows_span(s->n_row, s->y_stride, width));
    weft_kit_fill(c, s->expert_rows, n, width, width, 2.0f);
    weft_kit_fill(c, s->weights, 1, n, n, 1.0f);
    weft_kit_fill(c, s->shared, s->n_row, width, s->shared_stride, 2.0f);
}

static void combine_case(weft_kernel_check *c, int32_t i, int32_t width)
{
    struct sums s;
    make_sums(c, i, width, &s);
    const int32_t n_all = s.n_row * s.top_k, last = s.n_row - 1;
    float *const got = combine_on_device(&s, n_all);
    struct sums one = s;
    one.n_row = 1;
    one.row_of += (int64_t)last * s.top_k;
    one.weights += (int64_t)last * s.top_k;
    one.shared += last * s.shared_stride;
    one.y += last * s.y_stride;
    one.shift = s.shift == 0 ? 3 : 0;
    float *const alone = combine_on_device(&one, n_all);
    ck_assert_mem_eq(alone, got + last * s.y_stride,
                     (size_t)width * sizeof *got);
    run_combine(weft_ops_reference(), &s);
    rows_assert_same(got, s.y, rows_span(s.n_row, s.y_stride, width),
                     "combine");
    weft_mem_free(alone);
    weft_mem_free(got);
    weft_mem_free(s.expert_rows);
    weft_mem_free(s.weights);
    weft_mem_free(s.shared);
    weft_mem_free(s.y);
    weft_mem_free(s.row_of);
}

START_TEST(combine_has_the_reference_bits)
{
    (void)device_kit_open();
    static const int32_t widths[] = {1,   2,   3,    4,    24,   40,  127,
                                     128, 129, 1021, 1024, 1028, 2052};
    weft_kernel_check c = {.seed = 36};
    for (int32_t i = 0; i < 78; i++) combine_case(&c, i, widths[i % 13]);
}
END_TEST

int main(void)
{
    device_kit_need();
    const TTest *const tests[] = {route_has_the_reference_bits,
                                  route_takes_many_experts,
                                  route_ranks_nan_last,
                                  route_of_nan_takes_different_experts,
                                  route_weighs_many_and_faint_scores,
                                  group_orders_pairs,
                                  group_orders_many_pairs,
                                  combine_has_the_reference_bits};
    return WEFT_SUITE_RUN("cuda_route", tests);
}
