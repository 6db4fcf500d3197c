"""Owns the tests of copies, casts, fills and row gathers on bare arrays; views and indexing of tensors are tested elsewhere."""

import itertools

import numpy as np
import pytest

from onemodel._kernels import copy as kernels
from onemodel._kernels import table

ISAS = table.available_isas()
TYPES = [np.uint8, np.int32, np.float32, np.int64]
CASTS = [np.float32, np.int32, np.int64, np.uint8, np.bool_]


def numbers(shape, dtype):
    return np.random.default_rng(0).integers(0, 250, shape).astype(dtype)


def views(x):
    for order in itertools.permutations(range(x.ndim)):
        yield x.transpose(order)
    yield x[::-1, :, ::-1]
    yield x[:, ::-2, 1::3]
    yield x[1:1]
    yield x[:, 2]
    yield x[0, 0, 0]
    yield np.broadcast_to(x[:, :1], x.shape)
    yield np.broadcast_to(x[0, 0, 0], (3, 5, 4))
    yield x.transpose(1, 0, 2)[:, None, ::-1]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_strides_to_any_strides(isa, threads):
    table.select_isa(isa)
    table.set_num_threads(threads)
    table.set_smallest_piece(1)
    for dtype in TYPES:
        for shape in ((3, 41, 37), (2, 8, 16), (5, 1, 33)):
            for src in views(numbers(shape, dtype)) if shape[1] > 2 else [numbers(shape, dtype).T]:
                dst = np.full(src.shape, 255, dtype)
                kernels._array_copy(src, dst)
                assert np.array_equal(dst, src), (src.shape, src.strides)
                # Into a strided target whose other elements must stay.
                room = np.full([2 * n + 3 for n in src.shape], 253, dtype).transpose()
                # (An ellipsis, for without it the index of a 0-d array gives a copy.)
                places = (..., *(slice(1, 1 + 2 * n, 2) for n in src.shape[::-1]))
                target = room[places].transpose()
                expected = room.copy()
                expected[places] = src.transpose()
                kernels._array_copy(src, target)
                assert np.array_equal(room, expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 2])
def test_transposes_end_where_they_should(isa, threads):
    """Tiles, blocks and units of every remainder, between elements that must stay; the source is read to its last element and no further."""
    table.select_isa(isa)
    table.set_num_threads(threads)
    table.set_smallest_piece(64)
    sizes = (1, 2, 3, 5, 7, 8, 9, 15, 17, 31, 33, 65, 130, 259)
    for dtype in TYPES:
        for rows, cols in itertools.product(sizes, sizes):
            x = numbers((cols, rows), dtype)
            room = np.full((rows + 2, cols + (rows + cols) % 2), 253, dtype)
            target = room[1:-1, :cols]
            kernels._array_copy(x.T, target)
            assert np.array_equal(target, x.T), (rows, cols)
            target[...] = 253
            assert (room == 253).all(), (rows, cols)
    # Outer dimensions around the transpose, more of them than pieces; channels behind and in front.
    for shape, order in (((16, 64, 5, 33), (3, 0, 1, 2)), ((70, 9, 40), (1, 2, 0)), ((3, 3, 50, 60), (0, 2, 3, 1)), ((3, 50, 60, 4), (0, 3, 1, 2))):
        x = numbers(shape, np.float32)
        for view in (x.transpose(order), x.transpose(order)[::-1, ..., 1:]):
            kernels._array_copy(view, out := np.zeros(view.shape, np.float32))
            assert np.array_equal(out, view), (shape, order)


def test_a_wrong_copy_is_seen():
    x = numbers((9, 9), np.float32)
    kernels._array_copy(x.T, out := np.empty_like(x))
    assert not np.array_equal(out, x)


@pytest.mark.parametrize("isa", ISAS)
def test_copies_keep_every_bit(isa):
    table.select_isa(isa)
    words = np.random.default_rng(1).integers(0, 2**32, (64, 72), dtype=np.uint32)
    words[::3] = words[::3] & 0x803FFFFF | 0x7F800000  # signalling NaNs with payloads
    for src in (words, words.T, words[::-1]):
        dst = np.empty(src.shape, np.float32)
        kernels._array_copy(src.view(np.float32), dst)
        assert np.array_equal(dst.view(np.uint32), src)


def test_fill():
    for dtype in TYPES:
        room = np.zeros((9, 14), dtype)
        kernels._array_fill(room[1::2, 3:10], np.array([7], dtype))
        expected = np.zeros((9, 14), dtype)
        expected[1::2, 3:10] = 7
        assert np.array_equal(room, expected)


def cast_reference(x, dtype):
    """The rule in Python's own numbers: truncate, saturate, NaN is 0; bool is x != 0; integers wrap; to float the nearest."""
    if dtype is np.bool_:
        return x != 0
    if x.dtype == np.float32 and dtype is not np.float32:
        info = np.iinfo(dtype)
        values = [0 if v != v else info.max if v > info.max else info.min if v < info.min else int(v) for v in x.ravel().tolist()]
        return np.array(values, dtype).reshape(x.shape)
    return x.astype(dtype)


SPECIAL = {
    np.float32: [0.0, -0.0, 1.5, -1.9, 0.99999994, 254.5, 255.0, 256.0, -0.5, -1.0, 3e9, -3e9,
                 2147483520.0, 2147483648.0, -2147483648.0, -2147483904.0, 1e19,
                 9.223371e18, 9.223372e18, -9.223372e18, -1e19, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45],
    np.int32: [0, 1, -1, 255, 256, 257, 16777217, 16777219, -16777217, 2**31 - 1, -(2**31)],
    np.int64: [0, 1, -1, 256, 16777217, 16777219, 2**31, 2**32 + 1, 2**53 + 1, 2**62 + 2**38 + 1, 2**63 - 1, -(2**63), 2**24 * 3 + 1],
    np.uint8: [0, 1, 2, 127, 128, 255],
    np.bool_: [False, True],
}


@pytest.mark.parametrize("isa", ISAS)
def test_casts_alike_in_body_and_tail(isa):
    """H12 of the edge cases: the value may depend on neither position nor stride."""
    table.select_isa(isa)
    table.set_smallest_piece(1)
    for source in CASTS:
        values = np.array(SPECIAL[source], source)
        for target in CASTS:
            for n in (1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 70):
                x = np.resize(np.roll(values, n), n)
                for view in (x, x[::-1], np.repeat(x, 3)[::3], np.broadcast_to(x, (3, n)), np.ascontiguousarray(np.broadcast_to(x, (4, n)).T).T):
                    out = np.full(view.shape, 1, target)
                    kernels._array_cast(view, out)
                    assert np.array_equal(out, cast_reference(view, target), equal_nan=target is np.float32), (source, target, n)


def test_cast_of_the_edge_case():
    x = np.array([np.nan, np.inf, -np.inf, 3e9, -1.9], np.float32)
    for dtype, expected in ((np.int32, [0, 2**31 - 1, -(2**31), 2**31 - 1, -1]), (np.int64, [0, 2**63 - 1, -(2**63), 3_000_000_000, -1])):
        kernels._array_cast(x, out := np.zeros(5, dtype))
        assert out.tolist() == expected
