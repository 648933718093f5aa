/* Computing a step until it is done. Where experts or further stages are
 * elsewhere, a try can fail without anybody's fault; then the same rows, but
 * for those of jobs that have been cancelled meanwhile, are computed again from
 * the start, which gives the same bits. */
#include <string.h>

#include "node/base/check.h"
#include "node/base/clock.h"
#include "node/base/log.h"
#include "shard/step/engine_internal.h"
#include "shard/step/stages_internal.h"

/* How long a stuck step goes without a look at the inbox. */
static const uint64_t LOOK_NS = UINT64_C(20) * 1000 * 1000;
static const uint64_t SAY_NS = UINT64_C(1000) * 1000 * 1000;

static bool wants_all_rows(const weft_piece *p)
{
    return p->job->on_logits != NULL || p->job->prompt_logprobs >= 0;
}

static void lay_out_piece(weft_engine *e, int32_t piece, int32_t n)
{
    const weft_piece *const p = &e->plan->pieces[piece];
    weft_layers *const l = &e->layers;
    const bool all = wants_all_rows(p);
    for (int32_t r = 0; r < p->n_rows; r++, n++) {
        l->tokens[n] = p->tokens[p->first + r];
        l->positions[n] = p->first + r;
        for (int32_t k = 0; k < WEFT_KINDS; k++)
            l->pages[k][n] = p->table->offsets[k];
        const bool last = r == p->n_rows - 1;
        if (!all && !(last && p->last_of_prompt)) continue;
        e->wanted_rows[e->n_wanted] = n;
        e->wanted[e->n_wanted++] =
            (weft_wanted_row){.piece = piece, .position = p->first + r};
    }
}

/* Rows of the plan, in plan order, into the step's arrays. */
static int32_t lay_out(weft_engine *e)
{
    int32_t n = 0;
    e->n_wanted = 0;
    for (int32_t i = 0; i < e->plan->n_pieces; i++) {
        if (e->failed[i]) continue;
        WEFT_ASSERT(n + e->plan->pieces[i].n_rows <= e->layers.max_rows);
        lay_out_piece(e, i, n);
        n += e->plan->pieces[i].n_rows;
    }
    return n;
}

static weft_status compute_here(weft_engine *e, int32_t n_rows, weft_err *err)
{
    WEFT_TRY(weft_layers_compute(&e->layers, 0, n_rows, NULL, err));
    for (int32_t i = 0; i < e->n_wanted; i++)
        e->wanted_hidden[i] = weft_layers_row(&e->layers, e->wanted_rows[i]);
    return WEFT_OK;
}

static weft_status try_once(weft_engine *e, weft_err *err)
{
    const int32_t n_rows = lay_out(e);
    if (e->options.stages == NULL) return compute_here(e, n_rows, err);
    const weft_stages_step step = {
        .step = e->step,
        .epoch = e->epoch,
        .attempt = e->attempt,
        .pieces = e->plan->pieces,
        .dead = e->failed,
        .n_pieces = e->plan->n_pieces,
        .n_rows = n_rows,
        .layers = &e->layers,
        .wanted_rows = e->wanted_rows,
        .n_wanted = e->n_wanted,
        .wanted_out = e->wanted_hidden,
    };
    return weft_stages_run(e->options.stages, &step, err);
}

/* Settle the epoch of this try. */
static weft_status begin(weft_engine *e, weft_err *err)
{
    if (e->experts == NULL) return WEFT_OK;
    return e->experts->begin(e->experts->arg, e->step, e->attempt, 0, &e->epoch,
                             err);
}

static bool is_dropped(const weft_engine *e)
{
    for (int32_t i = 0; i < e->plan->n_pieces; i++)
        if (!e->failed[i]) return false;
    return true;
}

/* Said at most once a second, and what is said to be stuck is said to move. */
static void say_stuck(weft_engine *e, const weft_err *err)
{
    e->stuck = true;
    const uint64_t now_ns = weft_clock_now_ns();
    if (e->said_stuck || now_ns - e->said_stuck_ns < SAY_NS) return;
    e->said_stuck = true;
    e->said_stuck_ns = now_ns;
    weft_log(WEFT_LOG_WARN, "engine", "stuck", "step %llu reason \"%s\"",
             (unsigned long long)e->step, err->text);
}

void weft_engine_break(weft_engine *e, const weft_err *err)
{
    if (e->broken) return;
    e->broken = true;
    weft_log(WEFT_LOG_ERROR, "engine", "device_failed", "reason \"%s\"",
             err->text);
    if (e->options.failed != NULL)
        e->options.failed(e->options.failed_arg, err);
}

bool weft_engine_is_broken(weft_engine *e)
{
    weft_err err = {0};
    if (e->broken || !atomic_load(&e->lost)) return e->broken;
    (void)WEFT_FAIL(&err, WEFT_INTERNAL,
                    "another part of this process lost it");
    weft_engine_break(e, &err);
    return true;
}

/* A look around while the step cannot be had; DONE: try again. */
static weft_outcome look(weft_engine *e, uint64_t idle_ns)
{
    weft_engine_publish(e, false);
    weft_engine_take_messages(e);
    if (atomic_load(&e->stop)) return WEFT_STEP_STOPPED;
    if (weft_engine_is_broken(e)) return WEFT_STEP_BROKEN;
    if (is_dropped(e)) return WEFT_STEP_DROPPED;
    if (e->options.stages != NULL) {
        weft_stages_turn(e->options.stages);
        if (weft_stages_take_lost(e->options.stages)) return WEFT_STEP_LOST;
    }
    const uint64_t deadline_ns =
        idle_ns == 0 ? 0 : weft_clock_now_ns() + idle_ns;
    if (e->experts != NULL)
        e->experts->idle(e->experts->arg, deadline_ns);
    else if (e->options.stages != NULL)
        weft_stages_idle(e->options.stages, deadline_ns);
    return WEFT_STEP_DONE;
}

static weft_outcome compute_somehow(weft_engine *e)
{
    for (e->attempt = 0;; e->attempt++) {
        weft_err err = {0};
        weft_outcome outcome = WEFT_STEP_DONE;
        weft_status st = begin(e, &err);
        const bool began = st == WEFT_OK;
        if (began) st = try_once(e, &err);
        if (st == WEFT_OK) return WEFT_STEP_DONE;
        if (st == WEFT_INTERNAL) {
            weft_engine_break(e, &err);
            return WEFT_STEP_BROKEN;
        }
        say_stuck(e, &err);
        /* What failed half way may do at once what has changed; what could not
         * even begin waits for a change. */
        const bool at_once = began && e->options.stages == NULL;
        outcome = look(e, at_once ? 0 : LOOK_NS);
        if (outcome != WEFT_STEP_DONE) return outcome;
    }
}

weft_outcome weft_engine_compute(weft_engine *e)
{
    if (e->broken) return WEFT_STEP_BROKEN;
    e->step++;
    if (e->experts == NULL && e->options.stages == NULL) {
        weft_err err = {0};
        e->attempt = 0;
        if (compute_here(e, lay_out(e), &err) == WEFT_OK) return WEFT_STEP_DONE;
        weft_engine_break(e, &err);
        return WEFT_STEP_BROKEN;
    }
    const weft_outcome outcome = compute_somehow(e);
    if (e->said_stuck && outcome != WEFT_STEP_STOPPED)
        weft_log(WEFT_LOG_INFO, "engine", "moving", "step %llu attempts %u",
                 (unsigned long long)e->step, e->attempt + 1);
    e->stuck = e->said_stuck = false;
    return outcome;
}
