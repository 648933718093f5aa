/* What goes wrong, and when it ends. */
#include "tests/cluster/sim/world.h"

enum { END_CUT = 1000, END_AWAY = 2000 };

static int32_t any_of(struct world *w, weft_role role)
{
    switch (role) {
    case WEFT_ROLE_ROUTER: return (int32_t)draw(w, ROUTERS);
    case WEFT_ROLE_LAYERS: return ROUTERS + (int32_t)draw(w, LEADS);
    default: return ROUTERS + LEADS + (int32_t)draw(w, EXPERTS);
    }
}

static void crash(struct world *w, int32_t i, uint64_t back_ns)
{
    struct node *n = &w->nodes[i];
    if (!n->alive) return;
    trace(w, "%s is killed", n->id);
    process_end(w, n);
    if (back_ns != 0) post(w, w->now + back_ns, EV_START, i, 0, 0, NULL);
}

static void cut(struct world *w, int32_t a, int32_t b, uint64_t ns)
{
    trace(w, "cut %d -> %d", a, b);
    w->cut[a][b] = true;
    post(w, w->now + ns, EV_FAULT, -1, 0,
         END_CUT + (uint64_t)a * (NODES + 1) + (uint64_t)b, NULL);
}

static void drain(struct world *w, int32_t i)
{
    struct node *n = &w->nodes[i];
    if (!n->alive || n->drains) return;
    trace(w, "%s drains", n->id);
    n->drains = true;
    weft_agent_set_state(n->agent, WEFT_MEMBER_DRAINING);
    process_wake(w, n);
    post(w, w->now + 3 * S + draw(w, 9 * S), EV_START, i, 0, 0, NULL);
}

static void wipe(struct world *w, bool routers_too)
{
    trace(w, "the store is wiped%s", routers_too ? ", routers are killed" : "");
    store_wipe(w);
    for (int32_t i = 0; routers_too && i < ROUTERS; i++)
        crash(w, i, 100 * MS + draw(w, 2 * S));
}

static void away(struct world *w)
{
    trace(w, "the store is away");
    store_set_away(w, true);
    post(w, w->now + 300 * MS + draw(w, 9 * S), EV_FAULT, -1, 0, END_AWAY,
         NULL);
}

static void one(struct world *w)
{
    const int32_t e = any_of(w, WEFT_ROLE_EXPERTS);
    const int32_t l = any_of(w, WEFT_ROLE_LAYERS);
    const int32_t any = (int32_t)draw(w, NODES);
    const uint64_t kind = draw(w, 100), ns = 200 * MS + draw(w, 6 * S);
    if (kind < 20) {
        crash(w, e, chance(w, 800) ? 50 * MS + draw(w, 6 * S) : 0);
    } else if (kind < 27) {
        crash(w, l, 100 * MS + draw(w, 4 * S));
    } else if (kind < 34) {
        crash(w, any_of(w, WEFT_ROLE_ROUTER), 100 * MS + draw(w, 4 * S));
    } else if (kind < 44) {
        w->nodes[any].paused_until = w->now + draw(w, 12 * S);
        trace(w, "%s is paused", w->nodes[any].id);
    } else if (kind < 54) {
        cut(w, l, e, ns);
        if (chance(w, 500)) cut(w, e, l, ns);
    } else if (kind < 60) {
        cut(w, e, l, ns);
    } else if (kind < 72) {
        const bool up = chance(w, 500);
        cut(w, up ? any : STORE, up ? STORE : any, 2 * ns);
    } else if (kind < 76) {
        if (!w->store.is_away) away(w);
    } else if (kind < 79) {
        wipe(w, chance(w, 400));
    } else if (kind < 88) {
        drain(w, e);
    } else {
        post(w, w->now, EV_START, e, 0, 0, NULL);
    }
}

void fault_next(struct world *w, uint64_t number)
{
    if (w->calm) return;
    if (number == END_AWAY) {
        trace(w, "the store is back");
        store_set_away(w, false);
    } else if (number >= END_CUT) {
        const uint64_t at = number - END_CUT;
        w->cut[at / (NODES + 1)][at % (NODES + 1)] = false;
    } else {
        w->report.n_faults++;
        one(w);
        post(w, w->now + 100 * MS + draw(w, 3 * S), EV_FAULT, -1, 0, 0, NULL);
    }
}

void fault_calm(struct world *w)
{
    int32_t n_experts = 0;
    trace(w, "calm");
    w->calm = true;
    w->calm_ns = w->now;
    for (int32_t a = 0; a <= NODES; a++)
        for (int32_t b = 0; b <= NODES; b++) w->cut[a][b] = false;
    if (w->store.is_away) store_set_away(w, false);
    for (int32_t i = 0; i < NODES; i++) {
        struct node *n = &w->nodes[i];
        const bool is_expert = n->role == WEFT_ROLE_EXPERTS;
        if (n->paused_until > w->now) n->paused_until = w->now;
        n_experts += is_expert && n->alive && !n->drains;
        if (!n->alive && (!is_expert || n_experts < 2 || chance(w, 500)))
            post(w, w->now + draw(w, S), EV_START, i, 0, 0, NULL);
        n_experts += is_expert && !n->alive && n_experts < 2;
    }
    for (int32_t i = 0; i < 4; i++)
        post(w, w->now + draw(w, 5 * S), EV_REQUEST, -1, 0, 0, NULL);
}
