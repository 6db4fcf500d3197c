"""Pooling of planes and rows: max, average, global and adaptive. Must not contain a loop over elements."""

from __future__ import annotations

import numpy as np

from onemodel import pooling, reductions
from onemodel.registry import ErrorSample, Input, Op, Sample, public, register

# ---- references: windows as a strided view of the padded array ----


def _two(value):
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)


def _count(size, k, s, pad, d, ceil):
    """Windows along one axis: those that fit, and with ceil one more if it starts inside the input or its left padding."""
    n = (size + 2 * pad - (k - 1) * d - 1) // s + 1
    return n + 1 if ceil and (n - 1) * s + (k - 1) * d + 1 < size + 2 * pad and n * s < size + pad else n


def _windows(x, fill, kernel, stride, padding, dilation, ceil):
    """[..., oh, ow, kh, kw] of x, whose padding is `fill` and 0 beyond it where windows overhang."""
    h, w = x.shape[-2:]
    oh, ow = (_count(size, *more, ceil) for size, *more in zip((h, w), kernel, stride, padding, dilation, strict=True))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    (sh, sw), (ph, pw) = stride, padding
    room = np.full((*x.shape[:-2], max(h + 2 * ph, (oh - 1) * sh + reach[0]), max(w + 2 * pw, (ow - 1) * sw + reach[1])), min(fill, 0.0), np.float64)
    room[..., : h + 2 * ph, : w + 2 * pw] = fill
    room[..., ph : ph + h, pw : pw + w] = x
    view = np.lib.stride_tricks.sliding_window_view(room, reach, axis=(-2, -1))
    return view[..., : (oh - 1) * sh + 1 : sh, : (ow - 1) * sw + 1 : sw, :: dilation[0], :: dilation[1]]


def _max_reference(x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    kernel, padding, dilation = _two(kernel_size), _two(padding), _two(dilation)
    stride = kernel if stride is None else _two(stride)
    view = _windows(x, -np.inf, kernel, stride, padding, dilation, ceil_mode)
    flat = view.reshape(*view.shape[:-2], kernel[0] * kernel[1])
    if not return_indices:
        return flat.max(-1)
    at = flat.argmax(-1)
    oh, ow = at.shape[-2:]
    rows = np.arange(oh)[:, None] * stride[0] - padding[0] + at // kernel[1] * dilation[0]
    cols = np.arange(ow) * stride[1] - padding[1] + at % kernel[1] * dilation[1]
    return flat.max(-1), rows * x.shape[-1] + cols


def _avg_reference(x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
    kernel, padding = _two(kernel_size), _two(padding)
    stride = kernel if stride is None else _two(stride)
    sums = _windows(x, 0, kernel, stride, padding, (1, 1), ceil_mode).sum((-2, -1))
    counts = _windows(np.ones(x.shape[-2:]), float(count_include_pad), kernel, stride, padding, (1, 1), ceil_mode).sum((-2, -1))
    return sums / (counts if divisor_override is None else divisor_override)


def _adaptive(x, output_size, reduce):
    sizes = [size if n is None else n for n, size in zip(_two(output_size), x.shape[-2:], strict=True)]
    spans = [[(o * size // n, -(-(o + 1) * size // n)) for o in range(n)] for n, size in zip(sizes, x.shape[-2:], strict=True)]
    y = np.empty((*x.shape[:-2], *sizes))
    for i, (top, bottom) in enumerate(spans[0]):
        for j, (left, right) in enumerate(spans[1]):
            y[..., i, j] = reduce(x[..., top:bottom, left:right], axis=(-2, -1))
    return y


def _row(reference):
    """The reference over rows, as over planes of one row."""

    def rows(x, kernel_size, stride=None, padding=0, ceil_mode=False, **more):
        (kernel_size,) = kernel_size if isinstance(kernel_size, tuple) else (kernel_size,)
        if "dilation" in more:
            more["dilation"] = (1, more["dilation"])
        y = reference(x[..., None, :], (1, kernel_size), (1, kernel_size if stride is None else stride), (0, padding), ceil_mode=ceil_mode, **more)
        return tuple(part[..., 0, :] for part in y) if isinstance(y, tuple) else y[..., 0, :]

    return rows


# ---- samples ----


def _window_samples(tolerance, dilated):
    """Every kernel, layout and parameter that maximum and average share."""

    def sample(name, shape, layout="plain", gradcheck=True, **kwargs):
        return Sample(name, (Input(shape, layout=layout),), kwargs, tolerance, gradcheck)

    return [
        sample("squares", (2, 3, 6, 8), kernel_size=2),
        sample("squares_odd", (2, 7, 5), kernel_size=2),
        sample("squares_wide", (1, 4, 70), "plain", False, kernel_size=2),
        sample("squares_ceil", (1, 2, 5, 7), kernel_size=2, ceil_mode=True),
        sample("squares_strided", (2, 6, 9), "strided", kernel_size=2),
        sample("squares_transposed", (3, 2, 6, 4), "transposed", False, kernel_size=2),
        sample("squares_expanded", (3, 2, 4, 6), "expanded", False, kernel_size=2),
        sample("squares_lone", (1, 1, 6, 1), "lone", kernel_size=(2, 1)),
        sample("three_two_one", (1, 2, 8, 9), kernel_size=3, stride=2, padding=1),
        sample("three_one_one", (1, 2, 4, 21), kernel_size=3, stride=1, padding=1),
        sample("three_one", (1, 2, 5, 21), "plain", False, kernel_size=3, stride=1),
        sample("three_three", (1, 7, 20), kernel_size=3),
        sample("gaps", (1, 2, 9, 11), kernel_size=(2, 1), stride=(3, 4)),
        sample("mixed", (1, 1, 9, 13), kernel_size=(2, 5), stride=[3, 2], padding=(1, 2)),
        sample("ceil", (1, 1, 8, 10), kernel_size=3, stride=3, padding=1, ceil_mode=True),
        sample("flipped", (2, 7, 10), "flipped", kernel_size=3, stride=2),
        sample("transposed", (2, 3, 7, 6), "transposed", False, kernel_size=(3, 2), stride=2, padding=1),
        sample("whole_plane", (2, 2, 4, 5), kernel_size=(4, 5)),
        sample("far_padding", (1, 2, 3), kernel_size=(7, 10), stride=1, padding=(3, 5)),
        sample("one", (1, 1, 1), kernel_size=1),
        sample("no_images", (0, 3, 4, 4), kernel_size=2),
        sample("no_channels", (2, 0, 4, 4), kernel_size=3, stride=1),
        *([sample("dilated", (1, 2, 9, 11), kernel_size=3, stride=(1, 2), padding=(1, 2), dilation=(2, 3)),
           sample("dilated_squares", (2, 6, 7), kernel_size=2, dilation=2, ceil_mode=True),
           sample("dilated_far", (1, 2, 2), "plain", False, kernel_size=(5, 3), stride=1, padding=(4, 5), dilation=(2, 5))] if dilated else []),
    ]  # fmt: skip


def _row_samples(tolerance, dilated):
    def sample(name, shape, layout="plain", **kwargs):
        return Sample(name, (Input(shape, layout=layout),), kwargs, tolerance)

    return [
        sample("pairs", (2, 3, 18), kernel_size=2),
        sample("unbatched", (3, 17), kernel_size=(3,), stride=2, padding=1),
        sample("ceil", (2, 2, 10), kernel_size=3, stride=3, ceil_mode=True),
        sample("strided", (2, 2, 11), "strided", kernel_size=3, stride=1),
        sample("transposed", (2, 3, 40), "transposed", kernel_size=4, stride=1, padding=2),
        sample("no_rows", (0, 2, 5), kernel_size=2),
        *([sample("dilated", (2, 3, 19), kernel_size=3, stride=2, padding=2, dilation=3)] if dilated else []),
    ]


def _errors(dilated, row=False):
    x = Input((2, 3, 8) if row else (2, 3, 8, 8))

    def error(name, kind, words, *args, **kwargs):
        return ErrorSample(name, (x, *args), kind, words, kwargs)

    errors = [
        ErrorSample("list", ([1.0], 2), TypeError, "om.tensor"),
        ErrorSample("integer", (Input((2, 8, 8), dtype="int64"), 2), TypeError, "float32"),
        ErrorSample("rank", (Input((8,)), 2), ValueError, "dimensions"),
        ErrorSample("empty_plane", (Input((2, 3, 0) if row else (2, 3, 0, 4)), 2), ValueError, "without elements"),
        error("kernel_zero", ValueError, "kernel_size must be from 1", 0),
        error("kernel_float", TypeError, "kernel_size must be an integer", 2.0),
        error("kernel_bool", TypeError, "kernel_size must be an integer", True),
        error("kernel_three", ValueError, "kernel_size must be an integer", (1, 2, 3)),
        error("kernel_none", TypeError, "kernel_size must be an integer", None),
        error("kernel_huge", ValueError, "kernel_size must be from 1", 2**70),
        error("kernel_large", ValueError, "larger than x", 9),
        error("stride_zero", ValueError, "stride must be from 1", 2, 0),
        error("stride_string", TypeError, "stride must be an integer", 2, "2"),
        error("padding_negative", ValueError, "padding must be from 0", 2, padding=-1),
        error("padding_half", ValueError, "at most half", 5, padding=3),
        error("padding_huge", ValueError, "padding must be from 0", 2, padding=-(2**63)),
        error("ceil_mode", TypeError, "ceil_mode must be True or False", 2, ceil_mode=1),
    ]
    if dilated:
        errors += [
            error("dilation_zero", ValueError, "dilation must be from 1", 2, dilation=0),
            error("dilation_overflow", ValueError, "kernel_size must be from 1", 2**33 + 1, dilation=2**33 + 1),
            error("dilation_large", ValueError, "larger than x", 2**31 - 1, dilation=2**31 - 1),
            error("return_indices", TypeError, "return_indices must be", 2, return_indices=None),
        ]
    return errors


# ---- operators ----


@register
class MaxPool2d(Op):
    """y = the largest element of each window of kernel_size, `stride` apart, over [n, c, h, w] or [c, h, w]; its gradient is g there.

    oh = (h + 2·padding - dilation·(kernel_size - 1) - 1) / stride + 1, rounded down, or up with ceil_mode, where the last window must still
    start inside x or its padding on the left. The first of equal elements in scan order wins; a NaN wins over everything; padding never
    does (a dilated window that meets only padding gives -inf, index -1). Gradients of several windows are added in scan order.
    More padding than half the (dilated) kernel: ValueError. A kernel that does not fit, an empty plane, one of 2³¹ elements: ShapeError.
    """

    kernel = pooling.RULES["max_pool2d"]
    reference = staticmethod(_max_reference)
    samples = _window_samples(0.0, True) + [
        Sample("indices", (Input((2, 2, 6, 7)), 2), {"return_indices": True}, 0.0, False),
        Sample("indices_padded", (Input((2, 5, 23)), 3, 2, 1), {"return_indices": True}, 0.0, False),
        Sample("indices_dilated", (Input((1, 2, 8, 9)), (2, 3), (1, 2), 1, 2, True, True), {}, 0.0, False),
    ]
    error_samples = _errors(True)


@public(method=False)
def max_pool2d(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """Largest element of each window; with return_indices also where it stands, an int32 index within its plane."""
    return pooling.max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@register
class MaxPool1d(Op):
    """`max_pool2d` over rows: [n, c, w] or [c, w]; indices are within the row."""

    kernel = pooling.RULES["max_pool1d"]
    reference = staticmethod(_row(_max_reference))
    samples = _row_samples(0.0, True) + [Sample("indices", (Input((2, 3, 20)), 3), {"stride": 2, "return_indices": True}, 0.0, False)]
    error_samples = _errors(True, row=True)


@public(method=False)
def max_pool1d(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """Largest element of each window along the last dimension; with return_indices also where it stands (int32)."""
    return pooling.max_pool1d(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@register
class AvgPool2d(Op):
    """y = the mean of each window of kernel_size, `stride` apart, over [n, c, h, w] or [c, h, w]; sizes and errors as `max_pool2d`.

    The sum is in double in scan order, divided in double, rounded once. The divisor is divisor_override, or the number of elements of the
    window inside x and, with count_include_pad, its padding; what overhangs in ceil_mode never counts. Gradient: g / divisor, a float32
    quotient, for each element of the window, those of several windows added in scan order. A divisor_override of 0: ValueError.
    """

    kernel = pooling.RULES["avg_pool2d"]
    reference = staticmethod(_avg_reference)
    samples = _window_samples(4.0, False) + [
        Sample("padding_uncounted", (Input((1, 2, 7, 9)), 3, 2, 1, False, False)),
        Sample("ceil_uncounted", (Input((1, 2, 8, 8)), (3, 2)), {"stride": 3, "padding": 1, "ceil_mode": True, "count_include_pad": False}),
        Sample("divisor", (Input((2, 5, 6)), 2), {"divisor_override": 3}),
        Sample("divisor_negative", (Input((1, 5, 12)), 3, 1, 1), {"divisor_override": -2}),
    ]
    error_samples = _errors(False) + [
        ErrorSample("divisor_zero", (Input((2, 4, 4)), 2), ValueError, "must not be 0", {"divisor_override": 0}),
        ErrorSample("divisor_float", (Input((2, 4, 4)), 2), TypeError, "divisor_override must be an integer", {"divisor_override": 2.0}),
        ErrorSample("count_include_pad", (Input((2, 4, 4)), 2), TypeError, "count_include_pad must be", {"count_include_pad": "yes"}),
    ]


@public(method=False)
def avg_pool2d(input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
    """Mean of each window; the divisor is what the window holds of x and, with count_include_pad, of its padding."""
    return pooling.avg_pool2d(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


@register
class AvgPool1d(Op):
    """`avg_pool2d` over rows: [n, c, w] or [c, w]."""

    kernel = pooling.RULES["avg_pool1d"]
    reference = staticmethod(_row(_avg_reference))
    samples = _row_samples(4.0, False) + [Sample("uncounted", (Input((2, 3, 20)), 3, 2, 1), {"ceil_mode": True, "count_include_pad": False})]
    error_samples = _errors(False, row=True)


@public(method=False)
def avg_pool1d(input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
    """Mean of each window along the last dimension."""
    return pooling.avg_pool1d(input, kernel_size, stride, padding, ceil_mode, count_include_pad)


@register
class AdaptiveAvgPool2d(Op):
    """y[i, j] = the mean of rows i·h/oh to (i + 1)·h/oh and columns alike, rounded outwards; shapes and gradient as `avg_pool2d`.

    output_size: (oh, ow), one integer for both, None for the size of x. (1, 1) is `global_avg_pool2d`. Negative sizes: ValueError.
    """

    kernel = pooling.RULES["adaptive_avg_pool2d"]

    @staticmethod
    def reference(x, output_size):
        return _adaptive(x, output_size, np.mean)

    samples = [
        Sample("uneven", (Input((2, 3, 7, 5)), 3)),
        Sample("even", (Input((2, 6, 20)), (3, 10))),
        Sample("larger", (Input((1, 2, 3, 4)), (5, 9))),
        Sample("one", (Input((2, 3, 4, 5)), 1)),
        Sample("none", (Input((1, 2, 6, 5)), (None, 2))),
        Sample("nothing", (Input((1, 2, 6, 5)), (0, 2)), {}, 4.0),
        Sample("strided", (Input((2, 3, 7, 6), layout="strided"), (2, 4))),
        Sample("transposed", (Input((2, 3, 6, 9), layout="transposed"), [4, 3])),
        Sample("no_images", (Input((0, 3, 4, 4)), 3)),
    ]
    error_samples = [
        ErrorSample("list", ([1.0], 2), TypeError, "om.tensor"),
        ErrorSample("integer", (Input((2, 8, 8), dtype="int64"), 2), TypeError, "float32"),
        ErrorSample("rank", (Input((8, 8)), 2), ValueError, "dimensions"),
        ErrorSample("empty_plane", (Input((2, 3, 0, 4)), 2), ValueError, "without elements"),
        ErrorSample("negative", (Input((2, 8, 8)), -1), ValueError, "output_size must be from 0"),
        ErrorSample("float", (Input((2, 8, 8)), (2, 2.0)), TypeError, "output_size must be an integer"),
        ErrorSample("three", (Input((2, 8, 8)), (2, 2, 2)), ValueError, "output_size must be an integer or a pair"),
        ErrorSample("huge", (Input((2, 8, 8)), 2**62), ValueError, "output_size must be from 0"),
    ]


@public(method=False)
def adaptive_avg_pool2d(input, output_size):
    """Mean of windows that share the plane out to output_size, an integer or (rows, columns), None for the size that is there."""
    return pooling.adaptive_avg_pool2d(input, output_size)


@register
class AdaptiveMaxPool2d(Op):
    """y[i, j] = the largest element of the windows of `adaptive_avg_pool2d`, chosen and differentiated as in `max_pool2d`."""

    kernel = pooling.RULES["adaptive_max_pool2d"]

    @staticmethod
    def reference(x, output_size, return_indices=False):
        y = _adaptive(x, output_size, np.max)
        if not return_indices:
            return y
        plane = np.arange(x.shape[-2] * x.shape[-1]).reshape(x.shape[-2:])
        at = _adaptive(np.broadcast_to(np.stack([x, np.broadcast_to(plane, x.shape)]), (2, *x.shape)), output_size, _last_of_largest)
        return y, at[0].astype(np.int64)

    samples = AdaptiveAvgPool2d.samples + [Sample("indices", (Input((2, 2, 7, 9)), (3, 4)), {"return_indices": True}, 0.0, False)]
    error_samples = AdaptiveAvgPool2d.error_samples + [
        ErrorSample("return_indices", (Input((2, 8, 8)), 2), TypeError, "return_indices must be", {"return_indices": 1}),
    ]


def _last_of_largest(pair, axis):
    """The index, in the second half of a stack, where the first half is largest."""
    values, where = (part.reshape(*part.shape[:-2], -1) for part in pair)
    at = np.take_along_axis(where, values.argmax(-1)[..., None], -1)[..., 0]
    return np.stack([at, at])


@public(method=False)
def adaptive_max_pool2d(input, output_size, return_indices=False):
    """Largest element of windows that share the plane out to output_size; with return_indices also where it stands (int32)."""
    return pooling.adaptive_max_pool2d(input, output_size, return_indices)


@register
class GlobalAvgPool2d(Op):
    """y = the mean of each plane of [n, c, h, w] or [c, h, w], as [n, c, 1, 1]: `mean` over the last two dimensions. Gradient g / (h·w),
    stored as it is: of a g of -0 it is -0, where `avg_pool2d` over the whole plane adds it to +0."""

    kernel = reductions.RULES["mean"]

    @staticmethod
    def reference(x):
        return np.mean(x, axis=(-2, -1), keepdims=True)

    samples = [
        Sample("batch", (Input((2, 3, 5, 7), -1.0, 3.0),)),
        Sample("unbatched", (Input((3, 8, 8), -1.0, 3.0),)),
        Sample("transposed", (Input((2, 3, 4, 6), -1.0, 3.0, layout="transposed"),)),
        Sample("strided", (Input((2, 3, 6), -1.0, 3.0, layout="strided"),)),
        Sample("no_images", (Input((0, 3, 4, 4)),)),
    ]
    error_samples = [
        ErrorSample("list", ([1.0],), TypeError, "om.tensor"),
        ErrorSample("integer", (Input((2, 8, 8), dtype="int64"),), TypeError, "float32"),
        ErrorSample("rank", (Input((8, 8)),), ValueError, "dimensions"),
        ErrorSample("empty_plane", (Input((2, 3, 0, 4)),), ValueError, "without elements"),
    ]


@public(method=False)
def global_avg_pool2d(x):
    """Mean of each plane: [n, c, h, w] to [n, c, 1, 1]."""
    return pooling.global_avg_pool2d(x)
