#include "tests/support/desk.h"

#include <check.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "tests/support/expect.h"
#include "tests/support/synth.h"

static const uint64_t WAIT_NS = 20ULL * 1000 * 1000 * 1000;

static bool take(void *arg, const weft_event *event)
{
    desk *const d = arg;
    const bool refuse = atomic_load(&d->closed) ||
                        d->refused_in_a_row < atomic_load(&d->refusals);
    if (!refuse && weft_ring_push(d->ring, event)) {
        d->refused_in_a_row = 0;
        return true;
    }
    d->refused_in_a_row++;
    (void)atomic_fetch_add(&d->n_refused, 1);
    return false;
}

static void set(int32_t *field, int32_t value)
{
    if (*field == 0) *field = value;
}

static void open_model(desk *d)
{
    char dir[64];
    synth_folder_make(dir);
    synth_case_write(dir, "T02", NULL, NULL);
    d->model = harness_open(dir, WEFT_EXACT);
    synth_folder_remove(dir);
}

desk *desk_open(weft_engine_options o)
{
    desk *const d = weft_mem_new(1, sizeof *d);
    d->told = weft_mem_new(DESK_JOBS, sizeof *d->told);
    open_model(d);
    set(&o.page_tokens, 4);
    set(&o.chunk_tokens, 8);
    set(&o.max_seqs, 4);
    set(&o.max_waiting, 8);
    set(&o.max_context, 256);
    set(&o.threads, 1);
    o.profile = WEFT_EXACT;
    o.ops = harness_ops(NULL);
    if (o.kv_bytes == 0) {
        weft_kv_layout layout;
        OK(weft_kv_layout_make(&d->model.config, WEFT_F32, o.page_tokens,
                               &layout, &err));
        o.kv_bytes = (int64_t)(o.max_seqs + 1) *
                         weft_kv_bytes_for(&d->model.config, &layout,
                                           o.max_context, o.chunk_tokens) +
                     4 * layout.slab_bytes;
    }
    OK(weft_ring_create(sizeof(weft_event), 64, &d->ring, &err));
    OK(weft_engine_create(&d->model.config, weft_model_weights(d->model.model),
                          &o, (weft_event_sink){.take = take, .arg = d}, NULL,
                          NULL, &d->engine, &err));
    return d;
}

void desk_start(desk *d)
{
    OK(weft_engine_start(d->engine, &err));
}

weft_job *desk_job(desk *d, uint64_t handle, int32_t n_prompt, int32_t n_new,
                   int32_t salt)
{
    ck_assert_uint_lt(handle, DESK_JOBS);
    ck_assert_int_le(n_prompt + n_new, DESK_TOKENS);
    desk_told *const t = &d->told[handle];
    *t = (desk_told){.n_tokens = n_prompt};
    synth_prompt(t->tokens, n_prompt);
    for (int32_t i = 0; i < n_prompt; i++)
        t->tokens[i] = (t->tokens[i] + salt * (i + 1)) % DESK_VOCAB;
    t->job = (weft_job){
        .handle = handle,
        .age = handle + 1,
        .deadline_ns = UINT64_MAX,
        .tokens = t->tokens,
        .n_prompt = n_prompt,
        .n_tokens = n_prompt,
        .max_tokens = n_new,
        .sampling = {.top_p = 1.0F, .repetition_penalty = 1.0F},
        .logprobs = 0,
        .prompt_logprobs = -1,
    };
    return &t->job;
}

void desk_submit(desk *d, uint64_t handle)
{
    OK(weft_engine_submit(d->engine, &d->told[handle].job));
}

void desk_cancel(desk *d, uint64_t handle)
{
    OK(weft_engine_cancel(d->engine, handle));
}

static void take_token(desk_told *t, const weft_event *event)
{
    ck_assert_msg(event->position == t->n_tokens,
                  "token for position %d, expected %d", event->position,
                  t->n_tokens);
    ck_assert_int_lt(t->n_tokens, DESK_TOKENS);
    t->logprobs[t->n_tokens] = event->logprob;
    t->tokens[t->n_tokens++] = event->token;
}

/* After a preemption they come again, and are the same. */
static void take_prompt_logprob(desk_told *t, const weft_event *event)
{
    const int32_t at = event->position;
    ck_assert(at >= 1 && at < t->job.n_prompt);
    ck_assert_int_eq(event->token, t->tokens[at]);
    ck_assert_int_le(at, t->n_prompt_logprobs + 1);
    if (at == t->n_prompt_logprobs + 1) {
        t->prompt_logprobs[at] = event->logprob;
        t->n_prompt_logprobs = at;
    }
    ck_assert_mem_eq(&t->prompt_logprobs[at], &event->logprob, sizeof(float));
    t->n_prompt_events++;
}

static void take_last(desk *d, desk_told *t, const weft_event *event)
{
    if (event->finish == WEFT_FINISH_PREEMPTED) {
        t->n_preempted++;
        t->job.n_tokens = t->n_tokens;
        desk_submit(d, event->handle);
        return;
    }
    t->n_last++;
    t->over = true;
    t->finish = event->finish;
    t->status = event->status;
    memcpy(t->text, event->text, sizeof t->text);
}

void desk_take_event(desk *d)
{
    weft_event event;
    weft_ring_wait(d->ring, weft_clock_now_ns() + WAIT_NS);
    ck_assert_msg(weft_ring_pop(d->ring, &event), "no event came");
    ck_assert_uint_lt(event.handle, DESK_JOBS);
    if (d->on_event != NULL) d->on_event(d, &event);
    desk_told *const t = &d->told[event.handle];
    ck_assert_msg(!t->over, "job %d: an event after the last",
                  (int)event.handle);
    if (event.kind == WEFT_EVENT_TOKEN) take_token(t, &event);
    if (event.kind == WEFT_EVENT_PROMPT) take_prompt_logprob(t, &event);
    if (event.kind == WEFT_EVENT_STARTED) t->n_started++;
    if (event.finish != WEFT_FINISH_NONE) take_last(d, t, &event);
    weft_mem_free(event.top);
}

void desk_wait_over(desk *d, uint64_t handle)
{
    while (!d->told[handle].over) desk_take_event(d);
}

void desk_wait_tokens(desk *d, uint64_t handle, int32_t n_tokens)
{
    const desk_told *const t = &d->told[handle];
    while (!t->over && t->n_tokens < n_tokens) desk_take_event(d);
}

void desk_expect_idle(desk *d)
{
    const uint64_t deadline_ns = weft_clock_now_ns() + WAIT_NS;
    weft_engine_load load;
    do {
        ck_assert_msg(weft_clock_now_ns() < deadline_ns, "never idle");
        weft_engine_get_load(d->engine, &load);
    } while (!load.idle || load.sched.n_running + load.sched.n_waiting > 0);
    for (int32_t k = 0; k < WEFT_KINDS; k++)
        ck_assert_int_eq(load.kv.pages_used[k], 0);
    ck_assert_int_eq(load.kv.slabs, load.kv.slabs_free);
    weft_event event;
    ck_assert_msg(!weft_ring_pop(d->ring, &event), "an event is left");
}

void desk_close(desk *d)
{
    weft_engine_destroy(d->engine);
    weft_event event;
    while (weft_ring_pop(d->ring, &event)) weft_mem_free(event.top);
    weft_ring_destroy(d->ring);
    harness_close(&d->model);
    weft_mem_free(d->told);
    weft_mem_free(d);
}

void desk_expect(const desk *d, uint64_t handle, weft_finish finish,
                 weft_status status)
{
    const desk_told *const t = &d->told[handle];
    ck_assert_int_eq(t->n_last, 1);
    ck_assert_int_eq(t->finish, finish);
    ck_assert_msg(t->status == status, "job %d: %s, expected %s: %s",
                  (int)handle, weft_status_name(t->status),
                  weft_status_name(status), t->text);
}

void desk_expect_same(const desk_told *a, const desk_told *b)
{
    ck_assert_int_eq(a->n_tokens, b->n_tokens);
    const size_t n = (size_t)a->n_tokens;
    ck_assert_mem_eq(a->tokens, b->tokens, n * sizeof *a->tokens);
    ck_assert_mem_eq(a->logprobs, b->logprobs, n * sizeof *a->logprobs);
}
