/* reference.c - the ops as ops.h words them, in plain loops on one thread.
 *
 * The oracle of the kernel tests: it shares with the fast paths the scalar
 * functions of math.h and nothing else. reference_attn.c has the ops that read
 * paged rows.
 */
#include "kernels/cpu/reference.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/math.h"
#include "node/base/check.h"

float weft_reference_round(float value, weft_round round)
{
    return round == WEFT_ROUND_BF16 ? weft_f32_of_bf16(weft_bf16_of_f32(value))
                                    : value;
}

float weft_reference_tree(float *lane)
{
    for (int w = 8; w >= 1; w /= 2)
        for (int l = 0; l < w; l++) lane[l] += lane[l + w];
    return lane[0];
}

static void ref_gemm(weft_threads *threads, const weft_gemm *list, int32_t n)
{
    (void)threads;
    for (int32_t p = 0; p < n; p++) {
        const weft_gemm *const g = &list[p];
        for (int32_t o = 0; o < g->w->n_out; o++) {
            for (int32_t r = 0; r < g->n_row; r++) {
                const int64_t from = g->x_rows != NULL ? g->x_rows[r] : r;
                const float *const x = g->x + from * g->x_stride;
                float sum = 0.0f;
                for (int32_t i = 0; i < g->w->n_in; i++)
                    sum = fmaf(weft_matrix_at(g->w, o, i), x[i], sum);
                g->y[r * g->y_stride + o] = weft_reference_round(sum, g->round);
            }
        }
    }
}

static void ref_rms_norm(weft_threads *threads, const weft_rms_norm *op)
{
    (void)threads;
    for (int32_t r = 0; r < op->n_row; r++) {
        const float *const x = op->x + r * op->x_stride;
        float *const y = op->y + r * op->y_stride;
        float lane[16] = {0};
        for (int32_t i = 0; i < op->width; i++)
            lane[i % 16] = fmaf(x[i], x[i], lane[i % 16]);
        const float mean = weft_reference_tree(lane) / (float)op->width;
        const float inverse = 1.0f / sqrtf(mean + op->eps);
        for (int32_t i = 0; i < op->width; i++) {
            const float v =
                weft_reference_round(x[i] * inverse * op->w[i], op->round);
            y[i] = op->scale == 1.0f
                       ? v
                       : weft_reference_round(v * op->scale, op->round);
        }
    }
}

static void ref_layer_norm(weft_threads *threads, const weft_layer_norm *op)
{
    (void)threads;
    for (int32_t r = 0; r < op->n_row; r++) {
        const float *const x = op->x + r * op->x_stride;
        float *const y = op->y + r * op->y_stride;
        float sum[16] = {0}, square[16] = {0};
        for (int32_t i = 0; i < op->width; i++) sum[i % 16] += x[i];
        const float mean = weft_reference_tree(sum) / (float)op->width;
        for (int32_t i = 0; i < op->width; i++) {
            const float d = x[i] - mean;
            square[i % 16] = fmaf(d, d, square[i % 16]);
        }
        const float var = weft_reference_tree(square) / (float)op->width;
        const float inverse = 1.0f / sqrtf(var + op->eps);
        for (int32_t i = 0; i < op->width; i++)
            y[i] = weft_reference_round(
                fmaf((x[i] - mean) * inverse, op->w[i], op->b[i]), op->round);
    }
}

static void ref_rope_table(weft_threads *threads, const weft_rope_table *op)
{
    (void)threads;
    for (int32_t r = 0; r < op->n_row; r++)
        for (int32_t i = 0; i < op->n_freq; i++) {
            const int64_t at = (int64_t)r * op->n_freq + i;
            float s, c;
            weft_math_sincos((float)op->positions[r] * op->inv_freq[i], &s, &c);
            op->cos_out[at] = c * op->factor;
            op->sin_out[at] = s * op->factor;
        }
}

static void ref_rope(weft_threads *threads, const weft_rope *op)
{
    (void)threads;
    for (int32_t r = 0; r < op->n_row; r++)
        for (int32_t h = 0; h < op->n_head; h++)
            for (int32_t i = 0; i < op->n_freq; i++) {
                const int32_t first = op->interleave ? 2 * i : i;
                const int32_t second =
                    op->interleave ? 2 * i + 1 : i + op->n_freq;
                const float *const x =
                    op->x + r * op->x_stride + h * op->x_head_stride;
                float *const y =
                    op->y + r * op->y_stride + h * op->y_head_stride;
                const float c = op->cos[(int64_t)r * op->n_freq + i];
                const float s = op->sin[(int64_t)r * op->n_freq + i];
                const float a = x[first], b = x[second];
                y[first] =
                    weft_reference_round(fmaf(a, c, -(b * s)), op->round);
                y[second] = weft_reference_round(fmaf(a, s, b * c), op->round);
            }
}

static void ref_silu_mul(weft_threads *threads, const weft_silu_mul *op)
{
    (void)threads;
    for (int32_t r = 0; r < op->n_row; r++)
        for (int32_t i = 0; i < op->width; i++) {
            const float z = op->a[r * op->a_stride + i];
            const float silu = z / (1.0f + weft_math_exp(-z));
            op->y[r * op->y_stride + i] = weft_reference_round(
                silu * op->b[r * op->b_stride + i], op->round);
        }
}

static void ref_gate(weft_threads *threads, const weft_gate *op)
{
    (void)threads;
    for (int32_t r = 0; r < op->n_row; r++)
        for (int32_t h = 0; h < op->n_head; h++) {
            const float g = op->g[r * op->g_stride + h];
            const float gate = 1.0f / (1.0f + weft_math_exp(-g));
            for (int32_t i = 0; i < op->head_width; i++) {
                float *const x =
                    op->x + r * op->x_stride + (int64_t)h * op->head_width + i;
                *x = weft_reference_round(*x * gate, op->round);
            }
        }
}

static void ref_add(weft_threads *threads, const weft_add *op)
{
    (void)threads;
    for (int32_t r = 0; r < op->n_row; r++)
        for (int32_t i = 0; i < op->width; i++) {
            float *const x = op->x + r * op->x_stride + i;
            *x = weft_reference_round(*x + op->y[r * op->y_stride + i],
                                      op->round);
        }
}

static void ref_embed(weft_threads *threads, const weft_embed *op)
{
    (void)threads;
    for (int32_t r = 0; r < op->n_row; r++)
        for (int32_t i = 0; i < op->width; i++)
            op->y[r * op->y_stride + i] = weft_f32_of(
                op->dtype, op->table, (int64_t)op->ids[r] * op->width + i);
}

static void ref_move(weft_threads *threads, const weft_move *op)
{
    (void)threads;
    for (int32_t r = 0; r < op->n_row; r++) {
        const int64_t from = op->x_rows != NULL ? op->x_rows[r] : r;
        const int64_t to = op->y_rows != NULL ? op->y_rows[r] : r;
        for (int32_t i = 0; i < op->width; i++)
            op->y[to * op->y_stride + i] = op->x[from * op->x_stride + i];
    }
}

/* Is `a` before `b` in the order of choice, ties going to the lower index? */
static bool chosen_before(const float *t, int32_t a, int32_t b)
{
    return t[a] > t[b] || (t[a] == t[b] && a < b);
}

/* How many of `among` (where open) come before i: its rank. */
static int32_t rank_of(const float *t, const bool *open, int32_t n, int32_t i)
{
    int32_t rank = 0;
    for (int32_t j = 0; j < n; j++)
        rank += j != i && (open == NULL || open[j]) && chosen_before(t, j, i);
    return rank;
}

static void route_row_scores(const weft_route *op, int32_t r, float *s)
{
    const float *const x = op->logits + r * op->logits_stride;
    float most = x[0], lane[16] = {0};
    for (int32_t i = 0; i < op->n_expert; i++) most = fmaxf(most, x[i]);
    for (int32_t i = 0; i < op->n_expert; i++) {
        if (op->scoring == WEFT_SIGMOID) {
            s[i] = 1.0f / (1.0f + weft_math_exp(-x[i]));
        } else {
            s[i] = weft_math_exp(x[i] - most);
            lane[i % 16] += s[i];
        }
    }
    if (op->scoring == WEFT_SIGMOID) return;
    const float sum = weft_reference_tree(lane);
    for (int32_t i = 0; i < op->n_expert; i++) s[i] /= sum;
}

static float route_group_score(const weft_route *op, const float *t)
{
    const int32_t size = op->n_expert / op->n_group;
    float best = -INFINITY, second = -INFINITY;
    for (int32_t i = 0; i < size; i++) {
        const int32_t rank = rank_of(t, NULL, size, i);
        if (rank == 0) best = t[i];
        if (rank == 1) second = t[i];
    }
    return op->group_score == WEFT_GROUP_MAX || size == 1 ? best
                                                          : best + second;
}

static void route_row(const weft_route *op, int32_t r)
{
    float s[WEFT_ROUTE_EXPERTS_MAX], t[WEFT_ROUTE_EXPERTS_MAX] = {0};
    float group[WEFT_ROUTE_EXPERTS_MAX] = {0};
    bool open[WEFT_ROUTE_EXPERTS_MAX];
    const int32_t size = op->n_expert / op->n_group;
    WEFT_ASSERT(size >= 1);
    float *const w = op->weights_out + (int64_t)r * op->top_k;
    route_row_scores(op, r, s);
    for (int32_t i = 0; i < op->n_expert; i++)
        t[i] = op->bias != NULL ? s[i] + op->bias[i] : s[i];
    for (int32_t g = 0; g < op->n_group; g++)
        group[g] = route_group_score(op, t + (int64_t)g * size);
    for (int32_t i = 0; i < op->n_expert; i++)
        open[i] = rank_of(group, NULL, op->n_group, i / size) < op->topk_group;
    for (int32_t i = 0; i < op->n_expert; i++) {
        const int32_t slot = rank_of(t, open, op->n_expert, i);
        if (!open[i] || slot >= op->top_k) continue;
        op->experts_out[(int64_t)r * op->top_k + slot] = i;
        w[slot] = s[i];
    }
    float sum[16] = {0}, square[16] = {0};
    for (int32_t k = 0; k < op->top_k; k++) sum[k % 16] += w[k];
    const float total = weft_reference_tree(sum) + 1e-20f;
    for (int32_t k = 0; op->norm_topk && k < op->top_k; k++) w[k] /= total;
    for (int32_t k = 0; k < op->top_k; k++)
        square[k % 16] = fmaf(w[k], w[k], square[k % 16]);
    const float length = sqrtf(weft_reference_tree(square)) + 1e-20f;
    for (int32_t k = 0; op->dynamic_rsf && k < op->top_k; k++) w[k] /= length;
    for (int32_t k = 0; k < op->top_k; k++) w[k] *= op->scale;
}

static void ref_route(weft_threads *threads, const weft_route *op)
{
    (void)threads;
    for (int32_t r = 0; r < op->n_row; r++) route_row(op, r);
}

static void ref_combine(weft_threads *threads, const weft_combine *op)
{
    (void)threads;
    for (int32_t r = 0; r < op->n_row; r++)
        for (int32_t i = 0; i < op->width; i++) {
            float sum = 0.0f;
            for (int32_t k = 0; k < op->top_k; k++) {
                const int64_t slot = (int64_t)r * op->top_k + k;
                const int64_t from = (int64_t)op->row_of[slot] * op->width;
                sum = fmaf(op->weights[slot], op->expert_rows[from + i], sum);
            }
            sum = weft_reference_round(sum, op->round);
            if (op->shared != NULL)
                sum = weft_reference_round(
                    sum + op->shared[r * op->shared_stride + i], op->round);
            op->y[r * op->y_stride + i] = sum;
        }
}

static void ref_vocab(weft_threads *threads, const weft_vocab *op)
{
    (void)threads;
    for (int32_t r = 0; r < op->n_row; r++) {
        const float *const x = op->logits + r * op->logits_stride;
        weft_vocab_stat *const stat = &op->stats_out[r];
        memset(stat, 0, sizeof *stat);
        for (int32_t i = 0; i < op->vocab; i++) {
            if (x[i] != x[i]) stat->nan = true;
            if (x[i] > x[stat->argmax]) stat->argmax = i;
        }
        if (stat->nan) {
            stat->argmax = 0;
            continue;
        }
        stat->max = x[stat->argmax];
        stat->log_sum_exp = stat->max;
        if (isinf(stat->max)) continue;
        float sum = 0.0f;
        for (int32_t first = 0; first < op->vocab; first += 1024) {
            float lane[16] = {0};
            for (int32_t i = first; i < first + 1024 && i < op->vocab; i++)
                lane[i % 16] += weft_math_exp(x[i] - stat->max);
            sum += weft_reference_tree(lane);
        }
        stat->log_sum_exp = weft_math_log(sum) + stat->max;
    }
}

static void ref_exp(float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++) x[i] = weft_math_exp(x[i]);
}

static void ref_group(weft_threads *threads, const weft_group *op)
{
    (void)threads;
    int32_t at = 0;
    for (int32_t e = 0; e < op->n_expert; e++) {
        op->first_out[e] = at;
        for (int32_t i = 0; i < op->n_row * op->top_k; i++) {
            if (op->experts[i] != e) continue;
            op->rows_out[at] = i / op->top_k;
            op->row_of_out[i] = at++;
        }
    }
    op->first_out[op->n_expert] = at;
}

static const weft_ops reference_ops = {
    .name = "reference",
    .gemm = ref_gemm,
    .rms_norm = ref_rms_norm,
    .layer_norm = ref_layer_norm,
    .rope_table = ref_rope_table,
    .rope = ref_rope,
    .silu_mul = ref_silu_mul,
    .gate = ref_gate,
    .add = ref_add,
    .embed = ref_embed,
    .store = weft_reference_store,
    .attn = weft_reference_attn,
    .index_select = weft_reference_index_select,
    .route = ref_route,
    .group = ref_group,
    .combine = ref_combine,
    .move = ref_move,
    .vocab = ref_vocab,
    .exp = ref_exp,
};

const weft_ops *weft_ops_reference(void)
{
    return &reference_ops;
}
