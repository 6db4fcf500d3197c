"""The operators, one file per family; importing this package registers them all. `OPS` maps names to classes."""

from onemodel.ops import activation, arithmetic, compare, functions, index, join, loss, matmul, reduce, softmax, view
from onemodel.registry import FUNCTIONS, OPS

globals().update(FUNCTIONS)

__all__ = ["OPS", *FUNCTIONS]
