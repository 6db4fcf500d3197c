"""Owns the generic forward tests: every (operator, sample) of the registry through the checks of registry_cases.

Must not name an operator: what is tested stands in the registry.
"""

import platform

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


@pytest.mark.parametrize("name", [name for name in OPS if checks.shares_work(name)])
def test_more_than_one_thread_runs(name):
    checks.check_threads(name)
