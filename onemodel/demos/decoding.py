"""Owns what readers of sequences share: greedy decoding of a CTC model's output, the distance to what is right. Must not contain a model."""

from __future__ import annotations

from collections.abc import Sequence

import onemodel as om


def greedy(scores: om.Tensor) -> list[list[int]]:
    """The labels of each sequence of scores [steps, batch, classes]: the best class of each step, repeats merged, blanks (class 0) left out."""
    found = []
    for path in scores.argmax(2).transpose(0, 1).tolist():
        found.append([label for before, label in zip([0, *path], path, strict=False) if label not in (0, before)])
    return found


def distance(a: Sequence, b: Sequence) -> int:
    """The fewest insertions, deletions and replacements that make b of a (Levenshtein 1966)."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (x != y)))
    return row[-1]
