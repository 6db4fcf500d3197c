# What a convolution's shape decides, for conv.pyx: its geometry seen from the outputs, how it is cut, and how much scratch a piece takes.
from onemodel._kernels.conv cimport Conv
from onemodel._kernels.table cimport om_gemm, om_table

cdef extern from "kernels.h" nogil:
    enum:
        OM_GEMM_FIRST
        OM_GEMM_LAST
        OM_GEMM_BIAS_ROWS
        OM_CONV_VECTORS
    ctypedef struct om_conv_taps:
        Py_ssize_t n
        Py_ssize_t first
        Py_ssize_t step
        Py_ssize_t at
        Py_ssize_t apart
    ctypedef struct om_conv_view:
        const float *x
        Py_ssize_t xc
        Py_ssize_t xh
        Py_ssize_t h
        Py_ssize_t w
        Py_ssize_t sh
        Py_ssize_t sw
        Py_ssize_t outputs
        om_conv_taps rows
        om_conv_taps cols
    ctypedef struct om_conv_region:
        Py_ssize_t row
        Py_ssize_t col
        Py_ssize_t rows
        Py_ssize_t cols
        Py_ssize_t reach_rows
        Py_ssize_t reach_cols
        Py_ssize_t pitch
        Py_ssize_t plane
    ctypedef struct om_conv_columns:
        const float *b[OM_CONV_VECTORS]
        Py_ssize_t c[OM_CONV_VECTORS]
        Py_ssize_t n[OM_CONV_VECTORS]
    ctypedef void om_conv_tile_fn(Py_ssize_t m, Py_ssize_t k, const float *a, Py_ssize_t rsa, Py_ssize_t csa, const om_conv_columns *columns,
                                  const Py_ssize_t *offset, float *c, Py_ssize_t rsc, const float *bias, int flags) noexcept nogil
    ctypedef Py_ssize_t om_conv_vectors_fn(Py_ssize_t m) noexcept nogil
    ctypedef void om_conv_copy_fn(const om_conv_view *v, const om_conv_region *r, Py_ssize_t channels, float *dst) noexcept nogil
    ctypedef void om_conv_panel_fn(const float *src, const Py_ssize_t *offset, Py_ssize_t k, Py_ssize_t moves, const Py_ssize_t *from_,
                                   const Py_ssize_t *to, Py_ssize_t ld, float *dst) noexcept nogil
    ctypedef void om_conv_gather_fn(const om_conv_view *v, Py_ssize_t p, Py_ssize_t n, Py_ssize_t k0, Py_ssize_t k, float *dst) noexcept nogil
    ctypedef void om_conv_weights_fn(const om_conv_view *v, const float *w, Py_ssize_t wr, Py_ssize_t wc, Py_ssize_t kw, Py_ssize_t channels,
                                     Py_ssize_t rows, Py_ssize_t ld, float *dst) noexcept nogil
    ctypedef void om_conv_pairs_fn(const float *even, const float *odd, Py_ssize_t rows, Py_ssize_t lines, Py_ssize_t evens, Py_ssize_t odds,
                                   float *y, Py_ssize_t yc, Py_ssize_t yh) noexcept nogil
    ctypedef void om_conv_spread_fn(const float *src, Py_ssize_t ld, Py_ssize_t rows, Py_ssize_t n, Py_ssize_t outputs, float *y,
                                    Py_ssize_t yc, Py_ssize_t yh, Py_ssize_t yw) noexcept nogil

cdef enum:
    K_BLOCK = 384               # steps of one pass: what a tile reads of the image, or a panel, stays in L1 beside its weights
    A_BLOCK = 49152             # floats of weights that a piece uses before the next: they stay in L2
    A_NEAR = 2048               # of these, floats that meet all columns before the next do: they stay in L1
    MOST_MOVES = 128            # vectors of a panel's row: columns of the widest tile, one at a time at worst

# How a tile finds its columns.
cdef enum Path:
    DIRECT      # in a padded copy of a part of the image
    PANELS      # in panels packed from such a copy: rows of outputs do not fill vectors
    PLAIN       # 1x1: in panels packed from x, whose planes are the rows of the matrix
    GATHERED    # in panels collected from x tap by tap: kernels and dilations so large that a copy would not stay in a cache

# A convolution seen from its outputs, forward or adjoint. A strided adjoint falls into sh*sw phases, each a convolution of its own with the
# taps that exist there, whose outputs lie sh and sw apart; forward there is one phase. q, t: row and column within a phase.
cdef struct Job:
    const om_table *table
    const om_gemm *g
    const Conv *c
    bint adjoint
    const float *x              # images that are read
    Py_ssize_t xn
    Py_ssize_t channels         # of one group, read and written
    Py_ssize_t rows
    const float *w              # w[group*wg + row*wr + channel*wc + kernel row*kw + kernel column]
    Py_ssize_t wg
    Py_ssize_t wr
    Py_ssize_t wc
    const float *bias
    float *y
    Py_ssize_t oh
    Py_ssize_t ow
    Py_ssize_t sh               # between the outputs of one phase
    Py_ssize_t sw
    om_conv_view view           # common to all phases
    # the plan
    int path
    bint apart                  # results are collected and then spread
    Py_ssize_t tiles            # of rows, whose sizes differ by one at most
    Py_ssize_t mr               # rows of the first, the largest
    bint pack                   # weights are not read where they are
    bint local                  # each piece packs what it needs: they are used once or twice
    float *packed               # weights by (group, phase, tile, step), or NULL
    Py_ssize_t nq               # outputs of phase 0
    Py_ssize_t nt
    Py_ssize_t low_q            # least place of a tap relative to an output's, and its reach
    Py_ssize_t low_t
    Py_ssize_t reach_q
    Py_ssize_t reach_t
    Py_ssize_t block            # channels of a pass
    Py_ssize_t fold             # images whose outputs share columns
    Py_ssize_t chunks_q         # pieces of a plane of outputs
    Py_ssize_t chunks_t
    Py_ssize_t parts            # pieces of the rows
    Py_ssize_t items            # fold of images x group x chunks x parts
    Py_ssize_t together         # items in a piece
    Py_ssize_t pieces
    Py_ssize_t image            # floats of one image in the copy
    Py_ssize_t copy_floats
    Py_ssize_t stage_floats
    Py_ssize_t panel_floats
    om_conv_region region
    Py_ssize_t weight_floats
    Py_ssize_t *offset          # of a pass, one phase after the other
    bint failed

cdef inline Py_ssize_t round_up(Py_ssize_t x, Py_ssize_t to) noexcept nogil:
    return (x + to - 1) // to * to


cdef om_conv_taps taps_of(bint adjoint, Py_ssize_t k, Py_ssize_t stride, Py_ssize_t pad, Py_ssize_t dilation, Py_ssize_t phase) noexcept nogil
# Fills in the plan of a Job whose geometry stands.
cdef void plan(Job *j) noexcept nogil
