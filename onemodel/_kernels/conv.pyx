"""Owns the blocking and threads of convolutions over the tiles of conv.h and gemm.h; docs/ops-conv.md tells the whole story.

Must not contain arithmetic: every output is one chain over (channel, kernel row, kernel column) inside the tiles, so no choice made here can
change a bit.
"""

import numpy as np

cimport numpy as cnp
from libc.stdint cimport uintptr_t

from onemodel._kernels.pieces cimport begin, run
from onemodel._kernels.table cimport current_mode, om_fn, om_gemm, row_index, smallest_piece, table_of
from onemodel._pool.pool cimport give, take

cnp.import_array()

cdef extern from "kernels.h" nogil:
    enum:
        OM_GEMM_FIRST
        OM_GEMM_LAST
        OM_GEMM_BIAS_ROWS
        OM_CONV_VECTORS
    ctypedef struct om_conv_taps:
        Py_ssize_t n
        Py_ssize_t first
        Py_ssize_t step
        Py_ssize_t at
        Py_ssize_t apart
    ctypedef struct om_conv_view:
        const float *x
        Py_ssize_t xc
        Py_ssize_t xh
        Py_ssize_t h
        Py_ssize_t w
        Py_ssize_t sh
        Py_ssize_t sw
        Py_ssize_t outputs
        om_conv_taps rows
        om_conv_taps cols
    ctypedef struct om_conv_region:
        Py_ssize_t row
        Py_ssize_t col
        Py_ssize_t rows
        Py_ssize_t cols
        Py_ssize_t reach_rows
        Py_ssize_t reach_cols
        Py_ssize_t pitch
        Py_ssize_t plane
    ctypedef struct om_conv_columns:
        const float *b[OM_CONV_VECTORS]
        Py_ssize_t c[OM_CONV_VECTORS]
        Py_ssize_t n[OM_CONV_VECTORS]
    ctypedef void om_conv_tile_fn(Py_ssize_t m, Py_ssize_t k, const float *a, Py_ssize_t rsa, Py_ssize_t csa, const om_conv_columns *columns,
                                  const Py_ssize_t *offset, float *c, Py_ssize_t rsc, const float *bias, int flags) noexcept nogil
    ctypedef Py_ssize_t om_conv_vectors_fn(Py_ssize_t m) noexcept nogil
    ctypedef void om_conv_copy_fn(const om_conv_view *v, const om_conv_region *r, Py_ssize_t channels, float *dst) noexcept nogil
    ctypedef void om_conv_panel_fn(const float *src, const Py_ssize_t *offset, Py_ssize_t k, Py_ssize_t moves, const Py_ssize_t *from_,
                                   const Py_ssize_t *to, Py_ssize_t ld, float *dst) noexcept nogil
    ctypedef void om_conv_gather_fn(const om_conv_view *v, Py_ssize_t p, Py_ssize_t n, Py_ssize_t k0, Py_ssize_t k, float *dst) noexcept nogil
    ctypedef void om_conv_weights_fn(const om_conv_view *v, const float *w, Py_ssize_t wr, Py_ssize_t wc, Py_ssize_t kw, Py_ssize_t channels,
                                     Py_ssize_t rows, Py_ssize_t ld, float *dst) noexcept nogil
    ctypedef void om_conv_spread_fn(const float *src, Py_ssize_t ld, Py_ssize_t rows, Py_ssize_t n, Py_ssize_t outputs, float *y,
                                    Py_ssize_t yc, Py_ssize_t yh, Py_ssize_t yw) noexcept nogil

cdef Py_ssize_t TILE = row_index("conv_tile", "conv_tile")
cdef Py_ssize_t VECTORS = row_index("conv_vectors", "conv_vectors")
cdef Py_ssize_t COPY = row_index("conv_copy", "conv_copy")
cdef Py_ssize_t PANEL = row_index("conv_panel", "conv_panel")
cdef Py_ssize_t GATHER = row_index("conv_gather", "conv_gather")
cdef Py_ssize_t WEIGHTS = row_index("conv_weights", "conv_weights")
cdef Py_ssize_t SPREAD = row_index("conv_spread", "conv_spread")

cdef enum:
    K_BLOCK = 384               # steps of one pass: what a tile reads of the image, or a panel, stays in L1 beside its weights
    MOST_TAPS = 4096            # of one channel, for which offsets are kept
    A_BLOCK = 32768             # floats of weights that meet all columns of a piece before the next do: they stay in L2
    COPY_FLOATS = 65536         # of the padded image at a time: it stays in L2
    STAGE_FLOATS = 65536        # of results that lie apart
    WIDEST = 256                # outputs of a row in one piece
    B_PANEL = 16384             # floats of a panel on the stack, where there is no copy
    C_PANEL = 8192              # floats of their results where these lie apart
    MOST_MOVES = 128            # vectors of a panel's row: columns of the widest tile, one at a time at worst
    MADDS_PER_ELEMENT = 16      # multiply-adds that take the time of one element of an element-wise kernel
    MOST_PIECES = 64

# How a tile finds its columns.
cdef enum Path:
    DIRECT      # in a padded copy of a part of the image
    PANELS      # in panels packed from such a copy: rows of outputs too short for vectors
    PLAIN       # 1x1: in panels packed from x, whose planes are the rows of the matrix
    GATHERED    # in panels collected from x tap by tap: kernels and dilations so large that a copy would not stay in a cache

# A convolution seen from its outputs, forward or adjoint. A strided adjoint falls into sh*sw phases, each a convolution of its own with the
# taps that exist there, whose outputs lie sh and sw apart; forward there is one phase. q, t: row and column within a phase.
cdef struct Job:
    const om_fn *row
    const om_gemm *g
    const Conv *c
    bint adjoint
    const float *x              # images that are read
    Py_ssize_t xn
    Py_ssize_t channels         # of one group, read and written
    Py_ssize_t rows
    const float *w              # w[group*wg + row*wr + channel*wc + kernel row*kw + kernel column]
    Py_ssize_t wg
    Py_ssize_t wr
    Py_ssize_t wc
    const float *bias
    float *y
    Py_ssize_t oh
    Py_ssize_t ow
    Py_ssize_t sh               # between the outputs of one phase
    Py_ssize_t sw
    om_conv_view view           # common to all phases
    # the plan
    int path
    bint apart                  # results are collected and then spread
    Py_ssize_t tiles            # of rows, whose sizes differ by one at most
    Py_ssize_t mr               # rows of the first, the largest
    float *packed               # weights by (group, phase, tile, step), or NULL: read where they are
    Py_ssize_t nq               # outputs of phase 0
    Py_ssize_t nt
    Py_ssize_t low_q            # least place of a tap relative to an output's, and its reach
    Py_ssize_t low_t
    Py_ssize_t reach_q
    Py_ssize_t reach_t
    Py_ssize_t block            # channels of a pass
    Py_ssize_t fold             # images whose outputs share columns
    Py_ssize_t chunks_q         # pieces of a plane of outputs
    Py_ssize_t chunks_t
    Py_ssize_t parts            # pieces of the rows
    Py_ssize_t items            # fold of images x group x chunks x parts
    Py_ssize_t together         # items in a piece
    Py_ssize_t pieces
    Py_ssize_t image            # floats of one image in the copy
    Py_ssize_t copy_floats
    Py_ssize_t stage_floats
    Py_ssize_t panel_floats
    om_conv_region region
    bint failed

# One part of the work: some rows and outputs of one group.
cdef struct Item:
    const float *x
    const float *a
    const float *bias
    float *y
    Py_ssize_t images
    Py_ssize_t q0
    Py_ssize_t q1
    Py_ssize_t t0
    Py_ssize_t t1
    Py_ssize_t tile0
    Py_ssize_t tile1
    float *copy
    float *stage
    float *panel
    Py_ssize_t *offset

# A phase of an item, at some channels: its view, its outputs, and where the results go.
cdef struct Pass:
    om_conv_view v
    const float *a              # weights of the phase
    Py_ssize_t k                # steps of the whole chain
    Py_ssize_t k0
    Py_ssize_t kk
    int flags
    Py_ssize_t nq
    Py_ssize_t nt
    float *c                    # of row 0 of the group
    Py_ssize_t rsc
    Py_ssize_t c_image          # between images, and rows of outputs
    Py_ssize_t c_row


cdef inline Py_ssize_t round_up(Py_ssize_t x, Py_ssize_t to) noexcept nogil:
    return (x + to - 1) // to * to


cdef inline Py_ssize_t floor_div(Py_ssize_t a, Py_ssize_t b) noexcept nogil:
    return a // b if a >= 0 else -((-a + b - 1) // b)


cdef inline float *aligned(float *p) noexcept nogil:
    return <float *>((<uintptr_t>p + 63) & ~<uintptr_t>63)


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


cdef void tiles_of_columns(const Job *j, const Item *u, const Pass *s, Py_ssize_t t0, Py_ssize_t t1, Py_ssize_t n, const float *b, Py_ssize_t ld,
                           const om_conv_columns *columns, float *c) noexcept nogil:
    """Row tiles t0 to t1 meet some columns: the n of panel b, or `columns`."""
    cdef Py_ssize_t small = j.rows // j.tiles, larger = j.rows % j.tiles, t, m, i = begin(j.rows, j.tiles, t0), rsa, csa
    cdef const float *a
    cdef const float *bias
    for t in range(t0, t1):
        m = small + 1 if t < larger else small
        bias = u.bias + i if u.bias != NULL else NULL
        if j.packed != NULL:
            a = s.a + i * s.k + s.k0 * m
            rsa = 1
            csa = m
        else:
            a = s.a + i * j.wr + s.k0
            rsa = j.wr
            csa = 1
        if columns == NULL:
            j.g.tile(m, n, s.kk, a, rsa, csa, b, ld, c + i * s.rsc, s.rsc, bias, s.flags)
        else:
            (<om_conv_tile_fn *>j.row[TILE])(m, s.kk, a, rsa, csa, columns, u.offset, c + i * s.rsc, s.rsc, bias, s.flags)
        i += m


cdef void direct_pass(const Job *j, const Item *u, const Pass *s, Py_ssize_t t0, Py_ssize_t t1) noexcept nogil:
    """Vectors along rows of outputs read the copy themselves."""
    cdef om_conv_columns columns
    cdef Py_ssize_t most = (<om_conv_vectors_fn *>j.row[VECTORS])(j.mr), lanes = j.g.lanes, v = 0, image, q, t, i
    cdef const float *from_
    for image in range(u.images):
        for q in range(s.nq):
            from_ = u.copy + image * j.image + q * s.v.sh * j.region.pitch * s.v.sw
            t = 0
            while t < s.nt:
                columns.b[v] = from_ + t
                columns.c[v] = image * s.c_image + q * s.c_row + t
                columns.n[v] = min(lanes, s.nt - t)
                v += 1
                t += lanes
                if v == most or (t >= s.nt and q == s.nq - 1 and image == u.images - 1):
                    for i in range(v, OM_CONV_VECTORS):
                        columns.b[i] = columns.b[0]
                        columns.n[i] = 0
                    tiles_of_columns(j, u, s, t0, t1, 0, NULL, 0, &columns, s.c)
                    v = 0


cdef void panel_pass(const Job *j, const Item *u, const Pass *s, Py_ssize_t t0, Py_ssize_t t1) noexcept nogil:
    """Panels of columns that run over rows and images; the results of an item are contiguous."""
    cdef Py_ssize_t from_[MOST_MOVES]
    cdef Py_ssize_t to[MOST_MOVES]
    cdef Py_ssize_t moves, all = u.images * s.nq * s.nt, p = 0, image = 0, q = 0, t = 0, n, at, take_, ld
    while p < all:
        n = j.g.width(j.mr, all - p)
        ld = round_up(n, j.g.lanes)
        moves = 0
        at = 0
        while at < n:
            take_ = min(min(j.g.lanes, s.nt - t), n - at)
            from_[moves] = image * j.image + q * s.v.sh * j.region.pitch * s.v.sw + t
            to[moves] = at
            moves += 1
            at += take_
            t += take_
            if t == s.nt:
                t = 0
                q += 1
                if q == s.nq:
                    q = 0
                    image += 1
        if s.kk > 0:
            (<om_conv_panel_fn *>j.row[PANEL])(u.copy, u.offset, s.kk, moves, from_, to, ld, u.panel)
        tiles_of_columns(j, u, s, t0, t1, n, u.panel, ld, NULL, s.c + p)
        p += n


cdef void plain_pass(const Job *j, const Item *u, const Pass *s, Py_ssize_t t0, Py_ssize_t t1) noexcept nogil:
    """Columns are places of the planes of x."""
    cdef Py_ssize_t p = 0, n
    while p < s.nt:
        n = j.g.width(j.mr, s.nt - p)
        if s.kk > 0:
            j.g.pack(u.x + s.k0 * s.v.xc + u.t0 + p, s.v.xc, 1, s.kk, n, n, u.panel)
        tiles_of_columns(j, u, s, t0, t1, n, u.panel, round_up(n, j.g.lanes), NULL, s.c + p)
        p += n


cdef void gathered_pass(const Job *j, const Item *u, Pass *s, Py_ssize_t t0, Py_ssize_t t1) noexcept nogil:
    """Each panel meets all steps before the next."""
    cdef Py_ssize_t p = 0, all = s.nq * s.nt, n, ld
    cdef om_conv_view v = s.v
    v.x = u.x
    v.outputs = s.nt
    v.rows.at += u.q0 * v.sh
    v.cols.at += u.t0 * v.sw
    while p < all:
        n = j.g.width(j.mr, all - p)
        ld = round_up(n, j.g.lanes)
        s.k0 = 0
        while True:
            s.kk = min(min(K_BLOCK, j.panel_floats // ld), s.k - s.k0)
            s.flags = (OM_GEMM_FIRST if s.k0 == 0 else 0) | (OM_GEMM_LAST if s.k0 + s.kk >= s.k else 0) | OM_GEMM_BIAS_ROWS
            if s.kk > 0:
                (<om_conv_gather_fn *>j.row[GATHER])(&v, p, n, s.k0, s.kk, u.panel)
            tiles_of_columns(j, u, s, t0, t1, n, u.panel, ld, NULL, s.c + p)
            s.k0 += s.kk
            if s.k0 >= s.k:
                break
        p += n


cdef void offsets(const Job *j, const Pass *s, Py_ssize_t channels, Py_ssize_t *offset) noexcept nogil:
    """Where each step of a pass reads, from an output's place in the copy."""
    cdef const om_conv_taps *rows = &s.v.rows
    cdef const om_conv_taps *cols = &s.v.cols
    cdef Py_ssize_t channel, i, k, row, col, pitch = j.region.pitch, sw = s.v.sw
    for channel in range(channels):
        for i in range(rows.n):
            row = channel * j.region.plane + (rows.at + i * rows.apart - j.low_q) * pitch * sw
            for k in range(cols.n):
                col = cols.at + k * cols.apart - j.low_t
                offset[0] = row + (col if sw == 1 else col % sw * pitch + col // sw)
                offset += 1


cdef void run_pass(const Job *j, const Item *u, Pass *s) noexcept nogil:
    """Some row tiles after the other, so that their weights stay near."""
    cdef Py_ssize_t t = u.tile0, step = max(1, A_BLOCK // max(1, s.kk * j.mr))
    while t < u.tile1:
        if j.path == DIRECT:
            direct_pass(j, u, s, t, min(t + step, u.tile1))
        elif j.path == PANELS:
            panel_pass(j, u, s, t, min(t + step, u.tile1))
        elif j.path == PLAIN:
            plain_pass(j, u, s, t, min(t + step, u.tile1))
        else:
            gathered_pass(j, u, s, t, min(t + step, u.tile1))
        t += step


cdef void run_item(const Job *j, Item *u) noexcept nogil:
    cdef const Conv *c = j.c
    cdef Pass s
    cdef om_conv_region r = j.region
    cdef Py_ssize_t c0 = 0, channels, row, col, image, count, plane = j.oh * j.ow
    cdef Py_ssize_t row0 = begin(j.rows, j.tiles, u.tile0), rows = begin(j.rows, j.tiles, u.tile1) - row0
    cdef const float *a
    cdef float *stage
    cdef float *y
    s.v = j.view
    r.row = u.q0 * s.v.sh + j.low_q
    r.col = u.t0 * s.v.sw + j.low_t
    r.rows = (u.q1 - u.q0 - 1) * s.v.sh + j.reach_q + 1
    r.cols = (u.t1 - u.t0 - 1) * s.v.sw + j.reach_t + 1
    while True:
        channels = min(j.block, j.channels - c0)
        if j.path == DIRECT or j.path == PANELS:
            for image in range(u.images):
                s.v.x = u.x + image * j.xn + c0 * s.v.xc
                (<om_conv_copy_fn *>j.row[COPY])(&s.v, &r, channels, u.copy + image * j.image)
        a = u.a
        stage = u.stage
        for row in range(min(j.sh, j.oh)):
            s.v.rows = taps_of(j.adjoint, c.kh, c.sh, c.pt, c.dh, row)
            s.nq = min(u.q1, (j.oh - row + j.sh - 1) // j.sh) - u.q0
            for col in range(min(j.sw, j.ow)):
                s.v.cols = taps_of(j.adjoint, c.kw, c.sw, c.pl, c.dw, col)
                s.nt = min(u.t1, (j.ow - col + j.sw - 1) // j.sw) - u.t0
                s.k = j.channels * s.v.rows.n * s.v.cols.n
                s.k0 = c0 * s.v.rows.n * s.v.cols.n
                s.kk = channels * s.v.rows.n * s.v.cols.n
                s.a = a
                if j.packed != NULL:
                    a += j.rows * s.k
                if s.nq <= 0 or s.nt <= 0:
                    continue
                s.flags = (OM_GEMM_FIRST if s.k0 == 0 else 0) | (OM_GEMM_LAST if s.k0 + s.kk >= s.k else 0) | OM_GEMM_BIAS_ROWS
                count = s.nq * s.nt
                y = u.y + (u.q0 * j.sh + row) * j.ow + u.t0 * j.sw + col
                if j.apart:
                    s.rsc = u.images * count
                    s.c = stage - row0 * s.rsc
                    s.c_image = count
                    s.c_row = s.nt
                    stage += rows * s.rsc
                else:
                    s.rsc = plane
                    s.c = y
                    s.c_image = j.c.groups * j.rows * plane
                    s.c_row = j.ow
                if s.k > 0 or c0 == 0:
                    if j.path == DIRECT or j.path == PANELS:
                        offsets(j, &s, channels, u.offset)
                    run_pass(j, u, &s)
                if j.apart and c0 + channels >= j.channels:
                    for image in range(u.images):
                        (<om_conv_spread_fn *>j.row[SPREAD])(s.c + row0 * s.rsc + image * count, s.rsc, rows, count, s.nt,
                                                             y + image * c.groups * j.rows * plane + row0 * plane, plane, j.ow * j.sh, j.sw)
        c0 += channels
        if c0 >= j.channels:
            break


cdef void run_piece(void *context, Py_ssize_t piece) noexcept nogil:
    cdef Job *j = <Job *>context
    cdef Item u
    cdef Py_ssize_t item, rest, group, image, plane = j.oh * j.ow, taps = j.c.kh * j.c.kw
    cdef size_t floats = <size_t>(j.copy_floats + j.stage_floats + j.panel_floats)
    cdef size_t table_bytes = <size_t>(j.block * taps) * sizeof(Py_ssize_t) if j.path == DIRECT or j.path == PANELS else 0
    cdef float *room = <float *>take(floats * sizeof(float) + table_bytes)
    if room == NULL:
        j.failed = True
        return
    u.offset = <Py_ssize_t *>room
    u.copy = room + table_bytes // sizeof(float)
    u.stage = u.copy + j.copy_floats
    u.panel = u.stage + j.stage_floats
    for item in range(piece * j.together, min((piece + 1) * j.together, j.items)):
        rest = item
        u.tile0 = begin(j.tiles, j.parts, rest % j.parts)
        u.tile1 = begin(j.tiles, j.parts, rest % j.parts + 1)
        rest //= j.parts
        u.t0 = begin(j.nt, j.chunks_t, rest % j.chunks_t)
        u.t1 = begin(j.nt, j.chunks_t, rest % j.chunks_t + 1)
        rest //= j.chunks_t
        u.q0 = begin(j.nq, j.chunks_q, rest % j.chunks_q)
        u.q1 = begin(j.nq, j.chunks_q, rest % j.chunks_q + 1)
        rest //= j.chunks_q
        group = rest % j.c.groups
        image = rest // j.c.groups * j.fold
        u.images = min(j.fold, j.c.n - image)
        u.x = j.x + image * j.xn + group * j.channels * j.view.xc
        u.a = j.packed + group * j.rows * j.channels * taps if j.packed != NULL else j.w + group * j.wg
        u.bias = j.bias + group * j.rows if j.bias != NULL else NULL
        u.y = j.y + (image * j.c.groups + group) * j.rows * plane
        run_item(j, &u)
    give(room)


cdef void pack_tiles(void *context, Py_ssize_t piece) noexcept nogil:
    """The weights of one row tile of one group, all phases."""
    cdef const Job *j = <const Job *>context
    cdef const Conv *c = j.c
    cdef Py_ssize_t group = piece // j.tiles, t = piece % j.tiles, i = begin(j.rows, j.tiles, t), m = begin(j.rows, j.tiles, t + 1) - i, row, col, k
    cdef om_conv_view v
    cdef float *to = j.packed + group * j.rows * j.channels * c.kh * c.kw
    for row in range(min(j.sh, j.oh)):
        v.rows = taps_of(j.adjoint, c.kh, c.sh, c.pt, c.dh, row)
        for col in range(min(j.sw, j.ow)):
            v.cols = taps_of(j.adjoint, c.kw, c.sw, c.pl, c.dw, col)
            k = j.channels * v.rows.n * v.cols.n
            (<om_conv_weights_fn *>j.row[WEIGHTS])(&v, j.w + group * j.wg + i * j.wr, j.wr, j.wc, c.kw, j.channels, m, m, to + i * k)
            to += j.rows * k


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


cdef void plan(Job *j) noexcept nogil:
    """Everything that the shape decides."""
    cdef const Conv *c = j.c
    cdef Py_ssize_t taps = c.kh * c.kw, lanes = j.g.lanes, blocks, rq, tc, outputs, phases = min(j.sh, j.oh) * min(j.sw, j.ow)
    cdef double least, work, item
    j.tiles = max((j.rows + j.g.mr - 1) // j.g.mr, 1)
    j.mr = (j.rows + j.tiles - 1) // j.tiles
    j.nq = (j.oh + j.sh - 1) // j.sh
    j.nt = (j.ow + j.sw - 1) // j.sw
    extent(j.adjoint, c.kh, c.sh, c.pt, c.dh, &j.low_q, &j.reach_q)
    extent(j.adjoint, c.kw, c.sw, c.pl, c.dw, &j.low_t, &j.reach_t)
    j.fold = 1
    j.apart = j.sh > 1 or j.sw > 1
    j.block = max(1, min(j.channels, K_BLOCK * phases // taps))
    blocks = (j.channels + j.block - 1) // j.block
    if blocks > 1:
        j.block = (j.channels + blocks - 1) // blocks
    if (taps == 1 and not j.apart and j.view.sh == 1 and j.view.sw == 1 and j.low_q == 0 and j.low_t == 0 and j.oh == j.view.h and j.ow == j.view.w
            and (j.view.xh == j.ow or j.oh == 1) and (j.oh * j.ow >= 4 * lanes or c.n == 1)):
        j.path = PLAIN
        j.nt = j.oh * j.ow      # a plane is one row
        j.nq = 1
        j.ow = j.nt
        j.oh = 1
    elif 6 * j.tiles * (round_up(j.nt, lanes) - j.nt) <= 4 * j.nt:
        j.path = DIRECT
    else:
        j.path = PANELS
        if j.nq * j.nt < 4 * j.g.nr:
            j.fold = min(c.n, (4 * j.g.nr + j.nq * j.nt - 1) // (j.nq * j.nt))
    # Pieces: rows of outputs, parts of a row, rows of the product; each with enough work, and small enough for the caches.
    work = <double>j.rows * max(1, j.channels) * taps
    least = max(<double>smallest_piece() * MADDS_PER_ELEMENT, work * j.nq * j.nt * c.n * c.groups / MOST_PIECES)
    outputs = <Py_ssize_t>min(least / (work * j.fold), <double>j.nq * j.nt)
    tc = min(j.nt, WIDEST)
    if j.nq == 1 and outputs < tc:
        tc = min(tc, max(outputs, 4 * j.g.nr))
    rq = max(1, outputs // tc)
    if j.path == DIRECT or j.path == PANELS:
        while j.fold > 1 and fitting_rows(j, tc) < min(rq, j.nq):
            j.fold = (j.fold + 1) // 2
        while j.block > 1 and j.block * taps > 128 * phases and fitting_rows(j, tc) < min(rq, 4):
            j.block = (j.block + 1) // 2
        while j.block > 1 and fitting_rows(j, tc) < 1:
            j.block = (j.block + 1) // 2
        rq = min(rq, fitting_rows(j, tc))
        if rq < 1 or taps > MOST_TAPS:
            j.path = GATHERED
            j.fold = 1
            j.block = j.channels
            rq = max(1, outputs // tc)
    if j.fold > 1:
        j.apart = True
    j.chunks_t = (j.nt + tc - 1) // tc
    if (j.path == PANELS or j.path == GATHERED) and j.chunks_t > 1:
        j.apart = True
    while j.apart and rq > 1 and j.rows * phases * j.fold * rq * tc > STAGE_FLOATS:
        rq = (rq + 1) // 2
    j.chunks_q = (j.nq + rq - 1) // rq
    tc = (j.nt + j.chunks_t - 1) // j.chunks_t
    rq = (j.nq + j.chunks_q - 1) // j.chunks_q
    item = work * j.fold * rq * tc
    j.items = (c.n + j.fold - 1) // j.fold * c.groups * j.chunks_q * j.chunks_t
    j.parts = 1
    if j.items < 16:
        j.parts = max(1, min(j.tiles // 2, <Py_ssize_t>(item / least)))
        j.parts = min(j.parts, 16 // j.items)
    while j.apart and j.parts < j.tiles and (j.rows // j.parts + j.mr) * phases * j.fold * rq * tc > STAGE_FLOATS:
        j.parts += 1
    j.items *= j.parts
    j.together = max(1, min(j.items, <Py_ssize_t>(least / (item / j.parts))))
    j.pieces = (j.items + j.together - 1) // j.together
    # Room of a piece. Planes of a copy start in different sets of the first-level cache: an odd number of lines apart.
    j.copy_floats = 0
    j.panel_floats = round_up(128, lanes) + lanes
    if j.path == DIRECT or j.path == PANELS:
        j.region.pitch = ((tc - 1) * j.view.sw + j.reach_t + j.view.sw) // j.view.sw
        j.region.plane = round_up(((rq - 1) * j.view.sh + j.reach_q + 1) * j.region.pitch * j.view.sw, 16)
        if j.region.plane % 32 == 0:
            j.region.plane += 16
        j.image = j.block * j.region.plane
        j.copy_floats = round_up(j.image * j.fold + 2 * lanes, 16)
    j.region.reach_rows = j.reach_q
    j.region.reach_cols = j.reach_t
    j.stage_floats = 0
    if j.apart:
        j.stage_floats = round_up(((j.tiles + j.parts - 1) // j.parts) * j.mr * phases * j.fold * rq * tc + lanes, 16)
    if j.path == PANELS or j.path == PLAIN:
        j.panel_floats = round_up(j.g.width(j.mr, 1024), lanes) * j.block * taps + lanes
    elif j.path == GATHERED:
        j.panel_floats = B_PANEL


cdef int execute(Job *j) noexcept nogil:
    cdef const Conv *c = j.c
    if c.n == 0 or j.rows == 0 or j.oh == 0 or j.ow == 0:
        return 0
    plan(j)
    j.packed = NULL
    j.failed = False
    if (j.adjoint or j.wr % 1024 == 0) and j.channels > 0:
        j.packed = <float *>take(<size_t>(j.rows * j.channels * c.kh * c.kw * c.groups) * sizeof(float))
        if j.packed == NULL:
            return -1
        run(pack_tiles, j, c.groups * j.tiles)
    run(run_piece, j, j.pieces)
    if j.packed != NULL:
        give(j.packed)
    return -1 if j.failed else 0


cdef int conv_forward(int mode, const Conv *c, const float *x, const float *w, const float *bias, float *y) noexcept nogil:
    cdef Job j
    j.row = table_of(mode).row
    j.g = &table_of(mode).gemm
    j.c = c
    j.adjoint = False
    j.x = x
    j.xn = c.xn
    j.channels = c.ic // c.groups
    j.rows = c.oc // c.groups
    j.w = w
    j.wc = c.kh * c.kw
    j.wr = j.channels * j.wc
    j.wg = j.rows * j.wr
    j.bias = bias
    j.y = y
    j.oh = c.oh
    j.ow = c.ow
    j.sh = 1
    j.sw = 1
    j.view.xc = c.xc
    j.view.xh = c.xh
    j.view.h = c.ih
    j.view.w = c.iw
    j.view.sh = c.sh
    j.view.sw = c.sw
    return execute(&j)


cdef int conv_input(int mode, const Conv *c, const float *g, const float *w, const float *bias, float *dx) noexcept nogil:
    cdef Job j
    j.row = table_of(mode).row
    j.g = &table_of(mode).gemm
    j.c = c
    j.adjoint = True
    j.x = g
    j.xn = c.oc * c.oh * c.ow
    j.channels = c.oc // c.groups
    j.rows = c.ic // c.groups
    j.w = w
    j.wr = c.kh * c.kw
    j.wc = j.rows * j.wr
    j.wg = j.channels * j.wc
    j.bias = bias
    j.y = dx
    j.oh = c.ih
    j.ow = c.iw
    j.sh = c.sh
    j.sw = c.sw
    j.view.xc = c.oh * c.ow
    j.view.xh = c.ow
    j.view.h = c.oh
    j.view.w = c.ow
    j.view.sh = 1
    j.view.sw = 1
    return execute(&j)


cdef int geometry(Conv *c, shape_x, shape_y, shape_w, Py_ssize_t groups, stride, padding, dilation) except -1:
    c.n, c.ic, c.ih, c.iw = shape_x
    _, c.oc, c.oh, c.ow = shape_y
    c.kh, c.kw = shape_w[2:]
    c.groups = groups
    c.sh, c.sw = stride
    c.pt, c.pl = padding
    c.dh, c.dw = dilation
    c.xh = c.iw
    c.xc = c.ih * c.iw
    c.xn = c.ic * c.xc
    return 0


def forward_arrays(cnp.ndarray x, cnp.ndarray w, cnp.ndarray bias=None, *, size, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1,
                   mode=None, cnp.ndarray out=None):
    """x [n, ic, ih, iw] with contiguous rows, w and bias contiguous, all float32; `size` is that of the result's planes, `padding` that above
    and left. For tests and timings of the kernels alone: little is checked."""
    cdef Conv c
    cdef int status, chosen = current_mode() if mode is None else mode
    if out is None:
        out = np.empty((x.shape[0], w.shape[0], *size), np.float32)
    geometry(&c, (<object>x).shape, (<object>out).shape, (<object>w).shape, groups, stride, padding, dilation)
    c.xn = cnp.PyArray_STRIDE(x, 0) // 4
    c.xc = cnp.PyArray_STRIDE(x, 1) // 4
    c.xh = cnp.PyArray_STRIDE(x, 2) // 4
    with nogil:
        status = conv_forward(chosen, &c, <float *>cnp.PyArray_DATA(x), <float *>cnp.PyArray_DATA(w),
                              <float *>cnp.PyArray_DATA(bias) if bias is not None else NULL, <float *>cnp.PyArray_DATA(out))
    if status:
        raise MemoryError("forward_arrays: no memory for scratch")
    return out


def input_arrays(cnp.ndarray g, cnp.ndarray w, cnp.ndarray bias=None, *, size, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1, mode=None,
                 cnp.ndarray out=None):
    """The adjoint of forward_arrays, from g [n, oc, oh, ow] to planes of `size`; everything is contiguous."""
    cdef Conv c
    cdef int status, chosen = current_mode() if mode is None else mode
    if out is None:
        out = np.empty((g.shape[0], w.shape[1] * groups, *size), np.float32)
    geometry(&c, (<object>out).shape, (<object>g).shape, (<object>w).shape, groups, stride, padding, dilation)
    with nogil:
        status = conv_input(chosen, &c, <float *>cnp.PyArray_DATA(g), <float *>cnp.PyArray_DATA(w),
                            <float *>cnp.PyArray_DATA(bias) if bias is not None else NULL, <float *>cnp.PyArray_DATA(out))
    if status:
        raise MemoryError("input_arrays: no memory for scratch")
    return out
