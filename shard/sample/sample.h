/* sample.h - from a row of logits to a token.
 *
 * Order of operations: logit_bias, repetition, frequency and presence
 * penalties, suppressed ids and (below min_tokens) stop ids to -inf,
 * temperature, top_k, top_p, min_p, then one draw. Each filter keeps the first
 * few in the order (logit desc, id asc), so ties go to the lowest id:
 *
 *   top_k   the first k; k >= vocab is off
 *   top_p   the shortest run whose weight is top_p of what top_k kept, or more;
 *           never empty
 *   min_p   those whose weight is at least min_p of the first one's
 *
 * The draw goes through those that are left by rising id, and takes the first
 * at which the running sum exceeds u times the whole; u is a function of (seed,
 * position) alone (node/base/rng.h). So the token depends on the row and the
 * request, never on the company, and a filter that removes nothing changes
 * nothing. A temperature below 1e-5, top_k 1, top_p 0 and min_p 1 are greedy:
 * the first in the order. Results of bias and penalties that leave the range of
 * a float are set to its ends.
 *
 * Repetition: each token of prompt and output once, positive logits divided,
 * others multiplied. Frequency (times the count) and presence: output only.
 *
 * Reported logprobs are natural logarithms of the model's own distribution,
 * before all of the above.
 *
 * Threads: the engine's. Nothing allocates after create, but for the top
 * logprobs of an event, which become the receiver's.
 */
#ifndef WEFT_SHARD_SAMPLE_SAMPLE_H
#define WEFT_SHARD_SAMPLE_SAMPLE_H

#include "kernels/ops.h"
#include "node/base/gen.h"
#include "shard/model/config.h"

typedef struct weft_sampler weft_sampler; /* scratch for one row at a time */

WEFT_MUST_CHECK weft_status weft_sampler_create(const weft_model_config *config,
                                                const weft_ops *ops,
                                                weft_sampler **sampler_out,
                                                weft_err *err);
void weft_sampler_destroy(weft_sampler *sampler); /* NULL is fine */

/* Choose the token for position n_tokens of a sequence whose tokens so far are
 * tokens[0, n_tokens) (job->n_prompt of them the prompt). `logits` [vocab] is
 * not changed. INTERNAL: the row holds NaN or +inf, or every token is
 * excluded. */
WEFT_MUST_CHECK weft_status weft_sampler_choose(
    weft_sampler *sampler, const weft_job *job, const int32_t *tokens,
    int32_t n_tokens, const float *logits, const weft_vocab_stat *stat,
    int32_t *token_out, weft_err *err);

/* Fill event->logprob, n_top and top for `token` out of the row: top `n_top`
 * (value desc, id asc), at most vocab. RESOURCE_EXHAUSTED: no memory for the
 * list. INTERNAL: the row holds NaN, or its largest is infinite. *event_io is
 * changed on success only. */
WEFT_MUST_CHECK weft_status weft_sampler_logprobs(
    weft_sampler *sampler, const float *logits, const weft_vocab_stat *stat,
    int32_t token, int32_t n_top, weft_event *event_io, weft_err *err);

#endif
