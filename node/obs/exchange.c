#include "node/obs/exchange.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "node/base/mem.h"

enum { PEER_BYTES = 64 };

typedef struct peer {
    char id[PEER_BYTES]; /* written once, before n_peers counts it */
    _Atomic uint64_t bytes, ns, n;
} peer;

struct weft_exchange_meter {
    int32_t n_layer, n_expert;
    _Atomic uint64_t pairs, bytes, sum_ns;
    _Atomic uint64_t buckets[WEFT_HISTOGRAM_BUCKETS];
    pthread_mutex_t lock; /* of whoever adds a peer */
    _Atomic int32_t n_peers;
    peer peers[WEFT_METER_PEERS_MAX], other;
    _Atomic uint64_t *asked; /* [n_layer][n_expert] pairs */
};

weft_status weft_exchange_meter_create(int32_t n_layer, int32_t n_expert,
                                       weft_exchange_meter **meter_out,
                                       weft_err *err)
{
    weft_exchange_meter *const m = weft_mem_new(1, sizeof *m);
    _Atomic uint64_t *const asked =
        weft_mem_new((size_t)n_layer * (size_t)n_expert, sizeof *asked);
    if (m == NULL || asked == NULL) {
        weft_mem_free(m);
        weft_mem_free(asked);
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for the figures of %d experts", n_expert);
    }
    m->n_layer = n_layer;
    m->n_expert = n_expert;
    m->asked = asked;
    (void)pthread_mutex_init(&m->lock, NULL);
    *meter_out = m;
    return WEFT_OK;
}

void weft_exchange_meter_destroy(weft_exchange_meter *m)
{
    if (m == NULL) return;
    (void)pthread_mutex_destroy(&m->lock);
    weft_mem_free(m->asked);
    weft_mem_free(m);
}

/* -- counting ---------------------------------------------------------------
 */

static void add(_Atomic uint64_t *value, uint64_t n)
{
    (void)atomic_fetch_add_explicit(value, n, memory_order_relaxed);
}

static uint64_t get(const _Atomic uint64_t *value)
{
    return atomic_load_explicit(value, memory_order_relaxed);
}

static peer *find_peer(weft_exchange_meter *m, const char *id)
{
    const int32_t n = atomic_load(&m->n_peers);
    for (int32_t i = 0; i < n; i++)
        if (strcmp(m->peers[i].id, id) == 0) return &m->peers[i];
    return NULL;
}

static peer *peer_of(weft_exchange_meter *m, const char *id)
{
    peer *found = find_peer(m, id);
    if (found != NULL) return found;
    (void)pthread_mutex_lock(&m->lock);
    found = find_peer(m, id);
    const int32_t n = atomic_load(&m->n_peers);
    if (found == NULL && n < WEFT_METER_PEERS_MAX) {
        found = &m->peers[n];
        (void)strncpy(found->id, id, PEER_BYTES - 1);
        atomic_store(&m->n_peers, n + 1);
    }
    (void)pthread_mutex_unlock(&m->lock);
    return found != NULL ? found : &m->other;
}

void weft_exchange_meter_exchanged(void *meter, const char *id, uint64_t ns,
                                   uint64_t bytes)
{
    weft_exchange_meter *const m = meter;
    peer *const p = peer_of(m, id);
    add(&p->bytes, bytes);
    add(&p->ns, ns);
    add(&p->n, 1);
    add(&m->bytes, bytes);
    add(&m->sum_ns, ns);
    add(&m->buckets[weft_histogram_bucket(ns)], 1);
}

void weft_exchange_meter_routed(void *meter, int32_t layer,
                                const int32_t *experts, int32_t n_pairs)
{
    weft_exchange_meter *const m = meter;
    _Atomic uint64_t *const asked =
        m->asked + (int64_t)layer * (int64_t)m->n_expert;
    for (int32_t i = 0; i < n_pairs; i++) add(&asked[experts[i]], 1);
    add(&m->pairs, (uint64_t)n_pairs);
}

/* -- readings ---------------------------------------------------------------
 */

/* Into its place among the busiest, if it is one of them. */
static void put_top(weft_exchange_counts *counts, const weft_expert_share *one)
{
    int32_t at = counts->n_top;
    while (at > 0 && counts->top[at - 1].pairs < one->pairs) at--;
    if (at == WEFT_TOP_EXPERTS) return;
    if (counts->n_top < WEFT_TOP_EXPERTS) counts->n_top++;
    for (int32_t i = counts->n_top - 1; i > at; i--)
        counts->top[i] = counts->top[i - 1];
    counts->top[at] = *one;
}

static void read_layer(const weft_exchange_meter *m, int32_t layer,
                       weft_exchange_counts *counts)
{
    uint64_t sum = 0, most = 0;
    for (int32_t e = 0; e < m->n_expert; e++) {
        const weft_expert_share one = {
            .layer = layer,
            .expert = e,
            .pairs = get(&m->asked[(int64_t)layer * m->n_expert + e])};
        if (one.pairs == 0) continue;
        sum += one.pairs;
        if (one.pairs > most) most = one.pairs;
        put_top(counts, &one);
    }
    if (sum == 0) return;
    const double mean = (double)sum / (double)m->n_expert;
    const float imbalance = (float)((double)most / mean);
    if (imbalance > counts->imbalance) counts->imbalance = imbalance;
}

void weft_exchange_meter_get(const weft_exchange_meter *m,
                             weft_exchange_counts *counts_out)
{
    *counts_out = (weft_exchange_counts){
        .pairs = get(&m->pairs),
        .bytes = get(&m->bytes),
        .sum_ns = get(&m->sum_ns),
    };
    for (int32_t i = 0; i < WEFT_HISTOGRAM_BUCKETS; i++)
        counts_out->buckets[i] = get(&m->buckets[i]);
    for (int32_t l = 0; l < m->n_layer; l++) read_layer(m, l, counts_out);
}

static weft_expert_share *find_top(weft_exchange_counts *counts,
                                   const weft_expert_share *one)
{
    for (int32_t i = 0; i < counts->n_top; i++)
        if (counts->top[i].layer == one->layer &&
            counts->top[i].expert == one->expert)
            return &counts->top[i];
    return NULL;
}

/* The same expert of several groups is one. */
static void add_top(weft_exchange_counts *sum, const weft_expert_share *more)
{
    weft_expert_share one = *more;
    weft_expert_share *const found = find_top(sum, more);
    if (found != NULL) {
        one.pairs += found->pairs;
        sum->n_top--;
        memmove(found, found + 1,
                (size_t)(sum->top + sum->n_top - found) * sizeof *found);
    }
    put_top(sum, &one);
}

void weft_exchange_counts_add(weft_exchange_counts *sum,
                              const weft_exchange_counts *more)
{
    sum->pairs += more->pairs;
    sum->bytes += more->bytes;
    sum->sum_ns += more->sum_ns;
    for (int32_t i = 0; i < WEFT_HISTOGRAM_BUCKETS; i++)
        sum->buckets[i] += more->buckets[i];
    if (more->imbalance > sum->imbalance) sum->imbalance = more->imbalance;
    for (int32_t i = 0; i < more->n_top; i++) add_top(sum, &more->top[i]);
}

/* -- text -------------------------------------------------------------------
 */

static weft_status head(weft_buf *out, const char *name, const char *type,
                        const char *help, weft_err *err)
{
    return weft_buf_printf(out, err, "# HELP %s %s\n# TYPE %s %s\n", name, help,
                           name, type);
}

/* Ids come from the registry: what would end a label is left out. */
static void label_of(const char *id, char out[PEER_BYTES])
{
    size_t n = 0;
    for (; *id != '\0' && n < PEER_BYTES - 1; id++)
        if (*id != '"' && *id != '\\' && *id != '\n') out[n++] = *id;
    out[n] = '\0';
}

static weft_status print_peers(const weft_exchange_meter *m, const char *name,
                               bool seconds, weft_buf *out, weft_err *err)
{
    const int32_t n = atomic_load(&m->n_peers);
    for (int32_t i = 0; i <= n; i++) {
        const peer *const p = i < n ? &m->peers[i] : &m->other;
        char label[PEER_BYTES];
        if (i == n && get(&p->n) == 0) break;
        label_of(i < n ? p->id : "other", label);
        if (seconds)
            WEFT_TRY(weft_buf_printf(out, err, "%s{peer=\"%s\"} %.9g\n", name,
                                     label, (double)get(&p->ns) * 1e-9));
        else
            WEFT_TRY(weft_buf_printf(out, err, "%s{peer=\"%s\"} %llu\n", name,
                                     label,
                                     (unsigned long long)get(&p->bytes)));
    }
    return WEFT_OK;
}

weft_status weft_exchange_print(const weft_exchange_meter *m,
                                const weft_exchange_counts *counts,
                                weft_buf *out, weft_err *err)
{
    static const char bytes[] = "weft_exchange_bytes_total";
    static const char seconds[] = "weft_exchange_peer_seconds_total";
    static const char top[] = "weft_expert_pairs_total";
    if (m != NULL) {
        WEFT_TRY(head(out, bytes, "counter",
                      "Bytes exchanged with an expert shard, both ways.", err));
        WEFT_TRY(print_peers(m, bytes, false, out, err));
        WEFT_TRY(head(out, seconds, "counter",
                      "Time of exchanges with an expert shard.", err));
        WEFT_TRY(print_peers(m, seconds, true, out, err));
    }
    WEFT_TRY(head(out, "weft_expert_imbalance", "gauge",
                  "Pairs of the busiest expert over the mean of its layer, the "
                  "highest of all layers.",
                  err));
    WEFT_TRY(weft_buf_printf(out, err, "weft_expert_imbalance %.6g\n",
                             (double)counts->imbalance));
    WEFT_TRY(head(out, top, "counter",
                  "(Row, expert) pairs asked of the busiest experts.", err));
    for (int32_t i = 0; i < counts->n_top; i++)
        WEFT_TRY(weft_buf_printf(out, err,
                                 "%s{layer=\"%d\",expert=\"%d\"} %llu\n", top,
                                 counts->top[i].layer, counts->top[i].expert,
                                 (unsigned long long)counts->top[i].pairs));
    return WEFT_OK;
}
