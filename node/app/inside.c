#include "node/app/inside.h"

#include <pthread.h>
#include <stdio.h>

#include "node/app/memory.h"
#include "node/base/mem.h"
#include "node/cluster/placement.h"
#include "shard/expert/body.h"
#include "shard/expert/exchange.h"
#include "shard/expert/server.h"
#include "shard/model/partition.h"
#include "shard/step/stages.h"

enum { EPOCH = 1, SHARDS_MAX = 64 };

typedef struct inside_stage {
    weft_model_config config;
    weft_model *model;
    weft_exchange *exchange;
    weft_stage *stage; /* not of stage 0 */
    int64_t kv_bytes;
} inside_stage;

typedef struct inside_expert {
    weft_expert_store *store;
    weft_expert_server *server;
} inside_expert;

struct weft_inside {
    const weft_opened *opened;
    weft_engine_options engine;  /* of each stage, but for kv_bytes */
    int32_t n_stages, n_experts; /* shards; n_experts 0: with the layers */
    inside_stage *stages;
    inside_expert *experts;
    weft_stages *lead;
    int64_t kv_bytes[WEFT_STAGES_MAX]; /* of stages 1 ... */
    weft_placement *placement;
    pthread_mutex_t lock; /* of what follows */
    weft_engine *lead_engine;
    bool failed; /* the device of some part */
};

bool weft_inside_is_wanted(const weft_options *options)
{
    return options->stages > 1 || options->expert_shards > 1;
}

static void part_failed(void *arg, const weft_err *why)
{
    weft_inside *const p = arg;
    (void)why; /* the part has told it */
    (void)pthread_mutex_lock(&p->lock);
    p->failed = true;
    if (p->lead_engine != NULL) weft_engine_lose_device(p->lead_engine);
    (void)pthread_mutex_unlock(&p->lock);
}

void weft_inside_set_engine(weft_inside *inside, weft_engine *engine)
{
    if (inside == NULL) return;
    (void)pthread_mutex_lock(&inside->lock);
    inside->lead_engine = engine;
    if (engine != NULL && inside->failed) weft_engine_lose_device(engine);
    (void)pthread_mutex_unlock(&inside->lock);
}

static int32_t n_experts_apart(const weft_options *options,
                               const weft_model_config *config)
{
    return options->expert_shards > 1 && config->n_expert > 0
               ? options->expert_shards
               : 0;
}

/* A stage counts as much as the whole model would. */
int64_t weft_inside_device_bytes(const weft_options *options,
                                 const weft_model_config *config,
                                 const weft_engine_options *engine)
{
    weft_engine_options each = *engine;
    const int64_t n = n_experts_apart(options, config);
    if (!weft_inside_is_wanted(options)) return 0;
    each.experts_elsewhere = n > 0;
    return options->stages * weft_engine_device_bytes(config, &each) +
           n * weft_expert_server_device_bytes(config) -
           weft_engine_device_bytes(config, engine);
}

/* -- stages --------------------------------------------------------------- */

/* What full contexts need, for each stage: a little more in all than uncut,
 * since slabs are whole. With less, shares in that proportion. */
static weft_status share_kv(weft_inside *p, bool given, weft_err *err)
{
    double sum = 0.0;
    int64_t uncut = 0;
    WEFT_TRY(
        weft_memory_useful_kv(&p->opened->config, &p->engine, &uncut, err));
    const bool scarce = given || p->engine.kv_bytes < uncut;
    for (int32_t s = 0; s < p->n_stages; s++) {
        inside_stage *const one = &p->stages[s];
        WEFT_TRY(weft_partition_cut(&p->opened->config, p->n_stages, s,
                                    &one->config, err));
        WEFT_TRY(weft_memory_useful_kv(&one->config, &p->engine, &one->kv_bytes,
                                       err));
        sum += (double)one->kv_bytes;
    }
    for (int32_t s = 0; s < p->n_stages; s++) {
        inside_stage *const one = &p->stages[s];
        if (scarce && sum > (double)p->engine.kv_bytes)
            one->kv_bytes = (int64_t)((double)one->kv_bytes *
                                      ((double)p->engine.kv_bytes / sum));
        if (s > 0) p->kv_bytes[s - 1] = one->kv_bytes;
    }
    return WEFT_OK;
}

static weft_status load_stages(weft_inside *p, weft_err *err)
{
    for (int32_t s = 0; s < p->n_stages; s++) {
        inside_stage *const one = &p->stages[s];
        const weft_part_of_model part = {
            .first_layer = one->config.first_layer,
            .end_layer = one->config.end_layer,
            .embed = s == 0,
            .head = s == 0,
            .experts = p->n_experts == 0,
        };
        WEFT_TRY(weft_checkpoint_set_part(p->opened->checkpoint, &part, err));
        WEFT_TRY(weft_model_load(p->opened->checkpoint, NULL, NULL, &one->model,
                                 err));
    }
    return WEFT_OK;
}

/* Neither end can be silent or away without the other. */
static weft_status make_link(const weft_frame_limits *a_takes, const char *a_at,
                             const weft_frame_limits *b_takes, const char *b_at,
                             weft_link **a_out, weft_link **b_out,
                             weft_err *err)
{
    const weft_link_options a = {.limits = *a_takes, .name = a_at};
    const weft_link_options b = {.limits = *b_takes, .name = b_at};
    return weft_link_create_local(&a, &b, a_out, b_out, err);
}

static weft_status start_stage(weft_inside *p, int32_t s, weft_err *err)
{
    inside_stage *const one = &p->stages[s];
    weft_stage_options options = {
        .config = &one->config,
        .weights = weft_model_weights(one->model),
        .engine = p->engine,
        .stage = s,
        .n_stages = p->n_stages,
        .exchange = one->exchange,
    };
    options.engine.kv_bytes = one->kv_bytes;
    options.engine.failed = part_failed;
    options.engine.failed_arg = p;
    return weft_stage_start(&options, &one->stage, err);
}

static weft_status link_stages(weft_inside *p, weft_err *err)
{
    weft_link *a = NULL, *b = NULL;
    const weft_frame_limits limits =
        weft_stages_limits(&p->opened->config, &p->engine);
    for (int32_t s = 1; s < p->n_stages; s++) {
        WEFT_TRY(make_link(&limits, "stage", &limits, "lead", &a, &b, err));
        WEFT_TRY(weft_stage_add_link(p->stages[s].stage, 0, b, err));
        WEFT_TRY(weft_stages_add_link(p->lead, s, a, err));
    }
    for (int32_t s = 1; s + 1 < p->n_stages; s++) {
        WEFT_TRY(make_link(&limits, "next", &limits, "stage", &a, &b, err));
        WEFT_TRY(weft_stage_add_link(p->stages[s + 1].stage, s, b, err));
        WEFT_TRY(weft_stage_set_next(p->stages[s].stage, a, err));
    }
    return WEFT_OK;
}

static weft_status start_stages(weft_inside *p, weft_err *err)
{
    const weft_stages_options options = {.n_stages = p->n_stages};
    if (p->n_stages == 1) return WEFT_OK;
    WEFT_TRY(weft_stages_create(&options, &p->lead, err));
    for (int32_t s = 1; s < p->n_stages; s++) WEFT_TRY(start_stage(p, s, err));
    return link_stages(p, err);
}

/* -- experts -------------------------------------------------------------- */

static weft_status place(weft_inside *p, weft_err *err)
{
    const weft_model_config *const c = &p->opened->config;
    const weft_placement_shape shape = {
        .n_layer = c->n_layer, .n_expert = c->n_expert, .moe = c->moe};
    weft_placement_member members[SHARDS_MAX] = {0};
    for (int32_t i = 0; i < p->n_experts; i++) {
        (void)snprintf(members[i].id, sizeof members[i].id, "experts-%02d", i);
        (void)snprintf(members[i].address, sizeof members[i].address, "inside");
        members[i].incarnation = 1;
    }
    WEFT_TRY(weft_placement_make(&shape, members, p->n_experts, 1, NULL, NULL,
                                 &p->placement, err));
    p->placement->epoch = EPOCH;
    return WEFT_OK;
}

/* On a device as much as the shard's part takes. */
static weft_status create_store(weft_inside *p, int32_t shard, weft_err *err)
{
    const weft_model_config *const c = &p->opened->config;
    int64_t n = 0, budget = 0;
    for (int32_t l = 0; l < p->placement->n_layer; l++)
        for (int32_t e = 0; e < p->placement->n_expert; e++)
            n += weft_placement_owns(p->placement, shard, l, e);
    WEFT_TRY(
        weft_expert_store_budget(c, p->opened->checkpoint, n, &budget, err));
    return weft_expert_store_create(c, p->opened->checkpoint,
                                    p->engine.memory != NULL ? budget : 0,
                                    &p->experts[shard].store, err);
}

static weft_status load_experts(weft_inside *p, int32_t shard, weft_err *err)
{
    uint64_t hash = 0;
    for (int32_t l = 0; l < p->placement->n_layer; l++)
        for (int32_t e = 0; e < p->placement->n_expert; e++) {
            if (!weft_placement_owns(p->placement, shard, l, e)) continue;
            WEFT_TRY(weft_expert_store_load(p->experts[shard].store, l, e,
                                            &hash, err));
        }
    return WEFT_OK;
}

static weft_status start_expert(weft_inside *p, int32_t shard, weft_err *err)
{
    inside_expert *const one = &p->experts[shard];
    const weft_model_config *const c = &p->opened->config;
    WEFT_TRY(create_store(p, shard, err));
    WEFT_TRY(load_experts(p, shard, err));
    const weft_expert_server_options options = {
        .config = c,
        .store = one->store,
        .ops = p->engine.ops,
        .memory = p->engine.memory,
        .profile = p->engine.profile,
        .threads = p->engine.threads,
        .max_rows = WEFT_DISPATCH_ROWS_MAX,
        .links_max = WEFT_STAGES_MAX,
        .failed = part_failed,
        .failed_arg = p,
    };
    WEFT_TRY(weft_expert_server_start(&options, &one->server, err));
    weft_expert_server_set_epochs(one->server, EPOCH, EPOCH);
    return WEFT_OK;
}

static weft_status link_experts(weft_inside *p, inside_stage *stage,
                                weft_err *err)
{
    const weft_model_config *const c = &p->opened->config;
    const weft_frame_limits asks = weft_dispatch_limits(c);
    const weft_frame_limits answers = weft_answer_limits(c);
    for (int32_t i = 0; i < p->n_experts; i++) {
        const weft_placement_member *const m = &p->placement->members[i];
        weft_peer peer = {.incarnation = m->incarnation};
        weft_link *here = NULL, *there = NULL;
        (void)snprintf(peer.id, sizeof peer.id, "%s", m->id);
        (void)snprintf(peer.address, sizeof peer.address, "%s", m->address);
        WEFT_TRY(
            make_link(&answers, m->id, &asks, "layers", &here, &there, err));
        WEFT_TRY(weft_expert_server_add_link(p->experts[i].server, there, err));
        WEFT_TRY(weft_exchange_add_link(stage->exchange, &peer, here, err));
    }
    return WEFT_OK;
}

static weft_status create_exchange(weft_inside *p, inside_stage *stage,
                                   weft_err *err)
{
    const weft_exchange_options options = {
        .config = &stage->config,
        .max_rows = p->engine.chunk_tokens + p->engine.max_seqs,
    };
    WEFT_TRY(weft_exchange_create(&options, &stage->exchange, err));
    return link_experts(p, stage, err);
}

static weft_status start_experts(weft_inside *p, weft_err *err)
{
    weft_expert_map *map = NULL;
    if (p->n_experts == 0) return WEFT_OK;
    WEFT_TRY(place(p, err));
    for (int32_t i = 0; i < p->n_experts; i++)
        WEFT_TRY(start_expert(p, i, err));
    for (int32_t s = 0; s < p->n_stages; s++)
        WEFT_TRY(create_exchange(p, &p->stages[s], err));
    WEFT_TRY(weft_placement_to_map(p->placement, &map, err));
    weft_exchange_set_map(p->stages[0].exchange, map);
    weft_expert_map_release(map);
    return WEFT_OK;
}

/* -- all ------------------------------------------------------------------ */

static weft_status start_all(weft_inside *p, bool kv_given, weft_err *err)
{
    p->stages = weft_mem_new((size_t)p->n_stages, sizeof *p->stages);
    p->experts = weft_mem_new((size_t)p->n_experts + 1, sizeof *p->experts);
    if (p->stages == NULL || p->experts == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory");
    WEFT_TRY(share_kv(p, kv_given, err));
    WEFT_TRY(load_stages(p, err));
    WEFT_TRY(start_experts(p, err));
    return start_stages(p, err);
}

weft_status weft_inside_create(const weft_options *options,
                               const weft_opened *opened,
                               weft_engine_options *engine_io,
                               weft_inside **inside_out, weft_err *err)
{
    weft_inside *const p = weft_mem_new(1, sizeof *p);
    if (p == NULL) return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory");
    (void)pthread_mutex_init(&p->lock, NULL);
    p->opened = opened;
    p->n_stages = options->stages;
    p->n_experts = n_experts_apart(options, &opened->config);
    p->engine = *engine_io;
    /* While one part computes, most others wait for it. */
    p->engine.threads = engine_io->threads / (p->n_stages + p->n_experts);
    if (p->engine.threads < 1) p->engine.threads = 1;
    const weft_status st = start_all(p, options->kv_bytes > 0, err);
    if (st != WEFT_OK) {
        weft_inside_destroy(p);
        return st;
    }
    *engine_io = p->engine;
    engine_io->kv_bytes = p->stages[0].kv_bytes;
    engine_io->stages = p->lead;
    engine_io->stage_kv_bytes = p->kv_bytes;
    engine_io->exchange = p->stages[0].exchange;
    *inside_out = p;
    return WEFT_OK;
}

void weft_inside_destroy(weft_inside *inside)
{
    if (inside == NULL) return;
    for (int32_t s = 0; inside->stages != NULL && s < inside->n_stages; s++) {
        inside_stage *const one = &inside->stages[s];
        if (one->exchange != NULL) weft_exchange_stop(one->exchange);
        weft_stage_stop(one->stage);
    }
    weft_stages_destroy(inside->lead);
    for (int32_t i = 0; inside->experts != NULL && i < inside->n_experts; i++)
        weft_expert_server_stop(inside->experts[i].server);
    for (int32_t s = 0; inside->stages != NULL && s < inside->n_stages; s++) {
        weft_exchange_destroy(inside->stages[s].exchange);
        weft_model_destroy(inside->stages[s].model);
    }
    for (int32_t i = 0; inside->experts != NULL && i < inside->n_experts; i++)
        weft_expert_store_destroy(inside->experts[i].store);
    weft_placement_destroy(inside->placement);
    (void)pthread_mutex_destroy(&inside->lock);
    weft_mem_free(inside->stages);
    weft_mem_free(inside->experts);
    weft_mem_free(inside);
}

const weft_model_config *weft_inside_config(const weft_inside *inside)
{
    return &inside->stages[0].config;
}

const weft_weights *weft_inside_weights(const weft_inside *inside)
{
    return weft_model_weights(inside->stages[0].model);
}
