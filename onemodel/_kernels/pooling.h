/* Pooling of planes: the largest or the mean of each window, and their gradients. Owns the loops over one plane, planes being cut into bands
 * of rows; must not contain threads, or the choice of a kernel, which are pooling.pyx's.
 *
 * Lanes lie along the columns of the output. For them a row of x is split into as many phases as the stride is wide: column e of the padded
 * row is element e / stride of phase e % stride, so that one tap of a window is read side by side for neighbouring outputs, whatever the
 * stride. Backward of an average is the same, transposed: it adds into phases, and a row is put together from them at the end.
 *
 * The winner of a window is the first of its largest elements in scan order, where a NaN is larger than everything; that choice is
 * associative, so a window's rows may each find their winner first. Padding is -inf there, which wins against nothing.
 *
 * A mean is one chain in double over the window in scan order, from +0, divided in double, rounded once. Padded elements would add +0,
 * which changes no sum that starts from +0. Each gradient is one IEEE sum from +0, windows in scan order; that of a mean is g / count,
 * divided in float32.
 *
 * Memory is passed over once each way: forward reads x and writes y (and the index), backward reads g (and the index) and writes dx; what
 * is done in several steps is done on a row, or on a band that stays in the caches. */
#ifndef OM_POOLING_H
#define OM_POOLING_H

#define OM_POOLING(ROW) \
    ROW(pool, max_pool, "largest element of each window, and where in the plane it stands") \
    ROW(pool, max_pool_2x2, "max_pool for windows of 2 by 2 side by side") \
    ROW(pool, max_pool_windows, "max_pool for windows of any place and size") \
    ROW(pool, avg_pool, "mean of each window") \
    ROW(pool, avg_pool_2x2, "avg_pool for windows of 2 by 2 side by side") \
    ROW(pool, avg_pool_windows, "avg_pool for windows of any place and size") \
    ROW(pool_bwd, max_pool_bwd, "dx[index] += g, windows in scan order") \
    ROW(pool_bwd, max_pool_2x2_bwd, "max_pool_bwd for windows of 2 by 2 side by side: each element is written once") \
    ROW(pool_bwd, avg_pool_bwd, "dx += g / count over each window, windows in scan order") \
    ROW(pool_bwd, avg_pool_2x2_bwd, "avg_pool_bwd for windows of 2 by 2 side by side: each element is written once") \
    ROW(pool_bwd, avg_pool_windows_bwd, "avg_pool_bwd for windows of any place and size")

/* One plane of x, h by w, and of y, oh by ow; y, index, g and dx are contiguous. */
typedef struct om_pool {
    ptrdiff_t h, w, oh, ow;
    ptrdiff_t kh, kw, sh, sw, ph, pw, dh, dw; /* kernel, stride, padding, dilation */
    ptrdiff_t x_row, x_col;                   /* element strides of x */
    const ptrdiff_t *row_lo, *row_hi;         /* per row of y: the real rows of its windows are row_lo, row_lo + dh, ... < row_hi; maybe none */
    const ptrdiff_t *col_lo, *col_hi;
    const double *row_count, *col_count; /* the divisor of a mean is the product; col_count has room for one vector more */
    double divisor;                      /* the 2x2 kernels' */
    int absent;                          /* some column of y has no real column of x */
} om_pool;

/* Rows lo to hi - 1 of one plane of y; index may be NULL. */
typedef void om_pool_fn(const om_pool *p, const float *x, float *y, int32_t *index, ptrdiff_t lo, ptrdiff_t hi, void *scratch);
/* Rows lo to hi - 1 of one plane of dx. */
typedef void om_pool_bwd_fn(const om_pool *p, const float *g, const int32_t *index, float *dx, ptrdiff_t lo, ptrdiff_t hi, void *scratch);

/* Length of a phase, number of phases, and rows that are kept while windows share them; the outputs of max_pool, or whole rows. */
static inline ptrdiff_t om_pool_pitch(const om_pool *p) { return p->ow + p->dw * (p->kw - 1) / p->sw; }
static inline ptrdiff_t om_pool_phases(const om_pool *p) {
    ptrdiff_t reach = p->dw * (p->kw - 1) + 1;
    return reach < p->sw ? reach : p->sw;
}
static inline ptrdiff_t om_pool_ring(const om_pool *p) {
    ptrdiff_t reach = p->dh * (p->kh - 1) + 1;
    return reach < p->h ? reach : p->h;
}
/* Bytes of scratch of max_pool, avg_pool and avg_pool_bwd, the most of them: tables of the taps and the kept rows, then floats. */
static inline ptrdiff_t om_pool_scratch(const om_pool *p) {
    ptrdiff_t ring = om_pool_ring(p), row = om_pool_pitch(p) * om_pool_phases(p), kept = row > 2 * p->ow ? row : 2 * p->ow;
    return 8 * (p->kw + p->kh + ring) + 4 * (row + ring * kept);
}
#endif

#if defined(OM_VARIANT) && !defined(OM_POOLING_LOOPS)
#define OM_POOLING_LOOPS
#include <string.h>

static inline vf pool_load(const float *p, ptrdiff_t n) { return n >= LANES ? vf_load(p) : vf_load_tail(p, n); }
static inline void pool_store(float *p, vf v, ptrdiff_t n) {
    if (n >= LANES)
        vf_store(p, v);
    else
        vf_store_tail(p, v, n);
}
static inline vi pool_load_index(const int32_t *p, ptrdiff_t n) { return vi_bits(pool_load((const float *)p, n)); }
static inline void pool_store_index(int32_t *p, vi v, ptrdiff_t n) { pool_store((float *)p, vf_bits(v), n); }
/* n >= 1 elements into two vectors; what is beyond them is 0. */
static inline void pool_load_two(const float *p, ptrdiff_t n, vf *a, vf *b) {
    *a = pool_load(p, n);
    *b = n > LANES ? pool_load(p + LANES, n - LANES) : vf_set(0.0f);
}
static inline void pool_store_two(float *p, vf a, vf b, ptrdiff_t n) {
    pool_store(p, a, n);
    if (n > LANES) pool_store(p + LANES, b, n - LANES);
}
/* first, first + step, ...: the sums wrap, in lanes that nobody stores. */
static inline vi pool_count_from(ptrdiff_t first, ptrdiff_t step) {
    int32_t lane[LANES];
    for (int i = 0; i < LANES; i++) lane[i] = (int32_t)((uint64_t)first + (uint64_t)i * (uint64_t)step);
    return vi_bits(vf_load((const float *)lane));
}
static inline float pool_result(float a) { return OM_EXACT && a != a ? __builtin_nanf("") : a; }
static inline void pool_zero(float *y, ptrdiff_t n) { memset(y, 0, (size_t)n * sizeof *y); }

/* The later element takes the place only of a smaller one, or of any number if it is NaN. */
static inline void pool_join(vf *best, vi *at, vf v, vi i) {
    vm keep = vm_or(vf_le(v, *best), vf_unord(*best, *best));
    *best = vf_select(keep, *best, v);
    *at = vi_bits(vf_select(keep, vf_bits(*at), vf_bits(i)));
}

/* -- windows of 2 by 2 side by side ------------------------------------------------------------------------------------------------------- */

static inline __attribute__((always_inline)) void max_pool_2x2(const om_pool *p, const float *x, float *y, int32_t *index, ptrdiff_t lo, ptrdiff_t hi,
                                                               int indexed) {
    const vi step = vi_set(2 * LANES), one = vi_set(1), below = vi_set((int32_t)p->w);
    for (ptrdiff_t o = lo; o < hi; o++) {
        const float *top = x + 2 * o * p->x_row, *bottom = top + p->x_row;
        vi at = pool_count_from(2 * o * p->w, 2);
        for (ptrdiff_t j = 0; j < p->ow; j += LANES) {
            ptrdiff_t n = p->ow - j;
            vf a, b, c, d;
            pool_load_two(top + 2 * j, 2 * n, &a, &b);
            pool_load_two(bottom + 2 * j, 2 * n, &c, &d);
            vf best = vf_even(a, b);
            vi found = at, under = vi_add(at, below);
            pool_join(&best, &found, vf_odd(a, b), vi_add(at, one));
            pool_join(&best, &found, vf_even(c, d), under);
            pool_join(&best, &found, vf_odd(c, d), vi_add(under, one));
            pool_store(y + o * p->ow + j, vf_result(best), n);
            if (indexed) pool_store_index(index + o * p->ow + j, found, n);
            at = vi_add(at, step);
        }
    }
}
static void k_max_pool_2x2(const om_pool *p, const float *x, float *y, int32_t *index, ptrdiff_t lo, ptrdiff_t hi, void *scratch) {
    (void)scratch;
    if (index)
        max_pool_2x2(p, x, y, index, lo, hi, 1);
    else
        max_pool_2x2(p, x, y, NULL, lo, hi, 0);
}

/* One row of dx from the row of windows over it: each element looks whether it is the winner. */
static inline void pool_pick_row(const float *g, const int32_t *index, float *dx, ptrdiff_t first, ptrdiff_t n) {
    const vf zero = vf_set(0.0f);
    const vi step = vi_set(LANES);
    vi at = pool_count_from(first, 1);
    for (ptrdiff_t j = 0; j < n; j += LANES) {
        vf gj = pool_load(g + j, n - j), ij = pool_load((const float *)index + j, n - j);
        vi next = vi_add(at, step);
        vf a = vf_add(zero, vf_select(vi_eq(vi_bits(vf_zip_lo(ij, ij)), at), vf_zip_lo(gj, gj), zero));
        vf b = vf_add(zero, vf_select(vi_eq(vi_bits(vf_zip_hi(ij, ij)), next), vf_zip_hi(gj, gj), zero));
        pool_store_two(dx + 2 * j, vf_result(a), vf_result(b), 2 * (n - j));
        at = vi_add(next, step);
    }
}
static void k_max_pool_2x2_bwd(const om_pool *p, const float *g, const int32_t *index, float *dx, ptrdiff_t lo, ptrdiff_t hi, void *scratch) {
    (void)scratch;
    for (ptrdiff_t r = lo; r < hi; r++) {
        ptrdiff_t o = r / 2, n = o < p->oh ? p->ow : 0;
        pool_pick_row(g + o * p->ow, index + o * p->ow, dx + r * p->w, r * p->w, n);
        pool_zero(dx + r * p->w + 2 * n, p->w - 2 * n);
    }
}

/* A quotient by a power of two is a product, bit for bit, and a quarter of the time. */
static inline int pool_exact_inverse(double d) {
    uint64_t b;
    memcpy(&b, &d, sizeof b);
    return !(b & 0xFFFFFFFFFFFFF);
}
static inline __attribute__((always_inline)) void avg_pool_2x2(const om_pool *p, const float *x, float *y, ptrdiff_t lo, ptrdiff_t hi, int inverse) {
    const vd divisor = vd_set(inverse ? 1.0 / p->divisor : p->divisor);
    const vd zero = vd_set(0.0);
    for (ptrdiff_t o = lo; o < hi; o++) {
        const float *top = x + 2 * o * p->x_row, *bottom = top + p->x_row;
        for (ptrdiff_t j = 0; j < p->ow; j += LANES) {
            ptrdiff_t n = p->ow - j;
            vf a, b, c, d;
            pool_load_two(top + 2 * j, 2 * n, &a, &b);
            pool_load_two(bottom + 2 * j, 2 * n, &c, &d);
            vf taps[4] = {vf_even(a, b), vf_odd(a, b), vf_even(c, d), vf_odd(c, d)};
            vd low = zero, high = zero;
            for (int t = 0; t < 4; t++) {
                low = vd_add(low, vd_lo(taps[t]));
                high = vd_add(high, vd_hi(taps[t]));
            }
            low = inverse ? vd_mul(low, divisor) : vd_div(low, divisor);
            high = inverse ? vd_mul(high, divisor) : vd_div(high, divisor);
            pool_store(y + o * p->ow + j, vf_result(vf_from_vd(low, high)), n);
        }
    }
}
static void k_avg_pool_2x2(const om_pool *p, const float *x, float *y, int32_t *index, ptrdiff_t lo, ptrdiff_t hi, void *scratch) {
    (void)index, (void)scratch;
    if (pool_exact_inverse(p->divisor))
        avg_pool_2x2(p, x, y, lo, hi, 1);
    else
        avg_pool_2x2(p, x, y, lo, hi, 0);
}
static void k_avg_pool_2x2_bwd(const om_pool *p, const float *g, const int32_t *index, float *dx, ptrdiff_t lo, ptrdiff_t hi, void *scratch) {
    (void)index, (void)scratch;
    const vf divisor = vf_set((float)p->divisor), zero = vf_set(0.0f);
    for (ptrdiff_t r = lo; r < hi; r += 2) { /* bands begin at even rows */
        ptrdiff_t o = r / 2, n = o < p->oh ? p->ow : 0, rows = r + 1 < p->h ? 2 : 1;
        for (ptrdiff_t j = 0; j < n; j += LANES) {
            vf q = vf_result(vf_add(zero, vf_div(pool_load(g + o * p->ow + j, n - j), divisor)));
            vf a = vf_zip_lo(q, q), b = vf_zip_hi(q, q);
            for (ptrdiff_t i = 0; i < rows; i++) pool_store_two(dx + (r + i) * p->w + 2 * j, a, b, 2 * (n - j));
        }
        for (ptrdiff_t i = 0; i < rows; i++) pool_zero(dx + (r + i) * p->w + 2 * n, p->w - 2 * n);
    }
}

/* -- phases ------------------------------------------------------------------------------------------------------------------------------- */

/* Columns of a phase that x has: elements lo to hi - 1 are columns first, first + sw, ... */
typedef struct {
    ptrdiff_t lo, hi, first;
} pool_span;
static inline pool_span pool_phase(const om_pool *p, ptrdiff_t phase, ptrdiff_t pitch) {
    ptrdiff_t lo = phase >= p->pw ? 0 : (p->pw - phase + p->sw - 1) / p->sw, first = lo * p->sw + phase - p->pw;
    ptrdiff_t n = first < p->w ? (p->w - first + p->sw - 1) / p->sw : 0;
    if (lo > pitch) lo = pitch;
    return (pool_span){lo, n < pitch - lo ? lo + n : pitch, first};
}
static inline void pool_fill(float *y, ptrdiff_t n, float c) {
    for (ptrdiff_t i = 0; i < n; i++) y[i] = c;
}
/* Elements 0, 2, ... of x to even, 1, 3, ... to odd. */
static inline void pool_split(const float *x, float *even, ptrdiff_t evens, float *odd, ptrdiff_t odds) {
    ptrdiff_t both = evens < odds ? evens : odds, i = 0;
    for (; i + LANES <= both; i += LANES) {
        vf a = vf_load(x + 2 * i), b = vf_load(x + 2 * i + LANES);
        vf_store(even + i, vf_even(a, b));
        vf_store(odd + i, vf_odd(a, b));
    }
    for (ptrdiff_t k = i; k < evens; k++) even[k] = x[2 * k];
    for (ptrdiff_t k = i; k < odds; k++) odd[k] = x[2 * k + 1];
}
/* The phases of one row of x, pitch elements each, padded; in place where the row is its only phase. */
static inline const float *pool_row(const om_pool *p, const float *x, float padding, float *row) {
    const ptrdiff_t pitch = om_pool_pitch(p), phases = om_pool_phases(p);
    if (p->sw == 1 && p->pw == 0 && p->x_col == 1 && pitch <= p->w) return x;
    const int pairs = p->sw == 2 && phases == 2 && p->x_col == 1;
    for (ptrdiff_t k = 0; k < phases; k++) {
        pool_span s = pool_phase(p, k, pitch);
        float *y = row + k * pitch;
        pool_fill(y, s.lo, padding);
        pool_fill(y + s.hi, pitch - s.hi, padding);
        if (pairs) continue;
        const float *from = x + s.first * p->x_col;
        ptrdiff_t step = p->sw * p->x_col;
        if (step == 1)
            memcpy(y + s.lo, from, (size_t)(s.hi - s.lo) * sizeof *y);
        else
            for (ptrdiff_t i = s.lo; i < s.hi; i++, from += step) y[i] = *from;
    }
    if (pairs) {
        pool_span s[2] = {pool_phase(p, 0, pitch), pool_phase(p, 1, pitch)};
        ptrdiff_t e = s[0].first == 0 ? 0 : 1;
        pool_split(x, row + e * pitch + s[e].lo, s[e].hi - s[e].lo, row + !e * pitch + s[!e].lo, s[!e].hi - s[!e].lo);
    }
    return row;
}
/* Where each tap of a row stands in the phases. */
static inline void pool_taps(const om_pool *p, ptrdiff_t *tap) {
    const ptrdiff_t pitch = om_pool_pitch(p);
    for (ptrdiff_t t = 0; t < p->kw; t++) tap[t] = t * p->dw % p->sw * pitch + t * p->dw / p->sw;
}

/* -- the largest element ------------------------------------------------------------------------------------------------------------------ */

/* The winner among the columns of one row of x, whose first element has the index `first`. */
static inline __attribute__((always_inline)) void pool_row_max(const om_pool *p, const float *row, const ptrdiff_t *tap, ptrdiff_t taps, ptrdiff_t first,
                                                               float *y, int32_t *index, int indexed) {
    const vi step = pool_count_from(LANES * p->sw, 0);
    vi at = pool_count_from(first - p->pw, p->sw);
    for (ptrdiff_t j = 0; j < p->ow; j += LANES) {
        ptrdiff_t n = p->ow - j;
        vf best = pool_load(row + tap[0] + j, n);
        vi found = at;
        for (ptrdiff_t t = 1; t < taps; t++)
            pool_join(&best, &found, pool_load(row + tap[t] + j, n), vi_add(at, vi_set((int32_t)(t * p->dw))));
        pool_store(y + j, best, n);
        if (indexed) pool_store_index(index + j, found, n);
        at = vi_add(at, step);
    }
    if (!indexed) return;
    /* Nothing was above the padding on the left: the first real element is -inf too, and it comes before those behind it. */
    for (ptrdiff_t j = 0; j < p->ow && j * p->sw < p->pw; j++)
        if (index[j] < first) index[j] = (int32_t)(first + p->col_lo[j]);
}

static inline __attribute__((always_inline)) void max_pool(const om_pool *p, const float *x, float *y, int32_t *index, ptrdiff_t lo, ptrdiff_t hi,
                                                           void *scratch, int indexed) {
    const ptrdiff_t ring = om_pool_ring(p), ow = p->ow;
    ptrdiff_t *tap = scratch, *slot = tap + p->kw, *held = slot + p->kh;
    float *row = (float *)(held + ring), *kept = row + om_pool_pitch(p) * om_pool_phases(p);
    pool_taps(p, tap);
    for (ptrdiff_t i = 0; i < ring; i++) held[i] = -1;
    for (ptrdiff_t o = lo; o < hi; o++) {
        float *yo = y + o * ow;
        int32_t *io = indexed ? index + o * ow : NULL;
        ptrdiff_t rows = 0;
        const int alone = ring == 1 && p->row_lo[o] < p->row_hi[o]; /* then there is nothing to join: straight to y */
        for (ptrdiff_t r = p->row_lo[o]; r < p->row_hi[o]; r += p->dh) {
            ptrdiff_t s = r % ring;
            float *best = alone ? yo : kept + 2 * s * ow;
            int32_t *found = alone ? io : (int32_t *)(best + ow);
            slot[rows++] = 2 * s * ow;
            if (!alone && held[s] == r) continue;
            held[s] = r;
            const float *xr = pool_row(p, x + r * p->x_row, -__builtin_inff(), row);
            if (p->kw == 2)
                pool_row_max(p, xr, tap, 2, r * p->w, best, found, indexed);
            else if (p->kw == 3)
                pool_row_max(p, xr, tap, 3, r * p->w, best, found, indexed);
            else
                pool_row_max(p, xr, tap, p->kw, r * p->w, best, found, indexed);
        }
        for (ptrdiff_t j = 0; j < ow; j += LANES) {
            ptrdiff_t n = ow - j;
            vf best = vf_set(-__builtin_inff());
            vi found = vi_set(-1);
            if (alone) {
                best = pool_load(yo + j, n);
                if (indexed) found = pool_load_index(io + j, n);
            } else if (rows) {
                best = pool_load(kept + slot[0] + j, n);
                if (indexed) found = pool_load_index((int32_t *)kept + slot[0] + ow + j, n);
                for (ptrdiff_t t = 1; t < rows; t++)
                    pool_join(&best, &found, pool_load(kept + slot[t] + j, n),
                              indexed ? pool_load_index((int32_t *)kept + slot[t] + ow + j, n) : found);
            }
            pool_store(yo + j, vf_result(best), n);
            if (indexed) pool_store_index(io + j, found, n);
        }
        if (indexed && p->absent)
            for (ptrdiff_t j = 0; j < ow; j++)
                if (p->col_lo[j] >= p->col_hi[j]) io[j] = -1;
    }
}
static void k_max_pool(const om_pool *p, const float *x, float *y, int32_t *index, ptrdiff_t lo, ptrdiff_t hi, void *scratch) {
    if (index)
        max_pool(p, x, y, index, lo, hi, scratch, 1);
    else
        max_pool(p, x, y, NULL, lo, hi, scratch, 0);
}

static void k_max_pool_windows(const om_pool *p, const float *x, float *y, int32_t *index, ptrdiff_t lo, ptrdiff_t hi, void *scratch) {
    (void)scratch;
    for (ptrdiff_t o = lo; o < hi; o++)
        for (ptrdiff_t j = 0; j < p->ow; j++) {
            float best = -__builtin_inff();
            ptrdiff_t at = -1;
            for (ptrdiff_t r = p->row_lo[o]; r < p->row_hi[o]; r += p->dh)
                for (ptrdiff_t c = p->col_lo[j]; c < p->col_hi[j]; c += p->dw) {
                    float v = x[r * p->x_row + c * p->x_col];
                    if (at >= 0 && (v <= best || best != best)) continue;
                    best = v;
                    at = r * p->w + c;
                }
            y[o * p->ow + j] = pool_result(best);
            if (index) index[o * p->ow + j] = (int32_t)at;
        }
}

/* An index outside the band is another band's, or nobody's: it is compared before it is followed, since the memory it is read from may be
 * written by others meanwhile. */
static void k_max_pool_bwd(const om_pool *p, const float *g, const int32_t *index, float *dx, ptrdiff_t lo, ptrdiff_t hi, void *scratch) {
    (void)scratch;
    const uint64_t begin = (uint64_t)(lo * p->w), count = (uint64_t)((hi - lo) * p->w);
    float *band = dx + lo * p->w;
    pool_zero(band, (hi - lo) * p->w);
    for (ptrdiff_t o = 0; o < p->oh; o++) {
        if (p->row_hi[o] <= lo || p->row_lo[o] >= hi) continue;
        for (ptrdiff_t j = o * p->ow; j < (o + 1) * p->ow; j++) {
            uint64_t at = (uint64_t)index[j] - begin;
            if (at < count) band[at] = pool_result(band[at] + g[j]);
        }
    }
}

/* -- the mean ----------------------------------------------------------------------------------------------------------------------------- */

static void k_avg_pool(const om_pool *p, const float *x, float *y, int32_t *index, ptrdiff_t lo, ptrdiff_t hi, void *scratch) {
    (void)index;
    const ptrdiff_t ring = om_pool_ring(p), size = om_pool_pitch(p) * om_pool_phases(p), ow = p->ow;
    ptrdiff_t *tap = scratch, *held = tap + p->kw;
    const float **from = (const float **)(held + ring);
    float *kept = (float *)(from + p->kh);
    pool_taps(p, tap);
    for (ptrdiff_t i = 0; i < ring; i++) held[i] = -1;
    for (ptrdiff_t o = lo; o < hi; o++) {
        ptrdiff_t rows = 0;
        for (ptrdiff_t r = p->row_lo[o]; r < p->row_hi[o]; r++) {
            ptrdiff_t s = r % ring;
            const float *xr = x + r * p->x_row;
            from[rows++] = held[s] == r ? kept + s * size : pool_row(p, xr, 0.0f, kept + s * size);
            if (from[rows - 1] != xr) held[s] = r;
        }
        const vd row_count = vd_set(p->row_count[o]);
        for (ptrdiff_t j = 0; j < ow; j += LANES) {
            vd low = vd_set(0.0), high = low;
            for (ptrdiff_t i = 0; i < rows; i++)
                for (ptrdiff_t t = 0; t < p->kw; t++) {
                    vf v = pool_load(from[i] + tap[t] + j, ow - j);
                    low = vd_add(low, vd_lo(v));
                    high = vd_add(high, vd_hi(v));
                }
            low = vd_div(low, vd_mul(row_count, vd_load(p->col_count + j)));
            high = vd_div(high, vd_mul(row_count, vd_load(p->col_count + j + VD_LANES)));
            pool_store(y + o * ow + j, vf_result(vf_from_vd(low, high)), ow - j);
        }
    }
}

/* One row of dx from its phases; columns that no window reaches have no phase. */
static inline void pool_join_phases(const om_pool *p, const float *row, float *dx) {
    const ptrdiff_t pitch = om_pool_pitch(p), phases = om_pool_phases(p);
    if (p->sw == 1) {
        pool_span s = pool_phase(p, 0, pitch);
        pool_zero(dx + (s.hi - s.lo), p->w - (s.hi - s.lo));
        for (ptrdiff_t j = 0; j < s.hi - s.lo; j += LANES) pool_store(dx + j, vf_result(pool_load(row + s.lo + j, s.hi - s.lo - j)), s.hi - s.lo - j);
        return;
    }
    pool_zero(dx, p->w);
    ptrdiff_t done = 0;
    if (p->sw == 2 && phases == 2) {
        pool_span s[2] = {pool_phase(p, 0, pitch), pool_phase(p, 1, pitch)};
        ptrdiff_t e = s[0].first == 0 ? 0 : 1, evens = s[e].hi - s[e].lo, odds = s[!e].hi - s[!e].lo;
        const float *even = row + e * pitch + s[e].lo, *odd = row + !e * pitch + s[!e].lo;
        for (; done + LANES <= (evens < odds ? evens : odds); done += LANES) {
            vf a = vf_load(even + done), b = vf_load(odd + done);
            vf_store(dx + 2 * done, vf_result(vf_zip_lo(a, b)));
            vf_store(dx + 2 * done + LANES, vf_result(vf_zip_hi(a, b)));
        }
    }
    for (ptrdiff_t k = 0; k < phases; k++) {
        pool_span s = pool_phase(p, k, pitch);
        for (ptrdiff_t i = s.lo + done; i < s.hi; i++) dx[s.first + (i - s.lo) * p->sw] = pool_result(row[k * pitch + i]);
    }
}
/* The row's windows lie in the rows first, ... < end of y. A column meets its windows in scan order when the taps go from right to left. */
static void k_avg_pool_bwd(const om_pool *p, const float *g, const int32_t *index, float *dx, ptrdiff_t lo, ptrdiff_t hi, void *scratch) {
    (void)index;
    const ptrdiff_t ring = om_pool_ring(p), size = om_pool_pitch(p) * om_pool_phases(p), ow = p->ow;
    ptrdiff_t *tap = scratch, *held = tap + p->kw, first = 0;
    float *row = (float *)(held + ring), *kept = row + size;
    pool_taps(p, tap);
    for (ptrdiff_t i = 0; i < ring; i++) held[i] = -1;
    for (ptrdiff_t r = lo; r < hi; r++) {
        while (first < p->oh && p->row_hi[first] <= r) first++;
        pool_zero(row, size);
        for (ptrdiff_t o = first; o < p->oh && p->row_lo[o] <= r; o++) {
            float *q = kept + o % ring * ow;
            if (held[o % ring] != o) {
                held[o % ring] = o;
                const vd row_count = vd_set(p->row_count[o]);
                for (ptrdiff_t j = 0; j < ow; j += LANES) {
                    vd low = vd_mul(row_count, vd_load(p->col_count + j)), high = vd_mul(row_count, vd_load(p->col_count + j + VD_LANES));
                    pool_store(q + j, vf_div(pool_load(g + o * ow + j, ow - j), vf_from_vd(low, high)), ow - j);
                }
            }
            for (ptrdiff_t t = p->kw - 1; t >= 0; t--) {
                float *to = row + tap[t];
                for (ptrdiff_t j = 0; j < ow; j += LANES) pool_store(to + j, vf_add(pool_load(to + j, ow - j), pool_load(q + j, ow - j)), ow - j);
            }
        }
        pool_join_phases(p, row, dx + r * p->w);
    }
}

static void k_avg_pool_windows(const om_pool *p, const float *x, float *y, int32_t *index, ptrdiff_t lo, ptrdiff_t hi, void *scratch) {
    (void)index, (void)scratch;
    for (ptrdiff_t o = lo; o < hi; o++)
        for (ptrdiff_t j = 0; j < p->ow; j++) {
            double sum = 0.0;
            for (ptrdiff_t r = p->row_lo[o]; r < p->row_hi[o]; r++)
                for (ptrdiff_t c = p->col_lo[j]; c < p->col_hi[j]; c++) sum += (double)x[r * p->x_row + c * p->x_col];
            y[o * p->ow + j] = pool_result((float)(sum / (p->row_count[o] * p->col_count[j])));
        }
}
static void k_avg_pool_windows_bwd(const om_pool *p, const float *g, const int32_t *index, float *dx, ptrdiff_t lo, ptrdiff_t hi, void *scratch) {
    (void)index, (void)scratch;
    pool_zero(dx + lo * p->w, (hi - lo) * p->w);
    for (ptrdiff_t o = 0; o < p->oh; o++) {
        ptrdiff_t top = p->row_lo[o] > lo ? p->row_lo[o] : lo, bottom = p->row_hi[o] < hi ? p->row_hi[o] : hi;
        if (top >= bottom) continue;
        for (ptrdiff_t j = 0; j < p->ow; j++) {
            const float q = g[o * p->ow + j] / (float)(p->row_count[o] * p->col_count[j]);
            for (ptrdiff_t r = top; r < bottom; r++)
                for (ptrdiff_t c = p->col_lo[j]; c < p->col_hi[j]; c++) dx[r * p->w + c] = pool_result(dx[r * p->w + c] + q);
        }
    }
}
#endif
