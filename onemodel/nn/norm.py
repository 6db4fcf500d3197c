"""Owns the layers that normalise: BatchNorm1d, BatchNorm2d, LayerNorm, RMSNorm, GroupNorm. Must not contain their arithmetic, which is in
`onemodel.ops.norm`."""

from __future__ import annotations

from collections.abc import Sequence

from onemodel.making import ones, tensor, zeros
from onemodel.modes import no_grad
from onemodel.nn.module import Module, Parameter
from onemodel.ops.norm import batch_norm, group_norm, layer_norm, rms_norm
from onemodel.ops.parameters import LARGEST_SIZE, flag, integer, real
from onemodel.tensor import Tensor


def _eps(layer: str, eps: float) -> float:
    return real(layer, "eps", eps, "a finite number, not negative", 0.0)


class _BatchNorm(Module):
    """y = (x - μ)/σ·γ + β per channel. weight (γ) starts as 1 and bias (β) as 0; neither is there without `affine`.

    In training μ and σ are the batch's, and running_mean and running_var move by `momentum` towards it (None: the average of all batches);
    in evaluation they are the running ones. Without `track_running_stats` there are none, and the batch's serve always.
    """

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    _ranks: tuple[int, ...] = ()
    _shapes = ""

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True, track_running_stats: bool = True,
                 *, bias: bool = True) -> None:
        super().__init__()
        name = type(self).__name__
        self.num_features = integer(name, "num_features", num_features, 0, LARGEST_SIZE)
        self.eps = _eps(name, eps)
        self.momentum = None if momentum is None else real(name, "momentum", momentum)
        self.affine, self.track_running_stats = flag(name, "affine", affine), flag(name, "track_running_stats", track_running_stats)
        self.weight = Parameter(ones(self.num_features)) if affine else None
        self.bias = Parameter(zeros(self.num_features)) if affine and flag(name, "bias", bias) else None
        self.register_buffer("running_mean", zeros(self.num_features) if track_running_stats else None)
        self.register_buffer("running_var", ones(self.num_features) if track_running_stats else None)
        self.register_buffer("num_batches_tracked", tensor(0) if track_running_stats else None)

    def reset_running_stats(self) -> None:
        """Forget all batches seen."""
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, Tensor) and (x.ndim not in self._ranks or x.shape[1] != self.num_features):
            raise ValueError(f"{type(self).__name__}: expected an input of shape {self._shapes} with C = {self.num_features}, got {x.shape}")
        own = self.training or self.running_mean is None
        blend = 0.0 if self.momentum is None else self.momentum
        counted = self.training and self.num_batches_tracked is not None
        if counted and self.momentum is None:
            blend = 1.0 / (int(self.num_batches_tracked) + 1)  # type: ignore[arg-type]
        y = batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, own, blend, self.eps)
        if counted:
            with no_grad():
                self.num_batches_tracked.add_(1)  # type: ignore[union-attr]
        return y

    def extra_repr(self) -> str:
        return (f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, bias={self.bias is not None}, "
                f"track_running_stats={self.track_running_stats}")


class BatchNorm1d(_BatchNorm):
    __doc__ = f"Batch normalisation of [N, C] or [N, C, L].\n\n    {_BatchNorm.__doc__}"
    _ranks, _shapes = (2, 3), "[N, C] or [N, C, L]"


class BatchNorm2d(_BatchNorm):
    __doc__ = f"Batch normalisation of [N, C, H, W].\n\n    {_BatchNorm.__doc__}"
    _ranks, _shapes = (4,), "[N, C, H, W]"


def _normalized(layer: str, shape: int | Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    if not sizes:
        raise ValueError(f"{layer}: normalized_shape must name at least one dimension, got ()")
    return tuple(integer(layer, "normalized_shape", size, 0, LARGEST_SIZE) for size in sizes)  # type: ignore[arg-type]


class LayerNorm(Module):
    """y = (x - μ)/σ·γ + β over the last dimensions; weight (γ, ones) and bias (β, zeros) have their shape."""

    def __init__(self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True) -> None:
        super().__init__()
        self.normalized_shape = _normalized("LayerNorm", normalized_shape)
        self.eps, self.elementwise_affine = _eps("LayerNorm", eps), flag("LayerNorm", "elementwise_affine", elementwise_affine)
        self.weight = Parameter(ones(self.normalized_shape)) if elementwise_affine else None
        self.bias = Parameter(zeros(self.normalized_shape)) if elementwise_affine and flag("LayerNorm", "bias", bias) else None

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}"


class RMSNorm(Module):
    """y = x/√(mean(x²) + ε)·γ over the last dimensions; weight (γ) starts as 1; eps None is float32's epsilon."""

    def __init__(self, normalized_shape: int | Sequence[int], eps: float | None = None, elementwise_affine: bool = True) -> None:
        super().__init__()
        self.normalized_shape = _normalized("RMSNorm", normalized_shape)
        self.eps = None if eps is None else _eps("RMSNorm", eps)
        self.elementwise_affine = flag("RMSNorm", "elementwise_affine", elementwise_affine)
        self.weight = Parameter(ones(self.normalized_shape)) if elementwise_affine else None

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(Module):
    """y = (x - μ)/σ·γ + β over groups of channels of each image; weight (γ, ones) and bias (β, zeros) have one element per channel."""

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, *, bias: bool = True) -> None:
        super().__init__()
        self.num_groups = integer("GroupNorm", "num_groups", num_groups, 1, LARGEST_SIZE)
        self.num_channels = integer("GroupNorm", "num_channels", num_channels, 0, LARGEST_SIZE)
        if self.num_channels % self.num_groups:
            raise ValueError(f"GroupNorm: num_groups must divide num_channels, got {self.num_groups} and {self.num_channels}")
        self.eps, self.affine = _eps("GroupNorm", eps), flag("GroupNorm", "affine", affine)
        self.weight = Parameter(ones(self.num_channels)) if affine else None
        self.bias = Parameter(zeros(self.num_channels)) if affine and flag("GroupNorm", "bias", bias) else None

    def forward(self, x: Tensor) -> Tensor:
        return group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, bias={self.bias is not None}"
