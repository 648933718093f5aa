#include "shard/link/pulse.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "node/base/clock.h"
#include "node/base/mem.h"

struct weft_pulse {
    uint64_t interval_ns;
    pthread_t thread;
    _Atomic uint64_t step;
    atomic_bool busy;

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    bool stopping;
    weft_link **links;
    int32_t n, capacity;
    uint64_t hang_ns; /* 0: nobody watches */
    void (*hung)(void *arg);
    void *hung_arg;
};

/* Whether the watched thread is busy and has stood still for too long. */
typedef struct watch {
    uint64_t step, since_ns;
    bool told;
} watch;

/* With the lock. */
static bool is_hung(const weft_pulse *pulse, watch *seen, uint64_t now_ns)
{
    const uint64_t step = atomic_load(&pulse->step);
    if (step != seen->step || !atomic_load(&pulse->busy) ||
        pulse->hang_ns == 0) {
        *seen = (watch){.step = step, .since_ns = now_ns};
        return false;
    }
    return now_ns - seen->since_ns >= pulse->hang_ns;
}

static void send_pulses(weft_pulse *pulse)
{
    const uint64_t step = atomic_load(&pulse->step);
    for (int32_t i = 0; i < pulse->n; i++)
        weft_link_pulse(pulse->links[i], step);
}

static void *run(void *arg)
{
    weft_pulse *const pulse = arg;
    watch seen = {.since_ns = weft_clock_now_ns()};
    uint64_t next_ns = seen.since_ns + pulse->interval_ns;
    (void)pthread_mutex_lock(&pulse->lock);
    while (!pulse->stopping) {
        const uint64_t now = weft_clock_now_ns();
        if (now < next_ns) {
            const struct timespec until = {
                .tv_sec = (time_t)(next_ns / 1000000000U),
                .tv_nsec = (long)(next_ns % 1000000000U)};
            (void)pthread_cond_timedwait(&pulse->changed, &pulse->lock, &until);
            continue;
        }
        /* After a pause of the whole process there is nothing to catch up. */
        next_ns = next_ns + pulse->interval_ns > now
                      ? next_ns + pulse->interval_ns
                      : now + pulse->interval_ns;
        if (!is_hung(pulse, &seen, now)) {
            send_pulses(pulse);
        } else if (!seen.told) {
            seen.told = true;
            void (*const hung)(void *) = pulse->hung;
            void *const hung_arg = pulse->hung_arg;
            (void)pthread_mutex_unlock(&pulse->lock);
            if (hung != NULL) hung(hung_arg);
            (void)pthread_mutex_lock(&pulse->lock);
        }
    }
    (void)pthread_mutex_unlock(&pulse->lock);
    return NULL;
}

weft_status weft_pulse_start(uint64_t interval_ns, weft_pulse **pulse_out,
                             weft_err *err)
{
    pthread_condattr_t monotonic;
    if (interval_ns == 0)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "pulses need an interval above 0");
    weft_pulse *const pulse = weft_mem_new(1, sizeof *pulse);
    if (pulse == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for the pulse thread");
    pulse->interval_ns = interval_ns;
    (void)pthread_mutex_init(&pulse->lock, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&pulse->changed, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    const int why = pthread_create(&pulse->thread, NULL, run, pulse);
    if (why != 0) {
        (void)pthread_cond_destroy(&pulse->changed);
        (void)pthread_mutex_destroy(&pulse->lock);
        weft_mem_free(pulse);
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no pulse thread: %s",
                         strerror(why));
    }
    *pulse_out = pulse;
    return WEFT_OK;
}

void weft_pulse_stop(weft_pulse *pulse)
{
    if (pulse == NULL) return;
    (void)pthread_mutex_lock(&pulse->lock);
    pulse->stopping = true;
    (void)pthread_cond_signal(&pulse->changed);
    (void)pthread_mutex_unlock(&pulse->lock);
    (void)pthread_join(pulse->thread, NULL);
    (void)pthread_cond_destroy(&pulse->changed);
    (void)pthread_mutex_destroy(&pulse->lock);
    weft_mem_free(pulse->links);
    weft_mem_free(pulse);
}

/* With the lock. */
static bool grow(weft_pulse *pulse)
{
    if (pulse->n < pulse->capacity) return true;
    const int32_t capacity = pulse->capacity == 0 ? 8 : 2 * pulse->capacity;
    weft_link **const links =
        weft_mem_resize(pulse->links, (size_t)capacity, sizeof(weft_link *));
    if (links == NULL) return false;
    pulse->links = links;
    pulse->capacity = capacity;
    return true;
}

weft_status weft_pulse_add(weft_pulse *pulse, weft_link *link, weft_err *err)
{
    (void)pthread_mutex_lock(&pulse->lock);
    const bool room = grow(pulse);
    if (room) pulse->links[pulse->n++] = link;
    (void)pthread_mutex_unlock(&pulse->lock);
    if (room) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory for a link more");
}

void weft_pulse_remove(weft_pulse *pulse, weft_link *link)
{
    (void)pthread_mutex_lock(&pulse->lock);
    for (int32_t i = 0; i < pulse->n; i++) {
        if (pulse->links[i] != link) continue;
        pulse->links[i] = pulse->links[--pulse->n];
        break;
    }
    (void)pthread_mutex_unlock(&pulse->lock);
}

void weft_pulse_step(weft_pulse *pulse)
{
    (void)atomic_fetch_add_explicit(&pulse->step, 1, memory_order_relaxed);
}

void weft_pulse_set_busy(weft_pulse *pulse, bool busy)
{
    atomic_store_explicit(&pulse->busy, busy, memory_order_relaxed);
}

void weft_pulse_watch(weft_pulse *pulse, uint64_t hang_ns,
                      void (*hung)(void *arg), void *arg)
{
    (void)pthread_mutex_lock(&pulse->lock);
    pulse->hang_ns = hang_ns;
    pulse->hung = hung;
    pulse->hung_arg = arg;
    (void)pthread_mutex_unlock(&pulse->lock);
}
