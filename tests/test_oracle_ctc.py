"""Owns the comparison of ctc_loss with PyTorch, for every option, on shapes that hypothesis makes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import onemodel as om

pytestmark = pytest.mark.oracle


@st.composite
def batches(draw):
    frames, items, classes, longest = (draw(st.integers(*r)) for r in ((1, 24), (1, 5), (2, 8), (1, 9)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    blank = draw(st.integers(0, classes - 1))
    labels = rng.integers(0, classes - 1, (items, longest))
    x = (rng.normal(size=(frames, items, classes)) * draw(st.sampled_from([0.1, 2.0, 15.0]))).astype(np.float32)
    return x, np.where(labels >= blank, labels + 1, labels), rng.integers(0, frames + 1, items), rng.integers(0, longest + 1, items), blank


@given(batches(), st.sampled_from(["none", "sum", "mean"]), st.booleans(), st.booleans(), st.booleans())
def test_losses_and_logit_gradients_agree(batch, reduction, zero_infinity, in_one_row, unbatched):
    """The raw gradients differ by e^log_probs, which log_softmax takes away; torch runs in double, so the difference is ours."""
    torch = pytest.importorskip("torch")
    x, labels, frames, lengths, blank = batch
    if unbatched:
        x, labels, frames, lengths = x[:, 0], labels[0], frames[:1], lengths[:1]
        labels = labels[:lengths[0]]
        if not len(labels):
            return
    elif in_one_row:
        labels = np.concatenate([row[:n] for row, n in zip(labels, lengths, strict=True)])
    a, b = torch.tensor(x.astype(np.float64), requires_grad=True), om.tensor(x, requires_grad=True)
    options = {"blank": blank, "reduction": reduction, "zero_infinity": zero_infinity}
    as_torch = [torch.tensor(v) for v in (labels, frames, lengths)]
    if unbatched:
        as_torch[1:] = [v[0] for v in as_torch[1:]]
    theirs = torch.nn.functional.ctc_loss(torch.log_softmax(a, -1), *as_torch, **options)
    ours = om.ctc_loss(om.log_softmax(b, -1), *(om.tensor(v.astype(np.int64)) for v in (labels, frames, lengths)), **options)
    assert ours.shape == tuple(theirs.shape)
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-5, atol=1e-5)
    if np.isfinite(theirs.detach().numpy()).all():
        theirs.sum().backward()
        ours.sum().backward()
        scale = max(1e-3, float(a.grad.abs().max()))
        assert np.abs(b.grad.numpy() - a.grad.numpy()).max() <= 2e-6 * scale


def test_the_raw_gradient_differs_from_torch_by_the_softmax_term():
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).normal(size=(9, 2, 5)).astype(np.float32)
    log_p = torch.log_softmax(torch.tensor(x.astype(np.float64)), -1).requires_grad_()
    torch.nn.functional.ctc_loss(log_p, torch.tensor([[1, 2], [3, 3]]), torch.tensor([9, 7]), torch.tensor([2, 2]), reduction="sum").backward()
    ours = om.tensor(log_p.detach().numpy().astype(np.float32), requires_grad=True)
    om.ctc_loss(ours, om.tensor([[1, 2], [3, 3]]).cast(om.int64), (9, 7), (2, 2), reduction="sum").backward()
    term = np.exp(log_p.detach().numpy())
    term[7:, 1] = 0.0
    np.testing.assert_allclose(log_p.grad.numpy() - ours.grad.numpy(), term, atol=1e-6)
