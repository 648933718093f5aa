/* fleet.h - the router's groups: which exist, which takes the next request, and
 * the links to their leads. A filling of weft_lead (router/lead.h).
 *
 * The router hands a job to the fleet, which holds it until router/place finds
 * a group for it, in the order of priority and age; so a job without a group
 * costs nothing while it waits. Then it goes as a SUBMIT frame to that group's
 * lead, and its events come back as EVENTS frames. A group whose link breaks
 * gives back every job it held: each gets an END with PREEMPTED, so that the
 * router submits it again from its journal, to whatever group is there. A job
 * that has been on `tries_max` groups that broke before they gave it a token
 * ends with INTERNAL: it may be what breaks them (router/place.h). A lead that
 * merely lost its stages gives its jobs back itself, which counts for nothing.
 *
 * A cancelled job ends at once, whatever its lead does. Jobs go only to groups
 * that can compute now; a group that is whole no more keeps what it has.
 *
 * Everything that a lead sends is held against what it was asked: tokens come
 * in order of position, none twice, or its link is broken off.
 *
 * Threads: one of its own for the links; submit and cancel by the router's.
 */
#ifndef WEFT_NODE_FLEET_FLEET_H
#define WEFT_NODE_FLEET_FLEET_H

#include "node/obs/exchange.h"
#include "router/lead.h"
#include "shard/link/dial.h"
#include "shard/link/pulse.h"
#include "shard/step/engine.h"

typedef struct weft_fleet weft_fleet;

/* What a lead tells of itself, in a STATE frame: at connection, twice a second,
 * and when something changes. */
typedef struct weft_group_state {
    uint32_t group;
    bool connected;  /* filled in by the fleet */
    bool whole;      /* a step can be computed now */
    bool been_whole; /* a minute ago at most: it takes requests, which wait */
    bool draining;
    uint64_t epoch;
    int32_t max_seqs, max_context; /* limits of its engine */
    int32_t jobs_max, jobs_live;   /* of all routers */
    weft_engine_load load;
    weft_exchange_counts exchange; /* with the expert pool, ever */
    uint64_t weights_hash;
    char id[WEFT_ID_BYTES];
    char reason[128]; /* why it is not whole or not connected; "" */
} weft_group_state;

typedef struct weft_fleet_options {
    /* Borrowed until stop; used for leads alone. NULL: set_peers later, or
     * links by add_link alone. */
    weft_peers *peers;
    weft_pulse *pulse;  /* borrowed; NULL: none */
    int32_t groups_max; /* 0: 64 */
    int32_t jobs_max;   /* live at once; slots of handles (router/journal.h) */
    int32_t tries_max;  /* 0: 2 */
    /* How long a lead that has just been told of may take to be connected, and
     * requests wait for it; 0: 2 s. */
    uint64_t coming_ns;
    /* How long requests wait for another lead when those that serve have been
     * told to drain: a lead that drains is renewed, as in a rolling update.
     * From the last word of one that drains; 0: not at all. */
    uint64_t renewing_ns;
    int32_t vocab_size; /* what a token may be */
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
/* After the router, and after peers that wake it; NULL is fine. */
void weft_fleet_destroy(weft_fleet *fleet);

/* Before anything is wanted. Any thread. */
void weft_fleet_set_links(weft_fleet *fleet, weft_peers *peers,
                          weft_pulse *pulse);
/* Looks around at once; for `ready` of weft_peers. Any thread. */
void weft_fleet_wake(weft_fleet *fleet);

/* Leads that exist, one a group. One that is not among them serves on while its
 * link lives and it does not drain: the registry may have lost it without its
 * being lost. Any thread. INVALID_ARGUMENT: more than
 * groups_max, or two of one group. */
typedef struct weft_fleet_lead {
    uint32_t group;
    bool draining; /* keeps what it has, gets nothing more */
    weft_peer peer;
} weft_fleet_lead;
WEFT_MUST_CHECK weft_status weft_fleet_want(weft_fleet *fleet,
                                            const weft_fleet_lead *leads,
                                            int32_t n, weft_err *err);

weft_lead weft_fleet_lead_ops(weft_fleet *fleet);

/* Some group is connected, has been whole and is not draining; else reason_out
 * says why not. Any thread. */
bool weft_fleet_is_serving(weft_fleet *fleet, char *reason_out,
                           size_t reason_bytes);
/* The same, or a lead has been told of since coming_ns at most, or the last
 * ones have drained since renewing_ns at most. In a rolling update the last
 * group of before may begin to drain while the first one of after is being
 * dialled, or before it has been started: a request that comes then waits. Any
 * thread. */
bool weft_fleet_takes_requests(weft_fleet *fleet, char *reason_out,
                               size_t reason_bytes);
/* A link that needs no dialling (in one process); taken, also on failure.
 * FAILED_PRECONDITION: no such group is wanted, or it has a link. Any thread.
 */
WEFT_MUST_CHECK weft_status weft_fleet_add_link(weft_fleet *fleet,
                                                uint32_t group, weft_link *link,
                                                weft_err *err);

/* The lowest epoch that steps of a connected lead are of, as it tells itself:
 * the registry may have lost it, and it may have heard of no later one. 0: of
 * none. Any thread. */
uint64_t weft_fleet_epoch_in_use(weft_fleet *fleet);
/* The least context that a connected lead allows; 0: none is connected. */
int32_t weft_fleet_max_context(weft_fleet *fleet);
/* The states of all groups, by number, at most n_max; how many. Any thread. */
int32_t weft_fleet_get_states(weft_fleet *fleet, weft_group_state *states_out,
                              int32_t n_max);

#endif
