"""Owns the blocking and threads of convolutions over the tiles of conv.h and gemm.h; docs/ops-conv.md tells the whole story.

Must not contain arithmetic: every output is one chain over (channel, kernel row, kernel column) inside the tiles, so no choice made here can
change a bit.
"""

import numpy as np

cimport numpy as cnp
from libc.string cimport memset

from onemodel._kernels.conv_plan cimport (
    A_BLOCK, A_NEAR, DIRECT, GATHERED, K_BLOCK, MOST_MOVES, OM_CONV_VECTORS, OM_GEMM_BIAS_ROWS, OM_GEMM_FIRST, OM_GEMM_LAST, PANELS, PLAIN,
    Job, om_conv_columns, om_conv_copy_fn, om_conv_gather_fn, om_conv_pairs_fn, om_conv_panel_fn, om_conv_region, om_conv_spread_fn, om_conv_taps,
    om_conv_tile_fn, om_conv_vectors_fn, om_conv_view, om_conv_weights_fn, plan, round_up, taps_of,
)
from onemodel._kernels.depthwise cimport depthwise_fits, depthwise_forward, depthwise_input
from onemodel._kernels.elementwise cimport MAP2, Operand, map_strided
from onemodel._kernels.gemm cimport gemm
from onemodel._kernels.pieces cimport begin, run
from onemodel._kernels.table cimport current_mode, row_index, table_of
from onemodel._pool.pool cimport give, take

cnp.import_array()

cdef Py_ssize_t TILE = row_index("conv_tile", "conv_tile")
cdef Py_ssize_t VECTORS = row_index("conv_vectors", "conv_vectors")
cdef Py_ssize_t COPY = row_index("conv_copy", "conv_copy")
cdef Py_ssize_t PANEL = row_index("conv_panel", "conv_panel")
cdef Py_ssize_t GATHER = row_index("conv_gather", "conv_gather")
cdef Py_ssize_t WEIGHTS = row_index("conv_weights", "conv_weights")
cdef Py_ssize_t PAIRS = row_index("conv_pairs", "conv_pairs")
cdef Py_ssize_t SPREAD = row_index("conv_spread", "conv_spread")
cdef Py_ssize_t ADD = row_index("map2", "add")

# One part of the work: some rows and outputs of one group.
cdef struct Item:
    const float *x
    const float *a              # packed weights of the group, or the weights as they are
    const float *w
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
    float *weights

# A phase of an item, at some channels: its view, its outputs, and where the results go.
cdef struct Pass:
    om_conv_view v
    const float *a              # weights of the phase, and those of the group as they are
    const float *weights
    Py_ssize_t k                # steps of the whole chain
    Py_ssize_t k0
    Py_ssize_t kk
    Py_ssize_t c0               # channels of this pass
    Py_ssize_t channels
    Py_ssize_t row0             # first row of the weights packed by the piece
    const Py_ssize_t *offset
    int flags
    Py_ssize_t nq
    Py_ssize_t nt
    float *c                    # of row 0 of the group
    Py_ssize_t rsc
    Py_ssize_t c_image          # between images, and rows of outputs
    Py_ssize_t c_row


cdef void tiles_of_columns(const Job *j, const Item *u, const Pass *s, Py_ssize_t t0, Py_ssize_t t1, Py_ssize_t n, const float *b, Py_ssize_t ld,
                           const om_conv_columns *columns, float *c) noexcept nogil:
    """Row tiles t0 to t1 meet some columns: the n of panel b, or `columns`."""
    cdef Py_ssize_t small = j.rows // j.tiles, larger = j.rows % j.tiles, t, m, i = begin(j.rows, j.tiles, t0), rsa, csa
    cdef const float *a
    cdef const float *bias
    for t in range(t0, t1):
        m = small + 1 if t < larger else small
        bias = u.bias + i if u.bias != NULL else NULL
        if j.local:
            a = u.weights + (i - s.row0) * s.kk
            rsa = 1
            csa = m
        elif j.packed != NULL:
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
            (<om_conv_tile_fn *>j.table.row[TILE])(m, s.kk, a, rsa, csa, columns, s.offset, c + i * s.rsc, s.rsc, bias, s.flags)
        i += m


cdef void direct_pass(const Job *j, const Item *u, const Pass *s, Py_ssize_t t0, Py_ssize_t t1) noexcept nogil:
    """Vectors along rows of outputs read the copy themselves."""
    cdef om_conv_columns columns
    cdef Py_ssize_t most = (<om_conv_vectors_fn *>j.table.row[VECTORS])(j.mr), lanes = j.g.lanes, v = 0, image, q, t, i
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


cdef void pack_panels(const Job *j, const Item *u, const Pass *s) noexcept nogil:
    """All columns of a pass in panels: outputs one after the other over rows and images, out of the copy; or places of the planes of x."""
    cdef Py_ssize_t from_[MOST_MOVES]
    cdef Py_ssize_t to[MOST_MOVES]
    cdef Py_ssize_t moves, all = u.images * s.nq * s.nt, p = 0, image = 0, q = 0, t = 0, n, at, count
    cdef float *panel = u.panel
    if s.kk == 0:
        return
    if j.path == PLAIN: # panels of one width in one go: rows of x are then read from end to end
        n = j.g.width(j.mr, all)
        p = all - all % n
        j.g.pack(u.x + s.k0 * s.v.xc + u.t0, s.v.xc, 1, s.kk, p, n, panel)
        panel += p // n * round_up(n, j.g.lanes) * s.kk
    while p < all:
        n = j.g.width(j.mr, all - p)
        if j.path == PLAIN:
            j.g.pack(u.x + s.k0 * s.v.xc + u.t0 + p, s.v.xc, 1, s.kk, n, n, panel)
            panel += round_up(n, j.g.lanes) * s.kk
            p += n
            continue
        moves = 0
        at = 0
        while at < n:
            count = min(min(j.g.lanes, s.nt - t), n - at)
            from_[moves] = image * j.image + q * s.v.sh * j.region.pitch * s.v.sw + t
            to[moves] = at
            moves += 1
            at += count
            t += count
            if t == s.nt:
                t = 0
                q += 1
                if q == s.nq:
                    q = 0
                    image += 1
        (<om_conv_panel_fn *>j.table.row[PANEL])(u.copy, s.offset, s.kk, moves, from_, to, round_up(n, j.g.lanes), panel)
        panel += round_up(n, j.g.lanes) * s.kk
        p += n


cdef void panel_pass(const Job *j, const Item *u, const Pass *s, Py_ssize_t t0, Py_ssize_t t1) noexcept nogil:
    """Each row tile meets all panels, so that its weights stay in L1 and rows of results are written from end to end."""
    cdef Py_ssize_t all = u.images * s.nq * s.nt, t, p, n, ld
    cdef const float *panel
    for t in range(t0, t1):
        p = 0
        panel = u.panel
        while p < all:
            n = j.g.width(j.mr, all - p)
            ld = round_up(n, j.g.lanes)
            tiles_of_columns(j, u, s, t, t + 1, n, panel, ld, NULL, s.c + p)
            panel += ld * s.kk
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
                (<om_conv_gather_fn *>j.table.row[GATHER])(&v, p, n, s.k0, s.kk, u.panel)
            tiles_of_columns(j, u, s, t0, t1, n, u.panel, ld, NULL, s.c + p)
            s.k0 += s.kk
            if s.k0 >= s.k:
                break
        p += n


cdef void offsets(const Job *j, Py_ssize_t *offset) noexcept nogil:
    """Where each step of a pass reads, from an output's place in the copy: one phase after the other."""
    cdef const Conv *c = j.c
    cdef om_conv_taps rows, cols
    cdef Py_ssize_t row, col, channel, i, k, at, pitch = j.region.pitch, sw = j.view.sw
    for row in range(min(j.sh, j.oh)):
        rows = taps_of(j.adjoint, c.kh, c.sh, c.pt, c.dh, row)
        for col in range(min(j.sw, j.ow)):
            cols = taps_of(j.adjoint, c.kw, c.sw, c.pl, c.dw, col)
            for channel in range(j.block):
                for i in range(rows.n):
                    for k in range(cols.n):
                        at = cols.at + k * cols.apart - j.low_t
                        offset[0] = (channel * j.region.plane + (rows.at + i * rows.apart - j.low_q) * pitch * sw
                                     + (at if sw == 1 else at % sw * pitch + at // sw))
                        offset += 1


cdef inline void pack_weights(const Job *j, const om_conv_view *v, const float *w, Py_ssize_t i, Py_ssize_t m, Py_ssize_t c0, Py_ssize_t channels,
                              float *to) noexcept nogil:
    """m rows from i on, some channels, in rows of m."""
    (<om_conv_weights_fn *>j.table.row[WEIGHTS])(v, w + i * j.wr + c0 * j.wc, j.wr, j.wc, j.c.kw, channels, m, m, to)


cdef void run_pass(const Job *j, const Item *u, Pass *s) noexcept nogil:
    """Some row tiles after the other, so that their weights stay near."""
    cdef Py_ssize_t t = u.tile0, weights = max(1, s.kk * j.mr), step = max(1, A_BLOCK // weights), near = step, end, i, m
    if not j.apart: # results lie far apart: rows of them are written from end to end
        near = max(1, A_NEAR // weights)
    if j.path != DIRECT and not j.local:
        step = u.tile1 - u.tile0
    if j.path == PANELS or j.path == PLAIN:
        pack_panels(j, u, s)
    while t < u.tile1:
        end = min(t + step, u.tile1)
        if j.local:
            s.row0 = begin(j.rows, j.tiles, t)
            for i in range(t, end):
                m = begin(j.rows, j.tiles, i)
                pack_weights(j, &s.v, s.weights, m, begin(j.rows, j.tiles, i + 1) - m, s.c0, s.channels, u.weights + (m - s.row0) * s.kk)
        if j.path == DIRECT:
            while t < end:
                direct_pass(j, u, s, t, min(t + near, end))
                t += near
        elif j.path == GATHERED:
            gathered_pass(j, u, s, t, end)
        else:
            panel_pass(j, u, s, t, end)
        t = end


cdef void run_item(const Job *j, Item *u) noexcept nogil:
    cdef const Conv *c = j.c
    cdef Pass s
    cdef om_conv_region r = j.region
    cdef Py_ssize_t c0 = 0, channels, row, col, image, count, plane = j.oh * j.ow
    cdef Py_ssize_t row0 = begin(j.rows, j.tiles, u.tile0), rows = begin(j.rows, j.tiles, u.tile1) - row0
    cdef const float *a
    cdef const Py_ssize_t *offset
    cdef float *stage
    cdef float *y
    cdef float *to
    cdef const float *even = NULL
    cdef const float *from_
    cdef Py_ssize_t even_outputs = 0
    s.v = j.view
    s.weights = u.w
    r.row = u.q0 * s.v.sh + j.low_q
    r.col = u.t0 * s.v.sw + j.low_t
    r.rows = (u.q1 - u.q0 - 1) * s.v.sh + j.reach_q + 1
    r.cols = (u.t1 - u.t0 - 1) * s.v.sw + j.reach_t + 1
    while True:
        channels = min(j.block, j.channels - c0)
        if j.path == DIRECT or j.path == PANELS:
            for image in range(u.images):
                s.v.x = u.x + image * j.xn + c0 * s.v.xc
                (<om_conv_copy_fn *>j.table.row[COPY])(&s.v, &r, channels, u.copy + image * j.image)
        a = u.a
        offset = j.offset
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
                s.c0 = c0
                s.channels = channels
                s.a = a
                s.offset = offset
                offset += j.block * s.v.rows.n * s.v.cols.n
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
                    run_pass(j, u, &s)
                if not j.apart or c0 + channels < j.channels:
                    continue
                # Two phases beside each other are written together. The second has as many outputs in a row, or one fewer.
                if j.sw == 2 and u.images == 1 and col == 0 and j.ow > 1 and min(u.t1, j.ow // 2) > u.t0:
                    even = s.c
                    even_outputs = s.nt
                    continue
                for image in range(u.images):
                    to = y + image * c.groups * j.rows * plane + row0 * plane
                    from_ = s.c + row0 * s.rsc + image * count
                    if even != NULL:
                        (<om_conv_pairs_fn *>j.table.row[PAIRS])(even + row0 * s.nq * even_outputs, from_, rows, s.nq, even_outputs, s.nt, to - 1, plane,
                                                           j.ow * j.sh)
                    else:
                        (<om_conv_spread_fn *>j.table.row[SPREAD])(from_, s.rsc, rows, count, s.nt, to, plane, j.ow * j.sh, j.sw)
                even = NULL
        c0 += channels
        if c0 >= j.channels:
            break


cdef void run_piece(void *context, Py_ssize_t piece) noexcept nogil:
    cdef Job *j = <Job *>context
    cdef Item u
    cdef Py_ssize_t item, rest, group, image, plane = j.oh * j.ow, taps = j.c.kh * j.c.kw
    cdef float *room = <float *>take(<size_t>(j.copy_floats + j.stage_floats + j.panel_floats + j.weight_floats + 16) * sizeof(float))
    if room == NULL:
        j.failed = True
        return
    u.copy = room
    u.stage = u.copy + j.copy_floats
    u.panel = u.stage + j.stage_floats
    u.weights = u.panel + j.panel_floats
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
        u.w = j.w + group * j.wg
        u.a = u.w
        if j.packed != NULL:
            u.a = j.packed + group * j.rows * j.channels * taps
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
            pack_weights(j, &v, j.w + group * j.wg, i, m, 0, j.channels, to + i * k)
            to += j.rows * k


cdef int execute(Job *j) noexcept nogil:
    cdef const Conv *c = j.c
    if c.n == 0 or j.rows == 0 or j.oh == 0 or j.ow == 0:
        return 0
    plan(j)
    j.packed = NULL
    j.offset = NULL
    j.failed = False
    if j.path == DIRECT or j.path == PANELS:
        j.offset = <Py_ssize_t *>take(<size_t>(j.block * c.kh * c.kw + 1) * sizeof(Py_ssize_t))
        if j.offset == NULL:
            return -1
        offsets(j, j.offset)
    if j.pack and not j.local:
        j.packed = <float *>take(<size_t>(j.rows * j.channels * c.kh * c.kw * c.groups) * sizeof(float))
        if j.packed != NULL:
            run(pack_tiles, j, c.groups * j.tiles)
        else:
            j.failed = True
    if not j.failed:
        run(run_piece, j, j.pieces)
    if j.packed != NULL:
        give(j.packed)
    if j.offset != NULL:
        give(j.offset)
    return -1 if j.failed else 0


cdef int windows_are_images(int mode, const Conv *c, const float *x, const float *w, const float *bias, float *y) noexcept nogil:
    """The kernel is as large as x: one product for each group, whose rows are images."""
    cdef Py_ssize_t group, rows = c.oc // c.groups, channels = c.ic // c.groups, k = channels * c.kh * c.kw
    for group in range(c.groups):
        if gemm(mode, c.n, rows, k, x + group * channels * c.xc, c.xn, 1, w + group * rows * k, 1, k, y + group * rows, c.oc,
                bias + group * rows if bias != NULL else NULL):
            return -1
    return 0


cdef void bias_alone(int mode, const Conv *c, const float *bias, float *y) noexcept nogil:
    """y where x has no channels: +0 (+ bias)."""
    cdef Py_ssize_t[3] dims
    cdef Operand[2] operands
    cdef float zero = 0
    if bias == NULL:
        memset(y, 0, c.n * c.oc * c.oh * c.ow * sizeof(float))
        return
    dims[0], dims[1], dims[2] = c.n, c.oc, c.oh * c.ow
    operands[0].data, operands[1].data = <const char *>&zero, <const char *>bias
    operands[0].steps[0] = operands[0].steps[1] = operands[0].steps[2] = operands[1].steps[0] = operands[1].steps[2] = 0
    operands[1].steps[1] = 1
    map_strided(MAP2, table_of(mode).row[ADD], 3, dims, operands, <char *>y)


cdef int conv_forward(int mode, const Conv *c, const float *x, const float *w, const float *bias, float *y) noexcept nogil:
    cdef Job j
    if c.n == 0:
        return 0
    if c.ic == 0:
        bias_alone(mode, c, bias, y)
        return 0
    if depthwise_fits(c):
        return depthwise_forward(mode, c, x, w, bias, y)
    # Fast products of at most four rows or of one column may sum along the chain.
    if (c.oh == 1 and c.ow == 1 and c.pt == 0 and c.pl == 0 and c.kh == c.ih and c.kw == c.iw and (c.kh == 1 or c.dh == 1)
            and (c.kw == 1 or c.dw == 1) and (c.xh == c.iw or c.ih == 1) and c.xc == c.ih * c.iw and c.n > 4 and c.oc // c.groups > 4):
        return windows_are_images(mode, c, x, w, bias, y)
    j.table = table_of(mode)
    j.g = &j.table.gemm
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
    if depthwise_fits(c):
        return depthwise_input(mode, c, g, w, bias, dx)
    j.table = table_of(mode)
    j.g = &j.table.gemm
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
