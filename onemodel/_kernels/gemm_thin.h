/* Products of a few rows with a B that is contiguous along k (a linear layer's weight at a small batch): columns of B are transposed in
 * registers and used at once, since packing them would cost more than the arithmetic. Same chain, same bits as the tiles of gemm.h. */
#if defined(OM_VARIANT) && !defined(OM_GEMM_THIN_LOOPS)
#define OM_GEMM_THIN_LOOPS

#if defined(__AVX2__)
/* M rows by one or two groups of eight columns: 8 accumulators beside the 8 transposed vectors and what they are made from. */
#if defined(__AVX512VL__)
enum { THIN_ROWS = 4 };
#else
enum { THIN_ROWS = 2 };
#endif

OM_INLINE __m256 canon8(__m256 v) {
    return OM_EXACT ? _mm256_blendv_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000)), _mm256_cmp_ps(v, v, _CMP_UNORD_Q)) : v;
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
OM_THIN(1) OM_THIN(2)
typedef ptrdiff_t thin_fn(ptrdiff_t n, ptrdiff_t k, const float *a, ptrdiff_t rsa, const float *b, ptrdiff_t csb, float *c, ptrdiff_t rsc,
                          const float *bias, int flags);
#if defined(__AVX512VL__)
OM_THIN(3) OM_THIN(4)
static thin_fn *const thins[THIN_ROWS] = {thin_1, thin_2, thin_3, thin_4};
#else
static thin_fn *const thins[THIN_ROWS] = {thin_1, thin_2};
#endif

static ptrdiff_t k_thin(ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, const float *a, ptrdiff_t rsa, const float *b, ptrdiff_t csb, float *c,
                        ptrdiff_t rsc, const float *bias, int flags) {
    return thins[m - 1](n, k, a, rsa, b, csb, c, rsc, bias, flags);
}
#else
/* Without wide registers packing wins: no rows are thin. */
enum { THIN_ROWS = 0 };
#define k_thin 0
#endif

#endif
