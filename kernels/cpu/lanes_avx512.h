/* lanes_avx512.h - 16 lanes in one register. Needs F, BW, DQ, VL.
 * What the names mean: lanes_scalar.h. */
#ifndef WEFT_KERNELS_CPU_LANES_H
#define WEFT_KERNELS_CPU_LANES_H

#include <immintrin.h>

#include "kernels/cpu/lanes_common.h"

#define LANES_NAME "avx512"
/* 6 x 4 accumulators, 4 weights and an input: 29 of 32 registers. */
#define GEMM_TILE_ROWS     6
#define GEMM_FEW_TILE_ROWS 8
#define GEMM_NV(rows)      ((rows) <= 6 ? 4 : 2)
#define DOT_HEADS          4
#define DOT_KEYS           4
#define MIX_NV             4

typedef __m512 vf;

LANE_FN __mmask16 vf_mask(int32_t n)
{
    return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1u);
}
LANE_FN vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}
LANE_FN vf vf_zero(void)
{
    return _mm512_setzero_ps();
}
LANE_FN vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
LANE_FN vf vf_load_n(const float *p, int32_t n)
{
    return _mm512_maskz_loadu_ps(vf_mask(n), p);
}
LANE_FN void vf_store(float *p, vf v)
{
    _mm512_storeu_ps(p, v);
}
LANE_FN void vf_store_n(float *p, vf v, int32_t n)
{
    _mm512_mask_storeu_ps(p, vf_mask(n), v);
}
LANE_FN vf vf_of_bf16(__m256i bits)
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
LANE_FN vf vf_load_bf16(const uint16_t *p)
{
    return vf_of_bf16(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
LANE_FN vf vf_load_bf16_n(const uint16_t *p, int32_t n)
{
    return vf_of_bf16(_mm256_maskz_loadu_epi16(vf_mask(n), p));
}
LANE_FN void vf_load_pair_bf16(const uint16_t *p, vf *a, vf *b)
{
    const __m512i bits = _mm512_loadu_si512(p);
    *a = _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
    *b = _mm512_castsi512_ps(
        _mm512_and_si512(bits, _mm512_set1_epi32((int)0xffff0000u)));
}
LANE_FN void vf_unpair_bf16(vf *a, vf *b)
{
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5,
                                          21, 6, 22, 7, 23);
    const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28,
                                           13, 29, 14, 30, 15, 31);
    const vf even = *a, odd = *b;
    *a = _mm512_permutex2var_ps(even, low, odd);
    *b = _mm512_permutex2var_ps(even, high, odd);
}
LANE_FN vf vf_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(
        _mm256_loadu_si256((const __m256i *)(const void *)p));
}
LANE_FN vf vf_load_f8(const uint8_t *p)
{
    const __m256i wide =
        _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(wide, 7),
                                            _mm256_set1_epi16((short)0xbfff)));
}
/* Bytes 0, 2, 4 ... to a, 1, 3, 5 ... to b. Shifting a byte from the upper half
 * of a word one down leaves its sign twice; the lower copy is cleared. */
LANE_FN void vf_load_pair_f8(const uint8_t *p, vf *a, vf *b)
{
    const __m256i odd = _mm256_loadu_si256((const __m256i *)(const void *)p);
    const __m256i even = _mm256_slli_epi16(odd, 8);
    const __m256i keep = _mm256_set1_epi16((short)0xbf80);
    *a = _mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16(even, 1), keep));
    *b = _mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16(odd, 1), keep));
}
LANE_FN void vf_unpair_f8(vf *a, vf *b)
{
    vf_unpair_bf16(a, b);
}
LANE_FN vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
LANE_FN vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
LANE_FN vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
LANE_FN vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
LANE_FN vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
LANE_FN vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
LANE_FN vf vf_neg(vf a)
{
    return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f));
}
LANE_FN vf vf_clamp(vf x, float low, float high)
{
    const vf lo = _mm512_set1_ps(low), hi = _mm512_set1_ps(high);
    const vf y =
        _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, lo, _CMP_LT_OQ), lo);
    return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, hi, _CMP_GT_OQ), hi);
}
LANE_FN vf vf_select_n(vf a, vf b, int32_t n)
{
    return _mm512_mask_mov_ps(b, vf_mask(n), a);
}
LANE_FN bool vf_any_nan(vf a)
{
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) != 0;
}
LANE_FN vf vf_scale(vf p, vf n)
{
    return _mm512_scalef_ps(p, n);
}
LANE_FN float vf_sum128(__m128 v)
{
    v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps(v, v, 1)));
}
LANE_FN float vf_sum(vf v)
{
    const __m256 v8 =
        _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    return vf_sum128(
        _mm_add_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1)));
}
LANE_FN void vf_sum16(const vf *v, float *out)
{
    vf s8[8], s4[4], s2[2];
    UNROLL for (int64_t i = 0; i < 8; i++) s8[i] =
        _mm512_add_ps(_mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0x44),
                      _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0xee));
    UNROLL for (int64_t i = 0; i < 4; i++) s4[i] =
        _mm512_add_ps(_mm512_shuffle_f32x4(s8[2 * i], s8[2 * i + 1], 0x88),
                      _mm512_shuffle_f32x4(s8[2 * i], s8[2 * i + 1], 0xdd));
    UNROLL for (int64_t i = 0; i < 2; i++) s2[i] =
        _mm512_add_ps(_mm512_shuffle_ps(s4[2 * i], s4[2 * i + 1], 0x44),
                      _mm512_shuffle_ps(s4[2 * i], s4[2 * i + 1], 0xee));
    _mm512_storeu_ps(out, _mm512_add_ps(_mm512_shuffle_ps(s2[0], s2[1], 0x88),
                                        _mm512_shuffle_ps(s2[0], s2[1], 0xdd)));
}
LANE_FN float vf_hmax(vf v)
{
    const __m256 v8 =
        _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 v4 =
        _mm_max_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1));
    v4 = _mm_max_ps(v4, _mm_movehl_ps(v4, v4));
    return _mm_cvtss_f32(_mm_max_ss(v4, _mm_shuffle_ps(v4, v4, 1)));
}
/* bf16 in the upper half of each lane; the lower half is whatever. */
LANE_FN __m512i vf_bf16_bits(vf v)
{
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd =
        _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(
        bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_mask_or_epi32(up, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q),
                                bits, _mm512_set1_epi32(0x400000));
}
LANE_FN vf vf_round_bf16(vf v)
{
    return _mm512_castsi512_ps(
        _mm512_and_si512(vf_bf16_bits(v), _mm512_set1_epi32((int)0xffff0000u)));
}
LANE_FN void vf_store_bf16(uint16_t *p, vf v)
{
    _mm256_storeu_si256(
        (__m256i *)(void *)p,
        _mm512_cvtepi32_epi16(_mm512_srli_epi32(vf_bf16_bits(v), 16)));
}
LANE_FN void vf_load_even_odd(const float *p, vf *a, vf *b)
{
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18,
                                           20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
    const vf low = _mm512_loadu_ps(p), high = _mm512_loadu_ps(p + 16);
    *a = _mm512_permutex2var_ps(low, even, high);
    *b = _mm512_permutex2var_ps(low, odd, high);
}
LANE_FN void vf_store_even_odd(float *p, vf a, vf b)
{
    vf_unpair_bf16(&a, &b);
    _mm512_storeu_ps(p, a);
    _mm512_storeu_ps(p + 16, b);
}

#endif
