"""Owns copies between strides, casts and fills: the walk over dimensions and the cut into pieces; the loops are in copy.h."""
from onemodel._kernels.pieces cimport begin, cut, run
from onemodel._kernels.table cimport EXACT, om_cast_fn, om_copy_fn, om_fn, row_index, table_of

cdef Py_ssize_t COPY_1 = row_index("copy", "copy_1")
cdef Py_ssize_t COPY_4 = row_index("copy", "copy_4")
cdef Py_ssize_t COPY_8 = row_index("copy", "copy_8")

cdef int ITEMSIZE[5]
ITEMSIZE[:] = [4, 4, 8, 1, 1]
# The row that casts from one kind to another; -1 where the bits are the same, so that it is a copy.
cdef Py_ssize_t CASTS[5][5]
for _from in range(5):
    for _to in range(5):
        # A bool is a byte of 0 or 1: it reads as a uint8.
        _names = ["f4", "i4", "i8", "u1", "b1"]
        _same = _from == _to or (_from == B1 and _to == U1)
        CASTS[_from][_to] = -1 if _same else row_index("cast", f"cast_{_names[_from if _from != B1 else U1]}_{_names[_to]}")


cdef inline Py_ssize_t magnitude(Py_ssize_t v) noexcept nogil:
    return v if v >= 0 else -v


cdef Py_ssize_t simplify(Dims *d, int ndim, const Py_ssize_t *shape, const Py_ssize_t *a, const Py_ssize_t *b, bint reorder) noexcept nogil:
    cdef int i, j, n = 0
    cdef Py_ssize_t total = 1, size, sa, sb
    for i in range(ndim):
        total *= shape[i]
        if shape[i] == 1:
            continue
        size, sa, sb = shape[i], a[i], b[i]
        j = n
        if reorder:
            while j > 0 and (magnitude(d.b[j - 1]) < magnitude(sb)
                             or magnitude(d.b[j - 1]) == magnitude(sb) and magnitude(d.a[j - 1]) < magnitude(sa)):
                d.size[j], d.a[j], d.b[j] = d.size[j - 1], d.a[j - 1], d.b[j - 1]
                j -= 1
        d.size[j], d.a[j], d.b[j] = size, sa, sb
        n += 1
    d.n = 0
    if total == 0:
        return 0
    for i in range(n):
        j = d.n - 1
        if j >= 0 and d.a[j] == d.size[i] * d.a[i] and d.b[j] == d.size[i] * d.b[i]:
            d.size[j] *= d.size[i]
            d.a[j], d.b[j] = d.a[i], d.b[i]
        else:
            j = d.n
            d.size[j], d.a[j], d.b[j] = d.size[i], d.a[i], d.b[i]
            d.n += 1
    return total


cdef void contiguous_strides(int ndim, const Py_ssize_t *shape, Py_ssize_t *strides) noexcept nogil:
    cdef Py_ssize_t step = 1
    cdef int i
    for i in range(ndim - 1, -1, -1):
        strides[i] = step
        step *= shape[i]


cdef bint is_contiguous(int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides) noexcept nogil:
    cdef Py_ssize_t step = 1
    cdef int i
    for i in range(ndim - 1, -1, -1):
        if shape[i] == 0:
            return True
        if shape[i] != 1 and strides[i] != step:
            return False
        step *= shape[i]
    return True


cdef enum:
    UNIT_ROWS = 64      # of a transpose that threads share: whole blocks of copy.h
    UNIT_COLS = 256
    UNIT_LONG = 4096    # columns, of fewer rows than a tile's
    UNIT_LINE = 64      # elements, so that a unit begins with a line of either side where all lines do, whatever the type


# A copy or cast as outer dimensions times a block of rows and columns. Pieces are ranges of all rows, or of columns if there is one row, or,
# of a transpose, of units high enough to use whole lines of the source.
cdef struct Job:
    Dims outer
    om_copy_fn *copy
    om_cast_fn *cast
    const char *src
    char *dst
    int src_size, dst_size
    Py_ssize_t src_row, src_col, dst_row, dst_col, rows, cols, all_rows, pieces
    Py_ssize_t high, wide       # units along the rows and along the columns


cdef void block(Job *job, Py_ssize_t src, Py_ssize_t dst, Py_ssize_t rows, Py_ssize_t cols) noexcept nogil:
    cdef const char *s = job.src + src * job.src_size
    cdef char *d = job.dst + dst * job.dst_size
    cdef Py_ssize_t r
    if job.cast == NULL:
        job.copy(s, job.src_row, job.src_col, d, job.dst_row, job.dst_col, rows, cols)
        return
    for r in range(rows):
        job.cast(s + r * job.src_row * job.src_size, job.src_col, d + r * job.dst_row * job.dst_size, cols)


cdef inline void to_outer(const Job *job, Py_ssize_t index, Py_ssize_t *src, Py_ssize_t *dst) noexcept nogil:
    """Adds where the index-th of the outer dimensions' places begins."""
    cdef int i
    for i in range(job.outer.n - 1, -1, -1):
        src[0] += index % job.outer.size[i] * job.outer.a[i]
        dst[0] += index % job.outer.size[i] * job.outer.b[i]
        index //= job.outer.size[i]


cdef inline Py_ssize_t unit_begin(Py_ssize_t total, Py_ssize_t units, Py_ssize_t u) noexcept nogil:
    return min(begin((total + UNIT_LINE - 1) // UNIT_LINE, units, u) * UNIT_LINE, total)


cdef void transpose_piece(void *context, Py_ssize_t p) noexcept nogil:
    cdef Job *job = <Job *> context
    cdef Py_ssize_t units = job.high * job.wide, all_units = job.all_rows // job.rows * units, u, v, r, c, src, dst
    for u in range(begin(all_units, job.pieces, p), begin(all_units, job.pieces, p + 1)):
        v = u % units
        r, c = unit_begin(job.rows, job.high, v // job.wide), unit_begin(job.cols, job.wide, v % job.wide)
        src, dst = r * job.src_row + c * job.src_col, r * job.dst_row + c * job.dst_col
        to_outer(job, u // units, &src, &dst)
        block(job, src, dst, unit_begin(job.rows, job.high, v // job.wide + 1) - r, unit_begin(job.cols, job.wide, v % job.wide + 1) - c)


cdef void copy_piece(void *context, Py_ssize_t p) noexcept nogil:
    cdef Job *job = <Job *> context
    cdef Py_ssize_t lo, hi, src, dst, row, rows
    if job.all_rows == 1:
        lo, hi = begin(job.cols, job.pieces, p), begin(job.cols, job.pieces, p + 1)
        block(job, lo * job.src_col, lo * job.dst_col, 1, hi - lo)
        return
    lo, hi = begin(job.all_rows, job.pieces, p), begin(job.all_rows, job.pieces, p + 1)
    while lo < hi:
        row = lo % job.rows
        rows = job.rows - row if job.rows - row < hi - lo else hi - lo
        src, dst = row * job.src_row, row * job.dst_row
        to_outer(job, lo // job.rows, &src, &dst)
        block(job, src, dst, rows, job.cols)
        lo += rows


# Takes the column dimension (the last) and the row dimension out of job.outer and runs.
cdef int start(Job *job, Py_ssize_t total) noexcept nogil:
    cdef Dims *d = &job.outer
    cdef int i, rows_at
    cdef Py_ssize_t wide
    job.rows, job.src_row, job.dst_row = 1, 0, 0
    job.cols, job.src_col, job.dst_col = 1, 1, 1
    if d.n > 0:
        d.n -= 1
        job.cols, job.src_col, job.dst_col = d.size[d.n], d.a[d.n], d.b[d.n]
    if d.n > 0:
        rows_at = d.n - 1
        # A transpose: some dimension walks the source more tightly than the columns do.
        for i in range(d.n):
            if magnitude(d.a[i]) < magnitude(job.src_col) and magnitude(d.a[i]) < magnitude(d.a[rows_at]) and d.a[i] != 0:
                rows_at = i
        job.rows, job.src_row, job.dst_row = d.size[rows_at], d.a[rows_at], d.b[rows_at]
        d.n -= 1
        for i in range(rows_at, d.n):
            d.size[i], d.a[i], d.b[i] = d.size[i + 1], d.a[i + 1], d.b[i + 1]
    job.all_rows = job.rows
    for i in range(d.n):
        job.all_rows *= d.size[i]
    # Fewer columns than a tile's are cut as rows are; of so few rows only channels are turned together, and bytes not.
    if (job.copy != NULL and job.src_row == 1 and job.dst_col == 1 and job.src_col != 1 and job.src_col != 0 and job.cols >= 8
            and job.rows >= (3 if job.src_size == 4 else 8)):
        wide = UNIT_LONG if job.rows < 8 else UNIT_COLS
        job.high, job.wide = (job.rows + UNIT_ROWS - 1) // UNIT_ROWS, (job.cols + wide - 1) // wide
        job.pieces = cut(total, job.all_rows // job.rows * job.high * job.wide)
        run(transpose_piece, job, job.pieces)
        return 0
    job.pieces = cut(total, job.cols if job.all_rows == 1 else job.all_rows)
    run(copy_piece, job, job.pieces)
    return 0


cdef om_copy_fn *copier(int itemsize) noexcept nogil:
    return <om_copy_fn *> table_of(EXACT).row[COPY_1 if itemsize == 1 else COPY_4 if itemsize == 4 else COPY_8]


cdef int strided_copy(int ndim, const Py_ssize_t *shape, int itemsize, const void *src, const Py_ssize_t *src_strides,
                      void *dst, const Py_ssize_t *dst_strides) noexcept nogil:
    cdef Job job
    cdef Py_ssize_t total = simplify(&job.outer, ndim, shape, src_strides, dst_strides, True)
    if total == 0:
        return 0
    job.copy, job.cast = copier(itemsize), NULL
    job.src, job.dst = <const char *> src, <char *> dst
    job.src_size = job.dst_size = itemsize
    return start(&job, total)


cdef int fill(int ndim, const Py_ssize_t *shape, int itemsize, void *dst, const Py_ssize_t *dst_strides, const void *value) noexcept nogil:
    cdef Py_ssize_t zeros[64]
    cdef int i
    for i in range(ndim):
        zeros[i] = 0
    return strided_copy(ndim, shape, itemsize, value, zeros, dst, dst_strides)


cdef int cast(int ndim, const Py_ssize_t *shape, int src_kind, const void *src, const Py_ssize_t *src_strides, int dst_kind, void *dst) noexcept nogil:
    cdef Py_ssize_t dst_strides[64]
    cdef Job job
    cdef Py_ssize_t total
    contiguous_strides(ndim, shape, dst_strides)
    if CASTS[src_kind][dst_kind] < 0:
        return strided_copy(ndim, shape, ITEMSIZE[src_kind], src, src_strides, dst, dst_strides)
    total = simplify(&job.outer, ndim, shape, src_strides, dst_strides, False)
    if total == 0:
        return 0
    job.copy, job.cast = NULL, <om_cast_fn *> table_of(EXACT).row[CASTS[src_kind][dst_kind]]
    job.src, job.dst = <const char *> src, <char *> dst
    job.src_size, job.dst_size = ITEMSIZE[src_kind], ITEMSIZE[dst_kind]
    return start(&job, total)


cdef int array_layout(object array, str dtype, Py_ssize_t *shape, Py_ssize_t *strides, void **data) except -1:
    cdef int i
    if array.dtype.str.lstrip("<|") != dtype:
        raise TypeError(f"expected an array of type {dtype}, got {array.dtype.str}")
    for i in range(array.ndim):
        shape[i] = array.shape[i]
        strides[i] = array.strides[i] // array.itemsize
    data[0] = <void *> <size_t> array.__array_interface__["data"][0]
    return array.ndim


def _array_copy(src, dst):
    """dst[...] = src for arrays of one shape and type: the copy kernel on its own, for tests."""
    cdef Py_ssize_t shape[64]
    cdef Py_ssize_t a[64]
    cdef Py_ssize_t b[64]
    cdef void *s
    cdef void *d
    cdef int itemsize = src.itemsize, ndim = array_layout(src, src.dtype.str.lstrip("<|"), shape, a, &s)
    array_layout(dst, src.dtype.str.lstrip("<|"), shape, b, &d)
    if src.shape != dst.shape:
        raise ValueError(f"expected one shape, got {src.shape} and {dst.shape}")
    with nogil:
        strided_copy(ndim, shape, itemsize, s, a, d, b)


def _array_fill(dst, value):
    """dst[...] = value, a one-element array of dst's type."""
    cdef Py_ssize_t shape[64]
    cdef Py_ssize_t b[64]
    cdef void *d
    cdef void *v
    cdef int itemsize = dst.itemsize, ndim
    array_layout(value, dst.dtype.str.lstrip("<|"), shape, b, &v)
    ndim = array_layout(dst, dst.dtype.str.lstrip("<|"), shape, b, &d)
    with nogil:
        fill(ndim, shape, itemsize, d, b, v)


KINDS = ["f4", "i4", "i8", "u1", "b1"]


def _array_cast(src, dst):
    """dst = src in dst's type; dst contiguous."""
    cdef Py_ssize_t shape[64]
    cdef Py_ssize_t a[64]
    cdef Py_ssize_t b[64]
    cdef void *s
    cdef void *d
    cdef int src_kind = KINDS.index(src.dtype.str.lstrip("<|")), dst_kind = KINDS.index(dst.dtype.str.lstrip("<|")), ndim
    array_layout(dst, KINDS[dst_kind], shape, b, &d)
    ndim = array_layout(src, KINDS[src_kind], shape, a, &s)
    with nogil:
        cast(ndim, shape, src_kind, s, a, dst_kind, d)
