"""Owns the tests of the random streams on bare buffers: published vectors, an independent Philox, places; the Generator is tested elsewhere."""

import itertools
import math
from array import array

import numpy as np
import pytest

from onemodel._kernels import random as streams
from onemodel._kernels import table

MASK = 0xFFFFFFFF
# Random123's kat_vectors for philox4x32-10: counter, key, output. Only those whose counter has a zero upper half belong to our streams.
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([MASK] * 4, [MASK] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0], [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
]


def philox(counter, key):
    """The definition, in Python's integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(q >> 32) ^ c[1] ^ k[0], q & MASK, (p >> 32) ^ c[3] ^ k[1], p & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


def stream(seed, offset, n):
    key = [seed & MASK, seed >> 32]
    blocks = [philox([b & MASK, b >> 32, 0, 0], key) for b in range(offset // 4, (offset + n + 3) // 4)]
    return np.array([w for block in blocks for w in block], np.uint32)[offset % 4 :][:n]


def drawn(fill, seed, offset, n, dtype, *limits):
    out = np.zeros(n, dtype)
    fill(seed, offset, *limits, out)
    return out


def test_published_vectors():
    for counter, key, output in KNOWN:
        assert philox(counter, key) == output
    assert drawn(streams.words, 0, 0, 4, np.uint32).tolist() == KNOWN[0][2]


@pytest.mark.parametrize("isa", table.available_isas())
def test_words_are_the_definition(isa):
    table.select_isa(isa)
    for seed, offset, n in ((0, 0, 1), (1, 3, 300), (2**64 - 1, 2**34 - 5, 140), (0x299F31D0A4093822, 2**63, 9), (7, 1, 129), (7, 2, 0)):
        assert np.array_equal(drawn(streams.words, seed, offset, n, np.uint32), stream(seed, offset, n))


def test_a_wrong_round_is_seen(monkeypatch):
    monkeypatch.setitem(globals(), "MASK", 0x7FFFFFFF)
    assert not np.array_equal(drawn(streams.words, 1, 0, 8, np.uint32), stream(1, 0, 8))


@pytest.mark.parametrize("isa", table.available_isas())
def test_values_follow_from_the_words(isa):
    table.select_isa(isa)
    for offset in (0, 2, 6):
        words = stream(5, offset, 400).astype(np.float64)
        assert np.array_equal(drawn(streams.uniform, 5, offset, 400, np.float32), np.floor(words / 256) / 2**24)
        u, v = (words[::2] + 0.5) / 2**32, words[1::2] / 2**32
        radius = np.sqrt(-2 * np.log(u))
        expected = np.stack([radius * np.cos(2 * np.pi * v), radius * np.sin(2 * np.pi * v)], axis=1).ravel()
        # The radius and the product are rounded to float32 in turn.
        assert np.allclose(drawn(streams.normal, 5, offset, 400, np.float32), expected, rtol=1.8e-7, atol=1e-9)
        draws = [int(a) | int(b) << 32 for a, b in stream(5, offset, 400).reshape(-1, 2)]
        for low, high in ((0, 6), (-3, 2**40), (-(2**63), 2**63 - 1), (7, 8)):
            assert drawn(streams.integers, 5, offset, 200, np.int64, low, high).tolist() == [low + (d * (high - low) >> 64) for d in draws]


def test_every_path_gives_the_same_bits():
    seen = set()
    for isa in table.available_isas():
        table.select_isa(isa)
        fills = ((streams.normal, np.float32), (streams.uniform, np.float32), (streams.permutation, np.int64))
        parts = [drawn(fill, 9, 1, 1000, dtype) for fill, dtype in fills]
        seen.add(b"".join(p.tobytes() for p in parts))
    assert len(seen) == 1


@pytest.mark.parametrize("isa", table.available_isas())
def test_a_number_depends_on_its_place_alone(isa):
    table.select_isa(isa)
    fills = ((streams.uniform, np.float32, 1, ()), (streams.normal, np.float32, 1, ()), (streams.integers, np.int64, 2, (0, 1000)))
    for fill, dtype, per, limits in fills:
        table.set_num_threads(1)
        whole = drawn(fill, 3, 10, 700, dtype, *limits)
        for start, n in itertools.product((0, 1, 2, 3, 5, 130), (1, 2, 7, 129, 400)):
            assert np.array_equal(drawn(fill, 3, 10 + per * start, n, dtype, *limits), whole[start : start + n])
        table.set_smallest_piece(1)
        for threads in (2, 3):
            table.set_num_threads(threads)
            assert np.array_equal(drawn(fill, 3, 10, 700, dtype, *limits), whole)
        table.set_smallest_piece(32768)


def test_moments_and_tails():
    n = 1_000_000
    u, z = drawn(streams.uniform, 1, 0, n, np.float32).astype(float), drawn(streams.normal, 2, 0, n, np.float32).astype(float)
    assert u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 5 * math.sqrt(1 / 12 / n) and abs(u.var() - 1 / 12) < 1e-3
    assert abs(z.mean()) < 5 / math.sqrt(n) and abs(z.var() - 1) < 5 * math.sqrt(2 / n) and abs((z**4).mean() - 3) < 5 * math.sqrt(96 / n)
    assert abs((np.abs(z) > 3).mean() - 0.0026998) < 5 * math.sqrt(0.0027 / n)
    assert abs(np.corrcoef(z[::2], z[1::2])[0, 1]) < 5 / math.sqrt(n / 2)
    counts = np.bincount(drawn(streams.integers, 3, 0, n, np.int64, 0, 7), minlength=7)
    assert ((counts - n / 7) ** 2 / (n / 7)).sum() < 35


def test_permutations():
    for n in (0, 1, 2, 65, 1000):
        assert sorted(drawn(streams.permutation, 4, 0, n, np.int64)) == list(range(n))
    orders = [tuple(drawn(streams.permutation, 4, 6 * k, 3, np.int64)) for k in range(6000)]
    counts = np.array([orders.count(p) for p in itertools.permutations(range(3))])
    assert counts.sum() == 6000 and ((counts - 1000) ** 2 / 1000).sum() < 30


def test_wrong_buffers_and_limits():
    with pytest.raises(TypeError, match="uniform: expected a buffer of 4-byte elements of format f, got 'd'"):
        streams.uniform(0, 0, np.zeros(3))
    with pytest.raises(ValueError, match="low < high"):
        streams.integers(0, 0, 5, 5, np.zeros(3, np.int64))
    frozen = np.zeros(3, np.float32)
    frozen.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        streams.normal(0, 0, frozen)
    with pytest.raises((ValueError, BufferError)):
        streams.normal(0, 0, np.zeros(6, np.float32)[::2])
    with pytest.raises(OverflowError):
        streams.words(-1, 0, np.zeros(3, np.uint32))
    numbers = array("f", [0.0] * 5)
    streams.uniform(1, 0, numbers)
    assert np.array_equal(numbers, drawn(streams.uniform, 1, 0, 5, np.float32))
