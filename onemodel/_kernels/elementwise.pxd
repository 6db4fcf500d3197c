# Element-wise kernels over strided and broadcast operands.
from onemodel._kernels.table cimport om_fn

cdef enum:
    MAX_OPERANDS = 4
    MAX_DIMS = 16

cdef enum Signature:
    MAP1 = 0
    MAP2 = 1
    MAP3 = 2
    MAP4 = 3
    COMPARE = 4
    SELECT = 5

# One input: the address of element [0, ..., 0] and its step along each dimension of the output (0 where it is broadcast).
cdef struct Operand:
    const char *data
    Py_ssize_t[MAX_DIMS] steps

# out (contiguous, shape dims) = kernel(operands). `out` may be an operand's own contiguous memory.
cdef void map_strided(int signature, om_fn kernel, int rank, const Py_ssize_t *dims, Operand *operands, char *out) noexcept nogil
# The same where every operand is contiguous with n elements, or has one element (steps[0] == 0).
cdef void map_flat(int signature, om_fn kernel, Py_ssize_t n, Operand *operands, char *out) noexcept nogil
# Elements [start, start + n) in row-major order of a strided operand of `item` bytes an element, into contiguous memory.
cdef void gather(const Operand *operand, int rank, const Py_ssize_t *dims, Py_ssize_t start, Py_ssize_t n, char *to, int item) noexcept nogil
