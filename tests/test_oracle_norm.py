"""Owns the differential tests of normalisation against PyTorch in float64: every parameter, layouts, sizes of 0, extreme values; layers by
their state dicts. Needs torch."""

import importlib.util

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import onemodel as om
from onemodel import nn

pytestmark = pytest.mark.oracle
if importlib.util.find_spec("torch") is not None:
    import torch
    import torch.nn.functional as F

EPS = 2.0**-23
some = settings(max_examples=settings().max_examples // 2, deadline=None)
seeds, modes = st.integers(0, 10**6), st.sampled_from(["fast", "exact"])
scales, offsets, epsilons = st.sampled_from([1e-12, 1e-3, 1.0, 50.0, 1e15]), st.sampled_from([0.0, 1.0, -3.0]), st.sampled_from([1e-5, 1e-3, 0.5])
layouts = st.sampled_from(["plain", "transposed", "strided", "expanded", "flipped"])


def laid_out(array, layout):
    """The array as a leaf in this layout; an expanded one repeats its first entry."""
    if layout == "transposed":
        t = om.tensor(np.ascontiguousarray(array.T)).T
    elif layout == "strided":
        t = om.tensor(np.repeat(array, 2, -1))[..., ::2]
    elif layout == "expanded" and array.shape[0]:
        t = om.tensor(array[:1]).expand(array.shape)
    elif layout == "flipped":
        t = om.tensor(np.ascontiguousarray(array[..., ::-1])).flip(-1)
    else:
        t = om.tensor(array)
    return t.requires_grad_()


def close(found, expected, what, tolerance=1e-5):
    """Within tolerance of the largest, since parts of a gradient cancel each other."""
    found, expected = np.asarray(found.detach().numpy(), np.float64), expected.detach().numpy()
    assert found.shape == expected.shape, what
    top = np.abs(expected).max(initial=0)
    worst = np.abs(found - expected).max(initial=0)
    assert worst <= tolerance * max(top, 1e-22), f"{what}: {worst / max(top, 1e-22):.2e} of the largest"


def compare(ours, theirs, arrays, some_layouts, seed, mode):
    """y and all gradients; None among the arrays stays None. The gradients of x are compared with what their parts are large as."""
    leaves = [None if a is None else laid_out(a, layout) for a, layout in zip(arrays, some_layouts, strict=True)]
    peers = [None if t is None else torch.tensor(t.detach().numpy().astype(np.float64), requires_grad=True) for t in leaves]
    with om.arithmetic(mode):
        y = ours(*leaves)
    expected = theirs(*peers)
    g = np.random.default_rng(seed + 1).standard_normal(tuple(expected.shape)).astype(np.float32)
    y.backward(om.tensor(g))
    expected.backward(torch.tensor(g.astype(np.float64)))
    close(y, expected, "y")
    for name, t, p in zip(("x", "weight", "bias"), leaves, peers, strict=False):
        if t is not None:
            close(t.grad, p.grad, f"gradient of {name}", 1e-4)
    return y


def values(seed, shape, scale, offset):
    """Spread around an offset of the same size."""
    return ((np.random.default_rng(seed).standard_normal(shape) + offset) * scale).astype(np.float32)


def parameters(data, seed, shape):
    rng = np.random.default_rng(seed + 2)
    return [rng.standard_normal(shape).astype(np.float32) if data.draw(st.booleans()) else None for _ in range(2)]


image = st.one_of(st.tuples(st.integers(2, 9), st.integers(1, 20)),
                  st.tuples(st.integers(2, 4), st.integers(1, 18), st.integers(1, 70)),
                  st.tuples(st.integers(1, 3), st.integers(1, 10), st.integers(1, 9), st.integers(2, 9)))


@some
@given(st.data(), image, scales, offsets, epsilons, seeds, modes, st.booleans(), st.sampled_from([0.0, 0.1, 0.7, 1.0]))
def test_batch_norm(data, shape, scale, offset, eps, seed, mode, training, momentum):
    layout = data.draw(layouts)
    x, rng = values(seed, shape, scale, offset), np.random.default_rng(seed + 3)
    if layout == "expanded" and len(shape) == 2:
        layout = "plain"  # all values of a channel would be one
    mean, var = rng.standard_normal(shape[1]).astype(np.float32), rng.uniform(0.5, 2, shape[1]).astype(np.float32)
    ours_mean, ours_var = om.tensor(np.repeat(mean, 2))[::2], om.tensor(var[::-1].copy()).flip(0)
    peer_mean, peer_var = torch.tensor(mean.astype(np.float64)), torch.tensor(var.astype(np.float64))
    compare(lambda x, w, b: om.batch_norm(x, ours_mean, ours_var, w, b, training, momentum, eps),
            lambda x, w, b: F.batch_norm(x, peer_mean, peer_var, w, b, training, momentum, eps),
            [x, *parameters(data, seed, shape[1])], [layout, data.draw(layouts), "plain"], seed, mode)
    close(ours_mean, peer_mean, "running_mean")
    close(ours_var, peer_var, "running_var")


@some
@given(st.data(), st.lists(st.integers(0, 9), min_size=0, max_size=2), st.lists(st.integers(2, 40), min_size=1, max_size=2), scales, offsets,
       epsilons, seeds, modes)
def test_layer_norm(data, lead, last, scale, offset, eps, seed, mode):
    shape = (*lead, *last)
    compare(lambda x, w, b: om.layer_norm(x, last, w, b, eps), lambda x, w, b: F.layer_norm(x, last, w, b, eps),
            [values(seed, shape, scale, offset), *parameters(data, seed, last)], [data.draw(layouts) if lead else "plain", "plain", data.draw(layouts)],
            seed, mode)


@some
@given(st.data(), st.lists(st.integers(0, 9), min_size=0, max_size=2), st.lists(st.integers(2, 40), min_size=1, max_size=2), scales, offsets,
       st.sampled_from([None, 1e-5, 0.5]), seeds, modes)
def test_rms_norm(data, lead, last, scale, offset, eps, seed, mode):
    shape = (*lead, *last)
    compare(lambda x, w: om.rms_norm(x, last, w, eps), lambda x, w: F.rms_norm(x, last, w, EPS if eps is None else eps),
            [values(seed, shape, scale, offset), parameters(data, seed, last)[0]], [data.draw(layouts), data.draw(layouts)], seed, mode)


@some
@given(st.data(), st.integers(1, 5), st.integers(1, 5), st.integers(0, 3), st.integers(2, 30), scales, offsets, epsilons, seeds, modes)
def test_group_norm(data, groups, each, n, p, scale, offset, eps, seed, mode):
    shape = (n, groups * each, p)
    weight, bias = parameters(data, seed, shape[1])
    if weight is None:
        bias = None  # torch's backward of a bias alone fails
    compare(lambda x, w, b: om.group_norm(x, groups, w, b, eps), lambda x, w, b: F.group_norm(x, groups, w, b, eps),
            [values(seed, shape, scale, offset), weight, bias], [data.draw(layouts), data.draw(layouts), "plain"], seed, mode)


@pytest.mark.parametrize("mode", ["fast", "exact"])
def test_a_large_mean_and_a_small_spread(mode):
    """The statistics keep what float32 values have; y is as good as their float mean allows."""
    x = (1000 + np.random.default_rng(0).standard_normal((64, 5, 40)) * 0.01).astype(np.float32)
    mean, var, peer_mean, peer_var = om.zeros(5), om.zeros(5), torch.zeros(5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    with om.arithmetic(mode):
        y = om.batch_norm(om.tensor(x), mean, var, training=True, momentum=1.0, eps=1e-12)
    expected = F.batch_norm(torch.tensor(x.astype(np.float64)), peer_mean, peer_var, training=True, momentum=1.0, eps=1e-12)
    close(mean, peer_mean, "mean", 1e-7)
    close(var, peer_var, "variance", 2e-6)
    close(y, expected, "y", 2e-3)


def layers():
    return [("BatchNorm1d", (6,), {}, (5, 6)), ("BatchNorm1d", (6,), {"momentum": None}, (5, 6, 3)), ("BatchNorm2d", (6,), {"eps": 1e-3}, (2, 6, 3, 4)),
            ("BatchNorm2d", (6,), {"affine": False}, (2, 6, 3, 4)), ("BatchNorm2d", (6,), {"track_running_stats": False}, (2, 6, 3, 4)),
            ("LayerNorm", (6,), {}, (2, 3, 6)), ("LayerNorm", ((3, 6),), {"bias": False}, (2, 3, 6)), ("RMSNorm", (6,), {}, (2, 3, 6)),
            ("RMSNorm", ((3, 6),), {"eps": 0.1}, (2, 3, 6)), ("GroupNorm", (2, 6), {}, (2, 6, 5)), ("GroupNorm", (3, 6), {"affine": False}, (2, 6, 5))]


@pytest.mark.parametrize("case", layers(), ids=str)
def test_a_torch_state_loads_and_gives_torchs_outputs(case):
    name, args, options, shape = case
    torch.manual_seed(0)
    theirs, ours = getattr(torch.nn, name)(*args, **options), getattr(nn, name)(*args, **options)
    assert repr(ours) == repr(theirs)
    first = {k: v.numpy() for k, v in theirs.state_dict().items()}
    assert list(first) == list(ours.state_dict())
    assert all(np.array_equal(first[k], v.numpy()) and first[k].dtype == v.dtype for k, v in ours.state_dict().items())
    with torch.no_grad():
        for p in theirs.parameters():
            p.uniform_(-2, 2)
        for _ in range(3):
            theirs(torch.randn(*shape))
    ours.load_state_dict({k: om.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    x = torch.randn(*shape)
    for training in (False, True, True, False):
        y = ours.train(training)(om.tensor(x.numpy()))
        np.testing.assert_allclose(y.detach().numpy(), theirs.train(training)(x).detach().numpy(), rtol=1e-5, atol=1e-5)
    for k, v in theirs.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[k].numpy(), v.numpy(), rtol=1e-5, atol=1e-6)
