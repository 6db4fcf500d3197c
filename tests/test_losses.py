"""Owns the tests of the losses of an input against a target: bits against a plain loop, edges, weights, layouts, threads, layers."""

import math

import numpy as np
import pytest

import onemodel as om
from onemodel import nn
from onemodel._kernels import table

F = np.float32
INF, NAN = math.inf, math.nan
NAMES = ["mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss", "binary_cross_entropy_with_logits"]
OPTIONS = {"huber_loss": {"delta": 0.7}, "smooth_l1_loss": {"beta": 0.7}}


def pair(shape, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(0, 2, shape).astype(F), rng.normal(0, 2, shape).astype(F)


def value(name, a, b):
    """The float32 operations of the kernels, one rounding each; None for the logistic error, whose logarithm is a kernel of its own."""
    d, bend, half = a - b, F(0.7), F(0.5)
    size = np.abs(d)
    with np.errstate(all="ignore"):
        return {"mse_loss": d * d, "l1_loss": size, "huber_loss": np.where(size < bend, half * size * size, bend * (size - half * bend)),
                "smooth_l1_loss": np.where(size < bend, half * size * size / bend, size - half * bend)}[name]


def slope(name, a, b, s):
    d, bend = a - b, F(0.7)
    return {"mse_loss": d * (s + s), "l1_loss": np.sign(d) * s, "huber_loss": np.clip(d, -bend, bend) * s,
            "smooth_l1_loss": np.clip(d, -bend, bend) / bend * s}[name]


def chain(values):
    total = 0.0
    for v in values.reshape(-1).tolist():
        total += v
    return total


@pytest.mark.parametrize("name", NAMES[:4])
@pytest.mark.parametrize("n", [1, 5, 16, 1023, 1025, 5000])
def test_exact_bits_are_those_of_a_plain_loop(name, n):
    a, b = pair(n)
    each = value(name, a, b)
    table.set_smallest_piece(64)
    for isa in table.available_isas():
        for threads in (1, 3):
            om.set_num_threads(threads)
            with om.use_isa(isa), om.arithmetic("exact"):
                function = getattr(om, name)
                for reduction, expected, scale in [("none", each, F(1)), ("sum", F(chain(each)), F(1)), ("mean", F(chain(each) / n), F(1.0 / n))]:
                    x, t = om.tensor(a).requires_grad_(), om.tensor(b).requires_grad_()
                    y = function(x, t, reduction=reduction, **OPTIONS.get(name, {}))
                    assert np.array_equal(y.detach().numpy(), expected), (isa, threads, reduction)
                    y.backward(om.ones_like(y))
                    want = slope(name, a, b, scale)
                    assert np.array_equal(x.grad.numpy(), want) and np.array_equal(t.grad.numpy(), -want), (isa, threads, reduction)


@pytest.mark.parametrize("name", NAMES)
def test_a_sum_beyond_what_a_window_holds_is_still_the_chain(name):
    """Values of very different size: the order of the sum shows."""
    rng = np.random.default_rng(3)
    a = (rng.normal(0, 1, 40_000) * 2.0 ** rng.integers(-20, 20, 40_000)).astype(F)
    b = np.zeros_like(a)
    with om.arithmetic("exact"):
        each = getattr(om, name)(om.tensor(a), om.tensor(b), reduction="none").numpy()
        digests = set()
        for threads, piece in [(1, 32768), (1, 500), (2, 500), (3, 4096)]:
            om.set_num_threads(threads)
            table.set_smallest_piece(piece)
            digests.add(getattr(om, name)(om.tensor(a), om.tensor(b), reduction="sum").item())
    assert digests == {float(F(chain(each)))}


@pytest.mark.parametrize("name", NAMES)
def test_fast_bits_depend_on_no_thread_count(name):
    a, b = pair(20_000)
    table.set_smallest_piece(512)
    for isa in table.available_isas():
        with om.use_isa(isa), om.arithmetic("fast"):
            seen = set()
            for threads in (1, 2, 3, 8):
                om.set_num_threads(threads)
                x = om.tensor(a).requires_grad_()
                y = getattr(om, name)(x, om.tensor(b))
                y.backward()
                seen.add((y.sha256(), x.grad.sha256()))
            assert len(seen) == 1, isa


@pytest.mark.parametrize("name", NAMES)
def test_layouts_have_the_bits_of_a_copy(name):
    a, b = pair((40, 50))
    function = getattr(om, name)
    with om.arithmetic("exact"):
        for reduction in ("none", "mean", "sum"):
            want = function(om.tensor(a), om.tensor(b), reduction=reduction).tolist()
            wide = om.tensor(np.repeat(b, 2, axis=1))[:, ::2]
            for x in (om.tensor(a), om.tensor(a.T.copy()).T, om.tensor(a[:, ::-1].copy()).flip(1)):
                assert function(x, wide, reduction=reduction).tolist() == want
        row = om.tensor(a[:1]).requires_grad_()
        function(row.expand(40, 50), wide).backward()
        whole = om.tensor(np.array(np.broadcast_to(a[:1], (40, 50)))).requires_grad_()
        function(whole, wide).backward()
        assert row.grad.tolist() == whole.grad.sum(0, keepdim=True).tolist()


def test_no_element():
    for name in NAMES:
        x, t = om.zeros(0, 3).requires_grad_(), om.zeros(0, 3)
        function = getattr(om, name)
        assert math.isnan(function(x, t).item()) and function(x, t, reduction="sum").item() == 0
        assert function(x, t, reduction="none").shape == (0, 3)
        function(x, t).backward()
        assert x.grad.shape == (0, 3)


# -- binary cross entropy --

bce = om.binary_cross_entropy_with_logits


def logistic(x, t, w=1.0, p=1.0):
    x, t, w, p = (np.asarray(v, np.longdouble) for v in (x, t, w, p))
    softplus = np.log1p(np.exp(-np.abs(x)))
    value = w * (np.abs(x) * np.where(x < 0, p * t, 1 - t) + (1 - t + p * t) * softplus)
    e = np.exp(-np.abs(x))
    up, down = np.where(x < 0, e, 1) / (1 + e), np.where(x < 0, 1, e) / (1 + e)
    return value, w * ((1 - t) * up - p * t * down), w * (-x + (p - 1) * (np.maximum(-x, 0) + softplus))


def test_bce_keeps_its_relative_accuracy_everywhere():
    """Neither the loss nor the gradient cancels, also where the logit is large and right."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(0, 3, 3000), rng.uniform(-80, 80, 3000), rng.uniform(-1e-6, 1e-6, 50)]).astype(F)
    for t in (np.zeros_like(x), np.ones_like(x), rng.integers(0, 2, x.size).astype(F)):
        p = rng.uniform(0.5, 3, x.size).astype(F)
        for weights in ({}, {"weight": p}, {"pos_weight": p}):
            given = {name: om.tensor(v) for name, v in weights.items()}
            loss, dx, dt = logistic(x, t, weights.get("weight", 1), weights.get("pos_weight", 1))
            for isa in table.available_isas():
                for mode in ("fast", "exact"):
                    with om.use_isa(isa), om.arithmetic(mode):
                        leaf, target = om.tensor(x).requires_grad_(), om.tensor(t).requires_grad_()
                        y = bce(leaf, target, reduction="none", **given)
                        y.backward(om.ones_like(y))
                    for got, want in [(y.detach().numpy(), loss), (leaf.grad.numpy(), dx)]:
                        assert (np.abs(got - want) <= 6 * 2.0**-24 * np.abs(want) + 1e-40).all(), (isa, mode, list(weights))
                    assert (np.abs(target.grad.numpy() - dt) <= 4 * 2.0**-23 * (np.abs(x) + 1)).all()


def test_C17_bce_is_never_below_zero():
    rng = np.random.default_rng(1)
    x, t = rng.normal(0, 20, 20_000).astype(F), rng.random(20_000).astype(F)
    for mode in ("fast", "exact"):
        with om.arithmetic(mode):
            assert bce(om.tensor(x), om.tensor(t), reduction="none").numpy().min() >= 0
            assert bce(om.tensor([18.0, -18.0]), om.tensor([1.0, 0.0]), reduction="none").tolist() == pytest.approx([1.52e-8, 1.52e-8], rel=1e-2)


def test_G01_bce_at_the_infinities():
    x, t = om.tensor([INF, INF, -INF, -INF, NAN, 1e20, -1e20]), om.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0])
    for mode in ("fast", "exact"):
        with om.arithmetic(mode):
            leaf = x.clone().requires_grad_()
            y = bce(leaf, t, reduction="none")
            y.backward(om.ones(7))
            assert np.array_equal(y.detach().numpy(), np.array([0, INF, 0, INF, NAN, 0, 0], F), equal_nan=True)
            assert np.array_equal(leaf.grad.numpy(), np.array([0, 1, 0, -1, NAN, 0, 0], F), equal_nan=True)


@pytest.mark.parametrize("shape", [(), (1,), (6,), (5, 1), (5, 6), (4, 1, 1), (4, 5, 6), (1, 1, 6)])
def test_weights_broadcast_as_numpys(shape):
    rng = np.random.default_rng(2)
    x, t, w = pair((4, 5, 6))[0], rng.random((4, 5, 6)).astype(F), rng.uniform(0.5, 2, shape).astype(F)
    whole = om.tensor(np.array(np.broadcast_to(w, (4, 5, 6))))
    with om.arithmetic("exact"):
        for name in ("weight", "pos_weight"):
            runs = []
            for given in (om.tensor(w), whole):
                leaf, target = om.tensor(x).requires_grad_(), om.tensor(t).requires_grad_()
                y = bce(leaf, target, **{name: given})
                y.backward()
                runs.append((y.sha256(), leaf.grad.sha256(), target.grad.sha256()))
            assert runs[0] == runs[1], name


def test_edges_of_differences():
    a, b = om.tensor([INF, INF, NAN, 0.0, 3e38]), om.tensor([-INF, 0.0, 0.0, 0.0, -3e38])
    for mode in ("fast", "exact"):
        with om.arithmetic(mode):
            for name, grads in [("l1_loss", [1, 1, 0, 0, 1]), ("huber_loss", [1, 1, NAN, 0, 1]), ("smooth_l1_loss", [1, 1, NAN, 0, 1])]:
                x = a.clone().requires_grad_()
                y = getattr(om, name)(x, b, reduction="none")
                y.backward(om.ones(5))
                assert np.array_equal(y.detach().numpy(), np.array([INF, INF, NAN, 0, INF], F), equal_nan=True), name
                assert np.array_equal(x.grad.numpy(), np.array(grads, F), equal_nan=True), name


def test_backward_makes_only_what_is_wanted():
    x, t = om.zeros(1000).requires_grad_(), om.ones(1000)
    for name in NAMES:
        y = getattr(om, name)(x, t)
        before = om.pool_stats()
        (g,) = om.grad(y, x)
        assert (om.pool_stats() - before).outstanding_blocks == 1, name
        del g
        with pytest.raises(om.GraphReleasedError):
            y.backward()


@pytest.mark.parametrize("value,error", [(0, ValueError), (-1.0, ValueError), (-2**63, ValueError), (10**400, ValueError), (NAN, ValueError),
                                         (True, TypeError), (None, TypeError), ("1", TypeError)],
                         ids=["zero", "negative", "-2**63", "huge", "nan", "bool", "none", "string"])
def test_bad_bends_are_named(value, error):
    x = om.ones(3)
    for make, name in [(om.huber_loss, "delta"), (om.smooth_l1_loss, "beta"), (nn.HuberLoss, "delta"), (nn.SmoothL1Loss, "beta")]:
        if name == "beta" and value == 0 and not isinstance(value, bool):
            continue  # smooth_l1_loss of 0 is l1_loss
        with pytest.raises(error, match=name):
            make(**{name: value}) if isinstance(make, type) else make(x, x, **{name: value})
    assert om.huber_loss(x, x * 3, delta=np.int64(2**40)).item() == 2.0 and om.smooth_l1_loss(x, x * 3, beta=np.float32(0.5)).item() == 1.75


def test_layers_are_the_operators():
    x, t = (om.tensor(v) for v in pair((3, 4)))
    t = om.sigmoid(t)
    w, p = om.tensor([0.5, 1.0, 2.0, 1.0]), om.tensor([3.0, 1.0, 1.0, 2.0])
    for reduction in ("none", "mean", "sum"):
        for layer, expected in [
            (nn.L1Loss(reduction), om.l1_loss(x, t, reduction)), (nn.HuberLoss(reduction, 0.5), om.huber_loss(x, t, reduction, 0.5)),
            (nn.SmoothL1Loss(reduction, 0.5), om.smooth_l1_loss(x, t, reduction, 0.5)),
            (nn.BCEWithLogitsLoss(w, reduction, p), bce(x, t, w, reduction, p)),
        ]:
            assert layer(x, t).tolist() == expected.tolist(), layer
    state = nn.BCEWithLogitsLoss(pos_weight=p).state_dict()
    assert list(state) == ["pos_weight"] and repr(nn.HuberLoss()) == "HuberLoss(reduction='mean', delta=1.0)"


def test_probabilities_of_no_rows():
    """The mean of nothing is NaN, as of class indices."""
    for shape in ((0, 3), (2, 3, 0), (2, 0, 3)):
        x, t = om.zeros(*shape).requires_grad_(), om.zeros(*shape)
        for smoothing in (0.0, 0.1):
            loss = om.cross_entropy(x, t, label_smoothing=smoothing)
            assert math.isnan(loss.item()) and om.cross_entropy(x, t, reduction="sum", label_smoothing=smoothing).item() == 0
            loss.backward()
            assert x.grad.shape == shape


@pytest.mark.parametrize("targets", [om.tensor([0, 1]), om.ones(2, 3)], ids=["classes", "probabilities"])
def test_cross_entropy_names_itself(targets):
    x = om.ones(2, 3)
    for wrong in ("a", True, np.True_, om.tensor(0.1), om.ones(2), np.ones(2), None):
        with pytest.raises(TypeError, match="^cross_entropy: label_smoothing must be a number"):
            om.cross_entropy(x, targets, label_smoothing=wrong)
    for wrong in (1.5, -0.1, math.nan):
        with pytest.raises(ValueError, match="^cross_entropy: label_smoothing must be from 0 to 1"):
            om.cross_entropy(x, targets, label_smoothing=wrong)
    for call in (lambda: om.cross_entropy(np.float32, targets), lambda: om.cross_entropy(om.tensor([[1, 2, 3]] * 2), targets), lambda: om.cross_entropy(x, targets, "a"),
                 lambda: om.cross_entropy(x, targets, om.ones(2)), lambda: om.cross_entropy(om.tensor(1.0), om.tensor(1.0))):  # fmt: skip
        with pytest.raises((TypeError, ValueError), match="^cross_entropy: "):
            call()
