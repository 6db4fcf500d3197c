# The reader of a pooling's windows, for cimport by operators that pool what is not a tensor.
from onemodel._kernels.pooling cimport Pooling
from onemodel.tensor cimport Tensor

# Fills in the windows of p, whose planes (n, c, h, w) are known; messages call these `what`, and x is the operator's argument.
cdef int read_windows(bint planar, object kernel_size, object stride, object padding, object dilation, object ceil_mode, str op, Tensor x,
                      str what, Pooling *p) except -1
