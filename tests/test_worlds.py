"""Owns the small worlds of two lessons on automatic differentiation, by hand and by the engine; must not contain tests of single operators."""

import math

import numpy as np
import pytest

import onemodel as om
from onemodel import nn

MODES = ("fast", "exact")


@pytest.fixture(params=MODES, autouse=True)
def mode(request):
    with om.arithmetic(request.param):
        yield request.param


# -- TinyNet: 2 inputs, 6 hidden units with tanh, 1 output with sigmoid, 200 customers --


class World:
    """The data and the first weights, in float64; a customer leaves with a probability that bends in both inputs."""

    def __init__(self):
        random = np.random.default_rng(8)
        self.x = random.standard_normal((200, 2))
        chance = 1 / (1 + np.exp(-2 * (self.x[:, :1] * self.x[:, 1:] + self.x[:, :1] + 0.25)))
        self.y = (random.random((200, 1)) < chance).astype(np.float64)
        shapes = {"w1": (2, 6), "b1": (6,), "w2": (6, 1)}
        self.weights = {name: random.standard_normal(shape) for name, shape in shapes.items()} | {"b2": np.zeros(1)}

    def leaves(self):
        return {name: om.tensor(value, requires_grad=True) for name, value in self.weights.items()}

    def loss_by_hand(self, w):
        p = 1 / (1 + np.exp(-(np.tanh(self.x @ w["w1"] + w["b1"]) @ w["w2"] + w["b2"])))
        return float(-(self.y * np.log(p) + (1 - self.y) * np.log(1 - p)).mean())

    def gradients_by_hand(self, w):
        h = np.tanh(self.x @ w["w1"] + w["b1"])
        p = 1 / (1 + np.exp(-(h @ w["w2"] + w["b2"])))
        dz = (p - self.y) / len(self.y)
        da = dz @ w["w2"].T * (1 - h * h)
        return {"w1": self.x.T @ da, "b1": da.sum(0), "w2": h.T @ dz, "b2": dz.sum(0)}

    def loss(self, w, cut=False):
        x, y = om.tensor(self.x), om.tensor(self.y)
        h = om.tanh(x @ w["w1"] + w["b1"])
        if cut:
            h = h.detach()
        p = om.sigmoid(h @ w["w2"] + w["b2"])
        return -(y * om.log(p) + (1 - y) * om.log(1 - p)).mean()


@pytest.fixture(scope="module")
def world():
    return World()


def test_tinynet_gradients_are_the_hand_written_ones(world):
    w = world.leaves()
    loss = world.loss(w)
    loss.backward()
    assert loss.item() == pytest.approx(world.loss_by_hand(world.weights), rel=1e-6)
    for name, expected in world.gradients_by_hand(world.weights).items():
        np.testing.assert_allclose(w[name].grad.numpy(), expected, rtol=1e-5, atol=1e-7, err_msg=name)


def test_the_hand_written_gradients_are_the_slopes(world):
    gradients = world.gradients_by_hand(world.weights)
    for name, at in [("w1", (1, 3)), ("b1", (2,)), ("w2", (4, 0)), ("b2", (0,))]:
        slope = []
        for nudge in (1e-6, -1e-6):
            nudged = {k: v.copy() for k, v in world.weights.items()}
            nudged[name][at] += nudge
            slope.append(world.loss_by_hand(nudged))
        assert (slope[0] - slope[1]) / 2e-6 == pytest.approx(gradients[name][at], abs=1e-8)


def test_a_second_pass_without_clearing_doubles(world):
    w = world.leaves()
    world.loss(w).backward()
    once = {name: t.grad.numpy().copy() for name, t in w.items()}
    world.loss(w).backward()
    for name, t in w.items():
        assert (t.grad.numpy() == 2 * once[name]).all(), name


def test_a_cut_graph_freezes_the_layer_before_the_cut(world):
    w = world.leaves()
    world.loss(w, cut=True).backward()
    assert w["w1"].grad is None and w["b1"].grad is None
    largest = abs(w["w2"].grad.numpy()).max()
    assert largest > 0.01
    w = world.leaves()
    world.loss(w).backward()
    for t in w.values():
        om.zero_grad(t)
    world.loss(w, cut=True).backward()
    assert (w["w1"].grad.numpy() == 0).all() and (w["b1"].grad.numpy() == 0).all()
    assert abs(w["w2"].grad.numpy()).max() == largest


def test_tinynet_learns_and_its_loss_never_rises(world):
    w = world.leaves()
    optimizer = om.optim.SGD(w.values(), lr=0.8)
    losses = []
    for _ in range(300):
        optimizer.zero_grad()
        loss = world.loss(w)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert (losses[0], losses[-1]) == pytest.approx((0.838, 0.393), abs=5e-4)  # by hand in float64
    assert all(b < a for a, b in zip(losses, losses[1:], strict=False))


def test_training_without_clearing_is_another_training(world):
    """The lesson's failure mode, so that the test above cannot pass by accident."""
    w = world.leaves()
    optimizer = om.optim.SGD(w.values(), lr=0.8)
    losses = []
    for _ in range(300):
        loss = world.loss(w)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert any(b > a + 1e-4 for a, b in zip(losses, losses[1:], strict=False))


# -- a tape of expressions --


def slope(f, *at, h=1e-6):
    return [(f(*at[:i], at[i] + h, *at[i + 1:]) - f(*at[:i], at[i] - h, *at[i + 1:])) / (2 * h) for i in range(len(at))]


def check_expression(f, reference, *at):
    leaves = [om.tensor(v, requires_grad=True) for v in at]
    y = f(*leaves)
    y.backward()
    rounded = [float(np.float32(v)) for v in at]
    assert y.item() == pytest.approx(reference(*rounded), rel=1e-6)
    assert [leaf.grad.item() for leaf in leaves] == pytest.approx(slope(reference, *rounded), rel=1e-6)


def test_an_expression_of_two_variables():
    check_expression(lambda a, b: (a * b + om.sin(a)) * b, lambda a, b: (a * b + math.sin(a)) * b, 1.5, -2.0)


@pytest.mark.parametrize("at", [(1.2, 0.8), (-1.2, 0.8)])
def test_a_value_used_three_times_gets_the_sum(at):
    check_expression(lambda x, w: om.relu(x * w) * w + x * w, lambda x, w: max(x * w, 0.0) * w + x * w, *at)


def test_descent_on_a_parabola_ends_in_its_minimum():
    w = om.tensor(0.0, requires_grad=True)
    optimizer = om.optim.SGD([w], lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        om.square(3 * w - 6).backward()
        optimizer.step()
    assert w.item() == pytest.approx(2.0, abs=1e-6)


def test_a_relu_network_learns_exclusive_or():
    om.manual_seed(2)
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = om.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = om.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]]), om.tensor([[0.0], [1], [1], [0]])
    first = None
    for _ in range(500):
        optimizer.zero_grad()
        loss = om.square(model(x) - y).mean()
        loss.backward()
        optimizer.step()
        first = loss.item() if first is None else first
    assert first > 0.2 and loss.item() < 1e-6
    assert np.round(model(x).detach().numpy()).tolist() == y.tolist()
