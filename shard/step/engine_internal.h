/* engine_internal.h - what engine.c (lifecycle) and step.c (one turn) share. */
#ifndef WEFT_SHARD_STEP_ENGINE_INTERNAL_H
#define WEFT_SHARD_STEP_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "node/base/ring.h"
#include "shard/model/forward.h"
#include "shard/sample/sample.h"
#include "shard/step/engine.h"
#include "shard/step/snapshot.h"

/* What reaches the engine's thread. job NULL: cancel `handle`. */
typedef struct weft_engine_message {
    const weft_job *job;
    uint64_t handle;
} weft_engine_message;

/* One row of logits that somebody wants. */
typedef struct weft_wanted_row {
    int32_t piece;    /* of the plan */
    int32_t position; /* of the row */
} weft_wanted_row;

struct weft_engine {
    const weft_model_config *config;
    weft_engine_options options;
    weft_event_sink sink;
    weft_step_fn on_step;
    void *on_step_arg;

    weft_threads *threads;
    weft_kv_layout layout;
    weft_kv_pool *pool;
    weft_kv_store *store;
    weft_sched *sched;
    weft_forward *forward;
    weft_sampler *sampler;

    weft_ring *inbox;
    pthread_t thread;
    bool started;
    atomic_bool stop;
    weft_snapshot snapshot;
    uint64_t n_steps;

    /* The step's rows; max_rows of each. */
    int32_t max_rows, max_logits_rows;
    int32_t *tokens, *positions;
    const int64_t **pages[WEFT_KINDS];
    int32_t *wanted_rows; /* row numbers, as weft_forward_logits takes them */
    weft_wanted_row *wanted;
    bool *failed; /* of each piece of the plan */
};

/* Send one event, waiting for room as long as the engine is not stopped. */
void weft_engine_emit(weft_engine *e, const weft_event *event);

/* Compute what the plan says and tell the results. */
void weft_engine_run_plan(weft_engine *e, const weft_plan *plan);

#endif
