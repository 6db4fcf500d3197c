"""Owns optimiser steps over lists of parameters: the cut into pieces; the loops are in optim.h, options and state in onemodel/optim."""
from onemodel._kernels.copy cimport array_layout
from onemodel._kernels.pieces cimport begin, cut, run
from onemodel._kernels.table cimport row_index, table_of
from onemodel._pool.pool cimport give, take

cdef extern from "kernels.h" nogil:
    ctypedef void om_update_fn(const void *hyper, float *p, const float *g, float *a, float *b, float *c, Py_ssize_t n) noexcept nogil
    ctypedef void om_squares_fn(const float *x, Py_ssize_t n, double *out) noexcept nogil
    enum:
        OM_SQUARES_WINDOW

cdef Py_ssize_t[3] ROWS
ROWS[:] = [row_index("update", "sgd"), row_index("update", "adam"), row_index("update", "rmsprop")]
cdef Py_ssize_t SQUARES = row_index("squares", "squares")

cdef struct Job:
    om_update_fn *kernel
    const void *hyper
    Py_ssize_t count, total, pieces
    float **p
    const float **g
    float ***states
    const Py_ssize_t *n


# Pieces are ranges of all elements, one parameter after the other, so a list of small ones is one job.
cdef void step_piece(void *context, Py_ssize_t piece) noexcept nogil:
    cdef Job *job = <Job *> context
    cdef Py_ssize_t lo = begin(job.total, job.pieces, piece), hi = begin(job.total, job.pieces, piece + 1), base = 0, first, last, i
    cdef float *state[STATES]
    cdef int k
    for i in range(job.count):
        first, last = lo - base if lo > base else 0, hi - base if hi - base < job.n[i] else job.n[i]
        if first < last:
            for k in range(STATES):
                state[k] = NULL if job.states[k] == NULL else job.states[k][i] + first
            job.kernel(job.hyper, job.p[i] + first, job.g[i] + first, state[0], state[1], state[2], last - first)
        base += job.n[i]


cdef void step(int mode, int rule, const void *hyper, Py_ssize_t count, float **p, const float **g, float ***states, const Py_ssize_t *n) noexcept nogil:
    cdef Job job
    cdef Py_ssize_t i
    job.kernel, job.hyper, job.count, job.p, job.g, job.states, job.n = <om_update_fn *> table_of(mode).row[ROWS[rule]], hyper, count, p, g, states, n
    job.total = 0
    for i in range(count):
        job.total += n[i]
    if job.total:
        job.pieces = cut(job.total, job.total)
        run(step_piece, &job, job.pieces)


cdef struct SquaresJob:
    om_squares_fn *kernel
    Py_ssize_t count, windows, pieces
    const float **x
    const Py_ssize_t *n
    double *found


# Windows are of one size and begin anew with each array, whatever the pieces: so threads change no bit.
cdef void squares_piece(void *context, Py_ssize_t piece) noexcept nogil:
    cdef SquaresJob *job = <SquaresJob *> context
    cdef Py_ssize_t lo = begin(job.windows, job.pieces, piece), hi = begin(job.windows, job.pieces, piece + 1), window = 0, i, at
    for i in range(job.count):
        at = 0
        while at < job.n[i]:
            if window >= hi:
                return
            if window >= lo:
                job.kernel(job.x[i] + at, job.n[i] - at if job.n[i] - at < OM_SQUARES_WINDOW else OM_SQUARES_WINDOW, &job.found[window])
            at += OM_SQUARES_WINDOW
            window += 1


cdef double sum_squares(int mode, Py_ssize_t count, const float **x, const Py_ssize_t *n) noexcept nogil:
    cdef SquaresJob job
    cdef Py_ssize_t i, total = 0
    cdef double result = 0.0
    job.kernel, job.count, job.x, job.n, job.windows = <om_squares_fn *> table_of(mode).row[SQUARES], count, x, n, 0
    for i in range(count):
        total += n[i]
        job.windows += (n[i] + OM_SQUARES_WINDOW - 1) // OM_SQUARES_WINDOW
    if total == 0:
        return 0.0
    job.found = <double *> take(job.windows * sizeof(double))
    if job.found == NULL:
        return -1.0
    job.pieces = cut(total, job.windows)
    run(squares_piece, &job, job.pieces)
    for i in range(job.windows):
        result += job.found[i]
    give(job.found)
    return result


def _array_sgd(int mode, list p, list g, list momentum, double lr, double mu=0.0, double dampening=0.0, bint nesterov=False, double weight_decay=0.0,
               bint maximize=False, bint first=False):
    """One step over lists of contiguous arrays; momentum may hold None throughout."""
    cdef Py_ssize_t shape[64]
    cdef Py_ssize_t strides[64]
    cdef float *pp[16]
    cdef const float *pg[16]
    cdef float *pm[16]
    cdef float **states[STATES]
    cdef Py_ssize_t n[16]
    cdef om_sgd hyper
    cdef void *data
    cdef Py_ssize_t i, count = len(p)
    if count > 16:
        raise ValueError(f"expected at most 16 arrays, got {count}")
    hyper.lr, hyper.momentum, hyper.undamped, hyper.weight_decay = <float> lr, <float> mu, <float> (1.0 - dampening), <float> weight_decay
    hyper.nesterov, hyper.maximize, hyper.first = nesterov, maximize, first
    states[0], states[1], states[2] = NULL, NULL, NULL
    for i in range(count):
        array_layout(p[i], "f4", shape, strides, &data)
        pp[i], n[i] = <float *> data, p[i].size
        array_layout(g[i], "f4", shape, strides, &data)
        pg[i] = <const float *> data
        if momentum[i] is not None:
            array_layout(momentum[i], "f4", shape, strides, &data)
            pm[i] = <float *> data
            states[0] = pm
    with nogil:
        step(mode, SGD, &hyper, count, pp, pg, states, n)
