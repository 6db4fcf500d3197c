"""Owns testdata/exact/hashes.txt: `op sample direction sha256` of every sample in exact mode. Must not decide what is right.

`python3 tools/dev.py pin` writes it; tests/test_exact.py compares it on every instruction set, and a missing or surplus line fails.
"""

import os
from pathlib import Path

import onemodel as om
from onemodel import samples

FILE = Path(__file__).resolve().parent.parent / "testdata" / "exact" / "hashes.txt"


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


def main() -> None:
    new = lines()
    old = FILE.read_text().splitlines() if FILE.exists() else []
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text("\n".join(new) + "\n")
    keys = {line.rsplit(" ", 1)[0] for line in old}
    changed = [line for line in new if line not in set(old) and line.rsplit(" ", 1)[0] in keys]
    print(f"{os.path.relpath(FILE)}: {len(new)} lines, {len(changed)} changed")
    for line in changed:
        print(f"  {line.rsplit(' ', 1)[0]}")


if __name__ == "__main__":
    main()
