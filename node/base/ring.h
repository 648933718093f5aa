/* ring.h - a bounded queue between threads, where they meet.
 *
 * Fixed-size items are copied in and out in order. Any number of pushers, one
 * popper. push never blocks: a full ring is the pusher's business (back
 * pressure). The popper can wait with a deadline.
 *
 * Threads: push, wake: any; pop, wait: one. Nothing allocates after create.
 */
#ifndef WEFT_NODE_BASE_RING_H
#define WEFT_NODE_BASE_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "node/base/err.h"

typedef struct weft_ring weft_ring;

WEFT_MUST_CHECK weft_status weft_ring_create(size_t item_bytes, size_t n_items,
                                             weft_ring **ring_out,
                                             weft_err *err);
void weft_ring_destroy(weft_ring *ring); /* NULL is fine; items are dropped */

bool weft_ring_push(weft_ring *ring, const void *item); /* false: full */
bool weft_ring_pop(weft_ring *ring, void *item_out);    /* false: empty */

/* Return when an item is there, after weft_ring_wake, or at deadline_ns
 * (CLOCK_MONOTONIC; UINT64_MAX: no deadline). */
void weft_ring_wait(weft_ring *ring, uint64_t deadline_ns);
void weft_ring_wake(weft_ring *ring);

#endif
