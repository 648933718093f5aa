/* Stages that ask a real pool of expert shards: the lead's map reaches all of
 * them, and shards that end and epochs that change leave the tokens as they
 * were. */
#include <sched.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "tests/support/chain.h"
#include "tests/support/crowd.h"
#include "tests/support/expect.h"
#include "tests/support/pool.h"
#include "tests/support/suite.h"

#define MODEL "tests/data/fixtures/dots3-mixed"

enum { N_JOBS = 6, N_IDS = 40, NEW = 12, STAGES_MAX = 3 };

typedef struct party {
    harness h;
    pool *pool;
    pool_heard heard[STAGES_MAX];
    chain_options options;
    chain *chain;
    int32_t prompts[N_JOBS][N_IDS];
    int32_t n_events, n_replicas;
    uint64_t epoch;
} party;

static void set_map(party *p, uint32_t mask)
{
    p->epoch++;
    weft_expert_map *const map =
        pool_map(p->pool, p->epoch, p->n_replicas, mask, (int32_t)p->epoch);
    weft_exchange_set_map(p->options.exchanges[0], map);
    weft_expert_map_release(map);
}

static const weft_model_config *make(void *arg, weft_engine_options *engine)
{
    party *const p = arg;
    p->chain = chain_open(&p->h, &p->options, engine);
    return &p->chain->config[0];
}

/* A shard ends; later everybody moves, back and forth. */
static void hear(void *arg, const weft_event *event)
{
    party *const p = arg;
    (void)event;
    p->n_events++;
    if (p->n_events == 15) {
        pool_stop_shard(p->pool, 1);
        if (p->n_replicas == 1) set_map(p, 5);
    }
    if (p->n_events > 20 && p->n_events % 8 == 0)
        set_map(p, p->n_events % 16 == 0 ? 4 : 5);
}

static void make_jobs(party *p, crowd_job *jobs)
{
    for (int32_t i = 0; i < N_JOBS; i++) {
        for (int32_t t = 0; t < N_IDS; t++)
            p->prompts[i][t] = (7 * t * t + 29 * i * t + 3 * t + 11 + i) % 150;
        jobs[i] = crowd_make(p->prompts[i], 2 + i * 7, NEW);
        jobs[i].temperature = i % 2 == 0 ? 0.0F : 0.9F;
        jobs[i].seed = 7 + (uint64_t)i;
    }
}

static void run(party *p, const crowd_job *want, int32_t n_stages)
{
    const pool_options options = {.n_shards = 3, .holds_all = true};
    const harness_run shape = {.chunk_tokens = 24, .page_tokens = 8};
    const crowd_watch watch = {.arg = p, .on_make = make, .on_event = hear};
    crowd_job jobs[N_JOBS];
    p->pool = pool_open(MODEL, WEFT_EXACT, &options);
    p->options =
        (chain_options){.n_stages = n_stages, .micro_rows = 5, .pair_rows = 4};
    memset(p->heard, 0, sizeof p->heard);
    for (int32_t s = 0; s < n_stages; s++) {
        const weft_exchange_options base = {.group = CHAIN_GROUP};
        p->options.exchanges[s] = pool_exchange(p->pool, &base, &p->heard[s]);
    }
    p->n_events = 0;
    p->epoch = 0;
    set_map(p, 7);
    make_jobs(p, jobs);
    const int32_t n_preempted =
        crowd_run_watched(&p->h, jobs, N_JOBS, &shape, 4, &watch);
    ck_assert_int_eq(n_preempted, 0);
    chain_close(p->chain);
    for (int32_t s = 0; s < n_stages; s++) {
        weft_exchange_state state;
        weft_exchange_get_state(p->options.exchanges[s], &state);
        ck_assert_uint_gt(state.epoch, 2);
        ck_assert_uint_le(state.epoch, p->epoch);
        weft_exchange_destroy(p->options.exchanges[s]);
    }
    pool_close(p->pool);
    for (int32_t i = 0; i < N_JOBS; i++) {
        ck_assert_int_eq(jobs[i].finish, WEFT_FINISH_LENGTH);
        ck_assert_mem_eq(jobs[i].tokens, want[i].tokens,
                         (size_t)want[i].n_tokens * sizeof *want[i].tokens);
        ck_assert_mem_eq(jobs[i].logprobs, want[i].logprobs,
                         NEW * sizeof *want[i].logprobs);
        crowd_free(&jobs[i]);
    }
}

START_TEST(shards_end_and_epochs_change)
{
    party *const p = weft_mem_new(1, sizeof *p);
    p->h = harness_open(MODEL, WEFT_EXACT);
    p->n_replicas = _i;
    const harness_run plain = {0};
    crowd_job want[N_JOBS];
    make_jobs(p, want);
    (void)crowd_run(&p->h, want, N_JOBS, &plain, N_JOBS);
    for (int32_t n = 1; n <= STAGES_MAX; n++) run(p, want, n);
    for (int32_t i = 0; i < N_JOBS; i++) crowd_free(&want[i]);
    harness_close(&p->h);
    weft_mem_free(p);
}
END_TEST

static bool take_no_event(void *arg, const weft_event *event)
{
    (void)arg;
    ck_abort_msg("an event of kind %d without a job", (int)event->kind);
}

static void wait_map(party *p, int32_t stage)
{
    const uint64_t deadline = weft_clock_now_ns() + UINT64_C(20000000000);
    weft_exchange_state state = {0};
    while (state.map_epoch != p->epoch) {
        weft_exchange_get_state(p->options.exchanges[stage], &state);
        ck_assert_uint_lt(weft_clock_now_ns(), deadline);
        (void)sched_yield();
    }
}

/* Without any step. */
START_TEST(idle_stages_hear_of_epochs)
{
    const pool_options shards = {.n_shards = 3, .holds_all = true};
    weft_engine_options options = {.kv_bytes = 1 << 20,
                                   .page_tokens = 8,
                                   .chunk_tokens = 24,
                                   .max_seqs = 2,
                                   .max_waiting = 2,
                                   .max_context = 64,
                                   .threads = 1,
                                   .profile = WEFT_EXACT,
                                   .ops = harness_ops(NULL)};
    party *const p = weft_mem_new(1, sizeof *p);
    p->h = harness_open(MODEL, WEFT_EXACT);
    p->n_replicas = 1;
    p->pool = pool_open(MODEL, WEFT_EXACT, &shards);
    p->options = (chain_options){.n_stages = STAGES_MAX};
    for (int32_t s = 0; s < STAGES_MAX; s++) {
        const weft_exchange_options base = {.group = CHAIN_GROUP};
        p->options.exchanges[s] = pool_exchange(p->pool, &base, &p->heard[s]);
    }
    weft_engine *engine = NULL;
    const weft_model_config *const config = make(p, &options);
    OK(weft_engine_create(config, weft_model_weights(p->h.model), &options,
                          (weft_event_sink){.take = take_no_event}, NULL, NULL,
                          &engine, &err));
    OK(weft_engine_start(engine, &err));
    for (uint32_t mask = 3; mask <= 7; mask++) {
        set_map(p, mask);
        for (int32_t s = 1; s < STAGES_MAX; s++) wait_map(p, s);
    }
    weft_engine_destroy(engine);
    chain_close(p->chain);
    for (int32_t s = 0; s < STAGES_MAX; s++)
        weft_exchange_destroy(p->options.exchanges[s]);
    pool_close(p->pool);
    harness_close(&p->h);
    weft_mem_free(p);
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_set_timeout(tests, 200.0);
    tcase_add_test(tests, idle_stages_hear_of_epochs);
    tcase_add_loop_test(tests, shards_end_and_epochs_change, 1, 3);
}

int main(void)
{
    return weft_suite_run_added("stages and a pool", add_tests);
}
