/* group_internal.h - a group as the ways that bytes can go see it: local.c for
 * the host's memory, near.c for devices. */
#ifndef WEFT_SHARD_COMM_GROUP_INTERNAL_H
#define WEFT_SHARD_COMM_GROUP_INTERNAL_H

#include <pthread.h>

#include "shard/comm/group.h"

/* Semantics of kernels/comm.h: gather, exchange. */
typedef struct weft_comm_way {
    weft_status (*join)(weft_comm_rank *rank, uint64_t deadline_ns,
                        weft_err *err);
    weft_status (*gather)(weft_comm_rank *rank, const void *from, void *to,
                          int64_t bytes, weft_err *err);
    weft_status (*exchange)(weft_comm_rank *rank, const void *from, void *to,
                            int64_t bytes, weft_err *err);
    weft_status (*check)(weft_comm_rank *rank, weft_err *err);
    void (*copy)(weft_comm_rank *rank, void *to, const void *from,
                 int64_t bytes);
    void (*end)(weft_comm_rank *rank);
} weft_comm_way;

extern const weft_comm_way weft_comm_local, weft_comm_near;

struct weft_comm_rank {
    weft_comm_group *group;
    int32_t rank;
    weft_memory memory;
    const weft_ops *ops;
    float *parts;     /* [n_ranks][part_rows][width_max]; NULL: no shares */
    float *heard;     /* [n_ranks][heard_rows][width_max] */
    weft_comm *comm;  /* near; made by the rank, aborted under the lock */
    const void *from; /* local: what it shows the others */
    uint64_t n_followed;
};

struct weft_comm_group {
    const weft_comm_way *way;
    int32_t n_ranks, rows_max, width_max, gather_rows_max;
    uint64_t join_ns;
    char name[64];
    unsigned char id[WEFT_COMM_ID_BYTES];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* Under the lock. */
    int32_t n_here;
    uint64_t round;
    uint64_t n_told; /* by rank 0, to be followed */
    weft_err told;   /* the last of them; those before were all OK, since what
                        is not ends a step, and all ranks end it together */
    weft_err why;    /* WEFT_OK: nothing has failed */
    weft_comm_rank ranks[WEFT_COMM_GROUP_RANKS_MAX];
};

/* The reason, if there is one. */
weft_status weft_comm_group_reason(weft_comm_group *group, weft_err *err);

/* Until `deadline_ns` on the monotonic clock; the lock is held. */
void weft_comm_group_wait(weft_comm_group *group, uint64_t deadline_ns);

#endif
