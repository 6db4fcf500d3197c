"""Owns the comparison of attention and of the recurrent networks with PyTorch, for every option, on shapes that hypothesis makes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import onemodel as om

pytestmark = pytest.mark.oracle


def close(ours, theirs, bound=2e-5, least=1e-3):
    """Within the bound of the largest value, or of `least`: of the terms that cancel where a softmax is saturated."""
    theirs = theirs.detach().numpy()
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max(initial=0) <= bound * max(np.abs(theirs).max(initial=0), least)


@given(st.data())
def test_attention(data):
    torch = pytest.importorskip("torch")
    draw = data.draw
    lead = draw(st.lists(st.integers(1, 3), max_size=2).map(tuple))
    queries, keys, width, values = (draw(st.integers(1, n)) for n in (20, 20, 9, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    arrays = [(rng.normal(size=(*lead, *shape)) * draw(st.sampled_from([0.1, 1.0, 8.0]))).astype(np.float32)
              for shape in ((queries, width), (keys, width), (keys, values))]
    kind = draw(st.sampled_from(["none", "causal", "add", "keep"]))
    mask_shape = (*(draw(st.sampled_from([1, n])) for n in lead), draw(st.sampled_from([1, queries])), keys)
    mask = rng.normal(size=mask_shape).astype(np.float32) if kind == "add" else rng.random(mask_shape) < 0.7
    options = {"is_causal": kind == "causal", "scale": draw(st.sampled_from([None, 0.5, -1.0]))}
    a, b = [torch.tensor(x, requires_grad=True) for x in arrays], [om.tensor(x, requires_grad=True) for x in arrays]
    masked = kind in ("add", "keep")
    theirs = torch.nn.functional.scaled_dot_product_attention(*a, torch.tensor(mask) if masked else None, **options)
    ours = om.scaled_dot_product_attention(*b, om.tensor(mask) if masked else None, **options)
    close(ours.detach().numpy(), theirs)
    g = rng.normal(size=theirs.shape).astype(np.float32)
    theirs.backward(torch.tensor(g))
    ours.backward(om.tensor(g))
    for x, y in zip(a, b, strict=True):
        close(y.grad.numpy(), x.grad, 5e-5, max(np.abs(v).max() for v in arrays))


@given(st.data())
def test_recurrent_networks(data):
    torch = pytest.importorskip("torch")
    draw = data.draw
    kind = draw(st.sampled_from(["LSTM", "GRU"]))
    steps, batch, inputs, hidden, layers = (draw(st.integers(1, n)) for n in (9, 4, 6, 7, 3))
    bidirectional, biases, batch_first, with_state, lone = (draw(st.booleans()) for _ in range(5))
    torch.manual_seed(draw(st.integers(0, 1000)))
    net = getattr(torch.nn, kind)(inputs, hidden, layers, bias=biases, bidirectional=bidirectional, batch_first=batch_first)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    directions = 2 if bidirectional else 1
    shape = (steps, inputs) if lone else (batch, steps, inputs) if batch_first else (steps, batch, inputs)
    state = (layers * directions, hidden) if lone else (layers * directions, batch, hidden)
    arrays = [rng.normal(size=s).astype(np.float32) for s in (shape, *[state] * (2 if kind == "LSTM" else 1))]
    a, b = [torch.tensor(x, requires_grad=True) for x in arrays], [om.tensor(x, requires_grad=True) for x in arrays]

    def call(function, x, states):
        states = None if not with_state else tuple(states) if kind == "LSTM" else states[0]
        y, end = function(x, states)
        return [y, *end] if kind == "LSTM" else [y, end]

    params = [om.tensor(p.detach().numpy(), requires_grad=True) for p in net.parameters()]
    run = om.lstm if kind == "LSTM" else om.gru
    theirs = call(net, a[0], a[1:])
    ours = call(lambda x, s: run(x, s, params, biases, layers, bidirectional=bidirectional, batch_first=batch_first), b[0], b[1:])
    weights = [rng.normal(size=t.shape).astype(np.float32) for t in theirs]
    for x, y in zip(theirs, ours, strict=True):
        close(y.detach().numpy(), x)
    sum((t * torch.tensor(w)).sum() for t, w in zip(theirs, weights, strict=True)).backward()
    total = (ours[0] * om.tensor(weights[0])).sum()
    for t, w in zip(ours[1:], weights[1:], strict=True):
        total = total + (t * om.tensor(w)).sum()
    total.backward()
    for x, y in [*zip(net.parameters(), params, strict=True), *zip(a[:3 if with_state else 1], b, strict=False)]:
        close(y.grad.numpy(), x.grad, 5e-5)
