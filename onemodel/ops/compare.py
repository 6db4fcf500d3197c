"""eq, ne, lt, le, gt, ge to bool tensors, all and any of them, and the logic of masks."""

from __future__ import annotations

import numpy as np

from onemodel.arrays import array_view, axis_of, code_of, empty, require
from onemodel.errors import ShapeError
from onemodel.ops import layouts
from onemodel.ops.parameters import flag
from onemodel.registry import ErrorSample, Input, Op, Sample, public, register
from onemodel.rules import Map
from onemodel.tensor import Tensor, install_slot

_BOOL = "the result is bool"


def _samples():
    return layouts.binary(-1.0, 1.0)[:9]


def _errors():
    return layouts.binary_errors()


@register
class Eq(Op):
    """y = (a == b), False where either is NaN."""

    kernel = Map("eq a b", integer=np.equal)
    why_not_differentiable = _BOOL

    @staticmethod
    def reference(a, b):
        return a == b

    samples = _samples()
    error_samples = _errors()


@public(op=Eq, slot="eq")
def eq(a, b):
    """a == b."""


@register
class Ne(Op):
    """y = (a != b), True where either is NaN."""

    kernel = Map("ne a b", integer=np.not_equal)
    why_not_differentiable = _BOOL

    @staticmethod
    def reference(a, b):
        return a != b

    samples = _samples()
    error_samples = _errors()


@public(op=Ne, slot="ne")
def ne(a, b):
    """a != b."""


@register
class Lt(Op):
    """y = (a < b), False where either is NaN."""

    kernel = Map("lt a b", integer=np.less)
    why_not_differentiable = _BOOL

    @staticmethod
    def reference(a, b):
        return a < b

    samples = _samples()
    error_samples = _errors()


@public(op=Lt, slot="lt")
def lt(a, b):
    """a < b."""


@register
class Le(Op):
    """y = (a <= b), False where either is NaN."""

    kernel = Map("le a b", integer=np.less_equal)
    why_not_differentiable = _BOOL

    @staticmethod
    def reference(a, b):
        return a <= b

    samples = _samples()
    error_samples = _errors()


@public(op=Le, slot="le")
def le(a, b):
    """a <= b."""


@register
class Gt(Op):
    """y = (a > b), False where either is NaN."""

    kernel = Map("gt a b", integer=np.greater)
    why_not_differentiable = _BOOL

    @staticmethod
    def reference(a, b):
        return a > b

    samples = _samples()
    error_samples = _errors()


@public(op=Gt, slot="gt")
def gt(a, b):
    """a > b."""


@register
class Ge(Op):
    """y = (a >= b), False where either is NaN."""

    kernel = Map("ge a b", integer=np.greater_equal)
    why_not_differentiable = _BOOL

    @staticmethod
    def reference(a, b):
        return a >= b

    samples = _samples()
    error_samples = _errors()


@public(op=Ge, slot="ge")
def ge(a, b):
    """a >= b."""


_TRUTHS = [
    Sample("vector", (Input((5,), dtype="bool"),)), Sample("transposed", (Input((3, 4), dtype="bool", layout="transposed"),), {"dim": 1}),
    Sample("expanded", (Input((3, 4), dtype="bool", layout="expanded"),), {"dim": -1, "keepdim": True}), Sample("scalar", (Input((), dtype="bool"),)),
    Sample("integers", (Input((3, 4), dtype="int64"),), {"dim": 0}), Sample("floats", (Input((3, 4), -1.0, 1.0, requires_grad=False),)),
    Sample("none", (Input((0, 3), dtype="bool"),)),
]
_TRUTH_ERRORS = [
    ErrorSample("list", ([True],), TypeError, "om.tensor"),
    ErrorSample("range", (Input((2, 3), dtype="bool"),), IndexError, "out of range", {"dim": 2}),
]


def _reduced_truth(name, ufunc, x, dim, keepdim):
    """NumPy reduces what is not 0 into memory of ours."""
    array = array_view(require(x, name), name)
    keepdim = flag(name, "keepdim", keepdim)
    if dim is not None:
        dim = axis_of(name, dim, x.ndim)
        dim = None if x.ndim == 0 else dim
    result = np.asarray(ufunc.reduce(array, axis=dim, keepdims=keepdim, dtype=np.bool_))
    out = empty(result.shape, code_of(np.bool_), name)
    array_view(out, name)[...] = result
    return out


@register
class All(Op):
    """y = whether no element along a dimension, or of all, is 0; True of none. NaN is not 0."""

    why_not_differentiable = _BOOL

    @staticmethod
    def forward(ctx, x, dim=None, keepdim=False):
        return _reduced_truth("all", np.logical_and, x, dim, keepdim)

    @staticmethod
    def reference(x, dim=None, keepdim=False):
        return np.all(x, axis=dim, keepdims=keepdim)

    samples = _TRUTHS
    error_samples = _TRUTH_ERRORS


@public()
def all(x, dim=None, keepdim=False):  # noqa: A001 - the field's name
    """Whether no element is 0, over all dimensions or one, as a bool tensor."""
    return All.forward(None, x, dim, keepdim)


@register
class Any(Op):
    """y = whether some element along a dimension, or of all, is not 0; False of none. NaN is not 0."""

    why_not_differentiable = _BOOL

    @staticmethod
    def forward(ctx, x, dim=None, keepdim=False):
        return _reduced_truth("any", np.logical_or, x, dim, keepdim)

    @staticmethod
    def reference(x, dim=None, keepdim=False):
        return np.any(x, axis=dim, keepdims=keepdim)

    samples = _TRUTHS
    error_samples = _TRUTH_ERRORS


@public()
def any(x, dim=None, keepdim=False):  # noqa: A001 - the field's name
    """Whether some element is not 0, over all dimensions or one, as a bool tensor."""
    return Any.forward(None, x, dim, keepdim)


def _logic(name, ufunc):
    """`&`, `|`, `^`, `~` of bool tensors (and bitwise of integers): NumPy computes into memory of ours."""

    def run(*operands):
        dtype = next(t.dtype for t in operands if isinstance(t, Tensor))
        arrays = []
        for t in operands:
            if isinstance(t, Tensor):
                if t.dtype.kind == "f":
                    raise TypeError(f"{name}: expected bool or integer tensors, got {t.dtype}; write a comparison first")
                if t.dtype != dtype:
                    raise TypeError(f"{name}: {dtype} and {t.dtype} do not mix; write .cast(om.{dtype.name}) on one")
                arrays.append(array_view(t, name))
            elif isinstance(t, (bool, np.bool_)) or isinstance(t, (int, np.integer)) and dtype.kind != "b":
                try:
                    arrays.append(np.array(int(t), dtype))
                except OverflowError as error:
                    raise ValueError(f"{name}: {error}") from None
            else:
                raise TypeError(f"{name}: expected a tensor or scalar of type {dtype}, got {type(t).__name__}; wrap arrays with om.tensor")
        try:
            shape = np.broadcast_shapes(*(a.shape for a in arrays))
        except ValueError:
            raise ShapeError(f"{name}: shapes {' and '.join(str(a.shape) for a in arrays)} do not broadcast") from None
        out = empty(shape, code_of(dtype), name)
        ufunc(*arrays, out=array_view(out, name))
        return out

    install_slot(name, run)


for _name, _ufunc in {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "invert": np.invert}.items():
    _logic(_name, _ufunc)
