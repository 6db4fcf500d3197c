"""Sample families that many operators share: layouts of one and of two operands. Holds no operator."""

from __future__ import annotations

from onemodel.errors import ShapeError
from onemodel.registry import ErrorSample, Input, Sample


def unary(low: float = -2.0, high: float = 2.0, tolerance: float = 4.0, **kwargs) -> list[Sample]:
    """One tensor: a vector with a tail, a matrix, a scalar, no element, strided and stretched views."""
    def x(shape, **more):
        return Input(shape, low, high, **more)

    return [
        Sample("vector", (x((37,)),), kwargs, tolerance),
        Sample("matrix", (x((5, 33)),), kwargs, tolerance),
        Sample("scalar", (x(()),), kwargs, tolerance),
        Sample("one", (x((1,)),), kwargs, tolerance),
        Sample("empty", (x((0, 3)),), kwargs, tolerance),
        Sample("transposed", (x((7, 5, 3), layout="transposed"),), kwargs, tolerance),
        Sample("strided", (x((6, 9), layout="strided"),), kwargs, tolerance),
        Sample("expanded", (x((4, 6), layout="expanded"),), kwargs, tolerance),
        Sample("flipped", (x((4, 6), layout="flipped"),), kwargs, tolerance),
        Sample("lone", (x((4, 1, 5, 1), layout="lone"),), kwargs, tolerance),
    ]


def binary(low: float = -2.0, high: float = 2.0, second: tuple[float, float] | None = None, tolerance: float = 4.0) -> list[Sample]:
    """Two tensors: equal shapes, every kind of broadcast, scalars on either side, mixed layouts."""
    low2, high2 = second or (low, high)

    def pair(a, b, la="plain", lb="plain"):
        return (Input(a, low, high, layout=la), Input(b, low2, high2, layout=lb))

    shapes = {
        "vector": ((37,), (37,)), "row": ((4, 33), (33,)), "column": ((5, 40), (5, 1)), "outer": ((3, 1), (1, 5)),
        "lead": ((7,), (2, 3, 7)), "scalar_tensor": ((2, 3), ()), "one": ((6, 2), (1,)), "empty": ((0, 4), (4,)),
        "middle": ((2, 1, 4), (2, 3, 4)),
    }
    samples = [Sample(name, pair(a, b), {}, tolerance) for name, (a, b) in shapes.items()]
    samples += [
        Sample("scalar_right", (Input((3, 5), low, high), (low2 + 3 * high2) / 4), {}, tolerance),
        Sample("scalar_left", ((low + 3 * high) / 4, Input((3, 5), low2, high2)), {}, tolerance),
        Sample("transposed", pair((5, 4, 6), (5, 4, 6), "transposed", "plain"), {}, tolerance),
        Sample("strided_flipped", pair((6, 9), (6, 9), "strided", "flipped"), {}, tolerance),
        Sample("expanded", pair((4, 6), (4, 6), "expanded", "expanded"), {}, tolerance),
        Sample("lone", pair((4, 1, 1, 5), (3, 1, 5), "lone", "lone"), {}, tolerance),
    ]
    return samples


def unary_errors() -> list[ErrorSample]:
    return [
        ErrorSample("list", ([1.0, 2.0],), TypeError, "om.tensor"),
        ErrorSample("bool", (Input((3,), dtype="bool"),), TypeError, "float32"),
    ]


def binary_errors() -> list[ErrorSample]:
    return [
        ErrorSample("shapes", (Input((2, 3)), Input((4,))), ShapeError, "do not broadcast"),
        ErrorSample("mixed", (Input((2,)), Input((2,), dtype="int64")), TypeError, "cast"),
        ErrorSample("string", (Input((2,)), "1"), TypeError, "om.tensor"),
        ErrorSample("list", (Input((2,)), [1.0, 2.0]), TypeError, "om.tensor"),
    ]
