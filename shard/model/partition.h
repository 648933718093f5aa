/* partition.h - which layers a stage computes.
 *
 * A pure function of (config, n_stages), so that every shard of a group finds
 * the same cut without a word: contiguous ranges, as equal as they can be in
 * bytes that a decode step reads besides routed experts (which other shards
 * read), with lm_head counted for stage 0, which samples. The config does not
 * say of what type a matrix is, so elements stand for bytes. The config must be
 * the one that weft_checkpoint_open has corrected, and uncut.
 *
 * A config that is cut is the same model seen by one stage: layer numbers stay
 * global, n_kind counts the stage's own layers, and everything that is sized by
 * them (KV layout, step buffers, weights) follows.
 *
 * Threads: any.
 */
#ifndef WEFT_SHARD_MODEL_PARTITION_H
#define WEFT_SHARD_MODEL_PARTITION_H

#include "shard/model/config.h"

enum { WEFT_STAGES_MAX = 64 };

/* Every stage has a layer. INVALID_ARGUMENT: n_stages out of
 * [1, min(n_layer, WEFT_STAGES_MAX)], or stage out of [0, n_stages). */
WEFT_MUST_CHECK weft_status weft_partition_stage(
    const weft_model_config *config, int32_t n_stages, int32_t stage,
    int32_t *first_layer_out, int32_t *end_layer_out, weft_err *err);

/* The config as stage `stage` sees it: first_layer, end_layer and n_kind. */
WEFT_MUST_CHECK weft_status weft_partition_cut(const weft_model_config *config,
                                               int32_t n_stages, int32_t stage,
                                               weft_model_config *config_out,
                                               weft_err *err);

enum { WEFT_RANKS_MAX = 8 };

/* The config as one rank of a tensor-parallel stage sees it: n_head of both
 * geometries and the middle widths (dense, shared, routed) are an n_ranks-th of
 * what they were, but for what no layer here has: that stays. Layers, latents,
 * indexer and router are whole. The same for every rank. INVALID_ARGUMENT:
 * n_ranks out of [1, WEFT_RANKS_MAX], or one that does not divide the heads or
 * widths of a layer that is computed here, routed experts' too, though others
 * may have them; the text names the key and its value. */
WEFT_MUST_CHECK weft_status weft_partition_rank(const weft_model_config *config,
                                                int32_t n_ranks,
                                                weft_model_config *config_out,
                                                weft_err *err);

#endif
