/* public_face.h - what `weft serve` and `weft router` have in common: a router
 * with its service, gauges, gRPC and HTTP servers in front of something that
 * computes (view.h).
 *
 * In this order: create; whatever takes events of the lead, and the view;
 * start; tell_ready; ...; drain; stop; the end of what computes; destroy.
 *
 * Threads: the main one.
 */
#ifndef WEFT_NODE_APP_PUBLIC_FACE_H
#define WEFT_NODE_APP_PUBLIC_FACE_H

#include <limits.h>

#include "node/app/gauges.h"
#include "node/app/options.h"
#include "node/app/service.h"
#include "node/rpc/server.h"

typedef struct weft_face_options {
    const weft_options *options;     /* borrowed, as are the next two */
    const weft_model_config *config; /* stop ids of the tokenizer included */
    const weft_tokenizer *tokenizer; /* NULL: ids only */
    int32_t max_context;
    const _Atomic int32_t *max_context_now; /* see router/admit.h; or NULL */
    int64_t requests_bytes; /* what live requests may grow to together */
    int64_t reserve_bytes;  /* for messages that arrive, among others */
    bool (*can_serve)(void *arg, char *reason_out, size_t reason_bytes);
    void *can_serve_arg; /* see router/router.h; NULL: always */
} weft_face_options;

typedef struct weft_face {
    weft_face_options options;
    const char *name;
    char folder_name[NAME_MAX + 1];
    weft_gauges *gauges;
    weft_router *router;
    weft_service *service;
    weft_service_ops ops;
    weft_http_server *http; /* NULL: --http off */
    weft_tls *tls;          /* NULL: plain */
    weft_keys *keys;        /* NULL: everybody may call */
    weft_rpc_server *rpc;
} weft_face;

/* Whether queue and batch are in range together, and files of TLS complete.
 * INVALID_ARGUMENT. */
WEFT_MUST_CHECK weft_status weft_face_check_options(const weft_options *options,
                                                    weft_err *err);
/* Both ports, tried and let go. */
WEFT_MUST_CHECK weft_status weft_face_check_ports(const weft_options *options,
                                                  weft_err *err);

/* Gauges and router. */
WEFT_MUST_CHECK weft_status weft_face_create(const weft_face_options *options,
                                             weft_face *face_out,
                                             weft_err *err);
/* Service and servers; `view` is borrowed until destroy. */
WEFT_MUST_CHECK weft_status weft_face_start(weft_face *face, weft_lead lead,
                                            const weft_view *view,
                                            weft_err *err);
/* The line on stdout. */
WEFT_MUST_CHECK weft_status weft_face_tell_ready(const weft_face *face,
                                                 weft_err *err);
/* Accepted streams go on for --drain-seconds, new calls are told to go
 * elsewhere; what is left when the time is up is cut. The gRPC server has
 * stopped then. */
void weft_face_drain(weft_face *face);
/* Servers and the router's threads; {0} is fine. */
void weft_face_stop(weft_face *face);
void weft_face_destroy(weft_face *face);

#endif
