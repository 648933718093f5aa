/* split.h - one model cut by hand: its stages in one process, each with its own
 * weights, cache and step buffers, and routed experts that are computed outside
 * the forward pass, as an expert shard would.
 *
 * What goes wrong in here ends the test with a message. */
#ifndef WEFT_TESTS_SUPPORT_SPLIT_H
#define WEFT_TESTS_SUPPORT_SPLIT_H

#include "shard/expert/store.h"
#include "shard/model/forward.h"
#include "shard/model/partition.h"

enum { SPLIT_EVENTS_MAX = 4096 };

/* What was asked of the experts, in order. */
typedef struct split_event {
    int32_t lane, layer;
    bool collected;   /* else dispatched */
    int64_t products; /* runs of products before it */
} split_event;

/* Experts from a store, computed pair by pair in an order drawn from `seed`,
 * and all of it twice. */
typedef struct split_experts {
    weft_model_config config;
    weft_checkpoint *checkpoint;
    weft_expert_store *store;
    weft_threads *threads;
    uint64_t seed;
    int32_t fail_at; /* this collect (from 0) fails, half done; -1: none */
    int32_t n_collects;
    struct {
        bool away;
        weft_experts_call call;
        float *x; /* copies of what the call pointed to */
        int32_t *experts;
    } lanes[WEFT_STEP_LANES];
    split_event events[SPLIT_EVENTS_MAX];
    int32_t n_events;
} split_experts;

/* All experts of the model in `dir` are loaded. */
split_experts *split_experts_open(const char *dir, weft_profile profile);
void split_experts_close(split_experts *experts);
weft_experts split_experts_seam(split_experts *experts);

typedef struct split_stage {
    weft_model_config config; /* cut */
    weft_model *model;
    weft_kv_layout layout;
    weft_kv_pool *pool;
    weft_kv_store *store;
    int64_t *pages[WEFT_KINDS]; /* of the one sequence */
    int32_t n_pages;
    weft_forward *lanes[WEFT_STEP_LANES];
} split_stage;

typedef struct split_model {
    int32_t n_stages, max_rows;
    weft_threads *threads;
    weft_experts experts;
    weft_memory memory; /* of the ops */
    split_stage *stages;
} split_model;

/* For one sequence of up to max_rows positions. experts NULL: in the stages'
 * own weights. */
split_model *split_open(const char *dir, weft_profile profile, int32_t n_stages,
                        split_experts *experts, int32_t max_rows);
/* The same on a device, to which the calling thread is bound; all stages share
 * it. NULL: on the host. */
split_model *split_open_on(const char *dir, weft_profile profile,
                           int32_t n_stages, split_experts *experts,
                           int32_t max_rows, const weft_memory *memory);
void split_close(split_model *model);
/* Debug builds: the cache holds NaN again. */
void split_forget(split_model *model);

/* Positions [first, first + n) of ids through all stages. cut 0: as one step;
 * else as two micro-batches, the first of `cut` rows. hidden_out [n, hidden],
 * logits_out [n, vocab]. */
weft_status split_step(split_model *model, const int32_t *ids, int32_t first,
                       int32_t n, int32_t cut, float *hidden_out,
                       float *logits_out, weft_err *err);

/* Runs of matrix products since the start of the program. */
int64_t split_products(void);

#endif
