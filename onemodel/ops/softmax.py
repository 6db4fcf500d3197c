"""softmax, log_softmax, logsumexp: rows of any dimension, the true maximum subtracted, sums in double."""

from __future__ import annotations

import numpy as np

from onemodel import calls, views
from onemodel.arrays import axis_of, require
from onemodel.ops.parameters import flag
from onemodel.registry import ErrorSample, Input, Op, Sample, public, register


def _samples():
    return [
        Sample("last", (Input((5, 40)), -1)),
        Sample("first", (Input((5, 40)), 0)),
        Sample("middle", (Input((3, 7, 4)), 1)),
        Sample("vector", (Input((37,)), 0)),
        Sample("one", (Input((4, 1)), -1)),
        Sample("scalar", (Input(()), 0)),
        Sample("transposed", (Input((6, 5, 4), layout="transposed"), -1)),
        Sample("strided", (Input((6, 9), layout="strided"), 1)),
        Sample("expanded", (Input((4, 6), layout="expanded"), 1)),
        Sample("lone", (Input((4, 1, 5, 1), layout="lone"), 2)),
        Sample("no_rows", (Input((0, 3)), 1)),
        Sample("wide", (Input((3, 50), -60.0, 60.0), 1), {}, 8.0, False),
    ]


_ERRORS = [
    ErrorSample("range", (Input((2, 3)), 2), IndexError, "out of range"),
    ErrorSample("integer", (Input((2, 3), dtype="int64"), 0), TypeError, "float32"),
    ErrorSample("list", ([1.0, 2.0], 0), TypeError, "om.tensor"),
]


@register
class Softmax(Op):
    """y = e^(x - max) / Σ e^(x - max) along one dimension; gradient y·(g - Σ g·y).

    A NaN or +inf in a row makes the row NaN; so do nothing but -inf.
    """

    @staticmethod
    def forward(ctx, x, dim):
        y = calls.softmax(x, dim, False, "softmax")
        ctx.save_for_backward(y)
        ctx.dim = dim
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return calls.softmax_bwd(y, g, ctx.dim, False, "softmax")

    @staticmethod
    def reference(x, dim):
        if np.ndim(x) == 0:
            return np.ones(())
        e = np.exp(x - np.max(x, axis=dim, keepdims=True))
        return e / np.sum(e, axis=dim, keepdims=True)

    samples = _samples()
    error_samples = _ERRORS


@public()
def softmax(x, dim):
    """e^x, divided by its sum along dimension `dim`."""
    return Softmax.apply(require(x, "softmax"), dim)


@register
class LogSoftmax(Op):
    """y = x - max - ln Σ e^(x - max) along one dimension; gradient g - e^y·Σ g."""

    @staticmethod
    def forward(ctx, x, dim):
        y = calls.softmax(x, dim, True, "log_softmax")
        ctx.save_for_backward(y)
        ctx.dim = dim
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return calls.softmax_bwd(y, g, ctx.dim, True, "log_softmax")

    @staticmethod
    def reference(x, dim):
        if np.ndim(x) == 0:
            return np.zeros(())
        shifted = x - np.max(x, axis=dim, keepdims=True)
        return shifted - np.log(np.sum(np.exp(shifted), axis=dim, keepdims=True))

    samples = _samples()
    error_samples = _ERRORS


@public()
def log_softmax(x, dim):
    """Logarithm of `softmax` along dimension `dim`, without the loss of taking it afterwards."""
    return LogSoftmax.apply(require(x, "log_softmax"), dim)


@register
class Logsumexp(Op):
    """y = max + ln Σ e^(x - max) over the named dimensions; gradient g·e^(x - y). -inf for nothing but -inf, +inf if one is there."""

    @staticmethod
    def forward(ctx, x, dim):
        y = calls.logsumexp(x, dim)
        ctx.save_for_backward(x, y)
        ctx.dim = dim
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return calls.logsumexp_bwd(x, y, g, ctx.dim)

    @staticmethod
    def reference(x, dim, keepdim=False):
        axes = dim if isinstance(dim, tuple) else (dim,)
        if np.ndim(x) == 0:
            return np.array(x)
        top = np.max(x, axis=axes, keepdims=True)
        y = top + np.log(np.sum(np.exp(x - top), axis=axes, keepdims=True))
        return y if keepdim else np.squeeze(y, axes)

    samples = [s for s in _samples() if s.name != "no_rows"] + [
        Sample("keepdim", (Input((5, 40)), 1, True)), Sample("several", (Input((3, 4, 5)), (0, 2))),
        Sample("several_keepdim", (Input((3, 4, 5)), (0, 2), True)),
    ]
    error_samples = _ERRORS


@public()
def logsumexp(x, dim, keepdim=False):
    """ln Σ e^x over one dimension or several."""
    require(x, "logsumexp")
    keepdim = flag("logsumexp", "keepdim", keepdim)
    if isinstance(dim, (tuple, list)):
        if not dim and x.ndim:
            raise ValueError(f"logsumexp: dim names no dimension of shape {x.shape}; for all of them write tuple(range(x.ndim))")
        axes = sorted({axis_of("logsumexp", d, x.ndim) for d in dim})
        if len(axes) != len(dim):
            raise ValueError(f"logsumexp: a dimension is named twice in {dim}")
        kept = [i for i in range(x.ndim) if i not in axes]
        joined = views.flatten(views.permute(x, *kept, *axes), len(kept), -1)
        y = Logsumexp.apply(joined, len(kept))
        return views.reshape(y, tuple(1 if i in axes else n for i, n in enumerate(x.shape))) if keepdim else y
    y = Logsumexp.apply(x, dim)
    return views.unsqueeze(y, dim) if keepdim and x.ndim else y
