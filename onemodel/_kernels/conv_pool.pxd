# A convolution, the maximum of windows of its outputs, and relu, some images at a time; what `Conv` and `Pooling` say is checked by the caller.
from libc.stdint cimport int32_t

from onemodel._kernels.conv cimport Conv
from onemodel._kernels.pooling cimport Pooling

# y = relu(max_pool(conv(x))), contiguous, with the bits of the three; index, if not NULL: each maximum's place, -1 where relu lets no gradient
# through. All three return 0, or -1 if memory ran out (the output is then unspecified).
cdef int conv_pool_forward(int mode, const Conv *c, const Pooling *p, const float *x, const float *w, const float *bias, float *y,
                           int32_t *index) noexcept nogil
# From y's gradient g: dx (contiguous), dw and db, each unless it is NULL.
cdef int conv_pool_backward(int mode, const Conv *c, const Pooling *p, const float *g, const int32_t *index, const float *x, const float *w,
                            float *dx, float *dw, float *db) noexcept nogil
# What both take at a time, about, for a message.
cdef Py_ssize_t conv_pool_bytes(const Conv *c) noexcept nogil
