# Losses on contiguous data; a batch of classes has the shape (n, classes, inner), targets and weights of elements (n, inner).
from libc.stdint cimport int64_t

cdef enum LossReduction:
    NONE = 0
    MEAN = 1
    SUM = 2

# Index of the first target that is neither a class nor `ignore`, or -1: to be asked before anything is written.
cdef Py_ssize_t first_bad_target(const int64_t *target, Py_ssize_t count, Py_ssize_t classes, int64_t ignore) noexcept nogil

# All return 0, or -1 when memory is exhausted. weight: one per class, or NULL. out: one number, or (n, inner) for NONE. total_weight, which the
# backward wants again, is the sum of the weights of the elements that are not ignored; all ignored: MEAN is NaN, gradients are zeros.
cdef int nll_loss(int mode, Py_ssize_t n, Py_ssize_t classes, Py_ssize_t inner, const float *log_p, const int64_t *target, const float *weight,
                  int64_t ignore, int reduction, float *out, double *total_weight) noexcept nogil
cdef int nll_loss_bwd(int mode, Py_ssize_t n, Py_ssize_t classes, Py_ssize_t inner, const int64_t *target, const float *weight, int64_t ignore,
                      int reduction, double total_weight, const float *g, float *dx) noexcept nogil
# log_softmax and nll_loss in one pass over the logits x, which the backward reads once more. m and log_sum, (n, inner), are for the backward.
cdef int cross_entropy(int mode, Py_ssize_t n, Py_ssize_t classes, Py_ssize_t inner, const float *x, const int64_t *target, const float *weight,
                       int64_t ignore, int reduction, float *out, float *m, float *log_sum, double *total_weight) noexcept nogil
cdef int cross_entropy_bwd(int mode, Py_ssize_t n, Py_ssize_t classes, Py_ssize_t inner, const float *x, const float *m, const float *log_sum,
                           const int64_t *target, const float *weight, int64_t ignore, int reduction, double total_weight, const float *g,
                           float *dx) noexcept nogil
# The mean, the sum, or each of (a - b)^2.
cdef int mse_loss(int mode, Py_ssize_t n, const float *a, const float *b, int reduction, float *out) noexcept nogil
# The gradient of a (b's is its negative).
cdef int mse_loss_bwd(int mode, Py_ssize_t n, const float *a, const float *b, int reduction, const float *g, float *da) noexcept nogil
