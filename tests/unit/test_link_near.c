/* The near side of links (shard/link/near.h): how two ends come to it, or stay
 * as they are, and rows, with comms that do what the test says. */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "node/base/rng.h"
#include "tests/support/expect.h"
#include "tests/support/link_frames.h"
#include "tests/support/near_kit.h"
#include "tests/support/suite.h"

/* -- rows ----------------------------------------------------------------- */

START_TEST(both_ends_become_near)
{
    near_kit_scene s;
    near_kit_scene_open(&s);
    ck_assert(!weft_link_is_near(s.a) && !weft_link_is_near(s.b));
    near_kit_settle(s.a, s.b);
    ck_assert(weft_link_is_near(s.a) && weft_link_is_near(s.b));
    ck_assert_int_eq(near_kit_n_comms(), 4);
    ck_assert_int_eq(weft_near_count(s.a_near), 1);
    ck_assert_int_eq(weft_near_count(s.b_near), 1);
    /* Its own frames are nobody's. */
    ck_assert_uint_eq(near_kit_stats(s.a).frames_sent, 0);
    ck_assert_uint_eq(near_kit_stats(s.b).frames_received, 0);
    near_kit_scene_close(&s);
}
END_TEST

START_TEST(rows_come_as_they_were)
{
    static const int32_t sizes[] = {1, 7, 8, 9, 33, 64};
    near_kit_scene s;
    uint64_t step = 1;
    near_kit_scene_open_near(&s);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int32_t width = 1; width <= NEAR_KIT_WIDTH_MAX;
             width += 33, step++) {
            weft_link *const from = step % 2 == 0 ? s.a : s.b;
            weft_link *const to = step % 2 == 0 ? s.b : s.a;
            OK(near_kit_send(from, step, sizes[i], width, step % 3 == 0, &err));
            ck_assert(weft_link_is_idle(from));
            const weft_frame got = kit_recv(to, from);
            near_kit_check(&got, step, sizes[i], width);
        }
    const weft_link_stats a = near_kit_stats(s.a), b = near_kit_stats(s.b);
    ck_assert_uint_eq(a.near_sent + b.near_sent, step - 1);
    ck_assert_uint_eq(a.near_received, b.near_sent);
    ck_assert_uint_eq(b.near_received, a.near_sent);
    ck_assert_uint_eq(a.frames_sent, a.near_sent);
    near_kit_scene_close(&s);
}
END_TEST

/* Frames of both ways in one order, in which they were sent. */
START_TEST(near_and_other_frames_keep_their_order)
{
    near_kit_scene s;
    near_kit_scene_open_near(&s);
    for (uint64_t lap = 0; lap < 20; lap++) {
        kit_frame other = kit_build(2 * lap + 2, 100, 3, 52, true);
        OK(near_kit_send(s.a, 2 * lap + 1, 5, 9, false, &err));
        OK(weft_link_send(s.a, &other.frame, other.rows, &err));
        weft_frame got = kit_recv(s.b, s.a);
        near_kit_check(&got, 2 * lap + 1, 5, 9);
        got = kit_recv(s.b, s.a);
        kit_check(&got, &other.frame);
        kit_drop(&other);
    }
    near_kit_scene_close(&s);
}
END_TEST

typedef struct flow {
    weft_link *link;
    uint64_t sent, came, refused;
} flow;

/* Sends of random sizes until refused, or takes some; sizes follow from the
 * number of the frame. */
static int32_t size_of(uint64_t step)
{
    return (int32_t)(1 + step * 7919 % NEAR_KIT_ROWS_MAX);
}

static int32_t width_of(uint64_t step)
{
    return (int32_t)(1 + step * 31 % NEAR_KIT_WIDTH_MAX);
}

static void pour(flow *f, uint64_t n_max)
{
    weft_err told = {0};
    while (f->sent < n_max) {
        const weft_status st =
            near_kit_send(f->link, f->sent + 1, size_of(f->sent + 1),
                          width_of(f->sent + 1), false, &told);
        ck_assert_msg(st == WEFT_OK || st == WEFT_RESOURCE_EXHAUSTED, "%s",
                      told.text);
        if (st == WEFT_OK) {
            f->sent++;
            continue;
        }
        ck_assert_str_eq(told.text, "");
        f->refused++;
        return;
    }
}

static void drink(flow *f, int32_t n)
{
    weft_frame got;
    bool is = false;
    for (int32_t i = 0; i < n; i++) {
        OK(weft_link_recv(f->link, &got, &is, &err));
        if (!is) continue;
        f->came++;
        near_kit_check(&got, f->came, size_of(f->came), width_of(f->came));
    }
}

/* Both ways as fast as rings allow, in turns of random length: nothing is lost,
 * overtaken or overwritten, and nobody waits for ever. */
START_TEST(full_rings_refuse_and_go_on)
{
    enum { FRAMES = 400 };
    near_kit_scene s;
    uint64_t drawn = 0;
    near_kit_scene_open_near(&s);
    flow flows[2] = {{.link = s.a}, {.link = s.b}};
    const uint64_t deadline = kit_deadline();
    while (flows[0].came < FRAMES || flows[1].came < FRAMES) {
        flow *const f = &flows[weft_rng_u64(7, drawn++) % 2];
        if (weft_rng_u64(7, drawn++) % 2 == 0)
            pour(f, FRAMES);
        else
            drink(f, (int32_t)(weft_rng_u64(7, drawn++) % 9));
        ck_assert(weft_clock_now_ns() < deadline);
    }
    ck_assert_uint_gt(flows[0].refused, 10);
    ck_assert_uint_gt(flows[1].refused, 10);
    near_kit_scene_close(&s);
}
END_TEST

/* A poller wakes its owner for room in the ring, and for rows, of which no
 * descriptor tells. */
START_TEST(a_poller_sees_rows_and_room)
{
    near_kit_scene s;
    weft_poller *poller = NULL;
    weft_frame got;
    bool is = false;
    near_kit_scene_open_near(&s);
    OK(weft_poller_create(&poller, &err));
    OK(weft_poller_add(poller, s.b, &err));
    near_kit_script_of(0)->holds = true;
    OK(near_kit_send(s.a, 1, 3, 5, false, &err));
    const uint64_t deadline = kit_deadline();
    while (!s.b->near->held) OK(weft_link_recv(s.b, &got, &is, &err));
    near_kit_script_of(0)->holds = false;
    while (!is) {
        weft_poller_wait(poller, deadline, 0);
        OK(weft_link_recv(s.b, &got, &is, &err));
        ck_assert(weft_clock_now_ns() < deadline);
    }
    near_kit_check(&got, 1, 3, 5);
    weft_poller_remove(poller, s.b);
    OK(weft_poller_add(poller, s.a, &err));
    flow f = {.link = s.a, .sent = 1};
    pour(&f, 1000);
    ck_assert_uint_eq(f.refused, 1);
    flow there = {.link = s.b, .came = 1};
    while (there.came < 2) drink(&there, 1);
    weft_poller_wait(poller, deadline, 0);
    ck_assert(weft_clock_now_ns() < deadline);
    weft_poller_remove(poller, s.a);
    weft_poller_destroy(poller);
    near_kit_scene_close(&s);
}
END_TEST

START_TEST(rows_beyond_the_terms_are_refused)
{
    static const struct {
        int32_t n_rows;
        uint32_t row_bytes;
    } bad[] = {{0, 8}, {-1, 8}, {65, 8}, {1, 0}, {1, 404}, {1, 6}};
    static float x[8];
    const weft_near_rows rows = {.x = x};
    near_kit_scene s;
    near_kit_scene_open_near(&s);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        weft_err told = {0};
        weft_frame frame = near_kit_frame(1, 1, 1);
        frame.n_rows = bad[i].n_rows;
        frame.row_bytes = bad[i].row_bytes;
        ck_assert_int_eq(weft_link_send_near(s.a, &frame, &rows, &told),
                         WEFT_INVALID_ARGUMENT);
    }
    weft_err told = {0};
    weft_frame frame = {.type = WEFT_FRAME_PLAN, .is_near = true};
    ck_assert_int_eq(weft_link_send(s.a, &frame, NULL, &told),
                     WEFT_INVALID_ARGUMENT);
    OK(near_kit_send(s.a, 1, 1, 1, false, &err));
    const weft_frame got = kit_recv(s.b, s.a);
    near_kit_check(&got, 1, 1, 1);
    near_kit_scene_close(&s);
}
END_TEST

/* -- a link that stays what it was ---------------------------------------- */

static void expect_stream_works(const near_kit_scene *s)
{
    kit_frame it = kit_build(3, 100, 2, 52, false);
    OK(weft_link_send(s->a, &it.frame, it.rows, &err));
    weft_frame got = kit_recv(s->b, s->a);
    kit_check(&got, &it.frame);
    OK(weft_link_send(s->b, &it.frame, it.rows, &err));
    got = kit_recv(s->a, s->b);
    kit_check(&got, &it.frame);
    kit_drop(&it);
}

static void expect_stays(near_kit_scene *s)
{
    weft_err told = {0};
    near_kit_settle(s->a, s->b);
    ck_assert(!weft_link_is_near(s->a) && !weft_link_is_near(s->b));
    ck_assert_int_eq(near_kit_n_comms(), 0);
    if (s->a->near != NULL)
        ck_assert_uint_eq(near_kit_stats(s->a).near_failed, 1);
    ck_assert_int_eq(near_kit_send(s->a, 1, 1, 1, false, &told),
                     WEFT_FAILED_PRECONDITION);
    expect_stream_works(s);
    near_kit_scene_close(s);
}

START_TEST(who_has_no_device_declines)
{
    near_kit_scene s = {0};
    near_kit_reset();
    s.a_near = near_kit_create(0, 1);
    near_kit_open(KIT_TCP, s.a_near, NULL, &s.a, &s.b);
    near_kit_settle(s.a, s.b);
    expect_stays(&s);
    /* And the other way nothing is offered. */
    s.a_near = NULL;
    s.b_near = near_kit_create(1, 1);
    near_kit_open(KIT_TCP, NULL, s.b_near, &s.a, &s.b);
    expect_stream_works(&s);
    ck_assert(!weft_link_is_near(s.b));
    near_kit_scene_close(&s);
}
END_TEST

START_TEST(other_versions_of_nccl_decline)
{
    near_kit_scene s;
    near_kit_scene_open(&s);
    near_kit_set_version(1, 22704);
    expect_stays(&s);
}
END_TEST

START_TEST(what_cannot_begin_stays)
{
    near_kit_scene s;
    near_kit_scene_open(&s);
    switch (_i) {
    case 0: near_kit_script_of(0)->no_id = true; break;
    case 1: near_kit_script_of(0)->no_begin = true; break;
    case 2: near_kit_script_of(1)->no_begin = true; break;
    case 3: near_kit_script_of(0)->breaks = true; break;
    default: near_kit_script_of(1)->breaks = true; break;
    }
    if (_i == 0) { /* nothing is offered, so the other end waits */
        weft_frame got;
        bool is = false;
        OK(weft_link_recv(s.a, &got, &is, &err));
        ck_assert_uint_eq(near_kit_stats(s.a).near_failed, 1);
        expect_stream_works(&s);
        near_kit_scene_close(&s);
        return;
    }
    expect_stays(&s);
}
END_TEST

/* Neither end, or one of them, gets ready in time. */
START_TEST(who_is_late_stays)
{
    near_kit_scene s;
    near_kit_reset();
    near_kit_script_of(_i % 2)->pends = _i < 4;
    near_kit_script_of(1 - _i % 2)->pends = _i < 2;
    near_kit_script_of(_i % 2)->out_pends = _i >= 4;
    weft_near_options options = {.in = near_kit_limits(),
                                 .out = near_kit_limits(),
                                 .links_max = 1,
                                 .ready_ns = 20000000};
    options.memory = near_kit_memory(0);
    OK(weft_near_create(&options, &s.a_near, &err));
    options.memory = near_kit_memory(1);
    OK(weft_near_create(&options, &s.b_near, &err));
    near_kit_open(KIT_TCP, s.a_near, s.b_near, &s.a, &s.b);
    expect_stays(&s);
}
END_TEST

START_TEST(more_links_than_memory_stay)
{
    near_kit_scene s;
    weft_link *c = NULL;
    weft_link *d = NULL;
    near_kit_scene_open_near(&s);
    near_kit_open(KIT_TCP, s.a_near, s.b_near, &c, &d);
    weft_frame got;
    bool is = false;
    OK(weft_link_recv(c, &got, &is, &err));
    ck_assert_uint_eq(near_kit_stats(c).near_failed, 1);
    weft_link_close(c);
    weft_link_close(d);
    /* The place of one that has ended is another's. */
    weft_link_close(s.a);
    weft_link_close(s.b);
    near_kit_open(KIT_TCP, s.a_near, s.b_near, &s.a, &s.b);
    near_kit_settle(s.a, s.b);
    ck_assert(weft_link_is_near(s.a) && weft_link_is_near(s.b));
    OK(near_kit_send(s.a, 1, 9, 9, true, &err));
    got = kit_recv(s.b, s.a);
    near_kit_check(&got, 1, 9, 9);
    near_kit_scene_close(&s);
}
END_TEST

START_TEST(no_near_rows_without_their_needs)
{
    weft_near *near = NULL;
    weft_err told = {0};
    near_kit_reset();
    const weft_memory host = {.api = NULL};
    weft_near_options options = {.memory = &host,
                                 .in = near_kit_limits(),
                                 .out = near_kit_limits(),
                                 .links_max = 3};
    ck_assert_int_eq(weft_near_create(&options, &near, &told),
                     WEFT_UNAVAILABLE);
    options.memory = near_kit_memory(0);
    near_kit_set_version(0, 0);
    ck_assert_int_eq(weft_near_create(&options, &near, &told),
                     WEFT_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(told.text, "no NCCL on this device"));
    near_kit_reset();
    near_kit_script_of(0)->no_memory = true;
    ck_assert_int_eq(weft_near_create(&options, &near, &told),
                     WEFT_RESOURCE_EXHAUSTED);
    /* 64 rows of 400 bytes, two out and one in, in blocks of 256. */
    ck_assert_int_eq(weft_near_link_bytes(&options), INT64_C(3) * 64 * 400);
    ck_assert_ptr_null(near);
}
END_TEST

static void add(TCase *tests)
{
    tcase_add_test(tests, both_ends_become_near);
    tcase_add_test(tests, rows_come_as_they_were);
    tcase_add_test(tests, near_and_other_frames_keep_their_order);
    tcase_add_test(tests, full_rings_refuse_and_go_on);
    tcase_add_test(tests, a_poller_sees_rows_and_room);
    tcase_add_test(tests, rows_beyond_the_terms_are_refused);
    tcase_add_test(tests, who_has_no_device_declines);
    tcase_add_test(tests, other_versions_of_nccl_decline);
    tcase_add_loop_test(tests, what_cannot_begin_stays, 0, 5);
    tcase_add_loop_test(tests, who_is_late_stays, 0, 6);
    tcase_add_test(tests, more_links_than_memory_stay);
    tcase_add_test(tests, no_near_rows_without_their_needs);
    tcase_set_timeout(tests, 120);
}

int main(void)
{
    return weft_suite_run_added("link_near", add);
}
