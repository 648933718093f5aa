/* harness.h - a model in a test: loaded from a folder, run through the engine
 * (as serving does) or through the bare forward pass (to see inside).
 *
 * What goes wrong in the harness itself ends the test with a message. */
#ifndef WEFT_TESTS_SUPPORT_HARNESS_H
#define WEFT_TESTS_SUPPORT_HARNESS_H

#include "shard/model/forward.h"
#include "shard/step/engine.h"

typedef struct harness {
    weft_model_config config;
    weft_model *model;
    weft_profile profile;
    const weft_ops *ops; /* NULL: those of the run's cpu_path */
    weft_memory memory;  /* of ops */
} harness;

harness harness_open(const char *dir, weft_profile profile);
/* On a device, to which the calling thread is bound. */
harness harness_open_on(const char *dir, weft_profile profile,
                        const weft_memory *memory);
void harness_close(harness *h);

/* How to run; zero fields take the value in brackets. */
typedef struct harness_run {
    int32_t decode_from;  /* [all prefilled] */
    int32_t chunk_tokens; /* [512] */
    int32_t page_tokens;  /* [64] */
    int32_t threads;      /* [1] */
    const char *cpu_path; /* ["auto"]; "reference" is the oracle table */
    int64_t kv_bytes;     /* [what the sequence needs] */
} harness_run;

/* Logits of every position, [n, vocab]; end with weft_mem_free. */
float *harness_logits(const harness *h, const int32_t *ids, int32_t n,
                      const harness_run *run);

/* The same through weft_forward alone, with hooks, in one step. */
float *harness_forward(const harness *h, const int32_t *ids, int32_t n,
                       const weft_forward_hooks *hooks);

/* Generates n tokens greedily after the prompt into out. */
void harness_greedy(const harness *h, const int32_t *ids, int32_t n_prompt,
                    int32_t n, int32_t *out, const harness_run *run);

/* The CPU table of that name ("auto", "reference", ...). */
const weft_ops *harness_ops(const char *name);

#endif
