/* Element-wise kernels, forward and backward neighbours; strides, broadcasting and threads belong to elementwise.pyx.
 *
 * Every row runs the same lane expression on whole vectors and, through masked loads, on the tail, so a result never depends on its
 * position. The output may be one of the inputs. Exact mode writes each NaN of arithmetic as 0x7FC00000. */
#ifndef OM_ELEMENTWISE_H
#define OM_ELEMENTWISE_H

#define OM_ELEMENTWISE(ROW) \
    ROW(map1, neg, "-x") \
    ROW(map1, relu, "x where x > 0 or NaN, else +0") \
    ROW(map1, sqrt, "square root") \
    ROW(map1, square, "x * x") \
    ROW(map1, abs, "|x|") \
    ROW(map2, add, "a + b") \
    ROW(map2, sub, "a - b") \
    ROW(map2, mul, "a * b") \
    ROW(map2, div, "a / b") \
    ROW(map2, relu_bwd, "saved y, g: g where y > 0, else 0")

#endif

#if defined(OM_VARIANT) && !defined(OM_ELEMENTWISE_LOOPS)
#define OM_ELEMENTWISE_LOOPS

/* Two vectors per step hide the latency of the longer expressions; one more form serves what is left. */
#define OM_MAP1(name, expression) \
    static inline vf each_##name(vf x) { return vf_result(expression); } \
    static void k_##name(const float *x, float *y, ptrdiff_t n) { \
        ptrdiff_t i = 0; \
        for (; i + 2 * LANES <= n; i += 2 * LANES) { \
            vf u = each_##name(vf_load(x + i)), v = each_##name(vf_load(x + i + LANES)); \
            vf_store(y + i, u); \
            vf_store(y + i + LANES, v); \
        } \
        for (; i + LANES <= n; i += LANES) vf_store(y + i, each_##name(vf_load(x + i))); \
        if (i < n) vf_store_tail(y + i, each_##name(vf_load_tail(x + i, n - i)), n - i); \
    }
#define OM_MAP2(name, expression) \
    static inline vf each_##name(vf a, vf b) { return vf_result(expression); } \
    static void k_##name(const float *a, const float *b, float *y, ptrdiff_t n) { \
        ptrdiff_t i = 0; \
        for (; i + 2 * LANES <= n; i += 2 * LANES) { \
            vf u = each_##name(vf_load(a + i), vf_load(b + i)), v = each_##name(vf_load(a + i + LANES), vf_load(b + i + LANES)); \
            vf_store(y + i, u); \
            vf_store(y + i + LANES, v); \
        } \
        for (; i + LANES <= n; i += LANES) vf_store(y + i, each_##name(vf_load(a + i), vf_load(b + i))); \
        if (i < n) vf_store_tail(y + i, each_##name(vf_load_tail(a + i, n - i), vf_load_tail(b + i, n - i)), n - i); \
    }

OM_MAP1(neg, vf_neg(x))
OM_MAP1(relu, vf_select(vf_le(x, vf_set(0.0f)), vf_set(0.0f), x))
OM_MAP1(sqrt, vf_sqrt(x))
OM_MAP1(square, vf_mul(x, x))
OM_MAP1(abs, vf_abs(x))
OM_MAP2(add, vf_add(a, b))
OM_MAP2(sub, vf_sub(a, b))
OM_MAP2(mul, vf_mul(a, b))
OM_MAP2(div, vf_div(a, b))
OM_MAP2(relu_bwd, vf_select(vf_lt(vf_set(0.0f), a), b, vf_set(0.0f)))

#undef OM_MAP1
#undef OM_MAP2
#endif
