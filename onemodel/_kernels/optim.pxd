# Optimiser steps, in place, over a list of contiguous parameters.
from onemodel._kernels.table cimport om_sgd

# p, g and momentum (each entry NULL where there is no momentum) are lists of `count` arrays of sizes n; momentum[i] that has not been
# filled yet needs a call of its own with hyper.first. No array may overlap another.
cdef void sgd(int mode, const om_sgd *hyper, Py_ssize_t count, float **p, const float **g, float **momentum, const Py_ssize_t *n) noexcept nogil
