"""Updates: one optimiser step over a group of parameters, in place, without memory from the system once state exists.

Checks all tensors before the first is changed, makes missing state, raises versions. Holds no options and no loops over elements.
"""

from onemodel._kernels.optim cimport sgd
from onemodel._kernels.table cimport current_mode, om_sgd
from onemodel.tensor cimport FLOAT32, Tensor, copy_into, data_of, new_tensor, same_shape

cdef enum:
    MOST = 64       # parameters handed to the kernel at a time


cdef Tensor buffer_of(dict state, Tensor p, str name):
    """The state tensor of a parameter, or None where there is none yet."""
    entry = state.get(p)
    value = None if entry is None else entry.get(name)
    if value is None:
        return None
    if not isinstance(value, Tensor) or not same_shape(<Tensor>value, p.rank, p.dims) or (<Tensor>value).code != FLOAT32 \
            or not (<Tensor>value).dense or (<Tensor>value).storage.readonly:
        raise ValueError(f"SGD: {name} of a parameter of shape {p.shape} must be a contiguous float32 tensor of that shape")
    data_of(<Tensor>value, "SGD")
    return <Tensor>value


cdef Tensor gradient_of(Tensor p):
    """The gradient, checked with its parameter; a copy where it lies in the parameter's own memory."""
    cdef Tensor g = p.gradient, copy
    data_of(p, "SGD")
    data_of(g, "SGD")
    if p.storage.readonly:
        raise RuntimeError(f"SGD: a parameter of shape {p.shape} shares memory of a read-only NumPy array; clone() it first")
    if not p.dense:
        raise ValueError(f"SGD: a parameter of shape {p.shape} has strides {p.strides}; parameters must be contiguous")
    if g.dense and g.storage is not p.storage:
        return g
    copy = new_tensor(FLOAT32, g.rank, g.dims, False)
    copy_into(copy, g, "SGD")
    return copy


cdef int update(list params, list gradients, list buffers, const om_sgd *hyper) except -1:
    """Runs the kernel over parameters that are in one state."""
    cdef float *p[MOST]
    cdef const float *g[MOST]
    cdef float *b[MOST]
    cdef Py_ssize_t n[MOST]
    cdef Py_ssize_t at = 0, i, count
    cdef Tensor t, buffer
    while at < len(params):
        count = min(len(params) - at, <Py_ssize_t>MOST)
        for i in range(count):
            t = <Tensor>params[at + i]
            p[i] = <float *>data_of(t, "SGD")
            n[i] = t.count
            g[i] = <const float *>data_of(<Tensor>gradients[at + i], "SGD")
            b[i] = NULL
            t.storage.version += 1
            if buffers is not None:
                buffer = <Tensor>buffers[at + i]
                b[i] = <float *>data_of(buffer, "SGD")
                buffer.storage.version += 1
        # The interpreter lock stays held: another thread could free a gradient under the kernel.
        sgd(current_mode(), hyper, count, p, g, b, n)
        at += count
    return 0


def sgd_step(list params, dict state, double lr, double momentum, double dampening, double weight_decay, bint nesterov, bint maximize):
    """One step of stochastic gradient descent; `onemodel.optim.SGD` has the formula. Makes state[p]["momentum_buffer"] where needed."""
    cdef om_sgd hyper
    cdef list old = [], old_gradients = [], buffers = [], new = [], new_gradients = [], fresh = []
    cdef Tensor p, g, buffer
    hyper.lr, hyper.momentum, hyper.undamped, hyper.weight_decay = <float>lr, <float>momentum, <float>(1.0 - dampening), <float>weight_decay
    hyper.nesterov, hyper.maximize, hyper.first = nesterov, maximize, False
    for p in params:
        if p.gradient is None:
            continue
        g = gradient_of(p)
        buffer = buffer_of(state, p, "momentum_buffer") if momentum != 0.0 else None
        if momentum == 0.0 or buffer is not None:
            old.append(p)
            old_gradients.append(g)
            buffers.append(buffer)
        else:
            new.append(p)
            new_gradients.append(g)
            fresh.append(new_tensor(FLOAT32, p.rank, p.dims, False))
    update(old, old_gradients, buffers if momentum != 0.0 else None, &hyper)
    if new:
        hyper.first = True
        update(new, new_gradients, fresh, &hyper)
        for p, buffer in zip(new, fresh):
            state.setdefault(p, {})["momentum_buffer"] = buffer
