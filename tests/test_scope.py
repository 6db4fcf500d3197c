"""Owns the tests of ActivationScope with real tensors: what is tied, what closing takes away, keep, nesting, threads, generators, views."""

import gc
import pickle
import random
import subprocess
import sys
import textwrap
import threading
import weakref

import numpy as np
import pytest

import onemodel as om
from onemodel._pool import pool


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """No scope stays open, no block stays out, and all of it by reference count alone."""
    gc.collect()
    gc.disable()
    before = om.pool_stats()
    yield
    after = om.pool_stats()
    gc.enable()
    pool.pool_check()
    assert (after - before).outstanding_blocks == 0
    probe = om.ones(2) + 1
    with om.ActivationScope() as scope:
        pass
    assert not scope.is_open and float(probe.sum()) == 4


def x():
    return om.tensor([[1.0, -2.0], [3.0, 4.0]])


# -- what a scope holds ---------------------------------------------------------------------------------------------------------


def test_results_are_tied_and_factories_are_not():
    a = x()
    with om.ActivationScope() as scope:
        assert (scope.tensors, scope.bytes) == (0, 0)
        made = [om.ones(3, 3), om.zeros(2), om.tensor([1.0]), om.from_numpy(np.ones(4, np.float32)), om.full((2,), 5.0)]
        assert scope.tensors == 0
        b = a + a
        assert (scope.tensors, scope.bytes) == (1, 16)
        view = b.transpose(0, 1)
        assert scope.tensors == 1, "a view shares its storage"
        copy = view.contiguous()
        assert (scope.tensors, scope.bytes) == (2, 32)
        assert "open" in repr(scope) and "2 tensors" in repr(scope)
    assert (scope.tensors, scope.bytes, scope.peak_bytes) == (0, 0, 32)
    assert "closed" in repr(scope)
    for t in made:
        t.numpy()
    for t in (b, view, copy):
        with pytest.raises(om.ScopeClosedError):
            t.numpy()


def test_tensors_released_early_leave_the_scope_by_themselves():
    a = x()
    with om.ActivationScope() as scope:
        results = [a + float(i) for i in range(5)]
        for expected, index in ((4, 2), (3, 0), (2, -1)):  # from the middle, the front and the end of the scope's list
            results.pop(index)
            assert scope.tensors == expected
        before = om.pool_stats()
        for _ in range(100):
            a * 2.0
        assert scope.tensors == 2
        assert (om.pool_stats() - before).outstanding_bytes == 0


def test_closing_returns_the_blocks_of_living_tensors():
    a, held = x(), []
    before = om.pool_stats()
    with om.ActivationScope():
        held += [a * float(i) for i in range(50)]
        assert (om.pool_stats() - before).outstanding_blocks == 50
    assert (om.pool_stats() - before).outstanding_blocks == 0
    assert len(held) == 50


def test_a_scope_keeps_no_tensor_alive():
    a = x()
    with om.ActivationScope() as scope:
        b, c = a + a, om.ones(2, 2)
        tied, free = sys.getrefcount(b._storage), sys.getrefcount(c._storage)
        assert scope.tensors == 1
        assert tied == free


def test_many_tensors_close_without_recursion():
    a = om.ones(1)
    with om.ActivationScope() as scope:
        held = [a + a for _ in range(50_000)]
        assert scope.tensors == 50_000
    with pytest.raises(om.ScopeClosedError):
        held[0].item()


# -- using a tensor whose scope has closed --------------------------------------------------------------------------------------

USES = {
    "operator": lambda t: t + 1, "second operand": lambda t: om.ones(2, 2) * t, "matmul": lambda t: om.ones(2, 2) @ t,
    "sum": lambda t: t.sum(), "clone": lambda t: t.clone(), "source of copy": lambda t: om.ones(2, 2).copy_(t),
    "numpy": lambda t: t.numpy(), "array": lambda t: np.asarray(t), "tolist": lambda t: t.tolist(), "item": lambda t: t[0, 0].item(),
    "float": lambda t: float(t[0, 0]), "view then read": lambda t: t.T.numpy(), "detach then read": lambda t: t.detach().numpy(),
    "in place": lambda t: t.add_(1.0), "fill": lambda t: t.zero_(), "assignment": lambda t: t.__setitem__(0, 1.0),
    "sha256": lambda t: t.sha256(), "pickle": lambda t: pickle.dumps(t),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_use_after_the_scope_raises(use):
    a = x()
    with om.ActivationScope():
        use(a + a)  # each of them works while the scope is open
        b = a + a
    with pytest.raises(om.ScopeClosedError, match="ActivationScope has closed.*scope.keep"):
        use(b)


def test_a_closed_tensor_still_says_what_it_was():
    with om.ActivationScope():
        b = x() + 1
    assert b.shape == (2, 2) and b.dtype == np.float32 and "ActivationScope" in repr(b)


def test_backward_on_records_of_a_closed_scope_raises_before_any_work():
    w = x().requires_grad_()
    loss_of_two = om.tensor(2.0)
    with om.ActivationScope() as scope:
        hidden = om.tanh(w * w)
        loss = scope.keep((hidden * hidden).sum())
    assert float(loss) > 0
    with pytest.raises(om.ScopeClosedError):
        (loss * loss_of_two).backward()
    assert w.grad is None


# -- gradients ------------------------------------------------------------------------------------------------------------------


def test_leaf_gradients_outlive_the_scope_and_the_engine_ties_nothing():
    w, a = x().requires_grad_(), x()
    for expected in (1, 2):
        with om.ActivationScope() as scope:
            loss = (w * a).sum()
            tied = scope.tensors
            loss.backward()
            assert scope.tensors <= tied
        np.testing.assert_array_equal(w.grad.numpy(), expected * a.numpy())
    om.clear_grad(w)


def test_operators_that_run_in_backward_are_not_tied():
    seen = []

    class Twice(om.Op):
        @staticmethod
        def forward(ctx, t):
            return t * 2.0

        @staticmethod
        def backward(ctx, g):
            before = scope.tensors
            gradient = g * 2.0
            with om.ActivationScope() as inside:
                inside_only = gradient + 1
                seen.append((scope.tensors - before, inside.tensors))
            with pytest.raises(om.ScopeClosedError):
                inside_only.numpy()
            return gradient

    w = x().requires_grad_()
    with om.ActivationScope() as scope:
        Twice.apply(w).sum().backward()
        b = x() + 1  # after backward, results are tied again
    assert seen == [(0, 1)], "an outer scope must not see them, a scope opened in backward must"
    np.testing.assert_array_equal(w.grad.numpy(), np.full((2, 2), 2.0))
    with pytest.raises(om.ScopeClosedError):
        b.numpy()


def test_results_of_grad_are_not_tied():
    w = x().requires_grad_()
    with om.ActivationScope():
        (g,) = om.grad((w * w).sum(), [w])
    np.testing.assert_array_equal(g.numpy(), 2 * w.detach().numpy())


# -- keep -----------------------------------------------------------------------------------------------------------------------


def test_keep_moves_a_tensor_to_the_enclosing_scope_or_to_none():
    a = x()
    with om.ActivationScope() as outer:
        with om.ActivationScope() as inner:
            b = a + a
            assert inner.keep(b) is b
            assert (inner.tensors, inner.bytes, outer.tensors, outer.bytes) == (0, 0, 1, 16)
            c = outer.keep(inner.keep(a * 3.0))
            assert (inner.tensors, outer.tensors) == (0, 1)
        np.testing.assert_array_equal(b.numpy(), 2 * a.numpy())
    with pytest.raises(om.ScopeClosedError):
        b.numpy()
    np.testing.assert_array_equal(c.numpy(), 3 * a.numpy())


def test_an_outer_scope_keeps_a_tensor_of_an_inner_one():
    with om.ActivationScope() as outer:
        with om.ActivationScope():
            b = outer.keep(x() + 1)
        b.numpy()
    assert float(b.sum()) == 10


def test_keep_of_what_outlives_the_scope_anyway_changes_nothing():
    made = x()
    with om.ActivationScope() as outer:
        b = made + 1
        with om.ActivationScope() as middle, om.ActivationScope() as inner:
            assert inner.keep(made) is made and inner.keep(b) is b
            assert (inner.tensors, middle.tensors, outer.tensors) == (0, 0, 1)
    with pytest.raises(om.ScopeClosedError):
        b.numpy()


def test_keeping_a_view_keeps_its_storage():
    with om.ActivationScope() as scope:
        row = scope.keep((x() * 2.0)[1])
    assert row.tolist() == [6.0, 8.0]


def test_wrong_keeps_are_said():
    with om.ActivationScope():
        dead = x() + 1
    with om.ActivationScope() as scope:
        with pytest.raises(om.ScopeClosedError, match="ActivationScope.keep"):
            scope.keep(dead)
        for wrong in (3, None, [dead], "t", object()):
            with pytest.raises(TypeError, match="ActivationScope.keep: expected a Tensor"):
                scope.keep(wrong)
        impostor = type("Impostor", (), {"_storage": 3})()
        with pytest.raises(TypeError, match="expected a Tensor, got Impostor"):
            scope.keep(impostor)
    with pytest.raises(RuntimeError, match="expected an open scope"):
        scope.keep(x())


# -- opening and closing --------------------------------------------------------------------------------------------------------


def test_an_exception_closes_the_scope_and_goes_on():
    with pytest.raises(ZeroDivisionError):
        with om.ActivationScope() as scope:
            b = x() + 1
            raise ZeroDivisionError
    assert not scope.is_open
    with pytest.raises(om.ScopeClosedError):
        b.numpy()


def test_a_scope_opens_once_at_a_time_and_may_open_again():
    scope = om.ActivationScope()
    for _ in range(3):
        with scope:
            with pytest.raises(RuntimeError, match="expected a closed scope.*second ActivationScope"):
                scope.__enter__()
            b = x() + 1
            assert scope.tensors == 1 and b.numpy() is not None
        scope.close()
        scope.close()
    with scope:
        scope.close()
        c = x() + 1  # after an early close nothing is tied
    assert float(c.sum()) == 10
    with pytest.raises(TypeError):
        pickle.dumps(scope)


def activations(log, name):
    with om.ActivationScope() as scope:
        b = x() * 2.0
        log.append((name, scope))
        yield b
        c = b + 1
        yield c


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (1, 0, 2)])
def test_generators_close_their_scopes_in_any_order(order):
    log = []
    generators = [activations(log, i) for i in range(3)]
    first = [next(g) for g in generators]
    scopes = [scope for _, scope in log]
    assert [s.tensors for s in scopes] == [1, 1, 1]
    for closed, i in enumerate(order):
        generators[i].close()
        for j, t in enumerate(first):
            if j in order[: closed + 1]:
                with pytest.raises(om.ScopeClosedError):
                    t.numpy()
            else:
                assert float(t.sum()) == 12
    log.clear()


def test_a_result_belongs_to_the_scope_that_is_innermost_when_it_is_made():
    log = []
    g = activations(log, 0)
    with om.ActivationScope() as outer:
        next(g)
        inner = log[0][1]
        b = x() + 1  # the generator's scope is still open, and innermost
        assert (inner.tensors, outer.tensors) == (2, 0)
        g.close()
        c = x() + 1
        assert outer.tensors == 1 and c.numpy() is not None
    with pytest.raises(om.ScopeClosedError):
        b.numpy()
    log.clear()


def test_a_scope_dropped_while_open_takes_nothing_from_living_tensors():
    scope = om.ActivationScope()
    scope.__enter__()
    b = x() + 1
    assert scope.tensors == 1
    del scope
    scopes = [om.ActivationScope() for _ in range(100)]  # one of them gets the memory of the dropped one
    c = x() + 2
    assert float(b.sum()) == 10 and float(c.sum()) == 14
    del b
    assert [s.tensors for s in scopes] == [0] * 100


# -- threads, fork --------------------------------------------------------------------------------------------------------------


def in_thread(work):
    result, failure = [], []

    def body():
        try:
            result.append(work())
        except BaseException as error:  # handed to the caller's thread
            failure.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


def test_scopes_are_of_their_thread():
    with om.ActivationScope() as scope:
        b = in_thread(lambda: x() + 1)
        assert scope.tensors == 0
    assert float(b.sum()) == 10


def test_a_scope_may_be_closed_by_another_thread():
    with om.ActivationScope() as outer:
        scope = om.ActivationScope()
        scope.__enter__()
        b = x() + 1
        in_thread(scope.close)
        with pytest.raises(om.ScopeClosedError):
            b.numpy()
        c = x() + 1
        assert outer.tensors == 1 and c.numpy() is not None


def test_a_thread_that_ends_with_an_open_scope_harms_nobody():
    def leave_open():
        scope = om.ActivationScope()
        scope.__enter__()
        return scope, x() + 1

    scope, b = in_thread(leave_open)
    with om.ActivationScope() as mine:
        c = x() + 1
        assert (scope.tensors, mine.tensors) == (1, 1) and c.numpy() is not None
    assert float(b.sum()) == 10
    scope.close()
    with pytest.raises(om.ScopeClosedError):
        b.numpy()
    _, d = in_thread(leave_open)
    del _
    assert float(d.sum()) == 10


def test_many_threads_with_scopes_at_once():
    wrong = []

    def work(me):
        rng = random.Random(me)
        for _ in range(60):
            n = rng.randint(1, 5000)
            with om.ActivationScope() as outer:
                a = om.full((n,), float(me)) + 1
                with om.ActivationScope() as inner:
                    b = inner.keep(a * 2.0)
                    a + b
                if not (outer.tensors == 2 and bool((b.numpy() == 2.0 * (me + 1)).all())):
                    wrong.append(me)

    threads = [threading.Thread(target=work, args=(me,)) for me in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_fork_inside_a_scope():
    done = subprocess.run([sys.executable, "-c", textwrap.dedent("""
        import os
        import onemodel as om
        from onemodel._pool import pool
        a = om.ones(100, 100)
        with om.ActivationScope() as scope:
            b = a + a
            pid = os.fork()
            c = b * b
            assert float(c.sum()) == 40000 and scope.tensors == 2
        pool.pool_check()
        if pid == 0:
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        print("alive")
    """)], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "alive", done.stderr


def test_exit_with_a_scope_open():
    done = subprocess.run([sys.executable, "-c", textwrap.dedent("""
        import threading, time
        import onemodel as om
        scope = om.ActivationScope()
        scope.__enter__()
        kept = [om.ones(1000) + 1, (om.ones(1000) * 2).numpy()]
        def work():
            other = om.ActivationScope()
            other.__enter__()
            while True: om.ones(10) + 1
        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.05)
        print("done")
    """)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr


# -- exported views -------------------------------------------------------------------------------------------------------------


def test_a_numpy_view_outlives_the_scope_and_its_block_goes_to_nobody_else():
    before = om.pool_stats()
    with om.ActivationScope():
        b = om.full((64, 64), 3.0) + 1
        view = b.numpy()[::2]
    with pytest.raises(om.ScopeClosedError):
        b.numpy()
    assert (om.pool_stats() - before).outstanding_blocks == 1, "the view holds the block"
    others = [om.full((64, 64), -1.0) for _ in range(50)]
    assert (view == 4.0).all()
    view += 1
    assert all((o.numpy() == -1.0).all() for o in others)
    del others, b
    assert (om.pool_stats() - before).outstanding_blocks == 1
    del view
    assert (om.pool_stats() - before).outstanding_blocks == 0


def test_a_view_of_a_tensor_that_is_gone_keeps_the_block():
    before = om.pool_stats()
    view = (om.full((1000,), 3.0) + 1).numpy()
    assert (om.pool_stats() - before).outstanding_blocks == 1
    others = [om.full((1000,), -1.0) for _ in range(20)]
    assert (view == 4.0).all()
    second = view[10:20]
    del view, others
    assert (second == 4.0).all() and (om.pool_stats() - before).outstanding_blocks == 1
    del second
    assert (om.pool_stats() - before).outstanding_blocks == 0


def test_several_views_hold_the_block_until_the_last_dies():
    with om.ActivationScope():
        b = om.ones(100) + 1
        views = [b.numpy(), b[:5].numpy(), np.asarray(b)]
    before = om.pool_stats()
    while views:
        assert (om.pool_stats() - before).outstanding_blocks == 0
        views.pop()
    assert (om.pool_stats() - before).outstanding_blocks == -1


def test_foreign_memory_lives_as_long_as_the_tensor():
    array = np.ones(1000, np.float32)
    alive = weakref.ref(array)
    t = om.from_numpy(array)
    with om.ActivationScope():
        view = t[10:]
    del array, t
    assert alive() is not None and float(view.sum()) == 990
    del view
    assert alive() is None


# -- a training step ------------------------------------------------------------------------------------------------------------


def train(w, v, rows):
    a = om.ones(rows, 16)
    with om.ActivationScope():
        loss = (om.relu(a @ w) @ v).sum()
        loss.backward()
        value = float(loss)
    om.zero_grad(w)
    om.zero_grad(v)
    return value


@pytest.mark.parametrize("poison", [False, True], ids=["plain", "poisoned"])
def test_a_step_takes_no_memory_after_the_largest_shape(poison):
    old = pool.set_pool_poison(poison)
    try:
        w, v = om.full((16, 32), 0.5).requires_grad_(), om.full((32, 4), 0.25).requires_grad_()
        for _ in range(2):
            largest = train(w, v, 64)
        before, rng = om.pool_stats(), random.Random(1)
        for _ in range(200):
            rows = rng.randint(0, 64)
            assert train(w, v, rows) == largest * rows / 64
        change = om.pool_stats() - before
        assert (change.native_allocations, change.outstanding_bytes) == (0, 0)
        om.clear_grad(w)
        om.clear_grad(v)
    finally:
        pool.set_pool_poison(old)


def test_poison_shows_in_memory_that_was_never_written():
    old = pool.set_pool_poison(True)
    try:
        assert np.isnan(om.empty(100).numpy()).all()
    finally:
        pool.set_pool_poison(old)
