"""Attention of tensors: strides of heads and masks, memory, the interpreter lock. Shapes are checked by the caller."""

from libc.stdint cimport uint8_t

from onemodel._kernels.attention cimport Heads, attention, attention_bwd
from onemodel._kernels.table cimport current_mode
from onemodel._pool.pool cimport pin, raise_no_memory, unpin
from onemodel.tensor cimport BOOL, FLOAT32, MAX_NDIM, Tensor, data_of, densely, new_like, new_tensor

cdef str OP = "scaled_dot_product_attention"


cdef class Call:
    """The operands of one call, pinned while the kernel runs without the lock."""
    cdef Heads h
    cdef Py_ssize_t[MAX_NDIM] mask_lead
    cdef Tensor q
    cdef Tensor k
    cdef Tensor v
    cdef Tensor mask

    cdef int pin_all(self, bint on) except -1:
        for t in (self.q, self.k, self.v, self.mask):
            if t is not None:
                if on:
                    pin((<Tensor>t).storage)
                else:
                    unpin((<Tensor>t).storage)
        return 0


cdef Tensor with_rows(Tensor t):
    """Elements of a row side by side, whatever the other strides."""
    return t if t.steps[t.rank - 1] == 1 or t.dims[t.rank - 1] <= 1 else densely(t, OP)


cdef Call prepared(Tensor q, Tensor k, Tensor v, Tensor mask, bint causal, double scale):
    cdef Call call = Call.__new__(Call)
    cdef Heads *h = &call.h
    cdef int rank = q.rank, d, at
    call.q, call.k, call.v, call.mask = with_rows(q), with_rows(k), with_rows(v), mask
    h.ndim, h.shape = rank - 2, call.q.dims
    h.q_lead, h.k_lead, h.v_lead, h.mask_lead = call.q.steps, call.k.steps, call.v.steps, call.mask_lead
    h.queries, h.keys, h.width, h.value_width = q.dims[rank - 2], k.dims[rank - 2], q.dims[rank - 1], v.dims[rank - 1]
    h.q, h.k, h.v = <const float *>data_of(call.q, OP), <const float *>data_of(call.k, OP), <const float *>data_of(call.v, OP)
    h.q_row, h.k_row, h.v_row = call.q.steps[rank - 2], call.k.steps[rank - 2], call.v.steps[rank - 2]
    h.add = h.keep = NULL
    h.mask_row = h.mask_col = 0
    h.causal, h.scale = causal, <float>scale
    for d in range(rank - 2):
        call.mask_lead[d] = 0
    if mask is not None:
        for d in range(rank):
            at = d - (rank - mask.rank)
            if at < 0 or mask.dims[at] == 1:
                continue
            if d < rank - 2:
                call.mask_lead[d] = mask.steps[at]
            elif d == rank - 2:
                h.mask_row = mask.steps[at]
            else:
                h.mask_col = mask.steps[at]
        if mask.code == BOOL:
            h.keep = <const uint8_t *>data_of(mask, OP)
        else:
            h.add = <const float *>data_of(mask, OP)
    return call


def forward(Tensor q not None, Tensor k not None, Tensor v not None, Tensor mask, bint causal, double scale):
    """softmax(scale q·kᵀ + mask)·v; q, k and v have the same leading dimensions, the mask broadcasts."""
    cdef Call call = prepared(q, k, v, mask, causal, scale)
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef int d, mode = current_mode(), status
    for d in range(q.rank - 1):
        dims[d] = q.dims[d]
    dims[q.rank - 1] = v.dims[v.rank - 1]
    cdef Tensor out = new_tensor(FLOAT32, q.rank, dims, True)
    cdef float *y = <float *>out.storage.data
    call.pin_all(True)
    pin(out.storage)
    with nogil:
        status = attention(mode, &call.h, y)
    unpin(out.storage)
    call.pin_all(False)
    if status < 0:
        raise_no_memory(k.count * 4)
    return out


def backward(Tensor g not None, Tensor q not None, Tensor k not None, Tensor v not None, Tensor mask, bint causal, double scale, tuple wanted):
    """Gradients of q, k and v, None where not wanted."""
    cdef Call call = prepared(q, k, v, mask, causal, scale)
    cdef Tensor dq = new_like(q, True) if wanted[0] else None, dk = new_like(k, True) if wanted[1] else None
    cdef Tensor dv = new_like(v, True) if wanted[2] else None
    cdef int mode = current_mode(), status
    g = densely(g, OP)
    cdef const float *pg = <const float *>data_of(g, OP)
    cdef float *pq = NULL if dq is None else <float *>dq.storage.data
    cdef float *pk = NULL if dk is None else <float *>dk.storage.data
    cdef float *pv = NULL if dv is None else <float *>dv.storage.data
    call.pin_all(True)
    pin(g.storage)
    with nogil:
        status = attention_bwd(mode, &call.h, pg, pq, pk, pv)
    unpin(g.storage)
    call.pin_all(False)
    if status < 0:
        raise_no_memory(k.count * 4)
    return dq, dk, dv
