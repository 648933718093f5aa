#include <grpc/support/alloc.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "node/base/check.h"
#include "node/base/clock.h"
#include "node/base/mem.h"
#include "node/rpc/server_internal.h"

/* A thousand members, several times over. */
enum { CLUSTER_BYTES_MAX = 4 << 20 };

/* Lifetime. A call is freed at the moment when its status is out, no batch is
 * outstanding and the service has ended it, by whoever brings that about: the
 * loop, or the thread that ends it. */
static bool is_over_locked(const weft_call *c)
{
    return c->status_sent && c->outstanding == 0 && !c->service_holds;
}

weft_call *weft_call_create(weft_rpc_server *server, const method *how)
{
    weft_call *c = weft_mem_new(1, sizeof *c);
    if (c == NULL) return NULL;
    for (int i = 0; i < N_TAGS; i++)
        c->tags[i] = (tag){.kind = (tag_kind)i, .call = c};
    c->server = server;
    c->method = how;
    c->retry_after_ms = -1;
    c->health_sent = -1;
    grpc_metadata_array_init(&c->metadata);
    grpc_call_details_init(&c->details);
    (void)pthread_mutex_init(&c->lock, NULL); /* default attributes: cannot */
    return c;
}

void weft_call_discard(weft_call *c)
{
    if (c == NULL) return;
    if (c->received != NULL) grpc_byte_buffer_destroy(c->received);
    if (c->in_flight != NULL) grpc_byte_buffer_destroy(c->in_flight);
    if (c->answer != NULL) grpc_byte_buffer_destroy(c->answer);
    weft_pending_deinit(&c->pending);
    weft_pending_deinit(&c->packing);
    weft_arena_destroy(c->arena);
    if (c->retry_after_ms >= 0) grpc_slice_unref(c->retry.value);
    grpc_metadata_array_destroy(&c->metadata);
    grpc_call_details_destroy(&c->details);
    if (c->call != NULL) grpc_call_unref(c->call);
    (void)pthread_mutex_destroy(&c->lock);
    weft_mem_free(c);
}

/* Give up the lock, and the call with it if it is over. */
static void unlock(weft_call *c)
{
    const bool over = is_over_locked(c);
    (void)pthread_mutex_unlock(&c->lock);
    if (!over) return;
    weft_rpc_server *server = c->server;
    (void)pthread_mutex_lock(&server->lock);
    if (c->before != NULL)
        c->before->after = c->after;
    else
        server->live = c->after;
    if (c->after != NULL) c->after->before = c->before;
    (void)pthread_mutex_unlock(&server->lock);

    weft_call_discard(c);

    /* Counted last: when none is left, the server may be taken apart. */
    (void)pthread_mutex_lock(&server->lock);
    if (--server->n_live == 0) (void)pthread_cond_broadcast(&server->idle);
    (void)pthread_mutex_unlock(&server->lock);
}

static void batch_locked(weft_call *c, const grpc_op *ops, size_t n,
                         tag_kind kind)
{
    const grpc_call_error error =
        grpc_call_start_batch(c->call, ops, n, &c->tags[kind], NULL);
    WEFT_ASSERT(error == GRPC_CALL_OK); /* we broke the order of batches */
    c->outstanding++;
}

void weft_call_wake_locked(weft_call *c)
{
    if (c->wake_posted || c->status_sent) return;
    c->wake_posted = true;
    batch_locked(c, NULL, 0, TAG_WAKE);
}

/* One line of UTF-8 that fits; what is neither becomes '?' or a space. */
static void set_text(weft_call *c, const char *text)
{
    size_t n = text != NULL ? strlen(text) : 0;
    if (n >= STATUS_TEXT_BYTES) n = STATUS_TEXT_BYTES - 1;
    memcpy(c->text, text != NULL ? text : "", n);
    n = weft_utf8_mend(c->text, n);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)c->text[i] < ' ' || c->text[i] == 0x7f)
            c->text[i] = ' ';
    c->text[n] = '\0';
}

static void end_locked(weft_call *c, weft_status status, const char *text)
{
    if (c->ended) return;
    c->ended = true;
    c->status = status;
    set_text(c, text);
}

void weft_call_kill_locked(weft_call *c, weft_status status, const char *text)
{
    if (c->dead) return;
    c->dead = true;
    if (!c->status_sent) {
        c->ended = false; /* an answer that cannot be delivered is none */
        end_locked(c, status, text);
    }
    /* Makes a message that is stuck in flow control come back. */
    (void)grpc_call_cancel_with_status(c->call, (grpc_status_code)c->status,
                                       c->text, NULL);
    weft_call_wake_locked(c);
}

/* The message to send next, or NULL. */
static grpc_byte_buffer *next_locked(weft_call *c)
{
    grpc_byte_buffer *buffer = NULL;
    if (c->method != NULL && c->method->next != NULL)
        buffer = c->method->next(c);
    if (buffer == NULL) {
        buffer = c->answer;
        c->answer = NULL;
    }
    return buffer;
}

static void status_op(weft_call *c, grpc_op *op, grpc_slice *details)
{
    memset(op, 0, sizeof *op);
    op->op = GRPC_OP_SEND_STATUS_FROM_SERVER;
    op->data.send_status_from_server.status = (grpc_status_code)c->status;
    *details = grpc_slice_from_copied_string(c->text);
    op->data.send_status_from_server.status_details = details;
    if (c->retry_after_ms >= 0) {
        op->data.send_status_from_server.trailing_metadata_count = 1;
        op->data.send_status_from_server.trailing_metadata = &c->retry;
    }
}

/* Send what can be sent: at most one batch is in flight, so that flow control
 * holds us back, and the status goes with the last message. */
static void step_locked(weft_call *c)
{
    if (c->send_posted || c->status_sent) return;
    grpc_byte_buffer *buffer = c->dead ? NULL : next_locked(c);
    const bool last =
        c->dead || (c->ended && !c->pending.any && c->answer == NULL);
    if (buffer == NULL && !last) return;

    grpc_op ops[3];
    grpc_slice details = grpc_empty_slice();
    size_t n = 0;
    memset(ops, 0, sizeof ops);
    if (!c->metadata_sent) ops[n++].op = GRPC_OP_SEND_INITIAL_METADATA;
    c->metadata_sent = true;
    if (buffer != NULL) {
        ops[n].op = GRPC_OP_SEND_MESSAGE;
        ops[n++].data.send_message.send_message = buffer;
    }
    if (last) {
        status_op(c, &ops[n++], &details);
        c->status_sent = true;
        const weft_rpc_options *o = &c->server->options;
        if (c->method != NULL && c->method->is_generate &&
            o->ops->generate_ended != NULL)
            o->ops->generate_ended(o->ops_arg, c->status);
    }
    c->in_flight = buffer;
    c->send_posted = true;
    c->send_since_ns = weft_clock_now_ns();
    batch_locked(c, ops, n, TAG_SEND);
    grpc_slice_unref(details);
}

/* Whether the service has to be told that the client is gone, once. */
static bool take_cancel_locked(weft_call *c)
{
    const bool tell = c->dead && c->service_holds && !c->cancel_told;
    if (tell) c->cancel_told = true;
    return tell;
}

/* The end of every entry of the loop: send, tell the service, let go. */
static void advance_and_unlock(weft_call *c)
{
    step_locked(c);
    const bool tell = take_cancel_locked(c);
    const uint64_t id = c->id;
    const weft_status why = c->status;
    const weft_rpc_options *o = &c->server->options;
    if (!tell) {
        unlock(c);
        return;
    }
    /* The service holds the call, or has just let go of it: its id is safe to
     * use, and the call is not. */
    unlock(c);
    o->ops->cancel(o->ops_arg, id, why);
}

static void post_recv_locked(weft_call *c)
{
    grpc_op op;
    memset(&op, 0, sizeof op);
    op.op = GRPC_OP_RECV_MESSAGE;
    op.data.recv_message.recv_message = &c->received;
    c->recv_posted = true;
    batch_locked(c, &op, 1, TAG_RECV);
}

static void take_message(weft_call *c)
{
    weft_bytes message;
    weft_bytes_init(&message, c->received);
    if (c->received != NULL) grpc_byte_buffer_destroy(c->received);
    c->received = NULL;
    c->method->begin(c, message.span);
    weft_bytes_deinit(&message);
}

static uint64_t deadline_ns_of(gpr_timespec deadline)
{
    if (gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) == 0)
        return UINT64_MAX;
    const gpr_timespec at =
        gpr_convert_clock_type(deadline, GPR_CLOCK_MONOTONIC);
    if (at.tv_sec < 0) return 0;
    return (uint64_t)at.tv_sec * 1000000000U + (uint64_t)at.tv_nsec;
}

static void refuse_path(weft_call *c)
{
    char text[STATUS_TEXT_BYTES];
    char *path = grpc_slice_to_c_string(c->details.method);
    (void)snprintf(text, sizeof text, "no method %.200s", path);
    gpr_free(path);
    weft_call_finish(c, WEFT_UNIMPLEMENTED, text);
}

/* Whether the call shows a key, where one is wanted. */
static bool may_call(const weft_call *c)
{
    static const char wanted[] = "Bearer ";
    const size_t n_wanted = sizeof wanted - 1;
    weft_keys *const keys = c->server->options.keys;
    if (keys == NULL || strncmp(c->method->path, "/weft.v1.", 9) != 0)
        return true;
    for (size_t i = 0; i < c->metadata.count; i++) {
        const grpc_metadata *const m = &c->metadata.metadata[i];
        const char *const value = (const char *)GRPC_SLICE_START_PTR(m->value);
        const size_t n = GRPC_SLICE_LENGTH(m->value);
        if (grpc_slice_str_cmp(m->key, "authorization") == 0 && n > n_wanted &&
            strncasecmp(value, wanted, n_wanted) == 0)
            return weft_keys_has(keys, value + n_wanted, n - n_wanted);
    }
    return false;
}

void weft_call_begin(weft_call *c, int32_t n_live)
{
    c->begun_ns = weft_clock_now_ns();
    c->deadline_ns = deadline_ns_of(c->deadline);
    grpc_op op;
    memset(&op, 0, sizeof op);
    op.op = GRPC_OP_RECV_CLOSE_ON_SERVER;
    op.data.recv_close_on_server.cancelled = &c->cancelled;

    (void)pthread_mutex_lock(&c->lock);
    /* The loop's own hold on the call, until this function returns. */
    c->outstanding++;
    batch_locked(c, &op, 1, TAG_CLOSE);
    if (c->method != NULL && c->method->is_stream) post_recv_locked(c);
    (void)pthread_mutex_unlock(&c->lock);

    const weft_rpc_options *o = &c->server->options;
    if (c->method == NULL) {
        refuse_path(c);
    } else if (n_live > o->calls_max) {
        char text[STATUS_TEXT_BYTES];
        (void)snprintf(text, sizeof text,
                       "too many calls (allowed: at most %d)", o->calls_max);
        weft_call_finish(c, WEFT_RESOURCE_EXHAUSTED, text);
    } else if (!may_call(c)) {
        weft_call_finish(c, WEFT_UNAUTHENTICATED,
                         "authorization: \"Bearer KEY\" with a key of this "
                         "server is wanted");
    } else if (!c->method->is_stream && c->received == NULL &&
               grpc_call_failed_before_recv_message(c->call) != 0) {
        weft_call_finish(c, WEFT_CANCELLED, "the client is gone");
    } else if (!c->method->is_stream && c->received == NULL) {
        weft_call_finish(c, WEFT_INVALID_ARGUMENT,
                         "the request has no message");
    } else if (!c->method->is_stream) {
        take_message(c);
    }

    (void)pthread_mutex_lock(&c->lock);
    c->outstanding--;
    advance_and_unlock(c);
}

void weft_call_finish(weft_call *c, weft_status status, const char *text)
{
    (void)pthread_mutex_lock(&c->lock);
    end_locked(c, status, text);
    /* The loop is inside an entry of this call and steps when it leaves. */
    (void)pthread_mutex_unlock(&c->lock);
}

void weft_call_answer(weft_call *c, grpc_byte_buffer *buffer)
{
    (void)pthread_mutex_lock(&c->lock);
    WEFT_ASSERT(c->answer == NULL);
    c->answer = buffer;
    (void)pthread_mutex_unlock(&c->lock);
}

/* Whether the deadline is what ended the call. The client keeps it too, and is
 * ahead of us by the time that its request took, and by rounding: gRPC tells
 * the time that is left with two or three digits. */
static bool is_late(const weft_call *c)
{
    enum { SLACK_NS = 50000000, SLACK_SHARE = 16 };
    if (c->deadline_ns == UINT64_MAX) return false;
    const uint64_t allowed_ns =
        c->deadline_ns > c->begun_ns ? c->deadline_ns - c->begun_ns : 0;
    return weft_clock_now_ns() + SLACK_NS + allowed_ns / SLACK_SHARE >=
           c->deadline_ns;
}

static void client_gone_locked(weft_call *c)
{
    const bool late = is_late(c);
    if (!c->dead && !c->status_sent) {
        c->ended = false; /* what was queued will not arrive */
        end_locked(c, late ? WEFT_DEADLINE_EXCEEDED : WEFT_CANCELLED,
                   late ? "the deadline has passed" : "the client is gone");
    }
    c->dead = true;
}

static void on_sent_locked(weft_call *c, bool success)
{
    c->send_posted = false;
    if (c->in_flight != NULL) grpc_byte_buffer_destroy(c->in_flight);
    c->in_flight = NULL;
    if (!success) client_gone_locked(c);
    if (c->method != NULL && c->method->is_stream && !c->ended && !c->dead &&
        !c->recv_posted)
        post_recv_locked(c);
}

void weft_call_on_tag(weft_call *c, tag_kind kind, bool success)
{
    (void)pthread_mutex_lock(&c->lock);
    switch (kind) {
    case TAG_CLOSE:
        if (c->cancelled) client_gone_locked(c);
        break;
    case TAG_SEND: on_sent_locked(c, success); break;
    case TAG_WAKE: c->wake_posted = false; break;
    case TAG_RECV:
        c->recv_posted = false;
        /* No message: the client has said all it wanted. */
        if (!success || c->received == NULL) {
            end_locked(c, WEFT_OK, NULL);
            break;
        }
        (void)pthread_mutex_unlock(&c->lock);
        take_message(c);
        (void)pthread_mutex_lock(&c->lock);
        break;
    default: break;
    }
    c->outstanding--;
    advance_and_unlock(c);
}

void weft_call_check_stall(weft_call *c, uint64_t now_ns)
{
    const uint64_t stall_ns = c->server->options.stall_ns;
    (void)pthread_mutex_lock(&c->lock);
    if (c->send_posted && now_ns > c->send_since_ns &&
        now_ns - c->send_since_ns > stall_ns) {
        char text[STATUS_TEXT_BYTES];
        (void)snprintf(text, sizeof text,
                       "the client has read nothing for %.1f seconds",
                       (double)(now_ns - c->send_since_ns) * 1e-9);
        weft_call_kill_locked(c, WEFT_RESOURCE_EXHAUSTED, text);
    }
    (void)pthread_mutex_unlock(&c->lock);
}

/* --- for the service, any thread ----------------------------------------- */

uint64_t weft_call_id(const weft_call *call)
{
    return call->id;
}

uint64_t weft_call_deadline_ns(const weft_call *call)
{
    return call->deadline_ns;
}

bool weft_call_is_wanted(weft_call *c)
{
    (void)pthread_mutex_lock(&c->lock);
    const bool wanted = !c->dead && !c->ended;
    (void)pthread_mutex_unlock(&c->lock);
    return wanted;
}

void weft_call_send_chunk(weft_call *c, const weft_chunk *chunk)
{
    weft_err err = {0};
    (void)pthread_mutex_lock(&c->lock);
    WEFT_ASSERT(c->service_holds);
    if (c->dead || c->ended || !c->wants_stream) {
        (void)pthread_mutex_unlock(&c->lock);
        return;
    }
    const weft_status st = weft_pending_add(
        &c->pending, chunk, c->server->options.waiting_bytes_max, &err);
    if (st != WEFT_OK)
        weft_call_kill_locked(c, st, err.text);
    else if (!c->send_posted)
        weft_call_wake_locked(c);
    (void)pthread_mutex_unlock(&c->lock);
}

/* The service lets go. buffer may be NULL. */
static void end_by_service(weft_call *c, weft_status status, const char *text,
                           grpc_byte_buffer *buffer)
{
    (void)pthread_mutex_lock(&c->lock);
    WEFT_ASSERT(c->service_holds);
    c->service_holds = false;
    if (c->dead || c->ended) {
        if (buffer != NULL) grpc_byte_buffer_destroy(buffer);
    } else {
        c->answer = buffer;
        end_locked(c, status, text);
    }
    if (!c->send_posted) weft_call_wake_locked(c);
    unlock(c);
}

/* The end of an encoder: its status, and what it packed into *slice. */
static void reply(weft_call *c, weft_status st, grpc_slice *slice,
                  const weft_err *err)
{
    if (st == WEFT_OK)
        end_by_service(c, WEFT_OK, NULL, weft_bytes_buffer(slice));
    else
        end_by_service(c, st, err->text, NULL);
}

void weft_call_complete(weft_call *c, const weft_complete *complete)
{
    grpc_slice slice;
    weft_err err = {0};
    reply(c, weft_encode_complete(complete, weft_bytes_place(&slice), &err),
          &slice, &err);
}

void weft_call_reply_tokens(weft_call *c, const int32_t *ids, size_t n_ids)
{
    grpc_slice slice;
    weft_err err = {0};
    reply(c, weft_encode_tokens(ids, n_ids, weft_bytes_place(&slice), &err),
          &slice, &err);
}

void weft_call_reply_text(weft_call *c, weft_span text)
{
    grpc_slice slice;
    weft_err err = {0};
    reply(c, weft_encode_text(text, weft_bytes_place(&slice), &err), &slice,
          &err);
}

void weft_call_reply_aborted(weft_call *c, uint32_t aborted)
{
    grpc_slice slice;
    weft_err err = {0};
    reply(c, weft_encode_aborted(aborted, weft_bytes_place(&slice), &err),
          &slice, &err);
}

void weft_call_reply_model(weft_call *c, const weft_model_info *model)
{
    grpc_slice slice;
    weft_err err = {0};
    reply(c, weft_encode_model(model, weft_bytes_place(&slice), &err), &slice,
          &err);
}

void weft_call_reply_load(weft_call *c, const weft_load_info *load)
{
    grpc_slice slice;
    weft_err err = {0};
    reply(c, weft_encode_load(load, weft_bytes_place(&slice), &err), &slice,
          &err);
}

void weft_call_reply_cluster(weft_call *c, const weft_cluster_info *cluster)
{
    grpc_slice slice;
    weft_err err = {0};
    weft_arena *arena = NULL;
    weft_status st = weft_arena_create(CLUSTER_BYTES_MAX, &arena, &err);
    if (st == WEFT_OK)
        st =
            weft_encode_cluster(cluster, arena, weft_bytes_place(&slice), &err);
    reply(c, st, &slice, &err);
    weft_arena_destroy(arena);
}

void weft_call_fail(weft_call *c, weft_status status, const char *text,
                    int64_t retry_after_ms)
{
    if (retry_after_ms >= 0) {
        char number[32];
        (void)snprintf(number, sizeof number, "%lld",
                       (long long)retry_after_ms);
        (void)pthread_mutex_lock(&c->lock);
        c->retry_after_ms = retry_after_ms;
        c->retry.key = grpc_slice_from_static_string("retry-after-ms");
        c->retry.value = grpc_slice_from_copied_string(number);
        (void)pthread_mutex_unlock(&c->lock);
    }
    end_by_service(c, status, text, NULL);
}

void weft_call_release(weft_call *c)
{
    end_by_service(c, WEFT_INTERNAL, "the request was dropped", NULL);
}
