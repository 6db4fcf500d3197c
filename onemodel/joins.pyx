"""cat and stack: tensors copied side by side into one; the gradient goes back as views of the incoming one. split: the reverse, as views whose
gradients are copied side by side."""

from libc.string cimport memset

from onemodel._kernels.table cimport current_mode
from onemodel.arguments cimport index_of
from onemodel.arrays cimport require
from onemodel.rules cimport any_wants, edges_of
from onemodel.tensor cimport (FLOAT32, MAX_NDIM, Record, Rule, Tensor, alias, attach, copy_into, data_of, edge_of, new_tensor, new_view, normal_axis,
                              recording, same_shape)

from onemodel.errors import ShapeError

MOST_EMPTY = 1 << 16     # parts of an empty dimension: torch gives as many as were asked for


cdef class JoinRule(Rule):
    """attributes: (axis, the size of each input along it, or None where the axis is new)."""
    cdef object backward(self, Record r, Tensor g):
        cdef int axis = r.attributes[0]
        cdef Py_ssize_t at = 0, size
        cdef object sizes = r.attributes[1]
        cdef list gradients = []
        for k in range(len(r.edges)):
            size = 1 if sizes is None else sizes[k]
            gradients.append(window(g, axis, at, size, sizes is None))
            at += size
        return tuple(gradients)


cdef JoinRule CAT = JoinRule()
CAT.name = "cat"
cdef JoinRule STACK = JoinRule()
STACK.name = "stack"


cdef tuple checked(object tensors, str op):
    if isinstance(tensors, Tensor) or not isinstance(tensors, (tuple, list)):
        raise TypeError(f"{op}: expected a list or tuple of tensors, got {type(tensors).__name__}")
    if not tensors:
        raise ValueError(f"{op}: expected at least one tensor, got none")
    cdef Tensor first
    for t in tensors:
        if not isinstance(t, Tensor):
            raise TypeError(f"{op}: expected tensors, got {type(t).__name__}; wrap arrays with om.tensor")
        first = <Tensor>tensors[0]
        if (<Tensor>t).code != first.code:
            raise TypeError(f"{op}: {first.dtype} and {(<Tensor>t).dtype} do not mix; write .cast(om.{first.dtype.name})")
        data_of(<Tensor>t, op)
    return tuple(tensors)


cdef Tensor window(Tensor out, int axis, Py_ssize_t at, Py_ssize_t size, bint stacked):
    """Where one input goes: `size` indices from `at` along the axis, or the one index `at` with the axis dropped."""
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Py_ssize_t[MAX_NDIM] steps
    cdef int rank = 0, i
    for i in range(out.rank):
        if i == axis and stacked:
            continue
        dims[rank] = size if i == axis else out.dims[i]
        steps[rank] = out.steps[i]
        rank += 1
    return new_view(out, rank, dims, steps, out.offset + (at * out.steps[axis] if size else 0))


cdef Tensor join(tuple tensors, int axis, bint stacked, JoinRule rule):
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Tensor t = <Tensor>tensors[0], out
    cdef int rank = t.rank + stacked, i
    cdef Py_ssize_t total = 0, at = 0, size
    for i in range(rank):
        dims[i] = t.dims[i - (stacked and i > axis)] if i != axis or not stacked else 0
    for t in tensors:
        total += 1 if stacked else t.dims[axis]
    dims[axis] = total
    t = <Tensor>tensors[0]
    out = new_tensor(t.code, rank, dims, True)
    for t in tensors:
        size = 1 if stacked else t.dims[axis]
        copy_into(window(out, axis, at, size, stacked), t, rule.name)
        at += size
    if any_wants(tensors) and recording():
        attach(out, rule, edges_of(tensors), None, (axis, None if stacked else tuple([(<Tensor>s).dims[axis] for s in tensors])), current_mode())
    return out


def cat(tensors, dim=0):
    """Tensors joined along an existing dimension; all other sizes and the types agree."""
    cdef tuple parts = checked(tensors, "cat")
    cdef Tensor first = <Tensor>parts[0], t
    cdef int i, axis
    if first.rank == 0:
        raise ShapeError("cat: 0-d tensors have no dimension to join along; use stack")
    axis = <int>normal_axis(dim, first.rank, "cat")
    for t in parts:
        if t.rank != first.rank:
            raise ShapeError(f"cat: expected {first.rank} dimensions as in {first.shape}, got shape {t.shape}")
        for i in range(t.rank):
            if i != axis and t.dims[i] != first.dims[i]:
                raise ShapeError(f"cat: shapes {first.shape} and {t.shape} differ in dimension {i}; only dimension {axis} may differ")
    return join(parts, axis, False, CAT)


def stack(tensors, dim=0):
    """Tensors of one shape joined along a new dimension."""
    cdef tuple parts = checked(tensors, "stack")
    cdef Tensor first = <Tensor>parts[0], t
    if first.rank == MAX_NDIM:
        raise ShapeError(f"stack: more than {MAX_NDIM} dimensions")
    for t in parts:
        if not same_shape(t, first.rank, first.dims):
            raise ShapeError(f"stack: shapes {first.shape} and {t.shape} differ")
    return join(parts, <int>normal_axis(dim, first.rank + 1, "stack"), True, STACK)


# ---- split ----

cdef class WholeRule(Rule):
    """The tensor that was split, as one record behind all of its parts, which have put their gradients together in its pending one."""
    cdef object backward(self, Record r, Tensor g):
        return g


cdef class PartRule(Rule):
    """attributes: (axis, where the part begins, its size). The gradient is copied to its place in the pending gradient of the whole, which only
    the parts write: with one tensor of zeros for each part, k parts would cost k passes over the whole."""
    cdef object backward(self, Record r, Tensor g):
        cdef Record whole = <Record>r.edges[0]
        if whole.pending is None:
            whole.pending = new_tensor(FLOAT32, whole.rank, whole.dims, False)
            memset(whole.pending.storage.data, 0, whole.pending.count * 4)
        copy_into(window(whole.pending, r.attributes[0], r.attributes[1], r.attributes[2], False), g, self.name)
        return None


cdef WholeRule WHOLE = WholeRule()
cdef PartRule PART = PartRule()
WHOLE.name = PART.name = "split"
WHOLE.builtin = True  # PART becomes so when its operator is registered


cdef Tensor splittable(object x, str op):
    cdef Tensor t = require(x, op)
    if t.rank == 0:
        raise ShapeError(f"{op}: a 0-d tensor has no dimension to split")
    data_of(t, op)
    return t


cdef tuple parts_of(Tensor t, int axis, list sizes):
    cdef Tensor whole = t, part
    cdef Py_ssize_t at = 0, size
    cdef bint wants = t.wants_grad and recording()
    cdef list parts = []
    if wants:
        whole = alias(t)
        attach(whole, WHOLE, (edge_of(t),), None, None, current_mode())
    for size in sizes:
        part = window(t, axis, at, size, False)
        if wants:
            attach(part, PART, (whole.record,), None, (axis, at, size), current_mode())
        parts.append(part)
        at += size
    return tuple(parts)


def split(tensor, split_size_or_sections, dim=0):
    """Parts of one dimension as views: of one size (the last may be smaller), or of the sizes listed."""
    cdef Tensor t = splittable(tensor, "split")
    cdef int axis = <int>normal_axis(dim, t.rank, "split")
    cdef Py_ssize_t size = t.dims[axis]
    cdef object each
    if isinstance(split_size_or_sections, (tuple, list)):
        sizes = [index_of("split", "a size", n) for n in split_size_or_sections]
        if any([n < 0 for n in sizes]) or sum(sizes) != size:
            raise ShapeError(f"split: sizes {sizes} do not add up to the {size} elements of dimension {dim} (shape {t.shape})")
    else:
        each = index_of("split", "split_size_or_sections", split_size_or_sections, "an integer or a tuple of them")
        if each < 0 or each == 0 and size > 0:
            raise ShapeError(f"split: the size of a part must be positive, got {each} for dimension {dim} of size {size}")
        sizes = [min(each, size - at) for at in range(0, size, max(each, 1))] or [0]
    return parts_of(t, axis, sizes)


def chunk(input, chunks, dim=0):
    """At most `chunks` parts of one dimension as views, all of one size but the last."""
    cdef Tensor t = splittable(input, "chunk")
    cdef int axis = <int>normal_axis(dim, t.rank, "chunk")
    cdef Py_ssize_t size = t.dims[axis]
    count = index_of("chunk", "chunks", chunks)
    if count < 1:
        raise ValueError(f"chunk: expected at least one part, got {count}")
    if size == 0:
        if count > MOST_EMPTY:
            raise ValueError(f"chunk: {count} empty parts; at most {MOST_EMPTY}")
        return parts_of(t, axis, [0] * count)
    each = (size + count - 1) // count
    return parts_of(t, axis, [min(each, size - at) for at in range(0, size, each)])


RULES = {"cat": CAT, "stack": STACK, "split": PART}
