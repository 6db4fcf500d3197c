/* The weight gradient of a convolution: its register tile, which reads an image in place through one pointer per row of the unfolded matrix,
 * and the padded copy of an image. Must not contain blocking or threads: conv_weight.pyx has them. */
#ifndef OM_CONV_WEIGHT_H
#define OM_CONV_WEIGHT_H

#define OM_CONV_WEIGHT(ROW) \
    ROW(frame, frame, "a window of an image, +0 outside it, every so many rows and columns") \
    ROW(weight_tile, weight_tile, "tile of a weight gradient: rows of an unfolded image times packed gradients") \
    ROW(weight_thin, weight_thin, "taps of a weight gradient by few outputs, a channel in each lane")

/* dst[r * pitch + c] = x at (top + r * down, left + c * right), or +0 outside the image of ih x iw; the end of dst has a vector of room. */
typedef void om_frame_fn(const float *x, ptrdiff_t xh, ptrdiff_t ih, ptrdiff_t iw, ptrdiff_t top, ptrdiff_t down, ptrdiff_t left, ptrdiff_t right,
                         ptrdiff_t rows, ptrdiff_t cols, float *dst, ptrdiff_t pitch);
/* Over positions (r, p) in row-major order, one chain per output: chain[i][j] (+)= at[i][r * xr + p * xs] * g[r * cols + p][j], for m rows, at
 * most mr, and all vectors of n columns, at most nr; rows of g, chain and sum are whole vectors. BEGIN: the chain starts at +0. END: it joins
 * sum by one addition, or with STORE becomes it; with FINAL every NaN is the canonical one in exact mode. */
enum { OM_WEIGHT_BEGIN = 1, OM_WEIGHT_END = 2, OM_WEIGHT_STORE = 4, OM_WEIGHT_FINAL = 8 };
typedef void om_weight_tile_fn(ptrdiff_t m, ptrdiff_t n, const float *const *at, ptrdiff_t rows, ptrdiff_t cols, ptrdiff_t xr, ptrdiff_t xs,
                               const float *g, float *chain, float *sum, int flags);
/* The same for outputs too few to fill lanes: chain[j * step + i] (+)= at[i][(r * xr + p * xs) * LANES + lane] * g[j * gp + r * gr + p] for vectors of
 * a channel per lane, any number m of taps i and outputs j < n, at most OM_WEIGHT_THIN; step counts vectors. */
enum { OM_WEIGHT_THIN = 4 };
typedef void om_weight_thin_fn(ptrdiff_t m, ptrdiff_t n, const float *const *at, ptrdiff_t rows, ptrdiff_t cols, ptrdiff_t xr, ptrdiff_t xs,
                               const float *g, ptrdiff_t gp, ptrdiff_t gr, float *chain, float *sum, ptrdiff_t step, int flags);
#endif

#if defined(OM_VARIANT) && !defined(OM_CONV_WEIGHT_LOOPS)
#define OM_CONV_WEIGHT_LOOPS

/* How many of c = 0, 1, ... lie before `end`, going right from `from`. */
static inline ptrdiff_t frame_count(ptrdiff_t from, ptrdiff_t end, ptrdiff_t right, ptrdiff_t most) {
    ptrdiff_t n = from < end ? (end - from + right - 1) / right : 0;
    return n < most ? n : most;
}

/* Whole vectors are stored everywhere: what is written beyond an end is written again, as rows are filled from left to right. */
static void k_frame(const float *restrict x, ptrdiff_t xh, ptrdiff_t ih, ptrdiff_t iw, ptrdiff_t top, ptrdiff_t down, ptrdiff_t left,
                    ptrdiff_t right, ptrdiff_t rows, ptrdiff_t cols, float *restrict dst, ptrdiff_t pitch) {
    const ptrdiff_t lo = frame_count(left, 0, right, cols), hi = frame_count(left, iw, right, cols);
    const ptrdiff_t r_lo = frame_count(top, 0, down, rows), r_hi = frame_count(top, ih, down, rows);
    for (ptrdiff_t r = 0; r < rows; r++, dst += pitch) {
        ptrdiff_t c = 0;
        if (r >= r_lo && r < r_hi) {
            const float *from = x + (top + r * down) * xh + left;
            for (; c < lo; c += LANES) vf_store(dst + c, vf_set(0.0f));
            c = lo;
            if (right == 1) {
                for (; c + LANES <= hi; c += LANES) vf_store(dst + c, vf_load(from + c));
                if (c < hi) vf_store(dst + c, vf_load_tail(from + c, hi - c));
            } else if (right == 2) {
                for (; c + LANES < hi; c += LANES) vf_store(dst + c, vf_even(vf_load(from + c * 2), vf_load(from + c * 2 + LANES)));
                const ptrdiff_t left_over = (hi - c) * 2 - 1; /* up to the last one wanted: beyond it memory may end */
                if (left_over >= LANES) {
                    vf rest = left_over > LANES ? vf_load_tail(from + c * 2 + LANES, left_over - LANES) : vf_set(0.0f);
                    vf_store(dst + c, vf_even(vf_load(from + c * 2), rest));
                } else if (left_over > 0) {
                    vf_store(dst + c, vf_even(vf_load_tail(from + c * 2, left_over), vf_set(0.0f)));
                }
            } else {
                for (; c < hi; c++) dst[c] = from[c * right];
            }
            c = hi;
        }
        for (; c < cols; c += LANES) vf_store(dst + c, vf_set(0.0f));
    }
}

OM_INLINE void weight_tile(const int M, const int V, const float *const *at, ptrdiff_t rows, ptrdiff_t cols, ptrdiff_t xr, ptrdiff_t xs,
                           const float *g, float *chain, float *sum, int flags) {
    vf acc[MR][VECTORS];
    const float *from[MR];
    OM_UNROLL for (int i = 0; i < M; i++) {
        from[i] = at[i];
        OM_UNROLL for (int v = 0; v < V; v++) acc[i][v] = flags & OM_WEIGHT_BEGIN ? vf_set(0.0f) : vf_load(chain + (i * V + v) * LANES);
    }
    for (ptrdiff_t row = 0; rows > 0; rows--, row += xr) {
        ptrdiff_t off = row;
        CONV_STEPS for (ptrdiff_t p = cols; p > 0; p--, off += xs, g += V * LANES) {
            vf gv[VECTORS];
            OM_UNROLL for (int v = 0; v < V; v++) gv[v] = vf_load(g + v * LANES);
            OM_UNROLL for (int i = 0; i < M; i++) {
                vf xv = vf_set(from[i][off]);
                OM_UNROLL for (int v = 0; v < V; v++) acc[i][v] = gemm_step(xv, gv[v], acc[i][v]);
            }
        }
    }
    float *to = chain;
    if (flags & OM_WEIGHT_END) {
        to = sum;
        if (!(flags & OM_WEIGHT_STORE))
            OM_UNROLL for (int i = 0; i < M; i++) OM_UNROLL for (int v = 0; v < V; v++)
                acc[i][v] = vf_add(vf_load(sum + (i * V + v) * LANES), acc[i][v]);
        if (flags & OM_WEIGHT_FINAL)
            OM_UNROLL for (int i = 0; i < M; i++) OM_UNROLL for (int v = 0; v < V; v++) acc[i][v] = vf_result(acc[i][v]);
    }
    OM_UNROLL for (int i = 0; i < M; i++) OM_UNROLL for (int v = 0; v < V; v++) vf_store(to + (i * V + v) * LANES, acc[i][v]);
}

typedef void weight_fn(const float *const *at, ptrdiff_t rows, ptrdiff_t cols, ptrdiff_t xr, ptrdiff_t xs, const float *g, float *chain,
                       float *sum, int flags);
#define WEIGHT_TILE_OF(M, V)                                                                                                              \
    static void weight_tile_##M##_##V(const float *const *at, ptrdiff_t rows, ptrdiff_t cols, ptrdiff_t xr, ptrdiff_t xs, const float *g, \
                                      float *chain, float *sum, int flags) {                                                              \
        weight_tile(M, V, at, rows, cols, xr, xs, g, chain, sum, flags);                                                                  \
    }
#if defined(__aarch64__)
#define OM_WEIGHT_TILES(M) WEIGHT_TILE_OF(M, 1) WEIGHT_TILE_OF(M, 2) WEIGHT_TILE_OF(M, 3) WEIGHT_TILE_OF(M, 4)
#define OM_WEIGHT_TILE_NAMES(M) {weight_tile_##M##_1, weight_tile_##M##_2, weight_tile_##M##_3, weight_tile_##M##_4},
#else
#define OM_WEIGHT_TILES(M) WEIGHT_TILE_OF(M, 1) WEIGHT_TILE_OF(M, 2)
#define OM_WEIGHT_TILE_NAMES(M) {weight_tile_##M##_1, weight_tile_##M##_2},
#endif
OM_TILE_ROWS(OM_WEIGHT_TILES)
static weight_fn *const weight_tiles[MR][VECTORS] = {OM_TILE_ROWS(OM_WEIGHT_TILE_NAMES)};

static void k_weight_tile(ptrdiff_t m, ptrdiff_t n, const float *const *at, ptrdiff_t rows, ptrdiff_t cols, ptrdiff_t xr, ptrdiff_t xs,
                          const float *g, float *chain, float *sum, int flags) {
    weight_tiles[m - 1][(n + LANES - 1) / LANES - 1](at, rows, cols, xr, xs, g, chain, sum, flags);
}

OM_INLINE void weight_thin(const int M, const int N, const float *const *at, ptrdiff_t rows, ptrdiff_t cols, ptrdiff_t xr, ptrdiff_t xs,
                           const float *g, ptrdiff_t gp, ptrdiff_t gr, float *chain, float *sum, ptrdiff_t step, int flags) {
    vf acc[9][OM_WEIGHT_THIN];
    const float *from[9];
    step *= LANES;
    OM_UNROLL for (int i = 0; i < M; i++) {
        from[i] = at[i];
        OM_UNROLL for (int j = 0; j < N; j++) acc[i][j] = flags & OM_WEIGHT_BEGIN ? vf_set(0.0f) : vf_load(chain + j * step + i * LANES);
    }
    for (ptrdiff_t r = 0; r < rows; r++) {
        ptrdiff_t off = r * xr * LANES;
        const float *gv[OM_WEIGHT_THIN];
        OM_UNROLL for (int j = 0; j < N; j++) gv[j] = g + j * gp + r * gr;
        for (ptrdiff_t p = 0; p < cols; p++, off += xs * LANES) {
            vf xv[9];
            OM_UNROLL for (int i = 0; i < M; i++) xv[i] = vf_load(from[i] + off);
            OM_UNROLL for (int j = 0; j < N; j++) {
                vf b = vf_set(gv[j][p]);
                OM_UNROLL for (int i = 0; i < M; i++) acc[i][j] = gemm_step(xv[i], b, acc[i][j]);
            }
        }
    }
    OM_UNROLL for (int i = 0; i < M; i++) OM_UNROLL for (int j = 0; j < N; j++) {
        const ptrdiff_t to = j * step + i * LANES;
        if (!(flags & OM_WEIGHT_END)) {
            vf_store(chain + to, acc[i][j]);
            continue;
        }
        if (!(flags & OM_WEIGHT_STORE)) acc[i][j] = vf_add(vf_load(sum + to), acc[i][j]);
        vf_store(sum + to, flags & OM_WEIGHT_FINAL ? vf_result(acc[i][j]) : acc[i][j]);
    }
}

/* So many taps that eight chains or more hide the latency of a fused step, and chains and taps fit sixteen registers. */
static const int weight_thin_taps[OM_WEIGHT_THIN] = {9, 5, 3, 3};
typedef void weight_thin_fn(const float *const *at, ptrdiff_t rows, ptrdiff_t cols, ptrdiff_t xr, ptrdiff_t xs, const float *g, ptrdiff_t gp,
                            ptrdiff_t gr, float *chain, float *sum, ptrdiff_t step, int flags);
#define WEIGHT_THIN(M, N)                                                                                                                 \
    static void weight_thin_##M##_##N(const float *const *at, ptrdiff_t rows, ptrdiff_t cols, ptrdiff_t xr, ptrdiff_t xs, const float *g, \
                                      ptrdiff_t gp, ptrdiff_t gr, float *chain, float *sum, ptrdiff_t step, int flags) {                  \
        weight_thin(M, N, at, rows, cols, xr, xs, g, gp, gr, chain, sum, step, flags);                                                    \
    }
#define OM_WEIGHT_THINS(X) \
    X(1, 1) X(2, 1) X(3, 1) X(4, 1) X(5, 1) X(6, 1) X(7, 1) X(8, 1) X(9, 1) X(1, 2) X(2, 2) X(3, 2) X(4, 2) X(5, 2) X(1, 3) X(2, 3) X(3, 3) X(1, 4) X(2, 4) X(3, 4)
OM_WEIGHT_THINS(WEIGHT_THIN)
#define WEIGHT_THIN_NAME(M, N) [N - 1][M - 1] = weight_thin_##M##_##N,
static weight_thin_fn *const weight_thins[OM_WEIGHT_THIN][9] = {OM_WEIGHT_THINS(WEIGHT_THIN_NAME)};

static void k_weight_thin(ptrdiff_t m, ptrdiff_t n, const float *const *at, ptrdiff_t rows, ptrdiff_t cols, ptrdiff_t xr, ptrdiff_t xs,
                          const float *g, ptrdiff_t gp, ptrdiff_t gr, float *chain, float *sum, ptrdiff_t step, int flags) {
    const ptrdiff_t most = weight_thin_taps[n - 1];
    for (ptrdiff_t tiles = (m + most - 1) / most, now; m > 0; m -= now, tiles--, at += now, chain += now * LANES, sum += now * LANES) {
        now = (m + tiles - 1) / tiles;
        weight_thins[n - 1][now - 1](at, rows, cols, xr, xs, g, gp, gr, chain, sum, step, flags);
    }
}
#endif
