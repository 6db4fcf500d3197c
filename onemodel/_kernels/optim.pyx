"""Owns optimiser steps over lists of parameters: the cut into pieces; the loops are in optim.h, options and state in onemodel/optim.py."""
from onemodel._kernels.copy cimport array_layout
from onemodel._kernels.pieces cimport begin, cut, run
from onemodel._kernels.table cimport om_sgd, om_sgd_fn, row_index, table_of

cdef Py_ssize_t SGD = row_index("sgd", "sgd")

cdef struct Job:
    om_sgd_fn *kernel
    const om_sgd *hyper
    Py_ssize_t count, total, pieces
    float **p
    const float **g
    float **momentum
    const Py_ssize_t *n


# Pieces are ranges of all elements, one parameter after the other, so a list of small ones is one job.
cdef void sgd_piece(void *context, Py_ssize_t piece) noexcept nogil:
    cdef Job *job = <Job *> context
    cdef Py_ssize_t lo = begin(job.total, job.pieces, piece), hi = begin(job.total, job.pieces, piece + 1), base = 0, first, last, i
    for i in range(job.count):
        first, last = lo - base if lo > base else 0, hi - base if hi - base < job.n[i] else job.n[i]
        if first < last:
            job.kernel(job.hyper, job.p[i] + first, job.g[i] + first, NULL if job.momentum[i] == NULL else job.momentum[i] + first, last - first)
        base += job.n[i]


cdef void sgd(int mode, const om_sgd *hyper, Py_ssize_t count, float **p, const float **g, float **momentum, const Py_ssize_t *n) noexcept nogil:
    cdef Job job
    cdef Py_ssize_t i
    job.kernel, job.hyper, job.count, job.p, job.g, job.momentum, job.n = <om_sgd_fn *> table_of(mode).row[SGD], hyper, count, p, g, momentum, n
    job.total = 0
    for i in range(count):
        job.total += n[i]
    if job.total:
        job.pieces = cut(job.total, job.total)
        run(sgd_piece, &job, job.pieces)


def _array_sgd(int mode, list p, list g, list momentum, double lr, double mu=0.0, double dampening=0.0, bint nesterov=False, double weight_decay=0.0,
               bint maximize=False, bint first=False):
    """One step over lists of contiguous arrays; momentum may hold None."""
    cdef Py_ssize_t shape[64]
    cdef Py_ssize_t strides[64]
    cdef float *pp[16]
    cdef const float *pg[16]
    cdef float *pm[16]
    cdef Py_ssize_t n[16]
    cdef om_sgd hyper
    cdef void *data
    cdef Py_ssize_t i, count = len(p)
    if count > 16:
        raise ValueError(f"expected at most 16 arrays, got {count}")
    hyper.lr, hyper.momentum, hyper.undamped, hyper.weight_decay = <float> lr, <float> mu, <float> (1.0 - dampening), <float> weight_decay
    hyper.nesterov, hyper.maximize, hyper.first = nesterov, maximize, first
    for i in range(count):
        array_layout(p[i], "f4", shape, strides, &data)
        pp[i], n[i] = <float *> data, p[i].size
        array_layout(g[i], "f4", shape, strides, &data)
        pg[i] = <const float *> data
        pm[i] = NULL
        if momentum[i] is not None:
            array_layout(momentum[i], "f4", shape, strides, &data)
            pm[i] = <float *> data
    with nogil:
        sgd(mode, &hyper, count, pp, pg, pm, n)
