/* leftover.h - the tensors that no part of the model has asked for.
 *
 * Each is of a known group that a text model without drafts has no use for, or
 * the checkpoint is refused: an unknown tensor may be a part of the model that
 * this loader does not know. Internal to shard/load.
 */
#ifndef WEFT_SHARD_LOAD_LEFTOVER_H
#define WEFT_SHARD_LOAD_LEFTOVER_H

#include "shard/load/tensors.h"

typedef struct weft_leftover {
    int64_t n_ignored, n_mtp; /* all; of MTP layers */
    int32_t n_mtp_layers;     /* layers past the trunk */
} weft_leftover;

/* Tell every group with its count, once. INVALID_ARGUMENT: some are unknown;
 * the first are named. */
WEFT_MUST_CHECK weft_status weft_leftover_check(const weft_tensor_set *set,
                                                const weft_model_config *config,
                                                weft_remark_fn remark,
                                                void *arg, weft_leftover *out,
                                                weft_err *err);

#endif
