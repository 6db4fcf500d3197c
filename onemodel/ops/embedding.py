"""embedding: rows of a table by id; its gradient adds each row back in id order."""

from __future__ import annotations

import numpy as np

from onemodel import resizing
from onemodel.arrays import require
from onemodel.errors import ShapeError
from onemodel.ops.parameters import flag, index_of
from onemodel.registry import ErrorSample, Input, Op, Sample, public, register


def _ids(*values, dtype="int64"):
    return Input(data=np.array(values, dtype), dtype=dtype)


def padding_row(op: str, padding_idx, rows: int) -> int:
    """The row that `padding_idx` names, counted from either end; -1 for None."""
    if padding_idx is None:
        return -1
    row = index_of(op, "padding_idx", padding_idx, "an integer or None")
    if not -rows <= row < rows:
        raise ValueError(f"{op}: padding_idx {row} is no row of {rows}; expected {-rows} to {rows - 1}")
    return row % rows


def refuse(op: str, max_norm, scale_grad_by_freq, sparse) -> None:
    """The options of torch's embedding that do not exist here."""
    if max_norm is not None:
        raise ValueError(f"{op}: max_norm is not supported, because it would change the weight in forward; normalise the weight beforehand")
    for name, value in (("scale_grad_by_freq", scale_grad_by_freq), ("sparse", sparse)):
        if flag(op, name, value):
            raise ValueError(f"{op}: {name}=True is not supported; the gradient is dense, each row as it comes")


@register
class Embedding(Op):
    """y[..., :] = weight[id] for ids of any shape (int64 or int32) and weight [V, D]; the row of padding_idx as it is stored.

    Gradient of weight: each row of g added at its id, in id order, from +0; ids equal to padding_idx take no part. An id outside [0, V):
    IndexError, before anything is written.
    """

    @staticmethod
    def forward(ctx, ids, weight, padding):
        ctx.save_for_backward(ids)
        ctx.arguments = (*weight.shape, padding)
        return resizing.embedding(ids, weight)

    @staticmethod
    def backward(ctx, g):
        (ids,) = ctx.saved_tensors
        return None, resizing.embedding_bwd(g, ids, *ctx.arguments)

    @staticmethod
    def reference(ids, weight, padding_idx=None):
        return weight[ids]

    # The row of padding_idx is a constant to the gradient and none to a difference, so it has no gradient check.
    samples = [
        Sample("padding", (_ids(2, 0, 4, 2, 2, 1), Input((5, 3)), 2), gradcheck=False),
        Sample("padding_from_the_end", (_ids([2, 0], [4, 4]), Input((5, 3))), {"padding_idx": -1}, gradcheck=False),
        Sample("vector", (_ids(2, 0, 4, 2, 2), Input((5, 3)))),
        Sample("matrix", (_ids([1, 3], [0, 3], [3, 3]), Input((4, 37)))),
        Sample("int32", (_ids(2, 0, 1, dtype="int32"), Input((3, 5)))),
        Sample("scalar", (Input(data=np.array(1), dtype="int64"), Input((3, 4)))),
        Sample("none", (Input((0, 2), dtype="int64"), Input((3, 4)))),
        Sample("no_column", (_ids(0, 1), Input((3, 0)))),
        Sample("no_row", (Input((0,), dtype="int64"), Input((0, 3)))),
        Sample("transposed", (Input((4, 3), 0.0, 5.0, dtype="int64", layout="transposed"), Input((5, 6), layout="transposed"))),
        Sample("expanded", (Input((3, 4), 0.0, 4.0, dtype="int64", layout="expanded"), Input((4, 6), layout="expanded"))),
        Sample("strided", (Input((3, 4), 0.0, 4.0, dtype="int64", layout="strided"), Input((4, 6), layout="strided"))),
    ]
    error_samples = [
        ErrorSample("range", (_ids(0, 3), Input((3, 2))), IndexError, "id 3 at position 1"),
        ErrorSample("negative", (_ids([0, -1], [0, 0]), Input((3, 2))), IndexError, "id -1 at position (0, 1)"),
        ErrorSample("huge", (_ids(2**62), Input((3, 2))), IndexError, "position 0"),
        ErrorSample("empty_table", (_ids(0), Input((0, 2))), IndexError, "nothing"),
        ErrorSample("float_ids", (Input((2,)), Input((3, 2))), TypeError, "int64"),
        ErrorSample("bool_ids", (Input((2,), dtype="bool"), Input((3, 2))), TypeError, "int64"),
        ErrorSample("weight_rank", (_ids(0), Input((3,))), ValueError, "weight"),
        ErrorSample("weight_type", (_ids(0), Input((3, 2), dtype="int64")), TypeError, "float32"),
        ErrorSample("list", ([0, 1], Input((3, 2))), TypeError, "om.tensor"),
        ErrorSample("padding", (_ids(0), Input((3, 2)), 3), ValueError, "padding_idx"),
        ErrorSample("padding_below", (_ids(0), Input((3, 2)), -4), ValueError, "padding_idx"),
        ErrorSample("padding_float", (_ids(0), Input((3, 2)), 1.0), TypeError, "padding_idx"),
        ErrorSample("max_norm", (_ids(0), Input((3, 2)), None, 1.0), ValueError, "max_norm"),
        ErrorSample("sparse", (_ids(0), Input((3, 2))), ValueError, "sparse", {"sparse": True}),
        ErrorSample("frequency", (_ids(0), Input((3, 2))), ValueError, "scale_grad_by_freq", {"scale_grad_by_freq": True}),
    ]


@public(method=False)
def embedding(input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False):
    """The rows of weight [V, D] that the ids in `input` name."""
    ids, w = require(input, "embedding"), require(weight, "embedding")
    if ids.dtype not in (np.int64, np.int32):
        raise TypeError(f"embedding: ids must be int64 or int32, got {ids.dtype}; write .cast(om.int64)")
    if w.dtype != np.float32:
        raise TypeError(f"embedding: weight must be float32, got {w.dtype}; write .cast(om.float32)")
    if w.ndim != 2:
        raise ShapeError(f"embedding: weight must be [rows, columns], got shape {w.shape}")
    refuse("embedding", max_norm, scale_grad_by_freq, sparse)
    return Embedding.apply(ids, w, padding_row("embedding", padding_idx, w.shape[0]))
