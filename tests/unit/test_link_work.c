/* Links at work: both ends busy at once, other threads, stalls, no memory. Turn
 * 0 is local, 1 plain TCP, 2 TLS. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "shard/link/pulse.h"
#include "tests/support/expect.h"
#include "tests/support/link_frames.h"
#include "tests/support/link_kit.h"

#define MS UINT64_C(1000000)

typedef struct flusher {
    weft_link *link;
    uint64_t name, other;
} flusher;

enum { LARGE_ROWS = 64, LARGE_ROW_BYTES = 1 << 18 }; /* 16 MiB */

static void flush_large(const flusher *own)
{
    kit_frame it = kit_build(own->name, 10, LARGE_ROWS, LARGE_ROW_BYTES, true);
    OK(weft_link_send(own->link, &it.frame, it.rows, &err));
    OK(weft_link_flush(own->link, kit_deadline(), &err));
    kit_drop(&it);
}

static void recv_large(const flusher *own)
{
    kit_frame it =
        kit_build(own->other, 10, LARGE_ROWS, LARGE_ROW_BYTES, false);
    const weft_frame got = kit_recv(own->link, NULL);
    kit_check(&got, &it.frame);
    kit_drop(&it);
}

static void *flush_and_recv(void *arg)
{
    flush_large(arg);
    recv_large(arg);
    return NULL;
}

START_TEST(both_may_flush_large_frames)
{
    weft_link *a = NULL;
    weft_link *b = NULL;
    pthread_t thread;
    kit_open_pair((kit_transport)_i, &a, &b);
    flusher ends[2] = {{a, 1, 2}, {b, 2, 1}};
    ck_assert_int_eq(pthread_create(&thread, NULL, flush_and_recv, &ends[0]),
                     0);
    (void)flush_and_recv(&ends[1]);
    (void)pthread_join(thread, NULL);
    kit_close_pair(a, b);
}
END_TEST

/* A frame that was given out stays while its owner sends, flushes and waits,
 * and more comes in. */
START_TEST(a_lent_frame_stays)
{
    weft_link *a = NULL;
    weft_link *b = NULL;
    pthread_t thread;
    kit_open_pair((kit_transport)_i, &a, &b);
    kit_frame first = kit_build(7, 33, 40, 1000, false);
    OK(weft_link_send(a, &first.frame, first.rows, &err));
    const weft_frame got = kit_recv(b, a);
    flusher ends[2] = {{a, 1, 2}, {b, 2, 1}};
    ck_assert_int_eq(pthread_create(&thread, NULL, flush_and_recv, &ends[0]),
                     0);
    flush_large(&ends[1]);
    kit_check(&got, &first.frame);
    recv_large(&ends[1]);
    (void)pthread_join(thread, NULL);
    kit_drop(&first);
    kit_close_pair(a, b);
}
END_TEST

START_TEST(a_flush_has_a_deadline)
{
    weft_link *a = NULL;
    weft_link *b = NULL;
    kit_open_pair((kit_transport)_i, &a, &b);
    kit_frame it = kit_build(1, 0, 64, 1 << 16, false);
    weft_err told = {0};
    while (weft_link_send(a, &it.frame, it.rows, &told) == WEFT_OK) continue;
    ck_assert(!weft_link_is_idle(a));
    ck_assert_int_eq(weft_link_flush(a, weft_clock_now_ns() + 20 * MS, &told),
                     WEFT_DEADLINE_EXCEEDED);
    kit_drop(&it);
    kit_close_pair(a, b);
}
END_TEST

typedef struct pulser {
    weft_link *link;
    atomic_bool stop;
} pulser;

static void *pulse_on(void *arg)
{
    pulser *const own = arg;
    /* Ten thousand a second, which leaves the owner its turns at the lock. */
    const struct timespec pace = {.tv_nsec = 100000};
    for (uint64_t step = 1; !atomic_load(&own->stop); step++) {
        weft_link_pulse(own->link, step);
        (void)nanosleep(&pace, NULL);
    }
    return NULL;
}

/* Another thread's pulses at any moment leave every frame as it is. */
START_TEST(pulses_from_another_thread)
{
    enum { FRAMES = 40 };
    weft_link *a = NULL;
    weft_link *b = NULL;
    pthread_t thread;
    weft_link_stats stats;
    kit_open_pair((kit_transport)_i, &a, &b);
    pulser own = {.link = a};
    ck_assert_int_eq(pthread_create(&thread, NULL, pulse_on, &own), 0);
    for (uint64_t step = 0; step < FRAMES; step++) {
        kit_frame it = kit_build(step, step * 100, 32, 20480, step % 2 == 0);
        weft_status result = WEFT_RESOURCE_EXHAUSTED;
        const uint64_t deadline = kit_deadline();
        while (result == WEFT_RESOURCE_EXHAUSTED) {
            weft_err told = {0};
            result = weft_link_send(a, &it.frame, it.rows, &told);
            ck_assert(weft_clock_now_ns() < deadline);
        }
        ck_assert_int_eq(result, WEFT_OK);
        const weft_frame got = kit_recv(b, a);
        kit_check(&got, &it.frame);
        while (!weft_link_is_idle(a)) { /* a pulse may be on its way */
            weft_frame unused;
            bool is = false;
            OK(weft_link_recv(b, &unused, &is, &err));
            ck_assert(!is);
        }
        kit_drop(&it);
    }
    weft_link_get_stats(b, &stats);
    ck_assert_uint_gt(stats.pulse_step, 0);
    atomic_store(&own.stop, true);
    (void)pthread_join(thread, NULL);
    kit_close_pair(a, b);
}
END_TEST

/* -- no memory ------------------------------------------------------------ */

START_TEST(no_memory_is_told)
{
    const weft_link_options options = kit_options();
    weft_link *a = NULL;
    weft_link *b = NULL;
    weft_err told = {0};
    weft_mem_fail_after(0);
    ck_assert_int_eq(weft_link_create_local(&options, &options, &a, &b, &told),
                     WEFT_RESOURCE_EXHAUSTED);
    weft_mem_fail_after(-1);
    kit_open_pair((kit_transport)_i, &a, &b);
    kit_frame it = kit_build(1, 5000, 2, 100000, false);
    weft_mem_fail_after(0);
    ck_assert_int_eq(weft_link_send(a, &it.frame, it.rows, &told),
                     WEFT_RESOURCE_EXHAUSTED);
    weft_mem_fail_after(-1);
    OK(weft_link_send(a, &it.frame, it.rows, &err));
    if (_i != KIT_LOCAL) { /* which has taken it when it was sent */
        weft_mem_fail_after(0);
        const char *const why = kit_recv_broken(b);
        weft_mem_fail_after(-1);
        ck_assert_msg(strstr(why, "no memory") != NULL, "%s", why);
    }
    kit_drop(&it);
    kit_close_pair(a, b);
}
END_TEST

/* Many more pulses than one receive passes over. */
START_TEST(a_flood_of_pulses_holds_nobody_up)
{
    enum { PULSES = 5000 };
    const weft_link_options options = kit_options();
    static unsigned char bytes[(PULSES + 1) * WEFT_FRAME_HEADER_BYTES];
    weft_frame frame = {.type = WEFT_FRAME_PULSE};
    size_t n = 0;
    for (int i = 0; i < PULSES; i++) n += kit_print(&frame, NULL, bytes + n);
    frame.type = WEFT_FRAME_PLAN;
    n += kit_print(&frame, NULL, bytes + n);
    kit_raw raw;
    weft_link *const link = kit_open_raw((kit_transport)_i, &options, &raw);
    weft_poller *poller = NULL;
    OK(weft_poller_create(&poller, &err));
    OK(weft_poller_add(poller, link, &err));
    kit_raw_write(&raw, bytes, n);
    bool got = false;
    int turns = 0;
    while (!got) {
        /* Nothing else comes, so a wait would be forever if it were one. */
        const uint64_t began = weft_clock_now_ns();
        weft_poller_wait(poller, began + 20000 * MS, 0);
        ck_assert_uint_lt(weft_clock_now_ns() - began, 20000 * MS);
        OK(weft_link_recv(link, &frame, &got, &err));
        turns++;
    }
    ck_assert_int_eq(frame.type, WEFT_FRAME_PLAN);
    ck_assert_int_gt(turns, PULSES / 100);
    weft_poller_remove(poller, link);
    weft_poller_destroy(poller);
    kit_raw_close(&raw, false);
    weft_link_close(link);
}
END_TEST

START_TEST(a_stalled_peer_breaks)
{
    weft_link_options options = kit_options();
    weft_link *a = NULL;
    weft_link *b = NULL;
    options.stall_ns = 3600000 * MS;
    kit_open((kit_transport)_i, &options, &options, &a, &b);
    kit_frame it = kit_build(1, 0, 64, 1 << 16, false);
    weft_err told = {0};
    while (weft_link_send(a, &it.frame, it.rows, &told) == WEFT_OK) continue;
    const uint64_t now = weft_clock_now_ns();
    OK(weft_link_judge(a, now + 3500000 * MS, 0, &err));
    OK(weft_link_judge(a, now + 9000000 * MS, now + 8000000 * MS, &err));
    ck_assert_int_eq(weft_link_judge(a, now + 3600001 * MS, 0, &told),
                     WEFT_UNAVAILABLE);
    ck_assert_msg(strstr(told.text, "took nothing for") != NULL, "%s",
                  told.text);
    kit_drop(&it);
    kit_close_pair(a, b);
}
END_TEST

/* -- pulse.h -------------------------------------------------------------- */

static void wait_step(weft_link *link, uint64_t step)
{
    weft_link_stats stats = {.pulse_step = 0};
    const uint64_t deadline = kit_deadline();
    while (stats.pulse_step < step || stats.pulse_step == 0) {
        weft_frame frame;
        bool got = false;
        OK(weft_link_recv(link, &frame, &got, &err));
        ck_assert(!got);
        weft_link_get_stats(link, &stats);
        ck_assert(weft_clock_now_ns() < deadline);
    }
}

START_TEST(a_pulse_reaches_all)
{
    weft_link *a[2] = {NULL};
    weft_link *b[2] = {NULL};
    weft_pulse *pulse = NULL;
    for (int i = 0; i < 2; i++) kit_open_pair((kit_transport)_i, &a[i], &b[i]);
    OK(weft_pulse_start(MS, &pulse, &err));
    for (int i = 0; i < 2; i++) OK(weft_pulse_add(pulse, a[i], &err));
    for (int i = 0; i < 5; i++) weft_pulse_step(pulse);
    for (int i = 0; i < 2; i++) wait_step(b[i], 5);
    weft_pulse_remove(pulse, a[0]);
    kit_close_pair(a[0], b[0]);
    weft_pulse_step(pulse);
    wait_step(b[1], 6);
    weft_pulse_stop(pulse);
    weft_pulse_stop(NULL);
    kit_close_pair(a[1], b[1]);
    weft_err told = {0};
    ck_assert_int_eq(weft_pulse_start(0, &pulse, &told), WEFT_INVALID_ARGUMENT);
}
END_TEST

static void count_hung(void *arg)
{
    (void)atomic_fetch_add((atomic_int *)arg, 1);
}

/* Busy and without a step: the pulses stop, and it is told once; a step, and
 * they go on. */
START_TEST(who_hangs_is_silent)
{
    weft_link *a = NULL;
    weft_link *b = NULL;
    weft_pulse *pulse = NULL;
    weft_frame frame;
    weft_link_stats stats;
    atomic_int hung = 0;
    bool got = false;
    kit_open_pair((kit_transport)_i, &a, &b);
    OK(weft_pulse_start(MS, &pulse, &err));
    OK(weft_pulse_add(pulse, a, &err));
    weft_pulse_watch(pulse, 20 * MS, count_hung, &hung);
    weft_pulse_step(pulse); /* idle: no step is no hang */
    wait_step(b, 1);
    const uint64_t idle_end = weft_clock_now_ns() + 60 * MS;
    const uint64_t deadline = kit_deadline();
    do {
        OK(weft_link_recv(b, &frame, &got, &err));
        weft_link_get_stats(b, &stats);
        ck_assert(weft_clock_now_ns() < deadline);
    } while (stats.last_heard_ns < idle_end);
    ck_assert_int_eq(atomic_load(&hung), 0);
    weft_pulse_set_busy(pulse, true);
    while (atomic_load(&hung) == 0) ck_assert(weft_clock_now_ns() < deadline);
    OK(weft_link_recv(b, &frame, &got, &err)); /* what was on its way */
    weft_link_get_stats(b, &stats);
    const uint64_t heard = stats.last_heard_ns;
    while (weft_clock_now_ns() < heard + 50 * MS)
        OK(weft_link_recv(b, &frame, &got, &err));
    weft_link_get_stats(b, &stats);
    ck_assert_uint_eq(stats.last_heard_ns, heard);
    ck_assert_int_eq(atomic_load(&hung), 1);
    weft_pulse_step(pulse);
    wait_step(b, 2);
    weft_pulse_stop(pulse);
    kit_close_pair(a, b);
}
END_TEST

/* -- pollers -------------------------------------------------------------- */

static void *wake(void *arg)
{
    weft_poller_wake(arg);
    return NULL;
}

START_TEST(a_poller_wakes)
{
    weft_link *a = NULL;
    weft_link *b = NULL;
    weft_poller *poller = NULL;
    pthread_t thread;
    const weft_frame frame = {.type = WEFT_FRAME_PLAN};
    kit_open_pair((kit_transport)_i, &a, &b);
    OK(weft_poller_create(&poller, &err));
    OK(weft_poller_add(poller, b, &err));
    const uint64_t deadline = kit_deadline();
    for (uint64_t spin = 0; spin <= 50 * MS; spin += 50 * MS) {
        /* A deadline, past or not, is one. */
        const uint64_t began = weft_clock_now_ns();
        weft_poller_wait(poller, began - 1, spin);
        weft_poller_wait(poller, began + 20 * MS, spin);
        ck_assert_uint_ge(weft_clock_now_ns(), began + 20 * MS);
        /* A wake from elsewhere, before or during the wait, is not lost. */
        for (int i = 0; i < 50; i++) {
            ck_assert_int_eq(pthread_create(&thread, NULL, wake, poller), 0);
            weft_poller_wait(poller, deadline, spin);
            (void)pthread_join(thread, NULL);
        }
        /* Two frames in one go: the second needs no waiting. */
        OK(weft_link_send(a, &frame, NULL, &err));
        OK(weft_link_send(a, &frame, NULL, &err));
        weft_poller_wait(poller, deadline, spin);
        (void)kit_recv(b, NULL);
        weft_poller_wait(poller, deadline, spin);
        (void)kit_recv(b, NULL);
        ck_assert_uint_lt(weft_clock_now_ns(), deadline);
    }
    weft_poller_remove(poller, b);
    weft_poller_remove(poller, a); /* which is not there */
    weft_poller_destroy(poller);
    weft_poller_destroy(NULL);
    kit_close_pair(a, b);
}
END_TEST

/* Half a frame, and of TLS half a record, is nothing to receive. */
START_TEST(waiting_for_the_rest_sleeps)
{
    weft_link *a = NULL;
    weft_link *b = NULL;
    weft_poller *poller = NULL;
    weft_frame frame;
    bool got = false;
    kit_open_pair((kit_transport)_i, &a, &b);
    OK(weft_poller_create(&poller, &err));
    OK(weft_poller_add(poller, b, &err));
    kit_frame it = kit_build(1, 10, LARGE_ROWS, LARGE_ROW_BYTES, true);
    OK(weft_link_send(a, &it.frame, it.rows, &err));
    ck_assert(!weft_link_is_idle(a));
    uint64_t began = 0, ended = 0;
    /* What is on its way arrives, and nothing follows. */
    for (int i = 0; i < 1000 && ended - began < 100 * MS; i++) {
        OK(weft_link_recv(b, &frame, &got, &err));
        ck_assert(!got);
        began = weft_clock_now_ns();
        weft_poller_wait(poller, began + 100 * MS, 0);
        ended = weft_clock_now_ns();
    }
    ck_assert_uint_ge(ended - began, 100 * MS);
    weft_poller_destroy(poller);
    kit_drop(&it);
    kit_close_pair(a, b);
}
END_TEST

int main(void)
{
    const TTest *const all[] = {both_may_flush_large_frames,
                                a_lent_frame_stays,
                                pulses_from_another_thread,
                                no_memory_is_told,
                                a_pulse_reaches_all,
                                who_hangs_is_silent,
                                a_poller_wakes};
    const TTest *const raw[] = {a_flood_of_pulses_holds_nobody_up,
                                a_stalled_peer_breaks, a_flush_has_a_deadline,
                                waiting_for_the_rest_sleeps};
    return kit_run("link work",
                   &(kit_tests){.all = all,
                                .n_all = sizeof all / sizeof all[0],
                                .raw = raw,
                                .n_raw = sizeof raw / sizeof raw[0]});
}
