"""Owns data sets and the loader of batches, whose place in an epoch can be saved and resumed. Must not contain augmentation or file formats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from onemodel.arguments import flag, integer
from onemodel.making import tensor
from onemodel.ops.join import stack
from onemodel.random import Generator, default_generator, randint, randperm
from onemodel.tensor import Tensor


class TensorDataset:
    """Tensors of one length; item i holds element i of each."""

    def __init__(self, *tensors: Tensor) -> None:
        if not tensors:
            raise ValueError("TensorDataset: expected at least one tensor")
        for t in tensors:
            if not isinstance(t, Tensor):
                raise TypeError(f"TensorDataset: expected tensors, got {type(t).__name__}; wrap arrays with om.tensor or om.from_numpy")
        for t in tensors:
            if t.ndim == 0 or len(t) != len(tensors[0]):
                raise ValueError(f"TensorDataset: expected tensors of one length, got shapes {', '.join(str(t.shape) for t in tensors)}")
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        """An element of each tensor, or several for a slice or an integer tensor."""
        return tuple(t[index] for t in self.tensors)


def _collated(samples: list) -> Any:
    """Samples as one batch: tensors stacked, numbers in a tensor, tuples and lists item by item."""
    first = samples[0]
    if isinstance(first, Tensor):
        return stack(samples)
    if isinstance(first, (bool, int, float, np.ndarray, np.generic)):
        return tensor(np.stack([np.asarray(sample) for sample in samples]))
    if isinstance(first, (tuple, list)):
        if len({len(sample) for sample in samples}) != 1:
            raise ValueError("DataLoader: the samples of a batch have different lengths")
        return tuple(_collated(list(items)) for items in zip(*samples, strict=True))
    raise TypeError(f"DataLoader: a sample must be a tensor, number, array or a tuple of them, got {type(first).__name__}")


class DataLoader:
    """Batches of a data set (anything with `len` and `[i]`), in order or newly shuffled in each epoch.

    The order depends on `generator` alone; without one the loader seeds its own from the default generator. `state_dict()`
    holds the place after the last batch handed out: a loader that loads it goes on with the next one, in the same order.
    """

    def __init__(self, dataset: Any, batch_size: int = 1, shuffle: bool = False, generator: Generator | None = None, drop_last: bool = False) -> None:
        batch_size = integer("DataLoader", "batch_size", batch_size, 1)
        shuffle, drop_last = flag("DataLoader", "shuffle", shuffle), flag("DataLoader", "drop_last", drop_last)
        if generator is not None and not isinstance(generator, Generator):
            raise TypeError(f"DataLoader: generator must be an om.Generator, got {type(generator).__name__}")
        if shuffle and generator is None:
            generator = Generator(int(randint(2**62, (), generator=default_generator)))
        self.dataset, self.batch_size, self.shuffle, self.generator, self.drop_last = dataset, batch_size, shuffle, generator, drop_last
        self._epoch_start: Tensor | None = None  # the generator's state before the order of this epoch was drawn
        self._position = 0                       # batches of this epoch that were handed out
        self._resume = False

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self.dataset) // self.batch_size if self.drop_last else -(-len(self.dataset) // self.batch_size)

    def __iter__(self) -> Iterator:
        if not self._resume:
            self._position = 0
            self._epoch_start = self.generator.get_state() if self.shuffle and self.generator is not None else None
            order = randperm(len(self.dataset), generator=self.generator) if self.shuffle else None
        else:
            order = None
            if self._epoch_start is not None:
                past = Generator()
                past.set_state(self._epoch_start)
                order = randperm(len(self.dataset), generator=past)
        self._resume = False
        return self._batches(order, self._position)

    def _batches(self, order: Tensor | None, position: int) -> Iterator:
        for i in range(position, len(self)):
            start = i * self.batch_size
            self._position = i + 1
            if isinstance(self.dataset, TensorDataset):
                here = slice(start, min(start + self.batch_size, len(self.dataset)))
                yield self.dataset[here if order is None else order[here]]
            else:
                end = min(start + self.batch_size, len(self.dataset))
                yield _collated([self.dataset[j] for j in (range(start, end) if order is None else order[start:end].tolist())])
        self._epoch_start, self._position = None, 0

    def state_dict(self) -> dict[str, Any]:
        """The place in the epoch and the generator's state; `om.save` writes it."""
        return {"position": self._position, "length": len(self.dataset), "batch_size": self.batch_size, "epoch_start": self._epoch_start,
                "generator": None if self.generator is None else self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken: the next iteration yields the rest of that epoch. Sets the generator's state too."""
        expected = self.state_dict()
        if not isinstance(state, dict) or set(state) != set(expected):
            got = ", ".join(map(str, state)) if isinstance(state, dict) else type(state).__name__
            raise ValueError(f"DataLoader.load_state_dict: expected the keys {', '.join(expected)}, got {got}")
        for name in ("length", "batch_size"):
            if state[name] != expected[name]:
                raise ValueError(f"DataLoader.load_state_dict: the state has {name} {state[name]}, this loader {expected[name]}")
        if (state["generator"] is None) != (self.generator is None):
            raise ValueError("DataLoader.load_state_dict: one of state and loader shuffles, the other does not; give the loader the same options")
        position = state["position"]
        if type(position) is not int or not 0 <= position <= len(self):
            raise ValueError(f"DataLoader.load_state_dict: position must be an int of 0 to {len(self)}, got {position!r}")
        if position and (state["epoch_start"] is None) == self.shuffle:
            raise ValueError("DataLoader.load_state_dict: epoch_start must be there exactly where a shuffled epoch was interrupted")
        if state["epoch_start"] is not None:
            Generator().set_state(state["epoch_start"])  # raises for what is no state
        if self.generator is not None:
            self.generator.set_state(state["generator"])
        self._epoch_start, self._position, self._resume = state["epoch_start"], position, position > 0
