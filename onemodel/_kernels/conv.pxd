# Convolutions for every other compiled module: raw pointers, sizes checked by the caller, no lock needed. Each returns 0, or -1 if memory ran out
# (the output is then unspecified).

# y[n, oc, oh, ow] = x[n, ic, ih, iw] * w[oc, ic / groups, kh, kw]. Bottom and right padding follow from oh and ow: a tap outside x is +0 and is
# multiplied. A one-dimensional convolution has height 1. xn, xc, xh: element strides of x, whose rows are contiguous; the rest is contiguous.
cdef struct Conv:
    Py_ssize_t n
    Py_ssize_t groups
    Py_ssize_t ic
    Py_ssize_t ih
    Py_ssize_t iw
    Py_ssize_t oc
    Py_ssize_t oh
    Py_ssize_t ow
    Py_ssize_t kh
    Py_ssize_t kw
    Py_ssize_t sh               # stride
    Py_ssize_t sw
    Py_ssize_t pt               # padding above and left of x
    Py_ssize_t pl
    Py_ssize_t dh               # dilation
    Py_ssize_t dw
    Py_ssize_t xn
    Py_ssize_t xc
    Py_ssize_t xh

# y = x * w (+ bias[oc], one addition after the last step): per output one chain of fused steps over (channel, kernel row, kernel column).
cdef int conv_forward(int mode, const Conv *c, const float *x, const float *w, const float *bias, float *y) noexcept nogil
# The adjoint: dx[n, ic, ih, iw], contiguous, from g in the place of y (+ bias[ic]). This is both the gradient of x and conv_transpose2d.
cdef int conv_input(int mode, const Conv *c, const float *g, const float *w, const float *bias, float *dx) noexcept nogil
