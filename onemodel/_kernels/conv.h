/* Convolution as a product on the tiles of gemm.h: how panels are read out of an image. Must not contain blocking or threads.
 *
 * The columns of the product are the outputs of one image, its steps the taps (channel, kernel row, kernel column); the matrix of columns
 * is never made, only panels of it. Nothing here computes: values are moved, so both modes share the bits. */
#ifndef OM_CONV_H
#define OM_CONV_H

/* The taps of one axis: tap i has the kernel's index first + i·step and reads the input's index q·stride + at + i·apart for output q. */
typedef struct om_conv_taps {
    ptrdiff_t n, first, step, at, apart;
} om_conv_taps;

/* How outputs read an image of some channels: xc and xh apart are its channels and rows, h × w its size; there are `outputs` in a row. */
typedef struct om_conv_view {
    const float *x;
    ptrdiff_t xc, xh, h, w, sh, sw, outputs;
    om_conv_taps rows, cols;
} om_conv_view;

/* A panel of n columns from output p on and of k steps from k0 on, in rows of whole vectors; a tap outside the image is +0. */
typedef void om_conv_gather_fn(const om_conv_view *v, ptrdiff_t p, ptrdiff_t n, ptrdiff_t k0, ptrdiff_t k, float *dst);
/* The weights w[row·wr + channel·wc + kernel row·kw + kernel column] of the taps, in panels of mr rows with all their steps. */
typedef void om_conv_weights_fn(const om_conv_view *v, const float *w, ptrdiff_t wr, ptrdiff_t wc, ptrdiff_t kw, ptrdiff_t channels,
                                ptrdiff_t rows, ptrdiff_t mr, float *dst);
/* y[r·yc + (p / outputs)·yh + (p % outputs)·yw] = src[r·ld + p - p0] for n outputs p from p0 on. */
typedef void om_conv_spread_fn(const float *src, ptrdiff_t ld, ptrdiff_t rows, ptrdiff_t p0, ptrdiff_t n, ptrdiff_t outputs, float *y,
                               ptrdiff_t yc, ptrdiff_t yh, ptrdiff_t yw);

#define OM_CONV(ROW)                                                                            \
    ROW(conv_gather, conv_gather, "a panel of the matrix of columns out of an image")           \
    ROW(conv_weights, conv_weights, "panels of a convolution's weights")                        \
    ROW(conv_spread, conv_spread, "outputs that lie apart in the result")
#endif

#if defined(OM_VARIANT) && !defined(OM_CONV_LOOPS)
#define OM_CONV_LOOPS

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

static void k_conv_weights(const om_conv_view *v, const float *w, ptrdiff_t wr, ptrdiff_t wc, ptrdiff_t kw, ptrdiff_t channels,
                           ptrdiff_t rows, ptrdiff_t mr, float *dst) {
    for (; rows > 0; rows -= mr, w += mr * wr) {
        const ptrdiff_t m = rows < mr ? rows : mr, ld = panel_width(m);
        for (ptrdiff_t c = 0; c < channels; c++)
            for (ptrdiff_t i = 0; i < v->rows.n; i++) {
                const float *from = w + c * wc + (v->rows.first + i * v->rows.step) * kw + v->cols.first;
                for (ptrdiff_t j = 0; j < v->cols.n; j++, from += v->cols.step, dst += ld)
                    for (ptrdiff_t r = 0; r < ld; r++) dst[r] = from[(r < m ? r : 0) * wr];
            }
    }
}

static void k_conv_spread(const float *src, ptrdiff_t ld, ptrdiff_t rows, ptrdiff_t p0, ptrdiff_t n, ptrdiff_t outputs, float *y,
                          ptrdiff_t yc, ptrdiff_t yh, ptrdiff_t yw) {
    for (; rows > 0; rows--, src += ld, y += yc) {
        ptrdiff_t q = p0 / outputs, t = p0 % outputs;
        for (ptrdiff_t at = 0; at < n; q++, t = 0)
            for (; t < outputs && at < n; t++, at++) y[q * yh + t * yw] = src[at];
    }
}
#endif
