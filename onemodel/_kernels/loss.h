/* The element-wise parts of losses: picking and scattering by class, errors of an input against a target; reductions, threads and the check
 * of targets belong to loss.pyx. Class targets have been checked: each is a class, or the one to ignore. */
#ifndef OM_LOSS_H
#define OM_LOSS_H

/* y = w error(a, b); w NULL: 1. positive is the weight of positive targets of the logistic error, NULL: 1. delta: where huber and smooth_l1
 * bend. */
typedef void om_error_fn(const float *a, const float *b, const float *w, const float *positive, float delta, float *y, ptrdiff_t n);
/* The gradients of a and b, either NULL where nobody wants it; s[i * s_step] is the gradient of y[i]. */
typedef void om_error_bwd_fn(const float *a, const float *b, const float *w, const float *positive, float delta, const float *s, ptrdiff_t s_step,
                             float *da, float *db, ptrdiff_t n);

#define OM_LOSS(ROW) \
    ROW(nll_pick, nll_pick, "loss = -w (x[target] - m - log_sum), m and log_sum 0 if absent; the weight w too; both 0 where ignored") \
    ROW(nll_scale, nll_scale, "w (g / total), 0 where ignored") \
    ROW(nll_scatter, nll_scatter, "dx[target] = -scale; the rest is left") \
    ROW(error, squared_error, "(a - b)^2") \
    ROW(error, absolute_error, "|a - b|") \
    ROW(error, huber_error, "d = a - b: d^2/2 where |d| < delta, else delta (|d| - delta/2)") \
    ROW(error, smooth_l1_error, "d = a - b: d^2/(2 delta) where |d| < delta, else |d| - delta/2") \
    ROW(error, logistic_error, "|a| (1 - b, or positive b for a < 0) + (1 - b + positive b) log(1 + e^-|a|)") \
    ROW(error_bwd, squared_error_bwd, "(a - b) 2s") \
    ROW(error_bwd, absolute_error_bwd, "s, -s, or 0 where a - b is 0 or NaN") \
    ROW(error_bwd, huber_error_bwd, "a - b within [-delta, delta], times s") \
    ROW(error_bwd, smooth_l1_error_bwd, "a - b within [-delta, delta], / delta, times s") \
    ROW(error_bwd, logistic_error_bwd, "(1 - b) sigmoid(a) - positive b sigmoid(-a), and -a + (positive - 1) log(1 + e^-a), times s")

#endif

#if defined(OM_VARIANT) && !defined(OM_LOSS_LOOPS)
#define OM_LOSS_LOOPS

static inline float one_nan(float v) { return OM_EXACT && v != v ? f4_bits(0x7FC00000) : v; }

static void k_nll_pick(const om_targets *t, const float *x, const float *m, const float *log_sum, float *loss, float *weight, ptrdiff_t lo, ptrdiff_t hi) {
    for (ptrdiff_t i = lo; i < hi; i++) {
        int64_t c = t->target[i];
        if (c == t->ignore) {
            loss[i] = weight[i] = 0.0f;
            continue;
        }
        float v = x[(i / t->inner * t->classes + c) * t->inner + i % t->inner], w = t->weight ? t->weight[c] : 1.0f;
        if (m) v = (v - m[i]) - log_sum[i];
        loss[i] = one_nan(0.0f - w * v); /* not a negation: a loss of 0 is +0 */
        weight[i] = w;
    }
}

static void k_nll_scale(const om_targets *t, const float *g, ptrdiff_t g_stride, double total, float *scale, ptrdiff_t lo, ptrdiff_t hi) {
    for (ptrdiff_t i = lo; i < hi; i++) {
        int64_t c = t->target[i];
        float share = (float)((double)g[i * g_stride] / total);
        scale[i] = c == t->ignore ? 0.0f : one_nan((t->weight ? t->weight[c] : 1.0f) * share);
    }
}

static void k_nll_scatter(const om_targets *t, const float *scale, float *dx, ptrdiff_t lo, ptrdiff_t hi) {
    for (ptrdiff_t i = lo; i < hi; i++)
        if (t->target[i] != t->ignore) dx[(i / t->inner * t->classes + t->target[i]) * t->inner + i % t->inner] = one_nan(0.0f - scale[i]);
}

/* -- errors: the steps of a loop are vectors, the last one perhaps a part of one ---------------------------------------------------- */
static inline vf vf_some(const float *p, ptrdiff_t m) { return m >= LANES ? vf_load(p) : vf_load_tail(p, m); }
static inline void vf_put(float *p, vf v, ptrdiff_t m) {
    v = vf_result(v);
    if (m >= LANES)
        vf_store(p, v);
    else
        vf_store_tail(p, v, m);
}
#define OM_EACH_VECTOR(i, m, n) for (ptrdiff_t i = 0, m; (m = (n)-i) > 0; i += LANES)

/* An error of the difference d alone: its value, and its slope times s. */
#define OM_DIFFERENCE(name, value, slope) \
    static void k_##name##_error(const float *a, const float *b, const float *w, const float *positive, float delta, float *y, ptrdiff_t n) { \
        (void)positive, (void)delta; \
        OM_EACH_VECTOR(i, m, n) { \
            vf d = vf_sub(vf_some(a + i, m), vf_some(b + i, m)), e = value; \
            vf_put(y + i, w ? vf_mul(e, vf_some(w + i, m)) : e, m); \
        } \
    } \
    static void k_##name##_error_bwd(const float *a, const float *b, const float *w, const float *positive, float delta, const float *gradient, \
                                     ptrdiff_t step, float *da, float *db, ptrdiff_t n) { \
        (void)positive, (void)delta; \
        OM_EACH_VECTOR(i, m, n) { \
            vf d = vf_sub(vf_some(a + i, m), vf_some(b + i, m)), s = step ? vf_some(gradient + i, m) : vf_set(*gradient); \
            if (w) s = vf_mul(s, vf_some(w + i, m)); \
            vf e = slope; \
            if (da) vf_put(da + i, e, m); \
            if (db) vf_put(db + i, vf_neg(e), m); \
        } \
    }
static inline vf huber_value(vf d, float delta) {
    vf size = vf_abs(d), bend = vf_set(delta), half = vf_set(0.5f), inner = vf_mul(vf_mul(half, size), size);
    return vf_select(vf_lt(size, bend), inner, vf_mul(bend, vf_sub(size, vf_mul(half, bend))));
}
static inline vf smooth_l1_value(vf d, float delta) {
    vf size = vf_abs(d), bend = vf_set(delta), half = vf_set(0.5f), inner = vf_div(vf_mul(vf_mul(half, size), size), bend);
    return vf_select(vf_lt(size, bend), inner, vf_sub(size, vf_mul(half, bend)));
}
static inline vf absolute_slope(vf d, vf s) {
    const vf zero = vf_set(0.0f);
    return vf_select(vf_lt(zero, d), s, vf_select(vf_lt(d, zero), vf_neg(s), zero));
}
OM_DIFFERENCE(squared, vf_mul(d, d), vf_mul(d, vf_add(s, s)))
OM_DIFFERENCE(absolute, vf_abs(d), absolute_slope(d, s))
OM_DIFFERENCE(huber, huber_value(d, delta), vf_mul(vf_clip(d, -delta, delta), s))
OM_DIFFERENCE(smooth_l1, smooth_l1_value(d, delta), vf_mul(vf_div(vf_clip(d, -delta, delta), vf_set(delta)), s))
#undef OM_DIFFERENCE

/* c v, but 0 where c is 0, also for an infinite v: the limit. A NaN comes back by the logarithm. */
static inline vf times_or_zero(vf c, vf v) { return vf_select(vf_eq(c, vf_set(0.0f)), vf_set(0.0f), vf_mul(c, v)); }
/* Neither the value nor the gradients subtract numbers that are nearly equal: with r = 1 - b and q = positive b the error is |x| times r or,
 * for negative x, q, plus (r + q) log(1 + e^-|x|); its slope is r sigmoid(x) - q sigmoid(-x). */
static void k_logistic_error(const float *a, const float *b, const float *w, const float *positive, float delta, float *y, ptrdiff_t n) {
    const vf zero = vf_set(0.0f), one = vf_set(1.0f), infinity = vf_set(__builtin_inff());
    (void)delta;
    OM_EACH_VECTOR(i, m, n) {
        vf x = vf_some(a + i, m), t = vf_some(b + i, m), q = positive ? vf_mul(t, vf_some(positive + i, m)) : t, r = vf_sub(one, t);
        vf size = vf_abs(x), log = lane_softplus(vf_neg(size), one, infinity);
        if (positive) log = vf_mul(vf_add(r, q), log);
        vf e = vf_add(times_or_zero(vf_select(vf_lt(x, zero), q, r), size), log);
        vf_put(y + i, w ? vf_mul(e, vf_some(w + i, m)) : e, m);
    }
}
static void k_logistic_error_bwd(const float *a, const float *b, const float *w, const float *positive, float delta, const float *gradient,
                                 ptrdiff_t step, float *da, float *db, ptrdiff_t n) {
    const vf zero = vf_set(0.0f), one = vf_set(1.0f), infinity = vf_set(__builtin_inff());
    (void)delta;
    OM_EACH_VECTOR(i, m, n) {
        vf x = vf_some(a + i, m), t = vf_some(b + i, m), s = step ? vf_some(gradient + i, m) : vf_set(*gradient);
        vf p = positive ? vf_some(positive + i, m) : one, size = vf_abs(x);
        vm negative = vf_lt(x, zero);
        if (w) s = vf_mul(s, vf_some(w + i, m));
        if (da) {
            vf q = vf_mul(t, p), r = vf_sub(one, t), e = lane_exp(vf_neg(size)); /* sigmoid(|x|) = 1 / (1 + e), sigmoid(-|x|) = e / (1 + e) */
            vf top = vf_select(negative, vf_sub(vf_mul(r, e), q), vf_sub(r, vf_mul(q, e)));
            vf_put(da + i, vf_mul(vf_div(top, vf_add(one, e)), s), m);
        }
        if (db) {
            vf e = vf_neg(x);
            if (positive) { /* -x + (p - 1) (max(-x, 0) + log) is -x, or p |x| for negative x, plus (p - 1) log */
                vf more = vf_sub(p, one), log = lane_softplus(vf_neg(size), one, infinity);
                e = vf_add(vf_select(negative, times_or_zero(p, size), e), vf_mul(more, log));
            }
            vf_put(db + i, vf_mul(e, s), m);
        }
    }
}
#endif
