/* What must always hold, and what must hold once faults are over. */
#include <string.h>

#include "tests/cluster/sim/world.h"

/* How long something must have been there for others to know it. */
#define KNOWN_NS (2 * S)

static weft_span span_of(const struct blob *blob)
{
    return (weft_span){blob->data, blob->n};
}

/* The member key of a process, in the store for long enough; NULL: none. */
static const struct store_key *key_of(const struct world *w,
                                      const struct node *n, weft_member *out)
{
    char key[WEFT_KEY_BYTES];
    const struct store_key *k =
        store_find(w, weft_key_of_member(n->role, n->id, key));
    if (k == NULL || !n->alive ||
        weft_member_decode(span_of(k->is.value), out, NULL) != WEFT_OK ||
        out->incarnation != weft_agent_self(n->agent)->incarnation)
        return NULL;
    return k;
}

static bool is_known(const struct world *w, const struct node *n,
                     weft_member *out)
{
    const struct store_key *k = key_of(w, n, out);
    return k != NULL && k->since_ns + KNOWN_NS < w->now;
}

static weft_placement *placement_in(const struct world *w,
                                    const struct change *change)
{
    weft_placement *p = NULL;
    if (change != NULL &&
        weft_placement_decode(&w->shape, span_of(change->value), &p, NULL) !=
            WEFT_OK)
        p = NULL;
    return p;
}

void check_commit(struct world *w, int32_t by, uint64_t epoch,
                  const struct change *placement)
{
    const struct store_key *holder = store_find(w, WEFT_KEY_TEXT_CONTROLLER);
    if (holder == NULL || holder->by != by)
        fail(w, "%s commits epoch %d, and is not the controller",
             w->nodes[by].id, (int)epoch);
    weft_placement *p = placement_in(w, placement);
    if (p == NULL) {
        fail(w, "epoch %d is committed without a placement", (int)epoch);
        return;
    }
    trace(w, "%s commits %d", w->nodes[by].id, (int)epoch);
    const uint64_t hash = weft_placement_hash(p);
    for (int32_t i = 0; i < NODES; i++) {
        const struct node *n = &w->nodes[i];
        weft_member m;
        if (!is_known(w, n, &m)) continue;
        if (n->told_epoch > epoch ||
            (n->told_epoch == epoch && n->told_hash != hash))
            fail(w, "epoch %d is committed, and %s has seen %d%s", (int)epoch,
                 n->id, (int)n->told_epoch,
                 n->told_epoch == epoch ? " with another placement" : "");
    }
    weft_placement_destroy(p);
}

/* Nothing is over that a lead still uses of whom the controller knows. (One of
 * whom it does not know, since a change was lost, is refused by those who have
 * let go, and begins its step again.) */
void check_retired(struct world *w, int32_t by, uint64_t retired)
{
    for (int32_t i = ROUTERS; i < ROUTERS + LEADS; i++) {
        const struct node *n = &w->nodes[i];
        weft_member m;
        if (!is_known(w, n, &m) || n->epoch == 0 || n->epoch > retired)
            continue;
        const weft_roster *roster = w->nodes[by].roster;
        const weft_member *seen =
            roster != NULL ? weft_roster_find(roster, n->role, n->id) : NULL;
        if (seen == NULL || seen->incarnation != m.incarnation) continue;
        fail(w, "epoch %d is retired, and %s is of %d", (int)retired, n->id,
             (int)n->epoch);
    }
}

static uint64_t number_of(const struct world *w, const char *key)
{
    uint64_t number = 0;
    const struct store_key *k = store_find(w, key);
    if (k != NULL &&
        weft_number_decode(span_of(k->is.value), &number, NULL) != WEFT_OK)
        number = 0;
    return number;
}

static const char *experts_reason(const struct world *w,
                                  const weft_placement *p)
{
    int32_t n_serving = 0;
    for (int32_t i = ROUTERS + LEADS; i < NODES; i++) {
        const struct node *n = &w->nodes[i];
        if (!n->alive) continue;
        if (n->drains) return "an expert shard still drains";
        const int32_t at = weft_placement_find(
            p, n->id, weft_agent_self(n->agent)->incarnation);
        if (at < 0) return "an expert shard has no place";
        n_serving++;
        for (int32_t l = 0; l < LAYERS; l++)
            for (int32_t e = 0; e < N_EXPERT; e++)
                if (weft_placement_owns(p, at, l, e) && !n->held[l][e].is)
                    return "an expert shard lacks experts";
    }
    return n_serving == p->n_members ? NULL
                                     : "somebody who has gone has a place";
}

static const char *keys_reason(const struct world *w, uint64_t epoch)
{
    for (int32_t i = 0; i < w->store.n; i++) {
        weft_key key;
        switch (weft_key_parse(w->store.keys[i].is.key, &key)) {
        case WEFT_KEY_SUSPECT: return "a suspicion is left";
        case WEFT_KEY_PLACEMENT:
        case WEFT_KEY_ACK:
        case WEFT_KEY_SWITCHED:
            if (key.epoch != epoch) return "a key of another epoch is left";
            break;
        default: break;
        }
    }
    return NULL;
}

static const char *nodes_reason(const struct world *w, uint64_t epoch)
{
    int32_t n_alive = 0, n_keys = 0;
    for (int32_t i = 0; i < NODES; i++) {
        const struct node *n = &w->nodes[i];
        weft_member m;
        n_alive += n->alive;
        if (n->alive && key_of(w, n, &m) == NULL)
            return "a process has no member key";
        if (n->alive && n->role == WEFT_ROLE_LAYERS && n->epoch != epoch)
            return "a lead has not switched";
        if (n->alive && n->controller != NULL) {
            weft_controller_state s;
            weft_controller_get_state(n->controller, &s);
            if (s.planned != 0) return "an epoch is planned";
        }
    }
    for (int32_t i = 0; i < w->store.n; i++)
        n_keys += strncmp(w->store.keys[i].is.key, "members/", 8) == 0;
    return n_keys == n_alive ? NULL : "a member key is left";
}

static const char *reason_of(const struct world *w)
{
    const uint64_t epoch = number_of(w, WEFT_KEY_TEXT_CURRENT);
    char key[WEFT_KEY_BYTES];
    if (!requests_done(w)) return "requests have not ended";
    if (epoch == 0) return "no epoch is committed";
    const struct store_key *k =
        store_find(w, weft_key_of_placement(epoch, key));
    weft_placement *p = placement_in(w, k != NULL ? &k->is : NULL);
    if (p == NULL) return "the epoch has no placement";
    const char *reason = experts_reason(w, p);
    weft_placement_destroy(p);
    if (reason == NULL) reason = keys_reason(w, epoch);
    if (reason == NULL) reason = nodes_reason(w, epoch);
    if (reason == NULL && number_of(w, WEFT_KEY_TEXT_RETIRED) != epoch - 1)
        reason = "an epoch is not retired";
    return reason;
}

const char *converge_reason(struct world *w)
{
    if (w->looked_ns != 0 && w->now < w->looked_ns + 100 * MS) return w->reason;
    w->looked_ns = w->now;
    w->reason = w->now < w->calm_ns + 6 * S ? "" : reason_of(w);
    return w->reason;
}

void check_end(struct world *w)
{
    for (int32_t i = 0; i < ROUTERS; i++) {
        weft_controller_state s;
        if (w->nodes[i].controller == NULL) continue;
        weft_controller_get_state(w->nodes[i].controller, &s);
        w->report.n_commits += s.n_commits;
        w->report.n_rollbacks += s.n_rollbacks;
    }
}
