"""Runs element-wise rows over operands of any stride: joins dimensions, feeds contiguous runs, cuts pieces for the threads.

An operand that is not contiguous is gathered block by block into a buffer that stays in the first-level cache, and a broadcast
scalar fills its buffer once, so a kernel only ever sees contiguous pointers. Holds no arithmetic.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memset

from onemodel._kernels.table cimport (om_compare_fn, om_fn, om_fp_enter, om_fp_leave, om_map1_fn, om_map2_fn, om_map3_fn, om_map4_fn,
                                      om_select_fn, parallel, smallest_piece)

cdef enum:
    BLOCK = 1024        # elements gathered at a time: four buffers of 4 KB stay in any first-level cache
    SHORT_ROW = 32      # inner runs below this are gathered: a kernel call costs about as much as 32 elements

# How many inputs a signature has, and the bytes of one output element.
cdef int[6] INPUTS
cdef int[6] OUT_BYTES
INPUTS[:] = [1, 2, 3, 4, 2, 3]
OUT_BYTES[:] = [4, 4, 4, 4, 1, 4]

cdef struct Job:
    int signature
    om_fn kernel
    int rank
    Py_ssize_t[MAX_DIMS] dims
    Operand operands[MAX_OPERANDS]
    char *out
    Py_ssize_t n
    Py_ssize_t piece        # elements of one piece


cdef inline int item_bytes(int signature, int i) noexcept nogil:
    return 1 if signature == SELECT and i == 0 else 4


cdef inline void run(int signature, om_fn kernel, const char **p, char *out, Py_ssize_t n) noexcept nogil:
    if signature == MAP1:
        (<om_map1_fn *>kernel)(<const float *>p[0], <float *>out, n)
    elif signature == MAP2:
        (<om_map2_fn *>kernel)(<const float *>p[0], <const float *>p[1], <float *>out, n)
    elif signature == MAP3:
        (<om_map3_fn *>kernel)(<const float *>p[0], <const float *>p[1], <const float *>p[2], <float *>out, n)
    elif signature == MAP4:
        (<om_map4_fn *>kernel)(<const float *>p[0], <const float *>p[1], <const float *>p[2], <const float *>p[3], <float *>out, n)
    elif signature == COMPARE:
        (<om_compare_fn *>kernel)(<const float *>p[0], <const float *>p[1], <uint8_t *>out, n)
    else:
        (<om_select_fn *>kernel)(<const uint8_t *>p[0], <const float *>p[1], <const float *>p[2], <float *>out, n)


cdef inline void fill(const char *value, char *buffer, Py_ssize_t n, int item) noexcept nogil:
    cdef Py_ssize_t i
    cdef uint32_t word
    if item == 1:
        memset(buffer, value[0], n)
    else:
        word = (<const uint32_t *>value)[0]
        for i in range(n):
            (<uint32_t *>buffer)[i] = word


cdef inline void gather_run(const char *from_, Py_ssize_t step, char *to, Py_ssize_t n, int item) noexcept nogil:
    cdef Py_ssize_t i
    if item == 4:
        for i in range(n):
            (<uint32_t *>to)[i] = (<const uint32_t *>from_)[i * step]
    else:
        for i in range(n):
            to[i] = from_[i * step]


cdef void gather(const Operand *operand, int rank, const Py_ssize_t *dims, Py_ssize_t start, Py_ssize_t n, char *to, int item) noexcept nogil:
    """Elements [start, start + n) in row-major order of a strided operand."""
    cdef Py_ssize_t[MAX_DIMS] index
    cdef Py_ssize_t rest = start, at = 0, inner = dims[rank - 1], step = operand.steps[rank - 1], take
    cdef int d
    for d in range(rank - 1, -1, -1):
        index[d] = rest % dims[d]
        rest //= dims[d]
        at += index[d] * operand.steps[d]
    while n > 0:
        take = inner - index[rank - 1]
        if take > n:
            take = n
        gather_run(operand.data + at * item, step, to, take, item)
        to += take * item
        n -= take
        if n == 0:
            return
        at -= index[rank - 1] * step
        index[rank - 1] = 0
        for d in range(rank - 2, -1, -1):
            index[d] += 1
            at += operand.steps[d]
            if index[d] < dims[d]:
                break
            at -= index[d] * operand.steps[d]
            index[d] = 0


cdef void run_range(Job *job, Py_ssize_t start, Py_ssize_t n) noexcept nogil:
    """Elements [start, start + n) of the output."""
    cdef char[MAX_OPERANDS][BLOCK * 4] buffers
    cdef const char *p[MAX_OPERANDS]
    cdef bint[MAX_OPERANDS] direct
    cdef bint all_direct = True
    cdef int i, d, inputs = INPUTS[job.signature], last = job.rank - 1, out_bytes = OUT_BYTES[job.signature]
    cdef int item
    cdef Py_ssize_t inner = job.dims[last], block, length, row, at, rest, scalar_filled
    cdef bint rows = job.rank > 1 and inner >= SHORT_ROW
    cdef Operand *o
    for i in range(inputs):
        o = &job.operands[i]
        direct[i] = job.rank == 1 and o.steps[0] == 1
        all_direct = all_direct and direct[i]
        rows = rows and (o.steps[last] == 1 or o.steps[last] == 0)
    if all_direct:
        for i in range(inputs):
            p[i] = job.operands[i].data + start * item_bytes(job.signature, i)
        run(job.signature, job.kernel, p, job.out + start * out_bytes, n)
        return
    if job.rank == 1:
        block = BLOCK if n > BLOCK else n
        for i in range(inputs):
            if job.operands[i].steps[0] == 0:
                fill(job.operands[i].data, buffers[i], block, item_bytes(job.signature, i))
        while n > 0:
            length = block if n > block else n
            for i in range(inputs):
                o = &job.operands[i]
                item = item_bytes(job.signature, i)
                if direct[i]:
                    p[i] = o.data + start * item
                else:
                    p[i] = buffers[i]
                    if o.steps[0] != 0:
                        gather_run(o.data + start * o.steps[0] * item, o.steps[0], buffers[i], length, item)
            run(job.signature, job.kernel, p, job.out + start * out_bytes, length)
            start += length
            n -= length
        return
    while n > 0:
        if rows:  # one run within one row: operands are read where they lie
            at = start % inner
            length = inner - at
            if length > n:
                length = n
            for i in range(inputs):
                o = &job.operands[i]
                item = item_bytes(job.signature, i)
                rest = start // inner
                row = at * o.steps[last]
                for d in range(last - 1, -1, -1):
                    row += (rest % job.dims[d]) * o.steps[d]
                    rest //= job.dims[d]
                p[i] = o.data + row * item
                if o.steps[last] == 0:
                    if length > BLOCK:
                        length = BLOCK
                    fill(p[i], buffers[i], length, item)
                    p[i] = buffers[i]
        else:
            length = BLOCK if n > BLOCK else n
            for i in range(inputs):
                item = item_bytes(job.signature, i)
                gather(&job.operands[i], job.rank, job.dims, start, length, buffers[i], item)
                p[i] = buffers[i]
        run(job.signature, job.kernel, p, job.out + start * out_bytes, length)
        start += length
        n -= length


cdef void run_piece(void *context, Py_ssize_t piece) noexcept nogil:
    cdef Job *job = <Job *>context
    cdef Py_ssize_t start = piece * job.piece
    run_range(job, start, job.piece if start + job.piece <= job.n else job.n - start)


cdef void run_job(Job *job) noexcept nogil:
    cdef Py_ssize_t least = smallest_piece(), pieces
    cdef unsigned long long state
    # By shape alone: equal pieces of whole cache lines, at most 64. An even number, because three equal ones take two threads as long as four.
    pieces = job.n // least // 2 * 2
    pieces = 1 if pieces == 0 else 64 if pieces > 64 else pieces
    job.piece = ((job.n + pieces - 1) // pieces + 63) // 64 * 64
    if job.n <= job.piece:
        state = om_fp_enter()
        run_range(job, 0, job.n)
        om_fp_leave(state)
    else:
        parallel(run_piece, job, (job.n + job.piece - 1) // job.piece)


cdef void map_flat(int signature, om_fn kernel, Py_ssize_t n, Operand *operands, char *out) noexcept nogil:
    cdef Job job
    cdef int i
    job.signature = signature
    job.kernel = kernel
    job.rank = 1
    job.dims[0] = n
    job.out = out
    job.n = n
    for i in range(INPUTS[signature]):
        job.operands[i].data = operands[i].data
        job.operands[i].steps[0] = operands[i].steps[0]
    if n > 0:
        run_job(&job)


cdef void map_strided(int signature, om_fn kernel, int rank, const Py_ssize_t *dims, Operand *operands, char *out) noexcept nogil:
    cdef Job job
    cdef int d, i, inputs = INPUTS[signature], top = -1
    cdef bint joins
    job.signature = signature
    job.kernel = kernel
    job.out = out
    job.n = 1
    for i in range(inputs):
        job.operands[i].data = operands[i].data
    for d in range(rank):
        if dims[d] == 0:
            return
        job.n *= dims[d]
        if dims[d] == 1:
            continue
        joins = top >= 0
        if joins:  # the outer dimension continues the inner one for every operand
            for i in range(inputs):
                joins = joins and job.operands[i].steps[top] == operands[i].steps[d] * dims[d]
        if joins:
            job.dims[top] *= dims[d]
        else:
            top += 1
            job.dims[top] = dims[d]
        for i in range(inputs):
            job.operands[i].steps[top] = operands[i].steps[d]
    if top < 0:  # one element
        top = 0
        job.dims[0] = 1
        for i in range(inputs):
            job.operands[i].steps[0] = 1
    job.rank = top + 1
    run_job(&job)
