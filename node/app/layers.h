/* layers.h - the parts of a layer shard: shard_layers.c starts and ends them,
 * layers_lead.c is what stage 0 has beside (front, stages, engine),
 * layers_peers.c what the cluster tells.
 *
 * Threads: the main one, the cluster's (layers_peers.c), and at a lead of more
 * than one stage a builder, which waits for the stages and then makes the
 * engine: it needs to know their KV memory.
 */
#ifndef WEFT_NODE_APP_LAYERS_H
#define WEFT_NODE_APP_LAYERS_H

#include "node/app/memory.h"
#include "node/app/rank_weights.h"
#include "node/app/shard.h"
#include "node/fleet/front.h"
#include "node/obs/exchange.h"
#include "shard/step/stages.h"

typedef struct weft_layers {
    weft_shard shard;
    weft_model_config config; /* cut for this stage */
    weft_engine_options engine_options;
    weft_memory_plan memory;
    weft_part_of_model part;
    weft_rank_weights weights;
    weft_exchange_meter *meter;
    /* NULL where the model has no routed experts. */
    weft_peers *expert_peers;
    weft_exchange *exchange;
    weft_peers *stage_peers; /* whom this stage dials; NULL: nobody */
    bool displaced;          /* the cluster's thread: by another shard */

    weft_stage *stage; /* not the lead's */

    weft_front *front;             /* the lead's, as all that follows */
    weft_stages *stages;           /* NULL: one stage */
    _Atomic(weft_engine *) engine; /* NULL: not yet */
    pthread_t builder;
    bool building;
    _Atomic bool stop, failed; /* of the builder */
    weft_err why;              /* it failed */

    uint64_t n_steps, quiet_since_ns; /* while draining: as last seen */
} weft_layers;

static inline bool weft_layers_is_lead(const weft_layers *l)
{
    return l->shard.options->stage == 0;
}

/* Frees with destroy what was made, also on failure. */
WEFT_MUST_CHECK weft_status weft_layers_create_lead(weft_layers *l,
                                                    weft_err *err);
/* After joining: the engine of more than one stage is made when they are there.
 */
WEFT_MUST_CHECK weft_status weft_layers_build_later(weft_layers *l,
                                                    weft_err *err);
void weft_layers_destroy_lead(weft_layers *l);
/* A link of a router; taken. */
void weft_layers_take_router(weft_layers *l, weft_link *link,
                             const weft_hello *peer);

typedef struct weft_stage_of {
    int32_t group, stage, n_stages;
} weft_stage_of;

/* The member that is this stage; of several one that does not drain, and of
 * those the one that came last: the others are on their way out. NULL: none.
 * Pure. */
const weft_member *weft_layers_find_stage(const weft_member *members, int32_t n,
                                          const weft_stage_of *which);

/* Whether another member than `id`, which is one too, is that stage: then `id`
 * links to no other stage. Pure. */
bool weft_layers_is_displaced(const weft_member *members, int32_t n,
                              const weft_stage_of *own, const char *id);

/* What the cluster calls; arg is a weft_layers. */
weft_cluster_ops weft_layers_cluster_ops(weft_layers *l);

#endif
