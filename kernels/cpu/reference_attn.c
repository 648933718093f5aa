#include <math.h>
#include <string.h>

#include "kernels/cpu/math.h"
#include "kernels/cpu/reference.h"

static unsigned char *row_at(const weft_paged *paged, const weft_row *row,
                             int32_t position)
{
    return paged->base + row->pages[position / paged->page_tokens] +
           paged->layer_offset +
           (int64_t)(position % paged->page_tokens) * paged->row_bytes;
}

static float element(const weft_paged *paged, const weft_row *row,
                     int32_t position, int32_t i)
{
    return weft_f32_of(paged->dtype, row_at(paged, row, position), i);
}

static float dot(const weft_paged *paged, const weft_row *row, int32_t position,
                 const float *q, int32_t width)
{
    float lane[16] = {0};
    for (int32_t i = 0; i < width; i++)
        lane[i % 16] =
            fmaf(q[i], element(paged, row, position, i), lane[i % 16]);
    return weft_reference_tree(lane);
}

/* A key and its scale. */
static void store_f8(unsigned char *to, const float *x, int32_t width)
{
    float largest = 0.0f, scale = 0x1p-126f;
    bool finite = true;
    for (int32_t i = 0; i < width; i++) {
        finite = finite && isfinite(x[i]);
        largest = fmaxf(largest, fabsf(x[i]));
    }
    while (finite && largest > 448.0f * scale) scale *= 2.0f;
    if (largest == 0.0f) scale = 1.0f;
    if (!finite) scale = NAN;
    for (int32_t i = 0; i < width; i++)
        to[i] = finite ? weft_f8_of_f32(x[i] / scale) : 0;
    memcpy(to + width, &scale, sizeof scale);
}

void weft_reference_store(weft_threads *threads, const weft_store *op)
{
    (void)threads;
    for (int32_t r = 0; r < op->n_row; r++) {
        if (op->rows[r].position < 0) continue;
        void *const to = row_at(&op->to, &op->rows[r], op->rows[r].position);
        if (op->to.dtype == WEFT_F8_E4M3) {
            store_f8(to, op->x + r * op->x_stride, op->width);
            continue;
        }
        for (int32_t i = 0; i < op->width; i++) {
            const float value = op->x[r * op->x_stride + i];
            if (op->to.dtype == WEFT_F32)
                ((float *)to)[i] = value;
            else
                ((uint16_t *)to)[i] = weft_bf16_of_f32(value);
        }
    }
}

static int32_t key_of(const weft_row *row, int32_t j)
{
    return row->keys != NULL ? row->keys[j] : row->first + j;
}

/* Keys [first, first + n) of the list: p, their maximum and sum. */
static void split_softmax(const weft_attn *op, const weft_row *row,
                          const float *q, int32_t first, int32_t n, float *p,
                          float *m_out, float *l_out)
{
    float lane[16] = {0};
    float m = -INFINITY;
    for (int32_t j = 0; j < n; j++) {
        p[j] =
            dot(&op->kv, row, key_of(row, first + j), q, op->width) * op->scale;
        m = fmaxf(m, p[j]);
    }
    for (int32_t j = 0; j < n; j++) {
        p[j] = weft_math_exp(p[j] - m);
        lane[j % 16] += p[j];
    }
    *m_out = m;
    *l_out = weft_reference_tree(lane);
}

static void attn_head(const weft_attn *op, const weft_row *row, const float *q,
                      float *out)
{
    const int32_t n_keys =
        row->keys != NULL ? row->n_keys : row->position - row->first + 1;
    float m_all = 0.0f, l_all = 0.0f, p[256];
    for (int32_t d = 0; d < op->value_width; d++) out[d] = 0.0f;
    for (int32_t first = 0; first < n_keys; first += 256) {
        const int32_t n = n_keys - first < 256 ? n_keys - first : 256;
        float m, l;
        split_softmax(op, row, q, first, n, p, &m, &l);
        const float most = first == 0 ? m : fmaxf(m_all, m);
        const float a = weft_math_exp(m_all - most);
        const float b = weft_math_exp(m - most);
        for (int32_t d = 0; d < op->value_width; d++) {
            float acc = 0.0f;
            for (int32_t j = 0; j < n; j++)
                acc =
                    fmaf(p[j], element(&op->kv, row, key_of(row, first + j), d),
                         acc);
            out[d] = first == 0 ? acc : fmaf(out[d], a, acc * b);
        }
        l_all = first == 0 ? l : fmaf(l_all, a, l * b);
        m_all = most;
    }
    for (int32_t d = 0; d < op->value_width && n_keys > 0; d++)
        out[d] = weft_reference_round(out[d] / l_all, op->round);
}

void weft_reference_attn(weft_threads *threads, const weft_attn *op)
{
    (void)threads;
    for (int32_t r = 0; r < op->n_row; r++)
        for (int32_t h = 0; h < op->n_head; h++)
            attn_head(op, &op->rows[r],
                      op->q + r * op->q_stride + (int64_t)h * op->width,
                      op->out + r * op->out_stride +
                          (int64_t)h * op->value_width);
}

/* Is position a chosen before position b? */
static bool better(const float *score, int32_t a, int32_t b)
{
    const bool a_nan = isnan(score[a]), b_nan = isnan(score[b]);
    if (a_nan || b_nan) return a_nan == b_nan ? a < b : b_nan;
    return score[a] > score[b] || (score[a] == score[b] && a < b);
}

/* By what a score is multiplied at the end. */
static float key_scale(const weft_index_select *op, const weft_row *row,
                       int32_t position)
{
    if (op->keys.dtype != WEFT_F8_E4M3) return 1.0f;
    float scale;
    memcpy(&scale, row_at(&op->keys, row, position) + op->head_dim,
           sizeof scale);
    return scale;
}

void weft_reference_index_select(weft_threads *threads,
                                 const weft_index_select *op)
{
    (void)threads;
    float *const score = op->scratch;
    for (int32_t r = 0; r < op->n_row; r++) {
        const weft_row *const row = &op->rows[r];
        const int32_t n = row->position + 1;
        const bool all = row->position < op->top_k;
        int32_t *const out = op->keys_out + (int64_t)r * op->top_k;
        for (int32_t j = 0; j < n && !all; j++) {
            score[j] = 0.0f;
            for (int32_t h = 0; h < op->n_head; h++) {
                const float *const q =
                    op->q + r * op->q_stride + (int64_t)h * op->head_dim;
                const float d = dot(&op->keys, row, j, q, op->head_dim);
                score[j] = fmaf(op->w[r * op->w_stride + h],
                                d < 0.0f ? 0.0f : d, score[j]);
            }
            score[j] *= key_scale(op, row, j);
        }
        int32_t taken = 0;
        for (int32_t j = 0; j < n; j++) {
            int32_t before = 0;
            for (int32_t i = 0; i < n && !all; i++)
                before += better(score, i, j);
            if (before < op->top_k) out[taken++] = j;
        }
        op->n_keys_out[r] = taken;
        op->rows[r].keys = out;
        op->rows[r].n_keys = taken;
    }
}
