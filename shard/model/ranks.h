/* ranks.h - the other ranks of a tensor-parallel stage: threads that compute
 * their part of every step beside the thread that has the step.
 *
 * Each rank has a memory of its own (a device, or the host's), its slice of the
 * weights (weights.h: n_ranks, rank) and a copy of all KV rows. Rank 0 is the
 * owner's thread with the forward that it steps by itself; the others follow:
 *
 *     weft_ranks_begin(ranks, a, b);
 *     st = weft_forward_step(forward, a, err);      or weft_forward_step_pair
 *     st = weft_ranks_end(ranks, st, err);
 *
 * They meet in sums, twice a layer (shard/comm/group.h). Ranks have one fate:
 * what one cannot do ends the stage, but for what experts elsewhere answer:
 * rank 0 alone asks them, and where they cannot be had now all ranks give the
 * step up and may be asked again.
 *
 * Threads: create, begin, end and destroy: one at a time, bound to rank 0's
 * memory. Nothing allocates after create.
 */
#ifndef WEFT_SHARD_MODEL_RANKS_H
#define WEFT_SHARD_MODEL_RANKS_H

#include "shard/comm/group.h"
#include "shard/kv/kv.h"
#include "shard/model/forward.h"

typedef struct weft_ranks weft_ranks;

/* What a rank beside rank 0 computes with; all borrowed. */
typedef struct weft_rank_parts {
    const weft_weights *weights;
    const weft_memory *memory; /* NULL: the host's */
} weft_rank_parts;

typedef struct weft_ranks_options {
    const char *name;                /* for messages */
    int32_t n_ranks;                 /* 2 to WEFT_COMM_GROUP_RANKS_MAX */
    const weft_rank_parts *others;   /* [n_ranks - 1]: of ranks 1 ... */
    const weft_model_config *config; /* as a rank sees it (partition.h) */
    /* As rank 0 has them, but for `rank`; its threads are not the others':
     * those have n_threads each. */
    const weft_forward_options *forward, *second; /* second NULL: no pairs */
    const weft_kv_layout *layout;
    int64_t kv_bytes; /* of each */
} weft_ranks_options;

/* Bytes that the other ranks and all sums take on the host, without KV rows and
 * weights; device_bytes_out (or NULL): what a rank's sums take of its device.
 */
int64_t weft_ranks_bytes(const weft_ranks_options *options,
                         int64_t *device_bytes_out);

/* Starts the others, which make their forwards and KV rows, and meets them:
 * after that they can sum. RESOURCE_EXHAUSTED; UNAVAILABLE: devices that cannot
 * talk to each other; DEADLINE_EXCEEDED: not all have come. */
WEFT_MUST_CHECK weft_status weft_ranks_create(const weft_ranks_options *options,
                                              weft_ranks **ranks_out,
                                              weft_err *err);
void weft_ranks_destroy(weft_ranks *ranks); /* NULL is fine; joins */

/* Rank 0's, for the options of its forwards; borrowed. */
weft_comm_rank *weft_ranks_own(weft_ranks *ranks);

/* The others compute the same step, of which only the structs `a` and `b` are
 * copied; b NULL: not a pair. */
void weft_ranks_begin(weft_ranks *ranks, const weft_batch *a,
                      const weft_batch *b);
/* Waits for them, and gives `own`, what rank 0's step gave. Where the group has
 * ended: INTERNAL and the reason, of this step and of all that follow. */
WEFT_MUST_CHECK weft_status weft_ranks_end(weft_ranks *ranks, weft_status own,
                                           weft_err *err);

#endif
