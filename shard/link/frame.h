/* frame.h - what travels over a link between two processes of a cluster.
 *
 * A frame is a header of fixed size, a small body, and rows. The header says
 * all sizes, so that a transport that moves rows by itself (NCCL) can post a
 * receive of the right capacity before a byte of them has come: capacities are
 * weft_frame_capacity(n_rows) rows, a power of two.
 *
 *   0 magic "WEFT"    4 version u16    6 type u16     8 body_bytes u32
 *  12 n_rows u32     16 row_bytes u32 20 payload_crc u32 (body, then rows)
 *  24 epoch u64      32 step u64      40 layer i32   44 attempt u32
 *  48 group u32      52 tag u32       56 flags u32 (1: rows are near; else 0)
 *  60 header_crc u32 (of bytes 0 to 59)
 *
 * All little-endian; checksums are CRC-32C (RFC 3720, appendix B.4). Near rows
 * (near.h) do not follow the body: they go from device to device beside the
 * stream, and payload_crc is the body's alone.
 *
 * (epoch, group, step, layer, attempt, tag) names one piece of work. Whoever
 * asked drops an answer whose name is not the one it waits for; whoever answers
 * keeps no state, so the same work can be asked for any number of times.
 *
 * Everything that comes in is untrusted: weft_frame_decode refuses what is not
 * a frame within the given limits before a byte of its payload is read or
 * memory is taken for it.
 *
 * Threads: none of its own.
 */
#ifndef WEFT_SHARD_LINK_FRAME_H
#define WEFT_SHARD_LINK_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "node/base/err.h"

enum {
    WEFT_FRAME_HEADER_BYTES = 64,
    WEFT_FRAME_VERSION = 1,
    WEFT_FRAME_BODY_BYTES_MAX = 8 << 20,
    WEFT_FRAME_ROWS_MAX = 65536,
    WEFT_FRAME_ROW_BYTES_MAX = 1 << 18,
};

typedef enum weft_frame_type {
    /* Of every link; the transport's own (link.h, hello.h). */
    WEFT_FRAME_HELLO = 1, /* who dials; its body is a weft_hello */
    WEFT_FRAME_WELCOME,   /* who answers; its body is a weft_hello */
    WEFT_FRAME_REFUSE,    /* the other end's reason, text; then it closes */
    WEFT_FRAME_PULSE,     /* alive; `step` is the sender's step counter */
    WEFT_FRAME_COMM,      /* how both ends come to near rows; protocol 2 */

    /* Layer shard and expert shard (shard/expert). */
    WEFT_FRAME_DISPATCH = 16,
    WEFT_FRAME_ANSWER,
    WEFT_FRAME_REJECT, /* the epoch or an expert is not held here */

    /* Stages of one group (shard/step/stages.h). */
    WEFT_FRAME_MAP = 32, /* lead to stage: placement of an epoch */
    WEFT_FRAME_PLAN,     /* lead to stage: the rows of a micro-batch */
    WEFT_FRAME_HIDDEN,   /* stage to next stage: all rows; last to lead: the
                            wanted ones */
    WEFT_FRAME_STUCK,    /* stage to lead: the step could not be computed */
    WEFT_FRAME_RESET,    /* lead to stage: forget all sequences */

    /* Router and lead (node/fleet). */
    WEFT_FRAME_SUBMIT = 48,
    WEFT_FRAME_CANCEL,
    WEFT_FRAME_EVENTS,
    WEFT_FRAME_STATE, /* lead to router: what it is doing, now and then */
} weft_frame_type;

typedef struct weft_frame {
    weft_frame_type type;
    uint64_t epoch, step;
    int32_t layer;
    uint32_t attempt, group;
    uint32_t tag; /* the micro-batch; else the sender's own */

    const void *body;
    size_t body_bytes;
    int32_t n_rows;
    uint32_t row_bytes;
    bool is_near; /* the rows are in the device's memory, at both ends */
    /* Received: the rows, one after another, 64-byte aligned. NULL when
     * sending, where the rows are given beside the frame. */
    const void *rows;
} weft_frame;

/* What one end of a link accepts. */
typedef struct weft_frame_limits {
    size_t body_bytes_max; /* <= WEFT_FRAME_BODY_BYTES_MAX */
    int32_t rows_max;      /* <= WEFT_FRAME_ROWS_MAX */
    uint32_t row_bytes_max;
    bool near; /* rows may be near; the link says so, not its options */
} weft_frame_limits;

/* CRC-32C continued from `crc` (0 to begin). */
uint32_t weft_crc32c(uint32_t crc, const void *bytes, size_t n);

/* The header of `frame` for a payload with that checksum. */
void weft_frame_encode(const weft_frame *frame, uint32_t payload_crc,
                       unsigned char header_out[WEFT_FRAME_HEADER_BYTES]);

/* DATA_LOSS: not a header of ours, or damaged. FAILED_PRECONDITION: another
 * version; the text names both. INVALID_ARGUMENT: a size above a limit, with
 * size and limit, a type that nobody knows, or near rows where there can be
 * none. body and rows are NULL. */
WEFT_MUST_CHECK weft_status
weft_frame_decode(const unsigned char header[WEFT_FRAME_HEADER_BYTES],
                  const weft_frame_limits *limits, weft_frame *frame_out,
                  uint32_t *payload_crc_out, weft_err *err);

/* Bytes of rows in the stream: none of near ones. */
static inline size_t weft_frame_stream_bytes(const weft_frame *frame)
{
    return frame->is_near ? 0 : (size_t)frame->n_rows * frame->row_bytes;
}

/* "dispatch"; NULL: no such type. */
const char *weft_frame_type_name(weft_frame_type type);

/* Rows that a receive must have room for, so that both ends agree on a size
 * without a word: the next power of two, at least 8. */
int32_t weft_frame_capacity(int32_t n_rows);

#endif
