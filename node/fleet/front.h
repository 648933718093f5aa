/* front.h - the lead's side of a router's link: jobs in, events out.
 *
 * Jobs that come are copied, held and submitted to the engine; events of a
 * step leave as one frame. When a router's link ends, its jobs are cancelled
 * (their pages are free within a step); another router, or the same one back
 * again, starts with none. Several routers may be connected at once.
 *
 * Threads: one of its own for links; take is called on the engine's.
 */
#ifndef WEFT_NODE_FLEET_FRONT_H
#define WEFT_NODE_FLEET_FRONT_H

#include "node/fleet/fleet.h"

typedef struct weft_front weft_front;

typedef struct weft_front_options {
    int32_t jobs_max;    /* live at once, over all routers */
    int32_t routers_max; /* 0: 16 */
    weft_pulse *pulse;
    weft_group_state own; /* group, limits, hash, id: what does not change */
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

/* A router's link that the listener took; taken. Any thread. */
WEFT_MUST_CHECK weft_status weft_front_add_link(weft_front *front,
                                                weft_link *link, weft_err *err);
/* From here on it says that it is draining; what it has goes on. */
void weft_front_drain(weft_front *front);
int32_t weft_front_live(const weft_front *front); /* jobs that are held */

#endif
