"""Owns the demo `read-digits`: lines of real handwritten digits, and a recurrent network with CTC that reads them. Must not contain decoding."""

from __future__ import annotations

import argparse
import importlib.util
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import onemodel as om
from onemodel.demos import DEMOS, digits, job
from onemodel.demos.decoding import distance, greedy

NAME = "read-digits"
SIDE = digits.SIDE
HEIGHT = 32                       # of a line
SHORTEST, LONGEST = 3, 8          # digits in a line
LENGTHS = (8, 3, 6, 4, 7, 5)      # in turn, one for each step: the largest first, so that all others find their memory in the pool
CHANNELS, POOLS = (8, 24, 48), ((2, 2), (2, 2), (2, 1))   # the last stage keeps the columns: four of them or so for each digit
HIDDEN, DROPOUT = 64, 0.15
STEPS, BATCH = 1800, 32
RATE, CLIP = 4e-3, 5.0
COPIES = 12                       # of each training digit, each bent in another way
TEST_LINES = 200                  # of each length
INK = 40                          # grey values above this count as ink


class Glyphs(NamedTuple):
    """Digits to compose with: grey values [n, 28, 28], the columns between which the ink of each lies, and what they are."""

    grey: np.ndarray
    left: np.ndarray
    right: np.ndarray
    labels: np.ndarray


class Lines(NamedTuple):
    """Lines of one number of digits: images [n, 32, width] with values 0 to 1, and classes [n, digits], the digit and 1: 0 is CTC's blank."""

    images: om.Tensor
    labels: om.Tensor


class Outcome(NamedTuple):
    errors: float                 # wrong, missing and surplus characters for each character there is
    lines: float                  # the share of lines read without a fault
    seconds: float
    native_allocations: int
    digest: str


def glyphs(grey: np.ndarray, labels: np.ndarray) -> Glyphs:
    """Grey values [n, 28, 28] of type uint8 with the place of their ink."""
    ink = grey.max(1) > INK
    return Glyphs(grey, ink.argmax(1), SIDE - ink[:, ::-1].argmax(1), labels)


def bent(images: np.ndarray, labels: np.ndarray, copies: int, generator: om.Generator) -> Glyphs:
    """Copies of images (values 0 to 1), each scaled by up to 15 % both ways, sheared and turned a little, in ink of 3/4 to 3/2 strength.

    Each line of arithmetic is one IEEE operation on every element, so that the bits are the same on every machine.
    """
    count, grey = len(images) * copies, np.empty((len(images) * copies, SIDE, SIDE), np.uint8)
    edged = np.zeros((len(images), SIDE + 2, SIDE + 2), np.float32)   # an empty edge, so that all four neighbours of a place are there
    edged[:, 1:-1, 1:-1] = images
    flat, pitch, middle = edged.reshape(-1), SIDE + 2, np.float32(SIDE / 2 + 0.5)
    across = np.arange(SIDE, dtype=np.float32) - np.float32((SIDE - 1) / 2)
    down, last = across[:, None], np.float32(SIDE + 1 - 2.0**-10)
    for start in range(0, count, 500):                                # pieces that stay in the cache
        n = min(500, count - start)
        strength = om.rand(n, 1, 1, generator=generator).numpy()
        wide, high, shear, turn = om.rand(4, n, 1, 1, generator=generator).numpy() * np.float32(2) - np.float32(1)
        x = np.clip(across / (1 + np.float32(0.15) * wide) + np.float32(0.25) * shear * down + middle, 0, last)
        y = np.clip(down / (1 + np.float32(0.15) * high) + np.float32(0.12) * turn * across + middle, 0, last)
        column, row = x.astype(np.int32), y.astype(np.int32)
        x, y = x - column.astype(np.float32), y - row.astype(np.float32)
        image = (np.arange(start, start + n) % len(images)).astype(np.int32)[:, None, None]
        at = (image * pitch + row) * pitch + column
        above = flat[at] * (1 - x) + flat[at + 1] * x
        below = flat[at + pitch] * (1 - x) + flat[at + pitch + 1] * x
        ink = (above * (1 - y) + below * y) * (np.float32(191.25) + np.float32(191.25) * strength)
        grey[start:start + n] = np.minimum(ink + np.float32(0.5), np.float32(255))
    return glyphs(grey, np.tile(labels, copies))


def compose(source: Glyphs, length: int, count: int, generator: om.Generator) -> Lines:
    """Lines of so many digits, drawn at random: 1 column of overlap to 6 of space between digits, each up to 2 rows off the middle, the whole
    anywhere on a line as wide as `length` wide digits. What does not fit is pushed together."""
    which = om.randint(len(source.grey), (count, length), generator=generator).numpy()
    space, off, place = om.rand(3, count, length, generator=generator).numpy()
    left = source.left[which]
    wide = source.right[which] - left
    steps = wide + (space * np.float32(8)).astype(np.int64) - 1
    steps[:, 0] = wide[:, 0]
    ends = np.cumsum(steps, 1)
    width = 20 * length + 12
    room = width - 4 - ends[:, -1:]
    starts = ends - wide + 2 + np.minimum(room, 0) * np.arange(length) // (length - 1)
    starts += (np.maximum(room, 0).astype(np.float32) * place[:, :1]).astype(np.int64)
    top = (off * np.float32(HEIGHT - SIDE + 1)).astype(np.int64)
    lines = np.zeros((count, HEIGHT, width), np.uint8)
    places = zip(which.ravel().tolist(), left.ravel().tolist(), wide.ravel().tolist(), starts.ravel().tolist(), top.ravel().tolist(), strict=True)
    for i, (glyph, first, columns, x, y) in enumerate(places):
        here = lines[i // length, y:y + SIDE, x:x + columns]
        np.maximum(here, source.grey[glyph, :, first:first + columns], out=here)
    return Lines(om.tensor(lines.astype(np.float32) / np.float32(255)), om.tensor(source.labels[which] + 1))


class Reader(om.nn.Module):
    """Stages of convolution, batch norm, max pooling and relu, a bidirectional LSTM over the columns, and log-probabilities of the classes for each
    of them, [columns, n, 11] (after Shi, Bai and Yao 2017). Pooling stands before relu: the same values, a quarter of the work."""

    def __init__(self) -> None:
        super().__init__()
        nn = om.nn
        layers: list[om.nn.Module] = []
        for before, after, pool in zip((1, *CHANNELS), CHANNELS, POOLS, strict=False):
            layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.MaxPool2d(pool), nn.ReLU()]
        self.stages = nn.Sequential(*layers)
        self.dropout = nn.Dropout(DROPOUT)
        self.lstm = nn.LSTM(CHANNELS[-1] * HEIGHT // math.prod(down for down, _ in POOLS), HIDDEN, bidirectional=True)
        self.head = nn.Linear(2 * HIDDEN, 11)

    def forward(self, images: om.Tensor) -> om.Tensor:
        y = self.stages(images.unsqueeze(1))
        columns = y.permute(3, 0, 1, 2).reshape(y.shape[3], y.shape[0], -1)
        return om.log_softmax(self.head(self.lstm(self.dropout(columns))[0]), 2)


def read(model: Reader, lines: Lines) -> list[list[int]]:
    """What the model reads, digit by digit, by the scores of three readings together: of the line, and of it moved by a row up and down."""
    edge = np.zeros((lines.images.shape[0], 1, lines.images.shape[2]), np.float32)
    taller = np.concatenate([edge, lines.images.numpy(), edge], 1)
    with om.no_grad(), om.ActivationScope():
        scores = model(lines.images) + model(om.tensor(taller[:, :HEIGHT])) + model(om.tensor(taller[:, 2:]))
        return [[label - 1 for label in found] for found in greedy(scores)]


def error_rates(model: Reader, tests: Sequence[Lines]) -> tuple[float, float]:
    """Character error rate and the share of lines without a fault."""
    model.eval()
    faults = [[distance(found, right) for found, right in zip(read(model, lines), (lines.labels - 1).tolist(), strict=True)] for lines in tests]
    model.train()
    characters = sum(lines.labels.numel() for lines in tests)
    return sum(map(sum, faults)) / characters, sum(row.count(0) for row in faults) / sum(map(len, faults))


def held_out_glyphs(test: job.Images) -> Glyphs:
    """The digits that are for testing alone, as they are."""
    return glyphs((test.images.numpy() * np.float32(255) + np.float32(0.5)).astype(np.uint8), test.labels.numpy())


def held_out(source: Glyphs, count: int) -> list[Lines]:
    """Lines of each length for testing, always the same ones; the longest first."""
    generator = om.Generator(2**32)
    return [compose(source, length, count, generator) for length in range(LONGEST, SHORTEST - 1, -1)]


def train(training: job.Images, tests: Sequence[Lines], steps: int, seed: int = 0, bar: Any = None, batch: int = BATCH) -> tuple[Reader, Outcome]:
    """Train a reader with Adam on lines of the training digits; `bar` is told of each step."""
    started = time.perf_counter()
    generator = om.manual_seed(seed)
    source = bent(training.images.numpy(), training.labels.numpy(), COPIES, generator)
    model = Reader()
    optimizer = om.optim.Adam(model.parameters(), lr=RATE)
    schedule = om.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps, pct_start=0.15)
    error_rates(model, tests[:1])  # its batch may be the largest: what comes later needs no more memory
    warm = None
    for step in range(steps):
        images, labels = compose(source, LENGTHS[step % len(LENGTHS)], batch, generator)
        with om.ActivationScope():
            scores = model(images)
            loss = om.ctc_loss(scores, labels, (scores.shape[0],) * batch, (labels.shape[1],) * batch)
            loss.backward()
            om.optim.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
            if bar is not None:
                bar.update()
                if step % 20 == 19:
                    bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
        schedule.step()
        if step + 1 == min(2 * len(LENGTHS), steps):
            warm = om.pool_stats()
    errors, right = error_rates(model, tests)
    taken = (om.pool_stats() - warm).native_allocations if warm is not None else 0
    return model, Outcome(errors, right, time.perf_counter() - started, taken, job.digest(model))


def save_picture(path: Path, model: Reader, tests: Sequence[Lines], count: int = 10) -> None:
    """A PNG of lines of all lengths, above each what was read and, where that is wrong, what stands there."""
    from matplotlib.figure import Figure

    model.eval()
    chosen = [(lines, i) for i in range(-(-count // len(tests))) for lines in tests][:count]
    figure = Figure(figsize=(6, 0.8 * count), layout="constrained")
    for axes, (lines, i) in zip(figure.subplots(count, 1), chosen, strict=True):
        one = Lines(lines.images[i:i + 1], lines.labels[i:i + 1])
        found, right = ("".join(map(str, text)) for text in (read(model, one)[0], (one.labels[0] - 1).tolist()))
        axes.imshow(one.images[0].numpy(), cmap="gray_r")
        title, color = (found, "black") if found == right else (f"{found}, but it says {right}", "red")
        axes.set_title(title, fontsize=9, loc="left", color=color)
        axes.axis("off")
        axes.set_anchor("W")
    model.train()
    figure.savefig(path, dpi=150, format="png")


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    def number(text: str) -> int:
        if not 1 <= int(text) <= 1_000_000:
            raise argparse.ArgumentTypeError(f"expected a whole number of 1 to 1000000, got {text}")
        return int(text)

    def picture(text: str) -> Path:
        if not Path(text).absolute().parent.is_dir() or Path(text).is_dir():
            raise argparse.ArgumentTypeError(f"expected a file in a folder that is there, got {text!r}")
        if importlib.util.find_spec("matplotlib") is None:
            raise argparse.ArgumentTypeError("a picture needs matplotlib: `pip install matplotlib` (the extra docs has it)")
        return Path(text)

    parser = argparse.ArgumentParser(prog=f"onemodel demo {NAME}", description=DEMOS[NAME].summary)
    parser.add_argument("--steps", type=number, default=STEPS, help=f"training steps of {BATCH} lines each (default {STEPS})")
    parser.add_argument("--save", type=picture, metavar="PICTURE.png", help="write a picture of ten held-out lines with what was read")
    job.add_options(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run the demo; returns the exit code."""
    options = arguments(argv)
    try:
        training, test = digits.load()
    except (FileNotFoundError, ValueError) as error:
        print(f"onemodel demo {NAME}: {error}")
        return 1
    tests = held_out(held_out_glyphs(test), TEST_LINES)
    with job.settings(options), job.progress(options.steps) as bar:
        model, outcome = train(training, tests, options.steps, options.seed, bar)
        if options.save is not None:
            save_picture(options.save, model, tests)
    print(f"{options.steps} steps of {BATCH} lines of {SHORTEST} to {LONGEST} real digits, {options.arithmetic} arithmetic, {options.isa}, "
          f"{options.threads} threads")
    count = sum(len(lines.labels) for lines in tests)
    print(f"character error rate    {100 * outcome.errors:.2f} % on {count} lines of digits that training never saw")
    print(f"lines without a fault   {100 * outcome.lines:.1f} %")
    print(f"time                    {outcome.seconds:.1f} s")
    print(f"memory from the system  {outcome.native_allocations} allocations after warm-up")
    if options.save is not None:
        print(f"picture                 {options.save}")
    print(f"weights                 {outcome.digest}")
    return 0
