"""Owns the active kernel table: which instruction sets are here, which one runs, and the arithmetic mode.

The only module that links the kernels and the thread pool; every other compiled module cimports it. Holds no loops.
"""

from onemodel.threads import default_num_threads, register_controller

cdef extern from "kernels.h" nogil:
    ctypedef struct om_row_info:
        const char *signature
        const char *name
        const char *doc
    const om_row_info om_row_infos[]
    const om_table *const om_tables[]
    enum:
        OM_ROW_COUNT

cdef extern from "cpu.h" nogil:
    int om_cpu_supports(const char *isa)

cdef extern from "threads.h" nogil:
    void om_parallel(task_fn *task, void *context, Py_ssize_t pieces)
    void om_parallel_steps(step_fn *task, void *context, Py_ssize_t groups, Py_ssize_t steps, Py_ssize_t parts)
    void om_set_num_threads(int n)
    int om_get_num_threads()
    int om_last_threads()

cdef extern from *:
    """
    static _Thread_local int om_mode_override = -1; /* -1: this thread follows the process default */
    """
    int om_mode_override

cdef int default_mode = FAST
cdef const om_table *active[2]
cdef Py_ssize_t piece_elements = 32768
cdef dict rows_by_name = {}


cdef int current_mode() noexcept nogil:
    return default_mode if om_mode_override < 0 else om_mode_override


cdef const om_table *table_of(int mode) noexcept nogil:
    return active[mode]


cdef void parallel(task_fn *task, void *context, Py_ssize_t pieces) noexcept nogil:
    om_parallel(task, context, pieces)


cdef void parallel_steps(step_fn *task, void *context, Py_ssize_t groups, Py_ssize_t steps, Py_ssize_t parts) noexcept nogil:
    om_parallel_steps(task, context, groups, steps, parts)


cdef int thread_count() noexcept nogil:
    return om_get_num_threads()


cdef Py_ssize_t smallest_piece() noexcept nogil:
    return piece_elements


cdef Py_ssize_t row_index(str signature, str name) except -1:
    found = rows_by_name.get(name)
    if found is None:
        raise KeyError(f"no kernel named {name!r}; the rows are {', '.join(sorted(rows_by_name))}")
    if found[1] != signature:
        raise ValueError(f"kernel {name!r} has the signature class {found[1]!r}, asked for as {signature!r}")
    return found[0]


def compiled_isas():
    """Names of the instruction sets compiled into this build, least first."""
    cdef Py_ssize_t i = 0
    names = []
    while om_tables[i] != NULL:
        names.append(om_tables[i].isa.decode())
        i += 2
    return names


def available_isas():
    """Names of the instruction sets that are compiled in and that this machine can run, best last."""
    return [name for name in compiled_isas() if om_cpu_supports(name.encode())]


def get_isa():
    """Name of the instruction set in use."""
    return active[0].isa.decode()


def select_isa(str name):
    """Make one available instruction set the active one for the whole process."""
    if name not in available_isas():
        raise ValueError(f"use_isa: {name!r} is not available here; available: {', '.join(available_isas())}")
    cdef Py_ssize_t i = 2 * compiled_isas().index(name)
    active[0] = om_tables[i]
    active[1] = om_tables[i + 1]


def get_default_mode():
    return default_mode


def set_default_mode(int mode):
    global default_mode
    default_mode = mode


def get_mode_override():
    """This thread's mode, or -1 when it follows the process default."""
    return om_mode_override


def set_mode_override(int mode):
    global om_mode_override
    om_mode_override = mode


def get_mode():
    return current_mode()


def set_num_threads(int n):
    om_set_num_threads(n)


def get_num_threads():
    return om_get_num_threads()


def last_threads():
    """How many threads ran at least one piece of this thread's last parallel job (for tests)."""
    return om_last_threads()


def set_smallest_piece(Py_ssize_t elements):
    """Elements that one parallel piece should have at least; returns the old value. Tests set 1 to force threads on small work."""
    global piece_elements
    if elements < 1:
        raise ValueError(f"set_smallest_piece: expected at least 1, got {elements}")
    old = piece_elements
    piece_elements = elements
    return old


def rows():
    """The kernel list: name -> (signature class, one line of documentation)."""
    return {name: (signature, doc) for name, (_, signature, doc) in rows_by_name.items()}


for _i in range(OM_ROW_COUNT):
    rows_by_name[om_row_infos[_i].name.decode()] = (_i, om_row_infos[_i].signature.decode(), om_row_infos[_i].doc.decode())

select_isa(available_isas().pop())
om_set_num_threads(default_num_threads())
register_controller()
