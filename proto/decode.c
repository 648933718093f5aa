#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/check.h"
#include "proto/codec.h"
#include "proto/validate.h"
#include "weft.pb-c.h"

/* A field `f` of message `m` with presence, see weft.proto. */
#define OPTIONAL(m, f)                                                         \
    {                                                                          \
        .set = (m)->_##f##_case != 0, .value = (m)->f                          \
    }

static weft_span span_of(ProtobufCBinaryData data)
{
    return (weft_span){(const char *)data.data, data.len};
}

static weft_status no_room(const weft_arena *arena, weft_err *err)
{
    if (!weft_arena_limit_hit(arena))
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory to decode the message");
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                     "the message takes more memory than one request may have");
}

/* *message_out lies in the arena. It is typed as its base; the base is the
 * first member of every message. */
static weft_status unpack(const ProtobufCMessageDescriptor *type,
                          weft_arena *arena, weft_span bytes,
                          ProtobufCMessage **message_out, weft_err *err)
{
    const uint8_t *data = (const uint8_t *)bytes.data;
    WEFT_TRY(weft_message_validate(type, data, bytes.n, err));
    ProtobufCAllocator allocator = {
        .alloc = weft_arena_alloc,
        .free = weft_arena_ignore_free,
        .allocator_data = arena,
    };
    /* protobuf-c wants an address even for nothing. */
    static const uint8_t nothing;
    *message_out = protobuf_c_message_unpack(type, &allocator, bytes.n,
                                             data != NULL ? data : &nothing);
    if (*message_out != NULL) return WEFT_OK;
    if (weft_arena_limit_hit(arena)) return no_room(arena, err);
    return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                     "the message cannot be decoded");
}

static weft_status spans_of(weft_arena *arena, const ProtobufCBinaryData *data,
                            size_t n, const weft_span **spans_out,
                            weft_err *err)
{
    weft_span *spans = weft_arena_new(arena, n, sizeof *spans);
    if (spans == NULL) return no_room(arena, err);
    for (size_t i = 0; i < n; i++) spans[i] = span_of(data[i]);
    *spans_out = spans;
    return WEFT_OK;
}

struct bias {
    int32_t id;
    int32_t order; /* as sent */
    float value;
};

static int bias_compare(const void *a, const void *b)
{
    const struct bias *x = a, *y = b;
    if (x->id != y->id) return x->id < y->id ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

/* Rising ids, the last value of each. */
static weft_status bias_of(weft_arena *arena,
                           const Weft__V1__SamplingParams *in,
                           weft_sampling_params *out, weft_err *err)
{
    const size_t n = in->n_logit_bias;
    if (n > WEFT_BIAS_ENTRIES_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "sampling_params.logit_bias has %zu entries "
                         "(allowed: at most %d)",
                         n, WEFT_BIAS_ENTRIES_MAX);
    struct bias *all = weft_arena_new(arena, n, sizeof *all);
    int32_t *ids = weft_arena_new(arena, n, sizeof *ids);
    float *values = weft_arena_new(arena, n, sizeof *values);
    if (all == NULL || ids == NULL || values == NULL)
        return no_room(arena, err);
    for (size_t i = 0; i < n; i++)
        all[i] = (struct bias){.id = in->logit_bias[i]->key,
                               .order = (int32_t)i,
                               .value = in->logit_bias[i]->value};
    if (n > 0) qsort(all, n, sizeof *all, bias_compare);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (i + 1 < n && all[i + 1].id == all[i].id) continue;
        ids[kept] = all[i].id;
        values[kept++] = all[i].value;
    }
    out->bias_ids = ids;
    out->bias = values;
    out->n_bias = kept;
    return WEFT_OK;
}

static weft_status sampling_of(weft_arena *arena,
                               const Weft__V1__SamplingParams *in,
                               weft_sampling_params *out, weft_err *err)
{
    weft_sampling_params p = {
        .temperature = OPTIONAL(in, temperature),
        .top_p = OPTIONAL(in, top_p),
        .min_p = OPTIONAL(in, min_p),
        .top_k = OPTIONAL(in, top_k),
        .frequency_penalty = OPTIONAL(in, frequency_penalty),
        .presence_penalty = OPTIONAL(in, presence_penalty),
        .repetition_penalty = OPTIONAL(in, repetition_penalty),
        .max_tokens = OPTIONAL(in, max_tokens),
        .min_tokens = OPTIONAL(in, min_tokens),
        .n_stop = in->n_stop,
        .stop_token_ids = in->stop_token_ids,
        .n_stop_token_ids = in->n_stop_token_ids,
        .skip_special_tokens = OPTIONAL(in, skip_special_tokens),
        .ignore_eos = OPTIONAL(in, ignore_eos),
        .include_stop_str = OPTIONAL(in, include_stop_str),
        .n = OPTIONAL(in, n),
        .logprobs = OPTIONAL(in, logprobs),
        .prompt_logprobs = OPTIONAL(in, prompt_logprobs),
        .seed = OPTIONAL(in, seed),
    };
    WEFT_TRY(spans_of(arena, in->stop, in->n_stop, &p.stop, err));
    WEFT_TRY(bias_of(arena, in, &p, err));
    *out = p;
    return WEFT_OK;
}

weft_status weft_decode_generate(weft_arena *arena, weft_span bytes,
                                 weft_generate_request *out, weft_err *err)
{
    ProtobufCMessage *base;
    WEFT_TRY(unpack(&weft__v1__generate_request__descriptor, arena, bytes,
                    &base, err));
    const Weft__V1__GenerateRequest *in = (const void *)base;
    weft_generate_request r = {
        .request_id = span_of(in->request_id),
        .stream = in->stream != 0,
        .priority = in->priority,
        .cache_salt = span_of(in->cache_salt),
    };
    if (in->prompt_case == WEFT__V1__GENERATE_REQUEST__PROMPT_TOKENIZED) {
        r.prompt = WEFT_PROMPT_IDS;
        r.ids = in->tokenized->input_ids;
        r.n_ids = in->tokenized->n_input_ids;
    } else if (in->prompt_case == WEFT__V1__GENERATE_REQUEST__PROMPT_TEXT) {
        r.prompt = WEFT_PROMPT_TEXT;
        r.text = span_of(in->text);
    }
    if (in->sampling_params != NULL)
        WEFT_TRY(sampling_of(arena, in->sampling_params, &r.sampling, err));
    *out = r;
    return WEFT_OK;
}

weft_status weft_decode_tokenize(weft_arena *arena, weft_span bytes,
                                 weft_tokenize_request *out, weft_err *err)
{
    ProtobufCMessage *base;
    WEFT_TRY(unpack(&weft__v1__tokenize_request__descriptor, arena, bytes,
                    &base, err));
    const Weft__V1__TokenizeRequest *in = (const void *)base;
    *out = (weft_tokenize_request){
        .text = span_of(in->text),
        .add_special_tokens = OPTIONAL(in, add_special_tokens),
        .parse_special = OPTIONAL(in, parse_special),
    };
    return WEFT_OK;
}

weft_status weft_decode_detokenize(weft_arena *arena, weft_span bytes,
                                   weft_detokenize_request *out, weft_err *err)
{
    ProtobufCMessage *base;
    WEFT_TRY(unpack(&weft__v1__detokenize_request__descriptor, arena, bytes,
                    &base, err));
    const Weft__V1__DetokenizeRequest *in = (const void *)base;
    *out = (weft_detokenize_request){
        .ids = in->ids,
        .n_ids = in->n_ids,
        .skip_special_tokens = OPTIONAL(in, skip_special_tokens),
    };
    return WEFT_OK;
}

weft_status weft_decode_abort(weft_arena *arena, weft_span bytes,
                              weft_abort_request *out, weft_err *err)
{
    ProtobufCMessage *base;
    WEFT_TRY(
        unpack(&weft__v1__abort_request__descriptor, arena, bytes, &base, err));
    const Weft__V1__AbortRequest *in = (const void *)base;
    weft_abort_request r = {.n_request_ids = in->n_request_ids};
    WEFT_TRY(spans_of(arena, in->request_ids, in->n_request_ids, &r.request_ids,
                      err));
    *out = r;
    return WEFT_OK;
}

weft_status weft_decode_empty(weft_span bytes, weft_err *err)
{
    return weft_message_validate(&weft__v1__get_load_request__descriptor,
                                 (const uint8_t *)bytes.data, bytes.n, err);
}

/* Token ids of an answer: the server's, which stay below 2^31. */
static weft_status ids_of(const char *field, const uint32_t *in, size_t n,
                          const int32_t **ids_out, weft_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (in[i] > INT32_MAX)
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "%s has the token id %u (allowed: at most %d)",
                             field, in[i], INT32_MAX);
    *ids_out = (const int32_t *)in;
    return WEFT_OK;
}

/* The top entries of all tokens, one after another. */
static weft_status tops_of(weft_arena *arena,
                           const Weft__V1__OutputLogprobs *in,
                           weft_logprobs *out, weft_err *err)
{
    size_t total = 0;
    for (size_t i = 0; i < in->n_top_logprobs; i++)
        total += in->top_logprobs[i]->n_values;
    int32_t *n_top = weft_arena_new(arena, in->n_top_logprobs, sizeof *n_top);
    float *values = weft_arena_new(arena, total, sizeof *values);
    int32_t *ids = weft_arena_new(arena, total, sizeof *ids);
    if (n_top == NULL || values == NULL || ids == NULL)
        return no_room(arena, err);
    size_t at = 0;
    for (size_t i = 0; i < in->n_top_logprobs; i++) {
        const Weft__V1__TopLogprobs *top = in->top_logprobs[i];
        if (top->n_token_ids != top->n_values || top->n_values > INT32_MAX)
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "top_logprobs has %zu values and %zu token ids",
                             top->n_values, top->n_token_ids);
        const int32_t *top_ids = NULL;
        WEFT_TRY(ids_of("top_logprobs", top->token_ids, top->n_token_ids,
                        &top_ids, err));
        if (top->n_values > 0) {
            memcpy(values + at, top->values, top->n_values * sizeof *values);
            memcpy(ids + at, top_ids, top->n_values * sizeof *ids);
        }
        n_top[i] = (int32_t)top->n_values;
        at += top->n_values;
    }
    out->n_top = n_top;
    out->top_values = values;
    out->top_ids = ids;
    return WEFT_OK;
}

static weft_status logprobs_of(weft_arena *arena,
                               const Weft__V1__OutputLogprobs *in,
                               weft_logprobs *out, weft_err *err)
{
    if (in == NULL) return WEFT_OK;
    if (in->n_token_ids != in->n_token_logprobs ||
        (in->n_top_logprobs != 0 && in->n_top_logprobs != in->n_token_logprobs))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "logprobs has %zu values, %zu token ids and %zu tops",
                         in->n_token_logprobs, in->n_token_ids,
                         in->n_top_logprobs);
    weft_logprobs l = {.n_tokens = in->n_token_logprobs,
                       .values = in->token_logprobs};
    WEFT_TRY(ids_of("logprobs", in->token_ids, in->n_token_ids, &l.ids, err));
    if (in->n_top_logprobs > 0) WEFT_TRY(tops_of(arena, in, &l, err));
    *out = l;
    return WEFT_OK;
}

static weft_status chunk_of(weft_arena *arena,
                            const Weft__V1__GenerateChunk *in, weft_chunk *out,
                            weft_err *err)
{
    *out = (weft_chunk){
        .n_ids = in->n_token_ids,
        .text = span_of(in->text),
        .prompt_tokens = in->prompt_tokens,
        .completion_tokens = in->completion_tokens,
        .cached_tokens = in->cached_tokens,
    };
    WEFT_TRY(ids_of("chunk", in->token_ids, in->n_token_ids, &out->ids, err));
    return logprobs_of(arena, in->output_logprobs, &out->logprobs, err);
}

static weft_status complete_of(weft_arena *arena,
                               const Weft__V1__GenerateComplete *in,
                               weft_complete *out, weft_err *err)
{
    *out = (weft_complete){
        .n_ids = in->n_output_ids,
        .text = span_of(in->text),
        .finish_reason = span_of(in->finish_reason),
        .prompt_tokens = in->prompt_tokens,
        .completion_tokens = in->completion_tokens,
        .cached_tokens = in->cached_tokens,
    };
    const int32_t *matched = NULL;
    switch (in->matched_stop_case) {
    case WEFT__V1__GENERATE_COMPLETE__MATCHED_STOP_MATCHED_TOKEN_ID:
        WEFT_TRY(ids_of("complete", &in->matched_token_id, 1, &matched, err));
        out->matched = WEFT_MATCHED_TOKEN;
        out->matched_token = *matched;
        break;
    case WEFT__V1__GENERATE_COMPLETE__MATCHED_STOP_MATCHED_STOP_STR:
        out->matched = WEFT_MATCHED_STRING;
        out->matched_string = span_of(in->matched_stop_str);
        break;
    default: break;
    }
    WEFT_TRY(
        ids_of("complete", in->output_ids, in->n_output_ids, &out->ids, err));
    WEFT_TRY(logprobs_of(arena, in->output_logprobs, &out->logprobs, err));
    return logprobs_of(arena, in->input_logprobs, &out->input_logprobs, err);
}

weft_status weft_decode_response(weft_arena *arena, weft_span bytes,
                                 weft_generate_response *out, weft_err *err)
{
    ProtobufCMessage *base;
    weft_generate_response r = {.is_complete = false};
    WEFT_TRY(unpack(&weft__v1__generate_response__descriptor, arena, bytes,
                    &base, err));
    const Weft__V1__GenerateResponse *in = (const void *)base;
    switch (in->response_case) {
    case WEFT__V1__GENERATE_RESPONSE__RESPONSE_CHUNK:
        WEFT_TRY(chunk_of(arena, in->chunk, &r.chunk, err));
        break;
    case WEFT__V1__GENERATE_RESPONSE__RESPONSE_COMPLETE:
        r.is_complete = true;
        WEFT_TRY(complete_of(arena, in->complete, &r.complete, err));
        break;
    default:
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "an answer is neither chunk nor complete");
    }
    *out = r;
    return WEFT_OK;
}

weft_status weft_decode_model(weft_arena *arena, weft_span bytes,
                              weft_model_info *out, weft_err *err)
{
    ProtobufCMessage *base;
    WEFT_TRY(unpack(&weft__v1__get_model_response__descriptor, arena, bytes,
                    &base, err));
    const Weft__V1__GetModelResponse *in = (const void *)base;
    weft_model_info model = {
        .name = span_of(in->name),
        .model_type = span_of(in->model_type),
        .weights_hash = span_of(in->weights_hash),
        .vocab_size = in->vocab_size,
        .max_context = in->max_context,
        .n_eos_ids = in->n_eos_token_ids,
    };
    WEFT_TRY(ids_of("eos_token_ids", in->eos_token_ids, in->n_eos_token_ids,
                    &model.eos_ids, err));
    *out = model;
    return WEFT_OK;
}

weft_status weft_decode_load(weft_arena *arena, weft_span bytes,
                             weft_load_info *out, weft_err *err)
{
    ProtobufCMessage *base;
    WEFT_TRY(unpack(&weft__v1__get_load_response__descriptor, arena, bytes,
                    &base, err));
    const Weft__V1__GetLoadResponse *in = (const void *)base;
    weft_load_info load = {
        .running = in->num_running_reqs,
        .waiting = in->num_waiting_reqs,
        .kv_bytes_used = in->kv_bytes_used,
        .kv_bytes_total = in->kv_bytes_total,
        .n_kinds = in->n_pages_used,
    };
    if (in->n_pages_used > WEFT_LOAD_KINDS_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "pages_used has %zu kinds (allowed: at most %d)",
                         in->n_pages_used, WEFT_LOAD_KINDS_MAX);
    for (size_t i = 0; i < load.n_kinds; i++) {
        const char *kind = in->pages_used[i]->key;
        const size_t n = strlen(kind);
        if (n >= sizeof load.pages_used[i].kind)
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "pages_used has a kind of %zu bytes", n);
        memcpy(load.pages_used[i].kind, kind, n + 1);
        load.pages_used[i].pages = in->pages_used[i]->value;
    }
    *out = load;
    return WEFT_OK;
}
