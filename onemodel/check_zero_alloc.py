"""Owns `onemodel check-zero-alloc`: runs a training step many times and fails if it takes memory or grows. Must not change what it runs."""

import argparse
import gc
import json
import runpy
import sys
import traceback
import tracemalloc
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from onemodel.memory import PoolStats, pool_stats

Step = Callable[[], object]

# A resident page more or less belongs to the system; a leak worth the name shows above this within the steps of a run.
RESIDENT_NOISE = 1 << 20
# Python keeps a few objects of its own from time to time (a resized table, a cache line of the interpreter): less than one in four steps.
BLOCKS_PER_STEP = 0.25
BYTES_PER_STEP = 16.0


class Unusable(Exception):
    """The check cannot run; the text says what to change."""


def growth(series: Sequence[int]) -> int:
    """How far the last third lies above the first: 0 unless all of its values do, so that a value that goes up and down never counts."""
    third = max(1, len(series) // 3)
    return max(0, min(series[-third:]) - max(series[:third]))


def reference_step() -> Step:
    """One training step of a small multilayer perceptron on random numbers: forward, loss, backward, update."""
    import numpy as np

    import onemodel as om

    random = np.random.default_rng(0)
    x, wanted = (om.tensor(random.standard_normal(shape)) for shape in ((32, 64), (32, 10)))
    weights = [om.tensor(random.standard_normal(shape) / 8).requires_grad_() for shape in ((64, 64), (64,), (64, 10), (10,))]

    def step() -> float:
        w1, b1, w2, b2 = weights
        with om.ActivationScope():
            error = om.relu(x @ w1 + b1) @ w2 + b2 - wanted
            loss = (error * error).mean()
            loss.backward()
            with om.no_grad():
                for w in weights:
                    assert w.grad is not None
                    w -= w.grad * 0.1
                    om.zero_grad(w)
            return float(loss)

    return step


def load_step(script: str, name: str) -> Step:
    """The named function of a script, which is run once, not as __main__: what stands behind that guard does not run."""
    path = Path(script)
    if not path.is_file():
        raise Unusable(f"no script {script!r} here; give the path of a Python file")
    sys.path.insert(0, str(path.resolve().parent))
    namespace = runpy.run_path(str(path), run_name="__check_zero_alloc__")
    step = namespace.get(name)
    if not callable(step):
        functions = sorted(key for key, value in namespace.items() if callable(value) and not key.startswith("_"))
        raise Unusable(f"{script} has no function {name!r}; it has: {', '.join(functions) or 'none'}; give one without arguments to --step")
    return step


def kinds_of_objects() -> Counter[str]:
    return Counter(f"{type(thing).__module__}.{type(thing).__qualname__}" for thing in gc.get_objects())


def measure(step: Step, warmup: int, steps: int, resident: Callable[[], int]) -> dict[str, Any]:
    """What warmup + 2 x steps runs of the step take and keep."""
    for _ in range(warmup):
        step()
    gc.collect()
    frozen = gc.get_freeze_count()
    gc.freeze()  # what lives now cannot be garbage of the steps: each collection below looks at new objects alone
    try:
        return measure_steps(step, steps, resident)
    finally:
        if not frozen:
            gc.unfreeze()


def measure_steps(step: Step, steps: int, resident: Callable[[], int]) -> dict[str, Any]:
    """First the steps as they are, for the pool and resident memory; then again under Python's own tracing."""
    # Filled in place: lists that grow would be measured too.
    outstanding, rss, traced, blocks = (array("q", bytes(8 * steps)) for _ in range(4))
    before = pool_stats()
    for i in range(steps):
        step()
        outstanding[i] = pool_stats().outstanding_bytes
        rss[i] = resident()
    pool: PoolStats = pool_stats() - before
    in_cycles = gc.collect()

    step()  # what the tracing itself needs is made here
    was_tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        step()
        kinds = kinds_of_objects()
        for i in range(steps):
            step()
            gc.collect()
            blocks[i] = sys.getallocatedblocks()
            traced[i] = tracemalloc.get_traced_memory()[0]
        grown = kinds_of_objects() - kinds
    finally:
        if not was_tracing:
            tracemalloc.stop()
    spread = max(1, steps - 2 * (steps // 3))  # steps between the thirds that growth compares
    return {
        "steps": steps,
        "pool": pool.as_dict(),
        "outstanding_growth_bytes": growth(outstanding),
        "resident_growth_bytes": growth(rss),
        "python_bytes_per_step": growth(traced) / spread,
        "python_blocks_per_step": growth(blocks) / spread,
        "objects_in_cycles_per_step": in_cycles / steps,
        "kinds_that_grew": {kind: n for kind, n in grown.most_common(5) if n >= steps * BLOCKS_PER_STEP},
    }


def complaints(found: dict[str, Any]) -> list[str]:
    """What is wrong, a line each; none when the step takes nothing and keeps nothing."""
    bad = []
    if taken := found["pool"]["native_allocations"]:
        bad.append(f"memory was taken from the system {taken} times in {found['steps']} steps; "
                   "let the warm-up see the largest shape, and keep no tensors")
    if left := found["outstanding_growth_bytes"]:
        bad.append(f"steps leave bytes outstanding, {left} more at the end; is a tensor kept in a list or in a reference cycle?")
    if (grown := found["resident_growth_bytes"]) > RESIDENT_NOISE:
        bad.append(f"resident memory grows, {grown} bytes more at the end")
    if (per_step := found["python_bytes_per_step"]) > BYTES_PER_STEP:
        bad.append(f"Python's memory grows by {per_step:.0f} bytes a step")
    if (per_step := found["python_blocks_per_step"]) > BLOCKS_PER_STEP:
        kinds = ", ".join(f"{kind} (+{n})" for kind, n in found["kinds_that_grew"].items()) or "of kinds the collector does not follow"
        bad.append(f"Python objects grow by {per_step:.1f} a step: {kinds}")
    return bad


def table(found: dict[str, Any]) -> str:
    pool = found["pool"]
    rows = [
        ("blocks asked of the pool, per step", f"{pool['requests'] / found['steps']:.1f}"),
        ("memory taken from the system, times", pool["native_allocations"]),
        ("outstanding bytes, growth", found["outstanding_growth_bytes"]),
        ("resident bytes, growth", found["resident_growth_bytes"]),
        ("Python bytes, growth per step", f"{found['python_bytes_per_step']:.1f}"),
        ("Python objects, growth per step", f"{found['python_blocks_per_step']:.2f}"),
        ("objects left to the cycle collector, per step", f"{found['objects_in_cycles_per_step']:.2f}"),
    ]
    return "\n".join(f"  {what:46} {value:>12}" for what, value in rows)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="onemodel check-zero-alloc",
        description="Run a training step many times; fail if it takes memory from the system, leaves blocks out or grows.",
        epilog="Exit code: 0 nothing taken, nothing kept; 1 the step fails the check; 2 the check could not run.",
    )
    parser.add_argument("script", nargs="?", help="Python file with the step (default: the step of a small network)")
    parser.add_argument("--step", metavar="NAME", help="function of the script that makes one step; called without arguments")
    parser.add_argument("--warmup", type=int, default=5, metavar="N", help="steps before measuring, the largest shape among them (5)")
    parser.add_argument("--steps", type=int, default=60, metavar="N", help="steps to measure, twice (60; at least 12)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args(argv)
    if options.warmup < 1 or options.steps < 12:
        parser.error("expected --warmup of at least 1 and --steps of at least 12: fewer cannot tell growth from a start")
    if (options.script is None) != (options.step is None):
        parser.error("a script and --step belong together: check-zero-alloc train.py --step train_step")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = arguments(argv)
    try:
        import psutil
    except ImportError:
        print("check-zero-alloc: needs psutil for resident memory: pip install 'onemodel-cpu[profile]'", file=sys.stderr)
        return 2
    process = psutil.Process()
    path = list(sys.path)
    try:
        step = load_step(options.script, options.step) if options.script else reference_step()
        found = measure(step, options.warmup, options.steps, lambda: int(process.memory_info().rss))
    except Unusable as error:
        print(f"check-zero-alloc: {error}", file=sys.stderr)
        return 2
    except Exception:
        traceback.print_exc()
        print("check-zero-alloc: the script or its step raised; see above", file=sys.stderr)
        return 2
    finally:
        sys.path[:] = path
    bad = complaints(found)
    if options.json:
        print(json.dumps({"ok": not bad, "complaints": bad, **found}, indent=2))
    else:
        print(f"check-zero-alloc: {options.script or 'reference step'}, {options.warmup} + 2 x {options.steps} steps")
        print(table(found))
        print("\n".join(f"FAILED: {line}" for line in bad) or "ok: no memory taken, nothing kept")
    return 1 if bad else 0
