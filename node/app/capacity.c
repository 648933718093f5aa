#include "node/app/capacity.h"

#include <math.h>

#include "shard/model/partition.h"

enum {
    GROUPS_MAX = 4096, /* more is a mistake in the load, not a plan */
    SHARDS_MAX = 65536,
    HALF_BYTES = 2, /* of a bfloat16 value */
    ROW_BYTES = 4,  /* of a value of a row between shards */
};

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* -- parameters (model-spec 2) -------------------------------------------- */

static double of_indexer(const weft_model_config *c, const weft_geometry *g)
{
    const double hidden = c->hidden_size;
    const double from = g->q_lora_rank > 0 ? g->q_lora_rank : hidden;
    return from * c->index_n_head * c->index_head_dim +
           hidden * c->index_head_dim + hidden * c->index_n_head;
}

/* What belongs to heads, and ranks share. */
static double of_heads(const weft_model_config *c, weft_kind kind)
{
    const weft_geometry *const g = &c->geometry[kind];
    const double hidden = c->hidden_size, head = g->n_head;
    const double from = g->q_lora_rank > 0 ? g->q_lora_rank : hidden;
    double n = from * head * (g->qk_nope_head_dim + g->qk_rope_head_dim);
    n += g->kv_lora_rank * head * (g->qk_nope_head_dim + g->v_head_dim);
    n += head * g->v_head_dim * hidden;
    if (g->gate == WEFT_GATE_HEADWISE) n += hidden * head;
    if (g->gate == WEFT_GATE_ELEMENTWISE) n += hidden * head * g->v_head_dim;
    return n;
}

static double of_latents(const weft_model_config *c, weft_kind kind)
{
    const weft_geometry *const g = &c->geometry[kind];
    const double hidden = c->hidden_size;
    double n = hidden * (g->q_lora_rank + weft_config_row_width(c, kind));
    if (kind == WEFT_FULL && c->dsa) n += of_indexer(c, g);
    return n;
}

static int32_t ranks_of(const weft_capacity_load *load)
{
    return load->ranks > 1 ? load->ranks : 1;
}

/* Of the parameters of all layers, those that rank 0 has; routers and
 * vocabulary, which are of another type, beside. */
static double of_rank(const weft_capacity_model *m,
                      const weft_capacity_load *load)
{
    const double cut = m->attention - m->latents + m->shared + m->dense;
    return m->latents + cut / ranks_of(load);
}

static void count_parameters(const weft_model_config *c, weft_capacity_model *m)
{
    const double hidden = c->hidden_size;
    m->expert = 3 * hidden * c->moe_intermediate_size;
    m->vocabulary = (double)c->vocab_size * hidden;
    for (int32_t l = 0; l < c->n_layer; l++) {
        const double latents = of_latents(c, c->kind[l]);
        m->latents += latents;
        m->attention += latents + of_heads(c, c->kind[l]);
        if (!c->moe[l]) {
            m->dense += 3 * hidden * c->intermediate_size;
            continue;
        }
        m->moe_layers++;
        m->shared += 3 * hidden * c->shared_intermediate_size;
        m->router += hidden * c->n_expert;
        m->experts += c->n_expert * m->expert;
    }
}

/* -- bytes ---------------------------------------------------------------- */

static double index_row_bytes(const weft_model_config *c,
                              const weft_capacity_load *load)
{
    if (!c->dsa) return 0;
    return load->index_row_bytes > 0 ? load->index_row_bytes
                                     : (double)c->index_head_dim * HALF_BYTES;
}

static void count_kv(const weft_model_config *c, const weft_capacity_load *load,
                     weft_capacity_model *m)
{
    const double context = (double)load->context;
    const double index = index_row_bytes(c, load);
    const double selected = c->dsa ? smaller(context, c->index_topk) : context;
    const double window = c->window > 0 ? smaller(context, c->window) : context;
    for (int32_t l = 0; l < c->n_layer; l++) {
        const double row =
            (double)weft_config_row_width(c, c->kind[l]) * HALF_BYTES;
        const bool full = c->kind[l] == WEFT_FULL;
        m->kv_read_bytes +=
            full ? index * context + row * selected : row * window;
        m->kv_bytes += full ? (index + row) * context : row * window;
    }
}

void weft_capacity_measure(const weft_model_config *config,
                           const weft_capacity_load *load,
                           weft_capacity_model *model_out)
{
    weft_capacity_model m = {0};
    const double weight = load->fp8 ? 1 : HALF_BYTES;
    count_parameters(config, &m);
    count_kv(config, load, &m);
    m.expert_bytes = m.expert * weight;
    m.experts_bytes = m.experts * weight;
    /* Of the embedding a step reads a row a token: next to nothing. */
    m.layer_bytes =
        weight * of_rank(&m, load) + HALF_BYTES * (m.router + m.vocabulary);
    m.held_bytes = m.layer_bytes + HALF_BYTES * m.vocabulary;
    *model_out = m;
}

/* -- times ---------------------------------------------------------------- */

double weft_capacity_touched(const weft_model_config *config, double rows)
{
    if (config->n_expert == 0) return 0;
    const double part = (double)config->top_k / config->n_expert;
    return config->n_expert * (1 - pow(1 - part, rows));
}

static double weight_flops(const weft_capacity_device *d,
                           const weft_capacity_load *load)
{
    return load->fp8 ? d->fp8_flops : d->bf16_flops;
}

double weft_capacity_layers_seconds(const weft_model_config *c,
                                    const weft_capacity_device *d,
                                    const weft_capacity_load *load,
                                    double sequences)
{
    weft_capacity_model m;
    weft_capacity_measure(c, load, &m);
    const double context = (double)load->context;
    double attention = 0, index = 0;
    for (int32_t l = 0; l < c->n_layer; l++) {
        const bool full = c->kind[l] == WEFT_FULL;
        const weft_geometry *const g = &c->geometry[c->kind[l]];
        const double cap = full ? (c->dsa ? c->index_topk : context)
                                : (c->window > 0 ? c->window : context);
        attention += 2.0 * g->n_head / ranks_of(load) * smaller(context, cap) *
                     (weft_config_row_width(c, c->kind[l]) + g->kv_lora_rank);
        if (full && c->dsa)
            index += 2.0 * c->index_n_head * c->index_head_dim * context;
    }
    const double products = 2 * (of_rank(&m, load) + m.router + m.vocabulary);
    const double compute = products / weight_flops(d, load) +
                           attention / d->bf16_flops +
                           index / weight_flops(d, load);
    return larger((m.layer_bytes + sequences * m.kv_read_bytes) / d->bandwidth,
                  sequences * compute);
}

double weft_capacity_experts_seconds(const weft_model_config *c,
                                     const weft_capacity_device *d,
                                     const weft_capacity_load *load,
                                     double sequences)
{
    weft_capacity_model m;
    weft_capacity_measure(c, load, &m);
    const double read =
        weft_capacity_touched(c, sequences) * m.moe_layers * m.expert_bytes;
    const double products = 2 * sequences * c->top_k * m.moe_layers * m.expert;
    return larger(read / d->bandwidth, products / weight_flops(d, load));
}

/* -- the plan ------------------------------------------------------------- */

static weft_status check(const weft_model_config *c,
                         const weft_capacity_device *d,
                         const weft_capacity_load *load, weft_err *err)
{
    weft_model_config unused;
    if (load->context < 1)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "context %lld: 1 or more is wanted",
                         (long long)load->context);
    if (load->sequences < 1)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "sequences %d: 1 or more is wanted", load->sequences);
    if (load->expert_replicas < 1)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "expert-replicas %d: 1 or more is wanted",
                         load->expert_replicas);
    if (!(d->bandwidth > 0) || !(d->bf16_flops > 0) || !(d->fp8_flops > 0))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "bandwidth %g, bf16 %g and fp8 %g: all above 0",
                         d->bandwidth, d->bf16_flops, d->fp8_flops);
    if (!(d->bytes * d->usable > d->reserve_bytes))
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "device: %.0f bytes, of which %.0f stay in reserve",
                         d->bytes * d->usable, d->reserve_bytes);
    return weft_partition_rank(c, ranks_of(load), &unused, err);
}

static double usable(const weft_capacity_device *d)
{
    return d->bytes * d->usable - d->reserve_bytes;
}

/* The fewest stages with which a group has room for its weights and at least
 * one sequence, and what it has room for then. */
static weft_status plan_layers(const weft_model_config *c,
                               const weft_capacity_device *d,
                               const weft_capacity_load *load,
                               weft_capacity_plan *p, weft_err *err)
{
    const weft_capacity_model *const m = &p->model;
    const double need = m->held_bytes + m->kv_bytes;
    const double stages = ceil(need / usable(d));
    if (stages > c->n_layer)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "layers: %.0f bytes of weights and %.0f of KV for one "
                         "sequence, and %d stages of a layer each have %.0f",
                         m->held_bytes, m->kv_bytes, c->n_layer,
                         usable(d) * c->n_layer);
    p->stages = (int32_t)stages;
    p->ranks = ranks_of(load);
    p->group_fits =
        (int64_t)((usable(d) * stages - m->held_bytes) / m->kv_bytes);
    const double groups = ceil(load->sequences / (double)p->group_fits);
    if (groups > GROUPS_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "sequences %d: that takes %.0f groups; up to %d are "
                         "planned",
                         load->sequences, groups, GROUPS_MAX);
    p->groups = (int32_t)groups;
    p->group_sequences = (load->sequences + p->groups - 1) / p->groups;
    p->layer_shard_bytes = m->held_bytes / stages;
    p->kv_shard_bytes = p->group_sequences * m->kv_bytes / stages;
    p->layers_seconds =
        weft_capacity_layers_seconds(c, d, load, p->group_sequences);
    return WEFT_OK;
}

static weft_status plan_experts(const weft_model_config *c,
                                const weft_capacity_device *d,
                                const weft_capacity_load *load,
                                weft_capacity_plan *p, weft_err *err)
{
    const weft_capacity_model *const m = &p->model;
    if (m->moe_layers == 0) return WEFT_OK;
    /* A layer is dealt out in whole experts, the last shard's share counts. */
    const double held = m->experts_bytes * load->expert_replicas;
    double shards = ceil(held / usable(d));
    while (shards <= SHARDS_MAX &&
           ceil(c->n_expert * load->expert_replicas / shards) * m->moe_layers *
                   m->expert_bytes >
               usable(d))
        shards++;
    if (shards > SHARDS_MAX || m->expert_bytes * m->moe_layers > usable(d))
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "experts: one of each layer takes %.0f bytes, a "
                         "device has %.0f",
                         m->expert_bytes * m->moe_layers, usable(d));
    p->experts_memory = (int32_t)larger(shards, load->expert_replicas);
    p->experts_seconds =
        weft_capacity_experts_seconds(c, d, load, load->sequences);
    p->experts_balance =
        (int32_t)smaller(ceil(p->experts_seconds / p->layers_seconds),
                         (double)c->n_expert * load->expert_replicas);
    p->experts = p->experts_memory > p->experts_balance ? p->experts_memory
                                                        : p->experts_balance;
    p->expert_shard_bytes =
        ceil(c->n_expert * load->expert_replicas / (double)p->experts) *
        m->moe_layers * m->expert_bytes;
    p->join_bytes = p->expert_shard_bytes;
    return WEFT_OK;
}

weft_status weft_capacity_plan_make(const weft_model_config *config,
                                    const weft_capacity_device *device,
                                    const weft_capacity_load *load,
                                    weft_capacity_plan *plan_out, weft_err *err)
{
    weft_capacity_plan p = {0};
    WEFT_TRY(check(config, device, load, err));
    weft_capacity_measure(config, load, &p.model);
    WEFT_TRY(plan_layers(config, device, load, &p, err));
    WEFT_TRY(plan_experts(config, device, load, &p, err));
    const double experts = p.experts > 0 ? p.experts_seconds / p.experts : 0;
    p.step_seconds = larger(p.layers_seconds, experts);
    p.tokens_per_second = load->sequences / p.step_seconds;
    /* A row goes once to each shard that serves one of its experts, and one
     * row for each of its slots comes back. */
    const double hit =
        p.experts > 0
            ? p.experts * (1 - pow(1 - 1.0 / p.experts, config->top_k))
            : 0;
    p.rows_bytes = (double)load->sequences * p.model.moe_layers *
                   config->hidden_size * ROW_BYTES * (hit + config->top_k);
    *plan_out = p;
    return WEFT_OK;
}
