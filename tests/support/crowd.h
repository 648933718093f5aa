/* crowd.h - many jobs on one engine, with a router reduced to its journal:
 * tokens are written down, and a preempted job is submitted again with them. */
#ifndef WEFT_TESTS_SUPPORT_CROWD_H
#define WEFT_TESTS_SUPPORT_CROWD_H

#include "tests/support/harness.h"

/* What one job asks and what came of it. */
typedef struct crowd_job {
    const int32_t *prompt;
    int32_t n_prompt, n_new;
    float temperature; /* 0: greedy */
    uint64_t seed;
    int32_t cancel_after; /* tokens; 0: never */
    uint64_t timeout_ns;  /* deadline from submission; 0: none */
    bool late; /* submitted when all that are not late have told a token */

    int32_t *tokens;  /* [n_prompt + n_new]; the prompt, then what came */
    float *logprobs;  /* [n_new] */
    int32_t n_tokens; /* told, prompt included */
    weft_finish finish;
    weft_status status;
    int32_t n_preempted, n_last_events;
} crowd_job;

crowd_job crowd_make(const int32_t *prompt, int32_t n_prompt, int32_t n_new);
void crowd_free(crowd_job *job);

/* Runs them all together and waits for every last event. Options are the
 * harness's, with seqs running at once. Returns how often jobs were preempted.
 * After the last event nothing may be in use. */
int32_t crowd_run(const harness *h, crowd_job *jobs, int32_t n,
                  const harness_run *run, int32_t max_seqs);

/* What a test may see of a run: each event in the order it came, and the
 * engine's load after each step but the last. Entries may be NULL. */
typedef struct crowd_watch {
    void *arg;
    void (*on_event)(void *arg, const weft_event *event); /* handle: the job */
    void (*on_submit)(void *arg, int32_t job);
    void (*on_load)(void *arg, const weft_engine_load *load); /* its thread */
    /* May change what the engine is made of, just before it is made; returns
     * the config it takes. */
    const weft_model_config *(*on_make)(void *arg, weft_engine_options *o);
} crowd_watch;

int32_t crowd_run_watched(const harness *h, crowd_job *jobs, int32_t n,
                          const harness_run *run, int32_t max_seqs,
                          const crowd_watch *watch);

/* Bytes of KV that `job` takes at its longest, in whole slabs. */
int64_t crowd_bytes(const harness *h, const crowd_job *job,
                    const harness_run *run);

#endif
