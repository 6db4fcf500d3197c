# The gradients of a convolution whose outputs were pooled by their maximum, from the winners alone; geometry as in conv.pxd and pooling.pxd.
from libc.stdint cimport int32_t

from onemodel._kernels.conv cimport Conv
from onemodel._kernels.pooling cimport Pooling

cdef enum:
    MADE_DX = 1
    MADE_DW = 2
    MADE_DB = 4

# Whether the function below takes this geometry, and is faster.
cdef bint winners_fit(int mode, const Conv *c, const Pooling *p) noexcept nogil
# dx, dw and db, each unless it is NULL, as conv_input, conv_weight and a double sum make them of all outputs' gradients. Returns which are made, -1 if
# memory ran out; the others could have other bits when all outputs are taken, and are unspecified. index: the place of each winner in its plane, or -1.
cdef int winners_backward(int mode, const Conv *c, const Pooling *p, const float *g, const int32_t *index, const float *x, const float *w,
                          float *dx, float *dw, float *db) noexcept nogil
