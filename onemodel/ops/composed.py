"""Owns functions that users of torch know and that are composed of operators: max, min, one_hot, adaptive_avg_pool1d. Must not contain an
operator class."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from onemodel.arrays import axis_of, require
from onemodel.errors import ShapeError
from onemodel.making import arange
from onemodel.ops.arithmetic import maximum, minimum
from onemodel.ops.compare import eq
from onemodel.ops.gather import gather
from onemodel.ops.parameters import flag, floats, index_of
from onemodel.ops.pooling import adaptive_avg_pool2d
from onemodel.ops.reduce import amax, amin, argmax, argmin
from onemodel.registry import public
from onemodel.tensor import Tensor


class Extremes(NamedTuple):
    """What max and min along a dimension return."""

    values: Tensor
    indices: Tensor


def _extreme(op: str, x: Any, dim: Any, keepdim: Any, both: Any, every: Any, place: Any) -> Tensor | Extremes:
    if isinstance(dim, Tensor):
        return both(x, dim)
    require(x, op)
    keepdim = flag(op, "keepdim", keepdim)
    axis = None if dim is None else axis_of(op, dim, x.ndim)
    if x.numel() == 0 if axis is None else x.ndim and x.shape[axis] == 0:
        raise ShapeError(f"{op}: of no element there is none; the shape is {x.shape}")
    if axis is None:
        return every(x, None, keepdim)
    indices = place(x.detach(), axis, True)
    values = gather(x, axis, indices)
    return Extremes(values, indices) if keepdim or x.ndim == 0 else Extremes(values.squeeze(axis), indices.squeeze(axis))


@public("max")
def max(x, dim=None, keepdim=False):  # noqa: A001 - the field's name
    """The largest element (`amax`); along `dim` (values, indices) of the first of equal ones, which gets the gradient; of two tensors `maximum`."""
    return _extreme("max", x, dim, keepdim, maximum, amax, argmax)


@public("min")
def min(x, dim=None, keepdim=False):  # noqa: A001 - the field's name
    """The smallest element (`amin`); along `dim` (values, indices) of the first of equal ones, which gets the gradient; of two tensors `minimum`."""
    return _extreme("min", x, dim, keepdim, minimum, amin, argmin)


@public(method=False)
def one_hot(input, num_classes=-1):
    """Rows of zeros with a 1 at each id: int64 of shape [..., num_classes]; -1 counts the classes, up to the largest id."""
    ids, count = require(input, "one_hot"), index_of("one_hot", "num_classes", num_classes)
    if ids.dtype not in (np.int64, np.int32):
        raise TypeError(f"one_hot: ids must be int64 or int32, got {ids.dtype}; write .cast(om.int64)")
    if count < -1 or count == 0 or (count == -1 and ids.numel() == 0):
        raise ValueError(f"one_hot: num_classes must be at least 1, or -1 where there are ids to count by, got {count}")
    low, high = (int(amin(ids)), int(amax(ids))) if ids.numel() else (0, 0)
    if low < 0 or (count > 0 and high >= count):
        raise IndexError(f"one_hot: id {low if low < 0 else high} is no class; expected {f'0 to {count - 1}' if count > 0 else '0 or more'}")
    classes = arange(high + 1 if count == -1 else count).cast(ids.dtype)
    return eq(ids.unsqueeze(-1), classes).cast(np.int64)


@public(method=False)
def adaptive_avg_pool1d(input, output_size):
    """Mean of windows that share each row of [n, c, w] or [c, w] out to output_size: `adaptive_avg_pool2d` over planes of one row."""
    op, x = "adaptive_avg_pool1d", input
    floats(op, input=x)
    if x.ndim not in (2, 3):
        raise ShapeError(f"{op}: expected [n, c, w] or [c, w], got shape {x.shape}; reshape it")
    (size,) = output_size if isinstance(output_size, (tuple, list)) and len(output_size) == 1 else (output_size,)
    size = x.shape[-1] if size is None else index_of(op, "output_size", size)
    if not 0 <= size < 2**31 or x.shape[-1] == 0:
        raise ValueError(f"{op}: expected an output_size from 0 to {2**31 - 1} of rows that are not empty, got {size} of shape {x.shape}")
    return adaptive_avg_pool2d(x.unsqueeze(-2), (1, size)).squeeze(-2)
