# Scaled dot-product attention of many heads: raw pointers, strides in elements, everything checked by the caller, no lock needed.
from libc.stdint cimport uint8_t

cdef struct Heads:
    int ndim                    # leading dimensions
    const Py_ssize_t *shape
    const Py_ssize_t *q_lead    # strides there
    const Py_ssize_t *k_lead
    const Py_ssize_t *v_lead
    const Py_ssize_t *mask_lead
    Py_ssize_t queries
    Py_ssize_t keys
    Py_ssize_t width            # of a query and a key
    Py_ssize_t value_width
    const float *q              # elements of a row are contiguous
    const float *k
    const float *v
    Py_ssize_t q_row
    Py_ssize_t k_row
    Py_ssize_t v_row
    const float *add            # additive mask, or
    const uint8_t *keep         # boolean mask, or neither; any strides
    Py_ssize_t mask_row
    Py_ssize_t mask_col
    bint causal
    float scale

# Rows of a result or of its gradient: [lead..., rows, columns], a row contiguous; data may be NULL.
cdef struct Rows:
    float *data
    const Py_ssize_t *lead      # strides there
    Py_ssize_t row

# out fills its memory. Both return 0, or -1 if memory ran out (the outputs are then unspecified).
cdef int attention(int mode, const Heads *h, const Rows *out) noexcept nogil
# g like out; dq, dk and dv fill theirs, or are not there.
cdef int attention_bwd(int mode, const Heads *h, const Rows *g, const Rows *dq, const Rows *dk, const Rows *dv) noexcept nogil
