/* desk.h - an engine on the small main config of model-spec 8.3, with a journal
 * of what it tells of each job, for tests of the engine's promises.
 *
 * The journal checks what holds of every job: tokens come in position order,
 * one by one, nothing comes after a last event, a preempted job says so once
 * and is then submitted again from the journal. */
#ifndef WEFT_TESTS_SUPPORT_DESK_H
#define WEFT_TESTS_SUPPORT_DESK_H

#include <stdatomic.h>

#include "node/base/ring.h"
#include "tests/support/harness.h"

enum { DESK_JOBS = 12, DESK_TOKENS = 2048, DESK_VOCAB = 97 };

typedef struct desk_told {
    weft_job job;                /* as submitted last */
    int32_t tokens[DESK_TOKENS]; /* the prompt, then what came */
    int32_t n_tokens;
    float logprobs[DESK_TOKENS];        /* of token i of the sequence */
    float prompt_logprobs[DESK_TOKENS]; /* of prompt token i */
    int32_t n_prompt_logprobs, n_prompt_events;
    int32_t n_started, n_last, n_preempted;
    bool over;
    weft_finish finish;
    weft_status status;
    char text[160];
} desk_told;

typedef struct desk {
    harness model;
    weft_engine *engine;
    weft_ring *ring;
    desk_told *told; /* [DESK_JOBS], by handle */
    /* How often the sink says no before it takes an event; the closed sink
     * takes nothing. */
    atomic_int refusals;
    atomic_bool closed;
    atomic_long n_refused;
    int32_t refused_in_a_row; /* the engine's thread */
    /* Sees each event before the journal; may be NULL. */
    void (*on_event)(struct desk *desk, const weft_event *event);
} desk;

/* Zero fields of the options take small values: 4-token pages, chunks of 8, 4
 * sequences, 8 waiting, 256 positions, room for all. The engine is not started.
 */
desk *desk_open(weft_engine_options options);
void desk_start(desk *d);

/* A greedy job of n_new tokens after synth_prompt's ids, shifted by `salt`. Its
 * fields may be changed, then it is submitted by its handle. */
weft_job *desk_job(desk *d, uint64_t handle, int32_t n_prompt, int32_t n_new,
                   int32_t salt);
void desk_submit(desk *d, uint64_t handle);
void desk_cancel(desk *d, uint64_t handle);

/* Waits for the next event and writes it down. */
void desk_take_event(desk *d);
void desk_wait_over(desk *d, uint64_t handle);
/* Until the job has so many tokens, prompt included, or is over. */
void desk_wait_tokens(desk *d, uint64_t handle, int32_t n_tokens);

/* Waits until nothing runs; then no page is used and no event is left. */
void desk_expect_idle(desk *d);
/* Stops the engine with whatever is in flight; frees everything. */
void desk_close(desk *d);

/* Exactly one last event, and of that kind. */
void desk_expect(const desk *d, uint64_t handle, weft_finish finish,
                 weft_status status);
/* The same tokens and logprobs as another told. */
void desk_expect_same(const desk_told *a, const desk_told *b);

#endif
