# Readers of integers and truth values, for cimport by operators.
cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object n, int *overflow) except? -1
    bint PyLong_CheckExact(object n)

cdef Py_ssize_t LARGEST     # of a Py_ssize_t
cpdef object index_of(str op, str name, object value, str expected=*)
cpdef Py_ssize_t integer(str op, str name, object value, Py_ssize_t least, Py_ssize_t most=*, str expected=*) except? -1
cdef int read_integers(str op, str name, object value, int count, Py_ssize_t least, Py_ssize_t most, Py_ssize_t *out) except -1
cpdef bint flag(str op, str name, object value) except -1


# What almost every call gives, without a call: a Python int within its limits (anything else is least - 1, for a reader to look at), True or False.
cdef inline Py_ssize_t plain(object value, Py_ssize_t least, Py_ssize_t most) except? -1:
    cdef int overflow = 0
    cdef long long n
    if PyLong_CheckExact(value):
        n = PyLong_AsLongLongAndOverflow(value, &overflow)
        if least <= n <= most and not overflow:
            return <Py_ssize_t>n
    return least - 1


cdef inline bint truth(str op, str name, object value) except -1:
    return value is True if value is True or value is False else flag(op, name, value)
