/* Products of a few rows with a B that is contiguous along k (a linear layer's weight at a small batch), where packing would cost more
 * than the arithmetic. Owns two loops: in exact mode columns of B are transposed in registers and used at once, the same chain and bits as
 * the tiles of gemm.h; in fast mode lanes run along k and are summed at the end, which reads B as memory likes it. */
#if defined(OM_VARIANT) && !defined(OM_GEMM_THIN_LOOPS)
#define OM_GEMM_THIN_LOOPS

typedef ptrdiff_t thin_fn(ptrdiff_t n, ptrdiff_t k, const float *a, ptrdiff_t rsa, const float *b, ptrdiff_t csb, float *c, ptrdiff_t rsc,
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
    static ptrdiff_t thin_##M(ptrdiff_t n, ptrdiff_t k, const float *a, ptrdiff_t rsa, const float *b, ptrdiff_t csb, float *c,           \
                              ptrdiff_t rsc, const float *bias, int flags) {                                                              \
        const ptrdiff_t below = flags & OM_GEMM_BIAS_ROWS ? 1 : 0, beside = 1 - below;                                                    \
        ptrdiff_t j = 0;                                                                                                                  \
        for (; j + 4 <= n; j += 4) thin(M, 4, k, a, rsa, b + j * csb, csb, c + j, rsc, bias ? bias + j * beside : 0, beside, below);      \
        for (; j < n; j++) thin(M, 1, k, a, rsa, b + j * csb, csb, c + j, rsc, bias ? bias + j * beside : 0, beside, below);              \
        return n;                                                                                                                         \
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

/* Columns come in whole groups of eight: G of them. */
OM_INLINE void thin(const int M, const int G, ptrdiff_t k, const float *a, ptrdiff_t rsa, const float *b, ptrdiff_t csb, float *c,
                    ptrdiff_t rsc, const float *bias, int flags) {
    __m256 acc[THIN_ROWS][2];
    OM_UNROLL for (int i = 0; i < M; i++) OM_UNROLL for (int g = 0; g < G; g++) acc[i][g] = _mm256_setzero_ps();
    for (; k > 0; k -= 16, b += 16, a += 16) {
        const int whole = k >= 16, left = whole ? 0 : (int)k; /* 16 floats are a line of cache: a column's line is used in one visit */
        const float *first = b;
        OM_UNROLL for (int g = 0; g < G; g++, first += 8 * csb) {
            const float *row[8];
            OM_UNROLL for (int i = 0; i < 8; i++) row[i] = first + i * csb;
            if (whole) {
                OM_UNROLL for (int at = 0; at < 16; at += 8) {
                    __m256 t[8];
                    turn_registers(row, at, t);
                    OM_UNROLL for (int s = 0; s < 8; s++) OM_UNROLL for (int i = 0; i < M; i++)
                        acc[i][g] = _mm256_fmadd_ps(_mm256_set1_ps(a[i * rsa + at + s]), t[s], acc[i][g]);
                }
            }
            for (int s = 0; s < left; s++) {
                __m256 t = _mm256_setr_ps(row[0][s], row[1][s], row[2][s], row[3][s], row[4][s], row[5][s], row[6][s], row[7][s]);
                OM_UNROLL for (int i = 0; i < M; i++) acc[i][g] = _mm256_fmadd_ps(_mm256_set1_ps(a[i * rsa + s]), t, acc[i][g]);
            }
        }
    }
    OM_UNROLL for (int i = 0; i < M; i++) OM_UNROLL for (int g = 0; g < G; g++) {
        if (bias) acc[i][g] = _mm256_add_ps(acc[i][g], flags & OM_GEMM_BIAS_ROWS ? _mm256_set1_ps(bias[i]) : _mm256_loadu_ps(bias + g * 8));
        _mm256_storeu_ps(c + i * rsc + g * 8, canon8(acc[i][g]));
    }
}

/* Sixteen columns at a time keep two chains going; eight where columns are a multiple of 4 KB apart, whose lines share one set of L1. */
#define OM_THIN(M)                                                                                                                        \
    static ptrdiff_t thin_##M(ptrdiff_t n, ptrdiff_t k, const float *a, ptrdiff_t rsa, const float *b, ptrdiff_t csb, float *c,           \
                              ptrdiff_t rsc, const float *bias, int flags) {                                                              \
        const ptrdiff_t beside = flags & OM_GEMM_BIAS_ROWS ? 0 : 1;                                                                       \
        ptrdiff_t j = 0;                                                                                                                  \
        if (csb % 1024)                                                                                                                   \
            for (; j + 16 <= n; j += 16) thin(M, 2, k, a, rsa, b + j * csb, csb, c + j, rsc, bias ? bias + j * beside : 0, flags);        \
        for (; j + 8 <= n; j += 8) thin(M, 1, k, a, rsa, b + j * csb, csb, c + j, rsc, bias ? bias + j * beside : 0, flags);              \
        return j;                                                                                                                         \
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

static ptrdiff_t k_thin(ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, const float *a, ptrdiff_t rsa, const float *b, ptrdiff_t csb, float *c,
                        ptrdiff_t rsc, const float *bias, int flags) {
    return thins[m - 1](n, k, a, rsa, b, csb, c, rsc, bias, flags);
}
#endif

#endif
