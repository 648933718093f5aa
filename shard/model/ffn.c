/* The second half of a layer: a dense MLP, or routed experts beside a shared
 * one (model-spec 2.6). Experts return one row for each (token, slot) pair and
 * the sum is taken here in slot order, so that where an expert runs, and with
 * whom, never changes a token. */
#include <string.h>

#include "shard/model/forward_internal.h"

static void silu_mul(weft_forward *f, float *gate, const float *up,
                     int32_t n_rows, int32_t width)
{
    const weft_silu_mul act = {
        .a = gate,
        .b = up,
        .y = gate,
        .a_stride = width,
        .b_stride = width,
        .y_stride = width,
        .n_row = n_rows,
        .width = width,
        .round = f->round,
    };
    f->ops->silu_mul(f->threads, &act);
}

static void dense(weft_forward *f, const weft_mlp_weights *w, int32_t n_rows)
{
    f->gemms[0] = weft_forward_product(f, &w->gate, f->x, f->mlp_gate, n_rows);
    f->gemms[1] = weft_forward_product(f, &w->up, f->x, f->mlp_up, n_rows);
    f->ops->gemm(f->threads, f->gemms, 2);
    silu_mul(f, f->mlp_gate, f->mlp_up, n_rows, w->gate.n_out);
    f->gemms[0] = weft_forward_product(f, &w->down, f->mlp_gate, f->y, n_rows);
    f->ops->gemm(f->threads, f->gemms, 1);
}

static void route(weft_forward *f, const weft_layer_weights *w, int32_t layer,
                  int32_t n_rows)
{
    const weft_model_config *const c = f->config;
    /* V2 leaves the scale out where it normalises (model-spec 6, row 22). */
    const bool skip_scale =
        c->topk_method != WEFT_TOPK_NOAUX_TC && c->norm_topk;
    const weft_route route = {
        .logits = f->router_logits,
        .bias = w->router_bias,
        .experts_out = f->route_experts,
        .weights_out = f->route_weights,
        .logits_stride = c->n_expert,
        .n_row = n_rows,
        .n_expert = c->n_expert,
        .top_k = c->top_k,
        .n_group = c->topk_method == WEFT_TOPK_GREEDY ? 1 : c->n_group,
        .topk_group = c->topk_method == WEFT_TOPK_GREEDY ? 1 : c->topk_group,
        .scoring = c->scoring,
        .group_score = c->topk_method == WEFT_TOPK_NOAUX_TC ? WEFT_GROUP_TOP2
                                                            : WEFT_GROUP_MAX,
        .norm_topk = c->norm_topk,
        .dynamic_rsf = c->dynamic_rsf,
        .scale = skip_scale ? 1.0F : c->routed_scaling,
    };
    f->ops->route(f->threads, &route);
    if (f->hooks.route != NULL)
        f->hooks.route(f->hooks.arg, layer, n_rows, f->route_experts,
                       f->route_weights);
}

/* Group the (token, slot) pairs by expert, in token order inside an expert. */
static void group_by_expert(weft_forward *f, int32_t n_rows)
{
    const weft_model_config *const c = f->config;
    const int32_t n_slots = n_rows * c->top_k;
    int32_t *const first = f->expert_first;
    memset(first, 0, ((size_t)c->n_expert + 1) * sizeof *first);
    for (int32_t i = 0; i < n_slots; i++) first[f->route_experts[i] + 1]++;
    for (int32_t e = 0; e < c->n_expert; e++) first[e + 1] += first[e];
    for (int32_t i = 0; i < n_slots; i++) {
        const int32_t at = first[f->route_experts[i]]++;
        f->expert_rows[at] = i / c->top_k;
        f->row_of[i] = at;
    }
    for (int32_t e = c->n_expert; e > 0; e--) first[e] = first[e - 1];
    first[0] = 0;
}

/* gate and up of every expert that has rows. */
static void experts_in(weft_forward *f, const weft_layer_weights *w)
{
    const weft_model_config *const c = f->config;
    const int64_t width = c->moe_intermediate_size;
    int32_t n = 0;
    for (int32_t e = 0; e < c->n_expert; e++) {
        const int32_t at = f->expert_first[e];
        const int32_t rows = f->expert_first[e + 1] - at;
        if (rows == 0) continue;
        weft_gemm g = weft_forward_product(f, &w->experts[e].gate, f->x,
                                           f->expert_gate + at * width, rows);
        g.x_rows = f->expert_rows + at;
        f->gemms[n++] = g;
        g.w = &w->experts[e].up;
        g.y = f->expert_up + at * width;
        f->gemms[n++] = g;
    }
    f->ops->gemm(f->threads, f->gemms, n);
}

/* down of every expert that has rows, and of the shared expert. */
static void experts_out(weft_forward *f, const weft_layer_weights *w,
                        int32_t n_rows)
{
    const weft_model_config *const c = f->config;
    int32_t n = 0;
    for (int32_t e = 0; e < c->n_expert; e++) {
        const int64_t at = f->expert_first[e];
        const int32_t rows = f->expert_first[e + 1] - (int32_t)at;
        if (rows == 0) continue;
        f->gemms[n++] =
            weft_forward_product(f, &w->experts[e].down,
                                 f->expert_gate + at * c->moe_intermediate_size,
                                 f->expert_out + at * c->hidden_size, rows);
    }
    if (w->mlp.down.data != NULL)
        f->gemms[n++] = weft_forward_product(f, &w->mlp.down, f->mlp_gate,
                                             f->shared_out, n_rows);
    f->ops->gemm(f->threads, f->gemms, n);
}

static void mixture(weft_forward *f, const weft_layer_weights *w, int32_t layer,
                    int32_t n_rows)
{
    const weft_model_config *const c = f->config;
    const bool shared = w->mlp.gate.data != NULL;
    int32_t n = 0;
    f->gemms[n] =
        weft_forward_product(f, &w->router, f->x, f->router_logits, n_rows);
    f->gemms[n++].round = WEFT_ROUND_NONE; /* router logits stay fp32 */
    if (shared) {
        f->gemms[n++] =
            weft_forward_product(f, &w->mlp.gate, f->x, f->mlp_gate, n_rows);
        f->gemms[n++] =
            weft_forward_product(f, &w->mlp.up, f->x, f->mlp_up, n_rows);
    }
    f->ops->gemm(f->threads, f->gemms, n);
    if (shared) silu_mul(f, f->mlp_gate, f->mlp_up, n_rows, w->mlp.gate.n_out);
    route(f, w, layer, n_rows);
    group_by_expert(f, n_rows);
    experts_in(f, w);
    silu_mul(f, f->expert_gate, f->expert_up, n_rows * c->top_k,
             c->moe_intermediate_size);
    experts_out(f, w, n_rows);
    const weft_combine combine = {
        .expert_rows = f->expert_out,
        .row_of = f->row_of,
        .weights = f->route_weights,
        .shared = shared ? f->shared_out : NULL,
        .y = f->y,
        .shared_stride = c->hidden_size,
        .y_stride = c->hidden_size,
        .n_row = n_rows,
        .top_k = c->top_k,
        .width = c->hidden_size,
        .round = f->round,
    };
    f->ops->combine(f->threads, &combine);
}

void weft_forward_ffn(weft_forward *f, int32_t layer, int32_t n_rows)
{
    const weft_layer_weights *const w = &f->weights->layers[layer];
    if (w->experts == NULL)
        dense(f, &w->mlp, n_rows);
    else
        mixture(f, w, layer, n_rows);
}
