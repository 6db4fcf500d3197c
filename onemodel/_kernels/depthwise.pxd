# Convolutions of one channel per group, for conv.pyx and conv_weight.pyx, whose bits they have; see conv.pxd for the geometry and the return value.
from onemodel._kernels.conv cimport Conv

# Whether the functions below take this convolution: one channel per group, few outputs of each, and windows that fit the scratch.
cdef bint depthwise_fits(const Conv *c) noexcept nogil
cdef int depthwise_forward(int mode, const Conv *c, const float *x, const float *w, const float *bias, float *y) noexcept nogil
cdef int depthwise_input(int mode, const Conv *c, const float *g, const float *w, const float *bias, float *dx) noexcept nogil
cdef int depthwise_weight(int mode, const Conv *c, const float *x, const float *g, float *dw) noexcept nogil
