"""eq, ne, lt, le, gt, ge to bool tensors, and the logic of masks."""

from __future__ import annotations

import numpy as np

from onemodel.arrays import array_view, code_of, empty
from onemodel.ops import layouts
from onemodel.registry import Op, public, register
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


def _logic(name, ufunc):
    """`&`, `|`, `^`, `~` of bool tensors (and bitwise of integers): NumPy computes into memory of ours."""

    def run(*tensors):
        arrays = []
        for t in tensors:
            if isinstance(t, Tensor) and t.dtype.kind == "f" or not isinstance(t, (Tensor, bool, int)):
                kind = t.dtype if isinstance(t, Tensor) else type(t).__name__
                raise TypeError(f"{name}: expected bool or integer tensors, got {kind}; write a comparison first")
            arrays.append(array_view(t, name) if isinstance(t, Tensor) else t)
        result = ufunc(*arrays)
        out = empty(result.shape, code_of(result.dtype), name)
        array_view(out, name)[...] = result
        return out

    install_slot(name, run)


for _name, _ufunc in {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "invert": np.invert}.items():
    _logic(_name, _ufunc)
