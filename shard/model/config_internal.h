/* config_internal.h - what the parts of the config reader share.
 *
 * config.c reads the file and goes through the parts in this order; each part
 * takes its own keys: config_layers.c (layer kinds, geometries), config_rope.c
 * (rope, YaRN), config_moe.c (feed-forward parts), config_ids.c (token ids,
 * generation_config.json).
 */
#ifndef WEFT_SHARD_MODEL_CONFIG_INTERNAL_H
#define WEFT_SHARD_MODEL_CONFIG_INTERNAL_H

#include "shard/model/config.h"
#include "shard/model/config_fields.h"

typedef enum weft_family {
    WEFT_DOTS3,
    WEFT_DEEPSEEK_V2,
    WEFT_DEEPSEEK_V3,
    WEFT_DEEPSEEK_V32,
} weft_family;

/* Bounds on sizes. They are far above any model and keep every product of two
 * of them inside int32_t, so that shapes can be computed without care. */
enum {
    WEFT_VOCAB_MAX = 1 << 22,
    WEFT_HIDDEN_MAX = 1 << 17,
    WEFT_HEADS_MAX = 1 << 11,
    WEFT_HEAD_DIM_MAX = 1 << 11,
    WEFT_RANK_MAX = 1 << 14,
    WEFT_WIDTH_MAX = 1 << 20,
    WEFT_EXPERTS_MAX = WEFT_ROUTE_EXPERTS_MAX, /* of kernels/ops.h */
    WEFT_TOP_K_MAX = 256,
    /* The rope tables are accurate for positions below this. */
    WEFT_CONTEXT_MAX = 1 << 24,
};

weft_status weft_config_layers(weft_fields *fields, weft_family family,
                               weft_model_config *config, weft_err *err);
weft_status weft_config_rope(weft_fields *fields, weft_family family,
                             weft_model_config *config, weft_err *err);
weft_status weft_config_moe(weft_fields *fields, weft_family family,
                            weft_model_config *config, weft_err *err);
weft_status weft_config_ids(weft_fields *fields, weft_family family,
                            weft_model_config *config, weft_err *err);

/* The sampling values and end ids of generation_config.json, from memory. */
weft_status weft_config_generation(const char *json, size_t n,
                                   weft_remark_fn remark, void *arg,
                                   weft_model_config *config, weft_err *err);

#endif
