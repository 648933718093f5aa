/* outbox.h - the sending side of a stream of frames: frames in, pieces of
 * memory out.
 *
 * Holds headers and copies of bodies, and points to rows, which leave from
 * where they lie; rows that lie one after another become one piece.
 *
 * Threads: none of its own.
 */
#ifndef WEFT_SHARD_LINK_OUTBOX_H
#define WEFT_SHARD_LINK_OUTBOX_H

#include <stdbool.h>
#include <sys/uio.h>

#include "shard/link/frame.h"

typedef struct weft_out_frame {
    unsigned char header[WEFT_FRAME_HEADER_BYTES];
    unsigned char *body;
    size_t body_bytes, body_capacity;
    const void *const *rows;
    size_t row_bytes, total;
} weft_out_frame;

typedef struct weft_outbox {
    weft_out_frame *frames; /* a ring */
    int32_t capacity, head, n;
    size_t done; /* bytes of the first one that have left */
} weft_outbox;

/* RESOURCE_EXHAUSTED: no memory. */
WEFT_MUST_CHECK weft_status weft_outbox_init(weft_outbox *outbox,
                                             int32_t capacity, weft_err *err);
void weft_outbox_deinit(weft_outbox *outbox);

/* false: it is full, or there is no memory for the body. */
bool weft_outbox_put(weft_outbox *outbox, const weft_frame *frame,
                     const void *const *rows);
/* The next pieces, at most n_max and about bytes_max in all; how many. */
int weft_outbox_gather(const weft_outbox *outbox, struct iovec *pieces,
                       int n_max, size_t bytes_max);
/* That many bytes of them have left. */
void weft_outbox_sent(weft_outbox *outbox, size_t n);

/* The checksum of what follows the header. */
uint32_t weft_frame_payload_crc(const weft_frame *frame,
                                const void *const *rows);

#endif
