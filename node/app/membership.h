/* membership.h - what router and shards do alike to belong to a cluster: who
 * they say they are, TLS of links, pulses, the registry, and joining.
 *
 * Threads: the main one, but for weft_membership_hello's result, which is read
 * only after join.
 */
#ifndef WEFT_NODE_APP_MEMBERSHIP_H
#define WEFT_NODE_APP_MEMBERSHIP_H

#include <pthread.h>

#include "node/app/exit.h"
#include "node/app/options.h"
#include "node/cluster/cluster.h"
#include "shard/link/dial.h"
#include "shard/link/pulse.h"

typedef struct weft_membership {
    const weft_options *options;
    char id[WEFT_ID_BYTES];
    weft_hello hello; /* incarnation: known after join */
    weft_tls *tls;    /* NULL: plain links */
    weft_pulse *pulse;
    weft_placement_shape shape;
    int64_t *expert_bytes; /* of shape */
    pthread_mutex_t lock;  /* of cluster, until join has returned */
    weft_cluster *cluster;
} weft_membership;

/* id, hello, TLS and pulse. config is borrowed until end; the shape is that of
 * the whole model. checkpoint NULL: only the config was read, so neither the
 * weights' hash nor the bytes of experts are known. port: of a router without
 * --id, whose name it is part of. identity: of what is computed here (hello.h);
 * NULL: a router's, which computes nothing. */
WEFT_MUST_CHECK weft_status weft_membership_begin(
    weft_membership *m, const weft_options *options,
    const weft_model_config *config, weft_checkpoint *checkpoint,
    const char *bound_address, const char *identity, weft_err *err);

/* Options of links that take in frames within these limits. */
weft_link_options weft_membership_link(const weft_frame_limits *limits);

/* The address to tell others: --advertise, or the bound one. */
WEFT_MUST_CHECK weft_status
weft_membership_address(const weft_membership *m, const char *bound_address,
                        char address_out[WEFT_ADDRESS_BYTES], weft_err *err);

/* Registers, waiting 10 s for the registry. `self` has state, address and what
 * only its role knows; the rest is filled in here. *doing_out: what a failure
 * means (exit.h). Then hello.incarnation is known. */
WEFT_MUST_CHECK weft_status weft_membership_join(weft_membership *m,
                                                 const weft_member *self,
                                                 const weft_cluster_ops *ops,
                                                 weft_doing *doing_out,
                                                 weft_err *err);

/* For callbacks and threads that may run before join has returned; once it has,
 * m->cluster is the same. Not on the cluster's thread. */
weft_cluster *weft_membership_cluster(weft_membership *m);

/* The member goes at once; nothing is called back after it. Threads that still
 * tell the cluster something are heard by nobody. */
void weft_membership_leave(weft_membership *m);
/* After everything that uses TLS, pulses or the cluster. {0} is fine. */
void weft_membership_end(weft_membership *m);

#endif
