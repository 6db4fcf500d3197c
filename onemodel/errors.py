"""The exceptions of the public contract; each says operator, expected, got and what to do. Holds no logic."""


class ShapeError(ValueError):
    """Shapes do not fit the operator."""


class GraphReleasedError(RuntimeError):
    """A backward pass meets a record whose saved tensors were released by an earlier one."""


class TensorVersionError(RuntimeError):
    """A tensor saved for backward was modified in place after the forward pass."""


class ScopeClosedError(RuntimeError):
    """A tensor is used after its ActivationScope returned its memory."""
