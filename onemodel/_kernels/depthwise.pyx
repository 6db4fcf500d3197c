"""Owns the chunks and threads of convolutions of one channel per group; the loops are in depthwise.h.

Must not contain arithmetic: every output is one chain in the order that conv.pxd and conv_weight.pxd state, so no choice made here can change a bit.
"""

cimport numpy as cnp

from onemodel._kernels.conv cimport Conv
from onemodel._kernels.pieces cimport begin, run
from onemodel._kernels.table cimport om_table, row_index, smallest_piece, table_of
from onemodel._pool.pool cimport give, take

cnp.import_array()

cdef extern from "kernels.h" nogil:
    enum:
        OM_WEIGHT_BEGIN
        OM_WEIGHT_END
        OM_WEIGHT_STORE
        OM_WEIGHT_FINAL
        OM_DEPTHWISE_TAPS
    ctypedef void om_frame_fn(const float *x, Py_ssize_t xh, Py_ssize_t ih, Py_ssize_t iw, Py_ssize_t top, Py_ssize_t down, Py_ssize_t left,
                              Py_ssize_t right, Py_ssize_t rows, Py_ssize_t cols, float *dst, Py_ssize_t pitch) noexcept nogil
    ctypedef void om_depthwise_fn(Py_ssize_t rows, Py_ssize_t cols, Py_ssize_t taps, const Py_ssize_t *at, const float *w, const float *x,
                                  Py_ssize_t xr, const float *bias, float *y, Py_ssize_t yr) noexcept nogil
    ctypedef void om_depthwise_weight_fn(Py_ssize_t taps, const float *const *at, Py_ssize_t rows, Py_ssize_t cols, Py_ssize_t xr, Py_ssize_t xs,
                                         const float *g, float *chain, float *sum, int flags) noexcept nogil
    ctypedef void om_planes_fn(const float *x, Py_ssize_t xc, Py_ssize_t n, Py_ssize_t xh, Py_ssize_t ih, Py_ssize_t iw, Py_ssize_t top,
                               Py_ssize_t left, Py_ssize_t rows, Py_ssize_t cols, float *dst) noexcept nogil
    ctypedef void om_interleave_fn(const float *src, Py_ssize_t apart, Py_ssize_t cols, Py_ssize_t phases, Py_ssize_t rows, Py_ssize_t width,
                                   float *dst, Py_ssize_t pitch) noexcept nogil

cdef Py_ssize_t FRAME = row_index("frame", "frame")
cdef Py_ssize_t OUTPUTS = row_index("depthwise", "depthwise")
cdef Py_ssize_t WEIGHT = row_index("depthwise_weight", "depthwise_weight")
cdef Py_ssize_t PLANES = row_index("planes", "planes")
cdef Py_ssize_t INTERLEAVE = row_index("interleave", "interleave")

cdef enum:
    FLOATS = 6144               # of a padded window: it stays in L1
    WIDE_FLOATS = 24576         # of one for the gradient of the weight, which is as wide as x where it can be
    MOST_FLOATS = 32768         # of the window of a single row of outputs, beyond which the general form takes over
    COLUMNS = 512               # of a chunk
    PHASES = 64                 # rows times columns of a strided gradient's phases
    MULTIPLIER = 8              # outputs of a channel
    MADDS_PER_ELEMENT = 4       # multiply-adds that take the time of one element of an element-wise kernel: a quarter of a product's
    MOST_PIECES = 64
    VECTOR = 16                 # at least the lanes of any instruction set
    BESIDE = 8                  # windows copied before the first is read: what was just stored in vectors cannot be loaded at other offsets at once

# A convolution whose outputs are cut into chunks of rows and columns, each of which reads one window, padded and copied: of x forward and for
# the weight, of g for the gradient of x. There outputs count in steps of the stride, a phase being those of one remainder.
cdef struct Job:
    const om_table *table
    Conv c
    const float *x
    const float *g
    const float *w
    const float *bias
    float *y
    Py_ssize_t many             # outputs of a channel
    Py_ssize_t taps
    Py_ssize_t lanes
    Py_ssize_t rows             # of a chunk
    Py_ssize_t cols
    Py_ssize_t row_chunks
    Py_ssize_t col_chunks
    Py_ssize_t high             # of a window
    Py_ssize_t wide
    Py_ssize_t low_row          # the gradient's window begins so many rows and columns from its first output
    Py_ssize_t low_col
    Py_ssize_t units
    Py_ssize_t pieces
    Py_ssize_t *at              # of each tap in the window
    Py_ssize_t *tap             # its place among the weights of a channel, or NULL where they are in order
    Py_ssize_t *first           # of each phase
    int failed

# Where the chunk of one unit of work lies.
cdef struct Place:
    Py_ssize_t image
    Py_ssize_t channel
    Py_ssize_t row
    Py_ssize_t col


cdef inline Py_ssize_t parts_of(Py_ssize_t whole, Py_ssize_t most) noexcept nogil:
    return (whole + most - 1) // most


cdef inline Py_ssize_t beside(Py_ssize_t window) noexcept nogil:
    """Windows of so many floats that are copied together."""
    return max(min(FLOATS // max(window, 1), BESIDE), 1)


cdef bint chunks(Job *j, Py_ssize_t oh, Py_ssize_t ow, Py_ssize_t sh, Py_ssize_t sw, Py_ssize_t more_rows, Py_ssize_t more_cols,
                 Py_ssize_t each) noexcept nogil:
    """The largest chunk whose window, of (rows - 1) * sh + 1 + more_rows rows and likewise columns, of so many floats each, stays in L1."""
    j.cols = parts_of(ow, parts_of(ow, max(COLUMNS // each, VECTOR)))
    if more_rows > MOST_FLOATS or more_cols > MOST_FLOATS or sh > MOST_FLOATS or sw > MOST_FLOATS:
        return False
    j.wide = (j.cols - 1) * sw + 1 + more_cols
    if j.wide > MOST_FLOATS or j.wide * (1 + more_rows) * each > MOST_FLOATS:
        return False
    j.rows = min(max((FLOATS // (j.wide * each) - 1 - more_rows) // sh + 1, 1), oh)
    j.row_chunks = parts_of(oh, j.rows)
    j.rows = parts_of(oh, j.row_chunks)
    j.col_chunks = parts_of(ow, j.cols)
    j.high = (j.rows - 1) * sh + 1 + more_rows
    return True


cdef bint forward_chunks(Job *j) noexcept nogil:
    return chunks(j, j.c.oh, j.c.ow, j.c.sh, j.c.sw, (j.c.kh - 1) * j.c.dh, (j.c.kw - 1) * j.c.dw, 1)


cdef bint weight_chunks(Job *j) noexcept nogil:
    """Chains run over whole rows one after the other, so only a chunk of a single row may end within it."""
    cdef Conv *c = &j.c
    cdef Py_ssize_t more_rows = (c.kh - 1) * c.dh, more_cols = (c.kw - 1) * c.dw, width
    if not chunks(j, c.oh, c.ow, c.sh, c.sw, more_rows, more_cols, j.lanes):
        return False
    j.cols = c.ow
    width = WIDE_FLOATS // (j.lanes * (1 + more_rows))  # columns of a window that stays in L2
    if (c.ow - 1) * c.sw + 1 + more_cols > width:
        j.cols = min(c.ow, max((width - 1 - more_cols) // c.sw + 1, 16))
    j.wide = (j.cols - 1) * c.sw + 1 + more_cols
    j.rows = min(max((FLOATS // (j.wide * j.lanes) - 1 - more_rows) // c.sh + 1, 1), c.oh) if j.cols == c.ow else 1
    j.high = (j.rows - 1) * c.sh + 1 + more_rows
    return True


cdef bint reach(Py_ssize_t k, Py_ssize_t stride, Py_ssize_t pad, Py_ssize_t dilation, Py_ssize_t size, Py_ssize_t *low, Py_ssize_t *high) noexcept nogil:
    """The least and the greatest shift from an output, in steps of the stride, to what its taps read of g; False where no tap reads."""
    cdef Py_ssize_t phase, i, shift
    cdef bint some = False
    low[0] = high[0] = 0
    for phase in range(min(stride, size)):
        for i in range(k):
            if (phase + pad - i * dilation) % stride == 0:
                shift = (phase + pad - i * dilation) // stride
                low[0] = min(low[0], shift) if some else shift
                high[0] = max(high[0], shift) if some else shift
                some = True
    return some


cdef bint input_chunks(Job *j) noexcept nogil:
    cdef Conv *c = &j.c
    cdef Py_ssize_t high_row, high_col
    reach(c.kh, c.sh, c.pt, c.dh, c.ih, &j.low_row, &high_row)
    reach(c.kw, c.sw, c.pl, c.dw, c.iw, &j.low_col, &high_col)
    return chunks(j, parts_of(c.ih, c.sh), parts_of(c.iw, c.sw), 1, 1, high_row - j.low_row, high_col - j.low_col, j.many)


cdef void states(Job *j, int mode, const Conv *c) noexcept nogil:
    j.table = table_of(mode)
    j.c = c[0]
    j.many = c.oc // c.groups
    j.taps = c.kh * c.kw
    j.lanes = j.table.gemm.lanes
    j.failed = 0


cdef bint depthwise_fits(const Conv *c) noexcept nogil:
    cdef Job j
    if c.groups == 0 or c.ic != c.groups or c.oc < c.groups or c.oc // c.groups > MULTIPLIER or c.n * c.oh * c.ow * c.ih * c.iw == 0:
        return False
    if c.kh > MOST_FLOATS or c.kw > MOST_FLOATS or c.sh > PHASES or c.sw > PHASES or c.sh * c.sw > PHASES:
        return False
    states(&j, 0, c)
    j.lanes = VECTOR
    return forward_chunks(&j) and input_chunks(&j) and weight_chunks(&j)


cdef void cut_units(Job *j, Py_ssize_t units, double madds) noexcept nogil:
    j.units = units
    j.pieces = <Py_ssize_t>max(min(madds / MADDS_PER_ELEMENT / smallest_piece(), <double>min(units, MOST_PIECES)), 1.0)


# -- forward: the columns of a window are dealt to planes by their remainder of the stride, so that lanes read side by side

cdef Place place_of(const Job *j, Py_ssize_t unit) noexcept nogil:
    cdef Place p
    p.col = unit % j.col_chunks * j.cols
    unit //= j.col_chunks
    p.row = unit % j.row_chunks * j.rows
    unit //= j.row_chunks
    p.channel = unit % j.c.groups
    p.image = unit // j.c.groups
    return p


cdef void go_on(const Job *j, Place *p, Py_ssize_t rows, Py_ssize_t cols) noexcept nogil:
    """The next unit's place, rows and columns being those that the chunks divide: divisions would take as long as a small window."""
    p.col += j.cols
    if p.col < cols:
        return
    p.col = 0
    p.row += j.rows
    if p.row < rows:
        return
    p.row = 0
    p.channel += 1
    if p.channel == j.c.groups:
        p.channel = 0
        p.image += 1


cdef void forward_window(const Job *j, const Place *p, float *room) noexcept nogil:
    cdef const Conv *c = &j.c
    cdef Py_ssize_t pitch = parts_of(j.wide, c.sw), phase
    for phase in range(min(c.sw, j.wide)):
        (<om_frame_fn *>j.table.row[FRAME])(j.x + p.image * c.xn + p.channel * c.xc, c.xh, c.ih, c.iw, p.row * c.sh - c.pt, 1,
                                            p.col * c.sw - c.pl + phase, c.sw, j.high, pitch, room + phase * j.high * pitch, pitch)


cdef void forward_outputs(const Job *j, const Place *p, const float *room) noexcept nogil:
    cdef const Conv *c = &j.c
    cdef Py_ssize_t m, oc
    for m in range(j.many):
        oc = p.channel * j.many + m
        (<om_depthwise_fn *>j.table.row[OUTPUTS])(min(j.rows, c.oh - p.row), min(j.cols, c.ow - p.col), j.taps, j.at, j.w + oc * j.taps, room,
                                                  c.sh * parts_of(j.wide, c.sw), j.bias + oc if j.bias != NULL else NULL,
                                                  j.y + ((p.image * c.oc + oc) * c.oh + p.row) * c.ow + p.col, c.ow)


cdef void forward_piece(void *context, Py_ssize_t piece) noexcept nogil:
    cdef Job *j = <Job *>context
    cdef Py_ssize_t window = j.high * parts_of(j.wide, j.c.sw) * min(j.c.sw, j.wide), unit, last, end, i
    cdef Place place
    cdef Place at[BESIDE]
    cdef float *room = <float *>take((beside(window) * window + VECTOR) * sizeof(float))
    if room == NULL:
        j.failed = -1
        return
    unit, end = begin(j.units, j.pieces, piece), begin(j.units, j.pieces, piece + 1)
    place = place_of(j, unit)
    while unit < end:
        last = min(beside(window), end - unit)
        for i in range(last):
            at[i] = place
            go_on(j, &place, j.c.oh, j.c.ow)
            forward_window(j, &at[i], room + i * window)
        for i in range(last):
            forward_outputs(j, &at[i], room + i * window)
        unit += last
    give(room)


cdef int depthwise_forward(int mode, const Conv *c, const float *x, const float *w, const float *bias, float *y) noexcept nogil:
    cdef Job j
    cdef Py_ssize_t row, col, pitch, plane
    states(&j, mode, c)
    forward_chunks(&j)
    j.x, j.w, j.bias, j.y = x, w, bias, y
    j.at = <Py_ssize_t *>take(j.taps * sizeof(Py_ssize_t))
    if j.at == NULL:
        return -1
    pitch = parts_of(j.wide, c.sw)
    plane = j.high * pitch
    for row in range(c.kh):
        for col in range(c.kw):
            j.at[row * c.kw + col] = col * c.dw % c.sw * plane + row * c.dh * pitch + col * c.dw // c.sw
    cut_units(&j, c.n * c.groups * j.row_chunks * j.col_chunks, <double>c.n * c.oc * c.oh * c.ow * j.taps)
    run(forward_piece, &j, j.pieces)
    give(j.at)
    return j.failed


# -- the gradient of x: each phase of outputs has its own taps, and reads g at shifts

cdef void input_window(const Job *j, const Place *p, float *room) noexcept nogil:
    cdef const Conv *c = &j.c
    cdef Py_ssize_t m
    for m in range(j.many):
        (<om_frame_fn *>j.table.row[FRAME])(j.g + (p.image * c.oc + p.channel * j.many + m) * c.oh * c.ow, c.ow, c.oh, c.ow, p.row + j.low_row, 1,
                                            p.col + j.low_col, 1, j.high, j.wide, room + m * j.high * j.wide, j.wide)


cdef void input_outputs(const Job *j, const Place *p, const float *room, float *out, float *some) noexcept nogil:
    """out takes the columns of each phase where they lie apart in the result; some takes the weights of a phase's taps."""
    cdef const Conv *c = &j.c
    cdef Py_ssize_t apart = j.rows * j.cols, rows, cols, a, b, t, taps
    cdef const Py_ssize_t *first = j.first
    cdef const float *w = j.w + p.channel * j.many * j.taps
    cdef const float *bias = j.bias + p.channel if j.bias != NULL else NULL
    cdef float *y
    for a in range(min(c.sh, c.ih)):
        rows = min(j.rows, parts_of(c.ih - a, c.sh) - p.row)
        y = j.y + ((p.image * c.groups + p.channel) * c.ih + p.row * c.sh + a) * c.iw + p.col * c.sw
        for b in range(min(c.sw, c.iw)):
            cols = min(j.cols, parts_of(c.iw - b, c.sw) - p.col)
            first = j.first + a * c.sw + b
            taps = first[1] - first[0]
            if j.tap != NULL:
                for t in range(taps):
                    some[t] = w[j.tap[first[0] + t]]
            (<om_depthwise_fn *>j.table.row[OUTPUTS])(rows, cols, taps, j.at + first[0], some if j.tap != NULL else w, room, j.wide, bias,
                                                      out + b * apart if c.sw > 1 else y, j.cols if c.sw > 1 else c.sh * c.iw)
        if c.sw > 1:
            (<om_interleave_fn *>j.table.row[INTERLEAVE])(out, apart, j.cols, c.sw, rows, min(j.cols * c.sw, c.iw - p.col * c.sw), y, c.sh * c.iw)


cdef void input_piece(void *context, Py_ssize_t piece) noexcept nogil:
    cdef Job *j = <Job *>context
    cdef Py_ssize_t window = j.many * j.high * j.wide, windows = beside(window) * window + VECTOR, unit, last, end, i
    cdef Py_ssize_t outs = j.rows * j.cols * j.c.sw if j.c.sw > 1 else 0
    cdef Place place
    cdef Place at[BESIDE]
    cdef float *room = <float *>take((windows + outs + j.many * j.taps) * sizeof(float))
    if room == NULL:
        j.failed = -1
        return
    unit, end = begin(j.units, j.pieces, piece), begin(j.units, j.pieces, piece + 1)
    place = place_of(j, unit)
    while unit < end:
        last = min(beside(window), end - unit)
        for i in range(last):
            at[i] = place
            go_on(j, &place, parts_of(j.c.ih, j.c.sh), parts_of(j.c.iw, j.c.sw))
            input_window(j, &at[i], room + i * window)
        for i in range(last):
            input_outputs(j, &at[i], room + i * window, room + windows, room + windows + outs)
        unit += last
    give(room)


cdef int depthwise_input(int mode, const Conv *c, const float *g, const float *w, const float *bias, float *dx) noexcept nogil:
    cdef Job j
    cdef Py_ssize_t a, b, m, row, col, down, right, t = 0, all
    states(&j, mode, c)
    input_chunks(&j)
    j.g, j.w, j.bias, j.y = g, w, bias, dx
    all = j.many * j.taps
    j.at = <Py_ssize_t *>take((2 * all + c.sh * c.sw + 1) * sizeof(Py_ssize_t))
    if j.at == NULL:
        return -1
    j.tap = j.at + all
    j.first = j.tap + all
    for a in range(c.sh):
        for b in range(c.sw):
            j.first[a * c.sw + b] = t
            for m in range(j.many if a < c.ih and b < c.iw else 0):
                for row in range(c.kh):
                    down = a + c.pt - row * c.dh
                    for col in range(c.kw if down % c.sh == 0 else 0):
                        right = b + c.pl - col * c.dw
                        if right % c.sw == 0:
                            j.tap[t] = (m * c.kh + row) * c.kw + col
                            j.at[t] = (m * j.high + down // c.sh - j.low_row) * j.wide + right // c.sw - j.low_col
                            t += 1
    j.first[c.sh * c.sw] = t
    if c.sh == 1 and c.sw == 1:
        j.tap = NULL
    cut_units(&j, c.n * c.groups * j.row_chunks * j.col_chunks, <double>c.n * c.oc * c.oh * c.ow * j.taps)
    run(input_piece, &j, j.pieces)
    give(j.at)
    return j.failed


# -- the gradient of the weight: chains run over positions, so channels lie side by side, as many as there are lanes

cdef void weight_piece(void *context, Py_ssize_t piece) noexcept nogil:
    cdef Job *j = <Job *>context
    cdef const Conv *c = &j.c
    cdef Py_ssize_t lanes = j.lanes, block = j.taps * lanes, unit, r0, c0, rows, cols, high, wide, channel, image, n, m, t, l
    cdef const float *x
    cdef const float *g
    cdef const float *at[OM_DEPTHWISE_TAPS]
    cdef float *room = <float *>take(((j.high * j.wide + j.rows * j.cols) * lanes + 2 * j.many * block) * sizeof(float))
    cdef int flags
    if room == NULL:
        j.failed = -1
        return
    cdef float *gp = room + j.high * j.wide * lanes
    cdef float *chain = gp + j.rows * j.cols * lanes
    cdef float *sum = chain + j.many * block
    for unit in range(begin(j.units, j.pieces, piece), begin(j.units, j.pieces, piece + 1)):
        channel = unit * lanes
        n = min(lanes, c.groups - channel)
        for image in range(c.n):
            x = j.x + image * c.xn + channel * c.xc
            g = j.g + (image * c.oc + channel * j.many) * c.oh * c.ow
            r0 = 0
            while r0 < c.oh:
                rows = min(j.rows, c.oh - r0)
                high = (rows - 1) * c.sh + 1 + (c.kh - 1) * c.dh
                c0 = 0
                while c0 < c.ow:
                    cols = min(j.cols, c.ow - c0)
                    wide = (cols - 1) * c.sw + 1 + (c.kw - 1) * c.dw
                    flags = OM_WEIGHT_BEGIN if r0 == 0 and c0 == 0 else 0
                    if r0 + rows == c.oh and c0 + cols == c.ow:
                        flags |= OM_WEIGHT_END | (OM_WEIGHT_STORE if image == 0 else 0) | (OM_WEIGHT_FINAL if image == c.n - 1 else 0)
                    (<om_planes_fn *>j.table.row[PLANES])(x, c.xc, n, c.xh, c.ih, c.iw, r0 * c.sh - c.pt, c0 * c.sw - c.pl, high, wide, room)
                    for m in range(j.many):
                        if cols == c.ow:  # rows that follow each other are one
                            (<om_planes_fn *>j.table.row[PLANES])(g + (m * c.oh + r0) * c.ow, j.many * c.oh * c.ow, n, 0, 1, rows * cols, 0, 0, 1, rows * cols, gp)
                        else:
                            (<om_planes_fn *>j.table.row[PLANES])(g + (m * c.oh + r0) * c.ow + c0, j.many * c.oh * c.ow, n, c.ow, rows, cols, 0, 0, rows, cols, gp)
                        t = 0
                        while t < j.taps:
                            l = 0
                            while l < OM_DEPTHWISE_TAPS and t + l < j.taps:
                                at[l] = room + (((t + l) // c.kw * c.dh) * wide + (t + l) % c.kw * c.dw) * lanes
                                l += 1
                            (<om_depthwise_weight_fn *>j.table.row[WEIGHT])(l, at, rows, cols, c.sh * wide, c.sw, gp, chain + m * block + t * lanes,
                                                                            sum + m * block + t * lanes, flags)
                            t += l
                    c0 += cols
                r0 += rows
        for l in range(n):
            for m in range(j.many):
                for t in range(j.taps):
                    j.y[((channel + l) * j.many + m) * j.taps + t] = sum[m * block + t * lanes + l]
    give(room)


cdef int depthwise_weight(int mode, const Conv *c, const float *x, const float *g, float *dw) noexcept nogil:
    cdef Job j
    states(&j, mode, c)
    weight_chunks(&j)
    j.x, j.g, j.y = x, g, dw
    cut_units(&j, parts_of(c.groups, j.lanes), <double>c.n * c.oc * c.oh * c.ow * j.taps)
    run(weight_piece, &j, j.pieces)
    return j.failed


def _array_depthwise(str what, cnp.ndarray x, cnp.ndarray w, cnp.ndarray y, cnp.ndarray bias=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1), *,
                     int mode):
    """Writes y, dx into x or dw into w ("forward", "input", "weight") from the other two; x [n, c, ih, iw] with contiguous rows, contiguous for
    "input"; w [oc, 1, kh, kw], y [n, oc, oh, ow]."""
    cdef Conv c
    cdef int status, chosen = ["forward", "input", "weight"].index(what)
    c.n, c.ic, c.ih, c.iw = x.shape[0], x.shape[1], x.shape[2], x.shape[3]
    c.oc, c.oh, c.ow = y.shape[1], y.shape[2], y.shape[3]
    c.kh, c.kw = w.shape[2], w.shape[3]
    c.sh, c.sw = stride
    c.pt, c.pl = padding
    c.dh, c.dw = dilation
    c.groups = c.ic
    c.xn, c.xc, c.xh = cnp.PyArray_STRIDE(x, 0) // 4, cnp.PyArray_STRIDE(x, 1) // 4, cnp.PyArray_STRIDE(x, 2) // 4
    cdef float *px = <float *>cnp.PyArray_DATA(x)
    cdef float *pw = <float *>cnp.PyArray_DATA(w)
    cdef float *py = <float *>cnp.PyArray_DATA(y)
    cdef float *pb = <float *>cnp.PyArray_DATA(bias) if bias is not None else NULL
    if not depthwise_fits(&c):
        raise ValueError("_array_depthwise: this convolution is left to the general form")
    with nogil:
        if chosen == 0:
            status = depthwise_forward(mode, &c, px, pw, pb, py)
        elif chosen == 1:
            status = depthwise_input(mode, &c, py, pw, pb, px)
        else:
            status = depthwise_weight(mode, &c, px, py, pw)
    if status:
        raise MemoryError("_array_depthwise: no memory for scratch")
