/* What an agent writes: its key, acks, switches, suspicions. Each is written
 * when the roster shows that it is not there, and so again when it was lost. */
#include <stdio.h>
#include <string.h>

#include "node/cluster/agent_internal.h"

#define MS UINT64_C(1000000)
enum {
    HEAL_MS = 10 * 1000, /* longer than a lease: by then, who is dead is gone */
    HEAL_DOUBLINGS_MAX = 5,
};

static void compare(weft_txn *txn, const char *key, int64_t revision)
{
    weft_txn_compare *c = &txn->compares[txn->n_compares++];
    (void)snprintf(c->key, sizeof c->key, "%s", key);
    c->mod_revision = revision;
}

static void put(weft_txn *txn, const char *key, const weft_buf *value)
{
    weft_txn_write *w = &txn->writes[txn->n_writes++];
    *w = (weft_txn_write){.leased = true,
                          .value = {.data = value->data, .n = value->n}};
    (void)snprintf(w->key, sizeof w->key, "%s", key);
}

/* Only while our member key is as the roster shows it. */
static void compare_self(const weft_agent *a, const weft_roster *roster,
                         weft_txn *txn)
{
    char key[WEFT_KEY_BYTES];
    (void)weft_key_of_member(a->self.role, a->self.id, key);
    compare(txn, key, weft_roster_revision(roster, key));
}

/* -- the member ------------------------------------------------------------ */

static void raise_above(uint64_t *most, uint64_t incarnation)
{
    if (incarnation > *most) *most = incarnation;
}

/* The highest incarnation of our id that the roster tells of. */
static uint64_t incarnation_known(const weft_agent *a,
                                  const weft_roster *roster)
{
    uint64_t most = 0, epochs[64];
    const weft_ack *acks;
    const weft_suspicion *suspicions;
    const weft_member *m = weft_roster_find(roster, a->self.role, a->self.id);
    if (m != NULL) raise_above(&most, m->incarnation);
    const int32_t n_epochs = weft_roster_epochs(roster, epochs, 64);
    for (int32_t i = 0; i < n_epochs; i++) {
        const weft_placement *p = weft_roster_placement(roster, epochs[i]);
        const int32_t at =
            p != NULL ? weft_placement_find(p, a->self.id, 0) : -1;
        if (at >= 0) raise_above(&most, p->members[at].incarnation);
    }
    const int32_t n_acks = weft_roster_acks(roster, &acks);
    for (int32_t i = 0; i < n_acks; i++)
        if (strcmp(acks[i].id, a->self.id) == 0)
            raise_above(&most, acks[i].incarnation);
    const int32_t n = weft_roster_suspicions(roster, &suspicions);
    for (int32_t i = 0; i < n; i++)
        if (strcmp(suspicions[i].id, a->self.id) == 0)
            raise_above(&most, suspicions[i].incarnation);
    return most;
}

/* Whether the stored member says what we would. */
static bool is_as_stored(const weft_agent *a, const weft_member *m)
{
    return m != NULL && m->incarnation == a->self.incarnation &&
           m->state == a->self.state && m->epoch == a->self.epoch &&
           strcmp(m->address, a->self.address) == 0;
}

bool weft_agent_write_self(weft_agent *a, const weft_roster *roster,
                           weft_txn *txn)
{
    char key[WEFT_KEY_BYTES];
    const weft_member *m = weft_roster_find(roster, a->self.role, a->self.id);
    if (a->has_incarnation && is_as_stored(a, m)) return false;
    weft_member next = a->self;
    if (!a->has_incarnation) {
        next.incarnation = incarnation_known(a, roster) + 1;
        if (next.incarnation < a->incarnation_min)
            next.incarnation = a->incarnation_min;
    }
    if (weft_member_encode(&next, &a->value, NULL) != WEFT_OK) return false;
    (void)weft_key_of_member(next.role, next.id, key);
    compare(txn, key, weft_roster_revision(roster, key));
    put(txn, key, &a->value);
    a->registering = true;
    a->tried = next.incarnation;
    return true;
}

/* -- acks and switches ----------------------------------------------------- */

static bool has_ack(const weft_roster *roster, const weft_ack *ack)
{
    const weft_ack *acks;
    const int32_t n = weft_roster_acks(roster, &acks);
    for (int32_t i = 0; i < n; i++)
        if (acks[i].epoch == ack->epoch && strcmp(acks[i].id, ack->id) == 0)
            return acks[i].incarnation == ack->incarnation &&
                   acks[i].placement_hash == ack->placement_hash &&
                   acks[i].failed == ack->failed;
    return false;
}

bool weft_agent_write_ack(weft_agent *a, const weft_roster *roster,
                          weft_txn *txn)
{
    int64_t revision;
    const uint64_t committed = weft_roster_epoch(roster, &revision);
    for (int32_t i = 0; i < a->n_prepared; i++) {
        const weft_prepared *p = &a->prepared[i];
        const weft_placement *plan = weft_roster_placement(roster, p->epoch);
        char key[WEFT_KEY_BYTES], of[WEFT_KEY_BYTES];
        if (p->epoch <= committed || plan == NULL ||
            (!p->loaded && !p->failed) || p->hash != weft_placement_hash(plan))
            continue;
        weft_ack ack = {.epoch = p->epoch,
                        .incarnation = a->self.incarnation,
                        .placement_hash = p->hash,
                        .failed = p->failed,
                        .loaded_bytes = p->bytes};
        memcpy(ack.id, a->self.id, sizeof ack.id);
        (void)weft_text_line(p->text, ack.text, sizeof ack.text);
        if (has_ack(roster, &ack) ||
            weft_ack_encode(&ack, &a->value, NULL) != WEFT_OK)
            continue;
        (void)weft_key_of_placement(p->epoch, of);
        compare_self(a, roster, txn);
        compare(txn, of, weft_roster_revision(roster, of));
        put(txn, weft_key_of_ack(p->epoch, a->self.id, key), &a->value);
        return true;
    }
    return false;
}

bool weft_agent_write_switched(weft_agent *a, const weft_roster *roster,
                               weft_txn *txn)
{
    char key[WEFT_KEY_BYTES];
    int64_t revision;
    const weft_switched *all;
    const weft_switched ours = {.epoch = a->switched,
                                .group = (uint32_t)a->self.group,
                                .incarnation = a->self.incarnation};
    if (a->self.role != WEFT_ROLE_LAYERS || a->self.stage != 0 ||
        a->switched == 0 || a->switched <= weft_roster_retired(roster) ||
        a->switched > weft_roster_epoch(roster, &revision))
        return false;
    const int32_t n = weft_roster_switched(roster, &all);
    for (int32_t i = 0; i < n; i++)
        if (all[i].epoch == ours.epoch && all[i].group == ours.group &&
            all[i].incarnation == ours.incarnation)
            return false;
    if (weft_switched_encode(&ours, &a->value, NULL) != WEFT_OK) return false;
    compare_self(a, roster, txn);
    put(txn,
        weft_key_of_switched(ours.epoch, ours.group, ours.incarnation, key),
        &a->value);
    return true;
}

/* -- suspicions ------------------------------------------------------------ */

static weft_suspect *suspect_of(weft_agent *a, const char *id,
                                uint64_t incarnation)
{
    for (int32_t i = 0; i < a->n_suspects; i++)
        if (a->suspects[i].incarnation == incarnation &&
            strcmp(a->suspects[i].id, id) == 0)
            return &a->suspects[i];
    return NULL;
}

/* A place for another; NULL: there are too many at once. */
static weft_suspect *free_suspect(weft_agent *a)
{
    if (a->n_suspects < WEFT_SUSPECTS_MAX) {
        a->suspects[a->n_suspects] = (weft_suspect){.id = ""};
        return &a->suspects[a->n_suspects++];
    }
    for (int32_t i = 0; i < a->n_suspects; i++)
        if (!a->suspects[i].active) {
            a->suspects[i] = (weft_suspect){.id = ""};
            return &a->suspects[i];
        }
    return NULL;
}

void weft_agent_suspect(weft_agent *agent, const char *id, uint64_t incarnation,
                        bool suspected)
{
    weft_suspect *s = suspect_of(agent, id, incarnation);
    if (s == NULL && suspected && weft_id_is_valid(id) &&
        agent->self.role == WEFT_ROLE_LAYERS)
        s = free_suspect(agent);
    if (s != NULL && s->id[0] == '\0') {
        *s = (weft_suspect){.incarnation = incarnation};
        (void)snprintf(s->id, sizeof s->id, "%s", id);
    }
    if (s == NULL || s->active == suspected) return;
    s->active = suspected;
    s->without_ns = 0;
    s->times += suspected;
}

/* Its id may be that of members of other roles, ours among them. */
static bool is_member(const weft_roster *roster, const weft_suspect *s)
{
    const weft_member *const m =
        weft_roster_find(roster, WEFT_ROLE_EXPERTS, s->id);
    return m != NULL && m->incarnation == s->incarnation;
}

static uint64_t heal_ns(const weft_suspect *s)
{
    const int32_t doublings =
        s->times - 1 < HEAL_DOUBLINGS_MAX ? s->times - 1 : HEAL_DOUBLINGS_MAX;
    return (HEAL_MS * MS) << (doublings > 0 ? doublings : 0);
}

void weft_agent_age_suspects(weft_agent *a, const weft_roster *roster,
                             uint64_t now_ns, uint64_t *next_ns)
{
    int64_t revision;
    int32_t kept = 0;
    const weft_placement *committed =
        weft_roster_placement(roster, weft_roster_epoch(roster, &revision));
    if (!a->is_synced) return;
    for (int32_t i = 0; i < a->n_suspects; i++) {
        weft_suspect s = a->suspects[i];
        const bool is_without =
            committed != NULL &&
            weft_placement_find(committed, s.id, s.incarnation) < 0;
        if (!is_member(roster, &s) && is_without) continue; /* gone */
        if (!is_without) s.without_ns = 0;
        if (is_without && s.without_ns == 0) s.without_ns = now_ns + 1;
        if (s.active && is_without) {
            const uint64_t at = s.without_ns + heal_ns(&s);
            if (at <= now_ns)
                s.active = false;
            else if (at < *next_ns)
                *next_ns = at;
        }
        a->suspects[kept++] = s;
    }
    a->n_suspects = kept;
}

static bool withdraw(weft_agent *a, const weft_roster *roster, weft_txn *txn)
{
    const weft_suspicion *all;
    const int32_t n = weft_roster_suspicions(roster, &all);
    for (int32_t i = 0; i < n; i++) {
        if (strcmp(all[i].reporter, a->self.id) != 0) continue;
        const weft_suspect *s = suspect_of(a, all[i].id, all[i].incarnation);
        if (s != NULL && s->active) continue;
        weft_txn_write *w = &txn->writes[txn->n_writes++];
        *w = (weft_txn_write){.remove = true};
        (void)weft_key_of_suspect(all[i].id, a->self.id, w->key);
        compare_self(a, roster, txn);
        return true;
    }
    return false;
}

bool weft_agent_write_suspicions(weft_agent *a, const weft_roster *roster,
                                 weft_txn *txn)
{
    const weft_suspicion *all;
    const int32_t n = weft_roster_suspicions(roster, &all);
    /* Reports are known by the id alone; those of a layer shard of our name are
     * not ours to withdraw. */
    if (a->self.role != WEFT_ROLE_LAYERS) return false;
    for (int32_t i = 0; i < a->n_suspects; i++) {
        const weft_suspect *s = &a->suspects[i];
        char key[WEFT_KEY_BYTES];
        weft_suspicion value = {.incarnation = s->incarnation};
        bool there = false;
        if (!s->active || !is_member(roster, s)) continue;
        for (int32_t k = 0; k < n; k++)
            if (all[k].incarnation == s->incarnation &&
                strcmp(all[k].id, s->id) == 0 &&
                strcmp(all[k].reporter, a->self.id) == 0)
                there = true;
        if (there) continue;
        memcpy(value.id, s->id, sizeof value.id);
        memcpy(value.reporter, a->self.id, sizeof value.reporter);
        if (weft_suspicion_encode(&value, &a->value, NULL) != WEFT_OK) continue;
        compare_self(a, roster, txn);
        put(txn, weft_key_of_suspect(s->id, a->self.id, key), &a->value);
        return true;
    }
    return withdraw(a, roster, txn);
}
