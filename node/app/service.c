#include "node/app/service.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "node/base/hash.h"
#include "node/base/mem.h"

enum { CLUSTER_BYTES_MAX = 4 << 20 };

/* A call that the router has accepted. Seen by the server's thread only. Rows
 * of calls that have ended stay until the slot is used again: their handle
 * names nothing any more. */
typedef struct live_call {
    uint64_t call_id, handle; /* handle 0: never used */
    int32_t next;             /* the next row with that hash; -1: none */
} live_call;

struct weft_service {
    weft_service_options options;
    live_call *live; /* [max_live], by the handle's slot */
    int32_t *first;  /* [n_first], by the call id's hash: a row, or -1 */
    size_t n_first;  /* a power of two, at least max_live */
};

/* -- live calls, found by their id ---------------------------------------- */

static int32_t *first_of(const weft_service *service, uint64_t call_id)
{
    return &service->first[weft_hash_mix(call_id) & (service->n_first - 1)];
}

static void put_live(weft_service *service, uint64_t call_id, uint64_t handle)
{
    const int32_t row = weft_handle_slot(handle);
    live_call *const live = &service->live[row];
    if (live->handle != 0) {
        int32_t *at = first_of(service, live->call_id);
        while (*at != row) at = &service->live[*at].next;
        *at = live->next;
    }
    int32_t *const first = first_of(service, call_id);
    *live = (live_call){.call_id = call_id, .handle = handle, .next = *first};
    *first = row;
}

/* 0: none. */
static uint64_t find_live(const weft_service *service, uint64_t call_id)
{
    for (int32_t row = *first_of(service, call_id); row >= 0;
         row = service->live[row].next)
        if (service->live[row].call_id == call_id)
            return service->live[row].handle;
    return 0;
}

/* -- answers: the router's words to the wire's ---------------------------- */

static weft_logprobs wire_logprobs(const weft_logprob_rows *rows)
{
    return (weft_logprobs){
        .n_tokens = (size_t)rows->n,
        .values = rows->values,
        .ids = rows->ids,
        .n_top = rows->n_top,
        .top_values = rows->top_values,
        .top_ids = rows->top_ids,
    };
}

static void send_chunk(void *arg, const weft_stream_chunk *chunk)
{
    weft_call *const call = arg;
    const weft_chunk told = {
        .ids = chunk->ids,
        .n_ids = (size_t)chunk->n_ids,
        .text = chunk->text,
        .prompt_tokens = (uint32_t)chunk->prompt_tokens,
        .completion_tokens = (uint32_t)chunk->completion_tokens,
        .cached_tokens = (uint32_t)chunk->cached_tokens,
        .logprobs = wire_logprobs(&chunk->logprobs),
    };
    weft_call_send_chunk(call, &told);
}

static weft_span finish_reason(weft_stream_end end)
{
    static const char *const words[] = {
        [WEFT_END_STOP] = "stop",
        [WEFT_END_LENGTH] = "length",
        [WEFT_END_ABORT] = "abort",
    };
    return (weft_span){.data = words[end], .n = strlen(words[end])};
}

static void send_complete(void *arg, const weft_stream_complete *complete)
{
    weft_call *const call = arg;
    weft_complete told = {
        .ids = complete->ids,
        .n_ids = (size_t)complete->n_ids,
        .text = complete->text,
        .finish_reason = finish_reason(complete->end),
        .prompt_tokens = (uint32_t)complete->prompt_tokens,
        .completion_tokens = (uint32_t)complete->n_ids,
        .cached_tokens = (uint32_t)complete->cached_tokens,
        .logprobs = wire_logprobs(&complete->logprobs),
        .input_logprobs = wire_logprobs(&complete->prompt_logprobs),
    };
    if (complete->matched_stop.data != NULL) {
        told.matched = WEFT_MATCHED_STRING;
        told.matched_string = complete->matched_stop;
    } else if (complete->matched_token) {
        told.matched = WEFT_MATCHED_TOKEN;
        told.matched_token = complete->ids[complete->n_ids - 1];
    }
    weft_call_complete(call, &told);
}

static void send_fail(void *arg, weft_status status, const char *text,
                      int32_t retry_after_ms)
{
    weft_call_fail(arg, status, text, retry_after_ms);
}

static const weft_client_ops CLIENT = {
    .chunk = send_chunk, .complete = send_complete, .fail = send_fail};

/* -- Generate ------------------------------------------------------------- */

static weft_request router_request(const weft_call *call,
                                   const weft_generate_request *request)
{
    const weft_sampling_params *const s = &request->sampling;
    return (weft_request){
        .request_id = request->request_id,
        .has_ids = request->prompt == WEFT_PROMPT_IDS,
        .has_text = request->prompt == WEFT_PROMPT_TEXT,
        .ids = request->ids,
        .n_ids = request->n_ids,
        .text = request->text,
        .stream = request->stream,
        .priority = request->priority,
        .deadline_ns = weft_call_deadline_ns(call),
        .temperature = s->temperature,
        .top_p = s->top_p,
        .min_p = s->min_p,
        .frequency_penalty = s->frequency_penalty,
        .presence_penalty = s->presence_penalty,
        .repetition_penalty = s->repetition_penalty,
        .top_k = s->top_k,
        .max_tokens = s->max_tokens,
        .min_tokens = s->min_tokens,
        .n = s->n,
        .logprobs = s->logprobs,
        .prompt_logprobs = s->prompt_logprobs,
        .seed = s->seed,
        .skip_special_tokens = s->skip_special_tokens,
        .ignore_eos = s->ignore_eos,
        .include_stop_str = s->include_stop_str,
        .stop = s->stop,
        .n_stop = s->n_stop,
        .stop_token_ids = s->stop_token_ids,
        .n_stop_token_ids = s->n_stop_token_ids,
        .bias_ids = s->bias_ids,
        .bias = s->bias,
        .n_bias = s->n_bias,
    };
}

static void do_generate(void *arg, weft_call *call,
                        const weft_generate_request *request)
{
    weft_service *const service = arg;
    const weft_request asked = router_request(call, request);
    const uint64_t call_id = weft_call_id(call); /* it may end any moment */
    uint64_t handle = 0;
    int32_t retry_after_ms = -1;
    weft_err err = {0};
    const weft_status st =
        weft_router_generate(service->options.router, &asked, &CLIENT, call,
                             &handle, &retry_after_ms, &err);
    if (st != WEFT_OK) {
        weft_call_fail(call, st, err.text, retry_after_ms);
        return;
    }
    put_live(service, call_id, handle);
}

static void do_cancel(void *arg, uint64_t call_id, weft_status why)
{
    weft_service *const service = arg;
    (void)why; /* the client has been told already */
    weft_router_cancel(service->options.router, find_live(service, call_id));
}

/* -- the small calls ------------------------------------------------------ */

/* A call that could not be put in line; later there may be room. */
static void refuse(weft_call *call, weft_status st, const weft_err *err)
{
    int32_t retry_after_ms = -1;
    if (st == WEFT_RESOURCE_EXHAUSTED) retry_after_ms = WEFT_RETRY_FULL_MS;
    if (st == WEFT_UNAVAILABLE) retry_after_ms = WEFT_RETRY_DRAIN_MS;
    weft_call_fail(call, st, err->text, retry_after_ms);
}

static void tokenized(void *arg, const weft_err *err, const int32_t *ids,
                      size_t n)
{
    if (err != NULL)
        refuse(arg, err->status, err);
    else
        weft_call_reply_tokens(arg, ids, n);
}

static void do_tokenize(void *arg, weft_call *call,
                        const weft_tokenize_request *request)
{
    weft_service *const service = arg;
    const weft_opt_bool add = request->add_special_tokens;
    const weft_opt_bool parse = request->parse_special;
    weft_err err = {0};
    /* As Generate reads a text, where the request does not say otherwise. */
    const weft_status st = weft_router_tokenize(
        service->options.router, request->text, !add.set || add.value,
        parse.set && parse.value, tokenized, call, &err);
    if (st != WEFT_OK) refuse(call, st, &err);
}

static void detokenized(void *arg, const weft_err *err, weft_span text)
{
    if (err != NULL)
        refuse(arg, err->status, err);
    else
        weft_call_reply_text(arg, text);
}

static void do_detokenize(void *arg, weft_call *call,
                          const weft_detokenize_request *request)
{
    weft_service *const service = arg;
    const weft_opt_bool skip = request->skip_special_tokens;
    weft_err err = {0};
    const weft_status st = weft_router_detokenize(
        service->options.router, request->ids, request->n_ids,
        !skip.set || skip.value, detokenized, call, &err);
    if (st != WEFT_OK) refuse(call, st, &err);
}

static void aborted(void *arg, int32_t n)
{
    weft_call_reply_aborted(arg, (uint32_t)n);
}

static void do_abort(void *arg, weft_call *call,
                     const weft_abort_request *request)
{
    weft_service *const service = arg;
    weft_err err = {0};
    const weft_status st =
        weft_router_abort(service->options.router, request->request_ids,
                          request->n_request_ids, aborted, call, &err);
    if (st != WEFT_OK) refuse(call, st, &err);
}

static weft_span span_of(const char *text)
{
    return (weft_span){.data = text, .n = strlen(text)};
}

static int32_t max_context(const weft_service_options *o)
{
    const int32_t least = o->max_context_now == NULL ? 0 : *o->max_context_now;
    return least > 0 && least < o->max_context ? least : o->max_context;
}

static void do_get_model(void *arg, weft_call *call)
{
    const weft_service *const service = arg;
    const weft_model_config *const config = service->options.config;
    char hash[17] = "";
    const uint64_t known =
        service->options.view->weights_hash(service->options.view->arg);
    if (known != 0) (void)snprintf(hash, sizeof hash, "%016" PRIx64, known);
    const weft_model_info info = {
        .name = span_of(service->options.name),
        .model_type = span_of(config->model_type),
        .weights_hash = span_of(hash),
        .vocab_size = (uint32_t)config->vocab_size,
        .max_context = (uint32_t)max_context(&service->options),
        .eos_ids = config->stop_ids,
        .n_eos_ids = (size_t)config->n_stop_ids,
    };
    weft_call_reply_model(call, &info);
}

static void load_info(const weft_service *service, weft_load_info *info_out)
{
    weft_router_load requests;
    weft_router_get_load(service->options.router, &requests);
    weft_view_load_info(service->options.view, info_out);
    info_out->running = (uint32_t)requests.n_running;
    info_out->waiting = (uint32_t)requests.n_waiting;
}

static void do_get_load(void *arg, weft_call *call)
{
    weft_load_info info;
    load_info(arg, &info);
    weft_call_reply_load(call, &info);
}

static void do_get_cluster(void *arg, weft_call *call)
{
    const weft_service *const service = arg;
    const weft_view *const view = service->options.view;
    weft_arena *arena = NULL;
    weft_cluster_info info = {0};
    weft_err err = {0};
    weft_status st = weft_arena_create(CLUSTER_BYTES_MAX, &arena, &err);
    if (st == WEFT_OK) st = view->get_cluster(view->arg, arena, &info, &err);
    if (st == WEFT_OK) {
        load_info(service, &info.load);
        weft_call_reply_cluster(call, &info);
    } else {
        refuse(call, st, &err);
    }
    weft_arena_destroy(arena);
}

static void ended(void *arg, weft_status status)
{
    const weft_service *const service = arg;
    service->options.count_end(service->options.count_arg, status);
}

/* -- life ----------------------------------------------------------------- */

weft_service_ops weft_service_get_ops(void)
{
    return (weft_service_ops){
        .generate = do_generate,
        .tokenize = do_tokenize,
        .detokenize = do_detokenize,
        .abort = do_abort,
        .get_model = do_get_model,
        .get_load = do_get_load,
        .get_cluster = do_get_cluster,
        .cancel = do_cancel,
        .generate_ended = ended,
    };
}

weft_status weft_service_create(const weft_service_options *options,
                                weft_service **service_out, weft_err *err)
{
    weft_service *const service = weft_mem_new(1, sizeof *service);
    live_call *const live =
        weft_mem_new((size_t)options->max_live, sizeof *live);
    size_t n_first = 1;
    while (n_first < (size_t)options->max_live) n_first *= 2;
    int32_t *const first = weft_mem_new(n_first, sizeof *first);
    if (service == NULL || live == NULL || first == NULL) {
        weft_mem_free(service);
        weft_mem_free(live);
        weft_mem_free(first);
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for %d live calls", options->max_live);
    }
    service->options = *options;
    service->live = live;
    service->first = first;
    service->n_first = n_first;
    for (size_t i = 0; i < n_first; i++) first[i] = -1;
    *service_out = service;
    return WEFT_OK;
}

void weft_service_destroy(weft_service *service)
{
    if (service == NULL) return;
    weft_mem_free(service->live);
    weft_mem_free(service->first);
    weft_mem_free(service);
}

bool weft_service_is_wanted(void *call)
{
    return weft_call_is_wanted(call);
}

static weft_status lead_submit(void *arg, const weft_job *job)
{
    return weft_engine_submit(arg, job);
}

static weft_status lead_cancel(void *arg, uint64_t handle)
{
    return weft_engine_cancel(arg, handle);
}

weft_lead weft_service_lead(weft_engine *engine)
{
    return (weft_lead){
        .submit = lead_submit, .cancel = lead_cancel, .arg = engine};
}
