/* What link.h promises, held against every transport: turn 0 is local, 1 plain
 * TCP, 2 TLS. Tests that write bytes themselves have no turn 0. */
#include <stdio.h>
#include <string.h>

#include "node/base/clock.h"
#include "tests/support/expect.h"
#include "tests/support/link_frames.h"
#include "tests/support/link_kit.h"

#define MS UINT64_C(1000000)

enum { SECOND_FRAME_BODY = 37, STREAM_BYTES = 4096 };

/* -- order, whole_or_none ------------------------------------------------- */

START_TEST(order)
{
    enum { FRAMES = 400, AHEAD = 20 };
    weft_link *a = NULL;
    weft_link *b = NULL;
    kit_frame there[AHEAD];
    kit_frame back[AHEAD];
    kit_open_pair((kit_transport)_i, &a, &b);
    for (uint64_t step = 0; step < FRAMES; step += AHEAD) {
        for (size_t i = 0; i < AHEAD; i++) {
            const uint64_t name = step + i;
            there[i] = kit_build(name, name * 37 % 1500, (int32_t)(name % 4),
                                 52, name % 2 == 0);
            back[i] = kit_build(name, name % 3, 0, 0, false);
            OK(weft_link_send(a, &there[i].frame, there[i].rows, &err));
            OK(weft_link_send(b, &back[i].frame, NULL, &err));
        }
        for (size_t i = 0; i < AHEAD; i++) {
            const weft_frame at_b = kit_recv(b, NULL);
            kit_check(&at_b, &there[i].frame);
            const weft_frame at_a = kit_recv(a, NULL);
            kit_check(&at_a, &back[i].frame);
            kit_drop(&there[i]);
            kit_drop(&back[i]);
        }
    }
    weft_link_stats stats;
    weft_link_get_stats(a, &stats);
    ck_assert_uint_eq(stats.frames_sent, FRAMES);
    ck_assert_uint_eq(stats.frames_received, FRAMES);
    const uint64_t bytes_sent = stats.bytes_sent;
    weft_link_get_stats(b, &stats);
    ck_assert_uint_eq(stats.bytes_received, bytes_sent);
    kit_close_pair(a, b);
}
END_TEST

/* Sizes on both sides of what a read, a TLS record, a page and the buffers
 * hold, whatever came before. */
START_TEST(whole_or_none)
{
    static const size_t bodies[] = {0, 1, 63, 64, 65, 4000, 70000, 1 << 20};
    static const struct {
        int32_t n;
        uint32_t bytes;
    } rows[] = {{0, 0},      {1, 1},     {1, 64},      {3, 5},    {32, 20480},
                {200, 1000}, {7, 16383}, {1, 1 << 18}, {4096, 12}};
    weft_link *a = NULL;
    weft_link *b = NULL;
    uint64_t step = 1;
    kit_open_pair((kit_transport)_i, &a, &b);
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++)
        for (size_t j = 0; j < sizeof rows / sizeof rows[0]; j++, step++) {
            kit_frame it = kit_build(step, bodies[i], rows[j].n, rows[j].bytes,
                                     step % 2 == 0);
            OK(weft_link_send(a, &it.frame, it.rows, &err));
            memset(it.body, 0xEE, it.frame.body_bytes); /* it was copied */
            const weft_frame got = kit_recv(b, a);
            kit_check(&got, &it.frame);
            ck_assert(weft_link_is_idle(a));
            kit_drop(&it);
        }
    kit_close_pair(a, b);
}
END_TEST

START_TEST(no_frame_is_refused)
{
    weft_link *a = NULL;
    weft_link *b = NULL;
    weft_err told = {0};
    static const char row[8];
    const void *const rows[1] = {row};
    kit_open_pair((kit_transport)_i, &a, &b);
    const weft_frame good = {.type = WEFT_FRAME_PLAN};
    weft_frame bad[] = {good, good, good, good, good, good};
    bad[0].type = (weft_frame_type)99;
    bad[1].body_bytes = WEFT_FRAME_BODY_BYTES_MAX + 1;
    bad[2].n_rows = WEFT_FRAME_ROWS_MAX + 1;
    bad[2].row_bytes = 8;
    bad[3].n_rows = -1;
    bad[4].n_rows = 1;
    bad[4].row_bytes = WEFT_FRAME_ROW_BYTES_MAX + 1;
    bad[5].n_rows = 1;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_int_eq(weft_link_send(a, &bad[i], rows, &told),
                         WEFT_INVALID_ARGUMENT);
    OK(weft_link_send(a, &good, NULL, &err));
    const weft_frame got = kit_recv(b, a);
    ck_assert_int_eq(got.type, WEFT_FRAME_PLAN);
    kit_close_pair(a, b);
}
END_TEST

/* -- full_queue_refuses --------------------------------------------------- */

/* Sends until the queue is full; how many it took. */
static uint64_t fill(weft_link *link, const kit_frame *it)
{
    weft_err told = {0};
    weft_status result = WEFT_OK;
    uint64_t sent = 0;
    while ((result = weft_link_send(link, &it->frame, it->rows, &told)) ==
           WEFT_OK) {
        sent++;
        ck_assert_msg(sent < 1000, "it takes everything");
    }
    ck_assert_int_eq(result, WEFT_RESOURCE_EXHAUSTED);
    ck_assert_str_eq(told.text, "");
    return sent;
}

/* What was taken arrives, once; what was refused does not. */
static void drain(weft_link *from, weft_link *to, weft_poller *poller,
                  const weft_frame *want, uint64_t n)
{
    const uint64_t deadline = kit_deadline();
    weft_frame got;
    bool is = false;
    for (uint64_t came = 0; came < n;) {
        OK(weft_link_recv(to, &got, &is, &err));
        if (is) kit_check(&got, want);
        came += is ? 1 : 0;
        /* The poller tells of the room; only then does a push on. */
        if (!weft_link_is_idle(from)) {
            weft_poller_wait(poller, weft_clock_now_ns() + 50 * MS, 0);
            OK(weft_link_recv(from, &got, &is, &err));
            ck_assert(!is);
        }
        ck_assert(weft_clock_now_ns() < deadline);
    }
    ck_assert(weft_link_is_idle(from));
    OK(weft_link_recv(to, &got, &is, &err));
    ck_assert(!is);
}

START_TEST(full_queue_refuses)
{
    enum { QUEUE = 4, ROWS = 16, ROW_BYTES = 1 << 16 };
    weft_link_options options = kit_options();
    weft_link *a = NULL;
    weft_link *b = NULL;
    weft_poller *poller = NULL;
    options.queue_frames = QUEUE;
    kit_open((kit_transport)_i, &options, &options, &a, &b);
    OK(weft_poller_create(&poller, &err));
    OK(weft_poller_add(poller, a, &err));
    kit_frame it = kit_build(1, 100, ROWS, ROW_BYTES, false);
    for (int lap = 0; lap < 3; lap++) {
        const uint64_t n = fill(a, &it);
        ck_assert_uint_ge(n, QUEUE);
        drain(a, b, poller, &it.frame, n);
    }
    weft_poller_remove(poller, a);
    weft_poller_destroy(poller);
    kit_drop(&it);
    kit_close_pair(a, b);
}
END_TEST

/* -- cut_anywhere_is_broken ----------------------------------------------- */

/* Two frames as bytes; where the first ends. */
static size_t print_stream(unsigned char *out, size_t *first_out)
{
    kit_frame one = kit_build(1, 5, 3, 20, true);
    kit_frame two = kit_build(2, SECOND_FRAME_BODY, 1, 64, false);
    *first_out = kit_print(&one.frame, one.rows, out);
    const size_t n =
        *first_out + kit_print(&two.frame, two.rows, out + *first_out);
    ck_assert_uint_le(n, STREAM_BYTES);
    kit_drop(&one);
    kit_drop(&two);
    return n;
}

static void check_first(const weft_frame *got)
{
    kit_frame one = kit_build(1, 5, 3, 20, true);
    kit_check(got, &one.frame);
    kit_drop(&one);
}

static void cut_at(int turn, const unsigned char *stream, size_t n,
                   size_t first, bool reset)
{
    const weft_link_options options = kit_options();
    kit_raw raw;
    weft_link *const link = kit_open_raw((kit_transport)turn, &options, &raw);
    kit_raw_write(&raw, stream, n);
    if (n >= first) {
        const weft_frame got = kit_recv(link, NULL);
        check_first(&got);
    }
    kit_raw_close(&raw, reset);
    char why[WEFT_ERR_TEXT_BYTES];
    (void)snprintf(why, sizeof why, "%s", kit_recv_broken(link));
    const bool between = n == 0 || n == first;
    ck_assert_msg(
        (strstr(why, "in the middle of a frame") == NULL) == between || reset,
        "cut after %zu bytes: %s", n, why);
    ck_assert_ptr_nonnull(strstr(why, "link to peer: "));
    /* It stays so. */
    ck_assert_str_eq(kit_recv_broken(link), why);
    weft_err told = {0};
    const weft_frame frame = {.type = WEFT_FRAME_PLAN};
    ck_assert_int_eq(weft_link_send(link, &frame, NULL, &told),
                     WEFT_UNAVAILABLE);
    ck_assert_int_eq(weft_link_flush(link, kit_deadline(), &told),
                     WEFT_UNAVAILABLE);
    ck_assert_str_eq(told.text, why);
    weft_link_close(link);
}

START_TEST(cut_anywhere_is_broken)
{
    unsigned char stream[STREAM_BYTES];
    size_t first = 0;
    const size_t n = print_stream(stream, &first);
    if (_i == KIT_LOCAL) { /* frames cannot be cut there, but after one */
        weft_link *a = NULL;
        weft_link *b = NULL;
        kit_open_pair((kit_transport)_i, &a, &b);
        kit_frame one = kit_build(1, 5, 3, 20, true);
        OK(weft_link_send(a, &one.frame, one.rows, &err));
        kit_drop(&one);
        weft_link_close(a);
        const weft_frame got = kit_recv(b, NULL);
        check_first(&got);
        (void)kit_recv_broken(b);
        weft_link_close(b);
        return;
    }
    /* Through TLS, whose handshakes take long, at every third. */
    for (size_t at = 0; at < n; at += _i == KIT_TCP ? 1 : 3)
        cut_at(_i, stream, at, first, false);
    for (size_t at = 0; at < n; at += 13) cut_at(_i, stream, at, first, true);
}
END_TEST

static void check_nth(int nth, const weft_frame *got, const weft_frame *second)
{
    if (nth == 1) check_first(got);
    if (nth == 2) kit_check(got, second);
}

/* Takes those that are whole, after `came` others; how many have come then. */
static int recv_whole(weft_link *link, int came, const weft_frame *second)
{
    for (;;) {
        bool is = false;
        weft_frame got;
        OK(weft_link_recv(link, &got, &is, &err));
        if (!is) return came;
        check_nth(++came, &got, second);
    }
}

START_TEST(bytes_may_come_one_by_one_or_all_at_once)
{
    unsigned char stream[2 * STREAM_BYTES];
    const weft_link_options options = kit_options();
    size_t first = 0;
    const size_t n = print_stream(stream, &first);
    kit_frame two = kit_build(2, SECOND_FRAME_BODY, 1, 64, false);
    for (size_t piece = 1; piece <= n; piece = piece * 3 + 1) {
        kit_raw raw;
        weft_link *const link = kit_open_raw((kit_transport)_i, &options, &raw);
        int came = 0;
        for (size_t at = 0; at < n; at += piece) {
            kit_raw_write(&raw, stream + at, at + piece < n ? piece : n - at);
            came = recv_whole(link, came, &two.frame);
        }
        while (came < 2) {
            const weft_frame got = kit_recv(link, NULL);
            check_nth(++came, &got, &two.frame);
        }
        kit_raw_close(&raw, false);
        (void)kit_recv_broken(link);
        weft_link_close(link);
    }
    kit_drop(&two);
}
END_TEST

/* -- garbage_breaks ------------------------------------------------------- */

static void feed(int turn, const void *bytes, size_t n, const char *why)
{
    const weft_link_options options = kit_options();
    kit_raw raw;
    weft_link *const link = kit_open_raw((kit_transport)turn, &options, &raw);
    kit_raw_write(&raw, bytes, n);
    const char *const told = kit_recv_broken(link);
    if (why != NULL)
        ck_assert_msg(strstr(told, why) != NULL, "%s, and not %s", told, why);
    weft_link_close(link);
    kit_raw_close(&raw, false);
}

START_TEST(garbage_breaks)
{
    unsigned char bytes[20000];
    kit_frame it = kit_build(3, 10, 2, 30, false);
    const size_t n = kit_print(&it.frame, it.rows, bytes);
    /* Each byte of a frame, header and payload, in two ways. */
    for (size_t at = 0; at < n; at += _i == KIT_TCP ? 1 : 7) {
        const unsigned char before = bytes[at];
        const char *const why = at < 4 ? "no frame begins with"
                                : at < WEFT_FRAME_HEADER_BYTES
                                    ? "header is damaged"
                                    : "checksum of its payload";
        bytes[at] = (unsigned char)(before ^ 1);
        feed(_i, bytes, n, why);
        bytes[at] = (unsigned char)(before ^ 0x80);
        feed(_i, bytes, n, why);
        bytes[at] = before;
    }
    kit_drop(&it);
    memset(bytes, 0, sizeof bytes);
    feed(_i, bytes, 2000, "no frame begins with");
    kit_fill(bytes, sizeof bytes, 9);
    feed(_i, bytes, sizeof bytes, "no frame begins with");
    static const char http[] =
        "GET / HTTP/1.1\r\nHost: x\r\nUser-Agent: somebody who scans ports\r\n"
        "\r\n";
    feed(_i, http, sizeof http - 1, "no frame begins with 47 45 54 20");
}
END_TEST

/* Whole frames that have no place on a link that is ready. */
START_TEST(out_of_place_breaks)
{
    unsigned char bytes[256];
    weft_frame frame = {.type = WEFT_FRAME_HELLO, .body = "x", .body_bytes = 1};
    size_t n = kit_print(&frame, NULL, bytes);
    feed(_i, bytes, n, "sent \"hello\" after the handshake");
    frame.type = WEFT_FRAME_WELCOME;
    n = kit_print(&frame, NULL, bytes);
    feed(_i, bytes, n, "sent \"welcome\" after the handshake");
    frame.type = WEFT_FRAME_REFUSE;
    frame.body = "I am\nfull";
    frame.body_bytes = 9;
    n = kit_print(&frame, NULL, bytes);
    feed(_i, bytes, n, "refused: I am?full");
    frame.body_bytes = 0;
    n = kit_print(&frame, NULL, bytes);
    feed(_i, bytes, n, "refused: ");
}
END_TEST

/* -- limits_hold ---------------------------------------------------------- */

static void try_limit(int turn, const weft_frame_limits *limits, bool fits,
                      const char *why)
{
    weft_link_options options = kit_options();
    weft_link *a = NULL;
    weft_link *b = NULL;
    kit_open((kit_transport)turn, &options, &options, &a, &b);
    kit_close_pair(a, b);
    const weft_link_options wide = options;
    options.limits = *limits;
    kit_open((kit_transport)turn, &wide, &options, &a, &b);
    kit_frame it = kit_build(4, 100, 10, 1000, false);
    OK(weft_link_send(a, &it.frame, it.rows, &err));
    if (fits) {
        const weft_frame got = kit_recv(b, a);
        kit_check(&got, &it.frame);
    } else {
        const char *const told = kit_recv_broken(b);
        ck_assert_msg(strstr(told, why) != NULL, "%s, and not %s", told, why);
    }
    kit_drop(&it);
    kit_close_pair(a, b);
}

START_TEST(limits_hold)
{
    const weft_frame_limits just = {
        .body_bytes_max = 100, .rows_max = 10, .row_bytes_max = 1000};
    weft_frame_limits less[3] = {just, just, just};
    static const char *const why[3] = {"body bytes 100, and the limit is 99",
                                       "rows 10, and the limit is 9",
                                       "row bytes 1000, and the limit is 999"};
    less[0].body_bytes_max--;
    less[1].rows_max--;
    less[2].row_bytes_max--;
    try_limit(_i, &just, true, NULL);
    for (int i = 0; i < 3; i++) try_limit(_i, &less[i], false, why[i]);
}
END_TEST

/* -- silence_breaks, pulses_are_not_frames -------------------------------- */

START_TEST(silence_breaks)
{
    weft_link_options options = kit_options();
    weft_link *a = NULL;
    weft_link *b = NULL;
    weft_link_stats stats;
    options.silence_ns = 750 * MS;
    options.name = "experts-7";
    kit_open((kit_transport)_i, &options, &options, &a, &b);
    const weft_frame frame = {.type = WEFT_FRAME_STATE};
    OK(weft_link_send(a, &frame, NULL, &err));
    (void)kit_recv(b, a);
    weft_link_get_stats(b, &stats);
    const uint64_t heard = stats.last_heard_ns;
    OK(weft_link_judge(b, heard + 750 * MS, 0, &err));
    /* Who did not look cannot complain. */
    OK(weft_link_judge(b, heard + 5000 * MS, heard + 4500 * MS, &err));
    weft_err told = {0};
    ck_assert_int_eq(weft_link_judge(b, heard + 751 * MS, heard, &told),
                     WEFT_UNAVAILABLE);
    ck_assert_msg(strstr(told.text, "link to experts-7: silent for 751 ms") !=
                      NULL,
                  "%s", told.text);
    bool got = false;
    weft_frame unused;
    ck_assert_int_eq(weft_link_recv(b, &unused, &got, &told), WEFT_UNAVAILABLE);
    ck_assert_str_eq(weft_link_name(b), "experts-7");
    kit_close_pair(a, b);
}
END_TEST

START_TEST(pulses_are_not_frames)
{
    weft_link_options options = kit_options();
    weft_link *a = NULL;
    weft_link *b = NULL;
    weft_link_stats stats;
    options.silence_ns = 1;
    kit_open((kit_transport)_i, &options, &options, &a, &b);
    weft_link_get_stats(b, &stats);
    const uint64_t before = stats.last_heard_ns;
    const uint64_t deadline = kit_deadline();
    weft_link_pulse(a, 41);
    weft_link_pulse(a, 42);
    while (stats.pulse_step != 42) {
        bool got = false;
        weft_frame frame;
        OK(weft_link_recv(b, &frame, &got, &err));
        ck_assert(!got);
        weft_link_get_stats(b, &stats);
        ck_assert(weft_clock_now_ns() < deadline);
    }
    ck_assert_uint_gt(stats.last_heard_ns, before);
    ck_assert_uint_eq(stats.frames_received, 0);
    OK(weft_link_judge(b, stats.last_heard_ns, 0, &err));
    /* Between frames they change nothing. */
    for (uint64_t step = 0; step < 200; step++) {
        kit_frame it = kit_build(step, step, 1, 100, false);
        weft_link_pulse(a, step);
        OK(weft_link_send(a, &it.frame, it.rows, &err));
        weft_link_pulse(a, step);
        const weft_frame got = kit_recv(b, a);
        kit_check(&got, &it.frame);
        kit_drop(&it);
    }
    weft_link_get_stats(a, &stats);
    ck_assert_uint_eq(stats.frames_sent, 200);
    kit_close_pair(a, b);
}
END_TEST

/* -- close_is_seen -------------------------------------------------------- */

START_TEST(close_is_seen)
{
    weft_link *a = NULL;
    weft_link *b = NULL;
    weft_poller *poller = NULL;
    kit_open_pair((kit_transport)_i, &a, &b);
    OK(weft_poller_create(&poller, &err));
    OK(weft_poller_add(poller, b, &err));
    const weft_frame frame = {.type = WEFT_FRAME_STUCK};
    OK(weft_link_send(a, &frame, NULL, &err));
    weft_link_close(a);
    const uint64_t deadline = kit_deadline();
    weft_poller_wait(poller, deadline, 0);
    const weft_frame got = kit_recv(b, NULL);
    ck_assert_int_eq(got.type, WEFT_FRAME_STUCK);
    weft_poller_wait(poller, deadline, 0);
    ck_assert_uint_lt(weft_clock_now_ns(), deadline);
    ck_assert_str_eq(kit_recv_broken(b),
                     "link to peer: closed by the other end");
    weft_poller_wait(poller, deadline, 0); /* broken: at once */
    ck_assert_uint_lt(weft_clock_now_ns(), deadline);
    weft_err told = {0};
    ck_assert_int_eq(weft_link_send(b, &frame, NULL, &told), WEFT_UNAVAILABLE);
    weft_link_pulse(b, 1);
    weft_poller_remove(poller, b);
    weft_poller_destroy(poller);
    weft_link_close(b);
    weft_link_close(NULL);
}
END_TEST

/* Who only sends sees it, too, and no signal is raised. */
START_TEST(a_sender_sees_the_close)
{
    weft_link *a = NULL;
    weft_link *b = NULL;
    const weft_frame frame = {.type = WEFT_FRAME_STUCK};
    kit_open_pair((kit_transport)_i, &a, &b);
    weft_link_close(b);
    const uint64_t deadline = kit_deadline();
    weft_err told = {0};
    weft_status result = WEFT_OK;
    while (result == WEFT_OK || result == WEFT_RESOURCE_EXHAUSTED) {
        result = weft_link_send(a, &frame, NULL, &told);
        weft_link_pulse(a, 3);
        ck_assert(weft_clock_now_ns() < deadline);
    }
    ck_assert_int_eq(result, WEFT_UNAVAILABLE);
    ck_assert(told.text[0] != '\0');
    (void)kit_recv_broken(a);
    weft_link_close(a);
}
END_TEST

/* A reset is seen by who waits, whatever is on its way. */
START_TEST(a_reset_is_seen)
{
    const weft_link_options options = kit_options();
    kit_raw raw;
    weft_link *const link = kit_open_raw((kit_transport)_i, &options, &raw);
    weft_poller *poller = NULL;
    OK(weft_poller_create(&poller, &err));
    OK(weft_poller_add(poller, link, &err));
    kit_frame it = kit_build(1, 0, 64, 1 << 16, false);
    weft_err told = {0};
    while (weft_link_send(link, &it.frame, it.rows, &told) == WEFT_OK) continue;
    kit_raw_close(&raw, true);
    const uint64_t deadline = kit_deadline();
    weft_poller_wait(poller, deadline, 0);
    ck_assert_uint_lt(weft_clock_now_ns(), deadline);
    (void)kit_recv_broken(link);
    weft_poller_remove(poller, link);
    weft_poller_destroy(poller);
    kit_drop(&it);
    weft_link_close(link);
}
END_TEST

int main(void)
{
    const TTest *const all[] = {order,
                                whole_or_none,
                                no_frame_is_refused,
                                full_queue_refuses,
                                cut_anywhere_is_broken,
                                limits_hold,
                                silence_breaks,
                                pulses_are_not_frames,
                                close_is_seen,
                                a_sender_sees_the_close};
    const TTest *const raw[] = {bytes_may_come_one_by_one_or_all_at_once,
                                garbage_breaks, out_of_place_breaks,
                                a_reset_is_seen};
    return kit_run("link", &(kit_tests){.all = all,
                                        .n_all = sizeof all / sizeof all[0],
                                        .raw = raw,
                                        .n_raw = sizeof raw / sizeof raw[0]});
}
