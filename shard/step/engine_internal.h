/* engine_internal.h - what engine.c (lifecycle), step.c (one turn) and
 * attempt.c (computing a step until it is done) share. */
#ifndef WEFT_SHARD_STEP_ENGINE_INTERNAL_H
#define WEFT_SHARD_STEP_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "node/base/ring.h"
#include "shard/sample/sample.h"
#include "shard/step/engine.h"
#include "shard/step/layers.h"
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

    weft_kv_spaces spaces;
    weft_layers layers;
    weft_sched *sched;
    weft_sampler *sampler;
    weft_experts pool;           /* the exchange's */
    const weft_experts *experts; /* elsewhere; NULL: in the weights */

    weft_ring *inbox;
    pthread_t thread;
    bool started;
    atomic_bool stop;
    weft_snapshot snapshot;
    uint64_t n_steps;

    /* The step at hand. */
    const weft_plan *plan; /* NULL: none */
    uint64_t step, epoch;
    uint32_t attempt;
    bool stuck, said_stuck;
    bool broken;      /* its device is of no use any more */
    atomic_bool lost; /* as somebody else has found */
    uint64_t said_stuck_ns;
    int32_t n_wanted;
    int32_t *wanted_rows; /* [max_rows]: row numbers */
    weft_wanted_row *wanted;
    const float **wanted_hidden; /* where the last layer's rows are */
    bool *failed; /* of each piece of the plan: its job is gone */
};

/* Send one event, waiting for room as long as the engine is not stopped. */
void weft_engine_emit(weft_engine *e, const weft_event *event);
/* What has come in since: submissions and cancels. A job that is cancelled in
 * the middle of a step leaves it. */
void weft_engine_take_messages(weft_engine *e);
/* Who asks finds it from here on. */
void weft_engine_publish(weft_engine *e, bool idle);

/* Compute what the plan says and tell the results. */
void weft_engine_run_plan(weft_engine *e, const weft_plan *plan);
/* Its device is of no use any more: said once. */
void weft_engine_break(weft_engine *e, const weft_err *err);
/* Whether the device can still be used, as far as anybody knows. */
bool weft_engine_is_broken(weft_engine *e);
/* All jobs go back to the router. */
void weft_engine_give_back(weft_engine *e);

typedef enum weft_outcome {
    WEFT_STEP_DONE,
    WEFT_STEP_DROPPED, /* nobody wants it any more */
    WEFT_STEP_LOST,    /* the group has lost its cache rows */
    WEFT_STEP_STOPPED, /* the engine ends */
    WEFT_STEP_BROKEN,  /* the device is of no use any more */
} weft_outcome;

/* Compute e->plan until it is done: wanted rows are then in wanted_hidden. */
weft_outcome weft_engine_compute(weft_engine *e);

#endif
