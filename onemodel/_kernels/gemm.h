/* GEMM micro-kernels: one register tile of C over one block of k, for every number of rows, and the tile's sizes.
 *
 * Per output one float32 accumulator, k increasing, one fused multiply-add per step (fast mode on a path without FMA: multiply, then
 * add); lanes and registers run over different outputs, so no tile shape changes a bit. Must not contain blocking or threads. */
#ifndef OM_GEMM_H
#define OM_GEMM_H

/* The first block of k starts from +0 and never reads C, which may hold anything; the last adds the bias and, in exact mode, writes
 * every NaN as the canonical one. BIAS_ROWS: the bias has an element per row of the tile, else per column. */
enum { OM_GEMM_FIRST = 1, OM_GEMM_LAST = 2, OM_GEMM_BIAS_ROWS = 4 };

/* C[m][n] (+)= A[m][k] · B[k][n]: A by two strides, B and C by rows of contiguous elements; whole vectors of B are read, so its rows are
 * readable up to n rounded up to lanes. m is at most mr, n at most width(m, n). */
typedef void om_tile_fn(ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, const float *a, ptrdiff_t rsa, ptrdiff_t csa, const float *b, ptrdiff_t rsb,
                        float *c, ptrdiff_t rsc, const float *bias, int flags);
typedef void om_pack_fn(const float *src, ptrdiff_t ks, ptrdiff_t ws, ptrdiff_t k, ptrdiff_t w, ptrdiff_t width, float *dst);

/* C[m][n] = A[m][k] · B[k][n] (+ bias), the rows of A and the columns of B contiguous along k, csb between columns; m at most thin_rows. */
typedef void om_thin_fn(ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, const float *a, ptrdiff_t rsa, const float *b, ptrdiff_t csb, float *c,
                        ptrdiff_t rsc, const float *bias, int flags);
/* Columns that the next tile of m rows should take of so many left. */
typedef ptrdiff_t om_width_fn(ptrdiff_t m, ptrdiff_t columns);

typedef struct om_gemm {
    ptrdiff_t lanes, mr, nr; /* nr: the widest tile of mr rows */
    om_width_fn *width;
    om_tile_fn *tile;
    om_pack_fn *pack;
    ptrdiff_t thin_rows;
    om_thin_fn *thin;
} om_gemm;
#endif

#if defined(OM_VARIANT) && !defined(OM_GEMM_LOOPS)
#define OM_GEMM_LOOPS
#include "pack.h"

/* Rows of the tile, and vectors beside each other. The accumulators, one row of B and a broadcast of A fill the registers: 14 × 2 + 3 of
 * 32 (AVX-512), 6 × 2 + 3 of 16 (AVX2), 6 × 4 + 5 of 32 (NEON). Without FMA more would spill. */
#if defined(__AVX512F__)
enum { MR = 14, VECTORS = 2 };
#define OM_TILE_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#elif defined(__AVX2__)
enum { MR = 6, VECTORS = 2 };
#define OM_TILE_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#elif defined(__aarch64__)
enum { MR = 6, VECTORS = 4 };
#define OM_TILE_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#else
enum { MR = 4, VECTORS = 2 };
#define OM_TILE_ROWS(X) X(1) X(2) X(3) X(4)
#endif

/* Vectors in a line of cache, and rows of B fetched ahead: rows of a matrix lie on pages of their own, which no processor foresees. */
enum { LINE = LANES < 16 ? 16 / LANES : 1, AHEAD = 8 };

#define OM_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define OM_UNROLL _Pragma("clang loop unroll(full)")
#else
#define OM_UNROLL _Pragma("GCC unroll 16")
#endif

OM_INLINE vf gemm_step(vf a, vf b, vf c) { return OM_EXACT ? vf_fma(a, b, c) : vf_madd(a, b, c); }

/* One tile of M rows and V vectors, both constants where this is inlined. A side by side (rsa 1: packed, or transposed) is read through
 * one pointer; other rows through one pointer per three, which is what x86 addressing reaches with one stride register. */
OM_INLINE void gemm_tile(const int M, const int V, const int together, ptrdiff_t n, ptrdiff_t k, const float *a, ptrdiff_t rsa, ptrdiff_t csa,
                    const float *b, ptrdiff_t rsb, float *c, ptrdiff_t rsc, const float *bias, int flags) {
    vf acc[MR][8];
    const ptrdiff_t rest = n - (V - 1) * LANES; /* columns of the last vector */
    const int whole = rest == LANES;
    OM_UNROLL for (int i = 0; i < M; i++) OM_UNROLL for (int v = 0; v < V; v++) acc[i][v] = vf_set(0.0f);
    if (!(flags & OM_GEMM_FIRST)) {
        OM_UNROLL for (int i = 0; i < M; i++) {
            OM_UNROLL for (int v = 0; v < V - 1; v++) acc[i][v] = vf_load(c + i * rsc + v * LANES);
            acc[i][V - 1] = whole ? vf_load(c + i * rsc + (V - 1) * LANES) : vf_load_tail(c + i * rsc + (V - 1) * LANES, rest);
        }
    }
    const float *row[(MR + 2) / 3];
    OM_UNROLL for (int i = 0; i < M; i += 3) row[i / 3] = a + i * rsa;
    for (; k > 0; k--) {
        vf bv[8];
        OM_UNROLL for (int v = 0; v < V; v++) bv[v] = vf_load(b + v * LANES);
        /* few rows go by short blocks of k, after which other rows follow */
        if (M > MR / 2) OM_UNROLL for (int v = 0; v < V; v += LINE) __builtin_prefetch(b + AHEAD * rsb + v * LANES);
        b += rsb;
        OM_UNROLL for (int i = 0; i < M; i++) {
            vf av = vf_set(together ? a[i] : row[i / 3][i % 3 * rsa]);
            OM_UNROLL for (int v = 0; v < V; v++) acc[i][v] = gemm_step(av, bv[v], acc[i][v]);
        }
        if (together) a += csa;
        else OM_UNROLL for (int i = 0; i < M; i += 3) row[i / 3] += csa;
    }
    if (flags & OM_GEMM_LAST) {
        if (bias && flags & OM_GEMM_BIAS_ROWS) {
            OM_UNROLL for (int i = 0; i < M; i++) OM_UNROLL for (int v = 0; v < V; v++) acc[i][v] = vf_add(acc[i][v], vf_set(bias[i]));
        } else if (bias) {
            OM_UNROLL for (int v = 0; v < V; v++) {
                vf e = v < V - 1 || whole ? vf_load(bias + v * LANES) : vf_load_tail(bias + v * LANES, rest);
                OM_UNROLL for (int i = 0; i < M; i++) acc[i][v] = vf_add(acc[i][v], e);
            }
        }
        OM_UNROLL for (int i = 0; i < M; i++) OM_UNROLL for (int v = 0; v < V; v++) acc[i][v] = vf_result(acc[i][v]);
    }
    OM_UNROLL for (int i = 0; i < M; i++) {
        OM_UNROLL for (int v = 0; v < V - 1; v++) vf_store(c + i * rsc + v * LANES, acc[i][v]);
        if (whole) vf_store(c + i * rsc + (V - 1) * LANES, acc[i][V - 1]);
        else vf_store_tail(c + i * rsc + (V - 1) * LANES, acc[i][V - 1], rest);
    }
}

typedef void tile_fn(ptrdiff_t n, ptrdiff_t k, const float *a, ptrdiff_t rsa, ptrdiff_t csa, const float *b, ptrdiff_t rsb, float *c,
                     ptrdiff_t rsc, const float *bias, int flags);
#define TILE_OF(M, V, form, together)                                                                                                     \
    static void tile_##M##_##V##_##form(ptrdiff_t n, ptrdiff_t k, const float *a, ptrdiff_t rsa, ptrdiff_t csa, const float *b,           \
                                        ptrdiff_t rsb, float *c, ptrdiff_t rsc, const float *bias, int flags) {                           \
        gemm_tile(M, V, together, n, k, a, rsa, csa, b, rsb, c, rsc, bias, flags);                                                             \
    }
#define TILES_OF(M, V) TILE_OF(M, V, rows, 0) TILE_OF(M, V, side, 1)

/* Few rows do not hide the latency of a multiply-add and take more vectors: 8 of one row, 4 of two or three. */
#define OM_TILES(M) TILES_OF(M, 1) TILES_OF(M, 2)
OM_TILE_ROWS(OM_TILES)
#define OM_TILES_4(M) TILES_OF(M, 4)
#if defined(__aarch64__)
/* The last panel of a row of four-vector panels may be three vectors wide; elsewhere a panel has two, and k_width avoids three. */
#define OM_TILES_3(M) TILES_OF(M, 3)
OM_TILE_ROWS(OM_TILES_3)
OM_TILE_ROWS(OM_TILES_4)
#else
OM_TILES_4(1) OM_TILES_4(2) OM_TILES_4(3)
#endif
TILES_OF(1, 8)

#define OM_TILE_1(M) {tile_##M##_1_rows, tile_##M##_1_side},
#define OM_TILE_2(M) {tile_##M##_2_rows, tile_##M##_2_side},
#define OM_TILE_4(M) {tile_##M##_4_rows, tile_##M##_4_side},
static tile_fn *const tiles_1[MR][2] = {OM_TILE_ROWS(OM_TILE_1)}, *const tiles_2[MR][2] = {OM_TILE_ROWS(OM_TILE_2)};
#if defined(__aarch64__)
#define OM_TILE_3(M) {tile_##M##_3_rows, tile_##M##_3_side},
static tile_fn *const tiles_3[MR][2] = {OM_TILE_ROWS(OM_TILE_3)}, *const tiles_4[MR][2] = {OM_TILE_ROWS(OM_TILE_4)};
#else
static tile_fn *const tiles_4[3][2] = {OM_TILE_4(1) OM_TILE_4(2) OM_TILE_4(3)};
#endif
static tile_fn *const tiles_8[1][2] = {{tile_1_8_rows, tile_1_8_side}};

static ptrdiff_t k_width(ptrdiff_t m, ptrdiff_t columns) {
    ptrdiff_t vectors = (columns + LANES - 1) / LANES, most = m == 1 ? 8 : m <= 3 ? 4 : VECTORS;
    while (most > vectors) most /= 2;
    return most * LANES < columns ? most * LANES : columns;
}

static void k_tile(ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, const float *a, ptrdiff_t rsa, ptrdiff_t csa, const float *b, ptrdiff_t rsb,
                   float *c, ptrdiff_t rsc, const float *bias, int flags) {
    tile_fn *const(*of)[2] = n <= LANES ? tiles_1 : n <= 2 * LANES ? tiles_2 : n <= 4 * LANES ? tiles_4 : tiles_8;
#if defined(__aarch64__)
    if (n > 2 * LANES && n <= 3 * LANES) of = tiles_3;
#endif
    of[m - 1][rsa == 1](n, k, a, rsa, csa, b, rsb, c, rsc, bias, flags);
}

#include "gemm_thin.h"

#define OM_GEMM_INIT {LANES, MR, VECTORS * LANES, k_width, k_tile, k_pack, THIN_ROWS, k_thin}
#endif
