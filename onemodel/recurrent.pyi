"""The compiled module of recurrent layers of tensors."""

from typing_extensions import disjoint_base

from onemodel.tensor import Tensor

@disjoint_base
class Call: ...

GATES: dict[str, int]

def layer(
    op: str, x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None, h0: Tensor | None, c0: Tensor | None, reverse: bool,
    with_cell: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]: ...
def layer_bwd(
    op: str, g: Tensor, x: Tensor, w_ih: Tensor, w_hh: Tensor, h0: Tensor | None, c0: Tensor | None, gates: Tensor, c: Tensor, tanh_c: Tensor | None,
    out: Tensor, reverse: bool, with_cell: bool, wanted: tuple[bool, ...],
) -> tuple[Tensor | None, ...]: ...
