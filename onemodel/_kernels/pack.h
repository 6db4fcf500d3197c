/* Packing of GEMM operands: a strided block becomes a panel whose rows are whole vectors. Owns the in-register transposes; holds no
 * arithmetic, so both modes share the bits. Must not contain blocking decisions: those are gemm.pyx's. */
#if defined(OM_VARIANT) && !defined(OM_PACK_LOOPS)
#define OM_PACK_LOOPS

/* A panel of w columns has rows of panel_width(w) floats. */
static inline ptrdiff_t panel_width(ptrdiff_t w) { return (w + LANES - 1) / LANES * LANES; }

/* turn(row, at, d, ld): TURN rows of TURN floats from `at` become columns, written at d, d + ld, d + 2·ld, ... Eight rows also where sixteen would
 * fit a vector: rows a power of two apart share one set of L1, which holds eight lines. Loading in halves of 128 bits does the first
 * exchange in the load units; two rounds of shuffles inside 128 bits do the rest. */
#if defined(__AVX2__)
enum { TURN = 8 };
static inline __m256 halves(const float *const *row, int i, ptrdiff_t at) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(row[i] + at)), _mm_loadu_ps(row[i + 4] + at), 1);
}
static inline void turn_registers(const float *const *row, ptrdiff_t at, __m256 *t) {
    for (int half = 0; half < 2; half++, at += 4, t += 4) {
        __m256 r0 = halves(row, 0, at), r1 = halves(row, 1, at), r2 = halves(row, 2, at), r3 = halves(row, 3, at);
        __m256d lo01 = _mm256_castps_pd(_mm256_unpacklo_ps(r0, r1)), lo23 = _mm256_castps_pd(_mm256_unpacklo_ps(r2, r3));
        __m256d hi01 = _mm256_castps_pd(_mm256_unpackhi_ps(r0, r1)), hi23 = _mm256_castps_pd(_mm256_unpackhi_ps(r2, r3));
        t[0] = _mm256_castpd_ps(_mm256_unpacklo_pd(lo01, lo23));
        t[1] = _mm256_castpd_ps(_mm256_unpackhi_pd(lo01, lo23));
        t[2] = _mm256_castpd_ps(_mm256_unpacklo_pd(hi01, hi23));
        t[3] = _mm256_castpd_ps(_mm256_unpackhi_pd(hi01, hi23));
    }
}
static inline void turn(const float *const *row, ptrdiff_t at, float *d, ptrdiff_t ld) {
    __m256 t[8];
    turn_registers(row, at, t);
    for (int i = 0; i < 8; i++) _mm256_storeu_ps(d + i * ld, t[i]);
}
#else
/* Four lanes or one: what the compiler makes of the plain exchange is short enough. */
enum { TURN = LANES };
static inline void turn(const float *const *row, ptrdiff_t at, float *d, ptrdiff_t ld) {
    for (int i = 0; i < TURN; i++)
        for (int step = 0; step < TURN; step++) d[step * ld + i] = row[i][at + step];
}
#endif

/* Columns that are contiguous along k: groups of TURN columns are transposed block by block, all groups of some steps before the next
 * steps, so that the written rows stay in L1. Lanes past w repeat a real column: they are computed with and never stored. A last short
 * block is taken again from TURN before the end. */
static void pack_turned(const float *src, ptrdiff_t ws, ptrdiff_t k, ptrdiff_t w, float *dst) {
    enum { STEPS = 128 };
    const ptrdiff_t ld = panel_width(w);
    for (ptrdiff_t k0 = 0; k0 < k; k0 += STEPS) {
        ptrdiff_t k1 = k - k0 < STEPS ? k : k0 + STEPS;
        for (ptrdiff_t j = 0; j < ld; j += TURN) {
            const float *row[TURN];
            for (ptrdiff_t i = 0; i < TURN; i++) row[i] = src + (j + i < w ? j + i : 0) * ws;
            float *d = dst + j;
            ptrdiff_t at = k0;
            for (; at + TURN <= k1; at += TURN) turn(row, at, d + at * ld, ld);
            if (at < k1 && k >= TURN) turn(row, k - TURN, d + (k - TURN) * ld, ld);
            else
                for (; at < k1; at++)
                    for (ptrdiff_t i = 0; i < TURN; i++) d[at * ld + i] = row[i][at];
        }
    }
}

/* Columns that lie side by side: each row of the source is read from end to end and dealt out to the panels. */
static void pack_copied(const float *src, ptrdiff_t ks, ptrdiff_t k, ptrdiff_t w, ptrdiff_t width, float *dst) {
    /* Pieces of rows that lie pages apart: no processor foresees the next. */
    enum { FETCHED = 16, PIECE = 128 };
    const ptrdiff_t full = panel_width(width), apart = k * full;
    const int fetch = w <= PIECE && ks >= 2 * w;
    for (ptrdiff_t at = 0; at < k; at++, src += ks) {
        float *d = dst + at * full;
        ptrdiff_t j = 0;
        if (fetch) for (ptrdiff_t i = 0; i < w; i += 16) __builtin_prefetch(src + FETCHED * ks + i);
        if (width == 2 * LANES)
            for (; j + width <= w; j += width, d += apart) {
                vf lo = vf_load(src + j), hi = vf_load(src + j + LANES);
                vf_store(d, lo);
                vf_store(d + LANES, hi);
            }
        for (; j < w; j += width, d += apart) {
            const ptrdiff_t n = w - j < width ? w - j : width;
            float *e = n == width ? d : dst + j / width * apart + at * panel_width(n);
            ptrdiff_t i = 0;
            for (; i + LANES <= n; i += LANES) vf_store(e + i, vf_load(src + j + i));
            /* what stands beside the panel fills its row: a masked load costs several plain ones */
            if (i < n) vf_store(e + i, j + i + LANES <= w ? vf_load(src + j + i) : vf_load_tail(src + j + i, n - i));
        }
    }
}

/* Panels of `width` columns, one after the other: panel p holds src[at·ks + (p·width + i)·ws] in row at < k, column i; a row has
 * panel_width(width) floats, in a last narrower panel fewer. Strides may be 0 or negative. */
static void k_pack(const float *src, ptrdiff_t ks, ptrdiff_t ws, ptrdiff_t k, ptrdiff_t w, ptrdiff_t width, float *dst) {
    if (ws == 1) {
        pack_copied(src, ks, k, w, width, dst);
        return;
    }
    for (; w > 0; w -= width, src += width * ws, dst += k * panel_width(width)) {
        const ptrdiff_t n = w < width ? w : width, ld = panel_width(n);
        if (ks == 1) pack_turned(src, ws, k, n, dst);
        else
            for (ptrdiff_t at = 0; at < k; at++)
                for (ptrdiff_t i = 0; i < ld; i++) dst[at * ld + i] = src[at * ks + (i < n ? i : 0) * ws];
    }
}

#endif
