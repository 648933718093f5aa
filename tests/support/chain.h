/* chain.h - the stages of a group as threads of one process, for the tests of
 * the pipeline. Each computes with its cut of one loaded model. */
#ifndef WEFT_TESTS_SUPPORT_CHAIN_H
#define WEFT_TESTS_SUPPORT_CHAIN_H

#include "shard/step/stages.h"
#include "tests/support/fake_experts.h"
#include "tests/support/relay.h"

enum { CHAIN_STAGES_MAX = 4, CHAIN_GROUP = 3 };

typedef struct chain_options {
    int32_t n_stages; /* 1: no chain, but experts beside the weights */
    bool tcp; /* dialled, over wires that can be cut; else links of the process
               */
    int32_t micro_batches, micro_rows;  /* 0: as they are by default */
    int64_t kv_bytes[CHAIN_STAGES_MAX]; /* 0: the engine's */
    bool fakes; /* experts beside the weights, of each stage its own */
    const harness *experts_of; /* of which model; NULL: the chain's */
    weft_exchange *exchanges[CHAIN_STAGES_MAX]; /* or through these; NULL: no */
    int32_t pair_rows;
    weft_micro_fn on_micro[CHAIN_STAGES_MAX]; /* NULL: nobody watches */
    void *on_micro_arg;
    /* May spoil a stage's values. NULL: they are the engine's. */
    void (*change)(int32_t stage, weft_engine_options *options);
} chain_options;

typedef struct chain {
    chain_options options;
    const harness *h;
    weft_model_config config[CHAIN_STAGES_MAX]; /* cut */
    fake_experts *experts[CHAIN_STAGES_MAX];
    int64_t kv_bytes[CHAIN_STAGES_MAX];
    weft_stages *lead;
    weft_stage *stages[CHAIN_STAGES_MAX];
    weft_pulse *pulse;
    weft_link_server *servers[CHAIN_STAGES_MAX];
    relay *from_lead[CHAIN_STAGES_MAX];   /* to stage i */
    relay *from_before[CHAIN_STAGES_MAX]; /* from stage i - 1 to i; NULL: 1 */
    weft_peers *peers[CHAIN_STAGES_MAX];  /* of stage i, who dials */
} chain;

/* Starts the stages, waits until all have told their budgets, and puts what the
 * lead needs into `engine`; its config is chain->config[0]. */
chain *chain_open(const harness *h, const chain_options *options,
                  weft_engine_options *engine);
/* After the engine is gone. */
void chain_close(chain *c);

/* Bytes of KV that `n_tokens` of one sequence take in that stage, in slabs. */
int64_t chain_bytes(const harness *h, int32_t n_stages, int32_t stage,
                    int32_t page_tokens, int32_t chunk_tokens,
                    int32_t n_tokens);

#endif
