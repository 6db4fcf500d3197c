/* Packing of GEMM operands: a strided block becomes a panel whose rows are whole vectors. Owns the in-register transposes; holds no
 * arithmetic, so both modes share the bits. Must not contain blocking decisions: those are gemm.pyx's. */
#if defined(OM_VARIANT) && !defined(OM_PACK_LOOPS)
#define OM_PACK_LOOPS

/* A panel of w columns has rows of panel_width(w) floats. */
static inline ptrdiff_t panel_width(ptrdiff_t w) { return (w + LANES - 1) / LANES * LANES; }

/* turn(row, d, ld): LANES rows of LANES floats become columns, written at d, d + ld, d + 2·ld, ... Loading in quarters of 128 bits
 * does the first half of the exchange in the load units; two rounds of shuffles inside 128 bits do the rest. */
#if defined(__AVX512F__)
static inline __m512 quarters(const float *const *row, int i, ptrdiff_t at) {
    __m512 v = _mm512_castps128_ps512(_mm_loadu_ps(row[i] + at));
    v = _mm512_insertf32x4(v, _mm_loadu_ps(row[i + 4] + at), 1);
    v = _mm512_insertf32x4(v, _mm_loadu_ps(row[i + 8] + at), 2);
    return _mm512_insertf32x4(v, _mm_loadu_ps(row[i + 12] + at), 3);
}
static inline void turn(const float *const *row, float *d, ptrdiff_t ld) {
    for (ptrdiff_t at = 0; at < 16; at += 4, d += 4 * ld) {
        __m512 r0 = quarters(row, 0, at), r1 = quarters(row, 1, at), r2 = quarters(row, 2, at), r3 = quarters(row, 3, at);
        __m512d lo01 = _mm512_castps_pd(_mm512_unpacklo_ps(r0, r1)), lo23 = _mm512_castps_pd(_mm512_unpacklo_ps(r2, r3));
        __m512d hi01 = _mm512_castps_pd(_mm512_unpackhi_ps(r0, r1)), hi23 = _mm512_castps_pd(_mm512_unpackhi_ps(r2, r3));
        _mm512_storeu_ps(d, _mm512_castpd_ps(_mm512_unpacklo_pd(lo01, lo23)));
        _mm512_storeu_ps(d + ld, _mm512_castpd_ps(_mm512_unpackhi_pd(lo01, lo23)));
        _mm512_storeu_ps(d + 2 * ld, _mm512_castpd_ps(_mm512_unpacklo_pd(hi01, hi23)));
        _mm512_storeu_ps(d + 3 * ld, _mm512_castpd_ps(_mm512_unpackhi_pd(hi01, hi23)));
    }
}
#elif defined(__AVX2__)
static inline __m256 halves(const float *const *row, int i, ptrdiff_t at) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(row[i] + at)), _mm_loadu_ps(row[i + 4] + at), 1);
}
static inline void turn(const float *const *row, float *d, ptrdiff_t ld) {
    for (ptrdiff_t at = 0; at < 8; at += 4, d += 4 * ld) {
        __m256 r0 = halves(row, 0, at), r1 = halves(row, 1, at), r2 = halves(row, 2, at), r3 = halves(row, 3, at);
        __m256d lo01 = _mm256_castps_pd(_mm256_unpacklo_ps(r0, r1)), lo23 = _mm256_castps_pd(_mm256_unpacklo_ps(r2, r3));
        __m256d hi01 = _mm256_castps_pd(_mm256_unpackhi_ps(r0, r1)), hi23 = _mm256_castps_pd(_mm256_unpackhi_ps(r2, r3));
        _mm256_storeu_ps(d, _mm256_castpd_ps(_mm256_unpacklo_pd(lo01, lo23)));
        _mm256_storeu_ps(d + ld, _mm256_castpd_ps(_mm256_unpackhi_pd(lo01, lo23)));
        _mm256_storeu_ps(d + 2 * ld, _mm256_castpd_ps(_mm256_unpacklo_pd(hi01, hi23)));
        _mm256_storeu_ps(d + 3 * ld, _mm256_castpd_ps(_mm256_unpackhi_pd(hi01, hi23)));
    }
}
#else
/* Four lanes or one: what the compiler makes of the plain exchange is short enough. */
static inline void turn(const float *const *row, float *d, ptrdiff_t ld) {
    for (int i = 0; i < LANES; i++)
        for (int at = 0; at < LANES; at++) d[at * ld + i] = row[i][at];
}
#endif

/* Columns that are contiguous along k: each group of LANES columns is transposed block by block. Lanes past w repeat a real column: they
 * are computed with and never stored. A last short block is taken again from LANES before the end. */
static void pack_turned(const float *src, ptrdiff_t ws, ptrdiff_t k, ptrdiff_t w, float *dst) {
    ptrdiff_t ld = panel_width(w);
    for (ptrdiff_t j = 0; j < w; j += LANES) {
        const float *row[LANES];
        for (ptrdiff_t i = 0; i < LANES; i++) row[i] = src + (j + i < w ? j + i : j) * ws;
        float *d = dst + j;
        if (k < LANES) {
            for (ptrdiff_t at = 0; at < k; at++)
                for (ptrdiff_t i = 0; i < LANES; i++) d[at * ld + i] = row[i][at];
            continue;
        }
        for (ptrdiff_t at = 0; at < k; at += LANES) {
            ptrdiff_t step = at + LANES <= k ? LANES : k - at;
            ptrdiff_t back = LANES - step;
            const float *r[LANES];
            for (int i = 0; i < LANES; i++) r[i] = row[i] + at - back;
            turn(r, d + (at - back) * ld, ld);
        }
    }
}

/* Columns that lie side by side: rows are copied. */
static void pack_copied(const float *src, ptrdiff_t ks, ptrdiff_t k, ptrdiff_t w, float *dst) {
    ptrdiff_t ld = panel_width(w), whole = w / LANES * LANES, rest = w - whole;
    if (w == 2 * LANES) {
        for (ptrdiff_t at = 0; at < k; at++, src += ks, dst += 2 * LANES) {
            vf lo = vf_load(src), hi = vf_load(src + LANES);
            vf_store(dst, lo);
            vf_store(dst + LANES, hi);
        }
        return;
    }
    for (ptrdiff_t at = 0; at < k; at++, src += ks, dst += ld) {
        for (ptrdiff_t i = 0; i < whole; i += LANES) vf_store(dst + i, vf_load(src + i));
        if (rest) vf_store(dst + whole, vf_load_tail(src + whole, rest));
    }
}

/* dst[at][i] = src[at·ks + i·ws] for at < k, i < w, in rows of panel_width(w). Strides may be 0 or negative. */
static void k_pack(const float *src, ptrdiff_t ks, ptrdiff_t ws, ptrdiff_t k, ptrdiff_t w, float *dst) {
    if (ws == 1) pack_copied(src, ks, k, w, dst);
    else if (ks == 1) pack_turned(src, ws, k, w, dst);
    else {
        ptrdiff_t ld = panel_width(w);
        for (ptrdiff_t at = 0; at < k; at++, src += ks, dst += ld)
            for (ptrdiff_t i = 0; i < ld; i++) dst[i] = src[(i < w ? i : 0) * ws];
    }
}

#endif
