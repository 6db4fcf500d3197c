/* What is built from lane primitives, written once for every instruction set: functions of one variable on a vf. Must not contain loops
 * over arrays. The derivations, the bounds and the reasons are in docs/exact-transcendentals.md; the coefficients come from
 * tools/fit_poly.py.
 *
 * A function named exact_* computes in double lanes with IEEE add, subtract, multiply and divide only, each rounded by itself, so that
 * every instruction set gives the same bits, and rounds once to float. fast_* are float polynomials. lane_* is the one of the mode. */
#ifndef OM_LANE_MATH_H
#define OM_LANE_MATH_H

#include <string.h>

static inline vf vf_abs(vf a) { return vf_bits(vi_and(vi_bits(a), vi_set(0x7FFFFFFF))); }
static inline vf vf_neg(vf a) { return -a; } /* an operator, which compilers fold into a fused step */
static inline vm vf_eq(vf a, vf b) { return vm_and(vf_le(a, b), vf_le(b, a)); }
/* a, which must not be negative, with the sign of b */
static inline vf vf_with_sign(vf a, vf b) { return vf_bits(vi_xor(vi_bits(a), vi_and(vi_bits(b), vi_set(INT32_MIN)))); }
/* Into [lo, hi]; a NaN stays. */
static inline vf vf_clip(vf x, float lo, float hi) { return vf_min(vf_set(hi), vf_max(vf_set(lo), x)); }
/* Every NaN as the one positive quiet NaN: exact mode's rule for the final store. */
static inline vf vf_canon(vf a) { return vf_select(vf_unord(a, a), vf_bits(vi_set(0x7FC00000)), a); }
static inline vf vf_result(vf a) { return OM_EXACT ? vf_canon(a) : a; }

/* A vf widened to doubles, as two vd. Every step is written for both halves in turn, so that neighbouring instructions are independent:
 * one half alone is a chain of latencies longer than a processor's window of waiting instructions. */
typedef struct {
    vd lo, hi;
} vw;
static inline vw vw_from_vf(vf a) { return (vw){vd_lo(a), vd_hi(a)}; }
static inline vf vf_from_vw(vw a) { return vf_from_vd(a.lo, a.hi); }
/* LANES doubles; the scalar set has one for both halves. */
enum { VW_SECOND = LANES - VD_LANES };
static inline vw vw_load(const double *p) { return (vw){vd_load(p), vd_load(p + VW_SECOND)}; }
static inline void vw_store(double *p, vw a) {
    vd_store(p, a.lo);
    if (VW_SECOND) vd_store(p + VW_SECOND, a.hi);
}
static inline vw vw_set(double c) { return (vw){vd_set(c), vd_set(c)}; }
static inline vw vw_add(vw a, vw b) { return (vw){vd_add(a.lo, b.lo), vd_add(a.hi, b.hi)}; }
static inline vw vw_sub(vw a, vw b) { return (vw){vd_sub(a.lo, b.lo), vd_sub(a.hi, b.hi)}; }
static inline vw vw_mul(vw a, vw b) { return (vw){vd_mul(a.lo, b.lo), vd_mul(a.hi, b.hi)}; }
static inline vw vw_div(vw a, vw b) { return (vw){vd_div(a.lo, b.lo), vd_div(a.hi, b.hi)}; }
static inline vw vw_max(vw a, vw b) { return (vw){vd_max(a.lo, b.lo), vd_max(a.hi, b.hi)}; }
static inline vw vw_and(vw a, vw b) { return (vw){vd_and(a.lo, b.lo), vd_and(a.hi, b.hi)}; }
static inline vw vw_xor(vw a, vw b) { return (vw){vd_xor(a.lo, b.lo), vd_xor(a.hi, b.hi)}; }
static inline vw vw_iadd(vw a, vw b) { return (vw){vd_iadd(a.lo, b.lo), vd_iadd(a.hi, b.hi)}; }
#define vw_shl(a, k) ((vw){vd_shl((a).lo, k), vd_shl((a).hi, k)})
#define vw_shr(a, k) ((vw){vd_shr((a).lo, k), vd_shr((a).hi, k)})
/* The 64-bit pattern w in every lane. */
static inline vw vw_word(uint64_t w) {
    double d;
    memcpy(&d, &w, sizeof d);
    return vw_set(d);
}
/* c[0] + c[1] x + ... by Horner's rule on the even and the odd powers (half the latency of one chain); x2 = x * x. */
static inline vw vw_poly(vw x, vw x2, const double *c, int degree) {
    vw even = vw_set(c[degree & ~1]), odd = vw_set(c[(degree - 1) | 1]);
    for (int i = (degree & ~1) - 2; i >= 0; i -= 2) even = vw_add(vw_mul(even, x2), vw_set(c[i]));
    for (int i = ((degree - 1) | 1) - 2; i >= 0; i -= 2) odd = vw_add(vw_mul(odd, x2), vw_set(c[i]));
    return vw_add(even, vw_mul(odd, x));
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
/* Rows for lookup by bits 21 to 24 of 1 + t: centre c, then e^(t^2/2) Phi(-t) = high + (low + h (c1 + h (c2 + ...))), h = t - c;
 * relative error 2^-27.5 */
enum { PIECE_CENTRE, PIECE_HIGH, PIECE_LOW, PIECE_DEGREE = 6 };
static const float MILLS_PIECES[PIECE_LOW + PIECE_DEGREE + 1][16] = {
    {1.25f, 1.75f, 2.25f, 2.75f, 3.5f, 4.5f, 5.5f, 6.5f,
     8.0f, 10.0f, 12.0f, 14.0f, 0.125f, 0.375f, 0.625f, 0.875f},
    {0.230760321f, 0.185231671f, 0.153651938f, 0.130724728f, 0.106345154f, 0.084803395f, 0.0703426972f, 0.0600156747f,
     0.0491225459f, 0.0395066924f, 0.0330189727f, 0.0283526611f, 0.453793228f, 0.379604429f, 0.323356181f, 0.279770583f},
    {2.98815722e-10f, -6.05500272e-09f, -4.17267332e-10f, 5.99372774e-09f, -6.85031254e-10f, -2.86062374e-09f, -3.17691029e-09f, 6.63010036e-10f,
     3.59423269e-10f, 1.6644226e-09f, -1.6469659e-09f, -5.30833488e-10f, -5.63020608e-09f, -1.13704268e-09f, -1.26671527e-08f, -1.26418005e-08f},
    {-0.110491887f, -0.0747868717f, -0.0532254204f, -0.0394492634f, -0.0267342478f, -0.0173270162f, -0.0120574636f, -0.00884039048f,
     -0.00596191222f, -0.00387533964f, -0.00271462766f, -0.00200503296f, -0.342218131f, -0.256590635f, -0.196844682f, -0.154143035f},
    {0.0463227369f, 0.0271773245f, 0.0169473682f, 0.011119633f, 0.00638765143f, 0.00341590983f, 0.00201332313f, 0.00127656793f,
     0.000713630172f, 0.000376650074f, 0.000221720707f, 0.000141099124f, 0.205507979f, 0.141691491f, 0.10016413f, 0.0724477097f},
    {-0.0175287165f, -0.00907516293f, -0.00503127277f, -0.00295664929f, -0.00145899656f, -0.000651781098f, -0.000328051217f, -0.00018089998f,
     -8.42768422e-05f, -3.62770988e-05f, -1.79921008e-05f, -9.88177908e-06f, -0.105508879f, -0.0678155944f, -0.0447458066f, -0.0302495565f},
    {0.00610256149f, 0.00282369647f, 0.00140681816f, 0.000747097132f, 0.000320141145f, 0.000120696168f, 5.22431546e-05f, 2.51807378e-05f,
     9.8280907e-06f, 3.4639354e-06f, 1.45087938e-06f, 6.8879126e-07f, 0.0480794609f, 0.0290610231f, 0.0180477761f, 0.0114943795f},
    {-0.00200137426f, -0.00083511445f, -0.000374914816f, -0.000182322459f, -6.89511871e-05f, -2.19935755e-05f, -8.2266597e-06f, -3.46187176e-06f,
     -1.15747991e-06f, -3.32837544e-07f, -1.17803864e-07f, -4.79960889e-08f, -0.0199932382f, -0.0115539366f, -0.00677780434f, -0.00408564229f},
    {0.000609921117f, 0.000231728263f, 9.4101335e-05f, 4.24376449e-05f, 1.40438051e-05f, 3.84257692e-06f, 1.25712893e-06f, 4.64556933e-07f,
     1.31121567e-07f, 3.11244861e-08f, 9.39381106e-09f, 3.30284977e-09f, 0.00763210887f, 0.00431630854f, 0.00238346308f, 0.00134304143f}
};
/* as EXP, relative error of e^r 2^-32.9, and 2^-28.0 for the short one */
static const float EXP_FLOAT[] = {0.5f, 0.166666642f, 0.0416664593f, 0.00833389536f, 0.00139354158f, 0.000195702189f};
static const float EXP_FLOAT_SHORT[] = {0.499999881f, 0.166665182f, 0.0416696481f, 0.00836894475f, 0.00137453037f};
/* 2^(i/16): the nearest float; what it lacks, relative to it; and the first less i << 19 in its bits, so that adding (16 k + i) << 19 to
 * them gives 2^(k + i/16) */
enum { POWER, POWER_REST, POWER_BITS };
static const float SIXTEENTHS[][16] = {
    {1.0f, 1.04427373f, 1.09050775f, 1.13878858f, 1.18920708f, 1.24185777f, 1.29683959f, 1.35425556f,
     1.41421354f, 1.47682619f, 1.54221082f, 1.61049032f, 1.68179286f, 1.75625217f, 1.8340081f, 1.91520655f},
    {0.0f, 4.62854715e-08f, -1.19921575e-08f, 4.72978243e-08f, 3.19341815e-08f, 3.62105723e-08f, -3.09907193e-08f, -7.47521334e-09f,
     1.71142709e-08f, -3.04768335e-08f, 5.23333421e-09f, 6.10759177e-09f, -1.47196051e-08f, -5.25879518e-09f, -6.12825968e-09f, 5.14060927e-09f},
    {1.0f, 0.990886867f, 0.982753873f, 0.97564429f, 0.969603539f, 0.964678884f, 0.960919797f, 0.958377779f,
     0.957106769f, 0.957163095f, 0.958605409f, 0.961495161f, 0.965896428f, 0.971876085f, 0.979504049f, 0.988853276f}};
/* as EXP on |r| <= ln 2 / 32, relative error of e^r 2^-37.4, and 2^-29.2 for the short one */
static const float EXP_SIXTEENTH[] = {0.5f, 0.166670084f, 0.0416670479f};
static const float EXP_SIXTEENTH_SHORT[] = {0.500016272f, 0.1666684f};
/* (log(1 + f) - f + f^2/2) / f^3, sqrt(1/2) - 1 <= f <= sqrt 2 - 1; relative error of log 2^-27.1 */
static const float LOG_FLOAT[] = {0.333333552f, -0.250008523f, 0.199997663f, -0.166213155f,
                                  0.142280996f, -0.132034585f, 0.126151875f, -0.0735380277f};

/* Adding this leaves a float rounded to an integer, which its low bits then hold; below, the same for a double. */
#define FLOAT_SHIFT 0x1.8p23f
/* a times 2 to the power floor(k), rounded once; k in sixteenths, |k| <= 252. AVX-512 has an instruction, elsewhere two normal factors. */
#ifndef vf_scale
static inline vf vf_scale(vf a, vf k) {
    vi n = vi_add(vi_round(vf_sub(k, vf_set(0.46875f))), vi_set(254));
    return vf_mul(vf_mul(a, vf_bits(vi_shl(vi_shr(n, 1), 23))), vf_bits(vi_shl(vi_shr(vi_add(n, vi_set(1)), 1), 23)));
}
#endif

/* -- exp: x = k ln 2 + r, |r| <= ln 2 / 2 ---------------------------------------------------------------------------------------- */
/* Adding this leaves a double rounded to an integer, which its low bits then hold (and 2 to that power is one shift away). */
#define SHIFT 0x1.8p52
/* e^r - 1; *t becomes SHIFT + k. The short form (relative error of e^r below 2^-38) serves where the result needs no more. */
static inline vw exp_reduced(vw x, vw *t, int full) {
    *t = vw_add(vw_mul(x, vw_set(1.4426950408889634)), vw_set(SHIFT));
    vw k = vw_sub(*t, vw_set(SHIFT)), r, z;
    if (full) { /* the first part of ln 2 has 42 bits: its product with k is exact */
        r = vw_sub(vw_sub(x, vw_mul(k, vw_set(0.6931471805598903))), vw_mul(k, vw_set(5.497923018708371e-14)));
        z = vw_mul(r, r);
        return vw_add(r, vw_mul(z, vw_poly(r, z, EXP, 8)));
    }
    r = vw_sub(x, vw_mul(k, vw_set(0.6931471805599453)));
    z = vw_mul(r, r);
    return vw_add(r, vw_mul(z, vw_poly(r, z, EXP_SHORT, 6)));
}
/* a * 2^k for a normal result; a NaN t comes with a NaN a, whose low bits are zero. */
static inline vw vw_scale(vw a, vw t) { return vw_iadd(a, vw_shl(t, 52)); }
static inline vw vw_exp(vw x, int full) {
    vw t, q = exp_reduced(x, &t, full);
    return vw_scale(vw_add(vw_set(1.0), q), t);
}
/* e^x = high + low by floats, x = n ln 2 / 16 + h, e^x = 2^(n/16) (1 + rest) (1 + q), q = e^h - 1: needs the fused step, so that h and the
 * products are exact. The result has its power of two if `scaled` (|x| <= 80 then), else it wants 2 to the floor(*k). *low is at most a few
 * units of high; together they err by less than 2^-34.4 of e^x (2^-33.4 where scaled parts of *low are subnormal). */
static inline vf pair_exp(vf x, int scaled, vf *low, vf *k) {
    vf t = vf_fma(x, vf_set(23.0831203f), vf_set(FLOAT_SHIFT)), n = vf_sub(t, vf_set(FLOAT_SHIFT));
    vf h = vf_fma(n, vf_set(-0.0433216989f), x), power = vf_lookup(SIXTEENTHS[scaled ? POWER_BITS : POWER], vi_bits(t));
    if (scaled) power = vf_bits(vi_add(vi_bits(power), vi_shl(vi_bits(t), 19)));
    vf p = vf_fma(vf_fma(h, vf_set(EXP_SIXTEENTH[2]), vf_set(EXP_SIXTEENTH[1])), h, vf_set(EXP_SIXTEENTH[0]));
    vf z = vf_mul(h, h), q = vf_fma(z, p, h); /* e^h - 1 = q + what its rounding lost */
    vf rest = vf_fma(n, vf_set(1.19040888e-10f), vf_lookup(SIXTEENTHS[POWER_REST], vi_bits(t)));
    rest = vf_add(rest, vf_fma(z, p, vf_sub(h, q)));
    vf high = vf_fma(power, q, power);
    *low = vf_fma(high, rest, vf_fma(power, q, vf_sub(power, high)));
    *k = vf_mul(n, vf_set(0.0625f));
    return high;
}
/* Exact mode takes a pair of floats where its error leaves no doubt which float is nearest, and double lanes for the few vectors with a
 * lane in doubt: so the bits are those of the double lanes, which instruction sets without the fused step always take. Not inlined: the
 * loops keep their registers. */
#define OM_IN_DOUBT(m) __builtin_expect(vm_any(m), 0)
#define OM_RARE static __attribute__((noinline, cold))

/* Below -104 the result is less than half the least float, above 89 it exceeds the largest one. */
OM_RARE vf double_exp(vf x) { return vf_from_vw(vw_exp(vw_from_vf(x), 1)); }
static inline vf exact_exp(vf x) {
    x = vf_clip(x, -104.0f, 89.0f);
    if (!HAS_FMA) return vf_from_vw(vw_exp(vw_from_vf(x), 1));
    const vf error = vf_set(0x1.7p-34f);
    vf low, k, high = pair_exp(x, 0, &low, &k), up = vf_add(high, vf_add(low, error)), y = vf_scale(up, k);
    /* a subnormal result would be rounded twice */
    vm doubt = vm_or(vf_lt(vf_add(high, vf_sub(low, error)), up), vm_and(vf_lt(vf_set(-104.0f), x), vf_lt(x, vf_set(-87.3f))));
    return OM_IN_DOUBT(doubt) ? vf_select(doubt, double_exp(x), y) : y;
}
/* 1 / (1 + e^-x) */
static inline vw vw_sigmoid(vw x) { return vw_div(vw_set(1.0), vw_add(vw_set(1.0), vw_exp(vw_xor(x, vw_set(-0.0)), 0))); }
OM_RARE vf double_sigmoid(vf x) { return vf_result(vf_from_vw(vw_sigmoid(vw_from_vf(vf_clip(x, -104.0f, 104.0f))))); }
/* With e = e^-|x|: 1 / (1 + e) or e / (1 + e), by one division and the exact remainder. An error of e counts by its share e / (1 + e)^2;
 * below -70, where the pair of e may not be normal, the doubt exceeds a unit. A NaN counts as a doubt, so that lanes without doubt need no
 * look for it: here, unlike in other rows, it is the canonical one already. */
static inline vf exact_sigmoid(vf x) {
    if (!HAS_FMA) return vf_result(vf_from_vw(vw_sigmoid(vw_from_vf(vf_clip(x, -104.0f, 104.0f)))));
    const vf minus_one = vf_set(-1.0f), zero = vf_set(0.0f);
    vf rest, k, e = pair_exp(vf_neg(vf_min(vf_set(80.0f), vf_abs(x))), 1, &rest, &k);
    vf minus_d = vf_sub(minus_one, e), lost = vf_sub(vf_sub(vf_sub(minus_one, minus_d), e), rest), inverse = vf_div(minus_one, minus_d);
    vm negative = vf_lt(x, zero);
    vf n = vf_select(negative, e, vf_set(1.0f)), y = vf_mul(n, inverse);
    vf left = vf_add(vf_fma(minus_d, y, n), vf_fma(lost, y, vf_select(negative, rest, zero)));
    vf error = vf_fma(vf_min(e, vf_set(0.25f)), vf_set(0x1p-34f), vf_set(0x1p-123f)), up = vf_add(y, vf_fma(left, inverse, error));
    vm doubt = vf_nle(up, vf_add(y, vf_fma(left, inverse, vf_neg(error))));
    return OM_IN_DOUBT(doubt) ? vf_select(doubt, double_sigmoid(x), up) : up;
}
/* (e^2a - 1) / (e^2a + 1) with e^2a - 1 = 2^k (e^r - 1) + (2^k - 1), which keeps its relative accuracy down to 0 */
static inline vw vw_tanh(vw a) {
    vw t, q = exp_reduced(vw_add(a, a), &t, 1), s = vw_scale(vw_set(1.0), t);
    vw m = vw_add(vw_mul(s, q), vw_sub(s, vw_set(1.0)));
    return vw_div(m, vw_add(m, vw_set(2.0)));
}
static inline vf exact_tanh(vf x) {
    vf a = vf_min(vf_set(10.0f), vf_abs(x));
    return vf_with_sign(vf_from_vw(vw_tanh(vw_from_vf(a))), x);
}

/* -- log: x = 2^k m, sqrt(1/2) <= m < sqrt 2, log m = 2 atanh((m - 1) / (m + 1)) ------------------------------------------------------ */
/* x > 0 and normal; every positive float is normal in double */
static inline vw vw_log(vw x) {
    const uint64_t one = 0x3FF0000000000000, root_half = 0x3FE6A09E667F3BCD;
    vw biased = vw_shr(vw_iadd(x, vw_word(one - root_half)), 52); /* k + 1023 */
    vw k = vw_sub(vw_iadd(biased, vw_set(0x1p52)), vw_set(0x1p52 + 1023));
    vw m = vw_iadd(x, vw_iadd(vw_word(one), vw_shl(vw_iadd(vw_xor(biased, vw_word(UINT64_MAX)), vw_word(1)), 52)));
    vw f = vw_sub(m, vw_set(1.0)), s = vw_div(f, vw_add(m, vw_set(1.0))), z = vw_mul(s, s);
    vw p = vw_mul(vw_mul(s, z), vw_poly(z, vw_mul(z, z), LOG, 6));
    vw low = vw_add(vw_mul(k, vw_set(5.497923018708371e-14)), p);
    return vw_add(vw_mul(k, vw_set(0.6931471805598903)), vw_add(vw_add(s, s), low));
}
/* log's values where the reduction does not hold: 0, negative, infinite, NaN */
static inline vf log_edges(vf x, vf y) {
    const vf infinity = vf_set(__builtin_inff());
    y = vf_select(vf_lt(vf_set(0.0f), x), y, vf_select(vf_eq(x, vf_set(0.0f)), vf_neg(infinity), vf_bits(vi_set(0x7FC00000))));
    return vf_select(vf_eq(x, infinity), infinity, vf_select(vf_unord(x, x), x, y));
}
static inline vf exact_log(vf x) { return log_edges(x, vf_from_vw(vw_log(vw_from_vf(x)))); }

/* -- sin, cos: x = j pi/2 + r, |r| <= pi/4 ------------------------------------------------------------------------------------------- */
/* Up to here j has 17 bits, and its product with the first part of pi/2 (33 bits) is exact. */
#define TRIG_LIMIT 0x1p17f
/* r; *t has j in its low bits */
static inline vw trig_reduced(vw x, vw *t) {
    *t = vw_add(vw_mul(x, vw_set(0.6366197723675814)), vw_set(SHIFT));
    vw j = vw_sub(*t, vw_set(SHIFT));
    return vw_sub(vw_sub(x, vw_mul(j, vw_set(1.5707963267341256))), vw_mul(j, vw_set(6.077100506506192e-11)));
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
static inline vw trig_value(vw r, vw t) {
    vw z = vw_mul(r, r), z2 = vw_mul(z, z), one = vw_set(1.0);
    vw s = vw_mul(r, vw_add(one, vw_mul(z, vw_poly(z, z2, SIN, 5))));
    vw c = vw_add(one, vw_mul(z, vw_add(vw_set(-0.5), vw_mul(z, vw_poly(z, z2, COS, 5)))));
    vw odd = vw_iadd(vw_xor(vw_and(t, vw_word(1)), vw_word(1)), vw_word(UINT64_MAX)); /* all ones where j is odd */
    return vw_xor(vw_xor(s, vw_and(vw_xor(s, c), odd)), vw_shl(vw_and(t, vw_word(2)), 62));
}
/* sin(x + quarter pi/2) */
static inline vf exact_trig(vf x, uint64_t quarter) {
    vw t, r = trig_reduced(vw_from_vf(x), &t);
    if (vm_any(vf_lt(vf_set(TRIG_LIMIT), vf_abs(x)))) {
        float lane[LANES];
        double turns[LANES], rest[LANES];
        vf_store(lane, x);
        vw_store(turns, t);
        vw_store(rest, r);
        for (int i = 0; i < LANES; i++) /* an infinity keeps its NaN */
            if (__builtin_fabsf(lane[i]) > TRIG_LIMIT && __builtin_fabsf(lane[i]) <= 0x1.fffffep127f)
                rest[i] = trig_reduced_any(lane[i], turns + i);
        t = vw_load(turns);
        r = vw_load(rest);
    }
    return vf_from_vw(trig_value(r, vw_iadd(t, vw_word(quarter))));
}
static inline vf exact_sin(vf x) { return exact_trig(x, 0); }
static inline vf exact_cos(vf x) { return exact_trig(x, 1); }

/* -- gelu x Phi(x), Phi(-t) = e^(-t^2/2) q P(q) --------------------------------------------------------------------------------------- */
/* Phi(x) for |x| <= 15; *e becomes e^(-x^2/2) */
static inline vw vw_normal(vw x, vw *e) {
    vw t = vw_and(x, vw_word(INT64_MAX)), one = vw_set(1.0);
    *e = vw_exp(vw_mul(vw_mul(x, x), vw_set(-0.5)), 0);
    vw q = vw_div(one, vw_add(one, vw_mul(t, vw_set(0.3))));
    vw tail = vw_mul(vw_mul(*e, q), vw_poly(q, vw_mul(q, q), MILLS, 14));
    vw positive = vw_iadd(vw_shr(x, 63), vw_word(UINT64_MAX)); /* all ones where the sign is plus */
    return vw_add(vw_and(positive, one), vw_xor(tail, vw_and(positive, vw_set(-0.0))));
}
static inline vw gelu_erf_half(vw x, vw clipped) {
    vw e;
    return vw_mul(x, vw_normal(clipped, &e));
}
/* Below -15 both forms round to -0, at -infinity too. */
static inline vf exact_gelu_erf(vf x) {
    vf c = vf_clip(x, -15.0f, 15.0f);
    x = vf_max(vf_set(-15.0f), x);
    return vf_from_vw(gelu_erf_half(vw_from_vf(x), vw_from_vf(c)));
}
static inline vw gelu_erf_slope(vw x, vw g) {
    vw e, phi = vw_normal(x, &e);
    return vw_mul(g, vw_add(phi, vw_mul(vw_mul(x, e), vw_set(0.3989422804014327))));
}
static inline vf exact_gelu_erf_bwd(vf x, vf g) {
    x = vf_clip(x, -15.0f, 15.0f);
    return vf_from_vw(gelu_erf_slope(vw_from_vf(x), vw_from_vf(g)));
}
/* tanh form: x sigmoid(2u), 2u = 2 sqrt(2/pi) (x + 0.044715 x^3) */
static inline vw gelu_tanh_half(vw x, vw clipped) {
    vw z = vw_mul(clipped, clipped), one = vw_set(1.0);
    vw u = vw_mul(clipped, vw_add(vw_set(-1.5957691216057308), vw_mul(z, vw_set(-0.07135481627260025))));
    return vw_div(x, vw_add(one, vw_exp(u, 1)));
}
static inline vf exact_gelu_tanh(vf x) {
    vf c = vf_clip(x, -20.0f, 20.0f);
    x = vf_max(vf_set(-20.0f), x);
    return vf_from_vw(gelu_tanh_half(vw_from_vf(x), vw_from_vf(c)));
}
/* s + x s (1 - s) (2u)' with s = sigmoid(2u), 1 - s = e^-2u s */
static inline vw gelu_tanh_slope(vw x, vw g) {
    vw z = vw_mul(x, x), one = vw_set(1.0);
    vw e = vw_exp(vw_mul(x, vw_add(vw_set(-1.5957691216057308), vw_mul(z, vw_set(-0.07135481627260025)))), 1);
    vw s = vw_div(one, vw_add(one, e));
    vw xu = vw_mul(x, vw_add(vw_set(1.5957691216057308), vw_mul(z, vw_set(0.21406444881780073))));
    return vw_mul(g, vw_mul(s, vw_add(one, vw_mul(vw_mul(xu, e), s))));
}
static inline vf exact_gelu_tanh_bwd(vf x, vf g) {
    x = vf_clip(x, -20.0f, 20.0f);
    return vf_from_vw(gelu_tanh_slope(vw_from_vf(x), vw_from_vf(g)));
}

/* -- pow: e^(b log|a|) with the sign and the special values of C99 -------------------------------------------------------------------- */
static inline vf lane_pow(vf a, vf b) {
    const vf zero = vf_set(0.0f), one = vf_set(1.0f), infinity = vf_set(__builtin_inff());
    vf size = vf_abs(a);
    vw power = vw_mul(vw_from_vf(b), vw_log(vw_from_vf(size)));
    vf z = vf_from_vw(power); /* coarse, for the range; the values below it are replaced where |z| is large or a special */
    vf y = vf_from_vw(vw_exp(power, 1));
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
/* e^r - 1 = *high + *low, where high is exact in r; FLOAT_SHIFT + k */
static inline vf fast_reduced(vf x, vf *high, vf *low) {
    vf t = vf_madd(x, vf_set(1.44269504f), vf_set(FLOAT_SHIFT)), k = vf_sub(t, vf_set(FLOAT_SHIFT));
    vf rest = vf_mul(k, vf_set(-1.428606765330187e-06f));
    *high = vf_madd(k, vf_set(-0.693145751953125f), x);
    vf r = vf_add(*high, rest);
    *low = vf_madd(vf_poly(r, EXP_FLOAT, 5), vf_mul(r, r), rest);
    return t;
}
/* -104 <= x <= 89 */
static inline vf fast_exp_inside(vf x) {
    vf t = vf_madd(x, vf_set(23.0831203f), vf_set(FLOAT_SHIFT)), n = vf_sub(t, vf_set(FLOAT_SHIFT));
    vf h = vf_madd(n, vf_set(-0.0433197021484375f), x); /* exact: this part of ln 2 / 16 has 12 bits */
    vf rest = vf_madd(n, vf_set(-1.99663646e-06f), vf_lookup(SIXTEENTHS[POWER_REST], vi_bits(t)));
    vf r = vf_add(h, rest), p = vf_madd(r, vf_set(EXP_SIXTEENTH_SHORT[1]), vf_set(EXP_SIXTEENTH_SHORT[0]));
    vf power = vf_lookup(SIXTEENTHS[POWER], vi_bits(t));
    return vf_scale(vf_madd(power, vf_madd(vf_mul(r, r), p, r), power), vf_mul(n, vf_set(0.0625f)));
}
static inline vf fast_exp(vf x) { return fast_exp_inside(vf_clip(x, -104.0f, 89.0f)); }
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

/* -t^2/2 = k ln 2 + r and r = *high + *low, where high is exact; k */
static inline vf half_square_reduced(vf t, vf *high, vf *low) {
    vf n = vf_mul(t, vf_set(-0.5f)), s = vf_mul(n, t), rest = vf_fma(n, t, vf_neg(s)); /* -t^2/2 = s + rest */
    vf shifted = vf_fma(s, vf_set(1.44269504f), vf_set(FLOAT_SHIFT)), k = vf_sub(shifted, vf_set(FLOAT_SHIFT));
    *high = vf_fma(k, vf_set(-0.693145751953125f), s);
    *low = vf_fma(k, vf_set(-1.428606765330187e-06f), rest);
    return k;
}
/* M(t) = e^(t^2/2) Phi(-t) = *lead + the result, which is small; the low part of the table is less than half a unit of M */
static inline vf float_mills(vf t, vf *lead, int whole) {
    vi piece = vi_shr(vi_bits(vf_add(t, vf_set(1.0f))), 21);
    vf h = vf_sub(t, vf_lookup(MILLS_PIECES[PIECE_CENTRE], piece));
    vf m = vf_lookup(MILLS_PIECES[PIECE_LOW + PIECE_DEGREE], piece);
    for (int i = PIECE_DEGREE - 1; i > 0; i--) m = vf_fma(m, h, vf_lookup(MILLS_PIECES[PIECE_LOW + i], piece));
    *lead = vf_lookup(MILLS_PIECES[PIECE_HIGH], piece);
    return whole ? vf_fma(m, h, vf_lookup(MILLS_PIECES[PIECE_LOW], piece)) : vf_mul(m, h);
}
/* gelu of the erf form in floats, far from 0 (lane_pieces.h has the middle): every step is one IEEE operation, the fused ones
 * included, so the bits agree everywhere; exact mode recovers two more rounding errors.
 * With t = |x|: gelu = max(x, 0) - t Phi(-t) and t Phi(-t) = 2^k (a + v) (1 + q), where a is t times the leading coefficient of the
 * piece, so that v (the exact rest of that product and the remaining terms) and q are small and their errors count little. */
static inline vf float_gelu_erf(vf x) {
    vf t = vf_abs(x), base = vf_max(vf_set(-0.0f), x);
    if (!OM_EXACT) t = vf_min(vf_set(14.4f), t); /* from here on the result is base */
    vf high, low, k = half_square_reduced(t, &high, &low), r = vf_add(high, low), lead, m = float_mills(t, &lead, OM_EXACT);
    vf a = vf_mul(t, lead), v = vf_fma(t, m, vf_fma(t, lead, vf_neg(a))), sum = vf_add(a, v);
#if OM_EXACT
    vf p = vf_set(EXP_FLOAT[5]);
    for (int i = 4; i >= 0; i--) p = vf_fma(p, r, vf_set(EXP_FLOAT[i]));
    low = vf_fma(vf_mul(r, r), p, low); /* e^r - 1 = high + low */
    /* a (1 + high) = grown + left, without the rounding of a sum half as large as the result */
    vf grown = vf_fma(a, high, a), left = vf_fma(a, high, vf_sub(a, grown));
    v = vf_scale(vf_add(vf_fma(sum, low, vf_fma(v, high, v)), left), k);
    a = vf_scale(grown, k);
    vf y = vf_sub(base, a);
    v = vf_sub(v, vf_sub(vf_sub(base, y), a)); /* and the rounding error of y */
    y = vf_with_sign(vf_abs(vf_sub(y, v)), x);
    return vf_select(vf_lt(vf_set(14.4f), t), base, y);
#else
    const float *c = EXP_FLOAT_SHORT; /* two chains of half the latency */
    vf z = vf_mul(r, r), p = vf_fma(vf_set(c[4]), z, vf_fma(vf_set(c[3]), r, vf_set(c[2])));
    low = vf_fma(z, vf_fma(p, z, vf_fma(vf_set(c[1]), r, vf_set(c[0]))), low); /* e^r - 1 = high + low */
    return vf_sub(base, vf_scale(vf_add(a, vf_fma(sum, high, vf_fma(sum, low, v))), k));
#endif
}
/* Its slope, in floats in exact mode too, for the same reason: with d = Phi(-t) - t phi(t) = e^(-t^2/2) (M(t) - t / sqrt(2 pi)), d where x is
 * negative, else 1 - d. */
static inline vf float_gelu_erf_bwd(vf x, vf g) {
    vf t = vf_min(vf_set(14.75f), vf_abs(x)); /* here d has rounded to -0 */
    vf high, low, k = half_square_reduced(t, &high, &low), r = vf_add(high, low), lead, m = float_mills(t, &lead, 1);
    vf p = vf_set(EXP_FLOAT[5]);
    for (int i = 4; i >= 0; i--) p = vf_fma(p, r, vf_set(EXP_FLOAT[i]));
    low = vf_fma(vf_mul(r, r), p, low); /* e^r - 1 = high + low */
    vf w = vf_fma(t, vf_set(-0.398942292f), lead);
    m = vf_fma(t, vf_set(1.13354e-08f), m); /* 1 / sqrt(2 pi) = 0.398942292 - 1.13354e-8 */
    vf sum = vf_add(w, m), d = vf_scale(vf_add(w, vf_fma(sum, high, vf_fma(sum, low, m))), k);
    return vf_mul(g, vf_select(vf_lt(x, vf_set(0.0f)), d, vf_sub(vf_set(1.0f), d)));
}

/* -- the function of the mode ---------------------------------------------------------------------------------------------------------- */
static inline vf lane_exp(vf x) { return OM_EXACT ? exact_exp(x) : fast_exp(x); }
static inline vf lane_log(vf x) { return OM_EXACT ? exact_log(x) : fast_log(x); }
static inline vf lane_gelu_erf_bwd(vf x, vf g) { return OM_EXACT || HAS_FMA ? float_gelu_erf_bwd(x, g) : exact_gelu_erf_bwd(x, g); }

#endif
