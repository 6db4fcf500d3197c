"""pad: borders of a constant, of the reflected or repeated edge, or wrapped around; negative ones crop."""

from __future__ import annotations

import math

import numpy as np

from onemodel import resizing
from onemodel.arrays import from_numpy, require
from onemodel.errors import ShapeError
from onemodel.ops.parameters import index_of
from onemodel.registry import ErrorSample, Input, Op, Sample, public, register

MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
"""The modes, and NumPy's names for them."""


def _borders(pad, ndim: int) -> list[tuple[int, int]]:
    """(before, behind) of each dimension from torch's pairs, which begin with the last dimension."""
    if not isinstance(pad, (tuple, list)):
        raise TypeError(f"pad: expected a tuple of integers, two for each padded dimension, got {type(pad).__name__}")
    if len(pad) % 2 or len(pad) > 2 * ndim:
        raise ValueError(f"pad: expected pairs for at most {ndim} dimensions, got {len(pad)} numbers")
    sizes = [index_of("pad", "a width", n) for n in pad]
    pairs = [(sizes[i], sizes[i + 1]) for i in range(0, len(sizes), 2)]
    return [(0, 0)] * (ndim - len(pairs)) + pairs[::-1]


def _places(mode: str, size: int, before: int, behind: int) -> np.ndarray:
    """The index of each element of a padded dimension of `size`."""
    if mode == "circular":  # what was cropped is not wrapped
        first, last = max(0, -before), size - max(0, -behind)
        at = np.arange(-max(before, 0), last - first + max(behind, 0))
        return first + at % max(last - first, 1)
    at = np.arange(-before, size + behind)
    if mode == "replicate":
        return np.clip(at, 0, size - 1)
    at = np.abs(at)
    return np.where(at >= size, 2 * (size - 1) - at, at)


def _check_mode(x, mode: str, borders) -> None:
    for dim, (size, (before, behind)) in enumerate(zip(x.shape, borders, strict=True)):
        if before == behind == 0:
            continue
        limit = {"reflect": size - 1, "replicate": 2**62 if size else 0, "circular": size}[mode]
        if max(before, behind) > limit:
            raise ValueError(f"pad: {mode} takes at most {limit} elements for dimension {dim} of size {size}, got {(before, behind)}")
        if mode == "circular" and size + min(before, 0) + min(behind, 0) < max(before, behind):
            raise ValueError(f"pad: nothing is left to wrap around in dimension {dim} of size {size} with {(before, behind)}")


@register
class Pad(Op):
    """y = x with `pad` elements before and behind its last dimensions: pairs, the last dimension first; negative ones crop. Any type.

    Modes: constant (value, 0 by default), reflect (without the edge), replicate (the edge), circular. Gradient: the part of g that came
    from x, as a view where nothing was cropped; in the other modes each border is added to what it repeats, dimension by dimension, from the
    first on in the order of the padded elements.
    """

    @staticmethod
    def forward(ctx, x, mode, borders, shape, value):
        low = tuple(before for before, _ in borders)
        if mode == "constant":
            ctx.steps, ctx.arguments = None, (low, x.shape)
            return resizing.pad(x, low, shape, value)
        repeats = [_places(mode, n, *both) if any(both) else None for n, both in zip(x.shape, borders, strict=True)]
        ctx.steps, dims = [], list(x.shape)
        for dim, places in enumerate(repeats):
            if places is not None:
                ctx.steps.append((from_numpy(places), dim, tuple(dims)))
                dims[dim] = len(places)
        if all(min(both) >= 0 for both in borders):
            return resizing.pad_around(x, low, shape, tuple(repeats))
        for places, dim, _ in ctx.steps:
            x = resizing.index_select(x, dim, places)
        return x

    @staticmethod
    def backward(ctx, g):
        if ctx.steps is None:
            return resizing.pad_bwd(g, *ctx.arguments)
        for places, dim, shape in reversed(ctx.steps):
            g = resizing.index_select_bwd(g, places, dim, shape)
        return g

    @staticmethod
    def reference(x, pad, mode="constant", value=None):
        borders = _borders(pad, x.ndim)
        if not borders:
            return x.copy()
        crop = tuple(slice(max(0, -a), n - max(0, -b)) for n, (a, b) in zip(x.shape, borders, strict=True))
        more = {"constant_values": 0 if value is None else value} if mode == "constant" else {}
        return np.pad(x[crop], [(max(a, 0), max(b, 0)) for a, b in borders], MODES[mode], **more)

    samples = [
        Sample("last", (Input((3, 5)), (2, 1))),
        Sample("both", (Input((3, 5)), (0, 3, 1, 2)), {"value": -1.5}),
        Sample("image", (Input((2, 3, 4, 5)), (1, 1, 2, 0)), {"mode": "constant"}),
        Sample("crop", (Input((4, 6)), (-1, -2, -1, 0))),
        Sample("crop_and_pad", (Input((4, 6)), (-2, 3, 1, -1)), {"value": 2.0}),
        Sample("crop_to_nothing", (Input((4, 6)), (-4, -2))),
        Sample("numpy", (Input((3,)), [np.int64(1), np.int32(2)])),
        Sample("none", (Input((3, 5)), ())),
        Sample("scalar", (Input(()), ())),
        Sample("empty", (Input((0, 3)), (1, 1, 2, 0))),
        Sample("integers", (Input((3, 5), -9.0, 9.0, dtype="int64"), (1, 2)), {"value": 7}),
        Sample("bools", (Input((3, 5), dtype="bool"), (1, 2)), {"value": True}),
        Sample("reflect", (Input((2, 3, 5)), (4, 2, 1, 2)), {"mode": "reflect"}),
        Sample("replicate", (Input((2, 3, 5)), (4, 7, 1, 0)), {"mode": "replicate"}),
        Sample("circular", (Input((2, 3, 5)), (5, 2, 0, 3)), {"mode": "circular"}),
        Sample("reflect_crop", (Input((2, 6)), (-2, 3)), {"mode": "reflect"}),
        Sample("circular_crop", (Input((2, 6)), (-2, 3)), {"mode": "circular"}),
        Sample("transposed", (Input((4, 3, 5), layout="transposed"), (1, 1, 1, 1))),
        Sample("strided", (Input((4, 6), layout="strided"), (1, 2)), {"mode": "reflect"}),
        Sample("expanded", (Input((4, 6), layout="expanded"), (0, 2, 1, 0))),
        Sample("lone", (Input((4, 1, 5), layout="lone"), (1, 0, 2, 1))),
    ]
    error_samples = [
        ErrorSample("odd", (Input((3,)), (1,)), ValueError, "pairs"),
        ErrorSample("many", (Input((3,)), (1, 1, 1, 1)), ValueError, "pairs"),
        ErrorSample("too_short", (Input((3,)), (-2, -2)), ValueError, "size -1"),
        ErrorSample("too_short_on_one_side", (Input((3,)), (5, -4), "reflect"), ValueError, "size -1"),
        ErrorSample("huge", (Input((3,)), (2**62, 0)), ValueError, "64-bit"),
        ErrorSample("hugest", (Input((3,)), (2**70, 2**70)), ValueError, "64-bit"),
        ErrorSample("hugely_negative", (Input((3,)), (-(2**63), 0)), ValueError, "size"),
        ErrorSample("number", (Input((3,)), 1), TypeError, "tuple"),
        ErrorSample("float", (Input((3,)), (1.0, 1)), TypeError, "pad: a width must be an integer"),
        ErrorSample("bool", (Input((3,)), (True, 1)), TypeError, "pad: a width must be an integer"),
        ErrorSample("mode", (Input((3,)), (1, 1), "mirror"), ValueError, "mode"),
        ErrorSample("reflect", (Input((3,)), (3, 0), "reflect"), ValueError, "at most 2"),
        ErrorSample("circular", (Input((3,)), (4, 0), "circular"), ValueError, "at most 3"),
        ErrorSample("replicate_nothing", (Input((0,)), (1, 0), "replicate"), ValueError, "at most 0"),
        ErrorSample("value", (Input((3,)), (1, 0), "reflect", 1.0), ValueError, "value"),
        ErrorSample("word", (Input((3,)), (1, 0), "constant", "a"), TypeError, "value"),
        ErrorSample("fraction", (Input((3,), dtype="int64"), (1, 0), "constant", 0.5), TypeError, "cast"),
        ErrorSample("list", ([1.0], (1, 0)), TypeError, "om.tensor"),
    ]


@public(method=False)
def pad(input, pad, mode="constant", value=None):
    """`input` with borders: `pad` has a pair (before, behind) for each dimension, the last dimension first."""
    x = require(input, "pad")
    if not isinstance(mode, str) or mode not in MODES:
        raise ValueError(f"pad: mode must be one of {', '.join(MODES)}, got {mode!r}")
    if value is not None and mode != "constant":
        raise ValueError(f"pad: mode {mode} takes no value")
    if value is not None and not isinstance(value, (int, float, np.number, np.bool_)):
        raise TypeError(f"pad: value must be a number, got {type(value).__name__}")
    borders = _borders(pad, x.ndim)
    shape = tuple(size + before + behind for size, (before, behind) in zip(x.shape, borders, strict=True))
    for size, (before, behind) in zip(x.shape, borders, strict=True):
        left = size + min(before, 0) + min(behind, 0)
        if left < 0:
            raise ShapeError(f"pad: cropping by {pad} would leave size {left} of {size} (shape {x.shape})")
    if max(shape, default=0) >= 2**59 or math.prod(shape) >= 2**59:
        raise ShapeError(f"pad: a result of shape {shape} has more bytes than a 64-bit size can count")
    if mode != "constant":
        _check_mode(x, mode, borders)
    return Pad.apply(x, mode, borders, shape, 0 if value is None else value)
