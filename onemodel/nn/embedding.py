"""Owns the table layer Embedding; must not contain the lookup itself, which is `onemodel.embedding`."""

from __future__ import annotations

from onemodel.errors import ShapeError
from onemodel.modes import no_grad
from onemodel.nn.module import Module, Parameter
from onemodel.ops.embedding import embedding, padding_row, refuse
from onemodel.ops.parameters import LARGEST_SIZE, flag, integer
from onemodel.random import randn
from onemodel.tensor import Tensor


class Embedding(Module):
    """y = weight[ids]; weight [num_embeddings, embedding_dim] starts normal, N(0, 1), the row of padding_idx as zeros.

    That row gets no gradient, so it stays as it is. max_norm, scale_grad_by_freq and sparse are refused: see `onemodel.embedding`.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, max_norm: float | None = None,
                 norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False) -> None:
        super().__init__()
        self.num_embeddings = integer("Embedding", "num_embeddings", num_embeddings, 0, LARGEST_SIZE)
        self.embedding_dim = integer("Embedding", "embedding_dim", embedding_dim, 0, LARGEST_SIZE)
        refuse("Embedding", max_norm, scale_grad_by_freq, sparse)
        row = padding_row("Embedding", padding_idx, self.num_embeddings)
        self.padding_idx = row if row >= 0 else None
        with no_grad():
            values = randn((self.num_embeddings, self.embedding_dim))
            if row >= 0:
                values[row].fill_(0.0)
        self.weight = Parameter(values)

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None) -> Embedding:
        """A layer on the memory of a table [rows, columns]; frozen, it gets no gradient. The row of padding_idx stays as given."""
        if not isinstance(embeddings, Tensor):
            raise TypeError(f"Embedding.from_pretrained: expected a Tensor, got {type(embeddings).__name__}; wrap arrays with om.tensor")
        if embeddings.ndim != 2:
            raise ShapeError(f"Embedding.from_pretrained: expected [rows, columns], got shape {embeddings.shape}")
        freeze = flag("Embedding.from_pretrained", "freeze", freeze)
        layer = cls(0, 0)
        layer.num_embeddings, layer.embedding_dim = embeddings.shape
        row = padding_row("Embedding", padding_idx, layer.num_embeddings)
        layer.padding_idx = row if row >= 0 else None
        layer.weight = Parameter(embeddings.detach(), requires_grad=not freeze)
        return layer

    def forward(self, ids: Tensor) -> Tensor:
        return embedding(ids, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"
