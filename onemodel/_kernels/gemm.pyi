"""The compiled module of matrix products; its Python face serves tests and measurements."""

from typing import Any

import numpy.typing as npt

def matmul_arrays(a: npt.NDArray[Any], b: npt.NDArray[Any], bias: npt.NDArray[Any] | None = None, mode: int | None = None,
                  out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]: ...
def batched_arrays(a: npt.NDArray[Any], b: npt.NDArray[Any], mode: int | None = None) -> npt.NDArray[Any]: ...
