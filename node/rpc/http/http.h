/* http.h - the small HTTP side of a node: /healthz, /readyz, /metrics.
 *
 * GET and HEAD only; other paths are 404, other methods 405. What is answered
 * comes from three functions. Requests have no body that is read.
 *
 * Threads: start and destroy by the owner; the functions are called on the
 * server's one thread and must not block for long. Guarantees: a bounded number
 * of connections, each with a time limit, so that silent or broken clients cost
 * no more than that.
 */
#ifndef WEFT_NODE_RPC_HTTP_HTTP_H
#define WEFT_NODE_RPC_HTTP_HTTP_H

#include "node/base/str.h"

typedef struct weft_http_server weft_http_server;

/* Writes the body; returns the HTTP status, such as 200 or 503. */
typedef int (*weft_http_fn)(void *arg, weft_buf *body);

typedef struct weft_http_ops {
    weft_http_fn healthz, readyz, metrics;
    void *arg;
} weft_http_ops;

/* Listen on HOST:PORT or [HOST]:PORT; port 0 takes a free one. `ops` is copied.
 * INVALID_ARGUMENT: `listen` is malformed. UNAVAILABLE: it cannot be bound; the
 * text names it. RESOURCE_EXHAUSTED: no memory or thread. */
WEFT_MUST_CHECK weft_status
weft_http_server_start(const char *listen, const weft_http_ops *ops,
                       weft_http_server **server_out, weft_err *err);

/* The address that is bound; borrowed until destroy. */
const char *weft_http_server_address(const weft_http_server *server);

/* Stop and join; NULL is fine. No function is called after it returns. */
void weft_http_server_destroy(weft_http_server *server);

#endif
