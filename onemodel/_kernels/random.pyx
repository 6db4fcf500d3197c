"""Owns the fill of memory from a random stream: buffers, limits and the cut into pieces; the generator's loops are in philox.h, its state in
onemodel/random.py."""
from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint64_t

from onemodel._kernels.pieces cimport begin, cut, run
from onemodel._kernels.table cimport EXACT, om_fn, om_philox_fn, om_philox_integers_fn, row_index, table_of

cdef extern from "kernels.h" nogil:
    ctypedef void om_dropout_fn(uint64_t seed, uint64_t offset, uint64_t drop, float scale, const float *x, float *y, Py_ssize_t n) noexcept nogil

cdef Py_ssize_t DROPOUT = row_index("dropout", "dropout")
cdef Py_ssize_t WORDS = row_index("philox", "philox_words")
cdef Py_ssize_t UNIFORM = row_index("philox", "philox_uniform")
cdef Py_ssize_t NORMAL = row_index("philox", "philox_normal")
cdef Py_ssize_t INTEGERS = row_index("philox_integers", "philox_integers")
cdef Py_ssize_t PERMUTATION = row_index("philox_integers", "philox_permutation")

cdef struct Job:
    om_fn kernel
    uint64_t seed, offset, span
    int64_t low
    bint integers
    char *out
    Py_ssize_t n, pieces


cdef void piece(void *context, Py_ssize_t p) noexcept nogil:
    cdef Job *job = <Job *> context
    cdef Py_ssize_t lo = begin(job.n, job.pieces, p), n = begin(job.n, job.pieces, p + 1) - lo
    if job.integers:
        (<om_philox_integers_fn *> job.kernel)(job.seed, job.offset + 2 * <uint64_t> lo, job.low, job.span, <int64_t *> job.out + lo, n)
    else:
        (<om_philox_fn *> job.kernel)(job.seed, job.offset + <uint64_t> lo, job.out + 4 * lo, n)


cdef void start(Py_ssize_t row, uint64_t seed, uint64_t offset, int64_t low, uint64_t span, bint integers, void *out, Py_ssize_t n) noexcept nogil:
    cdef Job job
    if n == 0:
        return
    job.kernel, job.seed, job.offset, job.low, job.span, job.integers = table_of(EXACT).row[row], seed, offset, low, span, integers
    job.out, job.n, job.pieces = <char *> out, n, cut(n, n) if row != PERMUTATION else 1
    run(piece, &job, job.pieces)


cdef void philox_uniform(uint64_t seed, uint64_t offset, float *out, Py_ssize_t n) noexcept nogil:
    start(UNIFORM, seed, offset, 0, 0, False, out, n)


cdef void philox_normal(uint64_t seed, uint64_t offset, float *out, Py_ssize_t n) noexcept nogil:
    start(NORMAL, seed, offset, 0, 0, False, out, n)


cdef void philox_integers(uint64_t seed, uint64_t offset, int64_t low, int64_t high, int64_t *out, Py_ssize_t n) noexcept nogil:
    start(INTEGERS, seed, offset, low, <uint64_t> high - <uint64_t> low, True, out, n)


cdef void philox_permutation(uint64_t seed, uint64_t offset, int64_t *out, Py_ssize_t n) noexcept nogil:
    start(PERMUTATION, seed, offset, 0, 0, True, out, n)


cdef struct DropoutJob:
    om_dropout_fn *kernel
    uint64_t seed, offset, drop
    float scale
    const float *x
    float *y
    Py_ssize_t n, pieces


cdef void dropout_piece(void *context, Py_ssize_t p) noexcept nogil:
    cdef DropoutJob *job = <DropoutJob *> context
    cdef Py_ssize_t lo = begin(job.n, job.pieces, p), n = begin(job.n, job.pieces, p + 1) - lo
    job.kernel(job.seed, job.offset + <uint64_t> lo, job.drop, job.scale, job.x + lo, job.y + lo, n)


cdef void dropout(uint64_t seed, uint64_t offset, uint64_t drop, float scale, const float *x, float *y, Py_ssize_t n) noexcept nogil:
    cdef DropoutJob job
    if n == 0:
        return
    job.kernel, job.seed, job.offset, job.drop, job.scale = <om_dropout_fn *> table_of(EXACT).row[DROPOUT], seed, offset, drop, scale
    job.x, job.y, job.n, job.pieces = x, y, n, cut(n, n)
    run(dropout_piece, &job, job.pieces)


cdef int fill(str name, Py_ssize_t row, uint64_t seed, uint64_t offset, int64_t low, uint64_t span, object out, str formats, int itemsize) except -1:
    cdef Py_buffer view
    cdef Py_ssize_t n
    PyObject_GetBuffer(out, &view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE | PyBUF_FORMAT)
    try:
        format = view.format.decode().lstrip("<=@")
        if format not in formats or view.itemsize != itemsize:
            raise TypeError(f"{name}: expected a buffer of {itemsize}-byte elements of format {' or '.join(formats)}, got {format!r} of {view.itemsize} bytes")
        n = view.len // itemsize
        with nogil:
            start(row, seed, offset, low, span, itemsize == 8, view.buf, n)
    finally:
        PyBuffer_Release(&view)
    return 0


def words(uint64_t seed, uint64_t offset, out):
    """Fill a uint32 buffer with the words of the stream from `offset` on."""
    fill("words", WORDS, seed, offset, 0, 0, out, "IL", 4)


def uniform(uint64_t seed, uint64_t offset, out):
    """Fill a float32 buffer with uniform numbers in [0, 1); uses one word per number."""
    fill("uniform", UNIFORM, seed, offset, 0, 0, out, "f", 4)


def normal(uint64_t seed, uint64_t offset, out):
    """Fill a float32 buffer with standard normal numbers; uses one word per number."""
    fill("normal", NORMAL, seed, offset, 0, 0, out, "f", 4)


def integers(uint64_t seed, uint64_t offset, int64_t low, int64_t high, out):
    """Fill an int64 buffer with integers in [low, high); uses two words per number."""
    if low >= high:
        raise ValueError(f"integers: expected low < high, got low={low}, high={high}")
    fill("integers", INTEGERS, seed, offset, low, <uint64_t> high - <uint64_t> low, out, "lq", 8)


def permutation(uint64_t seed, uint64_t offset, out):
    """Fill an int64 buffer with a random order of 0, ..., n - 1; uses two words per number."""
    fill("permutation", PERMUTATION, seed, offset, 0, 0, out, "lq", 8)
