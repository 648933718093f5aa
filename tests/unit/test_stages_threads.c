/* A group of stages gives the tokens of one process, to the bit: however many
 * stages, over either transport, with chunks, preemption, experts that go away,
 * and links that break. A peer that sends what it must not loses its link and
 * nothing else happens. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "node/base/ring.h"
#include "node/base/rng.h"
#include "shard/step/stages_internal.h"
#include "tests/support/chain.h"
#include "tests/support/crowd.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

/* Full and window layers, dense and routed. */
#define MODEL "tests/data/fixtures/dots3-mixed"

enum { N_JOBS = 8, N_IDS = 60, NEW = 14, VOCAB = 160 };

static const uint64_t WAIT_NS = UINT64_C(20) * 1000 * 1000 * 1000;

/* ---- a crowd on a chain -------------------------------------------------- */

typedef struct party {
    harness h;
    int32_t prompts[N_JOBS][N_IDS];
    crowd_job alone[N_JOBS];
    chain_options options;
    chain *chain;
    void (*on_event)(struct party *p, const weft_event *event);
    uint64_t draws;
    int32_t n_cuts, seed;
    int32_t fail_every[CHAIN_STAGES_MAX]; /* collects of each stage */
    int32_t n_failed;
} party;

static crowd_job job_of(party *p, int32_t i)
{
    crowd_job j = crowd_make(p->prompts[i], 3 + i * 8, NEW - i % 3);
    j.temperature = i % 2 == 0 ? 0.0F : 1.0F;
    j.seed = 40 + (uint64_t)i;
    return j;
}

static party *party_open(void)
{
    party *const p = weft_mem_new(1, sizeof *p);
    p->h = harness_open(MODEL, WEFT_EXACT);
    const harness_run run = {0};
    for (int32_t i = 0; i < N_JOBS; i++) {
        for (int32_t t = 0; t < N_IDS; t++)
            p->prompts[i][t] = (7 * t * t + 31 * i * t + 3 * t + 11) % VOCAB;
        p->alone[i] = job_of(p, i);
        ck_assert_int_eq(crowd_run(&p->h, &p->alone[i], 1, &run, 1), 0);
        ck_assert_int_eq(p->alone[i].finish, WEFT_FINISH_LENGTH);
    }
    return p;
}

static void party_close(party *p)
{
    for (int32_t i = 0; i < N_JOBS; i++) crowd_free(&p->alone[i]);
    harness_close(&p->h);
    weft_mem_free(p);
}

static const weft_model_config *make(void *arg, weft_engine_options *engine)
{
    party *const p = arg;
    p->chain = chain_open(&p->h, &p->options, engine);
    for (int32_t i = 0; i < p->options.n_stages; i++)
        if (p->options.fakes)
            atomic_store(&p->chain->experts[i]->fail_every, p->fail_every[i]);
    return &p->chain->config[0];
}

static void hear(void *arg, const weft_event *event)
{
    party *const p = arg;
    if (p->on_event != NULL) p->on_event(p, event);
}

/* All jobs together on a chain; each as it was alone. Returns preemptions. */
static int32_t run_party(party *p, const harness_run *run)
{
    crowd_job jobs[N_JOBS];
    const crowd_watch watch = {.arg = p, .on_make = make, .on_event = hear};
    for (int32_t i = 0; i < N_JOBS; i++) jobs[i] = job_of(p, i);
    const int32_t n =
        crowd_run_watched(&p->h, jobs, N_JOBS, run, N_JOBS, &watch);
    p->n_failed = 0;
    for (int32_t i = 0; p->options.fakes && i < p->options.n_stages; i++)
        p->n_failed += atomic_load(&p->chain->experts[i]->n_failed);
    chain_close(p->chain);
    for (int32_t i = 0; i < N_JOBS; i++) {
        const crowd_job *const a = &p->alone[i], *const b = &jobs[i];
        ck_assert_int_eq(b->finish, WEFT_FINISH_LENGTH);
        ck_assert_int_eq(a->n_tokens, b->n_tokens);
        ck_assert_mem_eq(a->tokens, b->tokens,
                         (size_t)a->n_tokens * sizeof *a->tokens);
        ck_assert_mem_eq(a->logprobs, b->logprobs,
                         (size_t)a->n_new * sizeof *a->logprobs);
        crowd_free(&jobs[i]);
    }
    return n;
}

/* ---- the same tokens ----------------------------------------------------- */

START_TEST(same_tokens)
{
    party *const p = party_open();
    const harness_run runs[] = {
        {0},
        {.chunk_tokens = 5, .page_tokens = 1},
        {.chunk_tokens = 16, .page_tokens = 4, .threads = 2},
    };
    for (int32_t stages = 2; stages <= 4; stages++)
        for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
            p->options = (chain_options){
                .n_stages = stages,
                .tcp = _i == 1,
                .micro_batches = i == 2 ? 7 : 0,
                .micro_rows = i == 0 ? 0 : 1,
            };
            ck_assert_int_eq(run_party(p, &runs[i]), 0);
        }
    party_close(p);
}
END_TEST

/* Experts beside the weights, and halves that take turns. */
START_TEST(same_tokens_with_experts_elsewhere)
{
    party *const p = party_open();
    const harness_run run = {.chunk_tokens = 16, .page_tokens = 4};
    for (int32_t stages = 2; stages <= 3; stages++)
        for (int32_t pair = 0; pair < 2; pair++) {
            p->options = (chain_options){.n_stages = stages,
                                         .fakes = true,
                                         .pair_rows = pair == 0 ? 1000 : 2,
                                         .micro_rows = 4};
            ck_assert_int_eq(run_party(p, &run), 0);
        }
    party_close(p);
}
END_TEST

/* Budgets of which now one stage's, now another's is the smallest. */
START_TEST(small_pools_preempt)
{
    party *const p = party_open();
    const harness_run run = {.chunk_tokens = 8, .page_tokens = 4};
    int32_t n_preempted = 0;
    for (int32_t tight = 0; tight < 3; tight++) {
        p->options = (chain_options){.n_stages = 3, .micro_rows = 2};
        for (int32_t s = 0; s < 3; s++)
            p->options.kv_bytes[s] =
                chain_bytes(&p->h, 3, s, 4, 8, N_IDS + NEW) *
                (s == tight ? 14 : 40) / 10;
        n_preempted += run_party(p, &run);
    }
    ck_assert_int_gt(n_preempted, 0);
    party_close(p);
}
END_TEST

/* ---- experts that go away ------------------------------------------------ */

/* Of the lead, of a stage between, of the last, of all of them. */
START_TEST(stuck_steps_are_computed_again)
{
    party *const p = party_open();
    const harness_run run = {.chunk_tokens = 16, .page_tokens = 4};
    p->options = (chain_options){.n_stages = _i / 2 == 0 ? 2 : 3,
                                 .fakes = true,
                                 .pair_rows = _i % 2 == 0 ? 2 : 1000,
                                 .micro_rows = 4};
    for (int32_t s = 0; s < p->options.n_stages; s++)
        if (_i / 2 == s || _i / 2 == 3)
            p->fail_every[s] = 29 + 2 * s; /* no step asks so often */
    ck_assert_int_eq(run_party(p, &run), 0);
    ck_assert_int_gt(p->n_failed, 0);
    party_close(p);
}
END_TEST

/* ---- links that break ---------------------------------------------------- */

/* One of the wires, at a random moment, or after a random number of bytes. */
static void cut_now_and_then(party *p, const weft_event *event)
{
    (void)event;
    const uint64_t r = weft_rng_u64(77 + (uint64_t)p->seed, p->draws++);
    if (p->n_cuts == 0 || r % 16 != 0) return;
    p->n_cuts--;
    relay *const wires[] = {p->chain->from_lead[1], p->chain->from_lead[2],
                            p->chain->from_before[2]};
    relay *const wire = wires[(r >> 8) % 3];
    if ((r >> 16) % 2 == 0)
        relay_cut(wire);
    else
        relay_cut_after(wire, (int64_t)((r >> 20) % 20000));
}

START_TEST(a_cut_chain_gives_its_jobs_back)
{
    party *const p = party_open();
    const harness_run run = {.chunk_tokens = 16, .page_tokens = 4};
    p->options = (chain_options){.n_stages = 3, .tcp = true, .micro_rows = 4};
    p->on_event = cut_now_and_then;
    p->seed = _i;
    p->n_cuts = 6;
    ck_assert_int_gt(run_party(p, &run), 0);
    ck_assert_int_lt(p->n_cuts, 6);
    party_close(p);
}
END_TEST

/* ---- an engine by hand --------------------------------------------------- */

typedef struct hand {
    party *p;
    weft_engine_options options;
    weft_engine *engine;
    weft_ring *ring;
    crowd_job jobs[N_JOBS];
    weft_job submitted[N_JOBS];
    bool over[N_JOBS];
    weft_status status[N_JOBS];
} hand;

static bool keep(void *ring, const weft_event *event)
{
    return weft_ring_push(ring, event);
}

/* chain_options.n_stages 1: an engine alone, with experts if it has fakes. */
static hand *hand_open(const chain_options *options)
{
    hand *const b = weft_mem_new(1, sizeof *b);
    b->p = party_open();
    b->p->options = *options;
    b->options = (weft_engine_options){
        .kv_bytes = 4 << 20,
        .page_tokens = 4,
        .chunk_tokens = 16,
        .max_seqs = 4,
        .max_waiting = N_JOBS,
        .max_context = N_IDS + NEW + 1,
        .threads = 1,
        .profile = WEFT_EXACT,
        .ops = harness_ops(NULL),
    };
    b->p->chain = chain_open(&b->p->h, options, &b->options);
    OK(weft_ring_create(sizeof(weft_event), 256, &b->ring, &err));
    OK(weft_engine_create(&b->p->chain->config[0],
                          weft_model_weights(b->p->h.model), &b->options,
                          (weft_event_sink){.take = keep, .arg = b->ring}, NULL,
                          NULL, &b->engine, &err));
    for (int32_t i = 0; i < N_JOBS; i++) b->jobs[i] = job_of(b->p, i);
    return b;
}

static void hand_close(hand *b)
{
    weft_engine_destroy(b->engine);
    weft_ring_destroy(b->ring);
    chain_close(b->p->chain);
    for (int32_t i = 0; i < N_JOBS; i++) crowd_free(&b->jobs[i]);
    party_close(b->p);
    weft_mem_free(b);
}

static void submit(hand *b, int32_t i)
{
    crowd_job *const j = &b->jobs[i];
    b->submitted[i] = (weft_job){
        .handle = (uint64_t)i,
        .age = (uint64_t)i + 1,
        .deadline_ns = UINT64_MAX,
        .tokens = j->tokens,
        .n_prompt = j->n_prompt,
        .n_tokens = j->n_tokens,
        .max_tokens = j->n_new,
        .sampling = {.temperature = j->temperature,
                     .top_p = 1.0F,
                     .repetition_penalty = 1.0F,
                     .seed = j->seed},
        .logprobs = 0,
        .prompt_logprobs = -1,
    };
    OK(weft_engine_submit(b->engine, &b->submitted[i]));
}

static void wait_over(hand *b, int32_t i)
{
    const uint64_t deadline_ns = weft_clock_now_ns() + WAIT_NS;
    while (!b->over[i]) {
        weft_event event;
        ck_assert_msg(weft_clock_now_ns() < deadline_ns, "job %d goes on", i);
        weft_ring_wait(b->ring, deadline_ns);
        if (!weft_ring_pop(b->ring, &event)) continue;
        crowd_job *const j = &b->jobs[event.handle];
        ck_assert(!b->over[event.handle]);
        if (event.kind == WEFT_EVENT_TOKEN) {
            j->logprobs[j->n_tokens - j->n_prompt] = event.logprob;
            j->tokens[j->n_tokens++] = event.token;
        }
        b->over[event.handle] = event.finish != WEFT_FINISH_NONE;
        b->status[event.handle] = event.status;
    }
}

static void expect_as_alone(const hand *b, int32_t i)
{
    const crowd_job *const a = &b->p->alone[i], *const j = &b->jobs[i];
    ck_assert_int_eq(b->status[i], WEFT_OK);
    ck_assert_int_eq(a->n_tokens, j->n_tokens);
    ck_assert_mem_eq(a->tokens, j->tokens,
                     (size_t)a->n_tokens * sizeof *a->tokens);
    ck_assert_mem_eq(a->logprobs, j->logprobs,
                     (size_t)a->n_new * sizeof *a->logprobs);
}

typedef bool (*load_fn)(const weft_engine_load *load);

static void wait_load(hand *b, load_fn good, const char *what)
{
    const uint64_t deadline_ns = weft_clock_now_ns() + WAIT_NS;
    weft_engine_load load;
    do {
        ck_assert_msg(weft_clock_now_ns() < deadline_ns, "never %s", what);
        weft_engine_get_load(b->engine, &load);
    } while (!good(&load));
}

static bool is_stuck(const weft_engine_load *load)
{
    return !load->whole && load->sched.n_running > 0;
}

static bool is_unused(const weft_engine_load *load)
{
    return load->sched.n_running + load->sched.n_waiting == 0 &&
           load->kv_group.slabs_free == load->kv_group.slabs;
}

static bool is_not_whole(const weft_engine_load *load)
{
    return !load->whole;
}

/* One stage; two, of which the lead's, or the other's, experts are gone. */
static hand *hand_stuck(int32_t how)
{
    const chain_options o = {
        .n_stages = how == 0 ? 1 : 2, .fakes = true, .micro_rows = 4};
    hand *const b = hand_open(&o);
    atomic_store(&b->p->chain->experts[how / 2]->gone, true);
    submit(b, 1);
    submit(b, 2);
    OK(weft_engine_start(b->engine, &err));
    wait_load(b, is_stuck, "stuck");
    return b;
}

START_TEST(cancelled_while_stuck)
{
    hand *const b = hand_stuck(_i);
    OK(weft_engine_cancel(b->engine, 1));
    wait_over(b, 1);
    ck_assert_int_eq(b->status[1], WEFT_CANCELLED);
    submit(b, 3); /* is taken meanwhile, and cancelled as well */
    OK(weft_engine_cancel(b->engine, 3));
    wait_over(b, 3);
    ck_assert_int_eq(b->status[3], WEFT_CANCELLED);
    const uint64_t begin_ns = weft_clock_now_ns();
    OK(weft_engine_cancel(b->engine, 2));
    wait_over(b, 2);
    wait_load(b, is_unused, "free of pages");
    ck_assert_uint_lt(weft_clock_now_ns() - begin_ns,
                      UINT64_C(500) * 1000 * 1000);
    atomic_store(&b->p->chain->experts[_i / 2]->gone, false);
    submit(b, 4);
    wait_over(b, 4);
    expect_as_alone(b, 4);
    hand_close(b);
}
END_TEST

/* Who stays gets what it would have got. */
START_TEST(some_cancelled_while_stuck)
{
    hand *const b = hand_stuck(_i);
    OK(weft_engine_cancel(b->engine, 1));
    wait_over(b, 1);
    submit(b, 3);
    atomic_store(&b->p->chain->experts[_i / 2]->gone, false);
    wait_over(b, 2);
    wait_over(b, 3);
    expect_as_alone(b, 2);
    expect_as_alone(b, 3);
    wait_load(b, is_unused, "free of pages");
    hand_close(b);
}
END_TEST

START_TEST(stopped_while_stuck)
{
    hand *const b = hand_stuck(_i);
    const uint64_t begin_ns = weft_clock_now_ns();
    weft_engine_stop(b->engine);
    ck_assert_uint_lt(weft_clock_now_ns() - begin_ns,
                      UINT64_C(1000) * 1000 * 1000);
    hand_close(b);
}
END_TEST

/* ---- overlap ------------------------------------------------------------- */

typedef struct gates {
    atomic_bool lead_is_at_second, stage_is_at_first, timed_out;
} gates;

static void pass_when(gates *g, atomic_bool *open)
{
    const uint64_t deadline_ns = weft_clock_now_ns() + WAIT_NS / 2;
    while (!atomic_load(open) && !atomic_load(&g->timed_out))
        if (weft_clock_now_ns() > deadline_ns)
            atomic_store(&g->timed_out, true);
}

/* Each waits in the middle of its work for the other to be in the middle of
 * its own: one after the other they would wait for ever. */
static void lead_at(void *arg, uint64_t step, int32_t micro, bool ended)
{
    gates *const g = arg;
    if (step != 1 || micro != 1 || ended) return;
    atomic_store(&g->lead_is_at_second, true);
    pass_when(g, &g->stage_is_at_first);
}

static void stage_at(void *arg, uint64_t step, int32_t micro, bool ended)
{
    gates *const g = arg;
    if (step != 1 || micro != 0 || ended) return;
    atomic_store(&g->stage_is_at_first, true);
    pass_when(g, &g->lead_is_at_second);
}

START_TEST(stages_overlap)
{
    gates g = {0};
    const chain_options o = {.n_stages = 2,
                             .tcp = _i == 1,
                             .micro_rows = 4,
                             .on_micro = {lead_at, stage_at},
                             .on_micro_arg = &g};
    hand *const b = hand_open(&o);
    OK(weft_engine_start(b->engine, &err));
    submit(b, 5);
    wait_over(b, 5);
    expect_as_alone(b, 5);
    ck_assert(atomic_load(&g.lead_is_at_second));
    ck_assert(atomic_load(&g.stage_is_at_first));
    ck_assert(!atomic_load(&g.timed_out));
    hand_close(b);
}
END_TEST

/* ---- values that contradict ---------------------------------------------- */

static void other_chunk(int32_t stage, weft_engine_options *options)
{
    if (stage == 1) options->chunk_tokens++;
}

START_TEST(a_stage_of_other_values_takes_no_part)
{
    const chain_options o = {.n_stages = 2, .change = other_chunk};
    hand *const b = hand_open(&o);
    OK(weft_engine_start(b->engine, &err));
    submit(b, 1);
    wait_load(b, is_not_whole, "not whole");
    OK(weft_engine_cancel(b->engine, 1));
    wait_over(b, 1);
    ck_assert_int_eq(b->status[1], WEFT_CANCELLED);
    ck_assert_int_eq(b->jobs[1].n_tokens, b->jobs[1].n_prompt);
    ck_assert(!weft_stages_is_whole(b->p->chain->lead));
    hand_close(b);
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_set_timeout(tests, 300.0);
    tcase_add_loop_test(tests, same_tokens, 0, 2);
    tcase_add_test(tests, same_tokens_with_experts_elsewhere);
    tcase_add_test(tests, small_pools_preempt);
    tcase_add_loop_test(tests, stuck_steps_are_computed_again, 0, 8);
    tcase_add_loop_test(tests, a_cut_chain_gives_its_jobs_back, 0, 4);
    tcase_add_loop_test(tests, cancelled_while_stuck, 0, 3);
    tcase_add_loop_test(tests, some_cancelled_while_stuck, 0, 3);
    tcase_add_loop_test(tests, stopped_while_stuck, 0, 3);
    tcase_add_loop_test(tests, stages_overlap, 0, 2);
    tcase_add_test(tests, a_stage_of_other_values_takes_no_part);
}

int main(void)
{
    return weft_suite_run_added("stages", add_tests);
}
