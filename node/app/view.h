/* view.h - what computes behind a process that serves clients, as its service
 * and its gauges see it: an engine of its own, or the groups of a cluster.
 *
 * Threads: any, at once.
 */
#ifndef WEFT_NODE_APP_VIEW_H
#define WEFT_NODE_APP_VIEW_H

#include "node/base/arena.h"
#include "node/obs/metrics.h"
#include "proto/messages.h"
#include "shard/step/engine.h"

typedef struct weft_view_load {
    weft_kv_stats kv; /* sums over all groups */
    /* What each kind of row could still take if no other did. */
    int64_t kv_free[WEFT_N_KV_KINDS];
} weft_view_load;

typedef struct weft_view {
    void (*get_load)(void *arg, weft_view_load *load_out);
    /* NULL: a step is completed now and then, or there is nothing to do. */
    const char *(*why_unhealthy)(void *arg, uint64_t now_ns);
    /* Whether a request that comes now would be computed; else reason_out. */
    bool (*can_serve)(void *arg, char *reason_out, size_t reason_bytes);
    uint64_t (*weights_hash)(void *arg); /* 0: not known yet */
    /* Everything but `load`; what it points to lives in the arena. */
    weft_status (*get_cluster)(void *arg, weft_arena *arena,
                               weft_cluster_info *cluster_out, weft_err *err);
    /* Before metrics are printed: sets what is known here; and what follows
     * them. Either may be NULL. HTTP's thread. */
    void (*refresh)(void *arg, weft_metrics *metrics);
    weft_status (*print)(void *arg, weft_buf *out, weft_err *err);
    void *arg;
} weft_view;

/* A step that takes longer than this has hung: the slowest ones that are seen,
 * a full prefill chunk of a large model on a small CPU, take a tenth. */
#define WEFT_STEP_HANGS_NS UINT64_C(120000000000)

/* Whether the engine hangs, by a snapshot of it: its loop turns several times a
 * second when it is idle, too, so what counts is the last turn alone. The
 * snapshot of a step that never ends may be an idle turn's, taken before it. */
bool weft_view_step_hangs(const weft_engine_load *load, uint64_t now_ns);

/* An engine of this process, which is a whole cluster by itself. */
typedef struct weft_engine_view {
    weft_engine *engine; /* borrowed */
    uint64_t weights_hash;
} weft_engine_view;
weft_view weft_engine_view_of(weft_engine_view *own);

/* Load as GetLoad tells it, but for requests. */
void weft_view_load_info(const weft_view *view, weft_load_info *info_out);

#endif
