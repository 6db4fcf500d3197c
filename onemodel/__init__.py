"""OneModel: a deep-learning framework for CPUs.

The one picture that everything follows:

    y = om.tanh(x)
        │
    Tensor            tensor.pyx            shape, strides, storage block, version, grad, record
        │ calls
    Op class          ops/<family>.py       doc · checks · forward · backward · reference · samples
        │ as compiled rule                  rules.pyx · reductions.pyx · views.pyx · products.pyx
        │ asks for its output               │ runs
    Pool              _pool/pool.pyx        Kernel table   _kernels/table.pyx   (one table per ISA and mode)
        │                                   │
    blocks.c          size classes, scopes  variants/avx2_exact.c = lane_avx2.h + elementwise.h + gemm.h + …

The engine (autograd.pyx) walks records backwards and knows no operator by name.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from numpy import bool_, float32, int32, int64, uint8

from onemodel import methods
from onemodel.autograd import backward as _backward
from onemodel.autograd import grad
from onemodel.errors import GraphReleasedError, ScopeClosedError, ShapeError, TensorVersionError
from onemodel.functional import value_and_grad
from onemodel.making import arange, empty, empty_like, from_numpy, full, full_like, ones, ones_like, tensor, zeros, zeros_like
from onemodel.memory import ActivationScope, PoolStats, pool_reset_peak, pool_stats, pool_trim, set_pool_limit
from onemodel.methods import clear_grad, zero_grad
from onemodel.modes import (
    arithmetic,
    available_isas,
    enable_grad,
    get_arithmetic,
    get_isa,
    get_num_threads,
    is_grad_enabled,
    no_grad,
    set_arithmetic,
    set_num_threads,
    show_config,
    use_isa,
)
from onemodel.registry import Op
from onemodel.tensor import Tensor, install_slot

__version__ = "0.1.0"

install_slot("backward", _backward)

from onemodel import ops  # noqa: E402 - needs the slot above
from onemodel.ops import *  # noqa: E402, F403 - every operator's public function
from onemodel.random import Generator, default_generator, manual_seed, rand, randint, randn, randperm  # noqa: E402

if _TYPE_CHECKING:
    from onemodel import data, nn, optim, training
    from onemodel.io import load, save

_LATER = {"data": "data", "nn": "nn", "optim": "optim", "training": "training", "load": "io", "save": "io"}


def __getattr__(name: str):
    """What trains and saves is imported when it is first asked for: a program that only computes does not pay for it."""
    if name not in _LATER:
        raise AttributeError(f"module 'onemodel' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"onemodel.{_LATER[name]}")
    globals()[name] = found = module if name == _LATER[name] else getattr(module, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
