"""exp, log, sqrt, sin, cos: functions of one variable."""

from __future__ import annotations

import numpy as np

from onemodel.ops import layouts
from onemodel.registry import Input, Op, Sample, public, register
from onemodel.rules import Map


@register
class Exp(Op):
    """y = e^x; gradient g·y."""

    kernel = Map("exp x", x="mul g y")

    @staticmethod
    def reference(x):
        return np.exp(x)

    samples = layouts.unary() + [Sample("wide", (Input((64,), -80.0, 80.0),), {}, gradcheck=False)]
    error_samples = layouts.unary_errors()


@public(op=Exp)
def exp(x):
    """e^x; +inf above 88.73, 0 below -103.98."""


@register
class Log(Op):
    """y = ln x; gradient g/x."""

    kernel = Map("log x", x="div g x")

    @staticmethod
    def reference(x):
        return np.log(x)

    samples = layouts.unary(0.2, 4.0)
    error_samples = layouts.unary_errors()


@public(op=Log)
def log(x):
    """Natural logarithm; -inf at 0, NaN below."""


@register
class Sqrt(Op):
    """y = √x; gradient g/(2y), +inf at 0."""

    kernel = Map("sqrt x", x="sqrt_bwd y g")

    @staticmethod
    def reference(x):
        return np.sqrt(x)

    samples = layouts.unary(0.2, 4.0)
    error_samples = layouts.unary_errors()


@public(op=Sqrt)
def sqrt(x):
    """Square root, correctly rounded; NaN below 0; the slope at 0 is +inf."""


@register
class Sin(Op):
    """y = sin x; gradient g·cos x."""

    kernel = Map("sin x", x="sin_bwd x g")

    @staticmethod
    def reference(x):
        return np.sin(x)

    samples = layouts.unary() + [Sample("far", (Input((64,), -1000.0, 1000.0),), {}, gradcheck=False)]
    error_samples = layouts.unary_errors()


@public(op=Sin)
def sin(x):
    """Sine of x in radians; NaN at the infinities."""


@register
class Cos(Op):
    """y = cos x; gradient -(g·sin x)."""

    kernel = Map("cos x", x="cos_bwd x g")

    @staticmethod
    def reference(x):
        return np.cos(x)

    samples = layouts.unary() + [Sample("far", (Input((64,), -1000.0, 1000.0),), {}, gradcheck=False)]
    error_samples = layouts.unary_errors()


@public(op=Cos)
def cos(x):
    """Cosine of x in radians; NaN at the infinities."""
