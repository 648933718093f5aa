/* memory.h - how much memory this process may still take, and what of it goes
 * to KV pages. Budgets are of one rank: where a stage has several, all hold the
 * same rows, so with the CPU their pages count as often here.
 *
 * Threads: any; called at start.
 */
#ifndef WEFT_NODE_APP_MEMORY_H
#define WEFT_NODE_APP_MEMORY_H

#include "shard/step/engine.h"

/* Bytes that can be had without swapping: the least of the system's
 * MemAvailable and what the process's control groups leave.
 * UNAVAILABLE: /proc says nothing. */
WEFT_MUST_CHECK weft_status weft_memory_available(int64_t *bytes_out,
                                                  weft_err *err);

/* Bytes of KV that max_seqs sequences of max_context could use, whole slabs
 * each: with more, nothing could fill it. INVALID_ARGUMENT: page_tokens. */
WEFT_MUST_CHECK weft_status weft_memory_useful_kv(
    const weft_model_config *config, const weft_engine_options *options,
    int64_t *bytes_out, weft_err *err);

/* Whether a pool of that budget can be made: RESOURCE_EXHAUSTED names kv-bytes.
 * Said before weights are read. */
WEFT_MUST_CHECK weft_status weft_memory_check_pool(
    const weft_model_config *config, const weft_engine_options *options,
    int64_t kv_bytes, weft_err *err);

/* All that live requests hold together, journal and decoded messages: the
 * router refuses what would go beyond. 1/16 of what is available, within these:
 * a request is charged the longest text it may become, so a full queue of long
 * answers needs room. */
#define WEFT_REQUESTS_BYTES_MIN (INT64_C(256) << 20)
#define WEFT_REQUESTS_BYTES_MAX (INT64_C(1024) << 20)

/* What a start takes and where the KV budget comes from. */
typedef struct weft_memory_plan {
    int64_t available_bytes;
    int64_t weights_bytes;  /* resident, of all ranks; staging not counted */
    int64_t overhead_bytes; /* step buffers, tables, stacks */
    int64_t requests_bytes; /* live requests, at most */
    /* Left to the rest of the machine, and to messages that are arriving: 1/16
     * of what is available and at least 256 MiB. */
    int64_t reserve_bytes;
    int64_t kv_bytes;  /* the budget: given, or the rest; of each rank */
    int32_t kv_copies; /* of it in this memory: ranks, or 1 with devices */
    bool kv_given;
} weft_memory_plan;

/* kv_bytes 0: what is left after all of the above, shared by ranks, never more
 * than what max_seqs sequences of max_context could use. RESOURCE_EXHAUSTED:
 * the given budget, or the rest without one, does not fit, or holds less than a
 * slab of each kind; the text gives needed and available bytes, and names
 * kv-bytes if that is what is too large or too small. */
WEFT_MUST_CHECK weft_status weft_memory_plan_make(
    const weft_model_config *config, const weft_engine_options *options,
    int64_t kv_bytes, int64_t weights_bytes, weft_memory_plan *plan_out,
    weft_err *err);

/* The same where available_bytes can be had. */
WEFT_MUST_CHECK weft_status weft_memory_plan_within(
    const weft_model_config *config, const weft_engine_options *options,
    int64_t available_bytes, int64_t kv_bytes, int64_t weights_bytes,
    weft_memory_plan *plan_out, weft_err *err);

#endif
