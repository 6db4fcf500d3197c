"""Convolutions of one channel per group by themselves: forward and both gradients have the bits of plain loop nests on every path.

The references step through taps or positions one by one, with the fused step of test_gemm. Must not contain operators or timings.
"""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from test_conv_weight_kernels import EXACT, FAST, PATHS, agree, poisoned, reference, stored  # noqa: F401  (a fixture)
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
                value, there = np.zeros((n, groups, *size), np.float32), np.zeros(size, bool)
                for r in range(size[0]):
                    for c in range(size[1]):
                        p, q = r + padding[0] - i * dilation[0], c + padding[1] - j * dilation[1]
                        there[r, c] = p % stride[0] == 0 and q % stride[1] == 0
                        p, q = p // stride[0], q // stride[1]
                        if there[r, c] and 0 <= p < oh and 0 <= q < ow:
                            value[:, :, r, c] = g[:, m::many, p, q]
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


def check(case):
    kernel, size, out = case["kernel"], case["size"], case["out"]
    how = dict(stride=case["stride"], padding=case["padding"], dilation=case["dilation"])
    x = stored(normal(1, case["n"], case["channels"], *size), case["layout"])
    g = normal(2, case["n"], case["channels"] * case["many"], *out)
    w, below, beside = normal(3, g.shape[1], 1, *kernel), normal(4, g.shape[1]), normal(5, x.shape[1])
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
            for threads in (1, 2, 3):
                table.set_num_threads(threads)
                table.set_smallest_piece(32768 if threads == 1 else 1)
                y, dx, dw = np.empty_like(g), np.empty(x.shape, np.float32), np.empty_like(w)
                depthwise._array_depthwise("forward", x, w, y, below, **how, mode=mode)
                depthwise._array_depthwise("input", dx, w, g, beside, **how, mode=mode)
                depthwise._array_depthwise("weight", x, dw, g, **how, mode=mode)
                for got, want in zip((y, dx, dw), made[loose], strict=True):
                    agree(got, want, mode)


@given(geometries())
def test_bits_of_the_plain_loop_nests(case):
    check(case)
