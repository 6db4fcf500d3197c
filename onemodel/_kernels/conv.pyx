"""Owns the blocking and threads of convolutions over the micro-kernels of gemm.h; docs/ops-conv.md tells the whole story.

Must not contain arithmetic: every output is one chain over (channel, kernel row, kernel column) inside the tiles, so no choice made here can
change a bit.
"""

import numpy as np

cimport numpy as cnp
from libc.stdint cimport uintptr_t

from onemodel._kernels.pieces cimport begin, run
from onemodel._kernels.table cimport current_mode, om_gemm, om_table, row_index, smallest_piece, table_of
from onemodel._pool.pool cimport give, take

cnp.import_array()

cdef extern from "kernels.h" nogil:
    enum:
        OM_GEMM_FIRST
        OM_GEMM_LAST
        OM_GEMM_BIAS_ROWS
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
    ctypedef void om_conv_gather_fn(const om_conv_view *v, Py_ssize_t p, Py_ssize_t n, Py_ssize_t k0, Py_ssize_t k, float *dst) noexcept nogil
    ctypedef void om_conv_weights_fn(const om_conv_view *v, const float *w, Py_ssize_t wr, Py_ssize_t wc, Py_ssize_t kw, Py_ssize_t channels,
                                     Py_ssize_t rows, Py_ssize_t mr, float *dst) noexcept nogil
    ctypedef void om_conv_spread_fn(const float *src, Py_ssize_t ld, Py_ssize_t rows, Py_ssize_t p0, Py_ssize_t n, Py_ssize_t outputs, float *y,
                                    Py_ssize_t yc, Py_ssize_t yh, Py_ssize_t yw) noexcept nogil

cdef Py_ssize_t GATHER = row_index("conv_gather", "conv_gather")
cdef Py_ssize_t WEIGHTS = row_index("conv_weights", "conv_weights")
cdef Py_ssize_t SPREAD = row_index("conv_spread", "conv_spread")

cdef enum:
    K_BLOCK = 384               # steps of one pass: a panel of columns stays in L1 or L2, a panel of weights in L1
    B_PANEL = 16384             # floats of a panel of columns on a piece's stack
    ROW_BLOCK = 256             # output channels that meet one panel of columns
    C_PANEL = 8192              # floats of their results where these lie apart
    MADDS_PER_ELEMENT = 16      # multiply-adds that take the time of one element of an element-wise kernel
    MOST_PIECES = 64

# A convolution seen from its outputs, forward or adjoint. A strided adjoint falls into sh·sw phases, each a convolution of its own with the
# taps that exist there, whose outputs lie sh and sw apart; forward there is one phase.
cdef struct Job:
    const om_table *table
    const om_gemm *g
    const Conv *c
    bint adjoint
    const float *x              # images that are read: channels xc apart, rows xh
    Py_ssize_t xn
    Py_ssize_t channels         # of one group, read and written
    Py_ssize_t rows
    const float *w              # w[group·wg + row·wr + channel·wc + kernel row·kw + kernel column]
    Py_ssize_t wg
    Py_ssize_t wr
    Py_ssize_t wc
    const float *bias
    float *y
    Py_ssize_t oh
    Py_ssize_t ow
    Py_ssize_t sh               # between the outputs of one phase
    Py_ssize_t sw
    Py_ssize_t mr               # rows of a tile
    Py_ssize_t group_floats     # of the packed weights
    float *packed
    Py_ssize_t chunks           # pieces of one image and group: rows of outputs
    om_conv_view view           # common to all phases


cdef inline Py_ssize_t round_up(Py_ssize_t x, Py_ssize_t to) noexcept nogil:
    return (x + to - 1) // to * to


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
    """The taps of one axis. Adjoint: those i for which output stride·q + phase met an input, (phase + pad - i·dilation) / stride + q."""
    cdef om_conv_taps t
    cdef Py_ssize_t common, i
    if not adjoint:
        t.n = k
        t.first = 0
        t.step = 1
        t.at = -pad
        t.apart = dilation
        return t
    common = greatest_divisor(stride, dilation)
    t.step = stride // common
    t.apart = -(dilation // common)
    t.n = 0
    t.first = 0
    t.at = 0
    for i in range(min(k, t.step)):
        if (phase + pad - i * dilation) % stride == 0:
            t.first = i
            t.at = (phase + pad - i * dilation) // stride
            t.n = (k - i + t.step - 1) // t.step
            break
    return t


cdef void tiles_of_panel(const Job *j, const float *a, Py_ssize_t rsa, Py_ssize_t first, Py_ssize_t last, const float *b, Py_ssize_t rsb,
                         Py_ssize_t n, Py_ssize_t k0, Py_ssize_t kk, Py_ssize_t k, float *c, Py_ssize_t rsc, const float *bias,
                         int flags) noexcept nogil:
    """Rows from first to last, in tiles, meet one panel; a, c and bias belong to row 0 of the group."""
    cdef Py_ssize_t i = first, m, lanes = j.g.lanes
    while i < last:
        m = min(j.mr, last - i)
        if j.packed != NULL:
            j.g.tile(m, n, kk, a + i // j.mr * round_up(j.mr, lanes) * k + k0 * round_up(m, lanes), 1, round_up(m, lanes), b, rsb,
                     c + i * rsc, rsc, bias + i if bias != NULL else NULL, flags)
        else:
            j.g.tile(m, n, kk, a + i * rsa + k0, rsa, 1, b, rsb, c + i * rsc, rsc, bias + i if bias != NULL else NULL, flags)
        i += m


cdef void run_phase(const Job *j, const om_conv_view *v, const float *a, const float *bias, float *y, Py_ssize_t p0,
                    Py_ssize_t p1) noexcept nogil:
    """Outputs p0 to p1 of one phase of one image and group."""
    cdef float b_room[B_PANEL + 16]
    cdef float c_room[C_PANEL + 16]
    cdef float *b = aligned(b_room)
    cdef float *c = aligned(c_room)
    cdef Py_ssize_t k = j.channels * v.rows.n * v.cols.n, plane = j.oh * j.ow
    cdef Py_ssize_t first = 0, last, p, n, k0, kk, kb, ld
    cdef bint apart = j.sh > 1 or j.sw > 1
    cdef int flags
    while first < j.rows:
        last = min(first + ROW_BLOCK // j.mr * j.mr, j.rows)
        p = p0
        while p < p1:
            n = j.g.width(j.mr, p1 - p)
            ld = round_up(n, j.g.lanes)
            kb = min(K_BLOCK, B_PANEL // ld)
            k0 = 0
            while True:
                kk = min(kb, k - k0)
                flags = (OM_GEMM_FIRST if k0 == 0 else 0) | (OM_GEMM_LAST if k0 + kk >= k else 0) | OM_GEMM_BIAS_ROWS
                if kk > 0:
                    (<om_conv_gather_fn *>j.table.row[GATHER])(v, p, n, k0, kk, b)
                if apart:
                    tiles_of_panel(j, a, j.wr, first, last, b, ld, n, k0, kk, k, c - first * ld, ld, bias, flags)
                else:
                    tiles_of_panel(j, a, j.wr, first, last, b, ld, n, k0, kk, k, y + p, plane, bias, flags)
                k0 += kk
                if k0 >= k:
                    break
            if apart:
                (<om_conv_spread_fn *>j.table.row[SPREAD])(c, ld, last - first, p, n, v.outputs, y + first * plane, plane, j.ow * j.sh, j.sw)
            p += n
        first = last


cdef void run_piece(void *context, Py_ssize_t piece) noexcept nogil:
    cdef const Job *j = <const Job *>context
    cdef const Conv *c = j.c
    cdef Py_ssize_t chunk = piece % j.chunks, group = piece // j.chunks % c.groups, image = piece // j.chunks // c.groups
    cdef Py_ssize_t most = (j.oh + j.sh - 1) // j.sh, q0 = begin(most, j.chunks, chunk), q1 = begin(most, j.chunks, chunk + 1), q, row, col
    cdef om_conv_view v = j.view
    cdef const float *a = j.packed + group * j.group_floats if j.packed != NULL else j.w + group * j.wg
    cdef const float *bias = j.bias + group * j.rows if j.bias != NULL else NULL
    cdef float *y = j.y + (image * c.groups + group) * j.rows * j.oh * j.ow
    v.x = j.x + image * j.xn + group * j.channels * v.xc
    for row in range(min(j.sh, j.oh)):
        v.rows = taps_of(j.adjoint, c.kh, c.sh, c.pt, c.dh, row)
        q = min(q1, (j.oh - row + j.sh - 1) // j.sh)
        for col in range(min(j.sw, j.ow)):
            v.cols = taps_of(j.adjoint, c.kw, c.sw, c.pl, c.dw, col)
            v.outputs = (j.ow - col + j.sw - 1) // j.sw
            run_phase(j, &v, a, bias, y + row * j.ow + col, q0 * v.outputs, q * v.outputs)
            if j.packed != NULL:
                a += packed_floats(j, &v)


cdef Py_ssize_t packed_floats(const Job *j, const om_conv_view *v) noexcept nogil:
    """Floats of the packed weights of one phase and group."""
    return (j.rows + j.mr - 1) // j.mr * round_up(j.mr, j.g.lanes) * j.channels * v.rows.n * v.cols.n


cdef void pack_group(void *context, Py_ssize_t group) noexcept nogil:
    cdef const Job *j = <const Job *>context
    cdef const Conv *c = j.c
    cdef om_conv_view v
    cdef Py_ssize_t row, col
    cdef float *to = j.packed + group * j.group_floats
    for row in range(min(j.sh, j.oh)):
        v.rows = taps_of(j.adjoint, c.kh, c.sh, c.pt, c.dh, row)
        for col in range(min(j.sw, j.ow)):
            v.cols = taps_of(j.adjoint, c.kw, c.sw, c.pl, c.dw, col)
            (<om_conv_weights_fn *>j.table.row[WEIGHTS])(&v, j.w + group * j.wg, j.wr, j.wc, c.kw, j.channels, j.rows, j.mr, to)
            to += packed_floats(j, &v)


cdef int execute(Job *j) noexcept nogil:
    cdef const Conv *c = j.c
    cdef Py_ssize_t tiles = max((j.rows + j.g.mr - 1) // j.g.mr, 1), most = (j.oh + j.sh - 1) // j.sh
    cdef double madds, least
    if c.n == 0 or j.rows == 0 or j.oh == 0 or j.ow == 0:
        return 0
    j.mr = (j.rows + tiles - 1) // tiles
    j.packed = NULL
    if (j.adjoint or j.wr % 1024 == 0) and j.channels > 0:
        j.group_floats = tiles * round_up(j.mr, j.g.lanes) * j.channels * c.kh * c.kw
        j.packed = <float *>take(<size_t>(j.group_floats * c.groups) * sizeof(float))
        if j.packed == NULL:
            return -1
        run(pack_group, j, c.groups)
    madds = <double>j.oh * j.ow * j.rows * max(j.channels, 1) * c.kh * c.kw / j.sh / j.sw
    least = max(<double>smallest_piece() * MADDS_PER_ELEMENT, madds * c.n * c.groups / MOST_PIECES)
    j.chunks = max(1, min(most, <Py_ssize_t>(madds / least)))
    run(run_piece, j, c.n * c.groups * j.chunks)
    if j.packed != NULL:
        give(j.packed)
    return 0


cdef int conv_forward(int mode, const Conv *c, const float *x, const float *w, const float *bias, float *y) noexcept nogil:
    cdef Job j
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
