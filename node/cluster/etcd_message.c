#include "node/cluster/etcd_message.h"

#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>
#include <stdio.h>
#include <string.h>

#include "node/base/mem.h"

/* --- requests ------------------------------------------------------------ */

/* protobuf-c wants to be able to write to what it only reads. */
static ProtobufCBinaryData borrowed(const void *data, size_t n)
{
    union {
        const void *from;
        uint8_t *to;
    } at = {.from = data};
    return (ProtobufCBinaryData){.len = n, .data = at.to};
}

static ProtobufCBinaryData text(const char *from)
{
    return borrowed(from, strlen(from));
}

grpc_byte_buffer *weft_etcd_pack(const ProtobufCMessage *message)
{
    grpc_slice slice =
        grpc_slice_malloc(protobuf_c_message_get_packed_size(message));
    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

grpc_byte_buffer *weft_etcd_range(const weft_etcd_prefix *prefix,
                                  weft_span after, int64_t revision,
                                  int64_t limit)
{
    Etcdserverpb__RangeRequest range = ETCDSERVERPB__RANGE_REQUEST__INIT;
    char *next = NULL;
    range.key = text(prefix->from);
    if (after.n > 0) {
        /* The key that comes next after any is that key and a NUL. */
        next = weft_mem_new(after.n + 1, 1);
        if (next == NULL) return NULL;
        memcpy(next, after.data, after.n);
        range.key = borrowed(next, after.n + 1);
    }
    range.range_end = text(prefix->to);
    range.revision = revision;
    range.limit = limit;
    grpc_byte_buffer *const buffer = weft_etcd_pack(&range.base);
    weft_mem_free(next);
    return buffer;
}

/* What the messages of a transaction point to. */
struct txn_parts {
    char keys[WEFT_TXN_COMPARES_MAX + WEFT_TXN_WRITES_MAX][WEFT_ETCD_KEY_BYTES];
    char ends[WEFT_TXN_WRITES_MAX][WEFT_ETCD_KEY_BYTES];
    Etcdserverpb__Compare compares[WEFT_TXN_COMPARES_MAX];
    Etcdserverpb__Compare *compare_list[WEFT_TXN_COMPARES_MAX];
    Etcdserverpb__PutRequest puts[WEFT_TXN_WRITES_MAX];
    Etcdserverpb__DeleteRangeRequest deletes[WEFT_TXN_WRITES_MAX];
    Etcdserverpb__RequestOp ops[WEFT_TXN_WRITES_MAX];
    Etcdserverpb__RequestOp *op_list[WEFT_TXN_WRITES_MAX];
};

static ProtobufCBinaryData whole_key(const weft_etcd_prefix *prefix,
                                     const char *key,
                                     char out[WEFT_ETCD_KEY_BYTES])
{
    const int n = snprintf(out, WEFT_ETCD_KEY_BYTES, "%s%s", prefix->from, key);
    return borrowed(out, (size_t)n);
}

/* The first key behind all that begin with `key`. A key is ASCII, so its last
 * byte has a successor. */
static ProtobufCBinaryData behind(ProtobufCBinaryData key,
                                  char out[WEFT_ETCD_KEY_BYTES])
{
    memcpy(out, key.data, key.len);
    out[key.len - 1] = (char)(out[key.len - 1] + 1);
    return borrowed(out, key.len);
}

static void make_compare(struct txn_parts *parts, int32_t i,
                         const weft_etcd_prefix *prefix,
                         const weft_txn_compare *from)
{
    Etcdserverpb__Compare *c = &parts->compares[i];
    etcdserverpb__compare__init(c);
    c->result = ETCDSERVERPB__COMPARE__COMPARE_RESULT__EQUAL;
    c->target = ETCDSERVERPB__COMPARE__COMPARE_TARGET__MOD;
    c->key = whole_key(prefix, from->key, parts->keys[i]);
    c->target_union_case = ETCDSERVERPB__COMPARE__TARGET_UNION_MOD_REVISION;
    c->mod_revision = from->mod_revision;
    parts->compare_list[i] = c;
}

static void make_write(struct txn_parts *parts, int32_t i,
                       const weft_etcd_prefix *prefix,
                       const weft_txn_write *from, int64_t lease)
{
    Etcdserverpb__RequestOp *op = &parts->ops[i];
    const ProtobufCBinaryData key =
        whole_key(prefix, from->key, parts->keys[WEFT_TXN_COMPARES_MAX + i]);
    etcdserverpb__request_op__init(op);
    if (from->remove) {
        Etcdserverpb__DeleteRangeRequest *d = &parts->deletes[i];
        etcdserverpb__delete_range_request__init(d);
        d->key = key;
        if (from->prefix) d->range_end = behind(key, parts->ends[i]);
        op->request_case =
            ETCDSERVERPB__REQUEST_OP__REQUEST_REQUEST_DELETE_RANGE;
        op->request_delete_range = d;
    } else {
        Etcdserverpb__PutRequest *p = &parts->puts[i];
        etcdserverpb__put_request__init(p);
        p->key = key;
        p->value = borrowed(from->value.data, from->value.n);
        p->lease = from->leased ? lease : 0;
        op->request_case = ETCDSERVERPB__REQUEST_OP__REQUEST_REQUEST_PUT;
        op->request_put = p;
    }
    parts->op_list[i] = op;
}

grpc_byte_buffer *weft_etcd_txn(const weft_etcd_prefix *prefix,
                                const weft_txn *txn, int64_t lease)
{
    struct txn_parts parts;
    Etcdserverpb__TxnRequest request = ETCDSERVERPB__TXN_REQUEST__INIT;
    for (int32_t i = 0; i < txn->n_compares; i++)
        make_compare(&parts, i, prefix, &txn->compares[i]);
    for (int32_t i = 0; i < txn->n_writes; i++)
        make_write(&parts, i, prefix, &txn->writes[i], lease);
    request.n_compare = (size_t)txn->n_compares;
    request.compare = parts.compare_list;
    request.n_success = (size_t)txn->n_writes;
    request.success = parts.op_list;
    return weft_etcd_pack(&request.base);
}

grpc_byte_buffer *weft_etcd_watch(const weft_etcd_prefix *prefix,
                                  int64_t from_revision)
{
    Etcdserverpb__WatchCreateRequest create =
        ETCDSERVERPB__WATCH_CREATE_REQUEST__INIT;
    Etcdserverpb__WatchRequest request = ETCDSERVERPB__WATCH_REQUEST__INIT;
    create.key = text(prefix->from);
    create.range_end = text(prefix->to);
    create.start_revision = from_revision;
    request.request_union_case =
        ETCDSERVERPB__WATCH_REQUEST__REQUEST_UNION_CREATE_REQUEST;
    request.create_request = &create;
    return weft_etcd_pack(&request.base);
}

grpc_byte_buffer *weft_etcd_watch_ping(void)
{
    Etcdserverpb__WatchProgressRequest progress =
        ETCDSERVERPB__WATCH_PROGRESS_REQUEST__INIT;
    Etcdserverpb__WatchRequest request = ETCDSERVERPB__WATCH_REQUEST__INIT;
    request.request_union_case =
        ETCDSERVERPB__WATCH_REQUEST__REQUEST_UNION_PROGRESS_REQUEST;
    request.progress_request = &progress;
    return weft_etcd_pack(&request.base);
}

grpc_byte_buffer *weft_etcd_grant(int64_t ttl_s)
{
    Etcdserverpb__LeaseGrantRequest request =
        ETCDSERVERPB__LEASE_GRANT_REQUEST__INIT;
    request.ttl = ttl_s;
    return weft_etcd_pack(&request.base);
}

grpc_byte_buffer *weft_etcd_keep_alive(int64_t lease)
{
    Etcdserverpb__LeaseKeepAliveRequest request =
        ETCDSERVERPB__LEASE_KEEP_ALIVE_REQUEST__INIT;
    request.id = lease;
    return weft_etcd_pack(&request.base);
}

grpc_byte_buffer *weft_etcd_revoke(int64_t lease)
{
    Etcdserverpb__LeaseRevokeRequest request =
        ETCDSERVERPB__LEASE_REVOKE_REQUEST__INIT;
    request.id = lease;
    return weft_etcd_pack(&request.base);
}

grpc_byte_buffer *weft_etcd_authenticate(const char *name, const char *password)
{
    Etcdserverpb__AuthenticateRequest request =
        ETCDSERVERPB__AUTHENTICATE_REQUEST__INIT;
    request.name = text(name);
    request.password = text(password);
    return weft_etcd_pack(&request.base);
}

/* --- answers ------------------------------------------------------------- */

const ProtobufCMessage *weft_etcd_unpack(const ProtobufCMessageDescriptor *type,
                                         grpc_byte_buffer *from,
                                         weft_arena *arena)
{
    /* protobuf-c wants an address even for nothing. */
    static const uint8_t nothing;
    ProtobufCAllocator allocator = {
        .alloc = weft_arena_alloc,
        .free = weft_arena_ignore_free,
        .allocator_data = arena,
    };
    grpc_byte_buffer_reader reader;
    if (from == NULL || grpc_byte_buffer_reader_init(&reader, from) == 0)
        return NULL;
    grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
    grpc_byte_buffer_reader_destroy(&reader);
    const size_t n = GRPC_SLICE_LENGTH(slice);
    const ProtobufCMessage *message = protobuf_c_message_unpack(
        type, &allocator, n, n > 0 ? GRPC_SLICE_START_PTR(slice) : &nothing);
    grpc_slice_unref(slice);
    return message;
}

bool weft_etcd_key(const weft_etcd_prefix *prefix, ProtobufCBinaryData key,
                   char out[WEFT_KEY_BYTES])
{
    if (key.len <= prefix->n || key.len - prefix->n >= WEFT_KEY_BYTES ||
        memcmp(key.data, prefix->from, prefix->n) != 0 ||
        !weft_registry_is_key(key.data + prefix->n, key.len - prefix->n))
        return false;
    memcpy(out, key.data + prefix->n, key.len - prefix->n);
    out[key.len - prefix->n] = '\0';
    return true;
}
