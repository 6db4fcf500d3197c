# Losses on contiguous data; a batch of classes has the shape (n, classes, inner), targets and weights of elements (n, inner).
from libc.stdint cimport int64_t

from onemodel._kernels.elementwise cimport Operand

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
cdef enum Error:
    SQUARED = 0
    ABSOLUTE = 1
    HUBER = 2
    SMOOTH_L1 = 3
    LOGISTIC = 4

# The mean, the sum, or each of an error of an input against a target, both of shape dims with steps of any kind. operands: input, target, weight
# of the elements, weight of positive targets (LOGISTIC); data NULL for a weight that is 1. delta: HUBER and SMOOTH_L1. 0, or -1 when memory is
# exhausted.
cdef int error_loss(int mode, int kind, int rank, const Py_ssize_t *dims, const Operand *operands, float delta, int reduction, float *out) noexcept nogil
# The gradients of input and target, either NULL if nobody wants it; g is one number, or contiguous for NONE.
cdef void error_loss_bwd(int mode, int kind, int rank, const Py_ssize_t *dims, const Operand *operands, float delta, int reduction, const float *g,
                         float *da, float *db) noexcept nogil
