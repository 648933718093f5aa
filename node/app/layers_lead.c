#include <stdio.h>
#include <string.h>

#include "node/app/layers.h"
#include "node/app/lifecycle.h"
#include "node/base/clock.h"
#include "node/base/log.h"

/* How long the builder waits for stages before it looks whether it is to stop.
 */
static const uint64_t LOOK_NS = 100000000U;

/* -- what routers are told ------------------------------------------------ */

static void describe(void *arg, weft_group_state *state)
{
    weft_layers *const l = arg;
    weft_exchange_meter_get(l->meter, &state->exchange);
    if (state->whole) return;
    if (l->stages != NULL && !weft_stages_is_whole(l->stages)) {
        weft_stages_get_missing(l->stages, state->reason, sizeof state->reason);
        /* Whoever starts it again gets pools that fit. */
        if (weft_stages_must_restart(l->stages))
            weft_shard_fence(&l->shard, state->reason);
        return;
    }
    if (l->exchange == NULL) return;
    weft_exchange_state exchange;
    weft_exchange_get_state(l->exchange, &exchange);
    (void)snprintf(state->reason, sizeof state->reason, "%.*s",
                   (int)sizeof state->reason - 1, exchange.missing);
}

static weft_status create_front(weft_layers *l, weft_err *err)
{
    const weft_engine_options *const e = &l->engine_options;
    const weft_membership *const m = &l->shard.member;
    weft_front_options options = {
        .jobs_max = e->max_waiting,
        .vocab_size = l->config.vocab_size,
        .pulse = m->pulse,
        .describe = describe,
        .describe_arg = l,
    };
    options.own.group = (uint32_t)l->shard.options->group;
    options.own.max_seqs = e->max_seqs;
    options.own.max_context = e->max_context;
    options.own.weights_hash = m->hello.weights_hash;
    memcpy(options.own.id, m->id, sizeof options.own.id);
    return weft_front_create(&options, &l->front, err);
}

/* -- the engine ----------------------------------------------------------- */

static void on_step(void *arg, uint64_t step_ns, int32_t n_rows)
{
    (void)n_rows;
    weft_metrics_observe(arg, WEFT_STEP_TIME, step_ns);
}

static weft_status build_engine(weft_layers *l, const int64_t *stage_kv_bytes,
                                weft_err *err)
{
    weft_engine *engine = NULL;
    weft_engine_options options = l->engine_options;
    options.stages = l->stages;
    options.stage_kv_bytes = stage_kv_bytes;
    weft_status st = weft_engine_create(
        &l->config, weft_rank_weights_first(&l->weights), &options,
        weft_front_sink(l->front), on_step, l->shard.metrics, &engine, err);
    if (st != WEFT_OK) return st;
    st = weft_engine_start(engine, err);
    if (st == WEFT_OK) st = weft_front_start(l->front, engine, err);
    atomic_store(&l->engine, engine);
    return st;
}

static weft_status wait_for_stages(weft_layers *l, int64_t *kv_bytes,
                                   weft_err *err)
{
    for (;;) {
        const weft_status st = weft_stages_wait(
            l->stages, weft_clock_now_ns() + LOOK_NS, kv_bytes, err);
        if (st != WEFT_DEADLINE_EXCEEDED) return st;
        if (atomic_load(&l->stop)) return WEFT_CANCELLED;
    }
}

static void *build(void *arg)
{
    weft_err err = {0};
    weft_layers *const l = arg;
    int64_t kv_bytes[WEFT_STAGES_MAX] = {0};
    weft_status st = wait_for_stages(l, kv_bytes, &err);
    if (st == WEFT_OK) st = weft_memory_bind(&l->shard.backend.memory, &err);
    if (st == WEFT_OK) st = build_engine(l, kv_bytes, &err);
    weft_memory_unbind(&l->shard.backend.memory);
    if (st == WEFT_CANCELLED) return NULL;
    if (st == WEFT_OK) {
        if (!atomic_load(&l->shard.draining))
            weft_cluster_set_state(weft_membership_cluster(&l->shard.member),
                                   WEFT_MEMBER_SERVING);
        return NULL;
    }
    l->why = err;
    atomic_store(&l->failed, true);
    weft_lifecycle_drain("the engine cannot be made");
    return NULL;
}

weft_status weft_layers_create_lead(weft_layers *l, weft_err *err)
{
    const weft_options *const o = l->shard.options;
    const weft_stages_options options = {.n_stages = o->stages,
                                         .group = (uint32_t)o->group,
                                         .peers = l->stage_peers,
                                         .pulse = l->shard.member.pulse};
    WEFT_TRY(create_front(l, err));
    if (o->stages == 1) return build_engine(l, NULL, err);
    return weft_stages_create(&options, &l->stages, err);
}

weft_status weft_layers_build_later(weft_layers *l, weft_err *err)
{
    if (l->stages == NULL) return WEFT_OK;
    const int code = pthread_create(&l->builder, NULL, build, l);
    l->building = code == 0;
    if (code == 0) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "cannot start a thread: %s",
                     strerror(code));
}

void weft_layers_destroy_lead(weft_layers *l)
{
    atomic_store(&l->stop, true);
    if (l->building) (void)pthread_join(l->builder, NULL);
    weft_engine *const engine = atomic_load(&l->engine);
    if (engine != NULL) {
        weft_front_stop(l->front);
        weft_engine_stop(engine);
    }
    weft_engine_destroy(engine);
    weft_front_destroy(l->front);
    weft_stages_destroy(l->stages);
}

void weft_layers_take_router(weft_layers *l, weft_link *link,
                             const weft_hello *peer)
{
    weft_err err = {0};
    if (atomic_load(&l->engine) == NULL)
        weft_link_close(link);
    else if (weft_front_add_link(l->front, link, &err) != WEFT_OK)
        weft_log(WEFT_LOG_WARN, "layers", "router_refused",
                 "id \"%s\" reason \"%s\"", peer->id, err.text);
}
