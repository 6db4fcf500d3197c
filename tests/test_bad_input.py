"""Owns one property of every operator: whatever stands in the place of a parameter, the answer is a result or an error of the contract, at once.

Driven by signatures and samples of the registry; the single values that everything is tried with are in registry_cases. Must not name a parameter
except to say which forms it has beyond numbers.
"""

import inspect
import time

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import onemodel as om
from onemodel import memory, samples
from onemodel.ops import OPS
from onemodel.registry import FUNCTIONS, Input

FAMILIES = ("conv", "conv_transpose", "pooling", "norm", "resize", "pad")
NAMES = [name for name, op in OPS.items() if op.__module__.rpartition(".")[2] in FAMILIES]

HUGE = st.sampled_from([2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64, 2**70, 10**30, -1, -2, -(2**31), -(2**62), -(2**63), -(2**70)])
SMALL = st.integers(-3, 9)
TYPES = st.sampled_from([True, False, None, 1.5, float("nan"), float("inf"), -1.0, "1", "", "same", b"1", 1j, np.float32(2), np.float64("nan"), np.bool_(True), np.ones(2),
                         np.array(1), {}, object(), Ellipsis, slice(None), int, [[1], [2]]])
ONE = st.one_of(HUGE, SMALL, TYPES, SMALL.map(np.int64), st.builds(lambda: om.ones(2)))
VALUES = st.one_of(ONE, st.lists(ONE, max_size=5), st.lists(st.one_of(HUGE, SMALL), max_size=4).map(tuple), st.lists(ONE, max_size=5).map(tuple))
CONTRACT = (TypeError, ValueError, IndexError, MemoryError)


def arguments(name, sample):
    """Parameter -> value, of a call of this sample; and which of them are no tensors."""
    args, kwargs, _ = samples.with_inputs(sample, samples.tensor_of)
    bound = inspect.signature(FUNCTIONS[name]).bind(*args, **kwargs)
    bound.apply_defaults()
    raw = inspect.signature(FUNCTIONS[name]).bind(*sample.args, **sample.kwargs)
    tensors = {p for p, v in raw.arguments.items() if isinstance(v, Input)}
    optional = {p for p in bound.arguments if p in ("weight", "bias", "running_mean", "running_var")}
    return dict(bound.arguments), [p for p in bound.arguments if p not in tensors | optional]


def call(name, given):
    """The result, or the error; both within a second."""
    start = time.process_time()
    try:
        signature = inspect.signature(FUNCTIONS[name])
        several = {p.name for p in signature.parameters.values() if p.kind is p.VAR_POSITIONAL}
        given = {p: (v,) if p in several and not isinstance(v, tuple) else v for p, v in given.items()}
        bound = inspect.BoundArguments(signature, given)
        result = FUNCTIONS[name](*bound.args, **bound.kwargs)
        for y in samples.outputs(result):
            if y.requires_grad and y.numel():
                y.backward(om.ones(*y.shape), retain_graph=True)
    except CONTRACT as error:
        result = error
    spent = time.process_time() - start
    assert spent < 1, f"{name} took {spent} s"
    return result


@pytest.fixture(autouse=True)
def limited():
    """A result of many gigabytes is a MemoryError here, not a wait."""
    om.set_pool_limit(64 << 20)
    yield
    om.set_pool_limit(None)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=settings().max_examples // 2)
@given(data=st.data())
def test_any_parameters(name, data):
    sample = data.draw(st.sampled_from([s for s in samples.samples_of(OPS[name]) if s.gradcheck]))
    given, places = arguments(name, sample)
    if not places:
        return
    for place in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=3, unique=True)):
        given[place] = data.draw(VALUES)
    before = memory.pool_stats()
    result = call(name, given)
    if isinstance(result, Exception):
        said = str(result)
        assert said.startswith(name) or isinstance(result, MemoryError), f"{name} {given}: the error does not begin with the operator: {said!r}"
        assert len(said) < 600, f"{name}: an error of {len(said)} characters"
        del result
        given.clear()
        assert memory.pool_stats().outstanding_bytes <= before.outstanding_bytes, f"{name}: an error left memory taken"


WRONG = [True, False, 1.5, float("nan"), 1j, b"1", {}, object(), np.float32(2), np.bool_(True), np.ones(2), np.array([2, 1]), np.array([[2]]), om.ones(2),
         om.tensor([2, 1]), om.tensor(2.0), om.tensor(True), "word"]
# What any integer fits, or an integer tensor.
OPEN = {("nll_loss", "ignore_index"), ("cross_entropy", "ignore_index"), ("split", "split_size_or_sections"), ("chunk", "chunks"), ("slice", "start"),
        ("slice", "end"), ("slice", "step")}
TENSORS = {("ctc_loss", "targets"), ("ctc_loss", "input_lengths"), ("ctc_loss", "target_lengths")}
OUT = [2**62, 2**63, 2**70, -(2**63), -(2**70), -(2**62)]


def numbers_of(name):
    """(parameter, a sample's arguments) for each parameter that is an int, or ints, in the samples and nowhere a fraction."""
    found, real = {}, set()
    for sample in samples.samples_of(OPS[name]):
        given, places = arguments(name, sample)
        for place in places:
            value = given[place]
            parts = value if isinstance(value, (tuple, list)) else [value]
            if any(isinstance(v, (float, str, type, slice)) for v in parts):
                real.add(place)
            elif parts and all(isinstance(v, int) and not isinstance(v, bool) for v in parts):
                found.setdefault(place, given)
    return [(place, given) for place, given in found.items() if place not in real]


@pytest.mark.parametrize("name", OPS)
def test_numbers(name):
    """What is a number of elements is never taken from another type, nor beyond the sizes that exist."""
    for place, options in numbers_of(name):
        parts = options[place] if isinstance(options[place], (tuple, list)) else ()
        for bad in [*WRONG, *OUT]:
            if (type(bad) is int and (name, place) in OPEN) or (isinstance(bad, om.Tensor) and (name, place) in TENSORS):
                continue
            for value in [bad] + [type(parts)([*parts[:i], bad, *parts[i + 1:]]) for i in range(len(parts))]:
                result = call(name, {**options, place: value})
                kinds = (ValueError, IndexError, MemoryError) if type(bad) is int else (TypeError, ValueError) if isinstance(bad, str) else (TypeError,)
                if value is bad and parts:  # some take one number for all, some do not
                    kinds += (TypeError,)
                assert isinstance(result, kinds), f"{name}: {place}={value!r} gave {result!r}, expected {' or '.join(k.__name__ for k in kinds)}"
                assert str(result).startswith(name) or isinstance(result, MemoryError), f"{name}: {place}={value!r}: {result}"


def flags_of(name):
    """Parameters whose default is a truth value."""
    given, _ = arguments(name, samples.samples_of(OPS[name])[0])
    return {p.name: given for p in inspect.signature(FUNCTIONS[name]).parameters.values() if isinstance(p.default, bool)}


@pytest.mark.parametrize("name", OPS)
def test_flags(name):
    """What is a truth value is never taken from another type: "no" would be true."""
    for place, options in flags_of(name).items():
        for bad in ["no", "", 1, 0, 1.0, np.ones(2), om.ones(1), om.tensor(True), {}, object()]:
            result = call(name, {**options, place: bad})
            assert isinstance(result, TypeError), f"{name}: {place}={bad!r} gave {result!r}, expected TypeError"
            assert str(result).startswith(f"{name}: {place} must be True"), f"{name}: {place}={bad!r}: {result}"


@pytest.mark.parametrize("name", [name for name in OPS if name in FUNCTIONS])
def test_a_class_is_no_tensor(name):
    """A class has the attributes of its instances, dtype and shape among them, but not their values."""
    given, others = arguments(name, OPS[name].samples[0])
    for place in (p for p, v in given.items() if p not in others and isinstance(v, om.Tensor)):
        for bad in (np.float32, np.ndarray, om.Tensor):
            result = call(name, {**given, place: bad})
            assert isinstance(result, (TypeError, ValueError)), f"{name}: {place}={bad} gave {result!r}"


def test_errors_name_the_operator_that_was_called():
    for function, words in (
        (lambda: om.clamp(np.float32, 0, 1), "clamp: expected a Tensor"), (lambda: om.cast(om.ones(2), "foo"), "cast: dtype 'foo'"),
        (lambda: om.logsumexp(om.ones(2, 3), ()), r"logsumexp: dim names no dimension of shape \(2, 3\)"), (lambda: om.zeros(2, dtype="foo"), "zeros: dtype"),
        (lambda: om.rand(2, dtype="foo"), "rand: dtype"), (lambda: om.tensor(1, dtype="foo"), "tensor: dtype"),
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError), match=f"^{words}"):
            function()
    assert om.logsumexp(om.tensor(2.0), ()).item() == 2
