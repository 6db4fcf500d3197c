"""Elements by index or by mask, and running sums: gather, index_select, masked_fill, cumsum."""

from __future__ import annotations

import numpy as np

from onemodel import resizing
from onemodel.arrays import array_view, axis_of, code_of, empty, require
from onemodel.errors import ShapeError
from onemodel.registry import ErrorSample, Input, Op, Sample, public, register
from onemodel.rules import Map
from onemodel.tensor import Tensor


def _index(values, dtype="int64"):
    return Input(data=np.array(values, dtype), dtype=dtype)


def _operands(op: str, x, index) -> tuple[Tensor, Tensor]:
    x, index = require(x, op), require(index, op)
    if index.dtype not in (np.int64, np.int32):
        raise TypeError(f"{op}: the index must be int64 or int32, got {index.dtype}; write .cast(om.int64)")
    return x, index


def _rule(pick, add):
    """forward and backward of an operator that picks by an index along an axis, and adds back where it picked."""

    def forward(ctx, x, axis, index):
        ctx.save_for_backward(index)
        ctx.arguments = (axis, x.shape)
        return pick(x, axis, index)

    def backward(ctx, g):
        return add(g, *ctx.saved_tensors, *ctx.arguments), None

    return staticmethod(forward), staticmethod(backward)


@register
class Gather(Op):
    """y[.., k, ..] = x[.., index[.., k, ..], ..] along `dim`; the index has x's rank and is nowhere larger than x but along dim.

    Gradient: g added where it was gathered from, in the order of the index along dim, from +0. Any type; index int64 or int32. An index
    outside [0, size): IndexError, before anything is written.
    """

    forward, backward = _rule(resizing.gather, resizing.gather_bwd)

    @staticmethod
    def reference(x, dim, index):
        if x.ndim == 0:
            return x.copy()
        part = x[tuple(slice(None) if d == dim % x.ndim else slice(n) for d, n in enumerate(index.shape))]
        return np.take_along_axis(part, index, dim)

    samples = [
        Sample("columns", (Input((3, 5)), 1, _index([[0, 4, 4, 1], [2, 2, 2, 0]]))),
        Sample("rows", (Input((4, 3)), 0, _index([[0, 3], [2, 2], [1, 2], [0, 0], [3, 1]]))),
        Sample("middle", (Input((2, 4, 3)), 1, Input((2, 6, 2), 0.0, 4.0, dtype="int64"))),
        Sample("front", (Input((3, 2, 2, 3)), 0, Input((5, 2, 2, 3), 0.0, 3.0, dtype="int64"))),
        Sample("second", (Input((2, 3, 2, 2)), 1, Input((2, 4, 2, 1), 0.0, 3.0, dtype="int64"))),
        Sample("last", (Input((2, 3, 4)), -1, Input((2, 2, 5), 0.0, 4.0, dtype="int64"))),
        Sample("vector", (Input((5,)), 0, _index([4, 4, 0]))),
        Sample("int32", (Input((5,)), 0, _index([4, 4, 0], "int32"))),
        Sample("integers", (Input((3, 5), -9.0, 9.0, dtype="int64"), 1, _index([[0, 4], [2, 2]]))),
        Sample("bytes", (Input((3, 5), 0.0, 9.0, dtype="uint8"), 0, _index([[2, 1], [0, 0]]))),
        Sample("scalar", (Input(()), 0, _index(0))),
        Sample("none", (Input((3, 5)), 1, Input((3, 0), dtype="int64"))),
        Sample("of_nothing", (Input((0, 2)), 0, Input((0, 2), dtype="int64"))),
        Sample("transposed", (Input((3, 4, 5), layout="transposed"), 1, Input((3, 2, 5), 0.0, 4.0, dtype="int64", layout="transposed"))),
        Sample("strided", (Input((3, 4), layout="strided"), 1, Input((3, 6), 0.0, 4.0, dtype="int64", layout="strided"))),
        Sample("expanded", (Input((3, 4), layout="expanded"), 0, Input((3, 4), 0.0, 3.0, dtype="int64", layout="expanded"))),
        Sample("lone", (Input((3, 1, 4), layout="lone"), 0, Input((2, 1, 4), 0.0, 3.0, dtype="int64", layout="lone"))),
    ]
    error_samples = [
        ErrorSample("range", (Input((3, 2)), 0, _index([[0, 1], [0, 3]])), IndexError, "index 3 at position (1, 1)"),
        ErrorSample("negative", (Input((3,)), 0, _index([0, -1])), IndexError, "index -1 at position 1"),
        ErrorSample("of_nothing", (Input((0,)), 0, _index([0])), IndexError, "nothing"),
        ErrorSample("rank", (Input((3, 2)), 0, _index([0])), ValueError, "dimensions"),
        ErrorSample("larger", (Input((3, 2)), 0, _index([[0, 0, 0]])), ValueError, "larger"),
        ErrorSample("dim", (Input((3, 2)), 2, _index([[0]])), IndexError, "out of range"),
        ErrorSample("huge_dim", (Input((3, 2)), 2**70, _index([[0]])), IndexError, "out of range"),
        ErrorSample("bool_dim", (Input((3, 2)), True, _index([[0]])), TypeError, "integer"),
        ErrorSample("float_index", (Input((3, 2)), 0, Input((1, 1))), TypeError, "int64"),
        ErrorSample("list", ([1.0], 0, _index([0])), TypeError, "om.tensor"),
    ]


@public()
def gather(input, dim, index):
    """Elements of `input` picked along one dimension by an index of the same rank."""
    x, index = _operands("gather", input, index)
    axis = axis_of("gather", dim, x.ndim)
    if x.ndim != index.ndim:
        raise ShapeError(f"gather: the index must have the {x.ndim} dimensions of input {x.shape}, got shape {index.shape}")
    if any(k > n for d, (n, k) in enumerate(zip(x.shape, index.shape, strict=True)) if d != axis):
        raise ShapeError(f"gather: an index of shape {index.shape} is larger than input {x.shape} in a dimension other than {axis}")
    return Gather.apply(x, axis, index)


@register
class IndexSelect(Op):
    """y = the slices of x that a vector of indices (or one number) names along `dim`, in its order.

    Gradient: each slice of g added at its index, in the order of the index, from +0. Any type; index int64 or int32. An index outside
    [0, size): IndexError, before anything is written.
    """

    forward, backward = _rule(resizing.index_select, resizing.index_select_bwd)

    @staticmethod
    def reference(x, dim, index):
        return x.copy() if x.ndim == 0 else np.take(x, np.atleast_1d(index), dim)

    samples = [
        Sample("rows", (Input((4, 5)), 0, _index([3, 0, 3]))),
        Sample("columns", (Input((4, 5)), -1, _index([1, 1, 4, 0, 1, 2]))),
        Sample("middle", (Input((2, 4, 3)), 1, _index([3, 3], "int32"))),
        Sample("number", (Input((4, 5)), 0, _index(2))),
        Sample("scalar", (Input(()), 0, _index([0]))),
        Sample("none", (Input((4, 5)), 0, Input((0,), dtype="int64"))),
        Sample("integers", (Input((4, 5), -9.0, 9.0, dtype="int64"), 1, _index([4, 0]))),
        Sample("bytes", (Input((4, 5), 0.0, 9.0, dtype="uint8"), 1, _index([4, 0]))),
        Sample("transposed", (Input((4, 5, 6), layout="transposed"), 1, _index([2, 2, 0]))),
        Sample("strided", (Input((4, 6), layout="strided"), 0, Input((5,), 0.0, 4.0, dtype="int64", layout="strided"))),
        Sample("expanded", (Input((3, 4), layout="expanded"), 0, Input((4,), 0.0, 3.0, dtype="int64", layout="expanded"))),
    ]
    error_samples = [
        ErrorSample("range", (Input((3, 2)), 0, _index([0, 3])), IndexError, "index 3 at position 1"),
        ErrorSample("negative", (Input((3, 2)), 0, _index([-1])), IndexError, "index -1 at position 0"),
        ErrorSample("matrix", (Input((3, 2)), 0, _index([[0]])), ValueError, "vector"),
        ErrorSample("scalar", (Input(()), 0, _index([0, 0])), ValueError, "one"),
        ErrorSample("dim", (Input((3, 2)), -3, _index([0])), IndexError, "out of range"),
        ErrorSample("bool_index", (Input((3, 2)), 0, Input((3,), dtype="bool")), TypeError, "int64"),
        ErrorSample("list", (Input((3, 2)), 0, [0]), TypeError, "om.tensor"),
    ]


@public()
def index_select(input, dim, index):
    """Slices of `input` along one dimension, in the order of a vector of indices."""
    x, index = _operands("index_select", input, index)
    axis = axis_of("index_select", dim, x.ndim)
    if index.ndim > 1:
        raise ShapeError(f"index_select: the index must be a vector, got shape {index.shape}; gather takes an index of input's rank")
    if x.ndim == 0 and index.numel() != 1:
        raise ShapeError(f"index_select: a 0-d input has one element to select, got {index.numel()} indices")
    return IndexSelect.apply(x, axis, index)


def _filled_integer(mask, value, x, out):
    np.copyto(out, x)
    np.copyto(out, value, where=mask)


@register
class MaskedFill(Op):
    """y = value where the bool mask holds, else x, with broadcasting of both; value is a number or a 0-d tensor.

    Gradient: g where the mask does not hold; that of a 0-d value is the sum of g where it does. A mask that is not bool: TypeError.
    """

    kernel = Map("where mask value x", value="where mask g zero", x="where mask zero g", integer=_filled_integer)

    @staticmethod
    def reference(x, mask, value):
        return np.where(mask, value, x)

    samples = [
        Sample("same", (Input((4, 33)), Input((4, 33), dtype="bool"), -1.5)),
        Sample("row", (Input((4, 33)), Input((33,), dtype="bool"), 7)),
        Sample("column", (Input((4, 33)), Input((4, 1), dtype="bool"), float("-inf")), {}, 4.0, False),
        Sample("wider_mask", (Input((2, 1)), Input((3, 1, 4), dtype="bool"), 0.5)),
        Sample("tensor_value", (Input((5, 6)), Input((5, 6), dtype="bool"), Input(()))),
        Sample("integers", (Input((4, 5), -9.0, 9.0, dtype="int64"), Input((4, 5), dtype="bool"), 3)),
        Sample("bools", (Input((4, 5), dtype="bool"), Input((5,), dtype="bool"), True)),
        Sample("scalar", (Input(()), Input((), dtype="bool"), 1.0)),
        Sample("empty", (Input((0, 3)), Input((3,), dtype="bool"), 1.0)),
        Sample("transposed", (Input((6, 5), layout="transposed"), Input((6, 5), dtype="bool", layout="strided"), 0.0)),
        Sample("expanded", (Input((4, 5), layout="expanded"), Input((4, 5), dtype="bool", layout="expanded"), 0.0)),
    ]
    error_samples = [
        ErrorSample("float_mask", (Input((3,)), Input((3,)), 0.0), TypeError, "bool"),
        ErrorSample("shapes", (Input((2,)), Input((3,), dtype="bool"), 0.0), ValueError, "do not broadcast"),
        ErrorSample("vector_value", (Input((3,)), Input((3,), dtype="bool"), Input((3,))), ValueError, "0-d"),
        ErrorSample("mixed", (Input((3,)), Input((3,), dtype="bool"), Input((), dtype="int64")), TypeError, "cast"),
        ErrorSample("fraction", (Input((3,), dtype="int64"), Input((3,), dtype="bool"), 0.5), TypeError, "cast"),
        ErrorSample("word", (Input((3,)), Input((3,), dtype="bool"), "a"), TypeError, "om.tensor"),
        ErrorSample("list", (Input((3,)), [True, False, True], 0.0), TypeError, "om.tensor"),
    ]


@public()
def masked_fill(input, mask, value):
    """`input` with `value` wherever the bool tensor `mask` holds."""
    x, mask = require(input, "masked_fill"), require(mask, "masked_fill")
    if mask.dtype.kind != "b":
        raise TypeError(f"masked_fill: the mask must be bool, got {mask.dtype}; write a comparison or .cast(om.bool_)")
    if isinstance(value, Tensor) and value.ndim:
        raise ShapeError(f"masked_fill: value must be a number or a 0-d tensor, got shape {value.shape}; om.where takes a tensor of values")
    return MaskedFill.kernel(mask, value, x)


@register
class Cumsum(Op):
    """y[i] = x[0] + … + x[i] along `dim`: one running sum in double, in order, each step rounded once to float32.

    Gradient: the running sum of g from the end, likewise. Integers and bool sum to int64, as torch's do, without gradient.
    """

    @staticmethod
    def forward(ctx, x, axis):
        ctx.axis = axis
        return resizing.cumsum(x, axis, False)

    @staticmethod
    def backward(ctx, g):
        return resizing.cumsum(g, ctx.axis, True)

    @staticmethod
    def reference(x, dim):
        return x.copy() if x.ndim == 0 else np.cumsum(x, dim)

    samples = [
        Sample("vector", (Input((37,)), 0)),
        Sample("rows", (Input((11, 9)), 1)),
        Sample("columns", (Input((5, 77)), 0)),
        Sample("middle", (Input((3, 6, 5)), -2)),
        Sample("scalar", (Input(()), -1)),
        Sample("empty", (Input((0, 3)), 0)),
        Sample("no_row", (Input((3, 0)), 0)),
        Sample("integers", (Input((3, 4), -9.0, 9.0, dtype="int64"), 1)),
        Sample("bools", (Input((9,), dtype="bool"), 0)),
        Sample("bytes", (Input((3, 4), 0.0, 255.0, dtype="uint8"), 0)),
        Sample("transposed", (Input((3, 4, 5), layout="transposed"), 1)),
        Sample("strided", (Input((6, 9), layout="strided"), 1)),
        Sample("expanded", (Input((4, 6), layout="expanded"), 0)),
        Sample("flipped", (Input((4, 6), layout="flipped"), 1)),
    ]
    error_samples = [
        ErrorSample("range", (Input((2, 3)), 2), IndexError, "out of range"),
        ErrorSample("huge", (Input((2, 3)), -(2**63)), IndexError, "out of range"),
        ErrorSample("float_dim", (Input((2, 3)), 1.0), TypeError, "integer"),
        ErrorSample("none", (Input((2, 3)), None), TypeError, "integer"),
        ErrorSample("list", ([1.0], 0), TypeError, "om.tensor"),
    ]


@public()
def cumsum(input, dim):
    """Running sums along one dimension."""
    x = require(input, "cumsum")
    axis = axis_of("cumsum", dim, x.ndim)
    if x.dtype == np.float32:
        return Cumsum.apply(x, axis)
    y = empty(x.shape, code_of(np.int64), "cumsum")
    if x.ndim == 0:
        array_view(y, "cumsum")[...] = array_view(x, "cumsum")
    else:
        np.cumsum(array_view(x, "cumsum"), axis, np.int64, array_view(y, "cumsum"))
    return y
