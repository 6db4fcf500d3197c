"""Owns the layers that change only the shape; must not contain arithmetic."""

from __future__ import annotations

from onemodel.nn.module import Module
from onemodel.ops.parameters import index_of
from onemodel.ops.view import flatten
from onemodel.tensor import Tensor


class Flatten(Module):
    """Dimensions start_dim to end_dim become one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = index_of("Flatten", "start_dim", start_dim), index_of("Flatten", "end_dim", end_dim)

    def forward(self, x: Tensor) -> Tensor:
        return flatten(x, self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"
