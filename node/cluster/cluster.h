/* cluster.h - a process's place in the cluster: one thread that owns registry,
 * roster, agent and, in a router, the controller, and tells the rest of the
 * process what concerns it.
 *
 * etcd lost: nothing is told, the last committed epoch serves on, and
 * everything is written again when it is back.
 *
 * Threads: callbacks run on the cluster's thread and must not block for long
 * (prepare hands over to a loading thread); all functions by any thread.
 */
#ifndef WEFT_NODE_CLUSTER_CLUSTER_H
#define WEFT_NODE_CLUSTER_CLUSTER_H

#include "node/cluster/agent.h"
#include "node/cluster/controller.h"

typedef struct weft_cluster weft_cluster;

typedef struct weft_cluster_ops {
    /* Members have changed: [n], in order of (role, id), states as shown
     * (LOST included). */
    void (*members)(void *arg, const weft_member *members, int32_t n);
    /* This epoch is committed; peers have their addresses. */
    void (*epoch)(void *arg, const weft_placement *placement);
    /* Experts: see weft_agent_wants. */
    void (*prepare)(void *arg, const weft_placement *placement);
    void (*retire)(void *arg, uint64_t retired);
    void (*epochs)(void *arg, uint64_t first, uint64_t last);
    void (*fenced)(void *arg, const char *text); /* the process should end */
    /* Routers: see weft_controller_set_in_use; asked at every turn. */
    uint64_t (*in_use)(void *arg);
    void *arg;
} weft_cluster_ops; /* any entry may be NULL */

typedef struct weft_cluster_options {
    weft_registry *registry; /* taken, also on failure */
    bool is_static;   /* nothing is written; epoch 1 follows from the members */
    weft_member self; /* incarnation: the least it gets; 0: of the clock, above
                         those of all that had the id before */
    weft_placement_shape shape; /* its arrays are copied */
    int32_t replicas;
    bool controls; /* a router: may be elected */
    weft_cluster_ops ops;
} weft_cluster_options;

/* Starts its thread. */
WEFT_MUST_CHECK weft_status
weft_cluster_start(const weft_cluster_options *options,
                   weft_cluster **cluster_out, weft_err *err);
/* Withdraws the member (its keys go at once) and joins: nothing is called back
 * any more. What other threads say after it is heard by nobody, and the view
 * stays as it was. NULL is fine. */
void weft_cluster_leave(weft_cluster *cluster);
/* Leaves, and ends. After everybody who may call it. NULL is fine. */
void weft_cluster_stop(weft_cluster *cluster);

/* The incarnation is known once this returns OK. UNAVAILABLE: the registry does
 * not answer (its text); FAILED_PRECONDITION: fenced; DEADLINE_EXCEEDED. */
WEFT_MUST_CHECK weft_status
weft_cluster_wait_registered(weft_cluster *cluster, uint64_t deadline_ns,
                             uint64_t *incarnation_out, weft_err *err);

/* DRAINING is for good, whatever other threads say after it. */
void weft_cluster_set_state(weft_cluster *cluster, weft_member_state state);
void weft_cluster_loaded(weft_cluster *cluster, uint64_t epoch,
                         int64_t loaded_bytes, const char *text);
void weft_cluster_switched(weft_cluster *cluster, uint64_t epoch);
void weft_cluster_suspect(weft_cluster *cluster, const char *id,
                          uint64_t incarnation, bool suspected);
/* Draining expert shard: whether it may go. */
bool weft_cluster_is_emptied(const weft_cluster *cluster);

/* For status and metrics: copies of what is known. */
typedef struct weft_cluster_view {
    uint64_t epoch, retired;
    bool reachable; /* the registry answers */
    int32_t n_members;
    weft_member *members; /* [n_members]; the caller's, to end with
                             weft_cluster_view_deinit */
    int32_t *experts;     /* [n_members]: (layer, expert) pairs that the
                             committed epoch gives each; 0 for others */
    weft_controller_state controller;
} weft_cluster_view;
WEFT_MUST_CHECK weft_status weft_cluster_get_view(weft_cluster *cluster,
                                                  weft_cluster_view *view_out,
                                                  weft_err *err);
void weft_cluster_view_deinit(weft_cluster_view *view);

#endif
