/* shard_layers.c - `weft shard --role layers`: one stage of a group.
 *
 * Start: the model is cut, this stage's weights are loaded, everything that
 * this process has by itself is built up, then the link port opens and the
 * shard registers. A lead of more than one stage makes its engine when the
 * others are there.
 *
 * End: a lead says that it is draining, and its jobs go on for a while; another
 * stage waits until no step comes.
 */
#include <inttypes.h>
#include <stdio.h>

#include "node/app/commands.h"
#include "node/app/layers.h"
#include "node/app/lifecycle.h"
#include "node/base/clock.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include "shard/expert/body.h"
#include "shard/model/partition.h"

static const int64_t MIB = INT64_C(1) << 20;
static const uint64_t SECOND_NS = 1000000000U;
/* A stage that has had no step for so long is not in use. */
static const uint64_t QUIET_NS = 1000000000U;

/* -- the exchange --------------------------------------------------------- */

static void suspect(void *arg, const char *id, uint64_t incarnation,
                    const char *why)
{
    weft_layers *const l = arg;
    weft_log(WEFT_LOG_WARN, "layers", "suspect", "id \"%s\" reason \"%s\"", id,
             why);
    weft_cluster_suspect(weft_membership_cluster(&l->shard.member), id,
                         incarnation, true);
}

static void cleared(void *arg, const char *id, uint64_t incarnation)
{
    weft_layers *const l = arg;
    weft_log(WEFT_LOG_INFO, "layers", "cleared", "id \"%s\"", id);
    weft_cluster_suspect(weft_membership_cluster(&l->shard.member), id,
                         incarnation, false);
}

static void switched(void *arg, uint64_t epoch)
{
    weft_layers *const l = arg;
    weft_log(WEFT_LOG_INFO, "layers", "switched", "epoch %" PRIu64, epoch);
    if (weft_layers_is_lead(l))
        weft_cluster_switched(weft_membership_cluster(&l->shard.member), epoch);
}

static void exchanged(void *arg, const char *id, uint64_t ns, uint64_t bytes)
{
    weft_layers *const l = arg;
    weft_metrics_observe(l->shard.metrics, WEFT_EXCHANGE_TIME, ns);
    weft_exchange_meter_exchanged(l->meter, id, ns, bytes);
}

static void routed(void *arg, int32_t layer, const int32_t *experts,
                   int32_t n_pairs)
{
    weft_layers *const l = arg;
    weft_exchange_meter_routed(l->meter, layer, experts, n_pairs);
}

static void experts_ready(void *arg)
{
    weft_layers *const l = arg;
    weft_exchange_wake(l->exchange);
}

static weft_status create_exchange(weft_layers *l, weft_err *err)
{
    weft_shard *const s = &l->shard;
    const weft_frame_limits limits = weft_answer_limits(&s->config);
    if (s->config.n_expert == 0) return WEFT_OK;
    weft_link_options link = weft_membership_link(&limits);
    link.near = s->near;
    const weft_peers_options peers = {
        .own = &s->member.hello,
        .own_later = true,
        .tls = s->member.tls,
        .link = link,
        .peers_max = WEFT_EXPERT_SHARDS_MAX,
        .pulse = s->member.pulse,
        .ready = experts_ready,
        .arg = l,
    };
    WEFT_TRY(weft_peers_create(&peers, &l->expert_peers, err));
    const weft_exchange_options exchange = {
        .config = &l->config,
        .max_rows = s->engine.chunk_tokens + s->engine.max_seqs,
        .group = (uint32_t)s->options->group,
        .peers = l->expert_peers,
        .pulse = s->member.pulse,
        .memory = &s->backend.memory,
        .watch = {.suspect = suspect,
                  .cleared = cleared,
                  .switched = switched,
                  .exchanged = exchanged,
                  .routed = routed,
                  .arg = l},
    };
    return weft_exchange_create(&exchange, &l->exchange, err);
}

/* -- links ---------------------------------------------------------------- */

/* Routers send the prompts of jobs, stages send rows. */
static weft_frame_limits listen_limits(const weft_layers *l)
{
    if (!weft_layers_is_lead(l))
        return weft_stages_limits(&l->config, &l->engine_options);
    return (weft_frame_limits){.body_bytes_max = WEFT_FRAME_BODY_BYTES_MAX};
}

static weft_status admit_router(const weft_layers *l, weft_err *err)
{
    if (!weft_layers_is_lead(l))
        return WEFT_FAIL(err, WEFT_FAILED_PRECONDITION,
                         "stage %d is not the lead of its group",
                         l->shard.options->stage);
    if (atomic_load(&l->engine) == NULL)
        return WEFT_FAIL(err, WEFT_FAILED_PRECONDITION,
                         "group %d waits for its other stages",
                         l->shard.options->group);
    return WEFT_OK;
}

/* The lead dials every stage, and each stage the next one. */
static weft_status admit_stage(const weft_layers *l, const weft_hello *peer,
                               weft_err *err)
{
    const weft_options *const o = l->shard.options;
    if (peer->group != o->group || peer->n_stages != o->stages)
        return WEFT_FAIL(err, WEFT_FAILED_PRECONDITION,
                         "group %d of %d stages, here it is group %d of %d",
                         peer->group, peer->n_stages, o->group, o->stages);
    if (o->stage == 0 || (peer->stage != 0 && peer->stage != o->stage - 1))
        return WEFT_FAIL(err, WEFT_FAILED_PRECONDITION,
                         "stage %d does not dial stage %d", peer->stage,
                         o->stage);
    return WEFT_OK;
}

static weft_status admit(void *arg, const weft_hello *peer, weft_err *err)
{
    const weft_layers *const l = arg;
    if (peer->role == WEFT_ROLE_ROUTER) return admit_router(l, err);
    if (peer->role == WEFT_ROLE_LAYERS) return admit_stage(l, peer, err);
    return WEFT_FAIL(err, WEFT_FAILED_PRECONDITION,
                     "expert shards dial nobody");
}

static void take_link(void *arg, weft_link *link, const weft_hello *peer)
{
    weft_err err = {0};
    weft_layers *const l = arg;
    if (peer->role == WEFT_ROLE_ROUTER) {
        weft_layers_take_router(l, link, peer);
        return;
    }
    if (weft_stage_add_link(l->stage, peer->stage, link, &err) != WEFT_OK)
        weft_log(WEFT_LOG_WARN, "layers", "link_refused",
                 "id \"%s\" reason \"%s\"", peer->id, err.text);
}

static void stages_ready(void *arg)
{
    weft_layers *const l = arg;
    weft_engine *const engine = atomic_load(&l->engine);
    if (engine != NULL) weft_engine_wake(engine);
    if (l->stage != NULL) weft_stage_wake(l->stage);
}

static weft_status create_stage_peers(weft_layers *l, weft_err *err)
{
    const weft_shard *const s = &l->shard;
    const weft_frame_limits limits =
        weft_stages_limits(&l->config, &l->engine_options);
    const weft_peers_options options = {
        .own = &s->member.hello,
        .own_later = true,
        .tls = s->member.tls,
        .link = weft_membership_link(&limits),
        .peers_max = WEFT_STAGES_MAX,
        .pulse = s->member.pulse,
        .ready = stages_ready,
        .arg = l,
    };
    if (s->options->stage == s->options->stages - 1) return WEFT_OK;
    return weft_peers_create(&options, &l->stage_peers, err);
}

/* -- what is asked over HTTP ---------------------------------------------- */

static bool is_ready(weft_shard *shard, char *reason, size_t bytes)
{
    weft_layers *const l = (weft_layers *)shard;
    weft_engine *const engine = atomic_load(&l->engine);
    weft_engine_load load = {0};
    weft_stage_state stage = {0};
    (void)snprintf(reason, bytes, "stages or experts are missing");
    if (engine != NULL) weft_engine_get_load(engine, &load);
    if (l->stage != NULL) weft_stage_get_state(l->stage, &stage);
    return load.whole || stage.connected;
}

static uint64_t progress_ns(weft_shard *shard)
{
    weft_layers *const l = (weft_layers *)shard;
    weft_engine *const engine = atomic_load(&l->engine);
    weft_engine_load load = {0};
    weft_stage_state stage = {0};
    if (engine != NULL) weft_engine_get_load(engine, &load);
    if (l->stage != NULL) weft_stage_get_state(l->stage, &stage);
    return engine != NULL ? load.last_progress_ns : stage.last_progress_ns;
}

/* How free memory would be cut is told with `serve` alone: each kind may have
 * it. */
static void refresh_kv(weft_metrics *metrics, const weft_kv_stats *kv)
{
    const uint64_t free_bytes = (uint64_t)kv->free_bytes;
    weft_metrics_set_kv(metrics, WEFT_KV_FULL, WEFT_KV_USED,
                        (uint64_t)kv->used_bytes[WEFT_FULL]);
    weft_metrics_set_kv(metrics, WEFT_KV_FULL, WEFT_KV_FREE, free_bytes);
    weft_metrics_set_kv(metrics, WEFT_KV_WINDOW, WEFT_KV_USED,
                        (uint64_t)kv->used_bytes[WEFT_WINDOW]);
    weft_metrics_set_kv(metrics, WEFT_KV_WINDOW, WEFT_KV_FREE, free_bytes);
    weft_metrics_set_kv(metrics, WEFT_KV_INDEX, WEFT_KV_USED,
                        (uint64_t)kv->index_used_bytes);
    weft_metrics_set(metrics, WEFT_KV_TOTAL_BYTES, (uint64_t)kv->total_bytes);
}

static void refresh(weft_shard *shard, weft_metrics *metrics)
{
    weft_layers *const l = (weft_layers *)shard;
    weft_engine *const engine = atomic_load(&l->engine);
    weft_engine_load load = {0};
    if (engine == NULL) return;
    weft_engine_get_load(engine, &load);
    weft_metrics_set(metrics, WEFT_REQUESTS_RUNNING,
                     (uint64_t)load.sched.n_running);
    weft_metrics_set(metrics, WEFT_REQUESTS_WAITING,
                     (uint64_t)load.sched.n_waiting);
    refresh_kv(metrics, &load.kv);
}

static weft_status print(weft_shard *shard, weft_buf *out, weft_err *err)
{
    const weft_layers *const l = (weft_layers *)shard;
    weft_exchange_counts counts;
    weft_exchange_meter_get(l->meter, &counts);
    return weft_exchange_print(l->meter, &counts, out, err);
}

/* -- start ---------------------------------------------------------------- */

static weft_status cut_model(weft_layers *l, weft_err *err)
{
    weft_shard *const s = &l->shard;
    const weft_options *const o = s->options;
    const bool is_lead = o->stage == 0;
    const weft_status st =
        weft_partition_cut(&s->config, o->stages, o->stage, &l->config, err);
    if (st != WEFT_OK) return WEFT_WRAP(err, st, "--stages %d", o->stages);
    s->engine.experts_elsewhere = s->config.n_expert > 0;
    l->part = (weft_part_of_model){
        .first_layer = l->config.first_layer,
        .end_layer = l->config.end_layer,
        .embed = is_lead,
        .head = is_lead,
        .experts = false,
    };
    weft_rank_sizes sizes;
    WEFT_TRY(weft_rank_weights_measure(s->checkpoint, &s->backend, &l->part,
                                       &sizes, err));
    const int64_t rows_bytes =
        o->stages > 1 ? weft_stages_bytes(&l->config, &s->engine) : 0;
    const bool on_device = s->backend.opened != NULL;
    WEFT_TRY(weft_memory_plan_make(
        &l->config, &s->engine, on_device ? 0 : o->kv_bytes,
        sizes.host_bytes + rows_bytes, &l->memory, err));
    if (on_device)
        WEFT_TRY(weft_backend_plan(&s->backend, &l->config, &s->engine,
                                   o->kv_bytes, sizes.device_bytes, 0,
                                   &l->memory.kv_bytes, err));
    l->engine_options = s->engine;
    if (on_device) {
        l->engine_options.failed = weft_shard_fail;
        l->engine_options.failed_arg = s;
    }
    l->engine_options.kv_bytes = l->memory.kv_bytes;
    weft_log(
        WEFT_LOG_INFO, "layers", "cut",
        "layers %d-%d weights_mib %" PRId64 " kv_bytes %" PRId64 " ranks %d",
        l->config.first_layer, l->config.end_layer - 1,
        l->memory.weights_bytes / MIB, l->memory.kv_bytes, s->backend.n_ranks);
    return WEFT_OK;
}

static weft_status load_weights(weft_layers *l, weft_err *err)
{
    const uint64_t from_ns = weft_clock_now_ns();
    const weft_shard *const s = &l->shard;
    WEFT_TRY(weft_rank_weights_load(s->checkpoint, &s->backend, &l->part, NULL,
                                    NULL, &l->weights, err));
    l->engine_options.ranks = l->weights.others;
    weft_log(WEFT_LOG_INFO, "layers", "loaded",
             "weights_mib %" PRId64 " seconds %.1f",
             l->memory.weights_bytes / MIB,
             (double)(weft_clock_now_ns() - from_ns) / (double)SECOND_NS);
    return WEFT_OK;
}

static void on_stage_step(void *arg, uint64_t step_ns, int32_t n_rows)
{
    (void)n_rows;
    weft_metrics_observe(arg, WEFT_STEP_TIME, step_ns);
}

static weft_status start_stage(weft_layers *l, weft_err *err)
{
    const weft_options *const o = l->shard.options;
    const weft_stage_options options = {
        .config = &l->config,
        .weights = weft_rank_weights_first(&l->weights),
        .engine = l->engine_options,
        .stage = o->stage,
        .n_stages = o->stages,
        .group = (uint32_t)o->group,
        .exchange = l->exchange,
        .peers = l->stage_peers,
        .pulse = l->shard.member.pulse,
        .on_step = on_stage_step,
        .on_step_arg = l->shard.metrics,
    };
    return weft_stage_start(&options, &l->stage, err);
}

static weft_status start_parts(weft_layers *l, weft_err *err)
{
    const weft_model_config *const whole = &l->shard.config;
    WEFT_TRY(weft_exchange_meter_create(whole->n_layer, whole->n_expert,
                                        &l->meter, err));
    WEFT_TRY(create_exchange(l, err));
    WEFT_TRY(create_stage_peers(l, err));
    l->engine_options.exchange = l->exchange;
    l->engine_options.pulse = l->shard.member.pulse;
    return weft_layers_is_lead(l) ? weft_layers_create_lead(l, err)
                                  : start_stage(l, err);
}

static weft_status join(weft_layers *l, weft_doing *doing_out, weft_err *err)
{
    const bool waits = l->stages != NULL; /* for other stages */
    const weft_member self = {.state = waits ? WEFT_MEMBER_JOINING
                                             : WEFT_MEMBER_SERVING,
                              .kv_bytes = l->memory.kv_bytes};
    const weft_cluster_ops ops = weft_layers_cluster_ops(l);
    WEFT_TRY(weft_shard_join(&l->shard, &self, &ops, doing_out, err));
    if (l->expert_peers != NULL)
        weft_peers_set_own(l->expert_peers, &l->shard.member.hello);
    if (l->stage_peers != NULL)
        weft_peers_set_own(l->stage_peers, &l->shard.member.hello);
    *doing_out = WEFT_DOING_START;
    return weft_layers_build_later(l, err);
}

static weft_status start(weft_layers *l, const weft_options *options,
                         weft_doing *doing_out, weft_err *err)
{
    weft_shard *const s = &l->shard;
    s->is_ready = is_ready;
    s->refresh = refresh;
    s->print = print;
    s->progress_ns = progress_ns;
    WEFT_TRY(weft_shard_open(s, options, doing_out, err));
    weft_shard_open_near(s);
    WEFT_TRY(cut_model(l, err));
    *doing_out = WEFT_DOING_LOAD;
    WEFT_TRY(load_weights(l, err));
    *doing_out = WEFT_DOING_START;
    WEFT_TRY(start_parts(l, err));
    const weft_frame_limits limits = listen_limits(l);
    const weft_shard_door door = {
        .limits = &limits, .admit = admit, .take = take_link, .arg = l};
    WEFT_TRY(weft_shard_listen(s, &door, err));
    WEFT_TRY(join(l, doing_out, err));
    return weft_shard_tell_ready(s, err);
}

/* -- end ------------------------------------------------------------------ */

static bool nothing_live(void *arg)
{
    const weft_layers *const l = arg;
    return atomic_load(&l->shard.ending) || weft_front_live(l->front) == 0;
}

static bool no_steps(void *arg)
{
    weft_layers *const l = arg;
    weft_stage_state state;
    weft_stage_get_state(l->stage, &state);
    const uint64_t now_ns = weft_clock_now_ns();
    if (l->quiet_since_ns == 0 || state.n_steps != l->n_steps)
        l->quiet_since_ns = now_ns;
    l->n_steps = state.n_steps;
    return atomic_load(&l->shard.ending) || !state.connected ||
           now_ns > l->quiet_since_ns + QUIET_NS;
}

static void drain(weft_layers *l)
{
    const uint64_t until_ns =
        weft_clock_now_ns() +
        (uint64_t)l->shard.options->drain_seconds * SECOND_NS;
    weft_cluster_set_state(l->shard.member.cluster, WEFT_MEMBER_DRAINING);
    bool done = true;
    if (l->stage != NULL)
        done = weft_lifecycle_wait_until(no_steps, l, until_ns);
    else if (atomic_load(&l->engine) != NULL) {
        weft_front_drain(l->front);
        done = weft_lifecycle_wait_until(nothing_live, l, until_ns);
    }
    if (!done)
        weft_log(WEFT_LOG_WARN, "layers", "cut",
                 "reason \"requests are still running\"");
}

static void take_down(weft_layers *l)
{
    weft_shard_close_links(&l->shard);
    /* Their threads wake what goes next. */
    weft_peers_stop(l->stage_peers);
    weft_peers_stop(l->expert_peers);
    if (l->exchange != NULL) weft_exchange_stop(l->exchange);
    if (weft_layers_is_lead(l)) weft_layers_destroy_lead(l);
    weft_stage_stop(l->stage);
    weft_exchange_destroy(l->exchange);
    weft_peers_destroy(l->stage_peers);
    weft_peers_destroy(l->expert_peers);
    weft_exchange_meter_destroy(l->meter);
    weft_rank_weights_destroy(&l->weights);
    weft_shard_close(&l->shard);
}

int weft_shard_run_layers(const weft_options *options)
{
    weft_doing doing = WEFT_DOING_START;
    weft_err err = {0};
    weft_layers *const l = weft_mem_new(1, sizeof *l);
    if (l == NULL) {
        (void)WEFT_FAIL(&err, WEFT_RESOURCE_EXHAUSTED, "out of memory");
        return weft_fail_with(WEFT_EXIT_RESOURCE, &err);
    }
    weft_status st = start(l, options, &doing, &err);
    if (st == WEFT_OK) st = weft_shard_wait(&l->shard, &err);
    if (st == WEFT_OK && atomic_load(&l->failed)) {
        err = l->why;
        st = err.status;
    }
    if (st == WEFT_OK) {
        drain(l);
        st = weft_shard_check(&l->shard, &err);
    }
    take_down(l);
    weft_mem_free(l);
    if (st == WEFT_OK) return WEFT_EXIT_DONE;
    return weft_fail_with(weft_exit_of(st, doing), &err);
}
