/* near.h - rows that go from device to device, beside a link.
 *
 * The stream of a link carries headers and bodies; between two devices that
 * NCCL joins, the rows of a frame need not pass through the host. For that a
 * link has two comms of two ranks (kernels/comm.h), one for each direction, of
 * one thread block each: the order of NCCL's operations is the order of the
 * headers, so that both ends agree without a word. Rows travel in a capacity,
 * weft_frame_capacity(n_rows), which the header implies.
 *
 * How a link comes to it, after the hello, where both ends speak protocol 2
 * (hello.h), by frames of type COMM:
 *
 *     who dialled    OFFER (NCCL's version, what is taken, two ids)
 *     who answered   AGREE, or DECLINE with a reason
 *     both           begin their comms; READY once both are, or FAIL
 *
 *     offered -> pending -> ready (said) -> near (heard)
 *         \          \-> tcp alone           \-> broken
 *          \-> tcp alone
 *
 * Rows travel in the stream until an end has said READY and heard it. An end
 * that has not said it may FAIL, or be too late (ready_ns), and the link stays
 * as it was, for good: one log line says why. After that a comm that breaks
 * breaks the link like any other fault.
 *
 * A near frame is given out when all its rows are there, no sooner: so no op
 * ever waits for another process, nothing that is counted as received can be
 * undone by an abort, and the link's watchdog runs in its owner's thread.
 * Sending waits for nobody either: rows are packed into a ring of the link's
 * own, which is free again when the other end has taken them.
 *
 * Memory is taken at start for links_max links, since freeing device memory
 * waits for all work of the device, other links' included.
 *
 * Threads: create and destroy: one; the links' owners share it.
 */
#ifndef WEFT_SHARD_LINK_NEAR_H
#define WEFT_SHARD_LINK_NEAR_H

#include "kernels/memory.h"
#include "shard/link/link.h"

typedef struct weft_near_options {
    const weft_memory *memory; /* copied; of a device */
    /* The largest frames with near rows: of what comes in, and of what goes
     * out. */
    weft_frame_limits in, out;
    int32_t links_max; /* near at once; more stay as they are */
    uint64_t ready_ns; /* from the offer to READY; 0: 10 s */
    /* Rows that are not there so long after their header break the link, as do
     * rows that are not taken for four times as long; 0: 30 s. */
    uint64_t rows_ns;
} weft_near_options;

/* Device memory of one link: two of the largest frames out and one in. Of all:
 * links_max times as much. */
int64_t weft_near_link_bytes(const weft_near_options *options);

/* UNAVAILABLE: the host's memory, or no NCCL of use; one line says what was
 * looked for. RESOURCE_EXHAUSTED: memory of the device. */
WEFT_MUST_CHECK weft_status weft_near_create(const weft_near_options *options,
                                             weft_near **near_out,
                                             weft_err *err);
/* After its links are closed, before the device is. NULL is fine. */
void weft_near_destroy(weft_near *near);
/* Links whose rows are near at the moment. Any thread. NULL: 0. */
int32_t weft_near_count(const weft_near *near);

/* Whether rows may be sent near. Owner's thread, as all that follows. Once
 * true it stays so until the link is broken. */
bool weft_link_is_near(const weft_link *link);

/* Rows on the device: frame->n_rows of frame->row_bytes each, one after
 * another, or those that x_rows lists. */
typedef struct weft_near_rows {
    const float *x;
    const int32_t *x_rows; /* [n_rows], device memory; or NULL */
} weft_near_rows;

/* As weft_link_send, with near rows: they are read by an op of this thread, in
 * its order, so they are free for what the thread begins after. The thread is
 * bound to the device. RESOURCE_EXHAUSTED: the queue, or the ring, is full; no
 * text is made. INVALID_ARGUMENT: above what either end takes.
 * FAILED_PRECONDITION: the link is not near.
 *
 * What recv gives out of such a frame (frame.is_near) has `rows` in device
 * memory; ops that the owner begins before its next recv on that link see
 * them. */
WEFT_MUST_CHECK weft_status weft_link_send_near(weft_link *link,
                                                const weft_frame *frame,
                                                const weft_near_rows *rows,
                                                weft_err *err);

/* Whether such a frame would find room in the ring. */
bool weft_link_has_near_room(weft_link *link, int32_t n_rows,
                             uint32_t row_bytes);

#endif
