"""Owns the tests of tools/bench.py: that rows run and that the gate fails on planted slowness. No test depends on a time."""

import csv
import importlib.util
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")  # where its rows are
    spec = importlib.util.spec_from_file_location("bench", ROOT / "tools" / "bench.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SAMPLE_SECONDS", 1e-5)
    monkeypatch.setattr(module, "measure_limits", lambda: module.Limits(fma=1e11, copy=2e10, read=4e10))
    return module


def test_every_small_row_runs_in_both_modes(bench, tmp_path):
    large = ("10000000", "2048x", "1024x1024x1024", "4096", "batch 16", "batch 64", "batch 8", "batch 32 hidden", "64x32x32x32",
             "hidden 256", "steps 200", "classes 5000", "512 tokens", "1024 tokens", "x64 tokens", "x128 tokens", "8x128", "16x256")
    small = [row.name for row in bench.ROWS if not any(word in row.name for word in large)]
    out = tmp_path / "table.csv"
    assert bench.main(["--samples", "1", "--threads", "1,2", "--csv", str(out), *(f"--rows={name}" for name in small)]) == 0
    table = list(csv.DictReader(out.open()))
    assert {line["row"] for line in table} == set(small)
    assert {(line["threads"], line["mode"]) for line in table} == {(t, m) for t in "12" for m in ("fast", "exact")}
    assert all(float(line["seconds"]) > 0 for line in table)


class Peer:
    """In torch's place: the gate's arithmetic needs no second library."""

    class torch:
        __version__ = "0"


@pytest.fixture
def gate(bench, monkeypatch):
    """Runs the gate over rows whose times are planted: seconds of ours and of the peer."""

    def run(ours, peer, rows="gemm 64x64x64", mode="fast"):
        def planted(row, threads, modes, samples, p):
            return [bench.Cell(row, threads, m, ours, peer) for m in modes]

        monkeypatch.setattr(bench, "Torch", Peer)
        monkeypatch.setattr(bench, "measure", planted)
        return bench.main(["--vs", "torch", "--gate", "--threads", "1", "--mode", mode, "--rows", rows])

    return run


def test_the_gate_passes_at_the_target_and_fails_below(gate, capsys):
    assert gate(1.0, 1.0) == 0
    assert gate(1.0, 0.99) == 1
    assert "gemm 64x64x64, 1 thr, fast: 0.99 of torch, target 1" in capsys.readouterr().out


def test_exact_mode_has_its_own_bound(gate):
    assert gate(1.0, 0.7, "exp 1000", "exact") == 0
    assert gate(1.0, 0.7, "exp 1000", "fast") == 1
    assert gate(1.0, 0.69, "exp 1000", "exact") == 1


def test_the_gate_fails_below_the_machines_limit(gate):
    seconds = 80e6 / 2e10  # what copying 10 million floats takes on the planted machine
    assert gate(seconds / 0.86, 1.0, "exp 10000000") == 0
    assert gate(seconds / 0.84, 1.0, "exp 10000000") == 1


def test_the_gate_asks_for_the_geometric_mean_of_the_squares(gate):
    assert gate(1.0 / 1.16 * 1e-6, 1e-6, "gemm *") == 0
    assert gate(1.0 / 1.14 * 1e-6, 1e-6, "gemm *") == 1


def test_the_gate_asks_for_the_geometric_mean_of_the_convolutions(gate, capsys):
    assert gate(1.0 / 1.51, 1.0, "conv *x*") == 0
    assert gate(1.0 / 1.49, 1.0, "conv *x*") == 1
    assert "geometric mean of the convolutions, 1 thr, fast: 1.49, target 1.5" in capsys.readouterr().out


def test_a_step_may_be_a_tenth_slower_in_exact_mode(bench):
    row = next(row for row in bench.ROWS if row.name == "conv net batch 8")
    assert bench.Cell(row, 1, "exact", 1.10, 3.0, apart=1.10).shortfalls() == []
    assert bench.Cell(row, 1, "exact", 1.11, 3.0, apart=1.11).shortfalls() == ["1.11 of fast mode's time, at most 1.1"]
    cells = bench.measure(next(row for row in bench.ROWS if row.name == "mlp 64-64-10 batch 1"), 1, ["fast", "exact"], 1)
    assert cells[0].apart is None and cells[1].apart == cells[1].seconds / cells[0].seconds


def test_a_ratio_is_the_middle_one_of_the_rounds(bench):
    """Half of the rounds on a machine of half the speed: two in each of them, where the middle times say otherwise."""
    assert bench.quotient([2.0, 2.0, 4.0, 4.0, 4.0], [1.0, 1.0, 2.0, 2.0, 0.5]) == 2.0
    row = next(row for row in bench.ROWS if row.name == "conv net batch 8")
    assert bench.Cell(row, 1, "fast", 2.0, 3.0).ratio == 1.5 and bench.Cell(row, 1, "fast", 2.0, 3.0, ratio=2.5).shortfalls() == []
    assert bench.Cell(row, 1, "fast", 1.0, 3.0, ratio=1.9).shortfalls() == ["1.90 of torch, target 2"]


def test_a_slow_import_trips_the_gate(bench, gate, monkeypatch):
    monkeypatch.setattr(bench, "import_seconds", lambda name, runs=5: 0.05)
    assert gate(1.0, 1.0, "import") == 0
    monkeypatch.setattr(bench, "import_seconds", lambda name, runs=5: 0.07)
    assert gate(1.0, 1.0, "import") == 1


@pytest.mark.parametrize("wrong", [["--gate"], ["--mode", "quick"], ["--threads", "two"], ["--threads", "0"], ["--rows", "no such row"]])
def test_wrong_options_are_refused(bench, wrong):
    with pytest.raises(SystemExit) as stopped:
        bench.main(wrong)
    assert stopped.value.code == 2


@pytest.mark.oracle
def test_both_libraries_compute_the_same(bench):
    """A ratio means nothing if the two sides do different work."""
    import bench_rows

    peer = bench.Torch()
    small = ("gemm 64x", "gemm 256x256x256", *(f"conv {name} batch 1 forward" for name in bench_rows.CONVOLUTIONS), "batch_norm 64x32x32x32 f")
    rows = [row for row in bench.ROWS if row.name.endswith(" 1000") or row.name.startswith(small)]
    assert len(rows) >= 20
    for row in rows:
        ours, theirs = (row.make(lib)().detach().numpy() for lib in (bench.Ours, peer))
        assert ours.shape == theirs.shape and abs(ours - theirs).max() <= 1e-4 * max(1.0, abs(theirs).max()), row.name
