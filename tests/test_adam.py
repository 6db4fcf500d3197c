"""Owns the tests of Adam, AdamW, RMSprop and of clipping: the formulas, torch's numbers, state, memory and bits."""

import gc
import itertools
import math

import numpy as np
import pytest

import onemodel as om
from onemodel._kernels import table
from onemodel.optim import Adam, AdamW, RMSprop, clip_grad_norm_

F = np.float32
ALL = [(Adam, {}), (Adam, {"amsgrad": True, "weight_decay": 0.1}), (AdamW, {"weight_decay": 0.1}), (AdamW, {"maximize": True, "amsgrad": True}),
       (RMSprop, {}), (RMSprop, {"momentum": 0.9, "centered": True, "weight_decay": 0.1}), (RMSprop, {"momentum": 0.5, "maximize": True})]
each_rule = pytest.mark.parametrize("rule,options", ALL, ids=[f"{rule.__name__}-{'-'.join(options)}" for rule, options in ALL])


def leaves(seed=0, shapes=((7, 5), (33,), (), (0, 3), (1025,))):
    rng = np.random.default_rng(seed)
    return [om.tensor(rng.standard_normal(shape).astype(F), requires_grad=True) for shape in shapes]


def step(optimizer, params, seed):
    rng = np.random.default_rng(seed)
    for p in params:
        p.grad = om.tensor(rng.standard_normal(p.shape).astype(F))
    optimizer.step()


def adam(p, g, state, t, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, amsgrad=False, maximize=False, decoupled=False):
    """The rule in float32, one rounding for each operation."""
    m, v, top = state
    rest1, beta2, rest2 = F(1 - betas[0]), F(betas[1]), F(1 - betas[1])
    if decoupled:
        p = p * F(1 - lr * weight_decay)
    d = -g if maximize else g
    if weight_decay and not decoupled:
        d = d + F(weight_decay) * p
    m = m + rest1 * (d - m)
    v = v * beta2 + rest2 * d * d
    top = np.maximum(top, v) if amsgrad else v
    one, two = 1.0, 1.0
    for _ in range(t):
        one, two = one * betas[0], two * betas[1]
    p = p - F(lr / (1 - one)) * m / (np.sqrt(top) / F(math.sqrt(1 - two)) + F(eps))
    return p, (m, v, top)


@pytest.mark.parametrize("options", [{}, {"amsgrad": True}, {"weight_decay": 0.1, "maximize": True}, {"betas": (0.5, 0.25), "eps": 0.5, "lr": 0.1}], ids=str)
@pytest.mark.parametrize("rule", [Adam, AdamW])
def test_three_steps_are_the_formula_to_the_bit(rule, options):
    p = leaves(shapes=((37,),))[0]
    optimizer, decay = rule([p], **options), options.get("weight_decay", 1e-2 if rule is AdamW else 0.0)
    q, state = p.detach().numpy().copy(), (np.zeros(37, F),) * 3
    for t in (1, 2, 3):
        g = np.random.default_rng(t).standard_normal(37).astype(F)
        p.grad = om.tensor(g)
        optimizer.step()
        q, state = adam(q, g, state, t, **{**options, "weight_decay": decay, "decoupled": rule is AdamW})
        assert np.array_equal(p.detach().numpy(), q), t
    entry = optimizer.state[p]
    assert entry["step"] == 3 and np.array_equal(entry["exp_avg"].numpy(), state[0]) and np.array_equal(entry["exp_avg_sq"].numpy(), state[1])
    assert ("max_exp_avg_sq" in entry) == options.get("amsgrad", False)


def test_defaults_are_torchs():
    p = om.ones(1).requires_grad_()
    assert Adam([p]).defaults == {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False, "maximize": False}
    assert AdamW([p]).defaults["weight_decay"] == 1e-2
    assert RMSprop([p]).defaults == {"lr": 1e-2, "alpha": 0.99, "eps": 1e-8, "weight_decay": 0.0, "momentum": 0.0, "centered": False, "maximize": False}


CHOICES = ([(rule, {"weight_decay": w, "amsgrad": a, "maximize": m}) for rule, w, a, m in
            itertools.product((Adam, AdamW), (0.0, 0.1), (False, True), (False, True))] + [(Adam, {"betas": (0.5, 0.9), "eps": 1e-3}), (AdamW, {})]
           + [(RMSprop, {"weight_decay": w, "momentum": u, "centered": c, "maximize": m}) for w, u, c, m in
              itertools.product((0.0, 0.1), (0.0, 0.9), (False, True), (False, True))] + [(RMSprop, {"alpha": 0.5, "eps": 1e-2})])


@pytest.mark.oracle
@pytest.mark.parametrize("rule,options", CHOICES, ids=lambda o: o.__name__ if isinstance(o, type) else "-".join(map(str, o.values())))
def test_a_hundred_steps_are_torchs(rule, options):
    import torch

    rng = np.random.default_rng(0)
    start = [rng.standard_normal(shape).astype(F) for shape in [(7, 5), (33,), ()]]
    for mode in ("exact", "fast"):
        ours = [om.tensor(a, requires_grad=True) for a in start]
        theirs = [torch.tensor(a, requires_grad=True) for a in start]
        peer = getattr(torch.optim, rule.__name__)(theirs, lr=0.01, **options)
        with om.arithmetic(mode):
            optimizer = rule(ours, lr=0.01, **options)
            for _ in range(100):
                for p, q in zip(ours, theirs, strict=True):
                    g = np.asarray(rng.standard_normal(p.shape)).astype(F)
                    p.grad, q.grad = om.tensor(g), torch.tensor(g)
                optimizer.step()
                peer.step()
        for p, q in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=1e-6, atol=1e-6)


@each_rule
def test_steps_have_one_digest(rule, options):
    table.set_smallest_piece(1)
    found = set()
    for isa, mode, threads in itertools.product(om.available_isas(), ("fast", "exact"), (1, 3)):
        om.set_num_threads(threads)
        with om.use_isa(isa), om.arithmetic(mode):
            params = leaves()
            optimizer = rule(params, **options)
            for t in range(3):
                step(optimizer, params, t)
            found.add(" ".join(p.sha256() for p in params))
    assert len(found) == 1  # the updates are the same IEEE operations in both modes


@each_rule
def test_a_step_takes_no_memory_after_the_second(rule, options):
    model = om.nn.Sequential(om.nn.Linear(300, 400), om.nn.ReLU(), om.nn.Linear(400, 10))
    optimizer = rule(model.parameters(), **options)
    x = om.rand(50, 300)
    gc.disable()
    try:
        for t in range(6):
            if t == 2:
                before = om.pool_stats()
            with om.ActivationScope():
                model(x).sum().backward()
                clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        change = om.pool_stats() - before
    finally:
        gc.enable()
    assert change.requests > 0 and change.native_allocations == 0 and change.outstanding_bytes == 0


@each_rule
def test_a_saved_optimizer_goes_on_to_the_bit(rule, options, tmp_path):
    params = leaves()
    optimizer = rule(params, **options)
    for t in range(3):
        step(optimizer, params, t)
    om.save({"optimizer": optimizer.state_dict(), "params": [p.detach() for p in params]}, tmp_path / "state")
    for t in range(3, 6):
        step(optimizer, params, t)
    state = om.load(tmp_path / "state")
    again = [om.tensor(p.numpy()).requires_grad_() for p in state["params"]]
    resumed = rule(again)
    resumed.load_state_dict(state["optimizer"])
    for t in range(3, 6):
        step(resumed, again, t)
    assert [p.sha256() for p in again] == [p.sha256() for p in params]


def test_parameters_may_be_at_different_steps():
    a, b = om.ones(3).requires_grad_(), om.ones(3).requires_grad_()
    optimizer = Adam([a, b], lr=0.1)
    for t, g in enumerate([1.0, 0.5, 2.0]):
        a.grad = om.full((3,), g)
        b.grad = om.full((3,), g) if t else None
        optimizer.step()
    alone = om.ones(3).requires_grad_()
    other = Adam([alone], lr=0.1)
    for g in (0.5, 2.0):
        alone.grad = om.full((3,), g)
        other.step()
    assert b.tolist() == alone.tolist() and optimizer.state[a]["step"] == 3 and optimizer.state[b]["step"] == 2


def test_more_parameters_than_one_kernel_call_takes():
    params = [om.full((i % 5,), 1.0).requires_grad_() for i in range(150)]
    optimizer = Adam(params, lr=0.5)
    for p in params:
        p.grad = om.full(p.shape, 3.0)
    optimizer.step()
    assert all(v == pytest.approx(0.5) for p in params for v in p.tolist())


def test_a_nan_is_the_one_nan_in_exact_arithmetic():
    payload = np.array([0xFF80_0001, 0x7FC0_1234], np.uint32).view(F)
    for rule, options in ALL:
        p = om.ones(2).requires_grad_()
        with om.arithmetic("exact"):
            optimizer = rule([p], **options)
            p.grad = om.tensor(payload)
            optimizer.step()
        assert p.detach().numpy().view(np.uint32).tolist() == [0x7FC0_0000] * 2, rule


@pytest.mark.parametrize("rule,options,error,message", [
    (Adam, {"betas": 0.9}, TypeError, "betas"), (Adam, {"betas": (0.9,)}, TypeError, "betas"), (Adam, {"betas": (True, 0.5)}, TypeError, "betas"),
    (Adam, {"betas": (0.9, 1.0)}, ValueError, "betas"), (Adam, {"betas": (-0.1, 0.9)}, ValueError, "betas"), (Adam, {"betas": (math.nan, 0.9)}, ValueError, "betas"),
    (AdamW, {"lr": -1}, ValueError, "lr"), (AdamW, {"lr": 2**200}, ValueError, "lr"), (Adam, {"eps": "1"}, TypeError, "eps"),
    (AdamW, {"weight_decay": math.inf}, ValueError, "weight_decay"), (RMSprop, {"alpha": -0.5}, ValueError, "alpha"),
    (RMSprop, {"momentum": None}, TypeError, "momentum"),
    (Adam, {"amsgrad": "no"}, TypeError, "amsgrad"), (AdamW, {"maximize": 1}, TypeError, "maximize"), (RMSprop, {"centered": None}, TypeError, "centered"),
], ids=lambda v: str(v)[:30])
def test_wrong_options(rule, options, error, message):
    with pytest.raises(error, match=f"{rule.__name__}: {message}"):
        rule([om.ones(1).requires_grad_()], **options)


def test_wrong_state_is_refused_before_anything_moves():
    for name, value in [("step", -1), ("step", 1.5), ("step", True), ("step", 2**70), ("exp_avg", om.ones(4)), ("exp_avg_sq", om.tensor([1, 2, 3])),
                        ("exp_avg", "zero")]:
        a, b = om.ones(2).requires_grad_(), om.ones(3).requires_grad_()
        optimizer = Adam([a, b])
        a.grad, b.grad = om.ones(2), om.ones(3)
        optimizer.step()
        optimizer.state[b][name] = value
        before = a.tolist(), optimizer.state[a]["step"]
        with pytest.raises(ValueError, match=name):
            optimizer.step()
        assert (a.tolist(), optimizer.state[a]["step"]) == before, name


def test_numbers_of_numpy_become_pythons_and_can_be_saved(tmp_path):
    p = om.ones(2).requires_grad_()
    optimizer = AdamW([p], lr=np.float32(0.5), betas=[np.float64(0.5), np.float32(0.25)], eps=np.int64(1))
    group = optimizer.param_groups[0]
    assert group["betas"] == (0.5, 0.25) and [type(group[name]) for name in ("lr", "eps")] == [float, int]
    schedule = om.optim.lr_scheduler.OneCycleLR(optimizer, np.float32(0.5), np.int64(7), pct_start=np.float64(0.5), base_momentum=np.float32(0.5))
    om.save({"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}, tmp_path / "state")


# -- clipping --


def graded(*arrays):
    params = []
    for array in arrays:
        p = om.zeros(*array.shape).requires_grad_()
        p.grad = om.tensor(array)
        params.append(p)
    return params


def test_the_norm_is_that_of_all_gradients():
    rng = np.random.default_rng(0)
    arrays = [rng.normal(0, 3, shape).astype(F) for shape in [(7, 5), (100_001,), (0, 2), (1,)]]
    want = math.sqrt(sum(float((a.astype(float) ** 2).sum()) for a in arrays))
    params = graded(*arrays)
    norm = clip_grad_norm_(params, 2.0)
    assert norm.shape == () and norm.item() == pytest.approx(want, rel=1e-7)
    factor = F(2.0 / (norm.item() + 1e-6))
    for p, a in zip(params, arrays, strict=True):
        assert np.array_equal(p.grad.numpy(), a * factor)


def test_a_small_norm_changes_nothing():
    params = graded(np.ones(4, F))
    version = params[0].grad.version
    assert clip_grad_norm_(params, 2.5).item() == 2 and params[0].grad.tolist() == [1] * 4 and params[0].grad.version == version
    assert clip_grad_norm_(params, math.inf).item() == 2


def test_parameters_without_gradient_and_none_at_all():
    p = om.ones(2).requires_grad_()
    assert clip_grad_norm_([p], 1.0).item() == 0 and clip_grad_norm_([], 1.0).item() == 0 and p.grad is None
    assert clip_grad_norm_(graded(np.full(4, 3.0, F))[0], 1.0).item() == 6


def test_the_norm_has_one_digest():
    rng = np.random.default_rng(1)
    arrays = [(rng.normal(0, 1, n) * 2.0 ** rng.integers(-30, 30, n)).astype(F) for n in (33, 70_000, 5)]
    found = set()
    for isa, mode, threads, piece in itertools.product(om.available_isas(), ("fast", "exact"), (1, 3), (1, 32768)):
        om.set_num_threads(threads)
        table.set_smallest_piece(piece)
        with om.use_isa(isa), om.arithmetic(mode):
            params = graded(*arrays)
            found.add((clip_grad_norm_(params, 1.0).sha256(), params[1].grad.sha256()))
    assert len(found) == 1


def test_not_finite():
    params = graded(np.array([1.0, math.inf], F), np.ones(2, F))
    with pytest.raises(RuntimeError, match="norm of the gradients is inf"):
        clip_grad_norm_(params, 1.0, error_if_nonfinite=True)
    assert params[1].grad.tolist() == [1, 1]
    clip_grad_norm_(params, 1.0)
    assert params[1].grad.tolist() == [0, 0] and math.isnan(params[0].grad.tolist()[1])
    params = graded(np.array([math.nan], F), np.ones(2, F))
    clip_grad_norm_(params, 1.0)
    assert np.isnan(params[1].grad.numpy()).all()


@pytest.mark.oracle
@pytest.mark.parametrize("kind", [2, 2.0, 1.0, 3, 0.5, math.inf, np.float64(2)])
@pytest.mark.parametrize("limit", [0, 0.1, 1e6])
def test_clipping_is_torchs(kind, limit):
    import torch

    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype(F) for shape in [(7, 5), (1001,), (3,)]]
    ours, theirs = graded(*arrays), [torch.zeros(a.shape, requires_grad=True) for a in arrays]
    for q, a in zip(theirs, arrays, strict=True):
        q.grad = torch.tensor(a)
    assert clip_grad_norm_(ours, limit, kind).item() == pytest.approx(torch.nn.utils.clip_grad_norm_(theirs, limit, float(kind)).item(), rel=2e-6)
    for p, q in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=2e-6)


@pytest.mark.parametrize("arguments,error,message", [
    (([1.0], 1.0), TypeError, "tensors"), ((None, 1.0), TypeError, "tensors"), (([], -1), ValueError, "max_norm"), (([], "1"), TypeError, "max_norm"), (([], math.nan), ValueError, "max_norm"),
    (([], 1.0, 0), ValueError, "norm_type"), (([], 1.0, -math.inf), ValueError, "norm_type"), (([], 1.0, True), TypeError, "norm_type"),
], ids=str)
def test_wrong_arguments_of_clipping(arguments, error, message):
    with pytest.raises(error, match=f"clip_grad_norm_: .*{message}"):
        clip_grad_norm_(*arguments)
