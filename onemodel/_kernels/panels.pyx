"""Owns products whose right operand is packed once for many: panels as the tiles of gemm.h read them. Holds no arithmetic, no threads.

One chain over all of k stays in the registers of a tile, so nothing is blocked over k: the operands here have at most some thousand steps.
"""
from onemodel._kernels.table cimport table_of
from onemodel._pool.pool cimport take

cdef extern from "kernels.h" nogil:
    enum:
        OM_GEMM_FIRST
        OM_GEMM_LAST


cdef Py_ssize_t panels_size(int mode, Py_ssize_t n, Py_ssize_t k) noexcept nogil:
    cdef Py_ssize_t lanes = table_of(mode).gemm.lanes
    return (n + lanes - 1) // lanes * lanes * max(k, 1)


cdef void pack_into(int mode, Py_ssize_t rows, Py_ssize_t n, Py_ssize_t k, const float *b, Py_ssize_t rsb, Py_ssize_t csb, float *room,
                    Panels *w) noexcept nogil:
    cdef Py_ssize_t lanes, whole
    w.g, w.n, w.k, w.data = &table_of(mode).gemm, n, k, room
    lanes = w.g.lanes
    whole = (n + lanes - 1) // lanes * lanes
    # few rows take wider panels: one row has eight chains beside each other instead of two, which hides their latency
    w.width = (w.g.width(min(max(rows, 1), w.g.mr), whole) + lanes - 1) // lanes * lanes
    w.g.pack(b, rsb, csb, k, n, w.width, room)


cdef int pack_panels(int mode, Py_ssize_t rows, Py_ssize_t n, Py_ssize_t k, const float *b, Py_ssize_t rsb, Py_ssize_t csb, Panels *w) noexcept nogil:
    cdef float *room = <float *>take(panels_size(mode, n, k) * sizeof(float))
    if room == NULL:
        return -1
    pack_into(mode, rows, n, k, b, rsb, csb, room, w)
    return 0


cdef void multiply_steps(const Panels *w, Py_ssize_t m, Py_ssize_t k0, Py_ssize_t k1, const float *a, Py_ssize_t rsa, Py_ssize_t csa, float *c,
                         Py_ssize_t rsc, const float *bias, int flags) noexcept nogil:
    cdef Py_ssize_t tiles = (m + w.g.mr - 1) // w.g.mr, rows, i, j = 0, at, nn, ld, whole
    if m == 0:
        return
    rows = (m + tiles - 1) // tiles
    while j < w.n:
        whole = min(w.width, w.n - j)
        ld = (whole + w.g.lanes - 1) // w.g.lanes * w.g.lanes
        at = 0
        while at < whole:
            nn = min(w.g.width(rows, whole - at), whole - at)  # a panel may be wider than a tile of so many rows
            i = 0
            while i < m:
                w.g.tile(min(rows, m - i), nn, k1 - k0, a + i * rsa + k0 * csa, rsa, csa, w.data + j * w.k + k0 * ld + at, ld,
                         c + i * rsc + j + at, rsc, bias + j + at if bias != NULL else NULL, flags)
                i += rows
            at += nn
        j += w.width


cdef void multiply_panels(const Panels *w, Py_ssize_t m, const float *a, Py_ssize_t rsa, float *c, Py_ssize_t rsc, const float *bias) noexcept nogil:
    multiply_steps(w, m, 0, w.k, a, rsa, 1, c, rsc, bias, OM_GEMM_FIRST | OM_GEMM_LAST)
