"""Owns the checks of numbers and tensors that operators take beside their input. Must not name an operator."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onemodel.arguments import flag, index_of, integer, integers
from onemodel.tensor import Tensor

__all__ = ["LARGEST", "LARGEST_SIZE", "flag", "floats", "index_of", "integer", "integers", "real"]

LARGEST_SIZE = 2**59 - 1  # of a dimension: its bytes still fit 64 bits
LARGEST = 3.4028235677973366e38  # from here on a number rounds to infinity in float32


def real(op: str, name: str, value: Any, expected: str = "a finite number", low: float = -math.inf, high: float = math.inf, above: bool = False,
         finite: bool = True) -> float:
    """A Python or NumPy number from low (or above it) to high that float32 holds, as a float; `expected` says so in the error."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{op}: {name} must be a number, got {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    if math.isnan(number) or (finite and abs(number) >= LARGEST) or not low <= number <= high or (above and number <= low):
        raise ValueError(f"{op}: {name} must be {expected}, got {_short(value)}")
    return number


def _short(value: Any) -> str:
    """A number without the digits that nobody reads (and that Python refuses to write beyond some thousands)."""
    if isinstance(value, int) and abs(value) >= 1 << 128:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)


def floats(op: str, **tensors: Any) -> None:
    """TypeError unless all are float32 tensors."""
    for name, t in tensors.items():
        if not isinstance(t, Tensor):
            raise TypeError(f"{op}: {name} must be a Tensor, got {type(t).__name__}; wrap it with om.tensor(...)")
        if t.dtype != np.float32:
            raise TypeError(f"{op}: {name} must be float32, got {t.dtype}; write .cast(om.float32)")
