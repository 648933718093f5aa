/* How devices talk (kernels/comm.h): ranks that are threads of this process,
 * each with a device of its own. test_cuda_comm_peers has other processes. */
#include <pthread.h>

#include "node/base/mem.h"
#include "tests/cuda/comm_kit.h"
#include "tests/cuda/simt_faults.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

enum { N_SIZES = 6, BIG = 70001, ROUNDS = 12 };

static const int64_t sizes[N_SIZES] = {1, 15, 16, 1000, 65536, BIG};
static unsigned char id[WEFT_COMM_ID_BYTES], other_id[WEFT_COMM_ID_BYTES];

static void make_ids(void)
{
    OK(comm_kit_api()->make_id(id, &err));
    OK(comm_kit_api()->make_id(other_id, &err));
}

/* Byte i of message m of a rank. */
static unsigned char byte_of(int32_t rank, int32_t m, int64_t i)
{
    return (unsigned char)((uint64_t)(rank * 31 + m * 7) +
                           (uint64_t)i * 2654435761U / 65536U);
}

static void write_message(unsigned char *to, int32_t rank, int32_t m,
                          int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++) to[i] = byte_of(rank, m, i);
}

static void expect_message(const unsigned char *got, int32_t rank, int32_t m,
                           int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++)
        ck_assert_msg(got[i] == byte_of(rank, m, i),
                      "message %d of rank %d: byte %lld of %lld", (int)m,
                      (int)rank, (long long)i, (long long)bytes);
}

/* One buffer, filled again for each message: after_ops says what a message is,
 * before_ops that the buffer is free again. */
static void one_way(int32_t rank, void *arg)
{
    const weft_device_api *const api = device_kit_api();
    const weft_comm_api *const comms = comm_kit_api();
    comm_end end;
    (void)arg;
    unsigned char *const host = weft_kit_new(N_SIZES, BIG);
    comm_kit_open(rank, &end);
    comm_kit_join(&end, id, 2, rank);
    void *const at = comm_kit_alloc(&end, BIG);
    for (int32_t m = 0; m < N_SIZES; m++) {
        unsigned char *const mine = host + (size_t)m * BIG;
        if (rank == 0) {
            write_message(mine, 0, m, sizes[m]);
            api->upload(at, mine, sizes[m]);
            comms->after_ops(end.comm);
            OK(comms->send(end.comm, at, sizes[m], 1, NULL));
            comms->before_ops(end.comm);
        } else {
            comms->after_ops(end.comm);
            OK(comms->recv(end.comm, at, sizes[m], 0, NULL));
            comms->before_ops(end.comm);
            api->download(mine, at, sizes[m]);
        }
    }
    OK(api->sync(NULL));
    for (int32_t m = 0; m < N_SIZES && rank == 1; m++)
        expect_message(host + (size_t)m * BIG, 0, m, sizes[m]);
    comm_kit_close(&end);
    weft_mem_free(host);
}

START_TEST(messages_come_whole_and_in_order)
{
    make_ids();
    comm_kit_ranks(2, one_way, NULL);
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

/* Each waits for the other's message before it sends its own next: with one
 * comm for both that would be an order to agree on. */
static void both_ways(int32_t rank, void *arg)
{
    const weft_device_api *const api = device_kit_api();
    const weft_comm_api *const comms = comm_kit_api();
    comm_end end, back;
    (void)arg;
    unsigned char *const host = weft_kit_new(2, BIG);
    comm_kit_open(rank, &end);
    back = (comm_end){.device = end.device};
    end.comm = comm_kit_begin(&end, rank == 0 ? id : other_id, 2, 0);
    back.comm = comm_kit_begin(&back, rank == 0 ? other_id : id, 2, 1);
    comm_kit_wait_both(end.comm, back.comm);
    void *const out = comm_kit_alloc(&end, BIG);
    void *const in = comm_kit_alloc(&end, BIG);
    for (int32_t m = 0; m < ROUNDS; m++) {
        const int64_t bytes = sizes[m % N_SIZES];
        comms->after_ops(back.comm);
        OK(comms->recv(back.comm, in, bytes, 0, NULL));
        write_message(host, rank, m, bytes);
        api->upload(out, host, bytes);
        comms->after_ops(end.comm);
        OK(comms->send(end.comm, out, bytes, 1, NULL));
        comms->before_ops(back.comm);
        api->download(host + BIG, in, bytes);
        comms->before_ops(end.comm);
        OK(api->sync(NULL));
        expect_message(host + BIG, 1 - rank, m, bytes);
    }
    comms->destroy(back.comm);
    comm_kit_close(&end);
    weft_mem_free(host);
}

START_TEST(two_comms_go_both_ways_at_once)
{
    make_ids();
    comm_kit_ranks(2, both_ways, NULL);
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

enum { N_RANKS = 3, PART = 1001 };

static void all_to_all(int32_t rank, void *arg)
{
    const weft_device_api *const api = device_kit_api();
    const weft_comm_api *const comms = comm_kit_api();
    comm_end end;
    (void)arg;
    unsigned char *const host = weft_kit_new(N_RANKS, PART);
    unsigned char *const got = weft_kit_new(3 * N_RANKS, PART);
    comm_kit_open(rank, &end);
    comm_kit_join(&end, id, N_RANKS, rank);
    unsigned char *const from = comm_kit_alloc(&end, N_RANKS * PART);
    unsigned char *const to = comm_kit_alloc(&end, 2 * N_RANKS * PART);
    for (int32_t r = 0; r < N_RANKS; r++)
        write_message(host + (size_t)r * PART, rank, r, PART);
    api->upload(from, host, N_RANKS * PART);
    comms->after_ops(end.comm);
    OK(comms->exchange(end.comm, from, to, PART, NULL));
    OK(comms->gather(end.comm, from, to + N_RANKS * PART, PART, NULL));
    comms->before_ops(end.comm);
    api->download(got, to, 2 * N_RANKS * PART);
    OK(api->sync(NULL));
    for (int32_t r = 0; r < N_RANKS; r++) {
        expect_message(got + (size_t)r * PART, r, rank, PART);
        expect_message(got + (size_t)(N_RANKS + r) * PART, r, 0, PART);
    }
    comm_kit_close(&end);
    weft_mem_free(host);
    weft_mem_free(got);
}

START_TEST(all_ranks_exchange_and_gather)
{
    make_ids();
    comm_kit_ranks(N_RANKS, all_to_all, NULL);
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

static void gather_in_place(int32_t rank, void *arg)
{
    const weft_device_api *const api = device_kit_api();
    const weft_comm_api *const comms = comm_kit_api();
    unsigned char host[N_RANKS * PART], mine[PART];
    comm_end end;
    (void)arg;
    comm_kit_open(rank, &end);
    comm_kit_join(&end, id, N_RANKS, rank);
    unsigned char *const all = comm_kit_alloc(&end, N_RANKS * PART);
    write_message(mine, rank, 5, PART);
    api->upload(all + (int64_t)rank * PART, mine, PART);
    comms->after_ops(end.comm);
    OK(comms->gather(end.comm, all + (int64_t)rank * PART, all, PART, NULL));
    comms->before_ops(end.comm);
    api->download(host, all, sizeof host);
    OK(api->sync(NULL));
    for (int32_t r = 0; r < N_RANKS; r++)
        expect_message(host + (size_t)r * PART, r, 5, PART);
    comm_kit_close(&end);
}

START_TEST(a_share_may_lie_in_its_place)
{
    make_ids();
    comm_kit_ranks(N_RANKS, gather_in_place, NULL);
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

/* Marks. ------------------------------------------------------------------- */

enum { N_MARKS = 40 }; /* more than the comm has events for */

static pthread_barrier_t turn;

static void marks(int32_t rank, void *arg)
{
    const weft_comm_api *const comms = comm_kit_api();
    comm_end end;
    uint64_t mark[N_MARKS];
    (void)arg;
    comm_kit_open(rank, &end);
    comm_kit_join(&end, id, 2, rank);
    void *const at = comm_kit_alloc(&end, 64);
    OK(device_kit_api()->sync(NULL));
    for (int32_t i = 0; i < N_MARKS; i++) {
        if (rank == 1) {
            OK(comms->recv(end.comm, at, 64, 0, NULL));
            mark[i] = comms->mark(end.comm);
        }
    }
    if (rank == 1)
        for (int32_t i = 0; i < N_MARKS; i++)
            ck_assert(!comms->is_done(end.comm, mark[i]));
    (void)pthread_barrier_wait(&turn);
    for (int32_t i = 0; i < N_MARKS && rank == 0; i++)
        OK(comms->send(end.comm, at, 64, 1, NULL));
    if (rank == 0) comm_kit_wait_done(end.comm, comms->mark(end.comm));
    if (rank == 1) {
        comm_kit_wait_done(end.comm, mark[3]); /* its event was used again */
        comm_kit_wait_done(end.comm, mark[N_MARKS - 1]);
        for (int32_t i = 0; i < N_MARKS; i++)
            ck_assert(comms->is_done(end.comm, mark[i]));
    }
    (void)pthread_barrier_wait(&turn);
    comm_kit_close(&end);
}

START_TEST(a_mark_is_done_when_what_was_before_it_is)
{
    make_ids();
    (void)pthread_barrier_init(&turn, NULL, 2);
    comm_kit_ranks(2, marks, NULL);
    (void)pthread_barrier_destroy(&turn);
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

/* Aborts. ------------------------------------------------------------------ */

static void *abort_it(void *comm)
{
    comm_kit_api()->abort(comm);
    comm_kit_api()->abort(comm);
    return NULL;
}

static void abort_from_a_thread(weft_comm *comm)
{
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, abort_it, comm), 0);
    (void)pthread_join(thread, NULL);
}

/* Rank 0 never sends; rank 1's ops wait behind the receive. */
static void lonely_receive(int32_t rank, void *arg)
{
    const weft_device_api *const api = device_kit_api();
    const weft_comm_api *const comms = comm_kit_api();
    static const float ones[4] = {1, 1, 1, 1};
    float got[4] = {0};
    comm_end end;
    (void)arg;
    comm_kit_open(rank, &end);
    comm_kit_join(&end, id, 2, rank);
    if (rank == 1) {
        void *const in = comm_kit_alloc(&end, 64);
        void *const x = comm_kit_alloc(&end, sizeof ones);
        api->upload(x, ones, sizeof ones);
        comms->after_ops(end.comm);
        OK(comms->recv(end.comm, in, 64, 0, NULL));
        const uint64_t mark = comms->mark(end.comm);
        comms->before_ops(end.comm);
        api->download(got, x, sizeof got);
        ck_assert(!comms->is_done(end.comm, mark));
        ck_assert_int_eq(comms->state(end.comm, NULL), WEFT_COMM_READY);
        abort_from_a_thread(end.comm);
        OK(api->sync(NULL));
        ck_assert(memcmp(got, ones, sizeof got) == 0);
        comm_kit_wait_done(end.comm, mark);
        comm_kit_expect_broken(end.comm, "aborted");
        weft_err told = {0};
        ck_assert_int_eq(comms->send(end.comm, in, 64, 0, &told),
                         WEFT_UNAVAILABLE);
        ck_assert_str_eq(told.text, "comm test: aborted");
        /* Fences of a broken comm hold nothing up. */
        comms->after_ops(end.comm);
        comms->before_ops(end.comm);
        OK(api->sync(NULL));
    }
    (void)pthread_barrier_wait(&turn);
    comm_kit_close(&end);
}

START_TEST(an_abort_lets_the_ops_behind_go_on)
{
    make_ids();
    (void)pthread_barrier_init(&turn, NULL, 2);
    comm_kit_ranks(2, lonely_receive, NULL);
    (void)pthread_barrier_destroy(&turn);
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

/* A send of one comm waits for ops, which wait for a receive of the other. The
 * abort of the first must not wait for the abort of the second. */
static void chained(int32_t rank, void *arg)
{
    const weft_device_api *const api = device_kit_api();
    const weft_comm_api *const comms = comm_kit_api();
    comm_end end, other;
    (void)arg;
    comm_kit_open(rank, &end);
    comm_kit_join(&end, id, 2, rank);
    other = end;
    comm_kit_join(&other, other_id, 2, rank);
    if (rank == 1) {
        void *const at = comm_kit_alloc(&end, 64);
        OK(comms->recv(other.comm, at, 64, 0, NULL));
        comms->before_ops(other.comm);
        api->fill(at, 0, 64);
        comms->after_ops(end.comm);
        OK(comms->send(end.comm, at, 64, 0, NULL));
        comms->abort(end.comm);
        comms->abort(other.comm);
        OK(api->sync(NULL));
    }
    (void)pthread_barrier_wait(&turn);
    comms->destroy(other.comm);
    comm_kit_close(&end);
}

START_TEST(aborts_do_not_wait_for_each_other)
{
    make_ids();
    (void)pthread_barrier_init(&turn, NULL, 2);
    comm_kit_ranks(2, chained, NULL);
    (void)pthread_barrier_destroy(&turn);
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

START_TEST(who_joins_alone_can_leave)
{
    weft_err err = {0};
    comm_end end;
    make_ids();
    comm_kit_open(0, &end);
    for (int i = 0; i < 2; i++) {
        end.comm = comm_kit_begin(&end, i == 0 ? id : other_id, 2, i);
        for (int j = 0; j < 100; j++)
            ck_assert_int_eq(comm_kit_api()->state(end.comm, &err),
                             WEFT_COMM_PENDING);
        if (i == 0) comm_kit_api()->abort(end.comm);
        if (i == 0) comm_kit_expect_broken(end.comm, "aborted");
        comm_kit_api()->destroy(end.comm);
        end.comm = NULL;
    }
    comm_kit_api()->destroy(NULL);
    comm_kit_close(&end);
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

int main(void)
{
    comm_kit_need(3);
    const TTest *const tests[] = {
        messages_come_whole_and_in_order,
        two_comms_go_both_ways_at_once,
        all_ranks_exchange_and_gather,
        a_share_may_lie_in_its_place,
        a_mark_is_done_when_what_was_before_it_is,
        an_abort_lets_the_ops_behind_go_on,
        aborts_do_not_wait_for_each_other,
        who_joins_alone_can_leave,
    };
    return WEFT_SUITE_RUN("cuda_comm", tests);
}
