/* told.h - what one stream has been told: tokens, text, logprobs.
 *
 * Tokens become text here: bytes to whole characters (text/detok.h), characters
 * to final text (text/stops.h holds back what may yet be part of a stop
 * string). A token that is one of the job's stop ids ends the stream and has no
 * text. What a chunk carries is what complete will carry, cut in pieces.
 *
 * No stop string ends before min_tokens are there.
 *
 * Bounded: arrays have room for max_tokens, text is at most ask.text_bytes.
 *
 * Threads: the router's.
 */
#ifndef WEFT_ROUTER_TOLD_H
#define WEFT_ROUTER_TOLD_H

#include "node/base/str.h"
#include "router/admit.h"
#include "router/client.h"
#include "router/text/detok.h"
#include "router/text/stops.h"
#include "router/text/tokenizer.h"

/* Logprobs of tokens in order: top [n * width], row after row. */
typedef struct weft_logprob_store {
    float *values; /* NULL: not asked for */
    int32_t *n_top;
    float *top_values;
    int32_t *top_ids;
    int32_t width;
} weft_logprob_store;

/* {0} is one that may be deinited, flushed and completed: nothing told. */
typedef struct weft_told {
    bool has_text; /* the model has a tokenizer */
    weft_detok detok;
    weft_stops *stops;  /* NULL: the request has no stop strings */
    weft_buf fresh;     /* text of the token at hand, before stops */
    weft_buf text;      /* final */
    size_t taken_bytes; /* of text, in chunks so far */

    int32_t n_tokens; /* generated; they are in ask.tokens */
    weft_logprob_store logprobs, prompt_logprobs;
    int32_t n_prompt_seen; /* prompt tokens whose logprob has come */

    bool matched_token;
    weft_span matched_stop; /* data NULL: none */
} weft_told;

/* RESOURCE_EXHAUSTED: no memory. `tokenizer` (may be NULL) and ask are
 * borrowed. */
WEFT_MUST_CHECK weft_status weft_told_init(weft_told *told,
                                           const weft_tokenizer *tokenizer,
                                           const weft_admitted *ask,
                                           weft_err *err);
void weft_told_deinit(weft_told *told);

/* A prompt token's logprob; event->top is read only. INTERNAL: not one of
 * this prompt's. */
WEFT_MUST_CHECK weft_status weft_told_add_prompt(weft_told *told,
                                                 const weft_admitted *ask,
                                                 const weft_event *event,
                                                 weft_err *err);

/* A generated token; event->top is read only. *last_out: no further token is
 * wanted, because the event says so or a stop string is complete; nothing is
 * held back then. RESOURCE_EXHAUSTED: no memory; INTERNAL: a token too many.
 * After a failure the stream can only be ended. */
WEFT_MUST_CHECK weft_status weft_told_add(weft_told *told,
                                          const weft_admitted *ask,
                                          const weft_event *event,
                                          bool *last_out, weft_err *err);
/* No token more: what was held back becomes text. */
WEFT_MUST_CHECK weft_status weft_told_flush(weft_told *told,
                                            const weft_admitted *ask,
                                            weft_err *err);

/* The latest n_ids tokens (0 or 1) and the text that no chunk has carried.
 * That text counts as taken after this. */
void weft_told_take_chunk(weft_told *told, const weft_admitted *ask,
                          int32_t n_ids, weft_stream_chunk *chunk_out);
void weft_told_get_complete(const weft_told *told, const weft_admitted *ask,
                            weft_stream_end end,
                            weft_stream_complete *complete_out);

#endif
