#!/usr/bin/env python3
"""Owns convnet and encoder.safetensors of testdata/autograd: PyTorch's losses and gradients of these models, and how such a file is made.
Must not import onemodel.

Run by hand, `python tools/autograd_oracle.py`, with torch 2.13.0 for CPUs installed; the output is committed. torch is a black box here: weights
come from NumPy's generator, and what it computes from them in float32 and in float64 is written down.
"""

from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import nn

FOLDER = Path(__file__).resolve().parent.parent / "testdata" / "autograd"


class ConvNet(nn.Module):
    """Two stages of convolution, batch norm, relu and max pool, then a linear layer and cross entropy."""

    def __init__(self, channels=(8, 16), side=16):
        super().__init__()
        a, b = channels
        self.stages = nn.Sequential(nn.Conv2d(3, a, 3, padding=1), nn.BatchNorm2d(a), nn.ReLU(), nn.MaxPool2d(2),
                                    nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(b * (side // 4) ** 2, 10))

    def forward(self, x, labels):
        return nn.functional.cross_entropy(self.head(self.stages(x)), labels)


class Encoder(nn.Module):
    """Embedded ids and what is added to them (x, as positions are), two encoder layers with padding hidden, linear and cross entropy.

    The first layer has torch's defaults, norms behind and relu; the second has them before, and gelu.
    """

    def __init__(self, vocabulary=24, width=16, heads=4, hidden=40, classes=6):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList([
            nn.TransformerEncoderLayer(width, heads, hidden, dropout=0.0, batch_first=True),
            nn.TransformerEncoderLayer(width, heads, hidden, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)])
        self.head = nn.Linear(width, classes)

    def forward(self, ids, x, hidden, labels):
        y = self.embedding(ids) + x
        for layer in self.layers:
            y = layer(y, src_key_padding_mask=hidden)
        return nn.functional.cross_entropy(self.head(y).flatten(0, 1), labels.flatten())


def seeded(model, seed):
    """Weights that NumPy draws: as wide as torch's defaults, gains of norms near 1, other vectors small and not 0."""
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim > 1:
                bound = 1 / np.sqrt(p[0].numel())
                value = random.uniform(-bound, bound, p.shape)
            else:
                value = random.uniform(-0.2, 0.2, p.shape) + float(name.endswith("weight"))
            p.copy_(torch.from_numpy(value.astype(np.float32)))
    return model


def arrays(tensors, kind):
    return {f"{kind}.{name}": t.detach().numpy().astype(np.float32) if t.is_floating_point() else t.numpy() for name, t in tensors.items()}


def results(model, inputs, dtype):
    """Loss, gradients of every parameter and of x, and the buffers after the step, computed in one float type."""
    model = model.to(dtype)
    inputs = {name: t.to(dtype, copy=True) if t.is_floating_point() else t for name, t in inputs.items()}
    inputs["x"].requires_grad_()
    loss = model(**inputs)
    loss.backward()
    leaves = {**dict(model.named_parameters()), "x": inputs["x"]}
    return {"loss": loss.detach(), **{f"grad.{name}": leaf.grad for name, leaf in leaves.items()}, **dict(model.named_buffers())}


def write(name, make, inputs, seed):
    """The file NAME.safetensors: input.*, weight.*, then what torch computes in float32 as torch.*, and in float64 (rounded) as truth.*."""
    torch.set_num_threads(1)
    content = {**arrays(inputs, "input"), **arrays(dict(seeded(make(), seed).named_parameters()), "weight")}
    for kind, dtype in (("torch", torch.float32), ("truth", torch.float64)):
        content |= arrays(results(seeded(make(), seed), inputs, dtype), kind)
    save(name, content)


def save(name, content):
    """Write the file, and print the size and the rounding of each result."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.safetensors"
    save_file(content, path, {"made_by": f"tools, torch {torch.__version__.partition('+')[0]}"})
    print(f"{path.name}: {path.stat().st_size} bytes; the largest float32 value of each result, and how far it is from float64:")
    for key in (key for key in content if key.startswith("torch.") and content[key].dtype == np.float32):
        size, error = np.abs(content[key]).max(), np.abs(np.nan_to_num(content[key]) - np.nan_to_num(content["truth" + key[5:]])).max()
        print(f"  {key[6:]:32} {size:9.2e} {error:9.2e}")


def main():
    random = np.random.default_rng(1)
    x = torch.from_numpy(random.standard_normal((4, 3, 16, 16)).astype(np.float32))
    write("convnet", ConvNet, {"x": x, "labels": torch.tensor([3, 0, 9, 3])}, seed=2)
    ids, labels = (torch.from_numpy(random.integers(0, n, (3, 9))) for n in (24, 6))
    hidden = torch.arange(9) >= torch.tensor([[9], [6], [1]])
    x = torch.from_numpy(random.standard_normal((3, 9, 16)).astype(np.float32))
    write("encoder", Encoder, {"ids": ids, "x": x, "hidden": hidden, "labels": labels.masked_fill(hidden, -100)}, seed=8)


if __name__ == "__main__":
    main()
