/* The RPC server and client over a real connection, with a node.fake node
 * behind: order, cancel, deadline, slow readers, limits, drain and stop. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/clock.h"
#include "tests/support/served.h"
#include "tests/support/suite.h"

static served node;

static bool is_idle(const weft_fake_counts *counts, int value)
{
    return counts->live == value;
}

/* What a stream brought, checked as it comes. */
struct seen {
    int32_t tokens, chunks, completes;
    int32_t n_top;     /* expected in each chunk; -1: no logprobs */
    int32_t stop_at;   /* cancel when so many tokens have come; 0: never */
    size_t text_bytes; /* of the chunks */
    void (*on_first)(void);
};

static void check_logprobs(const weft_chunk *chunk, int32_t n_top)
{
    ck_assert_uint_eq(chunk->logprobs.n_tokens, n_top < 0 ? 0 : chunk->n_ids);
    for (size_t i = 0; i < chunk->logprobs.n_tokens; i++) {
        ck_assert_int_eq(chunk->logprobs.ids[i], chunk->ids[i]);
        if (n_top > 0) ck_assert_int_eq(chunk->logprobs.n_top[i], n_top);
    }
}

static bool on_response(void *arg, const weft_generate_response *response)
{
    struct seen *seen = arg;
    if (response->is_complete) {
        const weft_complete *done = &response->complete;
        seen->completes++;
        if (seen->chunks == 0) seen->tokens = (int32_t)done->n_ids;
        ck_assert_int_eq((int32_t)done->n_ids, seen->tokens);
        for (int32_t i = 0; i < seen->tokens; i++)
            ck_assert_int_eq(done->ids[i], i);
        if (seen->chunks > 0) ck_assert_uint_eq(done->text.n, seen->text_bytes);
        ck_assert_uint_eq(done->finish_reason.n, 6);
        return true;
    }
    const weft_chunk *chunk = &response->chunk;
    ck_assert_uint_gt(chunk->n_ids, 0);
    for (size_t i = 0; i < chunk->n_ids; i++)
        ck_assert_int_eq(chunk->ids[i], seen->tokens + (int32_t)i);
    check_logprobs(chunk, seen->n_top);
    seen->tokens += (int32_t)chunk->n_ids;
    seen->text_bytes += chunk->text.n;
    ck_assert_uint_eq(chunk->completion_tokens, (uint32_t)seen->tokens);
    if (seen->chunks++ == 0 && seen->on_first != NULL) seen->on_first();
    return seen->stop_at == 0 || seen->tokens < seen->stop_at;
}

static weft_generate_request request_of(const char *text, uint32_t max_tokens)
{
    return (weft_generate_request){
        .prompt = WEFT_PROMPT_TEXT,
        .text = {text, strlen(text)},
        .stream = true,
        .sampling = {.max_tokens = {true, max_tokens}},
    };
}

static bool is_cancelled(const weft_fake_counts *counts, int value)
{
    return counts->cancelled >= value;
}

static bool is_started(const weft_fake_counts *counts, int value)
{
    return counts->started >= value;
}

static bool has_made(const weft_fake_counts *counts, int value)
{
    return counts->tokens >= value;
}

START_TEST(tokens_come_in_order)
{
    node = serve(weft_rpc_options_default());
    weft_client *client = serve_client(&node);
    weft_generate_request request = request_of("x", 500);
    for (int32_t n_top = -1; n_top <= 5; n_top += 2) {
        weft_err err = {0};
        struct seen seen = {.n_top = n_top};
        request.sampling.logprobs =
            (weft_opt_u32){n_top >= 0, (uint32_t)(n_top < 0 ? 0 : n_top)};
        const weft_status st = weft_client_generate(
            client, &request, UINT64_MAX, on_response, &seen, &err);
        ck_assert_msg(st == WEFT_OK, "%s", err.text);
        ck_assert_int_eq(seen.tokens, 500);
        ck_assert_int_eq(seen.completes, 1);
        ck_assert_int_gt(seen.chunks, 0);
    }
    weft_client_destroy(client);
    serve_end(&node);
}
END_TEST

START_TEST(without_stream_one_message_has_everything)
{
    node = serve(weft_rpc_options_default());
    weft_client *client = serve_client(&node);
    weft_generate_request request = request_of("x", 40);
    request.stream = false;
    struct seen seen = {.n_top = -1};
    ck_assert_int_eq(weft_client_generate(client, &request, UINT64_MAX,
                                          on_response, &seen, NULL),
                     WEFT_OK);
    ck_assert_int_eq(seen.chunks, 0);
    ck_assert_int_eq(seen.completes, 1);
    ck_assert_int_eq(seen.tokens, 40);
    weft_client_destroy(client);
    serve_end(&node);
}
END_TEST

START_TEST(cancel_reaches_the_service_once)
{
    node = serve(weft_rpc_options_default());
    weft_client *client = serve_client(&node);
    const weft_generate_request request = request_of("x", 1000000);
    struct seen seen = {.n_top = -1, .stop_at = 3};
    ck_assert_int_eq(weft_client_generate(client, &request, UINT64_MAX,
                                          on_response, &seen, NULL),
                     WEFT_CANCELLED);
    ck_assert(weft_fake_wait(node.fake, is_cancelled, 1));
    ck_assert(weft_fake_wait(node.fake, is_idle, 0));
    weft_client_destroy(client);
    const weft_fake_counts counts = weft_fake_read(node.fake);
    ck_assert_int_eq(counts.cancelled, 1);
    ck_assert_int_eq(counts.last_why, WEFT_CANCELLED);
    ck_assert_int_eq(counts.ended, 1);
    ck_assert_int_eq(counts.last_ended, WEFT_CANCELLED);
    serve_end(&node);
}
END_TEST

START_TEST(deadline_ends_a_call_that_waits)
{
    node = serve(weft_rpc_options_default());
    weft_client *client = serve_client(&node);
    const weft_generate_request request = request_of("hold", 1);
    struct seen seen = {.n_top = -1};
    const uint64_t before_ns = weft_clock_now_ns();
    ck_assert_int_eq(weft_client_generate(client, &request, SECONDS(1) / 4,
                                          on_response, &seen, NULL),
                     WEFT_DEADLINE_EXCEEDED);
    ck_assert(weft_fake_wait(node.fake, is_cancelled, 1));
    ck_assert(weft_fake_wait(node.fake, is_idle, 0));
    const weft_fake_counts counts = weft_fake_read(node.fake);
    ck_assert_int_eq(counts.last_why, WEFT_DEADLINE_EXCEEDED);
    ck_assert_int_eq(counts.last_ended, WEFT_DEADLINE_EXCEEDED);
    ck_assert_uint_gt(counts.last_deadline_ns, before_ns);
    ck_assert_uint_lt(counts.last_deadline_ns, before_ns + SECONDS(20));
    weft_client_destroy(client);
    serve_end(&node);
}
END_TEST

START_TEST(no_deadline_is_told_as_none)
{
    node = serve(weft_rpc_options_default());
    weft_client *client = serve_client(&node);
    const weft_generate_request request = request_of("x", 1);
    struct seen seen = {.n_top = -1};
    ck_assert_int_eq(weft_client_generate(client, &request, UINT64_MAX,
                                          on_response, &seen, NULL),
                     WEFT_OK);
    ck_assert_uint_eq(weft_fake_read(node.fake).last_deadline_ns, UINT64_MAX);
    weft_client_destroy(client);
    serve_end(&node);
}
END_TEST

START_TEST(failures_carry_status_text_and_hint)
{
    node = serve(weft_rpc_options_default());
    weft_client *client = serve_client(&node);
    weft_err err = {0};
    struct seen seen = {.n_top = -1};
    weft_generate_request request = request_of("fail", 1);
    ck_assert_int_eq(weft_client_generate(client, &request, UINT64_MAX,
                                          on_response, &seen, &err),
                     WEFT_UNAVAILABLE);
    ck_assert_str_eq(err.text, "draining, ? try again");
    ck_assert_int_eq(weft_client_retry_after_ms(client), 1500);
    ck_assert(!weft_client_lost(client));

    request = request_of("internal", 1);
    ck_assert_int_eq(weft_client_generate(client, &request, UINT64_MAX,
                                          on_response, &seen, &err),
                     WEFT_INTERNAL);
    ck_assert_str_eq(err.text, "a defect");
    ck_assert_int_eq(weft_client_retry_after_ms(client), -1);
    ck_assert_int_eq(weft_fake_read(node.fake).last_ended, WEFT_INTERNAL);
    weft_client_destroy(client);
    serve_end(&node);
}
END_TEST

enum { N_THREADS = 8, N_CALLS = 25 };

static void *call_many(void *arg)
{
    const int32_t number = *(const int32_t *)arg;
    weft_client *client = serve_client(&node);
    for (int32_t i = 0; i < N_CALLS; i++) {
        struct seen seen = {.n_top = 2, .stop_at = i % 5 == 4 ? 7 : 0};
        weft_generate_request request =
            request_of("x", (uint32_t)(20 + 3 * number + i));
        request.sampling.logprobs = (weft_opt_u32){true, 2};
        const weft_status st = weft_client_generate(
            client, &request, UINT64_MAX, on_response, &seen, NULL);
        /* A whole answer may have been there when it was cancelled. */
        if (seen.stop_at == 0) ck_assert_int_eq(st, WEFT_OK);
        if (seen.stop_at == 0) ck_assert_int_eq(seen.completes, 1);
    }
    weft_client_destroy(client);
    return NULL;
}

START_TEST(many_streams_at_once)
{
    pthread_t threads[N_THREADS];
    int32_t numbers[N_THREADS];
    node = serve(weft_rpc_options_default());
    for (int32_t i = 0; i < N_THREADS; i++) {
        numbers[i] = i;
        ck_assert_int_eq(
            pthread_create(&threads[i], NULL, call_many, &numbers[i]), 0);
    }
    for (int32_t i = 0; i < N_THREADS; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    ck_assert(weft_fake_wait(node.fake, is_idle, 0));
    weft_rpc_server_stop(node.server, SECONDS(20));
    const weft_fake_counts counts = weft_fake_read(node.fake);
    ck_assert_int_eq(counts.started, N_THREADS * N_CALLS);
    ck_assert_int_eq(counts.ended, N_THREADS * N_CALLS);
    serve_end(&node);
}
END_TEST

/* --- readers that do not read -------------------------------------------- */

enum { SLOW_TOKENS = 20000 };

static void until_all_made(void)
{
    ck_assert(weft_fake_wait(node.fake, has_made, SLOW_TOKENS));
}

static void until_cancelled(void)
{
    ck_assert(weft_fake_wait(node.fake, is_cancelled, 1));
}

static weft_generate_request slow_request(void)
{
    weft_generate_request request = request_of("x", SLOW_TOKENS);
    request.sampling.logprobs = (weft_opt_u32){true, 20};
    return request;
}

START_TEST(slow_reader_loses_nothing_and_chunks_merge)
{
    node = serve(weft_rpc_options_default());
    weft_client *client = serve_client(&node);
    const weft_generate_request request = slow_request();
    struct seen seen = {.n_top = 20, .on_first = until_all_made};
    weft_err err = {0};
    const weft_status st = weft_client_generate(client, &request, UINT64_MAX,
                                                on_response, &seen, &err);
    ck_assert_msg(st == WEFT_OK, "%s", err.text);
    ck_assert_int_eq(seen.tokens, SLOW_TOKENS);
    ck_assert_int_lt(seen.chunks, SLOW_TOKENS / 2);
    weft_client_destroy(client);
    serve_end(&node);
}
END_TEST

START_TEST(waiting_bytes_are_limited)
{
    weft_rpc_options options = weft_rpc_options_default();
    options.waiting_bytes_max = 65536;
    node = serve(options);
    weft_client *client = serve_client(&node);
    const weft_generate_request request = slow_request();
    struct seen seen = {.n_top = 20, .on_first = until_cancelled};
    weft_err err = {0};
    ck_assert_int_eq(weft_client_generate(client, &request, UINT64_MAX,
                                          on_response, &seen, &err),
                     WEFT_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(err.text, "65536"));
    ck_assert(weft_fake_wait(node.fake, is_cancelled, 1));
    ck_assert_int_eq(weft_fake_read(node.fake).last_why,
                     WEFT_RESOURCE_EXHAUSTED);
    weft_client_destroy(client);
    serve_end(&node);
}
END_TEST

START_TEST(a_stalled_reader_is_cut)
{
    weft_rpc_options options = weft_rpc_options_default();
    options.stall_ns = SECONDS(1) / 10;
    options.waiting_bytes_max = SIZE_MAX;
    node = serve(options);
    weft_client *client = serve_client(&node);
    weft_generate_request request = slow_request();
    request.sampling.max_tokens.value = 1000000;
    struct seen seen = {.n_top = 20, .on_first = until_cancelled};
    weft_err err = {0};
    ck_assert_int_eq(weft_client_generate(client, &request, UINT64_MAX,
                                          on_response, &seen, &err),
                     WEFT_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(err.text, "read nothing"));
    weft_client_destroy(client);
    serve_end(&node);
}
END_TEST

/* --- limits -------------------------------------------------------------- */

START_TEST(large_requests_are_refused)
{
    enum { N = 100000 };
    uint32_t *ids = calloc(N, sizeof *ids);
    weft_rpc_options options = weft_rpc_options_default();
    options.decoded_bytes_max = 65536;
    options.message_bytes_max = 262144;
    node = serve(options);
    weft_client *client = serve_client(&node);
    weft_err err = {0};
    struct seen seen = {.n_top = -1};
    weft_generate_request request = {.prompt = WEFT_PROMPT_IDS, .ids = ids};
    static const struct {
        size_t n;
        weft_status status;
    } table[] = {{100, WEFT_OK},
                 {N, WEFT_RESOURCE_EXHAUSTED}, /* 100 kB, 400 kB decoded */
                 {100, WEFT_OK}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        request.n_ids = table[i].n;
        ck_assert_int_eq(weft_client_generate(client, &request, UINT64_MAX,
                                              on_response, &seen, &err),
                         table[i].status);
        seen = (struct seen){.n_top = -1};
    }
    for (size_t i = 0; i < N; i++) ids[i] = UINT32_MAX; /* 500 kB sent */
    request.n_ids = N;
    ck_assert_int_eq(weft_client_generate(client, &request, UINT64_MAX,
                                          on_response, &seen, &err),
                     WEFT_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(err.text, "262144"));
    weft_client_destroy(client);
    free(ids);
    serve_end(&node);
}
END_TEST

static void *hold(void *arg)
{
    const weft_generate_request request = request_of("hold", 1);
    struct seen seen = {.n_top = -1};
    weft_client *client = serve_client(&node);
    *(weft_status *)arg = weft_client_generate(client, &request, UINT64_MAX,
                                               on_response, &seen, NULL);
    weft_client_destroy(client);
    return NULL;
}

START_TEST(calls_beyond_the_limit_are_refused)
{
    pthread_t threads[2];
    weft_status ends[2];
    weft_rpc_options options = weft_rpc_options_default();
    options.calls_max = 2;
    node = serve(options);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, hold, &ends[i]), 0);
    ck_assert(weft_fake_wait(node.fake, is_started, 2));
    weft_client *client = serve_client(&node);
    weft_arena *arena;
    weft_load_info load;
    weft_err err = {0};
    ck_assert_int_eq(weft_arena_create(4096, &arena, NULL), WEFT_OK);
    ck_assert_int_eq(
        weft_client_get_load(client, UINT64_MAX, arena, &load, &err),
        WEFT_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(err.text, "2"));
    weft_fake_let_go(node.fake);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        ck_assert_int_eq(ends[i], WEFT_OK);
    }
    weft_arena_destroy(arena);
    weft_client_destroy(client);
    serve_end(&node);
}
END_TEST

/* --- drain and stop ------------------------------------------------------ */

static void *stop_later(void *arg)
{
    weft_rpc_server_stop(node.server, *(const uint64_t *)arg);
    return NULL;
}

static pthread_t stopper;
static uint64_t grace_ns;

static void stop_in_background(void)
{
    ck_assert_int_eq(pthread_create(&stopper, NULL, stop_later, &grace_ns), 0);
}

START_TEST(stop_lets_streams_finish_within_the_grace)
{
    node = serve(weft_rpc_options_default());
    weft_client *client = serve_client(&node);
    weft_generate_request request = request_of("x", 50);
    request.priority = 2;
    struct seen seen = {.n_top = -1, .on_first = stop_in_background};
    weft_err err = {0};
    grace_ns = SECONDS(20);
    const weft_status st = weft_client_generate(client, &request, UINT64_MAX,
                                                on_response, &seen, &err);
    ck_assert_msg(st == WEFT_OK, "%s", err.text);
    ck_assert_int_eq(seen.tokens, 50);
    ck_assert_int_eq(pthread_join(stopper, NULL), 0);
    ck_assert_int_eq(weft_fake_read(node.fake).cancelled, 0);
    weft_client_destroy(client);
    serve_end(&node);
}
END_TEST

START_TEST(stop_cancels_what_is_left_after_the_grace)
{
    node = serve(weft_rpc_options_default());
    weft_client *client = serve_client(&node);
    weft_generate_request request = request_of("x", 1000000);
    request.priority = 2;
    struct seen seen = {.n_top = -1, .on_first = stop_in_background};
    grace_ns = SECONDS(1) / 10;
    ck_assert_int_ne(weft_client_generate(client, &request, UINT64_MAX,
                                          on_response, &seen, NULL),
                     WEFT_OK);
    ck_assert_int_eq(pthread_join(stopper, NULL), 0);
    ck_assert_int_eq(weft_fake_read(node.fake).cancelled, 1);
    weft_client_destroy(client);
    serve_end(&node);
}
END_TEST

START_TEST(draining_still_answers)
{
    node = serve(weft_rpc_options_default());
    weft_client *client = serve_client(&node);
    weft_rpc_server_set_serving(node.server, false);
    weft_fake_drain(node.fake);
    const weft_generate_request request = request_of("x", 1);
    struct seen seen = {.n_top = -1};
    ck_assert_int_eq(weft_client_generate(client, &request, UINT64_MAX,
                                          on_response, &seen, NULL),
                     WEFT_UNAVAILABLE);
    ck_assert_int_eq(weft_client_retry_after_ms(client), 1500);
    weft_client_destroy(client);
    serve_end(&node);
}
END_TEST

/* --- addresses ----------------------------------------------------------- */

START_TEST(a_port_in_use_is_named)
{
    node = serve(weft_rpc_options_default());
    weft_rpc_options options = weft_rpc_options_default();
    weft_rpc_server *other = NULL;
    weft_err err = {0};
    options.listen = weft_rpc_server_address(node.server);
    options.ops = &weft_fake_ops;
    options.ops_arg = node.fake;
    ck_assert_int_eq(weft_rpc_server_start(&options, &other, &err),
                     WEFT_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(err.text, options.listen));
    ck_assert_ptr_nonnull(strstr(err.text, "in use"));

    static const char *const bad[] = {
        "", ":", "x", "127.0.0.1:", "[::1]", "127.0.0.1:99999", "::1:7", ":80"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        options.listen = bad[i];
        ck_assert_int_eq(weft_rpc_server_start(&options, &other, &err),
                         WEFT_INVALID_ARGUMENT);
        ck_assert_ptr_nonnull(strstr(err.text, bad[i]));
    }
    ck_assert_ptr_null(other);
    serve_end(&node);
}
END_TEST

START_TEST(nobody_at_the_address_is_unavailable)
{
    weft_client *client = NULL;
    weft_err err = {0};
    ck_assert_int_eq(
        weft_client_create("127.0.0.1:1", SECONDS(20), &client, &err),
        WEFT_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(err.text, "127.0.0.1:1"));
    ck_assert_int_eq(weft_client_create("nonsense", SECONDS(20), &client, &err),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_ptr_null(client);
}
END_TEST

START_TEST(model_and_load_are_asked)
{
    node = serve(weft_rpc_options_default());
    weft_client *client = serve_client(&node);
    weft_arena *arena;
    weft_model_info model;
    weft_load_info load;
    ck_assert_int_eq(weft_arena_create(65536, &arena, NULL), WEFT_OK);
    ck_assert_int_eq(
        weft_client_get_model(client, SECONDS(20), arena, &model, NULL),
        WEFT_OK);
    ck_assert_uint_eq(model.name.n, 4);
    ck_assert_int_eq(memcmp(model.name.data, "fake", 4), 0);
    ck_assert_uint_eq(model.n_eos_ids, 2);
    ck_assert_int_eq(model.eos_ids[1], 9);
    ck_assert_int_eq(
        weft_client_get_load(client, SECONDS(20), arena, &load, NULL), WEFT_OK);
    ck_assert_uint_eq(load.kv_bytes_total, UINT64_C(1) << 40);
    ck_assert_uint_eq(load.n_kinds, 2);
    ck_assert_str_eq(load.pages_used[0].kind, "full");
    ck_assert_uint_eq(load.pages_used[0].pages, 5);
    weft_arena_destroy(arena);
    weft_client_destroy(client);
    serve_end(&node);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        tokens_come_in_order,
        without_stream_one_message_has_everything,
        cancel_reaches_the_service_once,
        deadline_ends_a_call_that_waits,
        no_deadline_is_told_as_none,
        failures_carry_status_text_and_hint,
        many_streams_at_once,
        slow_reader_loses_nothing_and_chunks_merge,
        waiting_bytes_are_limited,
        a_stalled_reader_is_cut,
        large_requests_are_refused,
        calls_beyond_the_limit_are_refused,
        stop_lets_streams_finish_within_the_grace,
        stop_cancels_what_is_left_after_the_grace,
        draining_still_answers,
        a_port_in_use_is_named,
        nobody_at_the_address_is_unavailable,
        model_and_load_are_asked,
    };
    return WEFT_SUITE_RUN("rpc", tests);
}
