"""Owns the tests of recording on and off, per thread and in generators, and of deep or many graphs. Must not test an operator's formula."""

import gc
import threading

import pytest
from engine_cases import leaf, one

import onemodel as om

# -- grad mode ------------------------------------------------------------------------------------------------------------------


def test_grad_mode_is_per_thread():
    seen = []
    with om.no_grad():
        thread = threading.Thread(target=lambda: seen.append(om.is_grad_enabled()))
        thread.start()
        thread.join(60)
        seen.append(om.is_grad_enabled())
    assert seen == [True, False] and om.is_grad_enabled()


def test_no_grad_nests_decorates_and_survives_exceptions():
    @om.no_grad()
    def quiet(x):
        with om.enable_grad():
            inner = om.is_grad_enabled()
        return om.is_grad_enabled(), inner, x * 2

    off, on, y = quiet(leaf([1.0]))
    assert (off, on) == (False, True) and y.is_leaf and quiet.__name__ == "quiet"
    with pytest.raises(KeyError), om.no_grad():
        raise KeyError
    assert om.is_grad_enabled()
    both = om.no_grad()
    with both, both:
        assert not om.is_grad_enabled()
    assert om.is_grad_enabled()


def test_X25_decorated_generator_is_quiet_only_while_it_runs():
    @om.no_grad()
    def steps():
        try:
            got = yield om.is_grad_enabled()
            yield got, om.is_grad_enabled()
        finally:
            closed.append(om.is_grad_enabled())

    closed = []
    g = steps()
    assert next(g) is False and om.is_grad_enabled()
    assert g.send("sent") == ("sent", False) and om.is_grad_enabled()
    with pytest.raises(KeyError):
        g.throw(KeyError)
    assert closed == [False] and om.is_grad_enabled()

    def plain():
        with om.no_grad():
            yield

    p = plain()
    next(p)
    assert not om.is_grad_enabled()  # as in PyTorch: the with block is still open
    p.close()
    assert om.is_grad_enabled()


def test_X26_no_grad_holds_for_parallel_work():
    om.set_num_threads(4)
    with om.no_grad():
        y = om.ones(1 << 20, requires_grad=True).exp()
    assert y.grad_fn is None and not y.requires_grad


def test_graphs_on_many_threads_at_once():
    def work(seed, out):
        x = leaf([float(seed)])
        for _ in range(50):
            (x * x * 3).backward()
        out[seed] = x.grad.item()

    out = {}
    threads = [threading.Thread(target=work, args=(i, out)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert out == {i: 300.0 * i for i in range(8)}


# -- depth and memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["backward", "drop", "drop_after_backward", "retain"])
def test_X23_a_chain_of_150000_operators(end):
    gc.disable()
    try:
        before = om.pool_stats()
        x = y = leaf([1.0])
        for _ in range(75000):
            y = y * 1.0 + 0.5
        if end != "drop":
            y.backward(retain_graph=end == "retain")
            assert x.grad.tolist() == [1.0]
        del x, y
        assert (om.pool_stats() - before).outstanding_blocks == 0
    finally:
        gc.enable()


def test_a_deep_chain_of_views_and_own_operators_is_freed_without_recursion():
    x = y = leaf([1.0])
    apply = one(lambda ctx, t: t, lambda ctx, g: g)
    for _ in range(20000):
        y = apply(y.reshape(1, 1).reshape(1))
    y.backward()
    assert x.grad.tolist() == [1.0]
    for _ in range(20000):
        y = apply(y.detach().requires_grad_() * 1.0)
        y = apply(y)
    del y


@pytest.mark.parametrize("case", ["plain", "error", "never_run", "retained", "grad"])
def test_nothing_is_left_without_the_garbage_collector(case):
    def step():
        x = leaf([1.0, 2.0])
        y = (x.exp() * x.tanh()).sum() + x.sigmoid().amax() + (x.reshape(2, 1) @ x.reshape(1, 2)).sum()
        if case == "plain":
            y.backward()
        elif case == "retained":
            y.backward(retain_graph=True)
            y.backward()
        elif case == "grad":
            om.grad(y, x)
        elif case == "error":
            bad = one(lambda ctx, t: t * 1, lambda ctx, g: 1 / 0)(y)
            try:
                bad.backward()
            except ZeroDivisionError as error:
                del error

    step()
    gc.disable()
    try:
        before = om.pool_stats()
        for _ in range(3):
            step()
        assert (om.pool_stats() - before).outstanding_blocks == 0
    finally:
        gc.enable()


def test_backward_takes_no_native_memory_after_warm_up():
    x = om.ones(50, 50, requires_grad=True)

    def step():
        with om.ActivationScope():
            (x @ x).tanh().sum().backward()
        om.zero_grad(x)

    for _ in range(3):
        step()
    before = om.pool_stats()
    for _ in range(5):
        step()
    change = om.pool_stats() - before
    assert (change.native_allocations, change.outstanding_bytes) == (0, 0)


def test_gradients_outlive_the_scope_of_the_step():
    x = om.ones(3, requires_grad=True)
    with om.ActivationScope():
        y = (x * 2).sum()
        (g,) = om.grad(y, x, retain_graph=True)
        y.backward()
    assert x.grad.tolist() == [2.0] * 3 and g.tolist() == [2.0] * 3
    with pytest.raises(om.ScopeClosedError):
        y.backward()


@pytest.mark.parametrize("run", range(3))
def test_X27_scatter_into_zeros_not_into_old_memory(run):
    x = om.zeros(4, 3, requires_grad=True)
    (x[1:3] * 2).sum().backward()
    (x[:, [0, 0, 2]] * 1).sum().backward()
    assert x.grad.tolist() == [[2, 0, 1], [4, 2, 3], [4, 2, 3], [2, 0, 1]]
