"""nll_loss, cross_entropy: losses whose targets are classes."""

from __future__ import annotations

import math

import numpy as np

from onemodel import calls, views
from onemodel.errors import ShapeError
from onemodel.ops.arithmetic import where
from onemodel.ops.parameters import floats, index_of, real
from onemodel.ops.softmax import log_softmax
from onemodel.registry import ErrorSample, Input, Op, Sample, public, register
from onemodel.tensor import Tensor


def reduction_code(op: str, reduction: str) -> int:
    """The kernels' number of a reduction."""
    if not isinstance(reduction, str) or reduction not in calls.REDUCTIONS:
        raise ValueError(f"{op}: reduction must be 'none', 'mean' or 'sum', got {reduction!r}")
    return calls.REDUCTIONS[reduction]


def _integers(*values):
    return Input(data=np.array(values, np.int64), dtype="int64")


def _classes(shape, classes):
    return Input(data=((np.arange(np.prod(shape, dtype=int)) * 7 + 3) % classes).reshape(shape), dtype="int64")


def _check_classes(op: str, x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> int:
    """Checks shapes and types; returns the class dimension."""
    for name, t in {"input": x, "target": target, "weight": weight}.items():
        if not isinstance(t, Tensor) and not (name == "weight" and t is None):
            raise TypeError(f"{op}: {name} must be a Tensor, got {type(t).__name__}")
    if x.dtype.kind != "f":
        raise TypeError(f"{op}: input must be float32, got {x.dtype}; write .cast(om.float32)")
    if target.dtype.kind not in "iu":
        raise TypeError(f"{op}: target must hold class indices of an integer type, got {target.dtype}; write .cast(om.int64)")
    if x.ndim == 0:
        raise ShapeError(f"{op}: input needs a dimension of classes, got shape ()")
    ignore_index = index_of(op, "ignore_index", ignore_index)
    if not -(2**63) <= ignore_index < 2**63:
        raise ValueError(f"{op}: ignore_index {ignore_index} does not fit int64, so no target can be it")
    axis = 0 if x.ndim == 1 else 1
    expected = x.shape[:axis] + x.shape[axis + 1:]
    if target.shape != expected:
        raise ShapeError(f"{op}: expected a target of shape {expected} for an input of shape {x.shape}, got {target.shape}")
    if weight is not None:
        if weight.dtype.kind != "f" or weight.shape != (x.shape[axis],):
            raise ShapeError(f"{op}: expected a float32 weight of shape ({x.shape[axis]},), got {weight.dtype} of shape {weight.shape}")
        if weight.requires_grad:
            raise ValueError(f"{op}: weight gets no gradient; pass weight.detach()")
    calls.check_targets(target, x.shape[axis], ignore_index, op)
    return axis


@register
class NllLoss(Op):
    """y = -w[t]·x[t] per row, averaged (Σ/Σ w[t]), summed, or as it is; rows whose target is `ignore_index` count nothing.

    x [C], [N, C] or [N, C, d1, ...]; targets without the C. Gradient -g·w[t]/Σ w[t] at the target. All rows ignored: the mean
    is NaN and the gradient 0. A target out of range: IndexError, before anything is written.
    """

    @staticmethod
    def forward(ctx, x, target, weight, axis, ignore_index, reduction):
        ctx.save_for_backward(target, weight)
        ctx.shape, ctx.arguments = x.shape, (axis, ignore_index, reduction)
        y, ctx.total = calls.nll_loss(x, target, weight, *ctx.arguments)
        return y

    @staticmethod
    def backward(ctx, g):
        target, weight = ctx.saved_tensors
        dx = calls.nll_loss_bwd(g, target, weight, ctx.shape, *ctx.arguments, ctx.total)
        return (dx, *[None] * (len(ctx.needs_input_grad) - 1))

    @staticmethod
    def reference(x, target, weight=None, ignore_index=-100, reduction="mean"):
        axis = 0 if x.ndim == 1 else 1
        used = target != ignore_index
        safe = np.where(used, target, 0)
        w = np.where(used, np.ones(x.shape[axis])[safe] if weight is None else weight[safe], 0.0)
        y = -w * np.squeeze(np.take_along_axis(x, np.expand_dims(safe, axis), axis), axis)
        return y if reduction == "none" else y.sum() if reduction == "sum" else y.sum() / w.sum()

    samples = [
        Sample("mean", (Input((6, 5)), _classes((6,), 5))),
        Sample("sum", (Input((6, 5)), _classes((6,), 5)), {"reduction": "sum"}),
        Sample("none", (Input((6, 5)), _classes((6,), 5)), {"reduction": "none"}),
        Sample("one_row", (Input((5,)), Input(data=np.array(3), dtype="int64"))),
        Sample("weighted", (Input((6, 5)), _classes((6,), 5), Input((5,), 0.1, 2.0, requires_grad=False))),
        Sample("ignored", (Input((4, 5)), _integers(4, 200, 0, 1)), {"ignore_index": 200}),
        Sample("image", (Input((2, 5, 3, 4)), _classes((2, 3, 4), 5))),
        Sample("transposed", (Input((6, 5), layout="transposed"), _classes((6,), 5)), {"reduction": "none"}),
        Sample("lone", (Input((4, 5, 1, 1), layout="lone"), _classes((4, 1, 1), 5)), {"reduction": "none"}),
    ]
    error_samples = [
        ErrorSample("range", (Input((2, 3)), _integers(0, 3)), IndexError, "class"),
        ErrorSample("negative", (Input((2, 3)), _integers(0, -1)), IndexError, "class"),
        ErrorSample("rows", (Input((2, 3)), _integers(0, 1, 2)), ValueError, "target"),
        ErrorSample("float", (Input((2, 3)), Input((2,))), TypeError, "integer"),
        ErrorSample("reduction", (Input((2, 3)), _integers(0, 1)), ValueError, "reduction", {"reduction": "avg"}),
        ErrorSample("weight", (Input((2, 3)), _integers(0, 1), Input((2,), requires_grad=False)), ValueError, "weight"),
    ]


@public(method=False)
def nll_loss(input, target, weight=None, ignore_index=-100, reduction="mean"):
    """Negative log-likelihood of the target classes, from log-probabilities."""
    code = reduction_code("nll_loss", reduction)
    axis = _check_classes("nll_loss", input, target, weight, ignore_index)
    return NllLoss.apply(input, target, weight, axis, ignore_index, code)


@register
class CrossEntropy(Op):
    """y = nll_loss(log_softmax(x), t) in one pass; with label smoothing ε, (1 - ε)·y + ε/C·Σ_c -w[c]·lp[c].

    Targets are class indices, or probabilities of x's shape (float32), for which y = -Σ_c w[c]·t[c]·lp[c] per row, the mean over
    rows. Gradient w[t]·(softmax(x) - onehot t), averaged as the loss is.
    """

    @staticmethod
    def forward(ctx, x, target, weight, axis, ignore_index, reduction):
        ctx.arguments = (axis, ignore_index, reduction)
        y, top, log_sum, ctx.total = calls.cross_entropy(x, target, weight, *ctx.arguments)
        ctx.save_for_backward(x, top, log_sum, target, weight)
        return y

    @staticmethod
    def backward(ctx, g):
        dx = calls.cross_entropy_bwd(g, *ctx.saved_tensors, *ctx.arguments, ctx.total)
        return (dx, *[None] * (len(ctx.needs_input_grad) - 1))

    @staticmethod
    def reference(x, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
        axis = 0 if x.ndim == 1 else 1
        classes = x.shape[axis]
        w = np.ones(classes) if weight is None else weight
        wide = np.reshape(w, [classes if i == axis else 1 for i in range(x.ndim)])
        shifted = x - x.max(axis=axis, keepdims=True)
        lp = shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
        if np.asarray(target).dtype.kind == "f":
            t = target * (1 - label_smoothing) + label_smoothing / classes
            y, divisor = -(wide * t * lp).sum(axis=axis), x.size // classes
        else:
            used = target != ignore_index
            safe = np.where(used, target, 0)
            picked = np.squeeze(np.take_along_axis(lp, np.expand_dims(safe, axis), axis), axis)
            y = np.where(used, -(1 - label_smoothing) * w[safe] * picked - label_smoothing / classes * (wide * lp).sum(axis=axis), 0.0)
            divisor = np.where(used, w[safe], 0.0).sum()
        return y if reduction == "none" else y.sum() if reduction == "sum" else y.sum() / divisor

    samples = [
        Sample("mean", (Input((6, 5)), _classes((6,), 5)), {}, 8.0),
        Sample("sum", (Input((6, 5)), _classes((6,), 5)), {"reduction": "sum"}, 8.0),
        Sample("none", (Input((6, 5)), _classes((6,), 5)), {"reduction": "none"}, 8.0),
        Sample("weighted", (Input((6, 5)), _classes((6,), 5), Input((5,), 0.1, 2.0, requires_grad=False)), {}, 8.0),
        Sample("ignored", (Input((4, 5)), _integers(4, -100, 0, 1)), {}, 8.0),
        Sample("smoothed", (Input((6, 5)), _classes((6,), 5)), {"label_smoothing": 0.1}, 8.0),
        Sample("smoothed_weighted", (Input((4, 5)), _integers(4, -100, 0, 1), Input((5,), 0.1, 2.0, requires_grad=False)),
               {"label_smoothing": 0.2}, 8.0),
        Sample("smoothed_sum", (Input((4, 5)), _integers(4, -100, 0, 1)), {"label_smoothing": 0.2, "reduction": "sum"}, 8.0),
        Sample("image", (Input((2, 5, 3, 4)), _classes((2, 3, 4), 5)), {}, 8.0),
        Sample("probabilities", (Input((6, 5)), Input((6, 5), 0.0, 1.0, requires_grad=False)), {}, 8.0),
        Sample("probabilities_smoothed", (Input((6, 5)), Input((6, 5), 0.0, 1.0, requires_grad=False)),
               {"label_smoothing": 0.1, "reduction": "none"}, 8.0),
    ]
    error_samples = [
        ErrorSample("range", (Input((2, 3)), _integers(0, 3)), IndexError, "class"),
        ErrorSample("rows", (Input((2, 3)), _integers(0, 1, 2)), ValueError, "target"),
        ErrorSample("smoothing", (Input((2, 3)), _integers(0, 1)), ValueError, "label_smoothing", {"label_smoothing": 1.5}),
        ErrorSample("probabilities", (Input((2, 3)), Input((2, 2), requires_grad=False)), ValueError, "probabilities"),
    ]


def _averaged(y: Tensor, reduction: str, divisor: float) -> Tensor:
    if reduction == "none":
        return y
    return y.sum() if reduction == "sum" else y.sum() / divisor


@public(method=False)
def cross_entropy(input, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    """Cross entropy of logits [C], [N, C] or [N, C, d1, ...] with class indices, or with probabilities of the same shape."""
    code = reduction_code("cross_entropy", reduction)
    label_smoothing = real("cross_entropy", "label_smoothing", label_smoothing, "from 0 to 1", 0.0, 1.0)
    if isinstance(target, Tensor) and target.dtype.kind == "f":
        return _soft_cross_entropy(input, target, weight, reduction, label_smoothing)
    axis = _check_classes("cross_entropy", input, target, weight, ignore_index)
    if label_smoothing == 0.0:
        return CrossEntropy.apply(input, target, weight, axis, ignore_index, code)
    logs = log_softmax(input, axis)
    loss = NllLoss.apply(logs, target, weight, axis, ignore_index, code)
    classes = input.shape[axis]
    used = target != ignore_index
    spread = -(logs if weight is None else logs * _along(weight, input.ndim, axis)).sum(axis)
    spread = where(used, spread, 0.0)  # 0 for ignored rows, whatever stands there
    if reduction != "none":
        spread = spread.sum()
        if reduction == "mean":
            spread = spread / _used_weight(target, used, weight)
    return loss * (1.0 - label_smoothing) + spread * (label_smoothing / classes)


def _used_weight(target: Tensor, used: Tensor, weight: Tensor | None) -> float:
    rows = used.numpy()
    return float(rows.sum()) if weight is None else math.fsum(weight.numpy()[target.numpy()[rows]])


def _along(weight: Tensor, ndim: int, axis: int) -> Tensor:
    return views.reshape(weight, tuple(-1 if i == axis else 1 for i in range(ndim)))


def _soft_cross_entropy(input, target, weight, reduction, label_smoothing):
    floats("cross_entropy", input=input, **({} if weight is None else {"weight": weight}))
    if input.ndim == 0 or input.shape != target.shape:
        raise ShapeError(f"cross_entropy: probabilities need the input's shape and a dimension of classes, got {target.shape} for {input.shape}")
    axis = 0 if input.ndim == 1 else 1
    classes = input.shape[axis]
    if weight is not None and weight.shape != (classes,):
        raise ShapeError(f"cross_entropy: expected a weight of shape ({classes},), got {weight.shape}")
    if label_smoothing and classes:
        target = target * (1.0 - label_smoothing) + label_smoothing / classes
    terms = log_softmax(input, axis) * target
    if weight is not None:
        terms = terms * _along(weight, input.ndim, axis)
    return _averaged(-terms.sum(axis), reduction, input.numel() // classes if classes else 0)
