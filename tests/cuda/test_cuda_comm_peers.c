/* Comms between processes (kernels/comm.h), and what becomes of one end when
 * the other dies, freezes, or does something else. The peer is a child, and is
 * rank 1; it is made before anything of the device is there. */
#include "tests/cuda/comm_kit.h"
#include "tests/cuda/simt_faults.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

enum { BYTES = 40000, ROUNDS = 9, WAIT_S = 120 };

struct peer {
    pid_t pid;
    int to, from; /* pipes */
};

static unsigned char id[WEFT_COMM_ID_BYTES];

static void tell(int fd, const void *from, size_t bytes)
{
    ck_assert_int_eq(write(fd, from, bytes), (ssize_t)bytes);
}

static void hear(int fd, void *to, size_t bytes)
{
    unsigned char *at = to;
    while (bytes > 0) {
        const ssize_t n = read(fd, at, bytes);
        ck_assert_int_gt(n, 0);
        at += n;
        bytes -= (size_t)n;
    }
}

/* What a peer does when it has joined; it ends with its process. */
typedef void (*peer_fn)(comm_end *end, const struct peer *with);

static struct peer start_peer(peer_fn fn)
{
    int to[2], from[2];
    ck_assert(pipe(to) == 0 && pipe(from) == 0);
    (void)fflush(NULL);
    struct peer p = {fork(), to[1], from[0]};
    if (p.pid != 0) {
        (void)close(to[0]);
        (void)close(from[1]);
        return p;
    }
    comm_end end;
    (void)alarm(WAIT_S);
    (void)close(to[1]); /* reads end when the parent does */
    (void)close(from[0]);
    p = (struct peer){0, from[1], to[0]};
    hear(p.from, id, sizeof id);
    comm_kit_open(0, &end);
    comm_kit_join(&end, id, 2, 1);
    fn(&end, &p);
    comm_kit_close(&end);
    _exit(live_things() == 0 ? 0 : 3);
}

static void join_peer(const struct peer *p, comm_end *end)
{
    OK(comm_kit_api()->make_id(id, &err));
    tell(p->to, id, sizeof id);
    comm_kit_open(0, end);
    comm_kit_join(end, id, 2, 0);
}

static void end_peer(const struct peer *p, int expected)
{
    int status = 0;
    (void)close(p->to);
    ck_assert_int_eq(waitpid(p->pid, &status, 0), p->pid);
    (void)close(p->from);
    if (expected != 0)
        ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == expected);
    else
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%d",
                      status);
}

static void write_bytes(unsigned char *to, int round)
{
    for (int i = 0; i < BYTES; i++) to[i] = (unsigned char)(i * 7 + round);
}

/* Adds one to each byte by way of the host, and sends them back. */
static void answer(comm_end *end, const struct peer *with)
{
    const weft_device_api *const api = device_kit_api();
    const weft_comm_api *const comms = comm_kit_api();
    unsigned char host[BYTES];
    (void)with;
    void *const at = comm_kit_alloc(end, BYTES);
    for (int round = 0; round < ROUNDS; round++) {
        OK(comms->recv(end->comm, at, BYTES, 0, &err));
        comms->before_ops(end->comm);
        api->download(host, at, BYTES);
        OK(api->sync(&err));
        for (int i = 0; i < BYTES; i++) host[i]++;
        api->upload(at, host, BYTES);
        comms->after_ops(end->comm);
        OK(comms->send(end->comm, at, BYTES, 0, &err));
    }
    comm_kit_wait_done(end->comm, comms->mark(end->comm));
}

START_TEST(processes_talk)
{
    const weft_device_api *const api = device_kit_api();
    const weft_comm_api *const comms = comm_kit_api();
    const struct peer p = start_peer(answer);
    unsigned char host[BYTES], got[BYTES];
    comm_end end;
    join_peer(&p, &end);
    void *const at = comm_kit_alloc(&end, BYTES);
    for (int round = 0; round < ROUNDS; round++) {
        write_bytes(host, round);
        api->upload(at, host, BYTES);
        comms->after_ops(end.comm);
        OK(comms->send(end.comm, at, BYTES, 1, &err));
        OK(comms->recv(end.comm, at, BYTES, 1, &err));
        comms->before_ops(end.comm);
        api->download(got, at, BYTES);
        OK(api->sync(&err));
        for (int i = 0; i < BYTES; i++)
            ck_assert_int_eq(got[i], (unsigned char)(host[i] + 1));
    }
    comm_kit_close(&end);
    end_peer(&p, 0);
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

/* Says that it is there, and sends nothing. */
static void say_nothing(comm_end *end, const struct peer *with)
{
    char byte = 0;
    (void)end;
    tell(with->to, &byte, 1);
    (void)!read(with->from, &byte, 1);
}

/* Until a peer that says so is there. */
static struct peer meet_peer(peer_fn fn, comm_end *end)
{
    const struct peer p = start_peer(fn);
    char byte;
    join_peer(&p, end);
    hear(p.from, &byte, 1);
    return p;
}

/* Ops of the thread that wait for the peer's message; 1 is what they see. */
static void wait_behind(const comm_end *end, float got[4])
{
    static const float ones[4] = {1, 1, 1, 1};
    const weft_device_api *const api = device_kit_api();
    const weft_comm_api *const comms = comm_kit_api();
    void *const in = comm_kit_alloc(end, BYTES);
    void *const x = comm_kit_alloc(end, sizeof ones);
    api->upload(x, ones, sizeof ones);
    comms->after_ops(end->comm);
    OK(comms->recv(end->comm, in, BYTES, 1, &err));
    comms->before_ops(end->comm);
    api->download(got, x, sizeof ones);
}

static void abort_and_go_on(comm_end *end, const float got[4])
{
    comm_kit_api()->abort(end->comm);
    OK(device_kit_api()->sync(&err));
    for (int i = 0; i < 4; i++) ck_assert(got[i] == 1.0F);
    comm_kit_close(end);
}

START_TEST(a_peer_that_was_killed_is_told)
{
    weft_err told = {0};
    float got[4] = {0};
    comm_end end;
    const struct peer p = meet_peer(say_nothing, &end);
    wait_behind(&end, got);
    ck_assert_int_eq(kill(p.pid, SIGKILL), 0);
    const uint64_t mark = comm_kit_api()->mark(end.comm);
    while (comm_kit_api()->state(end.comm, &told) == WEFT_COMM_READY)
        ck_assert(!comm_kit_api()->is_done(end.comm, mark));
    ck_assert_str_eq(told.text, "comm test: work: remote process exited or "
                                "network error (NCCL 6)");
    abort_and_go_on(&end, got);
    end_peer(&p, SIGKILL);
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

/* Nothing is known but that what was begun is not done. */
static void expect_nothing_told(const comm_end *end)
{
    const uint64_t mark = comm_kit_api()->mark(end->comm);
    for (int i = 0; i < 100; i++) {
        ck_assert(!comm_kit_api()->is_done(end->comm, mark));
        ck_assert_int_eq(comm_kit_api()->state(end->comm, NULL),
                         WEFT_COMM_READY);
    }
}

/* A frozen one, and one whose end is not told. */
START_TEST(a_silent_peer_is_for_the_owner_to_judge)
{
    float got[4] = {0};
    comm_end end;
    const struct peer p = meet_peer(say_nothing, &end);
    if (_i == 0) {
        ck_assert_int_eq(kill(p.pid, SIGSTOP), 0);
    } else {
        order_fault("nccl_silent");
        ck_assert_int_eq(kill(p.pid, SIGKILL), 0);
    }
    wait_behind(&end, got);
    expect_nothing_told(&end);
    abort_and_go_on(&end, got);
    (void)kill(p.pid, SIGKILL);
    end_peer(&p, SIGKILL);
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

/* Its message is begun and never ends. */
static void hang(comm_end *end, const struct peer *with)
{
    void *const at = comm_kit_alloc(end, BYTES);
    order_fault("nccl_hang:1");
    OK(comm_kit_api()->send(end->comm, at, BYTES, 0, &err));
    say_nothing(end, with);
    comm_kit_api()->abort(end->comm);
}

START_TEST(a_message_that_hangs_is_ended_by_aborts)
{
    float got[4] = {0};
    comm_end end;
    const struct peer p = meet_peer(hang, &end);
    wait_behind(&end, got);
    expect_nothing_told(&end);
    abort_and_go_on(&end, got);
    end_peer(&p, 0);
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

/* All have met, and the first message of the other is never heard. */
START_TEST(a_rank_that_is_not_heard_is_not_ready)
{
    order_fault("nccl_hang:1"); /* of the peer */
    const struct peer p = start_peer(say_nothing);
    order_fault(NULL);
    weft_err told = {0};
    comm_end end;
    OK(comm_kit_api()->make_id(id, &err));
    tell(p.to, id, sizeof id);
    comm_kit_open(0, &end);
    end.comm = comm_kit_begin(&end, id, 2, 0);
    for (int i = 0; i < 300; i++) {
        ck_assert_int_eq(comm_kit_api()->state(end.comm, &told),
                         WEFT_COMM_PENDING);
        comm_kit_let_others();
    }
    comm_kit_close(&end);
    ck_assert_int_eq(kill(p.pid, SIGKILL), 0);
    end_peer(&p, SIGKILL);
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

/* A new comm with a peer after one that broke. */
static void come_again(comm_end *end, const struct peer *with)
{
    comm_kit_api()->destroy(end->comm);
    hear(with->from, id, sizeof id);
    comm_kit_join(end, id, 2, 1);
    answer(end, with);
}

START_TEST(a_new_comm_takes_the_place_of_a_broken_one)
{
    const weft_device_api *const api = device_kit_api();
    const weft_comm_api *const comms = comm_kit_api();
    const struct peer p = start_peer(come_again);
    static unsigned char host[BYTES];
    float behind[4] = {0};
    comm_end end;
    join_peer(&p, &end);
    wait_behind(&end, behind);
    comms->destroy(end.comm);
    OK(api->sync(&err));
    OK(comms->make_id(id, &err));
    tell(p.to, id, sizeof id);
    comm_kit_join(&end, id, 2, 0);
    void *const at = comm_kit_alloc(&end, BYTES);
    for (int round = 0; round < ROUNDS; round++) {
        api->fill(at, round, BYTES);
        comms->after_ops(end.comm);
        OK(comms->send(end.comm, at, BYTES, 1, &err));
        OK(comms->recv(end.comm, at, BYTES, 1, &err));
        comms->before_ops(end.comm);
        api->download(host, at, BYTES);
        OK(api->sync(&err));
        ck_assert_int_eq(host[BYTES - 1], round + 1);
    }
    comm_kit_close(&end);
    end_peer(&p, 0);
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

static void send_more(comm_end *end, const struct peer *with)
{
    void *const at = comm_kit_alloc(end, BYTES);
    OK(comm_kit_api()->send(end->comm, at, BYTES, 0, &err));
    say_nothing(end, with);
}

static void expect_less(void)
{
    const struct peer p = start_peer(send_more);
    comm_end end;
    join_peer(&p, &end);
    void *const at = comm_kit_alloc(&end, BYTES);
    OK(comm_kit_api()->recv(end.comm, at, BYTES - 1, 1, &err));
    comm_kit_wait_done(end.comm, comm_kit_api()->mark(end.comm));
}

START_TEST(sizes_that_differ_end_the_process)
{
    expect_panic(expect_less);
}
END_TEST

/* Whoever made the id is gone before anybody came. */
START_TEST(an_id_of_a_process_that_died_joins_nobody)
{
    int from[2];
    weft_err told = {0};
    comm_end end;
    ck_assert_int_eq(pipe(from), 0);
    const pid_t child = fork();
    if (child == 0) {
        if (comm_kit_api()->make_id(id, NULL) == WEFT_OK)
            tell(from[1], id, sizeof id);
        _exit(0);
    }
    int status = 0;
    hear(from[0], id, sizeof id);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    comm_kit_open(0, &end);
    end.comm = comm_kit_begin(&end, id, 2, 0);
    ck_assert_int_eq(comm_kit_wait(end.comm, &told), WEFT_COMM_BROKEN);
    ck_assert_str_eq(told.text, "comm test: joining: remote process exited or "
                                "network error (NCCL 6)");
    comm_kit_close(&end);
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

static void add(TCase *tests)
{
    tcase_add_test(tests, processes_talk);
    tcase_add_test(tests, a_peer_that_was_killed_is_told);
    tcase_add_loop_test(tests, a_silent_peer_is_for_the_owner_to_judge, 0, 2);
    tcase_add_test(tests, a_message_that_hangs_is_ended_by_aborts);
    tcase_add_test(tests, a_rank_that_is_not_heard_is_not_ready);
    tcase_add_test(tests, a_new_comm_takes_the_place_of_a_broken_one);
    tcase_add_test(tests, sizes_that_differ_end_the_process);
    tcase_add_test(tests, an_id_of_a_process_that_died_joins_nobody);
}

int main(void)
{
    comm_kit_need(1);
    return weft_suite_run_added("cuda_comm_peers", add);
}
