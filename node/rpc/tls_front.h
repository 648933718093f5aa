/* tls_front.h - TLS in front of a gRPC server.
 *
 * gRPC takes a connection that somebody else has accepted only as a plain
 * socket, and its own listener ends for good when descriptors run out
 * (listener.h). So TLS ends here: a connection is a TLS session on its client's
 * socket, and a pair of local sockets of which the server is given one, when
 * the handshake is done and no earlier. One thread moves the bytes in between,
 * at most a buffer each way ahead of whoever reads.
 *
 * Bounded: a handshake has HANDSHAKE_MAX_NS; of more than HANDSHAKES_MAX that
 * are under way, the oldest is ended. Refused clients are logged at most once a
 * second, with the number left out.
 *
 * Threads: start and stop by one; take by any. One of its own.
 */
#ifndef WEFT_NODE_RPC_TLS_FRONT_H
#define WEFT_NODE_RPC_TLS_FRONT_H

#include "node/base/err.h"
#include "shard/link/tls.h"

typedef struct weft_tls_front weft_tls_front;

/* A plain connection to a client whose handshake is done: non-blocking, the
 * taker's to close. On the front's thread. */
typedef void (*weft_tls_front_fn)(void *arg, int fd);

/* tls is borrowed until stop. RESOURCE_EXHAUSTED: memory, descriptors, thread.
 */
WEFT_MUST_CHECK weft_status weft_tls_front_start(weft_tls *tls,
                                                 weft_tls_front_fn give,
                                                 void *arg,
                                                 weft_tls_front **front_out,
                                                 weft_err *err);
/* A client's connection, non-blocking; taken. */
void weft_tls_front_take(weft_tls_front *front, int fd);
/* Ends what is left. NULL is fine. */
void weft_tls_front_stop(weft_tls_front *front);

#endif
