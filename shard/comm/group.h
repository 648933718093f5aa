/* group.h - the ranks of a stage that share its layers (tensor parallelism):
 * how they sum what each of them has computed a part of.
 *
 * All ranks are threads of one process, each with a memory of its own: a
 * device, or the host's for CPU ops. They have one fate: what one of them
 * cannot do ends the group, for all, with the first reason. So there is no
 * membership here.
 *
 * A sum is ((r0 + r1) + r2) + ..., by rank, element by element, in fp32, on
 * every rank. So its bits do not depend on how many rows there are, or on which
 * of two ways rows go (all to everybody, or each rank sums its share and tells
 * the others). NCCL's own all-reduce has no such order for more than two ranks.
 * On a device a sum begins like an op, in the order of the thread's ops, and is
 * not part of a graph; on the host it waits for the other ranks.
 *
 * Every rank makes the same calls in the same order with the same counts.
 *
 * Threads: create, destroy: one. What takes a rank: that rank's thread, bound
 * to its memory (kernels/memory.h). abort: any.
 */
#ifndef WEFT_SHARD_COMM_GROUP_H
#define WEFT_SHARD_COMM_GROUP_H

#include "kernels/memory.h"
#include "kernels/ops.h"
#include "node/base/err.h"

enum { WEFT_COMM_GROUP_RANKS_MAX = 8 };

typedef struct weft_comm_group weft_comm_group;
typedef struct weft_comm_rank weft_comm_rank;

typedef struct weft_comm_group_options {
    int32_t n_ranks;             /* 2 to WEFT_COMM_GROUP_RANKS_MAX */
    const weft_memory *memories; /* [n_ranks], borrowed; all of one kind,
                                    devices all different */
    const weft_ops *ops;         /* of the host's memory; else NULL */
    int32_t rows_max, width_max; /* of a sum */
    uint64_t join_ns;            /* how long join waits; 0: 30 s */
    const char *name;            /* for messages; copied */
} weft_comm_group_options;

/* Takes all memory that sums need. INVALID_ARGUMENT: an option, by name.
 * UNAVAILABLE: devices, and no NCCL that can be used. RESOURCE_EXHAUSTED. The
 * caller's to end with destroy. */
WEFT_MUST_CHECK weft_status
weft_comm_group_create(const weft_comm_group_options *options,
                       weft_comm_group **group_out, weft_err *err);
/* Bytes of each rank's memory that sums take. */
int64_t weft_comm_group_bytes(const weft_comm_group_options *options);
/* Aborts first. When no rank's thread uses it; NULL is fine. */
void weft_comm_group_destroy(weft_comm_group *group);

/* Ends every wait of every rank, now and later, with this reason, unless there
 * was one before. What sums would have written is undefined. */
void weft_comm_group_abort(weft_comm_group *group, const weft_err *why);

/* Borrowed until destroy. */
weft_comm_rank *weft_comm_group_rank(weft_comm_group *group, int32_t rank);

/* Waits until all ranks are there; before the rank's first sum.
 * DEADLINE_EXCEEDED: they are not; the group is aborted. */
WEFT_MUST_CHECK weft_status weft_comm_rank_join(weft_comm_rank *rank,
                                                weft_err *err);

/* x [n_row, width], in the rank's memory and without gaps, becomes the sum over
 * ranks; `round` rounds that sum. n_row up to rows_max (0: nothing happens),
 * width up to width_max. The reason of the abort, where there was one. */
WEFT_MUST_CHECK weft_status weft_comm_sum_rows(weft_comm_rank *rank,
                                               weft_threads *threads, float *x,
                                               int32_t n_row, int32_t width,
                                               weft_round round, weft_err *err);

int32_t weft_comm_rank_index(const weft_comm_rank *rank);

/* What rank 0 alone can know: it says how it went, and the others wait until it
 * has, whatever they give as `own`. All return what rank 0 gave, with the text
 * of its err. The reason of the abort, where there was one. */
WEFT_MUST_CHECK weft_status weft_comm_follow(weft_comm_rank *rank,
                                             weft_status own, weft_err *err);

/* Ends the group for what this rank could not do, which `own` says; the reason
 * of the abort, which may be another's. */
weft_status weft_comm_rank_fail(weft_comm_rank *rank, weft_err *own,
                                weft_err *err);

/* After a sync: whether all sums so far were whole. On a device that is where a
 * rank that failed is heard of. */
WEFT_MUST_CHECK weft_status weft_comm_rank_check(weft_comm_rank *rank,
                                                 weft_err *err);

#endif
