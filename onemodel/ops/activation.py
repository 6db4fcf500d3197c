"""relu, sigmoid, tanh, gelu, silu, softplus, leaky_relu, elu."""

from __future__ import annotations

import math

import numpy as np

from onemodel.ops import layouts
from onemodel.ops.parameters import floats, real
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


@register
class Silu(Op):
    """y = x·s, s = 1/(1 + e^-x), -0 at -inf; gradient g·s(1 + x(1 - s)). Source: Elfwing, Uchibe and Doya 2018."""

    kernel = Map("silu x", x="silu_bwd x g")

    @staticmethod
    def reference(x):
        return x / (1 + np.exp(-np.asarray(x)))

    samples = layouts.unary() + [Sample("wide", (Input((64,), -30.0, 30.0),), {}, gradcheck=False)]
    error_samples = layouts.unary_errors()


@public(op=Silu)
def silu(x):
    """x·sigmoid(x)."""


@register
class Softplus(Op):
    """y = ln(1 + e^(βx))/β, and x where βx exceeds the threshold; gradient g·sigmoid(βx), and g there. β is finite and not 0."""

    kernel = Map("softplus x beta threshold", x="softplus_bwd x beta threshold g")

    @staticmethod
    def reference(x, beta=1.0, threshold=20.0):
        u = np.asarray(x) * beta
        return np.where(u > threshold, x, (np.maximum(u, 0) + np.log1p(np.exp(-np.abs(u)))) / beta)

    samples = layouts.unary() + [
        Sample("wide", (Input((64,), -30.0, 30.0),), {}, gradcheck=False),
        Sample("steep", (Input((6, 9), layout="strided"),), {"beta": 2.5, "threshold": 3.0}, gradcheck=False),
        Sample("falling", (Input((37,), -4.0, 4.0),), {"beta": -0.7, "threshold": 30}),
    ]
    error_samples = layouts.unary_errors() + [
        ErrorSample("beta", (Input((3,)),), ValueError, "beta", {"beta": 0}),
        ErrorSample("beta_type", (Input((3,)),), TypeError, "beta", {"beta": "1"}),
        ErrorSample("beta_large", (Input((3,)),), ValueError, "beta", {"beta": 10**400}),
        ErrorSample("threshold", (Input((3,)),), ValueError, "threshold", {"threshold": math.nan}),
    ]


@public()
def softplus(x, beta=1.0, threshold=20.0):
    """ln(1 + e^(beta·x))/beta; x itself where beta·x exceeds the threshold."""
    floats("softplus", x=x)
    slope = real("softplus", "beta", beta, "finite and not 0")
    if abs(slope) < 2.0**-149:
        raise ValueError(f"softplus: beta must be finite and not 0, got {beta}")
    return Softplus.kernel(x, slope, real("softplus", "threshold", threshold, "a number", finite=False))


@register
class LeakyRelu(Op):
    """y = x where x > 0, else x·slope; gradients g and g·slope. Source: Maas, Hannun and Ng 2013."""

    kernel = Map("leaky_relu x slope", x="leaky_relu_bwd x slope g")

    @staticmethod
    def reference(x, negative_slope=0.01):
        return np.where(x > 0, x, x * np.float64(np.float32(negative_slope)))

    samples = layouts.unary() + [
        Sample("steep", (Input((6, 9), layout="strided"),), {"negative_slope": 2}), Sample("falling", (Input((37,)),), {"negative_slope": -0.5}),
    ]
    error_samples = layouts.unary_errors() + [
        ErrorSample("slope", (Input((3,)),), ValueError, "negative_slope", {"negative_slope": math.inf}),
        ErrorSample("slope_type", (Input((3,)),), TypeError, "negative_slope", {"negative_slope": None}),
    ]


@public()
def leaky_relu(x, negative_slope=0.01):
    """x where it is positive, else x·negative_slope."""
    floats("leaky_relu", x=x)
    return LeakyRelu.kernel(x, real("leaky_relu", "negative_slope", negative_slope))


@register
class Elu(Op):
    """y = x where x >= 0, else α(e^x - 1); gradients g where x > 0, else g·α·e^x. Source: Clevert, Unterthiner and Hochreiter 2016."""

    kernel = Map("elu x alpha", x="elu_bwd x alpha g")

    @staticmethod
    def reference(x, alpha=1.0):
        return np.where(x < 0, alpha * np.expm1(x), x)

    samples = layouts.unary() + [
        Sample("wide", (Input((64,), -30.0, 30.0),), {}, gradcheck=False),
        Sample("steep", (Input((6, 9), layout="strided"),), {"alpha": 1.75}), Sample("falling", (Input((37,)),), {"alpha": -0.5}),
    ]
    error_samples = layouts.unary_errors() + [
        ErrorSample("alpha", (Input((3,)),), ValueError, "alpha", {"alpha": math.nan}),
        ErrorSample("alpha_type", (Input((3,)),), TypeError, "alpha", {"alpha": True}),
    ]


@public()
def elu(x, alpha=1.0):
    """x where it is not negative, else alpha·(e^x - 1)."""
    floats("elu", x=x)
    return Elu.kernel(x, real("elu", "alpha", alpha))
