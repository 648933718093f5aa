/* layers.h - the layers of one stage: their cache rows, the step's buffers, and
 * the computation of some rows through them. What a lead and a stage share.
 *
 * Rows are laid out in `tokens`, `positions` and `pages`, then computed in one
 * or more calls that each take some neighbours. Where experts are computed
 * elsewhere and there are rows enough, a call takes its rows in two halves that
 * take turns, so that one computes while the experts of the other are under
 * way.
 *
 * Threads: one, the owner's. Nothing allocates after init.
 */
#ifndef WEFT_SHARD_STEP_LAYERS_H
#define WEFT_SHARD_STEP_LAYERS_H

#include "shard/model/ranks.h"
#include "shard/step/engine.h"

typedef struct weft_layers {
    weft_model_config config; /* as a rank sees it */
    weft_threads *threads;
    weft_kv_store *store;
    weft_ranks *ranks; /* the others; NULL: one rank */
    weft_forward *forward;
    weft_forward *second; /* the other half; NULL: experts are here */
    int32_t max_rows, max_logits_rows;
    int32_t pair_rows; /* of a call, from which on halves take turns */
    bool fetches;      /* hidden rows of a device are wanted on the host */
    int32_t split;     /* rows of the last call that are in `forward` */

    /* [max_rows]: the rows of the step */
    int32_t *tokens, *positions;
    const int64_t **pages[WEFT_KINDS]; /* page table of each row's sequence */
} weft_layers;

/* Host bytes that init takes beside the arena; and a device's, if
 * device_bytes_out is not NULL. */
int64_t weft_layers_bytes(const weft_model_config *config,
                          const weft_engine_options *options,
                          int64_t *device_bytes_out);

/* config and weights are borrowed. `experts` NULL: they are in the weights.
 * End with weft_layers_deinit, also after a failure. */
WEFT_MUST_CHECK weft_status weft_layers_init(
    weft_layers *layers, const weft_model_config *config,
    const weft_weights *weights, const weft_engine_options *options,
    const weft_kv_space *space, const weft_experts *experts, weft_err *err);
void weft_layers_deinit(weft_layers *layers); /* {0} is fine */

/* Rows [first, first + n) of those laid out. hidden [n, hidden_size]: what the
 * stage before gave; NULL: the first stage. Errors: as weft_forward_step. */
WEFT_MUST_CHECK weft_status weft_layers_compute(weft_layers *layers,
                                                int32_t first, int32_t n,
                                                const float *hidden,
                                                weft_err *err);

/* Row `first + r` of the last call, until the next. */
const float *weft_layers_row(const weft_layers *layers, int32_t r);

#endif
