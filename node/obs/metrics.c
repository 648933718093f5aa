#include "node/obs/metrics.h"

#include <stdatomic.h>

#include "node/base/mem.h"

enum {
    N_STATUSES = 17, /* gRPC's, 0 ... 16 */
    N_BOUNDS = WEFT_HISTOGRAM_BUCKETS - 1,
};

/* Upper bounds in nanoseconds: from a step of a small model to a queue of
 * minutes, in steps of about 2.2. */
static const uint64_t BOUNDS[N_BOUNDS] = {
    500000,      1000000,      2000000,      5000000,     10000000,
    20000000,    50000000,     100000000,    200000000,   500000000,
    1000000000,  2000000000,   5000000000,   10000000000, 20000000000,
    60000000000, 120000000000, 300000000000,
};

struct histogram {
    atomic_uint_fast64_t buckets[N_BOUNDS + 1]; /* the last: above all */
    atomic_uint_fast64_t sum_ns;
};

struct weft_metrics {
    atomic_uint_fast64_t counters[WEFT_N_COUNTERS];
    atomic_uint_fast64_t gauges[WEFT_N_GAUGES];
    atomic_uint_fast64_t kv[WEFT_N_KV_KINDS][WEFT_N_KV_STATES];
    atomic_uint_fast64_t requests[N_STATUSES];
    struct histogram histograms[WEFT_N_HISTOGRAMS];
};

weft_status weft_metrics_create(weft_metrics **metrics_out, weft_err *err)
{
    weft_metrics *m = weft_mem_new(1, sizeof *m); /* zero is a valid atomic */
    if (m == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for the metrics");
    *metrics_out = m;
    return WEFT_OK;
}

void weft_metrics_destroy(weft_metrics *m)
{
    weft_mem_free(m);
}

static void add(atomic_uint_fast64_t *value, uint64_t n)
{
    (void)atomic_fetch_add_explicit(value, n, memory_order_relaxed);
}

static uint64_t get(const atomic_uint_fast64_t *value)
{
    return atomic_load_explicit(value, memory_order_relaxed);
}

void weft_metrics_add(weft_metrics *m, weft_counter counter, uint64_t n)
{
    add(&m->counters[counter], n);
}

void weft_metrics_set(weft_metrics *m, weft_gauge gauge, uint64_t value)
{
    atomic_store_explicit(&m->gauges[gauge], value, memory_order_relaxed);
}

void weft_metrics_set_kv(weft_metrics *m, weft_kv_kind kind,
                         weft_kv_state state, uint64_t bytes)
{
    atomic_store_explicit(&m->kv[kind][state], bytes, memory_order_relaxed);
}

int32_t weft_histogram_bucket(uint64_t ns)
{
    int32_t i = 0;
    while (i < N_BOUNDS && ns > BOUNDS[i]) i++;
    return i;
}

void weft_metrics_observe(weft_metrics *m, weft_histogram histogram,
                          uint64_t ns)
{
    struct histogram *h = &m->histograms[histogram];
    add(&h->buckets[weft_histogram_bucket(ns)], 1);
    add(&h->sum_ns, ns);
}

void weft_metrics_merge(weft_metrics *m, weft_histogram histogram,
                        const uint64_t buckets[WEFT_HISTOGRAM_BUCKETS],
                        uint64_t sum_ns)
{
    struct histogram *h = &m->histograms[histogram];
    for (int i = 0; i < WEFT_HISTOGRAM_BUCKETS; i++)
        add(&h->buckets[i], buckets[i]);
    add(&h->sum_ns, sum_ns);
}

void weft_metrics_count_request(weft_metrics *m, weft_status status)
{
    if ((unsigned)status < N_STATUSES) add(&m->requests[status], 1);
}

uint64_t weft_metrics_counter(const weft_metrics *m, weft_counter counter)
{
    return get(&m->counters[counter]);
}

uint64_t weft_metrics_gauge(const weft_metrics *m, weft_gauge gauge)
{
    return get(&m->gauges[gauge]);
}

/* --- text ---------------------------------------------------------------- */

static weft_status head(weft_buf *out, const char *name, const char *type,
                        const char *help, weft_err *err)
{
    return weft_buf_printf(out, err, "# HELP %s %s\n# TYPE %s %s\n", name, help,
                           name, type);
}

static weft_status plain(weft_buf *out, const char *name, const char *labels,
                         uint64_t value, weft_err *err)
{
    return weft_buf_printf(out, err, "%s%s %llu\n", name, labels,
                           (unsigned long long)value);
}

static weft_status print_requests(const weft_metrics *m, weft_buf *out,
                                  weft_err *err)
{
    static const weft_status always[] = {
        WEFT_OK,          WEFT_CANCELLED,         WEFT_INVALID_ARGUMENT,
        WEFT_UNAVAILABLE, WEFT_DEADLINE_EXCEEDED, WEFT_RESOURCE_EXHAUSTED,
        WEFT_INTERNAL,    WEFT_UNIMPLEMENTED,
    };
    static const char name[] = "weft_requests_total";
    bool is_always[N_STATUSES] = {false};
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        is_always[always[i]] = true;
    WEFT_TRY(head(out, name, "counter",
                  "Generate calls that have ended, by gRPC status.", err));
    for (int i = 0; i < N_STATUSES; i++) {
        const uint64_t n = get(&m->requests[i]);
        if (n == 0 && !is_always[i]) continue;
        WEFT_TRY(weft_buf_printf(out, err, "%s{code=\"%s\"} %llu\n", name,
                                 weft_status_name((weft_status)i),
                                 (unsigned long long)n));
    }
    return WEFT_OK;
}

static weft_status print_counters(const weft_metrics *m, weft_buf *out,
                                  weft_err *err)
{
    static const struct {
        const char *name, *labels, *help; /* NULL: of the family before */
    } table[WEFT_N_COUNTERS] = {
        [WEFT_PROMPT_TOKENS] = {"weft_tokens_total", "{kind=\"prompt\"}",
                                "Tokens of accepted prompts, and tokens "
                                "generated."},
        [WEFT_GENERATED_TOKENS] = {"weft_tokens_total", "{kind=\"generated\"}",
                                   NULL},
        [WEFT_PREEMPTIONS] = {"weft_preemptions_total", "",
                              "Requests whose pages were taken, to be computed "
                              "again."},
        [WEFT_EXPERT_ROWS] = {"weft_expert_rows_total", "",
                              "Rows computed by expert shards; 0 where the "
                              "experts are in this process."},
    };
    for (int i = 0; i < WEFT_N_COUNTERS; i++) {
        if (table[i].help != NULL)
            WEFT_TRY(head(out, table[i].name, "counter", table[i].help, err));
        WEFT_TRY(plain(out, table[i].name, table[i].labels,
                       get(&m->counters[i]), err));
    }
    return WEFT_OK;
}

static weft_status print_gauges(const weft_metrics *m, weft_buf *out,
                                weft_err *err)
{
    static const struct {
        const char *name, *labels, *help; /* NULL: of the family before */
    } table[WEFT_N_GAUGES] = {
        [WEFT_REQUESTS_RUNNING] = {"weft_requests_running", "",
                                   "Requests that have a place in the batch."},
        [WEFT_REQUESTS_WAITING] = {"weft_requests_waiting", "",
                                   "Requests that wait for a place."},
        [WEFT_EPOCH] = {"weft_epoch", "", "Version of the expert placement."},
        [WEFT_MEMBERS_LAYERS] = {"weft_members", "{role=\"layers\"}",
                                 "Members in service, by role."},
        [WEFT_MEMBERS_EXPERTS] = {"weft_members", "{role=\"experts\"}", NULL},
        [WEFT_MEMBERS_ROUTER] = {"weft_members", "{role=\"router\"}", NULL},
        [WEFT_KV_TOTAL_BYTES] = {"weft_kv_total_bytes", "",
                                 "Size of the KV arena."},
    };
    for (int i = 0; i < WEFT_N_GAUGES; i++) {
        if (table[i].help != NULL)
            WEFT_TRY(head(out, table[i].name, "gauge", table[i].help, err));
        WEFT_TRY(plain(out, table[i].name, table[i].labels, get(&m->gauges[i]),
                       err));
    }
    return WEFT_OK;
}

static weft_status print_kv(const weft_metrics *m, weft_buf *out, weft_err *err)
{
    static const char *const kinds[] = {"full", "window", "index"};
    static const char *const states[] = {"used", "cached", "free"};
    WEFT_TRY(
        head(out, "weft_kv_bytes", "gauge",
             "KV memory by kind of row and state. Kinds share one arena: free "
             "is what full or window rows could each take of all that is free.",
             err));
    for (int kind = 0; kind < WEFT_N_KV_KINDS; kind++)
        for (int state = 0; state < WEFT_N_KV_STATES; state++)
            WEFT_TRY(weft_buf_printf(
                out, err, "weft_kv_bytes{kind=\"%s\",state=\"%s\"} %llu\n",
                kinds[kind], states[state],
                (unsigned long long)get(&m->kv[kind][state])));
    return WEFT_OK;
}

static weft_status print_histogram(const struct histogram *h, const char *name,
                                   const char *help, weft_buf *out,
                                   weft_err *err)
{
    uint64_t count = 0;
    WEFT_TRY(head(out, name, "histogram", help, err));
    for (int i = 0; i < N_BOUNDS; i++) {
        count += get(&h->buckets[i]);
        WEFT_TRY(weft_buf_printf(out, err, "%s_bucket{le=\"%g\"} %llu\n", name,
                                 (double)BOUNDS[i] * 1e-9,
                                 (unsigned long long)count));
    }
    count += get(&h->buckets[N_BOUNDS]);
    return weft_buf_printf(
        out, err, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.9g\n%s_count %llu\n",
        name, (unsigned long long)count, name, (double)get(&h->sum_ns) * 1e-9,
        name, (unsigned long long)count);
}

static weft_status print_histograms(const weft_metrics *m, weft_buf *out,
                                    weft_err *err)
{
    static const char *const table[WEFT_N_HISTOGRAMS][2] = {
        [WEFT_TIME_TO_FIRST_TOKEN] = {"weft_time_to_first_token_seconds",
                                      "From the arrival of a request to its "
                                      "first token."},
        [WEFT_TIME_BETWEEN_TOKENS] = {"weft_time_between_tokens_seconds",
                                      "Between two tokens of one request."},
        [WEFT_STEP_TIME] = {"weft_step_seconds",
                            "One step of a group, planning included."},
        [WEFT_QUEUE_TIME] = {"weft_queue_seconds",
                             "From the arrival of a request to its first "
                             "step."},
        [WEFT_EXCHANGE_TIME] = {"weft_exchange_seconds",
                                "One exchange with the expert shards."},
    };
    for (int i = 0; i < WEFT_N_HISTOGRAMS; i++)
        WEFT_TRY(print_histogram(&m->histograms[i], table[i][0], table[i][1],
                                 out, err));
    return WEFT_OK;
}

static weft_status print_vllm(const weft_metrics *m, weft_buf *out,
                              weft_err *err)
{
    uint64_t used = 0;
    for (int kind = 0; kind < WEFT_N_KV_KINDS; kind++)
        used += get(&m->kv[kind][WEFT_KV_USED]);
    const uint64_t total = get(&m->gauges[WEFT_KV_TOTAL_BYTES]);
    WEFT_TRY(head(out, "vllm:num_requests_running", "gauge",
                  "As weft_requests_running.", err));
    WEFT_TRY(plain(out, "vllm:num_requests_running", "",
                   get(&m->gauges[WEFT_REQUESTS_RUNNING]), err));
    WEFT_TRY(head(out, "vllm:num_requests_waiting", "gauge",
                  "As weft_requests_waiting.", err));
    WEFT_TRY(plain(out, "vllm:num_requests_waiting", "",
                   get(&m->gauges[WEFT_REQUESTS_WAITING]), err));
    WEFT_TRY(head(out, "vllm:kv_cache_usage_perc", "gauge",
                  "Share of the KV arena that live requests use, 0 to 1.",
                  err));
    return weft_buf_printf(out, err, "vllm:kv_cache_usage_perc %.9g\n",
                           total > 0 ? (double)used / (double)total : 0.0);
}

weft_status weft_metrics_print(const weft_metrics *m, weft_buf *out,
                               weft_err *err)
{
    WEFT_TRY(print_requests(m, out, err));
    WEFT_TRY(print_counters(m, out, err));
    WEFT_TRY(print_gauges(m, out, err));
    WEFT_TRY(print_kv(m, out, err));
    WEFT_TRY(print_histograms(m, out, err));
    return print_vllm(m, out, err);
}
