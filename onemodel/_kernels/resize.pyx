"""Owns the walks of resizing, gathers, row gradients and running sums: tables, scratch and the cut into pieces; the loops are in resize.h.

Every piece owns a part of the output by itself, and within it the order of additions is that of the whole: no cut changes a bit.
"""
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy, memset

from onemodel._kernels.pieces cimport begin, cut, run
from onemodel._kernels.table cimport EXACT, om_map1_fn, om_table, row_index, table_of
from onemodel._pool.pool cimport give, take

cdef extern from "kernels.h" nogil:
    ctypedef struct om_taps:
        Py_ssize_t inputs "in"
        Py_ssize_t out
        Py_ssize_t lead
        Py_ssize_t tail
        int doubled
        const int32_t *index
        const float *w0
        const float *w1
        Py_ssize_t slots
        const int32_t *source
        const float *share
    ctypedef void om_resize_taps_fn(om_taps *t, int how, double factor, int32_t *index, float *w0, float *w1) noexcept nogil
    ctypedef Py_ssize_t om_resize_ranges_fn(const om_taps *t, int32_t *begin, int32_t *end) noexcept nogil
    ctypedef void om_resize_slots_fn(const om_taps *t, const int32_t *begin, const int32_t *end, int32_t *source, float *share) noexcept nogil
    ctypedef void om_resize_row_fn(const om_taps *t, const float *x, float *y) noexcept nogil
    ctypedef void om_resize_mix_fn(const float *a, const float *b, float wa, float wb, float *y, Py_ssize_t n) noexcept nogil
    ctypedef void om_resize_row_bwd_fn(const om_taps *t, const float *g, float *room, float *c) noexcept nogil
    ctypedef void om_resize_add_bwd_fn(const float *c, Py_ssize_t slots, Py_ssize_t n, float wa, float *a, float wb, float *b) noexcept nogil
    ctypedef Py_ssize_t om_outside_fn(const int64_t *index, Py_ssize_t n, int64_t size) noexcept nogil
    ctypedef void om_gather_fn(const void *x, Py_ssize_t a, Py_ssize_t b, const int64_t *index, void *y, Py_ssize_t n) noexcept nogil
    ctypedef void om_gather_bwd_fn(const float *g, Py_ssize_t a, Py_ssize_t b, const int64_t *index, float *dx, Py_ssize_t n) noexcept nogil
    ctypedef void om_rows_bwd_fn(const float *g, const int64_t *id, Py_ssize_t n, int64_t skip, float *dx, Py_ssize_t stride, Py_ssize_t cols) noexcept nogil
    ctypedef void om_cumsum_fn(const float *x, float *y, Py_ssize_t along, Py_ssize_t across, Py_ssize_t n, Py_ssize_t m) noexcept nogil

cdef Py_ssize_t TAPS = row_index("resize_taps", "resize_taps")
cdef Py_ssize_t RANGES = row_index("resize_ranges", "resize_ranges")
cdef Py_ssize_t SLOTS = row_index("resize_slots", "resize_slots")
cdef Py_ssize_t ROW = row_index("resize_row", "resize_row")
cdef Py_ssize_t MIX = row_index("resize_mix", "resize_mix")
cdef Py_ssize_t KEEP = row_index("resize_keep", "resize_keep")
cdef Py_ssize_t ROW_BWD = row_index("resize_row_bwd", "resize_row_bwd")
cdef Py_ssize_t ADD_BWD = row_index("resize_add_bwd", "resize_add_bwd")
cdef Py_ssize_t OUTSIDE = row_index("outside", "outside")
cdef Py_ssize_t GATHER_1 = row_index("gather", "gather_1")
cdef Py_ssize_t GATHER_4 = row_index("gather", "gather_4")
cdef Py_ssize_t GATHER_8 = row_index("gather", "gather_8")
cdef Py_ssize_t GATHER_BWD = row_index("gather_bwd", "gather_bwd")
cdef Py_ssize_t ROWS_BWD = row_index("rows_bwd", "rows_bwd")
cdef Py_ssize_t CUMSUM = row_index("cumsum", "cumsum")

cdef enum:
    FEWEST_COLUMNS = 64     # of rows that pieces share by columns, and the most pieces: each walks over all ids, and short runs are slow
    MOST_SHARES = 8


# ---- resizing ----

cdef struct Job:
    const om_table *table
    const Resize *r
    om_taps h
    om_taps w
    const int32_t *begins       # backward: the outputs that have a row of dx as a neighbour
    const int32_t *ends
    const float *x
    float *y
    float *room                 # a share for each piece
    Py_ssize_t share
    Py_ssize_t pieces
    bint exact


cdef void taps_of(const om_table *table, om_taps *t, int how, Py_ssize_t inputs, Py_ssize_t out, double factor, char *room) noexcept nogil:
    """Fills room with 12 bytes per output."""
    t.inputs, t.out, t.slots, t.source, t.share = inputs, out, 0, NULL, NULL
    (<om_resize_taps_fn *> table.row[TAPS])(t, how, factor, <int32_t *> room, <float *> room + out, <float *> room + 2 * out)


cdef void resize_piece(void *context, Py_ssize_t p) noexcept nogil:
    """Rows of y in order; the two latest resized rows of x stay, since neighbouring rows of y share them."""
    cdef Job *job = <Job *> context
    cdef const Resize *r = job.r
    cdef om_resize_row_fn *row = <om_resize_row_fn *> job.table.row[ROW]
    cdef om_resize_mix_fn *mix = <om_resize_mix_fn *> job.table.row[MIX]
    cdef om_map1_fn *keep = <om_map1_fn *> job.table.row[KEEP]
    cdef bint nearest = r.how == NEAREST or r.how == NEAREST_EXACT
    cdef Py_ssize_t at = begin(r.n * r.c * r.oh, job.pieces, p), end = begin(r.n * r.c * r.oh, job.pieces, p + 1)
    cdef Py_ssize_t plane, o, i, have = -1, has_next = -1, last_plane = -1
    cdef const float *x = NULL
    cdef float *y
    cdef float *upper = job.room + p * job.share
    cdef float *lower = upper + r.ow
    cdef float *swap
    while at < end:
        plane, o = at // r.oh, at % r.oh
        y = job.y + at * r.ow
        if plane != last_plane:
            x = job.x + plane // r.c * r.xn + plane % r.c * r.xc
            last_plane, have, has_next = plane, -1, -1
        i = job.h.index[o]
        if nearest:
            if have == i:
                memcpy(y, y - r.ow, r.ow * sizeof(float))
            else:
                row(&job.w, x + i * r.xh, y)
                have = i
        else:
            if have != i:
                if has_next == i:
                    swap = upper
                    upper = lower
                    lower = swap
                    have, has_next = i, -1
                else:
                    row(&job.w, x + i * r.xh, upper)
                    have = i
            if o < job.h.lead or o >= job.h.tail:
                keep(upper, y, r.ow)
            else:
                if has_next != i + 1:
                    row(&job.w, x + (i + 1) * r.xh, lower)
                    has_next = i + 1
                mix(upper, lower, job.h.w0[o], job.h.w1[o], y, r.ow)
        at += 1


cdef int resize(int mode, const Resize *r, const float *x, float *y) noexcept nogil:
    cdef Job job
    cdef char *tables
    cdef Py_ssize_t units = r.n * r.c * r.oh
    if units == 0:
        return 0
    job.table, job.r, job.x, job.y, job.exact = table_of(mode), r, x, y, mode == EXACT
    job.pieces, job.share = cut(units * r.ow, units), 2 * r.ow
    tables = <char *> take(12 * (r.oh + r.ow))
    job.room = <float *> take(job.pieces * job.share * sizeof(float))
    if tables == NULL or job.room == NULL:
        give(tables)
        give(job.room)
        return -1
    taps_of(job.table, &job.h, r.how, r.ih, r.oh, r.fh, tables)
    taps_of(job.table, &job.w, r.how, r.iw, r.ow, r.fw, tables + 12 * r.oh)
    run(resize_piece, &job, job.pieces)
    give(job.room)
    give(tables)
    return 0


cdef void resize_bwd_rows(Job *job, Py_ssize_t plane, Py_ssize_t first, Py_ssize_t last, float *room) noexcept nogil:
    """Rows first to last - 1 of one plane of dx, from the rows of g that reach them, in order."""
    cdef const Resize *r = job.r
    cdef Py_ssize_t o, i, start = 0, stop = 0, row
    cdef float *dx = job.y + plane * r.ih * r.iw
    cdef const float *g = job.x + plane * r.oh * r.ow
    cdef float *c = room + r.ow + 1
    cdef float *a
    cdef float *b
    cdef om_resize_add_bwd_fn *add = <om_resize_add_bwd_fn *> job.table.row[ADD_BWD]
    memset(dx + first * r.iw, 0, (last - first) * r.iw * sizeof(float))
    for row in range(first, last):
        if job.ends[row]:
            if stop == 0:
                start = job.begins[row]
            stop = job.ends[row]
    for o in range(start, stop):
        i = job.h.index[o]
        a = dx + i * r.iw if first <= i < last else NULL
        b = dx + (i + 1) * r.iw if job.h.lead <= o < job.h.tail and first <= i + 1 < last else NULL
        if a == NULL and b == NULL:
            continue
        (<om_resize_row_bwd_fn *> job.table.row[ROW_BWD])(&job.w, g + o * r.ow, room, c)
        if a == NULL:
            add(c, job.w.slots, r.iw, job.h.w1[o], b, 0.0, NULL)
        else:
            add(c, job.w.slots, r.iw, job.h.w0[o], a, job.h.w1[o], b)
    if job.exact:
        (<om_map1_fn *> job.table.row[KEEP])(dx + first * r.iw, dx + first * r.iw, (last - first) * r.iw)


cdef void resize_bwd_piece(void *context, Py_ssize_t p) noexcept nogil:
    cdef Job *job = <Job *> context
    cdef Py_ssize_t rows = job.r.ih, total = job.r.n * job.r.c * rows
    cdef Py_ssize_t at = begin(total, job.pieces, p), end = begin(total, job.pieces, p + 1), stop
    while at < end:
        stop = min(end, (at // rows + 1) * rows)
        resize_bwd_rows(job, at // rows, at % rows, at % rows + stop - at, job.room + p * job.share)
        at = stop


cdef int resize_bwd(int mode, const Resize *r, const float *g, float *dx) noexcept nogil:
    cdef Job job
    cdef char *tables
    cdef char *slots = NULL
    cdef Py_ssize_t units = r.n * r.c * r.ih, ranges = 12 * (r.oh + r.ow)
    cdef int32_t *bounds
    if units == 0:
        return 0
    job.table, job.r, job.x, job.y, job.exact, job.room = table_of(mode), r, g, dx, mode == EXACT, NULL
    tables = <char *> take(ranges + 8 * (r.ih + r.iw))
    if tables == NULL:
        return -1
    taps_of(job.table, &job.h, r.how, r.ih, r.oh, r.fh, tables)
    taps_of(job.table, &job.w, r.how, r.iw, r.ow, r.fw, tables + 12 * r.oh)
    bounds = <int32_t *> (tables + ranges)
    (<om_resize_ranges_fn *> job.table.row[RANGES])(&job.h, bounds, bounds + r.ih)
    job.begins, job.ends = bounds, bounds + r.ih
    bounds += 2 * r.ih
    job.w.slots = (<om_resize_ranges_fn *> job.table.row[RANGES])(&job.w, bounds, bounds + r.iw)
    job.pieces, job.share = cut(r.n * r.c * r.oh * r.ow, units), r.ow + 1 + job.w.slots * r.iw
    slots = <char *> take(8 * job.w.slots * r.iw)
    job.room = <float *> take(job.pieces * job.share * sizeof(float))
    if slots != NULL and job.room != NULL:
        (<om_resize_slots_fn *> job.table.row[SLOTS])(&job.w, bounds, bounds + r.iw, <int32_t *> slots, <float *> slots + job.w.slots * r.iw)
        job.w.source, job.w.share = <const int32_t *> slots, <const float *> slots + job.w.slots * r.iw
        run(resize_bwd_piece, &job, job.pieces)
    cdef int status = 0 if slots != NULL and job.room != NULL else -1
    give(job.room)
    give(slots)
    give(tables)
    return status


# ---- gathers ----

cdef struct Index:
    const om_table *table
    const Gather *q
    int itemsize
    const char *x
    char *y
    const float *g
    const int64_t *index
    Py_ssize_t pieces
    Py_ssize_t[64] wrong        # per piece the place of an index out of range, or -1


cdef inline Py_ssize_t offset(const Gather *q, Py_ssize_t i) noexcept nogil:
    cdef Py_ssize_t at = 0
    cdef int d
    for d in range(q.rank - 1, -1, -1):
        at += i % q.outer_sizes[d] * q.outer_steps[d]
        i //= q.outer_sizes[d]
    return at


cdef void gather_piece(void *context, Py_ssize_t p) noexcept nogil:
    """Pieces are ranges of (outer, inner); an outer index with one inner column is one line along the axis. Each line of the index is checked just
    before it is used, while it is near; a piece ends at a wrong one."""
    cdef Index *job = <Index *> context
    cdef const Gather *q = job.q
    cdef om_gather_fn *move = <om_gather_fn *> job.table.row[GATHER_1 if job.itemsize == 1 else GATHER_4 if job.itemsize == 4 else GATHER_8]
    cdef om_gather_bwd_fn *add = <om_gather_bwd_fn *> job.table.row[GATHER_BWD]
    cdef om_outside_fn *outside = <om_outside_fn *> job.table.row[OUTSIDE]
    cdef Py_ssize_t at = begin(q.outer * q.inner, job.pieces, p), end = begin(q.outer * q.inner, job.pieces, p + 1), i, j, k, width, start, to
    cdef Py_ssize_t count, bad, step = 0 if q.inner == 1 else q.inner_step
    job.wrong[p] = -1
    while at < end:
        i, j = at // q.inner, at % q.inner
        width = min(q.inner - j, end - at)
        start = offset(q, i) + j * q.inner_step
        for k in range(1 if q.inner == 1 else q.n):
            to = i * q.n if q.inner == 1 else (i * q.n + k) * q.inner + j
            count = q.n if q.inner == 1 else width
            bad = outside(job.index + to, count, q.size)
            if bad >= 0:
                job.wrong[p] = to + bad
                return
            if job.g != NULL:
                add(job.g + to, step, q.step, job.index + to, <float *> job.y + start, count)
            else:
                move(job.x + start * job.itemsize, step, q.step, job.index + to, job.y + to * job.itemsize, count)
        at += width


cdef Py_ssize_t start_gather(Index *job) noexcept nogil:
    """The least place of a wrong index, or -1."""
    cdef const Gather *q = job.q
    cdef Py_ssize_t p, found = -1
    if q.outer * q.n * q.inner == 0:
        return -1
    job.pieces = cut(q.outer * q.n * q.inner, q.outer * q.inner)
    run(gather_piece, job, job.pieces)
    for p in range(job.pieces):
        if job.wrong[p] >= 0 and (found < 0 or job.wrong[p] < found):
            found = job.wrong[p]
    return found


cdef Py_ssize_t gather(const Gather *q, int itemsize, const void *x, const int64_t *index, void *y) noexcept nogil:
    cdef Index job
    job.table, job.q, job.itemsize, job.x, job.y, job.g, job.index = table_of(EXACT), q, itemsize, <const char *> x, <char *> y, NULL, index
    return start_gather(&job)


cdef struct Zeros:
    float *at
    Py_ssize_t count, pieces


cdef void zero_piece(void *context, Py_ssize_t p) noexcept nogil:
    cdef Zeros *job = <Zeros *> context
    cdef Py_ssize_t lo = begin(job.count, job.pieces, p)
    memset(job.at + lo, 0, (begin(job.count, job.pieces, p + 1) - lo) * sizeof(float))


cdef void zeros(float *at, Py_ssize_t count) noexcept nogil:
    cdef Zeros job
    job.at, job.count, job.pieces = at, count, cut(count, count)
    if count:
        run(zero_piece, &job, job.pieces)


cdef Py_ssize_t gather_bwd(int mode, const Gather *q, const float *g, const int64_t *index, float *dx, Py_ssize_t total) noexcept nogil:
    cdef Index job
    zeros(dx, total)
    job.table, job.q, job.itemsize, job.x, job.y, job.g, job.index = table_of(mode), q, 4, NULL, <char *> dx, g, index
    return start_gather(&job)


cdef struct Rows:
    const om_table *table
    const char *x
    char *y
    const int64_t *ids
    int64_t skip
    Py_ssize_t row_step, col_step, n, cols, pieces
    int itemsize


cdef void take_piece(void *context, Py_ssize_t p) noexcept nogil:
    cdef Rows *job = <Rows *> context
    cdef Py_ssize_t size = job.itemsize, k, j
    cdef const char *row
    cdef char *to
    for k in range(begin(job.n, job.pieces, p), begin(job.n, job.pieces, p + 1)):
        row = job.x + job.ids[k] * job.row_step * size
        to = job.y + k * job.cols * size
        if job.col_step == 1:
            memcpy(to, row, job.cols * size)
        else:
            for j in range(job.cols):
                memcpy(to + j * size, row + j * job.col_step * size, size)


cdef void take_rows(const void *x, Py_ssize_t row_step, Py_ssize_t col_step, int itemsize, const int64_t *ids, Py_ssize_t n, Py_ssize_t cols,
                    void *y) noexcept nogil:
    cdef Rows job
    job.x, job.y, job.ids, job.row_step, job.col_step, job.itemsize = <const char *> x, <char *> y, ids, row_step, col_step, itemsize
    job.n, job.cols, job.pieces = n, cols, cut(n * cols, n)
    if n * cols:
        run(take_piece, &job, job.pieces)


cdef void rows_bwd_piece(void *context, Py_ssize_t p) noexcept nogil:
    cdef Rows *job = <Rows *> context
    cdef Py_ssize_t lo = begin(job.cols, job.pieces, p)
    (<om_rows_bwd_fn *> job.table.row[ROWS_BWD])(<const float *> job.x + lo, job.ids, job.n, job.skip, <float *> job.y + lo, job.cols,
                                                 begin(job.cols, job.pieces, p + 1) - lo)


cdef void rows_bwd(int mode, const float *g, const int64_t *ids, Py_ssize_t n, int64_t skip, float *dx, Py_ssize_t rows, Py_ssize_t cols) noexcept nogil:
    cdef Rows job
    zeros(dx, rows * cols)
    job.table, job.x, job.y, job.ids, job.skip, job.n, job.cols = table_of(mode), <const char *> g, <char *> dx, ids, skip, n, cols
    if n * cols == 0:
        return
    job.pieces = cut(n * cols, min(MOST_SHARES, max(1, cols // FEWEST_COLUMNS)))
    run(rows_bwd_piece, &job, job.pieces)


cdef Py_ssize_t first_outside(const int64_t *index, Py_ssize_t count, Py_ssize_t size) noexcept nogil:
    return (<om_outside_fn *> table_of(EXACT).row[OUTSIDE])(index, count, size)


cdef struct Slices:
    const om_table *table
    const char *x
    char *y
    const int64_t *index
    Py_ssize_t outer, axis, inner, n, pieces
    int itemsize


cdef void select_piece(void *context, Py_ssize_t p) noexcept nogil:
    """Ranges of (outer, n); elements by the gather's loop, longer slices by copies."""
    cdef Slices *job = <Slices *> context
    cdef om_gather_fn *move = <om_gather_fn *> job.table.row[GATHER_1 if job.itemsize == 1 else GATHER_4 if job.itemsize == 4 else GATHER_8]
    cdef Py_ssize_t at = begin(job.outer * job.n, job.pieces, p), end = begin(job.outer * job.n, job.pieces, p + 1), size = job.inner * job.itemsize
    cdef Py_ssize_t o, k, width, i
    while at < end:
        o, k = at // job.n, at % job.n
        width = min(job.n - k, end - at)
        if job.inner == 1:
            move(job.x + o * job.axis * size, 0, 1, job.index + k, job.y + at * size, width)
        else:
            for i in range(width):
                memcpy(job.y + (at + i) * size, job.x + (o * job.axis + job.index[k + i]) * size, size)
        at += width


cdef void select(Py_ssize_t outer, Py_ssize_t axis, Py_ssize_t inner, int itemsize, const void *x, const int64_t *index, Py_ssize_t n,
                 void *y) noexcept nogil:
    cdef Slices job
    if outer * n * inner == 0:
        return
    job.table, job.x, job.y, job.index, job.itemsize = table_of(EXACT), <const char *> x, <char *> y, index, itemsize
    job.outer, job.axis, job.inner, job.n, job.pieces = outer, axis, inner, n, cut(outer * n * inner, outer * n)
    run(select_piece, &job, job.pieces)


cdef void select_bwd_piece(void *context, Py_ssize_t p) noexcept nogil:
    """Ranges of the outer dimensions, each set to zeros just before it is added to."""
    cdef Slices *job = <Slices *> context
    cdef Py_ssize_t o, size = job.axis * job.inner
    cdef const float *g
    cdef float *dx
    for o in range(begin(job.outer, job.pieces, p), begin(job.outer, job.pieces, p + 1)):
        g, dx = <const float *> job.x + o * job.n * job.inner, <float *> job.y + o * size
        memset(dx, 0, size * sizeof(float))
        if job.inner == 1:
            (<om_gather_bwd_fn *> job.table.row[GATHER_BWD])(g, 0, 1, job.index, dx, job.n)
        else:
            (<om_rows_bwd_fn *> job.table.row[ROWS_BWD])(g, job.index, job.n, -1, dx, job.inner, job.inner)


cdef void select_bwd(int mode, Py_ssize_t outer, Py_ssize_t axis, Py_ssize_t inner, const float *g, const int64_t *index, Py_ssize_t n,
                     float *dx) noexcept nogil:
    cdef Slices job
    if outer == 1 and inner > 1:
        rows_bwd(mode, g, index, n, -1, dx, axis, inner)
        return
    if outer * axis * inner == 0:
        return
    job.table, job.x, job.y, job.index, job.itemsize = table_of(mode), <const char *> g, <char *> dx, index, 4
    job.outer, job.axis, job.inner, job.n, job.pieces = outer, axis, inner, n, cut(outer * max(n, axis) * inner, outer)
    run(select_bwd_piece, &job, job.pieces)


# ---- running sums ----

cdef struct Sums:
    om_cumsum_fn *kernel
    const float *x
    float *y
    Py_ssize_t outer, n, inner, pieces
    bint backwards


cdef void cumsum_piece(void *context, Py_ssize_t p) noexcept nogil:
    """Lines lie across (outer, inner): whole runs of rows where inner is 1, else ranges of columns."""
    cdef Sums *job = <Sums *> context
    cdef Py_ssize_t lines = job.outer * job.inner, at = begin(lines, job.pieces, p), end = begin(lines, job.pieces, p + 1), width, start
    cdef Py_ssize_t along = -job.inner if job.backwards else job.inner, back = (job.n - 1) * job.inner if job.backwards else 0
    while at < end:
        if job.inner == 1:
            width = end - at
            start = at * job.n + back
            job.kernel(job.x + start, job.y + start, along, job.n, job.n, width)
        else:
            width = min(job.inner - at % job.inner, end - at)
            start = at // job.inner * job.n * job.inner + at % job.inner + back
            job.kernel(job.x + start, job.y + start, along, 1, job.n, width)
        at += width


cdef void cumsum(int mode, bint backwards, Py_ssize_t outer, Py_ssize_t n, Py_ssize_t inner, const float *x, float *y) noexcept nogil:
    cdef Sums job
    if outer * n * inner == 0:
        return
    job.kernel, job.x, job.y, job.outer, job.n, job.inner = <om_cumsum_fn *> table_of(mode).row[CUMSUM], x, y, outer, n, inner
    job.backwards, job.pieces = backwards, cut(outer * n * inner, outer * inner)
    run(cumsum_piece, &job, job.pieces)
