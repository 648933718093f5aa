/* rank_weights.h - the weights of a stage, cut for its ranks and loaded into
 * the memory of each (shard/load/weights.h, shard/model/ranks.h). A stage of
 * one rank is one of those.
 *
 * Threads: one, bound to rank 0's memory, as it is again when a call returns
 * OK.
 */
#ifndef WEFT_NODE_APP_RANK_WEIGHTS_H
#define WEFT_NODE_APP_RANK_WEIGHTS_H

#include "node/app/backend.h"
#include "shard/load/weights.h"
#include "shard/model/ranks.h"

/* What weft_rank_weights_load takes. */
typedef struct weft_rank_sizes {
    int64_t host_bytes;    /* of all ranks together */
    int64_t staging_bytes; /* while loading, beside these */
    int64_t file_bytes;    /* that are read, of all ranks together */
    int64_t device_bytes[WEFT_RANKS_MAX]; /* of each rank's */
} weft_rank_sizes;

typedef struct weft_rank_weights {
    weft_model *models[WEFT_RANKS_MAX];
    weft_rank_parts others[WEFT_RANKS_MAX - 1]; /* of ranks 1 ... */
} weft_rank_weights;

/* part: of the whole stage; its n_ranks and rank are not looked at, and ranks
 * beside the first have neither embedding nor head. The checkpoint is set to
 * rank 0's part and memory. INVALID_ARGUMENT: this model cannot be cut so;
 * names --tensor-parallel. */
WEFT_MUST_CHECK weft_status weft_rank_weights_measure(
    weft_checkpoint *checkpoint, const weft_backend *backend,
    const weft_part_of_model *part, weft_rank_sizes *sizes_out, weft_err *err);

/* Errors: as of measure and of weft_model_load. `progress` (or NULL) hears of
 * all ranks as one. weights_out, whose `others` is for the engine's options, is
 * the caller's to end with destroy, also after a failure. */
WEFT_MUST_CHECK weft_status weft_rank_weights_load(
    weft_checkpoint *checkpoint, const weft_backend *backend,
    const weft_part_of_model *part, weft_progress_fn progress, void *arg,
    weft_rank_weights *weights_out, weft_err *err);
/* What engine and stage are given: rank 0's. */
const weft_weights *weft_rank_weights_first(const weft_rank_weights *weights);
void weft_rank_weights_destroy(weft_rank_weights *weights); /* {0} is fine */

#endif
