# The weight gradient of a convolution; see conv.pxd for the geometry and the return value.
from onemodel._kernels.conv cimport Conv

# dw[oc, ic / groups, kh, kw] from x (strides xn, xc, xh) and g, contiguous: per image one chain over output positions, images added in order.
cdef int conv_weight(int mode, const Conv *c, const float *x, const float *g, float *dw) noexcept nogil
# The same for images behind those that dw has already; only where weight_continues.
cdef int conv_weight_more(int mode, const Conv *c, const float *x, const float *g, float *dw) noexcept nogil
cdef bint weight_continues(int mode, const Conv *c) noexcept nogil
