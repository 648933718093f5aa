#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <stdio.h>
#include <string.h>

#include "node/base/address.h"
#include "node/base/check.h"
#include "node/base/clock.h"
#include "node/base/mem.h"
#include "node/base/str.h"
#include "node/cluster/etcd_internal.h"

enum {
    /* Of one answer. A value of etcd has at most 1.5 MiB, and how many are
     * asked for at once follows from this (etcd_watch.c). */
    ANSWER_BYTES_MAX = 16 << 20,
    /* etcd takes pings that come faster than every 5 s for an attack. */
    PING_MS = 6000,
    PING_TIMEOUT_MS = 2000,
    RECONNECT_FIRST_MS = 100,
    RECONNECT_MOST_MS = 1000,
};

/* --- channels ------------------------------------------------------------ */

static grpc_arg integer_arg(const char *key, int value)
{
    union {
        const char *from;
        char *to;
    } name = {.from = key};
    return (grpc_arg){
        .type = GRPC_ARG_INTEGER, .key = name.to, .value = {.integer = value}};
}

static grpc_channel_credentials *credentials_of(const struct etcd_secret *s)
{
    if (!s->tls) return grpc_insecure_credentials_create();
    grpc_ssl_pem_key_cert_pair pair = {.private_key = s->key,
                                       .cert_chain = s->cert};
    return grpc_ssl_credentials_create(s->ca, s->cert != NULL ? &pair : NULL,
                                       NULL, NULL);
}

static grpc_channel *open_channel(const char *address,
                                  grpc_channel_credentials *credentials)
{
    grpc_arg list[] = {
        integer_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        integer_arg(GRPC_ARG_ENABLE_RETRIES, 0),
        integer_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, ANSWER_BYTES_MAX),
        integer_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1),
        integer_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
        integer_arg(GRPC_ARG_KEEPALIVE_TIME_MS, PING_MS),
        integer_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, PING_TIMEOUT_MS),
        integer_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        integer_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, RECONNECT_FIRST_MS),
        integer_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, RECONNECT_MOST_MS),
        integer_arg(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, RECONNECT_MOST_MS),
    };
    const grpc_channel_args args = {.num_args = sizeof list / sizeof *list,
                                    .args = list};
    return grpc_channel_create(address, credentials, &args);
}

/* A channel for the endpoint [text, text + n). */
static weft_status add_endpoint(struct etcd *e, const char *text, size_t n,
                                grpc_channel_credentials *credentials,
                                weft_err *err)
{
    char copy[WEFT_HOST_BYTES + 16], name[WEFT_ADDRESS_TEXT_BYTES];
    weft_address address;
    if (n >= sizeof copy)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "an endpoint of etcd has %zu characters (allowed: "
                         "HOST:PORT)",
                         n);
    if (e->n_endpoints == WEFT_ETCD_ENDPOINTS_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "more than %d endpoints of etcd",
                         WEFT_ETCD_ENDPOINTS_MAX);
    (void)snprintf(copy, sizeof copy, "%.*s", (int)n, text);
    WEFT_TRY(weft_address_parse(copy, &address, err));
    weft_address_print(&address, name);
    e->channels[e->n_endpoints++] = open_channel(name, credentials);
    return WEFT_OK;
}

weft_status weft_etcd_open(struct etcd *e, const weft_etcd_options *options,
                           weft_err *err)
{
    weft_status st = WEFT_OK;
    const char *at = options->endpoints;
    e->queue = grpc_completion_queue_create_for_next(NULL);
    grpc_channel_credentials *credentials = credentials_of(&e->secret);
    if (credentials == NULL)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "the certificates for etcd are not usable");
    while (st == WEFT_OK) {
        const size_t n = strcspn(at, ",");
        st = add_endpoint(e, at, n, credentials, err);
        if (at[n] == '\0') break;
        at += n + 1;
    }
    grpc_channel_credentials_release(credentials);
    if (st != WEFT_OK) return WEFT_WRAP(err, st, "endpoints of etcd");
    e->waker = grpc_channel_create_call(
        e->channels[0], NULL, GRPC_PROPAGATE_DEFAULTS, e->queue,
        grpc_slice_from_static_string("/"), NULL,
        gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    return WEFT_OK;
}

void weft_etcd_close(struct etcd *e)
{
    if (e->waker != NULL) grpc_call_unref(e->waker);
    for (int32_t i = 0; i < e->n_endpoints; i++)
        grpc_channel_destroy(e->channels[i]);
    if (e->queue == NULL) return;
    grpc_completion_queue_shutdown(e->queue);
    while (grpc_completion_queue_next(e->queue,
                                      gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL)
               .type != GRPC_QUEUE_SHUTDOWN) {
    }
    grpc_completion_queue_destroy(e->queue);
}

/* --- the queue ----------------------------------------------------------- */

static gpr_timespec time_at(uint64_t ns)
{
    const uint64_t now = weft_clock_now_ns();
    if (ns == UINT64_MAX) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    return gpr_time_add(
        gpr_now(GPR_CLOCK_MONOTONIC),
        gpr_time_from_nanos(ns > now ? (int64_t)(ns - now) : 0, GPR_TIMESPAN));
}

bool weft_etcd_next(struct etcd *e, uint64_t until_ns)
{
    const grpc_event event =
        grpc_completion_queue_next(e->queue, time_at(until_ns), NULL);
    if (event.type != GRPC_OP_COMPLETE) return false;
    struct etcd_tag *tag = event.tag;
    tag->fn(e, tag, event.success != 0);
    return true;
}

/* --- calls --------------------------------------------------------------- */

size_t weft_etcd_metadata(struct etcd *e, grpc_metadata out[2])
{
    size_t n = 0;
    memset(out, 0, 2 * sizeof *out);
    /* A member that has lost the others says so instead of being silent. */
    out[n].key = grpc_slice_from_static_string("hasleader");
    out[n++].value = grpc_slice_from_static_string("true");
    if (e->secret.token == NULL) return n;
    out[n].key = grpc_slice_from_static_string("token");
    out[n++].value =
        grpc_slice_from_static_buffer(e->secret.token, strlen(e->secret.token));
    return n;
}

static void ended(struct etcd *e, struct etcd_tag *tag, bool ok)
{
    struct etcd_call *call = (struct etcd_call *)tag;
    (void)ok; /* of a batch with a status it says nothing */
    if (call->code != GRPC_STATUS_OK && call->answer != NULL) {
        grpc_byte_buffer_destroy(call->answer);
        call->answer = NULL;
    }
    if (call->code == GRPC_STATUS_OK && call->answer == NULL)
        call->code = GRPC_STATUS_INTERNAL;
    grpc_call_unref(call->call);
    call->call = NULL;
    e->n_calls--;
    call->done(e, call); /* may start other calls */
    grpc_byte_buffer_destroy(call->request);
    if (call->answer != NULL) grpc_byte_buffer_destroy(call->answer);
    call->answer = NULL;
    grpc_metadata_array_destroy(&call->initial);
    grpc_metadata_array_destroy(&call->trailing);
    grpc_slice_unref(call->details);
    call->busy = false;
}

static bool is_down(const struct etcd *e, int32_t endpoint)
{
    return grpc_channel_check_connectivity_state(e->channels[endpoint], 0) ==
           GRPC_CHANNEL_TRANSIENT_FAILURE;
}

/* Ask one that is not known to be down, if there is one. */
static bool find_endpoint(struct etcd *e)
{
    for (int32_t i = 0; i < e->n_endpoints; i++) {
        const int32_t next = (e->endpoint + i) % e->n_endpoints;
        if (is_down(e, next)) continue;
        e->endpoint = next;
        return true;
    }
    return false;
}

static void begin(struct etcd *e, struct etcd_call *call, bool wait)
{
    grpc_metadata metadata[2];
    grpc_op ops[6];
    memset(ops, 0, sizeof ops);
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    ops[0].data.send_initial_metadata.count = weft_etcd_metadata(e, metadata);
    ops[0].data.send_initial_metadata.metadata = metadata;
    if (wait)
        ops[0].flags = GRPC_INITIAL_METADATA_WAIT_FOR_READY |
                       GRPC_INITIAL_METADATA_WAIT_FOR_READY_EXPLICITLY_SET;
    ops[1].op = GRPC_OP_SEND_MESSAGE;
    ops[1].data.send_message.send_message = call->request;
    ops[2].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    ops[3].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &call->initial;
    ops[4].op = GRPC_OP_RECV_MESSAGE;
    ops[4].data.recv_message.recv_message = &call->answer;
    ops[5].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[5].data.recv_status_on_client.trailing_metadata = &call->trailing;
    ops[5].data.recv_status_on_client.status = &call->code;
    ops[5].data.recv_status_on_client.status_details = &call->details;
    const grpc_call_error error =
        grpc_call_start_batch(call->call, ops, 6, &call->tag, NULL);
    WEFT_ASSERT(error == GRPC_CALL_OK);
}

void weft_etcd_start(struct etcd *e, struct etcd_call *call, const char *path,
                     grpc_byte_buffer *request, uint64_t now_ns,
                     void (*done)(struct etcd *, struct etcd_call *))
{
    WEFT_ASSERT(call->call == NULL && !call->busy);
    call->busy = true;
    /* With nobody left to turn to, a call waits for the connection. */
    const bool found = find_endpoint(e);
    call->tag.fn = ended;
    call->done = done;
    call->request = request;
    call->answer = NULL;
    call->code = GRPC_STATUS_UNKNOWN;
    call->details = grpc_empty_slice();
    call->endpoint = e->endpoint;
    call->started_ns = now_ns;
    grpc_metadata_array_init(&call->initial);
    grpc_metadata_array_init(&call->trailing);
    call->call = grpc_channel_create_call(
        e->channels[e->endpoint], NULL, GRPC_PROPAGATE_DEFAULTS, e->queue,
        grpc_slice_from_static_string(path), NULL, time_at(now_ns + e->call_ns),
        NULL);
    e->n_calls++;
    if (e->unanswered_ns == 0) e->unanswered_ns = now_ns;
    begin(e, call, !found || e->n_endpoints == 1);
}

void weft_etcd_cancel(struct etcd_call *call)
{
    if (call->call != NULL) (void)grpc_call_cancel(call->call, NULL);
}

const char *weft_etcd_reason(const struct etcd_call *call,
                             char out[WEFT_ETCD_TEXT_BYTES])
{
    char *details = grpc_slice_to_c_string(call->details);
    (void)weft_text_line(details, out, WEFT_ETCD_TEXT_BYTES);
    gpr_free(details);
    return out;
}

void weft_etcd_failed(struct etcd *e, int32_t endpoint, grpc_status_code code,
                      const grpc_slice *details)
{
    char *text = grpc_slice_to_c_string(*details);
    (void)weft_text_line(text, e->last_error, sizeof e->last_error);
    gpr_free(text);
    switch (code) {
    case GRPC_STATUS_INVALID_ARGUMENT:
    case GRPC_STATUS_NOT_FOUND:
    case GRPC_STATUS_FAILED_PRECONDITION:
    case GRPC_STATUS_OUT_OF_RANGE:
    case GRPC_STATUS_RESOURCE_EXHAUSTED:
        weft_etcd_answered(e); /* though it is a refusal */
        return;
    default: break;
    }
    if (endpoint == e->endpoint && e->n_endpoints > 1)
        e->endpoint = (endpoint + 1) % e->n_endpoints;
}
