"""The compiled module of convolutions."""

from typing import Any

from typing_extensions import disjoint_base

from onemodel.tensor import Rule, Tensor

RULES: dict[str, Rule]

@disjoint_base
class ConvRule(Rule): ...
class ConvTransposeRule(Rule): ...
class ConvPoolRule(Rule): ...

def conv1d(input: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: Any) -> Tensor: ...
def conv2d(input: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: Any) -> Tensor: ...
def conv_transpose2d(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, output_padding: Any, groups: Any, dilation: Any
) -> Tensor: ...
def conv_relu_pool2d(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: Any, kernel_size: Any, pool_stride: Any,
    pool_padding: Any, pool_dilation: Any, ceil_mode: Any,
) -> Tensor: ...
