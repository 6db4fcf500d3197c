# Weight gradients whose groups have too few outputs to fill lanes, for conv_weight.pyx; the geometry and the return value are in conv.pxd.
from onemodel._kernels.conv cimport Conv

cdef bint thin_fits(const Conv *c, Py_ssize_t lanes) noexcept nogil
cdef int thin_weight(int mode, const Conv *c, const float *x, const float *g, float *dw) noexcept nogil
