"""The public door of the pool: counters, limit, trim and ActivationScope. Holds no allocator logic; that is onemodel/_pool."""

from typing import Any, NoReturn

from onemodel._pool import pool as _pool
from onemodel._pool.pool import ActivationScope, pool_reset_peak, pool_trim, set_pool_limit

__all__ = ["ActivationScope", "PoolStats", "pool_reset_peak", "pool_stats", "pool_trim", "set_pool_limit"]


class PoolStats:
    """The pool's counters at one moment; the difference of two says what happened between them."""

    __slots__ = tuple(_pool.COUNTERS)

    def __init__(self, *values: int) -> None:
        if len(values) != len(self.__slots__):
            raise TypeError(f"PoolStats: expected {len(self.__slots__)} values, got {len(values)}; call onemodel.pool_stats()")
        for name, value in zip(self.__slots__, values, strict=True):
            object.__setattr__(self, name, value)

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}

    def __getattr__(self, name: str) -> int:
        raise AttributeError(f"PoolStats has no counter {name!r}; the counters are {', '.join(self.__slots__)}")

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"PoolStats is frozen: {name!r} cannot be set; call onemodel.pool_stats() for new values")

    __delattr__ = __setattr__  # type: ignore[assignment]

    def __sub__(self, earlier: "PoolStats") -> "PoolStats":
        if not isinstance(earlier, PoolStats):
            return NotImplemented
        return PoolStats(*(getattr(self, name) - getattr(earlier, name) for name in self.__slots__))

    def __eq__(self, other: object) -> bool:
        return self.as_dict() == other.as_dict() if isinstance(other, PoolStats) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self.as_dict().values()))

    def __reduce__(self) -> tuple[Any, ...]:
        return PoolStats, tuple(self.as_dict().values())

    def __repr__(self) -> str:
        return f"PoolStats({', '.join(f'{name}={value}' for name, value in self.as_dict().items())})"


def pool_stats() -> PoolStats:
    """The pool's counters now."""
    return PoolStats(*_pool.read_counters())
