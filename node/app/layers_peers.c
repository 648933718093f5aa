#include <stdio.h>
#include <string.h>

#include "node/app/layers.h"
#include "node/base/log.h"

static bool is_better(const weft_member *m, const weft_member *than)
{
    const bool m_goes = m->state == WEFT_MEMBER_DRAINING;
    const bool than_goes = than->state == WEFT_MEMBER_DRAINING;
    return m_goes != than_goes ? than_goes : m->incarnation > than->incarnation;
}

const weft_member *weft_layers_find_stage(const weft_member *members, int32_t n,
                                          const weft_stage_of *which)
{
    const weft_member *found = NULL;
    for (int32_t i = 0; i < n; i++) {
        const weft_member *const m = &members[i];
        if (m->role != WEFT_ROLE_LAYERS || m->group != which->group ||
            m->stage != which->stage || m->n_stages != which->n_stages)
            continue;
        if (found == NULL || is_better(m, found)) found = m;
    }
    return found;
}

static const weft_member *find_stage(const weft_layers *l,
                                     const weft_member *members, int32_t n,
                                     int32_t stage)
{
    const weft_stage_of which = {.group = l->shard.options->group,
                                 .stage = stage,
                                 .n_stages = l->shard.options->stages};
    return weft_layers_find_stage(members, n, &which);
}

bool weft_layers_is_displaced(const weft_member *members, int32_t n,
                              const weft_stage_of *own, const char *id)
{
    const weft_member *const best = weft_layers_find_stage(members, n, own);
    if (best == NULL || strcmp(best->id, id) == 0) return false;
    for (int32_t i = 0; i < n; i++)
        if (members[i].role == WEFT_ROLE_LAYERS &&
            strcmp(members[i].id, id) == 0)
            return true;
    return false;
}

/* Of two that both link to the other stages, each would take the links from
 * the other for ever. */
static bool is_displaced(weft_layers *l, const weft_member *members, int32_t n)
{
    const weft_options *const o = l->shard.options;
    const weft_stage_of own = {
        .group = o->group, .stage = o->stage, .n_stages = o->stages};
    const bool is =
        weft_layers_is_displaced(members, n, &own, l->shard.member.id);
    if (is && !l->displaced)
        weft_log(WEFT_LOG_WARN, "layers", "displaced",
                 "group %d stage %d by %s", o->group, o->stage,
                 weft_layers_find_stage(members, n, &own)->id);
    l->displaced = is;
    return is;
}

static weft_peer peer_of(const weft_member *m)
{
    weft_peer peer = {.incarnation = m->incarnation};
    (void)snprintf(peer.id, sizeof peer.id, "%s", m->id);
    (void)snprintf(peer.address, sizeof peer.address, "%s", m->address);
    return peer;
}

/* Nothing is wanted anew until every stage is known: what there was may come
 * back under the same name. */
static void want_stages(const weft_layers *l, const weft_member *members,
                        int32_t n)
{
    weft_err err = {0};
    weft_peer peers[WEFT_STAGES_MAX];
    for (int32_t s = 1; s < l->shard.options->stages; s++) {
        const weft_member *const m = find_stage(l, members, n, s);
        if (m == NULL) return;
        peers[s - 1] = peer_of(m);
    }
    if (weft_stages_want(l->stages, peers, &err) != WEFT_OK)
        weft_log(WEFT_LOG_ERROR, "layers", "stages", "reason \"%s\"", err.text);
}

static void want_next(const weft_layers *l, const weft_member *members,
                      int32_t n)
{
    weft_err err = {0};
    const int32_t next = l->shard.options->stage + 1;
    if (next >= l->shard.options->stages) return;
    const weft_member *const m = find_stage(l, members, n, next);
    if (m == NULL) return;
    const weft_peer peer = peer_of(m);
    if (weft_stage_want(l->stage, &peer, &err) != WEFT_OK)
        weft_log(WEFT_LOG_ERROR, "layers", "next_stage", "reason \"%s\"",
                 err.text);
}

static void want_nobody(const weft_layers *l)
{
    weft_err err = {0};
    weft_status st = WEFT_OK;
    if (l->stages != NULL)
        st = weft_stages_want(l->stages, NULL, &err);
    else if (l->stage_peers != NULL)
        st = weft_stage_want(l->stage, NULL, &err);
    if (st != WEFT_OK)
        weft_log(WEFT_LOG_ERROR, "layers", "stages", "reason \"%s\"", err.text);
}

static void members_changed(void *arg, const weft_member *members, int32_t n)
{
    weft_layers *const l = arg;
    if (l->stages == NULL && l->stage == NULL) return;
    if (is_displaced(l, members, n)) {
        want_nobody(l);
        return;
    }
    if (l->stages != NULL) want_stages(l, members, n);
    if (l->stage != NULL) want_next(l, members, n);
}

/* Stages hear of it from their lead, so that a group is of one mind. */
static void epoch_committed(void *arg, const weft_placement *placement)
{
    weft_err err = {0};
    weft_expert_map *map = NULL;
    const weft_layers *const l = arg;
    if (l->exchange == NULL || !weft_layers_is_lead(l)) return;
    if (weft_placement_to_map(placement, &map, &err) != WEFT_OK) {
        weft_log(WEFT_LOG_ERROR, "layers", "epoch", "epoch %llu reason \"%s\"",
                 (unsigned long long)placement->epoch, err.text);
        return;
    }
    weft_log(WEFT_LOG_INFO, "layers", "committed", "epoch %llu",
             (unsigned long long)placement->epoch);
    weft_exchange_set_map(l->exchange, map);
    weft_expert_map_release(map);
}

static void fenced(void *arg, const char *text)
{
    weft_layers *const l = arg;
    weft_shard_fence(&l->shard, text);
}

weft_cluster_ops weft_layers_cluster_ops(weft_layers *l)
{
    return (weft_cluster_ops){.members = members_changed,
                              .epoch = epoch_committed,
                              .fenced = fenced,
                              .arg = l};
}
