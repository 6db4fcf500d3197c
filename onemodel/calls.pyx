"""Kernels called with tensors, for operator classes that are written in Python: shapes to pointers, nothing recorded."""

from libc.stdint cimport int64_t, uint64_t

from onemodel._kernels cimport loss as loss_kernels, softmax as softmax_kernels
from onemodel._kernels.elementwise cimport Operand
from onemodel._kernels.random cimport dropout as dropout_kernel
from onemodel._kernels.table cimport current_mode
from onemodel._pool.pool cimport pin, raise_no_memory, unpin
from onemodel.tensor cimport (FLOAT32, INT64, MAX_NDIM, Tensor, copy_into, data_of, densely, new_like, new_tensor, normal_axis,
                              read_shape)


cdef Py_ssize_t product_of(const Py_ssize_t *dims, int first, int end) noexcept:
    cdef Py_ssize_t n = 1
    cdef int i
    for i in range(first, end):
        n *= dims[i]
    return n


def present(Tensor x not None, str op):
    """x, or ScopeClosedError if its memory went back: for operators that hand their input through."""
    data_of(x, op)
    return x


cdef int check_float(Tensor x, str op) except -1:
    if x.code != FLOAT32:
        raise TypeError(f"{op}: expected float32, got {x.dtype}; write .cast(om.float32)")
    return 0


cdef int done(int status, Tensor t) except -1:
    """Raises if a kernel ran out of scratch."""
    if status < 0:
        raise_no_memory(t.count * 4)
    return 0


cdef Tensor without_axis(Tensor x, int axis):
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef int i
    for i in range(x.rank - 1):
        dims[i] = x.dims[i + (i >= axis)]
    return new_tensor(FLOAT32, max(x.rank - 1, 0), dims, True)


# ---- softmax and its kin; a 0-d tensor is a row of one ----

cdef Tensor as_row(Tensor x):
    cdef Py_ssize_t[1] one
    cdef Tensor row
    if x.rank:
        return x
    one[0] = 1
    row = new_tensor(FLOAT32, 1, one, True)
    copy_into(row, x, "softmax")
    return row


def softmax(Tensor x not None, dim, bint logarithm, str op):
    """softmax or its logarithm along one dimension."""
    check_float(x, op)
    cdef int axis = <int>normal_axis(dim, x.rank, op), mode = current_mode(), status
    cdef Tensor y = new_like(x, True), row = as_row(x)
    cdef const float *px = <const float *>data_of(row, op)
    pin(row.storage)
    pin(y.storage)
    with nogil:
        status = softmax_kernels.softmax(mode, logarithm, row.rank, row.dims, row.steps, px, axis, <float *>y.storage.data)
    unpin(y.storage)
    unpin(row.storage)
    done(status, y)
    return y


def softmax_bwd(Tensor y not None, Tensor g not None, dim, bint logarithm, str op):
    """The gradient of x from the output y."""
    cdef int axis = <int>normal_axis(dim, y.rank, op), mode = current_mode(), status
    cdef Tensor dx = new_like(y, True), row = as_row(y), g_row = as_row(g)
    cdef const float *py = <const float *>data_of(row, op)
    cdef const float *pg = <const float *>data_of(g_row, op)
    pin(row.storage)
    pin(g_row.storage)
    pin(dx.storage)
    with nogil:
        status = softmax_kernels.softmax_bwd(mode, logarithm, row.rank, row.dims, py, g_row.steps, pg, axis, <float *>dx.storage.data)
    unpin(dx.storage)
    unpin(g_row.storage)
    unpin(row.storage)
    done(status, dx)
    return dx


def logsumexp(Tensor x not None, dim):
    """ln of the sum of e^x along one dimension, which disappears."""
    check_float(x, "logsumexp")
    cdef int axis = <int>normal_axis(dim, x.rank, "logsumexp"), mode = current_mode(), status
    cdef Tensor y = without_axis(x, axis), row = as_row(x)
    cdef const float *px = <const float *>data_of(row, "logsumexp")
    pin(row.storage)
    pin(y.storage)
    with nogil:
        status = softmax_kernels.logsumexp(mode, row.rank, row.dims, row.steps, px, axis, <float *>y.storage.data)
    unpin(y.storage)
    unpin(row.storage)
    done(status, x)
    return y


def logsumexp_bwd(Tensor x not None, Tensor y not None, Tensor g not None, dim):
    """g·e^(x - y)."""
    cdef int axis = <int>normal_axis(dim, x.rank, "logsumexp"), mode = current_mode(), status
    cdef Tensor dx = new_like(x, True), row = as_row(x)
    y, g = densely(y, "logsumexp"), densely(g, "logsumexp")
    cdef const float *px = <const float *>data_of(row, "logsumexp")
    cdef const float *py = <const float *>data_of(y, "logsumexp")
    cdef const float *pg = <const float *>data_of(g, "logsumexp")
    status = softmax_kernels.logsumexp_bwd(mode, row.rank, row.dims, row.steps, px, axis, py, pg, <float *>dx.storage.data)
    done(status, dx)
    return dx


# ---- losses ----

REDUCTIONS = {"none": loss_kernels.NONE, "mean": loss_kernels.MEAN, "sum": loss_kernels.SUM}

cdef struct Batch:          # classes seen as (n, classes, inner)
    Py_ssize_t n
    Py_ssize_t classes
    Py_ssize_t inner


cdef Batch batch_of(int rank, const Py_ssize_t *dims, int axis) noexcept:
    cdef Batch b
    b.n, b.classes, b.inner = product_of(dims, 0, axis), dims[axis], product_of(dims, axis + 1, rank)
    return b


cdef Tensor targets_of(Tensor target, str op):
    """Contiguous int64."""
    if target.code == INT64:
        return densely(target, op)
    cdef Tensor copy = new_tensor(INT64, target.rank, target.dims, True)
    copy_into(copy, target, op)
    return copy


cdef const float *weight_of(Tensor weight, str op) except? NULL:
    return NULL if weight is None else <const float *>data_of(weight, op)


cdef Tensor loss_like(Tensor target, int reduction):
    return new_tensor(FLOAT32, target.rank if reduction == loss_kernels.NONE else 0, target.dims, True)


def check_targets(Tensor target not None, Py_ssize_t classes, int64_t ignore, str op):
    """IndexError for a target that is neither a class nor the ignored index."""
    cdef Tensor t = targets_of(target, op)
    cdef const int64_t *p = <const int64_t *>data_of(t, op)
    cdef Py_ssize_t bad = loss_kernels.first_bad_target(p, t.count, classes, ignore)
    if bad >= 0:
        raise IndexError(f"{op}: target {p[bad]} at position {bad} is no class: expected 0 to {classes - 1}, or ignore_index {ignore}")


def nll_loss(Tensor x not None, Tensor target not None, Tensor weight, int axis, int64_t ignore, int reduction):
    """The loss, and the sum of weights that backward wants; targets are checked."""
    cdef Tensor rows = densely(x, "nll_loss"), t = targets_of(target, "nll_loss"), y = loss_like(target, reduction)
    cdef Tensor w = None if weight is None else densely(weight, "nll_loss")
    cdef Batch b = batch_of(x.rank, x.dims, axis)
    cdef double total = 0
    done(loss_kernels.nll_loss(current_mode(), b.n, b.classes, b.inner, <const float *>data_of(rows, "nll_loss"),
                               <const int64_t *>data_of(t, "nll_loss"), weight_of(w, "nll_loss"), ignore, reduction,
                               <float *>y.storage.data, &total), x)
    return y, total


def nll_loss_bwd(Tensor g not None, Tensor target not None, Tensor weight, tuple shape, int axis, int64_t ignore, int reduction, double total):
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef int rank = read_shape(shape, dims, "nll_loss")
    cdef Tensor t = targets_of(target, "nll_loss"), dx = new_tensor(FLOAT32, rank, dims, True)
    cdef Tensor w = None if weight is None else densely(weight, "nll_loss")
    cdef Batch b = batch_of(rank, dims, axis)
    check_targets(t, b.classes, ignore, "nll_loss")  # again: an array that shares their memory may have been written since
    g = densely(g, "nll_loss")
    done(loss_kernels.nll_loss_bwd(current_mode(), b.n, b.classes, b.inner, <const int64_t *>data_of(t, "nll_loss"), weight_of(w, "nll_loss"),
                                   ignore, reduction, total, <const float *>data_of(g, "nll_loss"), <float *>dx.storage.data), dx)
    return dx


def cross_entropy(Tensor x not None, Tensor target not None, Tensor weight, int axis, int64_t ignore, int reduction):
    """The loss, the row maxima and logarithms of the row sums, and the sum of weights, which backward wants; targets are checked."""
    cdef Tensor rows = densely(x, "cross_entropy"), t = targets_of(target, "cross_entropy"), y = loss_like(target, reduction)
    cdef Tensor w = None if weight is None else densely(weight, "cross_entropy")
    cdef Tensor top = new_tensor(FLOAT32, target.rank, target.dims, True), log_sum = new_tensor(FLOAT32, target.rank, target.dims, True)
    cdef Batch b = batch_of(x.rank, x.dims, axis)
    cdef double total = 0
    cdef int mode = current_mode(), status
    cdef const float *px = <const float *>data_of(rows, "cross_entropy")
    cdef const int64_t *pt = <const int64_t *>data_of(t, "cross_entropy")
    cdef const float *pw = weight_of(w, "cross_entropy")
    pin(rows.storage)
    with nogil:
        status = loss_kernels.cross_entropy(mode, b.n, b.classes, b.inner, px, pt, pw, ignore, reduction, <float *>y.storage.data,
                                            <float *>top.storage.data, <float *>log_sum.storage.data, &total)
    unpin(rows.storage)
    done(status, x)
    return y, top, log_sum, total


def cross_entropy_bwd(Tensor g not None, Tensor x not None, Tensor top not None, Tensor log_sum not None, Tensor target not None, Tensor weight,
                      int axis, int64_t ignore, int reduction, double total):
    cdef Tensor rows = densely(x, "cross_entropy"), t = targets_of(target, "cross_entropy"), dx = new_like(x, True)
    cdef Tensor w = None if weight is None else densely(weight, "cross_entropy")
    cdef Batch b = batch_of(x.rank, x.dims, axis)
    check_targets(t, b.classes, ignore, "cross_entropy")  # again: an array that shares their memory may have been written since
    g = densely(g, "cross_entropy")
    done(loss_kernels.cross_entropy_bwd(current_mode(), b.n, b.classes, b.inner, <const float *>data_of(rows, "cross_entropy"),
                                        <const float *>data_of(top, "cross_entropy"), <const float *>data_of(log_sum, "cross_entropy"),
                                        <const int64_t *>data_of(t, "cross_entropy"), weight_of(w, "cross_entropy"), ignore, reduction,
                                        total, <const float *>data_of(g, "cross_entropy"), <float *>dx.storage.data), dx)
    return dx


ERRORS = {"mse_loss": loss_kernels.SQUARED, "l1_loss": loss_kernels.ABSOLUTE, "huber_loss": loss_kernels.HUBER,
          "smooth_l1_loss": loss_kernels.SMOOTH_L1, "binary_cross_entropy_with_logits": loss_kernels.LOGISTIC}


cdef int operand_of(Operand *operand, Tensor t, Tensor whole, str op) except -1:
    """t, or none, broadcast to the shape of `whole`."""
    cdef int d, lead
    operand.data = NULL
    if t is None:
        return 0
    operand.data, lead = data_of(t, op), whole.rank - t.rank
    for d in range(whole.rank):
        operand.steps[d] = 0 if d < lead or (t.dims[d - lead] == 1 and whole.dims[d] != 1) else t.steps[d - lead]
    return 0


cdef void hold(tuple tensors):
    for t in tensors:
        if t is not None:
            pin((<Tensor>t).storage)


cdef void let_go(tuple tensors):
    for t in tensors:
        if t is not None:
            unpin((<Tensor>t).storage)


def error_loss(str op, Tensor a not None, Tensor b not None, Tensor weight, Tensor positive, float delta, int reduction):
    """The loss of the operator's name, of an input and a target of one shape; the weights broadcast to it."""
    cdef Tensor y = loss_like(a, reduction)
    cdef Operand[4] operands
    cdef int status, kind = ERRORS[op], mode = current_mode(), i
    cdef tuple held = (a, b, weight, positive, y)
    for i in range(4):
        operand_of(&operands[i], <Tensor>held[i], a, op)
    hold(held)
    with nogil:
        status = loss_kernels.error_loss(mode, kind, a.rank, a.dims, operands, delta, reduction, <float *>y.storage.data)
    let_go(held)
    done(status, a)
    return y


def error_loss_bwd(str op, Tensor g not None, Tensor a not None, Tensor b not None, Tensor weight, Tensor positive, float delta, int reduction,
                   bint wants_a, bint wants_b):
    """The gradients of input and target, None where it is not wanted."""
    cdef Tensor da = new_like(a, True) if wants_a else None, db = new_like(b, True) if wants_b else None
    cdef Operand[4] operands
    cdef int kind = ERRORS[op], mode = current_mode(), i
    g = densely(g, op)
    cdef tuple held = (a, b, weight, positive, g, da, db)
    cdef const float *pg = <const float *>data_of(g, op)
    cdef float *pa = <float *>da.storage.data if wants_a else NULL
    cdef float *pb = <float *>db.storage.data if wants_b else NULL
    for i in range(4):
        operand_of(&operands[i], <Tensor>held[i], a, op)
    hold(held)
    with nogil:
        loss_kernels.error_loss_bwd(mode, kind, a.rank, a.dims, operands, delta, reduction, pg, pa, pb)
    let_go(held)
    return da, db


def dropout(Tensor x not None, uint64_t seed, uint64_t place, uint64_t drop, float scale):
    """x·scale, 0 where the element's word of the stream is below `drop`, 1 to 2³²: the forward, and on g the backward."""
    cdef Tensor y = new_like(x, True)
    x = densely(x, "dropout")
    cdef const float *px = <const float *>data_of(x, "dropout")
    pin(x.storage)
    pin(y.storage)
    with nogil:
        dropout_kernel(seed, place, drop, scale, px, <float *>y.storage.data, x.count)
    unpin(y.storage)
    unpin(x.storage)
    return y
