"""Owns the tests of the registry: nothing is missing, nothing clashes, every operator has the samples that its tests need."""

import inspect

import numpy as np
import pytest
import registry_cases as checks

import onemodel as om
from onemodel import samples
from onemodel.ops import OPS
from onemodel.registry import FUNCTIONS, ErrorSample, Input, Op, Sample, public, register, snake


def parts(**changes):
    """What a complete operator class has; `changes` replaces parts, None removes one."""

    def forward(ctx, x):
        return x * 2.0

    def backward(ctx, g):
        return g * 2.0

    body = {"__doc__": "y = 2x.", "forward": staticmethod(forward), "backward": staticmethod(backward), "reference": staticmethod(lambda x: 2 * x),
            "samples": [Sample("vector", (Input((5,)),))], "error_samples": [ErrorSample("list", ([1.0],), TypeError, "om.tensor")]}
    return {k: v for k, v in {**body, **changes}.items() if v is not None}


@pytest.fixture
def planted(monkeypatch):
    """Registers a class for the length of a test."""
    monkeypatch.setattr("onemodel.registry.OPS", OPS.copy())

    def plant(**changes):
        return register(type("Planted", (Op,), parts(**changes)))

    return plant


def test_a_complete_class_registers(planted):
    op = planted()
    assert om.registry.OPS["planted"] is op and op.name == "planted" and op.differentiable


@pytest.mark.parametrize("part,word", [("reference", "reference"), ("samples", "samples"), ("error_samples", "error_samples"),
                                       ("__doc__", "docstring"), ("forward", "forward"), ("backward", "backward")])
def test_a_missing_part_is_refused(planted, part, word):
    with pytest.raises(TypeError, match=f"Planted: missing .*{word}"):
        planted(**{part: None})


def test_an_operator_without_gradient_says_why(planted):
    assert planted(backward=None, why_not_differentiable="the result is an index").differentiable is False


def test_a_taken_name_is_refused(planted):
    planted()
    with pytest.raises(ValueError, match="operator planted: the name is taken"):
        planted()
    taken = next(iter(FUNCTIONS))
    with pytest.raises(ValueError, match=f"public function {taken}: the name is taken"):
        public(taken)(lambda x: x)


def test_names():
    assert [snake(n) for n in ("Add", "LogSoftmax", "Conv2d", "ConvTranspose2d")] == ["add", "log_softmax", "conv2d", "conv_transpose2d"]


@checks.every_op
def test_operator_has_what_its_tests_need(name):
    op = OPS[name]
    names = [s.name for s in op.samples]
    assert len(set(names)) == len(names), "two samples of one name"
    assert len({s.name for s in op.error_samples}) == len(op.error_samples) > 0
    assert FUNCTIONS[name].__doc__ and getattr(om, name) is FUNCTIONS[name] is getattr(om.ops, name)
    inspect.signature(FUNCTIONS[name])
    assert op.differentiable or op.why_not_differentiable


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.differentiable])
def test_differentiable_operator_has_a_checked_gradient(name):
    assert any(s.gradcheck and any(t.numel() for t in samples.call_of(name, s).leaves) for s in OPS[name].samples)


def test_the_layouts_of_inputs():
    strides = {layout: samples.tensor_of(Input((4, 6), layout=layout), 0).strides for layout in ("plain", "transposed", "strided", "expanded", "flipped")}
    assert strides == {"plain": (6, 1), "transposed": (1, 4), "strided": (12, 2), "expanded": (0, 1), "flipped": (6, -1)}
    for layout in strides:
        x = Input((4, 6), layout=layout)
        t = samples.tensor_of(x, 0)
        assert t.requires_grad and t.is_leaf and np.array_equal(t.detach().numpy(), samples.values(x, 0))


def test_two_inputs_never_tie():
    """Ties and kinks have no derivative to compare with: the grids of the inputs of one call are apart."""
    a, b = samples.values(Input((301,)), 0), samples.values(Input((301,)), 1)
    assert np.abs(a[:, None] - b).min() > 1e-3 and np.abs(a).min() > 1e-3
    assert np.array_equal(a, samples.values(Input((301,)), 0))


@pytest.mark.parametrize("call", [lambda x: x.sum("a"), lambda x: om.argmax(x, (0, 1)), lambda x: om.softmax(x, None), lambda x: x.transpose(0, 1.5)])
def test_a_dimension_of_another_type_is_named(call):
    with pytest.raises(TypeError, match="^(sum|argmax|softmax|transpose): a dimension must be an integer"):
        call(om.ones(2, 3))
