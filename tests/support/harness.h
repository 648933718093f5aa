/* harness.h - a model in a test: loaded from a folder, run through the engine
 * (as serving does) or through the bare forward pass (to see inside).
 *
 * What goes wrong in the harness itself ends the test with a message. */
#ifndef WEFT_TESTS_SUPPORT_HARNESS_H
#define WEFT_TESTS_SUPPORT_HARNESS_H

#include "shard/model/ranks.h"
#include "shard/step/engine.h"

typedef struct harness {
    weft_model_config config;
    weft_model *model;
    weft_profile profile;
    const weft_ops *ops; /* NULL: those of the run's cpu_path */
    weft_memory memory;  /* of ops */
    /* Tensor parallel: `model` is rank 0's slice, these are the others'. */
    int32_t n_ranks; /* 0: alone */
    weft_model *others[WEFT_COMM_GROUP_RANKS_MAX - 1];
    weft_memory memories[WEFT_COMM_GROUP_RANKS_MAX - 1]; /* theirs */
} harness;

harness harness_open(const char *dir, weft_profile profile);
/* On a device, to which the calling thread is bound. */
harness harness_open_on(const char *dir, weft_profile profile,
                        const weft_memory *memory);
/* The slices of so many ranks, in the host's memory (NULL) or each in that of a
 * device; without routed experts if those are elsewhere. */
harness harness_open_ranks(const char *dir, weft_profile profile,
                           int32_t n_ranks, const weft_memory *memories,
                           bool experts);
void harness_close(harness *h);
/* For an engine that is made with h; parts [WEFT_COMM_GROUP_RANKS_MAX - 1] is
 * borrowed by it. */
void harness_add_ranks(const harness *h, weft_rank_parts *parts,
                       weft_engine_options *options);

/* How to run; zero fields take the value in brackets. */
typedef struct harness_run {
    int32_t decode_from;         /* [all prefilled] */
    int32_t chunk_tokens;        /* [512] */
    int32_t page_tokens;         /* [64] */
    int32_t threads;             /* [1] */
    const char *cpu_path;        /* ["auto"]; "reference" is the oracle table */
    int64_t kv_bytes;            /* [what the sequence needs] */
    const weft_experts *experts; /* elsewhere; [in the weights] */
    int32_t pair_rows;           /* then: engine.h */
} harness_run;

/* Logits of every position, [n, vocab]; end with weft_mem_free. */
float *harness_logits(const harness *h, const int32_t *ids, int32_t n,
                      const harness_run *run);

/* Ends the test where the logits of this run are not `want`, to the bit. */
void harness_expect_same(const harness *h, const int32_t *ids, int32_t n,
                         const float *want, const harness_run *run,
                         const char *what);

/* The same through weft_forward alone, with hooks, in one step. */
float *harness_forward(const harness *h, const int32_t *ids, int32_t n,
                       const weft_forward_hooks *hooks);

/* Generates n tokens greedily after the prompt into out. */
void harness_greedy(const harness *h, const int32_t *ids, int32_t n_prompt,
                    int32_t n, int32_t *out, const harness_run *run);

/* The CPU table of that name ("auto", "reference", ...). */
const weft_ops *harness_ops(const char *name);

#endif
