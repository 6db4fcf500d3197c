"""The compiled module of cat and stack."""

from collections.abc import Sequence

from onemodel.tensor import Rule, Tensor

RULES: dict[str, Rule]

class JoinRule(Rule): ...

def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor: ...
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor: ...
