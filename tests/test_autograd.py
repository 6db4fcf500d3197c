"""Owns the engine's contract: order, accumulation to the bit, release, versions, om.grad. Must not test an operator's formula."""

import numpy as np
import pytest
from engine_cases import leaf, one, traced

import onemodel as om

# -- what backward asks for -----------------------------------------------------------------------------------------------------


def test_a_scalar_needs_no_gradient_and_seeds_1():
    x = leaf([2.0, 3.0])
    (x * x).sum().backward()
    assert x.grad.tolist() == [4.0, 6.0]
    one = leaf([[5.0]])
    (one * 3).backward()
    assert one.grad.tolist() == [[3.0]]


def test_more_elements_need_a_gradient_of_their_shape():
    x = leaf([1.0, 2.0])
    y = x * 2
    with pytest.raises(RuntimeError, match=r"backward: an output of shape \(2,\) needs an explicit gradient"):
        y.backward()
    for wrong in (om.ones(3), om.ones(1, 2), om.ones(())):
        with pytest.raises(om.ShapeError, match=r"expected a gradient of the output's shape \(2,\)"):
            y.backward(wrong)
    with pytest.raises(TypeError, match="float32"):
        y.backward(om.tensor([1, 2]))
    with pytest.raises(TypeError, match="om.tensor"):
        y.backward(np.ones(2, np.float32))
    assert x.grad is None
    y.backward(om.tensor([1.0, 10.0]))
    assert x.grad.tolist() == [2.0, 20.0]


def test_the_gradient_is_copied():
    x, seed = leaf([1.0, 2.0]), om.tensor([3.0, 4.0])
    (x + 0.0).backward(seed)
    seed.zero_()
    assert x.grad.tolist() == [3.0, 4.0] and x.grad._storage is not seed._storage


def test_without_a_gradient_it_says_why():
    with pytest.raises(RuntimeError, match="does not require a gradient"):
        om.ones(()).backward()
    with om.no_grad():
        y = leaf([1.0]) * 2
    with pytest.raises(RuntimeError, match="does not require a gradient"):
        y.backward()


def test_higher_derivatives_are_refused_with_the_reason():
    x = leaf([2.0])
    with pytest.raises(ValueError, match="create_graph=True is not supported: backward runs with recording off"):
        (x * x).backward(create_graph=True)
    with pytest.raises(ValueError, match="create_graph"):
        om.grad(x * x, x, create_graph=True)
    seen = []

    class Look(om.Op):
        @staticmethod
        def forward(ctx, x):
            seen.append(om.is_grad_enabled())
            return x * 2

        @staticmethod
        def backward(ctx, g):
            seen.append(om.is_grad_enabled())
            return (g * 2).clone()

    Look.apply(x).backward()
    assert seen == [False, False] and om.is_grad_enabled() and not x.grad.requires_grad


def test_a_leaf_itself_can_be_the_output():
    x = leaf([1.5])
    x.backward()
    x.backward(om.tensor([2.0]))
    assert x.grad.tolist() == [3.0]


# -- order ----------------------------------------------------------------------------------------------------------------------


def test_reverse_post_order():
    """Inputs are visited in input order, so the last input's branch runs first; a record waits for all its consumers."""
    log = []
    x = leaf([1.0])
    a = traced(log, "a")(x)
    b = traced(log, "b")(a)
    c = traced(log, "c")(a, b)
    traced(log, "d")(b, c, a).backward()
    assert [name for name, _ in log] == ["d", "c", "b", "a"]
    log.clear()
    p, q = traced(log, "p")(x), traced(log, "q")(x)
    traced(log, "r")(p, q).backward()
    assert [name for name, _ in log] == ["r", "q", "p"]


def test_X20_a_node_used_twice_waits_for_all_its_consumers():
    x = leaf([2.0])
    y = x * x
    (y * y + y * x).backward()
    assert x.grad.tolist() == [44.0]


@pytest.mark.parametrize("consumers", [3, 5])
def test_emissions_are_added_in_order_of_arrival(consumers):
    """float32 additions do not associate: the sum has the bits of the reverse order of the consumers, the first one stored as it is."""
    values = np.float32([1.0, 2.0**-24, 2.0**-24, -1.0, 3.0])[:consumers]

    def run(x, target):
        y = x + 0.0 if target == "record" else x
        parts = [y * om.tensor(v) for v in values]
        total = om.stack(parts).sum()
        total.backward()
        return x.grad.item()

    expected = None
    for v in values[:0:-1].tolist() + values[:1].tolist():  # stack's inputs are visited in order, so the last one runs first
        expected = np.float32(v) if expected is None else np.float32(expected + np.float32(v))
    backwards = np.float32(0)
    for v in values:
        backwards = np.float32(backwards + v)
    assert {run(leaf(1.0), "record"), run(leaf(1.0), "leaf")} == {float(expected)}
    assert float(expected) != float(backwards) or consumers != 3


def test_leaves_accumulate_across_calls_in_place():
    x = leaf([1.0, 2.0])
    (x * 3).sum().backward()
    first = x.grad
    (x * 4).sum().backward()
    assert x.grad is first and first.tolist() == [7.0, 7.0]
    om.zero_grad(x)
    assert x.grad is first and first.tolist() == [0.0, 0.0]
    om.clear_grad(x)
    assert x.grad is None
    om.zero_grad(x)
    assert x.grad is None


def test_gradients_are_contiguous_and_of_the_leafs_shape():
    x = om.tensor(np.ones((3, 2), np.float32)).T.requires_grad_()
    (x.expand(4, 2, 3).permute(2, 0, 1) * 2).sum().backward()
    assert x.grad.shape == (2, 3) and x.grad.is_contiguous() and x.grad.tolist() == [[8.0] * 3] * 2
    one = om.ones(1, 1, requires_grad=True)
    (one.expand(3, 5).T).backward(om.ones(5, 3))
    assert one.grad.tolist() == [[15.0]] and one.grad.is_contiguous()


def test_a_leaf_keeps_the_gradient_that_was_made_for_it():
    """Not a copy of it: the pool is asked for each gradient, and for nothing else."""
    def asked(make, *leaves):
        y, g = make(*leaves), om.ones(40)
        y.backward(g, retain_graph=True)
        for x in leaves:
            x.grad = None
        before = om.pool_stats()
        y.backward(g, retain_graph=True)
        return (om.pool_stats() - before).requests

    assert asked(om.relu, om.ones(40).requires_grad_()) == 1
    assert asked(om.mul, om.ones(40).requires_grad_(), om.ones(40).requires_grad_()) == 2


@pytest.mark.parametrize("make", [lambda x: x, lambda x: x + 1, lambda x: x.reshape(2, 3), lambda x: om.relu(x), lambda x: om.relu(x) + x])
def test_the_callers_gradient_is_neither_kept_nor_written(make):
    x = om.ones(6, requires_grad=True)
    y = make(x)
    g = om.tensor(np.arange(6, dtype=np.float32)).reshape(*y.shape)
    for _ in range(2):
        y.backward(g, retain_graph=True)
        assert g.reshape(6).tolist() == list(range(6))
    (one,) = om.grad(make(x), x, g)
    expected, single = x.grad.tolist(), one.tolist()
    g.fill_(-1.0)
    assert x.grad.tolist() == expected and one.tolist() == single
    x.grad.fill_(7.0)
    one.fill_(7.0)
    assert g.reshape(6).tolist() == [-1.0] * 6


def test_first_emission_is_stored_as_it_is():
    """-0 and a NaN's payload survive where 0 + g would lose them."""
    seed = om.tensor([-0.0, 1.0])
    seed.numpy().view(np.uint32)[1] = 0x7FC12345
    x = leaf([1.0, 1.0])
    x.reshape(2, 1).reshape(2).backward(seed)
    assert x.grad.numpy().view(np.uint32).tolist() == [0x80000000, 0x7FC12345]


# -- release --------------------------------------------------------------------------------------------------------------------


def test_second_backward_is_refused_before_any_work():
    x, z = leaf([2.0]), leaf([1.0])
    y = (x * x).exp()
    y.backward()
    x.grad, log = None, []
    fresh = traced(log, "fresh")(z) + y
    with pytest.raises(om.GraphReleasedError, match="released by an earlier backward pass; pass retain_graph=True"):
        fresh.backward()
    assert log == [] and x.grad is None and z.grad is None
    with pytest.raises(om.GraphReleasedError):
        y.backward()


@pytest.mark.parametrize("function", ["mul", "exp", "add", "view"])
def test_X22_shared_part_of_two_graphs(function):
    """Whether an operator saves anything makes no difference: its record was released."""
    def build():
        t = leaf([0.5])
        k = {"mul": lambda: t * 2, "exp": lambda: t.exp(), "add": lambda: t + 1, "view": lambda: t.reshape(1, 1)}[function]()
        return t, (k * 2).sum(), (k * 3).sum()

    t, first, second = build()
    first.backward()
    before = t.grad.tolist()
    with pytest.raises(om.GraphReleasedError):
        second.backward()
    assert t.grad.tolist() == before
    t, first, second = build()
    first.backward(retain_graph=True)
    one = t.grad.tolist()
    om.clear_grad(t)
    first.backward(retain_graph=True)
    assert t.grad.tolist() == one
    second.backward()


def test_release_frees_what_was_saved():
    x = om.ones(100_000, requires_grad=True)
    y = x.exp()
    y = (y * y).sum()
    before = om.pool_stats()
    y.backward()
    om.clear_grad(x)
    kept = (om.pool_stats() - before).outstanding_bytes
    assert kept < -390_000 and "released" in repr(y.grad_fn)


# -- versions -------------------------------------------------------------------------------------------------------------------


def test_version_error_names_operator_slot_and_both_versions():
    x, w = leaf([1.0, 2.0]), om.tensor([3.0, 4.0])
    y = (x * w).sum()
    w.add_(1.0)
    w.add_(1.0)
    log = x.grad
    with pytest.raises(om.TensorVersionError, match=r"backward of mul: saved tensor 1 .*was at version 0, is at version 2") as caught:
        y.backward()
    assert isinstance(caught.value, RuntimeError) and x.grad is log is None


@pytest.mark.parametrize("how", ["add_", "setitem", "copy_", "fill_", "zero_", "through_view", "through_detach", "iadd"])
def test_every_way_to_write_raises_the_version(how):
    x, w = leaf([1.0, 2.0]), om.tensor([3.0, 4.0])
    y = (x * w).sum()
    {"add_": lambda: w.add_(1), "setitem": lambda: w.__setitem__(0, 1.0), "copy_": lambda: w.copy_(om.ones(2)), "fill_": lambda: w.fill_(2.0),
     "zero_": lambda: w.zero_(), "through_view": lambda: w[1:].mul_(2), "through_detach": lambda: w.detach().mul_(0),
     "iadd": lambda: w.__iadd__(1)}[how]()
    assert w.version == 1
    with pytest.raises(om.TensorVersionError):
        y.backward()


def test_a_change_after_the_error_or_of_something_unsaved_does_no_harm():
    x, w = leaf([1.0]), om.tensor([3.0])
    y = (x + w).sum()  # add saves nothing
    w.zero_()
    y.backward()
    assert x.grad.tolist() == [1.0]


def test_X03_detach_shares_the_version():
    x = leaf([0.5])
    out = x.tanh()
    out.detach().mul_(0)
    with pytest.raises(om.TensorVersionError, match="tanh"):
        out.sum().backward()


def test_X04_a_saved_operand_without_gradient_is_watched_too():
    x, s = leaf([1.0, 2.0]), om.tensor([2.0, 3.0])
    y = x * s
    with om.no_grad():
        s.mul_(3)
    with pytest.raises(RuntimeError):
        y.sum().backward()


def test_saved_version_is_checked_before_any_record_runs():
    log = []
    x, w, z = leaf([1.0]), om.tensor([3.0]), leaf([1.0])
    y = (x * w) + traced(log, "last")(z)
    w.zero_()
    with pytest.raises(om.TensorVersionError):
        y.backward()
    assert log == [] and z.grad is None


def test_a_change_during_backward_is_found_when_its_record_runs():
    w = om.tensor([3.0])

    class Spoil(om.Op):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            w.add_(1.0)
            return g

    x = leaf([1.0])
    y = Spoil.apply(x * w)
    with pytest.raises(om.TensorVersionError, match="mul"):
        y.backward()
    assert x.grad is None


# -- in-place -------------------------------------------------------------------------------------------------------------------


def test_in_place_is_refused_while_recording():
    x, y = leaf([1.0]), om.tensor([1.0])
    for call in (lambda: x.add_(1), lambda: x.zero_(), lambda: x.__setitem__(0, 1.0), lambda: (x * 1).mul_(2), lambda: y.add_(x), lambda: y.copy_(x),
                 lambda: y.__setitem__(0, x[0])):
        with pytest.raises(RuntimeError, match="in-place operations are not recorded"):
            call()
    with om.no_grad():
        x.add_(1)
        y.add_(x)
    assert x.tolist() == [2.0] and y.tolist() == [3.0] and y.is_leaf and not y.requires_grad


def test_X07_a_view_made_without_recording_stays_outside_the_graph():
    x = leaf([1.0, 2.0, 3.0])
    with om.no_grad():
        y = x[1:]
    y.mul_(1.0)
    assert y.grad_fn is None and not y.requires_grad
    z = (x * x).sum()
    y.mul_(2.0)
    with pytest.raises(om.TensorVersionError):
        z.backward()


@pytest.mark.parametrize("change", ["own_view", "base_of_view", "view_of_result", "expanded"])
def test_X10_in_place_through_views_gives_an_error_or_the_right_gradient(change):
    x = leaf([[1.0, 2.0], [3.0, 4.0]])
    with om.no_grad():
        base = om.tensor([[1.0, 2.0], [3.0, 4.0]])
        view = base[0]
    if change == "expanded":
        with pytest.raises(RuntimeError, match="overlap"):
            om.ones(1, 3).expand(2, 3).add_(1)
        return
    y = (x * (view if change == "own_view" else base)).sum()
    if change == "view_of_result":
        with pytest.raises(RuntimeError, match="not recorded"):
            (x * base)[0].add_(1)
        y.backward()
        assert x.grad.tolist() == base.tolist()
        return
    (base if change == "own_view" else view).mul_(10)
    with pytest.raises(om.TensorVersionError):
        y.backward()


# -- nobody's memory is changed -------------------------------------------------------------------------------------------------


def test_X09_one_gradient_for_two_parents():
    """add hands the same g to both inputs; what one of them accumulates must not reach the other."""
    for extra in (0, 1, 2):
        a, b = leaf([1.0, 1.0]), leaf([1.0, 1.0])
        y = a + b
        for _ in range(extra):
            y = y + a
        y.backward(om.tensor([1.0, 2.0]))
        assert a.grad.tolist() == [1.0 + extra, 2.0 + 2 * extra] and b.grad.tolist() == [1.0, 2.0]
        assert a.grad._storage is not b.grad._storage
        a.grad.mul_(100)
        assert b.grad.tolist() == [1.0, 2.0]


def test_stashed_gradients_stay_as_they_were():
    kept = []

    class Stash(om.Op):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            kept.append(g)
            return g

    x = leaf([1.0, 2.0])
    y = Stash.apply(x + 0.0)
    (y * 1 + x * 5).sum().backward()
    assert kept[0].tolist() == [1.0, 1.0] and x.grad.tolist() == [6.0, 6.0]
    x.grad.zero_()
    assert kept[0].tolist() == [1.0, 1.0]
    (Stash.apply(x) * 2).sum().backward()
    (Stash.apply(x) * 2).sum().backward()
    assert [k.tolist() for k in kept[1:]] == [[2.0, 2.0]] * 2 and x.grad.tolist() == [4.0, 4.0]


@pytest.mark.parametrize("write", [lambda g: g.zero_(), lambda g: g.mul_(2), lambda g: g.__setitem__(0, 1.0), lambda g: g.reshape(1).add_(1),
                                   lambda g: g.numpy().fill(0)], ids=["zero_", "mul_", "setitem", "view", "numpy"])
@pytest.mark.parametrize("first", [True, False])
def test_X09_an_operator_cannot_write_into_its_gradient(write, first):
    """Another consumer of the same g must see the true one: writing is refused, so a clone is what an operator writes into."""
    def spoil(ctx, g):
        with pytest.raises((RuntimeError, ValueError), match="read-only"):
            write(g)
        mine = g.clone()
        write(mine)
        return g

    a, b = leaf([1.0]), leaf([1.0])
    spoiled = one(lambda ctx, t: t * 1, spoil)(a)
    y = spoiled + b.reshape(1) if first else b.reshape(1) + spoiled
    y.backward(om.tensor([7.0]))
    assert a.grad.tolist() == [7.0] and b.grad.tolist() == [7.0]
    a.grad.add_(1)
    assert b.grad.tolist() == [7.0]


def test_grad_assigned_by_the_user_is_added_to_in_place():
    x, own = leaf([1.0, 2.0]), om.tensor([10.0, 20.0])
    x.grad = own
    (x * 2).sum().backward()
    assert x.grad is own and own.tolist() == [12.0, 22.0]
    with pytest.raises(om.ShapeError, match=r"expected float32 of shape \(2,\)"):
        x.grad = om.ones(3)
    with pytest.raises(TypeError, match="Tensor or None"):
        x.grad = 3
    shared = np.ones(2, np.float32)
    shared.flags.writeable = False
    x.grad = om.from_numpy(shared)
    with pytest.raises(RuntimeError, match="read-only"):
        (x * 2).sum().backward()


def test_one_tensor_as_the_gradient_of_two_leaves_is_the_users_choice():
    x, y, shared = leaf([1.0]), leaf([1.0]), om.tensor([0.0])
    x.grad = y.grad = shared
    (x * 2 + y * 3).backward()
    assert shared.tolist() == [5.0]


# -- retain_grad, grad, value_and_grad ------------------------------------------------------------------------------------------


def test_retain_grad():
    x = leaf([2.0])
    y = x * x
    z = y * 3
    assert y.grad is None
    y.retain_grad()
    (z + y).backward(retain_graph=True)
    assert y.grad.tolist() == [4.0] and z.grad is None
    (z + y).backward()
    assert y.grad.tolist() == [8.0]
    assert om.grad(x * x, x)[0].tolist() == [4.0]
    with pytest.raises(RuntimeError, match="retain_grad"):
        om.ones(1).retain_grad()


def test_om_grad():
    x, y, unused = leaf([2.0]), leaf([3.0]), leaf([1.0])
    h = x * y
    out = h * x
    x.grad = om.tensor([-1.0])
    gx, gh, gx2 = om.grad(out, [x, h, x], retain_graph=True)
    assert (gx.tolist(), gh.tolist(), gx2.tolist()) == ([12.0], [2.0], [12.0])
    assert x.grad.tolist() == [-1.0] and y.grad is None and h.grad is None
    gx.zero_()
    assert gx2.tolist() == [12.0]
    with pytest.raises(RuntimeError, match="no output depends on input 1; pass allow_unused=True"):
        om.grad(out, [x, unused], retain_graph=True)
    assert om.grad(out, [x, unused], allow_unused=True, retain_graph=True)[1] is None
    (scaled,) = om.grad([out, h], x, [om.tensor([10.0]), None])
    assert scaled.tolist() == [123.0]
    with pytest.raises(om.GraphReleasedError):
        om.grad(out, x)


def test_om_grad_runs_only_what_it_needs():
    log = []
    x, y = leaf([2.0]), leaf([3.0])
    a, b = traced(log, "a")(x), traced(log, "b")(y)
    om.grad(a * b, x)
    assert [name for name, _ in log] == ["a"]


def test_om_grad_of_the_output_itself_and_through_an_input():
    x = leaf([2.0])
    h = x * 3
    y = h * h
    gy, gh, gx = om.grad(y, (y, h, x))
    assert (gy.tolist(), gh.tolist(), gx.tolist()) == ([1.0], [12.0], [36.0])
    gy.zero_()
    assert gh.tolist() == [12.0]


@pytest.mark.parametrize("call,error,words", [
    (lambda x: om.grad(x * 2, om.ones(1)), RuntimeError, "input 0 does not require a gradient"),
    (lambda x: om.grad(x * 2, [x], [om.ones(1), om.ones(1)]), ValueError, "1 outputs but 2 grad_outputs"),
    (lambda x: om.grad(x * 2, [1.0]), TypeError, "expected tensors, got float"),
    (lambda x: om.grad(om.ones(1), [x]), RuntimeError, "does not require a gradient"),
])
def test_om_grad_errors(call, error, words):
    with pytest.raises(error, match=words):
        call(leaf([1.0]))


def test_value_and_grad():
    x, w = om.tensor([1.0, 2.0]), om.tensor([3.0, 4.0])

    def loss(x, w, scale=1.0):
        return (x * w).sum() * scale

    value, gx = om.value_and_grad(loss)(x, w)
    assert value.item() == 11.0 and not value.requires_grad and gx.tolist() == [3.0, 4.0]
    value, (gx, gw) = om.value_and_grad(loss, argnums=(0, 1))(x, w, scale=2.0)
    assert value.item() == 22.0 and gx.tolist() == [6.0, 8.0] and gw.tolist() == [2.0, 4.0]
    assert x.grad is None and not x.requires_grad
    used = leaf([1.0, 2.0])
    assert om.value_and_grad(loss, argnums=-1)(used, w)[1].tolist() == [1.0, 2.0] and used.grad is None
    with om.no_grad():
        assert om.value_and_grad(loss)(x, w)[1].tolist() == [3.0, 4.0]


@pytest.mark.parametrize("fn,args,argnums,error,words", [
    (lambda x: x * 2, (om.ones(2),), 0, RuntimeError, "explicit gradient|one element"),
    (lambda x: x.sum(), (om.tensor([1]),), 0, TypeError, "float32"),
    (lambda x: x.sum(), (1.0,), 0, TypeError, "Tensor"),
    (lambda x: x.sum(), (om.ones(2),), 1, ValueError, "argnums"),
    (lambda x: x.sum(), (om.ones(2),), (0, 0), ValueError, "twice"),
    (lambda x: 1.0, (om.ones(2),), 0, TypeError, "one Tensor"),
])
def test_value_and_grad_errors(fn, args, argnums, error, words):
    with pytest.raises(error, match=words):
        om.value_and_grad(fn, argnums)(*args)


def test_a_leaf_that_no_longer_wants_a_gradient_gets_none():
    w = om.ones(2, requires_grad=True)
    y = (w * 2).sum()
    w.requires_grad_(False)
    y.backward()
    assert w.grad is None


def test_records_of_built_in_operators_are_fixed():
    y = om.cross_entropy(om.ones(2, 3, requires_grad=True), om.tensor([0, 1]))
    with pytest.raises(AttributeError, match="fixed"):
        y.grad_fn.arguments = (7, 0, 0)
    y.backward()


@pytest.mark.parametrize("build", [lambda x: x.exp(), lambda x: om.linear(x, x), lambda x: x @ x, lambda x: x.T, lambda x: x[[0, 1]]])
def test_every_record_of_a_built_in_operator_is_fixed(build):
    y = build(om.ones(3, 3, requires_grad=True))
    with pytest.raises(AttributeError, match="fixed"):
        y.grad_fn.y = y


def test_a_checked_index_is_checked_again():
    """A changed one would be written beyond the gradient's memory."""
    y = om.ones(3, 3, requires_grad=True)[[0, 1]]
    y.grad_fn.saved_tensors[0].fill_(10**9)
    with pytest.raises(om.TensorVersionError, match="saved tensor 0"):
        y.sum().backward()
    y = om.ones(3, 3, requires_grad=True)[[0, 1]]
    y.grad_fn.saved_tensors[0].numpy()[0] = 10**9  # raises no version
    with pytest.raises(IndexError, match="out of range"):
        y.sum().backward()
    with pytest.raises(AttributeError, match="fixed"):
        y.grad_fn.arguments = (0, (10**9, 3))


@pytest.mark.parametrize("loss", [om.cross_entropy, om.nll_loss])
def test_targets_written_through_an_array_are_checked_again(loss):
    """Such a write raises no version, and a class out of range would be an address out of range."""
    classes = np.zeros(4, np.int64)
    y = loss(om.zeros(4, 3, requires_grad=True), om.from_numpy(classes))
    classes[0] = 10**9
    with pytest.raises(IndexError, match="target 1000000000"):
        y.backward()
