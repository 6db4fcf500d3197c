"""New tensors: from data, from NumPy arrays, filled, counted. Random ones are in `random.py`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onemodel.arguments import flag, index_of
from onemodel.arrays import array_view, code_of
from onemodel.arrays import empty as _empty
from onemodel.arrays import from_numpy as _from_numpy
from onemodel.errors import ShapeError
from onemodel.tensor import DTYPES, Tensor

_FLOAT32 = DTYPES[0]


def _default_type(array: np.ndarray) -> np.dtype:
    """The type that data of a foreign type becomes: floats float32, integers int64, the five types themselves."""
    if array.dtype in DTYPES:
        return array.dtype
    if array.dtype.kind == "f":
        return _FLOAT32
    if array.dtype.kind in "iu":
        return DTYPES[2]
    raise TypeError(f"tensor: data of type {array.dtype} is not supported; use numbers or bool")


def _converted(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`array` in `dtype`, with cast's rule for a float that becomes an integer: truncate, saturate, NaN is 0."""
    if array.dtype.kind == "f" and dtype.kind in "iu":
        info = np.iinfo(dtype)
        whole = np.trunc(np.where(np.isnan(array), 0, array))
        with np.errstate(invalid="ignore"):
            result = whole.astype(dtype)
        return np.where(whole >= info.max, info.max, np.where(whole <= info.min, info.min, result)).astype(dtype)
    if array.dtype.kind in "iu" and dtype.kind in "iu" and array.size:
        info = np.iinfo(dtype)
        for bound in (array.min(), array.max()):
            if not info.min <= int(bound) <= info.max:
                raise ValueError(f"tensor: the value {bound} does not fit {dtype}; write .cast(om.{dtype}) if it is to wrap")
    with np.errstate(over="ignore"):
        return array.astype(dtype, copy=False)


def _leaf(made: Tensor, requires_grad: Any, op: str) -> Tensor:
    return made.requires_grad_() if flag(op, "requires_grad", requires_grad) else made


def tensor(data: Any, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor with a copy of nested lists, a NumPy array, a scalar or another tensor.

    dtype None: floats become float32, Python integers int64, bool stays. Ragged lists: ValueError; other data: TypeError.
    """
    if isinstance(data, Tensor):
        source = array_view(data, "tensor")
    else:
        try:
            source = np.asarray(data)
        except OverflowError as error:
            raise TypeError(f"tensor: {error}; integers must fit int64") from None
        except ValueError as error:
            raise ValueError(f"tensor: expected nested lists of equal lengths: {error}") from None
    if source.dtype.kind not in "fiub":
        raise TypeError(f"tensor: data of type {source.dtype} is not supported; use numbers or bool (integers that fit int64)")
    target = _default_type(source) if dtype is None else DTYPES[code_of(dtype, "tensor")]
    result = _empty(source.shape, code_of(target))
    array_view(result, "tensor")[...] = _converted(source, target)
    return _leaf(result, requires_grad, "tensor")


def from_numpy(array: np.ndarray) -> Tensor:
    """A tensor on the array's own memory, without a copy.

    The array is float32, int32, int64, uint8 or bool; any strides, also negative and 0. It stays alive as long as the tensor.
    Another type or a misaligned or byte-swapped array: TypeError or ValueError naming om.tensor. A read-only array gives a
    tensor whose in-place operations raise. Writes through the array do not raise the tensor's version.
    """
    return _from_numpy(array)


def read_size(sizes: tuple, op: str) -> tuple:
    """The shape that was given as integers or as one tuple or list."""
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = tuple(sizes[0])
    sizes = tuple(index_of(op, "a size", size) for size in sizes)
    if any(size < 0 for size in sizes):
        raise ShapeError(f"{op}: negative size in shape {sizes}")
    return sizes


def _filled(shape: tuple, value: Any, dtype: Any, requires_grad: bool, op: str) -> Tensor:
    result = _empty(shape, code_of(dtype, op), op)
    array = array_view(result, op)
    try:
        with np.errstate(over="ignore"):  # beyond float32 is inf, as a cast makes it
            array[...] = value
    except (OverflowError, ValueError) as error:
        raise ValueError(f"{op}: {error}") from None
    except TypeError as error:
        raise TypeError(f"{op}: {error}") from None
    return _leaf(result, requires_grad, op)


def empty(*size: Any, dtype: Any = np.float32, requires_grad: bool = False) -> Tensor:
    """A tensor of a shape, its values whatever the memory held."""
    result = _empty(read_size(size, "empty"), code_of(dtype, "empty"))
    return _leaf(result, requires_grad, "empty")


def zeros(*size: Any, dtype: Any = np.float32, requires_grad: bool = False) -> Tensor:
    """A tensor of zeros; the shape as integers or one tuple."""
    return _filled(read_size(size, "zeros"), 0, dtype, requires_grad, "zeros")


def ones(*size: Any, dtype: Any = np.float32, requires_grad: bool = False) -> Tensor:
    """A tensor of ones; the shape as integers or one tuple."""
    return _filled(read_size(size, "ones"), 1, dtype, requires_grad, "ones")


def full(size: Any, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor filled with one value; dtype None takes the value's: bool, int64 or float32."""
    if dtype is None:
        dtype = np.bool_ if isinstance(fill_value, (bool, np.bool_)) else np.int64 if isinstance(fill_value, (int, np.integer)) else np.float32
    return _filled(read_size((size,), "full"), fill_value, dtype, requires_grad, "full")


def arange(start: float, end: float | None = None, step: float = 1, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """start, start + step, ... below end (above it for a negative step); one argument is the end. Integers give int64."""
    if end is None:
        start, end = 0, start
    for bound in (start, end, step):
        if isinstance(bound, bool) or not isinstance(bound, (int, float, np.integer, np.floating)):
            raise TypeError(f"arange: expected numbers, got {type(bound).__name__}")
    if step == 0 or not all(math.isfinite(bound) for bound in (start, end, step)):
        raise ValueError(f"arange: expected finite bounds and a step that is not 0, got {start}, {end}, {step}")
    if (end - start) * step < 0:
        raise ValueError(f"arange: the step {step} leads away from {end}")
    integers = all(isinstance(bound, (int, np.integer)) for bound in (start, end, step))
    count = -((start - end) // step) if integers else math.ceil((end - start) / step)
    if count >= 1 << 60:
        raise MemoryError(f"arange: {count} elements have more bytes than a 64-bit size can count")
    result = _empty((int(count),), code_of(dtype if dtype is not None else np.int64 if integers else np.float32, "arange"))
    view = array_view(result, "arange")
    view[...] = _converted(np.arange(count) * step + start if count else np.empty(0), view.dtype)
    return _leaf(result, requires_grad, "arange")


def _like(name: str, make: Any) -> Any:
    def like(input: Tensor, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
        if not isinstance(input, Tensor):
            raise TypeError(f"{name}: expected a Tensor, got {type(input).__name__}")
        return make(input.shape, dtype=input.dtype if dtype is None else dtype, requires_grad=requires_grad)

    like.__name__ = like.__qualname__ = name
    like.__doc__ = f"`{make.__name__}` of another tensor's shape and type."
    return like


empty_like = _like("empty_like", empty)
zeros_like = _like("zeros_like", zeros)
ones_like = _like("ones_like", ones)


def full_like(input: Tensor, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """`full` of another tensor's shape and type."""
    if not isinstance(input, Tensor):
        raise TypeError(f"full_like: expected a Tensor, got {type(input).__name__}")
    return full(input.shape, fill_value, dtype=input.dtype if dtype is None else dtype, requires_grad=requires_grad)

