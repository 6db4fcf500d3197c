"""Owns the demo `digits-conv`: a convolutional network that learns the digits of the demo `digits`. Must not contain how a demo runs."""

from __future__ import annotations

from collections.abc import Sequence

import onemodel as om
from onemodel.demos import digits, job


class ConvNet(om.nn.Module):
    """Stages of convolution, batch norm and relu, max pooling between them, and a linear layer; images [n, height, width] of one channel."""

    def __init__(self, channels: Sequence[int], side: int) -> None:
        super().__init__()
        nn = om.nn
        layers: list[om.nn.Module] = []
        for before, after in zip((1, *channels), channels, strict=False):
            layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
            side //= 2
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels[-1] * side * side, 10))

    def forward(self, images: om.Tensor) -> om.Tensor:
        return self.layers(images.unsqueeze(1))


def one_cycle(share: float) -> float:
    """Up from 0.01 to 0.1 in the first fifth of the steps, then down to 0, in straight lines (after Smith and Topin 2017)."""
    return 0.01 + 0.45 * share if share < 0.2 else 0.125 * (1 - share)


def network() -> om.nn.Module:
    return ConvNet((16, 32), digits.SIDE)


JOB = job.Job("digits-conv", network, one_cycle, epochs=20, batch=50, weight_decay=5e-4, shift=2, images=digits.JOB.images,
              load=digits.load, what="real digits")


def main(argv: Sequence[str]) -> int:
    """Run the demo; returns the exit code."""
    return job.run(JOB, argv)
