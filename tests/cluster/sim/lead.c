/* A lead: links to expert shards, steps, and the requests that it computes. */
#include <string.h>

#include "node/base/check.h"
#include "node/base/hash.h"
#include "node/base/mem.h"
#include "tests/cluster/sim/world.h"

enum {
    TICK_MS = 50,
    SILENT_MS = 750,   /* a peer that owes, or whose pulse is not heard */
    NO_LINK_MS = 1500, /* a peer of the newest map that cannot be dialled */
    AGAIN_MS = 10,
};

/* -- links ----------------------------------------------------------------- */

static struct node *expert(struct world *w, int32_t k)
{
    return &w->nodes[ROUTERS + LEADS + k];
}

/* The newest map that names it. */
static uint64_t wanted(const struct node *n, const char *id)
{
    for (int32_t i = n->n_maps - 1; i >= 0; i--) {
        const int32_t at = weft_placement_find(n->maps[i], id, 0);
        if (at >= 0) return n->maps[i]->members[at].incarnation;
    }
    return 0;
}

static bool names(const weft_placement *p, const char *id, uint64_t incarnation)
{
    return p != NULL && weft_placement_find(p, id, incarnation) >= 0;
}

static bool is_that(const struct world *w, const struct node *e,
                    uint64_t incarnation)
{
    return e->alive && (weft_agent_self(e->agent)->incarnation == incarnation ||
                        w->mutation == SIM_NO_INCARNATION);
}

static bool is_heard(const struct world *w, const struct node *n,
                     const struct node *e)
{
    return !w->cut[n->index][e->index] && !w->cut[e->index][n->index] &&
           e->paused_until <= w->now;
}

static void suspect(struct world *w, struct node *n, int32_t k, bool is)
{
    struct peer *p = &n->peers[k];
    if (!is && w->mutation == SIM_SUSPECT_FOR_EVER) return;
    p->suspected = is;
    weft_agent_suspect(n->agent, expert(w, k)->id, p->incarnation, is);
    trace(w, "%s %s %s", n->id, is ? "suspects" : "trusts", expert(w, k)->id);
    process_wake(w, n);
}

static void dispatch(struct world *w, struct node *n, int32_t only);
static void give_up(struct world *w, struct node *n);

static void break_link(struct world *w, struct node *n, int32_t k)
{
    struct peer *p = &n->peers[k];
    bool owes = false;
    p->connected = false;
    p->dial_ns = w->now + 50 * MS;
    if (!p->suspected && n->n_maps > 0 &&
        (names(n->maps[n->n_maps - 1], expert(w, k)->id, p->incarnation) ||
         names(n->map, expert(w, k)->id, p->incarnation)))
        suspect(w, n, k, true);
    for (int32_t i = 0; n->stepping && i < n->n_pairs; i++)
        owes = owes || n->owner[i] == k;
    if (owes) dispatch(w, n, k);
}

static void look_at_peer(struct world *w, struct node *n, int32_t k)
{
    struct node *e = expert(w, k);
    struct peer *p = &n->peers[k];
    const uint64_t incarnation = wanted(n, e->id);
    if (incarnation != p->incarnation) {
        if (p->connected) break_link(w, n, k);
        *p = (struct peer){.incarnation = incarnation};
    }
    if (incarnation == 0) return;
    const bool heard = is_heard(w, n, e), that = is_that(w, e, incarnation);
    if (heard && that) p->broken_ns = 0;
    if ((!heard || !that) && p->broken_ns == 0) p->broken_ns = w->now;
    if (p->connected) {
        /* A reset comes at once, silence takes its time. */
        if ((heard && !that) ||
            (!heard && w->now > p->broken_ns + SILENT_MS * MS))
            break_link(w, n, k);
        return;
    }
    if (heard && that && w->now >= p->dial_ns) {
        p->connected = true;
        if (p->suspected) suspect(w, n, k, false);
    } else if (p->broken_ns != 0 && !p->suspected &&
               w->now > p->broken_ns + NO_LINK_MS * MS &&
               names(n->maps[n->n_maps - 1], e->id, incarnation)) {
        suspect(w, n, k, true);
    }
}

/* -- maps ------------------------------------------------------------------ */

void lead_map(struct world *w, struct node *n, const weft_placement *map)
{
    weft_placement *copy = NULL;
    if (n->n_maps == MAPS_MAX) {
        weft_placement_destroy(n->maps[0]);
        memmove(n->maps, n->maps + 1, (MAPS_MAX - 1) * sizeof(void *));
        n->n_maps--;
    }
    WEFT_ASSERT(weft_placement_copy(map, &copy, NULL) == WEFT_OK);
    n->maps[n->n_maps++] = copy;
    post(w, w->now + MS, EV_TICK, n->index, n->gen, 1, NULL);
}

/* A connected owner, the first in the map's order; -1: none. */
static int32_t owner_of(const struct world *w, const struct node *n,
                        const weft_placement *map, int32_t layer,
                        int32_t expert_index)
{
    for (int32_t r = 0; r < map->n_replicas; r++) {
        const uint16_t at =
            map->owners[(layer * N_EXPERT + expert_index) * map->n_replicas +
                        r];
        if (at == WEFT_NO_OWNER) break;
        for (int32_t k = 0; k < EXPERTS; k++)
            if (n->peers[k].connected &&
                n->peers[k].incarnation == map->members[at].incarnation &&
                strcmp(w->nodes[ROUTERS + LEADS + k].id, map->members[at].id) ==
                    0)
                return k;
    }
    return -1;
}

static bool is_whole(const struct world *w, const struct node *n,
                     const weft_placement *map)
{
    for (int32_t l = 0; l < LAYERS; l++)
        for (int32_t e = 0; w->shape.moe[l] && e < N_EXPERT; e++)
            if (owner_of(w, n, map, l, e) < 0) return false;
    return true;
}

/* The newest whole map, never one below the last step's. */
static const weft_placement *choose(const struct world *w, const struct node *n)
{
    for (int32_t i = n->n_maps - 1; i >= 0; i--)
        if (n->maps[i]->epoch >= n->epoch && is_whole(w, n, n->maps[i]))
            return n->maps[i];
    return NULL;
}

static void adopt(struct world *w, struct node *n, const weft_placement *map)
{
    if (n->map != NULL && n->map->epoch == map->epoch) return;
    weft_placement_destroy(n->map);
    n->map = NULL;
    WEFT_ASSERT(weft_placement_copy(map, &n->map, NULL) == WEFT_OK);
    if (map->epoch <= n->epoch) return;
    n->epoch = map->epoch;
    trace(w, "%s switches to %d", n->id, (int)n->epoch);
    weft_agent_switched(n->agent, n->epoch);
    process_wake(w, n);
}

/* -- steps ----------------------------------------------------------------- */

static uint64_t token_of(uint64_t hidden)
{
    return weft_hash_mix(hidden) % 50000;
}

static uint64_t combine(uint64_t hidden, const uint64_t values[SLOTS])
{
    for (int32_t s = 0; s < SLOTS; s++)
        hidden = weft_hash_mix(hidden * 3 + values[s]);
    return hidden;
}

static uint64_t embed(const struct request *r, int32_t n_tokens)
{
    uint64_t hidden = r->seed;
    for (int32_t i = 0; i < n_tokens; i++)
        hidden = weft_hash_mix(hidden ^ r->tokens[i]);
    return hidden;
}

/* What the token must be: no cluster, no faults. */
static uint64_t expected(const struct world *w, const struct request *r,
                         int32_t at)
{
    uint64_t hidden = embed(r, at), values[SLOTS];
    for (int32_t l = 0; l < LAYERS; l++) {
        if (!w->shape.moe[l]) continue;
        for (int32_t s = 0; s < SLOTS; s++)
            values[s] = toy_expert(l, toy_choice(l, s, hidden), hidden);
        hidden = combine(hidden, values);
    }
    return token_of(hidden);
}

static int32_t next_layer(const struct world *w, int32_t after)
{
    for (int32_t l = after + 1; l < LAYERS; l++)
        if (w->shape.moe[l]) return l;
    return LAYERS;
}

static void give_up(struct world *w, struct node *n)
{
    n->stepping = false;
    n->retry_ns = w->now + AGAIN_MS * MS;
    w->report.n_restarted++;
    post(w, n->retry_ns, EV_TICK, n->index, n->gen, 1, NULL);
}

static void send(struct world *w, struct node *n, int32_t k,
                 const struct rows *rows)
{
    struct node *e = expert(w, k);
    struct rows *copy = weft_mem_new(1, sizeof *copy);
    WEFT_ASSERT(copy != NULL);
    *copy = *rows;
    if (w->cut[n->index][e->index] || (!w->calm && chance(w, 2))) {
        weft_mem_free(copy);
        return;
    }
    const uint32_t gen = w->mutation == SIM_NO_INCARNATION ? 0 : e->gen;
    post(w, w->now + delay(w), EV_DISPATCH, e->index, gen, 0, copy);
}

/* What is owed by peer `only`, or all (-1), is asked of connected owners. */
static void dispatch(struct world *w, struct node *n, int32_t only)
{
    struct rows rows[EXPERTS] = {0};
    const uint64_t attempt = ++n->attempts;
    n->now.attempt = attempt;
    for (int32_t i = 0; i < n->n_pairs; i++) {
        if (n->owner[i] < 0 || (only >= 0 && n->owner[i] != only)) continue;
        const int32_t k =
            owner_of(w, n, n->map, n->now.layer, n->pairs[i].expert);
        if (k < 0) {
            give_up(w, n);
            return;
        }
        n->owner[i] = k;
        n->attempt[i] = attempt;
        rows[k].pairs[rows[k].n++] = n->pairs[i];
    }
    n->asked_ns = w->now;
    for (int32_t k = 0; k < EXPERTS; k++) {
        if (rows[k].n == 0) continue;
        rows[k].name = n->now;
        rows[k].from = n->index;
        rows[k].from_gen = n->gen;
        send(w, n, k, &rows[k]);
    }
}

static void ask_layer(struct world *w, struct node *n, int32_t layer)
{
    const weft_placement *newest = choose(w, n);
    if (w->mutation == SIM_SWITCH_IN_STEP && newest != NULL)
        adopt(w, n, newest);
    n->now.layer = layer;
    n->now.epoch = n->map->epoch;
    n->n_pairs = 0;
    for (int32_t r = 0; r < n->n_rows; r++)
        for (int32_t s = 0; s < SLOTS; s++) {
            n->owner[n->n_pairs] = EXPERTS; /* nobody yet */
            n->pairs[n->n_pairs++] =
                (struct pair){.row = r,
                              .slot = s,
                              .expert = toy_choice(layer, s, n->hidden[r]),
                              .value = n->hidden[r]};
        }
    n->n_owed = n->n_pairs;
    dispatch(w, n, -1);
}

static void begin(struct world *w, struct node *n)
{
    const weft_placement *map = choose(w, n);
    if (map == NULL || w->now < n->retry_ns) return;
    adopt(w, n, map);
    n->n_rows = 0;
    for (int32_t i = 0; i < w->n_requests && n->n_rows < ROWS_MAX; i++) {
        const struct request *r = &w->requests[i];
        if (r->lead != n->index || r->lead_gen != n->gen ||
            r->n_tokens == r->wanted)
            continue;
        n->rows[n->n_rows] = i;
        n->hidden[n->n_rows++] = embed(r, r->n_tokens);
    }
    if (n->n_rows == 0) return;
    n->stepping = true;
    n->step_epoch = map->epoch;
    n->now = (struct name){.step = ++n->steps, .group = n->index - ROUTERS};
    ask_layer(w, n, next_layer(w, -1));
}

static void finish(struct world *w, struct node *n)
{
    for (int32_t i = 0; i < n->n_rows; i++) {
        struct request *r = &w->requests[n->rows[i]];
        const uint64_t token = token_of(n->hidden[i]);
        if (r->lead != n->index || r->lead_gen != n->gen) continue;
        if (token != expected(w, r, r->n_tokens))
            fail(w, "request %d: token %d is %d", n->rows[i], r->n_tokens,
                 (int)token);
        r->tokens[r->n_tokens++] = token;
    }
    n->stepping = false;
    w->report.n_steps++;
    post(w, w->now + 20 * MS, EV_TICK, n->index, n->gen, 1, NULL);
}

static bool is_same(const struct name *a, const struct name *b)
{
    return a->epoch == b->epoch && a->step == b->step && a->group == b->group &&
           a->layer == b->layer;
}

static void take_pair(struct world *w, struct node *n, const struct rows *rows,
                      const struct pair *pair)
{
    for (int32_t i = 0; i < n->n_pairs; i++) {
        const bool is_current = is_same(&rows->name, &n->now) &&
                                rows->name.attempt == n->attempt[i];
        if (n->pairs[i].row != pair->row || n->pairs[i].slot != pair->slot ||
            n->owner[i] < 0)
            continue;
        if (!is_current && w->mutation != SIM_LATE_ANSWER) {
            w->report.n_stale++;
            return;
        }
        if (!is_current)
            fail(w, "%s applies an answer of attempt %d, and waits for %d",
                 n->id, (int)rows->name.attempt, (int)n->attempt[i]);
        if (rows->name.epoch != n->step_epoch)
            fail(w, "%s: a step of epoch %d takes an answer of %d", n->id,
                 (int)n->step_epoch, (int)rows->name.epoch);
        n->pairs[i].value = pair->value;
        n->owner[i] = -1;
        n->n_owed--;
    }
}

static void end_layer(struct world *w, struct node *n)
{
    uint64_t values[ROWS_MAX][SLOTS] = {{0}};
    for (int32_t i = 0; i < n->n_pairs; i++)
        values[n->pairs[i].row][n->pairs[i].slot] = n->pairs[i].value;
    for (int32_t r = 0; r < n->n_rows; r++)
        n->hidden[r] = combine(n->hidden[r], values[r]);
    const int32_t layer = next_layer(w, n->now.layer);
    if (layer == LAYERS)
        finish(w, n);
    else
        ask_layer(w, n, layer);
}

void lead_answer(struct world *w, struct node *n, const struct rows *rows)
{
    if (!n->stepping) {
        w->report.n_stale++;
        return;
    }
    if (rows->rejected) {
        if (is_same(&rows->name, &n->now) &&
            rows->name.attempt == n->now.attempt)
            give_up(w, n);
        return;
    }
    for (int32_t i = 0; i < rows->n; i++)
        take_pair(w, n, rows, &rows->pairs[i]);
    if (n->n_owed == 0) end_layer(w, n);
}

void lead_tick(struct world *w, struct node *n, bool once)
{
    if (!once)
        post(w, w->now + TICK_MS * MS, EV_TICK, n->index, n->gen, 0, NULL);
    for (int32_t k = 0; k < EXPERTS; k++) look_at_peer(w, n, k);
    for (int32_t i = 0; i < w->n_requests; i++) {
        struct request *r = &w->requests[i];
        const struct node *lead = &w->nodes[r->lead];
        if (lead->alive && lead->gen == r->lead_gen) continue;
        r->lead = n->index; /* what the router does with its journal */
        r->lead_gen = n->gen;
    }
    if (n->stepping && w->now > n->asked_ns + SILENT_MS * MS)
        for (int32_t i = 0; n->stepping && i < n->n_pairs; i++)
            if (n->owner[i] >= 0 && n->owner[i] < EXPERTS &&
                n->peers[n->owner[i]].connected) {
                break_link(w, n, n->owner[i]);
                break;
            }
    if (!n->stepping) begin(w, n);
}

/* -- requests -------------------------------------------------------------- */

void requests_add(struct world *w)
{
    if (w->n_requests == REQUESTS_MAX) return;
    struct request *r = &w->requests[w->n_requests++];
    *r = (struct request){.seed = draw(w, UINT64_MAX),
                          .wanted = 2 + (int32_t)draw(w, TOKENS_MAX - 2),
                          .lead = ROUTERS + (int32_t)draw(w, LEADS)};
    r->lead_gen = w->nodes[r->lead].gen;
}

bool requests_done(const struct world *w)
{
    for (int32_t i = 0; i < w->n_requests; i++)
        if (w->requests[i].n_tokens < w->requests[i].wanted) return false;
    return true;
}
