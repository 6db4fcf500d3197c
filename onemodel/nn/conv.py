"""Owns the layers that convolve: Conv1d, Conv2d, ConvTranspose2d. Must not contain the arithmetic, which is `onemodel.conv2d` and its kin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from onemodel.nn.linear import _uniform
from onemodel.nn.module import Module, Parameter
from onemodel.ops.conv import conv1d, conv2d
from onemodel.ops.conv_transpose import conv_transpose2d
from onemodel.ops.parameters import flag, integer, integers
from onemodel.tensor import Tensor

_LARGEST = 2**31 - 1


class _Convolution(Module):
    """What the three have in common: checked parameters, weight and bias."""

    weight: Parameter
    bias: Parameter | None
    _spatial = 2
    _transposed = False

    def _set_up(self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any, padding: Any, output_padding: Any, dilation: Any,
                groups: int, bias: bool, padding_mode: str) -> None:
        layer, spatial = type(self).__name__, self._spatial
        self.in_channels = integer(layer, "in_channels", in_channels, 1, _LARGEST)
        self.out_channels = integer(layer, "out_channels", out_channels, 1, _LARGEST)
        self.groups = integer(layer, "groups", groups, 1, _LARGEST)
        self.kernel_size = integers(layer, "kernel_size", kernel_size, spatial, 1, _LARGEST)
        self.stride = integers(layer, "stride", stride, spatial, 1, _LARGEST)
        self.dilation = integers(layer, "dilation", dilation, spatial, 1, _LARGEST)
        self.output_padding = integers(layer, "output_padding", output_padding, spatial, 0, _LARGEST)
        if isinstance(padding, str) and not self._transposed:
            if padding not in ("same", "valid"):
                raise ValueError(f"{layer}: padding must be numbers, 'same' or 'valid', got {padding[:20]!r}")
            if padding == "same" and any(s != 1 for s in self.stride):
                raise ValueError(f"{layer}: padding 'same' needs a stride of 1, got {self.stride}; write the padding as numbers")
            self.padding: str | tuple[int, ...] = padding
        else:
            both = isinstance(padding, (tuple, list)) and len(padding) == 2 * spatial
            self.padding = integers(layer, "padding", padding, 2 * spatial if both else spatial, 0, _LARGEST)
        for name, channels in (("in_channels", self.in_channels), ("out_channels", self.out_channels)):
            if channels % self.groups:
                raise ValueError(f"{layer}: {self.groups} groups do not divide {name} {channels}")
        if padding_mode != "zeros":
            raise ValueError(f"{layer}: padding_mode must be 'zeros', got {padding_mode!r}; pad the input yourself for another border")
        bias = flag(layer, "bias", bias)
        self.padding_mode = padding_mode
        outer, inner = (self.in_channels, self.out_channels) if self._transposed else (self.out_channels, self.in_channels)
        # Kaiming's uniform rule with a = √5 (He et al. 2015), torch's default; fan_in is counted from the weight's second dimension, in both kinds.
        bound = 1 / math.sqrt(inner // self.groups * math.prod(self.kernel_size))
        self.weight = _uniform((outer, inner // self.groups, *self.kernel_size), bound)
        self.bias = _uniform((self.out_channels,), bound) if bias else None

    def extra_repr(self) -> str:
        parts = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"]
        for name, usual in (("padding", 0), ("dilation", 1), ("output_padding", 0)):
            value = getattr(self, name)
            if isinstance(value, str) or any(v != usual for v in value):
                parts.append(f"{name}={value}")
        if self.groups != 1:
            parts.append(f"groups={self.groups}")
        if self.bias is None:
            parts.append("bias=False")
        return ", ".join(parts)


class Conv1d(_Convolution):
    """`conv1d` with weight [out, in/groups, k] and bias [out], both uniform in ±1/√(in/groups·k) at first, as torch's."""

    _spatial = 1

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int | Sequence[int], stride: int | Sequence[int] = 1,
                 padding: str | int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, groups: int = 1, bias: bool = True,
                 padding_mode: str = "zeros") -> None:
        super().__init__()
        self._set_up(in_channels, out_channels, kernel_size, stride, padding, 0, dilation, groups, bias, padding_mode)

    def forward(self, x: Tensor) -> Tensor:
        return conv1d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Conv2d(_Convolution):
    """`conv2d` with weight [out, in/groups, kH, kW] and bias [out], both uniform in ±1/√(in/groups·kH·kW) at first, as torch's."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int | Sequence[int], stride: int | Sequence[int] = 1,
                 padding: str | int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, groups: int = 1, bias: bool = True,
                 padding_mode: str = "zeros") -> None:
        super().__init__()
        self._set_up(in_channels, out_channels, kernel_size, stride, padding, 0, dilation, groups, bias, padding_mode)

    def forward(self, x: Tensor) -> Tensor:
        return conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class ConvTranspose2d(_Convolution):
    """`conv_transpose2d` with weight [in, out/groups, kH, kW] and bias [out], both uniform in ±1/√(out/groups·kH·kW) at first, as torch's.

    `layer(x, output_size)` chooses the output_padding that gives this (H, W), or the whole shape.
    """

    _transposed = True

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int | Sequence[int], stride: int | Sequence[int] = 1,
                 padding: int | Sequence[int] = 0, output_padding: int | Sequence[int] = 0, groups: int = 1, bias: bool = True,
                 dilation: int | Sequence[int] = 1, padding_mode: str = "zeros") -> None:
        super().__init__()
        self._set_up(in_channels, out_channels, kernel_size, stride, padding, output_padding, dilation, groups, bias, padding_mode)

    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        more = self.output_padding if output_size is None else self._padding_for(x, output_size)
        return conv_transpose2d(x, self.weight, self.bias, self.stride, self.padding, more, self.groups, self.dilation)

    def _padding_for(self, x: Tensor, output_size: Sequence[int]) -> tuple[int, ...]:
        if not isinstance(output_size, (tuple, list)) or len(output_size) not in (2, x.ndim):
            raise ValueError(f"ConvTranspose2d: output_size must be (H, W) or the whole shape, got {output_size!r}")
        wanted = [integer("ConvTranspose2d", "output_size", size, 1, _LARGEST) for size in output_size[-2:]]
        pad = self.padding if len(self.padding) == 4 else self.padding * 2
        reach = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        least = [(x.shape[i - 2] - 1) * self.stride[i] - int(pad[i]) - int(pad[i + 2]) + reach[i] for i in range(2)]
        if any(not 0 <= w - low < s for w, low, s in zip(wanted, least, self.stride, strict=True)):
            most = [low + s - 1 for low, s in zip(least, self.stride, strict=True)]
            raise ValueError(f"ConvTranspose2d: output_size {tuple(wanted)} is out of reach of an input {x.shape}; from {least} to {most}")
        return tuple(w - low for w, low in zip(wanted, least, strict=True))
