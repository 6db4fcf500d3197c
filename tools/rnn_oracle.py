#!/usr/bin/env python3
"""Owns testdata/autograd/decoder.safetensors: PyTorch's losses and gradients of the decoder. Must not contain how such a file is made.

Run by hand, `python tools/rnn_oracle.py`, beside autograd_oracle.py, which says what the file holds; the output is committed.
"""

import numpy as np
import torch
from autograd_oracle import write
from torch import nn
from torch.nn.functional import interpolate, mse_loss, relu


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


def main():
    random = np.random.default_rng(3)
    x, target = (torch.from_numpy(random.standard_normal(shape).astype(np.float32)) for shape in ((2, 4, 6, 5), (2, 3, 50, 46)))
    write("decoder", Decoder, {"x": x, "target": target}, seed=4)


if __name__ == "__main__":
    main()
