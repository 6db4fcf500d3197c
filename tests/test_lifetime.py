"""Owns the tests of how graphs die and what the cycle collector sees of them. Must not contain tests of the pool or of scopes."""

import gc
import weakref

import pytest

import onemodel as om


@pytest.fixture
def collector_at_rest():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def chain(x, length):
    y = x
    for _ in range(length):
        y = y * x
    return y


def test_the_collector_does_not_look_at_a_graph(collector_at_rest):
    """A graph of 100 000 operations would be walked again and again while it grows."""
    x = om.ones(4).requires_grad_()
    before = len(gc.get_objects())
    y = chain(x, 1000)
    assert len(gc.get_objects()) - before < 20
    y.backward(om.ones(4))
    assert len(gc.get_objects()) - before < 20


@pytest.mark.parametrize("build", [
    lambda x: om.cat([x * 2.0, x]),
    lambda x: (x.reshape(2, 2) @ x.reshape(2, 2)).T,
    lambda x: x.sum(keepdim=True).expand(4),
    lambda x: x[1:3],
])
def test_every_kind_of_compiled_record_is_left_out(collector_at_rest, build):
    x = om.ones(4).requires_grad_()
    build(x)
    before = len(gc.get_objects())
    kept = [build(x) for _ in range(200)]
    for _ in range(2):
        gc.collect()  # a rule's own tuple of numbers leaves the collector's view at the first collection, a tuple around it at the second
    assert len(gc.get_objects()) - before < 20
    assert len(kept) == 200


class Remembers(om.Op):
    """Holds its own output: a cycle that only the collector can end."""

    @staticmethod
    def forward(ctx, x):
        ctx.y = x * 2.0
        return ctx.y

    @staticmethod
    def backward(ctx, g):
        return g * 2.0


def dies(make):
    """Whether what make() returns is gone after a collection."""
    watched = weakref.ref(make())
    gc.collect()
    return watched() is None


def test_a_record_that_holds_its_output_is_collected(collector_at_rest):
    assert dies(lambda: Remembers.apply(om.ones(3).requires_grad_()))


class Doubles(om.Op):
    """Sets nothing in forward."""

    @staticmethod
    def forward(ctx, x):
        return x * 2.0

    @staticmethod
    def backward(ctx, g):
        return g * 2.0


def test_a_record_that_gets_its_output_after_forward_is_collected(collector_at_rest):
    def late():
        y = Doubles.apply(om.ones(3).requires_grad_())
        y.grad_fn.y = y
        return y

    assert dies(late)


def test_an_assigned_gradient_that_leads_back_is_collected(collector_at_rest):
    def from_its_graph():
        x = om.ones(3).requires_grad_()
        x.grad = x * 2.0
        return x

    def two_leaves():
        x, y = om.ones(3).requires_grad_(), om.ones(3).requires_grad_()
        x.grad, y.grad = y, x
        return x

    assert dies(from_its_graph)
    assert dies(two_leaves)


def test_an_assigned_gradient_keeps_values_and_leaves_its_graph():
    x = om.ones(3).requires_grad_()
    y = x * 2.0
    x.grad = y
    assert x.grad.tolist() == [2, 2, 2] and x.grad.is_leaf and not x.grad.requires_grad
    x.grad = g = om.ones(3)
    assert x.grad is g


@pytest.mark.parametrize("width", [1, 3])
def test_a_long_graph_dies_without_recursion(width):
    """width 3: each record is reached by several edges, so that ends nest inside ends."""
    before = om.pool_stats().outstanding_blocks
    x = om.ones(4).requires_grad_()
    y = x
    for _ in range(100_000 // width):
        y = om.cat([y * x, *[y] * (width - 1)])[:4] if width > 1 else y * x
    del y
    assert om.pool_stats().outstanding_blocks == before + 1
