"""conv1d and conv2d: their contract, references and samples. The compiled rules are in `convolutions.pyx`, the engines in `_kernels/`."""

from __future__ import annotations

import numpy as np

from onemodel import convolutions
from onemodel.errors import ShapeError
from onemodel.registry import ErrorSample, Input, Op, Sample, public, register


def numbers(value, count: int = 2) -> tuple[int, ...]:
    """An int or a sequence as one number per dimension."""
    return (value,) * count if isinstance(value, int) else tuple(value) * (count if len(value) == 1 else 1)


def padding_of(padding, kernel, dilation) -> tuple[int, int, int, int]:
    """(top, left, bottom, right) of a two-dimensional padding in any of its forms."""
    if padding == "valid":
        return 0, 0, 0, 0
    if padding == "same":
        whole = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return whole[0] // 2, whole[1] // 2, whole[0] - whole[0] // 2, whole[1] - whole[1] // 2
    pad = numbers(padding)
    return pad if len(pad) == 4 else pad * 2  # type: ignore[return-value]


def _sample(name, x, w, bias=True, x_layout="plain", w_layout="plain", gradcheck=True, **kwargs):
    tensors = (Input(x, layout=x_layout), Input(w, layout=w_layout)) + ((Input((w[0],)),) if bias else ())
    return Sample(name, tensors, kwargs, 16.0, gradcheck)


_SMALL = Input((1, 1, 3, 3)), Input((1, 1, 3, 3))


@register
class Conv2d(Op):
    """y[n, o, i, j] = Σ x[n, c, i·sh + r·dh - top, j·sw + s·dw - left]·w[o, c, r, s] (+ b[o]) over channels c of o's group and the kernel's (r, s).

    x [N, C, H, W] or [C, H, W], w [O, C/groups, kH, kW], b [O]; outside x stands +0; H' = (H + top + bottom - dh·(kH - 1) - 1) // sh + 1, W'
    likewise. Per output one chain of fused multiply-adds from +0 over (c, r, s) in this order, then one addition of the bias. Gradients: the
    adjoint for x, Σ x·g over positions and then images for w, the double sum of g for b. Parameters out of range ValueError, of another type
    TypeError, shapes that do not fit ShapeError.
    """

    kernel = convolutions.RULES["conv2d"]

    @staticmethod
    def reference(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        if input.ndim == 3:
            return Conv2d.reference(input[None], weight, bias, stride, padding, dilation, groups)[0]
        (sh, sw), (dh, dw), (o, c, kh, kw) = numbers(stride), numbers(dilation), weight.shape
        top, left, bottom, right = padding_of(padding, (kh, kw), (dh, dw))
        x = np.pad(input, ((0, 0), (0, 0), (top, bottom), (left, right)))
        n, height, width = len(x), (x.shape[2] - dh * (kh - 1) - 1) // sh + 1, (x.shape[3] - dw * (kw - 1) - 1) // sw + 1
        y = np.zeros((n, groups, o // groups, height, width))
        for r, s in np.ndindex(kh, kw):
            tap = x[:, :, r * dh:, s * dw:][:, :, ::sh, ::sw][:, :, :height, :width].reshape(n, groups, c, height, width)
            y += np.einsum("ngchw,goc->ngohw", tap, weight[:, :, r, s].reshape(groups, o // groups, c))
        y = y.reshape(n, o, height, width)
        return y if bias is None else y + bias[:, None, None]

    samples = [
        _sample("plain", (2, 3, 5, 6), (4, 3, 3, 3)),
        _sample("no_bias", (1, 3, 5, 4), (2, 3, 2, 3), bias=False),
        _sample("unbatched", (2, 5, 5), (3, 2, 3, 3), padding=1),
        _sample("one_by_one", (2, 5, 3, 4), (4, 5, 1, 1)),
        _sample("stride", (1, 2, 7, 8), (3, 2, 3, 3), stride=(2, 3)),
        _sample("dropped_tail", (1, 1, 9, 12), (2, 1, 3, 3), stride=5),
        _sample("stride_over_kernel", (2, 2, 5, 5), (3, 2, 1, 1), stride=2),
        _sample("padding", (1, 2, 4, 5), (3, 2, 3, 3), padding=(2, 1)),
        _sample("asymmetric", (1, 2, 4, 4), (2, 2, 3, 2), padding=(0, 1, 3, 2)),
        _sample("same", (1, 2, 4, 5), (2, 2, 2, 4), padding="same"),
        _sample("same_dilated", (1, 2, 5, 6), (2, 2, 3, 2), padding="same", dilation=(2, 3)),
        _sample("valid", (1, 2, 4, 5), (2, 2, 4, 5), padding="valid"),
        _sample("dilation", (1, 2, 7, 8), (2, 2, 3, 2), dilation=(2, 3), padding=1),
        _sample("beyond_the_image", (1, 2, 2, 3), (2, 2, 5, 4), padding=2),
        _sample("groups", (2, 4, 5, 5), (6, 2, 3, 3), groups=2, padding=1),
        _sample("groups_stride", (1, 4, 7, 7), (4, 1, 3, 3), groups=4, stride=2),
        _sample("groups_stride_over_kernel", (1, 4, 7, 6), (4, 2, 2, 2), groups=2, stride=3, padding=1),
        _sample("depthwise", (2, 5, 6, 5), (5, 1, 3, 3), groups=5, padding=1),
        _sample("multiplier", (1, 3, 5, 6), (6, 1, 2, 3), groups=3, dilation=2, padding=(1, 2)),
        _sample("transposed", (2, 3, 5, 4), (4, 3, 3, 2), x_layout="transposed", w_layout="transposed"),
        _sample("strided", (2, 3, 5, 4), (4, 3, 3, 2), x_layout="strided", w_layout="strided"),
        _sample("expanded", (3, 2, 4, 5), (4, 2, 2, 3), x_layout="expanded", w_layout="expanded"),
        _sample("flipped", (2, 2, 4, 5), (3, 2, 2, 3), x_layout="flipped", w_layout="flipped"),
        _sample("lone", (1, 1, 4, 5), (1, 1, 2, 3), x_layout="lone", w_layout="lone"),
        _sample("no_images", (0, 3, 5, 6), (4, 3, 3, 3), padding=1),
        _sample("tiles", (2, 13, 19, 21), (37, 13, 3, 3), padding=1, gradcheck=False),
        _sample("tiles_stride", (2, 6, 23, 25), (20, 3, 5, 4), stride=2, groups=2, padding=(1, 2, 0, 3), gradcheck=False),
        _sample("tiles_depthwise", (2, 24, 17, 18), (24, 1, 3, 3), groups=24, padding=1, gradcheck=False),
        _sample("tiles_one_by_one", (3, 33, 9, 11), (40, 33, 1, 1), gradcheck=False),
    ]
    error_samples = [
        ErrorSample("list", ([[1.0]], Input((1, 1, 1, 1))), TypeError, "om.tensor"),
        ErrorSample("integer", (Input((1, 1, 3, 3), dtype="int64"), Input((1, 1, 3, 3))), TypeError, "float32"),
        ErrorSample("integer_weight", (Input((1, 1, 3, 3)), Input((1, 1, 3, 3), dtype="uint8")), TypeError, "the weight must be float32"),
        ErrorSample("channels", (Input((2, 4, 8, 8)), Input((16, 3, 3, 3))), ShapeError,
                    "conv2d: weight has 3 input channels, input has 4 (x [2,4,8,8], w [16,3,3,3]); set groups or change w"),
        ErrorSample("weight_rank", (Input((1, 1, 4, 4)), Input((2, 3))), ShapeError, "expected x [N,C,H,W]"),
        ErrorSample("rank", (Input((4, 4)), Input((1, 1, 2, 2))), ShapeError, "expected x [N,C,H,W]"),
        ErrorSample("empty_kernel", (Input((1, 4, 5, 5)), Input((8, 4, 0, 3))), ShapeError, "the kernel is empty"),
        ErrorSample("empty_image", (Input((1, 1, 0, 5)), Input((1, 1, 1, 1))), ShapeError, "the image is empty"),
        ErrorSample("no_outputs", (Input((1, 1, 4, 5)), Input((0, 1, 1, 1))), ShapeError, "first dimension is 0"),
        ErrorSample("kernel_too_large", (Input((1, 1, 4, 5)), _SMALL[1]), ShapeError, "spans 5 by 5, the padded input 4 by 5", {"dilation": 2}),
        ErrorSample("bias", (Input((1, 1, 3, 3)), Input((2, 1, 3, 3)), Input((3,))), ShapeError, "expected a bias [2]"),
        ErrorSample("groups", (Input((1, 4, 3, 3)), Input((3, 2, 3, 3))), ShapeError, "2 groups do not divide", {"groups": 2}),
        ErrorSample("no_groups", (Input((1, 4, 3, 3)), Input((3, 2, 3, 3))), ValueError, "groups must be from 1 to", {"groups": 0}),
        ErrorSample("stride", _SMALL, ValueError, "stride must be from 1 to", {"stride": (1, 0)}),
        ErrorSample("three_strides", _SMALL, ValueError, "got a tuple of 3", {"stride": (1, 1, 1)}),
        ErrorSample("float", _SMALL, TypeError, "dilation must be an integer or a pair (rows, columns), got float", {"dilation": 1.0}),
        ErrorSample("dilation", _SMALL, ValueError, "dilation must be from 1 to", {"dilation": 0}),
        ErrorSample("padding", _SMALL, ValueError, "padding must be from 0 to", {"padding": -1}),
        ErrorSample("padding_word", _SMALL, ValueError, "same or valid, got 'full'", {"padding": "full"}),
        ErrorSample("same_stride", _SMALL, ValueError, "needs a stride of 1", {"padding": "same", "stride": 2}),
        ErrorSample("huge_padding", _SMALL, ShapeError, "no memory holds", {"padding": 2**31 - 1, "stride": 2**31 - 1}),
    ]


@public(method=False)
def conv2d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Convolution of images [N, C, H, W] or [C, H, W] with weight [O, C/groups, kH, kW].

    padding: an int, (h, w), (top, left, bottom, right), "same" or "valid".
    """
    return convolutions.conv2d(input, weight, bias, stride, padding, dilation, groups)


@register
class Conv1d(Op):
    """y[n, o, j] = Σ x[n, c, j·s + t·d - left]·w[o, c, t] (+ b[o]): `conv2d` of height 1, read where x lies, with its bits, gradients and errors.

    x [N, C, L] or [C, L], w [O, C/groups, k], b [O]. Padding: an int, (l,), (left, right), "same" or "valid".
    """

    kernel = convolutions.RULES["conv1d"]

    @staticmethod
    def reference(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        (s,), (d,), k = numbers(stride, 1), numbers(dilation, 1), weight.shape[-1]
        if padding == "same":
            left = d * (k - 1) // 2
            right = d * (k - 1) - left
        else:
            left, right = (0, 0) if padding == "valid" else numbers(padding, 2)
        x, w = input[..., None, :], weight[..., None, :]
        return Conv2d.reference(x, w, bias, (1, s), (0, left, 0, right), (1, d), groups)[..., 0, :]

    samples = [
        _sample("plain", (2, 3, 11), (4, 3, 3)),
        _sample("unbatched", (3, 9), (2, 3, 4), bias=False, padding=2),
        _sample("stride_dropping", (1, 2, 12), (3, 2, 3), stride=5),
        _sample("asymmetric", (2, 3, 7), (4, 3, 3), padding=(2, 0), dilation=2),
        _sample("tuples", (1, 2, 9), (3, 2, 2), padding=(1,), stride=(2,), dilation=(3,)),
        _sample("same", (2, 2, 7), (3, 2, 4), padding="same"),
        _sample("valid", (2, 2, 7), (3, 2, 7), padding="valid"),
        _sample("permuted", (1, 4, 9), (3, 4, 8), x_layout="transposed", padding=(0, 7)),
        _sample("groups", (2, 6, 8), (4, 3, 3), groups=2, stride=2, padding=1),
        _sample("depthwise", (2, 5, 9), (10, 1, 3), groups=5, padding=2),
        _sample("expanded", (3, 2, 6), (4, 2, 3), x_layout="expanded", w_layout="expanded"),
        _sample("strided", (2, 2, 6), (3, 2, 3), x_layout="strided", w_layout="flipped"),
        _sample("no_images", (0, 2, 6), (3, 2, 3)),
        _sample("tiles", (3, 17, 67), (35, 17, 5), padding=2, gradcheck=False),
    ]
    error_samples = [
        ErrorSample("list", ([[1.0]], Input((1, 1, 1))), TypeError, "om.tensor"),
        ErrorSample("integer", (Input((1, 1, 3), dtype="int32"), Input((1, 1, 3))), TypeError, "conv1d: x must be float32"),
        ErrorSample("image", (Input((1, 1, 4, 4)), Input((2, 1, 3))), ShapeError, "expected x [N,C,L] or [C,L]"),
        ErrorSample("channels", (Input((1, 4, 8)), Input((2, 3, 3))), ShapeError, "weight has 3 input channels, input has 4"),
        ErrorSample("kernel_too_large", (Input((1, 1, 4)), Input((1, 1, 5))), ShapeError, "the kernel spans 5, the padded input 4"),
        ErrorSample("stride", (Input((1, 1, 4)), Input((1, 1, 3))), ValueError, "stride must be from 1 to", {"stride": (0,)}),
        ErrorSample("two_strides", (Input((1, 1, 4)), Input((1, 1, 3))), ValueError, "an integer, got a tuple of 2", {"stride": (1, 1)}),
        ErrorSample("four_paddings", (Input((1, 1, 4)), Input((1, 1, 3))), ValueError, "got 4 numbers", {"padding": (1, 1, 1, 1)}),
        ErrorSample("none", (Input((1, 1, 4)), Input((1, 1, 3))), TypeError, "padding must be an integer, (l,), (left, right)", {"padding": None}),
    ]


@public(method=False)
def conv1d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Convolution of sequences [N, C, L] or [C, L] with weight [O, C/groups, k]; padding: an int, (l,), (left, right), "same" or "valid"."""
    return convolutions.conv1d(input, weight, bias, stride, padding, dilation, groups)
