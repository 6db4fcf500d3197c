/* The kernel table: signature classes, the list of all rows, and the struct that holds one variant's functions.
 *
 * A family header (elementwise.h, reduce.h, ...) opens with its list, OM_<FAMILY>(ROW), one ROW(class, name, doc) per kernel,
 * and keeps its loops behind `#ifdef OM_VARIANT`. This file sees only the lists. A row makes the table slot, the initialiser,
 * the Python name, the test row, the bench row and the documentation line. Must not contain loops. */
#ifndef OM_KERNELS_H
#define OM_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* -- signature classes: every pointer is to contiguous elements; an output may be the same array as an input, else disjoint -- */
typedef void om_map1_fn(const float *x, float *y, ptrdiff_t n);
typedef void om_map2_fn(const float *a, const float *b, float *y, ptrdiff_t n);
typedef void om_map3_fn(const float *a, const float *b, const float *c, float *y, ptrdiff_t n);
typedef void om_map4_fn(const float *a, const float *b, const float *c, const float *d, float *y, ptrdiff_t n);
/* float comparison to a 0/1 byte */
typedef void om_compare_fn(const float *a, const float *b, uint8_t *y, ptrdiff_t n);
/* y = c ? a : b, c a 0/1 byte */
typedef void om_select_fn(const uint8_t *c, const float *a, const float *b, float *y, ptrdiff_t n);

/* dst[r * dst_row + c * dst_col] = src[r * src_row + c * src_col], strides in elements; no overlap */
typedef void om_copy_fn(const void *src, ptrdiff_t src_row, ptrdiff_t src_col, void *dst, ptrdiff_t dst_row, ptrdiff_t dst_col, ptrdiff_t rows, ptrdiff_t cols);
/* dst[i] = src[i * stride] in another type */
typedef void om_cast_fn(const void *src, ptrdiff_t stride, void *dst, ptrdiff_t n);
/* Reductions of the block x[r * stride + c]; acc has one running state per row or per column, and elements join it in order. */
typedef void om_sum_fn(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, double *acc);
/* One long sum, whose windows of OM_SUM_WINDOW elements threads look at beforehand in one of three ways: whether all partial sums are exact, from a
 * rough or a close bound of them, or, where they are around multiples of a spacing of doubles, how many steps of it a window adds to an even and to
 * an odd one, with the roundings of the chain. joined adds windows to acc as long as that provably gives the bits of the chain, and returns how many. */
enum { OM_SUM_WINDOW = 1024, OM_WIDE = 0, OM_BINADE, OM_NARROW, OM_SUM_WAYS };
typedef struct om_window {
    double sum, low, high; /* all partial sums of the window are within [low, high] */
    int64_t steps[2];
    uint32_t least;        /* the least bits of |x| above 0 */
} om_window;
typedef void om_windows_fn(const float *x, ptrdiff_t windows, int way, double spacing, om_window *found);
typedef ptrdiff_t om_joined_fn(const om_window *found, ptrdiff_t windows, int way, double spacing, double *acc);
typedef void om_extremum_fn(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, float *acc);
typedef void om_arg_fn(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, int64_t *index);
/* out[i * stride] = (float)(acc[i] / divisor) */
typedef void om_round_fn(const double *acc, double divisor, float *out, ptrdiff_t stride, ptrdiff_t n);
/* y, count and share have one number per row or per column. */
typedef void om_ties_fn(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, const float *y, double *count);
typedef void om_quotient_fn(const float *g, const double *count, float *share, ptrdiff_t n);
typedef void om_share_fn(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, const float *y, const float *share, float *dx);

/* Softmax and its kin over the block x[r * stride + c], along each row or each column; outputs have the layout of x and may be x. */
typedef void om_softmax_fn(const float *x, float *y, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols);
typedef void om_softmax_bwd_fn(const float *y, const float *g, float *dx, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols);
/* One number per row or column: its maximum m and the logarithm of the sum of exp(x - m). */
typedef void om_softmax_stats_fn(const float *x, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols, float *m, float *log_sum);
typedef void om_logsumexp_bwd_fn(const float *x, const float *lse, const float *g, float *dx, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols);
typedef void om_cross_entropy_bwd_fn(const float *x, const float *m, const float *log_sum, const float *scale, const int64_t *target, float *dx,
                                     ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols);
/* Targets of a loss: element i = n * inner + d of the batch picks x[(n * classes + target[i]) * inner + d]; elements lo to hi - 1. */
typedef struct om_targets {
    const int64_t *target;
    const float *weight; /* one per class, or NULL for 1 */
    int64_t ignore;
    ptrdiff_t classes, inner;
} om_targets;
typedef void om_nll_pick_fn(const om_targets *t, const float *x, const float *m, const float *log_sum, float *loss, float *weight, ptrdiff_t lo, ptrdiff_t hi);
typedef void om_nll_scale_fn(const om_targets *t, const float *g, ptrdiff_t g_stride, double total, float *scale, ptrdiff_t lo, ptrdiff_t hi);
typedef void om_nll_scatter_fn(const om_targets *t, const float *scale, float *dx, ptrdiff_t lo, ptrdiff_t hi);
/* Random numbers from word `offset` of the stream of `seed` on; elements are uint32_t or float. */
typedef void om_philox_fn(uint64_t seed, uint64_t offset, void *out, ptrdiff_t n);
/* Integers in [low, low + span), two words each. */
typedef void om_philox_integers_fn(uint64_t seed, uint64_t offset, int64_t low, uint64_t span, int64_t *out, ptrdiff_t n);

#include "elementwise.h"
#include "copy.h"
#include "reduce.h"
#include "softmax.h"
#include "loss.h"
#include "optim.h"
#include "philox.h"
#include "gemm.h"
#include "conv.h"
#include "conv_weight.h"
#include "conv_winners.h"
#include "depthwise.h"
#include "pooling.h"
#include "norm.h"
#include "resize.h"
#include "ctc.h"
#include "rnn.h"
#include "attention.h"

#define OM_ROWS(ROW) OM_ELEMENTWISE(ROW) OM_COPY(ROW) OM_REDUCE(ROW) OM_SOFTMAX(ROW) OM_LOSS(ROW) OM_OPTIM(ROW) OM_PHILOX(ROW) \
    OM_CONV(ROW) OM_CONV_WEIGHT(ROW) OM_CONV_WINNERS(ROW) OM_DEPTHWISE(ROW) OM_POOLING(ROW) OM_NORM(ROW) OM_RESIZE(ROW) OM_CTC(ROW) OM_RNN(ROW) OM_ATTENTION(ROW)

typedef void (*om_fn)(void); /* any row; cast back to its class before the call */

#define OM_ENUM_ROW(class, name, doc) OM_ROW_##name,
enum om_row { OM_ROWS(OM_ENUM_ROW) OM_ROW_COUNT };

typedef struct om_table {
    const char *isa, *mode;
    om_gemm gemm;
    om_fn row[OM_ROW_COUNT];
} om_table;

/* one per row, the same for every variant */
typedef struct om_row_info {
    const char *signature, *name, *doc;
} om_row_info;
extern const om_row_info om_row_infos[OM_ROW_COUNT];

/* Tables compiled into this build, best instruction set last; ends with NULL. Each set has its fast table, then its exact one. */
extern const om_table *const om_tables[];

#endif
