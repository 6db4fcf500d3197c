"""Owns the proof of exact mode: published digests on every instruction set and thread count. Must not contain a digest."""

import importlib.util
from pathlib import Path

import pytest
import registry_cases as checks

import onemodel as om
from onemodel import samples
from onemodel._kernels import table

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "testdata" / "exact" / "hashes.txt"


def published():
    """(op, sample, direction) -> digest."""
    rows = [line.rsplit(" ", 1) for line in FILE.read_text().splitlines()]
    assert len({key for key, _ in rows}) == len(rows), "a line stands twice"
    return dict(rows)


def compare(computed, known):
    """Complaints: other bits, no line, a line for nothing."""
    bad = [f"{key}: other bits than published" for key in computed if key in known and computed[key] != known[key]]
    bad += [f"{key}: no line in hashes.txt; run python3 tools/dev.py pin" for key in computed if key not in known]
    return bad + [f"{key}: a line for something that does not exist" for key in known if key not in computed]


def computed(cases):
    found = {}
    for name, sample in cases:
        run = samples.run(name, sample)
        found[f"{name} {sample.name} forward"] = run.result_digest
        if run.gradients:
            found[f"{name} {sample.name} backward"] = run.gradient_digest
    return found


@pytest.mark.parametrize("isa", table.available_isas())
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_published_digests(isa, threads):
    table.set_smallest_piece(1)
    table.select_isa(isa)
    table.set_num_threads(threads)
    om.set_arithmetic("exact")
    assert compare(computed(checks.CASES), published()) == []


def test_the_tool_writes_this_file():
    spec = importlib.util.spec_from_file_location("pin_hashes", ROOT / "tools" / "pin_hashes.py")
    pin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pin)
    assert pin.FILE == FILE and "\n".join(pin.lines()) + "\n" == FILE.read_text()


def test_planted_faults_are_found():
    known = {"add one forward": "aa", "add one backward": "bb"}
    assert compare(dict(known), known) == []
    assert compare({**known, "add one forward": "ab"}, known) == ["add one forward: other bits than published"]
    assert len(compare({**known, "mul one forward": "cc"}, known)) == 1
    assert len(compare({"add one forward": "aa"}, known)) == 1


def test_one_flipped_bit_changes_the_digest():
    name, sample = next(case for case in checks.CASES if case[1].name == "vector")
    y = samples.outputs(samples.call_of(name, sample)())[0].detach().clone()
    before = y.sha256()
    y.numpy().view("uint32")[3] ^= 1
    assert y.sha256() != before
