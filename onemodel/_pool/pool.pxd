# The pool for every other compiled module: raw blocks for scratch, Storage for tensors.
cimport cython
from cpython.object cimport PyObject

# A 64-byte aligned block of at least nbytes; NULL when memory or the limit is exhausted (the caller raises). Thread-safe, no GIL.
cdef void *take(size_t nbytes) noexcept nogil
cdef void give(void *block) noexcept nogil
# Raises MemoryError that says asked, in use, cached, limit and what to do: for callers of take that got NULL.
cdef int raise_no_memory(size_t nbytes) except -1

@cython.final
cdef class Storage:
    """One block of memory shared by every view of a tensor."""
    cdef char *data              # NULL once its scope has closed
    cdef Py_ssize_t nbytes
    cdef Py_ssize_t version      # raised by every in-place operation; shared by all views and detach()
    cdef Py_ssize_t pins         # exported views and kernels that run without the GIL; a pinned block never goes back to the pool
    cdef bint readonly
    cdef object owner            # keeps foreign memory alive; None for a block of the pool
    cdef PyObject *scope         # borrowed: the ActivationScope this storage is tied to, or NULL
    cdef PyObject *previous      # borrowed neighbours in the scope's list
    cdef PyObject *next
    cdef void *block             # the pool's block, NULL for foreign memory

# A new block; scoped=True ties it to the innermost open ActivationScope of this thread, if any. MemoryError says asked, in use, cached.
cdef Storage new_storage(Py_ssize_t nbytes, bint scoped)
cdef Storage foreign_storage(void *data, Py_ssize_t nbytes, object owner, bint readonly)
# Between these two calls nothing is tied to the scopes that were open before: the engine's temporaries and gradients belong to none.
# Scopes opened in between work as ever. suspend returns what resume takes; the calls nest.
cdef void *suspend_scopes() noexcept
cdef void resume_scopes(void *before) noexcept
# Raises ScopeClosedError naming the operator and what to do.
cdef int raise_closed(str op) except -1
cdef void pin(Storage s) noexcept
cdef void unpin(Storage s) noexcept     # the last unpin of a closed storage returns its block

@cython.final
cdef class Export:
    """Base object of a NumPy view: keeps the storage pinned while the view lives."""
    cdef Storage storage

cdef Export new_export(Storage s)
