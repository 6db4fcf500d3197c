"""Owns the tests of whole training steps: the reference models against PyTorch's numbers, their bits, and what memory a step takes.

Must not contain a model; those are in models.py.
"""

import gc
import importlib.util
import json
import sys
import tracemalloc
from pathlib import Path

import models
import numpy as np
import pytest
from registry_cases import paths

import onemodel as om
from onemodel import check_zero_alloc
from onemodel._kernels import table

ROOT = Path(__file__).resolve().parent.parent
PINNED = ROOT / "testdata" / "exact" / "models.txt"
each_model = pytest.mark.parametrize("name", models.MODELS)
# Largest difference of any gradient over its largest element that was seen on any path, and a little more; 1e-4 is what must hold.
WORST = {"convnet": 1e-6, "decoder": 1.2e-6, "encoder": 8e-7, "crnn": 1.5e-6, "gru": 6e-7}
KILOBYTES = {"convnet": 17, "encoder": 58}      # of garbage that a step may make


def computed(name):
    """Loss, gradients and buffers after one forward and backward pass, named as in the oracle's file."""
    model, inputs = models.made(name)
    loss = model(**inputs)
    loss.backward()
    found = {"loss": loss.detach(), **{f"grad.{key}": p.grad for key, p in model.named_parameters()}, "grad.x": inputs["x"].grad}
    return {**found, **{key: value for key, value in model.state_dict().items() if "running" in key or "num_batches" in key}}


def errors(found, wanted, zero=()):
    """Per array, the largest difference over the largest element; for gradients that are zero in theory, over the largest gradient."""
    largest = max(abs(value.numpy()).max() for key, value in wanted.items() if key.startswith("grad."))
    assert set(found) == set(wanted)
    result = {}
    for key, value in found.items():
        a, b = value.numpy(), wanted[key].numpy()
        assert a.shape == b.shape and a.dtype == b.dtype, key
        result[key] = float(abs(a).max() / largest if key in zero else abs(a - b).max() / abs(b).max())
    return result


@each_model
@pytest.mark.parametrize("column", ["torch", "truth"])
def test_every_gradient_is_the_oracles(name, column):
    wanted, zero = models.oracle(name)[column], models.ZERO.get(name, ())
    worst = {}
    for isa, mode, threads in paths(threads=(2,)):
        for key, error in errors(computed(name), wanted, zero).items():
            worst[key] = max(worst.get(key, (0.0,)), (error, isa, mode))
            assert error < 1e-5 if key in zero else error <= WORST[name], (key, error, isa, mode, threads)
    print(name, column, max((value, key) for key, value in worst.items() if key not in zero))


def test_an_error_of_a_thousandth_is_found():
    wanted = models.oracle("convnet")["torch"]
    zero, found = models.ZERO["convnet"], computed("convnet")
    changed = found["grad.stages.4.weight"]
    changed.numpy()[3, 1] *= 1.001
    assert 1e-5 < errors(found, wanted, zero)["grad.stages.4.weight"] < 1e-3
    found["grad.stages.0.bias"].numpy()[2] = 2e-5
    assert errors(found, wanted, zero)["grad.stages.0.bias"] > 1e-5


@each_model
def test_one_step_has_one_digest_everywhere(name):
    """In exact mode the published one, on every instruction set and thread count; in fast mode one for each instruction set."""
    published = dict(line.rsplit(" ", 1) for line in PINNED.read_text().splitlines())
    assert {key.split()[0] for key in published} == set(models.MODELS)
    fast = {}
    for isa, mode, threads in paths(threads=(1, 2, 3, 8)):
        found = models.step(name)
        if mode == "fast":
            assert found == fast.setdefault(isa, found), (isa, threads)
        else:
            assert {f"{name} {what}": sha for what, sha in found.items()} == {key: sha for key, sha in published.items()
                                                                            if key.startswith(f"{name} ")}, (isa, threads)


def test_threads_take_part():
    table.set_smallest_piece(1)
    table.set_num_threads(1)
    om.ones(1 << 16).exp()
    assert table.last_threads() == 1
    table.set_num_threads(3)
    model, inputs = models.made("convnet")
    for _ in range(2000):  # a thread that wakes late finds no piece left
        model.stages[0](inputs["x"])
        if table.last_threads() > 1:
            return
    raise AssertionError("no convolution ran on more than one thread")


def test_the_digest_sees_one_bit():
    model, _ = models.made("convnet")
    before = models.digest(model.state_dict().items())
    model.head[1].weight.detach().numpy().view("uint32")[3, 5] ^= 1
    assert models.digest(model.state_dict().items()) != before


def trainer(name, kept=False):
    """A training step as a user writes it, without arguments; its gradients are freed at its end or, kept, when the next one begins."""
    model, inputs = models.made(name)
    optimizer = om.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step():
        with om.ActivationScope():
            optimizer.zero_grad()
            om.clear_grad(inputs["x"])
            loss = model(**inputs)
            loss.backward()
            optimizer.step()
            if not kept:
                optimizer.zero_grad()
                om.clear_grad(inputs["x"])
            return loss.item()

    return step


@each_model
@pytest.mark.parametrize("mode,kept", [("fast", False), ("exact", False), ("fast", True)])
def test_a_step_learns_and_takes_no_memory(name, mode, kept):
    om.set_arithmetic(mode)
    step = trainer(name, kept)
    losses = [step(), step()]
    gc.collect()
    gc.disable()
    try:
        before = om.pool_stats()
        for _ in range(20):  # after each: gradients that live on are other blocks in every step, of the same size
            losses.append(step())
            change = om.pool_stats() - before
            assert (change.native_allocations, change.outstanding_bytes, change.outstanding_blocks) == (0, 0, 0)
    finally:
        gc.enable()
    assert change.requests > 20 * 10 and losses[-1] < losses[0]


STEP = """
import test_models
step = test_models.trainer({name!r})
"""


@each_model
def test_the_check_of_allocations_passes(name, tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests")
    path = tmp_path / "train.py"
    path.write_text(STEP.format(name=name))
    assert check_zero_alloc.main([str(path), "--step", "step", "--steps", "30", "--json"]) == 0, capsys.readouterr().out
    found = json.loads(capsys.readouterr().out)
    assert found["pool"]["native_allocations"] == 0 and found["pool"]["requests"] > 30 * 10


def garbage(step):
    """Bytes that Python's allocators hold at most beyond what they held before a step, with the collector off: what the step makes."""
    for _ in range(3):
        step()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        step()
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        step()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
        gc.enable()


@pytest.mark.parametrize("name", KILOBYTES)
def test_a_step_makes_little_garbage(name):
    made = garbage(trainer(name))
    print("garbage of a step, bytes", name, made)
    assert 100 < made <= KILOBYTES[name] * 1000, made


def test_garbage_is_seen():
    assert garbage(lambda: [bytes(1000) for _ in range(30)]) > 30_000


# -- against torch itself -------------------------------------------------------------------------------------------------------


def tool(name, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.oracle
@pytest.mark.checkout
@pytest.mark.parametrize("program,names", [("autograd_oracle", ("convnet", "encoder")), ("rnn_oracle", ("decoder", "crnn", "gru", "ctc"))])
def test_the_tool_makes_these_files(program, names, tmp_path, monkeypatch):
    made = tool(program, monkeypatch)
    monkeypatch.setattr(sys.modules.get("autograd_oracle", made), "FOLDER", tmp_path)
    made.main()
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted(names)
    for name in names:
        old, new = om.load(models.FOLDER / f"{name}.safetensors"), om.load(tmp_path / f"{name}.safetensors")
        assert set(old) == set(new)
        for key in old:
            a, b = np.nan_to_num(old[key].numpy()), np.nan_to_num(new[key].numpy())  # a loss of no alignment is infinite
            assert np.array_equal(a, b) or not key.startswith(("input.", "weight.")) and abs(a - b).max() <= 1e-5 * max(abs(a).max(), 0.1), (name, key)


def torch_peak(step, path):
    """The most bytes that one call of torch holds beyond what it held before, by its own profiler's count of each allocation."""
    from torch.profiler import ProfilerActivity, profile

    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    profiler.export_chrome_trace(str(path))
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("name") == "[memory]"]
    held = np.cumsum([e["args"]["Bytes"] for e in sorted(events, key=lambda e: e["ts"])])
    return int(held.max())


def our_peak(step, freed):
    """As much of what the step before left over is `freed` by this one before it takes anything, which torch's profiler does not see."""
    step()
    om.pool_reset_peak()
    before = om.pool_stats().outstanding_bytes - freed
    step()
    return om.pool_stats().peak_outstanding_bytes - before


@pytest.mark.oracle
@pytest.mark.checkout
def test_the_peak_is_not_above_torchs(tmp_path, monkeypatch):
    """The conv net of the speed table, batch 8: everything live at once within a step, gradients too, and scratch on our side."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    om.set_num_threads(2)
    theirs = tool("autograd_oracle", monkeypatch).ConvNet((32, 64), 32)
    ours = models.ConvNet((32, 64), 32)
    x, labels = np.random.default_rng(0).random((8, 3, 32, 32), np.float32), np.arange(8)
    weights = 4 * sum(p.numel() for p in ours.parameters())
    peaks = []
    for library, model, measure in ((torch, theirs, lambda step: torch_peak(step, tmp_path / "trace.json")), (om, ours, lambda step: our_peak(step, weights))):
        inputs = library.tensor(x), library.tensor(labels)

        def step(model=model, inputs=inputs):
            model.zero_grad()
            model(x=inputs[0], labels=inputs[1]).backward()

        peaks.append(measure(step))
    torch.set_num_threads(threads)
    print("peak bytes, torch and ours", peaks)
    assert peaks[0] > 8 * 32 * 32 * 32 * 4 and peaks[1] <= peaks[0], peaks
