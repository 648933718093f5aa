/* The frames of a stage, and its part of each micro-batch. */
#include <stdio.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/log.h"
#include "shard/step/stage_internal.h"

/* How long a stage waits for experts that its lead has found, before it tells
 * the lead that it has not. Meanwhile the lead hears of no cancel. */
static const uint64_t EXPERTS_NS = UINT64_C(60) * 1000 * 1000;
static const uint64_t SLICE_NS = UINT64_C(20) * 1000 * 1000;
static const uint64_t WARN_NS = UINT64_C(1000) * 1000 * 1000;

/* A peer that sends what it must not; its link ends. */
static void break_off(weft_stage *s, weft_stage_from from, const char *why)
{
    const uint64_t now_ns = weft_clock_now_ns();
    if (now_ns - s->warned_ns < WARN_NS) {
        s->n_unsaid++;
    } else {
        weft_log(WEFT_LOG_WARN, "stage", "wrong_frame",
                 "from \"%s\" reason \"%s\" unsaid %llu",
                 weft_link_name(s->links[from]), why,
                 (unsigned long long)s->n_unsaid);
        s->warned_ns = now_ns;
        s->n_unsaid = 0;
    }
    weft_stage_break(s, from, why);
}

/* ---- to the lead -------------------------------------------------------- */

static void tell_lead(weft_stage *s, weft_frame *frame, const void *body,
                      size_t body_bytes)
{
    frame->group = s->options.group;
    frame->body = body;
    frame->body_bytes = body_bytes;
    weft_stage_tell(s, frame);
}

void weft_stage_hail(weft_stage *s, uint64_t run)
{
    unsigned char body[WEFT_STAGES_BODY_BYTES];
    const weft_stages_hail hail = {.run = run, .kv_bytes = s->arena_bytes};
    weft_frame frame = {.type = WEFT_FRAME_RESET};
    tell_lead(s, &frame, body, weft_stages_hail_encode(&hail, body));
    s->answered = run;
}

static void tell_stuck(weft_stage *s, const weft_micro_name *name,
                       weft_stuck_why why, const char *text)
{
    unsigned char body[WEFT_STAGES_BODY_BYTES];
    weft_stuck stuck = {.run = name->run, .why = (uint32_t)why};
    (void)snprintf(stuck.text, sizeof stuck.text, "%.150s", text);
    weft_frame frame = {
        .type = WEFT_FRAME_STUCK,
        .epoch = s->epoch,
        .step = name->step,
        .attempt = name->attempt,
        .tag = name->tag,
    };
    tell_lead(s, &frame, body, weft_stuck_encode(&stuck, body));
}

/* ---- runs --------------------------------------------------------------- */

void weft_stage_forget(weft_stage *s)
{
    for (int32_t i = 0; s->slots.at != NULL && i < s->slots.n; i++) {
        memset(s->slots.at[i].n_pages, 0, sizeof s->slots.at[i].n_pages);
        s->slots.at[i].n_written = 0;
    }
    s->n_plans = s->first_plan = 0;
    s->rows.n_rows = 0;
    s->begun = s->failed = (weft_micro_name){0};
    s->over = s->refusing = false;
    s->step_rows = 0;
}

/* The first value that is not as the lead says; "" if all are. */
static void compare(const weft_stage *s, const weft_stages_values *v,
                    char *text_out, size_t text_bytes)
{
    const weft_stage_options *const o = &s->options;
    const struct {
        const char *name;
        int64_t lead, here;
    } all[] = {
        {"n_stages", v->n_stages, o->n_stages},
        {"stage", v->stage, o->stage},
        {"page_tokens", v->page_tokens, o->engine.page_tokens},
        {"chunk_tokens", v->chunk_tokens, o->engine.chunk_tokens},
        {"max_seqs", v->max_seqs, o->engine.max_seqs},
        {"max_context", v->max_context, o->engine.max_context},
        {"profile", v->profile, (int64_t)o->engine.profile},
        {"hidden_size", v->hidden_size, o->config->hidden_size},
    };
    text_out[0] = '\0';
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].lead == all[i].here) continue;
        (void)snprintf(text_out, text_bytes,
                       "%s is %lld at the lead and %lld here", all[i].name,
                       (long long)all[i].lead, (long long)all[i].here);
        return;
    }
    if (v->kv_bytes > s->arena_bytes)
        (void)snprintf(text_out, text_bytes,
                       "KV memory is %lld bytes for the lead and %lld here",
                       (long long)v->kv_bytes, (long long)s->arena_bytes);
}

static bool take_reset(weft_stage *s, const weft_frame *frame)
{
    weft_stages_values values;
    if (!weft_stages_values_decode(frame, &values)) return false;
    weft_stage_forget(s);
    s->run = values.run;
    char text[WEFT_STUCK_TEXT_BYTES];
    compare(s, &values, text, sizeof text);
    if (text[0] == '\0') return true;
    weft_log(WEFT_LOG_ERROR, "stage", "lead_refused", "reason \"%s\"", text);
    const weft_micro_name name = {.run = s->run};
    s->refusing = true;
    tell_stuck(s, &name, WEFT_STUCK_REFUSED, text);
    return true;
}

/* The lead hears that this stage is in its run once rows can go on. */
static void answer_reset(weft_stage *s)
{
    const bool last = s->options.stage == s->options.n_stages - 1;
    if (s->run == 0 || s->over || s->refusing || s->answered == s->run) return;
    if (!last && s->links[WEFT_FROM_NEXT] == NULL) return;
    weft_stage_hail(s, s->run);
}

/* ---- frames ------------------------------------------------------------- */

/* By age: run aside, which is compared for sameness alone. */
static int compare_names(const weft_micro_name *a, const weft_micro_name *b)
{
    if (a->step != b->step) return a->step < b->step ? -1 : 1;
    if (a->attempt != b->attempt) return a->attempt < b->attempt ? -1 : 1;
    if (a->tag != b->tag) return a->tag < b->tag ? -1 : 1;
    return 0;
}

static bool is_same_try(const weft_micro_name *a, const weft_micro_name *b)
{
    return a->run == b->run && a->step == b->step && a->attempt == b->attempt;
}

static weft_micro_name name_of(const weft_frame *frame, uint64_t run)
{
    return (weft_micro_name){.run = run,
                             .step = frame->step,
                             .attempt = frame->attempt,
                             .tag = frame->tag};
}

/* Of a try that is over here. */
static bool is_past(const weft_stage *s, const weft_micro_name *name)
{
    return s->over || name->run != s->run || name->step < s->failed.step ||
           (name->step == s->failed.step && s->failed.run != 0 &&
            name->attempt <= s->failed.attempt);
}

static bool take_plan(weft_stage *s, const weft_frame *frame)
{
    weft_plan_head head;
    if (!weft_plan_decode_head(frame->body, frame->body_bytes, &head) ||
        frame->body_bytes > s->body_bytes_max ||
        head.n_rows > s->layers.max_rows ||
        frame->tag >= (uint32_t)head.n_micros)
        return false;
    const weft_micro_name name = name_of(frame, head.run);
    if (is_past(s, &name)) return true;
    /* The lead begins another try when it has done with the one before. */
    if (s->n_plans > 0 && !is_same_try(&s->plans[s->first_plan].name, &name))
        s->n_plans = 0;
    if (s->n_plans == WEFT_MICRO_MAX) return false;
    const int32_t at = (s->first_plan + s->n_plans++) % WEFT_MICRO_MAX;
    weft_stage_plan *const plan = &s->plans[at];
    plan->name = name;
    plan->epoch = frame->epoch;
    plan->head = head;
    plan->body_bytes = frame->body_bytes;
    memcpy(plan->body, frame->body, frame->body_bytes);
    return true;
}

static bool take_map(weft_stage *s, const weft_frame *frame)
{
    if (s->options.exchange == NULL) return true;
    const weft_model_config *const c = s->options.config;
    weft_expert_map *map = NULL;
    weft_err err = {0};
    if (weft_expert_map_decode(frame->body, frame->body_bytes, c->n_layer,
                               c->n_expert, &map, &err) != WEFT_OK)
        return false;
    weft_exchange_set_map(s->options.exchange, map);
    weft_expert_map_release(map);
    return true;
}

/* Rows that go on to be computed. They stay where the link has them. */
static bool take_hidden(weft_stage *s, const weft_frame *frame)
{
    uint64_t run = 0;
    if (!weft_stages_run_decode(frame, &run) || frame->n_rows < 1 ||
        frame->n_rows > s->layers.max_rows ||
        frame->row_bytes !=
            (uint32_t)s->options.config->hidden_size * sizeof(float))
        return false;
    const weft_micro_name name = name_of(frame, run);
    if (is_past(s, &name)) return true;
    s->rows = *frame;
    s->rows_name = name;
    return true;
}

static bool take_frame(weft_stage *s, weft_stage_from from,
                       const weft_frame *frame)
{
    const bool before = from == WEFT_FROM_BEFORE ||
                        (from == WEFT_FROM_LEAD && s->options.stage == 1);
    if (frame->group != s->options.group) return false;
    if (before && frame->type == WEFT_FRAME_HIDDEN)
        return take_hidden(s, frame);
    if (from != WEFT_FROM_LEAD) return false;
    switch (frame->type) {
    case WEFT_FRAME_RESET: return take_reset(s, frame);
    case WEFT_FRAME_PLAN: return take_plan(s, frame);
    case WEFT_FRAME_MAP: return take_map(s, frame);
    default: return false;
    }
}

/* Whether another frame of that link can be taken: not while its rows are
 * borrowed. Plans always are: there is a place for all of one try, and the next
 * try's take the places of those that got no rows. */
static bool may_read(const weft_stage *s, weft_stage_from from)
{
    const bool both = from == WEFT_FROM_LEAD && s->options.stage == 1;
    const bool brings_rows = from == WEFT_FROM_BEFORE || both;
    return !brings_rows || s->rows.n_rows == 0;
}

static bool pump(weft_stage *s, weft_stage_from from)
{
    bool any = false;
    while (s->links[from] != NULL && may_read(s, from)) {
        weft_frame frame;
        bool got = false;
        weft_err err = {0};
        if (weft_link_recv(s->links[from], &frame, &got, &err) != WEFT_OK) {
            weft_stage_break(s, from, err.text);
            return true;
        }
        if (!got) return any;
        any = true;
        if (take_frame(s, from, &frame)) continue;
        char text[96];
        (void)snprintf(text, sizeof text, "a wrong \"%s\" frame",
                       weft_frame_type_name(frame.type));
        break_off(s, from, text);
    }
    return any;
}

/* ---- computing ---------------------------------------------------------- */

/* Before the first micro-batch of a try: the epoch is the lead's. */
static weft_status begin_experts(weft_stage *s, const weft_stage_plan *plan,
                                 weft_err *err)
{
    if (s->experts == NULL || is_same_try(&s->begun, &plan->name))
        return WEFT_OK;
    const uint64_t deadline_ns = weft_clock_now_ns() + EXPERTS_NS;
    for (;;) {
        *err = (weft_err){0};
        const weft_status st =
            s->experts->begin(s->experts->arg, plan->name.step,
                              plan->name.attempt, plan->epoch, &s->epoch, err);
        if (st == WEFT_OK) s->begun = plan->name;
        const uint64_t now_ns = weft_clock_now_ns();
        if (st != WEFT_UNAVAILABLE || now_ns >= deadline_ns ||
            atomic_load(&s->stop))
            return st;
        s->experts->idle(s->experts->arg, now_ns + SLICE_NS);
        weft_stage_publish(s);
    }
}

static void tell_micro(const weft_stage *s, const weft_stage_plan *plan,
                       bool ended)
{
    if (s->options.on_micro != NULL)
        s->options.on_micro(s->options.on_micro_arg, plan->name.step,
                            (int32_t)plan->name.tag, ended);
}

/* Pulses of a link that says nothing else, and whether they still come. */
static void listen(weft_stage *s, weft_stage_from from, uint64_t since_ns)
{
    weft_err err = {0};
    (void)pump(s, from);
    if (s->links[from] != NULL &&
        weft_link_judge(s->links[from], weft_clock_now_ns(), since_ns, &err) !=
            WEFT_OK)
        weft_stage_break(s, from, err.text);
}

/* Another lead, which no turn has taken yet. */
static bool is_lead_replaced(weft_stage *s)
{
    (void)pthread_mutex_lock(&s->lock);
    const bool replaced = s->offered[WEFT_FROM_LEAD] != NULL;
    (void)pthread_mutex_unlock(&s->lock);
    return replaced;
}

/* Sends, and returns when the rows have left, since the next ones are computed
 * in their place. A receiver that computes takes them later. What the lead says
 * meanwhile is not for here, so its silence is not judged; a lead that has gone
 * ends its link, and so does one in whose place another has come. */
static void send_rows(weft_stage *s, weft_stage_from to, weft_frame *frame)
{
    const uint64_t since_ns = weft_clock_now_ns();
    bool sent = false;
    while (s->links[to] != NULL && !atomic_load(&s->stop)) {
        weft_err err = {0};
        weft_status st = WEFT_OK;
        if (!sent) st = weft_link_send(s->links[to], frame, s->row_at, &err);
        sent = sent || st == WEFT_OK;
        const uint64_t now_ns = weft_clock_now_ns();
        if (st == WEFT_OK || st == WEFT_RESOURCE_EXHAUSTED)
            st = weft_link_flush(s->links[to], now_ns + SLICE_NS, &err);
        if (st == WEFT_OK && sent) return;
        if (s->options.pulse != NULL) weft_pulse_step(s->options.pulse);
        if (st != WEFT_OK && st != WEFT_DEADLINE_EXCEEDED)
            weft_stage_break(s, to, err.text);
        else if (to == WEFT_FROM_NEXT)
            listen(s, to, since_ns);
        else if (is_lead_replaced(s))
            weft_stage_break(s, to, "another link");
    }
}

static void pass_on(weft_stage *s, const weft_stage_plan *plan,
                    int32_t n_wanted)
{
    const bool last = s->options.stage == s->options.n_stages - 1;
    unsigned char body[WEFT_STAGES_BODY_BYTES];
    weft_frame frame = {
        .type = WEFT_FRAME_HIDDEN,
        .epoch = plan->epoch,
        .step = plan->name.step,
        .attempt = plan->name.attempt,
        .tag = plan->name.tag,
        .group = s->options.group,
        .body = body,
        .body_bytes = weft_stages_run_encode(plan->name.run, body),
        .n_rows = last ? n_wanted : plan->head.n_rows,
    };
    if (frame.n_rows > 0)
        frame.row_bytes =
            (uint32_t)s->options.config->hidden_size * (uint32_t)sizeof(float);
    for (int32_t r = 0; r < frame.n_rows; r++)
        s->row_at[r] = weft_layers_row(&s->layers, last ? s->wanted[r] : r);
    send_rows(s, last ? WEFT_FROM_LEAD : WEFT_FROM_NEXT, &frame);
}

/* A step is over here with its last micro-batch. */
static void count_step(weft_stage *s, const weft_stage_plan *plan)
{
    s->step_rows += plan->head.n_rows;
    if (plan->name.tag + 1 < (uint32_t)plan->head.n_micros) return;
    s->n_steps++;
    if (s->options.on_step != NULL)
        s->options.on_step(s->options.on_step_arg,
                           weft_clock_now_ns() - s->step_begin_ns,
                           s->step_rows);
}

static void fail(weft_stage *s, const weft_stage_plan *plan, const char *text)
{
    s->failed = plan->name;
    tell_stuck(s, &plan->name, WEFT_STUCK_EXPERTS, text);
}

/* Rows and plan belong together. */
static void compute(weft_stage *s, const weft_stage_plan *plan)
{
    weft_err err = {0};
    int32_t n_wanted = 0;
    if (plan->name.tag == 0) {
        s->step_begin_ns = weft_clock_now_ns();
        s->step_rows = 0;
    }
    if (s->rows.n_rows != plan->head.n_rows ||
        weft_plan_decode(plan->body, plan->body_bytes, &s->slots, &s->layers,
                         s->wanted, &n_wanted, &err) != WEFT_OK) {
        break_off(s, WEFT_FROM_LEAD,
                  err.status != WEFT_OK ? err.text
                                        : "not as many rows as said");
        return;
    }
    weft_status st = begin_experts(s, plan, &err);
    if (st == WEFT_OK) {
        tell_micro(s, plan, false);
        st = weft_layers_compute(&s->layers, 0, plan->head.n_rows, s->rows.rows,
                                 &err);
        tell_micro(s, plan, true);
    }
    if (st == WEFT_INTERNAL) {
        weft_stage_fail(s, &err);
        return;
    }
    if (st != WEFT_OK) {
        fail(s, plan, err.text);
        return;
    }
    pass_on(s, plan, n_wanted);
    count_step(s, plan);
}

static void pop_plan(weft_stage *s)
{
    s->first_plan = (s->first_plan + 1) % WEFT_MICRO_MAX;
    s->n_plans--;
}

/* What belongs together is computed; what is left over from an earlier try is
 * dropped. Whether there was any. */
static bool pair(weft_stage *s)
{
    while (s->n_plans > 0 && is_past(s, &s->plans[s->first_plan].name))
        pop_plan(s);
    if (s->rows.n_rows == 0) return false;
    if (s->n_plans == 0) {
        /* Rows of stage 1 come behind their plan on the same link. */
        if (s->options.stage == 1 || is_past(s, &s->rows_name))
            s->rows.n_rows = 0;
        return s->rows.n_rows == 0;
    }
    weft_stage_plan *const plan = &s->plans[s->first_plan];
    const int order = compare_names(&plan->name, &s->rows_name);
    if (order == 0) compute(s, plan);
    if (order >= 0) s->rows.n_rows = 0;
    if (order <= 0 && s->n_plans > 0) pop_plan(s);
    return true;
}

bool weft_stage_turn(weft_stage *s)
{
    bool any = pump(s, WEFT_FROM_LEAD);
    any = pump(s, WEFT_FROM_BEFORE) || any;
    any = pump(s, WEFT_FROM_NEXT) || any;
    answer_reset(s);
    if (!pair(s)) return any;
    weft_stage_publish(s);
    return true;
}
