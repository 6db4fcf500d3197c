"""add, sub, mul, div, neg, abs, square, pow, maximum, minimum, clamp, where: IEEE operations with broadcasting.

Each is one compiled rule; see `onemodel.rules` for how to read its words.
"""

from __future__ import annotations

import math

import numpy as np

from onemodel.arrays import require
from onemodel.inplace import install
from onemodel.ops import layouts
from onemodel.registry import ErrorSample, Input, Op, Sample, public, register
from onemodel.rules import Map


@register
class Add(Op):
    """y = a + b; gradients g and g, summed over broadcast axes."""

    kernel = Map("add a b", a="g", b="g", integer=np.add)

    @staticmethod
    def reference(a, b):
        return a + b

    samples = layouts.binary()
    error_samples = layouts.binary_errors()


@public(op=Add, slot="add")
def add(a, b):
    """a + b, with broadcasting. Shapes that do not broadcast: ShapeError; float with integer: TypeError."""


@register
class Sub(Op):
    """y = a - b; gradients g and -g, summed over broadcast axes."""

    kernel = Map("sub a b", a="g", b="neg g", integer=np.subtract)

    @staticmethod
    def reference(a, b):
        return a - b

    samples = layouts.binary()
    error_samples = layouts.binary_errors()


@public(op=Sub, slot="sub")
def sub(a, b):
    """a - b, with broadcasting. Shapes that do not broadcast: ShapeError; float with integer: TypeError."""


@register
class Mul(Op):
    """y = a·b; gradients g·b and g·a, summed over broadcast axes."""

    kernel = Map("mul a b", a="mul g b", b="mul g a", integer=np.multiply)

    @staticmethod
    def reference(a, b):
        return a * b

    samples = layouts.binary()
    error_samples = layouts.binary_errors()


@public(op=Mul, slot="mul")
def mul(a, b):
    """a·b, with broadcasting. Shapes that do not broadcast: ShapeError; float with integer: TypeError."""


@register
class Div(Op):
    """y = a/b; gradients g/b and -(g·a)/(b·b), summed over broadcast axes."""

    kernel = Map("div a b", a="div g b", b="div_bwd_b a b g")

    @staticmethod
    def reference(a, b):
        return a / b

    samples = layouts.binary(-2.0, 2.0, second=(0.5, 2.0))
    error_samples = layouts.binary_errors() + [
        ErrorSample("integers", (Input((2,), dtype="int64"), Input((2,), dtype="int64")), TypeError, "float32"),
    ]


@public(op=Div, slot="div")
def div(a, b):
    """a/b, with broadcasting, as IEEE divides (1/0 is inf, 0/0 NaN). Integers: TypeError; cast them to float32."""


@register
class Neg(Op):
    """y = -x; gradient -g."""

    kernel = Map("neg x", x="neg g", integer=np.negative)

    @staticmethod
    def reference(x):
        return -x

    samples = layouts.unary()
    error_samples = layouts.unary_errors()


@public(op=Neg, slot="neg")
def neg(x):
    """-x."""


@register
class Abs(Op):
    """y = |x|; gradient g·sign(x), 0 at 0."""

    kernel = Map("abs x", x="abs_bwd x g", integer=np.absolute)

    @staticmethod
    def reference(x):
        return np.abs(x)

    samples = layouts.unary(0.1, 2.0) + [Sample("negative", (Input((5, 7), -2.0, -0.1),), {})]
    error_samples = [ErrorSample("list", ([1.0],), TypeError, "om.tensor")]


@public(op=Abs, slot="abs")
def abs(x):  # noqa: A001 - the field's name
    """|x|; the slope at 0 is 0."""


@register
class Square(Op):
    """y = x·x; gradient g·2x."""

    kernel = Map("square x", x="square_bwd x g", integer=np.square)

    @staticmethod
    def reference(x):
        return x * x

    samples = layouts.unary()
    error_samples = [ErrorSample("list", ([1.0],), TypeError, "om.tensor")]


@public(op=Square)
def square(x):
    """x·x."""


@register
class Pow(Op):
    """y = a^b (C99 pow); gradients g·b·a^(b-1) and g·a^b·log a, as torch defines them at 0."""

    kernel = Map("pow a b", a="pow_bwd_a a b g", b="pow_bwd_b a b g", integer=np.power)

    @staticmethod
    def reference(a, b):
        return np.power(np.asarray(a, float), b)

    samples = layouts.binary(0.3, 2.0, second=(-1.5, 2.0), tolerance=8.0) + [
        Sample("square", (Input((4, 5)), 2), {}), Sample("cube", (Input((4, 5)), 3), {}, 8.0),
        Sample("root", (Input((7,), 0.1, 4.0), 0.5), {}, 8.0),
    ]
    error_samples = layouts.binary_errors()


@public(op=Pow, slot="pow")
def pow(a, b):  # noqa: A001 - the field's name
    """a^b element by element; a negative base with a fractional exponent is NaN."""


@register
class Maximum(Op):
    """y = max(a, b), NaN if either is; the gradient goes to the larger, half to each at ties."""

    kernel = Map("maximum a b", a="maximum_bwd a b g", b="maximum_bwd b a g", integer=np.maximum)

    @staticmethod
    def reference(a, b):
        return np.maximum(a, b)

    samples = layouts.binary()
    error_samples = layouts.binary_errors()


@public(op=Maximum)
def maximum(a, b):
    """The larger of a and b, with broadcasting; NaN wins."""


@register
class Minimum(Op):
    """y = min(a, b), NaN if either is; the gradient goes to the smaller, half to each at ties."""

    kernel = Map("minimum a b", a="minimum_bwd a b g", b="minimum_bwd b a g", integer=np.minimum)

    @staticmethod
    def reference(a, b):
        return np.minimum(a, b)

    samples = layouts.binary()
    error_samples = layouts.binary_errors()


@public(op=Minimum)
def minimum(a, b):
    """The smaller of a and b, with broadcasting; NaN wins."""


@register
class Clamp(Op):
    """y = min(max(x, lo), hi); gradient g where lo <= x <= hi, bounds included, else 0. NaN stays."""

    kernel = Map("clamp x lo hi", x="clamp_bwd x lo hi g", integer=lambda x, lo, hi, out: np.clip(x, lo, hi, out=out))

    @staticmethod
    def reference(x, min=None, max=None):
        return np.clip(x, min, max)

    samples = layouts.unary(-3.0, 3.0, min=-1.05, max=1.35) + [
        Sample("lower", (Input((17,)),), {"min": -0.31}), Sample("upper", (Input((17,)),), {"max": 0.77}),
    ]
    error_samples = [
        ErrorSample("no_bound", (Input((3,)),), ValueError, "at least one"),
        ErrorSample("tensor_bound", (Input((3,)),), TypeError, "number", {"min": "0"}),
    ]


@public("clamp", "clip")
def clamp(x, min=None, max=None):
    """x bounded to [min, max], two numbers of which one may be left out."""
    if min is None and max is None:
        raise ValueError("clamp: give at least one of min and max")
    for bound in (min, max):
        if bound is not None and not isinstance(bound, (int, float, np.integer, np.floating)):
            raise TypeError(f"clamp: min and max must be numbers, got {type(bound).__name__}; use maximum and minimum for tensors")
    if require(x, "clamp").dtype.kind in "iu":
        info = np.iinfo(x.dtype)
        return Clamp.kernel(x, info.min if min is None else min, info.max if max is None else max)
    return Clamp.kernel(x, -math.inf if min is None else min, math.inf if max is None else max)


def _where_integer(condition, a, b, out):
    np.copyto(out, b)
    np.copyto(out, a, where=condition)


@register
class Where(Op):
    """y = a where the condition holds, else b; the gradient goes to the one that was taken."""

    kernel = Map("where c a b", a="where c g zero", b="where c zero g", integer=_where_integer)

    @staticmethod
    def reference(condition, a, b):
        return np.where(condition, a, b)

    samples = [
        Sample("vector", (Input((137,), dtype="bool"), Input((137,)), Input((137,))), {}),
        Sample("broadcast", (Input((5, 1), dtype="bool"), Input((7,)), Input((5, 7))), {}),
        Sample("scalars", (Input((4, 6), dtype="bool"), Input((4, 6)), 0.0), {}),
        Sample("transposed", (Input((6, 5), dtype="bool", layout="transposed"), Input((6, 5)), Input((6, 5), layout="strided")), {}),
    ]
    error_samples = [
        ErrorSample("float_condition", (Input((3,)), Input((3,)), Input((3,))), TypeError, "bool"),
        ErrorSample("shapes", (Input((2,), dtype="bool"), Input((3,)), Input((3,))), ValueError, "do not broadcast"),
    ]


@public(op=Where, method=False)
def where(condition, a, b):
    """a where the bool tensor `condition` holds, else b, with broadcasting."""


for _op in (Add, Sub, Mul, Div):
    install(f"{_op.name}_", _op.kernel)
