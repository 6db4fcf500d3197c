"""Owns the tests of conv_relu_pool2d beyond the registry's: the bits of the three operators it stands for, whatever is cut how, and its memory."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import onemodel as om
from onemodel import memory
from onemodel._kernels import table

SPECIAL = np.float32([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.0, 1e-40, 3e38])


PATHS = [(isa, mode) for isa in table.available_isas() for mode in om.modes.MODES]


def apart(x, w, b, stride, padding, dilation, groups, *window):
    return om.relu(om.max_pool2d(om.conv2d(x, w, b, stride, padding, dilation, groups), *window))


def bits(function, arrays, *rest):
    """Of the result and of every gradient, from upstream gradients with both zeros."""
    tensors = [None if a is None else om.tensor(a).requires_grad_() for a in arrays]
    y = function(*tensors, *rest)
    y.backward(om.tensor(np.random.default_rng(3).choice(np.float32([-1.5, -0.0, 0.0, 0.3, 7.0]), y.shape)))
    return [t.detach().numpy().tobytes() for t in [y, *(t.grad for t in tensors if t is not None)]]


def same(found, expected, bias):
    """Bits; but fast mode may sum the bias's gradient in another order where there is one channel."""
    exact = om.modes.get_arithmetic() == "exact" or not bias
    assert found == expected if exact else found[:-1] == expected[:-1]
    if not exact:
        a, b = (np.frombuffer(results[-1], np.float32) for results in (found, expected))
        assert np.allclose(a, b, 1e-5, 1e-4 * np.abs(b).max(initial=0, where=np.isfinite(b)), equal_nan=True)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


# Images so large that one or a few are walked through at a time; the weights' gradient by each of its engines.
LARGE = {
    "one_at_a_time": ((3, 2, 120, 121), (16, 2, 3, 3), (1, 1, 1, 1)),
    "some_at_a_time": ((7, 3, 60, 52), (24, 3, 3, 3), (1, 1, 1, 1)),
    "groups": ((3, 4, 90, 92), (32, 2, 3, 3), (1, 0, 1, 2)),
    "strided": ((5, 2, 181, 150), (24, 2, 3, 3), (2, 2, 2, 1)),
    "depthwise": ((3, 16, 120, 120), (16, 1, 3, 3), (1, 1, 1, 16)),
    "no_channels": ((5, 0, 160, 160), (16, 0, 1, 1), (1, 0, 1, 1)),
    "channels": ((5, 20, 50, 62), (24, 20, 3, 3), (1, 1, 1, 1)),
    "wide_kernel": ((3, 16, 33, 70), (19, 16, 7, 5), (2, 3, 1, 1)),
    "few_outputs": ((9, 24, 150, 150), (1, 24, 3, 3), (1, 1, 1, 1)),
}


@pytest.mark.parametrize("case", LARGE)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_images_after_each_other_have_the_bits_of_all_at_once(case, threads):
    x, w, geometry = LARGE[case]
    om.set_num_threads(threads)
    arrays = normal(*x), normal(*w, seed=1), normal(w[0], seed=2)
    for mode in om.modes.MODES:
        with om.arithmetic(mode):
            same(bits(om.conv_relu_pool2d, arrays, *geometry, 2), bits(apart, arrays, *geometry, 2), True)


@pytest.mark.parametrize("inputs", [("x",), ("w",), ("b",), ("x", "b"), ("w", "b"), ()], ids="+".join)
def test_only_wanted_gradients_are_made(inputs):
    tensors = {"x": om.tensor(normal(2, 3, 9, 8)), "w": om.tensor(normal(5, 3, 3, 3, seed=1)), "b": om.tensor(normal(5, seed=2))}
    for name in inputs:
        tensors[name].requires_grad_()
    y = om.conv_relu_pool2d(*tensors.values())
    assert y.requires_grad == bool(inputs)
    if not inputs:
        return
    y.sum().backward()
    found = {name: t.grad for name, t in tensors.items()}
    for name, t in tensors.items():
        t.grad = None
        assert (found[name] is not None) == (name in inputs)
    apart(*tensors.values(), 1, 0, 1, 1, 2).sum().backward()
    assert all(np.array_equal(found[name].numpy(), tensors[name].grad.numpy()) for name in inputs)


@pytest.mark.parametrize("isa, mode", PATHS, ids=map("-".join, PATHS))
@given(data=st.data())
@settings(deadline=None)
def test_random_stages(isa, mode, data):
    """Any geometry and any values: the bits of the three operators."""
    table.select_isa(isa)
    om.set_arithmetic(mode)
    draw = data.draw
    groups, oc = draw(st.integers(1, 2)), draw(st.sampled_from([1, 2, 4, 16, 19]))
    ic = draw(st.sampled_from([1, 2, 3, 7, 11, 17]))  # filling the lanes of all sets, or not
    kernel, stride, dilation = ([draw(st.integers(1, n)) for _ in range(2)] for n in (3, 2, 2))
    h, w = (draw(st.integers((k - 1) * d + 1, 14)) for k, d in zip(kernel, dilation, strict=True))
    padding = draw(st.integers(0, 2))
    shape = (draw(st.integers(1, 3)), groups * ic, h, w)
    window = draw(st.sampled_from([(1,), (2,), (2, 1), (3, 2, 1), (2, 2, 0, 2), (3, 3, 1, 1, True), ((2, 1), None, (1, 0))]))
    special = draw(st.booleans())
    random = np.random.default_rng(draw(st.integers(0, 99)))
    arrays = [random.choice(SPECIAL, s) if special and random.random() < 0.5 else random.standard_normal(s).astype(np.float32)
              for s in (shape, (groups * oc, ic, *kernel), (groups * oc,))]
    if draw(st.booleans()):
        arrays[2] = None
    geometry = (stride, padding, dilation, groups, *window)
    om.set_num_threads(draw(st.integers(1, 3)))
    try:
        expected = bits(apart, arrays, *geometry)
    except om.ShapeError:
        with pytest.raises(om.ShapeError):
            bits(om.conv_relu_pool2d, arrays, *geometry)
        return
    same(bits(om.conv_relu_pool2d, arrays, *geometry), expected, arrays[2] is not None)


@pytest.mark.parametrize("isa, mode", PATHS, ids=map("-".join, PATHS))
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 0.0, -1e-30])
@pytest.mark.parametrize("where", ["x", "w"])
def test_what_a_sum_over_winners_alone_would_miss(isa, mode, where, value):
    """An infinity or NaN that no winner meets makes NaN of the zeros beside it; a product below the smallest float makes -0, which a zero makes +0."""
    table.select_isa(isa)
    om.set_arithmetic(mode)
    x, w = np.zeros((1, 16, 8, 8), np.float32), np.zeros((16, 16, 3, 3), np.float32)
    w[:, 0, 1, 1] = 1.0
    x[:, 0, ::2, ::2] = 3.0    # the winners
    if where == "x":
        x[0, :, 7, 7] = value if not np.isfinite(value) else 0.0  # beside the last one
        x[0, 1, 6, 6] = value if np.isfinite(value) else 0.0      # the last one: only zeros that did not win follow
    else:
        w[15, 5, 2, 1] = value  # the last tap by which a pixel meets a winner

    def gradients(function, *window):
        leaves = om.tensor(x).requires_grad_(), om.tensor(w).requires_grad_()
        y = function(*leaves, None, 1, 1, 1, 1, *window)
        if where == "x" or np.isfinite(value):
            y.backward(om.full(y.shape, 1e-30))
        else:
            (y[:, 15:] * 0.0).sum().backward()  # from the one channel whose outputs are NaN
        return [leaf.grad.numpy() for leaf in leaves]

    for found, expected in zip(gradients(om.conv_relu_pool2d, 2), gradients(apart, 2), strict=True):
        assert np.array_equal(found, expected, equal_nan=True)
        if mode == "exact" or not np.isnan(expected).any():
            assert found.tobytes() == expected.tobytes()


def test_the_convolution_is_never_held_whole():
    """Its outputs are 64 times a part; neither pass takes memory for half of them."""
    om.set_num_threads(1)
    x, w = om.tensor(normal(64, 1, 64, 64)), om.tensor(normal(16, 1, 3, 3)).requires_grad_()
    whole = 64 * 16 * 64 * 64 * 4
    before = memory.pool_stats().outstanding_bytes
    memory.pool_reset_peak()
    y = om.conv_relu_pool2d(x, w, None, 1, 1)
    y.backward(om.ones(y.shape))
    assert memory.pool_stats().peak_outstanding_bytes - before < y.numel() * 12 + whole / 4  # y, the places of maxima and y's gradient are a quarter each


def test_a_convolution_beyond_all_memory_is_refused_though_its_maxima_are_few():
    """Its bytes, times the threads', would not fit 64 bits."""
    x, w = om.zeros(1, 1, 1, 1).expand(1, 1, 40_000, 40_000), om.zeros(1, 1, 1, 1).expand(2**31 - 1, 1, 1, 1)
    with pytest.raises(om.ShapeError, match="no memory holds"):
        om.conv_relu_pool2d(x, w, kernel_size=40_000)


@pytest.mark.parametrize("geometry", [(1000, 1000), (300, 300), (1, 40), (40, 1)], ids=str)
def test_memory_follows_what_is_read_not_how_far_it_is_padded(geometry):
    om.set_num_threads(1)
    x, w = om.tensor(normal(2, 16, 8, 8)).requires_grad_(), om.tensor(normal(16, 16, 2, 2)).requires_grad_()
    stride, padding = geometry
    if stride == 40:
        x = om.tensor(normal(2, 16, 90, 90)).requires_grad_()
    memory.pool_reset_peak()
    before = memory.pool_stats().outstanding_bytes
    om.conv_relu_pool2d(x, w, None, stride, padding).sum().backward()
    assert memory.pool_stats().peak_outstanding_bytes - before < 8 * x.numel() * 4 + 4_000_000
