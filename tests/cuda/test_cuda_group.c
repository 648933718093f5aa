/* Ranks of a stage that are devices of this process (shard/comm/group.h). */
#include <pthread.h>

#include "tests/cuda/comm_kit.h"
#include "tests/cuda/simt_faults.h"
#include "tests/support/expect.h"
#include "tests/support/group_kit.h"
#include "tests/support/suite.h"

enum { N_DEVICES = 4 };

static weft_memory devices[N_DEVICES];

static void open_devices(void)
{
    const weft_device_api *const api = device_kit_api();
    for (int32_t i = 0; i < N_DEVICES; i++) {
        const weft_device_options options = {i, 1 << 20, 1};
        devices[i].api = api;
        OK(api->open(&options, &devices[i].device, &err));
    }
}

static void close_devices(void)
{
    for (int32_t i = 0; i < N_DEVICES; i++)
        device_kit_api()->close(devices[i].device);
    ck_assert_int_eq(live_things(), 0);
}

START_TEST(sums_are_in_the_order_of_ranks)
{
    open_devices();
    group_kit_check_sums(_i, devices, NULL);
    close_devices();
}
END_TEST

START_TEST(one_rank_s_failure_is_all_s)
{
    open_devices();
    for (int i = 0; i < 5; i++) group_kit_check_abort(_i, devices, NULL);
    close_devices();
}
END_TEST

static pthread_barrier_t turn;

/* NCCL refuses one rank's work; which one's, the count says. */
static void refused(weft_comm_rank *rank, const weft_memory *memory, int32_t i,
                    void *arg)
{
    weft_err told = {0};
    void *x = NULL;
    (void)i;
    (void)arg;
    OK(weft_memory_alloc(memory, 4096, "x", &x, &err));
    weft_memory_fill(memory, x, 0, 4096);
    OK(weft_comm_sum_rows(rank, NULL, x, 4, 256, WEFT_ROUND_NONE, &err));
    OK(weft_memory_sync(memory, &err));
    if (pthread_barrier_wait(&turn) == PTHREAD_BARRIER_SERIAL_THREAD)
        order_fault("nccl_send:1");
    (void)pthread_barrier_wait(&turn);
    const weft_status any =
        weft_comm_sum_rows(rank, NULL, x, 4, 256, WEFT_ROUND_NONE, NULL);
    ck_assert(any == WEFT_OK || any == WEFT_UNAVAILABLE);
    OK(weft_memory_sync(memory, &err));
    weft_status st;
    while ((st = weft_comm_rank_check(rank, &told)) == WEFT_OK) {
    }
    ck_assert_int_eq(st, WEFT_UNAVAILABLE);
    ck_assert_msg(strstr(told.text, "gather: internal error") != NULL, "%s",
                  told.text);
    weft_memory_free(memory, x);
}

START_TEST(what_nccl_refuses_ends_the_group)
{
    open_devices();
    (void)pthread_barrier_init(&turn, NULL, 2);
    group_kit_run(group_kit_create(2, devices, NULL), devices, 2, refused,
                  NULL);
    (void)pthread_barrier_destroy(&turn);
    close_devices();
}
END_TEST

START_TEST(without_nccl_there_is_no_group)
{
    const weft_comm_group_options options = {.n_ranks = 2,
                                             .memories = devices,
                                             .rows_max = 1,
                                             .width_max = 1,
                                             .name = "kit"};
    weft_comm_group *group = NULL;
    weft_err told = {0};
    (void)setenv("WEFT_NCCL_LIBRARY", "/nowhere/nccl.so", 1);
    open_devices();
    ck_assert_int_eq(weft_comm_group_create(&options, &group, &told),
                     WEFT_UNAVAILABLE);
    ck_assert_msg(strstr(told.text, "/nowhere/nccl.so") != NULL, "%s",
                  told.text);
    close_devices();
}
END_TEST

static void add(TCase *tests)
{
    tcase_add_loop_test(tests, sums_are_in_the_order_of_ranks, 2,
                        N_DEVICES + 1);
    tcase_add_loop_test(tests, one_rank_s_failure_is_all_s, 2, 4);
    tcase_add_test(tests, what_nccl_refuses_ends_the_group);
    tcase_add_test(tests, without_nccl_there_is_no_group);
}

int main(void)
{
    comm_kit_need(4);
    return weft_suite_run_added("cuda_group", add);
}
