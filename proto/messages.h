/* messages.h - the public messages as plain C, without protobuf.
 *
 * One struct for each message of weft.proto that leaves proto/: requests as a
 * client sent them (what was not set is not set: no defaults here) and answers
 * as the node makes them. Texts are spans, which may hold NULs.
 *
 * Plain data; who made a struct says how long it lives. Threads: a struct
 * belongs to who holds it.
 */
#ifndef WEFT_PROTO_MESSAGES_H
#define WEFT_PROTO_MESSAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "node/base/span.h"

typedef struct weft_sampling_params {
    weft_opt_f32 temperature, top_p, min_p;
    weft_opt_u32 top_k;
    weft_opt_f32 frequency_penalty, presence_penalty, repetition_penalty;
    weft_opt_u32 max_tokens, min_tokens;
    const weft_span *stop; /* [n_stop] */
    size_t n_stop;
    const uint32_t *stop_token_ids; /* [n_stop_token_ids] */
    size_t n_stop_token_ids;
    weft_opt_bool skip_special_tokens, ignore_eos, include_stop_str;
    weft_opt_u32 n, logprobs, prompt_logprobs;
    weft_opt_u64 seed;
    const int32_t *bias_ids; /* [n_bias], rising, distinct */
    const float *bias;       /* [n_bias] */
    size_t n_bias;
} weft_sampling_params;

typedef enum weft_prompt_kind {
    WEFT_PROMPT_NONE = 0,
    WEFT_PROMPT_IDS,
    WEFT_PROMPT_TEXT,
} weft_prompt_kind;

typedef struct weft_generate_request {
    weft_span request_id;
    weft_prompt_kind prompt;
    const uint32_t *ids; /* [n_ids]; any 32-bit numbers */
    size_t n_ids;
    weft_span text;
    weft_sampling_params sampling;
    bool stream;
    int32_t priority;
    weft_span cache_salt;
} weft_generate_request;

typedef struct weft_tokenize_request {
    weft_span text;
    weft_opt_bool add_special_tokens, parse_special;
} weft_tokenize_request;

typedef struct weft_detokenize_request {
    const uint32_t *ids; /* [n_ids]; any 32-bit numbers */
    size_t n_ids;
    weft_opt_bool skip_special_tokens;
} weft_detokenize_request;

typedef struct weft_abort_request {
    const weft_span *request_ids; /* [n_request_ids] */
    size_t n_request_ids;
} weft_abort_request;

/* Log probabilities of consecutive tokens. The top entries of token i are
 * top_values and top_ids [s, s + n_top[i]), where s is the sum of n_top before
 * i; n_top is NULL if only the chosen tokens were asked for. */
typedef struct weft_logprobs {
    size_t n_tokens;
    const float *values; /* [n_tokens], of the chosen */
    const int32_t *ids;  /* [n_tokens], the chosen */
    const int32_t *n_top;
    const float *top_values;
    const int32_t *top_ids;
} weft_logprobs;

/* What came since the chunk before. */
typedef struct weft_chunk {
    const int32_t *ids; /* [n_ids] */
    size_t n_ids;
    weft_span text; /* final UTF-8 */
    uint32_t prompt_tokens, completion_tokens, cached_tokens;
    weft_logprobs logprobs; /* n_tokens is n_ids, or 0: not asked for */
} weft_chunk;

typedef enum weft_matched {
    WEFT_MATCHED_NONE = 0,
    WEFT_MATCHED_TOKEN,
    WEFT_MATCHED_STRING,
} weft_matched;

/* The whole answer. */
typedef struct weft_complete {
    const int32_t *ids; /* [n_ids] */
    size_t n_ids;
    weft_span text;
    weft_span finish_reason; /* "stop", "length" or "abort" */
    uint32_t prompt_tokens, completion_tokens, cached_tokens;
    weft_logprobs logprobs;       /* n_tokens 0: not asked for */
    weft_logprobs input_logprobs; /* n_tokens 0: not asked for */
    weft_matched matched;
    int32_t matched_token;
    weft_span matched_string;
} weft_complete;

typedef struct weft_model_info {
    weft_span name, model_type, weights_hash;
    uint32_t vocab_size, max_context;
    const int32_t *eos_ids; /* [n_eos_ids] */
    size_t n_eos_ids;
} weft_model_info;

enum { WEFT_LOAD_KINDS_MAX = 8 };

typedef struct weft_load_info {
    uint32_t running, waiting;
    uint64_t kv_bytes_used, kv_bytes_total;
    struct {
        char kind[16]; /* "full", "window" */
        uint64_t pages;
    } pages_used[WEFT_LOAD_KINDS_MAX]; /* [n_kinds] */
    size_t n_kinds;
} weft_load_info;

typedef struct weft_member_info {
    weft_span id, role, state, address;
    weft_span device;          /* of a shard */
    weft_opt_u32 group, stage; /* of layers */
    uint32_t experts;          /* (layer, expert) pairs */
    uint64_t incarnation;
} weft_member_info;

typedef struct weft_group_info {
    uint32_t group;
    bool connected, whole, draining;
    uint64_t epoch;
    uint32_t running, waiting;
    uint64_t kv_bytes_used, kv_bytes_total;
    weft_span reason;
} weft_group_info;

typedef struct weft_cluster_info {
    uint64_t epoch;
    const weft_member_info *members; /* [n_members] */
    size_t n_members;
    const weft_group_info *groups; /* [n_groups] */
    size_t n_groups;
    weft_load_info load;
    uint32_t experts_min, experts_max, replicas;
    uint64_t planned_epoch, moved_bytes, moved_least_bytes, retired_epoch;
    weft_span waiting;
    bool registry_reachable;
} weft_cluster_info;

#endif
