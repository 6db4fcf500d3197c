"""The operators, one file per family; importing this package registers them all. `OPS` maps names to classes."""

from onemodel.ops import (
    activation,
    arithmetic,
    attention,
    compare,
    composed,
    conv,
    conv_pool,
    conv_transpose,
    ctc,
    dropout,
    embedding,
    errors,
    functions,
    gather,
    index,
    join,
    loss,
    matmul,
    norm,
    pad,
    pooling,
    recurrent,
    reduce,
    resize,
    rnn,
    softmax,
    view,
)
from onemodel.registry import FUNCTIONS, OPS

globals().update(FUNCTIONS)

__all__ = ["OPS", *FUNCTIONS]
