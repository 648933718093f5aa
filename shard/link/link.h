/* link.h - one connection between two processes (or threads) that carries
 * frames in order, and how its owner waits for several of them.
 *
 * A link has one owner thread, which sends, receives and waits, without any
 * thread in between: on the path of a layer a hand-over between threads would
 * cost more than the network. Nothing here blocks but weft_poller_wait and
 * weft_link_flush, which take a deadline.
 *
 * Being alive is told beside that: a process-wide pulse thread (pulse.h) sends
 * a PULSE on each of its links every interval whatever the owner computes, and
 * the owner, while it waits, takes a link that has been silent for too long as
 * broken. A broken link stays broken: everything returns UNAVAILABLE with the
 * reason, and the owner closes it. Nothing of it is ever taken up again by
 * another connection.
 *
 * Back pressure: a link holds at most `queue_frames` frames that have not left.
 * One more is refused, and the owner waits until it is writable.
 *
 * Transports: `local` (within the process) and `tcp` (with or without TLS) are
 * two fillings of weft_transport_ops; tests/unit/test_link_suite.c holds both
 * to what is said here. Over tcp the rows of a frame may go from device to
 * device, beside the stream: near.h.
 *
 * Threads: the owner; weft_link_pulse by one other (pulse.h).
 * Guarantees, each with a test of its name in the suite: order, whole_or_none,
 * full_queue_refuses, cut_anywhere_is_broken, garbage_breaks, limits_hold,
 * silence_breaks, pulses_are_not_frames, close_is_seen.
 */
#ifndef WEFT_SHARD_LINK_LINK_H
#define WEFT_SHARD_LINK_LINK_H

#include <stdbool.h>

#include "shard/link/frame.h"

typedef struct weft_link weft_link;
typedef struct weft_near weft_near; /* near.h */

typedef struct weft_link_options {
    weft_frame_limits limits; /* of what comes in */
    int32_t queue_frames;     /* frames that may wait to leave; 0: 64 */
    uint64_t silence_ns;      /* longer is broken; 0: never */
    /* How long frames may wait to leave without any progress; 0: never. */
    uint64_t stall_ns;
    const char *name; /* of the other end, for messages; copied */
    /* What near rows need of this process (near.h); borrowed, outlives its
     * links. NULL: rows are never near. Of links that were dialled. */
    weft_near *near;
} weft_link_options;

typedef struct weft_link_stats {
    uint64_t frames_sent, frames_received, bytes_sent, bytes_received;
    uint64_t pulse_step;    /* the last step counter that the other end told */
    uint64_t last_heard_ns; /* anything at all */
    uint64_t near_sent, near_received; /* frames with near rows, of the above */
    uint64_t near_failed; /* 1: it was tried, and rows stay in the stream */
} weft_link_stats;

/* Two ends within this process. */
WEFT_MUST_CHECK weft_status weft_link_create_local(const weft_link_options *a,
                                                   const weft_link_options *b,
                                                   weft_link **a_out,
                                                   weft_link **b_out,
                                                   weft_err *err);

/* Ends the connection; what has not left is dropped. NULL is fine. */
void weft_link_close(weft_link *link);

/* Puts a frame on its way, or says why not; whole or not at all.
 * rows [frame->n_rows] point to row_bytes each; NULL if there are none. The
 * body is copied. The rows and the array are borrowed until weft_link_is_idle.
 * RESOURCE_EXHAUSTED: the queue is full (no text is made). UNAVAILABLE: broken.
 */
WEFT_MUST_CHECK weft_status weft_link_send(weft_link *link,
                                           const weft_frame *frame,
                                           const void *const *rows,
                                           weft_err *err);
/* Whether all that was sent has left this process (rows are free again). */
bool weft_link_is_idle(const weft_link *link);
/* Sends until idle. UNAVAILABLE: broken. DEADLINE_EXCEEDED. */
WEFT_MUST_CHECK weft_status weft_link_flush(weft_link *link,
                                            uint64_t deadline_ns,
                                            weft_err *err);

/* Moves bytes both ways as far as possible; takes the next whole frame, if one
 * is there: *got_out. Its body and rows are borrowed until recv is called
 * again. UNAVAILABLE: broken (closed, cut, garbage, checksum, limits, silent).
 */
WEFT_MUST_CHECK weft_status weft_link_recv(weft_link *link,
                                           weft_frame *frame_out, bool *got_out,
                                           weft_err *err);

/* Judge silence and stalled sends at now_ns; waiting_since_ns is when the owner
 * began to wait: time in which it did not look does not count. UNAVAILABLE. */
WEFT_MUST_CHECK weft_status weft_link_judge(weft_link *link, uint64_t now_ns,
                                            uint64_t waiting_since_ns,
                                            weft_err *err);

const char *weft_link_name(const weft_link *link);
void weft_link_get_stats(const weft_link *link, weft_link_stats *stats_out);

/* Any one thread beside the owner: a PULSE with `step`, unless something else
 * is on its way or the link is broken. Never blocks. */
void weft_link_pulse(weft_link *link, uint64_t step);

/* -- waiting -------------------------------------------------------------- */

typedef struct weft_poller weft_poller;

WEFT_MUST_CHECK weft_status weft_poller_create(weft_poller **poller_out,
                                               weft_err *err);
void weft_poller_destroy(weft_poller *poller); /* NULL is fine */
/* The link must be removed before it is closed. */
WEFT_MUST_CHECK weft_status weft_poller_add(weft_poller *poller,
                                            weft_link *link, weft_err *err);
void weft_poller_remove(weft_poller *poller, weft_link *link);
/* Returns when a link has something to receive or room to send what it holds,
 * after weft_poller_wake, or at deadline_ns. Spins for spin_ns first, since a
 * sleep and a wake-up cost more than most answers take. Owner's thread. */
void weft_poller_wait(weft_poller *poller, uint64_t deadline_ns,
                      uint64_t spin_ns);
void weft_poller_wake(weft_poller *poller); /* any thread */

#endif
