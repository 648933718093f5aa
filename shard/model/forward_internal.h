/* forward_internal.h - what forward.c, attention.c and ffn.c share: the step's
 * buffers and the rows at hand. */
#ifndef WEFT_SHARD_MODEL_FORWARD_INTERNAL_H
#define WEFT_SHARD_MODEL_FORWARD_INTERNAL_H

#include "node/base/check.h"
#include "shard/model/forward.h"

/* Attention takes its rows in tiles, since an absorbed query is wide
 * (n_head * (kv_lora_rank + rope) floats a row). A tile is large enough that
 * one pass over kv_b's weights serves many rows. */
enum { WEFT_ATTN_TILE_ROWS = 128 };

struct weft_forward {
    const weft_model_config *config;
    const weft_weights *weights;
    const weft_kv_store *store;
    weft_forward_options options;
    const weft_ops *ops;
    weft_threads *threads;
    weft_round round;
    weft_forward_hooks hooks;

    weft_memory memory; /* of the ops */
    int64_t pages_max;  /* entries of page tables that one step needs */
    void *ops_block;    /* all buffers below, one block */
    void *host_block;   /* those of `host`; NULL: the same */
    weft_gemm *gemms;   /* the host's */
    /* What a step is told, side by side in both memories. */
    int32_t *positions, *ids;   /* the step's own copies */
    weft_row *rows[WEFT_KINDS]; /* of the step, keys filled per layer */
    int64_t *pages; /* of a device: the rows' page tables, of both kinds */
    float *inv_freq[WEFT_KINDS];              /* [rope / 2] */
    float *cos[WEFT_KINDS], *sin[WEFT_KINDS]; /* [rows, rope / 2] */

    float *h; /* [rows, hidden]: the residual stream */
    float *x; /* [rows, hidden]: its norm; later the block's output */
    float *y; /* [rows, hidden] */

    float *q_latent, *kv, *gate, *q; /* attention, per row */
    float *q_absorbed, *latent_out;  /* attention, per row of a tile */
    float *heads_out;                /* [rows, n_head v_head_dim] */

    float *index_q, *index_k, *index_w; /* indexer */
    int32_t *index_keys, *index_n_keys; /* [rows, index_topk], [rows] */
    float *index_scores;                /* [threads, max_context] */

    float *mlp_gate, *mlp_up; /* [rows, width] dense MLP or shared expert */
    float *shared_out;        /* [rows, hidden] */
    float *router_logits, *route_weights; /* [rows, n_expert], [rows, top_k] */
    int32_t *route_experts;               /* [rows, top_k] */
    int32_t *expert_rows;  /* [rows top_k]: token of each row, by expert */
    int32_t *row_of;       /* [rows, top_k]: where a slot's row is; experts
                              elsewhere answer in pair order, so its place */
    int32_t *expert_first; /* [n_expert + 1] */
    float *expert_gate, *expert_up; /* [rows top_k, moe width]; experts here */
    float *expert_out;              /* [rows top_k, hidden] */

    float *final; /* [logits rows, hidden] */
    float *logits;
    weft_vocab_stat *stats;

    /* What the host reads or writes of the above; see forward_memory.c. */
    struct {
        int32_t *positions, *ids, *index_keys, *index_n_keys, *route_experts,
            *row_of;
        int64_t *pages;
        weft_row *rows[WEFT_KINDS];
        float *inv_freq[WEFT_KINDS], *h, *x, *route_weights, *expert_out,
            *final, *logits;
        weft_vocab_stat *stats;
    } host;

    bool embeds;         /* the step begins with tokens, not hidden rows */
    int32_t n_rows;      /* of the step */
    int32_t n_filled;    /* the same with rows that fill it up */
    int32_t n_positions; /* no row of the step is at such a position */
    uint32_t id;         /* of all forwards of the process; for graphs */
    uint64_t graph_key;  /* of the step; 0: none */
    weft_forward_graphs graphs;
    bool is_away;           /* experts were asked, and not yet waited for */
    weft_experts_call call; /* of experts elsewhere */
    weft_status ask_status; /* of bringing the question to the host */
    weft_err ask_err;
};

/* Limits and buffers, from config and options. RESOURCE_EXHAUSTED. */
WEFT_MUST_CHECK weft_status weft_forward_take_memory(weft_forward *f,
                                                     weft_err *err);
void weft_forward_free_memory(weft_forward *f);

/* How a step runs: n_rows, n_filled, n_positions and graph_key. See
 * forward_graph.c. */
void weft_forward_begin_graph(weft_forward *f, const weft_batch *batch);
/* The same, without a graph. */
void weft_forward_begin_plain(weft_forward *f, const weft_batch *batch);

/*     do {
 *         if (weft_forward_replay(f, part)) break;
 *         ... ops alone, as graph_begin (kernels/device.h) wants them ...
 *     } while (!weft_forward_keep(f));
 *
 * Without a graph: once. `part` numbers those of a step. */
bool weft_forward_replay(weft_forward *f, int32_t part);
bool weft_forward_keep(weft_forward *f);

/* What the step is told goes to the ops: ids, positions and rows. */
void weft_forward_put_step(weft_forward *f, const weft_batch *batch);

/* How the layer's input is rounded, and what is made of it up to the cached
 * rows and the choice of keys. A layer with an indexer does not round: the
 * choice is a cut through scores, of which many lie closer to each other than
 * bfloat16 can tell, and each key that changes sides moves the output by more
 * than all other rounding does. */
static inline weft_round weft_forward_input_round(const weft_forward *f,
                                                  const weft_layer_weights *w)
{
    return w->index_q.data != NULL ? WEFT_ROUND_NONE : f->round;
}

/* Alone, or rank 0 of several. */
static inline bool weft_forward_leads(const weft_forward *f)
{
    return !f->options.follows;
}

/* How an output of attention or of the second half of a layer is rounded:
 * where ranks have parts of it, after their sum. */
static inline weft_round weft_forward_part_round(const weft_forward *f)
{
    return f->options.rank == NULL ? f->round : WEFT_ROUND_NONE;
}

/* y = x times w, for rows of x that lie side by side. */
static inline weft_gemm weft_forward_product(const weft_forward *f,
                                             const weft_matrix *w,
                                             const float *x, float *y,
                                             int32_t n_rows)
{
    return (weft_gemm){
        .w = w,
        .x = x,
        .y = y,
        .x_stride = w->n_in,
        .y_stride = w->n_out,
        .n_row = n_rows,
        .x_is_bf16 = f->round == WEFT_ROUND_BF16,
        .round = f->round,
    };
}

/* x (the normed rows) -> y: attention of one layer, caches written. */
void weft_forward_attention(weft_forward *f, int32_t layer, int32_t n_rows);

/* Whether experts elsewhere are asked in that layer. */
static inline bool weft_forward_asks(const weft_forward *f, int32_t layer)
{
    return f->config->moe[layer] && f->options.experts != NULL;
}

/* x (the normed rows) -> y: dense MLP or mixture of experts of one layer, in
 * four acts, of which the first and the last are ops alone. Where experts are
 * elsewhere y is there only after the last, and x stays until then; else after
 * the first, and the others have nothing to do. */
void weft_forward_ffn_begin(weft_forward *f, int32_t layer, int32_t n_rows);
/* Asks experts elsewhere; the shared expert is computed meanwhile. */
void weft_forward_ffn_ask(weft_forward *f, int32_t layer, int32_t n_rows);
/* Waits for experts elsewhere, if the layer has asked any. Fails as their
 * collect does, on all ranks; nothing is away afterwards. */
WEFT_MUST_CHECK weft_status weft_forward_ffn_collect(weft_forward *f,
                                                     weft_err *err);
/* The same for who gives the step up: the other ranks are not told. */
void weft_forward_ffn_abandon(weft_forward *f);
void weft_forward_ffn_end(weft_forward *f, int32_t layer, int32_t n_rows);

#endif
