"""Owns the walk over a batch of images by which a convolution's outputs are pooled, and their gradients used, while they are in the caches.

The outputs of a convolution are the largest thing in a network for images, four times as large as what pooling leaves of them. Here they exist
for a few images at a time. Must not contain arithmetic: every step is a kernel that the operators run too, image by image in the same order.
"""

from libc.stdint cimport int32_t
from libc.string cimport memset

from onemodel._kernels.conv cimport Conv, conv_forward, conv_input
from onemodel._kernels.conv_weight cimport conv_weight, conv_weight_more, weight_continues
from onemodel._kernels.conv_winners cimport MADE_DB, MADE_DW, MADE_DX, winners_backward, winners_fit
from onemodel._kernels.elementwise cimport MAP1, Operand, map_flat
from onemodel._kernels.pieces cimport begin, cut, run
from onemodel._kernels.pooling cimport Pooling, pool_backward, pool_forward
from onemodel._kernels.table cimport om_round_fn, om_sum_fn, om_table, row_index, table_of, thread_count
from onemodel._pool.pool cimport give, take

cdef extern from "kernels.h" nogil:
    ctypedef void om_winners_fn(float *y, int32_t *index, Py_ssize_t n) noexcept nogil

cdef Py_ssize_t WINNERS = row_index("winners", "relu_winners")
cdef Py_ssize_t RELU = row_index("map1", "relu")
cdef Py_ssize_t SUM_ROWS = row_index("sum", "sum_rows")
cdef Py_ssize_t ROUND_SUMS = row_index("round", "round_sums")

cdef enum:
    NEAR = 196608               # outputs of a thread's images at a time: three quarters of a megabyte, which the second cache keeps


cdef inline Py_ssize_t images_at_once(const Conv *c) noexcept nogil:
    """Some for every thread; the number changes no bit."""
    cdef Py_ssize_t image = c.oc * c.oh * c.ow
    return max(NEAR // max(image, 1), 1) * thread_count()


cdef Py_ssize_t conv_pool_bytes(const Conv *c) noexcept nogil:
    return min(images_at_once(c), c.n) * c.oc * c.oh * c.ow * sizeof(float)


# ---- forward ----

cdef struct Winners:
    om_winners_fn *kernel
    float *y
    int32_t *index
    Py_ssize_t n, pieces


cdef void winners_piece(void *context, Py_ssize_t piece) noexcept nogil:
    cdef const Winners *j = <const Winners *>context
    cdef Py_ssize_t first = begin(j.n, j.pieces, piece)
    j.kernel(j.y + first, j.index + first, begin(j.n, j.pieces, piece + 1) - first)


cdef void relu(int mode, float *y, int32_t *index, Py_ssize_t n) noexcept nogil:
    """In place."""
    cdef Winners j
    cdef Operand operand
    cdef const om_table *table = table_of(mode)
    if index == NULL:
        operand.data, operand.steps[0] = <const char *>y, 1
        map_flat(MAP1, table.row[RELU], n, &operand, <char *>y)
        return
    j.kernel, j.y, j.index, j.n, j.pieces = <om_winners_fn *>table.row[WINNERS], y, index, n, cut(n, n)
    run(winners_piece, &j, j.pieces)


cdef int conv_pool_forward(int mode, const Conv *c, const Pooling *p, const float *x, const float *w, const float *bias, float *y,
                           int32_t *index) noexcept nogil:
    cdef Conv now = c[0]
    cdef Pooling pooling = p[0]
    cdef Py_ssize_t image = 0, most = min(images_at_once(c), c.n), size = c.oc * p.oh * p.ow
    cdef float *outputs = <float *>take(<size_t>(max(most, 1) * c.oc * c.oh * c.ow) * sizeof(float))
    cdef int status = 0
    if outputs == NULL:
        return -1
    while image < c.n and status == 0:
        now.n = pooling.n = min(most, c.n - image)
        status = conv_forward(mode, &now, x + image * c.xn, w, bias, outputs)
        if status == 0:
            status = pool_forward(mode, &pooling, outputs, y + image * size, NULL if index == NULL else index + image * size)
        if status == 0:
            relu(mode, y + image * size, NULL if index == NULL else index + image * size, now.n * size)
        image += now.n
    give(outputs)
    return status


# ---- backward ----

cdef struct BiasSums:
    om_sum_fn *kernel
    om_round_fn *finish
    const float *g
    double *sums
    float *db                   # NULL until the last images
    Py_ssize_t images, channels, plane, pieces


cdef void bias_piece(void *context, Py_ssize_t piece) noexcept nogil:
    """Some channels' sums over all images, in order."""
    cdef const BiasSums *j = <const BiasSums *>context
    cdef Py_ssize_t first = begin(j.channels, j.pieces, piece), n = begin(j.channels, j.pieces, piece + 1) - first, image
    for image in range(j.images):
        j.kernel(j.g + (image * j.channels + first) * j.plane, j.plane, n, j.plane, j.sums + first)
    if j.db != NULL:
        j.finish(j.sums + first, 1.0, j.db + first, 1, n)


cdef int conv_pool_backward(int mode, const Conv *c, const Pooling *p, const float *g, const int32_t *index, const float *x, const float *w,
                            float *dx, float *dw, float *db) noexcept nogil:
    cdef const om_table *table = table_of(mode)
    cdef Conv now = c[0]
    cdef Pooling pooling = p[0]
    cdef BiasSums bias
    cdef Py_ssize_t image = 0, most = c.n, size = c.oc * p.oh * p.ow, plane = c.oh * c.ow
    cdef double *sums
    cdef float *outputs             # gradients of the convolution's outputs
    cdef int status = 0
    if c.ic == 0:  # neither has an element
        dx = dw = NULL
    if winners_fit(mode, c, p):
        status = winners_backward(mode, c, p, g, index, x, w, dx, dw, db)
        if status < 0:
            return -1
        dx, dw, db = NULL if status & MADE_DX else dx, NULL if status & MADE_DW else dw, NULL if status & MADE_DB else db
        status = 0
    if dx == NULL and dw == NULL and db == NULL:
        return 0
    if dw == NULL or weight_continues(mode, c):
        most = min(images_at_once(c), c.n)
    sums = <double *>take(<size_t>((c.oc + 7) // 8 * 8) * sizeof(double) + <size_t>(most * c.oc * plane) * sizeof(float))
    if sums == NULL:
        return -1
    outputs = <float *>(sums + (c.oc + 7) // 8 * 8)
    memset(sums, 0, c.oc * sizeof(double))
    bias.kernel, bias.finish = <om_sum_fn *>table.row[SUM_ROWS], <om_round_fn *>table.row[ROUND_SUMS]
    bias.g, bias.sums, bias.db, bias.channels, bias.plane = outputs, sums, NULL, c.oc, plane
    while status == 0:  # once where there is no image: dw and db are 0
        now.n = pooling.n = bias.images = min(most, c.n - image)
        status = pool_backward(mode, &pooling, g + image * size, index + image * size, outputs)
        if status == 0 and dx != NULL:
            status = conv_input(mode, &now, outputs, w, NULL, dx + image * c.ic * c.ih * c.iw)
        if status == 0 and dw != NULL and image == 0:
            status = conv_weight(mode, &now, x, outputs, dw)
        elif status == 0 and dw != NULL:
            status = conv_weight_more(mode, &now, x + image * c.xn, outputs, dw)
        image += now.n
        if db != NULL:
            bias.db = db if image == c.n else NULL
            bias.pieces = cut(now.n * c.oc * plane, c.oc)
            run(bias_piece, &bias, bias.pieces)
        if image == c.n:
            break
    give(sums)
    return status
