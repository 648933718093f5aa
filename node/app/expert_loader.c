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
    struct {
        weft_placement *placement;
        bool done;    /* loading has ended */
    } kept[KEPT_MAX]; /* in the order of their coming */
    int32_t n_kept;
    uint64_t committed; /* the highest that is known to be */
    bool sweep;         /* something may have to go */
};

static void forget(weft_expert_loader *l, int32_t i)
{
    weft_placement_destroy(l->kept[i].placement);
    l->n_kept--;
    memmove(&l->kept[i], &l->kept[i + 1],
            (size_t)(l->n_kept - i) * sizeof *l->kept);
    l->sweep = true;
}

/* -1: it counts no more. */
static int32_t find_kept(const weft_expert_loader *l, uint64_t epoch)
{
    for (int32_t i = 0; i < l->n_kept; i++)
        if (l->kept[i].placement->epoch == epoch) return i;
    return -1;
}

/* All in (above, below) but `but`. */
static void forget_between(weft_expert_loader *l, uint64_t above,
                           uint64_t below, uint64_t but)
{
    for (int32_t i = l->n_kept - 1; i >= 0; i--) {
        const uint64_t epoch = l->kept[i].placement->epoch;
        if (epoch > above && epoch < below && epoch != but) forget(l, i);
    }
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
        needed = owned(l->kept[i].placement, l->id, layer, expert);
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
    const bool on = !l->stop && find_kept(l, epoch) >= 0;
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

/* CANCELLED: it counts no more, or the end. */
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

/* Plans that may have been rolled back make room for this one. */
static weft_status load_with_room(weft_expert_loader *l,
                                  const weft_placement *p, weft_err *err)
{
    weft_status st = load_all(l, p, err);
    if (st != WEFT_RESOURCE_EXHAUSTED) return st;
    (void)pthread_mutex_lock(&l->lock);
    forget_between(l, l->committed, UINT64_MAX, p->epoch);
    const bool freed = l->sweep;
    l->sweep = false;
    (void)pthread_mutex_unlock(&l->lock);
    if (!freed) return st;
    sweep(l, p->n_layer, p->n_expert);
    return load_all(l, p, err);
}

/* What could not be loaded will not be committed. */
static void end_load(weft_expert_loader *l, uint64_t epoch, bool held)
{
    (void)pthread_mutex_lock(&l->lock);
    const int32_t i = find_kept(l, epoch);
    if (i >= 0) l->kept[i].done = true;
    if (i >= 0 && !held && epoch > l->committed) forget(l, i);
    (void)pthread_mutex_unlock(&l->lock);
}

static void tell_failed(const weft_expert_loader *l, const weft_err *why)
{
    if (l->options.failed != NULL) l->options.failed(l->options.arg, why);
}

static void load(weft_expert_loader *l, const weft_placement *p)
{
    weft_err err = {0};
    weft_expert_store_stats before, after;
    const uint64_t from_ns = weft_clock_now_ns();
    WEFT_FAILPOINT("experts.before_load");
    weft_expert_store_get_stats(l->options.store, &before);
    const weft_status st = load_with_room(l, p, &err);
    weft_expert_store_get_stats(l->options.store, &after);
    end_load(l, p->epoch, st == WEFT_OK);
    if (st == WEFT_INTERNAL) tell_failed(l, &err);
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

/* Under the lock: the one to load next; -1: none. */
static int32_t due(const weft_expert_loader *l)
{
    for (int32_t i = 0; i < l->n_kept; i++)
        if (!l->kept[i].done) return i;
    return -1;
}

/* What to do next, waited for; false: the end. *copy_out is the caller's; NULL:
 * nothing is to be loaded. */
static bool next(weft_expert_loader *l, weft_placement **copy_out,
                 bool *sweep_out)
{
    *copy_out = NULL;
    (void)pthread_mutex_lock(&l->lock);
    while (!l->stop && due(l) < 0 && !l->sweep)
        (void)pthread_cond_wait(&l->changed, &l->lock);
    const bool goes = !l->stop;
    const int32_t i = due(l);
    if (goes && i >= 0 &&
        weft_placement_copy(l->kept[i].placement, copy_out, NULL) != WEFT_OK) {
        weft_log(WEFT_LOG_ERROR, "experts", "no_memory", "epoch %llu",
                 (unsigned long long)l->kept[i].placement->epoch);
        forget(l, i);
    }
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
    weft_err err = {0};
    const weft_memory *const memory = l->options.memory;
    if (memory != NULL && weft_memory_bind(memory, &err) != WEFT_OK)
        tell_failed(l, &err);
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
    if (memory != NULL) weft_memory_unbind(memory);
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

/* Of more than can be kept: a plan that nobody has committed since, else the
 * oldest; never the committed one. */
static int32_t least_needed(const weft_expert_loader *l)
{
    int32_t oldest = 0;
    for (int32_t i = 0; i < l->n_kept; i++)
        if (l->kept[i].placement->epoch > l->committed) return i;
    for (int32_t i = 0; i < l->n_kept; i++)
        if (l->kept[i].placement->epoch < l->kept[oldest].placement->epoch)
            oldest = i;
    return oldest;
}

weft_status weft_expert_loader_prepare(weft_expert_loader *l,
                                       const weft_placement *placement,
                                       weft_err *err)
{
    weft_placement *copy = NULL;
    WEFT_TRY(weft_placement_copy(placement, &copy, err));
    (void)pthread_mutex_lock(&l->lock);
    const int32_t same = find_kept(l, copy->epoch);
    if (same >= 0) forget(l, same);
    if (l->n_kept == KEPT_MAX) forget(l, least_needed(l));
    l->kept[l->n_kept].placement = copy;
    l->kept[l->n_kept].done = false;
    l->n_kept++;
    (void)pthread_cond_signal(&l->changed);
    (void)pthread_mutex_unlock(&l->lock);
    return WEFT_OK;
}

void weft_expert_loader_commit(weft_expert_loader *l, uint64_t epoch)
{
    (void)pthread_mutex_lock(&l->lock);
    if (epoch > l->committed) {
        forget_between(l, l->committed, epoch, 0); /* never committed */
        l->committed = epoch;
    }
    if (l->sweep) (void)pthread_cond_signal(&l->changed);
    (void)pthread_mutex_unlock(&l->lock);
}

void weft_expert_loader_retire(weft_expert_loader *l, uint64_t epoch)
{
    (void)pthread_mutex_lock(&l->lock);
    forget_between(l, 0, epoch + 1, 0);
    if (l->sweep) (void)pthread_cond_signal(&l->changed);
    (void)pthread_mutex_unlock(&l->lock);
}
