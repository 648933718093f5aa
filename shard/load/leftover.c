#include "shard/load/leftover.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum group {
    VISION,
    AUDIO,
    MTP,
    INV_FREQ,
    INDEXER,
    TIED_HEAD,
    ROUTER_BIAS,
    GROUPS,
    UNKNOWN = GROUPS,
};

static const struct {
    const char *key, *reason;
} groups[GROUPS] = {
    [VISION] = {"vision_encoder.*", "text only: media are not supported"},
    [AUDIO] = {"audio_encoder.*", "text only: media are not supported"},
    [MTP] = {"MTP layers", "recognised, not used: no drafts are made"},
    [INV_FREQ] = {"*rotary_emb.inv_freq", "computed from the config"},
    [INDEXER] = {"*self_attn.indexer.*", "the layer selects no keys"},
    [TIED_HEAD] = {"lm_head.weight", "tie_word_embeddings: the embedding is "
                                     "the head"},
    [ROUTER_BIAS] = {"*e_score_correction_bias", "topk_method does not use it"},
};

static bool starts(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static bool ends(const char *text, const char *with)
{
    const size_t n = strlen(text), tail = strlen(with);
    return n >= tail && strcmp(text + n - tail, with) == 0;
}

/* N of "model.layers.N.REST"; -1: no such name. */
static int64_t layer_of(const char *name, const char **rest)
{
    static const char prefix[] = "model.layers.";
    if (!starts(name, prefix)) return -1;
    const char *at = name + sizeof prefix - 1;
    int64_t layer = 0;
    if (*at < '0' || *at > '9' || (at[0] == '0' && at[1] != '.')) return -1;
    for (; *at >= '0' && *at <= '9'; at++) {
        layer = layer * 10 + (*at - '0');
        if (layer > INT32_MAX) return -1;
    }
    if (*at != '.') return -1;
    *rest = at + 1;
    return layer;
}

/* A layer past the trunk is an MTP layer only if it has what makes it one;
 * otherwise the config cuts the trunk short, which must not go unnoticed. */
static bool is_mtp_layer(const weft_tensor_set *set, int64_t layer)
{
    char name[64];
    (void)snprintf(name, sizeof name, "model.layers.%lld.eh_proj.weight",
                   (long long)layer);
    return weft_tensor_set_find(set, name) != NULL;
}

static enum group group_of_layer(const weft_tensor_set *set,
                                 const weft_model_config *config, int64_t layer,
                                 const char *rest)
{
    if (layer >= config->n_layer)
        return is_mtp_layer(set, layer) ? MTP : UNKNOWN;
    const bool selects = config->dsa && config->kind[layer] == WEFT_FULL;
    if (starts(rest, "self_attn.indexer.") && !selects) return INDEXER;
    if (strcmp(rest, "mlp.gate.e_score_correction_bias") == 0 &&
        config->moe[layer] && config->topk_method != WEFT_TOPK_NOAUX_TC)
        return ROUTER_BIAS;
    return UNKNOWN;
}

static enum group group_of(const weft_tensor_set *set,
                           const weft_model_config *config, const char *name)
{
    const char *rest = NULL;
    if (starts(name, "vision_encoder.")) return VISION;
    if (starts(name, "audio_encoder.")) return AUDIO;
    if (ends(name, "rotary_emb.inv_freq")) return INV_FREQ;
    if (starts(name, "model.mtp.") || starts(name, "mtp.")) return MTP;
    if (config->tie_embeddings && strcmp(name, "lm_head.weight") == 0)
        return TIED_HEAD;
    const int64_t layer = layer_of(name, &rest);
    return layer >= 0 ? group_of_layer(set, config, layer, rest) : UNKNOWN;
}

static weft_status refuse(const weft_tensor_set *set, const char *names,
                          const weft_tensor *first, int64_t n, weft_err *err)
{
    return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                     "%s: %lld tensor%s that nothing in config.json asks for: "
                     "%s",
                     weft_tensor_set_file(set, first), (long long)n,
                     n == 1 ? "" : "s", names);
}

static int32_t count_mtp_layers(const weft_tensor_set *set,
                                const weft_model_config *config)
{
    int32_t n = 0;
    while (n < WEFT_LAYERS_MAX && is_mtp_layer(set, config->n_layer + n)) n++;
    return n;
}

weft_status weft_leftover_check(const weft_tensor_set *set,
                                const weft_model_config *config,
                                weft_remark_fn remark, void *arg,
                                weft_leftover *out, weft_err *err)
{
    enum { NAMED_MAX = 5 };
    int64_t counts[GROUPS + 1] = {0};
    const weft_tensor *first = NULL;
    char names[320] = "";
    for (size_t i = 0; i < set->n; i++) {
        const weft_tensor *const t = set->tensors[i];
        if (t->used) continue;
        const enum group g = group_of(set, config, t->name);
        counts[g]++;
        if (g != UNKNOWN || counts[g] > NAMED_MAX) continue;
        const size_t used = strlen(names);
        (void)snprintf(names + used, sizeof names - used, "%s%s",
                       first != NULL ? ", " : "", t->stored_name);
        if (first == NULL) first = t;
    }
    if (first != NULL) return refuse(set, names, first, counts[UNKNOWN], err);
    *out = (weft_leftover){.n_mtp = counts[MTP],
                           .n_mtp_layers = count_mtp_layers(set, config)};
    for (int g = 0; g < GROUPS; g++) {
        out->n_ignored += counts[g];
        if (counts[g] == 0 || remark == NULL) continue;
        char reason[128];
        (void)snprintf(reason, sizeof reason, "%lld tensors: %s",
                       (long long)counts[g], groups[g].reason);
        remark(arg, groups[g].key, reason);
    }
    return WEFT_OK;
}
