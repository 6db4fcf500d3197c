"""Recurrent layers: lstm_layer and gru_layer, one direction of one layer over all steps. Must not contain a step."""

from __future__ import annotations

import numpy as np

from onemodel import recurrent
from onemodel.arrays import require
from onemodel.errors import ShapeError
from onemodel.ops.parameters import flag
from onemodel.registry import ErrorSample, Input, Op, Sample, public, register


def check(op: str, x, w_ih, w_hh, b_ih, b_hh, h0, c0=None) -> None:
    """Types and shapes of one layer, completely, before any work."""
    gates = recurrent.GATES[op]
    parts = {"x": x, "w_ih": w_ih, "w_hh": w_hh, "b_ih": b_ih, "b_hh": b_hh, "h0": h0, "c0": c0}
    for name, t in parts.items():
        if t is None and name not in ("x", "w_ih", "w_hh"):
            continue
        require(t, op)
        if t.dtype != np.float32:
            raise TypeError(f"{op}: {name} must be float32, got {t.dtype}; write .cast(om.float32)")
    if x.ndim != 3:
        raise ShapeError(f"{op}: x must be [steps, batch, inputs], got shape {x.shape}")
    if x.shape[0] == 0:
        raise ShapeError(f"{op}: expected at least one step, got shape {x.shape}")
    if w_hh.ndim != 2 or w_hh.shape[1] == 0 or w_hh.shape[0] != gates * w_hh.shape[1]:
        raise ShapeError(f"{op}: w_hh must be [{gates} hidden, hidden], got shape {w_hh.shape}")
    hidden = w_hh.shape[1]
    expected = {"w_ih": (gates * hidden, x.shape[2]), "b_ih": (gates * hidden,), "b_hh": (gates * hidden,), "h0": (x.shape[1], hidden),
                "c0": (x.shape[1], hidden)}
    for name, shape in expected.items():
        t = parts[name]
        if t is not None and t.shape != shape:
            raise ShapeError(f"{op}: expected {name} of shape {shape} for x {x.shape} and hidden size {hidden}, got {t.shape}")


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _backward(op, ctx, g):
    """Gradients of the tensor arguments, in order; arguments that were None have none."""
    reverse, with_cell, given = ctx.arguments
    needs = iter(ctx.needs_input_grad)
    wanted = tuple(there and next(needs) for there in given)
    found = recurrent.layer_bwd(op, g, *ctx.saved_tensors, reverse, with_cell, wanted)
    return tuple(d for d, there in zip(found, given, strict=True) if there)


_STEP = (Input((5, 3, 4)), Input((8, 4), -0.7, 0.7), Input((8, 2), -0.7, 0.7))


@register
class LstmLayer(Op):
    """y = the hidden states of one LSTM layer in one direction: i, f, g, o = σ, σ, tanh, σ of (x·W_ih + b_ih) + (h·W_hh + b_hh),
    c = f c + i g, h = o tanh c (Hochreiter and Schmidhuber 1997; Gers et al. 2000).

    x [steps, batch, inputs], w_ih [4 hidden, inputs], w_hh [4 hidden, hidden], b_ih and b_hh [4 hidden], h0 and c0 [batch, hidden];
    y [steps, batch, hidden]; `reverse` goes from the last step to the first. Backpropagation through time (Werbos 1990). No step, or a shape
    that does not fit: ShapeError.
    """

    @staticmethod
    def forward(ctx, x, w_ih, w_hh, b_ih, b_hh, h0, c0, reverse, with_cell):
        y, gates, c, tanh_c = recurrent.layer("lstm_layer", x, w_ih, w_hh, b_ih, b_hh, h0, c0, reverse, with_cell)
        ctx.save_for_backward(x, w_ih, w_hh, h0, c0, gates, c, tanh_c, y)
        ctx.arguments = (reverse, with_cell, tuple(t is not None for t in (x, w_ih, w_hh, b_ih, b_hh, h0, c0)))
        return y

    @staticmethod
    def backward(ctx, g):
        return _backward("lstm_layer", ctx, g)

    @staticmethod
    def reference(x, w_ih, w_hh, b_ih=None, b_hh=None, h0=None, c0=None, reverse=False):
        n = w_hh.shape[1]
        h = np.zeros((x.shape[1], n)) if h0 is None else h0
        c = np.zeros((x.shape[1], n)) if c0 is None else c0
        y = np.empty((*x.shape[:2], n), x.dtype)
        for t in range(len(x))[:: -1 if reverse else 1]:
            a = x[t] @ w_ih.T + h @ w_hh.T + (0 if b_ih is None else b_ih) + (0 if b_hh is None else b_hh)
            i, f, o = _sigmoid(a[:, :n]), _sigmoid(a[:, n:2 * n]), _sigmoid(a[:, 3 * n:])
            c = f * c + i * np.tanh(a[:, 2 * n:3 * n])
            h = y[t] = o * np.tanh(c)
        return y

    samples = [
        Sample("plain", _STEP, {}, 16.0),
        Sample("bias", (*_STEP, Input((8,)), Input((8,))), {}, 16.0),
        Sample("states", (*_STEP, Input((8,)), None, Input((3, 2)), Input((3, 2))), {}, 16.0),
        Sample("reverse", (*_STEP, None, Input((8,)), Input((3, 2)), Input((3, 2))), {"reverse": True}, 16.0),
        Sample("one_step", (Input((1, 2, 3)), Input((20, 3)), Input((20, 5))), {}, 16.0),
        Sample("one_row", (Input((7, 1, 3)), Input((76, 3), -0.5, 0.5), Input((76, 19), -0.3, 0.3), Input((76,))), {}, 16.0),
        Sample("no_rows", (Input((4, 0, 3)), Input((8, 3)), Input((8, 2)))),
        Sample("strided", (Input((5, 3, 4), layout="transposed"), Input((8, 4), layout="strided"), Input((8, 2), layout="transposed"),
                           Input((8,), layout="strided"), Input((8,)), Input((3, 2), layout="expanded"),
                           Input((3, 2), layout="transposed")), {}, 16.0),
        Sample("rows_and_lanes", (Input((6, 13, 9)), Input((92, 9), -0.4, 0.4), Input((92, 23), -0.3, 0.3), Input((92,)), Input((92,))), {}, 16.0,
               False),
    ]
    error_samples = [
        ErrorSample("rank", (Input((5, 4)), *_STEP[1:]), ValueError, "steps, batch, inputs"),
        ErrorSample("no_step", (Input((0, 3, 4)), *_STEP[1:]), ValueError, "at least one step"),
        ErrorSample("w_ih", (_STEP[0], Input((8, 5)), _STEP[2]), ValueError, "w_ih"),
        ErrorSample("w_hh", (*_STEP[:2], Input((6, 2))), ValueError, "w_hh"),
        ErrorSample("bias", (*_STEP, Input((7,))), ValueError, "b_ih"),
        ErrorSample("h0", (*_STEP, None, None, Input((1, 2))), ValueError, "h0"),
        ErrorSample("integer", (Input((5, 3, 4), dtype="int64"), *_STEP[1:]), TypeError, "float32"),
        ErrorSample("list", ([[[1.0]]], *_STEP[1:]), TypeError, "om.tensor"),
    ]


@public(method=False)
def lstm_layer(x, w_ih, w_hh, b_ih=None, b_hh=None, h0=None, c0=None, reverse=False):
    """One direction of one LSTM layer over [steps, batch, inputs]; gates stacked i, f, g, o."""
    check("lstm_layer", x, w_ih, w_hh, b_ih, b_hh, h0, c0)
    return LstmLayer.apply(x, w_ih, w_hh, b_ih, b_hh, h0, c0, flag("lstm_layer", "reverse", reverse), False)


_GRU_STEP = (Input((5, 3, 4)), Input((6, 4), -0.7, 0.7), Input((6, 2), -0.7, 0.7))


@register
class GruLayer(Op):
    """y = the hidden states of one GRU layer in one direction: r, z = σ of (x·W_ih + b_ih) + (h·W_hh + b_hh), n = tanh(x·W_in + b_in +
    r (h·W_hn + b_hn)), h = (1 - z) n + z h (Cho et al. 2014, with the reset gate behind the product, as torch).

    x [steps, batch, inputs], w_ih [3 hidden, inputs], w_hh [3 hidden, hidden], b_ih and b_hh [3 hidden], h0 [batch, hidden];
    y [steps, batch, hidden]; `reverse` goes from the last step to the first. No step, or a shape that does not fit: ShapeError.
    """

    @staticmethod
    def forward(ctx, x, w_ih, w_hh, b_ih, b_hh, h0, reverse):
        y, gates, hidden_n, _ = recurrent.layer("gru_layer", x, w_ih, w_hh, b_ih, b_hh, h0, None, reverse, False)
        ctx.save_for_backward(x, w_ih, w_hh, h0, None, gates, hidden_n, None, y)
        ctx.arguments = (reverse, False, (*(t is not None for t in (x, w_ih, w_hh, b_ih, b_hh, h0)), False))
        return y

    @staticmethod
    def backward(ctx, g):
        return _backward("gru_layer", ctx, g)

    @staticmethod
    def reference(x, w_ih, w_hh, b_ih=None, b_hh=None, h0=None, reverse=False):
        n = w_hh.shape[1]
        h = np.zeros((x.shape[1], n)) if h0 is None else h0
        y = np.empty((*x.shape[:2], n), x.dtype)
        for t in range(len(x))[:: -1 if reverse else 1]:
            a, b = x[t] @ w_ih.T + (0 if b_ih is None else b_ih), h @ w_hh.T + (0 if b_hh is None else b_hh)
            r, z = _sigmoid(a[:, :n] + b[:, :n]), _sigmoid(a[:, n:2 * n] + b[:, n:2 * n])
            h = y[t] = (1 - z) * np.tanh(a[:, 2 * n:] + r * b[:, 2 * n:]) + z * h
        return y

    samples = [
        Sample("plain", _GRU_STEP, {}, 16.0),
        Sample("bias", (*_GRU_STEP, Input((6,)), Input((6,))), {}, 16.0),
        Sample("states", (*_GRU_STEP, Input((6,)), None, Input((3, 2))), {}, 16.0),
        Sample("reverse", (*_GRU_STEP, None, Input((6,)), Input((3, 2))), {"reverse": True}, 16.0),
        Sample("one_row", (Input((7, 1, 3)), Input((57, 3), -0.5, 0.5), Input((57, 19), -0.3, 0.3), Input((57,))), {}, 16.0),
        Sample("no_rows", (Input((4, 0, 3)), Input((6, 3)), Input((6, 2)))),
        Sample("strided", (Input((5, 3, 4), layout="transposed"), Input((6, 4), layout="strided"), Input((6, 2), layout="transposed"),
                           Input((6,), layout="strided"), Input((6,)), Input((3, 2), layout="expanded")), {}, 16.0),
        Sample("rows_and_lanes", (Input((6, 13, 9)), Input((69, 9), -0.4, 0.4), Input((69, 23), -0.3, 0.3), Input((69,)), Input((69,))), {}, 16.0,
               False),
    ]
    error_samples = [
        ErrorSample("rank", (Input((5, 4)), *_GRU_STEP[1:]), ValueError, "steps, batch, inputs"),
        ErrorSample("no_step", (Input((0, 3, 4)), *_GRU_STEP[1:]), ValueError, "at least one step"),
        ErrorSample("w_ih", (_GRU_STEP[0], Input((6, 5)), _GRU_STEP[2]), ValueError, "w_ih"),
        ErrorSample("w_hh", (*_GRU_STEP[:2], Input((8, 2))), ValueError, "w_hh"),
        ErrorSample("h0", (*_GRU_STEP, None, None, Input((3, 3))), ValueError, "h0"),
        ErrorSample("integer", (Input((5, 3, 4), dtype="int64"), *_GRU_STEP[1:]), TypeError, "float32"),
    ]


@public(method=False)
def gru_layer(x, w_ih, w_hh, b_ih=None, b_hh=None, h0=None, reverse=False):
    """One direction of one GRU layer over [steps, batch, inputs]; gates stacked r, z, n."""
    check("gru_layer", x, w_ih, w_hh, b_ih, b_hh, h0)
    return GruLayer.apply(x, w_ih, w_hh, b_ih, b_hh, h0, flag("gru_layer", "reverse", reverse))
