/* inbox.h - the receiving side of a stream of frames: bytes in, frames out.
 *
 * Bytes are read straight to where they stay: one buffer holds the header, the
 * body and the rows of a frame one after another, and begins so that the rows
 * lie on a multiple of 64 bytes if the body is as long as that of the frame
 * before, which it is nearly always. Otherwise what has come is moved once. One
 * read may bring the end of a frame, whole frames, and the beginning of
 * another.
 *
 *   data                 at                                end      capacity
 *   |  (done with)       | header | body | rows ... | more |        |
 *
 * Memory is taken after a header has been accepted, and for a long frame only
 * as its bytes come: a peer that announces much and sends nothing costs
 * nothing. A frame that was given out stays where it is until `give_back`, also
 * when more is read before that.
 *
 * Threads: none of its own.
 */
#ifndef WEFT_SHARD_LINK_INBOX_H
#define WEFT_SHARD_LINK_INBOX_H

#include <stdbool.h>

#include "shard/link/frame.h"

typedef struct weft_inbox {
    unsigned char *data; /* 64-byte aligned; NULL: nothing taken yet */
    size_t capacity, at, end;
    unsigned char *lent_data; /* an earlier `data` that a frame was lent from */
    bool lent;                /* a frame in `data` is */
    size_t last_body_bytes;   /* of the frame before */
    bool known;               /* `next` is the header at `at` */
    weft_frame next;
    uint32_t next_crc;
    uint32_t crc; /* of its first crc_bytes behind the header */
    size_t crc_bytes;
    size_t least_bytes; /* of a buffer */
} weft_inbox;

void weft_inbox_init(weft_inbox *inbox, size_t least_bytes);
void weft_inbox_deinit(weft_inbox *inbox);

/* Where the next bytes go, and how many have room: at least one where is_ready
 * says no. As weft_frame_decode;
 * RESOURCE_EXHAUSTED: no memory. */
WEFT_MUST_CHECK weft_status weft_inbox_room(weft_inbox *inbox,
                                            const weft_frame_limits *limits,
                                            unsigned char **at_out,
                                            size_t *n_out, weft_err *err);
void weft_inbox_filled(weft_inbox *inbox, size_t n);

/* The next whole frame, if it is there; lent until give_back. As
 * weft_frame_decode; DATA_LOSS too: the payload's checksum. */
WEFT_MUST_CHECK weft_status weft_inbox_next(weft_inbox *inbox,
                                            const weft_frame_limits *limits,
                                            weft_frame *frame_out,
                                            bool *got_out, weft_err *err);
void weft_inbox_give_back(weft_inbox *inbox);

/* Whether `next` would give something: a frame, or an error. */
bool weft_inbox_is_ready(const weft_inbox *inbox,
                         const weft_frame_limits *limits);
/* Bytes of a frame that is not whole. */
size_t weft_inbox_rest(const weft_inbox *inbox);

#endif
