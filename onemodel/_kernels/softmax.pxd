# Softmax and its kin along one axis; x and g have element strides of any sign, outputs are contiguous. All return 0, or -1 out of memory.
from libc.stdint cimport int64_t

# Which of the two: softmax, or its logarithm.
cdef int softmax(int mode, bint logarithm, int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides, const float *x, int axis, float *y) noexcept nogil
# y, contiguous, is the forward's output.
cdef int softmax_bwd(int mode, bint logarithm, int ndim, const Py_ssize_t *shape, const float *y, const Py_ssize_t *g_strides, const float *g, int axis,
                     float *dx) noexcept nogil
# out has x's shape without the axis; -inf where the axis is empty.
cdef int logsumexp(int mode, int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides, const float *x, int axis, float *out) noexcept nogil
# dx = g e^(x - lse); lse and g contiguous in x's shape without the axis.
cdef int logsumexp_bwd(int mode, int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides, const float *x, int axis, const float *lse, const float *g,
                       float *dx) noexcept nogil
# For a contiguous x of shape (outer, n, inner): the maximum m and the log of the sum of e^(x - m), one per (outer, inner); n > 0.
cdef int softmax_stats(int mode, Py_ssize_t outer, Py_ssize_t n, Py_ssize_t inner, const float *x, float *m, float *log_sum) noexcept nogil
# dx = scale (softmax(x) - one-hot target); scale and target one per (outer, inner), zeros where scale is 0.
cdef int cross_entropy_rows_bwd(int mode, Py_ssize_t outer, Py_ssize_t n, Py_ssize_t inner, const float *x, const float *m, const float *log_sum,
                                const float *scale, const int64_t *target, float *dx) noexcept nogil
