#include "node/cluster/cluster.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "node/base/clock.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include "node/cluster/cluster_internal.h"

/* How long a store that has lost its keys may take to have them all again. */
#define HOLD_NS (5 * WEFT_CLUSTER_SECOND_NS)
/* Giving the lease back. */
#define GOODBYE_NS (WEFT_CLUSTER_SECOND_NS * 3 / 2)

enum { SUSPECTS_MAX = 4096 };

/* --- beginning and end --------------------------------------------------- */

static void close_registry(weft_cluster *c)
{
    if (c->registry != NULL)
        c->registry->ops->destroy(c->registry,
                                  weft_clock_now_ns() + GOODBYE_NS);
    c->registry = NULL;
}

static void release(weft_cluster *c)
{
    weft_cluster_view_deinit(&c->view);
    weft_shown_deinit(&c->shown);
    weft_agent_destroy(c->agent);
    weft_controller_destroy(c->controller);
    weft_roster_destroy(c->roster);
    weft_placement_destroy(c->placement);
    close_registry(c);
    (void)pthread_cond_destroy(&c->changed);
    (void)pthread_mutex_destroy(&c->lock);
    weft_mem_free(c->intents);
    weft_mem_free(c->moe);
    weft_mem_free(c->expert_bytes);
    weft_mem_free(c);
}

static weft_status copy_shape(weft_cluster *c,
                              const weft_placement_shape *shape, weft_err *err)
{
    const size_t n = shape->n_layer > 0 ? (size_t)shape->n_layer : 0;
    c->shape = *shape;
    c->moe = weft_mem_new(n, sizeof *c->moe);
    c->expert_bytes = weft_mem_new(n, sizeof *c->expert_bytes);
    if (c->moe == NULL || c->expert_bytes == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for the shape of the model");
    if (n > 0) memcpy(c->moe, shape->moe, n * sizeof *c->moe);
    if (n > 0 && shape->expert_bytes != NULL)
        memcpy(c->expert_bytes, shape->expert_bytes,
               n * sizeof *c->expert_bytes);
    c->shape.moe = c->moe;
    c->shape.expert_bytes =
        shape->expert_bytes != NULL ? c->expert_bytes : NULL;
    return WEFT_OK;
}

/* Above those of all that had the id before, the registry having forgotten
 * them or not, as long as clocks of machines are not years apart. */
static uint64_t first_incarnation(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec > 0
               ? (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000
               : 1;
}

static weft_status
make_parts(weft_cluster *c, const weft_cluster_options *options, weft_err *err)
{
    WEFT_TRY(copy_shape(c, &options->shape, err));
    WEFT_TRY(weft_roster_create(&c->shape, &c->roster, err));
    if (c->is_static) {
        c->replicas = weft_registry_static_replicas(c->registry);
        return WEFT_OK;
    }
    if (c->self.incarnation == 0) c->self.incarnation = first_incarnation();
    WEFT_TRY(weft_agent_create(&c->self, &c->agent, err));
    if (!options->controls) return WEFT_OK;
    const weft_controller_options controller = {
        .shape = &c->shape, .id = c->self.id, .replicas = options->replicas};
    return weft_controller_create(&controller, &c->controller, err);
}

static void *run(void *arg)
{
    weft_cluster *c = arg;
    while (!atomic_load(&c->stop)) {
        if (c->is_static)
            weft_cluster_static_turn(c);
        else
            weft_cluster_turn(c);
    }
    return NULL;
}

static void init_lock(weft_cluster *c)
{
    pthread_condattr_t attr;
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&c->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
}

weft_status weft_cluster_start(const weft_cluster_options *options,
                               weft_cluster **cluster_out, weft_err *err)
{
    weft_cluster *c = weft_mem_new(1, sizeof *c);
    if (c == NULL) {
        options->registry->ops->destroy(options->registry, 0);
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for the cluster's thread");
    }
    c->registry = options->registry;
    c->is_static = options->is_static;
    c->self = options->self;
    c->replicas = options->replicas;
    c->ops = options->ops;
    c->shown.hold_ns = HOLD_NS;
    c->shown.tell = weft_cluster_log_member;
    c->shown.arg = c;
    init_lock(c);
    weft_status st = make_parts(c, options, err);
    if (st == WEFT_OK && pthread_create(&c->thread, NULL, run, c) != 0)
        st = WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                       "no thread for the cluster could be had");
    if (st != WEFT_OK) {
        release(c);
        return st;
    }
    *cluster_out = c;
    return WEFT_OK;
}

void weft_cluster_leave(weft_cluster *c)
{
    if (c == NULL || c->left) return;
    atomic_store(&c->stop, true);
    c->registry->ops->wake(c->registry);
    (void)pthread_join(c->thread, NULL);
    (void)pthread_mutex_lock(&c->lock);
    c->left = true;
    (void)pthread_mutex_unlock(&c->lock);
    close_registry(c);
}

void weft_cluster_stop(weft_cluster *c)
{
    if (c == NULL) return;
    weft_cluster_leave(c);
    release(c);
}

/* --- waiting ------------------------------------------------------------- */

static weft_status why_not(const weft_cluster *c, weft_err *err)
{
    if (c->fenced)
        return WEFT_FAIL(err, WEFT_FAILED_PRECONDITION, "%s", c->text);
    if (!c->reachable)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "%s",
                         c->text[0] != '\0' ? c->text
                                            : "the registry does not answer");
    return WEFT_FAIL(err, WEFT_DEADLINE_EXCEEDED,
                     "%s could not be registered in time", c->self.id);
}

weft_status weft_cluster_wait_registered(weft_cluster *c, uint64_t deadline_ns,
                                         uint64_t *incarnation_out,
                                         weft_err *err)
{
    const struct timespec at = {(time_t)(deadline_ns / WEFT_CLUSTER_SECOND_NS),
                                (long)(deadline_ns % WEFT_CLUSTER_SECOND_NS)};
    int timed_out = 0;
    weft_status st = WEFT_OK;
    (void)pthread_mutex_lock(&c->lock);
    while (!c->registered && !c->fenced && timed_out == 0)
        timed_out = pthread_cond_timedwait(&c->changed, &c->lock, &at);
    if (c->registered && !c->fenced)
        *incarnation_out = c->incarnation;
    else
        st = why_not(c, err);
    (void)pthread_mutex_unlock(&c->lock);
    return st;
}

/* --- intents ------------------------------------------------------------- */

/* What it replaces: of suspicions of one member only the last counts, and there
 * may be one with every step. */
static weft_intent *same(weft_cluster *c, const weft_intent *intent)
{
    for (int32_t i = 0; i < c->n_intents; i++) {
        weft_intent *other = &c->intents[i];
        if (other->kind != intent->kind) continue;
        if (intent->kind == WEFT_INTENT_STATE) return other;
        if (intent->kind == WEFT_INTENT_SUSPECT &&
            other->incarnation == intent->incarnation &&
            strcmp(other->id, intent->id) == 0)
            return other;
    }
    return NULL;
}

static weft_intent *place_for(weft_cluster *c, const weft_intent *intent)
{
    weft_intent *found = same(c, intent);
    if (found != NULL) return found;
    if (c->n_intents == SUSPECTS_MAX) return NULL;
    if (c->n_intents == c->room_intents) {
        const int32_t room = c->room_intents > 0 ? 2 * c->room_intents : 8;
        weft_intent *grown =
            weft_mem_resize(c->intents, (size_t)room, sizeof *c->intents);
        if (grown == NULL) return NULL;
        c->intents = grown;
        c->room_intents = room;
    }
    weft_intent *const place = &c->intents[c->n_intents++];
    *place = (weft_intent){.kind = intent->kind};
    return place;
}

/* Nothing replaces that: the agent would not hear of it. */
static bool drains(const weft_intent *intent)
{
    return intent->kind == WEFT_INTENT_STATE &&
           intent->state == WEFT_MEMBER_DRAINING;
}

static void want(weft_cluster *c, const weft_intent *intent)
{
    (void)pthread_mutex_lock(&c->lock);
    const bool first = c->n_intents == 0, heard = !c->left;
    weft_intent *place = heard ? place_for(c, intent) : NULL;
    if (place != NULL && !drains(place)) *place = *intent;
    /* Under the lock: the registry ends only when nobody is here. */
    if (place != NULL && first) c->registry->ops->wake(c->registry);
    (void)pthread_mutex_unlock(&c->lock);
    if (heard && place == NULL)
        weft_log(WEFT_LOG_ERROR, "cluster", "intent_lost", "kind %d",
                 (int)intent->kind);
}

weft_intent *weft_cluster_take_intents(weft_cluster *c, int32_t *n_out)
{
    (void)pthread_mutex_lock(&c->lock);
    weft_intent *const intents = c->intents;
    *n_out = c->n_intents;
    c->intents = NULL;
    c->n_intents = c->room_intents = 0;
    (void)pthread_mutex_unlock(&c->lock);
    return intents;
}

void weft_cluster_set_state(weft_cluster *c, weft_member_state state)
{
    want(c, &(weft_intent){.kind = WEFT_INTENT_STATE, .state = state});
}

void weft_cluster_loaded(weft_cluster *c, uint64_t epoch, int64_t loaded_bytes,
                         const char *text)
{
    weft_intent intent = {.kind = WEFT_INTENT_LOADED,
                          .epoch = epoch,
                          .bytes = loaded_bytes,
                          .failed = text != NULL};
    if (text != NULL)
        (void)snprintf(intent.text, sizeof intent.text, "%s", text);
    want(c, &intent);
}

void weft_cluster_switched(weft_cluster *c, uint64_t epoch)
{
    want(c, &(weft_intent){.kind = WEFT_INTENT_SWITCHED, .epoch = epoch});
}

void weft_cluster_suspect(weft_cluster *c, const char *id, uint64_t incarnation,
                          bool suspected)
{
    weft_intent intent = {.kind = WEFT_INTENT_SUSPECT,
                          .incarnation = incarnation,
                          .suspected = suspected};
    (void)snprintf(intent.id, sizeof intent.id, "%s", id);
    want(c, &intent);
}

bool weft_cluster_is_emptied(const weft_cluster *c)
{
    return atomic_load(&c->emptied);
}
