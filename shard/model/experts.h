/* experts.h - where the routed experts of a layer are computed: here, or
 * somewhere else. The seam between the forward pass and the exchange.
 *
 * For every (row, slot) pair the expert gives one row of the hidden width; the
 * sum over slots is the caller's, in slot order (model-spec 2.6). So where an
 * expert ran, with whom, and how often it was asked never changes a bit.
 *
 * Two acts, so that other work fits between: dispatch sends, collect waits.
 * Calls of different `lane`s (micro-batches that a step interleaves) may be
 * under way at once; each lane has at most one.
 *
 * Threads: the thread that computes the step. Nothing allocates.
 */
#ifndef WEFT_SHARD_MODEL_EXPERTS_H
#define WEFT_SHARD_MODEL_EXPERTS_H

#include <stdbool.h>
#include <stdint.h>

#include "node/base/err.h"

enum { WEFT_STEP_LANES = 2 }; /* micro-batches that one shard interleaves */

typedef struct weft_experts_call {
    int32_t lane, layer;
    int32_t n_rows, top_k;
    const float *x;         /* [n_rows, hidden] */
    const int32_t *experts; /* [n_rows, top_k] */
    float *out;             /* [n_rows * top_k, hidden], in pair order */
    /* The same in the memory of the ops, where that is a device's; read and
     * written in the order of ops. */
    const float *x_near;
    float *out_near;
} weft_experts_call;

typedef struct weft_experts {
    /* What the call points to is borrowed until collect returns. Does not wait
     * for answers. */
    void (*dispatch)(void *arg, const weft_experts_call *call);
    /* Returns when out is whole. UNAVAILABLE: not in this epoch; the step has
     * to be computed again from its start, with what begin says then. */
    weft_status (*collect)(void *arg, const weft_experts_call *call,
                           weft_err *err);
    /* Before a step (and before each new try of it): settles the epoch that
     * the whole step uses. `epoch` 0: the newest; else exactly that one.
     * UNAVAILABLE: not all experts can be had now; the text says which. */
    weft_status (*begin)(void *arg, uint64_t step, uint32_t attempt,
                         uint64_t epoch, uint64_t *epoch_out, weft_err *err);
    /* Whether all rows of the step that begin settled go from device to device:
     * x of its calls is not looked at then. NULL: never. */
    bool (*is_near)(void *arg);
    /* Results are put into out_near, and `out` is only for rows on their way
     * there. */
    bool on_device;
    /* Nothing to compute, or begin said UNAVAILABLE: looks after the links and
     * returns at once, or when something has changed, or at deadline_ns. */
    void (*idle)(void *arg, uint64_t deadline_ns);
    void *arg;
} weft_experts;

#endif
