/* The weight gradient of a convolution: its register tile, which reads an image in place through one pointer per row of the unfolded matrix,
 * and the padded copy of an image. Must not contain blocking or threads: conv_weight.pyx has them. */
#ifndef OM_CONV_WEIGHT_H
#define OM_CONV_WEIGHT_H

#define OM_CONV_WEIGHT(ROW) \
    ROW(frame, frame, "a window of an image, +0 outside it, every so many rows and columns") \
    ROW(weight_tile, weight_tile, "tile of a weight gradient: rows of an unfolded image times packed gradients")

/* dst[r * pitch + c] = x at (top + r * down, left + c * right), or +0 outside the image of ih x iw; the end of dst has a vector of room. */
typedef void om_frame_fn(const float *x, ptrdiff_t xh, ptrdiff_t ih, ptrdiff_t iw, ptrdiff_t top, ptrdiff_t down, ptrdiff_t left, ptrdiff_t right,
                         ptrdiff_t rows, ptrdiff_t cols, float *dst, ptrdiff_t pitch);
/* Over positions (r, p) in row-major order, one chain per output: chain[i][j] (+)= at[i][r * xr + p * xs] * g[r * cols + p][j], for m rows, at
 * most mr, and all vectors of n columns, at most nr; rows of g, chain and sum are whole vectors. BEGIN: the chain starts at +0. END: it joins
 * sum by one addition, or with STORE becomes it; with FINAL every NaN is the canonical one in exact mode. */
enum { OM_WEIGHT_BEGIN = 1, OM_WEIGHT_END = 2, OM_WEIGHT_STORE = 4, OM_WEIGHT_FINAL = 8 };
typedef void om_weight_tile_fn(ptrdiff_t m, ptrdiff_t n, const float *const *at, ptrdiff_t rows, ptrdiff_t cols, ptrdiff_t xr, ptrdiff_t xs,
                               const float *g, float *chain, float *sum, int flags);
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
            } else if (right == 2) { /* a constant, which compilers turn into shuffles */
                for (; c < hi; c++) dst[c] = from[c * 2];
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
        for (ptrdiff_t p = cols; p > 0; p--, off += xs, g += V * LANES) {
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
#endif
