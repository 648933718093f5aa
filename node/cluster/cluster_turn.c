#include <stdio.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/failpoint.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include "node/cluster/cluster_internal.h"
#include "node/cluster/values.h"

enum {
    LOG_BURST = 50, /* lines of a moment in which much happens */
    LOG_GAP_S = 5,
    AGENT_TAG = 1,
    CONTROLLER_TAG = 2,
};

/* --- log ----------------------------------------------------------------- */

bool weft_cluster_may_log(weft_cluster *c)
{
    const uint64_t now = weft_clock_now_ns();
    if (now >= c->log_ns) {
        if (c->n_unlogged > 0)
            weft_log(WEFT_LOG_INFO, "cluster", "lines_left_out", "n %llu",
                     (unsigned long long)c->n_unlogged);
        c->log_ns = now + LOG_GAP_S * WEFT_CLUSTER_SECOND_NS;
        c->log_left = LOG_BURST;
        c->n_unlogged = 0;
    }
    if (c->log_left > 0) {
        c->log_left--;
        return true;
    }
    c->n_unlogged++;
    return false;
}

void weft_cluster_log_member(void *arg, const weft_member *m,
                             weft_shown_change change)
{
    static const char *const events[] = {
        [WEFT_SHOWN_JOINED] = "member_joined",
        [WEFT_SHOWN_LEFT] = "member_left",
        [WEFT_SHOWN_LOST] = "member_suspected",
        [WEFT_SHOWN_BACK] = "member_back",
        [WEFT_SHOWN_STATE] = "member_state",
    };
    weft_cluster *c = arg;
    const bool bad = change == WEFT_SHOWN_LOST;
    if (!weft_cluster_may_log(c)) return;
    weft_log(bad ? WEFT_LOG_WARN : WEFT_LOG_INFO, "cluster", events[change],
             "id %s role %s state %s incarnation %llu", m->id,
             weft_role_name(m->role), weft_member_state_name(m->state),
             (unsigned long long)m->incarnation);
}

static void log_unreadable(weft_cluster *c)
{
    const char *reason = "";
    const uint64_t n = weft_roster_n_unreadable(c->roster, &reason);
    if (n == c->n_unreadable || !weft_cluster_may_log(c)) return;
    c->n_unreadable = n;
    weft_log(WEFT_LOG_WARN, "cluster", "values_unreadable",
             "n %llu reason \"%s\"", (unsigned long long)n, reason);
}

/* --- events -------------------------------------------------------------- */

static void take_txn(weft_cluster *c, const weft_registry_event *event,
                     uint64_t now_ns)
{
    const bool by_agent = event->tag == AGENT_TAG;
    weft_cluster_txn *txn = by_agent ? &c->agent_txn : &c->controller_txn;
    weft_registry_event copy = *event;
    const char *const point = txn->point;
    txn->pending = false;
    txn->point = NULL;
    copy.tag = txn->tag;
    if (by_agent)
        weft_agent_take(c->agent, &copy, now_ns);
    else
        weft_controller_take(c->controller, &copy, now_ns);
    if (event->status != WEFT_OK || point == NULL) return;
    if (strcmp(point, "plan") == 0) WEFT_FAILPOINT("controller.after_plan");
    if (strcmp(point, "commit") == 0) WEFT_FAILPOINT("controller.after_commit");
}

static void take_link(weft_cluster *c, const weft_registry_event *event)
{
    c->reached = event->status == WEFT_OK;
    weft_cluster_set_text(c, event->text);
    if (!c->reached)
        weft_log(WEFT_LOG_WARN, "cluster", "registry_lost", "reason \"%s\"",
                 event->text);
    else
        weft_log(WEFT_LOG_INFO, "cluster", "registry_reached", "");
}

static void take_lease(weft_cluster *c, const weft_registry_event *event)
{
    const bool leased = event->status == WEFT_OK;
    if (leased == c->leased) return;
    c->leased = leased;
    if (!leased)
        weft_log(WEFT_LOG_WARN, "cluster", "lease_lost", "reason \"%s\"",
                 event->text);
}

static void take(void *arg, const weft_registry_event *event)
{
    weft_cluster *c = arg;
    const uint64_t now = weft_clock_now_ns();
    (void)weft_roster_apply(c->roster, event);
    switch (event->kind) {
    case WEFT_REGISTRY_TXN: take_txn(c, event, now); return;
    case WEFT_REGISTRY_LINK: take_link(c, event); break;
    case WEFT_REGISTRY_LEASE: take_lease(c, event); break;
    default: break;
    }
    weft_agent_take(c->agent, event, now);
    if (c->controller != NULL) weft_controller_take(c->controller, event, now);
}

/* --- transactions -------------------------------------------------------- */

/* What the controller is about, for those who want to disturb it there. */
static const char *point_of(const weft_txn *txn)
{
    for (int32_t i = 0; i < txn->n_writes; i++) {
        const weft_txn_write *w = &txn->writes[i];
        weft_key key;
        if (w->remove) continue;
        switch (weft_key_parse(w->key, &key)) {
        case WEFT_KEY_PLACEMENT: return "plan";
        case WEFT_KEY_CURRENT: return "commit";
        case WEFT_KEY_RETIRED: return "retire";
        default: break;
        }
    }
    return NULL;
}

/* Whatever becomes of it, its owner gets a result. */
static void submit(weft_cluster *c, const weft_txn *txn, uint64_t tag)
{
    weft_cluster_txn *under_way =
        tag == AGENT_TAG ? &c->agent_txn : &c->controller_txn;
    weft_txn copy = *txn;
    weft_err err;
    *under_way = (weft_cluster_txn){.pending = true, .tag = txn->tag};
    if (tag == CONTROLLER_TAG) under_way->point = point_of(txn);
    copy.tag = tag;
    if (under_way->point != NULL && strcmp(under_way->point, "commit") == 0)
        WEFT_FAILPOINT("controller.before_commit");
    if (under_way->point != NULL && strcmp(under_way->point, "retire") == 0)
        WEFT_FAILPOINT("controller.before_retire");
    const weft_status st = c->registry->ops->submit(c->registry, &copy, &err);
    if (st == WEFT_OK) return;
    if (weft_cluster_may_log(c))
        weft_log(WEFT_LOG_ERROR, "cluster", "not_submitted", "reason \"%s\"",
                 err.text);
    take_txn(c,
             &(weft_registry_event){.kind = WEFT_REGISTRY_TXN,
                                    .tag = tag,
                                    .status = st == WEFT_INVALID_ARGUMENT
                                                  ? WEFT_FAILED_PRECONDITION
                                                  : WEFT_UNAVAILABLE,
                                    .text = err.text},
             weft_clock_now_ns());
}

/* --- intents ------------------------------------------------------------- */

static void take_intent(weft_cluster *c, const weft_intent *intent)
{
    switch (intent->kind) {
    case WEFT_INTENT_STATE:
        weft_agent_set_state(c->agent, intent->state);
        return;
    case WEFT_INTENT_LOADED:
        weft_agent_loaded(c->agent, intent->epoch, intent->bytes,
                          intent->failed ? intent->text : NULL);
        return;
    case WEFT_INTENT_SWITCHED:
        weft_agent_switched(c->agent, intent->epoch);
        return;
    case WEFT_INTENT_SUSPECT:
        weft_agent_suspect(c->agent, intent->id, intent->incarnation,
                           intent->suspected);
        return;
    }
}

/* --- callbacks ----------------------------------------------------------- */

void weft_cluster_tell_epoch(weft_cluster *c, const weft_placement *placement)
{
    weft_placement *copy;
    if (weft_placement_copy(placement, &copy, NULL) == WEFT_OK) {
        weft_placement_destroy(c->placement);
        c->placement = copy;
    } else {
        weft_log(WEFT_LOG_ERROR, "cluster", "view_stale",
                 "reason \"no memory\"");
    }
    c->told_epoch = placement->epoch;
    weft_log(WEFT_LOG_INFO, "cluster", "epoch_committed",
             "epoch %llu members %d", (unsigned long long)placement->epoch,
             placement->n_members);
    if (c->ops.epoch != NULL) c->ops.epoch(c->ops.arg, placement);
}

static void note_registered(weft_cluster *c, const weft_agent_wants *wants)
{
    const uint64_t incarnation = weft_agent_self(c->agent)->incarnation;
    if (!wants->registered || c->is_registered) {
        c->is_registered = wants->registered;
        return;
    }
    c->is_registered = true;
    weft_log(WEFT_LOG_INFO, "cluster", "registered",
             "id %s role %s incarnation %llu", c->self.id,
             weft_role_name(c->self.role), (unsigned long long)incarnation);
    weft_cluster_set_registered(c, incarnation);
}

/* Members as they are shown; whether they differ. */
static bool update_members(weft_cluster *c, bool is_well, uint64_t now_ns)
{
    bool changed = false;
    uint64_t next = UINT64_MAX;
    weft_err err;
    if (weft_shown_update(&c->shown, c->roster, is_well, now_ns, &changed,
                          &next, &err) != WEFT_OK) {
        weft_log(WEFT_LOG_ERROR, "cluster", "view_stale", "reason \"%s\"",
                 err.text);
        return false;
    }
    if (next < c->next_ns) c->next_ns = next;
    return changed;
}

static void tell(weft_cluster *c, const weft_agent_wants *wants,
                 bool members_changed)
{
    const weft_cluster_ops *ops = &c->ops;
    atomic_store(&c->emptied, wants->emptied);
    if (members_changed && ops->members != NULL)
        ops->members(ops->arg, c->shown.members, c->shown.n);
    if (wants->commit != NULL) weft_cluster_tell_epoch(c, wants->commit);
    if (wants->prepare != NULL && ops->prepare != NULL)
        ops->prepare(ops->arg, wants->prepare);
    if (wants->epoch_first != c->told_first ||
        wants->epoch_last != c->told_last) {
        c->told_first = wants->epoch_first;
        c->told_last = wants->epoch_last;
        if (ops->epochs != NULL)
            ops->epochs(ops->arg, c->told_first, c->told_last);
    }
    if (wants->retired != 0 && ops->retire != NULL)
        ops->retire(ops->arg, wants->retired);
    if (wants->fenced && !c->told_fenced) {
        c->told_fenced = true;
        weft_cluster_set_fenced(c, wants->text);
    }
}

/* --- turns --------------------------------------------------------------- */

static void log_controller(weft_cluster *c, const weft_controller_state *s)
{
    const weft_controller_state *before = &c->controller_state;
    if (s->elected != before->elected)
        weft_log(WEFT_LOG_INFO, "cluster",
                 s->elected ? "elected" : "not_elected", "id %s", c->self.id);
    if (s->n_plans != before->n_plans && weft_cluster_may_log(c))
        weft_log(WEFT_LOG_INFO, "cluster", "epoch_planned", "epoch %llu",
                 (unsigned long long)s->planned);
    if (s->n_rollbacks != before->n_rollbacks && weft_cluster_may_log(c))
        weft_log(WEFT_LOG_WARN, "cluster", "plan_rolled_back",
                 "rollbacks %llu reason \"%s\"",
                 (unsigned long long)s->n_rollbacks,
                 s->waiting[0] != '\0' ? s->waiting : before->waiting);
    if (strcmp(s->waiting, before->waiting) != 0 && s->waiting[0] != '\0' &&
        weft_cluster_may_log(c))
        weft_log(WEFT_LOG_INFO, "cluster", "waiting", "reason \"%s\"",
                 s->waiting);
}

static bool differs(const weft_controller_state *a,
                    const weft_controller_state *b)
{
    return a->elected != b->elected || a->planned != b->planned ||
           a->n_plans != b->n_plans || a->n_commits != b->n_commits ||
           a->n_rollbacks != b->n_rollbacks ||
           a->moved_bytes != b->moved_bytes ||
           a->moved_least != b->moved_least ||
           strcmp(a->waiting, b->waiting) != 0;
}

static void turn_controller(weft_cluster *c, uint64_t now_ns,
                            weft_controller_state *state_out)
{
    weft_txn txn;
    uint64_t next = UINT64_MAX;
    if (c->ops.in_use != NULL)
        weft_controller_set_in_use(c->controller, c->ops.in_use(c->ops.arg));
    if (weft_controller_turn(c->controller, c->roster, now_ns, &txn, &next))
        submit(c, &txn, CONTROLLER_TAG);
    if (next < c->next_ns) c->next_ns = next;
    weft_controller_get_state(c->controller, state_out);
}

/* Whether what status shows of it has changed. Who is fenced leaves it to its
 * successor, which would be elected under the same name. */
static bool control(weft_cluster *c, bool fenced, uint64_t now_ns)
{
    weft_controller_state state = c->controller_state;
    if (c->controller == NULL) return false;
    if (fenced) {
        state.elected = false;
        state.planned = 0;
        state.waiting[0] = '\0';
    } else {
        turn_controller(c, now_ns, &state);
    }
    const bool changed = differs(&state, &c->controller_state);
    if (changed) log_controller(c, &state);
    c->controller_state = state;
    return changed;
}

static void take_intents(weft_cluster *c)
{
    int32_t n;
    weft_intent *intents = weft_cluster_take_intents(c, &n);
    for (int32_t i = 0; i < n; i++) take_intent(c, &intents[i]);
    weft_mem_free(intents);
}

void weft_cluster_turn(weft_cluster *c)
{
    weft_txn txn;
    weft_agent_wants wants;
    const uint64_t now = weft_clock_now_ns();
    const bool reached = c->reached;
    c->next_ns = now + WEFT_CLUSTER_SECOND_NS;
    take_intents(c);
    weft_agent_turn(c->agent, c->roster, now, &txn, &wants);
    if (wants.next_ns < c->next_ns) c->next_ns = wants.next_ns;
    if (wants.write) submit(c, &txn, AGENT_TAG);
    const bool is_well = wants.registered && c->leased && c->reached;
    bool changed = update_members(c, is_well, now);
    tell(c, &wants, changed);
    changed |= control(c, wants.fenced, now) || wants.commit != NULL ||
               c->published_retired != weft_roster_retired(c->roster);
    log_unreadable(c);
    /* What is told about us is told after what status shows of it. */
    if (changed || !c->published) {
        c->published = true;
        c->published_retired = weft_roster_retired(c->roster);
        weft_cluster_publish(c, c->published_retired);
    }
    note_registered(c, &wants);
    c->registry->ops->poll(c->registry, c->next_ns, take, c);
    if (c->reached != reached) c->published = false;
}
