"""Owns the dropout layer; must not contain arithmetic."""

from __future__ import annotations

from onemodel.nn.module import Module
from onemodel.ops.dropout import dropout
from onemodel.ops.parameters import flag, real
from onemodel.tensor import Tensor


class Dropout(Module):
    """In training, each element is 0 with probability p, else multiplied by 1 ÷ (1 - p); in evaluation, x itself. Random numbers come from
    `om.default_generator`."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        self.p = real("Dropout", "p", p, "from 0 to 1", 0.0, 1.0)
        if flag("Dropout", "inplace", inplace):
            raise ValueError("Dropout: inplace must be False, got True: an operator makes a new tensor; the pool reuses memory")

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"
