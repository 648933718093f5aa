/* expert_print.h - what an expert shard tells Prometheus beside what every
 * process does: how busy it is, how long questions wait, what it holds.
 *
 * Threads: any.
 */
#ifndef WEFT_NODE_OBS_EXPERT_PRINT_H
#define WEFT_NODE_OBS_EXPERT_PRINT_H

#include "node/base/str.h"
#include "shard/expert/server.h"

/* Prometheus text: weft_expert_questions_total, weft_expert_rejected_total,
 * weft_expert_busy_seconds_total and _idle_, weft_expert_busy_ratio (of recent
 * time), weft_expert_wait_seconds (sum and count), weft_expert_links,
 * weft_experts_held, weft_expert_bytes, weft_expert_loaded_bytes_total. */
WEFT_MUST_CHECK weft_status weft_expert_print(
    const weft_expert_server_stats *server,
    const weft_expert_store_stats *store, weft_buf *out, weft_err *err);

#endif
