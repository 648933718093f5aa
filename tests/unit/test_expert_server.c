/* An expert server by itself: what it rejects, what breaks a link, that a link
 * which does not read holds up nobody else, and what it counts. */
#include <limits.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "shard/expert/body.h"
#include "tests/support/expect.h"
#include "tests/support/link_kit.h"
#include "tests/support/pool.h"
#include "tests/support/suite.h"

#define MODEL "tests/data/fixtures/dots3-mixed"

static const uint64_t WAIT_NS = 20000000000;

/* A layer shard's end of a link, by hand. */
typedef struct asker {
    pool *pool;
    weft_link *link;
    weft_poller *poller;
    float *x; /* zeros */
} asker;

static int32_t moe_layer(const weft_model_config *c)
{
    int32_t l = 0;
    while (!c->moe[l]) l++;
    return l;
}

static asker open_over(pool *p, weft_link *link, weft_link *other)
{
    asker a = {.pool = p, .link = link};
    OK(weft_poller_create(&a.poller, &err));
    OK(weft_poller_add(a.poller, a.link, &err));
    a.x = weft_mem_new(WEFT_DISPATCH_ROWS_MAX,
                       (size_t)p->config.hidden_size * sizeof(float));
    OK(weft_expert_server_add_link(p->shards[0].server, other, &err));
    return a;
}

static asker open_asker(pool *p, int32_t queue_frames)
{
    weft_link_options here = pool_asker_link(p), there = pool_server_link(p);
    weft_link *link = NULL, *other = NULL;
    here.queue_frames = there.queue_frames = queue_frames;
    OK(weft_link_create_local(&here, &there, &link, &other, &err));
    return open_over(p, link, other);
}

/* Over sockets that hold less than an answer, in front of a queue of one. */
static asker open_narrow_asker(pool *p)
{
    const weft_link_options here = pool_asker_link(p);
    weft_link_options there = pool_server_link(p);
    weft_link *link = NULL, *other = NULL;
    int a = -1, b = -1, bytes = 16384;
    there.queue_frames = 1;
    kit_sockets(&a, &b);
    (void)setsockopt(a, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    (void)setsockopt(b, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    OK(weft_link_create_tcp(a, NULL, false, &here, &link, &err));
    OK(weft_link_create_tcp(b, NULL, false, &there, &other, &err));
    return open_over(p, link, other);
}

static void close_asker(asker *a)
{
    weft_poller_remove(a->poller, a->link);
    weft_link_close(a->link);
    weft_poller_destroy(a->poller);
    weft_mem_free(a->x);
}

static weft_frame question(const asker *a, uint64_t epoch, uint32_t tag)
{
    return (weft_frame){
        .type = WEFT_FRAME_DISPATCH,
        .epoch = epoch,
        .step = 7,
        .layer = moe_layer(&a->pool->config),
        .attempt = 3,
        .group = 5,
        .tag = tag,
        .row_bytes = (uint32_t)a->pool->config.hidden_size * 4,
    };
}

/* Pairs (row i % n_rows, expert first + i * stride). */
static weft_status ask_experts(asker *a, weft_frame *frame, int32_t n_pairs,
                               int32_t n_rows, int32_t first, int32_t stride)
{
    unsigned char *const body = weft_mem_new(WEFT_DISPATCH_BODY_BYTES_MAX, 1);
    const void **const rows = weft_mem_new((size_t)n_rows, sizeof(void *));
    weft_dispatch_pair *const pairs =
        weft_mem_new((size_t)n_pairs, sizeof *pairs);
    for (int32_t i = 0; i < n_rows; i++) rows[i] = a->x;
    for (int32_t i = 0; i < n_pairs; i++)
        pairs[i] = (weft_dispatch_pair){.row = i % n_rows,
                                        .expert = (first + i * stride) %
                                                  a->pool->config.n_expert,
                                        .pair = 1000 + (uint32_t)i};
    frame->body = body;
    frame->body_bytes = weft_dispatch_encode(pairs, n_pairs, body);
    frame->n_rows = n_rows;
    const weft_status st = weft_link_send(a->link, frame, rows, NULL);
    weft_mem_free(body);
    weft_mem_free(rows);
    weft_mem_free(pairs);
    return st;
}

static weft_status ask(asker *a, weft_frame *frame, int32_t n_pairs,
                       int32_t n_rows, int32_t first)
{
    return ask_experts(a, frame, n_pairs, n_rows, first, 1);
}

/* The next frame; false: the link has ended, with its reason. */
static bool next(asker *a, weft_frame *frame_out, weft_err *err)
{
    const uint64_t deadline = weft_clock_now_ns() + WAIT_NS;
    for (bool got = false;;) {
        if (weft_link_recv(a->link, frame_out, &got, err) != WEFT_OK)
            return false;
        if (got) return true;
        ck_assert_uint_lt(weft_clock_now_ns(), deadline);
        weft_poller_wait(a->poller, deadline, 0);
    }
}

static void expect_named(const weft_frame *asked, const weft_frame *frame)
{
    ck_assert(frame->epoch == asked->epoch && frame->step == asked->step &&
              frame->layer == asked->layer &&
              frame->attempt == asked->attempt &&
              frame->group == asked->group && frame->tag == asked->tag);
}

static void expect_rejected(asker *a, const weft_frame *asked,
                            weft_reject_reason reason, const char *text)
{
    weft_frame frame;
    weft_err ended = {0};
    weft_reject_reason said;
    char why[WEFT_REJECT_TEXT_BYTES];
    ck_assert(next(a, &frame, &ended));
    ck_assert_int_eq(frame.type, WEFT_FRAME_REJECT);
    expect_named(asked, &frame);
    OK(weft_reject_decode(&frame, &said, why, &err));
    ck_assert_int_eq(said, reason);
    ck_assert_msg(strstr(why, text) != NULL, "%s", why);
}

static void expect_answered(asker *a, const weft_frame *asked, int32_t n_pairs)
{
    bool *const seen = weft_mem_new((size_t)n_pairs, sizeof *seen);
    for (int32_t left = n_pairs; left > 0;) {
        weft_frame frame;
        weft_err ended = {0};
        uint32_t pairs[WEFT_ANSWER_ROWS_MAX];
        ck_assert_msg(next(a, &frame, &ended), "%s", ended.text);
        ck_assert_int_eq(frame.type, WEFT_FRAME_ANSWER);
        expect_named(asked, &frame);
        OK(weft_answer_decode(&frame, &a->pool->config, pairs, &err));
        for (int32_t i = 0; i < frame.n_rows; i++) {
            const uint32_t p = pairs[i] - 1000;
            ck_assert(p < (uint32_t)n_pairs && !seen[p]);
            seen[p] = true;
        }
        left -= frame.n_rows;
    }
    weft_mem_free(seen);
}

static pool *open_pool(bool holds_all)
{
    const pool_options options = {.n_shards = 1, .holds_all = holds_all};
    return pool_open(MODEL, WEFT_EXACT, &options);
}

START_TEST(closed_epochs_are_rejected)
{
    pool *const p = open_pool(true);
    asker a = open_asker(p, 0);
    weft_expert_server_set_epochs(p->shards[0].server, 4, 5);
    for (uint64_t epoch = 2; epoch < 8; epoch++) {
        weft_frame q = question(&a, epoch, (uint32_t)epoch);
        OK(ask(&a, &q, 3, 2, 0));
        if (epoch < 4 || epoch > 5)
            expect_rejected(&a, &q, WEFT_REJECT_EPOCH, "4 to 5");
        else
            expect_answered(&a, &q, 3);
    }
    weft_expert_server_set_epochs(p->shards[0].server, 0, 0);
    weft_frame q = question(&a, 4, 1);
    OK(ask(&a, &q, 1, 1, 0));
    expect_rejected(&a, &q, WEFT_REJECT_EPOCH, "is not open");
    weft_expert_server_stats stats;
    weft_expert_server_get_stats(p->shards[0].server, &stats);
    ck_assert_uint_eq(stats.questions, 7);
    ck_assert_uint_eq(stats.rejected, 5);
    ck_assert_uint_eq(stats.rows, 6);
    ck_assert_uint_eq(stats.last_epoch, 7);
    ck_assert_uint_eq(stats.n_waits, 2);
    ck_assert(stats.busy_share > 0.0 && stats.busy_share < 1.0);
    ck_assert_int_eq(stats.n_links, 1);
    close_asker(&a);
    pool_close(p);
}
END_TEST

START_TEST(what_is_not_held_is_rejected)
{
    pool *const p = open_pool(false);
    asker a = open_asker(p, 0);
    const int32_t layer = moe_layer(&p->config);
    uint64_t hash = 0;
    OK(weft_expert_store_load(p->shards[0].store, layer, 2, &hash, &err));
    weft_frame q = question(&a, 1, 1);
    OK(ask(&a, &q, 1, 1, 2));
    expect_answered(&a, &q, 1);
    OK(ask(&a, &q, 2, 1, 2));
    char text[32];
    (void)snprintf(text, sizeof text, "layer %d expert 3", layer);
    expect_rejected(&a, &q, WEFT_REJECT_EXPERT, text);
    /* It may be let go while the server sleeps, and is missed at once. */
    weft_expert_store_drop(p->shards[0].store, layer, 2);
    OK(ask(&a, &q, 1, 1, 2));
    expect_rejected(&a, &q, WEFT_REJECT_EXPERT, "expert 2");
    close_asker(&a);
    pool_close(p);
}
END_TEST

START_TEST(any_size_in_pieces)
{
    pool *const p = open_pool(true);
    asker a = open_asker(p, 0);
    const int32_t sizes[] = {1, 2, 127, 128, 129, 300, 1000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        weft_frame q = question(&a, 1, (uint32_t)i);
        OK(ask(&a, &q, sizes[i], sizes[i] < 64 ? sizes[i] : 64, 0));
        expect_answered(&a, &q, sizes[i]);
    }
    close_asker(&a);
    pool_close(p);
}
END_TEST

enum { NONSENSE = 9 };

START_TEST(nonsense_breaks_its_link)
{
    pool *const p = open_pool(true);
    asker good = open_asker(p, 0), a = open_asker(p, 0);
    weft_frame q = question(&a, 1, 1);
    uint32_t body[8] = {1, 0, 0, 0, 0};
    const void *rows[65];
    for (size_t i = 0; i < 65; i++) rows[i] = a.x;
    q.body = body;
    q.body_bytes = 20;
    q.n_rows = 1;
    switch (_i) {
    case 0: body[0] = 0; break;
    case 1: body[0] = UINT32_MAX; break;
    case 2: body[1] = 1; break; /* flags */
    case 3: body[2] = 1; break; /* row */
    case 4: body[3] = (uint32_t)p->config.n_expert; break;
    case 5: q.body_bytes = 24; break;
    case 6: q.row_bytes -= 4; break;
    case 7: q.layer = p->config.n_layer; break;
    default: q.n_rows = 65; break; /* more than max_rows */
    }
    OK(weft_link_send(a.link, &q, rows, &err));
    weft_frame frame;
    weft_err ended = {0};
    ck_assert(!next(&a, &frame, &ended));
    /* Nobody else notices. */
    q = question(&good, 1, 2);
    OK(ask(&good, &q, 5, 5, 0));
    expect_answered(&good, &q, 5);
    close_asker(&a);
    close_asker(&good);
    pool_close(p);
}
END_TEST

START_TEST(too_many_links)
{
    pool *const p = open_pool(true);
    asker askers[8];
    for (int32_t i = 0; i < 8; i++) askers[i] = open_asker(p, 0);
    const weft_link_options here = pool_asker_link(p),
                            there = pool_server_link(p);
    weft_link *a = NULL, *b = NULL;
    weft_err full = {0};
    OK(weft_link_create_local(&here, &there, &a, &b, &err));
    ck_assert_int_eq(weft_expert_server_add_link(p->shards[0].server, b, &full),
                     WEFT_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(full.text, "8 links"));
    weft_link_close(a);
    for (int32_t i = 0; i < 8; i++) {
        weft_frame q = question(&askers[i], 1, 1);
        OK(ask(&askers[i], &q, 2, 2, i));
        expect_answered(&askers[i], &q, 2);
        close_asker(&askers[i]);
    }
    pool_close(p);
}
END_TEST

/* One asks without end and reads nothing; another is answered all the same, and
 * the first, once it reads, gets everything. */
START_TEST(who_does_not_read_waits_alone)
{
    pool *const p = open_pool(true);
    asker stuck = open_asker(p, 2), a = open_asker(p, 0);
    weft_frame q = question(&stuck, 1, 1);
    int32_t n_asked = 0;
    const uint64_t deadline = weft_clock_now_ns() + WAIT_NS;
    /* Until answers and questions fill both directions. */
    weft_expert_server_stats stats = {0};
    while (n_asked < 4 || stats.rows < 200) {
        if (ask(&stuck, &q, 200, 8, 0) == WEFT_OK) n_asked++;
        weft_expert_server_get_stats(p->shards[0].server, &stats);
        ck_assert_uint_lt(weft_clock_now_ns(), deadline);
    }
    for (int32_t i = 0; i < 20; i++) {
        weft_frame other = question(&a, 1, 2);
        OK(ask(&a, &other, 9, 3, i));
        expect_answered(&a, &other, 9);
    }
    for (int32_t i = 0; i < n_asked; i++) expect_answered(&stuck, &q, 200);
    close_asker(&stuck);
    close_asker(&a);
    pool_close(p);
}
END_TEST

enum { MANY_PAIRS = 2000, MANY_ROWS = 20 };

/* Until no more answers find room. */
static void let_stand(const pool *p)
{
    weft_expert_server_stats stats = {0};
    uint64_t rows = 0, since_ns = weft_clock_now_ns();
    while (stats.rows == 0 || weft_clock_now_ns() < since_ns + 100000000) {
        weft_expert_server_get_stats(p->shards[0].server, &stats);
        if (stats.rows != rows) since_ns = weft_clock_now_ns();
        rows = stats.rows;
        (void)sched_yield();
    }
}

/* Rows that differ, and what each of their pairs is answered. */
static float *answers_of(asker *a)
{
    const int64_t hidden = a->pool->config.hidden_size;
    float *const out = weft_mem_new(MANY_PAIRS, (size_t)hidden * sizeof *out);
    const void *rows[MANY_ROWS];
    weft_dispatch_pair *const pairs = weft_mem_new(MANY_PAIRS, sizeof *pairs);
    unsigned char *const body = weft_mem_new(WEFT_DISPATCH_BODY_BYTES_MAX, 1);
    for (int64_t i = 0; i < MANY_ROWS * hidden; i++)
        a->x[i] = (float)(i * 7 % 101) * 0.03125F - 1.0F;
    for (int32_t r = 0; r < MANY_ROWS; r++) rows[r] = a->x + r * hidden;
    for (int32_t i = 0; i < MANY_PAIRS; i++)
        pairs[i] = (weft_dispatch_pair){.row = i % MANY_ROWS,
                                        .expert = i % a->pool->config.n_expert,
                                        .pair = (uint32_t)i};
    weft_frame q = question(a, 1, 1);
    q.body = body;
    q.body_bytes = weft_dispatch_encode(pairs, MANY_PAIRS, body);
    q.n_rows = MANY_ROWS;
    OK(weft_link_send(a->link, &q, rows, &err));
    OK(weft_link_flush(a->link, weft_clock_now_ns() + WAIT_NS, &err));
    let_stand(a->pool);
    for (int32_t left = MANY_PAIRS; left > 0;) {
        weft_frame frame;
        weft_err ended = {0};
        uint32_t of[WEFT_ANSWER_ROWS_MAX];
        ck_assert_msg(next(a, &frame, &ended), "%s", ended.text);
        OK(weft_answer_decode(&frame, &a->pool->config, of, &err));
        for (int32_t i = 0; i < frame.n_rows; i++)
            memcpy(out + of[i] * hidden, (const float *)frame.rows + i * hidden,
                   (size_t)hidden * sizeof *out);
        left -= frame.n_rows;
    }
    weft_mem_free(pairs);
    weft_mem_free(body);
    return out;
}

/* Rows that found no room when they had been computed come out as they are. */
START_TEST(a_full_queue_changes_no_row)
{
    pool *const p = open_pool(true);
    asker a = open_asker(p, 0), narrow = open_narrow_asker(p);
    float *const want = answers_of(&a), *const got = answers_of(&narrow);
    const size_t bytes = (size_t)p->config.hidden_size * sizeof *want;
    ck_assert_mem_eq(want, got, MANY_PAIRS * bytes);
    weft_mem_free(want);
    weft_mem_free(got);
    close_asker(&a);
    close_asker(&narrow);
    pool_close(p);
}
END_TEST

START_TEST(who_never_reads_is_broken)
{
    pool *const p = open_pool(true);
    weft_expert_server_stop(p->shards[0].server);
    const weft_expert_server_options options = {
        .config = &p->shards[0].config,
        .store = p->shards[0].store,
        .ops = weft_ops_cpu_nth(0),
        .threads = 1,
        .max_rows = 64,
        .links_max = 2,
        .stall_ns = 50000000,
    };
    OK(weft_expert_server_start(&options, &p->shards[0].server, &err));
    weft_expert_server_set_epochs(p->shards[0].server, 1, 1);
    asker stuck = open_asker(p, 2);
    weft_frame q = question(&stuck, 1, 1);
    weft_expert_server_stats stats = {.n_links = 1};
    const uint64_t deadline = weft_clock_now_ns() + WAIT_NS;
    while (stats.n_links > 0) {
        (void)!ask(&stuck, &q, 200, 8, 0);
        weft_expert_server_get_stats(p->shards[0].server, &stats);
        ck_assert_uint_lt(weft_clock_now_ns(), deadline);
    }
    close_asker(&stuck);
    pool_close(p);
}
END_TEST

/* -- while it computes ---------------------------------------------------- */

/* A server whose products stop until they are let through. */
static struct {
    const weft_ops *real;
    atomic_int n_begun, n_allowed;
} gate;

static void gated_gemm(weft_threads *threads, const weft_gemm *list, int32_t n)
{
    const int mine = atomic_fetch_add(&gate.n_begun, 1);
    const uint64_t deadline = weft_clock_now_ns() + WAIT_NS;
    while (mine >= atomic_load(&gate.n_allowed)) {
        ck_assert_uint_lt(weft_clock_now_ns(), deadline);
        (void)sched_yield();
    }
    gate.real->gemm(threads, list, n);
}

/* Until the server stands before its product number n, from 0. */
static void wait_gate(int n)
{
    const uint64_t deadline = weft_clock_now_ns() + WAIT_NS;
    while (atomic_load(&gate.n_begun) <= n) {
        ck_assert_uint_lt(weft_clock_now_ns(), deadline);
        (void)sched_yield();
    }
}

static pool *open_gated(weft_pulse *pulse)
{
    static weft_ops ops;
    pool *const p = open_pool(true);
    gate.real = weft_ops_cpu_nth(0);
    atomic_store(&gate.n_begun, 0);
    atomic_store(&gate.n_allowed, 0);
    ops = *gate.real;
    ops.gemm = gated_gemm;
    weft_expert_server_stop(p->shards[0].server);
    const weft_expert_server_options options = {
        .config = &p->shards[0].config,
        .store = p->shards[0].store,
        .ops = &ops,
        .threads = 1,
        .max_rows = WEFT_DISPATCH_ROWS_MAX,
        .links_max = 8,
        .pulse = pulse,
    };
    OK(weft_expert_server_start(&options, &p->shards[0].server, &err));
    weft_expert_server_set_epochs(p->shards[0].server, 1, 1);
    return p;
}

START_TEST(a_link_that_comes_while_it_computes_is_alive)
{
    weft_pulse *pulse = NULL;
    OK(weft_pulse_start(1000000, &pulse, &err));
    pool *const p = open_gated(pulse);
    asker busy = open_asker(p, 0);
    weft_frame q = question(&busy, 1, 1);
    OK(ask(&busy, &q, 1, 1, 0));
    wait_gate(0);
    asker a = open_asker(p, 0);
    weft_link_stats stats = {0};
    weft_pulse_step(pulse);
    const uint64_t deadline = weft_clock_now_ns() + WAIT_NS;
    while (stats.pulse_step == 0) {
        weft_link_get_stats(a.link, &stats);
        ck_assert_uint_lt(weft_clock_now_ns(), deadline);
    }
    atomic_store(&gate.n_allowed, INT_MAX);
    expect_answered(&busy, &q, 1);
    close_asker(&a);
    close_asker(&busy);
    pool_close(p);
    weft_pulse_stop(pulse);
}
END_TEST

static void count_hung(void *arg)
{
    (void)atomic_fetch_add((atomic_int *)arg, 1);
}

START_TEST(a_round_that_does_not_end_is_seen)
{
    atomic_int n_hung = 0;
    weft_pulse *pulse = NULL;
    OK(weft_pulse_start(1000000, &pulse, &err));
    pool *const p = open_gated(pulse);
    weft_pulse_watch(pulse, 100000000, count_hung, &n_hung);
    asker busy = open_asker(p, 0);
    weft_frame q = question(&busy, 1, 1);
    OK(ask(&busy, &q, 1, 1, 0));
    const uint64_t deadline = weft_clock_now_ns() + WAIT_NS;
    while (atomic_load(&n_hung) == 0)
        ck_assert_uint_lt(weft_clock_now_ns(), deadline);
    ck_assert_int_eq(atomic_load(&gate.n_begun), 1);
    atomic_store(&gate.n_allowed, INT_MAX);
    expect_answered(&busy, &q, 1);
    close_asker(&busy);
    pool_close(p);
    weft_pulse_stop(pulse);
}
END_TEST

/* Others ask for the same expert, as much as a round can take. */
START_TEST(the_oldest_is_in_every_round)
{
    enum { N = WEFT_ANSWER_ROWS_MAX, OTHERS = 4 };
    pool *const p = open_gated(NULL);
    asker others[OTHERS];
    weft_frame asked[OTHERS];
    for (int32_t i = 0; i < OTHERS; i++) {
        others[i] = open_asker(p, 0);
        asked[i] = question(&others[i], 1, 7);
        OK(ask(&others[i], &asked[i], 1, 1, 0)); /* has its place */
        atomic_fetch_add(&gate.n_allowed, 2);
        expect_answered(&others[i], &asked[i], 1);
    }
    asker first = open_asker(p, 0);
    weft_frame q = question(&first, 1, 1);
    OK(ask_experts(&first, &q, 2 * N, N, 0, 0));
    wait_gate(2 * OTHERS); /* its first half */
    for (int32_t i = 0; i < OTHERS; i++)
        OK(ask_experts(&others[i], &asked[i], N, N, 0, 0));
    atomic_fetch_add(&gate.n_allowed, 2 * 2); /* and another round */
    expect_answered(&first, &q, 2 * N);
    atomic_store(&gate.n_allowed, INT_MAX);
    for (int32_t i = 0; i < OTHERS; i++)
        expect_answered(&others[i], &asked[i], N);
    for (int32_t i = 0; i < OTHERS; i++) close_asker(&others[i]);
    close_asker(&first);
    pool_close(p);
}
END_TEST

static void add(TCase *tests)
{
    tcase_add_test(tests, a_link_that_comes_while_it_computes_is_alive);
    tcase_add_test(tests, the_oldest_is_in_every_round);
    tcase_add_test(tests, a_round_that_does_not_end_is_seen);
    tcase_add_test(tests, closed_epochs_are_rejected);
    tcase_add_test(tests, what_is_not_held_is_rejected);
    tcase_add_test(tests, any_size_in_pieces);
    tcase_add_loop_test(tests, nonsense_breaks_its_link, 0, NONSENSE);
    tcase_add_test(tests, too_many_links);
    tcase_add_test(tests, who_does_not_read_waits_alone);
    tcase_add_test(tests, a_full_queue_changes_no_row);
    tcase_add_test(tests, who_never_reads_is_broken);
}

int main(void)
{
    return weft_suite_run_added("expert server", add);
}
