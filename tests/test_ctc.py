"""Owns the tests of ctc_loss beyond the registry's: the known faults of other frameworks by their ids, lengths, layouts, threads."""

import math

import numpy as np
import pytest

import onemodel as om
from onemodel import memory
from onemodel._kernels import table


def uniform(frames, classes, items=1):
    return om.full((frames, items, classes), -math.log(classes)).requires_grad_()


def loss_and_gradient(x, *args, **kwargs):
    y = om.ctc_loss(x, *args, **kwargs)
    x.grad = None
    (y if y.ndim == 0 else y.sum()).backward()
    return y.numpy() if not y.requires_grad else y.detach().numpy(), x.grad.numpy().copy()


def test_C03_lengths_and_labels_are_checked_before_anything_is_written():
    x = uniform(6, 4, 2)
    good = om.tensor([[1, 3], [1, 2]], dtype=om.int64)
    before = memory.pool_stats().outstanding_bytes
    for targets, inputs, lengths, error in [
            (om.tensor([[-1, 9], [1, 2]], dtype=om.int64), [6, 6], [2, 2], IndexError), (good, [-3, 2], [2, 2], ValueError),
            (good, [7, 2], [2, 2], ValueError), (good, [6, 2**62], [2, 2], ValueError), (good, [6, 2**70], [2, 2], ValueError),
            (good, [6, 6], [2, -1], ValueError), (good, [6, 6], [2, 3], ValueError), (om.tensor([[1, 0], [1, 2]]).cast(om.int64), [6, 6], [2, 2], ValueError),
            (good, [6, 6.0], [2, 2], TypeError), (good, None, [2, 2], TypeError), (good, [True, 6], [2, 2], TypeError), (good, "66", [2, 2], TypeError),
            (good, [6, 10**5000], [2, 2], ValueError), (good, np.array([6, 6]), [2, 2], TypeError), (good.numpy(), [6, 6], [2, 2], TypeError)]:
        with pytest.raises(error, match="ctc_loss"):
            om.ctc_loss(x, targets, inputs, lengths)
    assert memory.pool_stats().outstanding_bytes == before


def test_C03_a_label_past_its_length_is_not_looked_at():
    x = uniform(6, 4, 2)
    y = om.ctc_loss(x, om.tensor([[1, 99], [1, 2]], dtype=om.int64), [6, 6], [1, 2], reduction="none")
    assert np.isfinite(y.detach().numpy()).all()


@pytest.mark.parametrize("zero", [False, True])
def test_C05_no_frames(zero):
    x = uniform(1, 3)
    for length, value in ((0, 0.0), (1, 0.0 if zero else math.inf)):
        loss, g = loss_and_gradient(x, om.tensor([[1]], dtype=om.int64), [0], [length], reduction="none", zero_infinity=zero)
        assert loss.tolist() == [value] and not g.any()


def test_C09_the_gradient_is_the_true_derivative():
    half = om.full((2, 1, 2), math.log(0.5)).requires_grad_()
    loss, g = loss_and_gradient(half, om.tensor([[1]], dtype=om.int64), [2], [1], reduction="none")
    assert loss == pytest.approx(0.2876821, rel=1e-6)
    np.testing.assert_allclose(g[:, 0], [[-1 / 3, -2 / 3]] * 2, rtol=1e-6)
    logits = om.zeros(2, 1, 2).requires_grad_()
    om.ctc_loss(om.log_softmax(logits, -1), om.tensor([[1]], dtype=om.int64), [2], [1], reduction="sum").backward()
    np.testing.assert_allclose(logits.grad.numpy()[:, 0], [[1 / 6, -1 / 6]] * 2, rtol=1e-6)


def test_C11_a_repeated_label_needs_a_blank_between():
    target = om.tensor([[1, 1]], dtype=om.int64)
    assert loss_and_gradient(uniform(3, 3), target, [3], [2], reduction="none")[0] == pytest.approx(3.2958369, rel=1e-6)
    loss, g = loss_and_gradient(uniform(2, 3), target, [2], [2], reduction="none")
    assert loss == math.inf and not g.any()


def test_C12_no_cap_on_labels():
    rng = np.random.default_rng(0)
    x = om.log_softmax(om.tensor(rng.normal(size=(1500, 1, 800)).astype(np.float32)), -1).detach().requires_grad_()
    loss, g = loss_and_gradient(x, om.tensor(np.arange(1, 701)[None]), [1500], [700], reduction="none")
    assert np.isfinite(loss).all() and np.isfinite(g).all()
    np.testing.assert_allclose(g.sum(-1), -1.0, rtol=1e-5)  # each frame's posteriors add up to one


def test_C15_the_same_bits_each_time_and_at_every_thread_count():
    rng = np.random.default_rng(1)
    x = om.tensor(rng.normal(size=(40, 7, 9)).astype(np.float32), requires_grad=True)
    seen = set()
    for isa in table.available_isas():
        for mode in ("fast", "exact"):
            for threads in (1, 2, 3, 8):
                table.select_isa(isa)
                om.set_num_threads(threads)
                with om.arithmetic(mode):
                    loss, g = loss_and_gradient(x, om.tensor(rng_targets()), [40, 39, 30, 20, 40, 1, 35], [5, 4, 3, 2, 5, 0, 1], reduction="none")
                assert np.isfinite(loss).all() and np.isfinite(g).all()
                seen.add((loss.tobytes(), g.tobytes()))
    assert len(seen) == 1  # the spec: the same in fast and in exact mode


def rng_targets():
    return np.random.default_rng(2).integers(1, 9, (7, 5))


def test_C17_the_loss_is_never_below_zero():
    logits = om.tensor([[[0.0, 18.0]], [[0.0, 18.0]]], requires_grad=True)
    loss = om.ctc_loss(om.log_softmax(logits, -1), om.tensor([[1]], dtype=om.int64), [2], [1], reduction="sum")
    assert 0.0 <= loss.item() < 1e-6
    loss.backward()
    assert np.isfinite(logits.grad.numpy()).all()


def test_C18_nothing_at_all():
    for shape in ((0, 0, 5), (3, 0, 5), (0, 2, 5), (3, 2, 0)):
        with pytest.raises(ValueError, match="no size 0"):
            om.ctc_loss(om.zeros(shape), om.zeros(shape[1], 1, dtype=om.int64), [shape[0]] * shape[1], [0] * shape[1])


def test_impossible_frames_and_nan_stay_where_they_are():
    rng = np.random.default_rng(3)
    x = np.log(rng.dirichlet(np.ones(4), (6, 3))).astype(np.float32)
    x[2, 0, :] = -np.inf        # no path passes this frame
    x[3, 1, 2] = -np.inf        # others do
    x[1, 2, 0] = np.nan
    t = om.tensor(x, requires_grad=True)
    loss, g = loss_and_gradient(t, om.tensor([[1, 2], [1, 2], [1, 2]], dtype=om.int64), [6, 6, 6], [2, 2, 2], reduction="none")
    assert loss[0] == math.inf and not g[:, 0].any()
    assert np.isfinite(loss[1]) and np.isfinite(g[:, 1]).all() and g[3, 1, 2] == 0
    assert np.isnan(loss[2]) and loss[2:].view(np.uint32)[0] == 0x7FC00000


def test_targets_in_one_row_and_lengths_as_tensors_are_the_same():
    rng = np.random.default_rng(4)
    x = om.tensor(rng.normal(size=(12, 3, 5)).astype(np.float32), requires_grad=True)
    padded, row = om.tensor([[1, 2, 2], [3, 0, 0], [4, 4, 0]]), om.tensor([1, 2, 2, 3, 4, 4])
    results = [loss_and_gradient(x, t, inputs, lengths) for t in (padded.cast(om.int64), padded.cast(om.int32), row.cast(om.int64), row.cast(om.uint8))
               for inputs, lengths in (((12, 11, 10), (3, 1, 2)), (om.tensor([12, 11, 10]).cast(om.int32), om.tensor([3, 1, 2]).cast(om.int64)))]
    assert len({(a.tobytes(), b.tobytes()) for a, b in results}) == 1


def test_a_warm_step_takes_no_memory():
    rng = np.random.default_rng(5)
    x = om.tensor(rng.normal(size=(50, 4, 6)).astype(np.float32), requires_grad=True)
    t, inputs, lengths = om.tensor(rng.integers(1, 6, (4, 9))), om.tensor([50, 40, 50, 20]), om.tensor([9, 3, 0, 5])

    def step():
        with om.ActivationScope():
            om.ctc_loss(om.log_softmax(x, -1), t.cast(om.int64), inputs.cast(om.int64), lengths.cast(om.int64)).backward()

    step(), step()
    before = memory.pool_stats()
    for _ in range(3):
        step()
    change = memory.pool_stats() - before
    assert (change.native_allocations, change.outstanding_bytes) == (0, 0)
