/* What breaks a link with near rows (shard/link/near.h), and what is said of
 * them out of place. */
#include <stdio.h>
#include <string.h>

#include "node/base/clock.h"
#include "tests/support/expect.h"
#include "tests/support/near_kit.h"
#include "tests/support/suite.h"

static void expect_broken(weft_link *link, const char *why)
{
    const char *const told = kit_recv_broken(link);
    ck_assert_msg(strstr(told, why) != NULL, "%s, and not %s", told, why);
    ck_assert(!weft_link_is_near(link));
    weft_err err = {0};
    ck_assert_int_eq(near_kit_send(link, 1, 1, 1, false, &err),
                     WEFT_UNAVAILABLE);
}

static void hold_header(near_kit_scene *s)
{
    weft_frame got;
    bool is = false;
    const uint64_t deadline = kit_deadline();
    while (!s->b->near->held) {
        OK(weft_link_recv(s->b, &got, &is, &err));
        ck_assert(!is && weft_clock_now_ns() < deadline);
    }
}

/* Rows that are not there: no frame; and what an abort makes of them is none
 * either. */
START_TEST(a_frame_waits_for_its_rows)
{
    near_kit_scene s;
    weft_frame got;
    bool is = false;
    near_kit_scene_open_near(&s);
    near_kit_script_of(0)->holds = true;
    OK(near_kit_send(s.a, 1, 3, 5, false, &err));
    hold_header(&s);
    for (int32_t i = 0; i < 100; i++) {
        OK(weft_link_recv(s.b, &got, &is, &err));
        ck_assert(!is);
    }
    if (_i == 0) {
        near_kit_script_of(0)->holds = false;
        got = kit_recv(s.b, s.a);
        near_kit_check(&got, 1, 3, 5);
    } else {
        s.b->near->api->abort(s.b->near->in);
        expect_broken(s.b, "its near rows: comm broken as was said");
    }
    near_kit_scene_close(&s);
}
END_TEST

START_TEST(rows_that_stay_away_break)
{
    near_kit_scene s;
    weft_err told = {0};
    near_kit_scene_open_near(&s);
    near_kit_script_of(0)->holds = true;
    OK(near_kit_send(s.a, 1, 3, 5, false, &err));
    hold_header(&s);
    const uint64_t now = weft_clock_now_ns(), s_ns = UINT64_C(1000000000);
    OK(weft_link_judge(s.b, now + 29 * s_ns, now, &err));
    /* Time in which nobody looked does not count. */
    OK(weft_link_judge(s.b, now + 60 * s_ns, now + 40 * s_ns, &err));
    ck_assert_int_eq(weft_link_judge(s.b, now + 31 * s_ns, 0, &told),
                     WEFT_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(
        told.text, "the rows of a frame \"dispatch\" were not there after 3"));
    /* Both of its comms, at once. */
    ck_assert_int_eq(near_kit_n_aborted(), 2);
    /* And who sent them waits longer, but not for ever. */
    OK(weft_link_judge(s.a, now + 119 * s_ns, now, &err));
    ck_assert_int_eq(weft_link_judge(s.a, now + 125 * s_ns, 0, &told),
                     WEFT_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(told.text, "took no near rows for 12"));
    near_kit_scene_close(&s);
}
END_TEST

/* Pulses that come while a frame waits for its rows are heard; silence is
 * silence. */
START_TEST(pulses_are_heard_while_rows_are_awaited)
{
    near_kit_scene s;
    weft_err told = {0};
    weft_frame got;
    bool is = false;
    near_kit_scene_open_near(&s);
    s.b->options.silence_ns = 700000000;
    near_kit_script_of(0)->holds = true;
    OK(near_kit_send(s.a, 1, 3, 5, false, &err));
    hold_header(&s);
    const uint64_t before = near_kit_stats(s.b).last_heard_ns;
    const uint64_t deadline = kit_deadline();
    weft_link_pulse(s.a, 7);
    while (near_kit_stats(s.b).last_heard_ns == before) {
        OK(weft_link_recv(s.b, &got, &is, &err));
        ck_assert(!is && weft_clock_now_ns() < deadline);
    }
    const uint64_t heard = near_kit_stats(s.b).last_heard_ns;
    for (int32_t i = 0; i < 3; i++) OK(weft_link_recv(s.b, &got, &is, &err));
    ck_assert_uint_eq(near_kit_stats(s.b).last_heard_ns, heard);
    OK(weft_link_judge(s.b, heard + 600000000, 0, &err));
    ck_assert_int_eq(weft_link_judge(s.b, heard + 800000000, 0, &told),
                     WEFT_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(told.text, "silent"));
    near_kit_scene_close(&s);
}
END_TEST

START_TEST(a_peer_that_goes_takes_its_rows_along)
{
    near_kit_scene s;
    near_kit_scene_open_near(&s);
    near_kit_script_of(0)->holds = true;
    OK(near_kit_send(s.a, 1, 3, 5, false, &err));
    if (_i == 0) hold_header(&s);
    weft_link_close(s.a);
    s.a = NULL;
    expect_broken(s.b, "closed by the other end before the rows");
    near_kit_scene_close(&s);
}
END_TEST

START_TEST(a_broken_comm_breaks_its_link)
{
    near_kit_scene s;
    weft_err told = {0};
    near_kit_scene_open_near(&s);
    switch (_i) {
    case 0: /* a look tells */
        near_kit_script_of(1)->breaks = true;
        ck_assert_int_eq(weft_link_judge(s.b, weft_clock_now_ns(), 0, &told),
                         WEFT_UNAVAILABLE);
        break;
    case 1: /* sending does */
        near_kit_script_of(1)->no_send = true;
        ck_assert_int_eq(near_kit_send(s.b, 1, 2, 3, false, &told),
                         WEFT_UNAVAILABLE);
        break;
    default: /* receiving does */
        near_kit_script_of(1)->no_recv = true;
        OK(near_kit_send(s.a, 1, 2, 3, false, &err));
        (void)kit_recv_broken(s.b);
        break;
    }
    expect_broken(s.b, "comm");
    ck_assert_int_eq(near_kit_n_aborted(), 2);
    ck_assert_int_eq(weft_near_count(s.b_near), 0);
    ck_assert_int_eq(weft_near_count(s.a_near), 1);
    weft_link_close(s.b);
    s.b = NULL;
    (void)kit_recv_broken(s.a);
    near_kit_scene_close(&s);
}
END_TEST

/* -- what is said --------------------------------------------------------- */

START_TEST(what_is_said_comes_back)
{
    for (int32_t what = WEFT_SAY_OFFER; what <= WEFT_SAY_FAIL; what++) {
        unsigned char body[WEFT_NEAR_BODY_BYTES_MAX + 1] = {0};
        weft_near_said said = {.say = (weft_near_say)what};
        weft_near_said got;
        const bool terms = what <= WEFT_SAY_AGREE;
        const bool why = what == WEFT_SAY_DECLINE || what == WEFT_SAY_FAIL;
        if (terms) said.version = 23203, said.rows_max = 64, said.row_bytes = 8;
        if (what == WEFT_SAY_OFFER) memset(said.ids, 0x5a, sizeof said.ids);
        if (why) (void)snprintf(said.why, sizeof said.why, "as it is");
        const size_t n = weft_near_encode(&said, body);
        weft_frame frame = {
            .type = WEFT_FRAME_COMM, .body = body, .body_bytes = n};
        OK(weft_near_decode(&frame, &got, &err));
        ck_assert_int_eq(got.say, said.say);
        ck_assert_uint_eq(got.version, said.version);
        ck_assert_uint_eq(got.rows_max, said.rows_max);
        ck_assert_uint_eq(got.row_bytes, said.row_bytes);
        ck_assert(memcmp(got.ids, said.ids, sizeof got.ids) == 0);
        ck_assert_str_eq(got.why, said.why);
        /* Cut, or with more behind: but of a text that is another text. */
        for (size_t cut = 0; cut <= n + 1; cut++) {
            frame.body_bytes = cut;
            if (cut == n || (why && cut >= 4)) continue;
            ck_assert_int_eq(weft_near_decode(&frame, &got, NULL),
                             WEFT_INVALID_ARGUMENT);
        }
        frame.body_bytes = n;
        frame.n_rows = 1;
        ck_assert_int_eq(weft_near_decode(&frame, &got, NULL),
                         WEFT_INVALID_ARGUMENT);
    }
}
END_TEST

static void say_to(weft_link *from, weft_near_say what)
{
    unsigned char body[WEFT_NEAR_BODY_BYTES_MAX];
    const weft_near_said said = {.say = what};
    const weft_frame frame = {.type = WEFT_FRAME_COMM,
                              .body = body,
                              .body_bytes = weft_near_encode(&said, body)};
    OK(weft_link_send(from, &frame, NULL, &err));
}

/* To who answers and waits for an offer, and to who is near: all out of place
 * but the offer there. */
START_TEST(what_is_out_of_place_breaks)
{
    const weft_near_say what = (weft_near_say)(WEFT_SAY_OFFER + _i % 5);
    const bool near = _i >= 5;
    near_kit_scene s;
    if (near) {
        near_kit_scene_open_near(&s);
    } else {
        near_kit_reset();
        s.a_near = NULL;
        s.b_near = near_kit_create(1, 1);
        near_kit_open(KIT_TCP, NULL, s.b_near, &s.a, &s.b);
    }
    if (near || what != WEFT_SAY_OFFER) {
        say_to(s.a, what);
        expect_broken(s.b, "of near rows out of place");
    }
    near_kit_scene_close(&s);
}
END_TEST

START_TEST(near_frames_on_other_links_break)
{
    unsigned char bytes[WEFT_FRAME_HEADER_BYTES];
    const weft_link_options options = kit_options();
    kit_raw raw;
    weft_link *const link = kit_open_raw(KIT_TCP, &options, &raw);
    weft_frame frame = near_kit_frame(1, 2, 3);
    frame.body_bytes = 0;
    frame.is_near = true;
    weft_frame_encode(&frame, 0, bytes);
    kit_raw_write(&raw, bytes, sizeof bytes);
    const char *const told = kit_recv_broken(link);
    ck_assert_ptr_nonnull(strstr(told, "near rows on a link that has none"));
    kit_raw_close(&raw, false);
    weft_link_close(link);
}
END_TEST

/* One end was ready, and the other has given up: it has no near rows to send,
 * and what comes as such has no place. */
START_TEST(near_frames_after_giving_up_break)
{
    near_kit_scene s;
    near_kit_reset();
    near_kit_script_of(0)->pends = true;
    weft_near_options options = {.memory = near_kit_memory(0),
                                 .in = near_kit_limits(),
                                 .out = near_kit_limits(),
                                 .links_max = 1,
                                 .ready_ns = 20000000};
    OK(weft_near_create(&options, &s.a_near, &err));
    s.b_near = near_kit_create(1, 1);
    near_kit_open(KIT_TCP, s.a_near, s.b_near, &s.a, &s.b);
    near_kit_settle(s.a, s.b);
    ck_assert_uint_eq(near_kit_stats(s.b).near_failed, 1);
    weft_frame frame = near_kit_frame(1, 2, 3);
    frame.is_near = true;
    OK(weft_link_send_checked(s.a, &frame, NULL, &err));
    expect_broken(s.b, "near rows on a link that has none");
    near_kit_scene_close(&s);
}
END_TEST

static void add(TCase *tests)
{
    tcase_add_loop_test(tests, a_frame_waits_for_its_rows, 0, 2);
    tcase_add_test(tests, rows_that_stay_away_break);
    tcase_add_test(tests, pulses_are_heard_while_rows_are_awaited);
    tcase_add_loop_test(tests, a_peer_that_goes_takes_its_rows_along, 0, 2);
    tcase_add_loop_test(tests, a_broken_comm_breaks_its_link, 0, 3);
    tcase_add_test(tests, what_is_said_comes_back);
    tcase_add_loop_test(tests, what_is_out_of_place_breaks, 0, 10);
    tcase_add_test(tests, near_frames_on_other_links_break);
    tcase_add_test(tests, near_frames_after_giving_up_break);
    tcase_set_timeout(tests, 120);
}

int main(void)
{
    return weft_suite_run_added("link_near_breaks", add);
}
