"""Owns the activation layers, each the operator of the same name; must not contain arithmetic."""

from __future__ import annotations

from onemodel.nn.module import Module
from onemodel.ops.activation import gelu, relu, sigmoid, tanh
from onemodel.ops.softmax import log_softmax, softmax
from onemodel.tensor import Tensor


class ReLU(Module):
    """y = max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        return relu(x)


class Tanh(Module):
    """y = tanh x."""

    def forward(self, x: Tensor) -> Tensor:
        return tanh(x)


class Sigmoid(Module):
    """y = 1 / (1 + e⁻ˣ)."""

    def forward(self, x: Tensor) -> Tensor:
        return sigmoid(x)


class GELU(Module):
    """y = x·Φ(x), with the error function or, for approximate="tanh", its tanh form."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ValueError(f"GELU: approximate must be 'none' or 'tanh', got {approximate!r}")
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return gelu(x, approximate=self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class _AlongDim(Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        if isinstance(dim, bool) or not isinstance(dim, int):
            raise TypeError(f"{type(self).__name__}: dim must be an int, got {type(dim).__name__}")
        self.dim = dim

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Softmax(_AlongDim):
    """y = eˣ ÷ Σ eˣ along a dimension."""

    def forward(self, x: Tensor) -> Tensor:
        return softmax(x, self.dim)


class LogSoftmax(_AlongDim):
    """y = log softmax(x) along a dimension."""

    def forward(self, x: Tensor) -> Tensor:
        return log_softmax(x, self.dim)
