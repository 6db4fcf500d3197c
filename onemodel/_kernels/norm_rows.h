/* Normalisation along rows: sums of eight rows at a time, and what is written with them. Must not contain a list of kernels.
 *
 * A row's sum is a chain. Exact mode, and fast mode for short rows, runs chains beside each other, one per lane, through transposes in
 * registers; fast mode adds a long row in lanes. Included by norm.h alone. */

enum { NORM_SQUARES, NORM_SUMS, NORM_SCALED_SUMS, NORM_LONG = 64 };

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

/* A side's rows, and what each of them has one of: the mean and rstd of a turn's rows stand as often as its vectors need them. */
typedef struct norm_side {
    const float *x[MOST_SIDE], *g[MOST_SIDE];
    float mean[2 * MOST_SIDE], rstd[2 * MOST_SIDE];
    double a[MOST_SIDE], b[MOST_SIDE];
} norm_side;

/* The rows of one turn in its columns from c on: (x - mean)^2, or g and g * x^, where g is first multiplied by gamma for NORM_SCALED_SUMS. */
OM_INLINE void norm_turn(const int what, const float *const *x, const float *const *g, ptrdiff_t c, vf mean, vf rstd, const float *gamma, vd *a, vd *b) {
    vf d[4], e[4];
    turn_rows(x, c, d);
    OM_UNROLL for (int k = 0; k < 4; k++) d[k] = vf_sub(d[k], mean);
    if (what != NORM_SQUARES) {
        OM_UNROLL for (int k = 0; k < 4; k++) {
            d[k] = vf_mul(d[k], rstd);
            e[k] = vf_quads(g[k] + c, g[TURN_ROWS - 4 + k] + c);
            if (what == NORM_SCALED_SUMS) e[k] = vf_mul(e[k], vf_quads(gamma + c, gamma + c));
        }
        turn_fours(e);
    }
    OM_UNROLL for (int i = 0; i < TURN_COLS; i++)
        OM_UNROLL for (int part = 0; part < TURN_PARTS; part++) {
            vd v = turned(d, i, part);
            if (what == NORM_SQUARES) {
                a[part] = vd_add(a[part], vd_mul(v, v));
            } else {
                vd w = turned(e, i, part);
                a[part] = vd_add(a[part], w);
                b[part] = vd_add(b[part], vd_mul(w, v));
            }
        }
}

OM_INLINE void norm_turns(const int what, const int turns, norm_side *side, ptrdiff_t rows, ptrdiff_t cols, const float *gamma) {
    vd a[MOST_SIDE / VD_LANES], b[MOST_SIDE / VD_LANES];
    ptrdiff_t c = 0;
    if (LANES > 1) {
        OM_UNROLL for (int k = 0; k < turns * TURN_PARTS; k++) {
            a[k] = vd_load(side->a + k * VD_LANES);
            b[k] = vd_load(side->b + k * VD_LANES);
        }
        while (c + TURN_COLS <= cols) {
            const ptrdiff_t end = c + LINE_FLOATS <= cols ? c + LINE_FLOATS : c + TURN_COLS;
            OM_UNROLL for (int k = 0; k < turns; k++) {
                const vf mean = vf_load(side->mean + 2 * k * TURN_ROWS), rstd = vf_load(side->rstd + 2 * k * TURN_ROWS);
                for (ptrdiff_t at = c; at < end; at += TURN_COLS)
                    norm_turn(what, side->x + k * TURN_ROWS, side->g + k * TURN_ROWS, at, mean, rstd, gamma, a + k * TURN_PARTS, b + k * TURN_PARTS);
            }
            c = end;
        }
        OM_UNROLL for (int k = 0; k < turns * TURN_PARTS; k++) {
            vd_store(side->a + k * VD_LANES, a[k]);
            vd_store(side->b + k * VD_LANES, b[k]);
        }
    }
    for (; c < cols; c++)
        for (ptrdiff_t r = 0; r < rows; r++) {
            const ptrdiff_t at = r / TURN_ROWS * 2 * TURN_ROWS + r % TURN_ROWS;
            norm_one(what, side->x[r][c], side->g[r][c], side->mean[at], side->rstd[at], what == NORM_SCALED_SUMS ? gamma[c] : 1.0f, side->a + r, side->b + r);
        }
}

/* Chains of rows beside each other. Where there are fewer rows than lanes the last one fills up, and its copies are thrown away. */
OM_INLINE void norm_beside(const int what, const float *x, ptrdiff_t xs, const float *g, ptrdiff_t gs, ptrdiff_t rows, ptrdiff_t cols,
                           const float *mean, const float *rstd, const float *gamma, double *acc_a, double *acc_b) {
    norm_side side;
    for (ptrdiff_t r = 0; r < MOST_SIDE; r++) {
        const ptrdiff_t k = r < rows ? r : rows - 1, at = r / TURN_ROWS * 2 * TURN_ROWS + r % TURN_ROWS;
        side.x[r] = x + k * xs;
        side.g[r] = g + k * gs;
        side.mean[at] = side.mean[at + TURN_ROWS] = mean[k];
        side.rstd[at] = side.rstd[at + TURN_ROWS] = rstd[k];
        side.a[r] = acc_a[k];
        side.b[r] = acc_b[k];
    }
#define OM_CALL(turns) norm_turns(what, turns, &side, rows, cols, gamma)
    OM_TURNS(rows, OM_CALL);
#undef OM_CALL
    memcpy(acc_a, side.a, (size_t)rows * sizeof *acc_a);
    if (what != NORM_SQUARES) memcpy(acc_b, side.b, (size_t)rows * sizeof *acc_b);
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
    if (OM_EXACT || cols < NORM_LONG)
        for (; rows - r > 1; r += MOST_SIDE) {
            const ptrdiff_t side = rows - r < MOST_SIDE ? rows - r : MOST_SIDE;
            norm_beside(what, x + r * xs, xs, g + r * gs, gs, side, cols, mean + r, rstd + r, gamma, a + r, b + r);
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
    for (ptrdiff_t r = 0; r < rows; r += MOST_SIDE, x += MOST_SIDE * stride, y += MOST_SIDE * cols) {
        const ptrdiff_t n = rows - r < MOST_SIDE ? rows - r : MOST_SIDE;
        double sum[MOST_SIDE] = {0.0}, squares[MOST_SIDE] = {0.0};
        float m[MOST_SIDE] = {0.0f}, s[MOST_SIDE];
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
    for (int v = 0; has_sums && !OM_EXACT && v < V; v++) {
        if (vm_any(vf_unord(vf_sub(few_b[v], few_b[v]), vf_sub(few_g[v], few_g[v])))) { /* out of a float's range: again, in doubles */
            for (ptrdiff_t r = 0; r < rows; r++) {
                const float *const xr = x + (r - rows) * xs + v * LANES, *const gr = g + (r - rows) * gs + v * LANES;
                const vf h = vf_mul(vf_sub(n == LANES ? vf_load(xr) : vf_load_tail(xr, n), vf_set(mean[r])), vf_set(rstd[r]));
                const vw e = vw_from_vf(n == LANES ? vf_load(gr) : vf_load_tail(gr, n));
                sb[v] = vw_add(sb[v], e);
                sg[v] = vw_add(sg[v], vw_mul(e, vw_from_vf(h)));
            }
            continue;
        }
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
