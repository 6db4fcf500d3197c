# What operators that write into an operand must know about its memory.
from onemodel.tensor cimport Tensor

# Whether the memory of two non-empty tensors may share a byte.
cdef bint overlap(Tensor a, Tensor b) noexcept
# Whether two indices of t may name one element.
cdef bint shares_elements(Tensor t) noexcept
