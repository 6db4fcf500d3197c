"""Owns files of tensors: `save` and `load` in the safetensors format. Must not execute, unpickle or trust anything that stands in a file."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Any

import numpy as np

from onemodel.arrays import array_view
from onemodel.making import tensor
from onemodel.tensor import DTYPES, Tensor

STRUCTURE = "onemodel.structure"  # the metadata entry that says how nested values are put together again


def save(state: Any, path: str | os.PathLike) -> None:
    """Write a dict of tensors to a safetensors file, so that the old file or the new one is there at every moment, never a part.

    A flat dict of tensors (a module's state_dict) becomes a plain file that every safetensors reader opens. Dicts, lists and
    tuples may be nested and may hold numbers, strings, booleans and None (an optimizer's state_dict): tensors are then named by
    their path joined with dots, and the rest stands as JSON in the metadata. `load` gives back the same, to the bit.
    """
    tensors: dict[str, np.ndarray] = {}
    if not isinstance(state, dict):
        raise TypeError(f"save: expected a dict, got {type(state).__name__}; write {{'name': value}}")
    flat = all(isinstance(name, str) and isinstance(value, Tensor) for name, value in state.items())
    if flat:
        tensors = {name: _array(value, name) for name, value in state.items()}
        metadata = None
    else:
        import json

        try:
            metadata = {STRUCTURE: json.dumps(_described(state, "", tensors))}
        except RecursionError:
            raise ValueError("save: the state contains itself, or is nested too deeply") from None
    if "__metadata__" in tensors:
        raise ValueError("save: the name '__metadata__' belongs to the file format; rename the tensor")

    from safetensors.numpy import save as encoded

    _replace(os.path.realpath(os.fspath(path)), encoded(tensors, metadata))


def load(path: str | os.PathLike) -> dict:
    """Read what `save` wrote, or any safetensors file as a flat dict of tensors; nothing in it can run.

    ValueError says what is wrong with a file that is damaged or made up, or holds a type other than ours.
    """
    from safetensors import SafetensorError, safe_open

    path = os.fspath(path)
    with open(path, "rb"):  # the reader below has its own words for a path that cannot be opened
        pass
    tensors: dict[str, Tensor] = {}
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            for name in file.keys():
                tensors[name] = _tensor(file, name, path)
    except SafetensorError as error:
        raise ValueError(f"load: {path} is not a valid safetensors file: {error}") from None
    if STRUCTURE not in metadata:
        return tensors
    import json

    try:
        state = _rebuilt(json.loads(metadata[STRUCTURE]), tensors)
    except (KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
        raise ValueError(f"load: {path}: the description of nested values is damaged: {error}") from None
    if not isinstance(state, dict):
        raise ValueError(f"load: {path}: the description of nested values is damaged: no dict on top")
    return state


TYPES = {"F32": DTYPES[0], "I32": DTYPES[1], "I64": DTYPES[2], "U8": DTYPES[3], "BOOL": DTYPES[4]}


def _tensor(file: Any, name: str, path: str) -> Tensor:
    kind = file.get_slice(name).get_dtype()
    if kind not in TYPES:
        raise ValueError(f"load: {path}: tensor {name!r} is {kind}; OneModel has {', '.join(TYPES)}; convert it before saving")
    array = file.get_tensor(name)
    return tensor(array if kind != "BOOL" else array.view(np.uint8) != 0)  # a made-up file may hold bytes that are neither 0 nor 1


def _array(value: Tensor, name: str) -> np.ndarray:
    """The elements in row-major order; safetensors would take a strided array's memory as it lies."""
    array = array_view(value, f"save of {name!r}")
    return np.ascontiguousarray(array).reshape(array.shape)


def _described(value: Any, path: str, tensors: dict[str, np.ndarray]) -> Any:
    """JSON for a value; its tensors go into `tensors`. Containers and tensors are lists that begin with their kind."""
    where = f"save: {path or 'the state'}"
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Tensor):
        if path in tensors:
            raise ValueError(f"save: two tensors are named {path!r} once their keys are joined with dots; rename one")
        tensors[path] = _array(value, path)
        return ["tensor", path]
    start = path + "." if path else ""
    if type(value) in (list, tuple):
        return [type(value).__name__, *(_described(item, f"{start}{i}", tensors) for i, item in enumerate(value))]
    if isinstance(value, dict):
        for key in value:
            if type(key) not in (str, int):
                raise TypeError(f"{where}: keys must be str or int, got {type(key).__name__}")
        return ["dict", *([key, _described(item, f"{start}{key}", tensors)] for key, item in value.items())]
    raise TypeError(f"{where}: expected a Tensor, number, string, bool, None, dict, list or tuple, got {type(value).__name__}")


def _rebuilt(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, (list, dict)):
        return value
    if not isinstance(value, list) or not value:
        raise ValueError(f"unexpected {value!r:.40}")
    kind, *items = value
    if kind == "tensor":
        (name,) = items
        return tensors[name]
    if kind == "dict":
        return {key: _rebuilt(item, tensors) for key, item in items}
    if kind in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[kind](_rebuilt(item, tensors) for item in items)
    raise ValueError(f"unknown kind {kind!r:.40}")


def _replace(path: str, content: bytes) -> None:
    """Write a file beside `path`, force it to the disk, then give it the name: a crash leaves the old file or the new one."""
    folder, base = os.path.split(path)
    name = os.path.join(folder, f".{base}.{os.urandom(8).hex()}")
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less what the process's umask takes away, as for any new file
    try:
        with os.fdopen(handle, "wb") as file:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(handle, stat.S_IMODE(os.stat(path).st_mode))
            file.write(content)
            file.flush()
            os.fsync(handle)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    _sync_folder(folder)


def _sync_folder(folder: str) -> None:
    """The new name itself must reach the disk; some file systems do not offer that, and then there is nothing to do."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
