#!/usr/bin/env python3
"""Owns the speed table: times of bench_rows.py's rows, against PyTorch side by side and against what the machine can do at best.

Needs the built checkout; torch only with --vs torch, a C compiler only for the machine's limits. Must not contain a time that fails a
test: it prints and writes CSV, and exits with 1 below a bound only with --gate.
"""

import argparse
import csv
import ctypes
import fnmatch
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np
from bench_row import Row
from bench_rows import ROWS, means

import onemodel as om

TOOLS = Path(__file__).resolve().parent
SAMPLE_SECONDS = 0.010      # least length of one sample: a thousand times the clock's step and the scheduler's disturbance apart
MODES = ("fast", "exact")


class Failure(Exception):
    """A run that cannot go on; the text says what is missing and what to do."""


# -- the two libraries ----------------------------------------------------------------------------------------------------------


class Ours:
    name = "onemodel"
    tensor = staticmethod(om.tensor)
    set_num_threads = staticmethod(om.set_num_threads)

    @staticmethod
    def function(name):
        return getattr(om, name)

    @staticmethod
    def libraries():
        """What both sides name alike: tensor, layers, optimisers."""
        return om, om.nn, om.optim


class Torch:
    name = "torch"

    def __init__(self):
        try:
            import torch
        except ImportError:
            raise Failure("--vs torch: torch is not installed; pip install torch==2.13.0") from None
        self.torch, self.tensor, self.set_num_threads = torch, torch.tensor, torch.set_num_threads

    def function(self, name):
        functional = name in ("gelu", "ctc_loss", "scaled_dot_product_attention")
        return getattr(self.torch.nn.functional if functional else self.torch, name)

    def libraries(self):
        return self.torch, self.torch.nn, self.torch.optim


# -- measuring ------------------------------------------------------------------------------------------------------------------


def seconds_of(function, calls, clock):
    start = clock()
    for _ in repeat(None, calls):
        function()
    return (clock() - start) / calls


def calls_for(function, clock):
    """Warm-up, and how many calls make a sample of SAMPLE_SECONDS."""
    function()
    calls = 1
    while (took := seconds_of(function, calls, clock) * calls) < SAMPLE_SECONDS and calls < 1 << 20:
        calls = max(calls + 1, math.ceil(calls * 1.2 * SAMPLE_SECONDS / max(took, 1e-7))) if took > SAMPLE_SECONDS / 50 else 8 * calls
    return calls


@dataclass
class Cell:
    """What was measured of one row at one thread count in one mode; seconds of one call."""

    row: Row
    threads: int
    mode: str
    seconds: float
    peer: float | None = None
    share: float | None = None
    apart: float | None = None  # exact / fast, in the exact cell
    ratio: float | None = None  # torch / onemodel: the middle of what the rounds gave, or of the two times where these are all that is known

    def __post_init__(self):
        if self.ratio is None and self.peer is not None:
            self.ratio = self.peer / self.seconds

    @property
    def target(self):
        return self.row.target if self.mode == "fast" else self.row.exact

    def shortfalls(self):
        """The bounds that this cell stays below, in words."""
        short = []
        if self.ratio is not None and self.ratio < self.target:
            short.append(f"{self.ratio:.2f} of torch, target {self.target:g}")
        if self.share is not None and self.mode == "fast" and self.threads == 1 and self.share < self.row.limit:
            short.append(f"{100 * self.share:.0f} % of the machine's limit, target {100 * self.row.limit:.0f} %")
        if self.apart is not None and self.row.apart and self.apart > self.row.apart:
            short.append(f"{self.apart:.2f} of fast mode's time, at most {self.row.apart:g}")
        return short


# Seconds before a turn of several threads: a library's workers spin for a while after its last job, on the core that the next
# library's worker needs; whoever came after torch lost half its speed.
SETTLE = 0.03


def measure(row, threads, modes, samples, peer=None):
    """The row's cells, one per mode: the modes and the peer take turns, so that a disturbance meets all of them alike."""
    # One thread's own time is free of what other processes take; the work of several has to be timed by the clock on the wall.
    clock = time.thread_time if threads == 1 else time.perf_counter
    om.set_num_threads(threads)
    if peer:
        peer.set_num_threads(threads)
    runs = []  # (mode or None for the peer, function, calls)
    function = row.make(Ours)  # one for both modes: where its tensors lie in memory must not tell the modes apart
    for mode in modes:
        with om.arithmetic(mode):
            runs.append((mode, function, calls_for(function, clock)))
    if peer:
        function = row.make(peer)
        runs.append((None, function, calls_for(function, clock)))
    times = {mode: [] for mode, _, _ in runs}
    for _ in range(samples):
        for mode, function, calls in runs:
            if threads > 1:
                time.sleep(SETTLE)
            with om.arithmetic(mode or "fast"):
                times[mode].append(seconds_of(function, calls, clock))
    middle = {mode: statistics.median(t) for mode, t in times.items()}
    apart = quotient(times["exact"], times["fast"]) if len(modes) == len(MODES) else None
    return [Cell(row, threads, mode, middle[mode], middle.get(None), apart=apart if mode == "exact" else None,
                 ratio=quotient(times[None], times[mode]) if peer else None) for mode in modes]


def quotient(a, b):
    """The middle one of the rounds' own quotients: a machine that others use changes its speed from round to round."""
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


@dataclass
class Limits:
    """What one core does at best: operations per second, bytes copied (read and written) and read per second."""

    fma: float
    copy: float
    read: float

    def share(self, row, seconds):
        """Part of the limit that a call reached on one thread; None for rows without a limit."""
        work = row.flops / self.fma + row.copied / self.copy + row.read / self.read
        return work / seconds if work else None


def measure_limits():
    """The machine's limits from limits.c, or None (said on the screen) without a C compiler."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "limits.so")
        command = [*compiler, "-O3", "-march=native", "-shared", "-fPIC", str(TOOLS / "limits.c"), "-o", str(library)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"bench.py: no limits of the machine: {shlex.join(command)} failed ({error}); set CC", file=sys.stderr)
            return None
        native = ctypes.CDLL(str(library))
        for function in (native.fma_rate, native.copy_rate, native.read_rate):
            function.restype = ctypes.c_double
        a, b = np.ones(10_000_000, np.float32), np.ones(10_000_000, np.float32)
        start, to, nbytes, span = (ctypes.c_void_p(a.ctypes.data), ctypes.c_void_p(b.ctypes.data), ctypes.c_size_t(a.nbytes),
                                   ctypes.c_double(0.05))
        best = [max(rate() for _ in range(8)) for rate in (lambda: native.fma_rate(span), lambda: native.copy_rate(start, to, nbytes, span),
                                                           lambda: native.read_rate(start, nbytes, span))]
    return Limits(*best)


def import_seconds(name, runs=5):
    """What importing the library takes when NumPy is there already: the least of fresh interpreters, for the first reads from disk."""
    # The thread's own clock: the threads of NumPy's BLAS spin for a while after they were made, which is not the import's doing.
    code = f"import time, numpy\nstart = time.thread_time()\nimport {name}\nprint(time.thread_time() - start)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TOOLS.parent), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", code]
    return min(float(subprocess.run(command, env=env, check=True, capture_output=True).stdout) for _ in range(runs))


# -- telling --------------------------------------------------------------------------------------------------------------------


def readable(seconds):
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1.0:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"


HEAD = f"{'row':54} {'thr':>3} {'mode':5} {'onemodel':>9} {'torch':>9} {'ratio':>6} {'target':>6} {'limit':>6} {'ex/fast':>7}"


def line(cell):
    peer = "" if cell.peer is None else readable(cell.peer)
    ratio = "" if cell.ratio is None else f"{cell.ratio:.2f}"
    share = "" if cell.share is None else f"{100 * cell.share:.0f} %"
    verdict = "" if cell.peer is None and not cell.row.limit and not cell.row.apart else "short" if cell.shortfalls() else "ok"
    apart = "" if cell.apart is None else f"{cell.apart:.2f}"
    return (f"{cell.row.name:54} {cell.threads:3} {cell.mode:5} {readable(cell.seconds):>9} {peer:>9} {ratio:>6} {cell.target:6g} "
            f"{share:>6} {apart:>7}  {verdict}").rstrip()


def write_csv(path, cells):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["row", "threads", "mode", "seconds", "torch_seconds", "ratio", "target", "share_of_limit", "exact_by_fast"])
        for c in cells:
            writer.writerow([c.row.name, c.threads, c.mode, c.seconds, c.peer, c.ratio, c.target, c.share, c.apart])


def arguments(argv):
    parser = argparse.ArgumentParser(prog="bench.py", description="Times of onemodel, and against torch with --vs torch.")
    parser.add_argument("--vs", choices=["torch"], help="alternate with this library, in this process")
    parser.add_argument("--threads", default="1,2", help="thread counts (default 1,2)")
    parser.add_argument("--mode", default="fast,exact", help="fast, exact or both (default)")
    parser.add_argument("--rows", action="append", metavar="GLOB", help="only rows whose name matches; may be given several times")
    parser.add_argument("--samples", type=int, default=9, help="samples per median (default 9)")
    parser.add_argument("--csv", metavar="FILE", help="also write the table there")
    parser.add_argument("--gate", action="store_true", help="exit with 1 if a bound is not reached (needs --vs torch)")
    options = parser.parse_args(argv)
    if options.gate and not options.vs:
        parser.error("--gate: most bounds are ratios; add --vs torch")
    options.modes = options.mode.split(",")
    if unknown := [m for m in options.modes if m not in MODES]:
        parser.error(f"--mode: expected {' or '.join(MODES)}, got {', '.join(unknown)}")
    try:
        options.counts = [int(n) for n in options.threads.split(",")]
    except ValueError:
        parser.error(f"--threads: expected numbers with commas, got {options.threads!r}")
    if min(options.counts) < 1 or options.samples < 1:
        parser.error("--threads and --samples: expected at least 1")
    options.chosen = [row for row in ROWS if not options.rows or any(fnmatch.fnmatch(row.name, g) for g in options.rows)]
    if not options.chosen and not (options.rows and any(fnmatch.fnmatch("import", g) for g in options.rows)):
        parser.error(f"--rows: no row matches; the rows are: import, {', '.join(row.name for row in ROWS)}")
    return options


def main(argv):
    options = arguments(argv)
    try:
        peer = Torch() if options.vs else None
    except Failure as failure:
        print(f"bench.py: {failure}", file=sys.stderr)
        return 2
    limits = measure_limits()
    if limits:
        print(f"one core at best: {limits.fma / 1e9:.0f} GFLOP/s, copy {limits.copy / 1e9:.1f} GB/s (read and written), "
              f"read {limits.read / 1e9:.1f} GB/s")
    against = f", torch {peer.torch.__version__}" if peer else ""
    print(f"onemodel {om.__version__}, {om.get_isa()}{against}; median of {options.samples}\n\n{HEAD}")
    cells, short = [], []
    for row in options.chosen:
        for threads in options.counts:
            for cell in measure(row, threads, options.modes, options.samples, peer):
                if limits and threads == 1:
                    cell.share = limits.share(row, cell.seconds)
                cells.append(cell)
                short += [f"{row.name}, {threads} thr, {cell.mode}: {text}" for text in cell.shortfalls()]
                print(line(cell), flush=True)
    print()
    for text, value, target in means(cells):
        print(f"{text}: {value:.2f}, target {target:g}  {'ok' if value >= target else 'short'}")
        short += [f"{text}: {value:.2f}, target {target:g}"] if value < target else []
    if not options.rows or any(fnmatch.fnmatch("import", g) for g in options.rows):
        took = import_seconds("onemodel")
        against = f" (torch {import_seconds('torch', 3):.2f} s)" if peer else ""
        print(f"import beyond NumPy: {took:.3f} s{against}, target 0.06  {'ok' if took <= 0.06 else 'short'}")
        short += [f"import beyond NumPy: {took:.3f} s, target 0.06"] if took > 0.06 else []
    if options.csv:
        write_csv(options.csv, cells)
    if short:
        print(f"\n{len(short)} below target:\n  " + "\n  ".join(short))
    return int(bool(short) and options.gate)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
