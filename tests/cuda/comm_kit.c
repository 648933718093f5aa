#include "tests/cuda/comm_kit.h"

#include <pthread.h>
#include <time.h>

#include "node/base/clock.h"
#include "tests/cuda/simt_faults.h"

enum { SCRATCH_BYTES = 1 << 20, RANKS_MAX = 8, SKIPPED = 77 };

static const uint64_t DEADLINE_NS = 60000000000U;

void comm_kit_need(int32_t n_devices)
{
    char n[16];
    (void)snprintf(n, sizeof n, "%d", (int)n_devices);
    (void)setenv("WEFT_SIMT_DEVICES", n, 1);
    device_kit_need();
    if (is_simt()) return;
    printf("SKIP comms here are of devices of the emulator\n");
    exit(SKIPPED);
}

const weft_comm_api *comm_kit_api(void)
{
    return device_kit_api()->comm();
}

void comm_kit_open(int32_t index, comm_end *end)
{
    const weft_device_api *const api = device_kit_api();
    const weft_device_options options = {index, SCRATCH_BYTES, 2};
    weft_err err = {0};
    *end = (comm_end){0};
    ck_assert_msg(api->open(&options, &end->device, &err) == WEFT_OK, "%s",
                  err.text);
    ck_assert_msg(api->bind(end->device, &err) == WEFT_OK, "%s", err.text);
}

void comm_kit_close(comm_end *end)
{
    const weft_device_api *const api = device_kit_api();
    if (end->comm != NULL) comm_kit_api()->destroy(end->comm);
    ck_assert_int_eq(api->bind(NULL, NULL), WEFT_OK);
    api->close(end->device);
    *end = (comm_end){0};
}

void *comm_kit_alloc(const comm_end *end, int64_t bytes)
{
    void *at = NULL;
    weft_err err = {0};
    ck_assert_msg(device_kit_api()->alloc(end->device, bytes, &at, &err) ==
                      WEFT_OK,
                  "%s", err.text);
    return at;
}

weft_comm *comm_kit_begin(const comm_end *end, const unsigned char *id,
                          int32_t n_ranks, int32_t rank)
{
    weft_comm_options options = {
        .n_ranks = n_ranks, .rank = rank, .name = "test"};
    weft_comm *comm = NULL;
    weft_err err = {0};
    memcpy(options.id, id, sizeof options.id);
    ck_assert_msg(comm_kit_api()->begin(end->device, &options, &comm, &err) ==
                      WEFT_OK,
                  "%s", err.text);
    return comm;
}

void comm_kit_let_others(void)
{
    const struct timespec ms = {.tv_nsec = 1000000};
    (void)nanosleep(&ms, NULL);
}

/* Time for others; who waits looks again. */
static void let_others(uint64_t begun)
{
    ck_assert_msg(weft_clock_now_ns() - begun < DEADLINE_NS, "it takes long");
    comm_kit_let_others();
}

weft_comm_state comm_kit_wait(weft_comm *comm, weft_err *err)
{
    const uint64_t begun = weft_clock_now_ns();
    weft_comm_state state;
    while ((state = comm_kit_api()->state(comm, err)) == WEFT_COMM_PENDING)
        let_others(begun);
    return state;
}

void comm_kit_wait_both(weft_comm *a, weft_comm *b)
{
    const weft_comm_api *const comms = comm_kit_api();
    const uint64_t begun = weft_clock_now_ns();
    for (;;) {
        const weft_comm_state of_a = comms->state(a, NULL);
        const weft_comm_state of_b = comms->state(b, NULL);
        if (of_a == WEFT_COMM_READY && of_b == WEFT_COMM_READY) break;
        ck_assert(of_a != WEFT_COMM_BROKEN && of_b != WEFT_COMM_BROKEN);
        let_others(begun);
    }
}

void comm_kit_join(comm_end *end, const unsigned char *id, int32_t n_ranks,
                   int32_t rank)
{
    weft_err err = {0};
    end->comm = comm_kit_begin(end, id, n_ranks, rank);
    ck_assert_msg(comm_kit_wait(end->comm, &err) == WEFT_COMM_READY, "%s",
                  err.text);
}

void comm_kit_expect_broken(weft_comm *comm, const char *word)
{
    weft_err err = {0};
    ck_assert_int_eq(comm_kit_wait(comm, &err), WEFT_COMM_BROKEN);
    ck_assert_msg(strstr(err.text, word) != NULL, "\"%s\" lacks \"%s\"",
                  err.text, word);
    ck_assert(strncmp(err.text, "comm test: ", 11) == 0);
    ck_assert(strchr(err.text, '\n') == NULL);
    ck_assert_int_eq(err.status, WEFT_UNAVAILABLE);
}

void comm_kit_wait_done(weft_comm *comm, uint64_t mark)
{
    const uint64_t begun = weft_clock_now_ns();
    while (!comm_kit_api()->is_done(comm, mark)) let_others(begun);
}

struct rank_thread {
    pthread_t thread;
    int32_t rank;
    void (*fn)(int32_t rank, void *arg);
    void *arg;
};

static void *run_rank(void *arg)
{
    const struct rank_thread *const r = arg;
    r->fn(r->rank, r->arg);
    return NULL;
}

void comm_kit_ranks(int32_t n_ranks, void (*fn)(int32_t rank, void *arg),
                    void *arg)
{
    struct rank_thread threads[RANKS_MAX];
    ck_assert_int_le(n_ranks, RANKS_MAX);
    for (int32_t i = 0; i < n_ranks; i++) {
        threads[i] = (struct rank_thread){.rank = i, .fn = fn, .arg = arg};
        ck_assert_int_eq(
            pthread_create(&threads[i].thread, NULL, run_rank, &threads[i]), 0);
    }
    for (int32_t i = 0; i < n_ranks; i++)
        (void)pthread_join(threads[i].thread, NULL);
}
