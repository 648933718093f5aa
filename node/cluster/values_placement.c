#include <string.h>

#include "cluster.pb-c.h"
#include "node/cluster/placement_internal.h"
#include "node/cluster/values_internal.h"

enum {
    /* A packed number of one byte becomes one of four; a member of a few bytes
     * becomes a struct of some hundred. */
    ARENA_BYTES = 48 * WEFT_PLACEMENT_BYTES_MAX,
};

static weft_status no_memory(weft_err *err)
{
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                     "no memory to encode a placement");
}

static weft_status fill(const weft_placement *p, weft_arena *arena,
                        Weft__Cluster__V1__Placement *m, weft_err *err)
{
    const size_t n = (size_t)p->n_members;
    const size_t n_owners =
        (size_t)p->n_layer * (size_t)p->n_expert * (size_t)p->n_replicas;
    Weft__Cluster__V1__PlacedMember *members =
        weft_arena_new(arena, n, sizeof *members);
    m->members = weft_arena_new(arena, n, sizeof(void *));
    m->owners = weft_arena_new(arena, n_owners, sizeof *m->owners);
    if (members == NULL || m->members == NULL || m->owners == NULL)
        return no_memory(err);
    for (size_t i = 0; i < n; i++) {
        weft__cluster__v1__placed_member__init(&members[i]);
        members[i].id = weft_value_text(p->members[i].id);
        members[i].incarnation = p->members[i].incarnation;
        members[i].address = weft_value_text(p->members[i].address);
        members[i].capacity_bytes = (uint64_t)p->members[i].capacity_bytes;
        m->members[i] = &members[i];
    }
    for (size_t i = 0; i < n_owners; i++)
        m->owners[i] =
            p->owners[i] == WEFT_NO_OWNER ? 0 : (uint32_t)p->owners[i] + 1;
    m->n_members = n;
    m->n_owners = n_owners;
    return WEFT_OK;
}

weft_status weft_placement_encode(const weft_placement *placement,
                                  weft_buf *out, weft_err *err)
{
    weft_arena *arena = NULL;
    Weft__Cluster__V1__Placement m = WEFT__CLUSTER__V1__PLACEMENT__INIT;
    m.version = WEFT_VALUE_VERSION;
    m.epoch = placement->epoch;
    m.n_layer = (uint32_t)placement->n_layer;
    m.n_expert = (uint32_t)placement->n_expert;
    m.n_replicas = (uint32_t)placement->n_replicas;
    WEFT_TRY(weft_arena_create(ARENA_BYTES, &arena, err));
    weft_status st = fill(placement, arena, &m, err);
    if (st == WEFT_OK)
        st = weft_value_pack(&m.base, WEFT_PLACEMENT_BYTES_MAX, out, err);
    weft_arena_destroy(arena);
    return st;
}

static weft_status check_sizes(const weft_placement_shape *shape,
                               const Weft__Cluster__V1__Placement *in,
                               weft_err *err)
{
    const uint64_t n_layer = (uint64_t)shape->n_layer;
    const uint64_t n_expert = (uint64_t)shape->n_expert;
    WEFT_TRY(weft_value_check_version(in->version, err));
    WEFT_TRY(
        weft_value_check_range("epoch", in->epoch, 1, WEFT_EPOCH_MAX - 1, err));
    WEFT_TRY(
        weft_value_check_range("n_layer", in->n_layer, n_layer, n_layer, err));
    WEFT_TRY(weft_value_check_range("n_expert", in->n_expert, n_expert,
                                    n_expert, err));
    WEFT_TRY(weft_value_check_range("n_replicas", in->n_replicas, 1,
                                    WEFT_REPLICAS_MAX, err));
    WEFT_TRY(weft_value_check_range("number of members", in->n_members, 1,
                                    WEFT_EXPERT_SHARDS_MAX, err));
    const uint64_t n_owners = n_layer * n_expert * in->n_replicas;
    return weft_value_check_range("number of owners", in->n_owners, n_owners,
                                  n_owners, err);
}

static weft_status members_of(const Weft__Cluster__V1__Placement *in,
                              weft_placement *p, weft_err *err)
{
    for (int32_t i = 0; i < p->n_members; i++) {
        const Weft__Cluster__V1__PlacedMember *from = in->members[i];
        weft_placement_member *m = &p->members[i];
        WEFT_TRY(weft_value_copy_id("members.id", from->id, m->id, err));
        WEFT_TRY(weft_value_copy_text("members.address", from->address,
                                      m->address, sizeof m->address, err));
        WEFT_TRY(weft_value_check_range(
            "members.incarnation", from->incarnation, 1, WEFT_EPOCH_MAX, err));
        WEFT_TRY(weft_value_check_range(
            "members.capacity_bytes", from->capacity_bytes, 0, INT64_MAX, err));
        m->incarnation = from->incarnation;
        m->capacity_bytes = (int64_t)from->capacity_bytes;
        if (i > 0 && strcmp(p->members[i - 1].id, m->id) >= 0)
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "members are not in order: %s after %s", m->id,
                             p->members[i - 1].id);
    }
    return WEFT_OK;
}

/* One expert's: first those that are, then nobody; all different. */
static bool owners_are_sound(const uint16_t *owners, int32_t n, bool moe)
{
    for (int32_t r = 0; r < n; r++) {
        if (owners[r] == WEFT_NO_OWNER) continue;
        if (!moe || (r > 0 && owners[r - 1] == WEFT_NO_OWNER)) return false;
        for (int32_t s = 0; s < r; s++)
            if (owners[s] == owners[r]) return false;
    }
    return !moe || owners[0] != WEFT_NO_OWNER;
}

static weft_status owners_of(const weft_placement_shape *shape,
                             const Weft__Cluster__V1__Placement *in,
                             weft_placement *p, weft_err *err)
{
    for (size_t i = 0; i < in->n_owners; i++) {
        WEFT_TRY(weft_value_check_range("owners", in->owners[i], 0,
                                        (uint64_t)p->n_members, err));
        p->owners[i] =
            in->owners[i] == 0 ? WEFT_NO_OWNER : (uint16_t)(in->owners[i] - 1);
    }
    for (int32_t l = 0; l < p->n_layer; l++)
        for (int32_t e = 0; e < p->n_expert; e++)
            if (!owners_are_sound(weft_placement_owners(p, l, e), p->n_replicas,
                                  shape->moe[l]))
                return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                                 "owners of layer %d, expert %d: none, one "
                                 "twice, a gap, or some where none belong",
                                 l, e);
    return WEFT_OK;
}

static weft_status placement_of(const weft_placement_shape *shape,
                                const Weft__Cluster__V1__Placement *in,
                                weft_placement **out, weft_err *err)
{
    weft_placement *p = NULL;
    WEFT_TRY(check_sizes(shape, in, err));
    WEFT_TRY(weft_placement_new(shape->n_layer, shape->n_expert,
                                (int32_t)in->n_replicas, (int32_t)in->n_members,
                                &p, err));
    p->epoch = in->epoch;
    weft_status st = members_of(in, p, err);
    if (st == WEFT_OK) st = owners_of(shape, in, p, err);
    if (st == WEFT_OK)
        *out = p;
    else
        weft_placement_destroy(p);
    return st;
}

weft_status weft_placement_decode(const weft_placement_shape *shape,
                                  weft_span value, weft_placement **out,
                                  weft_err *err)
{
    weft_arena *arena = NULL;
    ProtobufCMessage *base = NULL;
    WEFT_TRY(weft_value_unpack(&weft__cluster__v1__placement__descriptor, value,
                               WEFT_PLACEMENT_BYTES_MAX, ARENA_BYTES, &arena,
                               &base, err));
    const weft_status st = placement_of(shape, (const void *)base, out, err);
    weft_arena_destroy(arena);
    return st;
}
