"""Owns products whose right operand is packed once for many: panels as the tiles of gemm.h read them. Holds no arithmetic, no threads.

One chain over all of k stays in the registers of a tile, so nothing is blocked over k: the operands here have at most some thousand steps.
"""
from onemodel._kernels.table cimport table_of
from onemodel._pool.pool cimport take

cdef extern from "kernels.h" nogil:
    enum:
        OM_GEMM_FIRST
        OM_GEMM_LAST


cdef int pack_panels(int mode, Py_ssize_t rows, Py_ssize_t n, Py_ssize_t k, const float *b, Py_ssize_t rsb, Py_ssize_t csb, Panels *w) noexcept nogil:
    cdef Py_ssize_t lanes, whole
    w.g, w.n, w.k = &table_of(mode).gemm, n, k
    lanes = w.g.lanes
    whole = (n + lanes - 1) // lanes * lanes
    # few rows take wider panels: one row has eight chains beside each other instead of two, which hides their latency
    w.width = (w.g.width(min(max(rows, 1), w.g.mr), whole) + lanes - 1) // lanes * lanes
    w.data = <float *>take(max(whole * k, 1) * sizeof(float))
    if w.data == NULL:
        return -1
    w.g.pack(b, rsb, csb, k, n, w.width, w.data)
    return 0


cdef void multiply_panels(const Panels *w, Py_ssize_t m, const float *a, Py_ssize_t rsa, float *c, Py_ssize_t rsc, const float *bias) noexcept nogil:
    cdef Py_ssize_t tiles = (m + w.g.mr - 1) // w.g.mr, rows, i, j = 0, at, nn, ld
    if m == 0:
        return
    rows = (m + tiles - 1) // tiles
    while j < w.n:
        at = 0
        while at < min(w.width, w.n - j):
            # a panel may be wider than a tile of so many rows; its rows stay as long as they are
            nn = min(w.g.width(rows, w.width), min(w.width, w.n - j) - at)
            ld = (min(w.width, w.n - j) + w.g.lanes - 1) // w.g.lanes * w.g.lanes
            i = 0
            while i < m:
                w.g.tile(min(rows, m - i), nn, w.k, a + i * rsa, rsa, 1, w.data + j * w.k + at, ld, c + i * rsc + j + at, rsc,
                         bias + j + at if bias != NULL else NULL, OM_GEMM_FIRST | OM_GEMM_LAST)
                i += rows
            at += nn
        j += w.width
