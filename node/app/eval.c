/* eval.c - `weft eval`: score given tokens through the engine that serves.
 *
 * The tokens go through the same scheduler, pages and steps as a request; only
 * the choice of the next token is taken from the input. The first decode_from
 * tokens are the prompt (prefilled in chunks), the rest come one by one.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "node/app/backend.h"
#include "node/app/commands.h"
#include "node/app/eval_input.h"
#include "node/app/inside.h"
#include "node/app/memory.h"
#include "node/app/model_open.h"
#include "node/app/rank_weights.h"
#include "node/base/clock.h"
#include "node/base/mem.h"
#include "node/base/ring.h"

/* Written on the engine's thread until the last event has come. */
typedef struct scoring {
    const int32_t *ids;
    int32_t n_ids, vocab;
    FILE *logits; /* NULL: not wanted */
    bool write_failed;
    double nll;       /* sum of -ln p over tokens 1... */
    int32_t infinite; /* position whose logits gave no number; -1: none */
    weft_ring *events;
} scoring;

static void on_logits(void *arg, int32_t position, const float *logits)
{
    scoring *const s = arg;
    if (s->logits != NULL && fwrite(logits, sizeof *logits, (size_t)s->vocab,
                                    s->logits) != (size_t)s->vocab)
        s->write_failed = true;
    if (position + 1 >= s->n_ids) return;
    double top = -INFINITY, sum = 0.0;
    for (int32_t i = 0; i < s->vocab; i++) top = fmax(top, (double)logits[i]);
    for (int32_t i = 0; i < s->vocab; i++) sum += exp((double)logits[i] - top);
    s->nll += top + log(sum) - (double)logits[s->ids[position + 1]];
    if (s->infinite < 0 && !isfinite(s->nll)) s->infinite = position;
}

static bool take_event(void *arg, const weft_event *event)
{
    scoring *const s = arg;
    return weft_ring_push(s->events, event);
}

static weft_status wait_for_end(weft_ring *events, weft_err *err)
{
    for (;;) {
        weft_event event;
        weft_ring_wait(events, UINT64_MAX);
        while (weft_ring_pop(events, &event)) {
            weft_mem_free(event.top);
            if (event.finish == WEFT_FINISH_NONE) continue;
            if (event.finish == WEFT_FINISH_LENGTH) return WEFT_OK;
            if (event.finish == WEFT_FINISH_PREEMPTED)
                return WEFT_FAIL(err, WEFT_INTERNAL,
                                 "a stage of this process ended; the log says "
                                 "why");
            return WEFT_FAIL(err, event.status, "%s", event.text);
        }
    }
}

static weft_status run_engine(const weft_model_config *config,
                              const weft_weights *weights,
                              const weft_engine_options *options,
                              weft_inside *inside, int32_t n_prompt, scoring *s,
                              double *seconds_out, weft_err *err)
{
    weft_engine *engine = NULL;
    const weft_event_sink sink = {.take = take_event, .arg = s};
    weft_status st = weft_engine_create(config, weights, options, sink, NULL,
                                        NULL, &engine, err);
    if (st != WEFT_OK) return st;
    weft_inside_set_engine(inside, engine);
    const weft_job job = {
        .handle = 1,
        .deadline_ns = UINT64_MAX,
        .tokens = s->ids,
        .n_prompt = n_prompt,
        .n_tokens = n_prompt,
        /* One more than is scored: ids[n_ids] ends the job and is not used. */
        .max_tokens = s->n_ids - n_prompt + 1,
        .logprobs = -1,
        .prompt_logprobs = -1,
        .forced = s->ids + n_prompt,
        .on_logits = on_logits,
        .on_logits_arg = s,
    };
    const uint64_t begin_ns = weft_clock_now_ns();
    st = weft_engine_start(engine, err);
    if (st == WEFT_OK) st = weft_engine_submit(engine, &job);
    if (st == WEFT_OK) st = wait_for_end(s->events, err);
    *seconds_out = (double)(weft_clock_now_ns() - begin_ns) * 1e-9;
    weft_inside_set_engine(inside, NULL);
    weft_engine_destroy(engine);
    return st;
}

static void print_line(const weft_eval_input *in, double nll, double seconds)
{
    const int32_t scored = in->n_ids - 1;
    const double perplexity = scored > 0 ? exp(nll / scored) : NAN;
    printf("{\"tokens\":%d,\"scored\":%d,\"nll\":%.9g,", in->n_ids, scored,
           nll);
    if (isfinite(perplexity)) /* JSON has no infinity */
        printf("\"perplexity\":%.9g,", perplexity);
    else
        printf("\"perplexity\":null,");
    if (in->scored_bytes > 0)
        printf("\"bits_per_byte\":%.9g,",
               nll / log(2.0) / (double)in->scored_bytes);
    printf("\"seconds\":%.6f}\n", seconds);
}

/* What scores: an engine's options and weights, or parts of a model. */
typedef struct parts {
    weft_engine_options engine;
    weft_backend backend;
    weft_rank_weights weights;
    weft_inside *inside; /* instead of weights */
} parts;

/* Options of an engine for this one sequence, on what is to compute. */
static weft_status prepare(const weft_options *options,
                           const weft_opened *opened, int32_t n_ids, parts *p,
                           weft_err *err)
{
    weft_engine_options *const engine = &p->engine;
    WEFT_TRY(weft_backend_open(options, &p->backend, err));
    weft_backend_apply(&p->backend, engine);
    engine->max_seqs = 1;
    engine->max_waiting = 1;
    engine->max_context = n_ids + 1;
    if (engine->kv_bytes > 0) return WEFT_OK;
    /* What this one sequence fills. */
    return weft_memory_useful_kv(&opened->config, engine, &engine->kv_bytes,
                                 err);
}

static weft_status load(const weft_options *options, const weft_opened *opened,
                        parts *p, weft_err *err)
{
    const weft_part_of_model whole = weft_model_whole(&opened->config);
    if (weft_inside_is_wanted(options)) {
        WEFT_TRY(weft_checkpoint_set_memory(opened->checkpoint,
                                            &p->backend.memory, err));
        return weft_inside_create(options, opened, &p->engine, &p->inside, err);
    }
    p->engine.ranks = p->weights.others;
    return weft_rank_weights_load(opened->checkpoint, &p->backend, &whole, NULL,
                                  NULL, &p->weights, err);
}

static weft_status check_logits(const weft_options *options, const scoring *s,
                                weft_err *err)
{
    if (s->write_failed)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "logits %s: cannot write",
                         options->logits);
    if (s->infinite >= 0)
        return WEFT_FAIL(err, WEFT_INTERNAL,
                         "the logits after position %d hold NaN or infinity",
                         s->infinite);
    return WEFT_OK;
}

static int score(const weft_options *options, weft_opened *opened,
                 const weft_eval_input *in, FILE *logits)
{
    weft_err err = {0};
    parts p = {0};
    scoring s = {.ids = in->ids,
                 .n_ids = in->n_ids,
                 .vocab = opened->config.vocab_size,
                 .infinite = -1,
                 .logits = logits};
    double seconds = 0.0;
    weft_doing doing = WEFT_DOING_START;
    weft_status st =
        weft_model_engine_options(options, &opened->config, &p.engine, &err);
    if (st != WEFT_OK) return weft_fail_with(WEFT_EXIT_USAGE, &err);
    st = prepare(options, opened, in->n_ids, &p, &err);
    if (st == WEFT_OK)
        st = weft_ring_create(sizeof(weft_event), 64, &s.events, &err);
    if (st == WEFT_OK) {
        doing = WEFT_DOING_LOAD;
        st = load(options, opened, &p, &err);
    }
    if (st == WEFT_OK) {
        const bool apart = p.inside != NULL;
        doing = WEFT_DOING_START;
        st = run_engine(apart ? weft_inside_config(p.inside) : &opened->config,
                        apart ? weft_inside_weights(p.inside)
                              : weft_rank_weights_first(&p.weights),
                        &p.engine, p.inside,
                        weft_eval_prefilled(options, in->n_ids), &s, &seconds,
                        &err);
    }
    if (st == WEFT_OK) st = check_logits(options, &s, &err);
    weft_inside_destroy(p.inside);
    weft_rank_weights_destroy(&p.weights);
    weft_ring_destroy(s.events);
    weft_backend_close(&p.backend);
    if (st != WEFT_OK) return weft_fail_with(weft_exit_of(st, doing), &err);
    print_line(in, s.nll, seconds);
    return weft_output_end();
}

static int score_to_file(const weft_options *options, weft_opened *opened,
                         const weft_eval_input *in)
{
    FILE *logits = NULL;
    weft_err err = {0};
    if (options->logits != NULL) {
        logits = fopen(options->logits, "wbe");
        if (logits == NULL) {
            (void)WEFT_FAIL(&err, WEFT_UNAVAILABLE, "logits %s: %s",
                            options->logits, strerror(errno));
            return weft_fail_with(WEFT_EXIT_RESOURCE, &err);
        }
    }
    int code = score(options, opened, in, logits);
    if (logits != NULL && fclose(logits) != 0 && code == WEFT_EXIT_DONE) {
        (void)WEFT_FAIL(&err, WEFT_UNAVAILABLE, "logits %s: %s",
                        options->logits, strerror(errno));
        code = weft_fail_with(WEFT_EXIT_RESOURCE, &err);
    }
    return code;
}

int weft_command_eval(const weft_options *options)
{
    weft_err err = {0};
    weft_opened opened = {0};
    weft_status st = weft_model_open(options->model, options->profile, NULL,
                                     NULL, &opened, &err);
    if (st != WEFT_OK)
        return weft_fail_with(weft_exit_of(st, WEFT_DOING_LOAD), &err);
    weft_eval_input in = {0};
    weft_exit code = WEFT_EXIT_DONE;
    st = weft_eval_input_read(options, &opened, &in, &code, &err);
    const int result = st == WEFT_OK ? score_to_file(options, &opened, &in)
                                     : weft_fail_with(code, &err);
    weft_mem_free(in.ids);
    weft_model_close(&opened);
    return result;
}
