# Tensor, Record and Rule for cimport by the engine and the operator rules.
from onemodel._pool.pool cimport Storage

cdef enum:
    MAX_NDIM = 16

# Codes of the five data types, in the order of tensor.DTYPES.
cdef enum:
    FLOAT32 = 0
    INT32 = 1
    INT64 = 2
    UINT8 = 3
    BOOL = 4

# Bytes of one element.
cdef inline Py_ssize_t itemsize(int code) noexcept nogil:
    return 8 if code == INT64 else 4 if code < INT64 else 1


cdef class Tensor:
    cdef Storage storage
    cdef Py_ssize_t offset               # elements from the storage's start to element [0, ..., 0]
    cdef Py_ssize_t count                # number of elements
    cdef int rank
    cdef int code
    cdef bint wants_grad                 # a leaf that collects a gradient, or a result that carries a record
    cdef bint dense                      # contiguous in row-major order
    cdef Py_ssize_t[MAX_NDIM] dims
    cdef Py_ssize_t[MAX_NDIM] steps      # strides in elements
    cdef Record record                   # None for a leaf
    cdef Tensor gradient
    cdef object __weakref__


cdef class Rule:
    """How one operator goes backward; the engine knows no other thing about an operator."""
    cdef public str name
    cdef public bint builtin             # its records may not be changed once forward is over: kernels believe them
    # One Tensor for an operator of one input, else a tuple with a Tensor or None per tensor input.
    cdef object backward(self, Record r, Tensor g)


cdef class Record:
    """One executed operator in the graph; the context handed to a Python operator's forward and backward."""
    cdef Rule rule
    cdef tuple edges                     # per tensor input: its Record, the leaf Tensor itself, or None
    cdef tuple saved                     # Tensors or None
    cdef Py_ssize_t *versions            # of each saved slot at the time of saving
    cdef Py_ssize_t[4] few_versions      # where versions points while four suffice
    cdef object attributes               # what a compiled rule needs besides tensors; a Python operator's own attributes, as a dict
    cdef int mode
    cdef bint released
    cdef bint bound                      # the output has this record: what it saved is fixed
    cdef bint keeps_grad                 # retain_grad() was called on the output
    cdef Tensor retained
    cdef Tensor pending                  # the gradient of the output, while a backward pass runs
    cdef Py_ssize_t run                  # identity of the backward pass that walks this record; 0 for none
    cdef Py_ssize_t cursor               # next edge of the depth-first search
    cdef Py_ssize_t wanted               # bit i: this pass wants the gradient of input i (inputs from 62 on always)
    cdef int rank                        # shape of the output
    cdef Py_ssize_t[MAX_NDIM] dims


# New contiguous memory, not initialised. scoped: tied to the innermost open ActivationScope (operator results and copies).
cdef Tensor new_tensor(int code, int rank, const Py_ssize_t *dims, bint scoped)
cdef Tensor new_like(Tensor t, bint scoped)
# Another geometry on the storage of `base`, without a record.
cdef Tensor new_view(Tensor base, int rank, const Py_ssize_t *dims, const Py_ssize_t *steps, Py_ssize_t offset)
cdef Tensor alias(Tensor t)
# The address of element [0, ..., 0]; raises ScopeClosedError, naming the operator, if the memory went back to the pool.
cdef char *data_of(Tensor t, str op) except NULL
# t itself if it is contiguous, else a contiguous copy (not recorded).
cdef Tensor densely(Tensor t, str op)
cdef bint same_shape(Tensor t, int rank, const Py_ssize_t *dims) noexcept
# Multiplies sizes with a check; raises MemoryError naming the shape on overflow.
cdef Py_ssize_t checked_count(int rank, const Py_ssize_t *dims) except -1
# Copies `source` (any strides, broadcast to the target) into `target` (any strides), casting.
cdef int copy_into(Tensor target, Tensor source, str op) except -1

cdef bint recording() noexcept nogil
cdef void set_recording(bint on) noexcept nogil
cdef object edge_of(Tensor t)
# A dimension counted from either end; IndexError names the range. A 0-d tensor answers to -1 and 0.
cdef Py_ssize_t normal_axis(object dim, int rank, str op) except -1
cdef int read_shape(tuple shape, Py_ssize_t *dims, str op) except -1
cdef void bind(Tensor out, Record r) noexcept
cdef tuple shape_tuple(int rank, const Py_ssize_t *dims)
# Attaches a record to a fresh result.
cdef int attach(Tensor out, Rule rule, tuple edges, tuple saved, object attributes, int mode) except -1
cdef int set_saved(Record r, tuple saved) except -1
# Raises TensorVersionError or ScopeClosedError if a saved tensor is not what it was.
cdef int check_saved(Record r) except -1
cdef int release(Record r) except -1
