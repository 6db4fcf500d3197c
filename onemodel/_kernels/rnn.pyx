"""Owns a recurrent layer over its steps: the products around the gate kernels of rnn.h, scratch, threads.

The input's part of all steps is one product; the recurrent weights are packed once; rows of the batch do not see each other, so threads take some
rows each over all steps, or, of few rows, some hidden units each, and meet after every step. Weight gradients are single products over all steps, in increasing step, then row.
"""
from libc.string cimport memcpy, memset

from onemodel._kernels.gemm cimport gemm
from onemodel._kernels.panels cimport Panels, multiply_panels, pack_into, panels_size
from onemodel._kernels.pieces cimport begin
from onemodel._kernels.reduce cimport SUM, reduce
from onemodel._kernels.table cimport OM_MOST_STEPPERS, OM_MOST_PARTS, om_map2_fn, om_table, parallel_steps, row_index, smallest_piece, table_of, thread_count
from onemodel._pool.pool cimport give, take

cdef extern from "kernels.h" nogil:
    ctypedef void om_lstm_fn(const float *rec, float *gates, const float *c_prev, float *c, float *tanh_c, float *h, Py_ssize_t n, Py_ssize_t count) noexcept nogil
    ctypedef void om_lstm_bwd_fn(const float *gates, const float *c_prev, const float *tanh_c, const float *gy, const float *dh, float *dc, float *dgates,
                                 Py_ssize_t n, Py_ssize_t count) noexcept nogil
    ctypedef void om_gru_fn(const float *rec, float *gates, float *hidden_n, const float *h_prev, float *h, Py_ssize_t n, Py_ssize_t count) noexcept nogil
    ctypedef void om_gru_bwd_fn(const float *gates, const float *hidden_n, const float *h_prev, const float *gy, const float *dh, float *direct, float *dx,
                                float *dhid, Py_ssize_t n, Py_ssize_t count) noexcept nogil

cdef Py_ssize_t LSTM_GATES = row_index("lstm", "lstm_gates")
cdef Py_ssize_t LSTM_GATES_BWD = row_index("lstm_bwd", "lstm_gates_bwd")
cdef Py_ssize_t GRU_GATES = row_index("gru", "gru_gates")
cdef Py_ssize_t GRU_GATES_BWD = row_index("gru_bwd", "gru_gates_bwd")
cdef Py_ssize_t ADD = row_index("map2", "add")

cdef enum:
    FEWEST_ROWS = 4             # of a group
    MANY_ROWS = 8               # of a group where units could be cut instead
    STEPS_PER_PIECE = 4         # a part of a step may have a quarter of the work of a piece: threads do not sleep between steps
    LINE = 16                   # floats in a line of cache
    PAGE = 1024                 # and in a page
    MADDS_PER_ELEMENT = 16      # multiply-adds that take the time of one element of an element-wise kernel

cdef struct Job:
    const om_table *table
    const Recurrent *r
    const RecurrentGradients *g
    Py_ssize_t groups           # of rows, which do not see each other
    Py_ssize_t parts            # of hidden units, which wait for each other after every step
    Py_ssize_t blocks           # that a part's columns of the forward product lie in: one for each gate, or one where a part has all units
    Panels[4 * OM_MOST_PARTS] w
    const float *zeros          # [batch, hidden], where an initial state is not given
    float *rec                  # forward: [batch, gates hidden]
    Py_ssize_t ld               # backward: from one row of the gates' gradients to the next
    float *dx                   # gradients of both parts of the gates, [steps, batch, gates hidden]; the same for an LSTM
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


cdef extern from *:
    """
    /* What another core wrote: all lines are asked for at once, where a product would wait for one after the other. */
    static void fetch_lines(const float *p, ptrdiff_t n) {
        for (ptrdiff_t i = 0; i < n; i += 16) __builtin_prefetch(p + i);
    }
    """
    void fetch_lines(const float *p, Py_ssize_t n) nogil


cdef inline Py_ssize_t first_unit(const Job *job, Py_ssize_t part) noexcept nogil:
    """Parts are of whole panels."""
    cdef Py_ssize_t nr = job.table.gemm.nr
    return min(begin((job.r.hidden + nr - 1) // nr, job.parts, part) * nr, job.r.hidden)


cdef void forward_step(void *context, Py_ssize_t group, Py_ssize_t turn, Py_ssize_t part) noexcept nogil:
    cdef Job *job = <Job *>context
    cdef const Recurrent *r = job.r
    cdef Py_ssize_t lo = begin(r.batch, job.groups, group), hi = begin(r.batch, job.groups, group + 1), n = r.hidden, width = r.cell * n
    cdef Py_ssize_t j = first_unit(job, part), units = first_unit(job, part + 1) - j, block, b, at, here, wide
    cdef const float *h = state_before(r, turn, r.y, r.h0, job.zeros)
    cdef const float *c = NULL
    if job.parts > 1:
        for b in range(lo, hi):
            fetch_lines(h + b * n, n)
    for block in range(job.blocks):
        at = block * n + j
        multiply_panels(&job.w[part * job.blocks + block], hi - lo, h + lo * n, n, job.rec + lo * width + at, width,
                        r.b_hh + at if r.b_hh != NULL else NULL)
    if r.cell == LSTM:
        c = state_before(r, turn, r.c, r.c0, job.zeros)
    for b in range(lo, hi):
        at = step_at(r, turn) * r.batch + b
        here, wide = at * n + j, at * width + j
        if r.cell == LSTM:
            (<om_lstm_fn *>job.table.row[LSTM_GATES])(job.rec + b * width + j, r.gates + wide, c + b * n + j, r.c + here, r.tanh_c + here, r.y + here,
                                                      n, units)
        else:
            (<om_gru_fn *>job.table.row[GRU_GATES])(job.rec + b * width + j, r.gates + wide, r.c + here, h + b * n + j, r.y + here, n, units)


cdef void backward_step(void *context, Py_ssize_t group, Py_ssize_t step, Py_ssize_t part) noexcept nogil:
    """What the gates of the turn before sent back to this part's units, which takes their gradients of all units; then this turn's gates."""
    cdef Job *job = <Job *>context
    cdef const Recurrent *r = job.r
    cdef Py_ssize_t lo = begin(r.batch, job.groups, group), hi = begin(r.batch, job.groups, group + 1), n = r.hidden, width = r.cell * n
    cdef Py_ssize_t j = first_unit(job, part), units = first_unit(job, part + 1) - j, turn = r.steps - 1 - step, b, at, here, wide, far, row
    cdef const float *before
    if step > 0:
        if job.parts > 1:
            for b in range(lo, hi):
                fetch_lines(job.dhid + (step_at(r, turn + 1) * r.batch + b) * job.ld, width)
        multiply_panels(&job.w[part], hi - lo, job.dhid + (step_at(r, turn + 1) * r.batch + lo) * job.ld, job.ld, job.dh + lo * n + j, n, NULL)
    if turn < 0:
        return
    before = state_before(r, turn, r.c if r.cell == LSTM else r.y, r.c0 if r.cell == LSTM else r.h0, job.zeros)
    for b in range(lo, hi):
        at = step_at(r, turn) * r.batch + b
        here, wide, far, row = at * n + j, at * width + j, at * job.ld + j, b * n + j
        if r.cell == LSTM:
            (<om_lstm_bwd_fn *>job.table.row[LSTM_GATES_BWD])(r.gates + wide, before + row, r.tanh_c + here, job.g.gy + here, job.dh + row,
                                                              job.carry + row, job.dx + far, n, units)
        else:
            (<om_gru_bwd_fn *>job.table.row[GRU_GATES_BWD])(r.gates + wide, r.c + here, before + row, job.g.gy + here, job.dh + row, job.carry + row,
                                                            job.dx + far, job.dhid + far, n, units)


cdef void cut(Job *job) noexcept nogil:
    """For as many threads as there are: no cut changes a bit. Rows are cut, as threads then meet only at the end; but few rows read the packed
    weights too often for what they compute, so units are cut then, where a step is long enough to wait for it."""
    cdef const Recurrent *r = job.r
    cdef double step = <double>r.batch * r.cell * r.hidden * r.hidden / MADDS_PER_ELEMENT
    cdef Py_ssize_t threads = min(thread_count(), OM_MOST_STEPPERS)
    job.groups = max(min(threads, r.batch // MANY_ROWS), 1)
    job.parts = <Py_ssize_t>min(min(threads // job.groups, OM_MOST_PARTS), min(<double>(r.hidden // job.table.gemm.nr),
                                                                              step * STEPS_PER_PIECE / job.groups / smallest_piece()))
    if job.parts < 2:
        job.parts = 1
        job.groups = <Py_ssize_t>max(1.0, min(min(<double>threads, step * r.steps / smallest_piece()), <double>(r.batch // FEWEST_ROWS)))


cdef int pack_weights(Job *job, int mode, bint forward) noexcept nogil:
    """Each part's columns of the recurrent weights, for the rows of a group; job.w[0].data is to be given back."""
    cdef const Recurrent *r = job.r
    cdef Py_ssize_t n = r.hidden, width = r.cell * n, rows = (r.batch + job.groups - 1) // job.groups, part, block, j, units, size = 0
    cdef float *room = NULL
    job.blocks = r.cell if forward and job.parts > 1 else 1
    for part in range(job.parts):
        j = first_unit(job, part)
        units = first_unit(job, part + 1) - j
        size += panels_size(mode, units, width) if not forward else panels_size(mode, width if job.blocks == 1 else units, n) * job.blocks
    room = <float *>take(size * sizeof(float))
    if room == NULL:
        return -1
    for part in range(job.parts):
        j = first_unit(job, part)
        units = first_unit(job, part + 1) - j
        for block in range(job.blocks):
            if forward:
                size = width if job.blocks == 1 else units
                pack_into(mode, rows, size, n, r.w_hh + (block * n + j) * n, 1, n, room, &job.w[part * job.blocks + block])
                room += panels_size(mode, size, n)
            else:
                pack_into(mode, rows, units, width, r.w_hh + j, n, 1, room, &job.w[part])
                room += panels_size(mode, units, width)
    return 0


cdef int recurrent(int mode, const Recurrent *r) noexcept nogil:
    cdef Job job
    cdef Py_ssize_t n = r.hidden, width = r.cell * n
    cdef float *room
    if r.batch == 0:
        return 0
    if gemm(mode, r.steps * r.batch, width, r.inputs, r.x, r.inputs, 1, r.w_ih, 1, r.inputs, r.gates, width, r.b_ih):
        return -1
    job.table, job.r = table_of(mode), r
    cut(&job)
    room = <float *>take(r.batch * (width + n) * sizeof(float))
    if room == NULL:
        return -1
    if pack_weights(&job, mode, True):
        give(room)
        return -1
    memset(room, 0, r.batch * n * sizeof(float))
    job.zeros, job.rec = room, room + r.batch * n
    parallel_steps(forward_step, &job, job.groups, r.steps, job.parts)
    give(job.w[0].data)
    give(room)
    return 0


cdef int bias_sum(const Job *job, int mode, const float *gradients, float *out) noexcept nogil:
    cdef Py_ssize_t[2] shape
    cdef Py_ssize_t[2] strides
    shape[0], shape[1], strides[0], strides[1] = job.r.steps * job.r.batch, job.r.cell * job.r.hidden, job.ld, 1
    return reduce(mode, SUM, 2, shape, strides, gradients, 1, out)


cdef int weight_products(const Job *job, int mode, float *states) noexcept nogil:
    """Single products and sums over all steps; states: room for the hidden state that entered each step."""
    cdef const Recurrent *r = job.r
    cdef const RecurrentGradients *g = job.g
    cdef Py_ssize_t n = r.hidden, width = r.cell * n, rows = r.steps * r.batch, turn
    if g.dx != NULL and gemm(mode, rows, r.inputs, width, job.dx, job.ld, 1, r.w_ih, r.inputs, 1, g.dx, r.inputs, NULL):
        return -1
    if g.dw_ih != NULL and gemm(mode, width, r.inputs, rows, job.dx, 1, job.ld, r.x, r.inputs, 1, g.dw_ih, r.inputs, NULL):
        return -1
    if g.dw_hh != NULL:
        for turn in range(r.steps):
            memcpy(states + step_at(r, turn) * r.batch * n, state_before(r, turn, r.y, r.h0, job.zeros), r.batch * n * sizeof(float))
        if gemm(mode, width, n, rows, job.dhid, 1, job.ld, states, n, 1, g.dw_hh, n, NULL):
            return -1
    if g.db_ih != NULL and bias_sum(job, mode, job.dx, g.db_ih):
        return -1
    if g.db_hh != NULL and g.db_ih != NULL and job.dx == job.dhid:
        memcpy(g.db_hh, g.db_ih, width * sizeof(float))
    elif g.db_hh != NULL and bias_sum(job, mode, job.dhid, g.db_hh):
        return -1
    return 0


cdef int recurrent_bwd(int mode, const Recurrent *r, const RecurrentGradients *g) noexcept nogil:
    cdef Job job
    cdef Py_ssize_t n = r.hidden, width = r.cell * n, rows = r.steps * r.batch, state = r.batch * n
    cdef Py_ssize_t ld = width + LINE if width % PAGE == 0 else width  # rows a multiple of a page apart share one set of L1
    cdef float *room = <float *>take(max(rows * (ld * (1 if r.cell == LSTM else 2) + n) + 3 * state, 1) * sizeof(float))
    cdef int status = 0
    if room == NULL:
        return -1
    job.table, job.r, job.g, job.ld = table_of(mode), r, g, ld
    cut(&job)
    job.dx = room
    job.dhid = room if r.cell == LSTM else room + rows * ld
    job.dh = job.dhid + rows * ld
    job.carry = job.dh + state
    job.zeros = job.carry + state
    memset(job.dh, 0, 3 * state * sizeof(float))
    if g.gc != NULL:
        memcpy(job.carry, g.gc, state * sizeof(float))
    if pack_weights(&job, mode, False):
        give(room)
        return -1
    parallel_steps(backward_step, &job, job.groups, r.steps + (g.dh0 != NULL), job.parts)
    give(job.w[0].data)
    if g.dh0 != NULL:
        if r.cell == LSTM:
            memcpy(g.dh0, job.dh, state * sizeof(float))
        else:
            (<om_map2_fn *>job.table.row[ADD])(job.dh, job.carry, g.dh0, state)
    if g.dc0 != NULL:
        memcpy(g.dc0, job.carry, state * sizeof(float))
    status = weight_products(&job, mode, <float *>job.zeros + state)
    give(room)
    return status
