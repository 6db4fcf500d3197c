"""Matrix products of tensors and their rules: matmul and linear on the GEMM, operands of any stride read where they lie.

A batch of matrices against one matrix is one product over all rows (as torch folds it); other batch dimensions broadcast
with stride 0. Holds no loop over elements.
"""

from onemodel._kernels.gemm cimport gemm, gemm_batched, gemm_summing
from onemodel._kernels.reduce cimport SUM, reduce as reduce_kernel
from onemodel._kernels.table cimport current_mode
from onemodel._pool.pool cimport pin, raise_no_memory, unpin
from onemodel.arrays cimport require
from onemodel.rules cimport edge_shape
from onemodel.tensor cimport (FLOAT32, MAX_NDIM, Record, Rule, Tensor, attach, data_of, densely, edge_of, new_tensor, new_view, recording,
                              shape_tuple)

from onemodel.errors import ShapeError


cdef struct Matrix:             # a batch of matrices as the GEMM sees it
    int batch_rank
    Py_ssize_t[MAX_NDIM] batch_steps
    Py_ssize_t rows
    Py_ssize_t cols
    Py_ssize_t row_step
    Py_ssize_t col_step


cdef Matrix matrix_of(Tensor t, bint transposed) noexcept:
    """The last two dimensions, or their transpose; the rest is the batch."""
    cdef Matrix m
    cdef int i
    m.batch_rank = t.rank - 2
    for i in range(m.batch_rank):
        m.batch_steps[i] = t.steps[i]
    cdef int r = t.rank - 1 if transposed else t.rank - 2, c = t.rank - 2 if transposed else t.rank - 1
    m.rows, m.row_step = t.dims[r], t.steps[r]
    m.cols, m.col_step = t.dims[c], t.steps[c]
    return m


cdef Tensor product(Tensor a, bint ta, Tensor b, bint tb, Tensor bias, int mode, bint scoped, str op):
    """op(a) @ op(b) (+ bias per column), op a transpose of the last two dimensions where ta, tb say so; ranks of 2 or more."""
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Py_ssize_t[MAX_NDIM] a_steps
    cdef Py_ssize_t[MAX_NDIM] b_steps
    cdef Py_ssize_t[MAX_NDIM] whole
    cdef Matrix x = matrix_of(a, ta), y = matrix_of(b, tb)
    cdef int rank = max(x.batch_rank, y.batch_rank), i, status
    for i in range(rank):
        dims[i] = 1
        a_steps[i] = b_steps[i] = 0
    for i in range(x.batch_rank):
        dims[rank - x.batch_rank + i] = a.dims[i]
        a_steps[rank - x.batch_rank + i] = x.batch_steps[i] if a.dims[i] != 1 else 0
    for i in range(y.batch_rank):
        if b.dims[i] != 1:
            if dims[rank - y.batch_rank + i] not in (1, b.dims[i]):
                raise ShapeError(f"{op}: batch shapes {a.shape[:a.rank - 2]} and {b.shape[:b.rank - 2]} do not broadcast")
            dims[rank - y.batch_rank + i] = b.dims[i]
            b_steps[rank - y.batch_rank + i] = y.batch_steps[i]
    for i in range(rank):
        whole[i] = dims[i]
    whole[rank], whole[rank + 1] = x.rows, y.cols
    cdef const float *pa = <const float *>data_of(a, op)
    cdef const float *pb = <const float *>data_of(b, op)
    cdef const float *pbias = NULL if bias is None else <const float *>data_of(bias, op)
    cdef Tensor out = new_tensor(FLOAT32, rank + 2, whole, scoped)
    cdef float *pc = <float *>out.storage.data
    if x.rows * y.cols * x.cols < 32768 and rank == 0:
        status = gemm(mode, x.rows, y.cols, x.cols, pa, x.row_step, x.col_step, pb, y.row_step, y.col_step, pc, y.cols, pbias)
    else:
        pin(a.storage)
        pin(b.storage)
        pin(out.storage)
        if bias is not None:
            pin(bias.storage)
        with nogil:
            if rank == 0:
                status = gemm(mode, x.rows, y.cols, x.cols, pa, x.row_step, x.col_step, pb, y.row_step, y.col_step, pc, y.cols, pbias)
            else:
                status = gemm_batched(mode, rank, dims, a_steps, b_steps, x.rows, y.cols, x.cols, pa, x.row_step, x.col_step,
                                      pb, y.row_step, y.col_step, pc)
        if bias is not None:
            unpin(bias.storage)
        unpin(out.storage)
        unpin(b.storage)
        unpin(a.storage)
    if status < 0:
        raise_no_memory(x.rows * x.cols * 4)
    return out


cdef Tensor folded(Tensor t, str op):
    """[..., r, c] as [rows, c]: a view where the leading dimensions lie evenly in memory, else a contiguous copy."""
    cdef Py_ssize_t[2] dims
    cdef Py_ssize_t[2] steps
    cdef Py_ssize_t rows = 1, row_step = t.dims[t.rank - 1], next_step = 0
    cdef int i
    cdef bint even = True, innermost = True
    for i in range(t.rank - 2, -1, -1):
        rows *= t.dims[i]
        if t.dims[i] == 1:  # its stride means nothing
            continue
        if innermost:
            row_step, innermost = t.steps[i], False
        elif t.steps[i] != next_step:
            even = False
        next_step = t.steps[i] * t.dims[i]
    dims[0], dims[1] = rows, t.dims[t.rank - 1]
    if t.count and not even:
        t = densely(t, op)
        row_step = t.dims[t.rank - 1]
    steps[0], steps[1] = row_step, t.steps[t.rank - 1]
    return new_view(t, 2, dims, steps, t.offset)


cdef Tensor shaped(Tensor t, int rank, const Py_ssize_t *dims):
    """A contiguous tensor in another shape of as many elements."""
    cdef Py_ssize_t[MAX_NDIM] steps
    cdef Py_ssize_t step = 1
    cdef int i
    for i in range(rank - 1, -1, -1):
        steps[i] = step
        step *= dims[i] if dims[i] > 1 else 1
    return new_view(t, rank, dims, steps, t.offset)


cdef Tensor with_axis(Tensor t, int where, str op):
    """A new dimension of size 1 before dimension `where`."""
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Py_ssize_t[MAX_NDIM] steps
    cdef int i
    if t.rank == MAX_NDIM:
        raise ShapeError(f"{op}: more than {MAX_NDIM} dimensions")
    for i in range(t.rank + 1):
        if i == where:
            dims[i], steps[i] = 1, 1
        else:
            dims[i], steps[i] = t.dims[i - (i > where)], t.steps[i - (i > where)]
    return new_view(t, t.rank + 1, dims, steps, t.offset)


cdef int check_float(Tensor t, str op, str what) except -1:
    if t.code != FLOAT32:
        raise TypeError(f"{op}: {what} must be float32, got {t.dtype}; write .cast(om.float32)")
    return 0


# ---- matmul ----

cdef class MatmulRule(Rule):
    """saved: a if b needs a gradient, b if a does; the vector cases are told by the ranks of the edges' shapes."""
    cdef object backward(self, Record r, Tensor g):
        cdef Py_ssize_t[MAX_NDIM] a_dims
        cdef Py_ssize_t[MAX_NDIM] b_dims
        cdef int a_rank = r.attributes[0], b_rank = r.attributes[1]
        cdef Tensor a = <Tensor>r.saved[0], b = <Tensor>r.saved[1], da = None, db = None
        if a_rank == 1:
            g = with_axis(g, max(g.rank - 1, 0), self.name)
        if b_rank == 1:
            g = with_axis(g, g.rank, self.name)
        if a is not None and a_rank == 1:
            a = with_axis(a, 0, self.name)
        if b is not None and b_rank == 1:
            b = with_axis(b, 1, self.name)
        cdef bint fold = b_rank <= 2 and a_rank > 2
        if r.edges[0] is not None and r.wanted & 1:
            edge_shape(r.edges[0], a_dims)
            if fold:
                da = shaped(product(folded(g, self.name), False, b, True, None, r.mode, False, self.name), a_rank, a_dims)
            else:
                da = product(g, False, b, True, None, r.mode, False, self.name)
                if a_rank == 1:
                    da = squeezed(da, da.rank - 2)
        if r.edges[1] is not None and r.wanted & 2:
            edge_shape(r.edges[1], b_dims)
            if fold:
                db = product(folded(a, self.name), True, folded(g, self.name), False, None, r.mode, False, self.name)
            else:
                db = product(a, True, g, False, None, r.mode, False, self.name)
            if b_rank == 1:
                db = squeezed(db, db.rank - 1)
        return da, db


cdef Tensor squeezed(Tensor t, int axis):
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef int i
    for i in range(t.rank - 1):
        dims[i] = t.dims[i + (i >= axis)]
    return shaped(t, t.rank - 1, dims)


cdef MatmulRule MATMUL = MatmulRule()
MATMUL.name = "matmul"


def matmul(a, b):
    """Product of the last two dimensions, batch dimensions broadcast; a vector stands for a row on the left, a column on the right."""
    return matmul_of(require(a, "matmul"), require(b, "matmul"))


cdef Tensor matmul_of(Tensor a, Tensor b):
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Py_ssize_t inner_a, inner_b
    cdef Tensor x = a, y = b, out
    cdef int mode = current_mode(), i
    cdef bint save_a, save_b
    check_float(a, "matmul", "the left operand")
    check_float(b, "matmul", "the right operand")
    if a.rank == 0 or b.rank == 0:
        raise ShapeError(f"matmul: both operands need at least 1 dimension, got shapes {a.shape} and {b.shape}; use * to scale")
    inner_a = a.dims[a.rank - 1]
    inner_b = b.dims[b.rank - 2 if b.rank > 1 else 0]
    if inner_a != inner_b:
        raise ShapeError(f"matmul: inner sizes differ: {inner_a} in {a.shape} and {inner_b} in {b.shape}")
    if a.rank == 1:
        x = with_axis(a, 0, "matmul")
    if b.rank == 1:
        y = with_axis(b, 1, "matmul")
    if y.rank == 2 and x.rank > 2:
        out = product(folded(x, "matmul"), False, y, False, None, mode, True, "matmul")
        for i in range(x.rank - 1):
            dims[i] = x.dims[i]
        dims[x.rank - 1] = y.dims[1]
        out = shaped(out, x.rank, dims)
    else:
        out = product(x, False, y, False, None, mode, True, "matmul")
    if a.rank == 1:
        out = squeezed(out, out.rank - 2)
    if b.rank == 1:
        out = squeezed(out, out.rank - 1)
    if (a.wants_grad or b.wants_grad) and recording():
        attach(out, MATMUL, (edge_of(a), edge_of(b)), (a if b.wants_grad else None, b if a.wants_grad else None), (a.rank, b.rank), mode)
    return out


# ---- linear ----

cdef Tensor weight_gradient(Tensor g, Tensor x, Tensor db, int mode, str op, int *summed):
    """gᵀ·x; summed becomes 1 where the sums of g's columns went into db on the way, else 0."""
    cdef Py_ssize_t[2] dims
    dims[0], dims[1] = g.dims[1], x.dims[1]
    cdef Tensor dw = new_tensor(FLOAT32, 2, dims, False)
    cdef const float *pg = <const float *>data_of(g, op)
    cdef const float *px = <const float *>data_of(x, op)
    cdef int status
    for t in (g, x, dw, db):
        pin((<Tensor>t).storage)
    with nogil:
        status = gemm_summing(mode, dims[0], dims[1], g.dims[0], pg, g.steps[1], g.steps[0], px, x.steps[0], x.steps[1],
                              <float *>dw.storage.data, dims[1], <float *>db.storage.data)
    for t in (g, x, dw, db):
        unpin((<Tensor>t).storage)
    if status < 0:
        raise_no_memory(g.count * 4)
    summed[0] = status
    return dw


cdef class LinearRule(Rule):
    """saved: x if w needs a gradient, w if x does."""
    cdef object backward(self, Record r, Tensor g):
        cdef Py_ssize_t[MAX_NDIM] dims
        cdef Py_ssize_t[1] width
        cdef Tensor dx = None, dw = None, db = None, g2 = folded(g, self.name) if g.rank > 1 else with_axis(g, 0, self.name)
        cdef Tensor x = <Tensor>r.saved[0]
        cdef int rank, status = 0
        if len(r.edges) > 2 and r.edges[2] is not None and r.wanted & 4:
            width[0] = g2.dims[1]
            db = new_tensor(FLOAT32, 1, width, False)
        if r.edges[0] is not None and r.wanted & 1:
            rank = edge_shape(r.edges[0], dims)
            dx = shaped(product(g2, False, <Tensor>r.saved[1], False, None, r.mode, False, self.name), rank, dims)
        if r.edges[1] is not None and r.wanted & 2:
            x = folded(x, self.name) if x.rank > 1 else with_axis(x, 0, self.name)
            if db is None:
                dw = product(g2, True, x, False, None, r.mode, False, self.name)
            else:
                dw = weight_gradient(g2, x, db, r.mode, self.name, &status)
        if db is not None and status == 0:
            status = reduce_kernel(r.mode, SUM, 2, g2.dims, g2.steps, <const float *>data_of(g2, self.name), 1, <float *>db.storage.data)
            if status < 0:
                raise_no_memory(g2.dims[1] * 8)
        return (dx, dw) if len(r.edges) == 2 else (dx, dw, db)


cdef LinearRule LINEAR = LinearRule()
LINEAR.name = "linear"


def linear(x, weight, bias=None):
    """x @ weight.T + bias over the last dimension; weight [out, in], bias [out]."""
    return linear_of(require(x, "linear"), require(weight, "linear"), None if bias is None else require(bias, "linear"))


cdef Tensor linear_of(Tensor x, Tensor weight, Tensor bias):
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Tensor out
    cdef int mode = current_mode(), i
    cdef bint wants
    check_float(x, "linear", "x")
    check_float(weight, "linear", "weight")
    if weight.rank != 2 or x.rank == 0 or x.dims[x.rank - 1] != weight.dims[1]:
        raise ShapeError(f"linear: expected x [..., in] and weight [out, in], got x {x.shape} and weight {weight.shape}")
    if bias is not None:
        check_float(bias, "linear", "bias")
        if bias.rank != 1 or bias.dims[0] != weight.dims[0]:
            raise ShapeError(f"linear: expected a bias of shape ({weight.dims[0]},) for weight {weight.shape}, got {bias.shape}")
    out = product(folded(x, "linear") if x.rank > 1 else with_axis(x, 0, "linear"), False, weight, True,
                  None if bias is None else densely(bias, "linear"), mode, True, "linear")
    for i in range(x.rank - 1):
        dims[i] = x.dims[i]
    dims[x.rank - 1] = weight.dims[0]
    out = shaped(out, x.rank, dims)
    wants = x.wants_grad or weight.wants_grad or (bias is not None and bias.wants_grad)
    if wants and recording():
        attach(out, LINEAR, (edge_of(x), edge_of(weight)) if bias is None else (edge_of(x), edge_of(weight), edge_of(bias)),
               (x if weight.wants_grad else None, weight if x.wants_grad else None), None, mode)
    return out


RULES = {"matmul": MATMUL, "linear": LINEAR}
