/* gen.h - the words that the router and a lead (stage 0) exchange.
 *
 * The router owns what a client has asked and seen (the journal); the lead owns
 * pages and steps. A job is what the router submits; events are what comes
 * back. A preempted job comes back as an event and is submitted again from the
 * journal, prompt and told tokens together: recompute after preemption and
 * failover to another group are one path.
 *
 * Plain data, no behaviour. Threads: a job belongs to the router until it is
 * submitted, then to the lead until its last event (done or preempted); its
 * arrays stay put meanwhile. An event belongs to who holds it.
 */
#ifndef WEFT_NODE_BASE_GEN_H
#define WEFT_NODE_BASE_GEN_H

#include <stdbool.h>
#include <stdint.h>

#include "node/base/err.h"

enum {
    WEFT_LOGPROBS_MAX = 512, /* top logprobs of one token */
    WEFT_BIAS_MAX = 1024,    /* logit_bias entries of one request */
};

/* Fully resolved: defaults are applied, ranges are checked by router/admit. */
typedef struct weft_sampling {
    float temperature;                         /* 0: greedy */
    float top_p;                               /* 1: off */
    float min_p;                               /* 0: off */
    uint32_t top_k;                            /* 0: off */
    float frequency_penalty, presence_penalty; /* 0: off; generated tokens */
    float repetition_penalty; /* 1: off; prompt and generated tokens */
    uint64_t seed;
    int32_t n_bias;
    const int32_t *bias_ids; /* [n_bias], distinct */
    const float *bias;       /* [n_bias] */
} weft_sampling;

typedef struct weft_job {
    uint64_t handle; /* the router's; unique while the job lives */
    uint64_t age;    /* rising with acceptance; kept when submitted again */
    uint64_t deadline_ns; /* CLOCK_MONOTONIC; UINT64_MAX: none */
    int32_t priority;     /* higher goes first; equal: by age */

    /* tokens[0, n_prompt) is the prompt; [n_prompt, n_tokens) was generated
     * (and told) before a preemption or failover. */
    const int32_t *tokens;
    int32_t n_prompt, n_tokens;

    int32_t max_tokens, min_tokens; /* generated, told ones included */
    const int32_t *stop_ids; /* generation ends with one of these (end-of-   */
    int32_t n_stop_ids;      /* sequence ids included unless ignore_eos)     */
    weft_sampling sampling;
    int32_t logprobs;        /* -1: none; else top count, 0 = chosen only */
    int32_t prompt_logprobs; /* the same for prompt tokens; -1: none */

    /* Scoring without sampling (weft eval): generated tokens are taken from
     * forced[0, max_tokens) instead of being sampled. NULL: sample. */
    const int32_t *forced;
    /* Called on the engine's thread with each row of logits, in position
     * order: the row computed at `position` (it predicts position + 1).
     * NULL: nobody wants them. With it, prompt rows are computed too. */
    void (*on_logits)(void *arg, int32_t position, const float *logits);
    void *on_logits_arg;
} weft_job;

typedef enum weft_finish {
    WEFT_FINISH_NONE = 0, /* more will come */
    WEFT_FINISH_STOP,     /* the token is one of stop_ids */
    WEFT_FINISH_LENGTH,   /* max_tokens reached */
    WEFT_FINISH_FAILED,   /* status and err say why; no token */
    WEFT_FINISH_PREEMPTED /* pages gone; submit again from the journal */
} weft_finish;

typedef struct weft_logprob {
    float value;
    int32_t id;
} weft_logprob;

typedef enum weft_event_kind {
    WEFT_EVENT_TOKEN,  /* token, and perhaps finish */
    WEFT_EVENT_END,    /* finish without a token: failed, preempted */
    WEFT_EVENT_PROMPT, /* logprob of prompt token `position` */
    WEFT_EVENT_STARTED /* first planned: the queue time ends here */
} weft_event_kind;

typedef struct weft_event {
    uint64_t handle;
    weft_event_kind kind;
    weft_finish finish;
    int32_t token, position; /* position of the token in the sequence */
    float logprob;           /* of token; valid if logprobs were asked */
    int32_t n_top;
    weft_logprob *top;  /* [n_top]; the receiver's, to end with weft_mem_free */
    weft_status status; /* of WEFT_FINISH_FAILED */
    char text[160];     /* of WEFT_FINISH_FAILED */
} weft_event;

#endif
