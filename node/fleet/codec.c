#include "node/fleet/codec.h"

#include <math.h>
#include <string.h>

#include "node/base/mem.h"
#include "node/base/str.h"

/* -- jobs ----------------------------------------------------------------- */

size_t weft_job_bytes(const weft_job *job)
{
    enum { FIXED_BYTES = 128 };
    return FIXED_BYTES +
           sizeof(int32_t) * ((size_t)job->n_tokens + (size_t)job->n_stop_ids +
                              2 * (size_t)job->sampling.n_bias);
}

static void pack_sampling(weft_pack *pack, const weft_sampling *s)
{
    weft_pack_f32(pack, s->temperature);
    weft_pack_f32(pack, s->top_p);
    weft_pack_f32(pack, s->min_p);
    weft_pack_u32(pack, s->top_k);
    weft_pack_f32(pack, s->frequency_penalty);
    weft_pack_f32(pack, s->presence_penalty);
    weft_pack_f32(pack, s->repetition_penalty);
    weft_pack_u64(pack, s->seed);
    weft_pack_i32s(pack, s->bias_ids, s->n_bias);
    weft_pack_f32s(pack, s->bias, s->n_bias);
}

weft_status weft_job_encode(const weft_job *job, uint64_t now_ns,
                            weft_pack *pack, weft_err *err)
{
    const uint64_t left_ns = job->deadline_ns == UINT64_MAX ? UINT64_MAX
                             : job->deadline_ns > now_ns
                                 ? job->deadline_ns - now_ns
                                 : 0;
    weft_pack_u64(pack, job->handle);
    weft_pack_u64(pack, job->age);
    weft_pack_u64(pack, left_ns);
    weft_pack_i32(pack, job->priority);
    weft_pack_i32(pack, job->n_prompt);
    weft_pack_i32(pack, job->max_tokens);
    weft_pack_i32(pack, job->min_tokens);
    weft_pack_i32(pack, job->logprobs);
    weft_pack_i32(pack, job->prompt_logprobs);
    pack_sampling(pack, &job->sampling);
    weft_pack_i32s(pack, job->stop_ids, job->n_stop_ids);
    weft_pack_i32s(pack, job->tokens, job->n_tokens);
    if (!pack->full && job->n_tokens <= WEFT_JOB_TOKENS_MAX) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                     "a job of %d tokens needs %zu bytes: a frame holds %d "
                     "tokens and %zu bytes",
                     job->n_tokens, weft_job_bytes(job), WEFT_JOB_TOKENS_MAX,
                     pack->capacity);
}

/* NULL: not there, or no memory; then `unpack` is bad or the arena is full. */
static int32_t *unpack_i32s(weft_unpack *unpack, weft_arena *arena,
                            int32_t count_max, int32_t *n_out)
{
    const int32_t n = weft_unpack_count(unpack, count_max, sizeof(int32_t));
    int32_t *const values = weft_arena_new(arena, (size_t)n, sizeof *values);
    if (values == NULL) return NULL;
    weft_unpack_i32s(unpack, values, n);
    *n_out = n;
    return values;
}

static bool unpack_sampling(weft_unpack *unpack, weft_arena *arena,
                            weft_sampling *s)
{
    s->temperature = weft_unpack_f32(unpack);
    s->top_p = weft_unpack_f32(unpack);
    s->min_p = weft_unpack_f32(unpack);
    s->top_k = weft_unpack_u32(unpack);
    s->frequency_penalty = weft_unpack_f32(unpack);
    s->presence_penalty = weft_unpack_f32(unpack);
    s->repetition_penalty = weft_unpack_f32(unpack);
    s->seed = weft_unpack_u64(unpack);
    s->bias_ids = unpack_i32s(unpack, arena, WEFT_BIAS_MAX, &s->n_bias);
    const int32_t n = weft_unpack_count(unpack, WEFT_BIAS_MAX, sizeof(float));
    float *const bias = weft_arena_new(arena, (size_t)n, sizeof *bias);
    if (bias == NULL || s->bias_ids == NULL) return false;
    weft_unpack_f32s(unpack, bias, n);
    s->bias = bias;
    if (n != s->n_bias) unpack->bad = true;
    return true;
}

static bool ids_are_within(const int32_t *ids, int32_t n, int32_t vocab_size)
{
    for (int32_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocab_size) return false;
    return true;
}

static bool sampling_is_sound(const weft_sampling *s, int32_t vocab_size)
{
    bool sound = isfinite(s->temperature) && s->temperature >= 0 &&
                 s->top_p >= 0 && s->top_p <= 1 && s->min_p >= 0 &&
                 s->min_p <= 1 && isfinite(s->frequency_penalty) &&
                 isfinite(s->presence_penalty) &&
                 isfinite(s->repetition_penalty) && s->repetition_penalty > 0 &&
                 ids_are_within(s->bias_ids, s->n_bias, vocab_size);
    for (int32_t i = 0; i < s->n_bias; i++)
        sound = sound && isfinite(s->bias[i]);
    return sound;
}

/* NULL: sound; else the field that is not. */
static const char *unsound_field(const weft_job *job, int32_t vocab_size)
{
    if (job->n_prompt < 1 || job->n_prompt > job->n_tokens) return "n_prompt";
    if (!ids_are_within(job->tokens, job->n_tokens, vocab_size))
        return "tokens";
    if (job->max_tokens < 1 || job->max_tokens > WEFT_JOB_TOKENS_MAX ||
        job->n_tokens - job->n_prompt >= job->max_tokens)
        return "max_tokens";
    if (job->min_tokens < 0 || job->min_tokens > job->max_tokens)
        return "min_tokens";
    if (job->logprobs < -1 || job->logprobs > WEFT_LOGPROBS_MAX)
        return "logprobs";
    if (job->prompt_logprobs < -1 || job->prompt_logprobs > WEFT_LOGPROBS_MAX)
        return "prompt_logprobs";
    if (!sampling_is_sound(&job->sampling, vocab_size)) return "sampling";
    return NULL;
}

weft_status weft_job_decode(const void *bytes, size_t n, int32_t vocab_size,
                            uint64_t now_ns, weft_arena *arena,
                            weft_job **job_out, weft_err *err)
{
    weft_unpack unpack = weft_unpack_from(bytes, n);
    weft_job *const job = weft_arena_new(arena, 1, sizeof *job);
    if (job == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory for a job");
    job->handle = weft_unpack_u64(&unpack);
    job->age = weft_unpack_u64(&unpack);
    const uint64_t left_ns = weft_unpack_u64(&unpack);
    job->deadline_ns =
        left_ns > UINT64_MAX - 1 - now_ns ? UINT64_MAX : now_ns + left_ns;
    job->priority = weft_unpack_i32(&unpack);
    job->n_prompt = weft_unpack_i32(&unpack);
    job->max_tokens = weft_unpack_i32(&unpack);
    job->min_tokens = weft_unpack_i32(&unpack);
    job->logprobs = weft_unpack_i32(&unpack);
    job->prompt_logprobs = weft_unpack_i32(&unpack);
    const bool fits = unpack_sampling(&unpack, arena, &job->sampling);
    job->stop_ids =
        unpack_i32s(&unpack, arena, WEFT_JOB_STOP_IDS_MAX, &job->n_stop_ids);
    job->tokens =
        unpack_i32s(&unpack, arena, WEFT_JOB_TOKENS_MAX, &job->n_tokens);
    if (!fits || job->stop_ids == NULL || job->tokens == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for a job of %zu bytes", n);
    if (!weft_unpack_done(&unpack))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "a SUBMIT of %zu bytes is malformed", n);
    const char *const field = unsound_field(job, vocab_size);
    if (field != NULL)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "a SUBMIT has %s out of range", field);
    *job_out = job;
    return WEFT_OK;
}

/* -- events --------------------------------------------------------------- */

static bool has_text(const weft_event *event)
{
    return event->kind == WEFT_EVENT_END;
}

void weft_event_encode(const weft_event *event, weft_pack *pack)
{
    weft_pack_u64(pack, event->handle);
    weft_pack_u8(pack, (uint8_t)event->kind);
    weft_pack_u8(pack, (uint8_t)event->finish);
    weft_pack_i32(pack, event->token);
    weft_pack_i32(pack, event->position);
    weft_pack_f32(pack, event->logprob);
    weft_pack_u32(pack, (uint32_t)event->n_top);
    for (int32_t i = 0; i < event->n_top; i++) {
        weft_pack_f32(pack, event->top[i].value);
        weft_pack_i32(pack, event->top[i].id);
    }
    if (!has_text(event)) return;
    weft_pack_u8(pack, (uint8_t)event->status);
    weft_pack_text(pack, event->text);
}

/* Statuses with which a lead ends a job. */
static bool is_status(uint8_t status)
{
    static const weft_status known[] = {
        WEFT_OK,        WEFT_CANCELLED,           WEFT_INVALID_ARGUMENT,
        WEFT_NOT_FOUND, WEFT_DEADLINE_EXCEEDED,   WEFT_RESOURCE_EXHAUSTED,
        WEFT_INTERNAL,  WEFT_FAILED_PRECONDITION, WEFT_UNIMPLEMENTED,
        WEFT_DATA_LOSS, WEFT_UNAVAILABLE,
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i] == (weft_status)status) return true;
    return false;
}

static bool event_is_sound(const weft_event *event, int32_t vocab_size)
{
    const bool last = event->finish != WEFT_FINISH_NONE;
    switch (event->kind) {
    case WEFT_EVENT_TOKEN:
        return event->finish <= WEFT_FINISH_LENGTH && event->token >= 0 &&
               event->token < vocab_size && event->position >= 1;
    case WEFT_EVENT_PROMPT:
        return !last && event->token >= 0 && event->token < vocab_size &&
               event->position >= 1;
    case WEFT_EVENT_STARTED: return !last && event->n_top == 0;
    case WEFT_EVENT_END:
        return event->n_top == 0 && ((event->finish == WEFT_FINISH_FAILED &&
                                      event->status != WEFT_OK) ||
                                     event->finish == WEFT_FINISH_PREEMPTED);
    }
    return false;
}

static weft_status unpack_top(weft_unpack *unpack, int32_t vocab_size,
                              weft_event *event, weft_err *err)
{
    const int32_t n =
        weft_unpack_count(unpack, WEFT_LOGPROBS_MAX, sizeof(weft_logprob));
    if (n == 0) return WEFT_OK;
    event->top = weft_mem_new((size_t)n, sizeof *event->top);
    if (event->top == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for %d logprobs", n);
    event->n_top = n;
    for (int32_t i = 0; i < n; i++) {
        event->top[i].value = weft_unpack_f32(unpack);
        event->top[i].id = weft_unpack_i32(unpack);
        if (event->top[i].id < 0 || event->top[i].id >= vocab_size)
            unpack->bad = true;
    }
    return WEFT_OK;
}

static void unpack_end(weft_unpack *unpack, weft_event *event)
{
    char text[sizeof event->text];
    const uint8_t status = weft_unpack_u8(unpack);
    if (!is_status(status)) unpack->bad = true;
    event->status = unpack->bad ? WEFT_INTERNAL : (weft_status)status;
    weft_unpack_text(unpack, text, sizeof text);
    (void)weft_text_line(text, event->text, sizeof event->text);
}

weft_status weft_event_decode(weft_unpack *unpack, int32_t vocab_size,
                              weft_event *event_out, weft_err *err)
{
    weft_event event = {.handle = weft_unpack_u64(unpack)};
    const uint8_t kind = weft_unpack_u8(unpack);
    const uint8_t finish = weft_unpack_u8(unpack);
    if (kind > WEFT_EVENT_STARTED || finish > WEFT_FINISH_PREEMPTED)
        unpack->bad = true;
    event.kind = (weft_event_kind)(unpack->bad ? 0 : kind);
    event.finish = (weft_finish)(unpack->bad ? 0 : finish);
    event.token = weft_unpack_i32(unpack);
    event.position = weft_unpack_i32(unpack);
    event.logprob = weft_unpack_f32(unpack);
    WEFT_TRY(unpack_top(unpack, vocab_size, &event, err));
    if (has_text(&event)) unpack_end(unpack, &event);
    if (unpack->bad || !event_is_sound(&event, vocab_size)) {
        weft_mem_free(event.top);
        unpack->bad = true;
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "an event is malformed or out of range");
    }
    *event_out = event;
    return WEFT_OK;
}
