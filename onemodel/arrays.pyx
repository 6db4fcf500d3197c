"""Arrays: how tensors come to be from Python and NumPy data, and how NumPy sees a tensor's memory.

Holds no arithmetic; sharing rules are in the docstring of `onemodel.from_numpy`.
"""

import numpy as np

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t, uint8_t

from onemodel._pool.pool cimport foreign_storage, new_export
from onemodel.tensor cimport BOOL, FLOAT32, INT32, INT64, itemsize, MAX_NDIM, Tensor, copy_into, data_of, new_tensor, new_view, normal_axis, read_shape

from onemodel import tensor as module

cnp.import_array()

cdef tuple dtypes = module.DTYPES
cdef dict codes = {d: i for i, d in enumerate(dtypes)}
cdef tuple names = tuple(d.name for d in dtypes)


def code_of(dtype, str op=""):
    """The code of a data type; TypeError names the five that exist, and the operator."""
    try:
        return codes[np.dtype(dtype)]
    except (KeyError, TypeError):
        raise TypeError(f"{op}{': ' if op else ''}dtype {dtype!r} is not supported; use one of {', '.join(names)}") from None


cpdef Tensor require(object x, str op):
    if isinstance(x, Tensor):
        return <Tensor>x
    raise TypeError(f"{op}: expected a Tensor, got {type(x).__name__}; wrap arrays and lists with om.tensor(...)")


def axis_of(str op, dim, int ndim):
    """The dimension that `dim` names, counted from 0; TypeError or IndexError where it names none."""
    return normal_axis(dim, ndim, op)


cdef Tensor as_tensor(object value, int code, str op):
    """A Tensor as it is; a Python or NumPy scalar as a 0-d tensor of type `code`."""
    if isinstance(value, Tensor):
        return <Tensor>value
    cdef Tensor t
    if isinstance(value, (int, float, np.generic)) and not isinstance(value, (str, bytes)):
        if code != FLOAT32 and code != BOOL and not isinstance(value, (int, np.integer)) and not float(value).is_integer():
            raise TypeError(f"{op}: the scalar {value!r} does not fit a tensor of type {names[code]}; write tensor.cast(om.float32) first")
        t = new_tensor(code, 0, NULL, False)
        store_scalar(t.storage.data, code, value, op)
        return t
    raise TypeError(f"{op}: expected a Tensor or a Python scalar, got {type(value).__name__}; wrap arrays and lists with om.tensor(...)")


cdef int store_scalar(char *p, int code, object value, str op) except -1:
    if code == FLOAT32:
        try:
            (<float *>p)[0] = <float><double>float(value)
        except OverflowError:
            raise ValueError(f"{op}: the scalar is too large for float32") from None
    elif code == BOOL:
        p[0] = 1 if value else 0
    else:
        try:
            value = int(value)
            if code == INT32:
                (<int32_t *>p)[0] = <int32_t>value
            elif code == INT64:
                (<int64_t *>p)[0] = <int64_t>value
            else:
                (<uint8_t *>p)[0] = <uint8_t>value
        except OverflowError:
            raise ValueError(f"{op}: the scalar {value!r} does not fit {names[code]}") from None
    return 0


def empty(tuple shape, int code, str op="empty"):
    """Memory from the pool, not initialised and not tied to a scope."""
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef int rank = read_shape(shape, dims, op)
    return new_tensor(code, rank, dims, False)


def as_leaf(cls, Tensor data not None, bint requires_grad):
    """A leaf of class `cls`, a subclass of Tensor, on the memory of `data`; on a copy where an open ActivationScope will take it back."""
    cdef Tensor source = data, leaf = Tensor.__new__(cls)
    cdef int i
    data_of(data, cls.__name__)
    if data.storage.scope != NULL:
        source = new_tensor(data.code, data.rank, data.dims, False)
        copy_into(source, data, cls.__name__)
    leaf.storage = source.storage
    leaf.offset = source.offset
    leaf.count = source.count
    leaf.rank = source.rank
    leaf.code = source.code
    leaf.dense = source.dense
    for i in range(source.rank):
        leaf.dims[i] = source.dims[i]
        leaf.steps[i] = source.steps[i]
    return leaf.requires_grad_() if requires_grad else leaf


def from_numpy(array):
    """A tensor on the array's own memory; see `onemodel.from_numpy`."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"from_numpy: expected a numpy.ndarray, got {type(array).__name__}; om.tensor(data) copies anything array-like")
    code = codes.get(array.dtype)
    if code is None:
        raise TypeError(f"from_numpy: dtype {array.dtype} cannot be shared; om.tensor(array) copies (float64 becomes float32); "
                        f"shared types are {', '.join(names)}")
    if not array.dtype.isnative:
        raise ValueError("from_numpy: the array is byte-swapped; om.tensor(array) copies it to native order")
    if not array.flags.aligned:
        raise ValueError("from_numpy: the array is misaligned; om.tensor(array) copies it")
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Py_ssize_t[MAX_NDIM] steps
    cdef Py_ssize_t low = 0, high = 0, reach
    cdef int rank = read_shape(array.shape, dims, "from_numpy"), i
    cdef Py_ssize_t item = itemsize(<int>code)
    cdef bint none = array.size == 0
    for i in range(rank):
        reach = array.strides[i]
        if dims[i] <= 1 or none:
            steps[i] = 1
        elif reach % item:
            raise ValueError(f"from_numpy: stride {reach} is no multiple of the item size {item}; om.tensor(array) copies it")
        else:
            steps[i] = reach // item
            reach = steps[i] * (dims[i] - 1)
            low += reach if reach < 0 else 0
            high += reach if reach > 0 else 0
    cdef char *start = <char *>cnp.PyArray_DATA(<cnp.ndarray>array)
    cdef Tensor base = Tensor.__new__(Tensor)
    base.code = code
    base.storage = foreign_storage(start + low * item, 0 if none else (high - low + 1) * item, array, not array.flags.writeable)
    return new_view(base, rank, dims, steps, -low)


def array_view(Tensor t not None, str op):
    """A NumPy array on the tensor's memory, also for one that requires a gradient (for in-place kernels and files)."""
    cdef char *p = data_of(t, op)
    cdef cnp.npy_intp[MAX_NDIM] dims
    cdef cnp.npy_intp[MAX_NDIM] strides
    cdef int i
    for i in range(t.rank):
        dims[i] = t.dims[i]
        strides[i] = t.steps[i] * itemsize(t.code)
    cdef int flags = 0 if t.storage.readonly else cnp.NPY_ARRAY_WRITEABLE
    cdef cnp.ndarray array = cnp.PyArray_New(cnp.ndarray, t.rank, dims, (<cnp.dtype>dtypes[t.code]).type_num, strides, p, 0,
                                             flags | cnp.NPY_ARRAY_ALIGNED, None)
    cnp.set_array_base(array, new_export(t.storage))
    return array

module.install_slot("array_view", array_view)
