"""Owns the tests of silu, softplus, leaky_relu and elu: bounds against extended precision, edges, parameters, layers."""

import math

import numpy as np
import pytest

import onemodel as om
from onemodel import nn
from onemodel._kernels import probe, table

F, L = np.float32, np.longdouble
INF, NAN = math.inf, math.nan
EXACT_PATHS = [(isa, 1) for isa in table.available_isas()]
PATHS = [(isa, mode) for isa in table.available_isas() for mode in (0, 1)]


def sigmoid(u):
    return np.where(u >= 0, 1 / (1 + np.exp(-np.abs(u))), np.exp(-np.abs(u)) / (1 + np.exp(-np.abs(u))))


def softplus(u):
    return np.maximum(u, 0) + np.log1p(np.exp(-np.abs(u)))


def silu_slope(x):
    return sigmoid(x) * (1 + x * sigmoid(-x))


def points(n=20000, seed=1):
    rng = np.random.default_rng(seed)
    anything = rng.integers(0, 2**32, n, dtype=np.uint64).astype(np.uint32).view(F)
    x = np.concatenate([anything, rng.uniform(-120, 120, n).astype(F), rng.normal(0, 3, n).astype(F), rng.normal(0, 1e-3, n).astype(F)])
    return x[np.isfinite(x)]


# name, parameters, the function in extended precision, bounds in units of the result (fast, exact), smallest result for which they hold
B, A = L(F(-2.7)), L(F(1.7))
BOUNDS = [
    ("silu", [], lambda x: x * sigmoid(x), (2.0, 0.5001), 0),
    ("softplus", [1, INF], softplus, (2.0, 0.5001), 0),
    ("softplus", [-2.7, INF], lambda x: softplus(x * B) / B, (2.6, 0.5001), 2.0**-120),
    ("elu", [1], lambda x: np.where(x < 0, np.expm1(x), x), (1.2, 0.5001), 0),
    ("elu", [1.7], lambda x: np.where(x < 0, A * np.expm1(x), x), (2.2, 0.5001), 0),
    ("silu_bwd", [1], silu_slope, (5.0, 5.0), 2.0**-100),
    ("softplus_bwd", [1, INF, 1], sigmoid, (2.0, 0.5001), 0),
    ("softplus_bwd", [-2.7, INF, 1], lambda x: sigmoid(x * B), (3.0, 2.0), 2.0**-100),
    ("elu_bwd", [1, 1], lambda x: np.where(x > 0, 1, np.exp(x)), (1.0, 0.5001), 0),
    ("elu_bwd", [1.7, 1], lambda x: np.where(x > 0, 1, A * np.exp(x)), (2.0, 1.5), 0),
]


def units(got, want):
    with np.errstate(over="ignore"):
        unit = np.spacing(np.maximum(np.abs(want).astype(F), F(2.0**-126)))
    return np.where(np.isfinite(unit), np.abs(got.astype(L) - want) / unit.astype(L), 0)


@pytest.mark.parametrize("name,parameters,function,bounds,least", BOUNDS, ids=[f"{b[0]}-{len(b[1])}-{b[1][:1]}" for b in BOUNDS])
def test_within_bound(name, parameters, function, bounds, least):
    x = points()
    if name == "silu_bwd":  # where the slope crosses zero no relative error can be kept
        x = x[np.abs(x + 1.2784645) > 0.5]
    with np.errstate(all="ignore"):
        want = function(x.astype(L))
    x, want = x[np.abs(want) >= least], want[np.abs(want) >= least]
    for isa, mode in PATHS:
        got = probe.run(name, x, *[np.full_like(x, p) for p in parameters], mode=mode, isa=isa)
        error = units(got, want)
        worst = int(np.argmax(error))
        assert error[worst] <= bounds[mode], (isa, mode, x[worst], got[worst], want[worst], error[worst])


def test_lanes_in_doubt_take_the_double_form():
    """silu of a pair of floats: every path must give the bits of the double form, which the scalar set always takes."""
    x = np.concatenate([points(1 << 17, 5), np.random.default_rng(2).uniform(-112, 30, 1 << 18).astype(F)])
    want = probe.run("silu", x, mode=1, isa="scalar").view(np.uint32)
    for isa, _ in EXACT_PATHS:
        assert np.array_equal(probe.run("silu", x, mode=1, isa=isa).view(np.uint32), want), isa


EDGES = [
    ("silu", {}, [INF, -INF, NAN, 0.0, -0.0, 1e20, -1e20, -120.0], [INF, -0.0, NAN, 0.0, -0.0, 1e20, -0.0, -0.0], [1, -0.0, NAN, 0.5, 0.5, 1, -0.0, -0.0]),
    ("softplus", {}, [INF, -INF, NAN, 1e20, -1e20, 3e38], [INF, 0.0, NAN, 1e20, 0.0, 3e38], [1, 0, NAN, 1, 0, 1]),
    ("softplus", {"threshold": INF}, [INF, -INF, 1e20, 21.0], [INF, 0.0, 1e20, 21.0], [1, 0, 1, 1]),
    ("softplus", {"beta": -1.0}, [INF, -INF, 1e20, -1e20], [-0.0, -INF, -0.0, -1e20], [0, 1, 0, 1]),
    ("softplus", {"threshold": -5.0}, [-4.0, 3.0], [-4.0, 3.0], [1, 1]),
    ("leaky_relu", {}, [INF, -INF, NAN, 0.0, -0.0, 1e20], [INF, -INF, NAN, 0.0, -0.0, 1e20], [1, F(0.01), F(0.01), F(0.01), F(0.01), 1]),
    ("leaky_relu", {"negative_slope": 0}, [-3.0, -INF, -0.0], [-0.0, NAN, -0.0], [0, 0, 0]),
    ("elu", {}, [INF, -INF, NAN, 0.0, -0.0, 1e20, -1e20, 1e-40, -1e-40], [INF, -1, NAN, 0.0, -0.0, 1e20, -1, 1e-40, -1e-40],
     [1, 0, NAN, 1, 1, 1, 0, 1, 1]),
    ("elu", {"alpha": 2.0}, [0.0, -0.0, -1e20, 5.0], [0.0, -0.0, -2, 5], [2, 2, 0, 1]),
]


def same(got, want):
    want = np.array(want, F)
    return np.array_equal(got, want, equal_nan=True) and np.array_equal(np.signbit(got)[~np.isnan(want)], np.signbit(want)[~np.isnan(want)])


@pytest.mark.parametrize("name,options,x,y,slope", EDGES, ids=[f"{e[0]}-{e[1]}" for e in EDGES])
def test_R01_G01_G02_edges_in_body_and_tail(name, options, x, y, slope):
    """The rows R01, G01 and G02 of the edge cases, for their whole kind."""
    for isa, mode in PATHS:
        with om.use_isa(isa), om.arithmetic(["fast", "exact"][mode]):
            for repeat in (1, 9):
                leaf = om.tensor(np.array(x * repeat, F)).requires_grad_()
                out = getattr(om, name)(leaf, **options)
                out.backward(om.ones_like(out))
                assert same(out.detach().numpy(), y * repeat), (isa, mode, out)
                assert same(leaf.grad.numpy(), slope * repeat), (isa, mode, leaf.grad)


def test_a_nan_of_exact_mode_is_the_canonical_one():
    payload = np.full(5, 0xFFC12345, np.uint32).view(F)
    with om.arithmetic("exact"):
        for function in (om.silu, om.softplus, om.leaky_relu, om.elu):
            assert (function(om.tensor(payload)).numpy().view(np.uint32) == 0x7FC00000).all(), function


def test_numbers_of_numpy_are_parameters():
    x = om.tensor([-1.0, 2.0])
    assert om.leaky_relu(x, np.int64(2)).tolist() == om.leaky_relu(x, 2.0).tolist() == [-2, 2]
    assert om.elu(x, np.float64(0.5)).tolist() == om.elu(x, 0.5).tolist()
    assert om.softplus(x, np.float32(2), np.int32(3)).tolist() == om.softplus(x, 2, 3).tolist()


PARAMETERS = [(om.leaky_relu, "negative_slope"), (om.elu, "alpha"), (om.softplus, "beta"), (om.softplus, "threshold"),
              (nn.LeakyReLU, "negative_slope"), (nn.ELU, "alpha"), (nn.Softplus, "beta"), (nn.Softplus, "threshold")]


@pytest.mark.parametrize("value,error", [(True, TypeError), (None, TypeError), ("1", TypeError), ([1.0], TypeError), (NAN, ValueError),
                                         (10**400, ValueError), (-10**5000, ValueError), (1e39, ValueError)],
                         ids=["bool", "none", "string", "list", "nan", "huge", "huge_negative", "beyond_float32"])
def test_bad_parameters_are_named(value, error):
    x = om.tensor([1.0])
    before = om.pool_stats()
    for function, name in PARAMETERS:
        if name == "threshold" and isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:
            continue  # any number is a threshold
        with pytest.raises(error, match=name):
            function(**{name: value}) if isinstance(function, type) else function(x, **{name: value})
    assert (om.pool_stats() - before).outstanding_blocks == 0


def test_large_integers_within_float32_are_numbers():
    assert om.leaky_relu(om.tensor([-1.0]), 2**70).tolist() == [-(2.0**70)]
    assert om.softplus(om.tensor([-1.0]), 1, 2**70).item() == om.softplus(om.tensor([-1.0])).item()


@pytest.mark.parametrize("layer", [nn.ReLU, nn.SiLU, nn.LeakyReLU, nn.ELU])
def test_layers_refuse_inplace(layer):
    with pytest.raises(ValueError, match="inplace"):
        layer(inplace=True)
    layer(inplace=False)


def test_layers_are_the_operators():
    x = om.tensor([-3.0, -0.5, 0.0, 4.0])
    for layer, expected in [(nn.SiLU(), om.silu(x)), (nn.Softplus(2, 3), om.softplus(x, 2, 3)), (nn.LeakyReLU(0.3), om.leaky_relu(x, 0.3)),
                            (nn.ELU(1.5), om.elu(x, 1.5))]:
        assert layer(x).tolist() == expected.tolist(), layer
    assert repr(nn.Softplus()) == "Softplus(beta=1.0, threshold=20.0)" and repr(nn.LeakyReLU()) == "LeakyReLU(negative_slope=0.01)"
    assert repr(nn.ELU()) == "ELU(alpha=1.0)" and repr(nn.SiLU()) == "SiLU()"
