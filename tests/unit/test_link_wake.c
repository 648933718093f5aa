/* A poller that several threads wake at any moment. */
#include <pthread.h>
#include <stdatomic.h>

#include "node/base/clock.h"
#include "shard/link/link.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

#define MS UINT64_C(1000000)

enum { WAKERS = 3, WAITS = 100000 };

/* Nobody waits for so long unless a wake was lost. */
static const uint64_t LOST_NS = 10000 * MS;

typedef struct waking {
    weft_poller *poller;
    atomic_bool stop;
    _Atomic uint64_t n_asked; /* what is to be done, told before each wake */
} waking;

static void *wake_on(void *arg)
{
    waking *const it = arg;
    while (!atomic_load(&it->stop)) {
        (void)atomic_fetch_add_explicit(&it->n_asked, 1, memory_order_relaxed);
        weft_poller_wake(it->poller);
    }
    return NULL;
}

/* Each wait is followed by more wakes, so none lasts. */
START_TEST(wakes_without_end)
{
    waking it = {.poller = NULL};
    pthread_t threads[WAKERS];
    OK(weft_poller_create(&it.poller, &err));
    for (int i = 0; i < WAKERS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, wake_on, &it), 0);
    const uint64_t end_ns = weft_clock_now_ns() + 3000 * MS;
    uint64_t now_ns = 0;
    for (int n = 0; n < WAITS && now_ns < end_ns; n++) {
        const uint64_t began_ns = weft_clock_now_ns();
        weft_poller_wait(it.poller, began_ns + LOST_NS, 0);
        now_ns = weft_clock_now_ns();
        ck_assert_msg(now_ns - began_ns < LOST_NS, "after %d waits", n);
    }
    atomic_store(&it.stop, true);
    for (int i = 0; i < WAKERS; i++) (void)pthread_join(threads[i], NULL);
    weft_poller_destroy(it.poller);
}
END_TEST

enum { ROUNDS = 3000 };

static void *wake_for_each(void *arg)
{
    waking *const it = arg;
    for (int i = 0; i < ROUNDS; i++) {
        (void)atomic_fetch_add(&it->n_asked, 1);
        weft_poller_wake(it->poller);
    }
    return NULL;
}

/* Whoever looks before each wait, and waits while there is nothing, has seen
 * all in the end: no wake stays behind, the last one neither. */
START_TEST(the_last_wake_is_seen)
{
    waking it = {.poller = NULL};
    pthread_t threads[WAKERS];
    OK(weft_poller_create(&it.poller, &err));
    for (int round = 0; round < 20; round++) {
        atomic_store(&it.n_asked, 0);
        for (int i = 0; i < WAKERS; i++)
            ck_assert_int_eq(
                pthread_create(&threads[i], NULL, wake_for_each, &it), 0);
        uint64_t n_seen = 0;
        while (n_seen < (uint64_t)WAKERS * ROUNDS) {
            const uint64_t began_ns = weft_clock_now_ns();
            weft_poller_wait(it.poller, began_ns + LOST_NS, 0);
            ck_assert_msg(weft_clock_now_ns() - began_ns < LOST_NS,
                          "in round %d with %llu of %d seen", round,
                          (unsigned long long)n_seen, WAKERS * ROUNDS);
            n_seen = atomic_load(&it.n_asked);
        }
        for (int i = 0; i < WAKERS; i++) (void)pthread_join(threads[i], NULL);
    }
    weft_poller_destroy(it.poller);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {wakes_without_end, the_last_wake_is_seen};
    return WEFT_SUITE_RUN("wakes of a poller", tests);
}
