"""Owns the differential tests of activations, losses and dropout against PyTorch: every parameter, layouts, no element, extreme values. Needs torch."""

import importlib.util
import math
import warnings

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from test_oracle import MODES, SHAPES, compare, few, tensors

import onemodel as om

pytestmark = pytest.mark.oracle
if importlib.util.find_spec("torch") is not None:
    import torch
    import torch.nn.functional as F

NUMBERS = st.floats(-3, 3, width=32)
ACTIVATIONS = {
    "softplus": st.fixed_dictionaries({}, optional={"beta": NUMBERS.filter(lambda v: abs(v) > 0.01), "threshold": st.floats(-5, 30, width=32)}),
    "leaky_relu": st.fixed_dictionaries({}, optional={"negative_slope": NUMBERS}),
    "elu": st.fixed_dictionaries({}, optional={"alpha": NUMBERS}),
}


def rounded(options):
    """torch computes in float64 here: it gets the numbers as float32 holds them."""
    return {name: float(np.float32(value)) if isinstance(value, float) else value for name, value in options.items()}


@pytest.mark.parametrize("name", ACTIVATIONS)
@few
@given(data=st.data(), x=tensors(), mode=MODES)
def test_activation(name, data, x, mode):
    options = rounded(data.draw(ACTIVATIONS[name]))
    with om.arithmetic(mode):
        compare(name, getattr(om, name), getattr(F, name), [x], options, tolerance=32)


@pytest.mark.parametrize("name", ACTIVATIONS)
@few
@given(data=st.data(), x=tensors(shape=(7,), extreme=True), mode=MODES)
def test_activation_extreme(name, data, x, mode):
    """One element at a time: a large value must not hide the error of a small one. Where the two differ: torch's elu passes g at NaN, and its
    softplus of an infinity times a negative beta, or without a threshold, is an inf - inf."""
    options = rounded(data.draw(ACTIVATIONS[name]))
    beyond = options.get("beta", 1.0) < 0 or math.isinf(options.get("threshold", 20.0))
    with om.arithmetic(mode):
        for i in range(7):
            one = x.detach()[i:i + 1].clone().requires_grad_()
            value = one.item()
            if (name == "softplus" and (beyond or abs(value) > 1e4)) or (name == "leaky_relu" and math.isinf(value)):
                continue
            if name == "elu" and abs(value) > 1e30:
                continue
            compare(name, getattr(om, name), getattr(F, name), [one], options, tolerance=64, gradient=value == value)


@st.composite
def matched(draw, extreme=False, low=None):
    """Input and target of one shape, the target perhaps without a gradient."""
    shape = draw(SHAPES)
    x, t = draw(tensors(shape=shape, extreme=extreme)), draw(tensors(shape=shape))
    if low is not None:
        t = om.sigmoid(t.detach()).requires_grad_()
    return x, t if draw(st.booleans()) else t.detach()


REDUCTIONS = st.sampled_from(["none", "mean", "sum"])
DIFFERENCES = {"mse_loss": None, "l1_loss": None, "huber_loss": "delta", "smooth_l1_loss": "beta"}


@pytest.mark.parametrize("name", DIFFERENCES)
@few
@given(pair=matched(), reduction=REDUCTIONS, bend=st.floats(0.0625, 3, width=32), mode=MODES)
def test_difference(name, pair, reduction, bend, mode):
    options = {"reduction": reduction} | ({DIFFERENCES[name]: bend} if DIFFERENCES[name] else {})
    with om.arithmetic(mode):
        compare(name, getattr(om, name), getattr(F, name), pair, options, tolerance=32)


@few
@given(pair=matched(), reduction=REDUCTIONS)
def test_smooth_l1_of_0(pair, reduction):
    compare("smooth_l1_loss", om.smooth_l1_loss, F.smooth_l1_loss, pair, {"reduction": reduction, "beta": 0.0}, tolerance=32)


@pytest.mark.parametrize("name", DIFFERENCES)
@few
@given(x=tensors(shape=(7,), extreme=True), mode=MODES)
def test_difference_extreme(name, x, mode):
    with om.arithmetic(mode):
        for i in range(7):
            one = x.detach()[i:i + 1].clone().requires_grad_()
            if abs(one.item()) > 1e18:  # torch computes in float64: no overflow there
                continue
            compare(name, getattr(om, name), getattr(F, name), [one, om.zeros(1)], {"reduction": "none"}, tolerance=32)


@st.composite
def broadcast_weight(draw, shape):
    """A weight that broadcasts to the shape, or None."""
    if draw(st.booleans()):
        return None
    reduced = tuple(1 if draw(st.integers(0, 2)) == 0 else n for n in shape)
    reduced = reduced[draw(st.integers(0, len(reduced))):]
    return om.exp(draw(tensors(shape=reduced)).detach() * 0.3)


@few
@given(data=st.data(), pair=matched(low=0.0), reduction=REDUCTIONS, mode=MODES)
def test_binary_cross_entropy_with_logits(data, pair, reduction, mode):
    weight, positive = data.draw(broadcast_weight(pair[0].shape)), data.draw(broadcast_weight(pair[0].shape))
    with om.arithmetic(mode):
        compare("binary_cross_entropy_with_logits", om.binary_cross_entropy_with_logits, F.binary_cross_entropy_with_logits, pair,
                {"weight": weight, "reduction": reduction, "pos_weight": positive}, tolerance=64)


@few
@given(x=tensors(shape=(7,), extreme=True), t=st.sampled_from([0.0, 0.25, 1.0]), mode=MODES)
def test_binary_cross_entropy_with_logits_extreme(x, t, mode):
    """At an infinite logit ours has the limit, torch inf·0."""
    with om.arithmetic(mode):
        for i in range(7):
            one = x.detach()[i:i + 1].clone().requires_grad_()
            if math.isinf(one.item()):
                continue
            compare("binary_cross_entropy_with_logits", om.binary_cross_entropy_with_logits, F.binary_cross_entropy_with_logits,
                    [one, om.full((1,), t)], {"reduction": "none"}, tolerance=32)


@few
@given(x=tensors(), p=st.floats(0, 1, width=32), training=st.booleans(), mode=MODES)
def test_dropout_is_a_product_with_its_own_zeros(x, p, training, mode):
    """torch draws other zeros; all else must agree."""
    generator = om.Generator(7)
    state = generator.get_state()

    def theirs(v):
        if not training:
            return F.dropout(v, p, training)
        kept = om.dropout(om.ones(v.shape), p, generator=om.Generator(0).set_state(state)).numpy() > 0
        return torch.where(torch.from_numpy(np.asarray(kept)), v / (1 - p) if p < 1 else 0 * v, torch.zeros((), dtype=v.dtype))

    with om.arithmetic(mode):
        compare("dropout", lambda v: om.dropout(v, p, training, generator=generator), theirs, [x], tolerance=4)


LAYERS = [("SiLU", {}), ("Softplus", {"beta": 2.0, "threshold": 3.0}), ("LeakyReLU", {"negative_slope": 0.3}), ("ELU", {"alpha": 1.5})]
LOSSES = [("L1Loss", {}), ("HuberLoss", {"delta": 0.5}), ("SmoothL1Loss", {"beta": 0.5}), ("BCEWithLogitsLoss", {}), ("MSELoss", {})]


@pytest.mark.parametrize("name,options", LAYERS + LOSSES, ids=lambda v: v if isinstance(v, str) else "")
def test_layers(name, options):
    rng = np.random.default_rng(0)
    arrays = [rng.normal(0, 2, (5, 7)).astype(np.float32)] + ([rng.random((5, 7)).astype(np.float32)] if "Loss" in name else [])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = getattr(om.nn, name)(**options)(*map(om.tensor, arrays))
        theirs = getattr(torch.nn, name)(**options)(*map(torch.tensor, arrays))
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-6, atol=1e-6)
