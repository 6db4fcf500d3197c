"""The compiled module that runs Python operators."""

from typing import Any

from typing_extensions import disjoint_base

from onemodel.tensor import Rule, Tensor

@disjoint_base
class PythonRule(Rule): ...

def rule_of(op: Any) -> PythonRule: ...
def apply_op(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor: ...
