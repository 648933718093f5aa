#include "kernels/cpu/route.h"

#include <math.h>
#include <stddef.h>

/* Where scores order experts, a NaN is never larger, so the choice is always
 * top_k different experts. */

static float choice_of(const weft_route *op, const float *scores, int32_t i)
{
    return op->bias == NULL ? scores[i] : scores[i] + op->bias[i];
}

static float group_score(const weft_route *op, const float *scores,
                         int32_t group)
{
    const int32_t size = op->n_expert / op->n_group;
    float best = -INFINITY, second = -INFINITY;
    for (int32_t i = group * size; i < (group + 1) * size; i++) {
        const float t = choice_of(op, scores, i);
        if (t > best) {
            second = best;
            best = t;
        } else if (t > second) {
            second = t;
        }
    }
    if (op->group_score == WEFT_GROUP_MAX || size == 1) return best;
    return best + second;
}

/* Every expert is taken but those of the topk_group best groups. */
static void open_groups(const weft_route *op, const float *scores, bool *taken)
{
    const int32_t size = op->n_expert / op->n_group;
    float score[WEFT_ROUTE_EXPERTS_MAX];
    bool open[WEFT_ROUTE_EXPERTS_MAX];
    for (int32_t i = 0; i < op->n_expert; i++) taken[i] = true;
    for (int32_t g = 0; g < op->n_group; g++) {
        open[g] = false;
        score[g] = group_score(op, scores, g);
    }
    for (int32_t k = 0; k < op->topk_group; k++) {
        int32_t best = -1;
        for (int32_t g = 0; g < op->n_group; g++)
            if (!open[g] && (best < 0 || score[g] > score[best])) best = g;
        open[best] = true;
        for (int32_t i = 0; i < size; i++) taken[best * size + i] = false;
    }
}

/* The sum of top_k terms by the 16 lanes of ops.h; square: of their squares. */
static float sum_lanes(const float *w, int32_t n, bool square)
{
    float lane[16] = {0};
    for (int32_t i = 0; i < n; i++)
        lane[i % 16] =
            square ? fmaf(w[i], w[i], lane[i % 16]) : lane[i % 16] + w[i];
    for (int32_t width = 8; width >= 1; width /= 2)
        for (int32_t l = 0; l < width; l++) lane[l] += lane[l + width];
    return lane[0];
}

static void divide(float *w, int32_t n, float by)
{
    for (int32_t i = 0; i < n; i++) w[i] /= by;
}

void weft_route_choose(const weft_route *op, const float *scores, int32_t row)
{
    int32_t *const experts = op->experts_out + (int64_t)row * op->top_k;
    float *const w = op->weights_out + (int64_t)row * op->top_k;
    bool taken[WEFT_ROUTE_EXPERTS_MAX];
    open_groups(op, scores, taken);

    for (int32_t k = 0; k < op->top_k; k++) {
        int32_t best = -1;
        float t_best = 0.0f;
        for (int32_t i = 0; i < op->n_expert; i++) {
            if (taken[i]) continue;
            const float t = choice_of(op, scores, i);
            if (best >= 0 && !(t > t_best)) continue;
            best = i;
            t_best = t;
        }
        taken[best] = true;
        experts[k] = best;
        w[k] = scores[best];
    }
    if (op->norm_topk)
        divide(w, op->top_k, sum_lanes(w, op->top_k, false) + 1e-20f);
    if (op->dynamic_rsf)
        divide(w, op->top_k, sqrtf(sum_lanes(w, op->top_k, true)) + 1e-20f);
    for (int32_t k = 0; k < op->top_k; k++) w[k] *= op->scale;
}
