"""cat, stack, split, chunk: tensors put side by side, along an old dimension or a new one, and taken apart."""

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


@register
class Split(Op):
    """The parts of one dimension, as views: of `split_size` each (the last may be smaller), or of the sizes listed.

    The gradients of the parts are copied side by side into one, 0 where a part has none. Sizes that do not add up: error.
    """

    kernel = joins.RULES["split"]

    @staticmethod
    def reference(tensor, split_size_or_sections, dim=0):
        n = tensor.shape[dim]
        if isinstance(split_size_or_sections, int):
            ends = range(split_size_or_sections, n, split_size_or_sections) if n else []
        else:
            ends = np.cumsum(split_size_or_sections)[:-1]
        return tuple(np.split(tensor, ends, dim))

    samples = [
        Sample("size", (Input((7, 3)), 3)),
        Sample("columns", (Input((3, 8)), 2, -1)),
        Sample("sections", (Input((3, 6)), [1, 0, 3, 2]), {"dim": 1}),
        Sample("one", (Input((3, 4)), 9)),
        Sample("none", (Input((0, 4)), 2)),
        Sample("transposed", (Input((4, 5, 6), layout="transposed"), (2, 3), 1)),
        Sample("expanded", (Input((4, 6), layout="expanded"), 3)),
        Sample("integers", (Input((5,), dtype="int64"), 2)),
    ]
    error_samples = [
        ErrorSample("zero", (Input((3, 4)), 0), ValueError, "positive"),
        ErrorSample("negative", (Input((3, 4)), -1), ValueError, "positive"),
        ErrorSample("sum", (Input((3, 4)), [1, 1]), ValueError, "add up"),
        ErrorSample("negative_section", (Input((3, 4)), [4, -1]), ValueError, "add up"),
        ErrorSample("huge_section", (Input((3, 4)), [2**70, 3 - 2**70]), ValueError, "add up"),
        ErrorSample("float", (Input((3, 4)), 1.5), TypeError, "integer"),
        ErrorSample("bool", (Input((3, 4)), True), TypeError, "integer"),
        ErrorSample("scalar", (Input(()), 1), ValueError, "0-d"),
        ErrorSample("range", (Input((3, 4)), 1, 2), IndexError, "out of range"),
        ErrorSample("list", ([1.0, 2.0], 1), TypeError, "om.tensor"),
    ]


split = public()(joins.split)


@register
class Chunk(Op):
    """At most `chunks` parts of one dimension, as views: ⌈size / chunks⌉ each, the last may be smaller. Gradients as those of split."""

    kernel = joins.RULES["split"]

    @staticmethod
    def reference(input, chunks, dim=0):
        n = input.shape[dim]
        if n == 0:
            return (input,) * chunks
        size = -(-n // chunks)
        return tuple(np.split(input, range(size, n, size), dim))

    samples = [
        Sample("three", (Input((7, 3)), 3)),
        Sample("columns", (Input((2, 6)), 2), {"dim": 1}),
        Sample("more_than_there_are", (Input((3, 2)), 5)),
        Sample("none", (Input((0, 2)), 2)),
        Sample("strided", (Input((3, 6), layout="strided"), 2, -1)),
    ]
    error_samples = [
        ErrorSample("zero", (Input((3, 4)), 0), ValueError, "at least one"),
        ErrorSample("huge", (Input((0, 4)), 2**62), ValueError, "at most"),
        ErrorSample("float", (Input((3, 4)), 2.0), TypeError, "integer"),
        ErrorSample("scalar", (Input(()), 1), ValueError, "0-d"),
        ErrorSample("range", (Input((3, 4)), 1, -3), IndexError, "out of range"),
    ]


chunk = public()(joins.chunk)
