# How graphs live and die: what the cycle collector sees of them, and references given back without recursion.
from cpython.object cimport PyObject

cdef extern from "Python.h":
    void PyObject_GC_Track(PyObject *o)
    void PyObject_GC_UnTrack(PyObject *o)
    int PyObject_GC_IsTracked(PyObject *o)
    void Py_INCREF(PyObject *o)


cdef inline void untrack(object o) noexcept:
    PyObject_GC_UnTrack(<PyObject *>o)


cdef inline void track(object o) noexcept:
    if not PyObject_GC_IsTracked(<PyObject *>o):
        PyObject_GC_Track(<PyObject *>o)


# A reference of the caller's own.
cdef inline PyObject *held(object o) noexcept:
    Py_INCREF(<PyObject *>o)
    return <PyObject *>o


# Gives a reference back that the caller owns: at once, or, inside the end of another one given here, after that.
cdef void bury(PyObject *reference) noexcept
