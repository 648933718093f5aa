#include "node/app/gauges.h"

#include <stdatomic.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "node/obs/metrics.h"

struct weft_gauges {
    weft_metrics *metrics;
    const weft_router *router;
    const weft_view *view;
    _Atomic bool started;
    uint64_t (*now_ns)(void);
};

/* -- what comes ----------------------------------------------------------- */

static void queued(void *arg, uint64_t ns)
{
    const weft_gauges *const g = arg;
    weft_metrics_observe(g->metrics, WEFT_QUEUE_TIME, ns);
}

static void first_token(void *arg, uint64_t ns)
{
    const weft_gauges *const g = arg;
    weft_metrics_observe(g->metrics, WEFT_TIME_TO_FIRST_TOKEN, ns);
}

static void between_tokens(void *arg, uint64_t ns)
{
    const weft_gauges *const g = arg;
    weft_metrics_observe(g->metrics, WEFT_TIME_BETWEEN_TOKENS, ns);
}

static void tokens(void *arg, int32_t n_prompt, int32_t n_generated)
{
    const weft_gauges *const g = arg;
    weft_metrics_add(g->metrics, WEFT_PROMPT_TOKENS, (uint64_t)n_prompt);
    weft_metrics_add(g->metrics, WEFT_GENERATED_TOKENS, (uint64_t)n_generated);
}

static void preempted(void *arg)
{
    const weft_gauges *const g = arg;
    weft_metrics_add(g->metrics, WEFT_PREEMPTIONS, 1);
}

weft_watch weft_gauges_watch(weft_gauges *gauges)
{
    return (weft_watch){.queued = queued,
                        .first_token = first_token,
                        .between_tokens = between_tokens,
                        .tokens = tokens,
                        .preempted = preempted,
                        .arg = gauges};
}

void weft_gauges_count_step(void *gauges, uint64_t step_ns, int32_t n_rows)
{
    const weft_gauges *const g = gauges;
    (void)n_rows;
    weft_metrics_observe(g->metrics, WEFT_STEP_TIME, step_ns);
}

void weft_gauges_count_end(void *gauges, weft_status status)
{
    const weft_gauges *const g = gauges;
    weft_metrics_count_request(g->metrics, status);
}

/* -- what is asked -------------------------------------------------------- */

static void set_kv(weft_metrics *m, weft_kv_kind kind, int64_t used,
                   int64_t free_bytes)
{
    weft_metrics_set_kv(m, kind, WEFT_KV_USED, (uint64_t)used);
    weft_metrics_set_kv(m, kind, WEFT_KV_CACHED, 0); /* no prefix cache */
    weft_metrics_set_kv(m, kind, WEFT_KV_FREE, (uint64_t)free_bytes);
}

static void refresh_kv(const weft_gauges *g)
{
    weft_view_load load;
    g->view->get_load(g->view->arg, &load);
    const weft_kv_stats *const kv = &load.kv;
    set_kv(g->metrics, WEFT_KV_FULL, kv->used_bytes[WEFT_FULL],
           load.kv_free[WEFT_KV_FULL]);
    set_kv(g->metrics, WEFT_KV_WINDOW, kv->used_bytes[WEFT_WINDOW],
           load.kv_free[WEFT_KV_WINDOW]);
    set_kv(g->metrics, WEFT_KV_INDEX, kv->index_used_bytes,
           load.kv_free[WEFT_KV_INDEX]);
    weft_metrics_set(g->metrics, WEFT_KV_TOTAL_BYTES,
                     (uint64_t)kv->total_bytes);
}

static int print_metrics(void *arg, weft_buf *body)
{
    const weft_gauges *const g = arg;
    const weft_view *const view = g->view;
    weft_router_load requests;
    weft_router_get_load(g->router, &requests);
    weft_metrics_set(g->metrics, WEFT_REQUESTS_RUNNING,
                     (uint64_t)requests.n_running);
    weft_metrics_set(g->metrics, WEFT_REQUESTS_WAITING,
                     (uint64_t)requests.n_waiting);
    refresh_kv(g);
    if (view->refresh != NULL) view->refresh(view->arg, g->metrics);
    weft_status st = weft_metrics_print(g->metrics, body, NULL);
    if (st == WEFT_OK && view->print != NULL)
        st = view->print(view->arg, body, NULL);
    return st == WEFT_OK ? 200 : 500;
}

static int answer(weft_buf *body, const char *reason)
{
    /* A body that finds no memory is left out; the code says enough. */
    const weft_status st =
        weft_buf_printf(body, NULL, "%s\n", reason == NULL ? "ok" : reason);
    (void)st;
    return reason == NULL ? 200 : 503;
}

static int healthz(void *arg, weft_buf *body)
{
    const weft_gauges *const g = arg;
    return answer(body, g->view->why_unhealthy(g->view->arg, g->now_ns()));
}

static int readyz(void *arg, weft_buf *body)
{
    weft_gauges *const g = arg;
    if (!atomic_load(&g->started)) return answer(body, "starting");
    if (weft_router_is_draining(g->router)) return answer(body, "draining");
    char reason[WEFT_ERR_TEXT_BYTES] = "";
    if (!g->view->can_serve(g->view->arg, reason, sizeof reason))
        return answer(body, reason);
    return healthz(arg, body);
}

weft_http_ops weft_gauges_http_ops(weft_gauges *gauges)
{
    return (weft_http_ops){.healthz = healthz,
                           .readyz = readyz,
                           .metrics = print_metrics,
                           .arg = gauges};
}

/* -- life ----------------------------------------------------------------- */

weft_status weft_gauges_create(weft_gauges **gauges_out, weft_err *err)
{
    weft_gauges *const g = weft_mem_new(1, sizeof *g);
    if (g == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory for metrics");
    const weft_status st = weft_metrics_create(&g->metrics, err);
    if (st != WEFT_OK) {
        weft_mem_free(g);
        return st;
    }
    g->now_ns = weft_clock_now_ns;
    *gauges_out = g;
    return WEFT_OK;
}

void weft_gauges_destroy(weft_gauges *gauges)
{
    if (gauges == NULL) return;
    weft_metrics_destroy(gauges->metrics);
    weft_mem_free(gauges);
}

void weft_gauges_set_sources(weft_gauges *gauges, const weft_router *router,
                             const weft_view *view)
{
    gauges->router = router;
    gauges->view = view;
}

void weft_gauges_set_clock(weft_gauges *gauges, uint64_t (*now_ns)(void))
{
    gauges->now_ns = now_ns;
}

void weft_gauges_set_started(weft_gauges *gauges)
{
    atomic_store(&gauges->started, true);
}
