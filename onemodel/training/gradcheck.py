"""Owns `onemodel gradcheck`: gradient_check on the registry's samples, one line per operator. Must not contain the check itself."""

from __future__ import annotations

import argparse
import sys

from onemodel import samples
from onemodel.ops import OPS
from onemodel.training.gradient_check import GradientCheckError, GradientReport, gradient_check


def check_operator(name: str) -> GradientReport | None:
    """The report with the worst error among an operator's samples; None where nothing is differentiable."""
    worst = None
    for sample in samples.samples_of(OPS[name]):
        report = check_sample(name, sample)
        if report is not None and (worst is None or report.error > worst.error):
            worst = report
    return worst


def check_sample(name: str, sample: samples.Sample) -> GradientReport | None:
    """gradient_check of one sample; None where it has no input to differentiate or stands at a kink or pole."""
    call = samples.call_of(name, sample)
    if not OPS[name].differentiable or not sample.gradcheck or not any(t.numel() for t in call.leaves):
        return None
    return gradient_check(samples.function_of(name, sample), call.tensors, name=name)


def main(argv: list[str]) -> int:
    """Print a line per operator; the exit code is 1 if a gradient is wrong."""
    parser = argparse.ArgumentParser(prog="onemodel gradcheck", description="compare the gradients of the operators with measured slopes")
    parser.add_argument("op", nargs="?", help="one operator (all without it)")
    op = parser.parse_args(argv).op
    if op is not None and op not in OPS:
        parser.error(f"no operator {op!r}; there are: {', '.join(OPS)}")
    wrong = 0
    for name in [op] if op else OPS:
        try:
            report = check_operator(name)
        except GradientCheckError as error:
            wrong += 1
            print(f"{name:20} WRONG\n{error}", file=sys.stderr)
            continue
        print(f"{name:20} {report.error:.1e}" if report else f"{name:20} not differentiable: {OPS[name].why_not_differentiable}")
    return 1 if wrong else 0
