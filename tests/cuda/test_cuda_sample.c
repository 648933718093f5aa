/* Sampling on a device against the sampler of shard/sample, on the same logits.
 *
 * Both see the same weights, bit for bit, and the same random number; only sums
 * of weights are rounded in different places, by less than 1e-9 of the whole.
 * So the tokens are the same, but where a border of top_p or the point of a
 * draw is that near to a border between two tokens: no seeded case here is. */
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/sample.h"
#include "node/base/mem.h"
#include "shard/sample/sample.h"
#include "tests/support/device_kit.h"
#include "tests/support/kernel_suite.h"

enum { ROWS_MAX = 24, HISTORY = 40, PROMPT = 12, BIASES = 6, STOPS = 3 };

/* Requests over rows of `vocab` logits, on the host. */
typedef struct bench {
    weft_kernel_check c;
    weft_model_config config;
    weft_sampler *sampler;
    int32_t vocab, n_row;
    int64_t stride;
    float *logits;
    weft_vocab_stat stats[ROWS_MAX];
    weft_job jobs[ROWS_MAX];
    int32_t n_tokens[ROWS_MAX];
    int32_t tokens[HISTORY], bias_ids[BIASES], stop_ids[STOPS];
    float bias[BIASES];
    int32_t expected[ROWS_MAX];
} bench;

static float pick_float(bench *b, const float *list, int32_t n)
{
    return list[weft_kit_int(&b->c, 0, n - 1)];
}

static weft_sampling pick_sampling(bench *b)
{
    static const float temperatures[] = {0.0f, 1e-6f, 0.3f, 1.0f,
                                         1.0f, 2.0f,  50.0f};
    static const float top_ps[] = {1.0f, 1.0f, 0.95f, 0.5f, 0.1f, 0.0f};
    static const float min_ps[] = {0.0f, 0.0f, 0.0f, 0.05f, 0.5f, 1.0f};
    static const float penalties[] = {1.0f, 1.0f, 1.3f, 0.7f, 1e-30f, 1e30f};
    static const float amounts[] = {0.0f, 0.0f, 0.4f, -0.4f, 2.0f};
    const uint32_t top_ks[] = {
        0, 0, 0, 1, 2, 40, (uint32_t)b->vocab - 1, (uint32_t)b->vocab, 100000};
    return (weft_sampling){.temperature = pick_float(b, temperatures, 7),
                           .top_p = pick_float(b, top_ps, 6),
                           .min_p = pick_float(b, min_ps, 6),
                           .top_k = top_ks[weft_kit_int(&b->c, 0, 8)],
                           .repetition_penalty = pick_float(b, penalties, 6),
                           .frequency_penalty = pick_float(b, amounts, 5),
                           .presence_penalty = pick_float(b, amounts, 5),
                           .seed = weft_kit_bits(&b->c),
                           .n_bias =
                               weft_kit_int(&b->c, 0, 2) == 0 ? BIASES : 0,
                           .bias_ids = b->bias_ids,
                           .bias = b->bias};
}

static void fill_row(bench *b, float *x, int32_t kind)
{
    const int32_t n = b->vocab;
    weft_kit_fill(&b->c, x, 1, n, n, 6.0f);
    float *const some = &x[weft_kit_int(&b->c, 0, n - 1)];
    for (int32_t i = 0; i < n; i++) {
        if (kind == 1) x[i] = rintf(x[i] / 2.0f); /* ties */
        if (kind == 2) x[i] = i % 2 == 0 ? 0.0f : -0.0f;
        if (kind == 3 && i % 3 != 0) x[i] = -INFINITY;
        if (kind == 4) x[i] *= 1e37f;
        if (kind == 5) x[i] = x[i] * x[i] * x[i] / 10.0f; /* a few stand out */
        if (kind == 6 && i % 50 == 0) x[i] = -INFINITY;
        if (kind == 11) x[i] = -INFINITY;
    }
    if (kind == 9) *some = NAN;
    if (kind == 10) *some = INFINITY;
}

static int32_t any_id(bench *b)
{
    return weft_kit_int(&b->c, 0, b->vocab - 1);
}

static void make_bench(bench *b, uint64_t seed, int32_t vocab, int32_t n_row)
{
    memset(b, 0, sizeof *b);
    b->c.seed = seed;
    b->vocab = b->config.vocab_size = vocab;
    b->n_row = n_row;
    b->stride = vocab + 3;
    b->logits = weft_kit_nans((n_row - 1) * b->stride + vocab);
    if (weft_kit_int(&b->c, 0, 1) == 0) {
        b->config.n_suppressed_ids = 2;
        /* Some also have a bias. */
        b->config.suppressed_ids[0] =
            seed % 2 == 0 && vocab >= 8 ? vocab / 8 * 4 : any_id(b);
        b->config.suppressed_ids[1] = vocab + 7; /* is ignored */
    }
    ck_assert_int_eq(weft_sampler_create(&b->config, weft_ops_reference(),
                                         &b->sampler, NULL),
                     WEFT_OK);
    for (int32_t i = 0; i < HISTORY; i++)
        b->tokens[i] = i % 3 == 0 ? any_id(b) : b->tokens[i / 2];
    b->tokens[1] = vocab; /* is ignored, as what is negative is */
    b->tokens[PROMPT + 1] = -1;
    for (int32_t i = 0; i < STOPS; i++) b->stop_ids[i] = any_id(b);
    b->bias_ids[BIASES - 1] = -3;
    for (int32_t i = 0; i < BIASES - 1; i++) { /* distinct */
        b->bias_ids[i] = vocab < 8 ? i + vocab - 1 : vocab / 8 * i;
        b->bias[i] = (float)(i - 1);
        /* Such a one decides alone. */
        if (seed % 3 == 0 && (i == 2 || i == 3))
            b->bias[i] = i == 2 ? FLT_MAX : -FLT_MAX;
    }
    b->bias[BIASES - 1] = 2.0f; /* of no token */
    for (int32_t r = 0; r < n_row; r++) {
        fill_row(b, b->logits + r * b->stride, weft_kit_int(&b->c, 0, 11));
        b->n_tokens[r] = weft_kit_int(&b->c, PROMPT, HISTORY);
        b->jobs[r] = (weft_job){.n_prompt = PROMPT,
                                .min_tokens = weft_kit_int(&b->c, 0, 30),
                                .stop_ids = b->stop_ids,
                                .n_stop_ids = weft_kit_int(&b->c, 0, STOPS),
                                .sampling = pick_sampling(b)};
    }
}

static void free_bench(bench *b)
{
    weft_sampler_destroy(b->sampler);
    weft_mem_free(b->logits);
}

/* What the host chooses, or -1. */
static void choose_on_host(bench *b)
{
    const weft_vocab vocab = {.logits = b->logits,
                              .stats_out = b->stats,
                              .logits_stride = b->stride,
                              .n_row = b->n_row,
                              .vocab = b->vocab};
    weft_ops_reference()->vocab(NULL, &vocab);
    for (int32_t r = 0; r < b->n_row; r++) {
        const weft_status st = weft_sampler_choose(
            b->sampler, &b->jobs[r], b->tokens, b->n_tokens[r],
            b->logits + r * b->stride, &b->stats[r], &b->expected[r], NULL);
        if (st != WEFT_OK) b->expected[r] = -1;
    }
}

/* Arrays of a bench on the device. */
typedef struct placed {
    int32_t *tokens, *stop_ids, *bias_ids, *suppressed, *tokens_out;
    float *bias, *logits;
    weft_vocab_stat *stats;
    weft_sample_row *rows;
} placed;

static void place(const bench *b, int32_t row, int32_t n, placed *p)
{
    weft_sample_row rows[ROWS_MAX];
    *p = (placed){.tokens = device_kit_put(b->tokens, sizeof b->tokens),
                  .stop_ids = device_kit_put(b->stop_ids, sizeof b->stop_ids),
                  .bias_ids = device_kit_put(b->bias_ids, sizeof b->bias_ids),
                  .suppressed = device_kit_put(b->config.suppressed_ids,
                                               sizeof b->config.suppressed_ids),
                  .tokens_out = device_kit_new((size_t)n * sizeof(int32_t)),
                  .bias = device_kit_put(b->bias, sizeof b->bias),
                  .logits = device_kit_put(
                      b->logits + row * b->stride,
                      (size_t)((n - 1) * b->stride + b->vocab) * sizeof(float)),
                  .stats = device_kit_new((size_t)n * sizeof *p->stats)};
    for (int32_t r = 0; r < n; r++) {
        const weft_job *const job = &b->jobs[row + r];
        const int32_t n_tokens = b->n_tokens[row + r];
        rows[r] = (weft_sample_row){.sampling = job->sampling,
                                    .tokens = p->tokens,
                                    .stop_ids = p->stop_ids,
                                    .n_prompt = job->n_prompt,
                                    .n_tokens = n_tokens};
        if (n_tokens - job->n_prompt < job->min_tokens)
            rows[r].n_stop_ids = job->n_stop_ids;
        rows[r].sampling.bias_ids = p->bias_ids;
        rows[r].sampling.bias = p->bias;
    }
    p->rows = device_kit_put(rows, (size_t)n * sizeof *rows);
}

static void unplace(const placed *p)
{
    void *const all[] = {p->tokens,     p->stop_ids, p->bias_ids,
                         p->suppressed, p->bias,     p->tokens_out,
                         p->logits,     p->stats,    p->rows};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        device_kit_free(all[i]);
}

/* Rows [row, row + n); logits stay as they are. */
static void choose_on_device(const bench *b, int32_t row, int32_t n,
                             int32_t *tokens_out)
{
    const weft_device_api *const api = device_kit_open();
    void *const symbol = device_kit_symbol(WEFT_SAMPLE_SYMBOL);
    weft_device_sample_fn choose = NULL;
    ck_assert_ptr_nonnull(symbol);
    memcpy(&choose, &symbol, sizeof choose);
    placed p;
    place(b, row, n, &p);
    const weft_vocab vocab = {.logits = p.logits,
                              .stats_out = p.stats,
                              .logits_stride = b->stride,
                              .n_row = n,
                              .vocab = b->vocab};
    const weft_sample sample = {.logits = p.logits,
                                .stats = p.stats,
                                .rows = p.rows,
                                .suppressed = p.suppressed,
                                .tokens_out = p.tokens_out,
                                .logits_stride = b->stride,
                                .n_row = n,
                                .vocab = b->vocab,
                                .n_suppressed = b->config.n_suppressed_ids};
    api->ops->vocab(NULL, &vocab);
    choose(&sample);
    ck_assert_int_eq(api->sync(NULL), WEFT_OK);
    device_kit_get(tokens_out, p.tokens_out, (size_t)n * sizeof *tokens_out);
    const size_t n_logits = (size_t)((n - 1) * b->stride + b->vocab);
    float *const after = weft_kit_new(n_logits, sizeof *after);
    device_kit_get(after, p.logits, n_logits * sizeof *after);
    ck_assert_int_eq(
        memcmp(after, b->logits + row * b->stride, n_logits * sizeof *after),
        0);
    weft_mem_free(after);
    unplace(&p);
}

static void assert_row(const bench *b, int32_t r, int32_t token)
{
    const weft_sampling *const p = &b->jobs[r].sampling;
    /* Why there is no token is told, too. */
    const bool finite = !b->stats[r].nan && b->stats[r].max != INFINITY;
    const int32_t expected = b->expected[r] >= 0 ? b->expected[r]
                             : finite            ? WEFT_SAMPLE_NO_TOKEN
                                                 : WEFT_SAMPLE_NOT_FINITE;
    ck_assert_msg(token == expected,
                  "of %d: token %d, not %d (temperature %g, top_k %u, top_p "
                  "%g, min_p %g, repetition %g, frequency %g, presence %g, "
                  "%d biases, %d tokens)",
                  b->vocab, token, expected, (double)p->temperature, p->top_k,
                  (double)p->top_p, (double)p->min_p,
                  (double)p->repetition_penalty, (double)p->frequency_penalty,
                  (double)p->presence_penalty, p->n_bias, b->n_tokens[r]);
}

START_TEST(tokens_are_the_host_samplers)
{
    static const int32_t vocabs[] = {1,   2,    31,   32,  33,   300,
                                     513, 2047, 2048, 100, 2049, 3001};
    int32_t n_drawn = 0;
    for (int32_t i = 0; i < 36; i++) {
        bench b;
        int32_t tokens[ROWS_MAX], one;
        make_bench(&b, 1000 + (uint64_t)i, vocabs[i % 12],
                   i % 12 > 6 ? 8 : ROWS_MAX);
        choose_on_host(&b);
        choose_on_device(&b, 0, b.n_row, tokens);
        for (int32_t r = 0; r < b.n_row; r++) {
            assert_row(&b, r, tokens[r]);
            n_drawn += tokens[r] >= 0;
        }
        /* A row alone, and not at the beginning. */
        const int32_t r = weft_kit_int(&b.c, 0, b.n_row - 1);
        choose_on_device(&b, r, 1, &one);
        ck_assert_int_eq(one, tokens[r]);
        free_bench(&b);
    }
    ck_assert_int_gt(n_drawn, 300);
}
END_TEST

/* Plain draws at many positions: every kind of border is crossed. */
START_TEST(draws_follow_seed_and_position)
{
    for (int32_t i = 0; i < 12; i++) {
        bench b;
        int32_t tokens[ROWS_MAX], n_first = 0;
        make_bench(&b, 2000 + (uint64_t)i, i % 2 == 0 ? 40 : 700, ROWS_MAX);
        for (int32_t r = 0; r < b.n_row; r++) {
            fill_row(&b, b.logits + r * b.stride, 5 * (i % 2));
            memcpy(b.logits + r * b.stride, b.logits,
                   (size_t)b.vocab * sizeof *b.logits);
            b.n_tokens[r] = PROMPT + r;
            b.jobs[r].sampling =
                (weft_sampling){.temperature = 1.5f,
                                .top_p = i % 3 == 1 ? 0.9f : 1.0f,
                                .top_k = i % 3 == 2 ? 30 : 0,
                                .repetition_penalty = 1.0f,
                                .seed = 77 + ((uint64_t)i << 40)};
            b.jobs[r].n_stop_ids = 0;
        }
        choose_on_host(&b);
        choose_on_device(&b, 0, b.n_row, tokens);
        for (int32_t r = 0; r < b.n_row; r++) {
            assert_row(&b, r, tokens[r]);
            n_first += tokens[r] == tokens[0];
        }
        ck_assert_int_lt(n_first, b.n_row);
        free_bench(&b);
    }
}
END_TEST

/* A weight that is min_p itself is kept. */
START_TEST(min_p_is_reached_by_equals)
{
    bench b;
    int32_t tokens[ROWS_MAX], n_light = 0;
    float weight = -1.0f;
    weft_ops_reference()->exp(&weight, 1);
    make_bench(&b, 4000, 64, ROWS_MAX);
    for (int32_t r = 0; r < b.n_row; r++) {
        for (int32_t k = 0; k < b.vocab; k++)
            b.logits[r * b.stride + k] = k % 2 == 0 ? 2.0f : 1.0f;
        b.jobs[r].sampling = (weft_sampling){.temperature = 1.0f,
                                             .top_p = 1.0f,
                                             .min_p = weight,
                                             .repetition_penalty = 1.0f,
                                             .seed = (uint64_t)r};
        b.jobs[r].n_stop_ids = 0;
    }
    choose_on_host(&b);
    choose_on_device(&b, 0, b.n_row, tokens);
    for (int32_t r = 0; r < b.n_row; r++) {
        assert_row(&b, r, tokens[r]);
        n_light += tokens[r] % 2;
    }
    ck_assert_int_gt(n_light, 0);
    free_bench(&b);
}
END_TEST

/* Weights that are all 1 are the largest sum that there is. */
START_TEST(equals_share_the_whole)
{
    static const int32_t vocabs[] = {2, 32, 1024};
    int32_t n_whole[3] = {0};
    for (int32_t i = 0; i < 18; i++) {
        bench b;
        int32_t tokens[ROWS_MAX], n_first = 0;
        make_bench(&b, 5000 + (uint64_t)i, vocabs[i % 3], ROWS_MAX);
        for (int32_t r = 0; r < b.n_row; r++) {
            for (int32_t k = 0; k < b.vocab; k++)
                b.logits[r * b.stride + k] = 3.0f;
            b.jobs[r].sampling =
                (weft_sampling){.temperature = 0.7f,
                                .top_p = i % 2 == 0 ? 1.0f : 0.6f,
                                .repetition_penalty = 1.0f,
                                .seed = (uint64_t)r};
            b.jobs[r].n_stop_ids = 0;
        }
        choose_on_host(&b);
        choose_on_device(&b, 0, b.n_row, tokens);
        for (int32_t r = 0; r < b.n_row; r++) {
            assert_row(&b, r, tokens[r]);
            n_first += tokens[r] == tokens[0];
        }
        const bool whole = b.config.n_suppressed_ids == 0;
        ck_assert(!whole || n_first < b.n_row);
        n_whole[i % 3] += whole;
        free_bench(&b);
    }
    for (int32_t i = 0; i < 3; i++) ck_assert_int_gt(n_whole[i], 0);
}
END_TEST

/* 1 MiB of scratch has room for 3 rows of 40000. */
START_TEST(small_scratch_cuts_rows)
{
    bench b;
    int32_t tokens[ROWS_MAX];
    (void)device_kit_open_scratch(1 << 20);
    make_bench(&b, 3000, 40000, 5);
    for (int32_t r = 0; r < b.n_row; r++) {
        fill_row(&b, b.logits + r * b.stride, r % 2);
        b.jobs[r].sampling = (weft_sampling){.temperature = 1.0f,
                                             .top_p = 0.8f,
                                             .repetition_penalty = 1.2f,
                                             .seed = 5};
    }
    choose_on_host(&b);
    choose_on_device(&b, 0, b.n_row, tokens);
    for (int32_t r = 0; r < b.n_row; r++) assert_row(&b, r, tokens[r]);
    free_bench(&b);
}
END_TEST

int main(void)
{
    device_kit_need();
    const TTest *const tests[] = {
        tokens_are_the_host_samplers, draws_follow_seed_and_position,
        min_p_is_reached_by_equals, equals_share_the_whole,
        small_scratch_cuts_rows};
    return WEFT_SUITE_RUN("cuda_sample", tests);
}
