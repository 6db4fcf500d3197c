"""Owns how the registry's samples become calls: tensors in their layouts, outputs, gradients, digests. Must not contain a check.

The generic tests, `onemodel gradcheck` and `tools/pin_hashes.py` read the samples through this module, so that they all see
the same numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from onemodel.arrays import array_view
from onemodel.making import from_numpy, tensor
from onemodel.registry import FUNCTIONS, OPS, ErrorSample, Input, Op, Sample
from onemodel.tensor import Tensor

_GOLDEN = 0.6180339887498949  # shifts each input's grid by another fraction: no ties between inputs, no value on a kink


def cases() -> Iterator[tuple[str, Sample]]:
    """(operator, sample) for everything in the registry."""
    for name, op in OPS.items():
        for sample in samples_of(op):
            yield name, sample


def samples_of(op: type[Op]) -> list[Sample]:
    """The samples of an operator class."""
    return list(op.samples)  # type: ignore[attr-defined]


def _mixed(n: int, seed: int) -> np.ndarray:
    """n scattered 32-bit words. Not numpy.random: its streams may change with NumPy, and published digests must not."""
    x = np.arange(n, dtype=np.uint64) + np.uint64(seed * 1000003 + 1)
    for _ in range(2):
        x = ((x ^ (x >> np.uint64(16))) * np.uint64(0x45D9F3B)) & np.uint64(0xFFFFFFFF)
    return x ^ (x >> np.uint64(16))


def values(x: Input, number: int) -> np.ndarray:
    """The values of the `number`-th input of a call, C-contiguous: an even grid from low to high in a fixed random order."""
    dtype = np.dtype(x.dtype)
    if x.data is not None:
        return np.array(x.data, dtype).reshape(x.shape) if x.shape else np.array(x.data, dtype)
    shape = (1, *x.shape[1:]) if x.layout == "expanded" else x.shape
    n = int(np.prod(shape))
    grid: np.ndarray = x.low + (x.high - x.low) * ((np.arange(n) + (number + 1) * _GOLDEN % 1) / max(n, 1))
    grid = grid[np.argsort(_mixed(n, number), kind="stable")]
    if dtype.kind == "b":
        grid = grid > (x.low + x.high) / 2
    elif dtype.kind in "iu":
        info = np.iinfo(dtype)
        grid = np.clip(np.floor(grid), info.min, info.max)
    return np.array(np.broadcast_to(grid.astype(dtype).reshape(shape), x.shape))


def tensor_of(x: Input, number: int) -> Tensor:
    """The tensor of an input, in pooled memory with the layout's strides; a leaf."""
    array = values(x, number)
    if x.layout == "plain":
        t = tensor(array)
    elif x.layout == "transposed":
        t = tensor(array.T).T
    elif x.layout == "strided":
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        wide[..., ::2] = array
        t = tensor(wide)[..., ::2]
    elif x.layout == "expanded":
        t = tensor(array[:1]).expand(array.shape)  # type: ignore[attr-defined]
    elif x.layout == "lone":
        t = tensor(array.squeeze())
        for axis, size in enumerate(array.shape):
            if size == 1:  # such a dimension has the stride 1, whatever lies inside it
                t = t.unsqueeze(axis)  # type: ignore[attr-defined]
    elif x.layout == "flipped":
        t = tensor(array[..., ::-1]).flip(-1)  # type: ignore[attr-defined]
    else:
        raise ValueError(f"Input: layout must be plain, transposed, strided, expanded, lone or flipped, got {x.layout!r}")
    if x.requires_grad and array.dtype == np.float32:
        t.requires_grad_()
    return t


@dataclass
class Call:
    """One call of a public function: its arguments, and the tensors among them in order."""

    function: Callable
    args: tuple
    kwargs: dict
    tensors: list[Tensor]

    def __call__(self) -> Any:
        return self.function(*self.args, **self.kwargs)

    @property
    def leaves(self) -> list[Tensor]:
        return [t for t in self.tensors if t.requires_grad]


def _filled(value: Any, make: Callable[[Input], Any]) -> Any:
    if isinstance(value, Input):
        return make(value)
    if isinstance(value, (list, tuple)) and any(isinstance(v, Input) for v in value):
        return type(value)(_filled(v, make) for v in value)
    return value


def with_inputs(sample: Sample | ErrorSample, make: Callable[[Input, int], Any]) -> tuple[tuple, dict, list]:
    """args and kwargs with `make(input, number)` in the place of each Input, and the list of what was made."""
    made: list = []

    def fill(x: Input) -> Any:
        made.append(make(x, len(made)))
        return made[-1]

    args = tuple(_filled(a, fill) for a in sample.args)
    return args, {k: _filled(v, fill) for k, v in sample.kwargs.items()}, made


def call_of(name: str, sample: Sample | ErrorSample) -> Call:
    """A fresh call of the operator's public function."""
    return Call(FUNCTIONS[name], *with_inputs(sample, tensor_of))


def outputs(result: Any) -> list[Tensor]:
    """The tensors of a result: one, or those of a tuple, nested or not."""
    if isinstance(result, Tensor):
        return [result]
    return [t for part in result for t in outputs(part)]


def weights(like: Any, number: int = 0) -> np.ndarray:
    """W of L = Σ W·f(x): fixed pseudo-random float32 between 0.5 and 1.5 in size, of either sign, of the shape of `like`."""
    shape = np.shape(like) if not isinstance(like, Tensor) else like.shape
    bits = _mixed(int(np.prod(shape)), 100 + number)
    sizes = 0.5 + (bits >> 8) * 2.0**-24
    return np.where(bits & 1, -sizes, sizes).astype(np.float32).reshape(shape)


@dataclass(frozen=True)
class Run:
    """What one run of a sample gave, as bytes to compare and arrays to check."""

    results: list[np.ndarray]
    gradients: list[np.ndarray]
    result_digest: str
    gradient_digest: str


def _digest(tensors: list[Tensor]) -> str:
    return tensors[0].sha256() if len(tensors) == 1 else hashlib.sha256(" ".join(t.sha256() for t in tensors).encode()).hexdigest()


def run(name: str, sample: Sample) -> Run:
    """Forward and, where something is differentiable, backward with `weights` as the gradients of the results."""
    call = call_of(name, sample)
    results = outputs(call())
    graded = [y for y in results if y.requires_grad]
    gradients: list[Tensor] = []
    if graded:
        for number, y in enumerate(graded):
            y.backward(from_numpy(weights(y, number)), retain_graph=number + 1 < len(graded))
        gradients = [t.grad for t in call.leaves if t.grad is not None]
    return Run([np.array(array_view(y, name)) for y in results], [np.array(array_view(g, name)) for g in gradients],
               _digest(results), _digest(gradients) if gradients else "-")


def reference_of(name: str, sample: Sample) -> tuple[Callable[[list[np.ndarray]], list[np.ndarray]], list[np.ndarray]]:
    """The float64 reference as a function of the inputs' arrays, and the arrays of this sample (float32 values as float64)."""

    def array(x: Input, number: int) -> np.ndarray:
        a = values(x, number)
        return a.astype(np.float64) if a.dtype == np.float32 else a

    arrays = with_inputs(sample, array)[2]

    def reference(new: list[np.ndarray]) -> list[np.ndarray]:
        args, kwargs, _ = with_inputs(sample, lambda _, number: new[number])
        with np.errstate(all="ignore"):
            result = OPS[name].reference(*args, **kwargs)  # type: ignore[attr-defined]
        return [np.asarray(r) for r in result] if isinstance(result, tuple) else [np.asarray(result)]

    return reference, arrays


def function_of(name: str, sample: Sample) -> Callable[..., Any]:
    """The sample's call as a function of its tensors alone."""

    def call(*tensors: Any) -> Any:
        args, kwargs, _ = with_inputs(sample, lambda _, number: tensors[number])
        return FUNCTIONS[name](*args, **kwargs)

    return call
