"""Owns pooling over batches of planes: the choice of a kernel, the tables of windows, and the cut into pieces; the loops are in pooling.h.

A piece is a run of planes, or of bands of their rows where there are few; a band takes no part in another's sums, so the cut changes no bit.
"""
from libc.stdint cimport int32_t

from onemodel._kernels.pieces cimport begin, cut, run
from onemodel._kernels.table cimport om_fn, row_index, table_of
from onemodel._pool.pool cimport give, take

cdef extern from "kernels.h" nogil:
    ctypedef struct om_pool:
        Py_ssize_t h
        Py_ssize_t w
        Py_ssize_t oh
        Py_ssize_t ow
        Py_ssize_t kh
        Py_ssize_t kw
        Py_ssize_t sh
        Py_ssize_t sw
        Py_ssize_t ph
        Py_ssize_t pw
        Py_ssize_t dh
        Py_ssize_t dw
        Py_ssize_t x_row
        Py_ssize_t x_col
        const Py_ssize_t *row_lo
        const Py_ssize_t *row_hi
        const Py_ssize_t *col_lo
        const Py_ssize_t *col_hi
        const double *row_count
        const double *col_count
        double divisor
        int absent
    ctypedef void om_pool_fn(const om_pool *p, const float *x, float *y, int32_t *index, Py_ssize_t lo, Py_ssize_t hi, void *scratch) noexcept nogil
    ctypedef void om_pool_bwd_fn(const om_pool *p, const float *g, const int32_t *index, float *dx, Py_ssize_t lo, Py_ssize_t hi,
                                 void *scratch) noexcept nogil
    Py_ssize_t om_pool_scratch(const om_pool *p)

# Which kernel fits: windows of 2 by 2 side by side; a fixed grid; anything.
cdef enum Shape:
    SQUARES = 0
    GRID = 1
    WINDOWS = 2

cdef enum:
    LANES_ROOM = 16         # doubles behind a table that lanes may read
    BAND = 32768            # elements of dx that are zeroed and then added to: they stay in the second cache

cdef Py_ssize_t FORWARD[2][3]
FORWARD[0][:] = [row_index("pool", "max_pool_2x2"), row_index("pool", "max_pool"), row_index("pool", "max_pool_windows")]
FORWARD[1][:] = [row_index("pool", "avg_pool_2x2"), row_index("pool", "avg_pool"), row_index("pool", "avg_pool_windows")]
cdef Py_ssize_t BACKWARD[2][3]
BACKWARD[0][:] = [row_index("pool_bwd", "max_pool_2x2_bwd"), row_index("pool_bwd", "max_pool_bwd"), row_index("pool_bwd", "max_pool_bwd")]
BACKWARD[1][:] = [row_index("pool_bwd", "avg_pool_2x2_bwd"), row_index("pool_bwd", "avg_pool_bwd"), row_index("pool_bwd", "avg_pool_windows_bwd")]

cdef struct Job:
    om_pool pool
    om_fn kernel
    Py_ssize_t c, xn, xc, rows, per, planes, bands, units, pieces, scratch
    const float *x           # or g
    float *y                 # or dx
    int32_t *index
    bint backward, failed


# The windows over one axis: from lo to hi the elements that are there, and what they count for.
cdef void windows(const Pooling *p, Py_ssize_t size, Py_ssize_t outputs, Py_ssize_t k, Py_ssize_t s, Py_ssize_t pad, Py_ssize_t d,
                  Py_ssize_t *lo, Py_ssize_t *hi, double *count) noexcept nogil:
    cdef Py_ssize_t o, start, end
    for o in range(outputs):
        if p.adaptive:  # o * size may not fit
            lo[o] = size // outputs * o + size % outputs * o // outputs
            hi[o] = size // outputs * (o + 1) + (size % outputs * (o + 1) + outputs - 1) // outputs
            count[o] = <double> (hi[o] - lo[o])
            continue
        start = o * s - pad
        end = start + (k - 1) * d + 1
        count[o] = <double> ((end if end < size + pad else size + pad) - start)
        lo[o] = start if start >= 0 else start + (-start + d - 1) // d * d
        hi[o] = end if end < size else size
        if not p.include_pad:
            count[o] = <double> (hi[o] - lo[o])


cdef Shape shape_of(const Pooling *p) noexcept nogil:
    if p.adaptive or p.ph > p.h or p.pw > p.w:
        return WINDOWS
    if (p.kh == 2 and p.kw == 2 and p.sh == 2 and p.sw == 2 and p.ph == 0 and p.pw == 0 and p.dh == 1 and p.dw == 1 and p.xw == 1
            and 2 * p.oh <= p.h and 2 * p.ow <= p.w):
        return SQUARES
    # A row of few outputs leaves most lanes empty, and one far apart is split into many phases: then the plain loops are faster (measured).
    if p.kind == MAX:
        return WINDOWS if p.sw >= 3 and p.ow < 4 else GRID
    return WINDOWS if p.ow < (16 if p.sw >= 4 else 8) else GRID


# Fills the geometry; the tables are in the block that is returned, NULL where none is needed; -1 in failed when there is no memory.
cdef void *prepare(Job *job, const Pooling *p, Shape shape) noexcept nogil:
    cdef om_pool *q = &job.pool
    cdef Py_ssize_t room = p.oh + p.ow, o
    cdef Py_ssize_t *bounds
    cdef double *counts
    q.h, q.w, q.oh, q.ow = p.h, p.w, p.oh, p.ow
    q.kh, q.kw, q.sh, q.sw, q.ph, q.pw, q.dh, q.dw = p.kh, p.kw, p.sh, p.sw, p.ph, p.pw, p.dh, p.dw
    q.x_row, q.x_col = p.xh, p.xw
    q.divisor = <double> (p.divisor if p.divisor else 4)
    q.absent = False
    job.failed, job.scratch, job.c, job.xn, job.xc, job.planes = False, 0, p.c, p.xn, p.xc, p.n * p.c
    if shape == SQUARES:
        return NULL
    bounds = <Py_ssize_t *> take((3 * room + LANES_ROOM) * 8)
    if bounds == NULL:
        job.failed = True
        return NULL
    counts = <double *> (bounds + 2 * room)
    q.row_lo, q.row_hi, q.col_lo, q.col_hi = bounds, bounds + p.oh, bounds + 2 * p.oh, bounds + 2 * p.oh + p.ow
    q.row_count, q.col_count = counts, counts + p.oh
    windows(p, p.h, p.oh, p.kh, p.sh, p.ph, p.dh, bounds, bounds + p.oh, counts)
    windows(p, p.w, p.ow, p.kw, p.sw, p.pw, p.dw, bounds + 2 * p.oh, bounds + 2 * p.oh + p.ow, counts + p.oh)
    for o in range(p.ow):
        q.absent |= q.col_lo[o] >= q.col_hi[o]
    for o in range(LANES_ROOM):
        counts[room + o] = 1.0
    if p.divisor:
        for o in range(p.oh):
            counts[o] = q.divisor
        for o in range(p.ow):
            counts[p.oh + o] = 1.0
    if shape == GRID:
        job.scratch = om_pool_scratch(q)
    return bounds


cdef void piece(void *context, Py_ssize_t number) noexcept nogil:
    cdef Job *job = <Job *> context
    cdef const om_pool *p = &job.pool
    cdef void *scratch = NULL
    cdef Py_ssize_t unit, plane, band, lo, hi, at
    cdef Py_ssize_t out = p.oh * p.ow
    if job.scratch:
        scratch = take(job.scratch)
        if scratch == NULL:
            job.failed = True
            return
    for unit in range(begin(job.units, job.pieces, number), begin(job.units, job.pieces, number + 1)):
        plane, band = unit // job.bands, unit % job.bands
        lo, hi = begin(job.rows, job.bands, band) * job.per, begin(job.rows, job.bands, band + 1) * job.per
        if job.backward:
            hi = hi if hi < p.h else p.h
            (<om_pool_bwd_fn *> job.kernel)(p, job.x + plane * out, NULL if job.index == NULL else job.index + plane * out,
                                            job.y + plane * p.h * p.w, lo, hi, scratch)
        else:
            at = plane // job.c * job.xn + plane % job.c * job.xc
            (<om_pool_fn *> job.kernel)(p, job.x + at, job.y + plane * out, NULL if job.index == NULL else job.index + plane * out, lo, hi, scratch)
    give(scratch)


# rows: how many units of `per` rows a plane has; at least `least` bands.
cdef int start(Job *job, Py_ssize_t rows, Py_ssize_t per, Py_ssize_t least, void *tables) noexcept nogil:
    cdef Py_ssize_t work = job.planes * job.pool.h * job.pool.w, wanted
    job.rows, job.per = rows, per
    wanted = cut(work, job.planes * rows)
    job.bands = (wanted + job.planes - 1) // job.planes
    if job.bands < least:
        job.bands = least
    if job.bands > rows:
        job.bands = rows
    job.units = job.planes * job.bands
    job.pieces = wanted if wanted < job.units else job.units
    run(piece, job, job.pieces)
    give(tables)
    return -1 if job.failed else 0


cdef int pool_forward(int mode, const Pooling *p, const float *x, float *y, int32_t *index) noexcept nogil:
    cdef Job job
    cdef Shape shape = shape_of(p)
    cdef void *tables
    if p.n * p.c * p.oh * p.ow == 0:
        return 0
    tables = prepare(&job, p, shape)
    if job.failed:
        return -1
    job.kernel, job.backward, job.x, job.y, job.index = table_of(mode).row[FORWARD[p.kind][<int> shape]], False, x, y, index
    return start(&job, p.oh, 1, 1, tables)


cdef int pool_backward(int mode, const Pooling *p, const float *g, const int32_t *index, float *dx) noexcept nogil:
    cdef Job job
    cdef Shape shape = shape_of(p)
    cdef void *tables
    if p.n * p.c == 0:
        return 0
    tables = prepare(&job, p, shape)
    if job.failed:
        return -1
    job.kernel, job.backward, job.x, job.y, job.index = table_of(mode).row[BACKWARD[p.kind][<int> shape]], True, g, dx, <int32_t *> index
    if shape == SQUARES:
        return start(&job, (p.h + 1) // 2, 2, 1, tables)
    return start(&job, p.h, 1, p.h * p.w // BAND if p.kind == MAX or shape == WINDOWS else 1, tables)
