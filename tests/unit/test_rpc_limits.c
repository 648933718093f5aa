/* The RPC server at its limits and at its end: readers that do not read, large
 * requests, too many calls, drain and stop, addresses. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node/base/address.h"
#include "node/base/clock.h"
#include "node/base/mem.h"
#include "tests/support/served.h"
#include "tests/support/suite.h"

static served node;

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

/* Tokens without end, for a reader that is to be cut: flow control, whose
 * window grows to several MB, holds them back at some time, and however late
 * the server finds that, the service has not ended the call and is told. */
static weft_generate_request endless_request(void)
{
    weft_generate_request request = request_of("stay", 1000000);
    request.sampling.logprobs = (weft_opt_u32){true, 500};
    request.priority = 1; /* slow enough for packing to keep up */
    return request;
}

START_TEST(slow_reader_loses_nothing_and_chunks_merge)
{
    node = serve(weft_rpc_options_default());
    weft_client *client = serve_client(&node);
    weft_generate_request request = request_of("x", SLOW_TOKENS);
    request.sampling.logprobs = (weft_opt_u32){true, 20};
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
    const weft_generate_request request = endless_request();
    struct seen seen = {.n_top = 500, .on_first = until_cancelled};
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
    const weft_generate_request request = endless_request();
    struct seen seen = {.n_top = 500, .on_first = until_cancelled};
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

static weft_status ignore(void *arg, weft_span message, weft_err *err)
{
    (void)arg;
    (void)message;
    (void)err;
    return WEFT_OK;
}

START_TEST(a_flood_is_ended_and_the_server_goes_on)
{
    const size_t flood = (size_t)64 << 20;
    char *bytes = calloc(flood, 1);
    weft_rpc_options options = weft_rpc_options_default();
    options.incoming_bytes_max = flood / 8;
    options.message_bytes_max = 2 * flood; /* not what stops it */
    node = serve(options);
    weft_client *client = serve_client(&node);
    ck_assert_int_eq(weft_client_call(client, "/weft.v1.Generation/Tokenize",
                                      (weft_span){bytes, flood}, SECONDS(60),
                                      ignore, NULL, NULL),
                     WEFT_RESOURCE_EXHAUSTED);
    weft_client_destroy(client);
    free(bytes);

    client = serve_client(&node);
    const weft_generate_request request = request_of("x", 10);
    struct seen seen = {.n_top = -1};
    ck_assert_int_eq(weft_client_generate(client, &request, UINT64_MAX,
                                          on_response, &seen, NULL),
                     WEFT_OK);
    weft_client_destroy(client);
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

/* What nobody wants any more is given back while the call lives. */
START_TEST(a_decoded_request_goes_when_the_service_has_it)
{
    pthread_t thread;
    weft_status end;
    node = serve(weft_rpc_options_default());
    ck_assert_int_eq(pthread_create(&thread, NULL, hold, &end), 0);
    ck_assert(weft_fake_wait(node.fake, is_started, 1));
    const uint64_t until_ns = weft_clock_now_ns() + SECONDS(20);
    weft_fake_counts counts;
    do {
        counts = weft_fake_read(node.fake);
        ck_assert_uint_lt(weft_clock_now_ns(), until_ns);
    } while (counts.live == 0 || weft_mem_live() >= counts.blocks_at_start);
    weft_fake_let_go(node.fake);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(end, WEFT_OK);
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
        weft_client_create(&(weft_client_options){.address = "127.0.0.1:1",
                                                  .timeout_ns = SECONDS(20)},
                           &client, &err),
        WEFT_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(err.text, "127.0.0.1:1"));
    ck_assert_int_eq(
        weft_client_create(&(weft_client_options){.address = "nonsense",
                                                  .timeout_ns = SECONDS(20)},
                           &client, &err),
        WEFT_INVALID_ARGUMENT);
    ck_assert_ptr_null(client);
}
END_TEST

/* Take connections and end each at once, until the socket is shut down. */
static void *hang_up(void *arg)
{
    static int taken;
    for (;;) {
        const int fd = accept(*(const int *)arg, NULL, NULL);
        if (fd < 0) return &taken;
        taken++;
        (void)close(fd);
    }
}

START_TEST(a_connection_that_fails_is_tried_again_once)
{
    weft_address address;
    int fd = -1;
    pthread_t thread;
    void *taken = NULL;
    char name[WEFT_ADDRESS_TEXT_BYTES];
    weft_client *client = NULL;
    ck_assert_int_eq(weft_address_parse("127.0.0.1:0", &address, NULL),
                     WEFT_OK);
    ck_assert_int_eq(weft_address_listen(&address, &fd, &address.port, NULL),
                     WEFT_OK);
    weft_address_print(&address, name);
    ck_assert_int_eq(pthread_create(&thread, NULL, hang_up, &fd), 0);
    ck_assert_int_eq(
        weft_client_create(
            &(weft_client_options){.address = name, .timeout_ns = SECONDS(20)},
            &client, NULL),
        WEFT_UNAVAILABLE);
    (void)shutdown(fd, SHUT_RDWR);
    ck_assert_int_eq(pthread_join(thread, &taken), 0);
    (void)close(fd);
    ck_assert_int_eq(*(const int *)taken, 2);
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

/* --- descriptors that run out -------------------------------------------- */

enum { DESCRIPTORS = 96 };

static void set_descriptors(rlim_t n)
{
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = n;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* Connections until this process, the server's too, can open no more. */
static int connect_all(int fds[DESCRIPTORS])
{
    weft_address address;
    ck_assert_int_eq(weft_address_parse(weft_rpc_server_address(node.server),
                                        &address, NULL),
                     WEFT_OK);
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons(address.port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int n = 0;
    for (;;) {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) return n;
        ck_assert_int_eq(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
        fds[n++] = fd;
    }
}

/* A server's first bytes are its settings; none came before the end. */
static bool is_turned_away(int fd)
{
    char byte;
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    if (poll(&wait, 1, 20000) != 1) return false;
    return recv(fd, &byte, 1, 0) <= 0;
}

START_TEST(connections_beyond_the_descriptors_do_no_harm)
{
    int fds[DESCRIPTORS];
    struct rlimit before;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    node = serve(weft_rpc_options_default());
    set_descriptors(DESCRIPTORS);
    for (int round = 0; round < 2; round++) {
        const int n = connect_all(fds);
        ck_assert_int_gt(n, 8);
        /* The server needs one to take a connection and turn it away. */
        for (int i = n - 4; i < n; i++) (void)close(fds[i]);
        ck_assert(is_turned_away(fds[n - 5]));
        for (int i = 0; i < n - 4; i++) (void)close(fds[i]);
    }
    set_descriptors(before.rlim_cur);
    weft_client *client = serve_client(&node);
    const weft_generate_request request = request_of("x", 3);
    struct seen seen = {.n_top = -1};
    ck_assert_int_eq(weft_client_generate(client, &request, SECONDS(20),
                                          on_response, &seen, NULL),
                     WEFT_OK);
    weft_client_destroy(client);
    serve_end(&node);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        slow_reader_loses_nothing_and_chunks_merge,
        waiting_bytes_are_limited,
        a_stalled_reader_is_cut,
        large_requests_are_refused,
        a_flood_is_ended_and_the_server_goes_on,
        calls_beyond_the_limit_are_refused,
        a_decoded_request_goes_when_the_service_has_it,
        connections_beyond_the_descriptors_do_no_harm,
        stop_lets_streams_finish_within_the_grace,
        stop_cancels_what_is_left_after_the_grace,
        draining_still_answers,
        a_port_in_use_is_named,
        nobody_at_the_address_is_unavailable,
        a_connection_that_fails_is_tried_again_once,
        model_and_load_are_asked,
    };
    return WEFT_SUITE_RUN("rpc_limits", tests);
}
