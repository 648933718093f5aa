/* cluster_internal.h - the parts of a cluster's thread, for each other.
 *
 *   cluster.c          beginning, end, what other threads may call
 *   cluster_turn.c     events in, transactions out, callbacks
 *   cluster_static.c   epoch 1 of a members file
 *   cluster_view.c     copies for status and metrics
 *
 * What lies under `lock` is said below; all the rest is the thread's. No lock
 * is held while a callback runs.
 */
#ifndef WEFT_NODE_CLUSTER_CLUSTER_INTERNAL_H
#define WEFT_NODE_CLUSTER_CLUSTER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "node/cluster/cluster.h"
#include "node/cluster/shown.h"

#define WEFT_CLUSTER_SECOND_NS UINT64_C(1000000000)

enum { WEFT_CLUSTER_TEXT_BYTES = WEFT_ERR_TEXT_BYTES };

/* What another thread wants. */
typedef enum weft_intent_kind {
    WEFT_INTENT_STATE,
    WEFT_INTENT_LOADED,
    WEFT_INTENT_SWITCHED,
    WEFT_INTENT_SUSPECT,
} weft_intent_kind;

typedef struct weft_intent {
    weft_intent_kind kind;
    weft_member_state state;
    uint64_t epoch, incarnation;
    int64_t bytes;
    bool failed, suspected;
    char id[WEFT_ID_BYTES];
    char text[160];
} weft_intent;

/* A transaction that is under way. */
typedef struct weft_cluster_txn {
    bool pending;
    uint64_t tag;      /* as its owner gave it */
    const char *point; /* of failpoints: what it is about; NULL: nothing */
} weft_cluster_txn;

struct weft_cluster {
    weft_registry *registry;
    bool is_static;
    weft_member self; /* as started; id, role, group and stage never change */
    int32_t replicas;
    weft_cluster_ops ops;
    weft_placement_shape shape;
    bool *moe;
    int64_t *expert_bytes;
    pthread_t thread;

    weft_roster *roster;
    weft_agent *agent;           /* NULL: static */
    weft_controller *controller; /* NULL: does not control */
    weft_shown shown;
    weft_cluster_txn agent_txn, controller_txn;
    uint64_t told_epoch, told_first, told_last;
    weft_placement *placement; /* of told_epoch; a copy */
    bool told_fenced, reached, leased, listed, is_registered, published;
    uint64_t published_retired;
    uint64_t next_ns;      /* when a turn is due at the latest */
    uint64_t n_unreadable; /* as logged last */
    weft_controller_state controller_state; /* as logged last */
    /* Log lines that may still be written, and how many were not. */
    uint64_t log_ns;
    int32_t log_left;
    uint64_t n_unlogged;

    atomic_bool stop, emptied;

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    weft_intent *intents;
    int32_t n_intents, room_intents;
    bool registered, fenced, reachable;
    bool left; /* there is neither thread nor registry any more */
    uint64_t incarnation;
    char text[WEFT_CLUSTER_TEXT_BYTES]; /* why it is not registered */
    weft_cluster_view view;             /* to be copied */
};

/* cluster_turn.c: everything that is due, then waits for the registry. */
void weft_cluster_turn(weft_cluster *c);
/* Tells ops.epoch once about a placement that is committed. */
void weft_cluster_tell_epoch(weft_cluster *c, const weft_placement *placement);
bool weft_cluster_may_log(weft_cluster *c);
/* A weft_shown_fn; arg is the cluster. */
void weft_cluster_log_member(void *arg, const weft_member *member,
                             weft_shown_change change);

/* The intents since the last call; *n_out of them, to end with weft_mem_free.*/
weft_intent *weft_cluster_take_intents(weft_cluster *c, int32_t *n_out);

/* cluster_static.c: the same for a members file. */
void weft_cluster_static_turn(weft_cluster *c);

/* cluster_view.c: make the view anew. */
void weft_cluster_publish(weft_cluster *c, uint64_t retired);
void weft_cluster_set_registered(weft_cluster *c, uint64_t incarnation);
void weft_cluster_set_text(weft_cluster *c, const char *text);
/* It is not a member and will not be: logs and tells so. */
void weft_cluster_set_fenced(weft_cluster *c, const char *text);

#endif
