"""mse_loss, l1_loss, huber_loss, smooth_l1_loss, binary_cross_entropy_with_logits: losses of an input against a target of its shape.

Forward is one pass that sums as it goes, backward one pass for both gradients.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onemodel import calls
from onemodel.errors import ShapeError
from onemodel.ops.loss import reduction_code
from onemodel.ops.parameters import floats, real
from onemodel.registry import ErrorSample, Input, Op, Sample, public, register
from onemodel.tensor import Tensor


def _rule(name: str) -> tuple[staticmethod, staticmethod]:
    """forward and backward by the kernels of a name."""

    def forward(ctx, a, b, weight, positive, delta, reduction):
        ctx.save_for_backward(a, b, weight, positive)
        ctx.options = delta, reduction
        return calls.error_loss(name, a, b, weight, positive, delta, reduction)

    def backward(ctx, g):
        wants_a, wants_b, *others = ctx.needs_input_grad
        return (*calls.error_loss_bwd(name, g, *ctx.saved_tensors, *ctx.options, wants_a, wants_b), *[None] * len(others))

    return staticmethod(forward), staticmethod(backward)


def _check_pair(op: str, input: Any, target: Any) -> None:
    floats(op, input=input, target=target)
    if input.shape != target.shape:
        raise ShapeError(f"{op}: input has shape {input.shape}, target {target.shape}; make the shapes equal (a silent broadcast hides mistakes)")


def _reduced(y, reduction):
    return y if reduction == "none" else y.sum() if reduction == "sum" else y.mean()


def _samples(**options):
    return [
        Sample("mean", (Input((5, 7)), Input((5, 7))), options),
        Sample("sum", (Input((5, 7)), Input((5, 7))), {"reduction": "sum", **options}),
        Sample("none", (Input((5, 7)), Input((5, 7))), {"reduction": "none", **options}),
        Sample("layouts", (Input((6, 9), layout="transposed"), Input((6, 9), layout="strided")), options),
        Sample("expanded", (Input((4, 6), layout="expanded"), Input((4, 6))), {"reduction": "none", **options}),
        Sample("fixed_target", (Input((37,)), Input((37,), requires_grad=False)), options),
        Sample("scalar", (Input(()), Input(())), options),
        Sample("lone", (Input((4, 1, 5), layout="lone"), Input((4, 1, 5))), options),
        Sample("empty", (Input((0, 3)), Input((0, 3))), {"reduction": "sum", **options}),
    ]


def _errors():
    return [
        ErrorSample("shapes", (Input((5, 1)), Input((5,))), ShapeError, "shape"),
        ErrorSample("reduction", (Input((3,)), Input((3,))), ValueError, "reduction", {"reduction": None}),
        ErrorSample("integer", (Input((3,)), Input((3,), dtype="int64")), TypeError, "float32"),
        ErrorSample("list", (Input((3,)), [1.0, 2.0, 3.0]), TypeError, "om.tensor"),
    ]


def _bend_errors(name):
    return _errors() + [
        ErrorSample("negative", (Input((3,)), Input((3,))), ValueError, name, {name: -1}),
        ErrorSample("huge", (Input((3,)), Input((3,))), ValueError, name, {name: 10**400}),
        ErrorSample("nan", (Input((3,)), Input((3,))), ValueError, name, {name: float("nan")}),
        ErrorSample("bool", (Input((3,)), Input((3,))), TypeError, name, {name: True}),
        ErrorSample("string", (Input((3,)), Input((3,))), TypeError, name, {name: "1"}),
    ]


@register
class MseLoss(Op):
    """y = (a - b)², averaged (Σ/n), summed, or as it is; gradients ±2(a - b)·g/n. Shapes must be equal: ShapeError."""

    forward, backward = _rule("mse_loss")

    @staticmethod
    def reference(a, b, reduction="mean"):
        return _reduced((a - b) ** 2, reduction)

    samples = _samples()
    error_samples = _errors()


@public(method=False)
def mse_loss(input, target, reduction="mean"):
    """Mean squared error of two tensors of one shape."""
    code = reduction_code("mse_loss", reduction)
    _check_pair("mse_loss", input, target)
    return MseLoss.apply(input, target, None, None, 0.0, code)


@register
class L1Loss(Op):
    """y = |a - b|, averaged, summed, or as it is; gradients ±sign(a - b)·g/n, 0 where a = b. Shapes must be equal: ShapeError."""

    forward, backward = _rule("l1_loss")

    @staticmethod
    def reference(a, b, reduction="mean"):
        return _reduced(np.abs(a - b), reduction)

    samples = _samples()
    error_samples = _errors()


@public(method=False)
def l1_loss(input, target, reduction="mean"):
    """Mean absolute error of two tensors of one shape."""
    code = reduction_code("l1_loss", reduction)
    _check_pair("l1_loss", input, target)
    return L1Loss.apply(input, target, None, None, 0.0, code)


@register
class HuberLoss(Op):
    """With d = a - b: y = d²/2 where |d| < δ, else δ(|d| - δ/2), averaged, summed, or as it is; gradients ±d·g/n, d bounded to [-δ, δ].

    δ > 0. Shapes must be equal: ShapeError. Source: Huber 1964.
    """

    forward, backward = _rule("huber_loss")

    @staticmethod
    def reference(a, b, reduction="mean", delta=1.0):
        d = np.abs(a - b)
        return _reduced(np.where(d < delta, d * d / 2, delta * (d - delta / 2)), reduction)

    samples = _samples() + [Sample("bend", (Input((6, 9), layout="strided"), Input((6, 9))), {"delta": 0.4})]
    error_samples = _bend_errors("delta") + [ErrorSample("zero", (Input((3,)), Input((3,))), ValueError, "delta", {"delta": 0})]


@public(method=False)
def huber_loss(input, target, reduction="mean", delta=1.0):
    """Half the squared error up to a distance of delta, linear beyond."""
    code = reduction_code("huber_loss", reduction)
    bend = real("huber_loss", "delta", delta, "a number above 0 that float32 holds", 2.0**-149)
    _check_pair("huber_loss", input, target)
    return HuberLoss.apply(input, target, None, None, bend, code)


@register
class SmoothL1Loss(Op):
    """With d = a - b: y = d²/(2β) where |d| < β, else |d| - β/2, averaged, summed, or as it is; gradients ±(d/β)·g/n, d bounded to [-β, β].

    β ≥ 0; 0 is l1_loss. Shapes must be equal: ShapeError. Source: Girshick 2015.
    """

    forward, backward = _rule("smooth_l1_loss")

    @staticmethod
    def reference(a, b, reduction="mean", beta=1.0):
        d = np.abs(a - b)
        return _reduced(np.where(d < beta, d * d / (2 * beta or 1), d - beta / 2), reduction)

    samples = _samples() + [
        Sample("bend", (Input((6, 9), layout="strided"), Input((6, 9))), {"beta": 0.4}),
        Sample("no_bend", (Input((37,)), Input((37,))), {"beta": 0}),
    ]
    error_samples = _bend_errors("beta")


@public(method=False)
def smooth_l1_loss(input, target, reduction="mean", beta=1.0):
    """Absolute error, rounded off to a parabola within beta of 0."""
    code = reduction_code("smooth_l1_loss", reduction)
    bend = real("smooth_l1_loss", "beta", beta, "a number that is not negative and that float32 holds", 0.0)
    _check_pair("smooth_l1_loss", input, target)
    if bend < 2.0**-149:
        return L1Loss.apply(input, target, None, None, 0.0, code)
    return SmoothL1Loss.apply(input, target, None, None, bend, code)


@register
class BinaryCrossEntropyWithLogits(Op):
    """y = -w·(p·t·ln σ(x) + (1 - t)·ln σ(-x)), σ the logistic function, averaged (Σ/n), summed, or as it is.

    w (weight) and p (pos_weight) broadcast to x's shape and get no gradient: requires_grad on them raises. Computed as |x| times 1 - t or,
    for x < 0, p·t, plus (1 - t + p·t)·ln(1 + e^-|x|): never negative for t in [0, 1], 0 at an infinite x of the right sign. Gradients
    w·g·((1 - t)σ(x) - p·t·σ(-x)) and, of t, w·g·(-x + (p - 1)·ln(1 + e^-x)). Shapes of x and t must be equal: ShapeError.
    """

    forward, backward = _rule("binary_cross_entropy_with_logits")

    @staticmethod
    def reference(x, t, weight=None, reduction="mean", pos_weight=None):
        p = 1.0 if pos_weight is None else pos_weight
        y = (1 - t) * x + (1 + (p - 1) * t) * (np.maximum(-x, 0) + np.log1p(np.exp(-np.abs(x))))
        return _reduced(y if weight is None else y * weight, reduction)

    samples = _samples() + [
        Sample("weighted", (Input((5, 7)), Input((5, 7), 0.0, 1.0), Input((5, 7), 0.1, 2.0, requires_grad=False)), {}, 8.0),
        Sample("positive", (Input((5, 7)), Input((5, 7), 0.0, 1.0)), {"pos_weight": Input((7,), 0.1, 3.0, requires_grad=False)}, 8.0),
        Sample("both", (Input((4, 5, 6), layout="transposed"), Input((4, 5, 6), 0.0, 1.0), Input((5, 1), 0.1, 2.0, requires_grad=False)),
               {"pos_weight": Input((1, 6), 0.1, 3.0, requires_grad=False), "reduction": "none"}, 8.0),
        Sample("one_weight", (Input((37,), -9.0, 9.0), Input((37,), 0.0, 1.0), Input((), 0.1, 2.0, requires_grad=False)), {"reduction": "sum"}, 8.0),
    ]
    error_samples = _errors() + [
        ErrorSample("weight", (Input((2, 3)), Input((2, 3)), Input((2,), requires_grad=False)), ShapeError, "weight"),
        ErrorSample("weight_rank", (Input((3,)), Input((3,)), Input((2, 3), requires_grad=False)), ShapeError, "weight"),
        ErrorSample("weight_type", (Input((3,)), Input((3,)), 2.0), TypeError, "weight"),
        ErrorSample("weight_gradient", (Input((3,)), Input((3,)), Input((3,))), ValueError, "detach"),
        ErrorSample("pos_weight", (Input((3,)), Input((3,))), ShapeError, "pos_weight", {"pos_weight": Input((4,), requires_grad=False)}),
        ErrorSample("pos_weight_type", (Input((3,)), Input((3,))), TypeError, "pos_weight", {"pos_weight": Input((3,), dtype="int64")}),
    ]


@public(method=False)
def binary_cross_entropy_with_logits(input, target, weight=None, reduction="mean", pos_weight=None):
    """Binary cross entropy of logits with targets from 0 to 1; pos_weight weighs the positive part."""
    op = "binary_cross_entropy_with_logits"
    code = reduction_code(op, reduction)
    _check_pair(op, input, target)
    for name, w in {"weight": weight, "pos_weight": pos_weight}.items():
        if w is not None:
            _check_weight(op, name, w, input)
    return BinaryCrossEntropyWithLogits.apply(input, target, weight, pos_weight, 0.0, code)


def _check_weight(op: str, name: str, w: Tensor, x: Tensor) -> None:
    floats(op, **{name: w})
    shape = x.shape[len(x.shape) - len(w.shape):]
    if len(w.shape) > len(x.shape) or any(n not in (1, whole) for n, whole in zip(w.shape, shape, strict=True)):
        raise ShapeError(f"{op}: {name} of shape {w.shape} does not broadcast to the input's shape {x.shape}")
    if w.requires_grad:
        raise ValueError(f"{op}: {name} gets no gradient; pass {name}.detach()")
