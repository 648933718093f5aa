/* The methods that are served, and those of weft.v1.Generation: decode, then
 * hand over to the service. */
#include "node/rpc/server_internal.h"

#define STATUS_PAIR(name)                                                      \
    _Static_assert((int)WEFT_##name == (int)GRPC_STATUS_##name, #name)

STATUS_PAIR(OK);
STATUS_PAIR(CANCELLED);
STATUS_PAIR(INVALID_ARGUMENT);
STATUS_PAIR(DEADLINE_EXCEEDED);
STATUS_PAIR(NOT_FOUND);
STATUS_PAIR(RESOURCE_EXHAUSTED);
STATUS_PAIR(FAILED_PRECONDITION);
STATUS_PAIR(UNIMPLEMENTED);
STATUS_PAIR(INTERNAL);
STATUS_PAIR(UNAVAILABLE);
STATUS_PAIR(DATA_LOSS);
STATUS_PAIR(UNAUTHENTICATED);

/* Room for a decoded request, in an arena that goes with the call; NULL: no
 * memory, and the call is refused. */
static void *new_request(weft_call *c, size_t bytes)
{
    weft_err err = {0};
    void *request = NULL;
    if (weft_arena_create(c->server->options.decoded_bytes_max, &c->arena,
                          &err) == WEFT_OK)
        request = weft_arena_new(c->arena, 1, bytes);
    if (request == NULL)
        weft_call_finish(c, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for the request");
    return request;
}

/* After decoding, with how that went. NULL: it failed, and the call is refused.
 * Else the service has the call: from here on another thread may end it. */
static const weft_rpc_options *hand_over(weft_call *c, weft_status decoded,
                                         const weft_err *err)
{
    if (decoded != WEFT_OK) {
        weft_call_finish(c, decoded, err->text);
        return NULL;
    }
    (void)pthread_mutex_lock(&c->lock);
    c->service_holds = true;
    (void)pthread_mutex_unlock(&c->lock);
    return &c->server->options;
}

static void generate(weft_call *c, weft_span message)
{
    weft_err err = {0};
    weft_generate_request *const request = new_request(c, sizeof *request);
    if (request == NULL) return;
    const weft_status st =
        weft_decode_generate(c->arena, message, request, &err);
    c->wants_stream = st == WEFT_OK && request->stream;
    const weft_rpc_options *const o = hand_over(c, st, &err);
    if (o != NULL) o->ops->generate(o->ops_arg, c, request);
    /* A call lives for long, and its prompt can be large. */
    weft_arena_destroy(c->arena);
    c->arena = NULL;
}

/* The chunks that wait, as one message. They are packed without the lock, since
 * there may be many, and the service must not wait for that. */
static grpc_byte_buffer *next_chunk(weft_call *c)
{
    if (!c->pending.any) return NULL;
    const weft_pending all = c->pending;
    c->pending = c->packing;
    c->packing = all;
    (void)pthread_mutex_unlock(&c->lock);

    grpc_slice slice;
    weft_err err = {0};
    const weft_chunk chunk = weft_pending_chunk(&c->packing);
    const weft_status st =
        weft_encode_chunk(&chunk, weft_bytes_place(&slice), &err);
    grpc_byte_buffer *buffer = st == WEFT_OK ? weft_bytes_buffer(&slice) : NULL;
    weft_pending_clear(&c->packing);

    (void)pthread_mutex_lock(&c->lock);
    if (st != WEFT_OK) weft_call_kill_locked(c, st, err.text);
    return buffer;
}

static void tokenize(weft_call *c, weft_span message)
{
    weft_err err = {0};
    weft_tokenize_request *const request = new_request(c, sizeof *request);
    if (request == NULL) return;
    const weft_rpc_options *const o = hand_over(
        c, weft_decode_tokenize(c->arena, message, request, &err), &err);
    if (o != NULL) o->ops->tokenize(o->ops_arg, c, request);
}

static void detokenize(weft_call *c, weft_span message)
{
    weft_err err = {0};
    weft_detokenize_request *const request = new_request(c, sizeof *request);
    if (request == NULL) return;
    const weft_rpc_options *const o = hand_over(
        c, weft_decode_detokenize(c->arena, message, request, &err), &err);
    if (o != NULL) o->ops->detokenize(o->ops_arg, c, request);
}

static void abort_requests(weft_call *c, weft_span message)
{
    weft_err err = {0};
    weft_abort_request *const request = new_request(c, sizeof *request);
    if (request == NULL) return;
    const weft_rpc_options *const o =
        hand_over(c, weft_decode_abort(c->arena, message, request, &err), &err);
    if (o != NULL) o->ops->abort(o->ops_arg, c, request);
}

static void get_model(weft_call *c, weft_span message)
{
    weft_err err = {0};
    const weft_rpc_options *const o =
        hand_over(c, weft_decode_empty(message, &err), &err);
    if (o != NULL) o->ops->get_model(o->ops_arg, c);
}

static void get_load(weft_call *c, weft_span message)
{
    weft_err err = {0};
    const weft_rpc_options *const o =
        hand_over(c, weft_decode_empty(message, &err), &err);
    if (o != NULL) o->ops->get_load(o->ops_arg, c);
}

static void get_cluster(weft_call *c, weft_span message)
{
    weft_err err = {0};
    weft_status st = weft_decode_empty(message, &err);
    if (st == WEFT_OK && c->server->options.ops->get_cluster == NULL)
        st = WEFT_FAIL(&err, WEFT_UNIMPLEMENTED,
                       "GetCluster is not served here");
    const weft_rpc_options *const o = hand_over(c, st, &err);
    if (o != NULL) o->ops->get_cluster(o->ops_arg, c);
}

const method weft_methods[] = {
    {.path = "/weft.v1.Generation/Generate",
     .is_generate = true,
     .begin = generate,
     .next = next_chunk},
    {.path = "/weft.v1.Generation/Tokenize", .begin = tokenize},
    {.path = "/weft.v1.Generation/Detokenize", .begin = detokenize},
    {.path = "/weft.v1.Generation/GetModel", .begin = get_model},
    {.path = "/weft.v1.Generation/GetLoad", .begin = get_load},
    {.path = "/weft.v1.Generation/Abort", .begin = abort_requests},
    {.path = "/weft.v1.Cluster/GetCluster", .begin = get_cluster},
    {.path = "/grpc.health.v1.Health/Check", .begin = weft_health_check},
    {.path = "/grpc.health.v1.Health/Watch",
     .is_endless = true,
     .begin = weft_health_watch,
     .next = weft_health_next},
    {.path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
     .is_stream = true,
     .is_endless = true,
     .begin = weft_reflection_answer},
    {.path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
     .is_stream = true,
     .is_endless = true,
     .begin = weft_reflection_answer},
};
const size_t weft_n_methods = sizeof weft_methods / sizeof *weft_methods;
_Static_assert(sizeof weft_methods / sizeof *weft_methods <= METHODS_MAX,
               "a server has room for each method's handle");
