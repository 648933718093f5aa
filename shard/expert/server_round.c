/* What is computed at once: the next pairs of all questions of one layer,
 * expert by expert, so that a matrix is read once for whoever asks it. */
#include <stdio.h>
#include <string.h>

#include "node/base/check.h"
#include "node/base/clock.h"
#include "node/base/failpoint.h"
#include "shard/expert/server_internal.h"

#define ECHO_NS UINT64_C(1000000000)

static bool is_of(const weft_server_client *c, int32_t layer)
{
    return weft_server_is_ready(c) && c->question.frame.layer == layer;
}

/* Whose question has waited longest; -1: nobody's can be answered. */
static int32_t oldest(const weft_expert_server *s)
{
    int32_t best = -1;
    for (int32_t i = 0; i < s->n_clients; i++)
        if (weft_server_is_ready(&s->clients[i]) &&
            (best < 0 || s->clients[i].question.came_ns <
                             s->clients[best].question.came_ns))
            best = i;
    return best;
}

static int32_t next_expert(const weft_server_client *c)
{
    const weft_server_question *const q = &c->question;
    return q->pairs[q->next + c->n_taken].expert;
}

static bool has_more(const weft_server_client *c)
{
    return c->question.next + c->n_taken < c->question.n_pairs;
}

/* The lowest expert >= `from` that some client of the layer asks next. */
static int32_t lowest_expert(const weft_expert_server *s, int32_t layer,
                             int32_t from)
{
    int32_t lowest = INT32_MAX;
    for (int32_t i = 0; i < s->n_clients; i++) {
        const weft_server_client *const c = &s->clients[i];
        if (!is_of(c, layer) || !has_more(c)) continue;
        const int32_t e = next_expert(c);
        if (e >= from && e < lowest) lowest = e;
    }
    return lowest;
}

/* Takes what client i asks of the expert, as far as there is room. Whether it
 * was all. */
static bool take(weft_expert_server *s, weft_server_plan *plan, int32_t i,
                 int32_t expert)
{
    weft_server_client *const c = &s->clients[i];
    while (has_more(c) && next_expert(c) == expert) {
        if (c->n_taken == WEFT_ANSWER_ROWS_MAX ||
            plan->n_pairs == WEFT_ROUND_PAIRS_MAX)
            return false;
        if (c->n_taken == 0) {
            plan->n_clients++;
            plan->only = i;
        }
        s->picked[plan->n_pairs++] = (weft_server_picked){
            .client = i, .pair = c->question.next + c->n_taken++};
    }
    return true;
}

/* From the expert at which the oldest question stands, upwards. */
static void plan_round(weft_expert_server *s, int32_t first,
                       weft_server_plan *plan)
{
    for (int32_t i = 0; i < s->n_clients; i++) s->clients[i].n_taken = 0;
    plan->layer = s->clients[first].question.frame.layer;
    plan->n_pairs = plan->n_clients = plan->n_stretches = 0;
    plan->only = first;
    int32_t from = next_expert(&s->clients[first]);
    for (bool room = true; room;) {
        const int32_t e = lowest_expert(s, plan->layer, from);
        if (e == INT32_MAX) break;
        const int32_t begin = plan->n_pairs;
        /* The oldest first: others alone may fill a round. */
        if (has_more(&s->clients[first]) &&
            next_expert(&s->clients[first]) == e)
            room = take(s, plan, first, e);
        for (int32_t i = 0; i < s->n_clients; i++)
            if (is_of(&s->clients[i], plan->layer)) room &= take(s, plan, i, e);
        if (plan->n_pairs > begin)
            plan->stretches[plan->n_stretches++] = (weft_server_stretch){
                .expert = e, .first = begin, .end = plan->n_pairs};
        from = e + 1;
    }
}

/* -- computing ------------------------------------------------------------ */

const float *weft_server_asked_row(const weft_expert_server *s,
                                   const weft_server_picked *picked)
{
    const weft_server_question *const q = &s->clients[picked->client].question;
    const float *const rows = q->frame.rows;
    return rows + (int64_t)q->pairs[picked->pair].row * s->config->hidden_size;
}

/* Where the products read: one question's rows lie side by side already; those
 * of several are brought together. */
static const float *gather(weft_expert_server *s, const weft_server_plan *plan)
{
    const size_t bytes = (size_t)s->config->hidden_size * sizeof(float);
    if (plan->n_clients == 1) {
        const weft_server_question *const q = &s->clients[plan->only].question;
        for (int32_t i = 0; i < plan->n_pairs; i++)
            s->x_rows[i] = q->pairs[s->picked[i].pair].row;
        return q->frame.rows;
    }
    for (int32_t i = 0; i < plan->n_pairs; i++) {
        memcpy(s->x + (int64_t)i * s->config->hidden_size,
               weft_server_asked_row(s, &s->picked[i]), bytes);
        s->x_rows[i] = i;
    }
    return s->x;
}

static weft_gemm product(const weft_matrix *w, const float *x, float *y,
                         int32_t n_rows)
{
    return (weft_gemm){
        .w = w,
        .x = x,
        .y = y,
        .x_stride = w->n_in,
        .y_stride = w->n_out,
        .n_row = n_rows,
        .round = WEFT_ROUND_NONE,
    };
}

/* gate, up, silu and down of every stretch, as a layer shard computes them. */
static void compute(weft_expert_server *s, const weft_server_plan *plan,
                    const float *x, float *out)
{
    const weft_ops *const ops = s->options.ops;
    const int64_t width = s->config->moe_intermediate_size;
    int32_t n = 0;
    for (int32_t i = 0; i < plan->n_stretches; i++) {
        const weft_server_stretch *const t = &plan->stretches[i];
        const weft_mlp_weights *const w = s->held[t->expert];
        weft_gemm g =
            product(&w->gate, x, s->gate + t->first * width, t->end - t->first);
        g.x_rows = s->x_rows + t->first;
        s->gemms[n++] = g;
        g.w = &w->up;
        g.y = s->up + t->first * width;
        s->gemms[n++] = g;
    }
    ops->gemm(s->threads, s->gemms, n);
    const weft_silu_mul act = {
        .a = s->gate,
        .b = s->up,
        .y = s->gate,
        .a_stride = width,
        .b_stride = width,
        .y_stride = width,
        .n_row = plan->n_pairs,
        .width = (int32_t)width,
        .round = WEFT_ROUND_NONE,
    };
    ops->silu_mul(s->threads, &act);
    n = 0;
    for (int32_t i = 0; i < plan->n_stretches; i++) {
        const weft_server_stretch *const t = &plan->stretches[i];
        s->gemms[n++] =
            product(&s->held[t->expert]->down, s->gate + t->first * width,
                    out + (int64_t)t->first * s->config->hidden_size,
                    t->end - t->first);
    }
    ops->gemm(s->threads, s->gemms, n);
}

/* The rows of the round; one question's mostly where they are sent from. */
static const float *computed(weft_expert_server *s,
                             const weft_server_plan *plan)
{
    weft_server_client *const only = &s->clients[plan->only];
    float *const to =
        plan->n_clients == 1 ? only->answers[only->n_flying] : s->out;
    const float *rows = to;
    weft_err err = {0};
    if (s->options.echo) return rows;
    if (s->device == NULL)
        compute(s, plan, gather(s, plan), to);
    else if (weft_server_device_compute(s, plan, &rows, &err) != WEFT_OK)
        weft_server_fail(s, &err);
    return rows;
}

/* Looks up the experts that the client's question still asks. The first that is
 * not held, or -1. */
static int32_t look_up(weft_expert_server *s, const weft_server_client *c)
{
    const weft_server_question *const q = &c->question;
    for (int32_t i = q->next; i < q->n_pairs; i++) {
        const int32_t e = q->pairs[i].expert;
        if (s->held[e] != NULL) continue;
        s->held[e] = weft_expert_store_get(s->options.store, q->frame.layer, e);
        if (s->held[e] == NULL) return e;
    }
    return -1;
}

/* -- answers -------------------------------------------------------------- */

bool weft_server_is_ready(const weft_server_client *c)
{
    if (c->link == NULL || c->broken || !c->question.held ||
        c->n_computed != 0 || c->n_flying >= WEFT_ANSWERS_FLYING)
        return false;
    return !c->question.frame.is_near || c->has_room;
}

static void name_answer(const weft_server_client *c, weft_frame *frame)
{
    const weft_frame *const asked = &c->question.frame;
    frame->epoch = asked->epoch;
    frame->step = asked->step;
    frame->layer = asked->layer;
    frame->attempt = asked->attempt;
    frame->group = asked->group;
    frame->tag = asked->tag;
}

/* Whether it was sent; a broken link is noted. */
static bool note_sent(weft_server_client *c, weft_status st,
                      const weft_err *err)
{
    if (st != WEFT_OK && st != WEFT_RESOURCE_EXHAUSTED)
        weft_server_lose(c, err);
    return st == WEFT_OK;
}

bool weft_server_send(weft_server_client *c, weft_frame *frame,
                      const void *const *rows)
{
    weft_err err = {0};
    name_answer(c, frame);
    const weft_status st = weft_link_send(c->link, frame, rows, &err);
    return note_sent(c, st, &err);
}

static bool send_near(const weft_expert_server *s, weft_server_client *c,
                      weft_frame *frame)
{
    weft_err err = {0};
    name_answer(c, frame);
    const weft_status st = weft_server_device_send(s, c, frame, &err);
    return note_sent(c, st, &err);
}

static const float *echoed_row(const weft_expert_server *s,
                               const weft_server_question *q, int32_t i)
{
    const float *const rows = q->frame.rows;
    return rows + (int64_t)q->pairs[i].row * s->config->hidden_size;
}

void weft_server_answer(weft_expert_server *s, weft_server_client *c)
{
    weft_server_question *const q = &c->question;
    const int64_t hidden = s->config->hidden_size;
    const int32_t n = c->n_computed, b = c->n_flying;
    uint32_t pairs[WEFT_ANSWER_ROWS_MAX];
    unsigned char body[WEFT_ANSWER_BODY_BYTES_MAX];
    for (int32_t r = 0; r < n; r++) {
        pairs[r] = q->pairs[q->next + r].pair;
        if (q->frame.is_near) continue;
        c->rows[b][r] = s->options.echo ? echoed_row(s, q, q->next + r)
                                        : c->answers[b] + r * hidden;
    }
    weft_frame frame = {
        .type = WEFT_FRAME_ANSWER,
        .body = body,
        .body_bytes = weft_answer_encode(pairs, n, body),
        .n_rows = n,
        .row_bytes = (uint32_t)hidden * (uint32_t)sizeof(float),
    };
    /* Counted before anybody can have seen it. */
    atomic_fetch_add(&s->rows, (uint64_t)n);
    if (!(q->frame.is_near ? send_near(s, c, &frame)
                           : weft_server_send(c, &frame, c->rows[b]))) {
        atomic_fetch_sub(&s->rows, (uint64_t)n);
        /* The next round needs their place: they are computed again. */
        if (q->frame.is_near) c->n_computed = 0;
        return;
    }
    /* Echoed rows are the link's own, till it receives. */
    if (s->options.echo &&
        weft_link_flush(c->link, weft_clock_now_ns() + ECHO_NS, NULL) !=
            WEFT_OK)
        c->broken = true;
    c->n_computed = 0;
    /* The link has copies of near rows. */
    if (!q->frame.is_near) c->n_flying = weft_link_is_idle(c->link) ? 0 : b + 1;
    q->next += n;
    if (q->next == q->n_pairs) q->held = false;
}

/* Each client's rows into its own buffer, in the order of its pairs, which is
 * the order in which they were picked. */
static void hand_out(weft_expert_server *s, const weft_server_plan *plan,
                     const float *from)
{
    const int64_t hidden = s->config->hidden_size;
    for (int32_t i = 0; i < plan->n_pairs; i++) {
        weft_server_client *const c = &s->clients[s->picked[i].client];
        c->n_computed++;
        if (c->question.frame.is_near) continue;
        const float *const row = s->options.echo
                                     ? weft_server_asked_row(s, &s->picked[i])
                                     : from + i * hidden;
        float *const to =
            c->answers[c->n_flying] +
            (int64_t)(s->picked[i].pair - c->question.next) * hidden;
        if (to != row && !s->options.echo)
            memcpy(to, row, (size_t)hidden * sizeof *to);
    }
}

void weft_server_reject(weft_expert_server *s, weft_server_client *c,
                        weft_reject_reason reason, const char *text)
{
    unsigned char body[WEFT_REJECT_TEXT_BYTES];
    weft_frame frame = {
        .type = WEFT_FRAME_REJECT,
        .body = body,
        .body_bytes = weft_reject_encode(reason, text, body),
    };
    atomic_fetch_add(&s->rejected, 1);
    /* A queue has room beside the answers that may fly. */
    if (!weft_server_send(c, &frame, NULL)) c->broken = true;
    c->question.held = false;
}

bool weft_server_round(weft_expert_server *s, uint64_t now_ns)
{
    const int32_t first = oldest(s);
    if (first < 0) return false;
    const int32_t layer = s->clients[first].question.frame.layer;
    memset(s->held, 0,
           (size_t)s->config->n_expert * sizeof(weft_mlp_weights *));
    for (int32_t i = 0; i < s->n_clients && !s->options.echo; i++) {
        weft_server_client *const c = &s->clients[i];
        if (!is_of(c, layer)) continue;
        const int32_t missing = look_up(s, c);
        if (missing < 0) continue;
        char text[WEFT_REJECT_TEXT_BYTES];
        (void)snprintf(text, sizeof text, "layer %d expert %d is not held",
                       layer, missing);
        weft_server_reject(s, c, WEFT_REJECT_EXPERT, text);
    }
    if (!is_of(&s->clients[first], layer)) return true;
    weft_server_plan plan;
    plan_round(s, first, &plan);
    for (int32_t i = 0; i < s->n_clients; i++) {
        const weft_server_client *const c = &s->clients[i];
        if (c->n_taken == 0 || c->question.next > 0) continue;
        /* One that came since this round's time was taken has not waited. */
        if (now_ns > c->question.came_ns)
            atomic_fetch_add(&s->wait_ns, now_ns - c->question.came_ns);
        atomic_fetch_add(&s->n_waits, 1);
    }
    const float *const rows = computed(s, &plan);
    if (s->lost) return true;
    hand_out(s, &plan, rows);
    WEFT_FAILPOINT("experts.before_answer");
    for (int32_t i = 0; i < s->n_clients; i++)
        if (s->clients[i].n_computed > 0) weft_server_answer(s, &s->clients[i]);
    WEFT_FAILPOINT("experts.after_answer");
    return true;
}
