"""Owns the tests of dropout: which elements, that backward takes the same, states of the generator, edges, the layer."""

import math

import numpy as np
import pytest

import onemodel as om
from onemodel import nn
from onemodel._kernels import random as philox
from onemodel._kernels import table

F = np.float32


def words(seed, place, n):
    out = np.empty(n, np.uint32)
    philox.words(seed, place, out)
    return out


@pytest.mark.parametrize("p", [0.5, 0.1, 0.9, 1e-3, 2.0**-32, 1 - 2.0**-33])
@pytest.mark.parametrize("before", [0, 1, 2, 3, 126, 1001])
def test_the_word_of_the_element_decides(p, before):
    generator = om.Generator(5)
    generator.take(before)
    x = om.tensor(np.random.default_rng(0).normal(size=1003).astype(F))
    y = om.dropout(x, p, generator=generator).numpy()
    kept = words(5, before, 1003) >= p * 2.0**32
    assert np.array_equal(y, np.where(kept, x.numpy() * F(1 / (1 - p)), F(0)))
    assert generator.take(0) == (5, before + 1003)


def test_the_share_that_is_dropped():
    om.manual_seed(1)
    n = 200_000
    for p in (0.1, 0.5, 0.8):
        y = om.dropout(om.ones(n), p).numpy()
        assert abs((y == 0).mean() - p) < 4 * math.sqrt(p * (1 - p) / n) and abs(y.mean() - 1) < 0.02


def test_bits_depend_on_no_path_mode_or_thread_count():
    x = om.tensor(np.random.default_rng(0).normal(size=(77, 61)).astype(F))
    table.set_smallest_piece(16)
    digests = set()
    for isa in table.available_isas():
        for mode in ("fast", "exact"):
            for threads in (1, 2, 3, 8):
                with om.use_isa(isa), om.arithmetic(mode):
                    om.set_num_threads(threads)
                    leaf = x.clone().requires_grad_()
                    y = om.dropout(leaf, 0.3, generator=om.Generator(11))
                    y.backward(x)
                    digests.add((y.sha256(), leaf.grad.sha256()))
    assert len(digests) == 1


def test_backward_takes_the_same_elements_each_time():
    generator = om.Generator(3)
    x = om.ones(301).requires_grad_()
    y = om.dropout(x, 0.4, generator=generator)
    om.dropout(x, 0.4, generator=generator)  # the generator goes on; the record does not
    (first,) = om.grad(y, x, om.ones(301), retain_graph=True)
    (second,) = om.grad(y, x, om.ones(301))
    assert first.tolist() == second.tolist() == y.tolist()
    with pytest.raises(om.GraphReleasedError):
        y.backward(om.ones(301))


def test_no_mask_is_kept():
    x = om.ones(100_000).requires_grad_()
    before = om.pool_stats()
    y = om.dropout(x, 0.5)
    assert (om.pool_stats() - before).outstanding_blocks == 1 and y.requires_grad


def test_a_state_is_saved_and_resumed():
    om.manual_seed(4)
    om.dropout(om.ones(37))
    state = om.default_generator.get_state()
    first = om.dropout(om.ones(64)).sha256()
    om.default_generator.set_state(state)
    assert om.dropout(om.ones(64)).sha256() == first != om.dropout(om.ones(64)).sha256()


def test_p_of_0_and_evaluation_hand_the_input_through():
    x = om.ones(5).requires_grad_()
    place = om.default_generator.take(0)
    assert om.dropout(x, 0) is x and om.dropout(x, 0.5, False) is x and om.dropout(x, training=False) is x
    assert om.default_generator.take(0) == place


def test_what_is_dropped_is_0_whatever_it_was():
    x = om.tensor(np.array([math.inf, -math.inf, math.nan, -1.0] * 9, F)).requires_grad_()
    for p in (1, 1.0, np.float64(1.0)):
        y = om.dropout(x, p)
        assert (y.detach().numpy().view(np.uint32) == 0).all()
    y.backward(om.full((36,), math.inf))
    assert (x.grad.numpy().view(np.uint32) == 0).all()
    kept = om.dropout(x, 0.5, generator=om.Generator(2)).detach().numpy()
    mask = words(2, 0, 36) >= 2**31
    assert np.array_equal(np.isnan(kept), np.isnan(x.detach().numpy()) & mask) and (kept[~mask].view(np.uint32) == 0).all()
    assert (kept.view(np.uint32)[np.isnan(kept)] == 0x7FC00000).all()


@pytest.mark.parametrize("p,error", [(-1e-9, ValueError), (1.0000001, ValueError), (2**62, ValueError), (-2**63, ValueError), (10**400, ValueError),
                                     (math.nan, ValueError), (math.inf, ValueError), (True, TypeError), (None, TypeError), ("0.5", TypeError)],
                         ids=["below", "above", "2**62", "-2**63", "huge", "nan", "inf", "bool", "none", "string"])
def test_bad_p(p, error):
    place = om.default_generator.take(0)
    with pytest.raises(error, match="dropout: p must be"):
        om.dropout(om.ones(3), p)
    with pytest.raises(error, match="Dropout: p must be"):
        nn.Dropout(p)
    assert om.default_generator.take(0) == place  # nothing is drawn for a call that fails


def test_W02_the_layer_draws_in_training_only():
    om.manual_seed(0)
    layer = nn.Dropout(0.25)
    x = om.ones(40)
    om.manual_seed(0)
    y = layer(x)
    om.manual_seed(0)
    assert y.tolist() == om.dropout(x, 0.25).tolist() and set(y.tolist()) == {0.0, float(F(1 / 0.75))}
    assert layer.eval()(x) is x and layer.train()(x) is not x
    assert repr(layer) == "Dropout(p=0.25)" and nn.Dropout().p == 0.5 and not list(layer.parameters())
    with pytest.raises(ValueError, match="inplace"):
        nn.Dropout(inplace=True)


def test_the_method_is_the_function():
    assert om.ones(9).dropout(0.5, generator=om.Generator(1)).tolist() == om.dropout(om.ones(9), generator=om.Generator(1)).tolist()
