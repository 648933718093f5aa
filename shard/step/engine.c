#include "shard/step/engine.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "node/base/check.h"
#include "node/base/clock.h"
#include "node/base/mem.h"
#include "shard/step/engine_internal.h"

enum {
    /* Rows of one logits call: lm_head is read once for so many decodes. */
    LOGITS_ROWS_MAX = 64,
    /* How long the loop sleeps at most, so that health sees it turn. */
    IDLE_NS = 100 * 1000 * 1000,
    /* Between two tries to hand over an event that found no room. */
    EMIT_RETRY_NS = 1000 * 1000,
    /* Stacks touched, rings, tables of the scheduler, library state: a bound
     * for what is not worth adding up piece by piece. */
    FIXED_BYTES = 24 * 1024 * 1024,
};

static weft_forward_options forward_options(const weft_engine_options *o,
                                            weft_threads *threads)
{
    const int32_t logits =
        o->max_seqs < LOGITS_ROWS_MAX ? o->max_seqs : LOGITS_ROWS_MAX;
    return (weft_forward_options){
        .max_rows = o->chunk_tokens + o->max_seqs,
        .max_logits_rows = logits < 8 ? 8 : logits,
        .max_context = o->max_context,
        .profile = o->profile,
        .ops = o->ops,
        .threads = threads,
        .n_threads = o->threads,
    };
}

int64_t weft_engine_overhead_bytes(const weft_model_config *config,
                                   const weft_engine_options *options)
{
    const weft_forward_options f = forward_options(options, NULL);
    const int64_t pages = (options->max_context + options->page_tokens - 1) /
                          options->page_tokens;
    /* Of a sequence: its tokens, and a page table for each kind. */
    int64_t sequence = (int64_t)options->max_context * (int64_t)sizeof(int32_t);
    for (int32_t k = 0; k < WEFT_KINDS; k++)
        if (config->n_kind[k] > 0) sequence += pages * (int64_t)sizeof(int64_t);
    return weft_forward_bytes(config, &f) + options->max_seqs * sequence +
           FIXED_BYTES;
}

weft_status weft_engine_kv_layout(const weft_model_config *config,
                                  const weft_engine_options *options,
                                  weft_kv_layout *layout_out, weft_err *err)
{
    return weft_kv_layout_make(
        config, options->profile == WEFT_EXACT ? WEFT_F32 : WEFT_BF16,
        options->page_tokens, layout_out, err);
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
    const size_t n = (size_t)e->max_rows;
    e->tokens = weft_mem_new(n, sizeof *e->tokens);
    e->positions = weft_mem_new(n, sizeof *e->positions);
    e->wanted_rows = weft_mem_new(n, sizeof *e->wanted_rows);
    e->wanted = weft_mem_new(n, sizeof *e->wanted);
    e->failed = weft_mem_new(n, sizeof *e->failed);
    for (int32_t k = 0; k < WEFT_KINDS; k++)
        e->pages[k] = weft_mem_new(n, sizeof *e->pages[k]);
    if (e->tokens == NULL || e->positions == NULL || e->wanted_rows == NULL ||
        e->wanted == NULL || e->failed == NULL || e->pages[0] == NULL ||
        e->pages[1] == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "engine: no memory for %d rows", e->max_rows);
    return WEFT_OK;
}

static weft_status create_kv(weft_engine *e, weft_err *err)
{
    const weft_engine_options *const o = &e->options;
    WEFT_TRY(weft_engine_kv_layout(e->config, o, &e->layout, err));
    WEFT_TRY(weft_kv_pool_create(&e->layout, o->kv_bytes, &e->pool, err));
    weft_kv_stats stats;
    weft_kv_pool_get_stats(e->pool, &stats);
    WEFT_TRY(
        weft_kv_store_create(&e->layout, stats.total_bytes, &e->store, err));
    const weft_sched_limits limits = {
        .max_seqs = o->max_seqs,
        .max_waiting = o->max_waiting,
        .chunk_tokens = o->chunk_tokens,
        .max_context = o->max_context,
    };
    return weft_sched_create(&limits, e->config, &e->layout, e->pool,
                             weft_kv_store_poison, e->store, &e->sched, err);
}

static weft_status create_parts(weft_engine *e, const weft_weights *weights,
                                weft_err *err)
{
    const weft_engine_options *const o = &e->options;
    WEFT_TRY(weft_threads_create(o->threads, &e->threads, err));
    const weft_forward_options f = forward_options(o, e->threads);
    e->max_rows = f.max_rows;
    e->max_logits_rows = f.max_logits_rows;
    WEFT_TRY(create_buffers(e, err));
    WEFT_TRY(create_kv(e, err));
    WEFT_TRY(weft_forward_create(e->config, weights, e->store, &f, &e->forward,
                                 err));
    WEFT_TRY(weft_sampler_create(e->config, o->ops, &e->sampler, err));
    /* Room for a submission and a cancel of every job there can be. */
    const size_t n = 2 * ((size_t)o->max_seqs + (size_t)o->max_waiting) + 16;
    return weft_ring_create(sizeof(weft_engine_message), n, &e->inbox, err);
}

static void publish(weft_engine *e, bool idle)
{
    weft_engine_load load = {
        .n_steps = e->n_steps,
        .last_progress_ns = weft_clock_now_ns(),
        .idle = idle,
    };
    weft_sched_get_stats(e->sched, &load.sched);
    weft_kv_pool_get_stats(e->pool, &load.kv);
    weft_snapshot_write(&e->snapshot, &load, sizeof load);
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
    publish(e, true);
    *engine_out = e;
    return WEFT_OK;
}

void weft_engine_destroy(weft_engine *e)
{
    if (e == NULL) return;
    weft_engine_stop(e);
    weft_ring_destroy(e->inbox);
    weft_sampler_destroy(e->sampler);
    weft_forward_destroy(e->forward);
    weft_sched_destroy(e->sched);
    weft_kv_store_destroy(e->store);
    weft_kv_pool_destroy(e->pool);
    weft_threads_destroy(e->threads);
    weft_mem_free(e->tokens);
    weft_mem_free(e->positions);
    weft_mem_free(e->wanted_rows);
    weft_mem_free(e->wanted);
    weft_mem_free(e->failed);
    for (int32_t k = 0; k < WEFT_KINDS; k++) weft_mem_free(e->pages[k]);
    weft_mem_free(e);
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
        /* A job that has just ended has told so: nothing to add. */
        if (weft_sched_cancel(e->sched, m->handle) != WEFT_OK) return;
        event.status = WEFT_CANCELLED;
    }
    (void)snprintf(event.text, sizeof event.text, "%.*s",
                   (int)sizeof event.text - 1, err.text);
    weft_engine_emit(e, &event);
}

static void *loop(void *arg)
{
    weft_engine *const e = arg;
    while (!atomic_load(&e->stop)) {
        weft_engine_message m;
        while (weft_ring_pop(e->inbox, &m)) take_message(e, &m);
        weft_plan plan = {0};
        weft_sched_plan(e->sched, weft_clock_now_ns(), &plan);
        const bool idle = plan.n_rows == 0 && plan.n_ends == 0;
        if (!idle) weft_engine_run_plan(e, &plan);
        publish(e, idle);
        if (!idle) continue;
        const uint64_t nap_ns = weft_clock_now_ns() + IDLE_NS;
        const uint64_t deadline_ns = weft_sched_next_deadline(e->sched);
        weft_ring_wait(e->inbox, deadline_ns < nap_ns ? deadline_ns : nap_ns);
    }
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
    (void)pthread_join(e->thread, NULL);
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

void weft_engine_get_load(weft_engine *e, weft_engine_load *load_out)
{
    weft_snapshot_read(&e->snapshot, load_out, sizeof *load_out);
}

const weft_kv_layout *weft_engine_layout(const weft_engine *e)
{
    return &e->layout;
}
