/* client.h - how the router answers a call.
 *
 * For every accepted request the router calls chunk any number of times (never
 * if the request did not ask to stream), then exactly one of complete and fail,
 * then nothing more: `arg` is done with. That holds for a request that its own
 * client has cancelled, too.
 *
 * Threads: called on the router's thread, and must not block: one slow client
 * would hold up all others. What is pointed to is borrowed for the call.
 */
#ifndef WEFT_ROUTER_CLIENT_H
#define WEFT_ROUTER_CLIENT_H

#include "router/admit.h"

/* When trying again may help. */
enum {
    WEFT_RETRY_FULL_MS = 500,    /* a queue or memory limit is reached */
    WEFT_RETRY_DRAIN_MS = 1000,  /* this node is going; another will come */
    WEFT_RETRY_SHARDS_MS = 1000, /* nothing is there to compute it */
};

/* Logprobs of n tokens in a row. Token i has n_top[i] alternatives; they follow
 * one another in top_values and top_ids. */
typedef struct weft_logprob_rows {
    int32_t n; /* 0: not asked for */
    const float *values;
    const int32_t *ids;
    const int32_t *n_top; /* NULL: no alternatives were asked for */
    const float *top_values;
    const int32_t *top_ids;
} weft_logprob_rows;

typedef struct weft_stream_chunk {
    const int32_t *ids; /* one token, or none (held-back text that is final) */
    int32_t n_ids;
    int32_t prompt_tokens, completion_tokens, cached_tokens; /* so far */
    weft_logprob_rows logprobs;
    weft_span text; /* final: whole characters, no part of a stop string */
} weft_stream_chunk;

typedef enum weft_stream_end {
    WEFT_END_STOP,
    WEFT_END_LENGTH,
    WEFT_END_ABORT
} weft_stream_end;

typedef struct weft_stream_complete {
    weft_stream_end end;
    const int32_t *ids; /* all generated tokens */
    int32_t n_ids;
    int32_t prompt_tokens, cached_tokens;
    weft_logprob_rows logprobs, prompt_logprobs; /* of prompt: first is 0 */
    bool matched_token;     /* the last token is one of the stop ids */
    weft_span matched_stop; /* data NULL: none */
    weft_span text;         /* all of it */
} weft_stream_complete;

typedef struct weft_client_ops {
    void (*chunk)(void *arg, const weft_stream_chunk *chunk);
    void (*complete)(void *arg, const weft_stream_complete *complete);
    /* retry_after_ms < 0: trying again does not help, or not here. `text` is
     * one line. */
    void (*fail)(void *arg, weft_status status, const char *text,
                 int32_t retry_after_ms);
} weft_client_ops;

#endif
