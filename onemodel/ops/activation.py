"""relu, sigmoid, tanh, gelu."""

from __future__ import annotations

import math

import numpy as np

from onemodel.ops import layouts
from onemodel.registry import ErrorSample, Input, Op, Sample, public, register
from onemodel.rules import Map


@register
class Relu(Op):
    """y = max(x, 0), +0 for -0, NaN for NaN; gradient g where y > 0, else 0 (so 0 at NaN and at 0)."""

    kernel = Map("relu x", x="relu_bwd y g")

    @staticmethod
    def reference(x):
        return np.maximum(x, 0)

    samples = layouts.unary()
    error_samples = layouts.unary_errors()


@public(op=Relu)
def relu(x):
    """max(x, 0)."""


@register
class Sigmoid(Op):
    """y = 1/(1 + e^-x); gradient g·y·(1 - y)."""

    kernel = Map("sigmoid x", x="sigmoid_bwd y g")

    @staticmethod
    def reference(x):
        return 1 / (1 + np.exp(-np.asarray(x)))

    samples = layouts.unary() + [Sample("wide", (Input((64,), -30.0, 30.0),), {}, gradcheck=False)]
    error_samples = layouts.unary_errors()


@public(op=Sigmoid)
def sigmoid(x):
    """1/(1 + e^-x)."""


@register
class Tanh(Op):
    """y = tanh x; gradient g·(1 - y²)."""

    kernel = Map("tanh x", x="tanh_bwd y g")

    @staticmethod
    def reference(x):
        return np.tanh(x)

    samples = layouts.unary() + [Sample("wide", (Input((64,), -12.0, 12.0),), {}, gradcheck=False)]
    error_samples = layouts.unary_errors()


@public(op=Tanh)
def tanh(x):
    """Hyperbolic tangent."""


@register
class Gelu(Op):
    """y = x·Φ(x), Φ the normal distribution function ("none"), or ½x(1 + tanh(√(2/π)(x + 0.044715x³))) ("tanh").

    Gradient g·(Φ(x) + x·φ(x)), or the derivative of the tanh form. Source: Hendrycks and Gimpel 2016.
    """

    kernel = {"none": Map("gelu_erf x", x="gelu_erf_bwd x g"), "tanh": Map("gelu_tanh x", x="gelu_tanh_bwd x g")}

    @staticmethod
    def reference(x, approximate="none"):
        if approximate == "tanh":
            return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(np.asarray(x) / math.sqrt(2)))

    samples = (layouts.unary() + [Sample(f"tanh_{s.name}", s.args, s.kwargs, s.tolerance) for s in layouts.unary(approximate="tanh")]
               + [Sample("wide", (Input((64,), -9.0, 9.0),), {}, gradcheck=False)])
    error_samples = layouts.unary_errors() + [
        ErrorSample("form", (Input((3,)),), ValueError, "approximate", {"approximate": "erf"}),
    ]


@public()
def gelu(x, approximate="none"):
    """x·Φ(x); approximate="tanh" takes the tanh form."""
    kernel = Gelu.kernel.get(approximate) if isinstance(approximate, str) else None
    if kernel is None:
        raise ValueError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")
    return kernel(x)
