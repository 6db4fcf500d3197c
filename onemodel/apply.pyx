"""Runs operators written as Python classes: one record per call, its forward with recording off.

The record is the `ctx` that forward and backward get. Holds no operator.
"""

from onemodel._kernels.table cimport current_mode
from onemodel.tensor cimport FLOAT32, Record, Rule, Tensor, alias, bind, data_of, densely, edge_of, recording, set_recording, set_saved

from onemodel._kernels.table import get_mode_override, set_mode_override


cdef class PythonRule(Rule):
    """Backward through `op.backward(ctx, g)`, in the arithmetic mode the record was made in; g is read-only, and contiguous unless
    the class says `any_strides`."""
    cdef object op
    cdef bint any_strides

    cdef object backward(self, Record r, Tensor g):
        cdef int mode = current_mode()
        if not hasattr(self.op, "backward"):
            raise TypeError(f"{self.name}: the operator class defines no backward(ctx, g)")
        if not self.any_strides:
            g = densely(g, self.name)
        # Other consumers may share g's memory, so an operator that writes into it is refused rather than believed.
        cdef bint readonly = g.storage.readonly
        g.storage.readonly = True
        override = get_mode_override() if mode != r.mode else None
        try:
            if override is not None:
                set_mode_override(r.mode)
            return self.op.backward(r, g)
        finally:
            g.storage.readonly = readonly
            if override is not None:
                set_mode_override(override)


def rule_of(op):
    """The rule that runs an operator class backward."""
    cdef PythonRule rule = PythonRule.__new__(PythonRule)
    rule.op = op
    rule.name = op.name
    rule.any_strides = getattr(op, "any_strides", False)
    return rule


def apply_op(op, tuple args, dict kwargs):
    """op.forward(ctx, *args, **kwargs), recorded. The tensor arguments, in order of position and then of keyword, are its inputs."""
    cdef Record r = Record.__new__(Record)
    cdef list inputs = [a for a in args if isinstance(a, Tensor)]
    cdef bint was_recording = recording(), wants = False
    cdef Tensor t, out
    if kwargs:
        inputs += [a for a in kwargs.values() if isinstance(a, Tensor)]
    if not hasattr(op, "forward"):
        raise TypeError(f"{op.name}: the operator class defines no forward(ctx, ...)")
    r.rule = <Rule>op._rule
    r.mode = current_mode()
    for t in inputs:
        data_of(t, r.rule.name)
        wants = wants or t.wants_grad
    r.edges = tuple([edge_of(<Tensor>t) for t in inputs])
    set_recording(False)
    try:
        result = op.forward(r, *args, **kwargs)
    finally:
        set_recording(was_recording)
    if not isinstance(result, Tensor):
        raise TypeError(f"{r.rule.name}: forward must return one Tensor, got {type(result).__name__}")
    out = <Tensor>result
    # An input handed through, or a result somebody recorded, keeps its own place in the graph.
    if out.wants_grad or any([out is t for t in inputs]):
        out = alias(out)
    if not (wants and was_recording and op.differentiable and out.code == FLOAT32):
        return out
    if r.saved is not None and any([s is result for s in r.saved]):
        set_saved(r, tuple([alias(out) if s is result else s for s in r.saved]))  # the result itself would be a cycle
    if r.attributes is None and not r.rule.builtin:
        r.attributes = {}  # which keeps record and output in the collector's view: an attribute set later may be the output
    bind(out, r)
    return out
