"""Owns the tests of recurrent layers and networks beyond the registry's: the known faults of other frameworks by their ids, order, memory, length."""

import numpy as np
import pytest

import onemodel as om
from onemodel import memory
from onemodel._kernels import table


def weights(gates, inputs, hidden, layers=1, directions=1, seed=0):
    """Torch's flat list, with biases."""
    rng = np.random.default_rng(seed)
    found = []
    for layer in range(layers):
        for _ in range(directions):
            for shape in ((gates * hidden, inputs if layer == 0 else directions * hidden), (gates * hidden, hidden), (gates * hidden,), (gates * hidden,)):
                found.append(om.tensor(rng.normal(size=shape).astype(np.float32) * 0.4, requires_grad=True))
    return found


def values(seed, *shape):
    return om.tensor(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def test_Q01_batch_first_turns_the_sequence_but_not_the_states():
    x, params = values(1, 5, 3, 4), weights(4, 4, 6, 2, 2)
    y, (h, c) = om.lstm(x, None, params, num_layers=2, bidirectional=True, batch_first=True)
    assert (y.shape, h.shape, c.shape) == ((5, 3, 12), (4, 5, 6), (4, 5, 6))
    other = om.lstm(x.transpose(0, 1), None, params, num_layers=2, bidirectional=True)
    assert np.array_equal(y.transpose(0, 1).detach().numpy(), other[0].detach().numpy())
    assert np.array_equal(h.detach().numpy(), other[1][0].detach().numpy()) and np.array_equal(c.detach().numpy(), other[1][1].detach().numpy())


def test_Q02_Q04_shapes_are_checked_whole():
    params, x = weights(4, 4, 6), values(2, 3, 7, 4)
    h = om.zeros(1, 7, 6)
    for states in ((om.zeros(1, 2, 6), h), (h, om.zeros(1, 7, 5)), (om.zeros(1, 7, 6, 1), h), (om.zeros(0), h), (om.zeros(2, 7, 6), h)):
        with pytest.raises(ValueError, match="lstm"):
            om.lstm(x, states, params)
    for bad in ([om.zeros(2, 5), *params[1:]], [params[0], om.zeros(24), *params[2:]], [*params[:3], om.zeros(23)], params[:3], [params[0], om.zeros(0, 0), *params[2:]]):
        with pytest.raises(ValueError, match="lstm"):
            om.lstm(x, None, bad)
    for states in (h, (h,), 3):
        with pytest.raises(TypeError, match="lstm"):
            om.lstm(x, states, params)
    with pytest.raises(ValueError, match="gru"):
        om.gru(values(2, 0, 5), None, weights(3, 4, 6))


@pytest.mark.parametrize("run,gates", [(om.lstm, 4), (om.gru, 3)])
def test_Q03_no_step_is_refused(run, gates):
    with pytest.raises(ValueError, match="at least one step"):
        run(om.zeros(0, 3, 4), None, weights(gates, 4, 6))


def test_Q05_layers_are_counted():
    params, x = weights(4, 4, 6), values(3, 3, 2, 4)
    for count, error in ((0, ValueError), (-1, ValueError), (2**62, ValueError), (10**5000, ValueError), (2, ValueError), (1.0, TypeError), (True, TypeError), (None, TypeError)):
        with pytest.raises(error, match="lstm"):
            om.lstm(x, None, params, num_layers=count)
    for p, error in ((-0.1, ValueError), (1.5, ValueError), (10**5000, ValueError), (float("nan"), ValueError), ("a", TypeError), (True, TypeError)):
        with pytest.raises(error, match="dropout"):
            om.lstm(x, None, params, dropout=p)
    for name in ("has_biases", "train", "bidirectional", "batch_first"):
        with pytest.raises(TypeError, match=f"lstm: {name} must be True or False"):
            om.lstm(x, None, params, **{name: "no"})
    for layer, gates in ((om.lstm_layer, 4), (om.gru_layer, 3)):
        with pytest.raises(TypeError, match="reverse must be True or False"):
            layer(x, om.zeros(gates * 6, 4), om.zeros(gates * 6, 6), reverse="no")


@pytest.mark.parametrize("run,gates", [(om.lstm, 4), (om.gru, 3)])
def test_Q07_Q08_each_direction_has_its_state_and_its_place(run, gates):
    params, x = weights(gates, 4, 5, 2, 2), values(4, 1, 3, 4)
    h = values(5, 4, 3, 5)
    states = (h, values(6, 4, 3, 5)) if gates == 4 else h
    y, end = run(x, states, params, num_layers=2, bidirectional=True)
    h_n = (end[0] if gates == 4 else end).detach().numpy()
    layer = (lambda x, i, reverse: om.lstm_layer(x, *params[4 * i:4 * i + 4], states[0][i], states[1][i], reverse)) if gates == 4 else (
        lambda x, i, reverse: om.gru_layer(x, *params[4 * i:4 * i + 4], h[i], reverse))
    first = [layer(x, 0, False), layer(x, 1, True)]
    second = om.cat(first, 2)
    whole = [*first, layer(second, 2, False), layer(second, 3, True)]
    for i, part in enumerate(whole):
        assert np.array_equal(h_n[i], part[0].detach().numpy())
    assert np.array_equal(y.detach().numpy(), om.cat(whole[2:], 2).detach().numpy())


def test_Q10_a_long_sequence_needs_no_stack():
    params, x = weights(4, 3, 4), values(7, 5000, 1, 3).requires_grad_()
    y, (_, c) = om.lstm(x, None, params)
    (y.sum() + c.sum()).backward()
    assert np.isfinite(x.grad.numpy()).all() and x.grad.numpy()[0].any()


@pytest.mark.parametrize("gates", [4, 3])
def test_one_row_has_the_bits_it_has_in_a_batch(gates):
    """The recurrent product, its panels and the threads run over rows."""
    params, x = weights(gates, 9, 37), values(8, 6, 11, 9)
    layer = om.lstm_layer if gates == 4 else om.gru_layer
    with om.arithmetic("exact"):
        seen = set()
        for isa in table.available_isas():
            for threads in (1, 2, 8):
                table.select_isa(isa)
                om.set_num_threads(threads)
                table.set_smallest_piece(1)
                whole = layer(x, *params).detach().numpy()
                seen.add(whole.tobytes())
        assert len(seen) == 1
        for b in (0, 4, 10):
            assert np.array_equal(layer(x[:, b:b + 1], *params).detach().numpy()[:, 0], whole[:, b])
        by_step = om.zeros(11, 37)
        if gates == 3:
            for t in range(6):
                by_step = om.gru_layer(x[t:t + 1], *params, by_step)[0]
            assert np.array_equal(by_step.detach().numpy(), whole[5])


def test_gradients_reach_the_states_through_every_output():
    params, x = weights(4, 4, 5, 1, 2), values(9, 3, 2, 4)
    h, c = values(10, 2, 2, 5).requires_grad_(), values(11, 2, 2, 5).requires_grad_()
    _, (h_n, c_n) = om.lstm(x, (h, c), params, bidirectional=True)
    c_n.sum().backward()
    assert h.grad.numpy().any() and c.grad.numpy().any()
    kept = h_n.detach()
    assert np.array_equal(kept.numpy(), h_n.detach().numpy())


def test_a_warm_step_takes_no_memory():
    params, x = weights(4, 4, 8, 2, 2), values(12, 20, 3, 4)

    def step():
        with om.ActivationScope():
            y, (h, c) = om.lstm(x, None, params, num_layers=2, bidirectional=True)
            (y.sum() + h.sum() + c.sum()).backward()

    step(), step()
    before = memory.pool_stats()
    step()
    change = memory.pool_stats() - before
    assert (change.native_allocations, change.outstanding_bytes) == (0, 0)


@pytest.mark.parametrize("mode", ["fast", "exact"])
@pytest.mark.parametrize("run,gates,batch,hidden", [(om.lstm, 4, 1, 150), (om.lstm, 4, 3, 70), (om.gru, 3, 1, 150), (om.gru, 3, 17, 64), (om.lstm, 4, 2, 256)])
def test_threads_over_rows_and_units_give_the_same_bits(run, gates, batch, hidden, mode):
    """Hidden units that do not fill the last panel, gradients' rows that would be a page apart, initial states and both directions."""
    table.set_smallest_piece(1)
    params, x = weights(gates, 9, hidden, 1, 2), values(7, 6, batch, 9).requires_grad_()
    states = tuple(values(8 + i, 2, batch, hidden).requires_grad_() for i in range(gates - 2))
    wanted, found = [x, *states, *params], {}
    for isa in table.available_isas():
        for count in (1, 2, 3, 8):
            table.select_isa(isa)
            table.set_num_threads(count)
            with om.arithmetic(mode):
                y, end = run(x, states if gates == 4 else states[0], params, bidirectional=True)
                total = (y * y).sum() + sum((e * e).sum() for e in (end if gates == 4 else (end,)))
                total.backward()
            bits = [y.detach().numpy().tobytes(), *(t.grad.numpy().tobytes() for t in wanted)]
            for t in wanted:
                t.grad = None
            key = "all" if mode == "exact" else isa
            assert found.setdefault(key, bits) == bits, (isa, count)
