# The compiled rules' shared pieces.
from onemodel.tensor cimport Record, Rule, Tensor

# Shape of the tensor behind an edge (a Record's output or a leaf); returns the rank.
cdef int edge_shape(object edge, Py_ssize_t *dims) noexcept
# Shape that all of `count` tensors broadcast to; ShapeError names the operator and the shapes.
cdef int broadcast_shape(tuple tensors, Py_ssize_t *dims, str op) except -1
cdef tuple edges_of(tuple tensors)
cdef bint any_wants(tuple tensors) noexcept
