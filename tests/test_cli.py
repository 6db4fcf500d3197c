"""Owns the tests of the command line as a user types it; what a command computes is tested beside that command."""

import subprocess
import sys

import pytest

from onemodel import cli
from onemodel.demos import DEFAULT, DEMOS


def onemodel(*arguments, cwd):
    return subprocess.run([sys.executable, "-m", "onemodel", *arguments], cwd=cwd, capture_output=True, text=True)


def test_without_a_command_it_lists_them(capsys):
    assert cli.main([]) == 0
    shown = " ".join(capsys.readouterr().out.split())  # as if no line were broken
    for command in cli.COMMANDS:
        assert command.__name__.replace("_", "-") in shown
        assert command.__doc__ in shown


def test_unknown_command_names_the_known(tmp_path):
    done = onemodel("confg", cwd=tmp_path)
    assert done.returncode == 2
    assert "invalid choice: 'confg'" in done.stderr and "config" in done.stderr


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda c: c.__name__)
def test_each_command_has_help(command, capsys):
    try:
        code = cli.main([command.__name__.replace("_", "-"), "--help"])
    except SystemExit as end:
        code = end.code
    assert code == 0
    assert "usage: onemodel" in capsys.readouterr().out


def test_config_names_what_runs(tmp_path):
    from onemodel._kernels import table

    done = onemodel("config", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for isa in table.available_isas():
        assert isa in done.stdout


def test_demo_list(capsys):
    assert DEFAULT in DEMOS
    assert cli.main(["demo", "--help"]) == 0
    shown = capsys.readouterr().out
    for name, row in DEMOS.items():
        assert name in shown and row.summary in shown


def test_unknown_demo_names_the_known(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["demo", "digitz"])
    assert end.value.code == 2
    assert "no demo 'digitz'" in (said := capsys.readouterr().err) and "digits" in said


def test_the_listing_imports_no_demo(tmp_path):
    """The commands start at once: nothing of a demo is imported before it runs."""
    code = "import sys, onemodel.cli as c; c.main(['demo', '--help']); sys.exit(any(m.startswith('onemodel.demos.') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True).returncode == 0
