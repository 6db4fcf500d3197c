# Scalars and arrays as tensors, for cimport by the operator rules.
from onemodel.tensor cimport Tensor

# A Tensor as it is; a Python or NumPy scalar as a 0-d tensor of type `code`; TypeError for anything else.
cdef Tensor as_tensor(object value, int code, str op)
# x itself; TypeError naming the operator if it is no Tensor.
cpdef Tensor require(object x, str op)
