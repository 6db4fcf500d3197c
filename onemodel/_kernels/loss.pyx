"""Owns the losses on class targets and the squared error: checks of targets, reductions, the cut into pieces; the loops are in loss.h."""
from libc.stdint cimport int64_t
from libc.string cimport memset

from onemodel._kernels.copy cimport array_layout
from onemodel._kernels.pieces cimport begin, cut, run
from onemodel._kernels.reduce cimport MEAN as REDUCE_MEAN, SUM as REDUCE_SUM, reduce, sum_all
from onemodel._kernels.softmax cimport cross_entropy_rows_bwd, softmax_stats
from onemodel._kernels.table cimport (om_map2_fn, om_map3_fn, om_nll_pick_fn, om_nll_scale_fn, om_nll_scatter_fn, om_round_fn, om_scaled_fn, om_table,
                                      om_targets, row_index, table_of)
from onemodel._pool.pool cimport give, take

cdef Py_ssize_t PICK = row_index("nll_pick", "nll_pick")
cdef Py_ssize_t SCALE = row_index("nll_scale", "nll_scale")
cdef Py_ssize_t SCATTER = row_index("nll_scatter", "nll_scatter")
cdef Py_ssize_t ROUND_SUMS = row_index("round", "round_sums")
cdef Py_ssize_t SQUARED = row_index("map2", "squared_difference")
cdef Py_ssize_t SQUARED_BWD = row_index("map3", "squared_difference_bwd")
cdef Py_ssize_t SCALED = row_index("scaled", "scaled_difference")


cdef Py_ssize_t first_bad_target(const int64_t *target, Py_ssize_t count, Py_ssize_t classes, int64_t ignore) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(count):
        if (target[i] < 0 or target[i] >= classes) and target[i] != ignore:
            return i
    return -1


# A loss over elements, or an element-wise map of the squared error: what a piece needs.
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
    const float *b
    float factor
    bint each


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


cdef void squared_piece(void *context, Py_ssize_t p) noexcept nogil:
    cdef Job *job = <Job *> context
    cdef Py_ssize_t lo = begin(job.count, job.pieces, p), n = begin(job.count, job.pieces, p + 1) - lo
    if job.loss != NULL:
        (<om_map2_fn *> job.table.row[SQUARED])(job.x + lo, job.b + lo, job.loss + lo, n)
    elif job.each:
        (<om_map3_fn *> job.table.row[SQUARED_BWD])(job.x + lo, job.b + lo, job.g + lo, job.dx + lo, n)
    else:
        (<om_scaled_fn *> job.table.row[SCALED])(job.x + lo, job.b + lo, job.factor, job.dx + lo, n)


cdef int mse_loss(int mode, Py_ssize_t n, const float *a, const float *b, int reduction, float *out) noexcept nogil:
    cdef Job job
    cdef Py_ssize_t step = 1
    cdef int status
    job.table, job.count, job.pieces, job.x, job.b = table_of(mode), n, cut(n, n), a, b
    job.loss = out if reduction == 0 else <float *> take(n * sizeof(float))
    if job.loss == NULL:
        return -1
    if n:
        run(squared_piece, &job, job.pieces)
    if reduction == 0:
        return 0
    status = reduce(mode, REDUCE_MEAN if reduction == 1 else REDUCE_SUM, 1, &n, &step, job.loss, 1, out)
    give(job.loss)
    return status


cdef int mse_loss_bwd(int mode, Py_ssize_t n, const float *a, const float *b, int reduction, const float *g, float *da) noexcept nogil:
    cdef Job job
    if n == 0:
        return 0
    job.table, job.count, job.pieces, job.x, job.b, job.g, job.dx, job.loss = table_of(mode), n, cut(n, n), a, b, g, da, NULL
    job.each = reduction == 0
    if reduction != 0:
        job.factor = <float> (2.0 * g[0] / (<double> n if reduction == 1 else 1.0))
    run(squared_piece, &job, job.pieces)
    return 0


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
    cdef Py_ssize_t n = a.size
    cdef int code = reduction_code(reduction), status
    array_layout(a, "f4", shape, strides, &pa)
    array_layout(b, "f4", shape, strides, &pb)
    array_layout(out, "f4", shape, strides, &po)
    array_layout(g, "f4", shape, strides, &pg)
    array_layout(da, "f4", shape, strides, &pd)
    with nogil:
        status = mse_loss(mode, n, <const float *> pa, <const float *> pb, code, <float *> po)
        status |= mse_loss_bwd(mode, n, <const float *> pa, <const float *> pb, code, <const float *> pg, <float *> pd)
    if status < 0:
        raise MemoryError
