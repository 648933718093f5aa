/* ops.h - the table of operations that a backend fills.
 *
 * Model code (shard/model) is written against this table alone. `cpu` fills it
 * several times, once for each instruction set; all of those give the same
 * bits, because every sum has an order that depends on nothing but the row:
 *
 *   - matrix products: lanes hold different outputs; for one output the
 *     products are added by fused multiply-add in rising input order, from 0,
 *     in one chain. Tiles over rows and outputs are free, and a chain may be
 *     parked in memory as fp32 between blocks of inputs.
 *   - reductions along a row (norms, dot products of queries with keys, sums of
 *     probabilities): 16 virtual lanes, lane l taking elements l, l+16, ... by
 *     fused multiply-add (or add) in rising order from 0 (missing elements are
 *     skipped: their lane keeps its value); then the tree
 *         for (w = 8; w >= 1; w /= 2) for (l < w) lane[l] += lane[l + w].
 *     Maxima need no order.
 *   - exp, log, sin and cos are ours (kernels/cpu/math), the same on all paths.
 *   - fused multiply-add wherever a product is added; nothing is contracted by
 *     the compiler.
 *
 * Rounding. `round` WEFT_ROUND_BF16 rounds each result to bfloat16 (nearest,
 * ties to even), kept in fp32 storage: the profile `bf16` on a table whose
 * products take bfloat16 (bf16_inputs). Else results stay as they are, and the
 * profile `bf16` rounds only what goes into the cache.
 *
 * Conventions. Activations are fp32, rows of `*_stride` floats (a stride may
 * exceed the width). No op allocates; scratch is the caller's. No op can fail:
 * shapes are checked once, when the model is loaded; debug builds assert them.
 * Unless said otherwise an output may not overlap an input.
 *
 * Threads: an op is called by the engine thread, which owns `threads`; work is
 * spread over it inside, and the result does not depend on how.
 */
#ifndef WEFT_KERNELS_OPS_H
#define WEFT_KERNELS_OPS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/matrix.h"
#include "node/base/err.h"
#include "node/base/threads.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum weft_round { WEFT_ROUND_NONE = 0, WEFT_ROUND_BF16 = 1 } weft_round;

/* y[r] = W x[r] for n_row rows: y [n_row, n_out], x [n_row, n_in].
 * x_rows, if not NULL, [n_row]: row r of the product reads row x_rows[r] of x
 * (how an expert gathers its tokens). */
typedef struct weft_gemm {
    const weft_matrix *w;
    const float *x;
    const int32_t *x_rows;
    float *y;
    int64_t x_stride, y_stride;
    int32_t n_row;
    /* x holds values of bfloat16: a table with bf16_inputs takes them as such,
     * else as fp32. */
    bool x_is_bf16;
    /* x does not, but a table with bf16_inputs may take each value as the sum
     * of two of bfloat16, which is within 2^-16 of it (in magnitude below
     * 2^-118: within 2^-134); an infinite weight then gives NaN. Else as
     * fp32. */
    bool x_as_pair;
    weft_round round;
} weft_gemm;

/* y = w * x / sqrt(mean(x^2) + eps) * scale, row by row. With rounding: the
 * product with w is rounded once, and once more after `scale` if it is not 1.
 * In order: r = 1 / sqrt(mean + eps), y = (x r) w, then y scale unless scale is
 * 1. y may be x. Source: Zhang and Sennrich, arXiv 1910.07467. */
typedef struct weft_rms_norm {
    const float *x, *w;
    float *y;
    int64_t x_stride, y_stride;
    int32_t n_row, width;
    float eps, scale;
    weft_round round;
} weft_rms_norm;

/* y = w * (x - mean) / sqrt(var + eps) + b, var the mean of squared deviations.
 * In order: r = 1 / sqrt(var + eps), y = fma((x - mean) r, w, b). y may be x.
 */
typedef struct weft_layer_norm {
    const float *x, *w, *b;
    float *y;
    int64_t x_stride, y_stride;
    int32_t n_row, width;
    float eps;
    weft_round round;
} weft_layer_norm;

/* Angle table: cos_out and sin_out [n_row, n_freq];
 * angle = (float)position * inv_freq[i] in fp32; its cosine and sine times
 * `factor`. Accurate for every angle a position below 2^24 can make. */
typedef struct weft_rope_table {
    const int32_t *positions; /* [n_row] */
    const float *inv_freq;    /* [n_freq] */
    float *cos_out, *sin_out;
    int32_t n_row, n_freq;
    float factor;
} weft_rope_table;

/* Rotate 2 * n_freq channels of every head: head h of row r is read at
 * x + r x_stride + h x_head_stride and written at y + r y_stride +
 * h y_head_stride; y may be x (with the same strides), which rotates in place.
 * interleave: pairs (2i, 2i+1); else (i, i + n_freq).
 * a' = fma(a, cos, -(b sin)), b' = fma(a, sin, b cos).
 * Source: Su et al., arXiv 2104.09864; model-spec 2.3 step 6. */
typedef struct weft_rope {
    const float *x;
    float *y;
    const float *cos, *sin; /* [n_row, n_freq] */
    int64_t x_stride, x_head_stride, y_stride, y_head_stride;
    int32_t n_row, n_head, n_freq;
    bool interleave;
    weft_round round;
} weft_rope;

/* y = silu(a) * b, elementwise; silu(z) = z / (1 + exp(-z)). y may be a. */
typedef struct weft_silu_mul {
    const float *a, *b;
    float *y;
    int64_t a_stride, b_stride, y_stride;
    int32_t n_row, width;
    weft_round round;
} weft_silu_mul;

/* x[r, h, :] *= sigmoid(g[r, h]), sigmoid(z) = 1 / (1 + exp(-z)), over
 * `head_width` channels; head_width 1 is the elementwise gate. */
typedef struct weft_gate {
    float *x;
    const float *g;
    int64_t x_stride, g_stride;
    int32_t n_row, n_head, head_width;
    weft_round round;
} weft_gate;

/* x[r] += y[r]: the residual stream. */
typedef struct weft_add {
    float *x;
    const float *y;
    int64_t x_stride, y_stride;
    int32_t n_row, width;
    weft_round round;
} weft_add;

/* y[r] = table[ids[r]], converted to fp32; table [vocab, width] row-major. */
typedef struct weft_embed {
    const void *table;
    const int32_t *ids;
    float *y;
    weft_dtype dtype;
    int64_t y_stride;
    int32_t n_row, width;
} weft_embed;

/* Where one layer keeps its rows in paged memory. Position p of a sequence is
 * row p % page_tokens of its page number p / page_tokens, which starts at
 *   base + pages[p / page_tokens] + layer_offset
 * bytes; rows are row_bytes apart and hold `dtype`: F32 or BF16, or, of index
 * keys, F8_E4M3.
 *
 * A key of `width` values in F8_E4M3 is width codes and then one fp32 scale;
 * width is a multiple of 4 and rows are aligned to 4 bytes. The scale is the
 * smallest power of two, 2^-126 at least, that brings the largest magnitude to
 * 448 at most (1 where all are zeros); a code is value / scale, rounded to
 * nearest even. A key with an infinity or NaN has codes of 0 and the scale NaN,
 * so that its score is NaN. Source: model-spec 2.5, scales that are powers of
 * two. */
typedef struct weft_paged {
    unsigned char *base;
    int64_t layer_offset, row_bytes;
    int32_t page_tokens;
    weft_dtype dtype;
} weft_paged;

/* One row of a step: a token of some sequence. A row at position -1 is of none
 * and only fills a step up: its pages are not read, nothing is stored of it,
 * and it sees no keys. */
typedef struct weft_row {
    const int64_t *pages; /* page table of its sequence for the kind at hand:
                             byte offsets; -1 where the page is not held */
    int32_t position;
    /* Keys it sees, rising. keys NULL: all of [first, position]. index_select
     * sets both. */
    int32_t first;
    const int32_t *keys;
    int32_t n_keys;
} weft_row;

/* Write x[r], `width` floats, as row rows[r].position of its sequence; as an
 * index key where the dtype is F8_E4M3. */
typedef struct weft_store {
    weft_paged to;
    const weft_row *rows;
    const float *x;
    int64_t x_stride;
    int32_t n_row, width;
} weft_store;

/* Latent attention in absorbed form over paged rows [c | k_rope], F32 or BF16:
 *
 *   out[r, h] = sum_j p_j c_j,   p = softmax_j(scale * q[r, h] . row_j)
 *
 * j over the keys of row r; c_j is the first value_width of row_j's `width`.
 * Keys are taken in position order in splits of 256 (ordinal in the list of
 * visible keys, not position). In a split: scores (16-lane dot, then * scale),
 * their maximum m, p_j = exp(s_j - m), l = sum p_j (16 lanes), acc_d += p_j
 * c_jd in key order from 0. Splits are folded in order into a running (M, L,
 * A): M' = max(M, m), a = exp(M - M'), b = exp(m - M'), L' = fma(L, a, l b), A'
 * = fma(A, a, acc b);  out = A / L. The first split is taken as it is. A row
 * without keys gives zeros. Sources: DeepSeek-V2, arXiv 2405.04434, 2.1.2;
 * Milakov and Gimelshein, arXiv 1805.02867; split decoding: Dao et al.,
 * Flash-Decoding. */
typedef struct weft_attn {
    weft_paged kv;
    const weft_row *rows;
    const float *q; /* [n_row, n_head, width], row stride q_stride  */
    float *out;     /* [n_row, n_head, value_width], out_stride     */
    int64_t q_stride, out_stride;
    int32_t n_row, n_head, width, value_width;
    int32_t n_keys_max; /* no row sees more keys */
    float scale;
    weft_round round;
} weft_attn;

/* Lightning indexer: score[j] = sum_h w[r,h] * relu(q[r,h] . k_j), heads in
 * rising order from 0 by fused multiply-add, dots by 16 lanes; j over
 * [0, position]. Of keys in F8_E4M3, k_j are the values of the codes, and the
 * sum over heads is then multiplied by the key's scale: a power of two, which
 * could as well stand before (model-spec 2.5, order of FP8). The top_k largest
 * (score desc, then position asc; -0 = +0) are written to keys_out[r * top_k
 * ...] in position order and their number to n_keys_out[r]; rows[r].keys and
 * rows[r].n_keys say so. relu(NaN) is NaN, and NaN ranks below everything. A
 * row with position < top_k gets every key without scoring. scratch: n_threads
 * rows of scratch_stride >= largest position + 1 floats. Source: DeepSeek-V3.2;
 * model-spec 2.5. */
typedef struct weft_index_select {
    weft_paged keys;
    weft_row *rows;
    const float *q; /* [n_row, n_head, head_dim], row stride q_stride */
    const float *w; /* [n_row, n_head], row stride w_stride           */
    int32_t *keys_out, *n_keys_out;
    float *scratch;
    int64_t q_stride, w_stride, scratch_stride;
    int32_t n_row, n_head, head_dim, top_k;
    int32_t n_positions_max; /* no row's position is as large */
    bool q_as_pair;          /* as x_as_pair in weft_gemm */
} weft_index_select;

typedef enum weft_scoring { WEFT_SIGMOID = 0, WEFT_SOFTMAX = 1 } weft_scoring;
typedef enum weft_group_score {
    WEFT_GROUP_TOP2 = 0, /* noaux_tc: the sum of the two best choice scores */
    WEFT_GROUP_MAX = 1,  /* group_limited_greedy */
} weft_group_score;

/* More experts than this would not fit the stack of a unit. */
enum { WEFT_ROUTE_EXPERTS_MAX = 4096 };

/* Which experts a token goes to, and with what weight (model-spec 2.6).
 * logits [n_row, n_expert]; bias [n_expert] or NULL (it chooses, it does not
 * weigh). Score s: sigmoid(logit), or exp(logit - max) over its sum; choice
 * score: s + bias. The topk_group groups of the best group score stay open (a
 * group of one expert: its choice score), and of their experts the top_k of the
 * best choice score are taken. Ties go to the lowest index, for groups too.
 * Experts come in order of falling choice score: that is the slot order. Weight
 * w = s; norm_topk: w / (sum w + 1e-20); then dynamic_rsf:
 * w / (sqrt(sum w^2) + 1e-20); then w * scale. Sums, over all or the chosen
 * experts, are reductions along a row. */
typedef struct weft_route {
    const float *logits;
    const float *bias;
    int32_t *experts_out; /* [n_row, top_k] */
    float *weights_out;   /* [n_row, top_k] */
    int64_t logits_stride;
    int32_t n_row, n_expert, top_k, n_group, topk_group;
    weft_scoring scoring;
    weft_group_score group_score;
    bool norm_topk, dynamic_rsf;
    /* V2 skips the scale when it normalises; then the caller sets 1. */
    float scale;
} weft_route;

/* The (row, slot) pairs of a step, ordered by expert, and by pair inside an
 * expert: those of expert e are first_out[e] up to first_out[e + 1]. */
typedef struct weft_group {
    const int32_t *experts; /* [n_row, top_k] */
    int32_t *first_out;     /* [n_expert + 1] */
    int32_t *rows_out;   /* [n_row top_k]: the row of the pair that is there */
    int32_t *row_of_out; /* [n_row, top_k]: where a pair is */
    int32_t n_row, top_k, n_expert;
} weft_group;

/* y[i] = W_e x[x_rows[i]] for all pairs i of every expert e, as weft_group
 * orders them; x_rows NULL: x[i]. Of a table that has it (a device), where
 * nobody but the op knows how many pairs an expert has. */
typedef struct weft_grouped {
    /* [n_expert], w_stride bytes apart, in the memory of the table, all of one
     * shape; a type may differ. */
    const weft_matrix *w;
    int64_t w_stride;
    const float *x;
    const int32_t *x_rows, *first;
    float *y;
    int64_t x_stride, y_stride;
    int32_t n_pairs, n_expert, n_out, n_in;
    bool x_is_bf16; /* as in weft_gemm */
    weft_round round;
} weft_grouped;

/* y[r] = sum_s weights[r, s] * expert_rows[row_of[r top_k + s]] in slot order
 * by fused multiply-add from 0, rounded; then + shared[r] (if not NULL),
 * rounded. (Rows come grouped by expert; row_of finds them by token and slot.)
 */
typedef struct weft_combine {
    const float *expert_rows; /* [n_row * top_k, width], row stride = width */
    const int32_t *row_of;    /* [n_row, top_k] */
    const float *weights;     /* [n_row, top_k] */
    const float *shared;      /* [n_row, width] or NULL */
    float *y;
    int64_t shared_stride, y_stride;
    int32_t n_row, top_k, width;
    weft_round round;
} weft_combine;

/* y[y_rows[i]] = x[x_rows[i]], bit for bit, for n_row rows of `width` floats:
 * rows that leave for another process are picked and laid side by side, and
 * those that come are put where they belong. Either list may be NULL: i itself.
 * No row of y is named twice. */
typedef struct weft_move {
    const float *x;
    const int32_t *x_rows; /* [n_row] or NULL */
    float *y;
    const int32_t *y_rows; /* [n_row] or NULL */
    int64_t x_stride, y_stride;
    int32_t n_row, width;
} weft_move;

/* What sampling needs to know of a row of logits: the largest, its lowest
 * index, and log(sum(exp(x - max))) + max. The sum runs in blocks of 1024
 * elements (16 lanes in a block), block sums added in order. If the largest is
 * infinite, so is the log. */
typedef struct weft_vocab_stat {
    float max, log_sum_exp;
    int32_t argmax;
    bool nan; /* some logit is NaN; the other fields are then unspecified */
} weft_vocab_stat;

typedef struct weft_vocab {
    const float *logits; /* [n_row, vocab] */
    weft_vocab_stat *stats_out;
    int64_t logits_stride;
    int32_t n_row, vocab;
} weft_vocab;

typedef struct weft_ops {
    const char *name; /* "scalar", "avx2", "avx512", "neon" */
    /* Whether matrix products take bfloat16 inputs, as matrix units do: the
     * profile `bf16` then rounds activations for them. The paths here take fp32
     * and leave activations as they are: rounding would cost accuracy and save
     * nothing. */
    bool bf16_inputs;
    /* All products of the list in one run; each matrix is read once. */
    void (*gemm)(weft_threads *, const weft_gemm *list, int32_t n);
    void (*rms_norm)(weft_threads *, const weft_rms_norm *);
    void (*layer_norm)(weft_threads *, const weft_layer_norm *);
    void (*rope_table)(weft_threads *, const weft_rope_table *);
    void (*rope)(weft_threads *, const weft_rope *);
    void (*silu_mul)(weft_threads *, const weft_silu_mul *);
    void (*gate)(weft_threads *, const weft_gate *);
    void (*add)(weft_threads *, const weft_add *);
    void (*embed)(weft_threads *, const weft_embed *);
    void (*store)(weft_threads *, const weft_store *);
    void (*attn)(weft_threads *, const weft_attn *);
    void (*index_select)(weft_threads *, const weft_index_select *);
    void (*route)(weft_threads *, const weft_route *);
    void (*group)(weft_threads *, const weft_group *);
    void (*grouped)(weft_threads *, const weft_grouped *); /* or NULL */
    void (*combine)(weft_threads *, const weft_combine *);
    void (*move)(weft_threads *, const weft_move *);
    void (*vocab)(weft_threads *, const weft_vocab *);
    /* exp(x) of this table's kind for n values, in place: what the sampler
     * uses, so that probabilities are the same on every path. */
    void (*exp)(float *x, int32_t n);
} weft_ops;

/* The table for `name`: "auto" picks the widest that this CPU runs, else one of
 * the names above. INVALID_ARGUMENT: no such path. UNAVAILABLE: known, but this
 * CPU or build lacks it; the text says which are there. */
WEFT_MUST_CHECK weft_status weft_ops_cpu(const char *name,
                                         const weft_ops **ops_out,
                                         weft_err *err);

/* The i-th path that this machine can run, widest first; NULL past the end. */
const weft_ops *weft_ops_cpu_nth(int32_t i);

/* The plain loops of kernels/cpu/reference.c: the oracle of the kernel tests,
 * written from the comments above without regard to speed. */
const weft_ops *weft_ops_reference(void);

#ifdef __cplusplus
}
#endif

#endif
