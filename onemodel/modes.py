"""Process and thread settings: grad mode, arithmetic mode, instruction set, number of threads. Holds no arithmetic."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import platform
import sys
import threading

from onemodel._kernels import table
from onemodel._kernels.table import available_isas, get_isa
from onemodel.arguments import integer
from onemodel.autograd import is_grad_enabled, set_grad_enabled
from onemodel.threads import MOST_THREADS

MODES = ("fast", "exact")


class _Setting(contextlib.ContextDecorator):
    """A context manager that is also a decorator; a decorated generator has the setting only while it runs, not while suspended.

    A setting defines `_set() -> old value` and `_restore(old value)`.
    """

    def __enter__(self):
        self._old = (self._set(), getattr(self, "_old", None))
        return self

    def __exit__(self, *error):
        old, self._old = self._old
        self._restore(old)
        return False

    def _recreate_cm(self):
        return self._copy()

    def _copy(self):
        return type(self)()

    def __call__(self, function):
        name = type(self).__name__
        if not callable(function):
            raise TypeError(f"{name}: expected a function to decorate, got {type(function).__name__}; put @{name} under @classmethod")
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{name}: an async function would run outside the setting; write `with {name}` around what it computes between awaits")
        if not inspect.isgeneratorfunction(function):
            return super().__call__(function)

        @functools.wraps(function)
        def generator(*args, **kwargs):
            running = function(*args, **kwargs)
            send, value = running.send, None
            try:
                while True:
                    with self._copy():
                        try:
                            item = send(value)
                        except StopIteration as stop:
                            return stop.value
                    try:
                        value = yield item
                        send = running.send
                    except GeneratorExit:
                        raise
                    except BaseException as error:
                        send, value = running.throw, error
            finally:
                with self._copy():
                    running.close()

        return generator


class _GradMode(_Setting):
    on: bool

    def __new__(cls, function=None):
        self = super().__new__(cls)
        return self if function is None else self(function)  # @om.no_grad, without parentheses

    def _set(self):
        return set_grad_enabled(self.on)

    def _restore(self, old):
        set_grad_enabled(old)


class no_grad(_GradMode):
    """Context manager and decorator: operators of this thread do not record. `with om.no_grad(): ...`, `@om.no_grad()`."""

    on = False


class enable_grad(_GradMode):
    """Context manager and decorator: operators of this thread record, also inside no_grad."""

    on = True


def _mode(name: str, op: str) -> int:
    if name not in MODES:
        raise ValueError(f"{op}: expected 'fast' or 'exact', got {name!r}")
    return MODES.index(name)


def set_arithmetic(name: str) -> None:
    """Set the arithmetic of the process, "fast" or "exact"; a record keeps the mode it was made in."""
    table.set_default_mode(_mode(name, "set_arithmetic"))


def get_arithmetic() -> str:
    """The arithmetic that operators called now by this thread use."""
    return MODES[table.get_mode()]


class arithmetic(_Setting):
    """Context manager and decorator: this thread computes in "fast" or "exact" arithmetic."""

    def __init__(self, name: str):
        self.name = name
        self._wanted = _mode(name, "arithmetic")

    def _copy(self):
        return arithmetic(self.name)

    def _set(self):
        old = table.get_mode_override()
        table.set_mode_override(self._wanted)
        return old

    def _restore(self, old):
        table.set_mode_override(old)


class use_isa(_Setting):
    """Context manager and decorator: the whole process runs the kernels of one of `available_isas()`."""

    def __init__(self, name: str):
        if name not in available_isas():
            raise ValueError(f"use_isa: {name!r} is not available here; available: {', '.join(available_isas())}")
        self.name = name

    def _copy(self):
        return use_isa(self.name)

    # The choice is the whole process's, so blocks of several threads or generators may close in any order: each takes its own entry
    # off the list, and the last one left, or what was chosen before them all, is what runs.
    _open: list[tuple[object, str]] = []
    _lock = threading.RLock()  # the list and what runs change together; a signal handler may open a block inside this

    def _set(self):
        mine = (object(), self.name)
        with use_isa._lock:
            if not use_isa._open:
                use_isa._open.append((None, get_isa()))
            use_isa._open.append(mine)
            table.select_isa(self.name)
        return mine

    def _restore(self, mine):
        with use_isa._lock:
            use_isa._open.remove(mine)
            table.select_isa(use_isa._open[-1][1])
            if len(use_isa._open) == 1:
                use_isa._open.clear()


def set_num_threads(n: int) -> None:
    """Let operators use at most n threads; n changes speed only, never a result."""
    table.set_num_threads(integer("set_num_threads", "n", n, 1, MOST_THREADS))


def get_num_threads() -> int:
    """How many threads an operator may use."""
    return table.get_num_threads()


def show_config() -> None:
    """Print versions, instruction sets, threads and modes: what a bug report needs."""
    import numpy

    from onemodel import __version__

    print(f"onemodel {__version__}, Python {platform.python_version()}, NumPy {numpy.__version__}, {platform.platform()}")
    print(f"instruction sets: compiled {', '.join(table.compiled_isas())}; available {', '.join(available_isas())}; in use {get_isa()}")
    print(f"arithmetic: {get_arithmetic()}; threads: {get_num_threads()}; recording: {is_grad_enabled()}")
    settings = {name: os.environ[name] for name in sorted(os.environ) if name.startswith("ONEMODEL_")}
    print(f"environment: {', '.join(f'{k}={v}' for k, v in settings.items()) or 'no ONEMODEL_ variables'}", file=sys.stdout)


def _select_first_isa() -> None:
    """ONEMODEL_ISA if set, else the best that this machine runs."""
    wanted = os.environ.get("ONEMODEL_ISA")
    if not wanted:  # unset, or empty as a job's settings may leave it
        table.select_isa(available_isas()[-1])
        return
    try:
        table.select_isa(wanted)
    except ValueError:
        raise ImportError(f"ONEMODEL_ISA={wanted!r} is not available here; available: {', '.join(available_isas())}") from None


_select_first_isa()
