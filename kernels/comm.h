/* comm.h - devices that talk to each other without the host in between (NCCL).
 *
 * A part of the library behind kernels/device.h. NCCL itself is opened at run
 * time and its symbols are looked up one by one, since user machines carry
 * other versions; what a version lacks is done another way, or said.
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
 * Failure. Nothing here waits for another process. What another does not do
 * leaves work of the comm undone, and ops behind before_ops with it, until
 * abort: that ends everything under way at once, ops go on, and what would have
 * been written is undefined. When to abort is the owner's watchdog's business,
 * which knows what silence means; `state` and `is_done` tell what it needs. A
 * broken or aborted comm never works again; a new one is made instead, while
 * others go on.
 *
 * A comm takes at most ctas_max thread blocks of a device, so that the kernels
 * of all comms can be resident at once beside each other: a kernel that waits
 * for its counterpart holds its blocks, and must not keep that counterpart out.
 *
 * Threads: begin and destroy as the rest: one thread at a time for one comm,
 * which is bound to its device; abort by any thread.
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
    WEFT_COMM_CTAS_MAX = 2, /* where options say 0: one, at most this */
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
    int32_t n_ranks, rank;
    int32_t ctas_max;
    const char *name; /* for messages; copied */
} weft_comm_options;

/* Entries return UNAVAILABLE when the comm is broken (never PENDING: wait for
 * READY first), with its name and NCCL's word for why. `bytes` is above 0;
 * pointers are memory of the comm's device, and stay as they are until the work
 * is done. */
typedef struct weft_comm_api {
    /* Of the NCCL that was found, 23203 is 2.32.3. 0: there is none, and `why`
     * says what was looked for; nothing below may be called. */
    int32_t version;
    const char *why;

    /* Names a comm to be: one rank makes it and the others are told. */
    weft_status (*make_id)(unsigned char id_out[WEFT_COMM_ID_BYTES],
                           weft_err *err);
    /* Joins; returns at once, PENDING. RESOURCE_EXHAUSTED, UNAVAILABLE. */
    weft_status (*begin)(struct weft_device *device,
                         const weft_comm_options *options, weft_comm **comm_out,
                         weft_err *err);
    /* How it is; moves a PENDING one along. READY means that every rank was
     * heard on the path that work will take, not just met. BROKEN: why. */
    weft_comm_state (*state)(weft_comm *comm, weft_err *err);
    void (*abort)(weft_comm *comm);   /* again: nothing */
    void (*destroy)(weft_comm *comm); /* aborts first; NULL is fine */

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

    /* Of all ranks, in one order. `bytes` are each rank's share.
     * gather: to [n_ranks][bytes], rank by rank, of everybody's from [bytes].
     * exchange: from [n_ranks][bytes], part r for rank r; to, part r of it. */
    weft_status (*gather)(weft_comm *comm, const void *from, void *to,
                          int64_t bytes, weft_err *err);
    weft_status (*exchange)(weft_comm *comm, const void *from, void *to,
                            int64_t bytes, weft_err *err);
    /* x [n] fp32 becomes the sum over ranks. The order of the sum is NCCL's,
     * and depends on n: only of two ranks is it a sum whose bits are known. */
    weft_status (*sum)(weft_comm *comm, float *x, int64_t n, weft_err *err);
} weft_comm_api;

#ifdef __cplusplus
}
#endif

#endif
