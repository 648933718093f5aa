#include "node/cluster/values.h"

#include <string.h>

#include "cluster.pb-c.h"
#include "node/base/check.h"
#include "node/cluster/values_internal.h"
#include "proto/validate.h"

enum {
    /* Decoded, a small value takes no more than a few times its bytes. */
    ARENA_BYTES = 64 << 10,
};

/* protobuf-c's structs are written by its decoder too, so its pointers are not
 * const; packing only reads through them. */
ProtobufCBinaryData weft_value_text(const char *text)
{
    union {
        const char *from;
        uint8_t *to;
    } data = {.from = text};
    return (ProtobufCBinaryData){.len = strlen(text), .data = data.to};
}

weft_status weft_value_pack(const ProtobufCMessage *message, size_t bytes_max,
                            weft_buf *out, weft_err *err)
{
    static const char zeros[512];
    const size_t n = protobuf_c_message_get_packed_size(message);
    if (n > bytes_max)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "a value of %zu bytes for the registry (allowed: at "
                         "most %zu)",
                         n, bytes_max);
    weft_buf_clear(out);
    for (size_t at = 0; at < n; at += sizeof zeros)
        WEFT_TRY(weft_buf_add(
            out, zeros, n - at < sizeof zeros ? n - at : sizeof zeros, err));
    if (n > 0) (void)protobuf_c_message_pack(message, (uint8_t *)out->data);
    return WEFT_OK;
}

weft_status weft_value_unpack(const ProtobufCMessageDescriptor *type,
                              weft_span value, size_t bytes_max,
                              size_t arena_bytes, weft_arena **arena_out,
                              ProtobufCMessage **message_out, weft_err *err)
{
    static const uint8_t nothing;
    const uint8_t *const data =
        value.n > 0 ? (const uint8_t *)value.data : &nothing;
    weft_arena *arena = NULL;
    if (value.n > bytes_max)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "a value of %zu bytes (allowed: at most %zu)", value.n,
                         bytes_max);
    WEFT_TRY(weft_message_validate(type, data, value.n, err));
    WEFT_TRY(weft_arena_create(arena_bytes, &arena, err));
    ProtobufCAllocator allocator = {
        .alloc = weft_arena_alloc,
        .free = weft_arena_ignore_free,
        .allocator_data = arena,
    };
    *message_out = protobuf_c_message_unpack(type, &allocator, value.n, data);
    if (*message_out != NULL) {
        *arena_out = arena;
        return WEFT_OK;
    }
    const bool limit = weft_arena_limit_hit(arena);
    weft_arena_destroy(arena);
    return limit ? WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "the value takes more than %zu bytes decoded",
                             arena_bytes)
                 : WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "the value cannot be decoded");
}

weft_status weft_value_check_version(uint32_t version, weft_err *err)
{
    return weft_value_check_range("version", version, 1, WEFT_VALUE_VERSION,
                                  err);
}

weft_status weft_value_check_range(const char *field, uint64_t value,
                                   uint64_t min, uint64_t max, weft_err *err)
{
    if (value >= min && value <= max) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                     "%s is %llu (allowed: %llu to %llu)", field,
                     (unsigned long long)value, (unsigned long long)min,
                     (unsigned long long)max);
}

weft_status weft_value_copy_text(const char *field, ProtobufCBinaryData text,
                                 char *out, size_t bytes, weft_err *err)
{
    if (text.len >= bytes)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%s has %zu bytes (allowed: at most %zu)", field,
                         text.len, bytes - 1);
    for (size_t i = 0; i < text.len; i++)
        if (text.data[i] < 0x20 || text.data[i] == 0x7f)
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "%s has a control character", field);
    if (text.len > 0) memcpy(out, text.data, text.len);
    out[text.len] = '\0';
    return WEFT_OK;
}

weft_status weft_value_copy_id(const char *field, ProtobufCBinaryData text,
                               char out[WEFT_ID_BYTES], weft_err *err)
{
    WEFT_TRY(weft_value_copy_text(field, text, out, WEFT_ID_BYTES, err));
    if (weft_id_is_valid(out)) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                     "%s is not a name (allowed: A-Z a-z 0-9 . _ -)", field);
}

/* -- member --------------------------------------------------------------- */

weft_status weft_member_encode(const weft_member *member, weft_buf *out,
                               weft_err *err)
{
    Weft__Cluster__V1__Member m = WEFT__CLUSTER__V1__MEMBER__INIT;
    m.version = WEFT_VALUE_VERSION;
    m.id = weft_value_text(member->id);
    m.role = (uint32_t)member->role;
    m.state = (uint32_t)member->state;
    m.address = weft_value_text(member->address);
    m.incarnation = member->incarnation;
    m.group = (uint32_t)member->group;
    m.stage = (uint32_t)member->stage;
    m.n_stages = (uint32_t)member->n_stages;
    m.config_hash = member->config_hash;
    m.weights_hash = member->weights_hash;
    m.release = weft_value_text(member->release);
    m.identity = weft_value_text(member->identity);
    m.device = weft_value_text(member->device);
    m.capacity_bytes = (uint64_t)member->capacity_bytes;
    m.expert_bytes = (uint64_t)member->expert_bytes;
    m.kv_bytes = (uint64_t)member->kv_bytes;
    m.epoch = member->epoch;
    return weft_value_pack(&m.base, WEFT_VALUE_BYTES_MAX, out, err);
}

static weft_status member_numbers(const Weft__Cluster__V1__Member *in,
                                  weft_member *m, weft_err *err)
{
    const struct {
        const char *field;
        uint64_t value, min, max;
    } ranges[] = {
        {"role", in->role, WEFT_ROLE_ROUTER, WEFT_ROLE_EXPERTS},
        {"state", in->state, WEFT_MEMBER_JOINING, WEFT_MEMBER_DRAINING},
        {"incarnation", in->incarnation, 1, WEFT_EPOCH_MAX},
        {"group", in->group, 0, WEFT_GROUP_MAX - 1},
        {"n_stages", in->n_stages, 0, WEFT_GROUP_MAX},
        {"stage", in->stage, 0, in->n_stages > 0 ? in->n_stages - 1 : 0},
        {"capacity_bytes", in->capacity_bytes, 0, INT64_MAX},
        {"expert_bytes", in->expert_bytes, 0, WEFT_ONE_EXPERT_BYTES_MAX},
        {"kv_bytes", in->kv_bytes, 0, INT64_MAX},
        {"epoch", in->epoch, 0, WEFT_EPOCH_MAX - 1},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        WEFT_TRY(weft_value_check_range(ranges[i].field, ranges[i].value,
                                        ranges[i].min, ranges[i].max, err));
    m->role = (weft_role)in->role;
    m->state = (weft_member_state)in->state;
    m->incarnation = in->incarnation;
    m->group = (int32_t)in->group;
    m->stage = (int32_t)in->stage;
    m->n_stages = (int32_t)in->n_stages;
    m->capacity_bytes = (int64_t)in->capacity_bytes;
    m->expert_bytes = (int64_t)in->expert_bytes;
    m->kv_bytes = (int64_t)in->kv_bytes;
    m->epoch = in->epoch;
    m->config_hash = in->config_hash;
    m->weights_hash = in->weights_hash;
    return WEFT_OK;
}

static weft_status member_of(const Weft__Cluster__V1__Member *in,
                             weft_member *out, weft_err *err)
{
    weft_member m = {.mod_revision = 0};
    WEFT_TRY(weft_value_check_version(in->version, err));
    WEFT_TRY(member_numbers(in, &m, err));
    WEFT_TRY(weft_value_copy_id("id", in->id, m.id, err));
    WEFT_TRY(weft_value_copy_text("address", in->address, m.address,
                                  sizeof m.address, err));
    WEFT_TRY(weft_value_copy_text("release", in->release, m.release,
                                  sizeof m.release, err));
    WEFT_TRY(weft_value_copy_text("identity", in->identity, m.identity,
                                  sizeof m.identity, err));
    WEFT_TRY(weft_value_copy_text("device", in->device, m.device,
                                  sizeof m.device, err));
    *out = m;
    return WEFT_OK;
}

/* Unpack `value` as a NAME, hand it to `read`, and let go of it. */
#define DECODE(name, read, out)                                                \
    do {                                                                       \
        weft_arena *arena = NULL;                                              \
        ProtobufCMessage *base = NULL;                                         \
        WEFT_TRY(weft_value_unpack(&weft__cluster__v1__##name##__descriptor,   \
                                   value, WEFT_VALUE_BYTES_MAX, ARENA_BYTES,   \
                                   &arena, &base, err));                       \
        WEFT_ASSERT(base != NULL);                                             \
        const weft_status st = read((const void *)base, (out), err);           \
        weft_arena_destroy(arena);                                             \
        return st;                                                             \
    } while (0)

weft_status weft_member_decode(weft_span value, weft_member *out, weft_err *err)
{
    DECODE(member, member_of, out);
}

/* -- holder, number ------------------------------------------------------- */

weft_status weft_holder_encode(const char *id, weft_buf *out, weft_err *err)
{
    Weft__Cluster__V1__Holder m = WEFT__CLUSTER__V1__HOLDER__INIT;
    m.version = WEFT_VALUE_VERSION;
    m.id = weft_value_text(id);
    return weft_value_pack(&m.base, WEFT_VALUE_BYTES_MAX, out, err);
}

static weft_status holder_of(const Weft__Cluster__V1__Holder *in,
                             char id_out[WEFT_ID_BYTES], weft_err *err)
{
    char id[WEFT_ID_BYTES];
    WEFT_TRY(weft_value_check_version(in->version, err));
    WEFT_TRY(weft_value_copy_id("id", in->id, id, err));
    memcpy(id_out, id, sizeof id);
    return WEFT_OK;
}

weft_status weft_holder_decode(weft_span value, char id_out[WEFT_ID_BYTES],
                               weft_err *err)
{
    DECODE(holder, holder_of, id_out);
}

weft_status weft_number_encode(uint64_t number, weft_buf *out, weft_err *err)
{
    Weft__Cluster__V1__Number m = WEFT__CLUSTER__V1__NUMBER__INIT;
    m.version = WEFT_VALUE_VERSION;
    m.value = number;
    return weft_value_pack(&m.base, WEFT_VALUE_BYTES_MAX, out, err);
}

static weft_status number_of(const Weft__Cluster__V1__Number *in, uint64_t *out,
                             weft_err *err)
{
    WEFT_TRY(weft_value_check_version(in->version, err));
    WEFT_TRY(
        weft_value_check_range("value", in->value, 0, WEFT_EPOCH_MAX - 1, err));
    *out = in->value;
    return WEFT_OK;
}

weft_status weft_number_decode(weft_span value, uint64_t *out, weft_err *err)
{
    DECODE(number, number_of, out);
}

/* -- ack, switched, suspicion --------------------------------------------- */

weft_status weft_ack_encode(const weft_ack *ack, weft_buf *out, weft_err *err)
{
    Weft__Cluster__V1__Ack m = WEFT__CLUSTER__V1__ACK__INIT;
    m.version = WEFT_VALUE_VERSION;
    m.epoch = ack->epoch;
    m.id = weft_value_text(ack->id);
    m.incarnation = ack->incarnation;
    m.placement_hash = ack->placement_hash;
    m.failed = ack->failed;
    m.text = weft_value_text(ack->text);
    m.loaded_bytes = (uint64_t)ack->loaded_bytes;
    return weft_value_pack(&m.base, WEFT_VALUE_BYTES_MAX, out, err);
}

static weft_status check_epoch(uint64_t epoch, weft_err *err)
{
    return weft_value_check_range("epoch", epoch, 1, WEFT_EPOCH_MAX - 1, err);
}

static weft_status ack_of(const Weft__Cluster__V1__Ack *in, weft_ack *out,
                          weft_err *err)
{
    weft_ack a = {
        .epoch = in->epoch,
        .incarnation = in->incarnation,
        .placement_hash = in->placement_hash,
        .failed = in->failed != 0,
        .loaded_bytes = (int64_t)in->loaded_bytes,
    };
    WEFT_TRY(weft_value_check_version(in->version, err));
    WEFT_TRY(check_epoch(in->epoch, err));
    WEFT_TRY(weft_value_check_range("loaded_bytes", in->loaded_bytes, 0,
                                    INT64_MAX, err));
    WEFT_TRY(weft_value_copy_id("id", in->id, a.id, err));
    WEFT_TRY(
        weft_value_copy_text("text", in->text, a.text, sizeof a.text, err));
    *out = a;
    return WEFT_OK;
}

weft_status weft_ack_decode(weft_span value, weft_ack *out, weft_err *err)
{
    DECODE(ack, ack_of, out);
}

weft_status weft_switched_encode(const weft_switched *switched, weft_buf *out,
                                 weft_err *err)
{
    Weft__Cluster__V1__Switched m = WEFT__CLUSTER__V1__SWITCHED__INIT;
    m.version = WEFT_VALUE_VERSION;
    m.epoch = switched->epoch;
    m.group = switched->group;
    m.incarnation = switched->incarnation;
    return weft_value_pack(&m.base, WEFT_VALUE_BYTES_MAX, out, err);
}

static weft_status switched_of(const Weft__Cluster__V1__Switched *in,
                               weft_switched *out, weft_err *err)
{
    WEFT_TRY(weft_value_check_version(in->version, err));
    WEFT_TRY(check_epoch(in->epoch, err));
    WEFT_TRY(
        weft_value_check_range("group", in->group, 0, WEFT_GROUP_MAX - 1, err));
    *out = (weft_switched){
        .epoch = in->epoch, .group = in->group, .incarnation = in->incarnation};
    return WEFT_OK;
}

weft_status weft_switched_decode(weft_span value, weft_switched *out,
                                 weft_err *err)
{
    DECODE(switched, switched_of, out);
}

weft_status weft_suspicion_encode(const weft_suspicion *suspicion,
                                  weft_buf *out, weft_err *err)
{
    Weft__Cluster__V1__Suspicion m = WEFT__CLUSTER__V1__SUSPICION__INIT;
    m.version = WEFT_VALUE_VERSION;
    m.id = weft_value_text(suspicion->id);
    m.reporter = weft_value_text(suspicion->reporter);
    m.incarnation = suspicion->incarnation;
    return weft_value_pack(&m.base, WEFT_VALUE_BYTES_MAX, out, err);
}

static weft_status suspicion_of(const Weft__Cluster__V1__Suspicion *in,
                                weft_suspicion *out, weft_err *err)
{
    weft_suspicion s = {.incarnation = in->incarnation};
    WEFT_TRY(weft_value_check_version(in->version, err));
    WEFT_TRY(weft_value_copy_id("id", in->id, s.id, err));
    WEFT_TRY(weft_value_copy_id("reporter", in->reporter, s.reporter, err));
    *out = s;
    return WEFT_OK;
}

weft_status weft_suspicion_decode(weft_span value, weft_suspicion *out,
                                  weft_err *err)
{
    DECODE(suspicion, suspicion_of, out);
}
