/* Lanes of plain C: one float, one double. Owns the meaning of every lane primitive and its portable form; anything built from
 * primitives belongs in lane_math.h.
 *
 *   vf LANES floats, vi LANES int32, vm a mask over them, vd VD_LANES doubles. A vf widens to vd_lo and vd_hi; here both are the one
 *   lane, and vf_from_vd keeps the first, so code written for two halves costs nothing twice (the second half is dead).
 *   _tail: the first n lanes, 0 < n < LANES; the others are 0 on load and untouched on store.
 *   vf_fma: one rounding. vf_madd: fast mode's a·b + c, fused where that is one instruction.
 *   vf_max, vd_max: a > b ? a : b, vf_min: a < b ? a : b (so b where either is NaN or both are zero). vf_select: m ? a : b.
 *   vf_scale: stands in lane_math.h, except where it is one instruction.
 *   HAS_FMA: vf_fma is one instruction. vf_lookup: entry i mod 16 of a table of sixteen.
 *   vf_even, vf_odd: every second lane of a, then of b. vf_zip_lo, vf_zip_hi: a0 b0 a1 b1 ..., first and second half; they undo those two.
 *   vf_quads: of sixteen lanes, the fours at a, b, a + 4, b + 4; else the vector at a. vf_quad_lo, vf_quad_hi: the zip within each four.
 *   vf_bits and vi_bits reinterpret; vi_round rounds to nearest even, |a| < 2^31; vi_shr and vd_shr shift zeros in, k is a constant; vd_widen reads
 *   VD_LANES floats; vf_largest and vd_total: of all lanes, none of which is NaN, in an order of the path's own;
 *   vd_and, vd_xor, vd_shl, vd_shr and vd_iadd (64-bit integer sum) work on the bits of doubles. */
#ifndef OM_LANE_H
#define OM_LANE_H
#if !defined(__x86_64__) && !defined(__aarch64__)
#error "lane_scalar.h: compile for x86-64 or aarch64"
#endif
#if defined(__x86_64__)
#include <emmintrin.h>
#else
#include <arm_neon.h>
#endif
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 1, VD_LANES = 1, HAS_FMA = 0 };
typedef float vf;
typedef int32_t vi;
typedef int vm;
typedef double vd;

static inline vf vf_load(const float *p) { return *p; }
static inline void vf_store(float *p, vf v) { *p = v; }
static inline vf vf_load_tail(const float *p, ptrdiff_t n) { return n > 0 ? *p : 0.0f; }
static inline void vf_store_tail(float *p, vf v, ptrdiff_t n) {
    if (n > 0) *p = v;
}
static inline vf vf_set(float c) { return c; }

static inline vf vf_add(vf a, vf b) { return a + b; }
static inline vf vf_sub(vf a, vf b) { return a - b; }
static inline vf vf_mul(vf a, vf b) { return a * b; }
static inline vf vf_div(vf a, vf b) { return a / b; }
static inline vf vf_madd(vf a, vf b, vf c) { return a * b + c; }
static inline vf vf_max(vf a, vf b) { return a > b ? a : b; }
static inline vf vf_min(vf a, vf b) { return a < b ? a : b; }

static inline vm vf_lt(vf a, vf b) { return a < b; }
static inline vm vf_le(vf a, vf b) { return a <= b; }
static inline vm vf_nle(vf a, vf b) { return !(a <= b); } /* a > b, or one is NaN */
static inline vm vf_unord(vf a, vf b) { return __builtin_isunordered(a, b); }
static inline vf vf_select(vm m, vf a, vf b) { return m ? a : b; }
static inline vm vm_and(vm a, vm b) { return a & b; }
static inline vm vm_or(vm a, vm b) { return a | b; }
static inline int vm_any(vm m) { return m; }

static inline vi vi_bits(vf a) {
    vi r;
    memcpy(&r, &a, sizeof r);
    return r;
}
static inline vf vf_bits(vi a) {
    vf r;
    memcpy(&r, &a, sizeof r);
    return r;
}
static inline vi vi_set(int32_t c) { return c; }
static inline vi vi_add(vi a, vi b) { return (vi)((uint32_t)a + (uint32_t)b); }
static inline vi vi_and(vi a, vi b) { return a & b; }
static inline vi vi_xor(vi a, vi b) { return a ^ b; }
static inline vi vi_shl(vi a, int k) { return (vi)((uint32_t)a << k); }
static inline vi vi_shr(vi a, int k) { return (vi)((uint32_t)a >> k); }
static inline vi vi_max(vi a, vi b) { return a > b ? a : b; }
static inline vi vi_min(vi a, vi b) { return a < b ? a : b; }
static inline vf vf_from_vi(vi a) { return (float)a; }
static inline vf vf_lookup(const float *table, vi i) { return table[i & 15]; }
static inline vm vi_eq(vi a, vi b) { return a == b; }
static inline vf vf_even(vf a, vf b) { return (void)b, a; }
static inline vf vf_odd(vf a, vf b) { return (void)a, b; }
static inline vf vf_zip_lo(vf a, vf b) { return (void)b, a; }
static inline vf vf_zip_hi(vf a, vf b) { return (void)a, b; }
static inline vf vf_quads(const float *a, const float *b) { return (void)b, vf_load(a); }
static inline vf vf_quad_lo(vf a, vf b) { return vf_zip_lo(a, b); }
static inline vf vf_quad_hi(vf a, vf b) { return vf_zip_hi(a, b); }
#if defined(__x86_64__)
static inline vf vf_sqrt(vf a) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(a))); }
static inline vi vi_round(vf a) { return _mm_cvtss_si32(_mm_set_ss(a)); }
#else
static inline vf vf_sqrt(vf a) { return vget_lane_f32(vsqrt_f32(vdup_n_f32(a)), 0); }
static inline vi vi_round(vf a) { return vcvtns_s32_f32(a); }
#endif

static inline uint64_t bits_of(vd a) {
    uint64_t r;
    memcpy(&r, &a, sizeof r);
    return r;
}
static inline vd of_bits(uint64_t a) {
    vd r;
    memcpy(&r, &a, sizeof r);
    return r;
}
static inline vd vd_lo(vf a) { return a; }
static inline vd vd_hi(vf a) { return a; }
static inline vf vf_from_vd(vd lo, vd hi) {
    (void)hi;
    return (float)lo;
}
static inline vd vd_set(double c) { return c; }
static inline vd vd_load(const double *p) { return *p; }
static inline vd vd_widen(const float *p) { return *p; }
static inline void vd_store(double *p, vd v) { *p = v; }
static inline float vf_largest(vf a) { return a; }
static inline double vd_total(vd a) { return a; }
static inline vd vd_add(vd a, vd b) { return a + b; }
static inline vd vd_sub(vd a, vd b) { return a - b; }
static inline vd vd_mul(vd a, vd b) { return a * b; }
static inline vd vd_div(vd a, vd b) { return a / b; }
static inline vd vd_max(vd a, vd b) { return a > b ? a : b; }
static inline vd vd_and(vd a, vd b) { return of_bits(bits_of(a) & bits_of(b)); }
static inline vd vd_xor(vd a, vd b) { return of_bits(bits_of(a) ^ bits_of(b)); }
static inline vd vd_shl(vd a, int k) { return of_bits(bits_of(a) << k); }
static inline vd vd_shr(vd a, int k) { return of_bits(bits_of(a) >> k); }
static inline vd vd_iadd(vd a, vd b) { return of_bits(bits_of(a) + bits_of(b)); }

/* Round to odd in double, then once to float, as in lane_sse2.h (the reasons stand there); aarch64 always has the instruction. */
#if defined(__aarch64__)
static inline vf vf_fma(vf a, vf b, vf c) { return __builtin_fmaf(a, b, c); }
#else
static inline vf vf_fma(vf a, vf b, vf c) {
    double p = (double)a * b, s = p + c, t = s - p, e = (p - (s - t)) + (c - t);
    uint64_t bits = bits_of(s);
    if ((e < 0 || e > 0) && !(bits & 1)) bits += (bits ^ bits_of(e)) >> 63 ? -(uint64_t)1 : 1;
    return (float)of_bits(bits);
}
#endif
#endif
