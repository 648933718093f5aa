/* gauges.h - what a serving process tells of itself over HTTP: metrics, and
 * whether it is healthy and ready.
 *
 * It gathers: counts and times come to it from the router, the engine and the
 * RPC server; how many run, wait and hold memory it asks when it is scraped,
 * of the router and of what computes (view.h).
 *
 * Threads: create, destroy by one thread; counting by any; answers are made on
 * the HTTP server's thread.
 */
#ifndef WEFT_NODE_APP_GAUGES_H
#define WEFT_NODE_APP_GAUGES_H

#include "node/app/view.h"
#include "node/rpc/http/http.h"
#include "router/router.h"

typedef struct weft_gauges weft_gauges;

/* RESOURCE_EXHAUSTED: no memory. */
WEFT_MUST_CHECK weft_status weft_gauges_create(weft_gauges **gauges_out,
                                               weft_err *err);
void weft_gauges_destroy(weft_gauges *gauges); /* NULL is fine */

/* Where what is asked comes from; before the HTTP server starts. Borrowed while
 * that runs. */
void weft_gauges_set_sources(weft_gauges *gauges, const weft_router *router,
                             const weft_view *view);

/* The clock that says whether a step hangs; it is weft_clock_now_ns unless a
 * test has another. Before the HTTP server starts. */
void weft_gauges_set_clock(weft_gauges *gauges, uint64_t (*now_ns)(void));

/* Counting; `gauges` is a weft_gauges. */
weft_watch weft_gauges_watch(weft_gauges *gauges);
void weft_gauges_count_step(void *gauges, uint64_t step_ns, int32_t n_rows);
void weft_gauges_count_end(void *gauges, weft_status status);

/* /healthz: 200 unless a step hangs. /readyz: 200 when generate would be
 * served, else 503 with the reason: "starting", "draining", "a step hangs", or
 * what the view says. */
weft_http_ops weft_gauges_http_ops(weft_gauges *gauges);
/* The RPC server listens: ready unless draining. */
void weft_gauges_set_started(weft_gauges *gauges);

#endif
