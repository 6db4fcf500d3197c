"""Owns the differential tests of the convolutions against PyTorch: geometries, layouts and values made by hypothesis. Needs torch.

Must not contain what torch does not have: paddings that differ between the sides are given to torch as a pad or a crop.
"""

import importlib.util

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import onemodel as om
from onemodel import nn

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore:Using padding='same'")]  # of even kernels; only torch copies there
if importlib.util.find_spec("torch") is not None:
    import torch
    from test_oracle import compare, peer, to_torch

few = settings(max_examples=settings().max_examples // 3)  # per operator and mode; --full makes it ten times as many
MODES = st.sampled_from(om.modes.MODES)
EXTREME = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-45, -1e-40, 1e15, -1e15, 1e-8, 1.0, -1.0]


def spread(data, shape, extreme=False):
    """A leaf of this shape: seeded values (hypothesis draws the seed; a list of that many floats would be its whole budget) in a drawn layout."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    layout = data.draw(st.sampled_from(["plain", "transposed", "strided", "flipped", "upside_down", "crop", "channels_last", "expanded"]))
    if layout == "expanded" and shape and shape[0] and not extreme:
        return om.tensor(rng.uniform(-2, 2, (1, *shape[1:])).astype(np.float32)).expand(*shape).detach().requires_grad_()
    array = rng.uniform(-2, 2, shape).astype(np.float32)
    if extreme and array.size:
        array.reshape(-1)[rng.integers(0, array.size, 2)] = rng.choice(EXTREME, 2)
    if layout == "transposed":
        t = om.tensor(array.T).T
    elif layout == "strided":
        t = om.tensor(np.repeat(array, 2, axis=-1))[..., ::2]
    elif layout == "flipped":
        t = om.tensor(array[..., ::-1].copy()).flip(-1)
    elif layout == "upside_down":
        t = om.tensor(array[::-1].copy()).flip(0)
    elif layout == "crop":
        t = om.tensor(np.pad(array, [(1, 2)] * array.ndim))[tuple(slice(1, 1 + n) for n in shape)]
    elif layout == "channels_last" and len(shape) > 1:
        t = om.tensor(np.moveaxis(array, -2 if len(shape) < 4 else 1, -1).copy())
        t = t.transpose(-2, -1) if len(shape) < 4 else t.permute(0, 3, 1, 2)
    else:
        t = om.tensor(array)
    return t.detach().requires_grad_()


def number(data, spatial, low, high):
    """An int or one number per dimension."""
    value = st.integers(low, high)
    return data.draw(st.one_of(value, st.tuples(*[value] * spatial)))


def each(value, spatial):
    return (value,) * spatial if isinstance(value, int) else value


def convolution(data, spatial, extreme=False):
    """Arguments of conv1d or conv2d that fit each other; the batch may be empty or left out."""
    groups, kernel = data.draw(st.integers(1, 3)), [data.draw(st.integers(1, 4)) for _ in range(spatial)]
    stride, dilation = number(data, spatial, 1, 4), number(data, spatial, 1, 3)
    forms = [st.integers(0, 3), st.tuples(*[st.integers(0, 3)] * spatial), st.tuples(*[st.integers(0, 3)] * (2 * spatial)), st.just("valid")]
    padding = data.draw(st.one_of(*forms, *[st.just("same")] * (each(stride, spatial) == (1,) * spatial)))
    least = []
    for i, (k, d) in enumerate(zip(kernel, each(dilation, spatial), strict=True)):
        both = 0 if isinstance(padding, str) else 2 * padding if isinstance(padding, int) else \
            padding[i] + padding[i + spatial] if len(padding) == 2 * spatial else 2 * padding[i]
        least.append(1 if padding == "same" else max(1, d * (k - 1) + 1 - both))
    image = [n + data.draw(st.integers(0, 6)) for n in least]
    lead = data.draw(st.sampled_from([(), (0,), (1,), (2,), (3,)]))
    channels, outputs = groups * data.draw(st.integers(1, 4)), groups * data.draw(st.integers(1, 4))
    args = [spread(data, (*lead, channels, *image), extreme), spread(data, (outputs, channels // groups, *kernel), extreme)]
    args.append(spread(data, (outputs,)) if data.draw(st.booleans()) else None)
    return args, {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}


@pytest.mark.parametrize("name", ["conv1d", "conv2d"])
@few
@given(data=st.data(), mode=MODES)
def test_convolutions(name, data, mode):
    args, kwargs = convolution(data, int(name[-2]))
    with om.arithmetic(mode):
        compare(name, getattr(om, name), peer(name), args, kwargs, tolerance=64)


@pytest.mark.parametrize("name", ["conv1d", "conv2d"])
@few
@given(data=st.data(), mode=MODES)
def test_extreme_values(name, data, mode):
    """NaN and inf come out where torch's do: a padded tap is +0 and multiplied, so that an inf in the weight counts there, too."""
    args, kwargs = convolution(data, int(name[-2]), extreme=True)
    with om.arithmetic(mode):
        compare(name, getattr(om, name), peer(name), [None if t is None else t.detach() for t in args], kwargs, tolerance=64)


@few
@given(data=st.data(), mode=MODES)
def test_conv_transpose2d(data, mode):
    groups, kernel = data.draw(st.integers(1, 3)), [data.draw(st.integers(1, 4)) for _ in range(2)]
    stride, dilation, image = number(data, 2, 1, 4), number(data, 2, 1, 3), [data.draw(st.integers(1, 6)) for _ in range(2)]
    most = [max(s, d) - 1 for s, d in zip(each(stride, 2), each(dilation, 2), strict=True)]
    more = data.draw(st.one_of(st.integers(0, min(most)), st.tuples(*(st.integers(0, m) for m in most))))
    padding = data.draw(st.one_of(st.integers(0, 3), st.tuples(*[st.integers(0, 3)] * 2), st.tuples(*[st.integers(0, 3)] * 4)))
    size = [(h - 1) * s + d * (k - 1) + 1 + o for h, s, d, k, o in
            zip(image, each(stride, 2), each(dilation, 2), kernel, each(more, 2), strict=True)]
    four = (padding,) * 4 if isinstance(padding, int) else padding * 2 if len(padding) == 2 else padding
    if min(size[0] - four[0] - four[2], size[1] - four[1] - four[3]) < 1:
        padding = 0
    lead = data.draw(st.sampled_from([(), (0,), (1,), (2,), (3,)]))
    channels, outputs = groups * data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    args = [spread(data, (*lead, channels, *image)), spread(data, (channels, outputs, *kernel))]
    args.append(spread(data, (groups * outputs,)) if data.draw(st.booleans()) else None)
    with om.arithmetic(mode):
        compare("conv_transpose2d", om.conv_transpose2d, peer("conv_transpose2d"), args,
                {"stride": stride, "padding": padding, "output_padding": more, "groups": groups, "dilation": dilation}, tolerance=64)


# -- errors: what torch refuses, we refuse --------------------------------------------------------------------------------------


@few
@given(data=st.data(), name=st.sampled_from(["conv1d", "conv2d", "conv_transpose2d"]))
def test_any_shapes_and_parameters(data, name):
    """Both compute, with the same shape, or both raise."""
    spatial = int(name[-2])
    shape = st.lists(st.integers(0, 4), min_size=spatial, max_size=spatial + 3)
    parameters = ["stride", "padding", "dilation", "groups"] + ["output_padding"] * (name == "conv_transpose2d")
    kwargs = {p: data.draw(st.integers(-1, 4)) for p in parameters if data.draw(st.booleans())}
    x, w = om.zeros(*data.draw(shape)), om.zeros(*data.draw(shape))
    b = om.zeros(*data.draw(st.lists(st.integers(0, 4), max_size=2))) if data.draw(st.booleans()) else None
    try:
        theirs = tuple(peer(name)(*(None if t is None else torch.zeros(t.shape) for t in (x, w, b)), **kwargs).shape)
    except RuntimeError:
        theirs = None
    try:
        ours = getattr(om, name)(x, w, b, **kwargs).shape
    except ValueError:
        ours = None
    channels = x.shape[-spatial - 1] if x.ndim > spatial else 0
    if channels and w.ndim > 1 and 0 not in w.shape:  # of no channels torch makes another result than its weight says
        assert ours == theirs, f"{name}: {x.shape} {w.shape} {None if b is None else b.shape} {kwargs}: {ours}, torch {theirs}"


# -- layers ---------------------------------------------------------------------------------------------------------------------

LAYERS = [
    ("Conv1d", (4, 6, 3), {"stride": 2, "padding": 1, "dilation": 2, "groups": 2}), ("Conv1d", (4, 2, 4), {"padding": "same", "bias": False}),
    ("Conv2d", (4, 6, 3), {}), ("Conv2d", (4, 6, (3, 2)), {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2, "bias": False}),
    ("Conv2d", (4, 4, 4), {"padding": "same", "groups": 4}), ("Conv2d", (4, 5, 2), {"padding": "valid"}),
    ("ConvTranspose2d", (4, 6, 3), {}),
    ("ConvTranspose2d", (4, 6, (3, 4)), {"stride": (2, 3), "padding": 1, "output_padding": (1, 2), "groups": 2, "dilation": (2, 1)}),
]


@pytest.mark.parametrize("name,args,kwargs", LAYERS)
def test_a_torch_state_dict_gives_torch_s_outputs(name, args, kwargs):
    theirs, ours = getattr(torch.nn, name)(*args, **kwargs), getattr(nn, name)(*args, **kwargs)
    state = {key: om.tensor(value.numpy()) for key, value in theirs.state_dict().items()}
    assert {k: v.shape for k, v in ours.state_dict().items()} == {k: v.shape for k, v in state.items()}
    ours.load_state_dict(state)
    x = om.tensor(np.random.default_rng(0).standard_normal((2, 4, 9, 8)[: 3 + (name != "Conv1d")], dtype=np.float32))
    for data in (x, x[0]):
        np.testing.assert_allclose(ours(data).detach().numpy(), theirs.double()(to_torch(data)).detach().numpy(), rtol=2e-5, atol=1e-5)
    assert repr(ours) == repr(theirs)


def test_output_size_as_torch_takes_it():
    theirs, ours = torch.nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1), nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1)
    ours.load_state_dict({key: om.tensor(value.numpy()) for key, value in theirs.state_dict().items()})
    x = om.rand(1, 2, 4, 5)
    for size in ((7, 9), (8, 10), [8, 9], (1, 3, 7, 10)):
        got, want = ours(x, size), theirs(torch.from_numpy(x.numpy().copy()), list(size))
        np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=2e-5, atol=1e-5)
    for size in ((6, 9), (9, 9), (7,), (1, 1, 1, 1, 1)):
        with pytest.raises(ValueError):
            theirs(torch.zeros(1, 2, 4, 5), list(size))
        with pytest.raises(ValueError):
            ours(x, size)
