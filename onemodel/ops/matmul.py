"""matmul and linear: matrix products on the GEMM."""

from __future__ import annotations

import numpy as np

from onemodel import products
from onemodel.registry import ErrorSample, Input, Op, Sample, public, register


@register
class Matmul(Op):
    """y = a @ b: one chain of fused multiply-adds over increasing k per element, from +0.

    [..., m, k] @ [..., k, n] with broadcast batch dimensions; a vector is a row on the left, a column on the right.
    Gradients g·bᵀ and aᵀ·g. Inner sizes that differ: ShapeError.
    """

    kernel = products.RULES["matmul"]

    @staticmethod
    def reference(a, b):
        return np.matmul(a, b)

    samples = [
        Sample(name, (Input(a, layout=la), Input(b, layout=lb)), {}, 16.0)
        for name, a, la, b, lb in [
            ("square", (8, 8), "plain", (8, 8), "plain"),
            ("odd", (13, 37), "plain", (37, 19), "plain"),
            ("row_vector", (37,), "plain", (37, 19), "plain"),
            ("column_vector", (13, 37), "plain", (37,), "plain"),
            ("dot", (37,), "plain", (37,), "plain"),
            ("batch", (3, 5, 7), "plain", (3, 7, 4), "plain"),
            ("fold", (2, 3, 5, 7), "plain", (7, 4), "plain"),
            ("fold_vector", (2, 5, 7), "plain", (7,), "plain"),
            ("broadcast", (2, 1, 5, 7), "plain", (3, 7, 4), "plain"),
            ("vector_batch", (7,), "plain", (3, 7, 4), "plain"),
            ("transposed", (13, 37), "transposed", (37, 19), "transposed"),
            ("strided", (6, 10), "strided", (10, 5), "flipped"),
            ("expanded", (6, 10), "expanded", (10, 5), "expanded"),
            ("lone_rows", (4, 1, 1, 8), "lone", (8, 3), "plain"),
            ("lone_batch", (4, 1, 5, 8), "lone", (1, 8, 3), "lone"),
            ("lone_vector", (1, 1, 8), "lone", (8,), "plain"),
            ("no_inner", (3, 0), "plain", (0, 5), "plain"),
            ("no_rows", (0, 4), "plain", (4, 5), "plain"),
            ("batch_transposed", (3, 5, 7), "transposed", (3, 7, 4), "transposed"),
        ]
    ] + [Sample("tiles", (Input((67, 33)), Input((33, 101))), {}, 16.0, False)]
    error_samples = [
        ErrorSample("inner", (Input((2, 3)), Input((4, 5))), ValueError, "inner sizes differ"),
        ErrorSample("batch", (Input((2, 3, 4)), Input((3, 4, 5))), ValueError, "do not broadcast"),
        ErrorSample("scalar", (Input(()), Input((4, 5))), ValueError, "at least 1 dimension"),
        ErrorSample("integer", (Input((2, 3), dtype="int64"), Input((3, 2), dtype="int64")), TypeError, "float32"),
        ErrorSample("scalar_operand", (Input((2, 3)), 2.0), TypeError, "om.tensor"),
    ]


@public("matmul", slot="matmul")
def matmul(a, b):
    """Matrix product with broadcast batch dimensions; a vector is a row on the left, a column on the right."""
    return products.matmul(a, b)


@register
class Linear(Op):
    """y = x·Wᵀ + b: the product of `matmul`, then one IEEE addition of the bias.

    x [..., in], W [out, in], b [out]. Gradients g·W, gᵀ·x, Σ g. Sizes that do not fit: ShapeError.
    """

    kernel = products.RULES["linear"]

    @staticmethod
    def reference(x, weight, bias=None):
        y = x @ weight.T
        return y if bias is None else y + bias

    samples = [
        Sample("bias", (Input((9, 13)), Input((7, 13)), Input((7,))), {}, 16.0),
        Sample("no_bias", (Input((9, 13)), Input((7, 13))), {}, 16.0),
        Sample("vector", (Input((13,)), Input((7, 13)), Input((7,))), {}, 16.0),
        Sample("sequence", (Input((2, 5, 13)), Input((7, 13)), Input((7,))), {}, 16.0),
        Sample("transposed", (Input((9, 5, 13), layout="transposed"), Input((7, 13), layout="strided"), Input((7,), layout="strided")), {}, 16.0),
        Sample("one_row", (Input((1, 70)), Input((40, 70)), Input((40,))), {}, 16.0),
        Sample("tiles", (Input((67, 33)), Input((101, 33)), Input((101,))), {}, 16.0, False),
        Sample("lone", (Input((4, 1, 1, 13), layout="lone"), Input((7, 13)), Input((7,))), {}, 16.0),
        Sample("lone_outer", (Input((1, 4, 1, 13), layout="lone"), Input((1, 13), layout="lone"), Input((1,))), {}, 16.0),
        Sample("no_rows", (Input((0, 13)), Input((7, 13)), Input((7,))), {}),
        Sample("no_inputs", (Input((3, 0)), Input((7, 0)), Input((7,))), {}),
    ]
    error_samples = [
        ErrorSample("inner", (Input((2, 3)), Input((5, 4))), ValueError, "in"),
        ErrorSample("bias", (Input((2, 3)), Input((5, 3)), Input((4,))), ValueError, "bias"),
        ErrorSample("rank", (Input((2, 3)), Input((5,))), ValueError, "weight"),
        ErrorSample("list", (Input((2, 3)), [[1.0, 2.0, 3.0]]), TypeError, "om.tensor"),
    ]


@public(method=False)
def linear(x, weight, bias=None):
    """x·Wᵀ + b over the last dimension; weight [out, in], bias [out]."""
    return products.linear(x, weight, bias)
