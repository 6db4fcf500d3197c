# Resizing of planes, gathers, row gradients and running sums for every other compiled module: raw pointers, sizes and indices checked by the
# caller (a gather checks its own), no lock needed. Those that return int give 0, or -1 if memory ran out (the output is then unspecified).
from libc.stdint cimport int64_t

cdef enum How:
    NEAREST = 0
    NEAREST_EXACT = 1
    HALF_PIXEL = 2
    ALIGN_CORNERS = 3

# Planes x[n, c, ih, iw] to y[n, c, oh, ow], all sizes positive and those of planes below 2^31. xn, xc, xh: element strides of x, whose rows are
# contiguous. fh, fw: the factors of size that the coordinates use, or 0 for the quotient of the sizes.
cdef struct Resize:
    int how
    Py_ssize_t n
    Py_ssize_t c
    Py_ssize_t ih
    Py_ssize_t iw
    Py_ssize_t oh
    Py_ssize_t ow
    Py_ssize_t xn
    Py_ssize_t xc
    Py_ssize_t xh
    double fh
    double fw

cdef int resize(int mode, const Resize *r, const float *x, float *y) noexcept nogil
# The adjoint: contiguous dx[n, c, ih, iw] from contiguous g[n, c, oh, ow].
cdef int resize_bwd(int mode, const Resize *r, const float *g, float *dx) noexcept nogil

# y[i, k, j] = x[i, index[i, k, j], j], the axis in the middle: index and y contiguous of shape (outer, n, inner). The outer dimensions are those of
# outer_sizes with x's steps outer_steps; step: x's along the axis, which has `size` elements; inner_step: x's along j.
cdef struct Gather:
    int rank
    Py_ssize_t[16] outer_sizes
    Py_ssize_t[16] outer_steps
    Py_ssize_t outer
    Py_ssize_t n
    Py_ssize_t inner
    Py_ssize_t size
    Py_ssize_t step
    Py_ssize_t inner_step

# Both return -1, or the place of an index outside [0, size), the least that was found; the output is then unspecified.
cdef Py_ssize_t gather(const Gather *q, int itemsize, const void *x, const int64_t *index, void *y) noexcept nogil
# dx[i, index[i, k, j], j] += g[i, k, j], k increasing, into zeros of `total` elements that this sets first; steps are those of dx.
cdef Py_ssize_t gather_bwd(int mode, const Gather *q, const float *g, const int64_t *index, float *dx, Py_ssize_t total) noexcept nogil
# y[k] = x[id[k]] for rows of cols items; x's rows are row_step apart, its columns col_step, in items.
cdef void take_rows(const void *x, Py_ssize_t row_step, Py_ssize_t col_step, int itemsize, const int64_t *ids, Py_ssize_t n, Py_ssize_t cols,
                    void *y) noexcept nogil
# dx = zeros of (rows, cols) with g[k] added to row id[k], k increasing; ids equal to `skip` take no part.
cdef void rows_bwd(int mode, const float *g, const int64_t *ids, Py_ssize_t n, int64_t skip, float *dx, Py_ssize_t rows, Py_ssize_t cols) noexcept nogil
# y[o, k, i] = x[o, index[k], i], x of shape (outer, axis, inner), all contiguous.
cdef void select(Py_ssize_t outer, Py_ssize_t axis, Py_ssize_t inner, int itemsize, const void *x, const int64_t *index, Py_ssize_t n,
                 void *y) noexcept nogil
# dx = zeros with dx[o, index[k], i] += g[o, k, i], k increasing.
cdef void select_bwd(int mode, Py_ssize_t outer, Py_ssize_t axis, Py_ssize_t inner, const float *g, const int64_t *index, Py_ssize_t n,
                     float *dx) noexcept nogil
# Running sums along the middle dimension of contiguous (outer, n, inner); backwards: from the end.
cdef void cumsum(int mode, bint backwards, Py_ssize_t outer, Py_ssize_t n, Py_ssize_t inner, const float *x, float *y) noexcept nogil
# The first index outside [0, size), or -1: to be asked before anything is written.
cdef Py_ssize_t first_outside(const int64_t *index, Py_ssize_t count, Py_ssize_t size) noexcept nogil
