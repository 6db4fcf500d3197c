/* Convolution as a product: tiles that read an image directly, and how images, panels of columns and weights are laid out for tiles. Must
 * not contain blocking or threads.
 *
 * The columns of the product are outputs, its steps the taps (channel, kernel row, kernel column). The matrix of columns is never made: a
 * tile finds the operand of a step at an offset from its column's place in the image. Per output one float32 accumulator from +0, one fused
 * multiply-add a step in the order of the steps, as in gemm.h. */
#ifndef OM_CONV_H
#define OM_CONV_H

/* The taps of one axis: tap i has the kernel's index first + i·step and reads the input's index q·stride + at + i·apart for output q. */
typedef struct om_conv_taps {
    ptrdiff_t n, first, step, at, apart;
} om_conv_taps;

/* How outputs read an image: its channels and rows are xc and xh apart, its size is h × w; there are `outputs` in a row. */
typedef struct om_conv_view {
    const float *x;
    ptrdiff_t xc, xh, h, w, sh, sw, outputs;
    om_conv_taps rows, cols;
} om_conv_view;

/* A part of the padded image, from row, col (may be negative) on: rows × cols, channels plane apart. With a column stride, columns of one
 * remainder stand together, `pitch` places for each. Rows and columns whose distance to the first, modulo the stride, is beyond `reach` are read by no
 * tap. */
typedef struct om_conv_region {
    ptrdiff_t row, col, rows, cols, reach_rows, reach_cols, pitch, plane;
} om_conv_region;

/* Vectors of a tile's columns: where step 0 of a row of zero offset reads, where results go, and how many of the lanes are wanted (0: a vector
 * that only fills the tile). */
enum { OM_CONV_VECTORS = 8 };
typedef struct om_conv_columns {
    const float *b[OM_CONV_VECTORS];
    ptrdiff_t c[OM_CONV_VECTORS], n[OM_CONV_VECTORS];
} om_conv_columns;

/* C[m][columns] (+)= A[m][k] · B, B's step s at offset[s] from each column; flags as in gemm.h, the bias one per row. Reads whole vectors. */
typedef void om_conv_tile_fn(ptrdiff_t m, ptrdiff_t k, const float *a, ptrdiff_t rsa, ptrdiff_t csa, const om_conv_columns *columns,
                             const ptrdiff_t *offset, float *c, ptrdiff_t rsc, const float *bias, int flags);
/* Vectors that a tile of m rows has. */
typedef ptrdiff_t om_conv_vectors_fn(ptrdiff_t m);
/* Rows are written in their order, in whole vectors: up to a vector behind the last one. */
typedef void om_conv_copy_fn(const om_conv_view *v, const om_conv_region *r, ptrdiff_t channels, float *dst);
/* A panel of k steps in rows of ld: row s has vectors from src + offset[s] + from[i] at to[i], in this order; whole vectors are read and written. */
typedef void om_conv_panel_fn(const float *src, const ptrdiff_t *offset, ptrdiff_t k, ptrdiff_t moves, const ptrdiff_t *from,
                              const ptrdiff_t *to, ptrdiff_t ld, float *dst);
/* A panel of n columns from output p on and of k steps from k0 on, in rows of whole vectors, out of the image itself. */
typedef void om_conv_gather_fn(const om_conv_view *v, ptrdiff_t p, ptrdiff_t n, ptrdiff_t k0, ptrdiff_t k, float *dst);
/* The weights w[row·wr + channel·wc + kernel row·kw + kernel column] of the view's taps, all steps of some rows in rows of ld. */
typedef void om_conv_weights_fn(const om_conv_view *v, const float *w, ptrdiff_t wr, ptrdiff_t wc, ptrdiff_t kw, ptrdiff_t channels,
                                ptrdiff_t rows, ptrdiff_t ld, float *dst);
/* y[r·yc + (p / outputs)·yh + (p % outputs)·yw] = src[r·ld + p] for n outputs p. */
typedef void om_conv_spread_fn(const float *src, ptrdiff_t ld, ptrdiff_t rows, ptrdiff_t n, ptrdiff_t outputs, float *y, ptrdiff_t yc,
                               ptrdiff_t yh, ptrdiff_t yw);

/* The same for two phases beside each other: y[r·yc + q·yh + 2·t] = even[(r·lines + q)·evens + t], odd ones behind; odds is evens or one less. */
typedef void om_conv_pairs_fn(const float *even, const float *odd, ptrdiff_t rows, ptrdiff_t lines, ptrdiff_t evens, ptrdiff_t odds, float *y,
                              ptrdiff_t yc, ptrdiff_t yh);

#define OM_CONV(ROW)                                                                                       \
    ROW(conv_tile, conv_tile, "a tile of a convolution that reads the image in place")                     \
    ROW(conv_vectors, conv_vectors, "how many vectors of columns such a tile has")                         \
    ROW(conv_copy, conv_copy, "a part of an image with its padding, columns of a stride's phases together") \
    ROW(conv_panel, conv_panel, "a panel of the matrix of columns out of such a copy")                     \
    ROW(conv_gather, conv_gather, "a panel of the matrix of columns out of the image itself")              \
    ROW(conv_weights, conv_weights, "a panel of a convolution's weights")                                  \
    ROW(conv_pairs, conv_pairs, "outputs of two phases in turn")                                            \
    ROW(conv_spread, conv_spread, "outputs that lie apart in the result")
#endif

#if defined(OM_VARIANT) && !defined(OM_CONV_LOOPS)
#define OM_CONV_LOOPS

/* Steps of a tile written one after the other: fewer instructions beside the multiply-adds, worth 3 to 6 %. */
#if defined(__clang__)
#define CONV_STEPS _Pragma("clang loop unroll_count(4)")
#else
#define CONV_STEPS _Pragma("GCC unroll 4")
#endif

/* M rows and V vectors, both constants where this is inlined; the rows of A as in gemm_tile. */
OM_INLINE void conv_tile(const int M, const int V, const int together, ptrdiff_t k, const float *a, ptrdiff_t rsa, ptrdiff_t csa,
                         const om_conv_columns *columns, const ptrdiff_t *offset, float *c, ptrdiff_t rsc, const float *bias, int flags) {
    vf acc[MR][8];
    const float *b[8], *row[(MR + 2) / 3];
    const ptrdiff_t *to = columns->c, *n = columns->n;
    OM_UNROLL for (int v = 0; v < V; v++) {
        b[v] = columns->b[v];
        OM_UNROLL for (int i = 0; i < M; i++) acc[i][v] = vf_set(0.0f);
        if (flags & OM_GEMM_FIRST) continue;
        if (n[v] == LANES) OM_UNROLL for (int i = 0; i < M; i++) acc[i][v] = vf_load(c + i * rsc + to[v]);
        else if (n[v] > 0) OM_UNROLL for (int i = 0; i < M; i++) acc[i][v] = vf_load_tail(c + i * rsc + to[v], n[v]);
    }
    OM_UNROLL for (int i = 0; i < M; i += 3) row[i / 3] = a + i * rsa;
    const ptrdiff_t *const end = offset + k;
    CONV_STEPS for (; offset < end; offset++) {
        vf bv[8];
        OM_UNROLL for (int v = 0; v < V; v++) bv[v] = vf_load(b[v] + *offset);
        OM_UNROLL for (int i = 0; i < M; i++) {
            vf av = vf_set(together ? a[i] : row[i / 3][i % 3 * rsa]);
            OM_UNROLL for (int v = 0; v < V; v++) acc[i][v] = gemm_step(av, bv[v], acc[i][v]);
        }
        if (together) a += csa;
        else OM_UNROLL for (int i = 0; i < M; i += 3) row[i / 3] += csa;
    }
    if (flags & OM_GEMM_LAST) {
        if (bias) OM_UNROLL for (int i = 0; i < M; i++) OM_UNROLL for (int v = 0; v < V; v++) acc[i][v] = vf_add(acc[i][v], vf_set(bias[i]));
        OM_UNROLL for (int i = 0; i < M; i++) OM_UNROLL for (int v = 0; v < V; v++) acc[i][v] = vf_result(acc[i][v]);
    }
    OM_UNROLL for (int v = 0; v < V; v++) {
        if (n[v] == LANES) OM_UNROLL for (int i = 0; i < M; i++) vf_store(c + i * rsc + to[v], acc[i][v]);
        else if (n[v] > 0) OM_UNROLL for (int i = 0; i < M; i++) vf_store_tail(c + i * rsc + to[v], acc[i][v], n[v]);
    }
}

typedef void conv_tile_fn(ptrdiff_t k, const float *a, ptrdiff_t rsa, ptrdiff_t csa, const om_conv_columns *columns, const ptrdiff_t *offset,
                          float *c, ptrdiff_t rsc, const float *bias, int flags);
/* Few rows do not hide the latency of a multiply-add and take more vectors, as in gemm.h. Four by three vectors of AVX2 are as many
 * accumulators as six by two, and load less for them. */
#if defined(__AVX2__) && !defined(__AVX512F__)
enum { CONV_BY_FOUR = 3 };
#else
enum { CONV_BY_FOUR = VECTORS };
#endif
#define CONV_VECTORS(M) ((M) == 1 ? 8 : (M) <= 3 ? 4 : (M) == 4 ? CONV_BY_FOUR : VECTORS)
#define CONV_TILE_OF(M, form, together)                                                                                                \
    static void conv_tile_##M##_##form(ptrdiff_t k, const float *a, ptrdiff_t rsa, ptrdiff_t csa, const om_conv_columns *columns,      \
                                       const ptrdiff_t *offset, float *c, ptrdiff_t rsc, const float *bias, int flags) {               \
        conv_tile(M, CONV_VECTORS(M), together, k, a, rsa, csa, columns, offset, c, rsc, bias, flags);                                 \
    }
#define CONV_TILES(M) CONV_TILE_OF(M, rows, 0) CONV_TILE_OF(M, side, 1)
#define CONV_TILE_NAMES(M) {conv_tile_##M##_rows, conv_tile_##M##_side},
OM_TILE_ROWS(CONV_TILES)
static conv_tile_fn *const conv_tiles[MR][2] = {OM_TILE_ROWS(CONV_TILE_NAMES)};

static void k_conv_tile(ptrdiff_t m, ptrdiff_t k, const float *a, ptrdiff_t rsa, ptrdiff_t csa, const om_conv_columns *columns,
                        const ptrdiff_t *offset, float *c, ptrdiff_t rsc, const float *bias, int flags) {
    conv_tiles[m - 1][rsa == 1](k, a, rsa, csa, columns, offset, c, rsc, bias, flags);
}
static ptrdiff_t k_conv_vectors(ptrdiff_t m) { return CONV_VECTORS(m); }

static void conv_zero(float *y, ptrdiff_t n) {
    ptrdiff_t i = 0;
    for (; i + LANES <= n; i += LANES) vf_store(y + i, vf_set(0.0f));
    if (i < n) vf_store_tail(y + i, vf_set(0.0f), n - i);
}

/* One row of the padded image: column col + i of the image, i < cols. Whole vectors are written, since a masked store takes the time of
 * ten, so what lies behind the row is overwritten: it is a later row, or room. */
static void conv_copy_row(const float *x, ptrdiff_t w, ptrdiff_t col, ptrdiff_t cols, float *dst) {
    ptrdiff_t i = col < 0 ? -col : 0, end = w - col < cols ? w - col : cols;
    if (i >= end) i = end = cols;
    for (ptrdiff_t z = 0; z < i; z += LANES) vf_store(dst + z, vf_set(0.0f));
    for (; i + LANES <= end; i += LANES) vf_store(dst + i, vf_load(x + col + i));
    if (i < end) {
        vf_store(dst + i, vf_load_tail(x + col + i, end - i));
        i += LANES;
    }
    for (; i < cols; i += LANES) vf_store(dst + i, vf_set(0.0f));
}

/* The same, columns of one remainder by the stride together. */
static void conv_copy_phases(const float *restrict x, ptrdiff_t w, const om_conv_region *r, ptrdiff_t stride, float *restrict dst) {
    for (ptrdiff_t phase = 0; phase < stride && phase <= r->reach_cols; phase++, dst += r->pitch) {
        const ptrdiff_t from = r->col + phase, count = (r->cols - phase + stride - 1) / stride;
        ptrdiff_t i = from < 0 ? (-from + stride - 1) / stride : 0, end = from < w ? (w - from + stride - 1) / stride : 0;
        if (i > count) i = count;
        if (end > count) end = count;
        if (end < i) end = i;
        for (ptrdiff_t t = 0; t < i; t++) dst[t] = 0.0f;
        if (stride == 2)
            for (; i < end; i++) dst[i] = x[from + 2 * i];
        else
            for (; i < end; i++) dst[i] = x[from + stride * i];
        for (; i < count; i++) dst[i] = 0.0f;
    }
}

static void k_conv_copy(const om_conv_view *v, const om_conv_region *r, ptrdiff_t channels, float *dst) {
    const ptrdiff_t width = r->pitch * v->sw;
    for (ptrdiff_t c = 0; c < channels; c++) {
        float *d = dst + c * r->plane;
        for (ptrdiff_t i = 0; i < r->rows; i++, d += width) {
            const ptrdiff_t row = r->row + i;
            if (i % v->sh > r->reach_rows) continue;
            if (v->sw == 1) conv_copy_row(v->x + c * v->xc + row * v->xh, row < 0 || row >= v->h ? 0 : v->w, r->col, r->cols, d);
            else if (row < 0 || row >= v->h) conv_zero(d, width);
            else conv_copy_phases(v->x + c * v->xc + row * v->xh, v->w, r, v->sw, d);
        }
    }
}

OM_INLINE void conv_panel(const int moves, const float *src, const ptrdiff_t *offset, ptrdiff_t k, const ptrdiff_t *from, const ptrdiff_t *to,
                          ptrdiff_t ld, float *dst) {
    const float *x[6];
    float *d[6];
    OM_UNROLL for (int i = 0; i < moves; i++) x[i] = src + from[i], d[i] = dst + to[i];
    for (ptrdiff_t s = 0; s < k; s++)
        OM_UNROLL for (int i = 0; i < moves; i++) {
            vf_store(d[i], vf_load(x[i] + offset[s]));
            d[i] += ld;
        }
}

static void k_conv_panel(const float *src, const ptrdiff_t *offset, ptrdiff_t k, ptrdiff_t moves, const ptrdiff_t *from, const ptrdiff_t *to,
                         ptrdiff_t ld, float *dst) {
    switch (moves) {
    case 1: conv_panel(1, src, offset, k, from, to, ld, dst); return;
    case 2: conv_panel(2, src, offset, k, from, to, ld, dst); return;
    case 3: conv_panel(3, src, offset, k, from, to, ld, dst); return;
    case 4: conv_panel(4, src, offset, k, from, to, ld, dst); return;
    case 5: conv_panel(5, src, offset, k, from, to, ld, dst); return;
    }
    for (ptrdiff_t s = 0; s < k; s++, dst += ld) {
        const float *x = src + offset[s];
        for (ptrdiff_t i = 0; i < moves; i++) vf_store(dst + to[i], vf_load(x + from[i]));
    }
}

static void k_conv_gather(const om_conv_view *v, ptrdiff_t p, ptrdiff_t n, ptrdiff_t k0, ptrdiff_t k, float *dst) {
    const ptrdiff_t ld = panel_width(n), taps = v->rows.n * v->cols.n;
    ptrdiff_t c = k0 / taps, i = k0 % taps / v->cols.n, j = k0 % v->cols.n;
    for (; k > 0; k--, dst += ld) {
        ptrdiff_t q = p / v->outputs, t = p % v->outputs, at = 0;
        while (at < n) {
            const ptrdiff_t row = q * v->sh + v->rows.at + i * v->rows.apart, from = v->cols.at + j * v->cols.apart;
            ptrdiff_t end = v->outputs - t < n - at ? at + v->outputs - t : n;
            if (row < 0 || row >= v->h)
                for (; at < end; at++) dst[at] = 0.0f;
            else {
                const float *x = v->x + c * v->xc + row * v->xh;
                for (; at < end; at++, t++) {
                    const ptrdiff_t col = t * v->sw + from;
                    dst[at] = col < 0 || col >= v->w ? 0.0f : x[col];
                }
            }
            q++;
            t = 0;
        }
        for (; at < ld; at++) dst[at] = 0.0f;
        if (++j == v->cols.n) {
            j = 0;
            if (++i == v->rows.n) i = 0, c++;
        }
    }
}

enum { CONV_AHEAD = 4 };
static void k_conv_weights(const om_conv_view *v, const float *w, ptrdiff_t wr, ptrdiff_t wc, ptrdiff_t kw, ptrdiff_t channels,
                           ptrdiff_t rows, ptrdiff_t ld, float *dst) {
    for (ptrdiff_t c = 0; c < channels; c++) {
        /* Channels are far apart where rows are near, and no processor foresees that. */
        if (c + CONV_AHEAD < channels)
            for (ptrdiff_t r = 0; r < rows * wr && wr < wc; r += 16) __builtin_prefetch(w + (c + CONV_AHEAD) * wc + r);
        for (ptrdiff_t i = 0; i < v->rows.n; i++) {
            const float *from = w + c * wc + (v->rows.first + i * v->rows.step) * kw + v->cols.first;
            for (ptrdiff_t j = 0; j < v->cols.n; j++, from += v->cols.step, dst += ld)
                for (ptrdiff_t r = 0; r < rows; r++) dst[r] = from[r * wr];
        }
    }
}

static void k_conv_spread(const float *restrict src, ptrdiff_t ld, ptrdiff_t rows, ptrdiff_t n, ptrdiff_t outputs, float *restrict y,
                          ptrdiff_t yc, ptrdiff_t yh, ptrdiff_t yw) {
    for (; rows > 0; rows--, src += ld, y += yc) {
        float *to = y;
        for (ptrdiff_t p = 0; p < n; p += outputs, to += yh) {
            const float *from = src + p;
            if (yw == 1)
                for (ptrdiff_t t = 0; t < outputs; t++) to[t] = from[t];
            else
                for (ptrdiff_t t = 0; t < outputs; t++) to[t * yw] = from[t];
        }
    }
}

static void k_conv_pairs(const float *restrict even, const float *restrict odd, ptrdiff_t rows, ptrdiff_t lines, ptrdiff_t evens,
                         ptrdiff_t odds, float *restrict y, ptrdiff_t yc, ptrdiff_t yh) {
    for (; rows > 0; rows--, y += yc) {
        float *to = y;
        for (ptrdiff_t q = 0; q < lines; q++, to += yh, even += evens, odd += odds) {
            for (ptrdiff_t t = 0; t < odds; t++) {
                to[2 * t] = even[t];
                to[2 * t + 1] = odd[t];
            }
            if (evens > odds) to[2 * odds] = even[odds];
        }
    }
}
#endif
