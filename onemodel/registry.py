"""The registry of operators: Op, the base of every operator class; its checks at import; and what follows from a class by itself.

A built-in operator class stands in its family file under `ops/` and has, in this order: docstring (formula, shapes, errors,
source), its compiled `kernel` or `forward` and `backward`, a float64 NumPy `reference`, `samples` and `error_samples`; beside it
stands the public function. Tests, documentation and the mirrored methods of Tensor read the registry: there is no second list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

from onemodel.apply import apply_op, rule_of
from onemodel.rules import Map, function_of
from onemodel.tensor import Rule, install_method, install_slot

OPS: dict[str, type[Op]] = {}
"""Every built-in operator by its name; `om.ops.OPS`."""

FUNCTIONS: dict[str, Callable] = {}
"""Every public function by its name (aliases too)."""

METHODS: dict[str, Callable] = {}
"""The methods of Tensor that mirror operators."""


class Sample(NamedTuple):
    """One call that tests make: `args` may hold `Input`s, which become tensors; `kwargs` are passed as they are.

    `tolerance` is the largest error against the float64 reference, in units of float32 epsilon of the largest value;
    `gradcheck` is False where the function has a kink or a pole at the inputs.
    """

    name: str
    args: tuple
    kwargs: dict = {}
    tolerance: float = 4.0
    gradcheck: bool = True


class Input(NamedTuple):
    """A test tensor: seeded values of a shape, evenly from low to high, or `data`; made in a memory layout.

    layout: "plain", "transposed" (dimensions reversed in memory), "strided" (every second element), "expanded" (first
    dimension stretched from 1), "flipped" (last dimension backwards), "lone" (sizes of 1 with a stride that means nothing).
    requires_grad: it is float32 and is differentiated.
    """

    shape: tuple = ()
    low: float = -2.0
    high: float = 2.0
    dtype: str = "float32"
    layout: str = "plain"
    data: Any = None
    requires_grad: bool = True


class ErrorSample(NamedTuple):
    """A call that must raise `error` with `message` in its text."""

    name: str
    args: tuple
    error: type[BaseException]
    message: str
    kwargs: dict = {}


class Op:
    """An operator: forward and backward, recorded by `apply`.

    A user's own operator is a subclass with static methods `forward(ctx, *args, **kwargs) -> Tensor` and
    `backward(ctx, g) -> gradient or tuple of gradients`, one per tensor argument in order (None where there is none). It runs
    by `MyOp.apply(...)`: with recording off inside, its result recorded, tied to the open scope, and checked by
    `om.training.gradient_check` as a built-in one.
    """

    name: ClassVar[str] = ""
    kernel: ClassVar[Rule | dict[Any, Rule] | None] = None
    differentiable: ClassVar[bool] = True
    _rule: ClassVar[Rule]
    why_not_differentiable: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.name = cls.__dict__.get("name", "") or cls.__name__
        cls._rule = rule_of(cls)

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any):
        """Run the operator and record it if recording is on and a tensor argument requires a gradient."""
        return apply_op(cls, args, kwargs)


REQUIRED = ("reference", "samples", "error_samples")


def register(cls: type[Op]) -> type[Op]:
    """Class decorator of built-in operators: checks that nothing is missing and enters the class in OPS."""
    name = snake(cls.__name__)
    missing = [part for part in REQUIRED if part not in cls.__dict__]
    if not (cls.__doc__ or "").strip():
        missing.append("a docstring")
    if cls.kernel is None and "forward" not in cls.__dict__:
        missing.append("forward (or kernel)")
    if cls.kernel is None and "backward" not in cls.__dict__ and not cls.why_not_differentiable:
        missing.append("backward (or kernel, or why_not_differentiable)")
    if missing:
        raise TypeError(f"operator {cls.__name__}: missing {', '.join(missing)}")
    if name in OPS:
        raise ValueError(f"operator {name}: the name is taken by {OPS[name].__module__}.{OPS[name].__name__}")
    cls.name = name
    cls.differentiable = not cls.why_not_differentiable
    cls._rule = rule_of(cls)
    cls._rule.builtin = True
    for rule in rules(cls):
        if isinstance(rule, Rule):
            rule.builtin = True
        if isinstance(rule, Map):
            rule.name = name
    OPS[name] = cls
    return cls


def rules(cls: type[Op]) -> Iterable[Any]:
    """The compiled rules of an operator class: none, one, or one per variant."""
    if cls.kernel is None:
        return ()
    return tuple(cls.kernel.values()) if isinstance(cls.kernel, dict) else (cls.kernel,)


def snake(name: str) -> str:
    """The operator's name from its class name: LogSoftmax -> log_softmax."""
    words: list[str] = []
    for letter in name:
        if letter.isupper() and words and (words[-1][-1:].islower() or words[-1][-1:].isdigit()):
            words.append("_")
        words.append(letter.lower())
    return "".join(words).rstrip("_")


def public(*names: str, op: type[Op] | None = None, method: bool | str = True, slot: str | None = None):
    """Decorator of an operator's public function: enters it under its own and further names and mirrors it as a method of Tensor.

    With `op` whose kernel is one Map, the decorated function only lends name, signature and docstring; the callable is C.
    `method` may be False or another name; `slot` names the special method of Tensor that runs it.
    """

    def enter(function: Callable) -> Callable:
        if op is not None and isinstance(op.kernel, Map):
            function = function_of(op.kernel, function)
        own = function.__name__.rstrip("_") if not names else names[0]
        for name in (own, *names[1:]):
            if name in FUNCTIONS:
                raise ValueError(f"public function {name}: the name is taken")
            FUNCTIONS[name] = function
        if method:
            for name in [method] if isinstance(method, str) else [own, *names[1:]]:
                METHODS[name] = function
                install_method(name, function)
        if slot:
            install_slot(slot, function)
        return function

    return enter

