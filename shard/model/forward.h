/* forward.h - one step of the model: rows of tokens in, hidden rows out.
 *
 * The absorbed form of latent attention over paged rows, for prefill and decode
 * alike (model-spec 2.3), so that a position is computed the same way whoever
 * shares its step. Everything a row computes depends on that row and on the
 * cached rows of its own sequence, never on the batch: see kernels/ops.h.
 *
 * Profiles. `exact` computes and caches in fp32. `bf16` caches rows and index
 * keys in bfloat16; where the ops' products take bfloat16 inputs, every output
 * of a norm, product, rotation, gate, activation and residual sum is rounded
 * too, as in model-spec 2.9. Router logits, indexer scores, softmax weights and
 * vocabulary logits are never rounded. Nor is, in a layer with an indexer, what
 * its choice of keys is computed from: the normed input, both latents, index
 * queries, keys and weights; products of these take pairs of bfloat16.
 *
 * Graphs. On a device a step of few rows is filled up to one of a few numbers
 * of rows, and its ops are kept as a graph (kernels/device.h) and replayed by
 * the next steps of that size: a decode step costs the host one launch, or one
 * more for each question to experts elsewhere and each sum over ranks. A row's
 * bits are the same with and without. Not with hooks, nor in pairs.
 *
 * Threads: the engine's. Nothing allocates after create.
 */
#ifndef WEFT_SHARD_MODEL_FORWARD_H
#define WEFT_SHARD_MODEL_FORWARD_H

#include "kernels/ops.h"
#include "shard/comm/group.h"
#include "shard/kv/store.h"
#include "shard/load/weights.h"
#include "shard/model/experts.h"

typedef struct weft_forward weft_forward;

/* What a test may observe and force (reduced precision is compared with forced
 * choices, since top-k cuts are discontinuous). All entries may be NULL. */
typedef struct weft_forward_hooks {
    void *arg;
    /* After each layer: the residual stream, [n_rows, hidden]. */
    void (*layer_out)(void *arg, int32_t layer, const float *h, int32_t n_rows);
    /* After routing and before use: ids and weights [n_rows, top_k]; may be
     * overwritten. */
    void (*route)(void *arg, int32_t layer, int32_t n_rows, int32_t *experts,
                  float *weights);
    /* After selection and before use: row r's keys are keys[r * stride ...],
     * n_keys[r] of them; may be overwritten. */
    void (*select)(void *arg, int32_t layer, int32_t n_rows, int32_t *keys,
                   int32_t stride, int32_t *n_keys);
} weft_forward_hooks;

typedef struct weft_forward_options {
    int32_t max_rows;        /* rows of the largest step */
    int32_t max_logits_rows; /* rows of one logits call */
    int32_t max_context;
    weft_profile profile;
    const weft_ops *ops;
    const weft_memory *memory; /* of the ops, borrowed; NULL: the host's */
    /* Of a device alone: sequences of one step, and tokens of a KV page. */
    int32_t max_sequences, page_tokens;
    weft_threads *threads; /* borrowed */
    int32_t n_threads;     /* of `threads`, which may be absent for sizes */
    /* Routed experts are computed there; NULL: here, from weights. */
    const weft_experts *experts; /* borrowed */
    int32_t lane;                /* of its calls */
    /* Of a tensor-parallel stage (ranks.h); NULL: alone. The config is as a
     * rank sees it. What each rank has computed a part of, the outputs of
     * attention and of the second half of a layer, is summed over the ranks
     * before it is rounded; rank 0 alone embeds, asks experts elsewhere and
     * gives logits. */
    weft_comm_rank *rank; /* borrowed */
    bool follows;         /* not rank 0 */
} weft_forward_options;

/* Host bytes of the step's buffers; and those of a device, if there is one and
 * device_bytes_out is not NULL. */
int64_t weft_forward_bytes(const weft_model_config *config,
                           const weft_forward_options *options,
                           int64_t *device_bytes_out);

/* config, weights and store are borrowed until destroy. With a device, create
 * and all that follows are of one thread, which is bound to it. */
WEFT_MUST_CHECK weft_status weft_forward_create(
    const weft_model_config *config, const weft_weights *weights,
    const weft_kv_store *store, const weft_forward_options *options,
    weft_forward **forward_out, weft_err *err);
void weft_forward_destroy(weft_forward *forward); /* NULL is fine */
/* Alone only: other ranks would not hear of them. */
void weft_forward_set_hooks(weft_forward *forward,
                            const weft_forward_hooks *hooks);

/* Since create, of what graphs are for: steps, or with experts elsewhere the
 * parts of them. */
typedef struct weft_forward_graphs {
    int64_t n_replayed;
    int64_t n_computed; /* op by op, or kept for the first time */
} weft_forward_graphs;
void weft_forward_get_graphs(const weft_forward *forward,
                             weft_forward_graphs *out);

/* Rows of one step. Rows of one sequence come in rising position order. */
typedef struct weft_batch {
    int32_t n_rows;                          /* 1 <= n_rows <= max_rows */
    const int32_t *tokens, *positions;       /* [n_rows] */
    const int64_t *const *pages[WEFT_KINDS]; /* [n_rows]: page table of the
                                                row's sequence, by kind */
    /* [n_rows, hidden]: what the stage before gave; NULL: the first stage,
     * which embeds the tokens. */
    const float *hidden;
} weft_batch;

/* Compute the config's layers [first_layer, end_layer); caches are written.
 * The hidden rows stay inside until the next call. UNAVAILABLE, CANCELLED: from
 * experts elsewhere; the same step may be computed again and gives the same.
 * INTERNAL: the device is of no use any more. */
WEFT_MUST_CHECK weft_status weft_forward_step(weft_forward *forward,
                                              const weft_batch *batch,
                                              weft_err *err);

/* Two micro-batches of one step, interleaved so that one computes while the
 * experts of the other are under way: for each layer a, then b. Rows of b may
 * attend to rows of a, not the other way. The forwards differ in lane and
 * nothing else. */
WEFT_MUST_CHECK weft_status weft_forward_step_pair(weft_forward *a,
                                                   const weft_batch *batch_a,
                                                   weft_forward *b,
                                                   const weft_batch *batch_b,
                                                   weft_err *err);

/* [n_rows, hidden] of the last step, before the final norm; borrowed until the
 * next one. With a device the values are there after fetch; a row's place
 * serves logits_of without it. */
const float *weft_forward_hidden(const weft_forward *forward);
/* INTERNAL: the device is of no use any more. */
WEFT_MUST_CHECK weft_status weft_forward_fetch_hidden(weft_forward *forward,
                                                      weft_err *err);

/* Final norm and vocabulary logits of n chosen rows, n <= max_logits_rows:
 * [n, vocab], borrowed until the next call; and what sampling needs to know of
 * each row. hidden [n] points to rows, of the last step or of another stage.
 * INTERNAL: the device is of no use any more. */
WEFT_MUST_CHECK weft_status weft_forward_logits_of(
    weft_forward *forward, const float *const *hidden, int32_t n,
    const float **logits_out, const weft_vocab_stat **stats_out, weft_err *err);

#endif
