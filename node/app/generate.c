/* generate.c - `weft generate`: one request, shown as it streams. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "node/app/answer.h"
#include "node/app/client_open.h"
#include "node/app/commands.h"
#include "node/app/prompt.h"
#include "node/base/clock.h"

enum { REQUEST_ID_BYTES = 32, REASON_BYTES = 16 };

static const uint64_t connect_ns = UINT64_C(5000000000);

/* What the stream has told so far. */
typedef struct session {
    weft_answer answer;
    uint64_t start_ns, first_ns, end_ns; /* first_ns 0: nothing came yet */
    uint32_t prompt_tokens, completion_tokens, cached_tokens;
    char reason[REASON_BYTES];
    weft_status output; /* whether it could be shown, and why not */
    weft_err output_err;
} session;

static bool on_response(void *arg, const weft_generate_response *response)
{
    session *const s = arg;
    if (s->first_ns == 0) s->first_ns = weft_clock_now_ns();
    if (response->is_complete) {
        const weft_complete *const c = &response->complete;
        s->end_ns = weft_clock_now_ns();
        s->prompt_tokens = c->prompt_tokens;
        s->completion_tokens = c->completion_tokens;
        s->cached_tokens = c->cached_tokens;
        (void)snprintf(s->reason, sizeof s->reason, "%.*s",
                       (int)c->finish_reason.n, c->finish_reason.data);
    }
    s->output = weft_answer_show(&s->answer, response, &s->output_err);
    return s->output == WEFT_OK;
}

static double seconds(uint64_t from_ns, uint64_t to_ns)
{
    return (double)(to_ns - from_ns) * 1e-9;
}

/* Rate of the tokens after the first: the first also waits for the prompt. */
static void tell_usage(const session *s)
{
    const double first = seconds(s->start_ns, s->first_ns);
    const double total = seconds(s->start_ns, s->end_ns);
    (void)fprintf(stderr,
                  "prompt_tokens %" PRIu32 " completion_tokens %" PRIu32
                  " cached_tokens %" PRIu32
                  " finish_reason %s first_token_seconds %.3f "
                  "total_seconds %.3f",
                  s->prompt_tokens, s->completion_tokens, s->cached_tokens,
                  s->reason, first, total);
    if (s->completion_tokens > 1 && total > first)
        (void)fprintf(stderr, " tokens_per_second %.1f",
                      (s->completion_tokens - 1) / (total - first));
    (void)fputc('\n', stderr);
}

/* Ids must differ between live requests, or an Abort would end both; a seed
 * that is not given follows from it. */
static weft_status make_request_id(char id[REQUEST_ID_BYTES], weft_err *err)
{
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return WEFT_FAIL(err, WEFT_INTERNAL, "no random numbers to be had");
    (void)snprintf(id, REQUEST_ID_BYTES, "generate-%016" PRIx64, random);
    return WEFT_OK;
}

static weft_opt_f32 real(const weft_options *o, weft_flag flag, double value)
{
    return (weft_opt_f32){.set = weft_options_given(o, flag),
                          .value = (float)value};
}

static weft_opt_u32 count(const weft_options *o, weft_flag flag, int32_t value)
{
    return (weft_opt_u32){.set = weft_options_given(o, flag),
                          .value = (uint32_t)value};
}

static weft_span span_of(const char *text)
{
    return (weft_span){.data = text, .n = strlen(text)};
}

/* `stops` has room for WEFT_STOPS_MAX. */
static weft_sampling_params sampling_of(const weft_options *o, weft_span *stops)
{
    for (int32_t i = 0; i < o->n_stops; i++) stops[i] = span_of(o->stops[i]);
    return (weft_sampling_params){
        .temperature = real(o, WEFT_FLAG_TEMPERATURE, o->temperature),
        .top_p = real(o, WEFT_FLAG_TOP_P, o->top_p),
        .min_p = real(o, WEFT_FLAG_MIN_P, o->min_p),
        .top_k = count(o, WEFT_FLAG_TOP_K, o->top_k),
        .max_tokens = count(o, WEFT_FLAG_MAX_TOKENS, o->max_tokens),
        .seed = {.set = weft_options_given(o, WEFT_FLAG_SEED),
                 .value = o->seed},
        .stop = stops,
        .n_stop = (size_t)o->n_stops,
    };
}

static weft_answer_form form_of(const weft_options *o)
{
    if (o->json) return WEFT_ANSWER_JSON;
    return o->ids ? WEFT_ANSWER_IDS : WEFT_ANSWER_TEXT;
}

/* The server's text, and its hint when to try again. */
static int tell_failure(const weft_client *client, weft_status st,
                        weft_err *err)
{
    const int64_t after = weft_client_retry_after_ms(client);
    char hint[REASON_BYTES * 3] = "";
    if (after >= 0)
        (void)snprintf(hint, sizeof hint, ", retry after %" PRId64 " ms",
                       after);
    const bool lost = weft_client_lost(client);
    (void)WEFT_WRAP(err, st, "generate: %s%s", weft_status_name(st), hint);
    return weft_fail_with(
        weft_exit_of(st, lost ? WEFT_DOING_REACH : WEFT_DOING_CALL), err);
}

static int run(const weft_options *o, const weft_generate_request *request)
{
    weft_err err = {0};
    weft_client *client = NULL;
    weft_status st = weft_client_open(o, connect_ns, &client, &err);
    if (st != WEFT_OK) {
        (void)WEFT_WRAP(&err, st, "generate");
        return weft_fail_with(weft_exit_of(st, WEFT_DOING_REACH), &err);
    }
    session s = {.answer = {.out = stdout, .form = form_of(o)},
                 .start_ns = weft_clock_now_ns()};
    st = weft_client_generate(client, request, UINT64_MAX, on_response, &s,
                              &err);
    int code = WEFT_EXIT_DONE;
    if (s.output != WEFT_OK) {
        (void)WEFT_WRAP(&s.output_err, s.output, "generate");
        code = weft_fail_with(weft_exit_of(s.output, WEFT_DOING_START),
                              &s.output_err);
    } else if (st != WEFT_OK) {
        code = tell_failure(client, st, &err);
    } else {
        tell_usage(&s);
    }
    weft_client_destroy(client);
    return code;
}

/* Fill the request's prompt from text: as it is, or as the ids it lists. */
static weft_status set_prompt(const weft_options *o, const weft_buf *text,
                              weft_prompt_ids *ids,
                              weft_generate_request *request, weft_err *err)
{
    if (o->ids) {
        WEFT_TRY(weft_prompt_ids_parse(text->data, text->n, ids, err));
        request->prompt = WEFT_PROMPT_IDS;
        request->ids = ids->ids;
        request->n_ids = ids->n;
    } else {
        request->prompt = WEFT_PROMPT_TEXT;
        request->text = (weft_span){.data = text->data, .n = text->n};
    }
    return WEFT_OK;
}

int weft_command_generate(const weft_options *options)
{
    weft_err err = {0};
    weft_buf text = {0};
    weft_prompt_ids ids = {0};
    weft_span stops[WEFT_STOPS_MAX];
    char request_id[REQUEST_ID_BYTES] = "";
    weft_generate_request request = {
        .sampling = sampling_of(options, stops),
        .stream = true,
    };
    weft_status st = weft_prompt_read(options, stdin, &text, &err);
    if (st == WEFT_OK) st = set_prompt(options, &text, &ids, &request, &err);
    if (st == WEFT_OK) st = make_request_id(request_id, &err);
    request.request_id = span_of(request_id);
    int code = WEFT_EXIT_DONE;
    if (st == WEFT_OK) {
        code = run(options, &request);
    } else {
        (void)WEFT_WRAP(&err, st, "generate");
        code = weft_fail_with(weft_exit_of(st, WEFT_DOING_USAGE), &err);
    }
    weft_prompt_ids_deinit(&ids);
    weft_buf_deinit(&text);
    return code;
}
