/* walk.c - which tensors a model has, by its config (model-spec 4). */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "shard/load/loader.h"

/* Names are below WEFT_TENSOR_NAME_MAX: the parts are ours. */
typedef char name_text[WEFT_TENSOR_NAME_MAX];

static const char *name_of(name_text name, const char *format, ...)
    WEFT_PRINTF(2, 3);

static const char *name_of(name_text name, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(name, WEFT_TENSOR_NAME_MAX, format, args);
    va_end(args);
    return name;
}

static bool is_there(const weft_loader *loader, const char *name)
{
    return weft_tensor_set_find(loader->set, name) != NULL;
}

static weft_status take_cut(weft_loader *loader, const char *name,
                            int32_t n_out, int32_t n_in, weft_cut cut,
                            weft_matrix *out, weft_err *err)
{
    const weft_part part = {
        .name = name, .n_row = n_out, .n_in = n_in, .n_out = n_out, .cut = cut};
    return weft_loader_matrix(loader, &part, out, err);
}

static weft_status take_whole(weft_loader *loader, const char *name,
                              int32_t n_out, int32_t n_in, weft_matrix *out,
                              weft_err *err)
{
    return take_cut(loader, name, n_out, n_in, WEFT_CUT_NONE, out, err);
}

static weft_status take_query(weft_loader *loader, const char *prefix,
                              const weft_geometry *g, weft_layer_weights *out,
                              weft_err *err)
{
    name_text name;
    const int32_t hidden = loader->config->hidden_size;
    const int32_t width =
        g->n_head * (g->qk_nope_head_dim + g->qk_rope_head_dim);
    if (g->q_lora_rank == 0)
        return take_cut(loader, name_of(name, "%sq_proj.weight", prefix), width,
                        hidden, WEFT_CUT_OUTS, &out->q_b, err);
    WEFT_TRY(take_whole(loader, name_of(name, "%sq_a_proj.weight", prefix),
                        g->q_lora_rank, hidden, &out->q_a, err));
    WEFT_TRY(weft_loader_vector(loader,
                                name_of(name, "%sq_a_layernorm.weight", prefix),
                                g->q_lora_rank, 0, &out->q_a_norm, err));
    return take_cut(loader, name_of(name, "%sq_b_proj.weight", prefix), width,
                    g->q_lora_rank, WEFT_CUT_OUTS, &out->q_b, err);
}

static weft_status take_keys(weft_loader *loader, const char *prefix,
                             const weft_geometry *g, weft_layer_weights *out,
                             weft_err *err)
{
    name_text name;
    const weft_model_config *const c = loader->config;
    WEFT_TRY(take_whole(loader,
                        name_of(name, "%skv_a_proj_with_mqa.weight", prefix),
                        g->kv_lora_rank + g->qk_rope_head_dim, c->hidden_size,
                        &out->kv_a, err));
    WEFT_TRY(weft_loader_vector(
        loader, name_of(name, "%skv_a_layernorm.weight", prefix),
        g->kv_lora_rank, 0, &out->kv_a_norm, err));
    if (c->k_rope_norm)
        WEFT_TRY(weft_loader_vector(
            loader, name_of(name, "%sk_rope_only_layernorm.weight", prefix),
            g->qk_rope_head_dim, 0, &out->k_rope_norm, err));
    return weft_loader_kv_b(loader, name_of(name, "%skv_b_proj.weight", prefix),
                            g, out, err);
}

/* With rope channels at the tail of a head, they go to its front, in queries,
 * keys and the keys' norm alike; the dot products stay what they were. */
static weft_status take_indexer(weft_loader *loader, const char *prefix,
                                weft_layer_weights *out, weft_err *err)
{
    name_text name;
    const weft_model_config *const c = loader->config;
    const weft_geometry *const g = &c->geometry[WEFT_FULL];
    const int32_t tail = c->index_rope_tail ? g->qk_rope_head_dim : 0;
    const int32_t head = c->index_head_dim;
    weft_part part = {.name = name_of(name, "%sindexer.wq_b.weight", prefix),
                      .n_row = c->index_n_head * head,
                      .n_in = g->q_lora_rank,
                      .n_out = c->index_n_head * head,
                      .head = head,
                      .tail = tail < head ? tail : 0};
    WEFT_TRY(weft_loader_matrix(loader, &part, &out->index_q, err));
    part.name = name_of(name, "%sindexer.wk.weight", prefix);
    part.n_row = part.n_out = head;
    part.n_in = c->hidden_size;
    WEFT_TRY(weft_loader_matrix(loader, &part, &out->index_k, err));
    WEFT_TRY(weft_loader_vector(
        loader, name_of(name, "%sindexer.k_norm.weight", prefix), head,
        part.tail, &out->index_k_norm_w, err));
    WEFT_TRY(weft_loader_vector(loader,
                                name_of(name, "%sindexer.k_norm.bias", prefix),
                                head, part.tail, &out->index_k_norm_b, err));
    return take_whole(loader,
                      name_of(name, "%sindexer.weights_proj.weight", prefix),
                      c->index_n_head, c->hidden_size, &out->index_w, err);
}

static weft_status take_attention(weft_loader *loader, int32_t layer,
                                  weft_layer_weights *out, weft_err *err)
{
    char prefix[64];
    name_text name;
    const weft_model_config *const c = loader->config;
    const weft_kind kind = c->kind[layer];
    const weft_geometry *const g = &c->geometry[kind];
    const int32_t out_width = g->n_head * g->v_head_dim;
    (void)snprintf(prefix, sizeof prefix, "model.layers.%d.self_attn.",
                   (int)layer);
    WEFT_TRY(take_query(loader, prefix, g, out, err));
    WEFT_TRY(take_keys(loader, prefix, g, out, err));
    if (g->gate != WEFT_GATE_NONE)
        WEFT_TRY(take_cut(loader, name_of(name, "%sg_proj.weight", prefix),
                          g->gate == WEFT_GATE_HEADWISE ? g->n_head : out_width,
                          c->hidden_size, WEFT_CUT_OUTS, &out->g, err));
    WEFT_TRY(take_cut(loader, name_of(name, "%so_proj.weight", prefix),
                      c->hidden_size, out_width, WEFT_CUT_INS, &out->o, err));
    if (kind == WEFT_FULL && c->dsa)
        return take_indexer(loader, prefix, out, err);
    return WEFT_OK;
}

static weft_status take_mlp(weft_loader *loader, const char *prefix,
                            int32_t width, weft_mlp_weights *out, weft_err *err)
{
    name_text name;
    const int32_t hidden = loader->config->hidden_size;
    WEFT_TRY(take_cut(loader, name_of(name, "%sgate_proj.weight", prefix),
                      width, hidden, WEFT_CUT_OUTS, &out->gate, err));
    WEFT_TRY(take_cut(loader, name_of(name, "%sup_proj.weight", prefix), width,
                      hidden, WEFT_CUT_OUTS, &out->up, err));
    return take_cut(loader, name_of(name, "%sdown_proj.weight", prefix), hidden,
                    width, WEFT_CUT_INS, &out->down, err);
}

/* gate_up_proj [E, 2 width, hidden], gate rows first; down_proj [E, hidden,
 * width]. */
static weft_status take_packed_expert(weft_loader *loader, const char *prefix,
                                      int32_t expert, weft_mlp_weights *out,
                                      weft_err *err)
{
    name_text name;
    const weft_model_config *const c = loader->config;
    const int32_t width = c->moe_intermediate_size;
    weft_part part = {.name = name_of(name, "%sexperts.gate_up_proj", prefix),
                      .n_block = c->n_expert,
                      .block = expert,
                      .n_row = 2 * width,
                      .n_in = c->hidden_size,
                      .n_out = width,
                      .cut = WEFT_CUT_OUTS};
    WEFT_TRY(weft_loader_matrix(loader, &part, &out->gate, err));
    part.row = width;
    WEFT_TRY(weft_loader_matrix(loader, &part, &out->up, err));
    part.name = name_of(name, "%sexperts.down_proj", prefix);
    part.row = 0;
    part.n_row = part.n_out = c->hidden_size;
    part.n_in = width;
    part.cut = WEFT_CUT_INS;
    return weft_loader_matrix(loader, &part, &out->down, err);
}

/* `prefix` is that of the layer's MLP. */
static weft_status take_expert(weft_loader *loader, const char *prefix,
                               int32_t expert, weft_mlp_weights *out,
                               weft_err *err)
{
    name_text name;
    char one[96];
    if (is_there(loader, name_of(name, "%sexperts.gate_up_proj", prefix)))
        return take_packed_expert(loader, prefix, expert, out, err);
    (void)snprintf(one, sizeof one, "%sexperts.%d.", prefix, (int)expert);
    return take_mlp(loader, one, loader->config->moe_intermediate_size, out,
                    err);
}

static weft_status take_experts(weft_loader *loader, const char *prefix,
                                weft_layer_weights *out, weft_err *err)
{
    const weft_model_config *const c = loader->config;
    weft_mlp_weights *const experts = weft_loader_place(
        loader, (size_t)c->n_expert * sizeof(weft_mlp_weights));
    out->experts = experts;
    for (int32_t e = 0; e < c->n_expert; e++) {
        weft_mlp_weights expert;
        WEFT_TRY(take_expert(loader, prefix, e, &expert, err));
        if (experts != NULL) experts[e] = expert;
    }
    if (weft_memory_is_host(&loader->memory)) return WEFT_OK;
    const size_t bytes = (size_t)c->n_expert * sizeof(weft_mlp_weights);
    weft_mlp_weights *const there = weft_loader_place_data(loader, bytes);
    out->experts_ops = there;
    return there == NULL ? WEFT_OK
                         : weft_loader_put(loader, there, experts, bytes, err);
}

static weft_status take_moe(weft_loader *loader, const char *prefix,
                            weft_layer_weights *out, weft_err *err)
{
    name_text name;
    char shared[96];
    const weft_model_config *const c = loader->config;
    WEFT_TRY(take_whole(loader, name_of(name, "%sgate.weight", prefix),
                        c->n_expert, c->hidden_size, &out->router, err));
    (void)name_of(name, "%sgate.e_score_correction_bias", prefix);
    if (c->topk_method == WEFT_TOPK_NOAUX_TC) {
        if (is_there(loader, name))
            WEFT_TRY(weft_loader_vector(loader, name, c->n_expert, 0,
                                        &out->router_bias, err));
        else if (loader->counts)
            loader->n_biasless++;
    }
    if (loader->part.experts) WEFT_TRY(take_experts(loader, prefix, out, err));
    if (c->shared_intermediate_size == 0) return WEFT_OK;
    (void)snprintf(shared, sizeof shared, "%sshared_experts.", prefix);
    return take_mlp(loader, shared, c->shared_intermediate_size, &out->mlp,
                    err);
}

static void mlp_prefix(char prefix[64], int32_t layer)
{
    (void)snprintf(prefix, 64, "model.layers.%d.mlp.", (int)layer);
}

weft_status weft_loader_expert(weft_loader *loader, int32_t layer,
                               int32_t expert, weft_mlp_weights *out,
                               weft_err *err)
{
    char prefix[64];
    mlp_prefix(prefix, layer);
    return take_expert(loader, prefix, expert, out, err);
}

static weft_status take_layer(weft_loader *loader, int32_t layer,
                              weft_layer_weights *out, weft_err *err)
{
    name_text name;
    char prefix[64];
    const weft_model_config *const c = loader->config;
    WEFT_TRY(weft_loader_vector(
        loader,
        name_of(name, "model.layers.%d.input_layernorm.weight", (int)layer),
        c->hidden_size, 0, &out->input_norm, err));
    WEFT_TRY(take_attention(loader, layer, out, err));
    WEFT_TRY(weft_loader_vector(
        loader,
        name_of(name, "model.layers.%d.post_attention_layernorm.weight",
                (int)layer),
        c->hidden_size, 0, &out->post_norm, err));
    mlp_prefix(prefix, layer);
    if (c->moe[layer]) return take_moe(loader, prefix, out, err);
    return take_mlp(loader, prefix, c->intermediate_size, &out->mlp, err);
}

weft_status weft_loader_walk(weft_loader *loader, weft_weights *out,
                             weft_err *err)
{
    const weft_model_config *const c = loader->config;
    const weft_part_of_model *const part = &loader->part;
    static const char embed[] = "model.embed_tokens.weight";
    const size_t layers_bytes = (size_t)c->n_layer * sizeof(weft_layer_weights);
    weft_weights unused;
    weft_weights *const w = out != NULL ? out : &unused;
    memset(w, 0, sizeof *w);
    weft_layer_weights *const layers = weft_loader_place(loader, layers_bytes);
    w->layers = layers;
    if (layers != NULL) memset(layers, 0, layers_bytes);
    if (part->embed)
        WEFT_TRY(weft_loader_table(loader, embed, c->vocab_size, c->hidden_size,
                                   &w->embed, &w->embed_dtype, err));
    for (int32_t i = part->first_layer; i < part->end_layer; i++) {
        weft_layer_weights layer;
        memset(&layer, 0, sizeof layer);
        WEFT_TRY(take_layer(loader, i, &layer, err));
        if (layers != NULL) layers[i] = layer;
    }
    if (!part->head) return WEFT_OK;
    WEFT_TRY(weft_loader_vector(loader, "model.norm.weight", c->hidden_size, 0,
                                &w->final_norm, err));
    return take_whole(loader, c->tie_embeddings ? embed : "lm_head.weight",
                      c->vocab_size, c->hidden_size, &w->lm_head, err);
}
