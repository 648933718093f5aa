#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "node/base/ring.h"
#include "tests/support/suite.h"

enum { DEADLINE_S = 60 };

static uint64_t deadline_ns(void)
{
    return weft_clock_now_ns() + (uint64_t)DEADLINE_S * 1000000000U;
}

static weft_ring *ring_of(size_t item_bytes, size_t n_items)
{
    weft_err err = {0};
    weft_ring *ring = NULL;
    ck_assert_msg(weft_ring_create(item_bytes, n_items, &ring, &err) == WEFT_OK,
                  "%s", err.text);
    return ring;
}

START_TEST(holds_exactly_n_in_order)
{
    for (size_t n = 1; n <= 5; n++) {
        weft_ring *const ring = ring_of(sizeof(int), n);
        int pushed = 0;
        int popped = 0;
        int out = -1;
        for (int lap = 0; lap < 40; lap++) {
            for (size_t i = 0; i < n; i++, pushed++)
                ck_assert(weft_ring_push(ring, &pushed));
            ck_assert(!weft_ring_push(ring, &pushed));
            /* All in even laps, all but one in odd ones. */
            for (size_t i = (size_t)lap % 2; i < n; i++, popped++) {
                ck_assert(weft_ring_pop(ring, &out));
                ck_assert_int_eq(out, popped);
            }
            for (; popped < pushed; popped++) {
                ck_assert(weft_ring_pop(ring, &out));
                ck_assert_int_eq(out, popped);
            }
            ck_assert(!weft_ring_pop(ring, &out));
            ck_assert_int_eq(out, popped - 1);
        }
        ck_assert(weft_ring_push(ring, &pushed)); /* dropped by destroy */
        weft_ring_destroy(ring);
    }
    weft_ring_destroy(NULL);
}
END_TEST

/* As a plain queue, for every pattern of 12 pushes and pops. */
START_TEST(behaves_as_a_queue)
{
    for (unsigned pattern = 0; pattern < 1U << 12; pattern++) {
        weft_ring *const ring = ring_of(sizeof(unsigned), 3);
        unsigned next_in = 0;
        unsigned next_out = 0;
        for (unsigned i = 0; i < 12; i++) {
            unsigned out = 0;
            if ((pattern >> i & 1) != 0) {
                const bool fits = next_in - next_out < 3;
                ck_assert_int_eq(weft_ring_push(ring, &next_in), fits);
                next_in += fits ? 1 : 0;
            } else if (next_in == next_out) {
                ck_assert(!weft_ring_pop(ring, &out));
            } else {
                ck_assert(weft_ring_pop(ring, &out));
                ck_assert_uint_eq(out, next_out++);
            }
        }
        weft_ring_destroy(ring);
    }
}
END_TEST

enum { PUSHERS = 4, PER_PUSHER = 5000, PAD = 5 };

typedef struct item { /* 13 bytes: no alignment to lean on */
    unsigned char raw[8 + PAD];
} item;

typedef struct pusher {
    weft_ring *ring;
    int number;
    pthread_t handle;
} pusher;

static void *push_all(void *arg)
{
    const pusher *const self = arg;
    for (int i = 0; i < PER_PUSHER; i++) {
        item it;
        memcpy(it.raw, &self->number, sizeof(int));
        memcpy(it.raw + sizeof(int), &i, sizeof(int));
        memset(it.raw + 8, self->number * 31 + i, PAD);
        while (!weft_ring_push(self->ring, &it)) (void)sched_yield();
    }
    return NULL;
}

static void check_item(const item *it, int *next)
{
    int number = -1;
    int i = -1;
    memcpy(&number, it->raw, sizeof(int));
    memcpy(&i, it->raw + sizeof(int), sizeof(int));
    ck_assert_int_ge(number, 0);
    ck_assert_int_lt(number, PUSHERS);
    ck_assert_int_eq(i, next[number]);
    for (int k = 0; k < PAD; k++)
        ck_assert_uint_eq(it->raw[8 + k], (unsigned char)(number * 31 + i));
    next[number]++;
}

START_TEST(many_pushers_one_popper)
{
    static const size_t n_items[] = {1, 2, 3, 64, 1000};
    for (size_t k = 0; k < sizeof n_items / sizeof n_items[0]; k++) {
        weft_ring *const ring = ring_of(sizeof(item), n_items[k]);
        pusher pushers[PUSHERS];
        for (int i = 0; i < PUSHERS; i++) {
            pushers[i] = (pusher){.ring = ring, .number = i};
            ck_assert_int_eq(
                pthread_create(&pushers[i].handle, NULL, push_all, &pushers[i]),
                0);
        }
        int next[PUSHERS] = {0};
        const uint64_t until = deadline_ns();
        for (int got = 0; got < PUSHERS * PER_PUSHER;) {
            item it;
            if (weft_ring_pop(ring, &it)) {
                check_item(&it, next);
                got++;
                continue;
            }
            weft_ring_wait(ring, until);
            ck_assert_msg(weft_clock_now_ns() < until, "%d items came", got);
        }
        for (int i = 0; i < PUSHERS; i++)
            (void)pthread_join(pushers[i].handle, NULL);
        item it;
        ck_assert(!weft_ring_pop(ring, &it));
        weft_ring_destroy(ring);
    }
}
END_TEST

typedef struct pingpong {
    weft_ring *there, *back;
} pingpong;

static void *answer(void *arg)
{
    const pingpong *const p = arg;
    for (int done = 0; done < 3000; done++) {
        int value = 0;
        while (!weft_ring_pop(p->there, &value))
            weft_ring_wait(p->there, UINT64_MAX);
        value++;
        while (!weft_ring_push(p->back, &value)) (void)sched_yield();
    }
    return NULL;
}

/* Both sides wait without a deadline: a lost wake-up hangs the test. */
START_TEST(no_wake_up_is_lost)
{
    pingpong p = {ring_of(sizeof(int), 1), ring_of(sizeof(int), 1)};
    pthread_t other;
    ck_assert_int_eq(pthread_create(&other, NULL, answer, &p), 0);
    for (int i = 0; i < 3000; i++) {
        ck_assert(weft_ring_push(p.there, &i));
        int got = 0;
        while (!weft_ring_pop(p.back, &got)) weft_ring_wait(p.back, UINT64_MAX);
        ck_assert_int_eq(got, i + 1);
    }
    (void)pthread_join(other, NULL);
    weft_ring_destroy(p.there);
    weft_ring_destroy(p.back);
}
END_TEST

START_TEST(wait_returns_for_each_reason)
{
    weft_ring *const ring = ring_of(1, 4);
    const uint64_t start = weft_clock_now_ns();
    weft_ring_wait(ring, start + 3000000); /* the deadline */
    ck_assert_uint_ge(weft_clock_now_ns(), start + 3000000);
    weft_ring_wait(ring, 0); /* one that has passed */
    weft_ring_wake(ring);
    weft_ring_wait(ring, UINT64_MAX); /* a wake that came before */
    const uint64_t again = weft_clock_now_ns();
    weft_ring_wait(ring, again + 3000000); /* which counts once */
    ck_assert_uint_ge(weft_clock_now_ns(), again + 3000000);
    ck_assert(weft_ring_push(ring, "a"));
    weft_ring_wait(ring, UINT64_MAX); /* an item */
    weft_ring_destroy(ring);
}
END_TEST

static void *wake_soon(void *arg)
{
    weft_ring_wake(arg);
    return NULL;
}

START_TEST(wake_from_another_thread)
{
    weft_ring *const ring = ring_of(1, 1);
    for (int i = 0; i < 200; i++) {
        pthread_t other;
        ck_assert_int_eq(pthread_create(&other, NULL, wake_soon, ring), 0);
        weft_ring_wait(ring, UINT64_MAX);
        (void)pthread_join(other, NULL);
    }
    weft_ring_destroy(ring);
}
END_TEST

START_TEST(bad_sizes_and_no_memory)
{
    weft_ring *ring = NULL;
    ck_assert_int_eq(weft_ring_create(0, 1, &ring, NULL),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_int_eq(weft_ring_create(1, 0, &ring, NULL),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_int_eq(weft_ring_create(16, SIZE_MAX / 8, &ring, NULL),
                     WEFT_RESOURCE_EXHAUSTED);
    for (long n = 0; n < 3; n++) {
        weft_mem_fail_after(n);
        ck_assert_int_eq(weft_ring_create(8, 8, &ring, NULL),
                         WEFT_RESOURCE_EXHAUSTED);
        weft_mem_fail_after(-1);
        ck_assert_int_eq(weft_mem_live(), 0);
    }
    ck_assert_ptr_null(ring);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        holds_exactly_n_in_order,     behaves_as_a_queue,
        many_pushers_one_popper,      no_wake_up_is_lost,
        wait_returns_for_each_reason, wake_from_another_thread,
        bad_sizes_and_no_memory};
    return WEFT_SUITE_RUN("base/ring", tests);
}
