"""Owns softmax, log-softmax, logsumexp and their gradients along any axis: layout and the cut into pieces; the loops are in softmax.h.

A strided operand is first copied into the output, where the kernel then works in place; rows and columns of contiguous data need no copy.
"""
from libc.math cimport INFINITY
from libc.stdint cimport int64_t

from onemodel._kernels.copy cimport array_layout, contiguous_strides, is_contiguous, strided_copy
from onemodel._kernels.pieces cimport begin, cut, run
from onemodel._kernels.table cimport (om_cross_entropy_bwd_fn, om_fn, om_logsumexp_bwd_fn, om_map2_fn, om_softmax_bwd_fn, om_softmax_fn,
                                      om_softmax_stats_fn, row_index, table_of)
from onemodel._pool.pool cimport give, take

# What a job does: each pair is the row for rows and the one for columns.
cdef enum Kind:
    FORWARD
    BACKWARD
    STATS
    LOGSUMEXP_BWD
    CROSS_ENTROPY_BWD

cdef Py_ssize_t SOFTMAX[2][2]
SOFTMAX[0][:] = [row_index("softmax", "softmax_rows"), row_index("softmax", "softmax_columns")]
SOFTMAX[1][:] = [row_index("softmax", "log_softmax_rows"), row_index("softmax", "log_softmax_columns")]
cdef Py_ssize_t SOFTMAX_BWD[2][2]
SOFTMAX_BWD[0][:] = [row_index("softmax_bwd", "softmax_bwd_rows"), row_index("softmax_bwd", "softmax_bwd_columns")]
SOFTMAX_BWD[1][:] = [row_index("softmax_bwd", "log_softmax_bwd_rows"), row_index("softmax_bwd", "log_softmax_bwd_columns")]
cdef Py_ssize_t STATS_ROW[2]
STATS_ROW[:] = [row_index("softmax_stats", "softmax_stats_rows"), row_index("softmax_stats", "softmax_stats_columns")]
cdef Py_ssize_t LOGSUMEXP_BWD_ROW[2]
LOGSUMEXP_BWD_ROW[:] = [row_index("logsumexp_bwd", "logsumexp_bwd_rows"), row_index("logsumexp_bwd", "logsumexp_bwd_columns")]
cdef Py_ssize_t CROSS_ENTROPY_BWD_ROW[2]
CROSS_ENTROPY_BWD_ROW[:] = [row_index("cross_entropy_bwd", "cross_entropy_bwd_rows"), row_index("cross_entropy_bwd", "cross_entropy_bwd_columns")]
cdef Py_ssize_t LOGSUMEXP_JOIN = row_index("map2", "logsumexp_join")

cdef enum:
    ROWS_TOGETHER = 8       # the kernels add up this many rows side by side
    COLUMNS_TOGETHER = 64

cdef struct Job:
    int kind
    om_fn kernel
    Py_ssize_t outer, n, inner, blocks, units, pieces
    const float *x           # x or y
    const float *g           # of x's layout, but one per row for LOGSUMEXP_BWD
    float *y                 # y or dx
    float *m
    float *log_sum
    const float *saved_m
    const float *saved_log_sum
    const float *scale
    const int64_t *target


# One block: where it starts in data of x's layout, and in data with one number per row or column.
cdef void block(Job *job, Py_ssize_t at, Py_ssize_t row, Py_ssize_t stride, Py_ssize_t rows, Py_ssize_t cols) noexcept nogil:
    if job.kind == FORWARD:
        (<om_softmax_fn *> job.kernel)(job.x + at, job.y + at, stride, rows, cols)
    elif job.kind == BACKWARD:
        (<om_softmax_bwd_fn *> job.kernel)(job.x + at, job.g + at, job.y + at, stride, rows, cols)
    elif job.kind == STATS:
        (<om_softmax_stats_fn *> job.kernel)(job.x + at, stride, rows, cols, job.m + row, job.log_sum + row)
    elif job.kind == LOGSUMEXP_BWD:
        (<om_logsumexp_bwd_fn *> job.kernel)(job.x + at, job.saved_m + row, job.g + row, job.y + at, stride, rows, cols)
    else:
        (<om_cross_entropy_bwd_fn *> job.kernel)(job.x + at, job.saved_m + row, job.saved_log_sum + row, job.scale + row, job.target + row,
                                                 job.y + at, stride, rows, cols)


cdef void piece(void *context, Py_ssize_t p) noexcept nogil:
    cdef Job *job = <Job *> context
    cdef Py_ssize_t lo = begin(job.units, job.pieces, p), hi = begin(job.units, job.pieces, p + 1), unit, outer, first, count
    if job.inner == 1:
        lo *= ROWS_TOGETHER
        hi = hi * ROWS_TOGETHER if hi * ROWS_TOGETHER < job.outer else job.outer
        block(job, lo * job.n, lo, job.n, hi - lo, job.n)
        return
    for unit in range(lo, hi):
        outer, first = unit // job.blocks, unit % job.blocks * COLUMNS_TOGETHER
        count = COLUMNS_TOGETHER if COLUMNS_TOGETHER < job.inner - first else job.inner - first
        block(job, outer * job.n * job.inner + first, outer * job.inner + first, job.inner, job.n, count)


cdef void start(Job *job, int mode, const Py_ssize_t *rows) noexcept nogil:
    cdef Py_ssize_t total = job.outer * job.n * job.inner
    if total == 0:
        return
    job.kernel = table_of(mode).row[rows[job.inner != 1]]
    job.blocks = (job.inner + COLUMNS_TOGETHER - 1) // COLUMNS_TOGETHER
    job.units = (job.outer + ROWS_TOGETHER - 1) // ROWS_TOGETHER if job.inner == 1 else job.outer * job.blocks
    job.pieces = cut(total, job.units)
    run(piece, job, job.pieces)


cdef void split(Job *job, int ndim, const Py_ssize_t *shape, int axis) noexcept nogil:
    cdef int i
    job.outer = job.n = job.inner = 1
    for i in range(ndim):
        if i < axis:
            job.outer *= shape[i]
        elif i == axis:
            job.n = shape[i]
        else:
            job.inner *= shape[i]


# x itself if it is contiguous, else its copy in `room`.
cdef const float *dense(int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides, const float *x, float *room) noexcept nogil:
    cdef Py_ssize_t packed[64]
    if is_contiguous(ndim, shape, strides):
        return x
    contiguous_strides(ndim, shape, packed)
    strided_copy(ndim, shape, 4, x, strides, room, packed)
    return room


cdef int softmax(int mode, bint logarithm, int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides, const float *x, int axis, float *y) noexcept nogil:
    cdef Job job
    split(&job, ndim, shape, axis)
    job.kind, job.x, job.y = FORWARD, dense(ndim, shape, strides, x, y), y
    start(&job, mode, SOFTMAX[logarithm])
    return 0


cdef int softmax_bwd(int mode, bint logarithm, int ndim, const Py_ssize_t *shape, const float *y, const Py_ssize_t *g_strides, const float *g, int axis,
                     float *dx) noexcept nogil:
    cdef Job job
    split(&job, ndim, shape, axis)
    job.kind, job.x, job.g, job.y = BACKWARD, y, dense(ndim, shape, g_strides, g, dx), dx
    start(&job, mode, SOFTMAX_BWD[logarithm])
    return 0


cdef int softmax_stats(int mode, Py_ssize_t outer, Py_ssize_t n, Py_ssize_t inner, const float *x, float *m, float *log_sum) noexcept nogil:
    cdef Job job
    job.kind, job.outer, job.n, job.inner, job.x, job.m, job.log_sum = STATS, outer, n, inner, x, m, log_sum
    start(&job, mode, STATS_ROW)
    return 0


cdef int logsumexp(int mode, int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides, const float *x, int axis, float *out) noexcept nogil:
    cdef Job job
    cdef float *log_sum
    cdef float *room = NULL
    cdef Py_ssize_t i, outputs
    split(&job, ndim, shape, axis)
    outputs = job.outer * job.inner
    if outputs == 0:
        return 0
    if job.n == 0:
        for i in range(outputs):
            out[i] = -INFINITY
        return 0
    log_sum = <float *> take(outputs * sizeof(float))
    if log_sum == NULL:
        return -1
    if not is_contiguous(ndim, shape, strides):
        room = <float *> take(outputs * job.n * sizeof(float))
        if room == NULL:
            give(log_sum)
            return -1
        x = dense(ndim, shape, strides, x, room)
    softmax_stats(mode, job.outer, job.n, job.inner, x, out, log_sum)
    (<om_map2_fn *> table_of(mode).row[LOGSUMEXP_JOIN])(out, log_sum, out, outputs)
    give(log_sum)
    give(room)
    return 0


cdef int logsumexp_bwd(int mode, int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides, const float *x, int axis, const float *lse, const float *g,
                       float *dx) noexcept nogil:
    cdef Job job
    split(&job, ndim, shape, axis)
    job.kind, job.x, job.g, job.y, job.saved_m = LOGSUMEXP_BWD, dense(ndim, shape, strides, x, dx), g, dx, lse
    start(&job, mode, LOGSUMEXP_BWD_ROW)
    return 0


cdef int cross_entropy_rows_bwd(int mode, Py_ssize_t outer, Py_ssize_t n, Py_ssize_t inner, const float *x, const float *m, const float *log_sum,
                                const float *scale, const int64_t *target, float *dx) noexcept nogil:
    cdef Job job
    job.kind, job.outer, job.n, job.inner, job.x, job.y = CROSS_ENTROPY_BWD, outer, n, inner, x, dx
    job.saved_m, job.saved_log_sum, job.scale, job.target = m, log_sum, scale, target
    start(&job, mode, CROSS_ENTROPY_BWD_ROW)
    return 0


def _array_softmax(int mode, bint logarithm, x, int axis, y):
    """y = softmax of x along the axis, or its logarithm."""
    cdef Py_ssize_t shape[64]
    cdef Py_ssize_t strides[64]
    cdef void *px
    cdef void *py
    cdef int ndim
    array_layout(y, "f4", shape, strides, &py)
    ndim = array_layout(x, "f4", shape, strides, &px)
    with nogil:
        softmax(mode, logarithm, ndim, shape, strides, <const float *> px, axis, <float *> py)


def _array_softmax_bwd(int mode, bint logarithm, y, g, int axis, dx):
    """dx = the gradient of softmax, or of its logarithm, whose output is y."""
    cdef Py_ssize_t shape[64]
    cdef Py_ssize_t strides[64]
    cdef void *py
    cdef void *pg
    cdef void *pd
    cdef int ndim
    array_layout(y, "f4", shape, strides, &py)
    array_layout(dx, "f4", shape, strides, &pd)
    ndim = array_layout(g, "f4", shape, strides, &pg)
    with nogil:
        softmax_bwd(mode, logarithm, ndim, shape, <const float *> py, strides, <const float *> pg, axis, <float *> pd)


def _array_logsumexp(int mode, x, int axis, out):
    """out = log of the sum of exp(x) along the axis."""
    cdef Py_ssize_t shape[64]
    cdef Py_ssize_t strides[64]
    cdef void *px
    cdef void *po
    cdef int ndim, status
    array_layout(out, "f4", shape, strides, &po)
    ndim = array_layout(x, "f4", shape, strides, &px)
    with nogil:
        status = logsumexp(mode, ndim, shape, strides, <const float *> px, axis, <float *> po)
    if status < 0:
        raise MemoryError


def _array_logsumexp_bwd(int mode, x, int axis, lse, g, dx):
    """dx = g exp(x - lse)."""
    cdef Py_ssize_t shape[64]
    cdef Py_ssize_t strides[64]
    cdef void *px
    cdef void *pl
    cdef void *pg
    cdef void *pd
    cdef int ndim
    array_layout(lse, "f4", shape, strides, &pl)
    array_layout(g, "f4", shape, strides, &pg)
    array_layout(dx, "f4", shape, strides, &pd)
    ndim = array_layout(x, "f4", shape, strides, &px)
    with nogil:
        logsumexp_bwd(mode, ndim, shape, strides, <const float *> px, axis, <const float *> pl, <const float *> pg, <float *> pd)
