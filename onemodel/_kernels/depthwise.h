/* Convolutions of one channel per group, forward and backward, without a product: lanes run along output columns, and for the gradient of the
 * weight, whose chains run over positions, across channels. Must not contain blocking or threads: depthwise.pyx has them. */
#ifndef OM_DEPTHWISE_H
#define OM_DEPTHWISE_H

#define OM_DEPTHWISE(ROW) \
    ROW(depthwise, depthwise, "outputs of one plane from a padded one: one chain over its taps, then the bias") \
    ROW(depthwise_weight, depthwise_weight, "taps of a weight gradient, a channel in each lane") \
    ROW(planes, planes, "a window of LANES planes, +0 outside, as positions of one vector") \
    ROW(interleave, interleave, "rows of a plane out of the columns of every phase")

/* y[r * yr + c] = (sum over t of w[t] * x[at[t] + r * xr + c]) + bias; rows of x are readable for a whole vector beyond cols. */
typedef void om_depthwise_fn(ptrdiff_t rows, ptrdiff_t cols, ptrdiff_t taps, const ptrdiff_t *at, const float *w, const float *x, ptrdiff_t xr,
                             const float *bias, float *y, ptrdiff_t yr);
/* As om_weight_tile_fn (conv_weight.h), for at most OM_DEPTHWISE_TAPS taps, x and g being vectors of a channel per lane; xr and xs count vectors. */
enum { OM_DEPTHWISE_TAPS = 9 };
typedef void om_depthwise_weight_fn(ptrdiff_t taps, const float *const *at, ptrdiff_t rows, ptrdiff_t cols, ptrdiff_t xr, ptrdiff_t xs,
                                    const float *g, float *chain, float *sum, int flags);
/* dst[(r * cols + c) * LANES + l] = plane l at (top + r, left + c), or +0 outside; planes are xc apart. Lanes beyond n, at most LANES, hold the
 * first plane. */
typedef void om_planes_fn(const float *x, ptrdiff_t xc, ptrdiff_t n, ptrdiff_t xh, ptrdiff_t ih, ptrdiff_t iw, ptrdiff_t top, ptrdiff_t left,
                          ptrdiff_t rows, ptrdiff_t cols, float *dst);
/* dst[r * pitch + c * phases + p] = src[p * apart + r * cols + c], for r < rows and all columns below width. */
typedef void om_interleave_fn(const float *src, ptrdiff_t apart, ptrdiff_t cols, ptrdiff_t phases, ptrdiff_t rows, ptrdiff_t width, float *dst,
                              ptrdiff_t pitch);
#endif

#if defined(OM_VARIANT) && !defined(OM_DEPTHWISE_LOOPS)
#define OM_DEPTHWISE_LOOPS

/* Eight accumulators hide the latency of a fused step; each tap's weight is broadcast once for all of them. */
OM_INLINE void depthwise_tile(const int R, const int V, ptrdiff_t n, ptrdiff_t taps, const ptrdiff_t *at, const float *w, const float *x,
                              ptrdiff_t xr, const float *bias, float *y, ptrdiff_t yr) {
    vf acc[8][4];
    OM_UNROLL for (int i = 0; i < R; i++) OM_UNROLL for (int v = 0; v < V; v++) acc[i][v] = vf_set(0.0f);
    for (ptrdiff_t t = 0; t < taps; t++) {
        vf wv = vf_set(w[t]);
        const float *from = x + at[t];
        OM_UNROLL for (int i = 0; i < R; i++, from += xr) OM_UNROLL for (int v = 0; v < V; v++)
            acc[i][v] = gemm_step(wv, vf_load(from + v * LANES), acc[i][v]);
    }
    OM_UNROLL for (int i = 0; i < R; i++, y += yr) OM_UNROLL for (int v = 0; v < V; v++) {
        vf e = vf_result(bias ? vf_add(acc[i][v], vf_set(*bias)) : acc[i][v]);
        if (v < V - 1 || n == V * LANES) vf_store(y + v * LANES, e);
        else vf_store_tail(y + v * LANES, e, n - (V - 1) * LANES);
    }
}

#define DEPTHWISE_TILE(R, V)                                                                                                                  \
    static void depthwise_##R##_##V(ptrdiff_t n, ptrdiff_t taps, const ptrdiff_t *at, const float *w, const float *x, ptrdiff_t xr,           \
                                    const float *bias, float *y, ptrdiff_t yr) {                                                              \
        depthwise_tile(R, V, n, taps, at, w, x, xr, bias, y, yr);                                                                             \
    }
DEPTHWISE_TILE(1, 1) DEPTHWISE_TILE(2, 1) DEPTHWISE_TILE(4, 1) DEPTHWISE_TILE(8, 1)
DEPTHWISE_TILE(1, 2) DEPTHWISE_TILE(2, 2) DEPTHWISE_TILE(4, 2)
DEPTHWISE_TILE(1, 4) DEPTHWISE_TILE(2, 4)
typedef void depthwise_fn(ptrdiff_t n, ptrdiff_t taps, const ptrdiff_t *at, const float *w, const float *x, ptrdiff_t xr, const float *bias,
                          float *y, ptrdiff_t yr);
/* by the logarithms of vectors and rows */
static depthwise_fn *const depthwise_tiles[3][4] = {{depthwise_1_1, depthwise_2_1, depthwise_4_1, depthwise_8_1},
                                                    {depthwise_1_2, depthwise_2_2, depthwise_4_2, 0}, {depthwise_1_4, depthwise_2_4, 0, 0}};

static void k_depthwise(ptrdiff_t rows, ptrdiff_t cols, ptrdiff_t taps, const ptrdiff_t *at, const float *w, const float *x, ptrdiff_t xr,
                        const float *bias, float *y, ptrdiff_t yr) {
    for (ptrdiff_t c = 0, n; c < cols; c += n) {
        const ptrdiff_t vectors = (cols - c + LANES - 1) / LANES;
        const int wide = vectors >= 4 ? 2 : vectors >= 2 ? 1 : 0;
        n = LANES << wide < cols - c ? LANES << wide : cols - c;
        int high = 3 - wide;
        for (ptrdiff_t r = 0; r < rows; r += (ptrdiff_t)1 << high) {
            while (r + ((ptrdiff_t)1 << high) > rows) high--;
            depthwise_tiles[wide][high](n, taps, at, w, x + r * xr + c, xr, bias, y + r * yr + c, yr);
        }
    }
}

OM_INLINE void depthwise_weight(const int M, const float *const *at, ptrdiff_t rows, ptrdiff_t cols, ptrdiff_t xr, ptrdiff_t xs, const float *g,
                                float *chain, float *sum, int flags) {
    vf acc[OM_DEPTHWISE_TAPS];
    const float *from[OM_DEPTHWISE_TAPS];
    OM_UNROLL for (int i = 0; i < M; i++) {
        from[i] = at[i];
        acc[i] = flags & OM_WEIGHT_BEGIN ? vf_set(0.0f) : vf_load(chain + i * LANES);
    }
    xr *= LANES;
    xs *= LANES;
    for (ptrdiff_t row = 0; rows > 0; rows--, row += xr) {
        ptrdiff_t off = row;
        for (ptrdiff_t p = cols; p > 0; p--, off += xs, g += LANES) {
            vf gv = vf_load(g);
            OM_UNROLL for (int i = 0; i < M; i++) acc[i] = gemm_step(vf_load(from[i] + off), gv, acc[i]);
        }
    }
    OM_UNROLL for (int i = 0; i < M; i++) {
        if (!(flags & OM_WEIGHT_END)) {
            vf_store(chain + i * LANES, acc[i]);
            continue;
        }
        if (!(flags & OM_WEIGHT_STORE)) acc[i] = vf_add(vf_load(sum + i * LANES), acc[i]);
        vf_store(sum + i * LANES, flags & OM_WEIGHT_FINAL ? vf_result(acc[i]) : acc[i]);
    }
}

#define OM_DEPTHWISE_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9)
#define DEPTHWISE_WEIGHT(M)                                                                                                               \
    static void depthwise_weight_##M(const float *const *at, ptrdiff_t rows, ptrdiff_t cols, ptrdiff_t xr, ptrdiff_t xs, const float *g,  \
                                     float *chain, float *sum, int flags) {                                                               \
        depthwise_weight(M, at, rows, cols, xr, xs, g, chain, sum, flags);                                                                \
    }
OM_DEPTHWISE_ROWS(DEPTHWISE_WEIGHT)
#define DEPTHWISE_WEIGHT_NAME(M) depthwise_weight_##M,
static weight_fn *const depthwise_weights[OM_DEPTHWISE_TAPS] = {OM_DEPTHWISE_ROWS(DEPTHWISE_WEIGHT_NAME)};

static void k_depthwise_weight(ptrdiff_t taps, const float *const *at, ptrdiff_t rows, ptrdiff_t cols, ptrdiff_t xr, ptrdiff_t xs,
                               const float *g, float *chain, float *sum, int flags) {
    depthwise_weights[taps - 1](at, rows, cols, xr, xs, g, chain, sum, flags);
}

static void k_planes(const float *x, ptrdiff_t xc, ptrdiff_t n, ptrdiff_t xh, ptrdiff_t ih, ptrdiff_t iw, ptrdiff_t top, ptrdiff_t left,
                     ptrdiff_t rows, ptrdiff_t cols, float *dst) {
    const ptrdiff_t lo = frame_count(left, 0, 1, cols), hi = frame_count(left, iw, 1, cols);
    const ptrdiff_t r_lo = frame_count(top, 0, 1, rows), r_hi = frame_count(top, ih, 1, rows);
    for (ptrdiff_t r = 0; r < rows; r++, dst += cols * LANES) {
        const int inside = r >= r_lo && r < r_hi && hi > lo;
        const ptrdiff_t first = inside ? lo : cols, last = inside ? hi : cols;
        for (ptrdiff_t c = 0; c < first; c++) vf_store(dst + c * LANES, vf_set(0.0f));
        if (inside) {
            const float *from = x + (top + r) * xh + left + lo;
            if (LANES == 1) for (ptrdiff_t c = lo; c < hi; c++) dst[c] = from[c - lo];
            else pack_turned(from, xc, hi - lo, n, dst + lo * LANES);
        }
        for (ptrdiff_t c = last; c < cols; c++) vf_store(dst + c * LANES, vf_set(0.0f));
    }
}

static void k_interleave(const float *src, ptrdiff_t apart, ptrdiff_t cols, ptrdiff_t phases, ptrdiff_t rows, ptrdiff_t width, float *dst,
                         ptrdiff_t pitch) {
    for (ptrdiff_t r = 0; r < rows; r++, dst += pitch, src += cols) {
        ptrdiff_t c = 0;
        if (phases == 2)
            for (; (c + LANES) * 2 <= width; c += LANES) {
                vf a = vf_load(src + c), b = vf_load(src + apart + c);
                vf_store(dst + c * 2, vf_zip_lo(a, b));
                vf_store(dst + c * 2 + LANES, vf_zip_hi(a, b));
            }
        for (; c * phases < width; c++)
            for (ptrdiff_t p = 0; p < phases && c * phases + p < width; p++) dst[c * phases + p] = src[p * apart + c];
    }
}
#endif
