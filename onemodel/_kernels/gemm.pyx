"""Owns the blocking, packing and threads of matrix products over the micro-kernels of gemm.h; docs/kernels-gemm.md tells the whole story.

Must not contain arithmetic: every output is one chain over increasing k inside the tiles, so no choice made here can change a bit.
"""

import numpy as np

cimport numpy as cnp
from libc.string cimport memset

from onemodel._kernels.table cimport (current_mode, om_fp_enter, om_fp_leave, om_gemm, om_round_fn, om_sum_fn, parallel, row_index, smallest_piece,
                                      table_of, uint64_t)
from onemodel._pool.pool cimport give, take

cnp.import_array()

cdef Py_ssize_t SUM_COLUMNS = row_index("sum", "sum_columns")
cdef Py_ssize_t ROUND_SUMS = row_index("round", "round_sums")

cdef extern from "kernels.h" nogil:
    enum:
        OM_GEMM_FIRST
        OM_GEMM_LAST
        OM_GEMM_BIAS_ROWS

cdef extern from *:
    """
    /* Room of this thread for what the piece that it runs has packed: floats of A, and of one panel of B. Not on the stack, which may be
     * smaller (128 KB by musl's default); the system makes it when a thread first packs, and frees it with the thread. */
    enum { A_BLOCK = 32768, B_PANEL = 16384 };
    static _Thread_local struct om_gemm_room { _Alignas(64) float a[A_BLOCK], b[B_PANEL]; } om_room;
    """
    enum:
        A_BLOCK
        B_PANEL
    struct om_gemm_room:
        float *a
        float *b
    om_gemm_room om_room

cdef enum:
    K_BLOCK = 384               # steps of k per pass: a panel of B stays in L2, a panel of A in L1
    FEW_ROWS_K_BLOCK = 32       # the same where one row tile reads B once: so many rows of B are read side by side, as memory likes
    NARROW_TILES = 10           # up to so many row tiles each panel of B is used once and packed where it is used, or not at all
    FAR_COLUMNS = 256           # floats from one column of a transposed A to the next, from which on it is packed
    FAR_ROWS = 96               # of such an A are packed at a time, and in a piece
    SHORT_K = 128               # with fewer steps packing a panel costs what it saves
    MADDS_PER_ELEMENT = 16      # multiply-adds that take the time of one element of an element-wise kernel
    WIDE_COLUMNS = 512          # columns of a piece over a packed B: its block of B stays in L2
    MOST_PIECES = 64            # of one product: enough to balance many threads

# One product and how it is cut. Where the roles of the operands are exchanged (C transposed), columns of C are csc apart.
cdef struct Product:
    const om_gemm *g
    Py_ssize_t m
    Py_ssize_t n
    Py_ssize_t k
    const float *a
    Py_ssize_t rsa
    Py_ssize_t csa
    const float *b
    Py_ssize_t rsb
    Py_ssize_t csb
    float *c
    Py_ssize_t rsc
    Py_ssize_t csc
    const float *bias
    int bias_flag
    Py_ssize_t mr           # rows of a tile, balanced over m
    Py_ssize_t kb           # steps of k in one pass
    bint wide               # many row tiles, over a packed B
    bint thin               # few rows, B contiguous along k
    bint in_place           # the same over B where it lies
    bint pack_a
    bint pack_b
    Py_ssize_t nc           # columns of a piece
    Py_ssize_t columns      # pieces beside each other
    Py_ssize_t bands        # and below each other: of whole tiles, as even as they can be
    float *packed           # the whole of B in panels for every piece, or NULL
    float *packed_a         # the whole of A likewise where every piece needs all of it, or NULL
    om_sum_fn *add          # what sums A's rows as they are packed
    double *sums            # into here, or NULL


cdef inline Py_ssize_t round_up(Py_ssize_t x, Py_ssize_t to) noexcept nogil:
    return (x + to - 1) // to * to


cdef void tile_apart(const Product *p, float *c, Py_ssize_t m, Py_ssize_t n, Py_ssize_t k, const float *a, Py_ssize_t rsa, Py_ssize_t csa,
                     const float *b, Py_ssize_t rsb, const float *bias, int flags) noexcept nogil:
    """A tile whose columns in C are apart: computed in a small square and moved."""
    cdef float square[2048]
    cdef Py_ssize_t i, j
    if not flags & OM_GEMM_FIRST:
        for i in range(m):
            for j in range(n):
                square[i * n + j] = c[i * p.rsc + j * p.csc]
    p.g.tile(m, n, k, a, rsa, csa, b, rsb, square, n, bias, flags)
    for i in range(m):
        for j in range(n):
            c[i * p.rsc + j * p.csc] = square[i * n + j]


cdef inline void tile(const Product *p, Py_ssize_t i, Py_ssize_t j, Py_ssize_t m, Py_ssize_t n, Py_ssize_t k, const float *a, Py_ssize_t rsa,
                      Py_ssize_t csa, const float *b, Py_ssize_t rsb, int flags) noexcept nogil:
    cdef const float *bias = NULL
    if p.bias != NULL:
        bias = p.bias + (i if p.bias_flag else j)
    cdef float *c = p.c + i * p.rsc + j * p.csc
    if p.csc == 1:
        p.g.tile(m, n, k, a, rsa, csa, b, rsb, c, p.rsc, bias, flags | p.bias_flag)
    else:
        tile_apart(p, c, m, n, k, a, rsa, csa, b, rsb, bias, flags | p.bias_flag)


cdef void narrow_piece(const Product *p, Py_ssize_t i0, Py_ssize_t i1, Py_ssize_t j0, Py_ssize_t j1) noexcept nogil:
    """Few row tiles: for each panel of B all of them in turn, so that a panel is read or packed once."""
    cdef float *ap = NULL
    cdef float *bp = om_room.b
    cdef const float *bt
    cdef Py_ssize_t wa = round_up(p.mr, p.g.lanes), tiles = (i1 - i0 + p.mr - 1) // p.mr
    cdef Py_ssize_t k0 = 0, kk, t, i, j, mm, nn, rsb
    cdef int flags
    while True:
        kk = min(p.kb, p.k - k0)
        flags = (OM_GEMM_FIRST if k0 == 0 else 0) | (OM_GEMM_LAST if k0 + kk >= p.k else 0)
        if p.packed_a != NULL:
            ap = p.packed_a + k0 * tiles * wa
        elif p.pack_a:
            ap = om_room.a
            p.g.pack(p.a + i0 * p.rsa + k0 * p.csa, p.csa, p.rsa, kk, i1 - i0, p.mr, ap)
        j = j0
        while j < j1:
            nn = p.g.width(p.mr, j1 - j)
            bt = p.b + k0 * p.rsb + j * p.csb
            rsb = p.rsb
            if p.pack_b or nn % p.g.lanes:
                p.g.pack(bt, p.rsb, p.csb, kk, nn, nn, bp)
                bt = bp
                rsb = round_up(nn, p.g.lanes)
            for t in range(tiles):
                i = i0 + t * p.mr
                mm = min(p.mr, i1 - i)
                if ap != NULL:
                    tile(p, i, j, mm, nn, kk, ap + t * wa * kk, 1, round_up(mm, p.g.lanes), bt, rsb, flags)
                else:
                    tile(p, i, j, mm, nn, kk, p.a + i * p.rsa + k0 * p.csa, p.rsa, p.csa, bt, rsb, flags)
            j += nn
        k0 += kk
        if k0 >= p.k:
            break


cdef inline float *panel(const Product *p, Py_ssize_t k0, Py_ssize_t kk, Py_ssize_t j) noexcept nogil:
    """Where the panel of columns from j, steps from k0, stands in the packed B: blocks of k one after the other, panels within."""
    return p.packed + k0 * round_up(p.n, p.g.lanes) + j * kk


cdef void wide_piece(const Product *p, Py_ssize_t i0, Py_ssize_t i1, Py_ssize_t j0, Py_ssize_t j1) noexcept nogil:
    """Many row tiles over a packed B, or one in place: some panels of A are packed, each of them stays in L1 and meets every panel of B, which stream from L2."""
    cdef float *ap = om_room.a
    cdef const float *at
    cdef Py_ssize_t wa = round_up(p.mr, p.g.lanes)
    cdef Py_ssize_t k0 = 0, kk, i, j, mm, nn, rsa, csa, t, tiles
    cdef int flags
    while True:
        kk = min(p.kb, p.k - k0)
        flags = (OM_GEMM_FIRST if k0 == 0 else 0) | (OM_GEMM_LAST if k0 + kk >= p.k else 0)
        i = i0
        tiles = 0
        while i < i1:
            mm = min(p.mr, i1 - i)
            at = p.a + i * p.rsa + k0 * p.csa
            rsa = p.rsa
            csa = p.csa
            if p.pack_a:
                if tiles == 0:
                    tiles = min(A_BLOCK // (wa * max(kk, 1)), (i1 - i + p.mr - 1) // p.mr)
                    if p.sums != NULL and j0 == 0:
                        p.add(at, csa, kk, min(tiles * p.mr, i1 - i), p.sums + i)
                    p.g.pack(at, csa, rsa, kk, min(tiles * p.mr, i1 - i), p.mr, ap)
                    t = 0
                at = ap + t * wa * kk
                rsa = 1
                csa = round_up(mm, p.g.lanes)
                t += 1
                tiles -= 1
            j = j0
            while j < j1:
                nn = min(p.g.nr, j1 - j)
                if p.packed != NULL:
                    tile(p, i, j, mm, nn, kk, at, rsa, csa, panel(p, k0, kk, j), round_up(nn, p.g.lanes), flags)
                else:
                    tile(p, i, j, mm, nn, kk, at, rsa, csa, p.b + k0 * p.rsb + j, p.rsb, flags)
                j += nn
            i += mm
        k0 += kk
        if k0 >= p.k:
            break


cdef void thin_piece(const Product *p, Py_ssize_t j0, Py_ssize_t j1) noexcept nogil:
    """All rows, which are few, for some columns of a B that is contiguous along k."""
    cdef const float *bias = p.bias if p.bias == NULL or p.bias_flag else p.bias + j0
    p.g.thin(p.m, j1 - j0, p.k, p.a, p.rsa, p.b + j0 * p.csb, p.csb, p.c + j0, p.rsc, bias, p.bias_flag)


cdef void run_piece(void *context, Py_ssize_t piece) noexcept nogil:
    cdef const Product *p = <const Product *>context
    cdef Py_ssize_t j = piece % p.columns * p.nc, band = piece // p.columns, tiles = (p.m + p.mr - 1) // p.mr
    if p.thin:
        thin_piece(p, j, min(j + p.nc, p.n))
    elif p.packed != NULL or p.in_place:
        wide_piece(p, tiles * band // p.bands * p.mr, min(tiles * (band + 1) // p.bands * p.mr, p.m), j, min(j + p.nc, p.n))
    else:
        narrow_piece(p, 0, p.m, j, min(j + p.nc, p.n))


cdef void pack_piece(void *context, Py_ssize_t piece) noexcept nogil:
    """One piece of the packed B: nc columns of one block of k."""
    cdef const Product *p = <const Product *>context
    cdef Py_ssize_t k0 = piece // p.columns * p.kb, kk = min(p.kb, p.k - k0), j = piece % p.columns * p.nc
    p.g.pack(p.b + k0 * p.rsb + j * p.csb, p.rsb, p.csb, kk, min(p.nc, p.n - j), p.g.nr, panel(p, k0, kk, j))


cdef void pack_a_piece(void *context, Py_ssize_t piece) noexcept nogil:
    """All rows of one block of k of a packed A."""
    cdef const Product *p = <const Product *>context
    cdef Py_ssize_t k0 = piece * p.kb, kk = min(p.kb, p.k - k0)
    p.g.pack(p.a + k0 * p.csa, p.csa, p.rsa, kk, p.m, p.mr, p.packed_a + k0 * a_width(p))


cdef inline Py_ssize_t a_width(const Product *p) noexcept nogil:
    """Floats that one step of k takes in a packed A."""
    return (p.m + p.mr - 1) // p.mr * round_up(p.mr, p.g.lanes)


cdef Py_ssize_t share(Py_ssize_t whole, Py_ssize_t most, Py_ssize_t unit) noexcept nogil:
    """The even part of whole, in multiples of unit, that is at most about `most`."""
    cdef Py_ssize_t units = (whole + unit - 1) // unit
    cdef Py_ssize_t parts = (units * unit + most - 1) // most
    return (units + parts - 1) // parts * unit


cdef void plan(Product *p) noexcept nogil:
    """Everything that the shape decides: the tile, the block of k, what is packed."""
    cdef const om_gemm *g = p.g
    cdef Py_ssize_t tiles = max((p.m + g.mr - 1) // g.mr, 1)
    p.wide = tiles > NARROW_TILES
    if p.wide:
        tiles = round_up(tiles, 2)  # so that two threads share them evenly
    p.mr = max((p.m + tiles - 1) // tiles, 1)
    p.packed = NULL
    p.in_place = False
    p.packed_a = NULL
    p.thin = p.m <= g.thin_rows and p.rsb == 1 and p.csb != 1 and p.csa == 1 and p.csc == 1
    # Rows of B a multiple of 4 KB apart share one set of L1: a panel that several tiles meet would come from L2 to each of them.
    p.pack_b = p.csb != 1 or (p.rsb % 1024 == 0 and p.m >= 2 * g.mr and p.k >= SHORT_K)
    # Broadcasts read A where it is, unless its rows share one set of L1 (a multiple of 4 KB apart) or its elements are spread over
    # lines, and it is read often. Columns side by side, but so far apart that every step is another page, are packed too, and so many
    # rows at a time that whole lines are read.
    if p.rsa == 1:
        p.pack_a = (p.csa >= FAR_COLUMNS or p.csa <= -FAR_COLUMNS) and p.m > 1 and p.n > 2 * g.nr
    else:
        p.pack_a = (p.csa != 1 or p.rsa % 1024 == 0) and p.m > 1 and p.n > 2 * g.nr
    if tiles == 1 and not p.pack_b:
        p.kb = FEW_ROWS_K_BLOCK
    else:
        p.kb = min(K_BLOCK, B_PANEL // g.width(p.mr, max(p.n, 1)))
    if p.pack_a and p.rsa == 1 and p.wide:  # not the whole of a power of two, which would put all panels into one set of L1
        p.kb = min(p.kb, A_BLOCK // ((FAR_ROWS + p.mr - 1) // p.mr * round_up(p.mr, g.lanes)) - 16)
    elif p.pack_a:
        p.kb = min(p.kb, A_BLOCK // (min(tiles, NARROW_TILES) * round_up(p.mr, g.lanes)))
    if p.k > 0:
        p.kb = share(p.k, p.kb, 1)


cdef Py_ssize_t cut(Product *p, Py_ssize_t items) noexcept nogil:
    """Cuts one of so many equal products: pieces of at least smallest_piece() elements' worth of work, about MOST_PIECES in all, whole
    tiles. Returns the pieces of this one."""
    cdef double madds = <double>p.m * p.n * max(p.k, 1)
    cdef double least = max(<double>smallest_piece() * MADDS_PER_ELEMENT, madds * items / MOST_PIECES)
    cdef Py_ssize_t width, rows
    p.nc = p.n
    p.columns = p.bands = 1
    if madds < 2 * least:
        return 1
    if p.packed == NULL and not p.in_place:
        width = p.g.width(p.mr, p.n)
        p.nc = share(p.n, max(<Py_ssize_t>(least / (<double>p.m * max(p.k, 1))), width), width)
    else:
        p.nc = share(p.n, WIDE_COLUMNS, p.g.nr)
        p.columns = (p.n + p.nc - 1) // p.nc
        rows = max(<Py_ssize_t>(least / (<double>p.nc * max(p.k, 1))), FAR_ROWS if p.pack_a and p.rsa == 1 else p.mr)
        p.bands = max(p.m // rows, 1)
        if p.columns % 2 and p.bands > 1:
            p.bands = round_up(p.bands, 2)  # so that two threads share them evenly
    p.columns = (p.n + p.nc - 1) // p.nc
    return p.columns * p.bands


cdef int pack_whole(Product *p) noexcept nogil:
    """Packs all of B for many pieces; the caller gives p.packed back."""
    p.packed = <float *>take(<size_t>(round_up(p.n, p.g.lanes) * p.k) * sizeof(float))
    if p.packed == NULL:
        return -1
    cdef Py_ssize_t blocks = (p.k + p.kb - 1) // p.kb
    cdef double least = <double>smallest_piece() / max(p.kb, 1)
    p.nc = share(p.n, max(<Py_ssize_t>least, p.g.nr), p.g.nr)
    p.columns = (p.n + p.nc - 1) // p.nc
    parallel(pack_piece, p, p.columns * blocks)
    return 0


cdef int multiply(Product *p) noexcept nogil:
    if p.m == 0 or p.n == 0:
        return 0
    plan(p)
    # A weight's gradient: both operands are long, and packing B whole would write and read memory once more. Tiles fetch its rows ahead where
    # they lie; not rows a multiple of 4 KB apart, which share one set of each cache.
    p.in_place = p.wide and p.pack_a and p.rsa == 1 and p.csb == 1 and p.n % p.g.lanes == 0 and p.rsb % 1024 != 0
    if p.wide and p.k > 0 and not p.in_place and pack_whole(p):
        return -1
    cdef Py_ssize_t pieces = cut(p, 1)
    if p.pack_a and pieces > 1 and p.packed == NULL and not p.in_place:
        p.packed_a = <float *>take(<size_t>(a_width(p) * p.k) * sizeof(float))  # without memory each piece packs its own
        if p.packed_a != NULL:
            parallel(pack_a_piece, p, (p.k + p.kb - 1) // p.kb)
    parallel(run_piece, p, pieces)
    if p.packed != NULL:
        give(p.packed)
    if p.packed_a != NULL:
        give(p.packed_a)
    return 0


cdef void orient(Product *p, int mode, Py_ssize_t m, Py_ssize_t n, Py_ssize_t k, const float *a, Py_ssize_t rsa, Py_ssize_t csa, const float *b,
                 Py_ssize_t rsb, Py_ssize_t csb, float *c, Py_ssize_t rsc, const float *bias) noexcept nogil:
    """States the product; a single column becomes a single row, since lanes run along rows of C."""
    p.g = &table_of(mode).gemm
    p.sums = NULL
    p.k = k
    p.c = c
    p.bias = bias
    if n == 1 and m > 1:
        p.m = n
        p.n = m
        p.a = b
        p.rsa = csb
        p.csa = rsb
        p.b = a
        p.rsb = csa
        p.csb = rsa
        p.rsc = 1
        p.csc = rsc
        p.bias_flag = OM_GEMM_BIAS_ROWS
    else:
        p.m = m
        p.n = n
        p.a = a
        p.rsa = rsa
        p.csa = csa
        p.b = b
        p.rsb = rsb
        p.csb = csb
        p.rsc = rsc
        p.csc = 1
        p.bias_flag = 0


cdef int gemm(int mode, Py_ssize_t m, Py_ssize_t n, Py_ssize_t k, const float *a, Py_ssize_t rsa, Py_ssize_t csa, const float *b, Py_ssize_t rsb,
              Py_ssize_t csb, float *c, Py_ssize_t rsc, const float *bias) noexcept nogil:
    cdef Product p
    orient(&p, mode, m, n, k, a, rsa, csa, b, rsb, csb, c, rsc, bias)
    return multiply(&p)


cdef int gemm_summing(int mode, Py_ssize_t m, Py_ssize_t n, Py_ssize_t k, const float *a, Py_ssize_t rsa, Py_ssize_t csa, const float *b,
                      Py_ssize_t rsb, Py_ssize_t csb, float *c, Py_ssize_t rsc, float *sums) noexcept nogil:
    cdef Product p
    cdef int status
    cdef uint64_t old
    orient(&p, mode, m, n, k, a, rsa, csa, b, rsb, csb, c, rsc, NULL)
    plan(&p)
    if p.wide and p.pack_a and p.rsa == 1 and p.k > 0:
        p.sums = <double *>take(m * sizeof(double))
    if p.sums == NULL:
        return multiply(&p)
    memset(p.sums, 0, m * sizeof(double))
    p.add = <om_sum_fn *>table_of(mode).row[SUM_COLUMNS]
    status = multiply(&p)
    old = om_fp_enter()  # the rounding to floats must not flush what the caller's state would
    (<om_round_fn *>table_of(mode).row[ROUND_SUMS])(p.sums, 1.0, sums, 1, m)
    om_fp_leave(old)
    give(p.sums)
    return status if status < 0 else 1


# Products of one shape: item after item, or several small ones in a piece.
cdef struct Batch:
    Product p
    int ndim
    const Py_ssize_t *shape
    const Py_ssize_t *sa
    const Py_ssize_t *sb
    Py_ssize_t items
    Py_ssize_t group        # items in a piece, or 1
    Py_ssize_t blocks       # pieces of one item, or 1


cdef void select_item(const Batch *t, Py_ssize_t item, Product *p) noexcept nogil:
    cdef Py_ssize_t rest = item, at
    cdef int d
    p[0] = t.p
    p.c += item * t.p.m * t.p.n
    for d in range(t.ndim - 1, -1, -1):
        at = rest % t.shape[d]
        rest //= t.shape[d]
        p.a += at * t.sa[d]
        p.b += at * t.sb[d]


cdef void run_batch_piece(void *context, Py_ssize_t piece) noexcept nogil:
    cdef const Batch *t = <const Batch *>context
    cdef Product p
    cdef Py_ssize_t item = piece // t.blocks * t.group, last = min(item + t.group, t.items)
    while item < last:
        select_item(t, item, &p)
        if t.blocks > 1:
            run_piece(&p, piece % t.blocks)
        else:
            run_whole(&p)
        item += 1


cdef void run_whole(Product *p) noexcept nogil:
    """All of one product on this thread."""
    cdef Py_ssize_t i = 0, rows = p.m if p.packed != NULL else NARROW_TILES * p.mr
    if p.thin:
        thin_piece(p, 0, p.n)
        return
    while i < p.m:
        if p.packed != NULL:
            wide_piece(p, i, min(i + rows, p.m), 0, p.n)
        else:
            narrow_piece(p, i, min(i + rows, p.m), 0, p.n)
        i += rows


cdef int gemm_batched(int mode, int ndim, const Py_ssize_t *shape, const Py_ssize_t *sa, const Py_ssize_t *sb, Py_ssize_t m, Py_ssize_t n,
                      Py_ssize_t k, const float *a, Py_ssize_t rsa, Py_ssize_t csa, const float *b, Py_ssize_t rsb, Py_ssize_t csb,
                      float *c) noexcept nogil:
    cdef Batch t
    cdef Product p
    cdef int d, status = 0
    cdef Py_ssize_t i
    cdef bint one_b = True
    cdef double least
    # Inner dimensions that only lengthen A, as in a batch of sequences times one weight, make one taller product.
    while ndim > 0 and (shape[ndim - 1] == 1 or (sb[ndim - 1] == 0 and (m == 1 or sa[ndim - 1] == rsa * m))):
        if shape[ndim - 1] > 1 and m == 1:
            rsa = sa[ndim - 1]
        m *= shape[ndim - 1]
        ndim -= 1
    t.items = 1
    for d in range(ndim):
        t.items *= shape[d]
        one_b = one_b and (sb[d] == 0 or shape[d] == 1)
    if m == 0 or n == 0 or t.items == 0:
        return 0
    orient(&t.p, mode, m, n, k, a, rsa, csa, b, rsb, csb, c, n, NULL)
    if t.items == 1:
        return multiply(&t.p)
    t.ndim = ndim
    t.shape = shape
    t.sa = sb if t.p.bias_flag else sa
    t.sb = sa if t.p.bias_flag else sb
    one_b = one_b and not t.p.bias_flag
    plan(&t.p)
    least = <double>smallest_piece() * MADDS_PER_ELEMENT
    if one_b and k > 0 and (t.p.pack_b or t.items * m > NARROW_TILES * t.p.mr):
        if pack_whole(&t.p):
            return -1
    elif t.p.wide and <double>m * n * k > 4 * least:
        for i in range(t.items):
            select_item(&t, i, &p)
            status = multiply(&p)
            if status:
                return status
        return 0
    t.blocks = 1
    if t.p.packed != NULL or not t.p.wide:
        t.blocks = cut(&t.p, t.items)
    t.group = 1
    if t.blocks == 1:
        least = max(least, <double>t.items * m * n * k / MOST_PIECES)
        t.group = max(<Py_ssize_t>1, min(t.items, <Py_ssize_t>(least / max(<double>m * n * k, 1.0))))
    parallel(run_batch_piece, &t, (t.items + t.group - 1) // t.group * t.blocks)
    if t.p.packed != NULL:
        give(t.p.packed)
    return status


def matmul_arrays(cnp.ndarray a, cnp.ndarray b, bias=None, mode=None, cnp.ndarray out=None):
    """The product of two float32 matrices with any strides, into `out` if given; for tests and timings of the kernels alone."""
    cdef Py_ssize_t m = cnp.PyArray_DIM(a, 0), k = cnp.PyArray_DIM(a, 1), n = cnp.PyArray_DIM(b, 1)
    cdef cnp.ndarray e = bias
    cdef cnp.npy_intp shape[2]
    cdef int status, chosen = current_mode() if mode is None else mode
    if cnp.PyArray_DIM(b, 0) != k:
        raise ValueError(f"matmul_arrays: expected b to have {k} rows, got {cnp.PyArray_DIM(b, 0)}")
    if out is None:
        shape[0] = m
        shape[1] = n
        out = cnp.PyArray_EMPTY(2, shape, cnp.NPY_FLOAT32, 0)
    with nogil:
        status = gemm(chosen, m, n, k, <float *>cnp.PyArray_DATA(a), cnp.PyArray_STRIDE(a, 0) // 4, cnp.PyArray_STRIDE(a, 1) // 4,
                      <float *>cnp.PyArray_DATA(b), cnp.PyArray_STRIDE(b, 0) // 4, cnp.PyArray_STRIDE(b, 1) // 4,
                      <float *>cnp.PyArray_DATA(out), cnp.PyArray_STRIDE(out, 0) // 4,
                      <float *>cnp.PyArray_DATA(e) if e is not None else NULL)
    if status:
        raise MemoryError("matmul_arrays: no memory for the packed operand")
    return out


def batched_arrays(cnp.ndarray a, cnp.ndarray b, mode=None):
    """Products of two float32 arrays [batch..., m, k] and [batch..., k, n] with equal batch shapes and any strides; for tests."""
    cdef int ndim = cnp.PyArray_NDIM(a) - 2, d, status, chosen = current_mode() if mode is None else mode
    cdef Py_ssize_t shape[32]
    cdef Py_ssize_t sa[32]
    cdef Py_ssize_t sb[32]
    cdef Py_ssize_t m = cnp.PyArray_DIM(a, ndim), k = cnp.PyArray_DIM(a, ndim + 1), n = cnp.PyArray_DIM(b, ndim + 1)
    cdef cnp.ndarray out = np.empty((*(<object>a).shape[:ndim], m, n), np.float32)
    for d in range(ndim):
        shape[d] = cnp.PyArray_DIM(a, d)
        sa[d] = cnp.PyArray_STRIDE(a, d) // 4
        sb[d] = cnp.PyArray_STRIDE(b, d) // 4
    with nogil:
        status = gemm_batched(chosen, ndim, shape, sa, sb, m, n, k, <float *>cnp.PyArray_DATA(a), cnp.PyArray_STRIDE(a, ndim) // 4,
                              cnp.PyArray_STRIDE(a, ndim + 1) // 4, <float *>cnp.PyArray_DATA(b), cnp.PyArray_STRIDE(b, ndim) // 4,
                              cnp.PyArray_STRIDE(b, ndim + 1) // 4, <float *>cnp.PyArray_DATA(out))
    if status:
        raise MemoryError("batched_arrays: no memory for the packed operand")
    return out
