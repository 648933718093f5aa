#include "node/base/threads.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "node/base/check.h"
#include "node/base/clock.h"
#include "node/base/futex.h"
#include "node/base/mem.h"

/* How a run works.
 *
 * The owner writes fn, arg and n_units, then sets `units` to (run << 32 | units
 * not yet taken) and takes units like everybody else. A unit is taken by a
 * compare-and-swap that lowers the low half; the high half makes the swap of a
 * thread that looked before a later run began fail.
 *
 * The owner returns when `done` has reached n_units. Workers need not have
 * noticed the run: one that wakes up late finds no unit left. Who has taken a
 * unit may read fn, arg and n_units until it adds to `done`, since the owner
 * cannot end the run before that.
 *
 * Sleepers: a worker counts itself in `n_sleeping` and looks at `units` once
 * more before it sleeps on `run`; the owner sets `units`, raises `run` and then
 * looks at `n_sleeping`. All are sequentially consistent, so at least one of
 * the two sees the other. `owner_sleeps` and `done` work the same way.
 */

enum {
    THREADS_MAX = 1024,
    LINE_BYTES = 64,
    SPIN_NS = 20000,
    OWNER_SPIN_NS = 200000, /* its core has nothing else to do in a run */
    CROWDED_SPIN_NS = 2000, /* threads share cores: spinning steals time */
    PAUSES_PER_LOOK = 16,   /* at the clock */
};

typedef struct worker {
    weft_threads *pool;
    pthread_t handle;
    int32_t thread;
} worker;

struct weft_threads {
    /* Each on a cache line of its own: every thread hammers them. */
    _Alignas(LINE_BYTES) _Atomic uint64_t units;
    _Alignas(LINE_BYTES) _Atomic uint32_t done;
    _Alignas(LINE_BYTES) _Atomic uint32_t run;
    _Alignas(LINE_BYTES) _Atomic uint32_t n_sleeping;
    _Atomic uint32_t owner_sleeps;
    _Atomic bool leave;

    _Alignas(LINE_BYTES) weft_unit_fn fn;
    void *arg;
    int32_t n_units;

    uint64_t spin_ns, owner_spin_ns;
    int32_t n_threads, n_started;
    worker *workers; /* [n_threads - 1] */
};

static void pause_a_moment(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Take units until none is left; the number taken. */
static uint32_t take_units(weft_threads *pool, int32_t thread)
{
    uint32_t taken = 0;
    uint64_t seen = atomic_load(&pool->units);
    while ((uint32_t)seen != 0) {
        if (!atomic_compare_exchange_weak(&pool->units, &seen, seen - 1))
            continue;
        const int32_t left = (int32_t)(uint32_t)seen;
        pool->fn(pool->arg, pool->n_units - left, thread);
        taken++;
        seen = atomic_load(&pool->units);
    }
    return taken;
}

static bool has_work(weft_threads *pool)
{
    return (uint32_t)atomic_load(&pool->units) != 0 ||
           atomic_load(&pool->leave);
}

/* Spin, then sleep, until there may be work. */
static void wait_for_work(weft_threads *pool)
{
    const uint64_t start_ns = weft_clock_now_ns();
    do {
        for (int i = 0; i < PAUSES_PER_LOOK; i++) {
            if (has_work(pool)) return;
            pause_a_moment();
        }
    } while (weft_clock_now_ns() - start_ns < pool->spin_ns);

    const uint32_t run = atomic_load(&pool->run);
    atomic_fetch_add(&pool->n_sleeping, 1);
    if (!has_work(pool)) weft_futex_wait(&pool->run, run, UINT64_MAX);
    atomic_fetch_sub(&pool->n_sleeping, 1);
}

static void *work(void *arg)
{
    const worker *const self = arg;
    weft_threads *const pool = self->pool;
    while (!atomic_load(&pool->leave)) {
        if ((uint32_t)atomic_load(&pool->units) == 0) wait_for_work(pool);
        const uint32_t taken = take_units(pool, self->thread);
        if (taken == 0) continue;
        /* From here the owner may end this run and begin another. */
        atomic_fetch_add(&pool->done, taken);
        if (atomic_load(&pool->owner_sleeps) != 0)
            weft_futex_wake(&pool->done, 1);
    }
    return NULL;
}

static void wait_for_done(weft_threads *pool, uint32_t n_units)
{
    const uint64_t start_ns = weft_clock_now_ns();
    do {
        for (int i = 0; i < PAUSES_PER_LOOK; i++) {
            if (atomic_load(&pool->done) == n_units) return;
            pause_a_moment();
        }
    } while (weft_clock_now_ns() - start_ns < pool->owner_spin_ns);

    atomic_store(&pool->owner_sleeps, 1);
    atomic_thread_fence(memory_order_seq_cst); /* as in ring.c */
    for (;;) {
        const uint32_t done = atomic_load(&pool->done);
        if (done == n_units) break;
        weft_futex_wait(&pool->done, done, UINT64_MAX);
    }
    atomic_store(&pool->owner_sleeps, 0);
}

static void wake_sleepers(weft_threads *pool, int n)
{
    atomic_fetch_add(&pool->run, 1);
    if (atomic_load(&pool->n_sleeping) != 0) weft_futex_wake(&pool->run, n);
}

/* Choose a core for each worker (-1: none): cores the process may use, without
 * the one the caller runs on, which stays free for it. Only a pool that takes
 * every core is pinned: two smaller ones of one machine would else share the
 * lowest cores and leave the others idle. Returns whether there are too few
 * cores, and then chooses none. */
static bool choose_cores(int32_t n_workers, int *cores)
{
    for (int32_t i = 0; i < n_workers; i++) cores[i] = -1;
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
    if (CPU_COUNT(&allowed) < n_workers + 1) return true;
    if (CPU_COUNT(&allowed) > n_workers + 1) return false;
    const int own = sched_getcpu();
    int32_t n = 0;
    for (int core = 0; core < CPU_SETSIZE && n < n_workers; core++)
        if (CPU_ISSET((size_t)core, &allowed) && core != own) cores[n++] = core;
    return false;
}

static bool start_worker(weft_threads *pool, int core)
{
    worker *const self = &pool->workers[pool->n_started];
    self->pool = pool;
    self->thread = pool->n_started + 1;
    pthread_attr_t attr;
    if (pthread_attr_init(&attr) != 0) return false;
    /* Born on its core, if it may be: a core that goes away between the look
     * and this call costs the pin, not the thread. */
    bool pinned = false;
    if (core >= 0) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET((size_t)core, &one);
        pinned = pthread_attr_setaffinity_np(&attr, sizeof one, &one) == 0;
    }
    int failed = pthread_create(&self->handle, &attr, work, self);
    if (failed != 0 && pinned)
        failed = pthread_create(&self->handle, NULL, work, self);
    (void)pthread_attr_destroy(&attr);
    if (failed == 0) pool->n_started++;
    return failed == 0;
}

/* Signals are the business of the thread that waits for them, so workers are
 * born with all of them blocked. */
static bool start_workers(weft_threads *pool, const int *cores)
{
    sigset_t all;
    sigset_t before;
    (void)sigfillset(&all);
    if (pthread_sigmask(SIG_SETMASK, &all, &before) != 0) return false;
    bool fine = true;
    for (int32_t i = 0; fine && i < pool->n_threads - 1; i++)
        fine = start_worker(pool, cores[i]);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return fine;
}

weft_status weft_threads_create(int32_t n_threads, weft_threads **threads_out,
                                weft_err *err)
{
    if (n_threads < 1 || n_threads > THREADS_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "threads %d is out of range [1, %d]", (int)n_threads,
                         THREADS_MAX);
    weft_threads *const pool = weft_mem_new_aligned(LINE_BYTES, sizeof *pool);
    if (pool == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for %d threads", (int)n_threads);
    memset(pool, 0, sizeof *pool);
    pool->n_threads = n_threads;
    pool->workers = weft_mem_new((size_t)n_threads - 1, sizeof(worker));
    int cores[THREADS_MAX] = {0};
    const bool crowded = choose_cores(n_threads - 1, cores);
    pool->spin_ns = crowded ? CROWDED_SPIN_NS : SPIN_NS;
    pool->owner_spin_ns = crowded ? CROWDED_SPIN_NS : OWNER_SPIN_NS;
    if (pool->workers == NULL || !start_workers(pool, cores)) {
        const int n_started = (int)pool->n_started;
        weft_threads_destroy(pool);
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "%d of %d worker threads could be started", n_started,
                         (int)n_threads - 1);
    }
    *threads_out = pool;
    return WEFT_OK;
}

void weft_threads_destroy(weft_threads *threads)
{
    if (threads == NULL) return;
    atomic_store(&threads->leave, true);
    wake_sleepers(threads, INT_MAX);
    for (int32_t i = 0; i < threads->n_started; i++)
        (void)pthread_join(threads->workers[i].handle, NULL);
    weft_mem_free(threads->workers);
    weft_mem_free(threads);
}

int32_t weft_threads_count(const weft_threads *threads)
{
    return threads->n_threads;
}

void weft_threads_run(weft_threads *threads, int32_t n_units, weft_unit_fn fn,
                      void *arg)
{
    if (n_units <= 0) return;
    if (n_units == 1 || threads->n_threads == 1) {
        for (int32_t unit = 0; unit < n_units; unit++) fn(arg, unit, 0);
        return;
    }
    threads->fn = fn;
    threads->arg = arg;
    threads->n_units = n_units;
    atomic_store(&threads->done, 0);
    const uint64_t run = (uint64_t)atomic_load(&threads->run) + 1;
    atomic_store(&threads->units, run << 32 | (uint32_t)n_units);
    wake_sleepers(threads, n_units - 1);
    const uint32_t taken = take_units(threads, 0);
    if (taken == (uint32_t)n_units) return; /* nobody else took part */
    atomic_fetch_add(&threads->done, taken);
    wait_for_done(threads, (uint32_t)n_units);
}
