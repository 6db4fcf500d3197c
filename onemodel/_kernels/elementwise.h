/* Element-wise kernels, forward and backward neighbours. Owns the loops over contiguous arrays; the functions are in lane_math.h, strides,
 * broadcasting and threads in elementwise.pyx.
 *
 * Every row runs one lane expression on whole vectors and, through loads and stores of n lanes, on the tail, so a result never depends on
 * its position. The output may be one of the inputs. Exact mode writes each NaN of arithmetic as 0x7FC00000; where copies payloads. */
#ifndef OM_ELEMENTWISE_H
#define OM_ELEMENTWISE_H

#define OM_ELEMENTWISE(ROW) \
    ROW(map1, neg, "-x") \
    ROW(map1, relu, "x where x > 0 or NaN, else +0") \
    ROW(map1, sigmoid, "1 / (1 + e^-x)") \
    ROW(map1, tanh, "hyperbolic tangent") \
    ROW(map1, exp, "e^x") \
    ROW(map1, log, "natural logarithm") \
    ROW(map1, sin, "sine") \
    ROW(map1, cos, "cosine") \
    ROW(map1, sqrt, "square root") \
    ROW(map1, square, "x * x") \
    ROW(map1, abs, "|x|") \
    ROW(map1, gelu_erf, "x (1 + erf(x / sqrt 2)) / 2") \
    ROW(map1, gelu_tanh, "x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2") \
    ROW(map1, silu, "x / (1 + e^-x)") \
    ROW(map2, add, "a + b") \
    ROW(map2, sub, "a - b") \
    ROW(map2, mul, "a * b") \
    ROW(map2, div, "a / b") \
    ROW(map2, maximum, "the larger; a NaN of either wins") \
    ROW(map2, minimum, "the smaller; a NaN of either wins") \
    ROW(map2, pow, "a^b, special values as C99") \
    ROW(map2, relu_bwd, "(y, g): g where y > 0, else 0") \
    ROW(map2, sigmoid_bwd, "(y, g): g y (1 - y)") \
    ROW(map2, tanh_bwd, "(y, g): g (1 - y y)") \
    ROW(map2, sin_bwd, "(x, g): g cos x") \
    ROW(map2, cos_bwd, "(x, g): -(g sin x)") \
    ROW(map2, sqrt_bwd, "(y, g): g / (2 y)") \
    ROW(map2, square_bwd, "(x, g): g (2 x)") \
    ROW(map2, abs_bwd, "(x, g): g, -g, or 0 where x is 0 or NaN") \
    ROW(map2, gelu_erf_bwd, "(x, g): g times the slope of gelu_erf") \
    ROW(map2, gelu_tanh_bwd, "(x, g): g times the slope of gelu_tanh") \
    ROW(map2, silu_bwd, "(x, g): g times the slope of silu") \
    ROW(map2, leaky_relu, "(x, slope): x where x > 0, else x slope") \
    ROW(map3, leaky_relu_bwd, "(x, slope, g): g where x > 0, else g slope") \
    ROW(map2, elu, "(x, a): x where x >= 0, else a (e^x - 1)") \
    ROW(map3, elu_bwd, "(x, a, g): g where x > 0, else (g a) e^x") \
    ROW(map3, softplus, "(x, b, threshold): log(1 + e^(b x)) / b, x where b x > threshold") \
    ROW(map4, softplus_bwd, "(x, b, threshold, g): g sigmoid(b x), g where b x > threshold") \
    ROW(map3, fma, "a b + c rounded once: the step of exact products, here to be checked by itself") \
    ROW(map3, div_bwd_b, "(a, b, g): -g ((a / b) / b)") \
    ROW(map3, maximum_bwd, "(a, b, g): the share of a: 0 where a < b, g/2 where equal, else g; swap a and b for the share of b") \
    ROW(map3, minimum_bwd, "(a, b, g): the share of a: 0 where a > b, g/2 where equal, else g; swap a and b for the share of b") \
    ROW(map3, pow_bwd_a, "(a, b, g): g (b a^(b-1)), 0 where b is 0") \
    ROW(map3, pow_bwd_b, "(a, b, g): g (a^b log a), 0 where a is 0 and b >= 0") \
    ROW(map3, clamp, "(x, lo, hi): min(max(x, lo), hi); a NaN of any wins") \
    ROW(map4, clamp_bwd, "(x, lo, hi, g): g where lo <= x <= hi, else 0") \
    ROW(compare, eq, "a == b") \
    ROW(compare, ne, "a != b") \
    ROW(compare, lt, "a < b") \
    ROW(compare, le, "a <= b") \
    ROW(compare, gt, "a > b") \
    ROW(compare, ge, "a >= b") \
    ROW(select, where, "c ? a : b, bits unchanged")

#endif

#if defined(OM_VARIANT) && !defined(OM_ELEMENTWISE_LOOPS)
#define OM_ELEMENTWISE_LOOPS
#include "lane_activation.h"

/* The loops, specialised by inlining for one row's function each. All inputs of a step are loaded before its output is stored, since the
 * output may be an input. No unrolling by hand: the steps are independent, and the processor overlaps them. */
#define OM_INLINE static inline __attribute__((always_inline))
OM_INLINE void map1(const float *x, float *y, ptrdiff_t n, vf (*row)(vf)) {
    ptrdiff_t i = 0;
    for (; i + LANES <= n; i += LANES) vf_store(y + i, row(vf_load(x + i)));
    if (i < n) vf_store_tail(y + i, row(vf_load_tail(x + i, n - i)), n - i);
}
OM_INLINE void map2(const float *a, const float *b, float *y, ptrdiff_t n, vf (*row)(vf, vf)) {
    ptrdiff_t i = 0, m;
    for (; i + LANES <= n; i += LANES) vf_store(y + i, vf_result(row(vf_load(a + i), vf_load(b + i))));
    if ((m = n - i) > 0) vf_store_tail(y + i, vf_result(row(vf_load_tail(a + i, m), vf_load_tail(b + i, m))), m);
}
OM_INLINE void map3(const float *a, const float *b, const float *c, float *y, ptrdiff_t n, vf (*row)(vf, vf, vf)) {
    ptrdiff_t i = 0, m;
    for (; i + LANES <= n; i += LANES) vf_store(y + i, vf_result(row(vf_load(a + i), vf_load(b + i), vf_load(c + i))));
    if ((m = n - i) > 0)
        vf_store_tail(y + i, vf_result(row(vf_load_tail(a + i, m), vf_load_tail(b + i, m), vf_load_tail(c + i, m))), m);
}
OM_INLINE void map4(const float *a, const float *b, const float *c, const float *d, float *y, ptrdiff_t n, vf (*row)(vf, vf, vf, vf)) {
    ptrdiff_t i = 0, m;
    for (; i + LANES <= n; i += LANES)
        vf_store(y + i, vf_result(row(vf_load(a + i), vf_load(b + i), vf_load(c + i), vf_load(d + i))));
    if ((m = n - i) > 0)
        vf_store_tail(y + i, vf_result(row(vf_load_tail(a + i, m), vf_load_tail(b + i, m), vf_load_tail(c + i, m), vf_load_tail(d + i, m))), m);
}

#define OM_MAP1(name, expression) \
    OM_INLINE vf row_##name(vf x) { return vf_result(expression); } \
    static void k_##name(const float *in, float *out, ptrdiff_t n) { map1(in, out, n, row_##name); }
#define OM_MAP2(name, a, b, expression) \
    OM_INLINE vf row_##name(vf a, vf b) { return expression; } \
    static void k_##name(const float *in1, const float *in2, float *out, ptrdiff_t n) { map2(in1, in2, out, n, row_##name); }
#define OM_MAP3(name, a, b, c, expression) \
    OM_INLINE vf row_##name(vf a, vf b, vf c) { return expression; } \
    static void k_##name(const float *in1, const float *in2, const float *in3, float *out, ptrdiff_t n) { \
        map3(in1, in2, in3, out, n, row_##name); \
    }
#define OM_MAP4(name, a, b, c, d, expression) \
    OM_INLINE vf row_##name(vf a, vf b, vf c, vf d) { return expression; } \
    static void k_##name(const float *in1, const float *in2, const float *in3, const float *in4, float *out, ptrdiff_t n) { \
        map4(in1, in2, in3, in4, out, n, row_##name); \
    }

#define ZERO vf_set(0.0f)
#define ONE vf_set(1.0f)

OM_MAP1(neg, vf_neg(x))
OM_MAP1(relu, vf_select(vf_le(x, ZERO), ZERO, x))
static void k_sigmoid(const float *in, float *out, ptrdiff_t n) { map1(in, out, n, lane_sigmoid); } /* its NaN is the canonical one */
OM_MAP1(tanh, lane_tanh(x))
OM_MAP1(exp, lane_exp(x))
OM_MAP1(log, lane_log(x))
OM_MAP1(sin, exact_sin(x))
OM_MAP1(cos, exact_cos(x))
OM_MAP1(sqrt, vf_sqrt(x))
OM_MAP1(square, vf_mul(x, x))
OM_MAP1(abs, vf_abs(x))
OM_MAP1(gelu_erf, lane_gelu_erf(x))
OM_MAP1(gelu_tanh, exact_gelu_tanh(x))
OM_MAP1(silu, lane_silu(x))

OM_MAP2(add, a, b, vf_add(a, b))
OM_MAP2(sub, a, b, vf_sub(a, b))
OM_MAP2(mul, a, b, vf_mul(a, b))
OM_MAP2(div, a, b, vf_div(a, b))
/* The sum of a NaN and anything is that NaN. */
OM_MAP2(maximum, a, b, vf_select(vf_unord(a, b), vf_add(a, b), vf_max(a, b)))
OM_MAP2(minimum, a, b, vf_select(vf_unord(a, b), vf_add(a, b), vf_min(a, b)))
OM_MAP2(pow, a, b, lane_pow(a, b))

OM_MAP2(relu_bwd, y, g, vf_select(vf_lt(ZERO, y), g, ZERO))
OM_MAP2(sigmoid_bwd, y, g, vf_mul(vf_mul(g, y), vf_sub(ONE, y)))
OM_MAP2(tanh_bwd, y, g, vf_mul(g, vf_sub(ONE, vf_mul(y, y))))
OM_MAP2(sin_bwd, x, g, vf_mul(g, exact_cos(x)))
OM_MAP2(cos_bwd, x, g, vf_neg(vf_mul(g, exact_sin(x))))
OM_MAP2(sqrt_bwd, y, g, vf_div(g, vf_add(y, y)))
OM_MAP2(square_bwd, x, g, vf_mul(g, vf_add(x, x)))
OM_MAP2(abs_bwd, x, g, vf_select(vf_lt(ZERO, x), g, vf_select(vf_lt(x, ZERO), vf_neg(g), ZERO)))
OM_MAP2(gelu_erf_bwd, x, g, lane_gelu_erf_bwd(x, g))
OM_MAP2(gelu_tanh_bwd, x, g, exact_gelu_tanh_bwd(x, g))
OM_MAP2(silu_bwd, x, g, vf_mul(g, lane_silu_slope(x)))
OM_MAP2(leaky_relu, x, slope, vf_select(vf_lt(ZERO, x), x, vf_mul(x, slope)))
OM_MAP3(leaky_relu_bwd, x, slope, g, vf_select(vf_lt(ZERO, x), g, vf_mul(g, slope)))
OM_MAP2(elu, x, a, lane_elu(x, a))
OM_MAP3(elu_bwd, x, a, g, vf_select(vf_lt(ZERO, x), g, vf_mul(vf_mul(g, a), lane_exp(x))))
OM_MAP3(softplus, x, b, threshold, lane_softplus(x, b, threshold))
OM_MAP4(softplus_bwd, x, b, threshold, g, vf_mul(g, lane_softplus_slope(x, b, threshold)))

OM_MAP3(fma, a, b, c, vf_fma(a, b, c))
OM_MAP3(div_bwd_b, a, b, g, vf_neg(vf_mul(g, vf_div(vf_div(a, b), b)))) /* g a and b b would leave the range where the slope does not */
OM_MAP3(maximum_bwd, a, b, g, vf_select(vf_lt(a, b), ZERO, vf_select(vf_eq(a, b), vf_mul(g, vf_set(0.5f)), g)))
OM_MAP3(minimum_bwd, a, b, g, vf_select(vf_lt(b, a), ZERO, vf_select(vf_eq(a, b), vf_mul(g, vf_set(0.5f)), g)))
OM_MAP3(pow_bwd_a, a, b, g, vf_select(vf_eq(b, ZERO), ZERO, vf_mul(g, vf_mul(b, lane_pow(a, vf_sub(b, ONE))))))
OM_MAP3(pow_bwd_b, a, b, g, vf_select(vm_and(vf_eq(a, ZERO), vf_le(ZERO, b)), ZERO, vf_mul(g, vf_mul(lane_pow(a, b), lane_log(a)))))
OM_MAP3(clamp, x, lo, hi, row_minimum(row_maximum(x, lo), hi))
OM_MAP4(clamp_bwd, x, lo, hi, g, vf_select(vm_and(vf_le(lo, x), vf_le(x, hi)), g, ZERO))

/* Bytes come out, so the compiler's own vectors serve better than lanes of floats; the output cannot be an input. */
#define OM_COMPARE(name, operator) \
    static void k_##name(const float *restrict a, const float *restrict b, uint8_t *restrict y, ptrdiff_t n) { \
        for (ptrdiff_t i = 0; i < n; i++) y[i] = a[i] operator b[i]; \
    }
OM_COMPARE(eq, ==)
OM_COMPARE(ne, !=)
OM_COMPARE(lt, <)
OM_COMPARE(le, <=)
OM_COMPARE(gt, >)
OM_COMPARE(ge, >=)

/* As integers: a move of a float may quiet a signalling NaN on some machines. Each element is read before it is written. */
static void k_where(const uint8_t *c, const float *a, const float *b, float *y, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i += 64) {
        int32_t p[64], q[64];
        int m = n - i < 64 ? (int)(n - i) : 64;
        memcpy(p, a + i, (size_t)m * sizeof *p);
        memcpy(q, b + i, (size_t)m * sizeof *q);
        for (int j = 0; j < m; j++) p[j] = c[i + j] ? p[j] : q[j];
        memcpy(y + i, p, (size_t)m * sizeof *p);
    }
}

#undef ZERO
#undef ONE
#undef OM_MAP1
#undef OM_MAP2
#undef OM_MAP3
#undef OM_MAP4
#undef OM_COMPARE
#endif
