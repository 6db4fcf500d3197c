/* What is built from lane primitives, written once for every instruction set: functions of one variable on a vf. Must not contain loops
 * over arrays. The derivations, the bounds and the reasons are in docs/exact-transcendentals.md; the coefficients come from
 * tools/fit_poly.py.
 *
 * A function named exact_* computes in double lanes with IEEE add, subtract, multiply and divide only, each rounded by itself, so that every
 * instruction set gives the same bits, and rounds once to float. fast_* are float polynomials. lane_* is the one of the mode. */
#ifndef OM_LANE_MATH_H
#define OM_LANE_MATH_H

#include <string.h>

static inline vf vf_abs(vf a) { return vf_bits(vi_and(vi_bits(a), vi_set(0x7FFFFFFF))); }
static inline vf vf_neg(vf a) { return vf_bits(vi_xor(vi_bits(a), vi_set(INT32_MIN))); }
static inline vm vf_eq(vf a, vf b) { return vm_and(vf_le(a, b), vf_le(b, a)); }
/* a, which must not be negative, with the sign of b */
static inline vf vf_with_sign(vf a, vf b) { return vf_bits(vi_xor(vi_bits(a), vi_and(vi_bits(b), vi_set(INT32_MIN)))); }
/* Into [lo, hi]; a NaN stays. */
static inline vf vf_clip(vf x, float lo, float hi) { return vf_min(vf_set(hi), vf_max(vf_set(lo), x)); }
/* Every NaN as the one positive quiet NaN: exact mode's rule for the final store. */
static inline vf vf_canon(vf a) { return vf_select(vf_unord(a, a), vf_bits(vi_set(0x7FC00000)), a); }
static inline vf vf_result(vf a) { return OM_EXACT ? vf_canon(a) : a; }

/* The 64-bit pattern w in every double lane. */
static inline vd vd_word(uint64_t w) {
    double d;
    memcpy(&d, &w, sizeof d);
    return vd_set(d);
}
/* c[0] + c[1] x + ... by Horner's rule on the even and the odd powers (half the latency of one chain); x2 = x * x. */
static inline vd vd_poly(vd x, vd x2, const double *c, int degree) {
    vd even = vd_set(c[degree & ~1]), odd = vd_set(c[(degree - 1) | 1]);
    for (int i = (degree & ~1) - 2; i >= 0; i -= 2) even = vd_add(vd_mul(even, x2), vd_set(c[i]));
    for (int i = ((degree - 1) | 1) - 2; i >= 0; i -= 2) odd = vd_add(vd_mul(odd, x2), vd_set(c[i]));
    return vd_add(even, vd_mul(odd, x));
}
static inline vf vf_poly(vf x, const float *c, int degree) {
    vf p = vf_set(c[degree]);
    for (int i = degree - 1; i >= 0; i--) p = vf_madd(p, x, vf_set(c[i]));
    return p;
}

/* -- coefficients, lowest first ------------------------------------------------------------------------------------------------ */
/* (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2; relative error of e^r 2^-51.3, and 2^-39.4 for the short one */
static const double EXP[] = {0.4999999999999708, 0.16666666666610014, 0.041666666668963029, 0.0083333333714701013, 0.001388888833355744,
                             0.00019841184508533264, 2.4802096827338259e-05, 2.763527071833737e-06, 2.7424167404004214e-07};
static const double EXP_SHORT[] = {0.50000000007432743,   0.16666666787103351,    0.041666663057560629,  0.0083332812160168135,
                                   0.0013889370657829321, 0.00019909253067681732, 2.4638597120901204e-05};
/* (sin r / r - 1) / z and (cos r - 1 + z/2) / z^2, z = r^2, |r| <= pi/4; relative errors of the results 2^-57.9 and 2^-63.8 */
static const double SIN[] = {-0.1666666666666663,   0.0083333333333219205,   -0.00019841269829461242,
                             2.7557313583622558e-06, -2.5050742589451804e-08, 1.5895962091563631e-10};
static const double COS[] = {0.041666666666666588,    -0.0013888888888872349, 2.4801587288469672e-05,
                             -2.7557314081536411e-07, 2.0875688861484736e-09, -1.1357969733649917e-11};
/* (2 atanh s / s - 2) / z, z = s^2, |s| <= (sqrt 2 - 1) / (sqrt 2 + 1); relative error of log 2^-59.4 */
static const double LOG[] = {0.66666666666667362, 0.39999999999405483, 0.28571428744061961, 0.22222198426135864,
                             0.18183571058687753, 0.15313895685114728, 0.14797364051497042};
/* e^(t^2/2) Phi(-t) / q, q = 1 / (1 + 0.3 t), 0 <= t <= 15; relative error 2^-40.9 */
static const double MILLS[] = {0.11968279280338182, 0.11967857836981233, 0.10898187734011336, 0.0866346910166821, 0.063103133330349462,
                               0.00080585932405436529, 0.094936254386033439, -0.27302117160023281, 0.51614560074137605, -0.80363763974728053,
                               0.86693555948964784, -0.60672735402848066, 0.2662272339092786, -0.067278299260231197, 0.0075328839256620225};
/* as EXP, relative error of e^r 2^-28.0 */
static const float EXP_FLOAT[] = {0.499999881f, 0.166665182f, 0.0416696481f, 0.00836894475f, 0.00137453037f};
/* (log(1 + f) - f + f^2/2) / f^3, sqrt(1/2) - 1 <= f <= sqrt 2 - 1; relative error of log 2^-27.1 */
static const float LOG_FLOAT[] = {0.333333552f, -0.250008523f, 0.199997663f, -0.166213155f,
                                  0.142280996f, -0.132034585f, 0.126151875f, -0.0735380277f};

/* -- exp: x = k ln 2 + r, |r| <= ln 2 / 2 ---------------------------------------------------------------------------------------- */
/* Adding this leaves a double rounded to an integer, which its low bits then hold (and 2 to that power is one shift away). */
#define SHIFT 0x1.8p52
/* e^r - 1; *t becomes SHIFT + k. The short form (relative error of e^r below 2^-38) serves where the result needs no more. */
static inline vd exp_reduced(vd x, vd *t, int full) {
    *t = vd_add(vd_mul(x, vd_set(1.4426950408889634)), vd_set(SHIFT));
    vd k = vd_sub(*t, vd_set(SHIFT)), r, z;
    if (full) { /* the first part of ln 2 has 42 bits: its product with k is exact */
        r = vd_sub(vd_sub(x, vd_mul(k, vd_set(0.6931471805598903))), vd_mul(k, vd_set(5.497923018708371e-14)));
        z = vd_mul(r, r);
        return vd_add(r, vd_mul(z, vd_poly(r, z, EXP, 8)));
    }
    r = vd_sub(x, vd_mul(k, vd_set(0.6931471805599453)));
    z = vd_mul(r, r);
    return vd_add(r, vd_mul(z, vd_poly(r, z, EXP_SHORT, 6)));
}
/* a * 2^k for a normal result; a NaN t comes with a NaN a, whose low bits are zero. */
static inline vd vd_scale(vd a, vd t) { return vd_iadd(a, vd_shl(t, 52)); }
static inline vd vd_exp(vd x, int full) {
    vd t, q = exp_reduced(x, &t, full);
    return vd_scale(vd_add(vd_set(1.0), q), t);
}
/* Below -104 the result is less than half the least float, above 89 it exceeds the largest one. */
static inline vf exact_exp(vf x) {
    x = vf_clip(x, -104.0f, 89.0f);
    return vf_from_vd(vd_exp(vd_lo(x), 1), vd_exp(vd_hi(x), 1));
}
/* 1 / (1 + e^-x) */
static inline vd vd_sigmoid(vd x) { return vd_div(vd_set(1.0), vd_add(vd_set(1.0), vd_exp(vd_xor(x, vd_set(-0.0)), 0))); }
static inline vf exact_sigmoid(vf x) {
    x = vf_clip(x, -104.0f, 104.0f);
    return vf_from_vd(vd_sigmoid(vd_lo(x)), vd_sigmoid(vd_hi(x)));
}
/* (e^2a - 1) / (e^2a + 1) with e^2a - 1 = 2^k (e^r - 1) + (2^k - 1), which keeps its relative accuracy down to 0 */
static inline vd vd_tanh(vd a) {
    vd t, q = exp_reduced(vd_add(a, a), &t, 1), s = vd_scale(vd_set(1.0), t);
    vd m = vd_add(vd_mul(s, q), vd_sub(s, vd_set(1.0)));
    return vd_div(m, vd_add(m, vd_set(2.0)));
}
static inline vf exact_tanh(vf x) {
    vf a = vf_min(vf_set(10.0f), vf_abs(x));
    return vf_with_sign(vf_from_vd(vd_tanh(vd_lo(a)), vd_tanh(vd_hi(a))), x);
}

/* -- log: x = 2^k m, sqrt(1/2) <= m < sqrt 2, log m = 2 atanh((m - 1) / (m + 1)) ------------------------------------------------------ */
/* x > 0 and normal; every positive float is normal in double */
static inline vd vd_log(vd x) {
    const uint64_t one = 0x3FF0000000000000, root_half = 0x3FE6A09E667F3BCD;
    vd biased = vd_shr(vd_iadd(x, vd_word(one - root_half)), 52); /* k + 1023 */
    vd k = vd_sub(vd_iadd(biased, vd_set(0x1p52)), vd_set(0x1p52 + 1023));
    vd m = vd_iadd(x, vd_iadd(vd_word(one), vd_shl(vd_iadd(vd_xor(biased, vd_word(UINT64_MAX)), vd_word(1)), 52)));
    vd f = vd_sub(m, vd_set(1.0)), s = vd_div(f, vd_add(m, vd_set(1.0))), z = vd_mul(s, s);
    vd p = vd_mul(vd_mul(s, z), vd_poly(z, vd_mul(z, z), LOG, 6));
    vd low = vd_add(vd_mul(k, vd_set(5.497923018708371e-14)), p);
    return vd_add(vd_mul(k, vd_set(0.6931471805598903)), vd_add(vd_add(s, s), low));
}
/* log's values where the reduction does not hold: 0, negative, infinite, NaN */
static inline vf log_edges(vf x, vf y) {
    const vf infinity = vf_set(__builtin_inff());
    y = vf_select(vf_lt(vf_set(0.0f), x), y, vf_select(vf_eq(x, vf_set(0.0f)), vf_neg(infinity), vf_bits(vi_set(0x7FC00000))));
    return vf_select(vf_eq(x, infinity), infinity, vf_select(vf_unord(x, x), x, y));
}
static inline vf exact_log(vf x) { return log_edges(x, vf_from_vd(vd_log(vd_lo(x)), vd_log(vd_hi(x)))); }

/* -- sin, cos: x = j pi/2 + r, |r| <= pi/4 ------------------------------------------------------------------------------------------- */
/* Up to here j has 17 bits, and its product with the first part of pi/2 (33 bits) is exact. */
#define TRIG_LIMIT 0x1p17f
/* r; *t has j in its low bits */
static inline vd trig_reduced(vd x, vd *t) {
    *t = vd_add(vd_mul(x, vd_set(0.6366197723675814)), vd_set(SHIFT));
    vd j = vd_sub(*t, vd_set(SHIFT));
    return vd_sub(vd_sub(x, vd_mul(j, vd_set(1.5707963267341256))), vd_mul(j, vd_set(6.077100506506192e-11)));
}
/* The same for one float of any size (Payne and Hanek 1983): x = m 2^e with m an integer, so only the 128 bits of 2/pi that stand for
 * less than 4 and more than 2^-126 in 2^e 2/pi matter; their product with m is the angle in quarter turns modulo 4. */
static inline double trig_reduced_any(float x, double *t) {
    static const uint64_t two_over_pi[5] = {0, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561};
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    int e = (int)(bits >> 23 & 0xFF) - 150, word = (e + 62) >> 6, shift = (e + 62) & 63;
    uint64_t high = two_over_pi[word], low = two_over_pi[word + 1];
    if (shift) {
        high = high << shift | low >> (64 - shift);
        low = low << shift | two_over_pi[word + 2] >> (64 - shift);
    }
    uint64_t m = (bits & 0x7FFFFF) | 0x800000;
    unsigned __int128 turn = ((unsigned __int128)high << 64 | low) * m; /* 2^126 is a quarter turn */
    uint64_t j = (uint64_t)((turn + ((unsigned __int128)1 << 125)) >> 126);
    turn <<= 2;
    double r = ((double)(int64_t)(uint64_t)(turn >> 64) * 0x1p-64 + (double)(int64_t)((uint64_t)turn >> 1) * 0x1p-127) * 1.5707963267948966;
    if (bits >> 31) {
        r = -r;
        j = -j;
    }
    uint64_t coded = 0x4338000000000000 + (j & 3);
    memcpy(t, &coded, sizeof coded);
    return r;
}
/* sin(r + j pi/2) */
static inline vd trig_value(vd r, vd t) {
    vd z = vd_mul(r, r), z2 = vd_mul(z, z), one = vd_set(1.0);
    vd s = vd_mul(r, vd_add(one, vd_mul(z, vd_poly(z, z2, SIN, 5))));
    vd c = vd_add(one, vd_mul(z, vd_add(vd_set(-0.5), vd_mul(z, vd_poly(z, z2, COS, 5)))));
    vd odd = vd_iadd(vd_xor(vd_and(t, vd_word(1)), vd_word(1)), vd_word(UINT64_MAX)); /* all ones where j is odd */
    return vd_xor(vd_xor(s, vd_and(vd_xor(s, c), odd)), vd_shl(vd_and(t, vd_word(2)), 62));
}
/* sin(x + quarter pi/2) */
static inline vf exact_trig(vf x, uint64_t quarter) {
    vd t[2], r[2] = {trig_reduced(vd_lo(x), &t[0]), trig_reduced(vd_hi(x), &t[1])};
    if (vm_any(vf_lt(vf_set(TRIG_LIMIT), vf_abs(x)))) {
        float lane[LANES];
        double turns[2 * VD_LANES], rest[2 * VD_LANES];
        vf_store(lane, x);
        for (int h = 0; h < 2; h++) {
            vd_store(turns + h * VD_LANES, t[h]);
            vd_store(rest + h * VD_LANES, r[h]);
        }
        for (int i = 0; i < LANES; i++) /* an infinity keeps its NaN */
            if (__builtin_fabsf(lane[i]) > TRIG_LIMIT && __builtin_fabsf(lane[i]) <= 0x1.fffffep127f)
                rest[i] = trig_reduced_any(lane[i], turns + i);
        for (int h = 0; h < 2; h++) {
            t[h] = vd_load(turns + h * VD_LANES);
            r[h] = vd_load(rest + h * VD_LANES);
        }
    }
    return vf_from_vd(trig_value(r[0], vd_iadd(t[0], vd_word(quarter))), trig_value(r[1], vd_iadd(t[1], vd_word(quarter))));
}
static inline vf exact_sin(vf x) { return exact_trig(x, 0); }
static inline vf exact_cos(vf x) { return exact_trig(x, 1); }

/* -- gelu x Phi(x), Phi(-t) = e^(-t^2/2) q P(q) --------------------------------------------------------------------------------------- */
/* Phi(x) for |x| <= 15; *e becomes e^(-x^2/2) */
static inline vd vd_normal(vd x, vd *e) {
    vd t = vd_and(x, vd_word(INT64_MAX)), one = vd_set(1.0);
    *e = vd_exp(vd_mul(vd_mul(x, x), vd_set(-0.5)), 0);
    vd q = vd_div(one, vd_add(one, vd_mul(t, vd_set(0.3))));
    vd tail = vd_mul(vd_mul(*e, q), vd_poly(q, vd_mul(q, q), MILLS, 14));
    vd positive = vd_iadd(vd_shr(x, 63), vd_word(UINT64_MAX)); /* all ones where the sign is plus */
    return vd_add(vd_and(positive, one), vd_xor(tail, vd_and(positive, vd_set(-0.0))));
}
static inline vd gelu_erf_half(vd x, vd clipped) {
    vd e;
    return vd_mul(x, vd_normal(clipped, &e));
}
/* Below -15 both forms round to -0, at -infinity too. */
static inline vf exact_gelu_erf(vf x) {
    vf c = vf_clip(x, -15.0f, 15.0f);
    x = vf_max(vf_set(-15.0f), x);
    return vf_from_vd(gelu_erf_half(vd_lo(x), vd_lo(c)), gelu_erf_half(vd_hi(x), vd_hi(c)));
}
static inline vd gelu_erf_slope(vd x, vd g) {
    vd e, phi = vd_normal(x, &e);
    return vd_mul(g, vd_add(phi, vd_mul(vd_mul(x, e), vd_set(0.3989422804014327))));
}
static inline vf exact_gelu_erf_bwd(vf x, vf g) {
    x = vf_clip(x, -15.0f, 15.0f);
    return vf_from_vd(gelu_erf_slope(vd_lo(x), vd_lo(g)), gelu_erf_slope(vd_hi(x), vd_hi(g)));
}
/* tanh form: x sigmoid(2u), 2u = 2 sqrt(2/pi) (x + 0.044715 x^3) */
static inline vd gelu_tanh_half(vd x, vd clipped) {
    vd z = vd_mul(clipped, clipped), one = vd_set(1.0);
    vd u = vd_mul(clipped, vd_add(vd_set(-1.5957691216057308), vd_mul(z, vd_set(-0.07135481627260025))));
    return vd_div(x, vd_add(one, vd_exp(u, 1)));
}
static inline vf exact_gelu_tanh(vf x) {
    vf c = vf_clip(x, -20.0f, 20.0f);
    x = vf_max(vf_set(-20.0f), x);
    return vf_from_vd(gelu_tanh_half(vd_lo(x), vd_lo(c)), gelu_tanh_half(vd_hi(x), vd_hi(c)));
}
/* s + x s (1 - s) (2u)' with s = sigmoid(2u), 1 - s = e^-2u s */
static inline vd gelu_tanh_slope(vd x, vd g) {
    vd z = vd_mul(x, x), one = vd_set(1.0);
    vd e = vd_exp(vd_mul(x, vd_add(vd_set(-1.5957691216057308), vd_mul(z, vd_set(-0.07135481627260025)))), 1);
    vd s = vd_div(one, vd_add(one, e));
    vd xu = vd_mul(x, vd_add(vd_set(1.5957691216057308), vd_mul(z, vd_set(0.21406444881780073))));
    return vd_mul(g, vd_mul(s, vd_add(one, vd_mul(vd_mul(xu, e), s))));
}
static inline vf exact_gelu_tanh_bwd(vf x, vf g) {
    x = vf_clip(x, -20.0f, 20.0f);
    return vf_from_vd(gelu_tanh_slope(vd_lo(x), vd_lo(g)), gelu_tanh_slope(vd_hi(x), vd_hi(g)));
}

/* -- pow: e^(b log|a|) with the sign and the special values of C99 -------------------------------------------------------------------- */
static inline vf lane_pow(vf a, vf b) {
    const vf zero = vf_set(0.0f), one = vf_set(1.0f), infinity = vf_set(__builtin_inff());
    vf size = vf_abs(a);
    vd lo = vd_mul(vd_lo(b), vd_log(vd_lo(size))), hi = vd_mul(vd_hi(b), vd_log(vd_hi(size)));
    vf z = vf_from_vd(lo, hi); /* coarse, for the range; the values below it are replaced where |z| is large or a special */
    vf y = vf_from_vd(vd_exp(lo, 1), vd_exp(hi, 1));
    y = vf_select(vf_lt(vf_set(105.0f), z), infinity, vf_select(vf_lt(z, vf_set(-105.0f)), zero, y));
    vm up = vf_lt(zero, b);
    y = vf_select(vf_eq(size, zero), vf_select(up, zero, infinity), y);
    y = vf_select(vf_eq(size, infinity), vf_select(up, infinity, zero), y);
    /* Whole exponents from 2^24 on are even; the clip also keeps the conversion in range. */
    vf whole = vf_clip(b, -0x1p24f, 0x1p24f);
    vi rounded = vi_round(whole);
    vm is_whole = vf_eq(vf_from_vi(rounded), whole);
    vi odd = vi_shl(rounded, 31);
    vf signed_y = vf_bits(vi_xor(vi_bits(y), vi_and(odd, vi_bits(a))));
    y = vf_select(is_whole, signed_y, vf_select(vm_and(vf_lt(a, zero), vf_lt(size, infinity)), vf_bits(vi_set(0x7FC00000)), y));
    y = vf_select(vf_unord(a, b), vf_add(a, b), y);
    y = vf_select(vm_and(vf_eq(size, one), vf_eq(vf_abs(b), infinity)), one, y);
    return vf_select(vm_or(vf_eq(b, zero), vf_eq(a, one)), one, y);
}

/* -- the float forms of fast mode ----------------------------------------------------------------------------------------------------- */
#define FLOAT_SHIFT 0x1.8p23f
static inline vf fast_reduced(vf x, vf *t) {
    *t = vf_madd(x, vf_set(1.44269504f), vf_set(FLOAT_SHIFT));
    vf k = vf_sub(*t, vf_set(FLOAT_SHIFT));
    vf r = vf_madd(k, vf_set(-0.693145751953125f), x);
    return vf_madd(k, vf_set(-1.428606765330187e-06f), r);
}
static inline vf fast_exp(vf x) {
    vf t, r = fast_reduced(vf_clip(x, -104.0f, 89.0f), &t);
    vf p = vf_add(vf_set(1.0f), vf_madd(vf_poly(r, EXP_FLOAT, 4), vf_mul(r, r), r));
    /* 2^k in two normal factors, so that a subnormal result is rounded once */
    vi n = vi_add(vi_bits(t), vi_set(254 - 0x4B400000));
    vi half = vi_shr(n, 1), rest = vi_shr(vi_add(n, vi_set(1)), 1);
    return vf_mul(vf_mul(p, vf_bits(vi_shl(half, 23))), vf_bits(vi_shl(rest, 23)));
}
/* With e = e^-|x|, which cannot overflow: 1 / (1 + e) or e / (1 + e). */
static inline vf fast_sigmoid(vf x) {
    vf e = fast_exp(vf_neg(vf_abs(x)));
    return vf_div(vf_select(vf_lt(x, vf_set(0.0f)), e, vf_set(1.0f)), vf_add(vf_set(1.0f), e));
}
static inline vf fast_tanh(vf x) {
    vf a = vf_min(vf_set(10.0f), vf_abs(x)), t, r = fast_reduced(vf_add(a, a), &t);
    vf q = vf_madd(vf_poly(r, EXP_FLOAT, 4), vf_mul(r, r), r);
    vf s = vf_bits(vi_shl(vi_add(vi_bits(t), vi_set(127 - 0x4B400000)), 23));
    vf m = vf_madd(s, q, vf_sub(s, vf_set(1.0f)));
    return vf_with_sign(vf_div(m, vf_add(m, vf_set(2.0f))), x);
}
static inline vf fast_log(vf x) {
    /* subnormals are scaled into the normal range first */
    vm tiny = vf_lt(x, vf_set(0x1p-126f));
    vf scaled = vf_select(tiny, vf_mul(x, vf_set(0x1p24f)), x);
    vi n = vi_add(vi_bits(scaled), vi_set(0x3F800000 - 0x3F3504F3));
    vf k = vf_sub(vf_from_vi(vi_shr(n, 23)), vf_select(tiny, vf_set(151.0f), vf_set(127.0f)));
    vf f = vf_sub(vf_bits(vi_add(vi_and(n, vi_set(0x007FFFFF)), vi_set(0x3F3504F3))), vf_set(1.0f)), z = vf_mul(f, f);
    vf low = vf_madd(vf_mul(f, z), vf_poly(f, LOG_FLOAT, 7), vf_mul(k, vf_set(1.428606765330187e-06f)));
    low = vf_madd(z, vf_set(-0.5f), low);
    return log_edges(x, vf_madd(k, vf_set(0.693145751953125f), vf_add(f, low)));
}

/* -- the function of the mode ---------------------------------------------------------------------------------------------------------- */
static inline vf lane_exp(vf x) { return OM_EXACT ? exact_exp(x) : fast_exp(x); }
static inline vf lane_log(vf x) { return OM_EXACT ? exact_log(x) : fast_log(x); }
static inline vf lane_sigmoid(vf x) { return OM_EXACT ? exact_sigmoid(x) : fast_sigmoid(x); }
static inline vf lane_tanh(vf x) { return OM_EXACT ? exact_tanh(x) : fast_tanh(x); }
static inline vf lane_gelu_erf(vf x) { return exact_gelu_erf(x); }

#endif
