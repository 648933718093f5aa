#include "node/rpc/client.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <stdio.h>
#include <string.h>

#include "grpc/health/v1/health.pb-c.h"
#include "node/base/address.h"
#include "node/base/check.h"
#include "node/base/file.h"
#include "node/base/mem.h"
#include "node/base/str.h"
#include "node/rpc/bytes.h"
#include "proto/validate.h"

enum {
    /* A complete answer with many log probabilities is large. */
    RECEIVED_BYTES_MAX = 256 << 20,
    DECODED_BYTES_MAX = 1 << 30,
    CA_BYTES_MAX = 1 << 20,
};

struct weft_client {
    grpc_channel *channel;
    grpc_completion_queue *queue;
    weft_buf roots;      /* PEM, with a NUL; empty: no TLS */
    char *authorization; /* NULL: none is shown */
    bool lost;
    int64_t retry_after_ms;
};

static gpr_timespec time_after(uint64_t ns)
{
    if (ns > INT64_MAX) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                        gpr_time_from_nanos((int64_t)ns, GPR_TIMESPAN));
}

/* --- connecting ---------------------------------------------------------- */

static grpc_arg integer_arg(const char *key, int value)
{
    union {
        const char *from;
        char *to;
    } name = {.from = key};
    return (grpc_arg){
        .type = GRPC_ARG_INTEGER, .key = name.to, .value = {.integer = value}};
}

static grpc_channel *open_channel(const weft_client *c, const char *address)
{
    grpc_arg list[] = {
        integer_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        integer_arg(GRPC_ARG_ENABLE_RETRIES, 0),
        integer_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, RECEIVED_BYTES_MAX),
        integer_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1),
        integer_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
    };
    const grpc_channel_args args = {.num_args = sizeof list / sizeof *list,
                                    .args = list};
    grpc_channel_credentials *how =
        c->roots.n > 0
            ? grpc_ssl_credentials_create(c->roots.data, NULL, NULL, NULL)
            : grpc_insecure_credentials_create();
    grpc_channel *channel = grpc_channel_create(address, how, &args);
    grpc_channel_credentials_release(how);
    return channel;
}

static bool wait_ready(weft_client *c, gpr_timespec until)
{
    for (;;) {
        const grpc_connectivity_state state =
            grpc_channel_check_connectivity_state(c->channel, 1);
        if (state == GRPC_CHANNEL_READY) return true;
        if (state == GRPC_CHANNEL_TRANSIENT_FAILURE ||
            state == GRPC_CHANNEL_SHUTDOWN)
            return false;
        grpc_channel_watch_connectivity_state(c->channel, state, until,
                                              c->queue, NULL);
        const grpc_event event = grpc_completion_queue_next(
            c->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        if (event.success == 0) return false; /* the time has passed */
    }
}

/* Twice: gRPC reads the errno of connect late. Its first contended mutex, which
 * measures the clock, may have changed it by then, so that a connection under
 * way counts as failed: once in a process. */
static bool connect_channel(weft_client *c, const char *address,
                            uint64_t timeout_ns)
{
    enum { ATTEMPTS = 2 };
    const gpr_timespec until = time_after(timeout_ns);
    for (int i = 0; i < ATTEMPTS; i++) {
        if (c->channel != NULL) grpc_channel_destroy(c->channel);
        c->channel = open_channel(c, address);
        if (wait_ready(c, until)) return true;
    }
    return false;
}

/* What the client trusts and what it shows. */
static weft_status take_secrets(weft_client *c, const weft_client_options *o,
                                weft_err *err)
{
    static const char bearer[] = "Bearer ";
    if (o->ca_file != NULL) {
        WEFT_TRY(weft_file_read_all(o->ca_file, CA_BYTES_MAX, &c->roots, err));
        WEFT_TRY(weft_buf_add(&c->roots, "", 1, err));
    }
    if (o->key == NULL) return WEFT_OK;
    const size_t n = sizeof bearer + strlen(o->key);
    c->authorization = weft_mem_new(n, 1);
    if (c->authorization == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for a gRPC client");
    (void)snprintf(c->authorization, n, "%s%s", bearer, o->key);
    return WEFT_OK;
}

weft_status weft_client_create(const weft_client_options *options,
                               weft_client **client_out, weft_err *err)
{
    weft_address parsed;
    char name[WEFT_ADDRESS_TEXT_BYTES];
    WEFT_TRY(weft_address_parse(options->address, &parsed, err));
    weft_address_print(&parsed, name);
    weft_client *c = weft_mem_new(1, sizeof *c);
    if (c == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for a gRPC client");
    grpc_init();
    c->retry_after_ms = -1;
    c->queue = grpc_completion_queue_create_for_next(NULL);
    weft_status st = take_secrets(c, options, err);
    if (st == WEFT_OK && !connect_channel(c, name, options->timeout_ns))
        st = WEFT_FAIL(err, WEFT_UNAVAILABLE,
                       "cannot connect to %s: no gRPC server answers there%s",
                       name, c->roots.n > 0 ? " over TLS as that host" : "");
    if (st != WEFT_OK) {
        weft_client_destroy(c);
        return st;
    }
    *client_out = c;
    return WEFT_OK;
}

void weft_client_destroy(weft_client *c)
{
    if (c == NULL) return;
    if (c->channel != NULL) grpc_channel_destroy(c->channel);
    grpc_completion_queue_shutdown(c->queue);
    while (grpc_completion_queue_next(c->queue,
                                      gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL)
               .type != GRPC_QUEUE_SHUTDOWN) {
    }
    grpc_completion_queue_destroy(c->queue);
    grpc_shutdown();
    weft_buf_deinit(&c->roots);
    weft_mem_free(c->authorization);
    weft_mem_free(c);
}

bool weft_client_lost(const weft_client *c)
{
    return c->lost;
}

int64_t weft_client_retry_after_ms(const weft_client *c)
{
    return c->retry_after_ms;
}

/* --- one call ------------------------------------------------------------ */

enum { SENT = 1, MESSAGE, STATUS }; /* tags */

struct exchange {
    grpc_call *call;
    grpc_metadata_array initial, trailing;
    grpc_metadata shown; /* key with its API key; count 0 or 1 */
    size_t n_shown;
    grpc_byte_buffer *request, *message;
    grpc_status_code code;
    grpc_slice details;
    int outstanding;
};

static void *tag_of(int number)
{
    static char tags[4];
    return &tags[number];
}

static void batch(struct exchange *x, const grpc_op *ops, size_t n, int number)
{
    const grpc_call_error error =
        grpc_call_start_batch(x->call, ops, n, tag_of(number), NULL);
    WEFT_ASSERT(error == GRPC_CALL_OK);
    x->outstanding++;
}

static void receive(struct exchange *x)
{
    grpc_op op;
    memset(&op, 0, sizeof op);
    op.op = GRPC_OP_RECV_MESSAGE;
    op.data.recv_message.recv_message = &x->message;
    batch(x, &op, 1, MESSAGE);
}

static void open_exchange(struct exchange *x)
{
    grpc_op ops[4];
    memset(ops, 0, sizeof ops);
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    ops[0].data.send_initial_metadata.count = x->n_shown;
    ops[0].data.send_initial_metadata.metadata = &x->shown;
    ops[1].op = GRPC_OP_SEND_MESSAGE;
    ops[1].data.send_message.send_message = x->request;
    ops[2].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    ops[3].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &x->initial;
    batch(x, ops, 4, SENT);

    memset(ops, 0, sizeof ops);
    ops[0].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[0].data.recv_status_on_client.trailing_metadata = &x->trailing;
    ops[0].data.recv_status_on_client.status = &x->code;
    ops[0].data.recv_status_on_client.status_details = &x->details;
    batch(x, ops, 1, STATUS);
    receive(x);
}

/* Hand the message over and ask for the next. */
static void take_message(struct exchange *x, weft_client_message_fn on_message,
                         void *arg, weft_status *st, weft_err *err)
{
    weft_bytes bytes;
    weft_bytes_init(&bytes, x->message);
    grpc_byte_buffer_destroy(x->message);
    x->message = NULL;
    if (*st == WEFT_OK) {
        *st = on_message(arg, bytes.span, err);
        if (*st != WEFT_OK) (void)grpc_call_cancel(x->call, NULL);
    }
    weft_bytes_deinit(&bytes);
    receive(x);
}

static int64_t retry_of(const grpc_metadata_array *trailing)
{
    int64_t value = -1;
    for (size_t i = 0; i < trailing->count; i++) {
        const grpc_metadata *m = &trailing->metadata[i];
        if (grpc_slice_str_cmp(m->key, "retry-after-ms") != 0) continue;
        char *text = grpc_slice_to_c_string(m->value);
        (void)weft_parse_i64(text, 0, INT64_MAX, &value);
        gpr_free(text);
    }
    return value;
}

static weft_status known_status(grpc_status_code code)
{
    switch ((int)code) {
    case WEFT_OK:
    case WEFT_CANCELLED:
    case WEFT_INVALID_ARGUMENT:
    case WEFT_DEADLINE_EXCEEDED:
    case WEFT_NOT_FOUND:
    case WEFT_RESOURCE_EXHAUSTED:
    case WEFT_FAILED_PRECONDITION:
    case WEFT_UNIMPLEMENTED:
    case WEFT_UNAVAILABLE:
    case WEFT_DATA_LOSS:
    case WEFT_UNAUTHENTICATED: return (weft_status)code;
    default: return WEFT_INTERNAL;
    }
}

/* What the call ended with. `st` is of our own handling of the messages. */
static weft_status conclude(weft_client *c, const struct exchange *x,
                            weft_status st, weft_err *err)
{
    c->retry_after_ms = retry_of(&x->trailing);
    /* A status that the library made up brings no metadata of a server. */
    c->lost = x->code == GRPC_STATUS_UNAVAILABLE && x->trailing.count == 0 &&
              grpc_channel_check_connectivity_state(c->channel, 0) !=
                  GRPC_CHANNEL_READY;
    if (st != WEFT_OK) return st;
    if (x->code == GRPC_STATUS_OK) return WEFT_OK;
    char *details = grpc_slice_to_c_string(x->details);
    st = WEFT_FAIL(err, known_status(x->code), "%s", details);
    gpr_free(details);
    return st;
}

static weft_status exchange(weft_client *c, const char *path,
                            grpc_byte_buffer *request, uint64_t timeout_ns,
                            weft_client_message_fn on_message, void *arg,
                            weft_err *err)
{
    struct exchange x = {.request = request, .details = grpc_empty_slice()};
    if (c->authorization != NULL) {
        x.n_shown = 1;
        x.shown.key = grpc_slice_from_static_string("authorization");
        x.shown.value = grpc_slice_from_static_string(c->authorization);
    }
    const grpc_slice method = grpc_slice_from_copied_string(path);
    grpc_metadata_array_init(&x.initial);
    grpc_metadata_array_init(&x.trailing);
    x.call = grpc_channel_create_call(c->channel, NULL, GRPC_PROPAGATE_DEFAULTS,
                                      c->queue, method, NULL,
                                      time_after(timeout_ns), NULL);
    open_exchange(&x);

    weft_status st = WEFT_OK;
    while (x.outstanding > 0) {
        const grpc_event event = grpc_completion_queue_next(
            c->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        x.outstanding--;
        if (event.tag == tag_of(MESSAGE) && x.message != NULL)
            take_message(&x, on_message, arg, &st, err);
    }
    st = conclude(c, &x, st, err);
    grpc_call_unref(x.call);
    grpc_byte_buffer_destroy(x.request);
    grpc_metadata_array_destroy(&x.initial);
    grpc_metadata_array_destroy(&x.trailing);
    grpc_slice_unref(x.details);
    grpc_slice_unref(method);
    return st;
}

weft_status weft_client_call(weft_client *c, const char *path,
                             weft_span message, uint64_t timeout_ns,
                             weft_client_message_fn on_message, void *arg,
                             weft_err *err)
{
    grpc_slice slice = grpc_slice_from_copied_buffer(
        message.n > 0 ? message.data : "", message.n);
    return exchange(c, path, weft_bytes_buffer(&slice), timeout_ns, on_message,
                    arg, err);
}

/* --- methods ------------------------------------------------------------- */

struct generation {
    weft_client_response_fn on_response;
    void *arg;
    bool is_complete;
};

static weft_status on_generated(void *arg, weft_span message, weft_err *err)
{
    struct generation *g = arg;
    weft_arena *arena;
    weft_generate_response response;
    WEFT_TRY(weft_arena_create(DECODED_BYTES_MAX, &arena, err));
    weft_status st = weft_decode_response(arena, message, &response, err);
    if (st != WEFT_OK) {
        st = WEFT_WRAP(err, WEFT_INTERNAL, "the server's answer");
    } else if (g->is_complete) {
        st = WEFT_FAIL(err, WEFT_INTERNAL,
                       "the server sent a message after the last");
    } else {
        g->is_complete = response.is_complete;
        if (!g->on_response(g->arg, &response))
            st = WEFT_FAIL(err, WEFT_CANCELLED, "stopped by the client");
    }
    weft_arena_destroy(arena);
    return st;
}

weft_status weft_client_generate(weft_client *c,
                                 const weft_generate_request *request,
                                 uint64_t timeout_ns,
                                 weft_client_response_fn on_response, void *arg,
                                 weft_err *err)
{
    grpc_slice slice;
    struct generation g = {.on_response = on_response, .arg = arg};
    WEFT_TRY(weft_encode_generate(request, weft_bytes_place(&slice), err));
    WEFT_TRY(exchange(c, "/weft.v1.Generation/Generate",
                      weft_bytes_buffer(&slice), timeout_ns, on_generated, &g,
                      err));
    if (!g.is_complete)
        return WEFT_FAIL(err, WEFT_INTERNAL,
                         "the stream ended without its last message");
    return WEFT_OK;
}

/* The answer of a unary call, copied. */
static weft_status on_answer(void *arg, weft_span message, weft_err *err)
{
    return weft_buf_add(arg, message.data, message.n, err);
}

static weft_status ask(weft_client *c, const char *path, uint64_t timeout_ns,
                       weft_buf *answer, weft_err *err)
{
    return weft_client_call(c, path, (weft_span){0}, timeout_ns, on_answer,
                            answer, err);
}

weft_status weft_client_get_model(weft_client *c, uint64_t timeout_ns,
                                  weft_arena *arena, weft_model_info *model_out,
                                  weft_err *err)
{
    weft_buf answer = {0};
    weft_status st =
        ask(c, "/weft.v1.Generation/GetModel", timeout_ns, &answer, err);
    if (st == WEFT_OK)
        st = weft_decode_model(arena, (weft_span){answer.data, answer.n},
                               model_out, err);
    weft_buf_deinit(&answer);
    return st;
}

weft_status weft_client_get_load(weft_client *c, uint64_t timeout_ns,
                                 weft_arena *arena, weft_load_info *load_out,
                                 weft_err *err)
{
    weft_buf answer = {0};
    weft_status st =
        ask(c, "/weft.v1.Generation/GetLoad", timeout_ns, &answer, err);
    if (st == WEFT_OK)
        st = weft_decode_load(arena, (weft_span){answer.data, answer.n},
                              load_out, err);
    weft_buf_deinit(&answer);
    return st;
}

weft_status weft_client_get_cluster(weft_client *c, uint64_t timeout_ns,
                                    weft_arena *arena,
                                    weft_cluster_info *cluster_out,
                                    weft_err *err)
{
    weft_buf answer = {0};
    weft_status st =
        ask(c, "/weft.v1.Cluster/GetCluster", timeout_ns, &answer, err);
    if (st == WEFT_OK)
        st = weft_decode_cluster(arena, (weft_span){answer.data, answer.n},
                                 cluster_out, err);
    weft_buf_deinit(&answer);
    return st;
}

static weft_status read_health(weft_span message, bool *serving_out,
                               weft_err *err)
{
    const uint8_t *const bytes = (const uint8_t *)message.data;
    Grpc__Health__V1__HealthCheckResponse *response = NULL;
    WEFT_TRY(weft_message_validate(
        &grpc__health__v1__health_check_response__descriptor, bytes, message.n,
        err));
    response =
        grpc__health__v1__health_check_response__unpack(NULL, message.n, bytes);
    if (response == NULL)
        return WEFT_FAIL(err, WEFT_INTERNAL, "health cannot be decoded");
    const int status = (int)response->status;
    grpc__health__v1__health_check_response__free_unpacked(response, NULL);
    *serving_out =
        status ==
        GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING;
    if (*serving_out ||
        status ==
            GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING)
        return WEFT_OK;
    return WEFT_FAIL(err, WEFT_INTERNAL, "health is %d", status);
}

weft_status weft_client_health(weft_client *c, uint64_t timeout_ns,
                               bool *serving_out, weft_err *err)
{
    weft_buf answer = {0};
    weft_status st =
        ask(c, "/grpc.health.v1.Health/Check", timeout_ns, &answer, err);
    if (st == WEFT_OK && read_health((weft_span){answer.data, answer.n},
                                     serving_out, err) != WEFT_OK)
        st = WEFT_WRAP(err, WEFT_INTERNAL, "the server's answer");
    weft_buf_deinit(&answer);
    return st;
}
