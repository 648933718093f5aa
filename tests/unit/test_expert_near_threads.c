/* Rows of a step that stay on the device (shard/expert/exchange.h): against
 * shards of this test, which answer on threads of their own, over comms that
 * stay in the process. An answer's row is made of the row that was asked and
 * the number of the expert, so that each place of the result has one value. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "shard/expert/body.h"
#include "shard/expert/exchange.h"
#include "tests/support/expect.h"
#include "tests/support/near_kit.h"
#include "tests/support/suite.h"

enum {
    HIDDEN = 24,
    LAYERS = 2,
    EXPERTS = 8,
    TOP_K = 3,
    ROWS_MAX = 2500,
    SHARDS = 3
};
#define CALL_VALUES (ROWS_MAX * TOP_K * HIDDEN)

typedef enum temper {
    ANSWERS,
    LEAVES,      /* closes its link at the first question */
    LEAVES_LATE, /* after one answer */
    FREEZES,     /* takes the question and does nothing any more */
    MIXES_UP,    /* sends its rows in the stream */
} temper;

typedef struct shard {
    pthread_t thread;
    weft_link *link;
    temper temper;
    atomic_bool over;
    atomic_int n_near, n_other; /* questions */
} shard;

typedef struct scene {
    weft_model_config config;
    weft_near *near, *there;
    weft_exchange *exchange;
    weft_experts experts;
    shard shards[SHARDS];
    float *x, *out, *want, *way; /* `way`: rows on their way to `out` */
    int32_t *choice;
    int32_t n_suspects;
} scene;

/* -- shards --------------------------------------------------------------- */

static float answer_of(float x, int32_t expert)
{
    return x * 3.0F + (float)expert;
}

/* The pairs [first, first + n) of a question. */
static bool answer(shard *s, const weft_frame *asked,
                   const weft_dispatch_pair *pairs, int32_t n)
{
    static _Thread_local float rows[WEFT_ANSWER_ROWS_MAX * HIDDEN];
    const void *list[WEFT_ANSWER_ROWS_MAX];
    uint32_t numbers[WEFT_ANSWER_ROWS_MAX];
    unsigned char body[WEFT_ANSWER_BODY_BYTES_MAX];
    const float *const x = asked->rows;
    for (int32_t i = 0; i < n; i++) {
        numbers[i] = pairs[i].pair;
        list[i] = rows + (size_t)i * HIDDEN;
        for (int32_t k = 0; k < HIDDEN; k++)
            rows[i * HIDDEN + k] =
                answer_of(x[pairs[i].row * HIDDEN + k], pairs[i].expert);
    }
    weft_frame frame = *asked;
    frame.type = WEFT_FRAME_ANSWER;
    frame.body = body;
    frame.body_bytes = weft_answer_encode(numbers, n, body);
    frame.n_rows = n;
    const bool near = asked->is_near && s->temper != MIXES_UP;
    const weft_near_rows near_rows = {.x = rows};
    weft_status st = WEFT_RESOURCE_EXHAUSTED;
    frame.is_near = false;
    frame.rows = NULL;
    while (st == WEFT_RESOURCE_EXHAUSTED && !atomic_load(&s->over)) {
        st = near ? weft_link_send_near(s->link, &frame, &near_rows, NULL)
                  : weft_link_send(s->link, &frame, list, NULL);
        if (st == WEFT_OK && !near)
            st = weft_link_flush(s->link, kit_deadline(), NULL);
        (void)sched_yield();
    }
    return st == WEFT_OK;
}

/* Whether it goes on. */
static bool take(shard *s, const scene *of, const weft_frame *frame)
{
    static _Thread_local weft_dispatch_pair pairs[WEFT_DISPATCH_PAIRS_MAX];
    int32_t n = 0;
    OK(weft_dispatch_decode(frame, &of->config, pairs, &n, &err));
    atomic_fetch_add(frame->is_near ? &s->n_near : &s->n_other, 1);
    if (s->temper == LEAVES) return false;
    while (s->temper == FREEZES && !atomic_load(&s->over)) (void)sched_yield();
    for (int32_t i = 0; i < n; i += WEFT_ANSWER_ROWS_MAX) {
        const int32_t left = n - i;
        if (!answer(s, frame, pairs + i,
                    left < WEFT_ANSWER_ROWS_MAX ? left : WEFT_ANSWER_ROWS_MAX))
            return false;
        if (s->temper == LEAVES_LATE) return false;
    }
    return true;
}

typedef struct start {
    scene *scene;
    shard *shard;
} start;

static void *serve(void *arg)
{
    const start at = *(start *)arg;
    shard *const s = at.shard;
    weft_mem_free(arg);
    bool goes_on = true;
    while (goes_on && !atomic_load(&s->over)) {
        weft_frame frame;
        bool got = false;
        goes_on = weft_link_recv(s->link, &frame, &got, NULL) == WEFT_OK;
        if (goes_on && got) goes_on = take(s, at.scene, &frame);
        if (!got) (void)sched_yield();
    }
    weft_link_close(s->link);
    return NULL;
}

/* -- the scene ------------------------------------------------------------ */

static void suspect(void *arg, const char *id, uint64_t incarnation,
                    const char *why)
{
    scene *const s = arg;
    (void)id;
    (void)incarnation;
    (void)why;
    s->n_suspects++;
}

static weft_peer peer_of(int32_t i)
{
    weft_peer peer = {.incarnation = 1};
    (void)snprintf(peer.id, sizeof peer.id, "e%d", i);
    return peer;
}

/* Shard i again, or for the first time; `near`: of a device. */
static void start_shard(scene *s, int32_t i, temper how, bool near)
{
    shard *const one = &s->shards[i];
    weft_link *here = NULL;
    const weft_peer peer = peer_of(i);
    weft_link_options a = {.limits = weft_answer_limits(&s->config),
                           .near = s->near,
                           .name = peer.id};
    weft_link_options b = {.limits = weft_dispatch_limits(&s->config),
                           .near = near ? s->there : NULL,
                           .name = "asker"};
    kit_open(KIT_TCP, &a, &b, &here, &one->link);
    weft_near_attach(here, true);
    weft_near_attach(one->link, false);
    near_kit_settle(here, one->link);
    ck_assert(weft_link_is_near(here) == near);
    one->temper = how;
    atomic_store(&one->over, false);
    OK(weft_exchange_add_link(s->exchange, &peer, here, &err));
    start *const at = weft_mem_new(1, sizeof *at);
    *at = (start){s, one};
    ck_assert_int_eq(pthread_create(&one->thread, NULL, serve, at), 0);
}

static void stop_shard(scene *s, int32_t i)
{
    atomic_store(&s->shards[i].over, true);
    ck_assert_int_eq(pthread_join(s->shards[i].thread, NULL), 0);
}

static void set_map(scene *s, uint64_t epoch, int32_t n_replicas)
{
    weft_expert_map *map = NULL;
    OK(weft_expert_map_create(epoch, LAYERS, EXPERTS, n_replicas, SHARDS, &map,
                              &err));
    for (int32_t i = 0; i < SHARDS; i++) map->peers[i] = peer_of(i);
    for (int32_t e = 0; e < EXPERTS; e++)
        for (int32_t r = 0; r < n_replicas; r++)
            weft_expert_map_owners(map, 1, e)[r] = (uint16_t)((e + r) % SHARDS);
    weft_exchange_set_map(s->exchange, map);
    weft_expert_map_release(map);
}

static weft_near *near_on(const scene *s, int32_t device)
{
    weft_near *near = NULL;
    weft_near_options options = {.memory = near_kit_memory(device),
                                 .in = weft_answer_limits(&s->config),
                                 .out = weft_dispatch_limits(&s->config),
                                 .links_max = SHARDS};
    if (device == 1) {
        options.in = weft_dispatch_limits(&s->config);
        options.out = weft_answer_limits(&s->config);
    }
    OK(weft_near_create(&options, &near, &err));
    return near;
}

static void open_scene(scene *s)
{
    *s = (scene){.config = {.hidden_size = HIDDEN,
                            .n_layer = LAYERS,
                            .n_expert = EXPERTS,
                            .top_k = TOP_K}};
    s->config.moe[1] = true;
    near_kit_reset();
    s->near = near_on(s, 0);
    s->there = near_on(s, 1);
    const weft_exchange_options options = {
        .config = &s->config,
        .max_rows = ROWS_MAX,
        .memory = near_kit_memory(0),
        .answer_ns = UINT64_C(300000000),
        .watch = {.suspect = suspect, .arg = s},
    };
    OK(weft_exchange_create(&options, &s->exchange, &err));
    s->experts = weft_exchange_experts(s->exchange);
    s->x = weft_mem_new((size_t)ROWS_MAX * HIDDEN, sizeof *s->x);
    s->out = weft_mem_new((size_t)CALL_VALUES, sizeof *s->out);
    s->want = weft_mem_new((size_t)CALL_VALUES, sizeof *s->want);
    s->way = weft_mem_new((size_t)CALL_VALUES, sizeof *s->way);
    s->choice = weft_mem_new((size_t)ROWS_MAX * TOP_K, sizeof *s->choice);
    for (int32_t i = 0; i < ROWS_MAX * HIDDEN; i++) s->x[i] = (float)i;
    for (int32_t i = 0; i < ROWS_MAX * TOP_K; i++)
        s->choice[i] = (i / TOP_K * 5 + i % TOP_K) % EXPERTS;
    for (int32_t i = 0; i < CALL_VALUES; i++)
        s->want[i] = answer_of(s->x[i / HIDDEN / TOP_K * HIDDEN + i % HIDDEN],
                               s->choice[i / HIDDEN]);
}

static void close_scene(scene *s)
{
    for (int32_t i = 0; i < SHARDS; i++) stop_shard(s, i);
    weft_exchange_destroy(s->exchange);
    weft_near_destroy(s->near);
    weft_near_destroy(s->there);
    ck_assert_int_eq(near_kit_n_comms(), 0);
    ck_assert_int_eq(near_kit_n_blocks(), 0);
    weft_mem_free(s->x);
    weft_mem_free(s->out);
    weft_mem_free(s->want);
    weft_mem_free(s->way);
    weft_mem_free(s->choice);
}

static weft_exchange_state state_of(const scene *s)
{
    weft_exchange_state state;
    weft_exchange_get_state(s->exchange, &state);
    return state;
}

/* Rows [first, first + n) of a step, in that lane. In a near step the host's
 * side is not there to be touched. */
static weft_experts_call call_of(scene *s, int32_t lane, int32_t first,
                                 int32_t n)
{
    const bool near = s->experts.is_near(s->experts.arg);
    float *const out = s->out + (size_t)first * TOP_K * HIDDEN;
    memset(out, 0xff, (size_t)n * TOP_K * HIDDEN * sizeof *out);
    return (weft_experts_call){
        .lane = lane,
        .layer = 1,
        .n_rows = n,
        .top_k = TOP_K,
        .experts = s->choice + (size_t)first * TOP_K,
        .x = near ? NULL : s->x + (size_t)first * HIDDEN,
        .out = near ? NULL : s->way + (size_t)first * TOP_K * HIDDEN,
        .x_near = s->x + (size_t)first * HIDDEN,
        .out_near = out,
    };
}

static weft_status begin(scene *s, uint64_t step)
{
    uint64_t epoch = 0;
    return s->experts.begin(s->experts.arg, step, 1, 0, &epoch, NULL);
}

static weft_status compute(scene *s, uint64_t step, int32_t n, weft_err *err)
{
    const weft_status st = begin(s, step);
    if (st != WEFT_OK) return st;
    const weft_experts_call call = call_of(s, 0, 0, n);
    s->experts.dispatch(s->experts.arg, &call);
    return s->experts.collect(s->experts.arg, &call, err);
}

static void expect_result(const scene *s, int32_t n)
{
    ck_assert_mem_eq(s->out, s->want,
                     (size_t)n * TOP_K * HIDDEN * sizeof *s->out);
}

static bool is_near(const scene *s)
{
    return s->experts.is_near(s->experts.arg);
}

/* -- tests ---------------------------------------------------------------- */

START_TEST(rows_stay_on_the_device)
{
    static const int32_t sizes[] = {1, 2, 9, 130, ROWS_MAX};
    scene s;
    open_scene(&s);
    set_map(&s, 1, 1);
    for (int32_t i = 0; i < SHARDS; i++) start_shard(&s, i, ANSWERS, true);
    for (uint64_t step = 1; step <= 5; step++) {
        OK(compute(&s, step, sizes[step - 1], &err));
        ck_assert(is_near(&s));
        expect_result(&s, sizes[step - 1]);
    }
    ck_assert_int_eq(state_of(&s).n_near, SHARDS);
    ck_assert_int_eq(atomic_load(&s.shards[0].n_other), 0);
    ck_assert_int_gt(atomic_load(&s.shards[0].n_near), 5);
    close_scene(&s);
}
END_TEST

START_TEST(lanes_do_not_mix)
{
    enum { HALF = 600 };
    scene s;
    open_scene(&s);
    set_map(&s, 1, 2);
    for (int32_t i = 0; i < SHARDS; i++) start_shard(&s, i, ANSWERS, true);
    for (uint64_t step = 1; step <= 6; step++) {
        ck_assert_int_eq(begin(&s, step), WEFT_OK);
        const weft_experts_call a = call_of(&s, 0, 0, HALF);
        const weft_experts_call b = call_of(&s, 1, HALF, HALF);
        s.experts.dispatch(s.experts.arg, &a);
        s.experts.dispatch(s.experts.arg, &b);
        OK(s.experts.collect(s.experts.arg, step % 2 == 0 ? &a : &b, &err));
        OK(s.experts.collect(s.experts.arg, step % 2 == 0 ? &b : &a, &err));
        expect_result(&s, 2 * HALF);
    }
    close_scene(&s);
}
END_TEST

/* One peer without near rows: what it is asked goes through the host, for as
 * long as it is there, and what others are asked does not. */
START_TEST(each_peer_is_asked_its_own_way)
{
    scene s;
    open_scene(&s);
    set_map(&s, 1, 2);
    for (int32_t i = 0; i < SHARDS; i++) start_shard(&s, i, ANSWERS, i != 1);
    for (uint64_t step = 1; step <= 4; step++) {
        OK(compute(&s, step, 600, &err));
        ck_assert(!is_near(&s) && s.experts.on_device);
        expect_result(&s, 600);
    }
    for (int32_t i = 0; i < SHARDS; i++) {
        ck_assert((atomic_load(&s.shards[i].n_near) > 0) == (i != 1));
        ck_assert((atomic_load(&s.shards[i].n_other) > 0) == (i == 1));
    }
    ck_assert_int_eq(state_of(&s).n_near, SHARDS - 1);
    stop_shard(&s, 1);
    const uint64_t deadline = kit_deadline();
    for (uint64_t step = 5; !is_near(&s); step++) {
        ck_assert(weft_clock_now_ns() < deadline);
        OK(compute(&s, step, 50, &err));
        expect_result(&s, 50);
    }
    start_shard(&s, 1, ANSWERS, true);
    close_scene(&s);
}
END_TEST

/* Lost where its rows go through the host, and found again near. */
START_TEST(a_loss_of_either_kind_is_made_good)
{
    scene s;
    open_scene(&s);
    set_map(&s, 1, 2);
    for (int32_t i = 0; i < SHARDS; i++)
        start_shard(&s, i, i == 1 ? LEAVES_LATE : ANSWERS,
                    _i == 0 ? i != 1 : i == 1);
    OK(compute(&s, 1, 900, &err));
    expect_result(&s, 900);
    OK(compute(&s, 2, 77, &err));
    expect_result(&s, 77);
    ck_assert_uint_gt(state_of(&s).n_resent, 0);
    close_scene(&s);
}
END_TEST

/* In the middle of a step, whatever it had done by then: others are asked, near
 * as well. */
START_TEST(a_loss_in_a_near_step_is_made_good)
{
    scene s;
    open_scene(&s);
    set_map(&s, 1, 2);
    for (int32_t i = 0; i < SHARDS; i++)
        start_shard(&s, i, i == 1 ? (temper)_i : ANSWERS, true);
    OK(compute(&s, 1, 900, &err));
    ck_assert(is_near(&s));
    expect_result(&s, 900);
    OK(compute(&s, 2, 77, &err));
    ck_assert(is_near(&s));
    expect_result(&s, 77);
    const weft_exchange_state state = state_of(&s);
    ck_assert_uint_eq(state.n_fenced, 1);
    ck_assert_uint_gt(state.n_resent, 0);
    ck_assert_uint_eq(state.n_garbage, _i == MIXES_UP ? 1 : 0);
    ck_assert_int_eq(s.n_suspects, 1);
    close_scene(&s);
}
END_TEST

/* Nobody else has its experts: the step fails, and is computed again when they
 * are back, whichever way is open then. */
START_TEST(a_loss_without_another_owner_fails_the_step)
{
    scene s;
    weft_err told = {0};
    open_scene(&s);
    set_map(&s, 1, 1);
    for (int32_t i = 0; i < SHARDS; i++)
        start_shard(&s, i, i == 1 ? LEAVES_LATE : ANSWERS, true);
    ck_assert_int_eq(compute(&s, 1, 900, &told), WEFT_UNAVAILABLE);
    ck_assert_int_eq(compute(&s, 1, 900, &told), WEFT_UNAVAILABLE);
    stop_shard(&s, 1);
    start_shard(&s, 1, ANSWERS, _i == 0);
    OK(compute(&s, 1, 900, &err));
    ck_assert(is_near(&s) == (_i == 0));
    expect_result(&s, 900);
    close_scene(&s);
}
END_TEST

static void add(TCase *tests)
{
    tcase_add_test(tests, rows_stay_on_the_device);
    tcase_add_test(tests, lanes_do_not_mix);
    tcase_add_test(tests, each_peer_is_asked_its_own_way);
    tcase_add_loop_test(tests, a_loss_of_either_kind_is_made_good, 0, 2);
    tcase_add_loop_test(tests, a_loss_in_a_near_step_is_made_good, LEAVES,
                        MIXES_UP + 1);
    tcase_add_loop_test(tests, a_loss_without_another_owner_fails_the_step, 0,
                        2);
    tcase_set_timeout(tests, 120);
}

int main(void)
{
    return weft_suite_run_added("expert near", add);
}
