"""Owns stochastic gradient descent: its options; the update is a kernel. Must not contain arithmetic on elements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onemodel.optim.optimizer import Optimizer, check_flags, check_numbers
from onemodel.tensor import Tensor
from onemodel.updates import sgd_ready, sgd_step


class SGD(Optimizer):
    """Stochastic gradient descent, with the gradient g of each parameter p:

        g = -g if maximize;  g = g + weight_decay·p
        b = g at first, then momentum·b + (1 - dampening)·g;  g = g + momentum·b if nesterov, else b
        p = p - lr·g
    """

    def __init__(self, params: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float = 1e-3, momentum: float = 0.0, dampening: float = 0.0,
                 weight_decay: float = 0.0, nesterov: bool = False, *, maximize: bool = False) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov,
                                  "maximize": maximize})

    def check_options(self, options: dict[str, Any]) -> None:
        check_numbers("SGD", options, "lr", "momentum", "weight_decay", signed=("dampening",))
        check_flags("SGD", options, "nesterov", "maximize")
        if options["nesterov"] and (options["momentum"] <= 0 or options["dampening"] != 0):
            raise ValueError("SGD: nesterov needs a momentum above 0 and no dampening")

    def update(self) -> None:
        ready = [sgd_ready(group["params"], self.state, group["momentum"] != 0.0) for group in self.param_groups]
        for group, lists in zip(self.param_groups, ready, strict=True):
            sgd_step(lists, self.state, group["lr"], group["momentum"], group["dampening"], group["weight_decay"], group["nesterov"],
                     group["maximize"])
