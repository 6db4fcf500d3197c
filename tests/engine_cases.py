"""Owns the small leaves and operators that the tests of the engine share. Must not contain a test."""

import onemodel as om


def leaf(data, **options):
    return om.tensor(data, requires_grad=True, **options)


def traced(log, name, slope=1.0):
    """An operator that multiplies by 1 and writes its name into `log` when its backward runs."""

    class Traced(om.Op):
        @staticmethod
        def forward(ctx, *tensors):
            total = tensors[0]
            for t in tensors[1:]:
                total = total + t
            return total.clone()

        @staticmethod
        def backward(ctx, g):
            log.append((name, g.tolist()))
            return tuple(g * slope for _ in ctx.needs_input_grad)

    return Traced.apply


def one(forward, backward):
    return type("Mine", (om.Op,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}).apply
