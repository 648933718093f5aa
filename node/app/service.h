/* service.h - the calls of weft.v1.Generation and weft.v1.Cluster: node/rpc on
 * one side, the router and what computes (view.h) on the other.
 *
 * Translation and nothing else: limits are the router's, the wire is
 * node/rpc's.
 *
 * Threads: create and destroy by one thread; the ops run on the server's
 * thread, answers come from the router's two.
 */
#ifndef WEFT_NODE_APP_SERVICE_H
#define WEFT_NODE_APP_SERVICE_H

#include "node/app/view.h"
#include "node/rpc/service.h"
#include "router/router.h"
#include "shard/step/engine.h"

typedef struct weft_service weft_service;

typedef struct weft_service_options {
    weft_router *router; /* borrowed until destroy, like all of these */
    const weft_view *view;
    const weft_model_config *config;
    const char *name;
    int32_t max_context;
    const _Atomic int32_t *max_context_now; /* see router/admit.h; or NULL */
    int32_t max_live; /* requests that the router takes at once */
    /* Hears the status of every Generate call, refused ones too, just before
     * its client does. */
    void (*count_end)(void *arg, weft_status status);
    void *count_arg;
} weft_service_options;

/* RESOURCE_EXHAUSTED: no memory. */
WEFT_MUST_CHECK weft_status
weft_service_create(const weft_service_options *options,
                    weft_service **service_out, weft_err *err);
/* After the server has stopped. NULL is fine. */
void weft_service_destroy(weft_service *service);

/* The argument of these ops is a weft_service. */
weft_service_ops weft_service_get_ops(void);

/* For the router: whether the client of a Tokenize or Detokenize waits. */
bool weft_service_is_wanted(void *call);

/* The router's way to the engine. */
weft_lead weft_service_lead(weft_engine *engine);

#endif
