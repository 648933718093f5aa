/* capacity.h - how many shards of each role a load needs, and how fast they
 * could be at best: arithmetic over a config, nothing is opened or measured.
 *
 * Every time here is a lower bound: bytes that a step must read over the
 * memory's bandwidth, or products over the device's peak, whichever is longer.
 * A step reads all weights of a layer shard once, the experts that a batch
 * touches once, and the KV rows that each sequence sees:
 *
 *   touched(B)  = E (1 - (1 - top_k / E)^B)      distinct experts of a layer
 *   kv(L)       = full layers: index row L + row min(L, index_topk);
 *                 window layers: row min(L, window)
 *   layers(b,L) = max((weights + b kv(L)) / bandwidth, products / peak)
 *   experts(B)  = max(touched(B) moe_layers expert / bandwidth,
 *                     2 B top_k moe_layers expert_params / peak)
 *
 * in seconds of one device; experts(B) is shared by all expert shards. Uniform
 * routing is assumed: skew lowers `touched` and loads the busiest shard more.
 *
 * Of a layer shard of N ranks it is rank 0 that is counted, which has most: the
 * vocabulary, an N-th of what is cut by heads and middle widths, and all of the
 * rest (adr/0012): both latents, the indexer, the router, and every KV row. Of
 * products of attention it has its heads'. Sums over ranks are not counted.
 * Source of the form: Williams, Waterman, Patterson, Roofline, CACM 2009.
 *
 * Threads: none; pure.
 */
#ifndef WEFT_NODE_APP_CAPACITY_H
#define WEFT_NODE_APP_CAPACITY_H

#include "shard/model/config.h"

typedef struct weft_capacity_device {
    double bytes;         /* of memory */
    double usable;        /* share of them, such as 0.92 */
    double reserve_bytes; /* of these: step buffers, the driver, NCCL */
    double bandwidth;     /* bytes a second */
    double bf16_flops, fp8_flops;
} weft_capacity_device;

typedef struct weft_capacity_load {
    int64_t context;   /* tokens of each sequence */
    int32_t sequences; /* that decode at once, in all */
    int32_t expert_replicas;
    int32_t ranks;          /* devices of a layer shard; 0: 1 */
    bool fp8;               /* weights, but for embedding, head and router */
    double index_row_bytes; /* of an index key; 0: two bytes a value */
} weft_capacity_load;

/* Parameters, by who holds them. */
typedef struct weft_capacity_model {
    double attention, shared, dense, router, vocabulary; /* one embedding */
    double latents; /* of attention: what every rank has */
    double expert;  /* one expert of one layer */
    int32_t moe_layers;
    double experts;     /* all of them */
    double layer_bytes; /* of weights that a rank of layers reads in a step */
    double held_bytes;  /* that it holds: the embedding as well */
    double expert_bytes, experts_bytes;
    double kv_read_bytes; /* of one sequence in one step */
    double kv_bytes;      /* of one sequence: what it holds */
} weft_capacity_model;

typedef struct weft_capacity_plan {
    weft_capacity_model model;
    int32_t groups, stages;  /* layer shards: groups x stages */
    int32_t ranks;           /* devices of each */
    int32_t group_sequences; /* the largest group's share */
    int64_t group_fits;      /* sequences that a group has room for */
    int32_t experts;         /* expert shards */
    int32_t experts_memory;  /* that their bytes alone ask for */
    int32_t experts_balance; /* with which they are not slower than layers */
    /* Of a device: the first rank's, of a stage as large as all others. */
    double layer_shard_bytes, expert_shard_bytes, kv_shard_bytes;
    double layers_seconds;  /* of a step, by one group */
    double experts_seconds; /* of a step, by all expert shards together */
    double step_seconds;    /* the longer of both, as planned */
    double tokens_per_second;
    double rows_bytes; /* that cross the network in a step, both ways */
    double join_bytes; /* that a joining expert shard reads */
} weft_capacity_plan;

/* How many distinct experts of a layer `rows` rows touch. */
double weft_capacity_touched(const weft_model_config *config, double rows);

void weft_capacity_measure(const weft_model_config *config,
                           const weft_capacity_load *load,
                           weft_capacity_model *model_out);

/* Of one device, or rank, that has all layers, or all experts. */
double weft_capacity_layers_seconds(const weft_model_config *config,
                                    const weft_capacity_device *device,
                                    const weft_capacity_load *load,
                                    double sequences);
double weft_capacity_experts_seconds(const weft_model_config *config,
                                     const weft_capacity_device *device,
                                     const weft_capacity_load *load,
                                     double sequences);

/* INVALID_ARGUMENT names the field, its value and the range, or what ranks
 * cannot be made of.
 * RESOURCE_EXHAUSTED: not even one sequence, layer or expert fits a device;
 * needed and usable bytes are in the text. */
WEFT_MUST_CHECK weft_status weft_capacity_plan_make(
    const weft_model_config *config, const weft_capacity_device *device,
    const weft_capacity_load *load, weft_capacity_plan *plan_out,
    weft_err *err);

#endif
