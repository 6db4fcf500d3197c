"""cat and stack: tensors copied side by side into one; the gradient goes back as views of the incoming one."""

from onemodel._kernels.table cimport current_mode
from onemodel.rules cimport any_wants, edges_of
from onemodel.tensor cimport MAX_NDIM, Record, Rule, Tensor, attach, copy_into, data_of, new_tensor, new_view, normal_axis, recording, same_shape

from onemodel.errors import ShapeError


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


RULES = {"cat": CAT, "stack": STACK}
