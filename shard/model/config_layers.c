/* config_layers.c - which layer is of which kind, and the two geometries. */
#include "shard/model/config_internal.h"

#include <stdio.h>
#include <string.h>

#include "node/base/str.h"

/* The last three name one geometry; which of them a file uses depends on the
 * release of the library that wrote it. */
static const char *const layer_names[] = {"sliding_attention", "full_attention",
                                          "deepseek_sparse_attention",
                                          "indexed_attention", NULL};
enum { NAME_SLIDING, NAME_FULL };

static int32_t layer_name(const json_t *value)
{
    const char *const text = json_string_value(value);
    for (int32_t i = 0; text != NULL && layer_names[i] != NULL; i++)
        if (strcmp(text, layer_names[i]) == 0) return i;
    return -1;
}

/* n_sparse counts full layers that are named as having an indexer. */
static weft_status read_layer_types(weft_fields *fields,
                                    weft_model_config *config,
                                    int32_t *n_sparse, weft_err *err)
{
    bool use_window = true;
    WEFT_TRY(
        weft_fields_bool(fields, "use_sliding_window", true, &use_window, err));
    json_t *const list = weft_fields_get(fields, "layer_types");
    *n_sparse = 0;
    if (list == NULL) {
        for (int32_t i = 0; i < config->n_layer; i++)
            config->kind[i] =
                !use_window || i < 2 || i % 4 == 1 ? WEFT_FULL : WEFT_WINDOW;
        return WEFT_OK;
    }
    /* Entries past the trunk describe MTP layers. */
    if (!json_is_array(list) || json_array_size(list) < (size_t)config->n_layer)
        return weft_fields_refuse(fields, "layer_types", NULL,
                                  "must be a list with one name for each of "
                                  "num_hidden_layers layers",
                                  err);
    for (int32_t i = 0; i < config->n_layer; i++) {
        const json_t *const item = json_array_get(list, (size_t)i);
        const int32_t name = layer_name(item);
        if (name < 0)
            return weft_fields_refuse(fields, "layer_types", item,
                                      "no such kind of layer", err);
        config->kind[i] = name == NAME_SLIDING ? WEFT_WINDOW : WEFT_FULL;
        *n_sparse += name > NAME_FULL;
    }
    return WEFT_OK;
}

static void count_kinds(weft_model_config *config)
{
    config->first_layer = 0;
    config->end_layer = config->n_layer;
    config->n_kind[WEFT_FULL] = config->n_kind[WEFT_WINDOW] = 0;
    for (int32_t i = 0; i < config->n_layer; i++)
        config->n_kind[config->kind[i]]++;
}

/* Keys of a geometry. Those of the sliding one carry a prefix at the top level
 * and none in per_layer_config. */
static weft_status read_full(weft_fields *fields, weft_family family,
                             weft_geometry *g, weft_err *err)
{
    int32_t n_kv = 0;
    /* q_lora_rank must be said: null means that there is no query latent, so
     * absence cannot be told from a mistake. */
    if (!weft_fields_has(fields, "q_lora_rank") &&
        (family == WEFT_DOTS3 || !weft_fields_is_null(fields, "q_lora_rank")))
        return weft_fields_refuse(fields, "q_lora_rank", NULL,
                                  family == WEFT_DOTS3
                                      ? "required, but absent or null"
                                      : "required (null: no query latent)",
                                  err);
    const weft_int_field list[] = {
        {"num_attention_heads", NULL, &g->n_head, 1, WEFT_HEADS_MAX,
         WEFT_REQUIRED, false},
        {"q_lora_rank", NULL, &g->q_lora_rank, 1, WEFT_RANK_MAX, 0, false},
        {"kv_lora_rank", NULL, &g->kv_lora_rank, 1, WEFT_RANK_MAX,
         WEFT_REQUIRED, false},
        {"qk_nope_head_dim", NULL, &g->qk_nope_head_dim, 1, WEFT_HEAD_DIM_MAX,
         WEFT_REQUIRED, false},
        {"qk_rope_head_dim", NULL, &g->qk_rope_head_dim, 2, WEFT_HEAD_DIM_MAX,
         WEFT_REQUIRED, false},
        {"v_head_dim", NULL, &g->v_head_dim, 1, WEFT_HEAD_DIM_MAX,
         WEFT_REQUIRED, false},
    };
    WEFT_TRY(weft_fields_ints(fields, list, sizeof list / sizeof *list, err));
    const weft_int_field kv = {"num_key_value_heads", NULL,      &n_kv, 1,
                               WEFT_HEADS_MAX,        g->n_head, false};
    WEFT_TRY(weft_fields_ints(fields, &kv, 1, err));
    if (n_kv != g->n_head)
        return weft_fields_refuse(fields, "num_key_value_heads", NULL,
                                  "must equal num_attention_heads", err);
    return WEFT_OK;
}

static weft_status read_sliding(weft_fields *fields, weft_geometry *g,
                                weft_err *err)
{
    const bool has_head_dim = weft_fields_has(fields, "swa_head_dim");
    int32_t n_kv = 0, head_dim = 0;
    const weft_int_field list[] = {
        {"swa_num_attention_heads", NULL, &g->n_head, 1, WEFT_HEADS_MAX, 64,
         true},
        {"swa_q_lora_rank", NULL, &g->q_lora_rank, 1, WEFT_RANK_MAX, 1024,
         true},
        {"swa_kv_lora_rank", NULL, &g->kv_lora_rank, 1, WEFT_RANK_MAX, 1024,
         true},
        {"swa_qk_nope_head_dim", NULL, &g->qk_nope_head_dim, 1,
         WEFT_HEAD_DIM_MAX, 192, true},
        {"swa_v_head_dim", NULL, &g->v_head_dim, 1, WEFT_HEAD_DIM_MAX, 128,
         true},
        {"swa_head_dim", NULL, &head_dim, 1, 2 * WEFT_HEAD_DIM_MAX, 256, false},
    };
    WEFT_TRY(weft_fields_ints(fields, list, sizeof list / sizeof *list, err));
    const weft_int_field more[] = {
        {"swa_num_key_value_heads", NULL, &n_kv, 1, WEFT_HEADS_MAX, g->n_head,
         false},
        {"swa_qk_rope_head_dim", NULL, &g->qk_rope_head_dim, 2,
         WEFT_HEAD_DIM_MAX, head_dim - g->qk_nope_head_dim, false},
    };
    WEFT_TRY(weft_fields_ints(fields, more, sizeof more / sizeof *more, err));
    if (n_kv != g->n_head)
        return weft_fields_refuse(fields, "swa_num_key_value_heads", NULL,
                                  "must equal swa_num_attention_heads", err);
    if (g->qk_rope_head_dim < 2 ||
        (has_head_dim && head_dim != g->qk_nope_head_dim + g->qk_rope_head_dim))
        return weft_fields_refuse(
            fields, "swa_head_dim", NULL,
            "must be swa_qk_nope_head_dim + swa_qk_rope_head_dim", err);
    return WEFT_OK;
}

static void skip_sliding(weft_fields *fields, const char *reason)
{
    static const char *const keys[] = {"swa_num_attention_heads",
                                       "swa_num_key_value_heads",
                                       "swa_q_lora_rank",
                                       "swa_kv_lora_rank",
                                       "swa_head_dim",
                                       "swa_qk_nope_head_dim",
                                       "swa_qk_rope_head_dim",
                                       "swa_v_head_dim"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (weft_fields_get(fields, keys[i]) != NULL)
            fields->remark(fields->arg, keys[i], reason);
}

/* One entry of per_layer_config laid over the top level. */
static weft_status read_layer_entry(const weft_fields *parent, const char *key,
                                    json_t *entry, weft_geometry *g,
                                    weft_err *err)
{
    static const weft_ignored_key ignored[] = {
        {"head_dim", "follows from the nope and rope widths"}, {NULL, NULL}};
    weft_fields fields;
    WEFT_TRY(weft_fields_init_nested(&fields, parent, key, entry, err));
    const weft_int_field list[] = {
        {"num_attention_heads", NULL, &g->n_head, 1, WEFT_HEADS_MAX, g->n_head,
         false},
        {"q_lora_rank", NULL, &g->q_lora_rank, 1, WEFT_RANK_MAX, g->q_lora_rank,
         false},
        {"kv_lora_rank", NULL, &g->kv_lora_rank, 1, WEFT_RANK_MAX,
         g->kv_lora_rank, false},
        {"qk_nope_head_dim", NULL, &g->qk_nope_head_dim, 1, WEFT_HEAD_DIM_MAX,
         g->qk_nope_head_dim, false},
        {"qk_rope_head_dim", NULL, &g->qk_rope_head_dim, 2, WEFT_HEAD_DIM_MAX,
         g->qk_rope_head_dim, false},
        {"v_head_dim", NULL, &g->v_head_dim, 1, WEFT_HEAD_DIM_MAX,
         g->v_head_dim, false},
    };
    weft_status st =
        weft_fields_ints(&fields, list, sizeof list / sizeof *list, err);
    int32_t n_kv = 0;
    const weft_int_field kv = {"num_key_value_heads", NULL,      &n_kv, 1,
                               WEFT_HEADS_MAX,        g->n_head, false};
    if (st == WEFT_OK) st = weft_fields_ints(&fields, &kv, 1, err);
    if (st == WEFT_OK && n_kv != g->n_head)
        st = weft_fields_refuse(&fields, "num_key_value_heads", NULL,
                                "must equal num_attention_heads", err);
    if (st == WEFT_OK) st = weft_fields_finish(&fields, ignored, err);
    weft_fields_deinit(&fields);
    return st;
}

static bool same_shape(const weft_geometry *a, const weft_geometry *b)
{
    return a->n_head == b->n_head && a->q_lora_rank == b->q_lora_rank &&
           a->kv_lora_rank == b->kv_lora_rank &&
           a->qk_nope_head_dim == b->qk_nope_head_dim &&
           a->qk_rope_head_dim == b->qk_rope_head_dim &&
           a->v_head_dim == b->v_head_dim;
}

static weft_status check_layer_keys(const weft_fields *fields, json_t *table,
                                    const weft_model_config *config,
                                    weft_err *err)
{
    const char *key = NULL;
    json_t *entry = NULL;
    json_object_foreach(table, key, entry)
    {
        int64_t layer = 0;
        const bool leading_zero = key[0] == '0' && key[1] != '\0';
        if (leading_zero || !weft_parse_i64(key, 0, WEFT_LAYERS_MAX, &layer))
            return weft_fields_refuse(fields, key, NULL,
                                      "not a layer number (per_layer_config)",
                                      err);
        if (layer >= config->n_layer)
            fields->remark(fields->arg, "per_layer_config",
                           "an entry past the trunk: MTP layers are not used");
    }
    return WEFT_OK;
}

/* Every layer is the top level with its own entry laid over it; the layers of
 * a kind must come out alike, since each kind has one pool of rows. */
static weft_status read_per_layer(const weft_fields *parent, json_t *table,
                                  weft_model_config *config, weft_err *err)
{
    weft_fields fields;
    WEFT_TRY(weft_fields_init_nested(&fields, parent, "per_layer_config", table,
                                     err));
    const weft_geometry top = config->geometry[WEFT_FULL];
    bool known[WEFT_KINDS] = {false, false};
    weft_status st = check_layer_keys(&fields, table, config, err);
    for (int32_t i = 0; st == WEFT_OK && i < config->n_layer; i++) {
        char key[16];
        (void)snprintf(key, sizeof key, "%d", (int)i);
        weft_geometry g = top;
        json_t *const entry = weft_fields_get(&fields, key);
        if (entry != NULL) st = read_layer_entry(&fields, key, entry, &g, err);
        weft_geometry *const of_kind = &config->geometry[config->kind[i]];
        if (st == WEFT_OK && known[config->kind[i]] && !same_shape(&g, of_kind))
            st = weft_fields_refuse(
                &fields, key, NULL,
                "differs from the other layers of its kind: more than two "
                "attention geometries",
                err);
        *of_kind = g;
        known[config->kind[i]] = true;
    }
    weft_fields_deinit(&fields);
    return st;
}

static weft_status read_geometries(weft_fields *fields, weft_family family,
                                   weft_model_config *config, weft_err *err)
{
    WEFT_TRY(read_full(fields, family, &config->geometry[WEFT_FULL], err));
    if (family != WEFT_DOTS3) return WEFT_OK;
    json_t *const table = weft_fields_get(fields, "per_layer_config");
    if (table != NULL) {
        skip_sliding(fields, "per_layer_config says it for each layer");
        return read_per_layer(fields, table, config, err);
    }
    if (config->n_kind[WEFT_WINDOW] == 0) {
        skip_sliding(fields, "no layer has a window");
        return WEFT_OK;
    }
    return read_sliding(fields, &config->geometry[WEFT_WINDOW], err);
}

static weft_status read_window(weft_fields *fields, weft_model_config *config,
                               weft_err *err)
{
    /* The released name, then the one of the library's own files. */
    const weft_int_field field = {"sliding_window_size",
                                  "sliding_window",
                                  &config->window,
                                  1,
                                  WEFT_CONTEXT_MAX,
                                  512,
                                  config->n_kind[WEFT_WINDOW] > 0};
    WEFT_TRY(weft_fields_ints(fields, &field, 1, err));
    if (config->n_kind[WEFT_WINDOW] == 0) config->window = 0;
    return WEFT_OK;
}

static weft_status read_gates(weft_fields *fields, weft_model_config *config,
                              weft_err *err)
{
    static const char *const names[] = {"none", "headwise", "elementwise",
                                        NULL};
    static const char *const keys[WEFT_KINDS] = {"attention_gate_type",
                                                 "swa_attention_gate_type"};
    for (int32_t kind = 0; kind < WEFT_KINDS; kind++) {
        int32_t gate = 0;
        WEFT_TRY(weft_fields_choice(fields, keys[kind], names,
                                    WEFT_GATE_HEADWISE, &gate, err));
        config->geometry[kind].gate = (weft_attn_gate)gate;
    }
    return WEFT_OK;
}

/* Layers that take over another layer's selection exist in a sister family. */
static weft_status refuse_sharing(weft_fields *fields, weft_err *err)
{
    static const char *const what =
        "layers that share an indexer's selection are not supported";
    int32_t freq = 1;
    const weft_int_field field = {"index_topk_freq", NULL, &freq, 1,
                                  INT32_MAX,         1,    false};
    WEFT_TRY(weft_fields_ints(fields, &field, 1, err));
    if (freq != 1)
        return weft_fields_refuse(fields, "index_topk_freq", NULL, what, err);
    const json_t *const pattern = weft_fields_get(fields, "index_topk_pattern");
    if (pattern != NULL)
        return weft_fields_refuse(fields, "index_topk_pattern", pattern, what,
                                  err);
    const json_t *const types = weft_fields_get(fields, "indexer_types");
    if (types != NULL && !json_is_array(types))
        return weft_fields_refuse(fields, "indexer_types", types, what, err);
    for (size_t i = 0; i < json_array_size(types); i++) {
        const json_t *const item = json_array_get(types, i);
        const char *const text = json_string_value(item);
        if (text == NULL || strcmp(text, "full") != 0)
            return weft_fields_refuse(fields, "indexer_types", item, what, err);
    }
    return WEFT_OK;
}

static weft_status read_indexer(weft_fields *fields, weft_family family,
                                int32_t n_sparse, weft_model_config *config,
                                weft_err *err)
{
    const bool explicit_layers = weft_fields_has(fields, "per_layer_config");
    const int32_t n_full = config->n_kind[WEFT_FULL];
    /* An explicit per_layer_config leaves the decision to the layers' names;
     * without it use_dsa renames them all. */
    const bool by_name = family == WEFT_DOTS3 && explicit_layers &&
                         !weft_fields_has(fields, "use_dsa");
    WEFT_TRY(weft_fields_bool(fields, "use_dsa", by_name ? n_sparse > 0 : true,
                              &config->dsa, err));
    if (by_name && n_sparse != 0 && n_sparse != n_full)
        return weft_fields_refuse(fields, "layer_types", NULL,
                                  "an indexer on some full layers only is not "
                                  "supported",
                                  err);
    if (weft_fields_is_null(fields, "index_topk") || n_full == 0)
        config->dsa = false;
    const weft_int_field list[] = {
        {"index_n_heads", NULL, &config->index_n_head, 1, WEFT_HEADS_MAX, 64,
         config->dsa},
        {"index_head_dim", NULL, &config->index_head_dim, 1, WEFT_HEAD_DIM_MAX,
         128, config->dsa},
        {"index_topk", NULL, &config->index_topk, 1, WEFT_CONTEXT_MAX, 2048,
         config->dsa},
    };
    WEFT_TRY(weft_fields_ints(fields, list, sizeof list / sizeof *list, err));
    WEFT_TRY(weft_fields_bool(fields, "indexer_rope_interleave",
                              family == WEFT_DOTS3,
                              &config->index_rope_interleave, err));
    WEFT_TRY(refuse_sharing(fields, err));
    if (config->dsa &&
        config->index_head_dim < config->geometry[WEFT_FULL].qk_rope_head_dim)
        return weft_fields_refuse(fields, "index_head_dim", NULL,
                                  "must be at least qk_rope_head_dim", err);
    if (config->dsa && config->geometry[WEFT_FULL].q_lora_rank == 0)
        return weft_fields_refuse(fields, "q_lora_rank", NULL,
                                  "an indexer needs a query latent", err);
    if (config->dsa) return WEFT_OK;
    config->index_n_head = config->index_head_dim = config->index_topk = 0;
    return WEFT_OK;
}

static weft_status read_dots3_switches(weft_fields *fields,
                                       weft_model_config *config, weft_err *err)
{
    if (!weft_fields_has(fields, "apply_mla_qkv_lora_rescale"))
        fields->remark(fields->arg, "apply_mla_qkv_lora_rescale",
                       "absent: true is taken");
    WEFT_TRY(weft_fields_bool(fields, "apply_mla_qkv_lora_rescale", true,
                              &config->rescale, err));
    return weft_fields_bool(fields, "k_rope_only_layernorm", true,
                            &config->k_rope_norm, err);
}

weft_status weft_config_layers(weft_fields *fields, weft_family family,
                               weft_model_config *config, weft_err *err)
{
    int32_t n_sparse = 0;
    if (family == WEFT_DOTS3)
        WEFT_TRY(read_layer_types(fields, config, &n_sparse, err));
    count_kinds(config);
    WEFT_TRY(read_geometries(fields, family, config, err));
    if (family == WEFT_DOTS3 || family == WEFT_DEEPSEEK_V32)
        WEFT_TRY(read_indexer(fields, family, n_sparse, config, err));
    if (family != WEFT_DOTS3) return WEFT_OK;
    WEFT_TRY(read_window(fields, config, err));
    WEFT_TRY(read_gates(fields, config, err));
    return read_dots3_switches(fields, config, err);
}
