#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "node/base/threads.h"
#include "tests/support/suite.h"

enum { UNITS_MAX = 1000, DEADLINE_S = 60 };

static const int32_t counts[] = {1, 2, 4, 8};
enum { N_COUNTS = sizeof counts / sizeof counts[0] };

static weft_threads *pool_of(int32_t n)
{
    weft_err err = {0};
    weft_threads *pool = NULL;
    ck_assert_msg(weft_threads_create(n, &pool, &err) == WEFT_OK, "%s",
                  err.text);
    ck_assert_int_eq(weft_threads_count(pool), n);
    return pool;
}

/* Long enough for workers to be asleep; nothing is judged by it. */
static void let_workers_sleep(void)
{
    const uint64_t until = weft_clock_now_ns() + 1000000;
    while (weft_clock_now_ns() < until) (void)sched_yield();
}

/* Plain ints on purpose: TSan judges whether run orders the writes. */
typedef struct tally {
    int times[UNITS_MAX];
    int thread_of[UNITS_MAX];
    int next_of[8]; /* the lowest unit that may come to a thread; UNITS_MAX
                     * + 1 once one came out of order */
} tally;

static void count_unit(void *arg, int32_t unit, int32_t thread)
{
    tally *const t = arg;
    t->times[unit]++;
    t->thread_of[unit] = thread;
    t->next_of[thread] = unit < t->next_of[thread] ? UNITS_MAX + 1 : unit + 1;
}

START_TEST(each_unit_runs_once)
{
    for (int i = 0; i < N_COUNTS; i++) {
        const int32_t n = counts[i];
        const int32_t units[] = {0, -3,    1,         2,     n - 1,
                                 n, n + 1, 2 * n + 1, 7 * n, UNITS_MAX};
        weft_threads *const pool = pool_of(n);
        for (size_t k = 0; k < 50 * sizeof units / sizeof units[0]; k++) {
            const int32_t n_units = units[k % (sizeof units / sizeof units[0])];
            tally t = {0};
            weft_threads_run(pool, n_units, count_unit, &t);
            for (int32_t u = 0; u < UNITS_MAX; u++)
                if (t.times[u] != (u < n_units) || t.thread_of[u] < 0 ||
                    t.thread_of[u] >= n)
                    ck_abort_msg("unit %d of %d ran %d times, thread %d of %d",
                                 (int)u, (int)n_units, t.times[u],
                                 t.thread_of[u], (int)n);
            for (int32_t i_thread = 0; i_thread < n; i_thread++)
                ck_assert_int_le(t.next_of[i_thread], UNITS_MAX);
        }
        weft_threads_destroy(pool);
    }
}
END_TEST

typedef struct wave {
    int64_t cells[2][64];
    int now, n_units;
} wave;

static void step_wave(void *arg, int32_t unit, int32_t thread)
{
    wave *const w = arg;
    (void)thread;
    const int64_t *const from = w->cells[w->now];
    w->cells[1 - w->now][unit] = from[unit] + from[(unit + 1) % w->n_units] + 1;
}

/* Each unit reads what another thread may have written in the run before. */
START_TEST(runs_see_the_run_before)
{
    wave want = {.n_units = 61};
    for (int run = 0; run < 3000; run++) {
        for (int32_t u = 0; u < want.n_units; u++) step_wave(&want, u, 0);
        want.now = 1 - want.now;
        for (int32_t u = 0; u < want.n_units; u++)
            want.cells[want.now][u] %= 1000003;
    }
    for (int i = 0; i < N_COUNTS; i++) {
        wave got = {.n_units = 61};
        weft_threads *const pool = pool_of(counts[i]);
        for (int run = 0; run < 3000; run++) {
            weft_threads_run(pool, got.n_units, step_wave, &got);
            got.now = 1 - got.now;
            for (int32_t u = 0; u < got.n_units; u++)
                got.cells[got.now][u] %= 1000003;
        }
        weft_threads_destroy(pool);
        ck_assert_mem_eq(got.cells[got.now], want.cells[want.now],
                         sizeof got.cells[0]);
    }
}
END_TEST

typedef struct meeting {
    atomic_int arrived;
    int n;
    atomic_int late; /* units that gave up */
    atomic_uint seen;
} meeting;

/* Ends only when all n threads are inside at once. */
static void meet(void *arg, int32_t unit, int32_t thread)
{
    meeting *const m = arg;
    (void)unit;
    atomic_fetch_add(&m->arrived, 1);
    atomic_fetch_or(&m->seen, 1U << thread);
    const uint64_t until =
        weft_clock_now_ns() + (uint64_t)DEADLINE_S * 1000000000U;
    while (atomic_load(&m->arrived) < m->n) {
        (void)sched_yield();
        if (weft_clock_now_ns() < until) continue;
        atomic_fetch_add(&m->late, 1);
        return;
    }
}

/* n units that wait for each other need n threads: a lost wake-up shows. */
START_TEST(every_worker_takes_part)
{
    for (int i = 0; i < N_COUNTS; i++) {
        weft_threads *const pool = pool_of(counts[i]);
        for (int run = 0; run < 200; run++) {
            if (run % 4 == 0) let_workers_sleep();
            meeting m = {.n = counts[i]};
            weft_threads_run(pool, m.n, meet, &m);
            ck_assert_int_eq(atomic_load(&m.late), 0);
            ck_assert_uint_eq(atomic_load(&m.seen), (1U << m.n) - 1);
        }
        weft_threads_destroy(pool);
    }
}
END_TEST

/* Runs that come while a worker is about to fall asleep: pauses from none to
 * twice its spin time. */
START_TEST(runs_meet_workers_falling_asleep)
{
    enum { STEP_NS = 20, PAUSE_NS_MAX = 40000 };
    weft_threads *const pool = pool_of(2);
    int late = 0;
    for (uint64_t pause = 0; late == 0 && pause < PAUSE_NS_MAX;
         pause += STEP_NS) {
        const uint64_t until = weft_clock_now_ns() + pause;
        while (weft_clock_now_ns() < until) continue;
        meeting m = {.n = 2};
        weft_threads_run(pool, m.n, meet, &m);
        late = atomic_load(&m.late);
    }
    ck_assert_int_eq(late, 0);
    weft_threads_destroy(pool);
}
END_TEST

static void linger(void *arg, int32_t unit, int32_t thread)
{
    meet(arg, unit, thread);
    if (thread != 0) let_workers_sleep(); /* meanwhile the owner falls asleep */
}

START_TEST(a_sleeping_owner_is_woken)
{
    for (int i = 1; i < N_COUNTS; i++) {
        weft_threads *const pool = pool_of(counts[i]);
        for (int run = 0; run < 30; run++) {
            meeting m = {.n = counts[i]};
            weft_threads_run(pool, m.n, linger, &m);
            ck_assert_int_eq(atomic_load(&m.late), 0);
        }
        weft_threads_destroy(pool);
    }
}
END_TEST

static void run_a_pool_inside(void *arg, int32_t unit, int32_t thread)
{
    tally *const tallies = arg;
    (void)thread;
    weft_threads *inner = NULL;
    if (weft_threads_create(1 + unit % 3, &inner, NULL) != WEFT_OK) return;
    for (int run = 0; run < 20; run++)
        weft_threads_run(inner, 17, count_unit, &tallies[unit]);
    weft_threads_destroy(inner);
}

START_TEST(pools_nest)
{
    enum { OUTER = 12 };
    tally *const tallies = weft_mem_new(OUTER, sizeof *tallies);
    weft_threads *const pool = pool_of(4);
    weft_threads_run(pool, OUTER, run_a_pool_inside, tallies);
    weft_threads_destroy(pool);
    for (int i = 0; i < OUTER; i++)
        for (int u = 0; u < 17; u++) ck_assert_int_eq(tallies[i].times[u], 20);
    weft_mem_free(tallies);
}
END_TEST

static void *own_a_pool(void *arg)
{
    tally *const t = arg;
    weft_threads *pool = NULL;
    if (weft_threads_create(3, &pool, NULL) != WEFT_OK) return NULL;
    for (int run = 0; run < 500; run++)
        weft_threads_run(pool, 33, count_unit, t);
    weft_threads_destroy(pool);
    return NULL;
}

START_TEST(pools_live_side_by_side)
{
    enum { OWNERS = 3 };
    tally *const tallies = weft_mem_new(OWNERS, sizeof *tallies);
    pthread_t owners[OWNERS];
    for (int i = 0; i < OWNERS; i++)
        ck_assert_int_eq(
            pthread_create(&owners[i], NULL, own_a_pool, &tallies[i]), 0);
    for (int i = 0; i < OWNERS; i++) (void)pthread_join(owners[i], NULL);
    for (int i = 0; i < OWNERS; i++)
        for (int u = 0; u < 33; u++) ck_assert_int_eq(tallies[i].times[u], 500);
    weft_mem_free(tallies);
}
END_TEST

static void note_order(void *arg, int32_t unit, int32_t thread)
{
    int32_t *const next = arg;
    (void)thread;
    ck_assert_int_eq(unit, *next);
    (*next)++;
}

START_TEST(one_thread_goes_in_order)
{
    weft_threads *const pool = pool_of(1);
    int32_t next = 0;
    weft_threads_run(pool, 100, note_order, &next);
    ck_assert_int_eq(next, 100);
    weft_threads_destroy(pool);
}
END_TEST

typedef struct masks {
    meeting m;
    cpu_set_t of[8];
} masks;

static void note_mask(void *arg, int32_t unit, int32_t thread)
{
    masks *const all = arg;
    meet(&all->m, unit, thread);
    (void)sched_getaffinity(0, sizeof all->of[0], &all->of[thread]);
}

/* Never outside the process's mask; the caller is never pinned, and workers
 * only in a pool that takes all cores: then no two share one. */
START_TEST(pins_inside_the_mask)
{
    cpu_set_t allowed;
    ck_assert_int_eq(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    const int n_cores = CPU_COUNT(&allowed);
    for (int i = 0; i < N_COUNTS; i++) {
        const int n = counts[i];
        masks all = {.m = {.n = n}};
        weft_threads *const pool = pool_of(n);
        weft_threads_run(pool, n, note_mask, &all);
        weft_threads_destroy(pool);
        ck_assert(CPU_EQUAL(&all.of[0], &allowed));
        cpu_set_t taken;
        CPU_ZERO(&taken);
        for (int t = 1; t < n; t++) {
            cpu_set_t both;
            CPU_AND(&both, &all.of[t], &allowed);
            ck_assert(CPU_EQUAL(&both, &all.of[t]));
            ck_assert_int_eq(CPU_COUNT(&all.of[t]), n == n_cores ? 1 : n_cores);
            CPU_OR(&taken, &taken, &all.of[t]);
        }
        if (n > 1 && n == n_cores) ck_assert_int_eq(CPU_COUNT(&taken), n - 1);
    }
}
END_TEST

/* The caller's core is no worker's, as far as the caller stayed on it while
 * the pool was made. */
START_TEST(leaves_the_callers_core_free)
{
    cpu_set_t allowed;
    ck_assert_int_eq(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    /* Two cores are the machine here, so that a pool of two takes them all. */
    for (int core = CPU_SETSIZE - 1; CPU_COUNT(&allowed) > 2; core--)
        CPU_CLR((size_t)core, &allowed);
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&allowed) > 1; core++) {
        if (!CPU_ISSET((size_t)core, &allowed)) continue;
        for (int attempt = 0; attempt < 10; attempt++) {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET((size_t)core, &one);
            (void)sched_setaffinity(0, sizeof one, &one);
            (void)sched_setaffinity(0, sizeof allowed, &allowed);
            masks all = {.m = {.n = 2}};
            const int before = sched_getcpu();
            weft_threads *const pool = pool_of(2);
            const int after = sched_getcpu();
            weft_threads_run(pool, 2, note_mask, &all);
            weft_threads_destroy(pool);
            if (before == after)
                ck_assert(!CPU_ISSET((size_t)before, &all.of[1]));
        }
    }
}
END_TEST

START_TEST(bad_counts_are_refused)
{
    static const int32_t bad[] = {0, -1, INT32_MIN, 1025, INT32_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        weft_err err = {0};
        weft_threads *pool = NULL;
        ck_assert_int_eq(weft_threads_create(bad[i], &pool, &err),
                         WEFT_INVALID_ARGUMENT);
        ck_assert_ptr_null(pool);
        ck_assert_ptr_nonnull(strstr(err.text, "threads"));
    }
    weft_threads_destroy(NULL);
}
END_TEST

START_TEST(each_allocation_may_fail)
{
    weft_status st = WEFT_RESOURCE_EXHAUSTED;
    for (long n = 0; st != WEFT_OK; n++) {
        weft_threads *pool = NULL;
        weft_mem_fail_after(n);
        st = weft_threads_create(3, &pool, NULL);
        weft_mem_fail_after(-1);
        ck_assert(st == WEFT_OK || st == WEFT_RESOURCE_EXHAUSTED);
        ck_assert_int_eq(n, st == WEFT_OK ? 2 : n);
        weft_threads_destroy(pool);
        ck_assert_int_eq(weft_mem_live(), 0);
    }
}
END_TEST

START_TEST(threads_that_cannot_be_had)
{
    /* No address space holds such a stack, so each creation fails. */
    pthread_attr_t attr;
    ck_assert_int_eq(pthread_attr_init(&attr), 0);
    ck_assert_int_eq(pthread_attr_setstacksize(&attr, (size_t)1 << 48), 0);
    ck_assert_int_eq(pthread_setattr_default_np(&attr), 0);
    weft_err err = {0};
    weft_threads *pool = NULL;
    ck_assert_int_eq(weft_threads_create(3, &pool, &err),
                     WEFT_RESOURCE_EXHAUSTED);
    ck_assert_ptr_null(pool);
    ck_assert_str_eq(err.text, "0 of 2 worker threads could be started");
    (void)pthread_attr_destroy(&attr);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {each_unit_runs_once,
                                  runs_see_the_run_before,
                                  every_worker_takes_part,
                                  runs_meet_workers_falling_asleep,
                                  leaves_the_callers_core_free,
                                  a_sleeping_owner_is_woken,
                                  pools_nest,
                                  pools_live_side_by_side,
                                  one_thread_goes_in_order,
                                  pins_inside_the_mask,
                                  bad_counts_are_refused,
                                  each_allocation_may_fail,
                                  threads_that_cannot_be_had};
    return WEFT_SUITE_RUN("base/threads", tests);
}
