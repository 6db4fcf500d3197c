"""Owns the blocking and threads of convolutions over the tiles of conv.h and gemm.h; docs/ops-conv.md tells the whole story.

Must not contain arithmetic: every output is one chain over (channel, kernel row, kernel column) inside the tiles, so no choice made here can
change a bit.
"""

import numpy as np

cimport numpy as cnp

from onemodel._kernels.conv_plan cimport (
    DIRECT, K_BLOCK, MOST_MOVES, OM_CONV_VECTORS, OM_GEMM_BIAS_ROWS, OM_GEMM_FIRST, OM_GEMM_LAST, PANELS, PLAIN, Job, om_conv_columns,
    om_conv_copy_fn, om_conv_gather_fn, om_conv_panel_fn, om_conv_region, om_conv_spread_fn, om_conv_taps, om_conv_tile_fn, om_conv_vectors_fn,
    om_conv_view, om_conv_weights_fn, plan, round_up, taps_of,
)
from onemodel._kernels.depthwise cimport depthwise_fits, depthwise_forward, depthwise_input
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
cdef Py_ssize_t SPREAD = row_index("conv_spread", "conv_spread")

cdef enum:
    A_BLOCK = 32768             # floats of weights that meet all columns of a piece before the next do: they stay in L2

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
    if depthwise_fits(c):
        return depthwise_forward(mode, c, x, w, bias, y)
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
    if depthwise_fits(c):
        return depthwise_input(mode, c, g, w, bias, dx)
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
