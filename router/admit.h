/* admit.h - from what a client asked to a job that a lead can run.
 *
 * Every field is checked against its range, what is unset gets its default, and
 * the result is complete: nothing downstream knows of "unset". A refusal names
 * the field, the value and what is allowed, in one line.
 *
 * A prompt may come as text, which is not yet ids when the request arrives. So
 * there are two steps: weft_admit_request looks at everything that needs no
 * ids, weft_admit_prompt at the ids and what follows from their number. A text
 * that cannot fit whatever its tokens are is refused in the first step, before
 * anybody tokenizes it.
 *
 * Limits that the wire does not know (all refused by name):
 *   stop             64 strings of 1 to 1024 bytes, without NUL
 *   stop_token_ids   1024
 *   logit_bias       1024 entries (WEFT_BIAS_MAX)
 *   request_id       256 bytes
 *   logprobs of one request   WEFT_LOGPROB_BYTES_MAX held until its end
 *
 * Pure: no clock, thread or I/O. Threads: any; an arena has one owner.
 */
#ifndef WEFT_ROUTER_ADMIT_H
#define WEFT_ROUTER_ADMIT_H

#include "node/base/arena.h"
#include "node/base/gen.h"
#include "node/base/span.h"
#include "router/text/tokenizer.h"

enum {
    WEFT_REQUEST_STOPS_MAX = 64,
    WEFT_REQUEST_STOP_BYTES_MAX = 1024,
    WEFT_REQUEST_STOP_IDS_MAX = 1024,
    WEFT_REQUEST_ID_BYTES_MAX = 256,
    WEFT_MAX_TOKENS_DEFAULT = 4096, /* where max_tokens is not set */
    WEFT_REQUEST_N_MAX = 128,       /* above it, `n` is absurd, not unbuilt */
    WEFT_LOGPROB_BYTES_MAX = 64 << 20,
    /* What a request may keep in its arena: ids, stops, bias */
    WEFT_REQUEST_ARENA_MAX = 64 << 20,
};

/* A request as it came, decoded and nothing more. All pointers are borrowed
 * for the call. */
typedef struct weft_request {
    weft_span request_id;   /* empty: one is made from `serial` */
    uint64_t serial;        /* unique in this process */
    bool has_ids, has_text; /* which prompt; both or none is refused */
    const uint32_t *ids;
    size_t n_ids;
    weft_span text;
    bool stream;
    int32_t priority;
    uint64_t deadline_ns; /* CLOCK_MONOTONIC; UINT64_MAX: none */

    weft_opt_f32 temperature, top_p, min_p;
    weft_opt_f32 frequency_penalty, presence_penalty, repetition_penalty;
    weft_opt_u32 top_k, max_tokens, min_tokens, n, logprobs, prompt_logprobs;
    weft_opt_u64 seed;
    weft_opt_bool skip_special_tokens, ignore_eos, include_stop_str;
    const weft_span *stop;
    size_t n_stop;
    const uint32_t *stop_token_ids;
    size_t n_stop_token_ids;
    const int32_t *bias_ids; /* of two with one id, the later one counts */
    const float *bias;
    size_t n_bias;
} weft_request;

/* What the model allows and what it sets where a request does not. */
typedef struct weft_admit_limits {
    int32_t vocab_size, max_context;
    /* What whoever computes allows now, if that is less; 0: not known.
     * Borrowed; NULL: max_context always holds. */
    const _Atomic int32_t *max_context_now;
    const int32_t *stop_ids; /* the model's end tokens; borrowed */
    int32_t n_stop_ids;
    const int32_t *suppressed_ids; /* refused in prompts; borrowed */
    int32_t n_suppressed_ids;
    const weft_tokenizer *tokenizer; /* NULL: token ids only; borrowed */
    /* Already resolved: generation_config's values, or neutral ones. */
    float temperature, top_p, repetition_penalty;
    uint32_t top_k;
} weft_admit_limits;

/* What a request has become. Everything it points to is in the arena, but for
 * the model's stop ids where the request adds none. */
typedef struct weft_admitted {
    weft_job job; /* handle and age are the journal's; tokens after step two */
    weft_span request_id;
    const char *const *stop; /* [n_stop], NUL-terminated */
    int32_t n_stop;
    bool stream, skip_special_tokens, include_stop_str;
    bool max_tokens_set;
    int32_t *tokens; /* job.tokens, with room for max_tokens after the prompt */
    int64_t logprob_bytes; /* the most that its logprobs will take */
    int64_t text_bytes;    /* the most text that its answer can be */
} weft_admitted;

/* INVALID_ARGUMENT, UNIMPLEMENTED (n above 1); RESOURCE_EXHAUSTED: no memory.
 * A request that carries ids is complete after this call. */
WEFT_MUST_CHECK weft_status weft_admit_request(const weft_admit_limits *limits,
                                               const weft_request *request,
                                               weft_arena *arena,
                                               weft_admitted *admitted_out,
                                               weft_err *err);

/* The second step, for a text prompt: ids [n] become the job's prompt. */
WEFT_MUST_CHECK weft_status weft_admit_prompt(const weft_admit_limits *limits,
                                              const uint32_t *ids, size_t n,
                                              weft_arena *arena,
                                              weft_admitted *admitted_io,
                                              weft_err *err);

#endif
