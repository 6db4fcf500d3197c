"""Owns the blocking and threads of convolution weight gradients; the tile and the padded copy of an image are in conv_weight.h.

The product is dwᵀ[k][oc] = unfolded x[k][positions] · gᵀ[positions][oc], k over (channel, kernel row, kernel column). Gradients are packed; x is
never unfolded where its image can be read at an offset. Must not contain arithmetic: no choice made here can change a bit.
"""

import numpy as np

cimport numpy as cnp
from libc.string cimport memset

from onemodel._kernels.conv cimport Conv
from onemodel._kernels.conv_weight_thin cimport thin_fits, thin_weight
from onemodel._kernels.depthwise cimport depthwise_fits, depthwise_weight
from onemodel._kernels.pieces cimport begin, run
from onemodel._kernels.table cimport current_mode, om_copy_fn, om_gemm, om_map2_fn, om_table, row_index, smallest_piece, table_of, thread_count
from onemodel._pool.pool cimport give, take

cnp.import_array()

cdef extern from "kernels.h" nogil:
    enum:
        OM_WEIGHT_BEGIN
        OM_WEIGHT_END
        OM_WEIGHT_STORE
        OM_WEIGHT_FINAL
    ctypedef void om_frame_fn(const float *x, Py_ssize_t xh, Py_ssize_t ih, Py_ssize_t iw, Py_ssize_t top, Py_ssize_t down, Py_ssize_t left,
                              Py_ssize_t right, Py_ssize_t rows, Py_ssize_t cols, float *dst, Py_ssize_t pitch) noexcept nogil
    ctypedef void om_weight_tile_fn(Py_ssize_t m, Py_ssize_t n, const float *const *at, Py_ssize_t rows, Py_ssize_t cols, Py_ssize_t xr,
                                    Py_ssize_t xs, const float *g, float *chain, float *sum, int flags) noexcept nogil

cdef Py_ssize_t FRAME = row_index("frame", "frame")
cdef Py_ssize_t TILE = row_index("weight_tile", "weight_tile")
cdef Py_ssize_t TURN = row_index("copy", "copy_4")
cdef Py_ssize_t ADD = row_index("map2", "add")

cdef enum:
    POSITIONS = 256             # of one chunk: a packed panel of gradients stays in L1
    FRAME_FLOATS = 49152        # of images prepared at once: they stay in L2
    ROWS = 1024                 # of the unfolded matrix prepared at once
    SUM_FLOATS = 32768          # of the result that one piece accumulates: they stay in L2 from image to image
    PIECE_COLUMNS = 64          # output channels of a piece
    LEAST_ROWS = 36             # of a piece, which packs the gradients of its columns
    MADDS_PER_ELEMENT = 16      # as in gemm.pyx
    PIECES_PER_THREAD = 3       # every piece prepares its own operands, so there are no more than balance the threads
    MOST_COLUMN_PARTS = 64
    MOST_ROWS = 16              # at least the rows of any tile
    VECTOR = 16                 # at least the lanes of any: room after the prepared rows of an image
    MOST_IMAGE_PARTS = 64
    MOST_APART = 1 << 21        # floats of gradients of single images
    PREPARING = 6               # time of preparing an element of x, of packing one of g, of adding one of an image's gradient, in multiply-adds
    PACKING = 10
    ADDING = 16
    UNEVEN = 10                 # by how many percent threads differ in speed that have one piece each

# How rows of the unfolded matrix are read: out of x itself, where no tap is outside; out of padded copies of its planes; unfolded, where
# strides, dilation or kernels are so large that a plane would be mostly read in vain.
cdef enum Form:
    DIRECT
    FRAMED
    UNFOLDED

cdef struct Job:
    const om_gemm *gemm
    om_frame_fn *frame
    om_weight_tile_fn *tile
    om_copy_fn *turn
    om_map2_fn *add
    Conv c
    const float *x
    const float *g
    float *dw
    Py_ssize_t icg              # channels of a group
    Py_ssize_t ocg
    Py_ssize_t taps
    Py_ssize_t k                # rows of the unfolded matrix: icg * taps
    Py_ssize_t positions
    Py_ssize_t rows             # output rows and columns of a chunk
    Py_ssize_t cols
    Py_ssize_t images           # of a chunk: several where one has few positions, so that a tile of the result is met by all of them at once
    Py_ssize_t x_image          # floats from image to image in prepared rows, and in packed gradients
    Py_ssize_t g_image
    Form form
    Py_ssize_t pitch            # of a framed plane
    Py_ssize_t plane
    Py_ssize_t part             # rows of the unfolded matrix prepared at once
    Py_ssize_t ks               # rows and columns of a piece
    Py_ssize_t ocs
    Py_ssize_t k_parts
    Py_ssize_t oc_parts
    Py_ssize_t image_parts
    float *apart                # gradients by (piece of dw, image), to be added in order; NULL where a piece takes all images
    Py_ssize_t x_floats         # scratch of a piece: prepared x, packed g, and the results
    Py_ssize_t g_floats
    Py_ssize_t sum_floats
    bint more                   # dw has the sum over earlier images
    int failed


cdef inline Py_ssize_t parts_of(Py_ssize_t whole, Py_ssize_t most) noexcept nogil:
    return (whole + most - 1) // most


cdef inline Py_ssize_t even(Py_ssize_t whole, Py_ssize_t parts) noexcept nogil:
    return parts_of(whole, parts) if parts > 1 else whole


cdef inline Py_ssize_t panel_width(const Job *j, Py_ssize_t columns) noexcept nogil:
    """Floats in a row of the panel that takes the first of so many columns."""
    return parts_of(min(columns, j.gemm.nr), j.gemm.lanes) * j.gemm.lanes


cdef bint all_inside(const Conv *c) noexcept nogil:
    return (c.pt == 0 and c.pl == 0 and (c.oh - 1) * c.sh + (c.kh - 1) * c.dh < c.ih
            and (c.ow - 1) * c.sw + (c.kw - 1) * c.dw < c.iw)


cdef void plan(Job *j) noexcept nogil:
    cdef Conv *c = &j.c
    cdef Py_ssize_t high, wide
    if all_inside(c) and c.kh == 1 and c.kw == 1 and c.sh == 1 and c.sw == 1 and c.xh == c.iw and c.ow == c.iw:
        c.ow, c.iw, c.oh, c.ih = c.oh * c.ow, c.oh * c.ow, 1, 1  # positions follow each other in x as in g
    j.icg, j.ocg = c.ic // c.groups, c.oc // c.groups
    j.taps = c.kh * c.kw
    j.k = j.icg * j.taps
    j.positions = c.oh * c.ow
    if c.ow > POSITIONS:
        j.rows, j.cols = 1, even(c.ow, parts_of(c.ow, POSITIONS))
    else:
        j.cols = c.ow
        j.rows = even(c.oh, parts_of(c.oh, POSITIONS // c.ow))
    j.images = max(min(c.n, POSITIONS // j.positions), 1)
    high, wide = (j.rows - 1) * c.sh + (c.kh - 1) * c.dh + 1, (j.cols - 1) * c.sw + (c.kw - 1) * c.dw + 1
    j.pitch = wide
    j.plane = high * wide
    if all_inside(c):
        j.form = DIRECT
        j.part = min(j.k, ROWS)
        j.x_image = c.xn
        j.x_floats = 0
    elif j.taps <= ROWS and j.plane <= FRAME_FLOATS and j.plane <= 2 * j.taps * j.rows * j.cols:
        j.form = FRAMED
        j.images = min(j.images, FRAME_FLOATS // j.plane)
        high = max(min(min(FRAME_FLOATS // (j.plane * j.images), ROWS // j.taps), j.icg), 1)  # planes
        j.part = high * j.taps
        j.x_image = high * j.plane + VECTOR
        j.x_floats = j.x_image * j.images
    else:
        j.form = UNFOLDED
        j.part = min(j.k, min(ROWS, FRAME_FLOATS // (j.rows * j.cols * j.images)))
        j.x_image = j.part * j.rows * j.cols + VECTOR
        j.x_floats = j.x_image * j.images
    cut_pieces(j)
    j.g_image = j.rows * j.cols * j.ocs
    j.g_floats = j.g_image * j.images
    j.sum_floats = j.ks * j.ocs


cdef double cost_of(const Job *j, Py_ssize_t ks, Py_ssize_t ocs) noexcept nogil:
    """Of a multiply-add, beside itself: every piece prepares x and g for itself."""
    return <double>PACKING / ks + (0.0 if j.form == DIRECT else <double>PREPARING / ocs / j.taps)


cdef double cut_dw(Job *j, Py_ssize_t want) noexcept nogil:
    """Rows and columns of a piece, for at least so many pieces of a group: those that cost least."""
    cdef Py_ssize_t panels = parts_of(j.ocg, j.gemm.nr), parts = parts_of(panels, max(PIECE_COLUMNS // j.gemm.nr, 1)), ocs, ks
    cdef double cost, least = -1
    for parts in range(parts, max(parts, min(panels, MOST_COLUMN_PARTS)) + 1):
        ocs = parts_of(panels, parts) * j.gemm.nr
        ks = parts_of(j.k, max(parts_of(want, parts_of(j.ocg, ocs)), parts_of(j.k, SUM_FLOATS // ocs)))
        ks = max(ks, min(LEAST_ROWS, j.k))
        if j.form == FRAMED:
            ks = parts_of(ks, j.taps) * j.taps  # whole planes
        cost = cost_of(j, ks, ocs)
        if least < 0 or cost < least:
            least = cost
            j.ks, j.ocs = ks, ocs
    j.oc_parts, j.k_parts = parts_of(j.ocg, j.ocs), parts_of(j.k, j.ks)
    return least


cdef inline double longest(Py_ssize_t pieces, Py_ssize_t threads) noexcept nogil:
    """What the busiest of the threads has of equal pieces."""
    return <double>parts_of(pieces, threads) / pieces


cdef void cut_pieces(Job *j) noexcept nogil:
    """Parts of dw, or where these cost more or come out unequal, images too. Their gradients are then added in order, as one piece does it."""
    cdef const Conv *c = &j.c
    cdef Py_ssize_t threads = thread_count(), chunks = parts_of(c.n, j.images), want, most, parts
    cdef double madds = <double>c.n * c.groups * j.positions * j.k * j.ocg, apart, together = -1, cost
    j.image_parts = 1
    if threads == 1:
        cut_dw(j, 1)
        return
    want = <Py_ssize_t>max(madds / MADDS_PER_ELEMENT / smallest_piece(), 1.0)
    apart = (1 + cut_dw(j, 1) + <double>ADDING / j.positions)
    j.image_parts = min(min(chunks, MOST_IMAGE_PARTS), parts_of(want, c.groups * j.oc_parts * j.k_parts))
    apart *= longest(c.groups * j.oc_parts * j.k_parts * j.image_parts, threads)
    most = parts_of(min(want, PIECES_PER_THREAD * threads), c.groups)
    want = 1
    for parts in range(1, most + 1):
        cost = (1 + cut_dw(j, parts)) * longest(c.groups * j.oc_parts * j.k_parts, threads) * (1 + <double>UNEVEN / 100 / parts)
        if together < 0 or cost < together:
            want, together = parts, cost
    cut_dw(j, want)
    if apart < together and j.image_parts > 1 and c.n * c.groups * <double>j.k * j.ocg <= MOST_APART:
        cut_dw(j, 1)
    else:
        j.image_parts = 1


cdef void prepare(const Job *j, const float *x, Py_ssize_t k0, Py_ssize_t k1, Py_ssize_t r0, Py_ssize_t c0, Py_ssize_t rows, Py_ssize_t cols,
                  float *room, const float **at) noexcept nogil:
    """Where rows k0 to k1 of the unfolded matrix begin for a chunk of positions; x is the group's image."""
    cdef const Conv *c = &j.c
    cdef Py_ssize_t channel = k0 // j.taps, kh = k0 % j.taps // c.kw, kw = k0 % c.kw, k
    cdef Py_ssize_t top = r0 * c.sh - c.pt, left = c0 * c.sw - c.pl
    cdef const float *plane = x + channel * c.xc
    for k in range(k1 - k0):
        if j.form == DIRECT:
            at[k] = plane + (top + kh * c.dh) * c.xh + left + kw * c.dw
        elif j.form == FRAMED:
            if kh == 0 and kw == 0:
                if k > 0:
                    room += j.plane
                j.frame(plane, c.xh, c.ih, c.iw, top, 1, left, 1, (rows - 1) * c.sh + (c.kh - 1) * c.dh + 1,
                        (cols - 1) * c.sw + (c.kw - 1) * c.dw + 1, room, j.pitch)
            at[k] = room + kh * c.dh * j.pitch + kw * c.dw
        else:
            j.frame(plane, c.xh, c.ih, c.iw, top + kh * c.dh, c.sh, left + kw * c.dw, c.sw, rows, cols, room, cols)
            at[k] = room
            room += rows * cols
        kw += 1
        if kw == c.kw:
            kw = 0
            kh += 1
            if kh == c.kh:
                kh = 0
                plane += c.xc


cdef void chunk(const Job *j, const float **at, Py_ssize_t k, Py_ssize_t m, Py_ssize_t ks, Py_ssize_t n, Py_ssize_t rows, Py_ssize_t cols,
                Py_ssize_t images, const float *g, float *chain, float *sum, int flags) noexcept nogil:
    """m prepared rows, from row k of the piece's ks, by n columns: each panel of g stays in L1 and meets all tiles of rows. Where images stay apart,
    `sum` is the first one's."""
    cdef Py_ssize_t xr, xs = j.c.sw, i, r, image, col = 0, width, tiles, mm, to
    cdef const float *row[MOST_ROWS]
    cdef int now
    if j.form == UNFOLDED:
        xr, xs = cols, 1
    else:
        xr = j.c.sh * (j.c.xh if j.form == DIRECT else j.pitch)
    while col < n:
        width = panel_width(j, n - col)
        i, tiles = 0, parts_of(m, j.gemm.mr)
        while i < m:
            mm = parts_of(m - i, tiles)
            to = col * ks + (k + i) * width
            j.tile(mm, width, at + i, rows, cols, xr, xs, g + col * rows * cols, chain + to, sum + to, flags & ~(OM_WEIGHT_FINAL if images > 1 else 0))
            for image in range(1, images):
                for r in range(mm):
                    row[r] = at[i + r] + image * j.x_image
                if j.apart != NULL:
                    now = flags
                else:
                    now = flags & ~OM_WEIGHT_STORE if image == images - 1 else flags & ~(OM_WEIGHT_STORE | OM_WEIGHT_FINAL)
                j.tile(mm, width, row, rows, cols, xr, xs, g + image * j.g_image + col * rows * cols, chain + to,
                       sum + to + (image * j.sum_floats if j.apart != NULL else 0), now)
            tiles -= 1
            i += mm
        col += width


# Where a part of dw lies.
cdef struct Part:
    Py_ssize_t group
    Py_ssize_t k0
    Py_ssize_t ks
    Py_ssize_t o0
    Py_ssize_t n


cdef Part part_of(const Job *j, Py_ssize_t number) noexcept nogil:
    cdef Part p
    p.k0, p.o0, p.group = number % j.k_parts * j.ks, number // j.k_parts % j.oc_parts * j.ocs, number // (j.k_parts * j.oc_parts)
    p.ks, p.n = min(j.ks, j.k - p.k0), min(j.ocs, j.ocg - p.o0)
    return p


cdef inline Py_ssize_t parts_of_dw(const Job *j) noexcept nogil:
    return j.c.groups * j.oc_parts * j.k_parts


cdef void write_panel(const Job *j, const Part *p, Py_ssize_t col, const float *sum) noexcept nogil:
    """One panel of a part, from column col on, into dw."""
    cdef Py_ssize_t width = panel_width(j, p.n - col)
    j.turn(sum + col * p.ks, 1, width, j.dw + (p.group * j.ocg + p.o0 + col) * j.k + p.k0, j.k, 1, min(p.n - col, width), p.ks)


cdef void read_panel(const Job *j, const Part *p, Py_ssize_t col, float *sum) noexcept nogil:
    """The panel as write_panel wrote it."""
    cdef Py_ssize_t width = panel_width(j, p.n - col)
    j.turn(j.dw + (p.group * j.ocg + p.o0 + col) * j.k + p.k0, j.k, 1, sum + col * p.ks, 1, width, min(p.n - col, width), p.ks)


cdef void weight_piece(void *context, Py_ssize_t piece) noexcept nogil:
    """A part of one group's dw, by all images in order, or by some, each apart."""
    cdef Job *j = <Job *>context
    cdef const Conv *c = &j.c
    cdef Py_ssize_t number = piece % parts_of_dw(j), chunks = parts_of(c.n, j.images)
    cdef Part p = part_of(j, number)
    cdef Py_ssize_t image = begin(chunks, j.image_parts, piece // parts_of_dw(j)) * j.images, images, i, r0, c0, rows, cols, k, kk
    cdef Py_ssize_t end = min(begin(chunks, j.image_parts, piece // parts_of_dw(j) + 1) * j.images, c.n)
    cdef const float *x
    cdef const float *g
    cdef float *sum = NULL
    cdef int flags
    cdef size_t floats = (j.g_floats + 2 * j.sum_floats + j.x_floats + 15) // 16 * 16
    cdef float *gp = <float *>take(floats * sizeof(float) + j.part * sizeof(float *))
    if gp == NULL:
        j.failed = -1
        return
    cdef float *chain = gp + j.g_floats
    cdef float *room = chain + 2 * j.sum_floats
    cdef const float **at = <const float **>(gp + floats)
    k = 0
    while k < p.n and j.more and j.apart == NULL:
        read_panel(j, &p, k, chain + j.sum_floats)
        k += panel_width(j, p.n - k)
    while image < end:
        images = min(j.images, end - image)
        sum = chain + j.sum_floats if j.apart == NULL else j.apart + (number * (c.n + j.more) + j.more + image) * j.sum_floats
        x = j.x + image * c.xn + p.group * j.icg * c.xc
        g = j.g + (image * c.oc + p.group * j.ocg + p.o0) * j.positions
        r0 = 0
        while r0 < c.oh:
            rows = min(j.rows, c.oh - r0)
            c0 = 0
            while c0 < c.ow:
                cols = min(j.cols, c.ow - c0)
                for i in range(images):
                    j.gemm.pack(g + i * c.oc * j.positions + r0 * c.ow + c0, 1, j.positions, rows * cols, p.n, j.gemm.nr, gp + i * j.g_image)
                flags = OM_WEIGHT_BEGIN if r0 == 0 and c0 == 0 else 0
                if r0 + rows == c.oh and c0 + cols == c.ow:
                    flags |= OM_WEIGHT_END | (OM_WEIGHT_STORE if (image == 0 and not j.more) or j.apart != NULL else 0)
                    flags |= OM_WEIGHT_FINAL if image + images == c.n and j.apart == NULL else 0
                k = 0
                while k < p.ks:
                    kk = min(j.part, p.ks - k)
                    for i in range(0 if j.form == DIRECT else images - 1, -1, -1):  # the first image last, since `at` shows its rows
                        prepare(j, x + i * c.xn, p.k0 + k, p.k0 + k + kk, r0, c0, rows, cols, room + i * j.x_image, at)
                    chunk(j, at, k, kk, p.ks, p.n, rows, cols, images, gp, chain, sum, flags)
                    k += kk
                c0 += cols
            r0 += rows
        image += images
    k = 0
    while k < p.n and j.apart == NULL:
        write_panel(j, &p, k, sum)
        k += panel_width(j, p.n - k)
    give(gp)


cdef void add_piece(void *context, Py_ssize_t piece) noexcept nogil:
    """One panel of a part of dw: the images' gradients, added in order into the first one's, or into what dw has."""
    cdef const Job *j = <const Job *>context
    cdef Py_ssize_t panels = parts_of(j.ocs, j.gemm.nr), col = piece % panels * j.gemm.nr, images = j.c.n + j.more, image
    cdef Part p = part_of(j, piece // panels)
    cdef float *sum = j.apart + piece // panels * images * j.sum_floats
    if col >= p.n:
        return
    cdef float *to = sum + col * p.ks
    if j.more:
        read_panel(j, &p, col, sum)
    for image in range(1, images):
        j.add(to, to + image * j.sum_floats, to, p.ks * panel_width(j, p.n - col))
    write_panel(j, &p, col, sum)


cdef inline bint by_channels(const Conv *c) noexcept nogil:
    """Lanes are filled by channels rather than by the outputs of each."""
    return c.groups * c.groups >= c.oc and depthwise_fits(c)


cdef bint weight_continues(int mode, const Conv *c) noexcept nogil:
    return not by_channels(c) and not thin_fits(c, table_of(mode).gemm.lanes)


cdef int conv_weight(int mode, const Conv *c, const float *x, const float *g, float *dw) noexcept nogil:
    if c.groups == 0 or c.oc * (c.ic // c.groups) * c.kh * c.kw == 0:
        return 0
    if c.n * c.oh * c.ow == 0:
        memset(dw, 0, c.oc * (c.ic // c.groups) * c.kh * c.kw * sizeof(float))
        return 0
    if by_channels(c):
        return depthwise_weight(mode, c, x, g, dw)
    if thin_fits(c, table_of(mode).gemm.lanes):
        return thin_weight(mode, c, x, g, dw)
    return execute(mode, c, x, g, dw, False)


cdef int conv_weight_more(int mode, const Conv *c, const float *x, const float *g, float *dw) noexcept nogil:
    return execute(mode, c, x, g, dw, True)


cdef int execute(int mode, const Conv *c, const float *x, const float *g, float *dw, bint more) noexcept nogil:
    cdef Job j
    cdef const om_table *table = table_of(mode)
    j.c, j.x, j.g, j.dw, j.more, j.failed = c[0], x, g, dw, more, 0
    j.gemm, j.frame, j.tile, j.turn = &table.gemm, <om_frame_fn *>table.row[FRAME], <om_weight_tile_fn *>table.row[TILE], <om_copy_fn *>table.row[TURN]
    j.add = <om_map2_fn *>table.row[ADD]
    plan(&j)
    j.apart = NULL
    if j.image_parts > 1:
        j.apart = <float *>take(<size_t>(parts_of_dw(&j) * (c.n + more) * j.sum_floats) * sizeof(float))
        if j.apart == NULL:
            return -1
    run(weight_piece, &j, parts_of_dw(&j) * j.image_parts)
    if j.apart != NULL:
        if not j.failed:
            run(add_piece, &j, parts_of_dw(&j) * parts_of(j.ocs, j.gemm.nr))
        give(j.apart)
    return j.failed


def _array_conv_weight(cnp.ndarray x, cnp.ndarray g, kernel, stride=(1, 1), padding=(0, 0), dilation=(1, 1), Py_ssize_t groups=1, mode=None):
    """dw of float32 arrays x [n, ic, ih, iw] with contiguous rows and g [n, oc, oh, ow]; padding is that above and left; for tests and timings."""
    cdef Conv c
    c.n, c.ic, c.ih, c.iw = x.shape[0], x.shape[1], x.shape[2], x.shape[3]
    c.oc, c.oh, c.ow = g.shape[1], g.shape[2], g.shape[3]
    c.kh, c.kw = kernel
    c.sh, c.sw = stride
    c.pt, c.pl = padding
    c.dh, c.dw = dilation
    c.groups = groups
    c.xn, c.xc, c.xh = cnp.PyArray_STRIDE(x, 0) // 4, cnp.PyArray_STRIDE(x, 1) // 4, cnp.PyArray_STRIDE(x, 2) // 4
    if not (<object>g).flags.c_contiguous or (x.size and c.iw > 1 and cnp.PyArray_STRIDE(x, 3) != 4):
        raise ValueError("_array_conv_weight: expected g contiguous and x with contiguous rows")
    cdef cnp.ndarray dw = np.empty((c.oc, c.ic // groups, c.kh, c.kw), np.float32)
    cdef int chosen = current_mode() if mode is None else mode, status
    with nogil:
        status = conv_weight(chosen, &c, <float *>cnp.PyArray_DATA(x), <float *>cnp.PyArray_DATA(g), <float *>cnp.PyArray_DATA(dw))
    if status:
        raise MemoryError("_array_conv_weight: no memory for scratch")
    return dw
