"""Owns the reference models, written as a user writes them, and the oracle's files that belong to them. Must not contain a test.

tools/autograd_oracle.py and tools/rnn_oracle.py build the same models in PyTorch; names of parameters are the same.
"""

import hashlib
from functools import reduce
from pathlib import Path

import onemodel as om
from onemodel import nn

FOLDER = Path(__file__).resolve().parent.parent / "testdata" / "autograd"


class Reference(nn.Module):
    """A model whose `values` yields everything it computes from its inputs, in order; the last is the loss."""

    def forward(self, **inputs):
        return reduce(lambda _, value: value, self.values(**inputs))  # none is kept: a step holds what its gradients need


class ConvNet(Reference):
    """Two stages of convolution, batch norm, relu and max pool, then a linear layer and cross entropy."""

    def __init__(self, channels=(8, 16), side=16):
        super().__init__()
        a, b = channels
        self.stages = nn.Sequential(nn.Conv2d(3, a, 3, padding=1), nn.BatchNorm2d(a), nn.ReLU(), nn.MaxPool2d(2),
                                    nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(b * (side // 4) ** 2, 10))

    def values(self, x, labels):
        for layer in (*self.stages, *self.head):
            x = layer(x)
            yield x
        yield om.cross_entropy(x, labels)


class Decoder(Reference):
    """Convolution, two transposed ones (stride 2 with output padding and groups; dilated), and between them all three resizes."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 12, 3, stride=2, padding=1, output_padding=1, groups=2)
        self.out = nn.ConvTranspose2d(12, 3, (3, 2), padding=(2, 1), dilation=(2, 3))

    def values(self, x, target):
        yield (y := self.conv(x))
        yield (y := om.interpolate(om.relu(y), scale_factor=1.5, mode="nearest"))
        yield (y := self.up(y))
        yield (y := om.interpolate(om.relu(y), size=(25, 22), mode="bilinear", align_corners=False))
        yield (y := self.out(y))
        yield (y := om.interpolate(om.tanh(y), scale_factor=2, mode="bilinear", align_corners=True))
        yield om.mse_loss(y, target)


class Encoder(Reference):
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

    def values(self, ids, x, hidden, labels):
        yield (y := self.embedding(ids) + x)
        for layer in self.layers:
            yield (y := layer(y, src_key_padding_mask=hidden))
        yield (y := self.head(y))
        yield om.cross_entropy(y.flatten(0, 1), labels.flatten())


class Crnn(Reference):
    """Two stages of convolution, relu and pooling, the height folded into the channels, two LSTM layers in both directions, linear, CTC."""

    def __init__(self, channels=(6, 8), height=8, hidden=6, classes=7):
        super().__init__()
        a, b = channels
        self.stages = nn.Sequential(nn.Conv2d(1, a, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(a, b, 3, padding=1), nn.ReLU(),
                                    nn.MaxPool2d((2, 1)))
        self.lstm = nn.LSTM(b * height // 4, hidden, 2, bidirectional=True)
        self.head = nn.Linear(2 * hidden, classes)

    def values(self, x, targets, input_lengths, target_lengths):
        yield (y := self.stages(x))
        y, (h, c) = self.lstm(y.flatten(1, 2).permute(2, 0, 1))
        yield y
        yield h
        yield c
        del h, c
        yield (y := om.log_softmax(self.head(y), 2))
        yield om.ctc_loss(y, targets, input_lengths, target_lengths)


class Gru(Reference):
    """A GRU layer in both directions with initial states that are learnt; the loss looks at all outputs and at the final states."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(5, 7, bidirectional=True)
        self.h0 = nn.Parameter(om.zeros(2, 3, 7))

    def values(self, x, target, final):
        y, h = self.gru(x, self.h0)
        yield y
        yield h
        yield om.mse_loss(y, target) + om.mse_loss(h, final)


MODELS = {"convnet": ConvNet, "decoder": Decoder, "encoder": Encoder, "crnn": Crnn, "gru": Gru}
# Zero in theory, for a batch norm behind it takes any constant away: what is there is rounding alone.
ZERO = {"convnet": {"grad.stages.0.bias", "grad.stages.4.bias"}}


def oracle(name):
    """The parts of the oracle's file: "input", "weight", "torch" and "truth", each name -> tensor."""
    parts = {}
    for key, value in om.load(FOLDER / f"{name}.safetensors").items():
        kind, _, rest = key.partition(".")
        parts.setdefault(kind, {})[rest] = value
    return parts


def made(name):
    """The model with the oracle's weights, and its inputs; x wants its gradient."""
    parts = oracle(name)
    model = MODELS[name]()
    model.load_state_dict({**model.state_dict(), **parts["weight"]})
    parts["input"]["x"].requires_grad_()
    return model, parts["input"]


def digest(named):
    """SHA-256 over names and bits."""
    return hashlib.sha256("".join(f"{name} {value.sha256()}\n" for name, value in named).encode()).hexdigest()


def step(name):
    """One training step in the mode that is set: digests of all values, of all gradients, and of the state after the update."""
    model, inputs = made(name)
    optimizer = om.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    values = list(model.values(**inputs))
    values[-1].backward()
    found = {"values": digest(enumerate(values))}
    found["gradients"] = digest([*((key, p.grad) for key, p in model.named_parameters()), ("x", inputs["x"].grad)])
    optimizer.step()
    found["state"] = digest(model.state_dict().items())
    return found


def lines():
    """`model what sha256` of each reference model, as testdata/exact/models.txt holds them: the bits of one step in exact mode."""
    with om.arithmetic("exact"):
        return [f"{name} {what} {sha}" for name in MODELS for what, sha in step(name).items()]
