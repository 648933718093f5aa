/* server.h - the gRPC server of the node.
 *
 * Serves weft.v1.Generation and weft.v1.Cluster through a table of ops
 * (service.h), and by itself grpc.health.v1.Health and server reflection v1 and
 * v1alpha. Any other method
 * is UNIMPLEMENTED. It knows no models, and no policy beyond the limits below.
 *
 * Limits hold before anything is decoded: the size of a message and of all that
 * are coming in (beyond which gRPC ends calls that send), the streams of a
 * connection, the calls in all. Compressed messages are refused, since their
 * size is not known before they are taken apart.
 *
 * With TLS, connections go through tls_front.h.
 *
 * Draining, in this order: set_serving(false) (health says NOT_SERVING, Watch
 * streams hear it; calls still arrive, and the service refuses what it wants
 * to), then stop.
 *
 * Threads: start, stop and destroy by one thread, the owner; set_serving and
 * address by any, between start and stop. One thread of its own.
 * Guarantees: every call ends with exactly one status.
 */
#ifndef WEFT_NODE_RPC_SERVER_H
#define WEFT_NODE_RPC_SERVER_H

#include <stdbool.h>

#include "node/rpc/keys.h"
#include "node/rpc/service.h"
#include "shard/link/tls.h"

typedef struct weft_rpc_server weft_rpc_server;

typedef struct weft_rpc_options {
    const char *listen; /* HOST:PORT or [HOST]:PORT; port 0 takes a free one */
    size_t message_bytes_max;  /* of a received message */
    size_t incoming_bytes_max; /* of all messages that are being received */
    size_t decoded_bytes_max;  /* of one request in memory */
    size_t waiting_bytes_max;  /* of one stream, for its client to take */
    int32_t streams_max;       /* of one connection */
    int32_t calls_max;         /* in all; more are RESOURCE_EXHAUSTED */
    uint64_t stall_ns; /* a client that takes nothing for so long is cut */
    weft_tls *tls;     /* facing clients; borrowed until destroy; NULL: plain */
    /* Borrowed until destroy; NULL: everybody may call. Methods of weft.v1 then
     * want `authorization: Bearer KEY`, else they are UNAUTHENTICATED; health
     * and reflection want nothing. */
    weft_keys *keys;
    const weft_service_ops *ops; /* borrowed until destroy */
    void *ops_arg;
} weft_rpc_options;

/* All but listen, ops and ops_arg. */
weft_rpc_options weft_rpc_options_default(void);

/* Bind and serve; health says SERVING. Ops may be called before this returns.
 * INVALID_ARGUMENT: `listen` is malformed. UNAVAILABLE: it cannot be bound; the
 * text names it. RESOURCE_EXHAUSTED: no memory or thread. */
WEFT_MUST_CHECK weft_status
weft_rpc_server_start(const weft_rpc_options *options,
                      weft_rpc_server **server_out, weft_err *err);

/* The address that is bound, HOST:PORT; borrowed until destroy. */
const char *weft_rpc_server_address(const weft_rpc_server *server);

/* What health says. */
void weft_rpc_server_set_serving(weft_rpc_server *server, bool serving);

/* Close the listeners, let running calls go on for grace_ns, then cancel what
 * is left, and return when the service has ended every call: so its threads
 * must still run. Ops are not called after it returns. Twice is fine. */
void weft_rpc_server_stop(weft_rpc_server *server, uint64_t grace_ns);

void weft_rpc_server_destroy(weft_rpc_server *server); /* NULL is fine; stops */

#endif
