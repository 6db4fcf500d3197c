"""Owns the tests of the schedules of learning rates: torch's numbers, states, errors."""

import itertools
import math

import pytest

import onemodel as om
from onemodel.optim import SGD, Adam, lr_scheduler


def optimizer(*rates, kind=SGD, **options):
    return kind([{"params": [om.ones(1).requires_grad_()], "lr": lr} for lr in rates], **options)


def walked(scheduler, steps=12):
    found = [scheduler.get_last_lr()]
    for _ in range(steps):
        scheduler.step()
        found.append(scheduler.get_last_lr())
    return found


SCHEDULES = {
    "step": lambda L, o: L.StepLR(o, 3, 0.5),
    "cosine": lambda L, o: L.CosineAnnealingLR(o, 5, 0.01),
    "linear": lambda L, o: L.LinearLR(o, 0.25, 0.75, 4),
    "linear_default": lambda L, o: L.LinearLR(o),
    "one_cycle": lambda L, o: L.OneCycleLR(o, 0.5, 12),
    "one_cycle_epochs": lambda L, o: L.OneCycleLR(o, [0.5, 0.25], epochs=3, steps_per_epoch=4, pct_start=0.4, anneal_strategy="linear"),
    "three_phase": lambda L, o: L.OneCycleLR(o, 0.5, 12, three_phase=True, div_factor=10, final_div_factor=50, base_momentum=0.5),
    "sequential": lambda L, o: L.SequentialLR(o, [L.LinearLR(o, 0.25, 1.0, 3), L.CosineAnnealingLR(o, 6), L.StepLR(o, 2)], [3, 8]),
}


@pytest.mark.oracle
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.filterwarnings("ignore")
def test_the_rates_are_torchs(name, kind):
    import torch

    ours = optimizer(0.1, 0.3, kind=getattr(om.optim, kind))
    theirs = getattr(torch.optim, kind)([{"params": [torch.ones(1, requires_grad=True)], "lr": lr} for lr in (0.1, 0.3)])
    a, b = SCHEDULES[name](lr_scheduler, ours), SCHEDULES[name](torch.optim.lr_scheduler, theirs)
    for t in range(12):
        assert a.get_last_lr() == pytest.approx(b.get_last_lr(), rel=1e-9, abs=1e-12), t
        for g, h in zip(ours.param_groups, theirs.param_groups, strict=True):
            for option in ("momentum", "betas"):
                if option in g:
                    assert g[option] == pytest.approx(h[option], rel=1e-9), t
        theirs.step()
        a.step()
        b.step()


def test_by_hand():
    assert walked(lr_scheduler.StepLR(optimizer(8.0), 2, 0.5), 5) == [[8], [8], [4], [4], [2], [2]]
    assert walked(lr_scheduler.LinearLR(optimizer(8.0), 0.25, 1.0, 3), 5) == [[2], [4], [6], [8], [8], [8]]
    cosine = walked(lr_scheduler.CosineAnnealingLR(optimizer(1.0), 4), 8)
    assert [lr for (lr,) in cosine] == pytest.approx([(1 + math.cos(math.pi * t / 4)) / 2 for t in range(9)], abs=2e-15)
    assert cosine[2] == [0.5] and cosine[4] == [0.0] and cosine[8] == [1.0]


def test_the_cosine_is_the_cosine():
    for i in range(-3000, 3001):  # math.cos gets a rounded πt
        assert lr_scheduler._cos_pi(i / 1000) == pytest.approx(math.cos(math.pi * i / 1000), abs=2e-15)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_state_is_saved_and_resumed_to_the_bit(name, tmp_path):
    first = optimizer(0.1, 0.3, momentum=0.5)
    schedule = SCHEDULES[name](lr_scheduler, first)
    walked(schedule, 5)
    om.save({"schedule": schedule.state_dict(), "optimizer": first.state_dict()}, tmp_path / "state")
    state = om.load(tmp_path / "state")
    for order in itertools.permutations(["schedule", "optimizer"]):
        again = optimizer(0.1, 0.3, momentum=0.5)
        resumed = SCHEDULES[name](lr_scheduler, again)
        for part in order:
            (resumed if part == "schedule" else again).load_state_dict(state[part])
        assert again.param_groups[0]["lr"] == first.param_groups[0]["lr"] and again.param_groups[0]["momentum"] == first.param_groups[0]["momentum"]
        late = optimizer(0.1, 0.3, momentum=0.5)
        late.load_state_dict(state["optimizer"])
        made_late = SCHEDULES[name](lr_scheduler, late)
        made_late.load_state_dict(state["schedule"])
        assert walked(resumed, 7) == walked(made_late, 7)
    rates = walked(schedule, 7)
    third = optimizer(0.1, 0.3, momentum=0.5)
    resumed = SCHEDULES[name](lr_scheduler, third)
    resumed.load_state_dict(state["schedule"])
    assert walked(resumed, 7) == rates


def test_one_cycle_ends():
    schedule = lr_scheduler.OneCycleLR(optimizer(0.1), 0.5, 3)
    walked(schedule, 3)
    with pytest.raises(ValueError, match="step 4 of a cycle of 3"):
        schedule.step()


L = lr_scheduler


@pytest.mark.parametrize("make,error,message", [
    (lambda o: L.StepLR(o, 0), ValueError, "step_size"), (lambda o: L.StepLR(o, 1.5), TypeError, "step_size"), (lambda o: L.StepLR(o, True), TypeError, "step_size"),
    (lambda o: L.StepLR(o, 1, "x"), TypeError, "gamma"), (lambda o: L.StepLR([1], 1), TypeError, "optimiser"),
    (lambda o: L.CosineAnnealingLR(o, 0), ValueError, "T_max"), (lambda o: L.CosineAnnealingLR(o, 5, math.nan), ValueError, "eta_min"),
    (lambda o: L.LinearLR(o, 0), ValueError, "start_factor"), (lambda o: L.LinearLR(o, 0.5, 1.5), ValueError, "end_factor"),
    (lambda o: L.LinearLR(o, total_iters=0), ValueError, "total_iters"),
    (lambda o: L.OneCycleLR(o, 0.1), ValueError, "total_steps"), (lambda o: L.OneCycleLR(o, 0.1, 0), ValueError, "total_steps"),
    (lambda o: L.OneCycleLR(o, [0.1, 0.2], 5), ValueError, "max_lr"), (lambda o: L.OneCycleLR(o, 0.1, 5, pct_start=2), ValueError, "pct_start"),
    (lambda o: L.OneCycleLR(o, 0.1, 5, anneal_strategy="x"), ValueError, "anneal_strategy"), (lambda o: L.OneCycleLR(3, 0.1, 5), TypeError, "optimiser"),
    (lambda o: L.OneCycleLR(o, 0.1, 5, cycle_momentum="no"), TypeError, "cycle_momentum"), (lambda o: L.OneCycleLR(o, "x", 5), TypeError, "max_lr"), (lambda o: L.OneCycleLR(o, 0.1, 5, div_factor=0), ValueError, "div_factor"),
    (lambda o: L.SequentialLR(o, [], []), ValueError, "milestone"), (lambda o: L.SequentialLR(o, [L.StepLR(o, 1)], [3]), ValueError, "milestone"),
    (lambda o: L.SequentialLR(o, [L.StepLR(o, 1), L.StepLR(o, 1)], [-1]), ValueError, "milestone"),
    (lambda o: L.SequentialLR(o, [L.StepLR(o, 1)] * 3, [3, 2]), ValueError, "increase"),
    (lambda o: L.SequentialLR(o, [L.StepLR(optimizer(0.1), 1)], []), ValueError, "same optimiser"),
    (lambda o: L.SequentialLR(o, [1], []), TypeError, "schedules"),
])
def test_wrong_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make(optimizer(0.1))


def test_a_state_that_does_not_fit_is_refused():
    schedule = lr_scheduler.StepLR(optimizer(0.1), 2)
    with pytest.raises(ValueError, match="step_size"):
        schedule.load_state_dict({"last_epoch": 3})
    walked(schedule, 3)
    good, rates = schedule.state_dict(), schedule.get_last_lr()
    for name, value, error in [("last_epoch", "x", TypeError), ("last_epoch", -1, ValueError), ("base_lrs", None, ValueError), ("base_lrs", [], ValueError),
                               ("step_size", 0, ValueError), ("gamma", "x", ValueError)]:
        with pytest.raises(error, match="StepLR.load_state_dict"):
            schedule.load_state_dict(good | {name: value})
        assert schedule.state_dict() == good and schedule.get_last_lr() == rates
    with pytest.raises(ValueError, match="2 schedules"):
        o = optimizer(0.1)
        lr_scheduler.SequentialLR(o, [lr_scheduler.StepLR(o, 1), lr_scheduler.StepLR(o, 1)], [2]).load_state_dict({"schedulers": []})


def test_a_group_added_later_needs_new_schedules():
    o = optimizer(0.1)
    schedule = lr_scheduler.StepLR(o, 2)
    o.add_param_group({"params": [om.ones(2).requires_grad_()]})
    with pytest.raises(ValueError, match="group was added"):
        lr_scheduler.StepLR(o, 2)
    with pytest.raises(ValueError, match="group was added"):
        schedule.step()


def test_adam_cycles_its_first_beta():
    o = optimizer(0.1, kind=Adam)
    lr_scheduler.OneCycleLR(o, 0.5, 10)
    assert o.param_groups[0]["betas"] == (0.95, 0.999)


def test_a_refused_state_leaves_everything_as_it_was():
    """Of a schedule of schedules, too: nothing of the inner ones has moved when the outer one, or a later one, is refused."""
    optimizer = om.optim.SGD([om.ones(2, requires_grad=True)], lr=0.5, momentum=0.9)
    inner = [om.optim.lr_scheduler.LinearLR(optimizer, total_iters=4), om.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=20)]
    schedule = om.optim.lr_scheduler.SequentialLR(optimizer, inner, [4])
    good = schedule.state_dict()
    for _ in range(6):
        schedule.step()
    before = schedule.state_dict()
    groups = [dict(group) for group in optimizer.param_groups]
    first, second = good["schedulers"]
    phase = [2.0, [0.1], [0.3], "much", 0.5]  # rates there are, but no momentum
    for state in (
        {**good, "milestones": None}, {**good, "last_epoch": -1}, {**good, "last_epoch": "4"}, {**good, "more": 1}, {**good, "base_lrs": [1.0, 2.0], "schedulers": [first, {}]},
        {**good, "schedulers": [first, {**second, "phases": []}]}, {**good, "schedulers": [first, {**second, "phases": [phase]}]}, {**good, "schedulers": [first]}, None,
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError), match="load_state_dict"):
            schedule.load_state_dict(state)
        assert schedule.state_dict() == before and [dict(group) for group in optimizer.param_groups] == groups, state
    cycle = inner[1]
    with pytest.raises(ValueError, match="OneCycleLR.load_state_dict"):
        cycle.load_state_dict({**cycle.state_dict(), "phases": [phase]})
    assert schedule.state_dict() == before and [dict(group) for group in optimizer.param_groups] == groups
    schedule.load_state_dict(good)
    assert schedule.state_dict() == good
