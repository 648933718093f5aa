/* A group of stages gives the tokens and logprobs of one process, to the bit,
 * for every model that there is a fixture of, in both profiles; and so it does
 * where every stage is of two ranks. */
#include <stdio.h>

#include "node/base/mem.h"
#include "tests/support/bytes.h"
#include "tests/support/chain.h"
#include "tests/support/crowd.h"
#include "tests/support/suite.h"

enum { N_JOBS = 6, N_IDS = 90, NEW = 10 };

static const char *const MODELS[] = {
    "fixtures/dots3-defaults", "fixtures/dots3-dense", "fixtures/dots3-fp8",
    "fixtures/dots3-groups",   "fixtures/dots3-mixed", "fixtures/dots3-resaved",
    "fixtures/dots3-sharded",  "fixtures/v2-groups",   "fixtures/v2-lite",
    "fixtures/v2-mscale",      "fixtures/v2-nomscale", "fixtures/v3",
    "fixtures/v3-fp8",         "fixtures/v32",         "tiny-model",
};
enum { N_MODELS = sizeof MODELS / sizeof *MODELS };

typedef struct party {
    harness h;
    chain_options options;
    chain *chain;
    int32_t prompts[N_JOBS][N_IDS];
} party;

static const weft_model_config *make(void *arg, weft_engine_options *engine)
{
    party *const p = arg;
    p->chain = chain_open(&p->h, &p->options, engine);
    return &p->chain->config[0];
}

static void make_jobs(party *p, crowd_job *jobs)
{
    for (int32_t i = 0; i < N_JOBS; i++) {
        for (int32_t t = 0; t < N_IDS; t++)
            p->prompts[i][t] = (7 * t * t + 29 * i * t + 3 * t + 11 + i) % 150;
        jobs[i] = crowd_make(p->prompts[i], 2 + i * 17, NEW);
        jobs[i].temperature = i % 2 == 0 ? 0.0F : 0.9F;
        jobs[i].seed = 7 + (uint64_t)i;
    }
}

static void expect_same(const crowd_job *a, const crowd_job *b,
                        const char *model, int32_t n_stages)
{
    for (int32_t i = 0; i < N_JOBS; i++) {
        ck_assert_int_eq(b[i].finish, WEFT_FINISH_LENGTH);
        ck_assert_msg(same_bytes(a[i].tokens, b[i].tokens,
                                 (size_t)a[i].n_tokens * sizeof *a->tokens),
                      "%s, %d stages: tokens of job %d", model, n_stages, i);
        ck_assert_msg(
            same_bytes(a[i].logprobs, b[i].logprobs, NEW * sizeof *a->logprobs),
            "%s, %d stages: logprobs of job %d", model, n_stages, i);
    }
}

static void free_jobs(crowd_job *jobs)
{
    for (int32_t i = 0; i < N_JOBS; i++) crowd_free(&jobs[i]);
}

static void run_chain(party *p, crowd_job *jobs, int32_t n_stages)
{
    const harness_run run = {.chunk_tokens = 24, .page_tokens = 8};
    const crowd_watch watch = {.arg = p, .on_make = make};
    p->options.n_stages = n_stages;
    p->options.tcp = n_stages % 2 == 1;
    p->options.micro_rows = 5;
    p->options.pair_rows = 4;
    make_jobs(p, jobs);
    (void)crowd_run_watched(&p->h, jobs, N_JOBS, &run, 4, &watch);
    chain_close(p->chain);
}

static void on_stages(party *p, const crowd_job *want, const char *model,
                      int32_t n_stages)
{
    crowd_job jobs[N_JOBS];
    run_chain(p, jobs, n_stages);
    expect_same(want, jobs, model, n_stages);
    free_jobs(jobs);
}

START_TEST(every_model_in_stages)
{
    const char *const model = MODELS[_i / 2];
    char dir[128];
    (void)snprintf(dir, sizeof dir, "tests/data/%s", model);
    party *const p = weft_mem_new(1, sizeof *p);
    p->h = harness_open(dir, _i % 2 == 0 ? WEFT_EXACT : WEFT_PROFILE_BF16);
    const harness_run run = {0};
    crowd_job want[N_JOBS];
    p->options.fakes = p->h.config.n_expert > 0;
    make_jobs(p, want);
    (void)crowd_run(&p->h, want, N_JOBS, &run, N_JOBS);
    for (int32_t n = 2; n <= 3 && n <= p->h.config.n_layer; n++)
        on_stages(p, want, model, n);
    free_jobs(want);
    harness_close(&p->h);
    weft_mem_free(p);
}
END_TEST

/* Experts in the ranks' weights, or beside them: those have bits of their own.
 */
START_TEST(stages_of_ranks)
{
    const char *const model = _i / 4 == 0 ? "dots3-mixed" : "v32";
    const weft_profile profile = _i % 2 == 0 ? WEFT_EXACT : WEFT_PROFILE_BF16;
    const bool elsewhere = _i / 2 % 2 == 1;
    char dir[128];
    (void)snprintf(dir, sizeof dir, "tests/data/fixtures/%s", model);
    party *const p = weft_mem_new(1, sizeof *p);
    harness whole = harness_open(dir, profile);
    p->h = harness_open_ranks(dir, profile, 2, NULL, !elsewhere);
    p->options.fakes = elsewhere;
    p->options.experts_of = &whole;
    crowd_job want[N_JOBS];
    run_chain(p, want, 1);
    for (int32_t n = 2; n <= 3; n++) on_stages(p, want, model, n);
    free_jobs(want);
    harness_close(&p->h);
    harness_close(&whole);
    weft_mem_free(p);
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_set_timeout(tests, 200.0);
    tcase_add_loop_test(tests, every_model_in_stages, 0, 2 * N_MODELS);
    tcase_add_loop_test(tests, stages_of_ranks, 0, 8);
}

int main(void)
{
    return weft_suite_run_added("stages of models", add_tests);
}
