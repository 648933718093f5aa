/* shard.h - what shards of both roles have: the model's files, a link port, an
 * HTTP port, and a place in the cluster. shard_experts.c and shard_layers.c
 * build on it.
 *
 * Threads: the main one; weft_shard_fence and weft_shard_fail by any.
 */
#ifndef WEFT_NODE_APP_SHARD_H
#define WEFT_NODE_APP_SHARD_H

#include <pthread.h>
#include <stdatomic.h>

#include "node/app/backend.h"
#include "node/app/membership.h"
#include "node/obs/metrics.h"
#include "node/rpc/http/http.h"
#include "shard/link/near.h"
#include "shard/step/engine.h"

typedef struct weft_shard {
    const weft_options *options;
    weft_model_config config; /* of the whole model */
    weft_checkpoint *checkpoint;
    weft_engine_options engine; /* threads, ops and so on out of flags */
    weft_backend backend;       /* the main thread is bound to it */
    weft_near *near;            /* of links to the expert pool; NULL: none */
    weft_membership member;
    weft_link_server *links;
    pthread_mutex_t joined_lock;
    bool joined; /* under the lock: the cluster can be asked */
    char address[WEFT_ADDRESS_BYTES]; /* told to others */
    weft_http_server *http;
    weft_metrics *metrics;
    _Atomic bool ending, draining;
    pthread_mutex_t ending_lock;
    weft_err why; /* it ends by itself; whole once `ending` is set */
    /* What readiness and metrics are asked of: the role's. */
    bool (*is_ready)(struct weft_shard *shard, char *reason, size_t bytes);
    void (*refresh)(struct weft_shard *shard, weft_metrics *metrics);
    /* What follows the metrics; NULL: nothing. */
    weft_status (*print)(struct weft_shard *shard, weft_buf *out,
                         weft_err *err);
    uint64_t (*progress_ns)(struct weft_shard *shard); /* NULL: never hangs */
} weft_shard;

/* Config and tensors validated, ports looked at, the backend opened, membership
 * begun. */
WEFT_MUST_CHECK weft_status weft_shard_open(weft_shard *shard,
                                            const weft_options *options,
                                            weft_doing *doing_out,
                                            weft_err *err);
/* Device memory for rows between layer and expert shards, before anything else
 * is taken of it. Where it cannot be had, or is not wanted (--link-rows tcp),
 * rows go through the host, and a line says why. */
void weft_shard_open_near(weft_shard *shard);
/* Prometheus text: weft_near_links. */
WEFT_MUST_CHECK weft_status weft_shard_print_near(const weft_shard *shard,
                                                  weft_buf *out, weft_err *err);
/* Who is let in, and to whom; as in weft_link_server_options. */
typedef struct weft_shard_door {
    const weft_frame_limits *limits;
    weft_near *near; /* of these links; NULL: none */
    weft_status (*admit)(void *arg, const weft_hello *peer, weft_err *err);
    void (*take)(void *arg, weft_link *link, const weft_hello *peer);
    void *arg;
} weft_shard_door;
WEFT_MUST_CHECK weft_status weft_shard_listen(weft_shard *shard,
                                              const weft_shard_door *door,
                                              weft_err *err);
/* Registers with what the role adds to `self`, and tells links the incarnation.
 */
WEFT_MUST_CHECK weft_status weft_shard_join(weft_shard *shard,
                                            const weft_member *self,
                                            const weft_cluster_ops *ops,
                                            weft_doing *doing_out,
                                            weft_err *err);
/* HTTP and the ready line. */
WEFT_MUST_CHECK weft_status weft_shard_tell_ready(weft_shard *shard,
                                                  weft_err *err);
/* Another process has this one's id: it is to end. Any thread. */
void weft_shard_fence(weft_shard *shard, const char *text);
/* Its device is of no use any more: it is to end, and whoever starts it again
 * gets one that works. arg is the shard. Any thread. */
void weft_shard_fail(void *arg, const weft_err *device);
/* FAILED_PRECONDITION: fenced. UNAVAILABLE: the device. */
WEFT_MUST_CHECK weft_status weft_shard_check(weft_shard *shard, weft_err *err);
/* Until a signal, or it is to end by itself. Errors as of check. */
WEFT_MUST_CHECK weft_status weft_shard_wait(weft_shard *shard, weft_err *err);
/* In this order, the role's parts between: no links any more; then the rest. */
void weft_shard_close_links(weft_shard *shard);
void weft_shard_close(weft_shard *shard);

/* Whether a router is there: without one nobody plans, and nothing that waits
 * for a plan has an end. */
bool weft_shard_sees_router(weft_shard *shard);
/* Whether the registry answers. */
bool weft_shard_is_reachable(weft_shard *shard);

int weft_shard_run_experts(const weft_options *options);
int weft_shard_run_layers(const weft_options *options);

#endif
