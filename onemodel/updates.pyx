"""Updates: one optimiser step over a group of parameters, in place, without memory from the system once state exists.

A step is two calls: `..._ready` checks all tensors and makes missing state, `..._step` updates and raises versions. An optimiser calls the first for
all of its groups before the second for any, so that what refuses one leaves the others alone. Holds no options and no loops over elements.
"""

from libc.math cimport sqrt
from libc.string cimport memset

from onemodel._kernels.optim cimport ADAM, RMSPROP, SGD, STATES, om_adam, om_rmsprop, om_sgd, step, sum_squares
from onemodel._kernels.table cimport current_mode
from onemodel._pool.pool cimport raise_no_memory
from onemodel.tensor cimport FLOAT32, Tensor, copy_into, data_of, densely, new_tensor, same_shape

cdef enum:
    MOST = 64       # parameters handed to the kernel at a time


cdef Tensor buffer_of(dict state, Tensor p, str name, str op):
    """The state tensor of a parameter, or None where there is none yet."""
    entry = state.get(p)
    value = None if entry is None else entry.get(name)
    if value is None:
        return None
    if not isinstance(value, Tensor) or not same_shape(<Tensor>value, p.rank, p.dims) or (<Tensor>value).code != FLOAT32 \
            or not (<Tensor>value).dense or (<Tensor>value).storage.readonly:
        raise ValueError(f"{op}: {name} of a parameter of shape {p.shape} must be a contiguous float32 tensor of that shape")
    data_of(<Tensor>value, op)
    return <Tensor>value


cdef Tensor zeros_like(Tensor p):
    cdef Tensor z = new_tensor(FLOAT32, p.rank, p.dims, False)
    memset(z.storage.data, 0, z.count * 4)
    return z


cdef Py_ssize_t step_of(dict state, Tensor p, str op) except -1:
    """How many steps a parameter has made."""
    entry = state.get(p)
    value = 0 if entry is None else entry.get("step", 0)
    if isinstance(value, Tensor) and (<Tensor>value).count == 1:
        value = value.item()
        if isinstance(value, float) and value.is_integer():
            value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 9007199254740992:
        raise ValueError(f"{op}: step of a parameter of shape {p.shape} must be a number of steps, got {value!r}")
    return value


cdef Tensor gradient_of(Tensor p, str op):
    """The gradient, checked with its parameter; a copy where it lies in the parameter's own memory."""
    cdef Tensor g = p.gradient, copy
    data_of(p, op)
    data_of(g, op)
    if p.storage.readonly:
        raise RuntimeError(f"{op}: a parameter of shape {p.shape} shares memory of a read-only NumPy array; clone() it first")
    if not p.dense:
        raise ValueError(f"{op}: a parameter of shape {p.shape} has strides {p.strides}; parameters must be contiguous")
    if g.dense and g.storage is not p.storage:
        return g
    copy = new_tensor(FLOAT32, g.rank, g.dims, False)
    copy_into(copy, g, op)
    return copy


cdef int update(int rule, const void *hyper, list params, list gradients, list buffers, str op) except -1:
    """Runs the kernel over parameters that are in one state; buffers has a list of tensors, or None, for each state of the rule."""
    cdef float *p[MOST]
    cdef const float *g[MOST]
    cdef float *b[STATES][MOST]
    cdef float **states[STATES]
    cdef Py_ssize_t n[MOST]
    cdef Py_ssize_t at = 0, i, count
    cdef int k
    cdef Tensor t, buffer
    for k in range(STATES):
        states[k] = NULL if buffers[k] is None else b[k]
    while at < len(params):
        count = min(len(params) - at, <Py_ssize_t>MOST)
        for i in range(count):
            t = <Tensor>params[at + i]
            p[i] = <float *>data_of(t, op)
            n[i] = t.count
            g[i] = <const float *>data_of(<Tensor>gradients[at + i], op)
            t.storage.version += 1
            for k in range(STATES):
                if buffers[k] is not None:
                    buffer = <Tensor>buffers[k][at + i]
                    b[k][i] = <float *>data_of(buffer, op)
                    buffer.storage.version += 1
        # The interpreter lock stays held: another thread could free a gradient under the kernel.
        step(current_mode(), rule, hyper, count, p, g, states, n)
        at += count
    return 0


def sgd_ready(list params, dict state, bint remembers):
    """What a step of these parameters takes: parameters, gradients and, if it `remembers`, momentum buffers; first of those that have a buffer (or
    need none), then of those that get one. Changes nothing."""
    cdef list old = [], old_gradients = [], buffers = [], new = [], new_gradients = [], fresh = []
    cdef Tensor p, g, buffer = None
    for p in params:
        if p.gradient is None:
            continue
        g = gradient_of(p, "SGD")
        if remembers:
            buffer = buffer_of(state, p, "momentum_buffer", "SGD")
        if buffer is not None or not remembers:
            old.append(p)
            old_gradients.append(g)
            buffers.append(buffer)
        else:
            new.append(p)
            new_gradients.append(g)
            fresh.append(new_tensor(FLOAT32, p.rank, p.dims, False))
    return (old, old_gradients, buffers), (new, new_gradients, fresh)


def sgd_step(tuple ready, dict state, double lr, double momentum, double dampening, double weight_decay, bint nesterov, bint maximize):
    """One step of stochastic gradient descent; `onemodel.optim.SGD` has the formula. Enters the momentum buffers that are new."""
    cdef om_sgd hyper
    hyper.lr, hyper.momentum, hyper.undamped, hyper.weight_decay = <float>lr, <float>momentum, <float>(1.0 - dampening), <float>weight_decay
    hyper.nesterov, hyper.maximize = nesterov, maximize
    cdef list params, gradients, buffers
    for first in range(2):
        params, gradients, buffers = <tuple>ready[first]
        if params:
            hyper.first = first
            update(SGD, &hyper, params, gradients, [buffers if momentum != 0.0 else None, None, None], "SGD")
            if first:
                for p, buffer in zip(params, buffers):
                    state.setdefault(p, {})["momentum_buffer"] = buffer


cdef double power(double base, Py_ssize_t n) noexcept:
    """By squaring, in IEEE products: the system's pow may differ in the last bit."""
    cdef double result = 1.0
    while n:
        if n & 1:
            result *= base
        base *= base
        n >>= 1
    return result


cdef dict with_state(list params, dict state, tuple names, str op):
    """The parameters that have a gradient by how many steps they made: lists of parameters, gradients and, by name, state tensors, new ones of
    zeros; a name of None is a state that is not used. Changes nothing."""
    cdef dict ready = {}
    cdef Tensor p, g, buffer
    cdef Py_ssize_t t
    for p in params:
        if p.gradient is None:
            continue
        g = gradient_of(p, op)
        t = step_of(state, p, op)
        lists = ready.get(t)
        if lists is None:
            lists = ready[t] = [[], [], *[None if name is None else [] for name in names]]
        found = []
        for name in names:
            if name is not None:
                buffer = buffer_of(state, p, name, op)
                found.append(zeros_like(p) if buffer is None else buffer)
            else:
                found.append(None)
        (<list>lists[0]).append(p)
        (<list>lists[1]).append(g)
        for i, buffer in enumerate(found):
            if buffer is not None:
                (<list>lists[2 + i]).append(buffer)
    return ready


cdef int keep_state(dict state, list lists, tuple names, Py_ssize_t t) except -1:
    """Enters the state tensors and the number of steps."""
    for i, p in enumerate(lists[0]):
        entry = state.setdefault(p, {})
        entry["step"] = t
        for k, name in enumerate(names):
            if name is not None:
                entry[name] = lists[2 + k][i]
    return 0


def adam_ready(list params, dict state, bint amsgrad, str op):
    """What a step of these parameters takes, by how many steps they made. Changes nothing."""
    return with_state(params, state, ("exp_avg", "exp_avg_sq", "max_exp_avg_sq" if amsgrad else None), op)


def adam_step(dict ready, dict state, double lr, double beta1, double beta2, double eps, double weight_decay, bint decoupled, bint amsgrad,
              bint maximize, str op):
    """One step of Adam or, with `decoupled`, AdamW; `onemodel.optim.Adam` has the formula."""
    cdef om_adam hyper
    cdef tuple names = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq" if amsgrad else None)
    cdef Py_ssize_t t
    hyper.rest1, hyper.beta2, hyper.rest2, hyper.eps = <float>(1.0 - beta1), <float>beta2, <float>(1.0 - beta2), <float>eps
    hyper.weight_decay, hyper.keep = <float>(0.0 if decoupled else weight_decay), <float>(1.0 - lr * weight_decay if decoupled else 1.0)
    hyper.maximize = maximize
    for before, lists in ready.items():
        t = before + 1
        hyper.step_size, hyper.root = <float>(lr / (1.0 - power(beta1, t))), <float>sqrt(1.0 - power(beta2, t))
        keep_state(state, lists, names, t)
        update(ADAM, &hyper, lists[0], lists[1], lists[2:], op)


def rmsprop_ready(list params, dict state, double momentum, bint centered):
    """What a step of these parameters takes, by how many steps they made. Changes nothing."""
    return with_state(params, state, ("square_avg", "momentum_buffer" if momentum > 0.0 else None, "grad_avg" if centered else None), "RMSprop")


def rmsprop_step(dict ready, dict state, double lr, double alpha, double eps, double weight_decay, double momentum, bint centered, bint maximize):
    """One step of RMSprop; `onemodel.optim.RMSprop` has the formula."""
    cdef om_rmsprop hyper
    cdef tuple names = ("square_avg", "momentum_buffer" if momentum > 0.0 else None, "grad_avg" if centered else None)
    hyper.lr, hyper.alpha, hyper.rest, hyper.eps = <float>lr, <float>alpha, <float>(1.0 - alpha), <float>eps
    hyper.weight_decay, hyper.momentum, hyper.maximize = <float>weight_decay, <float>momentum, maximize
    for before, lists in ready.items():
        keep_state(state, lists, names, before + 1)
        update(RMSPROP, &hyper, lists[0], lists[1], lists[2:], "RMSprop")


def gradient_norm(list gradients):
    """The root of the sum of all squares, in double."""
    cdef const float *x[MOST]
    cdef Py_ssize_t n[MOST]
    cdef Py_ssize_t at = 0, i, count
    cdef double total = 0.0, part
    cdef list dense = [densely(g, "clip_grad_norm_") for g in gradients]
    while at < len(dense):
        count = min(len(dense) - at, <Py_ssize_t>MOST)
        for i in range(count):
            x[i], n[i] = <const float *>data_of(<Tensor>dense[at + i], "clip_grad_norm_"), (<Tensor>dense[at + i]).count
        part = sum_squares(current_mode(), count, x, n)
        if part < 0:
            raise_no_memory(8 * count)
        total += part
        at += count
    return sqrt(total)
