"""Owns the gradient tests: every differentiable (operator, sample) against the derivative of its float64 reference and by
`gradient_check`, and gradient_check's own contract. The generic ones must not name an operator.
"""

import numpy as np
import pytest
import registry_cases as checks

import onemodel as om
from onemodel.ops import OPS
from onemodel.training import GradientCheckError, gradient_check
from onemodel.training.gradcheck import check_sample, main

GRADED = [case for case in checks.CASES if OPS[case[0]].differentiable]


@pytest.mark.parametrize("name,sample", GRADED, ids=[f"{name}-{sample.name}" for name, sample in GRADED])
def test_gradient(name, sample):
    checks.check_gradient(name, sample)
    check_sample(name, sample)


class Cube(om.Op):
    """A user's own operator."""

    @staticmethod
    def forward(ctx, x, factor=1.0):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x * x * factor

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x * x * (3 * ctx.factor)


class WrongCube(Cube):
    """Its gradient is off by 0.1 %."""

    @staticmethod
    def backward(ctx, g):
        return Cube.backward(ctx, g) * 1.001


def x():
    return om.tensor([[0.5, -1.5, 2.0], [1.25, 0.75, -0.25]])


def test_own_operator_is_checked():
    report = gradient_check(Cube, [x(), 2.0])
    assert report.name == "Cube" and report.error < 1e-4 and [row.input for row in report.worst] == [0]
    assert "Cube" in str(report) and "element" in str(report)


def test_a_gradient_off_by_a_thousandth_is_named():
    with pytest.raises(GradientCheckError, match=r"input 0, element \(0, 2\): gradient 1[0-9.]+, measured slope 1[0-9.]+"):
        gradient_check(WrongCube, [x()])


def test_inputs_keep_their_own_gradients_and_settings():
    a, b = x().requires_grad_(), x()
    a.grad = om.ones(2, 3)
    report = gradient_check(lambda a, b: a * b, [a, b])
    assert [row.input for row in report.worst] == [0]  # b does not ask for one
    assert a.grad.tolist() == [[1.0] * 3] * 2 and b.grad is None and not b.requires_grad


def test_several_results_and_an_unused_input():
    a, b = x().requires_grad_(), x().requires_grad_()
    assert gradient_check(lambda a, b: (a * 2, a.exp()), [a, b]).worst[1].analytic == 0


def test_kinks_are_stepped_around_and_strides_are_kept():
    gradient_check(lambda t: t.relu(), [om.tensor([1e-3, -1e-3, 4e-5])])
    seen = []
    gradient_check(lambda t: (seen.append(t.strides), t * 2)[1], [x().T])
    assert seen[0] == (1, 3)


def test_many_elements_are_probed_in_a_fixed_choice():
    big = om.ones(1000)
    first = gradient_check(lambda t: t * t, [big], max_elements=5)
    assert first == gradient_check(lambda t: t * t, [big], max_elements=5)


@pytest.mark.parametrize("fn,inputs,error,words", [
    (lambda t: t, x(), TypeError, r"write \[x\]"),
    (lambda t: t, [om.tensor([1])], ValueError, "no float32 tensor"),
    (lambda t: t.detach(), [x()], ValueError, "nothing that depends"),
    (lambda t, state=iter(range(9)): t * next(state), [x()], ValueError, "two results"),
])
def test_wrong_use_says_what_to_do(fn, inputs, error, words):
    with pytest.raises(error, match=words):
        gradient_check(fn, inputs)


def test_log_keeps_the_worst_of_each_name(tmp_path, monkeypatch):
    log = tmp_path / "worst.tsv"
    monkeypatch.setenv("ONEMODEL_GRADCHECK_LOG", str(log))
    gradient_check(Cube, [x()])
    first = log.read_text()
    with pytest.raises(GradientCheckError):
        gradient_check(WrongCube, [x()])
    with pytest.raises(GradientCheckError):
        gradient_check(WrongCube, [x()], name="Cube")
    gradient_check(Cube, [x()])
    rows = [line.split("\t") for line in log.read_text().splitlines()]
    assert [row[0] for row in rows] == ["Cube", "WrongCube"]
    assert float(rows[0][1]) == pytest.approx(1e-3, rel=0.1) and float(first.split("\t")[1]) < 1e-4


def test_command(capsys):
    name = next(name for name, op in OPS.items() if op.differentiable)
    assert main([name]) == 0 and name in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        main(["no_such"])
    assert end.value.code == 2 and name in capsys.readouterr().err


def test_command_fails_on_a_wrong_gradient(monkeypatch, capsys):
    name = next(name for name, op in OPS.items() if op.differentiable)
    monkeypatch.setitem(om.registry.FUNCTIONS, name, lambda *a, **k: WrongCube.apply(*a[:1]))
    assert main([name]) == 1 and "WRONG" in capsys.readouterr().err


def test_gradient_does_not_depend_on_the_callers_arithmetic():
    """A record keeps the mode it was made in."""
    def gradient(forward, backward):
        a = om.from_numpy(np.linspace(-3, 3, 64, dtype=np.float32)).requires_grad_()
        with om.arithmetic(forward):
            y = a.tanh().sum()
        with om.arithmetic(backward):
            y.backward()
        return a.grad.sha256()

    assert gradient("exact", "fast") == gradient("exact", "exact")
    assert gradient("fast", "exact") == gradient("fast", "fast")
