"""Resizing, gathers, embeddings, padding and running sums called with tensors: shapes to pointers, nothing recorded. Holds no loop over elements.

Sizes and types come checked from ops/; indices are checked here, in forward and again in backward: they may lie in an array's memory, where
a write raises no version.
"""

from libc.stdint cimport int64_t
from libc.string cimport memset

from onemodel._kernels cimport resize as kernels
from onemodel._kernels.copy cimport fill
from onemodel._kernels.table cimport current_mode
from onemodel._pool.pool cimport pin, raise_no_memory, unpin
from onemodel.arrays cimport as_tensor
from onemodel.tensor cimport FLOAT32, INT64, MAX_NDIM, Tensor, copy_into, data_of, densely, itemsize, new_like, new_tensor, new_view, read_shape

HOW = {"nearest": kernels.NEAREST, "nearest-exact": kernels.NEAREST_EXACT, "linear": kernels.HALF_PIXEL, "bilinear": kernels.HALF_PIXEL,
       "align_corners": kernels.ALIGN_CORNERS}


# ---- resize ----

cdef kernels.Resize planes_of(int how, int rank, const Py_ssize_t *dims, tuple size, tuple factors) except *:
    """[n, c, h, w], or [n, c, w] as planes of one row."""
    cdef kernels.Resize r
    cdef bint flat = rank == 3
    r.how, r.n, r.c, r.iw, r.ow, r.fw = how, dims[0], dims[1], dims[rank - 1], size[len(size) - 1], factors[len(factors) - 1]
    r.ih, r.oh, r.fh = (1, 1, 0.0) if flat else (dims[2], size[0], factors[0])
    r.xn = r.xc = r.xh = 0
    return r


def resize(Tensor x not None, int how, tuple size, tuple factors):
    """x [n, c, h, w] or [n, c, w] in another size."""
    cdef kernels.Resize r = planes_of(how, x.rank, x.dims, size, factors)
    cdef Py_ssize_t[4] dims
    cdef int last = x.rank - 1, mode = current_mode(), status, i
    if x.dims[last] != 1 and x.steps[last] != 1:
        x = densely(x, "interpolate")
    r.xn, r.xc, r.xh = x.steps[0], x.steps[1], x.steps[2] if x.rank == 4 else 0
    dims[0], dims[1] = x.dims[0], x.dims[1]
    for i in range(2, x.rank):
        dims[i] = size[i - 2]
    cdef Tensor y = new_tensor(FLOAT32, x.rank, dims, True)
    cdef const float *px = <const float *>data_of(x, "interpolate")
    pin(x.storage)
    pin(y.storage)
    with nogil:
        status = kernels.resize(mode, &r, px, <float *>y.storage.data)
    unpin(y.storage)
    unpin(x.storage)
    if status < 0:
        raise_no_memory(y.count * 4)
    return y


def resize_bwd(Tensor g not None, int how, tuple shape, tuple size, tuple factors):
    """The gradient of x."""
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef int rank = read_shape(shape, dims, "interpolate"), mode = current_mode(), status
    cdef kernels.Resize r = planes_of(how, rank, dims, size, factors)
    cdef Tensor dx = new_tensor(FLOAT32, rank, dims, True)
    g = densely(g, "interpolate")
    cdef const float *pg = <const float *>data_of(g, "interpolate")
    pin(g.storage)
    pin(dx.storage)
    with nogil:
        status = kernels.resize_bwd(mode, &r, pg, <float *>dx.storage.data)
    unpin(dx.storage)
    unpin(g.storage)
    if status < 0:
        raise_no_memory(dx.count * 4)
    return dx


# ---- indices ----

cdef Tensor int64_of(Tensor index, str op):
    """Contiguous int64."""
    if index.code == INT64:
        return densely(index, op)
    cdef Tensor copy = new_tensor(INT64, index.rank, index.dims, True)
    copy_into(copy, index, op)
    return copy


cdef Tensor checked(Tensor index, Py_ssize_t size, str op, str what):
    """Contiguous int64 with every element in [0, size); IndexError names the first that is not, and where it stands."""
    cdef Tensor t = int64_of(index, op)
    cdef Py_ssize_t bad = kernels.first_outside(<const int64_t *>data_of(t, op), t.count, size)
    if bad >= 0:
        raise_outside(t, bad, size, op, what)
    return t


cdef int raise_outside(Tensor index, Py_ssize_t bad, Py_ssize_t size, str op, str what) except -1:
    """IndexError for element `bad` of a contiguous int64 index."""
    cdef list place = []
    cdef Py_ssize_t at = bad
    cdef int d
    for d in range(index.rank - 1, -1, -1):
        place.insert(0, at % index.dims[d])
        at //= index.dims[d]
    raise IndexError(f"{op}: {what} {(<const int64_t *>data_of(index, op))[bad]} at position {place[0] if len(place) == 1 else tuple(place)} is out of "
                     + (f"range: expected 0 to {size - 1}" if size else "range: there is nothing to choose from"))


# ---- embedding ----

def embedding(Tensor ids not None, Tensor weight not None):
    """The rows of weight [v, d] that ids of any shape name."""
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Tensor index = checked(ids, weight.dims[0], "embedding", "id"), y
    cdef Py_ssize_t cols = weight.dims[1]
    cdef int i
    for i in range(ids.rank):
        dims[i] = ids.dims[i]
    dims[ids.rank] = cols
    y = new_tensor(weight.code, ids.rank + 1, dims, True)
    cdef const char *pw = data_of(weight, "embedding")
    cdef const int64_t *pi = <const int64_t *>data_of(index, "embedding")
    if y.count == 0:
        return y
    pin(index.storage)
    pin(weight.storage)
    pin(y.storage)
    with nogil:
        kernels.take_rows(pw, weight.steps[0], weight.steps[1] if cols > 1 else 1, itemsize(weight.code), pi, index.count, cols, y.storage.data)
    unpin(y.storage)
    unpin(weight.storage)
    unpin(index.storage)
    return y


def embedding_bwd(Tensor g not None, Tensor ids not None, Py_ssize_t rows, Py_ssize_t cols, int64_t padding):
    """Zeros [rows, cols] with each row of g added at its id, in id order; padding (or -1 for none) takes no part."""
    cdef Py_ssize_t[2] dims
    cdef int mode = current_mode()
    cdef Tensor index = checked(ids, rows, "embedding", "id"), dw
    dims[0], dims[1] = rows, cols
    dw = new_tensor(FLOAT32, 2, dims, True)
    g = densely(g, "embedding")
    cdef const float *pg = <const float *>data_of(g, "embedding")
    cdef const int64_t *pi = <const int64_t *>data_of(index, "embedding")
    pin(index.storage)
    pin(g.storage)
    pin(dw.storage)
    with nogil:
        kernels.rows_bwd(mode, pg, pi, index.count, padding, <float *>dw.storage.data, rows, cols)
    unpin(dw.storage)
    unpin(g.storage)
    unpin(index.storage)
    return dw


# ---- gather, index_select ----

cdef kernels.Gather gather_of(int rank, const Py_ssize_t *dims, const Py_ssize_t *steps, int axis, Py_ssize_t size) noexcept:
    """A gather with an index of shape `dims` along `axis` of a tensor with these steps: the last dimension is the inner one, unless it is the axis."""
    cdef kernels.Gather q
    cdef int i, inner = rank - 1 if axis != rank - 1 else -1
    q.rank, q.outer, q.n, q.inner, q.size, q.step, q.inner_step = 0, 1, 1, 1, size, 0, 0
    if rank == 0:
        return q
    q.n, q.step = dims[axis], steps[axis]
    if inner >= 0:
        q.inner, q.inner_step = dims[inner], steps[inner]
    for i in range(rank):
        if i != axis and i != inner:
            q.outer_sizes[q.rank], q.outer_steps[q.rank] = dims[i], steps[i]
            q.outer *= dims[i]
            q.rank += 1
    return q


cdef bint in_place(int rank, int axis) noexcept:
    """Whether the index' own order is (outer, axis, inner): the axis is the last dimension or the one before."""
    return axis >= rank - 2


cdef Tensor with_axis_inside(Tensor t, int axis):
    """The axis moved just before the last dimension: a view."""
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Py_ssize_t[MAX_NDIM] steps
    cdef int i, at
    for i in range(t.rank):
        at = axis if i == t.rank - 2 else i if i < axis or i == t.rank - 1 else i + 1
        dims[i], steps[i] = t.dims[at], t.steps[at]
    return new_view(t, t.rank, dims, steps, t.offset)


cdef Tensor with_axis_back(Tensor t, int axis):
    """The inverse of with_axis_inside."""
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Py_ssize_t[MAX_NDIM] steps
    cdef int i, at
    for i in range(t.rank):
        at = t.rank - 2 if i == axis else i if i < axis or i == t.rank - 1 else i - 1
        dims[i], steps[i] = t.dims[at], t.steps[at]
    return new_view(t, t.rank, dims, steps, t.offset)


def gather(Tensor x not None, int axis, Tensor index not None):
    """y[..., k, ...] = x[..., index[..., k, ...], ...] along the axis; the index is nowhere larger than x but along it."""
    if not in_place(x.rank, axis):
        return with_axis_back(gather(with_axis_inside(x, axis), x.rank - 2, with_axis_inside(index, axis)), axis)
    cdef Tensor places = int64_of(index, "gather"), y = new_tensor(x.code, index.rank, index.dims, True)
    cdef kernels.Gather q = gather_of(index.rank, index.dims, x.steps, axis, x.dims[axis] if x.rank else 1)
    cdef Py_ssize_t bad
    cdef const char *px = data_of(x, "gather")
    cdef const int64_t *pi = <const int64_t *>data_of(places, "gather")
    if y.count == 0:
        return y
    pin(x.storage)
    pin(places.storage)
    pin(y.storage)
    with nogil:
        bad = kernels.gather(&q, itemsize(x.code), px, pi, y.storage.data)
    unpin(y.storage)
    unpin(places.storage)
    unpin(x.storage)
    if bad >= 0:
        raise_outside(places, bad, q.size, "gather", "index")
    return y


def gather_bwd(Tensor g not None, Tensor index not None, int axis, tuple shape):
    """Zeros of `shape` with g added where it was gathered from, in the order of the index along the axis."""
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef int rank = read_shape(shape, dims, "gather"), mode = current_mode()
    if not in_place(rank, axis):
        inside = shape[:axis] + shape[axis + 1:rank - 1] + (shape[axis], shape[rank - 1])
        return with_axis_back(gather_bwd(with_axis_inside(g, axis), with_axis_inside(index, axis), rank - 2, inside), axis)
    cdef Tensor places = int64_of(index, "gather"), dx = new_tensor(FLOAT32, rank, dims, True)
    cdef kernels.Gather q = gather_of(rank, index.dims, dx.steps, axis, dims[axis] if rank else 1)
    cdef Py_ssize_t bad
    g = densely(g, "gather")
    cdef const float *pg = <const float *>data_of(g, "gather")
    cdef const int64_t *pi = <const int64_t *>data_of(places, "gather")
    pin(g.storage)
    pin(places.storage)
    pin(dx.storage)
    with nogil:
        bad = kernels.gather_bwd(mode, &q, pg, pi, <float *>dx.storage.data, dx.count)
    unpin(dx.storage)
    unpin(places.storage)
    unpin(g.storage)
    if bad >= 0:
        raise_outside(places, bad, q.size, "gather", "index")
    return dx


cdef Py_ssize_t product_of(const Py_ssize_t *dims, int first, int end) noexcept:
    cdef Py_ssize_t n = 1
    cdef int i
    for i in range(first, end):
        n *= dims[i]
    return n


def index_select(Tensor x not None, int axis, Tensor index not None):
    """x at each element of a vector (or of one number) along one dimension."""
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef int i
    for i in range(x.rank):
        dims[i] = x.dims[i]
    cdef Py_ssize_t size = x.dims[axis] if x.rank else 1
    cdef Tensor places = checked(index, size, "index_select", "index"), source, y
    dims[axis] = places.count
    y = new_tensor(x.code, x.rank, dims, True)
    source = densely(x, "index_select")
    cdef const char *px = data_of(source, "index_select")
    cdef const int64_t *pi = <const int64_t *>data_of(places, "index_select")
    cdef Py_ssize_t outer = product_of(x.dims, 0, axis), inner = product_of(x.dims, axis + 1, x.rank)
    if y.count == 0:
        return y
    pin(source.storage)
    pin(places.storage)
    pin(y.storage)
    with nogil:
        kernels.select(outer, size, inner, itemsize(x.code), px, pi, places.count, y.storage.data)
    unpin(y.storage)
    unpin(places.storage)
    unpin(source.storage)
    return y


def index_select_bwd(Tensor g not None, Tensor index not None, int axis, tuple shape):
    """Zeros of `shape` with each slice of g added at its index, in the order of the index."""
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef int rank = read_shape(shape, dims, "index_select"), mode = current_mode()
    cdef Py_ssize_t size = dims[axis] if rank else 1
    cdef Tensor places = checked(index, size, "index_select", "index"), dx = new_tensor(FLOAT32, rank, dims, True)
    g = densely(g, "index_select")
    cdef const float *pg = <const float *>data_of(g, "index_select")
    cdef const int64_t *pi = <const int64_t *>data_of(places, "index_select")
    cdef Py_ssize_t outer = product_of(dims, 0, axis), inner = product_of(dims, axis + 1, rank)
    pin(g.storage)
    pin(places.storage)
    pin(dx.storage)
    with nogil:
        kernels.select_bwd(mode, outer, size, inner, pg, pi, places.count, <float *>dx.storage.data)
    unpin(dx.storage)
    unpin(places.storage)
    unpin(g.storage)
    return dx


# ---- pad ----

cdef Tensor window(Tensor t, int rank, const Py_ssize_t *first, const Py_ssize_t *size):
    cdef Py_ssize_t offset = t.offset
    cdef int i
    for i in range(rank):
        if size[i] > 0:  # an empty window computes no address
            offset += first[i] * t.steps[i]
    return new_view(t, rank, size, t.steps, offset)


cdef bint overlap(Tensor x, tuple low, tuple shape, Py_ssize_t *from_x, Py_ssize_t *to_y, Py_ssize_t *size) except -1:
    """What of x stands in the padded tensor: where it begins in either, and how much there is; False if nothing."""
    cdef int i
    cdef bint some = True
    cdef Py_ssize_t before, whole
    for i in range(x.rank):
        before, whole = low[i], shape[i]
        from_x[i] = -before if before < 0 else 0
        to_y[i] = before if before > 0 else 0
        size[i] = max(0, min(x.dims[i] - from_x[i], whole - to_y[i]))
        some = some and size[i] > 0
    return some


def pad(Tensor x not None, tuple low, tuple shape, value):
    """x with `low[i]` elements before it (fewer than 0: cropped) in a tensor of `shape`, the rest filled with value."""
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Py_ssize_t[MAX_NDIM] from_x
    cdef Py_ssize_t[MAX_NDIM] to_y
    cdef Py_ssize_t[MAX_NDIM] size
    cdef Py_ssize_t[MAX_NDIM] first
    cdef Py_ssize_t[MAX_NDIM] extent
    cdef int rank = read_shape(shape, dims, "pad"), i, side
    cdef Tensor one = as_tensor(value, x.code, "pad"), y = new_tensor(x.code, rank, dims, True), border
    cdef bint some = overlap(x, low, shape, from_x, to_y, size)
    cdef const char *pv = data_of(one, "pad")
    data_of(x, "pad")
    if y.count == 0:
        return y
    if not some:
        fill(rank, dims, itemsize(x.code), y.storage.data, y.steps, pv)
        return y
    for i in range(rank):
        first[i], extent[i] = 0, dims[i]
    for i in range(rank):  # the borders of one dimension between those of the ones before it: no element is written twice
        for side in range(2):
            first[i] = 0 if side == 0 else to_y[i] + size[i]
            extent[i] = to_y[i] if side == 0 else dims[i] - first[i]
            if extent[i] > 0:
                border = window(y, rank, first, extent)
                fill(rank, border.dims, itemsize(x.code), data_of(border, "pad"), border.steps, pv)
        first[i], extent[i] = to_y[i], size[i]
    copy_into(window(y, rank, to_y, size), window(x, rank, from_x, size), "pad")
    return y


def pad_around(Tensor x not None, tuple low, tuple shape, tuple repeats):
    """x in a tensor of `shape`, uncropped, and around it what stands elsewhere: repeats has, per dimension, None or the index in x of each element of
    the padded dimension (checked by the caller)."""
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Py_ssize_t[MAX_NDIM] to_y
    cdef Py_ssize_t[MAX_NDIM] size
    cdef Py_ssize_t[MAX_NDIM] source
    cdef int rank = read_shape(shape, dims, "pad"), d
    cdef Tensor y = new_tensor(x.code, rank, dims, True)
    cdef const int64_t[::1] places
    cdef Py_ssize_t k, before
    for d in range(rank):
        to_y[d] = source[d] = low[d]
        size[d] = x.dims[d]
    copy_into(window(y, rank, to_y, size), x, "pad")
    for d in range(rank):  # the slices of one dimension, whole in the dimensions before it
        if repeats[d] is not None:
            places, before = repeats[d], to_y[d]
            size[d] = 1
            for k in range(dims[d]):
                if not before <= k < before + x.dims[d]:
                    to_y[d], source[d] = k, before + places[k]
                    copy_into(window(y, rank, to_y, size), window(y, rank, source, size), "pad")
        to_y[d] = source[d] = 0
        size[d] = dims[d]
    return y


def pad_bwd(Tensor g not None, tuple low, tuple shape):
    """The part of g that came from x of `shape`: a view, or, where x was cropped, a copy between zeros."""
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Py_ssize_t[MAX_NDIM] from_x
    cdef Py_ssize_t[MAX_NDIM] to_y
    cdef Py_ssize_t[MAX_NDIM] size
    cdef int rank = read_shape(shape, dims, "pad"), i
    cdef bint whole = True
    cdef Tensor dx = None
    for i in range(rank):
        from_x[i] = -low[i] if low[i] < 0 else 0
        to_y[i] = low[i] if low[i] > 0 else 0
        size[i] = max(0, min(dims[i] - from_x[i], g.dims[i] - to_y[i]))
        whole = whole and size[i] == dims[i]
    if whole:
        return window(g, rank, to_y, size)
    dx = new_tensor(FLOAT32, rank, dims, True)
    memset(dx.storage.data, 0, dx.count * 4)
    copy_into(window(dx, rank, from_x, size), window(g, rank, to_y, size), "pad")
    return dx


# ---- cumsum ----

def cumsum(Tensor x not None, int axis, bint backwards):
    """Running sums along one dimension, from its beginning or its end; float32."""
    cdef Tensor y = new_like(x, True)
    cdef Py_ssize_t outer = 1, inner = 1, n = x.dims[axis] if x.rank else 1
    cdef int i, mode = current_mode()
    for i in range(x.rank):
        if i < axis:
            outer *= x.dims[i]
        elif i > axis:
            inner *= x.dims[i]
    x = densely(x, "cumsum")
    cdef const float *px = <const float *>data_of(x, "cumsum")
    pin(x.storage)
    pin(y.storage)
    with nogil:
        kernels.cumsum(mode, backwards, outer, n, inner, px, <float *>y.storage.data)
    unpin(y.storage)
    unpin(x.storage)
    return y
