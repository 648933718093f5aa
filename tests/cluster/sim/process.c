/* Processes: agent and controller of each, and what an expert shard does. */
#include <string.h>

#include "node/base/check.h"
#include "node/base/hash.h"
#include "node/base/mem.h"
#include "tests/cluster/sim/world.h"

static void must(weft_status st)
{
    WEFT_ASSERT(st == WEFT_OK);
}

void process_start(struct world *w, struct node *n)
{
    const uint32_t gen = n->gen + 1;
    const struct node fresh = {
        .index = n->index, .role = n->role, .gen = gen, .alive = true};
    char id[WEFT_ID_BYTES];
    memcpy(id, n->id, sizeof id);
    *n = fresh;
    memcpy(n->id, id, sizeof id);
    weft_member self = {
        .role = n->role,
        .state = n->role == WEFT_ROLE_EXPERTS ? WEFT_MEMBER_JOINING
                                              : WEFT_MEMBER_SERVING,
        .group = n->role == WEFT_ROLE_LAYERS ? n->index - ROUTERS : 0,
        .n_stages = n->role == WEFT_ROLE_LAYERS,
        .config_hash = 1,
        .weights_hash = 2};
    memcpy(self.id, id, sizeof id);
    (void)snprintf(self.address, sizeof self.address, "%s:%u", id, gen);
    must(weft_roster_create(&w->shape, &n->roster, NULL));
    must(weft_agent_create(&self, &n->agent, NULL));
    const weft_controller_options options = {
        .shape = &w->shape, .id = id, .replicas = 1 + (int32_t)(w->seed % 2)};
    if (n->role == WEFT_ROLE_ROUTER)
        must(weft_controller_create(&options, &n->controller, NULL));
    n->client.must_list = true;
    n->client.heard_ns = w->now;
    trace(w, "%s starts (%u)", n->id, gen);
    post(w, w->now, EV_CLIENT, n->index, gen, 0, NULL);
    if (n->role == WEFT_ROLE_LAYERS)
        post(w, w->now, EV_TICK, n->index, gen, 0, NULL);
}

void process_end(struct world *w, struct node *n)
{
    trace(w, "%s ends", n->id);
    weft_controller_destroy(n->controller);
    weft_agent_destroy(n->agent);
    weft_roster_destroy(n->roster);
    for (int32_t i = 0; i < n->n_kept; i++) weft_placement_destroy(n->kept[i]);
    for (int32_t i = 0; i < n->n_maps; i++) weft_placement_destroy(n->maps[i]);
    weft_placement_destroy(n->map);
    n->map = NULL;
    n->n_kept = 0;
    n->n_maps = 0;
    n->controller = NULL;
    n->agent = NULL;
    n->roster = NULL;
    n->alive = false;
}

void process_wake(struct world *w, struct node *n)
{
    if (n->poll_at != 0 && n->poll_at <= w->now + MS) return;
    n->poll_at = w->now + draw(w, MS) + 1;
    post(w, n->poll_at, EV_POLL, n->index, n->gen, 0, NULL);
}

/* -- an expert shard ------------------------------------------------------- */

uint64_t toy_expert(int32_t layer, int32_t expert, uint64_t row)
{
    return weft_hash_mix(
        row ^ weft_hash_mix((uint64_t)layer * 1000 + (uint64_t)expert + 7));
}

/* Different for the slots of a row. */
int32_t toy_choice(int32_t layer, int32_t slot, uint64_t row)
{
    const uint64_t h = weft_hash_mix(row + (uint64_t)layer * 77);
    const int32_t first = (int32_t)(h % N_EXPERT);
    return slot == 0
               ? first
               : (first + 1 + (int32_t)((h >> 20) % (N_EXPERT - 1))) % N_EXPERT;
}

static void keep(struct node *n, const weft_placement *placement)
{
    if (n->n_kept == MAPS_MAX) {
        weft_placement_destroy(n->kept[0]);
        memmove(n->kept, n->kept + 1, (MAPS_MAX - 1) * sizeof *n->kept);
        n->n_kept--;
    }
    must(weft_placement_copy(placement, &n->kept[n->n_kept++], NULL));
}

static bool gives(const struct node *n, const weft_placement *p, int32_t layer,
                  int32_t expert)
{
    const int32_t at =
        weft_placement_find(p, n->id, weft_agent_self(n->agent)->incarnation);
    return at >= 0 && weft_placement_owns(p, at, layer, expert);
}

static void load_later(struct world *w, struct node *n, uint64_t epoch)
{
    const uint64_t time = chance(w, 30) && !w->calm
                              ? draw(w, 20 * S)
                              : 20 * MS + draw(w, 500 * MS);
    post(w, w->now + time, EV_LOADED, n->index, n->gen, epoch, NULL);
}

void experts_loaded(struct world *w, struct node *n, uint64_t epoch)
{
    const weft_placement *p = NULL;
    bool wrong = false;
    for (int32_t i = 0; i < n->n_kept; i++)
        if (n->kept[i]->epoch == epoch) p = n->kept[i];
    if (p == NULL) return;
    for (int32_t l = 0; l < LAYERS; l++)
        for (int32_t e = 0; w->shape.moe[l] && e < N_EXPERT; e++) {
            struct held *h = &n->held[l][e];
            if (!gives(n, p, l, e) || h->is) continue;
            /* A read that went wrong shows in the hash, and is done again. */
            *h = (struct held){.is = true, .is_wrong = chance(w, 20)};
            if (h->is_wrong && w->mutation != SIM_ACK_UNCHECKED) {
                *h = (struct held){.is = false};
                wrong = true;
            }
        }
    if (wrong) {
        load_later(w, n, epoch);
        return;
    }
    const bool fails = !w->calm && chance(w, 20);
    trace(w, "%s has loaded %d%s", n->id, (int)epoch, fails ? ", not" : "");
    weft_agent_loaded(n->agent, epoch, 1, fails ? "no memory" : NULL);
    if (!fails)
        weft_agent_set_state(n->agent, n->drains ? WEFT_MEMBER_DRAINING
                                                 : WEFT_MEMBER_SERVING);
    process_wake(w, n);
}

static void let_go(struct world *w, struct node *n, uint64_t retired)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < n->n_kept; i++)
        if (n->kept[i]->epoch > retired)
            n->kept[kept++] = n->kept[i];
        else
            weft_placement_destroy(n->kept[i]);
    n->n_kept = kept;
    for (int32_t l = 0; l < LAYERS; l++)
        for (int32_t e = 0; e < N_EXPERT; e++) {
            bool needed = false;
            for (int32_t i = 0; i < n->n_kept; i++)
                needed = needed || gives(n, n->kept[i], l, e);
            if (!needed) n->held[l][e] = (struct held){.is = false};
        }
    trace(w, "%s lets go of what is not above %d", n->id, (int)retired);
}

void experts_dispatch(struct world *w, struct node *n, struct rows *rows)
{
    const struct name *name = &rows->name;
    struct rows *out = weft_mem_new(1, sizeof *out);
    WEFT_ASSERT(out != NULL);
    *out = *rows;
    out->from = n->index;
    out->from_gen = n->gen;
    out->rejected = name->epoch < n->first || name->epoch > n->last;
    for (int32_t i = 0; i < rows->n && !out->rejected; i++)
        out->rejected = !n->held[name->layer][rows->pairs[i].expert].is;
    for (int32_t i = 0; i < rows->n && !out->rejected; i++) {
        struct pair *pair = &out->pairs[i];
        const struct held *h = &n->held[name->layer][pair->expert];
        if (!h->is) fail(w, "%s computes without weights", n->id);
        pair->value = toy_expert(name->layer, pair->expert, pair->value) ^
                      (uint64_t)h->is_wrong;
    }
    const int32_t to = rows->from;
    const uint32_t gen = rows->from_gen;
    if (w->cut[n->index][to] || (!w->calm && chance(w, 2))) {
        weft_mem_free(out);
        return;
    }
    const uint64_t at = w->now + delay(w) + draw(w, MS);
    if (!w->calm && chance(w, 20)) {
        struct rows *again = weft_mem_new(1, sizeof *again);
        WEFT_ASSERT(again != NULL);
        *again = *out;
        post(w, at + draw(w, 1500 * MS), EV_ANSWER, to, gen, 0, again);
    }
    post(w, at, EV_ANSWER, to, gen, 0, out);
}

/* -- turns ----------------------------------------------------------------- */

/* A bug on purpose: the controller is told that every lead has switched. */
static void pretend_switched(struct world *w, struct node *n)
{
    int64_t revision;
    const weft_member *members;
    const uint64_t epoch = weft_roster_epoch(n->roster, &revision);
    const int32_t n_members = weft_roster_members(n->roster, &members);
    for (int32_t i = 0; i < n_members && epoch > 0; i++) {
        char key[WEFT_KEY_BYTES];
        weft_buf value = {0};
        const weft_switched s = {.epoch = epoch,
                                 .group = (uint32_t)members[i].group,
                                 .incarnation = members[i].incarnation};
        if (members[i].role != WEFT_ROLE_LAYERS ||
            weft_switched_encode(&s, &value, NULL) != WEFT_OK)
            continue;
        const weft_registry_event event = {
            .kind = WEFT_REGISTRY_PUT,
            .key = weft_key_of_switched(epoch, s.group, s.incarnation, key),
            .value = {value.data, value.n},
            .revision = weft_roster_seen(n->roster)};
        const bool changed = weft_roster_apply(n->roster, &event);
        weft_buf_deinit(&value);
        if (changed) break; /* members have moved; the rest at the next turn */
    }
    (void)w;
}

static uint64_t run_agent(struct world *w, struct node *n)
{
    weft_txn txn;
    weft_agent_wants wants;
    weft_agent_turn(n->agent, n->roster, w->now, &txn, &wants);
    if (wants.prepare != NULL) {
        keep(n, wants.prepare);
        load_later(w, n, wants.prepare->epoch);
    }
    if (wants.commit != NULL) {
        if (wants.commit->epoch <= n->told_epoch)
            fail(w, "%s is told of epoch %d after %d", n->id,
                 (int)wants.commit->epoch, (int)n->told_epoch);
        n->told_epoch = wants.commit->epoch;
        n->told_hash = weft_placement_hash(wants.commit);
        if (n->role == WEFT_ROLE_LAYERS) lead_map(w, n, wants.commit);
    }
    if (wants.retired != 0) let_go(w, n, wants.retired);
    n->first = wants.epoch_first;
    n->last = wants.epoch_last;
    if (wants.write && n->client.txn_call == 0)
        client_submit(w, n, &txn, false);
    if (wants.fenced || (n->drains && wants.emptied)) {
        trace(w, "%s: %s", n->id, wants.fenced ? wants.text : "emptied");
        process_end(w, n);
        return UINT64_MAX;
    }
    return wants.next_ns;
}

/* Agent and controller have one transaction under way between them, as the
 * model of a client has room for one; who comes second asks again. */
void process_poll(struct world *w, struct node *n)
{
    weft_txn txn;
    uint64_t next = UINT64_MAX;
    n->poll_at = 0;
    if (n->client.txn_call == 0) next = run_agent(w, n);
    if (!n->alive) return;
    if (n->controller != NULL && n->client.txn_call == 0) {
        uint64_t at;
        if (w->mutation == SIM_RETIRE_EARLY) pretend_switched(w, n);
        if (weft_controller_turn(n->controller, n->roster, w->now, &txn, &at))
            client_submit(w, n, &txn, true);
        if (at < next) next = at;
    }
    if (next == UINT64_MAX) return;
    if (next < w->now + MS) next = w->now + MS;
    post(w, next, EV_POLL, n->index, n->gen, 0, NULL);
}
