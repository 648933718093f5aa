#include "node/cluster/placement.h"

#include <string.h>

#include "node/base/check.h"
#include "node/base/hash.h"
#include "node/base/mem.h"
#include "node/cluster/placement_internal.h"

static size_t n_places(const weft_placement *p)
{
    return (size_t)p->n_layer * (size_t)p->n_expert * (size_t)p->n_replicas;
}

weft_status weft_placement_new(int32_t n_layer, int32_t n_expert,
                               int32_t n_replicas, int32_t n_members,
                               weft_placement **placement_out, weft_err *err)
{
    weft_placement *p = weft_mem_new(1, sizeof *p);
    if (p != NULL) {
        *p = (weft_placement){.n_layer = n_layer,
                              .n_expert = n_expert,
                              .n_replicas = n_replicas,
                              .n_members = n_members};
        p->members = weft_mem_new((size_t)n_members, sizeof *p->members);
        p->owners = weft_mem_new(n_places(p), sizeof *p->owners);
    }
    if (p == NULL || p->members == NULL || p->owners == NULL) {
        weft_placement_destroy(p);
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for a placement of %d members", n_members);
    }
    memset(p->owners, 0xff, n_places(p) * sizeof *p->owners);
    *placement_out = p;
    return WEFT_OK;
}

void weft_placement_destroy(weft_placement *placement)
{
    if (placement == NULL) return;
    weft_mem_free(placement->members);
    weft_mem_free(placement->owners);
    weft_mem_free(placement);
}

weft_status weft_placement_copy(const weft_placement *placement,
                                weft_placement **copy_out, weft_err *err)
{
    weft_placement *p = NULL;
    WEFT_TRY(weft_placement_new(placement->n_layer, placement->n_expert,
                                placement->n_replicas, placement->n_members, &p,
                                err));
    WEFT_ASSERT(p != NULL);
    p->epoch = placement->epoch;
    memcpy(p->members, placement->members,
           (size_t)p->n_members * sizeof *p->members);
    memcpy(p->owners, placement->owners, n_places(p) * sizeof *p->owners);
    *copy_out = p;
    return WEFT_OK;
}

int32_t weft_placement_find(const weft_placement *placement, const char *id,
                            uint64_t incarnation)
{
    for (int32_t i = 0; i < placement->n_members; i++) {
        const weft_placement_member *m = &placement->members[i];
        if (strcmp(m->id, id) == 0)
            return incarnation == 0 || incarnation == m->incarnation ? i : -1;
    }
    return -1;
}

bool weft_placement_owns(const weft_placement *placement, int32_t member,
                         int32_t layer, int32_t expert)
{
    const uint16_t *owners = weft_placement_owners(placement, layer, expert);
    for (int32_t r = 0; r < placement->n_replicas; r++)
        if (owners[r] == member) return true;
    return false;
}

int32_t weft_placement_count(const weft_placement *placement, int32_t member)
{
    int32_t n = 0;
    for (size_t i = 0; i < n_places(placement); i++)
        n += placement->owners[i] == member;
    return n;
}

bool weft_placement_equal(const weft_placement *a, const weft_placement *b)
{
    if (a->n_layer != b->n_layer || a->n_expert != b->n_expert ||
        a->n_replicas != b->n_replicas || a->n_members != b->n_members)
        return false;
    for (int32_t i = 0; i < a->n_members; i++) {
        const weft_placement_member *m = &a->members[i], *o = &b->members[i];
        if (m->incarnation != o->incarnation || strcmp(m->id, o->id) != 0 ||
            strcmp(m->address, o->address) != 0)
            return false;
    }
    return memcmp(a->owners, b->owners, n_places(a) * sizeof *a->owners) == 0;
}

uint64_t weft_placement_hash(const weft_placement *placement)
{
    const int32_t sizes[] = {placement->n_layer, placement->n_expert,
                             placement->n_replicas, placement->n_members};
    uint64_t h = weft_hash_fnv(WEFT_FNV_START, sizes, sizeof sizes);
    for (int32_t i = 0; i < placement->n_members; i++) {
        const weft_placement_member *m = &placement->members[i];
        h = weft_hash_fnv(h, m->id, strlen(m->id) + 1);
        h = weft_hash_fnv(h, &m->incarnation, sizeof m->incarnation);
        h = weft_hash_fnv(h, m->address, strlen(m->address) + 1);
    }
    return weft_hash_fnv(h, placement->owners,
                         n_places(placement) * sizeof *placement->owners);
}

/* -- comparing ------------------------------------------------------------- */

/* Members of `to` that were in `from` as they are: its index there, or -1. */
static int32_t before(const weft_placement *from, const weft_placement *to,
                      int32_t member)
{
    const weft_placement_member *m = &to->members[member];
    if (from == NULL || from->n_layer != to->n_layer ||
        from->n_expert != to->n_expert)
        return -1;
    return weft_placement_find(from, m->id, m->incarnation);
}

static int32_t count_of_layer(const weft_placement *p, int32_t layer,
                              int32_t member)
{
    int32_t n = 0;
    const uint16_t *owners = weft_placement_owners(p, layer, 0);
    for (int32_t i = 0; i < p->n_expert * p->n_replicas; i++)
        n += member < 0 ? owners[i] != WEFT_NO_OWNER : owners[i] == member;
    return n;
}

/* What a layer must at least have moved: what nobody holds, and what those
 * above the ceiling give away; or what those below the floor lack. */
static int64_t least_of_layer(const weft_placement *from,
                              const weft_placement *to, int32_t layer)
{
    const int32_t n = to->n_members, all = count_of_layer(to, layer, -1);
    const int32_t floor = all / n, ceiling = (all + n - 1) / n;
    int64_t held = 0, surplus = 0, missing = 0;
    for (int32_t i = 0; i < n; i++) {
        const int32_t old = before(from, to, i);
        const int32_t had = old < 0 ? 0 : count_of_layer(from, layer, old);
        held += had;
        if (had > ceiling) surplus += had - ceiling;
        if (had < floor) missing += floor - had;
    }
    const int64_t lost = all > held ? all - held : 0;
    return lost + surplus > missing ? lost + surplus : missing;
}

static double imbalance_of(const weft_placement *p, const float *load)
{
    double all = 0, most = 0;
    double busy[WEFT_EXPERT_SHARDS_MAX] = {0};
    for (int32_t l = 0; l < p->n_layer; l++)
        for (int32_t e = 0; e < p->n_expert; e++) {
            const uint16_t owner = weft_placement_owners(p, l, e)[0];
            const double x =
                load != NULL ? (double)load[(int64_t)l * p->n_expert + e] : 1.0;
            if (owner == WEFT_NO_OWNER) continue;
            busy[owner] += x;
            all += x;
        }
    for (int32_t i = 0; i < p->n_members; i++)
        if (busy[i] > most) most = busy[i];
    return all > 0 ? most * p->n_members / all : 1.0;
}

/* Pairs of `a` that `b` does not have, and their bytes. */
static void pairs_beyond(const weft_placement_shape *shape,
                         const weft_placement *a, const weft_placement *b,
                         int64_t *n_out, int64_t *bytes_out)
{
    for (int32_t i = 0; i < a->n_members; i++) {
        const int32_t other = before(b, a, i);
        for (int32_t l = 0; l < a->n_layer; l++)
            for (int32_t e = 0; e < a->n_expert; e++) {
                if (!weft_placement_owns(a, i, l, e) ||
                    (other >= 0 && weft_placement_owns(b, other, l, e)))
                    continue;
                *n_out += 1;
                *bytes_out += weft_shape_bytes(shape, l);
            }
    }
}

/* Those that come need as many pairs as balance gives everybody. */
static int64_t least_of_newcomers(const weft_placement_shape *shape,
                                  const weft_placement *from,
                                  const weft_placement *to)
{
    int64_t all = 0, smallest = INT64_MAX, least = 0;
    for (int32_t l = 0; l < to->n_layer; l++) {
        if (!shape->moe[l]) continue;
        all += count_of_layer(to, l, -1);
        if (weft_shape_bytes(shape, l) < smallest)
            smallest = weft_shape_bytes(shape, l);
    }
    for (int32_t i = 0; i < to->n_members; i++)
        if (before(from, to, i) < 0)
            least += all / to->n_members * (all > 0 ? smallest : 0);
    return least;
}

void weft_placement_compare(const weft_placement_shape *shape,
                            const weft_placement *from,
                            const weft_placement *to, const float *load,
                            weft_placement_moves *moves_out)
{
    int64_t ignored = 0, least = 0;
    weft_placement_moves m = {.imbalance = imbalance_of(to, load)};
    pairs_beyond(shape, to, from, &m.n_gained, &m.gained_bytes);
    if (from != NULL) pairs_beyond(shape, from, to, &m.n_dropped, &ignored);
    for (int32_t l = 0; l < to->n_layer; l++)
        if (shape->moe[l])
            least += least_of_layer(from, to, l) * weft_shape_bytes(shape, l);
    const int64_t newcomers = least_of_newcomers(shape, from, to);
    if (newcomers > least) least = newcomers;
    /* Where capacities bind, balance asks for less. */
    m.gained_least = least < m.gained_bytes ? least : m.gained_bytes;
    *moves_out = m;
}

/* -- for the data path ----------------------------------------------------- */

weft_status weft_placement_to_map(const weft_placement *placement,
                                  weft_expert_map **map_out, weft_err *err)
{
    weft_expert_map *map = NULL;
    WEFT_TRY(weft_expert_map_create(placement->epoch, placement->n_layer,
                                    placement->n_expert, placement->n_replicas,
                                    placement->n_members, &map, err));
    for (int32_t i = 0; i < placement->n_members; i++) {
        const weft_placement_member *from = &placement->members[i];
        memcpy(map->peers[i].id, from->id, sizeof from->id);
        memcpy(map->peers[i].address, from->address, sizeof from->address);
        map->peers[i].incarnation = from->incarnation;
    }
    memcpy(map->owners, placement->owners,
           n_places(placement) * sizeof *placement->owners);
    *map_out = map;
    return WEFT_OK;
}
