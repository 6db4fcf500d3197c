"""Owns clipping of gradients by their common norm. Must not contain loops over elements."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from onemodel.making import tensor
from onemodel.modes import no_grad
from onemodel.ops.arithmetic import abs as absolute
from onemodel.ops.arithmetic import pow as power
from onemodel.ops.parameters import flag, real
from onemodel.tensor import Tensor
from onemodel.updates import gradient_norm


def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False) -> Tensor:
    """Scale all gradients in place so that the norm of all of them together is at most max_norm; returns the norm they had.

    The 2-norm is one sum of squares in double (sixteen running sums, element i in sum i mod 16, for each 32768 elements of a gradient, all
    added in order), its root rounded once; the factor max_norm/(norm + 1e-6) is applied where it is below 1. Other norms are made by the
    operators. A norm that is NaN makes the gradients NaN, an infinite one zeroes what is finite; with error_if_nonfinite it is a
    RuntimeError instead, before anything changes.
    """
    if not isinstance(parameters, (Tensor, Iterable)):
        raise TypeError(f"clip_grad_norm_: expected a tensor or an iterable of tensors, got {type(parameters).__name__}")
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    for p in given:
        if not isinstance(p, Tensor):
            raise TypeError(f"clip_grad_norm_: expected tensors as parameters, got {type(p).__name__}")
    strict = flag("clip_grad_norm_", "error_if_nonfinite", error_if_nonfinite)
    limit = real("clip_grad_norm_", "max_norm", max_norm, "a number that is not negative", 0.0, finite=False)
    kind = real("clip_grad_norm_", "norm_type", norm_type, "a number above 0", 0.0, above=True, finite=False)
    gradients: list[Tensor] = []
    for p in given:  # a gradient that several share is scaled once
        if p.grad is not None and not any(p.grad is g for g in gradients):
            gradients.append(p.grad)
    with no_grad():
        norm = gradient_norm(gradients) if kind == 2.0 else _norm([g for g in gradients if g.numel()], kind)
        if strict and not math.isfinite(norm):
            raise RuntimeError(f"clip_grad_norm_: the norm of the gradients is {norm}; look for what made it, or leave error_if_nonfinite")
        rounded = float(np.float32(norm))
        factor = limit / (rounded + 1e-6)
        if not factor >= 1.0:
            for g in gradients:
                g.mul_(factor)
    return tensor(rounded)


def _norm(gradients: list[Tensor], kind: float) -> float:
    sizes = [absolute(g) for g in gradients]
    if math.isinf(kind):
        return float(np.max([size.amax().item() for size in sizes], initial=0.0))  # a NaN wins
    total = sum(power(size, kind).sum().item() for size in sizes) if kind != 1.0 else sum(size.sum().item() for size in sizes)
    return total if kind == 1.0 else power(tensor(total), 1.0 / kind).item()
