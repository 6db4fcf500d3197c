"""The compiled module that runs one row of the kernel table on arrays."""

from typing import Any

import numpy.typing as npt

INPUTS: dict[str, int]
ROWS: dict[str, tuple[str, str]]

def run(name: str, *arrays: npt.NDArray[Any], mode: int, isa: str | None = None, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]: ...
