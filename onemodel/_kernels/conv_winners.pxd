# The weight gradient of a convolution whose outputs were pooled by their maximum, from the winners alone; geometry as in conv.pxd and pooling.pxd.
from libc.stdint cimport int32_t

from onemodel._kernels.conv cimport Conv
from onemodel._kernels.pooling cimport Pooling

# Whether the function below takes this geometry, and is faster.
cdef bint winners_fit(int mode, const Conv *c, const Pooling *p) noexcept nogil
# dw as conv_weight makes it of all outputs' gradients. 1, or 0 where these could have other bits (dw is then unspecified), or -1 if memory ran out.
# index: the place of each winner in its plane, -1 for none.
cdef int winners_weight(int mode, const Conv *c, const Pooling *p, const float *g, const int32_t *index, const float *x, float *dw) noexcept nogil
