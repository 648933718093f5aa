/* metrics.h - what Prometheus is told about this node.
 *
 * A fixed set, by name (see weft_metrics_print), with the few labels whose
 * values are known beforehand: no label comes from a request. Counters and
 * histograms only rise. Times are in nanoseconds inside and in seconds outside.
 *
 * Threads: any, without a lock: a scrape may see the count of a histogram a
 * moment before its sum.
 */
#ifndef WEFT_NODE_OBS_METRICS_H
#define WEFT_NODE_OBS_METRICS_H

#include <stdint.h>

#include "node/base/str.h"

typedef struct weft_metrics weft_metrics;

typedef enum weft_counter {
    WEFT_PROMPT_TOKENS,    /* weft_tokens_total{kind="prompt"} */
    WEFT_GENERATED_TOKENS, /* weft_tokens_total{kind="generated"} */
    WEFT_PREEMPTIONS,
    WEFT_EXPERT_ROWS,
    WEFT_N_COUNTERS
} weft_counter;

typedef enum weft_gauge {
    WEFT_REQUESTS_RUNNING,
    WEFT_REQUESTS_WAITING,
    WEFT_EPOCH,
    WEFT_MEMBERS_LAYERS, /* weft_members{role="layers"} */
    WEFT_MEMBERS_EXPERTS,
    WEFT_MEMBERS_ROUTER,
    WEFT_KV_TOTAL_BYTES,
    WEFT_N_GAUGES
} weft_gauge;

typedef enum weft_kv_kind {
    WEFT_KV_FULL,
    WEFT_KV_WINDOW,
    WEFT_KV_INDEX,
    WEFT_N_KV_KINDS
} weft_kv_kind;

typedef enum weft_kv_state {
    WEFT_KV_USED, /* by live requests */
    WEFT_KV_CACHED,
    WEFT_KV_FREE,
    WEFT_N_KV_STATES
} weft_kv_state;

typedef enum weft_histogram {
    WEFT_TIME_TO_FIRST_TOKEN,
    WEFT_TIME_BETWEEN_TOKENS,
    WEFT_STEP_TIME,
    WEFT_QUEUE_TIME,
    WEFT_EXCHANGE_TIME,
    WEFT_N_HISTOGRAMS
} weft_histogram;

/* Of a histogram: the last holds what is above all bounds. */
enum { WEFT_HISTOGRAM_BUCKETS = 19 };
int32_t weft_histogram_bucket(uint64_t ns);

WEFT_MUST_CHECK weft_status weft_metrics_create(weft_metrics **metrics_out,
                                                weft_err *err);
void weft_metrics_destroy(weft_metrics *metrics); /* NULL is fine */

void weft_metrics_add(weft_metrics *metrics, weft_counter counter, uint64_t n);
void weft_metrics_set(weft_metrics *metrics, weft_gauge gauge, uint64_t value);
void weft_metrics_set_kv(weft_metrics *metrics, weft_kv_kind kind,
                         weft_kv_state state, uint64_t bytes);
void weft_metrics_observe(weft_metrics *metrics, weft_histogram histogram,
                          uint64_t ns);
/* So many observations more in each bucket, and their sum; what another process
 * has counted. */
void weft_metrics_merge(weft_metrics *metrics, weft_histogram histogram,
                        const uint64_t buckets[WEFT_HISTOGRAM_BUCKETS],
                        uint64_t sum_ns);
/* A Generate call has ended with this status, OK included. */
void weft_metrics_count_request(weft_metrics *metrics, weft_status status);

/* For tests and status pages. */
uint64_t weft_metrics_counter(const weft_metrics *metrics,
                              weft_counter counter);
uint64_t weft_metrics_gauge(const weft_metrics *metrics, weft_gauge gauge);

/* Append everything in Prometheus' text format 0.0.4. Every name is there from
 * the start, so that a rate is known from the first event on. Beside the names
 * of our own there are three of vLLM's, which existing scalers and dashboards
 * read. RESOURCE_EXHAUSTED: no memory. */
WEFT_MUST_CHECK weft_status weft_metrics_print(const weft_metrics *metrics,
                                               weft_buf *out, weft_err *err);

#endif
