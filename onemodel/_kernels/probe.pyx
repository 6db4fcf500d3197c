"""Runs one element-wise kernel row on NumPy arrays: what tests and `onemodel verify` use to look at a kernel by itself.

Not a way to compute: it switches the process's instruction set for the call, checks little and broadcasts nothing. Rows of other
families are reached through their operators.
"""

from libc.stdint cimport uint8_t, uint64_t

from onemodel._kernels.table cimport (
    om_compare_fn, om_fn, om_fp_enter, om_fp_leave, om_map1_fn, om_map2_fn, om_map3_fn, om_map4_fn, om_select_fn, row_index, table_of,
)

import numpy as np

from onemodel._kernels import table

ROWS = table.rows()
INPUTS = {"map1": 1, "map2": 2, "map3": 3, "map4": 4, "compare": 2, "select": 3}


cdef size_t _address(str name, array, type, n) except? 0:
    if array.shape != (n,) or array.dtype != type or not array.flags.c_contiguous:
        raise TypeError(f"probe: {name}: expected contiguous {type.__name__}[{n}], got {array.dtype}{list(array.shape)}; convert it first")
    return array.ctypes.data


def run(str name, *arrays, int mode, isa=None, out=None):
    """The row's result on equally long contiguous float32 arrays (the condition of a select is uint8, as the output of a comparison).

    `out` may be an input, except of a comparison. `isa` is the active instruction set unless given; `mode` is 0 (fast) or 1 (exact).
    """
    signature = ROWS[name][0] if name in ROWS else None
    if signature not in INPUTS:
        raise ValueError(f"probe: {name!r} is no element-wise row; the classes are {', '.join(INPUTS)}, the rows are in table.rows()")
    if mode not in (0, 1) or len(arrays) != INPUTS[signature]:
        raise ValueError(f"probe: {name}: expected {INPUTS[signature]} arrays and mode 0 or 1, got {len(arrays)} and {mode}")
    cdef Py_ssize_t n = len(arrays[0]), row = row_index(signature, name)
    if out is None:
        out = np.empty(n, np.uint8 if signature == "compare" else np.float32)
    cdef size_t at[4]
    cdef size_t to = _address(name, out, np.uint8 if signature == "compare" else np.float32, n)
    for i, array in enumerate(arrays):
        at[i] = _address(name, array, np.uint8 if signature == "select" and i == 0 else np.float32, n)
    previous = table.get_isa()
    if isa not in (None, previous):
        table.select_isa(isa)
    cdef om_fn f = table_of(mode).row[row]
    if isa not in (None, previous):
        table.select_isa(previous)
    cdef uint64_t state = om_fp_enter()
    if signature == "map1":
        (<om_map1_fn *>f)(<float *>at[0], <float *>to, n)
    elif signature == "map2":
        (<om_map2_fn *>f)(<float *>at[0], <float *>at[1], <float *>to, n)
    elif signature == "map3":
        (<om_map3_fn *>f)(<float *>at[0], <float *>at[1], <float *>at[2], <float *>to, n)
    elif signature == "map4":
        (<om_map4_fn *>f)(<float *>at[0], <float *>at[1], <float *>at[2], <float *>at[3], <float *>to, n)
    elif signature == "compare":
        (<om_compare_fn *>f)(<float *>at[0], <float *>at[1], <uint8_t *>to, n)
    else:
        (<om_select_fn *>f)(<uint8_t *>at[0], <float *>at[1], <float *>at[2], <float *>to, n)
    om_fp_leave(state)
    return out
