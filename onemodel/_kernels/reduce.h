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
    ROW(windows, sum_windows, "found[w] = sum in lanes and range of |x| of window w, for sum_joined") \
    ROW(joined, sum_joined, "acc += every element, in order, with the windows that sum_windows found") \
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

/* Compiler vectors, as in copy.h. */
typedef float f4 __attribute__((vector_size(16)));
typedef float f4_any __attribute__((vector_size(16), aligned(4), may_alias));
typedef double d4 __attribute__((vector_size(32)));
typedef double d4_any __attribute__((vector_size(32), aligned(8), may_alias));
typedef int64_t l4 __attribute__((vector_size(32)));
#if defined(__clang__) || __GNUC__ >= 12
#define OM_SHUFFLE_D(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define OM_SHUFFLE_D(a, b, ...) __builtin_shuffle(a, b, (l4){__VA_ARGS__})
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

/* A window is added in lanes if that provably gives the bits of the chain. Two cases, both resting on this: a sum of multiples of some
 * power of two v is exact, in any order, while no partial sum exceeds 2^53 v.
 *
 * On a grid (sum_and_range, sum_on_tight_grid). acc and all x_i are multiples of v and every partial sum s_i of the chain has |s_i| <= 2^53 v: then each step
 * of the chain is exact and its end is the sum in any order. v is the lower of acc's last bit and the last bit that the exponent of
 * the smallest x_i other than 0 allows. A lane's partial sums are at most A, the greatest lane sum of |x|, and four lanes added up at
 * most 4 A. The prefixes p_k at the ends of pieces are such sums, added up over the lanes one by one: where a true value exceeds
 * 2^53 v, so does (or equals it) the rounded one, so looking at every value computed is enough. Between the ends, |s_i| is at most
 * |p_k| + the sum of |x| over one piece. 0.1 % more covers the float32 roundings in the sums of |x|, at most 1024 / LANES each.
 *
 * In a binade (sum_in_binade). Let u be the spacing of doubles at acc, r_i = x_i rounded to the nearest multiple of u. If no x_i lies
 * midway between two multiples (a tie) and all partial sums keep 2^52 u <= |s| <= 2^53 u, then fl(s_i + x_i) is the multiple of u nearest
 * s_i + x_i, which is s_i + r_i, s_i being a multiple of u. So the chain ends at acc + sum(r_i), again in any order. As
 * |r_i| <= M + u, M = max|x|, partial sums stay within S = n (M + u) of acc; demanding |acc| - S >= 2^52 u and |acc| + S <= 2^53 u leaves
 * n u / 2 for the roundings of these two tests. The rounding itself costs nothing: a lane that starts at C = 1.5 * 2^52 u stays in
 * (2^52 u, 2^53 u), for it moves by less than S / 2 <= 2^50 u; doubles there are the multiples of u, so adding x_i adds r_i. To see
 * ties, a twin lane starts one u higher. Without a tie both move alike and the twin stays u above, of the other parity. The first tie
 * sends both to an even multiple, 0 or 2 u apart; of one parity from then on, they stay so. Hence the twin is u above at the end of
 * a piece if and only if there was no tie.
 *
 * NaN and infinities go to the chain; zeros change no sum, for acc starts at +0 and is never -0; below 2^300 nothing here overflows,
 * and with the last bit of a float32 at or above 2^-149 nothing is lost to underflow. */
enum { PIECE = 128, WINDOW = OM_SUM_WINDOW };

static inline double power_of_two(int64_t exponent) {
    uint64_t b = (uint64_t)(exponent + 1023) << 52;
    double x;
    memcpy(&x, &b, sizeof x);
    return x;
}

static inline double sum_lanes(vd v) {
    double lanes[VD_LANES], sum = 0.0;
    vd_store(lanes, v);
    for (int k = 0; k < VD_LANES; k++) sum += lanes[k];
    return sum;
}

static inline double max_abs(double s, double reach) {
    double size = s < 0 ? -s : s;
    return size > reach ? size : reach;
}

/* Adds all n elements and returns 1 if every partial sum stays below limit = 2^53 v, else leaves *acc and returns 0. */
static inline int sum_on_tight_grid(double *acc, const float *x, ptrdiff_t n, double limit) {
    vd s0 = vd_set(0.0), s1 = s0, s2 = s0, s3 = s0, prefix[WINDOW / PIECE], sizes[WINDOW / PIECE];
    vf all0 = vf_set(0.0f), all1 = all0;
    for (ptrdiff_t i = 0, k = 0; i < n; i += PIECE, k++) {
        vf piece0 = vf_set(0.0f), piece1 = piece0;
        for (ptrdiff_t j = i; j < i + PIECE; j += 2 * LANES) {
            vf v = vf_load(x + j), w = vf_load(x + j + LANES);
            s0 = vd_add(s0, vd_lo(v));
            s1 = vd_add(s1, vd_hi(v));
            s2 = vd_add(s2, vd_lo(w));
            s3 = vd_add(s3, vd_hi(w));
            piece0 = vf_add(piece0, vf_abs(v));
            piece1 = vf_add(piece1, vf_abs(w));
        }
        all0 = vf_add(all0, piece0);
        all1 = vf_add(all1, piece1);
        piece0 = vf_add(piece0, piece1);
        sizes[k] = vd_add(vd_lo(piece0), vd_hi(piece0));
        prefix[k] = vd_add(vd_add(s0, s1), vd_add(s2, s3));
    }
    float lanes[LANES];
    double largest = 0.0, between = 0.0, s = 0.0, reach = max_abs(*acc, 0.0);
    vf_store(lanes, vf_max(all0, all1));
    for (int k = 0; k < LANES; k++) largest = max_abs(lanes[k], largest);
    for (ptrdiff_t k = 0; k < n / PIECE; k++) {
        double sums[VD_LANES], most = 0.0;
        vd_store(sums, prefix[k]);
        s = 0.0;
        for (int j = 0; j < VD_LANES; j++) {
            s += sums[j];
            most = max_abs(s, most);
        }
        s += *acc;
        reach = max_abs(max_abs(s, most), reach);
        between = max_abs(sum_lanes(sizes[k]), between);
    }
    if (!(reach + 1.001 * between < limit && 4.004 * largest < limit)) return 0;
    *acc = s;
    return 1;
}

/* Adds the pieces before the first one with a tie, which it reports; returns how many elements those are. */
static inline ptrdiff_t sum_in_binade(double *acc, const float *x, ptrdiff_t n, double u, int *tie) {
    const vd c = vd_set(0x1.8p52 * u), one = vd_set(u);
    vd s0 = c, s1 = c, s2 = c, s3 = c, t0 = vd_add(c, one), t1 = t0, t2 = t0, t3 = t0;
    ptrdiff_t i = 0;
    for (; i < n; i += PIECE) {
        vd p0 = s0, p1 = s1, p2 = s2, p3 = s3;
        for (ptrdiff_t j = i; j < i + PIECE; j += 2 * LANES) {
            vf v = vf_load(x + j), w = vf_load(x + j + LANES);
            vd x0 = vd_lo(v), x1 = vd_hi(v), x2 = vd_lo(w), x3 = vd_hi(w);
            s0 = vd_add(s0, x0);
            s1 = vd_add(s1, x1);
            s2 = vd_add(s2, x2);
            s3 = vd_add(s3, x3);
            t0 = vd_add(t0, x0);
            t1 = vd_add(t1, x1);
            t2 = vd_add(t2, x2);
            t3 = vd_add(t3, x3);
        }
        /* Each difference is 0, u or 2 u: its bits are u's or others. A shifted xor is 0 or a positive number, so sums hide none. */
        vd e = vd_iadd(vd_iadd(vd_shr(vd_xor(vd_sub(t0, s0), one), 3), vd_shr(vd_xor(vd_sub(t1, s1), one), 3)),
                       vd_iadd(vd_shr(vd_xor(vd_sub(t2, s2), one), 3), vd_shr(vd_xor(vd_sub(t3, s3), one), 3)));
        double apart[VD_LANES];
        uint64_t bits[VD_LANES], any = 0;
        vd_store(apart, e);
        memcpy(bits, apart, sizeof bits);
        for (int k = 0; k < VD_LANES; k++) any |= bits[k];
        if (any) {
            *tie = 1;
            s0 = p0;
            s1 = p1;
            s2 = p2;
            s3 = p3;
            break;
        }
    }
    *acc += sum_lanes(vd_add(vd_add(vd_sub(s0, c), vd_sub(s1, c)), vd_add(vd_sub(s2, c), vd_sub(s3, c))));
    return i;
}

/* The least bits of |x| above 0, for a window that has zeros. */
static inline uint32_t least_above_zero(const float *x, ptrdiff_t n) {
    uint32_t low = UINT32_MAX; /* of the bits less 1, so that 0 is out of the way */
    for (ptrdiff_t i = 0; i < n; i++) {
        uint32_t b = ((uint32_t)bits_f4(x[i]) & 0x7FFFFFFF) - 1;
        low = b < low ? b : low;
    }
    return low + 1;
}

/* One pass: the sum in lanes, which counts where the window is on a wide grid, and the greatest and least bits of |x|. */
static inline double sum_and_range(const float *x, ptrdiff_t n, uint32_t *top, uint32_t *low) {
    vd s0 = vd_set(0.0), s1 = s0, s2 = s0, s3 = s0;
    vi magnitude = vi_set(INT32_MAX), most0 = vi_set(0), most1 = most0, least0 = magnitude, least1 = magnitude;
    for (ptrdiff_t i = 0; i < n; i += 2 * LANES) {
        vi v = vi_and(vi_bits(vf_load(x + i)), magnitude), w = vi_and(vi_bits(vf_load(x + i + LANES)), magnitude);
        most0 = vi_max(most0, v);
        most1 = vi_max(most1, w);
        least0 = vi_min(least0, v);
        least1 = vi_min(least1, w);
        s0 = vd_add(s0, vd_widen(x + i));
        s1 = vd_add(s1, vd_widen(x + i + LANES - VD_LANES));
        s2 = vd_add(s2, vd_widen(x + i + LANES));
        s3 = vd_add(s3, vd_widen(x + i + 2 * LANES - VD_LANES));
    }
    float most[LANES], least[LANES];
    vf_store(most, vf_bits(vi_max(most0, most1)));
    vf_store(least, vf_bits(vi_min(least0, least1)));
    *top = 0;
    *low = INT32_MAX;
    for (int k = 0; k < LANES; k++) {
        uint32_t high_bits = (uint32_t)bits_f4(most[k]), low_bits = (uint32_t)bits_f4(least[k]);
        *top = high_bits > *top ? high_bits : *top;
        *low = low_bits < *low ? low_bits : *low;
    }
    return sum_lanes(vd_add(vd_add(s0, s1), vd_add(s2, s3)));
}

/* n a multiple of PIECE, at most WINDOW; returns how many elements it added to *acc: 0 where no case holds. */
static inline ptrdiff_t sum_found_window(double *acc, const float *x, ptrdiff_t n, int *tie, double sum, uint32_t top, uint32_t low) {
    if (top >= 0x7F800000) return 0;
    if (top == 0) return n;
    if (low == 0) low = least_above_zero(x, n);
    double m = f4_bits((int32_t)top), size = *acc < 0 ? -*acc : *acc;
    if (!(size < 0x1p300)) return 0;
    uint64_t b;
    memcpy(&b, &size, sizeof b);
    int64_t spacing = (int64_t)(b >> 52) - 1023 - 52, least = low >> 23, grid = (least ? least : 1) - 150;
    if (b != 0) {
        int64_t last = spacing + __builtin_ctzll(b | (uint64_t)1 << 52);
        grid = last < grid ? last : grid;
    }
    double limit = power_of_two(grid + 53);
    if (size + 1.001 * (double)n * m < limit) {
        *acc += sum; /* on a wide grid there is nothing more to look at */
        return n;
    }
    if (size + m < limit && sum_on_tight_grid(acc, x, n, limit)) return n;
    if (b == 0) return 0;
    double u = power_of_two(spacing), slack = (double)n * (m + u);
    if (size - slack >= 0x1p52 * u && size + slack <= 0x1p53 * u) return sum_in_binade(acc, x, n, u, tie);
    return 0;
}

static inline ptrdiff_t sum_window(double *acc, const float *x, ptrdiff_t n, int *tie) {
    uint32_t top, low;
    double sum = sum_and_range(x, n, &top, &low);
    return sum_found_window(acc, x, n, tie, sum, top, low);
}

static double sum_row_exact(double acc, const float *x, ptrdiff_t n) {
    ptrdiff_t i = 0;
    while (VD_LANES > 1 && n - i >= PIECE) {
        int tie = 0;
        ptrdiff_t window = n - i < WINDOW ? (n - i) / PIECE * PIECE : WINDOW, done = sum_window(&acc, x + i, window, &tie);
        if (done == 0 && !tie && window > PIECE) done = sum_window(&acc, x + i, PIECE, &tie); /* few may fit where many do not */
        i += done;
        if (done == 0 || tie) {
            acc = chain(acc, x + i, PIECE);
            i += PIECE;
        }
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

/* The elements of four rows as doubles, four columns of them, and t[c] = column c: half the shuffles of a transpose of floats that is
 * widened afterwards. */
#define widen_4(v) __builtin_convertvector(v, d4) /* no function: compilers warn of vectors by value that are wider than the machine's */
static inline __attribute__((always_inline)) void transpose_4x4(const d4 a[4], d4 t[4]) {
    d4 b0 = OM_SHUFFLE_D(a[0], a[1], 0, 4, 2, 6), b1 = OM_SHUFFLE_D(a[0], a[1], 1, 5, 3, 7);
    d4 b2 = OM_SHUFFLE_D(a[2], a[3], 0, 4, 2, 6), b3 = OM_SHUFFLE_D(a[2], a[3], 1, 5, 3, 7);
    t[0] = OM_SHUFFLE_D(b0, b2, 0, 1, 4, 5);
    t[1] = OM_SHUFFLE_D(b1, b3, 0, 1, 4, 5);
    t[2] = OM_SHUFFLE_D(b0, b2, 2, 3, 6, 7);
    t[3] = OM_SHUFFLE_D(b1, b3, 2, 3, 6, 7);
}
static inline __attribute__((always_inline)) f4 load_f4(const float *p) { return *(const f4_any *)p; }
#define load_d4(p) (*(const d4_any *)(p))

/* Eight chains side by side; fewer than eight rows are padded with the last one, whose copies are thrown away. */
static void sum_rows_8(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, double *acc) {
    const float *row[8];
    double state[8];
    for (ptrdiff_t r = 0; r < 8; r++) {
        ptrdiff_t k = r < rows ? r : rows - 1;
        row[r] = x + k * stride;
        state[r] = acc[k];
    }
    d4 s = load_d4(state), u = load_d4(state + 4), t[4];
    ptrdiff_t c = 0;
    for (; c + 4 <= cols; c += 4) {
        const d4 upper[4] = {widen_4(load_f4(row[0] + c)), widen_4(load_f4(row[1] + c)), widen_4(load_f4(row[2] + c)), widen_4(load_f4(row[3] + c))};
        transpose_4x4(upper, t);
        s = s + t[0] + t[1] + t[2] + t[3];
        const d4 lower[4] = {widen_4(load_f4(row[4] + c)), widen_4(load_f4(row[5] + c)), widen_4(load_f4(row[6] + c)), widen_4(load_f4(row[7] + c))};
        transpose_4x4(lower, t);
        u = u + t[0] + t[1] + t[2] + t[3];
    }
    memcpy(state, &s, sizeof s);
    memcpy(state + 4, &u, sizeof u);
    for (; c < cols; c++)
        for (int r = 0; r < 8; r++) state[r] += (double)row[r][c];
    memcpy(acc, state, (size_t)rows * sizeof *acc);
}

static void k_sum_rows(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, double *acc) {
    if (!OM_EXACT && cols >= 64) {
        for (ptrdiff_t r = 0; r < rows; r++) acc[r] = sum_row_fast(acc[r], x + r * stride, cols);
        return;
    }
    ptrdiff_t r = 0;
    while (rows - r >= 3 || (rows - r == 2 && cols < PIECE)) {
        ptrdiff_t group = rows - r < 8 ? rows - r : 8;
        sum_rows_8(x + r * stride, stride, group, cols, acc + r);
        r += group;
    }
    for (; r < rows; r++) acc[r] = sum_row_exact(acc[r], x + r * stride, cols);
}

static void k_sum_windows(const float *x, ptrdiff_t windows, double *found) {
    for (ptrdiff_t w = 0; VD_LANES > 1 && w < windows; w++) {
        uint32_t range[2];
        found[2 * w] = sum_and_range(x + w * WINDOW, WINDOW, &range[0], &range[1]);
        memcpy(found + 2 * w + 1, range, sizeof range);
    }
}

/* Whatever a window's case, its elements join the chain with the chain's bits; a window that fits no case goes the way of a row. */
static ptrdiff_t k_sum_joined(const float *x, ptrdiff_t windows, const double *found, double *acc) {
    ptrdiff_t untouched = 0;
    for (ptrdiff_t w = 0; w < windows; w++) {
        const float *window = x + w * WINDOW;
        ptrdiff_t done = 0;
        if (VD_LANES > 1) {
            uint32_t range[2];
            int tie = 0;
            double before = *acc;
            memcpy(range, found + 2 * w + 1, sizeof range);
            done = sum_found_window(acc, window, WINDOW, &tie, found[2 * w], range[0], range[1]);
            untouched += done == WINDOW && *acc == before + found[2 * w];
        }
        if (done < WINDOW) *acc = sum_row_exact(*acc, window + done, WINDOW - done);
    }
    return untouched;
}

/* Eight rows per visit of the running sums; fast mode lets the eight meet in float32 first. */
static void k_sum_columns(const float *restrict x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, double *restrict acc) {
    ptrdiff_t r = 0;
    for (; r + 8 <= rows; r += 8, x += 8 * stride) {
        const float *x1 = x + stride, *x2 = x1 + stride, *x3 = x2 + stride, *x4 = x3 + stride, *x5 = x4 + stride, *x6 = x5 + stride, *x7 = x6 + stride;
        for (ptrdiff_t c = 0; c < cols; c++) {
            if (OM_EXACT) {
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
