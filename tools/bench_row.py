"""Owns what a row of the speed table is, and how rows are made of layers and functions. Must not contain a row, nor how time is measured."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Row:
    """One line of the table. `make(library)` gets `Ours` or `Torch` and returns what is timed, without arguments.

    target: least torch / onemodel in fast mode; exact: the same in exact mode; apart: most exact / fast. flops, copied or read: operations,
    bytes read and written, or bytes only read of one call that is bound by them, for the share of the machine's limit; limit: the least
    such share in fast mode.
    """

    name: str
    make: Callable
    target: float
    exact: float
    flops: float = 0.0
    copied: float = 0.0
    read: float = 0.0
    limit: float = 0.0
    apart: float = 0.0


def values(seed, *shape):
    return np.random.default_rng(seed).uniform(-1.0, 1.0, shape).astype(np.float32)


def training(model, inputs, loss):
    """A step with forward, backward and update; the three arguments are called with the library's layers, or tensor and its layers."""

    def build(lib):
        library, nn, optim = lib.libraries()
        x, wanted = (library.tensor(array) for array in inputs)
        net, criterion = model(nn), getattr(nn, loss)()
        optimizer = optim.SGD(net.parameters(), lr=0.01)

        def step():
            optimizer.zero_grad()
            criterion(net(x), wanted).backward()
            optimizer.step()

        return step

    return build


def there_and_back(function, inputs):
    """The forward pass of inputs that want no gradient, and the backward pass alone, as two functions of a library.

    function: called with the library, gives a function of its tensors; inputs: arrays, which all want a gradient in the backward pass.
    """

    def forward(lib):
        f, tensors = function(lib), [lib.tensor(array) for array in inputs]
        return lambda: f(*tensors)

    def backward(lib):
        f, tensors = function(lib), [lib.tensor(array).requires_grad_() for array in inputs]
        y = f(*tensors)
        g = lib.tensor(values(9, *y.shape))

        def run():
            y.backward(g, retain_graph=True)
            for t in tensors:
                t.grad = None  # or the next run would add to it

        return run

    return ("forward", forward), ("backward", backward)


def forth_and_back(function, *shapes):
    """The forward and the backward pass in one call, as a function of a library.

    function: called with the library, gives a function of its tensors, perhaps with `parameters`; all inputs want a gradient.
    """

    def build(lib):
        f, tensors = function(lib), [lib.tensor(values(1 + i, *shape)).requires_grad_() for i, shape in enumerate(shapes)]
        wanted = [*tensors, *(f.parameters() if hasattr(f, "parameters") else ())]
        g = lib.tensor(values(9, *first(f(*tensors)).shape))

        def run():
            first(f(*tensors)).backward(g)
            for t in wanted:
                t.grad = None  # or the next run would add to it

        return run

    return build


def first(result):
    return result[0] if isinstance(result, tuple) else result
