# Readers of integers and truth values, for cimport by operators.
cdef Py_ssize_t LARGEST     # of a Py_ssize_t
cpdef object index_of(str op, str name, object value, str expected=*)
cpdef Py_ssize_t integer(str op, str name, object value, Py_ssize_t least, Py_ssize_t most=*, str expected=*) except? -1
cdef int read_integers(str op, str name, object value, int count, Py_ssize_t least, Py_ssize_t most, Py_ssize_t *out) except -1
cpdef bint flag(str op, str name, object value) except? 0
