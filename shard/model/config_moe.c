/* config_moe.c - dense and routed feed-forward parts. */
#include "shard/model/config_internal.h"

#include <string.h>

/* What a family takes where its file is silent. */
typedef struct moe_defaults {
    int32_t first_dense, n_group, topk_group, scoring, method;
    bool norm_topk;
    double scaling;
} moe_defaults;

static const moe_defaults defaults[] = {
    [WEFT_DOTS3] = {1, 1, 1, WEFT_SIGMOID, WEFT_TOPK_NOAUX_TC, true, 1.0},
    [WEFT_DEEPSEEK_V2] = {0, 1, 1, WEFT_SOFTMAX, WEFT_TOPK_GREEDY, false, 1.0},
    [WEFT_DEEPSEEK_V3] = {3, 8, 4, WEFT_SIGMOID, WEFT_TOPK_NOAUX_TC, true, 2.5},
    [WEFT_DEEPSEEK_V32] = {3, 8, 4, WEFT_SIGMOID, WEFT_TOPK_NOAUX_TC, true,
                           2.5},
};

static const char mlp_types_key[] = "mlp_layer_types";

static weft_status read_mlp_types(const weft_fields *fields, const json_t *list,
                                  weft_model_config *config, weft_err *err)
{
    if (!json_is_array(list) || json_array_size(list) < (size_t)config->n_layer)
        return weft_fields_refuse(fields, mlp_types_key, NULL,
                                  "must be a list with one name for each of "
                                  "num_hidden_layers layers",
                                  err);
    for (int32_t i = 0; i < config->n_layer; i++) {
        const json_t *const item = json_array_get(list, (size_t)i);
        const char *const text = json_string_value(item);
        const bool sparse = text != NULL && strcmp(text, "sparse") == 0;
        if (!sparse && (text == NULL || strcmp(text, "dense") != 0))
            return weft_fields_refuse(fields, mlp_types_key, item,
                                      "known: dense sparse", err);
        config->moe[i] = sparse;
    }
    return WEFT_OK;
}

/* moe_layer_freq as a list: true or 1 where the layer is routed. */
static weft_status read_freq_list(const weft_fields *fields, const json_t *list,
                                  int32_t first_dense,
                                  weft_model_config *config, weft_err *err)
{
    if (json_array_size(list) < (size_t)config->n_layer)
        return weft_fields_refuse(fields, "moe_layer_freq", NULL,
                                  "the list is shorter than num_hidden_layers",
                                  err);
    for (int32_t i = 0; i < config->n_layer; i++) {
        const json_t *const item = json_array_get(list, (size_t)i);
        int64_t flag = json_is_true(item);
        if (!json_is_boolean(item) && !weft_json_is_int(item, 0, 1, &flag))
            return weft_fields_refuse(fields, "moe_layer_freq", item,
                                      "an entry must be 0, 1, true or false",
                                      err);
        config->moe[i] = i >= first_dense && flag != 0;
    }
    return WEFT_OK;
}

static weft_status read_pattern(weft_fields *fields, weft_family family,
                                weft_model_config *config, weft_err *err)
{
    json_t *const types = weft_fields_get(fields, mlp_types_key);
    int32_t first = 0, freq = 1;
    const weft_int_field list[] = {
        {"first_k_dense_replace", NULL, &first, 0, INT32_MAX,
         defaults[family].first_dense, types == NULL},
        {"moe_layer_freq", NULL, &freq, 1, INT32_MAX, 1, false},
    };
    WEFT_TRY(weft_fields_ints(fields, &list[0], 1, err));
    json_t *const freqs = weft_fields_get(fields, "moe_layer_freq");
    if (!json_is_array(freqs))
        WEFT_TRY(weft_fields_ints(fields, &list[1], 1, err));
    if (types != NULL) return read_mlp_types(fields, types, config, err);
    if (json_is_array(freqs))
        return read_freq_list(fields, freqs, first, config, err);
    for (int32_t i = 0; i < config->n_layer; i++)
        config->moe[i] = i >= first && i % freq == 0;
    return WEFT_OK;
}

static weft_status check_groups(const weft_fields *fields,
                                const weft_model_config *c, weft_err *err)
{
    if (c->top_k > c->n_expert)
        return weft_fields_refuse(fields, "num_experts_per_tok", NULL,
                                  "must not be above n_routed_experts", err);
    if (c->n_expert % c->n_group != 0)
        return weft_fields_refuse(fields, "n_group", NULL,
                                  "must divide n_routed_experts", err);
    if (c->n_group > 1 && c->n_expert / c->n_group < 2)
        return weft_fields_refuse(fields, "n_group", NULL,
                                  "a group needs two experts or more", err);
    if (c->topk_group > c->n_group)
        return weft_fields_refuse(fields, "topk_group", NULL,
                                  "must not be above n_group", err);
    if (c->topk_method != WEFT_TOPK_GREEDY &&
        c->top_k > c->n_expert / c->n_group * c->topk_group)
        return weft_fields_refuse(
            fields, "num_experts_per_tok", NULL,
            "must not be above the experts of topk_group groups", err);
    return WEFT_OK;
}

static weft_status read_router(weft_fields *fields, weft_family family,
                               weft_model_config *config, weft_err *err)
{
    static const char *const scorings[] = {"sigmoid", "softmax", NULL};
    static const char *const methods[] = {"noaux_tc", "greedy",
                                          "group_limited_greedy", NULL};
    const moe_defaults *const d = &defaults[family];
    int32_t scoring = 0, method = 0;
    double scaling = 1;
    WEFT_TRY(weft_fields_choice(fields, "scoring_func", scorings, d->scoring,
                                &scoring, err));
    WEFT_TRY(weft_fields_choice(fields, "topk_method", methods, d->method,
                                &method, err));
    config->scoring = (weft_scoring)scoring;
    config->topk_method = (weft_topk_method)method;
    WEFT_TRY(weft_fields_bool(fields, "norm_topk_prob", d->norm_topk,
                              &config->norm_topk, err));
    WEFT_TRY(weft_fields_bool(fields, "use_dynamic_rsf", false,
                              &config->dynamic_rsf, err));
    const weft_real_field scale = {
        "routed_scaling_factor", &scaling, 1e-6, 1e6, d->scaling, false};
    WEFT_TRY(weft_fields_real(fields, &scale, err));
    config->routed_scaling = (float)scaling;
    if (family == WEFT_DEEPSEEK_V2 && config->norm_topk) {
        /* V2 either normalises (and there is something to normalise) or
         * scales, never both. */
        if (config->top_k > 1) {
            config->routed_scaling = 1;
            fields->remark(fields->arg, "routed_scaling_factor",
                           "deepseek_v2 does not scale weights it normalises");
        }
        config->norm_topk = config->top_k > 1;
    }
    return check_groups(fields, config, err);
}

static weft_status read_shared(weft_fields *fields, weft_family family,
                               weft_model_config *config, weft_err *err)
{
    int32_t n_shared = 0, width = 0;
    const weft_int_field list[] = {
        {"n_shared_experts", NULL, &n_shared, family == WEFT_DOTS3 ? 1 : 0, 64,
         family == WEFT_DOTS3 ? WEFT_REQUIRED : 0, true},
        {"shared_experts_intermediate_size",
         "moe_shared_expert_intermediate_size", &width, 1, WEFT_WIDTH_MAX,
         config->moe_intermediate_size, false},
    };
    WEFT_TRY(weft_fields_ints(fields, list, family == WEFT_DOTS3 ? 2 : 1, err));
    if (family != WEFT_DOTS3) width = config->moe_intermediate_size;
    config->shared_intermediate_size = width * n_shared;
    return WEFT_OK;
}

/* One count under three names; those that are there must agree. */
static weft_status read_n_expert(weft_fields *fields, int32_t *n_out,
                                 weft_err *err)
{
    int32_t n = 0, other = 0;
    const weft_int_field list[] = {
        {"n_routed_experts", "num_local_experts", &n, 1, WEFT_EXPERTS_MAX, 0,
         false},
        {"num_experts", NULL, &other, 1, WEFT_EXPERTS_MAX, 0, false},
    };
    WEFT_TRY(weft_fields_ints(fields, list, sizeof list / sizeof *list, err));
    if (n == 0 && other == 0)
        return weft_fields_refuse(fields, "n_routed_experts", NULL,
                                  "required, but absent or null", err);
    if (n != 0 && other != 0 && n != other)
        return weft_fields_refuse(fields, "num_experts", NULL,
                                  "another name of it says otherwise", err);
    *n_out = n != 0 ? n : other;
    return WEFT_OK;
}

weft_status weft_config_moe(weft_fields *fields, weft_family family,
                            weft_model_config *config, weft_err *err)
{
    const moe_defaults *const d = &defaults[family];
    const bool tell_groups = d->n_group != 1;
    const weft_int_field list[] = {
        {"intermediate_size", NULL, &config->intermediate_size, 1,
         WEFT_WIDTH_MAX, WEFT_REQUIRED, false},
        {"num_experts_per_tok", NULL, &config->top_k, 1, WEFT_TOP_K_MAX,
         WEFT_REQUIRED, false},
        {"moe_intermediate_size", NULL, &config->moe_intermediate_size, 1,
         WEFT_WIDTH_MAX, WEFT_REQUIRED, false},
        {"n_group", NULL, &config->n_group, 1, WEFT_EXPERTS_MAX, d->n_group,
         tell_groups},
        {"topk_group", NULL, &config->topk_group, 1, WEFT_EXPERTS_MAX,
         d->topk_group, tell_groups},
    };
    WEFT_TRY(read_n_expert(fields, &config->n_expert, err));
    WEFT_TRY(weft_fields_ints(fields, list, sizeof list / sizeof *list, err));
    WEFT_TRY(read_pattern(fields, family, config, err));
    WEFT_TRY(read_router(fields, family, config, err));
    return read_shared(fields, family, config, err);
}
