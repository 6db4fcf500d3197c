/* silu, softplus, elu and their slopes on a vf, from what lane_math.h has. Must not contain loops over arrays. The bounds and the reasons are in
 * docs/exact-transcendentals.md; exact_*, fast_* and lane_* mean what they mean in lane_math.h. */
#ifndef OM_LANE_ACTIVATION_H
#define OM_LANE_ACTIVATION_H

/* -- silu x / (1 + e^-x) --------------------------------------------------------------------------------------------------------- */
/* Below -110 the result is less than half the least float, at -infinity it is the limit. */
static inline vw vw_silu(vw x, vw clipped) { return vw_div(x, vw_add(vw_set(1.0), vw_exp(vw_xor(clipped, vw_set(-0.0)), 0))); }
static inline vf wide_silu(vf x) {
    vf above = vf_max(vf_set(-110.0f), x);
    return vf_from_vw(vw_silu(vw_from_vf(above), vw_from_vf(vf_min(vf_set(110.0f), above))));
}
OM_RARE vf double_silu(vf x) { return wide_silu(x); }
/* The pair of exact_sigmoid times x. In doubt too: below about -60, where the error of the pair exceeds a unit; tiny x, whose product has no
 * exact rest; infinities and NaN. */
static inline vf exact_silu(vf x) {
    if (!HAS_FMA) return wide_silu(x);
    const vf minus_one = vf_set(-1.0f), zero = vf_set(0.0f);
    vf size = vf_abs(x), rest, k, e = pair_exp(vf_neg(vf_min(vf_set(80.0f), size)), 1, &rest, &k);
    vf minus_d = vf_sub(minus_one, e), lost = vf_sub(vf_sub(vf_sub(minus_one, minus_d), e), rest), inverse = vf_div(minus_one, minus_d);
    vm negative = vf_lt(x, zero);
    vf n = vf_select(negative, e, vf_set(1.0f)), s = vf_mul(n, inverse);
    vf left = vf_add(vf_fma(minus_d, s, n), vf_fma(lost, s, vf_select(negative, rest, zero)));
    vf error = vf_fma(vf_min(e, vf_set(0.25f)), vf_set(0x1p-34f), vf_set(0x1p-123f));
    vf p = vf_mul(size, s), low = vf_fma(size, vf_mul(left, inverse), vf_fma(size, s, vf_neg(p)));
    error = vf_fma(size, error, vf_mul(p, vf_set(0x1p-47f))); /* the last term: roundings of low */
    vf up = vf_add(p, vf_add(low, error));
    vm tiny = vm_and(vf_lt(size, vf_set(0x1p-90f)), vf_lt(zero, size)), doubt = vm_or(vf_nle(up, vf_add(p, vf_sub(low, error))), tiny);
    vf y = vf_with_sign(up, x);
    return OM_IN_DOUBT(doubt) ? vf_select(doubt, double_silu(x), y) : y;
}
/* With e = e^-|x|, x / (1 + e) or x e / (1 + e); the power of two of e enters last, so that a subnormal result is rounded once. Needs the
 * fused step. */
static inline vf fast_silu(vf x) {
    const vf minus_one = vf_set(-1.0f);
    vf above = vf_max(vf_set(-110.0f), x), a = vf_neg(vf_min(vf_set(110.0f), vf_abs(above)));
    vf t = vf_madd(a, vf_set(23.0831203f), vf_set(FLOAT_SHIFT)), n = vf_sub(t, vf_set(FLOAT_SHIFT)), k = vf_mul(n, vf_set(0.0625f));
    vf h = vf_madd(n, vf_set(-0.0433197021484375f), a);
    vf rest = vf_madd(n, vf_set(-1.99663646e-06f), vf_lookup(SIXTEENTHS[POWER_REST], vi_bits(t)));
    vf r = vf_add(h, rest), p = vf_madd(r, vf_set(EXP_SIXTEENTH_SHORT[1]), vf_set(EXP_SIXTEENTH_SHORT[0]));
    vf power = vf_lookup(SIXTEENTHS[POWER], vi_bits(t)), m = vf_madd(power, vf_madd(vf_mul(r, r), p, r), power), e = vf_scale(m, k);
    vf minus_d = vf_sub(minus_one, e), minus_lost = vf_sub(vf_sub(minus_one, minus_d), e), inverse = vf_div(minus_one, minus_d);
    vm negative = vf_lt(x, vf_set(0.0f));
    vf top = vf_select(negative, vf_mul(above, m), x), y = vf_mul(top, inverse);
    vf left = vf_fma(minus_lost, y, vf_fma(minus_d, y, top));
    y = vf_select(vf_lt(vf_abs(x), vf_set(0x1p100f)), vf_fma(left, inverse, y), y); /* an infinity has no remainder */
    return vf_with_sign(vf_abs(vf_select(negative, vf_scale(y, k), y)), x);
}
static inline vf lane_silu(vf x) { return OM_EXACT || !HAS_FMA ? exact_silu(x) : fast_silu(x); }
/* s (1 + x (1 - s)), s = sigmoid x: with e = e^-|x| and d = 1 + e, (d + x e) / d^2 for positive x, else e (1 + x + e) / d^2: no cancellation
 * but where the slope crosses zero, near -1.278, and there 1 + x is exact. */
static inline vf lane_silu_slope(vf x) {
    vf c = vf_clip(x, -200.0f, 200.0f), e = lane_exp(vf_neg(vf_abs(c))), d = vf_add(vf_set(1.0f), e);
    vf top = vf_select(vf_lt(c, vf_set(0.0f)), vf_mul(e, vf_add(vf_add(vf_set(1.0f), c), e)), vf_add(d, vf_mul(c, e)));
    return vf_div(top, vf_mul(d, d));
}

/* -- softplus log(1 + e^u) / b, u = b x; x itself where u exceeds the threshold ------------------------------------------------------ */
/* log(1 + z), 0 <= z <= 1: 2 atanh(z / (z + 2)), or log 2 + 2 atanh((z - 1) / (z + 3)) above sqrt 2 - 1 */
static inline vw vw_log1p(vw z) {
    const vw one = vw_set(1.0), log_two = vw_set(0.6931471805599453);
    vw small = vw_iadd(vw_shr(vw_sub(vw_set(0.41421356237309503), z), 63), vw_word(UINT64_MAX)); /* all ones up to sqrt 2 - 1 */
    vw shift = vw_xor(vw_and(small, one), one), base = vw_xor(vw_and(small, log_two), log_two);
    vw s = vw_div(vw_sub(z, shift), vw_add(vw_add(z, vw_set(2.0)), shift)), q = vw_mul(s, s);
    vw p = vw_mul(vw_mul(s, q), vw_poly(q, vw_mul(q, q), LOG, 6));
    return vw_add(base, vw_add(vw_add(s, s), p));
}
/* Where |u| > 600 the caller replaces what comes out. */
static inline vw vw_softplus(vw x, vw b) {
    vw u = vw_mul(x, b), size = vw_and(u, vw_word(INT64_MAX)); /* exact: 24 and 24 bits */
    vw positive = vw_iadd(vw_shr(u, 63), vw_word(UINT64_MAX));
    return vw_div(vw_add(vw_and(u, positive), vw_log1p(vw_exp(vw_xor(size, vw_set(-0.0)), 1))), b);
}
static inline vf exact_softplus(vf x, vf b) { return vf_from_vw(vw_softplus(vw_from_vf(x), vw_from_vf(b))); }
/* u's rounding error counts in e^u by |u| units, so it is carried along; needs the fused step. */
static inline vf fast_softplus(vf x, vf b, vf u) {
    const vf zero = vf_set(0.0f);
    vm positive = vf_lt(zero, u);
    vf lost = vf_fma(x, b, vf_neg(u)), e = fast_exp_inside(vf_max(vf_set(-104.0f), vf_neg(vf_abs(u))));
    e = vf_fma(e, vf_select(positive, vf_neg(lost), lost), e);
    vm big = vf_lt(vf_set(0.414213562f), e);
    vf f = vf_select(big, vf_mul(vf_sub(e, vf_set(1.0f)), vf_set(0.5f)), e), z = vf_mul(f, f);
    vf low = vf_madd(vf_mul(f, z), vf_poly(f, LOG_FLOAT, 7), vf_mul(z, vf_set(-0.5f)));
    low = vf_add(low, vf_select(big, vf_set(-1.90465421e-09f), zero)); /* log 2 less the float nearest to it */
    vf base = vf_select(big, vf_set(0.693147182f), zero), sum = vf_add(base, f);
    low = vf_add(low, vf_add(vf_sub(f, vf_sub(sum, base)), vf_select(positive, lost, zero)));
    vf top = vf_select(positive, u, zero), y = vf_add(top, sum); /* top is 0 or the larger by far or both are near 1: one error more */
    return vf_div(vf_add(y, low), b);
}
static inline vf lane_softplus(vf x, vf b, vf threshold) {
    vf u = vf_mul(x, b), y = OM_EXACT || !HAS_FMA ? exact_softplus(x, b) : fast_softplus(x, b, u);
    y = vf_select(vf_lt(u, vf_set(-600.0f)), vf_with_sign(vf_set(0.0f), b), y);
    return vf_select(vm_or(vf_lt(threshold, u), vf_lt(vf_set(600.0f), u)), x, y);
}
/* sigmoid u, 1 beyond the threshold; the second term is what the rounding of u lost, none where b is a power of two */
static inline vf lane_softplus_slope(vf x, vf b, vf threshold) {
    vf u = vf_mul(x, b), s = lane_sigmoid(u), lost = vf_fma(x, b, vf_neg(u));
    vf better = vf_add(s, vf_mul(vf_mul(s, vf_sub(vf_set(1.0f), s)), lost));
    s = vf_select(vf_lt(vf_abs(u), vf_set(128.0f)), better, s);
    return vf_select(vf_lt(threshold, u), vf_set(1.0f), s);
}

/* -- elu x, or a (e^x - 1) for negative x --------------------------------------------------------------------------------------------- */
/* e^x - 1 = 2^k (e^r - 1) + (2^k - 1), as in vw_tanh; below -40 it is -1 in double */
static inline vw vw_elu(vw x, vw a) {
    vw t, q = exp_reduced(x, &t, 1), s = vw_scale(vw_set(1.0), t);
    return vw_mul(a, vw_add(vw_mul(s, q), vw_sub(s, vw_set(1.0))));
}
static inline vf exact_elu(vf x, vf a) { return vf_from_vw(vw_elu(vw_from_vf(vf_clip(x, -40.0f, 0.0f)), vw_from_vf(a))); }
static inline vf fast_elu(vf x, vf a) {
    vf high, low, t = fast_reduced(vf_clip(x, -20.0f, 0.0f), &high, &low);
    vf s = vf_bits(vi_shl(vi_add(vi_bits(t), vi_set(127 - 0x4B400000)), 23));
    return vf_mul(a, vf_madd(s, low, vf_madd(s, high, vf_sub(s, vf_set(1.0f)))));
}
static inline vf lane_elu(vf x, vf a) { return vf_select(vf_le(vf_set(0.0f), x), x, OM_EXACT ? exact_elu(x, a) : fast_elu(x, a)); }

#endif
