"""Owns the command line: one row per command, imported only when it runs. Must not contain the work of a command."""

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence

from onemodel.demos import DEFAULT, DEMOS


def config(argv: list[str]) -> int:
    """print versions, instruction sets, threads and arithmetic mode"""
    argparse.ArgumentParser(prog="onemodel config", description=config.__doc__).parse_args(argv)
    import onemodel

    onemodel.show_config()
    return 0


def demo(argv: list[str]) -> int:
    """run a job on real data"""
    listed = "\n".join(f"  {name:12} {row.summary}" for name, row in DEMOS.items())
    parser = argparse.ArgumentParser(
        prog="onemodel demo", add_help=False, usage="onemodel demo [NAME] [options of the demo]", description=demo.__doc__,
        epilog=f"demos:\n{listed}\n\n`onemodel demo NAME --help` lists the options of one.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    name = argv[0] if argv and not argv[0].startswith("-") else DEFAULT
    if argv[:1] in (["-h"], ["--help"]):
        parser.print_help()
        return 0
    if name not in DEMOS:
        parser.error(f"no demo {name!r}; there are: {', '.join(DEMOS)}")
    module = importlib.import_module(f"onemodel.demos.{name.replace('-', '_')}")
    return int(module.main(argv[1:] if argv[:1] == [name] else argv) or 0)


def check_zero_alloc(argv: list[str]) -> int:
    """run a training step many times; fail if it takes memory or grows"""
    from onemodel.check_zero_alloc import main

    return main(argv)


def gradcheck(argv: list[str]) -> int:
    """compare the gradients of the operators with measured slopes"""
    from onemodel.training.gradcheck import main

    return main(argv)


COMMANDS: tuple[Callable[[list[str]], int], ...] = (config, demo, check_zero_alloc, gradcheck)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (2 for a wrong call)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    commands = {command.__name__.replace("_", "-"): command for command in COMMANDS}
    parser = argparse.ArgumentParser(prog="onemodel", description="OneModel: deep learning on CPUs.")
    listed = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, command in commands.items():
        listed.add_parser(name, help=command.__doc__)
    if not arguments:
        parser.print_help()
        return 0
    # Only the first word is parsed here: the rest belongs to the command.
    chosen = parser.parse_args(arguments[:1]).command
    return commands[chosen](arguments[1:])
