/* pending.h - the chunk of a stream that waits for its client, made of many.
 *
 * A client that reads slowly costs one chunk of the sum of what waits, not one
 * message for each token.
 *
 * Threads: one owner.
 */
#ifndef WEFT_NODE_RPC_PENDING_H
#define WEFT_NODE_RPC_PENDING_H

#include "node/base/str.h"
#include "proto/messages.h"

/* {0} is an empty one. */
typedef struct weft_pending {
    bool any; /* something waits, be it without tokens and text */
    uint32_t prompt_tokens, completion_tokens, cached_tokens;
    weft_buf ids, text;
    weft_buf values, value_ids, n_top, top_values, top_ids;
} weft_pending;

/* Append. RESOURCE_EXHAUSTED: no memory, or more than bytes_max would wait;
 * what waits is then of no more use. */
WEFT_MUST_CHECK weft_status weft_pending_add(weft_pending *pending,
                                             const weft_chunk *chunk,
                                             size_t bytes_max, weft_err *err);

size_t weft_pending_bytes(const weft_pending *pending);

/* All that waits as one chunk, borrowed until the next call with `pending`. */
weft_chunk weft_pending_chunk(const weft_pending *pending);

/* Forget what waits; memory beyond a few tokens' is given back. */
void weft_pending_clear(weft_pending *pending);
void weft_pending_deinit(weft_pending *pending);

#endif
