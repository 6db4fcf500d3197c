#!/usr/bin/env python3
"""Owns decoder, crnn, gru and ctc.safetensors of testdata/autograd: PyTorch's losses and gradients of these models. Must not contain how
such a file is made.

Run by hand, `python tools/rnn_oracle.py`, beside autograd_oracle.py, which says what the files hold; the output is committed.
"""

import numpy as np
import torch
from autograd_oracle import arrays, save, write
from torch import nn
from torch.nn.functional import ctc_loss, interpolate, log_softmax, mse_loss, relu


class Decoder(nn.Module):
    """Convolution, two transposed ones (stride 2 with output padding and groups; dilated), and between them all three resizes."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 12, 3, stride=2, padding=1, output_padding=1, groups=2)
        self.out = nn.ConvTranspose2d(12, 3, (3, 2), padding=(2, 1), dilation=(2, 3))

    def forward(self, x, target):
        y = interpolate(relu(self.conv(x)), scale_factor=1.5, mode="nearest")
        y = interpolate(relu(self.up(y)), size=(25, 22), mode="bilinear", align_corners=False)
        y = interpolate(torch.tanh(self.out(y)), scale_factor=2, mode="bilinear", align_corners=True)
        return mse_loss(y, target)


class Crnn(nn.Module):
    """Two stages of convolution, relu and pooling, the height folded into the channels, two LSTM layers in both directions, linear, CTC."""

    def __init__(self, channels=(6, 8), height=8, hidden=6, classes=7):
        super().__init__()
        a, b = channels
        self.stages = nn.Sequential(nn.Conv2d(1, a, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(a, b, 3, padding=1), nn.ReLU(),
                                    nn.MaxPool2d((2, 1)))
        self.lstm = nn.LSTM(b * height // 4, hidden, 2, bidirectional=True)
        self.head = nn.Linear(2 * hidden, classes)

    def forward(self, x, targets, input_lengths, target_lengths):
        columns = self.stages(x).flatten(1, 2).permute(2, 0, 1)
        return ctc_loss(log_softmax(self.head(self.lstm(columns)[0]), 2), targets, input_lengths, target_lengths)


class Gru(nn.Module):
    """A GRU layer in both directions with initial states that are learnt; the loss looks at all outputs and at the final states."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(5, 7, bidirectional=True)
        self.h0 = nn.Parameter(torch.zeros(2, 3, 7))

    def forward(self, x, target, final):
        y, h = self.gru(x, self.h0)
        return mse_loss(y, target) + mse_loss(h, final)


def ctc():
    """ctc.safetensors: losses of five sequences with every reduction, and gradients of what stands before and behind the log-softmax.

    The sequences: unequal lengths, a label twice in a row, no label at all, as many frames as it takes, and one frame too few: infinite.
    """
    random = np.random.default_rng(9)
    logits = torch.from_numpy(random.standard_normal((12, 5, 6)).astype(np.float32))
    targets = torch.tensor([[1, 4, 4, 2, 5], [3, 1, 0, 0, 0], [0, 0, 0, 0, 0], [2, 2, 1, 0, 0], [5, 5, 3, 3, 0]])
    lengths = torch.tensor([12, 9, 7, 4, 5]), torch.tensor([5, 2, 0, 3, 4])
    content = arrays({"logits": logits, "targets": targets, "input_lengths": lengths[0], "target_lengths": lengths[1]}, "input")
    for kind, dtype in (("torch", torch.float32), ("truth", torch.float64)):
        for reduction in ("none", "mean", "sum"):
            for zero in (False, True):
                x = logits.to(dtype, copy=True).requires_grad_()
                log_p = log_softmax(x, 2)
                log_p.retain_grad()
                loss = ctc_loss(log_p, targets, *lengths, blank=0, reduction=reduction, zero_infinity=zero)
                name = reduction + ".zero_infinity" * zero
                content |= arrays({name: loss}, kind)
                if zero:
                    loss.sum().backward()
                    content |= arrays({f"grad.logits.{reduction}": x.grad, f"grad.log_p.{reduction}": log_p.grad}, kind)
    save("ctc", content)


def main():
    random = np.random.default_rng(3)

    def normal(*shape):
        return torch.from_numpy(random.standard_normal(shape).astype(np.float32))

    write("decoder", Decoder, {"x": normal(2, 4, 6, 5), "target": normal(2, 3, 50, 46)}, seed=4)
    targets = torch.tensor([[1, 4, 4, 2, 6], [3, 1, 0, 0, 0], [5, 2, 2, 3, 0]])
    write("crnn", Crnn, {"x": normal(3, 1, 8, 40), "targets": targets, "input_lengths": torch.tensor([20, 13, 17]),
                         "target_lengths": torch.tensor([5, 2, 4])}, seed=6)
    write("gru", Gru, {"x": normal(9, 3, 5), "target": normal(9, 3, 14), "final": normal(2, 3, 7)}, seed=7)
    ctc()


if __name__ == "__main__":
    main()
