"""Owns gradient_check: analytic gradients of any function against central float32 differences. Must not know an operator by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onemodel.arrays import array_view
from onemodel.autograd import grad
from onemodel.making import from_numpy, tensor
from onemodel.modes import no_grad
from onemodel.registry import Op
from onemodel.samples import outputs, weights
from onemodel.tensor import Tensor

EPS = 2.0**-23
STEP = 2.0**-6        # truncation (extrapolated: of order h⁴) and float32 rounding (of order ε/h) are both near 1e-5 here
TOLERANCE = 5e-4      # finds a gradient that is off by 0.1 %


class GradientCheckError(AssertionError):
    """An analytic gradient differs from the measured slope; the text names input, element and both values."""


@dataclass(frozen=True)
class GradientError:
    """The worst element of one input: `error` is |analytic - measured| over the largest slope of that input, `rounding` the part of
    it that float32 results alone can make."""

    input: int
    element: tuple[int, ...]
    analytic: float
    measured: float
    error: float
    rounding: float

    def __str__(self) -> str:
        return f"input {self.input}, element {self.element}: gradient {self.analytic:.8g}, measured slope {self.measured:.8g}, error {self.error:.2e}"


@dataclass(frozen=True)
class GradientReport:
    """What gradient_check found: one row per input that was checked."""

    name: str
    worst: tuple[GradientError, ...]

    @property
    def error(self) -> float:
        """The largest error of all inputs."""
        return max((row.error for row in self.worst), default=0.0)

    def __str__(self) -> str:
        return "\n".join([f"{self.name}: worst error {self.error:.2e}", *(f"  {row}" for row in self.worst)])


def gradient_check(fn: Callable[..., Any] | type[Op], inputs: Sequence[Any], *, tolerance: float = TOLERANCE, step: float = STEP,
                   max_elements: int = 256, name: str | None = None) -> GradientReport:
    """Compare the gradients of `fn(*inputs)` with central float32 differences of L = Σ W·fn(x), W fixed pseudo-random, L in double.

    fn: a function of tensors, or an `om.Op` subclass; it returns a tensor or a tuple of them and gives the same result each time.
    inputs: its arguments; the float32 tensors that require a gradient are checked (if none does, all float32 ones), at most
    `max_elements` of each, spread evenly. step: moves are step·max(1, |x|) and half of it, extrapolated; near a kink smaller ones are tried.
    Returns a GradientReport; raises GradientCheckError above `tolerance`. ONEMODEL_GRADCHECK_LOG names a file for the worst errors.
    """
    if isinstance(fn, type) and issubclass(fn, Op):
        name, fn = name or fn.name, fn.apply
    name = str(name or getattr(fn, "__name__", type(fn).__name__))
    leaves, arguments = _leaves(name, inputs)
    results = [y for y in outputs(fn(*arguments)) if y.dtype == np.float32]
    graded = [y for y in results if y.requires_grad]
    if not graded:
        raise ValueError(f"gradient_check: {name} returned nothing that depends on an input that requires a gradient")
    scale = [weights(y, number).astype(np.float64) for number, y in enumerate(results)]
    seeds = [from_numpy(w.astype(np.float32)) for w, y in zip(scale, results, strict=True) if y.requires_grad]
    gradients = grad(graded, [arguments[i] for i in leaves], seeds, allow_unused=True)

    def values(new: list[Any]) -> list[np.ndarray]:
        with no_grad():
            return [np.array(array_view(y, name)) for y in outputs(fn(*new)) if y.dtype == np.float32]

    base = values(arguments)
    if any(not np.array_equal(a, array_view(y, name), equal_nan=True) for a, y in zip(base, results, strict=True)):
        raise ValueError(f"gradient_check: {name} gave two results for the same inputs; fix its random state")
    worst = []
    for i, g in zip(leaves, gradients, strict=True):
        analytic = np.zeros(arguments[i].shape, np.float32) if g is None else array_view(g, name)
        worst.append(_worst(i, analytic, arguments, values, scale, base, step, max_elements))
    report = GradientReport(name, tuple(row for row in worst if row is not None))
    _log(report)
    if not all(row.error <= tolerance + row.rounding for row in report.worst):
        raise GradientCheckError(f"gradient_check of {report}\n  allowed: {tolerance:.1e}")
    return report


def _leaves(name: str, inputs: Sequence[Any]) -> tuple[list[int], list[Any]]:
    """Which arguments are checked, and the arguments with those as leaves of their own."""
    if isinstance(inputs, Tensor):
        raise TypeError("gradient_check: expected a sequence of inputs, got one Tensor; write [x]")
    floats = [i for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.dtype == np.float32]
    chosen = [i for i in floats if inputs[i].requires_grad] or floats
    if not chosen:
        raise ValueError(f"gradient_check: {name} has no float32 tensor among its inputs")
    # detach() keeps strides: a fault that only a strided input shows must show here.
    return chosen, [x.detach().requires_grad_() if i in chosen else x for i, x in enumerate(inputs)]


def _worst(i: int, analytic: np.ndarray, arguments: list[Any], values: Callable, scale: list[np.ndarray], base: list[np.ndarray],
           step: float, max_elements: int) -> GradientError | None:
    x = np.array(array_view(arguments[i], "gradient_check"))
    probed = np.arange(x.size)
    if x.size > max_elements:
        probed = np.unique(np.linspace(0, x.size - 1, max_elements).astype(np.int64))
    if not probed.size:
        return None

    def end(at: tuple, value: np.float32) -> list[np.ndarray]:
        moved = x.copy()
        moved[at] = value
        return values([tensor(moved) if k == i else a for k, a in enumerate(arguments)])

    def slope(at: tuple, h: float) -> tuple[float, float]:
        """The slope extrapolated from steps h and h/2, and how far the two agree."""
        pair = []
        for width in (h, h / 2):
            high, low = np.float32(x[at] + width * max(1, abs(x[at]))), np.float32(x[at] - width * max(1, abs(x[at])))
            # The difference element by element: outputs that did not move contribute exactly nothing.
            change = sum(float(np.sum(w * (a.astype(np.float64) - b))) for w, a, b in zip(scale, end(at, high), end(at, low), strict=True))
            pair.append(change / (float(high) - float(low)))
        return (4 * pair[1] - pair[0]) / 3, abs(pair[0] - pair[1])

    largest = max((float(np.abs(b[np.isfinite(b)]).max(initial=0)) for b in base), default=0.0)
    got = analytic.reshape(-1)[probed].astype(np.float64)
    measured, noise = np.empty(probed.size), np.empty(probed.size)
    for k, flat in enumerate(probed):
        at = np.unravel_index(flat, x.shape)
        measured[k], apart = slope(at, step)
        chosen = step
        if not apart <= 2e-4 * abs(measured[k]):
            # A kink within the step asks for a smaller one, a large result for a larger one; the one whose two slopes agree best counts.
            for h in (8 * step, step / 8, step / 64, step / 1024):
                other, distance = slope(at, h)
                if not apart <= distance:
                    measured[k], apart, chosen = other, distance, h
        # The results' own rounding: half a unit at either end, weights up to 1.5, and the extrapolation's factor of 3.
        noise[k] = 4 * EPS * largest / chosen
    size = max(float(np.abs(got).max()), float(np.abs(measured).max()), 1e-30)
    errors = np.abs(got - measured) / size
    errors[np.isnan(errors)] = np.inf
    k = int(np.argmax(errors - noise / size))
    element = tuple(int(n) for n in np.unravel_index(probed[k], x.shape))
    return GradientError(i, element, float(got[k]), float(measured[k]), float(errors[k]), float(noise[k] / size))


def _log(report: GradientReport) -> None:
    """Keep the worst error of each name in the file that ONEMODEL_GRADCHECK_LOG names; several processes may do so at once."""
    target = os.environ.get("ONEMODEL_GRADCHECK_LOG")
    if not target or not report.worst:
        return
    import fcntl

    path = Path(target)
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        rows = {line.split("\t")[0]: line.rstrip("\n") for line in file if "\t" in line}
        worst = max(report.worst, key=lambda row: row.error)
        old = rows.get(report.name)
        if old is None or float(old.split("\t")[1]) < worst.error:
            rows[report.name] = f"{report.name}\t{worst.error:.3e}\t{worst}"
        file.truncate(0)
        file.write("\n".join(rows[name] for name in sorted(rows)) + "\n")
