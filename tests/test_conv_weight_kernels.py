"""The weight gradient of a convolution by itself: every geometry, layout, path, mode and thread count gives the bits of the plain loop nest.

The reference steps through output positions one by one, with the fused step of test_gemm. Must not contain operators or timings.
"""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_gemm import FUSED, bits, canonical, fused, normal, two_roundings

import onemodel as om
from onemodel._kernels import conv_weight, table
from onemodel._pool import pool

FAST, EXACT = 0, 1
PATHS = table.available_isas()


def frame(x, kernel, stride, padding, dilation, out):
    """x with zeros around it, as far as any tap of any output reaches."""
    high, wide = ((out[d] - 1) * stride[d] + (kernel[d] - 1) * dilation[d] + 1 for d in (0, 1))
    room = np.zeros((*x.shape[:2], max(high, padding[0] + x.shape[2]), max(wide, padding[1] + x.shape[3])), np.float32)
    room[:, :, padding[0] : padding[0] + x.shape[2], padding[1] : padding[1] + x.shape[3]] = x
    return room


def reference(x, g, kernel, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1, step=fused):
    """Per image one chain over output positions from +0; images are added in order, the first is stored."""
    with np.errstate(all="ignore"):
        n, oc, oh, ow = g.shape
        icg, ocg = x.shape[1] // groups, oc // groups
        room = frame(x, kernel, stride, padding, dilation, (oh, ow))
        dw = np.zeros((groups, ocg, icg, *kernel), np.float32)
        for i in range(n):
            acc = np.zeros_like(dw)
            for r in range(oh):
                for c in range(ow):
                    taps = room[i, :, r * stride[0] :, c * stride[1] :][:, : (kernel[0] - 1) * dilation[0] + 1 : dilation[0], : (kernel[1] - 1) * dilation[1] + 1 : dilation[1]]
                    acc = step(taps.reshape(groups, 1, icg, *kernel), g[i, :, r, c].reshape(groups, ocg, 1, 1, 1), acc)
            dw = acc if i == 0 else dw + acc
        return dw.reshape(oc, icg, *kernel)


def agree(got, want, mode):
    given = bits(got) if mode == EXACT else canonical(got)
    assert got.shape == want.shape and np.array_equal(given, canonical(want)), np.argwhere(given != canonical(want))[:5]


def check(x, g, kernel, threads=(1, 2, 3), paths=PATHS, **geometry):
    expected = reference(x, g, kernel, **geometry)
    loose = None
    for path in paths:
        table.select_isa(path)
        for mode in (EXACT, FAST):
            want = expected
            if mode == FAST and path not in FUSED:
                loose = want = reference(x, g, kernel, **geometry, step=two_roundings) if loose is None else loose
            for count in threads:
                table.set_num_threads(count)
                table.set_smallest_piece(32768 if count == 1 else 1)
                agree(conv_weight._array_conv_weight(x, g, kernel, mode=mode, **geometry), want, mode)


@pytest.fixture(autouse=True)
def poisoned():
    """Scratch from the pool is full of signalling NaN: no pad lane may reach an output."""
    old = pool.set_pool_poison(True)
    yield
    pool.set_pool_poison(old)


@st.composite
def geometries(draw):
    """Everything a convolution has, small; the padding below and to the right follows from a free choice of outputs."""
    pair = lambda low, high: (draw(st.integers(low, high)), draw(st.integers(low, high)))  # noqa: E731
    kernel, stride, dilation = pair(1, 7), pair(1, 3), pair(1, 3)
    size = draw(st.sampled_from([(1, 19), (13, 1), (2, 3), (7, 7), (5, 11), (9, 8)]))
    padding = (draw(st.integers(0, kernel[0])), draw(st.integers(0, kernel[1])))
    out = tuple(max(1, (size[d] + padding[d] + draw(st.integers(0, 3)) - (kernel[d] - 1) * dilation[d] - 1) // stride[d] + 1) for d in (0, 1))
    return dict(n=draw(st.integers(1, 3)), groups=draw(st.integers(1, 3)), icg=draw(st.integers(1, 5)), ocg=draw(st.sampled_from([1, 2, 3, 5, 8, 17])),
                size=size, out=out, kernel=kernel, stride=stride, padding=padding, dilation=dilation, layout=draw(st.integers(0, 3)))


def stored(x, layout):
    """The same images as a part of something wider, turned around, or expanded over the batch."""
    if layout == 1:
        room = np.full((x.shape[0], 2 * x.shape[1], x.shape[2] + 2, x.shape[3] + 3), np.nan, np.float32)
        view = room[:, ::2, 1:-1, 1 : 1 + x.shape[3]]
        view[...] = x
        return view
    if layout == 2:
        return np.ascontiguousarray(x[::-1, :, ::-1])[::-1, :, ::-1]
    return np.broadcast_to(x[:1], x.shape) if layout == 3 else x


@given(geometries())
def test_bits_of_the_plain_loop_nest(case):
    x = stored(normal(1, case["n"], case["groups"] * case["icg"], *case["size"]), case["layout"])
    g = normal(2, case["n"], case["groups"] * case["ocg"], *case["out"])
    check(x, g, case["kernel"], stride=case["stride"], padding=case["padding"], dilation=case["dilation"], groups=case["groups"])


# Each beyond one of the sizes that conv_weight.pyx cuts at: several chunks of rows, of columns, several images in one, planes in place, planes
# unfolded since most of them would be read in vain, more rows or columns than a piece has.
LARGER = {
    "chunks of rows": ((2, 3, 20, 33), (2, 20, 20, 33), (3, 3), dict(padding=(1, 1))),
    "chunks of columns": ((1, 2, 1, 700), (1, 3, 1, 700), (1, 5), dict(padding=(0, 2))),
    "chunks of both": ((2, 1, 3, 300), (2, 2, 2, 299), (2, 2), dict()),
    "images beside each other": ((9, 5, 4, 4), (9, 18, 4, 4), (3, 3), dict(padding=(1, 1))),
    "images beside each other, the last alone": ((5, 3, 8, 8), (5, 4, 8, 8), (3, 3), dict(padding=(1, 1))),
    "one position": ((7, 40, 1, 1), (7, 35, 1, 1), (1, 1), dict()),
    "one by one": ((2, 40, 17, 16), (2, 19, 17, 16), (1, 1), dict()),
    "one by one, strided": ((2, 7, 17, 15), (2, 9, 9, 8), (1, 1), dict(stride=(2, 2))),
    "the kernel is the input": ((3, 4, 6, 7), (3, 5, 1, 1), (6, 7), dict()),
    "large stride": ((2, 3, 90, 95), (2, 5, 3, 3), (2, 2), dict(stride=(40, 41), padding=(1, 0))),
    "large dilation": ((2, 3, 90, 95), (2, 5, 30, 37), (3, 3), dict(dilation=(30, 29), padding=(1, 0))),
    "many rows": ((2, 150, 4, 4), (2, 3, 4, 4), (3, 3), dict(padding=(1, 1))),
    "many columns": ((1, 2, 5, 5), (1, 150, 5, 5), (3, 3), dict(padding=(1, 1))),
    "many taps": ((1, 2, 40, 40), (1, 3, 4, 4), (37, 37), dict()),
    "many taps, padded": ((1, 1, 40, 40), (1, 3, 6, 6), (37, 37), dict(padding=(1, 1))),
    "groups": ((2, 12, 9, 9), (2, 18, 9, 9), (3, 3), dict(padding=(1, 1), groups=3)),
    "one output": ((2, 21, 9, 20), (2, 1, 9, 20), (3, 3), dict(padding=(1, 1))),
    "two outputs, strided": ((3, 17, 17, 20), (3, 2, 9, 9), (5, 5), dict(padding=(2, 1), stride=(2, 2))),
    "three outputs": ((2, 30, 20, 21), (2, 3, 20, 21), (3, 3), dict(padding=(1, 1))),
    "four outputs, wide": ((2, 12, 3, 150), (2, 4, 3, 149), (3, 4), dict(padding=(1, 1))),
    "three outputs, in parts of a row": ((1, 8, 3, 1100), (1, 3, 3, 1100), (3, 3), dict(padding=(1, 1))),
    "seven outputs": ((2, 16, 6, 9), (2, 7, 6, 9), (3, 3), dict(padding=(1, 1))),
    "channels alone": ((3, 19, 9, 11), (3, 38, 5, 6), (3, 3), dict(padding=(1, 1), stride=(2, 2), groups=19)),
    # edge rows V02 and V04: groups with stride, and a stride beyond the kernel; V05: the forward drops the tail of its input
    "V02": ((1, 4, 7, 7), (1, 4, 3, 3), (3, 3), dict(stride=(2, 2), groups=4)),
    "V02, two channels": ((2, 8, 7, 7), (2, 6, 3, 3), (3, 3), dict(stride=(2, 2), groups=2)),
    "V04": ((2, 4, 7, 8), (2, 6, 3, 4), (2, 2), dict(stride=(3, 3), padding=(1, 1), groups=2)),
    "V05": ((2, 3, 1, 12), (2, 4, 1, 2), (1, 3), dict(stride=(1, 5))),
}


@pytest.mark.parametrize("name", LARGER)
def test_larger_ones(name):
    x, g, kernel, how = LARGER[name]
    check(normal(1, *x), normal(2, *g), kernel, **how)


SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 3e38, -3e38, 1e-30, 1.0, -1.0], np.float32)


def special(seed, *shape):
    """A tenth of infinities, NaN with a payload, signed zeros, denormals, numbers that overflow."""
    rng = np.random.default_rng(seed)
    x = np.where(rng.random(shape) < 0.1, rng.choice(SPECIAL, shape), normal(seed, *shape)).astype(np.float32)
    x.view(np.uint32)[np.isnan(x)] = 0xFFC12345
    return x


@pytest.mark.parametrize("name", ["chunks of rows", "images beside each other", "one by one", "large stride", "channels alone", "three outputs", "V04"])
def test_special_values(name):
    """In exact mode every NaN is the canonical one; an infinity meets the zeros of the padding, which are multiplied."""
    x, g, kernel, how = LARGER[name]
    check(special(1, *x), special(2, *g), kernel, threads=(2,), **how)


def test_padding_is_multiplied():
    x, g = np.ones((1, 1, 2, 2), np.float32), np.full((1, 1, 4, 4), np.inf, np.float32)
    for groups, channels in ((1, 2), (2, 2)):
        images = np.repeat(x, channels, 1)
        dw = conv_weight._array_conv_weight(images, np.repeat(g, channels, 1), (3, 3), padding=(2, 2), groups=groups, mode=EXACT)
        assert (bits(dw) == 0x7FC00000).all()


@pytest.mark.parametrize("x,g", [((0, 3, 5, 5), (0, 4, 3, 3)), ((2, 3, 5, 5), (2, 4, 0, 3)), ((2, 3, 5, 5), (2, 4, 3, 0))])
def test_nothing_to_sum_gives_zeros(x, g):
    assert (bits(conv_weight._array_conv_weight(np.zeros(x, np.float32), np.zeros(g, np.float32), (3, 3), mode=EXACT)) == 0).all()


@pytest.mark.parametrize("x,g", [((2, 0, 5, 5), (2, 4, 3, 3)), ((2, 3, 5, 5), (2, 0, 3, 3))])
def test_no_channels(x, g):
    assert conv_weight._array_conv_weight(np.zeros(x, np.float32), np.zeros(g, np.float32), (3, 3), mode=EXACT).size == 0


@pytest.mark.parametrize("groups", [1, 16])
def test_threads_take_part(groups):
    """A worker of a busy machine may come too late for one product, not for every one of several seconds."""
    x, g = normal(1, 4, 32, 32, 32), normal(2, 4, 32, 32, 32)
    table.set_num_threads(2)
    end = time.monotonic() + 20
    while conv_weight._array_conv_weight(x, g, (3, 3), padding=(1, 1), groups=groups) is not None and table.last_threads() < 2:
        assert time.monotonic() < end, "no gradient ran on more than one thread"


@pytest.mark.parametrize("x,g,kernel,how", [((7, 3, 20, 20), (7, 32, 20, 20), (3, 3), {"padding": (1, 1)}),  # large images of a small dw
                                            ((37, 3, 6, 6), (37, 20, 6, 6), (3, 3), {"padding": (1, 1)}),  # several images in a chunk
                                            ((5, 4, 9, 9), (5, 40, 9, 9), (1, 1), {"groups": 2})])
def test_images_apart(x, g, kernel, how):
    """A dw that is too small to be cut: pieces are images, and their gradients are added in order."""
    check(normal(1, *x), normal(2, *g), kernel, threads=(1, 2, 3, 8), **how)
    check(special(3, *x), special(4, *g), kernel, threads=(2, 8), **how)
    table.select_isa(PATHS[-1])
    table.set_num_threads(2)
    end = time.monotonic() + 20
    while conv_weight._array_conv_weight(normal(1, *x), normal(2, *g), kernel, **how) is not None and table.last_threads() < 2:
        assert time.monotonic() < end, "no gradient ran on more than one thread"


def test_scratch_does_not_grow_with_the_batch():
    """Once warm, batches of any size take the blocks that are there."""
    table.set_num_threads(1)
    small, large = ((normal(1, n, 8, 20, 20), normal(2, n, 8, 20, 20)) for n in (2, 40))
    conv_weight._array_conv_weight(*small, (3, 3), padding=(1, 1))
    before = om.pool_stats()
    conv_weight._array_conv_weight(*large, (3, 3), padding=(1, 1))
    after = om.pool_stats() - before
    assert after.requests > 0 and after.native_allocations == 0 and after.outstanding_blocks == 0
