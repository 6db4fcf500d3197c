"""Owns what a convolution's shape decides: where the taps of an output lie, how the work is cut into pieces, what scratch a piece takes.

Must not contain arithmetic on elements, and nothing here can change a bit: only because of that may it look at the number of threads.
"""

from onemodel._kernels.table cimport row_index, smallest_piece, thread_count

cdef Py_ssize_t VECTORS = row_index("conv_vectors", "conv_vectors")

cdef enum:
    MOST_TAPS = 4096            # of one channel, for which offsets are kept
    MOST_COLUMNS = 32           # of a product so narrow that its weights are read once: they stream by in long rows
    MANY_COLUMNS = 2048         # of a product that repays packing weights which could be read where they are
    PANEL_FLOATS = 65536        # of panels at a time
    COPY_FLOATS = 65536         # of the padded image at a time: it stays in L2
    STAGE_FLOATS = 65536        # of results that lie apart
    WIDEST = 256                # outputs of a row in one piece
    B_PANEL = 16384             # floats of a panel on the stack, where there is no copy
    MADDS_PER_ELEMENT = 16      # multiply-adds that take the time of one element of an element-wise kernel
    PIECES_PER_THREAD = 3


cdef inline Py_ssize_t floor_div(Py_ssize_t a, Py_ssize_t b) noexcept nogil:
    return a // b if a >= 0 else -((-a + b - 1) // b)


cdef Py_ssize_t greatest_divisor(Py_ssize_t a, Py_ssize_t b) noexcept nogil:
    cdef Py_ssize_t rest
    while b:
        rest = a % b
        a = b
        b = rest
    return a


cdef om_conv_taps taps_of(bint adjoint, Py_ssize_t k, Py_ssize_t stride, Py_ssize_t pad, Py_ssize_t dilation, Py_ssize_t phase) noexcept nogil:
    """The taps of one axis. Adjoint: those i whose distance to output stride*q + phase is a multiple of the stride; they read
    (phase + pad - i*dilation) / stride + q."""
    cdef om_conv_taps t
    cdef Py_ssize_t common, i
    t.first = 0
    if not adjoint:
        t.n = k
        t.step = 1
        t.at = -pad
        t.apart = dilation
        return t
    common = greatest_divisor(stride, dilation)
    t.step = stride // common
    t.apart = -(dilation // common)
    t.n = 0
    t.at = 0
    for i in range(min(k, t.step)):
        if (phase + pad - i * dilation) % stride == 0:
            t.first = i
            t.at = (phase + pad - i * dilation) // stride
            t.n = (k - i + t.step - 1) // t.step
            break
    return t


cdef void extent(bint adjoint, Py_ssize_t k, Py_ssize_t stride, Py_ssize_t pad, Py_ssize_t dilation, Py_ssize_t *low, Py_ssize_t *reach) noexcept nogil:
    """The least place of a tap relative to its output's place in the input, over all phases, and how far beyond it the others lie."""
    low[0] = -pad
    reach[0] = (k - 1) * dilation
    if adjoint:
        low[0] = floor_div(pad - (k - 1) * dilation, stride)
        reach[0] = floor_div(stride - 1 + pad, stride) - low[0]


cdef Py_ssize_t fitting_rows(const Job *j, Py_ssize_t outputs) noexcept nogil:
    """How many rows of so many outputs a copy has room for; sets its sizes for one row at least."""
    cdef double width = (<double>(outputs - 1) * j.view.sw + j.reach_t + j.view.sw) * j.block * j.fold
    cdef double rows = COPY_FLOATS / width - j.reach_q
    return <Py_ssize_t>((rows - 1) / j.view.sh) + 1 if rows >= 1 else 0


cdef Py_ssize_t most_taps(const Job *j, Py_ssize_t k, Py_ssize_t stride, Py_ssize_t dilation) noexcept nogil:
    """Taps of one axis that one phase has at most."""
    cdef Py_ssize_t step = stride // greatest_divisor(stride, dilation) if j.adjoint else 1
    return (k + step - 1) // step


cdef void direct_rows(Job *j) noexcept nogil:
    """Tiles of four rows, where they have as many accumulators as the tallest and the vectors of a plane fill them: they load the least."""
    cdef Py_ssize_t most = (<om_conv_vectors_fn *>j.table.row[VECTORS])(4), vectors = j.nq * (round_up(j.nt, j.g.lanes) // j.g.lanes)
    if (j.rows % 4 == 0 and 4 * most * j.g.lanes >= j.g.mr * j.g.nr
            and 24 * ((vectors + most - 1) // most * most) <= 25 * vectors):
        j.tiles = j.rows // 4
        j.mr = 4


cdef Py_ssize_t shared(Py_ssize_t chunks, Py_ssize_t each, Py_ssize_t most, Py_ssize_t threads) noexcept nogil:
    """So many chunks or a few more, that every thread gets the same number of the `each` times as many where they are few."""
    cdef Py_ssize_t more
    if chunks * each < PIECES_PER_THREAD * threads * 2:
        for more in range(chunks, min(most, chunks + threads - 1) + 1):
            if more * each % threads == 0:
                return more
    return chunks


cdef void plan(Job *j) noexcept nogil:
    """Everything that the shape decides."""
    cdef const Conv *c = j.c
    cdef Py_ssize_t taps = most_taps(j, c.kh, c.sh, c.dh) * most_taps(j, c.kw, c.sw, c.dw), lanes = j.g.lanes, k_block = K_BLOCK
    cdef Py_ssize_t blocks, rq, tc, outputs, columns, threads = thread_count(), phases = min(j.sh, j.oh) * min(j.sw, j.ow)
    cdef double least, work, item
    j.tiles = max((j.rows + j.g.mr - 1) // j.g.mr, 1)
    j.mr = (j.rows + j.tiles - 1) // j.tiles
    j.nq = (j.oh + j.sh - 1) // j.sh
    j.nt = (j.ow + j.sw - 1) // j.sw
    extent(j.adjoint, c.kh, c.sh, c.pt, c.dh, &j.low_q, &j.reach_q)
    extent(j.adjoint, c.kw, c.sw, c.pl, c.dw, &j.low_t, &j.reach_t)
    j.fold = 1
    j.apart = j.sh > 1 or j.sw > 1
    if (taps == 1 and c.kh == 1 and c.kw == 1 and not j.apart and j.view.sh == 1 and j.view.sw == 1 and j.low_q == 0 and j.low_t == 0
            and j.oh == j.view.h and j.ow == j.view.w and (j.view.xh == j.ow or j.oh == 1) and (j.oh * j.ow >= 4 * lanes or c.n == 1)):
        j.path = PLAIN
        j.nt = j.oh * j.ow      # a plane is one row
        j.nq = 1
        j.ow = j.nt
        j.oh = 1
    elif 6 * j.tiles * (round_up(j.nt, lanes) - j.nt) <= 4 * j.nt:
        j.path = DIRECT
        direct_rows(j)
    else:
        j.path = PANELS
        if j.nq * j.nt < 8 * j.g.nr:
            j.fold = min(c.n, (8 * j.g.nr + j.nq * j.nt - 1) // (j.nq * j.nt))
    columns = min(j.nq * j.nt, 1024) * min(c.n, 1024)
    # Weights are packed that are used often, that do not lie along k, or whose rows share a set of the first-level cache.
    j.pack = (j.adjoint or j.wr % 1024 == 0 or columns > MANY_COLUMNS) and j.channels > 0
    j.local = j.pack and columns <= 4 * MOST_COLUMNS
    if not j.pack and j.path == PANELS and columns <= MOST_COLUMNS:
        k_block = PANEL_FLOATS // round_up(columns, lanes)
    j.block = max(1, min(j.channels, k_block // taps))
    blocks = (j.channels + j.block - 1) // j.block
    if blocks > 1:
        j.block = (j.channels + blocks - 1) // blocks
    # Pieces: rows of outputs, parts of a row, rows of the product; each with enough work, and small enough for the caches.
    work = <double>j.rows * max(1, j.channels) * c.kh * c.kw
    least = work * j.nq * j.nt * c.n * c.groups
    if threads > 1:
        least = max(<double>smallest_piece() * MADDS_PER_ELEMENT, least / (PIECES_PER_THREAD * threads))
    outputs = <Py_ssize_t>max(1.0, min(least / (work * j.fold), <double>j.nq * j.nt))
    tc = min(j.nt, WIDEST)
    if j.nq == 1 and outputs < tc:
        tc = min(tc, max(outputs, 4 * j.g.nr))
    rq = max(1, outputs // tc)
    if j.path == DIRECT or j.path == PANELS:
        while j.fold > 1 and fitting_rows(j, tc) < min(rq, j.nq):
            j.fold = (j.fold + 1) // 2
        while j.block > 1 and j.block * taps > 128 and fitting_rows(j, tc) < min(rq, 4):
            j.block = (j.block + 1) // 2
        while j.block > 1 and fitting_rows(j, tc) < 1:
            j.block = (j.block + 1) // 2
        rq = min(rq, fitting_rows(j, tc))
        if rq < 1 or c.kh * c.kw > MOST_TAPS:
            j.path = GATHERED
            j.fold = 1
            j.block = j.channels
            j.local = False
            rq = max(1, outputs // tc)
    if j.path == PANELS or j.path == PLAIN:
        while rq > 1 and j.block * taps * (j.fold * rq * tc + j.g.nr) > PANEL_FLOATS:
            rq = (rq + 1) // 2
        while j.fold > 1 and j.block * taps * (j.fold * rq * tc + j.g.nr) > PANEL_FLOATS:
            j.fold = (j.fold + 1) // 2
        while tc > 4 * j.g.nr and j.block * taps * (j.fold * rq * tc + j.g.nr) > PANEL_FLOATS:
            tc = (tc + 1) // 2
    if j.fold > 1:
        j.apart = True
    j.chunks_t = (j.nt + tc - 1) // tc
    if threads > 1 and j.nq == 1:
        j.chunks_t = shared(j.chunks_t, (c.n + j.fold - 1) // j.fold * c.groups, max(j.nt // j.g.nr, 1), threads)
    if (j.path == PANELS or j.path == GATHERED) and j.chunks_t > 1:
        j.apart = True
    while j.apart and rq > 1 and j.rows * phases * j.fold * rq * tc > STAGE_FLOATS:
        rq = (rq + 1) // 2
    j.chunks_q = (j.nq + rq - 1) // rq
    if threads > 1:
        j.chunks_q = shared(j.chunks_q, (c.n + j.fold - 1) // j.fold * c.groups * j.chunks_t, j.nq, threads)
    tc = (j.nt + j.chunks_t - 1) // j.chunks_t
    rq = (j.nq + j.chunks_q - 1) // j.chunks_q
    item = work * j.fold * rq * tc
    j.items = (c.n + j.fold - 1) // j.fold * c.groups * j.chunks_q * j.chunks_t
    j.parts = 1
    if threads > 1 and j.items < PIECES_PER_THREAD * threads:
        j.parts = max(1, min((j.tiles + 1) // 2, <Py_ssize_t>(item / least)))
        j.parts = min(j.parts, (PIECES_PER_THREAD * threads + j.items - 1) // j.items)
    while j.apart and j.parts < j.tiles and (j.rows // j.parts + j.mr) * phases * j.fold * rq * tc > STAGE_FLOATS:
        j.parts += 1
    j.items *= j.parts
    j.together = <Py_ssize_t>max(1.0, min(<double>j.items, least / (item / j.parts)))
    j.pieces = (j.items + j.together - 1) // j.together
    room(j, rq, tc, taps, phases)


cdef void room(Job *j, Py_ssize_t rq, Py_ssize_t tc, Py_ssize_t taps, Py_ssize_t phases) noexcept nogil:
    """Scratch of a piece, in floats. Planes of a copy start in different sets of the first-level cache: an odd number of lines apart."""
    cdef Py_ssize_t lanes = j.g.lanes
    j.copy_floats = 0
    j.stage_floats = 0
    j.panel_floats = 0
    j.weight_floats = 0
    j.region.reach_rows = j.reach_q
    j.region.reach_cols = j.reach_t
    if j.path == DIRECT or j.path == PANELS:
        j.region.pitch = ((tc - 1) * j.view.sw + j.reach_t + j.view.sw) // j.view.sw
        j.region.plane = round_up(((rq - 1) * j.view.sh + j.reach_q + 1) * j.region.pitch * j.view.sw, 16)
        if j.region.plane % 32 == 0:
            j.region.plane += 16
        j.image = j.block * j.region.plane
        j.copy_floats = round_up(j.image * j.fold + 2 * lanes, 16)
    if j.apart:
        j.stage_floats = round_up(((j.tiles + j.parts - 1) // j.parts) * j.mr * phases * j.fold * rq * tc + lanes, 16)
    if j.path == PANELS or j.path == PLAIN:
        j.panel_floats = round_up(round_up(j.fold * rq * tc, lanes) * j.block * taps + lanes, 16)
    elif j.path == GATHERED:
        j.panel_floats = B_PANEL
    if j.local:
        j.weight_floats = max(A_BLOCK, j.mr * j.block * taps)
