/* Any bytes as an answer of etcd (the first byte says to what): read within the
 * arena's limit or not at all, and what is told has keys that are keys. */
#include <grpc/grpc.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "node/base/check.h"
#include "node/cluster/etcd_message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const ProtobufCMessageDescriptor *type_of(uint8_t number)
{
    const ProtobufCMessageDescriptor *const types[] = {
        &etcdserverpb__range_response__descriptor,
        &etcdserverpb__watch_response__descriptor,
        &etcdserverpb__txn_response__descriptor,
        &etcdserverpb__lease_grant_response__descriptor,
        &etcdserverpb__lease_keep_alive_response__descriptor,
        &etcdserverpb__authenticate_response__descriptor,
    };
    return types[number % (sizeof types / sizeof *types)];
}

static void check_key(const weft_etcd_prefix *prefix, ProtobufCBinaryData key)
{
    char out[WEFT_KEY_BYTES];
    if (!weft_etcd_key(prefix, key, out)) return;
    WEFT_ASSERT(weft_registry_is_key(out, strlen(out)));
    WEFT_ASSERT(prefix->n + strlen(out) == key.len);
    WEFT_ASSERT(weft_registry_value_max(out) >= WEFT_VALUE_BYTES_MAX);
}

static void check_range(const weft_etcd_prefix *prefix,
                        const Etcdserverpb__RangeResponse *r)
{
    for (size_t i = 0; i < r->n_kvs; i++) {
        check_key(prefix, r->kvs[i]->key);
        grpc_byte_buffer *const next = weft_etcd_range(
            prefix,
            (weft_span){(const char *)r->kvs[i]->key.data, r->kvs[i]->key.len},
            1, 1);
        WEFT_ASSERT(next != NULL);
        grpc_byte_buffer_destroy(next);
    }
}

static void check_changes(const weft_etcd_prefix *prefix,
                          const Etcdserverpb__WatchResponse *r)
{
    for (size_t i = 0; i < r->n_events; i++)
        if (r->events[i]->kv != NULL) check_key(prefix, r->events[i]->kv->key);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { ARENA_BYTES = 1 << 20 };
    static bool begun;
    weft_etcd_prefix prefix;
    weft_arena *arena = NULL;
    if (!begun) grpc_init();
    begun = true;
    if (size == 0) return 0;
    prefix.n = (size_t)snprintf(prefix.from, sizeof prefix.from, "/weft/c/");
    (void)snprintf(prefix.to, sizeof prefix.to, "/weft/c0");
    grpc_slice slice =
        grpc_slice_from_copied_buffer((const char *)data + 1, size - 1);
    grpc_byte_buffer *const buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    WEFT_ASSERT(weft_arena_create(ARENA_BYTES, &arena, NULL) == WEFT_OK);
    const ProtobufCMessageDescriptor *const type = type_of(data[0]);
    const ProtobufCMessage *const message =
        weft_etcd_unpack(type, buffer, arena);
    WEFT_ASSERT(weft_arena_used(arena) <= ARENA_BYTES);
    if (message != NULL && data[0] % 6 == 0)
        check_range(&prefix, (const Etcdserverpb__RangeResponse *)message);
    if (message != NULL && data[0] % 6 == 1)
        check_changes(&prefix, (const Etcdserverpb__WatchResponse *)message);
    weft_arena_destroy(arena);
    grpc_byte_buffer_destroy(buffer);
    return 0;
}
