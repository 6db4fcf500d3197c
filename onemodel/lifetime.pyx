"""How graphs live and die: what the cycle collector sees of them, and references given back without recursion. Knows no tensor.

The collector need not look at a graph: results, records and their tuples point from consumers to inputs alone and die by reference
count, and looking at them takes four fifths of the time of building a graph of 100 000 operations. So they are untracked. What a user
can tie into a cycle stays tracked: a tensor whose .grad was assigned, and a record that carries a Python operator's attributes, with
its output.
"""

from cpython.mem cimport PyMem_Realloc
from cpython.object cimport PyObject

cdef extern from "Python.h":
    void Py_DECREF(PyObject *o)

# References whose turn comes when the present one is gone, so that a chain of any length dies in a loop.
cdef PyObject **waiting = NULL
cdef Py_ssize_t count = 0, room = 0
cdef bint burying = False


cdef bint wait(PyObject *reference) noexcept:
    global waiting, count, room
    cdef PyObject **larger
    if count == room:
        larger = <PyObject **>PyMem_Realloc(waiting, (2 * room + 64) * sizeof(PyObject *))
        if larger == NULL:
            return False
        waiting, room = larger, 2 * room + 64
    waiting[count] = reference
    count += 1
    return True


cdef void bury(PyObject *reference) noexcept:
    global burying, count
    if burying:
        if not wait(reference):
            Py_DECREF(reference)  # without memory for the list, recursion is what is left
        return
    burying = True
    Py_DECREF(reference)
    while count:
        count -= 1
        Py_DECREF(waiting[count])
    burying = False
