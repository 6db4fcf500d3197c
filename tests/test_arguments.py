"""Owns the tests of how integers, truth values and argument lists are read: the readers themselves, and every layer and maker that takes one."""

import inspect

import numpy as np
import pytest

import onemodel as om
from onemodel import arguments, nn
from onemodel.arguments import flag, index_of, integer, integers
from onemodel.registry import FUNCTIONS, OPS
from onemodel.rules import Map

INTEGERS = [3, np.int64(3), np.uint8(3), np.array(3), om.tensor(3), om.tensor([3], dtype=om.int32)]
NO_INTEGERS = [True, np.bool_(True), om.tensor(True), np.array(True), 3.0, np.float32(3), om.tensor(3.0), "3", b"3", None, (3,), om.tensor([3, 3]), np.array([3]), int, {}]
NO_FLAGS = ["no", "", 1, 0, 1.0, None, np.array([True]), om.tensor(True), [], np.int64(1)]


@pytest.mark.parametrize("value", INTEGERS, ids=repr)
def test_what_is_an_integer(value):
    for found in (index_of("op", "n", value), integer("op", "n", value, 0), *integers("op", "n", value, 1, 0)):
        assert type(found) is int and found == 3


@pytest.mark.parametrize("value", NO_INTEGERS, ids=repr)
def test_what_is_none(value):
    for read in (lambda: index_of("op", "n", value), lambda: integer("op", "n", value, 0), lambda: integers("op", "n", (value, 1), 2, 0)):
        with pytest.raises(TypeError, match=f"^op: n must be an integer.*, got {type(value).__name__}"):
            read()


def test_tensors_are_told_how_to_become_integers():
    with pytest.raises(TypeError, match=r"got Tensor of int64, shape \(2,\); write int\(t\) for one number, tuple\(t.tolist\(\)\) for several"):
        om.max_pool2d(om.ones(1, 1, 4, 4), om.tensor([2, 2]))


def test_limits_and_counts():
    assert integers("op", "n", [2], 3, 0) == integers("op", "n", 2, 3, 0) == (2, 2, 2)
    assert integers("op", "n", (1, 2), 2, 0) == (1, 2)
    for value, words in ((0, "from 1 to 9, got 0"), (10, "from 1 to 9, got 10"), (-(2**200), "got an integer of 201 bits"), (2**70, f"got {2**70}")):
        with pytest.raises(ValueError, match=f"op: n must be .*{words}"):
            integer("op", "n", value, 1, 9)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        integer("op", "n", 0, 1)
    with pytest.raises(ValueError, match=r"an integer or a pair \(rows, columns\), got a tuple of 3"):
        integers("op", "n", (1, 2, 3), 2, 0)


def test_flags():
    assert [flag("op", "f", v) for v in (True, False, np.bool_(True), np.bool_(False))] == [True, False, True, False]
    for value in NO_FLAGS:
        with pytest.raises(TypeError, match=f"^op: f must be True or False, got {type(value).__name__}"):
            flag("op", "f", value)


LAYERS = {
    "AvgPool1d": (2,), "AvgPool2d": (2,), "AdaptiveAvgPool1d": (2,), "AdaptiveAvgPool2d": (2,), "AdaptiveMaxPool2d": (2,), "BatchNorm1d": (2,), "BatchNorm2d": (2,),
    "Conv1d": (2, 2, 2), "Conv2d": (2, 2, 2), "ConvTranspose2d": (2, 2, 2), "Embedding": (4, 2), "GRU": (2, 2), "GroupNorm": (2, 4), "LSTM": (2, 2), "LayerNorm": (2,),
    "Linear": (2, 2), "MaxPool1d": (2,), "MaxPool2d": (2,), "MultiheadAttention": (4, 2), "Parameter": (om.ones(2),), "RMSNorm": (2,), "Softmax": (1,),
    "LogSoftmax": (1,), "TransformerEncoder": (nn.Linear(1, 1), 1), "TransformerEncoderLayer": (4, 2), "Upsample": (2,), "ZeroPad2d": (1,),
}  # fmt: skip
REALS = {"dropout", "eps", "momentum", "p", "alpha", "beta", "threshold", "negative_slope", "delta", "label_smoothing", "layer_norm_eps"}
LATER = {"kernel_size", "stride", "padding", "dilation", "output_size", "divisor_override", "size"}  # a pooling layer hands them to its operator, which reads them


def made(name):
    """The class, and the arguments that make one by name."""
    kind = getattr(nn, name)
    args = [p.name for p in inspect.signature(kind).parameters.values()][: len(LAYERS.get(name, ()))]
    return kind, dict(zip(args, LAYERS.get(name, ()), strict=True))


@pytest.mark.parametrize("name", [n for n in nn.__all__ if inspect.isclass(getattr(nn, n)) and n not in ("Module", "ModuleList", "Sequential", "Identity")])
def test_layers_read_theirs(name):
    kind, given = made(name)
    kind(**given)
    for p in inspect.signature(kind).parameters.values():
        bads: list = []
        if isinstance(p.default, bool):
            bads = NO_FLAGS
        elif p.name not in REALS and type(given.get(p.name, p.default)) is int and not (p.name in LATER and ("Pool" in name or name == "Upsample")):
            bads = [bad for bad in NO_INTEGERS if bad is not None and type(bad) is not tuple and not (p.name == "padding" and type(bad) is str)]
        for bad in bads:
            with pytest.raises(TypeError, match=f"^{name}: {p.name} must be"):
                kind(**{**given, p.name: bad})


MAKERS = {
    "tensor": lambda **k: om.tensor([1.0], **k), "zeros": lambda **k: om.zeros(2, **k), "ones": lambda **k: om.ones(2, **k), "empty": lambda **k: om.empty(2, **k),
    "full": lambda **k: om.full((2,), 1.0, **k), "arange": lambda **k: om.arange(2.0, **k), "rand": lambda **k: om.rand(2, **k), "randn": lambda **k: om.randn(2, **k),
}


@pytest.mark.parametrize("name", MAKERS)
def test_makers_read_requires_grad(name):
    assert MAKERS[name](requires_grad=True).requires_grad
    for bad in NO_FLAGS:
        with pytest.raises(TypeError, match=f"^{name}: requires_grad must be True or False"):
            MAKERS[name](requires_grad=bad)


CALLS = {
    "backward: retain_graph": lambda bad: om.ones(1, requires_grad=True).sum().backward(retain_graph=bad),
    "grad: allow_unused": lambda bad: om.grad(om.ones(1, requires_grad=True).sum(), om.ones(1, requires_grad=True), allow_unused=bad),
    "requires_grad_: value": lambda bad: om.ones(1).requires_grad_(bad),
    "train: mode": lambda bad: nn.Linear(1, 1).train(bad),
    "load_state_dict: strict": lambda bad: nn.Linear(1, 1).load_state_dict({}, bad),
    "zero_grad: set_to_none": lambda bad: nn.Linear(1, 1).zero_grad(bad),
    "clip_grad_norm_: error_if_nonfinite": lambda bad: om.optim.clip_grad_norm_([], 1.0, error_if_nonfinite=bad),
    "DataLoader: shuffle": lambda bad: om.data.DataLoader([1], shuffle=bad),
    "DataLoader: drop_last": lambda bad: om.data.DataLoader([1], drop_last=bad),
    "SGD: nesterov": lambda bad: om.optim.SGD([om.ones(1)], nesterov=bad),
    "MultiheadAttention: average_attn_weights": lambda bad: nn.MultiheadAttention(2, 1)(*[om.ones(1, 1, 2)] * 3, average_attn_weights=bad),
}


@pytest.mark.parametrize("what", CALLS)
def test_other_flags(what):
    for bad in NO_FLAGS:
        with pytest.raises(TypeError, match=f"^{what} must be True or False"):
            CALLS[what](bad)


SIZES = {
    "zeros: a size": lambda bad: om.zeros(2, bad), "reshape: a size": lambda bad: om.ones(6).reshape(2, bad), "expand: a size": lambda bad: om.ones(1).expand(2, bad),
    "randperm: n": om.randperm, "randint: high": lambda bad: om.randint(0, bad, (2,)), "manual_seed: seed": lambda bad: om.Generator().manual_seed(bad),
    "set_pool_limit: nbytes": lambda bad: om.set_pool_limit("None" if bad is None else bad), "value_and_grad: argnums":
    lambda bad: om.value_and_grad(om.sum, [bad] if isinstance(bad, tuple) else bad), "DataLoader: batch_size": lambda bad: om.data.DataLoader([1], bad), "set_num_threads: n": om.set_num_threads, "StepLR: step_size":
    lambda bad: om.optim.lr_scheduler.StepLR(om.optim.SGD([om.ones(1)]), bad),
}  # fmt: skip


@pytest.mark.parametrize("what", SIZES)
def test_other_integers(what):
    for bad in NO_INTEGERS:
        with pytest.raises(TypeError, match=f"^{what} must be an integer"):
            SIZES[what](bad)


# ---- argument lists of compiled functions ----

COMPILED = [name for name, function in FUNCTIONS.items() if type(function).__name__ == "cython_function_or_method" and name in OPS and isinstance(OPS[name].kernel, Map)]


@pytest.mark.parametrize("name", COMPILED)
def test_a_wrong_call_names_the_operator(name):
    function, x = FUNCTIONS[name], om.ones(2)
    count = len(inspect.signature(function).parameters)
    for wrong in (lambda: function(*[x] * (count - 1)), lambda: function(*[x] * (count + 1)), lambda: function(*[x] * count, other=x)):
        with pytest.raises(TypeError, match=rf"^{name}: .*; write {name}\("):
            wrong()
    with pytest.raises(TypeError, match=rf"^{name}: "):  # an error from inside is left as it is
        function(*["a"] * count)


def test_many_are_compiled():
    assert len(COMPILED) > 15


@pytest.mark.parametrize("name", ["add_", "sub_", "mul_", "div_"])
def test_a_wrong_in_place_call_names_the_method(name):
    for args in ((), (1.0, 2.0)):
        with pytest.raises(TypeError, match=rf"^{name}: takes exactly 2 positional arguments .*; write {name}\(self, other\)"):
            getattr(om.ones(2), name)(*args)


def test_the_readers_have_no_more():
    assert {n for n in vars(arguments) if not n.startswith("_")} >= {"flag", "index_of", "integer", "integers"}
