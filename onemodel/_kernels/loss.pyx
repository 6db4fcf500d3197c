"""Owns the losses on class targets and the errors of an input against a target: checks of class targets, reductions, the cut into pieces; the
loops are in loss.h."""
from libc.stdint cimport int64_t
from libc.string cimport memset

from onemodel._kernels.copy cimport array_layout
from onemodel._kernels.elementwise cimport MAX_DIMS, Operand, gather
from onemodel._kernels.pieces cimport begin, cut, run
from onemodel._kernels.reduce cimport MEAN as REDUCE_MEAN, SUM as REDUCE_SUM, reduce, sum_all, sum_made
from onemodel._kernels.softmax cimport cross_entropy_rows_bwd, softmax_stats
from onemodel._kernels.table cimport (EXACT, OM_SUM_WINDOW, om_nll_pick_fn, om_nll_scale_fn, om_nll_scatter_fn, om_round_fn, om_table,
                                      om_targets, row_index, table_of)
from onemodel._pool.pool cimport give, take

cdef Py_ssize_t PICK = row_index("nll_pick", "nll_pick")
cdef Py_ssize_t SCALE = row_index("nll_scale", "nll_scale")
cdef Py_ssize_t SCATTER = row_index("nll_scatter", "nll_scatter")
cdef Py_ssize_t ROUND_SUMS = row_index("round", "round_sums")

cdef extern from "kernels.h" nogil:
    ctypedef void om_error_fn(const float *a, const float *b, const float *w, const float *positive, float delta, float *y, Py_ssize_t n) noexcept nogil
    ctypedef void om_error_bwd_fn(const float *a, const float *b, const float *w, const float *positive, float delta, const float *s, Py_ssize_t s_step,
                                  float *da, float *db, Py_ssize_t n) noexcept nogil

cdef enum:
    BLOCK = OM_SUM_WINDOW   # elements gathered and summed at a time: what they need stays in any first-level cache

cdef Py_ssize_t[5] ERRORS
cdef Py_ssize_t[5] ERRORS_BWD
_NAMES = ("squared_error", "absolute_error", "huber_error", "smooth_l1_error", "logistic_error")
ERRORS[:] = [row_index("error", name) for name in _NAMES]
ERRORS_BWD[:] = [row_index("error_bwd", f"{name}_bwd") for name in _NAMES]


cdef Py_ssize_t first_bad_target(const int64_t *target, Py_ssize_t count, Py_ssize_t classes, int64_t ignore) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(count):
        if (target[i] < 0 or target[i] >= classes) and target[i] != ignore:
            return i
    return -1


# A loss over class targets: what a piece needs.
cdef struct Job:
    const om_table *table
    om_targets targets
    Py_ssize_t count, pieces, g_stride
    double total
    const float *x
    const float *m
    const float *log_sum
    const float *g
    float *loss
    float *weight
    float *scale
    float *dx


cdef void pick_piece(void *context, Py_ssize_t p) noexcept nogil:
    cdef Job *job = <Job *> context
    (<om_nll_pick_fn *> job.table.row[PICK])(&job.targets, job.x, job.m, job.log_sum, job.loss, job.weight,
                                             begin(job.count, job.pieces, p), begin(job.count, job.pieces, p + 1))


cdef void scale_piece(void *context, Py_ssize_t p) noexcept nogil:
    cdef Job *job = <Job *> context
    cdef Py_ssize_t lo = begin(job.count, job.pieces, p), hi = begin(job.count, job.pieces, p + 1)
    (<om_nll_scale_fn *> job.table.row[SCALE])(&job.targets, job.g, job.g_stride, job.total, job.scale, lo, hi)
    if job.dx != NULL:
        (<om_nll_scatter_fn *> job.table.row[SCATTER])(&job.targets, job.scale, job.dx, lo, hi)


# Picks and reduces; m is NULL where x already holds log-probabilities.
cdef int pick(int mode, Py_ssize_t n, Py_ssize_t classes, Py_ssize_t inner, const float *x, const float *m, const float *log_sum,
              const int64_t *target, const float *weight, int64_t ignore, int reduction, float *out, double *total_weight) noexcept nogil:
    cdef Job job
    cdef Py_ssize_t count = n * inner
    cdef float *room = <float *> take(2 * count * sizeof(float))
    cdef double total
    if room == NULL:
        return -1
    job.table, job.count, job.pieces = table_of(mode), count, cut(count, count)
    job.targets.target, job.targets.weight, job.targets.ignore, job.targets.classes, job.targets.inner = target, weight, ignore, classes, inner
    job.x, job.m, job.log_sum, job.weight, job.loss = x, m, log_sum, room, out if reduction == 0 else room + count
    if count:
        run(pick_piece, &job, job.pieces)
    total_weight[0] = sum_all(mode, 0.0, room, count)
    if reduction != 0:
        total = sum_all(mode, 0.0, job.loss, count)
        (<om_round_fn *> job.table.row[ROUND_SUMS])(&total, total_weight[0] if reduction == 1 else 1.0, out, 1, 1)
    give(room)
    return 0


# The weight of each element in the gradient, into scale; with dx, minus that at the targets too.
cdef void spread(int mode, Py_ssize_t n, Py_ssize_t classes, Py_ssize_t inner, const int64_t *target, const float *weight, int64_t ignore,
                 int reduction, double total_weight, const float *g, float *scale, float *dx) noexcept nogil:
    cdef Job job
    job.table, job.count, job.pieces = table_of(mode), n * inner, cut(n * inner, n * inner)
    job.targets.target, job.targets.weight, job.targets.ignore, job.targets.classes, job.targets.inner = target, weight, ignore, classes, inner
    job.g, job.g_stride, job.total, job.scale, job.dx = g, reduction == 0, total_weight if reduction == 1 else 1.0, scale, dx
    if job.count:
        run(scale_piece, &job, job.pieces)


cdef int nll_loss(int mode, Py_ssize_t n, Py_ssize_t classes, Py_ssize_t inner, const float *log_p, const int64_t *target, const float *weight,
                  int64_t ignore, int reduction, float *out, double *total_weight) noexcept nogil:
    return pick(mode, n, classes, inner, log_p, NULL, NULL, target, weight, ignore, reduction, out, total_weight)


cdef int nll_loss_bwd(int mode, Py_ssize_t n, Py_ssize_t classes, Py_ssize_t inner, const int64_t *target, const float *weight, int64_t ignore,
                      int reduction, double total_weight, const float *g, float *dx) noexcept nogil:
    cdef float *scale = <float *> take(n * inner * sizeof(float))
    if scale == NULL:
        return -1
    memset(dx, 0, n * classes * inner * sizeof(float))
    spread(mode, n, classes, inner, target, weight, ignore, reduction, total_weight, g, scale, dx)
    give(scale)
    return 0


cdef int cross_entropy(int mode, Py_ssize_t n, Py_ssize_t classes, Py_ssize_t inner, const float *x, const int64_t *target, const float *weight,
                       int64_t ignore, int reduction, float *out, float *m, float *log_sum, double *total_weight) noexcept nogil:
    softmax_stats(mode, n, classes, inner, x, m, log_sum)
    return pick(mode, n, classes, inner, x, m, log_sum, target, weight, ignore, reduction, out, total_weight)


cdef int cross_entropy_bwd(int mode, Py_ssize_t n, Py_ssize_t classes, Py_ssize_t inner, const float *x, const float *m, const float *log_sum,
                           const int64_t *target, const float *weight, int64_t ignore, int reduction, double total_weight, const float *g,
                           float *dx) noexcept nogil:
    cdef float *scale = <float *> take(n * inner * sizeof(float))
    if scale == NULL:
        return -1
    spread(mode, n, classes, inner, target, weight, ignore, reduction, total_weight, g, scale, NULL)
    cross_entropy_rows_bwd(mode, n, classes, inner, x, m, log_sum, scale, target, dx)
    give(scale)
    return 0


# An error over elements: what a piece needs.
cdef struct ErrorJob:
    om_error_fn *kernel
    om_error_bwd_fn *slope
    int mode, rank
    Py_ssize_t n, pieces, step
    Py_ssize_t[MAX_DIMS] dims
    Operand operands[4]
    bint[4] dense
    float delta, factor
    const float *g
    float *out          # each error, or NULL where sums are wanted
    float *da
    float *db
    double[64] sums     # of the pieces


cdef const float *block_of(const ErrorJob *job, int i, Py_ssize_t start, Py_ssize_t n, float *buffer) noexcept nogil:
    """Elements [start, start + n) of an operand, where they lie or gathered; NULL where there is none."""
    if job.operands[i].data == NULL:
        return NULL
    if job.dense[i]:
        return <const float *> job.operands[i].data + start
    gather(&job.operands[i], job.rank, job.dims, start, n, <char *> buffer, sizeof(float))
    return buffer


cdef const float *errors_of(void *context, Py_ssize_t at, Py_ssize_t n, float *errors) noexcept nogil:
    cdef ErrorJob *job = <ErrorJob *> context
    cdef float[4][BLOCK] buffers
    cdef const float *x[4]
    cdef int i
    for i in range(4):
        x[i] = block_of(job, i, at, n, buffers[i])
    job.kernel(x[0], x[1], x[2], x[3], job.delta, errors, n)
    return errors


cdef void error_piece(void *context, Py_ssize_t p) noexcept nogil:
    cdef ErrorJob *job = <ErrorJob *> context
    cdef float[BLOCK] errors
    cdef double total = 0.0
    cdef Py_ssize_t at = begin(job.n, job.pieces, p), end = begin(job.n, job.pieces, p + 1), n
    while at < end:
        n = BLOCK if end - at > BLOCK else end - at
        if job.out == NULL:
            total = sum_all(job.mode, total, errors_of(job, at, n, errors), n)
        else:
            errors_of(job, at, n, job.out + at)
        at += n
    job.sums[p] = total


cdef void error_bwd_piece(void *context, Py_ssize_t p) noexcept nogil:
    cdef ErrorJob *job = <ErrorJob *> context
    cdef float[4][BLOCK] buffers
    cdef const float *x[4]
    cdef Py_ssize_t at = begin(job.n, job.pieces, p), end = begin(job.n, job.pieces, p + 1), n
    cdef int i
    while at < end:
        n = BLOCK if end - at > BLOCK else end - at
        for i in range(4):
            x[i] = block_of(job, i, at, n, buffers[i])
        job.slope(x[0], x[1], x[2], x[3], job.delta, job.g + at if job.step else &job.factor, job.step, NULL if job.da == NULL else job.da + at,
                  NULL if job.db == NULL else job.db + at, n)
        at += n


cdef void error_job(ErrorJob *job, int mode, int kind, int rank, const Py_ssize_t *dims, const Operand *operands, float delta) noexcept nogil:
    cdef int i, d
    cdef Py_ssize_t expected
    job.kernel, job.slope = <om_error_fn *> table_of(mode).row[ERRORS[kind]], <om_error_bwd_fn *> table_of(mode).row[ERRORS_BWD[kind]]
    job.mode, job.rank, job.delta, job.n = mode, rank, delta, 1
    for d in range(rank):
        job.dims[d] = dims[d]
        job.n *= dims[d]
    for i in range(4):
        job.operands[i] = operands[i]
        job.dense[i], expected = True, 1
        for d in range(rank - 1, -1, -1):
            if dims[d] != 1 and operands[i].steps[d] != expected:
                job.dense[i] = False
            expected *= dims[d]
    job.pieces = cut(job.n, job.n)


cdef int error_loss(int mode, int kind, int rank, const Py_ssize_t *dims, const Operand *operands, float delta, int reduction, float *out) noexcept nogil:
    cdef ErrorJob job
    cdef Py_ssize_t step = 1, p
    cdef double total = 0.0
    error_job(&job, mode, kind, rank, dims, operands, delta)
    job.out = out if reduction == NONE else NULL
    if job.n == 0:
        return 0 if reduction == NONE else reduce(mode, REDUCE_MEAN if reduction == MEAN else REDUCE_SUM, 1, &job.n, &step, NULL, 1, out)
    if reduction != NONE and mode == EXACT and job.pieces > 1:
        total = sum_made(errors_of, &job, job.n)
    else:
        run(error_piece, &job, job.pieces)
        for p in range(job.pieces if reduction != NONE else 0):
            total += job.sums[p]
    if reduction != NONE:
        (<om_round_fn *> table_of(mode).row[ROUND_SUMS])(&total, <double> job.n if reduction == MEAN else 1.0, out, 1, 1)
    return 0


cdef void error_loss_bwd(int mode, int kind, int rank, const Py_ssize_t *dims, const Operand *operands, float delta, int reduction, const float *g,
                         float *da, float *db) noexcept nogil:
    cdef ErrorJob job
    error_job(&job, mode, kind, rank, dims, operands, delta)
    if job.n == 0:
        return
    job.g, job.da, job.db, job.step = g, da, db, reduction == NONE
    if reduction != NONE:
        job.factor = <float> (g[0] / (<double> job.n if reduction == MEAN else 1.0))
    run(error_bwd_piece, &job, job.pieces)


cdef int reduction_code(str name) except -1:
    return ["none", "mean", "sum"].index(name)


def _array_first_bad_target(target, Py_ssize_t classes, int64_t ignore):
    """Index of the first target out of range, or -1."""
    cdef Py_ssize_t shape[64]
    cdef Py_ssize_t strides[64]
    cdef void *pt
    array_layout(target, "i8", shape, strides, &pt)
    return first_bad_target(<const int64_t *> pt, target.size, classes, ignore)


def _array_class_loss(int mode, bint from_logits, x, target, weight, int64_t ignore, str reduction, out, g, dx):
    """out = nll_loss, or cross_entropy of logits, of a contiguous (n, classes, inner); then dx for the upstream g."""
    cdef Py_ssize_t shape[64]
    cdef Py_ssize_t strides[64]
    cdef void *px
    cdef void *pt
    cdef void *pw = NULL
    cdef void *po
    cdef void *pg
    cdef void *pd
    cdef double total
    cdef int code = reduction_code(reduction), status
    cdef float *stats
    array_layout(target, "i8", shape, strides, &pt)
    if weight is not None:
        array_layout(weight, "f4", shape, strides, &pw)
    array_layout(out, "f4", shape, strides, &po)
    array_layout(g, "f4", shape, strides, &pg)
    array_layout(dx, "f4", shape, strides, &pd)
    array_layout(x, "f4", shape, strides, &px)
    with nogil:
        if from_logits:
            stats = <float *> take(2 * shape[0] * shape[2] * sizeof(float))
            status = cross_entropy(mode, shape[0], shape[1], shape[2], <const float *> px, <const int64_t *> pt, <const float *> pw, ignore, code,
                                   <float *> po, stats, stats + shape[0] * shape[2], &total)
            status |= cross_entropy_bwd(mode, shape[0], shape[1], shape[2], <const float *> px, stats, stats + shape[0] * shape[2],
                                        <const int64_t *> pt, <const float *> pw, ignore, code, total, <const float *> pg, <float *> pd)
            give(stats)
        else:
            status = nll_loss(mode, shape[0], shape[1], shape[2], <const float *> px, <const int64_t *> pt, <const float *> pw, ignore, code,
                              <float *> po, &total)
            status |= nll_loss_bwd(mode, shape[0], shape[1], shape[2], <const int64_t *> pt, <const float *> pw, ignore, code, total,
                                   <const float *> pg, <float *> pd)
    if status < 0:
        raise MemoryError


def _array_mse_loss(int mode, a, b, str reduction, out, g, da):
    """out = the squared error of contiguous arrays; then da for the upstream g."""
    cdef Py_ssize_t shape[64]
    cdef Py_ssize_t strides[64]
    cdef void *pa
    cdef void *pb
    cdef void *po
    cdef void *pg
    cdef void *pd
    cdef Operand[4] operands
    cdef Py_ssize_t n = a.size
    cdef int code = reduction_code(reduction), status
    array_layout(a, "f4", shape, strides, &pa)
    array_layout(b, "f4", shape, strides, &pb)
    array_layout(out, "f4", shape, strides, &po)
    array_layout(g, "f4", shape, strides, &pg)
    array_layout(da, "f4", shape, strides, &pd)
    operands[0].data, operands[1].data, operands[2].data, operands[3].data = <const char *> pa, <const char *> pb, NULL, NULL
    operands[0].steps[0], operands[1].steps[0], operands[2].steps[0], operands[3].steps[0] = 1, 1, 1, 1
    with nogil:
        status = error_loss(mode, SQUARED, 1, &n, operands, 0.0, code, <float *> po)
        error_loss_bwd(mode, SQUARED, 1, &n, operands, 0.0, code, <const float *> pg, <float *> pd, NULL)
    if status < 0:
        raise MemoryError
