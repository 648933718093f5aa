#include "node/cluster/agent.h"

#include <stdio.h>
#include <string.h>

#include "node/base/mem.h"
#include "node/cluster/agent_internal.h"

#define MS UINT64_C(1000000)
enum {
    AGAIN_MS = 100, /* after a transaction that did not happen */
    SEEN_MS = 1000, /* for the roster to show one that did */
    PLANS_MAX = 64,
};

weft_status weft_agent_create(const weft_member *self, weft_agent **agent_out,
                              weft_err *err)
{
    if (!weft_id_is_valid(self->id))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "the id %.80s (allowed: A-Z a-z 0-9 . _ -, 1 to %d)",
                         self->id, WEFT_ID_BYTES - 1);
    weft_agent *a = weft_mem_new(1, sizeof *a);
    if (a == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for an agent");
    a->self = *self;
    a->incarnation_min = self->incarnation > 0 ? self->incarnation : 1;
    a->self.incarnation = 0;
    a->self.epoch = 0;
    *agent_out = a;
    return WEFT_OK;
}

void weft_agent_destroy(weft_agent *agent)
{
    if (agent == NULL) return;
    weft_buf_deinit(&agent->value);
    weft_mem_free(agent);
}

const weft_member *weft_agent_self(const weft_agent *agent)
{
    return &agent->self;
}

void weft_agent_set_state(weft_agent *agent, weft_member_state state)
{
    if (agent->self.state != WEFT_MEMBER_DRAINING) agent->self.state = state;
}

void weft_agent_set_address(weft_agent *agent, const char *address)
{
    (void)snprintf(agent->self.address, sizeof agent->self.address, "%s",
                   address);
}

void weft_agent_switched(weft_agent *agent, uint64_t epoch)
{
    if (epoch > agent->switched) agent->switched = epoch;
}

weft_prepared *weft_agent_prepared(weft_agent *a, uint64_t epoch)
{
    for (int32_t i = 0; i < a->n_prepared; i++)
        if (a->prepared[i].epoch == epoch) return &a->prepared[i];
    return NULL;
}

void weft_agent_loaded(weft_agent *agent, uint64_t epoch, int64_t loaded_bytes,
                       const char *text)
{
    weft_prepared *p = weft_agent_prepared(agent, epoch);
    if (p == NULL) return;
    p->loaded = text == NULL;
    p->failed = text != NULL;
    p->bytes = loaded_bytes > 0 ? loaded_bytes : 0;
    (void)snprintf(p->text, sizeof p->text, "%s", text != NULL ? text : "");
}

/* -- answers --------------------------------------------------------------- */

static void take_result(weft_agent *a, const weft_registry_event *event,
                        uint64_t now_ns)
{
    a->writing = false;
    if (event->status != WEFT_OK) {
        a->wait_seen = INT64_MAX;
        a->wait_until_ns = now_ns + AGAIN_MS * MS;
        return;
    }
    a->wait_seen = event->revision;
    a->wait_until_ns = now_ns + SEEN_MS * MS;
    a->own_revision = event->revision;
    if (!a->registering) return;
    a->has_incarnation = true;
    a->self.incarnation = a->tried;
}

void weft_agent_take(weft_agent *agent, const weft_registry_event *event,
                     uint64_t now_ns)
{
    switch (event->kind) {
    case WEFT_REGISTRY_RELIST_END: agent->is_synced = true; break;
    case WEFT_REGISTRY_LEASE:
        agent->has_lease = event->status == WEFT_OK;
        agent->wait_until_ns = 0;
        break;
    case WEFT_REGISTRY_TXN:
        if (agent->writing && event->tag == agent->tag)
            take_result(agent, event, now_ns);
        break;
    default: break;
    }
}

/* -- what is to be done ---------------------------------------------------- */

/* Whether our key is there and is ours; sees when it has become another's. */
static bool look_at_self(weft_agent *a, const weft_roster *roster)
{
    const weft_member *m = weft_roster_find(roster, a->self.role, a->self.id);
    if (m == NULL || !a->has_incarnation) return false;
    const bool is_ours = m->incarnation == a->self.incarnation &&
                         strcmp(m->address, a->self.address) == 0;
    if (m->incarnation > a->self.incarnation ||
        (m->incarnation == a->self.incarnation && !is_ours &&
         m->mod_revision > a->own_revision && !a->writing)) {
        a->fenced = true;
        (void)snprintf(a->fenced_text, sizeof a->fenced_text,
                       "%.63s is another process since: incarnation %llu, "
                       "ours is %llu",
                       a->self.id, (unsigned long long)m->incarnation,
                       (unsigned long long)a->self.incarnation);
    }
    return is_ours;
}

static int32_t place_of(const weft_agent *a, const weft_placement *placement)
{
    return a->has_incarnation
               ? weft_placement_find(placement, a->self.id, a->self.incarnation)
               : -1;
}

static void note_prepared(weft_agent *a, const weft_placement *placement,
                          uint64_t hash)
{
    weft_prepared *p = weft_agent_prepared(a, placement->epoch);
    if (p == NULL && a->n_prepared == WEFT_PREPARED_MAX) {
        memmove(a->prepared, a->prepared + 1,
                (WEFT_PREPARED_MAX - 1) * sizeof *a->prepared);
        a->n_prepared--;
    }
    if (p == NULL) p = &a->prepared[a->n_prepared++];
    *p = (weft_prepared){.epoch = placement->epoch, .hash = hash};
}

/* Plans that are over without ever having been committed: nobody asks for them,
 * and they must not take the place of what is served. */
static void forget_rolled_back(weft_agent *a, const weft_roster *roster,
                               uint64_t committed)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < a->n_prepared; i++) {
        const uint64_t epoch = a->prepared[i].epoch;
        if (epoch > committed && epoch > a->told_epoch &&
            weft_roster_placement(roster, epoch) == NULL)
            continue;
        a->prepared[kept++] = a->prepared[i];
    }
    a->n_prepared = kept;
}

/* A placement that gives us something and was not handed out as it is. */
static bool is_to_prepare(weft_agent *a, const weft_placement *placement)
{
    if (placement == NULL || place_of(a, placement) < 0) return false;
    const weft_prepared *p = weft_agent_prepared(a, placement->epoch);
    return p == NULL || p->hash != weft_placement_hash(placement);
}

/* The committed one first, then what is planned. */
static const weft_placement *
to_prepare(weft_agent *a, const weft_roster *roster, uint64_t committed)
{
    uint64_t epochs[PLANS_MAX];
    const weft_placement *p = weft_roster_placement(roster, committed);
    if (a->self.role != WEFT_ROLE_EXPERTS) return NULL;
    if (is_to_prepare(a, p)) return p;
    const int32_t n = weft_roster_epochs(roster, epochs, PLANS_MAX);
    for (int32_t i = 0; i < n; i++) {
        p = weft_roster_placement(roster, epochs[i]);
        if (epochs[i] > committed && is_to_prepare(a, p)) return p;
    }
    return NULL;
}

/* Each committed epoch once, and never one below. Two placements under one
 * number are possible only if a store was lost and filled again by somebody who
 * did not know of the first; saying that a later one was seen asks for that. */
static const weft_placement *to_commit(weft_agent *a,
                                       const weft_placement *committed)
{
    if (committed == NULL || committed->epoch < a->told_epoch) return NULL;
    const uint64_t hash = weft_placement_hash(committed);
    if (committed->epoch == a->told_epoch) {
        if (hash != a->told_hash && a->self.epoch == a->told_epoch)
            a->self.epoch++;
        return NULL;
    }
    a->told_epoch = committed->epoch;
    a->told_hash = hash;
    if (a->self.epoch < committed->epoch) a->self.epoch = committed->epoch;
    return committed;
}

/* Epochs that are over; not before the committed one is loaded, so that nothing
 * is let go of that it needs. */
static uint64_t to_retire(weft_agent *a, const weft_roster *roster,
                          const weft_placement *committed)
{
    uint64_t retired = weft_roster_retired(roster);
    if (a->self.role != WEFT_ROLE_EXPERTS || committed == NULL) return 0;
    if (retired >= committed->epoch) retired = committed->epoch - 1;
    if (retired <= a->told_retired) return 0;
    if (place_of(a, committed) >= 0) {
        const weft_prepared *p = weft_agent_prepared(a, committed->epoch);
        if (p == NULL || !p->loaded) return 0;
    }
    a->told_retired = retired;
    int32_t kept = 0;
    for (int32_t i = 0; i < a->n_prepared; i++)
        if (a->prepared[i].epoch > retired)
            a->prepared[kept++] = a->prepared[i];
    a->n_prepared = kept;
    return retired;
}

/* Nothing that is committed, planned, or may still be used names us. */
static bool is_emptied(const weft_agent *a, const weft_roster *roster,
                       uint64_t committed)
{
    uint64_t epochs[PLANS_MAX];
    if (a->self.role != WEFT_ROLE_EXPERTS ||
        a->self.state != WEFT_MEMBER_DRAINING || !a->is_synced)
        return false;
    if (a->told_epoch > committed) return false; /* the store was lost */
    const uint64_t retired = weft_roster_retired(roster);
    const int32_t n = weft_roster_epochs(roster, epochs, PLANS_MAX);
    for (int32_t i = 0; i < n; i++) {
        const weft_placement *p = weft_roster_placement(roster, epochs[i]);
        if (epochs[i] > retired && p != NULL && place_of(a, p) >= 0)
            return false;
    }
    return true;
}

static void set_epochs(const weft_agent *a, weft_agent_wants *wants)
{
    if (a->self.role != WEFT_ROLE_EXPERTS) return;
    for (int32_t i = 0; i < a->n_prepared; i++) {
        const weft_prepared *p = &a->prepared[i];
        if (!p->loaded || p->epoch <= a->told_retired) continue;
        if (wants->epoch_first == 0 || p->epoch < wants->epoch_first)
            wants->epoch_first = p->epoch;
        if (p->epoch > wants->epoch_last) wants->epoch_last = p->epoch;
    }
}

static bool write_something(weft_agent *a, const weft_roster *roster,
                            weft_agent_wants *wants, uint64_t now_ns,
                            weft_txn *txn)
{
    if (!a->has_lease || !a->is_synced || a->writing) return false;
    if (now_ns < a->wait_until_ns && weft_roster_seen(roster) < a->wait_seen) {
        if (a->wait_until_ns < wants->next_ns)
            wants->next_ns = a->wait_until_ns;
        return false;
    }
    *txn = (weft_txn){.tag = a->tag + 1};
    a->registering = false;
    const bool writes =
        weft_agent_write_self(a, roster, txn) ||
        (wants->registered && (weft_agent_write_ack(a, roster, txn) ||
                               weft_agent_write_switched(a, roster, txn) ||
                               weft_agent_write_suspicions(a, roster, txn)));
    if (!writes) return false;
    a->tag++;
    a->writing = true;
    return true;
}

void weft_agent_turn(weft_agent *agent, const weft_roster *roster,
                     uint64_t now_ns, weft_txn *txn_out,
                     weft_agent_wants *wants_out)
{
    weft_agent *const a = agent;
    int64_t revision;
    weft_agent_wants wants = {.next_ns = UINT64_MAX};
    if (a->is_synced) wants.registered = look_at_self(a, roster);
    if (a->fenced) {
        wants.fenced = true;
        wants.registered = false;
        (void)snprintf(wants.text, sizeof wants.text, "%s", a->fenced_text);
        *wants_out = wants;
        return;
    }
    const uint64_t epoch = weft_roster_epoch(roster, &revision);
    const weft_placement *committed = weft_roster_placement(roster, epoch);
    forget_rolled_back(a, roster, epoch);
    wants.prepare = to_prepare(a, roster, epoch);
    if (wants.prepare != NULL)
        note_prepared(a, wants.prepare, weft_placement_hash(wants.prepare));
    wants.commit = to_commit(a, committed);
    wants.retired = to_retire(a, roster, committed);
    wants.emptied = is_emptied(a, roster, epoch);
    set_epochs(a, &wants);
    weft_agent_age_suspects(a, roster, now_ns, &wants.next_ns);
    wants.write = write_something(a, roster, &wants, now_ns, txn_out);
    /* There may be another. */
    if (wants.prepare != NULL) wants.next_ns = now_ns;
    *wants_out = wants;
}
