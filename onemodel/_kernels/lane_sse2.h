/* Lanes of SSE2 (any x86-64): four floats, two doubles; the fused step is computed in double. Owns the lane primitives of this
 * instruction set and nothing else; what each name means is written in lane_scalar.h, what is built from them in lane_math.h. */
#ifndef OM_LANE_H
#define OM_LANE_H
#if !defined(__SSE2__)
#error "lane_sse2.h: compile for x86-64"
#endif
#include <emmintrin.h>
#include <stddef.h>
#include <stdint.h>

enum { LANES = 4, VD_LANES = 2, HAS_FMA = 0 };
typedef __m128 vf;
typedef __m128i vi;
typedef __m128 vm; /* all bits of a lane set or clear */
typedef __m128d vd;

static inline vf vf_load(const float *p) { return _mm_loadu_ps(p); }
static inline void vf_store(float *p, vf v) { _mm_storeu_ps(p, v); }
static inline vf vf_load_tail(const float *p, ptrdiff_t n) {
    return _mm_setr_ps(p[0], n > 1 ? p[1] : 0.0f, n > 2 ? p[2] : 0.0f, 0.0f);
}
static inline void vf_store_tail(float *p, vf v, ptrdiff_t n) {
    float lane[4];
    _mm_storeu_ps(lane, v);
    p[0] = lane[0];
    if (n > 1) p[1] = lane[1];
    if (n > 2) p[2] = lane[2];
}
static inline vf vf_set(float c) { return _mm_set1_ps(c); }

static inline vf vf_add(vf a, vf b) { return _mm_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm_div_ps(a, b); }
static inline vf vf_sqrt(vf a) { return _mm_sqrt_ps(a); }
static inline vf vf_madd(vf a, vf b, vf c) { return _mm_add_ps(_mm_mul_ps(a, b), c); }
static inline vf vf_max(vf a, vf b) { return _mm_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm_min_ps(a, b); }

static inline vm vf_lt(vf a, vf b) { return _mm_cmplt_ps(a, b); }
static inline vm vf_le(vf a, vf b) { return _mm_cmple_ps(a, b); }
static inline vm vf_nle(vf a, vf b) { return _mm_cmpnle_ps(a, b); }
static inline vm vf_unord(vf a, vf b) { return _mm_cmpunord_ps(a, b); }
static inline vf vf_select(vm m, vf a, vf b) { return _mm_or_ps(_mm_and_ps(m, a), _mm_andnot_ps(m, b)); }
static inline vm vm_and(vm a, vm b) { return _mm_and_ps(a, b); }
static inline vm vm_or(vm a, vm b) { return _mm_or_ps(a, b); }
static inline int vm_any(vm m) { return _mm_movemask_ps(m) != 0; }

static inline vi vi_bits(vf a) { return _mm_castps_si128(a); }
static inline vf vf_bits(vi a) { return _mm_castsi128_ps(a); }
static inline vi vi_set(int32_t c) { return _mm_set1_epi32(c); }
static inline vi vi_add(vi a, vi b) { return _mm_add_epi32(a, b); }
static inline vi vi_and(vi a, vi b) { return _mm_and_si128(a, b); }
static inline vi vi_xor(vi a, vi b) { return _mm_xor_si128(a, b); }
#define vi_shl(a, k) _mm_slli_epi32(a, k)
#define vi_shr(a, k) _mm_srli_epi32(a, k)
static inline vi vi_max(vi a, vi b) {
    __m128i m = _mm_cmpgt_epi32(a, b);
    return _mm_or_si128(_mm_and_si128(m, a), _mm_andnot_si128(m, b));
}
static inline vi vi_min(vi a, vi b) {
    __m128i m = _mm_cmpgt_epi32(b, a);
    return _mm_or_si128(_mm_and_si128(m, a), _mm_andnot_si128(m, b));
}
static inline vi vi_round(vf a) { return _mm_cvtps_epi32(a); }
static inline vf vf_from_vi(vi a) { return _mm_cvtepi32_ps(a); }
static inline vm vi_eq(vi a, vi b) { return _mm_castsi128_ps(_mm_cmpeq_epi32(a, b)); }
static inline vf vf_even(vf a, vf b) { return _mm_shuffle_ps(a, b, 0x88); }
static inline vf vf_odd(vf a, vf b) { return _mm_shuffle_ps(a, b, 0xDD); }
static inline vf vf_zip_lo(vf a, vf b) { return _mm_unpacklo_ps(a, b); }
static inline vf vf_zip_hi(vf a, vf b) { return _mm_unpackhi_ps(a, b); }
static inline vf vf_quads(const float *a, const float *b) { return (void)b, vf_load(a); }
static inline vf vf_quad_lo(vf a, vf b) { return vf_zip_lo(a, b); }
static inline vf vf_quad_hi(vf a, vf b) { return vf_zip_hi(a, b); }
static inline vf vf_lookup(const float *table, vi i) {
    int32_t at[4];
    _mm_storeu_si128((__m128i *)at, _mm_and_si128(i, _mm_set1_epi32(15)));
    return _mm_setr_ps(table[at[0]], table[at[1]], table[at[2]], table[at[3]]);
}

static inline vd vd_lo(vf a) { return _mm_cvtps_pd(a); }
static inline vd vd_hi(vf a) { return _mm_cvtps_pd(_mm_movehl_ps(a, a)); }
static inline vf vf_from_vd(vd lo, vd hi) { return _mm_movelh_ps(_mm_cvtpd_ps(lo), _mm_cvtpd_ps(hi)); }
static inline vd vd_set(double c) { return _mm_set1_pd(c); }
static inline vd vd_load(const double *p) { return _mm_loadu_pd(p); }
static inline vd vd_widen(const float *p) { return _mm_cvtps_pd(_mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)p))); }
static inline void vd_store(double *p, vd v) { _mm_storeu_pd(p, v); }
static inline float vf_largest(vf a) {
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps(a, a, 1)));
}
static inline double vd_total(vd a) { return _mm_cvtsd_f64(_mm_add_sd(a, _mm_unpackhi_pd(a, a))); }
static inline vd vd_add(vd a, vd b) { return _mm_add_pd(a, b); }
static inline vd vd_sub(vd a, vd b) { return _mm_sub_pd(a, b); }
static inline vd vd_mul(vd a, vd b) { return _mm_mul_pd(a, b); }
static inline vd vd_div(vd a, vd b) { return _mm_div_pd(a, b); }
static inline vd vd_max(vd a, vd b) { return _mm_max_pd(a, b); }
static inline vd vd_and(vd a, vd b) { return _mm_and_pd(a, b); }
static inline vd vd_xor(vd a, vd b) { return _mm_xor_pd(a, b); }
#define vd_shl(a, k) _mm_castsi128_pd(_mm_slli_epi64(_mm_castpd_si128(a), k))
#define vd_shr(a, k) _mm_castsi128_pd(_mm_srli_epi64(_mm_castpd_si128(a), k))
static inline vd vd_iadd(vd a, vd b) { return _mm_castsi128_pd(_mm_add_epi64(_mm_castpd_si128(a), _mm_castpd_si128(b))); }

/* a·b + c rounded to odd in double, from which one rounding to float is the fused result: the product of two floats is exact in
 * double, TwoSum gives the exact error e of the sum s, and where e is not zero and s is even, the odd neighbour is the one towards e.
 * An infinite or NaN s has a NaN e and stays. Nothing can overflow or underflow: the operands are floats. */
static inline vd fused_to_odd(vd a, vd b, vd c) {
    vd p = _mm_mul_pd(a, b), s = _mm_add_pd(p, c), t = _mm_sub_pd(s, p);
    vd e = _mm_add_pd(_mm_sub_pd(p, _mm_sub_pd(s, t)), _mm_sub_pd(c, t));
    vd inexact = _mm_or_pd(_mm_cmplt_pd(e, _mm_setzero_pd()), _mm_cmpgt_pd(e, _mm_setzero_pd()));
    __m128i one = _mm_set1_epi64x(1), bits = _mm_castpd_si128(s);
    __m128i away = _mm_srli_epi64(_mm_castpd_si128(_mm_xor_pd(s, e)), 63);                /* 1 where e points towards zero */
    __m128i step = _mm_sub_epi64(one, _mm_slli_epi64(away, 1));                            /* +1 or -1 in units of the last place */
    __m128i even = _mm_sub_epi64(_mm_and_si128(bits, one), one);                           /* all ones where s is even */
    step = _mm_and_si128(_mm_and_si128(step, even), _mm_castpd_si128(inexact));
    return _mm_castsi128_pd(_mm_add_epi64(bits, step));
}
static inline vf vf_fma(vf a, vf b, vf c) {
    return vf_from_vd(fused_to_odd(vd_lo(a), vd_lo(b), vd_lo(c)), fused_to_odd(vd_hi(a), vd_hi(b), vd_hi(c)));
}
#endif
