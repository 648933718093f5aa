/* lanes_neon.h - 16 lanes in four registers; aarch64, nothing optional.
 * What the names mean: lanes_scalar.h. */
#ifndef WEFT_KERNELS_CPU_LANES_H
#define WEFT_KERNELS_CPU_LANES_H

#include <arm_neon.h>

#include "kernels/cpu/lanes_common.h"

#define LANES_NAME "neon"
/* 6 x 1 accumulators are 24 of 32 registers. */
#define GEMM_TILE_ROWS     6
#define GEMM_FEW_TILE_ROWS 6
#define GEMM_NV(rows)      ((rows) == 1 ? 4 : (rows) <= 3 ? 2 : 1)
#define DOT_HEADS          2
#define DOT_KEYS           2
#define MIX_NV             1

typedef struct vf {
    float32x4_t q[4];
} vf;

#define LANES_EACH UNROLL for (int32_t l_ = 0; l_ < 4; l_++)

LANE_FN vf vf_set1(float x)
{
    vf v;
    LANES_EACH v.q[l_] = vdupq_n_f32(x);
    return v;
}
LANE_FN vf vf_zero(void)
{
    return vf_set1(0.0f);
}
LANE_FN vf vf_load(const float *p)
{
    vf v;
    LANES_EACH v.q[l_] = vld1q_f32(p + 4 * l_);
    return v;
}
LANE_FN vf vf_load_n(const float *p, int32_t n)
{
    float part[16] = {0};
    memcpy(part, p, (size_t)n * sizeof *p);
    return vf_load(part);
}
LANE_FN void vf_store(float *p, vf v)
{
    LANES_EACH vst1q_f32(p + 4 * l_, v.q[l_]);
}
LANE_FN void vf_store_n(float *p, vf v, int32_t n)
{
    float part[16];
    vf_store(part, v);
    memcpy(p, part, (size_t)n * sizeof *p);
}
LANE_FN vf vf_load_bf16(const uint16_t *p)
{
    vf v;
    LANES_EACH v.q[l_] =
        vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * l_), 16));
    return v;
}
LANE_FN vf vf_load_bf16_n(const uint16_t *p, int32_t n)
{
    uint16_t part[16] = {0};
    memcpy(part, p, (size_t)n * sizeof *p);
    return vf_load_bf16(part);
}
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
    LANES_EACH v.q[l_] =
        vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * l_)));
    return v;
}
LANE_FN vf vf_load_f8(const uint8_t *p)
{
    const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(p));
    const uint16x8_t half[2] = {
        vreinterpretq_u16_s16(vshll_n_s8(vget_low_s8(bytes), 7)),
        vreinterpretq_u16_s16(vshll_n_s8(vget_high_s8(bytes), 7))};
    vf v;
    UNROLL for (int32_t i = 0; i < 2; i++)
    {
        const float16x8_t h =
            vreinterpretq_f16_u16(vandq_u16(half[i], vdupq_n_u16(0xbfff)));
        v.q[2 * i] = vcvt_f32_f16(vget_low_f16(h));
        v.q[2 * i + 1] = vcvt_f32_f16(vget_high_f16(h));
    }
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
    LANES_EACH a.q[l_] = vaddq_f32(a.q[l_], b.q[l_]);
    return a;
}
LANE_FN vf vf_sub(vf a, vf b)
{
    LANES_EACH a.q[l_] = vsubq_f32(a.q[l_], b.q[l_]);
    return a;
}
LANE_FN vf vf_mul(vf a, vf b)
{
    LANES_EACH a.q[l_] = vmulq_f32(a.q[l_], b.q[l_]);
    return a;
}
LANE_FN vf vf_div(vf a, vf b)
{
    LANES_EACH a.q[l_] = vdivq_f32(a.q[l_], b.q[l_]);
    return a;
}
LANE_FN vf vf_fma(vf a, vf b, vf c)
{
    LANES_EACH c.q[l_] = vfmaq_f32(c.q[l_], a.q[l_], b.q[l_]);
    return c;
}
LANE_FN float32x4_t vf_max4(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
LANE_FN vf vf_max(vf a, vf b)
{
    LANES_EACH a.q[l_] = vf_max4(a.q[l_], b.q[l_]);
    return a;
}
LANE_FN vf vf_neg(vf a)
{
    LANES_EACH a.q[l_] = vnegq_f32(a.q[l_]);
    return a;
}
LANE_FN vf vf_clamp(vf x, float low, float high)
{
    const float32x4_t lo = vdupq_n_f32(low), hi = vdupq_n_f32(high);
    LANES_EACH
    {
        const float32x4_t y = x.q[l_];
        x.q[l_] =
            vbslq_f32(vcgtq_f32(y, hi), hi, vbslq_f32(vcltq_f32(y, lo), lo, y));
    }
    return x;
}
LANE_FN vf vf_select_n(vf a, vf b, int32_t n)
{
    static const int32_t first[4] = {0, 1, 2, 3};
    const int32x4_t lane = vld1q_s32(first);
    LANES_EACH
    {
        const uint32x4_t below = vcltq_s32(lane, vdupq_n_s32(n - 4 * l_));
        a.q[l_] = vbslq_f32(below, a.q[l_], b.q[l_]);
    }
    return a;
}
LANE_FN bool vf_any_nan(vf a)
{
    uint32x4_t same = vceqq_f32(a.q[0], a.q[0]);
    for (int32_t i = 1; i < 4; i++)
        same = vandq_u32(same, vceqq_f32(a.q[i], a.q[i]));
    return vminvq_u32(same) == 0;
}
LANE_FN vf vf_scale(vf p, vf n)
{
    const int32x4_t bias = vdupq_n_s32(127);
    LANES_EACH
    {
        const int32x4_t whole = vcvtq_s32_f32(n.q[l_]);
        const int32x4_t half = vshrq_n_s32(whole, 1);
        const int32x4_t rest = vsubq_s32(whole, half);
        p.q[l_] = vmulq_f32(p.q[l_], vreinterpretq_f32_s32(vshlq_n_s32(
                                         vaddq_s32(half, bias), 23)));
        p.q[l_] = vmulq_f32(p.q[l_], vreinterpretq_f32_s32(vshlq_n_s32(
                                         vaddq_s32(rest, bias), 23)));
    }
    return p;
}
LANE_FN float32x4_t vf_sum4(vf v)
{
    return vaddq_f32(vaddq_f32(v.q[0], v.q[2]), vaddq_f32(v.q[1], v.q[3]));
}
LANE_FN float vf_sum(vf v)
{
    const float32x4_t v4 = vf_sum4(v);
    const float32x2_t v2 = vadd_f32(vget_low_f32(v4), vget_high_f32(v4));
    return vget_lane_f32(v2, 0) + vget_lane_f32(v2, 1);
}
LANE_FN void vf_sum16(const vf *v, float *out)
{
    for (int32_t a = 0; a < 4; a++) {
        const float32x4_t s0 = vf_sum4(v[a]), s1 = vf_sum4(v[4 + a]);
        const float32x4_t s2 = vf_sum4(v[8 + a]), s3 = vf_sum4(v[12 + a]);
        /* Lanes 0 + 2 and 1 + 3 of two vectors at a time. */
        const float32x4_t t0 =
            vaddq_f32(vcombine_f32(vget_low_f32(s0), vget_low_f32(s1)),
                      vcombine_f32(vget_high_f32(s0), vget_high_f32(s1)));
        const float32x4_t t1 =
            vaddq_f32(vcombine_f32(vget_low_f32(s2), vget_low_f32(s3)),
                      vcombine_f32(vget_high_f32(s2), vget_high_f32(s3)));
        vst1q_f32(out + 4 * a,
                  vaddq_f32(vuzp1q_f32(t0, t1), vuzp2q_f32(t0, t1)));
    }
}
LANE_FN float vf_hmax(vf v)
{
    float part[4];
    vst1q_f32(part, vf_max4(vf_max4(v.q[0], v.q[2]), vf_max4(v.q[1], v.q[3])));
    const float a = part[0] > part[2] ? part[0] : part[2];
    const float b = part[1] > part[3] ? part[1] : part[3];
    return a > b ? a : b;
}
LANE_FN uint32x4_t vf_bf16_bits4(float32x4_t v)
{
    const uint32x4_t bits = vreinterpretq_u32_f32(v);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t up = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    return vbslq_u32(vceqq_f32(v, v), up,
                     vorrq_u32(bits, vdupq_n_u32(0x400000)));
}
LANE_FN vf vf_round_bf16(vf v)
{
    LANES_EACH v.q[l_] = vreinterpretq_f32_u32(
        vandq_u32(vf_bf16_bits4(v.q[l_]), vdupq_n_u32(0xffff0000u)));
    return v;
}
LANE_FN void vf_store_bf16(uint16_t *p, vf v)
{
    LANES_EACH vst1_u16(p + 4 * l_, vshrn_n_u32(vf_bf16_bits4(v.q[l_]), 16));
}
LANE_FN void vf_load_even_odd(const float *p, vf *a, vf *b)
{
    LANES_EACH
    {
        const float32x4x2_t pair = vld2q_f32(p + 8 * l_);
        a->q[l_] = pair.val[0];
        b->q[l_] = pair.val[1];
    }
}
LANE_FN void vf_store_even_odd(float *p, vf a, vf b)
{
    LANES_EACH
    {
        const float32x4x2_t pair = {{a.q[l_], b.q[l_]}};
        vst2q_f32(p + 8 * l_, pair);
    }
}

#endif
