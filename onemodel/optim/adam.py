"""Owns Adam, AdamW and RMSprop: their options; the updates are kernels. Must not contain arithmetic on elements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onemodel.optim.optimizer import Optimizer, check_flags, check_numbers
from onemodel.tensor import Tensor
from onemodel.updates import adam_ready, adam_step, rmsprop_ready, rmsprop_step


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015), with the gradient g of each parameter p at its step t:

        g = -g if maximize;  g = g + weight_decay·p
        m = m + (1 - β₁)(g - m);  v = β₂·v + (1 - β₂)·g²;  u = v, or the largest v so far if amsgrad
        p = p - lr/(1 - β₁ᵗ)·m / (√u/√(1 - β₂ᵗ) + eps)

    Each line is float32 in this order; the factors that hold t are made in float64 and rounded once.
    """

    decoupled = False
    foreign = {**Optimizer.foreign, "capturable": (False, True), "decoupled_weight_decay": (False,)}

    def __init__(self, params: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0.0, amsgrad: bool = False, *, maximize: bool = False) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad, "maximize": maximize})

    def check_options(self, options: dict[str, Any]) -> None:
        what, betas = type(self).__name__, options["betas"]
        check_numbers(what, options, "lr", "eps", "weight_decay")
        check_flags(what, options, "amsgrad", "maximize")
        if not isinstance(betas, (tuple, list)) or len(betas) != 2:
            raise TypeError(f"{what}: betas must be two numbers, got {betas!r}")
        numbers = {"betas[0]": betas[0], "betas[1]": betas[1]}
        check_numbers(what, numbers, *numbers)
        betas = options["betas"] = tuple(numbers.values())
        if not all(0 <= b < 1 for b in betas):
            raise ValueError(f"{what}: betas must be from 0 to below 1, got {betas}")

    def update(self) -> None:
        ready = [adam_ready(group["params"], self.state, group["amsgrad"], type(self).__name__) for group in self.param_groups]
        for group, lists in zip(self.param_groups, ready, strict=True):
            beta1, beta2 = group["betas"]
            adam_step(lists, self.state, group["lr"], beta1, beta2, group["eps"], group["weight_decay"], self.decoupled,
                      group["amsgrad"], group["maximize"], type(self).__name__)


class AdamW(Adam):
    """Adam whose decay is apart from the gradient (Loshchilov and Hutter 2019): p = (1 - lr·weight_decay)·p before Adam's step without decay."""

    decoupled = True
    foreign = {**Adam.foreign, "decoupled_weight_decay": (True,)}

    def __init__(self, params: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)


class RMSprop(Optimizer):
    """RMSprop (Tieleman and Hinton 2012; centered: Graves 2013), with the gradient g of each parameter p:

        g = -g if maximize;  g = g + weight_decay·p
        v = alpha·v + (1 - alpha)·g²;  if centered: a = a + (1 - alpha)(g - a), u = v - a², else u = v
        p = p - lr·g/(√u + eps);  with momentum: b = momentum·b + g/(√u + eps), p = p - lr·b
    """

    foreign = {**Optimizer.foreign, "capturable": (False, True)}

    def __init__(self, params: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8,
                 weight_decay: float = 0.0, momentum: float = 0.0, centered: bool = False, *, maximize: bool = False) -> None:
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay, "momentum": momentum, "centered": centered,
                                  "maximize": maximize})

    def check_options(self, options: dict[str, Any]) -> None:
        check_numbers("RMSprop", options, "lr", "alpha", "eps", "weight_decay", "momentum")
        check_flags("RMSprop", options, "centered", "maximize")

    def update(self) -> None:
        ready = [rmsprop_ready(group["params"], self.state, group["momentum"], group["centered"]) for group in self.param_groups]
        for group, lists in zip(self.param_groups, ready, strict=True):
            rmsprop_step(lists, self.state, group["lr"], group["alpha"], group["eps"], group["weight_decay"], group["momentum"],
                         group["centered"], group["maximize"])
