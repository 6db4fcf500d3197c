# The CTC loss of a batch: raw pointers, everything checked by the caller, no lock needed.
from libc.stdint cimport int64_t

# log_p[frame * t_step + item * b_step + class]; the labels of item b are target[start[b] : start[b] + target_length[b]].
cdef struct CtcBatch:
    Py_ssize_t items
    Py_ssize_t classes
    Py_ssize_t frames           # of the longest input that log_p holds
    const float *log_p
    Py_ssize_t t_step
    Py_ssize_t b_step
    const int64_t *target
    const int64_t *start
    const int64_t *target_length
    const int64_t *input_length
    int64_t blank

# Doubles that ctc_alpha wants for its forward variables.
cdef Py_ssize_t ctc_doubles(const CtcBatch *c) noexcept nogil
# loss[b] = -log p(target | input), +inf where no path exists; 0, or -1 if memory ran out.
cdef int ctc_alpha(int mode, const CtcBatch *c, double *alpha, double *loss) noexcept nogil
# dx [frames, items, classes], contiguous: the gradient of sum over b of scale[b] * loss[b]; 0 where loss[b] is infinite.
cdef int ctc_bwd(int mode, const CtcBatch *c, const double *alpha, const double *loss, const double *scale, float *dx) noexcept nogil
