"""Attention: scaled_dot_product_attention, also named attention. Must not contain a loop over heads, which is a kernel's."""

from __future__ import annotations

import math

import numpy as np

from onemodel import heads
from onemodel.arrays import require
from onemodel.errors import ShapeError
from onemodel.making import tensor
from onemodel.ops.arithmetic import where
from onemodel.ops.dropout import dropout
from onemodel.ops.parameters import LARGEST_SIZE, flag, integer, real
from onemodel.ops.reduce import amax
from onemodel.ops.softmax import softmax
from onemodel.registry import ErrorSample, Input, Op, Sample, public, register
from onemodel.tensor import Tensor

_OP = "scaled_dot_product_attention"


def _broadcast(parts: dict, shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        found = ", ".join(f"{name} {t.shape}" for name, t in parts.items())
        raise ShapeError(f"{_OP}: leading dimensions do not broadcast: {found}") from None


def _check(query, key, value, mask, causal) -> tuple[int, ...]:
    """Types and shapes, completely; returns the leading dimensions."""
    parts = {"query": query, "key": key, "value": value}
    for name, t in parts.items():
        require(t, _OP)
        if t.dtype != np.float32:
            raise TypeError(f"{_OP}: {name} must be float32, got {t.dtype}; write .cast(om.float32)")
        if t.ndim < 2:
            raise ShapeError(f"{_OP}: {name} needs at least 2 dimensions, got shape {t.shape}")
    if query.shape[-1] != key.shape[-1]:
        raise ShapeError(f"{_OP}: query and key differ in their last size: query {query.shape}, key {key.shape}")
    if key.shape[-2] != value.shape[-2]:
        raise ShapeError(f"{_OP}: expected as many values as keys: key {key.shape}, value {value.shape}")
    if query.shape[-1] == 0:
        raise ShapeError(f"{_OP}: queries and keys have no elements: query {query.shape}")
    lead = _broadcast(parts, [t.shape[:-2] for t in parts.values()])
    _check_mask(_OP, mask, causal, (*lead, query.shape[-2], key.shape[-2]))
    return lead


def _check_mask(op: str, mask, causal: bool, whole: tuple[int, ...]) -> None:
    if mask is None:
        return
    if causal:
        raise ValueError(f"{op}: give attn_mask or is_causal, not both")
    require(mask, op)
    if mask.dtype not in (np.float32, np.bool_):
        raise TypeError(f"{op}: attn_mask must be float32 (added) or bool (True takes part), got {mask.dtype}")
    if mask.requires_grad:
        raise ValueError(f"{op}: attn_mask gets no gradient; pass mask.detach()")
    if mask.ndim > len(whole) or any(m not in (1, n) for m, n in zip(mask.shape[::-1], whole[::-1], strict=False)):
        raise ShapeError(f"{op}: attn_mask {mask.shape} does not broadcast to {whole}")


def _weights(q, k, mask, causal, scale):
    s = (q @ np.swapaxes(k, -1, -2)) * scale
    if causal:
        s = np.where(np.tril(np.ones(s.shape[-2:], bool)), s, -np.inf)
    if mask is not None:
        s = np.where(mask, s, -np.inf) if mask.dtype == bool else s + mask
    top = s.max(axis=-1, keepdims=True, initial=-np.inf)
    e = np.exp(s - np.where(np.isneginf(top), 0, top))
    total = e.sum(axis=-1, keepdims=True)
    return e / np.where(np.isneginf(top), 1, total)


@register
class ScaledDotProductAttention(Op):
    """y = softmax(scale q·kᵀ + mask)·v (Vaswani et al. 2017), scale 1/√width unless given; a row that sees no key is 0.

    query [..., L, E], key [..., S, E], value [..., S, Ev], y [..., L, Ev]. The mask is float32 (added) or bool (True takes part), broadcast without
    a copy, and gets no gradient. `is_causal`: query i sees keys 0 to i. The matrix of all scores is never made: forward goes by blocks of
    query rows, and backward makes the weights again (Dao et al. 2022): with P the weights, dv = Pᵀ·g, dp = g·vᵀ, ds = P (dp - Σ dp P), dq = scale
    ds·k, dk = scale dsᵀ·q. Shapes that do not fit: ShapeError.
    """

    any_strides = True  # heads that stand inside rows come back as they went

    @staticmethod
    def forward(ctx, q, k, v, mask, causal, scale):
        ctx.save_for_backward(q, k, v, mask)
        ctx.arguments = (causal, scale)
        return heads.forward(q, k, v, mask, causal, scale)

    @staticmethod
    def backward(ctx, g):
        gradients = heads.backward(g, *ctx.saved_tensors, *ctx.arguments, tuple(ctx.needs_input_grad[:3]))
        return gradients + (None,) * (len(ctx.needs_input_grad) - 3)

    @staticmethod
    def reference(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
        p = _weights(query, key, attn_mask, is_causal, 1 / math.sqrt(query.shape[-1]) if scale is None else scale)
        return p @ value

    samples = [
        Sample("plain", (Input((2, 3, 5, 4)), Input((2, 3, 7, 4)), Input((2, 3, 7, 6))), {}, 16.0),
        Sample("one_head", (Input((5, 4)), Input((7, 4)), Input((7, 3))), {"scale": 0.3}, 16.0),
        Sample("causal", (Input((2, 19, 4)), Input((2, 19, 4)), Input((2, 19, 5))), {"is_causal": True}, 16.0),
        Sample("causal_wide", (Input((1, 5, 4)), Input((1, 9, 4)), Input((1, 9, 3))), {"is_causal": True}, 16.0),
        Sample("causal_tall", (Input((1, 11, 4)), Input((1, 6, 4)), Input((1, 6, 3))), {"is_causal": True}, 16.0),
        Sample("additive", (Input((2, 3, 5, 4)), Input((2, 3, 7, 4)), Input((2, 3, 7, 4)), Input((5, 7), requires_grad=False)), {}, 16.0),
        Sample("additive_strided", (Input((2, 3, 5, 4)), Input((2, 3, 7, 4)), Input((2, 3, 7, 4)),
                                    Input((2, 1, 5, 7), layout="transposed", requires_grad=False)), {}, 16.0),
        Sample("boolean", (Input((2, 3, 5, 4)), Input((2, 3, 7, 4)), Input((2, 3, 7, 4)), Input((2, 1, 1, 7), dtype="bool")), {}, 16.0),
        Sample("strided", (Input((2, 5, 4), layout="transposed"), Input((2, 7, 4), layout="strided"), Input((2, 7, 6), layout="flipped")), {}, 16.0),
        Sample("expanded", (Input((3, 5, 4), layout="expanded"), Input((3, 7, 4), layout="lone"), Input((3, 7, 6), layout="expanded")), {}, 16.0),
        Sample("broadcast", (Input((2, 1, 5, 4)), Input((3, 7, 4)), Input((7, 6))), {}, 16.0),
        Sample("no_keys", (Input((2, 5, 4)), Input((2, 0, 4)), Input((2, 0, 6)))),
        Sample("no_queries", (Input((2, 0, 4)), Input((2, 3, 4)), Input((2, 3, 6)))),
        Sample("blocks", (Input((2, 101, 17), -1.0, 1.0), Input((2, 83, 17), -1.0, 1.0), Input((2, 83, 19))), {}, 16.0, False),
    ]
    error_samples = [
        ErrorSample("width", (Input((5, 4)), Input((7, 3)), Input((7, 4))), ValueError, "last size"),
        ErrorSample("count", (Input((5, 4)), Input((7, 4)), Input((6, 4))), ValueError, "as many values"),
        ErrorSample("rank", (Input((4,)), Input((7, 4)), Input((7, 4))), ValueError, "at least 2"),
        ErrorSample("lead", (Input((2, 5, 4)), Input((3, 7, 4)), Input((3, 7, 4))), ValueError, "broadcast"),
        ErrorSample("mask", (Input((5, 4)), Input((7, 4)), Input((7, 4)), Input((5, 6), requires_grad=False)), ValueError, "attn_mask"),
        ErrorSample("mask_type", (Input((5, 4)), Input((7, 4)), Input((7, 4)), Input((5, 7), dtype="int64")), TypeError, "attn_mask"),
        ErrorSample("mask_gradient", (Input((5, 4)), Input((7, 4)), Input((7, 4)), Input((5, 7))), ValueError, "no gradient"),
        ErrorSample("both", (Input((5, 4)), Input((7, 4)), Input((7, 4)), Input((5, 7), requires_grad=False)), ValueError, "not both",
                    {"is_causal": True}),
        ErrorSample("scale", (Input((5, 4)), Input((7, 4)), Input((7, 4))), TypeError, "scale", {"scale": "big"}),
        ErrorSample("dropout", (Input((5, 4)), Input((7, 4)), Input((7, 4))), ValueError, "dropout_p", {"dropout_p": 1.5}),
        ErrorSample("list", ([[1.0]], Input((7, 4)), Input((7, 4))), TypeError, "om.tensor"),
    ]


def lower_triangle(queries: int, keys: int) -> Tensor:
    """True where a key stands at or before the query."""
    return tensor(np.tril(np.ones((queries, keys), bool)))


def composed(query, key, value, mask, dropout_p, causal, scale):
    """(y, weights) of the composition, whose weights exist as a tensor and can be dropped; rows that see no key pass no softmax."""
    s = (query @ key.transpose(-2, -1)) * scale
    if causal:
        mask = lower_triangle(*s.shape[-2:])
    if mask is None:
        weights = softmax(s, -1)
    else:
        s = s + mask if mask.dtype == np.float32 else where(mask, s, -math.inf)
        blind = amax(s.detach(), -1, keepdim=True) == -math.inf
        weights = where(blind, 0.0, softmax(where(blind, 0.0, s), -1))
    weights = dropout(weights, dropout_p)
    return weights @ value, weights


@public("scaled_dot_product_attention", "attention", method=False)
def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    """softmax(scale query·keyᵀ + attn_mask)·value over [..., L, E], [..., S, E], [..., S, Ev]."""
    is_causal = flag(_OP, "is_causal", is_causal)
    lead = _check(query, key, value, attn_mask, is_causal)
    dropout_p = real(_OP, "dropout_p", dropout_p, "a number from 0 to 1", 0.0, 1.0)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else real(_OP, "scale", scale)
    query, key, value = (t if t.shape[:-2] == lead else t.expand(*lead, *t.shape[-2:]) for t in (query, key, value))
    if dropout_p:
        return composed(query, key, value, attn_mask, dropout_p, is_causal, scale)[0]
    return ScaledDotProductAttention.apply(query, key, value, attn_mask, is_causal, scale)


@register
class SelfAttention(Op):
    """y = scaled_dot_product_attention(q, k, v) of heads whose q, k and v stand side by side in the rows of x: the same bits.

    x [N, L, 3·E], as one linear layer projects a sequence: E columns of queries, E of keys, E of values, each num_heads heads of E / num_heads
    columns; y [N, L, E]. The mask broadcasts to [N, num_heads, L, L] and is what it is there, as is `is_causal`. The gradient of x is written whole,
    where three would be put together. Shapes that do not fit: ShapeError.
    """

    any_strides = True  # a sequence that comes first in memory stays there

    @staticmethod
    def forward(ctx, x, mask, heads_, causal, scale):
        ctx.save_for_backward(x, mask)
        ctx.arguments = (heads_, causal, scale)
        return heads.forward_in_rows(x, heads_, mask, causal, scale)

    @staticmethod
    def backward(ctx, g):
        x, mask = ctx.saved_tensors
        heads_, causal, scale = ctx.arguments
        return (heads.backward_in_rows(g, x, heads_, mask, causal, scale),) + (None,) * (len(ctx.needs_input_grad) - 1)

    @staticmethod
    def reference(input, num_heads, attn_mask=None, is_causal=False):
        n, length, columns = input.shape
        q, k, v = np.moveaxis(input.reshape(n, length, 3, num_heads, columns // (3 * num_heads)), (2, 3), (0, 2))
        y = _weights(q, k, attn_mask, is_causal, 1 / math.sqrt(q.shape[-1])) @ v
        return np.swapaxes(y, 1, 2).reshape(n, length, columns // 3)

    samples = [
        Sample("plain", (Input((2, 5, 24)), 2), {}, 16.0),
        Sample("one_head", (Input((1, 7, 15)), 1), {}, 16.0),
        Sample("causal", (Input((2, 19, 12)), 2), {"is_causal": True}, 16.0),
        Sample("additive", (Input((2, 5, 12)), 2, Input((5, 5), requires_grad=False)), {}, 16.0),
        Sample("boolean", (Input((2, 5, 12)), 2, Input((2, 1, 1, 5), dtype="bool")), {}, 16.0),
        Sample("transposed", (Input((3, 6, 18), layout="transposed"), 3), {}, 16.0),
        Sample("strided", (Input((2, 5, 12), layout="strided"), 2), {}, 16.0),
        Sample("flipped", (Input((2, 5, 12), layout="flipped"), 2), {}, 16.0),
        Sample("expanded", (Input((3, 5, 12), layout="expanded"), 2), {}, 16.0),
        Sample("no_rows", (Input((2, 0, 12)), 2)),
        Sample("no_batch", (Input((0, 5, 12)), 2)),
        Sample("blocks", (Input((2, 101, 102), -1.0, 1.0), 2), {}, 16.0, False),
    ]
    error_samples = [
        ErrorSample("rank", (Input((5, 12)), 2), ValueError, "[N, L, 3·E]"),
        ErrorSample("columns", (Input((2, 5, 13)), 2), ValueError, "3·num_heads"),
        ErrorSample("empty", (Input((2, 5, 0)), 2), ValueError, "3·num_heads"),
        ErrorSample("no_heads", (Input((2, 5, 12)), 0), ValueError, "num_heads"),
        ErrorSample("half_a_head", (Input((2, 5, 12)), 1.5), TypeError, "num_heads"),
        ErrorSample("integer", (Input((2, 5, 12), dtype="int64"), 2), TypeError, "float32"),
        ErrorSample("mask", (Input((2, 5, 12)), 2, Input((5, 6), requires_grad=False)), ValueError, "attn_mask"),
        ErrorSample("mask_gradient", (Input((2, 5, 12)), 2, Input((5, 5))), ValueError, "no gradient"),
        ErrorSample("both", (Input((2, 5, 12)), 2, Input((5, 5), requires_grad=False)), ValueError, "not both", {"is_causal": True}),
        ErrorSample("list", ([[[1.0]]], 1), TypeError, "om.tensor"),
    ]


@public(method=False)
def self_attention(input, num_heads, attn_mask=None, is_causal=False):
    """Attention in heads of queries, keys and values side by side in the rows of input [N, L, 3·E], as one linear layer projects them: [N, L, E]."""
    op = "self_attention"
    require(input, op)
    if input.dtype != np.float32:
        raise TypeError(f"{op}: input must be float32, got {input.dtype}; write .cast(om.float32)")
    num_heads = integer(op, "num_heads", num_heads, 1, LARGEST_SIZE)
    is_causal = flag(op, "is_causal", is_causal)
    if input.ndim != 3:
        raise ShapeError(f"{op}: expected input [N, L, 3·E], got shape {input.shape}")
    n, length, columns = input.shape
    if columns == 0 or columns % (3 * num_heads):
        raise ShapeError(f"{op}: expected columns of input in multiples of 3·num_heads = {3 * num_heads}, at least once, got shape {input.shape}")
    _check_mask(op, attn_mask, is_causal, (n, num_heads, length, length))
    return SelfAttention.apply(input, attn_mask, num_heads, is_causal, 1 / math.sqrt(columns // (3 * num_heads)))
