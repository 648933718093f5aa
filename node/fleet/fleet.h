/* fleet.h - the router's groups: which exist, which takes the next request, and
 * the links to their leads. A filling of weft_lead (router/lead.h).
 *
 * The router hands a job to the fleet; router/place chooses a group; the job
 * goes as a SUBMIT frame to that group's lead and its events come back as
 * EVENTS frames. A group whose link breaks gives back every job it held: each
 * gets an END with PREEMPTED, so that the router submits it again from its
 * journal, to whatever group is there. A job that has been on `tries_max`
 * groups that broke ends with INTERNAL: it may be what breaks them.
 *
 * Threads: one of its own for the links; submit and cancel by the router's.
 */
#ifndef WEFT_NODE_FLEET_FLEET_H
#define WEFT_NODE_FLEET_FLEET_H

#include "router/lead.h"
#include "shard/link/dial.h"
#include "shard/link/pulse.h"
#include "shard/step/engine.h"

typedef struct weft_fleet weft_fleet;

/* What a lead tells of itself, in a STATE frame: at connection, twice a second,
 * and when something changes. */
typedef struct weft_group_state {
    uint32_t group;
    bool connected, whole; /* whole: a step can be computed now */
    bool draining;
    uint64_t epoch;
    int32_t max_seqs, max_context; /* limits of its engine */
    weft_engine_load load;
    uint64_t weights_hash;
    char id[WEFT_ID_BYTES];
    char reason[128]; /* why it is not whole or not connected; "" */
} weft_group_state;

typedef struct weft_fleet_options {
    weft_peers *peers; /* borrowed: used for leads alone */
    weft_pulse *pulse;
    int32_t groups_max; /* 0: 64 */
    int32_t jobs_max;   /* live at once */
    int32_t tries_max;  /* 0: 2 */
    /* Takes an event, as weft_event_sink; fleet's thread. */
    bool (*take)(void *arg, const weft_event *event);
    void *take_arg;
    /* The state of some group has changed; fleet's thread. May be NULL. */
    void (*changed)(void *arg);
    void *changed_arg;
} weft_fleet_options;

WEFT_MUST_CHECK weft_status weft_fleet_start(const weft_fleet_options *options,
                                             weft_fleet **fleet_out,
                                             weft_err *err);
/* Joins its thread; jobs that are left get no event. NULL is fine. */
void weft_fleet_stop(weft_fleet *fleet);
void weft_fleet_destroy(weft_fleet *fleet); /* after the router; NULL is fine */

/* Leads that exist, one a group. Any thread. */
typedef struct weft_fleet_lead {
    uint32_t group;
    bool draining; /* keeps what it has, gets nothing more */
    weft_peer peer;
} weft_fleet_lead;
WEFT_MUST_CHECK weft_status weft_fleet_want(weft_fleet *fleet,
                                            const weft_fleet_lead *leads,
                                            int32_t n, weft_err *err);

weft_lead weft_fleet_lead_ops(weft_fleet *fleet);

/* Some group is connected and takes requests; else *reason_out says why not.
 * Any thread. */
bool weft_fleet_is_serving(const weft_fleet *fleet, char *reason_out,
                           size_t reason_bytes);
/* The states of all groups, at most n_max; how many. Any thread. */
int32_t weft_fleet_get_states(const weft_fleet *fleet,
                              weft_group_state *states_out, int32_t n_max);

#endif
