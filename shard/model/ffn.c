/* The second half of a layer: a dense MLP, or routed experts beside a shared
 * one (model-spec 2.6). Experts return one row for each (token, slot) pair and
 * the sum is taken here in slot order, so that where an expert runs, and with
 * whom, never changes a token. */
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

/* The last product of an MLP, of whose middle this rank may have a part. */
static weft_gemm down_product(const weft_forward *f, const weft_matrix *w,
                              const float *x, float *y, int32_t n_rows)
{
    weft_gemm g = weft_forward_product(f, w, x, y, n_rows);
    g.round = weft_forward_part_round(f);
    return g;
}

static void dense(weft_forward *f, const weft_mlp_weights *w, int32_t n_rows)
{
    f->gemms[0] = weft_forward_product(f, &w->gate, f->x, f->mlp_gate, n_rows);
    f->gemms[1] = weft_forward_product(f, &w->up, f->x, f->mlp_up, n_rows);
    f->ops->gemm(f->threads, f->gemms, 2);
    silu_mul(f, f->mlp_gate, f->mlp_up, n_rows, w->gate.n_out);
    f->gemms[0] = down_product(f, &w->down, f->mlp_gate, f->y, n_rows);
    f->ops->gemm(f->threads, f->gemms, 1);
}

/* A test may look at the choice, and put another in its place. What fails on a
 * device is told at the end of the step. */
static void show_route(weft_forward *f, int32_t layer, int32_t n_rows)
{
    const int64_t bytes = (int64_t)n_rows * f->config->top_k * 4;
    weft_memory_get(&f->memory, f->host.route_experts, f->route_experts, bytes);
    weft_memory_get(&f->memory, f->host.route_weights, f->route_weights, bytes);
    const weft_status st = weft_memory_sync(&f->memory, NULL);
    (void)st;
    f->hooks.route(f->hooks.arg, layer, n_rows, f->host.route_experts,
                   f->host.route_weights);
    weft_memory_put(&f->memory, f->route_experts, f->host.route_experts, bytes);
    weft_memory_put(&f->memory, f->route_weights, f->host.route_weights, bytes);
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
    if (f->hooks.route != NULL) show_route(f, layer, n_rows);
}

/* The (token, slot) pairs by expert. */
static void group_by_expert(weft_forward *f, int32_t n_rows)
{
    const weft_group group = {
        .experts = f->route_experts,
        .first_out = f->expert_first,
        .rows_out = f->expert_rows,
        .row_of_out = f->row_of,
        .n_row = n_rows,
        .top_k = f->config->top_k,
        .n_expert = f->config->n_expert,
    };
    f->ops->group(f->threads, &group);
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
            down_product(f, &w->experts[e].down,
                         f->expert_gate + at * c->moe_intermediate_size,
                         f->expert_out + at * c->hidden_size, rows);
    }
    if (w->mlp.down.data != NULL)
        f->gemms[n++] =
            down_product(f, &w->mlp.down, f->mlp_gate, f->shared_out, n_rows);
    f->ops->gemm(f->threads, f->gemms, n);
}

/* Everything that reads the layer's input beside the routed experts. */
static int32_t list_shared_in(weft_forward *f, const weft_layer_weights *w,
                              int32_t n, int32_t n_rows)
{
    if (w->mlp.gate.data == NULL) return n;
    f->gemms[n++] =
        weft_forward_product(f, &w->mlp.gate, f->x, f->mlp_gate, n_rows);
    f->gemms[n++] =
        weft_forward_product(f, &w->mlp.up, f->x, f->mlp_up, n_rows);
    return n;
}

static int32_t list_router(weft_forward *f, const weft_layer_weights *w,
                           int32_t n_rows)
{
    f->gemms[0] =
        weft_forward_product(f, &w->router, f->x, f->router_logits, n_rows);
    f->gemms[0].round = WEFT_ROUND_NONE; /* router logits stay fp32 */
    return 1;
}

static void act_shared(weft_forward *f, const weft_layer_weights *w,
                       int32_t n_rows)
{
    if (w->mlp.gate.data == NULL) return;
    silu_mul(f, f->mlp_gate, f->mlp_up, n_rows, w->mlp.gate.n_out);
}

static void combine(weft_forward *f, const weft_layer_weights *w,
                    int32_t n_rows)
{
    const weft_model_config *const c = f->config;
    const bool shared = w->mlp.gate.data != NULL;
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
        .round = weft_forward_part_round(f),
    };
    f->ops->combine(f->threads, &combine);
}

/* One product of every expert, where only the ops know who has which pairs. */
static void grouped(weft_forward *f, const weft_matrix *shape,
                    const weft_matrix *w, const float *x, const int32_t *x_rows,
                    float *y, int32_t n_rows, weft_round round)
{
    const weft_grouped op = {
        .w = w,
        .w_stride = sizeof(weft_mlp_weights),
        .x = x,
        .x_rows = x_rows,
        .first = f->expert_first,
        .y = y,
        .x_stride = shape->n_in,
        .y_stride = shape->n_out,
        .n_pairs = n_rows * f->config->top_k,
        .n_expert = f->config->n_expert,
        .n_out = shape->n_out,
        .n_in = shape->n_in,
        .x_is_bf16 = f->round == WEFT_ROUND_BF16,
        .round = round,
    };
    f->ops->grouped(f->threads, &op);
}

static void experts_grouped(weft_forward *f, const weft_layer_weights *w,
                            int32_t n_rows)
{
    const weft_model_config *const c = f->config;
    const weft_mlp_weights *const shape = w->experts, *const there =
                                                          w->experts_ops;
    grouped(f, &shape->gate, &there->gate, f->x, f->expert_rows, f->expert_gate,
            n_rows, f->round);
    grouped(f, &shape->up, &there->up, f->x, f->expert_rows, f->expert_up,
            n_rows, f->round);
    silu_mul(f, f->expert_gate, f->expert_up, n_rows * c->top_k,
             c->moe_intermediate_size);
    grouped(f, &shape->down, &there->down, f->expert_gate, NULL, f->expert_out,
            n_rows, weft_forward_part_round(f));
    if (w->mlp.down.data == NULL) return;
    f->gemms[0] =
        down_product(f, &w->mlp.down, f->mlp_gate, f->shared_out, n_rows);
    f->ops->gemm(f->threads, f->gemms, 1);
}

/* Experts of this process: few long runs of products, whose order of outputs
 * is nobody's concern. */
static void mixture(weft_forward *f, const weft_layer_weights *w, int32_t layer,
                    int32_t n_rows)
{
    const weft_model_config *const c = f->config;
    const int32_t n = list_shared_in(f, w, list_router(f, w, n_rows), n_rows);
    f->ops->gemm(f->threads, f->gemms, n);
    act_shared(f, w, n_rows);
    route(f, w, layer, n_rows);
    group_by_expert(f, n_rows);
    if (f->ops->grouped != NULL) {
        experts_grouped(f, w, n_rows);
    } else {
        experts_in(f, w);
        silu_mul(f, f->expert_gate, f->expert_up, n_rows * c->top_k,
                 c->moe_intermediate_size);
        experts_out(f, w, n_rows);
    }
    combine(f, w, n_rows);
}

static bool are_near(const weft_experts *experts)
{
    return experts->is_near != NULL && experts->is_near(experts->arg);
}

/* From a device: what experts elsewhere are asked. */
static weft_status fetch_question(weft_forward *f, int32_t n_rows)
{
    if (!are_near(f->options.experts))
        weft_memory_get(&f->memory, f->host.x, f->x,
                        (int64_t)n_rows * f->config->hidden_size * 4);
    weft_memory_get(&f->memory, f->host.route_experts, f->route_experts,
                    (int64_t)n_rows * f->config->top_k * 4);
    return weft_memory_sync(&f->memory, &f->ask_err);
}

/* Experts elsewhere: asked as soon as it is known which. Rows that fill the
 * step up need none. */
static void ask(weft_forward *f, int32_t layer)
{
    const weft_experts *const experts = f->options.experts;
    f->call = (weft_experts_call){
        .lane = f->options.lane,
        .layer = layer,
        .n_rows = f->n_rows,
        .top_k = f->config->top_k,
        .x = f->host.x,
        .experts = f->host.route_experts,
        .out = f->host.expert_out,
        .x_near = f->x,
        .out_near = f->expert_out,
    };
    f->ask_status = fetch_question(f, f->n_rows);
    if (f->ask_status == WEFT_OK) experts->dispatch(experts->arg, &f->call);
}

/* While the experts are away. Rank 0 alone adds what they answer, to its part;
 * that of the others is y. */
static void shared_expert(weft_forward *f, const weft_layer_weights *w,
                          int32_t n_rows)
{
    const bool leads = weft_forward_leads(f);
    const int32_t n = list_shared_in(f, w, 0, n_rows);
    if (n == 0) {
        if (!leads)
            weft_memory_fill(&f->memory, f->y, 0,
                             (int64_t)n_rows * f->config->hidden_size * 4);
        return;
    }
    f->ops->gemm(f->threads, f->gemms, n);
    act_shared(f, w, n_rows);
    f->gemms[0] = down_product(f, &w->mlp.down, f->mlp_gate,
                               leads ? f->shared_out : f->y, n_rows);
    f->ops->gemm(f->threads, f->gemms, 1);
}

void weft_forward_ffn_begin(weft_forward *f, int32_t layer, int32_t n_rows)
{
    const weft_layer_weights *const w = &f->weights->layers[layer];
    if (!f->config->moe[layer]) {
        dense(f, &w->mlp, n_rows);
    } else if (f->options.experts == NULL) {
        mixture(f, w, layer, n_rows);
    } else if (weft_forward_leads(f)) {
        f->ops->gemm(f->threads, f->gemms, list_router(f, w, n_rows));
        route(f, w, layer, n_rows);
    }
}

void weft_forward_ffn_ask(weft_forward *f, int32_t layer, int32_t n_rows)
{
    if (!weft_forward_asks(f, layer)) return;
    f->is_away = true;
    if (weft_forward_leads(f)) ask(f, layer);
    shared_expert(f, &f->weights->layers[layer], n_rows);
}

static weft_status collect(weft_forward *f, weft_err *err)
{
    const weft_experts *const experts = f->options.experts;
    if (f->ask_status != WEFT_OK) {
        if (err != NULL) *err = f->ask_err;
        return f->ask_status;
    }
    WEFT_TRY(experts->collect(experts->arg, &f->call, err));
    if (!experts->on_device)
        weft_memory_put(&f->memory, f->expert_out, f->host.expert_out,
                        (int64_t)f->call.n_rows * f->call.top_k *
                            f->config->hidden_size * 4);
    return WEFT_OK;
}

/* Rank 0 may wait in a sum for a device that has failed: whose thread hears of
 * it here, before it waits for rank 0. */
static weft_status follow(weft_forward *f, weft_err *err)
{
    weft_comm_rank *const rank = f->options.rank;
    weft_err own = {0};
    if (weft_memory_sync(&f->memory, &own) != WEFT_OK)
        return weft_comm_rank_fail(rank, &own, err);
    return weft_comm_follow(rank, WEFT_OK, err);
}

weft_status weft_forward_ffn_collect(weft_forward *f, weft_err *err)
{
    if (!f->is_away) return WEFT_OK;
    f->is_away = false;
    if (!weft_forward_leads(f)) return follow(f, err);
    const weft_status st = collect(f, err);
    return f->options.rank == NULL ? st
                                   : weft_comm_follow(f->options.rank, st, err);
}

void weft_forward_ffn_abandon(weft_forward *f)
{
    const bool asked = f->is_away && weft_forward_leads(f);
    f->is_away = false;
    if (!asked) return;
    const weft_status st = collect(f, NULL);
    (void)st;
}

void weft_forward_ffn_end(weft_forward *f, int32_t layer, int32_t n_rows)
{
    if (weft_forward_asks(f, layer) && weft_forward_leads(f))
        combine(f, &f->weights->layers[layer], n_rows);
}
