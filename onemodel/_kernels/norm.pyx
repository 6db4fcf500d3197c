"""Owns the walk of normalisation over images, channels, rows and groups, and its cut into pieces; the loops are in norm.h and norm_rows.h.

No statistic is ever split: pieces are whole channels, rows or groups, so that threads change no bit.
"""
from libc.math cimport sqrt
from libc.string cimport memset

from onemodel._kernels.pieces cimport begin, cut, run
from onemodel._kernels.table cimport om_fp_enter, om_fp_leave, om_round_fn, om_sum_fn, om_table, row_index, table_of, thread_count, uint64_t
from onemodel._pool.pool cimport give, take

cdef extern from "norm.h" nogil:
    ctypedef struct om_norm:
        const float *mean
        const float *rstd
        const float *gamma
        const float *beta
    ctypedef struct om_layer_norm:
        const float *gamma
        const float *beta
        double eps
        int centred
    ctypedef void om_norm_squares_fn(const float *x, Py_ssize_t stride, Py_ssize_t rows, Py_ssize_t cols, const float *mean, double *acc) noexcept nogil
    ctypedef void om_norm_finish_fn(double *sum, double *squares, const float *mean, double n, double eps, float *rstd, Py_ssize_t count) noexcept nogil
    ctypedef void om_norm_rstd_fn(const float *variance, Py_ssize_t stride, double eps, float *rstd, Py_ssize_t n) noexcept nogil
    ctypedef void om_norm_running_fn(const double *statistic, double factor, double momentum, float *running, Py_ssize_t stride, Py_ssize_t n) noexcept nogil
    ctypedef void om_norm_apply_fn(const om_norm *s, const float *x, Py_ssize_t x_stride, Py_ssize_t rows, Py_ssize_t cols, float *y, Py_ssize_t y_stride) noexcept nogil
    ctypedef void om_norm_sums_fn(const om_norm *s, const float *x, Py_ssize_t x_stride, const float *g, Py_ssize_t g_stride, Py_ssize_t rows, Py_ssize_t cols,
                                  double *sum_g, double *sum_gx) noexcept nogil
    ctypedef void om_norm_grad_fn(const om_norm *s, const float *x, Py_ssize_t x_stride, const float *g, Py_ssize_t g_stride, Py_ssize_t rows, Py_ssize_t cols,
                                  const float *before, const float *a, const float *b, float *dx, Py_ssize_t dx_stride) noexcept nogil
    ctypedef void om_norm_scale_fn(const om_norm *s, const float *g, Py_ssize_t g_stride, Py_ssize_t rows, Py_ssize_t cols, float *dx, Py_ssize_t dx_stride) noexcept nogil
    ctypedef void om_layer_norm_fn(const om_layer_norm *p, const float *x, Py_ssize_t stride, Py_ssize_t rows, Py_ssize_t cols, float *y, float *mean, float *rstd) noexcept nogil
    ctypedef void om_layer_norm_bwd_fn(const om_layer_norm *p, const float *x, Py_ssize_t x_stride, const float *g, Py_ssize_t g_stride, Py_ssize_t rows,
                                       Py_ssize_t cols, const float *mean, const float *rstd, float *dx, double *dgamma, double *dbeta) noexcept nogil
    ctypedef void om_norm_groups_fn(const double *sum_g, const double *sum_gx, const float *gamma, Py_ssize_t channels, double n, float *a, float *b,
                                    Py_ssize_t groups) noexcept nogil
    ctypedef void om_norm_spread_fn(const float *src, Py_ssize_t each, float *to, Py_ssize_t n) noexcept nogil
    ctypedef void om_norm_fold_fn(const double *src, Py_ssize_t stride, Py_ssize_t rows, Py_ssize_t cols, float *to) noexcept nogil
    ctypedef void om_moments_fn(const float *x, Py_ssize_t stride, Py_ssize_t rows, Py_ssize_t cols, double *mean, double *squares) noexcept nogil
    ctypedef void om_moments_bwd_fn(const float *x, Py_ssize_t stride, Py_ssize_t rows, Py_ssize_t cols, const double *mean, const double *scale, float *dx) noexcept nogil

cdef Py_ssize_t SUM_ROWS = row_index("sum", "sum_rows")
cdef Py_ssize_t SUM_COLUMNS = row_index("sum", "sum_columns")
cdef Py_ssize_t ROUND_SUMS = row_index("round", "round_sums")
cdef Py_ssize_t SQUARES_ROWS = row_index("norm_squares", "norm_squares_rows")
cdef Py_ssize_t SQUARES_COLUMNS = row_index("norm_squares", "norm_squares_columns")
cdef Py_ssize_t FINISH = row_index("norm_finish", "norm_finish")
cdef Py_ssize_t RSTD = row_index("norm_rstd", "norm_rstd")
cdef Py_ssize_t RUNNING = row_index("norm_running", "norm_running")
cdef Py_ssize_t APPLY_ROWS = row_index("norm_apply", "norm_apply_rows")
cdef Py_ssize_t APPLY_COLUMNS = row_index("norm_apply", "norm_apply_columns")
cdef Py_ssize_t SUMS_ROWS = row_index("norm_sums", "norm_sums_rows")
cdef Py_ssize_t SUMS_COLUMNS = row_index("norm_sums", "norm_sums_columns")
cdef Py_ssize_t GRAD_ROWS = row_index("norm_grad", "norm_grad_rows")
cdef Py_ssize_t GRAD_COLUMNS = row_index("norm_grad", "norm_grad_columns")
cdef Py_ssize_t SCALE_ROWS = row_index("norm_scale", "norm_scale_rows")
cdef Py_ssize_t SCALE_COLUMNS = row_index("norm_scale", "norm_scale_columns")
cdef Py_ssize_t LAYER_NORM = row_index("layer_norm", "layer_norm")
cdef Py_ssize_t LAYER_NORM_BWD = row_index("layer_norm_bwd", "layer_norm_bwd")
cdef Py_ssize_t GROUPS = row_index("norm_groups", "norm_groups")
cdef Py_ssize_t SPREAD = row_index("norm_spread", "norm_spread")
cdef Py_ssize_t FOLD = row_index("norm_fold", "norm_fold")
cdef Py_ssize_t MOMENTS_ROWS = row_index("moments", "moments_rows")
cdef Py_ssize_t MOMENTS_COLUMNS = row_index("moments", "moments_columns")
cdef Py_ssize_t MOMENTS_BWD_ROWS = row_index("moments_bwd", "moments_bwd_rows")
cdef Py_ssize_t MOMENTS_BWD_COLUMNS = row_index("moments_bwd", "moments_bwd_columns")

cdef enum:
    SIDE = 8        # rows whose chains run beside each other, twice as many where that leaves no thread without work
    PASSES = 4      # what an element takes, in element-wise operations
    COLUMNS = 64    # most columns at once: their running sums stay in the first cache
    NEAR = 16384    # elements that may be gone over several times and still lie in the second cache


# Elements that are gone over several times make more pieces where there are few, so that threads share small layers too.
cdef inline Py_ssize_t cut_passes(Py_ssize_t elements, Py_ssize_t most) noexcept nogil:
    cdef Py_ssize_t pieces = cut(PASSES * elements, most if most < PASSES else PASSES)
    return pieces if pieces < PASSES or cut(elements, most) < PASSES else cut(elements, most)


# ---- batch norm: pieces are channels ----

cdef struct Batch:
    const om_table *table
    om_norm s
    Py_ssize_t n, c, p, image, channel, g_image, g_channel, block, units, pieces
    const float *x
    const float *g
    double eps
    bint columns, statistics, sums
    double *moments
    float *mean
    float *rstd
    float *y
    float *dgamma
    float *dbeta


# Blocks of channels: rows of positions, or columns where a channel has one position per image.
cdef void plan(Batch *job, int mode, Py_ssize_t n, Py_ssize_t c, Py_ssize_t p, const float *x, Py_ssize_t image, Py_ssize_t channel,
               const float *gamma, const float *beta) noexcept nogil:
    memset(job, 0, sizeof(Batch))
    job.table, job.n, job.c, job.p, job.x, job.image, job.channel = table_of(mode), n, c, p, x, image, channel
    job.s.gamma, job.s.beta = gamma, beta
    job.block = 2 * SIDE if c >= 2 * SIDE * thread_count() else SIDE
    job.columns = p == 1 and channel == 1
    if job.columns:
        job.block = COLUMNS
        while job.block > SIDE and (c + job.block - 1) // job.block < 4:
            job.block //= 2
    job.units = (c + job.block - 1) // job.block
    job.pieces = cut_passes(n * c * p, job.units)


cdef inline om_norm shifted(const om_norm *s, Py_ssize_t by) noexcept nogil:
    cdef om_norm t = s[0]
    if t.mean != NULL:
        t.mean += by
    if t.rstd != NULL:
        t.rstd += by
    if t.gamma != NULL:
        t.gamma += by
    if t.beta != NULL:
        t.beta += by
    return t


cdef void forward_piece(void *context, Py_ssize_t piece) noexcept nogil:
    cdef Batch *job = <Batch *> context
    cdef om_norm s
    cdef Py_ssize_t unit, first, count, i
    cdef bint columns = job.columns
    cdef double *sums
    cdef double *squares
    cdef const float *x
    cdef om_sum_fn *add = <om_sum_fn *> job.table.row[SUM_COLUMNS if columns else SUM_ROWS]
    cdef om_norm_squares_fn *square = <om_norm_squares_fn *> job.table.row[SQUARES_COLUMNS if columns else SQUARES_ROWS]
    cdef om_norm_apply_fn *apply = <om_norm_apply_fn *> job.table.row[APPLY_COLUMNS if columns else APPLY_ROWS]
    for unit in range(begin(job.units, job.pieces, piece), begin(job.units, job.pieces, piece + 1)):
        first = unit * job.block
        count = job.block if job.block < job.c - first else job.c - first
        x = job.x + first * job.channel
        s = shifted(&job.s, first)
        if job.moments != NULL:
            sums, squares = job.moments + first, job.moments + job.c + first
            memset(sums, 0, count * sizeof(double))
            memset(squares, 0, count * sizeof(double))
            if columns:
                add(x, job.image, job.n, count, sums)
            else:
                for i in range(job.n):
                    add(x + i * job.image, job.channel, count, job.p, sums)
            (<om_round_fn *> job.table.row[ROUND_SUMS])(sums, <double> job.n * <double> job.p, job.mean + first, 1, count)
            if columns:
                square(x, job.image, job.n, count, s.mean, squares)
            else:
                for i in range(job.n):
                    square(x + i * job.image, job.channel, count, job.p, s.mean, squares)
            (<om_norm_finish_fn *> job.table.row[FINISH])(sums, squares, s.mean, <double> job.n * <double> job.p, job.eps, job.rstd + first, count)
        if columns:
            apply(&s, x, job.image, job.n, count, job.y + first, job.c)
        else:
            for i in range(job.n):
                apply(&s, x + i * job.image, job.channel, count, job.p, job.y + (i * job.c + first) * job.p, job.p)


cdef int batch_norm(int mode, Py_ssize_t n, Py_ssize_t c, Py_ssize_t p, const float *x, Py_ssize_t image, Py_ssize_t channel, const float *gamma,
                    const float *beta, double eps, float *y, float *mean, float *rstd, double *moments) noexcept nogil:
    cdef Batch job
    plan(&job, mode, n, c, p, x, image, channel, gamma, beta)
    job.s.mean, job.s.rstd, job.mean, job.rstd, job.moments, job.eps, job.y = mean, rstd, mean, rstd, moments, eps, y
    run(forward_piece, &job, job.pieces)
    return 0


cdef int batch_norm_apply(int mode, Py_ssize_t n, Py_ssize_t c, Py_ssize_t p, const float *x, Py_ssize_t image, Py_ssize_t channel,
                          const float *gamma, const float *beta, const float *mean, const float *rstd, float *y) noexcept nogil:
    cdef Batch job
    plan(&job, mode, n, c, p, x, image, channel, gamma, beta)
    job.s.mean, job.s.rstd, job.y = mean, rstd, y
    run(forward_piece, &job, job.pieces)
    return 0


cdef void backward_piece(void *context, Py_ssize_t piece) noexcept nogil:
    cdef Batch *job = <Batch *> context
    cdef om_norm s
    cdef Py_ssize_t unit, first, count, i, at
    cdef bint columns = job.columns
    cdef double sum_g[COLUMNS]
    cdef double sum_gx[COLUMNS]
    cdef float a[COLUMNS]
    cdef float b[COLUMNS]
    cdef const float *x
    cdef const float *g
    cdef om_norm_sums_fn *add = <om_norm_sums_fn *> job.table.row[SUMS_COLUMNS if columns else SUMS_ROWS]
    cdef om_norm_grad_fn *grad = <om_norm_grad_fn *> job.table.row[GRAD_COLUMNS if columns else GRAD_ROWS]
    cdef om_norm_scale_fn *scale = <om_norm_scale_fn *> job.table.row[SCALE_COLUMNS if columns else SCALE_ROWS]
    cdef om_round_fn *rounded = <om_round_fn *> job.table.row[ROUND_SUMS]
    for unit in range(begin(job.units, job.pieces, piece), begin(job.units, job.pieces, piece + 1)):
        first = unit * job.block
        count = job.block if job.block < job.c - first else job.c - first
        x, g = job.x + first * job.channel, job.g + first * job.g_channel
        s = shifted(&job.s, first)
        if job.sums:
            memset(sum_g, 0, count * sizeof(double))
            memset(sum_gx, 0, count * sizeof(double))
            if columns:
                add(&s, x, job.image, g, job.g_image, job.n, count, sum_g, sum_gx)
            else:
                for i in range(job.n):
                    add(&s, x + i * job.image, job.channel, g + i * job.g_image, job.g_channel, count, job.p, sum_g, sum_gx)
            rounded(sum_g, <double> job.n * <double> job.p, a, 1, count)
            rounded(sum_gx, <double> job.n * <double> job.p, b, 1, count)
            if job.dbeta != NULL:
                rounded(sum_g, 1.0, job.dbeta + first, 1, count)
            if job.dgamma != NULL:
                rounded(sum_gx, 1.0, job.dgamma + first, 1, count)
        if job.y == NULL:
            continue
        if columns and job.statistics:
            grad(&s, x, job.image, g, job.g_image, job.n, count, NULL, a, b, job.y + first, job.c)
        elif columns:
            scale(&s, g, job.g_image, job.n, count, job.y + first, job.c)
        else:
            for i in range(job.n):
                at = (i * job.c + first) * job.p
                if job.statistics:
                    grad(&s, x + i * job.image, job.channel, g + i * job.g_image, job.g_channel, count, job.p, NULL, a, b, job.y + at, job.p)
                else:
                    scale(&s, g + i * job.g_image, job.g_channel, count, job.p, job.y + at, job.p)


cdef int batch_norm_bwd(int mode, Py_ssize_t n, Py_ssize_t c, Py_ssize_t p, const float *x, Py_ssize_t image, Py_ssize_t channel, const float *g,
                        Py_ssize_t g_image, Py_ssize_t g_channel, const float *gamma, const float *mean, const float *rstd, bint statistics,
                        float *dx, float *dgamma, float *dbeta) noexcept nogil:
    cdef Batch job
    plan(&job, mode, n, c, p, x, image, channel, gamma, NULL)
    job.g, job.g_image, job.g_channel, job.s.mean, job.s.rstd, job.statistics = g, g_image, g_channel, mean, rstd, statistics
    job.y, job.dgamma, job.dbeta = dx, dgamma, dbeta
    job.sums = dgamma != NULL or dbeta != NULL or (statistics and dx != NULL)
    run(backward_piece, &job, job.pieces)
    return 0


cdef void rstd_of(int mode, Py_ssize_t n, const float *variance, Py_ssize_t stride, double eps, float *rstd) noexcept nogil:
    cdef uint64_t old = om_fp_enter()
    (<om_norm_rstd_fn *> table_of(mode).row[RSTD])(variance, stride, eps, rstd, n)
    om_fp_leave(old)


cdef void update_running(int mode, Py_ssize_t n, const double *statistic, double factor, double momentum, float *running, Py_ssize_t stride) noexcept nogil:
    cdef uint64_t old = om_fp_enter()
    (<om_norm_running_fn *> table_of(mode).row[RUNNING])(statistic, factor, momentum, running, stride, n)
    om_fp_leave(old)


# ---- layer norm: pieces are rows; the sums over rows go by columns where there are threads ----

cdef struct Layer:
    const om_table *table
    om_layer_norm norm
    Py_ssize_t rows, cols, stride, g_stride, blocks, pieces
    const float *x
    const float *g
    const float *mean_in
    const float *rstd_in
    float *y
    float *mean
    float *rstd
    double *dgamma
    double *dbeta


cdef void layer_piece(void *context, Py_ssize_t piece) noexcept nogil:
    cdef Layer *job = <Layer *> context
    cdef Py_ssize_t first = begin(job.blocks, job.pieces, piece) * SIDE, end = begin(job.blocks, job.pieces, piece + 1) * SIDE
    if end > job.rows:
        end = job.rows
    (<om_layer_norm_fn *> job.table.row[LAYER_NORM])(&job.norm, job.x + first * job.stride, job.stride, end - first, job.cols, job.y + first * job.cols,
                                                     job.mean + first if job.mean != NULL else NULL, job.rstd + first if job.rstd != NULL else NULL)


cdef int layer_norm(int mode, Py_ssize_t rows, Py_ssize_t cols, const float *x, Py_ssize_t stride, const float *gamma, const float *beta, double eps,
                    bint centred, float *y, float *mean, float *rstd) noexcept nogil:
    cdef Layer job
    memset(&job, 0, sizeof(Layer))
    job.table, job.rows, job.cols, job.x, job.stride = table_of(mode), rows, cols, x, stride
    job.norm.gamma, job.norm.beta, job.norm.eps, job.norm.centred = gamma, beta, eps, centred
    job.y, job.mean, job.rstd = y, mean, rstd
    job.blocks = (rows + SIDE - 1) // SIDE
    job.pieces = cut_passes(rows * cols, job.blocks)
    run(layer_piece, &job, job.pieces)
    return 0


cdef inline void layer_bwd(Layer *job, Py_ssize_t row, Py_ssize_t rows, Py_ssize_t col, Py_ssize_t cols, float *dx, double *dgamma, double *dbeta) noexcept nogil:
    (<om_layer_norm_bwd_fn *> job.table.row[LAYER_NORM_BWD])(
        &job.norm, job.x + row * job.stride + col, job.stride, job.g + row * job.g_stride + col, job.g_stride, rows, cols,
        job.mean_in + row if job.mean_in != NULL else NULL, job.rstd_in + row, dx, dgamma, dbeta)


cdef void layer_rows_piece(void *context, Py_ssize_t piece) noexcept nogil:
    cdef Layer *job = <Layer *> context
    cdef Py_ssize_t first = begin(job.blocks, job.pieces, piece) * SIDE, end = begin(job.blocks, job.pieces, piece + 1) * SIDE
    if end > job.rows:
        end = job.rows
    layer_bwd(job, first, end - first, 0, job.cols, job.y + first * job.cols, NULL, NULL)


cdef void layer_columns_piece(void *context, Py_ssize_t piece) noexcept nogil:
    cdef Layer *job = <Layer *> context
    cdef Py_ssize_t first = begin(job.blocks, job.pieces, piece) * COLUMNS, end = begin(job.blocks, job.pieces, piece + 1) * COLUMNS
    if end > job.cols:
        end = job.cols
    layer_bwd(job, 0, job.rows, first, end - first, NULL, job.dgamma + first, job.dbeta + first)


cdef int layer_norm_bwd(int mode, Py_ssize_t rows, Py_ssize_t cols, const float *x, Py_ssize_t stride, const float *g, Py_ssize_t g_stride,
                        const float *gamma, bint centred, const float *mean, const float *rstd, float *dx, float *dgamma, float *dbeta) noexcept nogil:
    cdef Layer job
    cdef Py_ssize_t pieces
    cdef uint64_t old
    memset(&job, 0, sizeof(Layer))
    job.table, job.rows, job.cols, job.x, job.stride, job.g, job.g_stride = table_of(mode), rows, cols, x, stride, g, g_stride
    job.norm.gamma, job.norm.centred, job.mean_in, job.rstd_in, job.y = gamma, centred, mean, rstd, dx
    if dgamma != NULL or dbeta != NULL:
        job.dgamma = <double *> take(2 * cols * sizeof(double))
        if job.dgamma == NULL:
            return -1
        job.dbeta = job.dgamma + cols
        memset(job.dgamma, 0, 2 * cols * sizeof(double))
    job.blocks = (rows + SIDE - 1) // SIDE
    job.pieces = cut_passes(rows * cols, job.blocks)
    if job.pieces == 1 or thread_count() == 1:  # one pass for all three gradients; the bits are the same
        old = om_fp_enter()
        layer_bwd(&job, 0, rows, 0, cols, dx, job.dgamma, job.dbeta)
        om_fp_leave(old)
    else:
        if dx != NULL:
            run(layer_rows_piece, &job, job.pieces)
        if job.dgamma != NULL:
            job.blocks = (cols + COLUMNS - 1) // COLUMNS
            job.pieces = cut_passes(rows * cols, job.blocks)
            run(layer_columns_piece, &job, job.pieces)
    if dgamma != NULL:
        (<om_round_fn *> job.table.row[ROUND_SUMS])(job.dgamma, 1.0, dgamma, 1, cols)
    if dbeta != NULL:
        (<om_round_fn *> job.table.row[ROUND_SUMS])(job.dbeta, 1.0, dbeta, 1, cols)
    give(job.dgamma)
    return 0


# ---- group norm: pieces are groups of images; a group is one row, its channels are rows of positions ----

cdef struct Group:
    const om_table *table
    const float *gamma
    const float *beta
    Py_ssize_t n, c, p, groups, each, block, units, pieces
    const float *x
    const float *g
    double eps
    float *y
    float *mean
    float *rstd
    float *spread           # of every image's channels: mean, rstd, a, b
    double *sums            # of every image's channels: g, g x^


cdef void group_piece(void *context, Py_ssize_t piece) noexcept nogil:
    cdef Group *job = <Group *> context
    cdef om_norm s
    cdef Py_ssize_t unit, first, count, k, channel, size = job.each * job.p, total = job.n * job.groups
    cdef double sums[2 * SIDE]
    cdef double squares[2 * SIDE]
    cdef float *mean
    cdef float *rstd
    for unit in range(begin(job.units, job.pieces, piece), begin(job.units, job.pieces, piece + 1)):
        first = unit * job.block
        count = job.block if job.block < total - first else total - first
        memset(sums, 0, sizeof(sums))
        memset(squares, 0, sizeof(squares))
        (<om_sum_fn *> job.table.row[SUM_ROWS])(job.x + first * size, size, count, size, sums)
        (<om_round_fn *> job.table.row[ROUND_SUMS])(sums, <double> size, job.mean + first, 1, count)
        (<om_norm_squares_fn *> job.table.row[SQUARES_ROWS])(job.x + first * size, size, count, size, job.mean + first, squares)
        (<om_norm_finish_fn *> job.table.row[FINISH])(sums, squares, job.mean + first, <double> size, job.eps, job.rstd + first, count)
        mean, rstd = job.spread + first * job.each, job.spread + (total + first) * job.each
        (<om_norm_spread_fn *> job.table.row[SPREAD])(job.mean + first, job.each, mean, count)
        (<om_norm_spread_fn *> job.table.row[SPREAD])(job.rstd + first, job.each, rstd, count)
        for k in range(count):
            channel = (first + k) % job.groups * job.each
            s.mean, s.rstd = mean + k * job.each, rstd + k * job.each
            s.gamma = NULL if job.gamma == NULL else job.gamma + channel
            s.beta = NULL if job.beta == NULL else job.beta + channel
            (<om_norm_apply_fn *> job.table.row[APPLY_ROWS])(&s, job.x + (first + k) * size, job.p, job.each, job.p, job.y + (first + k) * size, job.p)


cdef int group_norm(int mode, Py_ssize_t n, Py_ssize_t c, Py_ssize_t p, Py_ssize_t groups, const float *x, const float *gamma, const float *beta,
                    double eps, float *y, float *mean, float *rstd) noexcept nogil:
    cdef Group job
    if c == 0:
        return 0
    memset(&job, 0, sizeof(Group))
    job.table, job.n, job.c, job.p, job.groups, job.each = table_of(mode), n, c, p, groups, c // groups
    job.x, job.gamma, job.beta, job.eps, job.y, job.mean, job.rstd = x, gamma, beta, eps, y, mean, rstd
    job.spread = <float *> take(2 * n * c * sizeof(float))
    if job.spread == NULL:
        return -1
    job.block = 2 * SIDE if 2 * SIDE * job.each * p <= NEAR else SIDE
    job.units = (n * groups + job.block - 1) // job.block
    job.pieces = cut_passes(n * c * p, job.units)
    run(group_piece, &job, job.pieces)
    give(job.spread)
    return 0


# The groups of `block` channels of one image: their sums, the means of the groups, and dx, while all of it is near.
cdef void group_bwd_piece(void *context, Py_ssize_t piece) noexcept nogil:
    cdef Group *job = <Group *> context
    cdef om_norm s
    cdef Py_ssize_t unit, image, first, count, at, total = job.n * job.c, per_image = (job.c + job.block - 1) // job.block
    cdef float *a
    cdef float *b
    cdef const float *gamma
    for unit in range(begin(job.units, job.pieces, piece), begin(job.units, job.pieces, piece + 1)):
        image, first = unit // per_image, unit % per_image * job.block
        count = job.block if job.block < job.c - first else job.c - first
        at = image * job.c + first
        a, b = job.spread + 2 * total + at, job.spread + 3 * total + at
        gamma = NULL if job.gamma == NULL else job.gamma + first
        s.mean, s.rstd, s.gamma, s.beta = job.spread + at, job.spread + total + at, NULL, NULL
        (<om_norm_spread_fn *> job.table.row[SPREAD])(job.mean + at // job.each, job.each, job.spread + at, count // job.each)
        (<om_norm_spread_fn *> job.table.row[SPREAD])(job.rstd + at // job.each, job.each, job.spread + total + at, count // job.each)
        memset(job.sums + at, 0, count * sizeof(double))
        memset(job.sums + total + at, 0, count * sizeof(double))
        (<om_norm_sums_fn *> job.table.row[SUMS_ROWS])(&s, job.x + at * job.p, job.p, job.g + at * job.p, job.p, count, job.p,
                                                       job.sums + at, job.sums + total + at)
        if job.y != NULL:
            (<om_norm_groups_fn *> job.table.row[GROUPS])(job.sums + at, job.sums + total + at, gamma, job.each, <double> job.each * <double> job.p,
                                                          a, b, count // job.each)
            (<om_norm_grad_fn *> job.table.row[GRAD_ROWS])(&s, job.x + at * job.p, job.p, job.g + at * job.p, job.p, count, job.p, gamma, a, b,
                                                           job.y + at * job.p, job.p)


cdef int group_norm_bwd(int mode, Py_ssize_t n, Py_ssize_t c, Py_ssize_t p, Py_ssize_t groups, const float *x, const float *g, const float *gamma,
                        const float *mean, const float *rstd, float *dx, float *dgamma, float *dbeta) noexcept nogil:
    cdef Group job
    cdef void *room
    if c == 0:
        return 0
    room = take(n * c * (2 * sizeof(double) + 4 * sizeof(float)))
    if room == NULL:
        return -1
    memset(&job, 0, sizeof(Group))
    job.table, job.n, job.c, job.p, job.groups, job.each = table_of(mode), n, c, p, groups, c // groups
    job.x, job.g, job.gamma, job.y, job.mean, job.rstd = x, g, gamma, dx, <float *> mean, <float *> rstd
    job.sums, job.spread = <double *> room, <float *> (<double *> room + 2 * n * c)
    job.block = job.each
    while job.block < c and (job.block < SIDE or job.block * p <= NEAR):
        job.block += job.each
    job.units = n * ((c + job.block - 1) // job.block)
    job.pieces = cut_passes(n * c * p, job.units)
    run(group_bwd_piece, &job, job.pieces)
    if dgamma != NULL:
        (<om_norm_fold_fn *> job.table.row[FOLD])(job.sums + n * c, c, n, c, dgamma)
    if dbeta != NULL:
        (<om_norm_fold_fn *> job.table.row[FOLD])(job.sums, c, n, c, dbeta)
    give(room)
    return 0


# ---- variance: pieces are groups, which are rows or columns ----

cdef struct Spread:
    const om_table *table
    Py_ssize_t groups, n, block, blocks, pieces
    const float *x
    const float *g
    double divisor
    bint columns, root
    float *y


# Forward without g. Backward takes the moments again: they are doubles, which no tensor could keep.
cdef void spread_piece(void *context, Py_ssize_t piece) noexcept nogil:
    cdef Spread *job = <Spread *> context
    cdef double[COLUMNS] mean
    cdef double[COLUMNS] found
    cdef double root
    cdef Py_ssize_t block, first, count, i, at, stride, rows, cols
    cdef om_moments_fn *moments = <om_moments_fn *> job.table.row[MOMENTS_COLUMNS if job.columns else MOMENTS_ROWS]
    cdef om_moments_bwd_fn *back = <om_moments_bwd_fn *> job.table.row[MOMENTS_BWD_COLUMNS if job.columns else MOMENTS_BWD_ROWS]
    for block in range(begin(job.blocks, job.pieces, piece), begin(job.blocks, job.pieces, piece + 1)):
        first = block * job.block
        count = job.block if job.block < job.groups - first else job.groups - first
        at, stride, rows, cols = (first, job.groups, job.n, count) if job.columns else (first * job.n, job.n, count, job.n)
        moments(job.x + at, stride, rows, cols, mean, found)
        if job.g == NULL:
            for i in range(count):
                found[i] = sqrt(found[i] / job.divisor) if job.root else found[i] / job.divisor
            (<om_round_fn *> job.table.row[ROUND_SUMS])(found, 1.0, job.y + first, 1, count)
            continue
        for i in range(count):
            if job.root:
                root = sqrt(found[i] / job.divisor)
                # A root that is 0 has a slope without end; its gradient is 0, as torch's.
                found[i] = 0.0 if <float>root == 0 else <double>job.g[first + i] / (root * job.divisor)
            else:
                found[i] = 2.0 * <double>job.g[first + i] / job.divisor
        back(job.x + at, stride, rows, cols, mean, found, job.y + at)


cdef void spread(int mode, bint columns, Py_ssize_t groups, Py_ssize_t n, const float *x, const float *g, double divisor, bint root,
                 float *y) noexcept nogil:
    cdef Spread job
    job.table, job.columns, job.groups, job.n, job.x, job.g, job.divisor, job.root, job.y = table_of(mode), columns, groups, n, x, g, divisor, root, y
    job.block = SIDE
    if columns:
        job.block = COLUMNS
        while job.block > SIDE and (groups + job.block - 1) // job.block < 4:
            job.block //= 2
    job.blocks = (groups + job.block - 1) // job.block
    job.pieces = cut_passes(groups * n, job.blocks)
    run(spread_piece, &job, job.pieces)
