"""Owns modules made of modules: Sequential and ModuleList. Must not contain a layer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

from onemodel.nn.activation import ReLU
from onemodel.nn.conv import Conv2d
from onemodel.nn.module import Module
from onemodel.nn.pooling import MaxPool1d, MaxPool2d
from onemodel.ops.conv_pool import conv_relu_pool2d


class _Numbered(Module):
    """Modules in order; those added without a name are called by their position."""

    def _enter(self, name: str, module: Any) -> None:
        if not isinstance(module, Module):
            raise TypeError(f"{type(self).__name__}: expected a Module, got {type(module).__name__}")
        setattr(self, name, module)

    def _items(self) -> list[tuple[str, Module]]:
        """Unlike named_children, with repetitions: the same module may stand in two places."""
        return [(name, value) for name, value in vars(self).items() if isinstance(value, Module)]

    def __len__(self) -> int:
        return len(self._items())

    def __iter__(self) -> Iterator[Module]:
        return iter([module for _, module in self._items()])

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)._of(self._items()[index])
        return self._items()[index][1]

    def __setitem__(self, index: int, module: Module) -> None:
        self._enter(self._items()[index][0], module)

    def append(self, module: Module) -> _Numbered:
        """Add a module at the end; returns the container."""
        self._enter(str(len(self)), module)
        return self

    @classmethod
    def _of(cls, items: list[tuple[str, Module]]) -> _Numbered:
        """A container of some of the items: what a slice gives; each kind names its modules in its own way."""
        raise NotImplementedError(f"{cls.__name__} defines no _of(items)")


# The forward of each kind as it was defined: one that was put in its place later is to be called.
_FORWARD = {kind: kind.forward for kind in (Conv2d, ReLU, MaxPool1d, MaxPool2d)}


def _plain(module: Module) -> bool:
    """Whether calling the module is its class's forward and nothing else."""
    return (not module._forward_hooks and not module._forward_pre_hooks and "forward" not in vars(module)
            and type(module).forward is _FORWARD[type(module)])  # type: ignore[index]  # fmt: skip


def _trade_places(before: Module, after: Module) -> bool:
    """Whether `before` may follow `after`. relu keeps the order of numbers, so the largest element of a window is the same one before and
    behind it, or the result is +0 and its gradient none: the same bits from a fraction of the elements. Not where a window may meet nothing but
    padding, as a dilated one can: its maximum is -inf, which relu would make 0."""
    return (type(before) is ReLU and type(after) in (MaxPool1d, MaxPool2d) and not after.return_indices  # type: ignore[attr-defined]
            and (after.padding in (0, (0,), (0, 0)) or after.dilation in (1, (1,), (1, 1)))  # type: ignore[attr-defined]
            and _plain(before) and _plain(after))  # fmt: skip


def _is_stage(modules: list[Module]) -> bool:
    return ([type(m) for m in modules] == [Conv2d, MaxPool2d, ReLU] and all(map(_plain, modules))
            and not modules[1].return_indices)  # type: ignore[attr-defined]  # fmt: skip


def _stage(conv: Module, x: Any, pool: Module) -> Any:
    """What the convolution, the pooling and a relu make of x, with the same bits."""
    return conv_relu_pool2d(x, conv.weight, conv.bias, conv.stride, conv.padding, conv.dilation, conv.groups,  # type: ignore[attr-defined]
                            pool.kernel_size, pool.stride, pool.padding, pool.dilation, pool.ceil_mode)  # type: ignore[attr-defined]


class Sequential(_Numbered):
    """Modules called one after the other, each with the result of the one before; an OrderedDict gives them names.

    A Conv2d, ReLU and MaxPool2d that follow each other run as one operator, `conv_relu_pool2d`, and any other ReLU directly before a max pooling
    is applied to what the pooling leaves: the same bits of values and gradients (but for the order in which fast mode sums a bias's gradient).
    Modules with hooks, of a subclass, or with a forward that was replaced, and poolings whose windows may meet nothing but padding, run as they
    stand. Errors name the operator that ran.
    """

    def __init__(self, *modules: Module | OrderedDict[str, Module]) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], dict):
            for name, module in modules[0].items():
                self._enter(name, module)
        else:
            for position, given in enumerate(modules):
                self._enter(str(position), given)

    @classmethod
    def _of(cls, items: list[tuple[str, Module]]) -> Sequential:
        return cls(OrderedDict(items))

    def forward(self, x: Any) -> Any:
        modules = [value for value in vars(self).values() if isinstance(value, Module)]
        for i in range(len(modules) - 1):
            if _trade_places(modules[i], modules[i + 1]):
                modules[i], modules[i + 1] = modules[i + 1], modules[i]
        i = 0
        while i < len(modules):
            if type(modules[i]) is Conv2d and _is_stage(modules[i : i + 3]):
                x = _stage(modules[i], x, modules[i + 1])
                i += 3
            else:
                x = modules[i](x)
                i += 1
        return x


class ModuleList(_Numbered):
    """A list of modules, whose parameters belong to the model; it is not called itself."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.extend(modules)

    @classmethod
    def _of(cls, items: list[tuple[str, Module]]) -> ModuleList:
        return cls(module for _, module in items)

    def extend(self, modules: Iterable[Module]) -> ModuleList:
        """Add modules at the end; returns the list."""
        for module in modules:
            self.append(module)
        return self
