#include "shard/step/engine.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "node/base/check.h"
#include "node/base/clock.h"
#include "node/base/mem.h"
#include "shard/step/engine_internal.h"
#include "shard/step/stages_internal.h"

enum {
    /* How long the loop sleeps at most, so that health sees it turn. */
    IDLE_NS = 100 * 1000 * 1000,
    /* The same while links are missing: nothing wakes it when they come. */
    LOOK_NS = 10 * 1000 * 1000,
    /* Between two tries to hand over an event that found no room. */
    EMIT_RETRY_NS = 1000 * 1000,
    /* Stacks touched, rings, tables of the scheduler, library state: a bound
     * for what is not worth adding up piece by piece. */
    FIXED_BYTES = 24 * 1024 * 1024,
};

int64_t weft_engine_overhead_bytes(const weft_model_config *config,
                                   const weft_engine_options *options)
{
    const int64_t pages = (options->max_context + options->page_tokens - 1) /
                          options->page_tokens;
    /* Of a sequence: its tokens, and a page table for each kind. */
    int64_t sequence = (int64_t)options->max_context * (int64_t)sizeof(int32_t);
    for (int32_t k = 0; k < WEFT_KINDS; k++)
        if (config->n_kind[k] > 0) sequence += pages * (int64_t)sizeof(int64_t);
    return weft_layers_bytes(config, options, NULL) +
           options->max_seqs * sequence + FIXED_BYTES;
}

int64_t weft_engine_device_bytes(const weft_model_config *config,
                                 const weft_engine_options *options)
{
    int64_t device_bytes = 0;
    (void)weft_layers_bytes(config, options, &device_bytes);
    return device_bytes;
}

static weft_dtype kv_dtype(const weft_engine_options *options)
{
    return options->profile == WEFT_EXACT ? WEFT_F32 : WEFT_BF16;
}

weft_status weft_engine_kv_layout(const weft_model_config *config,
                                  const weft_engine_options *options,
                                  weft_kv_layout *layout_out, weft_err *err)
{
    return weft_kv_layout_make(config, kv_dtype(options), options->page_tokens,
                               layout_out, err);
}

void weft_engine_emit(weft_engine *e, const weft_event *event)
{
    while (!e->sink.take(e->sink.arg, event)) {
        if (atomic_load(&e->stop)) {
            weft_mem_free(event->top);
            return;
        }
        /* Not a wait on the inbox: what lies there would end it at once. */
        const struct timespec pause = {.tv_nsec = EMIT_RETRY_NS};
        (void)nanosleep(&pause, NULL);
    }
}

static weft_status create_buffers(weft_engine *e, weft_err *err)
{
    const size_t n = (size_t)e->layers.max_rows;
    e->wanted_rows = weft_mem_new(n, sizeof *e->wanted_rows);
    e->wanted = weft_mem_new(n, sizeof *e->wanted);
    e->wanted_hidden = weft_mem_new(n, sizeof *e->wanted_hidden);
    e->failed = weft_mem_new(n, sizeof *e->failed);
    if (e->wanted_rows == NULL || e->wanted == NULL ||
        e->wanted_hidden == NULL || e->failed == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "engine: no memory for %d rows", e->layers.max_rows);
    return WEFT_OK;
}

static weft_status create_spaces(weft_engine *e, weft_err *err)
{
    const weft_engine_options *const o = &e->options;
    const int32_t n = o->stages == NULL ? 1 : weft_stages_count(o->stages);
    int64_t kv_bytes[WEFT_STAGES_MAX] = {o->kv_bytes};
    for (int32_t s = 1; s < n; s++) kv_bytes[s] = o->stage_kv_bytes[s - 1];
    return weft_kv_spaces_init(&e->spaces, e->config, kv_dtype(o),
                               o->page_tokens, kv_bytes, n, err);
}

static weft_status create_sched(weft_engine *e, weft_err *err)
{
    const weft_engine_options *const o = &e->options;
    const weft_sched_limits limits = {
        .max_seqs = o->max_seqs,
        .max_waiting = o->max_waiting,
        .chunk_tokens = o->chunk_tokens,
        .max_context = o->max_context,
    };
    return weft_sched_create(&limits, e->config, &e->spaces,
                             weft_kv_store_poison, e->layers.store, &e->sched,
                             err);
}

static weft_status create_parts(weft_engine *e, const weft_weights *weights,
                                weft_err *err)
{
    const weft_engine_options *const o = &e->options;
    e->experts = o->experts;
    if (e->experts == NULL && o->exchange != NULL) {
        e->pool = weft_exchange_experts(o->exchange);
        e->experts = &e->pool;
    }
    WEFT_TRY(create_spaces(e, err));
    WEFT_TRY(weft_layers_init(&e->layers, e->config, weights, o,
                              &e->spaces.at[0], e->experts, err));
    WEFT_TRY(create_buffers(e, err));
    WEFT_TRY(create_sched(e, err));
    WEFT_TRY(weft_sampler_create(e->config, o->ops, &e->sampler, err));
    if (o->stages != NULL)
        WEFT_TRY(weft_stages_bind(o->stages, o, e->config->hidden_size,
                                  &e->spaces, err));
    /* Room for a submission and a cancel of every job there can be. */
    const size_t n = 2 * ((size_t)o->max_seqs + (size_t)o->max_waiting) + 16;
    return weft_ring_create(sizeof(weft_engine_message), n, &e->inbox, err);
}

static bool is_whole(const weft_engine *e)
{
    const weft_engine_options *const o = &e->options;
    if (e->stuck || e->broken) return false;
    if (o->stages != NULL && !weft_stages_is_whole(o->stages)) return false;
    if (o->exchange == NULL) return true;
    weft_exchange_state state;
    weft_exchange_get_state(o->exchange, &state);
    return state.whole;
}

/* Of the last step, or of the next: it changes without one, too. */
static uint64_t epoch_of(const weft_engine *e)
{
    weft_exchange_state state;
    if (e->options.exchange == NULL) return e->epoch;
    weft_exchange_get_state(e->options.exchange, &state);
    return state.epoch;
}

void weft_engine_publish(weft_engine *e, bool idle)
{
    weft_engine_load load = {
        .n_steps = e->n_steps,
        .last_progress_ns = weft_clock_now_ns(),
        .idle = idle,
        .whole = is_whole(e),
        .broken = e->broken,
        .epoch = epoch_of(e),
    };
    weft_sched_get_stats(e->sched, &load.sched);
    weft_kv_pool_get_stats(e->spaces.at[0].pool, &load.kv);
    load.kv_group = load.kv;
    if (e->spaces.n > 1) weft_kv_spaces_get_stats(&e->spaces, &load.kv_group);
    weft_snapshot_write(&e->snapshot, &load, sizeof load);
    if (e->options.pulse != NULL) weft_pulse_step(e->options.pulse);
}

weft_status weft_engine_create(const weft_model_config *config,
                               const weft_weights *weights,
                               const weft_engine_options *options,
                               weft_event_sink sink, weft_step_fn on_step,
                               void *on_step_arg, weft_engine **engine_out,
                               weft_err *err)
{
    weft_engine *const e = weft_mem_new(1, sizeof *e);
    if (e == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "engine: out of memory");
    e->config = config;
    e->options = *options;
    e->sink = sink;
    e->on_step = on_step;
    e->on_step_arg = on_step_arg;
    const weft_status st = create_parts(e, weights, err);
    if (st != WEFT_OK) {
        weft_engine_destroy(e);
        return st;
    }
    weft_engine_publish(e, true);
    *engine_out = e;
    return WEFT_OK;
}

void weft_engine_destroy(weft_engine *e)
{
    if (e == NULL) return;
    weft_engine_stop(e);
    weft_ring_destroy(e->inbox);
    weft_sampler_destroy(e->sampler);
    weft_sched_destroy(e->sched);
    weft_layers_deinit(&e->layers);
    weft_kv_spaces_deinit(&e->spaces);
    weft_mem_free(e->wanted_rows);
    weft_mem_free(e->wanted);
    weft_mem_free(e->wanted_hidden);
    weft_mem_free(e->failed);
    weft_mem_free(e);
}

/* The pieces of a job that is about to be forgotten must not be looked at
 * again. */
static void leave_step(weft_engine *e, uint64_t handle)
{
    if (e->plan == NULL) return;
    for (int32_t i = 0; i < e->plan->n_pieces; i++)
        if (!e->failed[i] && e->plan->pieces[i].job->handle == handle)
            e->failed[i] = true;
}

static void take_message(weft_engine *e, const weft_engine_message *m)
{
    weft_err err = {0};
    weft_event event = {
        .handle = m->handle,
        .kind = WEFT_EVENT_END,
        .finish = WEFT_FINISH_FAILED,
    };
    if (m->job != NULL) {
        event.status = weft_sched_submit(e->sched, m->job, &err);
        if (event.status == WEFT_OK) return;
    } else {
        leave_step(e, m->handle);
        /* A job that has just ended has told so: nothing to add. */
        if (weft_sched_cancel(e->sched, m->handle) != WEFT_OK) return;
        event.status = WEFT_CANCELLED;
    }
    (void)snprintf(event.text, sizeof event.text, "%.*s",
                   (int)sizeof event.text - 1, err.text);
    weft_engine_emit(e, &event);
}

void weft_engine_take_messages(weft_engine *e)
{
    weft_engine_message m;
    while (weft_ring_pop(e->inbox, &m)) take_message(e, &m);
}

/* Whether the group can compute. Where it has lost its run, its jobs have been
 * given back when this returns. */
static bool look_at_stages(weft_engine *e)
{
    struct weft_stages *const stages = e->options.stages;
    if (stages == NULL) return true;
    weft_stages_turn(stages);
    if (weft_stages_take_lost(stages)) weft_engine_give_back(e);
    return weft_stages_is_whole(stages);
}

/* Without a device jobs are taken to end with INTERNAL, unless somebody ends
 * the process. */
static bool may_plan(weft_engine *e)
{
    if (weft_engine_is_broken(e)) return e->options.failed == NULL;
    return look_at_stages(e);
}

static void sleep_a_while(weft_engine *e)
{
    const uint64_t now_ns = weft_clock_now_ns();
    const uint64_t nap_ns = now_ns + (is_whole(e) ? IDLE_NS : LOOK_NS);
    const uint64_t deadline_ns = weft_sched_next_deadline(e->sched);
    weft_ring_wait(e->inbox, deadline_ns < nap_ns && deadline_ns > now_ns
                                 ? deadline_ns
                                 : nap_ns);
    if (e->experts != NULL) e->experts->idle(e->experts->arg, 0);
}

static void *loop(void *arg)
{
    weft_engine *const e = arg;
    const weft_memory *const memory = e->options.memory;
    weft_err err = {0};
    if (memory != NULL && weft_memory_bind(memory, &err) != WEFT_OK)
        weft_engine_break(e, &err);
    while (!atomic_load(&e->stop)) {
        weft_engine_take_messages(e);
        weft_plan plan = {0};
        if (may_plan(e)) weft_sched_plan(e->sched, weft_clock_now_ns(), &plan);
        const bool idle = plan.n_rows == 0 && plan.n_ends == 0;
        if (!idle) weft_engine_run_plan(e, &plan);
        weft_engine_publish(e, idle);
        if (idle) sleep_a_while(e);
    }
    if (memory != NULL) weft_memory_unbind(memory);
    return NULL;
}

weft_status weft_engine_start(weft_engine *e, weft_err *err)
{
    const int failed = pthread_create(&e->thread, NULL, loop, e);
    if (failed != 0)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "engine thread: %s",
                         strerror(failed));
    e->started = true;
    return WEFT_OK;
}

void weft_engine_stop(weft_engine *e)
{
    if (!e->started) return;
    atomic_store(&e->stop, true);
    weft_ring_wake(e->inbox);
    if (e->options.exchange != NULL) weft_exchange_stop(e->options.exchange);
    if (e->options.stages != NULL) weft_stages_stop(e->options.stages);
    (void)pthread_join(e->thread, NULL);
    if (e->options.stages != NULL) weft_stages_let_go(e->options.stages);
    e->started = false;
    /* Jobs that are left get no event; their pages come back all the same. */
    weft_engine_message m;
    while (weft_ring_pop(e->inbox, &m)) {
    }
    weft_sched_clear(e->sched);
}

weft_status weft_engine_submit(weft_engine *e, const weft_job *job)
{
    const weft_engine_message m = {.job = job, .handle = job->handle};
    return weft_ring_push(e->inbox, &m) ? WEFT_OK : WEFT_RESOURCE_EXHAUSTED;
}

weft_status weft_engine_cancel(weft_engine *e, uint64_t handle)
{
    const weft_engine_message m = {.job = NULL, .handle = handle};
    return weft_ring_push(e->inbox, &m) ? WEFT_OK : WEFT_RESOURCE_EXHAUSTED;
}

void weft_engine_lose_device(weft_engine *e)
{
    atomic_store(&e->lost, true);
    weft_ring_wake(e->inbox);
}

void weft_engine_wake(weft_engine *e)
{
    weft_ring_wake(e->inbox);
}

void weft_engine_get_load(weft_engine *e, weft_engine_load *load_out)
{
    weft_snapshot_read(&e->snapshot, load_out, sizeof *load_out);
}

const weft_kv_layout *weft_engine_layout(const weft_engine *e)
{
    return &e->spaces.at[0].layout;
}
