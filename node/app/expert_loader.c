#include "node/app/expert_loader.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/failpoint.h"
#include "node/base/log.h"
#include "node/base/mem.h"

/* The committed one, the one it replaces, the one that is prepared, and room
 * for leads that are slow to switch. */
enum { KEPT_MAX = 16 };

struct weft_expert_loader {
    weft_expert_loader_options options;
    char id[WEFT_ID_BYTES];
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool started;
    /* Under the lock. */
    bool stop;
    weft_placement *kept[KEPT_MAX]; /* by rising epoch */
    int32_t n_kept;
    uint64_t committed; /* the highest that is known to be */
    uint64_t wanted;    /* epoch to load; 0: none */
    bool sweep;         /* something may have to go */
};

static void forget(weft_expert_loader *l, int32_t i)
{
    weft_placement_destroy(l->kept[i]);
    l->n_kept--;
    memmove(&l->kept[i], &l->kept[i + 1],
            (size_t)(l->n_kept - i) * sizeof *l->kept);
    l->sweep = true;
}

static const weft_placement *find_kept(const weft_expert_loader *l,
                                       uint64_t epoch)
{
    for (int32_t i = 0; i < l->n_kept; i++)
        if (l->kept[i]->epoch == epoch) return l->kept[i];
    return NULL;
}

static bool owned(const weft_placement *p, const char *id, int32_t layer,
                  int32_t expert)
{
    const int32_t member = weft_placement_find(p, id, 0);
    return member >= 0 && weft_placement_owns(p, member, layer, expert);
}

/* Whether any placement that counts gives it to us. */
static bool is_needed(weft_expert_loader *l, int32_t layer, int32_t expert)
{
    bool needed = false;
    (void)pthread_mutex_lock(&l->lock);
    for (int32_t i = 0; i < l->n_kept && !needed; i++)
        needed = owned(l->kept[i], l->id, layer, expert);
    (void)pthread_mutex_unlock(&l->lock);
    return needed;
}

/* The shape is that of any placement, the model's. */
static void sweep(weft_expert_loader *l, int32_t n_layer, int32_t n_expert)
{
    int32_t n = 0;
    for (int32_t layer = 0; layer < n_layer; layer++)
        for (int32_t e = 0; e < n_expert; e++) {
            if (!weft_expert_store_holds(l->options.store, layer, e) ||
                is_needed(l, layer, e))
                continue;
            if (n++ == 0) WEFT_FAILPOINT("experts.before_drop");
            weft_expert_store_drop(l->options.store, layer, e);
        }
    if (n > 0) weft_log(WEFT_LOG_INFO, "experts", "dropped", "experts %d", n);
}

/* Whether loading for `epoch` has still a purpose. */
static bool goes_on(weft_expert_loader *l, uint64_t epoch)
{
    (void)pthread_mutex_lock(&l->lock);
    const bool on = !l->stop && (l->wanted == 0 || l->wanted == epoch);
    (void)pthread_mutex_unlock(&l->lock);
    return on;
}

static weft_status load_one(weft_expert_loader *l, int32_t layer, int32_t e,
                            weft_err *err)
{
    uint64_t hash = 0;
    if (WEFT_FAILPOINT_FAILS("experts.mid_load"))
        return WEFT_FAIL(err, WEFT_UNAVAILABLE,
                         "expert %d of layer %d: told "
                         "to fail",
                         e, layer);
    return weft_expert_store_load(l->options.store, layer, e, &hash, err);
}

/* CANCELLED: overtaken, or the end. */
static weft_status load_all(weft_expert_loader *l, const weft_placement *p,
                            weft_err *err)
{
    const int32_t self = weft_placement_find(p, l->id, 0);
    if (self < 0) return WEFT_OK;
    for (int32_t layer = 0; layer < p->n_layer; layer++)
        for (int32_t e = 0; e < p->n_expert; e++) {
            if (!weft_placement_owns(p, self, layer, e)) continue;
            if (!goes_on(l, p->epoch)) return WEFT_CANCELLED;
            WEFT_TRY(load_one(l, layer, e, err));
        }
    return WEFT_OK;
}

static void load(weft_expert_loader *l, const weft_placement *p)
{
    weft_err err = {0};
    weft_expert_store_stats before, after;
    const uint64_t from_ns = weft_clock_now_ns();
    WEFT_FAILPOINT("experts.before_load");
    weft_expert_store_get_stats(l->options.store, &before);
    const weft_status st = load_all(l, p, &err);
    weft_expert_store_get_stats(l->options.store, &after);
    if (st == WEFT_CANCELLED) return;
    const int64_t bytes = after.loaded_bytes - before.loaded_bytes;
    const double seconds = (double)(weft_clock_now_ns() - from_ns) * 1e-9;
    if (st == WEFT_OK)
        weft_log(WEFT_LOG_INFO, "experts", "loaded",
                 "epoch %llu experts %lld read_bytes %lld seconds %.3f",
                 (unsigned long long)p->epoch, (long long)after.n_experts,
                 (long long)bytes, seconds);
    else
        weft_log(WEFT_LOG_WARN, "experts", "not_loaded",
                 "epoch %llu reason \"%s\"", (unsigned long long)p->epoch,
                 err.text);
    WEFT_FAILPOINT("experts.after_load");
    WEFT_FAILPOINT("experts.before_ack");
    l->options.loaded(l->options.arg, p->epoch, bytes,
                      st == WEFT_OK ? NULL : err.text);
    WEFT_FAILPOINT("experts.after_ack");
}

/* What to do next, waited for; false: the end. *copy_out is the caller's; NULL:
 * nothing is to be loaded. */
static bool next(weft_expert_loader *l, weft_placement **copy_out,
                 bool *sweep_out)
{
    *copy_out = NULL;
    (void)pthread_mutex_lock(&l->lock);
    while (!l->stop && l->wanted == 0 && !l->sweep)
        (void)pthread_cond_wait(&l->changed, &l->lock);
    const bool goes = !l->stop;
    const weft_placement *const p = find_kept(l, l->wanted);
    if (goes && p != NULL && weft_placement_copy(p, copy_out, NULL) != WEFT_OK)
        weft_log(WEFT_LOG_ERROR, "experts", "no_memory", "epoch %llu",
                 (unsigned long long)l->wanted);
    l->wanted = 0;
    *sweep_out = l->sweep;
    l->sweep = false;
    (void)pthread_mutex_unlock(&l->lock);
    return goes;
}

static void *run(void *arg)
{
    weft_expert_loader *const l = arg;
    int32_t n_layer = 0, n_expert = 0;
    weft_placement *p = NULL;
    bool sweeps = false;
    while (next(l, &p, &sweeps)) {
        if (p != NULL) {
            n_layer = p->n_layer;
            n_expert = p->n_expert;
        }
        if (sweeps) sweep(l, n_layer, n_expert);
        if (p != NULL) load(l, p);
        weft_placement_destroy(p);
    }
    weft_placement_destroy(p);
    return NULL;
}

weft_status weft_expert_loader_start(const weft_expert_loader_options *options,
                                     weft_expert_loader **loader_out,
                                     weft_err *err)
{
    weft_expert_loader *const l = weft_mem_new(1, sizeof *l);
    if (l == NULL) return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory");
    l->options = *options;
    (void)snprintf(l->id, sizeof l->id, "%s", options->id);
    (void)pthread_mutex_init(&l->lock, NULL);
    (void)pthread_cond_init(&l->changed, NULL);
    const int code = pthread_create(&l->thread, NULL, run, l);
    l->started = code == 0;
    if (code != 0) {
        weft_expert_loader_stop(l);
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "cannot start the loading thread: %s", strerror(code));
    }
    *loader_out = l;
    return WEFT_OK;
}

void weft_expert_loader_stop(weft_expert_loader *l)
{
    if (l == NULL) return;
    (void)pthread_mutex_lock(&l->lock);
    l->stop = true;
    (void)pthread_cond_signal(&l->changed);
    (void)pthread_mutex_unlock(&l->lock);
    if (l->started) (void)pthread_join(l->thread, NULL);
    while (l->n_kept > 0) forget(l, 0);
    (void)pthread_cond_destroy(&l->changed);
    (void)pthread_mutex_destroy(&l->lock);
    weft_mem_free(l);
}

/* What was prepared before and never committed has been rolled back. */
static void forget_rolled_back(weft_expert_loader *l, uint64_t epoch)
{
    for (int32_t i = l->n_kept - 1; i >= 0; i--)
        if (l->kept[i]->epoch == epoch || l->kept[i]->epoch > l->committed)
            forget(l, i);
}

weft_status weft_expert_loader_prepare(weft_expert_loader *l,
                                       const weft_placement *placement,
                                       weft_err *err)
{
    weft_placement *copy = NULL;
    WEFT_TRY(weft_placement_copy(placement, &copy, err));
    (void)pthread_mutex_lock(&l->lock);
    forget_rolled_back(l, copy->epoch);
    if (l->n_kept == KEPT_MAX) forget(l, 0);
    l->kept[l->n_kept++] = copy;
    l->wanted = copy->epoch;
    (void)pthread_cond_signal(&l->changed);
    (void)pthread_mutex_unlock(&l->lock);
    return WEFT_OK;
}

void weft_expert_loader_commit(weft_expert_loader *l, uint64_t epoch)
{
    (void)pthread_mutex_lock(&l->lock);
    if (epoch > l->committed) l->committed = epoch;
    (void)pthread_mutex_unlock(&l->lock);
}

void weft_expert_loader_retire(weft_expert_loader *l, uint64_t epoch)
{
    (void)pthread_mutex_lock(&l->lock);
    for (int32_t i = l->n_kept - 1; i >= 0; i--)
        if (l->kept[i]->epoch <= epoch) forget(l, i);
    if (l->sweep) (void)pthread_cond_signal(&l->changed);
    (void)pthread_mutex_unlock(&l->lock);
}
