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

/* A decoded request of that size, in an arena that goes with the call; NULL: no
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

/* From here on another thread may end the call. */
static const weft_service_ops *hand_over(weft_call *c, void **arg_out)
{
    (void)pthread_mutex_lock(&c->lock);
    c->service_holds = true;
    (void)pthread_mutex_unlock(&c->lock);
    *arg_out = c->server->options.ops_arg;
    return c->server->options.ops;
}

static void generate(weft_call *c, weft_span message)
{
    void *arg;
    weft_err err = {0};
    weft_generate_request *request = new_request(c, sizeof *request);
    if (request == NULL) return;
    const weft_status st =
        weft_decode_generate(c->arena, message, request, &err);
    if (st != WEFT_OK) {
        weft_call_finish(c, st, err.text);
        return;
    }
    c->wants_stream = request->stream;
    hand_over(c, &arg)->generate(arg, c, request);
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
    void *arg;
    weft_err err = {0};
    weft_tokenize_request *request = new_request(c, sizeof *request);
    if (request == NULL) return;
    const weft_status st =
        weft_decode_tokenize(c->arena, message, request, &err);
    if (st != WEFT_OK)
        weft_call_finish(c, st, err.text);
    else
        hand_over(c, &arg)->tokenize(arg, c, request);
}

static void detokenize(weft_call *c, weft_span message)
{
    void *arg;
    weft_err err = {0};
    weft_detokenize_request *request = new_request(c, sizeof *request);
    if (request == NULL) return;
    const weft_status st =
        weft_decode_detokenize(c->arena, message, request, &err);
    if (st != WEFT_OK)
        weft_call_finish(c, st, err.text);
    else
        hand_over(c, &arg)->detokenize(arg, c, request);
}

static void abort_requests(weft_call *c, weft_span message)
{
    void *arg;
    weft_err err = {0};
    weft_abort_request *request = new_request(c, sizeof *request);
    if (request == NULL) return;
    const weft_status st = weft_decode_abort(c->arena, message, request, &err);
    if (st != WEFT_OK)
        weft_call_finish(c, st, err.text);
    else
        hand_over(c, &arg)->abort(arg, c, request);
}

static void get_model(weft_call *c, weft_span message)
{
    void *arg;
    weft_err err = {0};
    const weft_status st = weft_decode_empty(message, &err);
    if (st != WEFT_OK)
        weft_call_finish(c, st, err.text);
    else
        hand_over(c, &arg)->get_model(arg, c);
}

static void get_load(weft_call *c, weft_span message)
{
    void *arg;
    weft_err err = {0};
    const weft_status st = weft_decode_empty(message, &err);
    if (st != WEFT_OK)
        weft_call_finish(c, st, err.text);
    else
        hand_over(c, &arg)->get_load(arg, c);
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
