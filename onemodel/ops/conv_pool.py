"""conv_relu_pool2d: the contract, reference and samples of a convolution whose outputs are pooled at once. The rule is in `convolutions.pyx`."""

from __future__ import annotations

import numpy as np

from onemodel import convolutions
from onemodel.errors import ShapeError
from onemodel.ops.conv import Conv2d
from onemodel.ops.pooling import MaxPool2d
from onemodel.registry import ErrorSample, Input, Op, Sample, public, register


def _sample(name, x, w, bias=True, layout="plain", gradcheck=True, **kwargs):
    tensors = (Input(x, layout=layout), Input(w)) + ((Input((w[0],)),) if bias else ())
    return Sample(name, tensors, kwargs, 16.0, gradcheck)


_SMALL = Input((1, 1, 4, 4)), Input((1, 1, 3, 3))


@register
class ConvReluPool2d(Op):
    """y = relu(max_pool2d(conv2d(x, w, b))): the three operators' bits, values and gradients, and those of max_pool2d(relu(conv2d(x, w, b))), but
    where a dilated window meets nothing but padding (0 here, -inf there).

    Shapes, parameters and errors of `conv2d` and `max_pool2d`. The convolution's outputs exist for a few images at a time, while these are in the
    caches, and so do their gradients, but for the weights of depthwise convolutions and of few outputs. A window's gradient goes to its first
    largest output, to none where that is 0, negative or NaN. Fast mode may sum the gradient of b in another order than the three.
    """

    kernel = convolutions.RULES["conv_relu_pool2d"]

    @staticmethod
    def reference(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, kernel_size=2, pool_stride=None, pool_padding=0,
                  pool_dilation=1, ceil_mode=False):
        y = Conv2d.reference(input, weight, bias, stride, padding, dilation, groups)
        return np.maximum(MaxPool2d.reference(y, kernel_size, pool_stride, pool_padding, pool_dilation, ceil_mode), 0.0)

    samples = [
        _sample("plain", (2, 3, 6, 8), (4, 3, 3, 3), padding=1),
        _sample("no_bias", (1, 2, 6, 6), (3, 2, 3, 3), bias=False),
        _sample("unbatched", (2, 7, 6), (3, 2, 2, 3), padding="same", ceil_mode=True),
        _sample("windows", (2, 2, 8, 9), (3, 2, 3, 3), padding=1, kernel_size=3, pool_stride=2, pool_padding=1),
        _sample("gaps", (1, 2, 9, 9), (2, 2, 2, 2), kernel_size=(2, 1), pool_stride=(3, 2), pool_dilation=(2, 1)),
        _sample("stride", (2, 2, 11, 9), (3, 2, 3, 3), stride=2, padding=(2, 1)),
        _sample("dilation", (1, 2, 8, 7), (2, 2, 2, 3), dilation=(2, 1)),
        _sample("groups", (2, 4, 6, 6), (6, 2, 3, 3), groups=2, padding=1),
        _sample("depthwise", (3, 4, 6, 6), (4, 1, 3, 3), groups=4, padding=1),
        _sample("few_outputs", (2, 24, 6, 6), (1, 24, 3, 3), padding=1),
        _sample("transposed", (2, 3, 6, 5), (4, 3, 3, 2), layout="transposed", gradcheck=False),
        _sample("strided", (2, 3, 6, 5), (4, 3, 3, 2), layout="strided", gradcheck=False),
        _sample("expanded", (3, 2, 5, 6), (4, 2, 2, 3), layout="expanded"),
        _sample("no_images", (0, 3, 6, 6), (4, 3, 3, 3)),
        _sample("no_channels", (2, 0, 4, 6), (3, 0, 1, 1)),
        _sample("several_times", (5, 3, 80, 84), (16, 3, 3, 3), gradcheck=False, padding=1),
        _sample("tiles", (3, 13, 19, 22), (37, 13, 3, 3), gradcheck=False, padding=1),
    ]
    error_samples = [
        ErrorSample("list", ([[1.0]], Input((1, 1, 1, 1))), TypeError, "om.tensor"),
        ErrorSample("integer", (Input((1, 1, 4, 4), dtype="int64"), Input((1, 1, 3, 3))), TypeError, "conv_relu_pool2d: x must be float32"),
        ErrorSample("channels", (Input((2, 4, 8, 8)), Input((16, 3, 3, 3))), ShapeError, "weight has 3 input channels, input has 4"),
        ErrorSample("bias", (Input((1, 1, 4, 4)), Input((2, 1, 3, 3)), Input((3,))), ShapeError, "expected a bias [2]"),
        ErrorSample("window_too_large", _SMALL, ShapeError, "kernel 3x3 is larger than the convolution's outputs with its padding, 2x2",
                    {"kernel_size": 3}),
        ErrorSample("window", _SMALL, ValueError, "kernel_size must be from 1 to", {"kernel_size": 0}),
        ErrorSample("pool_padding", _SMALL, ValueError, "padding must be at most half the kernel", {"pool_padding": 2}),
        ErrorSample("ceil_mode", _SMALL, TypeError, "ceil_mode", {"ceil_mode": "yes"}),
    ]


@public(method=False)
def conv_relu_pool2d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, kernel_size=2, pool_stride=None, pool_padding=0,
                     pool_dilation=1, ceil_mode=False):
    """relu and max_pool2d of a convolution of images [N, C, H, W] or [C, H, W] with weight [O, C/groups, kH, kW], in one step that never holds
    the whole convolution; kernel_size and pool_stride (kernel_size if None), pool_padding, pool_dilation and ceil_mode are the pooling's."""
    return convolutions.conv_relu_pool2d(input, weight, bias, stride, padding, dilation, groups, kernel_size, pool_stride, pool_padding,
                                         pool_dilation, ceil_mode)
