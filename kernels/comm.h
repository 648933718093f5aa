/* comm.h - devices that talk to each other without the host in between (NCCL).
 *
 * A part of the library behind kernels/device.h. NCCL itself is opened at run
 * time and its symbols are looked up one by one, since user machines carry
 * other versions; what a version lacks is done another way, or said. Looked
 * for: what WEFT_NCCL_LIBRARY names, if that is set; else libnccl.so.2 beside
 * this library, then where the loader looks.
 *
 * A comm joins n ranks, each one device of one process. Everything it is given
 * is done in the order in which it was given, on a stream of the comm's own,
 * beside the ops of the thread. Two fences order the two:
 *
 *     weft_comm_api.after_ops(comm)    what the comm is given from here on sees
 *                                      what this thread's ops have begun
 *     weft_comm_api.before_ops(comm)   this thread's ops from here on see what
 *                                      the comm has been given so far
 *
 * What one end sends the other has to receive, in the same order, with the same
 * bytes. A comm that two ends use in both directions at once would need an
 * order that both agree on: a link has one comm for each direction instead.
 *
 * Bytes are moved and nothing else: sums are ops of the backend, whose order is
 * known, and NCCL's is not (it depends on the count). So one path of NCCL is in
 * use, from one rank to another, and it is warm before READY.
 *
 * Failure. Nothing here waits for another process. What another does not do
 * leaves work of the comm undone, and ops behind before_ops with it, until
 * abort: that ends everything under way, ops go on, and what would have been
 * written is undefined. When to abort is the owner's watchdog's business, which
 * knows what silence means; `state` and `is_done` tell what it needs. A broken
 * or aborted comm never works again; a new one is made instead, while others go
 * on. Memory that a comm was given must not be freed before what it was given
 * is done, or aborted: on a device to free waits for all work of all streams.
 *
 * A comm takes at most ctas_max thread blocks of a device, so that the kernels
 * of all comms can be resident at once beside each other: a kernel that waits
 * for its counterpart holds its blocks, and must not keep that counterpart out
 * (node/docs/adr/0011).
 *
 * Threads: any one thread at a time for one comm. Fences and what work a comm
 * is given: a thread that is bound to its device, outside of graphs. abort: any
 * thread, at any time before destroy.
 */
#ifndef WEFT_KERNELS_COMM_H
#define WEFT_KERNELS_COMM_H

#include <stdbool.h>
#include <stdint.h>

#include "node/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    WEFT_COMM_ID_BYTES = 128,
    WEFT_COMM_CTAS_MAX = 32,
    WEFT_COMM_RANKS_MAX = 64,
    WEFT_COMM_DEVICE_MAX = 24, /* comms of one device at a time */
};

typedef struct weft_comm weft_comm;
struct weft_device;

typedef enum weft_comm_state {
    WEFT_COMM_PENDING, /* not all ranks are there yet */
    WEFT_COMM_READY,
    WEFT_COMM_BROKEN,
} weft_comm_state;

typedef struct weft_comm_options {
    unsigned char id[WEFT_COMM_ID_BYTES]; /* the same of all ranks */
    int32_t n_ranks, rank;                /* n_ranks from 2 */
    int32_t ctas_max;                     /* 0: 1 */
    const char *name;                     /* for messages; copied */
} weft_comm_options;

/* Entries return UNAVAILABLE when the comm is broken (never PENDING: wait for
 * READY first, or it panics), with its name and NCCL's word for why. `bytes` is
 * above 0; pointers are memory of the comm's device, and stay as they are until
 * the work is done. */
typedef struct weft_comm_api {
    /* Of the NCCL that was found, 23203 is 2.32.3. 0: there is none of use, and
     * `why` says what was looked for in one line; nothing below may be called.
     */
    int32_t version;
    const char *why;

    /* Names a comm to be: one rank makes it and the others are told. Whoever
     * made it is whom they meet at first, so it has to live that long.
     * UNAVAILABLE: no socket. (NCCL listens on the interface that
     * NCCL_SOCKET_IFNAME says, else on one of its own choice.) */
    weft_status (*make_id)(unsigned char id_out[WEFT_COMM_ID_BYTES],
                           weft_err *err);
    /* Joins; returns at once, PENDING. INVALID_ARGUMENT: an option;
     * RESOURCE_EXHAUSTED: memory of the device or the host, or the device has
     * WEFT_COMM_DEVICE_MAX comms, or half of its processors would be theirs;
     * UNAVAILABLE: NCCL says no. The caller's to end with destroy. */
    weft_status (*begin)(struct weft_device *device,
                         const weft_comm_options *options, weft_comm **comm_out,
                         weft_err *err);
    /* How it is; moves a PENDING one along, so ask again, and of all that
     * are, in turn: a rank gets on when the others ask, too. READY means that
     * every rank was heard on the path that work will take, not just met;
     * others may be READY later. BROKEN: err says why. */
    weft_comm_state (*state)(weft_comm *comm, weft_err *err);
    /* Returns at once; what was under way ends soon after. Again: nothing. */
    void (*abort)(weft_comm *comm);
    /* Aborts first; NULL is fine. Before the device is closed. */
    void (*destroy)(weft_comm *comm);

    void (*after_ops)(weft_comm *comm);
    void (*before_ops)(weft_comm *comm);
    /* A mark of all that it has been given so far; is_done: whether that has
     * been done. A host that reads nothing of it need never ask. */
    uint64_t (*mark)(weft_comm *comm);
    bool (*is_done)(weft_comm *comm, uint64_t mark);

    weft_status (*send)(weft_comm *comm, const void *from, int64_t bytes,
                        int32_t to_rank, weft_err *err);
    weft_status (*recv)(weft_comm *comm, void *to, int64_t bytes,
                        int32_t from_rank, weft_err *err);

    /* Of all ranks. `bytes` are each rank's share.
     * gather: to [n_ranks][bytes], rank by rank, of everybody's from [bytes],
     * which may be its own place in `to`.
     * exchange: from [n_ranks][bytes], part r for rank r; to [n_ranks][bytes],
     * part r of rank r. */
    weft_status (*gather)(weft_comm *comm, const void *from, void *to,
                          int64_t bytes, weft_err *err);
    weft_status (*exchange)(weft_comm *comm, const void *from, void *to,
                            int64_t bytes, weft_err *err);
} weft_comm_api;

#ifdef __cplusplus
}
#endif

#endif
