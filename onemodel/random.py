"""Owns generators and random tensors; the Philox counter that they read is `_kernels/random.pyx`. Must not contain arithmetic on bits."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np

from onemodel._kernels import random as philox
from onemodel.arguments import flag, index_of, integer
from onemodel.arrays import array_view, code_of
from onemodel.arrays import empty as _empty
from onemodel.making import read_size
from onemodel.tensor import DTYPES, Tensor
from onemodel.views import cast

LARGEST = 2**64
STATE_BYTES = 16  # the seed and the place in its stream, 8 bytes each, least significant first


class Generator:
    """A stream of random numbers that its seed alone decides: the same bits on every machine, with any number of threads, in both modes.

    A stream is a sequence of 32-bit words, each a function of seed and place (Philox4x32-10, Salmon et al. 2011). A call takes the
    next words, as many as it needs, at once: several threads may share a generator.
    """

    def __init__(self, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self.manual_seed(seed)

    def manual_seed(self, seed: int) -> Generator:
        """Start the stream of a seed, -2⁶³ to 2⁶⁴ - 1 (a negative one is taken modulo 2⁶⁴); returns the generator."""
        seed = index_of("manual_seed", "seed", seed)
        if not -(LARGEST // 2) <= seed < LARGEST:
            raise ValueError(f"manual_seed: expected -2**63 to 2**64 - 1, got {seed}")
        with self._lock:
            self._seed, self._place = seed % LARGEST, 0
        return self

    def seed(self) -> int:
        """Start a stream that the operating system's entropy chooses; returns its seed."""
        seed = int.from_bytes(os.urandom(8), "little")
        self.manual_seed(seed)
        return seed

    def initial_seed(self) -> int:
        """The seed of the running stream."""
        return self._seed

    def get_state(self) -> Tensor:
        """Seed and place, as a uint8 tensor that `om.save` can write."""
        with self._lock:
            content = self._seed.to_bytes(8, "little") + self._place.to_bytes(8, "little")
        state = _empty((STATE_BYTES,), code_of(np.uint8))
        array_view(state, "get_state")[...] = np.frombuffer(content, np.uint8)
        return state

    def set_state(self, state: Tensor) -> Generator:
        """Go on from what `get_state` gave; returns the generator."""
        if not isinstance(state, Tensor) or state.dtype != np.uint8 or state.shape != (STATE_BYTES,):
            what = f"{state.dtype} of shape {state.shape}" if isinstance(state, Tensor) else type(state).__name__
            raise ValueError(f"set_state: expected the uint8 tensor of {STATE_BYTES} elements that get_state gives, got {what}")
        content = array_view(state, "set_state").tobytes()
        with self._lock:
            self._seed, self._place = int.from_bytes(content[:8], "little"), int.from_bytes(content[8:], "little")
        return self

    def take(self, words: int, even: bool = False) -> tuple[int, int]:
        """The seed and the first of `words` places that no other call gets; `even`: it begins and ends between pairs of words."""
        with self._lock:
            place = self._place + (self._place & 1 if even else 0)
            self._place = (place + words + (words & 1 if even else 0)) % LARGEST
            return self._seed, place

    def __repr__(self) -> str:
        return f"Generator(seed={self._seed}, place={self._place})"

    def __reduce__(self) -> tuple:
        return _generator, (self._seed, self._place)


def _generator(seed: int, place: int) -> Generator:
    """What a pickle and a deep copy call."""
    made = Generator(seed)
    made._place = place
    return made


default_generator = Generator(0)
"""What `rand` and its like, and the first values of layers, use when no generator is given. It starts with seed 0 in every process."""


def _unlock() -> None:
    """In a forked child the thread that held the lock does not exist."""
    default_generator._lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)


def manual_seed(seed: int) -> Generator:
    """Start the default generator's stream of a seed; returns that generator."""
    return default_generator.manual_seed(seed)


def stream(generator: Generator | None, op: str) -> Generator:
    """The generator that an operator uses when it is given this one."""
    if generator is None:
        return default_generator
    if not isinstance(generator, Generator):
        raise TypeError(f"{op}: generator must be an om.Generator, got {type(generator).__name__}")
    return generator


def _float32(dtype: Any, op: str) -> int:
    code = code_of(dtype, op)
    if code != 0:
        raise TypeError(f"{op}: random numbers of this kind are float32, not {DTYPES[code]}; write .cast(om.{DTYPES[code]})")
    return code


def rand(*size: Any, generator: Generator | None = None, dtype: Any = np.float32, requires_grad: bool = False) -> Tensor:
    """Numbers evenly from [0, 1), multiples of 2⁻²⁴; one word each."""
    wanted = flag("rand", "requires_grad", requires_grad)
    result = _empty(read_size(size, "rand"), _float32(dtype, "rand"))
    array = array_view(result, "rand")
    philox.uniform(*stream(generator, "rand").take(array.size), array)
    return result.requires_grad_() if wanted else result


def randn(*size: Any, generator: Generator | None = None, dtype: Any = np.float32, requires_grad: bool = False) -> Tensor:
    """Normally distributed numbers with mean 0 and variance 1 (Box and Muller 1958): two words for two numbers."""
    wanted = flag("randn", "requires_grad", requires_grad)
    result = _empty(read_size(size, "randn"), _float32(dtype, "randn"))
    array = array_view(result, "randn")
    philox.normal(*stream(generator, "randn").take(array.size, even=True), array)
    return result.requires_grad_() if wanted else result


def randint(low: int, high: Any = None, size: Any = None, *, generator: Generator | None = None, dtype: Any = np.int64) -> Tensor:
    """Integers evenly from low (0 if it is left out) to high - 1: `randint(high, size)` or `randint(low, high, size)`; two words each."""
    if size is None:
        low, high, size = 0, low, high
    low, high = index_of("randint", "low", low), index_of("randint", "high", high)
    if size is None:
        raise TypeError("randint: size is missing; () gives one number")
    code = code_of(dtype, "randint")
    if DTYPES[code].kind not in "iu":
        raise TypeError(f"randint: expected an integer type, got {DTYPES[code]}; write .cast(om.{DTYPES[code]})")
    limits = np.iinfo(DTYPES[code])
    if not limits.min <= low < high <= min(limits.max + 1, 2**63 - 1):
        raise ValueError(f"randint: expected low < high within {DTYPES[code]}, got {low} and {high}")
    result = _empty(read_size((size,), "randint"), code_of(np.int64))
    array = array_view(result, "randint")
    philox.integers(*stream(generator, "randint").take(2 * array.size), low, high, array)
    return result if result.dtype == DTYPES[code] else cast(result, DTYPES[code])


def randperm(n: int, *, generator: Generator | None = None) -> Tensor:
    """The integers 0 to n - 1 in random order (Fisher and Yates); two words each."""
    result = _empty((integer("randperm", "n", n, 0),), code_of(np.int64))
    array = array_view(result, "randperm")
    philox.permutation(*stream(generator, "randperm").take(2 * array.size), array)
    return result
