"""Owns the generic forward tests: every (operator, sample) of the registry through the checks of registry_cases.

Must not name an operator: what is tested stands in the registry.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import registry_cases as checks

from onemodel._kernels import table
from onemodel.ops import OPS


def test_instruction_sets_of_this_machine():
    """A processor that has the features must have the paths: a build that lost one would silently test less."""
    if platform.machine() not in ("x86_64", "AMD64"):
        assert table.available_isas() == ["scalar", "neon"]
        return
    needed = {"avx2": {"avx2", "fma", "bmi2"}, "avx512": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}}
    with open("/proc/cpuinfo") as file:
        found = set(file.read().split())
    assert set(table.available_isas()) == {"scalar", "sse2"} | {isa for isa, features in needed.items() if features <= found}


@checks.every_sample
def test_forward(name, sample):
    checks.check_forward(name, sample)
    checks.check_memory(name, sample)


@checks.every_op
def test_errors(name):
    for sample in OPS[name].error_samples:
        checks.check_error(name, sample)
    checks.check_closed_scope(name)
    checks.check_junk(name)


@pytest.mark.parametrize("name", [name for name in OPS if checks.shares_work(name)])
def test_more_than_one_thread_runs(name):
    checks.check_threads(name)


@pytest.mark.full
def test_the_whole_suite_passes_in_poisoned_memory():
    """Blocks hold signalling NaN when they are taken and after they went back, in every test that needs no checkout and no oracle."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-m", "not checkout and not oracle", str(Path(__file__).parent)]
    done = subprocess.run(command, env={**os.environ, "ONEMODEL_POOL_POISON": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-10000:] + done.stderr[-2000:]
