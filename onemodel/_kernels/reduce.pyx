"""Owns reductions over axes: which kernel walks which axis, the order of a sum, and the cut into pieces; the loops are in reduce.h.

Every output is one chain over the reduced axes in row-major order, whatever the strides; blocks and threads go over outputs. Only fast
mode splits a sum of everything, at fixed places, and joins the parts in order; in exact mode threads look at its windows beforehand.
"""
from libc.math cimport INFINITY, NAN, fabs, frexp, isfinite, ldexp
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

from onemodel._kernels.copy cimport Dims, array_layout, contiguous_strides, is_contiguous, simplify, strided_copy
from onemodel._kernels.pieces cimport begin, cut, run
from onemodel._kernels.table cimport (EXACT, FAST, OM_BINADE, OM_SUM_WAYS, OM_SUM_WINDOW, OM_WIDE, om_arg_fn, om_copy_fn, om_extremum_fn, om_fp_enter,
                                      om_fp_leave, om_joined_fn, om_map2_fn, om_quotient_fn, om_round_fn, om_share_fn, om_sum_fn, om_table,
                                      om_ties_fn, om_window, om_windows_fn, row_index, smallest_piece, table_of, thread_count)
from onemodel._pool.pool cimport give, take

cdef Py_ssize_t SUM_ROWS = row_index("sum", "sum_rows")
cdef Py_ssize_t SUM_COLUMNS = row_index("sum", "sum_columns")
cdef Py_ssize_t SUM_WINDOWS = row_index("windows", "sum_windows")
cdef Py_ssize_t SUM_JOINED = row_index("joined", "sum_joined")
cdef Py_ssize_t ROUND_SUMS = row_index("round", "round_sums")
cdef Py_ssize_t AMAX_ROWS = row_index("extremum", "amax_rows")
cdef Py_ssize_t AMAX_COLUMNS = row_index("extremum", "amax_columns")
cdef Py_ssize_t AMIN_ROWS = row_index("extremum", "amin_rows")
cdef Py_ssize_t AMIN_COLUMNS = row_index("extremum", "amin_columns")
cdef Py_ssize_t ARGMAX_ROWS = row_index("arg", "argmax_rows")
cdef Py_ssize_t TIES_ROWS = row_index("ties", "ties_rows")
cdef Py_ssize_t TIES_COLUMNS = row_index("ties", "ties_columns")
cdef Py_ssize_t QUOTIENTS = row_index("quotient", "quotients")
cdef Py_ssize_t SHARE_ROWS = row_index("share", "share_rows")
cdef Py_ssize_t SHARE_COLUMNS = row_index("share", "share_columns")
cdef Py_ssize_t ADD = row_index("map2", "add")
cdef Py_ssize_t COPY_4 = row_index("copy", "copy_4")

cdef enum:
    BLOCK = 512         # outputs with running state at once, on the stack
    GATHER_ROWS = 8     # a strided block is first laid out as this many rows of this many elements
    GATHER_COLS = 2048
    SPAN = 65536        # where fast mode may split one sum
    AHEAD = 256         # most windows that threads look at before the chain goes over them, which may want them looked at otherwise
    AHEAD_LEAST = 4     # after a wrong guess
    LOOK = 4            # what such a look takes, in element-wise operations

# How a block of outputs is read: as contiguous columns, as contiguous rows, or through a copy.
cdef enum Path:
    COLUMNS
    ROWS
    GATHER

cdef struct Job:
    const om_table *table
    int op, path
    bint failed
    Dims kept                # a: strides of x, b: strides of out; without the block axis
    Dims outer               # the reduced axes but the innermost
    Py_ssize_t size, x_step, out_step   # the block axis: the kept axis along which a block of outputs lies
    Py_ssize_t n, n_step                # the innermost reduced axis
    Py_ssize_t outer_total, reduced_total, block, blocks, units, pieces
    const float *x
    float *out
    const float *y           # extremum_bwd only
    const float *g
    float *dx


cdef inline Py_ssize_t magnitude(Py_ssize_t v) noexcept nogil:
    return v if v >= 0 else -v


cdef inline void remove_axis(Dims *d, int i) noexcept nogil:
    d.n -= 1
    for i in range(i, d.n):
        d.size[i], d.a[i], d.b[i] = d.size[i + 1], d.a[i + 1], d.b[i + 1]


# Splits the axes; returns the number of outputs (job.reduced_total has the other factor).
cdef Py_ssize_t plan(Job *job, int mode, int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides, unsigned long long axes_mask) noexcept nogil:
    cdef Py_ssize_t sizes[64]
    cdef Py_ssize_t steps[64]
    cdef Py_ssize_t packed[64]
    cdef Py_ssize_t outputs
    cdef int i, k = 0, v = -1
    sizes[0] = steps[0] = 1    # the compiler cannot see that an empty list is never read
    for i in range(ndim):
        if axes_mask >> i & 1:
            sizes[k], steps[k] = shape[i], strides[i]
            k += 1
    # Fast mode may add in the order of memory.
    job.reduced_total = simplify(&job.outer, k, sizes, steps, steps, mode == FAST)
    k = 0
    for i in range(ndim):
        if not axes_mask >> i & 1:
            sizes[k], steps[k] = shape[i], strides[i]
            k += 1
    contiguous_strides(k, sizes, packed)
    outputs = simplify(&job.kept, k, sizes, steps, packed, False)
    if outputs == 0 or job.reduced_total == 0:
        return outputs

    job.n, job.n_step = 1, 1
    if job.outer.n > 0:
        i = job.outer.n - 1
        job.n, job.n_step = job.outer.size[i], job.outer.a[i]
        job.outer.n = i
    job.outer_total = job.reduced_total // job.n
    job.path = ROWS if job.n_step == 1 else GATHER
    for i in range(job.kept.n):
        if job.kept.a[i] == 1:
            job.path, v = COLUMNS, i
    # Few columns would leave most lanes empty and each addition waiting for the one before.
    if job.path == COLUMNS and job.kept.size[v] < 8 and job.n >= 32 and job.n_step != 1:
        job.path = GATHER
    if v < 0:
        v = job.kept.n - 1
        if job.path == GATHER:
            for i in range(job.kept.n):
                if magnitude(job.kept.a[i]) < magnitude(job.kept.a[v]):
                    v = i
    job.size, job.x_step, job.out_step = 1, 0, 0
    if v >= 0:
        job.size, job.x_step, job.out_step = job.kept.size[v], job.kept.a[v], job.kept.b[v]
        remove_axis(&job.kept, v)

    # Blocks as long as the state allows, but enough of them to share; where a block ends changes no bit. Sixteen rows are added beside each other.
    job.block = BLOCK if job.path == COLUMNS else 64
    while job.block > 8 and job.block * job.reduced_total > smallest_piece() and (
            outputs // job.size * ((job.size + job.block - 1) // job.block) < (thread_count() if job.block <= 16 else 8)):
        job.block //= 2
    job.blocks = (job.size + job.block - 1) // job.block
    job.units = outputs // job.size * job.blocks
    job.pieces = cut(outputs * job.reduced_total, job.units)
    return outputs


cdef inline Py_ssize_t offset(const Dims *d, Py_ssize_t index) noexcept nogil:
    cdef Py_ssize_t at = 0
    cdef int i
    for i in range(d.n - 1, -1, -1):
        at += index % d.size[i] * d.a[i]
        index //= d.size[i]
    return at


# Where a unit's block of outputs starts in x and in out, and how many outputs it has.
cdef inline void locate(const Job *job, Py_ssize_t unit, Py_ssize_t *at_x, Py_ssize_t *at_out, Py_ssize_t *count) noexcept nogil:
    cdef Py_ssize_t first = unit % job.blocks * job.block, index = unit // job.blocks
    cdef int i
    count[0] = job.block if job.block < job.size - first else job.size - first
    at_x[0], at_out[0] = first * job.x_step, first * job.out_step
    for i in range(job.kept.n - 1, -1, -1):
        at_x[0] += index % job.kept.size[i] * job.kept.a[i]
        at_out[0] += index % job.kept.size[i] * job.kept.b[i]
        index //= job.kept.size[i]


cdef inline void join(const Job *job, const float *x, Py_ssize_t stride, Py_ssize_t rows, Py_ssize_t cols, bint columns,
                      double *sums, float *bests) noexcept nogil:
    if job.op <= 1:
        (<om_sum_fn *> job.table.row[SUM_COLUMNS if columns else SUM_ROWS])(x, stride, rows, cols, sums)
    elif job.op == 2:
        (<om_extremum_fn *> job.table.row[AMAX_COLUMNS if columns else AMAX_ROWS])(x, stride, rows, cols, bests)
    else:
        (<om_extremum_fn *> job.table.row[AMIN_COLUMNS if columns else AMIN_ROWS])(x, stride, rows, cols, bests)


cdef void reduce_piece(void *context, Py_ssize_t p) noexcept nogil:
    cdef Job *job = <Job *> context
    cdef double sums[BLOCK]
    cdef float bests[BLOCK]
    cdef float *scratch = NULL
    cdef Py_ssize_t unit, at_x, at_out, count, i, k, r, c, rows, cols, together = 1
    cdef int last = 0
    cdef const float *x
    cdef om_copy_fn *copy = <om_copy_fn *> job.table.row[COPY_4]
    if job.path == GATHER:
        scratch = <float *> take(GATHER_ROWS * GATHER_COLS * sizeof(float))
        if scratch == NULL:
            job.failed = True
            return
    # One output: whole logical rows, side by side in memory, are laid out one after the other.
    if job.path == GATHER and job.size == 1 and job.outer.n > 0 and job.n <= GATHER_ROWS * GATHER_COLS // 8:
        together = GATHER_ROWS * GATHER_COLS // job.n
        last = job.outer.n - 1
    for unit in range(begin(job.units, job.pieces, p), begin(job.units, job.pieces, p + 1)):
        locate(job, unit, &at_x, &at_out, &count)
        for i in range(count):
            if job.op <= 1:
                sums[i] = 0.0
            else:
                bests[i] = -INFINITY if job.op == 2 else INFINITY
        k = 0
        while k < job.outer_total:
            x = job.x + at_x + offset(&job.outer, k)
            k += 1
            if together > 1:
                rows = job.outer.size[last] - (k - 1) % job.outer.size[last]
                rows = together if together < rows else rows
                copy(x, job.outer.a[last], job.n_step, scratch, job.n, 1, rows, job.n)
                join(job, scratch, 0, 1, rows * job.n, False, sums, bests)
                k += rows - 1
            elif job.path == COLUMNS:
                join(job, x, job.n_step, job.n, count, True, sums, bests)
            elif job.path == ROWS:
                join(job, x, job.x_step, count, job.n, False, sums, bests)
            else:
                for r from 0 <= r < count by GATHER_ROWS:
                    rows = GATHER_ROWS if GATHER_ROWS < count - r else count - r
                    for c from 0 <= c < job.n by GATHER_COLS:
                        cols = GATHER_COLS if GATHER_COLS < job.n - c else job.n - c
                        copy(x + r * job.x_step + c * job.n_step, job.x_step, job.n_step, scratch, cols, 1, rows, cols)
                        join(job, scratch, cols, rows, cols, False, sums + r, bests + r)
        if job.op <= 1:
            (<om_round_fn *> job.table.row[ROUND_SUMS])(sums, <double> job.reduced_total if job.op == 1 else 1.0, job.out + at_out, job.out_step, count)
        else:
            copy(bests, 1, 1, job.out + at_out, job.out_step, 1, count, 1)
    give(scratch)


# Fast mode's split of one long sum: the part at SPAN * k, whatever the thread.
cdef struct Parts:
    om_sum_fn *sum_rows
    const float *x
    double *part
    Py_ssize_t n, parts, pieces


cdef void part_piece(void *context, Py_ssize_t p) noexcept nogil:
    cdef Parts *job = <Parts *> context
    cdef Py_ssize_t k, at
    for k in range(begin(job.parts, job.pieces, p), begin(job.parts, job.pieces, p + 1)):
        at = k * SPAN
        job.part[k] = 0.0
        job.sum_rows(job.x + at, 0, 1, SPAN if SPAN < job.n - at else job.n - at, job.part + k)


cdef int sum_parts(const float *x, Py_ssize_t n, double *total) noexcept nogil:
    cdef Parts job
    cdef Py_ssize_t k
    job.sum_rows, job.x, job.n, job.parts = <om_sum_fn *> table_of(FAST).row[SUM_ROWS], x, n, (n + SPAN - 1) // SPAN
    job.part = <double *> take(job.parts * sizeof(double))
    if job.part == NULL:
        return -1
    job.pieces = cut(n, job.parts)
    run(part_piece, &job, job.pieces)
    for k in range(job.parts):
        total[0] += job.part[k]
    give(job.part)
    return 0


# Exact mode's long sum: threads find out about windows, the caller's thread joins them to the chain. What a window has to be asked depends on
# the sum before it, so it is a guess, which costs time where it is wrong.
cdef struct Windows:
    om_windows_fn *find
    source_fn *source
    void *context
    om_window *found
    int way
    double spacing
    Py_ssize_t at, windows, pieces


cdef void windows_piece(void *context, Py_ssize_t p) noexcept nogil:
    cdef Windows *job = <Windows *> context
    cdef float[OM_SUM_WINDOW] buffer
    cdef Py_ssize_t w
    for w in range(begin(job.windows, job.pieces, p), begin(job.windows, job.pieces, p + 1)):
        job.find(job.source(job.context, job.at + w * OM_SUM_WINDOW, OM_SUM_WINDOW, buffer), 1, job.way, job.spacing, job.found + w)


# The distance between doubles at v, 0 at 0; for infinity and NaN, where no window joins, any number.
cdef inline double spacing_at(double v) noexcept nogil:
    cdef int exponent
    if v == 0.0:
        return 0.0
    frexp(v, &exponent)
    return ldexp(1.0, exponent - 53)


cdef double sum_made(source_fn *source, void *context, Py_ssize_t n) noexcept nogil:
    cdef Windows job
    cdef const om_table *table = table_of(EXACT)
    cdef om_sum_fn *add = <om_sum_fn *> table.row[SUM_ROWS]
    cdef om_window[AHEAD] found
    cdef float[OM_SUM_WINDOW] buffer
    cdef double total = 0.0
    cdef double before, growth = 0.0
    cdef Py_ssize_t w, left, most = AHEAD_LEAST
    cdef uint64_t old = om_fp_enter()
    job.find, job.source, job.context, job.found, job.at = <om_windows_fn *> table.row[SUM_WINDOWS], source, context, found, 0
    job.way = OM_WIDE
    while n - job.at >= OM_SUM_WINDOW:
        job.windows = (n - job.at) // OM_SUM_WINDOW
        if job.windows > most:
            job.windows = most
        job.spacing = spacing_at(total) if job.way == OM_BINADE else 0.0
        # Where the sum grows at the pace it had, the windows up to the end of the binade; an infinity has none.
        if growth > 0.0 and job.spacing > 0.0 and isfinite(total) and (ldexp(job.spacing, 53) - fabs(total)) / growth < job.windows:
            job.windows = 1 + <Py_ssize_t> ((ldexp(job.spacing, 53) - fabs(total)) / growth)
        job.pieces = cut(LOOK * job.windows * OM_SUM_WINDOW, job.windows)
        run(windows_piece, &job, job.pieces)
        before = fabs(total)
        w = (<om_joined_fn *> table.row[SUM_JOINED])(found, job.windows, job.way, job.spacing, &total)
        if w > 0:
            growth = (fabs(total) - before) / w
        job.at += w * OM_SUM_WINDOW
        if w == job.windows:
            most = AHEAD if 2 * most > AHEAD else 2 * most
            continue
        add(source(context, job.at, OM_SUM_WINDOW, buffer), 0, 1, OM_SUM_WINDOW, &total)
        job.at += OM_SUM_WINDOW
        if 2 * w < job.windows:
            most = AHEAD_LEAST
        if w == 0:
            growth = 0.0
            if job.windows > 1:  # a single one stood at the end of a binade
                job.way = (job.way + 1) % OM_SUM_WAYS
    left = n - job.at
    if left > 0:
        add(source(context, job.at, left, buffer), 0, 1, left, &total)
    om_fp_leave(old)
    return total


cdef const float *in_memory(void *context, Py_ssize_t at, Py_ssize_t n, float *buffer) noexcept nogil:
    return <const float *> context + at


cdef double sum_all(int mode, double acc, const float *x, Py_ssize_t n) noexcept nogil:
    (<om_sum_fn *> table_of(mode).row[SUM_ROWS])(x, 0, 1, n, &acc)
    return acc


cdef int reduce(int mode, int op, int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides, const float *x,
                unsigned long long axes_mask, float *out) noexcept nogil:
    cdef Job job
    cdef Py_ssize_t i, outputs
    cdef double total = 0.0
    job.table, job.op, job.x, job.out, job.failed = table_of(mode), op, x, out, False
    outputs = plan(&job, mode, ndim, shape, strides, axes_mask)
    if job.reduced_total == 0:
        for i in range(outputs):
            out[i] = 0.0 if op == 0 else NAN if op == 1 else -INFINITY if op == 2 else INFINITY
        return 0
    if outputs == 0:
        return 0
    if op <= 1 and outputs == 1 and job.path == ROWS and job.outer_total == 1 and job.n > SPAN and (mode == FAST or thread_count() > 1):
        if mode == EXACT:
            total = sum_made(in_memory, <void *> x, job.n)
        elif sum_parts(x, job.n, &total) < 0:
            return -1
        (<om_round_fn *> job.table.row[ROUND_SUMS])(&total, <double> job.n if op == 1 else 1.0, out, 1, 1)
        return 0
    run(reduce_piece, &job, job.pieces)
    return -1 if job.failed else 0


cdef int sum_to(int mode, int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides, const float *x, int to_ndim, const Py_ssize_t *to_shape,
                float *out) noexcept nogil:
    cdef unsigned long long mask = 0
    cdef int i
    for i in range(ndim):
        if i < ndim - to_ndim or (to_shape[i - (ndim - to_ndim)] == 1 and shape[i] != 1):
            mask |= 1ULL << i
    return reduce(mode, 0, ndim, shape, strides, x, mask, out)


cdef struct ArgJob:
    om_arg_fn *rows
    om_copy_fn *copy
    bint failed
    const float *x
    int64_t *out
    Py_ssize_t n, inner, block, blocks, units, pieces


cdef void argmax_piece(void *context, Py_ssize_t p) noexcept nogil:
    cdef ArgJob *job = <ArgJob *> context
    cdef Py_ssize_t lo = begin(job.units, job.pieces, p), hi = begin(job.units, job.pieces, p + 1), unit, outer, first, count
    cdef float *scratch
    if job.inner == 1:
        job.rows(job.x + lo * job.n, job.n, hi - lo, job.n, job.out + lo)
        return
    scratch = <float *> take(job.block * job.n * sizeof(float))
    if scratch == NULL:
        job.failed = True
        return
    for unit in range(lo, hi):
        outer, first = unit // job.blocks, unit % job.blocks * job.block
        count = job.block if job.block < job.inner - first else job.inner - first
        job.copy(job.x + outer * job.n * job.inner + first, 1, job.inner, scratch, job.n, 1, count, job.n)
        job.rows(scratch, job.n, count, job.n, job.out + outer * job.inner + first)
    give(scratch)


cdef int argmax(int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides, const float *x, int axis, int64_t *out) noexcept nogil:
    cdef Py_ssize_t packed[64]
    cdef Py_ssize_t outer = 1
    cdef ArgJob job
    cdef float *dense = NULL
    cdef int i
    job.n, job.inner = 1, 1
    for i in range(ndim):
        if axis < 0 or i == axis:
            job.n *= shape[i]
        elif i < axis:
            outer *= shape[i]
        else:
            job.inner *= shape[i]
    if outer * job.n * job.inner == 0:
        return 0
    if not is_contiguous(ndim, shape, strides):
        dense = <float *> take(outer * job.n * job.inner * sizeof(float))
        if dense == NULL:
            return -1
        contiguous_strides(ndim, shape, packed)
        strided_copy(ndim, shape, 4, x, strides, dense, packed)
        x = dense
    job.rows, job.copy = <om_arg_fn *> table_of(FAST).row[ARGMAX_ROWS], <om_copy_fn *> table_of(FAST).row[COPY_4]
    job.x, job.out, job.failed = x, out, False
    job.block = 64 if job.n <= 512 else 8
    job.blocks = (job.inner + job.block - 1) // job.block
    job.units = outer if job.inner == 1 else outer * job.blocks
    job.pieces = cut(outer * job.n * job.inner, job.units)
    run(argmax_piece, &job, job.pieces)
    give(dense)
    return -1 if job.failed else 0


cdef void extremum_bwd_piece(void *context, Py_ssize_t p) noexcept nogil:
    cdef Job *job = <Job *> context
    cdef double counts[BLOCK]
    cdef float y[BLOCK]
    cdef float share[BLOCK]
    cdef Py_ssize_t unit, at_x, at_out, count, k, at, stride, rows, cols
    cdef bint columns = job.path == COLUMNS
    cdef om_copy_fn *copy = <om_copy_fn *> job.table.row[COPY_4]
    for unit in range(begin(job.units, job.pieces, p), begin(job.units, job.pieces, p + 1)):
        locate(job, unit, &at_x, &at_out, &count)
        memset(counts, 0, count * sizeof(double))
        copy(job.y + at_out, 0, job.out_step, y, 0, 1, 1, count)
        copy(job.g + at_out, 0, job.out_step, share, 0, 1, 1, count)
        stride, rows, cols = (job.n_step, job.n, count) if columns else (job.x_step, count, job.n)
        for k in range(job.outer_total):
            at = at_x + offset(&job.outer, k)
            (<om_ties_fn *> job.table.row[TIES_COLUMNS if columns else TIES_ROWS])(job.x + at, stride, rows, cols, y, counts)
        (<om_quotient_fn *> job.table.row[QUOTIENTS])(share, counts, share, count)
        for k in range(job.outer_total):
            at = at_x + offset(&job.outer, k)
            (<om_share_fn *> job.table.row[SHARE_COLUMNS if columns else SHARE_ROWS])(job.x + at, stride, rows, cols, y, share, job.dx + at)


cdef int extremum_bwd(int mode, int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides, const float *x, unsigned long long axes_mask,
                      const float *y, const float *g, float *dx) noexcept nogil:
    cdef Py_ssize_t packed[64]
    cdef Job job
    contiguous_strides(ndim, shape, packed)
    # The kernels may write where they read, so a strided x is first laid out in dx.
    if not is_contiguous(ndim, shape, strides):
        strided_copy(ndim, shape, 4, x, strides, dx, packed)
        x = dx
    job.table, job.x, job.y, job.g, job.dx = table_of(mode), x, y, g, dx
    if plan(&job, mode, ndim, shape, packed, axes_mask) == 0 or job.reduced_total == 0:
        return 0
    if job.path == GATHER:
        # A contiguous x has its unit stride in a few columns here: read them as columns all the same.
        job.path = COLUMNS
    run(extremum_bwd_piece, &job, job.pieces)
    return 0


cdef struct AddJob:
    om_map2_fn *add
    float *acc
    const float *g
    Py_ssize_t n, pieces


cdef void add_piece(void *context, Py_ssize_t p) noexcept nogil:
    cdef AddJob *job = <AddJob *> context
    cdef Py_ssize_t lo = begin(job.n, job.pieces, p)
    job.add(job.acc + lo, job.g + lo, job.acc + lo, begin(job.n, job.pieces, p + 1) - lo)


cdef int add_into(int mode, float *acc, const float *g, Py_ssize_t n) noexcept nogil:
    cdef AddJob job
    job.add, job.acc, job.g, job.n, job.pieces = <om_map2_fn *> table_of(mode).row[ADD], acc, g, n, cut(n, n)
    run(add_piece, &job, job.pieces)
    return 0


NAMES = ["sum", "mean", "amax", "amin"]


def _array_reduce(int mode, str name, x, axes, out):
    """out = the reduction of x over the axes; out contiguous over the kept ones."""
    cdef Py_ssize_t shape[64]
    cdef Py_ssize_t strides[64]
    cdef void *px
    cdef void *po
    cdef unsigned long long mask = 0
    cdef int ndim, op = NAMES.index(name), status
    array_layout(out, "f4", shape, strides, &po)
    ndim = array_layout(x, "f4", shape, strides, &px)
    for axis in axes:
        mask |= 1ULL << <int> axis
    with nogil:
        status = reduce(mode, op, ndim, shape, strides, <const float *> px, mask, <float *> po)
    if status < 0:
        raise MemoryError


def _array_sum_to(int mode, x, out):
    """out = x summed over the axes that out's shape was broadcast along."""
    cdef Py_ssize_t shape[64]
    cdef Py_ssize_t strides[64]
    cdef Py_ssize_t to_shape[64]
    cdef void *px
    cdef void *po
    cdef int to_ndim = array_layout(out, "f4", to_shape, strides, &po), ndim = array_layout(x, "f4", shape, strides, &px), status
    with nogil:
        status = sum_to(mode, ndim, shape, strides, <const float *> px, to_ndim, to_shape, <float *> po)
    if status < 0:
        raise MemoryError


def _array_argmax(x, int axis, out):
    """out = the index of the first maximum of x along the axis, of all elements for -1."""
    cdef Py_ssize_t shape[64]
    cdef Py_ssize_t strides[64]
    cdef void *px
    cdef void *po
    cdef int ndim, status
    array_layout(out, "i8", shape, strides, &po)
    ndim = array_layout(x, "f4", shape, strides, &px)
    with nogil:
        status = argmax(ndim, shape, strides, <const float *> px, axis, <int64_t *> po)
    if status < 0:
        raise MemoryError


def _array_extremum_bwd(int mode, x, axes, y, g, dx):
    """dx = the gradient of x's extremum y over the axes, for the upstream g."""
    cdef Py_ssize_t shape[64]
    cdef Py_ssize_t strides[64]
    cdef void *px
    cdef void *py
    cdef void *pg
    cdef void *pd
    cdef unsigned long long mask = 0
    cdef int ndim
    array_layout(y, "f4", shape, strides, &py)
    array_layout(g, "f4", shape, strides, &pg)
    array_layout(dx, "f4", shape, strides, &pd)
    ndim = array_layout(x, "f4", shape, strides, &px)
    for axis in axes:
        mask |= 1ULL << <int> axis
    with nogil:
        extremum_bwd(mode, ndim, shape, strides, <const float *> px, mask, <const float *> py, <const float *> pg, <float *> pd)


def _array_add_into(int mode, acc, g):
    """acc += g for contiguous arrays."""
    cdef Py_ssize_t shape[64]
    cdef Py_ssize_t strides[64]
    cdef void *pa
    cdef void *pg
    cdef Py_ssize_t n = acc.size
    array_layout(acc, "f4", shape, strides, &pa)
    array_layout(g, "f4", shape, strides, &pg)
    with nogil:
        add_into(mode, <float *> pa, <const float *> pg, n)
