/* Normalisation along rows: sums of eight rows at a time, and what is written with them. Must not contain a list of kernels.
 *
 * A row's sum is a chain. Exact mode, and fast mode for short rows, runs chains beside each other, one per lane, through transposes in
 * registers; fast mode adds a long row in lanes. Included by norm.h alone. */

enum { NORM_SQUARES, NORM_SUMS, NORM_SCALED_SUMS, NORM_LONG = 64 };

/* Four neighbours of each of four rows; t[c] and u[c] are what their column c adds. NORM_SQUARES: (x - mean)^2. Else g and g * x^, where g
 * is first multiplied by gamma for NORM_SCALED_SUMS. */
OM_INLINE void norm_four(const int what, const float *const x[4], const float *const g[4], ptrdiff_t c, const f4 mean[4], const f4 rstd[4], f4 gamma,
                         d4 t[4], d4 u[4]) {
    d4 v[4], w[4];
    OM_UNROLL for (int r = 0; r < 4; r++) {
        f4 d = load_f4(x[r] + c) - mean[r];
        if (what == NORM_SQUARES) {
            w[r] = widen_4(d);
            v[r] = w[r] * w[r];
        } else {
            f4 e = load_f4(g[r] + c);
            if (what == NORM_SCALED_SUMS) e = e * gamma;
            v[r] = widen_4(e);
            w[r] = v[r] * widen_4(d * rstd[r]);
        }
    }
    transpose_4x4(v, t);
    if (what != NORM_SQUARES) transpose_4x4(w, u);
}

/* One element of one row. */
OM_INLINE void norm_one(const int what, float x, float g, float mean, float rstd, float gamma, double *a, double *b) {
    float d = x - mean;
    if (what == NORM_SQUARES) {
        *a += (double)d * (double)d;
    } else {
        float e = what == NORM_SCALED_SUMS ? g * gamma : g;
        *a += (double)e;
        *b += (double)e * (double)(d * rstd);
    }
}

/* Chains of `side` rows beside each other, 4 or 8. Where there are fewer rows the last one fills up, and its copies are thrown away. */
OM_INLINE void norm_chains(const int what, const int side, const float *x, ptrdiff_t xs, const float *g, ptrdiff_t gs, ptrdiff_t rows, ptrdiff_t cols,
                           const float *mean, const float *rstd, const float *gamma, double *acc_a, double *acc_b) {
    const float *xr[8], *gr[8];
    f4 m[8], s[8], scale = {1.0f, 1.0f, 1.0f, 1.0f};
    double a8[8] = {0.0}, b8[8] = {0.0};
    for (ptrdiff_t r = 0; r < side; r++) {
        ptrdiff_t k = r < rows ? r : rows - 1;
        xr[r] = x + k * xs;
        gr[r] = g + k * gs;
        m[r] = (f4){mean[k], mean[k], mean[k], mean[k]};
        s[r] = (f4){rstd[k], rstd[k], rstd[k], rstd[k]};
        a8[r] = acc_a[k];
        if (what != NORM_SQUARES) b8[r] = acc_b[k];
    }
    d4 a0 = load_d4(a8), a1 = load_d4(a8 + 4), b0 = load_d4(b8), b1 = load_d4(b8 + 4), t[4], u[4];
    ptrdiff_t c = 0;
    /* A line of the cache at a time: rows a power of two apart share places there, and what the first four rows need just fits. */
    while (c + 4 <= cols) {
        const ptrdiff_t end = c + 16 <= cols ? c + 16 : c + 4;
        for (ptrdiff_t at = c; at < end; at += 4) {
            if (what == NORM_SCALED_SUMS) scale = load_f4(gamma + at);
            norm_four(what, xr, gr, at, m, s, scale, t, u);
            a0 = a0 + t[0] + t[1] + t[2] + t[3];
            if (what != NORM_SQUARES) b0 = b0 + u[0] + u[1] + u[2] + u[3];
        }
        for (ptrdiff_t at = c; side == 8 && at < end; at += 4) {
            if (what == NORM_SCALED_SUMS) scale = load_f4(gamma + at);
            norm_four(what, xr + 4, gr + 4, at, m + 4, s + 4, scale, t, u);
            a1 = a1 + t[0] + t[1] + t[2] + t[3];
            if (what != NORM_SQUARES) b1 = b1 + u[0] + u[1] + u[2] + u[3];
        }
        c = end;
    }
    *(d4_any *)a8 = a0;
    *(d4_any *)(a8 + 4) = a1;
    *(d4_any *)b8 = b0;
    *(d4_any *)(b8 + 4) = b1;
    for (; c < cols; c++)
        for (ptrdiff_t r = 0; r < rows; r++)
            norm_one(what, xr[r][c], gr[r][c], m[r][0], s[r][0], what == NORM_SCALED_SUMS ? gamma[c] : 1.0f, a8 + r, b8 + r);
    memcpy(acc_a, a8, (size_t)rows * sizeof *acc_a);
    if (what != NORM_SQUARES) memcpy(acc_b, b8, (size_t)rows * sizeof *acc_b);
}

OM_INLINE double norm_lanes(vw v) { return sum_lanes(v.lo) + (VW_SECOND ? sum_lanes(v.hi) : 0.0); }

/* Fast mode's long row: four vectors meet in float32, fours of them in double lanes. Returns how many of the first elements it has taken: none
 * where a square or product left the range of a float, so that the chain, in double, has to see. */
OM_INLINE ptrdiff_t norm_in_lanes(const int what, const float *x, const float *g, ptrdiff_t cols, float mean, float rstd, const float *gamma, double *a,
                                  double *b) {
    enum { TOGETHER = 4 * LANES };
    vw sa = vw_set(0.0), sb = sa;
    const vf mv = vf_set(mean), sv = vf_set(rstd);
    ptrdiff_t c = 0;
    for (; c + TOGETHER <= cols; c += TOGETHER) {
        vf va = vf_set(0.0f), vb = va;
        OM_UNROLL for (int k = 0; k < 4; k++) {
            const ptrdiff_t at = c + k * LANES;
            vf d = vf_sub(vf_load(x + at), mv);
            if (what == NORM_SQUARES) {
                va = vf_madd(d, d, va);
            } else {
                vf e = vf_load(g + at);
                if (what == NORM_SCALED_SUMS) e = vf_mul(e, vf_load(gamma + at));
                va = vf_add(va, e);
                vb = vf_madd(e, vf_mul(d, sv), vb);
            }
        }
        sa = vw_add(sa, vw_from_vf(va));
        if (what != NORM_SQUARES) sb = vw_add(sb, vw_from_vf(vb));
    }
    double ta = norm_lanes(sa), tb = norm_lanes(sb);
    if (!(ta - ta == 0.0) || !(tb - tb == 0.0)) return 0;
    *a += ta;
    if (what != NORM_SQUARES) *b += tb;
    return c;
}

OM_INLINE void norm_chain(const int what, const float *x, const float *g, ptrdiff_t cols, float mean, float rstd, const float *gamma, double *acc_a,
                          double *acc_b) {
    double a = *acc_a, b = what == NORM_SQUARES ? 0.0 : *acc_b;
    ptrdiff_t c = 0;
    if (!OM_EXACT && cols >= NORM_LONG) c = norm_in_lanes(what, x, g, cols, mean, rstd, gamma, &a, &b);
    for (; c < cols; c++) norm_one(what, x[c], g[c], mean, rstd, what == NORM_SCALED_SUMS ? gamma[c] : 1.0f, &a, &b);
    *acc_a = a;
    if (what != NORM_SQUARES) *acc_b = b;
}

OM_INLINE void norm_rows(const int what, const float *x, ptrdiff_t xs, const float *g, ptrdiff_t gs, ptrdiff_t rows, ptrdiff_t cols,
                         const float *mean, const float *rstd, const float *gamma, double *a, double *b) {
    ptrdiff_t r = 0;
    if (OM_EXACT || cols < NORM_LONG) {
        for (; rows - r > 4; r += 8)
            norm_chains(what, 8, x + r * xs, xs, g + r * gs, gs, rows - r < 8 ? rows - r : 8, cols, mean + r, rstd + r, gamma, a + r, b + r);
        if (rows - r > 1) {
            norm_chains(what, 4, x + r * xs, xs, g + r * gs, gs, rows - r, cols, mean + r, rstd + r, gamma, a + r, b + r);
            return;
        }
    }
    for (; r < rows; r++) norm_chain(what, x + r * xs, g + r * gs, cols, mean[r], rstd[r], gamma, a + r, b + r);
}

static void k_norm_squares_rows(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, const float *mean, double *acc) {
    norm_rows(NORM_SQUARES, x, stride, x, stride, rows, cols, mean, mean, mean, acc, acc);
}

static void k_norm_sums_rows(const om_norm *s, const float *x, ptrdiff_t x_stride, const float *g, ptrdiff_t g_stride, ptrdiff_t rows, ptrdiff_t cols,
                             double *sum_g, double *sum_gx) {
    norm_rows(NORM_SUMS, x, x_stride, g, g_stride, rows, cols, s->mean, s->rstd, s->mean, sum_g, sum_gx);
}

/* -- what is written ----------------------------------------------------------------------------------------------------------------- */

/* One number for all columns (step 0), or one per column (step 1); nothing there stands for `otherwise`. */
OM_INLINE vf norm_at(const float *p, const int step, ptrdiff_t c, ptrdiff_t n, float otherwise) {
    if (!p) return vf_set(otherwise);
    return !step ? vf_set(*p) : n == LANES ? vf_load(p + c) : vf_load_tail(p + c, n);
}

/* gamma and beta are per column here; adding -0 changes nothing, not even a zero's sign. */
OM_INLINE void norm_apply_lanes(const float *mean, const float *rstd, const int step, const float *gamma, const float *beta, const int param_step,
                           const float *x, ptrdiff_t c, ptrdiff_t n, float *y) {
    vf v = n == LANES ? vf_load(x + c) : vf_load_tail(x + c, n);
    v = vf_mul(vf_sub(v, norm_at(mean, step, c, n, 0.0f)), norm_at(rstd, step, c, n, 1.0f));
    v = vf_add(vf_mul(v, norm_at(gamma, param_step, c, n, 1.0f)), norm_at(beta, param_step, c, n, -0.0f));
    if (n == LANES) vf_store(y + c, vf_result(v));
    else vf_store_tail(y + c, vf_result(v), n);
}

OM_INLINE void norm_apply_all(const float *mean, const float *rstd, const int step, const float *gamma, const float *beta, const int param_step,
                         const float *x, ptrdiff_t cols, float *y) {
    ptrdiff_t c = 0;
    for (; c + LANES <= cols; c += LANES) norm_apply_lanes(mean, rstd, step, gamma, beta, param_step, x, c, LANES, y);
    if (c < cols) norm_apply_lanes(mean, rstd, step, gamma, beta, param_step, x, c, cols - c, y);
}

static void norm_apply_row(const float *mean, const float *rstd, const int step, const float *gamma, const float *beta, const float *x, ptrdiff_t cols,
                      float *y) {
    if (step) norm_apply_all(mean, rstd, 1, gamma, beta, 1, x, cols, y);
    else norm_apply_all(mean, rstd, 0, gamma, beta, 1, x, cols, y);
}

static void k_norm_apply_rows(const om_norm *s, const float *x, ptrdiff_t x_stride, ptrdiff_t rows, ptrdiff_t cols, float *y, ptrdiff_t y_stride) {
    for (ptrdiff_t r = 0; r < rows; r++)
        norm_apply_all(s->mean + r, s->rstd + r, 0, s->gamma ? s->gamma + r : NULL, s->beta ? s->beta + r : NULL, 0, x + r * x_stride, cols, y + r * y_stride);
}

OM_INLINE void norm_grad_lanes(const float *x, const float *g, ptrdiff_t n, vf mean, vf rstd, vf before, vf a, vf b, vf scale, float *dx) {
    vf h = vf_mul(vf_sub(n == LANES ? vf_load(x) : vf_load_tail(x, n), mean), rstd);
    vf e = vf_mul(n == LANES ? vf_load(g) : vf_load_tail(g, n), before);
    e = vf_result(vf_mul(vf_sub(vf_sub(e, a), vf_mul(h, b)), scale));
    if (n == LANES) vf_store(dx, e);
    else vf_store_tail(dx, e, n);
}

static void k_norm_grad_rows(const om_norm *s, const float *x, ptrdiff_t x_stride, const float *g, ptrdiff_t g_stride, ptrdiff_t rows, ptrdiff_t cols,
                             const float *before, const float *a, const float *b, float *dx, ptrdiff_t dx_stride) {
    for (ptrdiff_t r = 0; r < rows; r++, x += x_stride, g += g_stride, dx += dx_stride) {
        const vf mean = vf_set(s->mean[r]), rstd = vf_set(s->rstd[r]), pre = vf_set(before ? before[r] : 1.0f), av = vf_set(a[r]), bv = vf_set(b[r]);
        const vf scale = s->gamma ? vf_mul(rstd, vf_set(s->gamma[r])) : rstd;
        ptrdiff_t c = 0;
        for (; c + LANES <= cols; c += LANES) norm_grad_lanes(x + c, g + c, LANES, mean, rstd, pre, av, bv, scale, dx + c);
        if (c < cols) norm_grad_lanes(x + c, g + c, cols - c, mean, rstd, pre, av, bv, scale, dx + c);
    }
}

static void k_norm_scale_rows(const om_norm *s, const float *g, ptrdiff_t g_stride, ptrdiff_t rows, ptrdiff_t cols, float *dx, ptrdiff_t dx_stride) {
    for (ptrdiff_t r = 0; r < rows; r++, g += g_stride, dx += dx_stride) {
        const vf rstd = vf_set(s->rstd[r]), scale = s->gamma ? vf_mul(rstd, vf_set(s->gamma[r])) : rstd;
        ptrdiff_t c = 0;
        for (; c + LANES <= cols; c += LANES) vf_store(dx + c, vf_result(vf_mul(vf_load(g + c), scale)));
        if (c < cols) vf_store_tail(dx + c, vf_result(vf_mul(vf_load_tail(g + c, cols - c), scale)), cols - c);
    }
}

/* -- rows that are normalised each by itself ------------------------------------------------------------------------------------------ */

static void k_norm_finish(double *sum, double *squares, const float *mean, double n, double eps, float *rstd, ptrdiff_t count);

static void k_layer_norm(const om_layer_norm *p, const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, float *y, float *mean, float *rstd) {
    for (ptrdiff_t r = 0; r < rows; r += 8, x += 8 * stride, y += 8 * cols) {
        const ptrdiff_t n = rows - r < 8 ? rows - r : 8;
        double sum[8] = {0.0}, squares[8] = {0.0};
        float m[8] = {0.0f}, s[8];
        if (p->centred) {
            k_sum_rows(x, stride, n, cols, sum);
            k_round_sums(sum, (double)cols, m, 1, n);
        }
        k_norm_squares_rows(x, stride, n, cols, m, squares);
        k_norm_finish(sum, squares, m, (double)cols, p->eps, s, n);
        for (ptrdiff_t k = 0; k < n; k++) norm_apply_row(m + k, s + k, 0, p->gamma, p->beta, x + k * stride, cols, y + k * cols);
        if (mean) memcpy(mean + r, m, (size_t)n * sizeof *m);
        if (rstd) memcpy(rstd + r, s, (size_t)n * sizeof *s);
    }
}

/* V whole vectors of columns, or the first n lanes of one, of at most eight rows: dx, and the two sums, which fast mode adds up in float
 * before they join the doubles. */
OM_INLINE void layer_lanes(const int V, const int has_dx, const int has_sums, const float *x, ptrdiff_t xs, const float *g, ptrdiff_t gs, ptrdiff_t rows,
                           ptrdiff_t n, const float *mean, const float *rstd, const float *a, const float *b, const float *gamma, float *dx, ptrdiff_t ds,
                           vw *sg, vw *sb) {
    vf few_g[2] = {vf_set(0.0f), vf_set(0.0f)}, few_b[2] = {vf_set(0.0f), vf_set(0.0f)}, scale[2];
    OM_UNROLL for (int v = 0; v < V; v++) scale[v] = norm_at(gamma, 1, v * LANES, n, 1.0f);
    for (ptrdiff_t r = 0; r < rows; r++, x += xs, g += gs)
        OM_UNROLL for (int v = 0; v < V; v++) {
            vf e = n == LANES ? vf_load(g + v * LANES) : vf_load_tail(g, n);
            vf h = vf_mul(vf_sub(n == LANES ? vf_load(x + v * LANES) : vf_load_tail(x, n), vf_set(mean[r])), vf_set(rstd[r]));
            if (has_sums && OM_EXACT) {
                vw w = vw_from_vf(e);
                sb[v] = vw_add(sb[v], w);
                sg[v] = vw_add(sg[v], vw_mul(w, vw_from_vf(h)));
            } else if (has_sums) {
                few_b[v] = vf_add(few_b[v], e);
                few_g[v] = vf_madd(e, h, few_g[v]);
            }
            if (has_dx) {
                e = vf_mul(e, scale[v]);
                e = vf_result(vf_mul(vf_sub(vf_sub(e, vf_set(a[r])), vf_mul(h, vf_set(b[r]))), vf_set(rstd[r])));
                if (n == LANES) vf_store(dx + r * ds + v * LANES, e);
                else vf_store_tail(dx + r * ds, e, n);
            }
        }
    OM_UNROLL for (int v = 0; has_sums && !OM_EXACT && v < V; v++) {
        sb[v] = vw_add(sb[v], vw_from_vf(few_b[v]));
        sg[v] = vw_add(sg[v], vw_from_vf(few_g[v]));
    }
}

/* Two vectors at a time where those are a line of the cache, since rows a power of two apart share places there. */
OM_INLINE void layer_block(const int has_dx, const int has_sums, const float *x, ptrdiff_t xs, const float *g, ptrdiff_t gs, ptrdiff_t rows, ptrdiff_t cols,
                           const float *mean, const float *rstd, const float *a, const float *b, const float *gamma, float *dx, ptrdiff_t ds,
                           double *dgamma, double *dbeta) {
    vw sg[2] = {vw_set(0.0), vw_set(0.0)}, sb[2] = {vw_set(0.0), vw_set(0.0)};
    ptrdiff_t c = 0;
    while (c + LANES <= cols) {
        const int two = LANES < 16 && c + 2 * LANES <= cols;
        if (has_sums)
            for (int v = 0; v <= two; v++) {
                sg[v] = vw_load(dgamma + c + v * LANES);
                sb[v] = vw_load(dbeta + c + v * LANES);
            }
        const float *scale = gamma ? gamma + c : NULL;
        float *to = has_dx ? dx + c : NULL;
        if (two) layer_lanes(2, has_dx, has_sums, x + c, xs, g + c, gs, rows, LANES, mean, rstd, a, b, scale, to, ds, sg, sb);
        else layer_lanes(1, has_dx, has_sums, x + c, xs, g + c, gs, rows, LANES, mean, rstd, a, b, scale, to, ds, sg, sb);
        if (has_sums)
            for (int v = 0; v <= two; v++) {
                vw_store(dgamma + c + v * LANES, sg[v]);
                vw_store(dbeta + c + v * LANES, sb[v]);
            }
        c += two ? 2 * LANES : LANES;
    }
    if (c < cols) {
        double last_g[LANES] = {0.0}, last_b[LANES] = {0.0};
        const size_t left = (size_t)(cols - c) * sizeof *last_g;
        if (has_sums) {
            memcpy(last_g, dgamma + c, left);
            memcpy(last_b, dbeta + c, left);
            sg[0] = vw_load(last_g);
            sb[0] = vw_load(last_b);
        }
        layer_lanes(1, has_dx, has_sums, x + c, xs, g + c, gs, rows, cols - c, mean, rstd, a, b, gamma ? gamma + c : NULL, has_dx ? dx + c : NULL, ds, sg, sb);
        if (has_sums) {
            vw_store(last_g, sg[0]);
            vw_store(last_b, sb[0]);
            memcpy(dgamma + c, last_g, left);
            memcpy(dbeta + c, last_b, left);
        }
    }
}

static void k_layer_norm_bwd(const om_layer_norm *p, const float *x, ptrdiff_t x_stride, const float *g, ptrdiff_t g_stride, ptrdiff_t rows,
                             ptrdiff_t cols, const float *mean, const float *rstd, float *dx, double *dgamma, double *dbeta) {
    for (ptrdiff_t r = 0; r < rows; r += 8, x += 8 * x_stride, g += 8 * g_stride) {
        const ptrdiff_t n = rows - r < 8 ? rows - r : 8;
        double sum_g[8] = {0.0}, sum_gx[8] = {0.0};
        float m[8] = {0.0f}, a[8] = {0.0f}, b[8];
        if (p->centred) memcpy(m, mean + r, (size_t)n * sizeof *m);
        if (!dx) {
            layer_block(0, 1, x, x_stride, g, g_stride, n, cols, m, rstd + r, a, a, NULL, NULL, 0, dgamma, dbeta);
            continue;
        }
        if (p->gamma) norm_rows(NORM_SCALED_SUMS, x, x_stride, g, g_stride, n, cols, m, rstd + r, p->gamma, sum_g, sum_gx);
        else norm_rows(NORM_SUMS, x, x_stride, g, g_stride, n, cols, m, rstd + r, m, sum_g, sum_gx);
        if (p->centred) k_round_sums(sum_g, (double)cols, a, 1, n);
        k_round_sums(sum_gx, (double)cols, b, 1, n);
        float *to = dx + r * cols;
        if (dgamma) layer_block(1, 1, x, x_stride, g, g_stride, n, cols, m, rstd + r, a, b, p->gamma, to, cols, dgamma, dbeta);
        else layer_block(1, 0, x, x_stride, g, g_stride, n, cols, m, rstd + r, a, b, p->gamma, to, cols, NULL, NULL);
    }
}
