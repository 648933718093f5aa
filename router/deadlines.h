/* deadlines.h - the live requests that have a deadline, the earliest first.
 *
 * A binary heap, so that a deadline that passes costs steps in the logarithm of
 * the live requests, however many others wait for theirs.
 *
 * Threads: the router's.
 */
#ifndef WEFT_ROUTER_DEADLINES_H
#define WEFT_ROUTER_DEADLINES_H

#include "router/journal.h"

/* {0} is one without room. */
typedef struct weft_deadlines {
    weft_entry **heap; /* [capacity] */
    int32_t n, capacity;
} weft_deadlines;

/* RESOURCE_EXHAUSTED: no memory. */
WEFT_MUST_CHECK weft_status weft_deadlines_init(weft_deadlines *deadlines,
                                                int32_t capacity,
                                                weft_err *err);
void weft_deadlines_deinit(weft_deadlines *deadlines);

/* An entry without a deadline is left out. Its deadline may not change while it
 * is in. */
void weft_deadlines_add(weft_deadlines *deadlines, weft_entry *entry);
/* One that is not in: nothing. */
void weft_deadlines_remove(weft_deadlines *deadlines, weft_entry *entry);

/* The entry whose deadline is the earliest; NULL: none has one. */
weft_entry *weft_deadlines_first(const weft_deadlines *deadlines);
/* Its deadline, UINT64_MAX without one. */
uint64_t weft_deadlines_next_ns(const weft_deadlines *deadlines);

#endif
