# The compiled rules' shared pieces.
from cpython.object cimport PyObject

from onemodel.tensor cimport Record, Rule, Tensor

cdef enum:
    MAX_INPUTS = 4

cdef struct Slope:                   # how the gradient of one input is made
    int kind
    int signature
    Py_ssize_t row
    int operands
    int[MAX_INPUTS] operand
    int uses                         # bit per operand code that must be saved

cdef class Map(Rule):
    cdef int signature
    cdef Py_ssize_t row
    cdef int inputs
    cdef Slope[MAX_INPUTS] slopes
    cdef readonly object integer
    cdef readonly str words

cdef Tensor forward(Map rule, PyObject **inputs, Tensor into=*)

# Shape of the tensor behind an edge (a Record's output or a leaf); returns the rank.
cdef int edge_shape(object edge, Py_ssize_t *dims) noexcept
# Shape that all of `count` tensors broadcast to; ShapeError names the operator and the shapes.
cdef int broadcast_shape(tuple tensors, Py_ssize_t *dims, str op) except -1
cdef tuple edges_of(tuple tensors)
cdef bint any_wants(tuple tensors) noexcept
