"""sum, mean, var, std, amax, amin, argmax, argmin: over all, one or several dimensions."""

from __future__ import annotations

import numpy as np

from onemodel import reductions
from onemodel.arrays import array_view, axis_of, code_of, empty, require
from onemodel.errors import ShapeError
from onemodel.ops.arithmetic import neg
from onemodel.ops.parameters import flag, real
from onemodel.registry import ErrorSample, Input, Op, Sample, public, register


def _axes(dim):
    return tuple(dim) if isinstance(dim, list) else dim


def _samples():
    return [
        Sample("all", (Input((5, 7)),)),
        Sample("last", (Input((5, 40)),), {"dim": -1}),
        Sample("first_keepdim", (Input((5, 40)),), {"dim": 0, "keepdim": True}),
        Sample("several", (Input((3, 4, 5, 2)),), {"dim": (0, 2)}),
        Sample("scalar", (Input(()),)),
        Sample("vector", (Input((301,), -1.0, 3.0),)),  # not symmetric: the error of a sum is measured against its size
        Sample("transposed", (Input((6, 5, 4), layout="transposed"),), {"dim": 1}),
        Sample("strided", (Input((6, 9), layout="strided"),), {"dim": (0, 1), "keepdim": True}),
        Sample("expanded", (Input((4, 6), layout="expanded"),), {"dim": 0}, 4.0, False),
        Sample("flipped", (Input((4, 6), layout="flipped"),), {"dim": -1}),
        Sample("lone", (Input((4, 1, 1, 5), layout="lone"),), {"dim": 1}),
        Sample("no_rows", (Input((0, 3)),), {"dim": 1}),
    ]


def _errors(empty: bool):
    errors = [
        ErrorSample("range", (Input((2, 3)),), IndexError, "out of range", {"dim": 2}),
        ErrorSample("twice", (Input((2, 3)),), ValueError, "twice", {"dim": (0, -2)}),
        ErrorSample("list", ([1.0, 2.0],), TypeError, "om.tensor"),
    ]
    return errors + [ErrorSample("empty", (Input((0, 3)),), ValueError, "empty", {"dim": 0})] if empty else errors


@register
class Sum(Op):
    """y = Σ x over the named dimensions, added in double in row-major order and rounded once; gradient g stretched."""

    kernel = reductions.RULES["sum"]

    @staticmethod
    def reference(x, dim=None, keepdim=False):
        return np.sum(x, axis=_axes(dim), keepdims=keepdim)

    samples = _samples() + [Sample("empty", (Input((0, 3)),), {"dim": 0})]
    error_samples = _errors(False)


@public()
def sum(x, dim=None, keepdim=False):  # noqa: A001 - the field's name
    """Sum over all dimensions, one, or several; integers and bool give int64."""
    return reductions.sum(x, dim, keepdim)


@register
class Mean(Op):
    """y = Σ x / n, the double sum divided in double and rounded once; gradient g/n stretched. NaN where n is 0."""

    kernel = reductions.RULES["mean"]

    @staticmethod
    def reference(x, dim=None, keepdim=False):
        return np.mean(x, axis=_axes(dim), keepdims=keepdim)

    samples = _samples()
    error_samples = _errors(False) + [ErrorSample("integer", (Input((3,), dtype="int64"),), TypeError, "float32")]


@public()
def mean(x, dim=None, keepdim=False):
    """Arithmetic mean over all dimensions, one, or several."""
    return reductions.mean(x, dim, keepdim)


def _correction(op, correction, unbiased):
    """What is taken off the count; torch's older `unbiased` says 1 or 0."""
    if unbiased is None:
        return real(op, "correction", 1 if correction is None else correction)
    if correction is not None:
        raise ValueError(f"{op}: correction and unbiased say the same; pass one of them")
    return 1.0 if flag(op, "unbiased", unbiased) else 0.0


_SPREAD_SAMPLES = [
    *[s for s in _samples() if s.name not in ("scalar", "lone")],
    Sample("scalar", (Input(()),), {"correction": 0.0}, 4.0, False),  # a root of 0 has no slope
    Sample("population", (Input((5, 40)),), {"dim": -1, "correction": 0.0}),
    Sample("fraction", (Input((5, 40)),), {"dim": 0, "correction": 0.5}),
    Sample("offset", (Input((5, 40), 1e6, 1e6 + 3),), {"dim": 1}, 4.0, False),
    Sample("large", (Input((3, 30), -2e15, 2e15),), {"dim": 1}, 4.0, False),
]
_SPREAD_ERRORS = _errors(False) + [
    ErrorSample("integer", (Input((3,), dtype="int64"),), TypeError, "float32"),
    ErrorSample("correction", (Input((3,)),), TypeError, "correction", {"correction": "1"}),
    ErrorSample("both", (Input((3,)),), ValueError, "pass one of them", {"correction": 1, "unbiased": True}),
]


@register
class Var(Op):
    """y = Σ(x - mean)² / (n - correction) over the named dimensions, in double and rounded once; gradient 2g(x - mean) / (n - correction)."""

    kernel = reductions.RULES["var"]

    @staticmethod
    def reference(x, dim=None, correction=1, keepdim=False):
        return np.var(x, axis=_axes(dim), ddof=correction, keepdims=keepdim)

    samples = _SPREAD_SAMPLES
    error_samples = _SPREAD_ERRORS


@public()
def var(x, dim=None, *, correction=None, keepdim=False, unbiased=None):
    """Σ(x - mean)² / (n - correction) over all dimensions, one, or several; correction is 1 unless given, and 0 for `unbiased=False`.

    Where n is not above the correction the divisor is 0.
    """
    return reductions.var(x, dim, _correction("var", correction, unbiased), keepdim)


@register
class Std(Op):
    """y = √var, in double and rounded once; gradient g(x - mean) / ((n - correction)·y), and 0 where y is 0."""

    kernel = reductions.RULES["std"]

    @staticmethod
    def reference(x, dim=None, correction=1, keepdim=False):
        return np.std(x, axis=_axes(dim), ddof=correction, keepdims=keepdim)

    samples = _SPREAD_SAMPLES
    error_samples = _SPREAD_ERRORS


@public()
def std(x, dim=None, *, correction=None, keepdim=False, unbiased=None):
    """The root of `var`."""
    return reductions.std(x, dim, _correction("std", correction, unbiased), keepdim)


@register
class Amax(Op):
    """y = max x over the named dimensions, NaN if one is there; ties share the gradient evenly."""

    kernel = reductions.RULES["amax"]

    @staticmethod
    def reference(x, dim=None, keepdim=False):
        return np.amax(x, axis=_axes(dim), keepdims=keepdim)

    samples = _samples()
    error_samples = _errors(True)


@public()
def amax(x, dim=None, keepdim=False):
    """Largest element over all dimensions, one, or several; an empty dimension is a ShapeError."""
    return reductions.amax(x, dim, keepdim)


@register
class Amin(Op):
    """y = min x over the named dimensions, NaN if one is there; ties share the gradient evenly."""

    kernel = reductions.RULES["amin"]

    @staticmethod
    def reference(x, dim=None, keepdim=False):
        return np.amin(x, axis=_axes(dim), keepdims=keepdim)

    samples = _samples()
    error_samples = _errors(True)


@public()
def amin(x, dim=None, keepdim=False):
    """Smallest element over all dimensions, one, or several; an empty dimension is a ShapeError."""
    return reductions.amin(x, dim, keepdim)


@register
class Argmax(Op):
    """y = index (int64) of the first largest element along a dimension, or of all in row-major order; a NaN wins."""

    why_not_differentiable = "the result is an index"

    @staticmethod
    def forward(ctx, x, dim=None, keepdim=False):
        return reductions.argmax(x, dim, keepdim)

    @staticmethod
    def reference(x, dim=None, keepdim=False):
        return np.argmax(x, axis=dim, keepdims=keepdim)

    samples = [s for s in _samples() if not isinstance(s.kwargs.get("dim"), tuple)]
    error_samples = [
        ErrorSample("range", (Input((2, 3)),), IndexError, "out of range", {"dim": 2}),
        ErrorSample("empty", (Input((0, 3)),), ValueError, "empty", {"dim": 0}),
    ]


@public()
def argmax(x, dim=None, keepdim=False):
    """Index of the first largest element; dim None: in the flattened tensor."""
    return reductions.argmax(x, dim, keepdim)


@register
class Argmin(Op):
    """y = index (int64) of the first smallest element along a dimension, or of all in row-major order; a NaN wins."""

    why_not_differentiable = "the result is an index"

    @staticmethod
    def forward(ctx, x, dim=None, keepdim=False):
        axis = None if dim is None or x.ndim == 0 else axis_of("argmin", dim, x.ndim)
        if x.numel() == 0 and (axis is None or x.shape[axis] == 0):
            raise ShapeError(f"argmin: shape {x.shape} is empty there; there is no smallest of nothing")
        if x.dtype == np.float32:
            return reductions.argmax(neg(x.detach()), axis, keepdim)
        found = np.asarray(np.argmin(array_view(x, "argmin"), axis=axis, keepdims=keepdim))
        out = empty(found.shape, code_of(np.int64), "argmin")
        array_view(out, "argmin")[...] = found
        return out

    @staticmethod
    def reference(x, dim=None, keepdim=False):
        return np.argmin(x, axis=dim, keepdims=keepdim)

    samples = Argmax.samples + [
        Sample("integers", (Input((3, 4), -9.0, 9.0, dtype="int64"),), {"dim": 1}), Sample("bytes", (Input((7,), 0.0, 9.0, dtype="uint8"),)),
    ]
    error_samples = [
        ErrorSample("range", (Input((2, 3)),), IndexError, "out of range", {"dim": 2}),
        ErrorSample("empty", (Input((0, 3)),), ValueError, "empty", {"dim": 0}),
        ErrorSample("list", ([1.0],), TypeError, "om.tensor"),
    ]


@public()
def argmin(x, dim=None, keepdim=False):
    """Index of the first smallest element; dim None: in the flattened tensor."""
    return Argmin.forward(None, require(x, "argmin"), dim, flag("argmin", "keepdim", keepdim))
