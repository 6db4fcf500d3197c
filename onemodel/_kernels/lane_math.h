/* What is built from lane primitives, written once for every instruction set. Must not contain loops over arrays. */
#ifndef OM_LANE_MATH_H
#define OM_LANE_MATH_H

static inline vf vf_abs(vf a) { return vf_bits(vi_and(vi_bits(a), vi_set(0x7FFFFFFF))); }
static inline vf vf_neg(vf a) { return vf_bits(vi_xor(vi_bits(a), vi_set(INT32_MIN))); }
static inline vm vf_eq(vf a, vf b) { return vm_and(vf_le(a, b), vf_le(b, a)); }
/* Every NaN as the one positive quiet NaN: exact mode's rule for the final store. */
static inline vf vf_canon(vf a) { return vf_select(vf_unord(a, a), vf_bits(vi_set(0x7FC00000)), a); }
static inline vf vf_result(vf a) { return OM_EXACT ? vf_canon(a) : a; }

#endif
