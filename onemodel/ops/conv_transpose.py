"""conv_transpose2d: its contract, reference and samples. The compiled rule is in `convolutions.pyx`, the engines in `_kernels/`."""

from __future__ import annotations

import numpy as np

from onemodel import convolutions
from onemodel.errors import ShapeError
from onemodel.ops.conv import numbers, padding_of
from onemodel.registry import ErrorSample, Input, Op, Sample, public, register


def _sample(name, x, w, bias=0, x_layout="plain", w_layout="plain", gradcheck=True, **kwargs):
    tensors = (Input(x, layout=x_layout), Input(w, layout=w_layout)) + ((Input((bias,)),) if bias else ())
    return Sample(name, tensors, kwargs, 16.0, gradcheck)


@register
class ConvTranspose2d(Op):
    """y[n, o, i·sh + r·dh - top, j·sw + s·dw - left] += x[n, c, i, j]·w[c, o, r, s], then + b[o]: the adjoint of `conv2d` with the same w.

    x [N, C, H, W] or [C, H, W], w [C, O/groups, kH, kW], b [O]; H' = (H - 1)·sh - top - bottom + dh·(kH - 1) + output_padding + 1, W' likewise;
    output_padding is below the larger of stride and dilation. groups stand before dilation, as torch has them. Bits: those of the gradient of x in
    `conv2d`, then one addition of the bias. Gradients: conv2d(g, w), conv2d's weight gradient of input g and gradient x, the double sum of g.
    Parameters out of range ValueError, of another type TypeError, shapes that do not fit ShapeError.
    """

    kernel = convolutions.RULES["conv_transpose2d"]

    @staticmethod
    def reference(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
        if input.ndim == 3:
            return ConvTranspose2d.reference(input[None], weight, bias, stride, padding, output_padding, groups, dilation)[0]
        (sh, sw), (dh, dw), more = numbers(stride), numbers(dilation), numbers(output_padding)
        (n, c, h, w), (_, o, kh, kw) = input.shape, weight.shape
        top, left, bottom, right = padding_of(padding, (kh, kw), (dh, dw))
        # Everything that any tap reaches, then the frame that padding cuts off it.
        y = np.zeros((n, groups * o, (h - 1) * sh + dh * (kh - 1) + 1 + more[0], (w - 1) * sw + dw * (kw - 1) + 1 + more[1]))
        x = input.reshape(n, groups, c // groups, h, w)
        for r, s in np.ndindex(kh, kw):
            tap = np.einsum("ngchw,gco->ngohw", x, weight[:, :, r, s].reshape(groups, c // groups, o)).reshape(n, groups * o, h, w)
            y[:, :, r * dh:, s * dw:][:, :, ::sh, ::sw][:, :, :h, :w] += tap
        y = y[:, :, top:y.shape[2] - bottom, left:y.shape[3] - right]
        return y if bias is None else y + bias[:, None, None]

    samples = [
        _sample("plain", (2, 3, 4, 3), (3, 4, 3, 2), 4),
        _sample("no_bias", (1, 2, 3, 4), (2, 3, 3, 3)),
        _sample("unbatched", (2, 3, 4), (2, 3, 2, 2), 3, stride=2),
        _sample("double", (1, 3, 3, 4), (3, 2, 4, 4), 2, stride=2, padding=1),
        _sample("output_padding", (1, 2, 3, 2), (2, 3, 3, 3), 3, stride=(2, 3), padding=1, output_padding=(1, 2)),
        _sample("output_padding_dilation", (1, 2, 3, 3), (2, 2, 2, 3), 2, output_padding=(1, 2), dilation=(2, 3)),
        _sample("stride_over_kernel", (1, 2, 3, 2), (2, 2, 1, 2), 2, stride=3),
        _sample("dilation", (1, 2, 4, 3), (2, 3, 3, 2), 3, dilation=(2, 3), stride=(1, 2), padding=(1, 2)),
        _sample("asymmetric", (1, 2, 3, 4), (2, 2, 3, 3), 2, padding=(0, 1, 2, 1)),
        _sample("groups", (2, 4, 3, 3), (4, 3, 2, 3), 6, groups=2, stride=2),
        _sample("depthwise", (1, 5, 4, 3), (5, 1, 3, 3), 5, groups=5, stride=2, padding=1, output_padding=1),
        _sample("multiplier", (1, 3, 3, 3), (3, 2, 2, 2), 6, groups=3),
        _sample("one_by_one", (2, 5, 3, 4), (5, 4, 1, 1), 4),
        _sample("transposed", (2, 3, 4, 3), (3, 2, 3, 2), 2, "transposed", "transposed", stride=2),
        _sample("strided", (2, 3, 3, 4), (3, 2, 2, 4), 2, "strided", "flipped"),
        _sample("expanded", (3, 2, 3, 4), (2, 2, 2, 3), 2, "expanded", "expanded"),
        _sample("lone", (1, 1, 3, 4), (1, 1, 2, 3), 1, "lone", "lone", stride=2),
        _sample("no_images", (0, 3, 4, 4), (3, 2, 3, 3), 2, stride=2),
        _sample("tiles", (2, 13, 11, 9), (13, 21, 4, 4), 21, stride=2, padding=1, gradcheck=False),
    ]
    error_samples = [
        ErrorSample("list", ([[1.0]], Input((1, 1, 1, 1))), TypeError, "om.tensor"),
        ErrorSample("integer", (Input((1, 1, 3, 3), dtype="int64"), Input((1, 1, 3, 3))), TypeError, "float32"),
        ErrorSample("rank", (Input((1, 1, 4, 4)), Input((2, 3))), ShapeError, "expected x [N,C,H,W]"),
        ErrorSample("channels", (Input((1, 4, 2, 2)), Input((3, 3, 2, 2))), ShapeError, "weight has 3 input channels, input has 4"),
        ErrorSample("no_outputs", (Input((1, 4, 2, 2)), Input((4, 0, 2, 2))), ShapeError, "no output channels"),
        ErrorSample("groups", (Input((1, 3, 2, 2)), Input((3, 3, 2, 2))), ShapeError, "2 groups do not divide", {"groups": 2}),
        ErrorSample("bias", (Input((1, 4, 2, 2)), Input((4, 3, 2, 2)), Input((3,))), ShapeError, "expected a bias [6]", {"groups": 2}),
        ErrorSample("stride", (Input((1, 1, 2, 2)), Input((1, 1, 2, 2))), ValueError, "stride must be from 1 to", {"stride": 0}),
        ErrorSample("output_padding", (Input((1, 1, 2, 2)), Input((1, 1, 2, 2))), ValueError, "output_padding must be from 0 to",
                    {"output_padding": -1}),
        ErrorSample("output_padding_large", (Input((1, 1, 2, 2)), Input((1, 1, 2, 2))), ValueError, "must be smaller than the stride (2, 2)",
                    {"output_padding": 2, "stride": 2}),
        ErrorSample("word", (Input((1, 1, 2, 2)), Input((1, 1, 2, 2))), ValueError, "padding must be an int", {"padding": "same"}),
        ErrorSample("negative", (Input((1, 1, 1, 1)), Input((1, 1, 1, 1))), ShapeError, "the output would be -5 by -5", {"padding": 3}),
        ErrorSample("huge", (Input((1, 1, 3, 3)), Input((1, 1, 3, 3))), ShapeError, "no memory holds", {"stride": 2**31 - 1}),
    ]


@public(method=False)
def conv_transpose2d(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    """Transposed convolution of images [N, C, H, W] or [C, H, W] with weight [C, O/groups, kH, kW]; note the order of groups and dilation."""
    return convolutions.conv_transpose2d(input, weight, bias, stride, padding, output_padding, groups, dilation)
