"""Owns the blocking and threads of gradients that come from the winners of windows alone; lists and chains are in conv_winners.h.

Must not contain arithmetic: each is one chain over the winners, in the order in which conv.pyx and conv_weight.pyx go over all outputs.
"""

from libc.stdint cimport int32_t
from libc.string cimport memset

from onemodel._kernels.conv cimport Conv
from onemodel._kernels.pieces cimport begin, run
from onemodel._kernels.pooling cimport Pooling
from onemodel._kernels.table cimport om_copy_fn, om_round_fn, om_sum_fn, om_table, row_index, smallest_piece, table_of, thread_count
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
    ctypedef void om_winners_spread_fn(float *row, Py_ssize_t base, const int32_t *at, const float *value, Py_ssize_t n, Py_ssize_t cols,
                                       Py_ssize_t vectors, const float *w) noexcept nogil
    ctypedef int om_winners_join_fn(const float *state, float *sum, Py_ssize_t n, int flags) noexcept nogil
    ctypedef int om_finite_fn(const float *x, Py_ssize_t n) noexcept nogil

cdef Py_ssize_t LIST = row_index("winners_list", "winners_list")
cdef Py_ssize_t CHAIN = row_index("winners_chain", "winners_chain")
cdef Py_ssize_t SPREAD = row_index("winners_spread", "winners_spread")
cdef Py_ssize_t JOIN = row_index("winners_join", "winners_join")
cdef Py_ssize_t FINITE = row_index("finite", "all_finite")
cdef Py_ssize_t SUM_ROWS = row_index("sum", "sum_rows")
cdef Py_ssize_t ROUND_SUMS = row_index("round", "round_sums")
cdef Py_ssize_t TURN = row_index("copy", "copy_4")

cdef enum:
    LEAST_TAPS = 4              # fewer chains would wait for each other
    BAND_FLOATS = 8192          # of the rows of pixels that all output channels pass over: they stay in the first cache
    PIXELS = 131072             # floats of the images that a thread lays out at once
    MOST_FLOATS = 1 << 20       # of an image laid out: beyond the caches, and at the cost of memory, nothing is won
    LEAST_CHANNELS = 16         # output channels that repay laying out x and dx
    CHANNELS_EACH = 4           # output channels of a piece at least
    PIECES_PER_THREAD = 4
    MADDS_PER_ELEMENT = 16      # as in gemm.pyx

cdef struct Job:
    const om_table *table
    const Conv *c
    om_winner_windows windows
    const float *x
    const float *w
    const float *g
    const int32_t *index
    float *dx
    float *dw
    float *db
    Py_ssize_t lanes
    Py_ssize_t blocks           # of LANES channels
    Py_ssize_t high             # rows and columns of an image with its padding
    Py_ssize_t wide
    Py_ssize_t image            # floats of all blocks of one
    Py_ssize_t room             # of a list
    Py_ssize_t images           # of now
    Py_ssize_t image0
    Py_ssize_t most             # images at once
    Py_ssize_t band             # rows of outputs whose pixels stay near
    Py_ssize_t pieces           # output channels are dealt to them
    Py_ssize_t vectors          # of a pixel of dx
    Py_ssize_t strips           # of dx's rows
    int32_t *at                 # lists [image][output channel][room], their values, and where rows start
    float *value
    int32_t *starts
    double *bias                # sums [output channel]
    float *pixels               # x: [image][block][row][column][lane]
    float *sums                 # dw: [output channel][block][tap][lane]
    float *taps                 # w: [pixel's channels][output channel][kernel row][kernel column][vector][lane]
    bint other_dw, other_dx     # other bits are possible
    bint failed


cdef bint winners_fit(int mode, const Conv *c, const Pooling *p) noexcept nogil:
    cdef Py_ssize_t lanes = table_of(mode).gemm.lanes, high = (c.oh - 1) * c.sh + (c.kh - 1) * c.dh + 1, wide = (c.ow - 1) * c.sw + c.kw
    cdef Py_ssize_t filled = (c.ic + lanes - 1) // lanes * lanes
    # Strides and padding within the kernel: everything that is laid out is read.
    return (c.groups == 1 and c.dw == 1 and c.kw <= OM_WINNERS_COLS and c.kh * c.kw >= LEAST_TAPS and c.n * c.ic > 0 and c.oc >= LEAST_CHANNELS
            and c.sh <= c.kh * c.dh and c.sw <= c.kw and c.pt < c.kh * c.dh and c.pl < c.kw
            and p.kh * p.kw >= LEAST_TAPS and not p.adaptive and (p.kh - 1) * p.dh < p.sh and (p.kw - 1) * p.dw < p.sw
            and 2 * filled <= 3 * c.ic and high < MOST_FLOATS // filled // wide)


cdef inline Py_ssize_t list_of(const Job *j, Py_ssize_t number, Py_ssize_t o) noexcept nogil:
    return number * j.c.oc + o


# ---- lists and the bias ----

cdef void list_piece(void *context, Py_ssize_t piece) noexcept nogil:
    """Some output channels' lists of all images of now."""
    cdef const Job *j = <const Job *>context
    cdef const om_winner_windows *w = &j.windows
    cdef Py_ssize_t number, o, plane, at, first = begin(j.c.oc, j.pieces, piece), end = begin(j.c.oc, j.pieces, piece + 1)
    for number in range(j.images):
        for o in range(first, end):
            plane, at = list_of(j, j.image0 + number, o) * (j.room - 1), list_of(j, number, o)
            (<om_winners_list_fn *>j.table.row[LIST])(w, j.g + plane, j.index + plane, j.at + at * j.room, j.value + at * j.room,
                                                      j.starts + at * (w.rows + 1))
            if j.db != NULL:
                (<om_sum_fn *>j.table.row[SUM_ROWS])(j.value + at * j.room, 0, 1, j.starts[at * (w.rows + 1) + w.rows], j.bias + o)
    if j.db != NULL and j.image0 + j.images == j.c.n:
        (<om_round_fn *>j.table.row[ROUND_SUMS])(j.bias + first, 1.0, j.db + first, 1, end - first)


# ---- the weight ----

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
        j.other_dw = True


cdef void weight_piece(void *context, Py_ssize_t piece) noexcept nogil:
    """Some output channels' chains over the images laid out."""
    cdef Job *j = <Job *>context
    cdef const Conv *c = j.c
    cdef Py_ssize_t first = begin(c.oc, j.pieces, piece), n = begin(c.oc, j.pieces, piece + 1) - first, k = c.kh * c.kw * j.lanes
    cdef Py_ssize_t rows = j.windows.rows, number, o, block, row, end, at
    cdef int flags
    cdef const int32_t *start
    cdef float *state = <float *>take(<size_t>(n * j.blocks * k) * sizeof(float))
    if state == NULL:
        j.failed = True
        return
    for number in range(j.images):
        memset(state, 0, n * j.blocks * k * sizeof(float))
        for block in range(j.blocks):
            row = 0
            while row < rows:
                end = min(row + j.band, rows)
                for o in range(n):
                    at = list_of(j, number, first + o)
                    start = j.starts + at * (rows + 1)
                    if start[row] < start[end]:
                        (<om_winners_chain_fn *>j.table.row[CHAIN])(
                            j.pixels + number * j.image + block * j.high * j.wide * j.lanes, c.dh * j.wide * j.lanes, j.at + at * j.room + start[row],
                            j.value + at * j.room + start[row], start[end] - start[row], c.kh, c.kw, state + (o * j.blocks + block) * k)
                row = end
        flags = (OM_WINNERS_FIRST if j.image0 + number == 0 else 0) | (OM_WINNERS_LAST if j.image0 + number == c.n - 1 else 0)
        if not (<om_winners_join_fn *>j.table.row[JOIN])(state, j.sums + first * j.blocks * k, n * j.blocks * k, flags):
            j.other_dw = True
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


# ---- the image ----

cdef inline Py_ssize_t pixel_blocks(const Job *j) noexcept nogil:
    """Of the channels of dx that are made together."""
    return (j.blocks + j.vectors - 1) // j.vectors


cdef void turn_weights(void *context, Py_ssize_t piece) noexcept nogil:
    """The weights of one output channel, channels side by side; those that fill a vector are 0."""
    cdef Job *j = <Job *>context
    cdef const Conv *c = j.c
    cdef Py_ssize_t taps = c.kh * c.kw, pixel = j.vectors * j.lanes, block
    cdef const float *w = j.w + piece * c.ic * taps
    cdef float *to
    for block in range(pixel_blocks(j)):
        to = j.taps + (block * c.oc + piece) * taps * pixel
        memset(to, 0, taps * pixel * sizeof(float))
        (<om_copy_fn *>j.table.row[TURN])(w + block * pixel * taps, taps, 1, to, 1, pixel, min(pixel, c.ic - block * pixel), taps)
    if not (<om_finite_fn *>j.table.row[FINITE])(w, c.ic * taps):
        j.other_dx = True


cdef void image_piece(void *context, Py_ssize_t piece) noexcept nogil:
    """Some rows of some channels of one image's gradient, row after row: all output channels add to a row while it is near."""
    cdef Job *j = <Job *>context
    cdef const Conv *c = j.c
    cdef Py_ssize_t pixel = j.vectors * j.lanes, size = j.wide * pixel, block = piece % pixel_blocks(j), rest = piece // pixel_blocks(j)
    cdef Py_ssize_t strip = rest % j.strips, number = rest // j.strips, channels = min(pixel, c.ic - block * pixel), y, o, r, q, at
    cdef Py_ssize_t cols = max(min(c.iw, j.wide - c.pl), 0)
    cdef float *to = j.dx + ((j.image0 + number) * c.ic + block * pixel) * c.ih * c.iw
    cdef const int32_t *start
    cdef float *row = <float *>take(<size_t>size * sizeof(float))
    if row == NULL:
        j.failed = True
        return
    for y in range(begin(c.ih, j.strips, strip), begin(c.ih, j.strips, strip + 1)):
        memset(row, 0, size * sizeof(float))
        for o in range(c.oc):
            at = list_of(j, number, o)
            start = j.starts + at * (j.windows.rows + 1)
            for r in range(c.kh):
                q = y + c.pt - r * c.dh
                if q < 0:
                    break
                if q % c.sh or q // c.sh >= c.oh:
                    continue
                q //= c.sh
                if start[q] < start[q + 1]:
                    (<om_winners_spread_fn *>j.table.row[SPREAD])(
                        row, q * j.windows.row_pixels, j.at + at * j.room + start[q], j.value + at * j.room + start[q], start[q + 1] - start[q], c.kw,
                        j.vectors, j.taps + (((block * c.oc + o) * c.kh + r) * c.kw) * pixel)
        if not (<om_winners_join_fn *>j.table.row[JOIN])(row, row, size, OM_WINNERS_FIRST | OM_WINNERS_LAST):
            j.other_dx = True
        if cols < c.iw:  # no output reads the columns behind
            for o in range(channels):
                memset(to + o * c.ih * c.iw + y * c.iw + cols, 0, (c.iw - cols) * sizeof(float))
        (<om_copy_fn *>j.table.row[TURN])(row + c.pl * pixel, 1, pixel, to + y * c.iw, c.ih * c.iw, 1, channels, cols)
    give(row)


# ---- all of it ----

cdef void plan(Job *j, const Pooling *p) noexcept nogil:
    cdef const Conv *c = j.c
    cdef Py_ssize_t threads = thread_count(), row
    j.lanes = j.table.gemm.lanes
    j.blocks = (c.ic + j.lanes - 1) // j.lanes
    j.high, j.wide = (c.oh - 1) * c.sh + (c.kh - 1) * c.dh + 1, (c.ow - 1) * c.sw + c.kw
    j.image = j.blocks * j.high * j.wide * j.lanes
    j.room = p.oh * p.ow + 1  # a list is written one place behind its end
    row = BAND_FLOATS // (j.wide * j.lanes) - (c.kh - 1) * c.dh
    j.band = max(row // c.sh, p.sh)
    j.windows.rows, j.windows.cols, j.windows.windows, j.windows.window_rows = c.oh, c.ow, p.ow, p.oh
    j.windows.first, j.windows.step, j.windows.taps, j.windows.apart = -p.ph, p.sh, p.kh, p.dh
    j.windows.row_pixels, j.windows.col_pixels = c.sh * j.wide, c.sw
    j.most = min(max(PIXELS // j.image, 1) * threads, c.n)
    j.vectors = 1 if j.blocks == 1 else 2
    j.pieces = j.strips = 1
    if threads > 1 and <double>j.most * c.oc * c.oh * c.ow * c.ic * c.kh * c.kw >= <double>smallest_piece() * MADDS_PER_ELEMENT:
        j.pieces = max(1, min(c.oc // CHANNELS_EACH, PIECES_PER_THREAD * threads))
        j.strips = max(1, min(c.ih // 2, PIECES_PER_THREAD * threads // (j.most * pixel_blocks(j))))


cdef int winners_backward(int mode, const Conv *c, const Pooling *p, const float *g, const int32_t *index, const float *x, const float *w,
                          float *dx, float *dw, float *db) noexcept nogil:
    cdef Job j
    cdef size_t lists, taps, pixels = 0, weights = 0
    j.table = table_of(mode)
    j.c, j.x, j.w, j.g, j.index, j.dx, j.dw, j.db = c, x, w, g, index, dx, dw, db
    j.other_dw, j.other_dx, j.failed = dw == NULL, dx == NULL, False
    plan(&j, p)
    lists, taps = <size_t>(j.most * c.oc), <size_t>(c.oc * c.kh * c.kw * j.lanes)
    if dw != NULL:
        pixels, weights = <size_t>(j.most * j.image), taps * j.blocks
    if dx != NULL:
        weights += taps * pixel_blocks(&j) * j.vectors
    j.bias = <double *>take(<size_t>c.oc * sizeof(double) + (lists * (2 * j.room + c.oh + 1) + pixels + weights) * sizeof(float))
    if j.bias == NULL:
        return -1
    j.pixels = <float *>(j.bias + c.oc)
    j.sums = j.pixels + pixels
    j.taps = j.sums + (taps * j.blocks if dw != NULL else 0)
    j.value = j.pixels + pixels + weights
    j.at = <int32_t *>(j.value + lists * j.room)
    j.starts = j.at + lists * j.room
    memset(j.bias, 0, c.oc * sizeof(double))
    if dx != NULL:
        run(turn_weights, &j, c.oc)
    j.image0 = 0
    while j.image0 < c.n and not j.failed:
        j.images = min(j.most, c.n - j.image0)
        run(list_piece, &j, j.pieces)
        if not j.other_dw:
            run(lay_out, &j, j.images * j.blocks)
        if not j.other_dw:
            run(weight_piece, &j, j.pieces)
        if not j.other_dx:
            run(image_piece, &j, j.images * j.strips * pixel_blocks(&j))
        j.image0 += j.images
    if not j.other_dw and not j.failed:
        run(write_piece, &j, j.pieces)
    give(j.bias)
    if j.failed:
        return -1
    return (0 if j.other_dx else MADE_DX) | (0 if j.other_dw else MADE_DW) | (MADE_DB if db != NULL else 0)
