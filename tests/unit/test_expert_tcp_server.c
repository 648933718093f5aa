/* The exchange over TCP, with peers that are dialled: the bits of one process;
 * a connection that is cut after any number of bytes, either way; a shard that
 * comes back. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "node/base/str.h"
#include "tests/support/expect.h"
#include "tests/support/pool.h"
#include "tests/support/suite.h"

#define MODEL "tests/data/fixtures/dots3-mixed"

/* -- a wire that can be cut ------------------------------------------------ */

/* Hands one connection after another on to a shard. The first is cut when so
 * many bytes have gone one way. */
typedef struct wire {
    int listener, stop[2];
    uint16_t to_port;
    char address[WEFT_ADDRESS_BYTES];
    int64_t cut_after; /* -1: never */
    bool answers;      /* the bytes from the shard are counted */
    atomic_bool again; /* later connections are taken */
    pthread_t thread;
    atomic_bool was_cut;
    _Atomic int64_t n_bytes;
} wire;

static int connect_to(uint16_t port)
{
    const struct sockaddr_in at = {.sin_family = AF_INET,
                                   .sin_port = htons(port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(connect(fd, (const struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

static bool write_all(int fd, const char *bytes, ssize_t n)
{
    while (n > 0) {
        const ssize_t some = send(fd, bytes, (size_t)n, MSG_NOSIGNAL);
        if (some <= 0) return false;
        bytes += some;
        n -= some;
    }
    return true;
}

/* What has come on `from`, to `to`; false: the connection is over. */
static bool hand_on(wire *w, int from, int to, bool counted)
{
    char bytes[4096];
    ssize_t n = recv(from, bytes, sizeof bytes, 0);
    if (n <= 0) return false;
    bool cut = false;
    if (counted && w->cut_after >= 0 && !atomic_load(&w->was_cut)) {
        const int64_t left = w->cut_after - atomic_load(&w->n_bytes);
        cut = left < n;
        if (cut) n = (ssize_t)left;
    }
    if (counted) atomic_fetch_add(&w->n_bytes, n);
    if (!write_all(to, bytes, n)) return false;
    if (cut) atomic_store(&w->was_cut, true);
    return !cut;
}

/* False: the wire is to end. */
static bool run_connection(wire *w, int here)
{
    const int there = connect_to(w->to_port);
    bool ends = false;
    for (bool on = true; on && !ends;) {
        struct pollfd fds[3] = {{.fd = here, .events = POLLIN},
                                {.fd = there, .events = POLLIN},
                                {.fd = w->stop[0], .events = POLLIN}};
        (void)poll(fds, 3, -1);
        ends = fds[2].revents != 0;
        if (fds[0].revents != 0) on = hand_on(w, here, there, !w->answers);
        if (on && fds[1].revents != 0) on = hand_on(w, there, here, w->answers);
    }
    (void)close(here);
    (void)close(there);
    return !ends;
}

static void *run_wire(void *arg)
{
    wire *const w = arg;
    for (;;) {
        struct pollfd fds[2] = {{.fd = w->listener, .events = POLLIN},
                                {.fd = w->stop[0], .events = POLLIN}};
        (void)poll(fds, 2, -1);
        if (fds[1].revents != 0) return NULL;
        const int here = accept(w->listener, NULL, NULL);
        if (here < 0) continue;
        if (atomic_load(&w->was_cut) && !atomic_load(&w->again))
            (void)close(here);
        else if (!run_connection(w, here))
            return NULL;
    }
}

static void start_wire(wire *w, const char *to)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    int64_t port = 0;
    ck_assert(weft_parse_i64(strrchr(to, ':') + 1, 1, UINT16_MAX, &port));
    w->to_port = (uint16_t)port;
    w->listener = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(w->listener, (struct sockaddr *)&at, n), 0);
    ck_assert_int_eq(listen(w->listener, 8), 0);
    ck_assert_int_eq(getsockname(w->listener, (struct sockaddr *)&at, &n), 0);
    (void)snprintf(w->address, sizeof w->address, "127.0.0.1:%u",
                   (unsigned)ntohs(at.sin_port));
    ck_assert_int_eq(pipe(w->stop), 0);
    ck_assert_int_eq(pthread_create(&w->thread, NULL, run_wire, w), 0);
}

static void stop_wire(wire *w)
{
    ck_assert_int_eq(write(w->stop[1], "x", 1), 1);
    ck_assert_int_eq(pthread_join(w->thread, NULL), 0);
    (void)close(w->listener);
    (void)close(w->stop[0]);
    (void)close(w->stop[1]);
}

/* -- the scene --------------------------------------------------------------
 */

typedef struct scene {
    weft_pulse *pulse;
    pool *pool;
    weft_peers *peers;
    weft_exchange *exchange;
    pool_heard heard;
    split_model *model;
    pool_results got;
} scene;

static void open_scene(scene *s, int32_t n_shards)
{
    *s = (scene){0};
    OK(weft_pulse_start(WEFT_PULSE_NS, &s->pulse, &err));
    const pool_options options = {
        .n_shards = n_shards, .tcp = true, .pulse = s->pulse};
    s->pool = pool_open(MODEL, WEFT_EXACT, &options);
    s->peers = pool_peers(s->pool, &s->exchange);
    const weft_exchange_options base = {
        .peers = s->peers,
        .pulse = s->pulse,
        .silence_ns = UINT64_C(20000000000),
    };
    s->exchange = pool_exchange(s->pool, &base, &s->heard);
    s->model = pool_model(MODEL, WEFT_EXACT, s->exchange);
    s->got = pool_results_make(&s->pool->config);
}

static void close_scene(scene *s)
{
    pool_model_close(s->model);
    pool_results_drop(&s->got);
    weft_peers_destroy(s->peers); /* its threads wake the exchange */
    weft_exchange_destroy(s->exchange);
    pool_close(s->pool);
    weft_pulse_stop(s->pulse);
}

static void set_map(scene *s, uint64_t epoch, int32_t n_replicas, uint32_t mask,
                    const char *address_of_0)
{
    weft_expert_map *const map = pool_map(s->pool, epoch, n_replicas, mask, 0);
    if (address_of_0 != NULL)
        (void)snprintf(map->peers[0].address, WEFT_ADDRESS_BYTES, "%s",
                       address_of_0);
    weft_exchange_set_map(s->exchange, map);
    weft_expert_map_release(map);
}

/* Until so many peers are connected. */
static void await_links(scene *s, int32_t n)
{
    const uint64_t deadline = weft_clock_now_ns() + UINT64_C(20000000000);
    weft_exchange_state state = {0};
    while (state.n_links < n) {
        ck_assert_uint_lt(weft_clock_now_ns(), deadline);
        s->model->experts.idle(s->model->experts.arg, deadline);
        weft_exchange_get_state(s->exchange, &state);
    }
}

static pool_run compute(scene *s, const pool_results *want, int32_t cut,
                        int number)
{
    pool_run run = {.cut = cut, .heard = &s->heard};
    OK(pool_compute(s->model, s->exchange, &run, &s->got, &err));
    pool_expect_same(want, &s->got, "over tcp", number);
    return run;
}

START_TEST(bits_over_tcp)
{
    scene s;
    pool_results want = pool_reference(MODEL, WEFT_EXACT);
    open_scene(&s, 1 + _i);
    set_map(&s, 1, 1 + _i % 2, (2U << _i) - 1, NULL);
    await_links(&s, 1 + _i);
    for (int32_t cut = 0; cut < 8; cut += 7) {
        const pool_run run = compute(&s, &want, cut, _i);
        ck_assert_int_eq(run.n_failed, 0);
    }
    ck_assert_int_eq(s.heard.n_suspects, 0);
    weft_exchange_state state;
    weft_exchange_get_state(s.exchange, &state);
    ck_assert_int_eq(state.n_links, 1 + _i);
    close_scene(&s);
    pool_results_drop(&want);
}
END_TEST

enum { CUTS = 12 };

static int64_t bytes_of_a_run(const pool_results *want, bool answers)
{
    scene s;
    wire w = {.cut_after = -1, .answers = answers};
    open_scene(&s, 2);
    start_wire(&w, s.pool->shards[0].peer.address);
    set_map(&s, 1, 2, 3, w.address);
    await_links(&s, 2);
    (void)compute(&s, want, 0, -1);
    close_scene(&s);
    stop_wire(&w);
    return atomic_load(&w.n_bytes);
}

START_TEST(cut_after_any_number_of_bytes)
{
    const bool answers = _i % 2 == 0;
    pool_results want = pool_reference(MODEL, WEFT_EXACT);
    const int64_t all = bytes_of_a_run(&want, answers);
    /* Beyond both hellos, so that there is a link to be cut. */
    const int64_t hello = 1200;
    ck_assert_int_gt(all, 10 * hello);
    for (int32_t i = 0; i < 4; i++) {
        scene s;
        const int64_t nth = INT64_C(4) * _i + i;
        const int64_t cut = (all - hello) * nth / (INT64_C(5) * CUTS);
        wire w = {.answers = answers, .cut_after = hello + cut};
        open_scene(&s, 2);
        start_wire(&w, s.pool->shards[0].peer.address);
        set_map(&s, 1, 2, 3, w.address);
        await_links(&s, 2);
        const pool_run run = compute(&s, &want, 7 * (i % 2), (int)w.cut_after);
        ck_assert_int_eq(run.n_failed, 0);
        ck_assert(atomic_load(&w.was_cut));
        weft_exchange_state state;
        weft_exchange_get_state(s.exchange, &state);
        ck_assert_uint_le(state.n_fenced, 1);
        ck_assert_uint_eq(state.n_garbage, 0);
        close_scene(&s);
        stop_wire(&w);
    }
    pool_results_drop(&want);
}
END_TEST

START_TEST(cut_without_a_replica_and_dialled_again)
{
    scene s;
    pool_results want = pool_reference(MODEL, WEFT_EXACT);
    wire w = {.cut_after = 20000 + 3001 * _i, .answers = true, .again = true};
    open_scene(&s, 2);
    start_wire(&w, s.pool->shards[0].peer.address);
    set_map(&s, 1, 1, 3, w.address);
    const pool_run run = compute(&s, &want, 0, _i);
    ck_assert(atomic_load(&w.was_cut));
    ck_assert_int_le(run.n_failed, 1);
    ck_assert_int_ge(s.heard.n_suspects, 1);
    ck_assert_str_eq(s.heard.suspect, "e0");
    ck_assert_int_ge(s.heard.n_cleared, 1);
    ck_assert_uint_eq(s.heard.epoch, 1);
    close_scene(&s);
    stop_wire(&w);
    pool_results_drop(&want);
}
END_TEST

/* A placement without it was made meanwhile. */
START_TEST(left_out_and_cleared_when_it_is_reached)
{
    scene s;
    pool_results want = pool_reference(MODEL, WEFT_EXACT);
    wire w = {.cut_after = 20000, .answers = true};
    open_scene(&s, 2);
    start_wire(&w, s.pool->shards[0].peer.address);
    set_map(&s, 1, 2, 3, w.address);
    await_links(&s, 2);
    (void)compute(&s, &want, 0, 0);
    ck_assert(atomic_load(&w.was_cut));
    ck_assert_str_eq(s.heard.suspect, "e0");
    set_map(&s, 2, 1, 2, NULL); /* e1 alone */
    (void)compute(&s, &want, 0, 1);
    ck_assert_uint_eq(s.heard.epoch, 2);
    ck_assert_int_eq(s.heard.n_cleared, 0);
    atomic_store(&w.again, true);
    const uint64_t deadline = weft_clock_now_ns() + UINT64_C(20000000000);
    while (s.heard.n_cleared == 0) {
        ck_assert_uint_lt(weft_clock_now_ns(), deadline);
        s.model->experts.idle(s.model->experts.arg, deadline);
    }
    set_map(&s, 3, 2, 3, w.address);
    await_links(&s, 2);
    (void)compute(&s, &want, 0, 2);
    ck_assert_uint_eq(s.heard.epoch, 3);
    close_scene(&s);
    stop_wire(&w);
    pool_results_drop(&want);
}
END_TEST

/* One that cannot be reached at all is suspected, since it is needed. */
START_TEST(nobody_there)
{
    scene s;
    pool_results want = pool_reference(MODEL, WEFT_EXACT);
    open_scene(&s, 2);
    pool_stop_shard(s.pool, 0);
    set_map(&s, 1, 1, 3, NULL);
    const uint64_t deadline = weft_clock_now_ns() + UINT64_C(20000000000);
    while (s.heard.n_suspects == 0 && weft_clock_now_ns() < deadline)
        s.model->experts.idle(s.model->experts.arg, deadline);
    ck_assert_str_eq(s.heard.suspect, "e0");
    ck_assert_str_eq(s.heard.why, "cannot be reached");
    pool_start_shard(s.pool, 0, true);
    set_map(&s, 2, 1, 3, NULL);
    (void)compute(&s, &want, 0, 0);
    ck_assert_uint_eq(s.heard.epoch, 2);
    close_scene(&s);
    pool_results_drop(&want);
}
END_TEST

static void add(TCase *tests)
{
    tcase_add_loop_test(tests, bits_over_tcp, 0, 4);
    tcase_add_loop_test(tests, cut_after_any_number_of_bytes, 0, CUTS);
    tcase_add_loop_test(tests, cut_without_a_replica_and_dialled_again, 0, 4);
    tcase_add_test(tests, left_out_and_cleared_when_it_is_reached);
    tcase_add_test(tests, nobody_there);
}

int main(void)
{
    return weft_suite_run_added("exchange and server over tcp", add);
}
