"""Owns the CTC loss of a batch: scratch, where each sequence's variables lie, threads over sequences; the recursions are in ctc.h."""
from libc.math cimport INFINITY
from libc.string cimport memset

from onemodel._kernels.pieces cimport run
from onemodel._kernels.table cimport om_table, row_index, table_of
from onemodel._pool.pool cimport give, take

cdef extern from "kernels.h" nogil:
    enum:
        OM_CTC_GAP
        OM_CTC_LANES
    ctypedef struct om_ctc:
        Py_ssize_t frames
        Py_ssize_t labels
        Py_ssize_t width
        const float *log_p
        Py_ssize_t log_p_step
        Py_ssize_t classes
        const int64_t *label
        int64_t blank
        double *skip
        double *emit
    ctypedef double om_ctc_alpha_fn(const om_ctc *t, double *alpha) noexcept nogil
    ctypedef void om_ctc_bwd_fn(const om_ctc *t, const double *alpha, double loss, double scale, const int64_t *first, double *beta, float *dx,
                                Py_ssize_t dx_step) noexcept nogil

cdef Py_ssize_t ALPHA = row_index("ctc_alpha", "ctc_alpha")
cdef Py_ssize_t BWD = row_index("ctc_bwd", "ctc_bwd")

cdef struct Job:
    const om_table *table
    const CtcBatch *c
    double *alpha
    double *loss
    const double *scale
    float *dx
    bint failed


cdef inline Py_ssize_t width_of(Py_ssize_t labels) noexcept nogil:
    return (labels + OM_CTC_LANES) // OM_CTC_LANES * OM_CTC_LANES


cdef inline Py_ssize_t row_of(Py_ssize_t labels) noexcept nogil:
    return 2 * width_of(labels) + OM_CTC_GAP


cdef Py_ssize_t alpha_before(const CtcBatch *c, Py_ssize_t item) noexcept nogil:
    """Doubles in front of an item's forward variables."""
    cdef Py_ssize_t b, total = 0
    for b in range(item):
        total += c.input_length[b] * row_of(c.target_length[b])
    return total


cdef Py_ssize_t ctc_doubles(const CtcBatch *c) noexcept nogil:
    return alpha_before(c, c.items)


cdef void sequence(const CtcBatch *c, Py_ssize_t b, double *room, om_ctc *t) noexcept nogil:
    """Item b; room holds 2 width + 1 doubles."""
    t.frames, t.labels, t.width = c.input_length[b], c.target_length[b], width_of(c.target_length[b])
    t.log_p, t.log_p_step, t.classes = c.log_p + b * c.b_step, c.t_step, c.classes
    t.label, t.blank = c.target + c.start[b], c.blank
    t.skip, t.emit = room, room + t.width + 1


cdef void alpha_piece(void *context, Py_ssize_t b) noexcept nogil:
    cdef Job *job = <Job *>context
    cdef om_ctc t
    cdef double *room = <double *>take((2 * width_of(job.c.target_length[b]) + 1) * sizeof(double))
    if room == NULL:
        job.failed = True
        return
    sequence(job.c, b, room, &t)
    job.loss[b] = (<om_ctc_alpha_fn *>job.table.row[ALPHA])(&t, job.alpha + alpha_before(job.c, b))
    give(room)


cdef int ctc_alpha(int mode, const CtcBatch *c, double *alpha, double *loss) noexcept nogil:
    cdef Job job
    job.table, job.c, job.alpha, job.loss, job.failed = table_of(mode), c, alpha, loss, False
    run(alpha_piece, &job, c.items)
    return -1 if job.failed else 0


cdef void bwd_piece(void *context, Py_ssize_t b) noexcept nogil:
    cdef Job *job = <Job *>context
    cdef const CtcBatch *c = job.c
    cdef om_ctc t
    cdef Py_ssize_t labels = c.target_length[b], row = row_of(labels), i, frame, used = c.input_length[b], dx_step = c.items * c.classes
    cdef float *dx = job.dx + b * c.classes
    cdef int64_t *first
    cdef int64_t *place
    cdef double *room
    cdef bint possible = job.loss[b] != INFINITY
    for frame in range(c.frames):
        memset(dx + frame * dx_step, 0, c.classes * sizeof(float))
    if not possible or used == 0:
        return
    room = <double *>take((2 * width_of(labels) + 1 + 3 * row) * sizeof(double) + (labels + c.classes) * sizeof(int64_t))
    if room == NULL:
        job.failed = True
        return
    first = <int64_t *>(room + 2 * width_of(labels) + 1 + 3 * row)
    place = first + labels
    sequence(c, b, room, &t)
    for i in range(labels):
        place[t.label[i]] = labels
    for i in range(labels):
        place[t.label[i]] = min(place[t.label[i]], i)
        first[i] = place[t.label[i]]
    (<om_ctc_bwd_fn *>job.table.row[BWD])(&t, job.alpha + alpha_before(c, b), job.loss[b], job.scale[b], first, room + 2 * t.width + 1, dx, dx_step)
    give(room)


cdef int ctc_bwd(int mode, const CtcBatch *c, const double *alpha, const double *loss, const double *scale, float *dx) noexcept nogil:
    cdef Job job
    job.table, job.c, job.alpha, job.loss, job.scale = table_of(mode), c, <double *>alpha, <double *>loss, scale
    job.dx, job.failed = dx, False
    run(bwd_piece, &job, c.items)
    return -1 if job.failed else 0
