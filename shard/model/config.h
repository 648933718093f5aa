/* config.h - what a checkpoint's config.json and generation_config.json say.
 *
 * One flat, fully resolved description of the text model: aliases, defaults
 * and null rules (model-spec 1 and 8.8) are applied here and nowhere else.
 * Every key of the file is used, or listed with the reason why it is ignored,
 * or refused; an unknown key is refused by name.
 *
 * Plain data; the struct owns nothing. Threads: any, once read.
 */
#ifndef WEFT_SHARD_MODEL_CONFIG_H
#define WEFT_SHARD_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"
#include "node/base/err.h"

enum {
    WEFT_LAYERS_MAX = 512,
    WEFT_STOP_IDS_MAX = 64,
    WEFT_SUPPRESSED_IDS_MAX = 8,
    WEFT_NAME_BYTES = 64,
};

/* The two KV geometries. Also the index of everything kept per kind. */
typedef enum weft_kind { WEFT_FULL = 0, WEFT_WINDOW = 1 } weft_kind;
enum { WEFT_KINDS = 2 };

typedef enum weft_attn_gate {
    WEFT_GATE_NONE,
    WEFT_GATE_HEADWISE,
    WEFT_GATE_ELEMENTWISE,
} weft_attn_gate;

typedef enum weft_topk_method {
    WEFT_TOPK_NOAUX_TC,
    WEFT_TOPK_GREEDY,
    WEFT_TOPK_GROUP_LIMITED_GREEDY,
} weft_topk_method;

/* One attention geometry (model-spec 2.2). */
typedef struct weft_geometry {
    int32_t n_head;
    int32_t q_lora_rank; /* 0: a single q_proj, no latent */
    int32_t kv_lora_rank;
    int32_t qk_nope_head_dim, qk_rope_head_dim, v_head_dim;
    double rope_theta;
    float softmax_scale; /* YaRN's squared factor included */
    weft_attn_gate gate;
} weft_geometry;

typedef struct weft_yarn {
    bool on;
    double factor, beta_fast, beta_slow, original_context;
    float cos_sin_factor; /* m(s, mscale) / m(s, mscale_all_dim) */
} weft_yarn;

typedef struct weft_model_config {
    char model_type[WEFT_NAME_BYTES]; /* as the file says */
    int32_t vocab_size, hidden_size, n_layer, max_context;
    float rms_norm_eps;

    weft_kind kind[WEFT_LAYERS_MAX]; /* of each layer */
    bool moe[WEFT_LAYERS_MAX];       /* layer has routed experts */
    /* Layers [first_layer, end_layer) are computed here: all of them, or one
     * stage's (partition.h). n_kind counts these alone. */
    int32_t first_layer, end_layer;
    int32_t n_kind[WEFT_KINDS]; /* layers of each kind */
    weft_geometry geometry[WEFT_KINDS];
    int32_t window; /* keys a window layer sees, itself included; 0: none */
    weft_yarn yarn; /* of full geometry */
    bool rescale;   /* q and kv latents times sqrt(hidden / rank) */
    bool k_rope_norm;
    bool rope_interleave; /* main attention: adjacent pairs */

    bool dsa; /* indexer on every full layer */
    int32_t index_n_head, index_head_dim, index_topk;
    bool index_rope_interleave;
    bool index_rope_tail; /* from the index metadata: rope channels last */

    int32_t intermediate_size; /* of dense layers */
    int32_t n_expert, top_k, n_group, topk_group;
    int32_t moe_intermediate_size;
    int32_t shared_intermediate_size; /* whole width; 0: no shared expert */
    weft_scoring scoring;
    weft_topk_method topk_method;
    bool norm_topk, dynamic_rsf;
    float routed_scaling;

    bool tie_embeddings;
    int32_t n_nextn; /* MTP layers that the config or the tensors announce */

    /* Stop ids: generation_config, config and tokenizer_config, united. */
    int32_t stop_ids[WEFT_STOP_IDS_MAX];
    int32_t n_stop_ids;
    /* Ids that stand for media: refused in prompts, never sampled
     * (model-spec 1.1) */
    int32_t suppressed_ids[WEFT_SUPPRESSED_IDS_MAX];
    int32_t n_suppressed_ids;

    /* generation_config's sampling values; NAN / -1 where it has none. */
    float temperature, top_p, repetition_penalty;
    int32_t top_k_sampling;
} weft_model_config;

/* One key that was read and deliberately not used, or a remark to print. */
typedef void (*weft_remark_fn)(void *arg, const char *key, const char *reason);

/* Read DIR/config.json and, if there, DIR/generation_config.json.
 * `remark` (may be NULL) hears of every ignored key, with its reason, and of
 * every default that is taken with a warning.
 * INVALID_ARGUMENT, NOT_FOUND or DATA_LOSS; the text names file and key. */
WEFT_MUST_CHECK weft_status
weft_model_config_read(const char *dir, weft_remark_fn remark, void *arg,
                       weft_model_config *config_out, weft_err *err);

/* The same from memory. generation NULL: there is no such file. */
typedef struct weft_config_texts {
    const char *config;
    size_t config_bytes;
    const char *generation;
    size_t generation_bytes;
} weft_config_texts;
WEFT_MUST_CHECK weft_status weft_model_config_parse(
    const weft_config_texts *texts, weft_remark_fn remark, void *arg,
    weft_model_config *config_out, weft_err *err);

/* Of everything that config.json says about the answer: what two processes
 * compare that have read the same folder. Not of first_layer and what follows
 * from it, nor of what tensors may correct. */
uint64_t weft_model_config_hash(const weft_model_config *config);

/* Values of one cached row of the kind: kv_lora_rank + qk_rope_head_dim. */
int32_t weft_config_row_width(const weft_model_config *config, weft_kind kind);

/* inv_freq of the kind's rope (YaRN applied), qk_rope_head_dim / 2 values. */
void weft_config_inv_freq(const weft_model_config *config, weft_kind kind,
                          float *inv_freq_out);

#endif
