"""Owns the pooling layers, each the operator of the same name; must not contain arithmetic."""

from __future__ import annotations

from onemodel.nn.module import Module
from onemodel.ops.composed import adaptive_avg_pool1d
from onemodel.ops.parameters import flag
from onemodel.ops.pooling import adaptive_avg_pool2d, adaptive_max_pool2d, avg_pool1d, avg_pool2d, global_avg_pool2d, max_pool1d, max_pool2d
from onemodel.tensor import Tensor

Size = int | tuple[int, ...]


class _MaxPool(Module):
    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1, return_indices: bool = False,
                 ceil_mode: bool = False) -> None:  # fmt: skip
        super().__init__()
        name = type(self).__name__
        self.kernel_size, self.stride, self.padding, self.dilation = kernel_size, kernel_size if stride is None else stride, padding, dilation
        self.return_indices, self.ceil_mode = flag(name, "return_indices", return_indices), flag(name, "ceil_mode", ceil_mode)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}, ceil_mode={self.ceil_mode}"


class MaxPool1d(_MaxPool):
    """Largest element of each window of a row: [n, c, w] or [c, w]; with return_indices also where it stands."""

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        return max_pool1d(x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices)


class MaxPool2d(_MaxPool):
    """Largest element of each window of a plane: [n, c, h, w] or [c, h, w]; with return_indices also where it stands."""

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        return max_pool2d(x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices)


class AvgPool1d(Module):
    """Mean of each window of a row: [n, c, w] or [c, w]."""

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False,
                 count_include_pad: bool = True) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding
        self.ceil_mode = flag("AvgPool1d", "ceil_mode", ceil_mode)
        self.count_include_pad = flag("AvgPool1d", "count_include_pad", count_include_pad)

    def forward(self, x: Tensor) -> Tensor:
        return avg_pool1d(x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(Module):
    """Mean of each window of a plane: [n, c, h, w] or [c, h, w]."""

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False, count_include_pad: bool = True,
                 divisor_override: int | None = None) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding
        self.ceil_mode = flag("AvgPool2d", "ceil_mode", ceil_mode)
        self.count_include_pad, self.divisor_override = flag("AvgPool2d", "count_include_pad", count_include_pad), divisor_override

    def forward(self, x: Tensor) -> Tensor:
        return avg_pool2d(x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad, self.divisor_override)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AdaptiveAvgPool1d(Module):
    """Means of windows that share a row out to output_size."""

    def __init__(self, output_size: int | tuple[int, ...] | None) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        return adaptive_avg_pool1d(x, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveAvgPool2d(Module):
    """Means of windows that share a plane out to output_size: an integer, or (rows, columns), None for the size that is there."""

    def __init__(self, output_size: int | tuple[int | None, ...] | None) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        return adaptive_avg_pool2d(x, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveMaxPool2d(Module):
    """Largest elements of windows that share a plane out to output_size; with return_indices also where they stand."""

    def __init__(self, output_size: int | tuple[int | None, ...] | None, return_indices: bool = False) -> None:
        super().__init__()
        self.output_size, self.return_indices = output_size, flag("AdaptiveMaxPool2d", "return_indices", return_indices)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        return adaptive_max_pool2d(x, self.output_size, self.return_indices)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class GlobalAvgPool2d(Module):
    """Mean of each plane: [n, c, h, w] to [n, c, 1, 1]."""

    def forward(self, x: Tensor) -> Tensor:
        return global_avg_pool2d(x)
