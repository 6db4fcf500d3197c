"""Owns the blocking and threads of weight gradients that come from the winners of windows alone; lists and chains are in conv_winners.h.

Must not contain arithmetic: per weight and image one chain over the winners in the order of their places, images added in order, as
conv_weight.pyx has it for all outputs.
"""

from libc.stdint cimport int32_t
from libc.string cimport memset

from onemodel._kernels.conv cimport Conv
from onemodel._kernels.pieces cimport begin, run
from onemodel._kernels.pooling cimport Pooling
from onemodel._kernels.table cimport om_copy_fn, om_table, row_index, smallest_piece, table_of, thread_count
from onemodel._pool.pool cimport give, take

cdef extern from "kernels.h" nogil:
    enum:
        OM_WINNERS_COLS
        OM_WINNERS_FIRST
        OM_WINNERS_LAST
    ctypedef struct om_winner_windows:
        Py_ssize_t rows
        Py_ssize_t windows
        Py_ssize_t cols
        Py_ssize_t window_rows
        Py_ssize_t first
        Py_ssize_t step
        Py_ssize_t taps
        Py_ssize_t apart
        Py_ssize_t row_pixels
        Py_ssize_t col_pixels
    ctypedef void om_winners_list_fn(const om_winner_windows *w, const float *g, const int32_t *index, int32_t *at, float *value,
                                     int32_t *starts) noexcept nogil
    ctypedef void om_winners_chain_fn(const float *x, Py_ssize_t pitch, const int32_t *at, const float *value, Py_ssize_t n, Py_ssize_t rows,
                                      Py_ssize_t cols, float *state) noexcept nogil
    ctypedef int om_winners_join_fn(const float *state, float *sum, Py_ssize_t n, int flags) noexcept nogil
    ctypedef int om_finite_fn(const float *x, Py_ssize_t n) noexcept nogil

cdef Py_ssize_t LIST = row_index("winners_list", "winners_list")
cdef Py_ssize_t CHAIN = row_index("winners_chain", "winners_chain")
cdef Py_ssize_t JOIN = row_index("winners_join", "winners_join")
cdef Py_ssize_t FINITE = row_index("finite", "all_finite")
cdef Py_ssize_t TURN = row_index("copy", "copy_4")

cdef enum:
    LEAST_TAPS = 4              # fewer chains would wait for each other
    BAND_FLOATS = 8192          # of the rows of pixels that all output channels pass over: they stay in the first cache
    PIXELS = 131072             # floats of the images that a thread lays out at once
    MOST_PIXELS = 1 << 30
    CHANNELS_EACH = 4           # output channels of a piece at least
    MADDS_PER_ELEMENT = 16      # as in gemm.pyx

cdef struct Job:
    const om_table *table
    const Conv *c
    om_winner_windows windows
    const float *x
    const float *g
    const int32_t *index
    Py_ssize_t lanes
    Py_ssize_t blocks           # of LANES channels
    Py_ssize_t high             # rows and columns of an image with its padding
    Py_ssize_t wide
    Py_ssize_t image            # floats of all blocks of one
    Py_ssize_t band             # rows of outputs whose pixels stay near
    Py_ssize_t images           # laid out now
    Py_ssize_t image0
    float *pixels
    float *sums                 # [output channel][block][tap][lane]
    float *dw
    Py_ssize_t pieces
    bint other                  # other bits are possible
    bint failed


cdef bint winners_fit(int mode, const Conv *c, const Pooling *p) noexcept nogil:
    cdef Py_ssize_t lanes = table_of(mode).gemm.lanes, high = (c.oh - 1) * c.sh + (c.kh - 1) * c.dh + 1, wide = (c.ow - 1) * c.sw + c.kw
    return (c.groups == 1 and c.dw == 1 and c.kw <= OM_WINNERS_COLS and c.kh * c.kw >= LEAST_TAPS and c.n * c.oc * c.ic > 0
            and p.kh * p.kw >= LEAST_TAPS and not p.adaptive and (p.kh - 1) * p.dh < p.sh and (p.kw - 1) * p.dw < p.sw
            and 2 * ((c.ic + lanes - 1) // lanes * lanes) <= 3 * c.ic and high < MOST_PIXELS // wide)


cdef void lay_out(void *context, Py_ssize_t piece) noexcept nogil:
    """One block of channels of one image as pixels."""
    cdef Job *j = <Job *>context
    cdef const Conv *c = j.c
    cdef Py_ssize_t number = piece // j.blocks, block = piece % j.blocks, row, channels = min(j.lanes, c.ic - block * j.lanes)
    cdef Py_ssize_t rows = min(c.ih, j.high - c.pt), cols = max(min(c.iw, j.wide - c.pl), 0)
    cdef float *to = j.pixels + number * j.image + block * j.high * j.wide * j.lanes
    cdef const float *x = j.x + (j.image0 + number) * c.xn + block * j.lanes * c.xc
    memset(to, 0, j.high * j.wide * j.lanes * sizeof(float))
    for row in range(rows):
        (<om_copy_fn *>j.table.row[TURN])(x + row * c.xh, c.xc, 1, to + ((c.pt + row) * j.wide + c.pl) * j.lanes, 1, j.lanes, channels, cols)
    if not (<om_finite_fn *>j.table.row[FINITE])(to, j.high * j.wide * j.lanes):
        j.other = True


cdef void weight_piece(void *context, Py_ssize_t piece) noexcept nogil:
    """Some output channels' chains over the images laid out."""
    cdef Job *j = <Job *>context
    cdef const Conv *c = j.c
    cdef const om_winner_windows *w = &j.windows
    cdef Py_ssize_t first = begin(c.oc, j.pieces, piece), n = begin(c.oc, j.pieces, piece + 1) - first, k = c.kh * c.kw * j.lanes
    cdef Py_ssize_t room = w.window_rows * w.windows + 1, number, o, block, row, end, plane
    cdef int flags
    cdef int32_t *at = <int32_t *>take(<size_t>(n * (2 * room + w.rows + 1)) * 4 + <size_t>(n * j.blocks * k) * sizeof(float))
    if at == NULL:
        j.failed = True
        return
    cdef float *state = <float *>at
    cdef float *value = state + n * j.blocks * k
    at = <int32_t *>(value + n * room)
    cdef int32_t *starts = at + n * room
    cdef const int32_t *start
    for number in range(j.images):
        for o in range(n):
            plane = ((j.image0 + number) * c.oc + first + o) * (room - 1)
            (<om_winners_list_fn *>j.table.row[LIST])(w, j.g + plane, j.index + plane, at + o * room, value + o * room, starts + o * (w.rows + 1))
        memset(state, 0, n * j.blocks * k * sizeof(float))
        for block in range(j.blocks):
            row = 0
            while row < w.rows:
                end = min(row + j.band, w.rows)
                for o in range(n):
                    start = starts + o * (w.rows + 1)
                    if start[row] < start[end]:
                        (<om_winners_chain_fn *>j.table.row[CHAIN])(
                            j.pixels + number * j.image + block * j.high * j.wide * j.lanes, c.dh * j.wide * j.lanes, at + o * room + start[row],
                            value + o * room + start[row], start[end] - start[row], c.kh, c.kw, state + (o * j.blocks + block) * k)
                row = end
        flags = (OM_WINNERS_FIRST if j.image0 + number == 0 else 0) | (OM_WINNERS_LAST if j.image0 + number == c.n - 1 else 0)
        if not (<om_winners_join_fn *>j.table.row[JOIN])(state, j.sums + first * j.blocks * k, n * j.blocks * k, flags):
            j.other = True
    give(state)


cdef void write_piece(void *context, Py_ssize_t piece) noexcept nogil:
    """Some output channels' sums into dw."""
    cdef const Job *j = <const Job *>context
    cdef const Conv *c = j.c
    cdef Py_ssize_t taps = c.kh * c.kw, o, block
    for o in range(begin(c.oc, j.pieces, piece), begin(c.oc, j.pieces, piece + 1)):
        for block in range(j.blocks):
            (<om_copy_fn *>j.table.row[TURN])(j.sums + (o * j.blocks + block) * taps * j.lanes, 1, j.lanes, j.dw + (o * c.ic + block * j.lanes) * taps, taps, 1,
                                              min(j.lanes, c.ic - block * j.lanes), taps)


cdef int winners_weight(int mode, const Conv *c, const Pooling *p, const float *g, const int32_t *index, const float *x, float *dw) noexcept nogil:
    cdef Job j
    cdef Py_ssize_t most, threads = thread_count(), row
    j.table = table_of(mode)
    j.c, j.x, j.g, j.index, j.dw, j.other, j.failed = c, x, g, index, dw, False, False
    j.lanes = j.table.gemm.lanes
    j.blocks = (c.ic + j.lanes - 1) // j.lanes
    j.high, j.wide = (c.oh - 1) * c.sh + (c.kh - 1) * c.dh + 1, (c.ow - 1) * c.sw + c.kw
    j.image = j.blocks * j.high * j.wide * j.lanes
    row = BAND_FLOATS // (j.wide * j.lanes) - (c.kh - 1) * c.dh
    j.band = max(row // c.sh, p.sh)
    j.windows.rows, j.windows.cols, j.windows.windows, j.windows.window_rows = c.oh, c.ow, p.ow, p.oh
    j.windows.first, j.windows.step, j.windows.taps, j.windows.apart = -p.ph, p.sh, p.kh, p.dh
    j.windows.row_pixels, j.windows.col_pixels = c.sh * j.wide, c.sw
    most = min(max(PIXELS // j.image, 1) * threads, c.n)
    j.pixels = <float *>take(<size_t>(most * j.image + c.oc * j.blocks * c.kh * c.kw * j.lanes) * sizeof(float))
    if j.pixels == NULL:
        return -1
    j.sums = j.pixels + most * j.image
    j.image0 = 0
    while j.image0 < c.n and not j.other and not j.failed:
        j.images = min(most, c.n - j.image0)
        run(lay_out, &j, j.images * j.blocks)
        j.pieces = 1
        if threads > 1 and <double>j.images * c.oc * c.oh * c.ow * c.ic * c.kh * c.kw >= <double>smallest_piece() * MADDS_PER_ELEMENT:
            j.pieces = max(1, min(c.oc // CHANNELS_EACH, 4 * threads))
        if not j.other:
            run(weight_piece, &j, j.pieces)
        j.image0 += j.images
    if not j.other and not j.failed:
        run(write_piece, &j, j.pieces)
    give(j.pixels)
    return -1 if j.failed else 0 if j.other else 1
