"""Owns the tests of optimisers: the formula, torch's numbers, state, memory and bits; the kernel's own tests are elsewhere."""

import copy
import gc
import itertools

import numpy as np
import pytest

import onemodel as om
from onemodel import optim
from onemodel.optim import SGD, Optimizer


def leaf(*values):
    return om.tensor(values, dtype=om.float32, requires_grad=True)


def stepped(optimizer, p, *gradients):
    for g in gradients:
        p.grad = om.full(p.shape, g, dtype=om.float32)
        optimizer.step()
    return p.tolist()


# -- the formula, by hand with numbers that float32 holds --


@pytest.mark.parametrize(("options", "expected"), [
    ({}, 8 - 0.5 * 2 - 0.5 * 4),
    ({"maximize": True}, 8 + 0.5 * 2 + 0.5 * 4),
    ({"weight_decay": 0.5}, 5 - 0.5 * (4 + 0.5 * 5)),                 # 8 - 0.5 (2 + 4) = 5
    ({"momentum": 0.5}, 8 - 0.5 * 2 - 0.5 * (0.5 * 2 + 4)),
    ({"momentum": 0.5, "dampening": 0.25}, 8 - 0.5 * 2 - 0.5 * (0.5 * 2 + 0.75 * 4)),
    ({"momentum": 0.5, "nesterov": True}, 8 - 0.5 * (2 + 0.5 * 2) - 0.5 * (4 + 0.5 * (0.5 * 2 + 4))),
    ({"dampening": 0.25}, 8 - 0.5 * 2 - 0.5 * 4),                     # without momentum it does nothing
])
def test_two_steps_by_hand(options, expected):
    p = leaf(8)
    assert stepped(SGD([p], lr=0.5, **options), p, 2, 4) == [expected]


def test_defaults_are_torchs():
    assert SGD([leaf(1)]).defaults == {"lr": 1e-3, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False}


def test_groups_have_their_own_options():
    a, b, c = leaf(1), leaf(1), leaf(1)
    optimizer = SGD([{"params": [a, b], "lr": 0.5}, {"params": c}], lr=0.25)
    for p in (a, b, c):
        p.grad = om.ones(1)
    optimizer.step()
    assert [a.item(), b.item(), c.item()] == [0.5, 0.5, 0.75]
    optimizer.param_groups[0]["lr"] = 0.125
    optimizer.step()
    assert [a.item(), c.item()] == [0.375, 0.5]


def test_a_parameter_without_gradient_is_left_alone():
    a, b = leaf(1), leaf(1)
    optimizer = SGD([a, b], lr=0.5, momentum=0.5, weight_decay=0.5)
    a.grad = om.ones(1)
    version = b.version
    optimizer.step()
    assert b.item() == 1 and b.version == version and set(optimizer.state) == {a}
    stepped(optimizer, b, 1)  # a has momentum by now, b starts
    assert optimizer.state[b]["momentum_buffer"].item() == 1.5


def test_more_parameters_than_one_kernel_call_takes():
    params = [leaf(float(i)) for i in range(150)]
    optimizer = SGD(params, lr=0.5, momentum=0.5)
    for _ in range(2):
        for p in params[::2]:
            p.grad = om.ones(1)
        optimizer.step()
    assert [p.item() for p in params] == [i - 0.5 - 0.75 if i % 2 == 0 else i for i in range(150)]


def test_shapes_without_elements_or_dimensions():
    a, b = om.zeros(0, 3, requires_grad=True), om.tensor(2.0, requires_grad=True)
    a.grad, b.grad = om.zeros(0, 3), om.tensor(1.0)
    SGD([a, b], lr=0.5, momentum=0.9).step()
    assert b.item() == 1.5 and a.shape == (0, 3)


def test_a_gradient_in_the_parameters_own_memory():
    p = leaf(1, 2)
    p.grad = p.detach()
    SGD([p], lr=0.5).step()
    assert p.tolist() == [0.5, 1.0]


def test_a_step_raises_the_version_and_a_graph_notices():
    p = leaf(1.0)
    y = (p * p).sum()
    p.grad = om.ones(1)
    version = p.version
    SGD([p], lr=0.5).step()
    assert p.version == version + 1
    with pytest.raises(om.TensorVersionError):
        y.backward()


def test_zero_grad_frees_or_zeroes():
    p = leaf(1.0)
    optimizer = SGD([p])
    p.grad = g = om.ones(1)
    optimizer.zero_grad(set_to_none=False)
    assert p.grad is g and g.item() == 0
    optimizer.zero_grad()
    assert p.grad is None


# -- torch --


OPTIONS = [dict(zip(("momentum", "dampening", "weight_decay", "nesterov", "maximize"), values, strict=True))
           for values in itertools.product((0.0, 0.9), (0.0, 0.3), (0.0, 1e-2), (False, True), (False, True))
           if not (values[3] and (values[0] == 0 or values[1]))]


@pytest.mark.oracle
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(str(v) for v in o.values()))
def test_a_hundred_steps_are_torchs(options):
    import torch

    random = np.random.default_rng(0)
    start = [random.standard_normal(shape).astype(np.float32) for shape in [(7, 5), (33,), ()]]
    goal = [random.standard_normal(a.shape).astype(np.float32) for a in start]
    ours = [om.tensor(a, requires_grad=True) for a in start]
    theirs = [torch.tensor(a, requires_grad=True) for a in start]
    sign = -1 if options["maximize"] else 1
    for mode in ("exact", "fast"):
        with om.arithmetic(mode):
            sides = [(ours, om, SGD(ours, lr=0.05, **options)), (theirs, torch, torch.optim.SGD(theirs, lr=0.05, **options))]
            for params, library, optimizer in sides:
                for _ in range(100):
                    optimizer.zero_grad()
                    for p, g in zip(params, goal, strict=True):
                        difference = p - library.tensor(g)
                        (sign * (difference * difference).sum()).backward()
                    optimizer.step()
        for p, q in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=1e-6, atol=1e-6)


# -- bits and memory --


def trained(threads=1, steps=5):
    om.manual_seed(3)
    om.set_num_threads(threads)
    model = om.nn.Sequential(om.nn.Linear(20, 33), om.nn.Tanh(), om.nn.Linear(33, 5))
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3, nesterov=True)
    x, y = om.rand(16, 20), om.rand(16, 5)
    for _ in range(steps):
        with om.ActivationScope():
            difference = model(x) - y
            (difference * difference).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return " ".join(t.sha256() for t in model.state_dict().values()), optimizer


def test_exact_steps_have_one_digest():
    from onemodel._kernels import table

    table.set_smallest_piece(1)
    with om.arithmetic("exact"):
        found = set()
        for isa in om.available_isas():
            with om.use_isa(isa):
                found |= {trained(threads)[0] for threads in (1, 2, 3)}
    assert len(found) == 1


def test_fast_steps_have_one_digest_at_every_thread_count():
    from onemodel._kernels import table

    table.set_smallest_piece(1)
    with om.arithmetic("fast"):
        for isa in om.available_isas():
            with om.use_isa(isa):
                assert len({trained(threads)[0] for threads in (1, 2, 3)}) == 1, isa


def test_a_nan_is_the_one_nan_in_exact_arithmetic():
    p = om.tensor(np.array([0xFF80_0001, 0x7FC0_1234], np.uint32).view(np.float32), requires_grad=True)
    with om.arithmetic("exact"):
        stepped(SGD([p], lr=0.5, momentum=0.5), p, 1, 1)
    assert p.detach().numpy().view(np.uint32).tolist() == [0x7FC0_0000] * 2


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_step_takes_no_memory_after_the_second(set_to_none):
    model = om.nn.Sequential(om.nn.Linear(300, 400), om.nn.ReLU(), om.nn.Linear(400, 10))
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = om.rand(50, 300)
    gc.disable()
    try:
        for step in range(8):
            if step == 2:
                before = om.pool_stats()
            with om.ActivationScope():
                model(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none)
        change = om.pool_stats() - before
    finally:
        gc.enable()
    assert change.requests > 0 and change.native_allocations == 0 and change.outstanding_bytes == 0


def test_momentum_made_in_a_scope_outlives_it():
    p = leaf(1.0)
    optimizer = SGD([p], lr=0.5, momentum=0.5)
    with om.ActivationScope():
        stepped(optimizer, p, 1)
    assert stepped(optimizer, p, 1) == [1 - 0.5 - 0.75]


# -- state --


def test_a_saved_optimizer_goes_on_to_the_bit(tmp_path):
    def world():
        om.manual_seed(1)
        model = om.nn.Linear(4, 3)
        return model, SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)

    def run(model, optimizer, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            model(om.ones(2, 4)).square().sum().backward()
            optimizer.step()

    model, optimizer = world()
    run(model, optimizer, 3)
    om.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "f")
    run(model, optimizer, 3)

    again, second = world()
    saved = om.load(tmp_path / "f")
    again.load_state_dict(saved["model"])
    second.load_state_dict(saved["optimizer"])
    second.load_state_dict(second.state_dict())  # what it has, copied over itself
    run(again, second, 3)
    assert again.weight.sha256() == model.weight.sha256() and again.bias.sha256() == model.bias.sha256()
    assert second.param_groups[0]["lr"] == 0.1 and second.param_groups[0]["nesterov"] is True


def test_a_loaded_state_is_a_copy():
    p, q = leaf(1.0), leaf(1.0)
    a, b = SGD([p], lr=0.5, momentum=0.5), SGD([q], lr=0.5, momentum=0.5)
    stepped(a, p, 1)
    b.load_state_dict(a.state_dict())
    stepped(a, p, 1)
    assert b.state[q]["momentum_buffer"].item() == 1


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing():
    p = leaf(1.0, 2.0)
    optimizer = SGD([p], lr=0.5, momentum=0.5)
    stepped(optimizer, p, 1)
    good = optimizer.state_dict()
    before = copy.deepcopy(good["state"])

    def bad(**change):
        state = {"state": {0: {"momentum_buffer": om.zeros(2)}}, "param_groups": [dict(good["param_groups"][0])]}
        state["param_groups"][0] |= change.pop("group", {})
        return state | change

    for state, message in [
        (bad(state={0: {"momentum_buffer": om.zeros(3)}}), r"momentum_buffer of parameter 0: expected shape \(2,\), got \(3,\)"),
        (bad(param_groups=[]), r"expected groups of \[1\] parameters, got \[\]"),
        (bad(group={"params": [0, 1]}), r"expected groups of \[1\] parameters, got \[2\]"),
        (bad(group={"lr": -1.0}), "lr must be finite and not negative"),
        (bad(group={"betas": 1}), "expected the options"),
        ({}, "expected 'state' and 'param_groups'"),
        (bad(state=None), "'state'"), (bad(state=[]), "'state'"), (bad(state={0: None}), "'state'"),
        (bad(param_groups=None), "'param_groups'"), (bad(param_groups=[{}]), "'param_groups'"), (bad(param_groups=[5]), "'param_groups'"),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            optimizer.load_state_dict(state)
        assert optimizer.param_groups[0]["lr"] == 0.5
        assert optimizer.state[p]["momentum_buffer"].tolist() == before[0]["momentum_buffer"].tolist()


def test_a_wrong_momentum_is_refused_before_anything_moves():
    a, b = leaf(1.0), leaf(1.0)
    optimizer = SGD([a, b], lr=0.5, momentum=0.5)
    a.grad, b.grad = om.ones(1), om.ones(1)
    for wrong in (3.0, om.zeros(2), om.zeros(1, dtype=om.int64)):
        optimizer.state[b] = {"momentum_buffer": wrong}
        with pytest.raises(ValueError, match="momentum_buffer"):
            optimizer.step()
        assert a.item() == 1 and a not in optimizer.state


# -- wrong calls --


@pytest.mark.parametrize(("options", "error", "message"), [
    ({"lr": -1}, ValueError, "lr must be finite and not negative"),
    ({"lr": float("nan")}, ValueError, "lr must be finite"),
    ({"lr": "1"}, TypeError, "lr must be a number"),
    ({"momentum": -0.5}, ValueError, "momentum"),
    ({"weight_decay": -0.5}, ValueError, "weight_decay"),
    ({"nesterov": True}, ValueError, "nesterov needs a momentum"),
    ({"nesterov": "no"}, TypeError, "nesterov must be True or False"),
    ({"maximize": None}, TypeError, "maximize must be True or False"),
    ({"nesterov": True, "momentum": 0.9, "dampening": 0.1}, ValueError, "no dampening"),
])
def test_wrong_options(options, error, message):
    with pytest.raises(error, match=message):
        SGD([leaf(1.0)], **options)


def test_wrong_parameters():
    p = leaf(1.0)
    shared = om.ones(6)
    read_only = np.ones(2, np.float32)
    read_only.flags.writeable = False
    for params, error, message in [
        ([], ValueError, "no parameters"),
        (p, TypeError, "put it in a list"),
        ({p}, TypeError, "put it in a list"),
        ([1.0], TypeError, "expected tensors"),
        ([p, p], ValueError, "twice"),
        ([p * 2], ValueError, "result of an operator"),
        ([om.ones(2, 3).T.requires_grad_()], ValueError, "contiguous"),
        ([shared[:4].requires_grad_(), shared[3:].requires_grad_()], ValueError, "share memory"),
        ([{"lr": 1}], TypeError, "'params'"),
        ([{"params": [p], "beta": 1}], ValueError, "unknown options beta"),
        ([{"params": [p]}, {"params": [p]}], ValueError, "twice"),
        ([{"params": [p], "lr": -1.0}], ValueError, "lr must be"),
    ]:
        with pytest.raises(error, match=message):
            SGD(params)
    assert len(SGD([shared[:3].requires_grad_(), shared[3:].requires_grad_()]).param_groups[0]["params"]) == 2
    p = om.from_numpy(read_only).requires_grad_()
    p.grad = om.ones(2)
    with pytest.raises(RuntimeError, match="read-only"):
        SGD([p]).step()


def test_a_parameter_whose_scope_closed_is_refused():
    with om.ActivationScope():
        p = (om.ones(2) * 2).detach().requires_grad_()
        p.grad = om.ones(2)
    with pytest.raises(om.ScopeClosedError):
        SGD([p])


def test_the_base_has_no_step():
    with pytest.raises(NotImplementedError, match="update"):
        Optimizer([leaf(1.0)], {}).step()


def test_step_calls_a_closure_with_recording_on():
    p = leaf(1.0)
    optimizer = SGD([p], lr=0.5)

    def closure():
        optimizer.zero_grad()
        loss = (p * 2.0).sum()
        loss.backward()
        return loss

    with om.no_grad():
        loss = optimizer.step(closure)
    assert loss.item() == 2.0 and p.detach().item() == 0.0


def test_repr_names_the_options():
    assert "2 parameters: lr=0.5, momentum=0.0" in repr(SGD([leaf(1.0), leaf(1.0)], lr=0.5))


KINDS = {
    "SGD": lambda groups: optim.SGD(groups, lr=0.1, momentum=0.9), "Adam": lambda groups: optim.Adam(groups, amsgrad=True), "AdamW": optim.AdamW,
    "RMSprop": lambda groups: optim.RMSprop(groups, momentum=0.5, centered=True),
}  # fmt: skip


@pytest.mark.parametrize("stepped", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_one_group_refuses_moves_no_group(kind, stepped):
    first, second = om.ones(3, requires_grad=True), om.ones(2, requires_grad=True)
    optimizer = KINDS[kind]([{"params": [first]}, {"params": [second]}])
    first.grad, second.grad = om.ones(3), om.ones(2)
    if stepped:
        optimizer.step()

    def look():
        return [p.tolist() for p in (first, second)], [p.version for p in (first, second)], {k: repr(v) for k, v in optimizer.state_dict()["state"].items()}

    before = look()
    with om.ActivationScope():
        second.grad = om.ones(2) * 2.0  # its memory goes back with the scope
    with pytest.raises(om.ScopeClosedError):
        optimizer.step()
    assert look() == before
    second.grad = om.ones(2)
    name = "momentum_buffer" if kind in ("SGD", "RMSprop") else "exp_avg"
    kept = dict(optimizer.state.get(second, {}))
    optimizer.state[second] = {**kept, name: om.ones(5)}
    before = look()
    with pytest.raises(ValueError, match=f"{kind}: {name} of a parameter"):
        optimizer.step()
    assert look() == before
    optimizer.state[second] = kept
    optimizer.step()
    assert look()[0] != before[0]


TORCHS = {"foreach": None, "differentiable": False, "fused": None}
FOREIGN = {
    "SGD": TORCHS, "Adam": {**TORCHS, "capturable": False, "decoupled_weight_decay": False}, "AdamW": {**TORCHS, "capturable": False, "decoupled_weight_decay": True},
    "RMSprop": {"foreach": None, "differentiable": False, "capturable": False},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_options_that_only_torch_has(kind):
    p = leaf(1.0, 2.0)
    optimizer = KINDS[kind]([p])
    state = optimizer.state_dict()
    own = dict(state["param_groups"][0])

    def load(**more):
        optimizer.load_state_dict({"state": {}, "param_groups": [{**own, **more}]})
        assert optimizer.state_dict() == state

    load(**FOREIGN[kind])
    load(**FOREIGN[kind], param_names=["weight"])
    load(**{**FOREIGN[kind], "foreach": True})  # chooses how torch computes, not what
    for name, value in {"differentiable": True, "foreach": "yes", **({"decoupled_weight_decay": kind == "Adam"} if "Adam" in kind else {})}.items():
        with pytest.raises(ValueError, match=rf"{kind}.load_state_dict: {name}={value!r} is torch's and has no meaning here; load a state with {name}="):
            load(**{**FOREIGN[kind], name: value})
    with pytest.raises(ValueError, match="expected the options .*, got .*, other"):
        load(other=1)
    with pytest.raises(TypeError, match=f"{kind}.load_state_dict: momentum_buffer of parameter 0: expected a Tensor or a number, got ndarray; make tensors with om.tensor"):
        optimizer.load_state_dict({"state": {0: {"momentum_buffer": np.ones(2)}}, "param_groups": [own]})
    load(initial_lr=0.25)
    assert optimizer.initial_lrs == [0.25] and om.optim.lr_scheduler.StepLR(optimizer, 1).base_lrs == [0.25]
    with pytest.raises(TypeError, match="initial_lr must be a number"):
        load(initial_lr="0.25")


@pytest.mark.oracle
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_torchs_optimizer_goes_on_as_torchs(kind):
    import torch

    options = {"SGD": {"lr": 0.1, "momentum": 0.9}, "Adam": {"amsgrad": True}, "AdamW": {}, "RMSprop": {"momentum": 0.5, "centered": True}}[kind]
    theirs = [torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0])), torch.nn.Parameter(torch.tensor(0.5))]
    torchs = getattr(torch.optim, kind)(theirs, **options)
    gradients = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)

    def torch_steps(rows):
        for row in rows:
            theirs[0].grad, theirs[1].grad = torch.tensor(row[:3]), torch.tensor(row[3])
            torchs.step()

    torch_steps(gradients[:3])
    ours = [om.tensor(p.detach().numpy(), requires_grad=True) for p in theirs]
    optimizer = getattr(optim, kind)(ours, lr=7.0)
    state = torchs.state_dict()
    entries = {n: {k: om.tensor(v.numpy()) if torch.is_tensor(v) else v for k, v in entry.items()} for n, entry in state["state"].items()}
    optimizer.load_state_dict({"state": entries, "param_groups": state["param_groups"]})
    for row in gradients[3:]:
        ours[0].grad, ours[1].grad = om.tensor(row[:3]), om.tensor(row[3])
        optimizer.step()
    torch_steps(gradients[3:])
    for p, q in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=2e-6)
