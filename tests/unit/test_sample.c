#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/mem.h"
#include "node/base/rng.h"
#include "shard/sample/sample.h"
#include "tests/support/suite.h"

enum { VOCAB = 300, VOCAB_LARGE = 3000, HISTORY = 12 };

/* A sampler over rows of `vocab` logits, and one request. */
typedef struct bench {
    weft_model_config config;
    const weft_ops *ops;
    weft_sampler *sampler;
    weft_job job;
    int32_t tokens[HISTORY + 4096];
    float logits[VOCAB_LARGE];
    weft_vocab_stat stat;
} bench;

static bench b; /* too large for a stack; every test is its own process */

static void open_bench(int32_t vocab)
{
    memset(&b, 0, sizeof b);
    b.ops = weft_ops_reference();
    b.config.vocab_size = vocab;
    ck_assert_int_eq(weft_sampler_create(&b.config, b.ops, &b.sampler, NULL),
                     WEFT_OK);
    b.job.n_prompt = 5;
    b.job.max_tokens = 4096;
    b.job.sampling = (weft_sampling){.temperature = 1.0F,
                                     .top_p = 1.0F,
                                     .repetition_penalty = 1.0F,
                                     .seed = 1};
    for (int32_t i = 0; i < HISTORY; i++) b.tokens[i] = i % 7;
}

static void close_bench(void)
{
    weft_sampler_destroy(b.sampler);
}

static void set_row(uint64_t seed, float spread)
{
    for (int32_t i = 0; i < b.config.vocab_size; i++) {
        const double u = weft_rng_unit(seed, (uint64_t)i);
        b.logits[i] = (float)(u * u * (double)spread - 3.0);
    }
}

static weft_status choose_at(int32_t n_tokens, int32_t *token_out,
                             weft_err *err)
{
    const weft_vocab vocab = {.logits = b.logits,
                              .stats_out = &b.stat,
                              .logits_stride = b.config.vocab_size,
                              .n_row = 1,
                              .vocab = b.config.vocab_size};
    b.ops->vocab(NULL, &vocab);
    return weft_sampler_choose(b.sampler, &b.job, b.tokens, n_tokens, b.logits,
                               &b.stat, token_out, err);
}

static int32_t choose(int32_t n_tokens)
{
    int32_t token = -1;
    ck_assert_int_eq(choose_at(n_tokens, &token, NULL), WEFT_OK);
    if (token < 0 || token >= b.config.vocab_size)
        ck_abort_msg("token %d", token);
    return token;
}

static int32_t first_largest(void)
{
    int32_t first = 0;
    for (int32_t i = 1; i < b.config.vocab_size; i++)
        if (b.logits[i] > b.logits[first]) first = i;
    return first;
}

/* ---- an oracle: sort everything, in double ------------------------------ */

typedef struct candidate {
    double logit, weight;
    int32_t id;
} candidate;

static int by_logit(const void *x, const void *y)
{
    const candidate *const p = x, *const q = y;
    if (p->logit != q->logit) return p->logit > q->logit ? -1 : 1;
    return p->id < q->id ? -1 : 1;
}

static int by_id(const void *x, const void *y)
{
    return ((const candidate *)x)->id < ((const candidate *)y)->id ? -1 : 1;
}

static double sum_of(const candidate *list, int32_t n)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) sum += list[i].weight;
    return sum;
}

/* The candidates that the filters leave, in order of ids. *close_out: a border
 * of top_p or min_p lies within rounding, so that the answer is open. */
static int32_t filter(candidate *list, bool *close_out)
{
    const weft_sampling *const p = &b.job.sampling;
    int32_t n = b.config.vocab_size;
    for (int32_t i = 0; i < n; i++)
        list[i] = (candidate){.logit = (double)b.logits[i], .id = i};
    qsort(list, (size_t)n, sizeof *list, by_logit);
    for (int32_t i = 0; i < n; i++)
        list[i].weight =
            exp((list[i].logit - list[0].logit) / (double)p->temperature);
    *close_out = false;
    if (p->top_k > 0 && p->top_k < (uint32_t)n) n = (int32_t)p->top_k;
    if (p->top_p < 1.0F) {
        const double target = (double)p->top_p * sum_of(list, n);
        double run = 0.0;
        int32_t kept = 0;
        while (kept < n && (kept == 0 || run < target)) {
            run += list[kept++].weight;
            *close_out |= fabs(run - target) < 1e-5 * target;
        }
        n = kept;
    }
    int32_t m = 0;
    for (int32_t i = 0; i < n; i++) {
        *close_out |=
            fabs(list[i].weight - (double)p->min_p) < 1e-5 * (double)p->min_p;
        if (list[i].weight >= (double)p->min_p) list[m++] = list[i];
    }
    qsort(list, (size_t)m, sizeof *list, by_id);
    return m;
}

/* Whether the oracle draws `token` at the position, or its point lies at a
 * border between two. */
static bool draws(const candidate *list, int32_t n, int32_t position,
                  int32_t token)
{
    const double all = sum_of(list, n);
    const double point =
        weft_rng_unit(b.job.sampling.seed, (uint64_t)position) * all;
    double run = 0.0;
    for (int32_t i = 0; i < n; i++) {
        const double from = run;
        run += list[i].weight;
        if (list[i].id == token)
            return point > from - 1e-5 * all && point < run + 1e-5 * all;
    }
    return false;
}

static void compare_with_oracle(uint64_t seed)
{
    static candidate list[VOCAB_LARGE];
    static const float temperatures[] = {0.3F, 0.7F, 1.0F, 1.7F, 5.0F};
    static const float top_ps[] = {1.0F, 0.999F, 0.9F, 0.5F, 0.1F, 1e-6F};
    static const uint32_t top_ks[] = {0, 2, 5, 50, 299, 300, 1500, UINT32_MAX};
    static const float min_ps[] = {0.0F, 1e-6F, 0.01F, 0.3F, 0.99F};
    weft_sampling *const p = &b.job.sampling;
    p->seed = seed;
    p->temperature = temperatures[weft_rng_u64(seed, 1) % 5];
    p->top_p = top_ps[weft_rng_u64(seed, 2) % 6];
    p->top_k = top_ks[weft_rng_u64(seed, 3) % 8];
    p->min_p = min_ps[weft_rng_u64(seed, 4) % 5];
    set_row(seed, seed % 3 == 0 ? 3.0F : 20.0F);
    if (seed % 4 == 0) /* ties, and ids that are out of the question */
        for (int32_t i = 0; i < b.config.vocab_size; i++)
            b.logits[i] = i % 9 == 0 ? -INFINITY : roundf(b.logits[i]);
    bool is_close = false;
    const int32_t n = filter(list, &is_close);
    int wrong = 0;
    for (int32_t position = 5; position < 60; position++)
        wrong += !draws(list, n, position, choose(position));
    if (!is_close) ck_assert_int_eq(wrong, 0);
}

START_TEST(filters_and_draws_agree_with_an_oracle)
{
    open_bench(VOCAB);
    for (uint64_t seed = 0; seed < 600; seed++) compare_with_oracle(seed);
    close_bench();
    open_bench(VOCAB_LARGE); /* top_k 1500 takes the way of large ones */
    for (uint64_t seed = 0; seed < 60; seed++) compare_with_oracle(seed);
    close_bench();
}
END_TEST

/* 40,000 draws over 8 tokens, each of the first four twice as likely as the
 * next: chi-square with 7 degrees of freedom is below 40 but once in a million.
 */
START_TEST(draws_have_the_right_frequencies)
{
    enum { N = 8, DRAWS = 40000 };
    open_bench(VOCAB);
    for (uint64_t seed = 1; seed <= 3; seed++) {
        double weight[N], sum = 0.0, chi = 0.0;
        int32_t seen[N] = {0};
        for (int32_t i = 0; i < VOCAB; i++) b.logits[i] = -INFINITY;
        for (int32_t i = 0; i < N; i++) {
            weight[i] = exp2(-(i % 4) - 0.5 * i);
            sum += weight[i];
            b.logits[(ptrdiff_t)i * 37] = (float)(0.5 * log(weight[i]));
        }
        b.job.sampling.temperature = 0.5F;
        b.job.sampling.seed = seed;
        for (int32_t d = 0; d < DRAWS; d++) {
            b.job.n_prompt = d + 5;
            const int32_t token = choose(d + 5);
            if (token % 37 != 0 || token / 37 >= N) ck_abort();
            seen[token / 37]++;
        }
        for (int32_t i = 0; i < N; i++) {
            const double want = DRAWS * weight[i] / sum;
            chi += (seen[i] - want) * (seen[i] - want) / want;
        }
        ck_assert_double_lt(chi, 40.0);
    }
    close_bench();
}
END_TEST

/* The token is a function of row, request and position: what was chosen before
 * does not matter, seed and position do. */
START_TEST(seed_and_position_decide)
{
    open_bench(VOCAB);
    set_row(3, 4.0F);
    int32_t first[200], changed[2] = {0};
    for (int32_t i = 0; i < 200; i++) first[i] = choose(5 + i);
    for (int32_t i = 199; i >= 0; i--) {
        ck_assert_int_eq(choose(5 + i), first[i]);
        if (i > 0) changed[0] += first[i] != first[i - 1];
    }
    b.job.sampling.seed = 1ULL << 63 | 1;
    for (int32_t i = 0; i < 200; i++) changed[1] += choose(5 + i) != first[i];
    ck_assert_int_gt(changed[0], 150);
    ck_assert_int_gt(changed[1], 150);
    close_bench();
}
END_TEST

START_TEST(filters_that_are_off_change_nothing)
{
    static const uint32_t off[] = {0, VOCAB, VOCAB + 1, UINT32_MAX};
    open_bench(VOCAB);
    set_row(3, 4.0F);
    for (int32_t i = 0; i < 300; i++) {
        b.job.sampling.top_k = 0;
        const int32_t token = choose(5 + i);
        for (size_t k = 1; k < sizeof off / sizeof *off; k++) {
            b.job.sampling.top_k = off[k];
            ck_assert_int_eq(choose(5 + i), token);
        }
    }
    close_bench();
}
END_TEST

/* Whatever leaves one candidate leaves the first of the largest. */
START_TEST(greedy_takes_the_lowest_of_equals)
{
    open_bench(VOCAB);
    static const weft_sampling greedy[] = {
        {.temperature = 0.0F, .top_p = 1.0F},
        {.temperature = -0.0F, .top_p = 1.0F},
        {.temperature = 1e-45F, .top_p = 1.0F},
        {.temperature = 1e-6F, .top_p = 1.0F},
        {.temperature = 1.0F, .top_p = 0.0F},
        {.temperature = 1.0F, .top_p = 1e-45F},
        {.temperature = 1.0F, .top_p = 1e-9F},
        {.temperature = 1.0F, .top_p = 1.0F, .min_p = 1.0F},
        {.temperature = 1e30F, .top_p = 1.0F, .top_k = 1},
    };
    for (size_t i = 0; i < sizeof greedy / sizeof *greedy; i++)
        for (uint64_t seed = 0; seed < 20; seed++) {
            set_row(seed, 6.0F);
            const int32_t first = first_largest();
            b.logits[VOCAB - 1 - (int32_t)seed] = b.logits[first];
            b.job.sampling = greedy[i];
            b.job.sampling.repetition_penalty = 1.0F;
            b.job.sampling.seed = seed;
            const int32_t lowest = first_largest();
            for (int32_t at = 5; at < 15; at++)
                ck_assert_int_eq(choose(at), lowest);
        }
    close_bench();
}
END_TEST

START_TEST(extreme_options_give_a_token)
{
    static const float temperatures[] = {0.0F, 1e-45F, 1e-6F, 1e-5F,  1.0F,
                                         2.0F, 100.0F, 1e30F, FLT_MAX};
    static const float top_ps[] = {0.0F, 1e-45F, 1e-9F, 0.99999994F, 1.0F};
    static const uint32_t top_ks[] = {0, 1, 2, VOCAB, UINT32_MAX};
    static const float min_ps[] = {0.0F, 1e-45F, 1.0F};
    static const float penalties[] = {-1e30F, -2.0F, 0.0F, 2.0F, 1e30F};
    static const float repetitions[] = {1e-45F, 1e-6F, 1.0F, 2.0F, 1e30F};
    open_bench(VOCAB);
    weft_sampling *const p = &b.job.sampling;
    for (uint64_t i = 0; i < UINT64_C(9) * 5 * 5 * 3 * 25; i++) {
        p->temperature = temperatures[i % 9];
        p->top_p = top_ps[i / 9 % 5];
        p->top_k = top_ks[i / 45 % 5];
        p->min_p = min_ps[i / 225 % 3];
        p->frequency_penalty = penalties[i / 675 % 5];
        p->presence_penalty = penalties[(i / 675 + i) % 5];
        p->repetition_penalty = repetitions[i / 3375 % 5];
        if (i % 16 == 0) set_row(i, i % 32 == 0 ? 1.0F : 3e38F);
        (void)choose(HISTORY);
    }
    close_bench();
}
END_TEST

/* Prompt 3 3 4 0 0, generated 1 1 2. */
START_TEST(penalties_by_hand)
{
    open_bench(VOCAB);
    weft_sampling *const p = &b.job.sampling;
    p->temperature = 0.0F;
    for (int32_t i = 0; i < VOCAB; i++) b.logits[i] = -9.0F;
    static const int32_t tokens[] = {3, 3, 4, 0, 0, 1, 1, 2};
    memcpy(b.tokens, tokens, sizeof tokens);
    const struct {
        float repetition, frequency, presence, zero, one, three, nine;
        int32_t want;
    } golden[] = {
        /* Logits of ids 0, 1, 3 and 9; the last never occurred. */
        {2.0F, 0, 0, -1.0F, -1.0F, 4.0F, 2.1F, 9}, /* 4 / 2 */
        {2.0F, 0, 0, -1.0F, -1.0F, 4.0F, 1.9F, 3},
        {2.0F, 0, 0, -1.0F, -1.0F, -1.0F, -1.9F, 9}, /* -1 * 2 */
        {2.0F, 0, 0, -1.0F, -1.0F, -1.0F, -2.0F, 0},
        {1.0F, 1.0F, 0, 0, 4.0F, 3.0F, 0, 3}, /* 4 - 2; 3 is prompt */
        {1.0F, 0, 1.0F, 0, 4.0F, 2.9F, 0, 1}, /* 4 - 1 */
        {1.0F, 0, 1.0F, 0, 4.0F, 3.1F, 0, 3},
        {1.0F, -1.0F, 0, 0, 4.0F, 5.9F, 0, 1},      /* 4 + 2 */
        {1.0F, 0.5F, 1.0F, 0, 4.0F, 1.9F, 2.1F, 9}, /* 4 - 2 * 0.5 - 1 */
        {2.0F, 0.5F, 1.0F, 0, 4.0F, 0.0F, 0.1F, 9}, /* 4 / 2 - 2 */
    };
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        p->repetition_penalty = golden[i].repetition;
        p->frequency_penalty = golden[i].frequency;
        p->presence_penalty = golden[i].presence;
        b.logits[0] = golden[i].zero;
        b.logits[1] = golden[i].one;
        b.logits[3] = golden[i].three;
        b.logits[9] = golden[i].nine;
        for (int again = 0; again < 2; again++) /* no trace is left behind */
            ck_assert_msg(choose(8) == golden[i].want, "row %zu", i);
    }
    close_bench();
}
END_TEST

START_TEST(bias_moves_tokens)
{
    static const int32_t ids[] = {7, 250};
    static const float bias[] = {100.0F, -100.0F};
    open_bench(VOCAB);
    set_row(5, 6.0F);
    b.logits[250] = 50.0F;
    b.job.sampling.temperature = 0.0F;
    ck_assert_int_eq(choose(8), 250);
    b.job.sampling.bias_ids = ids;
    b.job.sampling.bias = bias;
    b.job.sampling.n_bias = 2;
    ck_assert_int_eq(choose(8), 7);
    b.job.sampling.temperature = 1.0F;
    for (int32_t at = 5; at < 50; at++) ck_assert_int_eq(choose(at), 7);
    /* A quotient past the largest float is the largest all the same. */
    b.job.sampling.n_bias = 0;
    b.job.sampling.repetition_penalty = 1e-45F;
    b.logits[3] = 1.0F;
    for (int32_t i = 0; i < 50; i++) b.tokens[i] = 3;
    for (int32_t at = 5; at < 50; at++) ck_assert_int_eq(choose(at), 3);
    int32_t n_four = 0;
    b.logits[4] = 2.0F; /* two of them are equally likely */
    b.tokens[0] = 4;
    for (int32_t at = 5; at < 50; at++) n_four += choose(at) == 4;
    ck_assert(n_four > 10 && n_four < 35);
    close_bench();
}
END_TEST

START_TEST(excluded_tokens_are_never_chosen)
{
    static const int32_t stops[] = {20, 30, -1, VOCAB, INT32_MAX};
    open_bench(VOCAB);
    b.job.stop_ids = stops;
    b.job.n_stop_ids = 5;
    b.job.min_tokens = 4; /* positions 5 to 8 */
    b.config.suppressed_ids[0] = 10;
    b.config.n_suppressed_ids = 1;
    weft_sampler_destroy(b.sampler);
    ck_assert_int_eq(weft_sampler_create(&b.config, b.ops, &b.sampler, NULL),
                     WEFT_OK);
    for (int32_t i = 0; i < VOCAB; i++) b.logits[i] = -2.0F;
    b.logits[10] = 9.0F;
    b.logits[20] = 8.0F;
    b.logits[40] = 7.0F;
    static const float temperatures[] = {0.0F, 0.1F};
    for (int k = 0; k < 2; k++) {
        b.job.sampling.temperature = temperatures[k];
        for (int32_t at = 5; at < 12; at++)
            ck_assert_int_eq(choose(at), at < 9 ? 40 : 20);
    }
    b.logits[40] = 10.0F; /* the largest may be chosen, the others still not */
    b.job.sampling.temperature = 100.0F;
    for (int32_t at = 5; at < 800; at++) {
        b.job.min_tokens = 4000;
        const int32_t token = choose(at);
        ck_assert(token != 10 && token != 20 && token != 30);
    }
    close_bench();
}
END_TEST

START_TEST(bad_rows_are_internal_errors)
{
    open_bench(VOCAB);
    weft_err err = {0};
    int32_t token = -1;
    static const float temperatures[] = {0.0F, 1.0F};
    for (int k = 0; k < 2; k++) {
        b.job.sampling.temperature = temperatures[k];
        set_row(1, 4.0F);
        b.logits[VOCAB - 1] = NAN;
        ck_assert_int_eq(choose_at(8, &token, &err), WEFT_INTERNAL);
        ck_assert_ptr_nonnull(strstr(err.text, "NaN"));
        b.logits[VOCAB - 1] = INFINITY;
        ck_assert_int_eq(choose_at(8, &token, &err), WEFT_INTERNAL);
        for (int32_t i = 0; i < VOCAB; i++) b.logits[i] = -INFINITY;
        ck_assert_int_eq(choose_at(8, &token, &err), WEFT_INTERNAL);
        ck_assert_ptr_nonnull(strstr(err.text, "excluded"));
        /* One is left, and then that one is a stop id too early. */
        static const int32_t stops[] = {77};
        b.logits[77] = -3.0F;
        ck_assert_int_eq(choose(8), 77);
        b.job.stop_ids = stops;
        b.job.n_stop_ids = 1;
        b.job.min_tokens = 10;
        ck_assert_int_eq(choose_at(8, &token, &err), WEFT_INTERNAL);
        ck_assert_ptr_nonnull(strstr(err.text, "excluded"));
        /* A penalty does not make a token possible that was not. */
        b.job.sampling.repetition_penalty = 2.0F;
        ck_assert_int_eq(choose_at(8, &token, &err), WEFT_INTERNAL);
        b.job.sampling.repetition_penalty = 1.0F;
        b.job.n_stop_ids = 0;
    }
    ck_assert_int_eq(token, -1);
    close_bench();
}
END_TEST

/* Every instruction set of this machine draws the same tokens. */
START_TEST(paths_agree)
{
    const weft_ops *path = NULL;
    int32_t want[100];
    for (int32_t i = -1; i < 0 || (path = weft_ops_cpu_nth(i)) != NULL; i++) {
        open_bench(VOCAB_LARGE);
        set_row(8, 6.0F);
        if (i >= 0) {
            weft_sampler_destroy(b.sampler);
            ck_assert_int_eq(
                weft_sampler_create(&b.config, path, &b.sampler, NULL),
                WEFT_OK);
        }
        for (int32_t at = 0; at < 100; at++) {
            b.job.sampling.top_p = at % 2 == 0 ? 1.0F : 0.9F;
            b.job.sampling.top_k = at % 3 == 0 ? 0 : 100;
            const int32_t token = choose(5 + at);
            if (i < 0) want[at] = token;
            ck_assert_int_eq(token, want[at]);
        }
        close_bench();
    }
}
END_TEST

START_TEST(logprobs_are_of_the_model_itself)
{
    static const int32_t tops[] = {0, 1, 5, 299, 300, 512};
    open_bench(VOCAB);
    b.job.sampling.temperature = 0.1F; /* without effect on what is told */
    b.job.sampling.repetition_penalty = 2.0F;
    for (uint64_t seed = 0; seed < 12; seed++) {
        set_row(seed, 8.0F);
        for (int32_t i = 0; i < VOCAB; i++)
            if (seed % 2 == 0) b.logits[i] = roundf(b.logits[i]);
        /* These differ, and their logarithms do not. */
        b.logits[5] = 4.0F;
        b.logits[200] = nextafterf(4.0F, 5.0F);
        b.logits[9] = 12.0F;
        double sum = 0.0;
        for (int32_t i = 0; i < VOCAB; i++) sum += exp((double)b.logits[i]);
        const int32_t token = choose(8), n_top = tops[seed % 6];
        weft_event event = {.position = 8};
        ck_assert_int_eq(weft_sampler_logprobs(b.sampler, b.logits, &b.stat,
                                               token, n_top, &event, NULL),
                         WEFT_OK);
        ck_assert_double_eq_tol((double)event.logprob,
                                (double)b.logits[token] - log(sum), 2e-6);
        ck_assert_int_eq(event.n_top, n_top < VOCAB ? n_top : VOCAB);
        ck_assert((event.top == NULL) == (n_top == 0));
        bool seen[VOCAB] = {false};
        for (int32_t i = 0; i < event.n_top; i++) {
            const weft_logprob *const t = &event.top[i];
            ck_assert(!seen[t->id]);
            seen[t->id] = true;
            ck_assert_float_eq(t->value, b.logits[t->id] - b.stat.log_sum_exp);
            if (i == 0) ck_assert_int_eq(t->id, first_largest());
            if (i == 0) continue;
            ck_assert(t[-1].value > t->value ||
                      (t[-1].value == t->value && t[-1].id < t->id));
        }
        for (int32_t i = 0; event.n_top > 0 && i < VOCAB; i++)
            ck_assert(seen[i] || b.logits[i] - b.stat.log_sum_exp <=
                                     event.top[event.n_top - 1].value);
        weft_mem_free(event.top);
    }
    close_bench();
}
END_TEST

START_TEST(no_memory_is_an_error)
{
    open_bench(VOCAB);
    close_bench();
    weft_err err = {0};
    b.sampler = NULL;
    long n = 0;
    for (;; n++) {
        weft_mem_fail_after(n);
        const weft_status st =
            weft_sampler_create(&b.config, b.ops, &b.sampler, &err);
        weft_mem_fail_after(-1);
        if (st == WEFT_OK) break;
        ck_assert_int_eq(st, WEFT_RESOURCE_EXHAUSTED);
        ck_assert_int_eq(weft_mem_live(), 0);
        ck_assert_ptr_null(b.sampler);
    }
    ck_assert_int_eq(n, 5);
    /* A choice allocates nothing; a list of logprobs does. */
    set_row(1, 4.0F);
    b.job.sampling.top_p = 0.9F;
    b.job.sampling.repetition_penalty = 1.2F;
    weft_event event = {.position = 8, .logprob = 3.0F};
    weft_mem_fail_after(0);
    const int32_t token = choose(8);
    ck_assert_int_eq(weft_sampler_logprobs(b.sampler, b.logits, &b.stat, token,
                                           5, &event, &err),
                     WEFT_RESOURCE_EXHAUSTED);
    ck_assert_float_eq(event.logprob, 3.0F);
    ck_assert_int_eq(weft_sampler_logprobs(b.sampler, b.logits, &b.stat, token,
                                           0, &event, &err),
                     WEFT_OK);
    weft_mem_fail_after(-1);
    for (int k = 0; k < 3; k++) { /* rows that have no logarithm */
        b.stat = (weft_vocab_stat){.nan = k == 0,
                                   .max = k == 1 ? INFINITY : -INFINITY};
        ck_assert_int_eq(weft_sampler_logprobs(b.sampler, b.logits, &b.stat,
                                               token, 5, &event, &err),
                         WEFT_INTERNAL);
    }
    close_bench();
    weft_sampler_destroy(NULL);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {filters_and_draws_agree_with_an_oracle,
                                  draws_have_the_right_frequencies,
                                  seed_and_position_decide,
                                  filters_that_are_off_change_nothing,
                                  greedy_takes_the_lowest_of_equals,
                                  extreme_options_give_a_token,
                                  penalties_by_hand,
                                  bias_moves_tokens,
                                  excluded_tokens_are_never_chosen,
                                  bad_rows_are_internal_errors,
                                  paths_agree,
                                  logprobs_are_of_the_model_itself,
                                  no_memory_is_an_error};
    return WEFT_SUITE_RUN("sample", tests);
}
