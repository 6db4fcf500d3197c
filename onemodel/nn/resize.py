"""Owns the layers that change the size of planes: Upsample and ZeroPad2d. Must not contain the operators, `interpolate` and `pad`."""

from __future__ import annotations

from collections.abc import Sequence

from onemodel.nn.module import Module
from onemodel.ops.pad import pad
from onemodel.ops.parameters import flag, index_of
from onemodel.ops.resize import interpolate
from onemodel.tensor import Tensor


class Upsample(Module):
    """y = interpolate(x) to a size or by a factor; modes nearest, nearest-exact, linear (lines) and bilinear (planes)."""

    def __init__(self, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None, mode: str = "nearest",
                 align_corners: bool | None = None, recompute_scale_factor: bool | None = None) -> None:
        super().__init__()
        self.size, self.scale_factor, self.mode = size, scale_factor, mode
        for name, value in (("align_corners", align_corners), ("recompute_scale_factor", recompute_scale_factor)):
            if value is not None:
                flag("Upsample", name, value)
        self.align_corners, self.recompute_scale_factor = align_corners, recompute_scale_factor

    def forward(self, x: Tensor) -> Tensor:
        return interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor)

    def extra_repr(self) -> str:
        what = f"size={self.size}" if self.scale_factor is None else f"scale_factor={self.scale_factor}"
        return f"{what}, mode={self.mode!r}"


class ZeroPad2d(Module):
    """Planes with zeros around them: one width, or (left, right, top, bottom); negative ones crop."""

    def __init__(self, padding: int | Sequence[int]) -> None:
        super().__init__()
        widths = tuple(padding) if isinstance(padding, (tuple, list)) else (padding,) * 4
        if len(widths) != 4:
            raise ValueError(f"ZeroPad2d: expected one width or four (left, right, top, bottom), got {padding!r}")
        self.padding = tuple(index_of("ZeroPad2d", "padding", n, "an integer or four (left, right, top, bottom)") for n in widths)

    def forward(self, x: Tensor) -> Tensor:
        return pad(x, self.padding)

    def extra_repr(self) -> str:
        return f"padding={self.padding}"
