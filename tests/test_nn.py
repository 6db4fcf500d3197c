"""Owns the tests of modules and layers: names, states, modes, hooks, first values; that torch's weights give torch's outputs."""

import copy
import gc
import math
import pickle
import re

import numpy as np
import pytest

import onemodel as om
from onemodel import nn


@pytest.fixture(autouse=True)
def seed():
    om.manual_seed(0)


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


class Two(nn.Module):
    """A module with everything: a parameter, a frozen one, a buffer, a child under two names."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 2)
        self.scale = nn.Parameter(om.ones(2))
        self.register_buffer("mean", om.zeros(2))
        self.none = None
        self.b = self.a

    def forward(self, x):
        return self.b(self.a(x)) * self.scale + self.mean


# -- parameters --


def test_a_parameter_is_a_leaf_on_the_same_memory():
    t = om.ones(3)
    p = nn.Parameter(t)
    assert isinstance(p, om.Tensor) and p.is_leaf and p.requires_grad and not t.requires_grad
    with om.no_grad():
        p.mul_(2)
    assert t.tolist() == [2, 2, 2] and t.version == p.version
    (p * 3).sum().backward()
    assert p.grad.tolist() == [3, 3, 3] and t.grad is None


def test_a_parameter_may_be_frozen_and_refuses_what_cannot_be_one():
    assert not nn.Parameter(om.ones(1), requires_grad=False).requires_grad
    with pytest.raises(TypeError, match="om.tensor"):
        nn.Parameter([1.0])
    with pytest.raises(TypeError, match="float32"):
        nn.Parameter(om.tensor([1]))
    with pytest.raises(TypeError):
        nn.Parameter()


def test_a_parameter_made_in_a_scope_outlives_it():
    with om.ActivationScope():
        x = om.ones(3) * 2
        p = nn.Parameter(x)
    assert p.tolist() == [2, 2, 2]
    with pytest.raises(om.ScopeClosedError):
        nn.Parameter(x)


def test_a_parameter_of_a_result_is_cut_from_its_graph():
    x = om.ones(2, requires_grad=True)
    p = nn.Parameter(x * 2)
    (p * 1).sum().backward()
    assert p.is_leaf and x.grad is None


def test_copies_of_parameters_are_parameters():
    p = nn.Parameter(om.arange(4, dtype=om.float32).reshape(2, 2).T, requires_grad=False)
    for q in (copy.deepcopy(p), pickle.loads(pickle.dumps(p)), copy.copy(p)):
        assert type(q) is nn.Parameter and not q.requires_grad and q.tolist() == p.tolist()
    model = mlp()
    model(om.ones(1, 6)).sum().backward()
    twin = copy.deepcopy(model)
    assert [q.grad.tolist() for q in twin.parameters()] == [q.grad.tolist() for q in model.parameters()]
    with om.no_grad():
        twin[1].weight.zero_()
    assert model[1].weight.sum().item() != 0
    for tied in (copy.deepcopy(Two()), pickle.loads(pickle.dumps(Two()))):
        assert tied.a is tied.b and list(tied.state_dict()) == list(Two().state_dict())


# -- what a module holds --


def test_names_and_order_are_the_attributes():
    assert [name for name, _ in mlp().named_parameters()] == ["1.weight", "1.bias", "3.weight", "3.bias"]
    assert list(mlp().state_dict()) == ["1.weight", "1.bias", "3.weight", "3.bias"]
    two = Two()
    assert [name for name, _ in two.named_parameters()] == ["scale", "a.weight", "a.bias"]
    assert list(two.state_dict()) == ["scale", "mean", "a.weight", "a.bias", "b.weight", "b.bias"]
    assert [name for name, _ in two.named_modules()] == ["", "a"]
    assert [name for name, _ in two.named_children()] == ["a"]
    assert [b.shape for b in two.buffers()] == [(2,)]
    assert [type(m) for m in mlp().modules()] == [nn.Sequential, nn.Flatten, nn.Linear, nn.ReLU, nn.Linear]


def test_a_parameter_replaced_by_none_is_gone():
    layer = nn.Linear(2, 2)
    layer.bias = None
    assert list(layer.state_dict()) == ["weight"]
    layer.bias = nn.Parameter(om.zeros(2))
    assert list(layer.state_dict()) == ["weight", "bias"]


@pytest.mark.parametrize(("name", "value", "error", "message"), [
    ("weight", om.ones(2, 2), TypeError, "'weight' is a Parameter.*copy_"),
    ("weight", 3, TypeError, "'weight' is a Parameter"),
    ("child", 3, TypeError, "'child' is a Module"),
    ("mean", 3, TypeError, "'mean' is a buffer"),
    ("mean", nn.Parameter(om.ones(2)), TypeError, "'mean' is a buffer"),
    ("parameters", nn.Parameter(om.ones(2)), AttributeError, "is a method"),
    ("train", nn.Identity(), AttributeError, "is a method"),
    ("training", nn.Parameter(om.ones(2)), AttributeError, "property"),
    ("a.b", nn.Identity(), ValueError, "dot"),
    ("", nn.Identity(), ValueError, "empty"),
])
def test_an_attribute_that_would_hide_another_is_refused(name, value, error, message):
    layer = nn.Linear(2, 2)
    layer.child = nn.Identity()
    layer.register_buffer("mean", om.zeros(2))
    with pytest.raises(error, match=message):
        setattr(layer, name, value)
    assert list(layer.state_dict()) == ["weight", "bias", "mean"]


def test_attributes_before_init_are_refused():
    class Late(nn.Module):
        def __init__(self):
            self.layer = nn.Linear(1, 1)

    with pytest.raises(AttributeError, match=r"super\(\).__init__"):
        Late()


def test_a_buffer_does_not_take_a_name_that_is_used():
    layer = nn.Linear(2, 2)
    with pytest.raises(AttributeError, match="exists"):
        layer.register_buffer("weight", om.ones(1))
    with pytest.raises(TypeError, match="buffer"):
        layer.register_buffer("x", 3)
    assert list(layer.state_dict()) == ["weight", "bias"]
    layer.x = 3
    del layer.x
    layer.register_buffer("x", None)
    assert list(layer.state_dict()) == ["weight", "bias"]
    layer.x = om.ones(1)
    assert list(layer.state_dict()) == ["weight", "bias", "x"]
    del layer.x
    layer.x = 3


def test_a_module_inside_itself_is_an_error_not_a_hang():
    layer = nn.Identity()
    layer.me = layer
    with pytest.raises(RuntimeError, match="contains itself"):
        list(layer.parameters())


def test_a_model_dies_without_the_garbage_collector():
    gc.collect()
    gc.disable()
    try:
        before = om.pool_stats().outstanding_blocks
        model = mlp()
        model.register_forward_hook(lambda *a: None)
        model(om.ones(2, 6)).sum().backward()
        del model
        assert om.pool_stats().outstanding_blocks == before
    finally:
        gc.enable()


# -- state --


def test_state_shares_memory_and_loads_by_value():
    a, b = mlp(), mlp()
    assert a.state_dict()["1.weight"].tolist() != b.state_dict()["1.weight"].tolist()
    versions = [p.version for p in b.parameters()]
    assert b.load_state_dict(a.state_dict()) == ([], [])
    assert [t.sha256() for t in a.state_dict().values()] == [t.sha256() for t in b.state_dict().values()]
    assert [p.version for p in b.parameters()] == [v + 1 for v in versions]
    a.state_dict()["1.bias"].fill_(9)
    assert a[1].bias.tolist() == [9] * 5 and b[1].bias.tolist() != [9] * 5


def test_a_saved_graph_notices_a_loaded_state():
    layer = nn.Linear(2, 2)
    y = layer(om.ones(1, 2, requires_grad=True))
    layer.load_state_dict(layer.state_dict() | {"weight": om.zeros(2, 2)})
    with pytest.raises(om.TensorVersionError):
        y.sum().backward()


@pytest.mark.parametrize(("change", "message"), [
    (lambda s: s.pop("1.bias"), "missing: 1.bias$"),
    (lambda s: s.update(other=om.ones(1)), "unexpected: other$"),
    (lambda s: s.update({"3.weight": om.ones(5, 3)}), r"3.weight: expected shape \(3, 5\), got \(5, 3\)"),
    (lambda s: s.update({"3.bias": om.ones(3, dtype=om.int64)}), "3.bias: expected float32, got int64"),
    (lambda s: (s.pop("1.bias"), s.update(z=om.ones(1))), "(?s)missing: 1.bias.*unexpected: z"),
])
def test_a_wrong_state_is_named_and_changes_nothing(change, message):
    model, state = mlp(), {name: om.zeros_like(t) for name, t in mlp().state_dict().items()}
    before = [t.sha256() for t in model.state_dict().values()]
    change(state)
    with pytest.raises(RuntimeError, match=message):
        model.load_state_dict(state)
    assert [t.sha256() for t in model.state_dict().values()] == before


def test_not_strict_says_what_did_not_fit_but_shapes_must():
    model, state = mlp(), {"1.weight": om.zeros(5, 6), "x": om.ones(1)}
    keys = model.load_state_dict(state, strict=False)
    assert keys.missing_keys == ["1.bias", "3.weight", "3.bias"] and keys.unexpected_keys == ["x"]
    assert model[1].weight.sum().item() == 0
    with pytest.raises(RuntimeError, match="shape"):
        model.load_state_dict({"1.weight": om.zeros(1, 6)}, strict=False)
    with pytest.raises(TypeError, match="1.weight: expected a Tensor"):
        model.load_state_dict({"1.weight": np.zeros((5, 6))}, strict=False)
    with pytest.raises(TypeError, match="dict"):
        model.load_state_dict([om.ones(1)])


def test_a_state_goes_through_a_file(tmp_path):
    a, b = mlp(), mlp()
    om.save(a.state_dict(), tmp_path / "f")
    b.load_state_dict(om.load(tmp_path / "f"))
    x = om.rand(4, 6)
    assert a(x).sha256() == b(x).sha256()


# -- modes and hooks --


def test_train_eval_apply_freeze():
    model = mlp()
    assert model.eval() is model and not any(m.training for m in model.modules())
    assert model.train() is model and all(m.training for m in model.modules())
    with pytest.raises(TypeError, match="True or False"):
        model.train("eval")
    seen = []
    assert model.apply(lambda m: seen.append(type(m).__name__)) is model
    assert seen == ["Flatten", "Linear", "ReLU", "Linear", "Sequential"]
    model.requires_grad_(False)
    assert not model(om.ones(1, 6)).requires_grad
    assert model.requires_grad_() is model and model(om.ones(1, 6)).requires_grad


def test_zero_grad_frees_or_zeroes():
    model = mlp()
    model.zero_grad(set_to_none=False)
    model(om.ones(1, 6)).sum().backward()
    model.zero_grad(set_to_none=False)
    assert all(p.grad.tolist() == om.zeros_like(p).tolist() for p in model.parameters())
    model.zero_grad()
    assert all(p.grad is None for p in model.parameters())


def test_hooks_see_and_replace():
    layer, x = nn.Identity(), om.ones(2)
    seen = []
    before = layer.register_forward_pre_hook(lambda m, args: seen.append(args))
    after = layer.register_forward_hook(lambda m, args, y: y * 3)
    double = layer.register_forward_pre_hook(lambda m, args: args[0] * 2)
    assert layer(x).tolist() == [6, 6]
    assert seen == [(x,)]
    double.remove()
    assert layer(x).tolist() == [3, 3]
    before.remove(), after.remove(), after.remove()
    assert layer(x) is x and len(seen) == 2


def test_a_hook_may_remove_itself_while_it_runs():
    layer = nn.Identity()
    handles = [layer.register_forward_hook(lambda *a: handles[0].remove()), layer.register_forward_hook(lambda m, args, y: y * 2)]
    assert layer(om.ones(1)).tolist() == [2]
    assert layer(om.ones(1)).tolist() == [2]


def test_forward_must_be_defined():
    with pytest.raises(NotImplementedError, match="Empty"):
        type("Empty", (nn.Module,), {})()(1)


# -- containers --


def test_sequential():
    model = mlp()
    assert len(model) == 4 and isinstance(model[-1], nn.Linear) and [type(m) for m in model[1:3]] == [nn.Linear, nn.ReLU]
    assert model[1:3][0] is model[1] and list(model[1:3].state_dict()) == ["1.weight", "1.bias"]
    x = om.rand(2, 3, 2)
    assert model(x).sha256() == model[3](model[2](model[1](x.reshape(2, 6)))).sha256()
    model[2] = nn.Tanh()
    assert [type(m) for m in model] == [nn.Flatten, nn.Linear, nn.Tanh, nn.Linear]
    shared = nn.Linear(2, 2)
    twice = nn.Sequential(shared, shared)
    assert len(twice) == 2 and twice(om.ones(1, 2)).tolist() == shared(shared(om.ones(1, 2))).tolist()
    assert len(list(twice.parameters())) == 2
    assert nn.Sequential()(x) is x
    with pytest.raises(TypeError, match="expected a Module"):
        nn.Sequential(om.relu)
    with pytest.raises(IndexError):
        model[4]


def test_sequential_with_names():
    from collections import OrderedDict

    model = nn.Sequential(OrderedDict(first=nn.Linear(2, 2), act=nn.ReLU()))
    assert list(model.state_dict()) == ["first.weight", "first.bias"] and isinstance(model.act, nn.ReLU)


def test_module_list():
    layers = nn.ModuleList(nn.Linear(i, i + 1) for i in range(1, 3)).append(nn.Identity())
    assert len(layers) == 3 and layers[1].in_features == 2 and list(layers.state_dict())[-1] == "1.bias"
    assert [type(m) for m in layers[1:]] == [nn.Linear, nn.Identity]
    with pytest.raises(NotImplementedError):
        layers(om.ones(1))


def test_repr_shows_the_tree():
    model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ModuleList([nn.GELU("tanh"), nn.Softmax(-1)]))
    assert repr(model) == ("Sequential(\n  (0): Linear(in_features=2, out_features=3, bias=False)\n  (1): ModuleList(\n"
                           "    (0): GELU(approximate='tanh')\n    (1): Softmax(dim=-1)\n  )\n)")
    assert repr(nn.ReLU()) == "ReLU()"
    assert re.match(r"Parameter containing:\ntensor\(\[1.*requires_grad=True\)", repr(nn.Parameter(om.ones(1))))


# -- layers --


def test_linear_starts_uniform_within_one_over_root_in():
    layer = nn.Linear(400, 300)
    weight = layer.weight.detach().numpy()
    bound = 1 / math.sqrt(400)
    assert weight.shape == (300, 400) and layer.bias.shape == (300,)
    assert -bound <= weight.min() < -0.999 * bound and 0.999 * bound < weight.max() <= bound
    assert abs(weight.mean()) < 0.01 * bound and abs(weight.std() - bound / math.sqrt(3)) < 0.01 * bound
    assert np.abs(layer.bias.detach().numpy()).max() <= bound
    om.manual_seed(0)
    assert nn.Linear(400, 300).weight.sha256() == layer.weight.sha256()


def test_linear_options_and_errors():
    assert nn.Linear(0, 2)(om.ones(3, 0)).tolist() == [[0, 0]] * 3
    assert nn.Linear(2, 0)(om.ones(3, 2)).shape == (3, 0)
    with pytest.raises(TypeError, match="in_features must be an int"):
        nn.Linear(2.0, 3)
    with pytest.raises(ValueError, match="out_features must be from 0"):
        nn.Linear(2, -3)
    with pytest.raises(ValueError, match="linear"):
        nn.Linear(2, 3)(om.ones(1, 3))


LAYERS = {
    "Linear": ((5, 3), (4, 5)), "Identity": ((), (4, 5)), "ReLU": ((), (4, 5)), "Tanh": ((), (4, 5)), "Sigmoid": ((), (4, 5)), "GELU": ((), (4, 5)),
    "Softmax": ((1,), (4, 5)), "LogSoftmax": ((-1,), (4, 5)), "Flatten": ((), (4, 5, 2)),
    "SiLU": ((), (4, 5)), "Softplus": ((2.0, 3.0), (4, 5)), "LeakyReLU": ((0.2,), (4, 5)), "ELU": ((1.5,), (4, 5)), "Dropout": ((0.0,), (4, 5)),
    "Conv1d": ((4, 6, 3), (2, 4, 9)), "Conv2d": ((4, 6, 3, 2, 1), (2, 4, 9, 8)), "ConvTranspose2d": ((4, 6, 3, 2, 1, 1), (2, 4, 5, 6)),
    "MaxPool1d": ((2,), (2, 3, 9)), "MaxPool2d": ((3, 2, 1), (2, 3, 9, 8)), "AvgPool1d": ((2,), (2, 3, 9)), "AvgPool2d": ((3, 2, 1), (2, 3, 9, 8)),
    "AdaptiveAvgPool1d": ((3,), (2, 3, 8)), "AdaptiveAvgPool2d": ((3,), (2, 3, 9, 8)), "AdaptiveMaxPool2d": ((3,), (2, 3, 9, 8)), "Upsample": ((None, 2), (2, 3, 4, 5)),
    "ZeroPad2d": (((1, 2, 0, 3),), (2, 3, 4, 5)),
}
LOSSES = {"CrossEntropyLoss", "MSELoss", "NLLLoss", "L1Loss", "HuberLoss", "SmoothL1Loss", "BCEWithLogitsLoss"}  # compared in files of their own
# in test_oracle_norm.py, test_oracle_gather.py and test_nn_sequences.py; the last one has no equal in torch
ELSEWHERE = {"BatchNorm1d", "BatchNorm2d", "GroupNorm", "LayerNorm", "RMSNorm", "Embedding", "LSTM", "GRU", "MultiheadAttention",
             "TransformerEncoder", "TransformerEncoderLayer", "CTCLoss", "GlobalAvgPool2d"}
PARTS = {"Module", "Parameter", "Sequential", "ModuleList"}


def test_every_public_layer_is_compared_with_torch():
    assert set(nn.__all__) - {"functional"} == set(LAYERS) | LOSSES | ELSEWHERE | PARTS


def close(ours, theirs):
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=2e-6, atol=2e-6)


@pytest.mark.oracle
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_torchs(name):
    import torch

    arguments, shape = LAYERS[name]
    ours, theirs = getattr(nn, name)(*arguments), getattr(torch.nn, name)(*arguments)
    ours.load_state_dict({k: om.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    close(ours(om.tensor(x)), theirs(torch.tensor(x)))


@pytest.mark.oracle
def test_gelu_tanh_is_torchs():
    import torch

    x = np.linspace(-4, 4, 50, dtype=np.float32)
    close(nn.GELU("tanh")(om.tensor(x)), torch.nn.GELU("tanh")(torch.tensor(x)))
    with pytest.raises(ValueError, match="approximate"):
        nn.GELU("erf")


@pytest.mark.oracle
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_a_loss_is_torchs(name, reduction):
    import torch

    random = np.random.default_rng(0)
    x, y = random.standard_normal((2, 6, 5)).astype(np.float32)
    options = {"reduction": reduction}
    weight = random.random(5).astype(np.float32) + 0.5
    target = y
    if name in ("CrossEntropyLoss", "NLLLoss"):  # class targets
        target = np.array([0, 4, 2, -100, 1, 1])
    ours, theirs = getattr(nn, name)(**options), getattr(torch.nn, name)(**options)
    close(ours(om.tensor(x), om.tensor(target)), theirs(torch.tensor(x), torch.tensor(target)))
    if target is not y:
        ours, theirs = getattr(nn, name)(om.tensor(weight), 1, **options), getattr(torch.nn, name)(torch.tensor(weight), ignore_index=1, **options)
        target = np.array([0, 4, 2, 3, 1, 1])
        close(ours(om.tensor(x), om.tensor(target)), theirs(torch.tensor(x), torch.tensor(target)))
        assert list(ours.state_dict()) == list(theirs.state_dict()) == ["weight"]


def test_a_loss_refuses_an_unknown_reduction():
    for name in LOSSES:
        with pytest.raises(ValueError, match="reduction"):
            getattr(nn, name)(reduction="average")


@pytest.mark.oracle
def test_torchs_state_loads_from_its_file_and_gives_torchs_outputs(tmp_path):
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    theirs = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 50), torch.nn.Tanh(), torch.nn.Linear(50, 3), torch.nn.LogSoftmax(1))
    save_file(theirs.state_dict(), tmp_path / "f")
    ours = nn.Sequential(nn.Flatten(), nn.Linear(6, 50), nn.Tanh(), nn.Linear(50, 3), nn.LogSoftmax(1))
    ours.load_state_dict(om.load(tmp_path / "f"))
    x = np.random.default_rng(0).standard_normal((7, 2, 3)).astype(np.float32)
    for mode in ("fast", "exact"):
        with om.arithmetic(mode):
            close(ours(om.tensor(x)), theirs(torch.tensor(x)))


def test_a_state_that_cannot_be_copied_changes_nothing():
    """Not only what does not fit: memory that is read-only, overlaps itself, or went back to its scope is seen before the first copy, too."""
    with om.ActivationScope():
        gone = om.ones(3) * 2.0
    fixed = np.zeros(3, np.float32)
    fixed.setflags(write=False)
    for last, state, error, words in ((om.zeros(3), gone, om.ScopeClosedError, "b"), (om.from_numpy(fixed), om.ones(3), RuntimeError, "b: the target is read-only"),
                                      (om.zeros(1).expand(3), om.ones(3), RuntimeError, "b: elements of the target overlap")):
        module = nn.Module()
        module.a, module.b = nn.Parameter(om.zeros(3)), nn.Parameter(last)
        with pytest.raises(error, match=f"^load_state_dict: {words}"):
            module.load_state_dict({"a": om.ones(3), "b": state})
        assert module.a.tolist() == [0.0] * 3 and module.a.version == 0
