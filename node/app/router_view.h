/* router_view.h - what a router process knows of its cluster, as its service
 * and gauges see it (view.h): members from the registry, groups from the states
 * that their leads tell.
 *
 * Threads: begin, join and end by one; the view's entries as view.h says.
 */
#ifndef WEFT_NODE_APP_ROUTER_VIEW_H
#define WEFT_NODE_APP_ROUTER_VIEW_H

#include <stdatomic.h>

#include "node/app/view.h"
#include "node/cluster/cluster.h"
#include "node/fleet/fleet.h"

enum { WEFT_GROUPS_MAX = 256 }; /* that one router serves */

/* What was told of a group's exchange so far, so that what comes is added. */
typedef struct weft_group_seen {
    uint32_t group;
    weft_exchange_counts counts;
} weft_group_seen;

typedef struct weft_router_view {
    weft_fleet *fleet; /* borrowed */
    int32_t replicas;
    /* NULL until the process has joined. */
    _Atomic(weft_cluster *) cluster;
    /* HTTP's thread. */
    weft_group_seen seen[WEFT_GROUPS_MAX];
    int32_t n_seen;
    weft_exchange_counts sum;
} weft_router_view;

weft_view weft_router_view_of(weft_router_view *own);

/* A lead that would not give the bits that the first one gives; borrowed from
 * the members. lead NULL: there is none. */
typedef struct weft_router_refusal {
    const weft_member *lead, *first;
} weft_router_refusal;

/* The leads of the groups among members [n], and which are draining: a group is
 * while any of its stages is. Of members with one place, those that drain stand
 * back, and those before the latest; who stands back drains nobody else. A
 * stream may go on in another group, so all are of one numeric identity, that
 * of the lead that has been there longest; others are left out.
 * leads_out has WEFT_GROUPS_MAX; how many. */
int32_t weft_router_view_leads(const weft_member *members, int32_t n,
                               weft_fleet_lead *leads_out,
                               weft_router_refusal *refused_out);

#endif
