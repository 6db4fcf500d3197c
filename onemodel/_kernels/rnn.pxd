# One direction of one recurrent layer over all steps: raw pointers, everything contiguous and checked by the caller, no lock needed.

cdef enum Cell:
    LSTM = 4        # the number of gates
    GRU = 3

cdef struct Recurrent:
    Cell cell
    bint reverse
    Py_ssize_t steps
    Py_ssize_t batch
    Py_ssize_t inputs
    Py_ssize_t hidden
    const float *x          # [steps, batch, inputs]
    const float *w_ih       # [gates hidden, inputs]
    const float *w_hh       # [gates hidden, hidden]
    const float *b_ih       # [gates hidden] or NULL, as all below
    const float *b_hh
    const float *h0         # [batch, hidden] or NULL for zeros
    const float *c0
    float *gates            # [steps, batch, gates hidden], activated
    float *c                # [steps, batch, hidden]; of a GRU the hidden part of n
    float *tanh_c           # [steps, batch, hidden]; LSTM only
    float *y                # [steps, batch, hidden]

# Gradients; each but gy may be NULL.
cdef struct RecurrentGradients:
    const float *gy         # [steps, batch, hidden]
    const float *gc         # [batch, hidden], of the final cell, or NULL
    float *dx
    float *dw_ih
    float *dw_hh
    float *db_ih
    float *db_hh
    float *dh0
    float *dc0

# Fills gates, c, tanh_c and y. Both return 0, or -1 if memory ran out (the outputs are then unspecified).
cdef int recurrent(int mode, const Recurrent *r) noexcept nogil
cdef int recurrent_bwd(int mode, const Recurrent *r, const RecurrentGradients *g) noexcept nogil
