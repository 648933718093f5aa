#include <string.h>

#include "node/base/mem.h"
#include "proto/codec.h"
#include "weft.pb-c.h"

/* protobuf-c's structs are written by its decoder too, so its pointers are not
 * const; packing only reads through them. */
static ProtobufCBinaryData data_of(weft_span span)
{
    union {
        const char *from;
        uint8_t *to;
    } data = {.from = span.data};
    return (ProtobufCBinaryData){.len = span.n, .data = data.to};
}

static uint32_t *numbers_of(const int32_t *ids)
{
    union {
        const int32_t *from;
        uint32_t *to;
    } data = {.from = ids};
    return data.to;
}

static uint32_t *unsigned_of(const uint32_t *ids)
{
    union {
        const uint32_t *from;
        uint32_t *to;
    } data = {.from = ids};
    return data.to;
}

static float *floats_of(const float *values)
{
    union {
        const float *from;
        float *to;
    } data = {.from = values};
    return data.to;
}

static weft_status no_memory(weft_err *err)
{
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                     "no memory to encode a message");
}

static weft_status pack(const ProtobufCMessage *message, weft_place place,
                        weft_err *err)
{
    const size_t n = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = place.fn(place.arg, n);
    if (bytes == NULL) return no_memory(err);
    if (n > 0) (void)protobuf_c_message_pack(message, bytes);
    return WEFT_OK;
}

/* An OutputLogprobs and what it points to. */
struct logprobs {
    Weft__V1__OutputLogprobs base;
    Weft__V1__TopLogprobs *tops;
};

static weft_status logprobs_init(struct logprobs *out, const weft_logprobs *in,
                                 weft_err *err)
{
    out->base = (Weft__V1__OutputLogprobs)WEFT__V1__OUTPUT_LOGPROBS__INIT;
    out->tops = NULL;
    out->base.n_token_logprobs = in->n_tokens;
    out->base.token_logprobs = floats_of(in->values);
    out->base.n_token_ids = in->n_tokens;
    out->base.token_ids = numbers_of(in->ids);
    if (in->n_top == NULL || in->n_tokens == 0) return WEFT_OK;

    out->base.top_logprobs =
        weft_mem_new(in->n_tokens, sizeof *out->base.top_logprobs);
    out->tops = weft_mem_new(in->n_tokens, sizeof *out->tops);
    if (out->base.top_logprobs == NULL || out->tops == NULL)
        return no_memory(err);
    size_t at = 0;
    for (size_t i = 0; i < in->n_tokens; i++) {
        const size_t n = (size_t)in->n_top[i];
        out->tops[i] = (Weft__V1__TopLogprobs)WEFT__V1__TOP_LOGPROBS__INIT;
        out->base.top_logprobs[i] = &out->tops[i];
        if (n == 0) continue; /* the arrays may be NULL */
        out->tops[i].n_values = n;
        out->tops[i].values = floats_of(in->top_values + at);
        out->tops[i].n_token_ids = n;
        out->tops[i].token_ids = numbers_of(in->top_ids + at);
        at += n;
    }
    out->base.n_top_logprobs = in->n_tokens;
    return WEFT_OK;
}

static void logprobs_deinit(struct logprobs *logprobs)
{
    weft_mem_free(logprobs->base.top_logprobs);
    weft_mem_free(logprobs->tops);
}

weft_status weft_encode_chunk(const weft_chunk *chunk, weft_place place,
                              weft_err *err)
{
    Weft__V1__GenerateChunk m = WEFT__V1__GENERATE_CHUNK__INIT;
    m.n_token_ids = chunk->n_ids;
    m.token_ids = numbers_of(chunk->ids);
    m.prompt_tokens = chunk->prompt_tokens;
    m.completion_tokens = chunk->completion_tokens;
    m.cached_tokens = chunk->cached_tokens;
    m.text = data_of(chunk->text);

    struct logprobs logprobs;
    weft_status st = logprobs_init(&logprobs, &chunk->logprobs, err);
    if (chunk->logprobs.n_tokens > 0) m.output_logprobs = &logprobs.base;

    Weft__V1__GenerateResponse response = WEFT__V1__GENERATE_RESPONSE__INIT;
    response.response_case = WEFT__V1__GENERATE_RESPONSE__RESPONSE_CHUNK;
    response.chunk = &m;
    if (st == WEFT_OK) st = pack(&response.base, place, err);
    logprobs_deinit(&logprobs);
    return st;
}

weft_status weft_encode_complete(const weft_complete *complete,
                                 weft_place place, weft_err *err)
{
    Weft__V1__GenerateComplete m = WEFT__V1__GENERATE_COMPLETE__INIT;
    m.n_output_ids = complete->n_ids;
    m.output_ids = numbers_of(complete->ids);
    m.finish_reason = data_of(complete->finish_reason);
    m.prompt_tokens = complete->prompt_tokens;
    m.completion_tokens = complete->completion_tokens;
    m.cached_tokens = complete->cached_tokens;
    m.text = data_of(complete->text);
    if (complete->matched == WEFT_MATCHED_TOKEN) {
        m.matched_stop_case =
            WEFT__V1__GENERATE_COMPLETE__MATCHED_STOP_MATCHED_TOKEN_ID;
        m.matched_token_id = (uint32_t)complete->matched_token;
    } else if (complete->matched == WEFT_MATCHED_STRING) {
        m.matched_stop_case =
            WEFT__V1__GENERATE_COMPLETE__MATCHED_STOP_MATCHED_STOP_STR;
        m.matched_stop_str = data_of(complete->matched_string);
    }

    struct logprobs output, input;
    weft_status st = logprobs_init(&output, &complete->logprobs, err);
    const weft_status st_input =
        logprobs_init(&input, &complete->input_logprobs, err);
    if (st == WEFT_OK) st = st_input;
    if (complete->logprobs.n_tokens > 0) m.output_logprobs = &output.base;
    if (complete->input_logprobs.n_tokens > 0) m.input_logprobs = &input.base;

    Weft__V1__GenerateResponse response = WEFT__V1__GENERATE_RESPONSE__INIT;
    response.response_case = WEFT__V1__GENERATE_RESPONSE__RESPONSE_COMPLETE;
    response.complete = &m;
    if (st == WEFT_OK) st = pack(&response.base, place, err);
    logprobs_deinit(&output);
    logprobs_deinit(&input);
    return st;
}

weft_status weft_encode_tokens(const int32_t *ids, size_t n_ids,
                               weft_place place, weft_err *err)
{
    Weft__V1__TokenizeResponse m = WEFT__V1__TOKENIZE_RESPONSE__INIT;
    m.n_ids = n_ids;
    m.ids = numbers_of(ids);
    return pack(&m.base, place, err);
}

weft_status weft_encode_text(weft_span text, weft_place place, weft_err *err)
{
    Weft__V1__DetokenizeResponse m = WEFT__V1__DETOKENIZE_RESPONSE__INIT;
    m.text = data_of(text);
    return pack(&m.base, place, err);
}

weft_status weft_encode_model(const weft_model_info *model, weft_place place,
                              weft_err *err)
{
    Weft__V1__GetModelResponse m = WEFT__V1__GET_MODEL_RESPONSE__INIT;
    m.name = data_of(model->name);
    m.model_type = data_of(model->model_type);
    m.weights_hash = data_of(model->weights_hash);
    m.vocab_size = model->vocab_size;
    m.max_context = model->max_context;
    m.n_eos_token_ids = model->n_eos_ids;
    m.eos_token_ids = numbers_of(model->eos_ids);
    return pack(&m.base, place, err);
}

weft_status weft_encode_load(const weft_load_info *load, weft_place place,
                             weft_err *err)
{
    typedef Weft__V1__GetLoadResponse__PagesUsedEntry entry_type;
    Weft__V1__GetLoadResponse m = WEFT__V1__GET_LOAD_RESPONSE__INIT;
    m.num_running_reqs = load->running;
    m.num_waiting_reqs = load->waiting;
    m.kv_bytes_used = load->kv_bytes_used;
    m.kv_bytes_total = load->kv_bytes_total;

    entry_type entries[WEFT_LOAD_KINDS_MAX];
    entry_type *pointers[WEFT_LOAD_KINDS_MAX];
    char kinds[WEFT_LOAD_KINDS_MAX][sizeof load->pages_used[0].kind];
    for (size_t i = 0; i < load->n_kinds; i++) {
        memcpy(kinds[i], load->pages_used[i].kind, sizeof kinds[i]);
        weft__v1__get_load_response__pages_used_entry__init(&entries[i]);
        entries[i].key = kinds[i];
        entries[i].value = load->pages_used[i].pages;
        pointers[i] = &entries[i];
    }
    m.n_pages_used = load->n_kinds;
    m.pages_used = pointers;
    return pack(&m.base, place, err);
}

weft_status weft_encode_aborted(uint32_t aborted, weft_place place,
                                weft_err *err)
{
    Weft__V1__AbortResponse m = WEFT__V1__ABORT_RESPONSE__INIT;
    m.aborted = aborted;
    return pack(&m.base, place, err);
}

/* Field `f` of message `m` from an optional; N is its upper-case name. */
#define SET(m, f, N, from)                                                     \
    do {                                                                       \
        if ((from).set) {                                                      \
            (m)->_##f##_case = WEFT__V1__SAMPLING_PARAMS___##N##_##N;          \
            (m)->f = (from).value;                                             \
        }                                                                      \
    } while (0)

static void scalars_of(Weft__V1__SamplingParams *m,
                       const weft_sampling_params *in)
{
    SET(m, temperature, TEMPERATURE, in->temperature);
    SET(m, top_p, TOP_P, in->top_p);
    SET(m, min_p, MIN_P, in->min_p);
    SET(m, top_k, TOP_K, in->top_k);
    SET(m, frequency_penalty, FREQUENCY_PENALTY, in->frequency_penalty);
    SET(m, presence_penalty, PRESENCE_PENALTY, in->presence_penalty);
    SET(m, repetition_penalty, REPETITION_PENALTY, in->repetition_penalty);
    SET(m, max_tokens, MAX_TOKENS, in->max_tokens);
    SET(m, min_tokens, MIN_TOKENS, in->min_tokens);
    SET(m, skip_special_tokens, SKIP_SPECIAL_TOKENS, in->skip_special_tokens);
    SET(m, ignore_eos, IGNORE_EOS, in->ignore_eos);
    SET(m, include_stop_str, INCLUDE_STOP_STR, in->include_stop_str);
    SET(m, n, N, in->n);
    SET(m, logprobs, LOGPROBS, in->logprobs);
    SET(m, prompt_logprobs, PROMPT_LOGPROBS, in->prompt_logprobs);
    SET(m, seed, SEED, in->seed);
}

/* What a request's SamplingParams points to. */
struct lists {
    ProtobufCBinaryData *stop;
    Weft__V1__SamplingParams__LogitBiasEntry *bias;
    Weft__V1__SamplingParams__LogitBiasEntry **bias_pointers;
};

static weft_status lists_init(struct lists *lists,
                              const weft_sampling_params *in,
                              Weft__V1__SamplingParams *m, weft_err *err)
{
    lists->stop = weft_mem_new(in->n_stop, sizeof *lists->stop);
    lists->bias = weft_mem_new(in->n_bias, sizeof *lists->bias);
    lists->bias_pointers =
        weft_mem_new(in->n_bias, sizeof(lists->bias_pointers[0]));
    if (lists->stop == NULL || lists->bias == NULL ||
        lists->bias_pointers == NULL)
        return no_memory(err);
    for (size_t i = 0; i < in->n_stop; i++)
        lists->stop[i] = data_of(in->stop[i]);
    for (size_t i = 0; i < in->n_bias; i++) {
        lists->bias[i] = (Weft__V1__SamplingParams__LogitBiasEntry)
            WEFT__V1__SAMPLING_PARAMS__LOGIT_BIAS_ENTRY__INIT;
        lists->bias[i].key = in->bias_ids[i];
        lists->bias[i].value = in->bias[i];
        lists->bias_pointers[i] = &lists->bias[i];
    }
    m->n_stop = in->n_stop;
    m->stop = lists->stop;
    m->n_logit_bias = in->n_bias;
    m->logit_bias = lists->bias_pointers;
    m->n_stop_token_ids = in->n_stop_token_ids;
    m->stop_token_ids = unsigned_of(in->stop_token_ids);
    return WEFT_OK;
}

weft_status weft_encode_generate(const weft_generate_request *request,
                                 weft_place place, weft_err *err)
{
    Weft__V1__TokenizedPrompt tokenized = WEFT__V1__TOKENIZED_PROMPT__INIT;
    Weft__V1__SamplingParams sampling = WEFT__V1__SAMPLING_PARAMS__INIT;
    Weft__V1__GenerateRequest m = WEFT__V1__GENERATE_REQUEST__INIT;
    m.request_id = data_of(request->request_id);
    m.stream = request->stream;
    m.priority = request->priority;
    m.cache_salt = data_of(request->cache_salt);
    m.sampling_params = &sampling;
    if (request->prompt == WEFT_PROMPT_IDS) {
        m.prompt_case = WEFT__V1__GENERATE_REQUEST__PROMPT_TOKENIZED;
        m.tokenized = &tokenized;
        tokenized.n_input_ids = request->n_ids;
        tokenized.input_ids = unsigned_of(request->ids);
    } else if (request->prompt == WEFT_PROMPT_TEXT) {
        m.prompt_case = WEFT__V1__GENERATE_REQUEST__PROMPT_TEXT;
        m.text = data_of(request->text);
    }
    scalars_of(&sampling, &request->sampling);

    struct lists lists;
    weft_status st = lists_init(&lists, &request->sampling, &sampling, err);
    if (st == WEFT_OK) st = pack(&m.base, place, err);
    weft_mem_free(lists.stop);
    weft_mem_free(lists.bias);
    weft_mem_free(lists.bias_pointers);
    return st;
}
