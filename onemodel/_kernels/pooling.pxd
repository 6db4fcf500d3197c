# Pooling of planes for every other compiled module: raw pointers, geometry checked by the caller, no lock needed.
from libc.stdint cimport int32_t

cdef enum Kind:
    MAX = 0
    AVERAGE = 1

# Windows of kh by kw elements, dh and dw apart, sh and sw from each other, over x [n, c, h, w] with ph and pw of padding on each side; y [n, c, oh, ow].
# Everything below 2^31; xn, xc, xh, xw: element strides of x, of any sign; y, index, g and dx are contiguous.
cdef struct Pooling:
    int kind
    bint adaptive               # windows o*h/oh to (o + 1)*h/oh instead, rounded outwards
    bint include_pad            # an average counts padding
    Py_ssize_t divisor          # of every average; 0: as many as it counts
    Py_ssize_t n
    Py_ssize_t c
    Py_ssize_t h
    Py_ssize_t w
    Py_ssize_t oh
    Py_ssize_t ow
    Py_ssize_t kh
    Py_ssize_t kw
    Py_ssize_t sh
    Py_ssize_t sw
    Py_ssize_t ph
    Py_ssize_t pw
    Py_ssize_t dh
    Py_ssize_t dw
    Py_ssize_t xn
    Py_ssize_t xc
    Py_ssize_t xh
    Py_ssize_t xw

# 0, or -1 when memory is exhausted. index: where in its plane each maximum stands (-1: its window has no element), or NULL.
cdef int pool_forward(int mode, const Pooling *p, const float *x, float *y, int32_t *index) noexcept nogil
cdef int pool_backward(int mode, const Pooling *p, const float *g, const int32_t *index, float *dx) noexcept nogil
