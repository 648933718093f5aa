/* weights.h - the weights of a model as the step reads them.
 *
 * Loading is two acts. `open` reads headers, checks that every tensor the
 * config asks for is there with its dtype and shape, that every other tensor is
 * known and may be ignored, and adds up the memory: nothing large has been
 * allocated, and a refusal names file and tensor. `load` then allocates once
 * and reads every tensor once, straight into its packed place, through a small
 * bounded buffer: weights are never held twice.
 *
 * Threads: one thread loads; the result is read-only and for any thread.
 */
#ifndef WEFT_SHARD_LOAD_WEIGHTS_H
#define WEFT_SHARD_LOAD_WEIGHTS_H

#include "kernels/memory.h"
#include "shard/model/config.h"

/* gate, up: [width, hidden]; down: [hidden, width]. */
typedef struct weft_mlp_weights {
    weft_matrix gate, up, down;
} weft_mlp_weights;

typedef struct weft_layer_weights {
    const float *input_norm, *post_norm; /* [hidden], fp32 */

    weft_matrix
        q_a; /* [q_lora_rank, hidden]; absent (data NULL) without LoRA */
    weft_matrix q_b;  /* [n_head (nope + rope), q_lora_rank or hidden] */
    weft_matrix kv_a; /* [kv_lora_rank + rope, hidden] */
    weft_matrix o;    /* [hidden, n_head v_head_dim] */
    weft_matrix g;    /* [n_head or n_head v_head_dim, hidden] or absent */
    const float *q_a_norm, *kv_a_norm, *k_rope_norm; /* last may be NULL */

    /* kv_b split by head for the absorbed form (model-spec 2.3). k_up[h] is
     * [kv_lora_rank, nope], the transposed key part; v_up[h] is
     * [v_head_dim, kv_lora_rank]. F8 is expanded here, since heads straddle
     * scale blocks: to F32 (profile exact) or BF16 (profile bf16). */
    const weft_matrix *k_up, *v_up; /* [n_head] each */

    /* Indexer; absent (data NULL) where the layer has none. With tail layout
     * the rope channels are moved to the front at load. */
    weft_matrix index_q, index_k, index_w;
    const float *index_k_norm_w, *index_k_norm_b;

    weft_mlp_weights mlp;     /* dense MLP, or the shared expert (or absent) */
    weft_matrix router;       /* [n_expert, hidden] */
    const float *router_bias; /* [n_expert] or NULL */
    /* [n_expert]; NULL: a dense layer, or experts are computed elsewhere */
    const weft_mlp_weights *experts;
    /* The same array in a device's memory; NULL without one. */
    const weft_mlp_weights *experts_ops;
} weft_layer_weights;

typedef struct weft_weights {
    const void *embed; /* [vocab, hidden], row-major */
    weft_dtype embed_dtype;
    const float *final_norm;
    weft_matrix lm_head;
    weft_layer_weights *layers; /* [n_layer]; of other stages: zeros */
} weft_weights;

typedef struct weft_checkpoint weft_checkpoint; /* opened, validated files */
typedef struct weft_model weft_model;           /* loaded weights */

/* Counts for `weft check` and the start line. */
typedef struct weft_checkpoint_stats {
    int64_t n_files, n_tensors, n_used, n_ignored;
    int64_t n_params;       /* of used tensors; a rank's slices of them */
    int64_t file_bytes;     /* of used tensors, as stored; what a rank reads */
    int64_t resident_bytes; /* what load will allocate, exactly */
    int64_t device_bytes;   /* the same of a device */
    int64_t staging_bytes;  /* the largest buffer while loading */
    int64_t n_mtp_tensors;  /* recognised, reported as unused */
    /* Of config, names, dtypes and shapes of used tensors, and the first and
     * last bytes of up to 1,024 of them. The same however the model is cut into
     * files, and in both profiles. */
    uint64_t weights_hash;
} weft_checkpoint_stats;

typedef enum weft_profile {
    WEFT_EXACT = 0,
    WEFT_PROFILE_BF16 = 1
} weft_profile;

/* Open and validate DIR for `config`, which may be corrected where the tensors
 * are the judge (n_nextn, shared width, indexer layout). `remark` hears of
 * every ignored group of tensors with its reason and count. Errors:
 * INVALID_ARGUMENT (contradiction with the config), NOT_FOUND (no file, or a
 * tensor is missing), DATA_LOSS (truncated, overlapping, malformed),
 * UNAVAILABLE (a file cannot be read), RESOURCE_EXHAUSTED (memory or file
 * descriptors: each file takes one). */
WEFT_MUST_CHECK weft_status
weft_checkpoint_open(const char *dir, weft_model_config *config,
                     weft_profile profile, weft_remark_fn remark, void *arg,
                     weft_checkpoint **checkpoint_out, weft_err *err);
void weft_checkpoint_close(weft_checkpoint *checkpoint); /* NULL is fine */
const weft_checkpoint_stats *
weft_checkpoint_get_stats(const weft_checkpoint *checkpoint);

/* What of a model a process holds. Layers are those of the config that the
 * checkpoint was opened with and then cut (shard/model/partition.h). */
typedef struct weft_part_of_model {
    int32_t first_layer, end_layer;
    bool embed, head; /* embedding; final norm and lm_head */
    bool experts;     /* routed experts */
    /* Of a tensor-parallel stage: which rank, of how many; 0 or 1: alone. Heads
     * and middle widths are cut in equal runs, of which this is number `rank`:
     * q_b, k_up, v_up, g and gate, up by outputs, o and down by inputs, as
     * weft_partition_rank says. All else is whole. F8 whose scale blocks would
     * not stay blocks on every rank is expanded on all, as k_up is. */
    int32_t n_ranks, rank;
} weft_part_of_model;

/* From here on measure (stats: n_used, n_params, file_bytes, resident_bytes,
 * staging_bytes) and load are about this part alone; only its bytes are read,
 * but that of what ranks cut by inputs each reads all and keeps its own. Single
 * experts (load_expert) are whole, whatever the ranks are.
 * The whole checkpoint has been validated, and weights_hash is of all of it.
 * INVALID_ARGUMENT: layers or rank out of range, or a number of ranks that
 * weft_partition_rank refuses for these layers. */
WEFT_MUST_CHECK weft_status weft_checkpoint_set_part(
    weft_checkpoint *checkpoint, const weft_part_of_model *part, weft_err *err);

/* Weights, those of single experts too, go to that memory, borrowed until the
 * model's end; measure and load are about it from here on. */
WEFT_MUST_CHECK weft_status weft_checkpoint_set_memory(
    weft_checkpoint *checkpoint, const weft_memory *memory, weft_err *err);
weft_memory weft_checkpoint_memory(const weft_checkpoint *checkpoint);

/* Bytes that one routed expert of that layer takes in memory: the largest, if
 * they are stored in different types. INVALID_ARGUMENT: no such expert. */
WEFT_MUST_CHECK weft_status
weft_checkpoint_expert_bytes(weft_checkpoint *checkpoint, int32_t layer,
                             int64_t *bytes_out, weft_err *err);
/* Reads one routed expert into block [bytes], 64-byte aligned (256 of a
 * device): the matrices point into it, with the same bits as in a whole model.
 * *hash_out is the wide hash (node/base/hash.h) of the stored bytes, gate, up,
 * down, each behind its scales if it has any. One thread at a time; with a
 * device it is bound, and the block is whole when this returns. INTERNAL: the
 * device is of no use any more. */
WEFT_MUST_CHECK weft_status weft_checkpoint_load_expert(
    weft_checkpoint *checkpoint, int32_t layer, int32_t expert, void *block,
    int64_t bytes, weft_mlp_weights *out, uint64_t *hash_out, weft_err *err);

/* Bytes of weights that load and load_expert have read from the files, of all
 * calls together. */
int64_t weft_checkpoint_read_bytes(const weft_checkpoint *checkpoint);

/* Bytes of weights done so far, of all. Called from the loading thread. */
typedef void (*weft_progress_fn)(void *arg, int64_t done_bytes,
                                 int64_t total_bytes);

/* The model is the caller's, to end with weft_model_destroy; the checkpoint may
 * be closed afterwards. With a device the calling thread is bound to it. NaN
 * codes in F8 weights are DATA_LOSS. */
WEFT_MUST_CHECK weft_status weft_model_load(weft_checkpoint *checkpoint,
                                            weft_progress_fn progress,
                                            void *arg, weft_model **model_out,
                                            weft_err *err);
void weft_model_destroy(weft_model *model); /* NULL is fine */
const weft_weights *weft_model_weights(const weft_model *model);

#endif
