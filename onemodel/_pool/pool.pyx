"""Owns Storage (one block shared by all views of a tensor), ActivationScope, and the Python face of the allocator in blocks.c.

Knows nothing of tensors: a scope holds storages. Must not allocate Python objects per block beyond the Storage itself.
"""
cimport cython
from libc.stdint cimport int64_t, uintptr_t

from onemodel.arguments cimport LARGEST, integer

from onemodel.errors import ScopeClosedError

cdef extern from "blocks.h" nogil:
    ctypedef struct om_pool_stats:
        int64_t outstanding_bytes
        int64_t cached_bytes
    ctypedef struct om_pool_counter:
        const char *name
        const char *doc
    enum:
        OM_POOL_COUNTER_COUNT
    const om_pool_counter om_pool_counters[]
    void *om_take(size_t nbytes)
    void om_give(void *block)
    size_t om_block_capacity(const void *block)
    om_pool_stats om_pool_read()
    void om_pool_reset_peak()
    int64_t om_pool_trim()
    void om_pool_set_limit(int64_t nbytes)
    int64_t om_pool_get_limit()
    int64_t om_pool_set_age(int64_t requests)
    int om_pool_set_poison(int on)
    const char *om_pool_check()

cdef extern from "scopes.h":
    ctypedef struct om_scopes:
        void *top
    om_scopes *om_scopes_hold()
    void om_scopes_drop(void *scopes)
    void *om_scopes_top()

cdef extern from *:
    """
    static _Thread_local void *om_scope_barrier; /* the innermost scope when scopes were suspended; nothing is tied to it meanwhile */
    """
    void *om_scope_barrier


cdef void *take(size_t nbytes) noexcept nogil:
    return om_take(nbytes)


cdef void give(void *block) noexcept nogil:
    om_give(block)


cdef str readable(size_t nbytes):
    cdef double n = nbytes
    if n < 1024:
        return f"{nbytes} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        n /= 1024
        if n < 1024:
            return f"{n:.1f} {unit}"
    return f"{n / 1024:.1f} TiB"


cdef int raise_no_memory(size_t nbytes) except -1:
    cdef om_pool_stats s = om_pool_read()
    cdef int64_t limit = om_pool_get_limit()
    bound = f"limit {readable(limit)}" if limit >= 0 else "no limit set"
    raise MemoryError(f"pool: asked for {readable(nbytes)} ({nbytes} bytes), in use {readable(s.outstanding_bytes)}, "
                      f"cached {readable(s.cached_bytes)}, {bound}; free tensors, use a smaller batch, or raise set_pool_limit")


@cython.final
@cython.auto_pickle(False)
@cython.no_gc       # owner is the only object: a cycle through foreign memory is refused for an untracked, cheaper object
@cython.freelist(512)
cdef class Storage:
    def __dealloc__(self):
        if self.scope != NULL:
            untie(self)
        if self.block != NULL:
            om_give(self.block)


@cython.final
@cython.auto_pickle(False)
@cython.no_gc       # holds a Storage alone, which cannot be part of a cycle
@cython.freelist(64)
cdef class Export:
    def __dealloc__(self):
        unpin(self.storage)


cdef Storage new_storage(Py_ssize_t nbytes, bint scoped):
    cdef Storage s = Storage.__new__(Storage)
    cdef void *scope
    if nbytes < 0:
        raise ValueError(f"pool: expected a size of at least 0 bytes, got {nbytes}")
    s.block = om_take(nbytes)
    if s.block == NULL:
        raise_no_memory(nbytes)
    s.data = <char *>s.block
    s.nbytes = nbytes
    if scoped:
        scope = om_scopes_top()
        if scope != NULL and scope != om_scope_barrier:
            tie(<ActivationScope>scope, s)
    return s


cdef Storage foreign_storage(void *data, Py_ssize_t nbytes, object owner, bint readonly):
    cdef Storage s = Storage.__new__(Storage)
    # A pointer of its own kind: NULL means closed, and foreign memory of no bytes may come as NULL.
    if data == NULL:
        if nbytes != 0:
            raise ValueError(f"pool: foreign memory of {nbytes} bytes has no address")
        s.block = om_take(0)
        if s.block == NULL:
            raise_no_memory(0)
        data = s.block
    s.data = <char *>data
    s.nbytes = nbytes
    s.owner = owner
    s.readonly = readonly
    return s


cdef void *suspend_scopes() noexcept:
    global om_scope_barrier
    cdef void *before = om_scope_barrier
    om_scope_barrier = om_scopes_top()
    return before


cdef void resume_scopes(void *before) noexcept:
    global om_scope_barrier
    om_scope_barrier = before


cdef int raise_closed(str op) except -1:
    raise ScopeClosedError(f"{op}: expected a live tensor, got one whose ActivationScope has closed and returned its memory; "
                           "call scope.keep(tensor) inside the scope, or read the value out before it ends")


cdef void pin(Storage s) noexcept:
    s.pins += 1


cdef void unpin(Storage s) noexcept:
    s.pins -= 1
    if s.pins == 0 and s.data == NULL and s.block != NULL:
        om_give(s.block)
        s.block = NULL


cdef Export new_export(Storage s):
    cdef Export e = Export.__new__(Export)
    e.storage = s
    pin(s)
    return e


# -- the scope's list: intrusive, borrowed pointers, so that tensors die by reference count first --

cdef void tie(ActivationScope scope, Storage s) noexcept:
    s.scope = <PyObject *>scope
    s.previous = NULL
    s.next = scope.first
    if scope.first != NULL:
        (<Storage>scope.first).previous = <PyObject *>s
    scope.first = <PyObject *>s
    scope.count += 1
    scope.live_bytes += s.nbytes
    if scope.live_bytes > scope.peak:
        scope.peak = scope.live_bytes


cdef void untie(Storage s) noexcept:
    cdef ActivationScope scope = <ActivationScope>s.scope
    if s.next != NULL:
        (<Storage>s.next).previous = s.previous
    if s.previous != NULL:
        (<Storage>s.previous).next = s.next
    else:
        scope.first = s.next
    s.scope = s.previous = s.next = NULL
    scope.count -= 1
    scope.live_bytes -= s.nbytes


cdef void leave_stack(ActivationScope scope) noexcept:
    # By identity, from wherever it stands: generators close their scopes in any order.
    cdef void **link = &scope.stack.top
    while link[0] != <void *>scope:
        link = &(<ActivationScope>link[0]).below
    link[0] = scope.below
    scope.below = NULL
    om_scopes_drop(scope.stack)
    scope.stack = NULL


@cython.final
@cython.auto_pickle(False)
@cython.binding(False)  # a bound function of Cython takes any object for self
cdef class ActivationScope:
    """Returns the memory of operator results made inside it when it closes.

    A context manager, per thread, nested at will, usable again after it closed. Tensors freed earlier leave it by themselves. Using a
    tensor whose scope has closed raises ScopeClosedError; a NumPy view of one stays valid, its block returns when the view dies.
    """
    cdef PyObject *first       # borrowed: the storages tied to this scope
    cdef void *below           # borrowed: the enclosing scope on the stack
    cdef om_scopes *stack      # NULL while closed
    cdef Py_ssize_t count
    cdef Py_ssize_t live_bytes
    cdef Py_ssize_t peak

    def __enter__(self):
        if self.stack != NULL:
            raise RuntimeError("ActivationScope: expected a closed scope, got one that is open; make a second ActivationScope() to nest")
        cdef om_scopes *stack = om_scopes_hold()
        if stack == NULL:
            raise MemoryError("ActivationScope: no memory for the thread's stack of scopes")
        self.stack = stack
        self.below = stack.top
        self.peak = 0
        stack.top = <void *>self
        return self

    def __exit__(self, *error):
        self.close()
        return False

    def close(self):
        """Close the scope: what is still tied to it is returned to the pool. A second call does nothing."""
        cdef Storage s
        if self.stack == NULL:
            return
        leave_stack(self)
        while self.first != NULL:
            s = <Storage>self.first
            untie(s)
            s.data = NULL
            if s.pins == 0:
                om_give(s.block)
                s.block = NULL

    def __dealloc__(self):
        # Dropped while open (a thread that ended, an unused __enter__): its tensors may be in use, so they are untied, never closed.
        if self.stack != NULL:
            leave_stack(self)
        while self.first != NULL:
            untie(<Storage>self.first)

    def keep(self, tensor):
        """Let a tensor outlive this scope: its memory moves to the enclosing scope, or to none. Returns the tensor."""
        cdef Storage s
        cdef void *scope
        try:
            s = tensor._storage
        except (AttributeError, TypeError):
            raise TypeError(f"ActivationScope.keep: expected a Tensor, got {type(tensor).__name__}") from None
        if self.stack == NULL:
            raise RuntimeError("ActivationScope.keep: expected an open scope, got a closed one; call keep inside the with block")
        if s.data == NULL:
            raise_closed("ActivationScope.keep")
        # A tensor of a scope inside this one moves out of both; one of an enclosing scope, or of none, already outlives this one.
        scope = self.stack.top
        while scope != self.below:
            if scope == <void *>s.scope:
                untie(s)
                if self.below != NULL:
                    tie(<ActivationScope>self.below, s)
                break
            scope = (<ActivationScope>scope).below
        return tensor

    @property
    def bytes(self):
        """Bytes of the tensors tied to this scope now."""
        return self.live_bytes

    @property
    def peak_bytes(self):
        """Largest value of bytes since the scope was opened."""
        return self.peak

    @property
    def tensors(self):
        """Number of memory blocks tied to this scope now; views of one tensor share one."""
        return self.count

    @property
    def is_open(self):
        return self.stack != NULL

    def __repr__(self):
        state = "open" if self.stack != NULL else "closed"
        return f"<ActivationScope {state}: {self.count} tensors, {readable(self.live_bytes)}>"


# -- the Python face of blocks.c; onemodel/memory.py is its public door --

COUNTERS = {om_pool_counters[i].name.decode(): om_pool_counters[i].doc.decode() for i in range(OM_POOL_COUNTER_COUNT)}


def read_counters():
    """The counters' values, in the order of COUNTERS."""
    cdef om_pool_stats s = om_pool_read()
    cdef const int64_t *value = <const int64_t *>&s
    return tuple([value[i] for i in range(OM_POOL_COUNTER_COUNT)])


def pool_reset_peak():
    """Set peak_outstanding_bytes to what is outstanding now."""
    om_pool_reset_peak()


def pool_trim():
    """Give free memory back to the operating system; returns the number of bytes."""
    return om_pool_trim()


def set_pool_limit(nbytes):
    """Bound what the pool may hold and hand out, in bytes; None removes the bound."""
    if nbytes is None:
        om_pool_set_limit(-1)
        return
    om_pool_set_limit(integer("set_pool_limit", "nbytes", nbytes, 0, LARGEST, "an integer, or None for no limit"))


def set_pool_age(Py_ssize_t requests):
    """Give memory back that was free during this many requests; returns the old value."""
    if requests < 1:
        raise ValueError(f"set_pool_age: expected at least 1, got {requests}")
    return om_pool_set_age(requests)


def set_pool_poison(bint on):
    """Fill blocks with signalling NaN on take and on return; returns the old setting."""
    return bool(om_pool_set_poison(on))


def pool_check():
    """Walk every invariant of the pool; raises AssertionError that says which is broken."""
    cdef const char *broken = om_pool_check()
    if broken != NULL:
        raise AssertionError(f"pool: {broken.decode()}")


def take_block(size_t nbytes):
    """The address of a new block, for tests and tools: without a Storage, nothing returns it but give_block."""
    cdef void *block
    with nogil:
        block = om_take(nbytes)
    if block == NULL:
        raise_no_memory(nbytes)
    return <uintptr_t>block


def give_block(uintptr_t address):
    """Return a block of take_block."""
    with nogil:
        om_give(<void *>address)


def block_capacity(uintptr_t address):
    """Bytes usable in a block of take_block."""
    return om_block_capacity(<void *>address)
