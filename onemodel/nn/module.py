"""Owns Parameter and Module, what every layer is made of: names, states, modes and hooks. Must not contain a layer or arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from onemodel.arguments import flag
from onemodel.arrays import as_leaf
from onemodel.inplace import check_copy
from onemodel.methods import zero_grad
from onemodel.modes import no_grad
from onemodel.tensor import Tensor


class Parameter(Tensor):
    """A tensor that a Module lists among its parameters: a leaf that requires a gradient.

    It shares the memory of `data`, except memory that an open ActivationScope will take back, which is copied.
    """

    __slots__ = ()

    def __new__(cls, data: Tensor, requires_grad: bool = True) -> Parameter:
        if not isinstance(data, Tensor):
            raise TypeError(f"Parameter: expected a Tensor, got {type(data).__name__}; wrap data with om.tensor(...)")
        return as_leaf(cls, data, flag("Parameter", "requires_grad", requires_grad))

    def __init__(self, data: Tensor, requires_grad: bool = True) -> None:
        pass  # Tensor's own refuses to be called; the work is done in __new__

    def __reduce_ex__(self, protocol: Any) -> tuple:
        return _parameter, (self.detach(), self.requires_grad)

    def __deepcopy__(self, memo: dict) -> Parameter:
        copy = memo[id(self)] = Parameter(self.detach().__deepcopy__({}), self.requires_grad)
        if self.grad is not None:
            copy.grad = self.grad.__deepcopy__({})
        return copy

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


def _parameter(data: Tensor, requires_grad: bool) -> Parameter:
    """What a pickle calls."""
    return Parameter(data, requires_grad)


class IncompatibleKeys(NamedTuple):
    """What `load_state_dict(strict=False)` did not find here or there."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Handle:
    """What registering a hook returns; `remove()` takes the hook off again."""

    def __init__(self, hooks: dict[int, Callable]) -> None:
        self._hooks, self._key = hooks, max(hooks, default=-1) + 1

    def remove(self) -> None:
        self._hooks.pop(self._key, None)


class Module:
    """The base of layers and models: a subclass calls `super().__init__()`, sets Parameters and Modules as attributes and defines
    `forward`; calling the module runs it.

    The attributes themselves are the register: what is a Parameter, a Module or a registered buffer is found by looking at them.
    """

    training: bool
    _buffers: set[str]
    _forward_hooks: dict[int, Callable]
    _forward_pre_hooks: dict[int, Callable]

    def __init__(self) -> None:
        vars(self).update(training=True, _buffers=set(), _forward_hooks={}, _forward_pre_hooks={})

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} defines no forward(self, ...)")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._forward_hooks and not self._forward_pre_hooks:
            return self.forward(*args, **kwargs)
        for hook in tuple(self._forward_pre_hooks.values()):
            changed = hook(self, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
        result = self.forward(*args, **kwargs)
        for hook in tuple(self._forward_hooks.values()):
            changed = hook(self, args, result)
            if changed is not None:
                result = changed
        return result

    # -- attributes --

    def __setattr__(self, name: str, value: Any) -> None:
        attributes, what = vars(self), type(self).__name__
        if "_buffers" not in attributes:
            raise AttributeError(f"{what}: call super().__init__() before setting {name!r}")
        if isinstance(value, (Parameter, Module)) or name in self._buffers:
            if "." in name or not name:
                raise ValueError(f"{what}: the name {name!r} must not be empty or hold a dot: names are joined with dots in state_dict")
            if hasattr(type(self), name) or name in Module.__annotations__:
                raise AttributeError(f"{what}: {name!r} is a method or property of the class; give the attribute another name")
        old = attributes.get(name)
        if name in self._buffers and value is not None and (not isinstance(value, Tensor) or isinstance(value, Parameter)):
            raise TypeError(f"{what}: {name!r} is a buffer: expected a Tensor or None, got {type(value).__name__}")
        if isinstance(old, Parameter) and not (value is None or isinstance(value, Parameter)):
            raise TypeError(f"{what}: {name!r} is a Parameter: expected a Parameter or None, got {type(value).__name__}; "
                            "to change its values use copy_ under om.no_grad()")
        if isinstance(old, Module) and not (value is None or isinstance(value, Module)):
            raise TypeError(f"{what}: {name!r} is a Module: expected a Module or None, got {type(value).__name__}")
        attributes[name] = value

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        self._buffers.discard(name)

    def register_buffer(self, name: str, tensor: Tensor | None) -> None:
        """Make a tensor that is no parameter (running statistics, constants) part of the state."""
        if name in vars(self):
            raise AttributeError(f"{type(self).__name__}: the attribute {name!r} exists already")
        self._buffers.add(name)
        try:
            setattr(self, name, tensor)
        except BaseException:
            self._buffers.discard(name)
            raise

    def extra_repr(self) -> str:
        """What stands between the parentheses of the repr."""
        return ""

    def __repr__(self) -> str:
        lines = [f"  ({name}): {child!r}".replace("\n", "\n  ") for name, child in self.named_children()]
        inside = "\n".join([self.extra_repr(), *lines, ""]) if lines else self.extra_repr()
        return f"{type(self).__name__}({inside})"

    # -- what it holds --

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules that are attributes, each once, with their names."""
        seen = set()
        for name, value in list(vars(self).items()):
            if isinstance(value, Module) and id(value) not in seen:
                seen.add(id(value))
                yield name, value

    def children(self) -> Iterator[Module]:
        return (child for _, child in self.named_children())

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all below it, each once, parents first, with dotted names."""
        seen = set()
        for name, module in self._walk(prefix):
            if id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def modules(self) -> Iterator[Module]:
        return (module for _, module in self.named_modules())

    def _walk(self, prefix: str, above: tuple[Module, ...] = ()) -> Iterator[tuple[str, Module]]:
        """This module and all below it, under every name they have."""
        if any(self is module for module in above):
            raise RuntimeError(f"{type(self).__name__}: the module contains itself, as {prefix!r}")
        yield prefix, self
        for name, value in list(vars(self).items()):
            if isinstance(value, Module):
                yield from value._walk(f"{prefix}.{name}" if prefix else name, (*above, self))

    def _tensors(self, prefix: str, buffers: bool) -> Iterator[tuple[str, Tensor]]:
        """Parameters, and buffers if asked for, under every name they have; a module's own before those below it."""
        for path, module in self._walk(prefix):
            start = path + "." if path else ""
            for name, value in list(vars(module).items()):
                if isinstance(value, Parameter):
                    yield start + name, value
            if buffers:
                yield from ((start + name, value) for name, value in list(vars(module).items()) if name in module._buffers and value is not None)

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Parameters of this module and all below it, each once, with dotted names."""
        seen = set()
        for name, value in self._tensors(prefix, buffers=False):
            if id(value) not in seen:
                seen.add(id(value))
                yield name, value  # type: ignore[misc]

    def parameters(self) -> Iterator[Parameter]:
        return (parameter for _, parameter in self.named_parameters())

    def buffers(self) -> Iterator[Tensor]:
        """Registered buffers of this module and all below it."""
        return (value for _, value in self._tensors("", buffers=True) if not isinstance(value, Parameter))

    # -- state --

    def state_dict(self, prefix: str = "") -> dict[str, Tensor]:
        """Dotted name -> tensor, sharing the memory of parameters and buffers; `om.save` writes it."""
        return {prefix + name: value.detach() for name, value in self._tensors("", buffers=True)}

    def load_state_dict(self, state: Mapping[str, Tensor], strict: bool = True) -> IncompatibleKeys:
        """Copy values in by name. All is checked before anything is written.

        RuntimeError lists what is missing, unexpected (both allowed with strict=False), of another shape or of another type.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"load_state_dict: expected a dict of tensors, got {type(state).__name__}")
        strict = flag("load_state_dict", "strict", strict)
        own = dict(self._tensors("", buffers=True))
        missing = [name for name in own if name not in state]
        unexpected = [name for name in state if name not in own]
        faults = []
        if strict and missing:
            faults.append(f"missing: {', '.join(missing)}")
        if strict and unexpected:
            faults.append(f"unexpected: {', '.join(map(str, unexpected))}")
        for name, target in own.items():
            source = state.get(name)
            if name not in state:
                continue
            if not isinstance(source, Tensor):
                raise TypeError(f"load_state_dict: {name}: expected a Tensor, got {type(source).__name__}; wrap it with om.tensor(...)")
            if source.shape != target.shape:
                faults.append(f"{name}: expected shape {target.shape}, got {source.shape}")
            elif source.dtype != target.dtype:
                faults.append(f"{name}: expected {target.dtype}, got {source.dtype}")
        if faults:
            raise RuntimeError(f"load_state_dict of {type(self).__name__}:\n  " + "\n  ".join(faults))
        with no_grad():
            known = [(name, target) for name, target in own.items() if name in state]
            for name, target in known:
                check_copy(target, state[name], f"load_state_dict: {name}")
            for name, target in known:
                target.copy_(state[name])
        return IncompatibleKeys(missing, unexpected)

    def train(self, mode: bool = True) -> Module:
        """Set this module and all below it to training (or, with False, to evaluation); returns the module."""
        training = flag("train", "mode", mode)
        for module in self.modules():
            module.training = training
        return self

    def eval(self) -> Module:
        return self.train(False)

    def apply(self, function: Callable[[Module], Any]) -> Module:
        """Call a function on every module below this one and then on this one; returns the module."""
        for child in self.children():
            child.apply(function)
        function(self)
        return self

    def requires_grad_(self, value: bool = True) -> Module:
        """Let all parameters collect gradients, or freeze them; returns the module."""
        wanted = flag("requires_grad_", "value", value)
        for parameter in self.parameters():
            parameter.requires_grad_(wanted)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Free the gradients of all parameters, or set them to 0 in place."""
        freed = flag("zero_grad", "set_to_none", set_to_none)
        for parameter in self.parameters():
            if freed:
                parameter.grad = None
            else:
                zero_grad(parameter)

    # -- hooks --

    def register_forward_pre_hook(self, hook: Callable[[Module, tuple], Any]) -> Handle:
        """Call `hook(module, args)` before forward; what it returns, unless None, replaces the arguments."""
        return self._hooked(self._forward_pre_hooks, hook)

    def register_forward_hook(self, hook: Callable[[Module, tuple, Any], Any]) -> Handle:
        """Call `hook(module, args, result)` after forward; what it returns, unless None, replaces the result."""
        return self._hooked(self._forward_hooks, hook)

    @staticmethod
    def _hooked(hooks: dict[int, Callable], hook: Callable) -> Handle:
        handle = Handle(hooks)
        hooks[handle._key] = hook
        return handle
