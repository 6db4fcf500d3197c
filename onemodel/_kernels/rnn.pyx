"""Owns a recurrent layer over its steps: the products around the gate kernels of rnn.h, scratch, threads.

The input's part of all steps is one product; the recurrent weights are packed once; rows of the batch do not see each other, so a piece is some
rows over all steps and threads meet only at the end. Weight gradients are single products over all steps, in increasing step, then row.
"""
from libc.string cimport memcpy, memset

from onemodel._kernels.gemm cimport gemm
from onemodel._kernels.panels cimport Panels, multiply_panels, pack_panels
from onemodel._kernels.pieces cimport begin, run
from onemodel._kernels.reduce cimport SUM, reduce
from onemodel._kernels.table cimport om_map2_fn, om_table, row_index, smallest_piece, table_of, thread_count
from onemodel._pool.pool cimport give, take

cdef extern from "kernels.h" nogil:
    ctypedef void om_lstm_fn(const float *rec, float *gates, const float *c_prev, float *c, float *tanh_c, float *h, Py_ssize_t n) noexcept nogil
    ctypedef void om_lstm_bwd_fn(const float *gates, const float *c_prev, const float *tanh_c, const float *gy, const float *dh, float *dc, float *dgates,
                                 Py_ssize_t n) noexcept nogil
    ctypedef void om_gru_fn(const float *rec, float *gates, float *hidden_n, const float *h_prev, float *h, Py_ssize_t n) noexcept nogil
    ctypedef void om_gru_bwd_fn(const float *gates, const float *hidden_n, const float *h_prev, const float *gy, const float *dh, float *direct, float *dx,
                                float *dhid, Py_ssize_t n) noexcept nogil

cdef Py_ssize_t LSTM_GATES = row_index("lstm", "lstm_gates")
cdef Py_ssize_t LSTM_GATES_BWD = row_index("lstm_bwd", "lstm_gates_bwd")
cdef Py_ssize_t GRU_GATES = row_index("gru", "gru_gates")
cdef Py_ssize_t GRU_GATES_BWD = row_index("gru_bwd", "gru_gates_bwd")
cdef Py_ssize_t ADD = row_index("map2", "add")

cdef enum:
    FEWEST_ROWS = 4             # of a piece: fewer would read the packed weights too often for what they compute
    MADDS_PER_ELEMENT = 16      # multiply-adds that take the time of one element of an element-wise kernel

cdef struct Job:
    const om_table *table
    const Recurrent *r
    const RecurrentGradients *g
    Panels w
    Py_ssize_t pieces
    const float *zeros          # [batch, hidden], where an initial state is not given
    float *rec                  # forward: [batch, gates hidden]
    float *dx                   # backward: gradients of both parts of the gates, [steps, batch, gates hidden]; the same for an LSTM
    float *dhid
    float *dh                   # [batch, hidden]: what the recurrent product sends back
    float *carry                # [batch, hidden]: dc of an LSTM, a GRU's direct part


cdef inline Py_ssize_t step_at(const Recurrent *r, Py_ssize_t turn) noexcept nogil:
    return r.steps - 1 - turn if r.reverse else turn


cdef inline const float *state_before(const Recurrent *r, Py_ssize_t turn, const float *states, const float *first, const float *zeros) noexcept nogil:
    """The hidden or cell states [batch, hidden] that enter the turn-th step."""
    if turn == 0:
        return first if first != NULL else zeros
    return states + step_at(r, turn - 1) * r.batch * r.hidden


cdef void forward_piece(void *context, Py_ssize_t piece) noexcept nogil:
    cdef Job *job = <Job *>context
    cdef const Recurrent *r = job.r
    cdef Py_ssize_t lo = begin(r.batch, job.pieces, piece), hi = begin(r.batch, job.pieces, piece + 1), n = r.hidden, width = r.cell * n
    cdef Py_ssize_t turn, b, at
    cdef const float *h
    cdef const float *c
    for turn in range(r.steps):
        h = state_before(r, turn, r.y, r.h0, job.zeros)
        multiply_panels(&job.w, hi - lo, h + lo * n, n, job.rec + lo * width, width, r.b_hh)
        if r.cell == LSTM:
            c = state_before(r, turn, r.c, r.c0, job.zeros)
        for b in range(lo, hi):
            at = step_at(r, turn) * r.batch + b
            if r.cell == LSTM:
                (<om_lstm_fn *>job.table.row[LSTM_GATES])(job.rec + b * width, r.gates + at * width, c + b * n, r.c + at * n, r.tanh_c + at * n,
                                                          r.y + at * n, n)
            else:
                (<om_gru_fn *>job.table.row[GRU_GATES])(job.rec + b * width, r.gates + at * width, r.c + at * n, h + b * n, r.y + at * n, n)


cdef void backward_piece(void *context, Py_ssize_t piece) noexcept nogil:
    cdef Job *job = <Job *>context
    cdef const Recurrent *r = job.r
    cdef Py_ssize_t lo = begin(r.batch, job.pieces, piece), hi = begin(r.batch, job.pieces, piece + 1), n = r.hidden, width = r.cell * n
    cdef Py_ssize_t turn, b, at
    cdef const float *before
    for turn in range(r.steps - 1, -1, -1):
        before = state_before(r, turn, r.c if r.cell == LSTM else r.y, r.c0 if r.cell == LSTM else r.h0, job.zeros)
        for b in range(lo, hi):
            at = step_at(r, turn) * r.batch + b
            if r.cell == LSTM:
                (<om_lstm_bwd_fn *>job.table.row[LSTM_GATES_BWD])(r.gates + at * width, before + b * n, r.tanh_c + at * n, job.g.gy + at * n,
                                                                  job.dh + b * n, job.carry + b * n, job.dx + at * width, n)
            else:
                (<om_gru_bwd_fn *>job.table.row[GRU_GATES_BWD])(r.gates + at * width, r.c + at * n, before + b * n, job.g.gy + at * n, job.dh + b * n,
                                                                job.carry + b * n, job.dx + at * width, job.dhid + at * width, n)
        if turn > 0 or job.g.dh0 != NULL:
            multiply_panels(&job.w, hi - lo, job.dhid + (step_at(r, turn) * r.batch + lo) * width, width, job.dh + lo * n, n, NULL)


cdef Py_ssize_t pieces_of(const Recurrent *r) noexcept nogil:
    """As many as threads can use: rows are apart, so the cut changes no bit."""
    cdef double work = <double>r.steps * r.batch * r.cell * r.hidden * r.hidden / MADDS_PER_ELEMENT
    return <Py_ssize_t>max(1.0, min(min(<double>thread_count(), work / smallest_piece()), <double>(r.batch // FEWEST_ROWS)))


cdef int recurrent(int mode, const Recurrent *r) noexcept nogil:
    cdef Job job
    cdef Py_ssize_t n = r.hidden, width = r.cell * n
    cdef float *room
    if r.batch == 0:
        return 0
    if gemm(mode, r.steps * r.batch, width, r.inputs, r.x, r.inputs, 1, r.w_ih, 1, r.inputs, r.gates, width, r.b_ih):
        return -1
    job.table, job.r, job.pieces = table_of(mode), r, pieces_of(r)
    room = <float *>take(r.batch * (width + n) * sizeof(float))
    if room == NULL:
        return -1
    if pack_panels(mode, (r.batch + job.pieces - 1) // job.pieces, width, n, r.w_hh, 1, n, &job.w):
        give(room)
        return -1
    memset(room, 0, r.batch * n * sizeof(float))
    job.zeros, job.rec = room, room + r.batch * n
    run(forward_piece, &job, job.pieces)
    give(job.w.data)
    give(room)
    return 0


cdef int weight_products(int mode, const Recurrent *r, const RecurrentGradients *g, const float *dx, const float *dhid, float *states,
                         const float *zeros) noexcept nogil:
    """Single products and sums over all steps; states: room for the hidden state that entered each step."""
    cdef Py_ssize_t n = r.hidden, width = r.cell * n, rows = r.steps * r.batch, turn
    cdef Py_ssize_t[2] shape
    cdef Py_ssize_t[2] strides
    shape[0], shape[1], strides[0], strides[1] = rows, width, width, 1
    if g.dx != NULL and gemm(mode, rows, r.inputs, width, dx, width, 1, r.w_ih, r.inputs, 1, g.dx, r.inputs, NULL):
        return -1
    if g.dw_ih != NULL and gemm(mode, width, r.inputs, rows, dx, 1, width, r.x, r.inputs, 1, g.dw_ih, r.inputs, NULL):
        return -1
    if g.dw_hh != NULL:
        for turn in range(r.steps):
            memcpy(states + step_at(r, turn) * r.batch * n, state_before(r, turn, r.y, r.h0, zeros), r.batch * n * sizeof(float))
        if gemm(mode, width, n, rows, dhid, 1, width, states, n, 1, g.dw_hh, n, NULL):
            return -1
    if g.db_ih != NULL and reduce(mode, SUM, 2, shape, strides, dx, 1, g.db_ih):
        return -1
    if g.db_hh != NULL and reduce(mode, SUM, 2, shape, strides, dhid, 1, g.db_hh):
        return -1
    return 0


cdef int recurrent_bwd(int mode, const Recurrent *r, const RecurrentGradients *g) noexcept nogil:
    cdef Job job
    cdef Py_ssize_t n = r.hidden, width = r.cell * n, rows = r.steps * r.batch, state = r.batch * n
    cdef float *room = <float *>take(max((rows * (width * (1 if r.cell == LSTM else 2) + n) + 3 * state) * sizeof(float), 1))
    cdef int status = 0
    if room == NULL:
        return -1
    job.table, job.r, job.g, job.pieces = table_of(mode), r, g, pieces_of(r)
    job.dx = room
    job.dhid = room if r.cell == LSTM else room + rows * width
    job.dh = job.dhid + rows * width
    job.carry = job.dh + state
    job.zeros = job.carry + state
    memset(job.dh, 0, 3 * state * sizeof(float))
    if g.gc != NULL:
        memcpy(job.carry, g.gc, state * sizeof(float))
    if pack_panels(mode, (r.batch + job.pieces - 1) // job.pieces, n, width, r.w_hh, n, 1, &job.w):
        give(room)
        return -1
    run(backward_piece, &job, job.pieces)
    give(job.w.data)
    if g.dh0 != NULL:
        if r.cell == LSTM:
            memcpy(g.dh0, job.dh, state * sizeof(float))
        else:
            (<om_map2_fn *>job.table.row[ADD])(job.dh, job.carry, g.dh0, state)
    if g.dc0 != NULL:
        memcpy(g.dc0, job.carry, state * sizeof(float))
    status = weight_products(mode, r, g, job.dx, job.dhid, <float *>job.zeros + state, job.zeros)
    give(room)
    return status
