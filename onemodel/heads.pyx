"""Attention of tensors: strides of heads and masks, memory, the interpreter lock. Shapes are checked by the caller."""

from libc.stdint cimport uint8_t

from onemodel._kernels.attention cimport Heads, Rows, attention, attention_bwd
from onemodel._kernels.table cimport current_mode
from onemodel._pool.pool cimport pin, raise_no_memory, unpin
from onemodel.tensor cimport BOOL, FLOAT32, MAX_NDIM, Tensor, data_of, densely, new_tensor, new_view

cdef str OP = "scaled_dot_product_attention"


cdef class Call:
    """The operands of one call, pinned while the kernel runs without the lock. Nothing stands between pinning and letting go that can raise."""
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


cdef Tensor laid_out(Tensor like, Py_ssize_t columns):
    """New memory whose dimensions lie in the order of those of `like`, rows contiguous: heads that stand inside the rows of a projection come
    out so, and are put together again without a copy."""
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Py_ssize_t[MAX_NDIM] steps
    cdef int[MAX_NDIM] order
    cdef int rank = like.rank, i, j, d
    cdef Py_ssize_t step = columns
    for i in range(rank - 1):  # by stride, largest first; equal ones keep their order
        d, j = i, i
        while j > 0 and absolute(like.steps[order[j - 1]]) < absolute(like.steps[d]):
            order[j] = order[j - 1]
            j -= 1
        order[j] = d
    dims[rank - 1], steps[rank - 1] = columns, 1
    for i in range(rank - 2, -1, -1):
        d = order[i]
        dims[d], steps[d] = like.dims[d], step
        step *= like.dims[d]
    cdef Tensor t = new_tensor(FLOAT32, rank, dims, True)
    return new_view(t, rank, dims, steps, 0)


cdef inline Py_ssize_t absolute(Py_ssize_t x) noexcept nogil:
    return -x if x < 0 else x


cdef Rows rows(Tensor t):
    cdef Rows r
    r.data = NULL
    r.lead = NULL
    r.row = 0
    if t is not None:
        r.data, r.lead, r.row = <float *>data_of(t, OP), t.steps, t.steps[t.rank - 2]
    return r


cdef int attend(Call call, Tensor out) except -1:
    cdef int mode = current_mode(), status
    cdef Rows y = rows(out)
    call.pin_all(True)
    pin(out.storage)
    with nogil:
        status = attention(mode, &call.h, &y)
    unpin(out.storage)
    call.pin_all(False)
    if status < 0:
        raise_no_memory(call.k.count * 4)
    return 0


cdef int attend_back(Call call, Tensor g, Tensor dq, Tensor dk, Tensor dv) except -1:
    cdef int mode = current_mode(), status
    g = with_rows(g)
    cdef Rows pg = rows(g), pq = rows(dq), pk = rows(dk), pv = rows(dv)
    call.pin_all(True)
    pin(g.storage)
    with nogil:
        status = attention_bwd(mode, &call.h, &pg, &pq, &pk, &pv)
    unpin(g.storage)
    call.pin_all(False)
    if status < 0:
        raise_no_memory(call.k.count * 4)
    return 0


def forward(Tensor q not None, Tensor k not None, Tensor v not None, Tensor mask, bint causal, double scale):
    """softmax(scale q·kᵀ + mask)·v; q, k and v have the same leading dimensions, the mask broadcasts."""
    cdef Call call = prepared(q, k, v, mask, causal, scale)
    cdef Tensor out = laid_out(q, v.dims[v.rank - 1])
    attend(call, out)
    return out


def backward(Tensor g not None, Tensor q not None, Tensor k not None, Tensor v not None, Tensor mask, bint causal, double scale, tuple wanted):
    """Gradients of q, k and v, None where not wanted."""
    cdef Call call = prepared(q, k, v, mask, causal, scale)
    cdef Tensor dq = laid_out(q, q.dims[q.rank - 1]) if wanted[0] else None, dk = laid_out(k, k.dims[k.rank - 1]) if wanted[1] else None
    cdef Tensor dv = laid_out(v, v.dims[v.rank - 1]) if wanted[2] else None
    attend_back(call, g, dq, dk, dv)
    return dq, dk, dv


cdef Tensor heads_of(Tensor x, Py_ssize_t heads, int part, int parts):
    """[batch, heads, length, width] of one of so many parts that stand side by side in the rows of [batch, length, columns]."""
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Py_ssize_t[MAX_NDIM] steps
    cdef Py_ssize_t columns = x.dims[2] // parts
    dims[0], dims[1], dims[2], dims[3] = x.dims[0], heads, x.dims[1], columns // heads
    steps[0], steps[1], steps[2], steps[3] = x.steps[0], columns // heads * x.steps[2], x.steps[1], x.steps[2]
    return new_view(x, 4, dims, steps, x.offset + (part * columns * x.steps[2] if x.count else 0))


cdef Call of_rows(Tensor x, Py_ssize_t heads, Tensor mask, bint causal, double scale):
    x = with_rows(x)
    return prepared(heads_of(x, heads, 0, 3), heads_of(x, heads, 1, 3), heads_of(x, heads, 2, 3), mask, causal, scale)


def forward_in_rows(Tensor x not None, Py_ssize_t heads, Tensor mask, bint causal, double scale):
    """Attention of queries, keys and values that stand in rows of [batch, length, 3 columns]: [batch, length, columns]."""
    cdef Tensor out = laid_out(x, x.dims[2] // 3)
    attend(of_rows(x, heads, mask, causal, scale), heads_of(out, heads, 0, 1))
    return out


def backward_in_rows(Tensor g not None, Tensor x not None, Py_ssize_t heads, Tensor mask, bint causal, double scale):
    """The gradient of x, written where it belongs: three gradients apart would be copied into one."""
    cdef Tensor dx = laid_out(x, x.dims[2])
    attend_back(of_rows(x, heads, mask, causal, scale), heads_of(with_rows(g), heads, 0, 1), heads_of(dx, heads, 0, 3),
                heads_of(dx, heads, 1, 3), heads_of(dx, heads, 2, 3))
    return dx
