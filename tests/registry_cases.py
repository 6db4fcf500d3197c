"""Owns the checks that hold for every operator of the registry, one function each; a check raises AssertionError and says where.

The test files call them for each (operator, sample); test_checkers.py calls them with planted errors. Must not name an operator.
"""

import gc
import time

import numpy as np
import pytest

import onemodel as om
from onemodel import memory, samples
from onemodel._kernels import table
from onemodel._pool import pool
from onemodel.ops import OPS
from onemodel.registry import FUNCTIONS, rules

EPS = 2.0**-23
CASES = list(samples.cases())
IDS = [f"{name}-{sample.name}" for name, sample in CASES]
THREADS = (1, 3)
every_sample = pytest.mark.parametrize("name,sample", CASES, ids=IDS)
every_op = pytest.mark.parametrize("name", OPS)


def paths(modes=("fast", "exact"), threads=THREADS):
    """Every instruction set, mode and thread count, set while the loop's body runs; the smallest piece is 1."""
    table.set_smallest_piece(1)
    for isa in table.available_isas():
        for mode in modes:
            for count in threads:
                table.select_isa(isa)
                om.set_arithmetic(mode)
                table.set_num_threads(count)
                yield isa, mode, count


def check_close(got, expected, tolerance, what):
    """`got` within tolerance · float32 epsilon of the largest expected value; integers and bool exactly; NaN and inf where expected."""
    assert got.shape == expected.shape, f"{what}: shape {got.shape}, the reference has {expected.shape}"
    if got.dtype != np.float32:
        assert np.array_equal(got, expected), f"{what}: differs from the reference"
        return
    with np.errstate(over="ignore"):
        rounded = expected.astype(np.float32)
    finite = np.isfinite(rounded)
    same = np.array_equal(np.isfinite(got), finite) and np.array_equal(got[~finite], rounded[~finite], equal_nan=True)
    assert same, f"{what}: NaN or inf where the reference has none, or the reverse"
    scale = np.abs(expected[finite]).max(initial=0)
    worst = np.abs(got[finite] - expected[finite]).max(initial=0)
    assert worst <= tolerance * EPS * scale, f"{what}: error {worst / (EPS * max(scale, 1e-300)):.2f} eps of the largest value, allowed {tolerance}"


def check_forward(name, sample):
    """Each path against the float64 reference; exact paths have one digest, fast ones one digest per instruction set."""
    reference, arrays = samples.reference_of(name, sample)
    expected = reference(arrays)
    seen = {}
    for isa, mode, threads in paths():
        what = f"{name} {sample.name} {isa} {mode} {threads} threads"
        call = samples.call_of(name, sample)
        before = [(t.sha256(), t.version) for t in call.tensors] if not seen else None
        got = samples.outputs(call())
        digest = [t.sha256() for t in got]
        key = mode if mode == "exact" else isa
        if key not in seen:
            seen[key] = digest
            for t, y in zip(got, expected, strict=True):
                check_close(t.detach().numpy(), y, sample.tolerance, what)
        assert digest == seen[key], f"{what}: other bits than the first {key} path"
        if before is not None:
            assert [(t.sha256(), t.version) for t in call.tensors] == before, f"{what}: an input was changed"
        if not OPS[name].differentiable:
            assert not any(t.requires_grad for t in got), f"{what}: not differentiable, but recorded"


def check_memory(name, sample):
    """With the garbage collector off every block comes back (no cycle, no leak), and poisoned memory changes no bit: an element
    that is read before it is written, or after its block went back, shows itself as a NaN."""
    om.set_arithmetic("exact")
    old = pool.set_pool_poison(False)
    zeroed = [om.zeros(16 << k) for k in range(10) for _ in range(8)]  # free blocks may still hold the poison of an earlier check
    del zeroed
    clean = samples.run(name, sample)
    gc.disable()
    pool.set_pool_poison(True)
    try:
        before = memory.pool_stats()
        poisoned = samples.run(name, sample)
        digests = poisoned.result_digest, poisoned.gradient_digest
        change = memory.pool_stats() - before
    finally:
        pool.set_pool_poison(old)
        gc.enable()
    kept = (change.outstanding_blocks, change.outstanding_bytes)
    assert kept == (0, 0), f"{name} {sample.name}: {kept[0]} blocks of {kept[1]} bytes did not come back"
    assert digests == (clean.result_digest, clean.gradient_digest), f"{name} {sample.name}: poisoned memory changed the bits"


def check_gradient(name, sample, tolerance=None):
    """The gradient of Σ W·y against the derivative of the float64 reference by central differences, on each path."""
    reference, arrays = samples.reference_of(name, sample)
    seen = {}
    for isa, mode, threads in paths():
        what = f"{name} {sample.name} {isa} {mode} {threads} threads"
        run = samples.run(name, sample)
        key = mode if mode == "exact" else isa
        if key not in seen:
            seen[key] = run.gradient_digest
            if len(seen) == 1:
                expected = derivative(reference, arrays, run, differentiated(sample)) if sample.gradcheck else None
            if expected is not None:
                assert len(run.gradients) == len(expected), f"{what}: {len(run.gradients)} gradients, expected {len(expected)}"
                for number, (g, e) in enumerate(zip(run.gradients, expected, strict=True)):
                    check_close(g, e, tolerance or max(16.0, 4 * sample.tolerance), f"{what}, gradient of input {number}")
        assert run.gradient_digest == seen[key], f"{what}: other gradient bits than the first {key} path"


def differentiated(sample):
    """Per input, whether the sample asks for its gradient."""
    return samples.with_inputs(sample, lambda x, _: x.requires_grad)[2]


def derivative(reference, arrays, run, wanted=None):
    """dL/dx of L = Σ W·reference, per float64 input (of those wanted), by central differences extrapolated from two steps (error of order h⁴)."""
    shapes = [r for r in run.results if r.dtype == np.float32]
    scales = [samples.weights(r, number).astype(np.float64) for number, r in enumerate(shapes)]

    def loss(new):
        return sum(np.sum(w * y) for w, y in zip(scales, reference(new), strict=True))

    found = []
    for number, x in enumerate(arrays):
        if x.dtype != np.float64 or not (wanted is None or wanted[number]):
            continue
        dx = np.empty_like(x)
        for i in np.ndindex(x.shape):
            slopes = []
            for h in (2e-5, 1e-5):
                ends = []
                for sign in (1, -1):
                    moved = x.copy()
                    moved[i] += sign * h
                    ends.append(loss([moved if k == number else a for k, a in enumerate(arrays)]))
                slopes.append((ends[0] - ends[1]) / (2 * h))
            dx[i] = (4 * slopes[1] - slopes[0]) / 3
        found.append(dx)
    return found


def check_error(name, sample):
    """The right exception with its operator's words, at once, with nothing taken that does not come back."""
    call = samples.call_of(name, sample)

    def attempt():
        start = time.process_time()
        try:
            call()
        except sample.error as error:
            return str(error), time.process_time() - start
        except BaseException as error:
            raise AssertionError(f"{name} {sample.name}: expected {sample.error.__name__}, got {error!r}") from error
        raise AssertionError(f"{name} {sample.name}: expected {sample.error.__name__}, got a result")

    attempt()
    gc.disable()
    try:
        before = memory.pool_stats()
        tries = [attempt() for _ in range(5)]
        change = memory.pool_stats() - before
    finally:
        gc.enable()
    assert sample.message in tries[0][0], f"{name} {sample.name}: {sample.message!r} is not in {tries[0][0]!r}"
    assert (change.outstanding_blocks, change.native_allocations) == (0, 0), f"{name} {sample.name}: an error left memory taken"
    assert min(seconds for _, seconds in tries) < 0.01, f"{name} {sample.name}: an error must not wait for work or memory"


JUNK = [None, 2**70, -(2**70), 2**62, -(2**63), -1, 0, 1.5, float("nan"), "word", b"x", [], (), [None], {}, object, Ellipsis, slice(None), np.float64(3),
        np.ones(2), np.array(1), True, 1j, [[1], [2, 3]], range(3), (2**62, 2**62), [2**31] * 4]
CLEAN = (TypeError, ValueError, IndexError, MemoryError, RuntimeError)


def junk_tensors():
    """Tensors that fit nowhere in particular, one of them without memory."""
    return [om.ones(0), om.ones(()), om.ones(2, 2), om.tensor([1]), om.tensor([True]), om.ones(*[1] * 16), om.Tensor.__new__(om.Tensor)]


def check_junk(name):
    """Anything at all in the place of each argument: a result, or an error of the contract; never another, never a crash."""
    seen = set()
    for sample in samples.samples_of(OPS[name]):
        args, kwargs, _ = samples.with_inputs(sample, samples.tensor_of)
        kind = (tuple(type(a) for a in args), *kwargs)
        if kind in seen:
            continue
        seen.add(kind)
        for place in [*range(len(args) + 1), *kwargs, "dim"]:
            for junk in [*JUNK, *junk_tensors()]:
                new, named = list(args), dict(kwargs)
                if isinstance(place, int):
                    new[place:place + 1] = [junk]
                else:
                    named[place] = junk
                try:
                    for y in samples.outputs(FUNCTIONS[name](*new, **named)):
                        if y.requires_grad and y.numel() < 10_000:
                            y.backward(om.ones(*y.shape), retain_graph=True)
                except CLEAN as error:
                    assert not isinstance(error, RecursionError), f"{name}: {junk!r} as argument {place}: {error!r}"
                except BaseException as error:
                    raise AssertionError(f"{name}: {junk!r} as argument {place} raised {error!r}") from error


def check_closed_scope(name):
    """A tensor whose scope returned its memory raises in every operator, and is never read."""
    for sample in samples.samples_of(OPS[name]):
        args, kwargs, made = samples.with_inputs(sample, returned)
        if made:
            with pytest.raises(om.ScopeClosedError):
                FUNCTIONS[name](*args, **kwargs)


def returned(x, number):
    with memory.ActivationScope():
        return samples.tensor_of(x, number).detach().clone()


def shares_work(name):
    """Whether its compiled rule is arithmetic, so that threads have something to share; views and copies have not."""
    return any(type(rule).__module__ not in ("onemodel.views", "onemodel.joins") for rule in rules(OPS[name]))


def check_threads(name, seconds=20):
    """Somewhere in the samples' work, in the smallest pieces, more than one thread takes part (a sample needs more than 64 elements)."""
    table.set_smallest_piece(1)
    table.set_num_threads(1)
    om.ones(1 << 16).exp()
    assert table.last_threads() == 1  # what an earlier job left must not count
    table.set_num_threads(3)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for sample in samples.samples_of(OPS[name]):
            call = samples.call_of(name, sample)
            call()
            if table.last_threads() > 1:
                return
    raise AssertionError(f"{name}: no sample ran on more than one thread")
