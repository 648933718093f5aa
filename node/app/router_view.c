#include "node/app/router_view.h"

#include <stdio.h>
#include <string.h>

#include "node/base/mem.h"

/* -- leads ------------------------------------------------------------------
 */

static bool is_there(const weft_member *m)
{
    return m->role == WEFT_ROLE_LAYERS && (m->state == WEFT_MEMBER_SERVING ||
                                           m->state == WEFT_MEMBER_DRAINING);
}

static int32_t find_lead(const weft_fleet_lead *leads, int32_t n,
                         uint32_t group)
{
    for (int32_t i = 0; i < n; i++)
        if (leads[i].group == group) return i;
    return n;
}

/* Of two with one place, one that does not drain, and then the later one: the
 * other is about to be gone. */
static bool is_better(const weft_member *m, const weft_member *than)
{
    const bool m_goes = m->state == WEFT_MEMBER_DRAINING;
    const bool than_goes = than->state == WEFT_MEMBER_DRAINING;
    return m_goes != than_goes ? than_goes : m->incarnation > than->incarnation;
}

static const weft_member *best_of(const weft_member *members, int32_t n,
                                  int32_t group, int32_t stage)
{
    const weft_member *best = NULL;
    for (int32_t i = 0; i < n; i++) {
        const weft_member *const m = &members[i];
        if (!is_there(m) || m->group != group || m->stage != stage) continue;
        if (best == NULL || is_better(m, best)) best = m;
    }
    return best;
}

/* The lead that has been there longest and tells its identity: what it gives,
 * the others have to give too. NULL: none. */
static const weft_member *first_lead(const weft_member *members, int32_t n)
{
    const weft_member *first = NULL;
    for (int32_t i = 0; i < n; i++) {
        const weft_member *const m = &members[i];
        if (!is_there(m) || m->stage != 0 || m->identity[0] == '\0' ||
            best_of(members, n, m->group, 0) != m)
            continue;
        if (first == NULL || m->incarnation < first->incarnation) first = m;
    }
    return first;
}

static bool gives_other_bits(const weft_member *lead, const weft_member *first)
{
    return first != NULL && lead->identity[0] != '\0' &&
           strcmp(lead->identity, first->identity) != 0;
}

int32_t weft_router_view_leads(const weft_member *members, int32_t n_members,
                               weft_fleet_lead *leads_out,
                               weft_router_refusal *refused_out)
{
    int32_t n = 0;
    const weft_member *const first = first_lead(members, n_members);
    *refused_out = (weft_router_refusal){.first = first};
    for (int32_t i = 0; i < n_members && n < WEFT_GROUPS_MAX; i++) {
        const weft_member *const m = &members[i];
        if (!is_there(m) || m->stage != 0) continue;
        const uint32_t group = (uint32_t)m->group;
        if (find_lead(leads_out, n, group) < n) continue;
        const weft_member *const best =
            best_of(members, n_members, m->group, 0);
        if (gives_other_bits(best, first)) {
            refused_out->lead = best;
            continue;
        }
        weft_fleet_lead *const lead = &leads_out[n++];
        *lead = (weft_fleet_lead){.group = group};
        lead->peer.incarnation = best->incarnation;
        (void)snprintf(lead->peer.id, sizeof lead->peer.id, "%s", best->id);
        (void)snprintf(lead->peer.address, sizeof lead->peer.address, "%s",
                       best->address);
    }
    for (int32_t i = 0; i < n_members; i++) {
        const weft_member *const m = &members[i];
        if (!is_there(m) || m->state != WEFT_MEMBER_DRAINING) continue;
        const int32_t at = find_lead(leads_out, n, (uint32_t)m->group);
        if (at < n && best_of(members, n_members, m->group, m->stage)->state ==
                          WEFT_MEMBER_DRAINING)
            leads_out[at].draining = true;
    }
    return n;
}

/* -- load -------------------------------------------------------------------
 */

static int32_t read_states(weft_router_view *own, weft_group_state **states_out)
{
    weft_group_state *const states =
        weft_mem_new(WEFT_GROUPS_MAX, sizeof *states);
    *states_out = states;
    return states == NULL
               ? 0
               : weft_fleet_get_states(own->fleet, states, WEFT_GROUPS_MAX);
}

static void add_kv(weft_kv_stats *sum, const weft_kv_stats *more)
{
    for (int32_t k = 0; k < WEFT_KINDS; k++) {
        sum->pages_used[k] += more->pages_used[k];
        sum->pages_free[k] += more->pages_free[k];
        sum->used_bytes[k] += more->used_bytes[k];
    }
    sum->slabs += more->slabs;
    sum->slabs_free += more->slabs_free;
    sum->index_used_bytes += more->index_used_bytes;
    sum->free_bytes += more->free_bytes;
    sum->total_bytes += more->total_bytes;
}

/* How free memory would be cut is a shard's to know: each kind may have it. */
static void get_load(void *arg, weft_view_load *out)
{
    weft_group_state *states = NULL;
    const int32_t n = read_states(arg, &states);
    *out = (weft_view_load){0};
    for (int32_t i = 0; i < n; i++) add_kv(&out->kv, &states[i].load.kv_group);
    weft_mem_free(states);
    out->kv_free[WEFT_KV_FULL] = out->kv.free_bytes;
    out->kv_free[WEFT_KV_WINDOW] = out->kv.free_bytes;
}

static const char *why_unhealthy(void *arg, uint64_t now_ns)
{
    (void)arg;
    (void)now_ns;
    return NULL; /* what can hang here are shards, which say so themselves */
}

static bool can_serve(void *arg, char *reason_out, size_t reason_bytes)
{
    weft_router_view *const own = arg;
    return weft_fleet_takes_requests(own->fleet, reason_out, reason_bytes);
}

static uint64_t weights_hash(void *arg)
{
    weft_group_state *states = NULL;
    uint64_t hash = 0;
    const int32_t n = read_states(arg, &states);
    for (int32_t i = 0; i < n && hash == 0; i++) hash = states[i].weights_hash;
    weft_mem_free(states);
    return hash;
}

/* -- GetCluster ---------------------------------------------------------------
 */

static weft_status copy(weft_arena *arena, const char *text, weft_span *out,
                        weft_err *err)
{
    const size_t n = strlen(text);
    const char *const copied = weft_arena_copy_text(arena, text, n);
    if (copied == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory");
    *out = (weft_span){.data = copied, .n = n};
    return WEFT_OK;
}

static weft_status tell_member(weft_arena *arena, const weft_member *m,
                               int32_t experts, weft_member_info *out,
                               weft_err *err)
{
    *out = (weft_member_info){.experts = (uint32_t)experts,
                              .incarnation = m->incarnation};
    if (m->role == WEFT_ROLE_LAYERS) {
        out->group = (weft_opt_u32){true, (uint32_t)m->group};
        out->stage = (weft_opt_u32){true, (uint32_t)m->stage};
    }
    WEFT_TRY(copy(arena, m->id, &out->id, err));
    WEFT_TRY(copy(arena, weft_role_name(m->role), &out->role, err));
    WEFT_TRY(copy(arena, weft_member_state_name(m->state), &out->state, err));
    WEFT_TRY(copy(arena, m->device, &out->device, err));
    return copy(arena, m->address, &out->address, err);
}

static void note_experts(const weft_member *m, int32_t experts,
                         weft_cluster_info *out)
{
    const uint32_t n = (uint32_t)experts;
    if (m->role != WEFT_ROLE_EXPERTS || m->state != WEFT_MEMBER_SERVING) return;
    if (out->experts_max == 0 || n < out->experts_min) out->experts_min = n;
    if (n > out->experts_max) out->experts_max = n;
}

static weft_status tell_members(weft_arena *arena,
                                const weft_cluster_view *view,
                                weft_cluster_info *out, weft_err *err)
{
    weft_member_info *const members =
        weft_arena_new(arena, (size_t)view->n_members, sizeof *members);
    if (members == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory");
    for (int32_t i = 0; i < view->n_members; i++) {
        WEFT_TRY(tell_member(arena, &view->members[i], view->experts[i],
                             &members[i], err));
        note_experts(&view->members[i], view->experts[i], out);
    }
    out->members = members;
    out->n_members = (size_t)view->n_members;
    out->epoch = view->epoch;
    out->retired_epoch = view->retired;
    out->registry_reachable = view->reachable;
    out->planned_epoch = view->controller.planned;
    out->moved_bytes = (uint64_t)view->controller.moved_bytes;
    out->moved_least_bytes = (uint64_t)view->controller.moved_least;
    return copy(arena, view->controller.waiting, &out->waiting, err);
}

static weft_status tell_group(weft_arena *arena, const weft_group_state *state,
                              weft_group_info *out, weft_err *err)
{
    const weft_kv_stats *const kv = &state->load.kv_group;
    *out = (weft_group_info){
        .group = state->group,
        .connected = state->connected,
        .whole = state->whole,
        .draining = state->draining,
        .epoch = state->epoch,
        .running = (uint32_t)state->load.sched.n_running,
        .waiting = (uint32_t)state->load.sched.n_waiting,
        .kv_bytes_used =
            (uint64_t)(kv->used_bytes[WEFT_FULL] + kv->used_bytes[WEFT_WINDOW] +
                       kv->index_used_bytes),
        .kv_bytes_total = (uint64_t)kv->total_bytes,
    };
    return copy(arena, state->reason, &out->reason, err);
}

static weft_status tell_groups(weft_arena *arena,
                               const weft_group_state *states, int32_t n,
                               weft_cluster_info *out, weft_err *err)
{
    weft_group_info *const groups =
        weft_arena_new(arena, (size_t)n, sizeof *groups);
    if (groups == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory");
    for (int32_t i = 0; i < n; i++)
        WEFT_TRY(tell_group(arena, &states[i], &groups[i], err));
    out->groups = groups;
    out->n_groups = (size_t)n;
    return WEFT_OK;
}

static weft_status get_cluster(void *arg, weft_arena *arena,
                               weft_cluster_info *out, weft_err *err)
{
    weft_router_view *const own = arg;
    weft_cluster *const cluster = atomic_load(&own->cluster);
    weft_cluster_view view = {0};
    weft_group_state *states = NULL;
    *out = (weft_cluster_info){.replicas = (uint32_t)own->replicas};
    if (cluster == NULL)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE,
                         "the router has not joined its cluster yet");
    WEFT_TRY(weft_cluster_get_view(cluster, &view, err));
    const int32_t n = read_states(own, &states);
    weft_status st = tell_members(arena, &view, out, err);
    if (st == WEFT_OK) st = tell_groups(arena, states, n, out, err);
    weft_mem_free(states);
    weft_cluster_view_deinit(&view);
    return st;
}

/* -- metrics ------------------------------------------------------------------
 */

static void count_members(weft_router_view *own, weft_metrics *metrics)
{
    weft_cluster *const cluster = atomic_load(&own->cluster);
    weft_cluster_view view = {0};
    uint64_t n[WEFT_ROLE_EXPERTS + 1] = {0};
    if (cluster == NULL ||
        weft_cluster_get_view(cluster, &view, NULL) != WEFT_OK)
        return;
    for (int32_t i = 0; i < view.n_members; i++)
        if (view.members[i].state == WEFT_MEMBER_SERVING)
            n[view.members[i].role]++;
    weft_metrics_set(metrics, WEFT_EPOCH, view.epoch);
    weft_metrics_set(metrics, WEFT_MEMBERS_ROUTER, n[WEFT_ROLE_ROUTER]);
    weft_metrics_set(metrics, WEFT_MEMBERS_LAYERS, n[WEFT_ROLE_LAYERS]);
    weft_metrics_set(metrics, WEFT_MEMBERS_EXPERTS, n[WEFT_ROLE_EXPERTS]);
    weft_cluster_view_deinit(&view);
}

static weft_group_seen *seen_of(weft_router_view *own, uint32_t group)
{
    for (int32_t i = 0; i < own->n_seen; i++)
        if (own->seen[i].group == group) return &own->seen[i];
    if (own->n_seen == WEFT_GROUPS_MAX) return NULL;
    weft_group_seen *const seen = &own->seen[own->n_seen++];
    *seen = (weft_group_seen){.group = group};
    return seen;
}

/* A lead that was started anew counts from 0. */
static void add_exchange(weft_router_view *own, weft_metrics *metrics,
                         const weft_group_state *state)
{
    const weft_exchange_counts *const now = &state->exchange;
    weft_group_seen *const seen = seen_of(own, state->group);
    uint64_t more[WEFT_HISTOGRAM_BUCKETS];
    if (seen == NULL) return;
    if (now->pairs < seen->counts.pairs || now->sum_ns < seen->counts.sum_ns)
        seen->counts = (weft_exchange_counts){0};
    for (int32_t i = 0; i < WEFT_HISTOGRAM_BUCKETS; i++)
        more[i] = now->buckets[i] > seen->counts.buckets[i]
                      ? now->buckets[i] - seen->counts.buckets[i]
                      : 0;
    weft_metrics_merge(metrics, WEFT_EXCHANGE_TIME, more,
                       now->sum_ns - seen->counts.sum_ns);
    weft_metrics_add(metrics, WEFT_EXPERT_ROWS,
                     now->pairs - seen->counts.pairs);
    seen->counts = *now;
}

static void refresh(void *arg, weft_metrics *metrics)
{
    weft_router_view *const own = arg;
    weft_group_state *states = NULL;
    const int32_t n = read_states(own, &states);
    count_members(own, metrics);
    own->sum = (weft_exchange_counts){0};
    for (int32_t i = 0; i < n; i++) {
        if (!states[i].connected) continue;
        add_exchange(own, metrics, &states[i]);
        weft_exchange_counts_add(&own->sum, &states[i].exchange);
    }
    weft_mem_free(states);
}

static weft_status print_changes(weft_router_view *own, weft_buf *out,
                                 weft_err *err)
{
    weft_cluster *const cluster = atomic_load(&own->cluster);
    weft_cluster_view view = {0};
    if (cluster == NULL) return WEFT_OK;
    WEFT_TRY(weft_cluster_get_view(cluster, &view, err));
    const weft_controller_state c = view.controller;
    weft_cluster_view_deinit(&view);
    return weft_buf_printf(
        out, err,
        "# HELP weft_epoch_changes_total Changes of the placement by this "
        "router.\n"
        "# TYPE weft_epoch_changes_total counter\n"
        "weft_epoch_changes_total{end=\"committed\"} %llu\n"
        "weft_epoch_changes_total{end=\"rolled_back\"} %llu\n"
        "# HELP weft_moved_bytes_total Bytes of experts that the changes "
        "committed here gave to members that did not hold them.\n"
        "# TYPE weft_moved_bytes_total counter\n"
        "weft_moved_bytes_total %lld\n",
        (unsigned long long)c.n_commits, (unsigned long long)c.n_rollbacks,
        (long long)c.moved_bytes);
}

static weft_status print(void *arg, weft_buf *out, weft_err *err)
{
    weft_router_view *const own = arg;
    WEFT_TRY(print_changes(own, out, err));
    return weft_exchange_print(NULL, &own->sum, out, err);
}

weft_view weft_router_view_of(weft_router_view *own)
{
    return (weft_view){.get_load = get_load,
                       .why_unhealthy = why_unhealthy,
                       .can_serve = can_serve,
                       .weights_hash = weights_hash,
                       .get_cluster = get_cluster,
                       .refresh = refresh,
                       .print = print,
                       .arg = own};
}
