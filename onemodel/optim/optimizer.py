"""Owns the base of optimisers: parameter groups, options and state. Must not contain an optimiser."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np

from onemodel.arrays import array_view
from onemodel.methods import zero_grad
from onemodel.modes import enable_grad
from onemodel.ops.parameters import flag
from onemodel.tensor import Tensor


def _check_apart(params: list[Tensor], what: str) -> None:
    """Kernels update several parameters at once, so none may lie in another's memory."""
    starts = [(array_view(p, what).__array_interface__["data"][0], p) for p in params if p.numel()]
    starts.sort(key=lambda pair: pair[0])
    for (start, p), (behind, q) in zip(starts, starts[1:], strict=False):
        if start + p.numel() * p.dtype.itemsize > behind:
            raise ValueError(f"{what}: parameters of shapes {p.shape} and {q.shape} share memory; give one of them, or clone()")


def check_numbers(what: str, options: dict[str, Any], *names: str, signed: tuple[str, ...] = ()) -> None:
    """TypeError or ValueError unless the options are finite numbers, not negative except those of `signed`; NumPy's become Python's, which files
    can hold."""
    for name in (*names, *signed):
        value = options[name]
        if isinstance(value, (np.integer, np.floating)):
            value = options[name] = value.item()
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{what}: {name} must be a number, got {type(value).__name__}")
        if not abs(value) < 1e38 or (value < 0 and name not in signed):
            raise ValueError(f"{what}: {name} must be finite{'' if name in signed else ' and not negative'}, got {value}")


def check_flags(what: str, options: dict[str, Any], *names: str) -> None:
    """TypeError unless the options are truth values."""
    for name in names:
        options[name] = flag(what, name, options[name])


class Optimizer:
    """The base of optimisers: `step()` updates parameters in place from their gradients; a parameter without one is left alone.

    params: tensors, or dicts with "params" and options that differ from the defaults (parameter groups).
    """

    # Options that only torch's groups have, and the values with which they say nothing: those of the first three choose how it computes.
    foreign: ClassVar[dict[str, tuple]] = {"foreach": (None, False, True), "fused": (None, False, True), "differentiable": (False,)}

    def __init__(self, params: Iterable[Tensor] | Iterable[dict[str, Any]], defaults: dict[str, Any]) -> None:
        if isinstance(params, (Tensor, dict, set, frozenset)):  # a set has no order, which a state needs
            raise TypeError(f"{type(self).__name__}: expected a list of tensors or of groups, got {type(params).__name__}; put it in a list")
        self.defaults = defaults
        self.initial_lrs: list[float] | None = None  # what schedules scale, once there is one
        self.state: dict[Tensor, dict[str, Any]] = {}
        self.param_groups: list[dict[str, Any]] = []
        given: list[Any] = list(params)
        if not given:
            raise ValueError(f"{type(self).__name__}: got no parameters")
        for group in given if isinstance(given[0], dict) else [{"params": given}]:
            self.add_param_group(group)

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Add parameters, with options that differ from the defaults."""
        what = type(self).__name__
        if not isinstance(group, dict) or "params" not in group:
            raise TypeError(f"{what}: a parameter group is a dict with 'params', got {type(group).__name__}")
        unknown = [name for name in group if name != "params" and name not in self.defaults]
        if unknown:
            raise ValueError(f"{what}: unknown options {', '.join(map(str, unknown))}; there are {', '.join(self.defaults)}")
        params = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
        taken = {id(p) for other in self.param_groups for p in other["params"]}
        for p in params:
            if not isinstance(p, Tensor):
                raise TypeError(f"{what}: expected tensors as parameters, got {type(p).__name__}")
            if not p.is_leaf:
                raise ValueError(f"{what}: a parameter of shape {p.shape} is a result of an operator; only leaves can be optimised")
            if id(p) in taken:
                raise ValueError(f"{what}: a parameter of shape {p.shape} stands twice among the groups")
            if not p.is_contiguous():
                raise ValueError(f"{what}: a parameter of shape {p.shape} has strides {p.strides}; make it from contiguous()")
            taken.add(id(p))
        options = {**self.defaults, **group, "params": params}
        self.check_options(options)
        _check_apart([p for other in self.param_groups for p in other["params"]] + params, what)
        self.param_groups.append(options)

    def check_options(self, options: dict[str, Any]) -> None:
        """Raises ValueError for options that make no sense; called for every group."""

    def update(self) -> None:
        """Update all parameters that have a gradient; what a subclass defines."""
        raise NotImplementedError(f"{type(self).__name__} defines no update()")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient; a closure is called first, with recording on, and its value returned."""
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        self.update()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Free the gradients (the pool keeps their memory for the next step), or set them to 0 in place."""
        freed = flag("zero_grad", "set_to_none", set_to_none)
        for group in self.param_groups:
            for p in group["params"]:
                if freed:
                    p.grad = None
                else:
                    zero_grad(p)

    def state_dict(self) -> dict[str, Any]:
        """Options and state, parameters by their number; `om.save` writes it. State tensors are shared, not copied."""
        number = {id(p): i for i, p in enumerate(p for group in self.param_groups for p in group["params"])}
        groups = [{**group, "params": [number[id(p)] for p in group["params"]]} for group in self.param_groups]
        return {"state": {number[id(p)]: dict(entry) for p, entry in self.state.items()}, "param_groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy options and state in; the groups must have as many parameters as here, of the same shapes. Checked before anything changes.

        The state of torch's optimiser of the same name is one, once its tensors are OneModel's: options that choose how torch computes (`foreach`,
        `fused`, `capturable`) and `param_names` are left out, `initial_lr` is what schedules scale.
        """
        what = f"{type(self).__name__}.load_state_dict"
        if not isinstance(state, dict) or set(state) != {"state", "param_groups"}:
            raise ValueError(f"{what}: expected 'state' and 'param_groups', as state_dict gives them")
        groups, entries = state["param_groups"], state["state"]
        if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
            raise TypeError(f"{what}: expected 'state' to be a dict of dicts, one for each parameter")
        if not isinstance(groups, list) or not all(isinstance(group, dict) and isinstance(group.get("params"), list) for group in groups):
            raise TypeError(f"{what}: expected 'param_groups' to be a list of dicts, each with a list 'params'")
        sizes, expected = [len(group["params"]) for group in groups], [len(group["params"]) for group in self.param_groups]
        if sizes != expected:
            raise ValueError(f"{what}: expected groups of {expected} parameters, got {sizes}")
        here = [p for group in self.param_groups for p in group["params"]]
        there = [number for group in groups for number in group["params"]]
        loaded: dict[Tensor, dict[str, Any]] = {}
        for p, number in zip(here, there, strict=True):
            for name, value in entries.get(number, {}).items():
                if value is not None and not isinstance(value, (Tensor, bool, int, float)):
                    raise TypeError(f"{what}: {name} of parameter {number}: expected a Tensor or a number, got {type(value).__name__}; "
                                    "make tensors with om.tensor or om.from_dlpack")
                if isinstance(value, Tensor) and value.ndim and value.shape != p.shape:
                    raise ValueError(f"{what}: {name} of parameter {number}: expected shape {p.shape}, got {value.shape}")
                loaded.setdefault(p, {})[name] = copy.deepcopy(value)
        options, rates = [], []
        for group, own in zip(groups, self.param_groups, strict=True):
            if "initial_lr" in group:
                first = {"initial_lr": group["initial_lr"]}
                check_numbers(what, first, "initial_lr")
                rates.append(first["initial_lr"])
            new = self._without_foreign(group, own, what)
            if set(new) != set(own):
                raise ValueError(f"{what}: expected the options {', '.join(own)}, got {', '.join(map(str, new))}")
            options.append({**new, "params": own["params"]})
            self.check_options(options[-1])
        for own, new in zip(self.param_groups, options, strict=True):
            own.update(new)
        if len(rates) == len(options):
            self.initial_lrs = rates
        self.state = loaded

    def _without_foreign(self, group: dict[str, Any], own: dict[str, Any], what: str) -> dict[str, Any]:
        """A group's options without those that only torch has; ValueError for one that would change the result."""
        for name, harmless in self.foreign.items():
            if name in group and name not in own and not any(group[name] is value for value in harmless):
                raise ValueError(f"{what}: {name}={group[name]!r} is torch's and has no meaning here; load a state with {name}={harmless[0]}")
        left_out = {*self.foreign, "param_names", "initial_lr"} - set(own)
        return {name: value for name, value in group.items() if name not in left_out}

    def __repr__(self) -> str:
        groups = "\n".join(f"  {len(group['params'])} parameters: " + ", ".join(f"{k}={v}" for k, v in group.items() if k != "params")
                           for group in self.param_groups)
        return f"{type(self).__name__}(\n{groups}\n)"
