/* The element-wise parts of losses: picking and scattering by class, squared differences; reductions, threads and the check of targets
 * belong to loss.pyx. Targets have been checked: each is a class, or the one to ignore. */
#ifndef OM_LOSS_H
#define OM_LOSS_H

#define OM_LOSS(ROW) \
    ROW(nll_pick, nll_pick, "loss = -w (x[target] - m - log_sum), m and log_sum 0 if absent; the weight w too; both 0 where ignored") \
    ROW(nll_scale, nll_scale, "w (g / total), 0 where ignored") \
    ROW(nll_scatter, nll_scatter, "dx[target] = -scale; the rest is left") \
    ROW(map2, squared_difference, "(a - b)^2") \
    ROW(map3, squared_difference_bwd, "2 (a - b) g") \
    ROW(scaled, scaled_difference, "(a - b) scale")

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

static void k_squared_difference(const float *a, const float *b, float *y, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i++) {
        float d = a[i] - b[i];
        y[i] = one_nan(d * d);
    }
}
static void k_squared_difference_bwd(const float *a, const float *b, const float *g, float *y, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i++) y[i] = one_nan((2.0f * (a[i] - b[i])) * g[i]);
}
static void k_scaled_difference(const float *a, const float *b, float scale, float *y, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i++) y[i] = one_nan((a[i] - b[i]) * scale);
}
#endif
