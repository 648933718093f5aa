/* Attention of one layer, in the order of model-spec 2.3. The letters there:
 * qa/ql are q_latent, kv is kv, q~ is q_absorbed, u is latent_out, o is
 * heads_out. */
#include <math.h>

#include "shard/model/forward_internal.h"

/* sqrt(hidden / rank) where the model rescales its latents, else 1. */
static float rescale(const weft_model_config *c, int32_t rank)
{
    if (!c->rescale) return 1.0F;
    return (float)sqrt((double)c->hidden_size / rank);
}

/* A product of the layer's input, or of what was made of it before keys are
 * chosen: see weft_forward_input_round. */
static weft_gemm input_product(const weft_forward *f,
                               const weft_layer_weights *layer,
                               const weft_matrix *w, const float *x, float *y,
                               int32_t n_rows)
{
    weft_gemm g = weft_forward_product(f, w, x, y, n_rows);
    g.round = weft_forward_input_round(f, layer);
    g.x_is_bf16 = g.round == WEFT_ROUND_BF16;
    g.x_as_pair = g.round != f->round;
    return g;
}

/* q, which keys are chosen without, so it is rounded in any layer. */
static weft_gemm query_product(const weft_forward *f,
                               const weft_layer_weights *layer, const float *x,
                               int32_t n_rows)
{
    weft_gemm g = input_product(f, layer, &layer->q_b, x, f->q, n_rows);
    g.round = f->round;
    return g;
}

/* Everything that reads the layer's input, in one pass. */
static void project_input(weft_forward *f, const weft_layer_weights *w,
                          int32_t n_rows)
{
    int32_t n = 0;
    if (w->q_a.data != NULL)
        f->gemms[n++] = input_product(f, w, &w->q_a, f->x, f->q_latent, n_rows);
    else
        f->gemms[n++] = query_product(f, w, f->x, n_rows);
    f->gemms[n++] = input_product(f, w, &w->kv_a, f->x, f->kv, n_rows);
    if (w->g.data != NULL)
        f->gemms[n++] = input_product(f, w, &w->g, f->x, f->gate, n_rows);
    if (w->index_q.data != NULL) {
        f->gemms[n++] =
            input_product(f, w, &w->index_k, f->x, f->index_k, n_rows);
        f->gemms[n++] =
            input_product(f, w, &w->index_w, f->x, f->index_w, n_rows);
    }
    f->ops->gemm(f->threads, f->gemms, n);
}

static void norm_latent(weft_forward *f, float *x, const float *w,
                        int64_t stride, int32_t n_rows, int32_t width,
                        float scale, weft_round round)
{
    const weft_rms_norm norm = {
        .x = x,
        .w = w,
        .y = x,
        .x_stride = stride,
        .y_stride = stride,
        .n_row = n_rows,
        .width = width,
        .eps = f->config->rms_norm_eps,
        .scale = scale,
        .round = round,
    };
    f->ops->rms_norm(f->threads, &norm);
}

/* kv -> [c | k_rope] as cached, and into the cache. */
static void cache_rows(weft_forward *f, const weft_layer_weights *w,
                       weft_kind kind, int32_t layer, int32_t n_rows)
{
    const weft_model_config *const c = f->config;
    const weft_geometry *const g = &c->geometry[kind];
    const int32_t width = weft_config_row_width(c, kind);
    float *const k_rope = f->kv + g->kv_lora_rank;
    const weft_round round = weft_forward_input_round(f, w);
    norm_latent(f, f->kv, w->kv_a_norm, width, n_rows, g->kv_lora_rank,
                rescale(c, g->kv_lora_rank), round);
    if (w->k_rope_norm != NULL)
        norm_latent(f, k_rope, w->k_rope_norm, width, n_rows,
                    g->qk_rope_head_dim, 1.0F, round);
    const weft_rope rope = {
        .x = k_rope,
        .y = k_rope,
        .cos = f->cos[kind],
        .sin = f->sin[kind],
        .x_stride = width,
        .y_stride = width,
        .n_row = n_rows,
        .n_head = 1,
        .n_freq = g->qk_rope_head_dim / 2,
        .interleave = c->rope_interleave,
        .round = round,
    };
    f->ops->rope(f->threads, &rope);
    const weft_store store = {
        .to = weft_kv_store_rows(f->store, kind, layer),
        .rows = f->rows[kind],
        .x = f->kv,
        .x_stride = width,
        .n_row = n_rows,
        .width = width,
    };
    f->ops->store(f->threads, &store);
}

static void rope_index(weft_forward *f, float *x, int64_t stride,
                       int32_t n_rows, int32_t n_head)
{
    const weft_model_config *const c = f->config;
    const weft_rope rope = {
        .x = x,
        .y = x,
        .cos = f->cos[WEFT_FULL],
        .sin = f->sin[WEFT_FULL],
        .x_stride = stride,
        .x_head_stride = c->index_head_dim,
        .y_stride = stride,
        .y_head_stride = c->index_head_dim,
        .n_row = n_rows,
        .n_head = n_head,
        .n_freq = c->geometry[WEFT_FULL].qk_rope_head_dim / 2,
        .interleave = c->index_rope_interleave,
        .round = WEFT_ROUND_NONE,
    };
    f->ops->rope(f->threads, &rope);
}

/* A test may look at the selection, and put another in its place. What fails on
 * a device is told at the end of the step. */
static void show_selection(weft_forward *f, int32_t layer, int32_t n_rows)
{
    const int32_t top_k = f->config->index_topk;
    weft_row *const rows = f->host.rows[WEFT_FULL];
    const int64_t keys_bytes = (int64_t)n_rows * top_k * 4;
    const int64_t rows_bytes = n_rows * (int64_t)sizeof *rows;
    weft_memory_get(&f->memory, f->host.index_keys, f->index_keys, keys_bytes);
    weft_memory_get(&f->memory, f->host.index_n_keys, f->index_n_keys,
                    (int64_t)n_rows * 4);
    weft_memory_get(&f->memory, rows, f->rows[WEFT_FULL], rows_bytes);
    const weft_status st = weft_memory_sync(&f->memory, NULL);
    (void)st;
    f->hooks.select(f->hooks.arg, layer, n_rows, f->host.index_keys, top_k,
                    f->host.index_n_keys);
    for (int32_t r = 0; r < n_rows; r++)
        rows[r].n_keys = f->host.index_n_keys[r];
    weft_memory_put(&f->memory, f->index_keys, f->host.index_keys, keys_bytes);
    weft_memory_put(&f->memory, f->rows[WEFT_FULL], rows, rows_bytes);
}

/* Index keys into the cache; then the keys that each row may see. The factor
 * n_head^-1/2 head_dim^-1/2 of the weights is left out: it is positive, and no
 * selection depends on it (model-spec 2.5). */
static void select_keys(weft_forward *f, const weft_layer_weights *w,
                        int32_t layer, int32_t n_rows)
{
    const weft_model_config *const c = f->config;
    const int32_t dim = c->index_head_dim;
    const weft_layer_norm norm = {
        .x = f->index_k,
        .w = w->index_k_norm_w,
        .b = w->index_k_norm_b,
        .y = f->index_k,
        .x_stride = dim,
        .y_stride = dim,
        .n_row = n_rows,
        .width = dim,
        .eps = 1e-6F, /* fixed, whatever rms_norm_eps is (model-spec 2.5) */
        .round = WEFT_ROUND_NONE,
    };
    f->ops->layer_norm(f->threads, &norm);
    rope_index(f, f->index_k, dim, n_rows, 1);
    rope_index(f, f->index_q, (int64_t)c->index_n_head * dim, n_rows,
               c->index_n_head);
    const weft_store store = {
        .to = weft_kv_store_index(f->store, layer),
        .rows = f->rows[WEFT_FULL],
        .x = f->index_k,
        .x_stride = dim,
        .n_row = n_rows,
        .width = dim,
    };
    f->ops->store(f->threads, &store);
    const weft_index_select select = {
        .keys = store.to,
        .rows = f->rows[WEFT_FULL],
        .q = f->index_q,
        .w = f->index_w,
        .keys_out = f->index_keys,
        .n_keys_out = f->index_n_keys,
        .scratch = f->index_scores,
        .q_stride = (int64_t)c->index_n_head * dim,
        .w_stride = c->index_n_head,
        .scratch_stride = f->options.max_context,
        .n_row = n_rows,
        .n_head = c->index_n_head,
        .head_dim = dim,
        .top_k = c->index_topk,
        .n_positions_max = f->n_positions,
        .q_as_pair = f->round == WEFT_ROUND_BF16,
    };
    f->ops->index_select(f->threads, &select);
    if (f->hooks.select != NULL) show_selection(f, layer, n_rows);
}

/* q -> q~ for the rows [row, row + n) of the step: the key part of kv_b takes
 * the nope half of every head into the latent space, the rope half is rotated
 * beside it. */
static void absorb(weft_forward *f, const weft_layer_weights *w, weft_kind kind,
                   int32_t row, int32_t n)
{
    const weft_model_config *const c = f->config;
    const weft_geometry *const g = &c->geometry[kind];
    const int32_t head = g->qk_nope_head_dim + g->qk_rope_head_dim;
    const int32_t width = weft_config_row_width(c, kind);
    const int64_t q_stride = (int64_t)g->n_head * head;
    const int64_t out_stride = (int64_t)g->n_head * width;
    const float *const q = f->q + row * q_stride;
    const int32_t n_freq = g->qk_rope_head_dim / 2;
    for (int32_t h = 0; h < g->n_head; h++)
        f->gemms[h] = (weft_gemm){
            .w = &w->k_up[h],
            .x = q + (int64_t)h * head,
            .y = f->q_absorbed + (int64_t)h * width,
            .x_stride = q_stride,
            .y_stride = out_stride,
            .n_row = n,
            .x_is_bf16 = f->round == WEFT_ROUND_BF16,
            .round = f->round,
        };
    f->ops->gemm(f->threads, f->gemms, g->n_head);
    const weft_rope rope = {
        .x = q + g->qk_nope_head_dim,
        .y = f->q_absorbed + g->kv_lora_rank,
        .cos = f->cos[kind] + (int64_t)row * n_freq,
        .sin = f->sin[kind] + (int64_t)row * n_freq,
        .x_stride = q_stride,
        .x_head_stride = head,
        .y_stride = out_stride,
        .y_head_stride = width,
        .n_row = n,
        .n_head = g->n_head,
        .n_freq = n_freq,
        .interleave = c->rope_interleave,
        .round = f->round,
    };
    f->ops->rope(f->threads, &rope);
}

/* The most keys that a row of the step sees. */
static int32_t keys_max(const weft_forward *f, const weft_layer_weights *w,
                        weft_kind kind)
{
    const weft_model_config *const c = f->config;
    int32_t most = f->n_positions;
    if (kind == WEFT_WINDOW && c->window > 0 && c->window < most)
        most = c->window;
    if (w->index_q.data != NULL && c->index_topk < most) most = c->index_topk;
    return most;
}

/* Attention of the rows [row, row + n): q~ over the cache, then the value part
 * of kv_b brings every head out of the latent space. */
static void attend(weft_forward *f, const weft_layer_weights *w, weft_kind kind,
                   int32_t layer, int32_t row, int32_t n)
{
    const weft_model_config *const c = f->config;
    const weft_geometry *const g = &c->geometry[kind];
    const int32_t width = weft_config_row_width(c, kind);
    const int64_t out_stride = (int64_t)g->n_head * g->kv_lora_rank;
    const weft_attn attn = {
        .kv = weft_kv_store_rows(f->store, kind, layer),
        .rows = f->rows[kind] + row,
        .q = f->q_absorbed,
        .out = f->latent_out,
        .q_stride = (int64_t)g->n_head * width,
        .out_stride = out_stride,
        .n_row = n,
        .n_head = g->n_head,
        .width = width,
        .value_width = g->kv_lora_rank,
        .n_keys_max = keys_max(f, w, kind),
        .scale = g->softmax_scale,
        .round = f->round,
    };
    f->ops->attn(f->threads, &attn);
    const int64_t o_stride = (int64_t)g->n_head * g->v_head_dim;
    for (int32_t h = 0; h < g->n_head; h++)
        f->gemms[h] = (weft_gemm){
            .w = &w->v_up[h],
            .x = f->latent_out + (int64_t)h * g->kv_lora_rank,
            .y = f->heads_out + row * o_stride + (int64_t)h * g->v_head_dim,
            .x_stride = out_stride,
            .y_stride = o_stride,
            .n_row = n,
            .x_is_bf16 = f->round == WEFT_ROUND_BF16,
            .round = f->round,
        };
    f->ops->gemm(f->threads, f->gemms, g->n_head);
}

static void gate_and_project(weft_forward *f, const weft_layer_weights *w,
                             weft_kind kind, int32_t n_rows)
{
    const weft_geometry *const g = &f->config->geometry[kind];
    const int32_t width = g->n_head * g->v_head_dim;
    if (g->gate != WEFT_GATE_NONE) {
        const bool headwise = g->gate == WEFT_GATE_HEADWISE;
        const weft_gate gate = {
            .x = f->heads_out,
            .g = f->gate,
            .x_stride = width,
            .g_stride = w->g.n_out,
            .n_row = n_rows,
            .n_head = headwise ? g->n_head : width,
            .head_width = headwise ? g->v_head_dim : 1,
            .round = f->round,
        };
        f->ops->gate(f->threads, &gate);
    }
    f->gemms[0] = weft_forward_product(f, &w->o, f->heads_out, f->y, n_rows);
    f->gemms[0].round = weft_forward_part_round(f);
    f->ops->gemm(f->threads, f->gemms, 1);
}

void weft_forward_attention(weft_forward *f, int32_t layer, int32_t n_rows)
{
    const weft_model_config *const c = f->config;
    const weft_layer_weights *const w = &f->weights->layers[layer];
    const weft_kind kind = c->kind[layer];
    const weft_geometry *const g = &c->geometry[kind];
    project_input(f, w, n_rows);
    if (w->q_a.data != NULL) {
        norm_latent(f, f->q_latent, w->q_a_norm, g->q_lora_rank, n_rows,
                    g->q_lora_rank, rescale(c, g->q_lora_rank),
                    weft_forward_input_round(f, w));
        int32_t n = 0;
        f->gemms[n++] = query_product(f, w, f->q_latent, n_rows);
        if (w->index_q.data != NULL)
            f->gemms[n++] = input_product(f, w, &w->index_q, f->q_latent,
                                          f->index_q, n_rows);
        f->ops->gemm(f->threads, f->gemms, n);
    }
    cache_rows(f, w, kind, layer, n_rows);
    if (w->index_q.data != NULL) select_keys(f, w, layer, n_rows);
    for (int32_t row = 0; row < n_rows; row += WEFT_ATTN_TILE_ROWS) {
        const int32_t left = n_rows - row;
        const int32_t n =
            left < WEFT_ATTN_TILE_ROWS ? left : WEFT_ATTN_TILE_ROWS;
        absorb(f, w, kind, row, n);
        attend(f, w, kind, layer, row, n);
    }
    gate_and_project(f, w, kind, n_rows);
}
