/* listener.h - takes the connections of a gRPC server.
 *
 * gRPC's own listener closes for good when accept finds no free file
 * descriptor: any client that opens enough connections would end the service.
 * This one turns away what comes when descriptors are short, and goes on. Some
 * are left free for files and probes.
 *
 * Threads: open, start and close by one thread, the owner. One of its own.
 */
#ifndef WEFT_NODE_RPC_LISTENER_H
#define WEFT_NODE_RPC_LISTENER_H

#include "node/base/address.h"
#include "node/base/err.h"

typedef struct weft_listener weft_listener;

/* A connection: non-blocking, close-on-exec, the taker's to close. Called on
 * the listener's thread, not after close returns. */
typedef void (*weft_listener_fn)(void *arg, int fd);

/* Bind every address that the host has. *address's port 0 becomes the one that
 * is bound. UNAVAILABLE: none can be bound; the text names the address and says
 * why. RESOURCE_EXHAUSTED: no memory or descriptor. */
WEFT_MUST_CHECK weft_status weft_listener_open(weft_address *address,
                                               weft_listener **listener_out,
                                               weft_err *err);

/* Connections come from here on. RESOURCE_EXHAUSTED: no thread. */
WEFT_MUST_CHECK weft_status weft_listener_start(weft_listener *listener,
                                                weft_listener_fn take,
                                                void *arg, weft_err *err);

void weft_listener_close(weft_listener *listener); /* NULL is fine */

#endif
