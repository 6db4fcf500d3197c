"""Owns the chunks and threads of weight gradients of few outputs, where lanes run across the channels of x; the loops are in conv_weight.h.

Must not contain arithmetic: the chains are those of conv_weight.pyx.
"""

from onemodel._kernels.conv cimport Conv
from onemodel._kernels.pieces cimport begin, run
from onemodel._kernels.table cimport om_copy_fn, om_table, row_index, smallest_piece, table_of
from onemodel._pool.pool cimport give, take

cdef extern from "kernels.h" nogil:
    enum:
        OM_WEIGHT_BEGIN
        OM_WEIGHT_END
        OM_WEIGHT_STORE
        OM_WEIGHT_FINAL
        OM_WEIGHT_THIN
    ctypedef void om_planes_fn(const float *x, Py_ssize_t xc, Py_ssize_t n, Py_ssize_t xh, Py_ssize_t ih, Py_ssize_t iw, Py_ssize_t top,
                               Py_ssize_t left, Py_ssize_t rows, Py_ssize_t cols, float *dst) noexcept nogil
    ctypedef void om_weight_thin_fn(Py_ssize_t m, Py_ssize_t n, const float *const *at, Py_ssize_t rows, Py_ssize_t cols, Py_ssize_t xr,
                                    Py_ssize_t xs, const float *g, Py_ssize_t gp, Py_ssize_t gr, float *chain, float *sum, Py_ssize_t step,
                                    int flags) noexcept nogil

cdef Py_ssize_t PLANES = row_index("planes", "planes")
cdef Py_ssize_t THIN = row_index("weight_thin", "weight_thin")
cdef Py_ssize_t TURN = row_index("copy", "copy_4")

cdef enum:
    FLOATS = 6144               # of a window of a vector of channels: it stays in L1
    MOST_FLOATS = 24576         # of the window of one row of outputs: it stays in L2
    MOST_TAPS = 1024
    MADDS_PER_ELEMENT = 16      # as in gemm.pyx
    MOST_PIECES = 64

cdef struct Job:
    const om_table *table
    Conv c
    const float *x
    const float *g
    float *dw
    Py_ssize_t icg
    Py_ssize_t ocg
    Py_ssize_t taps
    Py_ssize_t lanes
    Py_ssize_t rows             # of a chunk of outputs
    Py_ssize_t cols
    Py_ssize_t high             # of its window of x
    Py_ssize_t wide
    Py_ssize_t blocks           # vectors of channels in a group
    Py_ssize_t pieces
    int failed


cdef bint window(Job *j) noexcept nogil:
    """The largest chunk of outputs whose window stays in L1, if a single row of it fits L2. Chains run over whole rows one after the other, so only a
    chunk of a single row may end within it."""
    cdef const Conv *c = &j.c
    cdef Py_ssize_t more_rows = (c.kh - 1) * c.dh, more_cols = (c.kw - 1) * c.dw, width
    if c.sh > MOST_FLOATS or c.sw > MOST_FLOATS or (more_rows + 1) * j.lanes > MOST_FLOATS or more_cols > MOST_FLOATS:
        return False
    j.cols = c.ow
    width = MOST_FLOATS // (j.lanes * (1 + more_rows))
    if (c.ow - 1) * c.sw + 1 + more_cols > width:
        j.cols = (width - 1 - more_cols) // c.sw + 1
        if j.cols < 16:
            return False
    j.wide = (j.cols - 1) * c.sw + 1 + more_cols
    j.rows = min(max((FLOATS // (j.wide * j.lanes) - more_rows - 1) // c.sh + 1, 1), c.oh) if j.cols == c.ow else 1
    j.high = (j.rows - 1) * c.sh + more_rows + 1
    return True


cdef bint thin_fits(const Conv *c, Py_ssize_t lanes) noexcept nogil:
    cdef Job j
    j.c, j.lanes = c[0], lanes
    return c.oc // c.groups * 2 <= lanes <= c.ic // c.groups * 2 and c.kh * c.kw <= MOST_TAPS and window(&j)


cdef void thin_piece(void *context, Py_ssize_t piece) noexcept nogil:
    """Some vectors of channels, all images in order."""
    cdef Job *j = <Job *>context
    cdef const Conv *c = &j.c
    cdef Py_ssize_t lanes = j.lanes, block = j.taps * lanes, places = c.oh * c.ow, unit, group, channel, n, image, r0, c0, rows, cols, m, t
    cdef size_t floats = (j.high * j.wide * lanes + 2 * j.ocg * block + 15) // 16 * 16
    cdef const float *x
    cdef const float *g
    cdef int flags
    cdef float *room = <float *>take(floats * sizeof(float) + j.taps * sizeof(float *))
    if room == NULL:
        j.failed = -1
        return
    cdef float *chain = room + j.high * j.wide * lanes
    cdef float *sum = chain + j.ocg * block
    cdef const float **at = <const float **>(room + floats)
    for t in range(j.taps):
        at[t] = room + (t // c.kw * c.dh * j.wide + t % c.kw * c.dw) * lanes
    for unit in range(begin(c.groups * j.blocks, j.pieces, piece), begin(c.groups * j.blocks, j.pieces, piece + 1)):
        group, channel = unit // j.blocks, unit % j.blocks * lanes
        n = min(lanes, j.icg - channel)
        for image in range(c.n):
            x = j.x + image * c.xn + (group * j.icg + channel) * c.xc
            g = j.g + (image * c.oc + group * j.ocg) * places
            r0 = 0
            while r0 < c.oh:
                rows = min(j.rows, c.oh - r0)
                c0 = 0
                while c0 < c.ow:
                    cols = min(j.cols, c.ow - c0)
                    flags = OM_WEIGHT_BEGIN if r0 == 0 and c0 == 0 else 0
                    if r0 + rows == c.oh and c0 + cols == c.ow:
                        flags |= OM_WEIGHT_END | (OM_WEIGHT_STORE if image == 0 else 0) | (OM_WEIGHT_FINAL if image == c.n - 1 else 0)
                    (<om_planes_fn *>j.table.row[PLANES])(x, c.xc, n, c.xh, c.ih, c.iw, r0 * c.sh - c.pt, c0 * c.sw - c.pl,
                                                          (rows - 1) * c.sh + (c.kh - 1) * c.dh + 1, j.wide, room)
                    m = 0
                    while m < j.ocg:
                        (<om_weight_thin_fn *>j.table.row[THIN])(j.taps, min(j.ocg - m, OM_WEIGHT_THIN), at, rows, cols, c.sh * j.wide, c.sw,
                                                                 g + m * places + r0 * c.ow + c0, places, c.ow, chain + m * block, sum + m * block, j.taps, flags)
                        m += OM_WEIGHT_THIN
                    c0 += cols
                r0 += rows
        for m in range(j.ocg):
            (<om_copy_fn *>j.table.row[TURN])(sum + m * block, 1, lanes, j.dw + ((group * j.ocg + m) * j.icg + channel) * j.taps, j.taps, 1, n, j.taps)
    give(room)


cdef int thin_weight(int mode, const Conv *c, const float *x, const float *g, float *dw) noexcept nogil:
    cdef Job j
    cdef double madds = <double>c.n * c.oc * c.oh * c.ow * (c.ic // c.groups) * c.kh * c.kw
    j.table = table_of(mode)
    j.c, j.x, j.g, j.dw, j.failed = c[0], x, g, dw, 0
    j.icg, j.ocg, j.taps, j.lanes = c.ic // c.groups, c.oc // c.groups, c.kh * c.kw, j.table.gemm.lanes
    window(&j)
    j.blocks = (j.icg + j.lanes - 1) // j.lanes
    j.pieces = <Py_ssize_t>max(min(madds / MADDS_PER_ELEMENT / smallest_piece(), <double>min(c.groups * j.blocks, MOST_PIECES)), 1.0)
    run(thin_piece, &j, j.pieces)
    return j.failed
