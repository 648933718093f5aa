/* front.h - the lead's side of a router's link: jobs in, events out.
 *
 * Jobs that come are checked, copied, held and submitted to the engine; events
 * leave in frames of as many as have come meanwhile. Where they cannot leave,
 * the engine waits; a router that takes nothing is cut off by its link. When a
 * router's link ends, its jobs are cancelled (their pages are free within a
 * step); another router, or the same one back again, starts with none. Several
 * routers may be connected at once.
 *
 * Threads: one of its own for links; take is called on the engine's.
 */
#ifndef WEFT_NODE_FLEET_FRONT_H
#define WEFT_NODE_FLEET_FRONT_H

#include "node/fleet/fleet.h"

typedef struct weft_front weft_front;

typedef struct weft_front_options {
    /* Live at once, over all routers; at most the engine's max_seqs +
     * max_waiting. What comes beyond goes back to its router. */
    int32_t jobs_max;
    int32_t routers_max;      /* 0: 16 */
    int64_t memory_bytes_max; /* of all jobs held; 0: 256 MiB */
    int32_t vocab_size;       /* what a token may be */
    weft_pulse *pulse;        /* borrowed; NULL: none */
    weft_group_state own; /* group, limits, hash, id: what does not change */
    /* Fills in what is known elsewhere (reason, exchange; it may also say that
     * it is not whole) before a state is sent; front's thread. May be NULL. */
    void (*describe)(void *arg, weft_group_state *state_io);
    void *describe_arg;
} weft_front_options;

/* In this order: create; the engine with weft_front_sink; start; ...; stop;
 * the engine's end; destroy. */
WEFT_MUST_CHECK weft_status weft_front_create(const weft_front_options *options,
                                              weft_front **front_out,
                                              weft_err *err);
weft_event_sink weft_front_sink(weft_front *front);
WEFT_MUST_CHECK weft_status weft_front_start(weft_front *front,
                                             weft_engine *engine,
                                             weft_err *err);
void weft_front_stop(weft_front *front);
void weft_front_destroy(weft_front *front); /* NULL is fine */

/* A router's link that the listener took; taken, also on failure.
 * RESOURCE_EXHAUSTED: routers_max. Any thread. */
WEFT_MUST_CHECK weft_status weft_front_add_link(weft_front *front,
                                                weft_link *link, weft_err *err);
/* From here on it says that it is draining; what it has goes on. */
void weft_front_drain(weft_front *front);
int32_t weft_front_live(const weft_front *front); /* jobs that are held */

#endif
