/* What the RPC server answers by itself: health, reflection, unknown methods,
 * bytes that are no message. */
#include <stdio.h>
#include <string.h>

#include "grpc/health/v1/health.pb-c.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include "node/base/str.h"
#include "tests/support/served.h"
#include "tests/support/suite.h"

static const char CHECK[] = "/grpc.health.v1.Health/Check";
static const char WATCH[] = "/grpc.health.v1.Health/Watch";

static served node;

/* Health's request for a service of that name. */
static weft_span health_request(const char *service, char bytes[64])
{
    const size_t n = strlen(service);
    ck_assert_uint_lt(n + 2, 64);
    (void)snprintf(bytes, 64, "\x0a%c%s", (int)n, service);
    return (weft_span){bytes, n + 2};
}

static int status_of(weft_span message)
{
    Grpc__Health__V1__HealthCheckResponse *response =
        grpc__health__v1__health_check_response__unpack(
            NULL, message.n, (const uint8_t *)message.data);
    ck_assert_ptr_nonnull(response);
    const int status = (int)response->status;
    grpc__health__v1__health_check_response__free_unpacked(response, NULL);
    return status;
}

static weft_status keep_status(void *arg, weft_span message, weft_err *err)
{
    (void)err;
    *(int *)arg = status_of(message);
    return WEFT_OK;
}

static void ck_health(weft_client *client, const char *service,
                      weft_status wanted, int status)
{
    char bytes[64];
    int seen = -1;
    ck_assert_int_eq(weft_client_call(client, CHECK,
                                      health_request(service, bytes),
                                      SECONDS(20), keep_status, &seen, NULL),
                     wanted);
    ck_assert_int_eq(seen, status);
}

static void ck_serving(weft_client *client, bool wanted)
{
    bool serving = !wanted;
    weft_err err = {0};
    const weft_status st =
        weft_client_health(client, SECONDS(20), &serving, &err);
    ck_assert_msg(st == WEFT_OK, "%s", err.text);
    ck_assert_int_eq(serving, wanted);
}

START_TEST(health_knows_two_names)
{
    node = serve(weft_rpc_options_default());
    weft_client *client = serve_client(&node);
    ck_health(client, "", WEFT_OK, 1);
    ck_health(client, "weft.v1.Generation", WEFT_OK, 1);
    ck_health(client, "weft.v1.Generatio", WEFT_NOT_FOUND, -1);
    ck_serving(client, true);
    weft_rpc_server_set_serving(node.server, false);
    ck_serving(client, false);
    ck_health(client, "", WEFT_OK, 2);
    ck_health(client, "weft.v1.Generation", WEFT_OK, 2);
    weft_rpc_server_set_serving(node.server, true);
    ck_health(client, "", WEFT_OK, 1);
    weft_client_destroy(client);
    serve_end(&node);
}
END_TEST

struct watched {
    int seen[8];
    int n;
};

/* After each status told, change it; after the third, stop the server, of which
 * a fourth may tell. */
static weft_status watch_next(void *arg, weft_span message, weft_err *err)
{
    struct watched *watched = arg;
    (void)err;
    ck_assert_int_lt(watched->n, 4);
    watched->seen[watched->n++] = status_of(message);
    if (watched->n == 4) return WEFT_OK;
    weft_rpc_server_set_serving(node.server, watched->n == 2);
    /* With a grace that the test would not survive: Watch does not use it. */
    if (watched->n == 3) weft_rpc_server_stop(node.server, SECONDS(3600));
    return WEFT_OK;
}

START_TEST(watch_hears_each_change_and_ends_with_the_server)
{
    char bytes[64];
    node = serve(weft_rpc_options_default());
    weft_client *client = serve_client(&node);
    struct watched watched = {.n = 0};
    ck_assert_int_eq(
        weft_client_call(client, WATCH,
                         health_request("weft.v1.Generation", bytes),
                         UINT64_MAX, watch_next, &watched, NULL),
        WEFT_UNAVAILABLE);
    ck_assert_int_ge(watched.n, 3);
    if (watched.n == 4) ck_assert_int_eq(watched.seen[3], 2);
    ck_assert_int_eq(watched.seen[0], 1);
    ck_assert_int_eq(watched.seen[1], 2);
    ck_assert_int_eq(watched.seen[2], 1);
    weft_client_destroy(client);
    serve_end(&node);
}
END_TEST

static weft_status stop_at_first(void *arg, weft_span message, weft_err *err)
{
    *(int *)arg = status_of(message);
    return WEFT_FAIL(err, WEFT_CANCELLED, "enough");
}

START_TEST(watch_of_a_foreign_name_says_unknown)
{
    char bytes[64];
    int seen = -1;
    node = serve(weft_rpc_options_default());
    weft_client *client = serve_client(&node);
    ck_assert_int_eq(weft_client_call(client, WATCH,
                                      health_request("no.such", bytes),
                                      UINT64_MAX, stop_at_first, &seen, NULL),
                     WEFT_CANCELLED);
    ck_assert_int_eq(seen, 3);
    weft_client_destroy(client);
    serve_end(&node);
}
END_TEST

/* --- reflection ---------------------------------------------------------- */

typedef Grpc__Reflection__V1__ServerReflectionResponse reflection_type;

static weft_status keep_bytes(void *arg, weft_span message, weft_err *err)
{
    return weft_buf_add(arg, message.data, message.n, err);
}

/* The answer to one question: field `number` with a text. */
static reflection_type *ask(weft_client *client, const char *version,
                            int number, const char *text)
{
    char path[128], bytes[128];
    weft_buf answer = {0};
    weft_err err = {0};
    (void)snprintf(path, sizeof path,
                   "/grpc.reflection.%s.ServerReflection/ServerReflectionInfo",
                   version);
    const size_t n = strlen(text);
    ck_assert_uint_lt(n + 2, sizeof bytes);
    (void)snprintf(bytes, sizeof bytes, "%c%c%s", number << 3 | 2, (int)n,
                   text);
    const weft_status st =
        weft_client_call(client, path, (weft_span){bytes, n + 2}, SECONDS(20),
                         keep_bytes, &answer, &err);
    ck_assert_msg(st == WEFT_OK, "%s", err.text);
    reflection_type *response =
        grpc__reflection__v1__server_reflection_response__unpack(
            NULL, answer.n, (const uint8_t *)answer.data);
    ck_assert_ptr_nonnull(response);
    ck_assert_ptr_nonnull(response->original_request);
    weft_buf_deinit(&answer);
    return response;
}

static void forget(reflection_type *response)
{
    grpc__reflection__v1__server_reflection_response__free_unpacked(response,
                                                                    NULL);
}

enum { BY_NAME = 3, BY_SYMBOL = 4, EXTENSIONS = 6, LIST = 7 };
enum {
    FILES = 4,
    NUMBERS = 5,
    SERVICES = 6,
    ERROR = 7
}; /* of message_response */

START_TEST(reflection_answers_every_question)
{
    static const char *const versions[] = {"v1", "v1alpha"};
    static const struct {
        int number;
        const char *text;
        int answer;
    } table[] = {
        {BY_NAME, "weft.proto", FILES},
        {BY_NAME, "grpc/health/v1/health.proto", FILES},
        {BY_NAME, "no.proto", ERROR},
        {BY_SYMBOL, "weft.v1.Generation", FILES},
        {BY_SYMBOL, "weft.v1.Nothing", ERROR},
        {EXTENSIONS, "weft.v1.SamplingParams", NUMBERS},
        {EXTENSIONS, "weft.v1.Nothing", ERROR},
        {LIST, "", SERVICES},
    };
    node = serve(weft_rpc_options_default());
    weft_client *client = serve_client(&node);
    for (size_t v = 0; v < 2; v++) {
        for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
            reflection_type *response =
                ask(client, versions[v], table[i].number, table[i].text);
            ck_assert_int_eq((int)response->message_response_case,
                             table[i].answer);
            if (table[i].answer == ERROR)
                ck_assert_int_eq(response->error_response->error_code,
                                 WEFT_NOT_FOUND);
            if (table[i].answer == SERVICES)
                ck_assert_uint_eq(response->list_services_response->n_service,
                                  5);
            forget(response);
        }
    }
    weft_client_destroy(client);
    serve_end(&node);
}
END_TEST

/* --- what is refused ----------------------------------------------------- */

static weft_status no_message(void *arg, weft_span message, weft_err *err)
{
    (void)arg;
    (void)message;
    return WEFT_FAIL(err, WEFT_INTERNAL, "a message came");
}

START_TEST(unknown_methods_and_bytes_are_refused)
{
    static const struct {
        const char *path;
        weft_span bytes;
        weft_status status;
    } table[] = {
        {"/weft.v1.Generation/NoSuchMethod", {"", 0}, WEFT_UNIMPLEMENTED},
        {"/no.Service/Generate", {"", 0}, WEFT_UNIMPLEMENTED},
        {"/weft.v1.Generation/Generate",
         {"\x0f\x01", 2},
         WEFT_INVALID_ARGUMENT},
        {"/weft.v1.Generation/Tokenize",
         {"\x0a\x01\xff", 3},
         WEFT_INVALID_ARGUMENT},
        {"/weft.v1.Generation/Detokenize",
         {"\x0a\x01\xff", 3},
         WEFT_INVALID_ARGUMENT},
        {"/weft.v1.Generation/GetModel",
         {"\x00\x01", 2},
         WEFT_INVALID_ARGUMENT},
        {"/weft.v1.Generation/GetLoad", {"\x0f", 1}, WEFT_INVALID_ARGUMENT},
        {"/weft.v1.Generation/Abort", {"\x0a\x05", 2}, WEFT_INVALID_ARGUMENT},
        {"/grpc.health.v1.Health/Check",
         {"\x0a\x01\xff", 3},
         WEFT_INVALID_ARGUMENT},
        {"/grpc.health.v1.Health/Watch", {"\x0f", 1}, WEFT_INVALID_ARGUMENT},
        {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
         {"\x3a\x01\xff", 3},
         WEFT_INVALID_ARGUMENT},
        {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
         {"", 0},
         WEFT_INVALID_ARGUMENT},
    };
    node = serve(weft_rpc_options_default());
    weft_client *client = serve_client(&node);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        weft_err err = {0};
        const weft_status st =
            weft_client_call(client, table[i].path, table[i].bytes, SECONDS(20),
                             no_message, NULL, &err);
        ck_assert_msg(st == table[i].status, "%s: %s %s", table[i].path,
                      weft_status_name(st), err.text);
        ck_assert_uint_gt(strlen(err.text), 0);
    }
    /* Refused calls are counted as ended, and none reached the node. */
    const weft_fake_counts counts = weft_fake_read(node.fake);
    ck_assert_int_eq(counts.ended, 1);
    ck_assert_int_eq(counts.last_ended, WEFT_INVALID_ARGUMENT);
    ck_assert_int_eq(counts.started, 0);
    weft_client_destroy(client);
    serve_end(&node);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        health_knows_two_names,
        watch_hears_each_change_and_ends_with_the_server,
        watch_of_a_foreign_name_says_unknown,
        reflection_answers_every_question,
        unknown_methods_and_bytes_are_refused,
    };
    return WEFT_SUITE_RUN("rpc_services", tests);
}
