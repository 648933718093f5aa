/* A stage of several ranks (tensor parallel): the golden logits for each
 * degree, in a prefill, token by token and in chunks; a request's bits whatever
 * its company, chunks and pages, as with one rank; experts elsewhere, which
 * rank 0 alone asks: in halves, again when they were gone, and broken; degrees
 * that cannot be. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/mem.h"
#include "shard/model/partition.h"
#include "tests/support/crowd.h"
#include "tests/support/expect.h"
#include "tests/support/fake_experts.h"
#include "tests/support/golden.h"
#include "tests/support/suite.h"

#define FIXTURES "tests/data/fixtures/"
#define MODEL    "tests/data/tiny-model"

/* As of one rank: tests/data/fixtures/README.md. */
static const double REL_MAX = 2e-5, ABS_MAX = 3e-4;

typedef struct degree {
    const char *model;
    int32_t n_ranks;
} degree;

/* Heads 4 and 2 of window layers; fp8 widths that are no whole blocks. */
static const degree DEGREES[] = {{"dots3-mixed", 2},  {"dots3-defaults", 2},
                                 {"dots3-groups", 2}, {"dots3-dense", 2},
                                 {"v2-lite", 2},      {"v2-lite", 4},
                                 {"v2-groups", 4},    {"v3", 2},
                                 {"v3-fp8", 2},       {"v32", 4}};
enum { N_DEGREES = sizeof DEGREES / sizeof DEGREES[0], N_IDS = 40 };

static harness open_ranks(const degree *d, bool experts)
{
    char path[256];
    (void)snprintf(path, sizeof path, FIXTURES "%s", d->model);
    return harness_open_ranks(path, WEFT_EXACT, d->n_ranks, NULL, experts);
}

static golden open_golden(const degree *d)
{
    char path[256];
    (void)snprintf(path, sizeof path, FIXTURES "%s/golden.safetensors",
                   d->model);
    return golden_open(path);
}

/* Of prompt 0; the caller's, as are its logits. */
static int32_t *golden_ids(const golden *g, int32_t *n_out)
{
    const golden_tensor t = golden_get(g, "prompt0.ids");
    int32_t *const ids = weft_mem_new((size_t)t.n, sizeof *ids);
    for (int64_t i = 0; i < t.n; i++) ids[i] = (int32_t)t.values[i];
    *n_out = (int32_t)t.n;
    free(t.values);
    return ids;
}

static void expect_golden(const golden *g, const float *logits, int32_t n,
                          int32_t vocab, const char *what)
{
    const golden_tensor want = golden_get(g, "prompt0.logits");
    double largest = 0.0;
    const double rel = golden_distance(logits + (n - want.rows) * vocab,
                                       want.values, want.n, &largest);
    ck_assert_msg(rel <= REL_MAX && largest <= ABS_MAX,
                  "%s, %s: relative L2 %.3g, largest %.3g", g->path, what, rel,
                  largest);
    free(want.values);
}

static void expect_run(const harness *h, const golden *g,
                       const harness_run *run, const char *what)
{
    int32_t n = 0;
    int32_t *const ids = golden_ids(g, &n);
    float *const logits = harness_logits(h, ids, n, run);
    expect_golden(g, logits, n, h->config.vocab_size, what);
    weft_mem_free(logits);
    weft_mem_free(ids);
}

START_TEST(golden_logits)
{
    static const harness_run prefill = {0}, decode = {.decode_from = 1},
                             chunks = {.chunk_tokens = 3,
                                       .page_tokens = 4,
                                       .threads = 2};
    harness h = open_ranks(&DEGREES[_i], true);
    golden g = open_golden(&DEGREES[_i]);
    expect_run(&h, &g, &prefill, "one prefill");
    expect_run(&h, &g, &decode, "token by token");
    expect_run(&h, &g, &chunks, "chunks of 3, pages of 4");
    golden_close(&g);
    harness_close(&h);
}
END_TEST

/* -- the same bits, whatever the way --------------------------------------- */

static void make_ids(int32_t *ids, int32_t n, int32_t salt)
{
    for (int32_t i = 0; i < n; i++)
        ids[i] = (7 * i * i + 31 * salt * i + 3 * i + 11 + 101 * salt) % 90;
}

static const weft_profile PROFILES[] = {WEFT_EXACT, WEFT_PROFILE_BF16};

START_TEST(one_sequence_in_every_way)
{
    int32_t ids[N_IDS];
    make_ids(ids, N_IDS, 1);
    harness h = harness_open_ranks(FIXTURES "v32", PROFILES[_i / 2],
                                   2 + 2 * (_i % 2), NULL, true);
    static const harness_run plain = {0},
                             ways[] = {{.chunk_tokens = 1},
                                       {.chunk_tokens = 7, .page_tokens = 1},
                                       {.threads = 3},
                                       {.decode_from = 13, .page_tokens = 4}};
    float *const want = harness_logits(&h, ids, N_IDS, &plain);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        harness_expect_same(&h, ids, N_IDS, want, &ways[i], "a way");
    weft_mem_free(want);
    harness_close(&h);
}
END_TEST

enum { N_JOBS = 6, NEW = 12 };

static void run_crowd(const harness *h, int32_t (*prompts)[N_IDS],
                      crowd_job *jobs, int32_t first, int32_t n)
{
    const harness_run run = {.chunk_tokens = 16, .page_tokens = 4};
    for (int32_t i = first; i < first + n; i++)
        jobs[i] = crowd_make(prompts[i], 5 + 7 * i, NEW);
    (void)crowd_run(h, jobs + first, n, &run, N_JOBS);
}

START_TEST(company_changes_nothing)
{
    int32_t prompts[N_JOBS][N_IDS];
    crowd_job alone[N_JOBS], together[N_JOBS];
    harness h = harness_open_ranks(MODEL, WEFT_EXACT, 2, NULL, true);
    for (int32_t i = 0; i < N_JOBS; i++) make_ids(prompts[i], N_IDS, i);
    for (int32_t i = 0; i < N_JOBS; i++) run_crowd(&h, prompts, alone, i, 1);
    run_crowd(&h, prompts, together, 0, N_JOBS);
    for (int32_t i = 0; i < N_JOBS; i++) {
        const size_t n = (size_t)alone[i].n_tokens;
        ck_assert_int_eq(alone[i].n_tokens, together[i].n_tokens);
        ck_assert(memcmp(alone[i].tokens, together[i].tokens,
                         n * sizeof(int32_t)) == 0);
        for (int32_t t = 0; t < NEW; t++)
            ck_assert(alone[i].logprobs[t] == together[i].logprobs[t]);
        crowd_free(&alone[i]);
        crowd_free(&together[i]);
    }
    harness_close(&h);
}
END_TEST

/* -- experts elsewhere ----------------------------------------------------- */

typedef struct apart {
    harness whole, h;
    fake_experts *experts;
} apart;

static apart open_apart(const degree *d)
{
    char path[256];
    apart a;
    (void)snprintf(path, sizeof path, FIXTURES "%s", d->model);
    a.whole = harness_open(path, WEFT_EXACT);
    a.h = open_ranks(d, false);
    a.experts = NULL;
    return a;
}

static void close_apart(apart *a)
{
    fake_experts_close(a->experts);
    harness_close(&a->h);
    harness_close(&a->whole);
}

/* fake_experts borrow the whole model, so its place is fixed first. */
static void add_experts(apart *a)
{
    a->experts = fake_experts_open(&a->whole);
}

START_TEST(experts_elsewhere_give_the_golden_logits)
{
    const degree *const d = &DEGREES[_i];
    apart a = open_apart(d);
    golden g = open_golden(d);
    add_experts(&a);
    const harness_run prefill = {.experts = &a.experts->seam},
                      halves = {.experts = &a.experts->seam, .pair_rows = 2},
                      decode = {.experts = &a.experts->seam, .decode_from = 1};
    expect_run(&a.h, &g, &prefill, "experts elsewhere");
    expect_run(&a.h, &g, &halves, "in halves");
    expect_run(&a.h, &g, &decode, "token by token");
    if (a.h.config.n_expert > 0 && strcmp(d->model, "dots3-dense") != 0)
        ck_assert_int_gt(atomic_load(&a.experts->two_at_once), 0);
    golden_close(&g);
    close_apart(&a);
}
END_TEST

/* Whole and in halves alike: all ranks give the step up and take it again. */
START_TEST(a_step_again_gives_the_same_bits)
{
    int32_t ids[N_IDS];
    const degree d = {"v32", 2 + 2 * (_i % 2)};
    apart a = open_apart(&d);
    make_ids(ids, N_IDS, 2);
    add_experts(&a);
    harness_run run = {.experts = &a.experts->seam,
                       .chunk_tokens = 8,
                       .pair_rows = _i < 2 ? 2 : 0};
    float *const want = harness_logits(&a.h, ids, N_IDS, &run);
    /* A try asks six times in halves, so that some get through; each layer is
     * the last one asked in some try. */
    for (int32_t every = 9; every <= 13; every += 2) {
        char what[32];
        (void)snprintf(what, sizeof what, "every %d fails", every);
        atomic_store(&a.experts->fail_every, every);
        harness_expect_same(&a.h, ids, N_IDS, want, &run, what);
    }
    ck_assert_int_gt(atomic_load(&a.experts->n_failed), 3);
    weft_mem_free(want);
    close_apart(&a);
}
END_TEST

static const weft_model_config *with_experts(void *arg,
                                             weft_engine_options *engine)
{
    const apart *const a = arg;
    engine->experts = &a->experts->seam;
    engine->pair_rows = 2;
    return &a->h.config;
}

/* What only rank 0 has heard of ends the jobs of the stage, and no rank is left
 * waiting. */
START_TEST(experts_that_fail_for_good_end_the_stage)
{
    int32_t ids[2][N_IDS];
    const degree d = {"v32", 4};
    const harness_run run = {.chunk_tokens = 8};
    apart a = open_apart(&d);
    add_experts(&a);
    atomic_store(&a.experts->broken, true);
    const crowd_watch watch = {.arg = &a, .on_make = with_experts};
    crowd_job jobs[2];
    for (int32_t i = 0; i < 2; i++) {
        make_ids(ids[i], N_IDS, i);
        jobs[i] = crowd_make(ids[i], 1 + 20 * i, NEW);
    }
    (void)crowd_run_watched(&a.h, jobs, 2, &run, 1 + _i, &watch);
    for (int32_t i = 0; i < 2; i++) {
        ck_assert_int_eq(jobs[i].finish, WEFT_FINISH_FAILED);
        ck_assert_int_eq(jobs[i].status, WEFT_INTERNAL);
        crowd_free(&jobs[i]);
    }
    close_apart(&a);
}
END_TEST

/* Rows of experts elsewhere are the larger part of a step's buffers. */
START_TEST(other_ranks_have_no_rows_of_experts_elsewhere)
{
    harness h = harness_open(FIXTURES "v32", WEFT_EXACT);
    const weft_experts elsewhere = {0};
    weft_forward_options o = {.max_rows = 64,
                              .max_logits_rows = 1,
                              .max_context = 64,
                              .ops = harness_ops(NULL),
                              .n_threads = 1,
                              .experts = &elsewhere};
    const int64_t lead = weft_forward_bytes(&h.config, &o, NULL);
    o.follows = true;
    const int64_t other = weft_forward_bytes(&h.config, &o, NULL);
    const int64_t pairs = (int64_t)64 * h.config.top_k;
    ck_assert_int_ge(lead - other, pairs * h.config.hidden_size * 4);
    harness_close(&h);
}
END_TEST

/* -- degrees that cannot be ------------------------------------------------ */

START_TEST(a_degree_that_cannot_be_is_refused)
{
    harness h = harness_open(FIXTURES "v32", WEFT_EXACT);
    weft_rank_parts parts[WEFT_COMM_GROUP_RANKS_MAX - 1] = {{0}};
    const weft_engine_options options = {.kv_bytes = 8 << 20,
                                         .page_tokens = 4,
                                         .chunk_tokens = 8,
                                         .max_seqs = 1,
                                         .max_waiting = 1,
                                         .max_context = 32,
                                         .threads = 1,
                                         .ops = harness_ops(NULL),
                                         .n_ranks = 3,
                                         .ranks = parts};
    weft_engine *engine = NULL;
    weft_err why = {0};
    const weft_event_sink sink = {0};
    ck_assert_int_eq(weft_engine_create(&h.config, weft_model_weights(h.model),
                                        &options, sink, NULL, NULL, &engine,
                                        &why),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_msg(strstr(why.text, "num_attention_heads 4") != NULL, "%s",
                  why.text);
    harness_close(&h);
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_set_timeout(tests, 300.0);
    tcase_add_loop_test(tests, golden_logits, 0, N_DEGREES);
    tcase_add_loop_test(tests, one_sequence_in_every_way, 0, 4);
    tcase_add_test(tests, company_changes_nothing);
    tcase_add_loop_test(tests, experts_elsewhere_give_the_golden_logits, 0,
                        N_DEGREES);
    tcase_add_loop_test(tests, a_step_again_gives_the_same_bits, 0, 4);
    tcase_add_loop_test(tests, experts_that_fail_for_good_end_the_stage, 0, 2);
    tcase_add_test(tests, other_ranks_have_no_rows_of_experts_elsewhere);
    tcase_add_test(tests, a_degree_that_cannot_be_is_refused);
}

int main(void)
{
    return weft_suite_run_added("ranks_threads", add_tests);
}
