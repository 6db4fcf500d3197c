"""Connectionist temporal classification: ctc_loss. Must not contain a recursion, which is a kernel's."""

from __future__ import annotations

import numpy as np

from onemodel import ctc
from onemodel.arrays import require
from onemodel.ops.loss import reduction_code
from onemodel.ops.parameters import flag
from onemodel.registry import ErrorSample, Input, Op, Sample, public, register


def _integers(*values):
    return Input(data=np.array(values, np.int64), dtype="int64")


def _sequence(log_p, label, blank):
    """-log of the summed probability of every path, by the recursion on probabilities scaled frame by frame (Graves et al. 2006)."""
    extended = [blank]
    for c in label:
        extended += [c, blank]
    size = len(extended)
    before = np.zeros(size)
    before[0] = 1.0  # in front of the first frame, so that a path starts with a blank or a label
    total = 0.0
    for t, row in enumerate(np.exp(log_p)):
        now = np.zeros(size)
        for s in range(size):
            ways = before[s] + (before[s - 1] if s else 0.0)
            if s > 1 and extended[s] != blank and extended[s] != extended[s - 2]:
                ways = ways + before[s - 2]
            now[s] = ways * row[extended[s]]
        if t == 0:
            now[2:] = 0.0
        peak = now.sum()
        if peak == 0:
            return np.inf
        before, total = now / peak, total - np.log(peak)
    end = before[-1] + (before[-2] if len(label) else 0.0)
    return total - np.log(end) if end > 0 else np.inf


@register
class CtcLoss(Op):
    """y = -log p(target | input), p the sum over all alignments (Graves et al. 2006), per sequence, summed, or ("mean") each divided by
    max(1, its target length), then averaged.

    log_probs [T, N, C] or [T, C]; targets [N, S], or all labels in one row; the recursions run in double, the same bits in both modes.
    The gradient is the true derivative of the log-probabilities: minus the posterior of a class at a frame. (torch's adds e^log_probs to it,
    which a log_softmax in front takes away again.) No alignment: +inf, or 0 with `zero_infinity`, and no gradient. A bad length or a blank
    among the labels: ValueError; a label out of range: IndexError.
    """

    @staticmethod
    def forward(ctx, log_probs, made, blank, reduction, zero_infinity):
        y, state = ctc.ctc_loss(log_probs, made, blank, reduction, zero_infinity)
        ctx.save_for_backward(log_probs, made, state)
        ctx.arguments = (blank, reduction)
        return y

    @staticmethod
    def backward(ctx, g):
        return ctc.ctc_loss_bwd(g, *ctx.saved_tensors, *ctx.arguments), None

    @staticmethod
    def reference(log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean", zero_infinity=False):
        x = log_probs if log_probs.ndim == 3 else log_probs[:, None]
        frames, lengths = np.atleast_1d(input_lengths), np.atleast_1d(target_lengths)
        row = np.concatenate([t[:n] for t, n in zip(targets, lengths, strict=True)]) if np.ndim(targets) == 2 else np.asarray(targets)
        labels = np.split(row, np.cumsum(lengths)[:-1])
        loss = np.array([_sequence(x[:n, b], label, blank) for b, (n, label) in enumerate(zip(frames, labels, strict=True))])
        if zero_infinity:
            loss[np.isinf(loss)] = 0.0
        if reduction == "none":
            return loss if log_probs.ndim == 3 else loss[0]
        return loss.sum() if reduction == "sum" else (loss / np.maximum(lengths, 1)).mean()

    samples = [
        Sample("mean", (Input((7, 2, 5), -3.0, 0.0), _integers([1, 2, 3], [4, 4, 1]), (7, 6), (3, 2))),
        Sample("sum", (Input((7, 2, 5), -3.0, 0.0), _integers([1, 2, 3], [4, 4, 1]), (7, 6), (3, 2)), {"reduction": "sum"}),
        Sample("none", (Input((7, 2, 5), -3.0, 0.0), _integers([1, 2, 3], [4, 4, 1]), _integers(7, 6), _integers(3, 2)), {"reduction": "none"}),
        Sample("one_row", (Input((9, 3, 4), -3.0, 0.0), _integers(1, 1, 2, 1, 1, 0), (9, 8, 5), (2, 3, 1)), {"blank": 3}),
        Sample("unbatched", (Input((8, 4), -3.0, 0.0), _integers(2, 2, 1), 8, 3)),
        Sample("empty_target", (Input((5, 2, 3), -3.0, 0.0), _integers([1, 1], [2, 1]), (5, 4), (0, 2)), {"reduction": "none"}),
        Sample("impossible", (Input((3, 2, 3), -3.0, 0.0), _integers([1, 1], [2, 1]), (2, 3), (2, 2)), {"reduction": "none"}, 4.0, False),
        Sample("zero_infinity", (Input((3, 2, 3), -3.0, 0.0), _integers([1, 1], [2, 1]), (2, 3), (2, 2)), {"zero_infinity": True}, 4.0, False),
        Sample("transposed", (Input((7, 2, 5), -3.0, 0.0, layout="transposed"), _integers([1, 2, 3], [4, 4, 1]), (7, 6), (3, 2))),
        Sample("many_labels", (Input((70, 1, 4), -3.0, 0.0), _integers([1, 2, 3, 3] * 8), (70,), (32,)), {}, 4.0),
    ]
    error_samples = [
        ErrorSample("negative_length", (Input((6, 2, 4)), _integers([1, 2], [1, 2]), (-3, 2), (2, 2)), ValueError, "input_lengths"),
        ErrorSample("long_target", (Input((6, 2, 4)), _integers([1, 2], [1, 2]), (6, 6), (3, 2)), ValueError, "target_lengths"),
        ErrorSample("label", (Input((6, 2, 4)), _integers([1, 9], [1, 2]), (6, 6), (2, 2)), IndexError, "no class"),
        ErrorSample("blank", (Input((6, 2, 4)), _integers([1, 0], [1, 2]), (6, 6), (2, 2)), ValueError, "blank"),
        ErrorSample("blank_class", (Input((6, 2, 4)), _integers([1, 2], [1, 2]), (6, 6), (2, 2)), ValueError, "blank", {"blank": 4}),
        ErrorSample("empty", (Input((0, 0, 5)), _integers([]), (), ()), ValueError, "no size 0"),
        ErrorSample("lengths", (Input((6, 2, 4)), _integers([1, 2], [1, 2]), (6,), (2, 2)), ValueError, "expected 2"),
        ErrorSample("one_row", (Input((6, 2, 4)), _integers(1, 2, 3), (6, 6), (2, 2)), ValueError, "add up"),
        ErrorSample("float_targets", (Input((6, 2, 4)), Input((2, 2)), (6, 6), (2, 2)), TypeError, "integers"),
        ErrorSample("reduction", (Input((6, 2, 4)), _integers([1, 2], [1, 2]), (6, 6), (2, 2)), ValueError, "reduction", {"reduction": "avg"}),
    ]


@public(method=False)
def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean", zero_infinity=False):
    """-log p(target | input) over all alignments; log_probs [T, N, C], targets [N, S] or in one row, lengths as tensors or tuples."""
    code = reduction_code("ctc_loss", reduction)
    zero_infinity = flag("ctc_loss", "zero_infinity", zero_infinity)
    require(log_probs, "ctc_loss")
    return CtcLoss.apply(log_probs, ctc.plan(log_probs, targets, input_lengths, target_lengths, blank), int(blank), code, zero_infinity)
