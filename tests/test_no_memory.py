"""Owns one property of every operator: where memory runs out in the middle of a call or of its backward, nothing stays taken or pinned."""

import gc

import pytest
import registry_cases as checks

import onemodel as om
from onemodel import samples
from onemodel.ops import OPS

BLOCK = 128       # bytes of the smallest block with its header


@pytest.fixture(autouse=True)
def unlimited():
    yield
    om.set_pool_limit(None)


def scarce(spare):
    """Takes all memory but about `spare` of the smallest blocks, which lie side by side; what is returned holds it."""
    om.pool_trim()
    om.set_pool_limit(om.pool_stats().native_bytes + spare * BLOCK)
    taken = []
    try:
        while True:
            taken.append(om.empty(1))
    except MemoryError:
        del taken[len(taken) - spare:]
    return taken


def attempt(name, sample, spare, backward):
    """A sample forward, then backward, in a scope, one of them with `spare` blocks of memory; whether that was enough, and the blocks that stay
    beyond the scope although their tensors live on."""
    call = samples.call_of(name, sample)
    before, ballast, kept, enough = om.pool_stats().outstanding_blocks, None, [], True
    try:
        with om.ActivationScope():
            if not backward:
                ballast = scarce(spare)
            kept += samples.outputs(call())
            seeds = [om.ones(*y.shape) for y in kept]
            if backward and spare is not None:
                ballast = scarce(spare)
            for y, seed in zip(kept, seeds, strict=True):
                if y.requires_grad and y.numel():
                    y.backward(seed, retain_graph=True)
    except MemoryError as error:
        error.with_traceback(None)  # whose frames hold tensors
        enough = False
    om.set_pool_limit(None)
    del ballast
    seeds = None
    for leaf in call.leaves:
        leaf.grad = None
    return enough, om.pool_stats().outstanding_blocks - before


@checks.every_op
def test_nothing_stays_taken(name):
    sample = next((s for s in samples.samples_of(OPS[name]) if s.gradcheck), samples.samples_of(OPS[name])[0])
    gc.disable()
    try:
        enough, least = attempt(name, sample, None, True)
        assert enough
        for backward in (False, True):
            spare, enough = 0, False
            while not enough:
                enough, held = attempt(name, sample, spare, backward)
                assert held <= least, f"{name} {sample.name}: {held} blocks stayed, not {least}, with {spare} to spare {'back' if backward else 'for'}ward"
                spare += 1 + spare // 16
    finally:
        gc.enable()
