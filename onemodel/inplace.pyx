"""In-place operations: never recorded, refused where a gradient would go wrong, and one step of the storage's version each.

Operands that overlap the target act as if they had been copied first.
"""

import inspect

import numpy as np

from cpython.object cimport PyObject
from libc.string cimport memset

from onemodel.arrays cimport as_tensor
from onemodel.named cimport name_errors
from onemodel.rules cimport Map, broadcast_shape, forward
from onemodel.tensor cimport FLOAT32, itemsize, MAX_NDIM, Tensor, copy_into, data_of, new_like, recording, same_shape, set_recording

from onemodel.errors import ShapeError
from onemodel.tensor import install_method, install_slot


cdef void extent(Tensor t, char **low, char **high) noexcept:
    """First byte and one past the last byte that t's elements touch."""
    cdef Py_ssize_t down = 0, up = 0, reach
    cdef int i
    for i in range(t.rank):
        reach = (t.dims[i] - 1) * t.steps[i]
        down += reach if reach < 0 else 0
        up += reach if reach > 0 else 0
    cdef char *at = t.storage.data + t.offset * itemsize(t.code)
    low[0] = at + down * itemsize(t.code)
    high[0] = at + (up + 1) * itemsize(t.code)


cdef bint overlap(Tensor a, Tensor b) noexcept:
    """Whether the memory of two non-empty tensors may share a byte."""
    cdef char *a_low
    cdef char *a_high
    cdef char *b_low
    cdef char *b_high
    if a.count == 0 or b.count == 0:
        return False
    extent(a, &a_low, &a_high)
    extent(b, &b_low, &b_high)
    return a_low < b_high and b_low < a_high


cdef bint same_elements(Tensor a, Tensor b) noexcept:
    cdef int i
    if a.code != b.code or a.storage.data + a.offset * itemsize(a.code) != b.storage.data + b.offset * itemsize(b.code):
        return False
    if not same_shape(a, b.rank, b.dims):
        return False
    for i in range(a.rank):
        if a.dims[i] > 1 and a.steps[i] != b.steps[i]:
            return False
    return True


cdef bint shares_elements(Tensor t) noexcept:
    """Whether two indices of t may name one element: sorted by step, each dimension must step over all smaller ones."""
    cdef Py_ssize_t[MAX_NDIM] steps
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Py_ssize_t step, size, reach = 0
    cdef int n = 0, i, j
    for i in range(t.rank):
        if t.dims[i] == 0:
            return False
        if t.dims[i] == 1:
            continue
        step, size = abs(t.steps[i]), t.dims[i]
        j = n
        while j > 0 and steps[j - 1] > step:
            steps[j], dims[j] = steps[j - 1], dims[j - 1]
            j -= 1
        steps[j], dims[j] = step, size
        n += 1
    for i in range(n):
        if steps[i] <= reach:
            return True
        reach += steps[i] * (dims[i] - 1)
    return False


cdef int check_target(Tensor t, str op) except -1:
    data_of(t, op)
    if recording() and t.wants_grad:
        raise RuntimeError(f"{op}: the target requires a gradient and in-place operations are not recorded; run it under om.no_grad(), or detach()")
    if t.storage.readonly:
        raise RuntimeError(f"{op}: the target is read-only (a read-only NumPy array's memory, or the gradient inside a backward); clone() it first")
    if shares_elements(t):
        raise RuntimeError(f"{op}: elements of the target overlap (shape {t.shape}, strides {t.strides}), as after expand; clone() it first")
    return 0


def check_copy(Tensor target not None, Tensor source not None, str op):
    """Raises what `copy_` would; copies nothing."""
    check_target(target, op)
    data_of(source, op)


cdef Tensor check_operand(Tensor target, object value, str op):
    """The operand as a tensor that may be read while the target is written."""
    cdef Tensor other = as_tensor(value, target.code, op), copy
    data_of(other, op)
    if recording() and other.wants_grad:
        raise RuntimeError(f"{op}: an operand requires a gradient and in-place operations are not recorded; run it under om.no_grad(), or detach()")
    if overlap(target, other) and not same_elements(target, other):
        copy = new_like(other, True)
        copy_into(copy, other, op)
        return copy
    return other


cdef Tensor arithmetic(Map rule, Tensor target, object value, str op):
    cdef PyObject *inputs[2]
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Tensor result, other
    check_target(target, op)
    other = check_operand(target, value, op)
    if not same_shape(target, broadcast_shape((target, other), dims, op), dims):
        raise ShapeError(f"{op}: an operand of shape {other.shape} does not broadcast to the target's shape {target.shape}")
    inputs[0] = <PyObject *>target
    inputs[1] = <PyObject *>other
    cdef bint was_recording = recording()
    set_recording(False)
    try:
        if target.dense and target.code == FLOAT32 and other.code == FLOAT32:
            forward(rule, inputs, target)
        else:
            result = forward(rule, inputs)
            copy_into(target, result, op)
    finally:
        set_recording(was_recording)
    target.storage.version += 1
    return target


def install(str name, Map rule):
    """Make `name` (add_, ...) the in-place form of a two-operand rule: a method of Tensor and what its operator runs."""
    def call(Tensor self not None, other):
        return arithmetic(rule, self, other, name)
    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"In-place {rule.name}: not recorded; raises the version."
    call.__signature__ = inspect.signature(call)
    name_errors(call)
    install_method(name, call)
    install_slot(name, call)


def copy_(Tensor self not None, source):
    """Copy a tensor (broadcast, cast) or a scalar into this one."""
    check_target(self, "copy_")
    cdef Tensor other = check_operand(self, source, "copy_")
    if not same_elements(self, other):
        copy_into(self, other, "copy_")
    self.storage.version += 1
    return self


def fill_(Tensor self not None, value):
    """Set every element to a scalar."""
    if isinstance(value, Tensor) and (<Tensor>value).count != 1:
        raise ShapeError(f"fill_: expected a scalar, got shape {value.shape}; use copy_")
    return copy_(self, value)


def zero_(Tensor self not None):
    """Set every element to 0."""
    check_target(self, "zero_")
    if self.dense:
        memset(data_of(self, "zero_"), 0, self.count * itemsize(self.code))
    else:
        copy_into(self, as_tensor(0, self.code, "zero_"), "zero_")
    self.storage.version += 1
    return self


def assign(Tensor self not None, key, value):
    """`t[key] = value`: value broadcasts to what the key names; for repeated indices the last value stays."""
    from onemodel.ops.index import basic_key, put
    check_target(self, "__setitem__")
    cdef bint was_recording = recording()
    cdef Tensor other, window
    if isinstance(value, (list, tuple, np.ndarray)):
        from onemodel.making import tensor
        value = tensor(value, dtype=self.dtype)
    other = check_operand(self, value, "__setitem__")
    if basic_key(key):
        set_recording(False)
        try:
            window = self[key]
        finally:
            set_recording(was_recording)
        if not same_elements(window, other):
            copy_into(window, other, "__setitem__")
    else:
        if other.code != self.code:
            raise TypeError(f"__setitem__: {other.dtype} does not go into {self.dtype}; write .cast(om.{self.dtype.name}) first")
        put(self, key, other)
    self.storage.version += 1


for _name, _function in {"copy_": copy_, "fill_": fill_, "zero_": zero_}.items():
    install_method(_name, _function)
install_slot("setitem", assign)
