"""Reductions of tensors and their rules: sum, mean, amax, amin, var, std over any axes; argmax.

The gradient of a sum is a stretched view of the incoming one: no pass over memory. Other types than float32 are NumPy's to add.
"""

import numpy as np

from onemodel._kernels.elementwise cimport MAP2, Operand, map_flat
from onemodel._kernels.norm cimport spread
from onemodel._kernels.reduce cimport AMAX, AMIN, MEAN, SUM, argmax as argmax_kernel, extremum_bwd, reduce as reduce_kernel
from onemodel._kernels.table cimport current_mode, row_index, table_of
from onemodel._pool.pool cimport pin, raise_no_memory, unpin
from onemodel.rules cimport edge_shape
from onemodel.arguments cimport truth
from onemodel.arrays cimport require
from onemodel.tensor cimport (FLOAT32, INT64, MAX_NDIM, Record, Rule, Tensor, alias, attach, data_of, densely, edge_of, new_like,
                              new_tensor, new_view, normal_axis, recording)
from libc.stdint cimport int64_t

from onemodel.arrays import array_view
from onemodel.errors import ShapeError

cdef Py_ssize_t DIV = row_index("map2", "div")
cdef list NUMPY = [np.sum, np.mean, np.amax, np.amin]
cdef list NAMES = ["sum", "mean", "amax", "amin"]


cdef unsigned long long axes_of(object dim, int rank, str op) except? 0:
    """Bit per reduced axis; None or an empty sequence means all."""
    cdef unsigned long long mask = 0, bit
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        return (<unsigned long long>1 << rank) - 1 if rank else 0
    for d in dim if isinstance(dim, (tuple, list)) else (dim,):
        bit = <unsigned long long>1 << normal_axis(d, rank, op)
        if mask & bit:
            raise ShapeError(f"{op}: dimension {d} is named twice in {dim}")
        mask |= bit
    return mask if rank else 0


cdef class ReduceRule(Rule):
    """attributes: (bits of the reduced axes, keepdim). amax and amin save input and output."""
    cdef int kind

    cdef object backward(self, Record r, Tensor g):
        cdef Py_ssize_t[MAX_NDIM] dims
        cdef Py_ssize_t[MAX_NDIM] steps
        cdef unsigned long long mask = r.attributes[0]
        cdef int rank = edge_shape(r.edges[0], dims), i, at = 0
        cdef bint keepdim = r.attributes[1]
        cdef Py_ssize_t reduced = 1
        cdef Tensor dx, x
        if self.kind == AMAX or self.kind == AMIN:
            x = <Tensor>r.saved[0]
            g = densely(g, self.name)
            dx = new_tensor(FLOAT32, rank, dims, False)
            if extremum_bwd(r.mode, rank, dims, x.steps, <const float *>data_of(x, self.name), mask, <const float *>data_of(<Tensor>r.saved[1], self.name),
                            <const float *>data_of(g, self.name), <float *>dx.storage.data) < 0:
                raise_no_memory(g.count * 4)
            return dx
        for i in range(rank):
            if mask >> i & 1:
                reduced *= dims[i]
        if self.kind == MEAN:
            g = divided(g, reduced, r.mode)
        at = 0
        for i in range(rank):
            if mask >> i & 1:
                steps[i] = 0
                at += keepdim
            else:
                steps[i] = g.steps[at]
                at += 1
        return new_view(g, rank, dims, steps, g.offset)


cdef Tensor divided(Tensor g, Py_ssize_t n, int mode):
    """g / n, one IEEE division per element."""
    cdef Operand[2] operands
    cdef float count = <float>n
    g = densely(g, "mean")
    cdef Tensor out = new_tensor(FLOAT32, g.rank, g.dims, False)
    operands[0].data, operands[1].data = data_of(g, "mean"), <const char *>&count
    operands[0].steps[0], operands[1].steps[0] = 1, 0
    map_flat(MAP2, table_of(mode).row[DIV], g.count, operands, out.storage.data)
    return out


cdef list RULES_BY_KIND = []
for _kind, _name in enumerate(NAMES):
    _rule = ReduceRule()
    (<ReduceRule>_rule).kind = _kind
    (<ReduceRule>_rule).name = _name
    RULES_BY_KIND.append(_rule)


cdef Tensor reduced(int kind, Tensor x, object dim, bint keepdim):
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef str op = <str>NAMES[kind]
    cdef unsigned long long mask = axes_of(dim, x.rank, op)
    cdef int rank = 0, i, mode = current_mode(), status
    cdef Tensor out
    for i in range(x.rank):
        if mask >> i & 1:
            if x.dims[i] == 0 and (kind == AMAX or kind == AMIN):
                raise ShapeError(f"{op}: dimension {i} of shape {x.shape} is empty; there is no largest or smallest of nothing")
            if keepdim:
                dims[rank] = 1
                rank += 1
        else:
            dims[rank] = x.dims[i]
            rank += 1
    cdef const char *p = data_of(x, op)
    if x.code != FLOAT32:
        return reduced_integer(kind, x, mask, keepdim, rank, dims)
    out = new_tensor(FLOAT32, rank, dims, True)
    pin(x.storage)
    pin(out.storage)
    with nogil:
        status = reduce_kernel(mode, kind, x.rank, x.dims, x.steps, <const float *>p, mask, <float *>out.storage.data)
    unpin(out.storage)
    unpin(x.storage)
    if status < 0:
        raise_no_memory(out.count * 8)
    if x.wants_grad and recording():
        attach(out, <Rule>RULES_BY_KIND[kind], (edge_of(x),), (x, alias(out)) if kind == AMAX or kind == AMIN else None, (mask, keepdim), mode)
    return out


cdef Tensor reduced_integer(int kind, Tensor x, unsigned long long mask, bint keepdim, int rank, const Py_ssize_t *dims):
    cdef str op = <str>NAMES[kind]
    if kind == MEAN:
        raise TypeError(f"mean: expected float32, got {x.dtype}; write .cast(om.float32)")
    cdef Tensor out = new_tensor(INT64 if kind == SUM else x.code, rank, dims, True)
    axes = tuple([i for i in range(x.rank) if mask >> i & 1])
    NUMPY[kind](array_view(x, op), axis=axes, keepdims=keepdim, out=array_view(out, op))
    return out


def sum(x, dim=None, keepdim=False):
    return reduced(SUM, require(x, "sum"), dim, truth("sum", "keepdim", keepdim))


def mean(x, dim=None, keepdim=False):
    return reduced(MEAN, require(x, "mean"), dim, truth("mean", "keepdim", keepdim))


def amax(x, dim=None, keepdim=False):
    return reduced(AMAX, require(x, "amax"), dim, truth("amax", "keepdim", keepdim))


def amin(x, dim=None, keepdim=False):
    return reduced(AMIN, require(x, "amin"), dim, truth("amin", "keepdim", keepdim))


def argmax(x, dim=None, keepdim=False):
    cdef Tensor t = require(x, "argmax")
    cdef bint kept = truth("argmax", "keepdim", keepdim)
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef int axis = -1 if dim is None else <int>normal_axis(dim, t.rank, "argmax"), rank = 0, i, status
    cdef Tensor out
    if t.rank == 0:
        axis = -1
    for i in range(t.rank):
        if axis < 0 or i == axis:
            if t.dims[i] == 0:
                raise ShapeError(f"argmax: dimension {i} of shape {t.shape} is empty; there is no largest of nothing")
            if kept:
                dims[rank] = 1
                rank += 1
        else:
            dims[rank] = t.dims[i]
            rank += 1
    cdef const char *p = data_of(t, "argmax")
    out = new_tensor(INT64, rank, dims, True)
    if t.code != FLOAT32:
        found = np.argmax(array_view(t, "argmax"), axis=None if axis < 0 else axis)
        array_view(out, "argmax").reshape(-1)[...] = np.reshape(found, -1)
        return out
    pin(t.storage)
    pin(out.storage)
    with nogil:
        status = argmax_kernel(t.rank, t.dims, t.steps, <const float *>p, axis, <int64_t *>out.storage.data)
    unpin(out.storage)
    unpin(t.storage)
    if status < 0:
        raise_no_memory(t.count * 4)
    return out


# ---- var and std ----

cdef bint is_columns(Tensor x, unsigned long long mask) noexcept:
    """Whether x lies in memory with the kept dimensions, all of them, behind the reduced ones: a mean and a sum per column need no copy."""
    cdef int i
    cdef bint kept = False
    for i in range(x.rank):
        if x.dims[i] == 1:
            continue
        if kept and mask >> i & 1:
            return False
        kept = kept or not mask >> i & 1
    return kept and x.dense


cdef Tensor laid_out(Tensor x, unsigned long long mask, bint columns, str op):
    """x contiguous, for rows with the reduced dimensions last, in their order."""
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Py_ssize_t[MAX_NDIM] steps
    cdef int rank = 0, i, last
    if columns:
        return x
    for last in range(2):
        for i in range(x.rank):
            if mask >> i & 1 == last:
                dims[rank], steps[rank] = x.dims[i], x.steps[i]
                rank += 1
    return densely(new_view(x, rank, dims, steps, x.offset), op)


cdef class SpreadRule(Rule):
    """saved: x; attributes: (bits of the reduced axes, divisor)."""
    cdef bint root

    cdef object backward(self, Record r, Tensor g):
        cdef Py_ssize_t[MAX_NDIM] steps
        cdef unsigned long long mask = r.attributes[0]
        cdef double divisor = r.attributes[1]
        cdef Tensor x = <Tensor>r.saved[0], rows, dx
        cdef int i, rank = 0, last, mode = r.mode
        data_of(x, self.name)
        cdef bint columns = is_columns(x, mask)
        rows, g = laid_out(x, mask, columns, self.name), densely(g, self.name)
        dx = new_like(rows, False)
        cdef const float *px = <const float *>data_of(rows, self.name)
        cdef const float *pg = <const float *>data_of(g, self.name)
        cdef float *to = <float *>data_of(dx, self.name)
        cdef Py_ssize_t n = g.count, cols = x.count // n if n else 0
        cdef bint root = self.root
        pin(rows.storage)
        pin(g.storage)
        with nogil:
            spread(mode, columns, n, cols, px, pg, divisor, root, to)
        unpin(g.storage)
        unpin(rows.storage)
        if columns:
            return dx
        for last in range(2):
            for i in range(x.rank):
                if mask >> i & 1 == last:
                    steps[i] = dx.steps[rank]
                    rank += 1
        return new_view(dx, x.rank, x.dims, steps, dx.offset)


cdef SpreadRule VAR = SpreadRule(), STD = SpreadRule()
VAR.name, VAR.root = "var", False
STD.name, STD.root = "std", True


cdef Tensor spread_of(SpreadRule rule, Tensor x, object dim, double correction, bint keepdim):
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef str op = rule.name
    cdef unsigned long long mask = axes_of(dim, x.rank, op)
    cdef Py_ssize_t cols = 1
    cdef int rank = 0, i, mode = current_mode()
    cdef bint root = rule.root
    cdef double divisor
    cdef Tensor out, rows
    if x.code != FLOAT32:
        raise TypeError(f"{op}: expected float32, got {x.dtype}; write .cast(om.float32)")
    data_of(x, op)
    for i in range(x.rank):
        if mask >> i & 1:
            cols *= x.dims[i]
        if keepdim or not mask >> i & 1:
            dims[rank] = 1 if mask >> i & 1 else x.dims[i]
            rank += 1
    divisor = <double>cols - correction
    if divisor < 0:
        divisor = 0
    cdef bint columns = is_columns(x, mask)
    rows, out = laid_out(x, mask, columns, op), new_tensor(FLOAT32, rank, dims, True)
    cdef const float *px = <const float *>data_of(rows, op)
    cdef float *to = <float *>data_of(out, op)
    pin(rows.storage)
    pin(out.storage)
    with nogil:
        spread(mode, columns, out.count, cols, px, NULL, divisor, root, to)
    unpin(out.storage)
    unpin(rows.storage)
    if x.wants_grad and recording():
        attach(out, rule, (edge_of(x),), (x,), (mask, divisor), mode)
    return out


def var(x, dim, double correction, keepdim):
    return spread_of(VAR, require(x, "var"), dim, correction, truth("var", "keepdim", keepdim))


def std(x, dim, double correction, keepdim):
    return spread_of(STD, require(x, "std"), dim, correction, truth("std", "keepdim", keepdim))


RULES = {(<Rule>rule).name: rule for rule in RULES_BY_KIND + [VAR, STD]}
