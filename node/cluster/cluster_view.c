#include <stdio.h>
#include <string.h>

#include "node/base/log.h"
#include "node/base/mem.h"
#include "node/cluster/cluster_internal.h"

/* (layer, expert) pairs that the committed epoch gives a member. */
static int32_t experts_of(const weft_placement *placement, const weft_member *m)
{
    if (placement == NULL || m->role != WEFT_ROLE_EXPERTS) return 0;
    const int32_t at = weft_placement_find(placement, m->id, m->incarnation);
    return at < 0 ? 0 : weft_placement_count(placement, at);
}

static weft_status copy_members(const weft_member *members,
                                const int32_t *experts, int32_t n,
                                weft_cluster_view *out, weft_err *err)
{
    out->members = weft_mem_new((size_t)n, sizeof *out->members);
    out->experts = weft_mem_new((size_t)n, sizeof *out->experts);
    if (out->members == NULL || out->experts == NULL) {
        weft_mem_free(out->members);
        weft_mem_free(out->experts);
        out->members = NULL;
        out->experts = NULL;
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for %d members", n);
    }
    if (n > 0) memcpy(out->members, members, (size_t)n * sizeof *members);
    if (n > 0 && experts != NULL)
        memcpy(out->experts, experts, (size_t)n * sizeof *experts);
    out->n_members = n;
    return WEFT_OK;
}

void weft_cluster_publish(weft_cluster *c, uint64_t retired)
{
    weft_cluster_view view = {.epoch = c->told_epoch,
                              .retired = retired,
                              .reachable = c->reached,
                              .controller = c->controller_state};
    if (copy_members(c->shown.members, NULL, c->shown.n, &view, NULL) !=
        WEFT_OK) {
        /* The last view stays; the next change tries again. */
        weft_log(WEFT_LOG_ERROR, "cluster", "view_stale",
                 "reason \"no memory\"");
        return;
    }
    for (int32_t i = 0; i < view.n_members; i++)
        view.experts[i] = experts_of(c->placement, &view.members[i]);
    (void)pthread_mutex_lock(&c->lock);
    weft_cluster_view before = c->view;
    c->view = view;
    c->reachable = view.reachable;
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
    weft_cluster_view_deinit(&before);
}

void weft_cluster_set_registered(weft_cluster *c, uint64_t incarnation)
{
    (void)pthread_mutex_lock(&c->lock);
    c->registered = true;
    c->incarnation = incarnation;
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
}

void weft_cluster_set_text(weft_cluster *c, const char *text)
{
    (void)pthread_mutex_lock(&c->lock);
    (void)snprintf(c->text, sizeof c->text, "%s", text);
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
}

void weft_cluster_set_fenced(weft_cluster *c, const char *text)
{
    (void)pthread_mutex_lock(&c->lock);
    c->fenced = true;
    (void)snprintf(c->text, sizeof c->text, "%s", text);
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
    weft_log(WEFT_LOG_ERROR, "cluster", "fenced", "reason \"%s\"", text);
    if (c->ops.fenced != NULL) c->ops.fenced(c->ops.arg, text);
}

weft_status weft_cluster_get_view(weft_cluster *c, weft_cluster_view *view_out,
                                  weft_err *err)
{
    (void)pthread_mutex_lock(&c->lock);
    weft_cluster_view view = c->view;
    const weft_status st = copy_members(c->view.members, c->view.experts,
                                        c->view.n_members, &view, err);
    (void)pthread_mutex_unlock(&c->lock);
    if (st == WEFT_OK) *view_out = view;
    return st;
}

void weft_cluster_view_deinit(weft_cluster_view *view)
{
    weft_mem_free(view->members);
    weft_mem_free(view->experts);
    *view = (weft_cluster_view){0};
}
