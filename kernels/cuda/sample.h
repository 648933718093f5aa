/* sample.h - from rows of logits to tokens, on the device: what
 * shard/sample/sample.h says of one row, for many at once. Which operations,
 * their order, ties, what is greedy and how the draw depends on seed and
 * position: there.
 *
 * What is different: sums of weights are sums of integers. A weight
 * exp((x - max) / temperature) counts as its multiple of 2^-s, rounded down,
 * with s as large as 64 bits allow (2^-45 for vocabularies up to 262144), so
 * that a sum needs no order and each of its parts can be anyone's work. Where
 * the border of top_p or the point of the draw lies within n 2^-s of a border
 * between two tokens, the CPU's sampler, which adds doubles, may take the other
 * one; a weight below 2^-s is never drawn.
 *
 * Not one of weft_ops: whoever wants it asks the library for its symbol.
 * Threads: one that is bound (kernels/device.h); in the order of its ops.
 */
#ifndef WEFT_KERNELS_CUDA_SAMPLE_H
#define WEFT_KERNELS_CUDA_SAMPLE_H

#include "kernels/ops.h"
#include "node/base/gen.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One row: a token of some request. All pointers, those of `sampling` too, are
 * device memory. */
typedef struct weft_sample_row {
    weft_sampling sampling;
    const int32_t *tokens; /* [n_tokens] of the sequence so far */
    const int32_t *stop_ids;
    int32_t n_prompt, n_tokens;
    int32_t n_stop_ids; /* 0 from min_tokens on */
} weft_sample_row;

/* Instead of a token. */
enum {
    WEFT_SAMPLE_NOT_FINITE = -1, /* the row holds NaN or +inf */
    WEFT_SAMPLE_NO_TOKEN = -2,   /* every token is excluded */
};

/* Pointers are device memory. Takes 8 bytes of scratch for each element of a
 * row; rows come in as many turns as that needs. */
typedef struct weft_sample {
    const float *logits;          /* [n_row, vocab] */
    const weft_vocab_stat *stats; /* [n_row], by the op vocab */
    const weft_sample_row *rows;  /* [n_row] */
    const int32_t *suppressed;    /* ids that no row may take */
    int32_t *tokens_out;          /* [n_row] */
    int64_t logits_stride;
    int32_t n_row, vocab, n_suppressed;
} weft_sample;

#define WEFT_SAMPLE_SYMBOL "weft_device_sample"
typedef void (*weft_device_sample_fn)(const weft_sample *);

#ifdef __cplusplus
}

namespace weft
{

struct queue;
void launch_sample(queue *, const weft_sample *);

} // namespace weft
#endif

#endif
