"""Views: slice, select, permute, transpose, reshape, squeeze, unsqueeze, contiguous, expand, flip, cast, flatten, and clone.

They share storage and version with their input wherever strides can express the result; `onemodel.views` has the code.
"""

from __future__ import annotations

import numpy as np

from onemodel import views
from onemodel.registry import METHODS, ErrorSample, Input, Op, Sample, public, register
from onemodel.tensor import install_method

_X = Input((4, 5, 6))
_T = Input((4, 5, 6), layout="transposed")


def _both(name, *args, **kwargs):
    """The same call on a plain and on a transposed input."""
    return [Sample(name, (_X, *args), kwargs), Sample(name + "_transposed", (_T, *args), kwargs)]


@register
class Reshape(Op):
    """y = the elements of x in another shape, one size may be -1; a view, or a copy where no strides fit. Gradient reshaped back."""

    kernel = views.RULES["reshape"]

    @staticmethod
    def reference(x, *shape):
        return np.reshape(x, shape[0] if isinstance(shape[0], tuple) else shape)

    samples = _both("flat", 120) + _both("split", 2, 2, -1, 3) + _both("tuple", (5, 24)) + [
        Sample("scalar", (Input(()), (1, 1))), Sample("to_scalar", (Input((1, 1)), ())), Sample("empty", (Input((0, 4)), (-1, 4))),
        Sample("lone", (Input((4, 1, 1, 6), layout="lone"), (2, 1, 12))),
        Sample("strided", (Input((6, 9), layout="strided"), (9, 6))), Sample("expanded", (Input((4, 6), layout="expanded"), (2, 12))),
    ]
    error_samples = [
        ErrorSample("negative", (Input((12,)), (-3, -4)), ValueError, "-1"),
        ErrorSample("two_free", (Input((1,)), (-1, -1)), ValueError, "-1"),
        ErrorSample("ambiguous", (Input((2, 0, 3)), (0, -1)), ValueError, "ambiguous"),
        ErrorSample("overflow", (Input((12,)), (2**31, 2**31, 4, -1)), ValueError, "does not hold"),
        ErrorSample("count", (Input((12,)), (5, 2)), ValueError, "does not hold"),
        ErrorSample("float", (Input((12,)), (3.0, 4)), TypeError, "float"),
    ]


reshape = public()(views.reshape)
METHODS["view"] = views.reshape
install_method("view", views.reshape)


@register
class Squeeze(Op):
    """y = x without dimensions of size 1, all or those named. Gradient reshaped back."""

    kernel = views.RULES["reshape"]

    @staticmethod
    def reference(x, dim=None):
        if dim is None:
            return np.squeeze(x)
        dims = [d % max(x.ndim, 1) for d in (dim if isinstance(dim, tuple) else (dim,))]
        return np.reshape(x, [n for i, n in enumerate(x.shape) if i not in dims or n != 1])

    samples = [
        Sample("all", (Input((1, 4, 1, 5)),)), Sample("one", (Input((1, 4, 1, 5)), 2)), Sample("not_one", (Input((1, 4, 5)), 1)),
        Sample("two", (Input((1, 4, 1)), (0, -1))), Sample("scalar", (Input(()), -1)),
    ]
    error_samples = [
        ErrorSample("scalar_range", (Input(()), -2), IndexError, "out of range"),
        ErrorSample("range", (Input((1, 2)), 2), IndexError, "out of range"),
    ]


squeeze = public()(views.squeeze)


@register
class Unsqueeze(Op):
    """y = x with a new dimension of size 1. Gradient reshaped back."""

    kernel = views.RULES["reshape"]

    @staticmethod
    def reference(x, dim):
        return np.expand_dims(x, dim)

    samples = _both("front", 0) + _both("end", -1) + _both("middle", 2) + [Sample("scalar", (Input(()), 0))]
    error_samples = [ErrorSample("range", (Input((2, 3)), 3), IndexError, "out of range")]


unsqueeze = public()(views.unsqueeze)


@register
class Flatten(Op):
    """y = x with dimensions start_dim to end_dim joined into one. Gradient reshaped back."""

    kernel = views.RULES["reshape"]

    @staticmethod
    def reference(x, start_dim=0, end_dim=-1):
        n = max(x.ndim, 1)
        shape = x.shape or (1,)
        a, b = start_dim % n, end_dim % n
        return np.reshape(x, (*shape[:a], int(np.prod(shape[a:b + 1])), *shape[b + 1:]))

    samples = _both("all") + _both("tail", 1) + _both("head", 0, 1) + [Sample("scalar", (Input(()),))]
    error_samples = [
        ErrorSample("order", (Input((2, 3)), 1, 0), ValueError, "behind"), ErrorSample("range", (Input((2, 3)), 2), IndexError, "out of range"),
    ]


flatten = public()(views.flatten)


@register
class Contiguous(Op):
    """y = x in row-major order: x itself or a copy. Gradient passed on."""

    kernel = views.RULES["reshape"]

    @staticmethod
    def reference(x):
        return np.array(x)

    samples = _both("plain") + [Sample("expanded", (Input((4, 6), layout="expanded"),)), Sample("flipped", (Input((4, 6), layout="flipped"),))]
    error_samples = [ErrorSample("list", ([1.0],), TypeError, "om.tensor")]


contiguous = public()(views.contiguous)


@register
class Clone(Op):
    """y = a contiguous copy of x. Gradient passed on."""

    kernel = views.RULES["reshape"]

    @staticmethod
    def reference(x):
        return np.array(x)

    samples = _both("plain") + [Sample("strided", (Input((6, 9), layout="strided"),)), Sample("empty", (Input((0, 2)),))]
    error_samples = [ErrorSample("list", ([1.0],), TypeError, "om.tensor")]


clone = public()(views.clone)


@register
class Permute(Op):
    """y = x with its dimensions in another order. Gradient permuted back."""

    kernel = views.RULES["permute"]

    @staticmethod
    def reference(x, *dims):
        return np.transpose(x, dims[0] if isinstance(dims[0], tuple) else dims)

    samples = _both("rotate", 1, 2, 0) + _both("tuple", (2, 1, 0)) + _both("negative", -1, 0, 1)
    error_samples = [
        ErrorSample("twice", (Input((2, 3)), 0, 0), ValueError, "once"), ErrorSample("few", (Input((2, 3)), 0), ValueError, "once"),
        ErrorSample("range", (Input((2, 3)), 0, 2), IndexError, "out of range"),
    ]


permute = public()(views.permute)


@register
class Transpose(Op):
    """y = x with two dimensions swapped. Gradient swapped back."""

    kernel = views.RULES["permute"]

    @staticmethod
    def reference(x, dim0, dim1):
        return np.swapaxes(x, dim0, dim1)

    samples = _both("first_last", 0, -1) + _both("same", 1, 1)
    error_samples = [ErrorSample("range", (Input((2, 3)), 0, 2), IndexError, "out of range")]


transpose = public()(views.transpose)
install_method("T", property(views.reverse_dims))


@register
class Expand(Op):
    """y = x with dimensions of size 1 stretched by stride 0, and new ones in front. Gradient summed over what was stretched."""

    kernel = views.RULES["expand"]

    @staticmethod
    def reference(x, *shape):
        shape = shape[0] if isinstance(shape[0], tuple) else shape
        lead = len(shape) - x.ndim
        return np.broadcast_to(x, [x.shape[i - lead] if n == -1 else n for i, n in enumerate(shape)])

    samples = [
        Sample("column", (Input((4, 1)), 4, 6)), Sample("keep", (Input((4, 1)), (-1, 3))), Sample("lead", (Input((4,)), 2, 3, 4)),
        Sample("scalar", (Input(()), (2, 2))), Sample("zero", (Input((1, 3)), 0, 3)),
    ]
    error_samples = [
        ErrorSample("size", (Input((4, 2)), 4, 6), ValueError, "cannot become"), ErrorSample("few", (Input((4, 2)), 4), ValueError, "sizes"),
        ErrorSample("free_lead", (Input((4,)), -1, 4), ValueError, "negative"),
    ]


expand = public()(views.expand)


@register
class Flip(Op):
    """y = x with its elements reversed along the named dimensions, as a view. Gradient flipped back."""

    kernel = views.RULES["flip"]

    @staticmethod
    def reference(x, *dims):
        return np.flip(x, dims[0] if isinstance(dims[0], (tuple, list)) else dims)

    samples = _both("last", -1) + _both("outer", (0, 2)) + [Sample("far", (Input((2, 1, 3, 4)), [0, 3])), Sample("empty", (Input((0, 3)), 0, 1))]
    error_samples = [
        ErrorSample("twice", (Input((2, 3)), 0, -2), ValueError, "twice"), ErrorSample("range", (Input((2, 3)), 2), IndexError, "out of range"),
    ]


flip = public()(views.flip)


@register
class Slice(Op):
    """y = x[start:end:step] along one dimension, as a view; bounds as Python's. Gradient into zeros."""

    kernel = views.RULES["slice"]

    @staticmethod
    def reference(x, dim=0, start=None, end=None, step=1):
        return x[(np.s_[:],) * (dim % x.ndim) + (np.s_[start:end:step],)]

    samples = _both("middle", 1, 1, 4) + _both("step", -1, 1, None, 2) + _both("negative", 0, -3, -1) + [
        Sample("empty", (Input((3,)), 0, 2, 1)), Sample("end", (Input((3,)), 0, 1, 3)), Sample("beyond", (Input((3,)), 0, 5, 10)),
    ]
    error_samples = [
        ErrorSample("backwards", (Input((3,)), 0, None, None, -1), ValueError, "positive"),
        ErrorSample("zero", (Input((3,)), 0, None, None, 0), ValueError, "positive"),
        ErrorSample("range", (Input((3,)), 1), IndexError, "out of range"), ErrorSample("float", (Input((3,)), 0, 0.5), TypeError, "or None"),
    ]


slice_ = public("slice")(views.slice_)


@register
class Select(Op):
    """y = x at one index of a dimension, which disappears; a view. Gradient into zeros."""

    kernel = views.RULES["slice"]

    @staticmethod
    def reference(x, dim, index):
        return np.take(x, index, axis=dim)

    samples = _both("first", 0, 2) + _both("last", -1, -1) + [Sample("vector", (Input((5,)), 0, 3))]
    error_samples = [
        ErrorSample("range", (Input((3,)), 0, 3), IndexError, "out of range"), ErrorSample("scalar", (Input(()), 0, 0), IndexError, "0-d"),
    ]


select = public()(views.select)


@register
class Cast(Op):
    """y = x in another type. float32 to integer truncates, saturates, and makes 0 of NaN; no gradient passes an integer."""

    why_not_differentiable = "integers have no gradient; float32 to float32 is the tensor itself"

    @staticmethod
    def forward(ctx, x, dtype):
        return views.cast(x, dtype)

    @staticmethod
    def reference(x, dtype):
        if np.dtype(dtype).kind in "iu" and np.asarray(x).dtype.kind == "f":
            info = np.iinfo(dtype)
            y = np.trunc(np.nan_to_num(x, nan=0.0, posinf=np.inf, neginf=-np.inf))
            return np.array([int(min(max(v, info.min), info.max)) for v in np.ravel(y)], dtype).reshape(np.shape(x))
        return np.asarray(x).astype(dtype)

    samples = [
        Sample(f"{source}_to_{target}", (Input((5, 7), -300.0, 300.0, dtype=source, requires_grad=False), target))
        for source, target in [("float32", "int32"), ("float32", "int64"), ("float32", "uint8"), ("float32", "bool"), ("int64", "float32"),
                               ("bool", "float32"), ("int64", "int32"), ("uint8", "int64")]
    ]
    error_samples = [
        ErrorSample("type", (Input((3,)), "float64"), TypeError, "uint8"),
        ErrorSample("word", (Input((3,)), "number"), TypeError, "uint8"),
    ]


cast = public()(views.cast)
METHODS["to"] = views.cast
install_method("to", views.cast)
