/* When experts are of nobody: who holds others takes them, at once. */
#include <string.h>

#include "node/cluster/controller_internal.h"
#include "node/cluster/placement_internal.h"

static bool is_among(const weft_placement_member *member,
                     const weft_placement_member *members, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (members[i].incarnation == member->incarnation &&
            strcmp(members[i].id, member->id) == 0)
            return true;
    return false;
}

static bool has_owner(const weft_placement *p, const bool *is_there,
                      int32_t layer, int32_t expert)
{
    const uint16_t *owners = weft_placement_owners(p, layer, expert);
    for (int32_t r = 0; r < p->n_replicas; r++)
        if (owners[r] < p->n_members && is_there[owners[r]]) return true;
    return false;
}

bool weft_controller_uncovered(const weft_controller *c,
                               const weft_placement_member *members, int32_t n)
{
    bool is_there[WEFT_EXPERT_SHARDS_MAX] = {false};
    const weft_placement *const p = c->last;
    if (p == NULL || p->n_members > WEFT_EXPERT_SHARDS_MAX) return false;
    for (int32_t m = 0; m < p->n_members; m++)
        is_there[m] = is_among(&p->members[m], members, n);
    for (int32_t l = 0; l < p->n_layer; l++)
        for (int32_t e = 0; c->shape.moe[l] && e < p->n_expert; e++)
            if (!has_owner(p, is_there, l, e)) return true;
    return false;
}

int32_t weft_controller_known_first(const weft_controller *c,
                                    weft_placement_member *members, int32_t n)
{
    int32_t known = 0;
    for (int32_t i = 0; c->last != NULL && i < n; i++) {
        if (!is_among(&members[i], c->last->members, c->last->n_members))
            continue;
        const weft_placement_member moved = members[known];
        members[known++] = members[i];
        members[i] = moved;
    }
    return known;
}
