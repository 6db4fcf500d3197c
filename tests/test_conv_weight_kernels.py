"""The weight gradient of a convolution by itself: every geometry, layout, path, mode and thread count gives the bits of the plain loop nest.

The reference steps through output positions one by one, with the fused step of test_gemm. Must not contain operators or timings.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_gemm import FUSED, bits, canonical, fused, normal, two_roundings

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
