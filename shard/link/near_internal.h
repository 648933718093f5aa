/* near_internal.h - the near side of one link. For shard/link alone.
 *
 *   near.c        memory for links; rows out and in
 *   near_talk.c   how both ends come to it: frames of type COMM
 *
 * A link without near rows has none of this (link->near is NULL).
 */
#ifndef WEFT_SHARD_LINK_NEAR_INTERNAL_H
#define WEFT_SHARD_LINK_NEAR_INTERNAL_H

#include "shard/link/link_internal.h"
#include "shard/link/near.h"

enum {
    /* Frames in the ring that were not taken yet. No more than a comm has
     * marks of its own for. */
    WEFT_NEAR_FLYING = 16,
    WEFT_NEAR_WHY_BYTES = 160,
    WEFT_NEAR_BODY_BYTES_MAX = 16 + 2 * WEFT_COMM_ID_BYTES,
};

typedef enum weft_near_state {
    WEFT_NEAR_IDLE,    /* who dialled is to offer, who answered waits for it */
    WEFT_NEAR_OFFERED, /* who dialled: no answer yet */
    WEFT_NEAR_PENDING, /* comms have begun */
    WEFT_NEAR_SAID,    /* own comms are READY, and the other end knows */
    WEFT_NEAR_READY,   /* the other end said so, too */
    WEFT_NEAR_OVER,    /* for good: tcp alone, or a broken link */
} weft_near_state;

typedef enum weft_near_say {
    WEFT_SAY_NOTHING,
    WEFT_SAY_OFFER,
    WEFT_SAY_AGREE,
    WEFT_SAY_DECLINE,
    WEFT_SAY_READY,
    WEFT_SAY_FAIL,
} weft_near_say;

/* What a COMM frame says. */
typedef struct weft_near_said {
    weft_near_say say;
    uint32_t version;             /* of NCCL; OFFER, AGREE */
    uint32_t rows_max, row_bytes; /* what its sender takes; the same */
    unsigned char ids[2][WEFT_COMM_ID_BYTES]; /* OFFER: of what goes from who
                                                 dialled, and to it */
    char why[WEFT_NEAR_WHY_BYTES];            /* DECLINE, FAIL */
} weft_near_said;

size_t weft_near_encode(const weft_near_said *said,
                        unsigned char body_out[WEFT_NEAR_BODY_BYTES_MAX]);
/* INVALID_ARGUMENT: not such a body. */
WEFT_MUST_CHECK weft_status weft_near_decode(const weft_frame *frame,
                                             weft_near_said *said_out,
                                             weft_err *err);

/* A frame's rows in the ring. */
typedef struct weft_near_sent {
    int64_t first, end; /* bytes */
    uint64_t mark, since_ns;
} weft_near_sent;

typedef struct weft_near_link {
    weft_near *pool;
    const weft_comm_api *api;
    bool dials;
    weft_near_state state;
    uint64_t until_ns; /* OFFERED, PENDING: too late from then on */
    bool peer_ready;
    weft_near_said due; /* to be sent; NOTHING: no */
    unsigned char ids[2][WEFT_COMM_ID_BYTES];
    int64_t peer_rows_max, peer_row_bytes;
    weft_comm *out, *in;
    int32_t block;               /* of the pool's memory; -1: none */
    unsigned char *ring, *place; /* out: a ring; in: one frame at a time */

    weft_near_sent sent[WEFT_NEAR_FLYING]; /* a ring, oldest at head */
    int32_t head, n_sent;
    bool wants_room; /* one was refused */

    bool held; /* `frame` has come, its rows have not */
    weft_frame frame;
    uint64_t mark, since_ns;
    uint64_t last_sent; /* mark of all that `out` was given */

    uint64_t frames_sent, frames_received, n_failed;
} weft_near_link;

/* What a pool gives to its links (near.c). */
const weft_near_options *weft_near_options_of(const weft_near *pool);
const weft_comm_api *weft_near_api(const weft_near *pool);
/* Device memory for the link; false: no more. */
bool weft_near_take(weft_near_link *near);
/* Aborts and ends its comms, and gives its memory back. */
void weft_near_end_comms(weft_near_link *near);
void weft_near_counted(weft_near *pool, int32_t by);

/* From here on the link tries to become near. No memory for that: it does not.
 */
void weft_near_attach(weft_link *link, bool dials);
/* Before the link is freed. */
void weft_near_detach(weft_link *link);
/* Of a link that is broken. */
void weft_near_abort(weft_near_link *near);

/* A COMM frame; link->near may be NULL. */
weft_meeting weft_near_meet(weft_link *link, const weft_frame *frame);
/* The ring is free of what the other end has taken. */
void weft_near_reap(weft_near_link *near);
/* Moves what is under way on: what is due to be said, comms, the ring.
 * UNAVAILABLE: the link is broken. */
WEFT_MUST_CHECK weft_status weft_near_turn(weft_link *link, weft_err *err);
/* recv and judge of a link with a near side. */
WEFT_MUST_CHECK weft_status weft_near_recv(weft_link *link,
                                           weft_frame *frame_out, bool *got_out,
                                           weft_err *err);
WEFT_MUST_CHECK weft_status weft_near_judge(weft_link *link, uint64_t now_ns,
                                            uint64_t since_ns, weft_err *err);
/* Whether recv would give out the frame that is held. */
bool weft_near_is_ready(const weft_link *link);
/* How soon somebody has to look again, since no descriptor tells; UINT64_MAX:
 * need not. */
uint64_t weft_near_tick_ns(const weft_link *link);

#endif
