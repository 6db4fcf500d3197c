/* Products of a few rows with a B that is contiguous along k (a linear layer's weight at a small batch), where packing would cost more
 * than the arithmetic. Owns two loops: in exact mode columns of B are transposed in registers and used at once, the same chain and bits as
 * the tiles of gemm.h; in fast mode lanes run along k and are summed at the end, which reads B as memory likes it. */
#if defined(OM_VARIANT) && !defined(OM_GEMM_THIN_LOOPS)
#define OM_GEMM_THIN_LOOPS

typedef void thin_fn(ptrdiff_t n, ptrdiff_t k, const float *a, ptrdiff_t rsa, const float *b, ptrdiff_t csb, float *c, ptrdiff_t rsc,
                          const float *bias, int flags);

#if !OM_EXACT
/* Four rows of four columns: 16 sums and 4 vectors of B of 32 registers, or 8 sums of 16. */
#if defined(__AVX512F__) || defined(__aarch64__)
enum { THIN_ROWS = 4 };
#define OM_THIN_ROWS(X) X(1) X(2) X(3) X(4)
#else
enum { THIN_ROWS = 2 };
#define OM_THIN_ROWS(X) X(1) X(2)
#endif

/* Halves are added to halves: an order that depends on nothing but LANES. */
static inline float thin_sum(vf v) {
    float lane[LANES];
    vf_store(lane, v);
    for (int w = LANES / 2; w > 0; w /= 2)
        for (int i = 0; i < w; i++) lane[i] += lane[i + w];
    return lane[0];
}

OM_INLINE void thin(const int M, const int N, ptrdiff_t k, const float *a, ptrdiff_t rsa, const float *b, ptrdiff_t csb, float *c,
                    ptrdiff_t rsc, const float *bias, ptrdiff_t beside, ptrdiff_t below) {
    vf acc[THIN_ROWS][4];
    OM_UNROLL for (int i = 0; i < M; i++) OM_UNROLL for (int j = 0; j < N; j++) acc[i][j] = vf_set(0.0f);
    ptrdiff_t at = 0;
    for (; at + LANES <= k; at += LANES) {
        vf bv[4];
        OM_UNROLL for (int j = 0; j < N; j++) bv[j] = vf_load(b + j * csb + at);
        OM_UNROLL for (int i = 0; i < M; i++) {
            vf av = vf_load(a + i * rsa + at);
            OM_UNROLL for (int j = 0; j < N; j++) acc[i][j] = vf_madd(av, bv[j], acc[i][j]);
        }
    }
    if (at < k)
        OM_UNROLL for (int j = 0; j < N; j++) {
            vf bv = vf_load_tail(b + j * csb + at, k - at);
            OM_UNROLL for (int i = 0; i < M; i++) acc[i][j] = vf_madd(vf_load_tail(a + i * rsa + at, k - at), bv, acc[i][j]);
        }
    OM_UNROLL for (int i = 0; i < M; i++) OM_UNROLL for (int j = 0; j < N; j++)
        c[i * rsc + j] = thin_sum(acc[i][j]) + (bias ? bias[i * below + j * beside] : 0.0f);
}

#define OM_THIN(M)                                                                                                                        \
    static void thin_##M(ptrdiff_t n, ptrdiff_t k, const float *a, ptrdiff_t rsa, const float *b, ptrdiff_t csb, float *c,                \
                              ptrdiff_t rsc, const float *bias, int flags) {                                                              \
        const ptrdiff_t below = flags & OM_GEMM_BIAS_ROWS ? 1 : 0, beside = 1 - below;                                                    \
        ptrdiff_t j = 0;                                                                                                                  \
        for (; j + 4 <= n; j += 4) thin(M, 4, k, a, rsa, b + j * csb, csb, c + j, rsc, bias ? bias + j * beside : 0, beside, below);      \
        for (; j < n; j++) thin(M, 1, k, a, rsa, b + j * csb, csb, c + j, rsc, bias ? bias + j * beside : 0, beside, below);              \
    }

#elif defined(__AVX2__)
/* M rows by one or two groups of eight columns: 8 accumulators beside the 8 transposed vectors and what they are made from. */
#if defined(__AVX512VL__)
enum { THIN_ROWS = 4 };
#define OM_THIN_ROWS(X) X(1) X(2) X(3) X(4)
#else
enum { THIN_ROWS = 2 };
#define OM_THIN_ROWS(X) X(1) X(2)
#endif

static inline __m256 canon8(__m256 v) {
    return _mm256_blendv_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000)), _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
}

/* cols columns in G groups of eight; where the last is not full, its last column stands in for those that are missing. */
OM_INLINE void thin(const int M, const int G, ptrdiff_t cols, ptrdiff_t k, const float *a, ptrdiff_t rsa, const float *b, ptrdiff_t csb, float *c,
                    ptrdiff_t rsc, const float *bias, int flags) {
    __m256 acc[THIN_ROWS][2];
    const float *row[2][8];
    OM_UNROLL for (int g = 0; g < G; g++) OM_UNROLL for (int i = 0; i < 8; i++) row[g][i] = b + (g * 8 + i < cols ? g * 8 + i : cols - 1) * csb;
    OM_UNROLL for (int i = 0; i < M; i++) OM_UNROLL for (int g = 0; g < G; g++) acc[i][g] = _mm256_setzero_ps();
    for (ptrdiff_t from = 0; from < k; from += 16, a += 16) {
        const int whole = k - from >= 16, left = whole ? 0 : (int)(k - from); /* 16 floats are a line of cache: a column's line is used in one visit */
        OM_UNROLL for (int g = 0; g < G; g++) {
            if (whole) {
                OM_UNROLL for (int at = 0; at < 16; at += 8) {
                    __m256 t[8];
                    turn_registers(row[g], from + at, t);
                    OM_UNROLL for (int s = 0; s < 8; s++) OM_UNROLL for (int i = 0; i < M; i++)
                        acc[i][g] = _mm256_fmadd_ps(_mm256_set1_ps(a[i * rsa + at + s]), t[s], acc[i][g]);
                }
            }
            for (int s = 0; s < left; s++) {
                __m256 t = _mm256_setr_ps(row[g][0][from + s], row[g][1][from + s], row[g][2][from + s], row[g][3][from + s],
                                          row[g][4][from + s], row[g][5][from + s], row[g][6][from + s], row[g][7][from + s]);
                OM_UNROLL for (int i = 0; i < M; i++) acc[i][g] = _mm256_fmadd_ps(_mm256_set1_ps(a[i * rsa + s]), t, acc[i][g]);
            }
        }
    }
    OM_UNROLL for (int i = 0; i < M; i++) OM_UNROLL for (int g = 0; g < G; g++) {
        const ptrdiff_t n = cols - g * 8;
        float out[8] = {0};
        if (bias) {
            if (flags & OM_GEMM_BIAS_ROWS) acc[i][g] = _mm256_add_ps(acc[i][g], _mm256_set1_ps(bias[i]));
            else {
                memcpy(out, bias + g * 8, sizeof(float) * (size_t)(n < 8 ? n : 8));
                acc[i][g] = _mm256_add_ps(acc[i][g], _mm256_loadu_ps(out));
            }
        }
        _mm256_storeu_ps(out, canon8(acc[i][g]));
        memcpy(c + i * rsc + g * 8, out, sizeof(float) * (size_t)(n < 8 ? n : 8));
    }
}

/* Up to sixteen columns at a time keep two chains going; where columns are a multiple of 4 KB apart, so that their lines share one set of L1,
 * twelve, which it holds. */
#define OM_THIN(M)                                                                                                                        \
    static void thin_##M(ptrdiff_t n, ptrdiff_t k, const float *a, ptrdiff_t rsa, const float *b, ptrdiff_t csb, float *c,                \
                              ptrdiff_t rsc, const float *bias, int flags) {                                                              \
        const ptrdiff_t beside = flags & OM_GEMM_BIAS_ROWS ? 0 : 1, most = csb % 1024 ? 16 : 12;                                           \
        for (ptrdiff_t j = 0, cols; j < n; j += cols) {                                                                                   \
            const float *e = bias ? bias + j * beside : 0;                                                                                \
            cols = n - j < most ? n - j : most;                                                                                          \
            if (cols > 8) thin(M, 2, cols, k, a, rsa, b + j * csb, csb, c + j, rsc, e, flags);                                            \
            else thin(M, 1, cols, k, a, rsa, b + j * csb, csb, c + j, rsc, e, flags);                                                     \
        }                                                                                                                                 \
    }
#else
/* Without wide registers packing wins: no rows are thin. */
enum { THIN_ROWS = 0 };
#define k_thin 0
#endif

#if defined(OM_THIN)
OM_THIN_ROWS(OM_THIN)
#define OM_THIN_NAME(M) thin_##M,
static thin_fn *const thins[THIN_ROWS] = {OM_THIN_ROWS(OM_THIN_NAME)};

static void k_thin(ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, const float *a, ptrdiff_t rsa, const float *b, ptrdiff_t csb, float *c,
                        ptrdiff_t rsc, const float *bias, int flags) {
    thins[m - 1](n, k, a, rsa, b, csb, c, rsc, bias, flags);
}
#endif

#endif
