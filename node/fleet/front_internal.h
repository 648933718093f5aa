/* front_internal.h - what the parts of the front share: front.c (its thread and
 * what other threads call), front_jobs.c (jobs that it holds, and their
 * events), front_links.c (one router's link).
 *
 * All of it belongs to the front's thread, but for what is said otherwise.
 */
#ifndef WEFT_NODE_FLEET_FRONT_INTERNAL_H
#define WEFT_NODE_FLEET_FRONT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "node/base/log.h"
#include "node/base/ring.h"
#include "node/fleet/codec.h"
#include "node/fleet/front.h"
#include "router/journal.h"

enum {
    WEFT_NO_JOB = -1,
    WEFT_NO_ROUTER = -1,
    /* Events of one router that wait to leave, one frame of them. */
    WEFT_FRONT_OUT_BYTES = 256 << 10,
};

typedef struct weft_front_job {
    weft_arena *arena; /* NULL: free */
    weft_job *job;     /* with our handle; the engine borrows it */
    int32_t router;    /* WEFT_NO_ROUTER: its link has ended */
    uint64_t handle;   /* the router's */
    int64_t bytes;
    bool submitted; /* the engine has it */
    bool cancel_due;
    int32_t next; /* free, or to be submitted */
} weft_front_job;

typedef struct weft_front_router {
    weft_link *link; /* NULL: free */
    uint64_t looked_at_ns, told_ns;
    bool refused;          /* it was given back a job for want of room, */
    int64_t refused_bytes; /* of so much memory */
    bool ages_known;       /* ages of routers are counted apart; ours go on */
    uint64_t age_shift;
    unsigned char *out; /* [WEFT_FRONT_OUT_BYTES] an EVENTS body */
    weft_pack events;   /* into it */
    uint32_t n_events;
} weft_front_router;

struct weft_front {
    weft_front_options options;
    weft_engine *engine;
    weft_poller *poller;
    weft_ring *events; /* weft_event, of the engine's thread */
    weft_ring *links;  /* weft_link *, of any */
    pthread_t thread;
    bool started;
    _Atomic bool stop, stopped, draining, woken;
    _Atomic int32_t n_live, n_links;

    weft_front_job *jobs; /* [jobs_max] */
    int32_t first_free, first_due, last_due;
    int32_t n_cancels_due;
    int64_t memory_bytes;
    uint64_t serial, age_max;
    weft_front_router *routers; /* [routers_max] */
    weft_log_pace pace;         /* of lines about them */

    bool has_held; /* an event that its router had no room for */
    weft_event held;
    weft_group_state state; /* as read last, and */
    weft_group_state told;  /* as all routers have it */
    uint64_t whole_ns;      /* when it was whole last; 0: never */
    uint64_t read_ns;
    uint64_t turn_ns, looking_since_ns;
};

/* -- jobs ----------------------------------------------------------------- */

/* Of a SUBMIT. INVALID_ARGUMENT: the link is to be broken off. What cannot be
 * held goes back to the router. */
WEFT_MUST_CHECK weft_status weft_front_take_job(weft_front *front,
                                                int32_t router,
                                                const weft_frame *frame,
                                                uint64_t now_ns, weft_err *err);
void weft_front_cancel(weft_front *front, int32_t router, uint64_t handle);
/* The router's link has ended: nobody wants its jobs. */
void weft_front_orphan(weft_front *front, int32_t router);
/* Hands the engine what it had no room for. true: it still has not. */
bool weft_front_hand_over(weft_front *front);
/* The engine's events into their routers' frames, as far as they have room. */
void weft_front_take_events(weft_front *front);

/* -- links ---------------------------------------------------------------- */

/* Puts an event into the router's frame; false: no room now. */
bool weft_front_put(weft_front *front, int32_t router, const weft_event *event);
void weft_front_connect(weft_front *front, weft_link *link, uint64_t now_ns);
/* Of the router at `at`. */
void weft_front_break(weft_front *front, int32_t at, const char *why);
/* Takes what has come, sends events, judges silence. */
void weft_front_serve_router(weft_front *front, int32_t at, uint64_t now_ns);
/* Frames that have something leave. */
void weft_front_flush(weft_front *front);
/* Tells the routers what has changed; when to look again. */
uint64_t weft_front_tell_state(weft_front *front, uint64_t now_ns);

#endif
