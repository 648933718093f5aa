/* The RPC server and client over a real connection, with a fake node behind:
 * order, cancel, deadline, failures, many streams. */
#include <pthread.h>

#include "node/base/clock.h"
#include "tests/support/served.h"
#include "tests/support/suite.h"

static served node;

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
    const weft_generate_request request = request_of("stay", 20);
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
    /* Long, so that a busy machine brings the call there in a small share. */
    ck_assert_int_eq(weft_client_generate(client, &request, SECONDS(4),
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
    ck_assert_int_eq(counts.started, (int64_t)N_THREADS * N_CALLS);
    ck_assert_int_eq(counts.ended, (int64_t)N_THREADS * N_CALLS);
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
    };
    return WEFT_SUITE_RUN("rpc", tests);
}
