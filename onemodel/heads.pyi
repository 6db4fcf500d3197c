"""The compiled module of attention of tensors."""

from typing_extensions import disjoint_base

from onemodel.tensor import Tensor

@disjoint_base
class Call: ...

def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor: ...
def backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]: ...
