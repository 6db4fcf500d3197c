"""Convolutions of one channel per group by themselves: forward and both gradients have the bits of plain loop nests on every path.

The references step through taps or positions one by one, with the fused step of test_gemm. Must not contain operators or timings.
"""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_conv_weight_kernels import EXACT, FAST, PATHS, agree, poisoned, reference, special, stored  # noqa: F401  (a fixture)
from test_gemm import FUSED, fused, normal, two_roundings

from onemodel._kernels import depthwise, table


def forward(x, w, bias, out, stride, padding, dilation, step):
    """Per output one chain from +0 over (kernel row, kernel column), taps outside x being +0, then the bias."""
    n, groups = x.shape[:2]
    many, kh, kw = w.shape[0] // groups, *w.shape[2:]
    spans = [(out[d] - 1) * stride[d] + (w.shape[2 + d] - 1) * dilation[d] + 1 for d in (0, 1)]
    room = np.zeros((n, groups, max(spans[0], padding[0] + x.shape[2]), max(spans[1], padding[1] + x.shape[3])), np.float32)
    room[:, :, padding[0] : padding[0] + x.shape[2], padding[1] : padding[1] + x.shape[3]] = x
    acc = np.zeros((n, groups, many, *out), np.float32)
    for i in range(kh):
        for j in range(kw):
            taps = room[:, :, None, i * dilation[0] :: stride[0], j * dilation[1] :: stride[1]][..., : out[0], : out[1]]
            acc = step(w.reshape(1, groups, many, kh, kw)[..., i, j, None, None], taps, acc)
    y = acc.reshape(n, groups * many, *out)
    return y if bias is None else y + bias[:, None, None]


def adjoint(g, w, bias, size, stride, padding, dilation, step):
    """Per element one chain from +0 over (output channel, kernel row, kernel column) of those taps whose output is a whole number of strides away;
    outputs outside g are +0."""
    n, oc, oh, ow = g.shape
    groups = bias.shape[0]
    many, kh, kw = oc // groups, *w.shape[2:]
    dx = np.zeros((n, groups, *size), np.float32)
    for m in range(many):
        for i in range(kh):
            for j in range(kw):
                at = [np.arange(size[d]) + padding[d] - (i, j)[d] * dilation[d] for d in (0, 1)]
                there = np.logical_and.outer(at[0] % stride[0] == 0, at[1] % stride[1] == 0)
                at = [at[d] // stride[d] for d in (0, 1)]
                inside = np.logical_and.outer((at[0] >= 0) & (at[0] < oh), (at[1] >= 0) & (at[1] < ow))
                read = g[:, m::many][:, :, at[0].clip(0, oh - 1)[:, None], at[1].clip(0, ow - 1)]
                value = np.where(inside, read, np.float32(0))
                dx = np.where(there, step(w[m::many, 0, i, j].reshape(1, groups, 1, 1), value, dx), dx)
    return dx + bias[:, None, None]


@st.composite
def geometries(draw):
    pair = lambda low, high: (draw(st.integers(low, high)), draw(st.integers(low, high)))  # noqa: E731
    kernel, stride, dilation = pair(1, 7), pair(1, 3), pair(1, 3)
    size = draw(st.sampled_from([(1, 37), (13, 1), (2, 3), (7, 7), (5, 18), (12, 9)]))
    padding = (draw(st.integers(0, kernel[0])), draw(st.integers(0, kernel[1])))
    out = tuple(max(1, (size[d] + padding[d] + draw(st.integers(0, 3)) - (kernel[d] - 1) * dilation[d] - 1) // stride[d] + 1) for d in (0, 1))
    return dict(n=draw(st.integers(1, 3)), channels=draw(st.sampled_from([1, 2, 5, 8, 17])), many=draw(st.integers(1, 3)), size=size, out=out,
                kernel=kernel, stride=stride, padding=padding, dilation=dilation, layout=draw(st.integers(0, 3)))


def check(case, make=normal, threads=(1, 2, 3)):
    kernel, size, out = case["kernel"], case["size"], case["out"]
    how = dict(stride=case["stride"], padding=case["padding"], dilation=case["dilation"])
    x = stored(make(1, case["n"], case["channels"], *size), case["layout"])
    g = make(2, case["n"], case["channels"] * case["many"], *out)
    w, below, beside = make(3, g.shape[1], 1, *kernel), normal(4, g.shape[1]), normal(5, x.shape[1])
    steps = {False: fused, True: two_roundings}
    made = {}
    for path in PATHS:
        table.select_isa(path)
        for mode in (EXACT, FAST):
            loose = mode == FAST and path not in FUSED
            if loose not in made:
                with np.errstate(all="ignore"):
                    made[loose] = (forward(x, w, below, out, **how, step=steps[loose]), adjoint(g, w, beside, size, **how, step=steps[loose]),
                                   reference(x, g, kernel, **how, groups=x.shape[1], step=steps[loose]))
            for count in threads:
                table.set_num_threads(count)
                table.set_smallest_piece(32768 if count == 1 else 1)
                (y, whole_y), (dx, whole_dx), (dw, whole_dw) = guarded(g.shape), guarded(x.shape), guarded(w.shape)
                depthwise._array_depthwise("forward", x, w, y, below, **how, mode=mode)
                depthwise._array_depthwise("input", dx, w, g, beside, **how, mode=mode)
                depthwise._array_depthwise("weight", x, dw, g, **how, mode=mode)
                for got, want in zip((y, dx, dw), made[loose], strict=True):
                    agree(got, want, mode)
                for whole in (whole_y, whole_dx, whole_dw):
                    assert (whole[:64] == 7).all() and (whole[-64:] == 7).all(), "written beside the result"


def guarded(shape):
    """An array in the middle of a longer one that is looked at on both sides."""
    whole = np.full(128 + int(np.prod(shape)), 7, np.float32)
    return whole[64:-64].reshape(shape), whole


@given(geometries())
def test_bits_of_the_plain_loop_nests(case):
    check(case)


def geometry(channels, size, out, kernel, stride=(1, 1), padding=(0, 0), dilation=(1, 1), n=2, many=1, layout=0):
    return dict(n=n, channels=channels, many=many, size=size, out=out, kernel=kernel, stride=stride, padding=padding, dilation=dilation, layout=layout)


# Beyond each of the sizes that depthwise.pyx cuts at, and the edge rows of groups.
LARGER = {
    "windows of rows": geometry(2, (66, 95), (66, 95), (3, 3), padding=(1, 1), n=1),
    "windows of columns": geometry(2, (1, 1300), (1, 1300), (1, 5), padding=(0, 2)),
    "windows of both": geometry(1, (12, 600), (12, 600), (3, 3), padding=(1, 1), n=1),
    "strided windows": geometry(2, (9, 1300), (5, 650), (3, 4), stride=(2, 2), padding=(1, 1), n=1),
    "three phases": geometry(2, (40, 41), (14, 14), (3, 3), stride=(3, 3), padding=(1, 1), many=2),
    "many small": geometry(70, (4, 4), (4, 4), (3, 3), padding=(1, 1), n=3),
    "many taps": geometry(5, (20, 20), (20, 20), (11, 13), padding=(5, 6)),
    "seven outputs of each": geometry(9, (6, 7), (6, 7), (3, 3), padding=(1, 1), many=7),
    "V02": geometry(4, (7, 7), (3, 3), (3, 3), stride=(2, 2), n=1),
    "V04": geometry(2, (7, 8), (3, 4), (2, 2), stride=(3, 3), padding=(1, 1), many=2),
    "V05": geometry(3, (1, 12), (1, 2), (1, 3), stride=(1, 5)),
}


@pytest.mark.parametrize("name", LARGER)
def test_larger_ones(name):
    check(LARGER[name])


@pytest.mark.parametrize("name", ["windows of columns", "three phases", "many small", "V04"])
def test_special_values(name):
    """In exact mode every NaN is the canonical one; an infinity meets the zeros outside, which are multiplied."""
    check(LARGER[name], special, threads=(2,))


def test_a_dropped_tail_gets_zeros():
    """V05: of twelve inputs the last four meet no output."""
    w, g, dx = np.ones((1, 1, 1, 3), np.float32), np.ones((1, 1, 1, 2), np.float32), np.full((1, 1, 1, 12), np.nan, np.float32)
    depthwise._array_depthwise("input", dx, w, g, stride=(1, 5), mode=EXACT)
    assert dx.ravel().tolist() == [1, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0, 0] and not np.signbit(dx).any()


@pytest.mark.parametrize("how", [dict(dilation=(1, 40000)), dict(dilation=(40000, 1)), dict(stride=(9, 9))], ids=str)
def test_what_does_not_fit_is_left_alone(how):
    """Windows beyond every cache and too many phases belong to the general form."""
    x, w, y = (np.zeros(shape, np.float32) for shape in ((1, 8, 3, 3), (8, 1, 2, 2), (8, 1, 2, 2)))
    with pytest.raises(ValueError, match="general form"):
        depthwise._array_depthwise("forward", x, w, y, **how, mode=EXACT)


@pytest.mark.parametrize("what", ["forward", "input", "weight"])
def test_threads_take_part(what):
    """A worker of a busy machine may come too late for one job, not for every one of several seconds."""
    x, w, y = normal(1, 4, 32, 40, 40), normal(2, 32, 1, 3, 3), normal(3, 4, 32, 40, 40)
    table.set_num_threads(2)
    end = time.monotonic() + 20
    while depthwise._array_depthwise(what, x, w, y, padding=(1, 1), mode=FAST) is None and table.last_threads() < 2:
        assert time.monotonic() < end, f"{what}: never on more than one thread"
