/* sample.h - from a row of logits to a token.
 *
 * Order of operations: logit_bias, repetition, frequency and presence
 * penalties, suppressed ids and (below min_tokens) stop ids to -inf,
 * temperature, top_k, top_p, min_p, then one draw. The draw's number is a
 * function of (seed, position) alone (node/base/rng.h), candidates are ordered
 * by (logit desc, id asc), ties go to the lowest id: so the token depends on
 * the row and the request, never on the company.
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
 * not changed. INTERNAL: the row holds NaN, or every token is excluded. */
WEFT_MUST_CHECK weft_status weft_sampler_choose(
    weft_sampler *sampler, const weft_job *job, const int32_t *tokens,
    int32_t n_tokens, const float *logits, const weft_vocab_stat *stat,
    int32_t *token_out, weft_err *err);

/* Fill event->logprob, n_top and top for `token` out of the row: top `n_top`
 * (value desc, id asc). RESOURCE_EXHAUSTED: no memory for the list. */
WEFT_MUST_CHECK weft_status weft_sampler_logprobs(
    weft_sampler *sampler, const float *logits, const weft_vocab_stat *stat,
    int32_t token, int32_t n_top, weft_event *event_io, weft_err *err);

#endif
