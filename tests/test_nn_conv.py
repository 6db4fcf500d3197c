"""Owns the tests of the layers that convolve: parameters, first values, checked arguments. Must not contain a comparison with torch."""

import math

import numpy as np
import pytest

import onemodel as om
from onemodel import nn

LAYERS = {"Conv1d": 1, "Conv2d": 2, "ConvTranspose2d": 2}


@pytest.fixture(autouse=True)
def seed():
    om.manual_seed(0)


@pytest.mark.parametrize("name", LAYERS)
def test_parameters_and_first_values(name):
    """Uniform in ±1/√fan_in, where fan_in is the weight's second dimension times the kernel: torch's default."""
    layer = getattr(nn, name)(8, 12, 5, groups=2)
    kernel = (5,) * LAYERS[name]
    shape = (8, 6, *kernel) if name == "ConvTranspose2d" else (12, 4, *kernel)
    assert [(k, v.shape) for k, v in layer.named_parameters()] == [("weight", shape), ("bias", (12,))]
    bound = 1 / math.sqrt(math.prod(shape[1:]))
    for p in layer.parameters():
        values = p.detach().numpy()
        assert np.abs(values).max() <= bound and np.unique(values).size > values.size // 2
    weight = layer.weight.detach().numpy()
    assert weight.max() > 0.9 * bound and weight.min() < -0.9 * bound and abs(weight.std() * math.sqrt(3) / bound - 1) < 0.15
    assert getattr(nn, name)(8, 12, 5, bias=False).bias is None
    om.manual_seed(7)
    first = getattr(nn, name)(2, 3, 3).weight.sha256()
    om.manual_seed(7)
    assert getattr(nn, name)(2, 3, 3).weight.sha256() == first


@pytest.mark.parametrize("name", LAYERS)
def test_the_layer_is_the_function(name):
    spatial = LAYERS[name]
    kwargs = {"stride": 2, "padding": 1, "dilation": 2, "groups": 2, **({"output_padding": 1} if name == "ConvTranspose2d" else {})}
    layer = getattr(nn, name)(4, 6, 3, **kwargs)
    x = om.rand(2, 4, *(9, 8)[:spatial]).requires_grad_()
    function = {"Conv1d": om.conv1d, "Conv2d": om.conv2d, "ConvTranspose2d": om.conv_transpose2d}[name]
    assert layer(x).sha256() == function(x, layer.weight, layer.bias, **kwargs).sha256()
    layer(x).sum().backward()
    assert all(p.grad is not None for p in layer.parameters()) and x.grad.shape == x.shape


def test_every_padding_of_the_functions():
    x = om.rand(1, 2, 6, 7)
    for padding in ("same", "valid", 1, (1, 2), (0, 1, 2, 3), [1]):
        layer = nn.Conv2d(2, 3, (3, 2), padding=padding)
        assert layer(x).sha256() == om.conv2d(x, layer.weight, layer.bias, padding=padding).sha256()
    for padding in ("same", 1, (1, 2)):
        layer = nn.Conv1d(2, 3, 4, padding=padding)
        assert layer(x[:, :, 0]).sha256() == om.conv1d(x[:, :, 0], layer.weight, layer.bias, padding=padding).sha256()
    layer = nn.ConvTranspose2d(2, 3, 3, stride=2, padding=(0, 1, 2, 1))
    assert layer(x, (12, 14)).shape == (1, 3, 12, 14)


@pytest.mark.parametrize("name", LAYERS)
def test_arguments_are_checked(name):
    layer = getattr(nn, name)
    for kwargs, words in (
        ({"in_channels": 0}, "in_channels must be from 1"), ({"out_channels": -1}, "out_channels must be from 1"), ({"kernel_size": 0}, "kernel_size must be from 1"),
        ({"stride": 0}, "stride must be from 1"), ({"dilation": 2**70}, "dilation must be from 1"), ({"padding": -1}, "padding must be from 0"),
        ({"padding": 2**62}, "padding must be from 0"), ({"groups": 0}, "groups must be from 1"), ({"groups": 3}, "3 groups do not divide in_channels 4"),
        ({"groups": 4}, "4 groups do not divide out_channels 6"), ({"kernel_size": (1, 2, 3)}, "kernel_size must be an integer"),
        ({"stride": ()}, "stride must be an integer"), ({"padding_mode": "reflect"}, "padding_mode must be 'zeros', got 'reflect'"),
    ):
        with pytest.raises(ValueError, match=f"^{name}: {words}"):
            layer(**{"in_channels": 4, "out_channels": 6, "kernel_size": 3, **kwargs})
    for parameter in ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups"):
        for bad in (True, 1.0, None, np.float32(1), b"1", (1.0,)):
            with pytest.raises(TypeError, match=f"^{name}: {parameter} must be"):
                layer(**{"in_channels": 4, "out_channels": 6, "kernel_size": 3, parameter: bad})
    with pytest.raises(TypeError, match=f"^{name}: bias must be True or False"):
        layer(4, 6, 3, bias=1)
    if name == "ConvTranspose2d":
        with pytest.raises(TypeError, match="padding must be"):
            layer(4, 6, 3, padding="same")
        with pytest.raises(ValueError, match="output_padding must be from 0"):
            layer(4, 6, 3, output_padding=-1)
        for size in ((3, 4), (7, 9), (1,), 5, "ab", (2**70, 5)):
            with pytest.raises(ValueError, match="output_size"):
                layer(4, 6, 3, stride=2)(om.ones(1, 4, 2, 3), size)
    else:
        with pytest.raises(ValueError, match="needs a stride of 1"):
            layer(4, 6, 3, padding="same", stride=2)
        with pytest.raises(ValueError, match="'same' or 'valid', got 'full'"):
            layer(4, 6, 3, padding="full")
    assert layer(np.int64(4), np.int32(6), np.int8(3), groups=np.uint8(2)).in_channels == 4


def test_a_small_net_of_images_learns():
    """Two convolutions up and down again fit one image: every gradient has the right sign at least."""
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 2, stride=2), nn.ReLU(), nn.ConvTranspose2d(8, 1, 2, stride=2))
    x, optimizer = (om.arange(64.0).reshape(1, 1, 8, 8) * 0.4).sin(), om.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(100):
        loss = om.mse_loss(net(x), x)
        losses.append(loss.item())
        net.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.1 * losses[0]


WINDOWS = [{"kernel_size": 2}, {"kernel_size": 3, "stride": 1, "padding": 1}, {"kernel_size": 3, "stride": 2, "ceil_mode": True},
           {"kernel_size": 2, "stride": 1, "dilation": 2}]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_a_relu_behind_the_pooling_gives_the_bits_of_one_before(mode, window):
    """Ties, windows without a positive element, both zeros, NaN and infinities; windows that overlap."""
    random = np.random.default_rng(5)
    values = random.choice(np.float32([-2, -1, -0.0, 0.0, 1, 2, np.inf, -np.inf, np.nan]), (2, 3, 9, 8), p=[0.25, 0.25, 0.1, 0.1, 0.13, 0.13, 0.01, 0.02, 0.01])
    relu, pool = nn.ReLU(), nn.MaxPool2d(**window)
    with om.arithmetic(mode):
        results = []
        for model in (lambda x: pool(relu(x)), nn.Sequential(relu, pool)):
            x = om.tensor(values).requires_grad_()
            y = model(x)
            g = np.random.default_rng(6).choice(np.float32([-1.5, -0.0, 0.25, 3]), y.shape)
            y.backward(om.tensor(g))
            results.append((y.detach().numpy().tobytes(), x.grad.numpy().tobytes()))
    assert results[0] == results[1]


def test_sequential_runs_a_stage_as_one_operator_only_where_nobody_looks():
    """Seen from the operator that the result's record names."""
    x = om.randn(2, 3, 8, 8)

    def last(*modules):
        return str(nn.Sequential(*modules)(x).grad_fn).split()[0].strip("<")

    conv = nn.Conv2d(3, 4, 3, padding=1)
    assert last(conv, nn.ReLU(), nn.MaxPool2d(2)) == last(conv, nn.MaxPool2d(2), nn.ReLU()) == "conv_relu_pool2d"
    assert last(conv, nn.ReLU(), nn.MaxPool2d(2), nn.MaxPool2d(2)) == "relu"
    assert last(conv, nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)) == "relu"
    assert last(conv, nn.ReLU(), nn.AvgPool2d(2)) == "avg_pool2d" and last(conv, nn.ReLU()) == "relu"
    seen = []
    conv.register_forward_hook(lambda module, inputs, y: seen.append(y.shape))
    assert last(conv, nn.ReLU(), nn.MaxPool2d(2)) == "relu" and seen == [(2, 4, 8, 8)]

    class Mine(nn.Conv2d):
        pass

    assert last(Mine(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2)) == "relu"


def test_sequential_moves_a_relu_only_where_nobody_looks(monkeypatch):
    """Seen from the operator that comes last."""
    x = om.randn(1, 1, 4, 4).requires_grad_()

    def last(*modules):
        y = nn.Sequential(*modules)(x)
        return str((y[0] if isinstance(y, tuple) else y).grad_fn).split()[0].strip("<")

    assert last(nn.ReLU(), nn.MaxPool2d(2)) == last(nn.ReLU(), nn.MaxPool2d(2), nn.MaxPool2d(2)) == "relu"
    assert last(nn.ReLU(), nn.AvgPool2d(2)) == "avg_pool2d" and last(nn.ReLU(), nn.MaxPool2d(2, return_indices=True)) == "max_pool2d"
    hooked, replaced = nn.ReLU(), nn.MaxPool2d(2)
    hooked.register_forward_hook(lambda *a: None)
    replaced.forward = lambda x: -x
    assert last(hooked, nn.MaxPool2d(2)) == "max_pool2d" and last(nn.ReLU(), replaced) == "neg"

    class Mine(nn.ReLU):
        pass

    assert last(Mine(), nn.MaxPool2d(2)) == "max_pool2d"
    conv, own = nn.Conv2d(1, 1, 1), nn.ReLU.forward
    for kind in (nn.ReLU, nn.Conv2d):
        with monkeypatch.context() as patch:
            patch.setattr(kind, "forward", lambda self, x: own(self, x))
            assert last(conv, nn.ReLU(), nn.MaxPool2d(2)) == ("max_pool2d" if kind is nn.ReLU else "relu")
    assert last(conv, nn.ReLU(), nn.MaxPool2d(2)) == "conv_relu_pool2d"


@pytest.mark.parametrize("pool, shape", [
    (nn.MaxPool2d(2, padding=(1, 0), dilation=(2, 1)), (1, 1, 1, 4)), (nn.MaxPool2d(2, padding=1, dilation=2), (1, 1, 3, 1)),
    (nn.MaxPool1d(2, padding=1, dilation=2), (1, 1, 1)),
])  # fmt: skip
def test_a_window_of_padding_alone_stays_minus_infinity(pool, shape):
    relu, x = nn.ReLU(), om.ones(*shape)
    expected = pool(relu(x)).numpy()
    assert np.isneginf(expected).any() and np.array_equal(nn.Sequential(relu, pool)(x).numpy(), expected)
    if len(shape) == 4:
        conv = nn.Conv2d(1, 1, 1)
        assert np.array_equal(nn.Sequential(conv, relu, pool)(x).detach().numpy(), pool(relu(conv(x))).detach().numpy())
