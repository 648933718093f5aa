/* etcd_message.h - requests to etcd as bytes, its answers as plain C.
 *
 * Requests are packed by protobuf-c; answers are read by it into an arena, so
 * that one takes no more memory than the arena's limit. No message that is read
 * nests without end (see proto/etcd_subset.proto).
 *
 * Threads: any.
 */
#ifndef WEFT_NODE_CLUSTER_ETCD_MESSAGE_H
#define WEFT_NODE_CLUSTER_ETCD_MESSAGE_H

#include <grpc/byte_buffer.h>

#include "etcd_subset.pb-c.h"
#include "node/base/arena.h"
#include "node/cluster/registry.h"

enum {
    /* "/weft/" and the cluster's name, with NUL. */
    WEFT_ETCD_PREFIX_BYTES = 80,
    WEFT_ETCD_KEY_BYTES = WEFT_ETCD_PREFIX_BYTES + WEFT_KEY_BYTES,
};

/* A message as it is sent; the caller's to destroy. */
grpc_byte_buffer *weft_etcd_pack(const ProtobufCMessage *message);

/* The prefix of all keys, and the first key behind them. */
typedef struct weft_etcd_prefix {
    char from[WEFT_ETCD_PREFIX_BYTES], to[WEFT_ETCD_PREFIX_BYTES];
    size_t n;
} weft_etcd_prefix;

/* All keys of the prefix at `revision` (0: the newest) that come behind `after`
 * (n 0: all; else any key, as long as it may be), at most `limit`. NULL: no
 * memory. */
grpc_byte_buffer *weft_etcd_range(const weft_etcd_prefix *prefix,
                                  weft_span after, int64_t revision,
                                  int64_t limit);
grpc_byte_buffer *weft_etcd_txn(const weft_etcd_prefix *prefix,
                                const weft_txn *txn, int64_t lease);
grpc_byte_buffer *weft_etcd_watch(const weft_etcd_prefix *prefix,
                                  int64_t from_revision);
/* Asks for a sign of life on a watch. */
grpc_byte_buffer *weft_etcd_watch_ping(void);
grpc_byte_buffer *weft_etcd_grant(int64_t ttl_s);
grpc_byte_buffer *weft_etcd_keep_alive(int64_t lease);
grpc_byte_buffer *weft_etcd_revoke(int64_t lease);
grpc_byte_buffer *weft_etcd_authenticate(const char *name,
                                         const char *password);

/* A message of `type` in the arena; NULL: it is none, or too large. */
const ProtobufCMessage *weft_etcd_unpack(const ProtobufCMessageDescriptor *type,
                                         grpc_byte_buffer *from,
                                         weft_arena *arena);

/* The key below the prefix, into out. false: it is not below it, or no
 * key (registry.h). */
bool weft_etcd_key(const weft_etcd_prefix *prefix, ProtobufCBinaryData key,
                   char out[WEFT_KEY_BYTES]);

#endif
