"""Owns the layers made of attention: MultiheadAttention, TransformerEncoderLayer, TransformerEncoder. Must not contain the attention itself, which is
`onemodel.scaled_dot_product_attention`."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import numpy as np

from onemodel.errors import ShapeError
from onemodel.making import zeros
from onemodel.modes import no_grad
from onemodel.nn.containers import ModuleList
from onemodel.nn.dropout import Dropout
from onemodel.nn.linear import Linear, _uniform
from onemodel.nn.module import Module, Parameter
from onemodel.nn.norm import LayerNorm
from onemodel.ops.activation import gelu, relu
from onemodel.ops.arithmetic import where
from onemodel.ops.attention import composed, lower_triangle, scaled_dot_product_attention, self_attention
from onemodel.ops.join import split
from onemodel.ops.matmul import linear
from onemodel.ops.parameters import LARGEST_SIZE, flag, floats, integer, real
from onemodel.tensor import Tensor

_ACTIVATIONS: dict[str, Callable] = {"relu": relu, "gelu": gelu}


def _xavier(rows: int, columns: int) -> Parameter:
    """Uniform in ±√(6 / (rows + columns)) (Glorot and Bengio 2010)."""
    return _uniform((rows, columns), math.sqrt(6 / (rows + columns)))


class MultiheadAttention(Module):
    """(y, weights) of attention in several heads over projections of query, key and value (Vaswani et al. 2017).

    query [L, batch, embed_dim], key [S, batch, kdim], value [S, batch, vdim] ([batch, L, embed_dim] and so on with batch_first), or all without
    a batch. Masks are bool (True hides, unlike in `scaled_dot_product_attention`) or float32 (added): attn_mask [L, S] or [batch·heads, L, S],
    key_padding_mask [batch, S] ([S] without a batch). weights [batch, L, S], the mean over heads, or [batch, heads, L, S], or None where not
    needed: then the matrix of all scores is never made. is_causal says that attn_mask is the causal mask, which may be left out. A query that
    sees no key gets weights of 0, where torch with need_weights has NaN. add_bias_kv and add_zero_attn must be False.
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False,
                 add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False) -> None:
        super().__init__()
        name = "MultiheadAttention"
        self.embed_dim = integer(name, "embed_dim", embed_dim, 1, LARGEST_SIZE)
        self.num_heads = integer(name, "num_heads", num_heads, 1, LARGEST_SIZE)
        if self.embed_dim % self.num_heads:
            raise ValueError(f"{name}: embed_dim {embed_dim} does not divide into {num_heads} heads")
        self.head_dim = self.embed_dim // self.num_heads
        self.kdim = self.embed_dim if kdim is None else integer(name, "kdim", kdim, 1, LARGEST_SIZE)
        self.vdim = self.embed_dim if vdim is None else integer(name, "vdim", vdim, 1, LARGEST_SIZE)
        self.dropout = real(name, "dropout", dropout, "from 0 to 1", 0.0, 1.0)
        self.batch_first = flag(name, "batch_first", batch_first)
        for option, value in (("add_bias_kv", add_bias_kv), ("add_zero_attn", add_zero_attn)):
            if flag(name, option, value):
                raise ValueError(f"{name}: {option} must be False: keys and values beyond those given are not there; append them to key and value")
        if self.kdim == self.vdim == self.embed_dim:
            self.in_proj_weight: Parameter | None = _xavier(3 * self.embed_dim, self.embed_dim)
        else:
            self.in_proj_weight = None
            self.q_proj_weight = _xavier(self.embed_dim, self.embed_dim)
            self.k_proj_weight = _xavier(self.embed_dim, self.kdim)
            self.v_proj_weight = _xavier(self.embed_dim, self.vdim)
        self.in_proj_bias = Parameter(zeros(3 * self.embed_dim)) if flag(name, "bias", bias) else None
        self.out_proj = Linear(self.embed_dim, self.embed_dim, bias)
        if self.out_proj.bias is not None:
            with no_grad():
                self.out_proj.bias.zero_()

    def forward(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None, need_weights: bool = True,
                attn_mask: Tensor | None = None, average_attn_weights: bool = True, is_causal: bool = False) -> tuple[Tensor, Tensor | None]:
        rank = self._check(query, key, value)
        average = flag("MultiheadAttention", "average_attn_weights", average_attn_weights)
        selfish = query is key and key is value
        if rank == 2:
            query = query.unsqueeze(0)
            key, value = (query, query) if selfish else (key.unsqueeze(0), value.unsqueeze(0))
        first = self.batch_first or rank == 2
        axis = 0 if first else 1
        batch, length, keys = query.shape[axis], query.shape[1 - axis], key.shape[1 - axis]
        mask, causal = self._mask(attn_mask, key_padding_mask, need_weights, is_causal, batch, length, keys, rank)
        drop = self.dropout if self.training else 0.0
        if selfish and self.in_proj_weight is not None and not need_weights and drop == 0.0:
            projected = linear(query, self.in_proj_weight, self.in_proj_bias)
            y = self_attention(projected if first else projected.transpose(0, 1), self.num_heads, mask, causal)
            y = self.out_proj(y if first else y.transpose(0, 1))
            return (y.squeeze(0) if rank == 2 else y), None
        q, k, v = (self._heads(t, first) for t in self._projected(query, key, value))
        weights = None
        if need_weights:
            y, weights = composed(q, k, v, mask, drop, causal, 1 / math.sqrt(self.head_dim))
            if average:
                weights = weights.mean(1)
            if rank == 2:
                weights = weights.squeeze(0)
        else:
            y = scaled_dot_product_attention(q, k, v, mask, drop, causal)
        y = y.permute(0, 2, 1, 3) if first else y.permute(2, 0, 1, 3)
        y = self.out_proj(y.reshape(*y.shape[:2], self.embed_dim))
        return (y.squeeze(0) if rank == 2 else y), weights

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> int:
        name = "MultiheadAttention"
        floats(name, query=query, key=key, value=value)
        found = f"query {query.shape}, key {key.shape}, value {value.shape}"
        rank = query.ndim
        if rank not in (2, 3) or key.ndim != rank or value.ndim != rank:
            raise ShapeError(f"{name}: expected query, key and value of 3 dimensions, or of 2 without a batch, got {found}")
        if (query.shape[-1], key.shape[-1], value.shape[-1]) != (self.embed_dim, self.kdim, self.vdim):
            raise ShapeError(f"{name}: expected last sizes {self.embed_dim}, {self.kdim}, {self.vdim} (embed_dim, kdim, vdim), got {found}")
        axis = 0 if self.batch_first else 1
        if key.shape[:-1] != value.shape[:-1] or (rank == 3 and key.shape[axis] != query.shape[axis]):
            raise ShapeError(f"{name}: expected as many values as keys, and one batch for all, got {found}")
        return rank

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values; one product for what has one input, whose gradients then come in one buffer."""
        bias = self.in_proj_bias
        if self.in_proj_weight is None:
            biases = (None, None, None) if bias is None else split(bias, self.embed_dim)
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            return tuple(linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))
        if query is key and key is value:
            return split(linear(query, self.in_proj_weight, bias), self.embed_dim, -1)
        sizes = [self.embed_dim, 2 * self.embed_dim] if key is value else self.embed_dim
        weights = split(self.in_proj_weight, sizes)
        biases = (None,) * len(weights) if bias is None else split(bias, sizes)
        if key is value:
            return (linear(query, weights[0], biases[0]), *split(linear(key, weights[1], biases[1]), self.embed_dim, -1))
        return tuple(linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))

    def _heads(self, x: Tensor, first: bool) -> Tensor:
        """[batch, heads, length, head_dim], as a view."""
        x = x.reshape(*x.shape[:2], self.num_heads, self.head_dim)
        return x.permute(0, 2, 1, 3) if first else x.permute(1, 2, 0, 3)

    def _mask(self, attn_mask: Tensor | None, padding: Tensor | None, need_weights: bool, causal: bool, batch: int, length: int, keys: int,
              rank: int) -> tuple[Tensor | None, bool]:
        """The mask as scaled_dot_product_attention takes it (True takes part), and whether it is the causal one."""
        name = "MultiheadAttention"
        flag(name, "need_weights", need_weights)
        for what, mask in (("attn_mask", attn_mask), ("key_padding_mask", padding)):
            if mask is None:
                continue
            if not isinstance(mask, Tensor) or mask.dtype not in (np.bool_, np.float32):
                got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
                raise TypeError(f"{name}: {what} must be a bool (True hides) or float32 (added) tensor, got {got}")
            if mask.requires_grad:
                raise ValueError(f"{name}: {what} gets no gradient; pass {what}.detach()")
        if attn_mask is not None:
            each = (batch * self.num_heads, length, keys)
            if attn_mask.shape == each:
                attn_mask = attn_mask.reshape(batch, self.num_heads, length, keys)
            elif attn_mask.shape != (length, keys):
                raise ShapeError(f"{name}: expected attn_mask of shape {(length, keys)} or {each}, got {attn_mask.shape}")
        if padding is not None:
            expected = (batch, keys) if rank == 3 else (keys,)
            if padding.shape != expected:
                raise ShapeError(f"{name}: expected key_padding_mask of shape {expected}, got {padding.shape}")
            padding = padding.reshape(batch, 1, 1, keys)
        if flag(name, "is_causal", causal):
            if padding is None and (attn_mask is None or not need_weights):
                return None, True
            if attn_mask is None:
                attn_mask = ~lower_triangle(length, keys)
        if attn_mask is None or padding is None:
            mask = padding if attn_mask is None else attn_mask
            return (~mask if mask is not None and mask.dtype == np.bool_ else mask), False
        if attn_mask.dtype == padding.dtype:
            return (attn_mask + padding if attn_mask.dtype == np.float32 else ~(attn_mask | padding)), False
        hides, added = (attn_mask, padding) if attn_mask.dtype == np.bool_ else (padding, attn_mask)
        return where(hides, -math.inf, added), False

    def extra_repr(self) -> str:
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, dropout={self.dropout}, batch_first={self.batch_first}"


class TransformerEncoderLayer(Module):
    """Self-attention and two linear layers with an activation between, each added to its input, and normalised behind the sum or, with norm_first,
    before the part (Vaswani et al. 2017; Xiong et al. 2020). activation is "relu", "gelu", a function or a Module."""

    def __init__(self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
                 activation: str | Callable[[Tensor], Tensor] = "relu", layer_norm_eps: float = 1e-5, batch_first: bool = False,
                 norm_first: bool = False, bias: bool = True) -> None:
        super().__init__()
        name = "TransformerEncoderLayer"
        d_model, nhead = integer(name, "d_model", d_model, 1, LARGEST_SIZE), integer(name, "nhead", nhead, 1, LARGEST_SIZE)
        dim_feedforward = integer(name, "dim_feedforward", dim_feedforward, 1, LARGEST_SIZE)
        bias, batch_first = flag(name, "bias", bias), flag(name, "batch_first", batch_first)
        if isinstance(activation, str):
            if activation not in _ACTIVATIONS:
                raise ValueError(f"{name}: activation must be 'relu', 'gelu' or a function of a tensor, got {activation!r}")
            activation = _ACTIVATIONS[activation]
        if not callable(activation):
            raise TypeError(f"{name}: activation must be 'relu', 'gelu' or a function of a tensor, got {type(activation).__name__}")
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first)
        self.linear1 = Linear(self.self_attn.embed_dim, dim_feedforward, bias)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, self.self_attn.embed_dim, bias)
        self.norm_first = flag(name, "norm_first", norm_first)
        self.norm1 = LayerNorm(self.self_attn.embed_dim, layer_norm_eps, bias=bias)
        self.norm2 = LayerNorm(self.self_attn.embed_dim, layer_norm_eps, bias=bias)
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)
        self.activation = activation

    def forward(self, src: Tensor, src_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        x = src
        if self.norm_first:
            x = x + self._attended(self.norm1(x), src_mask, src_key_padding_mask, is_causal)
            return x + self._fed(self.norm2(x))
        x = self.norm1(x + self._attended(x, src_mask, src_key_padding_mask, is_causal))
        return self.norm2(x + self._fed(x))

    def _attended(self, x: Tensor, mask: Tensor | None, padding: Tensor | None, causal: bool) -> Tensor:
        return self.dropout1(self.self_attn(x, x, x, padding, False, mask, is_causal=causal)[0])

    def _fed(self, x: Tensor) -> Tensor:
        return self.dropout2(self.linear2(self.dropout(self.activation(self.linear1(x)))))


class TransformerEncoder(Module):
    """A stack of copies of one encoder layer, and a norm behind it if given. All copies start with the same values, as torch's do.

    The options of torch's that only choose a faster way, enable_nested_tensor and mask_check, are taken and change nothing.
    """

    def __init__(self, encoder_layer: Module, num_layers: int, norm: Module | None = None, enable_nested_tensor: bool = True,
                 mask_check: bool = True) -> None:
        super().__init__()
        for name, part in (("encoder_layer", encoder_layer), ("norm", norm)):
            if not isinstance(part, Module) and not (part is None and name == "norm"):
                raise TypeError(f"TransformerEncoder: {name} must be a Module, got {type(part).__name__}")
        for name, value in (("enable_nested_tensor", enable_nested_tensor), ("mask_check", mask_check)):
            flag("TransformerEncoder", name, value)
        self.num_layers = integer("TransformerEncoder", "num_layers", num_layers, 1, LARGEST_SIZE)
        self.layers = ModuleList(copy.deepcopy(encoder_layer) for _ in range(self.num_layers))
        self.norm = norm

    def forward(self, src: Tensor, mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None, is_causal: bool | None = None) -> Tensor:
        x = src
        for layer in self.layers:
            x = layer(x, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=False if is_causal is None else is_causal)
        return x if self.norm is None else self.norm(x)
