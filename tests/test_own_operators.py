"""Owns the contract of a user's own operator: ctx, gradients, wrong returns, exceptions. Must not test the built-in ones."""

import gc

import pytest
from engine_cases import leaf, one

import onemodel as om


class Scale(om.Op):
    """y = factor·x + shift, with everything a user's operator may do."""

    @staticmethod
    def forward(ctx, x, shift=None, *, factor=2.0):
        ctx.factor, ctx.needs = factor, ctx.needs_input_grad
        ctx.save_for_backward(x, None)
        return x * factor if shift is None else x * factor + shift

    @staticmethod
    def backward(ctx, g):
        assert ctx.saved_tensors[1] is None and ctx.needs == ctx.needs_input_grad
        return (g * ctx.factor, g) if len(ctx.needs) == 2 else g * ctx.factor


def test_own_operator():
    x, shift = leaf([1.0, 2.0]), om.tensor([5.0, 5.0])
    y = Scale.apply(x, shift, factor=3.0)
    assert y.tolist() == [8.0, 11.0] and y.grad_fn.name == "Scale" and y.grad_fn.needs_input_grad == (True, False)
    y.sum().backward()
    assert x.grad.tolist() == [3.0, 3.0] and shift.grad is None
    with om.no_grad():
        assert Scale.apply(x).is_leaf
    assert "Scale" not in om.ops.OPS


@pytest.mark.parametrize("backward,error,words", [
    (lambda ctx, g: (g, g), ValueError, "backward of Mine: expected 1 gradients.*got 2"),
    (lambda ctx, g: (), ValueError, "expected 1 gradients.*got 0"),
    (lambda ctx, g: 1.0, TypeError, "backward of Mine: expected a Tensor or None as gradient, got float"),
    (lambda ctx, g: om.ones(3), om.ShapeError, "Mine"),
    (lambda ctx, g: om.ones(()), om.ShapeError, "Mine"),
    (lambda ctx, g: g.cast(om.int32), TypeError, "must be float32"),
    (lambda ctx, g: ctx.nothing, AttributeError, "has no attribute 'nothing'"),
])
def test_wrong_backward_is_told_and_leaves_the_graph_usable(backward, error, words):
    x = leaf([1.0, 2.0])
    before = om.pool_stats()
    shared = x * 2
    bad, good = one(lambda ctx, t: t * 1, backward)(shared), shared * 5
    gc.disable()
    try:
        with pytest.raises(error, match=words):
            bad.sum().backward(retain_graph=True)
        del bad
        assert x.grad is None
        good.sum().backward()
        assert x.grad.tolist() == [10.0, 10.0]
        om.clear_grad(x)
        del shared, good
        assert (om.pool_stats() - before).outstanding_blocks == 0
    finally:
        gc.enable()


def test_exception_from_a_users_backward_passes_through():
    def fail(ctx, g):
        raise KeyError("mine")

    x = leaf([1.0])
    y = one(lambda ctx, t: t * 1, fail)(x)
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            y.backward(retain_graph=True)
    assert om.is_grad_enabled()


def test_none_means_no_gradient():
    x = leaf([1.0])
    y = one(lambda ctx, t: t * 1, lambda ctx, g: None)(x)
    (y + x).backward()
    assert x.grad.tolist() == [1.0]


@pytest.mark.parametrize("result,words", [(lambda t: 3.0, "must return one Tensor, got float"), (lambda t: (t, t), "one Tensor, got tuple")])
def test_wrong_forward_is_told(result, words):
    with pytest.raises(TypeError, match=words):
        one(lambda ctx, t: result(t), None)(leaf([1.0]))


def test_forward_that_raises_leaves_recording_on():
    def fail(ctx, t):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        one(fail, None)(leaf([1.0]))
    assert om.is_grad_enabled()


def test_returning_an_input():
    x = leaf([1.0])
    y = one(lambda ctx, t: t, lambda ctx, g: g * 10)(x)
    assert y is not x and y._storage is x._storage and x.is_leaf
    y.backward()
    assert x.grad.tolist() == [10.0]


def test_saving_the_output_makes_no_cycle():
    def forward(ctx, t):
        y = t.exp()
        ctx.save_for_backward(y)
        return y

    gc.disable()
    try:
        before = om.pool_stats()
        x = leaf([1.0])
        y = one(forward, lambda ctx, g: g * ctx.saved_tensors[0])(x)
        del x, y
        assert (om.pool_stats() - before).outstanding_blocks == 0
    finally:
        gc.enable()


def test_saving_other_things_is_told():
    with pytest.raises(TypeError, match="set other values as attributes"):
        one(lambda ctx, t: ctx.save_for_backward(3.0), None)(leaf([1.0]))


def test_many_saved_and_many_inputs():
    def forward(ctx, *tensors):
        ctx.save_for_backward(*tensors)
        total = tensors[0]
        for t in tensors[1:]:
            total = total + t
        return total

    def backward(ctx, g):
        return [g * (i + 1) for i in range(len(ctx.saved_tensors))]

    leaves = [leaf([1.0]) for _ in range(70)]
    one(forward, backward)(*leaves).backward()
    assert [t.grad.item() for t in leaves] == list(range(1, 71))
    y = one(forward, backward)(*leaves)
    assert om.grad(y, [leaves[65], leaves[3]], retain_graph=True)[0].item() == 66.0
    with om.no_grad():
        leaves[69].add_(1)
    with pytest.raises(om.TensorVersionError, match="saved tensor 69"):
        y.backward()


def test_backward_inside_forward_and_backward():
    """An operator may differentiate a graph of its own inside: passes nest, on separate graphs."""
    def forward(ctx, t):
        with om.enable_grad():
            inner = t.detach().requires_grad_()
            (slope,) = om.grad((inner * inner * inner).sum(), inner)
        ctx.save_for_backward(t)
        return slope

    def backward(ctx, g):
        with om.enable_grad():
            inner = ctx.saved_tensors[0].detach().requires_grad_()
            (slope,) = om.grad((inner * inner * 3).sum(), inner)
        return g * slope

    x = leaf([2.0])
    one(forward, backward)(x).backward()
    assert x.grad.tolist() == [12.0]


def test_backward_of_the_same_graph_inside_its_own_backward_ends_in_an_error():
    holder = []

    def again(ctx, g):
        holder[0].backward(retain_graph=True)
        return g

    x = leaf([1.0])
    y = one(lambda ctx, t: t * 1, again)(x) * 2
    holder.append(y)
    with pytest.raises(RuntimeError):
        y.backward(retain_graph=True)
    holder.clear()
    assert x.grad is None and om.is_grad_enabled()


def test_a_list_of_one_gradient_and_no_saving_after_forward():
    class Listed(om.Op):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return [g * 2]

    x = om.ones(3, requires_grad=True)
    Listed.apply(x).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
    for y in (Listed.apply(x), x * x, om.amax(x), om.cross_entropy(x, om.tensor(1))):
        with pytest.raises(RuntimeError, match="forward"):
            y.grad_fn.save_for_backward(om.ones(1))
