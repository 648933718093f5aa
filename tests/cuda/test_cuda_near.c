/* A model on one device whose experts are on another: rows of its steps go from
 * device to device, and the bits are those of a model that has its experts at
 * home, also when a shard is lost in the middle of a step. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "shard/expert/body.h"
#include "shard/link/near_internal.h"
#include "tests/cuda/simt_faults.h"
#include "tests/support/device_kit.h"
#include "tests/support/expect.h"
#include "tests/support/link_kit.h"
#include "tests/support/pool.h"
#include "tests/support/suite.h"

#define FIXTURES "tests/data/fixtures/"

static const char *const MODELS[] = {FIXTURES "dots3-mixed",
                                     FIXTURES "v2-lite"};
static const weft_profile PROFILES[] = {WEFT_EXACT, WEFT_PROFILE_BF16};
enum {
    N_MODELS = sizeof MODELS / sizeof MODELS[0],
    N_PROFILES = 2,
    SHARDS = 2,
    ASKERS = 3,
    ASKED_ROWS = 6,
    HIDDEN_MAX = 128
};

typedef struct scene {
    weft_memory here, there; /* the model's device, and the shards' */
    weft_near *near, *near_there;
    pool *pool;
    pool_heard heard;
    weft_exchange *exchange;
    split_model *model;
    pool_results want, got;
    weft_experts experts; /* the exchange's own */
    int32_t n_dispatched, n_near, stop_at;
    pthread_t loser;
} scene;

static weft_near *make_near(const weft_memory *memory,
                            const weft_model_config *config, bool experts)
{
    weft_near *near = NULL;
    const weft_frame_limits asked = weft_dispatch_limits(config);
    const weft_frame_limits answered = weft_answer_limits(config);
    const weft_near_options options = {.memory = memory,
                                       .in = experts ? asked : answered,
                                       .out = experts ? answered : asked,
                                       .links_max = SHARDS + ASKERS};
    OK(weft_near_create(&options, &near, &err));
    return near;
}

/* What it has none of is said, and the test is over. */
static bool has_second(const char *test)
{
    weft_device_info info;
    device_kit_open()->get_info(device_kit_device(), &info);
    if (info.n_devices < 2)
        printf("SKIP %s: this machine has no second device\n", test);
    return info.n_devices > 1;
}

static weft_device *open_second(const weft_device_api *api)
{
    const weft_device_options options = {
        .index = 1, .scratch_bytes = 8 << 20, .threads_max = 4};
    weft_device *device = NULL;
    OK(api->open(&options, &device, &err));
    return device;
}

/* A thread is of one device: this one frees what is on the shards'. That waits
 * for all that their device has to do, rows on their way here among it, so
 * nobody waits for it in the middle of a step. */
static void *lose_shard(void *arg)
{
    scene *const s = arg;
    pool_stop_shard(s->pool, 0);
    return NULL;
}

/* Counts calls, and loses a shard behind one of them. */
static void dispatch(void *arg, const weft_experts_call *call)
{
    scene *const s = arg;
    s->experts.dispatch(s->experts.arg, call);
    s->n_near += s->experts.is_near(s->experts.arg);
    if (++s->n_dispatched == s->stop_at)
        ck_assert_int_eq(pthread_create(&s->loser, NULL, lose_shard, s), 0);
}

static weft_status collect(void *arg, const weft_experts_call *call,
                           weft_err *err)
{
    scene *const s = arg;
    return s->experts.collect(s->experts.arg, call, err);
}

static weft_status begin(void *arg, uint64_t step, uint32_t attempt,
                         uint64_t epoch, uint64_t *epoch_out, weft_err *err)
{
    scene *const s = arg;
    return s->experts.begin(s->experts.arg, step, attempt, epoch, epoch_out,
                            err);
}

static bool is_near(void *arg)
{
    scene *const s = arg;
    return s->experts.is_near(s->experts.arg);
}

static void idle(void *arg, uint64_t deadline_ns)
{
    scene *const s = arg;
    s->experts.idle(s->experts.arg, deadline_ns);
}

static void set_map(scene *s, uint64_t epoch, int32_t n_replicas)
{
    weft_expert_map *const map =
        pool_map(s->pool, epoch, n_replicas, (1U << SHARDS) - 1, 0);
    weft_exchange_set_map(s->exchange, map);
    weft_expert_map_release(map);
}

/* The model's thread is bound to its device; shards are made by a thread that
 * is bound to theirs. */
static void open_scene(scene *s, const char *dir, weft_profile profile)
{
    const weft_device_api *const api = device_kit_open_scratch(8 << 20);
    weft_model_config config;
    *s = (scene){.here = {api, device_kit_device()}};
    s->there = (weft_memory){api, open_second(api)};
    OK(weft_memory_bind(&s->here, &err));
    s->want = pool_reference_on(dir, profile, &s->here);
    OK(weft_model_config_read(dir, NULL, NULL, &config, &err));
    s->near = make_near(&s->here, &config, false);
    s->near_there = make_near(&s->there, &config, true);
    const pool_options options = {.n_shards = SHARDS,
                                  .holds_all = true,
                                  .memory = &s->there,
                                  .near = s->near,
                                  .near_there = s->near_there};
    OK(weft_memory_bind(&s->there, &err));
    s->pool = pool_open(dir, profile, &options);
    OK(weft_memory_bind(&s->here, &err));
    const weft_exchange_options base = {.memory = &s->here};
    s->exchange = pool_exchange(s->pool, &base, &s->heard);
    s->model = pool_model_on(dir, profile, s->exchange, &s->here);
    s->got = pool_results_make(&s->pool->config);
    s->experts = s->model->experts;
    s->model->experts = (weft_experts){.dispatch = dispatch,
                                       .collect = collect,
                                       .begin = begin,
                                       .is_near = is_near,
                                       .idle = idle,
                                       .on_device = s->experts.on_device,
                                       .arg = s};
}

static void close_scene(scene *s)
{
    pool_model_close(s->model);
    weft_exchange_destroy(s->exchange);
    pool_close(s->pool);
    pool_results_drop(&s->got);
    pool_results_drop(&s->want);
    weft_near_destroy(s->near);
    weft_near_destroy(s->near_there);
    s->there.api->close(s->there.device);
    device_kit_close();
}

static void become_near(const scene *s)
{
    const uint64_t deadline = weft_clock_now_ns() + UINT64_C(60000000000);
    weft_exchange_state state = {0};
    while (state.n_near < SHARDS) {
        ck_assert(weft_clock_now_ns() < deadline);
        s->experts.idle(s->experts.arg, weft_clock_now_ns() + 10000000U);
        weft_exchange_get_state(s->exchange, &state);
    }
}

static void compute(scene *s, int32_t cut)
{
    pool_run run = {.cut = cut,
                    .deadline_ns =
                        weft_clock_now_ns() + UINT64_C(300000000000)};
    OK(pool_compute(s->model, s->exchange, &run, &s->got, &err));
    pool_expect_same(&s->want, &s->got, "near", cut);
}

START_TEST(bits_are_those_of_experts_at_home)
{
    scene s;
    if (!has_second("bits_are_those_of_experts_at_home")) return;
    open_scene(&s, MODELS[_i / N_PROFILES], PROFILES[_i % N_PROFILES]);
    set_map(&s, 1, 1);
    /* Through the host, for as long as not all links are near. */
    compute(&s, 0);
    become_near(&s);
    s.n_dispatched = s.n_near = 0;
    compute(&s, 5);
    ck_assert_int_gt(s.n_dispatched, 5);
    ck_assert_int_eq(s.n_near, s.n_dispatched);
    close_scene(&s);
}
END_TEST

START_TEST(a_loss_in_a_step_changes_no_bit)
{
    scene s;
    if (!has_second("a_loss_in_a_step_changes_no_bit")) return;
    open_scene(&s, MODELS[0], WEFT_PROFILE_BF16);
    set_map(&s, 1, 2);
    become_near(&s);
    s.stop_at = 3 + 4 * _i;
    compute(&s, 5 * _i);
    ck_assert_int_gt(s.n_dispatched, s.stop_at);
    ck_assert_int_eq(pthread_join(s.loser, NULL), 0);
    ck_assert_int_eq(s.n_near, s.n_dispatched);
    close_scene(&s);
}
END_TEST

/* -- several that ask one shard ------------------------------------------- */

typedef struct asker {
    weft_link *link;
    const float *x; /* device, or the host's */
    bool near;
    int32_t n_pairs, n_missing;
    float want[2 * ASKED_ROWS * HIDDEN_MAX], got[2 * ASKED_ROWS * HIDDEN_MAX];
} asker;

/* Row r of ASKED_ROWS is asked for two experts. */
static void ask(const scene *s, asker *a, int32_t number, uint64_t step)
{
    weft_dispatch_pair pairs[2 * ASKED_ROWS];
    unsigned char body[256];
    const void *rows[ASKED_ROWS];
    const weft_model_config *const c = &s->pool->config;
    int32_t layer = 0;
    while (!c->moe[layer]) layer++;
    a->n_pairs = a->n_missing = 2 * (ASKED_ROWS - number);
    for (int32_t i = 0; i < a->n_pairs; i++)
        pairs[i] = (weft_dispatch_pair){
            .row = i / 2, .expert = (i + number) % 4, .pair = (uint32_t)i};
    for (int32_t r = 0; r < ASKED_ROWS; r++)
        rows[r] = a->x + r * c->hidden_size;
    const weft_frame frame = {.type = WEFT_FRAME_DISPATCH,
                              .epoch = 1,
                              .step = step,
                              .layer = layer,
                              .body = body,
                              .body_bytes =
                                  weft_dispatch_encode(pairs, a->n_pairs, body),
                              .n_rows = ASKED_ROWS - number,
                              .row_bytes = (uint32_t)c->hidden_size * 4};
    const weft_near_rows near = {.x = a->x};
    memset(a->got, 0xff, sizeof a->got);
    OK(a->near ? weft_link_send_near(a->link, &frame, &near, &err)
               : weft_link_send(a->link, &frame, rows, &err));
    if (!a->near) OK(weft_link_flush(a->link, kit_deadline(), &err));
}

static void hear(const scene *s, asker *a)
{
    weft_frame got;
    uint32_t pairs[WEFT_ANSWER_ROWS_MAX];
    static float rows[2 * ASKED_ROWS * HIDDEN_MAX];
    const int64_t hidden = s->pool->config.hidden_size;
    bool is = false;
    OK(weft_link_recv(a->link, &got, &is, &err));
    if (!is) return;
    ck_assert(got.is_near == a->near);
    OK(weft_answer_decode(&got, &s->pool->config, pairs, &err));
    if (a->near)
        device_kit_get(rows, got.rows, (size_t)(got.n_rows * hidden) * 4);
    else
        memcpy(rows, got.rows, (size_t)(got.n_rows * hidden) * 4);
    for (int32_t i = 0; i < got.n_rows; i++)
        memcpy(a->got + (int64_t)pairs[i] * hidden, rows + i * hidden,
               (size_t)hidden * 4);
    a->n_missing -= got.n_rows;
}

static void hear_all(const scene *s, asker *a, int32_t n)
{
    const uint64_t deadline = kit_deadline();
    for (int32_t left = 1; left > 0;) {
        left = 0;
        for (int32_t i = 0; i < n; i++) {
            if (a[i].n_missing > 0) hear(s, &a[i]);
            left += a[i].n_missing;
        }
        ck_assert(weft_clock_now_ns() < deadline);
    }
}

static void join_shard(scene *s, asker *a, bool near, const float *x)
{
    weft_link_options here = pool_asker_link(s->pool);
    weft_link_options there = pool_server_link(s->pool);
    weft_link *other = NULL;
    const uint64_t deadline = kit_deadline();
    here.near = near ? s->near : NULL;
    there.near = s->near_there;
    kit_open(KIT_TCP, &here, &there, &a->link, &other);
    weft_near_attach(a->link, true);
    weft_near_attach(other, false);
    OK(weft_expert_server_add_link(s->pool->shards[0].server, other, &err));
    a->near = near;
    a->x = x;
    while (weft_link_is_near(a->link) != near) {
        ck_assert(weft_clock_now_ns() < deadline);
        hear(s, a);
    }
}

/* Near and through the host, in rounds of any company: each has the answers
 * that it has when it asks alone. */
START_TEST(askers_of_both_kinds_share_rounds)
{
    static scene s;
    static asker a[ASKERS];
    static float x[ASKED_ROWS * HIDDEN_MAX];
    if (!has_second("askers_of_both_kinds_share_rounds")) return;
    open_scene(&s, MODELS[0], WEFT_PROFILE_BF16);
    for (int32_t i = 0; i < ASKED_ROWS * HIDDEN_MAX; i++)
        x[i] = (float)(i * 37 % 101) / 64.0F - 0.75F;
    const float *const there = device_kit_put(x, sizeof x);
    for (int32_t i = 0; i < ASKERS; i++)
        join_shard(&s, &a[i], i != 1, i == 1 ? x : there);
    for (int32_t i = 0; i < ASKERS; i++) {
        ask(&s, &a[i], i, 1);
        hear_all(&s, &a[i], 1);
        memcpy(a[i].want, a[i].got, sizeof a[i].want);
    }
    for (uint64_t lap = 2; lap < 20; lap++) {
        for (int32_t i = 0; i < ASKERS; i++)
            ask(&s, &a[(i + (int32_t)lap) % ASKERS],
                (i + (int32_t)lap) % ASKERS, lap);
        hear_all(&s, a, ASKERS);
        for (int32_t i = 0; i < ASKERS; i++)
            ck_assert_mem_eq(a[i].got, a[i].want, sizeof a[i].got);
    }
    for (int32_t i = 0; i < ASKERS; i++) weft_link_close(a[i].link);
    device_kit_free(there);
    close_scene(&s);
}
END_TEST

static void add(TCase *t)
{
    tcase_add_loop_test(t, bits_are_those_of_experts_at_home, 0,
                        N_MODELS * N_PROFILES);
    tcase_add_loop_test(t, a_loss_in_a_step_changes_no_bit, 0, 2);
    tcase_add_test(t, askers_of_both_kinds_share_rounds);
    tcase_set_timeout(t, 600);
}

int main(void)
{
    (void)setenv("WEFT_SIMT_DEVICES", "2", 1);
    device_kit_need();
    if (device_kit_api()->comm()->version == 0) {
        printf("SKIP %s\n", device_kit_api()->comm()->why);
        return 77;
    }
    return weft_suite_run_added("cuda_near", add);
}
