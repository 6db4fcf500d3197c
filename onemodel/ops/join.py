"""cat and stack: tensors put side by side, along an old dimension or a new one."""

from __future__ import annotations

import numpy as np

from onemodel import joins
from onemodel.registry import ErrorSample, Input, Op, Sample, public, register


@register
class Cat(Op):
    """y = tensors joined along an existing dimension. Gradients are slices of g. Types or other sizes that differ: error."""

    kernel = joins.RULES["cat"]

    @staticmethod
    def reference(tensors, dim=0):
        return np.concatenate(tensors, axis=dim)

    samples = [
        Sample("rows", ([Input((2, 5)), Input((3, 5))],)),
        Sample("columns", ([Input((4, 2)), Input((4, 3)), Input((4, 1))],), {"dim": -1}),
        Sample("layouts", ([Input((4, 6), layout="transposed"), Input((4, 6), layout="expanded")],), {"dim": 1}),
        Sample("lone", ([Input((4, 1, 5), layout="lone"), Input((4, 1, 5))],), {"dim": 1}),
        Sample("empty_part", ([Input((0, 5)), Input((3, 5))],)),
        Sample("one", ([Input((3,))],)),
        Sample("integers", ([Input((3,), dtype="int64"), Input((2,), dtype="int64")],)),
    ]
    error_samples = [
        ErrorSample("types", ([Input((3,), dtype="int64"), Input((0,))],), TypeError, "cast"),
        ErrorSample("sizes", ([Input((2, 3)), Input((2, 4))],), ValueError, "differ"),
        ErrorSample("ranks", ([Input((2, 3)), Input((3,))],), ValueError, "dimensions"),
        ErrorSample("none", ([],), ValueError, "at least one"),
        ErrorSample("tensor", (Input((2, 3)),), TypeError, "list"),
        ErrorSample("scalars", ([Input(()), Input(())],), ValueError, "stack"),
        ErrorSample("range", ([Input((2, 3))],), IndexError, "out of range", {"dim": 2}),
    ]


cat = public("cat", "concat", method=False)(joins.cat)


@register
class Stack(Op):
    """y = tensors of one shape joined along a new dimension. Gradients are selections of g."""

    kernel = joins.RULES["stack"]

    @staticmethod
    def reference(tensors, dim=0):
        return np.stack(tensors, axis=dim)

    samples = [
        Sample("front", ([Input((2, 5)), Input((2, 5))],)),
        Sample("last", ([Input((4, 2)), Input((4, 2)), Input((4, 2))],), {"dim": -1}),
        Sample("middle", ([Input((4, 6), layout="transposed"), Input((4, 6), layout="expanded")],), {"dim": 1}),
        Sample("scalars", ([Input(()), Input(())],)),
    ]
    error_samples = [
        ErrorSample("shapes", ([Input((2, 3)), Input((2, 4))],), ValueError, "differ"),
        ErrorSample("none", ([],), ValueError, "at least one"),
        ErrorSample("range", ([Input((2, 3))],), IndexError, "out of range", {"dim": 3}),
    ]


stack = public(method=False)(joins.stack)
