"""Owns the demo `fashion`: Fashion-MNIST as Debian packages it, and the reader of its files. Must not contain how a demo runs."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import onemodel as om
from onemodel.demos import digits_conv, job
from onemodel.demos.job import Images

FOLDER = Path("/usr/share/datasets/fashion-mnist")   # of the package dataset-fashion-mnist (Xiao, Rasul and Vollgraf 2017)
SIDE, TRAINING, TEST = 28, 60_000, 10_000


def read_idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """The bytes of a gzipped idx file: two zero bytes, 8 for uint8, the number of dimensions, each as four bytes, then the elements.

    FileNotFoundError without the file; ValueError for anything but an intact file of this shape.
    """
    head = bytes((0, 0, 8, len(shape))) + b"".join(n.to_bytes(4, "big") for n in shape)
    size = math.prod(shape)
    try:
        with gzip.open(path) as file:
            found, content = file.read(len(head)), file.read(size + 1)
    except FileNotFoundError:
        raise
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: cannot be unpacked ({error})") from None
    if found[:4] != head[:4]:
        raise ValueError(f"{path}: expected an idx file of uint8, {len(shape)} dimensions, that begins with {head[:4].hex()}, got {found[:4].hex()}")
    if found != head:
        sizes = [int.from_bytes(found[i:i + 4], "big") for i in range(4, len(found), 4)]
        raise ValueError(f"{path}: expected dimensions {list(shape)}, got {sizes}")
    if len(content) != size:
        raise ValueError(f"{path}: expected {size} bytes of elements, got {'more' if len(content) > size else len(content)}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def read(kind: str, count: int) -> Images:
    """The images and labels of "train" or "t10k"."""
    images = read_idx(FOLDER / f"{kind}-images-idx3-ubyte.gz", (count, SIDE, SIDE))
    labels = read_idx(FOLDER / f"{kind}-labels-idx1-ubyte.gz", (count,))
    if labels.max() > 9:
        raise ValueError(f"{FOLDER / kind}: expected labels of 0 to 9, got {labels.max()}")
    return Images(om.tensor(images.astype(np.float32) / np.float32(255)), om.tensor(labels.astype(np.int64)))


def load(images: int | None = None) -> tuple[Images, Images]:
    """Training and test images; `images` takes the first so many for training."""
    try:
        training, test = read("train", TRAINING), read("t10k", TEST)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error.filename} is missing: on Debian and Ubuntu `apt install dataset-fashion-mnist` installs it") from None
    return Images(training.images[:images], training.labels[:images]), test


def network() -> om.nn.Module:
    return digits_conv.ConvNet((16, 32), SIDE)


JOB = job.Job("fashion", network, digits_conv.one_cycle, epochs=2, batch=100, weight_decay=5e-4, shift=0, images=(TRAINING, 100),
              load=load, what="articles of clothing")


def main(argv: Sequence[str]) -> int:
    """Run the demo; returns the exit code."""
    return job.run(JOB, argv)
