"""Owns the recurrent layers LSTM and GRU: torch's parameters, options and first values. Must not contain a step, nor how layers are put together,
which is `onemodel.lstm` and `onemodel.gru`."""

from __future__ import annotations

import math
import warnings
from typing import Any

from onemodel.errors import ShapeError
from onemodel.nn.linear import _uniform
from onemodel.nn.module import Module, Parameter
from onemodel.ops.parameters import LARGEST_SIZE, flag, integer, real
from onemodel.ops.rnn import gru, lstm
from onemodel.tensor import Tensor


class _Recurrent(Module):
    """Weights of each layer k and direction, named and ordered as torch's: weight_ih_lk [gates·hidden, inputs], weight_hh_lk [gates·hidden, hidden],
    bias_ih_lk and bias_hh_lk [gates·hidden], then the same with _reverse; all start uniform in ±1/√hidden."""

    _gates = 0

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False, dropout: float = 0.0,
                 bidirectional: bool = False) -> None:
        super().__init__()
        name = type(self).__name__
        self.input_size = integer(name, "input_size", input_size, 1, LARGEST_SIZE)
        self.hidden_size = integer(name, "hidden_size", hidden_size, 1, LARGEST_SIZE)
        self.num_layers = integer(name, "num_layers", num_layers, 1, LARGEST_SIZE)
        self.bias, self.batch_first = flag(name, "bias", bias), flag(name, "batch_first", batch_first)
        self.dropout = real(name, "dropout", dropout, "from 0 to 1", 0.0, 1.0)
        self.bidirectional = flag(name, "bidirectional", bidirectional)
        if self.dropout and self.num_layers == 1:
            warnings.warn(f"{name}: dropout stands between layers, and there is one only; num_layers=1, dropout={self.dropout}", stacklevel=3)
        rows, bound = self._gates * self.hidden_size, 1 / math.sqrt(self.hidden_size)
        self._names: list[str] = []
        for layer in range(self.num_layers):
            inputs = self.hidden_size * (1 + self.bidirectional) if layer else self.input_size
            for end in (f"_l{layer}", f"_l{layer}_reverse")[: 1 + self.bidirectional]:
                shapes = {"weight_ih": (rows, inputs), "weight_hh": (rows, self.hidden_size), "bias_ih": (rows,), "bias_hh": (rows,)}
                for part, shape in list(shapes.items())[: 4 if self.bias else 2]:
                    self._names.append(part + end)
                    setattr(self, part + end, _uniform(shape, bound))

    def _weights(self) -> list[Parameter]:
        return [getattr(self, name) for name in self._names]

    def _checked(self, x: Any) -> Tensor:
        name = type(self).__name__
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: expected a Tensor, got {type(x).__name__}; wrap it with om.tensor(...)")
        if x.ndim not in (2, 3) or x.shape[-1] != self.input_size:
            raise ShapeError(f"{name}: expected an input of {'[batch, steps' if self.batch_first else '[steps, batch'}, {self.input_size}], or "
                             f"[steps, {self.input_size}] without a batch, got shape {x.shape}")
        return x

    def extra_repr(self) -> str:
        parts = [f"{self.input_size}, {self.hidden_size}"]
        plain = {"num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0, "bidirectional": False}
        return ", ".join(parts + [f"{name}={getattr(self, name)}" for name, value in plain.items() if getattr(self, name) != value])


class LSTM(_Recurrent):
    """(y, (h_n, c_n)) of a long short-term memory of several layers (Hochreiter and Schmidhuber 1997), gates stacked i, f, g, o.

    x [steps, batch, inputs] ([batch, steps, inputs] with batch_first), or [steps, inputs] without a batch; hx None or (h0, c0), each
    [layers·directions, batch, hidden] whatever batch_first is. Dropout stands between layers, in training. proj_size must be 0.
    """

    _gates = 4

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False, dropout: float = 0.0,
                 bidirectional: bool = False, proj_size: int = 0) -> None:
        if integer("LSTM", "proj_size", proj_size, 0, LARGEST_SIZE) != 0:
            raise ValueError(f"LSTM: proj_size must be 0, got {proj_size}: projected states are not there; put a Linear behind the layer")
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)

    def forward(self, x: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        return lstm(self._checked(x), hx, self._weights(), self.bias, self.num_layers, self.dropout, self.training, self.bidirectional,
                    self.batch_first)


class GRU(_Recurrent):
    """(y, h_n) of gated recurrent units of several layers (Cho et al. 2014), gates stacked r, z, n; shapes and options as LSTM's; hx None or h0."""

    _gates = 3

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False, dropout: float = 0.0,
                 bidirectional: bool = False) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)

    def forward(self, x: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return gru(self._checked(x), hx, self._weights(), self.bias, self.num_layers, self.dropout, self.training, self.bidirectional,
                   self.batch_first)
