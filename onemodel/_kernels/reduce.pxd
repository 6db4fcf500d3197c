# Reductions over any set of axes; x has element strides of any sign, out is contiguous over the kept axes in their order.
from libc.stdint cimport int64_t

cdef enum Reduction:
    SUM = 0
    MEAN = 1
    AMAX = 2
    AMIN = 3

# 0, or -1 when memory is exhausted. Bit i of axes_mask reduces axis i. Sums run in row-major order of the reduced axes; no element: 0 for
# SUM, NaN for MEAN, -inf and +inf for AMAX and AMIN (which the operator refuses).
cdef int reduce(int mode, int op, int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides, const float *x,
                unsigned long long axes_mask, float *out) noexcept nogil
# Undoes a broadcast: x of `shape` is summed to the operand's shape of `to_ndim` trailing axes, each of size 1 or as in x.
cdef int sum_to(int mode, int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides, const float *x, int to_ndim, const Py_ssize_t *to_shape,
                float *out) noexcept nogil
# First maximum along one axis, or of all elements in row-major order for axis -1; a NaN wins. The axis must not be empty.
cdef int argmax(int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides, const float *x, int axis, int64_t *out) noexcept nogil
# y = amax or amin of x over the axes, g its gradient (both contiguous): dx, contiguous in x's shape, shares g evenly among ties.
cdef int extremum_bwd(int mode, int ndim, const Py_ssize_t *shape, const Py_ssize_t *strides, const float *x, unsigned long long axes_mask,
                      const float *y, const float *g, float *dx) noexcept nogil
# acc += g, one IEEE addition per element.
cdef int add_into(int mode, float *acc, const float *g, Py_ssize_t n) noexcept nogil
# The double sum of n contiguous elements in order, added to acc.
cdef double sum_all(int mode, double acc, const float *x, Py_ssize_t n) noexcept nogil
# Elements [at, at + n) of what is summed, n at most OM_SUM_WINDOW: where they lie, or made in the buffer; the same whenever it is asked.
ctypedef const float *source_fn(void *context, Py_ssize_t at, Py_ssize_t n, float *buffer) noexcept nogil
# Exact mode's sum of n elements in order, by threads.
cdef double sum_made(source_fn *source, void *context, Py_ssize_t n) noexcept nogil
