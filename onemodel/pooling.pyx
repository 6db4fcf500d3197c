"""Pooling of tensors and its rule: windows are checked and sized here, once, before any work; kernels do the rest. Holds no loop over elements.

A one-dimensional operator is the two-dimensional one over planes of one row. global_avg_pool2d, and an adaptive mean over everything, is the
reduction `mean`, whose gradient is a stretched view.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t

from onemodel._kernels.pooling cimport AVERAGE, MAX, Pooling, pool_backward, pool_forward
from onemodel._kernels.table cimport current_mode
from onemodel._pool.pool cimport pin, raise_no_memory, unpin
from onemodel.arguments cimport flag, integer, read_integers
from onemodel.arrays cimport require
from onemodel.rules cimport edge_shape
from onemodel.tensor cimport (FLOAT32, INT32, MAX_NDIM, Record, Rule, Tensor, attach, data_of, densely, edge_of, new_tensor, recording)

from onemodel import reductions
from onemodel.errors import ShapeError

cdef enum:
    WITHOUT_GIL = 16384     # elements from which other Python threads may run meanwhile

cdef str SIZES = "an integer or a pair (rows, columns), None for the size of x"
cdef Py_ssize_t LIMIT = (<Py_ssize_t>1 << 31) - 1   # of each size, so that no product of two overflows


# ---- arguments ----

cdef int read_pair(object value, bint planar, Py_ssize_t least, str op, str name, Py_ssize_t *rows, Py_ssize_t *cols) except -1:
    """Two integers; a one-dimensional operator takes one, and `rows` stays what it is."""
    cdef Py_ssize_t[2] found
    read_integers(op, name, value, 2 if planar else 1, least, LIMIT, found)
    if planar:
        rows[0] = found[0]
    cols[0] = found[planar]
    return 0


cdef int read_input(Tensor x, bint planar, str op, Pooling *p) except -1:
    """x [n, c, h, w] or [c, h, w]; without `planar` [n, c, w] or [c, w], as planes of one row."""
    cdef int rank = 3 if planar else 2, i = x.rank - rank
    if x.code != FLOAT32:
        raise TypeError(f"{op}: expected float32, got {x.dtype}; write .cast(om.float32)")
    if i != 0 and i != 1:
        shapes = "[n, c, h, w] or [c, h, w]" if planar else "[n, c, w] or [c, w]"
        raise ShapeError(f"{op}: expected x {shapes}, got {x.rank} dimensions (x {list(x.shape)}); reshape it")
    p.n = p.h = 1
    p.xn = p.xh = 0
    if i:
        p.n, p.xn = x.dims[0], x.steps[0]
    p.c, p.xc = x.dims[i], x.steps[i]
    if planar:
        p.h, p.xh = x.dims[i + 1], x.steps[i + 1]
    p.w, p.xw = x.dims[x.rank - 1], x.steps[x.rank - 1]
    if p.w == 1:  # its stride means nothing
        p.xw = 1
    if p.h == 0 or p.w == 0:
        raise ShapeError(f"{op}: a plane without elements has no window (x {list(x.shape)}); only the batch and the channels may be empty")
    if p.h > LIMIT or p.w > LIMIT or p.h * p.w > LIMIT:
        raise ShapeError(f"{op}: planes must have fewer than 2**31 elements, since indices within them are int32 (x {list(x.shape)})")
    return 0


cdef Py_ssize_t outputs(Py_ssize_t size, Py_ssize_t k, Py_ssize_t s, Py_ssize_t pad, Py_ssize_t d, bint ceil_mode) noexcept:
    """How many windows; the last one must start inside x or its padding on the left. 0: none fits."""
    cdef Py_ssize_t free = size + 2 * pad - (d * (k - 1) + 1), n
    if ceil_mode:
        free += s - 1
    if free < 0:
        return 0
    n = free // s + 1
    return n - 1 if ceil_mode and (n - 1) * s >= size + pad else n


cdef int read_windows(bint planar, object kernel_size, object stride, object padding, object dilation, object ceil_mode, str op, Tensor x,
                      str what, Pooling *p) except -1:
    """What follows from p's planes, which are `what`; x is the operator's argument."""
    cdef bint ceil = flag(op, "ceil_mode", ceil_mode)
    p.kh = p.sh = p.dh = 1
    p.ph = 0
    p.adaptive = False
    read_pair(kernel_size, planar, 1, op, "kernel_size", &p.kh, &p.kw)
    if stride is None or (isinstance(stride, (tuple, list)) and not stride):
        p.sh, p.sw = p.kh, p.kw
    else:
        read_pair(stride, planar, 1, op, "stride", &p.sh, &p.sw)
    read_pair(padding, planar, 0, op, "padding", &p.ph, &p.pw)
    read_pair(dilation, planar, 1, op, "dilation", &p.dh, &p.dw)
    if 2 * p.ph > (p.kh - 1) * p.dh + 1 or 2 * p.pw > (p.kw - 1) * p.dw + 1:
        raise ValueError(f"{op}: padding must be at most half the kernel: padding {side(planar, p.ph, p.pw)}, kernel "
                         f"{side(planar, (p.kh - 1) * p.dh + 1, (p.kw - 1) * p.dw + 1)}; use less padding, or pad x beforehand")
    p.oh = outputs(p.h, p.kh, p.sh, p.ph, p.dh, ceil)
    p.ow = outputs(p.w, p.kw, p.sw, p.pw, p.dw, ceil)
    if p.oh < 1 or p.ow < 1:
        raise ShapeError(f"{op}: kernel {side(planar, (p.kh - 1) * p.dh + 1, (p.kw - 1) * p.dw + 1)} is larger than {what} with its padding, "
                         f"{side(planar, p.h + 2 * p.ph, p.w + 2 * p.pw)} (x {list(x.shape)}); use a smaller kernel, more padding or ceil_mode")
    return 0


cdef str side(bint planar, Py_ssize_t rows, Py_ssize_t cols):
    return f"{rows}x{cols}" if planar else f"{cols}"


# ---- the operators ----

cdef class PoolRule(Rule):
    """attributes: the Pooling. A maximum saves the index of each winner."""
    cdef bint planar

    cdef object backward(self, Record r, Tensor g):
        cdef Py_ssize_t[MAX_NDIM] dims
        cdef Pooling p = (<Pooling *>PyBytes_AS_STRING(r.attributes))[0]
        cdef int rank = edge_shape(r.edges[0], dims), status
        cdef const int32_t *index = NULL
        g = densely(g, self.name)
        cdef const float *pg = <const float *>data_of(g, self.name)
        if p.kind == MAX:
            index = <const int32_t *>data_of(<Tensor>r.saved[0], self.name)
        cdef Tensor dx = new_tensor(FLOAT32, rank, dims, False)
        p.xw = 1  # dx is contiguous
        if dx.count < WITHOUT_GIL:
            status = pool_backward(r.mode, &p, pg, index, <float *>dx.storage.data)
        else:
            pin(g.storage)
            if index != NULL:
                pin((<Tensor>r.saved[0]).storage)
            with nogil:
                status = pool_backward(r.mode, &p, pg, index, <float *>dx.storage.data)
            if index != NULL:
                unpin((<Tensor>r.saved[0]).storage)
            unpin(g.storage)
        if status < 0:
            raise_no_memory(p.h * p.w * 4)
        return dx


cdef PoolRule rule_of(str name, bint planar):
    cdef PoolRule rule = PoolRule()
    rule.name, rule.planar = name, planar
    return rule


cdef object pooled(PoolRule rule, Tensor x, Pooling *p, bint with_index):
    """y, or (y, index)."""
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef int i, status, mode = current_mode()
    cdef bint recorded = x.wants_grad and recording()
    cdef const float *px = <const float *>data_of(x, rule.name)
    cdef int32_t *index = NULL
    cdef Tensor y, found = None
    for i in range(x.rank):
        dims[i] = x.dims[i]
    dims[x.rank - 1] = p.ow
    if rule.planar:
        dims[x.rank - 2] = p.oh
    y = new_tensor(FLOAT32, x.rank, dims, True)
    if with_index or (recorded and p.kind == MAX):
        found = new_tensor(INT32, x.rank, dims, True)
        index = <int32_t *>found.storage.data
    if x.count < WITHOUT_GIL:
        status = pool_forward(mode, p, px, <float *>y.storage.data, index)
    else:
        pin(x.storage)
        pin(y.storage)
        if found is not None:
            pin(found.storage)
        with nogil:
            status = pool_forward(mode, p, px, <float *>y.storage.data, index)
        if found is not None:
            unpin(found.storage)
        unpin(y.storage)
        unpin(x.storage)
    if status < 0:
        raise_no_memory(p.h * p.w * 4)
    if recorded:
        attach(y, rule, (edge_of(x),), (found,) if p.kind == MAX else None, PyBytes_FromStringAndSize(<char *>p, sizeof(Pooling)), mode)
    return (y, found) if with_index else y


cdef object max_pool(PoolRule rule, object input, object kernel_size, object stride, object padding, object dilation, object ceil_mode,
                     object return_indices):
    cdef Tensor x = require(input, rule.name)
    cdef Pooling p
    cdef bint with_index = flag(rule.name, "return_indices", return_indices)
    p.kind, p.include_pad, p.divisor = MAX, False, 0
    read_input(x, rule.planar, rule.name, &p)
    read_windows(rule.planar, kernel_size, stride, padding, dilation, ceil_mode, rule.name, x, "x", &p)
    return pooled(rule, x, &p, with_index)


cdef object avg_pool(PoolRule rule, object input, object kernel_size, object stride, object padding, object ceil_mode, object count_include_pad,
                     object divisor_override):
    cdef Tensor x = require(input, rule.name)
    cdef Pooling p
    p.kind, p.include_pad, p.divisor = AVERAGE, flag(rule.name, "count_include_pad", count_include_pad), 0
    if divisor_override is not None:
        p.divisor = integer(rule.name, "divisor_override", divisor_override, -LIMIT, LIMIT)
        if p.divisor == 0:
            raise ValueError(f"{rule.name}: divisor_override must not be 0; None divides by the size of the window")
    read_input(x, rule.planar, rule.name, &p)
    read_windows(rule.planar, kernel_size, stride, padding, 1, ceil_mode, rule.name, x, "x", &p)
    return pooled(rule, x, &p, False)


cdef int read_adaptive(Tensor x, object output_size, str op, Pooling *p) except -1:
    """Windows that divide a plane evenly are an ordinary grid."""
    read_input(x, True, op, p)
    if not isinstance(output_size, (tuple, list)):
        output_size = (output_size, output_size)
    if len(output_size) != 2:
        raise ValueError(f"{op}: output_size must be {SIZES}, got a {type(output_size).__name__} of {len(output_size)}")
    p.oh = p.h if output_size[0] is None else integer(op, "output_size", output_size[0], 0, LIMIT, SIZES)
    p.ow = p.w if output_size[1] is None else integer(op, "output_size", output_size[1], 0, LIMIT, SIZES)
    p.adaptive = p.oh == 0 or p.ow == 0 or p.h % p.oh != 0 or p.w % p.ow != 0
    p.include_pad, p.divisor = False, 0
    p.kh = p.kw = 1
    if not p.adaptive:
        p.kh, p.kw = p.h // p.oh, p.w // p.ow
    p.sh, p.sw = p.kh, p.kw
    p.ph = p.pw = 0
    p.dh = p.dw = 1
    return 0


cdef PoolRule MAX_POOL2D = rule_of("max_pool2d", True), MAX_POOL1D = rule_of("max_pool1d", False)
cdef PoolRule AVG_POOL2D = rule_of("avg_pool2d", True), AVG_POOL1D = rule_of("avg_pool1d", False)
cdef PoolRule ADAPTIVE_AVG = rule_of("adaptive_avg_pool2d", True), ADAPTIVE_MAX = rule_of("adaptive_max_pool2d", True)


def max_pool2d(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    return max_pool(MAX_POOL2D, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool1d(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    return max_pool(MAX_POOL1D, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def avg_pool2d(input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
    return avg_pool(AVG_POOL2D, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def avg_pool1d(input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
    return avg_pool(AVG_POOL1D, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


def adaptive_avg_pool2d(input, output_size):
    cdef Tensor x = require(input, "adaptive_avg_pool2d")
    cdef Pooling p
    p.kind = AVERAGE
    read_adaptive(x, output_size, "adaptive_avg_pool2d", &p)
    if p.oh == 1 and p.ow == 1:
        return reductions.mean(x, (-2, -1), True)
    return pooled(ADAPTIVE_AVG, x, &p, False)


def adaptive_max_pool2d(input, output_size, return_indices=False):
    cdef Tensor x = require(input, "adaptive_max_pool2d")
    cdef Pooling p
    cdef bint with_index = flag("adaptive_max_pool2d", "return_indices", return_indices)
    p.kind = MAX
    read_adaptive(x, output_size, "adaptive_max_pool2d", &p)
    return pooled(ADAPTIVE_MAX, x, &p, with_index)


def global_avg_pool2d(x):
    cdef Tensor t = require(x, "global_avg_pool2d")
    cdef Pooling p
    read_input(t, True, "global_avg_pool2d", &p)
    return reductions.mean(t, (-2, -1), True)


RULES = {rule.name: rule for rule in (MAX_POOL2D, MAX_POOL1D, AVG_POOL2D, AVG_POOL1D, ADAPTIVE_AVG, ADAPTIVE_MAX)}
