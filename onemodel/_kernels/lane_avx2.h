/* Lanes of AVX2 with FMA (x86-64-v3): eight floats, four doubles. Owns the lane primitives of this instruction set and nothing else; what
 * each name means is written in lane_scalar.h, what is built from them in lane_math.h. */
#ifndef OM_LANE_H
#define OM_LANE_H
#if !defined(__AVX2__) || !defined(__FMA__)
#error "lane_avx2.h: compile with -march=x86-64-v3"
#endif
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

enum { LANES = 8, VD_LANES = 4, HAS_FMA = 1 };
typedef __m256 vf;
typedef __m256i vi;
typedef __m256 vm; /* all bits of a lane set or clear */
typedef __m256d vd;

static inline __m256i tail_mask(ptrdiff_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void vf_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
static inline vf vf_load_tail(const float *p, ptrdiff_t n) { return _mm256_maskload_ps(p, tail_mask(n)); }
static inline void vf_store_tail(float *p, vf v, ptrdiff_t n) { _mm256_maskstore_ps(p, tail_mask(n), v); }
static inline vf vf_set(float c) { return _mm256_set1_ps(c); }

static inline vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf vf_sqrt(vf a) { return _mm256_sqrt_ps(a); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf vf_madd(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }

static inline vm vf_lt(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
static inline vm vf_le(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
static inline vm vf_nle(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_NLE_UQ); }
static inline vm vf_unord(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_UNORD_Q); }
static inline vf vf_select(vm m, vf a, vf b) { return _mm256_blendv_ps(b, a, m); }
static inline vm vm_and(vm a, vm b) { return _mm256_and_ps(a, b); }
static inline vm vm_or(vm a, vm b) { return _mm256_or_ps(a, b); }
static inline int vm_any(vm m) { return _mm256_movemask_ps(m) != 0; }

static inline vi vi_bits(vf a) { return _mm256_castps_si256(a); }
static inline vf vf_bits(vi a) { return _mm256_castsi256_ps(a); }
static inline vi vi_set(int32_t c) { return _mm256_set1_epi32(c); }
static inline vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
static inline vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
static inline vi vi_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
#define vi_shl(a, k) _mm256_slli_epi32(a, k)
#define vi_shr(a, k) _mm256_srli_epi32(a, k)
static inline vi vi_max(vi a, vi b) { return _mm256_max_epi32(a, b); }
static inline vi vi_min(vi a, vi b) { return _mm256_min_epi32(a, b); }
static inline vi vi_round(vf a) { return _mm256_cvtps_epi32(a); }
static inline vf vf_from_vi(vi a) { return _mm256_cvtepi32_ps(a); }
static inline vm vi_eq(vi a, vi b) { return _mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b)); }
/* Shuffles work within 128 bits; the pairs they leave in the order 0 2 1 3 are put right by a second one. */
static inline vf pairs_0213(vf a) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(a), 0xD8)); }
static inline vf vf_even(vf a, vf b) { return pairs_0213(_mm256_shuffle_ps(a, b, 0x88)); }
static inline vf vf_odd(vf a, vf b) { return pairs_0213(_mm256_shuffle_ps(a, b, 0xDD)); }
static inline vf vf_zip_lo(vf a, vf b) { return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x20); }
static inline vf vf_zip_hi(vf a, vf b) { return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x31); }
static inline vf vf_quads(const float *a, const float *b) { return (void)b, vf_load(a); }
static inline vf vf_quad_lo(vf a, vf b) { return _mm256_unpacklo_ps(a, b); }
static inline vf vf_quad_hi(vf a, vf b) { return _mm256_unpackhi_ps(a, b); }
static inline vf vf_lookup(const float *table, vi i) {
    vf low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), i), high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), i);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(i, 28)));
}

static inline vd vd_lo(vf a) { return _mm256_cvtps_pd(_mm256_castps256_ps128(a)); }
static inline vd vd_hi(vf a) { return _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)); }
static inline vf vf_from_vd(vd lo, vd hi) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(lo)), _mm256_cvtpd_ps(hi), 1);
}
static inline vd vd_set(double c) { return _mm256_set1_pd(c); }
static inline vd vd_load(const double *p) { return _mm256_loadu_pd(p); }
static inline vd vd_widen(const float *p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
static inline void vd_store(double *p, vd v) { _mm256_storeu_pd(p, v); }
static inline float vf_largest(vf a) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
static inline double vd_total(vd a) {
    __m128d s = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(s, _mm_unpackhi_pd(s, s)));
}
static inline vd vd_add(vd a, vd b) { return _mm256_add_pd(a, b); }
static inline vd vd_sub(vd a, vd b) { return _mm256_sub_pd(a, b); }
static inline vd vd_mul(vd a, vd b) { return _mm256_mul_pd(a, b); }
static inline vd vd_div(vd a, vd b) { return _mm256_div_pd(a, b); }
static inline vd vd_max(vd a, vd b) { return _mm256_max_pd(a, b); }
static inline vd vd_and(vd a, vd b) { return _mm256_and_pd(a, b); }
static inline vd vd_xor(vd a, vd b) { return _mm256_xor_pd(a, b); }
#define vd_shl(a, k) _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(a), k))
#define vd_shr(a, k) _mm256_castsi256_pd(_mm256_srli_epi64(_mm256_castpd_si256(a), k))
static inline vd vd_iadd(vd a, vd b) { return _mm256_castsi256_pd(_mm256_add_epi64(_mm256_castpd_si256(a), _mm256_castpd_si256(b))); }
#endif
