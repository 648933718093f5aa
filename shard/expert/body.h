/* body.h - the bodies of the frames between a layer shard and an expert shard.
 *
 *   DISPATCH  u32 n_pairs, u32 flags (0), then for each pair u32 row (of this
 *             frame), u32 expert, u32 pair; rows: [n_rows, hidden] fp32
 *   ANSWER    u32 n, then u32 pair for each row; rows: [n, hidden] fp32
 *   REJECT    u8 reason, then text to the end; no rows
 *
 * An ANSWER or REJECT repeats epoch, step, layer, attempt, group and tag of its
 * DISPATCH. A DISPATCH is answered by one or more ANSWERs that share its pairs,
 * of which the last may be a REJECT of what is left.
 *
 * Everything is bounded, so that either end can size its buffers beforehand: a
 * larger question is several frames.
 *
 * Threads: none of its own.
 */
#ifndef WEFT_SHARD_EXPERT_BODY_H
#define WEFT_SHARD_EXPERT_BODY_H

#include <stdbool.h>

#include "shard/link/frame.h"
#include "shard/model/config.h"

enum {
    WEFT_DISPATCH_ROWS_MAX = 1024,
    WEFT_DISPATCH_PAIRS_MAX = 8192,
    WEFT_ANSWER_ROWS_MAX = 128,
    WEFT_REJECT_TEXT_BYTES = 160, /* with its NUL */
    WEFT_DISPATCH_HEAD_BYTES = 8,
    WEFT_DISPATCH_PAIR_BYTES = 12,
    WEFT_DISPATCH_BODY_BYTES_MAX =
        WEFT_DISPATCH_HEAD_BYTES +
        WEFT_DISPATCH_PAIRS_MAX * WEFT_DISPATCH_PAIR_BYTES,
    WEFT_ANSWER_BODY_BYTES_MAX = 4 + WEFT_ANSWER_ROWS_MAX * 4,
};

typedef enum weft_reject_reason {
    WEFT_REJECT_EPOCH = 1, /* not open here */
    WEFT_REJECT_EXPERT,    /* not held here */
} weft_reject_reason;

typedef struct weft_dispatch_pair {
    int32_t row, expert;
    uint32_t pair; /* the asker's own number */
} weft_dispatch_pair;

/* What either end must accept: for weft_link_options. */
weft_frame_limits weft_dispatch_limits(const weft_model_config *config);
weft_frame_limits weft_answer_limits(const weft_model_config *config);

/* Bytes written; bytes_out has room for n <= WEFT_DISPATCH_PAIRS_MAX pairs. */
size_t weft_dispatch_encode(const weft_dispatch_pair *pairs, int32_t n,
                            void *bytes_out);
/* Checks everything against the config and the frame's own sizes: *n_out pairs
 * into pairs_out [WEFT_DISPATCH_PAIRS_MAX]. INVALID_ARGUMENT says what is
 * wrong. */
WEFT_MUST_CHECK weft_status weft_dispatch_decode(
    const weft_frame *frame, const weft_model_config *config,
    weft_dispatch_pair *pairs_out, int32_t *n_out, weft_err *err);

size_t weft_answer_encode(const uint32_t *pairs, int32_t n, void *bytes_out);
/* *pairs_out [frame->n_rows]. INVALID_ARGUMENT. */
WEFT_MUST_CHECK weft_status
weft_answer_decode(const weft_frame *frame, const weft_model_config *config,
                   uint32_t pairs_out[WEFT_ANSWER_ROWS_MAX], weft_err *err);

/* bytes_out has room for WEFT_REJECT_TEXT_BYTES. */
size_t weft_reject_encode(weft_reject_reason reason, const char *text,
                          void *bytes_out);
WEFT_MUST_CHECK weft_status
weft_reject_decode(const weft_frame *frame, weft_reject_reason *reason_out,
                   char text_out[WEFT_REJECT_TEXT_BYTES], weft_err *err);

#endif
