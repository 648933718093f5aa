/* codec.h - jobs, events and states as the bodies of frames between a router
 * and a lead: SUBMIT, CANCEL, EVENTS, STATE.
 *
 * Strict: a decoder believes nothing. What it gives out is within the model's
 * ranges, so that neither a router nor a lead can make the other read or write
 * where it should not. on_logits and forced are not carried.
 *
 * A deadline crosses as the time that is left, since clocks differ; what the
 * frame needs on its way is added to it.
 *
 * Threads: none of its own.
 */
#ifndef WEFT_NODE_FLEET_CODEC_H
#define WEFT_NODE_FLEET_CODEC_H

#include "node/base/arena.h"
#include "node/base/pack.h"
#include "node/fleet/fleet.h"

enum {
    WEFT_JOB_STOP_IDS_MAX = 2048,
    WEFT_JOB_TOKENS_MAX = 1 << 20,
    /* The longest event: top logprobs and text. */
    WEFT_EVENT_BYTES_MAX = 64 + 8 * WEFT_LOGPROBS_MAX + 160,
    WEFT_STATE_BYTES_MAX = 2048,
};

/* Bytes that the job will have. */
size_t weft_job_bytes(const weft_job *job);
/* RESOURCE_EXHAUSTED: longer than a frame can be, with both numbers; nothing
 * else can go wrong where pack has weft_job_bytes. */
WEFT_MUST_CHECK weft_status weft_job_encode(const weft_job *job,
                                            uint64_t now_ns, weft_pack *pack,
                                            weft_err *err);
/* The job and its arrays are in the arena. INVALID_ARGUMENT: malformed or out
 * of range, which a router of ours never sends. RESOURCE_EXHAUSTED: memory. */
WEFT_MUST_CHECK weft_status weft_job_decode(const void *bytes, size_t n,
                                            int32_t vocab_size, uint64_t now_ns,
                                            weft_arena *arena,
                                            weft_job **job_out, weft_err *err);

/* One event; pack->full if it did not fit. */
void weft_event_encode(const weft_event *event, weft_pack *pack);
/* event_out->top is the caller's, to end with weft_mem_free. INVALID_ARGUMENT:
 * malformed or out of range. RESOURCE_EXHAUSTED: memory. The text is made one
 * line of UTF-8. */
WEFT_MUST_CHECK weft_status weft_event_decode(weft_unpack *unpack,
                                              int32_t vocab_size,
                                              weft_event *event_out,
                                              weft_err *err);

/* Of load: requests, steps, idle and kv_group, which kv then equals. */
void weft_state_encode(const weft_group_state *state, weft_pack *pack);
WEFT_MUST_CHECK weft_status weft_state_decode(const void *bytes, size_t n,
                                              weft_group_state *state_out,
                                              weft_err *err);

#endif
