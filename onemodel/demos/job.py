"""Owns what the demos have in common: a classifier of small grey images is trained, tested and reported. Must not contain a model."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import onemodel as om
from onemodel.demos import DEMOS

MOMENTUM = 0.9
TOGETHER = 250     # images that are tested at once


class Images(NamedTuple):
    """Images [n, height, width] with values 0 to 1, and the class of each."""

    images: om.Tensor
    labels: om.Tensor


class Job(NamedTuple):
    """What a demo trains, and how."""

    name: str
    model: Callable[[], om.nn.Module]
    rate: Callable[[float], float]      # the learning rate where this share of the steps is done
    epochs: int
    batch: int
    weight_decay: float
    shift: int                          # images are moved by up to so many pixels each way
    images: tuple[int, int]             # of training images there are at most so many, and numbers of them go in steps of so many
    load: Callable[[int | None], tuple[Images, Images]]
    what: str                           # what the images are, in one word


class Outcome(NamedTuple):
    accuracy: float
    seconds: float
    native_allocations: int
    digest: str


def padded(images: om.Tensor, border: int) -> om.Tensor:
    """An empty border, so that windows of the old size can be cut out at different places."""
    if border == 0:
        return images
    n, height, width = images.shape
    result = om.zeros(n, height + 2 * border, width + 2 * border)
    result[:, border:-border, border:-border] = images
    return result


def shifted(images: om.Tensor, border: int, generator: om.Generator) -> om.Tensor:
    """A batch of padded images, moved together by up to the border each way."""
    if border == 0:
        return images
    top, left = om.randint(2 * border + 1, 2, generator=generator).tolist()
    return images[:, top:images.shape[1] - 2 * border + top, left:images.shape[2] - 2 * border + left]


def accuracy(model: om.nn.Module, test: Images) -> float:
    """The share of images that the model recognises."""
    model.eval()
    right = 0
    for start in range(0, len(test.labels), TOGETHER):
        here = slice(start, start + TOGETHER)
        with om.no_grad(), om.ActivationScope():
            right += int((model(test.images[here]).argmax(1) == test.labels[here]).cast(om.int64).sum())
    model.train()
    return right / len(test.labels)


def digest(model: om.nn.Module) -> str:
    """SHA-256 over the names and the bits of all weights."""
    content = "".join(f"{name} {value.sha256()}\n" for name, value in model.state_dict().items())
    return hashlib.sha256(content.encode()).hexdigest()


def train(job: Job, training: Images, test: Images, epochs: int, seed: int = 0, bar: Any = None) -> tuple[om.nn.Module, Outcome]:
    """Train the job's model with momentum; `bar` is told of each step."""
    started = time.perf_counter()
    generator = om.manual_seed(seed)
    model = job.model()
    optimizer = om.optim.SGD(model.parameters(), lr=job.rate(0.0), momentum=MOMENTUM, weight_decay=job.weight_decay)
    dataset = om.data.TensorDataset(padded(training.images, job.shift), training.labels)
    loader = om.data.DataLoader(dataset, job.batch, shuffle=True, generator=generator)
    steps, step, warm = epochs * len(loader), 0, None
    accuracy(model, test)  # its batch may be the largest: what comes later needs no more memory
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.param_groups[0]["lr"] = job.rate(step / steps)
            with om.ActivationScope():
                loss = om.cross_entropy(model(shifted(images, job.shift, generator)), labels)
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


def seed(text: str) -> int:
    return om.Generator(int(text)).initial_seed()


def progress(steps: int) -> Any:
    """A bar on the terminal; without tqdm there is none, and training is the same."""
    try:
        from tqdm import tqdm
    except ImportError:
        return contextlib.nullcontext()
    return tqdm(total=steps, unit="step", disable=None)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that every demo has; `settings` carries them out."""
    parser.add_argument("--seed", type=seed, default=0, help="of weights, order and changes of the data (default 0)")
    parser.add_argument("--isa", choices=om.available_isas(), default=om.get_isa(), help="instruction set (default the best)")
    parser.add_argument("--threads", type=whole, default=om.get_num_threads(), help="threads (default what the process may use)")
    parser.add_argument("--arithmetic", choices=("exact", "fast"), default="exact", help="exact: the same weights to the bit everywhere (default)")


@contextlib.contextmanager
def settings(options: argparse.Namespace) -> Iterator[None]:
    """Threads, instruction set and arithmetic as the options say, and put back afterwards."""
    threads = om.get_num_threads()
    om.set_num_threads(options.threads)
    try:
        with om.use_isa(options.isa), om.arithmetic(options.arithmetic):
            yield
    finally:
        om.set_num_threads(threads)


def arguments(job: Job, argv: Sequence[str]) -> argparse.Namespace:
    most, unit = job.images

    def some(text: str) -> int:
        number = int(text)
        if number % unit or not unit <= number <= most:
            raise argparse.ArgumentTypeError(f"expected a multiple of {unit} up to {most}, got {text}")
        return number

    parser = argparse.ArgumentParser(prog=f"onemodel demo {job.name}", description=DEMOS[job.name].summary)
    parser.add_argument("--epochs", type=whole, default=job.epochs, help=f"passes over the training images (default {job.epochs})")
    parser.add_argument("--images", type=some, help=f"train on this many images only, a multiple of {unit} up to {most} (default all)")
    add_options(parser)
    return parser.parse_args(argv)


def run(job: Job, argv: Sequence[str]) -> int:
    """Run the demo as the command does; returns the exit code."""
    options = arguments(job, argv)
    try:
        training, test = job.load(options.images)
    except (FileNotFoundError, ValueError) as error:
        print(f"onemodel demo {job.name}: {error}")
        return 1

    with settings(options), progress(options.epochs * -(-len(training.labels) // job.batch)) as bar:
        _, outcome = train(job, training, test, options.epochs, options.seed, bar)
    print(f"{len(training.labels)} {job.what}, {options.epochs} epochs, {options.arithmetic} arithmetic, {options.isa}, {options.threads} threads")
    print(f"held-out accuracy       {100 * outcome.accuracy:.1f} % of {len(test.labels)} {job.what} that training never saw")
    print(f"time                    {outcome.seconds:.1f} s")
    print(f"memory from the system  {outcome.native_allocations} allocations after warm-up")
    print(f"weights                 {outcome.digest}")
    return 0
