"""interpolate (resize2d): planes in another size, by the nearest pixel or by mixing two neighbours along each axis."""

from __future__ import annotations

import math

import numpy as np

from onemodel import resizing
from onemodel.arrays import require
from onemodel.errors import ShapeError
from onemodel.ops.parameters import flag, index_of, real
from onemodel.registry import ErrorSample, Input, Op, Sample, public, register

_MODES = {3: ("nearest", "nearest-exact", "linear"), 4: ("nearest", "nearest-exact", "bilinear")}
_ROUNDED = 16.0   # tolerance of samples whose float32 coordinates differ from the reference's
_LARGEST = 2**31  # sizes of planes: indices are 32-bit


def _each(name: str, value, count: int) -> tuple:
    """One value for all axes, or one for each."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,) * count
    if len(values) != count:
        raise ValueError(f"interpolate: {name} needs one number or {count}, got {len(values)}: {value!r}")
    return values


def _target(shape: tuple, size, scale_factor, recompute) -> tuple[tuple, tuple]:
    """Sizes and factors per axis; a factor of 0 stands for the quotient of the sizes."""
    count = len(shape) - 2
    if (size is None) == (scale_factor is None):
        raise ValueError(f"interpolate: give either size or scale_factor, got {'both' if size is not None else 'neither'}")
    if size is not None:
        if recompute:
            raise ValueError("interpolate: recompute_scale_factor goes with scale_factor, not with size")
        sizes = tuple(index_of("interpolate", "size", n, f"an integer or {count} of them") for n in _each("size", size, count))
        factors = (0.0,) * count
    else:
        factors = tuple(real("interpolate", "scale_factor", f, "positive and below 2**64", 0.0, 2.0**64, above=True)
                        for f in _each("scale_factor", scale_factor, count))
        sizes = tuple(math.floor(n * f) for n, f in zip(shape[2:], factors, strict=True))
        if recompute:
            factors = (0.0,) * count
    for n in (*shape[2:], *sizes):
        if not 0 < n < _LARGEST:
            raise ShapeError(f"interpolate: sizes of planes must be from 1 to {_LARGEST - 1}, got {shape[2:]} to {sizes}")
    if math.prod((*shape[:2], *sizes)) >= 2**59:
        raise ShapeError(f"interpolate: a result of shape {(*shape[:2], *sizes)} has more bytes than a 64-bit size can count")
    return sizes, factors


def _matrix(mode: str, align: bool, n: int, out: int, factor: float) -> np.ndarray:
    """[out, n]: the weight of each pixel in each output."""
    o = np.arange(out)
    scale = 1 / factor if factor else n / out
    if mode.startswith("nearest"):
        places = o if n == out and mode == "nearest" else np.minimum(np.floor((o if mode == "nearest" else o + 0.5) * scale), n - 1)
        return (places[:, None] == np.arange(n)).astype(float)
    if align:
        places = o * ((n - 1) / (out - 1) if out > 1 else 0.0)
    else:
        places = o if n == out else np.clip((o + 0.5) * scale - 0.5, 0, n - 1)
    return np.maximum(0, 1 - np.abs(places[:, None] - np.arange(n)))


@register
class Interpolate(Op):
    """y = x [N, C, H, W] (or [N, C, L]) in another size: the nearest pixel, or Σ h·(Σ w·x) over two neighbours along each axis.

    Coordinates in float32, s = in/out or 1/scale_factor: nearest ⌊o·s⌋ (o where out = in, ⌊o/2⌋ where out = 2·in), nearest-exact ⌊(o + ½)·s⌋,
    linear and bilinear (o + ½)·s - ½ or, with align_corners, o·(in - 1)/(out - 1), each mixing pixels ⌊c⌋ and ⌊c⌋ + 1; at or beyond an end the
    pixel there alone. Gradient: h·(w·g) added to each neighbour, in the order of the outputs. Sizes of planes below 1, another mode, antialias:
    ValueError.
    """

    @staticmethod
    def forward(ctx, x, how, size, factors):
        ctx.arguments = (how, x.shape, size, factors)
        return resizing.resize(x, how, size, factors)

    @staticmethod
    def backward(ctx, g):
        return resizing.resize_bwd(g, *ctx.arguments)

    @staticmethod
    def reference(x, size=None, scale_factor=None, mode="nearest", align_corners=None, recompute_scale_factor=None, antialias=False):
        sizes, factors = _target(x.shape, size, scale_factor, recompute_scale_factor)
        for axis, (out, factor) in enumerate(zip(sizes, factors, strict=True), 2):
            weights = _matrix(mode, bool(align_corners), x.shape[axis], out, factor)
            x = np.moveaxis(np.tensordot(weights, x, (1, axis)), 0, axis)
        return x

    samples = [
        Sample("nearest", (Input((2, 3, 3, 5)),), {"size": (7, 4)}),
        Sample("nearest_double", (Input((1, 2, 4, 5)),), {"scale_factor": 2}),
        Sample("nearest_factor", (Input((1, 2, 5, 7)),), {"scale_factor": (1.3, 0.6)}),
        Sample("nearest_exact", (Input((1, 2, 5, 4)),), {"size": (3, 9), "mode": "nearest-exact"}),
        Sample("bilinear", (Input((2, 3, 3, 5)),), {"size": (7, 4), "mode": "bilinear"}, _ROUNDED),
        Sample("bilinear_double", (Input((2, 2, 3, 19)),), {"scale_factor": 2, "mode": "bilinear", "align_corners": False}, _ROUNDED),
        Sample("bilinear_factor", (Input((1, 2, 5, 7)),), {"scale_factor": (1.3, 2.4), "mode": "bilinear"}, _ROUNDED),
        Sample("bilinear_recomputed", (Input((1, 2, 5, 7)),),
               {"scale_factor": (1.3, 2.4), "mode": "bilinear", "recompute_scale_factor": True}, _ROUNDED),
        Sample("bilinear_down", (Input((1, 1, 9, 8)),), {"size": (3, 2), "mode": "bilinear"}, _ROUNDED),
        Sample("aligned", (Input((2, 2, 3, 5)),), {"size": (7, 9), "mode": "bilinear", "align_corners": True}, _ROUNDED),
        Sample("aligned_down", (Input((1, 2, 7, 6)),), {"size": (3, 1), "mode": "bilinear", "align_corners": True}, _ROUNDED),
        Sample("aligned_wide", (Input((1, 1, 2, 2)),), {"size": (12, 21), "mode": "bilinear", "align_corners": True}, _ROUNDED),
        Sample("same", (Input((1, 2, 3, 4)),), {"size": (3, 4), "mode": "bilinear"}, _ROUNDED),
        Sample("one_pixel", (Input((2, 1, 1, 1)),), {"size": 5, "mode": "bilinear"}, _ROUNDED),
        Sample("linear", (Input((2, 3, 6)),), {"size": 11, "mode": "linear"}, _ROUNDED),
        Sample("nearest_line", (Input((2, 3, 6)),), {"scale_factor": 0.5}),
        Sample("transposed", (Input((2, 3, 4, 5), layout="transposed"),), {"scale_factor": 2, "mode": "bilinear"}, _ROUNDED),
        Sample("strided", (Input((2, 3, 4, 5), layout="strided"),), {"size": (6, 7), "mode": "bilinear"}, _ROUNDED),
        Sample("expanded", (Input((3, 2, 3, 4), layout="expanded"),), {"size": 5}),
        Sample("flipped", (Input((1, 2, 3, 4), layout="flipped"),), {"size": 6, "mode": "bilinear", "align_corners": True}, _ROUNDED),
        Sample("lone", (Input((3, 1, 1, 4), layout="lone"),), {"size": (2, 8), "mode": "bilinear"}, _ROUNDED),
        Sample("no_image", (Input((0, 2, 3, 4)),), {"size": 6, "mode": "bilinear"}, _ROUNDED),
    ]
    error_samples = [
        ErrorSample("neither", (Input((1, 1, 2, 2)),), ValueError, "neither"),
        ErrorSample("both", (Input((1, 1, 2, 2)), 3, 2.0), ValueError, "both"),
        ErrorSample("zero_size", (Input((1, 1, 2, 2)), 0), ValueError, "from 1"),
        ErrorSample("negative_size", (Input((1, 1, 2, 2)), (3, -1)), ValueError, "from 1"),
        ErrorSample("huge_size", (Input((1, 1, 2, 2)), 2**62), ValueError, "from 1"),
        ErrorSample("huge_result", (Input((1, 1, 2, 2)), 2**31 - 1), ValueError, "64-bit"),
        ErrorSample("float_size", (Input((1, 1, 2, 2)), 2.0), TypeError, "size"),
        ErrorSample("bool_size", (Input((1, 1, 2, 2)), True), TypeError, "size"),
        ErrorSample("sizes", (Input((1, 1, 2, 2)), (1, 2, 3)), ValueError, "size"),
        ErrorSample("empty_plane", (Input((1, 1, 0, 2)), 2), ValueError, "from 1"),
        ErrorSample("small_factor", (Input((1, 1, 2, 2)),), ValueError, "from 1", {"scale_factor": 0.1}),
        ErrorSample("negative_factor", (Input((1, 1, 2, 2)),), ValueError, "positive", {"scale_factor": -2.0}),
        ErrorSample("nan_factor", (Input((1, 1, 2, 2)),), ValueError, "positive", {"scale_factor": float("nan")}),
        ErrorSample("huge_factor", (Input((1, 1, 2, 2)),), ValueError, "positive", {"scale_factor": 2**70}),
        ErrorSample("mode", (Input((1, 1, 2, 2)), 3, None, "bicubic"), ValueError, "mode"),
        ErrorSample("mode_of_rank", (Input((1, 1, 2)), 3, None, "bilinear"), ValueError, "mode"),
        ErrorSample("rank", (Input((2, 2)), 3), ValueError, "dimensions"),
        ErrorSample("aligned_nearest", (Input((1, 1, 2, 2)), 3), ValueError, "align_corners", {"align_corners": True}),
        ErrorSample("antialias", (Input((1, 1, 2, 2)), 3, None, "bilinear"), ValueError, "antialias", {"antialias": True}),
        ErrorSample("recompute", (Input((1, 1, 2, 2)), 3), ValueError, "recompute", {"recompute_scale_factor": True}),
        ErrorSample("integers", (Input((1, 1, 2, 2), dtype="int64"), 3), TypeError, "float32"),
        ErrorSample("list", ([[[[1.0]]]], 3), TypeError, "om.tensor"),
    ]


@public("interpolate", "resize2d", method=False)
def interpolate(input, size=None, scale_factor=None, mode="nearest", align_corners=None, recompute_scale_factor=None, antialias=False):
    """Planes [N, C, H, W] or lines [N, C, L] in another size."""
    x = require(input, "interpolate")
    if x.dtype != np.float32:
        raise TypeError(f"interpolate: expected float32, got {x.dtype}; write .cast(om.float32)")
    if x.ndim not in _MODES:
        raise ShapeError(f"interpolate: expected 3 or 4 dimensions, [N, C, L] or [N, C, H, W], got shape {x.shape}")
    if not isinstance(mode, str) or mode not in _MODES[x.ndim]:
        raise ValueError(f"interpolate: mode must be one of {', '.join(_MODES[x.ndim])} for {x.ndim} dimensions, got {mode!r}")
    for name, value in (("align_corners", align_corners), ("recompute_scale_factor", recompute_scale_factor), ("antialias", antialias)):
        if value is not None:
            flag("interpolate", name, value)
    if align_corners is not None and mode.startswith("nearest"):
        raise ValueError("interpolate: align_corners goes with linear and bilinear only")
    if antialias:
        raise ValueError("interpolate: antialias=True is not supported; average with avg_pool2d before making an image smaller")
    sizes, factors = _target(x.shape, size, scale_factor, recompute_scale_factor)
    how = resizing.HOW["align_corners" if align_corners else mode]
    if align_corners:
        factors = (0.0,) * len(sizes)
    return Interpolate.apply(x, how, sizes, factors)
