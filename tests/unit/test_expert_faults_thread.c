/* Expert shards that break, freeze, dawdle, answer late or nonsense: the layer
 * shard gets the right bits or UNAVAILABLE, never anything else. */
#include <string.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "tests/support/expect.h"
#include "tests/support/puppet.h"
#include "tests/support/suite.h"

#define MODEL "tests/data/fixtures/dots3-mixed"

static const uint64_t SILENCE_NS = 300000000, LONG_NS = 20000000000;

typedef struct stage {
    weft_pulse *pulse; /* of the real shard */
    pool *pool;
    weft_exchange *exchange;
    split_model *model;
    pool_heard heard;
    pool_results want, got;
    puppet puppet;
    pool_run run;
    int32_t n_replicas;
    bool moves; /* after a failure everything goes to shard 1 */
} stage;

static void set_map(stage *s, uint64_t epoch, int32_t n_replicas, uint32_t mask)
{
    weft_expert_map *const map = pool_map(s->pool, epoch, n_replicas, mask, 0);
    weft_exchange_set_map(s->exchange, map);
    weft_expert_map_release(map);
}

static void before(void *arg, int32_t step, int32_t attempt)
{
    stage *const s = arg;
    (void)step;
    if (attempt > 0 && s->moves && s->heard.epoch == 1) set_map(s, 2, 1, 2);
}

/* Shard 0 is the puppet, shard 1 a real one; both hold everything. */
static stage *open_stage(puppet_act act, int32_t at, int32_t rows,
                         int32_t n_replicas, uint64_t silence_ns)
{
    stage *const s = weft_mem_new(1, sizeof *s);
    OK(weft_pulse_start(SILENCE_NS / 6, &s->pulse, &err));
    const pool_options options = {
        .n_shards = 2, .holds_all = true, .pulse = s->pulse};
    const weft_exchange_options base = {
        .silence_ns = silence_ns,
        .answer_ns = act == PUPPET_DAWDLES ? SILENCE_NS : LONG_NS,
    };
    s->n_replicas = n_replicas;
    s->want = pool_reference(MODEL, WEFT_EXACT);
    s->pool = pool_open(MODEL, WEFT_EXACT, &options);
    pool_stop_shard(s->pool, 0);
    s->exchange = pool_exchange(s->pool, &base, &s->heard);
    s->model = pool_model(MODEL, WEFT_EXACT, s->exchange);
    s->got = pool_results_make(&s->pool->config);
    s->puppet = (puppet){.pool = s->pool,
                         .act = act,
                         .at = at,
                         .rows = rows,
                         .n_rejects = act == PUPPET_REJECTS ? at : 0};
    puppet_start(&s->puppet, s->exchange);
    set_map(s, 1, n_replicas, 3);
    s->run = (pool_run){.heard = &s->heard, .before = before, .arg = s};
    return s;
}

static void close_stage(stage *s)
{
    puppet_stop(&s->puppet);
    pool_model_close(s->model);
    weft_exchange_destroy(s->exchange);
    pool_close(s->pool);
    weft_pulse_stop(s->pulse);
    pool_results_drop(&s->want);
    pool_results_drop(&s->got);
    weft_mem_free(s);
}

static weft_exchange_state compute(stage *s, const char *what, int number)
{
    weft_exchange_state state;
    OK(pool_compute(s->model, s->exchange, &s->run, &s->got, &err));
    pool_expect_same(&s->want, &s->got, what, number);
    s->model->experts.idle(s->model->experts.arg, 0);
    weft_exchange_get_state(s->exchange, &state);
    return state;
}

static int32_t count_frames(int32_t rows, int32_t cut)
{
    stage *const s = open_stage(PUPPET_GOOD, 0, rows, 1, LONG_NS);
    s->run.cut = cut;
    const weft_exchange_state state = compute(s, "good", 0);
    ck_assert_uint_eq(state.n_fenced + state.n_stale + state.n_garbage, 0);
    const int32_t n = atomic_load(&s->puppet.n_frames);
    ck_assert_int_gt(n, 20);
    close_stage(s);
    return n;
}

/* Its link ends before frame `at`: between two questions, before an answer, and
 * in the middle of one. */
static void check_closing(int32_t at, int32_t cut, int32_t n_replicas)
{
    stage *const s = open_stage(PUPPET_CLOSES, at, 6, n_replicas, LONG_NS);
    s->run.cut = cut;
    s->moves = n_replicas == 1;
    const weft_exchange_state state = compute(s, "closes at", at);
    ck_assert_uint_eq(state.n_fenced, 1);
    ck_assert_uint_eq(state.n_garbage, 0);
    ck_assert_int_ge(s->heard.n_suspects, 1);
    ck_assert_str_eq(s->heard.suspect, "e0");
    if (n_replicas == 2) {
        ck_assert_uint_ge(state.n_resent, 1);
        ck_assert_int_eq(s->run.n_failed + s->run.n_unavailable, 0);
        ck_assert_uint_eq(state.epoch, 1);
    } else {
        ck_assert_int_eq(s->run.n_failed, 1);
        ck_assert_uint_eq(state.epoch, 2);
        ck_assert_int_eq(s->heard.n_switched, 2);
    }
    close_stage(s);
}

START_TEST(closes_anywhere_with_a_replica)
{
    const int32_t cut = _i % 2 == 0 ? 0 : 7;
    const int32_t n = count_frames(6, cut);
    for (int32_t at = _i; at < n; at += 8) check_closing(at, cut, 2);
}
END_TEST

START_TEST(closes_anywhere_without)
{
    const int32_t cut = _i % 2 == 0 ? 0 : 7;
    const int32_t n = count_frames(6, cut);
    for (int32_t at = _i; at < n; at += 8) check_closing(at, cut, 1);
}
END_TEST

START_TEST(without_anybody_it_is_unavailable)
{
    stage *const s = open_stage(PUPPET_CLOSES, 5, 3, 1, LONG_NS);
    weft_err err = {0};
    s->run.deadline_ns = weft_clock_now_ns() + 300000000U;
    ck_assert_int_eq(
        pool_compute(s->model, s->exchange, &s->run, &s->got, &err),
        WEFT_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(err.text, "e0 not connected"));
    weft_exchange_state state;
    weft_exchange_get_state(s->exchange, &state);
    ck_assert(!state.whole);
    ck_assert_ptr_nonnull(strstr(state.missing, "e0"));
    /* And goes on where it is told to. */
    s->run.deadline_ns = 0;
    set_map(s, 3, 1, 2);
    (void)compute(s, "later", 0);
    close_stage(s);
}
END_TEST

static void check_still(puppet_act act, int32_t at, int32_t n_replicas)
{
    stage *const s = open_stage(act, at, 3, n_replicas,
                                act == PUPPET_FREEZES ? SILENCE_NS : LONG_NS);
    s->moves = n_replicas == 1;
    const weft_exchange_state state = compute(s, "stands still at", at);
    const uint64_t took =
        weft_clock_now_ns() - atomic_load(&s->puppet.acted_ns);
    ck_assert_uint_eq(state.n_fenced, 1);
    ck_assert_uint_ge(took, SILENCE_NS);
    /* The rest of the steps, on a busy machine, is in there too. */
    ck_assert_uint_lt(took, SILENCE_NS + UINT64_C(5000000000));
    ck_assert_ptr_nonnull(strstr(
        s->heard.why, act == PUPPET_FREEZES ? "silent for" : "not answer"));
    ck_assert_int_eq(s->run.n_failed, n_replicas == 1);
    close_stage(s);
}

START_TEST(frozen_is_fenced)
{
    check_still(PUPPET_FREEZES, 7 * _i, 1 + _i % 2);
}
END_TEST

START_TEST(dawdling_is_fenced)
{
    check_still(PUPPET_DAWDLES, 7 * _i, 1 + _i % 2);
}
END_TEST

/* Wrong rows under every name but the right one change nothing. */
START_TEST(stale_answers_are_dropped)
{
    stage *const s = open_stage(PUPPET_STALE, 0, 3, 1 + _i % 2, LONG_NS);
    s->run.cut = _i < 2 ? 0 : 7;
    const weft_exchange_state state = compute(s, "stale", _i);
    ck_assert_int_gt(atomic_load(&s->puppet.n_stale), INT64_C(9) * 20);
    ck_assert_uint_eq(state.n_stale, (uint64_t)atomic_load(&s->puppet.n_stale));
    ck_assert_uint_eq(state.n_fenced + state.n_garbage, 0);
    close_stage(s);
}
END_TEST

START_TEST(garbage_breaks_its_link)
{
    for (int32_t at = 0; at < 12; at += 11) {
        stage *const s = open_stage((puppet_act)_i, at, 3, 1 + at % 2, LONG_NS);
        s->moves = at % 2 == 0;
        const weft_exchange_state state = compute(s, "garbage", _i);
        ck_assert_uint_eq(state.n_garbage, 1);
        ck_assert_uint_eq(state.n_fenced, 1);
        /* Where a step has failed, shard 1 has answered for nothing. */
        if (!s->moves) ck_assert_uint_eq(state.n_stale, 0);
        ck_assert_str_eq(s->heard.suspect, "e0");
        close_stage(s);
    }
}
END_TEST

/* A shard that has not opened the epoch yet is no suspect. */
START_TEST(rejected_is_asked_again)
{
    stage *const s = open_stage(PUPPET_REJECTS, 4, 0, 1 + _i, LONG_NS);
    const weft_exchange_state state = compute(s, "rejects", _i);
    ck_assert_uint_eq(state.n_fenced, 0);
    ck_assert_int_eq(s->heard.n_suspects, 0);
    ck_assert_uint_ge(state.n_rejected, 1);
    if (_i == 0) {
        ck_assert_int_eq(s->run.n_failed, 4);
        ck_assert_uint_eq(state.n_rejected, 4);
    } else {
        ck_assert_int_eq(s->run.n_failed, 0);
        ck_assert_uint_ge(state.n_resent, 1);
    }
    close_stage(s);
}
END_TEST

/* Nobody is asked anything: what ends is noticed all the same. */
START_TEST(lost_while_idle)
{
    stage *const s = open_stage(PUPPET_GOOD, 0, 0, 1, LONG_NS);
    (void)compute(s, "before", 0);
    puppet_stop(&s->puppet);
    const uint64_t deadline = weft_clock_now_ns() + UINT64_C(10000000000);
    while (s->heard.n_suspects == 0 && weft_clock_now_ns() < deadline)
        s->model->experts.idle(s->model->experts.arg, deadline);
    ck_assert_int_eq(s->heard.n_suspects, 1);
    ck_assert_str_eq(s->heard.suspect, "e0");
    weft_exchange_state state;
    weft_exchange_get_state(s->exchange, &state);
    ck_assert(!state.whole && state.n_links == 1 && state.n_fenced == 0);
    /* An epoch without it; a lead that idles switches. */
    set_map(s, 2, 1, 2);
    while (s->heard.epoch == 1 && weft_clock_now_ns() < deadline)
        s->model->experts.idle(s->model->experts.arg, deadline);
    ck_assert_uint_eq(s->heard.epoch, 2);
    puppet_start(&s->puppet, s->exchange);
    ck_assert_int_eq(s->heard.n_cleared, 1);
    (void)compute(s, "after", 0);
    close_stage(s);
}
END_TEST

START_TEST(frozen_while_idle)
{
    stage *const s = open_stage(PUPPET_FREEZES, 1 << 30, 0, 1, SILENCE_NS);
    const uint64_t began = weft_clock_now_ns();
    const uint64_t deadline = began + UINT64_C(10000000000);
    while (s->heard.n_suspects == 0 && weft_clock_now_ns() < deadline)
        s->model->experts.idle(s->model->experts.arg, deadline);
    ck_assert_uint_ge(weft_clock_now_ns() - began, SILENCE_NS);
    ck_assert_int_ge(s->heard.n_suspects, 1);
    ck_assert_ptr_nonnull(strstr(s->heard.why, "silent"));
    close_stage(s);
}
END_TEST

/* Threads of one process do not pulse: nobody is dead for having no work. */
START_TEST(silent_where_nobody_pulses)
{
    pool_heard heard = {0};
    const pool_options options = {.n_shards = 2, .holds_all = true};
    pool *const p = pool_open(MODEL, WEFT_EXACT, &options);
    weft_exchange *const exchange = pool_exchange(p, NULL, &heard);
    weft_expert_map *const map = pool_map(p, 1, 1, 3, 0);
    weft_exchange_set_map(exchange, map);
    weft_expert_map_release(map);
    const weft_experts experts = weft_exchange_experts(exchange);
    const uint64_t until = weft_clock_now_ns() + 2 * WEFT_SILENCE_NS;
    while (weft_clock_now_ns() < until) experts.idle(experts.arg, until);
    uint64_t epoch = 0;
    OK(experts.begin(experts.arg, 1, 0, 0, &epoch, &err));
    ck_assert_int_eq(heard.n_suspects, 0);
    weft_exchange_destroy(exchange);
    pool_close(p);
}
END_TEST

static void *stop_soon(void *arg)
{
    stage *const s = arg;
    while (atomic_load(&s->puppet.acted_ns) == 0)
        weft_exchange_wake(s->exchange);
    weft_exchange_stop(s->exchange);
    return NULL;
}

START_TEST(stop_ends_a_step)
{
    stage *const s = open_stage(PUPPET_DAWDLES, 4, 3, 1, LONG_NS);
    s->run.heard = NULL;
    pthread_t thread;
    weft_err err = {0};
    ck_assert_int_eq(pthread_create(&thread, NULL, stop_soon, s), 0);
    /* Well before the puppet would be fenced. */
    ck_assert_int_eq(
        pool_compute(s->model, s->exchange, &s->run, &s->got, &err),
        WEFT_CANCELLED);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    uint64_t epoch = 0;
    ck_assert_int_eq(
        s->model->experts.begin(s->model->experts.arg, 9, 0, 0, &epoch, &err),
        WEFT_CANCELLED);
    close_stage(s);
}
END_TEST

static void add(TCase *tests)
{
    tcase_add_loop_test(tests, closes_anywhere_with_a_replica, 0, 8);
    tcase_add_loop_test(tests, closes_anywhere_without, 0, 8);
    tcase_add_test(tests, without_anybody_it_is_unavailable);
    tcase_add_loop_test(tests, frozen_is_fenced, 0, 4);
    tcase_add_loop_test(tests, dawdling_is_fenced, 0, 4);
    tcase_add_loop_test(tests, stale_answers_are_dropped, 0, 4);
    tcase_add_loop_test(tests, garbage_breaks_its_link, PUPPET_FEW_PAIRS,
                        PUPPET_ACTS);
    tcase_add_loop_test(tests, rejected_is_asked_again, 0, 2);
    tcase_add_test(tests, lost_while_idle);
    tcase_add_test(tests, frozen_while_idle);
    tcase_add_test(tests, silent_where_nobody_pulses);
    tcase_add_test(tests, stop_ends_a_step);
}

int main(void)
{
    return weft_suite_run_added("expert shards that fail", add);
}
