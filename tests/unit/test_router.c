/* The router with its threads: callers on many threads, a lead on another, all
 * rings small enough to be full at times. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "node/base/ring.h"
#include "router/router.h"
#include "tests/support/suite.h"
#include "tests/support/thread_lead.h"

enum { SEQS = 4, QUEUE = 12, VOCAB = 256, IDS_MAX = 64 };

static const uint64_t DEADLINE_NS = 120000000000U;

/* -- clients -------------------------------------------------------------- */

typedef struct client {
    uint64_t seed;
    int32_t n_prompt, n_ids;
    int32_t ids[IDS_MAX];
    int32_t n_ends;
    weft_status status;
    weft_stream_end end;
    uint64_t handle;
    sem_t ended, began;
    char why[WEFT_ERR_TEXT_BYTES];
} client;

static void heard_chunk(void *arg, const weft_stream_chunk *chunk)
{
    client *const c = arg;
    for (int32_t i = 0; i < chunk->n_ids; i++)
        c->ids[c->n_ids++] = chunk->ids[i];
    if (c->n_ids == 1) (void)sem_post(&c->began);
}

static void heard_complete(void *arg, const weft_stream_complete *done)
{
    client *const c = arg;
    c->n_ends++;
    c->end = done->end;
    c->n_prompt = done->prompt_tokens;
    ck_assert_int_eq(done->n_ids, c->n_ids);
    (void)sem_post(&c->ended);
}

static void heard_fail(void *arg, weft_status status, const char *text,
                       int32_t retry_after_ms)
{
    client *const c = arg;
    (void)retry_after_ms;
    c->n_ends++;
    c->status = status;
    (void)snprintf(c->why, sizeof c->why, "%s", text);
    (void)sem_post(&c->began); /* nothing will begin any more */
    (void)sem_post(&c->ended);
}

static const weft_client_ops CLIENT = {heard_chunk, heard_complete, heard_fail};

static void wait_for(sem_t *sem)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(DEADLINE_NS / 1000000000U);
    while (sem_timedwait(sem, &until) != 0)
        ck_assert_msg(errno == EINTR, "nothing came");
}

static void client_init(client *c, uint64_t seed)
{
    memset(c, 0, sizeof *c);
    c->seed = seed;
    (void)sem_init(&c->ended, 0, 0);
    (void)sem_init(&c->began, 0, 0);
}

static void client_deinit(client *c)
{
    (void)sem_destroy(&c->ended);
    (void)sem_destroy(&c->began);
}

static const uint32_t PROMPT[3] = {10, 11, 12};

static weft_request asked(uint64_t seed, uint32_t max_tokens)
{
    return (weft_request){.has_ids = true,
                          .ids = PROMPT,
                          .n_ids = 3,
                          .stream = true,
                          .deadline_ns = UINT64_MAX,
                          .seed = {true, seed},
                          .max_tokens = {true, max_tokens}};
}

static void check_ids(const client *c, int32_t n)
{
    const weft_job job = {.sampling = {.seed = c->seed}};
    ck_assert_int_eq(c->n_ids, n);
    for (int32_t i = 0; i < n; i++)
        ck_assert_int_eq(c->ids[i], thread_lead_token(&job, 3 + i));
}

/* -- a router and its lead ------------------------------------------------ */

static weft_tokenizer *tokenizer;

static weft_router *begin(int64_t memory_bytes)
{
    memset(&lead, 0, sizeof lead);
    ck_assert_int_eq(weft_tokenizer_read("tests/data/tiny-model/tokenizer.json",
                                         1 << 20, &tokenizer, NULL),
                     WEFT_OK);
    const weft_router_options options = {
        .max_seqs = SEQS,
        .max_queue = QUEUE,
        .limits = {.vocab_size = 5000,
                   .max_context = 60,
                   .tokenizer = tokenizer,
                   .temperature = 1.0F,
                   .top_p = 1.0F,
                   .repetition_penalty = 1.0F},
        .tokenizer = tokenizer,
        .memory_bytes_max = memory_bytes,
    };
    ck_assert_int_eq(
        weft_ring_create(sizeof(weft_job *), 2, &lead.submits, NULL), WEFT_OK);
    ck_assert_int_eq(weft_ring_create(sizeof(uint64_t), 2, &lead.cancels, NULL),
                     WEFT_OK);
    weft_err err = {0};
    ck_assert_msg(weft_router_create(&options, &lead.router, &err) == WEFT_OK,
                  "%s", err.text);
    ck_assert_int_eq(weft_router_start(lead.router,
                                       (weft_lead){thread_lead_submit,
                                                   thread_lead_cancel, NULL},
                                       NULL),
                     WEFT_OK);
    ck_assert_int_eq(pthread_create(&lead.thread, NULL, thread_lead_run, NULL),
                     0);
    return lead.router;
}

static void end(void)
{
    weft_router_stop(lead.router);
    atomic_store(&lead.stopping, true);
    weft_ring_wake(lead.submits);
    (void)pthread_join(lead.thread, NULL);
    weft_router_destroy(lead.router);
    weft_ring_destroy(lead.submits);
    weft_ring_destroy(lead.cancels);
    weft_tokenizer_destroy(tokenizer);
}

static void wait_idle(void)
{
    const uint64_t until = weft_clock_now_ns() + DEADLINE_NS;
    weft_router_load load;
    do {
        weft_router_get_load(lead.router, &load);
        ck_assert_uint_lt(weft_clock_now_ns(), until);
        (void)sched_yield();
    } while (load.n_live + load.n_running + load.n_waiting > 0);
}

static weft_status generate(client *c, const weft_request *request)
{
    weft_err err = {0};
    int32_t retry_after_ms = 0;
    const weft_status st = weft_router_generate(
        lead.router, request, &CLIENT, c, &c->handle, &retry_after_ms, &err);
    if (st != WEFT_OK) (void)snprintf(c->why, sizeof c->why, "%s", err.text);
    if (st == WEFT_RESOURCE_EXHAUSTED || st == WEFT_UNAVAILABLE)
        ck_assert_int_gt(retry_after_ms, 0);
    return st;
}

/* -- tests ---------------------------------------------------------------- */

START_TEST(one_stream)
{
    client c;
    client_init(&c, 5);
    (void)begin(1 << 30);
    const weft_request r = asked(5, 20);
    ck_assert_int_eq(generate(&c, &r), WEFT_OK);
    wait_for(&c.ended);
    check_ids(&c, 20);
    ck_assert_int_eq(c.n_ends, 1);
    wait_idle();
    end();
    client_deinit(&c);
}
END_TEST

START_TEST(text_prompt)
{
    client good, bad, gone;
    client_init(&good, 5);
    client_init(&bad, 6);
    client_init(&gone, 7);
    (void)begin(1 << 30);
    weft_request r = asked(5, 10);
    r.has_ids = false;
    r.has_text = true;
    r.text = (weft_span){"once upon a time", 16};
    ck_assert_int_eq(generate(&good, &r), WEFT_OK);
    ck_assert_int_eq(generate(&gone, &r), WEFT_OK);
    weft_router_cancel(lead.router, gone.handle);
    r.max_tokens.value = 59; /* too many after any prompt of two tokens */
    ck_assert_int_eq(generate(&bad, &r), WEFT_OK);
    wait_for(&good.ended);
    wait_for(&bad.ended);
    wait_for(&gone.ended);
    ck_assert(good.n_prompt > 0 && good.n_ids == 10);
    ck_assert_int_eq(bad.status, WEFT_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(bad.why, "max_tokens"));
    wait_idle();
    end();
    client_deinit(&good);
    client_deinit(&bad);
    client_deinit(&gone);
}
END_TEST

START_TEST(queue_is_bounded)
{
    client c[SEQS + QUEUE + 1];
    (void)begin(1 << 30);
    atomic_store(&lead.paused, true);
    const weft_request r = asked(5, 3);
    for (int i = 0; i < SEQS + QUEUE; i++) {
        client_init(&c[i], 5);
        ck_assert_int_eq(generate(&c[i], &r), WEFT_OK);
    }
    client *const refused = &c[SEQS + QUEUE];
    client_init(refused, 5);
    ck_assert_int_eq(generate(refused, &r), WEFT_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(refused->why, "queue is full: 16"));
    weft_router_load load;
    weft_router_get_load(lead.router, &load);
    ck_assert_int_eq(load.n_running + load.n_waiting, SEQS + QUEUE);
    weft_router_cancel(lead.router, c[0].handle);
    wait_for(&c[0].ended);
    ck_assert_int_eq(c[0].status, WEFT_CANCELLED);
    atomic_store(&lead.paused, false);
    weft_ring_wake(lead.submits);
    for (int i = 1; i < SEQS + QUEUE; i++) {
        wait_for(&c[i].ended);
        check_ids(&c[i], 3);
    }
    wait_idle();
    ck_assert_int_eq(generate(refused, &r), WEFT_OK);
    wait_for(&refused->ended);
    end();
    for (int i = 0; i <= SEQS + QUEUE; i++) client_deinit(&c[i]);
}
END_TEST

/* The lead does not move, so each request ends by its cancel alone, although
 * its slot has seen cancels of earlier ones, and they come late again. */
START_TEST(cancels_in_used_slots)
{
    enum { TIMES = 3 * (SEQS + QUEUE) };
    uint64_t handles[TIMES];
    (void)begin(1 << 30);
    atomic_store(&lead.paused, true);
    const weft_request r = asked(5, 3);
    for (int i = 0; i < TIMES; i++) {
        client c;
        client_init(&c, 5);
        ck_assert_int_eq(generate(&c, &r), WEFT_OK);
        handles[i] = c.handle;
        for (int k = 0; k <= i; k++)
            weft_router_cancel(lead.router, handles[k]);
        for (int k = 0; k < i; k++) weft_router_cancel(lead.router, handles[k]);
        wait_for(&c.ended);
        ck_assert_int_eq(c.status, WEFT_CANCELLED);
        client_deinit(&c);
    }
    wait_idle();
    end();
}
END_TEST

START_TEST(memory_is_bounded)
{
    client c[3];
    for (int i = 0; i < 3; i++) client_init(&c[i], 5);
    (void)begin(200000);
    atomic_store(&lead.paused, true);
    weft_request r = asked(5, 3);
    r.logprobs = (weft_opt_u32){true, 512};
    r.max_tokens.value = 30; /* about 123 kB each */
    ck_assert_int_eq(generate(&c[0], &r), WEFT_OK);
    ck_assert_int_eq(generate(&c[1], &r), WEFT_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(c[1].why, "request memory is full"));
    weft_router_cancel(lead.router, c[0].handle);
    wait_for(&c[0].ended);
    wait_idle();
    ck_assert_int_eq(generate(&c[2], &r), WEFT_OK);
    end();
    ck_assert_int_eq(c[2].status, WEFT_UNAVAILABLE); /* stop ended it */
    for (int i = 0; i < 3; i++) client_deinit(&c[i]);
}
END_TEST

static long long needed(uint32_t max_tokens)
{
    static const char says[] = "this request needs ";
    client c;
    client_init(&c, 5);
    const weft_request r = asked(5, max_tokens);
    ck_assert_int_eq(generate(&c, &r), WEFT_RESOURCE_EXHAUSTED);
    const char *const at = strstr(c.why, says);
    ck_assert_msg(at != NULL, "%s", c.why);
    client_deinit(&c);
    return strtoll(at + sizeof says - 1, NULL, 10);
}

/* A token more is room for its id and for the longest text that one can be. */
START_TEST(memory_is_kept_for_the_text_of_answers)
{
    enum { MORE = 56 };
    (void)begin(1);
    const long long longest =
        (long long)weft_tokenizer_longest_text_bytes(tokenizer);
    ck_assert_int_ge(longest, 14);
    ck_assert_int_ge(needed(MORE + 1) - needed(1),
                     MORE * ((long long)sizeof(int32_t) + longest));
    end();
}
END_TEST

/* Whether a text is still to be sent, in line or in work when the router stops,
 * its client hears of the end once, and nothing is left. */
START_TEST(stop_with_texts_in_line)
{
    enum { TIMES = 20 };
    for (int round = 0; round < TIMES; round++) {
        client c[SEQS + QUEUE];
        weft_router *const router = begin(1 << 30);
        weft_request r = asked(5, 3);
        r.has_ids = false;
        r.has_text = true;
        r.text = (weft_span){"once upon a time", 16};
        atomic_store(&lead.paused, true);
        for (int i = 0; i < SEQS + QUEUE; i++) {
            client_init(&c[i], 5);
            ck_assert_int_eq(generate(&c[i], &r), WEFT_OK);
        }
        if (round % 2 == 0) (void)sched_yield();
        weft_router_stop(router);
        for (int i = 0; i < SEQS + QUEUE; i++) {
            ck_assert_int_eq(c[i].n_ends, 1);
            ck_assert_int_eq(c[i].status, WEFT_UNAVAILABLE);
            client_deinit(&c[i]);
        }
        end();
    }
}
END_TEST

START_TEST(drain_and_cut)
{
    client running, late;
    client_init(&running, 5);
    client_init(&late, 6);
    (void)begin(1 << 30);
    const weft_request r = asked(5, 3);
    atomic_store(&lead.paused, true);
    ck_assert_int_eq(generate(&running, &r), WEFT_OK);
    ck_assert(!weft_router_is_draining(lead.router));
    weft_router_drain(lead.router);
    ck_assert(weft_router_is_draining(lead.router));
    ck_assert_int_eq(generate(&late, &r), WEFT_UNAVAILABLE);
    ck_assert_int_eq(running.n_ends, 0);
    weft_router_cut(lead.router);
    wait_for(&running.ended);
    ck_assert_int_eq(running.status, WEFT_UNAVAILABLE);
    wait_idle();
    end();
    client_deinit(&running);
    client_deinit(&late);
}
END_TEST

typedef struct reply {
    sem_t came;
    int32_t n_aborted;
    weft_status status;
    int32_t ids[IDS_MAX];
    size_t n;
    char text[256];
} reply;

static void got_abort(void *arg, int32_t n)
{
    reply *const r = arg;
    r->n_aborted = n;
    (void)sem_post(&r->came);
}

static void got_ids(void *arg, const weft_err *err, const int32_t *ids,
                    size_t n)
{
    reply *const r = arg;
    r->status = err == NULL ? WEFT_OK : err->status;
    r->n = n;
    if (n > 0) memcpy(r->ids, ids, n * sizeof *ids);
    (void)sem_post(&r->came);
}

static void got_text(void *arg, const weft_err *err, weft_span text)
{
    reply *const r = arg;
    r->status = err == NULL ? WEFT_OK : err->status;
    r->text[0] = '\0';
    if (err == NULL) (void)strncat(r->text, text.data, text.n);
    (void)sem_post(&r->came);
}

START_TEST(small_calls)
{
    static const weft_span names[] = {{"a", 1}, {"b", 1}};
    reply r = {0};
    client c[2];
    (void)sem_init(&r.came, 0, 0);
    weft_router *const router = begin(1 << 30);
    atomic_store(&lead.paused, true);
    for (int i = 0; i < 2; i++) {
        weft_request request = asked(5, 9);
        client_init(&c[i], 5);
        request.request_id = names[0];
        ck_assert_int_eq(generate(&c[i], &request), WEFT_OK);
    }
    ck_assert_int_eq(weft_router_abort(router, names, 2, got_abort, &r, NULL),
                     WEFT_OK);
    wait_for(&r.came);
    ck_assert_int_eq(r.n_aborted, 2);
    for (int i = 0; i < 2; i++) {
        wait_for(&c[i].ended);
        ck_assert_int_eq(c[i].end, WEFT_END_ABORT);
        client_deinit(&c[i]);
    }
    const weft_span text = {"caf\xC3\xA9 au lait", 13};
    ck_assert_int_eq(
        weft_router_tokenize(router, text, true, false, got_ids, &r, NULL),
        WEFT_OK);
    wait_for(&r.came);
    ck_assert(r.status == WEFT_OK && r.n > 1);
    ck_assert_int_eq(weft_router_detokenize(router, (const uint32_t *)r.ids,
                                            r.n, true, got_text, &r, NULL),
                     WEFT_OK);
    wait_for(&r.came);
    ck_assert_str_eq(r.text, text.data);
    const uint32_t foreign[] = {1, UINT32_MAX};
    ck_assert_int_eq(
        weft_router_detokenize(router, foreign, 2, true, got_text, &r, NULL),
        WEFT_OK);
    wait_for(&r.came);
    ck_assert_int_eq(r.status, WEFT_INVALID_ARGUMENT);
    ck_assert_int_eq(weft_router_tokenize(router, (weft_span){"\xFF", 1}, true,
                                          false, got_ids, &r, NULL),
                     WEFT_OK);
    wait_for(&r.came);
    ck_assert_int_eq(r.status, WEFT_INVALID_ARGUMENT);
    end();
    (void)sem_destroy(&r.came);
}
END_TEST

/* Callers that start, cancel and wait, all at once. */
enum { CALLERS = 4, ROUNDS = 150 };

static void *call_many(void *arg)
{
    const uint64_t me = *(const uint64_t *)arg;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        client c;
        const uint64_t seed = me * 1000 + round;
        client_init(&c, seed);
        weft_request r = asked(seed, (uint32_t)(round % 30) + 1);
        if (round % 7 == 3) r.deadline_ns = weft_clock_now_ns() + 200000;
        const weft_status st = generate(&c, &r);
        if (st == WEFT_OK) {
            if (round % 3 == 1) {
                if (round % 2 == 1) wait_for(&c.began);
                weft_router_cancel(lead.router, c.handle);
            }
            wait_for(&c.ended);
            ck_assert_int_eq(c.n_ends, 1);
            check_ids(&c, c.status == WEFT_OK ? (int32_t)r.max_tokens.value
                                              : c.n_ids);
        }
        client_deinit(&c);
    }
    return NULL;
}

START_TEST(storm)
{
    static uint64_t numbers[CALLERS] = {1, 2, 3, 4};
    pthread_t threads[CALLERS];
    (void)begin(1 << 30);
    for (int i = 0; i < CALLERS; i++)
        ck_assert_int_eq(
            pthread_create(&threads[i], NULL, call_many, &numbers[i]), 0);
    for (int i = 0; i < CALLERS; i++) (void)pthread_join(threads[i], NULL);
    wait_idle();
    ck_assert_int_gt(atomic_load(&lead.n_preempted), 0);
    end();
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        one_stream,        text_prompt,
        queue_is_bounded,  cancels_in_used_slots,
        memory_is_bounded, memory_is_kept_for_the_text_of_answers,
        drain_and_cut,     stop_with_texts_in_line,
        small_calls,       storm,
    };
    return WEFT_SUITE_RUN("router", tests);
}
