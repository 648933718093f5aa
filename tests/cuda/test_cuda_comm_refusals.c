/* What a comm is refused for, at once or later (kernels/comm.h). */
#include <pthread.h>

#include "tests/cuda/comm_kit.h"
#include "tests/cuda/simt_faults.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

static unsigned char id[WEFT_COMM_ID_BYTES];
static pthread_barrier_t turn;

static void same_device(int32_t rank, void *arg)
{
    comm_end end;
    (void)arg;
    comm_kit_open(0, &end);
    end.comm = comm_kit_begin(&end, id, 2, rank);
    comm_kit_expect_broken(end.comm, "joining: invalid usage");
    comm_kit_close(&end);
}

START_TEST(two_ranks_of_one_device_are_refused)
{
    OK(comm_kit_api()->make_id(id, &err));
    comm_kit_ranks(2, same_device, NULL);
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

START_TEST(options_that_cannot_be_are_named)
{
    static const struct {
        int32_t n_ranks, rank, ctas_max;
        const char *text;
    } cases[] = {
        {1, 0, 0, "comm test: rank 0 of 1: 2 to 64 are joined"},
        {65, 0, 0, "rank 0 of 65"},
        {2, 2, 0, "rank 2 of 2"},
        {2, -1, 0, "rank -1 of 2"},
        {2, 0, 33, "ctas_max 33: 0 to 32"},
        {2, 0, -1, "ctas_max -1: 0 to 32"},
    };
    comm_end end;
    OK(comm_kit_api()->make_id(id, &err));
    comm_kit_open(0, &end);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        weft_comm_options options = {.n_ranks = cases[i].n_ranks,
                                     .rank = cases[i].rank,
                                     .ctas_max = cases[i].ctas_max,
                                     .name = "test"};
        weft_err err = {0};
        memcpy(options.id, id, sizeof id);
        ck_assert_int_eq(
            comm_kit_api()->begin(end.device, &options, &end.comm, &err),
            WEFT_INVALID_ARGUMENT);
        ck_assert_msg(strstr(err.text, cases[i].text) != NULL, "%s", err.text);
        ck_assert_ptr_null(end.comm);
    }
    comm_kit_close(&end);
}
END_TEST

/* So many that one more might not be resident beside them. */
START_TEST(a_device_has_room_for_so_many)
{
    const weft_comm_api *const comms = comm_kit_api();
    weft_comm *many[WEFT_COMM_DEVICE_MAX], *more = NULL;
    weft_comm_options options = {.n_ranks = 2, .name = "test"};
    weft_err told = {0};
    comm_end end;
    comm_kit_open(0, &end);
    for (int i = 0; i < WEFT_COMM_DEVICE_MAX; i++) {
        OK(comms->make_id(options.id, &err));
        OK(comms->begin(end.device, &options, &many[i], &err));
    }
    ck_assert_int_eq(comms->begin(end.device, &options, &more, &told),
                     WEFT_RESOURCE_EXHAUSTED);
    ck_assert_str_eq(told.text,
                     "comm test: device 0 has 24 comms of 24, 24 blocks of 64, "
                     "and this one takes 1");
    for (int i = 1; i < WEFT_COMM_DEVICE_MAX; i++) comms->destroy(many[i]);
    options.ctas_max = WEFT_COMM_CTAS_MAX;
    OK(comms->begin(end.device, &options, &many[1], &err));
    ck_assert_int_eq(comms->begin(end.device, &options, &more, &told),
                     WEFT_RESOURCE_EXHAUSTED);
    ck_assert_str_eq(told.text,
                     "comm test: device 0 has 2 comms of 24, 33 blocks of 64, "
                     "and this one takes 32");
    comms->destroy(many[0]);
    OK(comms->begin(end.device, &options, &more, &err));
    comms->destroy(more);
    comms->destroy(many[1]);
    comm_kit_close(&end);
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

START_TEST(what_nccl_refuses_at_once_is_told)
{
    const weft_comm_api *const comms = comm_kit_api();
    weft_comm_options options = {.n_ranks = 2, .name = "test"};
    weft_err told = {0};
    comm_end end;
    OK(comm_kit_api()->make_id(id, &err));
    comm_kit_open(0, &end);
    order_fault("nccl_begin");
    memcpy(options.id, id, sizeof id);
    ck_assert_int_eq(comms->begin(end.device, &options, &end.comm, &told),
                     WEFT_UNAVAILABLE);
    ck_assert_str_eq(told.text, "comm test: joining: unhandled cuda error "
                                "(NCCL 1): begin was ordered to fail");
    order_fault("memory");
    ck_assert_int_eq(comms->begin(end.device, &options, &end.comm, &told),
                     WEFT_OK); /* the memory of the one before */
    comms->destroy(end.comm);
    order_fault("nccl_id");
    ck_assert_int_eq(comms->make_id(id, &told), WEFT_UNAVAILABLE);
    ck_assert_str_eq(told.text, "an id of NCCL: unhandled system error");
    order_fault(NULL);
    end.comm = NULL;
    comm_kit_close(&end);
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

static void breaks_late(int32_t rank, void *arg)
{
    static const char word[] = "joining: unhandled system error (NCCL 2)";
    comm_end end;
    (void)arg;
    comm_kit_open(rank, &end);
    end.comm = comm_kit_begin(&end, id, 2, rank);
    if (rank == 0)
        comm_kit_expect_broken(end.comm, word);
    else
        (void)comm_kit_wait(end.comm, NULL);
    (void)pthread_barrier_wait(&turn);
    comm_kit_close(&end);
}

START_TEST(what_nccl_refuses_later_is_told)
{
    (void)pthread_barrier_init(&turn, NULL, 2);
    OK(comm_kit_api()->make_id(id, &err));
    order_fault("nccl_init");
    comm_kit_ranks(2, breaks_late, NULL);
    order_fault(NULL);
    (void)pthread_barrier_destroy(&turn);
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

struct refusal {
    const char *fault, *word;
};

/* Work that does not get to the stream, or is refused. */
static void work_breaks(int32_t rank, void *arg)
{
    const struct refusal *const refusal = arg;
    comm_end end;
    comm_kit_open(rank, &end);
    comm_kit_join(&end, id, 2, rank);
    void *const at = comm_kit_alloc(&end, 64);
    if (pthread_barrier_wait(&turn) == PTHREAD_BARRIER_SERIAL_THREAD)
        order_fault(refusal->fault);
    (void)pthread_barrier_wait(&turn);
    if (rank == 0) {
        weft_err err = {0};
        ck_assert_int_eq(comm_kit_api()->send(end.comm, at, 64, 1, &err),
                         WEFT_UNAVAILABLE);
        ck_assert_msg(strstr(err.text, refusal->word) != NULL, "%s", err.text);
        comm_kit_expect_broken(end.comm, refusal->word);
        comm_kit_api()->abort(end.comm); /* the first reason stays */
        comm_kit_expect_broken(end.comm, refusal->word);
    }
    (void)pthread_barrier_wait(&turn);
    comm_kit_close(&end);
}

START_TEST(work_that_is_refused_breaks_the_comm)
{
    struct refusal cases[] = {
        {"nccl_send:1", "send: internal error (NCCL 3): ordered to fail"},
        {"nccl_busy:1", "send: NCCL has not begun it for 2 s"},
    };
    (void)pthread_barrier_init(&turn, NULL, 2);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        OK(comm_kit_api()->make_id(id, &err));
        comm_kit_ranks(2, work_breaks, &cases[i]);
        order_fault(NULL);
    }
    (void)pthread_barrier_destroy(&turn);
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

int main(void)
{
    comm_kit_need(2);
    const TTest *const tests[] = {
        two_ranks_of_one_device_are_refused,
        options_that_cannot_be_are_named,
        a_device_has_room_for_so_many,
        what_nccl_refuses_at_once_is_told,
        what_nccl_refuses_later_is_told,
        work_that_is_refused_breaks_the_comm,
    };
    return WEFT_SUITE_RUN("cuda_comm_refusals", tests);
}
