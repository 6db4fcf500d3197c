"""Owns the layers that are affine maps: Linear and Identity. Must not contain the product itself, which is `onemodel.linear`."""

from __future__ import annotations

import math

from onemodel.modes import no_grad
from onemodel.nn.module import Module, Parameter
from onemodel.ops.matmul import linear
from onemodel.ops.parameters import LARGEST_SIZE, flag, integer
from onemodel.random import rand
from onemodel.tensor import Tensor


def _uniform(size: tuple[int, ...], bound: float) -> Parameter:
    """Values from [-bound, bound)."""
    with no_grad():
        return Parameter(rand(size) * (2 * bound) - bound)


class Linear(Module):
    """y = x·Wᵀ + b over the last dimension; weight [out, in], bias [out].

    Both start uniform in ±1/√in: for the weight that is Kaiming's uniform rule with a = √5 (He et al. 2015), torch's default.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features = integer("Linear", "in_features", in_features, 0, LARGEST_SIZE)
        self.out_features = integer("Linear", "out_features", out_features, 0, LARGEST_SIZE)
        bias = flag("Linear", "bias", bias)
        bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
        self.weight = _uniform((self.out_features, self.in_features), bound)
        self.bias = _uniform((self.out_features,), bound) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Identity(Module):
    """y = x."""

    def forward(self, x: Tensor) -> Tensor:
        return x
