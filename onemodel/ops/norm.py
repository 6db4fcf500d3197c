"""Owns the operators that normalise: batch_norm, layer_norm, rms_norm, group_norm. Must not contain their arithmetic, which is in `norms`."""

from __future__ import annotations

import numpy as np

from onemodel import norms
from onemodel.registry import ErrorSample, Input, Op, Sample, public, register

_FLOAT32_EPSILON = 2.0**-23


def _along_channels(v, x):
    return np.reshape(v, (1, -1) + (1,) * (x.ndim - 2))


def _moments(x, axes):
    """Mean and variance; of no element both are 0."""
    n = max(1, np.prod([x.shape[a] for a in axes], dtype=int))
    mean = np.sum(x, axis=axes, keepdims=True) / n
    return mean, np.sum((x - mean) ** 2, axis=axes, keepdims=True) / n


def _affine(y, weight, bias):
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _fixed(shape, low=-2.0, high=2.0, layout="plain"):
    return Input(shape, low, high, layout=layout, requires_grad=False)


@register
class BatchNorm(Op):
    """y = (x - μ)·(1/σ)·γ + β per channel of x [N, C, ...], σ = √(variance + ε).

    Training: μ and the (biased) variance are those of x over all but the channels, and the running ones move to
    momentum·statistic + (1 - momentum)·running, the variance unbiased; dx = γ/σ·(g - mean(g) - x̂·mean(g·x̂)). Evaluation: they are
    running_mean and running_var, constants; dx = γ/σ·g. dγ = Σ g·x̂, dβ = Σ g (Ioffe and Szegedy 2015). γ, β [C] or None. ShapeError where
    sizes do not fit; ValueError for one value per channel in training, for a running statistic that requires a gradient.
    """

    kernel = norms.RULES["batch_norm"]

    @staticmethod
    def reference(x, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
        axes = (0, *range(2, x.ndim))
        if training:
            mean, variance = _moments(x, axes)
        else:
            mean, variance = _along_channels(running_mean, x), _along_channels(running_var, x)
        y = (x - mean) / np.sqrt(variance + eps)
        return _affine(y, None if weight is None else _along_channels(weight, x), None if bias is None else _along_channels(bias, x))

    samples = [
        Sample("training", (Input((3, 5, 4, 6)), None, None, Input((5,)), Input((5,)), True), {}, 8.0),
        Sample("training_plain", (Input((3, 5, 7)), None, None, None, None, True), {}, 8.0),
        Sample("training_weight", (Input((2, 9, 3, 3)), None, None, Input((9,)), None, True), {"eps": 0.1}, 8.0),
        Sample("training_bias", (Input((2, 4, 5)), None, None, None, Input((4,)), True), {}, 8.0),
        Sample("channels", (Input((2, 19, 2, 5)), None, None, Input((19,)), Input((19,)), True), {}, 8.0),
        Sample("features", (Input((9, 21)), None, None, Input((21,)), Input((21,)), True), {}, 8.0),
        Sample("many_features", (Input((5, 150)), None, None, Input((150,)), Input((150,)), True), {}, 8.0, False),
        Sample("long_rows", (Input((2, 3, 9, 23)), None, None, Input((3,)), Input((3,)), True), {}, 8.0, False),
        Sample("one_channel", (Input((4, 1, 6)), None, None, Input((1,)), Input((1,)), True), {}, 8.0),
        Sample("two_values", (Input((1, 3, 1, 2)), None, None, Input((3,)), None, True), {"eps": 0.5}, 8.0),
        Sample("evaluation", (Input((3, 5, 4, 6)), _fixed((5,)), _fixed((5,), 0.5, 2.0), Input((5,)), Input((5,))), {}, 8.0),
        Sample("evaluation_features", (Input((4, 21)), _fixed((21,)), _fixed((21,), 0.5, 2.0), Input((21,)), Input((21,))), {}, 8.0),
        Sample("evaluation_no_eps", (Input((2, 3, 4)), _fixed((3,)), _fixed((3,), 0.5, 2.0)), {"eps": 0.0, "momentum": 0.5}, 8.0),
        Sample("evaluation_one_value", (Input((1, 3, 1, 1)), _fixed((3,)), _fixed((3,), 0.5, 2.0), None, Input((3,))), {}, 8.0),
        Sample("transposed", (Input((3, 4, 5, 6), layout="transposed"), None, None, Input((4,), layout="strided"), Input((4,)), True), {}, 8.0),
        Sample("strided", (Input((3, 4, 10), layout="strided"), None, None, Input((4,)), Input((4,), layout="flipped"), True), {}, 8.0),
        Sample("expanded", (Input((3, 4, 5), layout="expanded"), None, None, Input((4,)), None, True), {}, 8.0),
        Sample("strided_features", (Input((6, 7), layout="transposed"), None, None, Input((7,)), None, True), {}, 8.0),
        Sample("strided_statistics", (Input((3, 4, 5)), _fixed((4,), layout="strided"), _fixed((4,), 0.5, 2.0, "flipped"), Input((4,))), {}, 8.0),
        Sample("lone", (Input((4, 1, 5, 1), layout="lone"), None, None, Input((1,), layout="lone"), None, True), {}, 8.0),
        Sample("no_images", (Input((0, 3, 2)), None, None, Input((3,)), Input((3,)), True)),
        Sample("no_positions", (Input((2, 3, 0)), _fixed((3,)), _fixed((3,), 0.5, 2.0), Input((3,)), Input((3,)))),
    ]
    error_samples = [
        ErrorSample("list", ([[1.0]], None, None, None, None, True), TypeError, "om.tensor"),
        ErrorSample("integer", (Input((2, 3), dtype="int64"), None, None, None, None, True), TypeError, "float32"),
        ErrorSample("rank", (Input((3,)), None, None, None, None, True), ValueError, "[N, C]"),
        ErrorSample("one_value", (Input((1, 3, 1, 1)), None, None, None, None, True), ValueError, "more than one value per channel"),
        ErrorSample("weight", (Input((2, 3)), None, None, Input((4,)), None, True), ValueError, "weight has shape (4,)"),
        ErrorSample("bias", (Input((2, 3)), None, None, None, Input((3, 1)), True), ValueError, "bias has shape (3, 1)"),
        ErrorSample("no_statistics", (Input((2, 3)), None, None), ValueError, "evaluation needs"),
        ErrorSample("half", (Input((2, 3)), _fixed((3,)), None), ValueError, "belong together"),
        ErrorSample("statistics", (Input((2, 3)), _fixed((3,)), _fixed((4,))), ValueError, "running_var has shape (4,)"),
        ErrorSample("gradient", (Input((2, 3)), Input((3,)), _fixed((3,))), ValueError, "gets no gradient"),
        ErrorSample("eps", (Input((2, 3)), None, None, None, None, True, 0.1, -1e-5), ValueError, "eps must be a finite number, not negative"),
        ErrorSample("eps_nan", (Input((2, 3)), None, None, None, None, True, 0.1, float("nan")), ValueError, "eps must be a finite number"),
        ErrorSample("eps_zero", (Input((2, 3)), None, None, None, None, True, 0.1, 0.0), ValueError, "eps must be positive in training"),
        ErrorSample("momentum", (Input((2, 3)), None, None, None, None, True, None), TypeError, "momentum must be a number"),
        ErrorSample("training", (Input((2, 3)), None, None, None, None, 1), TypeError, "training must be True or False"),
    ]


@public(method=False)
def batch_norm(input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    """Each channel of [N, C, ...] minus its mean, divided by its deviation; in training the running statistics move in place."""
    return norms.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def _rows(shape, normalized, layout="plain", weight=True, bias=True, low=-2.0, tolerance=8.0, gradcheck=True, **kwargs):
    last = normalized if isinstance(normalized, tuple) else (normalized,)
    args = (Input(shape, low, layout=layout), normalized, Input(last) if weight else None)
    return (*args, Input(last) if bias else None), kwargs, tolerance, gradcheck


def _row_samples(bias):
    samples = {
        "last": _rows((5, 13), (13,)), "two": _rows((3, 4, 5), (4, 5)), "all": _rows((3, 7), (3, 7)),
        "plain": _rows((6, 10), (10,), weight=False, bias=False), "weight": _rows((6, 10), (10,), bias=False, eps=0.25),
        "bias": _rows((11, 10), (10,), weight=not bias), "many_rows": _rows((37, 5), (5,)),
        "long_rows": _rows((9, 150), (150,), gradcheck=False), "one_row": _rows((1, 90), (90,)), "vector": _rows((70,), (70,)),
        "transposed": _rows((4, 5, 6), (6,), "transposed"), "strided": _rows((6, 10), (10,), "strided"),
        "expanded": _rows((4, 6), (6,), "expanded"), "flipped": _rows((4, 6), (6,), "flipped"),
        "lone": _rows((4, 1, 5, 1), (5, 1), "lone"), "no_rows": _rows((0, 4), (4,)), "no_columns": _rows((3, 0), (0,)),
    }
    return [Sample(name, args if bias else args[:3], *rest) for name, (args, *rest) in samples.items()]


_ROW_ERRORS = [
    ErrorSample("list", ([1.0, 2.0], (2,)), TypeError, "om.tensor"),
    ErrorSample("integer", (Input((2, 3), dtype="int64"), (3,)), TypeError, "float32"),
    ErrorSample("shape", (Input((2, 3)), (2,)), ValueError, "must be the last sizes"),
    ErrorSample("long", (Input((2, 3)), (1, 2, 3)), ValueError, "must be the last sizes"),
    ErrorSample("empty", (Input((2, 3)), ()), ValueError, "at least one dimension"),
    ErrorSample("float", (Input((2, 3)), (3.0,)), TypeError, "must be an integer or a tuple of them"),
    ErrorSample("huge", (Input((2, 3)), 2**70), ValueError, "must be the last sizes"),
    ErrorSample("weight", (Input((2, 3)), (3,), Input((2,))), ValueError, "weight has shape (2,)"),
    ErrorSample("eps", (Input((2, 3)), (3,)), ValueError, "eps must be a finite number, not negative", {"eps": -1.0}),
    ErrorSample("eps_bool", (Input((2, 3)), (3,)), TypeError, "eps must be a number", {"eps": True}),
]


@register
class LayerNorm(Op):
    """y = (x - μ)·(1/σ)·γ + β over the last dimensions, σ = √(variance + ε); γ, β of those dimensions or None.

    With ĝ = g·γ: dx = (ĝ - mean(ĝ) - x̂·mean(ĝ·x̂))/σ, dγ = Σ g·x̂, dβ = Σ g over the rows (Ba, Kiros and Hinton 2016). ShapeError where
    normalized_shape is not the end of the input's shape.
    """

    kernel = norms.RULES["layer_norm"]

    @staticmethod
    def reference(x, normalized_shape, weight=None, bias=None, eps=1e-5):
        axes = tuple(range(-len(np.atleast_1d(normalized_shape)), 0))
        mean, variance = _moments(x, axes)
        return _affine((x - mean) / np.sqrt(variance + eps), weight, bias)

    samples = _row_samples(True)
    error_samples = [*_ROW_ERRORS, ErrorSample("bias", (Input((2, 3)), (3,), None, Input((2,))), ValueError, "bias has shape (2,)")]


@public(method=False)
def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """The last dimensions minus their mean, divided by their deviation."""
    return norms.layer_norm(input, normalized_shape, weight, bias, eps)


@register
class RmsNorm(Op):
    """y = x·(1/ρ)·γ over the last dimensions, ρ = √(mean(x²) + ε); ε = None means float32's epsilon, as in torch.

    With ĝ = g·γ and x̂ = x/ρ: dx = (ĝ - x̂·mean(ĝ·x̂))/ρ, dγ = Σ g·x̂ over the rows (Zhang and Sennrich 2019). ShapeError as in layer_norm.
    """

    kernel = norms.RULES["rms_norm"]

    @staticmethod
    def reference(x, normalized_shape, weight=None, eps=None):
        axes = tuple(range(-len(np.atleast_1d(normalized_shape)), 0))
        mean, variance = _moments(x, axes)
        return _affine(x / np.sqrt(variance + mean**2 + (_FLOAT32_EPSILON if eps is None else eps)), weight, None)

    samples = _row_samples(False)
    error_samples = _ROW_ERRORS


@public(method=False)
def rms_norm(input, normalized_shape, weight=None, eps=None):
    """The last dimensions divided by their root mean square."""
    return norms.rms_norm(input, normalized_shape, weight, eps)


@register
class GroupNorm(Op):
    """y = (x - μ)·(1/σ)·γ + β: μ and σ = √(variance + ε) of each image's groups of C/num_groups channels; γ, β [C] or None.

    With ĝ = g·γ: dx = (ĝ - mean(ĝ) - x̂·mean(ĝ·x̂))/σ over the group, dγ = Σ g·x̂, dβ = Σ g per channel (Wu and He 2018). These sums are
    sums of double sums: positions first, then channels of a group in order, or images in order. ShapeError where sizes do not fit,
    ValueError where num_groups does not divide C.
    """

    kernel = norms.RULES["group_norm"]

    @staticmethod
    def reference(x, num_groups, weight=None, bias=None, eps=1e-5):
        rows = x.reshape(x.shape[0], num_groups, x.shape[1] // num_groups, *x.shape[2:])
        axes = tuple(range(2, rows.ndim))
        mean, variance = _moments(rows, axes)
        y = ((rows - mean) / np.sqrt(variance + eps)).reshape(x.shape)
        return _affine(y, None if weight is None else _along_channels(weight, x), None if bias is None else _along_channels(bias, x))

    samples = [
        Sample("groups", (Input((3, 6, 4, 5)), 3, Input((6,)), Input((6,))), {}, 8.0),
        Sample("one_group", (Input((2, 4, 7)), 1, Input((4,)), Input((4,))), {}, 8.0),
        Sample("each_channel", (Input((2, 5, 3, 4)), 5, Input((5,)), Input((5,))), {}, 8.0),
        Sample("plain", (Input((3, 4, 6)), 2), {"eps": 0.5}, 8.0),
        Sample("weight", (Input((3, 4, 6)), 2, Input((4,))), {}, 8.0),
        Sample("many_groups", (Input((2, 22, 2, 3)), 11, Input((22,)), Input((22,))), {}, 8.0),
        Sample("long_rows", (Input((2, 6, 9, 9)), 2, Input((6,)), Input((6,))), {}, 8.0, False),
        Sample("features", (Input((5, 12)), 3, Input((12,)), Input((12,))), {}, 8.0),
        Sample("transposed", (Input((3, 4, 5, 6), layout="transposed"), 2, Input((4,), layout="strided"), Input((4,), layout="flipped")), {}, 8.0),
        Sample("strided", (Input((3, 4, 10), layout="strided"), 4, Input((4,)), Input((4,))), {}, 8.0),
        Sample("expanded", (Input((3, 4, 6), layout="expanded"), 2, Input((4,)), Input((4,))), {}, 8.0),
        Sample("lone", (Input((4, 1, 5, 1), layout="lone"), 1, Input((1,))), {}, 8.0),
        Sample("no_images", (Input((0, 4, 3)), 2, Input((4,)), Input((4,)))),
        Sample("no_channels", (Input((2, 0, 3)), 2, Input((0,)), Input((0,)))),
    ]
    error_samples = [
        ErrorSample("list", ([[1.0, 2.0]], 1), TypeError, "om.tensor"),
        ErrorSample("integer", (Input((2, 4), dtype="int64"), 2), TypeError, "float32"),
        ErrorSample("rank", (Input((4,)), 2), ValueError, "[N, C]"),
        ErrorSample("divide", (Input((2, 4)), 3), ValueError, "divide the channels"),
        ErrorSample("zero", (Input((2, 4)), 0), ValueError, "must be positive"),
        ErrorSample("negative", (Input((2, 4)), -(2**63)), ValueError, "must be positive"),
        ErrorSample("huge", (Input((2, 0)), 2**70), ValueError, "divide the channels"),
        ErrorSample("float", (Input((2, 4)), 2.0), TypeError, "num_groups must be an int"),
        ErrorSample("bool", (Input((2, 4)), True), TypeError, "num_groups must be an int"),
        ErrorSample("weight", (Input((2, 4)), 2, Input((2,))), ValueError, "weight has shape (2,)"),
        ErrorSample("bias", (Input((2, 4)), 2, None, Input((2,))), ValueError, "bias has shape (2,)"),
        ErrorSample("eps", (Input((2, 4)), 2, None, None, -1.0), ValueError, "eps must be a finite number, not negative"),
    ]


@public(method=False)
def group_norm(input, num_groups, weight=None, bias=None, eps=1e-5):
    """Each image's groups of channels minus their mean, divided by their deviation."""
    return norms.group_norm(input, num_groups, weight, bias, eps)
