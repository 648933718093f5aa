#include "tests/support/group_kit.h"

#include <check.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "node/base/mem.h"
#include "node/base/rng.h"
#include "tests/support/expect.h"
#include "tests/support/kernel_kit.h"

weft_comm_group *group_kit_create(int32_t n_ranks, const weft_memory *memories,
                                  const weft_ops *ops)
{
    const weft_comm_group_options options = {
        .n_ranks = n_ranks,
        .memories = memories,
        .ops = ops,
        .rows_max = GROUP_KIT_ROWS_MAX,
        .width_max = GROUP_KIT_WIDTH_MAX,
        .name = "kit",
    };
    weft_comm_group *group = NULL;
    OK(weft_comm_group_create(&options, &group, &err));
    return group;
}

struct thread {
    pthread_t thread;
    weft_comm_rank *rank;
    const weft_memory *memory;
    int32_t i;
    void (*fn)(weft_comm_rank *, const weft_memory *, int32_t, void *);
    void *arg;
};

static void *run(void *arg)
{
    const struct thread *const t = arg;
    OK(weft_memory_bind(t->memory, &err));
    OK(weft_comm_rank_join(t->rank, &err));
    t->fn(t->rank, t->memory, t->i, t->arg);
    weft_memory_unbind(t->memory);
    return NULL;
}

void group_kit_run(weft_comm_group *group, const weft_memory *memories,
                   int32_t n_ranks,
                   void (*fn)(weft_comm_rank *rank, const weft_memory *memory,
                              int32_t i, void *arg),
                   void *arg)
{
    struct thread threads[WEFT_COMM_GROUP_RANKS_MAX];
    for (int32_t i = 0; i < n_ranks; i++) {
        threads[i] = (struct thread){.rank = weft_comm_group_rank(group, i),
                                     .memory = &memories[i],
                                     .i = i,
                                     .fn = fn,
                                     .arg = arg};
        ck_assert_int_eq(
            pthread_create(&threads[i].thread, NULL, run, &threads[i]), 0);
    }
    for (int32_t i = 0; i < n_ranks; i++)
        (void)pthread_join(threads[i].thread, NULL);
    weft_comm_group_destroy(group);
}

/* What rank i has at a place: of such sizes that the order of a sum is seen. */
static float value(int32_t i, int64_t at)
{
    const uint64_t bits = weft_rng_u64((uint64_t)i + 1, (uint64_t)at);
    const float unit = (float)(bits >> 40) / 16777216.0F - 0.5F;
    return unit * (float)(1 << (bits & 15));
}

static float sum_at(int32_t n_ranks, int64_t at)
{
    float sum = value(0, at);
    for (int32_t i = 1; i < n_ranks; i++) sum += value(i, at);
    return sum;
}

static const int32_t rows[] = {1, 2, 5, 8, 13, GROUP_KIT_ROWS_MAX, 0};
static const int32_t widths[] = {1, 3, 1001, GROUP_KIT_WIDTH_MAX};

struct sums {
    int32_t n_ranks;
};

/* Row r of every sum is the same values, so it has the same bits each time. */
static void check_one(weft_comm_rank *rank, const weft_memory *memory,
                      weft_threads *threads, int32_t i, int32_t n_ranks,
                      int32_t n_row, int32_t width)
{
    const size_t n = (size_t)n_row * (size_t)width;
    const int64_t bytes = 4 * (int64_t)n;
    float *const host = weft_kit_new(n + 1, sizeof(float));
    void *x = NULL;
    OK(weft_memory_alloc(memory, bytes + 4, "x", &x, &err));
    for (size_t at = 0; at < n; at++) host[at] = value(i, (int64_t)at);
    host[n] = 77.0F; /* beyond */
    weft_memory_put(memory, x, host, bytes + 4);
    OK(weft_comm_sum_rows(rank, threads, x, n_row, width, WEFT_ROUND_NONE,
                          &err));
    OK(weft_memory_sync(memory, &err));
    weft_memory_get(memory, host, x, bytes + 4);
    OK(weft_memory_sync(memory, &err));
    OK(weft_comm_rank_check(rank, &err));
    for (size_t at = 0; at < n; at++) {
        const float expected = sum_at(n_ranks, (int64_t)at);
        ck_assert_msg(host[at] == expected &&
                          signbit(host[at]) == signbit(expected),
                      "rank %d of %d, %d rows of %d, place %zu: %a is not %a",
                      (int)i, (int)n_ranks, (int)n_row, (int)width, at,
                      (double)host[at], (double)expected);
    }
    ck_assert(host[n] == 77.0F);
    weft_memory_free(memory, x);
    weft_mem_free(host);
}

static void check_rank(weft_comm_rank *rank, const weft_memory *memory,
                       int32_t i, void *arg)
{
    const struct sums *const s = arg;
    weft_threads *threads = NULL;
    OK(weft_threads_create(1, &threads, &err));
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
        for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
            check_one(rank, memory, threads, i, s->n_ranks, rows[r], widths[w]);
    weft_threads_destroy(threads);
}

void group_kit_check_sums(int32_t n_ranks, const weft_memory *memories,
                          const weft_ops *ops)
{
    struct sums s = {n_ranks};
    group_kit_run(group_kit_create(n_ranks, memories, ops), memories, n_ranks,
                  check_rank, &s);
}

struct fall {
    weft_comm_group *group;
    pthread_barrier_t *first;
    int32_t n_ranks;
};

/* The last rank does not come to the second sum, and says why. */
static void fall_rank(weft_comm_rank *rank, const weft_memory *memory,
                      int32_t i, void *arg)
{
    const struct fall *const f = arg;
    weft_err told = {0};
    void *x = NULL;
    OK(weft_memory_alloc(memory, 4096, "x", &x, &err));
    weft_memory_fill(memory, x, 0, 4096);
    OK(weft_comm_sum_rows(rank, NULL, x, 4, 256, WEFT_ROUND_NONE, &err));
    OK(weft_memory_sync(memory, &err));
    (void)pthread_barrier_wait(f->first); /* all are through it */
    if (i == f->n_ranks - 1) {
        weft_err why = {0};
        (void)WEFT_FAIL(&why, WEFT_INTERNAL, "rank fell");
        weft_comm_group_abort(f->group, &why);
        (void)WEFT_FAIL(&why, WEFT_CANCELLED, "later");
        weft_comm_group_abort(f->group, &why);
    } else {
        /* Begun, or refused; what counts is told after the sync. */
        const weft_status any =
            weft_comm_sum_rows(rank, NULL, x, 4, 256, WEFT_ROUND_NONE, NULL);
        ck_assert(any == WEFT_OK || any == WEFT_INTERNAL);
    }
    OK(weft_memory_sync(memory, &err));
    weft_status st;
    while ((st = weft_comm_rank_check(rank, &told)) == WEFT_OK) {
    }
    ck_assert_int_eq(st, WEFT_INTERNAL);
    ck_assert_str_eq(told.text, "rank fell");
    ck_assert_int_eq(
        weft_comm_sum_rows(rank, NULL, x, 4, 256, WEFT_ROUND_NONE, &told),
        WEFT_INTERNAL);
    ck_assert_str_eq(told.text, "rank fell");
    weft_memory_free(memory, x);
}

void group_kit_check_abort(int32_t n_ranks, const weft_memory *memories,
                           const weft_ops *ops)
{
    pthread_barrier_t first;
    (void)pthread_barrier_init(&first, NULL, (unsigned)n_ranks);
    struct fall f = {group_kit_create(n_ranks, memories, ops), &first, n_ranks};
    group_kit_run(f.group, memories, n_ranks, fall_rank, &f);
    (void)pthread_barrier_destroy(&first);
}
