"""Owns the tests of functions that are composed of operators: max, min, one_hot, adaptive_avg_pool1d, of var and std, and of the module that has all functions."""

import importlib.util
import itertools
import warnings

import numpy as np
import pytest

import onemodel as om
from onemodel import nn
from onemodel.registry import FUNCTIONS, METHODS
from onemodel.training import gradient_check

if importlib.util.find_spec("torch") is not None:
    import torch

SHAPES = {"row": (7,), "matrix": (4, 6), "images": (2, 3, 4, 5), "one": (1, 1)}
BOTH = pytest.mark.parametrize("mode", ["fast", "exact"])


def values(shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


@BOTH
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", ["var", "std"])
def test_variance_and_deviation(name, shape, mode):
    x = values(shape) + 3
    dims = [None, 0, -1, tuple(range(len(shape))), *itertools.combinations(range(len(shape)), 2)]
    with om.arithmetic(mode):
        for dim, correction, keepdim in itertools.product(dims, [0, 1, 0.5], [False, True]):
            axes = tuple(dim) if isinstance(dim, tuple) else dim
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # NumPy's words about too few values
                expected = getattr(np, name)(x.astype(np.float64), axis=axes, ddof=correction, keepdims=keepdim)
            y = getattr(om.tensor(x), name)(dim, correction=correction, keepdim=keepdim)
            assert y.shape == np.shape(expected)
            np.testing.assert_allclose(y.numpy(), expected, rtol=3e-6)
    if len(shape) == 2 and shape != (1, 1):
        gradient_check(lambda t: getattr(om, name)(t, 1), [om.tensor(x, requires_grad=True)])


@pytest.mark.parametrize("name,place", [("max", "argmax"), ("min", "argmin")])
def test_extremes(name, place):
    for x in (values((4, 6)), values((2, 3, 4)), np.float32([[1, 3, 3], [np.nan, 2, np.nan]]), np.int64([[3, 1, 1], [-5, 7, 7]]), np.array([[True, False]]), np.float32(2)):
        t = om.tensor(x)
        assert np.array_equal(getattr(t, name)().numpy(), getattr(np, name)(x), equal_nan=x.dtype.kind == "f")
        for dim in range(x.ndim) if x.ndim else [0]:
            found = getattr(t, name)(dim)
            axis = dim if x.ndim else None
            assert np.array_equal(found.values.numpy(), getattr(np, name)(x, axis=axis), equal_nan=x.dtype.kind == "f")
            assert np.array_equal(found.indices.numpy(), getattr(np, place)(x, axis=axis)) and found.indices.dtype == np.int64
            kept, at = getattr(t, name)(dim, keepdim=True)
            assert kept.shape == at.shape == getattr(np, name)(x, axis=axis, keepdims=True).shape
    x = om.tensor([[1.0, 2.0, 2.0], [-1.0, -1.0, -3.0]], requires_grad=True)
    getattr(x, name)(1).values.backward(om.tensor([5.0, 7.0]))
    assert x.grad.tolist() == ([[0, 5, 0], [7, 0, 0]] if name == "max" else [[5, 0, 0], [0, 0, 7]])
    a, b = om.ones(3), om.arange(3.0)
    assert getattr(om, name)(a, b).tolist() == getattr(om, f"{name}imum")(a, b).tolist()
    for call, error, words in (
        (lambda f: f(om.ones(0, 3)), om.ShapeError, "no element"), (lambda f: f(om.ones(0, 3), 0), om.ShapeError, "no element"), (lambda f: f([1.0]), TypeError, "om.tensor"),
        (lambda f: f(om.ones(2), 1), IndexError, "out of range"), (lambda f: f(om.ones(2), 1.0), TypeError, "a dimension must be an integer"),
        (lambda f: f(om.ones(2), 0, "no"), TypeError, "keepdim must be"),
    ):  # fmt: skip
        with pytest.raises(error, match=f"^{name}: .*{words}"):
            call(getattr(om, name))
    assert getattr(om.ones(0, 3), name)(1).values.shape == (0,)


@BOTH
@pytest.mark.parametrize("data", [
    [1e30, 2e30, 4e30], [1e-40, 2e-40, 5e-40], [-3e38, 3e38, 0, 0, 0, 0], [1e-25, -3e-25, 2e-25] * 50, 1e6 + np.random.default_rng(0).normal(size=1000),
    np.full(1001, 0.1), [2.5],
], ids=["large", "denormal", "whole_range", "small", "offset", "equal", "one"])  # fmt: skip
def test_variance_is_of_doubles(data, mode):
    """Neither overflow, nor underflow, nor digits that a rounded mean would lose: each is the float nearest the variance of the floats."""
    x = np.float32(data)
    wide, correction = x.astype(np.float64), 1.0 if x.size > 1 else 0.0
    with om.arithmetic(mode):
        for laid in (x[None], np.repeat(x[:, None], 3, 1)):
            dim = laid.shape.index(x.size) if x.size > 1 else 1
            t = om.tensor(laid, requires_grad=True)
            y = t.std(dim, correction=correction)
            with np.errstate(over="ignore"):
                np.testing.assert_allclose(y.detach().numpy(), np.full(y.shape, np.float32(wide.std(ddof=correction))), rtol=2e-7, atol=0)
                np.testing.assert_allclose(t.var(dim, correction=correction).detach().numpy(), np.full(y.shape, np.float32(wide.var(ddof=correction))), rtol=2e-7)
            y.sum().backward()
            slope = (wide - wide.mean()) / ((x.size - correction) * wide.std(ddof=correction)) if len(set(x)) > 1 else np.zeros_like(wide)
            np.testing.assert_allclose(t.grad.numpy(), np.broadcast_to(np.moveaxis(slope[None], 1, dim), laid.shape), rtol=1e-6, atol=1e-12)


@BOTH
def test_variance_of_columns_has_the_bits_of_rows(mode):
    """The one reads memory where it lies, the other is laid out first."""
    for n, c in ((1, 3), (5, 1), (15, 65), (16, 64), (33, 130), (1000, 7)):
        x = np.random.default_rng(n).normal(3, 1, (n, c)).astype(np.float32)
        weights = om.tensor(np.random.default_rng(c).normal(size=c).astype(np.float32))
        for name in ("var", "std"):
            with om.arithmetic(mode):
                down, along = om.tensor(x, requires_grad=True), om.tensor(np.ascontiguousarray(x.T), requires_grad=True)
                y, z = getattr(down, name)(0, correction=0.5), getattr(along, name)(1, correction=0.5)
                assert y.sha256() == z.sha256()
                (y * weights).sum().backward()
                (z * weights).sum().backward()
                assert down.grad.sha256() == along.grad.T.contiguous().sha256()


def test_the_gradient_of_no_deviation_is_0():
    x = om.tensor([[2.0, 2.0, 2.0], [1.0, 2.0, 3.0]], requires_grad=True)
    x.std(1).sum().backward()
    assert x.grad.tolist() == [[0, 0, 0], [-0.5, 0, 0.5]]


def test_unbiased_is_a_correction():
    x = om.tensor(values((4, 6)))
    for name in ("var", "std"):
        for unbiased in (True, False):
            assert getattr(om, name)(x, 1, unbiased=unbiased).sha256() == getattr(x, name)(1, correction=int(unbiased)).sha256()


def test_variance_errors():
    for name in ("var", "std"):
        function = getattr(om, name)
        for call, error, words in (
            (lambda f: f([1.0]), TypeError, "om.tensor"), (lambda f: f(om.tensor([1, 2])), TypeError, "float32"), (lambda f: f(om.ones(2), 1), IndexError, "out of range"),
            (lambda f: f(om.ones(2), keepdim=1), TypeError, "keepdim"), (lambda f: f(om.ones(2), correction="1"), TypeError, "correction"),
            (lambda f: f(om.ones(2, 2), (0, 0)), om.ShapeError, "named twice"), (lambda f: f(om.ones(2), unbiased=1), TypeError, "unbiased must be True or False"),
            (lambda f: f(om.ones(2), unbiased=True, correction=1), ValueError, "pass one of them"),
        ):  # fmt: skip
            with pytest.raises(error, match=f"^{name}: .*{words}"):
                call(function)
        assert np.isnan(function(om.ones(1)).item()) and np.isnan(function(om.ones(0)).item())


def test_one_hot():
    ids = om.tensor([[2, 0], [1, 2]])
    assert om.one_hot(ids).tolist() == np.eye(3, dtype=int)[ids.numpy()].tolist() and om.one_hot(ids, 5).shape == (2, 2, 5)
    assert om.one_hot(om.tensor(1, dtype=om.int32), 3).tolist() == [0, 1, 0] and om.one_hot(om.tensor([], dtype=om.int64), 3).shape == (0, 3)
    for call, error, words in (
        (lambda: om.one_hot(ids, 2), IndexError, "id 2 is no class; expected 0 to 1"), (lambda: om.one_hot(om.tensor([-1])), IndexError, "id -1 is no class; expected 0 or more"),
        (lambda: om.one_hot(om.ones(2)), TypeError, "ids must be int64 or int32"), (lambda: om.one_hot(ids, 0), ValueError, "num_classes must be at least 1"),
        (lambda: om.one_hot(om.tensor([], dtype=om.int64)), ValueError, "num_classes"), (lambda: om.one_hot(ids, 3.0), TypeError, "num_classes must be an integer"),
        (lambda: om.one_hot([1]), TypeError, "om.tensor"),
    ):  # fmt: skip
        with pytest.raises(error, match=f"^one_hot: .*{words}"):
            call()


@BOTH
def test_adaptive_avg_pool1d(mode):
    x = values((2, 3, 7))
    with om.arithmetic(mode):
        for size in (1, 3, 7, 10, (2,), None):
            y = om.adaptive_avg_pool1d(om.tensor(x), size)
            plane = om.adaptive_avg_pool2d(om.tensor(x[:, :, None]), (1, None if size is None else size[0] if isinstance(size, tuple) else size))
            assert y.sha256() == plane.squeeze(2).sha256() == nn.AdaptiveAvgPool1d(size)(om.tensor(x)).sha256()
    gradient_check(lambda t: om.adaptive_avg_pool1d(t, 3), [om.tensor(x, requires_grad=True)])
    for call, error, words in (
        (lambda f: f(om.ones(7), 2), om.ShapeError, "expected .n, c, w. or .c, w."), (lambda f: f(om.ones(2, 7), (2, 2)), TypeError, "output_size must be an integer"),
        (lambda f: f(om.ones(2, 7), -1), ValueError, "output_size"), (lambda f: f(om.ones(2, 0), 1), ValueError, "not empty"), (lambda f: f([1.0], 1), TypeError, "om.tensor"),
    ):  # fmt: skip
        with pytest.raises(error, match=f"^adaptive_avg_pool1d: .*{words}"):
            call(om.adaptive_avg_pool1d)


def test_functional_has_every_function():
    assert {name: getattr(nn.functional, name) for name in FUNCTIONS} == FUNCTIONS
    assert {"max", "min", "var", "std", "argmin"} <= set(METHODS)


@pytest.mark.oracle
def test_they_are_torchs():
    x = values((3, 5, 4))
    ours, theirs = om.tensor(x, requires_grad=True), torch.from_numpy(x).requires_grad_()
    weights = values((3, 4))
    for f in (lambda t: t.max(1)[0], lambda t: t.min(1).values, lambda t: t.var(1), lambda t: t.std(1, correction=0), lambda t: t.var((1,), correction=2), lambda t: t.std(1, unbiased=False)):
        ours.grad = theirs.grad = None
        y, z = f(ours), f(theirs)
        np.testing.assert_allclose(y.detach().numpy(), z.detach().numpy(), rtol=2e-6)
        (y * om.tensor(weights)).sum().backward()
        (z * torch.from_numpy(weights)).sum().backward()
        np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=2e-5, atol=1e-6)
    for size in (1, 2, 3, 4, 9):
        np.testing.assert_allclose(om.adaptive_avg_pool1d(ours, size).detach().numpy(), torch.nn.functional.adaptive_avg_pool1d(theirs, size).detach().numpy(), rtol=1e-5, atol=1e-6)
    ids = np.array([[3, 0], [1, 3]])
    for count in (-1, 4, 6):
        assert om.one_hot(om.tensor(ids), count).tolist() == torch.nn.functional.one_hot(torch.from_numpy(ids), count).tolist()
    assert om.tensor(x).argmin(2).tolist() == torch.from_numpy(x).argmin(2).tolist()
