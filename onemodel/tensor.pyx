"""Tensor: shape, strides, storage, version, gradient and record; and Record and Rule, the nodes of the graph.

Owns how tensors come to be and how they look at memory. Holds no operator: arithmetic, indexing and the methods that
mirror operators are looked up in `slots` or installed by the registry.
"""

import numpy as np

cimport cython
from cpython.object cimport PyObject, PyTypeObject
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int32_t, int64_t, uint8_t

from onemodel._kernels.copy cimport cast, strided_copy
from onemodel._pool.pool cimport Storage, new_storage, raise_closed
from onemodel.arguments cimport flag, index_of
from onemodel.lifetime cimport bury, held, track, untrack

from onemodel.errors import ShapeError, TensorVersionError

cdef extern from *:
    """
    static _Thread_local int om_recording = 1; /* grad mode, one per thread; new threads record */
    static PyObject *om_type_dict(PyTypeObject *t) { Py_INCREF(t->tp_dict); return t->tp_dict; }
    """
    int om_recording
    dict om_type_dict(PyTypeObject *t)

cdef extern from "Python.h":
    void PyType_Modified(PyTypeObject *t)

DTYPES = (np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.uint8), np.dtype(np.bool_))

cdef tuple dtypes = DTYPES
cdef tuple names = tuple(d.name for d in DTYPES)

# Callables that the operator families put here: name -> function; what Tensor's special methods run.
cdef dict slots = {}
# Stands in for the storage of a Tensor that was made without one, so that no use of it can touch memory.
cdef Storage nowhere = Storage.__new__(Storage)


cdef bint recording() noexcept nogil:
    return om_recording


cdef void set_recording(bint on) noexcept nogil:
    global om_recording
    om_recording = on


def install_method(str name, function):
    """Make `function` a method (or a property) of Tensor; the registry mirrors operators with it."""
    om_type_dict(<PyTypeObject *>Tensor)[name] = function
    PyType_Modified(<PyTypeObject *>Tensor)


def install_slot(str name, function):
    """Give a special method of Tensor its function: add, getitem, add_, eq, backward ..."""
    slots[name] = function


# ---- making tensors ----

cdef Py_ssize_t checked_count(int rank, const Py_ssize_t *dims) except -1:
    cdef Py_ssize_t n = 1
    cdef int i
    for i in range(rank):
        if dims[i] < 0:
            raise ShapeError(f"negative size in shape {shape_tuple(rank, dims)}")
        if dims[i] == 0:
            return 0
    for i in range(rank):
        # 8 bytes is the largest item: the byte count must fit 63 bits too.
        if dims[i] > (<Py_ssize_t>1 << 59) // n:
            raise MemoryError(f"a tensor of shape {shape_tuple(rank, dims)} has more bytes than a 64-bit size can count")
        n *= dims[i]
    return n


cdef tuple shape_tuple(int rank, const Py_ssize_t *dims):
    return tuple([dims[i] for i in range(rank)])


cdef Tensor blank(int code, int rank, const Py_ssize_t *dims):
    cdef Tensor t = Tensor.__new__(Tensor)
    cdef int i
    untrack(t)
    t.code = code
    t.rank = rank
    for i in range(rank):
        t.dims[i] = dims[i]
    return t


cdef void set_row_major(Tensor t, Py_ssize_t count) noexcept:
    cdef Py_ssize_t step = 1
    cdef int i
    t.count = count
    t.dense = True
    for i in range(t.rank - 1, -1, -1):
        t.steps[i] = step
        step *= t.dims[i] if t.dims[i] > 1 else 1


cdef Tensor new_tensor(int code, int rank, const Py_ssize_t *dims, bint scoped):
    cdef Py_ssize_t count = checked_count(rank, dims)
    cdef Tensor t = blank(code, rank, dims)
    set_row_major(t, count)
    t.storage = new_storage(count * itemsize(code), scoped)
    return t


cdef Tensor new_like(Tensor t, bint scoped):
    return new_tensor(t.code, t.rank, t.dims, scoped)


cdef Tensor new_view(Tensor base, int rank, const Py_ssize_t *dims, const Py_ssize_t *steps, Py_ssize_t offset):
    cdef Tensor t = blank(base.code, rank, dims)
    cdef Py_ssize_t step = 1
    cdef int i
    t.storage = base.storage
    t.offset = offset
    t.count = 1
    for i in range(rank):
        t.steps[i] = steps[i]
        t.count *= dims[i]
    t.dense = True
    if t.count > 0:  # strides of size-1 dimensions and of empty tensors mean nothing
        for i in range(rank - 1, -1, -1):
            if dims[i] != 1:
                if steps[i] != step:
                    t.dense = False
                    break
                step *= dims[i]
    return t


cdef Tensor alias(Tensor t):
    return new_view(t, t.rank, t.dims, t.steps, t.offset)


cdef char *data_of(Tensor t, str op) except NULL:
    if t.storage.data == NULL:
        raise_closed(op)
    return t.storage.data + t.offset * itemsize(t.code)


cdef bint same_shape(Tensor t, int rank, const Py_ssize_t *dims) noexcept:
    cdef int i
    if t.rank != rank:
        return False
    for i in range(rank):
        if t.dims[i] != dims[i]:
            return False
    return True


cdef Tensor densely(Tensor t, str op):
    if t.dense:
        return t
    cdef Tensor out = new_tensor(t.code, t.rank, t.dims, True)
    copy_into(out, t, op)
    return out


cdef int copy_into(Tensor target, Tensor source, str op) except -1:
    cdef Py_ssize_t[MAX_NDIM] steps
    cdef int lead = target.rank - source.rank
    cdef int i
    if lead < 0:
        raise ShapeError(f"{op}: a source of shape {source.shape} does not broadcast to {target.shape}")
    for i in range(target.rank):
        if i < lead or (source.dims[i - lead] == 1 and target.dims[i] != 1):
            steps[i] = 0
        elif source.dims[i - lead] == target.dims[i]:
            steps[i] = source.steps[i - lead]
        else:
            raise ShapeError(f"{op}: a source of shape {source.shape} does not broadcast to {target.shape}")
    cdef char *to = data_of(target, op)
    cdef char *start = data_of(source, op)
    cdef Tensor dense = target
    if target.count == 0:
        return 0
    if source.code == target.code:
        strided_copy(target.rank, target.dims, itemsize(target.code), start, steps, to, target.steps)
        return 0
    if not target.dense:
        dense = new_tensor(target.code, target.rank, target.dims, False)
    cast(target.rank, target.dims, source.code, start, steps, target.code, data_of(dense, op))
    return 0 if dense is target else copy_into(target, dense, op)


cdef int read_shape(tuple shape, Py_ssize_t *dims, str op) except -1:
    if len(shape) > MAX_NDIM:
        raise ShapeError(f"{op}: {len(shape)} dimensions; at most {MAX_NDIM} are supported")
    cdef int i
    for i in range(<int>len(shape)):
        try:
            dims[i] = index_of(op, "a size", shape[i])
        except OverflowError:
            raise ShapeError(f"{op}: a size in {shape} does not fit 64 bits") from None
        if dims[i] < 0:
            raise ShapeError(f"{op}: negative size in shape {shape}")
    return <int>len(shape)


# ---- the graph's nodes ----

cdef class Rule:
    cdef object backward(self, Record r, Tensor g):
        raise TypeError(f"{self.name} has no backward rule")


@cython.binding(False)  # a bound function of Cython takes any object for self
cdef class Record:
    """One executed operator; the `ctx` of a Python operator's forward and backward.

    forward may set any attribute and call `save_for_backward(*tensors)`; backward reads `saved_tensors` and
    `needs_input_grad` (one bool per tensor input).
    """

    def __cinit__(self):
        self.versions = self.few_versions

    def __dealloc__(self):
        if self.versions != self.few_versions:
            PyMem_Free(self.versions)
        # An edge or a saved tensor may own the last reference to the next record of a chain of 100 000: no nesting here.
        cdef PyObject *edges = held(self.edges)
        cdef PyObject *saved = held(self.saved)
        self.edges = self.saved = None
        bury(edges)
        bury(saved)

    def save_for_backward(self, *tensors):
        """Keep tensors for backward; an in-place change before backward raises TensorVersionError there."""
        if self.bound:  # a compiled rule believes what its record saved
            raise RuntimeError(f"save_for_backward: the forward of {self.name} is over; call it inside forward")
        set_saved(self, tensors)

    def __getattr__(self, name):
        try:
            return self.attributes[name]
        except (KeyError, TypeError):
            state = " (it was released)" if self.released else ""
            raise AttributeError(f"the record of {self.name}{state} has no attribute {name!r}") from None

    def __setattr__(self, name, value):
        if self.bound and self.rule.builtin:
            raise AttributeError(f"the record of {self.name} is fixed once forward is over; attributes are for operators of your own")
        if self.attributes is None:
            self.attributes = {}
            track(self)
        self.attributes[name] = value

    @property
    def saved_tensors(self):
        return self.saved if self.saved is not None else ()

    @property
    def needs_input_grad(self):
        return tuple([edge is not None for edge in self.edges]) if self.edges is not None else ()

    @property
    def name(self):
        """The operator's name."""
        return self.rule.name if self.rule is not None else ""

    def __repr__(self):
        return f"<{self.name} record{', released' if self.released else ''}>"


cdef object edge_of(Tensor t):
    if t.record is not None:
        return t.record
    return t if t.wants_grad else None


cdef int set_saved(Record r, tuple saved) except -1:
    cdef Py_ssize_t n = len(saved), i
    if n > 4:
        if r.versions != r.few_versions:
            PyMem_Free(r.versions)
        r.versions = <Py_ssize_t *>PyMem_Malloc(n * sizeof(Py_ssize_t))
        if r.versions == NULL:
            r.versions = r.few_versions
            raise MemoryError(f"{r.name}: no memory for {n} saved versions")
    for i in range(n):
        s = saved[i]
        if s is None:
            continue
        if not isinstance(s, Tensor):
            raise TypeError(f"save_for_backward: expected tensors, got {type(s).__name__}; set other values as attributes of ctx")
        r.versions[i] = (<Tensor>s).storage.version
    r.saved = saved
    return 0


cdef int attach(Tensor out, Rule rule, tuple edges, tuple saved, object attributes, int mode) except -1:
    cdef Record r = Record.__new__(Record)
    r.rule = rule
    r.edges = edges
    r.mode = mode
    r.attributes = attributes
    if saved is not None:
        set_saved(r, saved)
    bind(out, r)
    return 0


cdef void bind(Tensor out, Record r) noexcept:
    cdef int i
    if type(r.attributes) is dict:
        track(out)
    else:
        untrack(r)
        untrack(r.edges)
        if r.saved is not None:
            untrack(r.saved)
    r.rank = out.rank
    for i in range(out.rank):
        r.dims[i] = out.dims[i]
    out.record = r
    r.bound = out.wants_grad = True


cdef int check_saved(Record r) except -1:
    cdef Py_ssize_t i
    cdef Tensor s
    if r.saved is None:
        return 0
    for i in range(len(r.saved)):
        s = <Tensor>r.saved[i]
        if s is None:
            continue
        if s.storage.data == NULL:
            raise_closed(f"backward of {r.name}, saved tensor {i}")
        if s.storage.version != r.versions[i]:
            raise TensorVersionError(
                f"backward of {r.name}: saved tensor {i} (shape {s.shape}) was modified in place: it was at version {r.versions[i]}, "
                f"is at version {s.storage.version}; clone it before the change, or change it after backward")
    return 0


cdef int release(Record r) except -1:
    r.released = True
    r.saved = None
    r.edges = None
    r.attributes = None
    return 0


# ---- the tensor ----

cdef object call(str slot, a, b):
    return slots[slot](a, b)


@cython.binding(False)
@cython.embedsignature(True)
@cython.embedsignature.format("clinic")
cdef class Tensor:
    """A strided array of float32, int32, int64, uint8 or bool that can take part in backward.

    Made by `om.tensor`, `om.zeros`, ..., and by operators. Views share storage and version. `strides` counts elements.
    """

    def __cinit__(self):
        self.storage = nowhere
        self.dense = True
        self.count = 1

    def __init__(self, *args, **kwargs):
        raise TypeError("Tensor is not called directly; use om.tensor(data), om.from_numpy(array), om.zeros(...) and their like")

    # -- what it is --
    @property
    def shape(self):
        return shape_tuple(self.rank, self.dims)

    @property
    def strides(self):
        """Steps between neighbours along each dimension, in elements."""
        return shape_tuple(self.rank, self.steps)

    @property
    def dtype(self):
        return dtypes[self.code]

    @property
    def ndim(self):
        return self.rank

    @property
    def version(self):
        """How often the storage was changed in place; shared by all views and detach()."""
        return self.storage.version

    @property
    def is_leaf(self):
        return self.record is None

    @property
    def grad_fn(self):
        """The record of the operator that made this tensor, or None for a leaf."""
        return self.record

    @property
    def _storage(self):
        return self.storage

    def numel(self):
        """Number of elements."""
        return self.count

    def size(self, dim=None):
        """The shape, or the size of one dimension."""
        if dim is None:
            return self.shape
        return self.dims[normal_axis(dim, self.rank, "size")]

    def is_contiguous(self):
        """Whether elements stand in row-major order without gaps; sizes of 1 and empty tensors do not count."""
        return bool(self.dense)

    def __len__(self):
        if self.rank == 0:
            raise TypeError("a 0-d tensor has no length and cannot be iterated over")
        return self.dims[0]

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __repr__(self): return slots["repr"](self)

    def __hash__(self):
        return <Py_ssize_t><PyObject *>self >> 4

    # -- gradients --
    @property
    def requires_grad(self):
        return bool(self.wants_grad)

    @requires_grad.setter
    def requires_grad(self, value):
        self.requires_grad_(value)

    def requires_grad_(self, value=True):
        """Make this leaf collect a gradient, or no longer; returns the tensor."""
        cdef bint wanted = flag("requires_grad_", "value", value)
        if self.record is not None and not wanted:
            raise RuntimeError("requires_grad_: only a leaf can stop requiring a gradient; use detach() for a result of an operator")
        if wanted and self.code != FLOAT32:
            raise TypeError(f"requires_grad_: only float32 tensors have gradients, this one is {names[self.code]}; write t.cast(om.float32)")
        data_of(self, "requires_grad_")
        self.wants_grad = wanted
        return self

    @property
    def grad(self):
        """The gradient that backward left here, or None."""
        if self.record is not None:
            return self.record.retained
        return self.gradient

    @grad.setter
    def grad(self, value):
        if value is not None:
            if not isinstance(value, Tensor):
                raise TypeError(f"grad: expected a Tensor or None, got {type(value).__name__}")
            if not same_shape(<Tensor>value, self.rank, self.dims) or (<Tensor>value).code != FLOAT32:
                raise ShapeError(f"grad: expected float32 of shape {self.shape}, got {value.dtype} of shape {value.shape}")
            if value is self:
                raise RuntimeError("grad: a tensor cannot be its own gradient")
            if not (<Tensor>value).dense:
                value = densely(<Tensor>value, "grad")
            if (<Tensor>value).record is not None:
                value = alias(<Tensor>value)  # with its graph it could lead back to this tensor
            track(self)
            track(value)
        if self.record is not None:
            self.record.retained = value
        else:
            self.gradient = value

    def retain_grad(self):
        """Keep the gradient of this result of an operator in `.grad` when backward passes through it."""
        if not self.wants_grad:
            raise RuntimeError("retain_grad: this tensor does not require a gradient")
        if self.record is not None:
            self.record.keeps_grad = True

    def backward(self, gradient=None, retain_graph=False, create_graph=False):
        """Accumulate the gradient of this tensor into the `.grad` of the leaves; see `onemodel.autograd.backward`."""
        slots["backward"](self, gradient, retain_graph, create_graph)

    def detach(self):
        """The same memory and version, cut from the graph."""
        data_of(self, "detach")
        return alias(self)

    # -- values --
    def item(self):
        """The value of a one-element tensor as a Python number."""
        if self.count != 1:
            raise ValueError(f"item: expected a tensor of one element, got shape {self.shape}; use tolist() or numpy()")
        cdef char *p = data_of(self, "item")
        if self.code == FLOAT32:
            return (<float *>p)[0]
        if self.code == INT32:
            return (<int32_t *>p)[0]
        if self.code == INT64:
            return (<int64_t *>p)[0]
        return (<uint8_t *>p)[0] if self.code == UINT8 else bool((<uint8_t *>p)[0])

    def __float__(self): return float(self.item())
    def __int__(self): return int(self.item())

    def __index__(self):
        if self.code == FLOAT32:
            raise TypeError("a float32 tensor is not an index; write int(t) or t.cast(om.int64)")
        return int(self.item())

    def __bool__(self):
        if self.count != 1:
            raise ValueError(f"the truth of a tensor of shape {self.shape} is ambiguous; use .all() or .any()")
        return bool(self.item())

    def numpy(self):
        """A NumPy view of the same memory, which stays out of the pool while it lives; RuntimeError where a gradient is required."""
        if self.wants_grad:
            raise RuntimeError("numpy: this tensor requires a gradient; use t.detach().numpy()")
        return slots["array_view"](self, "numpy")

    def __array__(self, dtype=None, copy=None):
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError(f"__array__: {array.dtype} to {np.dtype(dtype)} needs a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    # NumPy must not take a tensor apart element by element: `array + tensor` is ours to answer.
    __array_ufunc__ = None

    # -- operators; an operand of another type gives a TypeError that names om.tensor --
    def __add__(self, other): return call("add", self, other)
    def __radd__(self, other): return call("add", other, self)
    def __sub__(self, other): return call("sub", self, other)
    def __rsub__(self, other): return call("sub", other, self)
    def __mul__(self, other): return call("mul", self, other)
    def __rmul__(self, other): return call("mul", other, self)
    def __truediv__(self, other): return call("div", self, other)
    def __rtruediv__(self, other): return call("div", other, self)
    def __matmul__(self, other): return call("matmul", self, other)
    def __rmatmul__(self, other): return call("matmul", other, self)
    def __pow__(self, other, modulo): return call("pow", self, other)
    def __rpow__(self, other, modulo): return call("pow", other, self)
    def __neg__(self): return slots["neg"](self)
    def __pos__(self): return self
    def __abs__(self): return slots["abs"](self)
    def __invert__(self): return slots["invert"](self)
    def __and__(self, other): return call("and", self, other)
    def __rand__(self, other): return call("and", other, self)
    def __or__(self, other): return call("or", self, other)
    def __ror__(self, other): return call("or", other, self)
    def __xor__(self, other): return call("xor", self, other)
    def __rxor__(self, other): return call("xor", other, self)
    def __iadd__(self, other): return call("add_", self, other)
    def __isub__(self, other): return call("sub_", self, other)
    def __imul__(self, other): return call("mul_", self, other)
    def __itruediv__(self, other): return call("div_", self, other)
    def __lt__(self, other): return call("lt", self, other)
    def __le__(self, other): return call("le", self, other)
    def __gt__(self, other): return call("gt", self, other)
    def __ge__(self, other): return call("ge", self, other)

    def __eq__(self, other):
        return call("eq", self, other) if isinstance(other, (Tensor, int, float, np.generic)) else NotImplemented

    def __ne__(self, other):
        return call("ne", self, other) if isinstance(other, (Tensor, int, float, np.generic)) else NotImplemented

    def __getitem__(self, key): return call("getitem", self, key)
    def __setitem__(self, key, value): slots["setitem"](self, key, value)
    def __delitem__(self, key):
        raise TypeError("elements of a tensor cannot be deleted")


cdef Py_ssize_t normal_axis(object dim, int rank, str op) except -1:
    cdef Py_ssize_t d
    try:
        d = dim if type(dim) is int else index_of(op, "a dimension", dim)
    except OverflowError:
        d = MAX_NDIM + 1
    cdef int span = rank if rank > 0 else 1  # a 0-d tensor answers to -1 and 0, as torch's does
    if d < -span or d >= span:
        raise IndexError(f"{op}: dimension {dim} is out of range for {rank} dimensions; expected {-span} to {span - 1}")
    return d + span if d < 0 else d
