"""Owns testdata/exact: digests in exact mode of every sample and of one step of the reference models. Must not decide what is right.

hashes.txt has `op sample direction sha256`, models.txt `model what sha256`. `python3 tools/dev.py pin` writes them; tests/test_exact.py
and tests/test_models.py compare them on every instruction set, and a missing or surplus line fails.
"""

import os
import sys
from pathlib import Path

import onemodel as om
from onemodel import samples

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "testdata" / "exact" / "hashes.txt"
MODELS = FILE.with_name("models.txt")


def lines() -> list[str]:
    """The file's lines as this machine computes them, sorted by operator, sample and direction."""
    found = []
    with om.arithmetic("exact"):
        for name, sample in samples.cases():
            run = samples.run(name, sample)
            found.append(f"{name} {sample.name} forward {run.result_digest}")
            if run.gradients:
                found.append(f"{name} {sample.name} backward {run.gradient_digest}")
    return sorted(found)


def model_lines() -> list[str]:
    """The lines of models.txt; the models are the tests' own."""
    sys.path.insert(0, str(ROOT / "tests"))
    import models

    return models.lines()


def write(path: Path, new: list[str]) -> None:
    """Replace a file and say which of its lines have other bits now."""
    old = path.read_text().splitlines() if path.exists() else []
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(new) + "\n")
    keys = {line.rsplit(" ", 1)[0] for line in old}
    changed = [line for line in new if line not in set(old) and line.rsplit(" ", 1)[0] in keys]
    print(f"{os.path.relpath(path)}: {len(new)} lines, {len(changed)} changed")
    for line in changed:
        print(f"  {line.rsplit(' ', 1)[0]}")


def main() -> None:
    write(FILE, lines())
    write(MODELS, model_lines())


if __name__ == "__main__":
    main()
