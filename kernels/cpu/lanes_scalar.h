/* lanes_scalar.h - 16 virtual lanes as an array: the path that runs anywhere.
 *
 * Every lanes_*.h defines the same names; what they mean is written here once.
 * A `vf` is 16 floats. `_n` variants touch the first n lanes of memory only,
 * 1 <= n <= 16; lanes not loaded are 0. No operation here may differ by a bit
 * from the plain C in this file (NaN payloads apart).
 */
#ifndef WEFT_KERNELS_CPU_LANES_H
#define WEFT_KERNELS_CPU_LANES_H

#include "kernels/cpu/lanes_common.h"

#define LANES_NAME "scalar"
/* Register tiles: see gemm.inc and dot.inc. */
#define GEMM_TILE_ROWS     8
#define GEMM_FEW_TILE_ROWS 8
#define GEMM_NV(rows)      ((rows) == 1 ? 4 : 1)
#define DOT_HEADS          1
#define DOT_KEYS           1
#define MIX_NV             1

typedef struct vf {
    float l[16];
} vf;

#define LANES_EACH for (int64_t l_ = 0; l_ < 16; l_++)

LANE_FN vf vf_set1(float x)
{
    vf v;
    LANES_EACH v.l[l_] = x;
    return v;
}
LANE_FN vf vf_zero(void)
{
    return vf_set1(0.0f);
}
LANE_FN vf vf_load_n(const float *p, int32_t n)
{
    vf v = vf_zero();
    for (int32_t i = 0; i < n; i++) v.l[i] = p[i];
    return v;
}
LANE_FN vf vf_load(const float *p)
{
    return vf_load_n(p, 16);
}
LANE_FN void vf_store_n(float *p, vf v, int32_t n)
{
    for (int32_t i = 0; i < n; i++) p[i] = v.l[i];
}
LANE_FN void vf_store(float *p, vf v)
{
    vf_store_n(p, v, 16);
}
LANE_FN vf vf_load_bf16_n(const uint16_t *p, int32_t n)
{
    vf v = vf_zero();
    for (int32_t i = 0; i < n; i++) v.l[i] = weft_f32_of_bf16(p[i]);
    return v;
}
LANE_FN vf vf_load_bf16(const uint16_t *p)
{
    return vf_load_bf16_n(p, 16);
}
/* Two vectors at once, their lanes in an order that suits the loader;
 * vf_unpair_* puts them (or what was computed lane by lane from them) into
 * rising order. */
LANE_FN void vf_load_pair_bf16(const uint16_t *p, vf *a, vf *b)
{
    *a = vf_load_bf16(p);
    *b = vf_load_bf16(p + 16);
}
LANE_FN void vf_unpair_bf16(vf *a, vf *b)
{
    (void)a;
    (void)b;
}
LANE_FN vf vf_load_f16(const uint16_t *p)
{
    vf v;
    LANES_EACH v.l[l_] = weft_f32_of_f16(p[l_]);
    return v;
}
/* The element / 256, exactly: an f8 shifted into the fields of an fp16, whose
 * exponent bias is 8 more. What a NaN code gives is not defined. */
LANE_FN vf vf_load_f8(const uint8_t *p)
{
    vf v;
    LANES_EACH v.l[l_] = weft_f32_of_f8(p[l_]) * 0x1p-8f;
    return v;
}
LANE_FN void vf_load_pair_f8(const uint8_t *p, vf *a, vf *b)
{
    *a = vf_load_f8(p);
    *b = vf_load_f8(p + 16);
}
LANE_FN void vf_unpair_f8(vf *a, vf *b)
{
    (void)a;
    (void)b;
}
LANE_FN vf vf_add(vf a, vf b)
{
    LANES_EACH a.l[l_] += b.l[l_];
    return a;
}
LANE_FN vf vf_sub(vf a, vf b)
{
    LANES_EACH a.l[l_] -= b.l[l_];
    return a;
}
LANE_FN vf vf_mul(vf a, vf b)
{
    LANES_EACH a.l[l_] *= b.l[l_];
    return a;
}
LANE_FN vf vf_div(vf a, vf b)
{
    LANES_EACH a.l[l_] /= b.l[l_];
    return a;
}
/* a * b + c, rounded once. */
LANE_FN vf vf_fma(vf a, vf b, vf c)
{
    LANES_EACH c.l[l_] = fmaf(a.l[l_], b.l[l_], c.l[l_]);
    return c;
}
/* a > b ? a : b, so b where one is NaN. */
LANE_FN vf vf_max(vf a, vf b)
{
    LANES_EACH a.l[l_] = a.l[l_] > b.l[l_] ? a.l[l_] : b.l[l_];
    return a;
}
LANE_FN vf vf_neg(vf a)
{
    LANES_EACH a.l[l_] = -a.l[l_];
    return a;
}
/* x > high ? high : x < low ? low : x; NaN stays. */
LANE_FN vf vf_clamp(vf x, float low, float high)
{
    LANES_EACH
    {
        const float y = x.l[l_];
        x.l[l_] = y > high ? high : y < low ? low : y;
    }
    return x;
}
/* Lanes below n of a, the others of b; 0 <= n. */
LANE_FN vf vf_select_n(vf a, vf b, int32_t n)
{
    LANES_EACH a.l[l_] = l_ < n ? a.l[l_] : b.l[l_];
    return a;
}
LANE_FN bool vf_any_nan(vf a)
{
    bool any = false;
    LANES_EACH any = any || a.l[l_] != a.l[l_];
    return any;
}
/* p * 2^n for whole n, |n| <= 252, p in [0.5, 2] (or NaN): weft_math_scale. */
LANE_FN vf vf_scale(vf p, vf n)
{
    LANES_EACH
    {
        const float whole = n.l[l_] == n.l[l_] ? n.l[l_] : 0.0f;
        p.l[l_] = weft_math_scale(p.l[l_], (int32_t)whole);
    }
    return p;
}
/* The tree of ops.h. */
LANE_FN float vf_sum(vf v)
{
    for (int32_t w = 8; w >= 1; w /= 2)
        for (int32_t i = 0; i < w; i++) v.l[i] += v.l[i + w];
    return v.l[0];
}
/* out[4 a + b] = vf_sum(v[4 b + a]) */
LANE_FN void vf_sum16(const vf *v, float *out)
{
    for (int32_t a = 0; a < 4; a++)
        for (int32_t b = 0; b < 4; b++) out[4 * a + b] = vf_sum(v[4 * b + a]);
}
LANE_FN float vf_hmax(vf v)
{
    for (int32_t w = 8; w >= 1; w /= 2)
        for (int32_t i = 0; i < w; i++)
            v.l[i] = v.l[i] > v.l[i + w] ? v.l[i] : v.l[i + w];
    return v.l[0];
}
LANE_FN vf vf_round_bf16(vf v)
{
    LANES_EACH v.l[l_] = weft_f32_of_bf16(weft_bf16_of_f32(v.l[l_]));
    return v;
}
LANE_FN void vf_store_bf16(uint16_t *p, vf v)
{
    LANES_EACH p[l_] = weft_bf16_of_f32(v.l[l_]);
}
/* Elements 0, 2, 4 ... of 32 into a, 1, 3, 5 ... into b; and back. */
LANE_FN void vf_load_even_odd(const float *p, vf *a, vf *b)
{
    LANES_EACH
    {
        a->l[l_] = p[2 * l_];
        b->l[l_] = p[2 * l_ + 1];
    }
}
LANE_FN void vf_store_even_odd(float *p, vf a, vf b)
{
    LANES_EACH
    {
        p[2 * l_] = a.l[l_];
        p[2 * l_ + 1] = b.l[l_];
    }
}

#endif
