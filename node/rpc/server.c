#include "node/rpc/server.h"

#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <string.h>

#include "node/base/address.h"
#include "node/base/check.h"
#include "node/base/clock.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include "node/rpc/library.h"
#include "node/rpc/server_internal.h"

enum {
    TICK_MS = 500, /* how often stalled clients are looked for */
    METADATA_BYTES_MAX = 16384,
    /* A peer that does not answer a ping within KEEPALIVE_TIMEOUT_MS, asked
     * every KEEPALIVE_MS, is gone: nothing else tells a frozen client. */
    KEEPALIVE_MS = 10000,
    KEEPALIVE_TIMEOUT_MS = 3000,
    CLIENT_PING_MIN_MS = 5000,
};

weft_rpc_options weft_rpc_options_default(void)
{
    return (weft_rpc_options){
        .message_bytes_max = 16u << 20,
        .incoming_bytes_max = 1u << 30,
        .decoded_bytes_max = 64u << 20,
        .waiting_bytes_max = 16u << 20,
        .streams_max = 1024,
        .calls_max = 4096,
        .stall_ns = 30000000000U,
    };
}

/* gRPC's keys are not const, and not written to. */
static char *key_of(const char *key)
{
    union {
        const char *from;
        char *to;
    } name = {.from = key};
    return name.to;
}

static grpc_arg integer_arg(const char *key, int value)
{
    return (grpc_arg){.type = GRPC_ARG_INTEGER,
                      .key = key_of(key),
                      .value = {.integer = value}};
}

static grpc_server *create_grpc(const weft_rpc_options *o)
{
    /* gRPC takes in the whole of a message before it finds it too large. Only a
     * quota bounds what clients make it hold, and at its end gRPC picks calls
     * of any client to end: the last resort before the process dies. */
    grpc_resource_quota *quota = grpc_resource_quota_create("weft server");
    grpc_resource_quota_resize(quota, o->incoming_bytes_max);
    grpc_arg list[] = {
        {.type = GRPC_ARG_POINTER,
         .key = key_of(GRPC_ARG_RESOURCE_QUOTA),
         .value = {.pointer = {quota, grpc_resource_quota_arg_vtable()}}},
        integer_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
                    (int)o->message_bytes_max),
        integer_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1),
        integer_arg(GRPC_ARG_MAX_CONCURRENT_STREAMS, o->streams_max),
        integer_arg(GRPC_ARG_MAX_METADATA_SIZE, METADATA_BYTES_MAX),
        integer_arg(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1),
        integer_arg(GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_MS),
        integer_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_TIMEOUT_MS),
        integer_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        integer_arg(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                    CLIENT_PING_MIN_MS),
    };
    const grpc_channel_args args = {.num_args = sizeof list / sizeof *list,
                                    .args = list};
    grpc_server *server = grpc_server_create(&args, NULL);
    grpc_resource_quota_unref(quota);
    return server;
}

/* --- the loop ------------------------------------------------------------ */

/* Wait for a call of method i; i == weft_n_methods: of any other path. Without
 * memory, the next tick tries again. */
static void arm(weft_rpc_server *s, size_t i)
{
    const bool any = i == weft_n_methods;
    if (s->armed[i] != NULL || atomic_load(&s->stopping)) return;
    weft_call *c = weft_call_create(s, any ? NULL : &weft_methods[i]);
    if (c == NULL) return;
    tag *t = &c->tags[TAG_NEW];
    grpc_call_error error;
    if (any)
        error = grpc_server_request_call(s->grpc, &c->call, &c->details,
                                         &c->metadata, s->queue, s->queue, t);
    else
        error = grpc_server_request_registered_call(
            s->grpc, s->registered[i], &c->call, &c->deadline, &c->metadata,
            c->method->is_stream ? NULL : &c->received, s->queue, s->queue, t);
    if (error != GRPC_CALL_OK)
        weft_call_discard(c); /* being shut down */
    else
        s->armed[i] = c;
}

static void on_new(weft_rpc_server *s, weft_call *c, bool success)
{
    const size_t i =
        c->method != NULL ? (size_t)(c->method - weft_methods) : weft_n_methods;
    s->armed[i] = NULL;
    if (!success) { /* the server is shut down */
        weft_call_discard(c);
        return;
    }
    (void)pthread_mutex_lock(&s->lock);
    c->id = ++s->last_id;
    c->after = s->live;
    if (s->live != NULL) s->live->before = c;
    s->live = c;
    const int32_t n_live = ++s->n_live;
    (void)pthread_mutex_unlock(&s->lock);

    /* Counted before the next is asked for: while a call lives, the queue is
     * not shut down. */
    arm(s, i);
    if (c->method == NULL) c->deadline = c->details.deadline;
    weft_call_begin(c, n_live);
}

static void each_live(weft_rpc_server *s, void (*act)(weft_call *call))
{
    (void)pthread_mutex_lock(&s->lock);
    for (weft_call *c = s->live; c != NULL; c = c->after) act(c);
    (void)pthread_mutex_unlock(&s->lock);
}

static void check_stall(weft_call *c)
{
    weft_call_check_stall(c, weft_clock_now_ns());
}

static void tick(weft_rpc_server *s)
{
    each_live(s, check_stall);
    for (size_t i = 0; i <= weft_n_methods; i++) arm(s, i);
}

static void *run_loop(void *arg)
{
    weft_rpc_server *s = arg;
    uint64_t tick_ns = weft_clock_now_ns();
    tick(s); /* arms every method */
    for (;;) {
        const gpr_timespec soon =
            gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                         gpr_time_from_millis(TICK_MS, GPR_TIMESPAN));
        const grpc_event event =
            grpc_completion_queue_next(s->queue, soon, NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN) return NULL;
        if (event.type == GRPC_OP_COMPLETE) {
            const tag *t = event.tag;
            if (t->kind == TAG_NEW)
                on_new(s, t->call, event.success != 0);
            else
                weft_call_on_tag(t->call, t->kind, event.success != 0);
        }
        /* A busy queue never times out. */
        const uint64_t now_ns = weft_clock_now_ns();
        if (now_ns - tick_ns < TICK_MS * UINT64_C(1000000)) continue;
        tick_ns = now_ns;
        tick(s);
    }
}

/* --- start --------------------------------------------------------------- */

static weft_status bind_address(weft_rpc_server *s, weft_err *err)
{
    weft_address address;
    char name[WEFT_ADDRESS_TEXT_BYTES];
    WEFT_TRY(weft_address_parse(s->options.listen, &address, err));
    WEFT_TRY(weft_listener_open(&address, &s->listener, err));
    weft_address_print(&address, name);
    s->address = weft_mem_copy_text(name, strlen(name));
    if (s->address == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for the gRPC server");
    return WEFT_OK;
}

static void serve_connection(void *arg, int fd)
{
    weft_rpc_server *s = arg;
    grpc_server_add_channel_from_fd(s->grpc, fd, s->plain);
}

static void take_connection(void *arg, int fd)
{
    weft_rpc_server *s = arg;
    if (s->front != NULL)
        weft_tls_front_take(s->front, fd);
    else
        serve_connection(s, fd);
}

static void register_all(weft_rpc_server *s)
{
    for (size_t i = 0; i < weft_n_methods; i++)
        s->registered[i] = grpc_server_register_method(
            s->grpc, weft_methods[i].path, NULL,
            weft_methods[i].is_stream
                ? GRPC_SRM_PAYLOAD_NONE
                : GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER,
            0);
}

static grpc_completion_queue *create_stop_queue(void)
{
    /* The tag of a shutdown needs a queue that is registered before start, and
     * that no listener polls. */
    grpc_completion_queue_attributes attributes;
    memset(&attributes, 0, sizeof attributes);
    attributes.version = GRPC_CQ_CURRENT_VERSION;
    attributes.cq_completion_type = GRPC_CQ_PLUCK;
    attributes.cq_polling_type = GRPC_CQ_NON_LISTENING;
    return grpc_completion_queue_create(
        grpc_completion_queue_factory_lookup(&attributes), &attributes, NULL);
}

static weft_status start(weft_rpc_server *s, weft_err *err)
{
    s->queue = grpc_completion_queue_create_for_next(NULL);
    s->stop_queue = create_stop_queue();
    s->grpc = create_grpc(&s->options);
    s->plain = grpc_insecure_server_credentials_create();
    register_all(s);
    grpc_server_register_completion_queue(s->grpc, s->queue, NULL);
    grpc_server_register_completion_queue(s->grpc, s->stop_queue, NULL);
    WEFT_TRY(bind_address(s, err));
    grpc_server_start(s->grpc);
    const int error = pthread_create(&s->loop, NULL, run_loop, s);
    if (error != 0)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no thread for the gRPC server: %s", strerror(error));
    s->loop_runs = true;
    if (s->options.tls != NULL)
        WEFT_TRY(weft_tls_front_start(s->options.tls, serve_connection, s,
                                      &s->front, err));
    return weft_listener_start(s->listener, take_connection, s, err);
}

weft_status weft_rpc_server_start(const weft_rpc_options *options,
                                  weft_rpc_server **server_out, weft_err *err)
{
    weft_rpc_server *s = weft_mem_new(1, sizeof *s);
    if (s == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for the gRPC server");
    s->options = *options;
    s->options.listen = NULL; /* borrowed for this call only */
    atomic_init(&s->serving, true);
    atomic_init(&s->stopping, false);
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_cond_init(&s->idle, NULL);
    weft_grpc_begin();
    s->options.listen = options->listen;
    const weft_status st = start(s, err);
    s->options.listen = NULL;
    if (st != WEFT_OK) {
        weft_rpc_server_destroy(s);
        return st;
    }
    *server_out = s;
    return WEFT_OK;
}

const char *weft_rpc_server_address(const weft_rpc_server *s)
{
    return s->address;
}

/* --- drain and stop ------------------------------------------------------ */

static void wake_endless(weft_call *c)
{
    if (c->method == NULL || !c->method->is_endless) return;
    (void)pthread_mutex_lock(&c->lock);
    weft_call_wake_locked(c);
    (void)pthread_mutex_unlock(&c->lock);
}

static void kill_endless(weft_call *c)
{
    if (c->method == NULL || !c->method->is_endless) return;
    (void)pthread_mutex_lock(&c->lock);
    weft_call_kill_locked(c, WEFT_UNAVAILABLE, "the server is stopping");
    (void)pthread_mutex_unlock(&c->lock);
}

void weft_rpc_server_set_serving(weft_rpc_server *s, bool serving)
{
    atomic_store(&s->serving, serving);
    each_live(s, wake_endless);
}

static void shut_down_grpc(weft_rpc_server *s, uint64_t grace_ns)
{
    const gpr_timespec grace =
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                     gpr_time_from_nanos(
                         (int64_t)(grace_ns > INT64_MAX ? INT64_MAX : grace_ns),
                         GPR_TIMESPAN));
    grpc_server_shutdown_and_notify(s->grpc, s->stop_queue, s);
    each_live(s, kill_endless);
    const grpc_event event =
        grpc_completion_queue_pluck(s->stop_queue, s, grace, NULL);
    if (event.type == GRPC_QUEUE_TIMEOUT) {
        grpc_server_cancel_all_calls(s->grpc);
        (void)grpc_completion_queue_pluck(
            s->stop_queue, s, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    }
}

void weft_rpc_server_stop(weft_rpc_server *s, uint64_t grace_ns)
{
    if (s->stopped) return;
    s->stopped = true;
    weft_rpc_server_set_serving(s, false);
    atomic_store(&s->stopping, true);
    weft_listener_close(s->listener);
    s->listener = NULL;
    /* Connections whose handshake ends during this are turned away by gRPC. */
    if (s->grpc != NULL) shut_down_grpc(s, grace_ns);
    weft_tls_front_stop(s->front);
    s->front = NULL;
    /* gRPC is done with its calls, and the service may not be: a batch on a
     * queue that is shut down would abort the process. */
    (void)pthread_mutex_lock(&s->lock);
    while (s->n_live > 0) (void)pthread_cond_wait(&s->idle, &s->lock);
    (void)pthread_mutex_unlock(&s->lock);
    if (s->queue != NULL) grpc_completion_queue_shutdown(s->queue);
    if (s->loop_runs)
        (void)pthread_join(s->loop, NULL);
    else if (s->queue != NULL) /* take off the word that it is shut down */
        (void)grpc_completion_queue_next(
            s->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    s->loop_runs = false;
}

void weft_rpc_server_destroy(weft_rpc_server *s)
{
    if (s == NULL) return;
    weft_rpc_server_stop(s, 0);
    if (s->grpc != NULL) grpc_server_destroy(s->grpc);
    if (s->plain != NULL) grpc_server_credentials_release(s->plain);
    if (s->stop_queue != NULL) {
        grpc_completion_queue_shutdown(s->stop_queue);
        grpc_completion_queue_destroy(s->stop_queue);
    }
    if (s->queue != NULL) grpc_completion_queue_destroy(s->queue);
    grpc_shutdown();
    (void)pthread_cond_destroy(&s->idle);
    (void)pthread_mutex_destroy(&s->lock);
    weft_mem_free(s->address);
    weft_mem_free(s);
}
