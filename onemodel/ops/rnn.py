"""Recurrent networks of several layers and both directions: lstm and gru, composed of the layer operators. Must not contain an operator class."""

from __future__ import annotations

from onemodel.arrays import require
from onemodel.errors import ShapeError
from onemodel.ops import recurrent
from onemodel.ops.dropout import dropout as drop
from onemodel.ops.join import cat, split, stack
from onemodel.ops.parameters import flag, integer, real
from onemodel.registry import public
from onemodel.tensor import Tensor


def _groups(op: str, params, has_biases: bool, count: int) -> list[tuple]:
    """The weights of each layer and direction: w_ih, w_hh, b_ih, b_hh."""
    if not isinstance(params, (list, tuple)):
        raise TypeError(f"{op}: params must be a list of tensors, got {type(params).__name__}")
    size = 4 if has_biases else 2
    if len(params) != count * size:
        raise ValueError(f"{op}: expected {count * size} tensors in params, {size} for each layer and direction, got {len(params)}")
    for t in params:
        require(t, op)
    return [(*params[i:i + size], None, None)[:4] for i in range(0, len(params), size)]


def _state(op: str, name: str, state, shape: tuple[int, ...]):
    if state is not None and require(state, op).shape != shape:
        raise ShapeError(f"{op}: expected {name} of shape {shape} (layers times directions, batch, hidden), got {state.shape}")
    return state


def _network(op: str, layer, x, states, params, has_biases, num_layers, dropout, train, bidirectional, batch_first):
    """The outputs of the last layer, and per state its final values stacked as torch orders them: layer 0 forward, layer 0 reverse, ..."""
    for name, value in (("has_biases", has_biases), ("train", train), ("bidirectional", bidirectional), ("batch_first", batch_first)):
        flag(op, name, value)
    directions = 2 if bidirectional else 1
    count = integer(op, "num_layers", num_layers, 1, 2**31 - 1) * directions
    if require(x, op).ndim not in (2, 3):
        raise ShapeError(f"{op}: expected input [steps, batch, inputs], or [steps, inputs] without a batch, got shape {x.shape}")
    dropout = real(op, "dropout", dropout, "a number from 0 to 1", 0.0, 1.0)
    groups = _groups(op, params, has_biases, count)
    if groups[0][1].ndim != 2:
        raise ShapeError(f"{op}: expected a recurrent weight of 2 dimensions, got shape {groups[0][1].shape}")
    lone = x.ndim == 2
    if lone:
        x = x.unsqueeze(1)
    elif batch_first:
        x = x.transpose(0, 1)
    hidden = groups[0][1].shape[1]
    states = [_state(op, name, s if s is None or not lone else require(s, op).unsqueeze(1), (count, x.shape[1], hidden))
              for name, s in zip(("h0", "c0"), states, strict=False)]
    final: list[list[Tensor]] = [[] for _ in states]
    for i in range(0, count, directions):
        outputs = []
        x = x.contiguous()  # once, instead of in each direction, forward and backward
        for k in range(i, i + directions):
            y, last = layer(x, *groups[k], *(None if s is None else s.select(0, k) for s in states), k > i)
            outputs.append(y)
            for kept, value in zip(final, last, strict=True):
                kept.append(value)
        x = outputs[0] if directions == 1 else cat(outputs, 2)
        if dropout and train and i + directions < count:
            x = drop(x, dropout)
    ends = [stack(kept, 0) for kept in final]
    if lone:
        return x.squeeze(1), [s.squeeze(1) for s in ends]
    return x.transpose(0, 1) if batch_first else x, ends


def _lstm_layer(x, w_ih, w_hh, b_ih, b_hh, h0, c0, reverse):
    recurrent.check("lstm_layer", x, w_ih, w_hh, b_ih, b_hh, h0, c0)
    block = recurrent.LstmLayer.apply(x, w_ih, w_hh, b_ih, b_hh, h0, c0, reverse, True)  # the final cell state stands behind the last step
    steps = x.shape[0]
    y, cell = split(block, [steps, 1])  # one buffer for the gradients of both
    return y, (y.select(0, 0 if reverse else steps - 1), cell.squeeze(0))


def _gru_layer(x, w_ih, w_hh, b_ih, b_hh, h0, reverse):
    y = recurrent.gru_layer(x, w_ih, w_hh, b_ih, b_hh, h0, reverse)
    return y, (y.select(0, 0 if reverse else x.shape[0] - 1),)


@public(method=False)
def lstm(input, hx, params, has_biases=True, num_layers=1, dropout=0.0, train=False, bidirectional=False, batch_first=False):
    """(y, (h_n, c_n)) of an LSTM of several layers; hx is None or (h0, c0), params the weights as torch's flat list orders them.

    input [steps, batch, inputs] ([batch, steps, inputs] with batch_first), y [steps, batch, directions hidden], states
    [layers directions, batch, hidden] whatever batch_first is.
    """
    if hx is not None and (not isinstance(hx, (tuple, list)) or len(hx) != 2):
        raise TypeError("lstm: hx must be None or a pair (h0, c0)")
    y, (h, c) = _network("lstm", _lstm_layer, input, hx or (None, None), params, has_biases, num_layers, dropout, train, bidirectional, batch_first)
    return y, (h, c)


@public(method=False)
def gru(input, hx, params, has_biases=True, num_layers=1, dropout=0.0, train=False, bidirectional=False, batch_first=False):
    """(y, h_n) of a GRU of several layers; hx is None or h0, params the weights as torch's flat list orders them; shapes as `lstm`'s."""
    y, (h,) = _network("gru", _gru_layer, input, (hx,), params, has_biases, num_layers, dropout, train, bidirectional, batch_first)
    return y, h
