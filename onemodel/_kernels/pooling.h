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
    ROW(pool_bwd, avg_pool_windows_bwd, "avg_pool_bwd for windows of any place and size") \
    ROW(winners, relu_winners, "y = relu(y), in place; index = -1 where relu lets no gradient through")

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
/* n maxima and where they stand. */
typedef void om_winners_fn(float *y, int32_t *index, ptrdiff_t n);
/* Rows lo to hi - 1 of one plane of dx. */
typedef void om_pool_bwd_fn(const om_pool *p, const float *g, const int32_t *index, float *dx, ptrdiff_t lo, ptrdiff_t hi, void *scratch);

/* Length of a phase, number of phases, and rows that are kept while windows share them; the outputs of max_pool, or whole rows. */
static inline ptrdiff_t om_pool_pitch(const om_pool *p) { return p->ow + p->dw * (p->kw - 1) / p->sw; }
static inline ptrdiff_t om_pool_phases(const om_pool *p) {
    ptrdiff_t reach = p->dw * (p->kw - 1) + 1;
    return reach < p->sw ? reach : p->sw;
}
static inline ptrdiff_t om_pool_ring(const om_pool *p) {
    ptrdiff_t reach = p->dh * (p->kh - 1) + 1, most = p->h > p->oh ? p->h : p->oh; /* rows of x, or in backward of y */
    return reach < most ? reach : most;
}
/* Bytes of scratch of max_pool, avg_pool and avg_pool_bwd, the most of them: tables of the taps, the phases and the kept rows, then floats. */
static inline ptrdiff_t om_pool_scratch(const om_pool *p) {
    ptrdiff_t pitch = om_pool_pitch(p), phases = om_pool_phases(p), ring = om_pool_ring(p), kept = phases > 2 ? phases * pitch : 2 * pitch;
    return 8 * (p->kw + p->kh + ring + 3 * phases) + 4 * (phases * pitch + ring * kept);
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
/* Conversions straight from memory save taking the upper half out of a vector. */
static inline void pool_widen(const float *p, ptrdiff_t n, vd *low, vd *high) {
    if (n >= LANES) {
        *low = vd_widen(p);
        *high = LANES > VD_LANES ? vd_widen(p + LANES - VD_LANES) : *low;
    } else {
        vf v = vf_load_tail(p, n);
        *low = vd_lo(v);
        *high = vd_hi(v);
    }
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
static const int32_t POOL_LANES[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
/* first, first + 1, ...; the sums may wrap in lanes that nobody stores. */
static inline vi pool_count_from(ptrdiff_t first) { return vi_add(vi_set((int32_t)first), vi_bits(vf_load((const float *)POOL_LANES))); }
static inline float pool_result(float a) { return OM_EXACT && a != a ? __builtin_nanf("") : a; }
static inline void pool_zero(float *y, ptrdiff_t n) { memset(y, 0, (size_t)n * sizeof *y); }

/* The later element takes the place only of a smaller one, or of any number if it is NaN. */
static inline void pool_join(vf *best, vi *at, vf v, vi i) {
    vm keep = vm_or(vf_le(v, *best), vf_unord(*best, *best));
    *best = vf_select(keep, *best, v);
    *at = vi_bits(vf_select(keep, vf_bits(*at), vf_bits(i)));
}

/* -- windows of 2 by 2 side by side ------------------------------------------------------------------------------------------------------- */

#define OM_INLINE static inline __attribute__((always_inline))
/* body(j, n): n columns from j on; n is the constant LANES but for the last ones. */
#define OM_COLUMNS(count, body)                          \
    do {                                                 \
        ptrdiff_t j_ = 0, count_ = (count);              \
        for (; j_ + LANES <= count_; j_ += LANES) body(j_, LANES); \
        if (j_ < count_) body(j_, count_ - j_);          \
    } while (0)

/* Outputs j, ... of one row; `at` has the indices of their first taps. */
OM_INLINE void max_2x2(const float *top, const float *bottom, vi at, vi below, float *y, int32_t *index, ptrdiff_t j, ptrdiff_t n, int indexed) {
    vf a, b, c, d;
    pool_load_two(top + 2 * j, 2 * n, &a, &b);
    pool_load_two(bottom + 2 * j, 2 * n, &c, &d);
    at = vi_add(at, vi_set((int32_t)(2 * j)));
    vi under = vi_add(at, below), one = vi_set(1), found = at;
    vf best = vf_even(a, b);
    pool_join(&best, &found, vf_odd(a, b), vi_add(at, one));
    pool_join(&best, &found, vf_even(c, d), under);
    pool_join(&best, &found, vf_odd(c, d), vi_add(under, one));
    pool_store(y + j, vf_result(best), n);
    if (indexed) pool_store_index(index + j, found, n);
}
OM_INLINE void max_pool_2x2(const om_pool *p, const float *x, float *y, int32_t *index, ptrdiff_t lo, ptrdiff_t hi, int indexed) {
    const vi below = vi_set((int32_t)p->w);
    for (ptrdiff_t o = lo; o < hi; o++) {
        const float *top = x + 2 * o * p->x_row, *bottom = top + p->x_row;
        float *yo = y + o * p->ow;
        int32_t *io = indexed ? index + o * p->ow : NULL;
        const vi at = vi_add(vi_shl(pool_count_from(0), 1), vi_set((int32_t)(2 * o * p->w)));
#define BODY(j, n) max_2x2(top, bottom, at, below, yo, io, j, n, indexed)
        OM_COLUMNS(p->ow, BODY);
#undef BODY
    }
}
static void k_max_pool_2x2(const om_pool *p, const float *x, float *y, int32_t *index, ptrdiff_t lo, ptrdiff_t hi, void *scratch) {
    (void)scratch;
    if (index)
        max_pool_2x2(p, x, y, index, lo, hi, 1);
    else
        max_pool_2x2(p, x, y, NULL, lo, hi, 0);
}

static void k_relu_winners(float *y, int32_t *index, ptrdiff_t n) {
    const vf zero = vf_set(0.0f), none = vf_bits(vi_set(-1));
#define BODY(j, n)                                                                                                   \
    do {                                                                                                             \
        const vf v = pool_load(y + j, n);                                                                            \
        pool_store_index(index + j, vi_bits(vf_select(vf_lt(zero, v), vf_bits(pool_load_index(index + j, n)), none)), n); \
        pool_store(y + j, vf_result(vf_select(vf_le(v, zero), zero, v)), n);                                         \
    } while (0)
    OM_COLUMNS(n, BODY);
#undef BODY
}

/* The elements of two rows of dx under windows j, ...: each looks whether it is the winner. */
OM_INLINE void pick_2x2(const float *g, const int32_t *index, float *top, float *bottom, vi at, vi below, ptrdiff_t j, ptrdiff_t n) {
    const vf zero = vf_set(0.0f);
    vf gj = pool_load(g + j, n), ij = pool_load((const float *)index + j, n);
    vf ga = vf_zip_lo(gj, gj), gb = vf_zip_hi(gj, gj);
    vi ia = vi_bits(vf_zip_lo(ij, ij)), ib = vi_bits(vf_zip_hi(ij, ij));
    vi a = vi_add(at, vi_set((int32_t)(2 * j))), b = vi_add(a, vi_set(LANES));
    pool_store_two(top + 2 * j, vf_result(vf_add(zero, vf_select(vi_eq(ia, a), ga, zero))),
                   vf_result(vf_add(zero, vf_select(vi_eq(ib, b), gb, zero))), 2 * n);
    a = vi_add(a, below);
    b = vi_add(b, below);
    pool_store_two(bottom + 2 * j, vf_result(vf_add(zero, vf_select(vi_eq(ia, a), ga, zero))),
                   vf_result(vf_add(zero, vf_select(vi_eq(ib, b), gb, zero))), 2 * n);
}
/* Bands begin at even rows. */
static void k_max_pool_2x2_bwd(const om_pool *p, const float *g, const int32_t *index, float *dx, ptrdiff_t lo, ptrdiff_t hi, void *scratch) {
    (void)scratch;
    const vi below = vi_set((int32_t)p->w);
    ptrdiff_t end = hi < 2 * p->oh ? hi : 2 * p->oh, rest = p->w - 2 * p->ow;
    for (ptrdiff_t r = lo; r < end; r += 2) {
        const float *go = g + r / 2 * p->ow;
        const int32_t *io = index + r / 2 * p->ow;
        float *top = dx + r * p->w, *bottom = top + p->w;
        const vi at = pool_count_from(r * p->w);
#define BODY(j, n) pick_2x2(go, io, top, bottom, at, below, j, n)
        OM_COLUMNS(p->ow, BODY);
#undef BODY
        if (rest) pool_zero(top + 2 * p->ow, rest), pool_zero(bottom + 2 * p->ow, rest);
    }
    if (hi > end) pool_zero(dx + end * p->w, (hi - end) * p->w);
}

/* A quotient by a power of two is a product, bit for bit, and a quarter of the time. */
static inline int pool_exact_inverse(double d) {
    uint64_t b;
    memcpy(&b, &d, sizeof b);
    return !(b & 0xFFFFFFFFFFFFF);
}
OM_INLINE void avg_2x2(const float *top, const float *bottom, vd divisor, float *y, ptrdiff_t j, ptrdiff_t n, int inverse) {
    vf a, b, c, d;
    pool_load_two(top + 2 * j, 2 * n, &a, &b);
    pool_load_two(bottom + 2 * j, 2 * n, &c, &d);
    const vf taps[4] = {vf_even(a, b), vf_odd(a, b), vf_even(c, d), vf_odd(c, d)};
    vd low = vd_set(0.0), high = low;
    for (int t = 0; t < 4; t++) {
        low = vd_add(low, vd_lo(taps[t]));
        high = vd_add(high, vd_hi(taps[t]));
    }
    low = inverse ? vd_mul(low, divisor) : vd_div(low, divisor);
    high = inverse ? vd_mul(high, divisor) : vd_div(high, divisor);
    pool_store(y + j, vf_result(vf_from_vd(low, high)), n);
}
OM_INLINE void avg_pool_2x2(const om_pool *p, const float *x, float *y, ptrdiff_t lo, ptrdiff_t hi, int inverse) {
    const vd divisor = vd_set(inverse ? 1.0 / p->divisor : p->divisor);
    for (ptrdiff_t o = lo; o < hi; o++) {
        const float *top = x + 2 * o * p->x_row, *bottom = top + p->x_row;
        float *yo = y + o * p->ow;
#define BODY(j, n) avg_2x2(top, bottom, divisor, yo, j, n, inverse)
        OM_COLUMNS(p->ow, BODY);
#undef BODY
    }
}
static void k_avg_pool_2x2(const om_pool *p, const float *x, float *y, int32_t *index, ptrdiff_t lo, ptrdiff_t hi, void *scratch) {
    (void)index, (void)scratch;
    if (pool_exact_inverse(p->divisor))
        avg_pool_2x2(p, x, y, lo, hi, 1);
    else
        avg_pool_2x2(p, x, y, lo, hi, 0);
}
OM_INLINE void avg_2x2_bwd(const float *g, vf divisor, float *top, float *bottom, ptrdiff_t j, ptrdiff_t n) {
    vf q = vf_result(vf_add(vf_set(0.0f), vf_div(pool_load(g + j, n), divisor))), a = vf_zip_lo(q, q), b = vf_zip_hi(q, q);
    pool_store_two(top + 2 * j, a, b, 2 * n);
    pool_store_two(bottom + 2 * j, a, b, 2 * n);
}
static void k_avg_pool_2x2_bwd(const om_pool *p, const float *g, const int32_t *index, float *dx, ptrdiff_t lo, ptrdiff_t hi, void *scratch) {
    (void)index, (void)scratch;
    const vf divisor = vf_set((float)p->divisor);
    ptrdiff_t end = hi < 2 * p->oh ? hi : 2 * p->oh, rest = p->w - 2 * p->ow;
    for (ptrdiff_t r = lo; r < end; r += 2) {
        const float *go = g + r / 2 * p->ow;
        float *top = dx + r * p->w, *bottom = top + p->w;
#define BODY(j, n) avg_2x2_bwd(go, divisor, top, bottom, j, n)
        OM_COLUMNS(p->ow, BODY);
#undef BODY
        if (rest) pool_zero(top + 2 * p->ow, rest), pool_zero(bottom + 2 * p->ow, rest);
    }
    if (hi > end) pool_zero(dx + end * p->w, (hi - end) * p->w);
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
/* What a row's phases and taps are, made once: spans, and where each tap stands in the phases. */
typedef struct {
    ptrdiff_t pitch, phases, taps, even; /* even: with two phases, the one of columns 0, 2, ... */
    const pool_span *span;
    const ptrdiff_t *tap;
} pool_grid;
static inline pool_grid pool_grid_in(const om_pool *p, void *scratch, void **rest) {
    const ptrdiff_t pitch = om_pool_pitch(p), phases = om_pool_phases(p);
    pool_span *span = scratch;
    ptrdiff_t *tap = (ptrdiff_t *)(span + phases);
    for (ptrdiff_t k = 0; k < phases; k++) span[k] = pool_phase(p, k, pitch);
    for (ptrdiff_t t = 0; t < p->kw; t++) tap[t] = t * p->dw % p->sw * pitch + t * p->dw / p->sw;
    *rest = tap + p->kw;
    return (pool_grid){pitch, phases, p->kw, span[0].first != 0, span, tap};
}
/* The phases of one row of x, padded; in place where the row is its only phase. */
static inline const float *pool_row(const om_pool *p, const pool_grid *grid, const float *x, float padding, float *row) {
    const ptrdiff_t pitch = grid->pitch, step = p->sw * p->x_col;
    if (step == 1 && p->pw == 0 && pitch <= p->w) return x;
    const int pairs = p->sw == 2 && grid->phases == 2 && p->x_col == 1;
    for (ptrdiff_t k = 0; k < grid->phases; k++) {
        const pool_span s = grid->span[k];
        float *y = row + k * pitch;
        for (ptrdiff_t i = 0; i < s.lo; i++) y[i] = padding;
        for (ptrdiff_t i = s.hi; i < pitch; i++) y[i] = padding;
        if (pairs) continue;
        const float *from = x + s.first * p->x_col;
        if (step == 1)
            memcpy(y + s.lo, from, (size_t)(s.hi - s.lo) * sizeof *y);
        else
            for (ptrdiff_t i = s.lo; i < s.hi; i++, from += step) y[i] = *from;
    }
    if (pairs) {
        const pool_span even = grid->span[grid->even], odd = grid->span[!grid->even];
        pool_split(x, row + grid->even * pitch + even.lo, even.hi - even.lo, row + !grid->even * pitch + odd.lo, odd.hi - odd.lo);
    }
    return row;
}

/* -- the largest element ------------------------------------------------------------------------------------------------------------------ */

/* The winners among the columns of one row of x; `at` has the indices of the first taps. */
OM_INLINE void max_columns(const float *row, const ptrdiff_t *tap, ptrdiff_t taps, vi at, ptrdiff_t dw, float *y, int32_t *index, ptrdiff_t j, ptrdiff_t n,
                           int indexed) {
    vf best = pool_load(row + tap[0] + j, n);
    vi found = at;
    for (ptrdiff_t t = 1; t < taps; t++) pool_join(&best, &found, pool_load(row + tap[t] + j, n), vi_add(at, vi_set((int32_t)(t * dw))));
    pool_store(y + j, best, n);
    if (indexed) pool_store_index(index + j, found, n);
}
/* One row of x, whose first element has the index `first`; steps: 0, sw, 2 sw, ... */
OM_INLINE void max_row(const om_pool *p, const float *row, const ptrdiff_t *tap, ptrdiff_t taps, ptrdiff_t first, vi steps, float *y, int32_t *index,
                       int indexed) {
    const vi from = vi_add(steps, vi_set((int32_t)(first - p->pw)));
#define BODY(j, n) max_columns(row, tap, taps, vi_add(from, vi_set((int32_t)(j * p->sw))), p->dw, y, index, j, n, indexed)
    OM_COLUMNS(p->ow, BODY);
#undef BODY
    if (!indexed) return;
    /* Nothing was above the padding on the left: the first real element is -inf too, and it comes before those behind it. */
    for (ptrdiff_t j = 0; j < p->ow && j * p->sw < p->pw; j++)
        if (index[j] < first) index[j] = (int32_t)(first + p->col_lo[j]);
}
/* The winners among rows. */
OM_INLINE void max_rows(const float *kept, const ptrdiff_t *slot, ptrdiff_t rows, ptrdiff_t ow, float *y, int32_t *index, ptrdiff_t j, ptrdiff_t n,
                        int indexed) {
    const int32_t *kept_index = (const int32_t *)kept + ow;
    vf best = pool_load(kept + slot[0] + j, n);
    vi found = indexed ? pool_load_index(kept_index + slot[0] + j, n) : vi_set(0);
    for (ptrdiff_t t = 1; t < rows; t++)
        pool_join(&best, &found, pool_load(kept + slot[t] + j, n), indexed ? pool_load_index(kept_index + slot[t] + j, n) : found);
    pool_store(y + j, vf_result(best), n);
    if (indexed) pool_store_index(index + j, found, n);
}

OM_INLINE void max_pool(const om_pool *p, const float *x, float *y, int32_t *index, ptrdiff_t lo, ptrdiff_t hi, void *scratch, int indexed) {
    const ptrdiff_t ring = om_pool_ring(p), ow = p->ow;
    const pool_grid grid = pool_grid_in(p, scratch, &scratch);
    ptrdiff_t *slot = scratch, *held = slot + p->kh;
    float *row = (float *)(held + ring), *kept = row + grid.pitch * grid.phases;
    int32_t lane[LANES];
    for (int i = 0; i < LANES; i++) lane[i] = (int32_t)(uint32_t)((uint64_t)i * (uint64_t)p->sw);
    const vi steps = vi_bits(vf_load((const float *)lane));
    for (ptrdiff_t i = 0; i < ring; i++) held[i] = -1;
    for (ptrdiff_t o = lo; o < hi; o++) {
        float *yo = y + o * ow;
        int32_t *io = indexed ? index + o * ow : NULL;
        ptrdiff_t rows = 0;
        for (ptrdiff_t r = p->row_lo[o]; r < p->row_hi[o]; r += p->dh) {
            ptrdiff_t s = r % ring;
            float *best = kept + 2 * s * ow;
            int32_t *found = (int32_t *)(best + ow);
            slot[rows++] = 2 * s * ow;
            if (held[s] == r) continue;
            held[s] = r;
            const float *xr = pool_row(p, &grid, x + r * p->x_row, -__builtin_inff(), row);
            if (p->kw == 2)
                max_row(p, xr, grid.tap, 2, r * p->w, steps, best, found, indexed);
            else if (p->kw == 3)
                max_row(p, xr, grid.tap, 3, r * p->w, steps, best, found, indexed);
            else
                max_row(p, xr, grid.tap, p->kw, r * p->w, steps, best, found, indexed);
        }
        if (!rows) {
            for (ptrdiff_t j = 0; j < ow; j++) yo[j] = -__builtin_inff();
            if (indexed) memset(io, -1, (size_t)ow * sizeof *io);
            continue;
        }
        if (rows == 3) {
#define BODY(j, n) max_rows(kept, slot, 3, ow, yo, io, j, n, indexed)
            OM_COLUMNS(ow, BODY);
#undef BODY
        } else {
#define BODY(j, n) max_rows(kept, slot, rows, ow, yo, io, j, n, indexed)
            OM_COLUMNS(ow, BODY);
#undef BODY
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

/* Means of windows j, ... over the phases of their rows. */
OM_INLINE void avg_columns(const float *const *from, ptrdiff_t rows, const ptrdiff_t *tap, ptrdiff_t taps, vd row_count, const double *col_count, float *y,
                           ptrdiff_t j, ptrdiff_t n) {
    vd low = vd_set(0.0), high = low;
    for (ptrdiff_t i = 0; i < rows; i++)
        for (ptrdiff_t t = 0; t < taps; t++) {
            vd a, b;
            pool_widen(from[i] + tap[t] + j, n, &a, &b);
            low = vd_add(low, a);
            high = vd_add(high, b);
        }
    low = vd_div(low, vd_mul(row_count, vd_load(col_count + j)));
    high = vd_div(high, vd_mul(row_count, vd_load(col_count + j + VD_LANES)));
    pool_store(y + j, vf_result(vf_from_vd(low, high)), n);
}
static void k_avg_pool(const om_pool *p, const float *x, float *y, int32_t *index, ptrdiff_t lo, ptrdiff_t hi, void *scratch) {
    (void)index;
    const ptrdiff_t ring = om_pool_ring(p), ow = p->ow;
    const pool_grid grid = pool_grid_in(p, scratch, &scratch);
    const ptrdiff_t size = grid.pitch * grid.phases;
    ptrdiff_t *held = scratch;
    const float **from = (const float **)(held + ring);
    float *kept = (float *)(from + p->kh);
    for (ptrdiff_t i = 0; i < ring; i++) held[i] = -1;
    for (ptrdiff_t o = lo; o < hi; o++) {
        ptrdiff_t rows = 0;
        for (ptrdiff_t r = p->row_lo[o]; r < p->row_hi[o]; r++) {
            ptrdiff_t s = r % ring;
            const float *xr = x + r * p->x_row;
            from[rows++] = held[s] == r ? kept + s * size : pool_row(p, &grid, xr, 0.0f, kept + s * size);
            if (from[rows - 1] != xr) held[s] = r;
        }
        const vd row_count = vd_set(p->row_count[o]);
        float *yo = y + o * ow;
        if (p->kw == 3) {
#define BODY(j, n) avg_columns(from, rows, grid.tap, 3, row_count, p->col_count, yo, j, n)
            OM_COLUMNS(ow, BODY);
#undef BODY
        } else {
#define BODY(j, n) avg_columns(from, rows, grid.tap, grid.taps, row_count, p->col_count, yo, j, n)
            OM_COLUMNS(ow, BODY);
#undef BODY
        }
    }
}

/* One row of dx from its phases; columns that no window reaches have no phase. */
static inline void pool_join_phases(const om_pool *p, const pool_grid *grid, const float *row, float *dx) {
    ptrdiff_t done = 0;
    pool_zero(dx, p->w);
    if (p->sw == 2 && grid->phases == 2) {
        const pool_span s = grid->span[grid->even], z = grid->span[!grid->even];
        const float *even = row + grid->even * grid->pitch + s.lo, *odd = row + !grid->even * grid->pitch + z.lo;
        ptrdiff_t both = s.hi - s.lo < z.hi - z.lo ? s.hi - s.lo : z.hi - z.lo;
        for (; done + LANES <= both; done += LANES) {
            vf a = vf_load(even + done), b = vf_load(odd + done);
            vf_store(dx + 2 * done, vf_result(vf_zip_lo(a, b)));
            vf_store(dx + 2 * done + LANES, vf_result(vf_zip_hi(a, b)));
        }
    }
    for (ptrdiff_t k = 0; k < grid->phases; k++) {
        const pool_span s = grid->span[k];
        for (ptrdiff_t i = s.lo + done; i < s.hi; i++) dx[s.first + (i - s.lo) * p->sw] = pool_result(row[k * grid->pitch + i]);
    }
}
OM_INLINE void avg_quotients(const float *g, vd row_count, const double *col_count, float *q, ptrdiff_t j, ptrdiff_t n) {
    vd low = vd_mul(row_count, vd_load(col_count + j)), high = vd_mul(row_count, vd_load(col_count + j + VD_LANES));
    pool_store(q + j, vf_div(pool_load(g + j, n), vf_from_vd(low, high)), n);
}
/* Elements j, ... of one phase of a row of dx: a column meets its windows in scan order when the taps go from right to left. */
OM_INLINE void avg_elements(const float *q, const ptrdiff_t *slot, ptrdiff_t rows, ptrdiff_t last, float *dx, ptrdiff_t j, ptrdiff_t n) {
    vf sum = vf_set(0.0f);
    for (ptrdiff_t i = 0; i < rows; i++)
        for (ptrdiff_t m = last; m >= 0; m--) sum = vf_add(sum, pool_load(q + slot[i] + j - m, n));
    pool_store(dx + j, vf_result(sum), n);
}
/* Rows of g / count are kept with +0 on both sides, which changes no sum that starts from +0. */
static void k_avg_pool_bwd(const om_pool *p, const float *g, const int32_t *index, float *dx, ptrdiff_t lo, ptrdiff_t hi, void *scratch) {
    (void)index;
    const ptrdiff_t ring = om_pool_ring(p), ow = p->ow, margin = (p->kw - 1) / p->sw;
    const pool_grid grid = pool_grid_in(p, scratch, &scratch);
    ptrdiff_t *slot = scratch, *held = slot + p->kh, first = 0;
    float *row = (float *)(held + ring), *kept = row + grid.pitch * grid.phases;
    for (ptrdiff_t i = 0; i < ring; i++) {
        held[i] = -1;
        pool_zero(kept + i * (ow + 2 * margin), margin);
        pool_zero(kept + i * (ow + 2 * margin) + margin + ow, margin);
    }
    for (ptrdiff_t r = lo; r < hi; r++) {
        ptrdiff_t rows = 0;
        while (first < p->oh && p->row_hi[first] <= r) first++;
        for (ptrdiff_t o = first; o < p->oh && p->row_lo[o] <= r; o++) {
            slot[rows] = o % ring * (ow + 2 * margin) + margin;
            float *q = kept + slot[rows++];
            if (held[o % ring] == o) continue;
            held[o % ring] = o;
            const vd row_count = vd_set(p->row_count[o]);
            const float *go = g + o * ow;
#define BODY(j, n) avg_quotients(go, row_count, p->col_count, q, j, n)
            OM_COLUMNS(ow, BODY);
#undef BODY
        }
        float *to = dx + r * p->w;
        if (p->sw == 1) { /* one phase, which is the row */
            const pool_span s = grid.span[0];
            pool_zero(to + (s.hi - s.lo), p->w - (s.hi - s.lo));
#define BODY(j, n) avg_elements(kept + s.lo, slot, rows, margin, to, j, n)
            OM_COLUMNS(s.hi - s.lo, BODY);
#undef BODY
            continue;
        }
        for (ptrdiff_t k = 0; k < grid.phases; k++) {
            const ptrdiff_t last = (p->kw - 1 - k) / p->sw;
            float *phase = row + k * grid.pitch;
#define BODY(j, n) avg_elements(kept, slot, rows, last, phase, j, n)
            OM_COLUMNS(grid.pitch, BODY);
#undef BODY
        }
        pool_join_phases(p, &grid, row, to);
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
