"""The compiled module of optimiser steps."""

from typing import Any

from onemodel.tensor import Tensor

def sgd_step(params: list[Tensor], state: dict[Tensor, dict[str, Any]], lr: float, momentum: float, dampening: float, weight_decay: float,
             nesterov: bool, maximize: bool) -> None: ...
