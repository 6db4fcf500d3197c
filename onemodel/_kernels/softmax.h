/* Softmax, log-softmax and logsumexp over rows or columns, with their gradients and the gradient of the cross-entropy they are part of;
 * axes, strides and threads belong to softmax.pyx.
 *
 * The true maximum is subtracted first. Denominators and the sums of backward rules are chains in double (reduce.h), rounded once; the
 * logarithm of a denominator is taken in double, so a loss of 1e-9 is not lost in 1 + 1e-9. An infinite maximum needs no
 * case of its own: inf - inf makes the row NaN, as it should. */
#ifndef OM_SOFTMAX_H
#define OM_SOFTMAX_H

#define OM_SOFTMAX(ROW) \
    ROW(softmax, softmax_rows, "e^(x-m) / sum e^(x-m) along each row") \
    ROW(softmax, softmax_columns, "e^(x-m) / sum e^(x-m) along each column") \
    ROW(softmax, log_softmax_rows, "(x - m) - log sum e^(x-m) along each row") \
    ROW(softmax, log_softmax_columns, "(x - m) - log sum e^(x-m) along each column") \
    ROW(softmax_stats, softmax_stats_rows, "m = max x and log sum e^(x-m) of each row") \
    ROW(softmax_stats, softmax_stats_columns, "m = max x and log sum e^(x-m) of each column") \
    ROW(softmax_bwd, softmax_bwd_rows, "saved y, g: y (g - sum g y) along each row") \
    ROW(softmax_bwd, softmax_bwd_columns, "saved y, g: y (g - sum g y) along each column") \
    ROW(softmax_bwd, log_softmax_bwd_rows, "saved y, g: g - e^y sum g along each row") \
    ROW(softmax_bwd, log_softmax_bwd_columns, "saved y, g: g - e^y sum g along each column") \
    ROW(map2, logsumexp_join, "m + log_sum, m where m is infinite") \
    ROW(logsumexp_bwd, logsumexp_bwd_rows, "g e^(x - lse) along each row") \
    ROW(logsumexp_bwd, logsumexp_bwd_columns, "g e^(x - lse) along each column") \
    ROW(cross_entropy_bwd, cross_entropy_bwd_rows, "scale (softmax - one-hot target) along each row, 0 where scale is 0") \
    ROW(cross_entropy_bwd, cross_entropy_bwd_columns, "scale (softmax - one-hot target) along each column, 0 where scale is 0")

#endif

#if defined(OM_VARIANT) && !defined(OM_SOFTMAX_LOOPS)
#define OM_SOFTMAX_LOOPS

/* A vector at x + c, or what is left of it at the end of a row. */
static inline vf load_part(const float *x, ptrdiff_t left) { return left >= LANES ? vf_load(x) : vf_load_tail(x, left); }
static inline void store_part(float *y, vf v, ptrdiff_t left) {
    if (left >= LANES) vf_store(y, v);
    else vf_store_tail(y, v, left);
}

/* NaN if there is one: only where the sum that follows is not looked at does it matter. The last vector overlaps others, since an element may count
 * twice. */
static float row_max(const float *x, ptrdiff_t n) {
    if (n < LANES) {
        float best = x[0];
        int nan = best != best;
        for (ptrdiff_t i = 1; i < n; i++) {
            nan |= x[i] != x[i];
            best = x[i] > best ? x[i] : best;
        }
        return nan ? f4_bits(0x7FC00000) : best;
    }
    vf last = vf_load(x + n - LANES), a = last, b = last;
    vm nan = vf_unord(last, last);
    ptrdiff_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        vf u = vf_load(x + i), v = vf_load(x + i + LANES);
        a = vf_max(u, a);
        b = vf_max(v, b);
        nan = vm_or(nan, vf_unord(u, v));
    }
    if (i + LANES <= n) {
        vf u = vf_load(x + i);
        a = vf_max(u, a);
        nan = vm_or(nan, vf_unord(u, u));
    }
    return vm_any(nan) ? f4_bits(0x7FC00000) : vf_largest(vf_max(a, b));
}

/* The natural logarithms of sums that are at least 1, or NaN. */
static void log_sums(const double *s, float *out, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        double part[2 * VD_LANES];
        for (int k = 0; k < 2 * VD_LANES; k++) part[k] = i + k < n && k < LANES ? s[i + k] : 1.0;
        vd lo = vd_load(part), hi = vd_load(part + VD_LANES);
        vf plain = vf_from_vd(lo, hi), v = vf_from_vw(vw_log((vw){lo, hi}));
        store_part(out + i, vf_canon(vf_select(vf_unord(plain, plain), plain, v)), n - i);
    }
}

/* Lines of a later row are asked for while this one's exponentials are computed: rows of logits come from far memory, and their maximum is a
 * walk with little else to do. */
static inline void fetch_pair(const float *x) {
    for (int k = 0; k < 2 * LANES; k += 16) __builtin_prefetch(x + k, 0, 2);
}

/* Fast mode: the sum of e^(x - m), pairs of vectors in double lanes; y, which may be x, keeps the terms unless it is NULL. */
static inline double exp_row(const float *x, ptrdiff_t stride, float *y, ptrdiff_t n, vf m) {
    vd lo = vd_set(0.0), hi = lo;
    float rest[LANES];
    ptrdiff_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        vf a = lane_exp(vf_sub(vf_load(x + i), m)), b = lane_exp(vf_sub(vf_load(x + i + LANES), m)), both = vf_add(a, b);
        if (y) {
            vf_store(y + i, a);
            vf_store(y + i + LANES, b);
        } else
            fetch_pair(x + stride + i);
        lo = vd_add(lo, vd_lo(both));
        if (VD_LANES < LANES) hi = vd_add(hi, vd_hi(both));
    }
    double sum = vd_total(vd_add(lo, hi));
    for (; i < n; i += LANES) {
        vf_store(rest, lane_exp(vf_sub(load_part(x + i, n - i), m)));
        if (y) store_part(y + i, vf_load(rest), n - i);
        for (int k = 0; k < LANES && i + k < n; k++) sum += (double)rest[k];
    }
    return sum;
}

/* y = e^(x - m) of up to eight rows, with their sums; y may be x. */
static void exp_rows_8(const float *x, float *y, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t n, float *m, double *s) {
    for (ptrdiff_t r = 0; r < rows; r++) m[r] = row_max(x + r * stride, n);
    for (ptrdiff_t r = 0; r < rows; r++) {
        s[r] = 0.0;
        vf mv = vf_set(m[r]);
        if (!OM_EXACT) {
            s[r] = exp_row(x + r * stride, stride, y + r * stride, n, mv);
            continue;
        }
        ptrdiff_t i = 0;
        for (; i + 2 * LANES <= n; i += 2 * LANES) {
            vf a = lane_exp(vf_sub(vf_load(x + r * stride + i), mv)), b = lane_exp(vf_sub(vf_load(x + r * stride + i + LANES), mv));
            vf_store(y + r * stride + i, a);
            vf_store(y + r * stride + i + LANES, b);
        }
        for (; i < n; i += LANES) store_part(y + r * stride + i, lane_exp(vf_sub(load_part(x + r * stride + i, n - i), mv)), n - i);
    }
    if (OM_EXACT) k_sum_rows(y, stride, rows, n, s);
}

/* The same without keeping e^(x - m): a piece at a time. */
enum { EXP_PIECE = 256 };
static void sum_exp_rows_8(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t n, float *m, double *s) {
    float e[8 * EXP_PIECE];
    for (ptrdiff_t r = 0; r < rows; r++) {
        m[r] = row_max(x + r * stride, n);
        s[r] = OM_EXACT ? 0.0 : exp_row(x + r * stride, stride, NULL, n, vf_set(m[r]));
    }
    for (ptrdiff_t c = 0; OM_EXACT && c < n; c += EXP_PIECE) {
        ptrdiff_t length = n - c < EXP_PIECE ? n - c : EXP_PIECE;
        for (ptrdiff_t r = 0; r < rows; r++) {
            const float *row = x + r * stride + c;
            vf mv = vf_set(m[r]);
            ptrdiff_t i = 0;
            for (; i + 2 * LANES <= length; i += 2 * LANES) {
                vf a = lane_exp(vf_sub(vf_load(row + i), mv)), b = lane_exp(vf_sub(vf_load(row + i + LANES), mv));
                fetch_pair(row + 8 * stride + i);
                vf_store(e + r * EXP_PIECE + i, a);
                vf_store(e + r * EXP_PIECE + i + LANES, b);
            }
            for (; i < length; i += LANES) store_part(e + r * EXP_PIECE + i, lane_exp(vf_sub(load_part(row + i, length - i), mv)), length - i);
        }
        k_sum_rows(e, EXP_PIECE, rows, length, s);
    }
}

/* e / s with one rounding, for 0 <= e <= 1 <= s, inverse the rounded 1 / s: a quotient within one unit, and a correction by its exact remainder, are
 * rounded as a division is (Markstein 1990), in less than its time. Not where the remainder might be subnormal. */
static inline vf quotient(vf e, vf s, vf inverse) {
    vm small = vm_and(vf_lt(vf_set(0.0f), e), vf_lt(e, vf_set(0x1p-90f)));
    if (!HAS_FMA || vm_any(small)) return vf_div(e, s);
    vf minus = vf_neg(s), q = vf_mul(e, inverse);
    q = vf_fma(vf_fma(minus, q, e), inverse, q);
    return vf_fma(vf_fma(minus, q, e), inverse, q);
}

#define OM_EACH_8(rows) for (ptrdiff_t r0 = 0, some = (rows) < 8 ? (rows) : 8; r0 < (rows); r0 += 8, some = (rows) - r0 < 8 ? (rows) - r0 : 8)

static void k_softmax_rows(const float *x, float *y, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols) {
    OM_EACH_8(rows) {
        float m[8];
        double s[8];
        exp_rows_8(x + r0 * stride, y + r0 * stride, stride, some, cols, m, s);
        for (ptrdiff_t r = 0; r < some; r++) {
            float *row = y + (r0 + r) * stride;
            vf sv = vf_set((float)s[r]), inverse = vf_set(OM_EXACT ? 1.0f / (float)s[r] : (float)(1.0 / s[r]));
            for (ptrdiff_t i = 0; i < cols; i += LANES) {
                vf v = load_part(row + i, cols - i);
                store_part(row + i, vf_result(OM_EXACT ? quotient(v, sv, inverse) : vf_mul(v, inverse)), cols - i);
            }
        }
    }
}

static void k_log_softmax_rows(const float *x, float *y, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols) {
    OM_EACH_8(rows) {
        float m[8], l[8];
        double s[8];
        sum_exp_rows_8(x + r0 * stride, stride, some, cols, m, s);
        log_sums(s, l, some);
        for (ptrdiff_t r = 0; r < some; r++) {
            ptrdiff_t at = (r0 + r) * stride;
            vf mv = vf_set(m[r]), lv = vf_set(l[r]);
            for (ptrdiff_t i = 0; i < cols; i += LANES)
                store_part(y + at + i, vf_result(vf_sub(vf_sub(load_part(x + at + i, cols - i), mv), lv)), cols - i);
        }
    }
}

static void k_softmax_stats_rows(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, float *m, float *log_sum) {
    OM_EACH_8(rows) {
        double s[8];
        sum_exp_rows_8(x + r0 * stride, stride, some, cols, m + r0, s);
        log_sums(s, log_sum + r0, some);
    }
}

/* g y is rounded to float32 and the products are added as any sum is. */
static void k_softmax_bwd_rows(const float *y, const float *g, float *dx, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols) {
    OM_EACH_8(rows) {
        float product[8 * EXP_PIECE];
        double s[8] = {0.0};
        for (ptrdiff_t c = 0; c < cols; c += EXP_PIECE) {
            ptrdiff_t length = cols - c < EXP_PIECE ? cols - c : EXP_PIECE;
            for (ptrdiff_t r = 0; r < some; r++) {
                ptrdiff_t at = (r0 + r) * stride + c;
                for (ptrdiff_t i = 0; i < length; i += LANES)
                    store_part(product + r * EXP_PIECE + i, vf_mul(load_part(g + at + i, length - i), load_part(y + at + i, length - i)), length - i);
            }
            k_sum_rows(product, EXP_PIECE, some, length, s);
        }
        for (ptrdiff_t r = 0; r < some; r++) {
            ptrdiff_t at = (r0 + r) * stride;
            vf sv = vf_set((float)s[r]);
            for (ptrdiff_t i = 0; i < cols; i += LANES) {
                vf v = vf_mul(load_part(y + at + i, cols - i), vf_sub(load_part(g + at + i, cols - i), sv));
                store_part(dx + at + i, vf_result(v), cols - i);
            }
        }
    }
}

/* e^y, never y itself: at a masked place y is -inf, and -inf times 0 would be NaN. */
static void k_log_softmax_bwd_rows(const float *y, const float *g, float *dx, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols) {
    OM_EACH_8(rows) {
        double s[8] = {0.0};
        k_sum_rows(g + r0 * stride, stride, some, cols, s);
        for (ptrdiff_t r = 0; r < some; r++) {
            ptrdiff_t at = (r0 + r) * stride;
            vf sv = vf_set((float)s[r]);
            for (ptrdiff_t i = 0; i < cols; i += LANES) {
                vf v = vf_sub(load_part(g + at + i, cols - i), vf_mul(lane_exp(load_part(y + at + i, cols - i)), sv));
                store_part(dx + at + i, vf_result(v), cols - i);
            }
        }
    }
}

static void k_logsumexp_join(const float *m, const float *log_sum, float *out, ptrdiff_t n) {
    const vf infinity = vf_set(__builtin_inff());
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        vf mv = load_part(m + i, n - i), v = vf_add(mv, load_part(log_sum + i, n - i));
        store_part(out + i, vf_result(vf_select(vf_eq(vf_abs(mv), infinity), mv, v)), n - i);
    }
}

static void k_logsumexp_bwd_rows(const float *x, const float *lse, const float *g, float *dx, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols) {
    for (ptrdiff_t r = 0; r < rows; r++) {
        vf lv = vf_set(lse[r]), gv = vf_set(g[r]);
        for (ptrdiff_t i = 0; i < cols; i += LANES)
            store_part(dx + r * stride + i, vf_result(vf_mul(gv, lane_exp(vf_sub(load_part(x + r * stride + i, cols - i), lv)))), cols - i);
    }
}

/* The roundings of log_softmax_bwd after nll_bwd: scale e^y, and at the target that minus scale. */
static void k_cross_entropy_bwd_rows(const float *x, const float *m, const float *log_sum, const float *scale, const int64_t *target, float *dx,
                                     ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols) {
    for (ptrdiff_t r = 0; r < rows; r++) {
        float *row = dx + r * stride;
        if (scale[r] == 0.0f) {
            memset(row, 0, (size_t)cols * sizeof *row);
            continue;
        }
        vf mv = vf_set(m[r]), lv = vf_set(log_sum[r]), gv = vf_set(scale[r]);
        for (ptrdiff_t i = 0; i < cols; i += LANES) {
            vf y = vf_sub(vf_sub(load_part(x + r * stride + i, cols - i), mv), lv);
            store_part(row + i, vf_result(vf_mul(lane_exp(y), gv)), cols - i);
        }
        row[target[r]] -= scale[r];
        if (OM_EXACT && row[target[r]] != row[target[r]]) row[target[r]] = f4_bits(0x7FC00000);
    }
}

/* -- columns: one vector of columns at a time, down the rows ------------------------------------------------------------------------- */

typedef struct column_sums {
    vf m;
    vd lo, hi;
} column_sums;

/* y, which may be x, keeps e^(x - m) unless it is NULL. */
static inline column_sums exp_columns(const float *x, float *y, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t left) {
    column_sums t = {vf_set(-__builtin_inff()), vd_set(0.0), vd_set(0.0)};
    vm nan = vf_unord(t.m, t.m);
    for (ptrdiff_t r = 0; r < rows; r++) {
        vf v = load_part(x + r * stride, left);
        t.m = vf_max(v, t.m);
        nan = vm_or(nan, vf_unord(v, v));
    }
    t.m = vf_select(nan, vf_bits(vi_set(0x7FC00000)), t.m);
    for (ptrdiff_t r = 0; r < rows; r++) {
        vf e = lane_exp(vf_sub(load_part(x + r * stride, left), t.m));
        t.lo = vd_add(t.lo, vd_lo(e));
        t.hi = vd_add(t.hi, vd_hi(e));
        if (y) store_part(y + r * stride, e, left);
    }
    return t;
}
static inline vf log_columns(column_sums t) {
    vf plain = vf_from_vd(t.lo, t.hi);
    return vf_select(vf_unord(plain, plain), plain, vf_from_vw(vw_log((vw){t.lo, t.hi})));
}

static void k_softmax_columns(const float *x, float *y, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols) {
    for (ptrdiff_t c = 0; c < cols; c += LANES) {
        column_sums t = exp_columns(x + c, y + c, stride, rows, cols - c);
        vf s = vf_from_vd(t.lo, t.hi);
        for (ptrdiff_t at = c; at < c + rows * stride; at += stride)
            store_part(y + at, vf_result(vf_div(load_part(y + at, cols - c), s)), cols - c);
    }
}
static void k_log_softmax_columns(const float *x, float *y, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols) {
    for (ptrdiff_t c = 0; c < cols; c += LANES) {
        column_sums t = exp_columns(x + c, NULL, stride, rows, cols - c);
        vf l = log_columns(t);
        for (ptrdiff_t at = c; at < c + rows * stride; at += stride)
            store_part(y + at, vf_result(vf_sub(vf_sub(load_part(x + at, cols - c), t.m), l)), cols - c);
    }
}
static void k_softmax_stats_columns(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, float *m, float *log_sum) {
    for (ptrdiff_t c = 0; c < cols; c += LANES) {
        column_sums t = exp_columns(x + c, NULL, stride, rows, cols - c);
        store_part(m + c, t.m, cols - c);
        store_part(log_sum + c, vf_canon(log_columns(t)), cols - c);
    }
}
static void k_softmax_bwd_columns(const float *y, const float *g, float *dx, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols) {
    for (ptrdiff_t c = 0; c < cols; c += LANES) {
        vd lo = vd_set(0.0), hi = lo;
        for (ptrdiff_t at = c; at < c + rows * stride; at += stride) {
            vf v = vf_mul(load_part(g + at, cols - c), load_part(y + at, cols - c));
            lo = vd_add(lo, vd_lo(v));
            hi = vd_add(hi, vd_hi(v));
        }
        vf s = vf_from_vd(lo, hi);
        for (ptrdiff_t at = c; at < c + rows * stride; at += stride)
            store_part(dx + at, vf_result(vf_mul(load_part(y + at, cols - c), vf_sub(load_part(g + at, cols - c), s))), cols - c);
    }
}
static void k_log_softmax_bwd_columns(const float *y, const float *g, float *dx, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols) {
    for (ptrdiff_t c = 0; c < cols; c += LANES) {
        vd lo = vd_set(0.0), hi = lo;
        for (ptrdiff_t at = c; at < c + rows * stride; at += stride) {
            vf v = load_part(g + at, cols - c);
            lo = vd_add(lo, vd_lo(v));
            hi = vd_add(hi, vd_hi(v));
        }
        vf s = vf_from_vd(lo, hi);
        for (ptrdiff_t at = c; at < c + rows * stride; at += stride)
            store_part(dx + at, vf_result(vf_sub(load_part(g + at, cols - c), vf_mul(lane_exp(load_part(y + at, cols - c)), s))), cols - c);
    }
}
static void k_logsumexp_bwd_columns(const float *x, const float *lse, const float *g, float *dx, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols) {
    for (ptrdiff_t c = 0; c < cols; c += LANES) {
        vf lv = load_part(lse + c, cols - c), gv = load_part(g + c, cols - c);
        for (ptrdiff_t at = c; at < c + rows * stride; at += stride)
            store_part(dx + at, vf_result(vf_mul(gv, lane_exp(vf_sub(load_part(x + at, cols - c), lv)))), cols - c);
    }
}
static void k_cross_entropy_bwd_columns(const float *x, const float *m, const float *log_sum, const float *scale, const int64_t *target, float *dx,
                                        ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols) {
    for (ptrdiff_t c = 0; c < cols; c += LANES) {
        vf mv = load_part(m + c, cols - c), lv = load_part(log_sum + c, cols - c), gv = load_part(scale + c, cols - c), zero = vf_set(0.0f);
        vm none = vf_eq(gv, zero);
        for (ptrdiff_t at = c; at < c + rows * stride; at += stride) {
            vf y = vf_sub(vf_sub(load_part(x + at, cols - c), mv), lv);
            store_part(dx + at, vf_result(vf_select(none, zero, vf_mul(lane_exp(y), gv))), cols - c);
        }
    }
    for (ptrdiff_t c = 0; c < cols; c++)
        if (scale[c] != 0.0f) {
            float *at = dx + target[c] * stride + c;
            *at -= scale[c];
            if (OM_EXACT && *at != *at) *at = f4_bits(0x7FC00000);
        }
}
#endif
