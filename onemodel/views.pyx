"""Views: other geometries on the same storage, and their rules. A copy is made only where no strides can express the result.

Every function takes a tensor and returns a recorded view; gradients go back by the inverse geometry, without a pass over memory
where that is possible (permute, flip, reshape, expand) and by a copy into zeros where it is not (slice, select).
"""

from libc.string cimport memset

from onemodel.rules cimport edge_shape
from onemodel.arguments cimport index_of
from onemodel.arrays cimport require
from onemodel.tensor cimport (FLOAT32, MAX_NDIM, Record, Rule, Tensor, alias, attach, checked_count, copy_into, data_of, densely, edge_of,
                              new_tensor, new_view, normal_axis, read_shape, recording, shape_tuple)
from onemodel._kernels.table cimport current_mode

from onemodel.arrays import code_of
from onemodel.errors import ShapeError

cdef extern from "Python.h":
    int PySlice_Unpack(object slice, Py_ssize_t *start, Py_ssize_t *stop, Py_ssize_t *step) except -1
    Py_ssize_t PySlice_AdjustIndices(Py_ssize_t length, Py_ssize_t *start, Py_ssize_t *stop, Py_ssize_t step)


cdef inline Tensor recorded(Tensor out, Tensor x, Rule rule, object attributes):
    if x.wants_grad and recording():
        attach(out, rule, (edge_of(x),), None, attributes, current_mode())
    return out


cdef tuple sizes_of(tuple sizes, str op):
    """One sequence or several integers, as torch takes them."""
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        return tuple(sizes[0])
    return sizes


# ---- reshape, squeeze, unsqueeze, flatten, contiguous: the elements stay in order ----

cdef class ReshapeRule(Rule):
    cdef object backward(self, Record r, Tensor g):
        cdef Py_ssize_t[MAX_NDIM] dims
        cdef int rank = edge_shape(r.edges[0], dims)
        return reshaped(g, rank, dims, self.name)


cdef bint view_steps(Tensor x, int rank, const Py_ssize_t *dims, Py_ssize_t *steps) noexcept:
    """Strides that show x's elements in a new shape, if there are any: each run of old dimensions that lies evenly in memory
    is cut anew."""
    cdef Py_ssize_t[MAX_NDIM] old_dims
    cdef Py_ssize_t[MAX_NDIM] old_steps
    cdef int old = 0, i, first = 0, end, to = 0, k
    cdef Py_ssize_t have, want, step
    if x.count == 0:
        step = 1
        for i in range(rank - 1, -1, -1):
            steps[i] = step
            step *= max(dims[i], 1)
        return True
    for i in range(x.rank):
        if x.dims[i] != 1:
            old_dims[old] = x.dims[i]
            old_steps[old] = x.steps[i]
            old += 1
    while first < old:
        if to >= rank:
            return False
        end = first + 1
        have = old_dims[first]
        i = to
        want = dims[i]
        while have != want:  # widen either side until both runs hold as many elements
            if want < have:
                i += 1
                want *= dims[i]
            else:
                have *= old_dims[end]
                end += 1
        for k in range(first, end - 1):
            if old_steps[k] != old_steps[k + 1] * old_dims[k + 1]:
                return False
        step = old_steps[end - 1]
        for k in range(i, to - 1, -1):
            steps[k] = step
            step *= dims[k]
        to = i + 1
        first = end
    for k in range(to, rank):
        steps[k] = 1
    return True


cdef Tensor reshaped(Tensor x, int rank, const Py_ssize_t *dims, str op):
    cdef Py_ssize_t[MAX_NDIM] steps
    data_of(x, op)
    if view_steps(x, rank, dims, steps):
        return new_view(x, rank, dims, steps, x.offset)
    cdef Tensor copy = densely(x, op)
    view_steps(copy, rank, dims, steps)
    return new_view(copy, rank, dims, steps, 0)


cdef ReshapeRule RESHAPE = ReshapeRule()
RESHAPE.name = "reshape"


def reshape(x, *shape):
    """The elements in another shape; one size may be -1."""
    cdef Tensor t = require(x, "reshape")
    cdef tuple sizes = sizes_of(shape, "reshape")
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Py_ssize_t known = 1
    cdef int rank = <int>len(sizes), free = -1, i
    if len(sizes) > MAX_NDIM:
        raise ShapeError(f"reshape: {len(sizes)} dimensions; at most {MAX_NDIM} are supported")
    for i in range(rank):
        try:
            dims[i] = sizes[i] if type(sizes[i]) is int else index_of("reshape", "a size", sizes[i])
        except OverflowError:
            raise ShapeError(f"reshape: a size in {sizes} does not fit 64 bits") from None
        if dims[i] == -1 and free < 0:
            free = i
            dims[i] = 1
        elif dims[i] < 0:
            raise ShapeError(f"reshape: expected sizes of 0 or more and at most one -1, got {sizes}")
    try:
        known = checked_count(rank, dims)
    except MemoryError:
        raise ShapeError(f"reshape: shape {sizes} does not hold the {t.count} elements of shape {t.shape}") from None
    if free >= 0:
        if known == 0:
            raise ShapeError(f"reshape: the -1 in {sizes} is ambiguous beside a size of 0; write the size out")
        dims[free] = t.count // known
        known *= dims[free]
    if known != t.count:
        raise ShapeError(f"reshape: shape {sizes} does not hold the {t.count} elements of shape {t.shape}")
    return recorded(reshaped(t, rank, dims, "reshape"), t, RESHAPE, None)


def squeeze(x, dim=None):
    """Without dimensions of size 1: all of them, or those named (of another size: unchanged)."""
    cdef Tensor t = require(x, "squeeze")
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Py_ssize_t[MAX_NDIM] steps
    cdef int rank = 0, i
    cdef Py_ssize_t mask = 0
    if dim is None:
        mask = -1
    else:
        for d in dim if isinstance(dim, (tuple, list)) else (dim,):
            mask |= <Py_ssize_t>1 << normal_axis(d, t.rank, "squeeze")
    data_of(t, "squeeze")
    for i in range(t.rank):
        if t.dims[i] != 1 or not mask >> i & 1:
            dims[rank] = t.dims[i]
            steps[rank] = t.steps[i]
            rank += 1
    return recorded(new_view(t, rank, dims, steps, t.offset), t, RESHAPE, None)


def unsqueeze(x, dim):
    """A new dimension of size 1 before dimension `dim` (from -rank-1 to rank)."""
    cdef Tensor t = require(x, "unsqueeze")
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Py_ssize_t[MAX_NDIM] steps
    cdef Py_ssize_t at = normal_axis(dim, t.rank + 1, "unsqueeze")
    cdef int i
    if t.rank == MAX_NDIM:
        raise ShapeError(f"unsqueeze: more than {MAX_NDIM} dimensions")
    data_of(t, "unsqueeze")
    for i in range(t.rank + 1):
        if i == at:
            dims[i] = 1
            steps[i] = 1
        else:
            dims[i] = t.dims[i - (i > at)]
            steps[i] = t.steps[i - (i > at)]
    return recorded(new_view(t, t.rank + 1, dims, steps, t.offset), t, RESHAPE, None)


def flatten(x, start_dim=0, end_dim=-1):
    """Dimensions start_dim to end_dim joined into one."""
    cdef Tensor t = require(x, "flatten")
    cdef Py_ssize_t first = normal_axis(start_dim, t.rank, "flatten"), last = normal_axis(end_dim, t.rank, "flatten")
    if first > last:
        raise ShapeError(f"flatten: start_dim {start_dim} lies behind end_dim {end_dim}")
    cdef tuple shape = t.shape
    cdef Py_ssize_t joined = 1
    for size in shape[first:last + 1]:
        joined *= size
    return reshape(t, shape[:first] + (joined,) + shape[last + 1:])


def contiguous(x):
    """The tensor itself if it is contiguous, else a contiguous copy."""
    cdef Tensor t = require(x, "contiguous")
    data_of(t, "contiguous")
    return t if t.dense else recorded(densely(t, "contiguous"), t, RESHAPE, None)


def clone(x):
    """A contiguous copy."""
    cdef Tensor t = require(x, "clone")
    cdef Tensor out = new_tensor(t.code, t.rank, t.dims, True)
    copy_into(out, t, "clone")
    return recorded(out, t, RESHAPE, None)


# ---- permute, transpose ----

cdef class PermuteRule(Rule):
    cdef object backward(self, Record r, Tensor g):
        return permuted(g, r.attributes)


cdef Tensor permuted(Tensor x, tuple axes):
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Py_ssize_t[MAX_NDIM] steps
    cdef int i
    for i in range(x.rank):
        dims[i] = x.dims[<int>axes[i]]
        steps[i] = x.steps[<int>axes[i]]
    return new_view(x, x.rank, dims, steps, x.offset)


cdef PermuteRule PERMUTE = PermuteRule()
PERMUTE.name = "permute"


cdef Tensor permute_recorded(Tensor x, tuple axes, str op):
    data_of(x, op)
    cdef list inverse = [0] * x.rank
    for i, axis in enumerate(axes):
        inverse[axis] = i
    return recorded(permuted(x, axes), x, PERMUTE, tuple(inverse))


def permute(x, *dims):
    """The dimensions in another order."""
    cdef Tensor t = require(x, "permute")
    cdef tuple order = sizes_of(dims, "permute")
    cdef tuple axes = tuple([normal_axis(d, t.rank, "permute") for d in order])
    if len(axes) != t.rank or len(set(axes)) != t.rank:
        raise ShapeError(f"permute: expected each of the {t.rank} dimensions once, got {order}")
    return permute_recorded(t, axes, "permute")


def transpose(x, dim0, dim1):
    """Two dimensions swapped."""
    cdef Tensor t = require(x, "transpose")
    a, b = normal_axis(dim0, t.rank, "transpose"), normal_axis(dim1, t.rank, "transpose")
    axes = list(range(t.rank))
    if axes:
        axes[a], axes[b] = b, a
    return permute_recorded(t, tuple(axes), "transpose")


def reverse_dims(x):
    """`t.T`: all dimensions in reverse order."""
    cdef Tensor t = require(x, "T")
    return permute_recorded(t, tuple(range(t.rank - 1, -1, -1)), "T")


# ---- expand, flip ----

cdef class ExpandRule(Rule):
    cdef object backward(self, Record r, Tensor g):
        return g  # the engine sums over what was stretched


cdef ExpandRule EXPAND = ExpandRule()
EXPAND.name = "expand"


def expand(x, *shape):
    """Dimensions of size 1 stretched without a copy (stride 0), new ones in front; -1 keeps a size."""
    cdef Tensor t = require(x, "expand")
    cdef tuple sizes = tuple([index_of("expand", "a size", size) for size in sizes_of(shape, "expand")])
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Py_ssize_t[MAX_NDIM] steps
    cdef int rank = <int>len(sizes), lead = rank - t.rank, i
    if lead < 0:
        raise ShapeError(f"expand: {rank} sizes for the {t.rank} dimensions of shape {t.shape}")
    read_shape(tuple([t.dims[i - lead] if size == -1 and i >= lead else size for i, size in enumerate(sizes)]), dims, "expand")
    checked_count(rank, dims)
    data_of(t, "expand")
    for i in range(rank):
        if i < lead:
            steps[i] = 0
        elif t.dims[i - lead] == dims[i]:
            steps[i] = t.steps[i - lead]
        elif t.dims[i - lead] == 1:
            steps[i] = 0
        else:
            raise ShapeError(f"expand: size {t.dims[i - lead]} in dimension {i - lead} of shape {t.shape} cannot become {dims[i]}; only 1 stretches")
    return recorded(new_view(t, rank, dims, steps, t.offset), t, EXPAND, None)


cdef class FlipRule(Rule):
    cdef object backward(self, Record r, Tensor g):
        return flipped(g, r.attributes)


cdef Tensor flipped(Tensor x, Py_ssize_t mask):
    cdef Py_ssize_t[MAX_NDIM] steps
    cdef Py_ssize_t offset = x.offset
    cdef int i
    for i in range(x.rank):
        steps[i] = x.steps[i]
        if mask >> i & 1 and x.count:
            offset += (x.dims[i] - 1) * x.steps[i]
            steps[i] = -steps[i]
    return new_view(x, x.rank, x.dims, steps, offset)


cdef FlipRule FLIP = FlipRule()
FLIP.name = "flip"


def flip(x, *dims):
    """The order of elements reversed along the named dimensions, as a view."""
    cdef Tensor t = require(x, "flip")
    cdef Py_ssize_t mask = 0, bit
    for d in sizes_of(dims, "flip"):
        bit = <Py_ssize_t>1 << normal_axis(d, t.rank, "flip")
        if mask & bit:
            raise ShapeError(f"flip: dimension {d} is named twice")
        mask |= bit
    data_of(t, "flip")
    return recorded(flipped(t, mask if t.rank else 0), t, FLIP, mask)


# ---- slice, select and every combination of them that indexing writes ----

cdef class SliceRule(Rule):
    """attributes: (start, step, length) per input dimension. The gradient goes back into zeros."""
    cdef object backward(self, Record r, Tensor g):
        cdef Py_ssize_t[MAX_NDIM] dims
        cdef Py_ssize_t[MAX_NDIM] lengths
        cdef int rank = edge_shape(r.edges[0], dims), i
        cdef Tensor dx = new_tensor(FLOAT32, rank, dims, False)
        memset(dx.storage.data, 0, dx.count * 4)
        cdef Tensor window = sliced(dx, <tuple>r.attributes)
        for i in range(rank):
            lengths[i] = window.dims[i]
        copy_into(window, reshaped(g, rank, lengths, "slice"), "slice")
        return dx


cdef Tensor sliced(Tensor x, tuple ranges):
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Py_ssize_t[MAX_NDIM] steps
    cdef Py_ssize_t offset = x.offset, start, step
    cdef int i
    for i in range(x.rank):
        start, step, dims[i] = ranges[i]
        if dims[i] > 0:  # an empty range computes no address
            offset += start * x.steps[i]
        steps[i] = x.steps[i] * step if dims[i] > 1 else 1
    return new_view(x, x.rank, dims, steps, offset)


cdef SliceRule SLICE = SliceRule()
SLICE.name = "slice"



def slice_view(Tensor x not None, tuple ranges, tuple shape, str op):
    """x restricted to `ranges`, one (start, step, length) per dimension, in the shape `shape`, which differs by sizes of 1 only."""
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef int rank = read_shape(shape, dims, op)
    data_of(x, op)
    return recorded(reshaped(sliced(x, ranges), rank, dims, op), x, SLICE, ranges)


def slice_range(start, stop, step, Py_ssize_t size, str op):
    """(start, step, length) of a Python slice over `size` elements; only positive steps."""
    start, stop, step = [None if n is None else index_of(op, name, n, "an integer or None")
                         for name, n in (("a slice's start", start), ("a slice's end", stop), ("a slice's step", step))]
    if step is not None and step <= 0:
        raise ValueError(f"{op}: a slice's step must be positive, got {step}; use flip for the reverse order")
    first, end, by = slice(start, stop, step).indices(size)
    return first, min(by, max(size, 1)), max(0, (end - first + by - 1) // by)


def whole(Tensor x not None):
    return [(0, 1, size) for size in x.shape]


def select(x, dim, index):
    """One index along a dimension, which disappears."""
    cdef Tensor t = require(x, "select")
    if t.rank == 0:
        raise IndexError("select: a 0-d tensor has no dimension to select from")
    cdef Py_ssize_t axis = normal_axis(dim, t.rank, "select")
    i = index_of("select", "index", index)
    if not -t.dims[axis] <= i < t.dims[axis]:
        raise IndexError(f"select: index {i} is out of range for size {t.dims[axis]} of dimension {dim}")
    ranges, shape = whole(t), t.shape
    ranges[axis] = (i % t.dims[axis], 1, 1)
    return slice_view(t, tuple(ranges), shape[:axis] + shape[axis + 1:], "select")


def slice_(x, dim=0, start=None, end=None, step=1):
    """Elements start, start + step, ... below end of one dimension, as a view; bounds as Python's slices take them."""
    cdef Tensor t = require(x, "slice")
    if t.rank == 0:
        raise IndexError("slice: a 0-d tensor has no dimension to slice")
    cdef Py_ssize_t axis = normal_axis(dim, t.rank, "slice")
    ranges, shape = whole(t), list(t.shape)
    ranges[axis] = slice_range(start, end, step, t.dims[axis], "slice")
    shape[axis] = ranges[axis][2]
    return slice_view(t, tuple(ranges), tuple(shape), "slice")


def basic_index(Tensor t not None, key):
    """t[key] for Python integers, slices, `...` and None; None where the key holds anything else or something wrong, which
    `ops/index.py` reads at leisure."""
    cdef tuple parts = key if type(key) is tuple else (key,)
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Py_ssize_t[MAX_NDIM] steps
    cdef Py_ssize_t[MAX_NDIM] start
    cdef Py_ssize_t[MAX_NDIM] step
    cdef Py_ssize_t[MAX_NDIM] length
    cdef Py_ssize_t offset = t.offset, stop, at
    cdef int rank = 0, dim = 0, taken = 0, whole = 0
    cdef bint dots = False
    for part in parts:
        if part is Ellipsis and not dots:
            dots = True
        elif type(part) is int or type(part) is slice:
            taken += 1
        elif part is not None:
            return None
    if taken > t.rank or t.rank - taken + len(parts) > MAX_NDIM:
        return None
    data_of(t, "indexing")
    for part in parts if dots else parts + (Ellipsis,):
        if part is None:
            dims[rank], steps[rank] = 1, 1
            rank += 1
            continue
        if part is Ellipsis:
            for whole in range(t.rank - taken):
                start[dim], step[dim], length[dim] = 0, 1, t.dims[dim]
                dims[rank], steps[rank] = t.dims[dim], t.steps[dim]
                rank += 1
                dim += 1
            continue
        if type(part) is int:
            try:
                at = part
            except OverflowError:
                return None
            at += t.dims[dim] if at < 0 else 0
            if at < 0 or at >= t.dims[dim]:
                return None
            start[dim], step[dim], length[dim] = at, 1, 1
        else:
            try:
                PySlice_Unpack(part, &start[dim], &stop, &step[dim])
            except (TypeError, ValueError):
                return None
            if step[dim] <= 0:
                return None
            length[dim] = PySlice_AdjustIndices(t.dims[dim], &start[dim], &stop, step[dim])
            dims[rank] = length[dim]
            steps[rank] = t.steps[dim] * step[dim] if length[dim] > 1 else 1
            rank += 1
        if length[dim] > 0:  # an empty range computes no address
            offset += start[dim] * t.steps[dim]
        dim += 1
    cdef Tensor out = new_view(t, rank, dims, steps, offset)
    if t.wants_grad and recording():
        recorded(out, t, SLICE, tuple([(start[dim], step[dim] if length[dim] > 1 else 1, length[dim]) for dim in range(t.rank)]))
    return out


# ---- cast ----

def cast(x, dtype):
    """The values in another type. float32 to an integer truncates, saturates, and makes 0 of NaN; no gradient passes an integer."""
    cdef Tensor t = require(x, "cast")
    cdef int code = code_of(dtype, "cast")
    if code == t.code:
        data_of(t, "cast")
        return t
    cdef Tensor out = new_tensor(code, t.rank, t.dims, True)
    copy_into(out, t, "cast")
    return out


RULES = {rule.name: rule for rule in (RESHAPE, PERMUTE, EXPAND, FLIP, SLICE)}
