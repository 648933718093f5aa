/* exchange.h - what a layer shard counts of its exchange with the expert pool:
 * times, bytes by peer, and how evenly the experts are asked.
 *
 * The two counting functions have the form of weft_exchange_watch's entries
 * (shard/expert/exchange.h). Labels are bounded: so many peers by name, the
 * rest together as "other"; of the experts the busiest few.
 *
 * Threads: any, without waiting; counting costs an addition for each pair.
 */
#ifndef WEFT_NODE_OBS_EXCHANGE_H
#define WEFT_NODE_OBS_EXCHANGE_H

#include "node/obs/metrics.h"

enum { WEFT_TOP_EXPERTS = 8, WEFT_METER_PEERS_MAX = 64 };

typedef struct weft_expert_share {
    int32_t layer, expert;
    uint64_t pairs;
} weft_expert_share;

/* A moment's reading; plain data. */
typedef struct weft_exchange_counts {
    uint64_t pairs; /* (row, expert) pairs asked for, ever */
    uint64_t bytes; /* both ways, ever */
    uint64_t sum_ns, buckets[WEFT_HISTOGRAM_BUCKETS]; /* of exchanges */
    /* Busiest expert over the mean of its layer, the highest of all layers;
     * 0: nothing was asked yet. */
    float imbalance;
    int32_t n_top;
    weft_expert_share top[WEFT_TOP_EXPERTS]; /* busiest first */
} weft_exchange_counts;

typedef struct weft_exchange_meter weft_exchange_meter;

WEFT_MUST_CHECK weft_status
weft_exchange_meter_create(int32_t n_layer, int32_t n_expert,
                           weft_exchange_meter **meter_out, weft_err *err);
void weft_exchange_meter_destroy(weft_exchange_meter *meter); /* NULL is fine */

/* `meter` is a weft_exchange_meter. */
void weft_exchange_meter_exchanged(void *meter, const char *id, uint64_t ns,
                                   uint64_t bytes);
void weft_exchange_meter_routed(void *meter, int32_t layer,
                                const int32_t *experts, int32_t n_pairs);

void weft_exchange_meter_get(const weft_exchange_meter *meter,
                             weft_exchange_counts *counts_out);
/* The part of `top` and `imbalance` that two readings of different shards
 * share: the busiest of both. Sums add up. */
void weft_exchange_counts_add(weft_exchange_counts *sum,
                              const weft_exchange_counts *more);

/* Prometheus text: weft_exchange_bytes_total{peer}, weft_expert_imbalance,
 * weft_expert_pairs_total{layer,expert} of the busiest. meter NULL: the last
 * two alone. */
WEFT_MUST_CHECK weft_status weft_exchange_print(
    const weft_exchange_meter *meter, const weft_exchange_counts *counts,
    weft_buf *out, weft_err *err);

#endif
