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

typedef double d8 __attribute__((vector_size(64)));

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

enum { PIECE = 128 };

/* Tries to add PIECE elements to *acc in lanes with the bits of the chain; returns 0, *acc untouched, where it cannot tell.
 *
 * Let u be a power of two and r_i = x_i rounded to the nearest multiple of u (ties to even). All r_i, and acc, are multiples of u; a
 * sum of multiples of u is exact in any order while no partial sum exceeds 2^53 u. So acc + sum(r_i) is one number, whatever the order
 * of lanes. It is also what the chain gives in two cases.
 *
 *   A. Every r_i = x_i, and |acc| + sum |x_i| <= 2^53 u. Then each step of the chain is exact.
 *   B. No x_i lies midway between two multiples of u, and all partial sums keep 2^52 u <= |s| <= 2^53 u, so that u is the spacing of
 *      doubles around each. Then s_{i+1} = fl(s_i + x_i) is the multiple of u nearest s_i + x_i, which is s_i + r_i, s_i being
 *      a multiple of u and there being no tie that the parity of s_i would decide.
 *
 * The choice of u. M = max |x_i|, finite and not 0 (else: all zeros leave acc as it is, since acc is never -0; NaN and infinities go
 * to the chain). B = fl(|acc| + PIECE M), E its exponent, u = 2^(E - 52). As 2^(E+1) is a double and B < 2^(E+1), the true bound is
 * below 2^(E+1) = 2^53 u too; and |x_i| <= M < 2^53 u / PIECE = 2^46 u.
 *   acc is a multiple of u if its exponent is E; else |acc| < 2^52 u and acc / u, an exact scaling, is compared with its integer part.
 *   r_i = fl(fl(x_i + C) - C) with C = 1.5 * 2^52 u: x_i + C stays within (2^52 u, 2^53 u), where doubles are the multiples of u.
 *   d_i = x_i - r_i is exact (a multiple of the last bit of x_i, and not above |x_i|, or 0) and |d_i| <= u / 2. So case A means all
 *   d_i = 0; a tie means |d_i| = u / 2. As integers, the bits of |d_i| minus the bits of u / 2 are negative unless there is a tie, and
 *   the bits of |d_i| minus 1 are negative only for 0: the signs of all of them are joined with AND.
 *   Case A: |r_i| = |x_i|: the bound is B's. Case B: |r_i| <= M + u / 2, so partial sums differ from acc by less than
 *   S = PIECE (M + u); demanding |acc| - S >= 2^E and |acc| + S <= 2^(E+1) leaves PIECE u / 2 for the roundings of these tests.
 * u is between 2^-195 and 2^160, so no step here overflows or loses bits to underflow. */
static inline int sum_piece(double *acc, const float *x) {
    int32_t top = 0;
    for (int i = 0; i < PIECE; i++) {
        int32_t b = bits_f4(x[i]) & 0x7FFFFFFF;
        top = b > top ? b : top;
    }
    if (top >= 0x7F800000) return 0;
    if (top == 0) return 1;
    double m = f4_bits(top), old = *acc, size = old < 0 ? -old : old, bound = size + PIECE * m;
    if (!(bound < 0x1p300)) return 0;
    uint64_t b, a, half_bits;
    memcpy(&b, &bound, sizeof b);
    memcpy(&a, &size, sizeof a);
    uint64_t exponent = b >> 52, ub = (exponent - 52) << 52, scale_bits = (uint64_t)(2046 - (exponent - 52)) << 52;
    double u, scale;
    memcpy(&u, &ub, sizeof u);
    memcpy(&scale, &scale_bits, sizeof scale);
    if (a >> 52 != exponent && (double)(int64_t)(size * scale) != size * scale) return 0;
    half_bits = ub - ((uint64_t)1 << 52);

    double minus_one, minus_half;
    uint64_t all = ~(uint64_t)0, negated = -half_bits, magnitude = all >> 1;
    memcpy(&minus_one, &all, sizeof all);
    memcpy(&minus_half, &negated, sizeof negated);
    vd c = vd_set(0x1.8p52 * u), no_sign, s0 = vd_set(0.0), s1 = s0, zero0 = vd_set(minus_one), zero1 = zero0, apart0 = zero0, apart1 = zero0;
    memcpy(&minus_one, &magnitude, sizeof magnitude);
    no_sign = vd_set(minus_one);
    const vd less_one = zero0, less_half = vd_set(minus_half);
    for (int i = 0; i < PIECE; i += LANES) {
        vf v = vf_load(x + i);
        vd x0 = vd_lo(v), x1 = vd_hi(v), r0 = vd_sub(vd_add(x0, c), c), r1 = vd_sub(vd_add(x1, c), c);
        vd d0 = vd_and(vd_sub(x0, r0), no_sign), d1 = vd_and(vd_sub(x1, r1), no_sign);
        s0 = vd_add(s0, r0);
        s1 = vd_add(s1, r1);
        zero0 = vd_and(zero0, vd_iadd(d0, less_one));
        zero1 = vd_and(zero1, vd_iadd(d1, less_one));
        apart0 = vd_and(apart0, vd_iadd(d0, less_half));
        apart1 = vd_and(apart1, vd_iadd(d1, less_half));
    }
    double lanes[VD_LANES], sum = 0.0;
    int64_t zeros[VD_LANES], aparts[VD_LANES], zero = -1, apart = -1;
    vd_store(lanes, vd_add(s0, s1));
    vd_store((double *)zeros, vd_and(zero0, zero1));
    vd_store((double *)aparts, vd_and(apart0, apart1));
    for (int i = 0; i < VD_LANES; i++) {
        sum += lanes[i];
        zero &= zeros[i];
        apart &= aparts[i];
    }
    double slack = PIECE * (m + u), low = 0x1p52 * u;
    if (zero >= 0 && !(apart < 0 && size - slack >= low && size + slack <= 2 * low)) return 0;
    *acc = old + sum;
    return 1;
}

static double sum_row_exact(double acc, const float *x, ptrdiff_t n) {
    ptrdiff_t i = 0;
    if (VD_LANES > 1)
        for (; i + PIECE <= n; i += PIECE)
            if (!sum_piece(&acc, x + i)) acc = chain(acc, x + i, PIECE);
    return chain(acc, x + i, n - i);
}

/* Fast mode: four lane accumulators, joined in one fixed order. */
static double sum_row_fast(double acc, const float *x, ptrdiff_t n) {
    vd s0 = vd_set(0.0), s1 = s0, s2 = s0, s3 = s0;
    ptrdiff_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        vf v = vf_load(x + i), w = vf_load(x + i + LANES);
        s0 = vd_add(s0, vd_lo(v));
        s2 = vd_add(s2, vd_lo(w));
        if (VD_LANES < LANES) {
            s1 = vd_add(s1, vd_hi(v));
            s3 = vd_add(s3, vd_hi(w));
        }
    }
    double lanes[VD_LANES], sum = 0.0;
    vd_store(lanes, vd_add(vd_add(s0, s1), vd_add(s2, s3)));
    for (int k = 0; k < VD_LANES; k++) sum += lanes[k];
    return chain(acc + sum, x + i, n - i);
}

/* -- blocks ---------------------------------------------------------------------------------------------------------------------- */

/* Eight chains side by side; fewer than eight rows are padded with the last one, whose copies are thrown away. */
static void sum_rows_8(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, double *acc) {
    const float *row[8];
    double state[8];
    for (ptrdiff_t r = 0; r < 8; r++) {
        ptrdiff_t k = r < rows ? r : rows - 1;
        row[r] = x + k * stride;
        state[r] = acc[k];
    }
    d8 s;
    memcpy(&s, state, sizeof s);
    ptrdiff_t c = 0;
    for (; c + 8 <= cols; c += 8) {
        f8 t[8];
        transpose_8x8(row, t);
        for (int k = 0; k < 8; k++) s += __builtin_convertvector(t[k], d8);
        for (int r = 0; r < 8; r++) row[r] += 8;
    }
    memcpy(state, &s, sizeof s);
    for (; c < cols; c++)
        for (int r = 0; r < 8; r++) state[r] += (double)*row[r]++;
    memcpy(acc, state, (size_t)rows * sizeof *acc);
}

static void k_sum_rows(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, double *acc) {
    if (!OM_EXACT && cols >= 4 * LANES) {
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

static void k_sum_columns(const float *restrict x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, double *restrict acc) {
    ptrdiff_t r = 0;
    for (; r + 4 <= rows; r += 4, x += 4 * stride)
        for (ptrdiff_t c = 0; c < cols; c++) {
            double a = acc[c];
            a += (double)x[c];
            a += (double)x[c + stride];
            a += (double)x[c + 2 * stride];
            a += (double)x[c + 3 * stride];
            acc[c] = a;
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
