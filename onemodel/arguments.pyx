"""Reads the integers and truth values that operators and layers take, so that one rule says what counts as one. Must not name an operator.

An integer is Python's or NumPy's, or an integer tensor or array of one element; never a bool, a float or a string.
"""

from cpython.number cimport PyNumber_Index

cdef enum:
    MOST_DIGITS = 128       # bits of an integer that an error still writes out

cdef str ONE = "an integer", PAIR = "an integer or a pair (rows, columns)"
cdef Py_ssize_t LARGEST = <Py_ssize_t>((<size_t>-1) >> 1)


cdef str described(object value):
    """What was given instead of an integer, and how to make one of it."""
    cdef str kind = type(value).__name__
    shape = None if value is None or isinstance(value, type) else getattr(value, "shape", None)
    if isinstance(shape, tuple) and hasattr(value, "tolist") and hasattr(value, "__getitem__") and hasattr(value, "__len__"):
        return f"{kind} of {value.dtype}, shape {shape}; write int(t) for one number, tuple(t.tolist()) for several"
    if isinstance(value, (tuple, list)):
        return f"{kind} of {len(value)}"
    return f"{kind}; write int(...)" if isinstance(value, float) else kind


cpdef object index_of(str op, str name, object value, str expected="an integer"):
    """`value` as a Python int of any size; TypeError unless it is an integer."""
    if PyLong_CheckExact(value):
        return value
    # A float32 tensor has no index; a bool, and a tensor or array of bools, would have one.
    if not isinstance(value, bool) and getattr(getattr(value, "dtype", None), "kind", "") != "b":
        try:
            return PyNumber_Index(value)
        except (TypeError, ValueError):
            pass
    raise TypeError(f"{op}: {name} must be {expected}, got {described(value)}")


cpdef Py_ssize_t integer(str op, str name, object value, Py_ssize_t least, Py_ssize_t most=LARGEST, str expected="an integer") except? -1:
    """`value` from `least` to `most`; TypeError or ValueError that says so. `expected` says what forms there are beside one integer."""
    cdef int overflow = 0
    cdef object found = index_of(op, name, value, expected)
    cdef long long n = PyLong_AsLongLongAndOverflow(found, &overflow)
    if overflow or n < least or n > most:
        limits = "an integer of 64 bits" if least == -LARGEST else f"at least {least}" if most == LARGEST else f"from {least} to {most}"
        got = found if found.bit_length() < MOST_DIGITS else f"an integer of {found.bit_length()} bits"
        raise ValueError(f"{op}: {name} must be {limits}, got {got}")
    return <Py_ssize_t>n


cdef int read_integers(str op, str name, object value, int count, Py_ssize_t least, Py_ssize_t most, Py_ssize_t *out) except -1:
    """`count` integers, of one for all or a tuple or list with one for each."""
    cdef str expected = ONE if count == 1 else PAIR if count == 2 else f"an integer or {count} of them"
    cdef int i
    if not isinstance(value, (tuple, list)):
        out[0] = integer(op, name, value, least, most, expected)
        for i in range(1, count):
            out[i] = out[0]
        return 0
    cdef tuple parts = tuple(value)
    if len(parts) != count and len(parts) != 1:
        raise ValueError(f"{op}: {name} must be {expected}, got a {described(value)}")
    for i in range(count):
        out[i] = integer(op, name, parts[i if len(parts) > 1 else 0], least, most, expected)
    return 0


def integers(str op, str name, value, int count, Py_ssize_t least, Py_ssize_t most=LARGEST):
    """A tuple of `count` integers from `least` to `most`, of one for all or a tuple or list with one for each."""
    cdef Py_ssize_t[16] out
    if not 0 < count <= 16:
        raise ValueError(f"integers: {count} of them")
    read_integers(op, name, value, count, least, most, out)
    return tuple([out[i] for i in range(count)])


cpdef bint flag(str op, str name, object value) except -1:
    """TypeError unless it is a truth value: "no" would count as true. NumPy's bool is one, too."""
    if value is True:
        return True
    if value is False:
        return False
    if getattr(value, "dtype", None) == "bool" and getattr(value, "shape", None) == () and not hasattr(value, "grad_fn"):
        return value
    raise TypeError(f"{op}: {name} must be True or False, got {type(value).__name__}")
