/* One try of a step on the lead: micro-batches through its own layers and down
 * the chain, and the wanted rows back. While it waits for one link it takes in
 * what the others bring, so that a chain whose buffers are full always moves.
 */
#include <stdio.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include "shard/step/stages_lead.h"

/* Mostly the next stage is about to read, or the last to answer. */
static const uint64_t SPIN_NS = UINT64_C(20) * 1000;
static const uint64_t SLICE_NS = UINT64_C(20) * 1000 * 1000;
/* Without a row coming back in this time the chain is given up, though all its
 * links live. */
static const uint64_t ANSWER_NS = UINT64_C(300) * 1000 * 1000 * 1000;

/* ---- waiting ------------------------------------------------------------ */

/* Whether the try can still come to an end. */
static weft_status check(const weft_stages *s, uint64_t run, weft_err *err)
{
    if (atomic_load(&s->stop))
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "the stages have been stopped");
    if (s->run != run || !atomic_load(&s->whole))
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "the run has ended");
    if (s->stuck) return WEFT_FAIL(err, WEFT_UNAVAILABLE, "%s", s->stuck_text);
    return WEFT_OK;
}

static bool is_sent(const weft_stages *s)
{
    return s->at[1].link != NULL && weft_link_is_idle(s->at[1].link);
}

static bool is_answered(const weft_stages *s)
{
    return s->n_got == s->n_micros;
}

static bool is_woken(const weft_stages *s)
{
    (void)s;
    return false;
}

typedef bool (*done_fn)(const weft_stages *s);

/* Until done, or one wake-up if that cannot be said beforehand. */
static weft_status wait_for(weft_stages *s, uint64_t run, done_fn done,
                            weft_err *err)
{
    int32_t n_got = s->n_got;
    uint64_t progress_ns = weft_clock_now_ns();
    for (;;) {
        weft_stages_pump(s);
        WEFT_TRY(check(s, run, err));
        if (done(s)) return WEFT_OK;
        weft_poller_wait(s->poller, weft_clock_now_ns() + SLICE_NS, SPIN_NS);
        if (s->options.pulse != NULL) weft_pulse_step(s->options.pulse);
        weft_stages_pump(s);
        weft_stages_judge(s);
        if (done == is_woken) return check(s, run, err);
        const uint64_t now_ns = weft_clock_now_ns();
        if (s->n_got != n_got) progress_ns = now_ns;
        n_got = s->n_got;
        if (now_ns - progress_ns > ANSWER_NS)
            weft_stages_end_run(s, "no answer from the last stage");
    }
}

static weft_status send(weft_stages *s, uint64_t run, int32_t stage,
                        const weft_frame *frame, const void *const *rows,
                        weft_err *err)
{
    for (;;) {
        WEFT_TRY(check(s, run, err));
        const weft_status st =
            weft_link_send(s->at[stage].link, frame, rows, err);
        if (st == WEFT_OK) return WEFT_OK;
        if (st != WEFT_RESOURCE_EXHAUSTED) {
            weft_follower_break(s, stage, err == NULL ? "" : err->text);
            return check(s, run, err);
        }
        WEFT_TRY(wait_for(s, run, is_woken, err));
    }
}

/* ---- maps --------------------------------------------------------------- */

/* waits: for room in the queue of the link. */
static weft_status send_map(weft_stages *s, uint64_t run, int32_t stage,
                            const weft_expert_map *map, bool waits,
                            weft_err *err)
{
    const size_t bytes = weft_expert_map_bytes(map);
    unsigned char *const body = weft_mem_new(bytes, 1);
    if (body == NULL)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE,
                         "no memory to send a map of %zu bytes", bytes);
    const weft_frame frame = {
        .type = WEFT_FRAME_MAP,
        .epoch = map->epoch,
        .group = s->options.group,
        .body = body,
        .body_bytes = weft_expert_map_encode(map, body, bytes),
    };
    const weft_status st =
        waits ? send(s, run, stage, &frame, NULL, err)
              : weft_link_send(s->at[stage].link, &frame, NULL, err);
    if (st == WEFT_OK) s->at[stage].map_epoch = map->epoch;
    weft_mem_free(body);
    return st;
}

/* Whoever has not been told this epoch's map is, before its first PLAN. */
static weft_status send_maps(weft_stages *s, uint64_t run, uint64_t epoch,
                             weft_err *err)
{
    if (s->engine.exchange == NULL) return WEFT_OK;
    weft_expert_map *map = NULL;
    weft_status st = WEFT_OK;
    for (int32_t i = 1; st == WEFT_OK && i < s->options.n_stages; i++) {
        if (s->at[i].map_epoch == epoch) continue;
        if (map == NULL) map = weft_exchange_current_map(s->engine.exchange);
        if (map == NULL || map->epoch != epoch) break;
        st = send_map(s, run, i, map, true, err);
    }
    weft_expert_map_release(map);
    return st;
}

void weft_stages_tell_maps(weft_stages *s)
{
    if (s->engine.exchange == NULL || !atomic_load(&s->whole)) return;
    weft_expert_map *const map = weft_exchange_current_map(s->engine.exchange);
    weft_err err = {0};
    /* What finds no room now does so in a later turn. */
    for (int32_t i = 1; map != NULL && i < s->options.n_stages; i++)
        if (s->at[i].map_epoch != map->epoch &&
            send_map(s, s->run, i, map, false, &err) != WEFT_OK)
            break;
    weft_expert_map_release(map);
}

/* ---- micro-batches ------------------------------------------------------ */

/* Into parts of nearly equal size. A prompt that is cut stays in order, since
 * every stage computes the parts in order. */
static void cut(weft_stages *s, const weft_stages_step *step)
{
    const int32_t most = step->n_rows / s->options.micro_rows;
    int32_t n = s->options.micro_batches;
    if (n > most) n = most < 1 ? 1 : most;
    int32_t wanted = 0;
    for (int32_t m = 0; m < n; m++) {
        weft_micro *const micro = &s->micros[m];
        const int32_t end = (int32_t)((int64_t)step->n_rows * (m + 1) / n);
        micro->first = (int32_t)((int64_t)step->n_rows * m / n);
        micro->n_rows = end - micro->first;
        micro->first_wanted = wanted;
        while (wanted < step->n_wanted && step->wanted_rows[wanted] < end)
            wanted++;
        micro->n_wanted = wanted - micro->first_wanted;
    }
    s->n_micros = n;
    s->n_got = 0;
    memset(s->has, 0, sizeof s->has);
}

static weft_frame frame_of(const weft_stages *s, weft_frame_type type,
                           int32_t m)
{
    return (weft_frame){
        .type = type,
        .epoch = s->step->epoch,
        .step = s->step->step,
        .attempt = s->step->attempt,
        .group = s->options.group,
        .tag = (uint32_t)m,
    };
}

static weft_status send_plans(weft_stages *s, uint64_t run, int32_t m,
                              weft_err *err)
{
    for (int32_t i = 1; i < s->options.n_stages; i++) {
        weft_pack pack = weft_pack_into(s->body, s->body_bytes);
        weft_frame frame = frame_of(s, WEFT_FRAME_PLAN, m);
        frame.body = s->body;
        frame.body_bytes =
            weft_plan_encode(s->step, &s->micros[m], run, s->n_micros, i,
                             s->engine.page_tokens, &pack);
        WEFT_TRY(send(s, run, i, &frame, NULL, err));
    }
    return WEFT_OK;
}

static void tell_micro(const weft_stages *s, int32_t m, bool ended)
{
    if (s->options.on_micro != NULL)
        s->options.on_micro(s->options.on_micro_arg, s->step->step, m, ended);
}

/* Returns when the rows have left: the next micro-batch is computed in their
 * place. Whoever should read them and does not has rows to compute. */
static weft_status send_hidden(weft_stages *s, uint64_t run, int32_t m,
                               weft_err *err)
{
    unsigned char body[WEFT_STAGES_BODY_BYTES];
    weft_frame frame = frame_of(s, WEFT_FRAME_HIDDEN, m);
    frame.body = body;
    frame.body_bytes = weft_stages_run_encode(run, body);
    frame.n_rows = s->micros[m].n_rows;
    frame.row_bytes = (uint32_t)s->hidden_size * (uint32_t)sizeof(float);
    for (int32_t r = 0; r < frame.n_rows; r++)
        s->rows[r] = weft_layers_row(s->step->layers, r);
    WEFT_TRY(send(s, run, 1, &frame, s->rows, err));
    return wait_for(s, run, is_sent, err);
}

static weft_status run_micro(weft_stages *s, uint64_t run, int32_t m,
                             weft_err *err)
{
    const weft_micro *const micro = &s->micros[m];
    WEFT_TRY(send_plans(s, run, m, err));
    weft_stages_pump(s);
    WEFT_TRY(check(s, run, err));
    tell_micro(s, m, false);
    WEFT_TRY(weft_layers_compute(s->step->layers, micro->first, micro->n_rows,
                                 NULL, err));
    tell_micro(s, m, true);
    return send_hidden(s, run, m, err);
}

bool weft_stages_take_rows(weft_stages *s, const weft_frame *frame)
{
    uint64_t run = 0;
    if (!weft_stages_run_decode(frame, &run)) return false;
    if (s->step == NULL || run != s->run || frame->step != s->step->step ||
        frame->attempt != s->step->attempt)
        return true; /* of an earlier try */
    if (frame->tag >= (uint32_t)s->n_micros) return false;
    const weft_micro *const micro = &s->micros[frame->tag];
    const size_t row_bytes = (size_t)s->hidden_size * sizeof(float);
    if (frame->n_rows != micro->n_wanted ||
        (frame->n_rows > 0 && frame->row_bytes != row_bytes) ||
        s->has[frame->tag])
        return false;
    float *const at = s->got + (int64_t)micro->first_wanted * s->hidden_size;
    if (frame->n_rows > 0)
        memcpy(at, frame->rows, (size_t)frame->n_rows * row_bytes);
    for (int32_t i = 0; i < frame->n_rows; i++)
        s->step->wanted_out[micro->first_wanted + i] =
            at + (int64_t)i * s->hidden_size;
    s->has[frame->tag] = true;
    s->n_got++;
    return true;
}

static weft_status run_all(weft_stages *s, uint64_t run, weft_err *err)
{
    WEFT_TRY(check(s, run, err));
    /* Rows of a try that was given up half way are still where they were. */
    WEFT_TRY(wait_for(s, run, is_sent, err));
    WEFT_TRY(send_maps(s, run, s->step->epoch, err));
    for (int32_t m = 0; m < s->n_micros; m++)
        WEFT_TRY(run_micro(s, run, m, err));
    return wait_for(s, run, is_answered, err);
}

weft_status weft_stages_run(weft_stages *s, const weft_stages_step *step,
                            weft_err *err)
{
    s->stuck = false;
    s->step = step;
    cut(s, step);
    const weft_status st = run_all(s, s->run, err);
    s->step = NULL;
    return st;
}
