# Cutting a job into parallel pieces, by shape alone, and running it with the floating-point state that kernels expect.
from onemodel._kernels.table cimport om_fp_enter, om_fp_leave, parallel, smallest_piece, task_fn, uint64_t


# How many pieces for so much work (in elements), when it can be cut into `most` at best.
cdef inline Py_ssize_t cut(Py_ssize_t work, Py_ssize_t most) noexcept nogil:
    cdef Py_ssize_t pieces = work // smallest_piece()
    if pieces > most:
        pieces = most
    if pieces > 64:
        pieces = 64
    return pieces if pieces > 1 else 1


# The first index of a piece, when `total` indices are dealt to `pieces`; piece p ends where p + 1 begins.
cdef inline Py_ssize_t begin(Py_ssize_t total, Py_ssize_t pieces, Py_ssize_t p) noexcept nogil:
    return total // pieces * p + (p if p < total % pieces else total % pieces)


cdef inline void run(task_fn *task, void *context, Py_ssize_t pieces) noexcept nogil:
    cdef uint64_t old = om_fp_enter()
    if pieces == 1:
        task(context, 0)
    else:
        parallel(task, context, pieces)
    om_fp_leave(old)
