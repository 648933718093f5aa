#include "router/admit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/hash.h"
#include "node/base/str.h"

/* Below this a scaled logit leaves the range of a float; 0 is greedy. */
static const float TEMPERATURE_MIN = 1e-6F, TEMPERATURE_MAX = 100.0F;
static const float REPETITION_MIN = 0.01F, REPETITION_MAX = 100.0F;
static const float PENALTY_MAX = 2.0F, BIAS_MAX = 100.0F;

static weft_status no_memory(const weft_arena *arena, const char *what,
                             weft_err *err)
{
    if (weft_arena_limit_hit(arena))
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "%s: the request needs more than the %d bytes that "
                         "one may hold",
                         what, WEFT_REQUEST_ARENA_MAX);
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "%s: out of memory", what);
}

/* `value` in [min, max]; NaN is in no range. */
static weft_status check_f32(const char *field, float value, float min,
                             float max, weft_err *err)
{
    if (value >= min && value <= max) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                     "%s is %g: allowed is %g to %g", field, (double)value,
                     (double)min, (double)max);
}

static weft_status admit_temperature(weft_opt_f32 asked, float unset,
                                     float *value_out, weft_err *err)
{
    const float value = asked.set ? asked.value : unset;
    if (value == 0.0F) {
        *value_out = 0.0F; /* also for -0 */
        return WEFT_OK;
    }
    if (!(value >= TEMPERATURE_MIN && value <= TEMPERATURE_MAX))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "temperature is %g: allowed is 0 (greedy) or %g to %g",
                         (double)value, (double)TEMPERATURE_MIN,
                         (double)TEMPERATURE_MAX);
    *value_out = value;
    return WEFT_OK;
}

static float f32_or(weft_opt_f32 asked, float unset)
{
    return asked.set ? asked.value : unset;
}

static weft_status admit_filters(const weft_admit_limits *limits,
                                 const weft_request *request,
                                 weft_sampling *sampling_out, weft_err *err)
{
    weft_sampling *const s = sampling_out;
    WEFT_TRY(admit_temperature(request->temperature, limits->temperature,
                               &s->temperature, err));
    s->top_p = f32_or(request->top_p, limits->top_p);
    WEFT_TRY(check_f32("top_p", s->top_p, 0.0F, 1.0F, err));
    s->min_p = f32_or(request->min_p, 0.0F);
    WEFT_TRY(check_f32("min_p", s->min_p, 0.0F, 1.0F, err));
    s->top_k = request->top_k.set ? request->top_k.value : limits->top_k;
    /* Every token is a candidate then: the same as no filter. */
    if (s->top_k >= (uint32_t)limits->vocab_size) s->top_k = 0;

    s->frequency_penalty = f32_or(request->frequency_penalty, 0.0F);
    WEFT_TRY(check_f32("frequency_penalty", s->frequency_penalty, -PENALTY_MAX,
                       PENALTY_MAX, err));
    s->presence_penalty = f32_or(request->presence_penalty, 0.0F);
    WEFT_TRY(check_f32("presence_penalty", s->presence_penalty, -PENALTY_MAX,
                       PENALTY_MAX, err));
    s->repetition_penalty =
        f32_or(request->repetition_penalty, limits->repetition_penalty);
    return check_f32("repetition_penalty", s->repetition_penalty,
                     REPETITION_MIN, REPETITION_MAX, err);
}

typedef struct bias_entry {
    int32_t id, place;
    float value;
} bias_entry;

static int by_id_then_place(const void *a, const void *b)
{
    const bias_entry *const x = a, *const y = b;
    if (x->id != y->id) return x->id < y->id ? -1 : 1;
    return x->place < y->place ? -1 : 1;
}

static weft_status check_bias(const weft_admit_limits *limits, int32_t id,
                              float value, weft_err *err)
{
    if (id < 0 || id >= limits->vocab_size)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "logit_bias names token %d: token ids are 0 to %d", id,
                         limits->vocab_size - 1);
    if (!(value >= -BIAS_MAX && value <= BIAS_MAX))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "logit_bias of token %d is %g: allowed is %g to %g",
                         id, (double)value, (double)-BIAS_MAX,
                         (double)BIAS_MAX);
    return WEFT_OK;
}

static weft_status admit_bias(const weft_admit_limits *limits,
                              const weft_request *request, weft_arena *arena,
                              weft_sampling *sampling_out, weft_err *err)
{
    if (request->n_bias == 0) return WEFT_OK;
    if (request->n_bias > WEFT_BIAS_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "logit_bias has %zu entries: allowed are at most %d",
                         request->n_bias, WEFT_BIAS_MAX);
    bias_entry sorted[WEFT_BIAS_MAX];
    const int32_t n = (int32_t)request->n_bias;
    for (int32_t i = 0; i < n; i++) {
        WEFT_TRY(
            check_bias(limits, request->bias_ids[i], request->bias[i], err));
        sorted[i] = (bias_entry){
            .id = request->bias_ids[i], .place = i, .value = request->bias[i]};
    }
    qsort(sorted, (size_t)n, sizeof sorted[0], by_id_then_place);

    int32_t *const ids = weft_arena_new(arena, (size_t)n, sizeof *ids);
    float *const bias = weft_arena_new(arena, (size_t)n, sizeof *bias);
    if (ids == NULL || bias == NULL) return no_memory(arena, "logit_bias", err);
    int32_t used = 0;
    for (int32_t i = 0; i < n; i++) {
        if (used == 0 || ids[used - 1] != sorted[i].id) used++;
        ids[used - 1] = sorted[i].id;
        bias[used - 1] = sorted[i].value;
    }
    sampling_out->bias_ids = ids;
    sampling_out->bias = bias;
    sampling_out->n_bias = used;
    return WEFT_OK;
}

static bool among(int32_t id, const int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

/* The model's end tokens unless ignore_eos, then the request's own. */
static weft_status admit_stop_ids(const weft_admit_limits *limits,
                                  const weft_request *request,
                                  weft_arena *arena, weft_job *job_out,
                                  weft_err *err)
{
    const bool ignore_eos =
        request->ignore_eos.set && request->ignore_eos.value;
    const int32_t n_model = ignore_eos ? 0 : limits->n_stop_ids;
    if (request->n_stop_token_ids > WEFT_REQUEST_STOP_IDS_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "stop_token_ids has %zu ids: allowed are at most %d",
                         request->n_stop_token_ids, WEFT_REQUEST_STOP_IDS_MAX);
    const int32_t n_own = (int32_t)request->n_stop_token_ids;
    for (int32_t i = 0; i < n_own; i++)
        if (request->stop_token_ids[i] >= (uint32_t)limits->vocab_size)
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "stop_token_ids holds %u: token ids are 0 to %d",
                             request->stop_token_ids[i],
                             limits->vocab_size - 1);
    job_out->stop_ids = limits->stop_ids;
    job_out->n_stop_ids = n_model;
    if (n_own == 0) return WEFT_OK;

    int32_t *const ids =
        weft_arena_new(arena, (size_t)n_model + (size_t)n_own, sizeof *ids);
    if (ids == NULL) return no_memory(arena, "stop_token_ids", err);
    int32_t n = n_model;
    if (n > 0) memcpy(ids, limits->stop_ids, (size_t)n * sizeof *ids);
    for (int32_t i = 0; i < n_own; i++) {
        const int32_t id = (int32_t)request->stop_token_ids[i];
        if (!among(id, ids, n)) ids[n++] = id;
    }
    job_out->stop_ids = ids;
    job_out->n_stop_ids = n;
    return WEFT_OK;
}

static weft_status check_stop(const weft_span *stop, size_t place,
                              weft_err *err)
{
    if (stop->n == 0)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "stop[%zu] is empty: allowed are 1 to %d bytes", place,
                         WEFT_REQUEST_STOP_BYTES_MAX);
    if (stop->n > WEFT_REQUEST_STOP_BYTES_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "stop[%zu] has %zu bytes: allowed are 1 to %d", place,
                         stop->n, WEFT_REQUEST_STOP_BYTES_MAX);
    if (!weft_utf8_valid(stop->data, stop->n))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "stop[%zu] is not UTF-8",
                         place);
    if (memchr(stop->data, '\0', stop->n) != NULL)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "stop[%zu] holds a NUL: allowed is any other "
                         "character",
                         place);
    return WEFT_OK;
}

static weft_status admit_stops(const weft_admit_limits *limits,
                               const weft_request *request, weft_arena *arena,
                               weft_admitted *admitted_out, weft_err *err)
{
    const size_t n = request->n_stop;
    if (n == 0) return WEFT_OK;
    if (n > WEFT_REQUEST_STOPS_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "stop has %zu strings: allowed are at most %d", n,
                         WEFT_REQUEST_STOPS_MAX);
    for (size_t i = 0; i < n; i++)
        WEFT_TRY(check_stop(&request->stop[i], i, err));
    if (limits->tokenizer == NULL)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "stop has %zu strings: this model has no "
                         "tokenizer.json, allowed are stop_token_ids",
                         n);
    const char **const stop = weft_arena_new(arena, n, sizeof *stop);
    if (stop == NULL) return no_memory(arena, "stop", err);
    for (size_t i = 0; i < n; i++) {
        stop[i] = weft_arena_copy_text(arena, request->stop[i].data,
                                       request->stop[i].n);
        if (stop[i] == NULL) return no_memory(arena, "stop", err);
    }
    admitted_out->stop = stop;
    admitted_out->n_stop = (int32_t)n;
    return WEFT_OK;
}

/* A request without an id gets one that no other has, and with it a seed. */
static weft_status admit_id(const weft_request *request, weft_arena *arena,
                            weft_admitted *admitted_out, weft_err *err)
{
    weft_span id = request->request_id;
    char made[32];
    if (id.n > WEFT_REQUEST_ID_BYTES_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "request_id has %zu bytes: allowed are at most %d",
                         id.n, WEFT_REQUEST_ID_BYTES_MAX);
    if (!weft_utf8_valid(id.data, id.n))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "request_id is not UTF-8");
    if (id.n == 0) {
        const int n = snprintf(made, sizeof made, "weft-%016llx",
                               (unsigned long long)request->serial);
        id = (weft_span){.data = made, .n = (size_t)n};
    }
    admitted_out->request_id.data = weft_arena_copy_text(arena, id.data, id.n);
    admitted_out->request_id.n = id.n;
    if (admitted_out->request_id.data == NULL)
        return no_memory(arena, "request_id", err);
    admitted_out->job.sampling.seed =
        request->seed.set
            ? request->seed.value
            : weft_hash_mix(weft_hash_fnv(WEFT_FNV_START, id.data, id.n));
    return WEFT_OK;
}

static weft_status admit_top(const char *field, weft_opt_u32 asked,
                             int32_t vocab_size, int32_t *top_out,
                             weft_err *err)
{
    const uint32_t most = vocab_size < WEFT_LOGPROBS_MAX
                              ? (uint32_t)vocab_size
                              : (uint32_t)WEFT_LOGPROBS_MAX;
    if (asked.set && asked.value > most)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%s is %u: allowed is 0 to %u", field, asked.value,
                         most);
    *top_out = asked.set ? (int32_t)asked.value : -1;
    return WEFT_OK;
}

/* What can be said of max_tokens and min_tokens before the prompt is known. */
static weft_status admit_lengths(const weft_admit_limits *limits,
                                 const weft_request *request,
                                 weft_admitted *admitted_out, weft_err *err)
{
    const weft_opt_u32 most = request->max_tokens, least = request->min_tokens;
    const uint32_t room = (uint32_t)limits->max_context - 1U;
    if (most.set && (most.value == 0 || most.value > room))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "max_tokens is %u: allowed is 1 to %u, with "
                         "max_context %d less the prompt",
                         most.value, room, limits->max_context);
    const uint32_t bound = most.set ? most.value : room;
    if (least.set && least.value > bound)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "min_tokens is %u: allowed is 0 to %u (%s)",
                         least.value, bound,
                         most.set ? "max_tokens" : "max_context less one");
    admitted_out->max_tokens_set = most.set;
    admitted_out->job.max_tokens = most.set ? (int32_t)most.value : 0;
    admitted_out->job.min_tokens = least.set ? (int32_t)least.value : 0;
    return WEFT_OK;
}

static weft_status check_n(weft_opt_u32 n, weft_err *err)
{
    if (!n.set || n.value == 1) return WEFT_OK;
    if (n.value == 0 || n.value > WEFT_REQUEST_N_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "n is %u: allowed is 1",
                         n.value);
    return WEFT_FAIL(err, WEFT_UNIMPLEMENTED,
                     "n is %u: several answers to one request are not built, "
                     "allowed is 1",
                     n.value);
}

static weft_status check_text(const weft_admit_limits *limits, weft_span text,
                              weft_err *err)
{
    if (limits->tokenizer == NULL)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "text: this model has no tokenizer.json, allowed is "
                         "tokenized.input_ids");
    if (text.n == 0)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "text is empty: a prompt needs at least one token");
    const size_t least =
        weft_tokenizer_tokens_at_least(limits->tokenizer, text.n);
    if (least >= (size_t)limits->max_context)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "text has %zu bytes, at least %zu tokens: allowed is "
                         "1 to %d tokens with max_context %d",
                         text.n, least, limits->max_context - 1,
                         limits->max_context);
    if (!weft_utf8_valid(text.data, text.n))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "text is not UTF-8");
    return WEFT_OK;
}

/* With the context that holds at this moment. */
static weft_admit_limits limits_now(const weft_admit_limits *limits)
{
    weft_admit_limits now = *limits;
    const int32_t least =
        limits->max_context_now == NULL ? 0 : *limits->max_context_now;
    if (least > 0 && least < now.max_context) now.max_context = least;
    return now;
}

weft_status weft_admit_request(const weft_admit_limits *given,
                               const weft_request *request, weft_arena *arena,
                               weft_admitted *admitted_out, weft_err *err)
{
    const weft_admit_limits now = limits_now(given), *const limits = &now;
    weft_admitted a = {
        .stream = request->stream,
        .skip_special_tokens = !request->skip_special_tokens.set ||
                               request->skip_special_tokens.value,
        .include_stop_str =
            request->include_stop_str.set && request->include_stop_str.value,
    };
    a.job.deadline_ns = request->deadline_ns;
    a.job.priority = request->priority;

    if (request->has_ids == request->has_text)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "prompt: allowed is exactly one of tokenized and "
                         "text, %s",
                         request->has_ids ? "both are set" : "none is set");
    WEFT_TRY(check_n(request->n, err));
    WEFT_TRY(admit_lengths(limits, request, &a, err));
    WEFT_TRY(admit_filters(limits, request, &a.job.sampling, err));
    WEFT_TRY(admit_top("logprobs", request->logprobs, limits->vocab_size,
                       &a.job.logprobs, err));
    WEFT_TRY(admit_top("prompt_logprobs", request->prompt_logprobs,
                       limits->vocab_size, &a.job.prompt_logprobs, err));
    if (request->has_text) WEFT_TRY(check_text(limits, request->text, err));

    WEFT_TRY(admit_id(request, arena, &a, err));
    WEFT_TRY(admit_bias(limits, request, arena, &a.job.sampling, err));
    WEFT_TRY(admit_stop_ids(limits, request, arena, &a.job, err));
    WEFT_TRY(admit_stops(limits, request, arena, &a, err));
    if (request->has_ids)
        WEFT_TRY(weft_admit_prompt(limits, request->ids, request->n_ids, arena,
                                   &a, err));
    *admitted_out = a;
    return WEFT_OK;
}

static weft_status check_ids(const weft_admit_limits *limits,
                             const uint32_t *ids, size_t n, weft_err *err)
{
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= (uint32_t)limits->vocab_size)
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "prompt token %zu is %u: token ids are 0 to %d", i,
                             ids[i], limits->vocab_size - 1);
        if (among((int32_t)ids[i], limits->suppressed_ids,
                  limits->n_suppressed_ids))
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "prompt token %zu is %u, which stands for image "
                             "or audio input: allowed are text tokens",
                             i, ids[i]);
    }
    return WEFT_OK;
}

/* What the context leaves, and whether the request keeps to it. */
static weft_status resolve_lengths(const weft_admit_limits *limits, size_t n,
                                   weft_admitted *admitted_io, weft_err *err)
{
    weft_job *const job = &admitted_io->job;
    if (n == 0)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "prompt has 0 tokens: allowed is 1 to %d with "
                         "max_context %d",
                         limits->max_context - 1, limits->max_context);
    if (n >= (size_t)limits->max_context)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "prompt has %zu tokens: allowed is 1 to %d with "
                         "max_context %d",
                         n, limits->max_context - 1, limits->max_context);
    const int32_t left = limits->max_context - (int32_t)n;
    if (!admitted_io->max_tokens_set)
        job->max_tokens =
            left < WEFT_MAX_TOKENS_DEFAULT ? left : WEFT_MAX_TOKENS_DEFAULT;
    if (job->max_tokens > left)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "max_tokens is %d: allowed is 1 to %d, what "
                         "max_context %d leaves after a prompt of %zu tokens",
                         job->max_tokens, left, limits->max_context, n);
    if (job->min_tokens > job->max_tokens)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "min_tokens is %d: allowed is 0 to %d after a prompt "
                         "of %zu tokens",
                         job->min_tokens, job->max_tokens, n);
    return WEFT_OK;
}

static int64_t logprob_bytes(int32_t top, int64_t n_tokens)
{
    if (top < 0) return 0;
    return n_tokens * (int64_t)(sizeof(float) + sizeof(void *) +
                                (size_t)top * sizeof(weft_logprob));
}

static weft_status check_logprob_bytes(weft_admitted *admitted_io, size_t n,
                                       weft_err *err)
{
    const weft_job *const job = &admitted_io->job;
    const int64_t answer = logprob_bytes(job->logprobs, job->max_tokens);
    const int64_t prompt = logprob_bytes(job->prompt_logprobs, (int64_t)n);
    if (answer > WEFT_LOGPROB_BYTES_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "logprobs is %d: with max_tokens %d they take %lld "
                         "bytes, allowed are %d a request",
                         job->logprobs, job->max_tokens, (long long)answer,
                         WEFT_LOGPROB_BYTES_MAX);
    if (prompt > WEFT_LOGPROB_BYTES_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "prompt_logprobs is %d: with %zu prompt tokens they "
                         "take %lld bytes, allowed are %d a request",
                         job->prompt_logprobs, n, (long long)prompt,
                         WEFT_LOGPROB_BYTES_MAX);
    admitted_io->logprob_bytes = answer + prompt;
    return WEFT_OK;
}

/* Also of the token at hand, which passes the stop strings. */
static int64_t text_bytes(const weft_admit_limits *limits, int32_t max_tokens)
{
    if (limits->tokenizer == NULL) return 0;
    return ((int64_t)max_tokens + 1) *
           (int64_t)weft_tokenizer_longest_text_bytes(limits->tokenizer);
}

weft_status weft_admit_prompt(const weft_admit_limits *given,
                              const uint32_t *ids, size_t n, weft_arena *arena,
                              weft_admitted *admitted_io, weft_err *err)
{
    const weft_admit_limits now = limits_now(given), *const limits = &now;
    weft_admitted a = *admitted_io;
    WEFT_TRY(resolve_lengths(limits, n, &a, err));
    WEFT_TRY(check_ids(limits, ids, n, err));
    WEFT_TRY(check_logprob_bytes(&a, n, err));

    a.text_bytes = text_bytes(limits, a.job.max_tokens);

    a.tokens =
        weft_arena_new(arena, n + (size_t)a.job.max_tokens, sizeof *a.tokens);
    if (a.tokens == NULL) return no_memory(arena, "prompt", err);
    for (size_t i = 0; i < n; i++) a.tokens[i] = (int32_t)ids[i];
    a.job.tokens = a.tokens;
    a.job.n_prompt = (int32_t)n;
    a.job.n_tokens = (int32_t)n;
    *admitted_io = a;
    return WEFT_OK;
}
