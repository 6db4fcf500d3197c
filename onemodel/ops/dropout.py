"""dropout: random zeros, from a generator's words."""

from __future__ import annotations

import math

import numpy as np

from onemodel import calls
from onemodel.ops.parameters import flag, floats, real
from onemodel.random import Generator, stream
from onemodel.registry import ErrorSample, Input, Op, Sample, public, register

WORDS = 2**32


class _Still(Generator):
    """For samples: a generator that stands still, so that every call drops the same elements."""

    def take(self, words: int, even: bool = False) -> tuple[int, int]:
        return self._seed, 7


def _words(seed: int, place: int, n: int) -> np.ndarray:
    """Words `place` on of the stream of a seed, written as Salmon et al. (2011) define Philox4x32-10."""
    block = np.arange(place // 4, (place + n) // 4 + 1, dtype=np.uint64)
    low, size = np.uint64(0xFFFFFFFF), np.uint64(32)
    a, b, c, d = block & low, block >> size, np.zeros_like(block), np.zeros_like(block)
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        p, q = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (q >> size) ^ b ^ np.uint64(key[0]), q & low, (p >> size) ^ d ^ np.uint64(key[1]), p & low
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack([a, b, c, d], axis=1).reshape(-1)[place % 4:place % 4 + n]


@register
class Dropout(Op):
    """y = x/(1 - p) with probability 1 - p, else 0; the gradient g likewise, at the same places. Source: Srivastava et al. 2014.

    Element i is dropped where word i of the generator's stream from its place on is below p·2³²: the place decides, neither mode nor
    threads, and backward makes the words again instead of keeping a mask. 1/(1 - p) is rounded to float32 first. p outside [0, 1]:
    ValueError.
    """

    @staticmethod
    def forward(ctx, x, seed, place, drop, scale):
        ctx.stream = seed, place, drop, scale
        return calls.dropout(x, *ctx.stream)

    @staticmethod
    def backward(ctx, g):
        return calls.dropout(g, *ctx.stream)

    @staticmethod
    def reference(x, p=0.5, training=True, generator=None):
        if not training:
            return x
        kept = _words(generator._seed, 7, x.size).reshape(x.shape) >= p * WORDS
        return np.where(kept, x * (1 / (1 - p) if p < 1 else 0.0), 0.0)

    samples = [
        Sample("vector", (Input((137,)),), {"generator": _Still(3)}),
        Sample("rare", (Input((5, 33)), 0.1), {"generator": _Still(4)}),
        Sample("strided", (Input((6, 9), layout="strided"), 0.75), {"generator": _Still(5)}),
        Sample("transposed", (Input((5, 4, 3), layout="transposed"), 0.3), {"generator": _Still(2**64 - 1)}),
        Sample("expanded", (Input((4, 6), layout="expanded"), 0.5), {"generator": _Still(6)}),
        Sample("scalar", (Input(()), 0.25), {"generator": _Still(7)}),
        Sample("empty", (Input((0, 3)), 0.5), {"generator": _Still(8)}),
        Sample("all", (Input((17,)), 1.0), {"generator": _Still(9)}),
        Sample("none", (Input((17,)), 0), {"generator": _Still(9)}),
        Sample("evaluation", (Input((17,)), 0.5, False)),
    ]
    error_samples = [
        ErrorSample("list", ([1.0],), TypeError, "om.tensor"),
        ErrorSample("bool", (Input((3,), dtype="bool"),), TypeError, "float32"),
        ErrorSample("below", (Input((3,)), -0.1), ValueError, "from 0 to 1"),
        ErrorSample("above", (Input((3,)), 2**70), ValueError, "from 0 to 1"),
        ErrorSample("nan", (Input((3,)), float("nan")), ValueError, "from 0 to 1"),
        ErrorSample("string", (Input((3,)), "0.5"), TypeError, "p must be a number"),
        ErrorSample("training", (Input((3,)), 0.5, 1), TypeError, "training"),
        ErrorSample("generator", (Input((3,)), 0.5, True), TypeError, "Generator", {"generator": 5}),
    ]


@public()
def dropout(x, p=0.5, training=True, *, generator=None):
    """x with each element 0 with probability p and multiplied by 1/(1 - p) otherwise; x itself where training is False or p is 0.

    The words come from `generator` (om.default_generator if it is left out), one for each element.
    """
    floats("dropout", x=x)
    share = real("dropout", "p", p, "from 0 to 1", 0.0, 1.0)
    training = flag("dropout", "training", training)
    source = stream(generator, "dropout")
    drop = math.ceil(share * WORDS)  # a word below share * 2^32 is below this integer
    if not training or drop == 0:
        return calls.present(x, "dropout")
    return Dropout.apply(x, *source.take(x.numel()), drop, 1.0 / (1.0 - share) if share < 1.0 else 0.0)
