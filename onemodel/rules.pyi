"""The compiled module of element-wise rules."""

from collections.abc import Callable
from typing import Any, TypeVar

from typing_extensions import disjoint_base

from onemodel.tensor import Rule, Tensor

_F = TypeVar("_F", bound=Callable[..., Any])

SIGNATURES: dict[str, int]
ARITY: dict[int, int]

@disjoint_base
class Map(Rule):
    integer: Any
    words: str
    def __init__(self, forward: str, *, integer: Any = None, **backward: str) -> None: ...
    def __call__(self, *tensors: Any) -> Tensor: ...

def function_of(rule: Map, documented: _F) -> _F: ...
