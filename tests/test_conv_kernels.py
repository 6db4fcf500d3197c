"""Convolutions of every geometry, path, mode and thread count give the bits of the plain loop nest, forward and adjoint.

The loop nest here is written from docs/ops-conv.md alone, on the fused step that tests/test_gemm.py proves. Must not contain timings.
"""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_gemm import EXACT, FAST, FUSED, PATHS, SPECIAL, bits, canonical, fused, normal, two_roundings

from onemodel import memory
from onemodel._kernels import conv, table
from onemodel._pool import pool


@pytest.fixture(autouse=True)
def poisoned():
    """Scratch from the pool is full of signalling NaN: no pad lane may reach an output."""
    old = pool.set_pool_poison(True)
    yield
    pool.set_pool_poison(old)


class Case:
    """One geometry; `end` is the padding below and right, `rest` the input's rows and columns that no window reaches."""

    def __init__(self, n=1, groups=1, ic=1, oc=1, size=(5, 5), kernel=(3, 3), stride=(1, 1), padding=(0, 0), end=(0, 0), dilation=(1, 1)):
        self.n, self.groups, self.ic, self.oc = n, groups, ic, oc  # channels of one group
        self.size, self.kernel, self.stride, self.padding, self.dilation = size, kernel, stride, padding, dilation
        self.out = tuple((h + p + e - d * (k - 1) - 1) // s + 1 if h + p + e >= d * (k - 1) + 1 else 0
                         for h, p, e, d, k, s in zip(size, padding, end, dilation, kernel, stride, strict=True))
        self.x = normal(1, n, groups * ic, *size)
        self.w = normal(2, groups * oc, ic, *kernel)
        self.g = normal(3, n, groups * oc, *self.out)
        self.bias, self.bias_x = normal(4, groups * oc), normal(5, groups * ic)
        self.words = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}

    def __repr__(self):
        return f"Case({', '.join(f'{k}={v}' for k, v in vars(self).items() if k in ('n', 'groups', 'ic', 'oc', 'size', 'kernel', 'out'))}, {self.words})"

    def forward(self, x=None, **words):
        return conv.forward_arrays(self.x if x is None else x, self.w, words.pop("bias", self.bias), size=self.out, **self.words, **words)

    def input(self, **words):
        return conv.input_arrays(self.g, self.w, words.pop("bias", self.bias_x), size=self.size, **self.words, **words)


def taps(case):
    """Channel of the group, kernel row, kernel column, in the chain's order."""
    return itertools.product(range(case.ic), range(case.kernel[0]), range(case.kernel[1]))


def loop_forward(case, step=fused):
    """y[n, o, r, c]: one chain from +0 over (channel, kernel row, kernel column); a tap outside x is a +0 that is multiplied."""
    (sh, sw), (pt, pl), (dh, dw), (oh, ow) = case.stride, case.padding, case.dilation, case.out
    y = np.zeros((case.n, case.groups, case.oc, oh, ow), np.float32)
    x = case.x.reshape(case.n, case.groups, case.ic, *case.size)
    w = case.w.reshape(case.groups, case.oc, case.ic, *case.kernel)
    for c, i, j in taps(case):
        rows, cols = np.arange(oh) * sh + i * dh - pt, np.arange(ow) * sw + j * dw - pl
        inside = ((rows >= 0) & (rows < case.size[0]))[:, None] & ((cols >= 0) & (cols < case.size[1]))
        read = x[:, :, c][:, :, np.clip(rows, 0, case.size[0] - 1)[:, None], np.clip(cols, 0, case.size[1] - 1)] if inside.any() else 0
        tap = np.where(inside, read, np.float32(0))
        y = step(np.broadcast_to(tap, (case.n, case.groups, oh, ow))[:, :, None], w[:, :, c, i, j][:, :, None, None], y)
    return y.reshape(case.n, case.groups * case.oc, oh, ow) + case.bias[:, None, None]


def loop_input(case, step=fused):
    """dx[n, c, y, x]: one chain from +0 over (output channel, kernel row, kernel column) with the taps whose distance to the output is a
    multiple of the stride; such a tap outside g is a +0 that is multiplied."""
    (sh, sw), (pt, pl), (dh, dw), (oh, ow) = case.stride, case.padding, case.dilation, case.out
    dx = np.zeros((case.n, case.groups, case.ic, *case.size), np.float32)
    g = case.g.reshape(case.n, case.groups, case.oc, oh, ow)
    w = case.w.reshape(case.groups, case.oc, case.ic, *case.kernel)
    for o, i, j in itertools.product(range(case.oc), range(case.kernel[0]), range(case.kernel[1])):
        rows, cols = np.arange(case.size[0]) + pt - i * dh, np.arange(case.size[1]) + pl - j * dw
        there = np.ix_(rows % sh == 0, cols % sw == 0)
        rows, cols = rows[rows % sh == 0] // sh, cols[cols % sw == 0] // sw
        inside = ((rows >= 0) & (rows < oh))[:, None] & ((cols >= 0) & (cols < ow))
        read = g[:, :, o][:, :, np.clip(rows, 0, oh - 1)[:, None], np.clip(cols, 0, ow - 1)] if inside.any() else 0
        tap = np.broadcast_to(np.where(inside, read, np.float32(0)), (case.n, case.groups, len(rows), len(cols)))
        old = dx[:, :, :, there[0], there[1]]
        dx[:, :, :, there[0], there[1]] = step(tap[:, :, None], w[:, o, :, i, j][:, :, None, None], old)
    return dx.reshape(case.n, case.groups * case.ic, *case.size) + case.bias_x[:, None, None]


def check(case, path, mode, known=None):
    """`known` keeps the loop nest's results for other paths of the same case."""
    known = {} if known is None else known
    with np.errstate(all="ignore"):
        step = fused if mode == EXACT or path in FUSED else two_roundings
        for name, got, loop in (("forward", case.forward, loop_forward), ("input", case.input, loop_input)):
            if (name, step) not in known:
                known[name, step] = loop(case, step)
            want, y = known[name, step], got(mode=mode)
            given = bits(y) if mode == EXACT else canonical(y)
            wrong = np.argwhere(given != canonical(want))
            if len(wrong):
                first = tuple(wrong[0])
                pytest.fail(f"{name} {path} mode {mode} {case}: {len(wrong)} of {y.size} differ, {first}: {y[first]!r}, expected {want[first]!r}")


class Paths:
    def __iter__(self):
        for path in PATHS:
            table.select_isa(path)
            yield from ((path, FAST), (path, EXACT))


EVERY = Paths()

CASES = {
    "3x3": Case(n=2, ic=3, oc=7, size=(9, 21), padding=(1, 1), end=(1, 1)),
    "1x1": Case(n=2, ic=5, oc=9, size=(6, 7), kernel=(1, 1)),
    "1x1 stride": Case(n=1, ic=5, oc=9, size=(9, 12), kernel=(1, 1), stride=(3, 2)),
    "tall": Case(n=1, ic=40, oc=20, size=(10, 16), padding=(1, 1), end=(1, 1)),
    "wide": Case(n=1, ic=2, oc=16, size=(3, 90), kernel=(3, 5), padding=(1, 2), end=(1, 2)),
    "7x7 stride 2": Case(n=1, ic=3, oc=18, size=(23, 30), kernel=(7, 7), stride=(2, 2), padding=(3, 3), end=(3, 3)),
    "4x4 stride 2": Case(n=2, ic=6, oc=5, size=(16, 32), kernel=(4, 4), stride=(2, 2), padding=(1, 1), end=(1, 1)),
    "groups": Case(n=2, groups=3, ic=4, oc=5, size=(8, 8), padding=(1, 1), end=(1, 1)),
    "depthwise": Case(n=2, groups=9, ic=1, oc=2, size=(8, 17), padding=(1, 1), end=(1, 1)),
    "one dimension": Case(n=2, ic=4, oc=6, size=(1, 60), kernel=(1, 5), stride=(1, 2), padding=(0, 3), end=(0, 1), dilation=(1, 2)),
    "one column": Case(n=1, ic=4, oc=6, size=(40, 1), kernel=(5, 1), padding=(2, 0), end=(2, 0)),
    "small planes": Case(n=5, ic=30, oc=33, size=(4, 4), padding=(1, 1), end=(1, 1)),
    "one output": Case(n=3, ic=5, oc=8, size=(4, 3), kernel=(4, 3)),
    "stride beyond the kernel": Case(n=1, ic=3, oc=4, size=(20, 31), kernel=(2, 3), stride=(4, 5), padding=(1, 0)),
    "dilated and strided": Case(n=1, ic=3, oc=4, size=(24, 37), kernel=(3, 4), stride=(2, 3), padding=(2, 3), end=(1, 4), dilation=(2, 3)),
    "dilation shares a divisor with stride": Case(n=1, ic=2, oc=3, size=(19, 29), kernel=(4, 3), stride=(4, 6), dilation=(2, 4), padding=(3, 1)),
    "a tail that no window reaches": Case(n=1, ic=3, oc=4, size=(9, 12), kernel=(3, 3), stride=(4, 5)),
    "only padding": Case(n=1, ic=2, oc=3, size=(2, 2), kernel=(1, 1), padding=(3, 3), end=(3, 3)),
    "weights whose rows share a set": Case(n=1, ic=256, oc=13, size=(4, 9), kernel=(2, 2), padding=(1, 0)),
    "few outputs": Case(n=1, ic=21, oc=3, size=(7, 40), padding=(1, 1), end=(1, 1)),
    "V02": Case(groups=4, size=(7, 7), stride=(2, 2)),
    "V04": Case(groups=2, ic=2, oc=2, size=(7, 7), kernel=(2, 2), stride=(3, 3), padding=(1, 1), end=(1, 1)),
    "V05": Case(ic=2, oc=3, size=(1, 12), kernel=(1, 3), stride=(1, 5)),
    "V06": Case(ic=3, oc=4, size=(1, 11), kernel=(1, 8), padding=(0, 7), end=(0, 7)),
    "V13": Case(ic=2, oc=3, size=(5, 5), kernel=(1, 1), stride=(2, 2)),
    "no image": Case(n=0, ic=2, oc=3), "no channel": Case(n=2, ic=0, oc=3), "no output channel": Case(n=2, ic=2, oc=0),
    "no output": Case(n=1, ic=2, oc=3, size=(2, 9)), "no row": Case(n=1, ic=2, oc=3, size=(0, 5), padding=(2, 1), end=(2, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_bits_of_the_loop_nest(name):
    known = {}
    for path, mode in EVERY:
        check(CASES[name], path, mode, known)


@pytest.mark.parametrize("name", CASES)
def test_threads_and_pieces_change_no_bit(name):
    case = CASES[name]
    for path, mode in EVERY:
        table.set_smallest_piece(32768)
        table.set_num_threads(1)
        first = case.forward(mode=mode), case.input(mode=mode)
        for piece, threads in [(1, 1), (1, 2), (1, 3), (50, 2)]:
            table.set_smallest_piece(piece)
            table.set_num_threads(threads)
            for a, b in zip(first, (case.forward(mode=mode), case.input(mode=mode)), strict=True):
                assert np.array_equal(bits(a), bits(b)), (path, mode, piece, threads)


@st.composite
def geometries(draw):
    def pair(low, high):
        return draw(st.tuples(st.integers(low, high), st.integers(low, high)))

    kernel, dilation, padding, end = pair(1, 7), pair(1, 3), pair(0, 4), pair(0, 4)
    flat = draw(st.sampled_from([0, 0, 0, 1, 2]))
    if flat:
        kernel = (1, kernel[1]) if flat == 1 else (kernel[0], 1)
    least = [max(1, d * (k - 1) + 1 - p - e) for d, k, p, e in zip(dilation, kernel, padding, end, strict=True)]
    size = tuple(low + draw(st.sampled_from([0, 1, 2, 3, 5, 8, 13, 20, 33])) for low in least)
    return Case(n=draw(st.integers(1, 3)), groups=draw(st.integers(1, 3)), ic=draw(st.integers(1, 5)), oc=draw(st.sampled_from([1, 2, 3, 4, 6, 7, 15])),
                size=size, kernel=kernel, stride=pair(1, 3), padding=padding, end=end, dilation=dilation)


@given(geometries(), st.sampled_from(PATHS), st.sampled_from([FAST, EXACT]), st.integers(1, 3), st.sampled_from([1, 100, 32768]))
def test_any_geometry(case, path, mode, threads, piece):
    table.select_isa(path)
    table.set_num_threads(threads)
    table.set_smallest_piece(piece)
    check(case, path, mode)

class Placed(Case):
    """A case whose x stands in larger storage: its rows are contiguous, all else is apart, and NaN around it must not be read."""

    def __init__(self, **words):
        super().__init__(**words)
        n, c, h, w = self.x.shape
        room = np.full((n + 1, 2 * c, h + 2, w + 5), np.nan, np.float32)
        view = room[1:, 1::2, 1:-1, 2:-3]
        view[...] = self.x
        self.x = view


STRIDED = {
    "direct": {"n": 2, "ic": 4, "oc": 9, "size": (10, 32), "padding": (1, 1), "end": (1, 1)},
    "panels": {"n": 3, "ic": 4, "oc": 40, "size": (5, 5), "padding": (1, 1), "end": (1, 1)},
    "1x1": {"n": 2, "ic": 12, "oc": 9, "size": (5, 16), "kernel": (1, 1)},
    "one row": {"n": 2, "ic": 12, "oc": 9, "size": (1, 90), "kernel": (1, 1)},
    "as large as x": {"n": 6, "ic": 3, "oc": 9, "size": (3, 4), "kernel": (3, 4)},
    "stride 3": {"n": 2, "groups": 2, "ic": 4, "oc": 5, "size": (9, 40), "stride": (2, 3), "padding": (1, 0)},
}


@pytest.mark.parametrize("name", STRIDED)
def test_x_is_read_by_its_strides(name):
    case = Placed(**STRIDED[name])
    want = loop_forward(case)
    for path, mode in EVERY:
        if mode == EXACT or path in FUSED:
            assert np.array_equal(bits(case.forward(mode=mode)), bits(want)), (path, mode)
    expanded = Case(**STRIDED[name])
    expanded.x = np.broadcast_to(expanded.x[:1, :1], expanded.x.shape)
    assert np.array_equal(bits(expanded.forward(mode=EXACT)), bits(loop_forward(expanded)))


@pytest.mark.parametrize("name", ["3x3", "1x1", "4x4 stride 2", "small planes", "one dimension", "few outputs"])
def test_nothing_is_written_beside_the_output(name):
    case = CASES[name]
    for _, mode in EVERY:
        for run, shape in ((case.forward, (case.n, case.groups * case.oc, *case.out)), (case.input, (case.n, case.groups * case.ic, *case.size))):
            size = int(np.prod(shape))
            whole = np.full(size + 256, 7, np.float32)
            got = run(mode=mode, out=whole[128:-128].reshape(shape))
            assert np.array_equal(got, run(mode=mode)) and np.all(whole[:128] == 7) and np.all(whole[-128:] == 7)


@pytest.mark.parametrize("name", ["3x3", "1x1", "4x4 stride 2", "small planes", "one dimension", "weights whose rows share a set"])
def test_special_values_in_exact_mode(name):
    """Infinities, signed zeros, denormals, overflow, NaN with a payload, in x, w and g; a padded tap times infinity is NaN."""
    case = Case.__new__(Case)
    vars(case).update(vars(CASES[name]))
    rng = np.random.default_rng(9)
    for field in ("x", "w", "g", "bias", "bias_x"):
        array = getattr(case, field)
        array = np.where(rng.random(array.shape) < 0.02, rng.choice(SPECIAL, array.shape), array).astype(np.float32)
        array.view(np.uint32)[np.isnan(array)] = 0xFFC12345
        setattr(case, field, array)
    with np.errstate(all="ignore"):
        want = loop_forward(case), loop_input(case)
    assert any(np.isnan(w).any() for w in want)
    for path in PATHS:
        table.select_isa(path)
        for got, expected in zip((case.forward(mode=EXACT), case.input(mode=EXACT)), want, strict=True):
            assert np.array_equal(bits(got), canonical(expected)), path


def test_kernels_and_dilations_that_leave_no_room_for_a_copy():
    """Collected tap by tap: a dilation beyond every cache, a kernel of thousands of taps, both ways, strided too."""
    for case in (Case(ic=1, oc=2, size=(3, 70_000), kernel=(2, 2), dilation=(1, 69_990), padding=(0, 3), end=(0, 2)),
                 Case(ic=1, oc=2, size=(5, 66_000), kernel=(2, 2), stride=(2, 2), dilation=(2, 65_980), padding=(0, 5)),
                 Case(ic=1, oc=2, size=(66, 65), kernel=(65, 64), padding=(1, 0), end=(0, 1))):
        want = loop_forward(case), None if case.kernel[0] > 9 else loop_input(case)
        for path in ("scalar", PATHS[-1]):
            table.select_isa(path)
            assert np.array_equal(bits(case.forward(mode=EXACT)), bits(want[0])), (path, case)
            assert want[1] is None or np.array_equal(bits(case.input(mode=EXACT)), bits(want[1])), (path, case)


def test_scratch_does_not_grow_with_images():
    def peak(n):
        case = Case.__new__(Case)
        vars(case).update(vars(Case(n=1, ic=16, oc=32, size=(32, 32), padding=(1, 1), end=(1, 1))))
        case.x, case.g, case.n = np.zeros((n, 16, 32, 32), np.float32), np.zeros((n, 32, 32, 32), np.float32), n
        memory.pool_trim()
        memory.pool_reset_peak()
        case.forward(mode=FAST)
        case.input(mode=FAST)
        return memory.pool_stats().peak_outstanding_bytes

    table.set_num_threads(1)
    assert peak(40) <= peak(2) < 4 << 20


def test_no_memory_is_an_error_and_keeps_nothing():
    case = CASES["tall"]
    before = memory.pool_stats().outstanding_blocks
    memory.pool_trim()
    memory.set_pool_limit(memory.pool_stats().outstanding_bytes + 4096)
    try:
        for run in (case.forward, case.input):
            with pytest.raises(MemoryError):
                run(mode=EXACT)
    finally:
        memory.set_pool_limit(None)
    assert memory.pool_stats().outstanding_blocks == before
    check(case, PATHS[-1], EXACT)


@pytest.mark.parametrize("n", [1, 6])
def test_threads_take_part(n):
    case = Case(n=n, ic=16, oc=16, size=(32, 32), padding=(1, 1), end=(1, 1))
    table.set_num_threads(2)
    table.set_smallest_piece(1000)
    for run in (case.forward, case.input):
        end = time.monotonic() + 20
        while run() is not None and table.last_threads() < 2:
            assert time.monotonic() < end, "no convolution ran on more than one thread"


def test_outputs_that_no_window_reached_have_a_gradient_of_zero():
    """V05: the dropped tail, to the bit; without a bias."""
    for _, mode in EVERY:
        dx = CASES["V05"].input(mode=mode, bias=None)
        assert dx.shape[-1] == 12 and (bits(dx[..., 8:]) == 0).all()


def test_extra_rows_of_a_transposed_convolution_are_contributions():
    """K03: stride 2, padding 1, output padding 1."""
    w = np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3)
    for _, mode in EVERY:
        y = conv.input_arrays(np.ones((1, 1, 1, 1), np.float32), w, size=(2, 2), stride=(2, 2), padding=(1, 1), mode=mode)
        assert y.tolist() == [[[[5, 6], [8, 9]]]]
