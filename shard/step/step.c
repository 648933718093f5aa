/* One turn of the engine: ends that the plan brings, the rows of the step, the
 * logits that somebody wants, tokens, events. */
#include <stdio.h>
#include <string.h>

#include "node/base/check.h"
#include "node/base/clock.h"
#include "node/base/mem.h"
#include "shard/step/engine_internal.h"

static void emit_end(weft_engine *e, uint64_t handle, weft_finish finish,
                     weft_status status, const char *text)
{
    weft_event event = {
        .handle = handle,
        .kind = WEFT_EVENT_END,
        .finish = finish,
        .status = status,
    };
    (void)snprintf(event.text, sizeof event.text, "%.*s",
                   (int)sizeof event.text - 1, text);
    weft_engine_emit(e, &event);
}

static void tell_ends(weft_engine *e, const weft_plan *plan)
{
    for (int32_t i = 0; i < plan->n_ends; i++) {
        const struct weft_sched_end *const end = &plan->ends[i];
        const char *text = "";
        if (end->status == WEFT_DEADLINE_EXCEEDED) text = "deadline exceeded";
        if (end->status == WEFT_RESOURCE_EXHAUSTED)
            text = "no memory for the tokens and page tables of the job";
        emit_end(e, end->job->handle, end->finish, end->status, text);
    }
}

static void tell_started(weft_engine *e, const weft_plan *plan)
{
    for (int32_t i = 0; i < plan->n_pieces; i++) {
        const weft_piece *const p = &plan->pieces[i];
        if (!p->started) continue;
        const weft_event event = {.handle = p->job->handle,
                                  .kind = WEFT_EVENT_STARTED,
                                  .position = p->first};
        weft_engine_emit(e, &event);
    }
}

/* The job is forgotten before its last event is sent: whoever hears that may
 * free it. Rows of the piece that are still to come are passed over. */
static void fail_job(weft_engine *e, int32_t piece, const weft_piece *p,
                     weft_status status, const char *text)
{
    const uint64_t handle = p->job->handle;
    (void)weft_sched_cancel(e->sched, handle);
    e->failed[piece] = true;
    emit_end(e, handle, WEFT_FINISH_FAILED, status, text);
}

/* Logprob of a prompt token, from the row before it. */
static weft_status tell_prompt_logprob(weft_engine *e, const weft_piece *p,
                                       int32_t position, const float *logits,
                                       const weft_vocab_stat *stat,
                                       weft_err *err)
{
    weft_event event = {
        .handle = p->job->handle,
        .kind = WEFT_EVENT_PROMPT,
        .token = p->job->tokens[position + 1],
        .position = position + 1,
    };
    WEFT_TRY(weft_sampler_logprobs(e->sampler, logits, stat, event.token,
                                   p->job->prompt_logprobs, &event, err));
    weft_engine_emit(e, &event);
    return WEFT_OK;
}

static weft_status choose(weft_engine *e, const weft_piece *p, int32_t position,
                          const float *logits, const weft_vocab_stat *stat,
                          weft_event *event, weft_err *err)
{
    const weft_job *const job = p->job;
    if (job->forced != NULL)
        event->token = job->forced[position + 1 - job->n_prompt];
    else
        WEFT_TRY(weft_sampler_choose(e->sampler, job, p->tokens, position + 1,
                                     logits, stat, &event->token, err));
    if (job->logprobs >= 0)
        WEFT_TRY(weft_sampler_logprobs(e->sampler, logits, stat, event->token,
                                       job->logprobs, event, err));
    return WEFT_OK;
}

static weft_status take_row(weft_engine *e, const weft_piece *p,
                            int32_t position, const float *logits,
                            const weft_vocab_stat *stat, weft_err *err)
{
    const weft_job *const job = p->job;
    if (job->on_logits != NULL)
        job->on_logits(job->on_logits_arg, position, logits);
    if (job->prompt_logprobs >= 0 && position + 1 < job->n_prompt)
        WEFT_TRY(tell_prompt_logprob(e, p, position, logits, stat, err));
    if (position < p->first + p->n_rows - 1 || !p->last_of_prompt)
        return WEFT_OK;
    weft_event event = {
        .handle = job->handle,
        .kind = WEFT_EVENT_TOKEN,
        .position = position + 1,
    };
    WEFT_TRY(choose(e, p, position, logits, stat, &event, err));
    event.finish = weft_sched_commit(e->sched, p->slot, event.token);
    weft_engine_emit(e, &event);
    return WEFT_OK;
}

/* Jobs of the step that are still there, unless the process goes with them. */
static void fail_all(weft_engine *e, const weft_plan *plan)
{
    for (int32_t i = 0; i < plan->n_pieces; i++) {
        if (e->failed[i]) continue;
        if (e->options.failed == NULL) {
            fail_job(e, i, &plan->pieces[i], WEFT_INTERNAL,
                     "the device failed; the log says how");
            continue;
        }
        (void)weft_sched_cancel(e->sched, plan->pieces[i].job->handle);
        e->failed[i] = true;
    }
}

static void take_logits(weft_engine *e, const weft_plan *plan)
{
    const int32_t most = e->layers.max_logits_rows;
    for (int32_t done = 0; done < e->n_wanted; done += most) {
        const int32_t left = e->n_wanted - done;
        const int32_t some = left < most ? left : most;
        const weft_vocab_stat *stats = NULL;
        const float *logits = NULL;
        weft_err why = {0};
        if (weft_forward_logits_of(e->layers.forward, e->wanted_hidden + done,
                                   some, &logits, &stats, &why) != WEFT_OK) {
            weft_engine_break(e, &why);
            fail_all(e, plan);
            return;
        }
        for (int32_t i = 0; i < some; i++) {
            const weft_wanted_row *const w = &e->wanted[done + i];
            const weft_piece *const p = &plan->pieces[w->piece];
            weft_err err = {0};
            if (e->failed[w->piece]) continue;
            const weft_status st = take_row(
                e, p, w->position, logits + (int64_t)i * e->config->vocab_size,
                &stats[i], &err);
            if (st != WEFT_OK) fail_job(e, w->piece, p, st, err.text);
        }
    }
}

void weft_engine_run_plan(weft_engine *e, const weft_plan *plan)
{
    tell_ends(e, plan);
    if (plan->n_rows == 0) return;
    const uint64_t begin_ns = weft_clock_now_ns();
    memset(e->failed, 0, (size_t)plan->n_pieces * sizeof *e->failed);
    tell_started(e, plan);
    e->plan = plan;
    const weft_outcome outcome = weft_engine_compute(e);
    e->plan = NULL;
    if (outcome == WEFT_STEP_STOPPED) return;
    if (outcome == WEFT_STEP_LOST) {
        weft_engine_give_back(e);
        return;
    }
    if (outcome == WEFT_STEP_DONE) take_logits(e, plan);
    if (outcome == WEFT_STEP_BROKEN) fail_all(e, plan);
    weft_sched_step_done(e->sched);
    if (outcome == WEFT_STEP_DROPPED || outcome == WEFT_STEP_BROKEN) return;
    e->n_steps++;
    if (e->on_step != NULL)
        e->on_step(e->on_step_arg, weft_clock_now_ns() - begin_ns,
                   plan->n_rows);
}

void weft_engine_give_back(weft_engine *e)
{
    weft_plan plan;
    weft_sched_give_back(e->sched, &plan);
    tell_ends(e, &plan);
}
