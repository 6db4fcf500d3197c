"""Owns the differential tests of interpolate and pad against PyTorch: sizes, factors, modes, strides and extreme values made by hypothesis."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given, settings
from test_oracle import MODES, F, compare, tensors, to_torch, torch

import onemodel as om
from onemodel.errors import ShapeError

pytestmark = pytest.mark.oracle
SIZES = st.integers(1, 9)


@st.composite
def planes(draw, rank=4, extreme=False):
    """A leaf [N, C, ...] in some layout, perhaps without an image, perhaps one image stretched over the batch."""
    shape = (draw(st.integers(0, 3)), draw(st.integers(1, 3)), *(draw(SIZES) for _ in range(rank - 2)))
    if shape[0] > 1 and draw(st.integers(0, 3)) == 0:
        return draw(tensors(shape=(1, *shape[1:]), extreme=extreme)).detach().expand(shape).requires_grad_()
    return draw(tensors(shape=shape, extreme=extreme))


@st.composite
def resizes(draw, rank, shape):
    """Keyword arguments that both take."""
    mode = draw(st.sampled_from(["nearest", "nearest-exact", "bilinear" if rank == 4 else "linear"]))
    kwargs = {"mode": mode}
    if mode.endswith("linear"):
        kwargs["align_corners"] = draw(st.sampled_from([None, False, True]))
    axes = rank - 2
    if draw(st.booleans()):
        kwargs["size"] = draw(SIZES) if draw(st.booleans()) else tuple(draw(SIZES) for _ in range(axes))
    else:
        factors = st.one_of(st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0, 1 / 3]), st.floats(0.3, 3.0))
        kwargs["scale_factor"] = draw(factors) if draw(st.booleans()) else tuple(draw(factors) for _ in range(axes))
        kwargs["recompute_scale_factor"] = draw(st.sampled_from([None, False, True]))
        each = kwargs["scale_factor"] if isinstance(kwargs["scale_factor"], tuple) else (kwargs["scale_factor"],) * axes
        assume(all(int(n * f) > 0 for n, f in zip(shape[2:], each, strict=True)))
    return kwargs


def as_planes(x, size=None, scale_factor=None, **kwargs):
    """torch's lines as its planes of one row: its nearest pixel of a line is another one forward than backward where the result has the size of x, or
    twice that; that of a plane is one and ours."""
    if size is not None:
        size = (1, size if isinstance(size, int) else size[0])
    if scale_factor is not None:
        scale_factor = (1.0, scale_factor if isinstance(scale_factor, float) else scale_factor[0])
    return F.interpolate(x.unsqueeze(2), size, scale_factor, **kwargs).squeeze(2)


def torch_float32(x, **kwargs):
    """torch's own float32, whose coordinates are ours; the gradient too."""
    resize = as_planes if x.ndim == 3 and kwargs["mode"].startswith("nearest") else F.interpolate
    return resize(x.float(), **kwargs).double()


@settings(max_examples=2 * settings().max_examples)
@given(data=st.data(), mode=MODES, rank=st.sampled_from([3, 4, 4]))
def test_interpolate(data, mode, rank):
    x = data.draw(planes(rank))
    kwargs = data.draw(resizes(rank, x.shape))
    with om.arithmetic(mode):
        compare("interpolate", om.interpolate, torch_float32, [x], kwargs, tolerance=32)


@settings(max_examples=settings().max_examples // 2)
@given(data=st.data(), mode=MODES)
def test_nearest_of_extreme_values(data, mode):
    x = data.draw(planes(extreme=True))
    kwargs = data.draw(resizes(4, x.shape))
    assume(kwargs["mode"].startswith("nearest"))
    with om.arithmetic(mode):
        compare("interpolate", om.interpolate, torch_float32, [x], kwargs)


@settings(max_examples=settings().max_examples // 2)
@given(data=st.data(), mode=MODES, value=st.sampled_from([float("inf"), float("-inf"), float("nan"), 3.4e38, 1e-45]))
def test_bilinear_of_one_extreme_value(data, mode, value):
    """Ours is not finite at most where torch's is: torch multiplies the neighbour of an end by 0, which makes NaN of an infinity."""
    array = np.ones((1, 1, data.draw(SIZES), data.draw(SIZES)), np.float32)
    array.reshape(-1)[data.draw(st.integers(0, array.size - 1))] = value
    kwargs = data.draw(resizes(4, array.shape))
    assume(kwargs["mode"] == "bilinear")
    with om.arithmetic(mode):
        ours = om.interpolate(om.tensor(array), **kwargs).numpy()
    theirs = F.interpolate(torch.from_numpy(array), **kwargs).numpy()
    with np.errstate(all="ignore"):
        agree = (ours == theirs) | (np.abs(ours - theirs) <= 1e-5 * np.abs(theirs)) | np.isnan(theirs)
    assert agree.all()


@st.composite
def borders(draw, rank, low=-3, high=5):
    return tuple(draw(st.integers(low, high)) for _ in range(2 * draw(st.integers(0, rank))))


@given(data=st.data(), value=st.sampled_from([None, 0.0, -2.5, float("inf"), float("nan")]))
def test_pad_constant(data, value):
    x = data.draw(tensors(extreme=True))
    pad = data.draw(borders(x.ndim))
    try:
        expected = F.pad(to_torch(x), pad, value=value)
    except RuntimeError:
        with pytest.raises(ShapeError):
            om.pad(x, pad, value=value)
        return
    assert expected.shape == om.pad(x, pad, value=value).shape
    compare("pad", om.pad, lambda x, pad, value: F.pad(x, pad, value=value), [x, pad], {"value": value})


@given(data=st.data(), how=st.sampled_from(["reflect", "replicate", "circular"]), axes=st.integers(1, 2), mode=MODES)
def test_pad_with_what_is_there(data, how, axes, mode):
    shape = tuple(data.draw(st.integers(1, 5)) for _ in range(axes + data.draw(st.integers(1, 2))))
    x = data.draw(tensors(shape=shape))
    pad = tuple(data.draw(st.integers(0, 5)) for _ in range(2 * axes))
    try:
        F.pad(to_torch(x), pad, how)
    except (RuntimeError, NotImplementedError):
        with pytest.raises(ValueError, match="pad: "):
            om.pad(x, pad, how)
        return
    with om.arithmetic(mode):
        compare("pad", om.pad, F.pad, [x, pad, how])


@pytest.mark.parametrize("pad,how", [((-1, 2), "reflect"), ((2, -2), "reflect"), ((-1, 3), "replicate"), ((-1, 2), "circular"), ((3, -1), "circular")])
def test_pad_and_crop(pad, how):
    compare("pad", om.pad, F.pad, [om.rand(2, 5).requires_grad_(), pad, how])


def test_layers_of_torch():
    x = om.rand(2, 3, 4, 5)
    for ours, theirs in ((om.nn.Upsample(scale_factor=2, mode="bilinear"), torch.nn.Upsample(scale_factor=2, mode="bilinear")),
                         (om.nn.Upsample((3, 8)), torch.nn.Upsample((3, 8))), (om.nn.ZeroPad2d((1, 0, 2, 3)), torch.nn.ZeroPad2d((1, 0, 2, 3)))):
        np.testing.assert_allclose(ours(x).numpy(), theirs(torch.from_numpy(x.numpy())).numpy(), rtol=1e-5, atol=1e-6)


FACTORS = [0.3, 1 / 3, 0.6, 2 / 3, 0.7, 0.9, 1.0, 1.01, 1.1, 1.25, 1.3, 1.5, 1.7, 2.0, 2.02, 2.3, 2.5, 3.3, *np.random.default_rng(1).uniform(0.2, 4, 22).tolist()]


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_the_nearest_pixel_is_torchs(mode):
    """Of planes it is the same one for every size and factor; of lines too, but where torch's own forward and backward take different ones."""
    for n in (*range(1, 34), 64, 100, 127):
        x = np.arange(n, dtype=np.float32)
        ours, theirs = om.tensor(x).reshape(1, 1, n), torch.from_numpy(x).reshape(1, 1, n)
        for how in [{"scale_factor": f} for f in FACTORS if int(n * f)] + [{"size": m} for m in range(1, 48)]:
            for recompute in (None, True) if "scale_factor" in how else (None,):
                y = om.interpolate(ours, **how, mode=mode, recompute_scale_factor=recompute).numpy()
                plane = as_planes(theirs, **how, mode=mode, recompute_scale_factor=recompute).numpy()
                assert np.array_equal(y, plane), f"{n} {how} {recompute}"
                if mode == "nearest" and y.size not in (n, 2 * n):
                    assert np.array_equal(y, F.interpolate(theirs, **how, mode=mode, recompute_scale_factor=recompute).numpy()), f"{n} {how} {recompute}"


def test_torchs_lines_disagree_with_themselves():
    """The reason for the exception above; should torch mend it, this fails and the exception can go."""
    x = torch.arange(2.0).reshape(1, 1, 2).requires_grad_()
    y = F.interpolate(x, scale_factor=1.3)
    y.sum().backward()
    assert y.tolist() == [[[0.0, 0.0]]] and x.grad.tolist() == [[[1.0, 1.0]]]
    ours = om.tensor([[[0.0, 1.0]]], requires_grad=True)
    y = om.interpolate(ours, scale_factor=1.3)
    y.sum().backward()
    assert y.tolist() == [[[0.0, 1.0]]] and ours.grad.tolist() == [[[1.0, 1.0]]]
