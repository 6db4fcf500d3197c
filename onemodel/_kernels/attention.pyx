"""Owns attention over heads and blocks of query rows: what is packed, scratch, threads; the weights are made in attention.h.

A block of query rows has all its scores at once, so there is one maximum and one sum per row and no rescaling; the matrix of all scores never
exists. Backward makes the weights again. Chains over queries (dk, dv) go on from block to block in memory, so no block size changes a bit.
"""
from libc.string cimport memset

from onemodel._kernels.panels cimport Panels, multiply_panels, multiply_steps, pack_into, panels_size
from onemodel._kernels.pieces cimport begin, run
from onemodel._kernels.table cimport om_softmax_bwd_fn, om_table, row_index, smallest_piece, table_of, thread_count
from onemodel._pool.pool cimport give, take

cdef extern from "kernels.h" nogil:
    enum:
        OM_GEMM_FIRST
        OM_GEMM_LAST
    ctypedef struct om_scores:
        float scale
        const float *add
        const uint8_t *keep
        Py_ssize_t mask_row
        Py_ssize_t mask_col
        Py_ssize_t seen
    ctypedef void om_attention_fn(float *s, Py_ssize_t stride, Py_ssize_t rows, Py_ssize_t cols, const om_scores *o) noexcept nogil
    ctypedef void om_scale_fn(float *x, float scale, Py_ssize_t n) noexcept nogil

cdef Py_ssize_t WEIGHTS = row_index("attention", "attention_weights")
cdef Py_ssize_t WEIGHTS_BWD = row_index("softmax_bwd", "softmax_bwd_rows")
cdef Py_ssize_t SCALE = row_index("scale", "scale_in_place")

cdef enum:
    SCORES = 32768              # of one block, about: with their gradients they stay in L2
    MOST_ROWS = 48              # of one block: more would only make it longer
    MADDS_PER_ELEMENT = 16      # multiply-adds that take the time of one element of an element-wise kernel

cdef struct Job:
    const om_table *table
    int mode
    const Heads *h
    Py_ssize_t parts            # pieces of one head, forward
    Py_ssize_t block            # query rows
    Rows out
    Rows g
    Rows dq
    Rows dk
    Rows dv
    bint failed

# One head: where its operands are.
cdef struct Head:
    const float *q
    const float *k
    const float *v
    om_scores scores


cdef Head head_of(const Heads *h, Py_ssize_t index) noexcept nogil:
    cdef Head one
    cdef Py_ssize_t rest = index, at, mask = 0
    cdef int d
    one.q, one.k, one.v = h.q, h.k, h.v
    for d in range(h.ndim - 1, -1, -1):
        at = rest % h.shape[d]
        rest //= h.shape[d]
        one.q += at * h.q_lead[d]
        one.k += at * h.k_lead[d]
        one.v += at * h.v_lead[d]
        mask += at * h.mask_lead[d]
    one.scores.scale, one.scores.mask_row, one.scores.mask_col = h.scale, h.mask_row, h.mask_col
    one.scores.add = h.add + mask if h.add != NULL else NULL
    one.scores.keep = h.keep + mask if h.keep != NULL else NULL
    one.scores.seen = -1
    return one


cdef Rows rows_of(const Heads *h, const Rows *all, Py_ssize_t index) noexcept nogil:
    """The rows of one head."""
    cdef Rows one = all[0]
    cdef int d
    if one.data != NULL:
        for d in range(h.ndim - 1, -1, -1):
            one.data += index % h.shape[d] * one.lead[d]
            index //= h.shape[d]
    return one


cdef void clear(const Rows *c, Py_ssize_t rows, Py_ssize_t cols) noexcept nogil:
    cdef Py_ssize_t r
    for r in range(rows):
        memset(c.data + r * c.row, 0, cols * sizeof(float))


cdef void scale_rows(const Job *job, const Rows *c, float scale, Py_ssize_t rows, Py_ssize_t cols) noexcept nogil:
    cdef om_scale_fn *run_scale = <om_scale_fn *>job.table.row[SCALE]
    cdef Py_ssize_t r
    if c.row == cols:
        run_scale(c.data, scale, rows * cols)
        return
    for r in range(rows):
        run_scale(c.data + r * c.row, scale, cols)


cdef inline Py_ssize_t lead_of(const Heads *h) noexcept nogil:
    cdef Py_ssize_t n = 1
    cdef int d
    for d in range(h.ndim):
        n *= h.shape[d]
    return n


cdef inline Py_ssize_t row_length(const Job *job) noexcept nogil:
    """Floats from one row of scores to the next: whole vectors, and not a power of two, whose rows would share one set of L1."""
    cdef Py_ssize_t lanes = 16
    return (job.h.keys + lanes - 1) // lanes * lanes + lanes


cdef Py_ssize_t weights(const Job *job, const Head *one, const Panels *keys, Py_ssize_t i, Py_ssize_t rows, float *s) noexcept nogil:
    """The weights of the query rows from i on; returns how many keys some row of them sees, behind which nothing is written."""
    cdef const Heads *h = job.h
    cdef om_scores o = one.scores
    cdef Panels near = keys[0]
    cdef Py_ssize_t ld = row_length(job), cols = min(h.keys, i + rows) if h.causal else h.keys
    near.n = min(near.n, (cols + near.width - 1) // near.width * near.width)  # whole panels, whose rows are as long as they were packed
    multiply_panels(&near, rows, one.q + i * h.q_row, h.q_row, s, ld, NULL)
    o.seen = i + 1 if h.causal else -1
    if o.add != NULL:
        o.add += i * o.mask_row
    if o.keep != NULL:
        o.keep += i * o.mask_row
    (<om_attention_fn *>job.table.row[WEIGHTS])(s, ld, rows, cols, &o)
    return cols


cdef void over_keys(const Job *job, const Panels *w, Py_ssize_t i, Py_ssize_t rows, const float *s, const Rows *to) noexcept nogil:
    """Rows from i on of C[queries][n] = S·W over the keys. A causal row's chain ends with the last key it sees: a tile goes as far as its first row, then
    each row for itself."""
    cdef Py_ssize_t ld = row_length(job), keys = job.h.keys, n = to.row, r = 0, m, first, j
    cdef float *c = to.data + i * n
    if not job.h.causal:
        multiply_panels(w, rows, s, ld, c, n, NULL)
        return
    while r < rows:
        m = min(w.g.mr, rows - r)
        first = min(keys, i + r + 1)
        multiply_steps(w, m, 0, first, s + r * ld, ld, 1, c + r * n, n, NULL, OM_GEMM_FIRST | OM_GEMM_LAST)
        for j in range(1, m):
            if first < keys:
                multiply_steps(w, 1, first, min(keys, i + r + j + 1), s + (r + j) * ld, ld, 1, c + (r + j) * n, n, NULL, OM_GEMM_LAST)
        r += m


cdef inline Py_ssize_t blocks_of(const Job *job) noexcept nogil:
    return (job.h.queries + job.block - 1) // job.block


cdef void forward_piece(void *context, Py_ssize_t piece) noexcept nogil:
    cdef Job *job = <Job *>context
    cdef const Heads *h = job.h
    cdef Py_ssize_t index = piece // job.parts, part = piece % job.parts
    cdef Py_ssize_t blocks = blocks_of(job), i = begin(blocks, job.parts, part) * job.block, rows, ld = row_length(job)
    cdef Py_ssize_t end = min(begin(blocks, job.parts, part + 1) * job.block, h.queries)
    cdef Py_ssize_t k_size = panels_size(job.mode, h.keys, h.width), v_size = panels_size(job.mode, h.value_width, h.keys)
    cdef Head one = head_of(h, index)
    cdef Rows out = rows_of(h, &job.out, index)
    cdef Panels keys
    cdef Panels values
    cdef float *room = <float *>take((job.block * ld + k_size + v_size) * sizeof(float))
    if room == NULL:
        job.failed = True
        return
    pack_into(job.mode, job.block, h.keys, h.width, one.k, 1, h.k_row, room + job.block * ld, &keys)
    pack_into(job.mode, job.block, h.value_width, h.keys, one.v, h.v_row, 1, room + job.block * ld + k_size, &values)
    while i < end:
        rows = min(job.block, end - i)
        weights(job, &one, &keys, i, rows, room)
        over_keys(job, &values, i, rows, room, &out)
        i += rows
    give(room)


cdef void plan(Job *job, int mode, const Heads *h) noexcept nogil:
    cdef Py_ssize_t mr = table_of(mode).gemm.mr
    job.table, job.mode, job.h, job.failed = table_of(mode), mode, h, False
    job.block = min(h.queries, max(mr, min(<Py_ssize_t>MOST_ROWS, SCORES // max(h.keys, 1)) // mr * mr))


cdef int attention(int mode, const Heads *h, const Rows *out) noexcept nogil:
    cdef Job job
    cdef Py_ssize_t lead = lead_of(h)
    cdef double work
    if lead * h.queries * h.value_width == 0:
        return 0
    if h.keys == 0:
        memset(out.data, 0, lead * h.queries * h.value_width * sizeof(float))
        return 0
    plan(&job, mode, h)
    job.out = out[0]
    # Heads alone may be too few for the threads. Parts are of whole blocks: a causal block's keys end with its last row, and with them the
    # lanes in which fast mode sums a row.
    work = <double>h.queries * h.keys * (h.width + h.value_width) / MADDS_PER_ELEMENT
    job.parts = 1
    if lead < 2 * thread_count():
        job.parts = <Py_ssize_t>max(1.0, min(min(<double>thread_count(), work / smallest_piece()), <double>blocks_of(&job)))
    run(forward_piece, &job, lead * job.parts)
    return -1 if job.failed else 0


cdef void over_queries(const Job *job, const Panels *w, Py_ssize_t i, Py_ssize_t cols, const float *s, const Rows *to) noexcept nogil:
    """C[cols][n] += Sᵀ·W, W the block's rows, from query i on: chains over queries go on from C. A causal key's chain begins with the first query that
    sees it, in a C that was cleared: a tile's keys come one by one as far as its last, then go together."""
    cdef Py_ssize_t ld = row_length(job), n = to.row, c = min(cols, i + 1), m, first, j
    if not job.h.causal:
        multiply_steps(w, cols, 0, w.k, s, 1, ld, to.data, n, NULL,
                       (OM_GEMM_FIRST if i == 0 else 0) | (OM_GEMM_LAST if i + w.k == job.h.queries else 0))
        return
    multiply_steps(w, c, 0, w.k, s, 1, ld, to.data, n, NULL, 0)
    while c < cols:
        m = min(w.g.mr, cols - c)
        first = c + m - 1 - i
        for j in range(m - 1):
            multiply_steps(w, 1, c + j - i, first, s + c + j, 1, ld, to.data + (c + j) * n, n, NULL, 0)
        multiply_steps(w, m, first, w.k, s + c, 1, ld, to.data + c * n, n, NULL, 0)
        c += m


cdef void hide(const Job *job, Py_ssize_t i, Py_ssize_t rows, Py_ssize_t cols, float *dp) noexcept nogil:
    """0 where a causal row does not see the key, so that a value that is infinite or NaN there does not enter the row's sum."""
    cdef Py_ssize_t r
    for r in range(min(rows, cols - i - 1)):
        memset(dp + r * row_length(job) + i + r + 1, 0, (cols - i - r - 1) * sizeof(float))


cdef void backward_piece(void *context, Py_ssize_t index) noexcept nogil:
    """One head. Rooms: weights and their gradients of a block; keys for scores, values for dp, keys for dq, a block's rows for dk and dv."""
    cdef Job *job = <Job *>context
    cdef const Heads *h = job.h
    cdef Py_ssize_t ld = row_length(job), block = job.block * ld, i = 0, rows, cols
    cdef Py_ssize_t k_size = panels_size(job.mode, h.keys, h.width), v_size = panels_size(job.mode, h.keys, h.value_width)
    cdef Py_ssize_t row_size = panels_size(job.mode, h.width, h.keys), query_size = panels_size(job.mode, max(h.width, h.value_width), job.block)
    cdef Head one = head_of(h, index)
    cdef Rows g = rows_of(h, &job.g, index), dq = rows_of(h, &job.dq, index), dk = rows_of(h, &job.dk, index), dv = rows_of(h, &job.dv, index)
    cdef Panels keys
    cdef Panels values
    cdef Panels key_rows
    cdef Panels queries
    cdef float *p = <float *>take((2 * block + k_size + v_size + row_size + query_size) * sizeof(float))
    cdef float *ds
    cdef float *room
    if p == NULL:
        job.failed = True
        return
    ds = p + block
    room = ds + block
    pack_into(job.mode, job.block, h.keys, h.width, one.k, 1, h.k_row, room, &keys)
    if dq.data != NULL or dk.data != NULL:
        pack_into(job.mode, job.block, h.keys, h.value_width, one.v, 1, h.v_row, room + k_size, &values)
    if dq.data != NULL:
        pack_into(job.mode, job.block, h.width, h.keys, one.k, h.k_row, 1, room + k_size + v_size, &key_rows)
    if dk.data != NULL and h.causal:
        clear(&dk, h.keys, h.width)
    if dv.data != NULL and h.causal:
        clear(&dv, h.keys, h.value_width)
    room += k_size + v_size + row_size
    while i < h.queries:
        rows = min(job.block, h.queries - i)
        cols = weights(job, &one, &keys, i, rows, p)
        if dv.data != NULL:
            pack_into(job.mode, cols, h.value_width, rows, g.data + i * g.row, g.row, 1, room, &queries)
            over_queries(job, &queries, i, cols, p, &dv)
        if dq.data != NULL or dk.data != NULL:
            multiply_panels(&values, rows, g.data + i * g.row, g.row, ds, ld, NULL)
            if h.causal:
                hide(job, i, rows, cols, ds)
            (<om_softmax_bwd_fn *>job.table.row[WEIGHTS_BWD])(p, ds, ds, ld, rows, cols)
        if dq.data != NULL:
            over_keys(job, &key_rows, i, rows, ds, &dq)
        if dk.data != NULL:
            pack_into(job.mode, cols, h.width, rows, one.q + i * h.q_row, h.q_row, 1, room, &queries)
            over_queries(job, &queries, i, cols, ds, &dk)
        i += rows
    if dq.data != NULL:
        scale_rows(job, &dq, h.scale, h.queries, h.width)
    if dk.data != NULL:
        scale_rows(job, &dk, h.scale, h.keys, h.width)
    if dv.data != NULL and h.causal:
        scale_rows(job, &dv, 1.0, h.keys, h.value_width)  # every NaN as exact mode writes it
    give(p)


cdef int attention_bwd(int mode, const Heads *h, const Rows *g, const Rows *dq, const Rows *dk, const Rows *dv) noexcept nogil:
    cdef Job job
    cdef Py_ssize_t lead = lead_of(h)
    if h.queries == 0 or h.keys == 0 or lead == 0:
        if dq.data != NULL:
            memset(dq.data, 0, lead * h.queries * h.width * sizeof(float))
        if dk.data != NULL:
            memset(dk.data, 0, lead * h.keys * h.width * sizeof(float))
        if dv.data != NULL:
            memset(dv.data, 0, lead * h.keys * h.value_width * sizeof(float))
        return 0
    plan(&job, mode, h)
    job.g, job.dq, job.dk, job.dv = g[0], dq[0], dk[0], dv[0]
    run(backward_piece, &job, lead)
    return -1 if job.failed else 0
