/* Lanes of Advanced SIMD (aarch64): four floats, two doubles. Owns the lane primitives of this instruction set and nothing else; what
 * each name means is written in lane_scalar.h, what is built from them in lane_math.h. */
#ifndef OM_LANE_H
#define OM_LANE_H
#if !defined(__aarch64__) || !defined(__ARM_NEON)
#error "lane_neon.h: compile for aarch64 with Advanced SIMD"
#endif
#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

enum { LANES = 4, VD_LANES = 2, HAS_FMA = 1 };
typedef float32x4_t vf;
typedef int32x4_t vi;
typedef uint32x4_t vm; /* all bits of a lane set or clear */
typedef float64x2_t vd;

static inline vf vf_load(const float *p) { return vld1q_f32(p); }
static inline void vf_store(float *p, vf v) { vst1q_f32(p, v); }
static inline vf vf_load_tail(const float *p, ptrdiff_t n) {
    vf v = vld1q_lane_f32(p, vdupq_n_f32(0.0f), 0);
    if (n > 1) v = vld1q_lane_f32(p + 1, v, 1);
    if (n > 2) v = vld1q_lane_f32(p + 2, v, 2);
    return v;
}
static inline void vf_store_tail(float *p, vf v, ptrdiff_t n) {
    vst1q_lane_f32(p, v, 0);
    if (n > 1) vst1q_lane_f32(p + 1, v, 1);
    if (n > 2) vst1q_lane_f32(p + 2, v, 2);
}
static inline vf vf_set(float c) { return vdupq_n_f32(c); }

static inline vf vf_add(vf a, vf b) { return vaddq_f32(a, b); }
static inline vf vf_sub(vf a, vf b) { return vsubq_f32(a, b); }
static inline vf vf_mul(vf a, vf b) { return vmulq_f32(a, b); }
static inline vf vf_div(vf a, vf b) { return vdivq_f32(a, b); }
static inline vf vf_sqrt(vf a) { return vsqrtq_f32(a); }
static inline vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
static inline vf vf_madd(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
/* The instructions vmaxq and vminq give NaN for a NaN, so the comparison is written out. */
static inline vf vf_max(vf a, vf b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline vf vf_min(vf a, vf b) { return vbslq_f32(vcltq_f32(a, b), a, b); }

static inline vm vf_lt(vf a, vf b) { return vcltq_f32(a, b); }
static inline vm vf_le(vf a, vf b) { return vcleq_f32(a, b); }
static inline vm vf_nle(vf a, vf b) { return vmvnq_u32(vcleq_f32(a, b)); }
static inline vm vf_unord(vf a, vf b) { return vmvnq_u32(vandq_u32(vceqq_f32(a, a), vceqq_f32(b, b))); }
static inline vf vf_select(vm m, vf a, vf b) { return vbslq_f32(m, a, b); }
static inline vm vm_and(vm a, vm b) { return vandq_u32(a, b); }
static inline vm vm_or(vm a, vm b) { return vorrq_u32(a, b); }
static inline int vm_any(vm m) { return vmaxvq_u32(m) != 0; }

static inline vi vi_bits(vf a) { return vreinterpretq_s32_f32(a); }
static inline vf vf_bits(vi a) { return vreinterpretq_f32_s32(a); }
static inline vi vi_set(int32_t c) { return vdupq_n_s32(c); }
static inline vi vi_add(vi a, vi b) { return vaddq_s32(a, b); }
static inline vi vi_and(vi a, vi b) { return vandq_s32(a, b); }
static inline vi vi_xor(vi a, vi b) { return veorq_s32(a, b); }
#define vi_shl(a, k) vshlq_n_s32(a, k)
#define vi_shr(a, k) vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a), k))
static inline vi vi_max(vi a, vi b) { return vmaxq_s32(a, b); }
static inline vi vi_min(vi a, vi b) { return vminq_s32(a, b); }
static inline vi vi_round(vf a) { return vcvtnq_s32_f32(a); }
static inline vf vf_from_vi(vi a) { return vcvtq_f32_s32(a); }
static inline vm vi_eq(vi a, vi b) { return vceqq_s32(a, b); }
static inline vf vf_even(vf a, vf b) { return vuzp1q_f32(a, b); }
static inline vf vf_odd(vf a, vf b) { return vuzp2q_f32(a, b); }
static inline vf vf_zip_lo(vf a, vf b) { return vzip1q_f32(a, b); }
static inline vf vf_zip_hi(vf a, vf b) { return vzip2q_f32(a, b); }
static inline vf vf_quads(const float *a, const float *b) { return (void)b, vf_load(a); }
static inline vf vf_quad_lo(vf a, vf b) { return vf_zip_lo(a, b); }
static inline vf vf_quad_hi(vf a, vf b) { return vf_zip_hi(a, b); }
static inline vf vf_lookup(const float *table, vi i) {
    /* sixty-four bytes: entry j has bytes 4 j to 4 j + 3 */
    vi at = vmlaq_s32(vdupq_n_s32(0x03020100), vandq_s32(i, vdupq_n_s32(15)), vdupq_n_s32(0x04040404));
    return vreinterpretq_f32_u8(vqtbl4q_u8(vld1q_u8_x4((const uint8_t *)table), vreinterpretq_u8_s32(at)));
}

static inline vd vd_lo(vf a) { return vcvt_f64_f32(vget_low_f32(a)); }
static inline vd vd_hi(vf a) { return vcvt_high_f64_f32(a); }
static inline vf vf_from_vd(vd lo, vd hi) { return vcvt_high_f32_f64(vcvt_f32_f64(lo), hi); }
static inline vd vd_set(double c) { return vdupq_n_f64(c); }
static inline vd vd_load(const double *p) { return vld1q_f64(p); }
static inline vd vd_widen(const float *p) { return vcvt_f64_f32(vld1_f32(p)); }
static inline void vd_store(double *p, vd v) { vst1q_f64(p, v); }
static inline float vf_largest(vf a) { return vmaxvq_f32(a); }
static inline double vd_total(vd a) { return vaddvq_f64(a); }
static inline vd vd_add(vd a, vd b) { return vaddq_f64(a, b); }
static inline vd vd_sub(vd a, vd b) { return vsubq_f64(a, b); }
static inline vd vd_mul(vd a, vd b) { return vmulq_f64(a, b); }
static inline vd vd_div(vd a, vd b) { return vdivq_f64(a, b); }
static inline vd vd_max(vd a, vd b) { return vbslq_f64(vcgtq_f64(a, b), a, b); }
#define vd_words(a) vreinterpretq_u64_f64(a)
#define vd_of_words(a) vreinterpretq_f64_u64(a)
static inline vd vd_and(vd a, vd b) { return vd_of_words(vandq_u64(vd_words(a), vd_words(b))); }
static inline vd vd_xor(vd a, vd b) { return vd_of_words(veorq_u64(vd_words(a), vd_words(b))); }
#define vd_shl(a, k) vd_of_words(vshlq_n_u64(vd_words(a), k))
#define vd_shr(a, k) vd_of_words(vshrq_n_u64(vd_words(a), k))
static inline vd vd_iadd(vd a, vd b) { return vd_of_words(vaddq_u64(vd_words(a), vd_words(b))); }
#endif
