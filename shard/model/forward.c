#include "shard/model/forward.h"

#include <string.h>

#include "node/base/check.h"
#include "node/base/failpoint.h"
#include "node/base/mem.h"
#include "shard/model/forward_internal.h"

/* Hands out pieces of one block; with base NULL it only adds up. */
typedef struct bump {
    unsigned char *base;
    size_t used;
} bump;

static void *take(bump *b, int64_t n, size_t item_bytes)
{
    const size_t bytes = ((size_t)n * item_bytes + 63) / 64 * 64;
    void *const at = b->base == NULL ? NULL : b->base + b->used;
    b->used += bytes;
    return at;
}

static float *take_floats(bump *b, int64_t rows, int64_t width)
{
    return take(b, rows * width, sizeof(float));
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Widths that must hold for the wider of both geometries. */
typedef struct widths {
    int64_t q_latent, kv, gate, q, absorbed, latent_out, heads_out, rope;
} widths;

static widths attention_widths(const weft_model_config *c)
{
    widths w = {0};
    for (int32_t k = 0; k < WEFT_KINDS; k++) {
        const weft_geometry *const g = &c->geometry[k];
        if (c->n_kind[k] == 0) continue;
        const int64_t n_head = g->n_head;
        const int64_t row = weft_config_row_width(c, (weft_kind)k);
        w.q_latent = larger(w.q_latent, g->q_lora_rank);
        w.kv = larger(w.kv, row);
        w.gate = larger(w.gate, g->gate == WEFT_GATE_ELEMENTWISE
                                    ? n_head * g->v_head_dim
                                    : n_head);
        w.q = larger(w.q, n_head * (g->qk_nope_head_dim + g->qk_rope_head_dim));
        w.absorbed = larger(w.absorbed, n_head * row);
        w.latent_out = larger(w.latent_out, n_head * g->kv_lora_rank);
        w.heads_out = larger(w.heads_out, n_head * g->v_head_dim);
        w.rope = larger(w.rope, g->qk_rope_head_dim / 2);
    }
    return w;
}

static void plan_attention(weft_forward *f, bump *b)
{
    const weft_model_config *const c = f->config;
    const int64_t rows = f->options.max_rows;
    const int64_t tile =
        rows < WEFT_ATTN_TILE_ROWS ? rows : WEFT_ATTN_TILE_ROWS;
    const widths w = attention_widths(c);
    for (int32_t k = 0; k < WEFT_KINDS; k++) {
        f->rows[k] = take(b, rows, sizeof *f->rows[k]);
        f->inv_freq[k] = take_floats(b, 1, w.rope);
        f->cos[k] = take_floats(b, rows, w.rope);
        f->sin[k] = take_floats(b, rows, w.rope);
    }
    f->q_latent = take_floats(b, rows, w.q_latent);
    f->kv = take_floats(b, rows, w.kv);
    f->gate = take_floats(b, rows, w.gate);
    f->q = take_floats(b, rows, w.q);
    f->q_absorbed = take_floats(b, tile, w.absorbed);
    f->latent_out = take_floats(b, tile, w.latent_out);
    f->heads_out = take_floats(b, rows, w.heads_out);
    if (!c->dsa || c->n_kind[WEFT_FULL] == 0) return;
    f->index_q =
        take_floats(b, rows, (int64_t)c->index_n_head * c->index_head_dim);
    f->index_k = take_floats(b, rows, c->index_head_dim);
    f->index_w = take_floats(b, rows, c->index_n_head);
    f->index_keys = take(b, rows * c->index_topk, sizeof(int32_t));
    f->index_n_keys = take(b, rows, sizeof(int32_t));
    const int64_t scratch =
        (int64_t)f->options.n_threads * f->options.max_context;
    f->index_scores = take_floats(b, scratch, 1);
}

static bool has_moe(const weft_model_config *c)
{
    for (int32_t l = c->first_layer; l < c->end_layer; l++)
        if (c->moe[l]) return true;
    return false;
}

static void plan_ffn(weft_forward *f, bump *b)
{
    const weft_model_config *const c = f->config;
    const int64_t rows = f->options.max_rows;
    const int64_t width =
        larger(c->intermediate_size, c->shared_intermediate_size);
    f->mlp_gate = take_floats(b, rows, width);
    f->mlp_up = take_floats(b, rows, width);
    if (!has_moe(c)) return;
    const int64_t slots = rows * c->top_k;
    f->shared_out = take_floats(b, rows, c->hidden_size);
    f->router_logits = take_floats(b, rows, c->n_expert);
    f->route_weights = take_floats(b, slots, 1);
    f->route_experts = take(b, slots, sizeof(int32_t));
    f->row_of = take(b, slots, sizeof(int32_t));
    f->expert_out = take_floats(b, slots, c->hidden_size);
    if (f->options.experts != NULL) return;
    f->expert_rows = take(b, slots, sizeof(int32_t));
    f->expert_first = take(b, c->n_expert + 1, sizeof(int32_t));
    f->expert_gate = take_floats(b, slots, c->moe_intermediate_size);
    f->expert_up = take_floats(b, slots, c->moe_intermediate_size);
}

/* The longest list of products of one run: one for each head, or two for each
 * expert, and the few of the shared parts. */
static int64_t gemms_max(const weft_model_config *c, bool experts_here)
{
    int64_t n = experts_here ? 2 * (int64_t)c->n_expert : 0;
    for (int32_t k = 0; k < WEFT_KINDS; k++)
        if (c->n_kind[k] > 0) n = larger(n, c->geometry[k].n_head);
    return n + 8;
}

static size_t plan(weft_forward *f, void *base)
{
    const weft_model_config *const c = f->config;
    bump b = {.base = base};
    const int64_t rows = f->options.max_rows;
    f->gemms =
        take(&b, gemms_max(c, f->options.experts == NULL), sizeof *f->gemms);
    f->positions = take(&b, rows, sizeof(int32_t));
    f->h = take_floats(&b, rows, c->hidden_size);
    f->x = take_floats(&b, rows, c->hidden_size);
    f->y = take_floats(&b, rows, c->hidden_size);
    plan_attention(f, &b);
    plan_ffn(f, &b);
    const int64_t n = f->options.max_logits_rows;
    f->final = take_floats(&b, n, c->hidden_size);
    f->logits = take_floats(&b, n, c->vocab_size);
    f->stats = take(&b, n, sizeof *f->stats);
    return b.used;
}

int64_t weft_forward_bytes(const weft_model_config *config,
                           const weft_forward_options *options)
{
    weft_forward f = {
        .config = config, .options = *options, .threads = options->threads};
    return (int64_t)(plan(&f, NULL) + sizeof f);
}

weft_status weft_forward_create(const weft_model_config *config,
                                const weft_weights *weights,
                                const weft_kv_store *store,
                                const weft_forward_options *options,
                                weft_forward **forward_out, weft_err *err)
{
    weft_forward *const f = weft_mem_new(1, sizeof *f);
    if (f == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "step: out of memory");
    f->config = config;
    f->weights = weights;
    f->store = store;
    f->options = *options;
    f->ops = options->ops;
    f->threads = options->threads;
    f->round =
        options->profile == WEFT_PROFILE_BF16 && options->ops->bf16_inputs
            ? WEFT_ROUND_BF16
            : WEFT_ROUND_NONE;
    const size_t bytes = plan(f, NULL);
    f->memory = weft_mem_new_aligned(64, bytes);
    if (f->memory == NULL) {
        weft_mem_free(f);
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "step buffers: no memory for %zu bytes", bytes);
    }
#ifndef NDEBUG
    memset(f->memory, 0xff, bytes);
#endif
    (void)plan(f, f->memory);
    for (int32_t k = 0; k < WEFT_KINDS; k++)
        if (config->n_kind[k] > 0)
            weft_config_inv_freq(config, (weft_kind)k, f->inv_freq[k]);
    if (options->experts != NULL && f->row_of != NULL)
        for (int32_t i = 0; i < options->max_rows * config->top_k; i++)
            f->row_of[i] = i;
    *forward_out = f;
    return WEFT_OK;
}

void weft_forward_destroy(weft_forward *forward)
{
    if (forward == NULL) return;
    weft_mem_free(forward->memory);
    weft_mem_free(forward);
}

void weft_forward_set_hooks(weft_forward *forward,
                            const weft_forward_hooks *hooks)
{
    forward->hooks = hooks == NULL ? (weft_forward_hooks){0} : *hooks;
}

/* The step's rows, by kind, and the angles of their positions. */
static void set_rows(weft_forward *f, const weft_batch *batch)
{
    const weft_model_config *const c = f->config;
    memcpy(f->positions, batch->positions,
           (size_t)batch->n_rows * sizeof *f->positions);
    f->n_positions = 0;
    for (int32_t r = 0; r < batch->n_rows; r++)
        if (batch->positions[r] >= f->n_positions)
            f->n_positions = batch->positions[r] + 1;
    for (int32_t k = 0; k < WEFT_KINDS; k++) {
        if (c->n_kind[k] == 0) continue;
        for (int32_t r = 0; r < batch->n_rows; r++) {
            const int32_t p = batch->positions[r];
            const bool cut = k == WEFT_WINDOW && c->window > 0;
            f->rows[k][r] = (weft_row){
                .pages = batch->pages[k][r],
                .position = p,
                .first = cut && p >= c->window ? p - c->window + 1 : 0,
            };
        }
        const weft_rope_table table = {
            .positions = f->positions,
            .inv_freq = f->inv_freq[k],
            .cos_out = f->cos[k],
            .sin_out = f->sin[k],
            .n_row = batch->n_rows,
            .n_freq = c->geometry[k].qk_rope_head_dim / 2,
            .factor = c->yarn.on ? c->yarn.cos_sin_factor : 1.0F,
        };
        f->ops->rope_table(f->threads, &table);
    }
}

static void norm_rows(weft_forward *f, const float *w, int32_t n_rows)
{
    const weft_rms_norm norm = {
        .x = f->h,
        .w = w,
        .y = f->x,
        .x_stride = f->config->hidden_size,
        .y_stride = f->config->hidden_size,
        .n_row = n_rows,
        .width = f->config->hidden_size,
        .eps = f->config->rms_norm_eps,
        .scale = 1.0F,
        .round = f->round,
    };
    f->ops->rms_norm(f->threads, &norm);
}

static void add_rows(weft_forward *f, int32_t n_rows)
{
    const weft_add add = {
        .x = f->h,
        .y = f->y,
        .x_stride = f->config->hidden_size,
        .y_stride = f->config->hidden_size,
        .n_row = n_rows,
        .width = f->config->hidden_size,
        .round = f->round,
    };
    f->ops->add(f->threads, &add);
}

/* The rows as the first layer here takes them. */
static void begin_step(weft_forward *f, const weft_batch *batch)
{
    const weft_model_config *const c = f->config;
    const int32_t n = batch->n_rows;
    WEFT_ASSERT(n >= 1 && n <= f->options.max_rows && !f->is_away);
    f->n_rows = n;
    set_rows(f, batch);
    if (batch->hidden != NULL) {
        memcpy(f->h, batch->hidden,
               (size_t)n * (size_t)c->hidden_size * sizeof *f->h);
        return;
    }
    WEFT_ASSERT(f->weights->embed != NULL);
    const weft_embed embed = {
        .table = f->weights->embed,
        .ids = batch->tokens,
        .y = f->h,
        .dtype = f->weights->embed_dtype,
        .y_stride = c->hidden_size,
        .n_row = n,
        .width = c->hidden_size,
    };
    f->ops->embed(f->threads, &embed);
}

/* One layer, up to where experts elsewhere have been asked. */
static void begin_layer(weft_forward *f, int32_t l)
{
    const int32_t n = f->n_rows;
    if (l > f->config->first_layer) WEFT_FAILPOINT("layers.mid_step");
    norm_rows(f, f->weights->layers[l].input_norm, n);
    weft_forward_attention(f, l, n);
    add_rows(f, n);
    norm_rows(f, f->weights->layers[l].post_norm, n);
    weft_forward_ffn_begin(f, l, n);
}

static weft_status end_layer(weft_forward *f, int32_t l, weft_err *err)
{
    WEFT_TRY(weft_forward_ffn_collect(f, err));
    add_rows(f, f->n_rows);
    if (f->hooks.layer_out != NULL)
        f->hooks.layer_out(f->hooks.arg, l, f->h, f->n_rows);
    return WEFT_OK;
}

weft_status weft_forward_step(weft_forward *f, const weft_batch *batch,
                              weft_err *err)
{
    const weft_model_config *const c = f->config;
    begin_step(f, batch);
    for (int32_t l = c->first_layer; l < c->end_layer; l++) {
        begin_layer(f, l);
        WEFT_TRY(end_layer(f, l, err));
    }
    return WEFT_OK;
}

/* Whose experts are still away when the other has failed: what was asked is
 * borrowed until it is collected, answered or not. */
static void abandon(weft_forward *f)
{
    const weft_status st = weft_forward_ffn_collect(f, NULL);
    (void)st;
}

/* While the experts of one are away, the other ends its layer and begins the
 * next: a begins l, b ends l - 1 and begins l, a ends l. So the rows of a are
 * in the cache of a layer before b attends there, and whoever waits does so
 * while something of the other is under way as well. */
weft_status weft_forward_step_pair(weft_forward *a, const weft_batch *batch_a,
                                   weft_forward *b, const weft_batch *batch_b,
                                   weft_err *err)
{
    const weft_model_config *const c = a->config;
    begin_step(a, batch_a);
    begin_step(b, batch_b);
    weft_status st = WEFT_OK;
    for (int32_t l = c->first_layer; st == WEFT_OK && l < c->end_layer; l++) {
        begin_layer(a, l);
        if (l > c->first_layer) st = end_layer(b, l - 1, err);
        if (st != WEFT_OK) break;
        begin_layer(b, l);
        st = end_layer(a, l, err);
    }
    if (st == WEFT_OK) st = end_layer(b, c->end_layer - 1, err);
    if (st != WEFT_OK) {
        abandon(a);
        abandon(b);
    }
    return st;
}

const float *weft_forward_hidden(const weft_forward *forward)
{
    return forward->h;
}

/* Row by row: the chosen rows are rarely neighbours. */
static void norm_final(weft_forward *f, const float *h, int32_t i)
{
    const weft_model_config *const c = f->config;
    const weft_rms_norm norm = {
        .x = h,
        .w = f->weights->final_norm,
        .y = f->final + (int64_t)i * c->hidden_size,
        .x_stride = c->hidden_size,
        .y_stride = c->hidden_size,
        .n_row = 1,
        .width = c->hidden_size,
        .eps = c->rms_norm_eps,
        .scale = 1.0F,
        .round = f->round,
    };
    f->ops->rms_norm(f->threads, &norm);
}

static const float *final_logits(weft_forward *f, int32_t n,
                                 const weft_vocab_stat **stats_out)
{
    const weft_model_config *const c = f->config;
    const weft_gemm gemm = {
        .w = &f->weights->lm_head,
        .x = f->final,
        .y = f->logits,
        .x_stride = c->hidden_size,
        .y_stride = c->vocab_size,
        .n_row = n,
        .x_is_bf16 = f->round == WEFT_ROUND_BF16,
        .round = WEFT_ROUND_NONE,
    };
    f->ops->gemm(f->threads, &gemm, 1);
    const weft_vocab vocab = {
        .logits = f->logits,
        .stats_out = f->stats,
        .logits_stride = c->vocab_size,
        .n_row = n,
        .vocab = c->vocab_size,
    };
    f->ops->vocab(f->threads, &vocab);
    *stats_out = f->stats;
    return f->logits;
}

const float *weft_forward_logits(weft_forward *f, const int32_t *rows,
                                 int32_t n, const weft_vocab_stat **stats_out)
{
    WEFT_ASSERT(n >= 1 && n <= f->options.max_logits_rows);
    for (int32_t i = 0; i < n; i++)
        norm_final(f, f->h + (int64_t)rows[i] * f->config->hidden_size, i);
    return final_logits(f, n, stats_out);
}

const float *weft_forward_logits_of(weft_forward *f, const float *const *hidden,
                                    int32_t n,
                                    const weft_vocab_stat **stats_out)
{
    WEFT_ASSERT(n >= 1 && n <= f->options.max_logits_rows);
    for (int32_t i = 0; i < n; i++) norm_final(f, hidden[i], i);
    return final_logits(f, n, stats_out);
}
