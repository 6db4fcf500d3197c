# The engine's sums of gradients, for cimport by the operator rules.
from onemodel.tensor cimport Tensor

# g summed over the axes that a broadcast from `dims` to g's shape stretched; g itself where nothing was stretched.
cdef Tensor sum_to(Tensor g, int rank, const Py_ssize_t *dims, int mode, str op)
# Whether nobody but the caller's `references` can see g's memory, so that it may be written or kept.
cdef bint owned(Tensor g, Py_ssize_t references) noexcept
