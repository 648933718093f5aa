/* What other threads do to an exchange while it computes: epochs that come all
 * the time, shards that stop, reject and come back at random, other groups that
 * ask the same shards. The bits stay those of one process. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "node/base/rng.h"
#include "tests/support/expect.h"
#include "tests/support/pool.h"
#include "tests/support/suite.h"

#define MODEL "tests/data/fixtures/dots3-mixed"

enum {
    SHARDS = 4,
    SEQUENCES = 3,
    ASKERS = 3,
    ASKED_ROWS = 40,
    ASKED_TIMES = 60
};

typedef struct scene {
    pool *pool;
    weft_exchange *exchange;
    split_model *model;
    pool_heard heard;
    pool_results want, got;
    atomic_bool over;
    pthread_mutex_t lock; /* of the pool's shards, and of what follows */
    uint64_t seed, drawn, epoch;
    int32_t n_stopped;
} scene;

static void open_scene(scene *s, uint64_t seed)
{
    const pool_options options = {.n_shards = SHARDS, .holds_all = true};
    *s = (scene){.seed = seed};
    (void)pthread_mutex_init(&s->lock, NULL);
    s->want = pool_reference(MODEL, WEFT_EXACT);
    s->pool = pool_open(MODEL, WEFT_EXACT, &options);
    const weft_exchange_options base = {.silence_ns = UINT64_C(60000000000)};
    s->exchange = pool_exchange(s->pool, &base, &s->heard);
    s->model = pool_model(MODEL, WEFT_EXACT, s->exchange);
    s->got = pool_results_make(&s->pool->config);
}

static void close_scene(scene *s)
{
    pool_model_close(s->model);
    weft_exchange_destroy(s->exchange);
    pool_close(s->pool);
    pool_results_drop(&s->want);
    pool_results_drop(&s->got);
    (void)pthread_mutex_destroy(&s->lock);
}

static uint64_t draw(scene *s, uint64_t below)
{
    return weft_rng_u64(s->seed, s->drawn++) % below;
}

/* With the lock. */
static void set_map(scene *s, uint32_t mask)
{
    weft_expert_map *const map =
        pool_map(s->pool, ++s->epoch, 1 + (int32_t)draw(s, 3), mask,
                 (int32_t)draw(s, 7));
    weft_exchange_set_map(s->exchange, map);
    weft_expert_map_release(map);
}

/* -- epochs -------------------------------------------------------------- */

static void *set_maps(void *arg)
{
    scene *const s = arg;
    while (!atomic_load(&s->over)) {
        weft_exchange_state state;
        (void)pthread_mutex_lock(&s->lock);
        set_map(s, (uint32_t)(1 + draw(s, (1 << SHARDS) - 1)));
        (void)pthread_mutex_unlock(&s->lock);
        weft_exchange_get_state(s->exchange, &state);
        (void)sched_yield();
    }
    return NULL;
}

START_TEST(epochs_change_between_steps)
{
    scene s;
    pthread_t thread;
    open_scene(&s, (uint64_t)_i);
    set_map(&s, 15);
    ck_assert_int_eq(pthread_create(&thread, NULL, set_maps, &s), 0);
    /* Until there were switches enough, however seldom the thread runs. */
    const uint64_t until_ns = weft_clock_now_ns() + UINT64_C(60000000000);
    for (int32_t i = 0; i < SEQUENCES || s.heard.n_switched <= SEQUENCES; i++) {
        pool_run run = {.cut = 7 * (i % 2), .heard = &s.heard};
        ck_assert_uint_lt(weft_clock_now_ns(), until_ns);
        OK(pool_compute(s.model, s.exchange, &run, &s.got, &err));
        ck_assert_int_eq(run.n_failed, 0);
        pool_expect_same(&s.want, &s.got, "epochs", i);
    }
    atomic_store(&s.over, true);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    close_scene(&s);
}
END_TEST

/* -- anything at any time -------------------------------------------------- */

static void *make_trouble(void *arg)
{
    scene *const s = arg;
    while (!atomic_load(&s->over)) {
        (void)pthread_mutex_lock(&s->lock);
        const int32_t i = (int32_t)draw(s, SHARDS);
        weft_expert_server *const server = s->pool->shards[i].server;
        const uint64_t what = draw(s, 16);
        const uint64_t turns = draw(s, 200);
        if (server != NULL && what == 0) {
            pool_stop_shard(s->pool, i);
            s->n_stopped++;
        } else if (server != NULL && what < 3) {
            weft_expert_server_set_epochs(server, 0, 0);
        } else if (server != NULL) {
            weft_expert_server_set_epochs(server, 1, 1000000);
        }
        (void)pthread_mutex_unlock(&s->lock);
        for (uint64_t t = 0; t < turns; t++) (void)sched_yield();
    }
    return NULL;
}

/* What a controller and restarted shards would do, at the computing thread's
 * pace; sometimes they do nothing for a while. */
static void before_step(void *arg, int32_t step, int32_t attempt)
{
    scene *const s = arg;
    (void)step;
    (void)pthread_mutex_lock(&s->lock);
    uint32_t mask = 0;
    bool changed = attempt > 0 || draw(s, 2) == 0;
    for (int32_t i = 0; i < SHARDS; i++) {
        if (s->pool->shards[i].server == NULL && draw(s, 2) == 0) {
            pool_start_shard(s->pool, i, false);
            pool_connect(s->pool, s->exchange, i);
            changed = true;
        }
        if (s->pool->shards[i].server != NULL) mask |= 1U << i;
    }
    if (changed && mask != 0) set_map(s, mask);
    (void)pthread_mutex_unlock(&s->lock);
}

START_TEST(whatever_happens_the_bits_are_right)
{
    scene s;
    pthread_t thread;
    open_scene(&s, 1000 + (uint64_t)_i);
    set_map(&s, 15);
    ck_assert_int_eq(pthread_create(&thread, NULL, make_trouble, &s), 0);
    for (int32_t i = 0; i < SEQUENCES; i++) {
        pool_run run = {.cut = 7 * (i % 2),
                        .heard = &s.heard,
                        .before = before_step,
                        .arg = &s};
        OK(pool_compute(s.model, s.exchange, &run, &s.got, &err));
        pool_expect_same(&s.want, &s.got, "trouble", _i);
    }
    atomic_store(&s.over, true);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    weft_exchange_state state;
    weft_exchange_get_state(s.exchange, &state);
    ck_assert_uint_eq(state.n_garbage, 0);
    close_scene(&s);
}
END_TEST

/* -- several groups ---------------------------------------------------------
 */

typedef struct asker {
    pool *pool;
    uint32_t group;
    int32_t layer;
    weft_exchange *exchange;
    pool_heard heard;
    int32_t experts[ASKED_ROWS * 16];
    float *x, *alone, *out;
    size_t out_bytes;
    bool same;
} asker;

static void ask(asker *a, uint64_t step, int32_t n_rows, float *out)
{
    const weft_experts experts = weft_exchange_experts(a->exchange);
    uint64_t epoch = 0;
    const weft_experts_call call = {
        .layer = a->layer,
        .n_rows = n_rows,
        .top_k = a->pool->config.top_k,
        .x = a->x,
        .experts = a->experts,
        .out = out,
    };
    OK(experts.begin(experts.arg, step, 0, 0, &epoch, &err));
    experts.dispatch(experts.arg, &call);
    OK(experts.collect(experts.arg, &call, &err));
}

static void open_asker(asker *a, pool *p, uint32_t group, int32_t layer)
{
    const weft_model_config *const c = &p->config;
    const weft_exchange_options base = {.group = group,
                                        .silence_ns = UINT64_C(60000000000)};
    *a = (asker){.pool = p, .group = group, .layer = layer, .same = true};
    a->exchange = pool_exchange(p, &base, &a->heard);
    const size_t width = (size_t)c->hidden_size * sizeof(float);
    a->out_bytes = (size_t)ASKED_ROWS * (size_t)c->top_k * width;
    a->x = weft_mem_new(ASKED_ROWS, width);
    a->alone = weft_mem_new(a->out_bytes, 1);
    a->out = weft_mem_new(a->out_bytes, 1);
    ck_assert_int_le(c->top_k, 16);
    for (int64_t i = 0; i < (int64_t)ASKED_ROWS * c->hidden_size; i++)
        a->x[i] = (float)weft_rng_unit(group, (uint64_t)i) - 0.5F;
    for (int32_t i = 0; i < ASKED_ROWS * c->top_k; i++)
        a->experts[i] =
            (int32_t)(weft_rng_u64(group, (uint64_t)i) % (uint64_t)c->n_expert);
    weft_expert_map *const map = pool_map(p, 1, 1, 7, 0);
    weft_exchange_set_map(a->exchange, map);
    weft_expert_map_release(map);
    ask(a, 1, ASKED_ROWS, a->alone);
}

static void *ask_often(void *arg)
{
    asker *const a = arg;
    const size_t row = a->out_bytes / ASKED_ROWS;
    for (int32_t i = 0; i < ASKED_TIMES; i++) {
        const int32_t n =
            1 +
            (int32_t)(weft_rng_u64(a->group + 50, (uint64_t)i) % ASKED_ROWS);
        memset(a->out, 0xff, a->out_bytes);
        ask(a, 2 + (uint64_t)i, n, a->out);
        a->same = a->same && memcmp(a->out, a->alone, (size_t)n * row) == 0;
    }
    return NULL;
}

START_TEST(groups_share_shards)
{
    const pool_options options = {.n_shards = 3};
    pool *const p = pool_open(MODEL, WEFT_EXACT, &options);
    int32_t layers[2] = {-1, -1};
    for (int32_t l = p->config.n_layer - 1; l >= 0; l--)
        if (p->config.moe[l]) {
            layers[1] = layers[0];
            layers[0] = l;
        }
    if (layers[1] < 0) layers[1] = layers[0];
    asker askers[ASKERS];
    pthread_t threads[ASKERS];
    for (int32_t i = 0; i < ASKERS; i++)
        open_asker(&askers[i], p, (uint32_t)i, layers[i == 2]);
    for (int32_t i = 0; i < ASKERS; i++)
        ck_assert_int_eq(
            pthread_create(&threads[i], NULL, ask_often, &askers[i]), 0);
    for (int32_t i = 0; i < ASKERS; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        ck_assert(askers[i].same);
        weft_exchange_destroy(askers[i].exchange);
        weft_mem_free(askers[i].x);
        weft_mem_free(askers[i].alone);
        weft_mem_free(askers[i].out);
    }
    pool_close(p);
}
END_TEST

static void add(TCase *tests)
{
    tcase_add_loop_test(tests, epochs_change_between_steps, 0, 4);
    tcase_add_loop_test(tests, whatever_happens_the_bits_are_right, 0, 12);
    tcase_add_test(tests, groups_share_shards);
}

int main(void)
{
    return weft_suite_run_added("an exchange among threads", add);
}
