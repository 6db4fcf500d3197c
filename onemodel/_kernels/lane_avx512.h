/* Lanes of AVX-512 (x86-64-v4): sixteen floats, eight doubles. Owns the lane primitives of this instruction set and nothing else; what
 * each name means is written in lane_scalar.h, what is built from them in lane_math.h. */
#ifndef OM_LANE_H
#define OM_LANE_H
#if !defined(__AVX512F__) || !defined(__AVX512DQ__) || !defined(__AVX512BW__) || !defined(__AVX512VL__) || !defined(__FMA__)
#error "lane_avx512.h: compile with -march=x86-64-v4"
#endif
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

enum { LANES = 16, VD_LANES = 8, HAS_FMA = 1 };
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;
typedef __m512d vd;

static inline vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
static inline vf vf_load_tail(const float *p, ptrdiff_t n) { return _mm512_maskz_loadu_ps((vm)((1u << n) - 1), p); }
static inline void vf_store_tail(float *p, vf v, ptrdiff_t n) { _mm512_mask_storeu_ps(p, (vm)((1u << n) - 1), v); }
static inline vf vf_set(float c) { return _mm512_set1_ps(c); }

static inline vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf vf_sqrt(vf a) { return _mm512_sqrt_ps(a); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf vf_madd(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
#define vf_scale(a, k) _mm512_scalef_ps(a, k)

static inline vm vf_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
static inline vm vf_le(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
static inline vm vf_nle(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ); }
static inline vm vf_unord(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q); }
static inline vf vf_select(vm m, vf a, vf b) { return _mm512_mask_blend_ps(m, b, a); }
static inline vm vm_and(vm a, vm b) { return (vm)(a & b); }
static inline vm vm_or(vm a, vm b) { return (vm)(a | b); }
static inline int vm_any(vm m) { return m != 0; }

static inline vi vi_bits(vf a) { return _mm512_castps_si512(a); }
static inline vf vf_bits(vi a) { return _mm512_castsi512_ps(a); }
static inline vi vi_set(int32_t c) { return _mm512_set1_epi32(c); }
static inline vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
static inline vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
static inline vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
#define vi_shl(a, k) _mm512_slli_epi32(a, k)
#define vi_shr(a, k) _mm512_srli_epi32(a, k)
static inline vi vi_max(vi a, vi b) { return _mm512_max_epi32(a, b); }
static inline vi vi_min(vi a, vi b) { return _mm512_min_epi32(a, b); }
static inline vi vi_round(vf a) { return _mm512_cvtps_epi32(a); }
static inline vf vf_from_vi(vi a) { return _mm512_cvtepi32_ps(a); }
static inline vm vi_eq(vi a, vi b) { return _mm512_cmpeq_epi32_mask(a, b); }
static inline vf vf_even(vf a, vf b) {
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), b);
}
static inline vf vf_odd(vf a, vf b) {
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31), b);
}
static inline vf vf_zip_lo(vf a, vf b) {
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23), b);
}
static inline vf vf_zip_hi(vf a, vf b) {
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31), b);
}
static inline vf vf_quads(const float *a, const float *b) {
    vf v = _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(a)), _mm256_loadu_ps(b), 1);
    return _mm512_shuffle_f32x4(v, v, 0xD8);
}
static inline vf vf_quad_lo(vf a, vf b) { return _mm512_unpacklo_ps(a, b); }
static inline vf vf_quad_hi(vf a, vf b) { return _mm512_unpackhi_ps(a, b); }
static inline vf vf_lookup(const float *table, vi i) { return _mm512_permutexvar_ps(i, _mm512_loadu_ps(table)); }

static inline vd vd_lo(vf a) { return _mm512_cvtps_pd(_mm512_castps512_ps256(a)); }
static inline vd vd_hi(vf a) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1)); }
static inline vf vf_from_vd(vd lo, vd hi) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(lo)), _mm512_cvtpd_ps(hi), 1);
}
static inline vd vd_set(double c) { return _mm512_set1_pd(c); }
static inline vd vd_load(const double *p) { return _mm512_loadu_pd(p); }
static inline vd vd_widen(const float *p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
static inline void vd_store(double *p, vd v) { _mm512_storeu_pd(p, v); }
static inline float vf_largest(vf a) { return _mm512_reduce_max_ps(a); }
static inline double vd_total(vd a) { return _mm512_reduce_add_pd(a); }
static inline vd vd_add(vd a, vd b) { return _mm512_add_pd(a, b); }
static inline vd vd_sub(vd a, vd b) { return _mm512_sub_pd(a, b); }
static inline vd vd_mul(vd a, vd b) { return _mm512_mul_pd(a, b); }
static inline vd vd_div(vd a, vd b) { return _mm512_div_pd(a, b); }
static inline vd vd_max(vd a, vd b) { return _mm512_max_pd(a, b); }
static inline vd vd_and(vd a, vd b) { return _mm512_and_pd(a, b); }
static inline vd vd_xor(vd a, vd b) { return _mm512_xor_pd(a, b); }
#define vd_shl(a, k) _mm512_castsi512_pd(_mm512_slli_epi64(_mm512_castpd_si512(a), k))
#define vd_shr(a, k) _mm512_castsi512_pd(_mm512_srli_epi64(_mm512_castpd_si512(a), k))
static inline vd vd_iadd(vd a, vd b) { return _mm512_castsi512_pd(_mm512_add_epi64(_mm512_castpd_si512(a), _mm512_castpd_si512(b))); }
#endif
