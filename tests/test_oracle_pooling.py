"""Owns the differential tests of pooling against PyTorch: geometry, layouts and values made by hypothesis, forward, index and gradient. Needs torch."""

import importlib.util

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import onemodel as om

pytestmark = pytest.mark.oracle
if importlib.util.find_spec("torch") is not None:
    import torch
    import torch.nn.functional as F

VALUES = ["ordinary", "ties", "special", "huge", "tiny"]


@st.composite
def planes(draw, spatial):
    """(array, layout): batched or not, now and then without images."""
    sizes = [draw(st.integers(1, 9)) for _ in range(spatial - 1)] + [draw(st.integers(1, 40))]
    lead = draw(st.sampled_from([(1,), (3,), (2, 3), (1, 1), (0, 2)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    shape, kind = (*lead, *sizes), draw(st.sampled_from(VALUES))
    x = rng.integers(-2, 3, shape) if kind == "ties" else rng.normal(size=shape)
    x = (x * {"huge": 1e35, "tiny": 1e-42}.get(kind, 1.0)).astype(np.float32)
    if kind == "special":
        x = np.where(rng.random(shape) < 0.3, rng.choice(np.array([np.nan, np.inf, -np.inf, -0.0], np.float32), shape), x)
    return x, draw(st.sampled_from(["plain", "strided", "transposed", "expanded", "flipped", "sliced"]))


def laid_out(x, layout):
    """The same layout for both libraries (torch has no negative strides)."""
    if layout == "expanded":
        return om.from_numpy(np.broadcast_to(x[..., :1, :], x.shape)).detach(), torch.from_numpy(np.array(x[..., :1, :])).expand(x.shape)
    if layout == "flipped":
        return om.from_numpy(np.ascontiguousarray(x[..., ::-1])[..., ::-1]), torch.from_numpy(x)
    if layout == "strided":
        wide = np.repeat(x, 2, -1)
        return om.from_numpy(wide[..., ::2]), torch.from_numpy(wide)[..., ::2]
    if layout == "transposed":
        back = np.ascontiguousarray(np.swapaxes(x, -1, -2))
        return om.from_numpy(np.swapaxes(back, -1, -2)), torch.from_numpy(back).transpose(-1, -2)
    if layout == "sliced":
        big = np.pad(x, [(0, 0)] * (x.ndim - 2) + [(1, 2)] * 2) if x.ndim > 2 else np.pad(x, [(0, 0), (1, 2)])
        cut = (..., slice(1, -2), slice(1, -2)) if x.ndim > 2 else (..., slice(1, -2))
        return om.from_numpy(big[cut]), torch.from_numpy(big)[cut]
    return om.from_numpy(x), torch.from_numpy(x)


def number_or_pair(draw, low, high, spatial):
    one = draw(st.integers(low, high))
    return one if spatial == 1 or draw(st.booleans()) else (one, draw(st.integers(low, high)))


def compare(ours, theirs, x, layout, exact, dilated=False):
    """Forward and gradient; which NaN of several wins is not torch's choice, so gradients are compared where a plane has none."""
    mine, peer = laid_out(x, layout)
    mine, peer = mine.requires_grad_(), peer.detach().requires_grad_()
    try:
        want = theirs(peer)
    except RuntimeError as refused:
        if "half of kernel size" in str(refused) and dilated:
            return  # torch's planes may have half the kernel as padding, its rows half the dilated kernel: here both may
        with pytest.raises(ValueError):
            ours(mine)
        return
    got = ours(mine)
    if isinstance(got, tuple):
        if not np.isnan(x).any():
            outside = want[1].numpy().reshape(got[1].shape)
            inside = got[1].numpy() >= 0  # where a window has no element, torch's index points outside
            assert np.array_equal(got[1].numpy()[inside], outside[inside])
        got, want = got[0], want[0]
    assert got.shape == tuple(want.shape)
    close(got.detach().numpy(), want.detach().numpy(), exact)
    g = np.random.default_rng(0).normal(size=got.shape).astype(np.float32)
    got.backward(om.from_numpy(g))
    if np.isnan(x).any():
        return
    if exact and np.isneginf(want.detach().numpy()).any():
        return  # torch's index of a window without an element points outside, and it would write there
    want.backward(torch.from_numpy(g))
    close(mine.grad.numpy(), peer.grad.numpy(), exact)


def close(got, want, exact):
    if exact:
        assert np.array_equal(got, want, equal_nan=True)
        return
    finite = np.isfinite(want)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    scale = np.abs(want[finite]).max(initial=0)
    with np.errstate(over="ignore", invalid="ignore"):
        assert (np.abs(got[finite] - want[finite]) <= 2e-6 * scale + 1e-44).all() or not np.isfinite(got[finite]).all()


@pytest.mark.parametrize("spatial", [1, 2])
@given(data=st.data())
def test_max_pool(spatial, data):
    x, layout = data.draw(planes(spatial))
    kernel = number_or_pair(data.draw, 1, 5, spatial)
    stride = number_or_pair(data.draw, 1, 4, spatial) if data.draw(st.booleans()) else None
    padding, dilation = number_or_pair(data.draw, 0, 3, spatial), number_or_pair(data.draw, 1, 3, spatial)
    more = (kernel, stride, padding, dilation, data.draw(st.booleans()), data.draw(st.booleans()))
    om.set_arithmetic(data.draw(st.sampled_from(["fast", "exact"])))
    name = f"max_pool{spatial}d"
    compare(lambda t: getattr(om, name)(t, *more), lambda t: getattr(F, name)(t, *more), x, layout, True, dilation != 1)


@pytest.mark.parametrize("spatial", [1, 2])
@given(data=st.data())
def test_avg_pool(spatial, data):
    x, layout = data.draw(planes(spatial))
    kernel = number_or_pair(data.draw, 1, 5, spatial)
    stride = number_or_pair(data.draw, 1, 4, spatial) if data.draw(st.booleans()) else None
    more = (kernel, stride, number_or_pair(data.draw, 0, 3, spatial), data.draw(st.booleans()), data.draw(st.booleans()))
    if spatial == 2:
        more += (data.draw(st.sampled_from([None, 1, 3, 8, -2])),)
    om.set_arithmetic(data.draw(st.sampled_from(["fast", "exact"])))
    name = f"avg_pool{spatial}d"
    compare(lambda t: getattr(om, name)(t, *more), lambda t: getattr(F, name)(t, *more), x, layout, False)


@given(data=st.data())
def test_adaptive_pools(data):
    x, layout = data.draw(planes(2))
    size = data.draw(st.one_of(st.integers(1, 12), st.tuples(st.none() | st.integers(1, 12), st.none() | st.integers(1, 30))))
    om.set_arithmetic(data.draw(st.sampled_from(["fast", "exact"])))
    compare(lambda t: om.adaptive_avg_pool2d(t, size), lambda t: F.adaptive_avg_pool2d(t, size), x, layout, False)
    compare(lambda t: om.adaptive_max_pool2d(t, size, True), lambda t: F.adaptive_max_pool2d(t, size, True), x, layout, True)


def test_global_avg_pool():
    rng = np.random.default_rng(1)
    for shape in ((2, 3, 5, 7), (3, 8, 40), (2, 64, 1, 1), (0, 2, 3, 3)):
        compare(om.global_avg_pool2d, lambda t: F.adaptive_avg_pool2d(t, 1), rng.normal(size=shape).astype(np.float32), "plain", False)


def test_the_sign_of_a_zero_gradient_is_torchs():
    """A window's share is added to +0, which takes the sign of a zero; the mean of the whole plane is the reduction `mean`, whose gradient keeps it."""
    x = np.random.default_rng(2).normal(size=(2, 3, 6, 6)).astype(np.float32)
    for ours, theirs in (
        (lambda t: om.avg_pool2d(t, 2), lambda t: F.avg_pool2d(t, 2)), (lambda t: om.avg_pool2d(t, 6), lambda t: F.avg_pool2d(t, 6)),
        (lambda t: om.avg_pool2d(t, 3, 1), lambda t: F.avg_pool2d(t, 3, 1)), (lambda t: om.max_pool2d(t, 2), lambda t: F.max_pool2d(t, 2)),
        (lambda t: om.adaptive_avg_pool2d(t, 2), lambda t: F.adaptive_avg_pool2d(t, 2)), (lambda t: om.adaptive_avg_pool2d(t, 1), lambda t: F.adaptive_avg_pool2d(t, 1)),
        (om.global_avg_pool2d, lambda t: t.mean((-2, -1), True)), (lambda t: t.mean((-2, -1)), lambda t: t.mean((-2, -1))), (lambda t: t.mean(), lambda t: t.mean()),
    ):  # fmt: skip
        a, b = om.tensor(x, requires_grad=True), torch.from_numpy(x).requires_grad_()
        y, z = ours(a), theirs(b)
        y.backward(om.full(y.shape, -0.0))
        z.backward(torch.full_like(z, -0.0))
        assert np.array_equal(np.signbit(a.grad.numpy()), np.signbit(b.grad.numpy()))
