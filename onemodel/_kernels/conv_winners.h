/* Gradients of a convolution whose outputs are pooled by their maximum: of the gradients of a window's outputs all but the winner's are 0. Owns
 * the list of winners of a plane, and the chains over them. Must not contain blocking or threads.
 *
 * A chain over all outputs adds x·0 or w·0 for most of them, which changes a sum only where x or w is infinite or NaN, or where the sum is -0,
 * which only a product below the smallest float can make of +0. Both are found out, and the caller then goes over all outputs.
 *
 * Lanes are channels of x, which lies as pixels of some channels, with its padding. For the weights the chains of all taps of a kernel are in
 * registers while the winners of one output channel pass by; for x, winners add to the pixels of a row that stays in the first-level cache, and
 * the taps of a row of the kernel are in registers. */
#ifndef OM_CONV_WINNERS_H
#define OM_CONV_WINNERS_H

/* Windows of a plane: the winners of window row i stand in the rows first + i·step + k·apart, k < taps, of `cols` outputs. */
typedef struct om_winner_windows {
    ptrdiff_t rows, windows, cols; /* of outputs; of windows a row; outputs in a row */
    ptrdiff_t window_rows, first, step, taps, apart;
    ptrdiff_t row_pixels, col_pixels; /* from output to output in the image of pixels */
} om_winner_windows;

/* Where the winners with an index of 0 or more stand, in the order of their places, and their gradients; those of row r of the outputs are
 * starts[r] to starts[r + 1] - 1. No window shares an output with another. Room for one more than
 * all windows. */
typedef void om_winners_list_fn(const om_winner_windows *w, const float *g, const int32_t *index, int32_t *at, float *value, int32_t *starts);
/* state[(row·cols + col)·lanes + lane] joins its chain over n winners: x is read at at[i]·lanes + row·pitch + col·lanes. */
typedef void om_winners_chain_fn(const float *x, ptrdiff_t pitch, const int32_t *at, const float *value, ptrdiff_t n, ptrdiff_t rows, ptrdiff_t cols,
                                 float *state);
/* row[(at[i] - base)·vectors·lanes + tap·vectors·lanes ...] join their chains over n winners, the last one first: taps of one pixel then come in
 * order. w: for each of `cols` taps the channels of a pixel, 1 or 2 vectors of them. */
typedef void om_winners_spread_fn(float *row, ptrdiff_t base, const int32_t *at, const float *value, ptrdiff_t n, ptrdiff_t cols, ptrdiff_t vectors,
                                  const float *w);
/* sum += state, or = state for the first image, and results for the last; whether no element of state is -0. */
enum { OM_WINNERS_FIRST = 1, OM_WINNERS_LAST = 2 };
typedef int om_winners_join_fn(const float *state, float *sum, ptrdiff_t n, int flags);
/* Whether all elements are finite. */
typedef int om_finite_fn(const float *x, ptrdiff_t n);

/* Columns of a kernel at most. */
enum { OM_WINNERS_COLS = 7 };

#define OM_CONV_WINNERS(ROW)                                                                     \
    ROW(winners_list, winners_list, "a plane's winners and their gradients, in order")           \
    ROW(winners_chain, winners_chain, "chains of a weight's gradient over a list of winners")    \
    ROW(winners_spread, winners_spread, "chains of a row of pixels over a list of winners")      \
    ROW(winners_join, winners_join, "an image's chains, added to those of the images before it") \
    ROW(finite, all_finite, "whether all elements are finite")
#endif

#if defined(OM_VARIANT) && !defined(OM_CONV_WINNERS_LOOPS)
#define OM_CONV_WINNERS_LOOPS

static void k_winners_list(const om_winner_windows *w, const float *g, const int32_t *index, int32_t *at, float *value, int32_t *starts) {
    ptrdiff_t n = 0, next = 0; /* starts is filled in up to row next - 1 */
    for (ptrdiff_t i = 0; i < w->window_rows; i++, g += w->windows, index += w->windows) {
        for (ptrdiff_t k = 0; k < w->taps; k++) {
            const ptrdiff_t row = w->first + i * w->step + k * w->apart;
            if (row < 0 || row >= w->rows) continue;
            while (next <= row) starts[next++] = (int32_t)n;
            const uint32_t from = (uint32_t)(row * w->cols), cols = (uint32_t)w->cols;
            const int32_t base = (int32_t)(row * w->row_pixels), step = (int32_t)w->col_pixels;
            for (ptrdiff_t j = 0; j < w->windows; j++) { /* without a branch: which row wins is anyone's guess */
                const uint32_t col = (uint32_t)index[j] - from;
                at[n] = base + (int32_t)(col * (uint32_t)step);
                value[n] = g[j];
                n += col < cols;
            }
        }
    }
    while (next <= w->rows) starts[next++] = (int32_t)n;
}

/* Chains that the registers hold beside a gradient. */
#if defined(__AVX512F__) || defined(__aarch64__)
enum { WINNERS_CHAINS = 24 };
#else
enum { WINNERS_CHAINS = 12 };
#endif

OM_INLINE void winners_chain(const int R, const int C, const float *x, ptrdiff_t pitch, const int32_t *at, const float *value, ptrdiff_t n, float *state) {
    vf acc[4][OM_WINNERS_COLS];
    OM_UNROLL for (int r = 0; r < R; r++) OM_UNROLL for (int c = 0; c < C; c++) acc[r][c] = vf_load(state + (r * C + c) * LANES);
    for (ptrdiff_t i = 0; i < n; i++) {
        const vf g = vf_set(value[i]);
        const float *from = x + (ptrdiff_t)at[i] * LANES;
        OM_UNROLL for (int r = 0; r < R; r++) OM_UNROLL for (int c = 0; c < C; c++)
            acc[r][c] = gemm_step(vf_load(from + r * pitch + c * LANES), g, acc[r][c]);
    }
    OM_UNROLL for (int r = 0; r < R; r++) OM_UNROLL for (int c = 0; c < C; c++) vf_store(state + (r * C + c) * LANES, acc[r][c]);
}

typedef void winners_fn(const float *x, ptrdiff_t pitch, const int32_t *at, const float *value, ptrdiff_t n, float *state);
#define WINNERS_CHAIN(R, C)                                                                                                              \
    static void winners_chain_##R##_##C(const float *x, ptrdiff_t pitch, const int32_t *at, const float *value, ptrdiff_t n, float *state) { \
        winners_chain(R, C, x, pitch, at, value, n, state);                                                                              \
    }
/* Rows and columns whose chains fit. */
#define WINNERS_SMALL(X) \
    X(1, 1) X(1, 2) X(1, 3) X(1, 4) X(1, 5) X(1, 6) X(1, 7) X(2, 1) X(2, 2) X(2, 3) X(2, 4) X(2, 5) X(2, 6) X(3, 1) X(3, 2) X(3, 3) X(3, 4) X(4, 1) X(4, 2) X(4, 3)
WINNERS_SMALL(WINNERS_CHAIN)
#define WINNERS_NAME(R, C) [R - 1][C - 1] = winners_chain_##R##_##C,
#if defined(__AVX512F__) || defined(__aarch64__)
#define WINNERS_LARGE(X) X(2, 7) X(3, 5) X(3, 6) X(3, 7) X(4, 4) X(4, 5) X(4, 6)
WINNERS_LARGE(WINNERS_CHAIN)
static winners_fn *const winners_chains[4][OM_WINNERS_COLS] = {WINNERS_SMALL(WINNERS_NAME) WINNERS_LARGE(WINNERS_NAME)};
#else
static winners_fn *const winners_chains[4][OM_WINNERS_COLS] = {WINNERS_SMALL(WINNERS_NAME)};
#endif

static void k_winners_chain(const float *x, ptrdiff_t pitch, const int32_t *at, const float *value, ptrdiff_t n, ptrdiff_t rows, ptrdiff_t cols,
                            float *state) {
    const ptrdiff_t fit = WINNERS_CHAINS / cols, most = fit < 4 ? fit : 4;
    for (ptrdiff_t passes = (rows + most - 1) / most, now; rows > 0; rows -= now, passes--, x += now * pitch, state += now * cols * LANES) {
        now = (rows + passes - 1) / passes;
        winners_chains[now - 1][cols - 1](x, pitch, at, value, n, state);
    }
}

OM_INLINE void winners_spread(const int C, const int V, float *row, ptrdiff_t base, const int32_t *at, const float *value, ptrdiff_t n, const float *w) {
    vf taps[OM_WINNERS_COLS * 2];
    OM_UNROLL for (int t = 0; t < C * V; t++) taps[t] = vf_load(w + t * LANES);
    for (ptrdiff_t i = n - 1; i >= 0; i--) {
        const vf g = vf_set(value[i]);
        float *to = row + ((ptrdiff_t)at[i] - base) * (V * LANES);
        OM_UNROLL for (int t = 0; t < C * V; t++) vf_store(to + t * LANES, gemm_step(taps[t], g, vf_load(to + t * LANES)));
    }
}

typedef void spread_fn(float *row, ptrdiff_t base, const int32_t *at, const float *value, ptrdiff_t n, const float *w);
#define WINNERS_SPREAD(C, V)                                                                                                                  \
    static void winners_spread_##C##_##V(float *row, ptrdiff_t base, const int32_t *at, const float *value, ptrdiff_t n, const float *w) {    \
        winners_spread(C, V, row, base, at, value, n, w);                                                                                     \
    }
#define WINNERS_SPREADS(X) X(1, 1) X(2, 1) X(3, 1) X(4, 1) X(5, 1) X(6, 1) X(7, 1) X(1, 2) X(2, 2) X(3, 2) X(4, 2) X(5, 2) X(6, 2) X(7, 2)
WINNERS_SPREADS(WINNERS_SPREAD)
#define WINNERS_SPREAD_NAME(C, V) [C - 1][V - 1] = winners_spread_##C##_##V,
static spread_fn *const winners_spreads[OM_WINNERS_COLS][2] = {WINNERS_SPREADS(WINNERS_SPREAD_NAME)};

static void k_winners_spread(float *row, ptrdiff_t base, const int32_t *at, const float *value, ptrdiff_t n, ptrdiff_t cols, ptrdiff_t vectors,
                             const float *w) {
    winners_spreads[cols - 1][vectors - 1](row, base, at, value, n, w);
}

static int k_winners_join(const float *state, float *sum, ptrdiff_t n, int flags) {
    const vi minus = vi_set(INT32_MIN);
    vm found = vi_eq(vi_set(0), minus);
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        vf v = vf_load(state + i);
        found = vm_or(found, vi_eq(vi_bits(v), minus));
        if (!(flags & OM_WINNERS_FIRST)) v = vf_add(vf_load(sum + i), v);
        vf_store(sum + i, flags & OM_WINNERS_LAST ? vf_result(v) : v);
    }
    return !vm_any(found);
}

static int k_all_finite(const float *x, ptrdiff_t n) {
    vm found = vi_eq(vi_set(0), vi_set(1));
    ptrdiff_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vf v = vf_load(x + i), d = vf_sub(v, v);
        found = vm_or(found, vf_unord(d, d));
    }
    if (i < n) {
        vf v = vf_load_tail(x + i, n - i), d = vf_sub(v, v);
        found = vm_or(found, vf_unord(d, d));
    }
    return !vm_any(found);
}
#endif
