"""The CTC loss of tensors: what lengths and labels may be, where they lie, reductions. Holds no recursion, which is `_kernels/ctc`'s."""

from libc.math cimport INFINITY, NAN
from libc.stdint cimport int64_t

import numpy as np

from onemodel._kernels.ctc cimport CtcBatch, ctc_alpha, ctc_bwd, ctc_doubles
from onemodel._kernels.loss cimport MEAN, NONE
from onemodel._kernels.table cimport current_mode
from onemodel._pool.pool cimport give, pin, raise_no_memory, take, unpin
from onemodel.arguments cimport LARGEST, integer
from onemodel.tensor cimport FLOAT32, INT32, INT64, UINT8, Tensor, copy_into, data_of, densely, new_tensor

from onemodel.errors import ShapeError


cdef Tensor whole_numbers(object value, str what):
    """A tensor, list or tuple of integers, or an integer, as contiguous int64."""
    cdef Tensor t
    cdef Py_ssize_t n, i
    if isinstance(value, Tensor):
        t = <Tensor>value
        if t.code not in (INT32, INT64, UINT8):
            raise TypeError(f"ctc_loss: {what} must be integers, got {t.dtype}; write .cast(om.int64)")
        if t.code == INT64:
            return densely(t, "ctc_loss")
        t = new_tensor(INT64, t.rank, t.dims, True)
        copy_into(t, <Tensor>value, "ctc_loss")
        return t
    if isinstance(value, (list, tuple)):
        n = len(value)
        t = new_tensor(INT64, 1, &n, True)
        for i in range(n):
            (<int64_t *>t.storage.data)[i] = integer("ctc_loss", f"{what}[{i}]", value[i], -LARGEST)
        return t
    if isinstance(value, np.ndarray):
        raise TypeError(f"ctc_loss: {what} must be a Tensor, a tuple of integers or an integer, got ndarray; write om.tensor(...)")
    t = new_tensor(INT64, 0, NULL, True)
    (<int64_t *>t.storage.data)[0] = integer("ctc_loss", what, value, -LARGEST)
    return t


cdef int check_lengths(Tensor lengths, Py_ssize_t items, Py_ssize_t most, str what, str limit) except -1:
    cdef const int64_t *p = <const int64_t *>data_of(lengths, "ctc_loss")
    cdef Py_ssize_t b
    if lengths.count != items or lengths.rank > 1:
        raise ShapeError(f"ctc_loss: expected {items} {what}, one for each sequence, got shape {lengths.shape}")
    for b in range(items):
        if p[b] < 0 or p[b] > most:
            raise ValueError(f"ctc_loss: {what}[{b}] is {p[b]}; expected 0 to {most}, {limit}")
    return 0


def plan(Tensor log_probs not None, targets, input_lengths, target_lengths, blank):
    """Checks everything; then one int64 tensor: start, target length and input length of each sequence, and the labels."""
    if log_probs.code != FLOAT32:
        raise TypeError(f"ctc_loss: log_probs must be float32, got {log_probs.dtype}; write .cast(om.float32)")
    if log_probs.rank not in (2, 3) or log_probs.count == 0:
        raise ShapeError(f"ctc_loss: expected log_probs [T, N, C] or [T, C] with no size 0, got shape {log_probs.shape}")
    cdef Py_ssize_t frames = log_probs.dims[0], items = log_probs.dims[1] if log_probs.rank == 3 else 1, b, i, total = 0, longest, at
    cdef Py_ssize_t classes = log_probs.dims[log_probs.rank - 1]
    cdef int64_t silence = integer("ctc_loss", "blank", blank, 0)
    cdef int64_t label
    if silence >= classes:
        raise ValueError(f"ctc_loss: blank is {blank}; expected a class, 0 to {classes - 1}")
    cdef Tensor t = whole_numbers(targets, "targets"), inputs = whole_numbers(input_lengths, "input_lengths")
    cdef Tensor lengths = whole_numbers(target_lengths, "target_lengths")
    cdef bint padded = t.rank == 2
    if t.rank not in (1, 2) or (padded and t.dims[0] != items) or (padded and log_probs.rank == 2):
        raise ShapeError(f"ctc_loss: expected targets [N, S] or all labels in one row, for log_probs {log_probs.shape}, got shape {t.shape}")
    longest = t.dims[1] if padded else t.dims[0]
    check_lengths(inputs, items, frames, "input_lengths", "the frames of log_probs")
    check_lengths(lengths, items, longest, "target_lengths", "the labels of targets")
    cdef const int64_t *p = <const int64_t *>data_of(t, "ctc_loss")
    cdef const int64_t *n = <const int64_t *>data_of(lengths, "ctc_loss")
    for b in range(items):
        total += n[b]
        if not padded and total > longest:
            break
    if not padded and total != longest:
        raise ValueError(f"ctc_loss: targets in one row hold {longest} labels, but target_lengths do not add up to that")
    at = 0
    for b in range(items):
        for i in range(n[b]):
            label = p[(b * longest if padded else at) + i]
            if label < 0 or label >= classes:
                raise IndexError(f"ctc_loss: label {label} at position {i} of sequence {b} is no class: expected 0 to {classes - 1}")
            if label == silence:
                raise ValueError(f"ctc_loss: the blank, {blank}, stands at position {i} of sequence {b} in the targets; take another blank or label")
        at += n[b]
    cdef Py_ssize_t size = 3 * items + total
    cdef Tensor made = new_tensor(INT64, 1, &size, True)
    cdef int64_t *start = <int64_t *>made.storage.data
    at = 0
    for b in range(items):
        start[b], start[items + b], start[2 * items + b] = at, n[b], (<const int64_t *>data_of(inputs, "ctc_loss"))[b]
        for i in range(n[b]):
            start[3 * items + at + i] = p[(b * longest if padded else at) + i]
        at += n[b]
    return made


cdef CtcBatch batch_of(Tensor x, Tensor made, int64_t blank) except *:
    """x has contiguous rows of classes."""
    cdef CtcBatch c
    c.frames, c.items = x.dims[0], x.dims[1] if x.rank == 3 else 1
    c.classes = x.dims[x.rank - 1]
    c.t_step, c.b_step = x.steps[0], x.steps[1] if x.rank == 3 else 0
    c.log_p = <const float *>data_of(x, "ctc_loss")
    c.start = <const int64_t *>data_of(made, "ctc_loss")
    c.target_length, c.input_length = c.start + c.items, c.start + 2 * c.items
    c.target, c.blank = c.start + 3 * c.items, blank
    return c


cdef Tensor rows_of(Tensor x):
    return x if x.steps[x.rank - 1] == 1 or x.dims[x.rank - 1] == 1 else densely(x, "ctc_loss")


cdef inline double weight_of(const CtcBatch *c, Py_ssize_t b, int reduction) noexcept nogil:
    return <double>c.items * max(<int64_t>1, c.target_length[b]) if reduction == MEAN else 1.0


cdef inline float canonical(double v) noexcept nogil:
    return NAN if v != v else <float>v


def ctc_loss(Tensor log_probs not None, Tensor made not None, int64_t blank, int reduction, bint zero_infinity):
    """The loss, and what backward wants besides: each sequence's loss, then its forward variables, as bytes."""
    cdef Tensor x = rows_of(log_probs), y
    cdef CtcBatch c = batch_of(x, made, blank)
    cdef Py_ssize_t size = (c.items + ctc_doubles(&c)) * sizeof(double), b
    cdef Tensor state = new_tensor(UINT8, 1, &size, True)
    cdef double *loss = <double *>state.storage.data
    cdef double total = 0.0, value
    cdef int mode = current_mode(), status
    y = new_tensor(FLOAT32, 1 if reduction == NONE and x.rank == 3 else 0, &c.items, True)
    pin(x.storage)
    pin(made.storage)
    pin(state.storage)
    with nogil:
        status = ctc_alpha(mode, &c, loss + c.items, loss)
    unpin(state.storage)
    unpin(made.storage)
    unpin(x.storage)
    if status < 0:
        raise_no_memory(size)
    for b in range(c.items):
        value = 0.0 if zero_infinity and loss[b] == INFINITY else loss[b]
        if reduction == NONE:
            (<float *>y.storage.data)[b] = canonical(value)
        else:
            total += value / max(<int64_t>1, c.target_length[b]) if reduction == MEAN else value
    if reduction != NONE:
        (<float *>y.storage.data)[0] = canonical(total / c.items if reduction == MEAN else total)
    return y, state


def ctc_loss_bwd(Tensor g not None, Tensor log_probs not None, Tensor made not None, Tensor state not None, int64_t blank, int reduction):
    """The true gradient of the log-probabilities."""
    cdef Tensor x = rows_of(log_probs), dx = new_tensor(FLOAT32, log_probs.rank, log_probs.dims, True)
    cdef CtcBatch c = batch_of(x, made, blank)
    cdef const double *loss = <const double *>data_of(state, "ctc_loss")
    cdef const float *upstream
    cdef double *scale
    cdef int mode = current_mode(), status
    cdef Py_ssize_t b
    g = densely(g, "ctc_loss")
    upstream = <const float *>data_of(g, "ctc_loss")
    scale = <double *>take(c.items * sizeof(double))  # behind all that can raise
    if scale == NULL:
        raise_no_memory(c.items * sizeof(double))
    for b in range(c.items):
        scale[b] = upstream[b if reduction == NONE else 0] / weight_of(&c, b, reduction)
    pin(x.storage)
    pin(made.storage)
    pin(state.storage)
    with nogil:
        status = ctc_bwd(mode, &c, loss + c.items, loss, scale, <float *>dx.storage.data)
    unpin(state.storage)
    unpin(made.storage)
    unpin(x.storage)
    give(scale)
    if status < 0:
        raise_no_memory(x.count * 4)
    return dx
