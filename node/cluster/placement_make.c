/* How a placement is made: what is held stays; what nobody holds goes to whom
 * has the least of the layer; then whoever has two more of a layer than another
 * gives one; then those that come are filled up to the mean over all layers.
 * Each of these moves is one that balance asks for, so their sum is the least.
 */
#include <stdlib.h>
#include <string.h>

#include "node/base/mem.h"
#include "node/cluster/placement_internal.h"

static int32_t *count_at(const weft_placing *w, int32_t layer, int32_t member)
{
    return &w->counts[(int64_t)layer * w->n + member];
}

int32_t weft_placing_slot(const weft_placing *w, int32_t layer, int32_t expert,
                          int32_t member)
{
    const uint16_t *owners = weft_placement_owners(w->p, layer, expert);
    for (int32_t r = 0; r < w->p->n_replicas; r++)
        if (owners[r] == member) return r;
    return -1;
}

int32_t weft_placing_n_owners(const weft_placing *w, int32_t layer,
                              int32_t expert)
{
    const uint16_t *owners = weft_placement_owners(w->p, layer, expert);
    int32_t n = 0;
    while (n < w->p->n_replicas && owners[n] != WEFT_NO_OWNER) n++;
    return n;
}

static const uint16_t *kept_of(const weft_placing *w, int32_t layer,
                               int32_t expert)
{
    return w->kept +
           ((int64_t)layer * w->p->n_expert + expert) * w->p->n_replicas;
}

static bool was_kept(const weft_placing *w, int32_t layer, int32_t expert,
                     int32_t member)
{
    const uint16_t *kept = kept_of(w, layer, expert);
    for (int32_t r = 0; r < w->p->n_replicas; r++)
        if (kept[r] == member) return true;
    return false;
}

static void account(weft_placing *w, int32_t layer, int32_t expert,
                    int32_t slot, int32_t member, int32_t sign)
{
    *count_at(w, layer, member) += sign;
    w->totals[member] += sign;
    w->used[member] += sign * weft_shape_bytes(w->shape, layer);
    if (slot == 0)
        w->busy[member] += sign * weft_placing_load(w, layer, expert);
}

void weft_placing_put(weft_placing *w, int32_t layer, int32_t expert,
                      int32_t slot, int32_t member)
{
    uint16_t *owners = weft_placement_owners(w->p, layer, expert);
    if (owners[slot] != WEFT_NO_OWNER)
        account(w, layer, expert, slot, owners[slot], -1);
    owners[slot] = (uint16_t)member;
    account(w, layer, expert, slot, member, 1);
}

void weft_placing_drop(weft_placing *w, int32_t layer, int32_t expert,
                       int32_t slot)
{
    uint16_t *owners = weft_placement_owners(w->p, layer, expert);
    const int32_t last = weft_placing_n_owners(w, layer, expert) - 1;
    account(w, layer, expert, slot, owners[slot], -1);
    for (int32_t r = slot; r < last; r++) {
        account(w, layer, expert, r + 1, owners[r + 1], -1);
        owners[r] = owners[r + 1];
        account(w, layer, expert, r, owners[r], 1);
    }
    owners[last] = WEFT_NO_OWNER;
}

/* -- what stays ------------------------------------------------------------ */

static void keep(weft_placing *w, const weft_placement *previous)
{
    int32_t now[WEFT_EXPERT_SHARDS_MAX];
    if (previous == NULL || previous->n_layer != w->p->n_layer ||
        previous->n_expert != w->p->n_expert)
        return;
    for (int32_t i = 0; i < previous->n_members; i++)
        now[i] = weft_placement_find(w->p, previous->members[i].id,
                                     previous->members[i].incarnation);
    for (int32_t i = 0; i < previous->n_members; i++)
        if (now[i] >= 0) w->fresh[now[i]] = false;
    for (int32_t l = 0; l < w->p->n_layer; l++)
        for (int32_t e = 0; w->shape->moe[l] && e < w->p->n_expert; e++) {
            const uint16_t *from = weft_placement_owners(previous, l, e);
            int32_t slot = 0;
            for (int32_t r = 0; r < previous->n_replicas; r++)
                if (from[r] != WEFT_NO_OWNER && now[from[r]] >= 0 &&
                    slot < w->wanted)
                    weft_placing_put(w, l, e, slot++, now[from[r]]);
        }
}

static bool is_over(const weft_placing *w, int32_t member)
{
    const int64_t capacity = w->p->members[member].capacity_bytes;
    return capacity > 0 && w->used[member] > capacity;
}

/* A member that has less room than it holds gives up what others have too, then
 * anything, from the end. */
static void trim(weft_placing *w, int32_t member)
{
    for (int32_t least = 2; least >= 1; least--)
        for (int32_t l = w->p->n_layer - 1; l >= 0; l--)
            for (int32_t e = w->p->n_expert - 1; e >= 0; e--) {
                if (!is_over(w, member)) return;
                const int32_t slot = weft_placing_slot(w, l, e, member);
                if (slot >= 0 && weft_placing_n_owners(w, l, e) >= least)
                    weft_placing_drop(w, l, e, slot);
            }
}

/* -- what nobody holds ----------------------------------------------------- */

/* Whether a is to be given something of the layer rather than b. */
static bool is_emptier(const weft_placing *w, int32_t layer, int32_t a,
                       int32_t b)
{
    const int32_t ca = *count_at(w, layer, a), cb = *count_at(w, layer, b);
    if (ca != cb) return ca < cb;
    if (w->totals[a] != w->totals[b]) return w->totals[a] < w->totals[b];
    return w->busy[a] < w->busy[b];
}

/* -1: nobody who does not own it has room. */
static int32_t taker_of(const weft_placing *w, int32_t layer, int32_t expert)
{
    int32_t best = -1;
    for (int32_t i = 0; i < w->n; i++)
        if ((best < 0 || is_emptier(w, layer, i, best)) &&
            weft_placing_has_room(w, i, layer) &&
            weft_placing_slot(w, layer, expert, i) < 0)
            best = i;
    return best;
}

/* A place of an expert for somebody below the ceiling, though all of them own
 * the expert already: a member at the ceiling takes it and passes on what it
 * was given in this make, as far as needed (an augmenting path). `passed` marks
 * members that were tried. */
static bool pass_on(weft_placing *w, int32_t layer, int32_t expert,
                    int32_t slot, int32_t ceiling, bool *passed)
{
    for (int32_t i = 0; i < w->n; i++) {
        if (passed[i] || weft_placing_slot(w, layer, expert, i) >= 0) continue;
        passed[i] = true;
        if (*count_at(w, layer, i) < ceiling) {
            if (!weft_placing_has_room(w, i, layer)) continue;
            weft_placing_put(w, layer, expert, slot, i);
            return true;
        }
        for (int32_t f = 0; f < w->p->n_expert; f++) {
            const int32_t given = weft_placing_slot(w, layer, f, i);
            if (f == expert || given < 0 || was_kept(w, layer, f, i) ||
                !pass_on(w, layer, f, given, ceiling, passed))
                continue;
            weft_placing_put(w, layer, expert, slot, i);
            return true;
        }
    }
    return false;
}

static bool give(weft_placing *w, int32_t layer, int32_t expert)
{
    const int32_t all = w->p->n_expert * w->wanted;
    const int32_t ceiling = (all + w->n - 1) / w->n;
    const int32_t slot = weft_placing_n_owners(w, layer, expert);
    const int32_t to = taker_of(w, layer, expert);
    if (to < 0) return false;
    if (*count_at(w, layer, to) >= ceiling) {
        memset(w->passed, 0, (size_t)w->n * sizeof *w->passed);
        if (pass_on(w, layer, expert, slot, ceiling, w->passed)) return true;
    }
    weft_placing_put(w, layer, expert, slot, to);
    return true;
}

/* Room for one expert of the layer, by letting go of another that has more than
 * one owner. */
static bool make_room(weft_placing *w, int32_t layer)
{
    const int64_t bytes = weft_shape_bytes(w->shape, layer);
    for (int32_t l = w->p->n_layer - 1; l >= 0; l--)
        for (int32_t e = w->p->n_expert - 1; e >= 0; e--)
            for (int32_t r = weft_placing_n_owners(w, l, e) - 1; r >= 0; r--) {
                const uint16_t i = weft_placement_owners(w->p, l, e)[r];
                const int64_t capacity = w->p->members[i].capacity_bytes;
                if (weft_placing_n_owners(w, l, e) < 2 ||
                    capacity - w->used[i] + weft_shape_bytes(w->shape, l) <
                        bytes)
                    continue;
                weft_placing_drop(w, l, e, r);
                return true;
            }
    return false;
}

static weft_status no_room(const weft_placing *w, weft_err *err)
{
    int64_t needed = 0, available = 0;
    for (int32_t l = 0; l < w->p->n_layer; l++)
        if (w->shape->moe[l])
            needed += w->p->n_expert * weft_shape_bytes(w->shape, l);
    for (int32_t i = 0; i < w->n; i++)
        if (available <= INT64_MAX - w->p->members[i].capacity_bytes)
            available += w->p->members[i].capacity_bytes;
    return WEFT_FAIL(err, WEFT_FAILED_PRECONDITION,
                     "the experts do not fit: %lld bytes are needed, %d "
                     "expert shards offer %lld",
                     (long long)needed, w->n, (long long)available);
}

/* Owners up to `wanted` for every expert; the first must be. */
static weft_status fill(weft_placing *w, int32_t wanted, bool *moved,
                        weft_err *err)
{
    for (int32_t l = 0; l < w->p->n_layer; l++)
        for (int32_t e = 0; w->shape->moe[l] && e < w->p->n_expert; e++)
            while (weft_placing_n_owners(w, l, e) < wanted) {
                const bool must = weft_placing_n_owners(w, l, e) == 0;
                bool given = give(w, l, e);
                if (!given && must && make_room(w, l)) given = give(w, l, e);
                if (!given && must) return no_room(w, err);
                if (!given) break;
                *moved = true;
            }
    return WEFT_OK;
}

/* -- balance --------------------------------------------------------------- */

/* How well an expert suits a member that is still to be given some: those that
 * cost nothing first, then those that bring its load towards the mean. */
static double fitness(const weft_placing *w, int32_t layer, int32_t expert,
                      int32_t slot, int32_t from, int32_t to)
{
    const int32_t missing = (int32_t)(w->share - w->totals[to]);
    const double want = (w->mean - w->busy[to]) / (missing > 1 ? missing : 1);
    const double load = slot == 0 ? weft_placing_load(w, layer, expert) : 0.0;
    const double off = load > want ? load - want : want - load;
    const bool free_of_cost =
        was_kept(w, layer, expert, to) || !was_kept(w, layer, expert, from);
    return (free_of_cost ? 1e300 : 0.0) - off;
}

/* Moves one of the layer's experts. */
static bool move(weft_placing *w, int32_t layer, int32_t from, int32_t to)
{
    int32_t best = -1, best_slot = -1;
    double best_fitness = 0;
    for (int32_t e = 0; e < w->p->n_expert; e++) {
        const int32_t slot = weft_placing_slot(w, layer, e, from);
        if (slot < 0 || weft_placing_slot(w, layer, e, to) >= 0) continue;
        const double fit = fitness(w, layer, e, slot, from, to);
        if (best >= 0 && fit <= best_fitness) continue;
        best = e;
        best_slot = slot;
        best_fitness = fit;
    }
    if (best < 0) return false;
    weft_placing_put(w, layer, best, best_slot, to);
    return true;
}

/* Until nobody has two more of the layer than another who has room. */
static bool level(weft_placing *w, int32_t layer)
{
    bool moved = false;
    for (;;) {
        int32_t most = 0, least = -1;
        for (int32_t i = 0; i < w->n; i++) {
            if (is_emptier(w, layer, most, i)) most = i;
            if (weft_placing_has_room(w, i, layer) &&
                (least < 0 || is_emptier(w, layer, i, least)))
                least = i;
        }
        if (least < 0 ||
            *count_at(w, layer, most) - *count_at(w, layer, least) < 2 ||
            !move(w, layer, most, least))
            return moved;
        moved = true;
    }
}

/* The layer in which `from` is furthest above `to`; -1: in none. */
static int32_t layer_to_give(const weft_placing *w, int32_t from, int32_t to)
{
    int32_t best = -1, best_gap = 0;
    for (int32_t l = 0; l < w->p->n_layer; l++) {
        const int32_t gap = *count_at(w, l, from) - *count_at(w, l, to);
        if (gap <= best_gap || !weft_placing_has_room(w, to, l)) continue;
        best = l;
        best_gap = gap;
    }
    return best;
}

/* A member that has come gets its share over all layers, where each layer alone
 * is balanced without it (more members than experts). */
static bool fill_newcomer(weft_placing *w, int32_t to)
{
    bool moved = false;
    while (w->totals[to] < w->share) {
        int32_t most = 0;
        for (int32_t i = 1; i < w->n; i++)
            if (w->totals[i] > w->totals[most]) most = i;
        const int32_t layer = layer_to_give(w, most, to);
        if (w->totals[most] - w->totals[to] < 2 || layer < 0 ||
            !move(w, layer, most, to))
            return moved;
        moved = true;
    }
    return moved;
}

static weft_status balance(weft_placing *w, weft_err *err)
{
    bool moved = true;
    WEFT_TRY(fill(w, 1, &moved, err));
    while (moved) {
        int64_t all = 0;
        moved = false;
        WEFT_TRY(fill(w, w->wanted, &moved, err));
        for (int32_t i = 0; i < w->n; i++) all += w->totals[i];
        w->share = all / w->n;
        for (int32_t l = 0; l < w->p->n_layer; l++)
            if (w->shape->moe[l] && level(w, l)) moved = true;
        for (int32_t i = 0; i < w->n; i++)
            if (w->fresh[i] && fill_newcomer(w, i)) moved = true;
    }
    return WEFT_OK;
}

/* -- the whole ------------------------------------------------------------- */

static int by_id(const void *a, const void *b)
{
    const weft_placement_member *x = a, *y = b;
    return strcmp(x->id, y->id);
}

static weft_status check(const weft_placement_shape *shape,
                         const weft_placement_member *members,
                         int32_t n_members, int32_t replicas, weft_err *err)
{
    if (n_members < 1)
        return WEFT_FAIL(err, WEFT_FAILED_PRECONDITION,
                         "there are no expert shards to place experts on");
    if (n_members > WEFT_EXPERT_SHARDS_MAX || replicas < 1 ||
        replicas > WEFT_REPLICAS_MAX || shape->n_layer < 1 ||
        shape->n_expert < 1)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "a placement of %d layers, %d experts and %d replicas "
                         "on %d members (allowed: 1 to %d replicas, at most "
                         "%d members)",
                         shape->n_layer, shape->n_expert, replicas, n_members,
                         WEFT_REPLICAS_MAX, WEFT_EXPERT_SHARDS_MAX);
    for (int32_t i = 0; i < n_members; i++)
        if (members[i].capacity_bytes < 0)
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "expert shard %s has a capacity below 0",
                             members[i].id);
    return WEFT_OK;
}

static bool placing_init(weft_placing *w, int32_t replicas)
{
    const size_t n = (size_t)w->n, n_layer = (size_t)w->p->n_layer;
    const size_t n_expert = (size_t)w->p->n_expert;
    w->wanted = replicas < w->n ? replicas : w->n;
    w->counts = weft_mem_new(n_layer * n, sizeof *w->counts);
    w->totals = weft_mem_new(n, sizeof *w->totals);
    w->used = weft_mem_new(n, sizeof *w->used);
    w->busy = weft_mem_new(n, sizeof *w->busy);
    w->fresh = weft_mem_new(n, sizeof *w->fresh);
    w->passed = weft_mem_new(n, sizeof *w->passed);
    w->kept =
        weft_mem_new(n_layer * n_expert * (size_t)replicas, sizeof *w->kept);
    if (w->counts == NULL || w->totals == NULL || w->used == NULL ||
        w->busy == NULL || w->fresh == NULL || w->passed == NULL ||
        w->kept == NULL)
        return false;
    for (size_t i = 0; i < n; i++) w->fresh[i] = true;
    for (int32_t l = 0; l < w->p->n_layer; l++)
        for (int32_t e = 0; w->shape->moe[l] && e < w->p->n_expert; e++)
            w->mean += weft_placing_load(w, l, e) / w->n;
    return true;
}

static void placing_deinit(weft_placing *w)
{
    weft_mem_free(w->counts);
    weft_mem_free(w->totals);
    weft_mem_free(w->used);
    weft_mem_free(w->busy);
    weft_mem_free(w->fresh);
    weft_mem_free(w->passed);
    weft_mem_free(w->kept);
}

static weft_status run(weft_placing *w, const weft_placement *previous,
                       weft_err *err)
{
    const weft_placement *p = w->p;
    keep(w, previous);
    for (int32_t i = 0; i < w->n; i++) trim(w, i);
    memcpy(w->kept, p->owners,
           (size_t)p->n_layer * (size_t)p->n_expert * (size_t)p->n_replicas *
               sizeof *p->owners);
    WEFT_TRY(balance(w, err));
    weft_placing_order(w);
    if (w->load != NULL)
        weft_placing_even_load(w, previous == NULL ? WEFT_PLACEMENT_GAIN_MIN / 5
                                                   : WEFT_PLACEMENT_GAIN_MIN);
    return WEFT_OK;
}

weft_status weft_placement_make(const weft_placement_shape *shape,
                                const weft_placement_member *members,
                                int32_t n_members, int32_t replicas,
                                const weft_placement *previous,
                                const float *load,
                                weft_placement **placement_out, weft_err *err)
{
    weft_placement *p = NULL;
    WEFT_TRY(check(shape, members, n_members, replicas, err));
    WEFT_TRY(weft_placement_new(shape->n_layer, shape->n_expert, replicas,
                                n_members, &p, err));
    memcpy(p->members, members, (size_t)n_members * sizeof *members);
    qsort(p->members, (size_t)n_members, sizeof *members, by_id);
    weft_placing w = {.shape = shape, .p = p, .load = load, .n = n_members};
    weft_status st = WEFT_OK;
    for (int32_t i = 1; st == WEFT_OK && i < n_members; i++)
        if (by_id(&p->members[i - 1], &p->members[i]) == 0)
            st = WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                           "expert shard %s is named twice", p->members[i].id);
    if (st == WEFT_OK && !placing_init(&w, replicas))
        st = WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                       "no memory to place experts on %d shards", n_members);
    if (st == WEFT_OK) st = run(&w, previous, err);
    placing_deinit(&w);
    if (st == WEFT_OK)
        *placement_out = p;
    else
        weft_placement_destroy(p);
    return st;
}
