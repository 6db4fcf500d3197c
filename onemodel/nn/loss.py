"""Owns the loss layers, each the operator of the same name with its options kept; must not contain arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from onemodel.nn.module import Module
from onemodel.ops.ctc import ctc_loss
from onemodel.ops.errors import binary_cross_entropy_with_logits, huber_loss, l1_loss, mse_loss, smooth_l1_loss
from onemodel.ops.loss import cross_entropy, nll_loss, reduction_code
from onemodel.ops.parameters import flag, index_of, integer, real
from onemodel.tensor import Tensor


class _Loss(Module):
    def __init__(self, reduction: str) -> None:
        super().__init__()
        reduction_code(type(self).__name__, reduction)
        self.reduction = reduction

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}"


class MSELoss(_Loss):
    """The mean (or sum) of squared differences."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return mse_loss(input, target, reduction=self.reduction)


class L1Loss(_Loss):
    """The mean (or sum) of absolute differences."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return l1_loss(input, target, reduction=self.reduction)


class HuberLoss(_Loss):
    """Half the squared difference up to delta, linear beyond."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = real("HuberLoss", "delta", delta, "a number above 0 that float32 holds", 2.0**-149)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return huber_loss(input, target, self.reduction, self.delta)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, delta={self.delta}"


class SmoothL1Loss(_Loss):
    """The absolute difference, rounded off to a parabola within beta of 0."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = real("SmoothL1Loss", "beta", beta, "a number that is not negative and that float32 holds", 0.0)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return smooth_l1_loss(input, target, self.reduction, self.beta)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, beta={self.beta}"


class BCEWithLogitsLoss(_Loss):
    """Binary cross entropy of logits with targets from 0 to 1; pos_weight weighs the positive part."""

    weight: Tensor | None
    pos_weight: Tensor | None

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean", pos_weight: Tensor | None = None) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(input, target, self.weight, self.reduction, self.pos_weight)


class NLLLoss(_Loss):
    """Negative log-likelihood of target classes, from log-probabilities; targets equal to ignore_index do not count."""

    weight: Tensor | None

    def __init__(self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.ignore_index = index_of("NLLLoss", "ignore_index", ignore_index)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return nll_loss(input, target, self.weight, self.ignore_index, self.reduction)


class CrossEntropyLoss(_Loss):
    """Negative log-likelihood of target classes, from logits; targets equal to ignore_index do not count."""

    weight: Tensor | None

    def __init__(self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.ignore_index = index_of("CrossEntropyLoss", "ignore_index", ignore_index)
        self.label_smoothing = real("CrossEntropyLoss", "label_smoothing", label_smoothing, "from 0 to 1", 0.0, 1.0)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing)


class CTCLoss(_Loss):
    """Negative log-likelihood of label sequences over all alignments, from log-probabilities [T, N, C]; blank is the class between labels."""

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False) -> None:
        super().__init__(reduction)
        self.blank, self.zero_infinity = integer("CTCLoss", "blank", blank, 0, 2**31 - 1), flag("CTCLoss", "zero_infinity", zero_infinity)

    def forward(self, log_probs: Tensor, targets: Tensor, input_lengths: Tensor | Sequence[int] | int,
                target_lengths: Tensor | Sequence[int] | int) -> Tensor:
        return ctc_loss(log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity)

    def extra_repr(self) -> str:
        return f"blank={self.blank}, {super().extra_repr()}, zero_infinity={self.zero_infinity}"
