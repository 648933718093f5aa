/* What a serving process tells of its health, and of its load. */
#include <stdio.h>
#include <string.h>

#include "node/app/gauges.h"
#include "node/base/clock.h"
#include "tests/support/desk.h"
#include "tests/support/suite.h"

static const uint64_t START_NS = UINT64_C(5000000000);

START_TEST(a_step_that_takes_long_hangs)
{
    const weft_engine_load load = {.last_progress_ns = START_NS};
    const uint64_t last_ns = START_NS + WEFT_STEP_HANGS_NS;
    ck_assert(!weft_view_step_hangs(&load, last_ns));
    ck_assert(weft_view_step_hangs(&load, last_ns + 1));
    /* The clock was read before the snapshot was. */
    ck_assert(!weft_view_step_hangs(&load, START_NS - 1));
}
END_TEST

/* An engine that was idle publishes nothing before its first step is done. */
START_TEST(the_first_step_after_an_idle_turn_hangs_too)
{
    const weft_engine_load load = {.last_progress_ns = START_NS, .idle = true};
    ck_assert(!weft_view_step_hangs(&load, START_NS + WEFT_STEP_HANGS_NS));
    ck_assert(weft_view_step_hangs(&load, START_NS + WEFT_STEP_HANGS_NS + 1));
}
END_TEST

/* -- over a router whose lead has no room, and an engine ----------------- */

enum { WAITING = 2, PROMPT = 9, NEW = 200 };

static desk *engine_desk;
static weft_router *router;
static weft_gauges *gauges;
static weft_engine_view own;
static weft_view view;
static weft_http_ops http;

static weft_status no_room(void *arg, const weft_job *job)
{
    (void)arg;
    (void)job;
    return WEFT_RESOURCE_EXHAUSTED;
}

static void open_all(void)
{
    const weft_router_options options = {
        .max_seqs = 1,
        .max_queue = WAITING,
        .limits = {.vocab_size = DESK_VOCAB,
                   .max_context = 256,
                   .temperature = 1.0F,
                   .top_p = 1.0F,
                   .repetition_penalty = 1.0F},
        .memory_bytes_max = 1 << 30,
    };
    engine_desk = desk_open((weft_engine_options){0});
    ck_assert_int_eq(weft_router_create(&options, &router, NULL), WEFT_OK);
    ck_assert_int_eq(
        weft_router_start(router, (weft_lead){.submit = no_room}, NULL),
        WEFT_OK);
    ck_assert_int_eq(weft_gauges_create(&gauges, NULL), WEFT_OK);
    own.engine = engine_desk->engine;
    view = weft_engine_view_of(&own);
    weft_gauges_set_sources(gauges, router, &view);
    http = weft_gauges_http_ops(gauges);
}

static void close_all(void)
{
    desk_close(engine_desk);
    weft_router_destroy(router);
    weft_gauges_destroy(gauges);
}

static void ck_answer(weft_http_fn ask, int code, const char *wanted)
{
    weft_buf body = {0};
    ck_assert_int_eq(ask(http.arg, &body), code);
    ck_assert_str_eq(body.data, wanted);
    weft_buf_deinit(&body);
}

static void ck_metric(const char *name, int64_t value)
{
    char line[128];
    weft_buf body = {0};
    ck_assert_int_eq(weft_buf_printf(&body, NULL, "\n"), WEFT_OK);
    ck_assert_int_eq(http.metrics(http.arg, &body), 200);
    (void)snprintf(line, sizeof line, "\n%s %lld\n", name, (long long)value);
    ck_assert_msg(strstr(body.data, line) != NULL, "no line%s", line);
    weft_buf_deinit(&body);
}

static uint64_t a_step_too_late(void)
{
    weft_engine_load load;
    weft_engine_get_load(engine_desk->engine, &load);
    return load.last_progress_ns + WEFT_STEP_HANGS_NS + 1;
}

START_TEST(health_follows_the_life_of_the_process)
{
    open_all();
    desk_start(engine_desk);
    ck_answer(http.readyz, 503, "starting\n");
    ck_answer(http.healthz, 200, "ok\n");
    weft_gauges_set_started(gauges);
    ck_answer(http.readyz, 200, "ok\n");
    weft_router_drain(router);
    ck_answer(http.readyz, 503, "draining\n");
    ck_answer(http.healthz, 200, "ok\n");
    close_all();
}
END_TEST

START_TEST(a_step_that_hangs_is_told)
{
    open_all();
    weft_gauges_set_started(gauges);
    weft_gauges_set_clock(gauges, a_step_too_late);
    ck_answer(http.healthz, 503, "a step hangs\n");
    ck_answer(http.readyz, 503, "a step hangs\n");
    close_all();
}
END_TEST

START_TEST(what_comes_is_counted)
{
    open_all();
    const weft_watch watch = weft_gauges_watch(gauges);
    watch.tokens(watch.arg, 7, 1);
    watch.tokens(watch.arg, 0, 1);
    watch.preempted(watch.arg);
    watch.queued(watch.arg, 1);
    for (int i = 0; i < 2; i++) watch.first_token(watch.arg, 1);
    for (int i = 0; i < 3; i++) watch.between_tokens(watch.arg, 1);
    for (int i = 0; i < 4; i++) weft_gauges_count_step(gauges, 1, 5);
    weft_gauges_count_end(gauges, WEFT_CANCELLED);
    ck_metric("weft_tokens_total{kind=\"prompt\"}", 7);
    ck_metric("weft_tokens_total{kind=\"generated\"}", 2);
    ck_metric("weft_preemptions_total", 1);
    ck_metric("weft_queue_seconds_count", 1);
    ck_metric("weft_time_to_first_token_seconds_count", 2);
    ck_metric("weft_time_between_tokens_seconds_count", 3);
    ck_metric("weft_step_seconds_count", 4);
    ck_metric("weft_requests_total{code=\"CANCELLED\"}", 1);
    ck_metric("weft_members{role=\"layers\"}", 1);
    ck_metric("weft_members{role=\"experts\"}", 1);
    ck_metric("weft_members{role=\"router\"}", 1);
    close_all();
}
END_TEST

static void nobody_hears(void *arg, weft_status status, const char *text,
                         int32_t retry_after_ms)
{
    (void)arg;
    (void)status;
    (void)text;
    (void)retry_after_ms;
}

START_TEST(requests_that_wait_are_asked_for)
{
    static const uint32_t ids[] = {1, 2, 3};
    static const weft_client_ops client = {.fail = nobody_hears};
    const weft_request request = {
        .has_ids = true, .ids = ids, .n_ids = 3, .deadline_ns = UINT64_MAX};
    open_all();
    for (int i = 0; i < WAITING; i++) {
        uint64_t handle;
        int32_t retry_after_ms;
        ck_metric("weft_requests_waiting", i);
        ck_assert_int_eq(weft_router_generate(router, &request, &client, NULL,
                                              &handle, &retry_after_ms, NULL),
                         WEFT_OK);
    }
    ck_metric("weft_requests_waiting", WAITING);
    ck_metric("weft_requests_running", 0);
    close_all();
}
END_TEST

/* Each kind's bytes, in pages of the pool: used ones, and those that are free
 * or in slabs that are. */
static void ck_kv(const weft_kv_stats *kv)
{
    const weft_kv_layout *const layout =
        weft_engine_layout(engine_desk->engine);
    const int64_t index = layout->index_token_bytes * layout->page_tokens;
    int64_t free_pages[WEFT_KINDS];
    for (int32_t k = 0; k < WEFT_KINDS; k++)
        free_pages[k] =
            kv->pages_free[k] + kv->slabs_free * layout->slab_pages[k];
    ck_metric("weft_kv_total_bytes", kv->total_bytes);
    ck_metric("weft_kv_bytes{kind=\"full\",state=\"used\"}",
              kv->used_bytes[WEFT_FULL]);
    ck_metric("weft_kv_bytes{kind=\"window\",state=\"used\"}",
              kv->used_bytes[WEFT_WINDOW]);
    ck_metric("weft_kv_bytes{kind=\"index\",state=\"used\"}",
              kv->index_used_bytes);
    ck_metric("weft_kv_bytes{kind=\"full\",state=\"free\"}",
              free_pages[WEFT_FULL] * (layout->page_bytes[WEFT_FULL] - index));
    ck_metric("weft_kv_bytes{kind=\"window\",state=\"free\"}",
              free_pages[WEFT_WINDOW] * layout->page_bytes[WEFT_WINDOW]);
    ck_metric("weft_kv_bytes{kind=\"index\",state=\"free\"}",
              free_pages[WEFT_FULL] * index);
    ck_metric("weft_kv_bytes{kind=\"full\",state=\"cached\"}", 0);
}

START_TEST(kv_bytes_are_those_of_the_pool)
{
    weft_engine_load load;
    open_all();
    desk_start(engine_desk);
    desk_expect_idle(engine_desk);
    weft_engine_get_load(engine_desk->engine, &load);
    ck_assert_int_gt(load.kv.total_bytes, 0);
    ck_kv(&load.kv);
    /* The sink is full before the job is done, so that it stays where it is. */
    (void)desk_job(engine_desk, 1, PROMPT, NEW, 1);
    desk_submit(engine_desk, 1);
    const uint64_t until_ns = weft_clock_now_ns() + UINT64_C(20000000000);
    do {
        ck_assert_uint_lt(weft_clock_now_ns(), until_ns);
    } while (atomic_load(&engine_desk->n_refused) < 3);
    weft_engine_get_load(engine_desk->engine, &load);
    ck_assert_int_gt(load.kv.used_bytes[WEFT_FULL], 0);
    ck_assert_int_gt(load.kv.used_bytes[WEFT_WINDOW], 0);
    ck_assert_int_gt(load.kv.index_used_bytes, 0);
    ck_kv(&load.kv);
    close_all();
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {a_step_that_takes_long_hangs,
                                  the_first_step_after_an_idle_turn_hangs_too,
                                  health_follows_the_life_of_the_process,
                                  a_step_that_hangs_is_told,
                                  what_comes_is_counted,
                                  requests_that_wait_are_asked_for,
                                  kv_bytes_are_those_of_the_pool};
    return WEFT_SUITE_RUN("app/gauges", tests);
}
