"""Owns the schedules of learning rates: the rate is a function of the step alone. Must not contain arithmetic on tensors.

All arithmetic is IEEE float64 without the system's cosine and power, so that a schedule has the same bits on every machine.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from onemodel.ops.parameters import flag, integer
from onemodel.optim.optimizer import Optimizer, check_numbers


def _cos_pi(t: float) -> float:
    """cos πt by Taylor's series on a quarter turn, to 2 units in the last place of 1."""
    t = abs(t) % 2.0
    t = 2.0 - t if t > 1.0 else t
    if t > 0.5:
        return -_cos_pi(1.0 - t)
    z, term, total = (3.141592653589793 * t) ** 2, 1.0, 1.0
    for i in range(1, 23, 2):
        term = -term * z / (i * (i + 1))
        total += term
    return 0.0 if t == 0.5 else total


def _power(base: float, n: int) -> float:
    """baseⁿ by squaring."""
    result = 1.0
    while n:
        result, base, n = result * base if n & 1 else result, base * base, n >> 1
    return result


class LRScheduler:
    """The base of schedules: making one sets the rate of step 0, each `step()` that of the next. `rates(t)` is what a subclass defines.

    The rates that schedules scale are those the optimiser had before its first schedule. To resume, make optimiser and schedule
    anew and load both states.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(self).__name__}: expected an optimiser, got {type(optimizer).__name__}")
        if optimizer.initial_lrs is None:
            optimizer.initial_lrs = [group["lr"] for group in optimizer.param_groups]
        self.optimizer = optimizer
        self.base_lrs: list[float] = list(optimizer.initial_lrs)
        self.last_epoch = 0
        self._set()

    def rates(self, t: int) -> list[float]:
        """The rate of each parameter group at step t."""
        raise NotImplementedError(f"{type(self).__name__} defines no rates(t)")

    def _set(self) -> None:
        rates, groups = self.rates(self.last_epoch), self.optimizer.param_groups
        if len(rates) != len(groups):
            raise ValueError(f"{type(self).__name__}: {len(groups)} parameter groups and rates for {len(rates)}; a group was added after the first "
                             "schedule, or a state is of another optimiser; make the schedules anew")
        for group, lr in zip(groups, rates, strict=True):
            group["lr"] = lr

    def step(self) -> None:
        """Go to the next step and set its rates."""
        self.last_epoch += 1
        self._set()

    def get_last_lr(self) -> list[float]:
        """The rates of the current step."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """All but the optimiser; `om.save` writes it."""
        return {name: value for name, value in vars(self).items() if name != "optimizer"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state, and set the rates of its step."""
        expected = set(vars(self)) - {"optimizer"}
        if not isinstance(state, dict) or set(state) != expected:
            raise ValueError(f"{type(self).__name__}.load_state_dict: expected {', '.join(sorted(expected))}, as state_dict gives them")
        integer(f"{type(self).__name__}.load_state_dict", "last_epoch", state["last_epoch"], 0)
        restore = self._kept()
        vars(self).update(state)
        try:
            self._set()
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            restore()
            raise ValueError(f"{type(self).__name__}.load_state_dict: the state gives no rates here: {error}") from error

    def _kept(self) -> Callable[[], None]:
        """What puts this schedule, and the options it sets, back to how they are now."""
        own, groups = dict(vars(self)), [dict(group) for group in self.optimizer.param_groups]

        def restore() -> None:
            vars(self).update(own)
            for group, old in zip(self.optimizer.param_groups, groups, strict=True):
                group.update(old)

        return restore


class StepLR(LRScheduler):
    """rate = base·gammaᵏ, k = ⌊t ÷ step_size⌋."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        check_numbers("StepLR", {"gamma": gamma}, "gamma")
        self.step_size, self.gamma = integer("StepLR", "step_size", step_size, 1), float(gamma)
        super().__init__(optimizer)

    def rates(self, t: int) -> list[float]:
        return [base * _power(self.gamma, t // self.step_size) for base in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    """rate = eta_min + (base - eta_min)·(1 + cos(π·t/T_max))/2 (Loshchilov and Hutter 2017)."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:  # noqa: N803 - torch's name
        check_numbers("CosineAnnealingLR", {"eta_min": eta_min}, "eta_min")
        self.T_max, self.eta_min = integer("CosineAnnealingLR", "T_max", T_max, 1), float(eta_min)
        super().__init__(optimizer)

    def rates(self, t: int) -> list[float]:
        share = (1.0 + _cos_pi(t % (2 * self.T_max) / self.T_max)) / 2.0
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]


class LinearLR(LRScheduler):
    """rate = base·f, f from start_factor to end_factor in total_iters equal steps, then constant."""

    def __init__(self, optimizer: Optimizer, start_factor: float = 1.0 / 3, end_factor: float = 1.0, total_iters: int = 5) -> None:
        check_numbers("LinearLR", {"start_factor": start_factor, "end_factor": end_factor}, "start_factor", "end_factor")
        if not 0 < start_factor <= 1 or end_factor > 1:
            raise ValueError(f"LinearLR: expected 0 < start_factor <= 1 and 0 <= end_factor <= 1, got {start_factor} and {end_factor}")
        self.start_factor, self.end_factor = float(start_factor), float(end_factor)
        self.total_iters = integer("LinearLR", "total_iters", total_iters, 1)
        super().__init__(optimizer)

    def rates(self, t: int) -> list[float]:
        factor = self.start_factor + (self.end_factor - self.start_factor) * min(t, self.total_iters) / self.total_iters
        return [base * factor for base in self.base_lrs]


class OneCycleLR(LRScheduler):
    """The rate rises from max_lr/div_factor to max_lr in a share pct_start of all steps and falls to a 1/final_div_factor of where it began
    (Smith and Topin 2018); with three_phase it first falls as it rose. The momentum (of Adam: β₁) goes the other way if cycle_momentum.
    """

    def __init__(self, optimizer: Optimizer, max_lr: float | Sequence[float], total_steps: int | None = None, epochs: int | None = None,
                 steps_per_epoch: int | None = None, pct_start: float = 0.3, anneal_strategy: str = "cos", cycle_momentum: bool = True,
                 base_momentum: float = 0.85, max_momentum: float = 0.95, div_factor: float = 25.0, final_div_factor: float = 1e4,
                 three_phase: bool = False) -> None:
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("OneCycleLR: give total_steps, or epochs and steps_per_epoch")
            total_steps = integer("OneCycleLR", "epochs", epochs, 1) * integer("OneCycleLR", "steps_per_epoch", steps_per_epoch, 1)
        self.total_steps = integer("OneCycleLR", "total_steps", total_steps, 1)
        numbers = {"pct_start": pct_start, "base_momentum": base_momentum, "max_momentum": max_momentum, "div_factor": div_factor,
                   "final_div_factor": final_div_factor}
        check_numbers("OneCycleLR", numbers, *numbers)
        if not pct_start <= 1:
            raise ValueError(f"OneCycleLR: pct_start must be from 0 to 1, got {pct_start}")
        if div_factor == 0 or final_div_factor == 0:
            raise ValueError("OneCycleLR: div_factor and final_div_factor must be above 0")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"OneCycleLR: anneal_strategy must be 'cos' or 'linear', got {anneal_strategy!r}")
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"OneCycleLR: expected an optimiser, got {type(optimizer).__name__}")
        groups = optimizer.param_groups
        tops: list[Any] = list(max_lr) if isinstance(max_lr, (list, tuple)) else [max_lr] * len(groups)
        if len(tops) != len(groups):
            raise ValueError(f"OneCycleLR: expected one max_lr or {len(groups)}, one for each group, got {len(tops)}")
        for top in tops:
            check_numbers("OneCycleLR", {"max_lr": top}, "max_lr")
        self.momentum = "betas" if "betas" in optimizer.defaults else "momentum"
        if cycle_momentum and self.momentum not in optimizer.defaults:
            raise ValueError("OneCycleLR: the optimiser has neither momentum nor betas; pass cycle_momentum=False")
        self.cycle_momentum, self.anneal_strategy = flag("OneCycleLR", "cycle_momentum", cycle_momentum), anneal_strategy
        three_phase = flag("OneCycleLR", "three_phase", three_phase)
        tops = [float(top) for top in tops]
        base_momentum, max_momentum = float(base_momentum), float(max_momentum)
        lows = [top / float(div_factor) for top in tops]
        ends = [low / float(final_div_factor) for low in lows]
        pct_start = float(pct_start)
        rise = pct_start * self.total_steps - 1.0
        last = self.total_steps - 1
        # Each phase: its last step, the rates where it begins and where it ends, and the momentum there.
        self.phases: list[list[Any]]
        if three_phase:
            fall = 2.0 * pct_start * self.total_steps - 2.0
            self.phases = [[rise, lows, tops, max_momentum, base_momentum], [fall, tops, lows, base_momentum, max_momentum],
                           [last, lows, ends, max_momentum, max_momentum]]
        else:
            self.phases = [[rise, lows, tops, max_momentum, base_momentum], [last, tops, ends, base_momentum, max_momentum]]
        super().__init__(optimizer)

    def _between(self, start: float, end: float, share: float) -> float:
        if self.anneal_strategy == "linear":
            return (end - start) * share + start
        return end + (start - end) / 2.0 * (_cos_pi(share) + 1.0)

    def _phase(self, t: int) -> tuple[list, float]:
        """The phase of step t, and the share of it that has passed."""
        begin: float = 0.0
        for phase in self.phases[:-1]:
            if t <= phase[0]:
                return phase, (t - begin) / (phase[0] - begin) if phase[0] != begin else 1.0
            begin = phase[0]
        phase = self.phases[-1]
        return phase, (t - begin) / (phase[0] - begin) if phase[0] != begin else 1.0

    def rates(self, t: int) -> list[float]:
        phase, share = self._phase(t)
        return [self._between(start, end, share) for start, end in zip(phase[1], phase[2], strict=True)]

    def _set(self) -> None:
        super()._set()
        if self.cycle_momentum:
            phase, share = self._phase(self.last_epoch)
            momentum = self._between(phase[3], phase[4], share)
            for group in self.optimizer.param_groups:
                group[self.momentum] = (momentum, *group["betas"][1:]) if self.momentum == "betas" else momentum

    def step(self) -> None:
        """Go to the next step; ValueError beyond the last."""
        if self.last_epoch + 1 > self.total_steps:
            raise ValueError(f"OneCycleLR: step {self.last_epoch + 1} of a cycle of {self.total_steps} steps")
        super().step()


class SequentialLR(LRScheduler):
    """One schedule after the other: the k-th begins anew, as its step 0, at step milestones[k - 1]."""

    def __init__(self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int]) -> None:
        self.schedulers, self.milestones = list(schedulers), [integer("SequentialLR", "a milestone", m, 0) for m in milestones]
        if not self.schedulers or len(self.milestones) != len(self.schedulers) - 1:
            raise ValueError(f"SequentialLR: expected one milestone less than schedules, got {len(self.milestones)} for {len(self.schedulers)}")
        for scheduler in self.schedulers:
            if not isinstance(scheduler, LRScheduler):
                raise TypeError(f"SequentialLR: expected schedules, got {type(scheduler).__name__}")
            if scheduler.optimizer is not optimizer:
                raise ValueError("SequentialLR: every schedule must be of the same optimiser")
        if self.milestones != sorted(set(self.milestones)):
            raise ValueError(f"SequentialLR: milestones must increase, got {self.milestones}")
        super().__init__(optimizer)

    def _set(self) -> None:
        which = bisect_right(self.milestones, self.last_epoch)
        now = self.schedulers[which]
        now.last_epoch = self.last_epoch - (self.milestones[which - 1] if which else 0)
        now._set()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "schedulers": [scheduler.state_dict() for scheduler in self.schedulers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        inner = state.get("schedulers") if isinstance(state, dict) else None
        if not isinstance(inner, list) or len(inner) != len(self.schedulers):
            raise ValueError(f"SequentialLR.load_state_dict: expected the states of {len(self.schedulers)} schedules")
        restore = self._kept()
        try:
            for scheduler, own in zip(self.schedulers, inner, strict=True):
                scheduler.load_state_dict(own)
            super().load_state_dict({**state, "schedulers": self.schedulers})
        except Exception:
            restore()
            raise

    def _kept(self) -> Callable[[], None]:
        parts = [super()._kept(), *(scheduler._kept() for scheduler in self.schedulers)]

        def restore() -> None:
            for part in parts:
                part()

        return restore
