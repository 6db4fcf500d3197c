"""Owns what every test shares: --full, the markers, the process-wide settings put back after each test. Must not contain a test."""

import importlib.util
import os

import pytest
from hypothesis import settings

from onemodel._kernels import table

# Timings of a shared machine must not fail a test; derandomised so that a failure on one machine is the failure on all.
settings.register_profile("onemodel", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("full", deadline=None, max_examples=500)


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="also run the long sweeps (marked full)")


def pytest_configure(config):
    settings.load_profile("full" if config.getoption("--full") else "onemodel")


def pytest_collection_modifyitems(config, items):
    """Long sweeps become skips, which the closing line counts (xdist drops the count of deselected tests)."""
    if config.getoption("--full"):
        return
    for item in items:
        if item.get_closest_marker("full"):
            item.add_marker(pytest.mark.skip(reason="a long sweep: run with --full"))


def pytest_runtest_setup(item):
    if item.get_closest_marker("oracle") and importlib.util.find_spec("torch") is None:
        if os.environ.get("ONEMODEL_REQUIRE_ORACLE") == "1":
            pytest.fail("ONEMODEL_REQUIRE_ORACLE=1, but torch is not installed: pip install torch==2.13.0", pytrace=False)
        pytest.skip("needs torch: pip install torch==2.13.0")


@pytest.fixture(autouse=True)
def settings_put_back():
    """Instruction set, mode, threads and smallest piece are process-wide: a test may change them and must not pass them on."""
    isa, mode, override = table.get_isa(), table.get_default_mode(), table.get_mode_override()
    threads, piece = table.get_num_threads(), table.set_smallest_piece(1)
    table.set_smallest_piece(piece)
    yield
    table.select_isa(isa)
    table.set_default_mode(mode)
    table.set_mode_override(override)
    table.set_num_threads(threads)
    table.set_smallest_piece(piece)
