/* Epoch 1 of a members file: it follows from the members, so everybody computes
 * the same without a word. */
#include <string.h>

#include "node/base/clock.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include "node/cluster/cluster_internal.h"

static void take(void *arg, const weft_registry_event *event)
{
    weft_cluster *c = arg;
    if (event->kind == WEFT_REGISTRY_LINK)
        c->reached = event->status == WEFT_OK;
    if (weft_roster_apply(c->roster, event) &&
        event->kind == WEFT_REGISTRY_RELIST_END)
        c->listed = true;
}

static weft_status make_placement(weft_cluster *c, weft_err *err)
{
    const weft_member *members;
    const int32_t n = weft_roster_members(c->roster, &members);
    int32_t n_experts = 0;
    weft_placement_member *owners = weft_mem_new((size_t)n + 1, sizeof *owners);
    if (owners == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for the placement of experts");
    for (int32_t i = 0; i < n; i++) {
        if (members[i].role != WEFT_ROLE_EXPERTS) continue;
        weft_placement_member *owner = &owners[n_experts++];
        owner->incarnation = members[i].incarnation;
        memcpy(owner->id, members[i].id, sizeof owner->id);
        memcpy(owner->address, members[i].address, sizeof owner->address);
    }
    const weft_status st =
        weft_placement_make(&c->shape, owners, n_experts, c->replicas, NULL,
                            NULL, &c->placement, err);
    weft_mem_free(owners);
    if (st == WEFT_OK) c->placement->epoch = 1;
    return st;
}

/* Whether the file has us as we are. A router need not be in it. */
static weft_status check_self(const weft_cluster *c, weft_err *err)
{
    const weft_member *self = &c->self;
    const weft_member *m = weft_roster_find(c->roster, self->role, self->id);
    if (m == NULL && self->role == WEFT_ROLE_ROUTER) return WEFT_OK;
    if (m == NULL)
        return WEFT_FAIL(err, WEFT_FAILED_PRECONDITION,
                         "the members file has no %s %s",
                         weft_role_name(self->role), self->id);
    if (self->role == WEFT_ROLE_LAYERS &&
        (m->group != self->group || m->stage != self->stage ||
         m->n_stages != self->n_stages))
        return WEFT_FAIL(err, WEFT_FAILED_PRECONDITION,
                         "%s is group %d stage %d of %d, the members file says "
                         "group %d stage %d of %d",
                         self->id, self->group, self->stage, self->n_stages,
                         m->group, m->stage, m->n_stages);
    if (strcmp(m->address, self->address) != 0)
        weft_log(WEFT_LOG_WARN, "cluster", "address_differs",
                 "id %s own %s file %s", self->id, self->address, m->address);
    return WEFT_OK;
}

static void begin(weft_cluster *c)
{
    weft_err err;
    bool changed;
    uint64_t next;
    weft_status st = check_self(c, &err);
    if (st == WEFT_OK)
        st = weft_shown_update(&c->shown, c->roster, true, weft_clock_now_ns(),
                               &changed, &next, &err);
    const bool any_experts =
        st == WEFT_OK && make_placement(c, &err) == WEFT_OK;
    if (st != WEFT_OK) {
        weft_cluster_set_fenced(c, err.text);
        return;
    }
    if (any_experts) c->told_epoch = 1;
    weft_cluster_publish(c, 0);
    weft_cluster_set_registered(c, 1);
    weft_log(WEFT_LOG_INFO, "cluster", "static", "id %s members %d replicas %d",
             c->self.id, c->shown.n, c->replicas);
    if (c->ops.members != NULL)
        c->ops.members(c->ops.arg, c->shown.members, c->shown.n);
    if (!any_experts) {
        weft_log(WEFT_LOG_WARN, "cluster", "no_epoch", "reason \"%s\"",
                 err.text);
        return;
    }
    if (c->ops.epoch != NULL) c->ops.epoch(c->ops.arg, c->placement);
    if (c->self.role != WEFT_ROLE_EXPERTS) return;
    if (c->ops.prepare != NULL) c->ops.prepare(c->ops.arg, c->placement);
}

/* Who drains may go at once, since nobody takes over. */
static void take_intents(weft_cluster *c)
{
    int32_t n;
    weft_intent *intents = weft_cluster_take_intents(c, &n);
    for (int32_t i = 0; i < n; i++) {
        const weft_intent *intent = &intents[i];
        if (intent->kind == WEFT_INTENT_STATE &&
            intent->state == WEFT_MEMBER_DRAINING)
            atomic_store(&c->emptied, true);
        if (intent->kind == WEFT_INTENT_LOADED && !intent->failed &&
            c->ops.epochs != NULL)
            c->ops.epochs(c->ops.arg, 1, 1);
    }
    weft_mem_free(intents);
}

void weft_cluster_static_turn(weft_cluster *c)
{
    const bool before = c->listed;
    c->registry->ops->poll(
        c->registry, weft_clock_now_ns() + WEFT_CLUSTER_SECOND_NS, take, c);
    if (c->listed && !before) begin(c);
    take_intents(c);
}
