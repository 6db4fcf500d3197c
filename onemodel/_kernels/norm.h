/* Normalisation and its gradients (batch, layer, rms, group): the list of kernels, statistics and columns; rows are in norm_rows.h.
 *
 * x^ = (x - mean) * rstd and y = x^ * gamma + beta, each operation an IEEE operation of floats, in both modes. The mean is a float; the
 * deviation x - mean is a float too, so that its square, and g * x^, are exact in double, and a sum of them is one chain of additions.
 * Must not contain the walk over images, channels and groups, or threads. */
#ifndef OM_NORM_H
#define OM_NORM_H

/* What a statistic applies: one number per row or per column. gamma NULL means 1, beta NULL means nothing to add. */
typedef struct om_norm {
    const float *mean, *rstd, *gamma, *beta;
} om_norm;
/* acc += (x - mean)^2; one mean and one sum per row or per column of the block x[r * stride + c]. */
typedef void om_norm_squares_fn(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, const float *mean, double *acc);
/* From n elements' sums: the variance, and 1 / sqrt(variance + eps) rounded once. Also leaves the double mean in sum, the variance in squares. */
typedef void om_norm_finish_fn(double *sum, double *squares, const float *mean, double n, double eps, float *rstd, ptrdiff_t count);
typedef void om_norm_rstd_fn(const float *variance, ptrdiff_t stride, double eps, float *rstd, ptrdiff_t n);
/* running = momentum * (statistic * factor) + (1 - momentum) * running, in double, rounded once */
typedef void om_norm_running_fn(const double *statistic, double factor, double momentum, float *running, ptrdiff_t stride, ptrdiff_t n);
typedef void om_norm_apply_fn(const om_norm *s, const float *x, ptrdiff_t x_stride, ptrdiff_t rows, ptrdiff_t cols, float *y, ptrdiff_t y_stride);
/* sum_g += g, sum_gx += g * x^ */
typedef void om_norm_sums_fn(const om_norm *s, const float *x, ptrdiff_t x_stride, const float *g, ptrdiff_t g_stride, ptrdiff_t rows, ptrdiff_t cols,
                             double *sum_g, double *sum_gx);
/* dx = ((g * before - a) - x^ * b) * rstd * after; before is a row's gamma or NULL, and so is after (their product with rstd comes first). */
typedef void om_norm_grad_fn(const om_norm *s, const float *x, ptrdiff_t x_stride, const float *g, ptrdiff_t g_stride, ptrdiff_t rows, ptrdiff_t cols,
                             const float *before, const float *a, const float *b, float *dx, ptrdiff_t dx_stride);
/* dx = g * (rstd * gamma) */
typedef void om_norm_scale_fn(const om_norm *s, const float *g, ptrdiff_t g_stride, ptrdiff_t rows, ptrdiff_t cols, float *dx, ptrdiff_t dx_stride);
/* Rows that are normalised each by itself; gamma and beta have an element per column. */
typedef struct om_layer_norm {
    const float *gamma, *beta;
    double eps;
    int centred; /* else the mean is taken as 0 */
} om_layer_norm;
/* mean (NULL where not centred) and rstd may be NULL: then they are not kept. */
typedef void om_layer_norm_fn(const om_layer_norm *p, const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, float *y, float *mean, float *rstd);
/* dx, dgamma and dbeta may be NULL; the two sums go on from what they hold. */
typedef void om_layer_norm_bwd_fn(const om_layer_norm *p, const float *x, ptrdiff_t x_stride, const float *g, ptrdiff_t g_stride, ptrdiff_t rows,
                                  ptrdiff_t cols, const float *mean, const float *rstd, float *dx, double *dgamma, double *dbeta);
/* Per group of `channels` neighbours: a and b, the means over n elements of g * gamma and g * gamma * x^, at each of its channels. */
typedef void om_norm_groups_fn(const double *sum_g, const double *sum_gx, const float *gamma, ptrdiff_t channels, double n, float *a, float *b,
                               ptrdiff_t groups);
typedef void om_norm_spread_fn(const float *from, ptrdiff_t each, float *to, ptrdiff_t n);
typedef void om_norm_fold_fn(const double *from, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, float *to);
/* Of each row, or of each of at most 64 columns, the mean and the sum of (x - mean)^2, all in double; the bits are the same either way. */
typedef void om_moments_fn(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, double *mean, double *squares);
/* dx = (x - mean) * scale in double, rounded once; dx has x's stride */
typedef void om_moments_bwd_fn(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, const double *mean, const double *scale, float *dx);

#define OM_NORM(ROW) \
    ROW(norm_squares, norm_squares_rows, "acc[r] += (x - mean[r])^2 over row r, in order") \
    ROW(norm_squares, norm_squares_columns, "acc[c] += (x - mean[c])^2 over column c, in order") \
    ROW(norm_finish, norm_finish, "variances and their 1 / sqrt(v + eps) from two sums") \
    ROW(norm_rstd, norm_rstd, "1 / sqrt(variance + eps) in double, rounded once to float32") \
    ROW(norm_running, norm_running, "momentum * s + (1 - momentum) * running in double, rounded once to float32") \
    ROW(norm_apply, norm_apply_rows, "(x - mean) * rstd * gamma + beta, one of each per row") \
    ROW(norm_apply, norm_apply_columns, "(x - mean) * rstd * gamma + beta, one of each per column") \
    ROW(norm_sums, norm_sums_rows, "sums of g and of g * x^ over each row, in order") \
    ROW(norm_sums, norm_sums_columns, "sums of g and of g * x^ over each column, in order") \
    ROW(norm_grad, norm_grad_rows, "gradient of x from the means of g and of g * x^, one of each per row") \
    ROW(norm_grad, norm_grad_columns, "gradient of x from the means of g and of g * x^, one of each per column") \
    ROW(norm_scale, norm_scale_rows, "g * (rstd * gamma), one of each per row") \
    ROW(norm_scale, norm_scale_columns, "g * (rstd * gamma), one of each per column") \
    ROW(layer_norm, layer_norm, "rows normalised each by itself") \
    ROW(layer_norm_bwd, layer_norm_bwd, "its gradients: of x, and sums for gamma and beta over the rows, in order") \
    ROW(norm_groups, norm_groups, "means of g * gamma and g * gamma * x^ over groups of channels, from the channels' sums") \
    ROW(norm_spread, norm_spread, "each number of a group at each of its channels") \
    ROW(norm_fold, norm_fold, "sums of doubles over rows, in order, rounded once to float32") \
    ROW(moments, moments_rows, "mean and sum of (x - mean)^2 of each row in double, in sixteen sums that meet in halves") \
    ROW(moments, moments_columns, "the same of each column, with the same bits") \
    ROW(moments_bwd, moments_bwd_rows, "(x - mean) * scale in double, one of each per row, rounded once to float32") \
    ROW(moments_bwd, moments_bwd_columns, "(x - mean) * scale in double, one of each per column, rounded once to float32")
#endif

#if defined(OM_VARIANT) && !defined(OM_NORM_LOOPS)
#define OM_NORM_LOOPS
#include "norm_rows.h"

/* -- statistics -------------------------------------------------------------------------------------------------------------------- */

/* The squares are taken around the rounded mean: (mean of them) - (what the rounding moved)^2 is the variance, whatever the mean. A NaN
 * stays; rounding may leave less than 0 where all is equal. */
static void k_norm_finish(double *sum, double *squares, const float *mean, double n, double eps, float *rstd, ptrdiff_t count) {
    for (ptrdiff_t i = 0; i < count; i++) {
        double m = sum[i] / n, moved = m - (double)mean[i], v = squares[i] / n - moved * moved;
        if (v < 0.0) v = 0.0;
        sum[i] = m;
        squares[i] = v;
        rstd[i] = rounded(1.0 / __builtin_sqrt(v + eps));
    }
}

static void k_norm_rstd(const float *variance, ptrdiff_t stride, double eps, float *rstd, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i++) rstd[i] = rounded(1.0 / __builtin_sqrt((double)variance[i * stride] + eps));
}

static void k_norm_running(const double *statistic, double factor, double momentum, float *running, ptrdiff_t stride, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i++)
        running[i * stride] = rounded(momentum * (statistic[i] * factor) + (1.0 - momentum) * (double)running[i * stride]);
}

static void k_norm_groups(const double *sum_g, const double *sum_gx, const float *gamma, ptrdiff_t channels, double n, float *a, float *b,
                          ptrdiff_t groups) {
    for (ptrdiff_t c = 0; groups > 0; groups--) {
        double sa = 0.0, sb = 0.0;
        ptrdiff_t end = c + channels;
        for (ptrdiff_t i = c; i < end; i++) {
            double scale = gamma ? (double)gamma[i] : 1.0;
            sa += scale * sum_g[i];
            sb += scale * sum_gx[i];
        }
        for (; c < end; c++) {
            a[c] = rounded(sa / n);
            b[c] = rounded(sb / n);
        }
    }
}

static void k_norm_spread(const float *from, ptrdiff_t each, float *to, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t k = 0; k < each; k++) to[i * each + k] = from[i];
}

static void k_norm_fold(const double *from, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, float *to) {
    for (ptrdiff_t c = 0; c < cols; c++) {
        double s = 0.0;
        for (ptrdiff_t r = 0; r < rows; r++) s += from[r * stride + c];
        to[c] = rounded(s);
    }
}

/* -- variance: sixteen running sums whatever the ISA, so that the bits are the same and the compiler may vectorise ---------------------- */

enum { MOMENT_SUMS = 16, MOMENT_COLUMNS = 64 };

static inline double moments_met(double *s) {
    for (int half = MOMENT_SUMS / 2; half; half /= 2)
        for (int k = 0; k < half; k++) s[k] += s[k + half];
    return s[0];
}

/* Deviations are taken in double: the difference of two floats may be beyond a float, and its square below one. */
static void k_moments_rows(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, double *mean, double *squares) {
    for (ptrdiff_t r = 0; r < rows; r++, x += stride) {
        double s[MOMENT_SUMS] = {0.0}, q[MOMENT_SUMS] = {0.0};
        ptrdiff_t c = 0;
        for (; c + MOMENT_SUMS <= cols; c += MOMENT_SUMS)
            for (int k = 0; k < MOMENT_SUMS; k++) s[k] += (double)x[c + k];
        for (int k = 0; c + k < cols; k++) s[k] += (double)x[c + k];
        const double m = moments_met(s) / (double)cols;
        for (c = 0; c + MOMENT_SUMS <= cols; c += MOMENT_SUMS)
            for (int k = 0; k < MOMENT_SUMS; k++) {
                const double d = (double)x[c + k] - m;
                q[k] += d * d;
            }
        for (int k = 0; c + k < cols; k++) {
            const double d = (double)x[c + k] - m;
            q[k] += d * d;
        }
        mean[r] = m;
        squares[r] = moments_met(q);
    }
}

static void moments_met_columns(double (*s)[MOMENT_COLUMNS], ptrdiff_t cols, double divisor, double *to) {
    for (int half = MOMENT_SUMS / 2; half; half /= 2)
        for (int k = 0; k < half; k++)
            for (ptrdiff_t c = 0; c < cols; c++) s[k][c] += s[k + half][c];
    for (ptrdiff_t c = 0; c < cols; c++) to[c] = s[0][c] / divisor;
}

static void k_moments_columns(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, double *mean, double *squares) {
    double s[MOMENT_SUMS][MOMENT_COLUMNS] = {{0.0}};
    for (ptrdiff_t r = 0; r < rows; r++) {
        const float *const row = x + r * stride;
        double *const to = s[r % MOMENT_SUMS];
        for (ptrdiff_t c = 0; c < cols; c++) to[c] += (double)row[c];
    }
    moments_met_columns(s, cols, (double)rows, mean);
    memset(s, 0, sizeof s);
    for (ptrdiff_t r = 0; r < rows; r++) {
        const float *const row = x + r * stride;
        double *const to = s[r % MOMENT_SUMS];
        for (ptrdiff_t c = 0; c < cols; c++) {
            const double d = (double)row[c] - mean[c];
            to[c] += d * d;
        }
    }
    moments_met_columns(s, cols, 1.0, squares);
}

static void k_moments_bwd_rows(const float *restrict x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, const double *mean, const double *scale,
                               float *restrict dx) {
    for (ptrdiff_t r = 0; r < rows; r++, x += stride, dx += stride) {
        const double m = mean[r], s = scale[r];
        for (ptrdiff_t c = 0; c < cols; c++) dx[c] = rounded(((double)x[c] - m) * s);
    }
}

static void k_moments_bwd_columns(const float *restrict x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, const double *restrict mean,
                                  const double *restrict scale, float *restrict dx) {
    for (ptrdiff_t r = 0; r < rows; r++, x += stride, dx += stride)
        for (ptrdiff_t c = 0; c < cols; c++) dx[c] = rounded(((double)x[c] - mean[c]) * scale[c]);
}

/* -- columns: every loop runs along them, and is the compiler's to vectorise ------------------------------------------------------------ */

static inline float norm_result(float y) { return !OM_EXACT || y == y ? y : f4_bits(0x7FC00000); }

/* Four rows per visit of the running sums. */
static void k_norm_squares_columns(const float *restrict x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, const float *restrict mean,
                                   double *restrict acc) {
    for (; rows >= 4; rows -= 4, x += 4 * stride) {
        const float *x1 = x + stride, *x2 = x1 + stride, *x3 = x2 + stride;
        for (ptrdiff_t c = 0; c < cols; c++) {
            float d0 = x[c] - mean[c], d1 = x1[c] - mean[c], d2 = x2[c] - mean[c], d3 = x3[c] - mean[c];
            acc[c] = (((acc[c] + (double)d0 * (double)d0) + (double)d1 * (double)d1) + (double)d2 * (double)d2) + (double)d3 * (double)d3;
        }
    }
    for (; rows > 0; rows--, x += stride)
        for (ptrdiff_t c = 0; c < cols; c++) {
            float d = x[c] - mean[c];
            acc[c] += (double)d * (double)d;
        }
}

static void k_norm_apply_columns(const om_norm *s, const float *restrict x, ptrdiff_t x_stride, ptrdiff_t rows, ptrdiff_t cols, float *restrict y,
                                 ptrdiff_t y_stride) {
    for (; rows > 0; rows--, x += x_stride, y += y_stride) norm_apply_row(s->mean, s->rstd, 1, s->gamma, s->beta, x, cols, y);
}

static void k_norm_sums_columns(const om_norm *s, const float *restrict x, ptrdiff_t x_stride, const float *restrict g, ptrdiff_t g_stride,
                                ptrdiff_t rows, ptrdiff_t cols, double *restrict sum_g, double *restrict sum_gx) {
    const float *restrict mean = s->mean, *restrict rstd = s->rstd;
    for (; rows >= 4; rows -= 4, x += 4 * x_stride, g += 4 * g_stride) {
        const float *x1 = x + x_stride, *x2 = x1 + x_stride, *x3 = x2 + x_stride, *g1 = g + g_stride, *g2 = g1 + g_stride, *g3 = g2 + g_stride;
        for (ptrdiff_t c = 0; c < cols; c++) {
            const float m = mean[c], r = rstd[c], h0 = (x[c] - m) * r, h1 = (x1[c] - m) * r, h2 = (x2[c] - m) * r, h3 = (x3[c] - m) * r;
            const double e0 = g[c], e1 = g1[c], e2 = g2[c], e3 = g3[c];
            sum_g[c] = (((sum_g[c] + e0) + e1) + e2) + e3;
            sum_gx[c] = (((sum_gx[c] + e0 * (double)h0) + e1 * (double)h1) + e2 * (double)h2) + e3 * (double)h3;
        }
    }
    for (; rows > 0; rows--, x += x_stride, g += g_stride)
        for (ptrdiff_t c = 0; c < cols; c++) {
            float h = (x[c] - mean[c]) * rstd[c];
            sum_g[c] += (double)g[c];
            sum_gx[c] += (double)g[c] * (double)h;
        }
}

static void k_norm_grad_columns(const om_norm *s, const float *restrict x, ptrdiff_t x_stride, const float *restrict g, ptrdiff_t g_stride,
                                ptrdiff_t rows, ptrdiff_t cols, const float *restrict before, const float *restrict a, const float *restrict b,
                                float *restrict dx, ptrdiff_t dx_stride) {
    const float *restrict mean = s->mean, *restrict rstd = s->rstd, *restrict gamma = s->gamma;
    for (; rows > 0; rows--, x += x_stride, g += g_stride, dx += dx_stride)
        for (ptrdiff_t c = 0; c < cols; c++) {
            float h = (x[c] - mean[c]) * rstd[c], scale = gamma ? rstd[c] * gamma[c] : rstd[c], e = before ? g[c] * before[c] : g[c];
            dx[c] = norm_result(((e - a[c]) - h * b[c]) * scale);
        }
}

static void k_norm_scale_columns(const om_norm *s, const float *restrict g, ptrdiff_t g_stride, ptrdiff_t rows, ptrdiff_t cols, float *restrict dx,
                                 ptrdiff_t dx_stride) {
    const float *restrict rstd = s->rstd, *restrict gamma = s->gamma;
    for (; rows > 0; rows--, g += g_stride, dx += dx_stride)
        for (ptrdiff_t c = 0; c < cols; c++) dx[c] = norm_result(g[c] * (gamma ? rstd[c] * gamma[c] : rstd[c]));
}
#endif
