"""Owns functions that make functions: value_and_grad. Must not contain operators or the engine."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from onemodel.arguments import index_of
from onemodel.autograd import grad
from onemodel.making import zeros_like
from onemodel.modes import enable_grad
from onemodel.tensor import Tensor


def value_and_grad(fn: Callable[..., Tensor], argnums: int | tuple[int, ...] = 0) -> Callable[..., tuple[Tensor, Any]]:
    """A function that returns `fn`'s value and its gradient with respect to the positional arguments `argnums`.

    fn returns one tensor of one element. The value is detached; the gradient is a tensor, or a tuple of them where argnums is a
    tuple; an argument that the value does not depend on has a gradient of zeros. No `.grad` is touched, and the arguments need
    not require a gradient.
    """
    chosen = argnums if isinstance(argnums, tuple) else (argnums,)
    chosen = tuple(index_of("value_and_grad", "argnums", n, "an integer or a tuple of them") for n in chosen)

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        places = []
        for n in chosen:
            if not -len(args) <= n < len(args):
                raise ValueError(f"value_and_grad: argnums {n} is out of range for {len(args)} positional arguments")
            places.append(n % len(args))
        if len(set(places)) != len(places):
            raise ValueError(f"value_and_grad: argnums {argnums} name an argument twice")
        new = list(args)
        for n in places:
            if not isinstance(args[n], Tensor):
                raise TypeError(f"value_and_grad: argument {n} must be a Tensor, got {type(args[n]).__name__}")
            if args[n].dtype != np.float32:
                raise TypeError(f"value_and_grad: argument {n} must be float32 to have a gradient, got {args[n].dtype}")
            new[n] = args[n].detach().requires_grad_()
        with enable_grad():
            value = fn(*new, **kwargs)
        if not isinstance(value, Tensor):
            raise TypeError(f"value_and_grad: the function must return one Tensor, got {type(value).__name__}")
        leaves = [new[n] for n in places]
        if value.requires_grad:
            found = grad(value, leaves, allow_unused=True)
        elif value.numel() == 1:
            found = (None,) * len(leaves)
        else:
            raise RuntimeError(f"value_and_grad: the function must return one element, got shape {value.shape}")
        gradients = tuple(zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True))
        return value.detach(), gradients if isinstance(argnums, tuple) else gradients[0]

    return run
