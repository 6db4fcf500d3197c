/* Sums, extrema and the gradient of an extremum over blocks of rows or columns; the walk over axes and threads belong to reduce.pyx.
 *
 * A sum is a chain: double accumulator, elements in the order given, and the caller rounds once. Exact mode gives the bits of that
 * chain always; fast mode may add one row in several lanes. Extrema do not depend on the order: they follow the total order of IEEE
 * 754 maximum (-0 below +0), and a NaN wins. */
#ifndef OM_REDUCE_H
#define OM_REDUCE_H

#define OM_REDUCE(ROW) \
    ROW(sum, sum_rows, "acc[r] += every element of row r, in order") \
    ROW(sum, sum_columns, "acc[c] += every element of column c, in order") \
    ROW(windows, sum_windows, "found[w] = what window w adds to a sum, for sum_joined") \
    ROW(joined, sum_joined, "acc += windows as sum_windows found them, as long as that gives the bits of a sum in order") \
    ROW(round, round_sums, "out = acc / divisor, rounded once to float32") \
    ROW(extremum, amax_rows, "acc[r] = max(acc[r], row r)") \
    ROW(extremum, amax_columns, "acc[c] = max(acc[c], column c)") \
    ROW(extremum, amin_rows, "acc[r] = min(acc[r], row r)") \
    ROW(extremum, amin_columns, "acc[c] = min(acc[c], column c)") \
    ROW(arg, argmax_rows, "index of the first maximum of each row, or of its first NaN") \
    ROW(ties, ties_rows, "count[r] += elements of row r equal to y[r]; NaN equals NaN") \
    ROW(ties, ties_columns, "count[c] += elements of column c equal to y[c]; NaN equals NaN") \
    ROW(quotient, quotients, "g / count, rounded once to float32") \
    ROW(share, share_rows, "share[r] where row r equals y[r], else 0") \
    ROW(share, share_columns, "share[c] where column c equals y[c], else 0")

#endif

#if defined(OM_VARIANT) && !defined(OM_REDUCE_LOOPS)
#define OM_REDUCE_LOOPS
#include <string.h>

#define OM_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define OM_UNROLL _Pragma("clang loop unroll(full)")
#define OM_ROLL _Pragma("clang loop unroll(disable)")
#else
#define OM_UNROLL _Pragma("GCC unroll 16")
#define OM_ROLL _Pragma("GCC unroll 1") /* through memory: turned into shuffles of registers it is longer */
#endif

static inline int32_t bits_f4(float x) {
    int32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}
static inline float f4_bits(int32_t b) {
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
}

/* -- one row --------------------------------------------------------------------------------------------------------------------- */

static inline double chain(double acc, const float *x, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i++) acc += (double)x[i];
    return acc;
}

/* A turn: TURN_ROWS rows of TURN_COLS columns, read a vector at a time and turned within fours of lanes, so that each half of a vector is the
 * rows' elements of one column; with four lanes a vector is a column and its halves are rows. Floats are turned before they are widened. */
enum { TURN_ROWS = LANES < 8 ? 4 : LANES / 2, TURN_COLS = LANES < 8 ? 4 : 8, TURN_PARTS = TURN_ROWS / VD_LANES, MOST_SIDE = 16, LINE_FLOATS = 16 };

OM_INLINE void turn_fours(vf t[4]) {
    vf a = vf_quad_lo(t[0], t[2]), b = vf_quad_hi(t[0], t[2]), c = vf_quad_lo(t[1], t[3]), d = vf_quad_hi(t[1], t[3]);
    t[0] = vf_quad_lo(a, c);
    t[1] = vf_quad_hi(a, c);
    t[2] = vf_quad_lo(b, d);
    t[3] = vf_quad_hi(b, d);
}
OM_INLINE void turn_rows(const float *const *row, ptrdiff_t c, vf t[4]) {
    OM_UNROLL for (int k = 0; k < 4; k++) t[k] = vf_quads(row[k] + c, row[TURN_ROWS - 4 + k] + c);
    turn_fours(t);
}
/* Part of column c in the turn. */
OM_INLINE vd turned(const vf t[4], const int c, const int part) {
    const int high = LANES < 8 ? part : c / 4;
    return high ? vd_hi(t[c % 4]) : vd_lo(t[c % 4]);
}

/* A window is added in lanes if that provably gives the bits of the chain. It is cut into segments, which lanes take in order, one each. Let A_j
 * be at least the sum of |x_i| over segment j: a sum in floats and 0.1 % more, for at most 128 roundings. With P_j, the sums of the segments before j,
 * all partial sums of the chain lie between acc + low and acc + high, low = min(P_j - A_j), high = max(P_j + A_j). Two cases:
 *
 * On a grid. acc and all x_i are multiples of a power of two v and every partial sum is at most 2^53 v: then each step of the chain is exact and its
 * end is the sum in any order. v is the lower of acc's last bit and the last bit that the exponent of the smallest x_i other than 0 allows. Demanded
 * is that acc + low, acc + high, low and high stay within 2^53 v. That makes sums in lanes and the P_j exact too; and where they are not, the first one
 * whose true value exceeds 2^53 v is no less when it is rounded.
 *
 * In a binade. Let u be the spacing of doubles at acc. While all partial sums keep 2^52 u <= |s| <= 2^53 u, each step of the chain goes
 * to the multiple of u nearest s + x_i, of two equally near the even one. So what an element adds depends on s through one bit alone, whether
 * s / u is odd, and so does what a run of elements adds. A lane that starts at C = 1.5 * 2^52 u, an even multiple, and takes a segment in order,
 * rounds as the chain does where that is even there; its twin starts at C + u, for odd. The segments then follow each other in
 * integers: steps of u, and the parity after each. Without a tie (an element midway between multiples) both lanes move alike; the first tie sends both to
 * an even multiple, 0 or 2 u apart, and from then on they stay so. n u is room for all roundings of n elements and of the tests themselves; as
 * high - low >= 2 A_j fits the binade, A_j <= 2^51 u, and every lane stays within (2^52 u, 2^53 u) as well.
 *
 * NaN and infinities make A_j a NaN or infinite and go to the chain; zeros change no sum, for acc starts at +0 and is never -0; below 2^300 nothing
 * here overflows, and with the last bit of a float32 at or above 2^-149 nothing is lost to underflow. */
enum { PIECE = 128, WINDOW = OM_SUM_WINDOW, SEGMENTS = LANES < 8 ? 8 : MOST_SIDE /* where registers are few */, SEGMENT_PARTS = SEGMENTS / VD_LANES };

static inline double power_of_two(int64_t exponent) {
    uint64_t b = (uint64_t)(exponent + 1023) << 52;
    double x;
    memcpy(&x, &b, sizeof x);
    return x;
}
static inline uint64_t bits_d(double x) {
    uint64_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

static inline double sum_lanes(vd v) {
    double lanes[VD_LANES], sum = 0.0;
    vd_store(lanes, v);
    for (int k = 0; k < VD_LANES; k++) sum += lanes[k];
    return sum;
}

/* How many steps of u the window adds to an even and to an odd multiple of u, from where its segments end: neighbouring doubles have neighbouring
 * bits. */
static inline void binade_steps(const double even[SEGMENTS], const double odd[SEGMENTS], double u, int64_t steps[2]) {
    const uint64_t start = bits_d(0x1.8p52 * u);
    uint64_t steps0 = 0, steps1 = 0, parity0 = 0, parity1 = 1;
    OM_ROLL for (int k = 0; k < SEGMENTS; k++) {
        const uint64_t end = bits_d(even[k]), apart = bits_d(odd[k]) - end - 1; /* 0; after a tie 1 or -1 */
        steps0 += end - start + (apart & -parity0);
        steps1 += end - start + (apart & -parity1);
        parity0 = (end ^ (parity0 & ~apart)) & 1;
        parity1 = (end ^ (parity1 & ~apart)) & 1;
    }
    steps[0] = (int64_t)steps0;
    steps[1] = (int64_t)steps1;
}

/* A window is looked at in one of three ways, cheapest first; n is a multiple of PIECE, at most WINDOW. OM_WIDE: on a grid, as one segment that lanes
 * share, its partial sums bounded by the sum of |x| alone. */
static inline int32_t least_lane(vi least) {
    float bits[LANES];
    int32_t lowest = INT32_MAX;
    vf_store(bits, vf_bits(least));
    for (int k = 0; k < LANES; k++) lowest = bits_f4(bits[k]) < lowest ? bits_f4(bits[k]) : lowest;
    return lowest;
}
/* Bits of |x| on a ring that begins at 1, so that 0 is the greatest. */
static inline vi ring_bits(vf size) { return vi_add(vi_bits(size), vi_set(INT32_MAX)); }

static inline void look_wide(const float *x, ptrdiff_t n, om_window *found) {
    vd s0 = vd_set(0.0), s1 = s0, s2 = s0, s3 = s0;
    vf size0 = vf_set(0.0f), size1 = size0;
    vi least0 = vi_set(INT32_MAX), least1 = least0;
    for (ptrdiff_t i = 0; i < n; i += 2 * LANES) {
        const vf v = vf_abs(vf_load(x + i)), w = vf_abs(vf_load(x + i + LANES));
        size0 = vf_add(size0, v);
        size1 = vf_add(size1, w);
        least0 = vi_min(least0, ring_bits(v));
        least1 = vi_min(least1, ring_bits(w));
        s0 = vd_add(s0, vd_widen(x + i));
        s1 = vd_add(s1, vd_widen(x + i + LANES - VD_LANES));
        s2 = vd_add(s2, vd_widen(x + i + LANES));
        s3 = vd_add(s3, vd_widen(x + i + 2 * LANES - VD_LANES));
    }
    const vf sizes = vf_add(size0, size1);
    const double size = 1.001 * sum_lanes(VD_LANES < LANES ? vd_add(vd_lo(sizes), vd_hi(sizes)) : vd_lo(sizes));
    found->sum = sum_lanes(vd_add(vd_add(s0, s1), vd_add(s2, s3)));
    found->high = size < 0x1p300 ? size : __builtin_inf(); /* a NaN is not less */
    found->low = -found->high;
    found->least = (uint32_t)least_lane(vi_min(least0, least1)) - INT32_MAX;
}

/* OM_NARROW: on a grid; OM_BINADE, around multiples of u. */
OM_INLINE void look_at(const int binade, const float *x, ptrdiff_t n, double u, om_window *found) {
    enum { TURNS = SEGMENTS / TURN_ROWS };
    const ptrdiff_t length = n / SEGMENTS;
    const double from = 0x1.8p52 * u;
    vd s[SEGMENT_PARTS], t[SEGMENT_PARTS];
    vf sizes[TURNS];
    vi least = vi_set(INT32_MAX);
    OM_UNROLL for (int k = 0; k < SEGMENT_PARTS; k++) {
        s[k] = vd_set(from);
        t[k] = vd_set(from + u);
    }
    OM_UNROLL for (int k = 0; k < TURNS; k++) sizes[k] = vf_set(0.0f);
    for (ptrdiff_t c = 0; c < length; c += TURN_COLS)
        OM_UNROLL for (int k = 0; k < TURNS; k++) {
            const float *row[TURN_ROWS];
            vf v[4];
            OM_UNROLL for (int r = 0; r < TURN_ROWS; r++) row[r] = x + (k * TURN_ROWS + r) * length;
            OM_UNROLL for (int l = 0; l < TURN_ROWS * TURN_COLS; l += LINE_FLOATS)
                __builtin_prefetch(x + n + (c * TURNS + k * TURN_COLS) * TURN_ROWS + l);
            turn_rows(row, c, v);
            OM_UNROLL for (int i = 0; i < 4; i++) {
                const vf size = vf_abs(v[i]);
                sizes[k] = vf_add(sizes[k], size);
                if (!binade) least = vi_min(least, ring_bits(size));
            }
            OM_UNROLL for (int i = 0; i < TURN_COLS; i++)
                OM_UNROLL for (int part = 0; part < TURN_PARTS; part++) {
                    const int at = k * TURN_PARTS + part;
                    const vd w = turned(v, i, part);
                    s[at] = vd_add(s[at], w);
                    if (binade) t[at] = vd_add(t[at], w);
                }
        }
    double even[SEGMENTS], odd[SEGMENTS], moved[SEGMENTS], reach[SEGMENTS], sum = 0.0, low = 0.0, high = 0.0;
    vd all = vd_set(0.0);
    OM_UNROLL for (int k = 0; k < SEGMENT_PARTS; k++) {
        const vf size = sizes[k / TURN_PARTS]; /* with eight lanes or more it has two columns of the rows */
        const vd r = vd_mul(vd_set(1.001), LANES < 8 ? (k % 2 ? vd_hi(size) : vd_lo(size)) : vd_add(vd_lo(size), vd_hi(size)));
        all = vd_add(all, r);
        vd_store(reach + k * VD_LANES, r);
        vd_store(moved + k * VD_LANES, vd_sub(s[k], vd_set(from)));
        vd_store(even + k * VD_LANES, s[k]);
        if (binade) vd_store(odd + k * VD_LANES, t[k]);
    }
    OM_ROLL for (int k = 0; k < SEGMENTS; k++) {
        low = sum - reach[k] < low ? sum - reach[k] : low;
        high = sum + reach[k] > high ? sum + reach[k] : high;
        sum += moved[k];
    }
    const int fits = sum_lanes(all) < 0x1p300; /* not for a NaN either */
    found->sum = sum;
    found->least = 0;
    found->low = fits ? low : -__builtin_inf();
    found->high = fits ? high : __builtin_inf();
    if (binade) binade_steps(even, odd, u, found->steps);
    else found->least = (uint32_t)least_lane(least) - INT32_MAX;
}

OM_INLINE void look(const float *x, ptrdiff_t n, int way, double u, om_window *found) {
    if (way == OM_WIDE) look_wide(x, n, found);
    else if (way == OM_NARROW) look_at(0, x, n, 0.0, found);
    else look_at(1, x, n, u, found);
}

/* Adds a window to *acc and returns 1 where its case holds. */
OM_INLINE int join_window(double *acc, const om_window *found, ptrdiff_t n, int way, double u) {
    const double s = *acc, low = s + found->low, high = s + found->high;
    if (way == OM_BINADE) {
        const double room = (double)n * u, least = 0x1p52 * u + room, most = 0x1p53 * u - room;
        if (!(s > 0.0 ? low >= least && high <= most : -high >= least && -low <= most)) return 0;
        *acc = s + u * (double)found->steps[bits_d(s) & 1];
        return 1;
    }
    const uint64_t b = bits_d(s) & INT64_MAX;
    int64_t least = found->least ? found->least >> 23 : 255, grid = (least ? least : 1) - 150; /* 0: nothing but zeros */
    if (b != 0) {
        const int64_t last = (int64_t)(b >> 52) - 1023 - 52 + __builtin_ctzll(b | (uint64_t)1 << 52);
        grid = last < grid ? last : grid;
    }
    const double limit = power_of_two(grid + 53);
    if (!(found->high < limit && -found->low < limit && high < limit && -low < limit)) return 0;
    *acc = s + found->sum;
    return 1;
}

/* The way that the last window went is tried first. */
static int sum_window(double *acc, const float *x, ptrdiff_t n, int *way) {
    for (int tried = 0; tried < OM_SUM_WAYS; tried++, *way = (*way + 1) % OM_SUM_WAYS) {
        om_window found;
        double u = 0.0;
        if (*way == OM_BINADE) {
            if (*acc == 0.0 || !(*acc - *acc == 0.0)) continue;
            u = power_of_two((int64_t)(bits_d(*acc) >> 52 & 2047) - 1023 - 52);
        }
        look(x, n, *way, u, &found);
        if (join_window(acc, &found, n, *way, u)) return 1;
    }
    return 0;
}

static double sum_row_exact(double acc, const float *x, ptrdiff_t n) {
    ptrdiff_t i = 0;
    int way = bits_d(acc) & 15 ? OM_BINADE : OM_WIDE; /* a sum with bits so low is hardly on a grid */
    while (VD_LANES > 1 && n - i >= PIECE) {
        const ptrdiff_t window = n - i < WINDOW ? (n - i) / PIECE * PIECE : WINDOW, end = i + window;
        if (sum_window(&acc, x + i, window, &way)) {
            i = end;
            continue;
        }
        for (; i < end; i += PIECE) /* few may fit where many do not */
            if (window == PIECE || !sum_window(&acc, x + i, PIECE, &way)) acc = chain(acc, x + i, PIECE);
    }
    return chain(acc, x + i, n - i);
}

/* Fast mode: eight vectors meet in float32, four from either half of the row, the groups of eight in double lanes, always in the same
 * order. One stream of loads from memory is fetched ahead at half the speed of two. */
static double sum_row_fast(double acc, const float *x, ptrdiff_t n) {
    vd s0 = vd_set(0.0), s1 = s0;
    ptrdiff_t i = 0;
    const ptrdiff_t half = n / (8 * LANES) * (4 * LANES);
    for (const float *y = x + half; i < half; i += 4 * LANES) {
        vf a = vf_add(vf_load(x + i), vf_load(x + i + LANES)), b = vf_add(vf_load(x + i + 2 * LANES), vf_load(x + i + 3 * LANES));
        vf c = vf_add(vf_load(y + i), vf_load(y + i + LANES)), d = vf_add(vf_load(y + i + 2 * LANES), vf_load(y + i + 3 * LANES));
        vf v = vf_add(vf_add(a, b), vf_add(c, d));
        s0 = vd_add(s0, vd_lo(v));
        if (VD_LANES < LANES) s1 = vd_add(s1, vd_hi(v));
    }
    for (i = 2 * half; i + LANES <= n; i += LANES) {
        vf v = vf_load(x + i);
        s0 = vd_add(s0, vd_lo(v));
        if (VD_LANES < LANES) s1 = vd_add(s1, vd_hi(v));
    }
    double lanes[VD_LANES], sum = 0.0;
    vd_store(lanes, vd_add(s0, s1));
    for (int k = 0; k < VD_LANES; k++) sum += lanes[k];
    if (!(sum - sum == 0.0)) return chain(acc, x, n); /* eight together left the range of a float, which the row may not do */
    return chain(acc + sum, x + i, n - i);
}

/* -- blocks ---------------------------------------------------------------------------------------------------------------------- */

/* How many turns stand below each other for so many rows: a constant in each branch. */
#define OM_TURNS(rows, call) \
    do { \
        if ((rows) <= TURN_ROWS) call(1); \
        else if ((rows) <= 2 * TURN_ROWS) call(2); \
        else call(MOST_SIDE / TURN_ROWS); \
    } while (0)

/* Chains of rows beside each other. Where there are fewer rows than lanes the last one fills up, and its copies are thrown away. A line of
 * the cache at a time: rows a power of two apart share places there. */
OM_INLINE void sum_side(const int turns, const float *const *row, ptrdiff_t rows, ptrdiff_t cols, double *state) {
    vd s[MOST_SIDE / VD_LANES], *const sums = s;
    vf t[4];
    ptrdiff_t c = 0;
    if (LANES > 1) {
        OM_UNROLL for (int k = 0; k < turns * TURN_PARTS; k++) s[k] = vd_load(state + k * VD_LANES);
        while (c + TURN_COLS <= cols) {
            const ptrdiff_t end = c + LINE_FLOATS <= cols ? c + LINE_FLOATS : c + TURN_COLS;
            OM_UNROLL for (int k = 0; k < turns; k++)
                for (ptrdiff_t at = c; at < end; at += TURN_COLS) {
                    turn_rows(row + k * TURN_ROWS, at, t);
                    OM_UNROLL for (int i = 0; i < TURN_COLS; i++)
                        OM_UNROLL for (int part = 0; part < TURN_PARTS; part++)
                            sums[k * TURN_PARTS + part] = vd_add(sums[k * TURN_PARTS + part], turned(t, i, part));
                }
            c = end;
        }
        OM_UNROLL for (int k = 0; k < turns * TURN_PARTS; k++) vd_store(state + k * VD_LANES, s[k]);
    }
    for (; c < cols; c++)
        for (ptrdiff_t r = 0; r < rows; r++) state[r] += (double)row[r][c];
}

static void sum_rows_beside(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, double *acc) {
    const float *row[MOST_SIDE];
    double state[MOST_SIDE];
    for (ptrdiff_t r = 0; r < MOST_SIDE; r++) {
        ptrdiff_t k = r < rows ? r : rows - 1;
        row[r] = x + k * stride;
        state[r] = acc[k];
    }
#define OM_CALL(turns) sum_side(turns, row, rows, cols, state)
    OM_TURNS(rows, OM_CALL);
#undef OM_CALL
    memcpy(acc, state, (size_t)rows * sizeof *acc);
}

/* Adds rows one after the other as long as their windows are on wide grids, which is faster than chains beside each other; else returns 0 and
 * leaves acc. */
static int sum_rows_wide(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, double *acc) {
    double state[MOST_SIDE];
    for (ptrdiff_t r = 0; r < rows; r++, x += stride) {
        ptrdiff_t c = 0;
        state[r] = acc[r];
        while (cols - c >= PIECE) {
            const ptrdiff_t n = cols - c < WINDOW ? (cols - c) / PIECE * PIECE : WINDOW;
            om_window found;
            look_wide(x + c, n, &found);
            if (!join_window(state + r, &found, n, OM_WIDE, 0.0)) return 0;
            c += n;
        }
        state[r] = chain(state[r], x + c, cols - c);
    }
    memcpy(acc, state, (size_t)rows * sizeof *acc);
    return 1;
}

static void k_sum_rows(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, double *acc) {
    if (!OM_EXACT && cols >= 64) {
        for (ptrdiff_t r = 0; r < rows; r++) acc[r] = sum_row_fast(acc[r], x + r * stride, cols);
        return;
    }
    ptrdiff_t r = 0;
    int wide = OM_EXACT && LANES >= 16 && cols >= 4 * PIECE; /* fewer lanes are faster beside each other */
    while (rows - r >= 3 || (rows - r == 2 && cols < PIECE)) {
        ptrdiff_t group = rows - r < MOST_SIDE ? rows - r : MOST_SIDE;
        wide = wide && sum_rows_wide(x + r * stride, stride, group, cols, acc + r);
        if (!wide) sum_rows_beside(x + r * stride, stride, group, cols, acc + r);
        r += group;
    }
    for (; r < rows; r++) acc[r] = sum_row_exact(acc[r], x + r * stride, cols);
}

static void k_sum_windows(const float *x, ptrdiff_t windows, int way, double spacing, om_window *found) {
    for (; windows > 0; windows--, x += WINDOW, found++) {
        if (VD_LANES == 1) found->low = -__builtin_inf();
        else look(x, WINDOW, way, spacing, found);
    }
}

static ptrdiff_t k_sum_joined(const om_window *found, ptrdiff_t windows, int way, double spacing, double *acc) {
    ptrdiff_t w = 0;
    while (w < windows && join_window(acc, found + w, WINDOW, way, spacing)) w++;
    return w;
}

/* Eight rows per visit of the running sums; where they are not in order, the eight meet in float32 first. */
OM_INLINE void add_columns(const int in_order, const float *restrict x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, double *restrict acc) {
    ptrdiff_t r = 0;
    for (; r + 8 <= rows; r += 8, x += 8 * stride) {
        const float *x1 = x + stride, *x2 = x1 + stride, *x3 = x2 + stride, *x4 = x3 + stride, *x5 = x4 + stride, *x6 = x5 + stride, *x7 = x6 + stride;
        for (ptrdiff_t c = 0; c < cols; c++) {
            if (in_order) {
                double a = acc[c] + (double)x[c];
                a += (double)x1[c];
                a += (double)x2[c];
                a += (double)x3[c];
                a += (double)x4[c];
                a += (double)x5[c];
                a += (double)x6[c];
                a += (double)x7[c];
                acc[c] = a;
            } else {
                acc[c] += (double)(((x[c] + x1[c]) + (x2[c] + x3[c])) + ((x4[c] + x5[c]) + (x6[c] + x7[c])));
            }
        }
    }
    for (; r < rows; r++, x += stride)
        for (ptrdiff_t c = 0; c < cols; c++) acc[c] += (double)x[c];
}

static void k_sum_columns(const float *restrict x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, double *restrict acc) {
    enum { STRIP = 256 };
    if (OM_EXACT || rows < 8) {
        add_columns(1, x, stride, rows, cols, acc);
        return;
    }
    double before[STRIP];
    for (; cols > 0; cols -= STRIP, x += STRIP, acc += STRIP) {
        const ptrdiff_t n = cols < STRIP ? cols : STRIP;
        int finite = 1;
        memcpy(before, acc, (size_t)n * sizeof *acc);
        add_columns(0, x, stride, rows, n, acc);
        for (ptrdiff_t c = 0; c < n; c++) finite &= acc[c] - acc[c] == 0.0;
        if (!finite) { /* eight together left the range of a float, which a column may not do */
            memcpy(acc, before, (size_t)n * sizeof *acc);
            add_columns(1, x, stride, rows, n, acc);
        }
    }
}

/* Also makes one NaN of all, in both modes: it costs nothing here. */
static inline float rounded(double v) {
    float y = (float)v;
    return y == y ? y : f4_bits(0x7FC00000);
}

static void k_round_sums(const double *acc, double divisor, float *out, ptrdiff_t stride, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i++) out[i * stride] = rounded(acc[i] / divisor);
}

/* -- extrema: on keys, integers in the order of the floats -------------------------------------------------------------------------- */

/* Its own inverse. A NaN's key is beyond the infinities on either side, so NaNs are looked for apart. */
static inline int32_t key_of(int32_t b) { return b ^ (int32_t)((uint32_t)(b >> 31) >> 1); }
static inline int is_nan_bits(int32_t b) { return (b & 0x7FFFFFFF) > 0x7F800000; }

#define OM_EXTREMUM(name, better) \
    static void k_##name##_rows(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, float *acc) { \
        for (ptrdiff_t r = 0; r < rows; r++, x += stride) { \
            int32_t best = key_of(bits_f4(acc[r])), nan = is_nan_bits(bits_f4(acc[r])); \
            for (ptrdiff_t c = 0; c < cols; c++) { \
                int32_t b = bits_f4(x[c]), k = key_of(b); \
                best = k better best ? k : best; \
                nan |= is_nan_bits(b); \
            } \
            acc[r] = f4_bits(nan ? 0x7FC00000 : key_of(best)); \
        } \
    } \
    static void k_##name##_columns(const float *restrict x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, float *restrict acc) { \
        for (ptrdiff_t r = 0; r < rows; r++, x += stride) \
            for (ptrdiff_t c = 0; c < cols; c++) { \
                int32_t a = bits_f4(acc[c]), b = bits_f4(x[c]); \
                int32_t best = key_of(b) better key_of(a) ? b : a; \
                acc[c] = f4_bits(is_nan_bits(a) | is_nan_bits(b) ? 0x7FC00000 : best); \
            } \
    }
OM_EXTREMUM(amax, >)
OM_EXTREMUM(amin, <)
#undef OM_EXTREMUM

static void k_argmax_rows(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, int64_t *index) {
    for (ptrdiff_t r = 0; r < rows; r++, x += stride) {
        float best = f4_bits((int32_t)0xFF800000);
        k_amax_rows(x, 0, 1, cols, &best);
        ptrdiff_t c = 0;
        if (best != best)
            while (x[c] == x[c]) c++;
        else
            while (x[c] != best) c++;
        index[r] = c;
    }
}

static inline int ties(float x, float y) { return (x == y) | ((x != x) & (y != y)); }

static void k_ties_rows(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, const float *y, double *count) {
    for (ptrdiff_t r = 0; r < rows; r++, x += stride) {
        int64_t found = 0;
        for (ptrdiff_t c = 0; c < cols; c++) found += ties(x[c], y[r]);
        count[r] += (double)found;
    }
}
static void k_ties_columns(const float *restrict x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, const float *restrict y, double *restrict count) {
    for (ptrdiff_t r = 0; r < rows; r++, x += stride)
        for (ptrdiff_t c = 0; c < cols; c++) count[c] += ties(x[c], y[c]) ? 1.0 : 0.0;
}
static void k_quotients(const float *g, const double *count, float *share, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i++) share[i] = rounded((double)g[i] / count[i]);
}
static void k_share_rows(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, const float *y, const float *share, float *dx) {
    for (ptrdiff_t r = 0; r < rows; r++, x += stride, dx += stride)
        for (ptrdiff_t c = 0; c < cols; c++) dx[c] = ties(x[c], y[r]) ? share[r] : 0.0f;
}
static void k_share_columns(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, const float *y, const float *share, float *dx) {
    for (ptrdiff_t r = 0; r < rows; r++, x += stride, dx += stride)
        for (ptrdiff_t c = 0; c < cols; c++) dx[c] = ties(x[c], y[c]) ? share[c] : 0.0f;
}
#endif
