/* config_hash.c - one number for what config.json says about the answer. */
#include <string.h>

#include "node/base/hash.h"
#include "shard/model/config.h"

static uint64_t hash_ints(uint64_t hash, const int64_t *values, size_t n)
{
    for (size_t i = 0; i < n; i++) hash = weft_hash_int(hash, values[i]);
    return hash;
}

static uint64_t hash_geometry(uint64_t hash, const weft_geometry *g)
{
    const int64_t ints[] = {g->n_head,           g->q_lora_rank,
                            g->kv_lora_rank,     g->qk_nope_head_dim,
                            g->qk_rope_head_dim, g->v_head_dim,
                            (int64_t)g->gate};
    hash = hash_ints(hash, ints, sizeof ints / sizeof *ints);
    hash = weft_hash_real(hash, g->rope_theta);
    return weft_hash_real(hash, (double)g->softmax_scale);
}

static uint64_t hash_attention(uint64_t hash, const weft_model_config *c)
{
    const weft_yarn *const y = &c->yarn;
    const int64_t ints[] = {c->window,          y->on,
                            c->rescale,         c->k_rope_norm,
                            c->rope_interleave, c->dsa,
                            c->index_n_head,    c->index_head_dim,
                            c->index_topk,      c->index_rope_interleave};
    const double reals[] = {y->factor, y->beta_fast, y->beta_slow,
                            y->original_context, (double)y->cos_sin_factor};
    for (int32_t k = 0; k < WEFT_KINDS; k++)
        hash = hash_geometry(hash, &c->geometry[k]);
    hash = hash_ints(hash, ints, sizeof ints / sizeof *ints);
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        hash = weft_hash_real(hash, reals[i]);
    return hash;
}

static uint64_t hash_ffn(uint64_t hash, const weft_model_config *c)
{
    const int64_t ints[] = {c->intermediate_size,
                            c->n_expert,
                            c->top_k,
                            c->n_group,
                            c->topk_group,
                            c->moe_intermediate_size,
                            (int64_t)c->scoring,
                            (int64_t)c->topk_method,
                            c->norm_topk,
                            c->dynamic_rsf};
    hash = hash_ints(hash, ints, sizeof ints / sizeof *ints);
    return weft_hash_real(hash, (double)c->routed_scaling);
}

uint64_t weft_model_config_hash(const weft_model_config *config)
{
    const int64_t ints[] = {config->vocab_size, config->hidden_size,
                            config->n_layer, config->max_context,
                            config->tie_embeddings};
    uint64_t hash = hash_ints(WEFT_FNV_START, ints, sizeof ints / sizeof *ints);
    hash = weft_hash_fnv(hash, config->model_type, strlen(config->model_type));
    hash = weft_hash_real(hash, (double)config->rms_norm_eps);
    for (int32_t i = 0; i < config->n_layer; i++)
        hash =
            weft_hash_int(hash, (int64_t)config->kind[i] * 2 + config->moe[i]);
    hash = hash_attention(hash, config);
    hash = hash_ffn(hash, config);
    for (int32_t i = 0; i < config->n_suppressed_ids; i++)
        hash = weft_hash_int(hash, config->suppressed_ids[i]);
    return hash;
}
