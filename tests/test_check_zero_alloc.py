"""Owns the tests of check-zero-alloc: a clean step passes, and each kind of leak planted in a step makes it fail with its own words."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from onemodel import check_zero_alloc, cli
from onemodel._pool import pool

TOOL = Path(__file__).resolve().parent.parent / "tools" / "check_zero_alloc.py"

CLEAN = """
import mmap
from onemodel._pool import pool
kept, count = [], 0
def step():
    blocks = [pool.take_block(n) for n in (100, 5000, 300_000)]
    for block in blocks:
        pool.give_block(block)
not_a_function = 3
"""
# name -> (what the step does besides, what the check must say)
LEAKS = {
    "block": ("kept.append(pool.take_block(10_000))", "leave bytes outstanding"),
    "block-now-and-then": ("count += 1\n    if count % 5 == 0: kept.append(pool.take_block(10_000))", "leave bytes outstanding"),
    "growing-shapes": ("count += 1\n    pool.give_block(pool.take_block(count * 1_000_000))", "taken from the system"),
    "list": ("kept.append(object())", "Python objects grow by 1"),
    "kind": ("kept.append([1, 2])", r"builtins\.list"),
    "bytes": ("kept.append(bytes(1000))", "Python's memory grows by 10"),
    "cycle-with-a-block": ("kept.append([pool.take_block(100)]); kept[-1].append(kept)", "leave bytes outstanding"),
    "memory-of-others": ("kept.append(mmap.mmap(-1, 200_000)); kept[-1].write(b'x' * 200_000)", "resident memory grows"),
}


def script(tmp_path, extra=""):
    body = CLEAN if not extra else CLEAN.replace("def step():\n", f"def step():\n    global count\n    {extra}\n")
    path = tmp_path / "train.py"
    path.write_text(body)
    return str(path)


def test_a_clean_step_passes(tmp_path, capsys):
    assert check_zero_alloc.main([script(tmp_path), "--step", "step"]) == 0
    out = capsys.readouterr().out
    assert "ok: no memory taken, nothing kept" in out and "FAILED" not in out
    assert "per step" in out and "5 + 2 x 60 steps" in out


def test_the_reference_step_trains_and_passes(capsys):
    step = check_zero_alloc.reference_step()
    losses = [step() for _ in range(40)]
    assert losses[-1] < 0.7 * losses[0]
    del step
    assert check_zero_alloc.main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pool"]["requests"] >= 60 * 10, "the step must go through the pool"
    assert found["pool"]["native_allocations"] == 0 and found["outstanding_growth_bytes"] == 0


TENSOR_LEAK = """
import onemodel as om
kept, w = [], om.ones(100, 100).requires_grad_()
def step():
    with om.ActivationScope() as scope:
        loss = (w * w).sum()
        loss.backward()
        LEAK
    om.zero_grad(w)
"""


KEPT = {"nothing": "pass", "loss": "kept.append(scope.keep(loss))", "factory": "kept.append(om.ones(10))",
        "view": "kept.append((w * 2).detach().numpy())"}


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_tensor_is_found(tmp_path, capsys, name):
    code = int(name != "nothing")
    path = tmp_path / "train.py"
    path.write_text(TENSOR_LEAK.replace("LEAK", KEPT[name]))
    assert check_zero_alloc.main([str(path), "--step", "step"]) == code
    assert ("leave bytes outstanding" in capsys.readouterr().out) == bool(code)


def test_json_says_the_same(tmp_path, capsys):
    assert cli.main(["check-zero-alloc", script(tmp_path), "--step", "step", "--json", "--steps", "12", "--warmup", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True and found["complaints"] == []
    assert found["pool"]["requests"] == 3 * 12 and found["pool"]["native_allocations"] == 0
    assert set(found["pool"]) == set(pool.COUNTERS)


@pytest.mark.parametrize("extra,words", LEAKS.values(), ids=LEAKS)
def test_a_planted_leak_fails(tmp_path, capsys, extra, words):
    path = script(tmp_path, extra)
    assert check_zero_alloc.main([path, "--step", "step"]) == 1
    out = capsys.readouterr().out
    assert re.search(words, out), out


def test_values_that_go_up_and_down_are_no_growth():
    assert check_zero_alloc.growth([0, 5, 0, 5, 0, 5, 0, 5, 0, 9, 0, 9]) == 0
    assert check_zero_alloc.growth([5] * 12) == 0
    assert check_zero_alloc.growth([9, 8, 7, 6, 5, 4, 3, 2, 1]) == 0
    assert check_zero_alloc.growth(list(range(12))) == 8 - 3
    assert check_zero_alloc.growth([0, 1, 0, 1, 4, 4, 4, 3, 3]) == 3 - 1


@pytest.mark.parametrize("call,words", [
    (["nowhere.py", "--step", "step"], "no script 'nowhere.py' here"),
    (["SCRIPT", "--step", "stepp"], "no function 'stepp'; it has: step"),
    (["SCRIPT", "--step", "not_a_function"], "no function 'not_a_function'"),
], ids=["no-file", "no-function", "not-callable"])
def test_a_wrong_script_is_said(tmp_path, capsys, call, words):
    path = script(tmp_path)
    before = list(sys.path)
    assert check_zero_alloc.main([path if word == "SCRIPT" else word for word in call]) == 2
    assert words in capsys.readouterr().err
    assert sys.path == before


@pytest.mark.parametrize("call,words", [
    (["SCRIPT"], "belong together"), (["--step", "step"], "belong together"),
    (["--steps", "11"], "at least 12"), (["--warmup", "0"], "at least 1"),
], ids=lambda value: "-".join(value) if isinstance(value, list) else "")
def test_a_wrong_call_is_said(tmp_path, capsys, call, words):
    path = script(tmp_path)
    with pytest.raises(SystemExit) as stop:
        check_zero_alloc.main([path if word == "SCRIPT" else word for word in call])
    assert stop.value.code == 2 and words in capsys.readouterr().err


def test_a_step_that_raises_is_no_pass(tmp_path, capsys):
    assert check_zero_alloc.main([script(tmp_path, "raise KeyError('lost')"), "--step", "step"]) == 2
    err = capsys.readouterr().err
    assert "KeyError: 'lost'" in err and "its step raised" in err


def test_without_psutil_the_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert check_zero_alloc.main([]) == 2
    assert "onemodel-cpu[profile]" in capsys.readouterr().err


@pytest.mark.checkout
def test_the_tool_is_the_command(tmp_path):
    for extra, code in (("kept.append(object())", 1), ("", 0)):
        done = subprocess.run([sys.executable, str(TOOL), script(tmp_path, extra), "--step", "step"], capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        assert ("FAILED: Python objects grow" in done.stdout) == (code == 1)
