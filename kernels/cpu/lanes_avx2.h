/* lanes_avx2.h - 16 lanes in two registers. Needs AVX2, FMA, F16C.
 * What the names mean: lanes_scalar.h. */
#ifndef WEFT_KERNELS_CPU_LANES_H
#define WEFT_KERNELS_CPU_LANES_H

#include <immintrin.h>

#include "kernels/cpu/lanes_common.h"

#define LANES_NAME "avx2"
/* 6 x 1 accumulators are 12 of 16 registers. */
#define GEMM_TILE_ROWS     6
#define GEMM_FEW_TILE_ROWS 6
#define GEMM_NV(rows)      ((rows) == 1 ? 4 : (rows) <= 3 ? 2 : 1)
#define DOT_HEADS          2
#define DOT_KEYS           2
#define MIX_NV             1

typedef struct vf {
    __m256 a, b; /* lanes 0 to 7, 8 to 15 */
} vf;

#define VF(x, y)                                                               \
    (vf)                                                                       \
    {                                                                          \
        (x), (y)                                                               \
    }

LANE_FN vf vf_set1(float x)
{
    return VF(_mm256_set1_ps(x), _mm256_set1_ps(x));
}
LANE_FN vf vf_zero(void)
{
    return VF(_mm256_setzero_ps(), _mm256_setzero_ps());
}
LANE_FN vf vf_load(const float *p)
{
    return VF(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}
LANE_FN __m256i vf_mask8(int32_t n, int32_t first)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n - first),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
LANE_FN vf vf_load_n(const float *p, int32_t n)
{
    vf v = vf_zero();
    v.a = _mm256_maskload_ps(p, vf_mask8(n, 0));
    if (n > 8) v.b = _mm256_maskload_ps(p + 8, vf_mask8(n, 8));
    return v;
}
LANE_FN void vf_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}
LANE_FN void vf_store_n(float *p, vf v, int32_t n)
{
    _mm256_maskstore_ps(p, vf_mask8(n, 0), v.a);
    if (n > 8) _mm256_maskstore_ps(p + 8, vf_mask8(n, 8), v.b);
}
LANE_FN __m256 vf_of_bf16(__m128i bits)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
LANE_FN vf vf_load_bf16(const uint16_t *p)
{
    return VF(
        vf_of_bf16(_mm_loadu_si128((const __m128i *)(const void *)p)),
        vf_of_bf16(_mm_loadu_si128((const __m128i *)(const void *)(p + 8))));
}
LANE_FN vf vf_load_bf16_n(const uint16_t *p, int32_t n)
{
    uint16_t part[16] = {0};
    memcpy(part, p, (size_t)n * sizeof *p);
    return vf_load_bf16(part);
}
LANE_FN vf vf_split_bf16(const uint16_t *p)
{
    const __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return VF(_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)),
              _mm256_castsi256_ps(
                  _mm256_and_si256(bits, _mm256_set1_epi32((int)0xffff0000u))));
}
LANE_FN void vf_load_pair_bf16(const uint16_t *p, vf *a, vf *b)
{
    *a = vf_split_bf16(p);
    *b = vf_split_bf16(p + 16);
}
LANE_FN vf vf_interleave(vf v)
{
    const __m256 low = _mm256_unpacklo_ps(v.a, v.b);
    const __m256 high = _mm256_unpackhi_ps(v.a, v.b);
    return VF(_mm256_permute2f128_ps(low, high, 0x20),
              _mm256_permute2f128_ps(low, high, 0x31));
}
LANE_FN void vf_unpair_bf16(vf *a, vf *b)
{
    *a = vf_interleave(*a);
    *b = vf_interleave(*b);
}
LANE_FN vf vf_load_f16(const uint16_t *p)
{
    return VF(
        _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)),
        _mm256_cvtph_ps(
            _mm_loadu_si128((const __m128i *)(const void *)(p + 8))));
}
LANE_FN vf vf_load_f8(const uint8_t *p)
{
    const __m256i wide =
        _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
    const __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, 7),
                                          _mm256_set1_epi16((short)0xbfff));
    return VF(_mm256_cvtph_ps(_mm256_castsi256_si128(half)),
              _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)));
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
LANE_FN vf vf_add(vf x, vf y)
{
    return VF(_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b));
}
LANE_FN vf vf_sub(vf x, vf y)
{
    return VF(_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b));
}
LANE_FN vf vf_mul(vf x, vf y)
{
    return VF(_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b));
}
LANE_FN vf vf_div(vf x, vf y)
{
    return VF(_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b));
}
LANE_FN vf vf_fma(vf x, vf y, vf z)
{
    return VF(_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b));
}
LANE_FN vf vf_max(vf x, vf y)
{
    return VF(_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b));
}
LANE_FN vf vf_neg(vf x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return VF(_mm256_xor_ps(x.a, sign), _mm256_xor_ps(x.b, sign));
}
LANE_FN __m256 vf_clamp8(__m256 x, __m256 low, __m256 high)
{
    const __m256 y =
        _mm256_blendv_ps(x, low, _mm256_cmp_ps(x, low, _CMP_LT_OQ));
    return _mm256_blendv_ps(y, high, _mm256_cmp_ps(x, high, _CMP_GT_OQ));
}
LANE_FN vf vf_clamp(vf x, float low, float high)
{
    const __m256 lo = _mm256_set1_ps(low), hi = _mm256_set1_ps(high);
    return VF(vf_clamp8(x.a, lo, hi), vf_clamp8(x.b, lo, hi));
}
LANE_FN vf vf_select_n(vf x, vf y, int32_t n)
{
    return VF(_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(vf_mask8(n, 0))),
              _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(vf_mask8(n, 8))));
}
LANE_FN bool vf_any_nan(vf x)
{
    return _mm256_movemask_ps(
               _mm256_or_ps(_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q),
                            _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q))) != 0;
}
LANE_FN __m256 vf_scale8(__m256 p, __m256 n)
{
    const __m256i whole = _mm256_cvtps_epi32(n), bias = _mm256_set1_epi32(127);
    const __m256i half = _mm256_srai_epi32(whole, 1);
    const __m256i rest = _mm256_sub_epi32(whole, half);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(
                             _mm256_add_epi32(half, bias), 23)));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(
                                _mm256_add_epi32(rest, bias), 23)));
}
LANE_FN vf vf_scale(vf p, vf n)
{
    return VF(vf_scale8(p.a, n.a), vf_scale8(p.b, n.b));
}
LANE_FN float vf_sum(vf v)
{
    const __m256 v8 = _mm256_add_ps(v.a, v.b);
    __m128 v4 =
        _mm_add_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1));
    v4 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));
    return _mm_cvtss_f32(_mm_add_ss(v4, _mm_shuffle_ps(v4, v4, 1)));
}
/* Sums of v[first + 4 b + c], b = 0 to 3, c = 0, 1: eight of the sixteen. */
LANE_FN __m256 vf_sum8(const vf *v)
{
    __m256 s8[8], s4[4], s2[2];
    UNROLL for (int i = 0; i < 8; i++)
    {
        const vf *const x = &v[4 * (i >> 1) + (i & 1)];
        s8[i] = _mm256_add_ps(x->a, x->b);
    }
    UNROLL for (int64_t i = 0; i < 4; i++) s4[i] =
        _mm256_add_ps(_mm256_permute2f128_ps(s8[2 * i], s8[2 * i + 1], 0x20),
                      _mm256_permute2f128_ps(s8[2 * i], s8[2 * i + 1], 0x31));
    UNROLL for (int64_t i = 0; i < 2; i++) s2[i] =
        _mm256_add_ps(_mm256_shuffle_ps(s4[2 * i], s4[2 * i + 1], 0x44),
                      _mm256_shuffle_ps(s4[2 * i], s4[2 * i + 1], 0xee));
    return _mm256_add_ps(_mm256_shuffle_ps(s2[0], s2[1], 0x88),
                         _mm256_shuffle_ps(s2[0], s2[1], 0xdd));
}
LANE_FN void vf_sum16(const vf *v, float *out)
{
    _mm256_storeu_ps(out, vf_sum8(v));
    _mm256_storeu_ps(out + 8, vf_sum8(v + 2));
}
LANE_FN float vf_hmax(vf v)
{
    const __m256 v8 = _mm256_max_ps(v.a, v.b);
    __m128 v4 =
        _mm_max_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1));
    v4 = _mm_max_ps(v4, _mm_movehl_ps(v4, v4));
    return _mm_cvtss_f32(_mm_max_ss(v4, _mm_shuffle_ps(v4, v4, 1)));
}
LANE_FN __m256i vf_bf16_bits8(__m256 v)
{
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd =
        _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(
        bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    return _mm256_blendv_epi8(
        up, quiet, _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
}
LANE_FN vf vf_round_bf16(vf v)
{
    const __m256i keep = _mm256_set1_epi32((int)0xffff0000u);
    return VF(_mm256_castsi256_ps(_mm256_and_si256(vf_bf16_bits8(v.a), keep)),
              _mm256_castsi256_ps(_mm256_and_si256(vf_bf16_bits8(v.b), keep)));
}
LANE_FN void vf_store_bf16(uint16_t *p, vf v)
{
    const __m256i words =
        _mm256_packus_epi32(_mm256_srli_epi32(vf_bf16_bits8(v.a), 16),
                            _mm256_srli_epi32(vf_bf16_bits8(v.b), 16));
    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm256_permute4x64_epi64(words, 0xd8));
}
LANE_FN __m256 vf_fix_quarters(__m256 v)
{
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8));
}
LANE_FN void vf_load_even_odd(const float *p, vf *a, vf *b)
{
    const __m256 p0 = _mm256_loadu_ps(p), p1 = _mm256_loadu_ps(p + 8);
    const __m256 p2 = _mm256_loadu_ps(p + 16), p3 = _mm256_loadu_ps(p + 24);
    *a = VF(vf_fix_quarters(_mm256_shuffle_ps(p0, p1, 0x88)),
            vf_fix_quarters(_mm256_shuffle_ps(p2, p3, 0x88)));
    *b = VF(vf_fix_quarters(_mm256_shuffle_ps(p0, p1, 0xdd)),
            vf_fix_quarters(_mm256_shuffle_ps(p2, p3, 0xdd)));
}
LANE_FN void vf_store_even_odd(float *p, vf a, vf b)
{
    vf_store(p, vf_interleave(VF(a.a, b.a)));
    vf_store(p + 16, vf_interleave(VF(a.b, b.b)));
}

#endif
