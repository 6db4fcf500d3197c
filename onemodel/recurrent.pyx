"""One direction of one recurrent layer, of tensors: memory for what backward wants, pointers, the interpreter lock. Shapes are checked by the caller."""

from libc.string cimport memcpy

from onemodel._kernels.rnn cimport GRU, LSTM, Cell, Recurrent, RecurrentGradients, recurrent, recurrent_bwd
from onemodel._kernels.table cimport current_mode
from onemodel._pool.pool cimport pin, raise_no_memory, unpin
from onemodel.tensor cimport FLOAT32, Tensor, data_of, densely, new_like, new_tensor

GATES = {"lstm_layer": LSTM, "gru_layer": GRU}


cdef class Call:
    """The tensors of one call, contiguous and pinned while the kernel runs without the lock; who makes one lets go of it, whatever is raised."""
    cdef Recurrent r
    cdef list held

    def __cinit__(self):
        self.held = []

    cdef const float *hold(self, Tensor t, str op) except? NULL:
        if t is None:
            return NULL
        t = densely(t, op)
        self.held.append(t)
        pin(t.storage)
        return <const float *>data_of(t, op)

    cdef int release(self) except -1:
        for t in self.held:
            unpin((<Tensor>t).storage)
        self.held = []
        return 0


cdef int prepare(Call call, str op, Tensor x, Tensor w_ih, Tensor w_hh, Tensor b_ih, Tensor b_hh, Tensor h0, Tensor c0, Tensor gates, Tensor c, Tensor tanh_c,
                 Tensor out, bint reverse) except -1:
    cdef Recurrent *r = &call.r
    r.cell, r.reverse = <Cell>GATES[op], reverse
    r.steps, r.batch, r.inputs, r.hidden = x.dims[0], x.dims[1], x.dims[2], w_hh.dims[1]
    r.x, r.w_ih, r.w_hh = call.hold(x, op), call.hold(w_ih, op), call.hold(w_hh, op)
    r.b_ih, r.b_hh, r.h0, r.c0 = call.hold(b_ih, op), call.hold(b_hh, op), call.hold(h0, op), call.hold(c0, op)
    r.gates, r.c = <float *>call.hold(gates, op), <float *>call.hold(c, op)
    r.tanh_c, r.y = <float *>call.hold(tanh_c, op), <float *>call.hold(out, op)
    return 0


def layer(str op, Tensor x not None, Tensor w_ih not None, Tensor w_hh not None, Tensor b_ih, Tensor b_hh, Tensor h0, Tensor c0, bint reverse,
          bint with_cell):
    """The output [steps, batch, hidden], with the final cell state as one more step behind it if asked; and gates, c and tanh c for backward."""
    cdef Py_ssize_t[3] dims
    cdef Py_ssize_t steps = x.dims[0], batch = x.dims[1], hidden = w_hh.dims[1]
    cdef bint is_lstm = op == "lstm_layer"
    dims[0], dims[1], dims[2] = steps + with_cell, batch, hidden
    cdef Tensor out = new_tensor(FLOAT32, 3, dims, True), tanh_c = None
    dims[0] = steps
    cdef Tensor c = new_tensor(FLOAT32, 3, dims, True)
    if is_lstm:
        tanh_c = new_tensor(FLOAT32, 3, dims, True)
    dims[2] = hidden * <int>GATES[op]
    cdef Tensor gates = new_tensor(FLOAT32, 3, dims, True)
    cdef Call call = Call.__new__(Call)
    cdef int mode = current_mode(), status
    try:
        prepare(call, op, x, w_ih, w_hh, b_ih, b_hh, h0, c0, gates, c, tanh_c, out, reverse)
        with nogil:
            status = recurrent(mode, &call.r)
            if with_cell and status == 0:
                memcpy(call.r.y + steps * batch * hidden, call.r.c + (0 if reverse else steps - 1) * batch * hidden, batch * hidden * sizeof(float))
    finally:
        call.release()
    if status < 0:
        raise_no_memory(gates.count * 4)
    return out, gates, c, tanh_c


def layer_bwd(str op, Tensor g not None, Tensor x not None, Tensor w_ih not None, Tensor w_hh not None, Tensor h0, Tensor c0, Tensor gates not None,
              Tensor c not None, Tensor tanh_c, Tensor out not None, bint reverse, bint with_cell, tuple wanted):
    """Gradients of x, w_ih, w_hh, b_ih, b_hh, h0 and c0, None where not wanted."""
    cdef Call call = Call.__new__(Call)
    cdef RecurrentGradients d
    cdef Py_ssize_t[1] width
    cdef Tensor dx = None, dw_ih = None, dw_hh = None, db_ih = None, db_hh = None, dh0 = None, dc0 = None
    cdef int mode = current_mode(), status
    width[0] = gates.dims[2]
    if wanted[0]:
        dx = new_like(x, True)
    if wanted[1]:
        dw_ih = new_like(w_ih, True)
    if wanted[2]:
        dw_hh = new_like(w_hh, True)
    if wanted[3]:
        db_ih = new_tensor(FLOAT32, 1, width, True)
    if wanted[4]:
        db_hh = new_tensor(FLOAT32, 1, width, True)
    if wanted[5]:
        dh0 = new_like(h0, True)
    if wanted[6]:
        dc0 = new_like(c0, True)
    try:
        prepare(call, op, x, w_ih, w_hh, None, None, h0, c0, gates, c, tanh_c, out, reverse)
        d.gy = call.hold(g, op)
        d.gc = d.gy + call.r.steps * call.r.batch * call.r.hidden if with_cell else NULL
        d.dx, d.dw_ih, d.dw_hh = <float *>call.hold(dx, op), <float *>call.hold(dw_ih, op), <float *>call.hold(dw_hh, op)
        d.db_ih, d.db_hh = <float *>call.hold(db_ih, op), <float *>call.hold(db_hh, op)
        d.dh0, d.dc0 = <float *>call.hold(dh0, op), <float *>call.hold(dc0, op)
        with nogil:
            status = recurrent_bwd(mode, &call.r, &d)
    finally:
        call.release()
    if status < 0:
        raise_no_memory(gates.count * 4)
    return dx, dw_ih, dw_hh, db_ih, db_hh, dh0, dc0
