/* GetCluster's answer, both ways. */
#include <string.h>

#include "proto/codec.h"
#include "proto/validate.h"
#include "weft.pb-c.h"

/* As in encode.c: packing only reads. */
static ProtobufCBinaryData data_of(weft_span span)
{
    union {
        const char *from;
        uint8_t *to;
    } data = {.from = span.data};
    return (ProtobufCBinaryData){.len = span.n, .data = data.to};
}

static weft_span span_of(ProtobufCBinaryData data)
{
    return (weft_span){(const char *)data.data, data.len};
}

static weft_status no_memory(weft_err *err)
{
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                     "no memory for what is told of the cluster");
}

/* -- out --------------------------------------------------------------------
 */

static Weft__V1__ClusterMember member_of(const weft_member_info *in)
{
    Weft__V1__ClusterMember m = WEFT__V1__CLUSTER_MEMBER__INIT;
    m.id = data_of(in->id);
    m.role = data_of(in->role);
    m.state = data_of(in->state);
    m.address = data_of(in->address);
    m.device = data_of(in->device);
    m.experts = in->experts;
    m.incarnation = in->incarnation;
    if (in->group.set) {
        m._group_case = WEFT__V1__CLUSTER_MEMBER___GROUP_GROUP;
        m.group = in->group.value;
    }
    if (in->stage.set) {
        m._stage_case = WEFT__V1__CLUSTER_MEMBER___STAGE_STAGE;
        m.stage = in->stage.value;
    }
    return m;
}

static Weft__V1__ClusterGroup group_of(const weft_group_info *in)
{
    Weft__V1__ClusterGroup m = WEFT__V1__CLUSTER_GROUP__INIT;
    m.group = in->group;
    m.connected = in->connected;
    m.whole = in->whole;
    m.draining = in->draining;
    m.epoch = in->epoch;
    m.running = in->running;
    m.waiting = in->waiting;
    m.kv_bytes_used = in->kv_bytes_used;
    m.kv_bytes_total = in->kv_bytes_total;
    m.reason = data_of(in->reason);
    return m;
}

typedef Weft__V1__GetLoadResponse__PagesUsedEntry kind_entry;

/* What a GetLoadResponse points to. */
struct kinds {
    kind_entry entries[WEFT_LOAD_KINDS_MAX];
    kind_entry *pointers[WEFT_LOAD_KINDS_MAX];
    char names[WEFT_LOAD_KINDS_MAX][16];
};

static Weft__V1__GetLoadResponse load_of(const weft_load_info *in,
                                         struct kinds *kinds)
{
    Weft__V1__GetLoadResponse m = WEFT__V1__GET_LOAD_RESPONSE__INIT;
    m.num_running_reqs = in->running;
    m.num_waiting_reqs = in->waiting;
    m.kv_bytes_used = in->kv_bytes_used;
    m.kv_bytes_total = in->kv_bytes_total;
    for (size_t i = 0; i < in->n_kinds; i++) {
        memcpy(kinds->names[i], in->pages_used[i].kind, sizeof kinds->names[i]);
        weft__v1__get_load_response__pages_used_entry__init(&kinds->entries[i]);
        kinds->entries[i].key = kinds->names[i];
        kinds->entries[i].value = in->pages_used[i].pages;
        kinds->pointers[i] = &kinds->entries[i];
    }
    m.n_pages_used = in->n_kinds;
    m.pages_used = kinds->pointers;
    return m;
}

static weft_status lists_of(const weft_cluster_info *in, weft_arena *arena,
                            Weft__V1__GetClusterResponse *m, weft_err *err)
{
    Weft__V1__ClusterMember *const members =
        weft_arena_new(arena, in->n_members, sizeof *members);
    Weft__V1__ClusterMember **const member_pointers =
        weft_arena_new(arena, in->n_members, sizeof(member_pointers[0]));
    Weft__V1__ClusterGroup *const groups =
        weft_arena_new(arena, in->n_groups, sizeof *groups);
    Weft__V1__ClusterGroup **const group_pointers =
        weft_arena_new(arena, in->n_groups, sizeof(group_pointers[0]));
    if (members == NULL || member_pointers == NULL || groups == NULL ||
        group_pointers == NULL)
        return no_memory(err);
    for (size_t i = 0; i < in->n_members; i++) {
        members[i] = member_of(&in->members[i]);
        member_pointers[i] = &members[i];
    }
    for (size_t i = 0; i < in->n_groups; i++) {
        groups[i] = group_of(&in->groups[i]);
        group_pointers[i] = &groups[i];
    }
    m->n_members = in->n_members;
    m->members = member_pointers;
    m->n_groups = in->n_groups;
    m->groups = group_pointers;
    return WEFT_OK;
}

weft_status weft_encode_cluster(const weft_cluster_info *in, weft_arena *arena,
                                weft_place place, weft_err *err)
{
    struct kinds kinds;
    Weft__V1__GetClusterResponse m = WEFT__V1__GET_CLUSTER_RESPONSE__INIT;
    Weft__V1__ClusterPlacement placement = WEFT__V1__CLUSTER_PLACEMENT__INIT;
    Weft__V1__GetLoadResponse load = load_of(&in->load, &kinds);
    WEFT_TRY(lists_of(in, arena, &m, err));
    placement.experts_min = in->experts_min;
    placement.experts_max = in->experts_max;
    placement.replicas = in->replicas;
    placement.planned_epoch = in->planned_epoch;
    placement.moved_bytes = in->moved_bytes;
    placement.moved_least_bytes = in->moved_least_bytes;
    placement.retired_epoch = in->retired_epoch;
    placement.waiting = data_of(in->waiting);
    m.epoch = in->epoch;
    m.load = &load;
    m.placement = &placement;
    m.registry_reachable = in->registry_reachable;
    const size_t n = protobuf_c_message_get_packed_size(&m.base);
    uint8_t *const bytes = place.fn(place.arg, n);
    if (bytes == NULL) return no_memory(err);
    if (n > 0) (void)protobuf_c_message_pack(&m.base, bytes);
    return WEFT_OK;
}

/* -- in ---------------------------------------------------------------------
 */

static weft_member_info member_in(const Weft__V1__ClusterMember *m)
{
    return (weft_member_info){
        .id = span_of(m->id),
        .role = span_of(m->role),
        .state = span_of(m->state),
        .address = span_of(m->address),
        .device = span_of(m->device),
        .group = {m->_group_case != 0, m->group},
        .stage = {m->_stage_case != 0, m->stage},
        .experts = m->experts,
        .incarnation = m->incarnation,
    };
}

static weft_group_info group_in(const Weft__V1__ClusterGroup *m)
{
    return (weft_group_info){
        .group = m->group,
        .connected = m->connected,
        .whole = m->whole,
        .draining = m->draining,
        .epoch = m->epoch,
        .running = m->running,
        .waiting = m->waiting,
        .kv_bytes_used = m->kv_bytes_used,
        .kv_bytes_total = m->kv_bytes_total,
        .reason = span_of(m->reason),
    };
}

static weft_status lists_in(weft_arena *arena,
                            const Weft__V1__GetClusterResponse *m,
                            weft_cluster_info *out, weft_err *err)
{
    weft_member_info *const members =
        weft_arena_new(arena, m->n_members, sizeof *members);
    weft_group_info *const groups =
        weft_arena_new(arena, m->n_groups, sizeof *groups);
    if (members == NULL || groups == NULL) return no_memory(err);
    for (size_t i = 0; i < m->n_members; i++)
        members[i] = member_in(m->members[i]);
    for (size_t i = 0; i < m->n_groups; i++) groups[i] = group_in(m->groups[i]);
    out->members = members;
    out->n_members = m->n_members;
    out->groups = groups;
    out->n_groups = m->n_groups;
    return WEFT_OK;
}

static weft_status load_in(const Weft__V1__GetLoadResponse *m,
                           weft_load_info *out, weft_err *err)
{
    if (m == NULL) return WEFT_OK;
    if (m->n_pages_used > WEFT_LOAD_KINDS_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "pages_used has %zu kinds (allowed: at most %d)",
                         m->n_pages_used, WEFT_LOAD_KINDS_MAX);
    out->running = m->num_running_reqs;
    out->waiting = m->num_waiting_reqs;
    out->kv_bytes_used = m->kv_bytes_used;
    out->kv_bytes_total = m->kv_bytes_total;
    out->n_kinds = m->n_pages_used;
    for (size_t i = 0; i < out->n_kinds; i++) {
        const char *const kind = m->pages_used[i]->key;
        const size_t n = strlen(kind);
        if (n >= sizeof out->pages_used[i].kind)
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "pages_used has a kind of %zu bytes", n);
        memcpy(out->pages_used[i].kind, kind, n + 1);
        out->pages_used[i].pages = m->pages_used[i]->value;
    }
    return WEFT_OK;
}

static void placement_in(const Weft__V1__ClusterPlacement *m,
                         weft_cluster_info *out)
{
    if (m == NULL) return;
    out->experts_min = m->experts_min;
    out->experts_max = m->experts_max;
    out->replicas = m->replicas;
    out->planned_epoch = m->planned_epoch;
    out->moved_bytes = m->moved_bytes;
    out->moved_least_bytes = m->moved_least_bytes;
    out->retired_epoch = m->retired_epoch;
    out->waiting = span_of(m->waiting);
}

weft_status weft_decode_cluster(weft_arena *arena, weft_span bytes,
                                weft_cluster_info *out, weft_err *err)
{
    static const uint8_t nothing;
    const uint8_t *const data = (const uint8_t *)bytes.data;
    ProtobufCAllocator allocator = {
        .alloc = weft_arena_alloc,
        .free = weft_arena_ignore_free,
        .allocator_data = arena,
    };
    WEFT_TRY(weft_message_validate(&weft__v1__get_cluster_response__descriptor,
                                   data, bytes.n, err));
    const Weft__V1__GetClusterResponse *const m =
        weft__v1__get_cluster_response__unpack(&allocator, bytes.n,
                                               data != NULL ? data : &nothing);
    if (m == NULL)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "the message cannot be decoded");
    weft_cluster_info info = {.epoch = m->epoch,
                              .registry_reachable = m->registry_reachable};
    WEFT_TRY(lists_in(arena, m, &info, err));
    WEFT_TRY(load_in(m->load, &info.load, err));
    placement_in(m->placement, &info);
    *out = info;
    return WEFT_OK;
}
