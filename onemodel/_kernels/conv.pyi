"""The compiled module of convolutions; its Python face serves tests and measurements."""

from typing import Any

import numpy.typing as npt

def forward_arrays(x: npt.NDArray[Any], w: npt.NDArray[Any], bias: npt.NDArray[Any] | None = None, *, size: tuple[int, int],
                   stride: tuple[int, int] = (1, 1), padding: tuple[int, int] = (0, 0), dilation: tuple[int, int] = (1, 1), groups: int = 1,
                   mode: int | None = None, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]: ...
def input_arrays(g: npt.NDArray[Any], w: npt.NDArray[Any], bias: npt.NDArray[Any] | None = None, *, size: tuple[int, int],
                 stride: tuple[int, int] = (1, 1), padding: tuple[int, int] = (0, 0), dilation: tuple[int, int] = (1, 1), groups: int = 1,
                 mode: int | None = None, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]: ...
