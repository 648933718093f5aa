/* engine.h - the step loop of one group: the lead's thread.
 *
 * It owns the scheduler, the KV pool and arena, the step's buffers and the
 * worker threads, and drives them: take submissions and cancels, plan, compute,
 * sample, commit, send events, again; when there is nothing to do it sleeps.
 *
 * Threads: create, start, stop and destroy by one thread; submit, cancel and
 * get_load by any; events are sent from the engine's thread through `sink`.
 *
 * When the device of the ops fails, the jobs of its steps end with INTERNAL and
 * nothing is computed any more. Where `failed` is told, whoever runs the engine
 * ends it, and jobs get no event, as with any loss of the process: the router
 * has them computed elsewhere.
 *
 * A step that experts elsewhere cannot be had for is stuck: it is computed
 * again from its start when they can be. Meanwhile jobs are taken, and
 * cancelled ones are let go at once. When a link of the group breaks, every job
 * comes back PREEMPTED.
 *
 * Guarantees: every submitted job gets exactly one last event (a finish other
 * than NONE), cancelled ones too; a cancelled job computes at most the step in
 * flight; nothing allocates in a step but top logprobs (tokens and page tables
 * of a job are allocated when it is admitted: sched.h); events of one job come
 * in order.
 */
#ifndef WEFT_SHARD_STEP_ENGINE_H
#define WEFT_SHARD_STEP_ENGINE_H

#include "kernels/memory.h"
#include "node/base/gen.h"
#include "shard/kv/kv.h"
#include "shard/load/weights.h"
#include "shard/sched/sched.h"

typedef struct weft_engine weft_engine;

typedef struct weft_engine_options {
    int64_t kv_bytes; /* the budget */
    int32_t page_tokens, chunk_tokens, max_seqs, max_waiting, max_context;
    int32_t threads;
    weft_profile profile;
    const weft_ops *ops;
    const weft_memory *memory; /* of the ops, borrowed; NULL: the host's. Who
                                  creates and stops the engine is bound to it */
    /* Tensor parallel: the stage's other ranks, 1 ... n_ranks - 1; 0 or 1:
     * alone. `memory`, weights and threads are of each rank: those that engine
     * and stage are given are rank 0's, and `threads` is how many each has.
     * kv_bytes is of each rank, too: all hold the same rows. */
    int32_t n_ranks;
    const struct weft_rank_parts *ranks; /* [n_ranks - 1], borrowed; NULL: for
                                            sizes alone */
    /* The rest of the group and of the pool. All borrowed until destroy. */
    struct weft_stages *stages;     /* NULL: one stage, this one */
    const int64_t *stage_kv_bytes;  /* [n_stages - 1]: of stages 1 ... */
    struct weft_exchange *exchange; /* NULL: experts are in the weights */
    /* Experts elsewhere that are not an exchange's; NULL: the exchange's. */
    const struct weft_experts *experts;
    /* For sizes alone: as if there was an exchange. */
    bool experts_elsewhere;
    struct weft_pulse *pulse; /* stepped at every turn; may be NULL */
    /* The device is of no use any more: said once, by the thread that computes.
     * NULL: jobs end with INTERNAL. */
    void (*failed)(void *arg, const weft_err *why);
    void *failed_arg;
    /* Rows of one call from which on two halves take turns, if experts are
     * elsewhere; 0: 64. */
    int32_t pair_rows;
} weft_engine_options;

/* Takes an event; false: no room now, the engine keeps it and tries again
 * (its `top` stays the engine's until taken). Engine's thread. */
typedef struct weft_event_sink {
    bool (*take)(void *arg, const weft_event *event);
    void *arg;
} weft_event_sink;

/* Times of steps, for metrics; engine's thread, after each step. May be NULL.
 */
typedef void (*weft_step_fn)(void *arg, uint64_t step_ns, int32_t n_rows);

/* Host bytes that an engine takes beside weights and the KV budget: step
 * buffers, tables, stacks. What `weft check` prints as the stated constant. */
int64_t weft_engine_overhead_bytes(const weft_model_config *config,
                                   const weft_engine_options *options);
/* Bytes of a device that it takes beside weights and the KV budget. */
int64_t weft_engine_device_bytes(const weft_model_config *config,
                                 const weft_engine_options *options);

/* The KV pages that an engine with these options has. INVALID_ARGUMENT: as
 * weft_kv_layout_make. */
WEFT_MUST_CHECK weft_status weft_engine_kv_layout(
    const weft_model_config *config, const weft_engine_options *options,
    weft_kv_layout *layout_out, weft_err *err);

/* config and weights are borrowed until destroy. With stages, config is the
 * one cut for stage 0, and weights hold that stage and the head. */
WEFT_MUST_CHECK weft_status
weft_engine_create(const weft_model_config *config, const weft_weights *weights,
                   const weft_engine_options *options, weft_event_sink sink,
                   weft_step_fn on_step, void *on_step_arg,
                   weft_engine **engine_out, weft_err *err);
WEFT_MUST_CHECK weft_status weft_engine_start(weft_engine *engine,
                                              weft_err *err);
/* Ends the loop after the step in flight, or at once if that is stuck; jobs
 * that are left get no event. The exchange is stopped for good. */
void weft_engine_stop(weft_engine *engine);
/* The device has failed in another part of this process: as if it had in a step
 * here. Any thread. */
void weft_engine_lose_device(weft_engine *engine);
/* Something has changed that an idle engine should look at: a link is ready.
 * Any thread. */
void weft_engine_wake(weft_engine *engine);
void weft_engine_destroy(weft_engine *engine); /* NULL is fine */

/* The job (and its arrays) is borrowed until its last event, or, after
 * weft_engine_cancel, until the WEFT_EVENT_END that confirms the cancel
 * (finish FAILED, status CANCELLED). RESOURCE_EXHAUSTED: the inbox is full;
 * nothing happened. What is wrong with the job itself comes as an event. */
WEFT_MUST_CHECK weft_status weft_engine_submit(weft_engine *engine,
                                               const weft_job *job);
/* Exactly one last event comes all the same: CANCELLED, or what was sent just
 * before. RESOURCE_EXHAUSTED: the inbox is full; try again. */
WEFT_MUST_CHECK weft_status weft_engine_cancel(weft_engine *engine,
                                               uint64_t handle);

/* A snapshot, at most one step old. Any thread. */
typedef struct weft_engine_load {
    weft_sched_stats sched;
    weft_kv_stats kv;       /* of the lead's own layers */
    weft_kv_stats kv_group; /* sums over all stages */
    uint64_t n_steps;
    /* Clock at the last step, idle turn, or look at what a step waits for. */
    uint64_t last_progress_ns;
    bool idle;
    /* A step can be computed now: stages are connected, experts are there. */
    bool whole;
    bool broken;    /* the device is of no use any more */
    uint64_t epoch; /* of the last step; 0: none, or experts are here */
} weft_engine_load;

void weft_engine_get_load(weft_engine *engine, weft_engine_load *load_out);

const weft_kv_layout *weft_engine_layout(const weft_engine *engine);

#endif
