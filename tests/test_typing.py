"""Owns the proof that the types are right: mypy over the package, stubtest on the .pyi of each compiled module. Needs the checkout."""

import importlib
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = ROOT / "tests" / "stubtest_allowed.txt"


def compiled():
    """Names of the modules that have a stub, each of which must be a compiled one."""
    # A package's stub is generated (its names come from the registry); test_docs holds it against the registry.
    stubs = sorted(p for p in (ROOT / "onemodel").rglob("*.pyi") if p.stem != "__init__")
    assert [s for s in stubs if not s.with_suffix(".pyx").exists()] == []
    return [".".join(stub.relative_to(ROOT).with_suffix("").parts) for stub in stubs]


def mypy(*arguments, cwd=ROOT):
    env = {**os.environ, "PYTHONPATH": str(cwd)}
    return subprocess.run([sys.executable, "-m", *arguments], cwd=cwd, env=env, capture_output=True, text=True)


def test_mypy_is_clean():
    done = mypy("mypy")
    assert done.returncode == 0, done.stdout + done.stderr


def public_names(module):
    return sorted(n for n, value in vars(module).items() if n[0] != "_" and getattr(value, "__module__", None) == module.__name__)


def test_every_compiled_module_with_public_names_has_a_stub():
    """A module of kernels that others only cimport has none: its functions for tests start with an underscore."""
    missing = {}
    for pyx in (ROOT / "onemodel").rglob("*.pyx"):
        name = ".".join(pyx.relative_to(ROOT).with_suffix("").parts)
        if not pyx.with_suffix(".pyi").exists() and (names := public_names(importlib.import_module(name))):
            missing[name] = names
    assert missing == {}


def test_public_names_are_seen():
    module = types.ModuleType("planted")
    exec("def shown(): ...\ndef _hidden(): ...", vars(module))
    module.shown.__module__ = module._hidden.__module__ = "planted"
    assert public_names(module) == ["shown"]


def test_stubs_match_the_compiled_modules():
    names = compiled()
    assert names
    allowed = ["--allowlist", str(ALLOWED)] if ALLOWED.exists() else []
    # --ignore-positional-only: Cython's functions take their arguments by name too, but do not say so for every special method.
    done = mypy("mypy.stubtest", *names, *allowed, "--concise", "--mypy-config-file", "pyproject.toml", "--ignore-positional-only")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_type_is_found(tmp_path):
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    package = tmp_path / "onemodel"
    package.mkdir()
    (package / "__init__.py").write_text("x: int = 'one'\n")
    assert "Incompatible types" in mypy("mypy", cwd=tmp_path).stdout


def test_a_wrong_stub_is_found(tmp_path):
    (tmp_path / "planted.py").write_text("def f(a, b=1): ...\n")
    (tmp_path / "planted.pyi").write_text("def f(a: int, c: int = 1) -> None: ...\n")
    assert mypy("mypy.stubtest", "planted", cwd=tmp_path).returncode == 1
