"""Indexing: integers, slices, `...`, None, one integer tensor or list, a bool mask."""

from __future__ import annotations

import numpy as np

from onemodel import views
from onemodel.arrays import array_view, from_numpy
from onemodel.errors import ShapeError
from onemodel.registry import ErrorSample, Input, Op, Sample, public, register
from onemodel.resizing import index_select, index_select_bwd
from onemodel.tensor import Tensor

_MANY = "a key takes one integer tensor or list, or one mask; apply them one after the other"


def basic_key(key) -> bool:
    """Whether a key holds only integers, slices, `...` and None, which give a view."""
    parts = key if isinstance(key, tuple) else (key,)
    return not any(_advanced(part) for part in parts)


def _advanced(part) -> bool:
    if isinstance(part, Tensor):
        return part.ndim > 0 or part.dtype.kind == "b"
    return isinstance(part, (list, np.ndarray, bool, np.bool_))


def _index_array(part) -> np.ndarray:
    array = array_view(part, "indexing") if isinstance(part, Tensor) else np.asarray(part)
    if array.size == 0 and not isinstance(part, Tensor):
        array = array.astype(np.int64)
    if array.dtype.kind not in "iub":
        raise TypeError(f"indexing: an index tensor must be integer or bool, got {array.dtype}; write .cast(om.int64)")
    return array


def _expand_ellipsis(x: Tensor, key) -> list:
    parts = list(key) if isinstance(key, tuple) else [key]
    taken = 0
    for part in parts:
        if part is Ellipsis or part is None:
            continue
        taken += _index_array(part).ndim if _advanced(part) and _index_array(part).dtype.kind == "b" else 1
    if taken > x.ndim:
        raise IndexError(f"indexing: {taken} indices for the {x.ndim} dimensions of shape {x.shape}")
    dots = [i for i, part in enumerate(parts) if part is Ellipsis]
    if len(dots) > 1:
        raise IndexError("indexing: more than one `...`")
    at = dots[0] if dots else len(parts)
    return parts[:at] + [slice(None)] * (x.ndim - taken) + parts[at + len(dots):]


def _basic(x: Tensor, parts: list):
    """The view that integers, slices and None name; an advanced part keeps its dimensions whole.

    Returns the view, the advanced part (or None), and the dimension of the view where it applies.
    """
    ranges, shape, special, axis, dim = [], [], None, 0, 0
    for part in parts:
        if part is None:
            shape.append(1)
            continue
        if _advanced(part):
            if special is not None:
                raise IndexError(f"indexing: {_MANY}")
            special, axis = _index_array(part), len(shape)
            spans = special.ndim if special.dtype.kind == "b" else 1
            for size in x.shape[dim:dim + spans]:
                ranges.append((0, 1, size))
                shape.append(size)
            dim += spans
            continue
        size = x.shape[dim]
        if isinstance(part, slice):
            ranges.append(views.slice_range(part.start, part.stop, part.step, size, "indexing"))
            shape.append(ranges[-1][2])
        elif hasattr(part, "__index__"):
            i = part.__index__()
            if not -size <= i < size:
                raise IndexError(f"indexing: index {i} is out of range for size {size} of dimension {dim}")
            ranges.append((i % size, 1, 1))
        else:
            raise TypeError(f"indexing: expected integers, slices, `...`, None, an integer tensor or a mask, got {type(part).__name__}")
        dim += 1
    return views.slice_view(x, tuple(ranges), tuple(shape), "indexing"), special, axis


class _TakeRows(Op):
    """Rows of one dimension by index; the gradient is added back in index order."""

    name = "index"

    @staticmethod
    def forward(ctx, x, index, axis):
        places = from_numpy(index)
        ctx.save_for_backward(places)
        ctx.arguments = (axis, x.shape)
        return index_select(x, axis, places)

    @staticmethod
    def backward(ctx, g):
        return index_select_bwd(g, *ctx.saved_tensors, *ctx.arguments)


_TakeRows._rule.builtin = True


def _places(x: Tensor, index: np.ndarray, axis: int) -> np.ndarray:
    """An index array checked and counted from 0 on; a mask checked and as it is."""
    if index.dtype.kind == "b":
        spanned = x.shape[axis:axis + index.ndim]
        if index.shape != spanned:
            raise ShapeError(f"indexing: a mask of shape {index.shape} does not fit sizes {spanned} of shape {x.shape}")
        return index
    size = x.shape[axis]
    places = index.astype(np.int64)
    wrong = places[(places < -size) | (places >= size)]
    if wrong.size:
        raise IndexError(f"indexing: index {wrong[0]} is out of range for size {size} of dimension {axis}")
    return np.where(places < 0, places + size, places)


def _take(x: Tensor, index: np.ndarray, axis: int) -> Tensor:
    places = _places(x, index, axis)
    if places.dtype.kind == "b":
        x = views.reshape(x, x.shape[:axis] + (places.size,) + x.shape[axis + places.ndim:])
        places = np.flatnonzero(places)
    y = _TakeRows.apply(x, places.reshape(-1), axis)
    return y if places.ndim == 1 else views.reshape(y, x.shape[:axis] + places.shape + x.shape[axis + 1:])


def put(x: Tensor, key, value: Tensor) -> None:
    """`x[key] = value` for a key with an index array or a mask; for repeated indices the last value stays."""
    view, index, axis = _basic(x, _expand_ellipsis(x, key))
    target = array_view(view, "__setitem__")
    try:
        target[(slice(None),) * axis + (_places(view, index, axis),)] = array_view(value, "__setitem__")
    except ValueError as error:
        raise error if isinstance(error, ShapeError) else ShapeError(f"__setitem__: {error}") from None


@register
class Index(Op):
    """y = x[key]. Integers, slices with positive step, `...` and None give a view; an integer tensor or list, or a mask, a copy.

    The gradient goes into zeros; of repeated indices it is summed in index order.
    """

    kernel = views.RULES["slice"]

    @staticmethod
    def reference(x, key):
        if not isinstance(key, tuple) or not any(isinstance(part, list) for part in key):
            return x[key]
        # NumPy broadcasts integers beside a list with it and moves them to the front; here, as in torch, integers select first.
        y = x[tuple(slice(part, part + 1) if isinstance(part, int) else part for part in key)]
        return np.squeeze(y, tuple(i for i, part in enumerate(key) if isinstance(part, int)))

    samples = [
        Sample(name, (Input((4, 5, 6)), key), {})
        for name, key in {
            "integer": 2, "negative": -1, "slice": slice(1, 3), "step": (slice(None), slice(1, None, 2)), "none": (None, 1, slice(0, 2)),
            "dots": (..., 3), "dots_middle": (0, ..., slice(2, 5)), "all": (1, 2, 3), "list": [2, 0, 2, -1], "column_list": (slice(None), [1, 1, 4]),
            "matrix_list": [[0, 1], [3, 3]], "list_behind": (1, slice(None), [0, 5]), "empty": slice(2, 1), "empty_list": [],
        }.items()
    ] + [
        Sample("mask", (Input((4, 5)), np.arange(20).reshape(4, 5) % 3 == 0), {}),
        Sample("row_mask", (Input((4, 5)), np.array([True, False, True, True])), {}),
        Sample("transposed", (Input((4, 5, 6), layout="transposed"), (slice(1, 3), [0, 2])), {}),
    ]
    error_samples = [
        ErrorSample("range", (Input((3, 4)), 3), IndexError, "out of range"),
        ErrorSample("list_range", (Input((3, 4)), [0, 3]), IndexError, "out of range"),
        ErrorSample("many", (Input((3, 4)), (0, 0, 0)), IndexError, "indices"),
        ErrorSample("backwards", (Input((3, 4)), slice(None, None, -1)), ValueError, "positive"),
        ErrorSample("float", (Input((3, 4)), 1.0), TypeError, "indexing"),
        ErrorSample("float_list", (Input((3, 4)), [0.5]), TypeError, "integer"),
        ErrorSample("two_lists", (Input((3, 4)), ([0], [1])), IndexError, "one"),
        ErrorSample("mask", (Input((3, 4)), np.zeros((3, 5), bool)), ValueError, "mask"),
        ErrorSample("word", (Input((3, 4)), "a"), TypeError, "indexing"),
    ]


@public("index", method=False, slot="getitem")
def index(x, key):
    """x[key]: a view for integers, slices, `...` and None; a copy for one integer tensor or list, or a mask."""
    if not isinstance(x, Tensor):
        raise TypeError(f"indexing: expected a Tensor, got {type(x).__name__}; wrap arrays with om.tensor")
    basic = views.basic_index(x, key)
    if basic is not None:
        return basic
    view, special, axis = _basic(x, _expand_ellipsis(x, key))
    return view if special is None else _take(view, special, axis)
