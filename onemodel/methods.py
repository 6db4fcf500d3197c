"""Methods of Tensor that are not operators and not on the hot path: looks, digests, copies for Python and pickle."""

from __future__ import annotations

import numpy as np

from onemodel.arrays import array_view, empty
from onemodel.arrays import code_of as _code_of
from onemodel.errors import ScopeClosedError
from onemodel.tensor import Tensor, install_method, install_slot

EDGE = 3          # items shown at either end of a long dimension
WHOLE = 1000      # tensors of up to this many elements are shown whole
LINES = 60        # more are cut out of the middle


def tolist(self):
    """The values as nested lists of Python numbers, or one number for a 0-d tensor."""
    return array_view(self, "tolist").tolist()


def sha256(self):
    """Hex SHA-256 of dtype, shape and the elements' little-endian bytes in row-major order: equal for equal tensors, whatever
    their strides."""
    import hashlib  # loads the system's crypto library: not at import

    array = array_view(self, "sha256")
    digest = hashlib.sha256(f"{array.dtype.name} {','.join(map(str, array.shape))};".encode())
    contiguous = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    digest.update(contiguous.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def show(self):
    """The values, shortened to fit a screen, and what is unusual about the tensor."""
    try:
        array = array_view(self, "repr")
    except ScopeClosedError:
        return f"tensor(<memory returned when its ActivationScope closed>, shape={self.shape}, dtype={self.dtype.name})"
    body = np.array2string(array, separator=", ", prefix="tensor(", threshold=WHOLE, edgeitems=EDGE, precision=4, max_line_width=100)
    lines = body.splitlines()
    if len(lines) > LINES:  # many dimensions multiply what stands at their ends
        body = "\n".join([*lines[:LINES // 2], "       ...", *lines[-LINES // 2:]])
    more = ""
    if array.dtype.name not in ("float32", "int64", "bool") or array.size == 0:
        more += f", dtype={array.dtype.name}"
    if array.size == 0 and array.ndim != 1:
        more += f", shape={self.shape}"
    if self.grad_fn is not None:
        more += f", grad_fn=<{self.grad_fn.name}>"
    elif self.requires_grad:
        more += ", requires_grad=True"
    return f"tensor({body}{more})"


def __format__(self, spec):
    return format(self.item(), spec) if spec and self.ndim == 0 else str(self) if not spec else format(str(self), spec)


def _rebuild(array, requires_grad):
    """What a pickle calls."""
    result = empty(array.shape, _code_of(array.dtype))
    array_view(result, "unpickle")[...] = array
    return result.requires_grad_() if requires_grad else result


def __reduce_ex__(self, protocol):
    if self.grad_fn is not None:
        raise RuntimeError("pickle: a result of an operator carries its graph; detach() it first")
    return _rebuild, (np.ascontiguousarray(array_view(self, "pickle")).reshape(self.shape), self.requires_grad)


def __deepcopy__(self, memo):
    if self.grad_fn is not None:
        raise RuntimeError("deepcopy: a result of an operator carries its graph; detach() or clone() it")
    result = _rebuild(array_view(self, "deepcopy"), self.requires_grad)
    if self.grad is not None:
        result.grad = _rebuild(array_view(self.grad, "deepcopy"), False)
    memo[id(self)] = result
    return result


def zero_grad(leaf: Tensor) -> None:
    """Set a leaf's gradient to 0 in place; a leaf without one gets none."""
    if not isinstance(leaf, Tensor):
        raise TypeError(f"zero_grad: expected a Tensor, got {type(leaf).__name__}")
    if leaf.grad is not None:
        leaf.grad.zero_()


def clear_grad(leaf: Tensor) -> None:
    """Free a leaf's gradient."""
    if not isinstance(leaf, Tensor):
        raise TypeError(f"clear_grad: expected a Tensor, got {type(leaf).__name__}")
    leaf.grad = None


install_slot("repr", show)
for _method in (tolist, sha256, __format__, __reduce_ex__, __deepcopy__):
    install_method(_method.__name__, _method)
