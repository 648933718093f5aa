#include "shard/model/partition.h"

#include <stdint.h>

#include "node/base/check.h"

/* What a decode step reads of each layer, and of the head before layer 0. */
typedef struct costs {
    int32_t n_layer;
    int64_t head;
    int64_t before[WEFT_LAYERS_MAX + 1]; /* of the layers before this one */
} costs;

/* Elements of the matrices of one layer's attention. What type they have is
 * said by the tensors, not by the config: elements stand for bytes. */
static int64_t attention_cost(const weft_model_config *c, int32_t layer)
{
    const weft_kind kind = c->kind[layer];
    const weft_geometry *const g = &c->geometry[kind];
    const int64_t hidden = c->hidden_size, n_head = g->n_head;
    const int64_t q_width =
        n_head * (g->qk_nope_head_dim + g->qk_rope_head_dim);
    const int64_t out_width = n_head * g->v_head_dim;
    const int64_t q = g->q_lora_rank == 0 ? hidden * q_width
                                          : (hidden + q_width) * g->q_lora_rank;
    const int64_t kv =
        hidden * weft_config_row_width(c, kind) +
        n_head * (g->qk_nope_head_dim + g->v_head_dim) * g->kv_lora_rank;
    const int64_t gate = g->gate == WEFT_GATE_NONE       ? 0
                         : g->gate == WEFT_GATE_HEADWISE ? hidden * n_head
                                                         : hidden * out_width;
    int64_t cost = q + kv + gate + hidden * out_width;
    if (kind == WEFT_FULL && c->dsa)
        cost += (int64_t)c->index_n_head * c->index_head_dim * g->q_lora_rank +
                hidden * (c->index_head_dim + c->index_n_head);
    return cost;
}

static int64_t layer_cost(const weft_model_config *c, int32_t layer)
{
    const int64_t hidden = c->hidden_size;
    const int64_t ffn =
        c->moe[layer]
            ? hidden * (c->n_expert + 3 * (int64_t)c->shared_intermediate_size)
            : 3 * hidden * c->intermediate_size;
    return attention_cost(c, layer) + ffn;
}

static void fill_costs(const weft_model_config *config, costs *out)
{
    out->n_layer = config->n_layer;
    out->head = (int64_t)config->vocab_size * config->hidden_size;
    out->before[0] = 0;
    for (int32_t l = 0; l < config->n_layer; l++)
        out->before[l + 1] = out->before[l] + layer_cost(config, l);
}

/* Of a stage with layers [first, end). */
static int64_t stage_cost(const costs *c, int32_t first, int32_t end)
{
    return c->before[end] - c->before[first] + (first == 0 ? c->head : 0);
}

/* Whether n stages can be had of which none costs more than `most`: each takes
 * as many layers as it may, and one that has several can be cut further. */
static bool can(const costs *c, int32_t n_stages, int64_t most)
{
    int32_t at = 0, used = 0;
    while (at < c->n_layer) {
        int32_t end = at;
        while (end < c->n_layer && stage_cost(c, at, end + 1) <= most) end++;
        if (end == at || ++used > n_stages) return false;
        at = end;
    }
    return true;
}

/* The least cost of the costliest stage. */
static int64_t least_most(const costs *c, int32_t n_stages)
{
    int64_t low = 0, high = stage_cost(c, 0, c->n_layer);
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (can(c, n_stages, middle))
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

enum { IMPOSSIBLE = -1 };

/* The best that a last stage can make of the cut of what is before it: the
 * costs of the cheapest stage of either, over all places where it may begin. */
static int64_t extend(const costs *c, int64_t most, int32_t end,
                      const int64_t *cheapest, int16_t *begin_out)
{
    int64_t best = IMPOSSIBLE;
    for (int32_t first = end - 1; first >= 0; first--) {
        const int64_t cost = stage_cost(c, first, end);
        if (cheapest[first] == IMPOSSIBLE || cost > most) continue;
        const int64_t least = cost < cheapest[first] ? cost : cheapest[first];
        if (least <= best) continue;
        best = least;
        *begin_out = (int16_t)first;
    }
    return best;
}

/* Of the cuts whose costliest stage costs least, one whose cheapest stage costs
 * most; of those, later stages have fewer layers. Whole numbers only, so that
 * every machine finds the same. ends_out [n_stages]. */
static void cut(const costs *c, int32_t n_stages, int32_t *ends_out)
{
    _Static_assert(WEFT_LAYERS_MAX <= INT16_MAX, "begins fit");
    int16_t begins[WEFT_STAGES_MAX][WEFT_LAYERS_MAX + 1];
    int64_t cheapest[WEFT_LAYERS_MAX + 1], next[WEFT_LAYERS_MAX + 1];
    const int64_t most = least_most(c, n_stages);
    cheapest[0] = INT64_MAX;
    for (int32_t l = 1; l <= c->n_layer; l++) cheapest[l] = IMPOSSIBLE;
    for (int32_t s = 0; s < n_stages; s++) {
        next[0] = IMPOSSIBLE;
        for (int32_t end = 1; end <= c->n_layer; end++)
            next[end] = extend(c, most, end, cheapest, &begins[s][end]);
        for (int32_t l = 0; l <= c->n_layer; l++) cheapest[l] = next[l];
    }
    WEFT_ASSERT(cheapest[c->n_layer] != IMPOSSIBLE);
    int32_t end = c->n_layer;
    for (int32_t s = n_stages - 1; s >= 0; s--) {
        ends_out[s] = end;
        end = begins[s][end];
    }
}

weft_status weft_partition_stage(const weft_model_config *config,
                                 int32_t n_stages, int32_t stage,
                                 int32_t *first_layer_out,
                                 int32_t *end_layer_out, weft_err *err)
{
    const int32_t most =
        config->n_layer < WEFT_STAGES_MAX ? config->n_layer : WEFT_STAGES_MAX;
    if (n_stages < 1 || n_stages > most)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%d stages: a model of %d layers has 1 to %d",
                         n_stages, config->n_layer, most);
    if (stage < 0 || stage >= n_stages)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "stage %d: of %d stages the last is %d", stage,
                         n_stages, n_stages - 1);
    costs c;
    int32_t ends[WEFT_STAGES_MAX];
    fill_costs(config, &c);
    cut(&c, n_stages, ends);
    *first_layer_out = stage == 0 ? 0 : ends[stage - 1];
    *end_layer_out = ends[stage];
    return WEFT_OK;
}

weft_status weft_partition_cut(const weft_model_config *config,
                               int32_t n_stages, int32_t stage,
                               weft_model_config *config_out, weft_err *err)
{
    int32_t first = 0, end = 0;
    WEFT_TRY(weft_partition_stage(config, n_stages, stage, &first, &end, err));
    weft_model_config c = *config;
    c.first_layer = first;
    c.end_layer = end;
    for (int32_t k = 0; k < WEFT_KINDS; k++) c.n_kind[k] = 0;
    for (int32_t l = first; l < end; l++) c.n_kind[c.kind[l]]++;
    *config_out = c;
    return WEFT_OK;
}

/* One number of the config that ranks share, and whether a layer here has it.
 */
typedef struct shared_width {
    const char *key;
    int32_t *width;
    bool here;
} shared_width;

static weft_status divide(const shared_width *w, int32_t n_ranks, weft_err *err)
{
    if (!w->here) return WEFT_OK;
    if (*w->width % n_ranks != 0)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%s %d is not a multiple of tensor-parallel degree %d",
                         w->key, *w->width, n_ranks);
    *w->width /= n_ranks;
    return WEFT_OK;
}

weft_status weft_partition_rank(const weft_model_config *config,
                                int32_t n_ranks, weft_model_config *config_out,
                                weft_err *err)
{
    weft_model_config c = *config;
    bool dense = false, moe = false;
    if (n_ranks < 1 || n_ranks > WEFT_RANKS_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "tensor-parallel degree %d: 1 to %d", n_ranks,
                         WEFT_RANKS_MAX);
    for (int32_t l = c.first_layer; l < c.end_layer; l++)
        if (c.moe[l])
            moe = true;
        else
            dense = true;
    const shared_width widths[] = {
        {"num_attention_heads", &c.geometry[WEFT_FULL].n_head,
         c.n_kind[WEFT_FULL] > 0},
        {"swa_num_attention_heads", &c.geometry[WEFT_WINDOW].n_head,
         c.n_kind[WEFT_WINDOW] > 0},
        {"intermediate_size", &c.intermediate_size, dense},
        {"moe_intermediate_size", &c.moe_intermediate_size, moe},
        {"shared_experts_intermediate_size", &c.shared_intermediate_size, moe},
    };
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        WEFT_TRY(divide(&widths[i], n_ranks, err));
    *config_out = c;
    return WEFT_OK;
}
