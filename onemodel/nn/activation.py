"""Owns the activation layers, each the operator of the same name; must not contain arithmetic."""

from __future__ import annotations

from onemodel.nn.module import Module
from onemodel.ops.activation import elu, gelu, leaky_relu, relu, sigmoid, silu, softplus, tanh
from onemodel.ops.parameters import flag, index_of, real
from onemodel.ops.softmax import log_softmax, softmax
from onemodel.tensor import Tensor


class _Elementwise(Module):
    """inplace is torch's option. Here an operator always makes a new tensor: its input may be saved for a gradient, and the pool hands the
    memory of an input that nobody needs to the next operator."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        if flag(type(self).__name__, "inplace", inplace):
            raise ValueError(f"{type(self).__name__}: inplace must be False, got True: an operator makes a new tensor; the pool reuses memory")


class ReLU(_Elementwise):
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


class SiLU(_Elementwise):
    """y = x·sigmoid(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return silu(x)


class Softplus(Module):
    """y = ln(1 + e^(beta·x)) ÷ beta, and x where beta·x exceeds the threshold."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta = real("Softplus", "beta", beta)
        self.threshold = real("Softplus", "threshold", threshold, "a number", finite=False)

    def forward(self, x: Tensor) -> Tensor:
        return softplus(x, self.beta, self.threshold)

    def extra_repr(self) -> str:
        return f"beta={self.beta}, threshold={self.threshold}"


class LeakyReLU(_Elementwise):
    """y = x where x > 0, else negative_slope·x."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.negative_slope = real("LeakyReLU", "negative_slope", negative_slope)

    def forward(self, x: Tensor) -> Tensor:
        return leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}"


class ELU(_Elementwise):
    """y = x where x >= 0, else alpha·(eˣ - 1)."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.alpha = real("ELU", "alpha", alpha)

    def forward(self, x: Tensor) -> Tensor:
        return elu(x, self.alpha)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}"


class _AlongDim(Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = index_of(type(self).__name__, "dim", dim)

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
