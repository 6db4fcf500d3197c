# Normalisation drivers: x [n, c, p] with strides of images and channels and contiguous positions, or rows; outputs are contiguous.
# 0, or -1 when memory is exhausted, before anything is written.

# Normalises each channel over images and positions. mean and rstd [c] are written; so are moments [2, c]: the mean, and the variance over n * p.
cdef int batch_norm(int mode, Py_ssize_t n, Py_ssize_t c, Py_ssize_t p, const float *x, Py_ssize_t image, Py_ssize_t channel, const float *gamma,
                    const float *beta, double eps, float *y, float *mean, float *rstd, double *moments) noexcept nogil
# The same with statistics that are there.
cdef int batch_norm_apply(int mode, Py_ssize_t n, Py_ssize_t c, Py_ssize_t p, const float *x, Py_ssize_t image, Py_ssize_t channel,
                          const float *gamma, const float *beta, const float *mean, const float *rstd, float *y) noexcept nogil
# statistics: they came from x (training). dx, dgamma, dbeta may be NULL.
cdef int batch_norm_bwd(int mode, Py_ssize_t n, Py_ssize_t c, Py_ssize_t p, const float *x, Py_ssize_t image, Py_ssize_t channel, const float *g,
                        Py_ssize_t g_image, Py_ssize_t g_channel, const float *gamma, const float *mean, const float *rstd, bint statistics,
                        float *dx, float *dgamma, float *dbeta) noexcept nogil
# rstd = 1 / sqrt(variance + eps)
cdef void rstd_of(int mode, Py_ssize_t n, const float *variance, Py_ssize_t stride, double eps, float *rstd) noexcept nogil
# running = momentum * statistic * factor + (1 - momentum) * running
cdef void update_running(int mode, Py_ssize_t n, const double *statistic, double factor, double momentum, float *running, Py_ssize_t stride) noexcept nogil

# Rows, each by itself; centred: minus its mean. mean and rstd may be NULL.
cdef int layer_norm(int mode, Py_ssize_t rows, Py_ssize_t cols, const float *x, Py_ssize_t stride, const float *gamma, const float *beta, double eps,
                    bint centred, float *y, float *mean, float *rstd) noexcept nogil
cdef int layer_norm_bwd(int mode, Py_ssize_t rows, Py_ssize_t cols, const float *x, Py_ssize_t stride, const float *g, Py_ssize_t g_stride,
                        const float *gamma, bint centred, const float *mean, const float *rstd, float *dx, float *dgamma, float *dbeta) noexcept nogil

# Each image's groups of c / groups channels, contiguous in x; mean and rstd [n, groups].
cdef int group_norm(int mode, Py_ssize_t n, Py_ssize_t c, Py_ssize_t p, Py_ssize_t groups, const float *x, const float *gamma, const float *beta,
                    double eps, float *y, float *mean, float *rstd) noexcept nogil
cdef int group_norm_bwd(int mode, Py_ssize_t n, Py_ssize_t c, Py_ssize_t p, Py_ssize_t groups, const float *x, const float *g, const float *gamma,
                        const float *mean, const float *rstd, float *dx, float *dgamma, float *dbeta) noexcept nogil

# The sum over divisor of (x - mean)^2 of each group of n, or the root of that; with g [groups] the gradient of x, into y. x is contiguous:
# [groups, n], or [n, groups] for columns.
cdef void spread(int mode, bint columns, Py_ssize_t groups, Py_ssize_t n, const float *x, const float *g, double divisor, bint root,
                 float *y) noexcept nogil
